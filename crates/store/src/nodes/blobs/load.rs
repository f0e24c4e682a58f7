//! The load and the speed of nodes, as this client sees them.
//!
//! [`NodeLoads`] belongs to a [`NodeBlobs`](super::NodeBlobs). By these loads, a reader chooses the
//! least loaded holder and decides when to ask another one. A writer decides which node is slow.
//!
//! Invariants:
//! 1. A node that has never answered has no usual time, and the defaults of
//!    [`BlobTiming`](super::BlobTiming) hold for it.
//! 2. [`CallGuard`]s count every call that is in flight, however it ends.
//!
//! Thread-safety: any thread may call any method.
//! Failure: none.
//! Cost: a short lock and a few relaxed atomic operations per call. Every eighth answer sorts 64
//! numbers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::super::StorageId;

/// Number of answers that the usual time is computed from.
const SAMPLES: usize = 64;
/// Number of answers after which the usual time is computed again, and the fewest for a first one.
const SAMPLES_STEP: usize = 8;
/// Bytes from which a read counts as large. Its time says nothing about that of a small one.
const LARGE_READ_BYTES: u64 = 128 << 10;
/// Number of reads over which the moving mean extends.
const MEAN_OVER: u64 = 8;
/// One of this number of choices disregards the loads.
const EXPLORE_EVERY: u64 = 64;
/// Number of late calls in flight from which a node is avoided.
const LATE_MAX: u32 = 2;

/// The kinds of calls whose times are comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A read of a few pieces.
    SmallRead,
    /// A read of many pieces.
    LargeRead,
    /// A write of bytes of a chunk.
    Write,
}

impl CallKind {
    /// The kind of a read of `bytes`.
    pub(super) fn of_read(bytes: u64) -> Self {
        if bytes < LARGE_READ_BYTES { Self::SmallRead } else { Self::LargeRead }
    }
}

/// The times of the last answers to calls of one kind.
#[derive(Debug)]
struct RecentTimes {
    times_ns: [u64; SAMPLES],
    /// Number of answers so far.
    count: usize,
    /// 95th percentile, in nanoseconds; 0 if there were too few answers.
    p95_ns: u64,
}

impl Default for RecentTimes {
    fn default() -> Self {
        Self { times_ns: [0; SAMPLES], count: 0, p95_ns: 0 }
    }
}

impl RecentTimes {
    fn record(&mut self, time_ns: u64) {
        self.times_ns[self.count % SAMPLES] = time_ns;
        self.count += 1;
        if self.count.is_multiple_of(SAMPLES_STEP) {
            let len = self.count.min(SAMPLES);
            let mut sorted = self.times_ns;
            let sorted = &mut sorted[..len];
            sorted.sort_unstable();
            self.p95_ns = sorted[(len * 95).div_ceil(100) - 1];
        }
    }
}

/// Load and speed of one node.
#[derive(Debug, Default)]
pub(super) struct NodeLoad {
    in_flight: AtomicU32,
    /// Calls in flight that take longer than usual.
    late: AtomicU32,
    /// Time, in nanoseconds, at which the node was last found unreachable; 0 if it answered since.
    unreachable_ns: AtomicU64,
    /// Moving mean, in nanoseconds, of the times of small reads. Reads that their callers gave up
    /// count with the time for which they waited, so a node that stopped does not look fast.
    mean_ns: AtomicU64,
    times: Mutex<[RecentTimes; 3]>,
}

impl NodeLoad {
    /// 95th percentile, in nanoseconds, of the times of recent calls. `None` if there were too few.
    pub(super) fn usual_ns(&self, kind: CallKind) -> Option<u64> {
        let p95_ns = self.times.lock()[kind as usize].p95_ns;
        (p95_ns > 0).then_some(p95_ns)
    }

    /// Moves the mean time of small reads towards `time_ns`.
    fn weigh(&self, time_ns: u64) {
        let mean_ns = self.mean_ns.load(Ordering::Relaxed);
        let next_ns = match mean_ns {
            0 => time_ns,
            _ => mean_ns - mean_ns / MEAN_OVER + time_ns / MEAN_OVER,
        };
        // Of two updates at the same time, one may be lost.
        self.mean_ns.store(next_ns.max(1), Ordering::Relaxed);
    }

    /// Whether several calls to the node are late. Such a node is asked last.
    pub(super) fn is_late(&self) -> bool {
        self.late.load(Ordering::Relaxed) >= LATE_MAX
    }

    /// Time, in nanoseconds, at which the node was last found unreachable. `None` if it answered
    /// since.
    pub(super) fn unreachable_since_ns(&self) -> Option<u64> {
        let at_ns = self.unreachable_ns.load(Ordering::Relaxed);
        (at_ns > 0).then_some(at_ns)
    }

    /// Notes that the node could not be reached at `now_ns`.
    pub(super) fn note_unreachable(&self, now_ns: u64) {
        self.unreachable_ns.store(now_ns.max(1), Ordering::Relaxed);
    }

    /// Expected wait of a further call: the calls in flight, weighted by the node's speed.
    fn rank(&self) -> u64 {
        let in_flight = u64::from(self.in_flight.load(Ordering::Relaxed));
        (in_flight + 1).saturating_mul(self.mean_ns.load(Ordering::Relaxed).max(1))
    }
}

/// A call in flight. The drop ends it.
#[derive(Debug)]
pub(super) struct CallGuard {
    load: Arc<NodeLoad>,
    is_late: bool,
}

impl CallGuard {
    /// Counts a call to the node of `load`.
    pub(super) fn begin(load: &Arc<NodeLoad>) -> Self {
        load.in_flight.fetch_add(1, Ordering::Relaxed);
        Self { load: Arc::clone(load), is_late: false }
    }

