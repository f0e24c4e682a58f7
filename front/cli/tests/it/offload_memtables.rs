//! A server whose memtables rest at memory nodes, as operators run it: processes, Redis clients and
//! kills.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::process::Signal;

use crate::cluster::{Process, until};
use crate::metrics::{metrics_of, scrape};
use crate::offload::{figure, load, manager, manager_with, status, value, write};
use crate::store::Redis;
use crate::{archipelago, db, refused, text};

/// Keys that each round writes.
const KEYS: usize = 2000;
/// Flags of a manager that declares a memory node dead only after seconds, because a busy machine
/// may stop one for long. A server does so after five seconds anyway.
const PATIENT: [&str; 2] = ["--node-lease-ms", "4000"];
/// Number of kills of which one must meet shards at the nodes. A pause of a process at the wrong
/// time costs the shards of one kill.
const TRIES: usize = 5;

fn memory(id: u64, manager: &str) -> Process {
    let mut process = Process::start(
        archipelago().args(["node", "memory", "--size", "64MiB", "--block", "1MiB"]).args([
            "--id",
            &id.to_string(),
            "--manager",
            manager,
        ]),
    );
    let said = process.line();
    assert!(said.starts_with(&format!("Memory node {id} lends 64 MiB")), "{said}");
    process
}

/// Serves `dir` with small memtables. Returns the process and its address for Redis clients.
fn serve(dir: &Path, manager: &str, more: &[&str]) -> (Process, String) {
    let config = dir.parent().unwrap().join("settings.toml");
    let settings = "[families.default]\nwrite_buffer_bytes = 131072\ntarget_file_bytes = 131072\n\
                    value_separation_bytes = 0\nbuckets = 8\n";
    write(&config, settings);
    let mut process = Process::start(
        archipelago()
            .args(["serve", "--listen", "127.0.0.1:0", "--manager", manager, "--dir"])
            .arg(dir)
            .arg("--config")
            .arg(&config)
            .args(more),
    );
    let said = process.line();
    assert!(said.starts_with("Archipelago serves "), "{said}");
    (process, said.rsplit(' ').next().unwrap().to_owned())
}

fn away(dir: &Path, manager: &str) -> (Process, Redis) {
    let (process, address) = serve(dir, manager, &["--offload-mode", "memtables"]);
    (process, Redis::connect(&address).unwrap())
}

/// Checks every key of a round.
fn check_all(redis: &mut Redis, round: usize) {
    for number in 0..KEYS {
        let got = redis.ask_long(&["GET", &format!("reef:{number}")]).unwrap();
        assert_eq!(got.trim_end(), value(number, round).trim_end(), "{number} of round {round}");
    }
}

/// Writes rounds from `round` on until the figure of INFO has grown by `more`. Returns the last
/// round.
fn load_until(redis: &mut Redis, round: usize, name: &str, more: u64) -> usize {
    let before = figure(redis, name);
    let mut last = round;
    until(name, || {
        load(redis, last);
        let is_done = figure(redis, name) >= before + more;
        last += usize::from(!is_done);
        is_done
    });
    last
}

/// Writes rounds after `round`, which was the last one, until shards rest at the nodes and no job
/// of the server, such as a flush that takes them, runs. Returns the last round.
fn load_until_shards_rest(redis: &mut Redis, round: usize) -> usize {
    let (mut last, mut steady) = (round, 0);
    until("shards rest at the nodes", || {
        let is_idle = figure(redis, "num_running_jobs") == 0;
        let has_shards = figure(redis, "offload_shards_shards") > 0;
        steady = if is_idle && has_shards { steady + 1 } else { 0 };
        if is_idle && !has_shards {
            last += 1;
            load(redis, last);
        }
        steady == 20
    });
    last
}

