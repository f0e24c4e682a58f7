//! `--measure`: the cost profile of the machine that this runs on.
//!
//! Everything happens on one thread and on files in memory, so that no device and no other core is
//! in the figures. A cost is the time that the thread was on a core, and the least of [`ROUNDS`]
//! rounds counts. Other load can only add to a round.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use archipelago_base::SeqNo;
use archipelago_base::budget::ByteBudget;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::Rng;
use archipelago_engine::compaction::job::{CompactionSpec, Input, run_compaction};
use archipelago_engine::db::BackgroundMode;
use archipelago_engine::extension::Registry;
use archipelago_engine::file_meta::{FileMeta, sst_name};
use archipelago_engine::flush::{FlushSpec, run_flush};
use archipelago_engine::job::below::Below;
use archipelago_engine::job::spec::{FileNumbers, OutputSpec, Retention, ValueSpec};
use archipelago_engine::job::{Cancel, JobContext, KnownKeys, ShardRef, ShardSource};
use archipelago_engine::key::Kind;
use archipelago_engine::manifest::{VersionEdit, VersionSet};
use archipelago_engine::memtable::{SealedShard, Shard, SlabPool};
use archipelago_engine::sst::BlockCache;
use archipelago_env::mem::MemFs;

use super::keyspace::{Run, key};
use super::profile::CostProfile;
use super::setting::{Mode, Setting};
use super::store::{CF, Store};
use archipelago_bench::harness::store::{
    CfOptions, Components, Compression, Db, DbOptions, Error, FileSystem, KeyRange, Result,
};

const ROUNDS: usize = 20;
/// Number of records of a flush or a merge.
const RECORDS: u64 = 48_000;
/// Repetitions of a short operation between two readings of the clock, because the kernel counts in
/// ticks of some milliseconds.
const REPEATS: usize = 400;
/// Repetitions of an even shorter operation between two readings of the clock.
const INSTALLS: usize = 8000;
const KEY_BYTES: u64 = 16;
const VALUE_BYTES: usize = 1024;
/// Number of records of a file that is so small that it costs only its opening and making.
const TINY_RECORDS: u64 = 8;
/// Number of files of a version, for the cost of an install with many files.
const MANY_FILES: u64 = 2000;

/// Measures all costs, which takes about ten seconds.
pub(super) fn measure(measured_on: String) -> Result<CostProfile> {
    let mut flush_ns = f64::INFINITY;
    let mut merge_ns = [f64::INFINITY; 3];
    let mut bytes_per_record = 0.0;
    // All merges have the same number of records, in two, four or eight runs. Only the number of
    // comparisons differs.
    for (least, runs) in merge_ns.iter_mut().zip([2, 4, 8]) {
        let bench = Bench::new(runs, RECORDS / runs);
        for _ in 0..ROUNDS {
            let (inputs, spent) = bench.flush_all()?;
            flush_ns = flush_ns.min(spent / RECORDS as f64);
            let (files, spent) = bench.merge(&inputs)?;
            *least = least.min(spent / RECORDS as f64);
            let (bytes, entries) = files
                .iter()
                .fold((0, 0), |sum, file| (sum.0 + file.size_bytes, sum.1 + file.entries));
            bytes_per_record = bytes as f64 / entries as f64;
            bench.clear()?;
        }
    }
    let (install_ns, install_ns_per_file) = install_costs()?;
    Ok(CostProfile {
        measured_on,
        key_bytes: KEY_BYTES,
        value_bytes: VALUE_BYTES as u64,
        file_bytes_per_record: rounded(bytes_per_record),
        write_ns_per_record: rounded(write_cost()?),
        flush_ns_per_record: rounded(flush_ns),
        merge_ns_per_record: rounded(merge_ns[0]),
        // The slope from two runs to eight, which are two doublings.
        merge_ns_per_doubling: rounded(((merge_ns[2] - merge_ns[0]) / 2.0).max(0.0)),
        file_ns: rounded(file_cost()?),
        install_ns: rounded(install_ns),
        install_ns_per_file: rounded(install_ns_per_file),
    })
}

fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Nanoseconds for which this thread has run. Fails if the kernel does not say.
fn on_core_ns() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = stat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
    let told = ns.filter(|ns| *ns > 0).map(|ns| ns as f64);
    told.ok_or_else(|| Error::unsupported("measuring needs /proc/thread-self/schedstat"))
}

struct Shards(BTreeMap<u64, Arc<Shard>>);

impl ShardSource for Shards {
    fn shard(&self, shard: &ShardRef) -> Result<Arc<dyn SealedShard>> {
        match self.0.get(&shard.memtable) {
            Some(found) => Ok(Arc::clone(found) as _),
            None => Err(Error::not_found("memtable")),
        }
    }
}

/// Memtables and a file system to flush them to.
struct Bench {
    fs: Arc<dyn FileSystem>,
    budget: Arc<ByteBudget>,
    clock: Arc<dyn Clock>,
    shards: Shards,
}

impl Bench {
    fn new(runs: u64, records: u64) -> Self {
        let budget = ByteBudget::unlimited();
        let pool = SlabPool::new(Arc::clone(&budget));
        let filled = (0..runs).map(|no| (no, fill(&pool, no, records))).collect();
        let fs: Arc<dyn FileSystem> = Arc::new(MemFs::new());
        Self { fs, budget, clock: SystemClock::shared(), shards: Shards(filled) }
    }

    fn context(&self) -> JobContext<'_> {
        JobContext {
            fs: Arc::clone(&self.fs),
            registry: Registry::default(),
            clock: Arc::clone(&self.clock),
            limiter: None,
            cancel: Cancel::default(),
            shards: &self.shards,
            cache: BlockCache::new(1 << 20, &self.budget),
            warm: false,
            budget: Arc::clone(&self.budget),
            more_file_numbers: None,
            value_keys: KnownKeys::default(),
            progress: Arc::default(),
        }
    }

    /// Flushes every memtable to a file of L0, and measures the time.
    fn flush_all(&self) -> Result<(Vec<Input>, f64)> {
        self.fs.create_dir_all(Path::new("/db"))?;
        let mut inputs = Vec::new();
        let started = on_core_ns()?;
        for &memtable in self.shards.0.keys() {
            let spec = FlushSpec {
                cf: CF.0,
                range: KeyRange::all(),
                shards: vec![ShardRef { memtable, shard: 0 }],
                retention: retention(Below::Everything),
                output: output_spec(0, 1 + memtable * 100),
            };
            let output = run_flush(&spec, &self.context())?;
            inputs.extend(output.files.into_iter().map(|meta| Input { level: 0, meta }));
        }
        Ok((inputs, on_core_ns()? - started))
    }

    /// Merges the files into the next level, and measures the time.
    fn merge(&self, inputs: &[Input]) -> Result<(Vec<FileMeta>, f64)> {
        let spec = CompactionSpec {
            cf: CF.0,
            from: 0,
            inputs: inputs.to_vec(),
            range: KeyRange::all(),
            subrange: None,
            retention: retention(Below::nothing()),
            output: output_spec(1, 1000 * inputs.len() as u64),
            readahead_bytes: 2 << 20,
            direct_reads: false,
        };
        let started = on_core_ns()?;
        let output = run_compaction(&spec, &self.context())?;
        Ok((output.files, on_core_ns()? - started))
    }

    fn clear(&self) -> Result<()> {
        self.fs.remove_dir_all(Path::new("/db"))
    }
}

fn fill(pool: &Arc<SlabPool>, no: u64, records: u64) -> Arc<Shard> {
    let mut rng = Rng::with_seed(no);
    let shard = Shard::new(pool);
    let mut value = [0u8; VALUE_BYTES];
    for n in 0..records {
        rng.fill(&mut value[..VALUE_BYTES / 2]);
        let key = key(rng.u64(..records * 1000));
        shard.insert(&key, SeqNo(no * records + n + 1), Kind::Put, &value);
    }
    shard.seal();
    shard
}

fn retention(below: Below) -> Retention {
    Retention {
        visible_seq: SeqNo::MAX.0,
        snapshots: vec![],
        below,
        now_ms: 0,
        merge_operator: None,
        compaction_filter: None,
    }
}

