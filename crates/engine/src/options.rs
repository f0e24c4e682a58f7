//! Settings of a database and of a column family: few, grouped, validated together.

use archipelago_base::{Error, Result};
use archipelago_env::GroupAccess;
use serde::{Deserialize, Serialize};

use crate::bucket::BUCKETS_MAX;
use crate::disk_space::SpaceUse;
use crate::key::VALUE_BYTES_MAX;

/// Number of levels, L0 included.
pub const LEVELS: usize = 7;

/// How recovery treats the end of the write-ahead log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecoveryMode {
    /// Recovery drops a torn record at the very end, because it was never acknowledged as synced.
    /// Damage before the synced-through offset is corruption, and so is damage that a valid record
    /// follows. The default.
    #[default]
    TolerateTornTail,
    /// Any damage is corruption.
    Strict,
    /// The storage may have lost power while this machine ran on, as a network volume or a virtual
    /// disk can. Recovery ends the log at its first loss, whatever follows, and drops the writes
    /// from there on. That loses no write that was synced: damage before the synced-through offset
    /// stays corruption. It may lose any write that was not synced. Set it for one open, after
    /// the default mode has refused the log.
    AssumePowerLoss,
}

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// Blocks are stored uncompressed.
    None,
    /// LZ4 block format: fast.
    #[default]
    Lz4,
    /// Zstandard level 1: dense.
    Zstd,
}

/// Settings of a database. `Default` suits a small server; see each field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DbOptions {
    /// Create the database if the directory has none. Default true.
    pub create_if_missing: bool,
    /// Fail if the directory already has a database. Default false.
    pub error_if_exists: bool,
    /// Open for reading only: no log, no background work, no lock. The database shows one moment,
    /// until [`Db::catch_up`](crate::db::Db::catch_up), and may be open for writing elsewhere.
    /// Default false.
    pub read_only: bool,
    /// Number of threads for flushes and compactions. If there are two or more, one of them stays
    /// free for flushes while memtables are being sealed. If all of them run compactions, a thread
    /// beyond this number runs the next flush, so that no memtable waits for a compaction to end.
    /// Default 2.
    pub max_background_jobs: usize,
    /// Number of threads that may share one compaction out of L0, or one that a user requested.
    /// Each gets a part of the keys (a *subcompaction*). They are in addition to
    /// `max_background_jobs`. Buckets make subcompactions unnecessary; the option exists to compare
    /// both. At most 64. Default 1.
    pub subcompactions_max: usize,
    /// Bytes of a log segment. Default 64 MiB.
    pub wal_segment_bytes: u64,
    /// Limit on the bytes of all closed log segments. Above it, the memtables that pin the oldest
    /// segments are flushed. Default 0: four times the memory that memtables may take, here and at
    /// memory nodes. The memory here is the sum of all write buffers or, if that is less, the
    /// memory budget.
    pub wal_bytes_max: u64,
    /// What recovery does with a damaged end of the log. Default: tolerate a torn tail.
    pub recovery_mode: RecoveryMode,
    /// Limit on background writes in bytes a second; flushes go first. At least 64 KiB. Default 0:
    /// no limit.
    pub rate_limit_bytes_per_s: u64,
    /// Budget over all memory, at least 16 MiB; `u64::MAX` for none. Default 0: half of what the
    /// machine or its cgroup allows.
    pub memory_budget_bytes: u64,
    /// Capacity in bytes of the block cache, which holds data blocks, and partitions of indexes and
    /// filters. The blocks that it holds never exceed the capacity. An evicted block that a reader
    /// still pins stays charged to the memory budget until the reader releases it. 0 caches
    /// nothing. Default 256 MiB.
    pub block_cache_bytes: u64,
    /// Largest number of open table readers, each with index and filter in memory. The number of
    /// readers with a file descriptor follows from the limit of the process
    /// (`archipelago_env::descriptors`). Default 10,000.
    pub table_readers_max: usize,
    /// User reads bypass the page cache. Default false.
    pub direct_reads: bool,
    /// Flush and compaction bypass the page cache. Default false.
    pub direct_background_io: bool,
    /// A write returns when the device has its log record, not when only the page cache has it.
    /// This is the equivalent of `direct_reads` and `direct_background_io` for the log. Durability
    /// does not change: only a write with `WriteOptions::sync` survives power loss. Default false.
    pub log_write_through: bool,
    /// Bytes of the log that may be buffered before they leave for storage nodes. A write then
    /// returns when its record is in the buffer: it is *buffered*, visible to readers, and lost if
    /// the process is killed before the buffer has left. The buffer leaves when it is full, after
    /// 100 ms, at a write with `WriteOptions::sync`, and at [`Db::sync`](crate::db::Db::sync) and
    /// [`Db::flush_log`](crate::db::Db::flush_log). No effect on a local log, which survives
    /// `kill -9` in any case. At most 64 MiB, and 1 MiB is a good size. Default 0: no buffer.
    pub log_buffer_bytes: u64,
    /// Readahead of compaction inputs in bytes; 0 reads block by block. Default 2 MiB.
    pub compaction_readahead_bytes: u64,
    /// Access of the group to the files and directories of the database. Other users get no access.
    /// `none` gives modes 0600 and 0700, `read` 0640 and 0750, `write` 0660 and 0770, whatever the
    /// umask is. The setting applies to files that are created from now on. Default `none`.
    pub group_access: GroupAccess,
    /// Limit in bytes on the reserve of disk space for deletes, flushes and recovery on a full
    /// disk. The reserve is as large as one write buffer of every family and at least 1 MiB. It
    /// takes at most an eighth of the disk. 0 disables the reserve. Default 64 MiB.
    pub disk_reserve_bytes: u64,
    /// Measure the latency of every get and write into histograms, which costs a few dozen
    /// nanoseconds each. Default false.
    pub latency_histograms: bool,
}

