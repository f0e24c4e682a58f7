//! Many threads in parallel, bounded by numbers of operations, under checks that hold at any
//! moment. A thread reads its own writes. Stamps of a key only grow. A batch is seen as a whole or
//! not at all.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use archipelago_base::ErrorKind;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_engine::db::{
    ColumnFamily, Components, Db, FaultPoint, IngestOptions, ReadOptions,
};
use archipelago_engine::event::{Event, EventListener};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::sst::{SstWriter, TableOptions};
use archipelago_engine::stats::Ticker;
use archipelago_engine::wal::WriteBatch;
use archipelago_env::FileSystem;
use archipelago_env::local::LocalFs;
use parking_lot::Mutex;

use crate::disk::TestDisk;
use crate::support::{in_threads, over, small_db, small_family, stepped};

const WRITERS: u64 = 3;
const BATCHES: u64 = 150;
/// Keys of each writer in each of two families; every batch writes all of them.
const KEYS: u64 = 8;

/// Key `n` of `writer`. The keys of all writers are mixed over the key space.
fn key(writer: u64, n: u64) -> Vec<u8> {
    format!("{n:02}-{writer}").into_bytes()
}

fn value(stamp: u64) -> Vec<u8> {
    let mut value = stamp.to_le_bytes().to_vec();
    value.resize(8 + (stamp % 7 * 30) as usize, stamp as u8);
    value
}

fn stamp(value: &[u8]) -> u64 {
    let stamp = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert_eq!(value, self::value(stamp), "the value of stamp {stamp} is not whole");
    stamp
}

struct World {
    db: Db,
    families: [ColumnFamily; 2],
    /// Family that records the progress of [`World::pair`].
    markers: ColumnFamily,
    fs: Arc<dyn FileSystem>,
    /// The disk, if it can be cloned.
    memory: Option<TestDisk>,
    scratch: std::path::PathBuf,
    /// The last acknowledged stamp of each writer.
    acknowledged: [AtomicU64; WRITERS as usize],
    writers_left: AtomicU64,
    failed: AtomicBool,
}

impl World {
    fn writing(&self) -> bool {
        self.writers_left.load(Ordering::Acquire) > 0 && !self.failed.load(Ordering::Acquire)
    }

    /// Writes batches. One in three batches also deletes the range of all keys of the writer.
    fn write(&self, writer: u64) {
        for stamp in 1..=BATCHES {
            let mut batch = WriteBatch::new();
            for n in 0..KEYS {
                for family in &self.families {
                    let key = key(writer, n);
                    if stamp % 3 == 0 {
                        let end = [&key[..], &[0]].concat();
                        batch.delete_range_cf(family.id(), &key, &end);
                    }
                    // The first key is written many times, later the last one, so that the load
                    // moves.
                    let hot = if stamp < BATCHES / 3 { 0 } else { KEYS - 1 };
                    let times = if n == hot { 16 } else { 1 };
                    for _ in 0..times {
                        batch.put_cf(family.id(), &key, &value(stamp));
                    }
                }
            }
            let options = WriteOptions { sync: stamp % 50 == 0, ..WriteOptions::default() };
            self.db.write(&batch, &options).unwrap();
            self.acknowledged[writer as usize].store(stamp, Ordering::Release);
        }
        self.writers_left.fetch_sub(1, Ordering::AcqRel);
    }

    /// Checks that a reader sees one stamp per writer, which is not older than the stamp
    /// acknowledged before.
    fn check_picture(&self, seen: &[(u64, u64)], before: &[u64], last: &mut [u64]) {
        for writer in 0..WRITERS {
            let mut stamps: Vec<u64> =
                seen.iter().filter(|(of, _)| *of == writer).map(|(_, stamp)| *stamp).collect();
            let count = stamps.len();
            stamps.dedup();
            assert!(stamps.len() <= 1, "writer {writer}: a torn batch: {stamps:?}");
            let stamp = stamps.first().copied().unwrap_or(0);
            assert!(
                stamp == 0 || (count as u64).is_multiple_of(KEYS),
                "{count} keys of writer {writer}"
            );
            assert!(stamp >= before[writer as usize], "{stamp} after {before:?}");
            assert!(stamp >= last[writer as usize], "{stamp} after {last:?}");
            last[writer as usize] = stamp;
        }
    }

