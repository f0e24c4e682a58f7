//! Paths inside a crate: which module of a crate names which path of the same crate.
//!
//! A reference is a path that starts with `crate::` or `super::`, in a `use`, in code, in a type or
//! in the text of a macro. Test code and visibilities such as `pub(in crate::a)` do not count, nor
//! do links of doc comments. The functions are pure walks over tokens, because the syntax tree
//! does not contain what stands inside a macro.

use std::collections::BTreeMap;
use std::path::Path;

use crate::sources::{Source, Token};

/// A path of a module or an item inside a crate, without `crate`.
pub(crate) type ModulePath = Vec<String>;

/// A reference from a module to a path of the same crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    /// The module in which the reference stands.
    pub(crate) from: ModulePath,
    /// The path that the reference names.
    pub(crate) to: ModulePath,
    /// The line of the reference's first word.
    pub(crate) line: usize,
}

/// The module that a file is, from its path below `src`; `None` for programs of `src/bin`.
pub(crate) fn module_of(below_src: &Path) -> Option<ModulePath> {
    let stem = below_src.with_extension("");
    let mut parts: ModulePath = stem.iter().map(|p| p.to_string_lossy().into_owned()).collect();
    let root = parts.len() == 1 && matches!(parts[0].as_str(), "lib" | "main");
    if root || parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    (parts.first().is_none_or(|first| first != "bin")).then_some(parts)
}

