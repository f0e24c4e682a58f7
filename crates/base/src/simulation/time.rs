//! Waiting in virtual time: timers, time-outs, and the clock of the simulation.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::core::{Action, Scheduler};
use super::host::Life;
use crate::clock::Clock;

/// Index of a timer in the table, and the number of the entry's use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct TimerId {
    place: u32,
    generation: u32,
}

/// Wakers of the timers that are set. A timer that is dropped leaves its entry in the event queue.
/// That entry does not advance the clock.
#[derive(Default)]
pub(super) struct Timers {
    places: Vec<(u32, Option<Waker>)>,
    free: Vec<u32>,
}

impl Timers {
    fn set(&mut self, waker: &Waker) -> TimerId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        let (generation, kept) = &mut self.places[place as usize];
        *kept = Some(waker.clone());
        TimerId { place, generation: *generation }
    }

    pub(super) fn armed(&self, timer: TimerId) -> bool {
        self.places[timer.place as usize].0 == timer.generation
    }

    /// Removes a timer that is due or was dropped. Returns its waker.
    pub(super) fn fire(&mut self, timer: TimerId) -> Option<Waker> {
        if !self.armed(timer) {
            return None;
        }
        let (generation, waker) = &mut self.places[timer.place as usize];
        *generation = generation.wrapping_add(1);
        self.free.push(timer.place);
        waker.take()
    }
}

/// A future that completes at a moment. It may be dropped earlier.
pub struct Sleep {
    scheduler: Scheduler,
    at_ns: u64,
    timer: Option<TimerId>,
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sleep(until {} ns)", self.at_ns)
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = this.scheduler.0.state.lock();
        if state.now_ns >= this.at_ns {
            return Poll::Ready(());
        }
        match this.timer {
            Some(timer) if state.timers.armed(timer) => {
                state.timers.places[timer.place as usize].1 = Some(context.waker().clone());
            }
            _ => {
                let timer = state.timers.set(context.waker());
                this.timer = Some(timer);
                state.push(this.at_ns, Life::WORLD, Action::Timer(timer));
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            let waker = self.scheduler.0.state.lock().timers.fire(timer);
            drop(waker);
        }
    }
}

/// The time limit passed before the future completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut;

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time was over first")
    }
}

impl std::error::Error for TimedOut {}

impl Scheduler {
    /// A future that completes after `duration`.
    #[must_use]
    pub fn sleep(&self, duration: Duration) -> Sleep {
        let ns = duration.as_nanos().min(u128::from(u64::MAX)) as u64;
        self.sleep_until(self.now_ns().saturating_add(ns))
    }

    /// A future that completes at `at_ns`.
    #[must_use]
    pub fn sleep_until(&self, at_ns: u64) -> Sleep {
        Sleep { scheduler: self.clone(), at_ns, timer: None }
    }

    /// Yields: the seed decides which of the other ready tasks run first.
    pub async fn pause(&self) {
        let mut paused = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut paused, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Awaits `future` for at most `duration`, and drops it after that.
    pub async fn timeout<T>(
        &self,
        duration: Duration,
        future: impl Future<Output = T>,
    ) -> Result<T, TimedOut> {
        let mut future = pin!(future);
        let mut sleep = self.sleep(duration);
        std::future::poll_fn(|context| {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(value));
            }
            Pin::new(&mut sleep).poll(context).map(|()| Err(TimedOut))
        })
        .await
    }

    /// The time of the simulation as a [`Clock`].
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(VirtualClock(self.clone()))
    }
}

/// A [`Clock`] of virtual time, whose wall clock begins on 2025-01-01. A `sleep` on it runs the
/// simulation, so tasks await [`Scheduler::sleep`] instead.
#[derive(Clone, Debug)]
pub struct VirtualClock(Scheduler);

const BEGINNING_UNIX_MS: u64 = 1_735_689_600_000;

impl Clock for VirtualClock {
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn unix_ms(&self) -> u64 {
        BEGINNING_UNIX_MS + self.0.now_ns() / 1_000_000
    }

    fn sleep(&self, duration: Duration) {
        self.0.run_for(duration);
    }
}
