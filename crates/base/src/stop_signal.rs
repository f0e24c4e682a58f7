//! A signal that ends a thread which works with pauses.
//!
//! Invariant: the signal is final. Every wait after it returns immediately.
//!
//! Thread-safety: any thread may call any method.
//! Failure: none.
//! Cost: one lock for each wait.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Tells threads to end, also in the middle of a pause. Its owner and its threads share it.
#[derive(Debug, Default)]
pub struct StopSignal {
    is_stopped: Mutex<bool>,
    changed: Condvar,
}

impl StopSignal {
    /// Gives the signal.
    pub fn stop(&self) {
        *self.is_stopped.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for the signal, and for `pause` at most. The pause may be shorter. Returns whether the
    /// signal was given.
    pub fn wait(&self, pause: Duration) -> bool {
        let mut is_stopped = self.is_stopped.lock();
        if !*is_stopped {
            self.changed.wait_for(&mut is_stopped, pause);
        }
        *is_stopped
    }

    /// Calls `step` until the signal is given, with the pauses that it returns in between.
    pub fn repeat(&self, mut step: impl FnMut() -> Duration) {
        let mut pause = Duration::ZERO;
        while !self.wait(pause) {
            pause = step();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_end_with_the_signal() {
        let signal = StopSignal::default();
        assert!(!signal.wait(Duration::ZERO));
        let mut steps = 0;
        signal.repeat(|| {
            steps += 1;
            if steps == 3 {
                signal.stop();
            }
            Duration::from_nanos(1)
        });
        assert_eq!(steps, 3);
        assert!(signal.wait(Duration::MAX), "no wait ends later than the signal");
        signal.repeat(|| unreachable!("the signal is final"));
    }
}
