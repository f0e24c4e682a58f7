//! `archipelago-lab rocksdb` from end to end, with scripts that print what the sides would print.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use serde_json::Value;

use crate::scripts::script;

/// A side: prints a result line of `rate` operations per second and a distribution for each
/// benchmark, makes the database's directory with a table of ten bytes, notes each of its runs in a
/// file, and fails if a file named after a benchmark lies next to it.
fn side(dir: &Path, name: &str, rate: u64) -> PathBuf {
    let (noted, here) = (dir.join(format!("{name}.runs")), dir.display());
    let text = format!(
        r#"#!/bin/sh
reads=1000
for arg; do case $arg in
  --version) echo "db_bench version 7.8.3"; exit 0;;
  --db=*) db=${{arg#--db=}};;
  --reads=*) reads=${{arg#--reads=}};;
  --benchmarks=*) names=${{arg#--benchmarks=}};;
  --use_existing_db=1) existing=1;;
esac; done
echo "$names" >> {noted}
[ -n "$existing" ] && [ ! -f "$db/1.sst" ] && exit 7
mkdir -p "$db"; printf 0123456789 > "$db/1.sst"
echo "WARNING: Assertions are enabled; benchmarks unnecessarily slow"
IFS=,
for name in $names; do
  [ -e "{here}/$name.fails" ] && {{ echo "no space left" >&2; exit 1; }}
  [ $name = flush ] && continue
  [ $name = waitforcompaction ] && {{ echo "fillrandom : settled 0.500 seconds after its end"; continue; }}
  echo "$name : 1.000 micros/op {rate} ops/sec 0.500 seconds $reads operations; 1.0 MB/s"
  for kind in read write seek; do
    echo "Microseconds per $kind:"
    echo "Count: 1000 Average: 1.0  StdDev: 0.1"
    echo "Min: 1  Median: 2.0  Max: 90000"
    echo "Percentiles: P50: 2.00 P75: 3.00 P99: 5.00 P99.9: 6.00 P99.99: 7.00"
  done
done
"#,
        noted = noted.display(),
    );
    script(dir, name, &text)
}

/// Only one of these tests runs at a time, because they inspect the processes of the machine.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn reproduce(words: &[String]) -> ExitCode {
    let words = words.iter().map(OsString::from);
    let args = ["rocksdb"].into_iter().map(OsString::from).chain(words);
    archipelago_lab::main(args.collect())
}

fn words(dir: &Path) -> Vec<String> {
    vec![
        "--quick".to_owned(),
        "--num=1000".to_owned(),
        "--runs=2".to_owned(),
        format!("--archipelago={}", side(dir, "ours", 3000).display()),
        format!("--db_bench={}", side(dir, "theirs", 1000).display()),
        format!("--db={}", dir.join("runs").display()),
        format!("--json={}", dir.join("table.json").display()),
    ]
}

fn report(dir: &Path) -> Value {
    let text = std::fs::read_to_string(dir.join("table.json")).expect("the result file");
    serde_json::from_str(&text).expect("JSON")
}

/// Verdict and runs of the row that begins with `what`.
fn row<'v>(report: &'v Value, what: &str) -> (&'v str, u64) {
    let rows = report["rows"].as_array().expect("rows");
    let found = rows.iter().find(|row| row["what"].as_str().is_some_and(|w| w.starts_with(what)));
    let found = found.unwrap_or_else(|| panic!("{what} is missing: {rows:?}"));
    (found["verdict"].as_str().expect("a verdict"), found["runs"].as_u64().expect("runs"))
}

fn runs_of(dir: &Path, side: &str) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join(format!("{side}.runs"))).expect("runs");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn table_has_every_row_with_its_verdict() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(reproduce(&words(dir.path())), ExitCode::SUCCESS);
    let report = report(dir.path());
    for (what, verdict) in [
        ("fillseq, ops/s", "miss"),
        ("fillrandom, 2 threads", "pass"),
        ("overwrite, ops/s", "pass"),
        ("readmissing, warm, 2 threads", "pass"),
        ("readrandom, cache of a tenth", "pass"),
        ("the same, device bytes per get", "none"),
        ("seekrandom, 10 nexts", "pass"),
        ("readwhilewriting, reads/s", "pass"),
        ("readwhilewriting, P99", "miss"),
        ("fillsync", "pass"),
        ("1 KiB fillrandom", "pass"),
        ("the same, longest write", "pass"),
        ("fillrandom, settled size", "pass"),
    ] {
        assert_eq!(row(&report, what), (verdict, 2), "{what}");
    }
    // Two rounds of ten steps and the opening of the cold reads, alternating.
    assert_eq!(runs_of(dir.path(), "ours").len(), 22);
    assert_eq!(runs_of(dir.path(), "ours"), runs_of(dir.path(), "theirs"));
    let sides: Vec<_> =
        report["runs"].as_array().expect("runs").iter().map(|run| &run["side"]).collect();
    assert!(sides.chunks(2).all(|pair| pair == ["Archipelago", "RocksDb"]), "{sides:?}");
    assert_eq!(report["host"]["db_bench"], "db_bench version 7.8.3");
    assert!(!dir.path().join("runs").exists(), "nothing is left behind");
    assert!(!dir.path().join("table.jsonl").exists(), "the journal's work is done");
}

