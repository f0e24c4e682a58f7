//! Every benchmark, run small through the library's entry, as the program calls it.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

/// Runs `archipelago bench` in `dir`. Returns the results of its JSON file.
fn bench(dir: &Path, words: &[&str]) -> Vec<Value> {
    let json = dir.join("result.json");
    let mut args: Vec<OsString> = words.iter().map(OsString::from).collect();
    args.push(format!("--db={}", dir.join("db").display()).into());
    args.push(format!("--json={}", json.display()).into());
    assert_eq!(archipelago_bench::main(args), ExitCode::SUCCESS, "{words:?}");
    let text = std::fs::read_to_string(json).expect("the result file");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    report["results"].as_array().expect("results").clone()
}

fn named<'v>(results: &'v [Value], name: &str) -> &'v Value {
    let found = results.iter().find(|result| result["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is missing in {results:?}"))
}

#[test]
fn every_benchmark_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let results = bench(
        dir.path(),
        &[
            "--benchmarks=ycsba,ycsbb,ycsbc,ycsbd,ycsbe,ycsbf,ycsbget,ycsbscan,mixgraph1,mixgraph2,\
             fillseq,fillrandom,overwrite,readrandom,readmissing,readseq,readreverse,seekrandom,multireadrandom,\
             readwhilewriting,readrandomwriterandom,mixgraph,flush,deleterandom,compact,\
             waitforcompaction,stats,levelstats,bucketstats,fillsync,fillseq,readseq",
            "--num=1000",
            "--seed=7",
            "--seek_nexts=10",
            "--mix_get_ratio=0.5",
            "--mix_put_ratio=0.3",
            "--mix_seek_ratio=0.2",
            "--compression_type=none",
            "--write_buffer_size=65536",
            "--histogram",
            "--statistics",
        ],
    );
    for result in &results {
        assert!(result["ops_per_s"].as_f64().is_some_and(|ops| ops > 0.0), "{result}");
    }
    // 1000 draws of 1000 keys leave 63 % of the keys; overwriting raises that to 86 %.
    let found = named(&results, "readrandom")["found"].as_u64().expect("found");
    assert!((800..930).contains(&found), "{found}");
    assert_eq!(named(&results, "readmissing")["found"], 0);
    let scanned = named(&results, "readseq")["ops"].as_u64().expect("ops");
    assert_eq!(named(&results, "readreverse")["ops"], scanned, "both see every key");
    assert_eq!(named(&results, "mixgraph")["ops"], 1000);
    assert_eq!(named(&results, "mixgraph1")["latency"]["write"]["count"], 1000, "puts only");
    let mixed = &named(&results, "mixgraph2")["latency"];
    let count = |kind: &str| mixed[kind]["count"].as_u64().unwrap_or(0);
    assert_eq!(count("write") + count("read") + count("seek"), 1000);
    assert!((750..850).contains(&count("write")), "8 of 10 are puts: {mixed}");
    assert!((60..140).contains(&count("read")), "1 of 10 is a get: {mixed}");
    let share = |name: &str, kind: &str| {
        named(&results, name)["latency"][kind]["count"].as_u64().unwrap_or(0)
    };
    assert!((640..760).contains(&share("ycsbget", "update")), "7 of 10 are puts");
    assert!((60..140).contains(&share("ycsbscan", "seek")), "1 of 10 is a scan");
    assert_eq!(named(&results, "ycsbload")["ops"], 1000, "an empty database is loaded");
    assert_eq!(named(&results, "ycsbc")["found"], 1000, "every record is there");
    let all = results.iter().rfind(|result| result["name"] == "readseq");
    assert_eq!(all.expect("a scan")["ops"], 1000, "fillseq wrote every key");
    assert!(named(&results, "overwrite")["latency"]["write"]["p99_ns"].as_u64() > Some(0));
}

#[test]
fn workload_of_terark_runs_its_phases() {
    let dir = tempfile::tempdir().expect("a directory");
    let words = ["--benchmarks=pareto1k,readseq", "--num=500", "--key_size=24", "--seed=3"];
    let results = bench(dir.path(), &[&words[..], &["--io_statistics", "--threads=2"]].concat());
    let names: Vec<&str> = results.iter().filter_map(|result| result["name"].as_str()).collect();
    let phases = ["pareto1kload", "pareto1kupdate", "pareto1kread", "pareto1kscan", "readseq"];
    assert_eq!(names, phases);
    let ops: Vec<u64> = results.iter().filter_map(|result| result["ops"].as_u64()).collect();
    assert_eq!(ops, [500, 1500, 500, 4, 1000], "readseq: 500 of each thread");
    assert_eq!(results[2]["found"], 500, "the load wrote every record");
    let entry = |name: &str, purpose: &str| {
        let io = named(&results, name)["io"].as_array().expect("counts of I/O").clone();
        io.into_iter().find(|entry| entry["class"] == "wal" && entry["purpose"] == purpose)
    };
    let log = entry("pareto1kupdate", "foreground-write").expect("the log is written");
    let mean = log["write_bytes"].as_u64().expect("bytes") / 1500;
    assert!((800..1400).contains(&mean), "a key, a value of 1 KiB and a header: {mean}");
}

