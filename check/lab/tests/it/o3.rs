//! `archipelago-lab o3` from end to end, small and fast, with owners, executors and memory nodes as
//! processes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;

/// Variable that passes the words of a role's command line, one per line.
const WORDS: &str = "ARCHIPELAGO_LAB_O3_TEST_WORDS";
/// Records of 80 bytes that fill a memtable of the tiny form.
const MEMTABLE_RECORDS: u64 = (128 << 10) / 80;

/// This is no test. Roles of the tests below are this program.
#[test]
fn role_program() {
    let Ok(words) = std::env::var(WORDS) else { return };
    let args = words.lines().map(OsString::from).collect();
    assert_eq!(archipelago_lab::main(args), ExitCode::SUCCESS);
}

/// A script that runs this program as the laboratory's.
fn role(dir: &Path) -> PathBuf {
    let own = std::env::current_exe().expect("this program");
    let text = format!(
        "#!/bin/sh\nexport {WORDS}=\"$(printf '%s\\n' \"$@\")\"\nexec {} --exact o3::role_program \
         --nocapture\n",
        own.display()
    );
    crate::scripts::script(dir, "role", &text)
}

/// Runs the tiny form with `words`, and returns its report, its text and the names of its charts.
fn report(words: &[&str]) -> (Value, String, Vec<String>) {
    let dir = tempfile::tempdir().expect("a directory");
    let (out, base) = (dir.path().join("out"), dir.path().join("runs"));
    let mut args: Vec<OsString> =
        ["o3", "--tiny"].into_iter().chain(words.iter().copied()).map(Into::into).collect();
    let program = crate::scripts::program(dir.path(), "--nocapture");
    args.push(format!("--archipelago={}", program.display()).into());
    args.push(format!("--node_program={}", role(dir.path()).display()).into());
    args.push(format!("--out={}", out.display()).into());
    args.push(format!("--dir={}", base.display()).into());
    assert_eq!(archipelago_lab::main(args), ExitCode::SUCCESS, "{words:?}");
    let left = std::fs::read_dir(&base).expect("a directory").count();
    assert_eq!(left, 0, "nothing is left behind");
    let file = |name: &str| std::fs::read_to_string(out.join(name)).expect("a report");
    let charts = std::fs::read_dir(&out).expect("a directory").filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        name.ends_with(".svg").then_some(name)
    });
    let report = serde_json::from_str(&file("report.json")).expect("JSON");
    (report, file("report.md"), charts.collect())
}

/// The run of a mode, of which there is one.
fn run<'r>(report: &'r Value, mode: &str) -> &'r Value {
    let runs = report["runs"].as_array().expect("runs");
    let mut found = runs.iter().filter(|run| run["cell"]["mode"] == mode);
    let run = found.next().unwrap_or_else(|| panic!("{mode}: {report}"));
    assert_eq!(found.next(), None, "{mode}");
    run
}

