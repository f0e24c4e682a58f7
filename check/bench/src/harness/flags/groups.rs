//! Every flag with its default. If db_bench has the flag, its default is the same.

use std::path::PathBuf;

use clap::{Args, Parser, ValueEnum};

use super::offload::OffloadFlags;
use super::separation::Separation;
use super::volume::VolumeFlags;

const ABOUT: &str = "Runs db_bench's benchmarks on Archipelago, with db_bench's flags and result \
                     line.\n`archipelago bench fabric --help`: the ways to reach another process's memory.\n\
                     `archipelago-lab --help`: comparisons with db_bench, papers, models.";

const TEACH: &str = "\
Benchmarks, comma-separated, run in order on one database:
  fillseq, fillrandom   write --num values in sequential or random key order, fresh database
  fillsync              the same, each write synced (keys below num/1000), fresh database
  filluniquerandom      write each of --num keys once in random order, fresh database
  overwrite             write --num values in random key order over existing keys
  deleterandom          delete --num keys in random order
  readrandom            read random keys; readmissing: keys that do not exist
  readseq, readreverse  walk over the keys forward or backward
  seekrandom            seek random keys, and read the next --seek_nexts entries
  multireadrandom       read --batch_size random keys in one batch
  readwhilewriting      --threads readers beside one writer
  seekrandomwhilewriting  seekrandom beside one writer
  readrandomwriterandom --readwritepercent reads among writes
  mixgraph              gets, puts and seeks modelled on production traces (--mix_*, --keyrange_*)
  mixgraph1             puts only, fresh database; 10, 20, 30, 40, 50 key ranges as the run goes on
  mixgraph2             the same keys; puts, gets and scans 8:1:1
  ycsba .. ycsbf        the YCSB core workloads; an empty database is loaded first
  ycsbget, ycsbscan     puts and gets 7:3, puts and scans 9:1, zipfian 0.9; loaded first as well
  ycsbput               puts only, zipfian 0.99; loaded first as well
  ycsbload              loads the records of the YCSB workloads
  mixed8k, fixed16k     load, update, read and scan records of 16 KiB (mixed8k: half of them 100 B to
                        512 B); pareto1k: of 1 KiB on average; one phase: mixed8kload, mixed8kupdate,
                        mixed8kread, mixed8kscan and so on
  nutanix               gets, puts and scans 40:58:2 with values of 100 B to 4 KiB; nutanixload
  compact, waitforcompaction, flush, warmup
  stats, levelstats, bucketstats

Examples:
  archipelago bench --benchmarks=fillrandom,waitforcompaction,readrandom --num=1000000
  archipelago bench --benchmarks=readrandom --use_existing_db --duration=10 --histogram
  archipelago bench --benchmarks=ycsba,ycsbc --threads=2 --json=result.json
  archipelago bench --benchmarks=fixed16k --key_size=24 --num=65536 --value_separation_bytes=512
  archipelago bench --benchmarks=mixgraph1 --value_size=1024 --device=FILE --samples=series.json
  archipelago-lab compare --benchmarks=fillrandom,readrandom --runs=5
  archipelago-lab bucketlsm --quick

Boolean flags: --sync, --sync=1, --sync=true, --nosync, --sync=0. One dash is as good as two.";

/// Distribution by which a YCSB workload picks records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Distribution {
    /// Few records get most requests; they lie scattered.
    Zipfian,
    /// All records get the same share of requests.
    Uniform,
    /// The newest records get most requests.
    Latest,
}

/// Distribution of the lengths of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SizeDistribution {
    /// All values have `--value_size` bytes.
    Fixed,
    /// Each length from `--value_size_min` to `--value_size_max` has the same probability.
    Uniform,
}

/// A run of benchmarks.
#[derive(Clone, Debug, Parser)]
#[command(name = "archipelago bench", bin_name = "archipelago bench", about = ABOUT,
          after_help = TEACH, rename_all = "snake_case", disable_version_flag = true,
          disable_help_flag = true)]
