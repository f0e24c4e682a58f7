use super::parse::{Latency, last_job_us, result_line, settled_line, user_bytes};
use super::table::{Row, Spread};
use super::*;

/// Printed by db_bench 7.8.3.
const SAMPLE: &str = "\
DB path: [/tmp/d]
fillrandom   :      27.571 micros/op 53727 ops/sec 0.112 seconds 6000 operations;    5.9 MB/s
Microseconds per write:
Count: 6000 Average: 28.1713  StdDev: 582.81
DB path: [/tmp/d]
readrandom   :       5.040 micros/op 312174 ops/sec 0.019 seconds 6000 operations;   29.8 MB/s \
(2564 of 3000 found)

DB path: [/tmp/d]
multireadrandom :       2.215 micros/op 444444 ops/sec 0.004 seconds 2000 operations;    0.0 MB/s \
(1 of 2000 found)
readrandomwriterandom :       6.633 micros/op 125423 ops/sec 0.016 seconds 2000 operations; \
( reads:1800 writes:200 total:2000 found:203)
mixgraph     :      26.130 micros/op 57538 ops/sec 0.104 seconds 6000 operations;   24.7 MB/s \
( Gets:1519 Puts:1195 Seek:286, reads 1567 in 1805 found, avg size: 24.9 value, 33.8 scan)
compact      :   44165.000 micros/op 22 ops/sec 0.044 seconds 1 operations;
waitforcompaction(/tmp/d): finished
";

#[test]
fn db_bench_s_lines_are_understood() {
    let lines: Vec<_> = SAMPLE.lines().filter_map(result_line).collect();
    let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "fillrandom",
            "readrandom",
            "multireadrandom",
            "readrandomwriterandom",
            "mixgraph",
            "compact"
        ]
    );
    assert_eq!((lines[0].ops_per_s, lines[0].ops, lines[0].mb_per_s), (53727.0, 6000, Some(5.9)));
    assert_eq!((lines[0].micros_per_op, lines[0].seconds), (27.571, 0.112));
    assert_eq!(lines[1].message, "2564 of 3000 found");
    assert_eq!((lines[5].mb_per_s, lines[5].message.as_str()), (None, ""));
    let bytes: Vec<_> = lines.iter().map(|line| user_bytes(line, 16, 100)).collect();
    let mixed = (1195.0 * (16.0 + 24.9)) as u64;
    let wanted = [Some(6000 * 116), Some(0), Some(0), Some(200 * 116), Some(mixed), Some(0)];
    assert_eq!(bytes, wanted);
}

#[test]
fn our_own_lines_are_understood() {
    let total = archipelago_bench::harness::tally::Total::of(1_000_000, 116_000_000, 6_955_600_000);
    let line = archipelago_bench::harness::report::result_line("fillrandom", &total, "");
    let parsed = result_line(&line).expect("a result line");
    assert_eq!((parsed.ops_per_s, parsed.mb_per_s), (143_769.0, Some(15.9)));
    let line = "fillrandom   : settled 1.250 seconds after its end; 3.0 MB of tables";
    assert_eq!(settled_line(line), Some(1.25));
    assert_eq!(result_line(line), None);
}

/// Printed by db_bench 7.8.3 with `--histogram`; shortened.
const TIMED: &str = "\
seekrandom   :       8.104 micros/op 123388 ops/sec 0.810 seconds 100000 operations; \
(63669 of 100000 found)

Microseconds per seek:
Count: 100000 Average: 8.0812  StdDev: 3.86
Min: 1  Median: 7.3574  Max: 905
Percentiles: P50: 7.36 P75: 9.88 P99: 19.43 P99.9: 44.21 P99.99: 79.56
------------------------------------------------------
[       0,       1 ]      735   0.518%   0.518% 

readwhilewriting :      21.235 micros/op 47019 ops/sec 3.020 seconds 141999 operations;    \
5.2 MB/s (141999 of 141999 found)

Microseconds per read:
Count: 141999 Average: 21.2581  StdDev: 363.86
Min: 0  Median: 5.3574  Max: 18205
Percentiles: P50: 5.36 P75: 7.88 P99: 21.43 P99.9: 7985.21 P99.99: 12979.56
------------------------------------------------------
[       0,       1 ]      735   0.518%   0.518% 
(       1,       2 ]     3332   2.346%   2.864% 
WARNING: Assertions are enabled; benchmarks unnecessarily slow
";

fn seen_in(text: &str) -> run::Seen {
    let onlooker = Onlooker { said: &|_| {}, stop: &AtomicBool::new(false) };
    let clock = archipelago_base::clock::SystemClock::new();
    run::lines_of(text.as_bytes(), &clock, onlooker).expect("text")
}

#[test]
fn distributions_belong_to_the_line_before_them() {
    let seen = seen_in(TIMED);
    let latencies: Vec<_> = seen.lines.iter().map(|(_, line)| line.latency.clone()).collect();
    let latency = |kind: &str, count, p50_us, p99_us, max_us| {
        vec![Latency { kind: kind.to_owned(), count, p50_us, p99_us, max_us }]
    };
    assert_eq!(latencies[0], latency("seek", 100_000, 7.36, 19.43, 905.0));
    assert_eq!(latencies[1], latency("read", 141_999, 5.36, 21.43, 18205.0));
    assert!(seen.asserts && !seen_in(SAMPLE).asserts);
}

