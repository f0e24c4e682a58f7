//! Point look-ups: the interface through which memtable shards and tables show the versions of a
//! key.

use std::ops::ControlFlow;

use archipelago_base::SeqNo;
use archipelago_base::checksum::hash64;

use crate::key::Kind;
use crate::pinned::PinnedSlice;

/// A point look-up: a user key, its hash (computed once for all filters) and the newest sequence
/// number that it may see.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a> {
    /// The user key.
    pub key: &'a [u8],
    /// [`hash64`] of the key.
    pub hash: u64,
    /// Records with a larger sequence number are invisible.
    pub snapshot: SeqNo,
}

impl<'a> Lookup<'a> {
    /// A look-up of `key` at `snapshot`.
    #[must_use]
    pub fn new(key: &'a [u8], snapshot: SeqNo) -> Self {
        Self { key, hash: hash64(key), snapshot }
    }
}

/// Keeps a slice of a value beyond its visit, without a copy where that is possible.
pub trait Pinner {
    /// A [`PinnedSlice`] of `value`, which must be (a part of) the value being visited.
    fn pin(&self, value: &[u8]) -> PinnedSlice;
}

/// One version of the key, as a visitor sees it.
pub struct Found<'a> {
    /// Sequence number of the version.
    pub seq: SeqNo,
    /// What the record does.
    pub kind: Kind,
    /// The stored value.
    pub value: &'a [u8],
    /// Keeps the value without a copy; `None` if it must be copied (memtables).
    pub pinner: Option<&'a dyn Pinner>,
}

impl Found<'_> {
    /// The value, pinned where possible, copied otherwise.
    #[must_use]
    pub fn pin(&self) -> PinnedSlice {
        match self.pinner {
            Some(pinner) => pinner.pin(self.value),
            None => PinnedSlice::owned(self.value.to_vec()),
        }
    }
}

/// Answer of a visitor after a version: `Break` ends the look-up.
pub type Visit = ControlFlow<()>;
