//! One of several who want the log to get somewhere takes it there for all: durable, or on its device.
//!
//! Who finds nobody at it leads: takes the log as far as it was given out by then. Who comes meanwhile waits; the
//! leader tells all whom its work covers, and the first of the others that it leads next.
//!
//! Invariants: 1. at most one leads; 2. whoever waits is told, by the leader that covers it or by being
//! made the next; 3. `reached` only grows, and only by work that succeeded. Failure: the leader gets its error, the next is
//! made leader all the same and meets the error itself. Thread-safe. Cost: alone, two short locks; a
//! waiter allocates once and sleeps until it is told. All that are covered are woken at once: woken one by another, the
//! last of eight waited for seven wake-ups.

use std::ops::DerefMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, Thread};

use archipelago_base::{Result, SeqNo};
use parking_lot::{Mutex, MutexGuard};

/// What a waiter was told: nothing yet,
const WAITING: u8 = 0;
/// that somebody did it,
const COVERED: u8 = 1;
/// or that it leads.
const LEADING: u8 = 2;

/// A thread that waits, and the cell in which it is told: abstract, so that the protocol runs under a model checker.
pub(super) trait Cell {
    /// Of the calling thread, untold.
    fn of_this_thread() -> Self;
    /// Acquires.
    fn told(&self) -> u8;
    /// Releases.
    fn set_told(&self, what: u8);
    /// Wakes the thread.
    fn wake(&self);
    fn tell(&self, what: u8) {
        self.set_told(what);
        self.wake();
    }
    /// Sleeps until the thread was woken, also if that was before.
    fn sleep();
}

#[derive(Debug)]
struct Waiter<C> {
    seq: SeqNo,
    cell: C,
}

/// What is behind the lock.
#[derive(Debug)]
pub(super) struct State<C> {
    reached: SeqNo,
    is_led: bool,
    /// In the order in which they came.
    waiting: Vec<Arc<Waiter<C>>>,
}

impl<C> Default for State<C> {
    fn default() -> Self {
        Self { reached: SeqNo::default(), is_led: false, waiting: Vec::new() }
    }
}

/// The lock of the state.
pub(super) trait Room {
    type Cell: Cell;
    type Guard<'a>: DerefMut<Target = State<Self::Cell>>
    where
        Self: 'a;
    fn lock(&self) -> Self::Guard<'_>;
}

/// See [`Leading::reach`].
fn reach<R: Room>(room: &R, seq: SeqNo, act: impl FnOnce() -> Result<SeqNo>) -> Result<bool> {
    let waiter = {
        let mut state = room.lock();
        if state.reached >= seq {
            return Ok(false);
        }
        if std::mem::replace(&mut state.is_led, true) {
            let waiter = Arc::new(Waiter { seq, cell: R::Cell::of_this_thread() });
            state.waiting.push(Arc::clone(&waiter));
            Some(waiter)
        } else {
            None
        }
    };
    if let Some(waiter) = waiter {
        loop {
            match waiter.cell.told() {
                COVERED => return Ok(false),
                LEADING => break,
                _ => R::Cell::sleep(),
            }
        }
    }
    let mut turn = Turn { room, to: None };
    turn.to = Some(act()?);
    Ok(true)
}

/// Ends the leader's turn, which took the log as far as `to` if it succeeded.
fn hand_over<R: Room>(room: &R, to: Option<SeqNo>) {
    let mut state = room.lock();
    state.reached = state.reached.max(to.unwrap_or_default());
    let reached = state.reached;
    let (covered, mut others): (Vec<_>, Vec<_>) =
        std::mem::take(&mut state.waiting).into_iter().partition(|w| w.seq <= reached);
    let next = if others.is_empty() { None } else { Some(others.remove(0)) };
    state.is_led = next.is_some();
    state.waiting = others;
    drop(state);
    next.iter().for_each(|waiter| waiter.cell.tell(LEADING));
    covered.iter().for_each(|waiter| waiter.cell.tell(COVERED));
}

/// A leader's turn: handed over when it ends, however that is.
struct Turn<'a, R: Room> {
    room: &'a R,
    to: Option<SeqNo>,
}

impl<R: Room> Drop for Turn<'_, R> {
    fn drop(&mut self) {
        hand_over(self.room, self.to);
    }
}

/// How far the log is; see the module.
#[derive(Debug, Default)]
pub(crate) struct Leading {
    state: Mutex<State<Parked>>,
}

/// A thread of the operating system.
#[derive(Debug)]
pub(super) struct Parked {
    thread: Thread,
    told: AtomicU8,
}

impl Cell for Parked {
    fn of_this_thread() -> Self {
        Self { thread: thread::current(), told: AtomicU8::new(WAITING) }
    }

    fn told(&self) -> u8 {
        self.told.load(Ordering::Acquire)
    }

    fn set_told(&self, what: u8) {
        self.told.store(what, Ordering::Release);
    }

    fn wake(&self) {
        self.thread.unpark();
    }

    fn sleep() {
        thread::park();
    }
}

impl Room for Leading {
    type Cell = Parked;
    type Guard<'a> = MutexGuard<'a, State<Parked>>;

    fn lock(&self) -> Self::Guard<'_> {
        self.state.lock()
    }
}

impl Leading {
    /// Sees to it that the log gets as far as `seq`, by `act`, which returns how far it took it. Whether this caller had to
    /// act.
    pub(crate) fn reach(&self, seq: SeqNo, act: impl FnOnce() -> Result<SeqNo>) -> Result<bool> {
        reach(self, seq, act)
    }
}

#[cfg(test)]
mod tests;
