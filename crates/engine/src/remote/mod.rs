//! Storage of sealed memtable shards outside the owner: the interface at which memory nodes attach
//! (O³-LSM §4.2 and §4.5).
//!
//! The database gives the image of a sealed shard to its [`ShardStore`] and frees its own copy. It
//! asks the store whenever a read needs a record of the shard. The shard's filter and its range
//! tombstones stay at the database. Nothing here is durable. The write-ahead log keeps every record
//! of a shard until tables have it, so a lost shard is rebuilt from the log.
//!
//! Invariants, which the store keeps and the database relies on:
//!
//! 1. An answer is complete or it is an error. A store never answers "no versions" for a shard that
//!    it could not ask.
//! 2. The bytes of a shard never change after [`ShardStore::send`] has returned its node. An answer
//!    comes from exactly the image that was sent, or it is an error.
//! 3. A shard is readable from the return of `send` until its release, or until it is lost. A loss
//!    is final: a store that has returned [`AwayError::Lost`] for a shard alone never answers for
//!    it again.
//! 4. Every call ends within a bound that the store states to its users (seconds), even if the node
//!    hangs. A read ends within the time that its ask names ([`LookupAsk::time_left`]). A node that
//!    has been silent for longer than the store's limit has lost its shards.
//!
//! A store may take records before the seal: the database offers it each active shard
//! ([`ShardStore::offer`]), whose complete slabs of records do not change any more. Records that
//! have left early are no shard. No read finds them before [`ShardStore::send`] has returned, and
//! if they are lost the shard is sent as a whole.
//!
//! The calls block, because every caller in the engine does. A store that is asynchronous inside
//! drives its own events while it waits.
//!
//! A store that keeps shards from one open of the database to the next one implements
//! [`ShardStore::list`], [`ShardStore::heads`], [`ShardStore::adopt`] and [`ShardStore::purge`],
//! which an open calls in this order. Their defaults keep nothing: then an open replays the log.
//!
//! Thread-safety: many threads may call every method in parallel, with these exceptions. The thread
//! that opens the database calls [`ShardStore::owner_is`], the four methods of an open and
//! [`ShardStore::watch`] before the others. The database holds none of its locks during `offer`,
//! `send`, `lookup`, `scan`, `fetch` and the methods of an open. It may hold any lock during
//! `room`, `staying` and `release`. Therefore these three neither block nor call back.

mod active;
mod ask;
mod earlier;
mod staying;

use std::fmt;
use std::sync::{Arc, Weak};

use archipelago_base::{CfId, FileNo, Result, SeqNo};

use crate::executor::OwnerIdentity;
use crate::key::KeyRange;
use crate::memtable::{ImageHead, SealedImage};

pub use active::ActiveShard;
pub use ask::{
    KeyAsk, KeyVersions, LookupAnswer, LookupAsk, ResumeAt, ScanAsk, ScanDirection, ScanPage,
    ScanRecord, ShardVersion,
};
pub use earlier::{EarlierShard, FoundShard};
pub use staying::SealedReads;

