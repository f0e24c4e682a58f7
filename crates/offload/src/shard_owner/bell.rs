//! A bell: wakes a sleeping task of an owner early.
//!
//! Invariant: a ring after the last wait ends the next wait immediately.
//!
//! Thread-safety: any thread may ring, and one task waits.
//! Failure: none. Cost: a short lock per ring.

use std::task::{Poll, Waker};
use std::time::Duration;

use archipelago_base::runtime::Runtime;
use parking_lot::Mutex;

/// Longest wait, so that a task notices in time that its owner is gone.
const WAIT_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct BellState {
    is_rung: bool,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
pub(super) struct Bell(Mutex<BellState>);

impl Bell {
    pub(super) fn ring(&self) {
        let waker = {
            let mut state = self.0.lock();
            state.is_rung = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Completes at a ring, after `ns` nanoseconds, or after [`WAIT_MAX`], whichever comes first.
    pub(super) async fn rest(&self, runtime: &dyn Runtime, ns: u64) {
        let mut sleep = runtime.sleep(Duration::from_nanos(ns).min(WAIT_MAX));
        std::future::poll_fn(|context| {
            {
                let mut state = self.0.lock();
                if std::mem::take(&mut state.is_rung) {
                    state.waker = None;
                    return Poll::Ready(());
                }
                state.waker = Some(context.waker().clone());
            }
            sleep.as_mut().poll(context)
        })
        .await;
    }
}
