//! Bounds by arithmetic: of the throughput of each way to offload, and of the ratios that the paper
//! states. The functions are pure, and nothing in them was measured by this command.
//!
//! Rates are in MB/s of user bytes (keys and values) at full speed. [`SCALE`] is the share of it at
//! which the command runs. docs/design/offload.md names the jobs and memtables that leave in each
//! mode. The factors are those of decision 0087.

/// Share of full speed at which links and streams are emulated.
pub(super) const SCALE: f64 = 0.1;

/// Factors of a workload and of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Factors {
    /// Bytes that flushes write per user byte (F).
    pub(super) flushed: f64,
    /// Bytes that compactions read per user byte (R).
    pub(super) read: f64,
    /// Bytes that compactions write per user byte (W).
    pub(super) written: f64,
    /// MB/s of one stream (s).
    pub(super) stream: f64,
    /// Use of parallel streams (η).
    pub(super) streams_used: f64,
    /// Use of a link.
    pub(super) link_used: f64,
    /// Share of a stream at which writers run over a classic L0 while its debt grows.
    pub(super) classic: f64,
    /// Jobs per node (J).
    pub(super) jobs: f64,
    /// Executors on storage nodes.
    pub(super) storage_executors: f64,
}

impl Factors {
    /// The factors that decision 0087 fixes.
    pub(super) const FIXED: Self = Self {
        flushed: 1.0,
        read: 2.3,
        written: 2.3,
        stream: 75.0,
        streams_used: 0.77,
        link_used: 0.9,
        classic: 0.49,
        jobs: 4.0,
        storage_executors: 3.0,
    };

    /// Bytes of all streams per user byte: F + R + W.
    fn streamed(&self) -> f64 {
        self.flushed + self.read + self.written
    }

    /// Bytes that a compute node without offloading writes per user byte: F + W.
    fn sent(&self) -> f64 {
        self.flushed + self.written
    }

    /// MB/s at which `streams` parallel streams do work of `bytes` per user byte.
    fn streams(&self, streams: f64, bytes: f64) -> f64 {
        self.streams_used * streams * self.stream / bytes
    }

    /// MB/s of user bytes at which compactions on the storage executors keep up.
    fn storage(&self) -> f64 {
        self.streams(self.storage_executors * self.jobs, self.read + self.written)
    }

    /// MB/s of one link.
    pub(super) fn link(&self, link: StorageLink) -> f64 {
        self.link_used * link.mb_per_s()
    }

    /// MB/s at which writers run over a classic L0.
    fn classic(&self) -> f64 {
        self.classic * self.stream
    }
}

/// A link between a node and the storage.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub(super) enum StorageLink {
    /// 1 Gbit/s in each direction.
    #[serde(rename = "1g")]
    #[value(name = "1g")]
    One,
    /// 2.5 Gbit/s in each direction.
    #[serde(rename = "2g5")]
    #[value(name = "2g5")]
    TwoAndAHalf,
}

impl StorageLink {
    pub(super) const ALL: [Self; 2] = [Self::One, Self::TwoAndAHalf];

    /// MB/s in each direction (B).
    pub(super) fn mb_per_s(self) -> f64 {
        match self {
            Self::One => 125.0,
            Self::TwoAndAHalf => 312.0,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::One => "1G",
            Self::TwoAndAHalf => "2.5G",
        }
    }
}

/// Work that a mode offloads, as far as the mode's bound depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offloaded {
    Nothing,
    Compactions,
    /// Memtables, flushed by their owner.
    Memtables,
    /// Memtables and flushes. Compactions stay with the owner.
    Flushes,
    /// Memtables, flushes and compactions. Compactions run on the storage executors only.
    AllAtStorage,
    /// Memtables, flushes and compactions. Compactions run on any executor, with this number of
    /// compute nodes.
    All {
        compute_nodes: u32,
    },
}

/// Form of L0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LevelZero {
    /// One bucket, and one compaction of L0 at a time.
    Classic,
    Buckets,
}

