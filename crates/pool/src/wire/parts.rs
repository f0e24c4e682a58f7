//! The values that messages consist of, and the reasons of refusals.
//!
//! The types are plain values, and their functions are pure.

use std::fmt;

use archipelago_base::{Epoch, Error, ErrorKind, wire_enum, wire_struct};
use archipelago_fabric::{ClientId, NodeId};

use crate::address::BlockId;
use crate::config::{Config, Place, Sharing};

wire_struct!(BlockId { home, number });
wire_struct!(Place { node, life });
wire_enum!(Sharing { Owner = 0, All = 1 });
wire_struct!(Config { block, epoch, born, owner, label, request, sharing, wanted, copies });

/// A memory node, as the manager knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The node's id.
    pub node: NodeId,
    /// Life of the node.
    pub life: Epoch,
    /// Whether the manager gets beats of the node. If not, clients stop using the copies on this
    /// node.
    pub up: bool,
    /// Version of the list of members with which the node came up. A client that knew only an
    /// earlier version also stops using the copies on this node, because the node may have been
    /// left out in between.
    pub since: u64,
    /// Endpoints of the node: `tcp:HOST:PORT` or `shm:PATH`.
    pub endpoints: Vec<String>,
}
wire_struct!(Member { node, life, up, since, endpoints });

/// A block and one of its epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAt {
    /// Name of the block.
    pub block: BlockId,
    /// The present epoch of an owned block, the last epoch of a freed block, or the first epoch of
    /// a block in a list.
    pub epoch: Epoch,
}
wire_struct!(BlockAt { block, epoch });

/// The purpose of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The client uses the block at its epoch.
    Use,
    /// The client uses the block at its epoch, and its earlier keys to the block become invalid. It
    /// does not know the outcome of its last operations, and none of them may still arrive.
    Afresh,
    /// A node copies the sealed block.
    Copy,
}
wire_enum!(Purpose { Use = 0, Afresh = 1, Copy = 2 });

/// The copy from which a node fills a new copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The node that holds the copy.
    pub node: NodeId,
    /// Life of that node.
    pub life: Epoch,
    /// Endpoints of that node.
    pub endpoints: Vec<String>,
}
wire_struct!(Source { node, life, endpoints });

/// Progress of a node with an order about a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStep {
    /// The keys are revoked, but a process still has the memory mapped.
    Sealing,
    /// No client can write to the copy any more.
    Sealed,
    /// The node is copying the bytes.
    Filling,
    /// The copy has all bytes.
    Filled,
    /// The copy serves this epoch.
    Installed,
    /// The copy was dropped.
    Dropped,
}
wire_enum!(CopyStep {
    Sealing = 0,
    Sealed = 1,
    Filling = 2,
    Filled = 3,
    Installed = 4,
    Dropped = 5
});

/// A copy, as its node reports it to a manager that has taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyReport {
    /// Last configuration that the node received.
    pub config: Config,
    /// Smallest epoch that the node does not refuse.
    pub promised: Epoch,
    /// Whether the copy has all bytes.
    pub whole: bool,
    /// Whether the copy serves or served `config`.
    pub installed: bool,
}
wire_struct!(CopyReport { config, promised, whole, installed });

/// Number of refusals for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedFor {
    /// Reason of the refusals.
    pub why: Why,
    /// Number of refusals.
    pub count: u64,
}
wire_struct!(RefusedFor { why, count });

/// Counters of a memory node since its life began. No counter shrinks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// One-sided operations that the node executed for clients. Clients over `shm` execute their
    /// own, which are not counted.
    pub operations: u64,
    /// Requests that reached the node's protocol.
    pub requests: u64,
    /// Repeated requests that the node answered from memory.
    pub duplicates: u64,
    /// Operations, requests and attachments that the fabric refused.
    pub refused: u64,
    /// Links that the fabric closed because the client broke its protocol, or did not know the
    /// cluster's secret.
    pub malformed: u64,
    /// Copies of blocks that got memory.
    pub given: u64,
    /// Copies whose memory was given back. The other copies use memory now.
    pub freed: u64,
    /// Copies that were filled completely from another node.
    pub filled: u64,
    /// Bytes of the filled copies.
    pub filled_bytes: u64,
    /// Requests that the node's protocol refused, by reason. A reason that did not occur has no
    /// entry.
    pub refusals: Vec<RefusedFor>,
}
wire_struct!(NodeCounters {
    operations,
    requests,
    duplicates,
    refused,
    malformed,
    given,
    freed,
    filled,
    filled_bytes,
    refusals
});

