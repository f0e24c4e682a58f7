//! Measures the speed of a flush and of a 4-way compaction on one core, in memory.
//!
//! `cargo bench -p archipelago-engine --bench compaction_bench -- [entries] [none|lz4|zstd]`: 16 B
//! keys, 100 B values, random order. Four memtables are flushed, each to one L0 file. Then the
//! files are merged into the next level. MB/s are of keys and values read, by the time that the
//! thread was on a core (Linux). The best of three runs counts.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::clock::SystemClock;
use archipelago_base::random::Rng;
use archipelago_base::{Error, Result, SeqNo};
use archipelago_engine::compaction::job::{CompactionSpec, Input, run_compaction};
use archipelago_engine::extension::Registry;
use archipelago_engine::flush::{FlushSpec, run_flush};
use archipelago_engine::job::below::Below;
use archipelago_engine::job::spec::{FileNumbers, OutputSpec, Retention, ValueSpec};
use archipelago_engine::job::{Cancel, JobContext, JobOutput, KnownKeys, ShardRef, ShardSource};
use archipelago_engine::key::{KeyRange, Kind};
use archipelago_engine::memtable::{SealedShard, Shard, SlabPool};
use archipelago_engine::options::Compression;
use archipelago_engine::sst::BlockCache;
use archipelago_env::FileSystem;
use archipelago_env::mem::MemFs;

const MEMTABLES: u64 = 4;
const RECORD_BYTES: u64 = 116;

struct Shards(BTreeMap<u64, Arc<Shard>>);

impl ShardSource for Shards {
    fn shard(&self, shard: &ShardRef) -> Result<Arc<dyn SealedShard>> {
        match self.0.get(&shard.memtable) {
            Some(found) => Ok(Arc::clone(found) as _),
            None => Err(Error::not_found("memtable")),
        }
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let entries = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(1_000_000u64);
    let compression = match arguments.next().as_deref() {
        Some("lz4") => Compression::Lz4,
        Some("zstd") => Compression::Zstd,
        _ => Compression::None,
    };
    let budget = ByteBudget::unlimited();
    let pool = SlabPool::new(Arc::clone(&budget));
    let shards =
        Shards((0..MEMTABLES).map(|no| (no, fill(&pool, no, entries / MEMTABLES))).collect());
    let mut best = [0f64; 2];
    for _ in 0..3 {
        let fs: Arc<dyn FileSystem> = Arc::new(MemFs::new());
        fs.create_dir_all(Path::new("/db"))?;
        let context = || JobContext {
            fs: Arc::clone(&fs),
            registry: Registry::default(),
            clock: SystemClock::shared(),
            limiter: None,
            cancel: Cancel::default(),
            shards: &shards,
            cache: BlockCache::new(1 << 20, &budget),
            warm: false,
            budget: Arc::clone(&budget),
            more_file_numbers: None,
            value_keys: KnownKeys::default(),
            progress: Arc::default(),
        };
        let mut inputs = Vec::new();
        let started_ns = on_core_ns();
        for memtable in 0..MEMTABLES {
            let output = run_flush(&flush_spec(memtable, compression), &context())?;
            inputs.extend(output.files.into_iter().map(|meta| Input { level: 0, meta }));
        }
        let flushed_ns = on_core_ns();
        let output = run_compaction(&compaction_spec(inputs, compression), &context())?;
        report("flush", entries, flushed_ns - started_ns, &mut best[0]);
        report("compaction", entries, on_core_ns() - flushed_ns, &mut best[1]);
        print_output(&output);
    }
    println!("best: flush {:.0} MB/s, compaction {:.0} MB/s", best[0], best[1]);
    Ok(())
}

/// Nanoseconds that this thread has run on a core; 0 if the kernel does not report them.
fn on_core_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

fn report(what: &str, entries: u64, ns: u64, best: &mut f64) {
    let mb_per_s = (entries * RECORD_BYTES) as f64 * 1e3 / ns as f64;
    println!("{what}: {mb_per_s:.0} MB/s, {:.0} ns/record", ns as f64 / entries as f64);
    *best = best.max(mb_per_s);
}

fn print_output(output: &JobOutput) {
    let (counts, files) = (&output.counts, output.files.len());
    println!("  {} records in, {} out, {files} files", counts.records_in, counts.records_out);
}

fn fill(pool: &Arc<SlabPool>, no: u64, entries: u64) -> Arc<Shard> {
    let mut rng = Rng::with_seed(no);
    let shard = Shard::new(pool);
    let mut value = [0u8; 100];
    for n in 0..entries {
        let key = format!("{:016}", rng.u64(..entries * MEMTABLES * 4));
        rng.fill(&mut value[..50]);
        shard.insert(key.as_bytes(), SeqNo(no * entries + n + 1), Kind::Put, &value);
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

fn output_spec(level: u8, first: u64, compression: Compression) -> OutputSpec {
    OutputSpec {
        cf_name: "default".into(),
        dir: "/db".into(),
        level,
        file_numbers: FileNumbers { first, count: 100 },
        unique_seed: first,
        target_file_bytes: 64 << 20,
        cuts: vec![],
        grandparents: vec![],
        block_bytes: 4096,
        compression,
        bloom_bits_per_key: 10,
        created_unix_ms: 0,
        direct_io: false,
        values: ValueSpec::default(),
    }
}

fn flush_spec(memtable: u64, compression: Compression) -> FlushSpec {
    FlushSpec {
        cf: 0,
        range: KeyRange::all(),
        shards: vec![ShardRef { memtable, shard: 0 }],
        retention: retention(Below::Everything),
        output: output_spec(0, 1 + memtable * 100, compression),
    }
}

fn compaction_spec(inputs: Vec<Input>, compression: Compression) -> CompactionSpec {
    CompactionSpec {
        cf: 0,
        from: 0,
        inputs,
        range: KeyRange::all(),
        subrange: None,
        retention: retention(Below::nothing()),
        output: output_spec(1, 1000, compression),
        readahead_bytes: 2 << 20,
        direct_reads: false,
    }
}
