//! What an emulated device did, as values.

use archipelago_base::metrics::Counters;

use super::Direction;
use crate::context::IoPurpose;
use crate::stats::{PURPOSES, purpose_index};

const COUNTS: usize = 6;

/// What is counted for a purpose; the order of the counters.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    ReadOps,
    ReadBytes,
    WriteOps,
    WriteBytes,
    Syncs,
    WaitedNs,
}

/// What a device did for one purpose, or a sum of such.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Read operations as the device counts them: a large one is several.
    pub read_ops: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write operations as the device counts them, log appends not among them.
    pub write_ops: u64,
    /// Bytes written, log and tables.
    pub write_bytes: u64,
    /// Syncs of files and logs.
    pub syncs: u64,
    /// Nanoseconds that callers were made to wait.
    pub waited_ns: u64,
}

/// All counts of a device at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    purposes: [DeviceCounts; PURPOSES],
    /// Readers that wait now.
    pub readers: usize,
    /// The most that waited at once.
    pub readers_max: usize,
    /// Writers that wait now.
    pub writers: usize,
    /// The most that waited at once.
    pub writers_max: usize,
    /// Nanoseconds during which anybody waited.
    pub busy_ns: u64,
    /// Bytes of logs that are not on the device yet.
    pub log_dirty_bytes: u64,
}

impl DeviceStats {
    /// What was done for `purpose`. The levels of a compaction do not matter.
    #[must_use]
    pub fn of(&self, purpose: IoPurpose) -> DeviceCounts {
        self.purposes[purpose_index(purpose)]
    }

    /// Everything.
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

/// The counters behind [`DeviceStats`].
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

/// How many callers are at it.
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
