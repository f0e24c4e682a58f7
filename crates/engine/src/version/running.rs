//! Running compactions, as pickers and the choice of bucket boundaries see them.

use archipelago_base::CfId;

use crate::key::KeyRange;

/// A running compaction: its inputs and the level that it writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Column family of the compaction.
    pub cf: CfId,
    /// Range that covers every key of its inputs, and so of its outputs
    /// ([`crate::compaction::pick::Pick::range`]).
    pub range: KeyRange,
    /// The upper level of its inputs.
    pub from: usize,
    /// The level that it writes.
    pub to: usize,
    /// Numbers of its input files.
    pub files: Vec<u64>,
}

impl Running {
    /// Whether it rewrites tables of a level below L0 in their place, for space.
    pub(crate) fn is_rewrite(&self) -> bool {
        self.from == self.to && self.to > 0
    }
}
