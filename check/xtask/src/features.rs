//! Shipped features: the program `archipelago` is built without hooks for tests and comparisons.
//!
//! Cargo unifies features within one build of the workspace, so the check asks for the tree of
//! `archipelago-cli` alone, which is what a release builds. Dependencies of tests are left out.

use std::path::Path;
use std::process::Command;

use crate::report::Finding;

/// The package that is shipped.
const PACKAGE: &str = "archipelago-cli";
/// Where its manifest lies.
const MANIFEST: &str = "front/cli/Cargo.toml";
/// Features that its tree must not hold, and what each one opens.
const FORBIDDEN: &[(&str, &str)] = &[
    ("sabotage", "it lets a caller switch leases and fencing off"),
    ("fuzzing", "it opens decoders to fuzz targets"),
    ("index-protocol", "it opens the index to other protocols"),
];

/// Asks cargo for the tree and checks it.
pub(crate) fn check(root: &Path) -> Result<Vec<Finding>, String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--package", PACKAGE, "--edges", "features,no-dev"])
        .args(["--prefix", "none", "--format", "{p}"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cargo tree does not start: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(forbidden(&String::from_utf8_lossy(&output.stdout)))
}

/// The forbidden features of a tree: lines such as `archipelago-pool feature "fuzzing"`.
fn forbidden(tree: &str) -> Vec<Finding> {
    let mut features: Vec<(&str, &str)> = tree.lines().filter_map(feature).collect();
    features.sort_unstable();
    features.dedup();
    let mut findings = Vec::new();
    for (package, name) in features {
        let Some((_, opens)) = FORBIDDEN.iter().find(|(forbidden, _)| *forbidden == name) else {
            continue;
        };
        let message = format!(
            "`{PACKAGE}` turns on the feature `{name}` of `{package}`: {opens}; remove it from the \
             dependency (`cargo tree -p {PACKAGE} -e features -i {package}` shows which one)"
        );
        findings.push(Finding::new(Path::new(MANIFEST), 0, message));
    }
    findings
}

/// Package and feature of a line of the tree.
fn feature(line: &str) -> Option<(&str, &str)> {
    let (package, rest) = line.split_once(" feature \"")?;
    let (name, _) = rest.split_once('"')?;
    Some((package.split_whitespace().next()?, name))
}

#[cfg(test)]
mod tests {
    use super::forbidden;

    #[test]
    fn hooks_in_the_tree_are_found() {
        let tree = "archipelago-cli v0.0.1 (/x/front/cli)\narchipelago-memory feature \"default\"\n\
                    archipelago-memory v0.0.1 (/x)\narchipelago-memory feature \"sabotage\"\n\
                    archipelago-memory feature \"sabotage\" (*)\narchipelago-tier feature \"fuzzing\"\n\
                    archipelago-flexkv feature \"index-protocol\"\n";
        let found: Vec<String> = forbidden(tree).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[1].contains("front/cli/Cargo.toml") && found[1].contains("`sabotage`"));
        assert!(found[1].contains("archipelago-memory"), "{found:?}");
    }

    #[test]
    fn other_features_pass() {
        let tree = "serde feature \"derive\"\nrand feature \"fuzzing-support\"\nfuzzing v1.0.0\n";
        assert_eq!(forbidden(tree), []);
    }
}
