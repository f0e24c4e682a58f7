//! Layers: the crates that each crate may depend on.
//!
//! 1. A crate depends only on crates of lower layers; so roles never depend on roles.
//! 2. Crates in `check/` or `examples/` may use everything. No crate outside depends on them,
//!    except `archipelago-cli`, which offers the benchmark as a subcommand.
//! 3. The engine and all below it never reach tokio, not even through others: it is synchronous.
//!
//! The numbers are those of ARCHITECTURE.md. Tests count: a test of a low layer that needs a high
//! one belongs to the high one.

use std::path::Path;

use crate::report::Finding;
use crate::workspace::{Member, Workspace};

/// Folder and layer. A new crate gets a line here, and one in ARCHITECTURE.md.
const LAYERS: &[(&str, u32)] = &[
    ("crates/base", 0),
    ("crates/env", 1),
    ("crates/fabric", 1),
    ("crates/tier", 2),
    ("crates/pool", 2),
    ("crates/store", 2),
    ("crates/engine", 3),
    ("crates/offload", 4),
    ("crates/flexkv", 4),
    ("roles/compute", 5),
    ("roles/memory", 5),
    ("roles/storage", 5),
    ("roles/manager", 5),
    ("front/api", 6),
    ("front/resp", 7),
    ("front/capi", 7),
    ("front/python", 7),
    ("front/metrics", 8),
    ("front/cli", 9),
];

/// The only dependencies on `check/` from outside it: the package, and the package it depends on.
const CHECK_EXCEPTIONS: &[(&str, &str)] = &[("archipelago-cli", "archipelago-bench")];

/// Dependencies that must not exist, even by way of others: a package, the forbidden package, and
/// the reason.
const NEVER: &[(&str, &str, &str)] = &[
    ("archipelago-engine", "tokio", "the engine is synchronous; async is the front ends' matter"),
    ("archipelago-cli", "archipelago-lab", "the laboratory is no part of the product"),
    ("archipelago-cli", "archipelago-sim", "simulations are no part of the product"),
    ("archipelago-bench", "archipelago-sim", "the benchmark is a part of the product"),
    ("archipelago-cli", "archipelago-flexkv-rivals", "rival protocols are no part of the product"),
];

/// Checks every dependency between crates of the workspace.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &workspace.members {
        let manifest = member.dir.join("Cargo.toml");
        let mut find = |message: String| findings.push(Finding::new(&manifest, 0, message));
        if has_no_layer(member) {
            continue;
        }
        let Some(layer) = layer(member) else {
            find(format!(
                "`{}` has no layer: give {} a number in check/xtask/src/layers.rs",
                member.name,
                member.dir.display()
            ));
            continue;
        };
        for dependency in &member.dependencies {
            let Some(on) = workspace.member(&dependency.package) else { continue };
            if let Err(message) = edge(member, layer, on) {
                find(message);
            }
        }
    }
    for &(package, never, why) in NEVER {
        if let Some(member) = workspace.member(package)
            && workspace.reach(package).contains(never)
        {
            let message = format!(
                "`{package}` reaches `{never}`: {why}; `cargo tree -p {package} -i {never}` shows how"
            );
            findings.push(Finding::new(&member.dir.join("Cargo.toml"), 0, message));
        }
    }
    findings
}

fn edge(member: &Member, from: u32, on: &Member) -> Result<(), String> {
    if has_no_layer(on) {
        let allowed = CHECK_EXCEPTIONS.contains(&(member.name.as_str(), on.name.as_str()));
        return if allowed {
            Ok(())
        } else {
            Err(format!(
                "`{}` depends on `{}`: what stands in check/ or examples/ is for checking and showing, \
                 nothing is built on it",
                member.name, on.name
            ))
        };
    }
    // The tests of a crate may turn a feature of the crate on.
    if on.name == member.name {
        return Ok(());
    }
    // A crate without a layer is found where it stands.
    let Some(to) = layer(on) else { return Ok(()) };
    if to < from {
        return Ok(());
    }
    let hint = if member.dir.starts_with("roles") && on.dir.starts_with("roles") {
        "roles never depend on roles: put the wire types that both need into a lower crate"
    } else {
        "a dependency goes to a lower layer: move the shared part down"
    };
    Err(format!("`{}` (layer {from}) depends on `{}` (layer {to}); {hint}", member.name, on.name))
}

/// Whether a crate stands outside the layers.
fn has_no_layer(member: &Member) -> bool {
    member.dir.starts_with("check") || member.dir.starts_with("examples")
}

fn layer(member: &Member) -> Option<u32> {
    LAYERS.iter().find(|(dir, _)| Path::new(dir) == member.dir).map(|&(_, layer)| layer)
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::workspace::Workspace;
    use crate::workspace::tests::sample;

    fn messages(workspace: &Workspace) -> Vec<String> {
        check(workspace).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_sound_workspace_passes() {
        let workspace = sample(&[
            ("archipelago-base", "crates/base", &["parking_lot"]),
            ("archipelago-engine", "crates/engine", &["archipelago-base"]),
            ("archipelago-bench", "check/bench", &["archipelago-engine", "tokio"]),
            ("archipelago-cli", "front/cli", &["archipelago-bench", "archipelago-engine"]),
        ]);
        assert_eq!(messages(&workspace), Vec::<String>::new());
    }

    #[test]
    fn an_upward_dependency_is_found() {
        let workspace = sample(&[
            ("archipelago-env", "crates/env", &["archipelago-engine"]),
            ("archipelago-engine", "crates/engine", &[]),
        ]);
        let found = messages(&workspace);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("crates/env/Cargo.toml"), "{found:?}");
        assert!(found[0].contains("(layer 1) depends on `archipelago-engine` (layer 3)"));
    }

    #[test]
    fn roles_stay_apart_and_checks_stay_outside() {
        let workspace = sample(&[
            ("archipelago-compute", "roles/compute", &["archipelago-memory"]),
            ("archipelago-memory", "roles/memory", &[]),
            ("archipelago-bench", "check/bench", &[]),
            ("archipelago", "front/api", &["archipelago-bench"]),
        ]);
        let found = messages(&workspace);
        assert!(found.iter().any(|m| m.contains("roles never depend on roles")), "{found:?}");
        assert!(found.iter().any(|m| m.contains("nothing is built on it")), "{found:?}");
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn simulator_is_found_below_the_program() {
        let workspace = sample(&[
            ("archipelago-cli", "front/cli", &["archipelago-bench"]),
            ("archipelago-bench", "check/bench", &["archipelago-sim"]),
            ("archipelago-sim", "check/sim", &[]),
        ]);
        let found = messages(&workspace);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|m| m.contains("reaches `archipelago-sim`")), "{found:?}");
    }

    #[test]
    fn tokio_is_found_through_others_and_a_new_crate_without_a_layer_too() {
        let workspace = sample(&[
            ("archipelago-engine", "crates/engine", &["middle"]),
            ("middle", "crates/middle", &["tokio"]),
        ]);
        let found = messages(&workspace);
        assert!(found.iter().any(|m| m.contains("reaches `tokio`")), "{found:?}");
        assert!(found.iter().any(|m| m.contains("`middle` has no layer")), "{found:?}");
    }
}
