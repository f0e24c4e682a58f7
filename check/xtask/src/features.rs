//! Shipped features: the program `archipelago` is built without hooks for tests and comparisons.
//!
//! 1. The resolved features of `archipelago-cli` hold no hook. Cargo unifies features within one
//!    build of the workspace, so the check asks for the tree of that package alone, which is what a
//!    release builds. Dependencies of tests are left out.
//! 2. Only packages of `check/` turn a hook on, and tests a hook of their own package. Only
//!    `archipelago-flexkv-rivals` turns on `index-protocol`.

use std::path::Path;
use std::process::Command;

use crate::report::Finding;
use crate::workspace::{Kind, Member, Workspace};

/// The package that is shipped.
const PACKAGE: &str = "archipelago-cli";
/// Path of the package's manifest.
const MANIFEST: &str = "front/cli/Cargo.toml";
/// The feature that one package alone turns on, and that package.
const ALONE: (&str, &str) = ("index-protocol", "archipelago-flexkv-rivals");
/// Features that the package's tree must not hold, and what each feature opens.
const FORBIDDEN: &[(&str, &str)] = &[
    ("sabotage", "it lets a caller switch leases and fencing off"),
    ("fuzzing", "it opens decoders to fuzz targets"),
    ("fault-points", "it lets a caller make background work fail"),
    ("index-protocol", "it opens the index to other protocols"),
    ("gc-by-key", "it makes garbage collection look up and read one record at a time"),
];

/// Asks cargo for the tree and checks it, and checks the manifests of the workspace.
pub(crate) fn check(workspace: &Workspace) -> Result<Vec<Finding>, String> {
    let mut findings = forbidden(&tree(&workspace.root, PACKAGE)?);
    findings.extend(workspace.members.iter().flat_map(turned_on));
    Ok(findings)
}

/// The packages and features that a build of `package` alone resolves to.
fn tree(root: &Path, package: &str) -> Result<String, String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--package", package, "--edges", "features,no-dev"])
        .args(["--prefix", "none", "--format", "{p}"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cargo tree does not start: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The hooks that a manifest turns on and must not.
fn turned_on(member: &Member) -> Vec<Finding> {
    let mut findings = Vec::new();
    for dependency in &member.dependencies {
        for (feature, opens) in FORBIDDEN {
            let may = match *feature == ALONE.0 {
                true => member.name == ALONE.1,
                false => member.dir.starts_with("check"),
            };
            // Tests of a crate may reach the crate's own hooks.
            let is_own_test = dependency.kind == Kind::Dev && dependency.package == member.name;
            if may || is_own_test || !dependency.features.iter().any(|name| name == feature) {
                continue;
            }
            let package = &dependency.package;
            let message = format!(
                "`{}` turns on the feature `{feature}` of `{package}`: {opens}; remove it from the \
                 dependency",
                member.name
            );
            findings.push(Finding::new(&member.dir.join("Cargo.toml"), 0, message));
        }
    }
    findings
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
    use super::{PACKAGE, forbidden, tree, turned_on};
    use crate::workspace::Workspace;
    use crate::workspace::tests::sample;

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
    fn resolved_features_of_packages_are_read() {
        let root = Workspace::load().expect("cargo metadata").root;
        let found = |package| forbidden(&tree(&root, package).expect("cargo tree"));
        assert_eq!(found(PACKAGE), []);
        // This package turns hooks on, directly and through others.
        let hooks = found("archipelago-lab");
        let names: Vec<String> = hooks.iter().map(ToString::to_string).collect();
        for feature in ["sabotage", "index-protocol"] {
            assert!(names.iter().any(|name| name.contains(&format!("`{feature}`"))), "{names:?}");
        }
    }

    #[test]
    fn only_checks_turn_hooks_on() {
        let on = ["archipelago-memory"];
        let mut workspace = sample(&[
            ("archipelago", "front/api", &on),
            ("archipelago-sim", "check/sim", &on),
            ("archipelago-flexkv-rivals", "check/flexkv-rivals", &on),
        ]);
        let mut found = |feature: &str| -> Vec<String> {
            for member in &mut workspace.members {
                member.dependencies[0].features = vec![feature.to_owned()];
            }
            let findings = workspace.members.iter().flat_map(turned_on);
            findings.map(|finding| finding.to_string()).collect()
        };
        let sabotage = found("sabotage");
        assert_eq!(sabotage.len(), 1, "{sabotage:?}");
        assert!(sabotage[0].contains("front/api/Cargo.toml"), "{sabotage:?}");
        let by_key = found("gc-by-key");
        assert_eq!(by_key.len(), 1, "{by_key:?}");
        let protocols = found("index-protocol");
        assert_eq!(protocols.len(), 2, "{protocols:?}");
        assert!(protocols.iter().all(|finding| !finding.contains("`archipelago-flexkv-rivals`")));
        assert_eq!(found("other"), Vec::<String>::new());
    }

    #[test]
    fn other_features_pass() {
        let tree = "serde feature \"derive\"\nrand feature \"fuzzing-support\"\nfuzzing v1.0.0\n";
        assert_eq!(forbidden(tree), []);
    }
}
