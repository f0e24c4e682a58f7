//! Options of a read: its snapshot, its bounds and its use of the cache.
//!
//! The caller owns them. They are plain values without invariants.

use crate::db::read::snapshot::Snapshot;

/// Settings of one read or iterator. `Default` reads the newest visible state, fills the block
/// cache and has no bounds.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// Read as of this snapshot. Default `None`: read the newest visible state.
    pub snapshot: Option<Snapshot>,
    /// Iterators: lower bound of the keys (inclusive). Default: no bound.
    pub lower_bound: Option<Vec<u8>>,
    /// Iterators: upper bound of the keys (exclusive). Default: no bound.
    pub upper_bound: Option<Vec<u8>>,
    /// Iterators: show only keys that start with this prefix. It narrows the bounds. Default: no
    /// prefix.
    pub prefix: Option<Vec<u8>>,
    /// Put blocks that had to be read from files into the block cache. Default true; use false for
    /// large scans.
    pub fill_cache: bool,
    /// Iterators: number of bytes that are read ahead. Default 0: the number grows with the scan.
    pub readahead_bytes: u64,
    /// Fail with `Busy` ("would need I/O") instead of reading a file. Default false.
    pub cache_only: bool,
    /// Read keys without their values. Large values are read neither from files nor into memory.
    /// The value that an iterator shows may be cut or empty, and a separated value is always empty.
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

    /// Limits iterators to the keys from `lower` (inclusive) to `upper` (exclusive).
    #[must_use]
    pub fn range(mut self, lower: impl Into<Vec<u8>>, upper: impl Into<Vec<u8>>) -> Self {
        self.lower_bound = Some(lower.into());
        self.upper_bound = Some(upper.into());
        self
    }

    /// Sets `keys_only`, so that keys are read without their values.
    #[must_use]
    pub fn keys_only(mut self) -> Self {
        self.keys_only = true;
        self
    }

    /// Limits iterators to the keys that start with `prefix`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<Vec<u8>>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }
}
