//! Statistics as values and as text, and properties by name.
//!
//! A report covers levels, buckets, tickers, timers, memory, write amplification and stalls.
//!
//! Invariants: the figures of one report may belong to slightly different moments.
//!
//! Thread-safety: any thread may call any function.
//! Failure: an unknown property is `None`.
//! Cost: visits the files of the family. An estimate of keys reads some blocks.

use std::fmt::Write as _;

use archipelago_base::Result;
use archipelago_base::budget::MemoryClass;

use crate::cache::{BlockKind, CacheStats};
use crate::db::admin::buckets::BucketInfo;
use crate::db::admin::values;
use crate::db::background::job_specs;
use crate::db::state::balance::BucketChange;
use crate::db::state::memtable::ShardHome;
use crate::db::write::disk_room;
use crate::db::{ColumnFamily, Db};
use crate::lock_order::Order;
use crate::options::LEVELS;
use crate::stats::{Ticker, Timer};

/// A level of a column family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelInfo {
    /// The level; 0 is L0.
    pub level: usize,
    /// Number of files.
    pub files: usize,
    /// Bytes of the files.
    pub bytes: u64,
    /// Target size of the level, in bytes; 0 for L0, and `u64::MAX` for a level without a bound.
    pub target_bytes: u64,
    /// Urgency of a compaction of the level. It is due if the score is at least 1.
    pub score: f64,
    /// Number of point records.
    pub entries: u64,
    /// Number of point records that are deletes.
    pub deletions: u64,
}

/// Figures of one column family at one moment, and figures of the database's counters.
#[derive(Clone, Debug)]
pub struct FamilyReport {
    /// Name of the family.
    pub family: String,
    /// Figures of each level, from L0 on.
    pub levels: Vec<LevelInfo>,
    /// Figures of each bucket, in key order.
    pub buckets: Vec<BucketInfo>,
    /// The newest changes of the bucket map since the open, oldest first.
    pub bucket_changes: Vec<BucketChange>,
    /// Bytes that the database wrote to log and tables per byte of keys and values that users
    /// wrote, since the open.
    pub write_amplification: f64,
    /// Bytes that flushes and compactions of the database wrote per byte of keys and values that
    /// users wrote, since the open.
    pub table_write_amplification: f64,
    /// Compaction debt in bytes.
    pub pending_compaction_bytes: u64,
    /// Number of immutable memtables.
    pub immutable_memtables: usize,
    /// Number of memtable shards of all families that are at memory nodes and not in memory.
    pub away_shards: usize,
    /// Bytes of the images of these shards.
    pub away_bytes: u64,
    /// Bytes that all memtables of the family may take.
    pub memtable_bytes_max: u64,
    /// Bytes of tables and value files that only snapshots keep; see
    /// [`Snapshot`](crate::db::Snapshot).
    pub snapshot_table_bytes: u64,
    /// Bytes of records in memtables that only snapshots keep.
    pub snapshot_memtable_bytes: u64,
    /// Health of the database: "healthy", or a description of the error.
    pub health: String,
}

fn write_family(out: &mut String, report: &FamilyReport) {
    let _ = writeln!(out, "Column family \"{}\"", report.family);
    out.push_str(&levels_text(report));
    out.push_str(&buckets_text(report));
    let _ = writeln!(
        out,
        "write amplification {:.2} (tables alone {:.2}), compaction debt {} bytes, immutable \
         memtables {}, kept by snapshots alone: {} bytes of tables, {} of memtables",
        report.write_amplification,
        report.table_write_amplification,
        report.pending_compaction_bytes,
        report.immutable_memtables,
        report.snapshot_table_bytes,
        report.snapshot_memtable_bytes
    );
}

/// Text of a level's target size. A level without a bound shows as a dash.
fn target_text(bytes: u64) -> String {
    if bytes == u64::MAX { "-".to_owned() } else { bytes.to_string() }
}

fn levels_text(report: &FamilyReport) -> String {
    let mut out =
        String::from("Level  Files        Bytes       Target  Score      Entries    Deletions\n");
    for level in &report.levels {
        let _ = writeln!(
            out,
            "L{:<5} {:>5} {:>12} {:>12} {:>6.2} {:>12} {:>12}",
            level.level,
            level.files,
            level.bytes,
            target_text(level.target_bytes),
            level.score,
            level.entries,
            level.deletions
        );
    }
    out
}

