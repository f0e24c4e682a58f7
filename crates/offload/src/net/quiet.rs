//! The time for which jobs run at their owner without a request to a scheduler, after a job found
//! no scheduler or no executor.
//!
//! Thread-safety: any thread may call any method. There is one lock.
//! Failure: none.
//! Cost: a short lock for each job.

use parking_lot::Mutex;

use crate::job::LocalWhy;

/// Length of a quiet period in nanoseconds.
const QUIET_NS: u64 = 2_000_000_000;

#[derive(Debug)]
struct QuietPeriod {
    until_ns: u64,
    why: LocalWhy,
}

/// The latest quiet period of one open of a database.
#[derive(Debug, Default)]
pub(super) struct QuietTime(Mutex<Option<QuietPeriod>>);

impl QuietTime {
    /// Begins a quiet period, if a job came back because no scheduler or no executor answers.
    pub(super) fn begin(&self, now_ns: u64, why: LocalWhy) {
        if matches!(why, LocalWhy::Silent | LocalWhy::NoExecutor) {
            let until_ns = now_ns.saturating_add(QUIET_NS);
            *self.0.lock() = Some(QuietPeriod { until_ns, why });
        }
    }

    /// Reason for which jobs run here now; `None` outside of a quiet period. Jobs of the period are
    /// counted under the reason that began it.
    pub(super) fn cause(&self, now_ns: u64) -> Option<LocalWhy> {
        let latest = self.0.lock();
        latest.as_ref().filter(|period| now_ns < period.until_ns).map(|period| period.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_period_has_the_cause_that_began_it() {
        let quiet = QuietTime::default();
        assert_eq!(quiet.cause(0), None);
        for why in LocalWhy::ALL {
            let quiet = QuietTime::default();
            quiet.begin(5, why);
            let begins = matches!(why, LocalWhy::Silent | LocalWhy::NoExecutor);
            assert_eq!(quiet.cause(5 + QUIET_NS - 1), begins.then_some(why), "{why:?}");
            assert_eq!(quiet.cause(5 + QUIET_NS), None, "{why:?}");
        }
        quiet.begin(0, LocalWhy::Silent);
        quiet.begin(1, LocalWhy::NoExecutor);
        quiet.begin(2, LocalWhy::Busy);
        assert_eq!(quiet.cause(QUIET_NS), Some(LocalWhy::NoExecutor), "the latest one");
    }
}