/// Kills both nodes, one after the other, while shards rest there, until shards were lost. Every
/// acknowledged write is read meanwhile. Returns the last round.
fn kill_nodes_with_shards(
    nodes: &mut [Process; 2],
    manager: &str,
    redis: &mut Redis,
    round: usize,
) -> usize {
    let mut last = round;
    for _ in 0..TRIES {
        last = load_until_shards_rest(redis, last);
        check_all(redis, last);
        for node in nodes.iter_mut() {
            node.kill();
            check_all(redis, last);
        }
        nodes_are(redis, 0);
        check_all(redis, last);
        if figure(redis, "offload_shards_lost") > 0 {
            return last;
        }
        *nodes = [memory(1, manager), memory(2, manager)];
        nodes_are(redis, 2);
    }
    panic!("no shard was lost by {TRIES} kills of both nodes");
}

/// A server whose memtables rest at memory nodes, and the last round that was written.
struct Loaded<'a> {
    dir: &'a Path,
    manager: &'a str,
    server: Process,
    redis: Redis,
    round: usize,
}

impl Loaded<'_> {
    /// Ends the server by `end` while shards rest at the nodes, and opens the database again, until
    /// an open has kept shards. Every acknowledged write is read after each open.
    fn reopen_with_shards(&mut self, mut end: impl FnMut(&mut Process)) {
        for _ in 0..TRIES {
            self.round = load_until_shards_rest(&mut self.redis, self.round);
            end(&mut self.server);
            (self.server, self.redis) = away(self.dir, self.manager);
            check_all(&mut self.redis, self.round);
            if figure(&mut self.redis, "offload_takeover_kept") > 0 {
                return;
            }
        }
        panic!("none of {TRIES} opens has kept shards");
    }
}

fn nodes_are(redis: &mut Redis, count: u64) {
    until("memory nodes are known", || figure(redis, "offload_shards_nodes") == count);
}

#[test]
fn memtables_of_a_server_rest_at_memory_nodes_that_are_killed() {
    let base = tempfile::tempdir().unwrap();
    let (_manager, at) = manager();
    let mut nodes = [memory(1, &at), memory(2, &at)];
    let dir = base.path().join("db");
    let (server, mut redis) = away(&dir, &at);
    nodes_are(&mut redis, 2);
    let round = load_until(&mut redis, 0, "offload_shards_sent", 20);
    let round = kill_nodes_with_shards(&mut nodes, &at, &mut redis, round);
    assert!(figure(&mut redis, "offload_shards_keys") > 0, "nodes have searched keys");
    // Without nodes the server flushes itself.
    load(&mut redis, round + 1);
    check_all(&mut redis, round + 1);
    // The nodes start again, and get shards again.
    let nodes = [memory(1, &at), memory(2, &at)];
    nodes_are(&mut redis, 2);
    let round = load_until(&mut redis, round + 2, "offload_shards_sent", 20);
    check_all(&mut redis, round);
    // A node that is stopped counts as dead until it continues.
    nodes[0].stop();
    check_all(&mut redis, round);
    nodes[0].signal(Signal::CONT);
    nodes_are(&mut redis, 2);
    let round = load_until(&mut redis, round + 1, "offload_shards_sent", 5);
    check_all(&mut redis, round);
    // The server is killed while shards are away. The next server keeps them.
    let round = load_until(&mut redis, round + 1, "offload_shards_sent", 20);
    let mut loaded = Loaded { dir: &dir, manager: &at, server, redis, round };
    for _ in 0..2 {
        loaded.reopen_with_shards(Process::kill);
        let Loaded { redis, round, .. } = &mut loaded;
        assert!(figure(redis, "offload_takeover_records_spared") > 0);
        nodes_are(redis, 2);
        *round = load_until(redis, *round + 1, "offload_shards_sent", 20);
        check_all(redis, *round);
    }
    // The nodes end as well, and the server reads the kept shards from its log.
    let Loaded { mut server, mut redis, round, .. } = loaded;
    let round = load_until_shards_rest(&mut redis, round);
    server.kill();
    let (server, mut redis) = away(&dir, &at);
    drop(nodes);
    check_all(&mut redis, round);
    drop(server);
    let verified = db(&dir, &["verify"]);
    assert!(verified.status.success(), "{}", text(&verified));
}

