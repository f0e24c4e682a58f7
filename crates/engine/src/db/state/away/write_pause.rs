//! Notices pauses of the writers, in which shards may give the memory of shared nodes back
//! ([`crate::db::background::due`]; decision 0105).
//!
//! Picks of background work observe the newest visible sequence number. Idle workers pick a few
//! times a second, so no timer is necessary. A pause is noticed late by the time between two picks,
//! and never too early: it is counted from the pick that saw the number first.
//!
//! Writers that are stopped look like a pause. The rule that uses this notice therefore also asks
//! whether compactions are behind.
//!
//! Thread-safety: the caller holds a lock. Failure: none. Cost: a comparison for each pick.

use std::time::Duration;

use archipelago_base::SeqNo;

/// Time without an acknowledged write after which the writers of a database pause. Then the
/// database gives memory back at nodes that other databases share
/// ([`RestBounds::gives_back`](crate::db::RestBounds::gives_back)).
pub const WRITE_PAUSE: Duration = Duration::from_secs(1);

/// The newest write, and the time since which no other one was observed.
#[derive(Debug, Default)]
pub(super) struct WritePause {
    /// `None` before the first observation.
    newest: Option<SeqNo>,
    since_ns: u64,
}

impl WritePause {
    /// Takes the newest visible sequence number at `now_ns`. Returns whether the writers pause.
    pub(super) fn observe(&mut self, newest: SeqNo, now_ns: u64) -> bool {
        if self.newest != Some(newest) {
            *self = Self { newest: Some(newest), since_ns: now_ns };
        }
        now_ns.saturating_sub(self.since_ns) >= WRITE_PAUSE.as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE_NS: u64 = WRITE_PAUSE.as_nanos() as u64;

    #[test]
    fn first_observation_is_no_pause() {
        let mut pause = WritePause::default();
        assert!(!pause.observe(SeqNo::ZERO, 7 * PAUSE_NS), "nothing is known of the time before");
        assert!(!pause.observe(SeqNo::ZERO, 8 * PAUSE_NS - 1));
        assert!(pause.observe(SeqNo::ZERO, 8 * PAUSE_NS));
    }

    #[test]
    fn each_write_begins_the_time_anew() {
        let mut pause = WritePause::default();
        assert!(!pause.observe(SeqNo(4), 0));
        assert!(!pause.observe(SeqNo(5), PAUSE_NS), "a write of the last moment");
        assert!(!pause.observe(SeqNo(5), 2 * PAUSE_NS - 1));
        assert!(pause.observe(SeqNo(5), 2 * PAUSE_NS));
        assert!(pause.observe(SeqNo(5), 9 * PAUSE_NS), "a pause lasts until the next write");
        assert!(!pause.observe(SeqNo(6), 9 * PAUSE_NS + 1));
        assert!(!pause.observe(SeqNo(6), 9 * PAUSE_NS), "a thread with an earlier time");
    }
}
