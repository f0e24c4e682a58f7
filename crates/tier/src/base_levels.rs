//! Base levels: the level that L0 compacts into, for each column family (Keigo §4.2 counts levels
//! from there).
//!
//! Level sizes are dynamic, so families of different sizes have different base levels: L5 is the
//! second level of one family and the fifth of another. A compaction out of L0 shows the base level
//! of its family. Before that, and for files of unknown family, levels are counted from the highest
//! base level that is known, or that was found at the open. This may count a file as too deep. Such
//! a file lies on a slower device, so it never takes room of the fastest device.
//!
//! The type is a plain value; [`crate::fs::shared::OpenTiers`] guards it with a lock.

use std::collections::BTreeMap;

use archipelago_env::{IoContext, IoPurpose};

use crate::scheme::{LEVELS, depth};

/// The base levels of all column families that are known.
#[derive(Clone, Debug)]
pub(crate) struct BaseLevels {
    /// Highest level below L0 that had files at the open, if there were any.
    at_open: Option<u8>,
    /// Base level by column family. The key `None` stands for writers that name no family.
    known: BTreeMap<Option<u32>, u8>,
}

impl BaseLevels {
    pub(crate) fn new(at_open: Option<u8>) -> Self {
        Self { at_open, known: BTreeMap::new() }
    }

    /// Notes the base level that the context of a compaction out of L0 shows.
    pub(crate) fn note(&mut self, context: IoContext) {
        if let IoPurpose::Compaction { from: 0, to } = context.purpose
            && to > 0
        {
            self.known.insert(context.family, to);
        }
    }

    /// Level that L0 of the family compacts into.
    pub(crate) fn of(&self, family: Option<u32>) -> u8 {
        // A program that names no families has one base level for all files.
        let own = self.known.get(&family).filter(|_| family.is_some() || self.known.len() == 1);
        let highest = || self.known.values().copied().chain(self.at_open).min();
        own.copied().or_else(highest).unwrap_or(1)
    }

    /// Depth of a level of the family.
    pub(crate) fn depth(&self, family: Option<u32>, level: u8) -> u8 {
        depth(level, self.of(family))
    }

    /// Sums the bytes of tables, each with its family and level, by depth.
    pub(crate) fn bytes_by_depth(
        &self,
        tables: impl Iterator<Item = (Option<u32>, u8, u64)>,
    ) -> [u64; LEVELS] {
        let mut bytes = [0; LEVELS];
        for (family, level, len) in tables {
            bytes[usize::from(self.depth(family, level)).min(LEVELS - 1)] += len;
        }
        bytes
    }

    /// The known base levels, with their families.
    pub(crate) fn known(&self) -> impl Iterator<Item = (Option<u32>, u8)> {
        self.known.iter().map(|(&family, &level)| (family, level))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compaction(from: u8, to: u8, family: Option<u32>) -> IoContext {
        IoContext { family, ..IoContext::sst(IoPurpose::Compaction { from, to }, to) }
    }

    #[test]
    fn unknown_family_counts_from_the_highest_base_level() {
        let mut levels = BaseLevels::new(None);
        assert_eq!(levels.of(Some(1)), 1, "nothing is known");
        levels = BaseLevels::new(Some(5));
        assert_eq!([None, Some(1)].map(|family| levels.of(family)), [5, 5]);
        levels.note(compaction(0, 6, Some(1)));
        let of = |levels: &BaseLevels| [None, Some(1), Some(2)].map(|family| levels.of(family));
        assert_eq!(of(&levels), [5, 6, 5], "L5 of the open is of another one");
        levels.note(compaction(0, 4, Some(2)));
        levels.note(compaction(5, 6, Some(2)));
        levels.note(compaction(0, 0, Some(2)));
        assert_eq!([None, Some(1), Some(2)].map(|family| levels.of(family)), [4, 6, 4]);
        assert_eq!(levels.depth(Some(1), 6), 1);
        assert_eq!((levels.depth(Some(2), 6), levels.depth(Some(2), 0)), (3, 0));
        let tables = [(Some(1), 0, 1), (Some(1), 6, 10), (Some(2), 6, 100), (Some(2), 63, 1000)];
        let bytes = levels.bytes_by_depth(tables.into_iter());
        assert_eq!(bytes, [1, 10, 0, 100, 0, 0, 0, 1000]);
        levels.note(compaction(0, 5, Some(1)));
        assert_eq!(levels.of(Some(1)), 5, "it grew");
        assert_eq!(levels.known().collect::<Vec<_>>(), [(Some(1), 5), (Some(2), 4)]);
    }

    #[test]
    fn without_families_the_last_compaction_decides() {
        let mut levels = BaseLevels::new(Some(4));
        levels.note(compaction(0, 5, None));
        levels.note(compaction(0, 6, None));
        assert_eq!(levels.of(None), 6);
        levels.note(compaction(0, 5, Some(1)));
        assert_eq!(levels.of(None), 4, "one of several");
    }
}