/// Highest MB/s of user bytes of a mode with the log on the local disk.
pub(super) fn throughput(
    offloaded: Offloaded,
    level: LevelZero,
    link: StorageLink,
    factors: &Factors,
) -> f64 {
    let own = factors.link(link);
    let own_streams = |bytes| factors.streams(factors.jobs, bytes);
    match (offloaded, level) {
        (Offloaded::Nothing, LevelZero::Classic) => factors.classic().min(own / factors.sent()),
        (Offloaded::Nothing, LevelZero::Buckets) => {
            own_streams(factors.streamed()).min(own / factors.sent())
        }
        // The compaction of L0 is serial, wherever it runs.
        (_, LevelZero::Classic) => naive(offloaded, link, factors).min(factors.classic()),
        (Offloaded::Compactions, LevelZero::Buckets) => {
            let flush = (own / factors.flushed).min(own_streams(factors.flushed));
            flush.min(factors.storage())
        }
        (Offloaded::Memtables | Offloaded::Flushes, LevelZero::Buckets) => {
            naive(offloaded, link, factors)
        }
        (Offloaded::AllAtStorage, LevelZero::Buckets) => {
            (2.0 * own / factors.flushed).min(factors.storage())
        }
        (Offloaded::All { compute_nodes }, LevelZero::Buckets) => {
            any_executor(f64::from(compute_nodes), link, factors)
        }
    }
}

/// Highest MB/s if compactions stay with the owner. Flushes that leave take their bytes off the
/// owner's link and its streams.
fn naive(offloaded: Offloaded, link: StorageLink, factors: &Factors) -> f64 {
    let own = factors.link(link);
    let flushed_here = match offloaded {
        Offloaded::Nothing | Offloaded::Memtables => factors.flushed,
        Offloaded::Flushes => 0.0,
        _ => return f64::INFINITY,
    };
    let streams = factors.streams(factors.jobs, flushed_here + factors.read + factors.written);
    streams.min(own / (flushed_here + factors.written))
}

/// Highest MB/s if flushes and compactions run on any executor. Compactions beyond what the storage
/// executors do cross the links of compute and memory nodes, as all flushes do.
fn any_executor(compute_nodes: f64, link: StorageLink, factors: &Factors) -> f64 {
    cluster(compute_nodes, 1.0, link, factors)
}

/// Highest MB/s of all databases of a cluster together, if everything is offloaded and every node
/// is an executor.
pub(super) fn cluster(
    compute_nodes: f64,
    memory_nodes: f64,
    link: StorageLink,
    factors: &Factors,
) -> f64 {
    let links = compute_nodes + memory_nodes;
    let streams = (factors.storage_executors + links) * factors.jobs;
    let by_streams = factors.streams(streams, factors.streamed());
    by_streams.min(over_links(links * factors.link(link), factors.flushed, factors))
}

/// Largest x with `first`·x + W·max(0, x − storage) ≤ `capacity`.
fn over_links(capacity: f64, first: f64, factors: &Factors) -> f64 {
    let storage = factors.storage();
    match first * storage <= capacity {
        true => (capacity + factors.written * storage) / (first + factors.written),
        false => capacity / first,
    }
}

/// Bytes of the log per user byte, and copies of tables, if the log lies on the storage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SharedLog {
    pub(super) log: f64,
    pub(super) copies: f64,
}

impl SharedLog {
    /// A shared directory.
    pub(super) const DIRECTORY: Self = Self { log: 1.15, copies: 1.0 };
    /// A volume of storage nodes, which sends three copies.
    pub(super) const VOLUME: Self = Self { log: 3.45, copies: 3.0 };
}

/// Highest MB/s without offloading and with a log on the storage.
pub(super) fn baseline_with_log(shared: SharedLog, link: StorageLink, factors: &Factors) -> f64 {
    let level = LevelZero::Classic;
    let sent = shared.copies * factors.sent() + shared.log;
    throughput(Offloaded::Nothing, level, link, factors).min(factors.link(link) / sent)
}

/// Highest MB/s with everything offloaded and with a log on the storage. Tables in several copies
/// leave over other links.
pub(super) fn all_with_log(shared: SharedLog, link: StorageLink, factors: &Factors) -> f64 {
    let own = factors.link(link);
    let free = throughput(Offloaded::All { compute_nodes: 1 }, LevelZero::Buckets, link, factors);
    let links = over_links(2.0 * own, shared.log + factors.flushed, factors);
    free.min(own / shared.log).min(links)
}

/// Seconds of a finite run of `user_mb` at `rate` MB/s, of which memtables absorb `absorbed_mb` at
/// `burst` MB/s.
pub(super) fn finite_seconds(user_mb: f64, absorbed_mb: f64, rate: f64, burst: f64) -> f64 {
    let absorbed = absorbed_mb.min(user_mb);
    (user_mb - absorbed) / rate + absorbed / burst
}

