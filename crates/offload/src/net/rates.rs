//! The rate limit of a database, divided between its owner and the jobs in executors
//! (docs/decisions/0090-rate-limit-of-jobs-in-executors.md).
//!
//! A job takes a part of the limit to its executor. The rate of the owner's limiter is lower by
//! this part until the call of the job ends.
//!
//! Invariants:
//! 1. The rate of the owner's limiter and all parts together are the limit of the database.
//! 2. A job without a part has no limit, because its database has none.
//! 3. An executor writes for each job at [`SHARE_BYTES_PER_S_MIN`] at least, even if the package of
//!    the job says less. No owner gives a smaller part, and a job with a smaller part would not
//!    end.
//!
//! Thread-safety: any thread may call any method. There is one lock.
//! Failure: a job that gets no part runs in the owner's process, which counts it. An executor that
//! does not know yet that its attempt was given up still uses its part, although other jobs may
//! have it already.
//! Cost: a short lock at the begin and at the end of each job.

use std::sync::Arc;

use archipelago_env::limit::RateLimiter;
use parking_lot::Mutex;

use crate::decide::{SHARE_BYTES_PER_S_MIN, ShareInput, rate_share};

#[derive(Debug, Default)]
struct Lent {
    /// Limit of the database; the limiter has it while no job has a part.
    limit_bytes_per_s: u64,
    lent_bytes_per_s: u64,
    /// Jobs that have a part.
    jobs: u64,
    /// The most jobs that had a part at the same time. It halves when a job takes a part while no
    /// other job has one.
    most_jobs: u64,
}

/// Bytes a second that an executor lets a job write whose package says `bytes_per_s`; 0 for no
/// limit.
pub(super) fn rate_of_package(bytes_per_s: u64) -> u64 {
    match bytes_per_s {
        0 => 0,
        part => part.max(SHARE_BYTES_PER_S_MIN),
    }
}

/// Divides the rate limit of one open of a database.
#[derive(Debug, Default)]
pub(super) struct RateDivider(Mutex<Lent>);

/// The part of one job, until it is dropped.
#[derive(Debug)]
pub(super) struct RatePart {
    /// The divider and the limiter of the owner; `None` without a limit.
    of: Option<(Arc<RateDivider>, Arc<RateLimiter>)>,
    bytes_per_s: u64,
}

impl RateDivider {
    /// Takes a part for one more job from the owner's limiter. `None` if too little is left.
    pub(super) fn take(self: &Arc<Self>, limiter: Option<&Arc<RateLimiter>>) -> Option<RatePart> {
        let unlimited = RatePart { of: None, bytes_per_s: 0 };
        let Some(limiter) = limiter else { return Some(unlimited) };
        let mut lent = self.0.lock();
        if lent.jobs == 0 {
            lent.limit_bytes_per_s = limiter.bytes_per_second();
            lent.most_jobs /= 2;
        }
        if lent.limit_bytes_per_s == 0 {
            return Some(unlimited);
        }
        let bytes_per_s = rate_share(&ShareInput {
            limit_bytes_per_s: lent.limit_bytes_per_s,
            lent_bytes_per_s: lent.lent_bytes_per_s,
            jobs: lent.most_jobs.max(lent.jobs + 1),
        })?;
        lent.jobs += 1;
        lent.most_jobs = lent.most_jobs.max(lent.jobs);
        lent.lent_bytes_per_s += bytes_per_s;
        lent.set(limiter);
        Some(RatePart { of: Some((Arc::clone(self), Arc::clone(limiter))), bytes_per_s })
    }
}

impl Lent {
    fn set(&self, limiter: &RateLimiter) {
        limiter.set_bytes_per_second(self.limit_bytes_per_s - self.lent_bytes_per_s);
    }
}

impl RatePart {
    /// Bytes a second that the job may write; 0 for no limit.
    pub(super) fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }
}

impl Drop for RatePart {
    fn drop(&mut self) {
        let Some((divider, limiter)) = &self.of else { return };
        let mut lent = divider.0.lock();
        lent.jobs -= 1;
        lent.lent_bytes_per_s -= self.bytes_per_s;
        lent.set(limiter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    #[test]
    fn owner_and_jobs_have_the_limit_together() {
        let divider = Arc::new(RateDivider::default());
        let limiter = Arc::new(RateLimiter::new(12 * MB));
        let take = || divider.take(Some(&limiter));
        let first = take().expect("a part");
        assert_eq!((first.bytes_per_s(), limiter.bytes_per_second()), (6 * MB, 6 * MB));
        let second = take().expect("a part");
        assert_eq!((second.bytes_per_s(), limiter.bytes_per_second()), (3 * MB, 3 * MB));
        // Two jobs had parts at the same time, so the next jobs get equal parts.
        drop(first);
        assert_eq!(limiter.bytes_per_second(), 9 * MB);
        let third = take().expect("a part");
        assert_eq!((third.bytes_per_s(), limiter.bytes_per_second()), (4 * MB, 5 * MB));
        drop((second, third));
        assert_eq!(limiter.bytes_per_second(), 12 * MB);
    }

    #[test]
    fn number_of_jobs_halves_at_the_next_job_that_begins_alone() {
        let divider = Arc::new(RateDivider::default());
        let limiter = Arc::new(RateLimiter::new(12 * MB));
        let take = || divider.take(Some(&limiter)).expect("a part");
        drop([take(), take(), take()]);
        assert_eq!(divider.0.lock().most_jobs, 3, "all jobs have ended");
        let alone = take();
        assert_eq!((alone.bytes_per_s(), divider.0.lock().most_jobs), (6 * MB, 1));
        let _second = take();
        assert_eq!(divider.0.lock().most_jobs, 2);
    }

    #[test]
    fn package_with_a_tiny_rate_gets_the_smallest_part() {
        let least = SHARE_BYTES_PER_S_MIN;
        let rates = [0, 1, least - 1, least, MB].map(rate_of_package);
        assert_eq!(rates, [0, least, least, least, MB]);
    }

    #[test]
    fn job_without_a_part_stays_and_a_database_without_a_limit_has_none() {
        let divider = Arc::new(RateDivider::default());
        assert_eq!(divider.take(None).map(|part| part.bytes_per_s()), Some(0));
        let limiter = Arc::new(RateLimiter::new(0));
        assert_eq!(divider.take(Some(&limiter)).map(|part| part.bytes_per_s()), Some(0));
        assert_eq!(limiter.bytes_per_second(), 0);
        limiter.set_bytes_per_second(64 << 10);
        assert!(divider.take(Some(&limiter)).is_none());
        assert_eq!(limiter.bytes_per_second(), 64 << 10);
    }
}
