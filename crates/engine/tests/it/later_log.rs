//! A log that acknowledges appends later, as a log on storage nodes does: writers submit under the
//! commit lock and wait outside of it, and a record that the log loses is never applied.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::db::{Components, Db, IngestOptions};
use archipelago_engine::sst::{SstWriter, TableOptions};
use archipelago_env::{FileSystem, IoContext, LogFile, LogOptions, LogSync};
use parking_lot::{Condvar, Mutex};

use crate::disk::TestDisk;
use crate::support::{in_threads, open as open_plain, over, small_db, small_family};

/// How the network treats records.
#[derive(Default)]
struct Weather {
    /// Whether acknowledgements are held back.
    is_held: bool,
    /// Records that are still acknowledged before every later one of the segment is lost. The
    /// segment after it loses nothing.
    acknowledges: Option<u64>,
    /// Whether the next submission fails although the log has the record.
    loses_answer: bool,
    /// Whether no segment can be started.
    refuses_segments: bool,
    /// Records that were submitted and not acknowledged.
    waiting: u64,
}

#[derive(Default)]
struct Network {
    weather: Mutex<Weather>,
    changed: Condvar,
}

/// A file system whose logs acknowledge later.
#[derive(Clone)]
struct LaterFs {
    inner: TestDisk,
    network: Arc<Network>,
}

impl std::fmt::Debug for LaterFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaterFs").finish_non_exhaustive()
    }
}

impl LaterFs {
    fn new() -> Self {
        Self { inner: TestDisk::new(), network: Arc::default() }
    }

    fn set(&self, change: impl FnOnce(&mut Weather)) {
        change(&mut self.network.weather.lock());
        self.network.changed.notify_all();
    }

    /// Waits until `count` records were submitted and not acknowledged.
    fn wait_for_submitted(&self, count: u64) {
        let mut weather = self.network.weather.lock();
        while weather.waiting < count {
            self.network.changed.wait(&mut weather);
        }
    }
}

impl FileSystem for LaterFs {
    fn create_log(
        &self,
        path: &Path,
        context: IoContext,
        options: LogOptions,
    ) -> Result<Box<dyn LogFile>> {
        if self.network.weather.lock().refuses_segments {
            return Err(lost());
        }
        let inner = self.inner.create_log(path, context, options)?;
        let sync = inner.sync_handle();
        let queue = Queue { inner, groups: Vec::new(), len: 0, acknowledged: 0, error: None };
        let segment =
            LaterSegment { queue: Mutex::new(queue), sync, network: Arc::clone(&self.network) };
        Ok(Box::new(LaterLog(Arc::new(segment))))
    }

    archipelago_env::forward_fs!(inner: create, open, remove, moves, logs, looks, dirs, host, figures);
}

fn lost() -> Error {
    Error::new(ErrorKind::Io, "the network lost the record")
}

/// Records that were submitted together.
#[derive(Debug)]
struct Group {
    bytes: Vec<u8>,
    records: u64,
}

/// Records of a segment in transit.
#[derive(Debug)]
struct Queue {
    inner: Box<dyn LogFile>,
    groups: Vec<Group>,
    len: u64,
    acknowledged: u64,
    error: Option<Error>,
}

struct LaterSegment {
    queue: Mutex<Queue>,
    sync: Arc<dyn LogSync>,
    network: Arc<Network>,
}

impl std::fmt::Debug for LaterSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaterSegment").finish_non_exhaustive()
    }
}

impl LaterSegment {
    /// Acknowledges the records that the weather lets through. Lost records reach the file as well,
    /// because one node of a network may hold them.
    fn advance(&self, weather: &mut Weather) {
        let mut queue = self.queue.lock();
        for group in std::mem::take(&mut queue.groups) {
            weather.waiting -= group.records;
            queue.inner.append(&[&group.bytes]).unwrap();
            if queue.error.is_none()
                && weather.acknowledges.is_some_and(|left| left < group.records)
            {
                queue.error = Some(lost());
                weather.acknowledges = None;
            }
            if queue.error.is_none() {
                queue.acknowledged += group.bytes.len() as u64;
                weather.acknowledges = weather.acknowledges.map(|left| left - group.records);
            }
        }
    }
}

impl LogSync for LaterSegment {
    fn sync(&self) -> Result<u64> {
        let end = self.queue.lock().len;
        self.wait(end)?;
        self.sync.sync()
    }

    fn write_through(&self) -> Result<u64> {
        self.sync()
    }

    fn wait(&self, end: u64) -> Result<()> {
        let mut weather = self.network.weather.lock();
        loop {
            if !weather.is_held {
                self.advance(&mut weather);
            }
            {
                let queue = self.queue.lock();
                if queue.acknowledged >= end {
                    return Ok(());
                }
                if let Some(error) = &queue.error {
                    return Err(error.clone());
                }
            }
            self.network.changed.wait_for(&mut weather, Duration::from_millis(50));
        }
    }

