//! Gates of partitions: requests enter and leave, and a change closes some gates and waits until
//! they are empty.
//!
//! A gate is a word: the number of requests within, and whether it is closed. A request enters by
//! an increment. A request that finds the gate closed waits until it opens. [`Gates::drained`]
//! completes when no request is within a closed gate.
//!
//! Invariants:
//! 1. After [`Gates::close`], no request enters that was not counted before.
//! 2. Opening a gate wakes every waiting request. Leaving a closed gate wakes every drainer.
//!
//! Thread-safety: any thread may call any method.
//! Cost: two atomic operations per request. Paper: §4.2, atomic partition reassignment (pause,
//! quiesce).

use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Poll, Waker};

use parking_lot::Mutex;

use crate::ids::PartitionId;

const CLOSED: u32 = 1 << 31;

/// The gates of some partitions. See the head of the module.
#[derive(Debug)]
pub(crate) struct Gates {
    words: Box<[AtomicU32]>,
    /// Number of closed gates.
    closed: AtomicU32,
    waiting: Mutex<Vec<Waker>>,
}

/// A request within a gate. Dropping it leaves the gate.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    gates: &'a Gates,
    partition: PartitionId,
}

impl Gates {
    pub(crate) fn new(partitions: u32) -> Self {
        let words = (0..partitions).map(|_| AtomicU32::new(0)).collect();
        Self { words, closed: AtomicU32::new(0), waiting: Mutex::new(Vec::new()) }
    }

    fn word(&self, partition: PartitionId) -> &AtomicU32 {
        &self.words[partition.0 as usize]
    }

    /// Enters, if the gate is open.
    pub(crate) fn try_enter(&self, partition: PartitionId) -> Option<Inside<'_>> {
        let one_more = |count: u32| (count & CLOSED == 0).then_some(count + 1);
        let word = self.word(partition);
        let entered = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        entered.is_ok().then(|| Inside { gates: self, partition })
    }

    /// Enters as soon as the gate is open.
    pub(crate) async fn enter(&self, partition: PartitionId) -> Inside<'_> {
        poll_fn(|context| {
            if let Some(inside) = self.try_enter(partition) {
                return Poll::Ready(inside);
            }
            self.waiting.lock().push(context.waker().clone());
            // The gate may have opened before the waker was added.
            self.try_enter(partition).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Whether the gate is closed, so that requests within should leave.
    pub(crate) fn is_closed(&self, partition: PartitionId) -> bool {
        self.word(partition).load(Ordering::SeqCst) & CLOSED != 0
    }

    /// Whether any gate is closed.
    pub(crate) fn any_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn close(&self, partition: PartitionId) {
        if self.word(partition).fetch_or(CLOSED, Ordering::SeqCst) & CLOSED == 0 {
            self.closed.fetch_add(1, Ordering::Relaxed);
        }
        self.wake();
    }

    pub(crate) fn open(&self, partition: PartitionId) {
        if self.word(partition).fetch_and(!CLOSED, Ordering::SeqCst) & CLOSED != 0 {
            self.closed.fetch_sub(1, Ordering::Relaxed);
        }
        self.wake();
    }

    /// Completes when no request is within.
    pub(crate) async fn drained(&self, partition: PartitionId) {
        let empty = || self.word(partition).load(Ordering::SeqCst) & !CLOSED == 0;
        poll_fn(|context| {
            if empty() {
                return Poll::Ready(());
            }
            self.waiting.lock().push(context.waker().clone());
            if empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Leaves the gate for a request that stayed within ([`Inside::stay`]).
    pub(crate) fn leave(&self, partition: PartitionId) {
        let before = self.word(partition).fetch_sub(1, Ordering::SeqCst);
        debug_assert_ne!(before & !CLOSED, 0, "no caller was within the gate");
        if before == CLOSED + 1 {
            self.wake();
        }
    }

    /// Wakes all waiting requests and drainers. Each of them checks its gate again.
    fn wake(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for waker in waiting {
            waker.wake();
        }
    }
}

impl Inside<'_> {
    /// Stays within the gate. The caller leaves it later with [`Gates::leave`].
    pub(crate) fn stay(self) {
        std::mem::forget(self);
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.gates.leave(self.partition);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use archipelago_base::simulation::Simulation;

    use super::*;

    const HERE: PartitionId = PartitionId(1);

    #[test]
    fn closed_gate_drains_and_admits_no_request() {
        for seed in 0..200 {
            let simulation = Simulation::new(seed);
            let host = simulation.host("one");
            let gates = Arc::new(Gates::new(2));
            let within = Arc::new(AtomicU32::new(0));
            let mut tasks = Vec::new();
            for number in 0..8_u64 {
                let (gates, within, scheduler) =
                    (Arc::clone(&gates), Arc::clone(&within), host.scheduler().clone());
                tasks.push(host.spawn("request", async move {
                    scheduler.sleep(Duration::from_nanos(number * 100)).await;
                    let inside = gates.enter(HERE).await;
                    within.fetch_add(1, Ordering::SeqCst);
                    scheduler.sleep(Duration::from_nanos(250)).await;
                    within.fetch_sub(1, Ordering::SeqCst);
                    drop(inside);
                }));
            }
            let (gates, within, scheduler) =
                (Arc::clone(&gates), Arc::clone(&within), host.scheduler().clone());
            let change = host.spawn("change", async move {
                scheduler.sleep(Duration::from_nanos(300)).await;
                gates.close(HERE);
                gates.drained(HERE).await;
                for _ in 0..5 {
                    assert_eq!(within.load(Ordering::SeqCst), 0);
                    scheduler.sleep(Duration::from_nanos(100)).await;
                }
                gates.open(HERE);
            });
            simulation.block_on(change).expect("it drains");
            for task in tasks {
                simulation.block_on(task).expect("it gets in in the end");
            }
        }
    }
}
