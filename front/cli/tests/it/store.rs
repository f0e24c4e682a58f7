//! The store over remote memory as operators run it: a cluster with compute nodes, Redis clients,
//! and processes that are killed.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::{Process, until};
use crate::{archipelago, text};

/// A connection that speaks RESP.
pub(crate) struct Redis(BufReader<TcpStream>);

impl Redis {
    pub(crate) fn connect(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a command and reads a reply that is no list: the line without its end, or `nil`.
    fn ask(&mut self, command: &str) -> io::Result<String> {
        self.send(&[command.to_owned()])?;
        self.reply()
    }

    /// Sends a command like `ask`, again while the reply is that the client may try again.
    fn ask_again(&mut self, command: &str) -> String {
        let mut told = String::new();
        until(command, || {
            told = self.ask(command).unwrap();
            !told.starts_with("-TRYAGAIN ")
        });
        told
    }

    /// Sends commands in one write.
    fn send(&mut self, commands: &[String]) -> io::Result<()> {
        let mut all = commands.join("\r\n");
        all.push_str("\r\n");
        self.0.get_mut().write_all(all.as_bytes())
    }

    /// Sends a command with arguments of any length and reads its reply.
    pub(crate) fn ask_long(&mut self, arguments: &[&str]) -> io::Result<String> {
        let mut all = format!("*{}\r\n", arguments.len());
        for argument in arguments {
            all.push_str(&format!("${}\r\n{argument}\r\n", argument.len()));
        }
        self.0.get_mut().write_all(all.as_bytes())?;
        self.reply()
    }

    /// Sends a command like `ask_again`, and reads a reply that is a list of what `ask` reads.
    fn list(&mut self, command: &str) -> Vec<String> {
        let head = self.ask_again(command);
        let count: usize = head.strip_prefix('*').expect(&head).parse().unwrap();
        (0..count).map(|_| self.reply().unwrap()).collect()
    }

    /// The next cursor and the keys of a step of SCAN, or its error. The command is sent like
    /// `ask_again`.
    fn scan(&mut self, command: &str) -> Result<(String, Vec<String>), String> {
        let head = self.ask_again(command);
        if head != "*2" {
            return Err(head);
        }
        let (cursor, head) = (self.reply().unwrap(), self.reply().unwrap());
        let count: usize = head.strip_prefix('*').expect(&head).parse().unwrap();
        Ok((cursor, (0..count).map(|_| self.reply().unwrap()).collect()))
    }

    fn reply(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end().to_owned();
        match line.strip_prefix('$').map(str::parse::<usize>) {
            None => Ok(line),
            Some(Err(_)) => Ok("nil".to_owned()),
            Some(Ok(bytes)) => {
                let mut value = vec![0; bytes + 2];
                self.0.read_exact(&mut value)?;
                value.truncate(bytes);
                Ok(String::from_utf8_lossy(&value).into_owned())
            }
        }
    }
}

/// A cluster of processes, as its first lines describe it.
struct Cluster {
    process: Process,
    manager: String,
    /// Process ids of the memory nodes.
    memory: Vec<i32>,
    /// Address for Redis clients and process id of each compute node.
    compute: Vec<(String, i32)>,
}

fn pid_in(line: &str) -> i32 {
    line.rsplit(' ').next().unwrap().trim_end_matches(')').parse().unwrap()
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// Sizes of a test cluster.
struct ClusterShape {
    compute: usize,
    memory: usize,
    /// Memory of each memory node.
    size: &'static str,
    block: &'static str,
}

impl Default for ClusterShape {
    fn default() -> Self {
        Self { compute: 1, memory: 1, size: "48MiB", block: "1MiB" }
    }
}

impl Cluster {
    fn up(compute: usize, memory: usize) -> Self {
        Self::sized(&ClusterShape { compute, memory, ..ClusterShape::default() })
    }

    /// Starts a cluster of the given shape. It declares nodes dead only after seconds, because a
    /// busy machine may stop one for long.
    fn sized(shape: &ClusterShape) -> Self {
        let ClusterShape { compute, memory, size, block } = *shape;
        let mut process = Process::start(
            archipelago()
                .args(["cluster", "up", "--size", size, "--block", block])
                .args(["--partitions", "64", "--offload", "500"])
                .args(["--memory", &memory.to_string(), "--compute", &compute.to_string()])
                .args(["--manager", "127.0.0.1:0", "--resp", "127.0.0.1:0"])
                .args(["--lease-ms", "2000", "--node-lease-ms", "1500"]),
        );
        let word = |line: &str, at: usize| line.split_whitespace().nth(at).unwrap().to_owned();
        let manager = word(&process.line(), 1);
        let memory = (0..memory).map(|_| pid_in(&process.line())).collect();
        let node = |line: String| (word(&line, 3), pid_in(&line));
        let compute = (0..compute).map(|_| node(process.line())).collect();
        Self { process, manager, memory, compute }
    }

    fn status(&self) -> String {
        text(
            &archipelago()
                .args(["cluster", "status", "--manager", &self.manager])
                .output()
                .unwrap(),
        )
    }

    /// Starts the first memory node again.
    fn memory_again(&self) -> Process {
        let mut memory = Process::start(
            archipelago()
                .args(["node", "memory", "--id", "1", "--size", "48MiB", "--block", "1MiB"])
                .args(["--manager", &self.manager]),
        );
        assert!(memory.line().starts_with("Memory node 1 lends "));
        memory
    }

    /// Starts one more compute node. Returns its address for Redis clients.
    fn one_more(&self) -> (Process, String) {
        let mut process = Process::start(
            archipelago()
                .args(["serve", "--engine", "flexkv", "--listen", "127.0.0.1:0"])
                .args(["--manager", &self.manager]),
        );
        let said = process.line();
        let address = said.rsplit(' ').next().unwrap().to_owned();
        assert!(said.starts_with("Archipelago serves the store of the cluster at "), "{said}");
        (process, address)
    }
}

/// Whether a reply to TTL lies in a range of seconds such as "90 to 100". A busy machine may stop
/// the test for seconds after the expiry was set.
fn has_ttl(answered: &str, range: &str) -> bool {
    let Some((least, most)) = range.split_once(" to ") else { return false };
    let (least, most): (u64, u64) = (least.parse().unwrap(), most.parse().unwrap());
    let seconds: Option<u64> = answered.strip_prefix(':').and_then(|left| left.parse().ok());
    seconds.is_some_and(|seconds| (least..=most).contains(&seconds))
}

#[test]
fn value_set_at_one_compute_node_is_read_at_another() {
    let mut cluster = Cluster::up(2, 3);
    let mut one = Redis::connect(&cluster.compute[0].0).unwrap();
    let mut other = Redis::connect(&cluster.compute[1].0).unwrap();
    for round in 0..64 {
        assert_eq!(one.ask(&format!("SET reef:{round} coral{round}")).unwrap(), "+OK");
        assert_eq!(other.ask(&format!("GET reef:{round}")).unwrap(), format!("coral{round}"));
        assert_eq!(other.ask("INCR visits").unwrap(), format!(":{}", 2 * round + 1));
        assert_eq!(one.ask("INCR visits").unwrap(), format!(":{}", 2 * round + 2));
    }
    for (command, told) in [
        ("SET a 1 NX", "+OK"),
        ("SET a 2 NX", "nil"),
        ("SET a 3 XX GET", "1"),
        ("APPEND a 45", ":3"),
        ("STRLEN a", ":3"),
        ("GETRANGE a 1 -1", "45"),
        ("EXPIRE a 100", ":1"),
        ("TTL a", "90 to 100"),
        ("PERSIST a", ":1"),
        ("TTL a", ":-1"),
        ("GETEX a PX 100000", "345"),
        ("GETSET a new", "345"),
        ("GETDEL a", "new"),
        ("GET a", "nil"),
        ("MSET b 1 c 2 d 3", "+OK"),
        ("EXISTS b c d e", ":3"),
        ("DEL b c e", ":2"),
        ("SET short lived PX 1", "+OK"),
    ] {
        let answered = one.ask(command).unwrap();
        assert!(answered == told || has_ttl(&answered, told), "{command}: {answered}, not {told}");
    }
    until("what has expired is gone on every node", || other.ask("GET short").unwrap() == "nil");
    for command in ["RANGE - +", "DELRANGE [a +", "MSETNX x 1"] {
        let told = one.ask(command).unwrap();
        assert!(told.starts_with("-ERR unsupported: "), "{command}: {told}");
    }
    // No command that was sent after MULTI is executed.
    let mut pooled = Redis::connect(&cluster.compute[0].0).unwrap();
    pooled.send(&["MULTI", "SET d 9", "EXEC"].map(str::to_owned)).unwrap();
    let told = pooled.reply().unwrap();
    assert!(told.starts_with("-ERR unsupported: "), "{told}");
    assert_eq!(pooled.reply().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(one.ask("GET d").unwrap(), "3");
    assert!(one.ask("INFO").unwrap().contains("\r\nengine:flexkv\r\n"));
    let told = cluster.status();
    for word in ["Store: 64 partitions, 32 of them", "wanted: 50.0 %", "at rest", "reads ", "shm:"]
    {
        assert!(told.contains(word), "{word}: {told}");
    }
    drop((one, other));
    let rest = cluster.process.end();
    assert!(rest.ends_with("Stopped\n"), "{rest}");
}

#[test]
fn keys_of_all_partitions_are_counted_and_flushed() {
    let mut cluster = Cluster::up(2, 3);
    let mut one = Redis::connect(&cluster.compute[0].0).unwrap();
    let mut other = Redis::connect(&cluster.compute[1].0).unwrap();
    assert_eq!(one.ask("DBSIZE").unwrap(), ":0");
    for number in 0..500 {
        assert_eq!(one.ask(&format!("SET key:{number} {number}")).unwrap(), "+OK");
    }
    assert_eq!(one.ask("DEL key:7 key:8").unwrap(), ":2");
    // Both serve a part of the index, and neither serves all of it.
    assert_eq!(
        (one.ask("DBSIZE").unwrap(), other.ask("DBSIZE").unwrap()),
        (":498".into(), ":498".into())
    );
    assert_eq!(other.ask("FLUSHALL").unwrap(), "+OK");
    assert_eq!(
        (one.ask("GET key:9").unwrap(), one.ask("DBSIZE").unwrap()),
        ("nil".into(), ":0".into())
    );
    drop((one, other));
    let rest = cluster.process.end();
    assert!(rest.ends_with("Stopped\n"), "{rest}");
}

#[test]
fn scan_continues_at_another_node_after_a_kill() {
    let mut cluster = Cluster::up(2, 3);
    let [mut one, mut other] = [0, 1].map(|at| Redis::connect(&cluster.compute[at].0).unwrap());
    let mut all: Vec<String> = (0..600).map(|number| format!("key:{number}")).collect();
    for key in &all {
        assert_eq!(one.ask(&format!("SET {key} coral")).unwrap(), "+OK");
    }
    for number in 0..50 {
        let set = format!("SET gone:{number} coral PX 1");
        assert_eq!(one.ask(&set).unwrap(), "+OK");
    }
    until("what has expired is gone", || other.ask("GET gone:49").unwrap() == "nil");
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    for _ in 0..8 {
        for redis in [&mut one, &mut other] {
            let step = redis.scan(&format!("SCAN {cursor} COUNT 20")).unwrap();
            found.extend(step.1);
            cursor = step.0;
        }
    }
    // A step reads 20 to 27 records, some of which may have expired.
    assert!(cursor != "0" && (16 * 20 - 50..=16 * 27).contains(&found.len()), "{}", found.len());
    kill(cluster.compute[1].1);
    for number in 0..600 {
        let set = format!("SET later:{number} coral");
        until("writes go on", || one.ask(&set).unwrap() == "+OK");
    }
    until("the iteration ends", || {
        // Commands on partitions of the dead node wait, and fail in the end. They are repeated.
        let step = one.scan(&format!("SCAN {cursor} MATCH key:* COUNT 50")).unwrap();
        found.extend(step.1);
        cursor = step.0;
        cursor == "0"
    });
    found.sort_unstable();
    found.dedup();
    all.sort_unstable();
    assert_eq!(found, all);
    assert_eq!(one.scan("SCAN 0 COUNT 100000 TYPE list").unwrap(), ("0".to_owned(), Vec::new()));
    let refused = one.scan("SCAN 281474976710656").unwrap_err();
    assert!(refused.contains("start again with SCAN 0"), "{refused}");
    let mut some = one.list("KEYS key:1?");
    some.sort_unstable();
    assert_eq!(some, (10..20).map(|number| format!("key:{number}")).collect::<Vec<_>>());
    assert_eq!(one.list("KEYS nothing*"), [""; 0]);
    assert_eq!(one.list("KEYS *").len(), 1200);
    assert!(one.ask_again("RANDOMKEY").contains(':'));
    let told = one.ask_again("INFO keyspace");
    // Beyond 1,000 records the figures are those of a sample, within 5 %.
    let keys = told.split("db0:keys=").nth(1).and_then(|rest| rest.split(',').next());
    let keys: u64 = keys.unwrap_or_else(|| panic!("{told}")).parse().unwrap();
    assert!((1140..=1260).contains(&keys), "{told}");
    drop((one, other));
    let rest = cluster.process.end();
    assert!(rest.ends_with("Stopped\n"), "{rest}");
}

#[test]
fn values_are_renamed_and_copied_with_their_expiry() {
    let mut cluster = Cluster::up(2, 3);
    let [mut one, mut other] = [0, 1].map(|at| Redis::connect(&cluster.compute[at].0).unwrap());
    for (command, told) in [
        ("RENAME a b", "-ERR no such key"),
        ("RANDOMKEY", "nil"),
        ("SET a 1 EX 1000", "+OK"),
        ("SET b 2", "+OK"),
        ("RENAMENX a b", ":0"),
        ("GET b", "2"),
        ("RENAME a b", "+OK"),
        ("EXISTS a", ":0"),
        ("GET b", "1"),
        ("TTL b", "990 to 1000"),
        ("RENAMENX b c", ":1"),
        ("EXISTS a b", ":0"),
        ("RENAME c c", "+OK"),
        ("RENAMENX c c", ":0"),
        ("COPY c c", "-ERR source and destination objects are the same"),
        ("COPY nothing d", ":0"),
        ("COPY c d", ":1"),
        ("TTL d", "990 to 1000"),
        ("SET d 5", "+OK"),
        ("COPY c d", ":0"),
        ("COPY c d REPLACE", ":1"),
        ("MGET c d", "*2"),
    ] {
        let answered = one.ask(command).unwrap();
        assert!(answered == told || has_ttl(&answered, told), "{command}: {answered}, not {told}");
    }
    assert_eq!((one.reply().unwrap(), one.reply().unwrap()), ("1".into(), "1".into()));
    assert_eq!(other.ask("GET d").unwrap(), "1");
    let mut keys = other.list("KEYS *");
    keys.sort_unstable();
    assert_eq!(keys, ["c", "d"]);
    let told = other.ask("INFO keyspace").unwrap();
    assert!(told.contains("db0:keys=2,expires=2,avg_ttl=9"), "{told}");
    drop((one, other));
    let rest = cluster.process.end();
    assert!(rest.ends_with("Stopped\n"), "{rest}");
}

#[test]
fn longest_value_fits_one_block() {
    let shape =
        ClusterShape { compute: 2, size: "256MiB", block: "16MiB", ..ClusterShape::default() };
    let cluster = Cluster::sized(&shape);
    let [mut one, mut other] = [0, 1].map(|at| Redis::connect(&cluster.compute[at].0).unwrap());
    // The lengths exceed what a slot records (16 KiB), what a batch carries (8 MiB), and fill a
    // block with header and key.
    for bytes in [20 << 10, 9 << 20, (16 << 20) - 52] {
        let value: String = (0..bytes).map(|at| char::from(b'a' + (at / 7 % 26) as u8)).collect();
        assert_eq!(one.ask_long(&["SET", "reef", &value]).unwrap(), "+OK");
        for redis in [&mut other, &mut one] {
            assert!(redis.ask("GET reef").unwrap() == value, "{bytes} bytes");
        }
    }
    let longer = "x".repeat((16 << 20) - 51);
    let refused = one.ask_long(&["SET", "reef", &longer]).unwrap();
    assert!(refused.contains("do not fit a block of 16777216 bytes"), "{refused}");
    assert_eq!(other.ask("STRLEN reef").unwrap(), format!(":{}", (16 << 20) - 52));
}

#[test]
fn pipeline_is_answered_in_order_and_sees_its_own_writes() {
    let mut cluster = Cluster::up(2, 1);
    let mut one = Redis::connect(&cluster.compute[0].0).unwrap();
    let mut other = Redis::connect(&cluster.compute[1].0).unwrap();
    let ask = |redis: &mut Redis, commands: &[String]| {
        redis.send(commands).unwrap();
        commands.iter().map(|_| redis.reply().unwrap()).collect::<Vec<String>>()
    };
    for round in 0..3 {
        // There are more keys than run in parallel, and every tenth key is written twice. The last
        // write counts.
        let key = |n: usize| if n % 10 == 9 { n - 9 } else { n };
        let sets: Vec<String> = (0..100).map(|n| format!("SET k{} {round}-{n}", key(n))).collect();
        assert_eq!(ask(&mut one, &sets), vec!["+OK"; 100]);
        let gets: Vec<String> = (0..100).map(|n| format!("GET k{n}")).collect();
        let told = |n: usize| match n % 10 {
            0 => format!("{round}-{}", n + 9),
            9 => "nil".to_owned(),
            _ => format!("{round}-{n}"),
        };
        let all: Vec<String> = (0..100).map(told).collect();
        assert_eq!(ask(&mut other, &gets), all);
        assert_eq!(ask(&mut one, &gets), all);
        let commands =
            ["SET a 1", "GET a", "INCR a", "GET a", "GET b", "SET a 3", "GET a", "DEL a"];
        let told = ask(&mut other, &commands.map(str::to_owned));
        assert_eq!(told, ["+OK", "1", ":2", "2", "nil", "+OK", "3", ":1"]);
    }
    assert_eq!(one.ask("DEL k1 k2 k9 k11").unwrap(), ":3");
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::SeqCst) {
                one.ask("INCR tide").unwrap();
            }
        });
        let _end = End(&end);
        let gets: Vec<String> = (0..30).map(|n| format!("GET k{n}\r\nGET tide")).collect();
        for _ in 0..200 {
            other.send(&gets).unwrap();
            let told: Vec<String> = (0..60).map(|_| other.reply().unwrap()).collect();
            let tide = told.iter().skip(1).step_by(2).map(|told| told.parse().unwrap_or(0_u64));
            assert!(tide.is_sorted(), "a pipeline's GETs of a key do not go back: {told:?}");
        }
    });
    drop((one, other));
    let rest = cluster.process.end();
    assert!(rest.ends_with("Stopped\n"), "{rest}");
}

