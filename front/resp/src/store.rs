//! What the server asks of the store below it: one keyspace of byte strings with expiry.
//!
//! Owned by the server as `Arc<dyn Store>`; the engine is adapted to it, so is the store over
//! remote memory, and [`crate::mem_store::MemStore`] implements it for tests and trials. Invariants
//! that the server builds on:
//!
//! 1. A [`Store::write`] is atomic: readers see all of its operations or none, in their order.
//! 2. A record whose expiry has come is invisible to every method at once.
//! 3. [`Store::multi_get`] and [`Store::scan`] each show one moment.
//! 4. A write that returned is seen by every later read, from any thread.
//! 5. [`Store::modify`] and [`Store::remove`] of one key are atomic, as long as every writer of the
//!    key holds its stripe; where others write the same keys (`shared`), the store sees to it.
//!
//! A store that cannot keep 1 and 3 for several keys, or has no order, refuses
//! [`Store::joint_writes`], [`Store::scan`] and ranges as unsupported, with the reason; the
//! server refuses the commands that need them. Its `multi_get` and `write` take each key by itself.
//! It may list its keys by [`Store::unordered_keys`] and move values by [`Store::rename`].
//!
//! Methods are synchronous and may block on I/O. The server calls short ones straight from its
//! runtime's workers and long ones, or writes while [`Store::would_stall`], off them.

use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;

use archipelago_base::{Error, Result};
pub use archipelago_engine::pinned::PinnedSlice;

use crate::databases::Order;
use crate::prefixes::PrefixTable;

/// Largest key in bytes; the server passes longer ones on, for the store's error.
pub const KEY_BYTES_MAX: usize = 64 << 10;

/// Largest value in bytes; a command that would make a longer one is refused.
pub const VALUE_BYTES_MAX: usize = 1 << 30;

/// A record that is there.
#[derive(Clone, Debug)]
pub struct StoredValue {
    /// The value, possibly pinned in the store's cache.
    pub value: PinnedSlice,
    /// When the record expires, in milliseconds since the Unix epoch; `None` for never.
    pub expires_at_ms: Option<u64>,
}

/// What is known of a record without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// When the record expires, in milliseconds since the Unix epoch; `None` for never.
    pub expires_at_ms: Option<u64>,
}

/// One operation of an atomic write. It borrows the request's bytes: the store makes the only copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// Sets `key`, whatever was there before.
    Put {
        /// The key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// When it expires, in milliseconds since the Unix epoch; `None` for never.
        expires_at_ms: Option<u64>,
    },
    /// Removes `key`; no error if it is not there.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Removes every key from `start` on and before `end`; to the last key without `end`.
    DeleteRange {
        /// First key that goes.
        start: &'a [u8],
        /// First key after it that stays.
        end: Option<&'a [u8]>,
    },
}

/// A change of several databases, all or nothing.
#[derive(Clone, Debug)]
pub struct JointWrite<'a> {
    /// A database, and the operations on it, in their order. The indexes are those before `order`.
    pub writes: Vec<(usize, Vec<Op<'a>>)>,
    /// Afterwards, database `index` shows what database `order.at(index)` has shown.
    pub order: Order,
}

/// The databases of a store: keyspaces that change together in one write.
pub trait Databases: Send + Sync {
    /// Database `index`, below 16. It follows each change of the order. Asking for a
    /// database that has no records, and reading it, creates nothing.
    fn database(&self, index: usize) -> Arc<dyn Store>;

    /// Does `change`. The caller keeps all other writes of the databases apart; reads may go on. A
    /// change of the order survives power loss on return. After an error the order is what the
    /// store would have after a restart, as far as the store can tell.
    fn write_joint(&self, change: &JointWrite<'_>) -> Result<()>;
}

/// What is left of a write after [`Store::write_now`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// All of it.
    All,
    /// The operations of these numbers, rising; maybe none.
    These(Vec<usize>),
}

/// A range of keys, for [`Store::scan`].
#[derive(Clone, Copy, Debug)]
pub struct KeyRange<'a> {
    /// Where it starts.
    pub from: Bound<&'a [u8]>,
    /// Where it ends.
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

/// What a store knows of its keys as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keyspace {
    /// About how many there are.
    pub keys: u64,
    /// About how many of them expire.
    pub expiring: u64,
    /// Milliseconds that those have left on average; 0 if there are none.
    pub mean_ttl_ms: u64,
}

/// What becomes of a key that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Nothing.
    Keep,
    /// This value, whatever was there.
    Put {
        /// The value.
        value: Cow<'a, [u8]>,
        /// When it expires, in milliseconds since the Unix epoch; `None` for never.
        expires_at_ms: Option<u64>,
    },
    /// The value that is there, with this expiry; nothing if none is.
    Expire(Option<u64>),
    /// It goes.
    Delete,
}

