//! Promises to users and operators besides the data itself: events, figures, extensions, limits,
//! pinned values, read-only opens, and costs that do not grow.

use std::sync::Arc;

use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_base::clock::{Clock, ManualClock};
use archipelago_base::{ErrorKind, Result};
use archipelago_engine::db::{ColumnFamily, Components, Db, IngestOptions, ReadOptions};
use archipelago_engine::event::{Event, EventListener};
use archipelago_engine::extension::{CompactionFilter, FilterDecision};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, Compression, DbOptions, WriteOptions};
use archipelago_engine::sst::{SstWriter, TableOptions};
use archipelago_engine::stats::{Ticker, Timer};
use archipelago_engine::transaction::TransactionOptions;
use archipelago_env::device::{DeviceSpec, ThrottledFs};
use archipelago_env::foreground::PIECE_BYTES;
use archipelago_env::stats::CountingFs;
use archipelago_env::{FileClass, FileSystem, IoPurpose};
use parking_lot::Mutex;

use crate::disk::TestDisk;
use crate::support::{open, over, small_db, small_family, stepped};

fn key(n: u32) -> Vec<u8> {
    format!("key{n:06}").into_bytes()
}

fn fill(db: &Db, cf: &ColumnFamily, keys: std::ops::Range<u32>, value: &[u8]) {
    for n in keys {
        db.put_with(cf, &key(n), value, &WriteOptions::default()).unwrap();
        while db.step_background().unwrap() {}
    }
}

fn counter_family() -> CfOptions {
    CfOptions { merge_operator: Some("u64-counter".to_owned()), ..small_family() }
}

#[derive(Default)]
struct Told(Mutex<Vec<Event>>);

impl EventListener for Told {
    fn on_event(&self, event: &Event) {
        self.0.lock().push(event.clone());
    }
}

impl Told {
    fn count(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.0.lock().iter().filter(|event| wanted(event)).count()
    }
}

#[test]
fn listeners_receive_every_change_of_files_and_families() {
    let fs = TestDisk::new();
    let told = Arc::new(Told::default());
    let family = CfOptions { buckets_dynamic: false, ..small_family() };
    let mut components = over(&fs, family);
    components.listeners.add(Arc::clone(&told) as _);
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let cf = db.default_family();
    fill(&db, cf, 0..2000, &[7; 60]);
    db.compact_range(cf, &KeyRange::all()).unwrap();
    db.split_bucket(cf, 0, None).unwrap();
    let other = db.create_family("other", small_family()).unwrap();
    db.drop_family(&other).unwrap();
    let shared: Arc<dyn FileSystem> = Arc::new(fs);
    let mut writer =
        SstWriter::create(&shared, "/t.sst".as_ref(), TableOptions::default()).unwrap();
    writer.put(b"zz", b"ingested").unwrap();
    writer.finish().unwrap();
    db.ingest(cf, &["/t.sst"], &IngestOptions::default()).unwrap();

    let stats = db.statistics();
    let flushes = told.count(|e| matches!(e, Event::FlushInstalled { .. }));
    let compactions = told.count(|e| matches!(e, Event::CompactionInstalled { .. }));
    assert_eq!(flushes as u64, stats.get(Ticker::Flushes));
    assert_eq!(compactions as u64, stats.get(Ticker::Compactions));
    assert!(flushes > 1 && compactions > 1);
    assert_eq!(told.count(|e| matches!(e, Event::BucketMapChanged { buckets: 3, .. })), 1);
    assert_eq!(told.count(|e| matches!(e, Event::BucketMapChanged { buckets: 4, .. })), 1);
    let of_other = |e: &Event, made| matches!(e, Event::ColumnFamilyChanged { cf, created } if *cf == other.id() && *created == made);
    assert_eq!((told.count(|e| of_other(e, true)), told.count(|e| of_other(e, false))), (1, 1));
    assert_eq!(told.count(|e| matches!(e, Event::Ingested { files, .. } if files.len() == 1)), 1);
    assert!(told.count(|e| matches!(e, Event::MemtableSealed { .. })) > 1);
    assert_eq!(told.count(|e| matches!(e, Event::BackgroundError { .. })), 0);
    let (mut written, mut bytes) = (0, 0);
    for event in told.0.lock().iter() {
        match event {
            Event::FlushInstalled { bytes: b, .. } => bytes += b,
            Event::CompactionInstalled { bytes_written, .. } => written += bytes_written,
            _ => {}
        }
    }
    assert_eq!(bytes, stats.get(Ticker::FlushBytesWritten));
    assert_eq!(written, stats.get(Ticker::CompactionBytesWritten));
}

