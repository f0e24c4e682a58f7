//! `compare` and `bucketlsm` from end to end.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use crate::scripts::{self, script};

/// A program that prints what `lines` says, as a side of a comparison.
fn side(dir: &Path, name: &str, lines: &str) -> String {
    // Each run makes its directory, as a database does, with a table of ten bytes.
    let text = format!(
        "#!/bin/sh\nfor arg; do case $arg in --db=*) mkdir -p ${{arg#--db=}}; \
         printf 0123456789 > ${{arg#--db=}}/1.sst;; esac; done\ncat <<'END'\n{lines}END\n"
    );
    script(dir, name, &text).display().to_string()
}

#[test]
fn a_comparison_gives_ratios_of_both_sides() {
    let dir = tempfile::tempdir().expect("a directory");
    let rate = " seconds 1000 operations;   10.0 MB/s\n";
    let ours = format!(
        "fillrandom   :       1.000 micros/op 3000 ops/sec 0.001{rate}\
         fillrandom   : settled 0.500 seconds after its end; 3.0 MB of tables\n"
    );
    let ours = side(dir.path(), "ours", &ours);
    let line = format!("fillrandom   :       1.000 micros/op 2000 ops/sec 0.001{rate}");
    let theirs = side(dir.path(), "theirs", &line);
    let (json, db) = (dir.path().join("ratios.json"), dir.path().join("runs"));
    let args = [
        "compare".to_owned(),
        "--benchmarks=fillrandom".to_owned(),
        "--runs=3".to_owned(),
        "--markdown".to_owned(),
        format!("--archipelago={ours}"),
        format!("--db_bench={theirs}"),
        format!("--db={}", db.display()),
        format!("--json={}", json.display()),
    ];
    let args = args.map(OsString::from).into();
    assert_eq!(archipelago_lab::main(args), ExitCode::SUCCESS);
    let text = std::fs::read_to_string(json).expect("the result file");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let row = &report["benchmarks"][0];
    assert_eq!(
        (row["what"].as_str(), row["ratio_of_medians"].as_f64()),
        (Some("fillrandom"), Some(1.5))
    );
    assert_eq!(report["runs"].as_array().map(Vec::len), Some(6));
    assert_eq!(report["runs"][0]["settle_seconds"], 0.5);
    assert_eq!(report["runs"][1]["settled_bytes"], 10);
    assert_eq!(report["runs"][1]["user_bytes"], 116_000);
    assert!(!db.exists(), "nothing is left behind");
}

/// This is no test. [`a_reproduction_runs_from_end_to_end`] starts it as a program and passes the
/// words of the command line in a variable, one per line.
#[test]
fn program() {
    let Ok(words) = std::env::var(WORDS) else { return };
    let mut args = words.lines().map(OsString::from);
    assert_eq!(args.next().as_deref(), Some("bench".as_ref()));
    assert_eq!(archipelago_bench::main(args.collect()), ExitCode::SUCCESS);
}

/// Variable that passes the words of a command line.
pub(crate) const WORDS: &str = "ARCHIPELAGO_BENCH_TEST_WORDS";

#[test]
fn a_reproduction_runs_from_end_to_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = scripts::program(dir.path(), "");
    let (out, db) = (dir.path().join("out"), dir.path().join("runs"));
    let args = [
        "bucketlsm".to_owned(),
        "--quick".to_owned(),
        "--num=1500".to_owned(),
        "--device-scale=50".to_owned(),
        "--write_buffer_size=131072".to_owned(),
        "--background-jobs=3".to_owned(),
        "--threads=2".to_owned(),
        "--jobs=1,2".to_owned(),
        format!("--archipelago={}", program.display()),
        format!("--out={}", out.display()),
        format!("--db={}", db.display()),
    ];
    assert_eq!(archipelago_lab::main(args.map(OsString::from).into()), ExitCode::SUCCESS);
    let file = |name: &str| {
        std::fs::read_to_string(out.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let report: Value = serde_json::from_str(&file("report.json")).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    for what in [
        "fillrandom, ops/s: buckets / classic",
        "MixGraph1, ops/s: dynamic / static",
        "MixGraph1, fixed load, stall time: buckets / classic",
        "YCSB-GET, GET mean: buckets / classic",
        "YCSB-SCAN, SCAN P99: buckets / classic",
    ] {
        assert!(rows.iter().any(|row| row["what"] == what), "{what} is missing");
    }
    let plain =
        rows.iter().filter(|row| row["section"] == "Throughput on the disk without emulation");
    assert_eq!(plain.filter(|row| row["met"].is_boolean()).count(), 5, "every workload is judged");
    let text = file("report.md");
    assert!(text.contains("network-volume") && text.contains(" verdict |"), "{text}");
    assert!(rows.iter().all(|row| text.contains(row["what"].as_str().expect("a name"))));
    let stalled = report["runs"].as_array().expect("runs").iter();
    assert!(stalled.clone().all(|run| run["figures"]["failed_jobs"] == 0));
    let offered = stalled.filter(|run| run["offered_ops_per_s"].is_u64());
    assert_eq!(offered.count(), 6, "three workloads in two modes");
    for plot in ["threads-busy-fillrandom", "l0-files-mixgraph1", "throughput-by-jobs"] {
        assert!(file(&format!("{plot}.svg")).trim_end().ends_with("</svg>"), "{plot}");
    }
    assert!(!db.exists(), "nothing is left behind");
}
