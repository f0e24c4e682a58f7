//! The messages, one variant each; requests and answers.

use archipelago_base::codec::{Reader, put_bytes};
use archipelago_base::wire::Wire;
use archipelago_base::{wire_enum, wire_messages, wire_struct};
use archipelago_fabric::RemoteKey;
use archipelago_pool::{BlockId, ClientId};

/// Bit that is set in the first byte of each message, together with the version. No message of the
/// pool has it, so an endpoint that takes both tells them apart.
pub const MARK: u8 = 0x80;
/// Version of the messages with [`MARK`]: the first byte of each message.
pub const VERSION: u8 = MARK | 6;

/// Largest number of buckets whose slots one [`Message::Slots`] may ask for. Their words take 32
/// KiB.
pub const SLOTS_BUCKETS_MAX: u32 = 512;

/// Effect of a write on the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteKind {
    /// Inserts a key that did not exist.
    Insert,
    /// Gives a key that exists a new record.
    Update,
    /// Removes the key.
    Delete,
}

/// Why a request was declined without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// The partition is not served here at that epoch. Wait for the next map.
    Moved,
    /// Another write of the key is in progress.
    Busy,
    /// The slot does not hold the word that the client expected, or another key with the
    /// fingerprint appeared. Look the key up again.
    Resolve,
    /// Both buckets are full. The partition must grow.
    Full,
    /// The node has no lease, or is about to end. The next map decides whether the request took
    /// effect.
    Fenced,
    /// The request could not be decoded, or does not fit the store.
    Malformed,
    /// The coordinator's term is over, or the coordinator knows nothing yet.
    OldTerm,
    /// The manager that was asked is a standby. Another manager has the coordinator.
    Standby,
}

/// Bytes of a key or a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload(pub Vec<u8>);

impl Wire for Payload {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.0);
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        reader.bytes().map(|bytes| Self(bytes.to_vec()))
    }
}

/// A slot and its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Index of the slot in its subtable.
    pub index: u32,
    /// The word that the slot holds.
    pub word: u64,
}

/// A slot that may be the key's, and the part of it that a cache may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// Index of the slot in its subtable.
    pub index: u32,
    /// The committed word in the slot.
    pub word: u64,
    /// Whether the asker may cache the pair, because it is now a sharer of the slot. The asker may
    /// cache the address in any case.
    pub cache: bool,
}

/// Part of every answer of a proxy: its clock, and the cache lease between the two nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Session of the lease. 0 if no lease was given.
    pub session: u64,
    /// Length of the lease from the request's sending, in microseconds. 0 if it is not renewed.
    pub lease_us: u64,
    /// The proxy's clock before it looked, in microseconds.
    pub stamp_us: u64,
}

/// Reads of a slot that were served from a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadCount {
    /// Index of the slot in its subtable.
    pub index: u32,
    /// Number of reads.
    pub count: u32,
}

/// A compute node as others reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Number of the node.
    pub number: u32,
    /// The client of the pool that the node works as.
    pub client: ClientId,
    /// Endpoints of the node.
    pub endpoints: Vec<String>,
    /// Bytes that the node's memory limit leaves for offloaded partitions.
    pub index_bytes: u64,
}

/// Address of a subtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shaped {
    /// Packed address of the subtable.
    pub packed: u64,
    /// Generation, which grows with every new address or size.
    pub generation: u32,
    /// Base-2 logarithm of the number of buckets.
    pub log2_buckets: u32,
}

/// A partition in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Assigned {
    /// Number of the partition.
    pub partition: u32,
    /// Epoch, which grows with every change.
    pub epoch: u32,
    /// Number of the compute node that serves the partition.
    pub node: u32,
    /// Whether that node is the partition's proxy. If not, clients read and update the slots
    /// one-sided.
    pub offloaded: bool,
    /// Whether the change must make the subtable larger.
    pub grow: bool,
    /// Address of the subtable.
    pub shape: Shaped,
}

/// A counter or a size, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Figure {
    /// Name in lower case, with words joined by `_`.
    pub name: String,
    /// Count since the node was started, or current bytes.
    pub value: u64,
}

