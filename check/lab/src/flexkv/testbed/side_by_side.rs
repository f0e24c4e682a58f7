//! Independent runs, one per processor at a time.
//!
//! Each job starts its own testbed, which follows from its seed alone. So the results do not depend
//! on the number of processors. They are in the order of the jobs.
//!
//! Failure: the first error in that order is returned after all jobs have ended. A job that panics
//! makes the caller panic. Cost: a thread and a testbed per processor.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use archipelago_base::Result;
use parking_lot::Mutex;

/// Does `run` of every job.
pub fn side_by_side<J: Sync, T: Send>(
    jobs: &[J],
    run: impl Fn(&J) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let workers = available_parallelism().map_or(1, NonZero::get).min(jobs.len());
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Option<Result<T>>>> = Mutex::new(jobs.iter().map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((at, job)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    jobs.get(at).map(|job| (at, job))
                } {
                    let result = run(job);
                    done.lock()[at] = Some(result);
                }
            });
        }
    });
    done.into_inner().into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use archipelago_base::Error;

    use super::*;

    #[test]
    fn results_and_the_first_error_follow_the_order_of_jobs() {
        let jobs: Vec<u64> = (0..50).collect();
        let doubled = side_by_side(&jobs, |job| Ok(job * 2)).expect("no errors");
        assert_eq!(doubled, jobs.iter().map(|job| job * 2).collect::<Vec<_>>());
        let odd = |job: &u64| match job % 2 {
            0 => Ok(*job),
            _ => Err(Error::invalid(format!("job {job}"))),
        };
        let error = side_by_side(&jobs, odd).expect_err("half of them");
        assert!(error.to_string().contains("job 1"), "{error}");
        assert!(side_by_side(&[], odd).expect("nothing to do").is_empty());
    }
}
