//! The steps: processes that are run, and their flags.
//!
//! 1. A step is one process of each side with the same flags, seed included. Its seed differs from
//!    that of every other step. From one seed, db_bench draws the same keys in the same order, so
//!    reads with the seed of the load would find exactly the loaded keys.
//! 2. The steps of [`Needs::Loaded`] work on the database that [`Step::FillRandom`] left of the
//!    same side; all others on one of their own.
//! 3. A step that settles ends with a flush. Then no side keeps a part of its data in memory, where
//!    it costs neither writes nor space, and both read from tables only.
//! 4. A cache that is warm was filled by random reads of the same process that are not counted.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::flags::Settings;
use crate::compare::run::{EntrySize, Side};

const KEY_BYTES: u64 = 16;
const VALUE_BYTES: u64 = 100;
const THROTTLED_VALUE_BYTES: u64 = 1024;
/// Rate of the writer that runs in parallel with readers: 20 thousand writes a second.
pub(super) const WRITER_BYTES_PER_S: u64 = 20_000 * (KEY_BYTES + VALUE_BYTES);
/// Rate of flushes and compactions in the row under a rate limit.
pub(super) const THROTTLED_BYTES_PER_S: u64 = 40_000_000;

/// A process of each side. The order is that of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Step {
    FillSeq,
    FillRandom,
    /// Random reads that miss the cache, past the page cache.
    Cold,
    Warm,
    Warm2,
    /// Scans and reads in parallel with a writer, by time, so that both writers write the same.
    Mixed,
    Overwrite,
    FillRandom2,
    FillSync,
    Throttled,
}

/// Database that a step needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// An empty directory, which is removed after the step.
    Empty,
    /// An empty directory, which stays for the following steps.
    EmptyToKeep,
    /// The loaded database without changes. The step only reads it.
    Loaded,
    /// The loaded database, which the step changes and other steps may have changed.
    LoadedToChange,
}

impl Step {
    pub(super) const ALL: [Self; 10] = [
        Self::FillSeq,
        Self::FillRandom,
        Self::Cold,
        Self::Warm,
        Self::Warm2,
        Self::Mixed,
        Self::Overwrite,
        Self::FillRandom2,
        Self::FillSync,
        Self::Throttled,
    ];

    /// Name of the step in plans and messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::FillSeq => "fillseq",
            Self::FillRandom => "fillrandom",
            Self::Cold => "cold reads",
            Self::Warm => "warm reads and scans",
            Self::Warm2 => "warm reads, 2 threads",
            Self::Mixed => "seeks with 10 nexts, reads in parallel with a writer",
            Self::Overwrite => "overwrite",
            Self::FillRandom2 => "fillrandom, 2 threads",
            Self::FillSync => "fillsync",
            Self::Throttled => "fillrandom under a rate limit",
        }
    }

    pub(super) fn needs(self) -> Needs {
        match self {
            Self::FillRandom => Needs::EmptyToKeep,
            Self::Cold | Self::Warm | Self::Warm2 => Needs::Loaded,
            Self::Mixed | Self::Overwrite => Needs::LoadedToChange,
            Self::FillSeq | Self::FillRandom2 | Self::FillSync | Self::Throttled => Needs::Empty,
        }
    }

    /// Sizes of the keys and values that the step writes.
    pub(super) fn entry(self) -> EntrySize {
        let value_bytes = if self == Self::Throttled { THROTTLED_VALUE_BYTES } else { VALUE_BYTES };
        EntrySize { key_bytes: KEY_BYTES, value_bytes }
    }

    /// Benchmarks of the process, in order.
    fn benchmarks(self) -> &'static str {
        match self {
            Self::FillSeq => "fillseq,flush,waitforcompaction",
            Self::FillRandom => "fillrandom,flush,waitforcompaction",
            Self::Cold => "readrandom",
            Self::Warm => "readrandom,readrandom,readmissing,seekrandom,readseq,readreverse",
            Self::Warm2 => "readrandom,readrandom,readmissing",
            Self::Mixed => "readrandom,seekrandom,readwhilewriting",
            Self::Overwrite => "overwrite,flush,waitforcompaction",
            Self::FillRandom2 | Self::Throttled => "fillrandom",
            Self::FillSync => "fillsync",
        }
    }

    /// Flags of this step alone.
    fn own_flags(self, settings: &Settings) -> Vec<(&'static str, u64)> {
        let Settings { num, reads, .. } = *settings;
        let warm = ("cache_size", warm_cache_bytes(num));
        match self {
            Self::FillSeq | Self::FillRandom => Vec::new(),
            Self::Cold => vec![
                ("reads", cold_reads(settings)),
                ("cache_size", cold_cache_bytes(num)),
                ("use_direct_reads", 1),
                ("use_direct_io_for_flush_and_compaction", 1),
            ],
            Self::Warm => vec![("reads", reads), warm],
            Self::Warm2 => vec![("reads", reads / 2), ("threads", 2), warm],
            Self::Mixed => vec![
                ("duration", settings.mixed_seconds),
                ("seek_nexts", 10),
                ("histogram", 1),
                ("benchmark_write_rate_limit", WRITER_BYTES_PER_S),
                warm,
            ],
            Self::Overwrite => vec![("writes", overwrites(num))],
            Self::FillRandom2 => vec![("threads", 2), ("writes", writes_of_two(num))],
            Self::FillSync => vec![("sync", 1)],
            Self::Throttled => vec![
                ("duration", settings.throttled_seconds),
                ("rate_limiter_bytes_per_sec", THROTTLED_BYTES_PER_S),
                ("histogram", 1),
            ],
        }
    }
}

