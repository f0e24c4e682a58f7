//! `archipelago-lab terark-nodes` from end to end, small and fast, with storage nodes and clients
//! as processes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;

/// Variable that passes the words of a storage node's command line, one per line.
const WORDS: &str = "ARCHIPELAGO_LAB_NODE_TEST_WORDS";

/// This is no test. Storage nodes of the tests below are this program.
#[test]
fn node_program() {
    let Ok(words) = std::env::var(WORDS) else { return };
    let args = words.lines().map(OsString::from).collect();
    assert_eq!(archipelago_lab::main(args), ExitCode::SUCCESS);
}

/// A script that runs this program as the laboratory's.
fn node(dir: &Path) -> PathBuf {
    let own = std::env::current_exe().expect("this program");
    let text = format!(
        "#!/bin/sh\nexport {WORDS}=\"$(printf '%s\\n' \"$@\")\"\nexec {} --exact \
         terark_nodes::node_program --nocapture\n",
        own.display()
    );
    crate::scripts::script(dir, "node", &text)
}

/// Runs the command in `dir` with `words` and the program of a storage node.
fn run(dir: &Path, words: &[&str], node: &Path) -> ExitCode {
    let mut args: Vec<OsString> = ["terark-nodes", "--quick", "--scale=0.01", "--threads=4"]
        .into_iter()
        .chain(words.iter().copied())
        .map(Into::into)
        .collect();
    let program = crate::scripts::program(dir, "--nocapture");
    args.push(format!("--archipelago={}", program.display()).into());
    args.push(format!("--node_program={}", node.display()).into());
    args.push(format!("--out={}", dir.join("out").display()).into());
    args.push(format!("--dir={}", dir.join("nodes").display()).into());
    archipelago_lab::main(args)
}

/// The report of a run in `dir`, and its text.
fn report_in(dir: &Path) -> (Value, String) {
    let left = std::fs::read_dir(dir.join("nodes")).expect("a directory").count();
    assert_eq!(left, 0, "nothing is left behind");
    let file = |name: &str| std::fs::read_to_string(dir.join("out").join(name)).expect("a report");
    (serde_json::from_str(&file("report.json")).expect("JSON"), file("report.md"))
}

/// Runs the command with `words`, and returns its report and its text.
fn report(words: &[&str]) -> (Value, String) {
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(run(dir.path(), words, &node(dir.path())), ExitCode::SUCCESS);
    report_in(dir.path())
}

