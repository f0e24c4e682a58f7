//! Times of recent answers of a node, by which readers hedge and writers replace a slow node.
//!
//! Invariant: the quantile is that of the last [`RECENT`] calls that ended. A call that its caller
//! gave up counts with the time for which it waited, so a node that stopped does not look fast.
//!
//! Thread-safety: any thread may record and read.
//! Cost: a short lock per call; a sort of [`RECENT`] numbers every [`REFRESH_EVERY`] calls.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::super::wire::StoreMessage;

/// Number of calls whose times are kept.
const RECENT: usize = 128;
/// Number of calls after which the quantile is computed again.
const REFRESH_EVERY: u64 = 16;

/// Requests whose times are comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A read of a chunk.
    Read,
    /// A piece of a chunk, or an append.
    Write,
    /// Any other request.
    Other,
}

impl CallKind {
    pub(super) fn of(message: &StoreMessage) -> Self {
        match message {
            StoreMessage::ReadChunk { .. } => Self::Read,
            StoreMessage::PutChunk { .. } | StoreMessage::Append { .. } => Self::Write,
            _ => Self::Other,
        }
    }
}

#[derive(Debug, Default)]
struct Recent {
    times_ns: Vec<u64>,
    count: u64,
}

/// Times of the last calls of one kind.
#[derive(Debug, Default)]
struct RecentTimes {
    recent: Mutex<Recent>,
    /// 95th percentile; 0 before there are enough calls.
    p95_ns: AtomicU64,
}

impl RecentTimes {
    fn record(&self, time_ns: u64) {
        let mut recent = self.recent.lock();
        let at = recent.count as usize % RECENT;
        recent.count += 1;
        if recent.times_ns.len() < RECENT {
            recent.times_ns.push(time_ns);
        } else {
            recent.times_ns[at] = time_ns;
        }
        if recent.count.is_multiple_of(REFRESH_EVERY) {
            let mut sorted = recent.times_ns.clone();
            drop(recent);
            sorted.sort_unstable();
            let p95_ns = sorted[(sorted.len() - 1) * 95 / 100];
            self.p95_ns.store(p95_ns.max(1), Ordering::Relaxed);
        }
    }

    fn p95(&self) -> Option<Duration> {
        match self.p95_ns.load(Ordering::Relaxed) {
            0 => None,
            ns => Some(Duration::from_nanos(ns)),
        }
    }
}

/// How busy and how fast a node is, as this client sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeTiming {
    /// Number of calls of this client that the node has not answered.
    pub in_flight: usize,
    /// 95th percentile of the recent reads of chunks; `None` before the 16th.
    pub read_p95: Option<Duration>,
    /// 95th percentile of the recent pieces and appends; `None` before the 16th.
    pub write_p95: Option<Duration>,
}

/// The calls of one node.
#[derive(Debug, Default)]
pub(super) struct NodeTimes {
    in_flight: AtomicUsize,
    reads: RecentTimes,
    writes: RecentTimes,
}

impl NodeTimes {
    pub(super) fn timing(&self) -> NodeTiming {
        NodeTiming {
            in_flight: self.in_flight.load(Ordering::Relaxed),
            read_p95: self.reads.p95(),
            write_p95: self.writes.p95(),
        }
    }

    pub(super) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// A call has ended, with or without an answer.
    pub(super) fn end(&self, kind: CallKind, time_ns: u64) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        match kind {
            CallKind::Read => self.reads.record(time_ns),
            CallKind::Write => self.writes.record(time_ns),
            CallKind::Other => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CallKind, NodeTimes, RECENT};

    #[test]
    fn quantile_follows_the_recent_calls() {
        let times = NodeTimes::default();
        let record = |ns: u64, calls: usize| {
            for _ in 0..calls {
                times.begin();
                times.end(CallKind::Read, ns);
            }
        };
        record(1000, 15);
        assert_eq!(times.timing().read_p95, None, "too few calls");
        record(1000, 100);
        assert_eq!(times.timing().read_p95, Some(Duration::from_nanos(1000)));
        record(9000, RECENT);
        let timing = times.timing();
        assert_eq!(timing.read_p95, Some(Duration::from_nanos(9000)));
        assert_eq!((timing.in_flight, timing.write_p95), (0, None));
    }

    #[test]
    fn one_slow_call_in_twenty_does_not_move_the_quantile() {
        let times = NodeTimes::default();
        for call in 0..RECENT as u64 {
            times.begin();
            times.end(CallKind::Write, if call.is_multiple_of(32) { 1_000_000 } else { 500 });
        }
        assert_eq!(times.timing().write_p95, Some(Duration::from_nanos(500)));
    }
}