#[test]
fn kill_of_one_of_two_memory_nodes_rebuilds_nothing_with_two_copies() {
    let base = tempfile::tempdir().unwrap();
    let (_manager, at) = manager_with(&PATIENT);
    let mut nodes = [memory(1, &at), memory(2, &at)];
    let dir = base.path().join("db");
    let more = ["--offload-mode", "memtables", "--shard-copies", "2"];
    let (server, address) = serve(&dir, &at, &more);
    let mut redis = Redis::connect(&address).unwrap();
    nodes_are(&mut redis, 2);
    let round = load_until(&mut redis, 0, "offload_shards_copied", 20);
    let round = load_until_shards_rest(&mut redis, round);
    until("all shards have two copies", || {
        figure(&mut redis, "offload_shards_copies") == figure(&mut redis, "offload_shards_shards")
    });
    nodes[0].kill();
    check_all(&mut redis, round);
    nodes_are(&mut redis, 1);
    check_all(&mut redis, round);
    // Each shard had a copy at the killed node.
    until("the copies are gone", || figure(&mut redis, "offload_shards_copies") == 0);
    assert_eq!(figure(&mut redis, "offload_shards_lost"), 0, "nothing is rebuilt");
    // The node comes back empty, and gets second copies again.
    nodes[0] = memory(1, &at);
    nodes_are(&mut redis, 2);
    let round = load_until(&mut redis, round + 1, "offload_shards_copied", 10);
    check_all(&mut redis, round);
    drop(server);
    let verified = db(&dir, &["verify"]);
    assert!(verified.status.success(), "{}", text(&verified));
}

#[test]
fn server_without_memory_nodes_keeps_its_memtables() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("db");
    let (mut server, mut redis) = away(&dir, "127.0.0.1:9");
    for round in 0..3 {
        load(&mut redis, round);
    }
    check_all(&mut redis, 2);
    assert_eq!(figure(&mut redis, "offload_shards_sent"), 0);
    assert!(server.end().contains("Stopped"));
}

#[test]
fn server_that_stops_in_order_leaves_its_shards_to_the_next_start() {
    let base = tempfile::tempdir().unwrap();
    let (_manager, at) = manager();
    let mut node = Process::start(
        archipelago()
            .args(["node", "memory", "--size", "64MiB", "--block", "1MiB", "--id", "1"])
            .args(["--metrics", "127.0.0.1:0", "--manager", &at]),
    );
    let figures = metrics_of(&mut node);
    let shards = || scrape(&figures).value("archipelago_memory_node_shards", &[]);
    let dir = base.path().join("db");
    let (server, mut redis) = away(&dir, &at);
    nodes_are(&mut redis, 1);
    let round = load_until(&mut redis, 0, "offload_shards_sent", 5);
    let mut loaded = Loaded { dir: &dir, manager: &at, server, redis, round };
    let mut left = None;
    loaded.reopen_with_shards(|server| {
        assert!(server.end().contains("Stopped"));
        left = shards();
    });
    assert!(left.is_some_and(|count| count > 0.0), "the node keeps them for ten minutes");
    let Loaded { mut server, redis, round, .. } = loaded;
    drop(redis);
    assert!(server.end().contains("Stopped"));
    // A server without the mode reads everything from tables and log.
    let (mut server, address) = serve(&dir, &at, &[]);
    check_all(&mut Redis::connect(&address).unwrap(), round);
    server.kill();
    // The shards belong to the server before the last one now, so the node drops them.
    let (_server, mut redis) = away(&dir, &at);
    check_all(&mut redis, round);
    assert_eq!(figure(&mut redis, "offload_takeover_kept"), 0);
    until("the node has none", || shards() == Some(0.0));
}

/// The columns DATABASE and GUARANTEED of `cluster status`.
fn guarantees(manager: &str) -> BTreeMap<String, String> {
    let status = status(manager);
    let table = status.lines().skip_while(|line| !line.starts_with("DATABASE"));
    let rows = table.skip(1).take_while(|line| !line.is_empty());
    let columns = rows.map(|row| {
        // A size is a number and a unit. The first size is that of the used memory.
        let words: Vec<&str> = row.split_whitespace().collect();
        assert!(words.len() > 6, "{status}");
        (words[0].to_owned(), words[4..6].join(" "))
    });
    columns.collect()
}

