//! A database: its counters and times, its jobs and caches, its families and its disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::metrics::Distribution;
use archipelago_engine::cache::CacheStats;
use archipelago_engine::db::{
    ColumnFamily, DatabaseReport, Db, FamilyReport, HealthState, KeyEstimate, ValuesReport,
};
use archipelago_engine::disk_space::SpaceState;
use archipelago_engine::stats::{Ticker, Timer};
use archipelago_env::limit::PriorityStats;
use parking_lot::Mutex;

use super::Source;
use crate::catalogue::{Metric, engine as metric};
use crate::samples::{Observations, Samples, Value, seconds};

/// Bits of the smallest and the largest upper bound of times: 1 µs and 69 s.
const BOUND_BITS: std::ops::RangeInclusive<usize> = 10..=36;
/// Time for which an estimate of the number of keys is used, in nanoseconds.
const ESTIMATE_AGE_NS: u64 = 60_000_000_000;

/// The database `db`. Cost: a pass over the tables and value files of every family under no lock,
/// and some short locks. Once a minute it reads up to about a hundred blocks of each family, to
/// estimate the number of keys.
#[must_use]
pub fn engine(db: Db) -> Source {
    let estimates = Estimates::default();
    Box::new(move |samples| {
        for ticker in Ticker::ALL {
            let (metric, label) = of_ticker(*ticker);
            let count = db.statistics().get(*ticker);
            let labels: Vec<&str> = label.into_iter().collect();
            let is_time = metric.unit() == Some("seconds");
            let value = if is_time { seconds(count) } else { Value::from(count) };
            samples.set(metric, &labels, value);
        }
        for timer in Timer::ALL {
            let times = times(&db.statistics().distribution(*timer));
            samples.set(&metric::DURATIONS, &[name_of(*timer)], times);
        }
        database(samples, &db.database_report());
        for name in db.list_families() {
            // The family may be dropped in between.
            let Ok(family) = db.family(&name) else { continue };
            if let (Ok(report), Ok(values)) = (db.report(&family), db.values(&family)) {
                levels(samples, &report);
                memory_and_buckets(samples, &report);
                space(samples, &values);
            }
            let keys = estimates.of(&db, &family);
            samples.set(&metric::KEYS, &[&name], keys.keys);
            samples.set(&metric::KEYS_EXPIRING, &[&name], keys.expiring);
            samples.set(&metric::KEYS_TTL, &[&name], keys.mean_ttl_ms as f64 / 1e3);
        }
    })
}

/// Estimates of the number of keys by family, each with the time at which it was made.
struct Estimates {
    clock: Arc<dyn Clock>,
    known: Mutex<BTreeMap<String, (u64, KeyEstimate)>>,
}

impl Default for Estimates {
    fn default() -> Self {
        Self { clock: SystemClock::shared(), known: Mutex::default() }
    }
}

impl Estimates {
    /// The estimate of `family`, which is at most [`ESTIMATE_AGE_NS`] old.
    fn of(&self, db: &Db, family: &ColumnFamily) -> KeyEstimate {
        let now_ns = self.clock.now_ns();
        let mut known = self.known.lock();
        if let Some((made_ns, estimate)) = known.get(family.name())
            && now_ns.saturating_sub(*made_ns) < ESTIMATE_AGE_NS
        {
            return *estimate;
        }
        let estimate = db.estimate_key_counts(family);
        known.insert(family.name().to_owned(), (now_ns, estimate));
        estimate
    }
}

