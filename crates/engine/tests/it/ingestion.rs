//! Ingestion in parallel with other work, and the files that it refuses.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};

use archipelago_base::{ErrorKind, Result};
use archipelago_engine::compaction::job::CompactionSpec;
use archipelago_engine::db::{
    CompactRangeOptions, Components, Db, IngestOptions, LastLevel, ReadOptions,
};
use archipelago_engine::executor::{JobExecutor, LocalExecutor};
use archipelago_engine::flush::FlushSpec;
use archipelago_engine::gc::job::GcSpec;
use archipelago_engine::job::{JobContext, JobOutput};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::sst::{SstWriter, TableOptions};
use archipelago_engine::stats::Ticker;
use archipelago_env::FileSystem;
use parking_lot::Mutex;

use crate::beside::Beside;
use crate::disk::TestDisk;
use crate::support::{in_threads, over, small_db, small_family};

fn one_bucket() -> CfOptions {
    CfOptions { buckets: 1, l0_compaction_trigger: 4, ..small_family() }
}

/// A table at `/NAME` of one value for each key.
fn table(fs: &TestDisk, name: &str, keys: &[&str]) -> PathBuf {
    let path = Path::new("/").join(name);
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let mut writer = SstWriter::create(&fs, &path, TableOptions::default()).unwrap();
    keys.iter().for_each(|key| writer.put(key.as_bytes(), b"ingested").unwrap());
    writer.finish().unwrap();
    path
}

fn put_and_flush(db: &Db, key: &str) {
    db.put(key.as_bytes(), b"put").unwrap();
    db.flush(db.default_family()).unwrap();
}

fn health(db: &Db) -> String {
    db.property(db.default_family(), "archipelago.health").unwrap()
}

fn check_round(db: &Db, round: u32) {
    for (key, value) in [("a", "put"), ("m", "ingested"), ("z", "put")] {
        let got = db.get(format!("{round:04}{key}").as_bytes()).unwrap();
        assert_eq!(got.as_deref(), Some(value.as_bytes()), "round {round}, {key}");
    }
}

#[test]
fn no_compaction_is_picked_across_an_ingestion() {
    let (fs, beside) = (TestDisk::new(), Arc::new(Beside::default()));
    let components =
        Components { fault_point: Some(beside.fault_point()), ..over(&fs, one_bucket()) };
    let db = Db::open_with("/db", small_db(), components).unwrap();
    for round in 0..6 {
        // Four files of L0. Their common range has the key in the middle, but none of the files has
        // it.
        for key in ["a", "a", "z", "z"] {
            put_and_flush(&db, &format!("{round:04}{key}"));
        }
        let path = table(&fs, "table", &[&format!("{round:04}m")]);
        let options = IngestOptions::default();
        let (ingested, stepped) = beside.ingest(&db, db.default_family(), &[path], &options, 1);
        ingested.unwrap();
        stepped.unwrap();
        db.wait_for_background().unwrap();
        assert_eq!(health(&db), "healthy");
        check_round(&db, round);
    }
    assert!(db.statistics().get(Ticker::Compactions) > 0);
    assert_eq!(db.statistics().get(Ticker::EditsRefused), 0);
    assert!(db.verify(|_, _| {}).unwrap().is_clean());
    db.close().unwrap();
}

#[test]
fn ingestion_during_a_compaction_goes_to_l0() {
    let (fs, shared) = (TestDisk::new(), Arc::new(OnceLock::<Db>::new()));
    let (disk, of) = (fs.clone(), Arc::clone(&shared));
    let fault_point: archipelago_engine::db::FaultPoint = Arc::new(move |name| {
        if name == "compaction.before_install" {
            let db = of.get().expect("open");
            let path = table(&disk, "table", &["0000m"]);
            db.ingest(db.default_family(), &[path], &IngestOptions::default())?;
            assert_eq!(db.report(db.default_family())?.levels[0].files, 5);
        }
        Ok(())
    });
    let components = Components { fault_point: Some(fault_point), ..over(&fs, one_bucket()) };
    let db = shared.get_or_init(|| Db::open_with("/db", small_db(), components).unwrap());
    for key in ["0000a", "0000a", "0000z", "0000z"] {
        put_and_flush(db, key);
    }
    db.wait_for_background().unwrap();
    check_round(db, 0);
    assert_eq!(health(db), "healthy");
    assert!(db.verify(|_, _| {}).unwrap().is_clean());
}