/// All references of a file whose module is `module`.
pub(crate) fn references(source: &Source, module: &[String]) -> Vec<Reference> {
    let mut walk = Walk { tokens: &source.tokens, module: module.to_vec(), found: Vec::new() };
    // For each open brace, whether it opened a module.
    let mut braces: Vec<bool> = Vec::new();
    let mut at = 0;
    while at < source.tokens.len() {
        let token = &source.tokens[at];
        match token.text.as_str() {
            "{" => {
                let name = walk.inline_module(at);
                braces.push(name.is_some());
                walk.module.extend(name);
            }
            "}" => {
                let closes_module = braces.pop() == Some(true);
                if closes_module {
                    walk.module.pop();
                }
            }
            "crate" | "super" if walk.starts_path(at) && !source.is_test_line(token.line) => {
                at = walk.path(at);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    walk.found
}

/// Names that a module gives to paths of its crate by `use`, also `pub use`: name and path.
pub(crate) fn uses(source: &Source, module: &[String]) -> BTreeMap<String, ModulePath> {
    let mut names = BTreeMap::new();
    for item in &source.tree.items {
        let syn::Item::Use(item) = item else { continue };
        let foreign = item.leading_colon.is_some();
        if !foreign && !crate::sources::for_tests_only(&item.attrs) {
            collect(&item.tree, &mut module.to_vec(), true, &mut names);
        }
    }
    names
}

fn collect(
    tree: &syn::UseTree,
    base: &mut ModulePath,
    first: bool,
    names: &mut BTreeMap<String, ModulePath>,
) {
    match tree {
        syn::UseTree::Path(path) => {
            let mut inner = base.clone();
            match path.ident.to_string().as_str() {
                "crate" if first => inner.clear(),
                "self" if first => {}
                "super" => {
                    inner.pop();
                }
                name => inner.push(name.to_owned()),
            }
            collect(&path.tree, &mut inner, false, names);
        }
        syn::UseTree::Group(group) => {
            for tree in &group.items {
                collect(tree, base, false, names);
            }
        }
        syn::UseTree::Name(name) if name.ident == "self" => {
            if let Some(last) = base.last() {
                names.insert(last.clone(), base.clone());
            }
        }
        syn::UseTree::Name(name) => {
            let mut path = base.clone();
            path.push(name.ident.to_string());
            names.insert(name.ident.to_string(), path);
        }
        syn::UseTree::Rename(rename) => {
            let mut path = base.clone();
            path.push(rename.ident.to_string());
            names.insert(rename.rename.to_string(), path);
        }
        _ => {}
    }
}

struct Walk<'a> {
    tokens: &'a [Token],
    /// The innermost module at this place.
    module: ModulePath,
    found: Vec<Reference>,
}

impl Walk<'_> {
    fn text(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| token.text.as_str())
    }

    /// The name of the module that the brace at `at` opens.
    fn inline_module(&self, at: usize) -> Option<String> {
        (at >= 2 && self.text(at - 2) == "mod").then(|| self.text(at - 1).to_owned())
    }

    fn is_separator(&self, at: usize) -> bool {
        self.text(at) == ":" && self.text(at + 1) == ":"
    }

    /// Whether `crate` or `super` at `at` starts a path that is not a visibility.
    fn starts_path(&self, at: usize) -> bool {
        let visibility = at >= 2 && self.text(at - 1) == "in" && self.text(at - 2) == "(";
        let continues = at >= 2 && self.is_separator(at - 2);
        self.is_separator(at + 1) && !visibility && !continues
    }

    /// Reads the path that starts at `at`. Returns the place after it.
    fn path(&mut self, at: usize) -> usize {
        let line = self.tokens[at].line;
        let mut base = self.module.clone();
        let mut next = at;
        if self.text(at) == "crate" {
            base.clear();
            next += 1;
        } else {
            base.pop();
            next += 1;
            while self.is_separator(next) && self.text(next + 2) == "super" {
                base.pop();
                next += 3;
            }
        }
        self.rest(base, next, line)
    }

    /// Reads `::a::b`, `::{a, b::c}` or `::*` after `base`.
    fn rest(&mut self, mut path: ModulePath, mut at: usize, line: usize) -> usize {
        while self.is_separator(at) {
            match self.text(at + 2) {
                "{" => return self.group(&path, at + 3),
                "*" | "<" | "" => {
                    at += 2;
                    break;
                }
                name => {
                    path.push(name.to_owned());
                    at += 3;
                }
            }
        }
        self.found.push(Reference { from: self.module.clone(), to: path, line });
        at
    }

    /// Reads the parts of a group up to its closing brace.
    fn group(&mut self, base: &[String], mut at: usize) -> usize {
        while at < self.tokens.len() && self.text(at) != "}" {
            let line = self.tokens[at].line;
            let mut path = base.to_vec();
            match self.text(at) {
                "," => {
                    at += 1;
                    continue;
                }
                "self" | "*" => {}
                name => path.push(name.to_owned()),
            }
            at = self.rest(path, at + 1, line);
            if self.text(at) == "as" {
                at += 2;
            }
        }
        at + 1
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{module_of, references, uses};
    use crate::sources::tests::source;

    fn paths(text: &str, module: &str) -> Vec<String> {
        let module: Vec<String> = module.split("::").map(str::to_owned).collect();
        let found = references(&source("crates/x/src/a/b.rs", text), &module);
        found.iter().map(|r| format!("{} {}", r.line, r.to.join("::"))).collect()
    }

    #[test]
    fn every_form_of_a_path_is_resolved() {
        let text = "use crate::c::{D, e::{self, F}, g as h};\nuse super::i;\n\
                    fn f(x: super::super::J) -> u8 {\n    crate::k::l::<u8>() + m!(crate::n::O)\n}\n\
                    mod inner {\n    use super::p;\n    use super::super::q;\n}\nuse super::r;\n";
        let expected = [
            "1 c::D",
            "1 c::e",
            "1 c::e::F",
            "1 c::g",
            "2 a::i",
            "3 J",
            "4 k::l",
            "4 n::O",
            "7 a::b::p",
            "8 a::q",
            "10 a::r",
        ];
        assert_eq!(paths(text, "a::b"), expected);
    }

    #[test]
    fn tests_visibilities_and_foreign_paths_do_not_count() {
        let text = "pub(in crate::a) fn f() {}\npub(super) fn g() {}\npub(crate) fn h() {}\n\
                    use other::crate_like::X;\n/// [`crate::doc`] is a link.\n\
                    #[cfg(test)]\nuse crate::c;\n#[cfg(test)]\nmod tests {\n    use crate::d;\n}\n";
        assert_eq!(paths(text, "a::b"), Vec::<String>::new());
    }

    #[test]
    fn files_are_modules() {
        let path = |below: &str| module_of(Path::new(below)).map(|parts| parts.join("::"));
        assert_eq!(path("lib.rs").as_deref(), Some(""));
        assert_eq!(path("a/mod.rs").as_deref(), Some("a"));
        assert_eq!(path("a/b.rs").as_deref(), Some("a::b"));
        assert_eq!(path("bin/tool.rs"), None);
    }

    #[test]
    fn names_of_a_root_are_paths() {
        let text =
            "mod a;\npub use a::{B, c::D as E};\npub(crate) use crate::f::G;\nuse self::h;\n";
        let names = uses(&source("lib.rs", text), &[]);
        let names: Vec<String> =
            names.iter().map(|(n, p)| format!("{n}={}", p.join("::"))).collect();
        assert_eq!(names, ["B=a::B", "E=a::c::D", "G=f::G", "h=h"]);
    }
}
