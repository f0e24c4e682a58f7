//! The messages, one variant each; requests and answers.

use archipelago_base::Epoch;
use archipelago_fabric::{ClientId, NodeId, RemoteKey};

use super::VERSION;
use super::parts::{
    BlockAt, CopyReport, CopyStep, Member, NodeCounters, PoolStatus, Purpose, Refused, Source,
};
use crate::address::BlockId;
use crate::config::{Config, Sharing};
use crate::wire_messages;

wire_messages! {
    /// Everything that is said about the pool.
    Message, version VERSION {
    /// Client → manager: joins, and keeps the lease.
    Renew = 1 {
        /// Who; random, one per life of the client.
        client: ClientId,
        /// Whose data it works on.
        label: u64,
        /// It joins: the manager need not know it.
        first: bool,
        /// The version of the members that it has taken in. 0: it has no lease, and may have been
        /// taken for dead; a manager that has just started gives it one when nodes had the time to
        /// tell who is dead.
        view: u64,
        /// The version of the list of its blocks that it has.
        owned: u64,
    }
    /// Answer to [`Message::Renew`].
    Renewed = 2 {
        /// The manager's term.
        term: u64,
        /// The lease lasts so long, counted from when the request was sent.
        lease_ms: u64,
        /// Bytes of a block; 0 while no node is known.
        block_bytes: u64,
        /// Version of the members.
        view: u64,
        /// All of them, if the client's version was another.
        members: Option<Vec<Member>>,
        /// Version of the list of the client's blocks.
        owned: u64,
        /// That list, if the client's version was another.
        blocks: Option<Vec<BlockAt>>,
        /// Blocks born later than this are not in the list yet.
        as_of: Epoch,
    }
    /// Client → manager: it goes; what it still owns is adopted.
    Leave = 3 { /** Who. */ client: ClientId }
    /// Client → manager: a new block.
    Allocate = 4 {
        /// Who asks.
        client: ClientId,
        /// The client's number of it, above 0: asked twice, it is answered with the same block.
        request: u64,
        /// Who may write.
        sharing: Sharing,
        /// Copies; 0: as many as the cluster has for each.
        copies: u32,
    }
    /// Client → manager: how is this block now?
    Locate = 5 { /** Which. */ block: BlockId }
    /// Answer to [`Message::Allocate`] and [`Message::Locate`].
    Located = 6 { /** The block, ready for use. */ config: Config }
    /// Client → manager: nothing in the block is referenced any more.
    Release = 7 {
        /// The owner.
        client: ClientId,
        /// Which.
        block: BlockId,
    }
    /// Client → manager: take this client for dead, now. Done when none of its writes can take
    /// place any more; refused as changing before: to be asked again.
    Evict = 8 { /** Whom. */ client: ClientId }
    /// Operator → manager: the node's memory is gone for good.
    Forget = 9 { /** Which. */ node: NodeId }
    /// Operator → manager: what is there?
    Status = 10 {}
    /// Answer to [`Message::Status`].
    StatusIs = 11 { /** All of it. */ status: PoolStatus }
    /// Node → manager: it lives.
    Beat = 12 {
        /// Which node.
        node: NodeId,
        /// In which life.
        life: Epoch,
        /// Where it is reached.
        endpoints: Vec<String>,
        /// Bytes of a block.
        block_bytes: u64,
        /// Blocks that fit.
        blocks_max: u64,
        /// Blocks that take memory now.
        blocks_used: u64,
        /// The largest term that it has heard of.
        term: u64,
        /// For how many milliseconds its promise to a manager still lasts.
        held_ms: u64,
        /// What it counted since its life began.
        counters: NodeCounters,
    }
    /// Answer to [`Message::Beat`].
    BeatIs = 13 {
        /// The manager's term.
        term: u64,
        /// As whom the manager calls nodes: they obey nobody else.
        manager: ClientId,
        /// The next beat is expected after so long.
        beat_ms: u64,
        /// The manager runs alone: it is obeyed by this answer. Otherwise nodes obey the one that
        /// they promised it to.
        alone: bool,
    }
    /// Client → node, node → node: a key.
    Open = 14 {
        /// Who asks.
        client: ClientId,
        /// To which block.
        block: BlockId,
        /// At which epoch.
        epoch: Epoch,
        /// What for.
        purpose: Purpose,
    }
    /// Answer to [`Message::Open`].
    Opened = 15 {
        /// The block's epoch.
        epoch: Epoch,
        /// The key; its rights are what the client may do.
        key: RemoteKey,
    }
    /// Manager → node: what do you hold?
    Claim = 16 {
        /// The manager's term.
        term: u64,
        /// Goes on behind this block.
        after: Option<BlockId>,
    }
    /// Answer to [`Message::Claim`].
    Report = 17 {
        /// Who.
        node: NodeId,
        /// In which life.
        life: Epoch,
        /// Copies in the order of their blocks.
        copies: Vec<CopyReport>,
        /// Blocks that were freed lately; with the last part.
        freed: Vec<BlockAt>,
        /// Clients that have keys; with the last part.
        clients: Vec<ClientId>,
        /// Whether there are further copies.
        more: bool,
    }
    /// Manager → node: nobody writes to your copy at epochs below.
    Seal = 18 {
        /// The manager's term.
        term: u64,
        /// Which block.
        block: BlockId,
        /// The epoch that is being made.
        epoch: Epoch,
    }
    /// Manager → node: make a copy.
    Fill = 19 {
        /// The manager's term.
        term: u64,
        /// The configuration that is being made.
        config: Config,
        /// Where its bytes come from; nowhere: it is new and zero.
        source: Option<Source>,
    }
    /// Manager → node: serve this.
    Install = 20 {
        /// The manager's term.
        term: u64,
        /// What is served.
        config: Config,
    }
    /// Manager → node: give up your copy if it is of this epoch or below.
    Drop = 21 {
        /// The manager's term.
        term: u64,
        /// Which block.
        block: BlockId,
        /// Up to which epoch.
        epoch: Epoch,
        /// The block is no more, anywhere.
        freed: bool,
    }
    /// Manager → node: keys of these clients are invalid, and they get no others.
    Fence = 22 {
        /// The manager's term.
        term: u64,
        /// Whom; 4,096 at most.
        clients: Vec<ClientId>,
        /// The manager asks whom the node has fenced before.
        tell: bool,
    }
    /// Answer to [`Message::Fence`].
    FenceIs = 23 {
        /// In which life of the node.
        life: Epoch,
        /// Of those that were named, clients with a process that still has memory mapped.
        held: Vec<ClientId>,
        /// If it was asked: the latest clients that the node has fenced, 4,096 at most.
        fenced: Vec<ClientId>,
    }
    /// Answer to what the manager told a node about a copy.
    CopyIs = 24 {
        /// Which node.
        node: NodeId,
        /// In which life.
        life: Epoch,
        /// Which block.
        block: BlockId,
        /// The epoch that was told.
        epoch: Epoch,
        /// How far it is.
        step: CopyStep,
    }
    /// It is done, or was.
    Done = 25 {}
    /// It is not done.
    Refuse = 26 { /** Why. */ refused: Refused }
    /// Manager → node: promise to obey me in this term, and nobody of a smaller one; for so long to
    /// promise no other.
    Promise = 30 {
        /// The term that is asked for, or renewed.
        term: u64,
        /// How long the promise lasts from when it is given.
        lease_ms: u64,
    }
    /// It is promised.
    Promised = 31 { /** Which term. */ term: u64 }
    /// Client → manager: is this client dead, and can none of its writes take place any more?
    Gone = 27 { /** Whom. */ client: ClientId }
    /// Client → manager: which blocks of this label are there?
    Find = 28 { /** Whose data. */ label: u64 }
    /// Answer to [`Message::Find`].
    Found = 29 {
        /// Those that are not released, with the epoch at which they were born, the oldest first;
        /// 512 at most.
        blocks: Vec<BlockAt>,
    }
    }
}

impl Message {
    /// A refusal.
    #[must_use]
    pub fn refuse(refused: impl Into<Refused>) -> Self {
        Self::Refuse { refused: refused.into() }
    }
}