    fn acknowledged(&self) -> u64 {
        self.queue.lock().acknowledged
    }
}

#[derive(Debug)]
struct LaterLog(Arc<LaterSegment>);

impl LogFile for LaterLog {
    fn append(&mut self, parts: &[&[u8]]) -> Result<u64> {
        let start = self.submit(parts)?;
        let end = self.len();
        self.0.wait(end).map(|()| start)
    }

    fn submit(&mut self, parts: &[&[u8]]) -> Result<u64> {
        let mut weather = self.0.network.weather.lock();
        let mut queue = self.0.queue.lock();
        if let Some(error) = &queue.error {
            return Err(error.clone());
        }
        let start = queue.len;
        // A record has a header and a payload, and the header of the segment stands alone.
        let group = Group { bytes: parts.concat(), records: (parts.len() as u64).div_ceil(2) };
        queue.len += group.bytes.len() as u64;
        if std::mem::take(&mut weather.loses_answer) {
            queue.inner.append(&[&group.bytes]).unwrap();
            queue.error = Some(lost());
            return Err(lost());
        }
        weather.waiting += group.records;
        queue.groups.push(group);
        self.0.network.changed.notify_all();
        Ok(start)
    }

    fn acknowledges_later(&self) -> bool {
        true
    }

    fn len(&self) -> u64 {
        self.0.queue.lock().len
    }

    fn sync_handle(&self) -> Arc<dyn LogSync> {
        Arc::clone(&self.0) as Arc<dyn LogSync>
    }

    fn finish(&mut self) -> Result<()> {
        let end = self.len();
        let acknowledged = self.0.wait(end);
        self.0.queue.lock().inner.finish()?;
        acknowledged
    }

    fn append_trailer(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.queue.lock().inner.append_trailer(bytes)
    }

    fn unwritten_bytes(&self) -> u64 {
        0
    }
}

fn open(fs: &LaterFs) -> Db {
    let components =
        in_threads(Components { fs: Arc::new(fs.clone()), ..over(&fs.inner, small_family()) });
    Db::open_with("/db", small_db(), components).unwrap()
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:04}").into_bytes()
}

/// Writes `count` keys, one per thread, while acknowledgements are held, then calls `release`.
/// Returns the outcome of each write.
fn write_together(
    fs: &LaterFs,
    db: &Db,
    count: u64,
    release: impl FnOnce(&mut Weather),
) -> Vec<Result<()>> {
    fs.set(|weather| weather.is_held = true);
    std::thread::scope(|scope| {
        let write = |number| scope.spawn(move || db.put(&key(number), b"value"));
        let writers: Vec<_> = (0..count).map(write).collect();
        fs.wait_for_submitted(count);
        let is_hidden = |number| db.get(&key(number)).unwrap().is_none();
        assert!((0..count).all(is_hidden), "a record is visible before it is acknowledged");
        fs.set(|weather| {
            weather.is_held = false;
            release(weather);
        });
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    })
}

/// The keys of `write_together` that a database over the files of a killed process has.
fn after_kill(fs: &LaterFs, count: u64) -> Vec<bool> {
    let db = open_plain(&fs.inner.kill_clone());
    (0..count).map(|number| db.get(&key(number)).unwrap().is_some()).collect()
}

/// Writes a table with one record, to be ingested.
fn table_at(fs: &LaterFs, path: &Path) {
    let disk: Arc<dyn FileSystem> = Arc::new(fs.inner.clone());
    let mut writer = SstWriter::create(&disk, path, TableOptions::default()).unwrap();
    writer.put(b"ingested", b"1").unwrap();
    writer.finish().unwrap();
}

#[test]
fn writers_submit_while_others_wait_for_the_log() {
    let fs = LaterFs::new();
    let db = open(&fs);
    let outcomes = write_together(&fs, &db, 8, |_| {});
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert!((0..8).all(|number| db.get(&key(number)).unwrap().is_some()));
    assert_eq!(after_kill(&fs, 8), [true; 8]);
}

