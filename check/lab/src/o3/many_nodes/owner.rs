//! One database of the modelled cluster: its memtables, its L0, its writers, and their limit.
//!
//! The limit is the engine's decision (`stall`), with the inputs that the engine gives it
//! (`db/write/stalling.rs`). Both rates are meters of the engine on the virtual clock.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::{Clock, ManualClock};
use archipelago_base::random::Rng;
use archipelago_engine::stall::{
    DRAIN_WINDOW, INGEST_WINDOW, RateMeter, StallCause, StallDecision, StallInput,
    away_excess_bytes, job_speed, stall,
};
use archipelago_fabric::NodeId;
use archipelago_offload::decide::place;
use archipelago_offload::ids::OffloadDb;

use super::jobs::{Job, JobWork};
use super::memory::Room;
use super::{BUCKETS, L0_TRIGGERS, MEMORY_LINK, MEMTABLE_MB, bytes, megabytes, seconds};

/// Number of MB that counts as nothing.
pub(super) const ROUNDING_MB: f64 = 1e-6;
/// Share of the rate that writers want below which they count as stopped.
const STOPPED: f64 = 0.5;

/// One key range of a database.
#[derive(Clone, Debug, Default)]
pub(super) struct Bucket {
    /// MB of sealed memtables that wait here for their flush.
    pub(super) waiting_mb: f64,
    /// MB at each memory node.
    pub(super) held_mb: Vec<f64>,
    /// MB that a running flush takes.
    pub(super) flushing_mb: f64,
    pub(super) layers: usize,
    pub(super) l0_mb: f64,
    pub(super) is_compacting: bool,
}

impl Bucket {
    /// MB at all memory nodes.
    pub(super) fn away_mb(&self) -> f64 {
        self.held_mb.iter().sum()
    }
}

/// Load of the writers of a database.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WriteLoad {
    /// MB/s that writers want.
    pub(super) rate: f64,
    /// MB of a burst; infinite if writers never pause.
    pub(super) burst_mb: f64,
    /// Mean of the pauses between bursts, in seconds. Pauses are distributed exponentially.
    pub(super) pause_s: f64,
    /// Time at which the first burst begins.
    pub(super) begin_ns: u64,
}

/// Times and counts of the writers of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct WriterFigures {
    pub(super) written_mb: f64,
    /// Seconds in which writers wanted to write.
    pub(super) wanted_s: f64,
    /// Seconds of these in which they got less than half of what they wanted.
    pub(super) stopped_s: f64,
    /// Number of such periods.
    pub(super) stops: u64,
}

/// State of a database.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) active_mb: f64,
    /// MB of sealed memtables that wait to be sent to each memory node. Empty if none leave.
    pub(super) unsent_mb: Vec<f64>,
    pub(super) buckets: Vec<Bucket>,
    /// Memory node of each bucket.
    homes: Vec<usize>,
    local_memtables: usize,
    load: WriteLoad,
    /// MB that are left of the present burst.
    left_mb: f64,
    resumes_ns: u64,
    /// Time of the last byte that was written.
    written_ns: u64,
    rng: Rng,
    pub(super) figures: WriterFigures,
    is_stopped: bool,
    /// Time until which its last refusal claims memory.
    pub(super) claims_until_ns: u64,
    decision: StallDecision,
    ingest: RateMeter,
    drain: RateMeter,
    flush_speed: u64,
    node_flush_speed: u64,
    compaction_speed: u64,
    backlog_since_ns: u64,
}

/// Facts from which a database begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerStart<'a> {
    pub(super) number: usize,
    /// Number of memory nodes that take its memtables.
    pub(super) memory_nodes: usize,
    pub(super) local_memtables: usize,
    pub(super) load: WriteLoad,
    pub(super) seed: u64,
    pub(super) clock: &'a Arc<ManualClock>,
}

impl Owner {
    pub(super) fn new(start: OwnerStart<'_>) -> Self {
        let clock = || Arc::clone(start.clock) as Arc<dyn Clock>;
        let db = OffloadDb([start.number as u8 + 1; 16]);
        let nodes = || (0..start.memory_nodes as u64).map(NodeId);
        let home = |bucket: usize| place(db, &[bucket as u8], nodes()).map_or(0, |node| node.0);
        let bucket = Bucket { held_mb: vec![0.0; start.memory_nodes], ..Bucket::default() };
        Self {
            active_mb: 0.0,
            unsent_mb: vec![0.0; start.memory_nodes],
            buckets: vec![bucket; BUCKETS],
            homes: (0..BUCKETS).map(|bucket| home(bucket) as usize).collect(),
            local_memtables: start.local_memtables,
            load: start.load,
            left_mb: 0.0,
            resumes_ns: start.load.begin_ns,
            written_ns: 0,
            rng: Rng::with_seed(start.seed),
            figures: WriterFigures::default(),
            is_stopped: false,
            claims_until_ns: 0,
            decision: StallDecision::None,
            ingest: RateMeter::new(clock(), INGEST_WINDOW),
            drain: RateMeter::new(clock(), DRAIN_WINDOW),
            flush_speed: 0,
            node_flush_speed: 0,
            compaction_speed: 0,
            backlog_since_ns: 0,
        }
    }

