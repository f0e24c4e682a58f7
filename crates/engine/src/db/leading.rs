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

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, Thread};

use archipelago_base::{Result, SeqNo};
use parking_lot::Mutex;

/// What a waiter was told: nothing yet,
const WAITING: u8 = 0;
/// that somebody did it,
const COVERED: u8 = 1;
/// or that it leads.
const LEADING: u8 = 2;

#[derive(Debug)]
struct Waiter {
    seq: SeqNo,
    thread: Thread,
    told: AtomicU8,
}

impl Waiter {
    fn tell(&self, what: u8) {
        self.told.store(what, Ordering::Release);
        self.thread.unpark();
    }
}

#[derive(Debug, Default)]
struct State {
    reached: SeqNo,
    is_led: bool,
    /// In the order in which they came.
    waiting: Vec<Arc<Waiter>>,
}

/// How far the log is; see the module.
#[derive(Debug, Default)]
pub(crate) struct Leading {
    state: Mutex<State>,
}

impl Leading {
    /// Sees to it that the log gets as far as `seq`, by `act`, which returns how far it took it. Whether this caller had to
    /// act.
    pub(crate) fn reach(&self, seq: SeqNo, act: impl FnOnce() -> Result<SeqNo>) -> Result<bool> {
        let waiter = {
            let mut state = self.state.lock();
            if state.reached >= seq {
                return Ok(false);
            }
            if std::mem::replace(&mut state.is_led, true) {
                let thread = thread::current();
                let waiter = Arc::new(Waiter { seq, thread, told: AtomicU8::new(WAITING) });
                state.waiting.push(Arc::clone(&waiter));
                Some(waiter)
            } else {
                None
            }
        };
        if let Some(waiter) = waiter {
            loop {
                match waiter.told.load(Ordering::Acquire) {
                    COVERED => return Ok(false),
                    LEADING => break,
                    _ => thread::park(),
                }
            }
        }
        let mut turn = Turn { leading: self, to: None };
        turn.to = Some(act()?);
        Ok(true)
    }

    /// Ends the leader's turn, which took the log as far as `to` if it succeeded.
    fn hand_over(&self, to: Option<SeqNo>) {
        let mut state = self.state.lock();
        state.reached = state.reached.max(to.unwrap_or_default());
        let reached = state.reached;
        let (covered, mut others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.waiting).into_iter().partition(|w| w.seq <= reached);
        let next = if others.is_empty() { None } else { Some(others.remove(0)) };
        state.is_led = next.is_some();
        state.waiting = others;
        drop(state);
        next.iter().for_each(|waiter| waiter.tell(LEADING));
        covered.iter().for_each(|waiter| waiter.tell(COVERED));
    }
}

/// A leader's turn: handed over when it ends, however that is.
struct Turn<'a> {
    leading: &'a Leading,
    to: Option<SeqNo>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.leading.hand_over(self.to);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use archipelago_base::Error;

    use super::*;

    #[test]
    fn one_acts_for_all_that_it_covers_and_the_next_for_the_rest() {
        let leading = Leading::default();
        let given = AtomicU64::new(0);
        let acts = AtomicU64::new(0);
        let at_once = AtomicU64::new(0);
        let act = || {
            assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0, "one leads");
            let target = given.load(Ordering::SeqCst);
            thread::yield_now();
            acts.fetch_add(1, Ordering::SeqCst);
            at_once.fetch_sub(1, Ordering::SeqCst);
            Ok(SeqNo(target))
        };
        let led = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let seq = SeqNo(given.fetch_add(1, Ordering::SeqCst) + 1);
                        if leading.reach(seq, act).expect("no failure") {
                            led.fetch_add(1, Ordering::SeqCst);
                        }
                        assert!(leading.state.lock().reached >= seq, "it is there on return");
                    }
                });
            }
        });
        let acts = acts.load(Ordering::SeqCst);
        assert_eq!(acts, led.load(Ordering::SeqCst));
        assert!(acts <= 4000, "{acts}");
        let state = leading.state.lock();
        assert_eq!((state.reached, state.is_led, state.waiting.len()), (SeqNo(4000), false, 0));
    }

    #[test]
    fn a_failure_is_told_to_everybody_and_nobody_waits_for_ever() {
        let leading = Leading::default();
        let failed = AtomicU64::new(0);
        thread::scope(|scope| {
            for seq in 1..=8 {
                let (leading, failed) = (&leading, &failed);
                scope.spawn(move || {
                    let act = || {
                        thread::yield_now();
                        Err(Error::invalid("no"))
                    };
                    leading.reach(SeqNo(seq), act).expect_err("it failed");
                    failed.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(failed.load(Ordering::SeqCst), 8);
        thread::scope(|scope| {
            let broken = scope.spawn(|| leading.reach(SeqNo(1), || panic!("a bug")));
            assert!(broken.join().is_err());
        });
        assert!(leading.reach(SeqNo(3), || Ok(SeqNo(9))).expect("it is mended"));
        assert!(!leading.reach(SeqNo(9), || panic!("it is there")).expect("there"));
    }
}
