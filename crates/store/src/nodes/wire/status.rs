//! Reports of storage nodes about themselves, and the status of the cluster for operators.
//!
//! The types are plain values.

use archipelago_base::wire_struct;
use archipelago_env::FileClass;
use archipelago_fabric::ClusterId;

use super::super::register::caspaxos::RootSet;
use super::parts::{NodeSpace, StorageMember};
use super::repair::RepairStatus;
use crate::ids::VolumeId;

/// A device of a storage node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceStatus {
    /// Directory of the device.
    pub path: String,
    /// Room of the device.
    pub space: NodeSpace,
    /// Whether the device failed, so that its chunks and extents cannot be read.
    pub is_failed: bool,
}
wire_struct!(DeviceStatus { path, space, is_failed });

/// Space that a class of a volume's files uses on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSpace {
    /// Volume under which the bytes were written.
    pub volume: VolumeId,
    /// Class of the files.
    pub class: FileClass,
    /// Number of chunks and extents.
    pub objects: u64,
    /// Bytes of the files of the chunks and extents.
    pub bytes: u64,
    /// Share of the lengths of blobs and logs, without copies and parity. The shares of all nodes
    /// add up to the lengths.
    pub logical_bytes: u64,
}
wire_struct!(VolumeSpace { volume, class, objects, bytes, logical_bytes });

/// Reads and writes of a class of files since the life of the node began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassTraffic {
    /// Class of the files.
    pub class: FileClass,
    /// Number of requests that read.
    pub reads: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Number of requests that wrote.
    pub writes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
}
wire_struct!(ClassTraffic { class, reads, read_bytes, writes, written_bytes });

/// Counters of a storage node since its life began. No counter shrinks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageCounters {
    /// Requests that reached the node's protocol.
    pub requests: u64,
    /// Requests that the node refused for any reason.
    pub refused: u64,
    /// Requests that were refused because their epoch was older than the promised one.
    pub refused_fenced: u64,
    /// Requests that were refused because the node was overloaded.
    pub refused_busy: u64,
    /// Requests that were refused because the node was too full.
    pub refused_full: u64,
    /// Pieces and groups that did not have their checksums when they were read.
    pub damaged: u64,
    /// Syncs of files.
    pub syncs: u64,
    /// Reads and writes by class. A class without any has no entry.
    pub traffic: Vec<ClassTraffic>,
}
wire_struct!(StorageCounters {
    requests,
    refused,
    refused_fenced,
    refused_busy,
    refused_full,
    damaged,
    syncs,
    traffic,
});

/// Progress of the scrub, which reads all chunks and checks them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStatus {
    /// Number of rounds that were completed since the life of the node began.
    pub rounds: u64,
    /// Whether a round is running.
    pub is_running: bool,
    /// Bytes that the present or last round has read.
    pub read_bytes: u64,
    /// Bytes that the present or last round reads in total.
    pub total_bytes: u64,
    /// Chunks and extents whose damage the present or last round has found.
    pub damaged_chunks: u64,
    /// Chunks and extents that the present or last round could not read, for another reason than
    /// damage. The next round tries again.
    pub unread: u64,
}
wire_struct!(ScrubStatus { rounds, is_running, read_bytes, total_bytes, damaged_chunks, unread });

/// Bytes of the files of chunks that a node does not serve. They count as used bytes, and as bytes
/// of their volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnservedBytes {
    /// Chunks that are being written, or whose writers have given them up, in whole pieces.
    pub unsealed: u64,
    /// Damaged files that were set aside, until a repair or the release of their blob.
    pub damaged: u64,
    /// Files of chunks that were given up, and that are being deleted.
    pub removed: u64,
}
wire_struct!(UnservedBytes { unsealed, damaged, removed });

impl UnservedBytes {
    /// Bytes that are certainly garbage. Unsealed chunks are not among them, because a node does
    /// not know which of them their writers continue.
    #[must_use]
    pub fn garbage_bytes(&self) -> u64 {
        self.damaged.saturating_add(self.removed)
    }
}

/// State and counters of a storage node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageReport {
    /// Room of all devices together.
    pub space: NodeSpace,
    /// Devices of the node.
    pub devices: Vec<DeviceStatus>,
    /// Number of sealed chunks.
    pub chunks: u64,
    /// Number of sealed chunks that cannot be read, because they are damaged, or because their
    /// device is missing.
    pub chunks_unreadable: u64,
    /// Number of chunks that are being written.
    pub chunks_unsealed: u64,
    /// Number of extents.
    pub extents: u64,
    /// Number of extents that are not sealed.
    pub extents_open: u64,
    /// Number of extents that may have lost unsynced bytes.
    pub extents_in_limbo: u64,
    /// Space by volume and class, for at most 1,024 pairs.
    pub volumes: Vec<VolumeSpace>,
    /// Counters since the life of the node began.
    pub counters: StorageCounters,
    /// Progress of the scrub.
    pub scrub: ScrubStatus,
    /// Bytes that the tables, value files and other blobs of each volume may occupy on the node;
    /// `None` for no limit.
    pub volume_bytes_max: Option<u64>,
    /// Bytes of the files of chunks that the node does not serve.
    pub unserved: UnservedBytes,
    /// Length of the files of the node's metadata, in bytes. They do not count as used bytes.
    /// `None` if the node has not asked its file system.
    pub metadata_bytes: Option<u64>,
}
wire_struct!(StorageReport {
    space,
    devices,
    chunks,
    chunks_unreadable,
    chunks_unsealed,
    extents,
    extents_open,
    extents_in_limbo,
    volumes,
    counters,
    scrub,
    volume_bytes_max,
    unserved,
    metadata_bytes,
});

impl StorageReport {
    /// Number of objects for which a draining node is still needed: its chunks, and its open
    /// extents. A sealed extent stays on the node, because a recovery with an old layout may ask
    /// for it. The copies of sealed extents count for the whole cluster
    /// ([`RepairStatus::extents_left`]).
    #[must_use]
    pub fn needed_objects(&self) -> u64 {
        self.chunks + self.chunks_unsealed + self.extents_open
    }
}

/// A storage node in the status of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStanding {
    /// Node, as the manager knows it.
    pub member: StorageMember,
    /// Milliseconds since the last beat of the node.
    pub silent_ms: u64,
    /// The last report of the node.
    pub report: StorageReport,
}
wire_struct!(NodeStanding { member, silent_ms, report });

/// The manager's view of the storage nodes, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageClusterStatus {
    /// Identity of the cluster; `None` before it is founded.
    pub cluster: Option<ClusterId>,
    /// The newest root set that a node has reported; number 0 before the cluster is founded.
    pub root_set: RootSet,
    /// Silence, in milliseconds, after which a node counts as lost.
    pub lost_after_ms: u64,
    /// Sentence that names the condition for which the manager waits. Empty if it waits for
    /// nothing.
    pub waits_for: String,
    /// The nodes, by identity.
    pub nodes: Vec<NodeStanding>,
    /// State of the repairs.
    pub repair: RepairStatus,
}
wire_struct!(StorageClusterStatus { cluster, root_set, lost_after_ms, waits_for, nodes, repair });