impl Default for DbOptions {
    fn default() -> Self {
        Self {
            create_if_missing: true,
            error_if_exists: false,
            read_only: false,
            max_background_jobs: 2,
            subcompactions_max: 1,
            wal_segment_bytes: 64 << 20,
            wal_bytes_max: 0,
            recovery_mode: RecoveryMode::TolerateTornTail,
            rate_limit_bytes_per_s: 0,
            memory_budget_bytes: 0,
            block_cache_bytes: 256 << 20,
            table_readers_max: 10_000,
            direct_reads: false,
            direct_background_io: false,
            log_write_through: false,
            log_buffer_bytes: 0,
            compaction_readahead_bytes: 2 << 20,
            group_access: GroupAccess::None,
            disk_reserve_bytes: 64 << 20,
            latency_histograms: false,
        }
    }
}

impl DbOptions {
    /// Checks every field; the error names the field, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        at_least("max_background_jobs", self.max_background_jobs as u64, 1)?;
        at_most("max_background_jobs", self.max_background_jobs as u64, 256)?;
        at_least("subcompactions_max", self.subcompactions_max as u64, 1)?;
        at_most("subcompactions_max", self.subcompactions_max as u64, 64)?;
        at_least("wal_segment_bytes", self.wal_segment_bytes, 64 << 10)?;
        at_most("wal_segment_bytes", self.wal_segment_bytes, 2 << 30)?;
        at_most("log_buffer_bytes", self.log_buffer_bytes, 64 << 20)?;
        at_least_or_zero("rate_limit_bytes_per_s", self.rate_limit_bytes_per_s, 64 << 10)?;
        at_least_or_zero("memory_budget_bytes", self.memory_budget_bytes, 16 << 20)?;
        at_least("table_readers_max", self.table_readers_max as u64, 16)?;
        at_most("compaction_readahead_bytes", self.compaction_readahead_bytes, 1 << 30)?;
        if self.read_only && self.error_if_exists {
            return Err(Error::invalid(
                "read_only and error_if_exists contradict each other: set only one of them",
            ));
        }
        Ok(())
    }
}

