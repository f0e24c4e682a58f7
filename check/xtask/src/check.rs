//! `cargo xtask check`: the steps, in order, each with its time.
//!
//! The cheap steps run first. The checks of sources and pages (`source_checks.rs`) take a few
//! seconds, so all of them run and report before the first failure ends the command. A cargo step
//! that fails ends the command immediately. The output of cargo and of the tests goes to the
//! terminal as it comes, and the end repeats the failures of the tests.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::cargo_env::as_from_shell;
use crate::failures::Failures;
use crate::over_store;
use crate::source_checks::{CHECKS, Project};
use crate::workspace::Workspace;

/// Steps that run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Steps {
    /// All of the steps.
    All,
    /// Steps that run no tests.
    Fast,
    /// Steps that read sources and pages.
    Sources,
    /// As [`Steps::Sources`], after the allow-lists have lost the entries that nothing needs.
    Bless,
}

/// A cargo command as a step.
struct CargoStep {
    name: &'static str,
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    /// Instruction for the case that the step fails.
    hint: &'static str,
    /// Whether `--fast` leaves the step out.
    slow: bool,
}

const FORMAT: CargoStep = CargoStep {
    name: "format",
    args: &["fmt", "--all", "--check"],
    env: &[],
    hint: "run `cargo fmt`",
    slow: false,
};

const BUILDING: &[CargoStep] = &[
    CargoStep {
        name: "clippy",
        args: &["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"],
        env: &[],
        hint: "mend what clippy says above; an exception is `#[expect(lint, reason = \"…\")]`",
        slow: false,
    },
    // This step checks the product alone, as a release builds it, because the workspace has the
    // hooks of its checkers turned on.
    CargoStep {
        name: "clippy, as shipped",
        args: &["clippy", "--locked", "--package=archipelago-cli", "--", "-D", "warnings"],
        env: &[],
        hint: "mend what clippy says above of code without the features of check/",
        slow: false,
    },
    CargoStep {
        name: "docs",
        args: &["doc", "--locked", "--workspace", "--no-deps"],
        env: &[("RUSTDOCFLAGS", "-D warnings")],
        hint: "mend the links and warnings that rustdoc names above",
        slow: false,
    },
    CargoStep {
        name: "tests",
        args: &["test", "--locked", "--workspace", "--no-fail-fast"],
        env: &[],
        hint: "the failed tests stand at the end; `cargo test -p CRATE NAME` runs one",
        slow: true,
    },
    CargoStep {
        name: "tests, as shipped",
        args: &["test", "--locked", "-p", "archipelago-flexkv", "-p", "archipelago-memory"],
        env: &[],
        hint: "the tests of the workspace turn hooks on, and these run without: mend what differs",
        slow: true,
    },
    CargoStep {
        name: "crash run",
        args: &["run", "--locked", "--quiet", "-p", "archipelago-crash", "--", "--cycles", "20"],
        env: &[],
        hint: "the output above names the seed and the cycle: the same seed replays it",
        slow: true,
    },
    CargoStep {
        name: "crash run, tiers",
        args: &[
            "run",
            "--locked",
            "--quiet",
            "-p",
            "archipelago-crash",
            "--",
            "--tiers",
            "--cycles",
            "40",
        ],
        env: &[],
        hint: "the output above names the seed and the cycle: the same seed replays it",
        slow: true,
    },
    CargoStep {
        name: "crash run, full disk",
        args: &[
            "run",
            "--locked",
            "--quiet",
            "-p",
            "archipelago-crash",
            "--",
            "--full-disk",
            "--cycles",
            "40",
        ],
        env: &[],
        hint: "the output above names the seed and the cycle: the same seed replays it",
        slow: true,
    },
    CargoStep {
        name: "crash run, storage",
        args: &[
            "run",
            "--locked",
            "--quiet",
            "-p",
            "archipelago-crash",
            "--",
            "--storage",
            "6",
            "--losses",
            "2",
            "--cycles",
            "12",
        ],
        env: &[],
        hint: "the output above names the seed and the cycle: the same seed has the same faults",
        slow: true,
    },
    CargoStep {
        name: "crash run, offload",
        args: &[
            "run",
            "--locked",
            "--quiet",
            "-p",
            "archipelago-crash",
            "--",
            "--offload",
            "--cycles",
            "12",
        ],
        env: &[],
        hint: "the output above names the seed and the cycle: the same seed has the same faults",
        slow: true,
    },
];

