//! What messages are made of.

use std::fmt;

use archipelago_base::{Epoch, Error, ErrorKind};
use archipelago_fabric::{ClientId, NodeId};

use crate::address::BlockId;
use crate::config::Config;
use crate::{wire_enum, wire_struct};

/// A memory node as the manager knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Which.
    pub node: NodeId,
    /// In which life.
    pub life: Epoch,
    /// Whether it is heard of. A client that was told no keeps nothing of that node in use.
    pub up: bool,
    /// The members' version since which it is. A client that knew an earlier one keeps nothing of
    /// that node either: it may have been left behind in between.
    pub since: u64,
    /// Where it is reached: `tcp:HOST:PORT`, `shm:PATH`.
    pub endpoints: Vec<String>,
}
wire_struct!(Member { node, life, up, since, endpoints });

/// A block at an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAt {
    /// Which.
    pub block: BlockId,
    /// When: of what is owned, now; of what was freed, up to then; of what was looked for, its
    /// first.
    pub epoch: Epoch,
}
wire_struct!(BlockAt { block, epoch });

/// What a key is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To use the block at its epoch.
    Use,
    /// The same, and keys that this client had for the block become invalid: it does not know what
    /// came of its last operations, and none may still arrive.
    Afresh,
    /// To copy the sealed block to another node.
    Copy,
}
wire_enum!(Purpose { Use = 0, Afresh = 1, Copy = 2 });

/// Where a new copy is filled from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub life: Epoch,
    /// Where it is reached.
    pub endpoints: Vec<String>,
}
wire_struct!(Source { node, life, endpoints });

/// How far a node is with what it was told about a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStep {
    /// Keys are revoked; a process still has the memory mapped.
    Sealing,
    /// Nobody writes to it any more.
    Sealed,
    /// Bytes are on the way.
    Filling,
    /// It has all bytes.
    Filled,
    /// It serves this epoch.
    Installed,
    /// It is not there any more.
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

/// A copy as its node reports it to a manager that took over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyReport {
    /// The last configuration that it was told.
    pub config: Config,
    /// It refuses everything of a smaller epoch.
    pub promised: Epoch,
    /// Whether it has all bytes.
    pub whole: bool,
    /// Whether it serves, or served, `config`.
    pub installed: bool,
}
wire_struct!(CopyReport { config, promised, whole, installed });

/// Refusals of one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedFor {
    /// Why.
    pub why: Why,
    /// How often.
    pub count: u64,
}
wire_struct!(RefusedFor { why, count });

/// What a memory node counted since its life began; nothing of it shrinks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// One-sided operations that the node executed for clients; those of `shm` execute their own
    /// and are not in it.
    pub operations: u64,
    /// Requests that reached the node's protocol.
    pub requests: u64,
    /// Requests that came again and were answered from memory.
    pub duplicates: u64,
    /// Operations, requests and attachments that the fabric refused.
    pub refused: u64,
    /// Links that the fabric closed because the client broke its protocol.
    pub malformed: u64,
    /// Copies of blocks that were given memory.
    pub given: u64,
    /// Of these, copies whose memory was given back; the rest takes memory now.
    pub freed: u64,
    /// Copies whose bytes came from another node, all of them.
    pub filled: u64,
    /// Bytes of these copies.
    pub filled_bytes: u64,
    /// Requests that the node's protocol refused, by reason; reasons that did not occur are left
    /// out.
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

/// A node in the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Which, where, whether it is up.
    pub member: Member,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks that fit.
    pub blocks_max: u64,
    /// Blocks that take memory now.
    pub blocks_used: u64,
    /// Milliseconds since it was heard.
    pub heard_ms: u64,
    /// What it counted, as of its last beat.
    pub counters: NodeCounters,
}
wire_struct!(NodeStatus { member, block_bytes, blocks_max, blocks_used, heard_ms, counters });

/// A client in the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientStatus {
    /// Who.
    pub client: ClientId,
    /// Whose data it works on.
    pub label: u64,
    /// Milliseconds since it was heard.
    pub heard_ms: u64,
    /// Blocks that it owns.
    pub blocks: u64,
}
wire_struct!(ClientStatus { client, label, heard_ms, blocks });

/// How a block fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// As many copies as wanted; written and read.
    Whole,
    /// Written and read, with fewer copies than wanted.
    Short,
    /// Being changed; read only meanwhile.
    Changing,
    /// It waits for a quorum of its copies.
    Waiting,
    /// Known from reports that do not suffice to go on.
    Unconfirmed,
    /// Released; freed after a lease.
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

/// A block in the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockStatus {
    /// Owner, epoch, copies.
    pub config: Config,
    /// How it fares.
    pub state: BlockState,
    /// Nodes that are waited for.
    pub waits_for: Vec<NodeId>,
}
wire_struct!(BlockStatus { config, state, waits_for });