#[test]
fn figures_agree_with_what_was_done() {
    let fs = TestDisk::new();
    let options = DbOptions { latency_histograms: true, ..small_db() };
    let db = Db::open_with("/db", options, over(&fs, small_family())).unwrap();
    let cf = db.default_family();
    for n in (0..2000).step_by(2) {
        fill(&db, cf, n..n + 1, &[1; 50]);
    }
    for n in (0..2000).step_by(2).chain(500..1000) {
        assert_eq!(db.get(&key(n)).unwrap().is_some(), n % 2 == 0);
    }
    let snapshots = [db.snapshot(), db.snapshot()];
    let stats = db.statistics();
    assert_eq!(stats.get(Ticker::Writes), 1000);
    assert_eq!(stats.get(Ticker::UserBytesWritten), 1000 * 59);
    assert_eq!((stats.get(Ticker::Gets), stats.get(Ticker::GetsFound)), (1500, 1250));
    assert!(stats.get(Ticker::FilterUseful) > 0);
    assert_eq!(stats.summary(Timer::Get).count, 1500);
    assert_eq!(stats.summary(Timer::Write).count, 1000);
    let report = db.report(cf).unwrap();
    let files: usize = report.levels.iter().map(|level| level.files).sum();
    assert!(files > 1 && report.write_amplification > 1.0 && report.health == "healthy");
    let property = |name: &str| db.property(cf, name).unwrap();
    assert_eq!(property("archipelago.num-snapshots"), "2");
    assert_eq!(property("rocksdb.num-files-at-level0"), report.levels[0].files.to_string());
    assert_eq!(property("rocksdb.latest-sequence-number"), "1000");
    assert_eq!(property("rocksdb.estimate-num-keys"), "1000");
    let bytes: u64 = report.levels.iter().map(|level| level.bytes).sum();
    assert_eq!(property("rocksdb.total-sst-files-size"), bytes.to_string());
    assert_eq!(db.property(cf, "rocksdb.no-such"), None);
    assert_eq!(db.property(cf, "no-such"), None);
    let text = db.stats_text();
    for part in ["Column family \"default\"", "get.ns", "memtable", "flushes", "Bucket", "L6"] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    for name in ["stats", "levelstats", "bucketstats"] {
        assert!(property(&format!("archipelago.{name}")).lines().count() > 3);
    }
    drop(snapshots);
    assert_eq!(property("archipelago.num-snapshots"), "0");
}

/// Drops values that begin with `drop`, and changes those that begin with `change`.
struct ByPrefix;

impl CompactionFilter for ByPrefix {
    fn name(&self) -> &str {
        "by-prefix"
    }

    fn filter(&self, _: &[u8], value: &[u8], _: Option<u64>, _: u64) -> FilterDecision {
        match value {
            _ if value.starts_with(b"drop") => FilterDecision::Remove,
            _ if value.starts_with(b"change") => FilterDecision::Change(b"changed".to_vec()),
            _ => FilterDecision::Keep,
        }
    }
}

#[test]
fn compaction_filter_uncovers_no_older_record() {
    let fs = TestDisk::new();
    let filtered = CfOptions { compaction_filter: Some("by-prefix".to_owned()), ..small_family() };
    let unknown = Db::open_with("/db", small_db(), over(&fs, filtered.clone())).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::InvalidArgument);
    assert!(unknown.to_string().contains("by-prefix"), "{unknown}");

    let mut components = over(&TestDisk::new(), filtered);
    components.registry.add_compaction_filter(Arc::new(ByPrefix));
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let cf = db.default_family();
    for n in 0..30 {
        db.put(&key(n), b"old").unwrap();
    }
    db.compact_range(cf, &KeyRange::all()).unwrap();
    for n in 0..30 {
        let value: &[u8] = [b"keep it".as_slice(), b"drop it", b"change it"][n as usize % 3];
        db.put(&key(n), value).unwrap();
    }
    let snapshot = db.snapshot();
    db.compact_range(cf, &KeyRange::all()).unwrap();
    let then = ReadOptions::new().snapshot(&snapshot);
    for n in 0..30 {
        let value: &[u8] = [b"keep it".as_slice(), b"drop it", b"change it"][n as usize % 3];
        assert_eq!(db.get_with(cf, &key(n), &then).unwrap().as_deref(), Some(value), "{n}");
        let expected = [Some(&b"keep it"[..]), None, Some(b"changed")][n as usize % 3];
        assert_eq!(db.get(&key(n)).unwrap().as_deref(), expected, "{n}");
    }
}

