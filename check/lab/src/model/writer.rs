//! The modelled writers, whose speed is limited by their cores, the stall decision and the
//! memtables.
//!
//! The decision is made as in the engine: at every seal, at the end of every job, and, while writes
//! are delayed, before each write (here every [`DELAYED_LOOK_NS`]). Both rates are the engine's own
//! meters on the virtual clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::{Clock, ManualClock};
use archipelago_engine::stall::{
    DRAIN_WINDOW, INGEST_WINDOW, RateMeter, StallDecision, StallInput, job_speed, stall,
};

use super::setting::Setting;
use super::store::Store;

/// Interval at which delayed writers check again: the engine's longest single delay.
pub(super) const DELAYED_LOOK_NS: u64 = 20_000_000;

/// The writers, as one stream of records.
#[derive(Debug)]
pub(super) struct Writer {
    /// Number of records of the active memtable, and of all.
    pub(super) active: f64,
    pub(super) written: f64,
    capacity: f64,
    record_bytes: f64,
    peak_bytes_per_s: f64,
    buffers_max: usize,
    pub(super) decision: StallDecision,
    ingest: RateMeter,
    drain: RateMeter,
    flush_speed: u64,
    compaction_speed: u64,
    /// Time at which the backlog of flushes last shrank or began.
    backlog_since_ns: u64,
    /// Seconds that writers lost, by cause.
    pub(super) stalled_s: BTreeMap<&'static str, f64>,
}

impl Writer {
    pub(super) fn new(setting: &Setting, clock: &Arc<ManualClock>) -> Self {
        let clock = || Arc::clone(clock) as Arc<dyn Clock>;
        Self {
            active: 0.0,
            written: 0.0,
            capacity: setting.memtable_records(),
            record_bytes: setting.cost.record_bytes() as f64,
            peak_bytes_per_s: setting.peak_bytes_per_s(),
            buffers_max: setting.options().write_buffers_max,
            decision: StallDecision::None,
            ingest: RateMeter::new(clock(), INGEST_WINDOW),
            drain: RateMeter::new(clock(), DRAIN_WINDOW),
            flush_speed: 0,
            compaction_speed: 0,
            backlog_since_ns: 0,
            stalled_s: BTreeMap::new(),
        }
    }

    /// Notes that a flush has written out `records` from `started_ns` to `now_ns`, while `at_once`
    /// flushes ran.
    pub(super) fn drained(&mut self, records: u64, at_once: usize, started_ns: u64, now_ns: u64) {
        let bytes = (records as f64 * self.record_bytes) as u64;
        self.drain.add(bytes);
        let duration = Duration::from_nanos(now_ns - started_ns);
        self.flush_speed = job_speed(self.flush_speed, bytes, at_once, duration);
        self.backlog_since_ns = now_ns;
    }

    /// Notes that a compaction has taken `records` out of L0 from `started_ns` to `now_ns`, while
    /// `at_once` compactions ran.
    pub(super) fn compacted(&mut self, records: u64, at_once: usize, started_ns: u64, now_ns: u64) {
        let bytes = (records as f64 * self.record_bytes) as u64;
        let duration = Duration::from_nanos(now_ns - started_ns);
        self.compaction_speed = job_speed(self.compaction_speed, bytes, at_once, duration);
    }

    /// Notes that the first memtable that waits for its flush was sealed.
    pub(super) fn backlog_begins(&mut self, now_ns: u64) {
        self.backlog_since_ns = now_ns;
    }

    /// Makes the stall decision again.
    pub(super) fn decide(&mut self, store: &Store, now_ns: u64) {
        if self.is_delayed() {
            self.ingest.restart_window();
        }
        self.ingest.set_total((self.written * self.record_bytes) as u64);
        let spare = self.buffers_max.saturating_sub(1 + store.sealed.len()) as f64;
        let space = spare * self.capacity + self.room();
        self.decision = stall(&StallInput {
            flush_backlog_bytes: (store.backlog() as f64 * self.record_bytes) as u64,
            memtable_space_bytes: (space * self.record_bytes) as u64,
            flush_bytes_per_s: self.flush_speed,
            flush_elapsed: Duration::from_nanos(now_ns - self.backlog_since_ns),
            peak_bytes_per_s: self.ingest.rate(),
            drain_bytes_per_s: self.drain.rate(),
            compaction_bytes_per_s: self.compaction_speed,
            ..StallInput::of(&store.version)
        });
    }

    pub(super) fn is_delayed(&self) -> bool {
        matches!(self.decision, StallDecision::Delay { .. })
    }

    pub(super) fn is_full(&self) -> bool {
        self.active >= self.capacity - 1e-6
    }

    /// Whether the active memtable may be sealed when it is full (`db/seal.rs`).
    pub(super) fn may_seal(&self, store: &Store) -> bool {
        store.sealed.len() + 1 < self.buffers_max
    }

    /// Records a second that writers are allowed on an idle machine.
    pub(super) fn wanted_per_s(&self) -> f64 {
        let bytes_per_s = match self.decision {
            _ if self.is_full() => 0.0,
            StallDecision::None => self.peak_bytes_per_s,
            StallDecision::Delay { bytes_per_s, .. } => {
                self.peak_bytes_per_s.min(bytes_per_s as f64)
            }
            StallDecision::Stop { .. } => 0.0,
        };
        bytes_per_s / self.record_bytes
    }

    /// Records that still fit the active memtable.
    pub(super) fn room(&self) -> f64 {
        (self.capacity - self.active).max(0.0)
    }

    /// Writes for `seconds`, at `per_s` records a second.
    pub(super) fn write(&mut self, seconds: f64, per_s: f64) {
        let records = seconds * per_s;
        self.active += records;
        self.written += records;
        let cause = match self.decision {
            _ if self.is_full() => "memtables",
            StallDecision::None => return,
            StallDecision::Delay { cause, .. } | StallDecision::Stop { cause } => cause.name(),
        };
        let peak_per_s = self.peak_bytes_per_s / self.record_bytes;
        *self.stalled_s.entry(cause).or_default() += seconds * (1.0 - per_s / peak_per_s);
    }
}