/// The metric of each ticker, and the value of its label.
static TICKERS: [(Ticker, &Metric, Option<&str>); Ticker::ALL.len()] = [
    (Ticker::Writes, &metric::WRITES, None),
    (Ticker::RecordsWritten, &metric::RECORDS_WRITTEN, None),
    (Ticker::UserBytesWritten, &metric::USER_BYTES, None),
    (Ticker::WalBytes, &metric::WAL_BYTES, None),
    (Ticker::WalSyncs, &metric::WAL_SYNCS, None),
    (Ticker::WritesGrouped, &metric::WRITES_GROUPED, None),
    (Ticker::Gets, &metric::GETS, None),
    (Ticker::GetsFound, &metric::GETS_FOUND, None),
    (Ticker::GetsMemtable, &metric::GETS_MEMTABLE, None),
    (Ticker::AwayLookups, &metric::AWAY_LOOKUPS, None),
    (Ticker::AwayLookupsEmpty, &metric::AWAY_LOOKUPS_EMPTY, None),
    (Ticker::AwayTimedHere, &metric::AWAY_TIMED, Some("memory")),
    (Ticker::AwayTimedHereNs, &metric::AWAY_TIMED_TIME, Some("memory")),
    (Ticker::AwayTimedThere, &metric::AWAY_TIMED, Some("node")),
    (Ticker::AwayTimedThereNs, &metric::AWAY_TIMED_TIME, Some("node")),
    (Ticker::AwayPages, &metric::AWAY_PAGES, None),
    (Ticker::AwayReadsBusy, &metric::AWAY_READS_BUSY, None),
    (Ticker::AwayShardsSent, &metric::AWAY_SHARDS, Some("sent")),
    (Ticker::AwaySendsRefused, &metric::AWAY_SHARDS, Some("refused")),
    (Ticker::AwaySendsFailed, &metric::AWAY_SHARDS, Some("failed")),
    (Ticker::AwaySendsGivenUp, &metric::AWAY_SHARDS, Some("given_up")),
    (Ticker::AwayShardsFetched, &metric::AWAY_SHARDS, Some("fetched")),
    (Ticker::AwayShardsLost, &metric::AWAY_SHARDS, Some("lost")),
    (Ticker::AwayShardsRebuilt, &metric::AWAY_SHARDS, Some("rebuilt")),
    (Ticker::AwayShardsKept, &metric::AWAY_SHARDS, Some("kept")),
    (Ticker::AwayDroppedFlushed, &metric::AWAY_SHARDS, Some("flushed")),
    (Ticker::AwayDroppedGap, &metric::AWAY_SHARDS, Some("gap")),
    (Ticker::AwayDroppedBeyondLog, &metric::AWAY_SHARDS, Some("beyond_log")),
    (Ticker::AwayDroppedUnusable, &metric::AWAY_SHARDS, Some("unusable")),
    (Ticker::AwayDroppedNoMemory, &metric::AWAY_SHARDS, Some("no_memory")),
    (Ticker::AwayStaysEnded, &metric::AWAY_STAYS_ENDED, None),
    (Ticker::AwayRecordsSpared, &metric::AWAY_SPARED, None),
    (Ticker::AwayTakeoverNs, &metric::AWAY_TAKEOVER, None),
    (Ticker::AwayKeptBytes, &metric::AWAY_KEPT, None),
    (Ticker::AwayBytesSent, &metric::AWAY_BYTES, Some("sent")),
    (Ticker::AwayBytesFetched, &metric::AWAY_BYTES, Some("fetched")),
    (Ticker::AwaySendNs, &metric::AWAY_TIME, Some("sent")),
    (Ticker::AwayFetchNs, &metric::AWAY_TIME, Some("fetched")),
    (Ticker::AwayFlushesPutOff, &metric::AWAY_FLUSHES_PUT_OFF, None),
    (Ticker::AwayFlushesPause, &metric::AWAY_FLUSHES_PAUSE, None),
    (Ticker::AwayFlushesRunHere, &metric::AWAY_FLUSHES_HERE, Some("failed")),
    (Ticker::AwayFlushesTooLarge, &metric::AWAY_FLUSHES_HERE, Some("too_large")),
    (Ticker::AwayShardsHeld, &metric::AWAY_SHARDS, Some("held")),
    (Ticker::TablesSearched, &metric::TABLES_SEARCHED, None),
    (Ticker::FilterUseful, &metric::FILTER_USEFUL, None),
    (Ticker::ValuesCached, &metric::VALUES_READ, Some("cache")),
    (Ticker::ValuesRead, &metric::VALUES_READ, Some("file")),
    (Ticker::ValueHintMisses, &metric::VALUE_HINT_MISSES, None),
    (Ticker::Iterators, &metric::ITERATORS, None),
    (Ticker::Seeks, &metric::SEEKS, None),
    (Ticker::StallL0Ns, &metric::STALL_TIME, Some("l0")),
    (Ticker::StallMemtablesNs, &metric::STALL_TIME, Some("memtables")),
    (Ticker::StallPendingNs, &metric::STALL_TIME, Some("pending")),
    (Ticker::StallBudgetNs, &metric::STALL_TIME, Some("budget")),
    (Ticker::StallSpaceNs, &metric::STALL_TIME, Some("space")),
    (Ticker::StallDiskNs, &metric::STALL_TIME, Some("disk")),
    (Ticker::StallPoolNs, &metric::STALL_TIME, Some("pool")),
    (Ticker::BucketMapChanges, &metric::MAP_CHANGES, None),
    (Ticker::BucketSplits, &metric::BUCKET_CHANGES, Some("split")),
    (Ticker::BucketMerges, &metric::BUCKET_CHANGES, Some("merge")),
    (Ticker::TransactionsCommitted, &metric::TRANSACTIONS, Some("committed")),
    (Ticker::TransactionConflicts, &metric::TRANSACTIONS, Some("conflict")),
    (Ticker::TransactionDeadlocks, &metric::TRANSACTIONS, Some("deadlock")),
    (Ticker::TransactionLockTimeouts, &metric::TRANSACTIONS, Some("lock_timeout")),
    (Ticker::Flushes, &metric::JOBS, Some("flush")),
    (Ticker::FlushLogSyncNs, &metric::FLUSH_ENDS, Some("log_sync")),
    (Ticker::FlushInstallNs, &metric::FLUSH_ENDS, Some("install")),
    (Ticker::Compactions, &metric::JOBS, Some("compaction")),
    (Ticker::GcJobs, &metric::JOBS, Some("gc")),
    (Ticker::CompactionBytesRead, &metric::JOB_READ, Some("compaction")),
    (Ticker::GcBytesRead, &metric::JOB_READ, Some("gc")),
    (Ticker::FlushBytesWritten, &metric::JOB_WRITTEN, Some("flush")),
    (Ticker::CompactionBytesWritten, &metric::JOB_WRITTEN, Some("compaction")),
    (Ticker::GcBytesWritten, &metric::JOB_WRITTEN, Some("gc")),
    (Ticker::BlocksWarmed, &metric::BLOCKS_WARMED, None),
    (Ticker::BytesWarmed, &metric::BYTES_WARMED, None),
    (Ticker::TrivialMoves, &metric::TRIVIAL_MOVES, None),
    (Ticker::TablesDropped, &metric::TABLES_DROPPED, None),
    (Ticker::Subcompactions, &metric::SUBCOMPACTIONS, None),
    (Ticker::RecordsDropped, &metric::RECORDS_DROPPED, None),
    (Ticker::RecordsExpired, &metric::RECORDS_EXPIRED, None),
    (Ticker::GcFilesCollected, &metric::GC_FILES, None),
    (Ticker::GcRecordsChecked, &metric::GC_RECORDS, Some("checked")),
    (Ticker::GcRecordsCopied, &metric::GC_RECORDS, Some("copied")),
    (Ticker::GcKeyReads, &metric::GC_REQUESTS, Some("keys")),
    (Ticker::GcValueReads, &metric::GC_REQUESTS, Some("values")),
    (Ticker::GcValueRanges, &metric::GC_RANGES, None),
    (Ticker::GcKeyBytesRead, &metric::GC_STEP_BYTES, Some("keys")),
    (Ticker::GcValueBytesRead, &metric::GC_STEP_BYTES, Some("values")),
    (Ticker::GcKeyReadNs, &metric::GC_STEP_TIME, Some("keys")),
    (Ticker::GcLookupNs, &metric::GC_STEP_TIME, Some("lookup")),
    (Ticker::GcValueReadNs, &metric::GC_STEP_TIME, Some("values")),
    (Ticker::GcWriteNs, &metric::GC_STEP_TIME, Some("write")),
    (Ticker::GcFinishNs, &metric::GC_STEP_TIME, Some("finish")),
    (Ticker::BackgroundErrors, &metric::BACKGROUND_ERRORS, None),
    (Ticker::ExtensionPanics, &metric::EXTENSION_PANICS, None),
    (Ticker::ListenerPanics, &metric::LISTENER_PANICS, None),
    (Ticker::EditsRefused, &metric::EDITS_REFUSED, None),
    (Ticker::MergeErrors, &metric::MERGE_ERRORS, None),
    (Ticker::FilesRemoved, &metric::FILES_REMOVED, None),
    (Ticker::StraysRemoved, &metric::STRAYS_REMOVED, None),
    (Ticker::DiskFullRefusals, &metric::DISK_REFUSALS, None),
    (Ticker::DiskReserveUses, &metric::DISK_RESERVE_USES, None),
    (Ticker::DiskEarlyFlushes, &metric::DISK_EARLY_FLUSHES, None),
    (Ticker::IngestBytes, &metric::INGESTED, None),
];

