//! The servers of a run as their operator sees them: processes that are started, stopped, killed
//! and started again.
//!
//! Invariants:
//! 1. The manager keeps its address over all restarts.
//! 2. [`Cluster::restore`] returns when all processes run. The manager learns later that they run.
//!
//! Thread-safety: one thread owns a cluster.
//! Failure: every error names the process.
//! Cost: one process per server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use archipelago::env::FileSystem as _;
use archipelago::env::local::LocalFs;
use archipelago::{Rng, SystemClock};

use super::servers::{ExecutorRole, LEFT, MemoryRole, TELL_LEFT};
use crate::children::{ArmedMessage, DISARM, Fault, GO_ON, Heard, ManagerRole, PATIENCE, Server};

/// Number of memory nodes. Each has an executor in its process.
const MEMORY_NODES: usize = 2;
/// Number of executors with processes of their own.
const EXECUTORS: usize = 2;

/// Pause between two questions to the memory nodes.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Numbers of the shards and grants that memory nodes hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftAtNodes {
    pub(super) shards: u64,
    /// Grants for shards that have not arrived.
    pub(super) grants: u64,
}

impl LeftAtNodes {
    /// The numbers in the line of a node after [`LEFT`].
    fn parse(line: &str) -> Option<Self> {
        let (shards, grants) = line.split_once(' ')?;
        Some(Self { shards: shards.parse().ok()?, grants: grants.parse().ok()? })
    }
}

/// A server by its role and its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Memory(usize),
    Executor(usize),
    Manager,
}

/// The manager, the memory nodes and the executors.
#[derive(Debug)]
pub(super) struct Cluster {
    /// Directory of the messages of the processes.
    dir: PathBuf,
    /// Directory that executors reach.
    share: PathBuf,
    /// Address of the manager: `HOST:PORT`.
    address: String,
    manager: Server,
    memory: Vec<Server>,
    executors: Vec<Server>,
}

impl Cluster {
    /// Starts all servers. Executors reach databases below `share`.
    pub(super) fn start(dir: &Path, share: &Path) -> Result<Self, String> {
        let text = |error: archipelago::Error| error.to_string();
        let fs = LocalFs::new();
        fs.create_dir_all(dir).and_then(|()| fs.create_dir_all(share)).map_err(text)?;
        let role = ManagerRole { listen: "127.0.0.1:0".to_owned() };
        let (manager, addresses) = Server::start("manager", &role.words(), dir)?;
        let mut cluster = Self {
            dir: dir.to_owned(),
            share: share.to_owned(),
            address: addresses.trim_start_matches("tcp:").to_owned(),
            manager,
            memory: Vec::new(),
            executors: Vec::new(),
        };
        for index in 0..MEMORY_NODES {
            let server = cluster.start_one(Place::Memory(index))?;
            cluster.memory.push(server);
        }
        for index in 0..EXECUTORS {
            let server = cluster.start_one(Place::Executor(index))?;
            cluster.executors.push(server);
        }
        Ok(cluster)
    }

    /// Address of the manager: `HOST:PORT`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// A random memory node.
    pub(super) fn any_memory(rng: &mut Rng) -> Place {
        Place::Memory(rng.usize(..MEMORY_NODES))
    }

    /// A random executor with a process of its own.
    pub(super) fn any_executor(rng: &mut Rng) -> Place {
        Place::Executor(rng.usize(..EXECUTORS))
    }

    fn start_one(&self, place: Place) -> Result<Server, String> {
        let (manager, share) = (self.address.clone(), self.share.clone());
        let (name, words) = match place {
            Place::Memory(index) => {
                let number = index as u64 + 1;
                let role = MemoryRole { number, manager, share };
                (format!("memory node {number}"), role.words())
            }
            Place::Executor(index) => {
                let role = ExecutorRole { manager, share };
                (format!("executor {}", index + 1), role.words())
            }
            Place::Manager => ("manager".to_owned(), ManagerRole { listen: manager }.words()),
        };
        Server::start(&name, &words, &self.dir).map(|(server, _)| server)
    }