    /// Notes that the call takes longer than usual. Returns whether that is new.
    pub(super) fn note_late(&mut self) -> bool {
        let is_new = !std::mem::replace(&mut self.is_late, true);
        if is_new {
            self.load.late.fetch_add(1, Ordering::Relaxed);
        }
        is_new
    }

    /// Notes the time of an answer.
    pub(super) fn answered(&self, kind: CallKind, time_ns: u64) {
        self.load.unreachable_ns.store(0, Ordering::Relaxed);
        self.load.times.lock()[kind as usize].record(time_ns.max(1));
        if kind == CallKind::SmallRead {
            self.load.weigh(time_ns);
        }
    }

    /// Notes that the caller gave the call up after this time.
    pub(super) fn gave_up(&self, kind: CallKind, time_ns: u64) {
        if kind == CallKind::SmallRead {
            self.load.weigh(time_ns);
        }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.load.in_flight.fetch_sub(1, Ordering::Relaxed);
        if self.is_late {
            self.load.late.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The loads of all nodes that this client has called.
#[derive(Debug, Default)]
pub(super) struct NodeLoads(Mutex<BTreeMap<StorageId, Arc<NodeLoad>>>);

impl NodeLoads {
    /// The load of `node`.
    pub(super) fn of(&self, node: StorageId) -> Arc<NodeLoad> {
        Arc::clone(self.0.lock().entry(node).or_default())
    }

    /// Sorts nodes, the least loaded one first, and those that `is_avoided` names last. `turn`
    /// decides between equal ones. From time to time the loads do not count, so that a node that
    /// has recovered is noticed.
    pub(super) fn sort(
        &self,
        nodes: &mut [StorageId],
        turn: u64,
        is_avoided: impl Fn(StorageId) -> bool,
    ) {
        let len = nodes.len().max(1) as u64;
        nodes.rotate_left((turn % len) as usize);
        let is_exploring = turn % EXPLORE_EVERY == EXPLORE_EVERY - 1;
        nodes.sort_by_cached_key(|node| {
            let rank = if is_exploring { 0 } else { self.of(*node).rank() };
            (is_avoided(*node), rank)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StorageId = StorageId(1);
    const B: StorageId = StorageId(2);

    fn sorted(loads: &NodeLoads, turn: u64) -> Vec<StorageId> {
        let mut nodes = vec![A, B];
        loads.sort(&mut nodes, turn, |node| loads.of(node).is_late());
        nodes
    }

    #[test]
    fn usual_time_needs_answers_and_follows_them() {
        let load = Arc::new(NodeLoad::default());
        let call = CallGuard::begin(&load);
        for _ in 0..SAMPLES_STEP - 1 {
            call.answered(CallKind::Write, 100);
        }
        assert_eq!(load.usual_ns(CallKind::Write), None);
        call.answered(CallKind::Write, 100);
        assert_eq!(load.usual_ns(CallKind::Write), Some(100));
        assert_eq!(load.usual_ns(CallKind::SmallRead), None, "kinds are apart");
        for _ in 0..SAMPLES {
            call.answered(CallKind::Write, 900);
        }
        assert_eq!(load.usual_ns(CallKind::Write), Some(900), "old answers are forgotten");
    }

    #[test]
    fn least_loaded_node_comes_first() {
        let loads = NodeLoads::default();
        assert_eq!((sorted(&loads, 0), sorted(&loads, 1)), (vec![A, B], vec![B, A]));
        let busy = CallGuard::begin(&loads.of(A));
        assert_eq!(sorted(&loads, 0), [B, A]);
        drop(busy);
        for _ in 0..SAMPLES_STEP {
            CallGuard::begin(&loads.of(B)).answered(CallKind::SmallRead, 50);
            CallGuard::begin(&loads.of(A)).answered(CallKind::SmallRead, 5);
        }
        assert_eq!(sorted(&loads, 1), [A, B], "the faster one");
    }

    #[test]
    fn node_whose_reads_are_given_up_comes_last() {
        let loads = NodeLoads::default();
        for _ in 0..SAMPLES_STEP {
            CallGuard::begin(&loads.of(A)).answered(CallKind::SmallRead, 50);
            CallGuard::begin(&loads.of(B)).answered(CallKind::SmallRead, 60);
        }
        assert_eq!(sorted(&loads, 1), [A, B]);
        CallGuard::begin(&loads.of(A)).gave_up(CallKind::SmallRead, 5000);
        assert_eq!(sorted(&loads, 0), [B, A]);
        CallGuard::begin(&loads.of(B)).gave_up(CallKind::SmallRead, 90_000);
        assert_eq!(sorted(&loads, 1), [A, B]);
        assert_eq!(sorted(&loads, EXPLORE_EVERY - 1), [B, A], "the turn alone decides");
        assert_eq!(loads.of(A).usual_ns(CallKind::SmallRead), Some(50), "hedges stay early");
    }

    #[test]
    fn node_with_late_calls_comes_last_until_they_end() {
        let loads = NodeLoads::default();
        let mut calls: Vec<_> = (0..LATE_MAX).map(|_| CallGuard::begin(&loads.of(A))).collect();
        assert!(calls.iter_mut().all(CallGuard::note_late));
        assert!(!calls[0].note_late(), "it was late before");
        let busy: Vec<_> = (0..10).map(|_| CallGuard::begin(&loads.of(B))).collect();
        assert!(loads.of(A).is_late());
        assert_eq!(sorted(&loads, 0), [B, A]);
        drop((calls, busy));
        assert!(!loads.of(A).is_late());
        assert_eq!(sorted(&loads, 0), [A, B]);
    }
}
