//! Completion leader: one thread at a time receives completions on behalf of all threads of a link.
//!
//! A link owns one `CompletionLeader`. A waiting thread becomes the leader if there is none.
//! Therefore a lone caller needs no switch of threads. Other threads sleep until the leader
//! notifies them. A task cannot wait. It requests *attendance*: a background thread that leads
//! while operations are in flight and no other thread leads.
//!
//! Invariants:
//! 1. At most one thread executes rounds.
//! 2. Every sleeping thread is notified after each round that completed an operation, and when the
//!    leader stops.
//! 3. The operations of a sleeping thread were handed over before it went to sleep.
//! 4. A leader whose time is over stops. The other threads choose a new leader.
//!
//! The trait [`Room`] hides lock and condition variable, so that the same code runs under a model
//! checker (`tests`).
//!
//! Thread-safety: any thread may call any method.
//! Failure: none of its own.
//! Cost: a lone caller takes two short locks. A caller with a limit reads the clock once for each
//! round of receiving, and for each sleep, that has not completed its operation.

#[cfg(test)]
mod tests;

use std::ops::DerefMut;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The link, as the leader uses it.
pub(crate) trait Receive {
    /// Receives once. Returns after a completion, and after about `limit` at the latest. It may
    /// return earlier without a completion.
    fn round(&self, limit: Duration);
    /// Whether no operation is in flight.
    fn idle(&self) -> bool;
    /// Sends the queued operations, or notifies the sleeping leader to send them.
    fn hand_over(&self);
}

/// The state that the lock of the room guards.
#[derive(Debug, Default)]
pub(crate) struct LeaderState {
    leading: bool,
    attend: bool,
    thread: bool,
    ended: bool,
}

/// A lock around the state, and a condition variable to sleep on.
pub(crate) trait Room {
    type Guard<'a>: DerefMut<Target = LeaderState>
    where
        Self: 'a;
    fn lock(&self) -> Self::Guard<'_>;
    /// Sleeps without the lock until [`Room::tell_all`], or for `limit`. `Duration::MAX` is no
    /// limit.
    fn sleep<'a>(&'a self, guard: Self::Guard<'a>, limit: Duration) -> Self::Guard<'a>;
    fn tell_all(&self);
}

/// The room in production.
#[derive(Debug, Default)]
pub(crate) struct Locked {
    state: Mutex<LeaderState>,
    changed: Condvar,
}

impl Room for Locked {
    type Guard<'a> = MutexGuard<'a, LeaderState>;

    fn lock(&self) -> MutexGuard<'_, LeaderState> {
        self.state.lock()
    }

    fn sleep<'a>(
        &'a self,
        mut guard: MutexGuard<'a, LeaderState>,
        limit: Duration,
    ) -> MutexGuard<'a, LeaderState> {
        if limit == Duration::MAX {
            self.changed.wait(&mut guard);
        } else {
            let _in_time_or_late = self.changed.wait_for(&mut guard, limit);
        }
        guard
    }

    fn tell_all(&self) {
        self.changed.notify_all();
    }
}

/// Chooses the thread that receives completions for a link.
#[derive(Debug, Default)]
pub(crate) struct CompletionLeader<R = Locked> {
    room: R,
}

impl<R: Room> CompletionLeader<R> {
    /// Receives on the calling thread until `done`, or sleeps while another thread leads. Returns
    /// earlier if `left`, the time that is left for it, becomes zero. `Duration::MAX` is no limit.
    /// It calls `left` at the beginning, and after each sleep or round of receiving after which
    /// `done` is still false.
    pub(crate) fn drive(
        &self,
        link: &impl Receive,
        done: &dyn Fn() -> bool,
        left: &dyn Fn() -> Duration,
    ) {
        let mut limit = left();
        loop {
            if done() || limit.is_zero() {
                return;
            }
            let mut state = self.room.lock();
            if !state.leading {
                state.leading = true;
                break;
            }
            // The leader may sleep on the network, so the operations of this thread are sent first.
            drop(state);
            link.hand_over();
            let state = self.room.lock();
            let sleeps = state.leading && !done();
            drop(if sleeps { self.room.sleep(state, limit) } else { state });
            // This may read the clock, so the thread holds no lock.
            if !done() {
                limit = left();
            }
        }
        while !done() && !limit.is_zero() {
            link.round(limit);
            if !done() {
                limit = left();
            }
        }
        self.room.lock().leading = false;
        self.room.tell_all();
    }

    /// Wakes all sleeping threads after a completion.
    pub(crate) fn tell(&self) {
        let _state = self.room.lock();
        self.room.tell_all();
    }

    /// Requests attendance. Returns true if the caller must start the background thread, which runs
    /// [`CompletionLeader::attendance`].
    pub(crate) fn ask(&self) -> bool {
        let mut state = self.room.lock();
        state.attend = true;
        self.room.tell_all();
        !std::mem::replace(&mut state.thread, true)
    }

    /// Body of the background thread. It returns after [`CompletionLeader::end`].
    pub(crate) fn attendance(&self, link: &impl Receive) {
        let mut state = self.room.lock();
        while !state.ended {
            if state.attend && link.idle() {
                state.attend = false;
            }
            if !state.attend || state.leading {
                state = self.room.sleep(state, Duration::MAX);
                continue;
            }
            state.leading = true;
            drop(state);
            while !link.idle() {
                link.round(Duration::MAX);
            }
            state = self.room.lock();
            state.leading = false;
            self.room.tell_all();
        }
    }

    /// Ends attendance permanently.
    pub(crate) fn end(&self) {
        self.room.lock().ended = true;
        self.room.tell_all();
    }
}