fn buckets_text(report: &FamilyReport) -> String {
    let mut out = String::from(
        "Bucket  Temp   Window bytes  L0 files     L0 bytes  Base files   Base bytes  \
         Memtable bytes  Jobs  From\n",
    );
    for bucket in &report.buckets {
        let temperature = bucket.temperature.map_or_else(|| "-".to_owned(), |t| format!("{t:.2}"));
        let window = match bucket.temperature {
            None => "-".to_owned(),
            Some(_) => bucket.window_bytes.to_string(),
        };
        let _ = writeln!(
            out,
            "{:<6} {:>5} {:>14} {:>9} {:>12} {:>11} {:>12} {:>15} {:>5}  \"{}\"",
            bucket.index,
            temperature,
            window,
            bucket.l0_files,
            bucket.l0_bytes,
            bucket.base_files,
            bucket.base_bytes,
            bucket.memtable_bytes,
            bucket.jobs,
            bucket.range.start.escape_ascii()
        );
    }
    if !report.bucket_changes.is_empty() {
        out.push_str("Bucket map changes (Unix ms, epoch, buckets after it, what and why)\n");
    }
    for change in &report.bucket_changes {
        let BucketChange { unix_ms, epoch, buckets, reason } = change;
        let _ = writeln!(out, "{unix_ms} {epoch} {buckets} {reason}");
    }
    out
}

/// The report of `cf`.
pub(crate) fn report(db: &Db, cf: &ColumnFamily) -> Result<FamilyReport> {
    db.check_family(cf)?;
    let current = cf.family.current.load_full();
    let version = &current.version;
    let mut levels: Vec<LevelInfo> = (0..LEVELS)
        .map(|level| LevelInfo {
            level,
            files: version.file_count(level),
            bytes: version.bytes(level),
            target_bytes: if level == 0 { 0 } else { version.targets().bytes[level] },
            score: version.score(level),
            entries: 0,
            deletions: 0,
        })
        .collect();
    for (level, file) in version.files() {
        levels[level].entries += file.entries;
        levels[level].deletions += file.deletions;
    }
    let away = db.inner.context.away().map(|away| away.sums()).unwrap_or_default();
    let held = db.inner.view.snapshots().held_bytes(cf.id(), &current);
    let stats = db.inner.observers.stats();
    let user = stats.get(Ticker::UserBytesWritten).max(1) as f64;
    let written =
        [Ticker::FlushBytesWritten, Ticker::CompactionBytesWritten, Ticker::GcBytesWritten];
    let tables = written.iter().map(|ticker| stats.get(*ticker)).sum::<u64>() as f64;
    Ok(FamilyReport {
        family: cf.name().to_owned(),
        levels,
        buckets: db.buckets(cf)?,
        bucket_changes: db.bucket_changes(cf)?,
        write_amplification: (tables + stats.get(Ticker::WalBytes) as f64) / user,
        table_write_amplification: tables / user,
        pending_compaction_bytes: version.pending_compaction_bytes(),
        immutable_memtables: current.immutables.len(),
        away_shards: away.shards,
        away_bytes: away.bytes,
        memtable_bytes_max: memtable_bytes_max(db, cf),
        snapshot_table_bytes: held.files,
        snapshot_memtable_bytes: held.memtables,
        health: disk_room::health_text(&db.inner.observers, &db.inner.disk),
    })
}

/// The reports of all families, memory, counters and timers as text.
pub(crate) fn stats_text(db: &Db) -> String {
    let mut out = String::new();
    for name in db.list_families() {
        let Ok(family) = db.family(&name) else { continue };
        if let Ok(report) = report(db, &family) {
            write_family(&mut out, &report);
            write_values(db, &family, &mut out);
        }
    }
    write_memory(db, &mut out);
    write_counters(db, &mut out);
    out
}

