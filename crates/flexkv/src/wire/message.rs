//! The messages, one variant each; requests and answers.

use archipelago_base::codec::put_bytes;
use archipelago_fabric::RemoteKey;
use archipelago_pool::wire::codec::{Reader, Wire};
use archipelago_pool::{BlockId, ClientId, wire_enum, wire_messages, wire_struct};

/// Set in the first byte of each message, beside the version, and in none of the pool's: a door
/// that takes both tells them apart by it.
pub const MARK: u8 = 0x80;
/// Version of the messages, with the mark; the first byte of each.
pub const VERSION: u8 = MARK | 6;

/// Buckets whose slots one [`Message::Slots`] may ask for: 32 KiB of words.
pub const SLOTS_BUCKETS_MAX: u32 = 512;

/// What a write does to the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteKind {
    /// A key that was not there.
    Insert,
    /// A new record of a key that is.
    Update,
    /// The key goes.
    Delete,
}

/// Why an index request was not done. Nothing was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// The partition is not served here at that epoch: wait for the map.
    Moved,
    /// Another write of the key is under way.
    Busy,
    /// The slot is not what the client took it for, or another key with the fingerprint appeared:
    /// look again.
    Resolve,
    /// Both buckets are full: the partition is to grow.
    Full,
    /// The node has no lease, or is to end: whether the request took place is settled by the next
    /// map.
    Fenced,
    /// The request was not understood.
    Malformed,
    /// The coordinator's term is over, or it knows nothing yet.
    OldTerm,
    /// The manager that was asked stands by: another one has the coordinator.
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

/// A slot and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which slot of the subtable.
    pub index: u32,
    /// The word in it.
    pub word: u64,
}

/// A slot that may be the key's, and what a cache may keep of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// Which slot of the subtable.
    pub index: u32,
    /// The committed word in it.
    pub word: u64,
    /// Whether the asker may cache the pair: it is among the slot's sharers now. The address it may
    /// always cache: as a sharer, or as one of the others.
    pub cache: bool,
}

/// What every answer of a proxy brings: its clock, and the cache lease between the two nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The lease's session; 0: no lease was given.
    pub session: u64,
    /// For how long from the request's sending, in microseconds; 0: not renewed.
    pub lease_us: u64,
    /// Microseconds of the proxy's clock before it looked.
    pub stamp_us: u64,
}

/// Reads of a slot that were served from a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadCount {
    /// Which slot.
    pub index: u32,
    /// How many.
    pub count: u32,
}

/// A compute node as others reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub number: u32,
    /// As which client of the pool it works.
    pub client: ClientId,
    /// Where it is reached.
    pub endpoints: Vec<String>,
    /// How many bytes its memory limit leaves for offloaded partitions.
    pub index_bytes: u64,
}

/// Where a subtable lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shaped {
    /// Packed address.
    pub packed: u64,
    /// Grows with every new place or size.
    pub generation: u32,
    /// 2^this buckets.
    pub log2_buckets: u32,
}

/// A partition in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Assigned {
    /// Which.
    pub partition: u32,
    /// Grows with every change.
    pub epoch: u32,
    /// The compute node that serves it, or looks after it.
    pub node: u32,
    /// Whether that node is its proxy; otherwise the index is read and updated one-sided.
    pub offloaded: bool,
    /// Whether the subtable is to be made larger on the way.
    pub grow: bool,
    /// Where the subtable lies.
    pub shape: Shaped,
}

/// Something counted, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Figure {
    /// What: lower case, words joined by `_`.
    pub name: String,
    /// How many since the node was started, or bytes now.
    pub value: u64,
}

/// A compute node in a [`StoreStatus`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputeStatus {
    /// Who, and where it is reached.
    pub member: Member,
    /// Partitions that it serves or looks after.
    pub partitions: u32,
    /// Those of them that it is the proxy of.
    pub offloaded: u32,
    /// Whether it said what it counted.
    pub answered: bool,
    /// What it said.
    pub figures: Vec<Figure>,
}

