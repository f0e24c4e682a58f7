//! The module graph: the top-level modules of a crate form a graph without cycles, and so do the
//! folders of the engine's `db`.
//!
//! Nodes are the modules that `src/lib.rs` and `src/main.rs` declare, with all files below them. An
//! edge goes from the module that a reference stands in to the module that it names
//! (`references.rs`). A name that the crate's root re-exports, as in `pub use a::B`, counts as a
//! reference to `a`: an import by way of the root is no way around the rule. What the root itself
//! defines belongs to no node, and the root's own imports are no edges. A glob import of the root
//! is no edge either, because it names nothing.
//!
//! An entry of the list is an edge of a cycle, as `crates/x a -> b`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use crate::allow::Keyed;
use crate::references::{ModulePath, Reference, module_of, references, uses};
use crate::report::Finding;
use crate::sources::Source;
use crate::workspace::Workspace;

/// Modules whose folders form a graph of their own: crate and module.
const FOLDERS_OF: &[(&str, &str)] = &[("crates/engine", "db")];

/// The edges of all cycles of all crates.
pub(crate) fn check(workspace: &Workspace, sources: &[Source]) -> Vec<Keyed> {
    let mut found = Vec::new();
    for member in &workspace.members {
        let files = Files::of(&member.dir, sources);
        found.extend(cycles(&files, &[], &member.dir.display().to_string()));
        for (_, module) in FOLDERS_OF.iter().filter(|(dir, _)| Path::new(dir) == member.dir) {
            let name = member.dir.join("src").join(module).display().to_string();
            found.extend(cycles(&files, &[(*module).to_owned()], &name));
        }
    }
    found
}

/// The files of one crate's `src`, with their modules.
struct Files<'a>(Vec<(ModulePath, &'a Source)>);

impl<'a> Files<'a> {
    fn of(dir: &Path, sources: &'a [Source]) -> Self {
        let src = dir.join("src");
        let files = sources.iter().filter(|source| !source.is_test_file());
        let files = files
            .filter_map(|source| Some((module_of(source.path.strip_prefix(&src).ok()?)?, source)));
        Self(files.collect())
    }

    /// The children of `parent`: at the top all, below it only those with a folder.
    fn nodes(&self, parent: &[String]) -> BTreeSet<String> {
        let below = self.0.iter().filter_map(|(module, source)| {
            let rest = module.strip_prefix(parent)?;
            let folder = rest.len() > 1 || source.path.ends_with("mod.rs");
            rest.first().filter(|_| parent.is_empty() || folder)
        });
        below.cloned().collect()
    }

    /// Names in `parent` that are not its children: re-exports and exported macros, each with its
    /// path.
    fn names(&self, parent: &[String]) -> BTreeMap<String, ModulePath> {
        let roots = self.0.iter().filter(|(module, _)| module == parent);
        let mut names: BTreeMap<_, _> = roots.flat_map(|(m, source)| uses(source, m)).collect();
        if parent.is_empty() {
            for (module, source) in &self.0 {
                names.extend(exported_macros(source).map(|name| (name, module.clone())));
            }
        }
        names
    }
}

fn exported_macros(source: &Source) -> impl Iterator<Item = String> {
    source.tree.items.iter().filter_map(|item| match item {
        syn::Item::Macro(item) if item.attrs.iter().any(|a| a.path().is_ident("macro_export")) => {
            item.ident.as_ref().map(ToString::to_string)
        }
        _ => None,
    })
}

type Edges = BTreeMap<String, BTreeMap<String, (PathBuf, usize)>>;

/// The edges of cycles between the children of `parent`, each with its first place.
fn cycles(files: &Files<'_>, parent: &[String], name: &str) -> Vec<Keyed> {
    let edges = edges(files, parent);
    let mut found = Vec::new();
    for (from, targets) in &edges {
        for (to, (path, line)) in targets {
            let Some(back) = way(&edges, to, from) else { continue };
            let message = format!(
                "`{from}` names `{to}`, which reaches it again ({}): move what both need below both",
                back.join(" -> ")
            );
            found.push(Keyed::new(
                format!("{name} {from} -> {to}"),
                Finding::new(path, *line, message),
            ));
        }
    }
    found
}