#[test]
fn page_has_the_command_and_the_verdicts() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("pages").join("rocksdb.md");
    let mut words = words(dir.path());
    words.push("--rows=fillseq,fillsync".to_owned());
    words.push(format!("--page={}", page.display()));
    assert_eq!(reproduce(&words), ExitCode::SUCCESS);
    let text = std::fs::read_to_string(&page).expect("the page");
    for part in [
        "# Archipelago and RocksDB\n",
        "| commit | ",
        "| command | `archipelago-lab rocksdb --quick --num=1000",
        "| fillseq, ops/s ",
        "**missed**",
        "The cause is not known.",
        " of 3 targets reached.",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("--page"), "the command does not name the page: {text}");
}

#[test]
fn failed_step_runs_again_with_resume() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let stumbling_block = dir.path().join("fillsync.fails");
    std::fs::create_dir(&stumbling_block).expect("a directory");
    assert_eq!(reproduce(&words(dir.path())), ExitCode::FAILURE);
    let first = report(dir.path());
    assert_eq!(row(&first, "fillsync"), ("failed", 0));
    assert_eq!(row(&first, "1 KiB fillrandom"), ("pass", 2), "what follows goes on");
    let failure = first["failures"][0].as_str().expect("a failure");
    assert!(failure.starts_with("fillsync, Archipelago, run 1: "), "{failure}");
    assert!(failure.ends_with("no space left"), "{failure}");
    // The journal is not replaced by a new run.
    assert_eq!(reproduce(&words(dir.path())), ExitCode::FAILURE);

    let before = runs_of(dir.path(), "theirs").len();
    std::fs::remove_dir(&stumbling_block).expect("removed");
    let resume = [format!("--resume={}", dir.path().join("table.jsonl").display())];
    assert_eq!(reproduce(&resume), ExitCode::SUCCESS);
    assert_eq!(row(&report(dir.path()), "fillsync"), ("pass", 2));
    let again = runs_of(dir.path(), "theirs").split_off(before);
    assert_eq!(again, ["fillsync", "fillsync"], "only what had failed is run again");
}

#[test]
fn resumed_run_loads_what_it_needs() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a directory");
    // A step fails, so that the journal stays. Then the journal is cut off after the first results.
    let stumbling_block = dir.path().join("readwhilewriting.fails");
    std::fs::create_dir(&stumbling_block).expect("a directory");
    assert_eq!(reproduce(&words(dir.path())), ExitCode::FAILURE);
    std::fs::remove_dir(&stumbling_block).expect("removed");
    let journal = dir.path().join("table.jsonl");
    let text = std::fs::read_to_string(&journal).expect("the journal");
    // The settings, fillseq and fillrandom of both sides, and a torn line.
    let kept: usize = text.split_inclusive('\n').take(5).map(str::len).sum();
    #[expect(clippy::disallowed_methods, reason = "a journal, no database file")]
    std::fs::write(&journal, &text[..kept + 40]).expect("written");
    let before = runs_of(dir.path(), "ours").len();
    assert_eq!(reproduce(&[format!("--resume={}", journal.display())]), ExitCode::SUCCESS);
    let again = runs_of(dir.path(), "ours").split_off(before);
    assert_eq!(again[..2], ["fillrandom,flush,waitforcompaction", "readrandom"], "it loads first");
    assert_eq!(again.iter().filter(|run| run.starts_with("fillseq")).count(), 1, "{again:?}");
    let report = report(dir.path());
    assert_eq!(row(&report, "readwhilewriting, reads/s"), ("pass", 2));
    assert_eq!(report["runs"].as_array().map(Vec::len), Some(40));
}

#[test]
fn process_left_by_an_earlier_run_blocks_a_new_run() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("fillsync.fails")).expect("a directory");
    assert_eq!(reproduce(&words(dir.path())), ExitCode::FAILURE);
    std::fs::remove_dir(dir.path().join("fillsync.fails")).expect("removed");
    let db = format!("--db={}", dir.path().join("runs").join("rocksdb-fresh").display());
    // It ends when its input does.
    let mut left = std::process::Command::new("sh")
        .args(["-c", "echo runs; read line; exit 0", "db_bench", &db])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("a shell");
    // Its arguments can be seen once it runs, which is a little after `spawn`.
    let mut runs = [0; 5];
    left.stdout.take().expect("piped").read_exact(&mut runs).expect("its word");
    let before = runs_of(dir.path(), "ours").len();
    let resume = [format!("--resume={}", dir.path().join("table.jsonl").display())];
    assert_eq!(reproduce(&resume), ExitCode::FAILURE);
    assert_eq!(runs_of(dir.path(), "ours").len(), before, "nothing was run");
    drop(left.stdin.take());
    left.wait().expect("its end");
    assert_eq!(reproduce(&resume), ExitCode::SUCCESS);
}