#[test]
fn file_across_buckets_is_cut_while_its_range_is_compacted() {
    let (fs, shared) = (TestDisk::new(), Arc::new(OnceLock::<Db>::new()));
    let (disk, of) = (fs.clone(), Arc::clone(&shared));
    let has_ingested = AtomicBool::new(false);
    let fault_point: archipelago_engine::db::FaultPoint = Arc::new(move |name| {
        if name == "compaction.before_install" && !has_ingested.swap(true, Ordering::SeqCst) {
            let db = of.get().expect("open");
            // The inputs of the compaction lie on both sides of the file, and no table overlaps it.
            let path = table(&disk, "across", &["0000f", "0000p"]);
            db.ingest(db.default_family(), &[path], &IngestOptions::default())?;
            assert_eq!(db.report(db.default_family())?.levels[0].files, 2);
        }
        Ok(())
    });
    let family = CfOptions { buckets_dynamic: false, ..one_bucket() };
    let components = Components { fault_point: Some(fault_point), ..over(&fs, family) };
    let db = shared.get_or_init(|| Db::open_with("/db", small_db(), components).unwrap());
    let cf = db.default_family();
    db.split_bucket(cf, 0, Some(b"0000m")).unwrap();
    for key in ["0000a", "0000z"] {
        db.ingest(cf, &[table(&fs, key, &[key])], &IngestOptions::default()).unwrap();
    }
    let last = db.report(cf).unwrap().levels.last().map(|level| level.files);
    assert_eq!(last, Some(2), "each table lies alone in the last level");
    let options = CompactRangeOptions { last_level: LastLevel::Always, ..Default::default() };
    db.compact_range_with(cf, &KeyRange::all(), &options).unwrap();
    let compactions = db.statistics().get(Ticker::Compactions);
    assert_eq!(compactions, 1, "one compaction has taken both tables");
    for key in ["0000a", "0000f", "0000p", "0000z"] {
        let got = db.get(key.as_bytes()).unwrap();
        assert_eq!(got.as_deref(), Some(&b"ingested"[..]), "{key}");
    }
    assert_eq!(health(db), "healthy");
    assert!(db.verify(|_, _| {}).unwrap().is_clean());
}

/// A file system that holds its first link until a test lets it go on.
#[derive(Debug)]
struct HeldLink {
    inner: TestDisk,
    ends: Mutex<Option<LinkEnds>>,
}

/// The ends of the channels at a held link.
#[derive(Debug)]
struct LinkEnds {
    /// Reports that the link has begun.
    begin: Sender<()>,
    /// Closed when the link may go on.
    go_on: Receiver<()>,
}

impl FileSystem for HeldLink {
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let ends = self.ends.lock().take();
        if let Some(LinkEnds { begin, go_on }) = ends {
            begin.send(()).unwrap();
            let _ = go_on.recv();
        }
        self.inner.link(from, to)
    }

    archipelago_env::forward_fs!(
        inner: create, open, create_log, remove, logs, looks, dirs, host, figures
    );
}