/// Keeps sealed memtable shards outside the memory of the database.
pub trait ShardStore: Send + Sync + 'static {
    /// Name of the store in errors and events. Default: the name of its type.
    fn name(&self) -> &str {
        std::any::type_name::<Self>()
    }

    /// Name of a node in errors, with an address if the store knows one. The call does not block.
    /// Default: the number of the node.
    fn node_name(&self, node: StoreNode) -> String {
        format!("memory node {node}")
    }

    /// Notifies the store of the open database's owner. The call comes once, before every other one
    /// but [`ShardStore::name`], and never for a database that is open for reading only. The store
    /// must not forget shards of an earlier owner by itself, and must refuse late requests of such
    /// an owner. An error ends the open.
    fn owner_is(&self, owner: &OwnerIdentity) -> Result<()>;

    /// The shards that the owner directly before this one had at nodes. From now on they are held
    /// for this owner, so that the next open finds them if this one fails. The call comes at most
    /// once, directly after [`ShardStore::owner_is`]. It waits at most a second for a node, and
    /// leaves out the shards of a node that has not listed them by then.
    ///
    /// Shards whose hold the node has not confirmed are listed, because the next open may find
    /// them. Their head ([`ShardStore::heads`]) cannot be read, so the open keeps none of them. A
    /// shard that an owner had earlier, and that the last owner did not hold, is never among them:
    /// its records may differ from those of the log. Default: none.
    fn list(&self) -> Vec<FoundShard> {
        Vec::new()
    }

    /// Reads the heads, which the database keeps in memory, of shards that [`ShardStore::list`] has
    /// found. The result has one entry for each, in their order. Errors: as those of
    /// [`ShardStore::lookup`].
    fn heads(&self, shards: &[FoundShard]) -> Vec<Result<ImageHead, AwayError>> {
        let nothing = |_| Err(AwayError::Lost("the store keeps no shards".to_owned()));
        shards.iter().map(nothing).collect()
    }

    /// Gives names of this open to shards that [`ShardStore::list`] has found. The result has one
    /// entry for each, in their order. From then on they are like shards that this open has sent.
    ///
    /// Errors: [`AwayError::Lost`] if the node has been lost meanwhile. The database then rebuilds
    /// the shard from its log.
    fn adopt(&self, shards: &[(ShardId, &FoundShard)]) -> Vec<Result<StoreNode, AwayError>> {
        let nothing = |_| Err(AwayError::Lost("the store keeps no shards".to_owned()));
        shards.iter().map(nothing).collect()
    }

    /// Notifies the store that the database needs no other shard of earlier opens. The call comes
    /// once in each open, after the calls above and before [`ShardStore::watch`]. It does not
    /// block: the store makes every node drop the shards, even a node that answers only later.
    fn purge(&self) {}

    /// Gives the store a receiver of news. The call comes once, after [`ShardStore::owner_is`] and
    /// [`ShardStore::purge`]. The receiver may be dropped at any time.
    fn watch(&self, watcher: Weak<dyn StoreWatcher>);

    /// Room of the store, as far as the store knows it now. Decisions about sending shards and
    /// about write stalls use it. The call may be frequent, and under locks: it must not block.
    fn room(&self) -> StoreRoom;

    /// Number of the newest sealed memtables of each column family that should stay in memory.
    /// `reads` has the figures of the window that has just ended. `None` asks for the present
    /// number, at the open of the database. The call comes at most once a second, under a lock: it
    /// must not block. Default: none stay.
    ///
    /// The database may send a memtable earlier if memory is short, and keeps at most 16.
    fn staying(&self, reads: Option<&SealedReads<'_>>) -> usize {
        let _none_stays = reads;
        0
    }

    /// Offers an active shard, whose complete slabs of records the store may write to a node while
    /// the shard fills (O³-LSM §4.2). The call does not block. The database offers a shard once,
    /// and may never send it: because a record of it is not logged, because its memtable is
    /// flushed, or because the family is dropped. The store notices by [`ActiveShard::records`]
    /// that the shard is gone. Default: nothing leaves before the seal.
    fn offer(&self, shard: ActiveShard) {
        let _sent_as_a_whole = shard;
    }

    /// Sends the image of a shard to a node and returns when the node can answer for the shard.
    ///
    /// Background threads call it, several of them in parallel for different shards. The database
    /// sends a shard at most once at a time, and keeps its own copy until the call has returned. If
    /// the call fails, the store itself releases everything that it has sent of the shard. The
    /// database may then send the same shard again later. A shard that was lost or released after a
    /// successful call is never sent again.
    ///
    /// Errors: [`AwayError::NoRoom`] if no node has room for the image, [`AwayError::Busy`] if the
    /// transfer took too long, [`AwayError::Lost`] if the node was lost during the transfer. The
    /// database treats them alike, except that it counts them.
    fn send(&self, shard: &NewShard<'_>, image: &[u8]) -> Result<StoreNode, AwayError>;

    /// Looks up keys in shards. The result has one entry for each element of `asks`, in their
    /// order. Asks of different nodes run in parallel. The store asks for a shard at the node that
    /// it is read at now ([`StoreWatcher::moved`]), which may not be the node of the ask.
    ///
    /// The answer has the versions of each key that the snapshot sees, from all shards of the ask
    /// together. They are ordered newest first, and end with the first version that is not a merge
    /// operand. Versions older than the floor of the key may be left out. The store joins an answer
    /// that travels in parts, even if a part ends between two operands.
    ///
    /// Errors: [`AwayError::Lost`] says that *at least one* shard of the ask is lost, or was
    /// released meanwhile. The database then asks for each of them alone. It treats a shard as lost
    /// only if the answer for that shard alone says so. [`AwayError::Busy`] says that there was no
    /// answer within the bound.
    fn lookup(&self, asks: &[LookupAsk<'_>]) -> Vec<Result<LookupAnswer, AwayError>>;

    /// A page of the merged records of one node's shards, in either direction.
    ///
    /// Errors: as those of [`ShardStore::lookup`]. If the shards are read at several nodes by now,
    /// the store reports that ([`StoreWatcher::moved`]) and then returns [`AwayError::Busy`].
    fn scan(&self, ask: &ScanAsk<'_>) -> Result<ScanPage, AwayError>;

    /// The whole image of a shard, opened and thereby checked.
    ///
    /// Errors: as those of [`ShardStore::lookup`].
    fn fetch(&self, shard: ShardId) -> Result<Arc<SealedImage>, AwayError>;

    /// Releases shards that the database no longer needs. It begins no call about them afterwards.
    /// A call that is in progress on another thread may end with any answer or error, because the
    /// database then has the records elsewhere. Lost shards are released, too. The call never
    /// blocks and cannot fail: the store repeats a release until the node has it or is gone.
    ///
    /// The database will send no shard of a memtable below `oldest` any more. A shard that was sent
    /// earlier may still be in use until it is released as well. `oldest` never falls.
    fn release(&self, shards: &[ShardId], oldest: u64);

    /// Whether a close of the database leaves its shards at their nodes, for the next open to find
    /// them ([`ShardStore::list`]). Default: no, a close releases them.
    fn leaves_shards(&self) -> bool {
        false
    }

    /// Notifies the store that the database closes; no call follows. The database has released all
    /// its shards, or none of them if [`ShardStore::leaves_shards`]. The store waits, within its
    /// bound, until its nodes have the releases.
    fn close(&self);
}

/// Receives news of a [`ShardStore`]. The methods never block, so the store may call them from its
/// own event loop.
pub trait StoreWatcher: Send + Sync + 'static {
    /// Reports lost shards. The store calls it when it notices that a node is gone or has a new
    /// life, so that the database rebuilds the shards before a read needs them. A shard may be
    /// named more than once, and also after its release.
    fn lost(&self, shards: &[ShardId]);

    /// Reports that these shards are read at `node` from now on. A store with two copies of a shard
    /// uses the other copy if a node is lost, does not answer, or wants memory back. Nothing is
    /// lost, and the store still answers asks that name the earlier node. A shard may be named more
    /// than once, and also after its release. Default: nothing happens, for stores with one copy.
    fn moved(&self, shards: &[ShardId], node: StoreNode) {
        let _one_copy = (shards, node);
    }

    /// Reports that [`ShardStore::room`] has changed: it has grown, or its limit has fallen, so
    /// that flushes are due.
    fn room_has_changed(&self);

    /// The present load of the database's writers. The store calls it during [`ShardStore::send`],
    /// for each part that it sends. So images are sent as fast as writers need it and no faster.
    /// Default: nothing is known, and images are sent as fast as possible.
    fn write_load(&self) -> WriteLoad {
        WriteLoad::default()
    }

    /// Whether a flush waits for a shard that is being sent. The store may then give the transfer
    /// up, and returns [`AwayError::Busy`] from [`ShardStore::send`]. Default: no.
    fn is_due(&self, shard: ShardId) -> bool {
        let _never_given_up = shard;
        false
    }

    /// Whether writers of a family wait for background work, or are slowed down until it has made
    /// progress, as of the latest stall decision. Default: no.
    fn writers_wait(&self) -> bool {
        false
    }

    /// Speed at which writers fill memtables now, in bytes a second; 0 if it is not known. The
    /// store writes records of active shards ahead at about this speed. Default: it is not known.
    fn fill_bytes_per_s(&self) -> u64 {
        0
    }
}

/// Load of a database's writers, which sets the speed at which images are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteLoad {
    /// Bytes of sealed memtables that are still here, including those that are being sent.
    pub backlog_bytes: u64,
    /// Bytes that writers may still write before they must wait. It is 0 if they wait already, if
    /// something else waits for the shards, or if it is not known. Then images are sent as fast as
    /// possible.
    pub space_bytes: u64,
    /// Speed at which writers fill memtables, in bytes a second.
    pub fill_bytes_per_s: u64,
}

/// Name of a sealed shard within one open of a database. No name is used twice in one open; the
/// store adds the database and its owner epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId {
    /// Number of the memtable. Numbers start at 1 and follow the order in which the database makes
    /// memtables.
    pub memtable: u64,
    /// Index of the shard within its memtable.
    pub shard: u32,
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.memtable, self.shard)
    }
}