    fn acknowledged(&self) -> Vec<u64> {
        self.acknowledged.iter().map(|stamp| stamp.load(Ordering::Acquire)).collect()
    }

    fn read_points(&self, family: &ColumnFamily) {
        let (mut last, mut last_seq) = (vec![0; WRITERS as usize], 0);
        let keys: Vec<(u64, Vec<u8>)> =
            (0..KEYS).flat_map(|n| (0..WRITERS).map(move |w| (w, key(w, n)))).collect();
        let slices: Vec<&[u8]> = keys.iter().map(|(_, key)| key.as_slice()).collect();
        while self.writing() {
            let before = self.acknowledged();
            let found = self.db.multi_get(family, &slices, &ReadOptions::default()).unwrap();
            let seen: Vec<(u64, u64)> = keys
                .iter()
                .zip(&found)
                .filter_map(|((writer, _), value)| Some((*writer, stamp(value.as_ref()?))))
                .collect();
            self.check_picture(&seen, &before, &mut last);
            let seq = self.db.latest_seq(family, slices[0]).unwrap().map_or(0, |seq| seq.0);
            assert!(seq >= last_seq, "the latest sequence number of a key went back");
            last_seq = seq;
        }
    }

    /// Reads with iterators, forwards and backwards, and with gets, in both families at one
    /// snapshot.
    fn read_snapshots(&self) {
        let mut last = vec![0; WRITERS as usize];
        while self.writing() {
            let before = self.acknowledged();
            let snapshot = self.db.snapshot();
            let options = ReadOptions::new().snapshot(&snapshot);
            let forward = scan(&self.db, &self.families[0], &options, true);
            let mut seen = forward.clone();
            let mut backward = scan(&self.db, &self.families[1], &options, false);
            backward.reverse();
            assert_eq!(forward, backward, "two families as of one snapshot");
            seen.extend(backward);
            for n in 0..KEYS {
                let got = self.db.get_with(&self.families[1], &key(0, n), &options).unwrap();
                seen.extend(got.map(|value| (0, stamp(&value))));
            }
            self.check_picture(&seen, &before, &mut last);
        }
    }

    /// Iterators without a snapshot see one moment, too.
    fn read_iterators(&self, family: &ColumnFamily) {
        let mut last = vec![0; WRITERS as usize];
        while self.writing() {
            let before = self.acknowledged();
            let seen = scan(&self.db, family, &ReadOptions::default(), true);
            self.check_picture(&seen, &before, &mut last);
        }
    }

    /// Creates families, writes one batch to each and to the markers, then ingests a row into the
    /// family and marks that. Drops the previous family.
    fn pair(&self) {
        let mut before: Option<ColumnFamily> = None;
        for n in 1u64.. {
            if !self.writing() {
                return;
            }
            let family = self.db.create_family(&format!("pair{n}"), small_family()).unwrap();
            let mut batch = WriteBatch::new();
            batch.put_cf(self.markers.id(), b"written", &n.to_le_bytes());
            batch.put_cf(family.id(), b"written", &n.to_le_bytes());
            self.db.write(&batch, &WriteOptions::default()).unwrap();
            let path = self.scratch.join("row");
            let mut writer = SstWriter::create(&self.fs, &path, TableOptions::default()).unwrap();
            writer.put(b"ingested", &n.to_le_bytes()).unwrap();
            writer.finish().unwrap();
            self.db.ingest(&family, &[&path], &IngestOptions::default()).unwrap();
            self.fs.remove(&path).unwrap();
            let options = WriteOptions::default();
            self.db.put_with(&self.markers, b"ingested", &n.to_le_bytes(), &options).unwrap();
            if let Some(gone) = before.replace(family) {
                self.db.drop_family(&gone).unwrap();
            }
        }
    }

