//! `archipelago-lab terark-engine` from end to end, small and fast.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;

use crate::scripts::{program, script};

/// A stand-in for db_bench: it prints a result line for each benchmark, and its database has a
/// table and a blob file.
fn db_bench(dir: &Path) -> PathBuf {
    let text = "#!/bin/sh\n\
        for arg; do case $arg in --version) echo db_bench version 7.8.3; exit;;\n\
        --db=*) db=${arg#--db=};; --benchmarks=*) names=${arg#--benchmarks=};; esac; done\n\
        mkdir -p $db; printf 0123456789 > $db/1.sst; head -c 4000000 /dev/zero > $db/2.blob\n\
        sleep 0.3\n\
        for name in $(echo $names | tr , ' '); do\n\
        echo \"$name : 1.000 micros/op 1000 ops/sec 0.100 seconds 100 operations; 10.0 MB/s\"\n\
        done\n";
    script(dir, "db_bench", text)
}

#[test]
fn rows_of_all_kinds_come_from_small_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let (out, db) = (dir.path().join("out"), dir.path().join("db"));
    let mut args: Vec<OsString> = [
        "terark-engine",
        "--quick",
        "--data_bytes=2097152",
        "--device_scale=1",
        "--rows=volume,fill,update,scans,prefetch,space",
        "--update_bytes_per_s=8388608",
    ]
    .map(Into::into)
    .into();
    args.push(format!("--archipelago={}", program(dir.path(), "--nocapture").display()).into());
    args.push(format!("--db_bench={}", db_bench(dir.path()).display()).into());
    args.push(format!("--out={}", out.display()).into());
    args.push(format!("--db={}", db.display()).into());
    assert_eq!(archipelago_lab::main(args), ExitCode::SUCCESS);
    let left = std::fs::read_dir(&db).expect("a directory").count();
    assert_eq!(left, 0, "nothing is left behind");
    let text = std::fs::read_to_string(out.join("report.json")).expect("a report");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let row = |what: &str| {
        rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("{what}: {rows:?}"))
    };
    for what in [
        "fillrandom until settled: separated / no separation",
        "fillrandom until settled: separated / BlobDB",
        "peak memory: separated / no separation",
        "overwrite until settled: separated, at BlobDB's space / BlobDB",
        "readrandom: separated, at BlobDB's space / no separation",
        "fixed16kscan: separated / no separation",
        "pareto1kscan: separated / no separation",
        "fixed16kscan, prefetch on against off: separated / separated, no prefetch",
        "mean space amplification, bound 1.25: separated, bound 1.25 / BlobDB",
    ] {
        let ratio = row(what)["ratio"].as_f64();
        assert!(ratio.is_some_and(|ratio| ratio > 0.0), "{what}: {}", row(what));
    }
    assert!(row("overwrite until settled: separated / no separation")["bound"] != "");
    let markdown = std::fs::read_to_string(out.join("report.md")).expect("a report");
    assert!(markdown.contains("db_bench version 7.8.3"), "{markdown}");
    assert!(out.join("space-throttled.svg").is_file());
}