pub struct Flags {
    /// Print this help
    #[arg(short = 'h', long, action = clap::ArgAction::HelpShort)]
    pub(crate) help: Option<bool>,
    /// Benchmarks to run, in order
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "fillseq,fillrandom,overwrite,\
          readrandom,readseq,seekrandom",
        value_name = "NAMES"
    )]
    pub benchmarks: Vec<String>,
    /// Benchmarks, with their operations and threads.
    #[command(flatten)]
    pub load: Load,
    /// Settings of the database and of its devices.
    #[command(flatten)]
    pub storage: Storage,
    #[command(flatten)]
    pub(crate) volume: VolumeFlags,
    #[command(flatten)]
    pub(crate) offload: OffloadFlags,
    #[command(flatten)]
    pub(crate) separation: Separation,
    #[command(flatten)]
    pub(crate) mixgraph: Mixgraph,
    #[command(flatten)]
    pub(crate) ycsb: Ycsb,
    /// Output in addition to the result lines.
    #[command(flatten)]
    pub output: Output,
}

/// Sizes and numbers of keys, values and operations.
#[derive(Clone, Debug, Args)]
#[command(rename_all = "snake_case", next_help_heading = "Load")]
pub struct Load {
    /// Keys in the key space, and operations unless --reads or --writes say otherwise
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub num: u64,
    /// Read operations per thread; -1: --num
    #[arg(long, default_value_t = -1, allow_negative_numbers = true)]
    pub(crate) reads: i64,
    /// Write operations per thread; -1: --num
    #[arg(long, default_value_t = -1, allow_negative_numbers = true)]
    pub(crate) writes: i64,
    /// Deletes per thread; -1: --num
    #[arg(long, default_value_t = -1, allow_negative_numbers = true)]
    pub(crate) deletes: i64,
    /// Number of concurrent threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub threads: u64,
    /// Seconds that random reads and writes run instead of a number of operations; 0: off
    #[arg(long, default_value_t = 0)]
    pub(crate) duration: u64,
    /// Operations between two readings of the clock if --duration is set
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ops_between_duration_checks: u64,
    /// Bytes of a key
    #[arg(long, default_value_t = 16)]
    pub key_size: usize,
    /// Bytes of a value
    #[arg(long, default_value_t = 100)]
    pub value_size: usize,
    /// Bytes of values: fixed, which is --value_size, or uniform (fill and overwrite benchmarks,
    /// readwhilewriting, readrandomwriterandom)
    #[arg(long, value_enum, value_name = "NAME", default_value_t = SizeDistribution::Fixed)]
    pub(crate) value_size_distribution_type: SizeDistribution,
    /// Bytes of the smallest value of a uniform distribution
    #[arg(long, default_value_t = 100)]
    pub(crate) value_size_min: u64,
    /// Bytes of the largest value of a uniform distribution
    #[arg(long, default_value_t = 102_400)]
    pub(crate) value_size_max: u64,
    /// Values compress to this share of their size
    #[arg(long, default_value_t = 0.5)]
    pub(crate) compression_ratio: f64,
    /// Bytes of the key's prefix; used with --keys_per_prefix
    #[arg(long, default_value_t = 0)]
    pub(crate) prefix_size: usize,
    /// Keys that share a prefix; 0: no prefixes
    #[arg(long, default_value_t = 0)]
    pub(crate) keys_per_prefix: u64,
    /// Skew of random keys (exponential); 0: uniform
    #[arg(long, default_value_t = 0.0)]
    pub(crate) read_random_exp_range: f64,
    /// Records of one write batch, keys of one multireadrandom
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch_size: u64,
    /// Entries that seekrandom reads after a seek
    #[arg(long, default_value_t = 0)]
    pub(crate) seek_nexts: u64,
    /// Walk backward in seekrandom
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub(crate) reverse_iterator: bool,
    /// Reads in a hundred operations of readrandomwriterandom
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(0..=100))]
    pub(crate) readwritepercent: u64,
    /// Seed of the random numbers; 0: a new one each time
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Limit on writes of all threads, bytes a second; 0: none
    #[arg(long, default_value_t = 0)]
    pub(crate) benchmark_write_rate_limit: u64,
    /// Limit on reads of all threads, operations a second; 0: none
    #[arg(long, default_value_t = 0)]
    pub(crate) benchmark_read_rate_limit: u64,
    /// With --benchmark_write_rate_limit: make up for all time that slow operations took, and count
    /// the latency of a write from the time at which it should have started (not in db_bench, which
    /// counts it from the start and forgets what was not written)
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub(crate) open_loop: bool,
    /// Every write survives power loss when it returns
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub sync: bool,
    /// Writes skip the log: they are lost on kill -9
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub disable_wal: bool,
}