    /// Checks that a copy has everything that its markers record.
    fn check_pairs(&self, copy: &Db) {
        let get = |family: &ColumnFamily, key: &[u8]| {
            copy.get_with(family, key, &ReadOptions::default()).unwrap().map(|value| value.to_vec())
        };
        let markers = copy.family("markers").unwrap();
        for what in [&b"written"[..], b"ingested"] {
            let Some(marked) = get(&markers, what) else { continue };
            let n = u64::from_le_bytes(marked.as_slice().try_into().unwrap());
            let found = get(&copy.family(&format!("pair{n}")).unwrap(), what);
            assert_eq!(found, Some(marked), "half of pair {n}: {}", what.escape_ascii());
        }
    }

    /// Performs all operations of an operator meanwhile.
    fn operate(&self) {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut rounds = 0;
        while self.writing() {
            rounds += 1;
            let family = &self.families[rng.usize(..2)];
            let count = self.db.buckets(family).unwrap().len();
            let result = match rng.u32(..8) {
                0 => self.db.flush(family),
                1 => self.db.compact_range(family, &KeyRange::all()),
                2 => self.db.split_bucket(family, rng.usize(..count), Some(&key(0, rounds % KEYS))),
                3 => self.db.merge_buckets(family, rng.usize(..count)),
                4 => self.copy(rounds),
                5 => self.ingest(family, rounds),
                6 => self.kill(),
                _ => self.create_and_drop(),
            };
            if let Err(error) = result {
                let kind = error.kind();
                let refused = matches!(kind, ErrorKind::Busy | ErrorKind::InvalidArgument);
                assert!(refused, "{error}");
            }
            assert!(!self.db.stats_text().is_empty());
        }
        assert!(rounds > 0);
    }

    /// Checks a checkpoint, which must be the state of one moment.
    fn copy(&self, round: u64) -> archipelago_base::Result<()> {
        let before = self.acknowledged();
        let dir = self.scratch.join(format!("copy{round}"));
        self.db.checkpoint(&dir)?;
        self.check_copy(Arc::clone(&self.fs), &dir, &before)?;
        self.fs.remove_dir_all(&dir)
    }

    /// Checks the disk after a `kill -9` at any moment.
    fn kill(&self) -> archipelago_base::Result<()> {
        let Some(fs) = &self.memory else { return Ok(()) };
        let before = self.acknowledged();
        let left = Arc::new(fs.kill_clone());
        self.check_copy(left, &self.scratch.join("db"), &before)
    }

    fn check_copy(
        &self,
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        before: &[u64],
    ) -> archipelago_base::Result<()> {
        let copy = Db::open_with(dir, small_db(), Components { fs, ..stepped() })?;
        let mut last = vec![0; WRITERS as usize];
        for name in ["default", "second"] {
            let family = copy.family(name)?;
            let seen = scan(&copy, &family, &ReadOptions::default(), true);
            self.check_picture(&seen, before, &mut last);
        }
        self.check_pairs(&copy);
        assert!(copy.verify(|_, _| {})?.is_clean());
        copy.close()
    }

    /// Ingests deletes of keys that no writer has, across the boundaries of all buckets.
    fn ingest(&self, family: &ColumnFamily, round: u64) -> archipelago_base::Result<()> {
        let path = self.scratch.join(format!("ingest{round}"));
        let mut writer = SstWriter::create(&self.fs, &path, TableOptions::default())?;
        for n in 0..KEYS {
            writer.delete(format!("{n:02}~").as_bytes())?;
        }
        writer.finish()?;
        self.db.ingest(family, &[&path], &IngestOptions { link: round.is_multiple_of(2) })?;
        self.fs.remove(&path)
    }

    fn create_and_drop(&self) -> archipelago_base::Result<()> {
        let family = self.db.create_family("passing", small_family())?;
        self.db.put_with(&family, b"a", b"b", &WriteOptions::default())?;
        self.db.drop_family(&family)
    }
}

/// The writers and stamps of all entries, upwards or downwards.
fn scan(db: &Db, family: &ColumnFamily, options: &ReadOptions, up: bool) -> Vec<(u64, u64)> {
    let mut iter = db.iter(family, options).unwrap();
    let mut seen = Vec::new();
    if up {
        iter.seek_to_first();
    } else {
        iter.seek_to_last();
    }
    while iter.valid() {
        let (_, writer) = std::str::from_utf8(iter.key()).unwrap().split_once('-').unwrap();
        seen.push((writer.parse().unwrap(), stamp(iter.value())));
        if up { iter.next() } else { iter.prev() }
    }
    iter.status().unwrap();
    seen
}