#[test]
fn servers_share_a_memory_node_by_guarantees() {
    let base = tempfile::tempdir().unwrap();
    let (_manager, at) = manager();
    // Half of the node is for shards.
    let _node = memory(1, &at);
    let flags = ["--offload-mode", "memtables", "--offload-guaranteed-mib", "24"];
    let mut servers = Vec::new();
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    for (name, guaranteed_mib) in [("first", 24), ("second", 8)] {
        let (process, address) = serve(&base.path().join(name), &at, &flags);
        let mut redis = Redis::connect(&address).unwrap();
        nodes_are(&mut redis, 1);
        until("the node says what it guarantees", || {
            figure(&mut redis, "offload_shards_guaranteed_bytes") == guaranteed_mib << 20
        });
        servers.push((process, redis));
        // The row that is new belongs to this server. The guarantees of the others stay.
        let shown = guarantees(&at);
        let new: Vec<&String> = shown.keys().filter(|db| !known.contains_key(*db)).collect();
        assert_eq!(new.len(), 1, "{shown:?} after {known:?}");
        known.insert(new[0].clone(), format!("{guaranteed_mib} MiB"));
        assert_eq!(shown, known);
    }
}

#[test]
fn memory_node_is_drained_while_a_server_uses_it() {
    let base = tempfile::tempdir().unwrap();
    let (_manager, at) = manager_with(&PATIENT);
    let mut nodes = [memory(1, &at), memory(2, &at)];
    let (_server, mut redis) = away(&base.path().join("db"), &at);
    nodes_are(&mut redis, 2);
    let round = load_until(&mut redis, 0, "offload_shards_sent", 20);
    let round = load_until_shards_rest(&mut redis, round);
    let drain = |more: &[&str]| {
        let mut command = archipelago();
        command.args(["cluster", "drain", "--memory", "1", "--manager", &at]).args(more);
        text(&command.output().unwrap())
    };
    let said = drain(&[]);
    let empty = "Memory node 1 has no memtables, and the pool has no blocks: it can be stopped";
    assert!(said.contains(empty), "{said}");
    // The server goes on with the other node, and loses nothing with the drained one.
    let round = load_until(&mut redis, round + 1, "offload_shards_sent", 10);
    nodes[0].kill();
    nodes_are(&mut redis, 1);
    check_all(&mut redis, round);
    assert_eq!(figure(&mut redis, "offload_shards_lost"), 0);
    // A node that is not drained any more gets shards again.
    let said = text(
        &archipelago()
            .args(["cluster", "drain", "--memory", "2", "--no-wait", "--manager", &at])
            .output()
            .unwrap(),
    );
    assert!(said.contains("Memory node 2 is being emptied"), "{said}");
    let status = status(&at);
    assert!(status.contains("(memory node 2 is drained: it takes no memtables)"), "{status}");
    let said = text(
        &archipelago()
            .args(["cluster", "drain", "--memory", "2", "--cancel", "--manager", &at])
            .output()
            .unwrap(),
    );
    assert!(said.contains("Memory node 2 takes memtables again"), "{said}");
    let round = load_until(&mut redis, round + 1, "offload_shards_sent", 5);
    check_all(&mut redis, round);
}

#[test]
fn settings_of_remote_memtables_need_the_mode() {
    for setting in ["--remote-memtables-mib", "--offload-guaranteed-mib", "--key-offset-cache-mib"]
    {
        let said = refused(&["serve", setting, "5"]);
        assert!(said.contains("--offload-mode memtables"), "{said}");
    }
    let said = refused(&["serve", "--shard-copies", "2"]);
    assert!(said.contains("--offload-mode memtables"), "{said}");
    let said = refused(&["serve", "--shard-copies", "3", "--offload-mode", "memtables"]);
    assert!(said.contains("--shard-copies"), "{said}");
    let said = refused(&["serve", "--local-memtables", "auto"]);
    assert!(said.contains("--offload-mode memtables"), "{said}");
    let said = refused(&["serve", "--local-memtables", "17", "--offload-mode", "memtables"]);
    assert!(said.contains("a number up to 16"), "{said}");
}