/// The metric of a ticker, and the value of its label.
fn of_ticker(ticker: Ticker) -> (&'static Metric, Option<&'static str>) {
    let found = TICKERS.iter().find(|(known, ..)| *known == ticker);
    let (_, metric, label) = found.expect("the table has as many tickers as there are");
    (metric, *label)
}

fn name_of(timer: Timer) -> &'static str {
    match timer {
        Timer::Write => "write",
        Timer::Get => "get",
        Timer::WalSync => "wal_sync",
        Timer::Flush => "flush",
        Timer::Compaction => "compaction",
        Timer::Gc => "gc",
        Timer::Stall => "stall",
    }
}

/// Times in nanoseconds as observations in seconds.
pub(super) fn times(distribution: &Distribution) -> Observations {
    let (first, last) = (*BOUND_BITS.start(), *BOUND_BITS.end());
    let counts = &distribution.by_bits;
    let mut buckets = vec![((1_u64 << first) as f64 / 1e9, counts[..=first].iter().sum())];
    for (bits, count) in counts.iter().enumerate().take(last + 1).skip(first + 1) {
        buckets.push(((1_u64 << bits) as f64 / 1e9, *count));
    }
    buckets.push((f64::INFINITY, counts[last + 1..].iter().sum()));
    Observations { sum: distribution.sum as f64 / 1e9, buckets }
}

