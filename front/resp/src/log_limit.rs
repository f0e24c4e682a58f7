//! A limit on how often one kind of event is logged.
//!
//! The server owns one [`LogLimit`] per kind of event that any client can cause at will. The first
//! event is logged at once, later ones at most once per interval, each line with the number of
//! events since the line before.
//!
//! Thread-safety: any thread may call any method. Cost: one short lock per event.

use parking_lot::Mutex;

/// See the module.
pub(crate) struct LogLimit {
    interval_ns: u64,
    state: Mutex<LogLimitState>,
}

#[derive(Default)]
struct LogLimitState {
    /// Time of the last line.
    logged_ns: Option<u64>,
    /// Events since that line.
    events: u64,
}

impl LogLimit {
    /// At most one line in `interval_ns` nanoseconds.
    pub(crate) fn new(interval_ns: u64) -> Self {
        Self { interval_ns, state: Mutex::default() }
    }

    /// Counts an event that happens at `now_ns`. `Some`: log a line now, for that many events.
    pub(crate) fn note(&self, now_ns: u64) -> Option<u64> {
        let mut state = self.state.lock();
        state.events += 1;
        let is_due = state.logged_ns.is_none_or(|at| now_ns.saturating_sub(at) >= self.interval_ns);
        if !is_due {
            return None;
        }
        state.logged_ns = Some(now_ns);
        Some(std::mem::take(&mut state.events))
    }
}

#[cfg(test)]
mod tests {
    use super::LogLimit;

    #[test]
    fn later_lines_count_the_events_between_them() {
        let limit = LogLimit::new(10);
        assert_eq!(limit.note(5), Some(1));
        assert_eq!((limit.note(6), limit.note(14)), (None, None));
        assert_eq!(limit.note(15), Some(3));
        assert_eq!(limit.note(16), None);
    }
}