fn edges(files: &Files<'_>, parent: &[String]) -> Edges {
    let nodes = files.nodes(parent);
    let names = files.names(parent);
    let mut edges = Edges::new();
    for (module, source) in &files.0 {
        for Reference { from, to, line } in references(source, module) {
            let from = from.strip_prefix(parent).and_then(<[String]>::first);
            let to = target(&to, parent, &nodes, &names);
            if let (Some(from), Some(to)) = (from, to)
                && nodes.contains(from)
                && *from != to
            {
                let place = (source.path.clone(), line);
                edges.entry(from.clone()).or_default().entry(to).or_insert(place);
            }
        }
    }
    edges
}

/// The node that a path leads to, by way of re-exports of the parent.
fn target(
    path: &[String],
    parent: &[String],
    nodes: &BTreeSet<String>,
    names: &BTreeMap<String, ModulePath>,
) -> Option<String> {
    let first = path.strip_prefix(parent)?.first()?;
    if nodes.contains(first) {
        return Some(first.clone());
    }
    let real = names.get(first)?.strip_prefix(parent)?.first()?;
    nodes.contains(real).then(|| real.clone())
}

/// The shortest way along edges.
fn way<'a>(edges: &'a Edges, from: &'a str, to: &str) -> Option<Vec<&'a str>> {
    let mut before: BTreeMap<&str, &str> = BTreeMap::new();
    let mut open = VecDeque::from([from]);
    while let Some(node) = open.pop_front() {
        if node == to {
            let mut way = vec![node];
            let mut node = node;
            while node != from {
                node = before[node];
                way.push(node);
            }
            way.reverse();
            return Some(way);
        }
        for next in edges.get(node).into_iter().flat_map(BTreeMap::keys) {
            if next != from && !before.contains_key(next.as_str()) {
                before.insert(next, node);
                open.push_back(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::sources::tests::source;
    use crate::workspace::tests::sample;

    fn keys(dir: &str, files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> =
            files.iter().map(|(path, text)| source(&format!("{dir}/src/{path}"), text)).collect();
        let found = check(&sample(&[("x", dir, &[])]), &sources);
        found.into_iter().map(|keyed| keyed.key).collect()
    }

    #[test]
    fn cycle_of_three_modules_is_found_with_every_edge() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\n"),
            ("a/mod.rs", "mod part;\n"),
            ("a/part.rs", "use crate::b::B;\n"),
            ("b.rs", "fn f() { super::c::g() }\n"),
            ("c.rs", "macro_rules! m { () => { $crate::a::X } }\nuse crate::d;\n"),
            ("d.rs", ""),
        ];
        assert_eq!(
            keys("crates/x", &files),
            ["crates/x a -> b", "crates/x b -> c", "crates/x c -> a"]
        );
    }

    #[test]
    fn import_through_a_re_export_of_the_root_counts() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\npub use a::{A, inner::Z as Y};\npub struct Own;\n"),
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "use crate::{Own, Y};\n"),
        ];
        assert_eq!(keys("crates/x", &files), ["crates/x a -> b", "crates/x b -> a"]);
    }

    #[test]
    fn tests_children_and_the_root_make_no_cycle() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nuse crate::b::B;\n"),
            ("a/mod.rs", "mod part;\nuse crate::b::B;\nuse self::part::P;\n"),
            ("a/part.rs", "use super::Q;\nuse crate::a::R;\n"),
            ("b.rs", "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
            ("b/tests.rs", "use crate::a::A;\n"),
        ];
        assert_eq!(keys("crates/x", &files), Vec::<String>::new());
    }

    #[test]
    fn folders_of_the_engines_db_are_a_graph() {
        let files = [
            ("lib.rs", "mod db;\n"),
            ("db/mod.rs", "mod read;\nmod write;\nmod open;\npub use read::Get;\n"),
            ("db/read/mod.rs", "use super::write::W;\nuse super::open;\n"),
            ("db/write/mod.rs", "use crate::db::Get;\n"),
            ("db/open.rs", "use super::read::Get;\n"),
        ];
        let expected = ["crates/engine/src/db read -> write", "crates/engine/src/db write -> read"];
        assert_eq!(keys("crates/engine", &files), expected);
        assert_eq!(keys("crates/other", &files), Vec::<String>::new());
    }
}
