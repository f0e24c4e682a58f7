//! Histories of real processes under `kill -9`. Compute nodes, memory nodes and the manager are
//! killed and restarted while clients call the servers of the compute nodes. The history of every
//! key must be linearizable.
//!
//! Each process runs this test program again, and an environment variable names its role. It prints
//! its address and serves until it is killed or its standard input ends. A call without an answer,
//! or with an error, may have happened at any later time.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::{Rng, entropy_seed};
use archipelago_compute::flexkv::{FlexKvNode, FlexKvNodeSettings, FlexKvSettings};
use archipelago_fabric::{ClientId, Line, NodeId};
use archipelago_flexkv::WriteEffect;
use archipelago_manager::core::Terms;
use archipelago_manager::{ManagerServer, ManagerSettings, MemberTerms, StorePlan};
use archipelago_memory::{MemoryServer, MemorySettings};
use archipelago_pool::wire::{BlockState, Message};
use archipelago_resp::flexkv_store::FlexKvStore;
use archipelago_resp::{Server, ServerOptions};
use archipelago_sim::flexkv::{History, Op, Ret, judge};

const VARIABLE: &str = "ARCHIPELAGO_FLEX_NODE";
const BLOCK_BYTES: u64 = 1 << 20;
/// Number of keys in use at a time, and of calls of a key before the next key replaces it.
/// Histories must stay short enough for the judge.
const KEYS: u64 = 4;
const CALLS: u64 = 36;
pub(crate) const WORKERS: u64 = 4;

/// A process with one role. It is killed when it is dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    /// Address of the server, for a compute node the one for Redis clients.
    pub(crate) address: String,
}

impl Process {
    pub(crate) fn start(words: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "processes::node", "--nocapture"])
            .env(VARIABLE, words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut output = BufReader::new(child.stdout.take().expect("it was asked for"));
        let mut address = String::new();
        while address.is_empty() {
            let mut line = String::new();
            assert!(output.read_line(&mut line).expect("it speaks") > 0, "{words} did not come up");
            if let Some((_, said)) = line.trim_end().split_once('@') {
                said.clone_into(&mut address);
            }
        }
        // The pipe holds the rest of its output, which this process does not read.
        std::mem::forget(output);
        Self { child, address }
    }
}

impl Process {
    pub(crate) fn kill(&mut self) {
        // The process may have ended already.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Body of a node's process. As a test, it does nothing.
#[test]
fn node() {
    let Ok(words) = std::env::var(VARIABLE) else { return };
    let words: Vec<&str> = words.split(' ').collect();
    if words[0] == "manager" {
        let nodes = words[3].parse().expect("how many memory nodes");
        let manager = start_manager(words[2], nodes, StorePlan::default().offload, false);
        println!("@{}", manager.addresses()[0]);
        let _ended = io::stdin().read_to_end(&mut Vec::new());
        return;
    }
    let managers: Vec<String> = words[2].split(',').map(str::to_owned).collect();
    let socket = format!("shm:{}", words[3]);
    let mut nothing = Vec::new();
    if words[0] == "memory" {
        let id = NodeId(words[1].parse().expect("a number"));
        let listen = "tcp:127.0.0.1:0".to_owned();
        let mut settings = MemorySettings::new(id, 64 * BLOCK_BYTES, listen, String::new());
        settings.manager = managers;
        settings.block_bytes = BLOCK_BYTES;
        settings.listen.push(socket);
        let server = MemoryServer::start(settings).expect("a memory node");
        println!("@{}", server.addresses().join(" "));
        let _ended = io::stdin().read_to_end(&mut nothing);
        return;
    }
    // Address on which the node listens for other nodes, and the address at which they reach it, if
    // that differs.
    let (listen, advertise) = (words.get(4), words.get(5));
    let settings = FlexKvNodeSettings {
        manager: managers,
        listen: vec![listen.map_or_else(|| "tcp:127.0.0.1:0".to_owned(), |at| format!("tcp:{at}"))]
            .into_iter()
            .chain(advertise.is_none().then_some(socket))
            .collect(),
        advertise: advertise.map(|at| format!("tcp:{at}")).into_iter().collect(),
        secret: None,
        store: FlexKvSettings::default(),
    };
    let node = Arc::new(FlexKvNode::start(settings).expect("a compute node"));
    let store = Arc::new(FlexKvStore::new(node));
    let server = Server::start("127.0.0.1:0", store, ServerOptions::default()).expect("a server");
    println!("@{}", server.local_addr());
    let _ended = io::stdin().read_to_end(&mut nothing);
}

/// A connection for Redis commands. It returns replies without their type byte and line end.
pub(crate) struct Redis(BufReader<TcpStream>);

impl Redis {
    pub(crate) fn connect(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self(BufReader::new(stream)))
    }

    pub(crate) fn ask(&mut self, command: &str) -> io::Result<Option<String>> {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        if let Some(error) = line.strip_prefix('-') {
            return Err(io::Error::other(error.to_owned()));
        }
        match line.strip_prefix('$') {
            None => Ok(Some(line[1..].to_owned())),
            Some("-1") => Ok(None),
            Some(bytes) => {
                let mut value = vec![0; bytes.parse::<usize>().map_err(io::Error::other)? + 2];
                self.0.read_exact(&mut value)?;
                value.truncate(value.len() - 2);
                Ok(Some(String::from_utf8(value).map_err(io::Error::other)?))
            }
        }
    }
}

/// State that all clients share.
pub(crate) struct World {
    pub(crate) history: History,
    pub(crate) addresses: Mutex<Vec<String>>,
    values: AtomicU64,
    calls: AtomicU64,
    pub(crate) unanswered: AtomicU64,
    pub(crate) end: AtomicBool,
}

impl World {
    pub(crate) fn new<'a>(compute: impl IntoIterator<Item = &'a Process>) -> Self {
        Self {
            history: History::default(),
            addresses: Mutex::new(compute.into_iter().map(|node| node.address.clone()).collect()),
            values: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            end: AtomicBool::new(false),
        }
    }

