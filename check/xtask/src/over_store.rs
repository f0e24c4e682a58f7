//! `cargo xtask over-store`: the integration tests of the engine over a volume of a storage pool.
//!
//! The tests run a second time in the program that `cargo test --workspace` has built. An
//! environment variable makes their disks volumes. `not_over_store.txt` names the tests that do not
//! run, each with its reason, and an entry that no test needs is a failure.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cargo_env::as_from_shell;

/// Source of the program of the tests.
const SOURCE: &str = "crates/engine/tests/it/main.rs";

/// The list of the tests that do not run.
const LIST: &str = "crates/engine/tests/it/not_over_store.txt";

/// The run that is ready to start.
pub(crate) struct OverStore {
    pub(crate) command: Command,
    /// Numbers of the tests that run and of those that do not.
    pub(crate) summary: String,
}

/// Builds the tests, and chooses those that run.
pub(crate) fn prepare(root: &Path) -> Result<OverStore, String> {
    let list = std::fs::read_to_string(root.join(LIST)).map_err(|e| format!("{LIST}: {e}"))?;
    let exceptions = parse(&list)?;
    let program = build(root)?;
    let tests = list_tests(&program)?;
    let chosen = choose(&tests, &exceptions)?;
    let left_out = tests.len() - chosen.len();
    let summary = format!("{} tests run, and {left_out} of {LIST} do not", chosen.len());
    let mut command = Command::new(program);
    command.arg("--exact").args(chosen);
    command.env("ARCHIPELAGO_TEST_DISK", "store").current_dir(root.join("crates/engine"));
    as_from_shell(&mut command);
    Ok(OverStore { command, summary })
}

/// Pattern of the names of tests that do not run: a name, or a module and `::*`.
#[derive(Debug, PartialEq, Eq)]
struct Exception<'a>(&'a str);

impl Exception<'_> {
    fn covers(&self, test: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(module) => test.starts_with(module),
            None => test == self.0,
        }
    }
}

/// Reads the lines `NAME: REASON`. Empty lines and those that begin with `#` are comments.
fn parse(list: &str) -> Result<Vec<Exception<'_>>, String> {
    let lines = list.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let entries = lines.map(|(at, line)| match line.split_once(": ") {
        Some((name, reason)) if !reason.trim().is_empty() => Ok(Exception(name)),
        _ => Err(format!("{LIST}:{}: a line is `NAME: REASON`", at + 1)),
    });
    entries.collect()
}

/// The tests that no exception covers.
fn choose<'a>(tests: &'a [String], exceptions: &[Exception<'_>]) -> Result<Vec<&'a str>, String> {
    for exception in exceptions {
        if !tests.iter().any(|test| exception.covers(test)) {
            return Err(format!("{LIST}: {} names no test: remove the line", exception.0));
        }
    }
    let is_chosen = |test: &&str| !exceptions.iter().any(|exception| exception.covers(test));
    let chosen: Vec<&str> = tests.iter().map(String::as_str).filter(is_chosen).collect();
    match chosen.is_empty() {
        true => Err(format!("{LIST} leaves no test to run")),
        false => Ok(chosen),
    }
}

/// Builds the tests of the workspace, which shares all artifacts with their own step, and returns
/// the path of the program.
fn build(root: &Path) -> Result<PathBuf, String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--locked", "--workspace", "--no-run"]);
    cargo.arg("--message-format=json-render-diagnostics").current_dir(root);
    let output = as_from_shell(&mut cargo).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("cargo does not start: {e}"))?;
    if !output.status.success() {
        return Err("the tests cannot be built".to_owned());
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let program = messages.lines().find_map(executable);
    program.ok_or_else(|| format!("cargo names no program of {SOURCE}"))
}

/// The program that a message of cargo names, if it is the one of the tests.
fn executable(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    let source = message["target"]["src_path"].as_str()?;
    let is_wanted = Path::new(source).ends_with(SOURCE);
    message["executable"].as_str().filter(|_| is_wanted).map(PathBuf::from)
}

/// Names of all tests of the program.
fn list_tests(program: &Path) -> Result<Vec<String>, String> {
    let output = Command::new(program).arg("--list").output();
    let output = output.map_err(|e| format!("{}: {e}", program.display()))?;
    let listed = String::from_utf8_lossy(&output.stdout);
    let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 3] = ["a::one", "a::two", "b::one"];

    fn chosen(list: &str) -> Result<Vec<String>, String> {
        let tests = NAMES.map(str::to_owned);
        let chosen = choose(&tests, &parse(list)?)?;
        Ok(chosen.into_iter().map(str::to_owned).collect())
    }

    #[test]
    fn tests_of_the_list_do_not_run() {
        assert_eq!(chosen("# nothing\n\n"), Ok(NAMES.map(str::to_owned).to_vec()));
        assert_eq!(chosen("a::one: needs files"), Ok(vec!["a::two".into(), "b::one".into()]));
        assert_eq!(chosen("a::*: needs files"), Ok(vec!["b::one".into()]));
    }

    #[test]
    fn entries_without_a_test_or_a_reason_are_refused() {
        assert!(chosen("a::three: needs files").is_err_and(|m| m.contains("a::three")));
        assert!(chosen("a: needs files").is_err(), "a module is not the name of a test");
        assert!(chosen("a::one: ").is_err_and(|m| m.contains(":1:")));
        assert!(chosen("\na::one").is_err_and(|m| m.contains(":2:")));
        assert!(chosen("a::*: x\nb::*: x").is_err_and(|m| m.contains("no test to run")));
    }

    #[test]
    fn program_of_the_tests_is_found_in_the_messages() {
        let message = |source: &str| {
            format!(r#"{{"target":{{"src_path":"/root/{source}"}},"executable":"/root/it-1"}}"#)
        };
        assert_eq!(executable(&message(SOURCE)), Some(PathBuf::from("/root/it-1")));
        assert_eq!(executable(&message("crates/env/tests/it/main.rs")), None);
        assert_eq!(executable("not json"), None);
    }
}
