//! The words of each process, with the sizes of decision 0072. The functions are pure.

use std::path::Path;

use super::flags::NodesFlags;
use super::link::{Card, Link};
use super::modes::{KEY_BYTES, Mode, SEPARATION_BYTES, VALUE_BYTES, Workload};
use super::plan::{Cell, Course, Step};

const MEMTABLE_BYTES: u64 = 4 << 20;
const MEMTABLES: u64 = 4;
const TABLE_BYTES: u64 = 4 << 20;
const VALUE_FILE_BYTES: u64 = 8 << 20;
const LEVEL_BASE_BYTES: u64 = 2 << 20;
const BACKGROUND_JOBS: u64 = 8;
/// Shards of a memtable. A shard has 2 MiB, so that its value file is long enough to be coded.
const BUCKETS: u64 = 2;
/// Share of the data that the block cache holds.
const CACHE_SHARE: u64 = 100;
/// Cache that holds no index.
const COLD_CACHE_BYTES: u64 = 64 << 10;
const LOG_BUFFER_BYTES: u64 = 1 << 20;
/// Smallest bound that the engine takes.
const BOUND_MIN: f64 = 1.05;
/// Bound on space of all modes, unless the course is that of Figure 16.
pub(super) const BOUND: f64 = 1.5;
/// Bound on space of all measures together under throttled updates. It includes the slack.
pub(super) const BOUND_TIGHT: f64 = 1.25;
/// Tighter bound on space under throttled updates, for a mode of its own. It includes the slack.
pub(super) const BOUND_STRETCH: f64 = 1.15;
/// Bound of the other separating modes under throttled updates: TerarkDB had 1.96 in the paper.
const BOUND_LOOSE: f64 = 2.0;
/// Bytes per second of throttled updates at full speed (§5.4.3).
const THROTTLED_BYTES_PER_S: f64 = 200e6;
/// Reads of one thread that measure latencies.
pub(super) const LATENCY_READS: u64 = 1000;
/// Reads that measure the time of one key without a cache.
pub(super) const KEY_BY_KEY_READS: u64 = 200;
/// Bytes of a block of a table.
pub(super) const BLOCK_BYTES: u64 = 4 << 10;
/// Bytes of a cell of a coded file below 64 MiB.
pub(super) const CELL_BYTES: u64 = 256 << 10;
/// Bytes of a block that is as long as a row of a coded file, which has four cells with data.
const ROW_BYTES: u64 = 4 * CELL_BYTES;
/// Values of 16 KiB in a batch that is as long as the paper's groups of Fixed-16K: 263 KB (§5.4.2).
const GROUP_RECORDS: u64 = 16;
/// Largest log that the next owner of a take-over recovers.
const LOG_FULL_BYTES: u64 = 64 << 20;
/// Share of the client's card that the reads take while a node is lost or repaired. A full card
/// would show its queue, and not the repair.
const FOREGROUND_CARD_SHARE: f64 = 0.25;
/// Seconds of the updates of an owner that is killed before they end.
const OWNER_SECONDS: u64 = 24 * 3600;
/// Volume with the database.
const VOLUME: &str = "terark";

/// Bytes that the engine may need above its bound: one value file in reserve for garbage
/// collection, an heir and a table that are being written, and the memtables.
pub(super) fn slack_bytes() -> u64 {
    2 * VALUE_FILE_BYTES + TABLE_BYTES + MEMTABLES * MEMTABLE_BYTES
}

/// Share of the live bytes that the slack is.
fn slack_share(flags: &NodesFlags, workload: Workload) -> f64 {
    slack_bytes() as f64 / workload.live_bytes(flags) as f64
}

/// The engine's bound that leaves room for the slack below `limit`.
fn bound_below(flags: &NodesFlags, workload: Workload, limit: f64) -> f64 {
    (limit - slack_share(flags, workload)).max(BOUND_MIN)
}

/// Space amplification that the engine promises if it should stay below `limit`, with the slack. It
/// is larger than `limit` if the data is too small for that.
pub(super) fn promised(flags: &NodesFlags, workload: Workload, limit: f64) -> f64 {
    bound_below(flags, workload, limit) + slack_share(flags, workload)
}

/// Whether a step loads an empty database.
fn is_fresh(step: Step) -> bool {
    use Step::{Load, LoopFill, Prepare, SingleGroups, Ycsb};
    matches!(step, Load | Prepare | Ycsb | LoopFill | SingleGroups)
}

/// Limit of throttled updates in bytes per second.
pub(super) fn throttled_bytes_per_s(flags: &NodesFlags, workload: Workload) -> u64 {
    let full = THROTTLED_BYTES_PER_S / flags.scale;
    (full * workload.pick([1.0, 1.0, 0.5])) as u64
}

