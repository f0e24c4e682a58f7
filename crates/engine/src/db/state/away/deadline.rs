//! The deadline of one read that needs memtable shards away.
//!
//! A read may ask several nodes, ask again, use a second copy of a shard and wait until lost shards
//! are rebuilt. All these steps share one deadline, so their times do not add up. The time begins
//! with the first step that needs a shard away.
//!
//! Invariant: [`ReadDeadline::left`] never grows between two calls of [`ReadDeadline::restart`] or
//! [`ReadDeadline::begin`].
//!
//! Thread-safety: any thread may call any method. The cursors of an iterator share its deadline.
//! Failure: none.
//! Cost: none for a read that needs no shard away.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Longest time of one read, by the clock of the database.
pub(crate) const READ_LIMIT: Duration = Duration::from_secs(10);
/// Number of waits without a notification after which a read fails, in case that clock stands
/// still.
const WAITS_MAX: u32 = 500;

/// The deadline of one read.
#[derive(Debug)]
pub(crate) struct ReadDeadline {
    /// Time at which the read ends; 0 before it begins.
    until_ns: AtomicU64,
    /// Number of waits without a notification that are left.
    waits_left: AtomicU32,
    /// Number of the present read among those that share the deadline one after another.
    read_number: AtomicU32,
}

impl Default for ReadDeadline {
    #[inline]
    fn default() -> Self {
        Self {
            until_ns: AtomicU64::new(0),
            waits_left: AtomicU32::new(WAITS_MAX),
            read_number: AtomicU32::new(0),
        }
    }
}

impl ReadDeadline {
    /// Begins another read, whose time begins with the next call of [`ReadDeadline::left`].
    #[inline]
    pub(crate) fn begin(&self) {
        // Only the thread that reads begins a read, so the addition need not be atomic.
        let number = self.read_number.load(Ordering::Relaxed).wrapping_add(1);
        self.read_number.store(number, Ordering::Relaxed);
        self.restart();
    }

    /// Number of the present read, by which a cursor knows whether it has made progress in it.
    #[inline]
    pub(crate) fn read_number(&self) -> u32 {
        self.read_number.load(Ordering::Relaxed)
    }

    /// Lets the time begin anew with the next call of [`ReadDeadline::left`], because the read has
    /// made progress.
    #[inline]
    pub(crate) fn restart(&self) {
        self.until_ns.store(0, Ordering::Relaxed);
        self.waits_left.store(WAITS_MAX, Ordering::Relaxed);
    }

    /// Time that is left; `None` once it has passed. The first call begins it.
    pub(crate) fn left(&self, now_ns: u64) -> Option<Duration> {
        let until_ns = match self.until_ns.load(Ordering::Relaxed) {
            0 => {
                let until_ns = now_ns.saturating_add(READ_LIMIT.as_nanos() as u64);
                self.until_ns.store(until_ns, Ordering::Relaxed);
                until_ns
            }
            until_ns => until_ns,
        };
        let has_waits = self.waits_left.load(Ordering::Relaxed) > 0;
        let left = Duration::from_nanos(until_ns.saturating_sub(now_ns));
        (has_waits && !left.is_zero()).then_some(left)
    }

    /// Counts a wait that ended without a notification. Notifications about other shards wake a
    /// reader as well, and do not count.
    pub(crate) fn note_timed_out_wait(&self) {
        let less = |left: u32| left.checked_sub(1);
        // At 0, no wait is left.
        let _none_left = self.waits_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT_NS: u64 = READ_LIMIT.as_nanos() as u64;

    #[test]
    fn steps_of_a_read_share_the_time_that_begins_with_the_first() {
        let deadline = ReadDeadline::default();
        assert_eq!(deadline.left(7), Some(READ_LIMIT));
        assert_eq!(deadline.left(7 + LIMIT_NS - 1), Some(Duration::from_nanos(1)));
        assert_eq!(deadline.left(7 + LIMIT_NS), None);
        assert_eq!(deadline.left(7 + 5 * LIMIT_NS), None);
        deadline.restart();
        assert_eq!(deadline.left(7 + 5 * LIMIT_NS), Some(READ_LIMIT));
    }

    #[test]
    fn progress_leaves_the_number_of_the_read_and_another_read_changes_it() {
        let deadline = ReadDeadline::default();
        let first = deadline.read_number();
        assert_eq!(deadline.left(7), Some(READ_LIMIT));
        deadline.restart();
        assert_eq!(deadline.read_number(), first);
        assert_eq!(deadline.left(8), Some(READ_LIMIT));
        deadline.begin();
        assert_ne!(deadline.read_number(), first);
        assert_eq!(deadline.left(9), Some(READ_LIMIT));
    }

    #[test]
    fn waits_without_notification_end_a_read_while_the_clock_stands_still() {
        let deadline = ReadDeadline::default();
        for _ in 0..WAITS_MAX {
            assert_eq!(deadline.left(7), Some(READ_LIMIT));
            deadline.note_timed_out_wait();
        }
        assert_eq!(deadline.left(7), None);
        deadline.note_timed_out_wait();
        assert_eq!(deadline.left(7), None);
        deadline.restart();
        assert_eq!(deadline.left(7), Some(READ_LIMIT));
    }
}
