//! A server whose compactions run in executors, as operators run them: processes, Redis clients and
//! kills.

use std::path::Path;

use rustix::process::Signal;

use crate::cluster::{Process, until};
use crate::store::Redis;
use crate::{archipelago, db, refused, text};

/// Keys that each round writes.
const KEYS: usize = 2000;

/// A manager, with its address.
pub(crate) fn manager() -> (Process, String) {
    manager_with(&[])
}

/// A manager with these further flags, and its address.
pub(crate) fn manager_with(more: &[&str]) -> (Process, String) {
    let mut process = Process::start(
        archipelago().args(["node", "manager", "--listen", "127.0.0.1:0"]).args(more),
    );
    let said = process.line();
    assert!(said.starts_with("Manager listens on tcp:"), "{said}");
    let address = said.rsplit("tcp:").next().unwrap().to_owned();
    (process, address)
}

fn executor(manager: &str, share: &Path) -> Process {
    let mut process = Process::start(
        archipelago().args(["node", "executor", "--manager", manager, "--share"]).arg(share),
    );
    let said = process.line();
    assert!(said.starts_with("Executor with "), "{said}");
    process
}

/// Serves `dir` with small memtables. Returns the process and its address for Redis clients.
fn serve(dir: &Path, manager: &str) -> (Process, String) {
    let settings = "[families.default]\nwrite_buffer_bytes = 65536\ntarget_file_bytes = 65536\n\
                    value_separation_bytes = 0\n";
    serve_with(dir, manager, "compactions", settings)
}

/// Serves `dir` in an offload mode with these settings. Returns the process and its address for
/// Redis clients.
pub(crate) fn serve_with(
    dir: &Path,
    manager: &str,
    mode: &str,
    settings: &str,
) -> (Process, String) {
    let config = dir.parent().unwrap().join("settings.toml");
    write(&config, settings);
    let mut process = Process::start(
        archipelago()
            .args(["serve", "--listen", "127.0.0.1:0", "--offload-mode", mode])
            .args(["--manager", manager, "--dir"])
            .arg(dir)
            .arg("--config")
            .arg(&config),
    );
    let said = process.line();
    assert!(said.starts_with("Archipelago serves "), "{said}");
    (process, said.rsplit(' ').next().unwrap().to_owned())
}

/// Output of `cluster jobs`.
pub(crate) fn jobs(manager: &str) -> String {
    text(&archipelago().args(["cluster", "jobs", "--manager", manager]).output().unwrap())
}

/// Output of `cluster status`.
pub(crate) fn status(manager: &str) -> String {
    text(&archipelago().args(["cluster", "status", "--manager", manager]).output().unwrap())
}

pub(crate) fn write(path: &Path, text: &str) {
    use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose};
    let io = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
    archipelago_env::local::LocalFs::new().write_atomic(path, text.as_bytes(), io).unwrap();
}

pub(crate) fn value(number: usize, round: usize) -> String {
    format!("coral {number} of round {round} ").repeat(8)
}

pub(crate) fn load(redis: &mut Redis, round: usize) {
    for number in 0..KEYS {
        let (key, value) = (format!("reef:{number}"), value(number, round));
        assert_eq!(redis.ask_long(&["SET", &key, &value]).unwrap(), "+OK", "{key}");
    }
}

pub(crate) fn check(redis: &mut Redis, round: usize) {
    for number in (0..KEYS).step_by(37) {
        let got = redis.ask_long(&["GET", &format!("reef:{number}")]).unwrap();
        assert_eq!(got.trim_end(), value(number, round).trim_end(), "{number}");
    }
}

/// The figure of a line of INFO; 0 if the line is missing.
pub(crate) fn figure(redis: &mut Redis, name: &str) -> u64 {
    let info = redis.ask_long(&["INFO", "archipelago"]).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.map_or(0, |figure| figure.trim().parse().unwrap())
}

#[test]
fn invalid_files_need_a_mode_in_which_collections_leave() {
    for mode in ["off", "memtables", "flushes"] {
        let flags = ["serve", "--gc-invalid-files", "--offload-mode", mode];
        let said = refused(&flags);
        assert!(said.contains("--offload-mode compactions"), "{mode}: {said}");
    }
}

#[test]
fn compactions_of_a_server_run_in_executors_that_are_killed() {
    let base = tempfile::tempdir().unwrap();
    let (_manager, at) = manager();
    let mut first = executor(&at, base.path());
    let second = executor(&at, base.path());
    let dir = base.path().join("db");
    let (server, address) = serve(&dir, &at);
    let mut redis = Redis::connect(&address).unwrap();
    let mut round = 0;
    until("an executor has run a job", || {
        load(&mut redis, round);
        round += 1;
        figure(&mut redis, "offload_jobs_away") > 2
    });
    // One executor is killed. The other one is stopped, and continues after its jobs were given up.
    first.kill();
    second.stop();
    load(&mut redis, round);
    check(&mut redis, round);
    second.signal(Signal::CONT);
    let before = figure(&mut redis, "offload_jobs_away");
    until("the other executor runs jobs again", || {
        round += 1;
        load(&mut redis, round);
        figure(&mut redis, "offload_jobs_away") > before
    });
    check(&mut redis, round);
    drop(server);
    let verified = db(&dir, &["verify"]);
    assert!(verified.status.success(), "{}", text(&verified));
}

#[test]
fn executor_that_is_told_to_stop_ends_its_jobs_first() {
    let base = tempfile::tempdir().unwrap();
    let (_manager, at) = manager();
    let mut executor = executor(&at, base.path());
    // The limit keeps each compaction in its executor for a while.
    let settings = "[database]\nrate_limit_bytes_per_s = 524288\n\n[families.default]\n\
                    write_buffer_bytes = 65536\ntarget_file_bytes = 65536\n\
                    value_separation_bytes = 0\ncompression = \"none\"\n\
                    compression_last = \"none\"\n";
    let (_server, address) = serve_with(&base.path().join("db"), &at, "compactions", settings);
    let mut redis = Redis::connect(&address).unwrap();
    let (mut round, mut before) = (0, 0);
    until("an executor runs a job", || {
        load(&mut redis, round);
        round += 1;
        // A job that is listed as running afterwards is not among these.
        before = figure(&mut redis, "offload_jobs_away");
        jobs(&at).contains("  running")
    });
    let said = executor.end();
    assert!(said.contains("It takes no more jobs"), "{said}");
    assert!(!said.contains("Stopped; 0 jobs"), "{said}");
    until("the job that ran is installed", || figure(&mut redis, "offload_jobs_away") > before);
    check(&mut redis, round - 1);
}

#[test]
fn a_server_without_manager_compacts_itself() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("db");
    let (_server, address) = serve(&dir, "127.0.0.1:9");
    let mut redis = Redis::connect(&address).unwrap();
    let mut round = 0;
    until("the server has run a job itself", || {
        load(&mut redis, round);
        round += 1;
        figure(&mut redis, "offload_here_silent") > 0
    });
    check(&mut redis, round - 1);
    assert_eq!(figure(&mut redis, "offload_jobs_away"), 0);
}

#[test]
fn wrong_uses_of_executors_are_refused() {
    let base = tempfile::tempdir().unwrap();
    let missing = base.path().join("none");
    let said = refused(&["node", "executor", "--share", missing.to_str().unwrap()]);
    assert!(said.contains("there is no such directory"), "{said}");
    let said = refused(&["serve", "--engine", "flexkv", "--offload-mode", "compactions"]);
    assert!(said.contains("has no compactions"), "{said}");
}