/// A compute node in a [`StoreStatus`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputeStatus {
    /// The node as a member.
    pub member: Member,
    /// Number of partitions that the node serves.
    pub partitions: u32,
    /// Number of these partitions that are offloaded.
    pub offloaded: u32,
    /// Whether the node reported its counters.
    pub answered: bool,
    /// Counters that the node reported.
    pub figures: Vec<Figure>,
}

/// A store as its coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreStatus {
    /// The coordinator's term.
    pub term: u64,
    /// Version of the map. 0 if there is no store yet.
    pub version: u64,
    /// Whether no change of the map is in progress or wanted.
    pub settled: bool,
    /// Number of partitions.
    pub partitions: u32,
    /// Number of partitions that are offloaded.
    pub offloaded: u32,
    /// Share of the partitions that should be offloaded, in permille.
    pub offload: u32,
    /// Figures of the coordinator.
    pub figures: Vec<Figure>,
    /// The live compute nodes.
    pub nodes: Vec<ComputeStatus>,
}

wire_enum!(WriteKind { Insert = 0, Update = 1, Delete = 2 });
wire_enum!(Why { Moved = 0, Busy = 1, Resolve = 2, Full = 3, Fenced = 4, Malformed = 5, OldTerm = 6, Standby = 7 });
wire_struct!(Place { index, word });
wire_struct!(Candidate { index, word, cache });
wire_struct!(Grant { session, lease_us, stamp_us });
wire_struct!(ReadCount { index, count });
wire_struct!(Member { number, client, endpoints, index_bytes });
wire_struct!(Shaped { packed, generation, log2_buckets });
wire_struct!(Figure { name, value });
wire_struct!(ComputeStatus { member, partitions, offloaded, answered, figures });
wire_struct!(StoreStatus {
    term,
    version,
    settled,
    partitions,
    offloaded,
    offload,
    figures,
    nodes,
});
wire_struct!(Assigned { partition, epoch, node, offloaded, grow, shape });