fn has_ratio(report: &Value, what: &str) {
    let rows = report["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["what"] == what);
    let row = row.unwrap_or_else(|| panic!("{what}: {rows:?}"));
    assert!(row["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{row}");
}

#[test]
fn modes_are_compared_over_processes_of_storage_nodes() {
    let (report, text) = report(&[
        "--only=insert,redundancy",
        "--workloads=fixed16k",
        "--modes=inline_r3,separated_r3,dr,all_on",
        "--data_bytes=4194304",
        "--timed_seconds=1",
    ]);
    has_ratio(&report, "insert until settled, fixed16k: all on / no separation, R3");
    has_ratio(&report, "bytes on the card per user byte, fixed16k: all on / no separation, R3");
    has_ratio(&report, "read, fixed16k: separated, DR / separated, R3");
    let lost = "read with one node lost, fixed16k: separated, DR / separated, R3";
    has_ratio(&report, lost);
    let runs = report["runs"].as_array().expect("runs");
    let loads = runs.iter().flat_map(|run| run["steps"].as_array().expect("steps"));
    let sent = loads.filter(|step| step["step"] == "load").map(|step| {
        let entries = step["results"][0]["settled"]["network"].as_array().expect("entries");
        entries.iter().map(|entry| entry["sent_bytes"].as_u64().expect("a number")).sum::<u64>()
    });
    // Log and tables have three copies at least of what is written once.
    assert!(sent.min().expect("loads") > 4 * 4_194_304, "{text}");
    assert!(text.contains("share of the card's rate") && text.contains("W, rewriting"), "{text}");
}

#[test]
fn space_is_sampled_at_the_storage_nodes() {
    let (report, _) = report(&[
        "--only=space",
        "--workloads=fixed16k",
        "--modes=inline_r3,all_on",
        "--data_bytes=4194304",
        "--throttled_seconds=1",
    ]);
    has_ratio(&report, "stored bytes, fixed16k: all on / no separation, R3");
    let runs = report["runs"].as_array().expect("runs");
    for run in runs {
        let samples = run["steps"][1]["space"].as_array().expect("samples");
        let last = samples.last().expect("a sample");
        let bytes = |name: &str| last[name].as_u64().expect("a number");
        assert!(bytes("logical_bytes") > 4_000_000, "{run}");
        // Value files of the erasure code have half a copy more, everything else has two.
        let copies = bytes("stored_bytes") as f64 / bytes("logical_bytes") as f64;
        assert!((1.4..3.1).contains(&copies), "{run}");
    }
}

/// The figure of the row whose name begins with `what`.
fn measured(report: &Value, what: &str) -> f64 {
    let rows = report["rows"].as_array().expect("rows");
    let name = |row: &Value| row["what"].as_str().expect("a name").starts_with(what);
    let row = rows.iter().find(|&row| name(row)).unwrap_or_else(|| panic!("{what}: {rows:?}"));
    row["measured"].as_f64().unwrap_or_else(|| panic!("{row}"))
}

#[test]
fn storage_nodes_are_compared_with_the_local_disk() {
    let (report, _) = report(&["--only=loopback", "--data_bytes=2097152"]);
    has_ratio(&report, "fillrandom, fixed16k, card no emulation: separated, DR / local, separated");
}

#[test]
fn resumed_command_repeats_only_what_failed() {
    let dir = tempfile::tempdir().expect("a directory");
    let broken = crate::scripts::script(dir.path(), "node", "#!/bin/sh\nexit 1\n");
    let words = ["--only=loopback", "--data_bytes=2097152"];
    assert_eq!(run(dir.path(), &words, &broken), ExitCode::FAILURE);
    let journal = dir.path().join("out").join("runs.jsonl");
    let lines = || std::fs::read_to_string(&journal).expect("a journal").lines().count();
    assert_eq!(lines(), 2, "the flags, and the run of the local disk");
    // A second command would mix its runs with those of the first.
    assert_eq!(run(dir.path(), &words, &broken), ExitCode::FAILURE);
    assert_eq!(lines(), 2);
    let local = |report: &Value| {
        let runs = report["runs"].as_array().expect("runs").clone();
        let is_local = |run: &&Value| run["cell"]["mode"] == "local_separated";
        runs.iter().find(is_local).expect("a run of the local disk").clone()
    };
    let before = local(&report_in(dir.path()).0);
    node(dir.path());
    let resume = format!("--resume={}", journal.display()).into();
    assert_eq!(archipelago_lab::main(vec!["terark-nodes".into(), resume]), ExitCode::SUCCESS);
    let (report, _) = report_in(dir.path());
    has_ratio(&report, "fillrandom, fixed16k, card no emulation: separated, DR / local, separated");
    assert_eq!(local(&report), before, "its run was not repeated");
    assert!(!journal.exists(), "the reports have everything");
}

#[test]
fn node_is_repaired_and_a_volume_is_taken_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("page.md");
    let part = format!("--page={}#recovery", page.display());
    // So many files that the node that is lost surely has parts of some.
    let words = ["--only=recovery", "--data_bytes=8388608", "--timed_seconds=1", &part];
    let (report, _) = report(&words);
    assert!(measured(&report, "repair of a lost node, fixed16k") >= 0.0);
    has_ratio(
        &report,
        "P99 of reads during the repair over that before the loss, fixed16k: separated, DR",
    );
    // The next owner has waited for the whole lease.
    assert!(measured(&report, "take-over after kill -9, without the lease") > 0.0);
    // The log had 0.9 of a quarter of the data at least.
    assert!(measured(&report, "log that the next owner recovers") >= 1.8);
    let text = std::fs::read_to_string(&page).expect("a page");
    for wanted in [
        "writes the following part: recovery.",
        "| command | `archipelago-lab terark-nodes --quick",
        "**Repair**",
        "## Repair of a lost node, and take-over of a volume",
        "targets reached.",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert!(!text.contains("The limit of each run"), "no step of the part writes: {text}");
}