/// Bytes that cross a link for one block of 4 KiB, with the blocks of index and filters.
const BLOCK_READ_BYTES: f64 = 4342.0;

/// Load of equally many reads and writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MixedLoad {
    /// Bytes of a key and a value.
    pub(super) record_bytes: f64,
    /// Blocks that a read fetches from the storage, on average.
    pub(super) misses: f64,
}

impl MixedLoad {
    /// Highest number of millions of writes a second, with as many reads.
    fn million_writes(
        self,
        offloaded: Offloaded,
        level: LevelZero,
        link: StorageLink,
        factors: &Factors,
    ) -> f64 {
        let compacted = match offloaded {
            Offloaded::Nothing | Offloaded::Memtables | Offloaded::Flushes => factors.read,
            _ => 0.0,
        };
        let inbound = compacted * self.record_bytes + self.misses * BLOCK_READ_BYTES;
        let by_writes = throughput(offloaded, level, link, factors) / self.record_bytes;
        by_writes.min(factors.link(link) / inbound)
    }

    /// Highest number of millions of reads a second of an owner whose compactions run elsewhere.
    pub(super) fn million_reads(self, link: StorageLink, factors: &Factors) -> f64 {
        factors.link(link) / (self.misses * BLOCK_READ_BYTES)
    }

    /// Highest ratio of everything offloaded over the classic baseline.
    pub(super) fn ratio(self, link: StorageLink, factors: &Factors) -> f64 {
        let all = Offloaded::All { compute_nodes: 1 };
        self.million_writes(all, LevelZero::Buckets, link, factors)
            / self.million_writes(Offloaded::Nothing, LevelZero::Classic, link, factors)
    }
}

/// Highest ratio of range reads: runs that an iterator opens without offloading, over those with at
/// most `layers` of L0.
pub(super) fn range_ratio(layers: f64) -> f64 {
    /// Layers of a classic L0 at the slowdown, less one that a compaction takes, and levels.
    const CLASSIC_RUNS: f64 = 34.0;
    const LEVELS: f64 = 3.0;
    CLASSIC_RUNS / (layers + LEVELS)
}

/// Streams of parallel flushes with `compute_nodes`, a memory node and no other executor, over one.
pub(super) fn flush_streams(compute_nodes: f64, factors: &Factors) -> f64 {
    (compute_nodes + 1.0) * factors.jobs
}

/// Times of the two ways to read a record at a memory node, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ReadWays {
    pub(super) read_us: f64,
    pub(super) request_us: f64,
}

impl ReadWays {
    /// Times of a READ of 128 B and of an empty request over shared memory (decision 0010).
    pub(super) const SHARED_MEMORY: Self = Self { read_us: 0.15, request_us: 1.34 };
}

/// Bytes that an entry of the key-offset cache takes in the product.
const OFFSET_ENTRY_BYTES: u64 = 96;
/// Time of a read at a cached offset over that of a delegated one, over shared memory: the bound of
/// Table 4.
const CACHED_READ: f64 = 0.2;
/// Skew of zipfian keys.
const THETA: f64 = 0.99;

/// Reads of records in memtables at memory nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CachedReads {
    pub(super) records: u64,
}

impl CachedReads {
    /// Number of records whose offsets a cache of `bytes` has.
    fn cached(self, bytes: u64) -> u64 {
        (bytes / OFFSET_ENTRY_BYTES).min(self.records)
    }

    /// Highest share of reads with uniform keys that a cache of `bytes` answers.
    pub(super) fn uniform_hits(self, bytes: u64) -> f64 {
        self.cached(bytes) as f64 / self.records as f64
    }

    /// Highest share of reads with zipfian keys that a cache of `bytes` answers, which has the most
    /// frequent keys.
    pub(super) fn zipfian_hits(self, bytes: u64) -> f64 {
        zipfian_weight(self.cached(bytes)) / zipfian_weight(self.records)
    }

    /// Highest ratio of the rates of reads, by the shares that their caches answer.
    pub(super) fn ratio(own: f64, peer: f64) -> f64 {
        let time = |hits: f64| 1.0 - hits * (1.0 - CACHED_READ);
        time(peer) / time(own)
    }
}

/// Weight of the `count` most frequent keys: the sum of their ranks to the power of -θ. After some
/// ranks it is an integral.
fn zipfian_weight(count: u64) -> f64 {
    const SUMMED: u64 = 1000;
    let head: f64 = (1..=count.min(SUMMED)).map(|rank| (rank as f64).powf(-THETA)).sum();
    let through = |rank: u64| (rank as f64 + 0.5).powf(1.0 - THETA) / (1.0 - THETA);
    head + through(count.max(SUMMED)) - through(SUMMED)
}