#[test]
fn ingestion_that_a_close_overtakes_is_refused() {
    let fs = TestDisk::new();
    let (begin, begun) = channel();
    let (let_go, go_on) = channel();
    let held = HeldLink { inner: fs.clone(), ends: Mutex::new(Some(LinkEnds { begin, go_on })) };
    let components = Components { fs: Arc::new(held), ..over(&fs, one_bucket()) };
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let files = [table(&fs, "table", &["m"])];
    let options = IngestOptions { link: true };
    let (ingested, next) = std::thread::scope(|scope| {
        let ingesting = scope.spawn(|| db.ingest(db.default_family(), &files, &options));
        // The ingestion has found the database open.
        begun.recv().unwrap();
        db.clone().close().unwrap();
        let next = Db::open_with("/db", small_db(), over(&fs, one_bucket())).unwrap();
        drop(let_go);
        (ingesting.join().unwrap(), next)
    });
    assert_eq!(ingested.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(next.get(b"m").unwrap(), None);
    next.ingest(next.default_family(), &files, &options).unwrap();
    assert_eq!(next.get(b"m").unwrap().as_deref(), Some(&b"ingested"[..]));
    assert!(next.verify(|_, _| {}).unwrap().is_clean());
    next.close().unwrap();
}

/// Likewise with threads, as in a user's program.
#[test]
fn ingestions_and_compactions_of_one_range_both_succeed() {
    let fs = TestDisk::new();
    let options = DbOptions { max_background_jobs: 4, ..small_db() };
    let db = Db::open_with("/db", options, in_threads(over(&fs, one_bucket()))).unwrap();
    for round in 0..150 {
        let key = |name: &str| format!("{round:04}{name}");
        std::thread::scope(|scope| {
            scope.spawn(|| ["a", "a", "z", "z"].iter().for_each(|k| put_and_flush(&db, &key(k))));
            for path in ["m", "n"].map(|name| table(&fs, &key(name), &[&key(name)])) {
                let (db, options) = (&db, IngestOptions { link: round % 2 == 0 });
                scope.spawn(move || db.ingest(db.default_family(), &[path], &options).unwrap());
            }
        });
        check_round(&db, round);
    }
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    db.wait_for_background().unwrap();
    assert_eq!(health(&db), "healthy");
    (0..150).for_each(|round| check_round(&db, round));
    assert!(db.verify(|_, _| {}).unwrap().is_clean());
    db.close().unwrap();
}

/// Swaps the sequence numbers of an output after a test enables it: no version accepts such a file.
struct Swapping(AtomicBool);

impl Swapping {
    fn swap(&self, mut output: JobOutput) -> JobOutput {
        for file in &mut output.files {
            if self.0.swap(false, Ordering::SeqCst) {
                (file.smallest_seq, file.largest_seq) = (file.largest_seq + 1, file.smallest_seq);
            }
        }
        output
    }
}

impl JobExecutor for Swapping {
    fn flush(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.flush(spec, context).map(|output| self.swap(output))
    }

    fn compact(&self, spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.compact(spec, context).map(|output| self.swap(output))
    }

    fn gc(&self, spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.gc(spec, context)
    }

    /// Always true, so that no caller compares the output with its file.
    fn runs_here(&self) -> bool {
        true
    }
}

#[test]
fn edit_that_does_not_fit_fails_the_job_alone() {
    let (fs, executor) = (TestDisk::new(), Arc::new(Swapping(AtomicBool::new(false))));
    let components = Components { executor: Arc::clone(&executor) as _, ..over(&fs, one_bucket()) };
    let db = Db::open_with("/db", small_db(), components).unwrap();
    for (refused, key) in (1..).zip(["a", "b"]) {
        let step = || match key {
            "a" => db.flush(db.default_family()),
            _ => db.wait_for_background(),
        };
        if key == "b" {
            ["b", "b", "b"].iter().for_each(|key| put_and_flush(&db, key));
        }
        db.put(key.as_bytes(), b"put").unwrap();
        executor.0.store(true, Ordering::SeqCst);
        let error = step().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
        assert!(error.to_string().contains("bounds are swapped"), "{error}");
        assert!(health(&db).starts_with("failing") && health(&db).contains("bounds are swapped"));
        assert_eq!(db.statistics().get(Ticker::EditsRefused), refused);
        db.put(b"later", b"writes go on").unwrap();
        step().unwrap();
        assert_eq!(health(&db), "healthy");
        assert_eq!(db.get(key.as_bytes()).unwrap().as_deref(), Some(&b"put"[..]));
    }
    db.wait_for_background().unwrap();
    let report = db.verify(|_, _| {}).unwrap();
    let tables = fs.list(Path::new("/db")).unwrap();
    let tables = tables.iter().filter(|entry| entry.name.ends_with(".sst")).count();
    assert_eq!(tables as u64, report.files, "outputs that were refused are left");
}

/// Checks that a refused file changes nothing and that the error says why.
fn refused(db: &Db, fs: &TestDisk, family: &str, path: &Path, why: &[&str]) {
    let before = fs.list(Path::new("/db")).unwrap().len();
    let cf = db.family(family).unwrap();
    for link in [false, true] {
        let error = db.ingest(&cf, &[path], &IngestOptions { link }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()), "{text}");
        why.iter().for_each(|part| assert!(text.contains(part), "{part:?} is not in: {text}"));
    }
    assert_eq!(fs.list(Path::new("/db")).unwrap().len(), before, "files are left");
    let mut iter = db.iter(&cf, &ReadOptions::default()).unwrap();
    iter.seek_to_first();
    assert!(!iter.valid(), "something was ingested");
}

