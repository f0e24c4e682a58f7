//! What the server asks of the store below it: one ordered keyspace of byte strings with expiry.
//!
//! Owned by the server as `Arc<dyn Store>`; the engine is adapted to it, and
//! [`crate::mem_store::MemStore`] implements it for tests and trials. Invariants that the server
//! builds on:
//!
//! 1. A [`Store::write`] is atomic: readers see all of its operations or none, in their order.
//! 2. A record whose expiry has come is invisible to every method at once.
//! 3. [`Store::multi_get`] and [`Store::scan`] each show one moment.
//! 4. A write that returned is seen by every later read, from any thread.
//!
//! Methods are synchronous and may block on I/O. The server calls short ones straight from its
//! runtime's workers and long ones, or writes while [`Store::would_stall`], off them.

use std::ops::{Bound, ControlFlow};

use archipelago_base::Result;
pub use archipelago_engine::pinned::PinnedSlice;

/// Largest key in bytes; the server passes longer ones on, for the store's error.
pub const KEY_BYTES_MAX: usize = 64 << 10;

/// Largest value in bytes; a command that would make a longer one is refused.
pub const VALUE_BYTES_MAX: usize = 1 << 30;

/// A record that is there.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The value, possibly pinned in the store's cache.
    pub value: PinnedSlice,
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

/// Takes one record of a scan: key, value, expiry. `Break` ends the scan.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8], Option<u64>) -> ControlFlow<()> + 'a;

/// One keyspace; see the module for what it promises.
pub trait Store: Send + Sync + 'static {
    /// The record at `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Entry>>;

    /// Whether there is a record at `key`; cheaper than [`Store::get`] where the value is large.
    fn exists(&self, key: &[u8]) -> Result<bool> {
        Ok(self.get(key)?.is_some())
    }

    /// The values of `keys`, in their order, all as of one moment.
    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<PinnedSlice>>>;

    /// Applies `ops` in order, all or none. On return they survive what the store's own default
    /// promises (`kill -9` of the process, unless it is in memory).
    fn write(&self, ops: &[Op<'_>]) -> Result<()>;

    /// Shows the records of `range` in key order, or from its end with `reverse`.
    fn scan(&self, range: KeyRange<'_>, reverse: bool, visit: &mut Visit<'_>) -> Result<()>;

    /// About how many keys there are; exact only where that is cheap. May take milliseconds.
    fn approximate_count(&self) -> Result<u64>;

    /// The store's own lines for INFO: `name:value`, one a line, no headings.
    fn info(&self) -> String;

    /// Whether a write now would wait for a flush or a compaction. Asked before every write, so
    /// it must be cheap; a wrong answer costs latency of other connections, nothing else.
    fn would_stall(&self) -> bool {
        false
    }
}