/// Steps for the fabric over libfabric. They run if its headers are installed.
const OVER_LIBFABRIC: &[CargoStep] = &[
    CargoStep {
        name: "clippy, feature ofi",
        args: &[
            "clippy",
            "--locked",
            "--package=archipelago-fabric",
            "--package=archipelago-bench",
            "--features=archipelago-fabric/ofi,archipelago-bench/ofi",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
        env: &[],
        hint: "mend what clippy says above; an exception is `#[expect(lint, reason = \"…\")]`",
        slow: false,
    },
    CargoStep {
        name: "tests, feature ofi",
        args: &[
            "test",
            "--locked",
            "--package=archipelago-fabric",
            "--features=ofi",
            "--no-fail-fast",
            "ofi::",
        ],
        env: &[],
        hint: "`cargo test -p archipelago-fabric --features ofi NAME` runs one",
        slow: true,
    },
];

/// Name of the step for RocksDB over the tiers, which runs if the headers of RocksDB are installed.
/// Make builds the C library with cargo.
const OVER_ROCKSDB: &str = "RocksDB over tiers";

/// Name of the step that runs the tests of the engine over a volume of a storage pool.
const OVER_STORE: &str = "engine over a store";

/// Whether a program in C (`cc`) or C++ (`c++`) finds a header.
fn has_header(compiler: &str, language: &str, header: &str) -> bool {
    let mut command = Command::new(compiler);
    command.args(["-x", language, "-fsyntax-only", "-include", header, "/dev/null"]);
    command.stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs the steps. The error is the last line to print.
pub(crate) fn run(steps: Steps) -> Result<(), String> {
    let workspace = Workspace::load()?;
    let root = workspace.root.clone();
    let mut log = Log::default();
    let mut failed: Vec<&str> = Vec::new();

    let sources_only = matches!(steps, Steps::Sources | Steps::Bless);
    if !sources_only && run_cargo(&root, &FORMAT, &mut log).is_err() {
        failed.push(FORMAT.name);
    }
    failed.extend(check_sources(workspace, steps == Steps::Bless, &mut log.times)?);
    let mut skipped = Vec::new();
    if !sources_only {
        skipped = build(&root, steps, &mut log, &mut failed);
    }
    log.times.print();
    for message in skipped {
        println!("check: SKIPPED: {message}");
    }
    if failed.is_empty() {
        println!("check: all passed");
        return Ok(());
    }
    log.failures.into_lines().iter().for_each(|line| println!("{line}"));
    Err(format!("check: FAILED: {}", failed.join(", ")))
}

/// Runs the steps that build the workspace, unless a step failed before. Returns the names of
/// skipped parts.
fn build(root: &Path, steps: Steps, log: &mut Log, failed: &mut Vec<&str>) -> Vec<String> {
    let fast = steps == Steps::Fast;
    let libfabric = has_header("cc", "c", "rdma/fabric.h");
    let rocksdb = has_header("c++", "c++", "rocksdb/db.h");
    if failed.is_empty() {
        let ofi = OVER_LIBFABRIC.iter().filter(|_| libfabric);
        for step in BUILDING.iter().chain(ofi).filter(|step| !(fast && step.slow)) {
            if run_cargo(root, step, log).is_err() {
                failed.push(step.name);
                break;
            }
        }
    }
    if failed.is_empty() && !fast && check_over_store(root, log).is_err() {
        failed.push(OVER_STORE);
    }
    if failed.is_empty() && rocksdb && !fast && check_rocksdb(root, &mut log.times).is_err() {
        failed.push(OVER_ROCKSDB);
    }
    let mut skipped = Vec::new();
    if !rocksdb {
        skipped.push(format!(
            "{OVER_ROCKSDB} (front/rocksdb): a C++ compiler or rocksdb/db.h is not there; install \
             g++ and librocksdb-dev (Debian, Ubuntu) or gcc-c++ and rocksdb-devel (Fedora)"
        ));
    }
    if !libfabric {
        skipped.push(
            "the fabric over libfabric (feature `ofi`): rdma/fabric.h is not there; install \
             libfabric-dev (Debian, Ubuntu) or libfabric-devel (Fedora, RHEL)"
                .to_owned(),
        );
    }
    skipped
}

/// Runs the checks that read sources and pages. Returns the names of those that found something.
fn check_sources(
    workspace: Workspace,
    bless: bool,
    times: &mut Times,
) -> Result<Vec<&'static str>, String> {
    let (took, project) = timed(|| Project::load(workspace));
    let project = project?;
    times.add("parse sources", took);
    let mut failed = Vec::new();
    for check in CHECKS {
        let (took, findings) = timed(|| check.run(&project, bless));
        let findings = findings?;
        times.add(check.name, took);
        println!("==> {}: {}", check.name, outcome(findings.len()));
        for finding in &findings {
            println!("    {finding}");
        }
        if !findings.is_empty() {
            failed.push(check.name);
        }
    }
    Ok(failed)
}

fn outcome(findings: usize) -> String {
    match findings {
        0 => "ok".to_owned(),
        1 => "1 finding".to_owned(),
        n => format!("{n} findings"),
    }
}

fn run_cargo(root: &Path, step: &CargoStep, log: &mut Log) -> Result<(), ()> {
    println!("==> {}: cargo {}", step.name, step.args.join(" "));
    let mut command = Command::new(env!("CARGO"));
    command.args(step.args).envs(step.env.iter().copied()).current_dir(root);
    as_from_shell(&mut command);
    let (took, status) = timed(|| match step.args.first() {
        Some(&"test") => run_watched(&mut command, &mut log.failures),
        _ => command.status(),
    });
    log.times.add(step.name, took);
    conclude(step.name, step.hint, took, status)
}

/// Runs a command, prints its output as it comes, and looks for failures in it. Returns when all
/// processes that inherited the output have ended.
fn run_watched(command: &mut Command, failures: &mut Failures) -> io::Result<ExitStatus> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    if let Some(output) = child.stdout.take() {
        // A test may print bytes that are not UTF-8.
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            failures.read_line(&line);
        }
    }
    child.wait()
}

