//! A garbage collection whose heir the database refuses runs in this process.

use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::Result;

use super::*;
use crate::compaction::job::CompactionSpec;
use crate::executor::{JobExecutor, JobKind, LocalExecutor};
use crate::flush::FlushSpec;
use crate::gc::job::GcSpec;
use crate::job::{JobContext, JobOutput};

/// An executor that returns each heir with a wrong id.
#[derive(Default)]
struct Forging {
    forged: AtomicU64,
    refused: AtomicU64,
}

impl JobExecutor for Forging {
    fn flush(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.flush(spec, context)
    }

    fn compact(&self, spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.compact(spec, context)
    }

    fn gc(&self, spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        let mut output = LocalExecutor.gc(spec, context)?;
        output.value_files.iter_mut().for_each(|heir| heir.unique_id[3] ^= 1);
        self.forged.fetch_add(1, Ordering::Relaxed);
        Ok(output)
    }

    fn output_refused(&self, kind: JobKind) {
        assert_eq!(kind, JobKind::Gc);
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn collection_whose_heir_is_refused_runs_in_this_process() {
    let (fs, family, executor) = (MemFs::new(), small_family(64), Arc::new(Forging::default()));
    let components = Components {
        background: BackgroundMode::Manual,
        fs: Arc::new(fs.clone()),
        families: [("default".to_owned(), family.clone())].into_iter().collect(),
        seed: Some(1),
        executor: Arc::clone(&executor) as _,
        ..Components::default()
    };
    let options = DbOptions {
        wal_segment_bytes: 64 << 10,
        block_cache_bytes: 1 << 20,
        ..DbOptions::default()
    };
    let db = Db::open_with("/db", options, components).expect("opens");
    let mut store = Store { fs, db, model: BTreeMap::new(), rng: Rng::with_seed(7), family };
    for _ in 0..6 {
        store.write(400, 150);
        store.settle();
        store.check();
    }
    store.compact();
    store.check();
    let (forged, refused) =
        (executor.forged.load(Ordering::Relaxed), executor.refused.load(Ordering::Relaxed));
    assert!(store.ticker(Ticker::GcJobs) > 0 && forged > 0);
    assert_eq!(refused, forged, "each job has run here once");
    assert_eq!(store.ticker(Ticker::BackgroundErrors), 0);
    let values = store.version().values().len();
    assert_eq!(store.value_files_on_disk(), values, "refused heirs are removed");
}