#[test]
fn lost_records_are_applied_neither_now_nor_after_a_kill() {
    for acknowledges in 0..8 {
        let fs = LaterFs::new();
        let db = open(&fs);
        let outcomes = write_together(&fs, &db, 8, |weather| {
            weather.acknowledges = Some(acknowledges);
        });
        let is_acknowledged: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
        assert!(is_acknowledged.iter().any(|ok| !ok), "{acknowledges}: no record was lost");
        for outcome in &outcomes {
            let Err(error) = outcome else { continue };
            assert_eq!(error.kind(), ErrorKind::Io);
        }
        let is_visible: Vec<bool> =
            (0..8).map(|number| db.get(&key(number)).unwrap().is_some()).collect();
        assert_eq!(is_visible, is_acknowledged, "{acknowledges}");
        assert_eq!(after_kill(&fs, 8), is_acknowledged, "{acknowledges}, after a kill");
        db.put(b"later", b"value").unwrap();
        assert_eq!(after_kill(&fs, 8), is_acknowledged, "{acknowledges}, after a later write");
        assert!(open_plain(&fs.inner.kill_clone()).get(b"later").unwrap().is_some());
    }
}

#[test]
fn lost_header_makes_the_database_read_only() {
    let fs = LaterFs::new();
    let db = open(&fs);
    let outcomes = write_together(&fs, &db, 3, |weather| {
        weather.acknowledges = Some(1);
        weather.refuses_segments = true;
    });
    let errors: Vec<String> = outcomes
        .iter()
        .filter_map(|outcome| outcome.as_ref().err())
        .map(Error::to_string)
        .collect();
    assert!(errors.iter().any(|text| text.contains("opened again")), "{errors:?}");
    fs.set(|weather| weather.refuses_segments = false);
    assert_eq!(db.put(b"later", b"value").unwrap_err().kind(), ErrorKind::ReadOnly);
    let visible = (0..3).filter(|number| db.get(&key(*number)).unwrap().is_some()).count();
    assert_eq!(visible, outcomes.iter().filter(|outcome| outcome.is_ok()).count());
}

#[test]
fn record_whose_submission_failed_is_not_applied_after_a_kill() {
    let fs = LaterFs::new();
    let db = open(&fs);
    db.put(&key(0), b"value").unwrap();
    fs.set(|weather| weather.loses_answer = true);
    assert_eq!(db.put(&key(1), b"value").unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(after_kill(&fs, 2), [true, false]);
    db.put(&key(2), b"value").unwrap();
    assert_eq!(after_kill(&fs, 3), [true, false, true]);
}

#[test]
fn ingestion_passes_over_lost_records() {
    let fs = LaterFs::new();
    let db = open(&fs);
    let table = Path::new("/table");
    table_at(&fs, table);
    let ingest = || db.ingest(db.default_family(), &[table], &IngestOptions::default());
    fs.set(|weather| weather.is_held = true);
    std::thread::scope(|scope| {
        let lost = scope.spawn(|| db.put(b"lost", b"value"));
        fs.wait_for_submitted(1);
        // The ingestion holds the commit lock and waits for the write before it.
        let ingested =
            scope.spawn(|| db.ingest(db.default_family(), &[table], &IngestOptions::default()));
        SystemClock::new().sleep(Duration::from_millis(20));
        fs.set(|weather| (weather.is_held, weather.acknowledges) = (false, Some(0)));
        assert_eq!(lost.join().unwrap().unwrap_err().kind(), ErrorKind::Io);
        // It may meet the lossy segment when it syncs the log. Then it changes nothing.
        if let Err(error) = ingested.join().unwrap() {
            assert_eq!(error.kind(), ErrorKind::Io);
            ingest().unwrap();
        }
    });
    assert_eq!(db.get(b"lost").unwrap(), None);
    assert!(db.get(b"ingested").unwrap().is_some());
}

#[test]
fn write_behind_a_close_is_logged_or_refused() {
    for round in 0..5 {
        let fs = LaterFs::new();
        let (db, path) = (open(&fs), Path::new("/table"));
        table_at(&fs, path);
        let (first, second, ingesting) = (db.clone(), db.clone(), db.clone());
        let pause = || SystemClock::new().sleep(Duration::from_millis(5));
        fs.set(|weather| weather.is_held = true);
        let is_done = std::thread::scope(|scope| {
            let waiting = scope.spawn(move || first.put(&key(0), b"value"));
            fs.wait_for_submitted(1);
            // The ingestion holds the commit lock until the first write is visible.
            let ingestion = scope.spawn(move || {
                let options = IngestOptions::default();
                ingesting.ingest(ingesting.default_family(), &[path], &options)
            });
            pause();
            // The second write has found the database open, and waits for the commit lock.
            let late = scope.spawn(move || second.put(&key(1), b"value"));
            pause();
            let closing = scope.spawn(move || db.close());
            pause();
            fs.set(|weather| weather.is_held = false);
            waiting.join().unwrap().unwrap();
            let _ends_with_the_database = ingestion.join().unwrap();
            closing.join().unwrap().unwrap();
            late.join().unwrap().is_ok()
        });
        let has = after_kill(&fs, 2);
        assert!(has[0] && (has[1] || !is_done), "round {round}: {has:?}, {is_done}");
    }
}
