//! A signal that ends a thread which works with pauses.
//!
//! Invariant: the signal is final. Every wait after it returns immediately.
//!
//! Thread-safety: any thread may call any method.
//! Failure: none.
//! Cost: one lock for each wait.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The state that the lock of a signal guards.
#[derive(Debug, Default)]
struct SignalState {
    is_stopped: bool,
    /// Whether the next pause ends before it begins.
    is_woken: bool,
}

/// Tells threads to end, also in the middle of a pause. Its owner and its threads share it.
#[derive(Debug, Default)]
pub struct StopSignal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

impl StopSignal {
    /// Gives the signal.
    pub fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Ends the present pause of the thread without the signal, or its next pause. A signal that is
    /// used in this way has one thread.
    pub fn wake(&self) {
        self.state.lock().is_woken = true;
        self.changed.notify_all();
    }

    /// Waits for the signal, and for `pause` at most. The pause may be shorter. Returns whether the
    /// signal was given.
    pub fn wait(&self, pause: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.is_stopped && !state.is_woken {
            self.changed.wait_for(&mut state, pause);
        }
        state.is_woken = false;
        state.is_stopped
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

    #[test]
    fn wake_up_ends_one_pause() {
        let signal = StopSignal::default();
        signal.wake();
        assert!(!signal.wait(Duration::MAX), "the pause ends before it begins");
        assert!(!signal.wait(Duration::ZERO));
        let mut pauses = vec![Duration::ZERO, Duration::MAX];
        signal.repeat(|| {
            match pauses.len() {
                0 => signal.stop(),
                _ => signal.wake(),
            }
            pauses.pop().unwrap_or_default()
        });
    }
}
