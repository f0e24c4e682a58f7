//! Executors in the processes of servers and of storage nodes, as operators run them.

use std::path::Path;

use crate::cluster::{Process, until};
use crate::held_port::HeldPort;
use crate::metrics::{metrics_of, scrape};
use crate::offload::{check, figure, jobs, load, manager, serve_with, status, write};
use crate::storage::StorageCluster;
use crate::store::Redis;
use crate::{archipelago, refused, text};

/// Settings with small memtables, and with a rate limit that keeps each compaction in its executor
/// for a while.
const SLOW: &str = "[database]\nrate_limit_bytes_per_s = 524288\n\n[families.default]\n\
                    write_buffer_bytes = 65536\ntarget_file_bytes = 65536\n\
                    value_separation_bytes = 0\ncompression = \"none\"\n\
                    compression_last = \"none\"\n";

/// A server of a database of its own in `dir`, which runs jobs of databases below `share`. Returns
/// the address for Redis clients, too, and that of the metrics.
fn idle_server(manager: &str, dir: &Path, share: &Path) -> (Process, String, String) {
    let mut process = Process::start(
        archipelago()
            .args(["serve", "--listen", "127.0.0.1:0", "--manager", manager])
            .args(["--executor-slots", "1", "--metrics", "127.0.0.1:0", "--dir"])
            .arg(dir)
            .arg("--share")
            .arg(share),
    );
    let said = process.line();
    assert!(said.starts_with("Archipelago serves "), "{said}");
    let address = said.rsplit(' ').next().unwrap().to_owned();
    let metrics = metrics_of(&mut process);
    let said = process.line();
    assert!(said.starts_with("It runs jobs of databases below "), "{said}");
    (process, address, metrics)
}

#[test]
fn server_runs_jobs_of_another_server_and_ends_them_before_it_stops() {
    let base = tempfile::tempdir().unwrap();
    let (_manager, at) = manager();
    let (mut idle, own, metrics) = idle_server(&at, &base.path().join("idle"), base.path());
    let mut own = Redis::connect(&own).unwrap();
    assert_eq!(own.ask_long(&["SET", "reef", "coral"]).unwrap(), "+OK");
    let place = format!("(process {})", idle.id());
    until("the manager lists the server", || {
        status(&at).lines().any(|line| line.contains("  server ") && line.contains(&place))
    });
    assert_eq!(scrape(&metrics).value("archipelago_executor_slots", &[]), Some(1.0));
    let (_server, address) = serve_with(&base.path().join("db"), &at, "compactions", SLOW);
    let mut redis = Redis::connect(&address).unwrap();
    let (mut round, mut before) = (0, 0);
    until("the idle server runs a job", || {
        load(&mut redis, round);
        round += 1;
        // A job that is listed as running afterwards is not among these.
        before = figure(&mut redis, "offload_jobs_away");
        jobs(&at).lines().any(|line| line.contains("  running") && line.contains("  server "))
    });
    assert_eq!(own.ask_long(&["GET", "reef"]).unwrap().trim_end(), "coral");
    drop(own);
    let said = idle.end();
    assert!(said.contains("It takes no more jobs"), "{said}");
    let (jobs, server) = said.split_once("jobs succeeded").expect("figures of the executor");
    assert!(!jobs.trim_end().ends_with("\n0"), "{said}");
    assert!(server.contains("Stopping: ") && server.contains("Stopped"), "{said}");
    until("the job that ran is installed", || figure(&mut redis, "offload_jobs_away") > before);
    check(&mut redis, round - 1);
}

#[test]
fn storage_nodes_run_jobs_of_databases_in_their_volumes() {
    let mut cluster = StorageCluster::start_with(3, &["--executor-slots", "1"]);
    until("the manager lists the nodes", || {
        let status = cluster.status();
        (1..=3).all(|node| status.contains(&format!("  storage node {node} at tcp:127.0.0.1:")))
    });
    let file = cluster.dir.path().join("settings.toml");
    write(&file, SLOW);
    let flags = ["--offload-mode", "compactions", "--config", file.to_str().unwrap()];
    let (_owner, address) = cluster.serve("reef", &flags);
    let mut redis = Redis::connect(&address).unwrap();
    let mut round = 0;
    until("the nodes have run jobs", || {
        round += 1;
        load(&mut redis, round);
        figure(&mut redis, "offload_jobs_away") > 2
    });
    check(&mut redis, round);
    let said = cluster.end(3);
    assert!(said.contains(" jobs succeeded and ") && said.contains("Stopped; "), "{said}");
    check(&mut redis, round);
}

/// A manager that waits for the promises of memory nodes.
fn waiting_manager(at: &str) -> Process {
    let mut process = Process::start(archipelago().args([
        "node",
        "manager",
        "--memory-nodes",
        "3",
        "--listen",
        at,
    ]));
    let said = process.line();
    assert!(said.starts_with("Manager listens on tcp:"), "{said}");
    process
}