/// Least number of seconds of a replay of `bytes` of keys and values, which writes them to tables
/// over a link at the speed of the command.
pub(super) fn replay_seconds(bytes: f64, link: StorageLink, factors: &Factors) -> f64 {
    factors.flushed * bytes / 1e6 / (factors.link(link) * SCALE)
}

/// Share of a flush that fetching the image over a link of `memory_mb_per_s` MB/s takes.
pub(super) fn fetch_share(memory_mb_per_s: f64, factors: &Factors) -> f64 {
    factors.stream / memory_mb_per_s
}

/// Highest ratio of `compute_nodes` over one by the links of flushes, with one memory node.
pub(super) fn scaling_by_links(compute_nodes: f64, memory_nodes: f64) -> f64 {
    (compute_nodes + memory_nodes) / (1.0 + memory_nodes)
}

/// Highest ratio of `to` memory nodes over `from` by the links of flushes.
pub(super) fn memory_scaling(compute_nodes: f64, from: f64, to: f64) -> f64 {
    (compute_nodes + to) / (compute_nodes + from)
}

/// Highest ratio of `compute_nodes` over one by the streams of all executors.
pub(super) fn scaling_by_streams(compute_nodes: f64, factors: &Factors) -> f64 {
    let streams = |nodes: f64| factors.storage_executors + nodes + 1.0;
    streams(compute_nodes) / streams(1.0)
}

