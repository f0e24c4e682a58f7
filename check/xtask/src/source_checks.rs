//! The checks that read sources and pages, as one list.
//!
//! All of them run and report before the first failure ends the command. A check either allows
//! nothing, or has an allow-list (`allow.rs`) in `check/xtask/`. Reading and parsing takes most of
//! the time, and happens once.

use std::path::Path;

use crate::allow::{self, Keyed};
use crate::pages::{self, Page};
use crate::report::Finding;
use crate::sources::{self, Source};
use crate::workspace::Workspace;
use crate::{
    comment_paths, dead_items, decisions, dependencies, doc_comments, features, glossary, graph,
    impls, layers, layout, links, names, parameters, size, unsafety, width,
};

/// The project as checks read it.
pub(crate) struct Project {
    workspace: Workspace,
    sources: Vec<Source>,
    pages: Vec<Page>,
}

impl Project {
    /// Reads and parses everything below the root of the workspace.
    pub(crate) fn load(workspace: Workspace) -> Result<Self, String> {
        let sources = sources::load(&workspace.root)?;
        let pages = pages::load(&workspace.root)?;
        Ok(Self { workspace, sources, pages })
    }

    /// Folder of the root `Cargo.toml`.
    pub(crate) fn root(&self) -> &Path {
        &self.workspace.root
    }
}

/// A check of sources and pages.
pub(crate) struct SourceCheck {
    /// Name of the check in the output.
    pub(crate) name: &'static str,
    rule: Rule,
}

/// Way in which a check decides.
enum Rule {
    /// Everything that it finds fails.
    Strict(fn(&Project) -> Result<Vec<Finding>, String>),
    /// A list covers the findings that existed when the check was added.
    Listed(fn(&Project) -> Vec<Keyed>, &'static str),
}

const fn strict(
    name: &'static str,
    check: fn(&Project) -> Result<Vec<Finding>, String>,
) -> SourceCheck {
    SourceCheck { name, rule: Rule::Strict(check) }
}

const fn listed(
    name: &'static str,
    list: &'static str,
    check: fn(&Project) -> Vec<Keyed>,
) -> SourceCheck {
    SourceCheck { name, rule: Rule::Listed(check, list) }
}

/// All checks, in the order of the output.
pub(crate) const CHECKS: &[SourceCheck] = &[
    strict("layers", |p| Ok(layers::check(&p.workspace))),
    listed("module graph", "check/xtask/graph-allow.txt", |p| {
        graph::check(&p.workspace, &p.sources)
    }),
    listed("impl blocks", "check/xtask/impls-allow.txt", |p| {
        impls::check(&p.workspace, &p.sources)
    }),
    listed("sizes", "check/xtask/size-allow.txt", |p| size::check(&p.sources)),
    listed("parameters", "check/xtask/parameters-allow.txt", |p| parameters::check(&p.sources)),
    strict("unused dependencies", |p| Ok(dependencies::check(&p.workspace, &p.sources))),
    listed("dead public items", "check/xtask/dead-items-allow.txt", |p| {
        dead_items::check(&p.sources)
    }),
    strict("shipped features", |p| features::check(&p.workspace)),
    strict("names and notes", |p| Ok(names::check(&p.sources))),
    strict("unsafe", |p| {
        let list = read(p.root(), unsafety::ALLOW_PATH)?;
        Ok(unsafety::check(&p.sources, &list))
    }),
    listed("layout", "check/xtask/layout-allow.txt", |p| layout::check(&p.sources, &p.pages)),
    listed("width", "check/xtask/width-allow.txt", |p| width::check(&p.sources, &p.pages)),
    listed("doc comments", "check/xtask/doc-comments-allow.txt", |p| {
        doc_comments::check(&p.sources)
    }),
    strict("glossary", |p| Ok(glossary::check(&p.pages))),
    strict("decisions", |p| Ok(decisions::check(&p.sources, &p.pages))),
    strict("paths in comments", |p| {
        Ok(comment_paths::check(&p.sources, &|path| p.root().join(path).exists()))
    }),
    strict("links", |p| Ok(links::check(p.root(), &p.pages))),
];

impl SourceCheck {
    /// Runs the check. With `bless`, its list loses the entries that nothing needs first.
    pub(crate) fn run(&self, project: &Project, bless: bool) -> Result<Vec<Finding>, String> {
        let (check, path) = match &self.rule {
            Rule::Strict(check) => return check(project),
            Rule::Listed(check, path) => (check, *path),
        };
        let found = check(project);
        let mut list = read(project.root(), path)?;
        if bless {
            let blessed = allow::bless(&found, &list);
            if blessed != list {
                write(project.root(), path, &blessed)?;
                list = blessed;
            }
        }
        Ok(allow::compare(&found, &list, path))
    }
}

fn read(root: &Path, path: &str) -> Result<String, String> {
    std::fs::read_to_string(root.join(path)).map_err(|e| format!("{path}: {e}"))
}

#[expect(clippy::disallowed_methods, reason = "a build tool edits the checkout that it runs in")]
fn write(root: &Path, path: &str, text: &str) -> Result<(), String> {
    std::fs::write(root.join(path), text).map_err(|e| format!("{path}: {e}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{CHECKS, Rule};

    #[test]
    fn every_check_has_a_name_and_a_list_of_its_own() {
        let names: BTreeSet<_> = CHECKS.iter().map(|check| check.name).collect();
        assert_eq!(names.len(), CHECKS.len());
        let lists = CHECKS.iter().filter_map(|check| match check.rule {
            Rule::Listed(_, path) => Some(path),
            Rule::Strict(_) => None,
        });
        let lists: Vec<_> = lists.collect();
        assert_eq!(lists.iter().collect::<BTreeSet<_>>().len(), lists.len());
    }
}