    /// Whether its memtables leave.
    pub(super) fn sends(&self) -> bool {
        !self.unsent_mb.is_empty()
    }

    /// MB of sealed memtables here.
    pub(super) fn sealed_mb(&self) -> f64 {
        let waiting: f64 = self.buckets.iter().map(|bucket| bucket.waiting_mb).sum();
        waiting + self.unsent_mb.iter().sum::<f64>()
    }

    /// MB at a memory node.
    pub(super) fn held_at(&self, node: usize) -> f64 {
        self.buckets.iter().map(|bucket| bucket.held_mb[node]).sum()
    }

    /// Layers of the fullest bucket.
    pub(super) fn layers_max(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.layers).max().unwrap_or(0)
    }

    /// Begins the next burst if it is due, and seals a full memtable if that is possible.
    pub(super) fn begin_step(&mut self, now_ns: u64) {
        if self.left_mb <= 0.0 && now_ns >= self.resumes_ns {
            self.left_mb = self.load.burst_mb;
        }
        let sealed = self.sealed_mb();
        let may_seal = sealed_memtables(sealed) + 1 < self.local_memtables;
        if !self.is_full() || !may_seal {
            return;
        }
        if sealed <= ROUNDING_MB {
            self.backlog_since_ns = now_ns;
        }
        self.active_mb = 0.0;
        let each_mb = MEMTABLE_MB / BUCKETS as f64;
        for (bucket, home) in self.buckets.iter_mut().zip(&self.homes) {
            match self.unsent_mb.get_mut(*home) {
                Some(unsent) => *unsent += each_mb,
                None => bucket.waiting_mb += each_mb,
            }
        }
    }

    fn is_full(&self) -> bool {
        self.active_mb >= MEMTABLE_MB - ROUNDING_MB
    }

    /// Nodes with room get the images of nodes without.
    pub(super) fn redirect(&mut self, room: &Room) {
        let Some(best) = largest(&room.free_mb).filter(|at| room.free_mb[*at] > ROUNDING_MB) else {
            return;
        };
        for at in 0..self.unsent_mb.len() {
            if room.free_mb[at] <= ROUNDING_MB {
                let moved = std::mem::take(&mut self.unsent_mb[at]);
                self.unsent_mb[best] += moved;
            }
        }
    }

    /// Makes the decision about the writers again, as `recompute_stall` does.
    pub(super) fn decide(&mut self, room: &Room, now_ns: u64) {
        if self.is_delayed() {
            self.ingest.restart_window();
        }
        self.ingest.set_total(bytes(self.figures.written_mb));
        let sealed = self.sealed_mb();
        let spare = self.local_memtables.saturating_sub(1 + sealed_memtables(sealed));
        let space_mb = (spare + 1) as f64 * MEMTABLE_MB - self.active_mb;
        let (held, limit) = (bytes(room.held_mb), bytes(room.limit_mb));
        let takes_shards = self.sends() && room.largest_mb() > ROUNDING_MB;
        let away_backlog_bytes = if self.sends() { away_excess_bytes(held, limit) } else { 0 };
        let peak_bytes_per_s = self.ingest.rate();
        self.decision = stall(&StallInput {
            l0_files: self.layers_max(),
            l0_slowdown: L0_TRIGGERS[1],
            l0_stop: L0_TRIGGERS[2],
            flush_backlog_bytes: bytes(sealed),
            memtable_space_bytes: bytes(space_mb.max(0.0)),
            flush_bytes_per_s: self.flush_speed,
            flush_elapsed: Duration::from_nanos(now_ns - self.backlog_since_ns),
            send_bytes_per_s: takes_shards.then(|| bytes(MEMORY_LINK)),
            away_backlog_bytes,
            away_space_bytes: limit.saturating_sub(held),
            away_flush_bytes_per_s: self.node_flush_speed,
            peak_bytes_per_s,
            drain_bytes_per_s: self.drain.rate(),
            compaction_bytes_per_s: self.compaction_speed,
            ..StallInput::default()
        });
        // A limit of more than twice the peak delays nobody yet.
        if let StallDecision::Delay { cause: StallCause::Memtables, bytes_per_s } = self.decision
            && peak_bytes_per_s > 0
            && bytes_per_s / 2 > peak_bytes_per_s
        {
            self.decision = StallDecision::None;
        }
    }

    fn is_delayed(&self) -> bool {
        matches!(self.decision, StallDecision::Delay { .. })
    }

    /// MB/s that writers want now.
    fn wanted_rate(&self) -> f64 {
        if self.left_mb > 0.0 { self.load.rate } else { 0.0 }
    }

    /// MB/s that writers may write now.
    pub(super) fn allowed_rate(&self) -> f64 {
        let wanted = self.wanted_rate();
        match self.decision {
            _ if self.is_full() => 0.0,
            StallDecision::None => wanted,
            StallDecision::Delay { bytes_per_s, .. } => wanted.min(megabytes(bytes_per_s)),
            StallDecision::Stop { .. } => 0.0,
        }
    }

    /// MB that writers can write before the memtable is full or the burst is over.
    pub(super) fn writable_mb(&self) -> f64 {
        (MEMTABLE_MB - self.active_mb).min(self.left_mb)
    }

    /// Time until the next burst; `None` during a burst.
    pub(super) fn until_burst_ns(&self, now_ns: u64) -> Option<u64> {
        (self.left_mb <= 0.0).then(|| self.resumes_ns.saturating_sub(now_ns))
    }

    /// Time for which writers have paused; 0 during a burst, also while they are stopped.
    pub(super) fn paused_ns(&self, now_ns: u64) -> u64 {
        let since_ns = if self.left_mb > 0.0 { now_ns } else { self.written_ns };
        now_ns.saturating_sub(since_ns)
    }

    /// Writers write at `rate` from now on, for `passed_s`, until `now_ns`.
    pub(super) fn write(&mut self, rate: f64, passed_s: f64, now_ns: u64) {
        let wanted = self.wanted_rate();
        if wanted <= 0.0 {
            self.is_stopped = false;
            return;
        }
        let is_stopped = rate < STOPPED * wanted;
        self.figures.wanted_s += passed_s;
        self.figures.stopped_s += if is_stopped { passed_s } else { 0.0 };
        self.figures.stops += u64::from(is_stopped && !self.is_stopped);
        self.is_stopped = is_stopped;
        let written = (rate * passed_s).min(self.writable_mb().max(0.0));
        self.active_mb += written;
        self.figures.written_mb += written;
        self.left_mb -= written;
        if written > 0.0 {
            self.written_ns = now_ns;
        }
        if self.left_mb <= ROUNDING_MB {
            self.left_mb = 0.0;
            let pause_s = -self.load.pause_s * (1.0 - self.rng.f64()).ln();
            self.resumes_ns = now_ns + (pause_s * 1e9) as u64;
        }
    }

    /// A memory node has got `sent_mb`.
    pub(super) fn sent(&mut self, node: usize, sent_mb: f64, now_ns: u64) {
        let sent = sent_mb.min(self.unsent_mb[node]);
        self.unsent_mb[node] -= sent;
        if self.unsent_mb[node] <= ROUNDING_MB {
            self.unsent_mb[node] = 0.0;
        }
        let mine = self.homes.iter().filter(|home| **home == node).count();
        // A node that has the images of another one gets parts of all buckets.
        let takes = |home: &usize| mine == 0 || *home == node;
        let parts = if mine == 0 { BUCKETS } else { mine };
        for (bucket, home) in self.buckets.iter_mut().zip(&self.homes) {
            bucket.held_mb[node] += if takes(home) { sent / parts as f64 } else { 0.0 };
        }
        self.backlog_since_ns = now_ns;
    }

    /// A job has ended, while `parallel` jobs of its kind ran.
    pub(super) fn ended(&mut self, job: &Job, parallel: usize, now_ns: u64) {
        let user = bytes(job.user_mb);
        let took = Duration::from_secs_f64(seconds(now_ns - job.began_ns));
        let speed = |before: u64| job_speed(before, user, parallel, took);
        let bucket = &mut self.buckets[job.bucket];
        match job.work {
            JobWork::Flush => {
                bucket.flushing_mb = 0.0;
                bucket.layers += 1;
                bucket.l0_mb += job.user_mb;
                if job.taken_mb.is_empty() {
                    bucket.waiting_mb = (bucket.waiting_mb - job.user_mb).max(0.0);
                    self.backlog_since_ns = now_ns;
                } else {
                    for (held, taken) in bucket.held_mb.iter_mut().zip(&job.taken_mb) {
                        *held = (*held - taken).max(0.0);
                    }
                    self.node_flush_speed = speed(self.node_flush_speed);
                }
                self.flush_speed = speed(self.flush_speed);
                self.drain.add(user);
            }
            JobWork::Compaction => {
                bucket.is_compacting = false;
                bucket.layers -= job.layers;
                bucket.l0_mb = (bucket.l0_mb - job.user_mb).max(0.0);
                self.compaction_speed = speed(self.compaction_speed);
            }
        }
    }
}

/// Number of memtables of `sealed_mb`, of which the last may be sent or flushed in part.
fn sealed_memtables(sealed_mb: f64) -> usize {
    (sealed_mb / MEMTABLE_MB - ROUNDING_MB).ceil().max(0.0) as usize
}

/// Position of the largest of `values`; the first of equal ones.
pub(super) fn largest(values: &[f64]) -> Option<usize> {
    let best = (0..values.len()).rev().max_by(|a, b| values[*a].total_cmp(&values[*b]));
    best.filter(|at| values[*at] > 0.0)
}