/// The status of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Id, endpoints and liveness of the node.
    pub member: Member,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Number of blocks that fit.
    pub blocks_max: u64,
    /// Number of blocks that use memory now.
    pub blocks_used: u64,
    /// Milliseconds since the last message from it.
    pub heard_ms: u64,
    /// Counters of the node, as of its last beat.
    pub counters: NodeCounters,
}
wire_struct!(NodeStatus { member, block_bytes, blocks_max, blocks_used, heard_ms, counters });

/// The status of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientStatus {
    /// The client's id.
    pub client: ClientId,
    /// Label of the data that the client works on.
    pub label: u64,
    /// Milliseconds since the last message from it.
    pub heard_ms: u64,
    /// Number of blocks that the client owns.
    pub blocks: u64,
}
wire_struct!(ClientStatus { client, label, heard_ms, blocks });

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// The block has all copies, and clients read and write it.
    Whole,
    /// The block lacks copies, and clients read and write it.
    Short,
    /// The manager is changing the block, and clients can only read it.
    Changing,
    /// The block waits for a quorum of its copies.
    Waiting,
    /// The reports of the nodes are not sufficient to continue with the block.
    Unconfirmed,
    /// The block was released, and is freed after a lease.
    Released,
}
wire_enum!(BlockState {
    Whole = 0,
    Short = 1,
    Changing = 2,
    Waiting = 3,
    Unconfirmed = 4,
    Released = 5
});

/// The status of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockStatus {
    /// Owner, epoch and copies of the block.
    pub config: Config,
    /// State of the block.
    pub state: BlockState,
    /// Nodes that the block waits for.
    pub waits_for: Vec<NodeId>,
}
wire_struct!(BlockStatus { config, state, waits_for });

/// The manager's view of the cluster, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolStatus {
    /// The manager's term.
    pub term: u64,
    /// Whether the manager is still collecting reports after its start.
    pub rebuilding: bool,
    /// Number of copies that a block should have.
    pub copies: u32,
    /// Number of blocks of which every copy was lost since the manager's start.
    pub lost: u64,
    /// Status of each node.
    pub nodes: Vec<NodeStatus>,
    /// Status of each client.
    pub clients: Vec<ClientStatus>,
    /// Total number of blocks.
    pub blocks_total: u64,
    /// Status of the first blocks.
    pub blocks: Vec<BlockStatus>,
}
wire_struct!(PoolStatus { term, rebuilding, copies, lost, nodes, clients, blocks_total, blocks });

/// The reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The memory is full. The number is the bytes that are left. For a node, these are the bytes
    /// that its size still allows, even if the system gave it no more. For a cluster, it is the sum
    /// over the nodes that are up. Too few of them have room for the wanted number of copies.
    Full,
    /// The block has another epoch, which is the number.
    OldEpoch,
    /// The manager's term differs from the term that the refusing process knows. The number is the
    /// known term.
    OldTerm,
    /// The block does not exist.
    UnknownBlock,
    /// The block belongs to another client.
    NotOwner,
    /// The client's lease ran out, and other clients got its blocks.
    Evicted,
    /// The manager is collecting reports. The number is the time in milliseconds after which the
    /// sender should try again.
    Rebuilding,
    /// The block is changing, or waits for a node. The sender should try again later.
    Changing,
    /// Too few memory nodes are up. The number is the number of nodes that are up.
    NoNodes,
    /// The state of the copy does not allow the request.
    NotReady,
    /// The message cannot be read, or is not for this role.
    Malformed,
    /// The sender may not send this request.
    NotAllowed,
    /// The node cannot give more keys.
    NoKeys,
    /// The blocks of the cluster have another size, which is the number.
    BlockSize,
    /// This manager stands by. Another manager is in office, or none is.
    Standby,
    /// The node has promised to obey another manager, or has just started. The number is the time
    /// in milliseconds after which the sender should try again.
    Promised,
    /// The id of the node is too large. The managers were started for the memory nodes with ids
    /// from 1 to the number.
    Unlisted,
}
wire_enum!(Why {
    Full = 1,
    OldEpoch = 2,
    OldTerm = 3,
    UnknownBlock = 4,
    NotOwner = 5,
    Evicted = 6,
    Rebuilding = 7,
    Changing = 8,
    NoNodes = 9,
    NotReady = 10,
    Malformed = 11,
    NotAllowed = 12,
    NoKeys = 13,
    BlockSize = 14,
    Standby = 15,
    Promised = 16,
    Unlisted = 17
});

