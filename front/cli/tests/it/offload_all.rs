//! A server whose memtables, flushes and compactions leave it, as operators run it: processes,
//! Redis clients and kills.

use std::path::Path;

use crate::cluster::{Process, until};
use crate::offload::{check, figure, load, manager, serve_with, value};
use crate::store::Redis;
use crate::{archipelago, db, refused, text};

/// Keys that each round writes.
const KEYS: usize = 2000;

/// A memory node, which runs jobs of databases below `share`.
fn memory(id: u64, manager: &str, share: &Path) -> Process {
    let mut process = Process::start(
        archipelago()
            .args(["node", "memory", "--size", "64MiB", "--block", "1MiB", "--slots", "2"])
            .args(["--id", &id.to_string(), "--manager", manager, "--share"])
            .arg(share),
    );
    let said = process.line();
    assert!(said.starts_with(&format!("Memory node {id} lends 64 MiB")), "{said}");
    process
}

fn executor(manager: &str, share: &Path) -> Process {
    let mut process = Process::start(
        archipelago().args(["node", "executor", "--manager", manager, "--share"]).arg(share),
    );
    let said = process.line();
    assert!(said.starts_with("Executor with "), "{said}");
    process
}

/// Serves `dir` with small memtables.
fn serve(dir: &Path, manager: &str, mode: &str) -> (Process, Redis) {
    let settings = "[families.default]\nwrite_buffer_bytes = 131072\ntarget_file_bytes = 131072\n\
                    value_separation_bytes = 0\n";
    let (process, address) = serve_with(dir, manager, mode, settings);
    (process, Redis::connect(&address).unwrap())
}

fn check_all(redis: &mut Redis, round: usize) {
    for number in 0..KEYS {
        let got = redis.ask_long(&["GET", &format!("reef:{number}")]).unwrap();
        assert_eq!(got.trim_end(), value(number, round).trim_end(), "{number} of round {round}");
    }
}

/// Writes rounds from `round` on until one of the figures of INFO has grown. Returns the last
/// round.
fn load_until(redis: &mut Redis, round: usize, names: &[&str]) -> usize {
    let sum = |redis: &mut Redis| names.iter().map(|name| figure(redis, name)).sum::<u64>();
    let (before, mut last) = (sum(redis), round);
    until(&names.join(" or "), || {
        load(redis, last);
        let is_done = sum(redis) > before;
        last += usize::from(!is_done);
        is_done
    });
    last
}

#[test]
fn everything_leaves_a_server_while_processes_are_killed() {
    let base = tempfile::tempdir().unwrap();
    let (_manager, at) = manager();
    let mut nodes = [memory(1, &at, base.path()), memory(2, &at, base.path())];
    let dir = base.path().join("db");
    let (mut server, mut redis) = serve(&dir, &at, "all");
    let places = ["offload_flushes_in_place", "offload_flushes_remote"];
    let round = load_until(&mut redis, 0, &places);
    check_all(&mut redis, round);
    assert!(figure(&mut redis, "offload_flushes_package_bytes") > 0);
    // A memory node is killed with its executor. The other memory node and the executor go on.
    let mut remote = executor(&at, base.path());
    nodes[0].kill();
    check_all(&mut redis, round);
    let round = load_until(&mut redis, round + 1, &places);
    check_all(&mut redis, round);
    remote.kill();
    let round = load_until(&mut redis, round + 1, &places);
    check_all(&mut redis, round);
    // Without executors and memory nodes the server does everything itself.
    nodes[1].kill();
    for more in 1..=3 {
        load(&mut redis, round + more);
    }
    check_all(&mut redis, round + 3);
    // The memory nodes start again, and the server is killed during a load.
    let _nodes = [memory(1, &at, base.path()), memory(2, &at, base.path())];
    let round = load_until(&mut redis, round + 4, &places);
    server.kill();
    let (server, mut redis) = serve(&dir, &at, "all");
    check_all(&mut redis, round);
    let round = load_until(&mut redis, round + 1, &places);
    check_all(&mut redis, round);
    drop(server);
    let verified = db(&dir, &["verify"]);
    assert!(verified.status.success(), "{}", text(&verified));
}

#[test]
fn flushes_leave_a_server_that_compacts_itself() {
    let base = tempfile::tempdir().unwrap();
    let (_manager, at) = manager();
    let _node = memory(1, &at, base.path());
    let dir = base.path().join("db");
    let (mut server, mut redis) = serve(&dir, &at, "flushes");
    let round = load_until(&mut redis, 0, &["offload_flushes_in_place"]);
    check(&mut redis, round);
    // A flush is counted among the jobs first, so the flushes are read first.
    let flushes = figure(&mut redis, "offload_flushes_in_place");
    let away = figure(&mut redis, "offload_jobs_away");
    assert!(away >= flushes, "{away} jobs, {flushes} flushes");
    drop(redis);
    assert!(server.end().contains("Stopped"));
}

#[test]
fn cluster_starts_databases_whose_work_leaves_them() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("cluster");
    let mut cluster = Process::start(
        archipelago()
            .args(["cluster", "up", "--engine", "lsm", "--compute", "2", "--managers", "1"])
            .args(["--memory", "1", "--size", "64MiB", "--block", "1MiB"])
            .args(["--manager", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--dir"])
            .arg(&dir),
    );
    let mut computes = Vec::new();
    let mut executors = 0;
    loop {
        let said = cluster.line();
        if said.starts_with("Compute node ") {
            computes.push(said.split_whitespace().nth(3).unwrap().to_owned());
        }
        executors += usize::from(said.starts_with("Executor "));
        if said.starts_with("Ctrl-C") {
            break;
        }
    }
    assert_eq!((computes.len(), executors), (2, 1));
    for (number, address) in computes.iter().enumerate() {
        let mut redis = Redis::connect(address).unwrap();
        let name = format!("compute {number}");
        assert_eq!(redis.ask_long(&["SET", "reef", &name]).unwrap(), "+OK");
        assert_eq!(redis.ask_long(&["GET", "reef"]).unwrap().trim_end(), name);
        until("the memory node is known", || figure(&mut redis, "offload_shards_nodes") == 1);
    }
    assert!(dir.join("compute1").is_dir() && dir.join("compute2").is_dir());
    assert!(cluster.end().contains("Stopped"));
}

#[test]
fn slots_of_a_memory_node_need_files() {
    let said = refused(&["node", "memory", "--slots", "2"]);
    assert!(said.contains("--share DIR or --store"), "{said}");
}