#[test]
fn the_ttl_filter_gives_the_space_of_expired_records_back() {
    let clock = Arc::new(ManualClock::new(1_000_000));
    let ttl = CfOptions { compaction_filter: Some("ttl".to_owned()), ..small_family() };
    let mut components = over(&TestDisk::new(), ttl);
    components.clock = Arc::clone(&clock) as _;
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let cf = db.default_family();
    for n in 0..200 {
        db.put_expiring(cf, &key(n), &[1; 40], 1_010_000, &WriteOptions::default()).unwrap();
    }
    db.flush(cf).unwrap();
    let files = || -> usize { db.report(cf).unwrap().levels.iter().map(|l| l.files).sum() };
    assert!(files() > 0);
    clock.advance(std::time::Duration::from_secs(10));
    db.compact_range(cf, &KeyRange::all()).unwrap();
    assert_eq!(files(), 0);
}

#[test]
fn merge_operator_error_reaches_the_reader_and_loses_nothing() {
    let db = Db::open_with("/db", small_db(), over(&TestDisk::new(), counter_family())).unwrap();
    let cf = db.default_family();
    let merge = |key: &[u8], operand: &[u8]| {
        db.merge(cf, key, operand, &WriteOptions::default()).unwrap();
    };
    merge(b"fine", &1u64.to_le_bytes());
    merge(b"fine", &2u64.to_le_bytes());
    db.put(b"wrong", b"abc").unwrap();
    merge(b"wrong", &1u64.to_le_bytes());
    for round in 0..2 {
        let error = db.get(b"wrong").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("\"wrong\" has 3 bytes"), "{error}");
        assert_eq!(db.get(b"fine").unwrap().as_deref(), Some(&3u64.to_le_bytes()[..]));
        assert!(db.multi_get(cf, &[b"fine", b"wrong"], &ReadOptions::default()).is_err());
        let mut iter = db.iter(cf, &ReadOptions::default()).unwrap();
        iter.seek_to_first();
        assert_eq!(iter.key(), b"fine");
        iter.next();
        assert!(!iter.valid() && iter.status().is_err());
        iter.seek_to_last();
        assert!(!iter.valid() && iter.status().is_err());
        let merge_errors = db.statistics().get(Ticker::MergeErrors);
        assert_eq!(merge_errors > 0, round > 0, "jobs that met it count it");
        db.compact_range(cf, &KeyRange::all()).unwrap();
    }
    db.put(b"wrong", &5u64.to_le_bytes()).unwrap();
    merge(b"wrong", &1u64.to_le_bytes());
    assert_eq!(db.get(b"wrong").unwrap().as_deref(), Some(&6u64.to_le_bytes()[..]));
}

#[test]
fn the_rate_limit_slows_background_writes_and_no_others() {
    const RATE: u64 = 100_000;
    let clock = Arc::new(ManualClock::new(1_000_000));
    let raw =
        CfOptions { compression: Compression::None, write_buffer_bytes: 1 << 20, ..small_family() };
    let mut components = over(&TestDisk::new(), raw);
    components.clock = Arc::clone(&clock) as _;
    let options = DbOptions { rate_limit_bytes_per_s: RATE, ..small_db() };
    let db = Db::open_with("/db", options, components).unwrap();
    for n in 0..2000 {
        db.put(&key(n), &[n as u8; 200]).unwrap();
    }
    assert_eq!(clock.now_ns(), 0, "a write does not wait");
    db.flush(db.default_family()).unwrap();
    let written = db.statistics().get(Ticker::FlushBytesWritten);
    let seconds = clock.now_ns() as f64 / 1e9;
    let expected = written as f64 / RATE as f64;
    assert!(seconds > expected * 0.7 && seconds < expected * 1.1, "{seconds} s, {expected} s");
}