/// Runs the integration tests of the engine over a volume of a storage pool, and nothing else.
pub(crate) fn run_over_store() -> Result<(), String> {
    let root = Workspace::load()?.root;
    let mut log = Log::default();
    let outcome = check_over_store(&root, &mut log);
    log.failures.into_lines().iter().for_each(|line| println!("{line}"));
    outcome.map_err(|()| format!("{OVER_STORE}: FAILED"))
}

fn check_over_store(root: &Path, log: &mut Log) -> Result<(), ()> {
    let (took, prepared) = timed(|| over_store::prepare(root));
    log.times.add("engine over a store: build", took);
    let mut tests = prepared.map_err(|message| println!("==> {OVER_STORE}: FAILED: {message}"))?;
    println!("==> {OVER_STORE}: {}", tests.summary);
    let (took, status) = timed(|| run_watched(&mut tests.command, &mut log.failures));
    log.times.add(OVER_STORE, took);
    let hint = "`ARCHIPELAGO_TEST_DISK=store cargo test -p archipelago-engine --test it NAME` runs \
                one";
    conclude(OVER_STORE, hint, took, status)
}

/// Builds the plugin against the installed RocksDB and runs RocksDB over tiers.
fn check_rocksdb(root: &Path, times: &mut Times) -> Result<(), ()> {
    let args = ["-C", "front/rocksdb", "check", concat!("CARGO=", env!("CARGO"))];
    println!("==> {OVER_ROCKSDB}: make {}", args.join(" "));
    let mut command = Command::new("make");
    command.args(args).current_dir(root);
    let (took, status) = timed(|| as_from_shell(&mut command).status());
    times.add(OVER_ROCKSDB, took);
    conclude(OVER_ROCKSDB, "mend what the compiler or the program says above", took, status)
}

/// Prints how a step ended.
fn conclude(
    name: &str,
    hint: &str,
    took: Duration,
    status: io::Result<ExitStatus>,
) -> Result<(), ()> {
    let status = status.map_err(|e| println!("==> {name}: it does not start: {e}"))?;
    if status.success() {
        println!("==> {name}: ok, {:.1} s", took.as_secs_f64());
        return Ok(());
    }
    println!("==> {name}: FAILED ({status}): {hint}");
    Err(())
}

#[expect(clippy::disallowed_methods, reason = "a build tool tells real time; nothing replays it")]
fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let value = work();
    (start.elapsed(), value)
}

/// Times and failures of the steps, which the end of the check prints.
#[derive(Default)]
struct Log {
    times: Times,
    failures: Failures,
}

/// Time that each step took, for the table at the end.
#[derive(Default)]
struct Times(Vec<(&'static str, Duration)>);

impl Times {
    fn add(&mut self, name: &'static str, took: Duration) {
        self.0.push((name, took));
    }

    fn print(&self) {
        println!("==> times");
        for (name, took) in &self.0 {
            println!("    {name:<20} {:>8.1} s", took.as_secs_f64());
        }
        let all: Duration = self.0.iter().map(|(_, took)| *took).sum();
        println!("    {:<20} {:>8.1} s", "all", all.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{BUILDING, CargoStep, Command, FORMAT, Failures, Log, run_cargo, run_watched};

    #[test]
    fn a_cargo_step_that_fails_is_a_failure() {
        let step = |args| CargoStep { name: "sample", args, env: &[], hint: "none", slow: false };
        let mut log = Log::default();
        let mut run = |args| run_cargo(Path::new("."), &step(args), &mut log);
        assert!(run(&["--version"]).is_ok());
        assert!(run(&["--quiet", "fmt", "--check", "--", "no-such-file.rs"]).is_err());
        assert_eq!(log.times.0.len(), 2);
    }

    #[test]
    fn failures_in_the_output_of_a_command_are_found() {
        let mut command = Command::new("sh");
        let print =
            r"printf 'noise \377\nfailures:\n    reef\ntest result: FAILED. 1 failed'; exit 7";
        let mut failures = Failures::default();
        let status = run_watched(command.args(["-c", print]), &mut failures).expect("sh starts");
        assert_eq!(status.code(), Some(7));
        let found = failures.into_lines();
        assert_eq!(found, ["failures:", "    reef", "test result: FAILED. 1 failed"]);
    }

    #[test]
    fn the_tests_step_is_the_command_of_the_readme() {
        let tests = BUILDING.iter().find(|s| s.name == "tests").expect("a step");
        assert_eq!(tests.args, ["test", "--locked", "--workspace", "--no-fail-fast"]);
        assert!(tests.slow && !FORMAT.slow);
    }
}
