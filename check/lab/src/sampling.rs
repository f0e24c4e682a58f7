//! Samples of a cluster, taken from outside while a process runs.
//!
//! Thread-safety: a thread of its own takes the samples.
//! Failure: an error of the process comes before one of a sample. After a sample that failed, the
//! process still runs to its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::clock::{Clock as _, SystemClock};
use archipelago_bench::harness::store::{Error, Result};

/// Calls `run` and, until it has ended, `sample` at intervals of `every`. `sample` gets the seconds
/// from the start to its call, and is called a last time after the end.
pub(crate) fn sample_during<S: Send>(
    every: Duration,
    sample: impl Fn(f64) -> Result<S> + Send,
    run: impl FnOnce() -> Result<()>,
) -> Result<Vec<S>> {
    let has_ended = AtomicBool::new(false);
    let (ended, samples) = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| samples_until(&has_ended, every, sample));
        let end = SetOnDrop(&has_ended);
        let ended = run();
        drop(end);
        (ended, sampler.join().unwrap_or_else(|_| Err(panicked())))
    });
    ended?;
    samples
}

/// Sets its flag when it is dropped, also by a panic, so that the sampler ends.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn samples_until<S>(
    has_ended: &AtomicBool,
    every: Duration,
    sample: impl Fn(f64) -> Result<S>,
) -> Result<Vec<S>> {
    let clock = SystemClock::new();
    let started_ns = clock.now_ns();
    let mut samples = Vec::new();
    loop {
        let is_last = has_ended.load(Ordering::Acquire);
        samples.push(sample((clock.now_ns() - started_ns) as f64 / 1e9)?);
        if is_last {
            return Ok(samples);
        }
        clock.sleep(every);
    }
}

fn panicked() -> Error {
    Error::invalid("the thread that takes samples of the nodes panicked")
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(1);

    #[test]
    fn last_sample_follows_the_end_of_the_process() {
        let is_written = AtomicBool::new(false);
        let sample = |_: f64| -> Result<bool> { Ok(is_written.load(Ordering::Acquire)) };
        let run = || -> Result<()> {
            is_written.store(true, Ordering::Release);
            Ok(())
        };
        let samples = sample_during(EVERY, sample, run).expect("samples");
        assert_eq!(samples.last(), Some(&true));
    }

    #[test]
    fn error_of_the_process_comes_before_that_of_a_sample() {
        let sample = |_: f64| -> Result<()> { Err(Error::invalid("a sample")) };
        let failed = sample_during(EVERY, sample, || Err(Error::invalid("the process")));
        assert!(failed.expect_err("both fail").to_string().contains("the process"));
        let failed = sample_during(EVERY, sample, || Ok(()));
        assert!(failed.expect_err("samples fail").to_string().contains("a sample"));
    }
}
