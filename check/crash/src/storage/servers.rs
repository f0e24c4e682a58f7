//! The storage nodes of a run, each in a process of its own.
//!
//! A server runs until its input ends. It prints one line, [`READY`] and its address, when it
//! serves.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use archipelago::Result;
use archipelago_fabric::NodeId;
use archipelago_storage::{NodeOptions, StorageServer, StorageSettings};

use crate::children::{READY, Words, say, wait_for_end_of_input};
use crate::shared_disk::SharedDisk;

/// A storage node with one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeRole {
    /// Number of the node, and of its domain.
    pub(super) number: u64,
    pub(super) dir: PathBuf,
    /// Address of the manager: `HOST:PORT`.
    pub(super) manager: String,
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
            .with("full_disk", u64::from(self.full_disk))
            .with("seed", self.seed)
            .command_line(Self::NAME)
    }

    pub(super) fn parse(words: &Words) -> Result<Self, String> {
        Ok(Self {
            number: words.number("number")?,
            dir: words.path("dir")?,
            manager: words.text("manager")?.to_owned(),
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
            node: NodeOptions::default(),
        };
        if !self.full_disk {
            return serve(StorageServer::start(settings)?);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_gets_every_argument() {
        let node = NodeRole {
            number: 3,
            dir: "/tmp/x".into(),
            manager: "127.0.0.1:7".to_owned(),
            full_disk: true,
            seed: 9,
        };
        let words = Words::parse(node.words().into_iter().skip(2)).unwrap();
        assert_eq!(NodeRole::parse(&words).unwrap(), node);
    }
}
