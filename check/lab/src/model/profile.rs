//! Costs of work: measured figures, and the machine that is modelled.
//!
//! `--measure` wrote the [`CostProfile`] on a real machine, and a file keeps it. [`Machine`]
//! describes the paper's machine by its data sheets. Neither is fitted to a result
//! (`docs/decisions/0009-many-core-model-assumptions.md`).

use archipelago_env::device::{DeviceSpec, Direction};
use serde::{Deserialize, Serialize};

use archipelago_bench::harness::store::{Error, Result};

/// The profile that is used unless `--profile` names another.
const FROZEN: &str = include_str!("profile.json");

/// Measured costs of one core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CostProfile {
    /// Kind of machine on which it was measured.
    pub(crate) measured_on: String,
    /// Bytes of a key.
    pub(crate) key_bytes: u64,
    /// Bytes of a value.
    pub(crate) value_bytes: u64,
    /// Bytes of a table file per record.
    pub(crate) file_bytes_per_record: f64,
    /// Time of a writer for one record, in the log and the memtable.
    pub(crate) write_ns_per_record: f64,
    /// Time of a flush per record of the memtable.
    pub(crate) flush_ns_per_record: f64,
    /// Time of a merge of two sorted runs per record that is read.
    pub(crate) merge_ns_per_record: f64,
    /// Cost that each doubling of the number of runs adds.
    pub(crate) merge_ns_per_doubling: f64,
    /// Time to open or make one table file.
    pub(crate) file_ns: f64,
    /// Time to install an edit, without the sync.
    pub(crate) install_ns: f64,
    /// Cost that each file of the version adds.
    pub(crate) install_ns_per_file: f64,
}

impl CostProfile {
    /// The built-in profile.
    pub(crate) fn frozen() -> Result<Self> {
        Self::parse(FROZEN)
    }

    /// A profile from a file's text.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let profile: Self = serde_json::from_str(text)
            .map_err(|error| Error::invalid(format!("the cost profile does not parse: {error}")))?;
        let costs = [
            profile.file_bytes_per_record,
            profile.write_ns_per_record,
            profile.flush_ns_per_record,
            profile.merge_ns_per_record,
        ];
        if costs.iter().any(|cost| !cost.is_finite() || *cost <= 0.0) {
            return Err(Error::invalid("the cost profile has a cost that is not above 0"));
        }
        Ok(profile)
    }

    /// Key and value.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.key_bytes + self.value_bytes
    }

    /// Seconds of a core to merge `records` of `runs` sorted runs.
    pub(crate) fn merge_s(&self, records: f64, runs: usize) -> f64 {
        let doublings = (runs.max(2) as f64 / 2.0).log2();
        records * (self.merge_ns_per_record + doublings * self.merge_ns_per_doubling) / 1e9
    }
}

/// The machine that is modelled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Machine {
    /// Number of physical cores.
    pub(crate) cores: f64,
    /// Number of hardware threads.
    pub(crate) threads: f64,
    /// Speed that a second thread adds to a core, as a fraction of the core's speed.
    pub(crate) smt_gain: f64,
    /// The device that files are on.
    pub(crate) device: DeviceSpec,
    /// Bytes that the device first takes at `burst_bytes_per_s`, into a cache of faster cells.
    pub(crate) burst_bytes: f64,
    /// Bytes a second within a burst of `burst_bytes`.
    pub(crate) burst_bytes_per_s: f64,
    /// Memory that caches files. Bytes that fit are not read from the device.
    pub(crate) page_cache_bytes: f64,
}

impl Machine {
    /// The machine of the BucketLSM paper (Table III): 40 cores and a Samsung 990 PRO of 1 TB.
    pub(crate) fn of_the_paper() -> Self {
        Self {
            cores: 40.0,
            threads: 80.0,
            smt_gain: 0.25,
            device: samsung_990_pro(),
            burst_bytes: 114e9,
            burst_bytes_per_s: 6.9e9,
            page_cache_bytes: 300e9,
        }
    }

    /// The same machine with another device, which has no burst.
    pub(crate) fn on(self, device: DeviceSpec) -> Self {
        Self { device, burst_bytes: 0.0, ..self }
    }

