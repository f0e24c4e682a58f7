//! Work of a log in a network for which no writer waits. The commit point hands it to the threads
//! that keep the log.
//!
//! The database owns one [`LogAhead`] as a part of its log segments. The commit point takes the
//! next segment from it and hands old segments over. The threads of `db::background::log_keeper`
//! prepare segments, close old segments, measure the free room, and send a buffer whose records are
//! old.
//!
//! Invariants:
//! 1. No call here waits for the network. The lock is the last one in the lock order.
//! 2. A prepared segment has a larger number than the open one, or it is discarded.
//!
//! Thread-safety: any thread may call any method.
//! Failure: none; the threads report their failures.
//! Cost: a local log costs nothing. In a network, an append to a buffered log costs one atomic
//! swap.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::FileNo;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::wal::{PreparedSegment, RetiredSegment};

/// Longest time that records stay in the buffer of a buffered log before they are sent.
const BUFFER_AGE_MAX: Duration = Duration::from_millis(100);
/// Pause after a segment that could not be prepared.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Work for the thread that keeps the log.
#[derive(Debug, Default)]
pub(crate) struct LogWork {
    /// Segments to close.
    pub(crate) retired: Vec<RetiredSegment>,
    /// Prepared segments that were not used, to remove.
    pub(crate) unused: Vec<PreparedSegment>,
    /// Whether the next segment should be prepared.
    pub(crate) wants_segment: bool,
    /// Whether the free room should be measured.
    pub(crate) wants_room: bool,
    /// Whether the database closes, and this is the last work.
    pub(crate) is_last: bool,
}

/// State that the lock guards.
#[derive(Debug, Default)]
struct AheadState {
    work: LogWork,
    prepared: Option<PreparedSegment>,
    /// Time, in nanoseconds of the clock, before which no segment is prepared, because the last
    /// attempt failed.
    retry_ns: u64,
    /// Whether a buffered log has records that may not have left.
    has_buffered: bool,
    is_closing: bool,
}

/// State that the commit point and the threads that keep the log share.
#[derive(Debug, Default)]
pub(crate) struct LogAhead {
    /// Whether a thread keeps the log.
    is_kept: AtomicBool,
    /// Whether the sender knows of buffered records.
    is_dirty: AtomicBool,
    state: Mutex<AheadState>,
    /// The keeper waits here for work.
    has_work: Condvar,
    /// The sender waits here for buffered records.
    has_buffered: Condvar,
}

impl LogAhead {
    fn lock(&self) -> MutexGuard<'_, AheadState> {
        self.state.lock()
    }

    /// Whether a thread keeps the log, so that a rotation does not have to wait.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::Acquire)
    }

    /// Notes that a thread keeps the log from now on.
    pub(crate) fn set_kept(&self) {
        self.is_kept.store(true, Ordering::Release);
    }

    /// Requests the next segment at the time `now_ns`. Shortly after a failure the call does
    /// nothing, because the pool is probably full and every write would repeat the request.
    pub(crate) fn request_segment(&self, now_ns: u64) {
        let mut state = self.lock();
        if state.prepared.is_none() && now_ns >= state.retry_ns {
            state.work.wants_segment = true;
            self.has_work.notify_one();
        }
    }

    /// Requests a measurement of the free room.
    pub(crate) fn request_room(&self) {
        self.lock().work.wants_room = true;
        self.has_work.notify_one();
    }

    /// Takes the prepared segment if `can_use` returns `true` for its number. A prepared segment
    /// that is not newer than the segment `open` is discarded.
    pub(crate) fn take_prepared(
        &self,
        open: FileNo,
        can_use: impl FnOnce(FileNo) -> bool,
    ) -> Option<PreparedSegment> {
        let mut state = self.lock();
        let no = state.prepared.as_ref()?.no();
        if no > open {
            return if can_use(no) { state.prepared.take() } else { None };
        }
        let unused = state.prepared.take();
        state.work.unused.extend(unused);
        self.has_work.notify_one();
        None
    }

    /// Notes that no segment could be prepared at the time `now_ns`.
    pub(crate) fn note_unprepared(&self, now_ns: u64) {
        self.lock().retry_ns = now_ns.saturating_add(RETRY_PAUSE.as_nanos() as u64);
    }

    /// Stores a prepared segment for the commit point. A segment that was stored before is
    /// discarded.
    pub(crate) fn put_prepared(&self, segment: PreparedSegment) {
        let mut state = self.lock();
        let replaced = state.prepared.replace(segment);
        state.work.unused.extend(replaced);
    }

    /// Hands an old segment over, to be closed.
    pub(crate) fn retire(&self, segment: RetiredSegment) {
        self.lock().work.retired.push(segment);
        self.has_work.notify_one();
    }

    /// Waits for work and takes it. Returns `None` after the last work of a closing database.
    pub(crate) fn next_work(&self) -> Option<LogWork> {
        let mut state = self.lock();
        loop {
            let work = &state.work;
            let has_some = !work.retired.is_empty()
                || !work.unused.is_empty()
                || work.wants_segment
                || work.wants_room;
            if state.is_closing && work.is_last {
                return None;
            }
            if has_some || state.is_closing {
                let mut work = std::mem::take(&mut state.work);
                if state.is_closing {
                    work.is_last = true;
                    work.unused.extend(state.prepared.take());
                    state.work.is_last = true;
                    self.is_kept.store(false, Ordering::Release);
                }
                return Some(work);
            }
            self.has_work.wait(&mut state);
        }
    }

    /// Notes that a buffered log has taken a record.
    #[inline]
    pub(crate) fn note_buffered(&self) {
        if !self.is_dirty.swap(true, Ordering::AcqRel) {
            self.lock().has_buffered = true;
            self.has_buffered.notify_one();
        }
    }

    /// Waits until records of a buffered log are old enough to be sent. Returns whether there are
    /// any: there are none when the database closes.
    pub(crate) fn wait_until_old(&self) -> bool {
        let mut state = self.lock();
        while !state.has_buffered && !state.is_closing {
            self.has_buffered.wait(&mut state);
        }
        if !state.is_closing {
            // A close ends the wait early, and nothing else does.
            self.has_buffered.wait_while_for(&mut state, |state| !state.is_closing, BUFFER_AGE_MAX);
        }
        // Records that are noted after the swap begin a new wait. Earlier records are sent next.
        self.is_dirty.swap(false, Ordering::AcqRel);
        state.has_buffered = false;
        !state.is_closing
    }

    /// Ends the threads, after they have done the work that they were given.
    pub(crate) fn close(&self) {
        self.lock().is_closing = true;
        self.has_work.notify_all();
        self.has_buffered.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_is_not_asked_for_in_the_pause_after_a_failure() {
        let ahead = LogAhead::default();
        let wants = || ahead.lock().work.wants_segment;
        ahead.note_unprepared(100);
        ahead.request_segment(100 + RETRY_PAUSE.as_nanos() as u64 - 1);
        assert!(!wants());
        ahead.request_segment(100 + RETRY_PAUSE.as_nanos() as u64);
        assert!(wants());
    }
}
