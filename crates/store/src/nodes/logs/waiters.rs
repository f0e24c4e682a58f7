//! The callers that wait for a log, in the order in which they are woken.
//!
//! Invariants:
//! 1. An acknowledgement wakes the callers whose bytes it covers, in the order of their offsets.
//!    Callers of one offset wake in the order in which they came.
//! 2. A caller that was woken for another reason registers again under the same ticket.
//!
//! Thread-safety: none; the lock of the writer guards the value.
//! Cost: O(log n) for n waiting callers.

use std::collections::BTreeMap;
use std::task::Waker;

/// Condition that a caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitGoal {
    /// All bytes before this offset are acknowledged.
    Acknowledged(u64),
    /// All bytes before this offset are synced.
    Synced(u64),
    /// The log has ended.
    Finished,
    /// The ring has room.
    Room,
}

/// The place of a waiting caller in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WaitKey {
    end: u64,
    ticket: u64,
}

/// The wakers of all waiting callers.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    acknowledgements: BTreeMap<WaitKey, Waker>,
    syncs: BTreeMap<WaitKey, Waker>,
    rooms: BTreeMap<WaitKey, Waker>,
    next_ticket: u64,
}

impl Waiters {
    fn list(&mut self, goal: WaitGoal) -> (&mut BTreeMap<WaitKey, Waker>, u64) {
        match goal {
            WaitGoal::Acknowledged(end) => (&mut self.acknowledgements, end),
            WaitGoal::Synced(end) => (&mut self.syncs, end),
            WaitGoal::Finished => (&mut self.syncs, u64::MAX),
            WaitGoal::Room => (&mut self.rooms, 0),
        }
    }

    /// Registers a caller. `ticket` is that of its earlier registration, if there was one.
    pub(super) fn register(&mut self, goal: WaitGoal, ticket: &mut Option<u64>, waker: &Waker) {
        let ticket = *ticket.get_or_insert_with(|| {
            self.next_ticket += 1;
            self.next_ticket
        });
        let (list, end) = self.list(goal);
        list.insert(WaitKey { end, ticket }, waker.clone());
    }

    /// Removes a caller that stops waiting.
    pub(super) fn remove(&mut self, goal: WaitGoal, ticket: Option<u64>) {
        if let Some(ticket) = ticket {
            let (list, end) = self.list(goal);
            list.remove(&WaitKey { end, ticket });
        }
    }

    /// Takes the callers that wait for an acknowledgement through `end`, in order.
    pub(super) fn acknowledged(&mut self, end: u64, woken: &mut Vec<Waker>) {
        take_through(&mut self.acknowledgements, end, woken);
    }

    /// Takes the callers that wait for a sync through `end`, in order.
    pub(super) fn synced(&mut self, end: u64, woken: &mut Vec<Waker>) {
        take_through(&mut self.syncs, end, woken);
    }

    /// Takes the callers that wait for room.
    pub(super) fn has_room(&mut self, woken: &mut Vec<Waker>) {
        woken.extend(std::mem::take(&mut self.rooms).into_values());
    }

    /// Takes all callers.
    pub(super) fn all(&mut self, woken: &mut Vec<Waker>) {
        woken.extend(std::mem::take(&mut self.acknowledgements).into_values());
        woken.extend(std::mem::take(&mut self.syncs).into_values());
        self.has_room(woken);
    }

    /// Takes the caller that waits longest for progress, so that it does what progress needs.
    pub(super) fn first(&mut self, woken: &mut Vec<Waker>) {
        let first = self.acknowledgements.pop_first().or_else(|| self.syncs.pop_first());
        woken.extend(first.map(|(_, waker)| waker));
    }
}

fn take_through(list: &mut BTreeMap<WaitKey, Waker>, end: u64, woken: &mut Vec<Waker>) {
    while let Some(first) = list.first_entry()
        && first.key().end <= end
    {
        woken.push(first.remove());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Wake;

    use parking_lot::Mutex;

    use super::*;

    /// Notes its number in a list when it is woken.
    struct Noted(u64, Arc<Mutex<Vec<u64>>>);

    impl Wake for Noted {
        fn wake(self: Arc<Self>) {
            self.1.lock().push(self.0);
        }
    }

    #[test]
    fn callers_are_woken_in_the_order_of_their_bytes() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let next = AtomicU64::new(0);
        let mut waiters = Waiters::default();
        let mut wait = |goal| {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let waker = Waker::from(Arc::new(Noted(number, Arc::clone(&order))));
            let mut ticket = None;
            waiters.register(goal, &mut ticket, &waker);
            waiters.register(goal, &mut ticket, &waker);
            ticket
        };
        wait(WaitGoal::Acknowledged(20));
        wait(WaitGoal::Acknowledged(10));
        let removed = wait(WaitGoal::Acknowledged(10));
        wait(WaitGoal::Acknowledged(10));
        wait(WaitGoal::Acknowledged(21));
        wait(WaitGoal::Synced(5));
        waiters.remove(WaitGoal::Acknowledged(10), removed);
        let mut woken = Vec::new();
        waiters.acknowledged(20, &mut woken);
        waiters.first(&mut woken);
        waiters.first(&mut woken);
        waiters.all(&mut woken);
        woken.into_iter().for_each(Waker::wake);
        assert_eq!(*order.lock(), [1, 3, 0, 4, 5]);
    }
}
