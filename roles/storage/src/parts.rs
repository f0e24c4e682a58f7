//! Values that the parts of a node share: its options, and the owners of files, metadata and
//! promises.
//!
//! The module consists of plain values.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_env::FileSystem;
use archipelago_store::nodes::StorageId;

use crate::counters::Counters;
use crate::devices::Devices;
use crate::epochs::Epochs;
use crate::meta::{Meta, MetaThreads};
use crate::sabotage::Sabotage;
use crate::tombstones::Tombstones;

/// When and how fast a node checks its stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubOptions {
    /// Time between the beginnings of two rounds. Default: 14 days.
    pub interval: Duration,
    /// Fastest rate of a round, in bytes per second. Rounds that an operator asks for run at this
    /// rate. Default: 32 MiB.
    pub bytes_per_s_max: u64,
}

impl Default for ScrubOptions {
    fn default() -> Self {
        Self { interval: Duration::from_secs(14 * 24 * 3600), bytes_per_s_max: 32 << 20 }
    }
}

/// Options of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions {
    /// Threads of the metadata database. Default: one of its own.
    pub meta_threads: MetaThreads,
    /// Bytes that the node may use on each device; `None` for all that the device has. Default:
    /// none.
    pub device_bytes_max: Option<u64>,
    /// Bytes that each volume may occupy on the node with chunks; `None` for no limit. Default:
    /// none.
    pub volume_bytes_max: Option<u64>,
    /// When and how fast the node checks its stored bytes. Default: every 14 days.
    pub scrub: ScrubOptions,
    /// Life of the process, as the fabric and the managers know it. Default: 0.
    pub life: Epoch,
    /// Set of nodes that fail together with this one, for the status. Default: empty.
    pub domain: String,
    /// Steps that a checker leaves out. Default: none.
    pub sabotage: Sabotage,
    /// Seed of the identity of a new node; `None` for entropy. Default: none.
    pub seed: Option<u64>,
}

/// Values that the parts of a node share.
#[derive(Clone, Debug)]
pub(crate) struct NodeParts {
    /// The file system of all devices.
    pub(crate) fs: Arc<dyn FileSystem>,
    /// The directories of the devices. The first one has the metadata.
    pub(crate) devices: Arc<Devices>,
    /// Metadata of the node.
    pub(crate) meta: Arc<Meta>,
    /// The promised epochs.
    pub(crate) epochs: Arc<Epochs>,
    /// Tombstones of the last removals.
    pub(crate) tombstones: Arc<Tombstones>,
    /// Counters of this life.
    pub(crate) counters: Arc<Counters>,
    /// Identity of the node.
    pub(crate) storage: StorageId,
    /// Options of the node.
    pub(crate) options: NodeOptions,
}