/// Everything that the manager knows, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolStatus {
    /// The manager's term.
    pub term: u64,
    /// Whether it is still gathering reports after its start.
    pub rebuilding: bool,
    /// Copies that a block is to have.
    pub copies: u32,
    /// Blocks of which every copy was lost, since the manager's start.
    pub lost: u64,
    /// Nodes.
    pub nodes: Vec<NodeStatus>,
    /// Clients.
    pub clients: Vec<ClientStatus>,
    /// Blocks in all.
    pub blocks_total: u64,
    /// The first of them.
    pub blocks: Vec<BlockStatus>,
}
wire_struct!(PoolStatus { term, rebuilding, copies, lost, nodes, clients, blocks_total, blocks });

/// Why something was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// No memory; the number is the bytes that are left: of a node, what its size still allows
    /// though the system gave it no more; of a cluster, the sum over the nodes that are up, too few
    /// of which have room for as many copies as wanted.
    Full,
    /// The block is at another epoch, which is the number.
    OldEpoch,
    /// The manager's term is another one, which is the number.
    OldTerm,
    /// No such block.
    UnknownBlock,
    /// The block belongs to somebody else.
    NotOwner,
    /// The client's lease ran out and its blocks were given away.
    Evicted,
    /// The manager gathers reports; again after so many milliseconds.
    Rebuilding,
    /// The block is being changed, or waits for a node; again later.
    Changing,
    /// Fewer memory nodes than needed are up: so many.
    NoNodes,
    /// The copy is not in a state for this.
    NotReady,
    /// The message cannot be read, or is not for this role.
    Malformed,
    /// It does not come from who may say it.
    NotAllowed,
    /// The node cannot give more keys.
    NoKeys,
    /// The cluster's blocks have another size, which is the number.
    BlockSize,
    /// This manager stands by: another one acts, or none does.
    Standby,
    /// The node has promised another manager to obey it, or has just started; again after so many
    /// milliseconds.
    Promised,
    /// The managers were started for memory nodes 1 to the number.
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

/// A refusal and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub why: Why,
    /// What goes with it; else 0.
    pub number: u64,
}
wire_struct!(Refused { why, number });

impl Refused {
    /// A refusal with a number.
    #[must_use]
    pub fn at(why: Why, number: u64) -> Self {
        Self { why, number }
    }

    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self.why {
            Why::Full
            | Why::Rebuilding
            | Why::Changing
            | Why::NoNodes
            | Why::NoKeys
            | Why::Standby
            | Why::Promised => ErrorKind::Busy,
            Why::OldEpoch | Why::OldTerm | Why::Evicted | Why::NotReady => ErrorKind::Fenced,
            Why::UnknownBlock => ErrorKind::NotFound,
            Why::NotOwner | Why::NotAllowed | Why::Malformed | Why::BlockSize | Why::Unlisted => {
                ErrorKind::InvalidArgument
            }
        }
    }

    /// As an error; `what` names what was refused.
    #[must_use]
    pub fn error(self, what: impl fmt::Display) -> Error {
        Error::new(self.kind(), format!("{what}: {self}"))
    }
}

impl Why {
    /// In a word or two, for tables.
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
            Why::OldEpoch => write!(f, "the block has gone on to epoch {number}"),
            Why::OldTerm => write!(f, "another manager has taken over, in term {number}"),
            Why::UnknownBlock => f.write_str("there is no such block"),
            Why::NotOwner => f.write_str("the block belongs to another client"),
            Why::Evicted => f.write_str(
                "the client was silent for longer than its lease and its blocks were given away: join anew",
            ),
            Why::Rebuilding => {
                write!(f, "the manager is gathering what the nodes hold; ready in {number} ms")
            }
            Why::Changing => f.write_str("the block is being changed or waits for a node"),
            Why::NoNodes => write!(f, "too few memory nodes are up: {number}"),
            Why::NotReady => f.write_str("the node's copy is not in a state for this"),
            Why::Malformed => f.write_str("the message cannot be read, or is not for this role"),
            Why::NotAllowed => f.write_str("the sender may not ask for this"),
            Why::NoKeys => f.write_str("the node has given as many keys as it can"),
            Why::Standby => f.write_str("this manager stands by; another one acts, or a majority of the memory nodes is silent"),
            Why::Promised => {
                write!(f, "the node has promised to obey another manager for {number} ms more")
            }
            Why::Unlisted => write!(f, "the managers were started for memory nodes 1 to {number}: start them with a larger --memory-nodes"),
            Why::BlockSize => write!(f, "the cluster's blocks have {number} bytes: start the node with the same size"),
        }
    }
}