/// A refusal, with its reason and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Reason of the refusal.
    pub why: Why,
    /// Number that belongs to the reason; 0 if the reason has none.
    pub number: u64,
}
wire_struct!(Refused { why, number });

impl Refused {
    /// A refusal with a number.
    #[must_use]
    pub fn at(why: Why, number: u64) -> Self {
        Self { why, number }
    }

    /// The reaction that the caller can choose.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self.why {
            Why::Full
            | Why::Rebuilding
            | Why::Changing
            | Why::NoNodes
            | Why::NoKeys
            | Why::NotReady
            | Why::Standby
            | Why::Promised => ErrorKind::Busy,
            Why::OldEpoch | Why::OldTerm | Why::Evicted => ErrorKind::Fenced,
            Why::UnknownBlock => ErrorKind::NotFound,
            Why::NotOwner | Why::NotAllowed | Why::Malformed | Why::BlockSize | Why::Unlisted => {
                ErrorKind::InvalidArgument
            }
        }
    }

    /// The error for the refusal; `what` names the refused request.
    #[must_use]
    pub fn error(self, what: impl fmt::Display) -> Error {
        Error::new(self.kind(), format!("{what}: {self}"))
    }
}

impl Why {
    /// The reason in one or two words, for tables.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::OldEpoch => "old epoch",
            Self::OldTerm => "old term",
            Self::UnknownBlock => "unknown block",
            Self::NotOwner => "not owner",
            Self::Evicted => "evicted",
            Self::Rebuilding => "rebuilding",
            Self::Changing => "changing",
            Self::NoNodes => "no nodes",
            Self::NotReady => "not ready",
            Self::Malformed => "malformed",
            Self::NotAllowed => "not allowed",
            Self::NoKeys => "no keys",
            Self::BlockSize => "block size",
            Self::Standby => "standby",
            Self::Promised => "promised",
            Self::Unlisted => "unlisted",
        }
    }
}

impl From<Why> for Refused {
    fn from(why: Why) -> Self {
        Self { why, number: 0 }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number;
        match self.why {
            Why::Full => write!(f, "the memory nodes are full: {number} bytes are left"),
            Why::OldEpoch => write!(f, "the block is at epoch {number} now"),
            Why::OldTerm => write!(f, "another manager has taken over, in term {number}"),
            Why::UnknownBlock => f.write_str("there is no such block"),
            Why::NotOwner => f.write_str("the block belongs to another client"),
            Why::Evicted => f.write_str(
                "the client was silent for longer than its lease and its blocks were given away: join again",
            ),
            Why::Rebuilding => {
                write!(f, "the manager is collecting reports of the nodes; ready in {number} ms")
            }
            Why::Changing => f.write_str("the block is being changed or waits for a node"),
            Why::NoNodes => write!(f, "too few memory nodes are up: {number}"),
            Why::NotReady => f.write_str("the node's copy is not in a state for this"),
            Why::Malformed => f.write_str("the message cannot be read, or is not for this role"),
            Why::NotAllowed => f.write_str("the sender may not send this request"),
            Why::NoKeys => f.write_str("the node has no free key"),
            Why::Standby => f.write_str("this manager stands by; another one acts, or a majority of the memory nodes is silent"),
            Why::Promised => {
                write!(f, "the node has promised to obey another manager for {number} ms more")
            }
            Why::Unlisted => write!(f, "the managers were started for memory nodes 1 to {number}: start them with a larger --memory-nodes"),
            Why::BlockSize => write!(f, "the cluster's blocks have {number} bytes: start the node with the same size"),
        }
    }
}
