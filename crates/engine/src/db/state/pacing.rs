//! Measured speeds of writers and flushes, and the delays that follow from them.
//!
//! The database owns one [`Pacing`]. Writers and jobs report what they did; the stall decision
//! (`crate::stall`) and the choice of compactions read the figures.
//!
//! Invariants: the figures are estimates. Correctness depends on none of them.
//!
//! Thread-safety: any thread may call any method; all fields are atomic or lock themselves.
//! Failure: none.
//! Cost: a few relaxed atomic operations for each seal, each flush and each delayed write. A write
//! that is not delayed touches nothing here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::Clock;
use archipelago_env::WriterRoom;
use archipelago_env::foreground::Foreground;

use crate::stall::{DRAIN_WINDOW, DelayController, INGEST_WINDOW, RateMeter, job_speed};

/// Times of the last seals, for decisions that depend on the load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastSeal {
    /// Time since the last seal, in nanoseconds; `None` before the first one.
    pub(crate) since_ns: Option<u64>,
    /// Time between the last two seals, in nanoseconds; 0 before the second one.
    pub(crate) interval_ns: u64,
}

/// The speeds of an open database.
pub(crate) struct Pacing {
    delays: DelayController,
    /// Delays of writes that free space while the storage pool delays all others.
    freeing_delays: DelayController,
    /// Rate at which users write, while they are not delayed.
    ingest: RateMeter,
    /// Rate at which flushes write bytes into tables.
    drain: RateMeter,
    /// Measured speed of flushes, in bytes a second; 0 before the first one.
    flush_speed: AtomicU64,
    /// Measured speed of flushes that take shards from memory nodes, in bytes a second; 0 before
    /// the first one.
    node_flush_speed: AtomicU64,
    /// Measured speed of sends to memory nodes, in bytes a second; 0 before the first one.
    send_speed: AtomicU64,
    /// Measured speed at which compactions take ingested bytes out of L0, in bytes a second; 0
    /// before the first one.
    compaction_speed: AtomicU64,
    /// Time of the last seal, in nanoseconds of the clock; 0 before the first one.
    last_seal_ns: AtomicU64,
    /// Time between the last two seals, in nanoseconds; 0 before the second one.
    seal_interval_ns: AtomicU64,
    /// Number of look-ups that memtables answered, plus number of seeks, until the last seal.
    reads_at_seal: AtomicU64,
    /// The last measured room of writers in a pool. Both are 0 before the first measurement.
    pool_left_bytes: AtomicU64,
    pool_slowdown_bytes: AtomicU64,
    /// Tracks user reads, so that compactions can yield to them.
    foreground: Arc<Foreground>,
}

impl Pacing {
    pub(crate) fn new(clock: &Arc<dyn Clock>, foreground: Arc<Foreground>) -> Self {
        Self {
            delays: DelayController::new(Arc::clone(clock)),
            freeing_delays: DelayController::new(Arc::clone(clock)),
            ingest: RateMeter::new(Arc::clone(clock), INGEST_WINDOW),
            drain: RateMeter::new(Arc::clone(clock), DRAIN_WINDOW),
            flush_speed: AtomicU64::new(0),
            node_flush_speed: AtomicU64::new(0),
            send_speed: AtomicU64::new(0),
            compaction_speed: AtomicU64::new(0),
            last_seal_ns: AtomicU64::new(0),
            seal_interval_ns: AtomicU64::new(0),
            reads_at_seal: AtomicU64::new(0),
            pool_left_bytes: AtomicU64::new(0),
            pool_slowdown_bytes: AtomicU64::new(0),
            foreground,
        }
    }

    pub(crate) fn delays(&self) -> &DelayController {
        &self.delays
    }

    /// Delays of writes that free space while the storage pool delays all others. They are apart,
    /// because such writes must not wait until the others have paid.
    pub(crate) fn freeing_delays(&self) -> &DelayController {
        &self.freeing_delays
    }

    pub(crate) fn ingest(&self) -> &RateMeter {
        &self.ingest
    }

    pub(crate) fn drain(&self) -> &RateMeter {
        &self.drain
    }

    pub(crate) fn foreground(&self) -> &Foreground {
        &self.foreground
    }

    /// Measured speed of flushes, in bytes a second; 0 before the first one.
    pub(crate) fn flush_speed(&self) -> u64 {
        self.flush_speed.load(Ordering::Relaxed)
    }