#[test]
fn compaction_readahead_makes_few_large_reads() {
    let reads = |readahead: u64| -> (u64, u64) {
        let counting = Arc::new(CountingFs::new(Arc::new(TestDisk::new())));
        // There are few files, because the bytes that are read to open each file count too.
        let family = CfOptions {
            target_file_bytes: 4 << 20,
            write_buffer_bytes: 256 << 10,
            buckets: 1,
            compression: Compression::None,
            ..small_family()
        };
        let mut components = over(&TestDisk::new(), family);
        components.fs = Arc::clone(&counting) as _;
        let options = DbOptions { compaction_readahead_bytes: readahead, ..small_db() };
        let db = Db::open_with("/db", options, components).unwrap();
        fill(&db, db.default_family(), 0..4000, &[3; 60]);
        let before = counting.snapshot();
        fill(&db, db.default_family(), 0..4000, &[4; 60]);
        db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
        let counts = counting.snapshot().since(&before);
        let of = counts.of(FileClass::Sst, IoPurpose::Compaction { from: 0, to: 1 });
        (of.read_ops, of.read_bytes)
    };
    let (few, many) = (reads(256 << 10), reads(4 << 10));
    assert!(few.0 * 3 < many.0, "{few:?} {many:?}");
    assert!(few.1 < many.1 * 2, "{few:?} {many:?}");
}

#[test]
fn compactions_read_in_pieces_while_users_read_from_a_device() {
    let spec = DeviceSpec::from_toml(
        r#"
        name = "disk"
        source = "made up"
        total_bytes_per_s = 1_000_000_000
        read_bytes_per_s = 1_000_000_000
        write_bytes_per_s = 1_000_000_000
        read_latency_us = 1000
        "#,
    )
    .unwrap();
    // The clock stands still except for the waits on the device.
    let largest = |foreground_first: bool, get: bool| -> u64 {
        let clock = Arc::new(ManualClock::new(0));
        let disk = ThrottledFs::new(Arc::new(TestDisk::new()), spec.clone(), clock.clone());
        let counting = Arc::new(CountingFs::new(disk));
        let family = CfOptions {
            target_file_bytes: 4 << 20,
            write_buffer_bytes: 4 << 20,
            buckets: 1,
            compression: Compression::None,
            compression_last: Compression::None,
            ..small_family()
        };
        let mut components = over(&TestDisk::new(), family);
        components.fs = Arc::clone(&counting) as _;
        components.clock = clock;
        components.foreground_first = foreground_first;
        let db = Db::open_with("/db", small_db(), components).unwrap();
        let cf = db.default_family();
        for round in 0..2 {
            fill(&db, cf, 0..4000, &[round; 300]);
            db.flush(cf).unwrap();
        }
        if get {
            assert!(db.get(&key(1)).unwrap().is_some());
        }
        let before = counting.snapshot();
        db.compact_range(cf, &KeyRange::all()).unwrap();
        let counts = counting.snapshot().since(&before);
        let of = counts.of(FileClass::Sst, IoPurpose::Compaction { from: 0, to: 1 });
        assert!(of.read_bytes > 2 << 20, "{of:?}");
        of.read_bytes / of.read_ops
    };
    let piece = PIECE_BYTES as u64;
    assert!(largest(true, true) <= piece);
    assert!(largest(true, false) > piece, "nobody reads");
    assert!(largest(false, true) > piece, "nobody yields");
}

