//! The environment of the programs that a check starts.
//!
//! Cargo sets variables such as `CARGO_MANIFEST_DIR` for a program that it runs, and that program's
//! children inherit them. A build script that watches one of them (that of `ring` does) then runs
//! again, and everything that depends on its package is compiled again: in the check after a
//! `cargo test` from a shell, and in the `cargo test` after the check.

use std::process::Command;

/// Prefixes of the variables that cargo sets for the program that it runs, and not for cargo.
const PREFIXES: [&str; 3] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"];

/// Takes the variables out that cargo has set for this program alone, so that `command` runs as
/// from a shell.
pub(crate) fn as_from_shell(command: &mut Command) -> &mut Command {
    without(command, std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
}

fn without(command: &mut Command, names: impl Iterator<Item = String>) -> &mut Command {
    for name in names.filter(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix))) {
        command.env_remove(name);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_of_the_running_program_are_taken_out() {
        let names =
            ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_TERM_COLOR", "CARGO_HOME", "PATH"];
        let mut command = Command::new("cargo");
        without(&mut command, names.iter().map(|name| (*name).to_owned()));
        let removed: Vec<_> = command.get_envs().collect();
        assert_eq!(
            removed,
            [("CARGO_MANIFEST_DIR".as_ref(), None), ("CARGO_PKG_NAME".as_ref(), None)]
        );
    }

    #[test]
    fn tests_run_with_such_variables() {
        let mut command = Command::new("cargo");
        as_from_shell(&mut command);
        let names: Vec<_> = command.get_envs().map(|(name, _)| name).collect();
        assert!(names.contains(&"CARGO_MANIFEST_DIR".as_ref()), "{names:?}");
    }
}