fn database(samples: &mut Samples, report: &DatabaseReport) {
    let states = HealthState::ALL.map(HealthState::name);
    samples.set_state(&metric::HEALTH, states, report.health.name());
    let disk = &report.disk;
    let states = [SpaceState::Roomy, SpaceState::Tight, SpaceState::Low, SpaceState::Critical];
    samples.set_state(&metric::DISK_STATE, states.map(SpaceState::name), disk.state.name());
    samples.set_known(&metric::DISK_FREE, &[], disk.free_bytes);
    samples.set(&metric::DISK_RESERVE, &[], disk.reserve_bytes);
    samples.set(&metric::DISK_LACKING, &[], disk.lacking_bytes);
    for (kind, stats) in &report.caches {
        let CacheStats { hits, misses, inserts, evictions } = *stats;
        samples.set(&metric::CACHE_LOOKUPS, &[kind.name(), "hit"], hits);
        samples.set(&metric::CACHE_LOOKUPS, &[kind.name(), "miss"], misses);
        samples.set(&metric::CACHE_INSERTS, &[kind.name()], inserts);
        samples.set(&metric::CACHE_EVICTIONS, &[kind.name()], evictions);
    }
    samples.set(&metric::CACHE_CAPACITY, &[], report.cache_capacity_bytes);
    for (kind, count) in &report.running_jobs {
        samples.set(&metric::JOBS_RUNNING, &[kind.name()], *count);
    }
    samples.set(&metric::IN_FLIGHT, &[], report.in_flight_bytes);
    samples.set(&metric::JOB_MEMORY_MAX, &[], report.job_memory_bytes_max);
    samples.set(&metric::SNAPSHOTS, &[], report.snapshots);
    samples.set(&metric::PINNED, &["snapshots"], report.pinned.snapshot_bytes);
    samples.set(&metric::PINNED, &["readers"], report.pinned.reader_bytes());
    samples.set(&metric::PINNED_AGE, &[], seconds(report.pinned.oldest_ms * 1_000_000));
    samples.set(&metric::YIELDS, &[], report.foreground_yields.yields);
    samples.set(&metric::YIELD_TIME, &[], seconds(report.foreground_yields.waited_ns));
    for (priority, stats) in
        [("flush", report.limited_flushes), ("compaction", report.limited_compactions)]
    {
        let PriorityStats { bytes, waited_ns, .. } = stats;
        samples.set(&metric::LIMITED_BYTES, &[priority], bytes);
        samples.set(&metric::LIMITED_TIME, &[priority], seconds(waited_ns));
    }
    samples.set(&metric::SEQUENCE, &[], report.visible_seq);
}

