//! A bell: wakes the pump of a card early. The pump is a thread or a task.
//!
//! Invariant: a ring after the last wait ends the next wait immediately.
//!
//! Thread-safety: any thread may ring, and the pump alone waits.
//! Failure: none. Cost: a short lock per ring.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use archipelago_base::runtime::Runtime;
use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
struct BellState {
    is_rung: bool,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
pub(super) struct Bell {
    state: Mutex<BellState>,
    changed: Condvar,
}

impl Bell {
    pub(super) fn ring(&self) {
        let waker = {
            let mut state = self.state.lock();
            state.is_rung = true;
            state.waker.take()
        };
        self.changed.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Blocks until a ring, for at most `ns` nanoseconds. `u64::MAX` means no limit.
    pub(super) fn wait(&self, ns: u64) {
        let mut state = self.state.lock();
        if !state.is_rung {
            if ns == u64::MAX {
                self.changed.wait(&mut state);
            } else {
                self.changed.wait_for(&mut state, Duration::from_nanos(ns));
            }
        }
        state.is_rung = false;
    }

    /// Completes at a ring, or after `ns` nanoseconds. `u64::MAX` means no limit.
    pub(super) async fn rest(&self, runtime: &dyn Runtime, ns: u64) {
        let mut sleep = (ns < u64::MAX).then(|| runtime.sleep(Duration::from_nanos(ns)));
        std::future::poll_fn(|context| {
            if self.was_rung(context) {
                return Poll::Ready(());
            }
            match &mut sleep {
                Some(sleep) => sleep.as_mut().poll(context),
                None => Poll::Pending,
            }
        })
        .await;
    }

    /// Takes a ring, or leaves the waker for the next one.
    fn was_rung(&self, context: &mut Context<'_>) -> bool {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.is_rung) {
            return true;
        }
        match &mut state.waker {
            Some(known) => known.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        false
    }
}
