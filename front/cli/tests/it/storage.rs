//! A database on storage nodes as operators run it: a cluster of processes, Redis clients, kills,
//! take-overs and restarts.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::Signal;

use crate::cluster::{Process, until};
use crate::held_port::HeldPort;
use crate::store::Redis;
use crate::{archipelago, error_text, text};

/// Length of the leases of owners, in milliseconds. A busy machine may stop an owner for long.
const LEASE_MS: &str = "10000";
/// Length of the lease of an owner whose end a test waits for.
const SHORT_LEASE_MS: &str = "4000";

/// A manager and its storage nodes. All are killed when this is dropped.
pub(crate) struct StorageCluster {
    manager: Process,
    /// The port of the manager, which stays with the cluster while no manager runs.
    port: HeldPort,
    pub(crate) address: String,
    nodes: Vec<Process>,
    pub(crate) dir: tempfile::TempDir,
    secret: Vec<String>,
    /// Further flags of the storage nodes.
    node_flags: Vec<String>,
    /// Length of the lease of the owners that start from now on.
    lease_ms: &'static str,
}

impl StorageCluster {
    /// Starts a cluster of `count` nodes in as many domains, and waits until it is founded.
    pub(crate) fn start(count: u64) -> Self {
        Self::start_with(count, &[])
    }

    /// Starts a cluster as [`StorageCluster::start`] does, whose nodes have these further flags.
    pub(crate) fn start_with(count: u64, node_flags: &[&str]) -> Self {
        let mut cluster = Self::without_nodes(&[]);
        cluster.node_flags = node_flags.iter().map(|flag| (*flag).to_owned()).collect();
        cluster.start_nodes(count);
        until("the cluster is founded", || cluster.status().contains("root set: nodes"));
        cluster
    }

    fn without_nodes(secret: &[String]) -> Self {
        let port = HeldPort::take();
        let (manager, address) = manager(&port.address(), secret);
        let (nodes, dir) = (Vec::new(), tempfile::tempdir().unwrap());
        let (secret, node_flags, lease_ms) = (secret.to_vec(), Vec::new(), LEASE_MS);
        Self { manager, port, address, nodes, dir, secret, node_flags, lease_ms }
    }

    fn start_nodes(&mut self, count: u64) {
        self.nodes = (1..=count).map(|number| self.node(number)).collect();
    }

    /// Starts the storage node `number`, with the data that it had.
    fn node(&self, number: u64) -> Process {
        let dir = self.dir.path().join(format!("node{number}"));
        let number = number.to_string();
        let mut process = Process::start(
            archipelago()
                .args(["node", "storage", "--id", &number, "--domain", &format!("rack{number}")])
                .args(["--manager", &self.address, "--dir"])
                .arg(dir)
                .args(&self.node_flags)
                .args(&self.secret),
        );
        let said = process.line();
        assert!(said.starts_with(&format!("Storage node {number} ")), "{said}");
        process
    }

    /// Kills the storage node `number`, with SIGKILL.
    pub(crate) fn kill(&mut self, number: usize) {
        self.nodes[number - 1].kill();
    }

    /// Ends the storage node `number` in order. Returns what it has printed.
    pub(crate) fn end(&mut self, number: usize) -> String {
        self.nodes[number - 1].end()
    }

    /// Starts a killed storage node again.
    pub(crate) fn revive(&mut self, number: usize) {
        self.nodes[number - 1] = self.node(number as u64);
    }

    pub(crate) fn command(&self, words: &[&str]) -> Output {
        archipelago().args(words).args(&self.secret).output().unwrap()
    }

    pub(crate) fn status(&self) -> String {
        text(&self.command(&["cluster", "status", "--manager", &self.address]))
    }

    /// Runs a tool on a volume.
    pub(crate) fn db(&self, volume: &str, tool: &[&str]) -> Output {
        let flags = ["db", "--store", &self.address, "--volume", volume];
        self.command(&[&flags[..], tool].concat())
    }

