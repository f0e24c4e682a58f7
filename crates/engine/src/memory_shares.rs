//! Shares of the memory budget for the parts of the engine.
//!
//! The options set the memory of each part. A small budget allows less than the defaults of the
//! options. These pure functions compute the limits:
//!
//! 1. One memtable takes at most an eighth of the budget, so that the four memtables that a family
//!    may have by default take at most half of it. Writers wait when all of them are full.
//! 2. The block cache takes at most half of the budget. It shrinks when the budget is almost used
//!    (`crate::db::background::memory_pressure`).
//! 3. The inputs of one compaction share a sixteenth of the budget for readahead. Each input gets
//!    at least 64 KiB, so a compaction with many inputs exceeds that share.
//! 4. A table below L0 ends at a quarter of the budget, because its builder keeps the hashes of all
//!    its keys and its index in memory.
//!
//! With a budget of 512 MiB or more, these limits change nothing about the default options. When a
//! limit lowers an option, the open of the database or the creation of the family logs it. The
//! message is a warning if the option was set, and information if it is the default. Cost: a few
//! arithmetic operations for each memtable, job or table.

use crate::options::{CfOptions, DbOptions};

/// One memtable takes at most one part in this many of the budget.
const MEMTABLE_SHARE: u64 = 8;
/// Smallest bound on a memtable, so that flushes write files of some size.
const MEMTABLE_BYTES_MIN: u64 = 1 << 20;
/// The block cache takes at most one part in this many of the budget.
const CACHE_SHARE: u64 = 2;
/// A table below L0 has at most one part in this many of the budget.
const TABLE_SHARE: u64 = 4;
/// Smallest bound on a table.
const TABLE_BYTES_MIN: u64 = 4 << 20;
/// The inputs of a compaction are read ahead by at most one part in this many of the budget.
const READAHEAD_SHARE: u64 = 16;
/// Limit on the readahead of all inputs of a compaction, for any budget. Without it, a job over
/// many files would hold as much memory as a memtable.
const READAHEAD_BYTES_MAX: u64 = 16 << 20;
/// Readahead of one input in bytes, for any number of inputs; it is large enough to be sequential.
const INPUT_READAHEAD_BYTES: u64 = 256 << 10;
/// Readahead of one input in bytes, in a small budget.
const INPUT_READAHEAD_BYTES_MIN: u64 = 64 << 10;
/// The minimum of an input's readahead takes at most one part in this many of the budget.
const INPUT_READAHEAD_SHARE: u64 = 512;

/// The shares of the parts in one memory budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryShares {
    /// Limit of the budget; `u64::MAX` for none.
    pub(crate) budget_bytes: u64,
}

impl MemoryShares {
    /// Size at which a memtable is sealed.
    pub(crate) fn memtable_bytes(self, write_buffer_bytes: u64) -> u64 {
        write_buffer_bytes.min((self.budget_bytes / MEMTABLE_SHARE).max(MEMTABLE_BYTES_MIN))
    }

    /// Capacity of the block cache.
    pub(crate) fn cache_bytes(self, block_cache_bytes: u64) -> u64 {
        block_cache_bytes.min(self.budget_bytes / CACHE_SHARE)
    }

    /// Size at which a table below L0 ends.
    pub(crate) fn table_bytes(self, target_file_bytes: u64) -> u64 {
        target_file_bytes.min((self.budget_bytes / TABLE_SHARE).max(TABLE_BYTES_MIN))
    }

    /// Readahead of all inputs of one compaction, if they are few enough to share it.
    pub(crate) fn readahead_bytes_max(self) -> u64 {
        (self.budget_bytes / READAHEAD_SHARE).min(READAHEAD_BYTES_MAX)
    }

    /// Readahead of each of the `inputs` of one compaction.
    pub(crate) fn readahead_bytes(self, readahead_bytes: u64, inputs: usize) -> u64 {
        let all = self.readahead_bytes_max();
        let least = (self.budget_bytes / INPUT_READAHEAD_SHARE)
            .clamp(INPUT_READAHEAD_BYTES_MIN, INPUT_READAHEAD_BYTES);
        readahead_bytes.min((all / inputs.max(1) as u64).max(least))
    }
}