fn levels(samples: &mut Samples, report: &FamilyReport) {
    let family = report.family.as_str();
    for level in &report.levels {
        let number = level.level.to_string();
        let labels = [family, number.as_str()];
        samples.set(&metric::LEVEL_FILES, &labels, level.files);
        samples.set(&metric::LEVEL_BYTES, &labels, level.bytes);
        let bounded = level.level > 0 && level.target_bytes < u64::MAX;
        samples.set_known(&metric::LEVEL_TARGET, &labels, bounded.then_some(level.target_bytes));
        samples.set(&metric::LEVEL_SCORE, &labels, level.score);
        samples.set(&metric::LEVEL_RECORDS, &labels, level.entries);
        samples.set(&metric::LEVEL_DELETES, &labels, level.deletions);
    }
}

fn memory_and_buckets(samples: &mut Samples, report: &FamilyReport) {
    let family = [report.family.as_str()];
    samples.set(&metric::PENDING, &family, report.pending_compaction_bytes);
    samples.set(&metric::IMMUTABLE, &family, report.immutable_memtables);
    let buckets = &report.buckets;
    let memtables: u64 = buckets.iter().map(|bucket| bucket.memtable_bytes).sum();
    samples.set(&metric::MEMTABLE_BYTES, &family, memtables);
    samples.set(&metric::MEMTABLE_MAX, &family, report.memtable_bytes_max);
    samples.set(&metric::BUCKETS, &family, buckets.len());
    let fullest = buckets.iter().map(|bucket| bucket.l0_files).max();
    samples.set(&metric::BUCKET_L0_MAX, &family, fullest.unwrap_or(0));
    let hottest = buckets.iter().filter_map(|bucket| bucket.temperature).reduce(f64::max);
    samples.set_known(&metric::BUCKET_HEAT_MAX, &family, hottest);
    let place = |place| [family[0], place];
    samples.set(&metric::SNAPSHOT_BYTES, &place("tables"), report.snapshot_table_bytes);
    samples.set(&metric::SNAPSHOT_BYTES, &place("memtables"), report.snapshot_memtable_bytes);
}

fn space(samples: &mut Samples, report: &ValuesReport) {
    let family = [report.family.as_str()];
    samples.set(&metric::LIVE_BYTES, &family, report.live_bytes());
    samples.set(&metric::VALUE_FILES, &family, report.files.len());
    samples.set(&metric::VALUE_FILE_BYTES, &family, report.file_bytes());
    samples.set(&metric::VALUE_VALID_BYTES, &family, report.valid_bytes());
    samples.set(&metric::VALUE_REFERENCES, &family, report.references());
    samples.set(&metric::GARBAGE, &[family[0], "exposed"], report.exposed_bytes());
    let hidden = report.space.map_or(0, |space| space.hidden_bytes);
    samples.set(&metric::GARBAGE, &[family[0], "hidden"], hidden);
    let Some(space) = &report.space else { return };
    samples.set_known(&metric::SPACE_ALLOWED, &family, space.allowed_bytes);
    samples.set(&metric::SPACE_DEBT, &family, space.debt_bytes);
    samples.set(&metric::SPACE_EXCEEDED, &family, space.cannot_keep_bound);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use archipelago_base::metrics::Histogram;

    use super::*;

    #[test]
    fn every_ticker_has_a_series_of_its_own() {
        let mut series = BTreeSet::new();
        for ticker in Ticker::ALL {
            let (metric, label) = of_ticker(*ticker);
            assert_eq!(metric.labels.len(), label.iter().len(), "{}", metric.name);
            assert!(series.insert((metric.name, label)), "{ticker:?} shares a series");
            let is_time = ticker.name().ends_with(".ns") || ticker.name().contains(".ns.");
            assert_eq!(is_time, metric.unit() == Some("seconds"), "{ticker:?}");
        }
    }

    #[test]
    fn times_are_counted_below_their_powers_of_two() {
        let histogram = Histogram::default();
        for ns in [1, 1023, 1024, 5_000_000, u64::MAX / 4] {
            histogram.record(ns);
        }
        let Observations { buckets, .. } = times(&histogram.distribution());
        let at_most = |limit: f64| {
            let within = buckets.iter().filter(|(bound, _)| *bound <= limit);
            within.map(|(_, count)| count).sum::<u64>()
        };
        assert_eq!(at_most(1024e-9), 2);
        assert_eq!(at_most(2048e-9), 3);
        assert_eq!(at_most(0.01), 4);
        assert_eq!(buckets.last().map(|(_, count)| *count), Some(1));
        assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
