//! A pool of memory as operators run it: processes that are started, stopped, killed and started
//! again.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::ErrorKind;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::runtime::block_on;
use archipelago_fabric::{Call, ClientId, Endpoints, Line, NodeId, Reach, Session, endpoint};
use archipelago_pool::wire::{BlockState, Message, Why};
use archipelago_pool::{Address, BlockId, Owned, Pool, PoolOptions, Sharing};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::held_port::HeldPort;
use crate::memory::peak_bytes;
use crate::{archipelago, refused, text};

const VARIABLE: &str = "ARCHIPELAGO_CLUSTER_HELPER";
const LABEL: u64 = 5;

/// Polls until `done` is true. It fails after a minute.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    while !done() {
        assert!(clock.now_ns() < 60_000_000_000, "{what}: not within a minute");
        clock.sleep(Duration::from_millis(5));
    }
}

/// A process that is killed at the latest when this is dropped.
pub(crate) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { input: child.stdin.take(), child, output }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0, "the process ended");
        line.trim_end().to_owned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops the process. On return it does not run.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.child);
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process ends by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Sends SIGTERM and waits for the end of the process.
    pub(crate) fn end(&mut self) -> String {
        self.signal(Signal::TERM);
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        rest
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Starts a manager. It declares members dead only after seconds, because a busy machine may stop
/// one for long. Returns its address.
fn manager(at: &str, copies: u32) -> (Process, String) {
    let mut process = Process::start(
        archipelago()
            .args(["node", "manager", "--listen", at, "--copies", &copies.to_string()])
            .args(["--lease-ms", "3000", "--node-lease-ms", "2000"]),
    );
    let said = process.line();
    let address = said.rsplit("tcp:").next().unwrap().to_owned();
    assert!(said.starts_with("Manager listens on tcp:127.0.0.1:"), "{said}");
    (process, address)
}

fn memory(id: u64, manager: &str, more: &[&str]) -> Process {
    let mut process = Process::start(
        archipelago()
            .args(["node", "memory", "--size", "8MiB", "--block", "1MiB", "--id"])
            .args([&id.to_string(), "--manager", manager])
            .args(more),
    );
    let said = process.line();
    assert!(
        said.starts_with(&format!("Memory node {id} lends 8 MiB in 8 blocks of 1 MiB on tcp:"))
    );
    process
}

fn join(manager: &str) -> Pool {
    let mut options = PoolOptions::new(endpoint(manager).unwrap(), LABEL);
    options.patience = Duration::from_secs(60);
    Pool::join(options).unwrap()
}

fn up(pool: &Pool) -> usize {
    let nodes = pool.status().unwrap().nodes;
    nodes.iter().filter(|node| node.member.up).count()
}

fn whole(pool: &Pool, block: BlockId, copies: usize) -> bool {
    let status = pool.status().unwrap();
    let known = status.blocks.iter().find(|known| known.config.block == block);
    known.is_some_and(|known| {
        known.state == BlockState::Whole && known.config.copies.len() == copies
    })
}

fn at(block: BlockId, offset: u64) -> Address {
    Address { block, offset }
}

/// This test program in a second process, as a client that can be stopped and killed.
fn client(words: &[&str]) -> Process {
    Process::start(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cluster::helper", "--nocapture"])
            .env(VARIABLE, words.join(" ")),
    )
}

impl Process {
    /// The next line of a client, without the output of the test framework.
    fn hear(&mut self) -> String {
        loop {
            if let Some((_, said)) = self.line().split_once('@') {
                return said.to_owned();
            }
        }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }
}

/// Runs a client in the second process. As a test it does nothing.
#[test]
fn node_without_a_reader_of_its_output_stops_in_order() {
    let mut command = archipelago();
    command.args(["node", "manager", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    // The reader closes the pipe after the first line, as `| head -1` does.
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("Manager listens on "), "{line}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success(), "it ends as if somebody read what it says");
}

#[test]
fn helper() {
    let Ok(manager) = std::env::var(VARIABLE) else { return };
    let pool = join(&manager);
    let block = pool.allocate(Sharing::Owner).unwrap();
    pool.write(at(block, 0), b"of the first").unwrap();
    println!("@{} {}", block.home, block.number);
    for line in std::io::stdin().lines() {
        let wrote = pool.write(at(block, 0), line.unwrap().as_bytes());
        println!(
            "@{}",
            wrote.map_or_else(|error| format!("{:?}", error.kind()), |()| "wrote".into())
        );
    }
}

fn block_of(said: &str) -> BlockId {
    let (home, number) = said.split_once(' ').unwrap();
    BlockId { home: NodeId(home.parse().unwrap()), number: number.parse().unwrap() }
}

fn adopts(pool: &Pool, block: BlockId) {
    until("the block is adopted", || pool.take_changes().contains(&Owned::Adopted(block)));
}

#[test]
fn cluster_starts_shows_its_status_and_stops() {
    let mut cluster = Process::start(archipelago().args([
        "cluster",
        "up",
        "--memory",
        "3",
        "--size",
        "8MiB",
        "--block",
        "1MiB",
        "--manager",
        "127.0.0.1:0",
        "--lease-ms",
        "3000",
        "--node-lease-ms",
        "2000",
    ]));
    let lines: Vec<String> = (0..4).map(|_| cluster.line()).collect();
    assert!(
        lines[0].starts_with("Manager ") && lines[3].starts_with("Memory node 3 "),
        "{lines:?}"
    );
    let address = lines[0].split_whitespace().nth(1).unwrap().to_owned();
    let pool = join(&address);
    until("three nodes are up", || up(&pool) == 3);
    let block = pool.allocate(Sharing::Owner).unwrap();
    pool.write(at(block, 4096), b"coral").unwrap();
    assert_eq!(pool.read(at(block, 4096), 5).unwrap(), b"coral");
    let open = pool.open(block).unwrap();
    assert_eq!((open.copies.len(), open.is_writable()), (3, true));
    let status = || {
        text(
            &archipelago()
                .args(["cluster", "status", "--blocks", "--manager", &address])
                .output()
                .unwrap(),
        )
    };
    until("the status tells of it", || status().contains("7 MiB"));
    let told = status();
    for word in ["Manager: ready", "3 copies", "up", "shm:", "tcp:127.0.0.1:", "7 MiB", "whole"] {
        assert!(told.contains(word), "{word}: {told}");
    }
    // The counters of the nodes arrive with their heartbeats.
    assert!(["OPERATIONS", "FILLED", "REFUSALS"].iter().all(|word| told.contains(word)), "{told}");
    until("each has counted the block and the requests for it", || {
        let nodes = pool.status().unwrap().nodes;
        nodes.iter().all(|node| node.counters.given == 1 && node.counters.requests > 2)
    });
    assert!(
        told.contains(&pool.client().to_string()) && told.contains(&block.to_string()),
        "{told}"
    );
    // After a kill of one process the cluster reports it and continues.
    let pid: i32 = lines[2].rsplit(' ').next().unwrap().trim_end_matches(')').parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    pool.write(at(block, 4096), b"reefs").unwrap();
    assert_eq!(pool.read(at(block, 4096), 5).unwrap(), b"reefs");
    drop(pool);
    let said: Vec<String> = (0..4).map(|_| cluster.line()).collect();
    let begins = said[0].starts_with("Standby manager ") && said[3].starts_with("Memory node 2 ");
    assert!(begins && said[3].contains("signal: 9"), "{said:?}");
    let rest = cluster.end();
    assert!(rest.ends_with("Stopped\n"), "{rest}");
    let gone = archipelago().args(["cluster", "status", "--manager", &address]).output().unwrap();
    assert!(!gone.status.success());
    let why = String::from_utf8_lossy(&gone.stderr);
    assert!(why.contains("no manager answers") && why.contains("archipelago cluster up"), "{why}");
}

#[test]
fn cluster_of_one_node_has_whole_blocks_of_one_copy() {
    let mut cluster = Process::start(
        archipelago()
            .args(["cluster", "up", "--memory", "1", "--size", "8MiB", "--block", "1MiB"])
            .args(["--manager", "127.0.0.1:0"]),
    );
    let address = cluster.line().split_whitespace().nth(1).unwrap().to_owned();
    assert!(cluster.line().starts_with("Memory node 1 "));
    let pool = join(&address);
    until("the node is up", || up(&pool) == 1);
    let block = pool.allocate(Sharing::Owner).unwrap();
    assert_eq!(pool.open(block).unwrap().copies.len(), 1);
    pool.write(at(block, 0), b"alone").unwrap();
    assert_eq!(pool.read(at(block, 0), 5).unwrap(), b"alone");
    until("one copy is all that it is to have", || whole(&pool, block, 1));
    assert_eq!(pool.status().unwrap().copies, 1);
    drop(pool);
    let rest = cluster.end();
    assert!(rest.ends_with("Stopped\n"), "{rest}");
}

#[test]
fn node_starts_without_a_manager_and_prints_its_blocks() {
    // No program listens there.
    let port = HeldPort::take();
    let mut node =
        Process::start(
            archipelago()
                .args(["node", "memory", "--size", "4GiB", "--listen", "127.0.0.1:0"])
                .args(["--stop-with-stdin", "--manager", &port.address()]),
        );
    let said = node.line();
    let expected = "Memory node 1 lends 4 GiB in 256 blocks of 16 MiB on tcp:127.0.0.1:";
    assert!(said.starts_with(expected) && !said.ends_with(":0"), "{said}");
    node.input = None;
    let mut rest = String::new();
    node.output.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("Stopped; 0 blocks had a copy here\n"), "{rest}");
    assert!(node.child.wait().unwrap().success());
}

#[test]
fn input_that_a_node_watches_takes_no_memory() {
    let mut manager = Process::start(
        archipelago().args(["node", "manager", "--listen", "127.0.0.1:0"]).arg("--stop-with-stdin"),
    );
    manager.line();
    let before = peak_bytes(manager.id());
    let part = vec![0_u8; 1 << 20];
    let input = manager.input.as_mut().unwrap();
    for _part in 0..128 {
        input.write_all(&part).unwrap();
    }
    let after = peak_bytes(manager.id());
    assert!(after < before + (64 << 20), "{before} bytes before, {after} after");
    manager.input = None;
    assert!(manager.wait().success());
}

#[test]
fn killed_node_is_replaced_and_filled_after_its_restart() {
    let (_manager, address) = manager("127.0.0.1:0", 3);
    let mut nodes: Vec<Process> = (1..=3).map(|id| memory(id, &address, &[])).collect();
    let pool = join(&address);
    until("three nodes are up", || up(&pool) == 3);
    let block = pool.allocate(Sharing::Owner).unwrap();
    let first = pool.open(block).unwrap().config.copies[0].node.0;
    for round in 0..16_u64 {
        pool.write(at(block, round * 60_000), &round.to_le_bytes()).unwrap();
    }
    // The reads go to this node.
    nodes[first as usize - 1].kill();
    pool.write(at(block, 0), &100_u64.to_le_bytes()).unwrap();
    nodes[first as usize - 1] = memory(first, &address, &[]);
    until("the third copy is there again", || whole(&pool, block, 3));
    // A write meets the new configuration.
    pool.write(at(block, 8), b"goes on").unwrap();
    let config = pool.open(block).unwrap().config.clone();
    assert_eq!(config.copies[2].node.0, first, "{config:?}");
    for copy in &pool.open(block).unwrap().copies {
        let mut batch = archipelago_fabric::Batch::new();
        batch.read(copy.region, 15 * 60_000, 8);
        batch.read(copy.region, 0, 8);
        let batch = copy.link.post(batch).wait();
        batch.check().unwrap();
        assert_eq!(
            (batch.data(0), batch.data(1)),
            (&15_u64.to_le_bytes()[..], &100_u64.to_le_bytes()[..])
        );
    }
}

#[test]
fn manager_asks_the_nodes_after_a_kill() {
    let port = HeldPort::take();
    let (mut first, address) = manager(&port.address(), 2);
    let _nodes: Vec<Process> = (1..=2).map(|id| memory(id, &address, &[])).collect();
    let pool = join(&address);
    until("two nodes are up", || up(&pool) == 2);
    let block = pool.allocate(Sharing::All).unwrap();
    pool.write(at(block, 8), b"before").unwrap();
    first.kill();
    pool.write(at(block, 8), b"during").unwrap();
    assert_eq!(pool.read(at(block, 8), 6).unwrap(), b"during", "nobody needs it to read and write");
    let (_second, again) = manager(&address, 2);
    assert_eq!(again, address);
    until("it knows the block again", || whole(&pool, block, 2));
    assert_eq!(pool.owned(), [block]);
    let other = pool.allocate(Sharing::Owner).unwrap();
    assert_ne!(other, block);
    pool.write(at(block, 8), b"after!").unwrap();
    assert_eq!(pool.read(at(block, 8), 6).unwrap(), b"after!");
    pool.release(block).unwrap();
    until("what was released is freed", || {
        pool.status().unwrap().blocks.iter().all(|known| known.config.block != block)
    });
    assert_eq!(pool.read(at(block, 8), 6).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn blocks_of_a_killed_client_are_adopted_with_their_bytes() {
    let (_manager, address) = manager("127.0.0.1:0", 2);
    let dir = tempfile::tempdir().unwrap();
    let socket = |id: u64| dir.path().join(format!("{id}.sock")).display().to_string();
    let _nodes: Vec<Process> =
        (1..=2).map(|id| memory(id, &address, &["--shm", &socket(id)])).collect();
    let pool = join(&address);
    until("two nodes are up", || up(&pool) == 2);
    let mut other = client(&[&address]);
    let block = block_of(&other.hear());
    let refused = pool.write(at(block, 0), b"mine").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    assert_eq!(pool.read(at(block, 0), 12).unwrap(), b"of the first", "anybody may read");
    other.kill();
    adopts(&pool, block);
    assert_eq!(pool.read(at(block, 0), 12).unwrap(), b"of the first");
    pool.write(at(block, 0), b"of an heir..").unwrap();
    assert_eq!(pool.read(at(block, 0), 12).unwrap(), b"of an heir..");
}

#[test]
fn stopped_client_is_fenced_before_its_blocks_are_adopted() {
    let (_manager, address) = manager("127.0.0.1:0", 1);
    let _node = memory(1, &address, &[]);
    let pool = join(&address);
    until("the node is up", || up(&pool) == 1);
    let mut other = client(&[&address]);
    let block = block_of(&other.hear());
    other.say("still mine..");
    assert_eq!(other.hear(), "wrote");
    other.stop();
    adopts(&pool, block);
    pool.write(at(block, 0), b"of an heir..").unwrap();
    other.signal(Signal::CONT);
    other.say("too late!!!!");
    assert_eq!(other.hear(), "Fenced");
    assert_eq!(pool.read(at(block, 0), 12).unwrap(), b"of an heir..");
}

#[test]
fn memory_mapped_by_a_stopped_process_is_reclaimed() {
    let (_manager, address) = manager("127.0.0.1:0", 1);
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("1.sock").display().to_string();
    let _node = memory(1, &address, &["--shm", &socket, "--end-holders-after", "1"]);
    let pool = join(&address);
    until("the node is up", || up(&pool) == 1);
    let mut other = client(&[&address]);
    let block = block_of(&other.hear());
    other.stop();
    adopts(&pool, block);
    // The process has ended, so it can write no more.
    let status = other.child.wait().unwrap();
    assert!(!status.success(), "{status}");
    pool.write(at(block, 0), b"of an heir..").unwrap();
}

#[test]
fn stopped_node_is_replaced_and_drops_its_old_copy() {
    let (_manager, address) = manager("127.0.0.1:0", 2);
    let nodes: Vec<Process> = (1..=3).map(|id| memory(id, &address, &[])).collect();
    let pool = join(&address);
    until("three nodes are up", || up(&pool) == 3);
    let block = pool.allocate(Sharing::Owner).unwrap();
    pool.write(at(block, 0), b"old").unwrap();
    let copies: Vec<u64> =
        pool.open(block).unwrap().config.copies.iter().map(|copy| copy.node.0).collect();
    // The first copy is spared, because with two copies it alone is a quorum.
    let stopped = &nodes[copies[1] as usize - 1];
    stopped.stop();
    pool.write(at(block, 0), b"new").unwrap();
    until("a copy is made on the third node", || whole(&pool, block, 2));
    stopped.signal(Signal::CONT);
    let used = || -> u64 { pool.status().unwrap().nodes.iter().map(|node| node.blocks_used).sum() };
    until("the old copy is given up", || up(&pool) == 3 && used() == 2);
    assert_eq!(pool.read(at(block, 0), 3).unwrap(), b"new");
}

#[test]
fn full_cluster_continues_after_a_block_is_released() {
    let (_manager, address) = manager("127.0.0.1:0", 1);
    let _node = memory(1, &address, &[]);
    let pool = join(&address);
    until("the node is up", || up(&pool) == 1);
    let blocks: Vec<BlockId> = (0..8).map(|_| pool.allocate(Sharing::Owner).unwrap()).collect();
    let full = pool.allocate(Sharing::Owner).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Busy);
    assert!(full.to_string().contains("full: 0 bytes are left"), "{full}");
    pool.write(at(blocks[7], 0), b"writing goes on").unwrap();
    pool.release(blocks[0]).unwrap();
    until("its memory is used again", || pool.allocate(Sharing::Owner).is_ok());
}

#[test]
fn garbage_and_strangers_harm_no_member() {
    let (_manager, address) = manager("127.0.0.1:0", 1);
    let _node = memory(1, &address, &[]);
    let pool = join(&address);
    until("the node is up", || up(&pool) == 1);
    let block = pool.allocate(Sharing::Owner).unwrap();
    pool.write(at(block, 0), b"coral").unwrap();
    let epoch = pool.open(block).unwrap().config.epoch;
    let endpoints = Arc::new(Endpoints::new());
    let deadline = Duration::from_secs(20);
    let me = ClientId(77);
    let (term, client) = (u64::MAX, pool.client());
    let lies = [
        Message::Claim { term, after: None },
        Message::Seal { term, block, epoch },
        Message::Drop { term, block, epoch, freed: true },
        Message::Fence { term, clients: vec![client], tell: true },
        Message::Open { client, block, epoch, purpose: archipelago_pool::wire::Purpose::Use },
        Message::Leave { client },
        Message::Release { client, block },
        Message::Release { client: me, block },
    ];
    let manager = vec![endpoint(&address).unwrap()];
    for (ways, to_manager) in [(pool.endpoints(NodeId(1)), false), (manager, true)] {
        let session = Session::fresh();
        let link = block_on(endpoints.connect(&ways, &session, None, deadline)).unwrap();
        for garbage in
            [&b""[..], b"\x02", b"\x02\xff", b"\x09\x19", &[2, 6, 0, 0, 0], &[0xff; 9000]]
        {
            let answer = link.request(Call::new(garbage, deadline)).wait().unwrap();
            if to_manager && archipelago_flexkv::wire::is_ours(garbage) {
                // A message that could be the store's goes to its coordinator, which listens on the
                // same port.
                use archipelago_flexkv::wire::{Message, Why};
                let answer = Message::decode(&answer);
                let refused = matches!(answer, Ok(Message::Declined { why: Why::Malformed, .. }));
                assert!(refused, "{garbage:?}: {answer:?}");
                continue;
            }
            let expected = Message::refuse(Why::Malformed);
            assert_eq!(Message::decode(&answer), Ok(expected), "{garbage:?}");
        }
        let line = Line::new(&endpoints, ways, me, None);
        for lie in &lies {
            let answer = line.ask(lie, deadline).unwrap();
            let Message::Refuse { refused } = answer else { panic!("{lie:?}: {answer:?}") };
            let why = [Why::NotAllowed, Why::Malformed, Why::NotOwner];
            assert!(why.contains(&refused.why), "{lie:?}: {refused}");
        }
        let stranger = Message::Open {
            client: me,
            block,
            epoch,
            purpose: archipelago_pool::wire::Purpose::Use,
        };
        if let Message::Opened { key, .. } = line.ask(&stranger, deadline).unwrap() {
            assert!(!key.rights.change(), "a stranger may read at most");
        }
    }
    pool.write(at(block, 0), b"still").unwrap();
    assert_eq!(pool.read(at(block, 0), 5).unwrap(), b"still");
}

#[test]
fn impossible_settings_are_refused_with_the_possible_ones() {
    for (args, word) in [
        (&["node", "memory", "--size", "1MiB"][..], "at least one block"),
        (&["node", "memory", "--block", "3MiB"], "power of two"),
        (&["node", "memory", "--size", "lots"], "GiB"),
        (&["node", "memory", "--id", "0"], "1 to 8191"),
        (&["node", "memory", "--listen", "nowhere"], "HOST:PORT"),
        (&["node", "memory", "--listen", "0.0.0.0:0"], "--advertise"),
        (&["node", "manager", "--copies", "0"], "1 to 16"),
        (&["node", "manager", "--lease-ms", "1"], "20 ms"),
        (&["cluster", "up", "--memory", "0"], "at least one"),
    ] {
        let why = refused(args);
        assert!(why.contains(word), "{args:?}: {why}");
    }
}