/// An option, its value, the value that the budget allows, and its default.
type Share = (&'static str, u64, u64, u64);

impl MemoryShares {
    /// Logs the options of a database that exceed their shares.
    pub(crate) fn log_lowered(self, options: &DbOptions) {
        let (cache, default) = (options.block_cache_bytes, DbOptions::default());
        let readahead = options.compaction_readahead_bytes;
        let shares = [
            ("block_cache_bytes", cache, self.cache_bytes(cache), default.block_cache_bytes),
            (
                "compaction_readahead_bytes",
                readahead,
                self.readahead_bytes(readahead, 1),
                default.compaction_readahead_bytes,
            ),
        ];
        self.log("", shares);
    }

    /// Logs the options of a column family that exceed their shares.
    pub(crate) fn log_lowered_in_family(self, family: &str, options: &CfOptions) {
        let (buffer, default) = (options.write_buffer_bytes, CfOptions::default());
        let table = options.target_file_bytes;
        let shares = [
            ("write_buffer_bytes", buffer, self.memtable_bytes(buffer), default.write_buffer_bytes),
            ("target_file_bytes", table, self.table_bytes(table), default.target_file_bytes),
        ];
        self.log(family, shares);
    }

    fn log(self, family: &str, shares: [Share; 2]) {
        let budget_bytes = self.budget_bytes;
        let lowered = shares.into_iter().filter(|(_, given, effective, _)| effective < given);
        for (option, given, effective, default) in lowered {
            if given == default {
                tracing::info!(
                    option,
                    family,
                    given,
                    effective,
                    budget_bytes,
                    "the default of an option is lowered to its share of the memory budget"
                );
            } else {
                tracing::warn!(
                    option,
                    family,
                    given,
                    effective,
                    budget_bytes,
                    "an option is lowered to its share of the memory budget: raise the budget, or \
                     lower the option"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Memtable, cache, table, and readahead of 4 and of 100 inputs, with the default options.
    fn defaults(budget_bytes: u64) -> [u64; 5] {
        let shares = MemoryShares { budget_bytes };
        let (db, family) = (DbOptions::default(), CfOptions::default());
        [
            shares.memtable_bytes(family.write_buffer_bytes),
            shares.cache_bytes(db.block_cache_bytes),
            shares.table_bytes(family.target_file_bytes),
            shares.readahead_bytes(db.compaction_readahead_bytes, 4),
            shares.readahead_bytes(db.compaction_readahead_bytes, 100),
        ]
    }

    #[test]
    fn default_options_are_unchanged_from_512_mib_on() {
        let unbounded = defaults(u64::MAX);
        assert_eq!(unbounded, [64 * MIB, 256 * MIB, 64 * MIB, 2 * MIB, 256 << 10]);
        assert_eq!(defaults(512 * MIB), unbounded);
        assert_ne!(defaults(504 * MIB), unbounded);
    }

    #[test]
    fn small_budget_bounds_every_share() {
        assert_eq!(defaults(48 * MIB), [6 * MIB, 24 * MIB, 12 * MIB, 768 << 10, 96 << 10]);
        assert_eq!(defaults(12 * MIB), [3 * MIB / 2, 6 * MIB, 4 * MIB, 192 << 10, 64 << 10]);
        assert_eq!(defaults(0), [MIB, 0, 4 * MIB, 64 << 10, 64 << 10]);
    }

    #[test]
    fn smaller_options_are_kept() {
        let shares = MemoryShares { budget_bytes: 48 * MIB };
        assert_eq!(shares.memtable_bytes(MIB / 2), MIB / 2);
        assert_eq!(shares.cache_bytes(MIB), MIB);
        assert_eq!(shares.table_bytes(MIB), MIB);
        assert_eq!(shares.readahead_bytes(0, 1), 0);
    }
}