/// Counts the bucket boundaries that the load moved.
#[derive(Default)]
struct Moves {
    by_load: AtomicU64,
}

impl EventListener for Moves {
    fn on_event(&self, event: &Event) {
        if matches!(event, Event::BucketMapChanged { reason, .. } if reason.contains("temperature"))
        {
            self.by_load.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Makes the other threads end when one thread fails.
struct EndAll<'a>(&'a World);

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::Release);
        }
    }
}

fn run(fs: Arc<dyn FileSystem>, memory: Option<TestDisk>, dir: &Path) {
    let family = CfOptions { write_buffer_bytes: 8 << 10, buckets: 4, ..small_family() };
    let options = DbOptions { max_background_jobs: 3, ..small_db() };
    let components = Components {
        fs: Arc::clone(&fs),
        families: [("default".to_owned(), family.clone())].into_iter().collect(),
        ..Components::default()
    };
    let mut components = components;
    let told = Arc::new(Moves::default());
    components.listeners.add(Arc::clone(&told) as _);
    let reopened = Components { fs: Arc::clone(&fs), ..Components::default() };
    let db = Db::open_with(dir.join("db"), options.clone(), components).unwrap();
    let second = db.create_family("second", family).unwrap();
    let markers = db.create_family("markers", small_family()).unwrap();
    let world = World {
        markers,
        families: [db.default_family().clone(), second],
        db,
        fs,
        memory,
        scratch: dir.to_owned(),
        acknowledged: Default::default(),
        writers_left: AtomicU64::new(WRITERS),
        failed: AtomicBool::new(false),
    };
    let world = &world;
    std::thread::scope(|threads| {
        let mut bodies: Vec<Box<dyn FnOnce() + Send>> = vec![
            Box::new(|| world.read_points(&world.families[0])),
            Box::new(|| world.read_snapshots()),
            Box::new(|| world.read_iterators(&world.families[1])),
            Box::new(|| world.operate()),
            Box::new(|| world.pair()),
        ];
        for writer in 0..WRITERS {
            bodies.push(Box::new(move || world.write(writer)));
        }
        for body in bodies {
            threads.spawn(move || {
                let _end = EndAll(world);
                body();
            });
        }
    });
    world.db.wait_for_background().unwrap();
    eprintln!("{}", world.db.stats_text());
    assert!(told.by_load.load(Ordering::Relaxed) > 0);
    let check = |db: &Db| {
        for name in ["default", "second"] {
            let family = db.family(name).unwrap();
            for (writer, n) in (0..WRITERS).flat_map(|w| (0..KEYS).map(move |n| (w, n))) {
                let got = db.get_with(&family, &key(writer, n), &ReadOptions::default()).unwrap();
                assert_eq!(stamp(&got.unwrap()), BATCHES);
            }
        }
        assert!(db.verify(|_, _| {}).unwrap().is_clean());
    };
    check(&world.db);
    world.db.clone().close().unwrap();
    let db = Db::open_with(dir.join("db"), options, reopened).unwrap();
    check(&db);
}

#[test]
fn readers_see_whole_batches_whatever_goes_on_in_memory() {
    let fs = TestDisk::new();
    run(Arc::new(fs.clone()), Some(fs), Path::new("/w"));
}

#[test]
fn readers_see_whole_batches_whatever_goes_on_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    run(Arc::new(LocalFs::new()), None, dir.path());
}

