//! The list of offloaded jobs, as operators see it.

use std::path::Path;

use rustix::process::Signal;

use crate::cluster::{Process, until};
use crate::offload::{jobs, load, manager, serve_with};
use crate::store::Redis;
use crate::{archipelago, refused};

/// Output of `cluster jobs` without a job.
const EMPTY: &str = "No offloaded job waits or runs";

/// An executor with one slot.
fn executor(manager: &str, share: &Path) -> Process {
    let mut process = Process::start(
        archipelago()
            .args(["node", "executor", "--slots", "1", "--manager", manager, "--share"])
            .arg(share),
    );
    let said = process.line();
    assert!(said.starts_with("Executor with 1 slot"), "{said}");
    process
}

/// Serves `dir` with small memtables, and with a rate limit that keeps each compaction in its
/// executor for seconds.
fn serve(dir: &Path, manager: &str) -> (Process, Redis) {
    let settings = "[database]\nrate_limit_bytes_per_s = 131072\n\n[families.default]\n\
                    write_buffer_bytes = 65536\ntarget_file_bytes = 65536\n\
                    value_separation_bytes = 0\ncompression = \"none\"\n\
                    compression_last = \"none\"\n";
    let (process, address) = serve_with(dir, manager, "compactions", settings);
    (process, Redis::connect(&address).unwrap())
}

#[test]
fn jobs_are_listed_until_their_server_has_installed_them() {
    let base = tempfile::tempdir().unwrap();
    let (_manager, at) = manager();
    assert_eq!(jobs(&at).trim_end(), EMPTY);
    let executor = executor(&at, base.path());
    let (server, mut redis) = serve(&base.path().join("db"), &at);
    let (mut polls, mut shown) = (0, String::new());
    until("an executor has committed a job of a stopped server", || {
        if polls % 20 == 0 {
            load(&mut redis, polls);
        }
        polls += 1;
        if !jobs(&at).contains("  running") {
            return false;
        }
        // A server that is stopped installs nothing, so its job stays in the list.
        server.stop();
        until("the executor has no job", || {
            shown = jobs(&at);
            !shown.contains("  running") && !shown.contains("  offered  ")
        });
        let is_committed = shown.contains("  installing  ");
        // The job may have ended before the server was stopped.
        if !is_committed {
            server.signal(Signal::CONT);
        }
        is_committed
    });
    assert!(shown.starts_with("JOB "), "{shown}");
    let job = shown.lines().find(|line| line.contains("  installing  ")).unwrap();
    assert!(job.contains("  compaction  ") && job.contains("iB  "), "{job}");
    assert!(job.trim_end().ends_with(&format!("(process {})", executor.id())), "{job}");
    assert!(shown.trim_end().ends_with(" wait"), "{shown}");
    server.signal(Signal::CONT);
    until("the list is empty", || jobs(&at).trim_end() == EMPTY);
}

#[test]
fn jobs_are_listed_each_second_until_the_command_is_stopped() {
    let (_manager, at) = manager();
    let mut command = archipelago();
    command.args(["cluster", "jobs", "--watch", "--manager", &at]);
    let mut watching = Process::start(&mut command);
    for expected in [EMPTY, "", EMPTY] {
        assert_eq!(watching.line(), expected);
    }
}

#[test]
fn list_of_jobs_names_the_managers_that_do_not_answer() {
    let said = refused(&["cluster", "jobs", "--manager", "127.0.0.1:9"]);
    assert!(said.contains("no manager answers at 127.0.0.1:9"), "{said}");
}