    /// The same machine with a device that never limits, to see the effect of the cores alone.
    pub(crate) fn without_device(self) -> Self {
        const NEVER: u64 = 1 << 50;
        let device = DeviceSpec {
            name: "no device limit".to_owned(),
            source: "nothing".to_owned(),
            total_bytes_per_s: NEVER,
            read_bytes_per_s: NEVER,
            write_bytes_per_s: NEVER,
            stream_bytes_per_s: 0,
            sync_latency_us: 0,
            ..self.device.clone()
        };
        self.on(device)
    }

    /// Bytes that the device writes per second for `streams`.
    pub(crate) fn write_rate(&self, streams: usize, in_burst: bool) -> f64 {
        match in_burst {
            true => self.burst_bytes_per_s,
            false => self.device.direction_rate(Direction::Write, streams),
        }
    }

    /// Speed of `streams` threads whose work asks for `demand` if each runs alone; 1 is full speed.
    /// All threads slow down by the same factor, as under a fair scheduler and a fair device.
    pub(crate) fn speed(&self, demand: Demand, streams: usize, in_burst: bool) -> f64 {
        let part =
            |capacity: f64, asked: f64| if asked > capacity { capacity / asked } else { 1.0 };
        part(self.core_capacity(demand.cores), demand.cores)
            .min(part(self.write_rate(streams, in_burst), demand.write))
            .min(part(self.device.direction_rate(Direction::Read, streams), demand.read))
    }

    /// Work of `busy` threads, in cores. Threads beyond one per core share cores.
    fn core_capacity(&self, busy: f64) -> f64 {
        let shared = (busy.min(self.threads) - self.cores).max(0.0);
        busy.min(self.cores) + shared * self.smt_gain
    }
}

/// The drive by its data sheet: 7,450 MB/s of reads, 6,900 MB/s of writes into a cache of 114 GB,
/// and then 1,400 MB/s. Two figures are assumed. The stream of a file has few operations in flight,
/// and a sync waits for the cells.
fn samsung_990_pro() -> DeviceSpec {
    DeviceSpec {
        name: "Samsung 990 PRO 1 TB".to_owned(),
        source: "data sheet; stream and sync assumed".to_owned(),
        scale: 1.0,
        total_bytes_per_s: 7_450_000_000,
        read_bytes_per_s: 7_450_000_000,
        write_bytes_per_s: 1_400_000_000,
        stream_bytes_per_s: 2_000_000_000,
        operations_per_s: 0,
        io_bytes_max: 256 << 10,
        read_latency_us: 0,
        write_latency_us: 0,
        sync_latency_us: 1000,
        metadata_latency_us: 0,
        write_curve: Vec::new(),
        log_dirty_bytes_max: 64 << 20,
    }
}

/// Demand of work that runs at full speed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Demand {
    /// Number of cores.
    pub(crate) cores: f64,
    /// Device writes, bytes a second.
    pub(crate) write: f64,
    /// Device reads, bytes a second.
    pub(crate) read: f64,
}

impl std::ops::Add for Demand {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            cores: self.cores + other.cores,
            write: self.write + other.write,
            read: self.read + other.read,
        }
    }
}

/// A piece of one thread's work, and its time alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Work {
    /// Seconds of a core.
    pub(crate) cpu_s: f64,
    /// Bytes that are written to the device.
    pub(crate) write_bytes: f64,
    /// Bytes that are read from the device.
    pub(crate) read_bytes: f64,
    /// Seconds of waiting for syncs.
    pub(crate) wait_s: f64,
}

impl Work {
    /// Seconds on an idle machine, where a thread alternately computes, reads and writes.
    pub(crate) fn alone_s(&self, machine: &Machine) -> f64 {
        let device = &machine.device;
        let write = device.rate(Direction::Write, 0, 1);
        let read = device.rate(Direction::Read, 1, 0);
        let io_s = self.write_bytes / write + self.read_bytes / read;
        (self.cpu_s + io_s + self.wait_s).max(1e-6)
    }

    /// Average demand while the work runs.
    pub(crate) fn demand(&self, machine: &Machine) -> Demand {
        let alone_s = self.alone_s(machine);
        Demand {
            cores: self.cpu_s / alone_s,
            write: self.write_bytes / alone_s,
            read: self.read_bytes / alone_s,
        }
    }
}
