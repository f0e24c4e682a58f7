//! The memory nodes and the executors of a run, each in a process of its own.
//!
//! A memory node has an executor in its process, which reads the images of flushes in place.

use std::path::PathBuf;

use archipelago::Result;
use archipelago_fabric::NodeId;
use archipelago_memory::{MemoryServer, MemorySettings};
use archipelago_offload::net::{ExecutorServer, ExecutorSettings};

use crate::children::{READY, Words, follow_input, say};

/// Memory that a node lends.
const MEMORY_BYTES: u64 = 64 << 20;
/// Size of a block of that memory.
const BLOCK_BYTES: u64 = 1 << 20;
/// Jobs that an executor runs at the same time.
const SLOTS: u32 = 2;

/// Begin of the line in which a memory node reports the number of its shards, and of its unused
/// grants.
pub(super) const LEFT: &str = "left: ";
/// Line that asks a memory node for that number.
pub(super) const TELL_LEFT: &str = "what is left?";

/// A memory node, with an executor of jobs of databases below `share`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemoryRole {
    pub(super) number: u64,
    /// Address of the manager: `HOST:PORT`.
    pub(super) manager: String,
    pub(super) share: PathBuf,
}

impl MemoryRole {
    pub(super) const NAME: &str = "memory";

    pub(super) fn words(&self) -> Vec<String> {
        Words::default()
            .with("number", self.number)
            .with("manager", &self.manager)
            .with("share", self.share.display())
            .command_line(Self::NAME)
    }

    pub(super) fn parse(words: &Words) -> std::result::Result<Self, String> {
        Ok(Self {
            number: words.number("number")?,
            manager: words.text("manager")?.to_owned(),
            share: words.path("share")?,
        })
    }

    /// Serves until the input ends, and answers [`TELL_LEFT`].
    pub(super) fn run(&self) -> Result<()> {
        let manager = format!("tcp:{}", self.manager);
        let listen = "tcp:127.0.0.1:0".to_owned();
        let mut settings =
            MemorySettings::new(NodeId(self.number), MEMORY_BYTES, listen, manager.clone());
        settings.block_bytes = BLOCK_BYTES;
        let server = MemoryServer::start(settings)?;
        let executor = ExecutorServer::start(ExecutorSettings {
            hosted: Some(server.shard_host()),
            address: server.addresses().join(" "),
            ..executor_settings(manager, self.share.clone())
        })?;
        say(&format!("{READY}{}", server.addresses().join(" ")));
        follow_input(|line| {
            if line == TELL_LEFT {
                let figures = server.shard_host().figures();
                let (shards, grants) =
                    figures.map_or((0, 0), |figures| (figures.shards, figures.grants));
                say(&format!("{LEFT}{shards} {grants}"));
            }
        });
        // Jobs read the memory of the node, so they end first.
        drop(executor);
        Ok(())
    }
}

/// An executor of jobs of databases below `share`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExecutorRole {
    /// Address of the manager: `HOST:PORT`.
    pub(super) manager: String,
    pub(super) share: PathBuf,
}

impl ExecutorRole {
    pub(super) const NAME: &str = "executor";

    pub(super) fn words(&self) -> Vec<String> {
        Words::default()
            .with("manager", &self.manager)
            .with("share", self.share.display())
            .command_line(Self::NAME)
    }

    pub(super) fn parse(words: &Words) -> std::result::Result<Self, String> {
        Ok(Self { manager: words.text("manager")?.to_owned(), share: words.path("share")? })
    }

    /// Runs jobs until the input ends.
    pub(super) fn run(&self) -> Result<()> {
        let manager = format!("tcp:{}", self.manager);
        let executor = ExecutorServer::start(ExecutorSettings {
            address: format!("process {}", std::process::id()),
            ..executor_settings(manager, self.share.clone())
        })?;
        // It listens nowhere.
        say(READY);
        follow_input(|_| {});
        drop(executor);
        Ok(())
    }
}

fn executor_settings(manager: String, share: PathBuf) -> ExecutorSettings {
    ExecutorSettings {
        managers: vec![manager],
        slots: SLOTS,
        shares: vec![share],
        ..ExecutorSettings::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: Vec<String>) -> Words {
        Words::parse(line.into_iter().skip(2)).unwrap()
    }

    #[test]
    fn servers_get_every_argument() {
        let manager = "127.0.0.1:7".to_owned();
        let memory = MemoryRole { number: 2, manager: manager.clone(), share: "/tmp/x".into() };
        assert_eq!(MemoryRole::parse(&parsed(memory.words())).unwrap(), memory);
        let executor = ExecutorRole { manager, share: "/tmp/x".into() };
        assert_eq!(ExecutorRole::parse(&parsed(executor.words())).unwrap(), executor);
    }
}
