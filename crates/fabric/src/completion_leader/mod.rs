//! Who receives completions for a link: one thread at a time, the *leader*.
//!
//! A thread that waits leads if nobody does, so a lone caller pays no switch of threads; others
//! sleep until the leader tells them. A task cannot wait: it asks for *attendance*, a background
//! thread that leads as long as something is in flight and nobody else does.
//!
//! Invariants: 1. at most one thread runs rounds; 2. whoever sleeps here is told after each round
//! that completed something, and when the leader stops; 3. what a sleeper posted was handed over
//! before it slept.
//!
//! The cells ([`Room`]) are abstract, so that the same code runs under a model checker
//! (`tests`). Thread-safety: all methods. Failure: none of its own.

#[cfg(test)]
mod tests;

use std::ops::DerefMut;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// What the leader does.
pub(crate) trait Receive {
    /// Receives once. Returns when something completed, and now and then if nothing does.
    fn round(&self);
    /// Whether nothing is in flight.
    fn idle(&self) -> bool;
    /// Sends what is queued, or tells the leader, who may be asleep, to do so.
    fn hand_over(&self);
}

/// Guarded by the room's lock.
#[derive(Debug, Default)]
pub(crate) struct State {
    leading: bool,
    attend: bool,
    thread: bool,
    ended: bool,
}

/// A lock around the state, and a place to sleep.
pub(crate) trait Room {
    type Guard<'a>: DerefMut<Target = State>
    where
        Self: 'a;
    fn lock(&self) -> Self::Guard<'_>;
    /// Sleeps, without the lock, until [`Room::tell_all`].
    fn sleep<'a>(&'a self, guard: Self::Guard<'a>) -> Self::Guard<'a>;
    fn tell_all(&self);
}

/// The room of production.
#[derive(Debug, Default)]
pub(crate) struct Locked {
    state: Mutex<State>,
    changed: Condvar,
}

impl Room for Locked {
    type Guard<'a> = MutexGuard<'a, State>;

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn sleep<'a>(&'a self, mut guard: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(&mut guard);
        guard
    }

    fn tell_all(&self) {
        self.changed.notify_all();
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct CompletionLeader<R = Locked> {
    room: R,
}

impl<R: Room> CompletionLeader<R> {
    /// Receives on this thread until `done`, or sleeps while another thread does.
    pub(crate) fn drive(&self, link: &impl Receive, done: &dyn Fn() -> bool) {
        let mut state = self.room.lock();
        loop {
            if done() {
                return;
            }
            if !state.leading {
                break;
            }
            // The leader may be asleep over the network: what this caller posted must leave first.
            drop(state);
            link.hand_over();
            state = self.room.lock();
            if state.leading && !done() {
                state = self.room.sleep(state);
            }
        }
        state.leading = true;
        drop(state);
        while !done() {
            link.round();
        }
        self.room.lock().leading = false;
        self.room.tell_all();
    }

    /// Wakes who sleeps: something completed.
    pub(crate) fn tell(&self) {
        let _state = self.room.lock();
        self.room.tell_all();
    }

    /// Asks for attendance; true if its thread is to be started, to run
    /// [`CompletionLeader::attendance`].
    pub(crate) fn ask(&self) -> bool {
        let mut state = self.room.lock();
        state.attend = true;
        self.room.tell_all();
        !std::mem::replace(&mut state.thread, true)
    }

    /// The background thread; returns after [`CompletionLeader::end`].
    pub(crate) fn attendance(&self, link: &impl Receive) {
        let mut state = self.room.lock();
        while !state.ended {
            if state.attend && link.idle() {
                state.attend = false;
            }
            if !state.attend || state.leading {
                state = self.room.sleep(state);
                continue;
            }
            state.leading = true;
            drop(state);
            while !link.idle() {
                link.round();
            }
            state = self.room.lock();
            state.leading = false;
            self.room.tell_all();
        }
    }

    /// No attendance any more.
    pub(crate) fn end(&self) {
        self.room.lock().ended = true;
        self.room.tell_all();
    }
}
