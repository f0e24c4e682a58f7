//! A line for tasks: each takes its place when it arrives, and enters in this order.
//!
//! Requests to one extent must leave in their order, also while the link is being connected. The
//! lock for tasks of the runtime wakes them in any order.
//!
//! Invariants:
//! 1. At most one task is inside, and tasks enter in the order of their tickets.
//! 2. A ticket that is dropped delays no other ticket.
//!
//! Thread-safety: any thread may take, wait and drop.
//! Cost: two short locks per ticket.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;

#[derive(Debug, Default)]
struct LineState {
    /// Number of the next ticket.
    next: u64,
    /// Number of the ticket that may enter.
    serving: u64,
    waiting: BTreeMap<u64, Waker>,
    /// Dropped tickets whose turn has not come.
    gone: BTreeSet<u64>,
}

/// A line of tasks.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<LineState>);

/// A place in the line, which ends with its drop.
#[derive(Debug)]
pub(super) struct Turn {
    line: Arc<Turns>,
    number: u64,
}

impl Turns {
    /// Takes the last place of the line.
    pub(super) fn take(self: &Arc<Self>) -> Turn {
        let mut line = self.0.lock();
        let number = line.next;
        line.next += 1;
        Turn { line: Arc::clone(self), number }
    }
}

impl Turn {
    /// Whether this place is the first of the line.
    pub(super) fn is_first(&self) -> bool {
        self.line.0.lock().serving == self.number
    }

    /// Waits until this place is the first of the line.
    pub(super) async fn wait(&self) {
        std::future::poll_fn(|context| {
            let mut line = self.line.0.lock();
            if line.serving == self.number {
                return Poll::Ready(());
            }
            line.waiting.insert(self.number, context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = {
            let mut line = self.line.0.lock();
            line.waiting.remove(&self.number);
            line.gone.insert(self.number);
            let mut serving = line.serving;
            while line.gone.remove(&serving) {
                serving += 1;
            }
            line.serving = serving;
            line.waiting.remove(&serving)
        };
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Waker};

    use super::Turns;

    fn is_ready(waiting: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        waiting.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn tasks_enter_in_the_order_of_their_tickets() {
        let line = Arc::new(Turns::default());
        let (first, second, third) = (line.take(), line.take(), line.take());
        assert!(first.is_first() && !second.is_first());
        let mut waits = pin!(third.wait());
        assert!(!is_ready(waits.as_mut()));
        drop(first);
        assert!(second.is_first());
        assert!(!is_ready(waits.as_mut()));
        drop(second);
        assert!(is_ready(waits.as_mut()));
    }

    #[test]
    fn dropped_ticket_holds_up_no_other() {
        let line = Arc::new(Turns::default());
        let (first, second, third) = (line.take(), line.take(), line.take());
        drop(second);
        assert!(first.is_first() && !third.is_first());
        drop(first);
        assert!(third.is_first());
        drop(third);
        assert!(line.take().is_first());
    }
}