/// A node of a [`ShardStore`] in one of its lives. Shards on one node are asked together. The store
/// chooses the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreNode(pub u64);

impl fmt::Display for StoreNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Properties of a shard that a node keeps with its image, for placement and for a next owner.
#[derive(Clone, Debug)]
pub struct NewShard<'a> {
    /// Name of the shard.
    pub id: ShardId,
    /// Column family of the shard.
    pub family: CfId,
    /// Keys of its bucket.
    pub keys: &'a KeyRange,
    /// Sequence number up to which older shards and tables have all records of these keys.
    pub after_seq: SeqNo,
    /// Largest sequence number of the whole memtable, which is at least that of the shard.
    pub last_seq: SeqNo,
    /// Oldest log segment that holds a record of the shard.
    pub oldest_log: FileNo,
    /// Log segment in which the memtable was sealed.
    pub seal_log: FileNo,
}

/// Room of a [`ShardStore`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreRoom {
    /// Bytes of images that the store could take now, as far as nodes have promised room.
    pub free_bytes: u64,
    /// Bytes of images that are on their way.
    pub sending_bytes: u64,
    /// Bytes of images that the nodes hold for the database, those of unanswered releases included.
    pub held_bytes: u64,
    /// Bytes of second copies, which are a part of `held_bytes`. The store releases them when an
    /// image needs their room.
    pub spare_bytes: u64,
    /// Bytes of images that the database may have at all nodes together, without second copies.
    /// While a node wants memory back, it is so close to `held_bytes - spare_bytes` that flushes
    /// are due.
    pub limit_bytes: u64,
    /// Bytes of the largest image that a node takes. 0 if no node takes any: then nothing is sent.
    pub image_bytes_max: u64,
    /// Speed at which an image can be sent, in bytes a second; 0 if it is not known. Images may be
    /// sent more slowly while writers do not need it ([`StoreWatcher::write_load`]).
    pub link_bytes_per_s: u64,
    /// Whether other databases can use memory that this one gives back at a node: a node that has
    /// images of this database, or gets one, has other databases. It is false while a node with
    /// images of this database does not answer. Default: no.
    pub is_shared: bool,
}

/// A failed call of a [`ShardStore`]. The text says which node failed and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AwayError {
    /// At least one of the shards in question is lost. Its node is gone, began a new life, does not
    /// know it, has been silent for too long, or returned bytes that are not those of the shard.
    /// The database rebuilds a shard for which it gets this error alone.
    Lost(String),
    /// There was no answer within the bound, and the shards may still exist. The database tries
    /// again, or returns `Busy`.
    Busy(String),
    /// No node has room for the image. Only [`ShardStore::send`] returns it.
    NoRoom(String),
}

impl fmt::Display for AwayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(why) => write!(f, "memtable shards are lost: {why}"),
            Self::Busy(why) => write!(f, "memtable shards do not answer: {why}"),
            Self::NoRoom(why) => write!(f, "no memory node has room for a memtable shard: {why}"),
        }
    }
}

impl std::error::Error for AwayError {}
