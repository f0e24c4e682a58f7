//! Statistics of an emulated device, as values.

use archipelago_base::metrics::Counters;

use super::Direction;
use crate::context::IoPurpose;
use crate::stats::{PURPOSES, purpose_index};

const COUNTS: usize = 6;

/// Counters of one purpose, in their order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    ReadOps,
    ReadBytes,
    WriteOps,
    WriteBytes,
    Syncs,
    WaitedNs,
}

/// Statistics of a device for one purpose, or a sum of such statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Number of read operations of the device. A large read counts as several.
    pub read_ops: u64,
    /// Number of bytes that were read.
    pub read_bytes: u64,
    /// Number of write operations of the device, without log appends.
    pub write_ops: u64,
    /// Number of bytes that were written to logs and tables.
    pub write_bytes: u64,
    /// Number of syncs of files and logs.
    pub syncs: u64,
    /// Time that callers waited, in nanoseconds.
    pub waited_ns: u64,
}

/// All statistics of a device at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    purposes: [DeviceCounts; PURPOSES],
    /// Number of readers that wait now.
    pub readers: usize,
    /// Largest number of readers that waited at the same time.
    pub readers_max: usize,
    /// Number of writers that wait now.
    pub writers: usize,
    /// Largest number of writers that waited at the same time.
    pub writers_max: usize,
    /// Time during which at least one caller waited, in nanoseconds.
    pub busy_ns: u64,
    /// Number of log bytes that are not on the device yet.
    pub log_dirty_bytes: u64,
}

impl DeviceStats {
    /// Statistics of `purpose`. The levels of a compaction do not matter.
    #[must_use]
    pub fn of(&self, purpose: IoPurpose) -> DeviceCounts {
        self.purposes[purpose_index(purpose)]
    }

    /// Sum of all statistics.
    #[must_use]
    pub fn total(&self) -> DeviceCounts {
        self.purposes.iter().fold(DeviceCounts::default(), |sum, one| DeviceCounts {
            read_ops: sum.read_ops + one.read_ops,
            read_bytes: sum.read_bytes + one.read_bytes,
            write_ops: sum.write_ops + one.write_ops,
            write_bytes: sum.write_bytes + one.write_bytes,
            syncs: sum.syncs + one.syncs,
            waited_ns: sum.waited_ns + one.waited_ns,
        })
    }
}

/// The counters of [`DeviceStats`].
#[derive(Debug, Default)]
pub(super) struct Tally {
    counters: Counters<{ PURPOSES * COUNTS }>,
}

impl Tally {
    pub(super) fn add(&self, purpose: IoPurpose, count: Count, value: u64) {
        self.counters.add(purpose_index(purpose) * COUNTS + count as usize, value);
    }

    pub(super) fn snapshot(&self, waiting: &Waiting) -> DeviceStats {
        let mut stats = DeviceStats {
            readers: waiting.now[Direction::Read as usize],
            readers_max: waiting.most[Direction::Read as usize],
            writers: waiting.now[Direction::Write as usize],
            writers_max: waiting.most[Direction::Write as usize],
            busy_ns: waiting.busy_ns,
            ..DeviceStats::default()
        };
        for (index, counts) in stats.purposes.iter_mut().enumerate() {
            let get = |count: Count| self.counters.get(index * COUNTS + count as usize);
            *counts = DeviceCounts {
                read_ops: get(Count::ReadOps),
                read_bytes: get(Count::ReadBytes),
                write_ops: get(Count::WriteOps),
                write_bytes: get(Count::WriteBytes),
                syncs: get(Count::Syncs),
                waited_ns: get(Count::WaitedNs),
            };
        }
        stats
    }
}

/// Number of callers that wait now, and its maximum.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    now: [usize; 2],
    most: [usize; 2],
    busy_ns: u64,
    busy_since_ns: u64,
}

impl Waiting {
    pub(super) fn begin(&mut self, direction: Direction, now_ns: u64) {
        if self.now == [0, 0] {
            self.busy_since_ns = now_ns;
        }
        let at = direction as usize;
        self.now[at] += 1;
        self.most[at] = self.most[at].max(self.now[at]);
    }

    pub(super) fn end(&mut self, direction: Direction, now_ns: u64) {
        self.now[direction as usize] -= 1;
        if self.now == [0, 0] {
            self.busy_ns += now_ns.saturating_sub(self.busy_since_ns);
        }
    }
}
