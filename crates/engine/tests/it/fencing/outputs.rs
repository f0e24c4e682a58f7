//! Outputs that differ from their executor's metadata are refused before the install.

use std::sync::atomic::{AtomicU8, Ordering};

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
    fs: MemFs,
    /// Position in [`FORGERIES`], after 0 for none.
    forgery: AtomicU8,
    /// Bytes of the last table of an earlier job.
    other: Mutex<Vec<u8>>,
}

impl Forging {
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
        LocalExecutor.compact(spec, context).map(|output| self.forged(output))
    }

    fn gc(&self, spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.gc(spec, context)
    }
}

#[test]
fn output_that_is_not_its_metadata_is_never_installed() {
    let (fs, clock) = (MemFs::new(), Arc::new(ManualClock::new(1_000_000)));
    let executor =
        Arc::new(Forging { fs: fs.clone(), forgery: AtomicU8::new(0), other: Mutex::default() });
    let of_owner = Components { executor: Arc::clone(&executor) as _, ..components(&fs, &clock) };
    let db = Db::open_with("/db", small_db(), of_owner).unwrap();
    let cf = db.default_family();
    put_round(&db, 0);
    db.flush(cf).unwrap();
    for (round, (forgery, text)) in (1..).zip(FORGERIES) {
        put_round(&db, round);
        let flush = || db.flush(cf);
        let compact = || db.compact_range(cf, &KeyRange::all());
        for is_flush in [true, false] {
            if forgery == Forgery::FewerRecords && !is_flush {
                continue;
            }
            // A compaction ends at its last key, so the check of its range comes first.
            let text = match forgery {
                Forgery::OtherKeys if !is_flush => "reaches out of the job's range",
                _ => text,
            };
            executor.forgery.store(round as u8, Ordering::Relaxed);
            let error = if is_flush { flush() } else { compact() }.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{forgery:?}: {error}");
            assert!(error.to_string().contains(text), "{forgery:?}: {error}");
            executor.forgery.store(0, Ordering::Relaxed);
            check(&db, round + 1);
            clock.advance(PAUSE);
            if is_flush { flush() } else { compact() }.unwrap();
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