    /// Waits until clients have got 150 more answers.
    pub(crate) fn progress(&self, what: &str) {
        let before = self.history.answered();
        until(what, || self.history.answered() > before + 150);
    }

    /// Panics unless the judge finds every history linearizable.
    pub(crate) fn assert_linearizable(&self) {
        let verdict = judge(&self.history.keys());
        assert!(verdict.violations.is_empty(), "{}", verdict.violations.join("\n"));
        assert_eq!(verdict.unknown, 0, "keys that were not judged in time");
    }

    fn address(&self, rng: &mut Rng) -> String {
        let addresses = self.addresses.lock().expect("nobody panics with it");
        addresses[rng.usize(..addresses.len())].clone()
    }

    /// Runs a client: one call after another, each over a connection to some node. After a call
    /// without an answer, the client continues under another name.
    pub(crate) fn work(&self, seed: u64) {
        let mut rng = Rng::with_seed(seed);
        let (mut thread, mut link) = (self.history.thread(), None);
        while !self.end.load(Ordering::SeqCst) {
            let Some(mut redis) =
                link.take().or_else(|| Redis::connect(&self.address(&mut rng)).ok())
            else {
                continue;
            };
            let call = self.calls.fetch_add(1, Ordering::SeqCst);
            let number = call / (KEYS * CALLS) * KEYS + rng.u64(..KEYS);
            let value = || self.values.fetch_add(1, Ordering::SeqCst) + 1;
            let op = match rng.u32(..10) {
                0..4 => Op::Get,
                4..7 => Op::Set(value()),
                7 => Op::Insert(value()),
                8 => Op::Update(value()),
                _ => Op::Delete,
            };
            let command = match op {
                Op::Set(value) => format!("SET key:{number} {value}"),
                Op::Insert(value) => format!("SET key:{number} {value} NX"),
                Op::Update(value) => format!("SET key:{number} {value} XX"),
                Op::Delete => format!("DEL key:{number}"),
                _ => format!("GET key:{number}"),
            };
            let begun = self.history.begin(thread, number, op);
            match redis.ask(&command) {
                Ok(told) => {
                    let ret = match op {
                        Op::Get => Ret::Value(told.map(|told| told.parse().expect("a number"))),
                        Op::Delete => Ret::Done(told.as_deref() == Some("1")),
                        _ => Ret::Done(told.as_deref() == Some("OK")),
                    };
                    self.history.end(&begun, ret);
                    // Now and then, the next call goes to another node.
                    link = (rng.u32(..8) > 0).then_some(redis);
                }
                // The client relies on the effect of the write that the error states.
                Err(failed) if failed.to_string().ends_with(&WriteEffect::None.to_string()) => {
                    self.history.never(&begun);
                }
                Err(_) => {
                    self.unanswered.fetch_add(1, Ordering::SeqCst);
                    thread = self.history.thread();
                }
            }
            // The pause limits the number of calls, because the judge must finish. Kills matter
            // more.
            SystemClock::new().sleep(Duration::from_micros(rng.u64(500..3000)));
        }
    }
}