/// Compression of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompressionType {
    /// Values are not compressed.
    None,
    /// The algorithm LZ4, the default.
    Lz4,
    /// The algorithm Zstandard.
    Zstd,
}

impl CompressionType {
    /// The name in db_bench's header.
    pub fn header_name(self) -> &'static str {
        match self {
            Self::None => "NoCompression",
            Self::Lz4 => "LZ4",
            Self::Zstd => "ZSTD",
        }
    }
}

/// Behaviour of bucket boundaries after the first memtable has set them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BucketBoundaries {
    /// Hot buckets are split, cold ones merged.
    Dynamic,
    /// Boundaries stay as they are.
    Static,
}

/// Flags of the database.
#[derive(Clone, Debug, Args)]
#[command(rename_all = "snake_case", next_help_heading = "Database")]
pub struct Storage {
    /// Directory of the database; default: archipelago-bench in the temporary directory
    #[arg(long, value_name = "DIR")]
    pub db: Option<PathBuf>,
    /// Keep the existing database; benchmarks that need a fresh one are skipped
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub use_existing_db: bool,
    /// Compression of every level: none, lz4 or zstd
    #[arg(long, value_name = "NAME", default_value = "lz4", ignore_case = true,
          value_parser = compression)]
    pub compression_type: CompressionType,
    /// Bytes of a memtable
    #[arg(long, default_value_t = 64 << 20)]
    pub write_buffer_size: u64,
    /// Bytes of a log segment (not in db_bench, whose logs are as long as their memtables last)
    #[arg(long, default_value_t = 64 << 20, value_parser = clap::value_parser!(u64).range(65536..=2 << 30))]
    pub(crate) wal_segment_size: u64,
    /// Memtables, the active one included, before writers wait
    #[arg(long, default_value_t = 2)]
    pub(crate) max_write_buffer_number: usize,
    /// Bytes of the block cache
    #[arg(long, default_value_t = 8 << 20)]
    pub cache_size: u64,
    /// Bloom filter bits per key; 0: none; -1: the database's default, 10
    #[arg(long, default_value_t = -1, allow_negative_numbers = true)]
    pub bloom_bits: i64,
    /// Bytes of a data block
    #[arg(long, default_value_t = 4096)]
    pub(crate) block_size: usize,
    /// Open table readers; -1: the database's default
    #[arg(long, default_value_t = -1, allow_negative_numbers = true)]
    pub(crate) open_files: i64,
    /// Flush and compaction threads
    #[arg(long, default_value_t = 2)]
    pub max_background_jobs: usize,
    /// Bytes of a table file
    #[arg(long, default_value_t = 64 << 20)]
    pub(crate) target_file_size_base: u64,
    /// Bytes of the base level
    #[arg(long, default_value_t = 256 << 20)]
    pub(crate) max_bytes_for_level_base: u64,
    /// L0 files (in one bucket) at which they are compacted
    #[arg(long, default_value_t = 4)]
    pub(crate) level0_file_num_compaction_trigger: usize,
    /// L0 files (in the fullest bucket) at which writes slow down
    #[arg(long, default_value_t = 20)]
    pub(crate) level0_slowdown_writes_trigger: usize,
    /// L0 files (in the fullest bucket) at which writes stop
    #[arg(long, default_value_t = 36)]
    pub(crate) level0_stop_writes_trigger: usize,
    /// Limit on flush and compaction writes, bytes a second; 0: none
    #[arg(long, default_value_t = 0)]
    pub(crate) rate_limiter_bytes_per_sec: u64,
    /// User reads bypass the page cache
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub use_direct_reads: bool,
    /// Flush and compaction bypass the page cache
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub(crate) use_direct_io_for_flush_and_compaction: bool,
    /// A write waits until the device has its log record, which the page cache then does not absorb
    /// (not in db_bench)
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub(crate) log_write_through: bool,
    /// Bytes of the log that are buffered before they leave for storage nodes, so that a write
    /// returns earlier and may be lost if the process is killed (not in db_bench); 0: no buffer.
    /// Without effect on a local disk
    #[arg(long, default_value_t = 0)]
    pub(crate) log_buffer_bytes: u64,
    /// Buckets of the key space (not in db_bench); 0: as many as background jobs; 1: a classic L0
    #[arg(long, default_value_t = 0)]
    pub(crate) buckets: usize,
    /// Whether bucket boundaries move with the keys that are written (not in db_bench)
    #[arg(long, value_enum, value_name = "NAME", default_value_t = BucketBoundaries::Dynamic)]
    pub(crate) bucket_boundaries: BucketBoundaries,
    /// Threads that may share one compaction
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) subcompactions: u64,
    /// Emulate the device that this file describes (not in db_bench; docs/devices has some)
    #[arg(long, value_name = "FILE")]
    pub(crate) device: Option<PathBuf>,
    /// Speed of the emulated device, as a fraction of the speed in its file; default: the scale in
    /// its file, or 1
    #[arg(long, requires = "device", value_name = "F")]
    pub(crate) device_scale: Option<f64>,
    /// The database lies on the devices that this file lists (not in db_bench; see
    /// docs/guide/bench.md); --db is not used then
    #[arg(long, value_name = "FILE", conflicts_with = "device")]
    pub(crate) tiers: Option<PathBuf>,
}