fn has_ratio(report: &Value, what: &str) {
    let rows = report["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["what"] == what);
    let row = row.unwrap_or_else(|| panic!("{what}: {rows:?}"));
    assert!(row["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{row}");
}

/// The figure of a row, which is above 0.
fn measured(report: &Value, what: &str) -> f64 {
    let rows = report["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["what"] == what);
    let row = row.unwrap_or_else(|| panic!("{what}: {rows:?}"));
    let measured = row["measured"].as_f64().unwrap_or_else(|| panic!("no figure: {row}"));
    assert!(measured > 0.0, "{row}");
    measured
}

#[test]
fn modes_are_compared_over_processes_of_executors_and_memory_nodes() {
    let (report, text, charts) = report(&[
        "--only=fill,ablation,phases,nodes",
        "--values=64",
        "--links=2g5",
        "--modes=off_classic,off,compactions,dm_naive",
    ]);
    has_ratio(&report, "rate, fillrandom, 64 B, 2.5G: dm-naive / off, classic");
    for peer in ["off", "off, classic"] {
        let flush = "time of a flush per MiB, fillrandom, 64 B, 2.5G: dm-naive";
        has_ratio(&report, &format!("{flush} / {peer}"));
    }
    let fetches = "share of fetches in the time of flushes, fillrandom, 64 B, 2.5G, dm-naive";
    assert!((0.0..1.0).contains(&measured(&report, fetches)), "{text}");
    let away = run(&report, "compactions");
    assert!(away["offload"]["offload_jobs_away"].as_u64() > Some(0), "{away}");
    let roles = away["roles"].as_array().expect("roles");
    assert_eq!(roles.len(), 3, "{away}");
    let sum = |name: &str| -> u64 {
        roles.iter().map(|role| role["state"][name].as_u64().expect("a number")).sum()
    };
    assert!(sum("jobs_succeeded") > 0 && sum("written_bytes") > 0, "{away}");
    // The owner writes less to the storage than an owner whose compactions stay.
    let written = |mode: &str| {
        let settled = &run(&report, mode)["result"]["settled"]["moved"];
        settled["written"].as_u64().expect("a number")
    };
    assert!(written("compactions") < written("off"), "{text}");
    let naive = run(&report, "dm_naive");
    assert!(naive["offload"]["offload_shards_sent"].as_u64() > Some(0), "{naive}");
    let fetched = &naive["result"]["settled"]["moved"]["memtables_fetched"];
    assert!(fetched.as_u64() > Some(0), "{naive}");
    // Bounds stand in the report, and rows for many nodes have figures of the model.
    for wanted in ["bound at full speed, MB/s", "206", "model: random writes, 3 storage executors"]
    {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert!(charts.contains(&"fillrandom-2g5.svg".to_owned()), "{charts:?}");
}

#[test]
fn reads_run_under_an_offered_load_of_writes() {
    let (report, _, _) =
        report(&["--only=latency,range,mixed", "--modes=off_classic,off", "--cells=3"]);
    has_ratio(&report, "P99 of a write, offered load, 64 B, 2.5G: off / off, classic");
    let runs = report["runs"].as_array().expect("runs");
    let loads = ["paced", "range", "mixed"];
    for load in loads {
        let ran = |run: &&Value| {
            run["cell"]["load"][load].is_string() || !run["cell"]["load"][load].is_null()
        };
        let run = runs.iter().find(ran).unwrap_or_else(|| panic!("{load}: {report}"));
        assert!(run["result"]["ops"].as_u64() > Some(0), "{run}");
        assert_eq!(run["offered_bytes_per_s"].is_number(), load != "mixed", "{run}");
    }
}

#[test]
fn redis_clients_drive_a_server_whose_compactions_leave() {
    let (report, text, _) = report(&[
        "--only=resp",
        "--modes=off_classic,compactions_classic",
        "--cells=2",
        "--read_bytes=8388608",
    ]);
    for mode in ["off_classic", "compactions_classic"] {
        let run = run(&report, mode);
        assert!(run["resp"]["commands"].as_u64() > Some(100), "{run}");
    }
    let away = run(&report, "compactions_classic");
    assert!(away["offload"]["offload_jobs_away"].as_u64() > Some(0), "{away}");
    assert!(text.contains("A Redis server"), "{text}");
}

#[test]
fn settings_and_take_overs_are_compared_over_memory_nodes() {
    let (report, text, _) = report(&["--only=cache,local,takeover", "--cells=3"]);
    let reads = "reads of memtables, uniform, 2.5G, all";
    has_ratio(&report, &format!("rate: {reads}, RD+LC, cache of 1024 KiB, shm / {reads}, RD, shm"));
    let auto = "R95, uniform, 2.5G, all, auto local memtables";
    has_ratio(&report, &format!("rate: {auto} / R95, uniform, 2.5G, all, 2 local memtables"));
    let rows = report["rows"].as_array().expect("rows");
    let best = format!("rate over that of the best fixed number, {auto}");
    let best = rows.iter().find(|row| row["what"] == best.as_str()).expect("the row");
    assert!(best["measured"].as_f64().is_some_and(|ratio| ratio > 0.0), "{best}");
    let shards = ["take-over of shards", "replay of the log"];
    let [kept, replayed] = shards.map(|load| format!("{load}, 2.5G, all, 96 memtables"));
    has_ratio(&report, &format!("time until the next owner has read a key: {kept} / {replayed}"));
    let runs = report["runs"].as_array().expect("runs");
    let takeover = |next: &str| {
        let run = runs.iter().find(|run| run["cell"]["load"]["takeover"] == next);
        &run.unwrap_or_else(|| panic!("{next}: {report}"))["takeover"]
    };
    let number = |takeover: &Value, name: &str| takeover[name].as_u64().expect("a number");
    let kept = takeover("kept");
    assert!(number(kept, "kept") > 0 && number(kept, "shard_bytes") > 0, "{kept}");
    let spared = number(kept, "records_spared");
    assert!(spared > 0, "{kept}");
    // Only the records of the active memtable are replayed. Those of the load are in tables, and
    // count neither as records of the log nor as spared.
    let replayed = number(kept, "records").checked_sub(spared).expect("no record of the load");
    assert!((1..MEMTABLE_RECORDS).contains(&replayed), "{kept}");
    // An owner that flushed before it was killed would leave fewer records to replay.
    assert_eq!(number(kept, "dropped_flushed"), 0, "{kept}");
    let replayed = takeover("replayed");
    assert_eq!((number(replayed, "kept"), number(replayed, "records_spared")), (0, 0));
    assert!(number(replayed, "log_bytes") > 0, "{replayed}");
    assert!(text.contains("best number by measurements"), "{text}");
}

#[test]
fn reads_are_timed_by_their_way() {
    let (report, _, _) = report(&["--only=times", "--cells=3"]);
    let away = "reads of memtables, uniform, 2.5G, all, RD+LC, shm";
    let node = ["request with a search at the node", "look-up that a node answers"];
    for name in ["READ at a cached offset"].into_iter().chain(node) {
        measured(&report, &format!("{name}, {away}"));
    }
    let here = "reads of memtables, uniform, 2.5G, all, 16 local memtables";
    measured(&report, &format!("look-up in a sealed memtable here, {here}"));
    // A busy machine may change the order of the times, but not the number of round trips.
    let run = run(&report, "all_cache");
    let count =
        |name: &str| run["offload"][format!("offload_shards_{name}")].as_u64().expect("a number");
    assert!((1..=count("cache_reads")).contains(&count("cache_batches")), "one key each: {run}");
    let unknown = ["misses", "passed", "mismatches", "unread"];
    let asked: u64 = unknown.iter().map(|why| count(&format!("cache_{why}"))).sum();
    assert!(count("requests") >= asked.max(1), "one key each: {run}");
}

#[test]
fn several_databases_share_executors_and_a_memory_node() {
    let (report, text, charts) = report(&["--only=databases", "--cells=3"]);
    let [two, one] = ["2 databases", "1 database"]
        .map(|databases| format!("fillrandom of {databases}, 1 memory node, 2.5G, all"));
    has_ratio(&report, &format!("rate of all: {two} / {one}"));
    let mixed = "mixed 50/50 of 1 database, 1 memory node, 2.5G, all";
    measured(&report, &format!("rate of all, {mixed}"));
    let runs = report["runs"].as_array().expect("runs");
    let shared = |run: &&Value| run["cell"]["load"]["several"]["databases"] == 2;
    let run = runs.iter().find(shared).unwrap_or_else(|| panic!("{report}"));
    let databases = run["several"]["databases"].as_array().expect("databases");
    assert_eq!(databases.len(), 2, "{run}");
    assert!(databases.iter().all(|database| database["rate"].as_f64() > Some(0.0)), "{run}");
    assert!(run["offload"]["offload_shards_sent"].as_u64() > Some(0), "{run}");
    let held = run["several"]["held_mib"].as_array().expect("samples");
    assert!(held.iter().any(|sample| sample[1].as_f64() > Some(0.0)), "{run}");
    assert!(text.contains("second half, ops/s"), "{text}");
    for wanted in ["databases.svg", "databases-memory.svg"] {
        assert!(charts.contains(&wanted.to_owned()), "{wanted}: {charts:?}");
    }
}