wire_messages! {
    /// The messages between compute nodes and their coordinator.
    Message, version VERSION {
    /// Client → proxy: asks which slots may hold a key that is read. The answer is
    /// [`Message::Found`].
    Search = 1 {
        /// Number of the partition.
        partition: u32,
        /// Epoch at which the client knows the partition.
        epoch: u32,
        /// The key's hash.
        hash: u64,
        /// Number of reads of the key that the client's cache served since its last report.
        reads: u32,
    }
    /// The committed slots whose fingerprint is the key's.
    Found = 2 {
        /// The slots that may hold the key.
        slots: Vec<Candidate>,
        /// Clock and lease of the proxy.
        grant: Grant,
    }
    /// Client → the partition's node: changes the index. The new record is on all its copies.
    Write = 3 {
        /// Number of the partition.
        partition: u32,
        /// Epoch at which the client knows the partition.
        epoch: u32,
        /// The key's hash.
        hash: u64,
        /// Kind of the change.
        kind: WriteKind,
        /// Index of the key's slot. Without a meaning for an insert.
        index: u32,
        /// The word that the client found there.
        expect: u64,
        /// Whether the slot must hold exactly that word. If not, a stamp within a slot lease
        /// suffices.
        exact: bool,
        /// The word that names the new record. 0 for a deletion.
        new: u64,
        /// For an insert: the slots with the key's fingerprint that hold other keys.
        others: Vec<Place>,
        /// The proxy's clock before the client looked the key up.
        stamp_us: u64,
        /// Number of reads of the key that the client's cache served since its last report.
        reads: u32,
    }
    /// The write is committed.
    Written = 4 {
        /// The slot, and the word that it held before.
        place: Place,
        /// Whether the writer may cache the new pair, because it is now a sharer.
        cache: bool,
        /// Whether the writer must give back the old record, which lies in one of its own blocks.
        yours: bool,
        /// Clock and lease of the proxy.
        grant: Grant,
    }
    /// The request was declined without effect.
    Declined = 5 {
        /// The reason for the refusal.
        why: Why,
        /// The clock of the node, without a lease.
        grant: Grant,
    }
    /// Holder → granter: asks to renew the cache lease.
    Renew = 6 {}
    /// Answer to [`Message::Renew`] and [`Message::Reads`].
    Renewed = 7 { /** Clock and lease of the granter. */ grant: Grant }
    /// Client → proxy: reports reads that the client's cache served.
    Reads = 8 {
        /// Number of the partition.
        partition: u32,
        /// Epoch at which the sender knows the partition.
        epoch: u32,
        /// Number of reads of each slot.
        counts: Vec<ReadCount>,
    }
    /// Proxy → sharer: the pair or the address of this key is being superseded. The answer follows
    /// when the sharer has dropped it.
    Invalidate = 9 { /** Hash of the key. */ hash: u64 }
    /// Committer → owner of the block: gives back superseded records.
    Free = 10 { /** The words that named the records. */ words: Vec<u64> }
    /// Client → the partition's node: a write in this slot does not end.
    Settle = 11 {
        /// Number of the partition.
        partition: u32,
        /// Epoch at which the sender knows the partition.
        epoch: u32,
        /// The slot, and its word while the write is in progress.
        place: Place,
    }
    /// The request was executed.
    Done = 12 {}
    /// Client → proxy: asks the proxy to set a contended key. The proxy writes the record.
    Delegate = 15 {
        /// Number of the partition.
        partition: u32,
        /// Epoch at which the client knows the partition.
        epoch: u32,
        /// Bytes of the key.
        key: Payload,
        /// Bytes of the value.
        value: Payload,
        /// Expiry in Unix milliseconds. 0 means never.
        expires_ms: u64,
    }
    /// The proxy has set the key.
    Stored = 16 { /** Whether no other write of the key was in progress. */ alone: bool }
    /// The proxy's set ended with an error.
    NotStored = 17 {
        /// Whether the set may have happened.
        unknown: bool,
        /// The error in words.
        why: String,
    }
    /// Client → proxy: asks which slots may hold a key that is written. The client does not read by
    /// the answer, which is a [`Message::Found`].
    Locate = 18 {
        /// Number of the partition.
        partition: u32,
        /// Epoch at which the client knows the partition.
        epoch: u32,
        /// The key's hash.
        hash: u64,
    }
    /// Compute node → coordinator: asks to join the store.
    Join = 20 {
        /// The client of the pool that the node works as.
        client: ClientId,
        /// Endpoints of the node.
        endpoints: Vec<String>,
        /// Bytes that the node's memory limit leaves for offloaded partitions.
        index_bytes: u64,
    }
    /// The node has joined.
    Joined = 21 {
        /// The coordinator's term.
        term: u64,
        /// Number of the node.
        number: u32,
        /// Version of the map.
        version: u64,
        /// Base-2 logarithm of the number of partitions.
        partition_bits: u32,
        /// Entries of the map.
        map: Vec<Assigned>,
        /// All compute nodes.
        members: Vec<Member>,
        /// Block of the directory.
        directory: BlockId,
    }
    /// Coordinator → first node: orders it to make the index.
    Create = 22 {
        /// The coordinator's term.
        term: u64,
        /// Base-2 logarithm of the number of partitions.
        partition_bits: u32,
        /// Base-2 logarithm of the number of buckets in each partition.
        log2_buckets: u32,
        /// Block of the directory.
        directory: BlockId,
    }
    /// The index is made.
    Created = 23 {
        /// The subtables in the order of partitions. Their number differs from the order if another
        /// node had begun to make the index.
        shapes: Vec<Shaped>,
    }
    /// Coordinator → every node: stops requests to these partitions. The answer follows when the
    /// requests in progress have ended.
    Pause = 24 {
        /// The coordinator's term.
        term: u64,
        /// Version of the next map.
        version: u64,
        /// Entries of the changed partitions as they will be.
        changes: Vec<Assigned>,
        /// All live compute nodes.
        members: Vec<Member>,
        /// Clients that are gone permanently.
        gone: Vec<ClientId>,
    }
    /// Coordinator → every node: orders it to take its new partitions.
    Prepare = 25 {
        /// The coordinator's term.
        term: u64,
        /// Version of the next map.
        version: u64,
    }
    /// The node has taken its partitions.
    Prepared = 26 {
        /// Entries of the node's changed partitions as they are now. A partition that does not fit
        /// the memory limit is not offloaded.
        changes: Vec<Assigned>,
    }
    /// Coordinator → every node: the new map holds.
    Resume = 27 {
        /// The coordinator's term.
        term: u64,
        /// Version of the map.
        version: u64,
        /// Entries of the changed partitions as they are now.
        changes: Vec<Assigned>,
    }
    /// Compute node → coordinator: a partition is full.
    Grow = 28 {
        /// Number of the partition.
        partition: u32,
        /// Epoch at which the node knows the partition.
        epoch: u32,
    }
    /// Coordinator → every node: asks where the node's load counters lie.
    Meter = 35 {}
    /// The load counters lie in a region of the node that may be read one-sided.
    Metered = 36 {
        /// Key of the region.
        key: RemoteKey,
        /// Number of partitions that are counted.
        partitions: u32,
    }
    /// Coordinator → every node: requests the knowledge of the node.
    Recall = 29 { /** The coordinator's term. */ term: u64 }
    /// What a node knows, for a coordinator that has just started.
    Recalled = 30 {
        /// The node as a member.
        member: Member,
        /// Version of the node's map. 0 if it has none.
        version: u64,
        /// Base-2 logarithm of the number of partitions.
        partition_bits: u32,
        /// Entries of the node's map.
        map: Vec<Assigned>,
        /// Block of the directory.
        directory: BlockId,
        /// Version of the change that the node paused for. 0 if there is none.
        paused: u64,
        /// The members that the node knows.
        members: Vec<Member>,
    }
    /// Owner of blocks → a partition's node: requests the pieces of some blocks to which the
    /// partition refers.
    Refers = 32 {
        /// Number of the partition.
        partition: u32,
        /// Epoch at which the sender knows the partition.
        epoch: u32,
        /// The blocks in question.
        blocks: Vec<BlockId>,
    }
    /// Words that name records in the blocks.
    Referred = 33 { /** The words that were found. */ words: Vec<u64> }
    /// Owner of blocks → compute node: asks which records there the node may still give back, or
    /// put into the index.
    Holds = 34 { /** The blocks in question. */ blocks: Vec<BlockId> }
    /// Proxy → owner of blocks: asks for a sweep. A write was given up and may have happened, and
    /// the record that it superseded may lie in the owner's blocks.
    Sweep = 37 {}
    /// Compute node → coordinator, at intervals: reports that the node lives.
    Here = 31 {
        /// The client of the pool that the node works as.
        client: ClientId,
        /// Endpoints of the node.
        endpoints: Vec<String>,
        /// Block of the directory that the node works by, if it has joined.
        directory: Option<BlockId>,
    }
    /// Compute node → another node, when the pool is full: asks for memory in a block of that node.
    Room = 38 {
        /// Length of the record in bytes.
        bytes: u64,
        /// Whether the record expires.
        expires: bool,
    }
    /// Memory that the asker may write to. The node that supersedes the record gives it back to the
    /// owner of the block, like any other record.
    Roomed = 39 { /** Packed address of the memory. */ packed: u64 }
    /// Coordinator → compute node: asks for the node's statistics.
    Count = 40 {}
    /// The statistics of a node.
    Counted = 41 { /** The figures by name. */ figures: Vec<Figure> }
    /// Any program → coordinator: asks for the state of the store.
    Status = 42 {}
    /// The state of the store.
    StatusIs = 43 { /** State as the coordinator knows it. */ status: StoreStatus }
    /// Client → proxy: asks for the slots of some buckets, for a scan.
    Slots = 44 {
        /// Number of the partition.
        partition: u32,
        /// The epoch at which the client knows the partition.
        epoch: u32,
        /// The first bucket.
        bucket: u32,
        /// Number of buckets; at most [`SLOTS_BUCKETS_MAX`].
        buckets: u32,
    }
    /// The committed words of all slots of these buckets, in their order.
    SlotsAre = 45 { /** The words. 0 stands for a slot that was never used. */ words: Vec<u64> }
    }
}

/// Whether a request's body claims to be one of these messages.
#[must_use]
pub fn is_ours(body: &[u8]) -> bool {
    body.first().is_some_and(|first| first & MARK != 0)
}