#[test]
fn a_value_from_a_cached_block_is_pinned_and_outlives_its_file() {
    let fs = TestDisk::new();
    let budget = ByteBudget::unlimited();
    let mut components = over(&fs, small_family());
    components.budget = Some(Arc::clone(&budget));
    let options = DbOptions { block_cache_bytes: 64 << 10, ..small_db() };
    let db = Db::open_with("/db", options, components).unwrap();
    let cf = db.default_family();
    for n in 0..300 {
        db.put(&key(n), &[n as u8; 100]).unwrap();
    }
    let copied = db.get(&key(5)).unwrap().unwrap();
    assert_eq!(copied, [5; 100]);
    db.flush(cf).unwrap();
    let pinned = db.get(&key(5)).unwrap().unwrap();
    assert!(pinned.is_pinned(), "a value in a cached block is not copied");
    let many = db.multi_get(cf, &[&key(5), &key(6)], &ReadOptions::default()).unwrap();
    assert!(many.iter().flatten().all(|value| value.is_pinned()));
    let removed = db.statistics().get(Ticker::FilesRemoved);
    for n in 0..300 {
        db.put(&key(n), &[1; 100]).unwrap();
    }
    db.compact_range(cf, &KeyRange::all()).unwrap();
    assert!(db.statistics().get(Ticker::FilesRemoved) > removed, "its file is gone");
    fill(&db, cf, 1000..3000, &[9; 100]);
    for n in 1000..3000 {
        db.get(&key(n)).unwrap();
    }
    assert!(budget.used_bytes(MemoryClass::BlockCache) <= (64 << 10) + (8 << 10));
    let cached = || budget.used_bytes(MemoryClass::BlockCache);
    let (full, unlimited) = (cached(), budget.limit_bytes());
    budget.set_limit_bytes(budget.total_bytes());
    db.step_background().unwrap();
    assert!(cached() < full * 3 / 4, "caches shrink when memory is short: {} of {full}", cached());
    budget.set_limit_bytes(unlimited);
    db.step_background().unwrap();
    for n in 1000..3000 {
        db.get(&key(n)).unwrap();
    }
    assert!(cached() > full * 3 / 4, "and grow again: {} of {full}", cached());
    assert_eq!(pinned, [5; 100]);
    assert_eq!(many[1].as_ref().unwrap(), &[6; 100]);
    drop(db);
    assert_eq!(pinned.into_vec(), [5; 100]);
}

#[test]
fn a_read_that_may_not_do_io_says_that_it_would_have_to() {
    let counting = Arc::new(CountingFs::new(Arc::new(TestDisk::new())));
    let mut components = over(&TestDisk::new(), small_family());
    components.fs = Arc::clone(&counting) as _;
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let cf = db.default_family();
    for n in 0..300 {
        db.put(&key(n), &[n as u8; 100]).unwrap();
    }
    let cached = ReadOptions { cache_only: true, ..ReadOptions::default() };
    assert!(db.get_with(cf, &key(5), &cached).unwrap().is_some(), "it is in memory");
    db.compact_range(cf, &KeyRange::all()).unwrap();
    let before = counting.snapshot();
    let kind = |result: Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(db.get_with(cf, &key(5), &cached).map(|_| ())), ErrorKind::Busy);
    assert_eq!(kind(db.multi_get(cf, &[&key(5)], &cached).map(|_| ())), ErrorKind::Busy);
    let mut iter = db.iter(cf, &cached).unwrap();
    iter.seek_to_first();
    assert!(!iter.valid());
    assert_eq!(kind(iter.status()), ErrorKind::Busy);
    assert_eq!(counting.snapshot().since(&before).total().read_ops, 0, "nothing was read");
    db.get(&key(5)).unwrap();
    let before = counting.snapshot();
    assert!(db.get_with(cf, &key(5), &cached).unwrap().is_some());
    assert_eq!(counting.snapshot().since(&before).total().read_ops, 0);
}