/// Parameters of mixgraph: Cao et al., FAST 2020, as db_bench names them.
#[derive(Clone, Debug, Args)]
#[command(rename_all = "snake_case", next_help_heading = "mixgraph")]
pub struct Mixgraph {
    /// Hotness of keys: a of f(x) = a x^b; 0 in a or b: all keys alike
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) key_dist_a: f64,
    /// Hotness of keys: b of f(x) = a x^b
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) key_dist_b: f64,
    /// Hotness of key ranges: a of f(x) = a exp(b x) + c exp(d x); all 0: no ranges
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) keyrange_dist_a: f64,
    /// Hotness of key ranges: b
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) keyrange_dist_b: f64,
    /// Hotness of key ranges: c
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) keyrange_dist_c: f64,
    /// Hotness of key ranges: d
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) keyrange_dist_d: f64,
    /// Number of key ranges
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) keyrange_num: u64,
    /// Key ranges without --key_dist_*: the keys of a range alike (not in db_bench, which takes no
    /// ranges then)
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub(crate) keyrange_random: bool,
    /// Value sizes: k of the generalised Pareto distribution
    #[arg(long, default_value_t = 0.2615, allow_negative_numbers = true)]
    pub(crate) value_k: f64,
    /// Value sizes: sigma
    #[arg(long, default_value_t = 25.45, allow_negative_numbers = true)]
    pub(crate) value_sigma: f64,
    /// Value sizes: theta
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) value_theta: f64,
    /// Scan lengths: k of the generalised Pareto distribution
    #[arg(long, default_value_t = 2.517, allow_negative_numbers = true)]
    pub(crate) iter_k: f64,
    /// Scan lengths: sigma
    #[arg(long, default_value_t = 14.236, allow_negative_numbers = true)]
    pub(crate) iter_sigma: f64,
    /// Scan lengths: theta
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) iter_theta: f64,
    /// Share of gets
    #[arg(long, default_value_t = 1.0)]
    pub(crate) mix_get_ratio: f64,
    /// Share of puts
    #[arg(long, default_value_t = 0.0)]
    pub(crate) mix_put_ratio: f64,
    /// Share of seeks
    #[arg(long, default_value_t = 0.0)]
    pub(crate) mix_seek_ratio: f64,
    /// Entries of the longest scan
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) mix_max_scan_len: u64,
    /// Bytes of the largest value
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(10..=1 << 20))]
    pub(crate) mix_max_value_size: u64,
    /// Operations per second follow a sine over time
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub(crate) sine_mix_rate: bool,
    /// Interval at which the rate is set
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) sine_mix_rate_interval_milliseconds: u64,
    /// Random share of the rate that is added or taken, 0 to 1
    #[arg(long, default_value_t = 0.0)]
    pub(crate) sine_mix_rate_noise: f64,
    /// Rate: A of f(x) = A sin(B x + C) + D, x in seconds
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) sine_a: f64,
    /// Rate: the parameter B
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) sine_b: f64,
    /// Rate: the parameter C
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) sine_c: f64,
    /// Rate: the parameter D
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) sine_d: f64,
}