#[test]
fn ingest_refuses_tables_of_a_live_database() {
    let fs = TestDisk::new();
    let db = Db::open_with("/db", small_db(), over(&fs, one_bucket())).unwrap();
    db.create_family("other", one_bucket()).unwrap();
    put_and_flush(&db, "a");
    let other = Db::open_with("/other", small_db(), over(&fs, one_bucket())).unwrap();
    put_and_flush(&other, "a");
    for dir in ["/db", "/other"] {
        let entries = fs.list(Path::new(dir)).unwrap();
        let mut tables = entries.iter().filter(|entry| entry.name.ends_with(".sst"));
        let path = Path::new(dir).join(&tables.next_back().unwrap().name);
        refused(&db, &fs, "other", &path, &["not made by an SstWriter", "\"default\"", "1 to 1"]);
    }
    put_and_flush(&db, "b");
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"put"[..]));
}

#[test]
fn ingest_refuses_operands_without_a_merge_operator() {
    let fs = TestDisk::new();
    let db = Db::open_with("/db", small_db(), over(&fs, one_bucket())).unwrap();
    db.create_family("plain", one_bucket()).unwrap();
    let texts = CfOptions { merge_operator: Some("append".to_owned()), ..one_bucket() };
    let texts = db.create_family("texts", texts).unwrap();
    let dynamic: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let path = Path::new("/operands");
    let mut writer = SstWriter::create(&dynamic, path, TableOptions::default()).unwrap();
    writer.put(b"a", b"value").unwrap();
    writer.merge(b"b", b"+1").unwrap();
    writer.finish().unwrap();
    refused(&db, &fs, "plain", path, &["1 merge operands", "\"plain\"", "no merge operator"]);
    db.ingest(&texts, &[path], &IngestOptions::default()).unwrap();
    db.merge(&texts, b"b", b"+2", &WriteOptions::default()).unwrap();
    let got = db.get_with(&texts, b"b", &ReadOptions::default()).unwrap();
    assert_eq!(got.as_deref(), Some(&b"+1+2"[..]));
}

#[test]
fn ingest_refuses_a_table_made_for_another_family() {
    let fs = TestDisk::new();
    let db = Db::open_with("/db", small_db(), over(&fs, one_bucket())).unwrap();
    let dynamic: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let path = Path::new("/named");
    let options = TableOptions { cf_name: "fruit".to_owned(), ..TableOptions::default() };
    let mut writer = SstWriter::create(&dynamic, path, options).unwrap();
    writer.put(b"a", b"value").unwrap();
    writer.finish().unwrap();
    refused(&db, &fs, "default", path, &["made for column family \"fruit\"", "\"default\""]);
    let fruit = db.create_family("fruit", one_bucket()).unwrap();
    db.ingest(&fruit, &[path], &IngestOptions::default()).unwrap();
}
