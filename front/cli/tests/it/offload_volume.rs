//! A server whose database lies in a volume of storage nodes and whose compactions run in
//! executors, as operators run it: processes, Redis clients, kills and a take-over.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::cluster::{Process, until};
use crate::offload::{check, figure, load, write};
use crate::storage::StorageCluster;
use crate::store::Redis;
use crate::{archipelago, refused, text};

/// An executor of the volumes of a cluster.
fn executor(cluster: &StorageCluster) -> Process {
    let mut process = Process::start(archipelago().args([
        "node",
        "executor",
        "--slots",
        "2",
        "--store",
        &cluster.address,
    ]));
    let said = process.line();
    let place = format!("in volumes of the storage cluster at {}", cluster.address);
    assert!(said.starts_with("Executor with 2 slots") && said.ends_with(&place), "{said}");
    process
}

/// A settings file with small memtables and files, whose values are separated.
fn settings(dir: &Path) -> PathBuf {
    let file = dir.join("settings.toml");
    let settings = "[families.default]\nwrite_buffer_bytes = 65536\ntarget_file_bytes = 65536\n\
                    value_separation_bytes = 128\nvalue_file_bytes = 65536\n";
    write(&file, settings);
    file
}

/// Serves the volume `reef` with offloaded compactions.
fn serve(cluster: &StorageCluster, more: &[&str]) -> (Process, Redis) {
    let file = settings(cluster.dir.path());
    let flags = ["--offload-mode", "compactions", "--config", file.to_str().unwrap()];
    let (process, address) = cluster.serve("reef", &[&flags[..], more].concat());
    (process, Redis::connect(&address).unwrap())
}

/// Bytes that no table and no value file of these tests has. The reserve of the database for full
/// storage, which is one more file, is larger.
const TABLE_BYTES_MAX: u64 = 1 << 20;

/// Identities of the blobs of which a node of the cluster has a chunk, without the reserve.
fn blobs(cluster: &StorageCluster) -> BTreeSet<String> {
    let mut blobs = BTreeSet::new();
    let entries = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten();
    for node in entries(cluster.dir.path().to_owned()) {
        for part in entries(node.path().join("chunks")) {
            for chunk in entries(part.path()) {
                let bytes = chunk.metadata().map_or(0, |metadata| metadata.len());
                if bytes > TABLE_BYTES_MAX {
                    continue;
                }
                let name = chunk.file_name().to_string_lossy().into_owned();
                blobs.insert(name.split('-').next().unwrap().to_owned());
            }
        }
    }
    blobs
}

/// Number of tables and value files, as `db verify` tells it.
fn files_of(verified: &str) -> usize {
    let number = |what: &str| {
        let before = verified.split(what).next().filter(|before| *before != verified);
        let digits = before.and_then(|before| before.trim_end().rsplit([' ', ',']).next());
        digits.map_or(0, |digits| digits.parse().unwrap())
    };
    number(" tables") + number(" value files")
}

/// Loads until the server has got the outputs of `more` further jobs from executors.
fn load_until_away(redis: &mut Redis, round: &mut usize, more: u64) {
    let before = figure(redis, "offload_jobs_away");
    until("executors have run jobs", || {
        *round += 1;
        load(redis, *round);
        figure(redis, "offload_jobs_away") >= before + more
    });
    check(redis, *round);
}

#[test]
fn compactions_of_a_volume_run_in_executors_that_are_killed() {
    let cluster = StorageCluster::start(3);
    let mut first = executor(&cluster);
    let second = executor(&cluster);
    let (mut owner, mut redis) = serve(&cluster, &[]);
    let mut round = 0;
    load_until_away(&mut redis, &mut round, 3);
    // One executor is killed. The other one is stopped, and continues after its jobs were given up.
    first.kill();
    second.stop();
    round += 1;
    load(&mut redis, round);
    check(&mut redis, round);
    second.signal(Signal::CONT);
    load_until_away(&mut redis, &mut round, 2);
    // The owner is killed while jobs run, and the next one has other epochs.
    round += 1;
    load(&mut redis, round);
    owner.kill();
    let (mut owner, mut redis) = serve(&cluster, &["--take-over"]);
    check(&mut redis, round);
    load_until_away(&mut redis, &mut round, 2);
    drop(redis);
    owner.end();
    // Nothing is left of the attempts: the nodes have the files of the database, and no others.
    text(&cluster.db("reef", &["compact"]));
    let verified = text(&cluster.db("reef", &["verify"]));
    assert!(verified.ends_with("all undamaged\n"), "{verified}");
    let files = files_of(&verified);
    assert!(files > 0, "{verified}");
    until("the nodes have removed everything else", || blobs(&cluster).len() == files);
    drop(second);
}

#[test]
fn wrong_uses_of_executors_of_volumes_are_refused() {
    let said = refused(&["node", "executor"]);
    assert!(said.contains("--share"), "{said}");
    let said = refused(&["node", "executor", "--store", "nowhere"]);
    assert!(said.contains("\"nowhere\" is not an address"), "{said}");
    let said = refused(&["node", "executor", "--share", "/", "--redundancy", "coded"]);
    assert!(said.contains("--store"), "{said}");
}