    /// Serves a volume. Returns the process and its address for Redis clients.
    pub(crate) fn serve(&self, volume: &str, more: &[&str]) -> (Process, String) {
        self.serve_by(&mut archipelago(), volume, more)
    }

    fn serve_by(&self, program: &mut Command, volume: &str, more: &[&str]) -> (Process, String) {
        let mut process = Process::start(
            program
                .args(["serve", "--listen", "127.0.0.1:0", "--store", &self.address])
                .args(["--volume", volume, "--volume-lease-ms", self.lease_ms])
                .args(more)
                .args(&self.secret),
        );
        let said = process.line();
        assert!(said.starts_with(&format!("Archipelago serves volume {volume} of ")), "{said}");
        let address = said.rsplit(' ').next().unwrap().to_owned();
        (process, address)
    }

    /// The error of a `serve` that fails.
    fn refused(&self, volume: &str, more: &[&str]) -> String {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--store", &self.address];
        error_text(&self.command(&[&serve[..], &["--volume", volume], more].concat()))
    }
}

/// Starts a manager of storage nodes. Returns its address.
fn manager(at: &str, secret: &[String]) -> (Process, String) {
    let mut process =
        Process::start(archipelago().args(["node", "manager", "--listen", at]).args(secret));
    let said = process.line();
    let address = said.rsplit("tcp:").next().unwrap().to_owned();
    assert!(said.starts_with("Manager listens on tcp:"), "{said}");
    (process, address)
}

/// Keys with values of one length, so that a test can say what must be there.
#[derive(Clone, Copy)]
struct Keys {
    value_bytes: usize,
}

/// Keys with small values.
const SMALL: Keys = Keys { value_bytes: 700 };
/// Keys with values of which a few hundred make an erasure-coded file.
const LARGE: Keys = Keys { value_bytes: 16 << 10 };

impl Keys {
    fn value(self, number: usize) -> String {
        let mut value = format!("coral{number};").repeat(self.value_bytes / 6);
        value.truncate(self.value_bytes);
        value
    }

    /// Sets the keys of a range, each by a command of its own.
    fn set(self, redis: &mut Redis, numbers: Range<usize>) {
        for number in numbers {
            let (key, value) = (format!("reef:{number}"), self.value(number));
            assert_eq!(redis.ask_long(&["SET", &key, &value]).unwrap(), "+OK", "{key}");
        }
    }

    /// Checks that the first `count` keys have their values, and that there are no others.
    fn check(self, redis: &mut Redis, count: usize) {
        for number in 0..count {
            let key = format!("reef:{number}");
            assert_eq!(redis.ask_long(&["GET", &key]).unwrap(), self.value(number), "{key}");
        }
        assert_eq!(redis.ask_long(&["DBSIZE"]).unwrap(), format!(":{count}"));
    }
}