/// Settings of a column family. The manifest keeps them, so that a later open that names none uses
/// these again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CfOptions {
    /// Size in bytes at which a memtable is sealed, including the memory of its range deletes; at
    /// most 4 GiB. A memtable is also sealed when one of its shards has 32,768 range deletes.
    /// Default 64 MiB.
    pub write_buffer_bytes: u64,
    /// Largest number of memtables, the active one included; writers wait beyond it. Default 4.
    pub write_buffers_max: usize,
    /// Number of buckets that the keys of the first memtable are cut into. Default 0: the number of
    /// background jobs. 1 is a classic L0.
    pub buckets: usize,
    /// Split hot buckets and merge cold ones as the keys that are written move (BucketLSM §V-C).
    /// Default true; false keeps the first boundaries. No effect if `buckets` is 1.
    pub buckets_dynamic: bool,
    /// Largest number of buckets that splits may make. Default 0: four times the number that the
    /// first memtable was cut into.
    pub buckets_max: usize,
    /// Bits per key of the Bloom filters; 0 for none. Default 10.
    pub bloom_bits_per_key: u32,
    /// Data block size before compression. Default 4 KiB.
    pub block_bytes: usize,
    /// Compression of all levels but the last non-empty one. Default LZ4.
    pub compression: Compression,
    /// Compression of the last level. Default Zstd. Tables of the last level with another
    /// compression are rewritten in the background while nothing is being loaded.
    pub compression_last: Compression,
    /// L0 files in a bucket at which they are compacted. Default 4.
    pub l0_compaction_trigger: usize,
    /// L0 files in the fullest bucket at which writes slow down. Default 20.
    pub l0_slowdown: usize,
    /// L0 files in the fullest bucket at which writes stop. Default 36.
    pub l0_stop: usize,
    /// Smallest target size in bytes of the base level, the level that L0 compacts into. The
    /// memtables that make L0 due raise it. Default 256 MiB.
    pub level_base_bytes: u64,
    /// Ratio of a level's target size to that of the level above. Default 10.
    pub level_multiplier: u64,
    /// Size at which an output file is closed. Default 64 MiB.
    pub target_file_bytes: u64,
    /// Compaction debt in bytes at which writes slow down; 0 disables the slowdown. Default 64 GiB.
    pub pending_bytes_slowdown: u64,
    /// Compaction debt in bytes at which writes stop; 0 disables the stop. Default 256 GiB.
    pub pending_bytes_stop: u64,
    /// Name of the merge operator, if the family has one.
    pub merge_operator: Option<String>,
    /// Name of the compaction filter, if the family has one. Tables of the last level that were
    /// written without it are rewritten in the background while nothing is being loaded. Expired
    /// records need no filter.
    pub compaction_filter: Option<String>,
    /// Smallest value, in bytes before compression, that flushes and compactions store in a value
    /// file instead of the levels (Terark-DS §2.2). 0 keeps all values in the levels. A change
    /// takes effect as tables are rewritten. Default 0.
    pub value_separation_bytes: u64,
    /// Size in bytes at which a value file is closed, and limit on the bytes of valid values that
    /// one garbage collection job writes. At least 64 KiB. Default 256 MiB.
    pub value_file_bytes: u64,
    /// Limit on space amplification: the space of the family, divided by the space of its live
    /// data. It includes garbage that compactions have not found yet. Writers slow down before the
    /// limit is exceeded. 0 for no limit, else at least 1.05. No effect while the family has no
    /// separated values. Default 1.5.
    pub space_amplification_max: f64,
}

impl Default for CfOptions {
    fn default() -> Self {
        Self {
            write_buffer_bytes: 64 << 20,
            write_buffers_max: 4,
            buckets: 0,
            buckets_dynamic: true,
            buckets_max: 0,
            bloom_bits_per_key: 10,
            block_bytes: 4 << 10,
            compression: Compression::Lz4,
            compression_last: Compression::Zstd,
            l0_compaction_trigger: 4,
            l0_slowdown: 20,
            l0_stop: 36,
            level_base_bytes: 256 << 20,
            level_multiplier: 10,
            target_file_bytes: 64 << 20,
            pending_bytes_slowdown: 64 << 30,
            pending_bytes_stop: 256 << 30,
            merge_operator: None,
            compaction_filter: None,
            value_separation_bytes: 0,
            value_file_bytes: 256 << 20,
            space_amplification_max: 1.5,
        }
    }
}

/// Default for the smallest separated value, in bytes, when separation is enabled without a size
/// (Terark-DS §2.2).
pub const VALUE_SEPARATION_BYTES: u64 = 512;

/// Smallest bound on space amplification. Below it, garbage collection would rewrite each value
/// more than nine times.
const SPACE_AMPLIFICATION_LEAST: f64 = 1.05;

impl CfOptions {
    /// Smallest target size in bytes of a level between L0 and the last one: `level_base_bytes`,
    /// but no less than the memtables that make L0 due, which move down in one batch.
    #[must_use]
    pub fn base_bytes(&self) -> u64 {
        self.level_base_bytes
            .max(self.write_buffer_bytes.saturating_mul(self.l0_compaction_trigger as u64))
    }