    /// Learns the speed of flushes from a flush that wrote `bytes` while `flushes` flushes ran.
    pub(crate) fn measure_flush(&self, bytes: u64, flushes: usize, duration: Duration) {
        let before = self.flush_speed.load(Ordering::Relaxed);
        self.flush_speed.store(job_speed(before, bytes, flushes, duration), Ordering::Relaxed);
    }

    /// Measured speed of flushes that take shards from memory nodes, in bytes a second; 0 before
    /// the first one.
    pub(crate) fn node_flush_speed(&self) -> u64 {
        self.node_flush_speed.load(Ordering::Relaxed)
    }

    /// Learns the speed of flushes of shards at memory nodes from one that wrote `bytes` while
    /// `flushes` flushes ran.
    pub(crate) fn measure_node_flush(&self, bytes: u64, flushes: usize, duration: Duration) {
        let before = self.node_flush_speed.load(Ordering::Relaxed);
        let speed = job_speed(before, bytes, flushes, duration);
        self.node_flush_speed.store(speed, Ordering::Relaxed);
    }

    /// Measured speed of sends to memory nodes, in bytes a second; 0 before the first one.
    pub(crate) fn send_speed(&self) -> u64 {
        self.send_speed.load(Ordering::Relaxed)
    }

    /// Learns the speed of sends from a send of `bytes` while `sends` sends ran.
    pub(crate) fn measure_send(&self, bytes: u64, sends: usize, duration: Duration) {
        let before = self.send_speed.load(Ordering::Relaxed);
        self.send_speed.store(job_speed(before, bytes, sends, duration), Ordering::Relaxed);
    }

    /// Measured speed at which compactions take ingested bytes out of L0, in bytes a second; 0
    /// before the first one.
    pub(crate) fn compaction_speed(&self) -> u64 {
        self.compaction_speed.load(Ordering::Relaxed)
    }

    /// Learns the speed of compactions of L0 from a compaction that took `bytes` out of it while
    /// `at_once` such compactions ran.
    pub(crate) fn measure_compaction(&self, bytes: u64, at_once: usize, duration: Duration) {
        let before = self.compaction_speed.load(Ordering::Relaxed);
        let speed = job_speed(before, bytes, at_once, duration);
        self.compaction_speed.store(speed, Ordering::Relaxed);
    }

    /// Number of reads since the last call, if `reads` were counted in all. Each seal calls it
    /// once.
    pub(crate) fn reads_since_seal(&self, reads: u64) -> u64 {
        reads.saturating_sub(self.reads_at_seal.swap(reads, Ordering::Relaxed))
    }

    /// Room of writers in the pool, by the last measurement. It slows nobody down before the first
    /// one, and without a pool.
    pub(crate) fn writer_room(&self) -> WriterRoom {
        WriterRoom {
            left_bytes: self.pool_left_bytes.load(Ordering::Relaxed),
            slowdown_bytes: self.pool_slowdown_bytes.load(Ordering::Relaxed),
        }
    }

    /// Notes the room of writers in the pool. Returns whether this measurement or the one before
    /// slows writers down.
    pub(crate) fn note_writer_room(&self, room: Option<WriterRoom>) -> bool {
        let (before, now) = (self.writer_room(), room.unwrap_or_default());
        self.pool_left_bytes.store(now.left_bytes, Ordering::Relaxed);
        self.pool_slowdown_bytes.store(now.slowdown_bytes, Ordering::Relaxed);
        [before, now].iter().any(|room| room.left_bytes < room.slowdown_bytes)
    }

    /// Notes a seal at `now_ns` of the clock.
    pub(crate) fn note_seal(&self, now_ns: u64) {
        let last_ns = self.last_seal_ns.swap(now_ns, Ordering::Relaxed);
        if last_ns > 0 {
            self.seal_interval_ns.store(now_ns.saturating_sub(last_ns), Ordering::Relaxed);
        }
    }

    /// The last seal as of `now_ns` of the clock.
    pub(crate) fn last_seal(&self, now_ns: u64) -> LastSeal {
        let sealed_ns = self.last_seal_ns.load(Ordering::Relaxed);
        LastSeal {
            since_ns: (sealed_ns > 0).then(|| now_ns.saturating_sub(sealed_ns)),
            interval_ns: self.seal_interval_ns.load(Ordering::Relaxed),
        }
    }
}
