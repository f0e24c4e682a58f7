//! Settings of the modelled runs: cluster, mode and load.

use super::super::bounds::{Factors, Offloaded, StorageLink, cluster};
use super::owner::WriteLoad;
use super::{MEMTABLE_MB, WRITER_PEAK};

/// Memtables of a database whose memtables stay, and local ones of a database whose leave (§5.1).
const LOCAL_MEMTABLES: usize = 8;
const KEPT_MEMTABLES: usize = 2;
/// Memtables at memory nodes for each database, with a memory factor of one.
const REMOTE_MEMTABLES: usize = 6;
/// Memtables of the memory of Table 10 for each database: 0.5 GB.
const QUOTA_MEMTABLES: usize = 8;
/// Time between the starts of two databases in nanoseconds, because the paper starts them one after
/// another, too.
const START_GAP_NS: u64 = 10_000_000_000;
/// Share of the time in which an owner has the excess of a burst in memory.
const DUTY: f64 = 0.2;
/// Bytes that a read fetches from the storage on average, and bytes of a record, in the mixed load
/// of 1 KiB values.
const READ_BYTES: f64 = 0.16 * 4342.0;
const RECORD_BYTES: f64 = 1040.0;
/// Threads that read and write.
const THREADS: f64 = 64.0;

/// Load of all databases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Load {
    /// Random writes without a pause.
    Writes,
    /// As many random reads as writes, with values of 1 KiB.
    Mixed,
    Bursts(Bursts),
}

/// Bursts and pauses of each database. A burst is what writers at full speed write while the
/// cluster flushes at its bound, and `excess` quotas more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bursts {
    pub(super) excess: f64,
    pub(super) memory: Memory,
}

/// How databases divide the memory of Table 10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    Fixed,
    Shared,
}

/// A modelled run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) offloaded: Offloaded,
    pub(super) compute_nodes: usize,
    pub(super) memory_nodes: usize,
    /// Memory of all memory nodes together, as a multiple of six memtables (with bursts: eight) for
    /// each database.
    pub(super) memory_factor: usize,
    pub(super) link: StorageLink,
    pub(super) load: Load,
    /// Length of the run. The second half is measured.
    pub(super) seconds: u64,
    pub(super) seed: u64,
    pub(super) factors: Factors,
}

/// Figures of bursts, which follow from a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BurstFigures {
    /// Bytes of a burst, in MB.
    pub(super) mb: f64,
    /// Seconds of a burst that nothing delays.
    pub(super) seconds: f64,
    /// Mean pause in seconds.
    pub(super) pause_s: f64,
    /// Seconds for which an owner alone waits in each burst with a fixed quota, if it has no more
    /// than its part of the bound.
    pub(super) fixed_wait_s: f64,
}

impl Setting {
    /// Databases that offload everything and write without a pause, with one memory node.
    pub(super) fn writes(compute_nodes: usize, link: StorageLink, seconds: u64) -> Self {
        Self {
            offloaded: Offloaded::All { compute_nodes: compute_nodes as u32 },
            compute_nodes,
            memory_nodes: 1,
            memory_factor: 1,
            link,
            load: Load::Writes,
            seconds,
            seed: 1,
            factors: Factors::FIXED,
        }
    }

    /// Whether memtables leave.
    pub(super) fn sends(&self) -> bool {
        !matches!(self.offloaded, Offloaded::Nothing | Offloaded::Compactions)
    }

    pub(super) fn local_memtables(&self) -> usize {
        if self.sends() { KEPT_MEMTABLES } else { LOCAL_MEMTABLES }
    }

    /// MB of memory of all memory nodes together.
    pub(super) fn memory_mb(&self) -> f64 {
        let each = match self.load {
            Load::Bursts(_) => QUOTA_MEMTABLES,
            _ => REMOTE_MEMTABLES,
        };
        (each * self.compute_nodes * self.memory_factor) as f64 * MEMTABLE_MB
    }

    /// MB that one database may have at all memory nodes.
    pub(super) fn owner_mb_max(&self) -> f64 {
        match self.load {
            Load::Bursts(Bursts { memory: Memory::Fixed, .. }) => quota_mb(),
            _ => f64::INFINITY,
        }
    }

    /// Highest MB/s of user bytes of all databases together, with everything offloaded.
    pub(super) fn bound(&self) -> f64 {
        let (compute, memory) = (self.compute_nodes as f64, self.memory_nodes as f64);
        let writes = cluster(compute, memory, self.link, &self.factors);
        match self.load {
            Load::Mixed => writes.min(compute * self.factors.link(self.link) / self.read_share()),
            _ => writes,
        }
    }

    /// Bytes that reads fetch from the storage for each byte that is written.
    pub(super) fn read_share(&self) -> f64 {
        match self.load {
            Load::Mixed => READ_BYTES / RECORD_BYTES,
            _ => 0.0,
        }
    }

    /// Streams of the reads of one database.
    pub(super) fn read_streams(&self) -> f64 {
        if self.load == Load::Mixed { THREADS } else { 1.0 }
    }

    /// The load of the database `number`. `draw` is a random number from 0 to 1.
    pub(super) fn write_load(&self, number: usize, draw: f64) -> WriteLoad {
        let rate = WRITER_PEAK;
        match self.load {
            Load::Writes | Load::Mixed => {
                let begin_ns = number as u64 * START_GAP_NS;
                WriteLoad { rate, burst_mb: f64::INFINITY, pause_s: 0.0, begin_ns }
            }
            Load::Bursts(bursts) => {
                let BurstFigures { mb: burst_mb, pause_s, .. } = self.burst_figures(bursts);
                let begin_ns = (draw * pause_s * 1e9) as u64;
                WriteLoad { rate, burst_mb, pause_s, begin_ns }
            }
        }
    }

    /// Sizes and times of bursts. While a burst's excess is written and then drained at an equal
    /// part of the bound, the owner has memory in use; this is [`DUTY`] of the time.
    pub(super) fn burst_figures(&self, bursts: Bursts) -> BurstFigures {
        let bound = self.bound();
        let part = bound / self.compute_nodes as f64;
        let excess_mb = bursts.excess * quota_mb();
        let seconds = excess_mb / (WRITER_PEAK - bound);
        let in_use_s = seconds + excess_mb / part;
        BurstFigures {
            mb: WRITER_PEAK * seconds,
            seconds,
            pause_s: in_use_s * (1.0 - DUTY) / DUTY,
            fixed_wait_s: (excess_mb - quota_mb()).max(0.0) / part,
        }
    }
}

/// MB of an equal part of the memory of Table 10.
fn quota_mb() -> f64 {
    QUOTA_MEMTABLES as f64 * MEMTABLE_MB
}
