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

    /// The checker's lock and threads; `EARLY`: threads are woken before they are told.
    #[derive(Default)]
    struct Model<const EARLY: bool> {
        state: shuttle::sync::Mutex<State<Modelled<EARLY>>>,
    }

    struct Modelled<const EARLY: bool> {
        thread: shuttle::thread::Thread,
        told: shuttle::sync::atomic::AtomicU8,
    }

    impl<const EARLY: bool> Cell for Modelled<EARLY> {
        fn of_this_thread() -> Self {
            let told = shuttle::sync::atomic::AtomicU8::new(WAITING);
            Self { thread: shuttle::thread::current(), told }
        }

        fn told(&self) -> u8 {
            self.told.load(Ordering::SeqCst)
        }

        fn set_told(&self, what: u8) {
            if EARLY {
                self.thread.unpark();
            }
            self.told.store(what, Ordering::SeqCst);
        }

        fn wake(&self) {
            if !EARLY {
                self.thread.unpark();
            }
        }

        fn sleep() {
            shuttle::thread::park();
        }
    }

    impl<const EARLY: bool> Room for Model<EARLY> {
        type Cell = Modelled<EARLY>;
        type Guard<'a> = shuttle::sync::MutexGuard<'a, State<Modelled<EARLY>>>;

        fn lock(&self) -> Self::Guard<'_> {
            self.state.lock().unwrap()
        }
    }

    /// What the modelled threads do: numbers given out, the log's end, who is at it, and how many were.
    #[derive(Default)]
    struct Log {
        given: shuttle::sync::atomic::AtomicU64,
        end: shuttle::sync::atomic::AtomicU64,
        at_it: shuttle::sync::atomic::AtomicU64,
        led: shuttle::sync::atomic::AtomicU64,
    }

    impl Log {
        /// Takes it to where it was given out; the leader that is the `fails`th fails.
        fn act(&self, fails: u64) -> Result<SeqNo> {
            assert_eq!(self.at_it.fetch_add(1, Ordering::SeqCst), 0, "two lead");
            let to = self.given.load(Ordering::SeqCst);
            shuttle::thread::yield_now();
            self.at_it.fetch_sub(1, Ordering::SeqCst);
            if self.led.fetch_add(1, Ordering::SeqCst) + 1 == fails {
                return Err(Error::invalid("no"));
            }
            self.end.fetch_max(to, Ordering::SeqCst);
            Ok(SeqNo(to))
        }
    }

    /// Four threads that each want the log to have what was given out to them. A lost wake-up is a deadlock, which the checker reports.
    fn everybody_gets_there<const EARLY: bool>(fails: u64) {
        let model = Arc::new((Model::<EARLY>::default(), Log::default()));
        let writer = |_| {
            let model = Arc::clone(&model);
            shuttle::thread::spawn(move || {
                let (room, log) = &*model;
                let seq = SeqNo(log.given.fetch_add(1, Ordering::SeqCst) + 1);
                let reached = reach(room, seq, || log.act(fails));
                if reached.is_ok() {
                    assert!(log.end.load(Ordering::SeqCst) >= seq.0, "it is not there");
                }
                reached.is_err()
            })
        };
        let writers: Vec<_> = (0..4).map(writer).collect();
        let failed = writers.into_iter().map(|writer| writer.join().unwrap());
        assert!(failed.filter(|failed| *failed).count() <= usize::from(fails > 0));
        let state = model.0.lock();
        assert_eq!((state.is_led, state.waiting.len()), (false, 0));
    }

    #[test]
    fn everybody_gets_there_however_threads_take_turns() {
        for fails in 0..3 {
            shuttle::check_random(move || everybody_gets_there::<false>(fails), 3000);
        }
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn who_is_woken_before_it_is_told_sleeps_for_ever() {
        shuttle::check_random(|| everybody_gets_there::<true>(0), 3000);
    }
}