/// A key with one writer: the number whose write was acknowledged, and the number that may have
/// been written.
#[derive(Default)]
struct Counted {
    acknowledged: AtomicU64,
    begun: AtomicU64,
}

/// Writes the next number to the key. Returns whether there was a reply.
fn write_once(link: &mut Redis, key: usize, counted: &Counted) -> bool {
    let number = counted.begun.fetch_add(1, Ordering::SeqCst) + 1;
    match link.ask(&format!("SET count:{key} {number}")) {
        Ok(told) if told == "+OK" => counted.acknowledged.store(number, Ordering::SeqCst),
        Ok(told) => assert!(told.starts_with('-'), "{told}"),
        Err(_) => return false,
    }
    true
}

/// Writes growing numbers to the key, through `address`, until it is told to end.
fn write(address: &str, key: usize, counted: &Counted, end: &AtomicBool) {
    let mut redis = None;
    while !end.load(Ordering::SeqCst) {
        redis = match redis {
            None => Redis::connect(address).ok(),
            Some(mut link) => write_once(&mut link, key, counted).then_some(link),
        };
    }
}

/// Tells the writers to end when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Reads the key through `address`. The value must be neither older than the last acknowledged
/// write nor one that was never written.
fn read(redis: &mut Redis, key: usize, counted: &Counted) -> bool {
    let least = counted.acknowledged.load(Ordering::SeqCst);
    let told = redis.ask(&format!("GET count:{key}")).unwrap();
    if told.starts_with('-') {
        return false;
    }
    let number = told.parse().unwrap_or(0);
    let most = counted.begun.load(Ordering::SeqCst);
    assert!(
        (least..=most).contains(&number),
        "key {key}: {told}, acknowledged {least}, begun {most}"
    );
    true
}