/// Decides a key's change by what is there. May be asked again, about something newer.
pub type Decide<'a, 'c> = dyn FnMut(Option<&StoredValue>) -> Change<'c> + 'a;

/// Takes one record of a scan: key, value, expiry. `Break` ends the scan.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8], Option<u64>) -> ControlFlow<()> + 'a;

/// Takes one key of a scan that wants no values. `Break` ends the scan.
pub type VisitKey<'a> = dyn FnMut(&[u8]) -> ControlFlow<()> + 'a;

/// How many keys a step of an unordered scan looks at, and when it ends before that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Records after which the step ends; at least 1. It may look at a few more.
    pub records: usize,
    /// Bytes of keys after which the step ends.
    pub key_bytes: usize,
}

/// The keys of a store that keeps them in no order; SCAN, KEYS and RANDOMKEY use it.
pub trait UnorderedKeys {
    /// Shows the keys from the place of `cursor` on; 0 is the beginning. Returns the cursor of the
    /// next step, 0 after the last key, or `None` if no step gave out `cursor`. A key that exists
    /// during the whole iteration is shown at least once. Cursors do not depend on the server.
    fn step(
        &self,
        cursor: u64,
        limits: StepLimits,
        show: &mut dyn FnMut(&[u8]),
    ) -> Result<Option<u64>>;

    /// Shows every key once, as long as `visit` continues.
    fn each(&self, visit: &mut VisitKey<'_>) -> Result<()>;

    /// Some key; `None` if there is none.
    fn random(&self) -> Result<Option<Vec<u8>>>;
}

/// What came of [`Store::rename`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// The value is at the new key alone.
    Done,
    /// There is no old key.
    NoSource,
    /// The new key exists and was not to be overwritten.
    DestinationExists,
}

