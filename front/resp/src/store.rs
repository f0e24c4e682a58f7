//! Interface between the server and the store below it: one keyspace of byte strings with expiry.
//!
//! The server owns a store as `Arc<dyn Store>`. The engine and the store over remote memory
//! implement it through adapters. [`crate::mem_store::MemStore`] implements it for tests. The
//! server relies on these invariants:
//!
//! 1. A [`Store::write`] is atomic: readers see all of its operations or none, in their order.
//! 2. A record whose expiry has passed is invisible to every method.
//! 3. [`Store::multi_get`] and [`Store::scan`] each show one moment.
//! 4. Every later read, on any thread, sees a write that has returned.
//! 5. [`Store::modify`] and [`Store::remove`] of one key are atomic if every writer of the key
//!    holds its stripe. If other processes write the same keys, the store makes them atomic itself.
//!
//! A store that cannot keep 1 and 3 for several keys, or that has no order, refuses
//! [`Store::joint_writes`], [`Store::scan`] and ranges as unsupported, with the reason. The server
//! then refuses the commands that need them. Its `multi_get` and `write` treat each key by itself.
//! It may list its keys by [`Store::unordered_keys`], and move values by [`Store::rename`].
//!
//! Methods are synchronous and may block on I/O. The server calls short ones directly on the worker
//! threads of its runtime. Long ones, and writes while [`Store::would_stall`], leave the worker
//! threads first.

use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;

use archipelago_base::{Error, Result};
pub use archipelago_engine::disk_space::SpaceUse;
pub use archipelago_engine::pinned::PinnedSlice;

use crate::databases::Order;
use crate::prefixes::PrefixTable;

/// Longest key in bytes. The server passes longer keys on, for the error of the store.
pub const KEY_BYTES_MAX: usize = 64 << 10;

/// Longest value in bytes. A command that would make a longer one is refused.
pub const VALUE_BYTES_MAX: usize = 1 << 30;

/// Value and expiry of an existing record.
#[derive(Clone, Debug)]
pub struct StoredValue {
    /// The value. It may be pinned in the cache of the store.
    pub value: PinnedSlice,
    /// Expiry in milliseconds since the Unix epoch; `None` for never.
    pub expires_at_ms: Option<u64>,
}

/// The facts about a record without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Expiry in milliseconds since the Unix epoch; `None` for never.
    pub expires_at_ms: Option<u64>,
}

/// One operation of an atomic write. It borrows the bytes of the request, and the store makes the
/// only copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// Sets `key`, whether it exists or not.
    Put {
        /// Key of the record.
        key: &'a [u8],
        /// Value of the record.
        value: &'a [u8],
        /// Expiry in milliseconds since the Unix epoch; `None` for never.
        expires_at_ms: Option<u64>,
    },
    /// Removes `key`. An absent key is no error.
    Delete {
        /// Key of the record.
        key: &'a [u8],
    },
    /// Removes every key from `start` on and before `end`. Without `end` the range extends to the
    /// last key.
    DeleteRange {
        /// First key of the range.
        start: &'a [u8],
        /// First key after the range.
        end: Option<&'a [u8]>,
    },
}

/// A change of several databases, which is atomic.
#[derive(Clone, Debug)]
pub struct JointWrite<'a> {
    /// Indexes of databases, and the operations on each in their order. The indexes are those
    /// before `order` changes.
    pub writes: Vec<(usize, Vec<Op<'a>>)>,
    /// After the change, database `index` shows what database `order.at(index)` has shown.
    pub order: Order,
    /// Effect of the writes on the space of the store, as far as the caller knows. With
    /// [`SpaceUse::Frees`], a store on a full disk accepts them while it refuses other writes.
    /// Another order takes space in any case.
    pub space_use: SpaceUse,
}

/// The databases of a store: keyspaces that change together in one write.
pub trait Databases: Send + Sync {
    /// Database `index`, below 16. It follows each change of the order. Asking for a database
    /// without records, and reading it, creates nothing.
    fn database(&self, index: usize) -> Arc<dyn Store>;

