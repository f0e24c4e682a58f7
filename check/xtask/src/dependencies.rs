//! Unused dependencies: each entry of a manifest's tables is named somewhere in the crate.
//!
//! A normal dependency must be named in `src/` or `build.rs`, where tests do not count; a
//! dev-dependency anywhere in the crate's sources, also in a doc comment, since doctests are code.
//! The name is the package's with `_` for `-`, which holds for all that the workspace uses.

use std::path::Path;

use crate::report::Finding;
use crate::sources::Source;
use crate::workspace::{Dependency, Kind, Member, Workspace};

/// Checks every dependency of every crate.
pub(crate) fn check(workspace: &Workspace, sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &workspace.members {
        for dependency in &member.dependencies {
            if !is_used(member, dependency, sources) {
                let (table, hint) = match dependency.kind {
                    Kind::Normal => ("dependencies", "or move it to [dev-dependencies]"),
                    Kind::Dev => ("dev-dependencies", "no test, example or doctest names it"),
                    Kind::Build => ("build-dependencies", "build.rs does not name it"),
                };
                let message = format!(
                    "`{}` in [{table}] is not used: remove it ({hint})",
                    dependency.package
                );
                findings.push(Finding::new(&member.dir.join("Cargo.toml"), 0, message));
            }
        }
    }
    findings
}

fn is_used(member: &Member, dependency: &Dependency, sources: &[Source]) -> bool {
    let ours = sources.iter().filter_map(|s| Some((s, s.path.strip_prefix(&member.dir).ok()?)));
    let mut relevant = ours.filter(|(_, path)| match dependency.kind {
        Kind::Normal => path.starts_with("src") || *path == Path::new("build.rs"),
        Kind::Dev => !path.starts_with("fuzz"),
        Kind::Build => *path == Path::new("build.rs"),
    });
    relevant.any(|(source, _)| match dependency.kind {
        Kind::Dev => has_word(&source.text, &dependency.ident),
        Kind::Normal | Kind::Build => {
            source.tokens.iter().any(|t| t.text == dependency.ident && !source.is_test_line(t.line))
        }
    })
}

fn has_word(text: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
    })
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::sources::tests::source;
    use crate::workspace::Kind;
    use crate::workspace::tests::sample;

    #[test]
    fn an_unused_dependency_is_found() {
        let workspace = sample(&[("a", "crates/a", &["twox-hash", "serde"])]);
        let sources = [
            source("crates/a/src/lib.rs", "// serde is only talked about\nuse twox_hash::X;\n"),
            source("crates/b/src/lib.rs", "use serde::Serialize;\n"),
        ];
        let found = check(&workspace, &sources);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].to_string().starts_with("crates/a/Cargo.toml: `serde`"));
    }

    #[test]
    fn tests_do_not_justify_a_normal_dependency() {
        let workspace = sample(&[("a", "crates/a", &["tempfile"])]);
        let text = "#[cfg(test)]\nmod tests {\n    use tempfile::tempdir;\n}\n";
        assert_eq!(check(&workspace, &[source("crates/a/src/lib.rs", text)]).len(), 1);
    }

    #[test]
    fn a_dev_dependency_may_be_used_by_a_doctest_only() {
        let mut workspace = sample(&[("a", "crates/a", &["tempfile", "proptest"])]);
        for dependency in &mut workspace.members[0].dependencies {
            dependency.kind = Kind::Dev;
        }
        let text = "//! ```\n//! let dir = tempfile::tempdir();\n//! ```\n//! proptests\n";
        let found = check(&workspace, &[source("crates/a/src/lib.rs", text)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("`proptest` in [dev-dependencies]"));
    }
}