/// The sums over the value files of `family`, if it has some.
fn write_values(db: &Db, family: &ColumnFamily, out: &mut String) {
    let Ok(mut report) = values::values_report(db, family) else { return };
    if !report.files.is_empty() {
        let _ = writeln!(
            out,
            "value files {}, bytes {}, valid {}, exposed garbage {}, references {}",
            report.files.len(),
            report.file_bytes(),
            report.valid_bytes(),
            report.exposed_bytes(),
            report.references()
        );
        report.files.clear();
        out.push_str(&report.space_text());
    }
}

/// A property by name, as text.
pub(crate) fn property(db: &Db, cf: &ColumnFamily, name: &str) -> Option<String> {
    let name = name.strip_prefix("archipelago.").or_else(|| name.strip_prefix("rocksdb."))?;
    let report = report(db, cf).ok()?;
    if let Some(level) = name.strip_prefix("num-files-at-level") {
        let level: usize = level.parse().ok()?;
        return report.levels.get(level).map(|level| level.files.to_string());
    }
    let number = |value: u64| Some(value.to_string());
    match name {
        "stats" => Some(stats_text(db)),
        "levelstats" => Some(levels_text(&report)),
        "bucketstats" => Some(buckets_text(&report)),
        "estimate-num-keys" => number(db.estimate_keys(cf)),
        "num-immutable-mem-table" => number(report.immutable_memtables as u64),
        "num-away-shards" => number(report.away_shards as u64),
        "away-shard-bytes" => number(report.away_bytes),
        "cur-size-all-mem-tables" => {
            number(db.inner.context.budget().used_bytes(MemoryClass::Memtable))
        }
        "estimate-pending-compaction-bytes" => number(report.pending_compaction_bytes),
        "snapshot-table-bytes" => number(report.snapshot_table_bytes),
        "snapshot-mem-table-bytes" => number(report.snapshot_memtable_bytes),
        "num-snapshots" => number(db.inner.view.snapshots().count() as u64),
        "total-sst-files-size" => number(report.levels.iter().map(|level| level.bytes).sum()),
        "num-value-files" => number(cf.family.current.load().version.values().len() as u64),
        "value-file-bytes" => number(cf.family.current.load().version.values().file_bytes()),
        "value-valid-bytes" => number(values::values_report(db, cf).ok()?.valid_bytes()),
        "value-exposed-bytes" => number(cf.family.current.load().version.values().exposed_bytes()),
        "value-hidden-bytes" => {
            let space = values::values_report(db, cf).ok()?.space;
            number(space.map_or(0, |space| space.hidden_bytes))
        }
        "space-live-bytes" => number(values::values_report(db, cf).ok()?.live_bytes()),
        "space-in-flight-bytes" => number(db.inner.disk.expected_output_bytes()),
        "value-stats" => Some(values::values_report(db, cf).ok()?.to_string()),
        "pinned-file-bytes" => number(db.inner.storage.trash().pinned_bytes()),
        "num-running-jobs" => number(db.inner.jobs.lock(Order::none()).running().len() as u64),
        "block-cache-hit" => number(cache_total(db, |stats| stats.hits)),
        "block-cache-miss" => number(cache_total(db, |stats| stats.misses)),
        "block-cache-data-hit" => number(db.inner.view.cache().stats(BlockKind::Data).hits),
        "block-cache-data-miss" => number(db.inner.view.cache().stats(BlockKind::Data).misses),
        "block-cache-index-hit" => number(db.inner.view.cache().stats(BlockKind::Index).hits),
        "block-cache-index-miss" => number(db.inner.view.cache().stats(BlockKind::Index).misses),
        "block-cache-filter-hit" => number(db.inner.view.cache().stats(BlockKind::Filter).hits),
        "block-cache-filter-miss" => number(db.inner.view.cache().stats(BlockKind::Filter).misses),
        "block-cache-value-hit" => number(db.inner.view.cache().stats(BlockKind::Value).hits),
        "block-cache-value-miss" => number(db.inner.view.cache().stats(BlockKind::Value).misses),
        "block-cache-flat-hit" => number(db.inner.view.cache().stats(BlockKind::Flat).hits),
        "block-cache-flat-miss" => number(db.inner.view.cache().stats(BlockKind::Flat).misses),
        "mem-table-bytes-max" => number(report.memtable_bytes_max),
        "block-cache-capacity" => number(db.inner.view.cache().capacity_bytes()),
        "running-jobs-bytes-max" => number(job_specs::job_bytes_max(&db.inner.context)),
        "block-cache-usage" => {
            number(db.inner.context.budget().used_bytes(MemoryClass::BlockCache))
        }
        "background-errors" => number(db.inner.observers.stats().get(Ticker::BackgroundErrors)),
        "health" => Some(report.health),
        "disk-state" => Some(db.disk().state.name().to_owned()),
        "disk-free-bytes" => number(db.disk().free_bytes?),
        "disk-reserve-bytes" => number(db.disk().reserve_bytes),
        "latest-sequence-number" => number(db.inner.view.visible().0),
        _ => None,
    }
}

