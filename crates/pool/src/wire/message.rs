//! The messages of the pool, one variant each: requests and answers.

use std::fmt;

use archipelago_base::wire::Malformed;
use archipelago_base::{Epoch, Error, wire_messages};
use archipelago_fabric::{ClientId, NodeId, RemoteKey, RouteMessage};

use super::VERSION;
use super::parts::{
    BlockAt, CopyReport, CopyStep, Member, NodeCounters, PoolStatus, Purpose, Refused, Source, Why,
};
use crate::address::BlockId;
use crate::config::{Config, Sharing};

wire_messages! {
    /// A message between clients, memory nodes and the manager.
    Message, version VERSION {
    /// Client → manager: admit the client, or renew its lease.
    Renew = 1 {
        /// The client's id, which is random and new in each life.
        client: ClientId,
        /// Label of the data that the client works on.
        label: u64,
        /// Whether the client joins, so that the manager need not know it.
        first: bool,
        /// Version of the members that the client has acted on. 0 means that the client has no
        /// lease and may have been declared dead. A manager that has just started grants such a
        /// client a lease only after the nodes had time to report the dead clients.
        view: u64,
        /// Version of the client's list of its own blocks.
        owned: u64,
    }
    /// Manager → client: answer to [`Message::Renew`].
    Renewed = 2 {
        /// The manager's term.
        term: u64,
        /// Length of the lease in milliseconds, counted from the time at which the request was
        /// sent.
        lease_ms: u64,
        /// Bytes of a block; 0 while no node is known.
        block_bytes: u64,
        /// Version of the members.
        view: u64,
        /// All members, if the client's version differs.
        members: Option<Vec<Member>>,
        /// Version of the list of the client's blocks.
        owned: u64,
        /// The list of the client's blocks, if the client's version differs.
        blocks: Option<Vec<BlockAt>>,
        /// The list may lack blocks with a later epoch: those that the manager makes, or that too
        /// few nodes have reported to it.
        as_of: Epoch,
    }
    /// Client → manager: the client leaves, and other clients adopt its blocks.
    Leave = 3 { /** The client that leaves. */ client: ClientId }
    /// Client → manager: allocate a block.
    Allocate = 4 {
        /// The client that asks.
        client: ClientId,
        /// The client's number of the request, above 0. A repeated request gets the same block.
        request: u64,
        /// Clients that may write.
        sharing: Sharing,
        /// Number of copies; 0 means the cluster's number.
        copies: u32,
    }
    /// Client → manager: return the present configuration of this block.
    Locate = 5 { /** The block to locate. */ block: BlockId }
    /// Answer to [`Message::Allocate`] and [`Message::Locate`].
    Located = 6 { /** Configuration of the block, which is ready for use. */ config: Config }
    /// Client → manager: free this block, because nothing in it is referenced any more.
    Release = 7 {
        /// The owner of the block.
        client: ClientId,
        /// The block to free.
        block: BlockId,
    }
    /// Client → manager: declare this client dead immediately. The answer is *done* when none of
    /// its writes can take place any more. Before, the request is refused as changing, and the
    /// client asks again.
    Evict = 8 { /** The client to declare dead. */ client: ClientId }
    /// Operator → manager: the memory of this node is lost forever.
    Forget = 9 { /** The node to forget. */ node: NodeId }
    /// Operator → manager: return the state of the cluster.
    Status = 10 {}
    /// Answer to [`Message::Status`].
    StatusIs = 11 { /** The state of the cluster. */ status: PoolStatus }
    /// Node → manager: sign of life of the node.
    Beat = 12 {
        /// The node's id.
        node: NodeId,
        /// Life of the node.
        life: Epoch,
        /// Endpoints of the node.
        endpoints: Vec<String>,
        /// Bytes of a block.
        block_bytes: u64,
        /// Number of blocks that fit.
        blocks_max: u64,
        /// Number of blocks that use memory now.
        blocks_used: u64,
        /// Largest term that the node knows.
        term: u64,
        /// Milliseconds until the node's promise to a manager ends.
        held_ms: u64,
        /// Counters since the life began.
        counters: NodeCounters,
    }
    /// Manager → node: answer to [`Message::Beat`].
    BeatIs = 13 {
        /// The manager's term.
        term: u64,
        /// Client id under which the manager calls nodes. Nodes obey no other client.
        manager: ClientId,
        /// Milliseconds until the next beat is due.
        beat_ms: u64,
        /// Whether the manager runs alone, and the node obeys it from this answer on. Otherwise a
        /// node obeys the manager that has its promise.
        alone: bool,
    }
    /// Client → node, node → node: give the sender a key to a block.
    Open = 14 {
        /// The client that asks.
        client: ClientId,
        /// Block to open.
        block: BlockId,
        /// Epoch of the block.
        epoch: Epoch,
        /// Purpose for which the client needs the key.
        purpose: Purpose,
    }
    /// Node → client: answer to [`Message::Open`].
    Opened = 15 {
        /// The block's epoch.
        epoch: Epoch,
        /// The key. Its rights limit the client's operations.
        key: RemoteKey,
    }
    /// Manager → node: report all copies.
    Claim = 16 {
        /// The manager's term.
        term: u64,
        /// Block after which the report continues.
        after: Option<BlockId>,
    }
    /// Node → manager: answer to [`Message::Claim`].
    Report = 17 {
        /// The node that reports.
        node: NodeId,
        /// Life of the node.
        life: Epoch,
        /// Copies in the order of their blocks.
        copies: Vec<CopyReport>,
        /// Blocks that were freed lately. Only the last part has them.
        freed: Vec<BlockAt>,
        /// Clients that have keys. Only the last part has them.
        clients: Vec<ClientId>,
        /// Whether further copies follow.
        more: bool,
    }
    /// Manager → node: refuse all writes to the copy at smaller epochs.
    Seal = 18 {
        /// The manager's term.
        term: u64,
        /// Block to seal.
        block: BlockId,
        /// Epoch that the manager is making.
        epoch: Epoch,
    }
    /// Manager → node: make a copy.
    Fill = 19 {
        /// The manager's term.
        term: u64,
        /// Configuration that the manager is making.
        config: Config,
        /// Copy to read the bytes from; `None` means that the block is new and holds zeros.
        source: Option<Source>,
    }
    /// Manager → node: serve this configuration.
    Install = 20 {
        /// The manager's term.
        term: u64,
        /// Configuration to serve.
        config: Config,
    }
    /// Manager → node: drop the copy if its epoch is this one or smaller.
    Drop = 21 {
        /// The manager's term.
        term: u64,
        /// Block whose copy the node drops.
        block: BlockId,
        /// Largest epoch of a copy to drop.
        epoch: Epoch,
        /// Whether the block is freed on all nodes.
        freed: bool,
    }
    /// Manager → node: make the keys of these clients invalid, and give them no others.
    Fence = 22 {
        /// The manager's term.
        term: u64,
        /// Clients to fence, at most 4,096.
        clients: Vec<ClientId>,
        /// Whether the answer lists the clients that the node has fenced before.
        tell: bool,
    }
    /// Node → manager: answer to [`Message::Fence`].
    FenceIs = 23 {
        /// Life of the node.
        life: Epoch,
        /// The named clients with a process that still has memory mapped.
        held: Vec<ClientId>,
        /// The latest clients that the node has fenced, at most 4,096, if the request asked for
        /// them.
        fenced: Vec<ClientId>,
    }
    /// Node → manager: answer to an order about a copy.
    CopyIs = 24 {
        /// The node's id.
        node: NodeId,
        /// Life of the node.
        life: Epoch,
        /// Block of the copy.
        block: BlockId,
        /// Epoch of the order.
        epoch: Epoch,
        /// Progress of the order.
        step: CopyStep,
    }
    /// Answer: the request is executed, or was executed before.
    Done = 25 {}
    /// Answer: the request is refused.
    Refuse = 26 { /** The reason and its number. */ refused: Refused }
    /// Manager → node: promise to obey the sender in this term, and no manager of a smaller term.
    /// The node makes no other promise until the lease ends.
    Promise = 30 {
        /// Term to promise, or whose promise to renew.
        term: u64,
        /// Length of the promise in milliseconds, from the time at which the node gives it.
        lease_ms: u64,
    }
    /// Node → manager: the promise is given.
    Promised = 31 { /** The promised term. */ term: u64 }
    /// Client → manager: say whether this client is dead and none of its writes can take place any
    /// more.
    Gone = 27 { /** The client in question. */ client: ClientId }
    /// Client → manager: list the blocks of this label.
    Find = 28 { /** The label of the blocks. */ label: u64 }
    /// Manager → client: answer to [`Message::Find`].
    Found = 29 {
        /// Blocks that are not released, with their first epochs: at most 512, the oldest first.
        blocks: Vec<BlockAt>,
    }
    }
}

impl Message {
    /// The message for a refusal.
    #[must_use]
    pub fn refuse(refused: impl Into<Refused>) -> Self {
        Self::Refuse { refused: refused.into() }
    }
}

impl RouteMessage for Message {
    fn encode(&self) -> Vec<u8> {
        Self::encode(self)
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        Self::decode(bytes)
    }

    fn standby(&self, asked: &dyn fmt::Display) -> Option<Error> {
        match self {
            Self::Refuse { refused } if refused.why == Why::Standby => Some(refused.error(asked)),
            _ => None,
        }
    }
}
