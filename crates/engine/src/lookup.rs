//! Point look-ups: what a memtable shard and a table answer to "the versions of this key".

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
    /// A look-up of `key` as of `snapshot`.
    #[must_use]
    pub fn new(key: &'a [u8], snapshot: SeqNo) -> Self {
        Self { key, hash: hash64(key), snapshot }
    }
}

/// Makes a slice of a value outlive its visit without a copy where it can.
pub trait Pinner {
    /// A [`PinnedSlice`] of `value`, which must be (a part of) the value being visited.
    fn pin(&self, value: &[u8]) -> PinnedSlice;
}

/// One version of the key, newest first.
pub struct Found<'a> {
    /// When it was written.
    pub seq: SeqNo,
    /// What it does.
    pub kind: Kind,
    /// The stored value.
    pub value: &'a [u8],
    /// How to keep the value; `None` where it must be copied (memtables).
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

/// What a visitor says after a version: `Break` when it has seen enough.
pub type Visit = ControlFlow<()>;
