//! The benchmarks by name, and the state of their loops.
//!
//! A benchmark is either a loop that every worker thread runs ([`Run::Workers`]) or an action on
//! the database ([`Run::Action`]).
//!
//! Cost: per operation, the harness draws a random number, writes a key into a buffer that it
//! keeps, takes a slice of the value pool and adds to two counters. It reads the clock only for
//! `--histogram`, `--duration` and rate limits.

pub(crate) mod admin;
mod fill;
mod mixed;
mod mixgraph;
mod mixgraph_phases;
mod nutanix;
mod read;
mod scan;
pub(crate) mod terark;
pub(crate) mod ycsb;

pub(crate) use nutanix::VALUE_BYTES_MAX as NUTANIX_VALUE_BYTES_MAX;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::clock::SystemClock;
use archipelago_base::random::Rng;

use crate::harness::flags::Flags;
use crate::harness::store::{ColumnFamily, Db, ReadOptions, Result, WriteOptions};
use crate::harness::tally::{Counts, Progress, Tally};
use crate::keys::{KeyMaker, KeyPicker};
use crate::pace::{Limit, Rate};
use crate::values::{ValuePool, ValueSizes, Values};

/// Number of operations that request units of a rate limit in one batch.
const PACED_AT_ONCE: u64 = 100;

/// Names of all benchmarks.
pub(crate) const NAMES: &[&str] = &[
    "fillseq",
    "fillrandom",
    "fillsync",
    "filluniquerandom",
    "overwrite",
    "deleterandom",
    "readrandom",
    "readmissing",
    "readseq",
    "readreverse",
    "seekrandom",
    "multireadrandom",
    "readwhilewriting",
    "seekrandomwhilewriting",
    "readrandomwriterandom",
    "mixgraph",
    "mixgraph1",
    "mixgraph2",
    "ycsba",
    "ycsbb",
    "ycsbc",
    "ycsbd",
    "ycsbe",
    "ycsbf",
    "ycsbget",
    "ycsbput",
    "ycsbscan",
    "ycsbload",
    "nutanix",
    "nutanixload",
    "mixed8k",
    "mixed8kload",
    "mixed8kupdate",
    "mixed8kread",
    "mixed8kscan",
    "fixed16k",
    "fixed16kload",
    "fixed16kupdate",
    "fixed16kread",
    "fixed16kscan",
    "pareto1k",
    "pareto1kload",
    "pareto1kupdate",
    "pareto1kread",
    "pareto1kscan",
    "warmup",
    "compact",
    "waitforcompaction",
    "flush",
    "stats",
    "levelstats",
    "bucketstats",
];

/// A loop for worker threads.
pub(crate) type Body = fn(&mut Worker<'_>) -> Result<()>;
/// Text of the result line in addition to the figures.
pub(crate) type Message = fn(&Counts) -> String;

/// Way in which a benchmark runs.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// Runs on `--threads` threads.
    Workers(Body, Message),
    /// Runs once, on the main thread.
    Action(fn(&Db) -> Result<()>),
}

/// A benchmark: its name, and the way in which it runs.
#[derive(Clone, Copy)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) run: Run,
    /// Whether the benchmark starts with an empty database.
    pub(crate) fresh: bool,
    /// Whether the benchmark writes, so that compaction may continue after it.
    pub(crate) writes: bool,
    /// Whether the benchmark returns only when background work is done, so that the last result can
    /// be settled.
    pub(crate) settles: bool,
    /// Whether one more worker writes in parallel with the others.
    pub(crate) with_writer: bool,
    /// Bytes that keys have beyond `--key_size`.
    pub(crate) longer_keys: usize,
    /// Whether the key space is a thousandth, and every write is synced.
    pub(crate) synced: bool,
    /// Whether the benchmark needs the YCSB records.
    pub(crate) ycsb: bool,
}

impl Spec {
    const fn new(name: &'static str, run: Run) -> Self {
        Self {
            name,
            run,
            fresh: false,
            writes: false,
            settles: false,
            with_writer: false,
            longer_keys: 0,
            synced: false,
            ycsb: false,
        }
    }

    const fn fresh(self) -> Self {
        Self { fresh: true, writes: true, ..self }
    }

    const fn writing(self) -> Self {
        Self { writes: true, ..self }
    }

    /// Benchmark that loads the records with which this one starts.
    pub(crate) fn load(&self) -> Self {
        if self.name == "nutanix" { nutanix::load_spec() } else { ycsb::load_spec() }
    }
}

