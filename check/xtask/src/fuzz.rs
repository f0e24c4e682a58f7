//! `cargo xtask fuzz`: runs the fuzz targets with cargo-fuzz, to find new inputs.
//!
//! Ordinary tests replay the corpora, without cargo-fuzz. The targets need unstable flags of the
//! compiler. The nightly toolchain accepts them. If it is missing, the usual toolchain runs with
//! `RUSTC_BOOTSTRAP`, which makes it accept them, too.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cargo_env::as_from_shell;
use crate::sources::{ROOTS, files};
use crate::workspace::Workspace;

/// Runs one target, or all of them in turn, for `seconds` each.
pub(crate) fn run(target: Option<&str>, seconds: u64) -> Result<(), String> {
    let root = Workspace::load()?.root;
    let targets = choose(targets(&root)?, target)?;
    if !answers(&["fuzz", "--version"]) {
        return Err(
            "fuzzing needs cargo-fuzz: `cargo install cargo-fuzz`. `cargo test` replays the \
                    corpora without it."
                .to_owned(),
        );
    }
    let has_nightly = answers(&["+nightly", "--version"]);
    // A target that fails must not keep the others from their time.
    let mut failed = Vec::new();
    for target in &targets {
        if !has_passed(&root, target, seconds, has_nightly)? {
            failed.push(failure(target));
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Runs a target for `seconds`. Returns whether it found nothing.
fn has_passed(
    root: &Path,
    target: &Target,
    seconds: u64,
    has_nightly: bool,
) -> Result<bool, String> {
    let Target { name, fuzz_dir } = target;
    println!("fuzz: {name} of {} for {seconds} s", fuzz_dir.display());
    // The fuzzer adds inputs to the first folder. Tests replay the second one by file names.
    let new = root.join("target/fuzz-corpus").join(fuzz_dir).join(name);
    let corpus = root.join(fuzz_dir).join("corpus").join(name);
    for dir in [&new, &corpus] {
        #[expect(clippy::disallowed_methods, reason = "folders of a tool, no database files")]
        std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    let mut cargo = Command::new("cargo");
    match has_nightly {
        true => cargo.arg("+nightly"),
        false => cargo.env("RUSTC_BOOTSTRAP", "1"),
    };
    let status = as_from_shell(&mut cargo)
        .args(["fuzz", "run", "--fuzz-dir"])
        .arg(root.join(fuzz_dir))
        .arg(name)
        .args([&new, &corpus])
        .args(["--", &format!("-max_total_time={seconds}")])
        .current_dir(root.join(fuzz_dir))
        .status()
        .map_err(|e| format!("cargo fuzz does not start: {e}"))?;
    Ok(status.success())
}

/// Names a target that failed, and where its input lies.
fn failure(Target { name, fuzz_dir }: &Target) -> String {
    let artifacts = fuzz_dir.join("artifacts").join(name);
    format!(
        "fuzz: {name} failed; the input lies in {}: make it a case of the corpus",
        artifacts.display()
    )
}

#[derive(Debug, PartialEq, Eq)]
struct Target {
    name: String,
    fuzz_dir: PathBuf,
}

/// Every `fuzz/fuzz_targets/*.rs` of the workspace.
fn targets(root: &Path) -> Result<Vec<Target>, String> {
    let mut found = Vec::new();
    for path in files(root, ROOTS, "rs")? {
        let dir = path.parent().filter(|dir| dir.ends_with("fuzz/fuzz_targets"));
        if let (Some(dir), Some(name)) = (dir.and_then(Path::parent), path.file_stem()) {
            let name = name.to_string_lossy().into_owned();
            found.push(Target { name, fuzz_dir: dir.to_owned() });
        }
    }
    Ok(found)
}

fn choose(all: Vec<Target>, wanted: Option<&str>) -> Result<Vec<Target>, String> {
    let Some(wanted) = wanted else { return Ok(all) };
    let names: Vec<String> = all.iter().map(|t| t.name.clone()).collect();
    let chosen: Vec<Target> = all.into_iter().filter(|t| t.name == wanted).collect();
    if chosen.is_empty() {
        return Err(format!("fuzz: no target `{wanted}`; there are: {}", names.join(", ")));
    }
    Ok(chosen)
}

fn answers(args: &[&str]) -> bool {
    let mut command = Command::new("cargo");
    let silent = command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    silent.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::{Target, choose, failure, targets};
    use crate::workspace::Workspace;

    #[test]
    fn failed_target_is_named_with_the_place_of_its_input() {
        let target = Target { name: "sst".to_owned(), fuzz_dir: "crates/engine/fuzz".into() };
        let said = failure(&target);
        assert!(said.contains("crates/engine/fuzz/artifacts/sst"), "{said}");
    }

    #[test]
    fn targets_are_found_and_each_is_named_in_a_manifest() {
        let root = Workspace::load().expect("cargo metadata").root;
        let found = targets(&root).expect("readable");
        assert!(found.iter().any(|t| t.name == "wal_segment"), "{found:?}");
        for target in found {
            let manifest = target.fuzz_dir.join("Cargo.toml");
            let text = std::fs::read_to_string(root.join(&manifest)).expect("a manifest");
            let line = format!("name = \"{}\"", target.name);
            assert!(text.contains(&line), "{}: add a [[bin]] {}", manifest.display(), target.name);
        }
    }

    #[test]
    fn an_unknown_target_is_refused_with_the_names_there_are() {
        let root = Workspace::load().expect("cargo metadata").root;
        let error = choose(targets(&root).expect("readable"), Some("nonsense")).expect_err("none");
        assert!(error.contains("nonsense") && error.contains("wal_segment"), "{error}");
    }
}