#[test]
fn managers_that_stand_by_give_out_jobs_and_replace_each_other() {
    let base = tempfile::tempdir().unwrap();
    // Without memory nodes no manager acts.
    let ports = [HeldPort::take(), HeldPort::take()];
    let at = ports.each_ref().map(HeldPort::address);
    let mut managers = at.each_ref().map(|at| Some(waiting_manager(at)));
    let both = at.join(",");
    let (_idle, _own, _metrics) = idle_server(&both, &base.path().join("idle"), base.path());
    let settings = "[families.default]\nwrite_buffer_bytes = 65536\ntarget_file_bytes = 65536\n\
                    value_separation_bytes = 0\n";
    let (_server, address) = serve_with(&base.path().join("db"), &both, "compactions", settings);
    let mut redis = Redis::connect(&address).unwrap();
    let mut round = 0;
    let mut load_until_away = || {
        let before = figure(&mut redis, "offload_jobs_away");
        until("an executor runs jobs", || {
            load(&mut redis, round);
            round += 1;
            figure(&mut redis, "offload_jobs_away") > before
        });
        check(&mut redis, round - 1);
    };
    load_until_away();
    // Each manager ends once, so one of them was that of the database.
    managers[0] = None;
    load_until_away();
    managers[0] = Some(waiting_manager(&at[0]));
    managers[1] = None;
    load_until_away();
    drop(managers);
}

/// Runs `cluster drain --executor`.
fn drain(manager: &str, name: &str, more: &[&str]) -> String {
    let words = ["cluster", "drain", "--executor", name, "--manager", manager];
    text(&archipelago().args(words).args(more).output().unwrap())
}

#[test]
fn drained_executor_ends_its_jobs_and_gets_no_others() {
    let base = tempfile::tempdir().unwrap();
    let (_manager, at) = manager();
    let (mut idle, _own, _metrics) = idle_server(&at, &base.path().join("idle"), base.path());
    let place = format!("(process {})", idle.id());
    let mut number = String::new();
    until("the manager lists the executor", || {
        let status = status(&at);
        let line = status.lines().find(|line| line.contains(&place));
        number = line.and_then(|line| line.split(' ').next()).unwrap_or_default().to_owned();
        !number.is_empty()
    });
    let (_server, address) = serve_with(&base.path().join("db"), &at, "compactions", SLOW);
    let mut redis = Redis::connect(&address).unwrap();
    let mut round = 0;
    until("the executor runs a job", || {
        load(&mut redis, round);
        round += 1;
        jobs(&at).contains("  running")
    });
    let said = drain(&at, &number, &[]);
    assert!(said.contains("takes no more jobs; Ctrl-C"), "{said}");
    assert!(said.trim_end().ends_with("has no jobs: it can be stopped"), "{said}");
    assert!(
        status(&at)
            .contains(&format!("(executor {number} is drained: it takes no jobs, and has 0)"))
    );
    let before = figure(&mut redis, "offload_jobs_away");
    let here = figure(&mut redis, "offload_here_no_executor");
    until("the server runs its jobs itself", || {
        load(&mut redis, round);
        round += 1;
        figure(&mut redis, "offload_here_no_executor") > here
    });
    assert_eq!(figure(&mut redis, "offload_jobs_away"), before);
    // The server that hosts the executor is no part of the drain.
    let said = drain(&at, &number, &["--cancel"]);
    assert!(said.contains("takes jobs again"), "{said}");
    until("the executor runs jobs again", || {
        load(&mut redis, round);
        round += 1;
        figure(&mut redis, "offload_jobs_away") > before
    });
    check(&mut redis, round - 1);
    let said = refused(&["cluster", "drain", "--executor", "reef", "--manager", &at]);
    assert!(said.contains("no executor has the number or the address"), "{said}");
    assert!(idle.end().contains("Stopped"));
}

#[test]
fn slots_without_files_and_files_without_slots_are_refused() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("db");
    let dir = dir.to_str().unwrap();
    let said = refused(&["serve", "--dir", dir, "--executor-slots", "2"]);
    assert!(said.contains("add --share DIR"), "{said}");
    for role in [&["serve"][..], &["node", "storage"]] {
        let said = refused(&[role, &["--dir", dir, "--share", "/"]].concat());
        assert!(said.contains("add --executor-slots N"), "{said}");
        let wrong = ["--dir", dir, "--executor-slots", "1", "--share", dir];
        let said = refused(&[role, &wrong].concat());
        assert!(said.contains("there is no such directory"), "{said}");
    }
    assert!(!base.path().join("db").exists(), "a refusal leaves nothing behind");
    let said = refused(&["node", "storage", "--dir", dir, "--copies-min", "1"]);
    assert!(said.contains("--executor-slots"), "{said}");
}