/// Length of a full log in a take-over: 64 MiB, unless the database has less than four times that.
pub(super) fn log_full_bytes(flags: &NodesFlags) -> u64 {
    (flags.data_bytes() / 4).min(LOG_FULL_BYTES)
}

/// Limit of the reads while a node is lost or repaired, in operations per second.
fn foreground_reads_per_s(flags: &NodesFlags) -> u64 {
    let link = Link::new(Card::Full, flags.scale);
    let bytes_per_s = link.map_or(f64::INFINITY, |link| link.card_bytes_per_s);
    (bytes_per_s * FOREGROUND_CARD_SHARE / (KEY_BYTES + VALUE_BYTES) as f64).max(1.0) as u64
}

/// Parameters from which the words of a process follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    pub(super) flags: &'a NodesFlags,
    pub(super) cell: Cell,
    pub(super) round: u64,
}

/// Place of the database of a process.
#[derive(Clone, Copy, Debug)]
pub(super) enum DatabasePlace<'a> {
    /// The managers of storage nodes, as `HOST:PORT`.
    Store(&'a str),
    /// A directory, and the description of its device unless it is real.
    Local { dir: &'a Path, device: Option<&'a Path> },
}

impl Case<'_> {
    /// Words of the process of `step`, which is number `at` of the course.
    pub(super) fn words(&self, at: usize, step: Step, place: DatabasePlace<'_>) -> Vec<String> {
        let Self { flags, cell, round } = self;
        let Cell { workload, mode, .. } = *cell;
        let is_fresh = is_fresh(step);
        let one =
            matches!(step, Step::KeyByKey | Step::Latency | Step::TakeOver | Step::SingleGroups);
        let is_cold = matches!(step, Step::KeyByKey | Step::ColdUpdate | Step::Latency);
        let mut words = vec![
            format!("--benchmarks={}", self.benchmarks(step)),
            "--compression_type=none".to_owned(),
            "--bucket_boundaries=static".to_owned(),
            "--io_statistics".to_owned(),
            "--histogram".to_owned(),
        ];
        let cache = match step {
            Step::LoopRead => 2 * flags.data_bytes(),
            _ if is_cold => COLD_CACHE_BYTES,
            _ => flags.data_bytes() / CACHE_SHARE,
        };
        let memtable = self.memtable_bytes();
        let mut set = |name: &str, value: u64| words.push(format!("--{name}={value}"));
        set("num", workload.records(flags));
        set("threads", if one { 1 } else { flags.threads });
        set("key_size", KEY_BYTES);
        set("value_size", VALUE_BYTES);
        set("write_buffer_size", memtable);
        set("max_write_buffer_number", MEMTABLES);
        set("wal_segment_size", memtable);
        set("target_file_size_base", TABLE_BYTES);
        set("max_bytes_for_level_base", LEVEL_BASE_BYTES);
        set("buckets", BUCKETS);
        set("bloom_bits", 10);
        set("block_size", if mode == Mode::InlineEcRows { ROW_BYTES } else { BLOCK_BYTES });
        set("max_background_jobs", BACKGROUND_JOBS);
        set("cache_size", cache);
        set("disable_wal", u64::from(!mode.has_log()));
        set("use_existing_db", u64::from(!is_fresh));
        set("seed", flags.seed + round * 1000 + at as u64);
        words.extend(self.step_words(step));
        words.extend(self.mode_words());
        words.extend(self.place_words(place));
        words
    }

    /// Words of a process that reads at a limited rate for `seconds` seconds.
    pub(super) fn foreground_words(
        &self,
        at: usize,
        seconds: u64,
        place: DatabasePlace<'_>,
    ) -> Vec<String> {
        let mut words = self.words(at, Step::Foreground, place);
        words.push(format!("--duration={seconds}"));
        words
    }

    /// Bytes of a memtable. That of a take-over has room for the whole log, so that no flush makes
    /// the log shorter before the owner is killed.
    fn memtable_bytes(&self) -> u64 {
        match self.cell.course {
            Course::TakeOver => log_full_bytes(self.flags).max(MEMTABLE_BYTES),
            _ => MEMTABLE_BYTES,
        }
    }

    /// Words of the number of operations of a step.
    fn step_words(&self, step: Step) -> Vec<String> {
        let (flags, workload) = (self.flags, self.cell.workload);
        let mut words = Vec::new();
        let mut set = |name: &str, value: u64| words.push(format!("--{name}={value}"));
        match step {
            Step::Throttled => {
                set("benchmark_write_rate_limit", throttled_bytes_per_s(flags, workload));
                set("duration", flags.throttled_seconds());
                set("ops_between_duration_checks", 16);
            }
            Step::Scan | Step::Ycsb => {
                set("duration", flags.timed_seconds());
                set("ops_between_duration_checks", 1);
            }
            Step::KeyByKey => set("reads", KEY_BY_KEY_READS),
            Step::Latency => set("reads", LATENCY_READS),
            Step::TakeOver => set("reads", 1),
            Step::Owner => set("duration", OWNER_SECONDS),
            Step::Foreground => {
                set("benchmark_read_rate_limit", foreground_reads_per_s(flags));
                set("ops_between_duration_checks", 16);
            }
            // The first of two runs reads all values into the cache. A run of each key once takes
            // some milliseconds, in which a few values that are missing would decide.
            Step::LoopRead => {
                set("duration", flags.timed_seconds());
                set("ops_between_duration_checks", 16);
            }
            Step::LoopFill => {
                let each = (workload.records(flags) / flags.threads).max(1);
                set("writes", each);
            }
            Step::SingleGroups => {
                set("writes", workload.records(flags));
                set("batch_size", GROUP_RECORDS);
            }
            _ => {}
        }
        words
    }

    fn benchmarks(&self, step: Step) -> String {
        let name = self.cell.workload.name();
        match step {
            Step::Load | Step::Prepare => format!("{name}load,flush,waitforcompaction"),
            Step::Update => format!("{name}update,flush,waitforcompaction,{name}read"),
            Step::ColdUpdate => format!("{name}update,flush,waitforcompaction"),
            Step::Read | Step::DegradedRead => format!("{name}read,{name}read"),
            Step::Scan => format!("{name}scan"),
            Step::Throttled => format!("{name}update"),
            Step::Owner => format!("{name}update"),
            Step::KeyByKey | Step::Latency | Step::Foreground => format!("{name}read"),
            Step::Ycsb => {
                "ycsbload,flush,waitforcompaction,ycsba,ycsbb,ycsbc,ycsbf,ycsbd,ycsbe".to_owned()
            }
            Step::LoopFill | Step::SingleGroups => "fillrandom,flush,waitforcompaction".to_owned(),
            Step::LoopRead => "readrandom,readrandom".to_owned(),
            Step::Repair | Step::TakeOver | Step::Growth | Step::Embedded => {
                "readrandom".to_owned()
            }
        }
    }

    /// Bound on space of the cell, which leaves room for the slack if it is the tight one.
    pub(super) fn bound(&self) -> f64 {
        let Cell { workload, mode, course, .. } = self.cell;
        match (course, mode) {
            (Course::Throttled, Mode::AllOn | Mode::AllOnByKey) => {
                bound_below(self.flags, workload, BOUND_TIGHT)
            }
            (Course::Throttled, Mode::AllOnStretch) => {
                bound_below(self.flags, workload, BOUND_STRETCH)
            }
            (Course::Throttled, _) => BOUND_LOOSE,
            _ => BOUND,
        }
    }

    fn mode_words(&self) -> Vec<String> {
        let mode = self.cell.mode;
        let mut words = match mode.is_separated() {
            true => vec![
                format!("--value_separation_bytes={SEPARATION_BYTES}"),
                format!("--value_file_bytes={VALUE_FILE_BYTES}"),
                format!("--space_amplification_max={:.4}", self.bound()),
            ],
            false => vec!["--value_separation_bytes=0".to_owned()],
        };
        if mode == Mode::AllOnNoPrefetch {
            words.push("--value_prefetch=false".to_owned());
        }
        if mode.is_buffered() {
            words.push(format!("--log_buffer_bytes={LOG_BUFFER_BYTES}"));
        }
        words
    }

    fn place_words(&self, place: DatabasePlace<'_>) -> Vec<String> {
        let Cell { mode, card, .. } = self.cell;
        match place {
            DatabasePlace::Store(managers) => {
                let mut words = mode.store_words();
                words.push(format!("--store={managers}"));
                words.push(format!("--volume={VOLUME}"));
                let link = Link::new(card, self.flags.scale);
                words.extend(link.iter().flat_map(Link::words));
                words
            }
            DatabasePlace::Local { dir, device } => {
                let mut words = vec![format!("--db={}", dir.display())];
                // The local log of the paper's comparison is synced (section 3.1).
                if mode.has_log() && device.is_some() {
                    words.push("--sync".to_owned());
                }
                if let Some(device) = device {
                    words.push(format!("--device={}", device.display()));
                    words.push(format!("--device_scale={}", 1.0 / self.flags.scale));
                }
                words
            }
        }
    }
}