fn names(fs: &TestDisk, dir: &str) -> Vec<(String, u64)> {
    let mut all: Vec<_> = fs
        .list(dir.as_ref())
        .unwrap()
        .into_iter()
        .map(|entry| {
            let path = std::path::Path::new(dir).join(&entry.name);
            let context = archipelago_env::IoContext::new(FileClass::Other, IoPurpose::Maintenance);
            let bytes = fs.read(&path, context).unwrap();
            (entry.name, bytes.len() as u64)
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_read_only_open_sees_all_and_changes_nothing() {
    let fs = TestDisk::new();
    let db = open(&fs);
    let cf = db.default_family();
    fill(&db, cf, 0..500, &[1; 60]);
    db.put(b"last", b"only in the log").unwrap();
    let reader = DbOptions { read_only: true, ..small_db() };
    for left in [fs.kill_clone(), fs] {
        let before = names(&left, "/db");
        let components = Components { fs: Arc::new(left.clone()), ..stepped() };
        let copy = Db::open_with("/db", reader.clone(), components).unwrap();
        assert_eq!(copy.get(b"last").unwrap().as_deref(), Some(&b"only in the log"[..]));
        for n in 0..500 {
            assert_eq!(copy.get(&key(n)).unwrap().unwrap(), [1; 60]);
        }
        let kind = |result: Result<()>| result.unwrap_err().kind();
        let cf = copy.default_family();
        assert_eq!(kind(copy.put(b"a", b"b")), ErrorKind::ReadOnly);
        let unlogged = WriteOptions { wal: false, ..WriteOptions::default() };
        assert_eq!(kind(copy.put_with(cf, b"a", b"b", &unlogged)), ErrorKind::ReadOnly);
        let mut transaction = copy.transaction();
        transaction.put(cf, b"a", b"b").unwrap();
        assert_eq!(kind(transaction.commit(&unlogged).map(drop)), ErrorKind::ReadOnly);
        drop(transaction);
        let mut reader = copy.transaction_with(TransactionOptions::snapshot_isolation());
        assert_eq!(reader.get(cf, b"a").unwrap(), None);
        reader.commit(&WriteOptions::default()).unwrap();
        assert_eq!(copy.get(b"a").unwrap(), None);
        assert_eq!(kind(copy.flush(cf)), ErrorKind::ReadOnly);
        assert_eq!(kind(copy.compact_range(cf, &KeyRange::all())), ErrorKind::ReadOnly);
        assert_eq!(kind(copy.split_bucket(cf, 0, None)), ErrorKind::ReadOnly);
        assert_eq!(kind(copy.create_family("x", small_family()).map(|_| ())), ErrorKind::ReadOnly);
        assert!(!copy.step_background().unwrap());
        copy.close().unwrap();
        assert_eq!(names(&left, "/db"), before);
    }
    db.put(b"more", b"the owner goes on").unwrap();
}

#[test]
fn an_open_that_is_refused_says_why_and_makes_nothing() {
    let fs = TestDisk::new();
    let open = |options: DbOptions| Db::open_with("/new", options, over(&fs, small_family()));
    let no_create = DbOptions { create_if_missing: false, ..small_db() };
    assert_eq!(open(no_create.clone()).unwrap_err().kind(), ErrorKind::NotFound);
    let read_only = DbOptions { read_only: true, ..small_db() };
    assert_eq!(open(read_only).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!fs.exists("/new".as_ref()).unwrap());
    open(small_db()).unwrap().close().unwrap();
    let fresh = DbOptions { error_if_exists: true, ..small_db() };
    assert_eq!(open(fresh).unwrap_err().kind(), ErrorKind::InvalidArgument);
    open(no_create).unwrap();
    let mut components = over(&fs, small_family());
    components.families.insert("no-such".to_owned(), small_family());
    let error = Db::open_with("/new", small_db(), components).unwrap_err();
    assert!(error.to_string().contains("\"no-such\""), "{error}");
}

#[test]
fn many_families_cost_no_memtable_memory_until_they_are_written() {
    let budget = ByteBudget::unlimited();
    let mut components = over(&TestDisk::new(), CfOptions::default());
    components.budget = Some(Arc::clone(&budget));
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let families: Vec<ColumnFamily> = (0..2000)
        .map(|n| db.create_family(&format!("family {n}"), CfOptions::default()).unwrap())
        .collect();
    assert_eq!(budget.used_bytes(MemoryClass::Memtable), 0, "slabs come with the first record");
    for family in &families {
        db.put_with(family, b"a", b"b", &WriteOptions::default()).unwrap();
    }
    let each = budget.used_bytes(MemoryClass::Memtable) / 2000;
    assert!(each <= 32 << 10, "{each} bytes for one small record");
}

#[test]
fn reads_and_writes_cost_no_more_with_many_snapshots() {
    let work = |snapshots: u32| {
        let db = open(&TestDisk::new());
        let cf = db.default_family();
        fill(&db, cf, 0..1000, &[1; 60]);
        db.compact_range(cf, &KeyRange::all()).unwrap();
        let live: Vec<_> = (0..snapshots).map(|_| db.snapshot()).collect();
        let before: Vec<u64> =
            Ticker::ALL.iter().map(|ticker| db.statistics().get(*ticker)).collect();
        fill(&db, cf, 0..1000, &[2; 60]);
        for n in 0..1000 {
            db.get(&key(n)).unwrap();
        }
        drop(live);
        let after = |ticker: Ticker| {
            let at = Ticker::ALL.iter().position(|other| *other == ticker).unwrap();
            db.statistics().get(ticker) - before[at]
        };
        [Ticker::WalBytes, Ticker::Flushes, Ticker::FlushBytesWritten].map(after)
    };
    assert_eq!(work(1), work(5000), "snapshots of one moment are one");
}
