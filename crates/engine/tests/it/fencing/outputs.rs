//! Outputs that differ from their executor's metadata are refused before the install. A compaction
//! whose outputs were refused runs in the process of the database.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, Ordering};

use archipelago_engine::event::{Event, EventListener};
use archipelago_engine::executor::JobKind;
use archipelago_env::{CreateOptions, FileClass, IoContext, IoPurpose};

use super::*;

/// Kind of difference between an output and its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forgery {
    None,
    MissingFile,
    ShorterFile,
    OtherFile,
    OtherId,
    OtherKeys,
    OtherCount,
    FewerRecords,
}

const FORGERIES: [(Forgery, &str); 7] = [
    (Forgery::MissingFile, "cannot open"),
    (Forgery::ShorterFile, "corrupt"),
    (Forgery::OtherFile, "corrupt"),
    (Forgery::OtherId, "unique id is not the one"),
    (Forgery::OtherKeys, "not the one that its metadata describes"),
    (Forgery::OtherCount, "records came out"),
    (Forgery::FewerRecords, "records"),
];

/// Runs jobs here, and changes their outputs.
struct Forging {
    fs: TestDisk,
    /// Position in [`FORGERIES`], after 0 for none.
    forgery: AtomicU8,
    /// Bytes of the last table of an earlier job.
    other: Mutex<Vec<u8>>,
    /// Numbers of the tables in changed outputs of compactions.
    changed: Mutex<Vec<u64>>,
    /// Jobs that the database ran itself, because it refused their outputs.
    refused: AtomicU32,
}

impl Forging {
    fn new(fs: &TestDisk) -> Self {
        Self {
            fs: fs.clone(),
            forgery: AtomicU8::new(0),
            other: Mutex::default(),
            changed: Mutex::default(),
            refused: AtomicU32::new(0),
        }
    }

    /// Sets the position in [`FORGERIES`], after 0 for none.
    fn set_forgery(&self, at: u32) {
        self.forgery.store(at as u8, Ordering::Relaxed);
    }

    fn forgery(&self) -> Forgery {
        match self.forgery.load(Ordering::Relaxed) {
            0 => Forgery::None,
            at => FORGERIES[usize::from(at) - 1].0,
        }
    }

    fn write(&self, no: u64, bytes: &[u8]) {
        let path = Path::new("/db").join(format!("{no:06}.sst"));
        let io = IoContext::new(FileClass::Sst, IoPurpose::Maintenance);
        let mut file = self.fs.create(&path, io, CreateOptions::default()).unwrap();
        file.append(bytes).unwrap();
        file.sync().unwrap();
    }

    fn read(&self, no: u64) -> Vec<u8> {
        let io = IoContext::new(FileClass::Sst, IoPurpose::Maintenance);
        self.fs.read(&Path::new("/db").join(format!("{no:06}.sst")), io).unwrap()
    }

    fn forged(&self, mut output: JobOutput) -> JobOutput {
        let Some(last) = output.files.last_mut() else { return output };
        match self.forgery() {
            Forgery::None => *self.other.lock() = self.read(last.no),
            Forgery::FewerRecords => {}
            Forgery::MissingFile => {
                self.fs.remove(&Path::new("/db").join(format!("{:06}.sst", last.no))).unwrap();
            }
            Forgery::ShorterFile => {
                let bytes = self.read(last.no);
                self.write(last.no, &bytes[..bytes.len() - 9]);
            }
            Forgery::OtherFile => {
                // A whole table, as an execution of another job would have written it.
                let other = self.other.lock().clone();
                self.write(last.no, &other);
            }
            Forgery::OtherId => last.unique_id[3] ^= 1,
            Forgery::OtherKeys => last.largest.push(b'x'),
            Forgery::OtherCount => last.entries += 1,
        }
        output
    }
}

impl JobExecutor for Forging {
    fn flush(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        let spec = match self.forgery() {
            // The executor lost a shard.
            Forgery::FewerRecords => FlushSpec { shards: Vec::new(), ..spec.clone() },
            _ => spec.clone(),
        };
        LocalExecutor.flush(&spec, context).map(|output| self.forged(output))
    }

    fn compact(&self, spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        let output = self.forged(LocalExecutor.compact(spec, context)?);
        if self.forgery() != Forgery::None {
            self.changed.lock().extend(output.files.iter().map(|file| file.no));
        }
        Ok(output)
    }

    fn gc(&self, spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.gc(spec, context)
    }

    fn output_refused(&self, kind: JobKind) {
        assert_eq!(kind, JobKind::Compaction);
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// Numbers of the tables that compactions installed.
#[derive(Default)]
struct Installed(Mutex<BTreeSet<u64>>);

impl EventListener for Installed {
    fn on_event(&self, event: &Event) {
        if let Event::CompactionInstalled { outputs, .. } = event {
            self.0.lock().extend(outputs);
        }
    }
}

/// An executor that changes every output must not stop the compactions of its database. They used
/// to fail with the error of the refusal, and each later pick went to the same executor.
fn compact_with_refusals(db: &Db, executor: &Forging, installed: &Installed) {
    let refused = || executor.refused.load(Ordering::Relaxed);
    let before = refused();
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    let forgery = executor.forgery();
    assert!(refused() > before, "{forgery:?}");
    let changed = std::mem::take(&mut *executor.changed.lock());
    assert!(!changed.is_empty(), "{forgery:?}");
    for no in changed {
        assert!(!installed.0.lock().contains(&no), "{forgery:?}: table {no} is installed");
        // These were noticed when the files were opened, so their numbers are known to be the
        // job's own.
        if matches!(forgery, Forgery::ShorterFile | Forgery::OtherFile | Forgery::OtherId) {
            let path = Path::new("/db").join(format!("{no:06}.sst"));
            assert!(!executor.fs.exists(&path).unwrap(), "{forgery:?}: table {no} is left");
        }
    }
    assert!(!installed.0.lock().is_empty());
}

#[test]
fn output_that_is_not_its_metadata_is_never_installed() {
    let (fs, clock) = (TestDisk::new(), Arc::new(ManualClock::new(1_000_000)));
    let (executor, installed) = (Arc::new(Forging::new(&fs)), Arc::<Installed>::default());
    let mut of_owner =
        Components { executor: Arc::clone(&executor) as _, ..components(&fs, &clock) };
    of_owner.listeners.add(Arc::clone(&installed) as _);
    let db = Db::open_with("/db", small_db(), of_owner).unwrap();
    let cf = db.default_family();
    put_round(&db, 0);
    db.flush(cf).unwrap();
    for (round, (forgery, text)) in (1..).zip(FORGERIES) {
        put_round(&db, round);
        executor.set_forgery(round);
        let error = db.flush(cf).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{forgery:?}: {error}");
        assert!(error.to_string().contains(text), "{forgery:?}: {error}");
        executor.set_forgery(0);
        check(&db, round + 1);
        clock.advance(PAUSE);
        db.flush(cf).unwrap();
        if forgery != Forgery::FewerRecords {
            executor.set_forgery(round);
            compact_with_refusals(&db, &executor, &installed);
            executor.set_forgery(0);
        }
        check(&db, round + 1);
    }
    clock.advance(SWEEP_INTERVAL);
    while db.step_background().unwrap() {}
    clock.advance(SWEEP_INTERVAL);
    while db.step_background().unwrap() {}
    assert_eq!(strays(&db, &fs, Path::new("/db")), 0, "refused outputs are swept");
    db.close().unwrap();
    let rounds = FORGERIES.len() as u32 + 1;
    check(&Db::open_with("/db", small_db(), components(&fs, &clock)).unwrap(), rounds);
}