/// A settings file with separated values, and with memtables of this size.
fn settings(dir: &Path, write_buffer_bytes: usize) -> PathBuf {
    let file = dir.join("settings.toml");
    let text = format!(
        "[families.default]\nwrite_buffer_bytes = {write_buffer_bytes}\n\
         value_separation_bytes = 512\n"
    );
    #[expect(clippy::disallowed_methods, reason = "an operator's file")]
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn volume_survives_kills_of_nodes_owner_and_everything() {
    let mut cluster = StorageCluster::start(6);
    let file = settings(cluster.dir.path(), 64 << 10);
    let config = ["--config", file.to_str().unwrap()];
    let (mut owner, at) = cluster.serve("reef", &config);
    let mut redis = Redis::connect(&at).unwrap();
    SMALL.set(&mut redis, 0..300);
    cluster.kill(1);
    SMALL.set(&mut redis, 300..600);
    cluster.kill(4);
    SMALL.check(&mut redis, 600);
    SMALL.set(&mut redis, 600..700);
    cluster.revive(1);
    cluster.revive(4);
    until("both nodes are back", || {
        let status = cluster.status();
        status.contains("Domains: 6 up") && !status.contains("Debt")
    });
    // The owner is killed, and another one takes over without waiting for the lease.
    owner.kill();
    let forms = ["--take-over", "--log-writing", "striped", "--redundancy", "coded"];
    cluster.lease_ms = SHORT_LEASE_MS;
    let (mut owner, at) = cluster.serve("reef", &[&config[..], &forms].concat());
    let mut redis = Redis::connect(&at).unwrap();
    SMALL.check(&mut redis, 700);
    SMALL.set(&mut redis, 700..800);
    // All processes are killed.
    owner.kill();
    for number in 1..=6 {
        cluster.kill(number);
    }
    cluster.manager.kill();
    cluster.manager = manager(&cluster.port.address(), &[]).0;
    for number in 1..=6 {
        cluster.revive(number);
    }
    // This owner waits for the end of the lease.
    cluster.lease_ms = LEASE_MS;
    let (mut owner, at) = cluster.serve("reef", &config);
    let mut redis = Redis::connect(&at).unwrap();
    SMALL.check(&mut redis, 800);
    drop(redis);
    let rest = owner.end();
    assert!(rest.ends_with("Stopped\n"), "{rest}");
    let verified = text(&cluster.db("reef", &["verify"]));
    assert!(verified.ends_with("all undamaged\n"), "{verified}");
}

#[test]
fn reads_go_on_after_the_loss_of_any_two_nodes() {
    let mut cluster = StorageCluster::start(6);
    let file = settings(cluster.dir.path(), 16 << 20);
    let config = ["--config", file.to_str().unwrap()];
    let (mut owner, at) = cluster.serve("reef", &config);
    LARGE.set(&mut Redis::connect(&at).unwrap(), 0..200);
    owner.end();
    text(&cluster.db("reef", &["compact"]));
    // The nodes report after the command has ended.
    until("value files are counted", || cluster.status().contains(" values "));
    for (first, second) in [(1, 2), (3, 6)] {
        cluster.kill(first);
        cluster.kill(second);
        // The root set has five nodes, so a majority of it is left.
        let (mut owner, at) = cluster.serve("reef", &config);
        LARGE.check(&mut Redis::connect(&at).unwrap(), 200);
        owner.end();
        cluster.revive(first);
        cluster.revive(second);
        until("both nodes are back", || cluster.status().contains("Domains: 6 up"));
    }
}

#[test]
fn second_owner_is_refused_until_it_takes_over() {
    let cluster = StorageCluster::start(3);
    let log = cluster.dir.path().join("first.log");
    #[expect(clippy::disallowed_methods, reason = "the messages of a process")]
    let messages = std::fs::File::create(&log).unwrap();
    let (mut first, at) = cluster.serve_by(archipelago().stderr(messages), "reef", &[]);
    let mut redis = Redis::connect(&at).unwrap();
    SMALL.set(&mut redis, 0..20);
    let pid = first.id().to_string();
    for busy in [cluster.refused("reef", &[]), error_text(&cluster.db("reef", &["stats"]))] {
        assert!(busy.contains("volume reef belongs to"), "{busy}");
        assert!(busy.contains(&format!("process {pid} ")), "{busy}");
        assert!(busy.contains("--take-over"), "{busy}");
    }
    SMALL.check(&mut redis, 20);
    until("the status names the owner", || {
        let status = cluster.status();
        status.contains("reef") && status.contains(&format!("process {pid} "))
    });
    let (mut second, at) = cluster.serve("reef", &["--take-over"]);
    let mut taken = Redis::connect(&at).unwrap();
    SMALL.check(&mut taken, 20);
    SMALL.set(&mut taken, 20..30);
    // The old owner acknowledges no write any more, and ends with the reason.
    if let Ok(answer) = redis.ask_long(&["SET", "reef:lost", "1"]) {
        assert!(answer.starts_with('-'), "{answer}");
    }
    assert_eq!(first.wait().code(), Some(1));
    let why = std::fs::read_to_string(&log).unwrap();
    assert!(why.contains("lost its volume"), "{why}");
    SMALL.check(&mut taken, 30);
    drop(taken);
    second.end();
}

#[test]
fn stopped_owner_answers_no_old_read_after_its_lease() {
    let mut cluster = StorageCluster::start(3);
    cluster.lease_ms = SHORT_LEASE_MS;
    let (mut first, at) = cluster.serve("reef", &[]);
    let mut old = Redis::connect(&at).unwrap();
    assert_eq!(old.ask_long(&["SET", "a", "old"]).unwrap(), "+OK");
    first.stop();
    // The next owner waits for the end of the lease, because it cannot know that the first owner is
    // stopped.
    cluster.lease_ms = LEASE_MS;
    let (mut second, at) = cluster.serve("reef", &[]);
    let mut new = Redis::connect(&at).unwrap();
    assert_eq!(new.ask_long(&["GET", "a"]).unwrap(), "old");
    assert_eq!(new.ask_long(&["SET", "a", "new"]).unwrap(), "+OK");
    first.signal(Signal::CONT);
    for _ in 0..100 {
        let Ok(answer) = old.ask_long(&["GET", "a"]) else { break };
        assert!(answer.starts_with('-'), "an old value was read: {answer}");
    }
    assert_eq!(first.wait().code(), Some(1));
    assert_eq!(new.ask_long(&["GET", "a"]).unwrap(), "new");
    drop((old, new));
    second.end();
}

#[test]
fn owner_without_a_majority_of_the_root_set_answers_no_read() {
    let mut cluster = StorageCluster::start(3);
    cluster.lease_ms = SHORT_LEASE_MS;
    let (mut owner, at) = cluster.serve("reef", &[]);
    let mut redis = Redis::connect(&at).unwrap();
    assert_eq!(redis.ask_long(&["SET", "a", "1"]).unwrap(), "+OK");
    cluster.kill(1);
    cluster.kill(2);
    until("the lease has ended", || {
        let answer = redis.ask_long(&["GET", "a"]).unwrap();
        assert!(answer == "1" || answer.starts_with("-TRYAGAIN "), "{answer}");
        answer != "1"
    });
    until("the status counts the nodes", || cluster.status().contains("1 of 3 root nodes are up"));
    cluster.revive(1);
    cluster.revive(2);
    until("the lease is renewed", || redis.ask_long(&["GET", "a"]).unwrap() == "1");
    until("writes go on", || redis.ask_long(&["SET", "a", "2"]).unwrap() == "+OK");
    drop(redis);
    owner.end();
    assert_eq!(text(&cluster.db("reef", &["get", "a"])), "2\n");
}

#[test]
fn tools_work_on_a_closed_volume() {
    let cluster = StorageCluster::start(3);
    let (mut owner, at) = cluster.serve("reef", &[]);
    let mut redis = Redis::connect(&at).unwrap();
    assert_eq!(redis.ask_long(&["MSET", "a", "1", "b", "2"]).unwrap(), "+OK");
    drop(redis);
    owner.end();
    until("the status shows the end", || cluster.status().contains("(closed)"));
    assert_eq!(text(&cluster.db("reef", &["get", "a"])), "1\n");
    text(&cluster.db("reef", &["put", "c", "3"]));
    text(&cluster.db("reef", &["delete", "b"]));
    assert_eq!(text(&cluster.db("reef", &["scan"])), "a\t1\nc\t3\n");
    text(&cluster.db("reef", &["compact"]));
    assert!(text(&cluster.db("reef", &["stats"])).contains("write amplification"));
    assert!(text(&cluster.db("reef", &["values"])).contains("Total: "));
    let manifest = text(&cluster.db("reef", &["manifest", "dump"]));
    assert!(manifest.contains("create column family 0"), "{manifest}");
    assert!(text(&cluster.db("reef", &["verify"])).ends_with("all undamaged\n"));
    for tool in [&["tiers"][..], &["repair"], &["checkpoint", "copy"], &["restore", "copy"]] {
        let why = error_text(&cluster.db("reef", tool));
        assert!(why.contains("a database in a volume has no"), "{tool:?}: {why}");
    }
    let unknown = error_text(&cluster.db("atoll", &["stats"]));
    assert!(unknown.contains("no volume atoll (it has reef)"), "{unknown}");
    let bad = error_text(&cluster.db("a/b", &["stats"]));
    assert!(bad.contains("is no name of a volume"), "{bad}");
    let both = error_text(&cluster.db("reef", &["--dir", "data", "stats"]));
    assert!(both.contains("name two databases"), "{both}");
    // A checkpoint in another volume shares the tables, and outlives the first volume.
    let copy = ["checkpoint", "--to-volume", "reef-copy"];
    text(&cluster.db("reef", &copy));
    text(&cluster.db("reef", &["put", "d", "4"]));
    let exists = error_text(&cluster.db("reef", &copy));
    assert!(exists.contains("volume reef-copy exists"), "{exists}");
    assert!(text(&cluster.db("reef", &["destroy"])).contains("is destroyed"));
    let gone = error_text(&cluster.db("reef", &["stats"]));
    assert!(gone.contains("no volume reef (it has reef-copy)"), "{gone}");
    assert_eq!(text(&cluster.db("reef-copy", &["scan"])), "a\t1\nc\t3\n");
}

#[test]
fn wrong_starts_say_what_is_missing() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("settings.toml");
    #[expect(clippy::disallowed_methods, reason = "an operator's file")]
    std::fs::write(&file, "[[tiers]]\npath = \"device\"\ncreate = true\n").unwrap();
    // A port on which nothing listens.
    let port = HeldPort::take();
    let address = port.address();
    let serve = |more: &[&str]| {
        let output = archipelago().args(["serve", "--listen", "127.0.0.1:0"]).args(more).output();
        error_text(&output.unwrap())
    };
    let volume = ["--store", &address, "--volume", "reef"];
    let tiers = [&volume[..], &["--config", file.to_str().unwrap()]].concat();
    for (flags, why) in [
        (&volume[..2], "give --volume NAME"),
        (&volume[2..], "give --store HOST:PORT"),
        (&["--take-over"], "need a volume"),
        (&["--store", "nowhere", "--volume", "reef"], "--store nowhere"),
        (&tiers, "[[tiers]]"),
        (&[&volume[..], &["--dir", "data"]].concat(), "--dir"),
        (&[&volume[..], &["--checkpoints", "copies"]].concat(), "--checkpoints"),
        (&[&volume[..], &["--engine", "flexkv"]].concat(), "--store is for the engine lsm"),
        (&[&volume[..], &["--secret-file", "/missing/secret"]].concat(), "/missing/secret"),
        (&volume, &address),
    ] {
        let said = serve(flags);
        assert!(said.contains(why), "{flags:?}: {said}");
    }
    let node = |more: &[&str]| {
        let dir = root.path().join("node");
        let output = archipelago().args(["node", "storage", "--dir"]).arg(dir).args(more).output();
        error_text(&output.unwrap())
    };
    for (flags, why) in [
        (&["--listen", "0.0.0.0:0"][..], "--advertise HOST:PORT"),
        (&["--listen", "0.0.0.0:0", "--advertise", "10.0.0.1:7701"], "--secret-file FILE"),
        (&["--size-max", "lots"], "GiB"),
        (&["--id", "0"], "--id"),
    ] {
        let said = node(flags);
        assert!(said.contains(why), "{flags:?}: {said}");
    }
}

