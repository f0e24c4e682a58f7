//! A running compaction, as pickers and the choice of bucket boundaries see it.

use archipelago_base::CfId;

use crate::key::KeyRange;

/// A compaction that runs: what it reads and where it writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its column family.
    pub cf: CfId,
    /// Covers every key of its inputs, and so of its outputs
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
    /// Whether it writes a level below L0 again, for space.
    pub(crate) fn is_rewrite(&self) -> bool {
        self.from == self.to && self.to > 0
    }
}