    fn server(&mut self, place: Place) -> &mut Server {
        match place {
            Place::Memory(index) => &mut self.memory[index],
            Place::Executor(index) => &mut self.executors[index],
            Place::Manager => &mut self.manager,
        }
    }

    fn all() -> Vec<Place> {
        let memory = (0..MEMORY_NODES).map(Place::Memory);
        let executors = (0..EXECUTORS).map(Place::Executor);
        std::iter::once(Place::Manager).chain(memory).chain(executors).collect()
    }

    /// Takes a server away.
    pub(super) fn take(&mut self, place: Place, fault: Fault) -> Result<(), String> {
        self.server(place).suffer(fault)
    }

    /// Arms a server for a message. Lines that it has printed before are forgotten.
    pub(super) fn arm(&mut self, place: Place, message: ArmedMessage) {
        let process = &mut self.server(place).process;
        while let Heard::Line(_) = process.hear(Duration::ZERO) {}
        process.tell(&message.line());
    }

    /// The next line of a server.
    pub(super) fn hear(&mut self, place: Place, patience: Duration) -> Heard {
        self.server(place).process.hear(patience)
    }

    /// Lets a server that waits at a message go on, and disarms it.
    pub(super) fn disarm(&mut self, place: Place) {
        let process = &mut self.server(place).process;
        process.tell(DISARM);
        process.tell(GO_ON);
    }

    /// Waits for a fault that a server causes itself at a message.
    pub(super) fn await_own(&mut self, place: Place, fault: Fault) -> Result<(), String> {
        self.server(place).await_own(fault)
    }

    /// Takes all servers away, in a random order.
    pub(super) fn take_all(&mut self, fault: Fault, rng: &mut Rng) -> Result<(), String> {
        let mut order = Self::all();
        rng.shuffle(&mut order);
        order.into_iter().try_for_each(|place| self.take(place, fault))
    }

    /// Brings all servers back.
    pub(super) fn restore(&mut self) -> Result<(), String> {
        for place in Self::all() {
            if self.server(place).restore()? {
                *self.server(place) = self.start_one(place)?;
            }
        }
        Ok(())
    }

    /// The shards and grants that are left at all memory nodes. Every server runs.
    pub(super) fn left(&mut self) -> Result<LeftAtNodes, String> {
        let mut sum = LeftAtNodes::default();
        for server in &mut self.memory {
            server.process.tell(TELL_LEFT);
            let line = server.process.expect(LEFT, PATIENCE)?;
            let left =
                LeftAtNodes::parse(&line).ok_or_else(|| format!("{LEFT}{line}: two numbers"))?;
            sum.shards += left.shards;
            sum.grants += left.grants;
        }
        Ok(sum)
    }

    /// Waits until no memory node has a shard or a grant for one. Every server runs.
    pub(super) fn await_no_shards(&mut self) -> Result<(), String> {
        let clock = SystemClock::shared();
        let until_ns = clock.now_ns() + PATIENCE.as_nanos() as u64;
        loop {
            let left = self.left()?;
            if left == LeftAtNodes::default() {
                return Ok(());
            }
            if clock.now_ns() > until_ns {
                let LeftAtNodes { shards, grants } = left;
                return Err(format!(
                    "memory nodes have {shards} shards and {grants} unused grants of a closed \
                     database"
                ));
            }
            clock.sleep(LOOK_PAUSE);
        }
    }

    /// Ends all servers in order: the manager last.
    pub(super) fn end(mut self) -> Result<(), String> {
        let mut servers: Vec<&mut Server> =
            self.executors.iter_mut().chain(&mut self.memory).collect();
        servers.push(&mut self.manager);
        for server in servers {
            server.process.end_input();
            let status = server.process.wait(PATIENCE)?;
            if !status.success() {
                let said = server.process.messages();
                return Err(format!("a server did not end in order ({status}): {said}"));
            }
        }
        Ok(())
    }
}