    /// Applies `change`. The caller keeps other writes of the databases out, but reads may go on. A
    /// change of the order survives power loss on return. After an error the order is the one that
    /// the store would have after a restart, as far as the store can tell.
    fn write_joint(&self, change: &JointWrite<'_>) -> Result<()>;
}

/// The part of a write that [`Store::write_now`] has not executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unexecuted {
    /// All operations remain.
    All,
    /// The operations with these numbers, in ascending order. There may be none.
    These(Vec<usize>),
}

/// A range of keys, for [`Store::scan`].
#[derive(Clone, Copy, Debug)]
pub struct KeyRange<'a> {
    /// Start of the range.
    pub from: Bound<&'a [u8]>,
    /// End of the range.
    pub to: Bound<&'a [u8]>,
}

impl KeyRange<'_> {
    /// Whether no key can lie in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match (self.from, self.to) {
            (Bound::Included(from), Bound::Included(to)) => from > to,
            (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to))
            | (Bound::Excluded(from), Bound::Included(to)) => from >= to,
            _ => false,
        }
    }
}

/// Figures about all keys of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keyspace {
    /// Approximate number of keys.
    pub keys: u64,
    /// Approximate number of keys that expire.
    pub expiring: u64,
    /// Mean time in milliseconds until these keys expire; 0 if there are none.
    pub mean_ttl_ms: u64,
}

/// Change of a key, which depends on its current value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// The key does not change.
    Keep,
    /// The key gets this value, whether it exists or not.
    Put {
        /// New value of the key.
        value: Cow<'a, [u8]>,
        /// Expiry in milliseconds since the Unix epoch; `None` for never.
        expires_at_ms: Option<u64>,
    },
    /// The value gets this expiry. An absent key does not change.
    Expire(Option<u64>),
    /// The key is removed.
    Delete,
}

/// Chooses the change of a key from its current value. The store may call it again with a newer
/// value.
pub type Decide<'a, 'c> = dyn FnMut(Option<&StoredValue>) -> Change<'c> + 'a;

/// Takes one record of a scan: key, value, expiry. `Break` ends the scan.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8], Option<u64>) -> ControlFlow<()> + 'a;

/// Takes one key of a scan without values. `Break` ends the scan.
pub type VisitKey<'a> = dyn FnMut(&[u8]) -> ControlFlow<()> + 'a;

/// Limits of one step of an unordered scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Number of records after which the step ends; at least 1. The step may read a few more.
    pub records: usize,
    /// Bytes of keys after which the step ends.
    pub key_bytes: usize,
}

/// The keys of a store that has no order of keys. SCAN, KEYS and RANDOMKEY use it.
pub trait UnorderedKeys {
    /// Shows the keys from the position of `cursor` on, where 0 is the beginning. Returns the
    /// cursor of the next step, or 0 after the last key. `None`: no step gave out `cursor`. A key
    /// that exists during the whole iteration is shown at least once. Cursors do not depend on the
    /// server.
    fn step(
        &self,
        cursor: u64,
        limits: StepLimits,
        show: &mut dyn FnMut(&[u8]),
    ) -> Result<Option<u64>>;

    /// Shows every key once, until `visit` breaks.
    fn each(&self, visit: &mut VisitKey<'_>) -> Result<()>;

    /// Some key; `None` if there is none.
    fn random(&self) -> Result<Option<Vec<u8>>>;
}

/// Result of [`Store::rename`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Only the new key has the value.
    Done,
    /// The old key does not exist.
    NoSource,
    /// The new key exists, and was not to be overwritten.
    DestinationExists,
}