#[test]
fn cluster_without_enough_domains_says_so() {
    let mut cluster = StorageCluster::without_nodes(&[]);
    cluster.start_nodes(1);
    until("the node has registered", || cluster.status().contains("no cluster yet"));
    let status = cluster.status();
    assert!(status.contains("3 domains") && status.contains("rack1"), "{status}");
    let why = cluster.refused("reef", &[]);
    assert!(why.contains("domains"), "{why}");
}

#[test]
fn members_of_a_storage_cluster_share_a_secret() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("secret").display().to_string();
    text(&archipelago().args(["cluster", "secret", &file]).output().unwrap());
    let secret = ["--secret-file".to_owned(), file];
    let mut cluster = StorageCluster::without_nodes(&secret);
    cluster.start_nodes(3);
    until("the cluster is founded", || cluster.status().contains("root set: nodes"));
    let (mut owner, at) = cluster.serve("reef", &[]);
    SMALL.set(&mut Redis::connect(&at).unwrap(), 0..5);
    owner.end();
    cluster.secret.clear();
    let why = cluster.refused("reef", &[]);
    assert!(why.contains("this client has none") && why.contains("--secret-file FILE"), "{why}");
    let why = error_text(&cluster.db("reef", &["stats"]));
    assert!(why.contains("this client has none"), "{why}");
    cluster.secret = secret.to_vec();
    assert_eq!(text(&cluster.db("reef", &["get", "reef:1"])), format!("{}\n", SMALL.value(1)));
}