/// One keyspace; see the module for what it promises.
pub trait Store: Send + Sync + 'static {
    /// The databases that this keyspace is one of. `None`: there is only this one, database 0.
    fn databases(&self) -> Option<&dyn Databases> {
        None
    }

    /// The record at `key`.
    fn get(&self, key: &[u8]) -> Result<Option<StoredValue>>;

    /// The record at `key` without its value; cheaper than [`Store::get`] where the value is large.
    fn head(&self, key: &[u8]) -> Result<Option<Head>> {
        let head = |entry: StoredValue| Head { expires_at_ms: entry.expires_at_ms };
        Ok(self.get(key)?.map(head))
    }

    /// Whether there is a record at `key`; as cheap as [`Store::head`].
    fn exists(&self, key: &[u8]) -> Result<bool> {
        Ok(self.head(key)?.is_some())
    }

    /// Which of `keys` have a record, in their order, all as of one moment.
    fn which_exist(&self, keys: &[&[u8]]) -> Result<Vec<bool>> {
        Ok(self.multi_get(keys)?.iter().map(Option::is_some).collect())
    }

    /// The values of `keys`, in their order, all as of one moment.
    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<PinnedSlice>>>;

    /// Hands out the values of `keys`, in their order, all as of one moment, until `take` breaks.
    /// Holds few of them in memory at a time, where that is possible.
    fn multi_get_each(
        &self,
        keys: &[&[u8]],
        take: &mut dyn FnMut(Option<&[u8]>) -> ControlFlow<()>,
    ) -> Result<()> {
        let values = self.multi_get(keys)?;
        let _ended = values.iter().try_for_each(|value| take(value.as_deref()));
        Ok(())
    }

    /// Hands out the values of the first of `keys`, in their order, as long as that takes no
    /// waiting and no copy; how many. For a store that [overlaps reads](Store::overlaps_reads).
    /// `take` must not call the store.
    fn get_now(&self, keys: &[&[u8]], take: &mut dyn FnMut(Option<&[u8]>)) -> usize {
        let _as_all_others = (keys, take);
        0
    }

    /// Does of `ops` what can be done without waiting; what is left of it, to be written with
    /// [`Store::write`]. For a store whose writes of several keys are not atomic: what is left
    /// comes after what was done.
    fn write_now(&self, ops: &[Op<'_>]) -> Left {
        let _as_all_others = ops;
        Left::All
    }

    /// Applies `ops` in order, all or none. On return they survive what the store's own default
    /// promises (`kill -9` of the process, unless it is in memory).
    fn write(&self, ops: &[Op<'_>]) -> Result<()>;

    /// The same for a change that leads to space being freed: another expiry. A store on a full
    /// disk takes it while it refuses other writes.
    fn write_freeing(&self, ops: &[Op<'_>]) -> Result<()> {
        self.write(ops)
    }

    /// Takes writes again after an error made the store refuse them, if its cause is gone.
    fn resume(&self) -> Result<()> {
        Err(Error::unsupported("this store needs no RESUME: it takes writes whenever it can"))
    }

    /// Reads `key`, and makes of it what `decide` says. The last answer of `decide` is the one that
    /// took place.
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
    /// key, whoever makes it. Otherwise the server keeps writes of a key apart, and
    /// [`Store::joint_writes`] may be relied on.
    fn is_atomic_by_key(&self) -> bool {
        false
    }

    /// Removes `keys`, which differ; how many were there.
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

    /// A number that every write of `key` changes; `None` if there is no record, or an expired
    /// one. WATCH compares it. The default refuses it, for stores without transactions.
    fn version(&self, key: &[u8]) -> Result<Option<u64>> {
        let _asks_in_vain = key;
        Err(Error::unsupported("this store has no transactions"))
    }

    /// Whether several keys can be read and written at one moment; the error says why not.
    fn joint_writes(&self) -> Result<()> {
        Ok(())
    }

    /// Whether every write of the keyspace goes through this store, so that the server can tell
    /// clients that track keys; the error says why not.
    fn sees_all_writes(&self) -> Result<()> {
        Ok(())
    }

    /// Shows the records of `range` in key order, or from its end with `reverse`.
    fn scan(&self, range: KeyRange<'_>, reverse: bool, visit: &mut Visit<'_>) -> Result<()>;

    /// Shows the keys of `range` in key order, or from its end with `reverse`. Cheaper than
    /// [`Store::scan`] where values are large.
    fn scan_keys(
        &self,
        range: KeyRange<'_>,
        reverse: bool,
        visit: &mut VisitKey<'_>,
    ) -> Result<()> {
        self.scan(range, reverse, &mut |key, _, _| visit(key))
    }

    /// The prefixes of keys that SCAN cursors refer to. `None`: the store has no table for them and
    /// its data does not survive a restart, so the server keeps one in memory.
    fn scan_prefixes(&self) -> Option<&dyn PrefixTable> {
        None
    }

    /// The keys, of a store that keeps them in no order and refuses [`Store::scan`].
    fn unordered_keys(&self) -> Option<&dyn UnorderedKeys> {
        None
    }

    /// Moves value and expiry of `from` to `to`, which differ, in a store that refuses
    /// [`Store::joint_writes`]; the server moves them in one write elsewhere. The value is at one
    /// of the keys, or at both, at every moment.
    fn rename(&self, from: &[u8], to: &[u8], overwrites: bool) -> Result<Moved> {
        let _asks_in_vain = (from, to, overwrites);
        Err(Error::unsupported("this store does not move values between keys"))
    }

    /// About how many keys there are; exact only where that is cheap. May take milliseconds.
    fn approximate_count(&self) -> Result<u64>;

    /// [`Store::approximate_count`], with how many of the keys expire and the time that these have
    /// left on average.
    fn keyspace(&self) -> Result<Keyspace>;

    /// How many records have expired and were removed since the store was opened.
    fn expired_keys(&self) -> u64;

    /// Makes everything that was written before survive power loss. The default refuses it, for
    /// stores that keep nothing on a device.
    fn sync(&self) -> Result<()> {
        Err(Error::unsupported("this store keeps nothing on a device that could be saved"))
    }

    /// Makes a copy of everything in `dir`, which must not exist or be empty, while reads and
    /// writes go on. On return it survives power loss. The default refuses it, for stores without
    /// files.
    fn checkpoint(&self, dir: &Path) -> Result<()> {
        let _asks_in_vain = dir;
        Err(Error::unsupported("this store has no files to make a checkpoint of"))
    }

    /// What parts of the store may take of the memory budget, each with its name and a number of
    /// bytes, for the section Memory of INFO. Default none.
    fn memory_parts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// The store's own lines for INFO: `name:value`, one a line, no headings.
    fn info(&self) -> String;

    /// Whether a write that returned survives power loss, and not only the end of the process.
    fn syncs_writes(&self) -> bool {
        false
    }

    /// Whether several reads at once take less time than one after another: a pipeline's GETs come
    /// as one [`Store::multi_get`] then.
    fn overlaps_reads(&self) -> bool {
        false
    }

    /// Whether a read or a write now would wait: for a flush, a compaction, a move. Asked before
    /// every one, so it must be cheap; a wrong answer costs latency of other connections, nothing
    /// else.
    fn would_stall(&self, write: bool) -> bool {
        let _reads_and_writes = write;
        false
    }
}
