//! Limit on how often the server logs one kind of event.
//!
//! The server owns one [`LogLimit`] per kind of event that any client can cause at will. The first
//! event is logged immediately. Later events are logged at most once per interval, and each line
//! has the number of events since the line before.
//!
//! Thread-safety: any thread may call any method. Cost: one short lock per event.

use parking_lot::Mutex;

/// Limit for one kind of event.
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
    /// A limit of one line in `interval_ns` nanoseconds.
    pub(crate) fn new(interval_ns: u64) -> Self {
        Self { interval_ns, state: Mutex::default() }
    }

    /// Counts an event at `now_ns`. `Some`: the caller logs a line now, for that number of events.
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
