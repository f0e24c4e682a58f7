//! Doors of the partitions: requests go in and out, a change closes some and waits until they are
//! empty.
//!
//! A door is a word: how many are within, and whether it is closed. Going in is an increment; who
//! finds the door closed waits until it opens. [`Gates::drained`] is done when a closed door has
//! nobody within.
//!
//! Invariants: 1. after [`Gates::close`], nobody gets in who did not count before; 2. every waiter
//! is woken when doors open, every drainer when somebody leaves a closed door. Thread-safety: all
//! of it. Cost: two atomic operations per request. Paper: §4.2, atomic partition reassignment
//! (pause, quiesce).

use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Poll, Waker};

use parking_lot::Mutex;

use crate::ids::PartitionId;

const CLOSED: u32 = 1 << 31;

/// See the module.
#[derive(Debug)]
pub(crate) struct Gates {
    doors: Box<[AtomicU32]>,
    /// How many are closed.
    closed: AtomicU32,
    waiting: Mutex<Vec<Waker>>,
}

/// Somebody within; goes out when dropped.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    gates: &'a Gates,
    partition: PartitionId,
}

impl Gates {
    pub(crate) fn new(partitions: u32) -> Self {
        let doors = (0..partitions).map(|_| AtomicU32::new(0)).collect();
        Self { doors, closed: AtomicU32::new(0), waiting: Mutex::new(Vec::new()) }
    }

    fn door(&self, partition: PartitionId) -> &AtomicU32 {
        &self.doors[partition.0 as usize]
    }

    /// In, if the door is open.
    pub(crate) fn try_enter(&self, partition: PartitionId) -> Option<Inside<'_>> {
        let one_more = |word: u32| (word & CLOSED == 0).then_some(word + 1);
        let door = self.door(partition);
        let entered = door.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        entered.is_ok().then(|| Inside { gates: self, partition })
    }

    /// In, as soon as the door is open.
    pub(crate) async fn enter(&self, partition: PartitionId) -> Inside<'_> {
        poll_fn(|context| {
            if let Some(inside) = self.try_enter(partition) {
                return Poll::Ready(inside);
            }
            self.waiting.lock().push(context.waker().clone());
            // It may have opened before the waker was there.
            self.try_enter(partition).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Whether the door is closed: whoever is within should come out.
    pub(crate) fn is_closed(&self, partition: PartitionId) -> bool {
        self.door(partition).load(Ordering::SeqCst) & CLOSED != 0
    }

    /// Whether some door is closed.
    pub(crate) fn any_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn close(&self, partition: PartitionId) {
        if self.door(partition).fetch_or(CLOSED, Ordering::SeqCst) & CLOSED == 0 {
            self.closed.fetch_add(1, Ordering::Relaxed);
        }
        self.wake();
    }

    pub(crate) fn open(&self, partition: PartitionId) {
        if self.door(partition).fetch_and(!CLOSED, Ordering::SeqCst) & CLOSED != 0 {
            self.closed.fetch_sub(1, Ordering::Relaxed);
        }
        self.wake();
    }

    /// Done when nobody is within.
    pub(crate) async fn drained(&self, partition: PartitionId) {
        let empty = || self.door(partition).load(Ordering::SeqCst) & !CLOSED == 0;
        poll_fn(|context| {
            if empty() {
                return Poll::Ready(());
            }
            self.waiting.lock().push(context.waker().clone());
            if empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Out, for who stayed within ([`Inside::stay`]).
    pub(crate) fn leave(&self, partition: PartitionId) {
        let before = self.door(partition).fetch_sub(1, Ordering::SeqCst);
        debug_assert_ne!(before & !CLOSED, 0, "nobody was within");
        if before == CLOSED + 1 {
            self.wake();
        }
    }

    /// Done when the door opens or closes, or somebody leaves a closed one. May be early.
    fn wake(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for waker in waiting {
            waker.wake();
        }
    }
}

impl Inside<'_> {
    /// Does not go out when dropped; somebody does so instead with [`Gates::leave`].
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
    fn a_closed_door_drains_and_lets_nobody_in_until_it_opens() {
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