/// One keyspace, with the invariants of this module.
pub trait Store: Send + Sync + 'static {
    /// The databases to which this keyspace belongs. `None`: it is the only one, database 0.
    fn databases(&self) -> Option<&dyn Databases> {
        None
    }

    /// The record at `key`.
    fn get(&self, key: &[u8]) -> Result<Option<StoredValue>>;

    /// The record at `key` without its value. If the value is large, it is cheaper than
    /// [`Store::get`].
    fn head(&self, key: &[u8]) -> Result<Option<Head>> {
        let head = |entry: StoredValue| Head { expires_at_ms: entry.expires_at_ms };
        Ok(self.get(key)?.map(head))
    }

    /// Whether `key` has a record. It is as cheap as [`Store::head`].
    fn exists(&self, key: &[u8]) -> Result<bool> {
        Ok(self.head(key)?.is_some())
    }

    /// Whether each of `keys` has a record, in their order, at one moment.
    fn which_exist(&self, keys: &[&[u8]]) -> Result<Vec<bool>> {
        Ok(self.multi_get(keys)?.iter().map(Option::is_some).collect())
    }

    /// The values of `keys`, in their order, at one moment.
    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<PinnedSlice>>>;

    /// Passes the values of `keys` to `take`, in their order, at one moment, until `take` breaks.
    /// If possible, few of them are in memory at a time.
    fn multi_get_each(
        &self,
        keys: &[&[u8]],
        take: &mut dyn FnMut(Option<&[u8]>) -> ControlFlow<()>,
    ) -> Result<()> {
        let values = self.multi_get(keys)?;
        let _ended = values.iter().try_for_each(|value| take(value.as_deref()));
        Ok(())
    }

    /// Passes the values of the first of `keys` to `take`, in their order, as long as that takes no
    /// waiting and no copy. Returns how many. It is for a store that [overlaps
    /// reads](Store::overlaps_reads). `take` must not call the store.
    fn get_now(&self, keys: &[&[u8]], take: &mut dyn FnMut(Option<&[u8]>)) -> usize {
        let _as_all_others = (keys, take);
        0
    }

    /// Executes the operations of `ops` that need no waiting. Returns the others, which the caller
    /// then passes to [`Store::write`]. It is for a store whose writes of several keys are not
    /// atomic, because the others follow those that were executed.
    fn write_now(&self, ops: &[Op<'_>]) -> Unexecuted {
        let _as_all_others = ops;
        Unexecuted::All
    }

    /// Applies `ops` in order, atomically. On return they are as durable as the store promises by
    /// default: they survive `kill -9` of the process, unless the store is in memory.
    fn write(&self, ops: &[Op<'_>]) -> Result<()>;

    /// Like [`Store::write`], for a change that leads to free space, such as another expiry. A
    /// store on a full disk accepts it while it refuses other writes.
    fn write_freeing(&self, ops: &[Op<'_>]) -> Result<()> {
        self.write(ops)
    }

    /// Accepts writes again after an error made the store refuse them, if the cause is gone.
    fn resume(&self) -> Result<()> {
        Err(Error::unsupported("this store needs no RESUME: it takes writes whenever it can"))
    }

    /// Reads `key` and applies the change that `decide` chooses. The last answer of `decide` is the
    /// one that was applied.
    fn modify(&self, key: &[u8], decide: &mut Decide<'_, '_>) -> Result<()> {
        let entry = self.get(key)?;
        match (decide(entry.as_ref()), &entry) {
            (Change::Keep, _) | (Change::Expire(_), None) => Ok(()),
            (Change::Put { value, expires_at_ms }, _) => {
                self.write(&[Op::Put { key, value: &value, expires_at_ms }])
            }
            (Change::Expire(expires_at_ms), Some(entry)) => {
                self.write_freeing(&[Op::Put { key, value: &entry.value, expires_at_ms }])
            }
            (Change::Delete, _) => self.write(&[Op::Delete { key }]),
        }
    }

    /// Whether [`Store::modify`] and [`Store::remove`] are atomic against every other write of the
    /// key by any process. Otherwise the server serialises the writes of a key, and may rely on
    /// [`Store::joint_writes`].
    fn is_atomic_by_key(&self) -> bool {
        false
    }

    /// Removes `keys`, which differ. Returns how many existed.
    fn remove(&self, keys: &[&[u8]]) -> Result<usize> {
        let there: Vec<Op<'_>> = match keys {
            [key] => self.exists(key)?.then_some(Op::Delete { key }).into_iter().collect(),
            _ => {
                let exist = self.which_exist(keys)?;
                let there = keys.iter().zip(&exist).filter(|(_, exists)| **exists);
                there.map(|(key, _)| Op::Delete { key }).collect()
            }
        };
        if !there.is_empty() {
            self.write(&there)?;
        }
        Ok(there.len())
    }

    /// A number that every write of `key` changes. `None`: there is no record, or it has expired.
    /// WATCH compares it. By default the store refuses it, because it has no transactions.
    fn version(&self, key: &[u8]) -> Result<Option<u64>> {
        let _asks_in_vain = key;
        Err(Error::unsupported("this store has no transactions"))
    }

    /// Whether several keys can be read and written at one moment. The error says why not.
    fn joint_writes(&self) -> Result<()> {
        Ok(())
    }

    /// Whether every write of the keyspace goes through this store, so that the server can notify
    /// clients that track keys. The error says why not.
    fn sees_all_writes(&self) -> Result<()> {
        Ok(())
    }

    /// Shows the records of `range` in key order, or from its end with `reverse`.
    fn scan(&self, range: KeyRange<'_>, reverse: bool, visit: &mut Visit<'_>) -> Result<()>;

    /// Shows the keys of `range` in key order, or from its end with `reverse`. If values are large,
    /// it is cheaper than [`Store::scan`].
    fn scan_keys(
        &self,
        range: KeyRange<'_>,
        reverse: bool,
        visit: &mut VisitKey<'_>,
    ) -> Result<()> {
        self.scan(range, reverse, &mut |key, _, _| visit(key))
    }

    /// The prefixes of keys that SCAN cursors refer to. `None`: the store has no table for them,
    /// and its data does not survive a restart. Then the server keeps a table in memory.
    fn scan_prefixes(&self) -> Option<&dyn PrefixTable> {
        None
    }

    /// The keys, for a store that has no order of keys and refuses [`Store::scan`].
    fn unordered_keys(&self) -> Option<&dyn UnorderedKeys> {
        None
    }

    /// Moves value and expiry of `from` to `to`, which differ, in a store that refuses
    /// [`Store::joint_writes`]. With other stores the server moves them in one write. At every
    /// moment one of the keys has the value, or both have it.
    fn rename(&self, from: &[u8], to: &[u8], overwrites: bool) -> Result<Moved> {
        let _asks_in_vain = (from, to, overwrites);
        Err(Error::unsupported("this store does not move values between keys"))
    }

    /// Approximate number of keys. It is exact only if that is cheap. The call may take
    /// milliseconds.
    fn approximate_count(&self) -> Result<u64>;

    /// [`Store::approximate_count`], with the number of keys that expire and their mean time to
    /// expiry.
    fn keyspace(&self) -> Result<Keyspace>;

    /// Number of expired records that were removed since the store was opened.
    fn expired_keys(&self) -> u64;

    /// Makes all earlier writes survive power loss. By default the store refuses it, because it
    /// keeps nothing on a device.
    fn sync(&self) -> Result<()> {
        Err(Error::unsupported("this store keeps nothing on a device that could be saved"))
    }

    /// Copies everything to `dir`, which must not exist or must be empty, while reads and writes go
    /// on. On return the copy survives power loss. By default the store refuses it, because it has
    /// no files.
    fn checkpoint(&self, dir: &Path) -> Result<()> {
        let _asks_in_vain = dir;
        Err(Error::unsupported("this store has no files to make a checkpoint of"))
    }

    /// Parts of the memory budget that components of the store may take: a name and a number of
    /// bytes each. INFO shows them in the section Memory. Default: none.
    fn memory_parts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Lines of the store for INFO: `name:value`, one per line, without headings.
    fn info(&self) -> String;

    /// Whether a write that has returned survives power loss, and not only the end of the process.
    fn syncs_writes(&self) -> bool {
        false
    }

    /// Whether several reads in one call take less time than one after another. Then the GETs of a
    /// pipeline come as one [`Store::multi_get`].
    fn overlaps_reads(&self) -> bool {
        false
    }

    /// Whether a read or a write would now wait for a flush, a compaction or a move. The server
    /// asks before every command, so the method must be cheap. A wrong answer costs latency of
    /// other connections, and nothing else.
    fn would_stall(&self, write: bool) -> bool {
        let _reads_and_writes = write;
        false
    }
}