#[test]
fn synced_writes_of_many_threads_survive_kill_and_power_loss() {
    const THREADS: u64 = 8;
    const WRITES: u64 = 150;
    let fs = TestDisk::new();
    let components = in_threads(over(&fs, small_family()));
    let db = Db::open_with("/db", small_db(), components).unwrap();
    std::thread::scope(|threads| {
        for thread in 0..THREADS {
            let db = &db;
            threads.spawn(move || {
                for n in 0..WRITES {
                    let key = format!("{thread}-{n:04}");
                    let cf = db.default_family();
                    db.put_with(cf, key.as_bytes(), &value(n), &WriteOptions::synced()).unwrap();
                }
            });
        }
    });
    assert_eq!(db.statistics().get(Ticker::Writes), THREADS * WRITES);
    assert!(db.statistics().get(Ticker::WritesGrouped) < THREADS * WRITES);
    for left in [fs.kill_clone(), fs.crash_clone(1), fs.crash_clone(2)] {
        let db = Db::open_with("/db", small_db(), over(&left, small_family()));
        let db = db.unwrap();
        for (thread, n) in (0..THREADS).flat_map(|t| (0..WRITES).map(move |n| (t, n))) {
            let got = db.get(format!("{thread}-{n:04}").as_bytes()).unwrap();
            assert_eq!(stamp(&got.unwrap()), n);
        }
    }
}

/// A database whose flushes wait before their install.
struct HeldFlushes {
    db: Db,
    /// Receives a message when a flush has reached its install.
    begun: Receiver<()>,
    /// Its drop lets all flushes go on.
    go_on: Sender<()>,
}

impl HeldFlushes {
    fn open(fs: &TestDisk) -> Self {
        let (begin, begun) = channel();
        let (go_on, end) = channel();
        let end: Mutex<Receiver<()>> = Mutex::new(end);
        let fault_point: FaultPoint = Arc::new(move |name| {
            if name == "flush.before_install" {
                // An error: no thread waits for the message any more.
                let _ = begin.send(());
                let _ = end.lock().recv();
            }
            Ok(())
        });
        let components = Components { fault_point: Some(fault_point), ..over(fs, small_family()) };
        let db = Db::open_with("/db", small_db(), in_threads(components)).unwrap();
        Self { db, begun, go_on }
    }
}

#[test]
fn close_keeps_every_acknowledged_write_without_the_log() {
    let fs = TestDisk::new();
    let HeldFlushes { db, begun, go_on } = HeldFlushes::open(&fs);
    let put = |db: &Db, n: u64| {
        let options = WriteOptions { wal: false, ..WriteOptions::default() };
        db.put_with(db.default_family(), &key(0, n), &value(n), &options)
    };
    put(&db, 0).unwrap();
    let other = db.clone();
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            // The flush of the close waits until this thread ends.
            let _go_on = go_on;
            let mut written = vec![0];
            for n in 1..100 {
                if n == 20 {
                    begun.recv().unwrap();
                }
                if let Err(error) = put(&other, n) {
                    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
                    break;
                }
                written.push(n);
            }
            written
        });
        db.close().unwrap();
        writer.join().unwrap()
    });
    let db = Db::open_with("/db", small_db(), over(&fs, small_family())).unwrap();
    for n in &written {
        let got = db.get(&key(0, *n)).unwrap();
        let got = got.unwrap_or_else(|| panic!("key {n} of {} is lost", written.len()));
        assert_eq!(stamp(&got), *n);
    }
}

#[test]
fn second_close_waits_for_the_end_of_the_first() {
    let fs = TestDisk::new();
    let HeldFlushes { db, begun, go_on } = HeldFlushes::open(&fs);
    db.put(b"a", &value(1)).unwrap();
    db.start_flush(db.default_family()).unwrap();
    begun.recv().unwrap();
    let (first, second) = (db.clone(), db.clone());
    std::thread::scope(|scope| {
        let first = scope.spawn(move || first.close());
        // The first close refuses calls, and then waits for the flush.
        while db.get(b"a").is_ok() {
            std::thread::yield_now();
        }
        let second = scope.spawn(move || second.close());
        SystemClock::new().sleep(Duration::from_millis(20));
        let is_early = second.is_finished();
        drop(go_on);
        second.join().unwrap().unwrap();
        // The directory is free when the second close returns.
        let next = Db::open_with("/db", small_db(), over(&fs, small_family())).unwrap();
        assert_eq!(stamp(&next.get(b"a").unwrap().unwrap()), 1);
        first.join().unwrap().unwrap();
        assert!(!is_early, "the flush has not ended");
    });
}