/// Bytes that all memtables of `cf` may take.
fn memtable_bytes_max(db: &Db, cf: &ColumnFamily) -> u64 {
    let options = &cf.family.options;
    let bytes = db.inner.context.memtable_bytes_max(options);
    bytes.saturating_mul(options.write_buffers_max as u64)
}

/// Bytes of keys and values of all records of the family.
pub(crate) fn raw_bytes(cf: &ColumnFamily) -> u64 {
    let current = cf.family.current.load_full();
    let shards = current.active.shards.iter();
    let sealed = current.immutables.iter().flat_map(|immutable| immutable.homes());
    let sealed = sealed.map(ShardHome::data_bytes);
    let in_memory = shards.map(|shard| shard.data_bytes()).chain(sealed);
    let tables = current.readable.files().map(|(_, file)| file.raw_bytes);
    in_memory.chain(tables).fold(0, u64::saturating_add)
}

fn cache_total(db: &Db, figure: impl Fn(&CacheStats) -> u64) -> u64 {
    BlockKind::ALL.iter().map(|&kind| figure(&db.inner.view.cache().stats(kind))).sum()
}

fn write_memory(db: &Db, out: &mut String) {
    let budget = db.inner.context.budget();
    let _ = writeln!(out, "\nMemory (budget {} bytes)", budget.limit_bytes());
    for class in MemoryClass::ALL {
        let _ = writeln!(out, "  {:<14} {:>14}", class.name(), budget.used_bytes(class));
    }
}

fn write_counters(db: &Db, out: &mut String) {
    let stats = db.inner.observers.stats();
    let seconds = (db.inner.context.clock().now_ns() - db.inner.context.opened_ns()) as f64 / 1e9;
    let _ = writeln!(out, "\nCounters since the open {seconds:.1} s ago");
    for &ticker in Ticker::ALL {
        let _ = writeln!(out, "  {:<26} {:>16}", ticker.name(), stats.get(ticker));
    }
    let _ = writeln!(
        out,
        "\n{:<16} {:>10} {:>12} {:>12} {:>12} {:>12} {:>14}",
        "Timer", "count", "mean", "p50", "p99", "p99.9", "max"
    );
    for &timer in Timer::ALL {
        let s = stats.summary(timer);
        let _ = writeln!(
            out,
            "{:<16} {:>10} {:>12.0} {:>12} {:>12} {:>12} {:>14}",
            timer.name(),
            s.count,
            s.mean,
            s.p50,
            s.p99,
            s.p999,
            s.max
        );
    }
    let _ = writeln!(
        out,
        "\n{:<16} {:>14} {:>14} {:>14} {:>14}",
        "Block cache", "hits", "misses", "inserts", "evictions"
    );
    for kind in BlockKind::ALL {
        let CacheStats { hits, misses, inserts, evictions } = db.inner.view.cache().stats(kind);
        let name = kind.name();
        let _ = writeln!(out, "{name:<16} {hits:>14} {misses:>14} {inserts:>14} {evictions:>14}");
    }
    let yielded = db.inner.pacing.foreground().stats();
    let _ = writeln!(
        out,
        "\nForeground first: {} operations of compactions let reads go before them, {} ms in all",
        yielded.yields,
        yielded.waited_ns / 1_000_000
    );
    let disk = db.disk();
    let free = disk.free_bytes.map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string());
    let _ = writeln!(
        out,
        "Disk: {}, {free} bytes free, {} in reserve",
        disk.state.name(),
        disk.reserve_bytes
    );
    let _ =
        writeln!(out, "Health: {}", disk_room::health_text(&db.inner.observers, &db.inner.disk));
}
