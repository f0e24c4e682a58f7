//! Logs on several nodes, as state machines without I/O: the writer and the recovery.
//!
//! A log is a sequence of *extents*. Each extent lies on three nodes, or on two where the pool has
//! two domains, and every replica is a prefix of it. The writer ends an extent when a replica
//! fails, and goes on in the next one ([`quorum`]). A new owner fences the nodes of the last extent
//! and decides where the log ends ([`recovery`]). Terark-DS (§4.2.2) commits when two of three
//! replicas have the bytes. It recovers from the answers of two replicas, without a leader. Large
//! appends may be cut over several logs ([`segments`]).
//!
//! [`LogLayout`] alone decides which extents a log has. The owner keeps it durably, in the
//! namespace or in the register. Offsets are those of the log, not of the extent.

pub mod quorum;
pub mod recovery;
pub mod segments;

use super::StorageId;

/// Rule by which replicas acknowledge an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckRule {
    /// Two of three replicas have the bytes, as for write-ahead logs. If there are only two
    /// replicas, both have them.
    Quorum,
    /// All replicas have synced the bytes, as for manifests and namespaces.
    AllSynced,
}

impl AckRule {
    /// Number of answers that acknowledge an append to `replicas` replicas.
    #[must_use]
    pub const fn answers(self, replicas: usize) -> usize {
        match self {
            Self::Quorum => replicas / 2 + 1,
            Self::AllSynced => replicas,
        }
    }

    /// Number of replicas among which every acknowledged byte is found at least once.
    #[must_use]
    pub const fn recovery_answers(self, replicas: usize) -> usize {
        replicas - self.answers(replicas) + 1
    }
}

/// An extent of a log, as the layout records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentRecord {
    /// Number of the extent, which the log never uses twice.
    pub number: u32,
    /// Offset in the log of its first byte.
    pub start: u64,
    /// Offset at which it ends; `None` while a writer appends to it. Bytes behind the end do not
    /// exist.
    pub end: Option<u64>,
    /// Nodes of its replicas.
    pub nodes: Vec<StorageId>,
    /// Whether all bytes are known to be durable on two of the nodes, or on the only one. A
    /// recovery reads the extents that are not sealed, since several nodes may have lost unsynced
    /// bytes.
    pub is_sealed: bool,
}

/// A replica of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplicaId {
    /// Number of the extent.
    pub extent: u32,
    /// Node of the replica.
    pub node: StorageId,
}

/// Number of nodes that make the bytes of an ended extent durable.
const SEALED_COPIES: usize = 2;

/// The extents of a log, in order and without gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogLayout {
    /// The extents. Only the last one may be without an end.
    pub extents: Vec<ExtentRecord>,
    /// Whether the log takes no more appends. All extents then have an end, and are sealed.
    pub is_ended: bool,
    /// Whether the recovery that recorded the end may have missed acknowledged bytes without a
    /// sync. The layout has this flag, so that every later recovery reports the same. The fact was
    /// durable elsewhere before a node sealed ([`recovery::RecoveryAction::KeepLoss`]), because a
    /// recovery may end before it records the layout.
    pub may_miss_unsynced: bool,
}

impl LogLayout {
    /// End of the last extent that has one: the length of a log that has ended.
    #[must_use]
    pub fn ended_bytes(&self) -> u64 {
        self.extents.iter().filter_map(|extent| extent.end).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
