//! The calls of the driver to storage nodes, as a trait. [`NodeClient`] makes them over the
//! network, and tests have nodes in memory.
//!
//! Every call may be repeated: a node that has carried it out answers the same again.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a [`NodeFailure`] says how the caller goes on. After `Unanswered` the call may have
//! been carried out.
//! Cost: one round trip per call.
//!
//! [`NodeClient`]: super::super::client::NodeClient

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::runtime::Boxed;
use archipelago_env::FileClass;
use archipelago_fabric::TrafficClass;

use super::super::StorageId;
use super::super::client::ClientStats;
use super::super::placement::{NodeReport, WritePurpose};
use super::super::wire::{BlobEntry, ChunkDescriptor, ChunkId, Stamp};
use crate::ids::{BlobId, VolumeId};

/// Reason for which a call to a node failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeFailure {
    /// The node has promised a later epoch of the volume.
    Fenced(String),
    /// The node is overloaded. The caller may repeat the call soon.
    Busy(String),
    /// The node is too full.
    Full(String),
    /// The chunk was sealed before with other contents.
    Sealed(String),
    /// The node has no such chunk.
    NotThere,
    /// The chunk on the node ends before the offset of the bytes.
    OutOfOrder,
    /// The bytes of the chunk do not have their checksums.
    Damaged(String),
    /// The node refuses for another reason.
    Refused(String),
    /// No answer came in time, and the call may have been carried out.
    Unanswered(String),
    /// The node cannot be reached, and the call was not carried out.
    Unreachable(String),
}

impl NodeFailure {
    /// Whether the same call may succeed at the same node a little later.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Busy(_) | Self::OutOfOrder | Self::Unanswered(_))
    }

    /// Whether the node has promised a later epoch of the volume.
    pub(crate) fn is_fence(&self) -> bool {
        matches!(self, Self::Fenced(_))
    }

    /// Whether the node did not answer.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, Self::Unanswered(_) | Self::Unreachable(_))
    }
}

impl fmt::Display for NodeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fenced(text)
            | Self::Busy(text)
            | Self::Full(text)
            | Self::Sealed(text)
            | Self::Damaged(text)
            | Self::Refused(text)
            | Self::Unanswered(text)
            | Self::Unreachable(text) => f.write_str(text),
            Self::NotThere => f.write_str("the node has no such chunk"),
            Self::OutOfOrder => f.write_str("the chunk ends before the offset of the bytes"),
        }
    }
}

/// The outcome of a call.
pub(crate) type Called<'a, T> = Boxed<'a, Result<T, NodeFailure>>;

/// Terms on which a call travels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTerms {
    /// Class by which the client's card orders the call.
    pub(crate) class: TrafficClass,
    /// Time after which the call fails as unanswered.
    pub(crate) deadline: Duration,
    /// Class of the file, for counters.
    pub(crate) file: FileClass,
}

/// Bytes of a chunk that is being written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkPut<'a> {
    /// Chunk that the bytes belong to.
    pub(crate) chunk: ChunkId,
    /// Writer's volume and epoch.
    pub(crate) stamp: Stamp,
    /// Class of the file.
    pub(crate) class: FileClass,
    /// Purpose of the write, which decides how full the node may become.
    pub(crate) purpose: WritePurpose,
    /// Offset in the chunk, a multiple of the piece size.
    pub(crate) offset: u64,
    /// The bytes: whole pieces, except at the end of the chunk.
    pub(crate) bytes: &'a [u8],
    /// Checksums of the pieces.
    pub(crate) crcs: &'a [u32],
}

/// The pieces of the ranges that a read asked for, one range after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunkPieces {
    /// Bytes of all ranges.
    pub(crate) bytes: Vec<u8>,
    /// Checksums of all pieces.
    pub(crate) crcs: Vec<u32>,
}

/// A part of the list of a volume's blobs on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlobList {
    /// The blobs, in the order of their identities.
    pub(crate) blobs: Vec<BlobEntry>,
    /// Whether further blobs follow.
    pub(crate) has_more: bool,
}

/// The nodes of a cluster that keep chunks.
pub(crate) trait ChunkNodes: Send + Sync + fmt::Debug + 'static {
    /// Counters of the client, to which the driver adds its own events.
    fn stats(&self) -> &ClientStats;

    /// Reports of the managers about all nodes.
    fn reports(&self) -> Boxed<'_, Vec<NodeReport>>;

    /// The nodes whose answers a removal of everything needs: those that are not lost for good.
    /// Errors: `Busy` if no manager answers, or if the manager may not know all nodes yet.
    fn awaited(&self) -> Boxed<'_, Result<Vec<StorageId>>>;

    /// Those of `nodes` that are lost for good, as the managers say. Empty if no manager answers.
    fn lost<'a>(&'a self, nodes: &'a [StorageId]) -> Boxed<'a, Vec<StorageId>>;

    /// Appends bytes to a chunk. Bytes at offset 0 create it. Calls for one chunk that are begun
    /// one after the other arrive in that order.
    fn put<'a>(&'a self, to: StorageId, put: ChunkPut<'a>, terms: CallTerms) -> Called<'a, ()>;

    /// Makes a chunk durable with its descriptor. A descriptor of a larger placement epoch replaces
    /// the one that the chunk has.
    fn seal<'a>(
        &'a self,
        to: StorageId,
        stamp: Stamp,
        descriptor: &'a ChunkDescriptor,
        terms: CallTerms,
    ) -> Called<'a, ()>;

    /// Reads ranges of a chunk that begin and end at pieces. A chunk without a seal is readable as
    /// well, because a replacement of a failed node is filled from the unsealed chunks of the
    /// others.
    fn read<'a>(
        &'a self,
        from: StorageId,
        chunk: ChunkId,
        ranges: &'a [Range<u64>],
        terms: CallTerms,
    ) -> Called<'a, ChunkPieces>;

    /// The descriptors of a blob's sealed chunks on a node.
    fn describe(
        &self,
        from: StorageId,
        blob: BlobId,
        terms: CallTerms,
    ) -> Called<'_, Vec<ChunkDescriptor>>;

    /// Adds the volume of the stamp to the set of a sealed blob.
    fn retain(&self, at: StorageId, blob: BlobId, stamp: Stamp, terms: CallTerms)
    -> Called<'_, ()>;

    /// Takes a volume out of the sets of blobs, sealed or not.
    fn release<'a>(
        &'a self,
        at: StorageId,
        blobs: &'a [BlobId],
        stamp: Stamp,
        terms: CallTerms,
    ) -> Called<'a, ()>;

    /// Lists the blobs of a volume after `after`, sealed or not.
    fn list(
        &self,
        at: StorageId,
        volume: VolumeId,
        after: Option<BlobId>,
        terms: CallTerms,
    ) -> Called<'_, BlobList>;

    /// Makes a node refuse older epochs of the volume. The promise is durable when it is answered.
    fn promise(&self, at: StorageId, stamp: Stamp, terms: CallTerms) -> Called<'_, ()>;

    /// Drops the unsealed chunks of a blob on a node that another node has replaced.
    fn abandon(
        &self,
        at: StorageId,
        blob: BlobId,
        stamp: Stamp,
        terms: CallTerms,
    ) -> Called<'_, ()>;

    /// Reports the damaged piece at `offset` of a chunk to its node, which checks the chunk.
    fn report_damage(
        &self,
        at: StorageId,
        chunk: ChunkId,
        offset: u64,
        terms: CallTerms,
    ) -> Called<'_, ()>;
}