#[test]
fn our_own_distributions_are_understood() {
    let mut histogram = archipelago_bench::harness::histogram::Histogram::new();
    [5000, 7000, 2_000_000].iter().for_each(|&ns| histogram.record_ns(ns));
    let line = archipelago_bench::harness::report::result_line(
        "fillrandom",
        &archipelago_bench::harness::tally::Total::of(3, 0, 9000),
        "",
    );
    let seen = seen_in(&format!("{line}\nMicroseconds per write:\n{}", histogram.text()));
    let latency = &seen.lines[0].1.latency[0];
    assert_eq!((latency.kind.as_str(), latency.count, latency.max_us), ("write", 3, 2000.0));
    assert!(latency.p99_us > 1300.0, "{latency:?}");
}

#[test]
fn the_last_job_in_rocksdb_s_log_is_found() {
    let log = "\
2026/11/21-13:04:38.1 1 EVENT_LOG_v1 {\"time_micros\": 1795266278000001, \"job\": 1, \
               \"event\": \"flush_started\"}
2026/11/21-13:04:39.1 1 (Original Log Time) EVENT_LOG_v1 {\"time_micros\": 1795266279000002, \
               \"job\": 2, \"event\": \"flush_finished\", \"output_compression\": \"None\"}
2026/11/21-13:04:40.1 1 (Original Log Time) EVENT_LOG_v1 {\"time_micros\": 1795266280000003, \
               \"job\": 3, \"event\": \"compaction_finished\", \"output_level\": 1}
2026/11/21-13:04:41.1 1 EVENT_LOG_v1 {\"time_micros\": 1795266281000004, \"event\": \
               \"table_file_deletion\"}
";
    assert_eq!(last_job_us(log), Some(1_795_266_280_000_003));
    assert_eq!(last_job_us(""), None);
}

#[test]
fn spreads_and_ratios() {
    assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
    assert_eq!(Spread::of(&[4.0, 1.0]).map(|s| s.median), Some(2.5));
    assert_eq!(Spread::of(&[]), None);
    let row = Row::of("x", &[10.0, 30.0, 20.0], &[5.0, 10.0, 20.0]).expect("both sides");
    assert_eq!((row.ratio_of_medians, row.ratio_min, row.ratio_max), (2.0, 1.0, 3.0));
}

fn compare_flags(words: &[&str]) -> (CompareFlags, Spelled) {
    let args: Vec<OsString> = words.iter().map(OsString::from).collect();
    flags::read_compare(&args).expect("known flags")
}

#[test]
fn both_sides_get_the_same_flags() {
    let (flags, spelled) = compare_flags(&[
        "--benchmarks=fillrandom,readrandom",
        "--num=500",
        "-sync",
        "--buckets=3",
        "--seed=9",
        "--compression_type=none",
        "--archipelago=/usr/bin/archipelago",
        "--db_bench_flags=--subcompactions=2 --num_levels=6",
    ]);
    let shared = shared_args(&spelled.args);
    let dir = Path::new("/tmp/x");
    let ours = program(Side::Archipelago, &flags, &shared, dir).expect("a program").args;
    let theirs = program(Side::RocksDb, &flags, &shared, dir).expect("a program");
    assert_eq!(theirs.path, Path::new("/usr/bin/db_bench"));
    let theirs = theirs.args;
    for flag in [
        "--benchmarks=fillrandom,readrandom,waitforcompaction",
        "--num=500",
        "--sync=true",
        "--seed=9",
        "--bloom_bits=10",
        "--cache_size=8388608",
        "--write_buffer_size=67108864",
        "--disable_wal=false",
        "--compression_type=none",
        "--db=/tmp/x",
    ] {
        assert!(ours.iter().any(|arg| arg == flag), "{flag}: {ours:?}");
        assert!(theirs.iter().any(|arg| arg == flag), "{flag}: {theirs:?}");
    }
    assert!(ours.iter().any(|arg| arg == "--buckets=3") && ours[0] == "bench");
    assert!(!theirs.iter().any(|arg| arg.starts_with("--buckets")));
    assert_eq!(theirs[theirs.len() - 2..], ["--subcompactions=2", "--num_levels=6"]);
    let given: Vec<OsString> = ours[1..].iter().map(OsString::from).collect();
    assert!(flags::read(&given).is_ok(), "our side takes what it is given: {ours:?}");
}

#[test]
fn impossible_comparison_is_refused() {
    let (flags, _) = compare_flags(&["--benchmarks=ycsba"]);
    assert!(check(&flags).is_err_and(|error| error.to_string().contains("no ycsba")));
    let (flags, _) = compare_flags(&["--benchmarks=fillseq", "--db_bench=/nonexistent/db_bench"]);
    let refusal = check(&flags).expect_err("there is no such program").to_string();
    assert!(refusal.contains("rocksdb-tools"), "{refusal}");
}
