//! Impl blocks: those of one type stand in at most [`FILES_MAX`] files, implementations of traits
//! included. A type that needs more is several types.
//!
//! A type is known by the crate and the name. If a crate defines the name more than once, a block
//! belongs to the definition in its own file, else to the one that its file imports by that name,
//! else to the one whose module is nearest. Types of other crates and test code do not count.
//!
//! An entry of the list is a crate, a type and a number of files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::Visit;

use crate::allow::Keyed;
use crate::references::{ModulePath, module_of, uses};
use crate::report::Finding;
use crate::sources::Source;
use crate::workspace::Workspace;

/// Files that may hold impl blocks of one type.
const FILES_MAX: usize = 6;

/// The files of all types whose impl blocks stand in too many.
pub(crate) fn check(workspace: &Workspace, sources: &[Source]) -> Vec<Keyed> {
    workspace.members.iter().flat_map(|member| in_crate(&member.dir, sources)).collect()
}

/// A file of the crate with what it defines and implements.
struct File<'a> {
    source: &'a Source,
    module: ModulePath,
    types: Types,
}

fn in_crate(dir: &Path, sources: &[Source]) -> Vec<Keyed> {
    let src = dir.join("src");
    let mut files = Vec::new();
    for source in sources.iter().filter(|source| !source.is_test_file()) {
        let below = source.path.strip_prefix(&src).ok();
        if let Some(module) = below.and_then(module_of) {
            let mut types = Types::default();
            types.visit_file(&source.tree);
            files.push(File { source, module, types });
        }
    }
    let mut found = Vec::new();
    for ((_, name), places) in places(&files) {
        if places.len() > FILES_MAX {
            let message = format!(
                "impl blocks of `{name}` stand in {} files, {FILES_MAX} are allowed: divide the \
                 type, or move the methods together",
                places.len()
            );
            let key = format!("{} {name}", dir.display());
            let finding = |&(file, line): &(usize, usize)| {
                Finding::new(&files[file].source.path, line, message.clone())
            };
            found.extend(places.iter().map(|place| Keyed::new(key.clone(), finding(place))));
        }
    }
    found
}

/// The files with impl blocks by defining file and name, each with the line of the first one.
fn places<'a>(files: &'a [File<'a>]) -> BTreeMap<(usize, &'a str), BTreeSet<(usize, usize)>> {
    let mut defined: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, file) in files.iter().enumerate() {
        for name in &file.types.defined {
            defined.entry(name).or_default().push(at);
        }
    }
    let mut places: BTreeMap<(usize, &str), BTreeSet<(usize, usize)>> = BTreeMap::new();
    for (at, file) in files.iter().enumerate() {
        for (name, line) in &file.types.implemented {
            let line_is_test = file.source.is_test_line(*line);
            let Some(owners) = defined.get(name.as_str()).filter(|_| !line_is_test) else {
                continue;
            };
            let owner = owner(files, at, name, owners);
            places.entry((owner, name)).or_default().insert((at, *line));
        }
    }
    places
}

/// The file that defines the type `name` which file `at` implements.
fn owner(files: &[File<'_>], at: usize, name: &str, owners: &[usize]) -> usize {
    let file = &files[at];
    if owners.contains(&at) {
        return at;
    }
    let imported = uses(file.source, &file.module).remove(name);
    let wanted = imported.unwrap_or_else(|| file.module.clone());
    let common = |module: &[String]| module.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
    let near = |&&owner: &&usize| common(&files[owner].module);
    owners.iter().max_by_key(near).copied().unwrap_or(at)
}

/// The names of types that a file defines, and those of its impl blocks with their first lines.
#[derive(Default)]
struct Types {
    defined: BTreeSet<String>,
    implemented: BTreeMap<String, usize>,
}

impl<'ast> Visit<'ast> for Types {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.defined.insert(item.ident.to_string());
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.defined.insert(item.ident.to_string());
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.defined.insert(item.ident.to_string());
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !crate::sources::for_tests_only(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let mut target = &*item.self_ty;
        while let syn::Type::Reference(reference) = target {
            target = &reference.elem;
        }
        if let syn::Type::Path(path) = target
            && let Some(last) = path.path.segments.last()
        {
            let line = item.impl_token.span.start().line;
            self.implemented.entry(last.ident.to_string()).or_insert(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::sources::Source;
    use crate::sources::tests::source;
    use crate::workspace::tests::sample;

    fn keys(sources: &[Source]) -> Vec<String> {
        let found = check(&sample(&[("x", "crates/x", &[])]), sources);
        found.into_iter().map(|keyed| keyed.key).collect()
    }

    fn spread(files: usize) -> Vec<Source> {
        let mut sources = vec![source("crates/x/src/god.rs", "struct God;\nimpl God {}\n")];
        for file in 1..files {
            let text =
                "use super::God;\nimpl God {}\nimpl Drop for God {}\nimpl Into<u8> for &God {}\n";
            sources.push(source(&format!("crates/x/src/part{file}.rs"), text));
        }
        sources
    }

    #[test]
    fn type_in_seven_files_is_found_once_for_each() {
        assert_eq!(keys(&spread(7)), ["crates/x God"; 7]);
        assert_eq!(keys(&spread(6)), Vec::<String>::new());
    }

    #[test]
    fn types_of_one_name_are_told_apart() {
        let mut sources = Vec::new();
        for module in ["a", "b"] {
            let text = "pub(crate) struct State;\nimpl State {}\n";
            sources.push(source(&format!("crates/x/src/{module}/state.rs"), text));
            for file in 0..4 {
                let text = format!("use crate::{module}::state::State;\nimpl State {{}}\n");
                sources.push(source(&format!("crates/x/src/part_{module}{file}.rs"), &text));
            }
        }
        assert_eq!(keys(&sources), Vec::<String>::new());
    }

    #[test]
    fn tests_and_foreign_types_do_not_count() {
        let mut sources = spread(6);
        sources.push(source("crates/x/src/god/tests.rs", "impl super::God {}\n"));
        let text =
            "#[cfg(test)]\nimpl super::God {}\n#[cfg(test)]\nmod tests {\n    impl God {}\n}\n";
        sources.push(source("crates/x/src/more.rs", text));
        for file in 0..9 {
            sources.push(source(&format!("crates/x/src/s{file}.rs"), "impl X for String {}\n"));
        }
        assert_eq!(keys(&sources), Vec::<String>::new());
    }
}
