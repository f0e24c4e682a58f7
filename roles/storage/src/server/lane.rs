//! A lane: a bounded queue of requests that several threads work off, in order per object.
//!
//! The server has one lane per device and kind of request, so that an append to a log never waits
//! behind a table, nor behind another device. Requests with the same key run one after the other in
//! the order of their arrival. Others run in parallel.
//!
//! Invariants:
//! 1. At most one request of a key runs at a time, and requests of a key run in order.
//! 2. The waiting requests of a lane are bounded in number and bytes. A request beyond that is
//!    returned to the caller, which says that the node is busy.
//! 3. A request that was taken runs, unless the lane closes before.
//!
//! Thread-safety: any thread may call any method. One lock guards the queue, and no request runs
//! under it.
//! Failure: a closed lane takes nothing.
//! Cost: two short locks per request, and one wake-up if a thread sleeps.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use archipelago_store::nodes::wire::{ChunkId, ExtentAt};
use parking_lot::{Condvar, Mutex};

/// The object whose requests keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LaneKey {
    /// A chunk of a blob.
    Chunk(ChunkId),
    /// An extent of a log.
    Extent(ExtentAt),
}

/// Bounds of the waiting requests of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneLimits {
    /// Number of requests.
    pub(super) requests_max: usize,
    /// Bytes of their bodies.
    pub(super) bytes_max: usize,
}

/// A request that a lane does not take.
#[derive(Debug)]
pub(super) struct Rejected<T>(pub(super) T);

#[derive(Debug)]
struct QueuedJob<T> {
    key: Option<LaneKey>,
    bytes: usize,
    job: T,
}

struct LaneState<T> {
    /// Requests that a thread may take.
    runnable: VecDeque<QueuedJob<T>>,
    /// Keys of which a request is runnable or running, and the requests that wait for it.
    waiting: HashMap<LaneKey, VecDeque<QueuedJob<T>>>,
    requests: usize,
    bytes: usize,
    is_closed: bool,
}

/// A bounded queue with order per key.
pub(super) struct Lane<T> {
    name: &'static str,
    limits: LaneLimits,
    state: Mutex<LaneState<T>>,
    changed: Condvar,
}

impl<T> fmt::Debug for Lane<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lane({})", self.name)
    }
}

impl<T> Lane<T> {
    /// An empty lane. `name` is for reports and threads.
    pub(super) fn new(name: &'static str, limits: LaneLimits) -> Self {
        let state = LaneState {
            runnable: VecDeque::new(),
            waiting: HashMap::new(),
            requests: 0,
            bytes: 0,
            is_closed: false,
        };
        Self { name, limits, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The name of the lane.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Number of requests that wait.
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().requests
    }

    /// Queues a request with a body of `bytes` bytes.
    pub(super) fn submit(
        &self,
        key: Option<LaneKey>,
        bytes: usize,
        job: T,
    ) -> Result<(), Rejected<T>> {
        let mut state = self.state.lock();
        let is_full = state.requests >= self.limits.requests_max
            || (state.requests > 0 && state.bytes + bytes > self.limits.bytes_max);
        if state.is_closed || is_full {
            return Err(Rejected(job));
        }
        state.requests += 1;
        state.bytes += bytes;
        let queued = QueuedJob { key, bytes, job };
        if let Some(waiting) = key.and_then(|key| state.waiting.get_mut(&key)) {
            waiting.push_back(queued);
            return Ok(());
        }
        if let Some(key) = key {
            state.waiting.insert(key, VecDeque::new());
        }
        state.runnable.push_back(queued);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Runs requests until the lane is closed.
    pub(super) fn work(&self, run: impl Fn(T)) {
        while let Some(QueuedJob { key, job, .. }) = self.take() {
            run(job);
            if let Some(key) = key {
                self.release(key);
            }
        }
    }

    /// Ends the threads. Requests that wait are dropped.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let dropped = (std::mem::take(&mut state.runnable), std::mem::take(&mut state.waiting));
        drop(state);
        // The drop of a request may send an answer.
        drop(dropped);
        self.changed.notify_all();
    }

    /// Waits for a request; `None` after the lane was closed.
    fn take(&self) -> Option<QueuedJob<T>> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(queued) = state.runnable.pop_front() {
                state.requests -= 1;
                state.bytes -= queued.bytes;
                return Some(queued);
            }
            self.changed.wait(&mut state);
        }
    }

    /// A request of `key` has run: the next one may.
    fn release(&self, key: LaneKey) {
        let mut state = self.state.lock();
        let next = state.waiting.get_mut(&key).and_then(VecDeque::pop_front);
        match next {
            Some(next) => {
                state.runnable.push_back(next);
                drop(state);
                self.changed.notify_one();
            }
            None => {
                state.waiting.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    const LIMITS: LaneLimits = LaneLimits { requests_max: 100, bytes_max: 1000 };

    fn extent(number: u32) -> Option<LaneKey> {
        Some(LaneKey::Extent(ExtentAt { extent: number, ..ExtentAt::default() }))
    }

    #[test]
    fn requests_of_a_key_keep_their_order_and_run_alone() {
        let lane = Lane::new("test", LIMITS);
        for number in 0..90 {
            lane.submit(extent(number % 3), 1, number).unwrap();
        }
        let running: [AtomicUsize; 3] = Default::default();
        let (done, seen) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let (lane, running, done) = (&lane, &running, done.clone());
                scope.spawn(move || {
                    lane.work(|number: u32| {
                        let key = number as usize % 3;
                        assert_eq!(running[key].fetch_add(1, Ordering::SeqCst), 0);
                        done.send(number).unwrap();
                        running[key].fetch_sub(1, Ordering::SeqCst);
                    });
                });
            }
            let order: Vec<u32> = seen.iter().take(90).collect();
            lane.close();
            for key in 0..3 {
                let of_key = order.iter().filter(|number| **number % 3 == key);
                assert!(of_key.is_sorted(), "{order:?}");
            }
        });
    }

    #[test]
    fn full_lane_returns_the_request() {
        let lane = Lane::new("test", LaneLimits { requests_max: 2, bytes_max: 100 });
        lane.submit(None, 500, "alone, whatever its size").unwrap();
        assert_eq!(lane.submit(None, 1, "too many bytes").unwrap_err().0, "too many bytes");
        let lane = Lane::new("test", LaneLimits { requests_max: 2, bytes_max: 100 });
        lane.submit(extent(1), 0, "first").unwrap();
        lane.submit(extent(1), 0, "second").unwrap();
        assert_eq!(lane.submit(extent(2), 0, "third").unwrap_err().0, "third");
    }

    #[test]
    fn closed_lane_ends_its_threads_and_takes_nothing() {
        let lane = Lane::new("test", LIMITS);
        std::thread::scope(|scope| {
            scope.spawn(|| lane.work(|(): ()| {}));
            lane.close();
        });
        assert!(lane.submit(None, 0, ()).is_err());
    }
}