#[test]
fn cluster_up_keeps_data_of_storage_nodes() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("cluster");
    for round in 0..2 {
        let mut up = Process::start(
            archipelago()
                .args(["cluster", "up", "--storage", "3", "--manager", "127.0.0.1:0", "--dir"])
                .arg(&dir),
        );
        let first = up.line();
        let manager = first.split_whitespace().nth(1).unwrap().to_owned();
        for number in 1..=3 {
            let line = up.line();
            assert!(line.starts_with(&format!("Storage node {number} ")), "{line}");
        }
        assert!(up.line().contains("cluster status --manager"));
        let usage = up.line();
        assert!(usage.contains(&format!("serve --store {manager} --volume NAME")), "{usage}");
        let status = || {
            let output = archipelago().args(["cluster", "status", "--manager", &manager]).output();
            text(&output.unwrap())
        };
        until("the cluster is founded", || status().contains("root set: nodes"));
        let mut served = Process::start(
            archipelago()
                .args(["serve", "--listen", "127.0.0.1:0", "--store", &manager])
                .args(["--volume", "reef"]),
        );
        let said = served.line();
        let mut redis = Redis::connect(said.rsplit(' ').next().unwrap()).unwrap();
        SMALL.check(&mut redis, 10 * round);
        SMALL.set(&mut redis, 10 * round..10 * round + 10);
        drop(redis);
        served.end();
        assert!(!status().contains("BLOCKS"), "no pool is shown: {}", status());
        let rest = up.end();
        assert!(rest.ends_with("Stopped\n"), "{rest}");
    }
    let none = archipelago().args(["cluster", "up", "--storage", "3", "--compute", "1"]).output();
    assert!(error_text(&none.unwrap()).contains("give --memory N"));
}