    /// Checks every field; the error names the field, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        at_least("write_buffer_bytes", self.write_buffer_bytes, 4 << 10)?;
        // A record over 256 KiB takes one of the 32,767 slabs that a shard can have.
        at_most("write_buffer_bytes", self.write_buffer_bytes, 4 << 30)?;
        at_least("write_buffers_max", self.write_buffers_max as u64, 2)?;
        at_most("buckets", self.buckets as u64, BUCKETS_MAX as u64)?;
        at_most("buckets_max", self.buckets_max as u64, BUCKETS_MAX as u64)?;
        if self.buckets_max > 0 {
            let most = ("buckets_max", self.buckets_max as u64);
            not_below(most, ("buckets", self.buckets as u64))?;
        }
        at_most("bloom_bits_per_key", u64::from(self.bloom_bits_per_key), 64)?;
        at_least("block_bytes", self.block_bytes as u64, 256)?;
        at_most("block_bytes", self.block_bytes as u64, 4 << 20)?;
        at_least("l0_compaction_trigger", self.l0_compaction_trigger as u64, 1)?;
        let trigger = ("l0_compaction_trigger", self.l0_compaction_trigger as u64);
        let slowdown = ("l0_slowdown", self.l0_slowdown as u64);
        not_below(slowdown, trigger)?;
        not_below(("l0_stop", self.l0_stop as u64), slowdown)?;
        at_least("level_base_bytes", self.level_base_bytes, 4 << 10)?;
        at_least("level_multiplier", self.level_multiplier, 2)?;
        at_least("target_file_bytes", self.target_file_bytes, 4 << 10)?;
        if self.pending_bytes_stop > 0 {
            let stop = ("pending_bytes_stop", self.pending_bytes_stop);
            not_below(stop, ("pending_bytes_slowdown", self.pending_bytes_slowdown))?;
        }
        at_most("value_separation_bytes", self.value_separation_bytes, VALUE_BYTES_MAX as u64)?;
        at_least("value_file_bytes", self.value_file_bytes, 64 << 10)?;
        at_most("value_file_bytes", self.value_file_bytes, 64 << 30)?;
        let bound = self.space_amplification_max;
        if bound != 0.0 && !(bound.is_finite() && bound >= SPACE_AMPLIFICATION_LEAST) {
            return Err(Error::invalid(format!(
                "space_amplification_max is {bound}: it must be 0, for no bound, or at least \
                 {SPACE_AMPLIFICATION_LEAST}"
            )));
        }
        Ok(())
    }
}

fn at_least(name: &str, value: u64, least: u64) -> Result<()> {
    if value < least {
        return Err(Error::invalid(format!("{name} is {value}: it must be at least {least}")));
    }
    Ok(())
}

/// Refuses a value below `least`, for settings whose 0 has a meaning of its own.
fn at_least_or_zero(name: &str, value: u64, least: u64) -> Result<()> {
    if value > 0 && value < least {
        return Err(Error::invalid(format!("{name} is {value}: it must be 0 or at least {least}")));
    }
    Ok(())
}

/// Refuses a setting that is smaller than another setting. Each comes with its name.
fn not_below(setting: (&str, u64), least: (&str, u64)) -> Result<()> {
    let ((name, value), (least_name, least)) = (setting, least);
    if value < least {
        return Err(Error::invalid(format!(
            "{name} is {value}: it must be at least {least_name}, which is {least}"
        )));
    }
    Ok(())
}

fn at_most(name: &str, value: u64, most: u64) -> Result<()> {
    if value > most {
        return Err(Error::invalid(format!("{name} is {value}: it must be at most {most}")));
    }
    Ok(())
}

/// Settings of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// On return the write survives power loss, not only `kill -9`. Default false.
    pub sync: bool,
    /// Write to the log. Without it, the write is lost if the process ends before its memtable is
    /// flushed. Default true.
    pub wal: bool,
    /// Fail with `Busy` instead of waiting when writes are stalled. Default false.
    pub no_slowdown: bool,
    /// Effect of the write on the space that the database takes, as far as the caller knows. A
    /// batch of deletes alone always counts as freeing space. Writes that free space are accepted
    /// on a full disk while the reserve lasts. Default: the write takes space.
    pub space_use: SpaceUse,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { sync: false, wal: true, no_slowdown: false, space_use: SpaceUse::Takes }
    }
}

impl WriteOptions {
    /// The default settings with `sync`: the write survives power loss.
    #[must_use]
    pub fn synced() -> Self {
        Self { sync: true, ..Self::default() }
    }
}