/// A store as its coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreStatus {
    /// The coordinator's term.
    pub term: u64,
    /// The map's version; 0: there is no store yet.
    pub version: u64,
    /// Whether no change of the map is under way or wanted.
    pub settled: bool,
    /// Partitions.
    pub partitions: u32,
    /// Those that have a proxy.
    pub offloaded: u32,
    /// The share of them that is to have one, in a thousand.
    pub offload: u32,
    /// What the coordinator counted.
    pub figures: Vec<Figure>,
    /// Compute nodes that live.
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
    /// Everything that is said.
    Message, version VERSION {
    /// Client → proxy: where may the key lie? The answer is [`Message::Found`].
    Search = 1 {
        /// Which partition.
        partition: u32,
        /// At which epoch the client knows it.
        epoch: u32,
        /// The key's hash.
        hash: u64,
        /// Reads of the key that its cache served meanwhile.
        reads: u32,
    }
    /// The committed slots whose fingerprint is the key's.
    Found = 2 {
        /// Them.
        slots: Vec<Candidate>,
        /// Clock and lease.
        grant: Grant,
    }
    /// Client → the partition's node: change the index. The new record is on all its copies.
    Write = 3 {
        /// Which partition.
        partition: u32,
        /// At which epoch the client knows it.
        epoch: u32,
        /// The key's hash.
        hash: u64,
        /// What is to be done.
        kind: WriteKind,
        /// The slot of the key; of an insert nothing.
        index: u32,
        /// The word that the client found there.
        expect: u64,
        /// Whether the slot must hold just that word; otherwise it suffices that the stamp is a
        /// slot lease old at most.
        exact: bool,
        /// The word that names the new record; 0 of a deletion.
        new: u64,
        /// Of an insert: the slots with the key's fingerprint that hold other keys.
        others: Vec<Place>,
        /// Clock of the proxy before the client looked.
        stamp_us: u64,
        /// Reads of the key that the client's cache served meanwhile.
        reads: u32,
    }
    /// It is committed.
    Written = 4 {
        /// Where, and what was there before.
        place: Place,
        /// Whether the sender may cache the new pair: it is among the sharers now.
        cache: bool,
        /// Whether the record that was there before, which lies in a block of the sender's, is the
        /// sender's to give back.
        yours: bool,
        /// Clock and lease.
        grant: Grant,
    }
    /// It is not done.
    Declined = 5 { /** Why. */ why: Why, /** The clock; never a lease. */ grant: Grant }
    /// Holder → granter: the cache lease is to go on.
    Renew = 6 {}
    /// Answer to [`Message::Renew`] and [`Message::Reads`].
    Renewed = 7 { /** Clock and lease. */ grant: Grant }
    /// Client → proxy: reads that the cache served.
    Reads = 8 {
        /// Which partition.
        partition: u32,
        /// At which epoch.
        epoch: u32,
        /// Of which slots.
        counts: Vec<ReadCount>,
    }
    /// Proxy → sharer: the pair, or the address, of this key is being superseded; answered when it
    /// is cached no more.
    Invalidate = 9 { /** The key's hash. */ hash: u64 }
    /// Committer → owner of the block: records that nobody reads any more.
    Free = 10 { /** Their slots' words. */ words: Vec<u64> }
    /// Anybody → the partition's node: a write that was begun does not end.
    Settle = 11 {
        /// Which partition.
        partition: u32,
        /// At which epoch.
        epoch: u32,
        /// Which slot, and the word of the write that was begun.
        place: Place,
    }
    /// It is done.
    Done = 12 {}
    /// Client → proxy: set a key whose writes meet each other; the record is yours.
    Delegate = 15 {
        /// Which partition.
        partition: u32,
        /// At which epoch the client knows it.
        epoch: u32,
        /// The key.
        key: Payload,
        /// The value.
        value: Payload,
        /// Unix ms; 0: never.
        expires_ms: u64,
    }
    /// It is set.
    Stored = 16 { /** Whether no other write of the key was there meanwhile. */ alone: bool }
    /// The set ended with an error.
    NotStored = 17 {
        /// Whether it may have happened.
        unknown: bool,
        /// What went wrong, for people.
        why: String,
    }
    /// Client → proxy: where may a key lie that is to be written? Nothing is read by the answer,
    /// which is a [`Message::Found`].
    Locate = 18 {
        /// Which partition.
        partition: u32,
        /// At which epoch the client knows it.
        epoch: u32,
        /// The key's hash.
        hash: u64,
    }
    /// Compute node → coordinator: it wants to take part.
    Join = 20 {
        /// As which client of the pool.
        client: ClientId,
        /// Where it is reached.
        endpoints: Vec<String>,
        /// How many bytes its memory limit leaves for offloaded partitions.
        index_bytes: u64,
    }
    /// It does.
    Joined = 21 {
        /// The coordinator's term.
        term: u64,
        /// The node's number.
        number: u32,
        /// The map's version.
        version: u64,
        /// log2 of the number of partitions.
        partition_bits: u32,
        /// The map.
        map: Vec<Assigned>,
        /// All compute nodes.
        members: Vec<Member>,
        /// Where the directory lies.
        directory: BlockId,
    }
    /// Coordinator → first node: make the index.
    Create = 22 {
        /// The coordinator's term.
        term: u64,
        /// log2 of the number of partitions.
        partition_bits: u32,
        /// log2 of the buckets of each.
        log2_buckets: u32,
        /// Where the directory lies.
        directory: BlockId,
    }
    /// The index is made; partitions in order.
    Created = 23 {
        /// Where the subtables lie; more or fewer than asked for, if somebody else had begun to
        /// make the index.
        shapes: Vec<Shaped>,
    }
    /// Coordinator → all: no more requests to these partitions; answered when those under way have
    /// ended.
    Pause = 24 {
        /// The coordinator's term.
        term: u64,
        /// The map's version that is to come.
        version: u64,
        /// The partitions as they will be.
        changes: Vec<Assigned>,
        /// All compute nodes that live.
        members: Vec<Member>,
        /// Clients that died: their leases are waited out.
        gone: Vec<ClientId>,
    }
    /// Coordinator → all: take your new partitions.
    Prepare = 25 { /** The coordinator's term. */ term: u64, /** The map's version. */ version: u64 }
    /// They are taken.
    Prepared = 26 {
        /// The changed partitions of the node, where they lie now. One that does not fit its memory
        /// limit is not offloaded.
        changes: Vec<Assigned>,
    }
    /// Coordinator → all: the new map holds.
    Resume = 27 {
        /// The coordinator's term.
        term: u64,
        /// The map's version.
        version: u64,
        /// The changed partitions, as they are.
        changes: Vec<Assigned>,
    }
    /// Compute node → coordinator: a partition is full.
    Grow = 28 { /** Which. */ partition: u32, /** At which epoch. */ epoch: u32 }
    /// Coordinator → all: where is what you counted of the load?
    Meter = 35 {}
    /// In a region of the node, to be read one-sided.
    Metered = 36 {
        /// Opens it.
        key: RemoteKey,
        /// Over so many partitions.
        partitions: u32,
    }
    /// Coordinator → all: what do you know?
    Recall = 29 { /** The coordinator's term. */ term: u64 }
    /// What a node knows, for a coordinator that started anew.
    Recalled = 30 {
        /// The node.
        member: Member,
        /// Its map's version; 0: none.
        version: u64,
        /// log2 of the number of partitions.
        partition_bits: u32,
        /// Its map.
        map: Vec<Assigned>,
        /// Where the directory lies.
        directory: BlockId,
        /// The version that it paused for; 0: none.
        paused: u64,
        /// The other nodes that it knows.
        members: Vec<Member>,
    }
    /// Owner of blocks → a partition's node: what does it refer to in these?
    Refers = 32 {
        /// Which partition.
        partition: u32,
        /// At which epoch.
        epoch: u32,
        /// Which blocks.
        blocks: Vec<BlockId>,
    }
    /// Slots' words that name records there.
    Referred = 33 { /** Them. */ words: Vec<u64> }
    /// Owner of blocks → compute node: what there may it still give back, or put into the index?
    Holds = 34 { /** Which blocks. */ blocks: Vec<BlockId> }
    /// Proxy → owner of blocks: a write was given up and may have happened; what it superseded may
    /// lie in them. To be swept.
    Sweep = 37 {}
    /// Compute node → coordinator, now and then: it is there.
    Here = 31 {
        /// As which client of the pool.
        client: ClientId,
        /// Where it is reached.
        endpoints: Vec<String>,
        /// The block of the directory that it works by, if it does.
        directory: Option<BlockId>,
    }
    /// Compute node → another one, when the pool is full: room for a record in a block of yours.
    Room = 38 {
        /// Bytes of the record.
        bytes: u64,
        /// Whether the record expires.
        expires: bool,
    }
    /// Room that is the asker's to write to. Whoever supersedes the record gives it back to the
    /// block's owner, as any other.
    Roomed = 39 { /** Where: a packed address. */ packed: u64 }
    /// Coordinator → compute node: what have you counted?
    Count = 40 {}
    /// What it counted.
    Counted = 41 { /** By name. */ figures: Vec<Figure> }
    /// Anybody → coordinator: how is the store?
    Status = 42 {}
    /// How it is.
    StatusIs = 43 { /** See there. */ status: StoreStatus }
    /// Client → proxy: the slots of some buckets, for a scan.
    Slots = 44 {
        /// Which partition.
        partition: u32,
        /// The epoch at which the client knows the partition.
        epoch: u32,
        /// The first bucket.
        bucket: u32,
        /// Number of buckets; at most [`SLOTS_BUCKETS_MAX`].
        buckets: u32,
    }
    /// The committed words of all slots of these buckets, in their order.
    SlotsAre = 45 { /** The words; 0 where no key ever lay. */ words: Vec<u64> }
    }
}

/// Whether a request's body claims to be one of these messages.
#[must_use]
pub fn is_ours(body: &[u8]) -> bool {
    body.first().is_some_and(|first| first & MARK != 0)
}