/// YCSB (not in db_bench).
#[derive(Clone, Debug, Args)]
#[command(rename_all = "snake_case", next_help_heading = "YCSB (not in db_bench)")]
pub(crate) struct Ycsb {
    /// Distribution of records; default: latest for ycsbd, zipfian for the others
    #[arg(long)]
    pub(crate) ycsb_distribution: Option<Distribution>,
    /// Skew of the zipfian, above 0 and below 1; default: 0.9 for ycsbget and ycsbscan, 0.99 for
    /// the others
    #[arg(long)]
    pub(crate) ycsb_theta: Option<f64>,
    /// Longest scan of ycsbe and ycsbscan
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ycsb_max_scan: u64,
}

/// Reports and their files.
#[derive(Clone, Debug, Args)]
#[command(rename_all = "snake_case", next_help_heading = "Report")]
pub struct Output {
    /// Time every operation and print the distribution
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub(crate) histogram: bool,
    /// Print the database's counters at the end
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub(crate) statistics: bool,
    /// Interval in seconds at which the operations per second are written to --report_file; 0: off
    #[arg(long, default_value_t = 0)]
    pub report_interval_seconds: u64,
    /// A CSV file: seconds since the start, operations per second
    #[arg(long, default_value = "report.csv", value_name = "FILE")]
    pub(crate) report_file: PathBuf,
    /// Write every result to this file as JSON (not in db_bench)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Count the reads and writes of files by kind and purpose, for --json (not in db_bench)
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub(crate) io_statistics: bool,
    /// Write a sample of every 100 ms, and every background job, to this file as JSON (not in
    /// db_bench)
    #[arg(long, value_name = "FILE")]
    pub(crate) samples: Option<PathBuf>,
}

const COMPARE_ABOUT: &str =
    "Runs the same benchmarks here and in RocksDB's db_bench, alternating, and prints ratios.";

const COMPARE_TEACH: &str = "\
All flags of `archipelago bench` are taken and handed to both sides, each in a process and a fresh
directory of its own. Both sides keep the same promise: unless --disable_wal is given, a write that
returned survives kill -9 of the process; with --sync, power loss.

db_bench is in Debian's package rocksdb-tools.";

/// Flags of a comparison with db_bench.
#[derive(Clone, Debug, Parser)]
#[command(name = "archipelago-lab compare", bin_name = "archipelago-lab compare",
          about = COMPARE_ABOUT, after_help = COMPARE_TEACH, rename_all = "snake_case",
          disable_version_flag = true, disable_help_flag = true)]
pub struct CompareFlags {
    /// Runs of each side
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub runs: u64,
    /// The other side's program
    #[arg(long, default_value = "/usr/bin/db_bench", value_name = "PROGRAM")]
    pub db_bench: PathBuf,
    /// Program of this side; default: archipelago in the folder of archipelago-lab
    #[arg(long, value_name = "PROGRAM")]
    pub archipelago: Option<PathBuf>,
    /// More flags for db_bench alone, space-separated
    #[arg(long, default_value = "", allow_hyphen_values = true, value_name = "FLAGS")]
    pub db_bench_flags: String,
    /// Print Markdown tables
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub markdown: bool,
    /// Flags of the benchmarks that both sides run.
    #[command(flatten)]
    pub bench: Flags,
}