#[test]
fn acknowledged_writes_survive_kills_and_are_not_read_stale() {
    const KEYS: usize = 6;
    let mut cluster = Cluster::up(2, 3);
    let (killed, stays) = (cluster.compute[0].clone(), cluster.compute[1].0.clone());
    let keys: Vec<Counted> = (0..KEYS).map(|_| Counted::default()).collect();
    let (keys, end) = (&keys[..], &AtomicBool::new(false));
    let progress = |what: &str| {
        let before: Vec<u64> =
            keys.iter().map(|key| key.acknowledged.load(Ordering::SeqCst)).collect();
        until(what, || {
            let more = |(key, before): (&Counted, &u64)| {
                key.acknowledged.load(Ordering::SeqCst) > before + 20
            };
            keys.iter().zip(&before).all(more)
        });
    };
    std::thread::scope(|scope| {
        // If this thread panics, the others end as well.
        let _end = End(end);
        for (key, counted) in keys.iter().enumerate() {
            // Two of them use the node that dies, and get no more replies.
            let (first, stays) = (&killed.0, &stays);
            scope.spawn(move || {
                if key < 2 {
                    let mut link = Redis::connect(first).unwrap();
                    while write_once(&mut link, key, counted) {}
                }
                write(stays, key, counted, end);
            });
            scope.spawn(move || {
                let mut redis = Redis::connect(stays).unwrap();
                while !end.load(Ordering::SeqCst) {
                    read(&mut redis, key, counted);
                }
            });
        }
        progress("writes through both nodes");
        kill(killed.1);
        progress("writes go on without a compute node");
        let (mut third, address) = cluster.one_more();
        let mut redis = Redis::connect(&address).unwrap();
        for (key, counted) in keys.iter().enumerate() {
            until("a node that came later reads", || read(&mut redis, key, counted));
        }
        progress("writes beside a new compute node");
        kill(cluster.memory[0]);
        progress("writes go on without a memory node");
        for (key, counted) in keys.iter().enumerate() {
            until("reads go on", || read(&mut redis, key, counted));
        }
        let _memory = cluster.memory_again();
        until("every block has three copies again", || {
            let told = cluster.status();
            let blocks = told.lines().find(|line| line.starts_with("Blocks: ")).unwrap().to_owned();
            !blocks.contains("too few") && !blocks.contains("changing") && blocks.contains("whole")
        });
        progress("writes with the memory node back");
        let rest = third.end();
        assert!(rest.ends_with("Stopped\n"), "{rest}");
    });
    let mut redis = Redis::connect(&stays).unwrap();
    for (key, counted) in keys.iter().enumerate() {
        until("the last node reads", || read(&mut redis, key, counted));
    }
    drop(redis);
    let rest = cluster.process.end();
    assert!(rest.ends_with("Stopped\n"), "{rest}");
}

#[test]
fn serve_refuses_flags_that_only_the_other_engine_has() {
    // The address is wrong, so a server that took the flag would end as well.
    let refused = |engine: &str, flags: &[&str]| {
        let serve = ["serve", "--listen", "nowhere", "--engine", engine];
        super::refused(&[&serve, flags].concat())
    };
    for flags in [
        &["--config", "settings.toml"][..],
        &["--log-dir", "wal"],
        &["--sync"],
        &["--checkpoints", "copies"],
        &["--print-settings"],
    ] {
        let said = refused("flexkv", flags);
        assert!(said.contains(&format!("{} is for the engine lsm", flags[0])), "{said}");
    }
    for flags in
        [["--peers", "127.0.0.1:7702"], ["--advertise", "reef:7702"], ["--shm", "reef.sock"]]
    {
        let said = refused("lsm", &flags);
        assert!(said.contains(&format!("{} is for the engine flexkv", flags[0])), "{said}");
    }
}
