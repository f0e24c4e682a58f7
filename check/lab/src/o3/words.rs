//! The words and settings of each process, with the sizes of decision 0087. The functions are pure.

use std::path::Path;

use archipelago_bench::harness::store::{CfOptions, Compression, DbOptions};
use archipelago_compute::Settings;

use super::bounds::SCALE;
use super::flags::O3Flags;
use super::modes::{Mode, OFFSET_CACHE_FLAG};
use super::plan::{Before, Cell, LeftShards, Load, Several, SeveralKind, Value};
use crate::client::FIRST_READ;

/// Levels by the bytes of a memtable, as in RocksDB's defaults.
const LEVEL_BASE_MEMTABLES: u64 = 4;
/// L0 files (in the fullest bucket) at which compactions begin, writers slow down, and stop (§5.1).
const L0_TRIGGERS: [u64; 3] = [4, 32, 48];
const BACKGROUND_JOBS: u64 = 4;
const BLOOM_BITS: u64 = 10;
/// The block cache holds one part in this many of the records.
const CACHE_SHARE: u64 = 8;
/// Memtables of a burst: fewer than 96, so that the last ones find room as well.
pub(super) const BURST_MEMTABLES: u64 = 90;
/// Memtables that delegated reads choose from.
pub(super) const DELEGATED_MEMTABLES: u64 = 4;
/// Memtables of records in the log of a take-over, as bytes of keys and values. Their shards rest,
/// because a key range is flushed only when it has the bytes of a memtable, and there are twice as
/// many ranges.
pub(super) const TAKEOVER_MEMTABLES: u64 = 8;
/// Number of repetitions of the reads of an owner that is killed, so that it does not end before.
const READS_UNTIL_KILLED: usize = 20;
/// Bytes of the images of memtables, over those of keys and values.
const IMAGE_SHARE: f64 = 1.5;
/// Share of the baseline's rate at which writes are offered.
const OFFERED: f64 = 0.9;
/// Share of the baseline's bound at which a thread writes during range reads.
const WRITTEN_WHILE_READING: f64 = 0.5;
/// Threads of mixed loads and of reads, so that reads fill a link in spite of their latency.
const READ_THREADS: u64 = 64;
const RANGE_THREADS: u64 = 16;
const DELEGATED_THREADS: u64 = 2;
const CACHED_THREADS: u64 = 2;
/// Bytes of the block cache over those of the records that it holds.
const CACHED_SHARE: u64 = 2;
/// Benchmark that writes the records in the log of a take-over.
pub(super) const LAST_WRITES: &str = "ycsbput";
/// Values of several databases. At the same bytes, records of 80 bytes would be thirteen times as
/// many, so the processors could be the limit.
pub(super) const SEVERAL_VALUE: Value = Value::Large;
/// Difference of the seeds of two databases of a run.
const SEED_STEP: u64 = 100;
/// Values of Redis clients.
pub(super) const RESP_VALUE: Value = Value::Large;

/// Parameters from which the words of a process follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    pub(super) flags: &'a O3Flags,
    pub(super) cell: Cell,
    pub(super) round: u64,
    /// Measured bytes per second of `off_classic`, for an offered load.
    pub(super) baseline_bytes_per_s: Option<f64>,
}

/// Places of an owner's database and of its cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerPlaces<'a> {
    pub(super) db: &'a Path,
    /// Description of the link.
    pub(super) device: &'a Path,
    /// Address of the manager; `None` if nothing leaves.
    pub(super) manager: Option<&'a str>,
}

