//! Answers that wait for a sync of an extent: those of one extent share it.
//!
//! The log lane hands an append that wants a sync over to [`SyncQueue`] and goes on with the next
//! append. A thread takes an extent with all answers that wait for it, and syncs once. Answers that
//! arrive meanwhile wait for the next sync of the extent.
//!
//! Invariants:
//! 1. At most one thread syncs an extent at a time.
//! 2. A sync begins after the bytes of everything that it answers are in the extent.
//!
//! Thread-safety: any thread may call any method. No sync runs under the lock.
//! Failure: a closed queue drops the waiting answers, and takes nothing.
//! Cost: two short locks per answer.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use archipelago_store::nodes::wire::ExtentAt;
use parking_lot::{Condvar, Mutex};

struct SyncState<T> {
    /// Extents with waiting answers and without a thread.
    due: VecDeque<ExtentAt>,
    /// Waiting answers by extent. An extent has an entry while it is due or a thread syncs it.
    waiting: HashMap<ExtentAt, Vec<T>>,
    is_closed: bool,
}

/// Answers that wait for syncs of their extents.
pub(super) struct SyncQueue<T> {
    state: Mutex<SyncState<T>>,
    changed: Condvar,
}

impl<T> fmt::Debug for SyncQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SyncQueue")
    }
}

impl<T> SyncQueue<T> {
    /// A queue in which nothing waits.
    pub(super) fn new() -> Self {
        let state = SyncState { due: VecDeque::new(), waiting: HashMap::new(), is_closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Lets `job` wait for the next sync of the extent that begins.
    pub(super) fn add(&self, at: ExtentAt, job: T) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        if let Some(waiting) = state.waiting.get_mut(&at) {
            waiting.push(job);
            return;
        }
        state.waiting.insert(at, vec![job]);
        state.due.push_back(at);
        drop(state);
        self.changed.notify_one();
    }

    /// Calls `sync` with all answers that wait for one extent, until the queue is closed.
    pub(super) fn work(&self, sync: impl Fn(Vec<T>)) {
        while let Some((at, jobs)) = self.take() {
            sync(jobs);
            self.release(at);
        }
    }

    /// Ends the threads, and drops the waiting answers.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let dropped = std::mem::take(&mut state.waiting);
        drop(state);
        drop(dropped);
        self.changed.notify_all();
    }

    fn take(&self) -> Option<(ExtentAt, Vec<T>)> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(at) = state.due.pop_front() {
                let jobs = state.waiting.get_mut(&at).map(std::mem::take).unwrap_or_default();
                return Some((at, jobs));
            }
            self.changed.wait(&mut state);
        }
    }

    fn release(&self, at: ExtentAt) {
        let mut state = self.state.lock();
        let has_more = state.waiting.get(&at).is_some_and(|waiting| !waiting.is_empty());
        if has_more {
            state.due.push_back(at);
            drop(state);
            self.changed.notify_one();
        } else {
            state.waiting.remove(&at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const AT: ExtentAt = ExtentAt { log: archipelago_store::LogId([1; 16]), extent: 1 };

    #[test]
    fn answers_that_wait_during_a_sync_share_the_next_one() {
        let queue = SyncQueue::new();
        queue.add(AT, 0);
        let (begun, has_begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let queue = &queue;
            scope.spawn(move || {
                queue.work(|jobs: Vec<u32>| {
                    begun.send(jobs).unwrap();
                    may_go_on.recv().unwrap();
                });
            });
            assert_eq!(has_begun.recv().unwrap(), [0]);
            (1..5).for_each(|job| queue.add(AT, job));
            go_on.send(()).unwrap();
            assert_eq!(has_begun.recv().unwrap(), [1, 2, 3, 4]);
            queue.add(ExtentAt { extent: 2, ..AT }, 5);
            go_on.send(()).unwrap();
            assert_eq!(has_begun.recv().unwrap(), [5]);
            queue.close();
            go_on.send(()).unwrap();
        });
    }
}