/// Number of reads of the cold row, of which each waits for the device.
pub(super) fn cold_reads(settings: &Settings) -> u64 {
    (settings.reads / 10).max(1)
}

/// Writes of `overwrite`, into a database of `num` keys.
pub(super) fn overwrites(num: u64) -> u64 {
    num / 5
}

/// Writes of each of two threads.
pub(super) fn writes_of_two(num: u64) -> u64 {
    num / 5
}

/// Cache that is larger than all data with indexes and filters.
pub(super) fn warm_cache_bytes(num: u64) -> u64 {
    (2 * num * (KEY_BYTES + VALUE_BYTES)).max(64 << 20)
}

/// Cache of a tenth of the data.
pub(super) fn cold_cache_bytes(num: u64) -> u64 {
    num * (KEY_BYTES + VALUE_BYTES) / 10
}

/// The arguments of `step` in round `round`. `reads` overrides the number of reads.
pub(super) fn args(
    side: Side,
    step: Step,
    settings: &Settings,
    round: u64,
    dir: &Path,
    reads: Option<u64>,
) -> Vec<String> {
    let num = if step == Step::FillSync { settings.syncs } else { settings.num };
    let loaded = matches!(step.needs(), Needs::Loaded | Needs::LoadedToChange);
    let EntrySize { key_bytes, value_bytes } = step.entry();
    let mut flags: Vec<(&str, u64)> = vec![
        ("num", num),
        ("key_size", key_bytes),
        ("value_size", value_bytes),
        ("write_buffer_size", 64 << 20),
        ("max_write_buffer_number", 2),
        ("max_background_jobs", 2),
        ("bloom_bits", 10),
        ("block_size", 4096),
        ("disable_wal", 0),
        ("use_existing_db", u64::from(loaded)),
        ("seed", settings.seed + round * 1_000_000 + step as u64 * 1000),
    ];
    for (name, value) in step.own_flags(settings) {
        let value = reads.filter(|_| name == "reads").unwrap_or(value);
        flags.push((name, value));
    }
    let mut args = vec![
        format!("--benchmarks={}", step.benchmarks()),
        format!("--db={}", dir.display()),
        "--compression_type=none".to_owned(),
    ];
    args.extend(flags.iter().map(|(name, value)| format!("--{name}={value}")));
    match side {
        Side::Archipelago => args.insert(0, "bench".to_owned()),
        Side::RocksDb => {
            args.extend(settings.db_bench_flags.split_whitespace().map(str::to_owned));
        }
    }
    args
}