/// The benchmark called `name`.
pub(crate) fn find(name: &str) -> Option<Spec> {
    use Run::{Action, Workers};
    let name = *NAMES.iter().find(|known| **known == name)?;
    let workers = |body, message| Spec::new(name, Workers(body, message));
    let action = |action| Spec::new(name, Action(action));
    Some(match name {
        "fillseq" => workers(fill::sequential, quiet).fresh(),
        "fillrandom" => workers(fill::random, quiet).fresh(),
        "fillsync" => Spec { synced: true, ..workers(fill::random, fill::ops_message).fresh() },
        "filluniquerandom" => workers(fill::unique, quiet).fresh(),
        "overwrite" => workers(fill::random, quiet).writing(),
        "deleterandom" => workers(fill::delete, quiet).writing(),
        "readrandom" => workers(read::random, read::found_line),
        "readmissing" => Spec { longer_keys: 1, ..workers(read::random, read::found_line) },
        "readseq" => workers(scan::forward, quiet),
        "readreverse" => workers(scan::backward, quiet),
        "seekrandom" => workers(scan::seek, read::found_line),
        "multireadrandom" => workers(read::many, read::found),
        "readwhilewriting" => Spec {
            with_writer: true,
            ..workers(mixed::read_while_writing, read::found_line).writing()
        },
        "seekrandomwhilewriting" => Spec {
            with_writer: true,
            ..workers(mixed::seek_while_writing, read::found_line).writing()
        },
        "readrandomwriterandom" => workers(mixed::read_write, mixed::message).writing(),
        "mixgraph" => workers(mixgraph::run, mixgraph::message).writing(),
        "mixgraph1" => workers(mixgraph_phases::puts, mixgraph::message).fresh(),
        "mixgraph2" => workers(mixgraph_phases::mixed, mixgraph::message).fresh(),
        "compact" => workers(admin::compact, quiet).writing(),
        "warmup" => workers(ycsb::warm_up, quiet),
        "waitforcompaction" => Spec { settles: true, ..action(admin::wait_for_compaction) },
        "flush" => action(admin::flush),
        "stats" => action(admin::stats),
        "levelstats" => action(admin::level_stats),
        "bucketstats" => action(admin::bucket_stats),
        "ycsbload" => ycsb::load_spec(),
        "nutanix" => Spec { ycsb: true, ..workers(nutanix::run, ycsb::message).writing() },
        "nutanixload" => nutanix::load_spec(),
        _ if terark::is_one(name) => terark::find(name)?,
        _ => Spec { ycsb: true, ..ycsb::find(name, workers)? },
    })
}

fn quiet(_: &Counts) -> String {
    String::new()
}

/// State that the workers of one benchmark share.
pub(crate) struct Bench<'a> {
    pub(crate) flags: &'a Flags,
    pub(crate) spec: &'a Spec,
    pub(crate) db: &'a Db,
    pub(crate) clock: &'a SystemClock,
    pub(crate) pool: &'a ValuePool,
    pub(crate) progress: &'a [Progress],
    /// Rate of writes, in bytes.
    pub(crate) write_rate: Rate,
    /// Rate of read operations.
    pub(crate) read_rate: Rate,
    /// Counted workers that have not ended.
    pub(crate) working: AtomicU64,
    /// YCSB records that exist, or are being inserted.
    pub(crate) records: &'a AtomicU64,
    pub(crate) seed: u64,
}

/// One thread's share of a benchmark.
pub(crate) struct Worker<'a> {
    pub(crate) bench: &'a Bench<'a>,
    pub(crate) db: &'a Db,
    pub(crate) cf: &'a ColumnFamily,
    pub(crate) index: usize,
    pub(crate) rng: Rng,
    pub(crate) picker: KeyPicker,
    pub(crate) keys: KeyMaker,
    pub(crate) values: Values<'a>,
    pub(crate) value_sizes: ValueSizes,
    pub(crate) write_options: WriteOptions,
    pub(crate) read_options: ReadOptions,
    pub(crate) tally: Tally<'a>,
}

impl<'a> Worker<'a> {
    /// Worker number `index`; its time starts now.
    pub(crate) fn start(bench: &'a Bench<'a>, index: usize) -> Self {
        let (flags, spec) = (bench.flags, bench.spec);
        let num = if spec.synced { (flags.load.num / 1000).max(1) } else { flags.load.num };
        let write_options = WriteOptions {
            sync: flags.load.sync || spec.synced,
            wal: !flags.load.disable_wal,
            ..WriteOptions::default()
        };
        Self {
            bench,
            db: bench.db,
            cf: bench.db.default_family(),
            index,
            rng: Rng::with_seed(bench.seed.wrapping_add(index as u64)),
            picker: KeyPicker::new(num, flags.load.read_random_exp_range),
            keys: KeyMaker::new(flags, spec.longer_keys),
            values: bench.pool.cursor(),
            value_sizes: ValueSizes::new(flags),
            write_options,
            read_options: ReadOptions {
                value_prefetch: flags.separation.value_prefetch,
                ..ReadOptions::default()
            },
            tally: Tally::start(bench.clock, &bench.progress[index], flags.output.histogram),
        }
    }

    /// A limit of at most `ops` operations, or of `--duration` seconds.
    fn limit(&self, ops: u64) -> Limit<'a> {
        let load = &self.bench.flags.load;
        Limit::new(self.bench.clock, ops, load.duration, load.ops_between_duration_checks)
    }

    /// Whether this is the worker that writes in parallel with the others.
    pub(crate) fn is_writer(&self) -> bool {
        self.bench.spec.with_writer && self.index as u64 == self.bench.flags.load.threads
    }

    /// Waits for a read's turn. It requests a hundred reads in one batch.
    #[inline]
    fn pace_read(&mut self, reads: u64) {
        if reads.is_multiple_of(PACED_AT_ONCE) {
            self.pace_reads(PACED_AT_ONCE);
        }
    }

    /// Waits until `reads` more may be made.
    #[inline]
    fn pace_reads(&mut self, reads: u64) {
        self.tally.starts(self.bench.read_rate.request(self.bench.clock, reads));
    }

    /// Waits until `units` more may be written: bytes, or operations in `mixgraph`.
    #[inline]
    fn pace_write(&mut self, units: u64) {
        self.tally.starts(self.bench.write_rate.request(self.bench.clock, units));
    }

    /// Whether counted workers still run.
    fn others_work(&self) -> bool {
        self.bench.working.load(Ordering::Relaxed) > 0
    }
}
