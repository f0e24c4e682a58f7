//! Group sync: one waiting writer brings the log to its device on behalf of all the others.
//!
//! The commit point owns two [`GroupSync`] values: one for syncs, one for writes to the device. A
//! writer that finds no such work in progress becomes the leader and covers everything that was
//! appended by then. Later writers wait. When the work ends, the leader wakes every writer that it
//! covered, and makes the first remaining writer the next leader. The leader wakes the covered
//! writers directly. If each writer woke the next one, the last of eight would wait for seven
//! wake-ups.
//!
//! Invariants:
//! 1. At most one writer leads.
//! 2. Every waiting writer is either woken as covered or made the next leader.
//! 3. `reached` only grows, and only by work that succeeded.
//!
//! Thread-safety: any thread may call any method.
//! Failure: the leader gets its error. The next leader does the work again and may meet the same
//! error.
//! Cost: a lone writer takes two short locks. A waiting writer allocates once and sleeps until it
//! is woken.

use std::ops::DerefMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, Thread};

use archipelago_base::{Result, SeqNo};
use parking_lot::{Mutex, MutexGuard};

/// State of a waiting writer before the leader has decided about it.
const WAITING: u8 = 0;
/// State of a writer whose record a leader has covered.
const COVERED: u8 = 1;
/// State of a writer that was made the next leader.
const LEADING: u8 = 2;

/// A waiting thread, and the cell with which a leader tells it the outcome. It is a trait, so that
/// the protocol runs under a model checker.
pub(super) trait Cell {
    /// The cell of the calling thread, in the state [`WAITING`].
    fn of_this_thread() -> Self;
    /// Reads the cell, with acquire ordering.
    fn told(&self) -> u8;
    /// Writes the cell, with release ordering.
    fn set_told(&self, what: u8);
    /// Wakes the thread.
    fn wake(&self);
    fn tell(&self, what: u8) {
        self.set_told(what);
        self.wake();
    }
    /// Sleeps until the thread is woken. Returns immediately if it was woken before the call.
    fn sleep();
}

#[derive(Debug)]
struct Waiter<C> {
    seq: SeqNo,
    cell: C,
}

/// State that the lock guards.
#[derive(Debug)]
pub(super) struct SyncState<C> {
    reached: SeqNo,
    is_led: bool,
    /// The waiting writers, in the order in which they arrived.
    waiting: Vec<Arc<Waiter<C>>>,
}

impl<C> Default for SyncState<C> {
    fn default() -> Self {
        Self { reached: SeqNo::default(), is_led: false, waiting: Vec::new() }
    }
}

/// The lock that guards the state. It is a trait for the model checker.
pub(super) trait Room {
    type Cell: Cell;
    type Guard<'a>: DerefMut<Target = SyncState<Self::Cell>>
    where
        Self: 'a;
    fn lock(&self) -> Self::Guard<'_>;
}

/// Carries out [`GroupSync::reach`].
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

/// Ends the leader's turn. If the turn succeeded, it brought the log as far as `to`.
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

/// A leader's turn. The drop hands it over, also after an error or a panic.
struct Turn<'a, R: Room> {
    room: &'a R,
    to: Option<SeqNo>,
}

impl<R: Room> Drop for Turn<'_, R> {
    fn drop(&mut self) {
        hand_over(self.room, self.to);
    }
}

/// Progress of the log towards its device, and the writers that wait for it.
#[derive(Debug, Default)]
pub(crate) struct GroupSync {
    state: Mutex<SyncState<Parked>>,
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

impl Room for GroupSync {
    type Cell = Parked;
    type Guard<'a> = MutexGuard<'a, SyncState<Parked>>;

    fn lock(&self) -> Self::Guard<'_> {
        self.state.lock()
    }
}

impl GroupSync {
    /// Brings the log at least to `seq`. The leader calls `act`, which returns how far the log
    /// came. Returns whether this caller was the leader. Errors are those of `act`.
    pub(crate) fn reach(&self, seq: SeqNo, act: impl FnOnce() -> Result<SeqNo>) -> Result<bool> {
        reach(self, seq, act)
    }
}

#[cfg(test)]
mod tests;
