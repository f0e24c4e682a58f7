//! Options of a read: its snapshot, its bounds and its use of the cache.
//!
//! The caller owns them. They are plain values without invariants.

use crate::db::read::snapshot::Snapshot;

/// Settings of one read or iterator. `Default` reads the newest, fills the cache, has no bounds.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// Read as of this snapshot. Default: the newest.
    pub snapshot: Option<Snapshot>,
    /// Iterators: first key (inclusive).
    pub lower_bound: Option<Vec<u8>>,
    /// Iterators: first key past the last (exclusive).
    pub upper_bound: Option<Vec<u8>>,
    /// Iterators: only keys that start with this; narrows the bounds.
    pub prefix: Option<Vec<u8>>,
    /// Keep blocks that had to be read in the cache. Default true; false for large scans.
    pub fill_cache: bool,
    /// Iterators: number of bytes that are read ahead. Default 0: grows with the scan.
    pub readahead_bytes: u64,
    /// Fail with `Busy` ("would need I/O") instead of reading a file. Default false.
    pub cache_only: bool,
    /// The values are not wanted: large ones are not read, neither from files nor into memory, and
    /// the value that an iterator shows may be cut or empty. It is empty if it is separated.
    /// Default false.
    pub keys_only: bool,
    /// Iterators: fetch separated values ahead of the cursor, several at a time. Default true;
    /// benchmarks turn it off to compare.
    #[doc(hidden)]
    pub value_prefetch: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            snapshot: None,
            lower_bound: None,
            upper_bound: None,
            prefix: None,
            fill_cache: true,
            readahead_bytes: 0,
            cache_only: false,
            keys_only: false,
            value_prefetch: true,
        }
    }
}

impl ReadOptions {
    /// The default options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads as of `snapshot`.
    #[must_use]
    pub fn snapshot(mut self, snapshot: &Snapshot) -> Self {
        self.snapshot = Some(snapshot.clone());
        self
    }

    /// Iterates over `lower..upper`.
    #[must_use]
    pub fn range(mut self, lower: impl Into<Vec<u8>>, upper: impl Into<Vec<u8>>) -> Self {
        self.lower_bound = Some(lower.into());
        self.upper_bound = Some(upper.into());
        self
    }

    /// Reads no values where that can be avoided.
    #[must_use]
    pub fn keys_only(mut self) -> Self {
        self.keys_only = true;
        self
    }

    /// Iterates over the keys that start with `prefix`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<Vec<u8>>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }
}
