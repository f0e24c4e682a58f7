//! Values of repairs: reports of nodes about their chunks and extents, and reports of the manager
//! to operators.
//!
//! The types are plain values.

use archipelago_base::wire_struct;
use archipelago_env::FileClass;

use super::super::StorageId;
use super::parts::{ChunkDescriptor, ExtentAt};
use crate::ids::VolumeId;

/// A chunk that a node has a record of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldChunk {
    /// Descriptor of the chunk.
    pub descriptor: ChunkDescriptor,
    /// Whether the node can read the chunk. A damaged chunk, or one on a missing device, is listed
    /// as well.
    pub is_readable: bool,
}
wire_struct!(HeldChunk { descriptor, is_readable });

/// Files that have replicas in place of RS(4,2), because domains were missing when they were
/// written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodingDue {
    /// Number of files.
    pub files: u64,
    /// Length of these files in bytes.
    pub bytes: u64,
}
wire_struct!(CodingDue { files, bytes });

/// A chunk that a node lacks, although the holders of its blob name the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingChunk {
    /// Node that lacks the chunk.
    pub storage: StorageId,
    /// Descriptor of the missing chunk.
    pub descriptor: ChunkDescriptor,
}
wire_struct!(MissingChunk { storage, descriptor });

/// An extent that takes no more bytes, on a node that has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedExtent {
    /// Log and number of the extent.
    pub at: ExtentAt,
    /// Volume of the log.
    pub volume: VolumeId,
    /// Class of the file.
    pub class: FileClass,
    /// Offset in the log at which the extent begins.
    pub start: u64,
    /// Offset at which it was sealed.
    pub end: u64,
}
wire_struct!(SealedExtent { at, volume, class, start, end });

/// Chunks that are missing because a node is lost or damaged, or that must leave a draining node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDebt {
    /// Node that is lost, drains, or has damage.
    pub storage: StorageId,
    /// Number of chunks that are to be made on another node.
    pub chunks: u64,
    /// Bytes of these chunks.
    pub bytes: u64,
    /// Number of objects that cannot be made now.
    pub stuck: u64,
    /// Some of these objects, each with the reason.
    pub examples: Vec<String>,
}
wire_struct!(NodeDebt { storage, chunks, bytes, stuck, examples });

/// Repairs of the cluster, as the manager knows them. All counters begin with the manager's life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairStatus {
    /// Whether all nodes have listed all that they hold since the last change of the members.
    pub is_known: bool,
    /// Number of chunks that are to be made.
    pub chunks_left: u64,
    /// Bytes of the chunks and extents that are to be made.
    pub bytes_left: u64,
    /// Number of copies of extents that are to be made.
    pub extents_left: u64,
    /// Number of blobs and sealed extents with fewer copies than wanted, because the cluster has
    /// too few domains. If a node that leaves has a copy of such an object, the object counts for
    /// that node instead.
    pub waiting_for_domains: u64,
    /// Number of blobs and extents of which the nodes that answer hold too little for a repair.
    pub unrepairable: u64,
    /// Number of chunks that were made.
    pub chunks_repaired: u64,
    /// Number of copies of extents that were made.
    pub extents_repaired: u64,
    /// Bytes of the chunks and extents that were made.
    pub bytes_repaired: u64,
    /// Number of repairs that failed. Each is tried again.
    pub failed: u64,
    /// Debt by node. A node without debt has no entry.
    pub nodes: Vec<NodeDebt>,
    /// Number of extents that lack a copy, unless a node that does not list its extents has that
    /// copy.
    pub extents_unknown: u64,
    /// Number of extents that the last round compared.
    pub extents_compared: u64,
    /// Whether further extents follow, which the next rounds compare.
    pub has_more_extents: bool,
    /// Nodes that answer, and that did not list their chunks and extents.
    pub unlisted: Vec<StorageId>,
    /// Number of blobs and extents with two parts or copies in one domain, for which no other
    /// domain has room, or which wait because a label of a node has changed lately.
    pub sharing_domains: u64,
    /// Number of files with replicas in place of RS(4,2), because domains were missing when they
    /// were written.
    pub coding_files: u64,
    /// Length of these files in bytes.
    pub coding_bytes: u64,
    /// Number of extents that lack a copy because the nodes that would get one refuse it. These
    /// nodes keep longer replicas of their own. Such extents count neither as left nor as failed.
    pub extents_refused: u64,
}
wire_struct!(RepairStatus {
    is_known,
    chunks_left,
    bytes_left,
    extents_left,
    waiting_for_domains,
    unrepairable,
    chunks_repaired,
    extents_repaired,
    bytes_repaired,
    failed,
    nodes,
    extents_unknown,
    extents_compared,
    has_more_extents,
    unlisted,
    sharing_domains,
    coding_files,
    coding_bytes,
    extents_refused,
});