impl Case<'_> {
    /// Value of the load.
    pub(super) fn value(&self) -> Value {
        match self.cell.load {
            Load::Fill(value) | Load::Burst(value) | Load::Paced(value) | Load::Mixed(value) => {
                value
            }
            Load::Resp(_) => RESP_VALUE,
            Load::Several(_) => SEVERAL_VALUE,
            _ => Value::Small,
        }
    }

    /// Number of records that the load writes or chooses from.
    pub(super) fn records(&self) -> u64 {
        let memtables = |count: u64| count * self.flags.memtable_bytes();
        let bytes = match self.cell.load {
            Load::Fill(_) | Load::Paced(_) => memtables(self.flags.memtables()),
            Load::Several(Several { kind: SeveralKind::Writes, .. }) => {
                memtables(self.flags.memtables())
            }
            Load::Burst(_) => memtables(BURST_MEMTABLES.min(self.flags.memtables())),
            Load::ShortBurst(count) => memtables(u64::from(count).min(self.flags.memtables())),
            Load::Delegated(_) => memtables(DELEGATED_MEMTABLES),
            Load::Takeover(_) => memtables(TAKEOVER_MEMTABLES),
            _ => self.flags.read_bytes(),
        };
        (bytes / self.value().record_bytes()).max(1)
    }

    /// Threads of the benchmark, without one that writes while others read.
    pub(super) fn threads(&self) -> u64 {
        match self.cell.load {
            Load::Fill(_) | Load::Burst(_) | Load::ShortBurst(_) | Load::Paced(_) => 1,
            Load::Takeover(_) | Load::Several(Several { kind: SeveralKind::Writes, .. }) => 1,
            Load::Range(_) => RANGE_THREADS,
            Load::Delegated(_) => DELEGATED_THREADS,
            Load::Cached(_) => CACHED_THREADS,
            _ => READ_THREADS,
        }
    }

    /// The benchmark whose result counts.
    pub(super) fn benchmark(&self) -> &'static str {
        match self.cell.load {
            Load::Fill(_) | Load::Burst(_) | Load::ShortBurst(_) | Load::Paced(_) => "fillrandom",
            Load::Several(Several { kind: SeveralKind::Writes, .. }) => "fillrandom",
            Load::Read(..) | Load::Cached(_) | Load::Delegated(_) => "ycsbc",
            Load::Mixed(_) | Load::Several(_) => "readrandomwriterandom",
            Load::Ycsb(share, _) => share.benchmark(),
            Load::Range(_) => "seekrandomwhilewriting",
            Load::Takeover(_) => FIRST_READ,
            Load::Resp(_) => "",
        }
    }

    fn benchmarks(&self) -> String {
        let main = self.benchmark();
        match self.cell.load {
            Load::Fill(_) => format!("{main},flush,waitforcompaction"),
            Load::Burst(_) | Load::ShortBurst(_) => format!("{main},flush"),
            Load::Paced(_) | Load::Several(_) => main.to_owned(),
            // The first reads warm the block cache.
            Load::Read(_, Before::Unsettled) => format!("ycsbload,{main}"),
            Load::Delegated(_) => format!("ycsbload,{main},{main}"),
            Load::Read(..) | Load::Cached(_) => {
                format!("ycsbload,waitforcompaction,{main},{main}")
            }
            // The owner that is killed. The load is flushed, because records of it in a memtable
            // would count as spared.
            Load::Takeover(_) => {
                let reads = ["ycsbc"; READS_UNTIL_KILLED].join(",");
                format!("ycsbload,flush,waitforcompaction,{LAST_WRITES},{reads}")
            }
            _ => format!("ycsbload,waitforcompaction,{main}"),
        }
    }

    /// Bytes that memtables may take at memory nodes.
    pub(super) fn remote_bytes(&self) -> u64 {
        let memtables = u64::from(self.cell.remote()) * self.flags.memtable_bytes();
        (memtables as f64 * IMAGE_SHARE) as u64
    }

    /// Bytes of the block cache.
    fn cache_bytes(&self) -> u64 {
        match self.cell.load {
            Load::Cached(_) => self.flags.read_bytes() * CACHED_SHARE,
            _ => self.flags.read_bytes() / CACHE_SHARE,
        }
    }

    /// Limit of the writes of a load, in bytes per second.
    pub(super) fn offered_bytes_per_s(&self) -> Option<u64> {
        let rate = match self.cell.load {
            Load::Paced(_) => self.baseline_bytes_per_s? * OFFERED,
            Load::Range(_) => {
                let bound = Mode::OffClassic.spec().bound(self.cell.link);
                bound * 1e6 * SCALE * self.flags.speed() * WRITTEN_WHILE_READING
            }
            _ => return None,
        };
        Some((rate as u64).max(1))
    }

    /// The words of `archipelago bench` as the owner.
    pub(super) fn owner_words(&self, places: OwnerPlaces<'_>) -> Vec<String> {
        let Self { flags, cell, round, .. } = self;
        let spec = cell.mode.spec();
        let mut words = vec![
            format!("--benchmarks={}", self.benchmarks()),
            "--compression_type=none".to_owned(),
            "--io_statistics".to_owned(),
            "--histogram".to_owned(),
            "--local_log".to_owned(),
            format!("--db={}", places.db.display()),
            format!("--device={}", places.device.display()),
            format!("--device_scale={}", flags.speed()),
            format!("--offload_mode={}", spec.offload),
        ];
        words.extend(places.manager.map(|manager| format!("--manager={manager}")));
        let mut set = |name: &str, value: u64| words.push(format!("--{name}={value}"));
        set("num", self.records());
        set("threads", self.threads());
        set("key_size", super::plan::KEY_BYTES);
        set("value_size", self.value().bytes());
        set("write_buffer_size", flags.memtable_bytes());
        set("max_write_buffer_number", u64::from(cell.local()));
        set("wal_segment_size", flags.memtable_bytes().max(65_536));
        set("target_file_size_base", flags.memtable_bytes());
        set("max_bytes_for_level_base", LEVEL_BASE_MEMTABLES * flags.memtable_bytes());
        set("level0_file_num_compaction_trigger", L0_TRIGGERS[0]);
        set("level0_slowdown_writes_trigger", L0_TRIGGERS[1]);
        set("level0_stop_writes_trigger", L0_TRIGGERS[2]);
        set("buckets", u64::from(spec.buckets()));
        set("bloom_bits", BLOOM_BITS);
        set("max_background_jobs", BACKGROUND_JOBS);
        set("cache_size", self.cache_bytes());
        set("seed", flags.seed + round * 1000);
        if spec.sends_memtables() {
            set("remote_memtables_bytes", self.remote_bytes());
        }
        if let Some(bytes) = cell.offset_cache() {
            words.push(format!("{OFFSET_CACHE_FLAG}={bytes}"));
        }
        if let Some(staying) = cell.staying {
            words.push(format!("--local_memtables={}", staying.word()));
        }
        words.extend(self.load_words());
        words
    }

    /// The words of `archipelago bench` as the owner of one of several databases. Each has keys of
    /// its own seed.
    pub(super) fn words_of_database(&self, places: OwnerPlaces<'_>, number: u64) -> Vec<String> {
        let mut words = self.owner_words(places);
        words.retain(|word| !word.starts_with("--seed="));
        let seed = self.flags.seed + self.round * 1000 + number * SEED_STEP;
        words.push(format!("--seed={seed}"));
        if self.loads_databases() {
            words.push("--use_existing_db=1".to_owned());
        }
        words
    }

    /// Whether several databases are loaded by other processes before they are measured. So the
    /// measurements begin together.
    pub(super) fn loads_databases(&self) -> bool {
        matches!(self.cell.load, Load::Several(Several { kind: SeveralKind::Mixed, .. }))
    }

    /// The words of `archipelago bench` that loads one of several databases.
    pub(super) fn words_of_load(&self, places: OwnerPlaces<'_>, number: u64) -> Vec<String> {
        let mut words = self.words_of_database(places, number);
        words.retain(|word| {
            !["--benchmarks=", "--use_existing_db="].iter().any(|start| word.starts_with(*start))
        });
        words.push("--benchmarks=ycsbload,waitforcompaction".to_owned());
        words
    }

    /// The words of `archipelago bench` as the next owner of a database whose owner was killed. It
    /// reads a key.
    pub(super) fn next_owner_words(&self, places: OwnerPlaces<'_>) -> Vec<String> {
        let mode = match self.cell.load {
            // Executors as before, and no memory nodes.
            Load::Takeover(LeftShards::Replayed) => Mode::Compactions,
            _ => self.cell.mode,
        };
        let mut words = self.owner_words(places);
        words.retain(|word| {
            !["--benchmarks=", "--offload_mode="].iter().any(|start| word.starts_with(*start))
        });
        words.push(format!("--benchmarks={}", self.benchmark()));
        words.push(format!("--offload_mode={}", mode.spec().offload));
        words.push("--use_existing_db=1".to_owned());
        words.push("--reads=1".to_owned());
        words
    }

    /// Words of the operations of a load.
    fn load_words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut set = |name: &str, value: u64| words.push(format!("--{name}={value}"));
        let is_whole = matches!(
            self.cell.load,
            Load::Fill(_) | Load::Burst(_) | Load::ShortBurst(_) | Load::Takeover(_)
        );
        if !is_whole {
            set("duration", self.flags.seconds());
            set("ops_between_duration_checks", 16);
        }
        if let Some(rate) = self.offered_bytes_per_s() {
            set("benchmark_write_rate_limit", rate);
        }
        match self.cell.load {
            Load::Paced(_) => words.push("--open_loop".to_owned()),
            Load::Mixed(_) | Load::Several(_) => set("readwritepercent", 50),
            Load::Range(records) => set("seek_nexts", u64::from(records)),
            Load::Takeover(_) => words.push("--ycsb_distribution=uniform".to_owned()),
            Load::Read(keys, _)
            | Load::Cached(keys)
            | Load::Ycsb(_, keys)
            | Load::Delegated(keys) => {
                words.push(format!("--ycsb_distribution={}", keys.name()));
            }
            _ => {}
        }
        words
    }

    /// Settings of the database of a Redis server.
    pub(super) fn settings(&self) -> Settings {
        let (flags, spec) = (self.flags, self.cell.mode.spec());
        let count = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let family = CfOptions {
            write_buffer_bytes: flags.memtable_bytes(),
            write_buffers_max: self.cell.local() as usize,
            target_file_bytes: flags.memtable_bytes(),
            level_base_bytes: LEVEL_BASE_MEMTABLES * flags.memtable_bytes(),
            l0_compaction_trigger: count(L0_TRIGGERS[0]),
            l0_slowdown: count(L0_TRIGGERS[1]),
            l0_stop: count(L0_TRIGGERS[2]),
            buckets: spec.buckets() as usize,
            compression: Compression::None,
            compression_last: Compression::None,
            ..CfOptions::default()
        };
        let database = DbOptions {
            max_background_jobs: count(BACKGROUND_JOBS),
            block_cache_bytes: flags.read_bytes() / CACHE_SHARE,
            wal_segment_bytes: flags.memtable_bytes().max(65_536),
            ..DbOptions::default()
        };
        let families = [("default".to_owned(), family)].into();
        Settings { database, families, ..Settings::default() }
    }
}