impl Flags {
    /// Checks rules that clap cannot express. The error names the flag, its value and the allowed
    /// values.
    pub(crate) fn check(&self) -> Result<(), String> {
        let load = &self.load;
        if !(1..=65536).contains(&load.key_size) {
            return Err(format!("--key_size is {}: it must be 1 to 65536", load.key_size));
        }
        if load.value_size > 1 << 30 {
            return Err(format!("--value_size is {}: at most 1073741824", load.value_size));
        }
        if !(1..=1 << 30).contains(&load.value_size_max)
            || load.value_size_min > load.value_size_max
        {
            return Err(format!(
                "--value_size_min is {} and --value_size_max is {}: the first must not be above the \
                 second, which must be 1 to 1073741824",
                load.value_size_min, load.value_size_max
            ));
        }
        self.separation.check(self.storage.compression_type)?;
        self.volume.check()?;
        if self.offload.local_log && self.storage.device.is_none() {
            return Err(
                "--local_log needs --device: without an emulated device, all files lie on \
                        the real disk"
                    .to_owned(),
            );
        }
        if !(0.0..=1.0).contains(&load.compression_ratio) {
            return Err(format!(
                "--compression_ratio is {}: it must be 0 to 1",
                load.compression_ratio
            ));
        }
        if load.prefix_size >= load.key_size && load.prefix_size > 0 {
            return Err(format!(
                "--prefix_size is {}: it must be below --key_size, {}",
                load.prefix_size, load.key_size
            ));
        }
        if let Some(theta) = self.ycsb.ycsb_theta
            && !(theta > 0.0 && theta < 1.0)
        {
            return Err(format!("--ycsb_theta is {theta}: it must lie between 0 and 1"));
        }
        let mix = &self.mixgraph;
        let ratios = [mix.mix_get_ratio, mix.mix_put_ratio, mix.mix_seek_ratio];
        let is_bad = |ratio: &f64| !ratio.is_finite() || *ratio < 0.0;
        if ratios.iter().any(is_bad) || ratios.iter().sum::<f64>() == 0.0 {
            return Err("--mix_get_ratio, --mix_put_ratio and --mix_seek_ratio must not be \
                        negative, and one must be above 0"
                .to_owned());
        }
        if load.disable_wal && load.sync {
            return Err("--sync needs the log that --disable_wal takes away".to_owned());
        }
        if load.open_loop && load.benchmark_write_rate_limit == 0 {
            return Err("--open_loop needs a rate: give --benchmark_write_rate_limit".to_owned());
        }
        if load.open_loop && self.benchmarks.iter().any(|name| name == "mixgraph") {
            return Err(
                "--open_loop is not for mixgraph, which waits for a hundred operations in \
                        one piece"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Operations of a write benchmark, per thread.
    pub(crate) fn writes(&self) -> u64 {
        u64::try_from(self.load.writes).unwrap_or(self.load.num)
    }

    /// Operations of a read benchmark, per thread.
    pub(crate) fn reads(&self) -> u64 {
        u64::try_from(self.load.reads).unwrap_or(self.load.num)
    }

    /// Deletes, per thread.
    pub(crate) fn deletes(&self) -> u64 {
        u64::try_from(self.load.deletes).unwrap_or(self.load.num)
    }

    /// Operations of a benchmark of both, per thread.
    pub(crate) fn reads_and_writes(&self) -> u64 {
        match self.load.reads.max(self.load.writes) {
            ops if ops < 0 => self.load.num,
            ops => ops as u64,
        }
    }

    /// Directory of the database.
    pub(crate) fn dir(&self) -> PathBuf {
        self.storage.db.clone().unwrap_or_else(|| std::env::temp_dir().join("archipelago-bench"))
    }
}

/// A boolean as gflags takes it.
pub(super) fn truth(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "y" | "yes" => Ok(true),
        "0" | "f" | "false" | "n" | "no" => Ok(false),
        _ => Err("it must be true, false, 1 or 0".to_owned()),
    }
}

pub(super) fn compression(text: &str) -> Result<CompressionType, String> {
    match text.to_ascii_lowercase().as_str() {
        "none" => Ok(CompressionType::None),
        "lz4" => Ok(CompressionType::Lz4),
        "zstd" => Ok(CompressionType::Zstd),
        "snappy" | "zlib" | "bzip2" | "lz4hc" | "xpress" => Err(format!(
            "Archipelago has no {text}: use none, lz4 (as fast, a little denser than snappy) or \
             zstd"
        )),
        _ => Err("it must be none, lz4 or zstd".to_owned()),
    }
}
