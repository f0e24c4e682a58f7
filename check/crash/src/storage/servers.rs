//! The storage nodes and the executors of a run, each in a process of its own.
//!
//! A server runs until its input ends. It prints one line, [`READY`] and its address, when it
//! serves. Later it prints a line when it begins a copy of a chunk or a job.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago::env::FileSystem;
use archipelago::env::local::LocalFs;
use archipelago::{Joiner, Result, Spawn as _, SystemClock, SystemSpawn};
use archipelago_compute::volume::pool_of_executor;
use archipelago_fabric::NodeId;
use archipelago_offload::net::{ExecutorMonitor, ExecutorServer, ExecutorSettings};
use archipelago_storage::{NodeOptions, StorageServer, StorageSettings};
use archipelago_store::nodes::NodeStoresOptions;

use super::steps::CopyFs;
use crate::children::{READY, Words, say, wait_for_end_of_input};
use crate::shared_disk::SharedDisk;

/// Line of an executor that begins to run a job.
pub(super) const RUNS: &str = "runs a job";
/// Jobs that an executor runs at the same time.
const SLOTS: u32 = 2;
/// Pause between two checks whether an executor has begun a job.
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// A storage node with one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeRole {
    /// Number of the node, and of its domain.
    pub(super) number: u64,
    pub(super) dir: PathBuf,
    /// Address of the manager: `HOST:PORT`.
    pub(super) manager: String,
    /// Bytes that the node may use; 0 for all that its disk has.
    pub(super) bytes_max: u64,
    /// Whether other programs fill the node's disk at random moments.
    pub(super) full_disk: bool,
    /// Seed that decides when the disk is full.
    pub(super) seed: u64,
}

impl NodeRole {
    pub(super) const NAME: &str = "node";

    pub(super) fn words(&self) -> Vec<String> {
        Words::default()
            .with("number", self.number)
            .with("dir", self.dir.display())
            .with("manager", &self.manager)
            .with("bytes_max", self.bytes_max)
            .with("full_disk", u64::from(self.full_disk))
            .with("seed", self.seed)
            .command_line(Self::NAME)
    }

    pub(super) fn parse(words: &Words) -> Result<Self, String> {
        Ok(Self {
            number: words.number("number")?,
            dir: words.path("dir")?,
            manager: words.text("manager")?.to_owned(),
            bytes_max: words.number("bytes_max")?,
            full_disk: words.switch("full_disk")?,
            seed: words.number("seed")?,
        })
    }

    /// Serves until the input ends.
    pub(super) fn run(&self) -> Result<()> {
        let settings = StorageSettings {
            id: NodeId(self.number),
            devices: vec![self.dir.clone()],
            listen: vec!["tcp:127.0.0.1:0".to_owned()],
            advertise: Vec::new(),
            managers: vec![format!("tcp:{}", self.manager)],
            domain: format!("domain{}", self.number),
            secret: None,
            node: NodeOptions {
                device_bytes_max: (self.bytes_max > 0).then_some(self.bytes_max),
                ..NodeOptions::default()
            },
        };
        if !self.full_disk {
            // A storage node writes its logs in this way.
            let local: Arc<dyn FileSystem> = Arc::new(LocalFs::new().with_plain_logs());
            return serve(StorageServer::start_on(Arc::new(CopyFs::new(local)), settings)?);
        }
        let disk = Arc::new(SharedDisk::of_node(&self.dir)?);
        let server = StorageServer::start_on(disk.file_system(), settings)?;
        let ended = Arc::new(AtomicBool::new(false));
        let others = Arc::clone(&disk).share(self.seed, Arc::clone(&ended))?;
        let served = serve(server);
        ended.store(true, Ordering::Release);
        others.join().and(served)
    }
}

/// Serves until the input ends, and closes the node in order.
fn serve(server: StorageServer) -> Result<()> {
    say(&format!("{READY}{}", server.addresses().join(" ")));
    wait_for_end_of_input();
    server.close()
}

/// An executor of jobs of databases in volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExecutorRole {
    /// Address of the manager: `HOST:PORT`.
    pub(super) manager: String,
}

impl ExecutorRole {
    pub(super) const NAME: &str = "volume-executor";

    pub(super) fn words(&self) -> Vec<String> {
        Words::default().with("manager", &self.manager).command_line(Self::NAME)
    }

    pub(super) fn parse(words: &Words) -> Result<Self, String> {
        Ok(Self { manager: words.text("manager")?.to_owned() })
    }

    /// Runs jobs until the input ends.
    pub(super) fn run(&self) -> Result<()> {
        let managers = vec![format!("tcp:{}", self.manager)];
        let pool = pool_of_executor(managers.clone(), None, NodeStoresOptions::default())?;
        let executor = ExecutorServer::start(ExecutorSettings {
            managers,
            slots: SLOTS,
            volumes: Some(pool),
            address: format!("process {}", std::process::id()),
            ..ExecutorSettings::default()
        })?;
        let ended = Arc::new(AtomicBool::new(false));
        let teller = tell_jobs(executor.monitor(), Arc::clone(&ended))?;
        // It listens nowhere.
        say(READY);
        wait_for_end_of_input();
        ended.store(true, Ordering::Release);
        teller.join()?;
        drop(executor);
        Ok(())
    }
}

/// Tells the parent when the executor begins a job, until it has ended.
fn tell_jobs(monitor: ExecutorMonitor, ended: Arc<AtomicBool>) -> Result<Joiner> {
    let body = Box::new(move || {
        let clock = SystemClock::shared();
        let mut told = 0;
        while !ended.load(Ordering::Acquire) {
            let Some(figures) = monitor.figures() else { return };
            let begun = figures.running + figures.succeeded + figures.failed;
            if begun > told {
                told = begun;
                say(RUNS);
            }
            clock.sleep(LOOK_PAUSE);
        }
    });
    SystemSpawn.spawn("jobs", body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_gets_every_argument() {
        let node = NodeRole {
            number: 3,
            dir: "/tmp/x".into(),
            manager: "127.0.0.1:7".to_owned(),
            bytes_max: 4,
            full_disk: true,
            seed: 9,
        };
        let words = Words::parse(node.words().into_iter().skip(2)).unwrap();
        assert_eq!(NodeRole::parse(&words).unwrap(), node);
    }

    #[test]
    fn executor_gets_every_argument() {
        let executor = ExecutorRole { manager: "127.0.0.1:7".to_owned() };
        let words = Words::parse(executor.words().into_iter().skip(2)).unwrap();
        assert_eq!(ExecutorRole::parse(&words).unwrap(), executor);
    }
}