#[test]
fn unique_loads_and_uniform_lengths_match_db_bench() {
    let dir = tempfile::tempdir().expect("a directory");
    let uniform = ["--value_size_distribution_type=uniform", "--value_size_min=10"];
    let words = ["--benchmarks=filluniquerandom,readseq", "--num=700", "--value_size_max=30"];
    let results = bench(dir.path(), &[&words[..], &uniform[..]].concat());
    let scan = named(&results, "readseq");
    assert_eq!(scan["ops"], 700, "each key was written once");
    let bytes = scan["mb_per_s"].as_f64().zip(scan["seconds"].as_f64());
    let mean = bytes.map(|(rate, seconds)| rate * seconds * 1_048_576.0 / 700.0).expect("figures");
    assert!((35.0..37.0).contains(&mean), "keys of 16 B, values of 20 B on average: {mean}");
}

#[test]
fn a_write_benchmark_reports_when_it_settled() {
    let dir = tempfile::tempdir().expect("a directory");
    let results = bench(
        dir.path(),
        &[
            "--benchmarks=fillrandom,waitforcompaction",
            "--num=5000",
            "--write_buffer_size=65536",
            "--batch_size=10",
            "--threads=2",
        ],
    );
    let fill = named(&results, "fillrandom");
    assert_eq!(fill["ops"], 10_000);
    assert!(fill["settle_seconds"].as_f64().is_some_and(|seconds| seconds >= 0.0), "{fill}");
    let amplification = fill["settled"]["write_amplification"].as_f64().expect("a ratio");
    assert!(amplification > 1.0 && amplification < 50.0, "{amplification}");
    assert!(fill["table_bytes"].as_u64().is_some_and(|bytes| bytes > 100_000), "{fill}");
}

#[test]
fn samples_tell_of_buckets_stalls_and_jobs() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("series.json");
    let results = bench(
        dir.path(),
        &[
            "--benchmarks=mixgraph1,waitforcompaction",
            "--num=20000",
            "--value_size=200",
            "--write_buffer_size=65536",
            "--buckets=3",
            "--bucket_boundaries=static",
            &format!("--samples={}", file.display()),
        ],
    );
    assert!(named(&results, "mixgraph1")["stall_seconds"]["l0"].is_number());
    let text = std::fs::read_to_string(file).expect("the samples");
    let series: Value = serde_json::from_str(&text).expect("JSON");
    let window = &series["benchmarks"][0];
    assert_eq!(window["name"], "mixgraph1");
    assert!(window["end_s"].as_f64() > window["start_s"].as_f64());
    let samples = series["samples"].as_array().expect("samples");
    let last = samples.last().expect("one at least");
    assert_eq!(last["ops"], 20_000);
    assert_eq!(last["l0_files"].as_array().map(Vec::len), Some(3), "static boundaries stay");
    let jobs = series["jobs"].as_array().expect("jobs");
    let flushed: u64 = jobs
        .iter()
        .filter(|job| job["from"].is_null())
        .filter_map(|j| j["bytes_written"].as_u64())
        .sum();
    assert!(flushed > 2_000_000, "every memtable was flushed: {flushed}");
    let compacted = jobs.iter().filter(|job| job["from"] == 0);
    assert!(compacted.count() > 3, "L0 is compacted: {jobs:?}");
    assert_eq!(series["errors"].as_array().map(Vec::len), Some(0));
}

#[test]
fn an_existing_database_is_kept_when_asked() {
    let dir = tempfile::tempdir().expect("a directory");
    bench(dir.path(), &["--benchmarks=fillseq", "--num=500"]);
    let kept = bench(
        dir.path(),
        &["--benchmarks=fillrandom,readrandom", "--num=500", "--use_existing_db"],
    );
    assert_eq!(kept.len(), 1, "fillrandom wants a fresh database and is skipped");
    assert_eq!(named(&kept, "readrandom")["found"], 500);
}

#[test]
fn a_foreign_directory_is_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("letter.txt");
    std::fs::copy("/etc/hostname", &file).expect("a file");
    let args = ["--benchmarks=fillseq", "--num=10"].map(OsString::from);
    let args = args.into_iter().chain([format!("--db={}", dir.path().display()).into()]);
    assert_eq!(archipelago_bench::main(args.collect()), ExitCode::FAILURE);
    assert!(file.exists());
}

#[test]
fn unknown_benchmark_fails_before_any_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let db = dir.path().join("db");
    let args = ["--benchmarks=fillseq,fillfoo".to_owned(), format!("--db={}", db.display())];
    let args = args.map(OsString::from).into();
    assert_eq!(archipelago_bench::main(args), ExitCode::FAILURE);
    assert!(!db.exists());
}

#[test]
fn the_interval_report_has_a_line_per_interval() {
    let dir = tempfile::tempdir().expect("a directory");
    let csv = dir.path().join("report.csv");
    bench(
        dir.path(),
        &[
            "--benchmarks=fillrandom",
            "--num=1000",
            "--duration=6",
            "--report_interval_seconds=1",
            "--benchmark_write_rate_limit=1160000",
            &format!("--report_file={}", csv.display()),
        ],
    );
    let text = std::fs::read_to_string(csv).expect("the report");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "secs_elapsed,interval_qps");
    let rate = |line: &&str| -> f64 {
        line.split_once(',').expect("two fields").1.parse().expect("a number")
    };
    // 10,000 writes a second are allowed. A machine that pauses has fewer in some intervals.
    let rates: Vec<f64> = lines[1..].iter().map(rate).collect();
    assert!(rates.iter().all(|rate| *rate < 20_000.0), "{rates:?}");
    assert!(rates.iter().any(|rate| *rate >= 5_000.0), "{rates:?}");
}

#[test]
fn commands_of_the_laboratory_are_refused_with_its_name() {
    for word in ["compare", "reproduce", "model"] {
        assert_eq!(archipelago_bench::main(vec![word.into()]), ExitCode::from(2), "{word}");
    }
}