#[test]
fn nodes_are_scrubbed_and_drained_by_commands() {
    let cluster = StorageCluster::start(3);
    let (mut owner, at) = cluster.serve("reef", &[]);
    SMALL.set(&mut Redis::connect(&at).unwrap(), 0..20);
    owner.end();
    text(&cluster.db("reef", &["compact"]));
    let command =
        |words: &[&str]| cluster.command(&[words, &["--manager", &cluster.address]].concat());
    let said = text(&command(&["cluster", "scrub", "2"]));
    assert!(said.contains("0 damaged chunks"), "{said}");
    let said = text(&command(&["cluster", "drain", "3", "--no-wait"]));
    assert!(said.contains("is being emptied"), "{said}");
    until("the node drains", || cluster.status().contains(" draining "));
    text(&command(&["cluster", "drain", "3", "--cancel"]));
    until("the node is used again", || !cluster.status().contains(" draining "));
    for words in [&["scrub", "9"][..], &["drain", "9"], &["forget", "--storage", "9"]] {
        let why = error_text(&command(&[&["cluster"], words].concat()));
        assert!(why.contains("no storage node 9"), "{why}");
    }
    let why = error_text(&command(&["cluster", "forget", "--storage", "1"]));
    assert!(why.contains("cannot be given up"), "{why}");
}
