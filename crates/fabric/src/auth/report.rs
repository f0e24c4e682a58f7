//! Log lines about refused greetings. A process with a wrong secret, or one that sends other bytes,
//! may try again many times a second. So refusals are logged at intervals, with their number.

use std::sync::Arc;

use archipelago_base::clock::Clock;
use parking_lot::Mutex;

use crate::refusal::Refusal;

/// Time after a log line in which further refusals are only counted, in nanoseconds.
const QUIET_NS: u64 = 10_000_000_000;

#[derive(Debug, Default)]
struct Reported {
    /// Time of the last log line; `None` before the first.
    at_ns: Option<u64>,
    /// Number of refusals since the last log line.
    unlogged: u64,
}

impl Reported {
    /// Counts a refusal. Returns the number of refusals that a log line must report now, or `None`
    /// if no log line is due.
    fn count(&mut self, now_ns: u64) -> Option<u64> {
        self.unlogged += 1;
        if self.at_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < QUIET_NS) {
            return None;
        }
        self.at_ns = Some(now_ns);
        Some(std::mem::take(&mut self.unlogged))
    }
}

/// The refusals of one provider.
#[derive(Clone, Debug)]
pub(crate) struct RefusalReport {
    clock: Arc<dyn Clock>,
    reported: Arc<Mutex<Reported>>,
}

impl RefusalReport {
    pub(crate) fn new(clock: &Arc<dyn Clock>) -> Self {
        Self { clock: Arc::clone(clock), reported: Arc::default() }
    }

    /// Logs that `what` failed, unless a refusal was logged just before.
    pub(crate) fn log(&self, what: &str, refusal: Refusal) {
        let count = self.reported.lock().count(self.clock.now_ns());
        if let Some(refusals) = count {
            tracing::warn!(%refusal, refusals, "{what}");
        }
    }

    /// Logs the refusal of a link to a node, if its reason is authentication. Returns the refusal.
    pub(crate) fn of_client(&self, address: &str, refusal: Refusal) -> Refusal {
        if refusal.reason.is_authentication() {
            self.log(&format!("the node at {address} was not linked"), refusal);
        }
        refusal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_logged_at_intervals_with_their_number() {
        let mut reported = Reported::default();
        assert_eq!(reported.count(7), Some(1));
        assert_eq!((reported.count(8), reported.count(7 + QUIET_NS - 1)), (None, None));
        assert_eq!(reported.count(7 + QUIET_NS), Some(3));
        assert_eq!(reported.count(8 + QUIET_NS), None);
    }
}