/// Probability that at least `least` of `others` compute nodes are in a burst, which takes the
/// share `duty` of the time.
pub(super) fn bursts_meet(least: u32, others: u32, duty: f64) -> f64 {
    let ways = |of: u32, take: u32| {
        (0..take).fold(1.0, |ways, at| ways * f64::from(of - at) / f64::from(at + 1))
    };
    let exactly = |count: u32| {
        let rest = i32::try_from(others - count).unwrap_or(i32::MAX);
        let count_power = i32::try_from(count).unwrap_or(i32::MAX);
        ways(others, count) * duty.powi(count_power) * (1.0 - duty).powi(rest)
    };
    (least..=others).map(exactly).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Offloaded = Offloaded::All { compute_nodes: 1 };

    fn is_near(value: f64, wanted: f64, tolerance: f64) {
        assert!((value - wanted).abs() <= tolerance, "{value}, not {wanted}");
    }

    fn both(offloaded: Offloaded, level: LevelZero) -> [f64; 2] {
        StorageLink::ALL.map(|link| throughput(offloaded, level, link, &Factors::FIXED))
    }

    #[test]
    fn bounds_of_modes_are_those_of_the_decision() {
        use LevelZero::{Buckets, Classic};
        let table = [
            (Offloaded::Nothing, Classic, [34.0, 37.0]),
            (Offloaded::Nothing, Buckets, [34.0, 41.0]),
            (Offloaded::Compactions, Classic, [37.0, 37.0]),
            (Offloaded::Compactions, Buckets, [112.0, 151.0]),
            (Offloaded::AllAtStorage, Buckets, [151.0, 151.0]),
            (ALL, Buckets, [173.0, 206.0]),
            (Offloaded::All { compute_nodes: 2 }, Buckets, [207.0, 247.0]),
        ];
        for (offloaded, level, wanted) in table {
            for (value, wanted) in both(offloaded, level).into_iter().zip(wanted) {
                is_near(value, wanted, 0.55);
            }
        }
    }

    #[test]
    fn ratios_of_modes_are_those_of_the_decision() {
        use LevelZero::{Buckets, Classic};
        let all = both(ALL, Buckets);
        let table = [
            (Offloaded::Nothing, Classic, [5.1, 5.6]),
            (Offloaded::Nothing, Buckets, [5.1, 5.0]),
            (Offloaded::Compactions, Classic, [4.7, 5.6]),
            (Offloaded::Compactions, Buckets, [1.54, 1.37]),
        ];
        for (offloaded, level, wanted) in table {
            for (at, (value, wanted)) in both(offloaded, level).into_iter().zip(wanted).enumerate()
            {
                is_near(all[at] / value, wanted, 0.06);
            }
        }
    }

    #[test]
    fn fewer_rewritten_bytes_raise_the_bound() {
        let factors = Factors { read: 1.5, written: 1.5, ..Factors::FIXED };
        let link = StorageLink::TwoAndAHalf;
        let all = throughput(ALL, LevelZero::Buckets, link, &factors);
        is_near(all, 289.0, 0.5);
        let compactions = both(Offloaded::Compactions, LevelZero::Buckets)[1];
        is_near(all / compactions, 1.9, 0.03);
    }

    #[test]
    fn log_on_the_storage_costs_what_the_decision_says() {
        let table = [
            (SharedLog::DIRECTORY, [98.0, 204.0], [25.0, 37.0]),
            (SharedLog::VOLUME, [33.0, 81.0], [8.0, 21.0]),
        ];
        for (shared, all, baseline) in table {
            for (at, link) in StorageLink::ALL.into_iter().enumerate() {
                is_near(all_with_log(shared, link, &Factors::FIXED), all[at], 0.55);
                is_near(baseline_with_log(shared, link, &Factors::FIXED), baseline[at], 0.55);
            }
        }
    }

    #[test]
    fn ratios_of_reads_are_those_of_the_decision() {
        let of = |record_bytes, misses| {
            MixedLoad { record_bytes, misses }.ratio(StorageLink::TwoAndAHalf, &Factors::FIXED)
        };
        is_near(of(80.0, 0.16), 1.27, 0.01);
        is_near(of(80.0, 0.04), 3.5, 0.05);
        is_near(of(272.0, 0.16), 3.0, 0.05);
        is_near(of(1040.0, 0.16), 5.6, 0.05);
        is_near(range_ratio(4.0), 4.9, 0.05);
    }

    #[test]
    fn bounds_of_many_nodes_are_those_of_the_decision() {
        is_near(flush_streams(2.0, &Factors::FIXED), 12.0, 0.0);
        is_near(fetch_share(5000.0, &Factors::FIXED), 0.015, 1e-9);
        is_near(scaling_by_links(5.0, 1.0), 3.0, 0.0);
        is_near(scaling_by_streams(5.0, &Factors::FIXED), 1.8, 1e-9);
        is_near(memory_scaling(3.0, 1.0, 3.0), 1.5, 0.0);
        // 36 streams; and six links, over which x + 2.3·(x − 151) leave.
        let five = |link| cluster(5.0, 1.0, link, &Factors::FIXED);
        is_near(five(StorageLink::TwoAndAHalf), 371.0, 0.5);
        is_near(five(StorageLink::One), 309.5, 0.5);
        is_near(bursts_meet(3, 4, 0.2), 0.027, 0.0005);
        is_near(bursts_meet(2, 4, 0.2), 0.18, 0.002);
    }

    #[test]
    fn memtables_absorb_a_part_of_a_finite_run() {
        assert_eq!(finite_seconds(100.0, 20.0, 10.0, 100.0), 8.2);
        assert_eq!(finite_seconds(100.0, 200.0, 10.0, 100.0), 1.0);
    }

    #[test]
    fn larger_key_offset_caches_answer_more_reads() {
        // Four memtables of 4 MiB with records of 80 bytes, as decision 0107 has them.
        let reads = CachedReads { records: 4 * (4 << 20) / 80 };
        let mib = [0, 1, 4, 16, 32].map(|mib: u64| mib << 20);
        let near = |measured: [f64; 5], wanted: [f64; 5]| {
            measured.into_iter().zip(wanted).for_each(|pair| is_near(pair.0, pair.1, 0.006));
        };
        near(mib.map(|bytes| reads.uniform_hits(bytes)), [0.0, 0.05, 0.21, 0.83, 1.0]);
        near(mib.map(|bytes| reads.zipfian_hits(bytes)), [0.0, 0.76, 0.87, 0.98, 1.0]);
        let eightfold = |hits: fn(CachedReads, u64) -> f64| {
            CachedReads::ratio(hits(reads, mib[4]), hits(reads, mib[2]))
        };
        is_near(eightfold(CachedReads::uniform_hits), 4.17, 0.01);
        is_near(eightfold(CachedReads::zipfian_hits), 1.52, 0.01);
        is_near(CachedReads::ratio(1.0, 0.0), 5.0, 1e-9);
    }

    #[test]
    fn replay_writes_its_tables_over_the_link() {
        let bytes = 8.0 * f64::from(4 << 20);
        let seconds = |link| replay_seconds(bytes, link, &Factors::FIXED);
        is_near(seconds(StorageLink::TwoAndAHalf), 1.19, 0.01);
        is_near(seconds(StorageLink::One), 2.98, 0.01);
    }
}