/// Waits until `so` returns true, and panics after a minute.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    let began_ns = clock.now_ns();
    while !so() {
        assert!(clock.now_ns() - began_ns < 60_000_000_000, "{what}: not within a minute");
        clock.sleep(Duration::from_millis(5));
    }
}

/// Whether every block of the cluster has all its copies.
pub(crate) fn is_whole(manager: &str) -> bool {
    let line = Line::new(&Arc::default(), vec![manager.to_owned()], ClientId(entropy_seed()), None);
    let answer = line.ask(&Message::Status {}, Duration::from_secs(3));
    let Ok(Message::StatusIs { status }) = answer else { return false };
    let whole = |state| matches!(state, BlockState::Whole | BlockState::Released);
    status.nodes.iter().filter(|node| node.member.up).count() == 3
        && status.blocks.iter().all(|block| whole(block.state))
}

/// Ends clients also when the test panics.
pub(crate) struct End<'a>(pub(crate) &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A manager with short leases that runs alone.
pub(crate) fn manager(listen: &str) -> ManagerServer {
    start_manager(listen, 0, StorePlan::default().offload, false)
}

/// A manager that is one of several for `memory_nodes` nodes. `offload` is the number of partitions
/// in a thousand that have a proxy, at first or, if `fixed` is set, permanently.
pub(crate) fn start_manager(
    listen: &str,
    memory_nodes: u32,
    offload: u32,
    fixed: bool,
) -> ManagerServer {
    ManagerServer::start(&ManagerSettings {
        listen: vec![listen.to_owned()],
        terms: Terms {
            lease: Duration::from_millis(500),
            node_lease: Duration::from_millis(300),
            ..Terms::default()
        },
        store: StorePlan { partition_bits: 5, offload, fixed, ..StorePlan::default() },
        memory_nodes,
        standby: false,
        storage: MemberTerms::default(),
        secret: None,
    })
    .expect("a manager")
}

#[test]
fn histories_are_linearizable_while_processes_are_killed() {
    let dir = std::env::temp_dir().join(format!("archipelago-flexkv-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("a directory for sockets");
    let mut manager = Process::start("manager 0 tcp:127.0.0.1:0 0");
    let at = manager.address.clone();
    let mut lives = 0;
    let mut start = |role: &str, id: usize| {
        lives += 1;
        let socket = dir.join(format!("{role}{id}-{lives}.sock"));
        Process::start(&format!("{role} {id} {at} {}", socket.display()))
    };
    let mut memory: Vec<Process> = (1..=3).map(|id| start("memory", id)).collect();
    let mut compute: Vec<Process> = (1..=3).map(|id| start("compute", id)).collect();
    let addresses = |compute: &[Process]| compute.iter().map(|node| node.address.clone()).collect();
    let world = World::new(&compute);
    let mut rng = Rng::with_seed(5);
    let progress = |what: &str| world.progress(what);
    std::thread::scope(|scope| {
        let _end = End(&world.end);
        for worker in 0..WORKERS {
            let world = &world;
            scope.spawn(move || world.work(100 + worker));
        }
        progress("with everybody there");
        for round in 0..9 {
            if round % 3 == 2 {
                // The manager starts at the same address. The nodes report everything that the
                // manager and the store's coordinator must know.
                manager.kill();
                manager = Process::start(&format!("manager 0 {at} 0"));
            } else if round % 3 == 0 {
                let killed = rng.usize(..compute.len());
                drop(compute.remove(killed));
                progress("without a compute node");
                compute.push(start("compute", killed + 1));
                *world.addresses.lock().expect("nobody panics with it") = addresses(&compute);
            } else {
                let killed = rng.usize(..memory.len());
                // The next step removes a node. The other nodes must have copies of every block
                // before that, or the pool would wait.
                until("every block is whole", || is_whole(&at));
                drop(memory.remove(killed));
                progress("without a memory node");
                memory.push(start("memory", 10 + round));
            }
            progress("with a new one");
        }
    });
    drop((compute, memory, manager));
    // Best effort: sockets of processes that were killed.
    #[expect(clippy::disallowed_methods, reason = "sockets of processes, not files of a store")]
    let _removed = std::fs::remove_dir_all(&dir);
    world.assert_linearizable();
    let (answered, unanswered) = (world.history.answered(), world.unanswered.into_inner());
    // A run without calls and kills proves nothing.
    assert!(answered > 2000 && unanswered > 0, "{answered} answered, {unanswered} not");
}