fn output_spec(level: u8, first: u64) -> OutputSpec {
    let options = CfOptions::default();
    OutputSpec {
        cf_name: "default".into(),
        dir: "/db".into(),
        level,
        file_numbers: FileNumbers { first, count: 100 },
        unique_seed: first,
        target_file_bytes: options.target_file_bytes,
        cuts: vec![],
        grandparents: vec![],
        block_bytes: options.block_bytes as u32,
        compression: Compression::None,
        bloom_bits_per_key: options.bloom_bits_per_key,
        created_unix_ms: 0,
        direct_io: false,
        values: ValueSpec::default(),
    }
}

/// Measures the cost of opening or making a file, and of removing it later.
fn file_cost() -> Result<f64> {
    let bench = Bench::new(8, TINY_RECORDS);
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let (inputs, _) = bench.flush_all()?;
        let started = on_core_ns()?;
        let mut files = 0;
        for _ in 0..REPEATS {
            let (outputs, _) = bench.merge(&inputs)?;
            files += inputs.len() + outputs.len();
            for output in &outputs {
                bench.fs.remove(&Path::new("/db").join(sst_name(output.file_no())))?;
            }
        }
        least = least.min((on_core_ns()? - started) / files as f64);
        bench.clear()?;
    }
    Ok(least)
}

/// Measures the cost of a record for one writer, with the log.
fn write_cost() -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let options = CfOptions {
            write_buffer_bytes: 1 << 30,
            compression: Compression::None,
            ..CfOptions::default()
        };
        let components = Components {
            fs: Arc::new(MemFs::new()),
            families: [("default".to_owned(), options)].into(),
            background: BackgroundMode::Manual,
            ..Components::default()
        };
        let db = Db::open_with(Path::new("/db"), DbOptions::default(), components)?;
        let mut rng = Rng::with_seed(1);
        let mut value = [0u8; VALUE_BYTES];
        rng.fill(&mut value[..VALUE_BYTES / 2]);
        let started = on_core_ns()?;
        for _ in 0..RECORDS {
            db.put(&key(rng.u64(..1 << 40)), &value)?;
        }
        least = least.min((on_core_ns()? - started) / RECORDS as f64);
        db.close()?;
    }
    Ok(least)
}

/// Measures the cost of an install in an empty version, and the cost that each file adds.
fn install_costs() -> Result<(f64, f64)> {
    let fs: Arc<dyn FileSystem> = Arc::new(MemFs::new());
    let dir = Path::new("/db");
    let mut set = VersionSet::create(fs, dir, [7; 16], &CfOptions::default(), Arc::default())?;
    let setting = Setting::of(Mode::Classic, 1, CostProfile::frozen()?);
    let mut store = Store::new(&setting);
    let file = |store: &mut Store, at: u64| {
        store.file(&Run { lo: at * 10, hi: at * 10 + 5, records: 5.0 }, (at + 1, at + 1))
    };
    // An edit like that of a compaction: it removes two files and adds two.
    let swap = |set: &mut VersionSet, store: &mut Store, base: u64| -> Result<f64> {
        let mut before = [file(store, base), file(store, base + 1)];
        let mut edit = VersionEdit::new();
        for meta in &before {
            edit.add_file(CF, 6, meta.clone());
        }
        set.apply(edit)?;
        let mut least = f64::INFINITY;
        for _ in 0..ROUNDS / 4 {
            let started = on_core_ns()?;
            for _ in 0..INSTALLS {
                let after = [file(store, base), file(store, base + 1)];
                let mut edit = VersionEdit::new();
                for meta in &before {
                    edit.remove_file(CF, 6, meta.file_no());
                }
                for meta in &after {
                    edit.add_file(CF, 6, meta.clone());
                }
                set.apply(edit)?;
                before = after;
            }
            least = least.min((on_core_ns()? - started) / INSTALLS as f64);
        }
        Ok(least)
    };
    let few = swap(&mut set, &mut store, 0)?;
    let mut edit = VersionEdit::new();
    for at in 0..MANY_FILES {
        edit.add_file(CF, 6, file(&mut store, 10 + at));
    }
    set.apply(edit)?;
    let many = swap(&mut set, &mut store, 10 + MANY_FILES)?;
    Ok((few, ((many - few) / MANY_FILES as f64).max(0.0)))
}
