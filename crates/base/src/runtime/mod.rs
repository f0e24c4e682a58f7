//! The environment of asynchronous code: time, sleep, tasks and random seeds. The same code runs
//! over threads and in the seeded simulation.
//!
//! | implementation | time | tasks |
//! | --- | --- | --- |
//! | [`Host`] | virtual | belong to the current life of the host, and end when it crashes |
//! | [`ThreadRuntime`] | the system's | run on a few threads until the process ends |
//!
//! [`block_on`] runs a future on a thread that has nothing else to do, and [`wait_for`] does so in
//! the simulation as well. [`Gate`] is a lock that a task may hold over awaits. [`join_all`] awaits
//! several futures in parallel.
//!
//! Rules for asynchronous code:
//! 1. It awaits, and never blocks a thread.
//! 2. It takes time and seeds only from its [`Runtime`].
//! 3. Its behaviour does not depend on the order of a `HashMap`.
//! 4. It may be dropped at any await, and leaves its state consistent then.
//! 5. A poll neither waits for another future nor takes a lock that a caller of [`wait_for`] holds.
//!    In the simulation virtual time stands while a thread polls, so both would wait for ever.
//!
//! Thread-safety: any thread may call any method.
//! Cost: one allocation per task and per sleep.

mod threads;

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::simulation::{Host, Scheduler};

pub use threads::ThreadRuntime;

/// A boxed future that may move between threads.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The environment of asynchronous code. The module describes the rules for that code.
pub trait Runtime: Send + Sync + fmt::Debug + 'static {
    /// Nanoseconds since a fixed moment. The value never decreases.
    fn now_ns(&self) -> u64;

    /// Milliseconds since 1970, for times that people set and read. Leases must not depend on it.
    fn unix_ms(&self) -> u64;

    /// A future that completes after `duration`. It may be dropped earlier.
    fn sleep(&self, duration: Duration) -> Boxed<'static, ()>;

    /// Starts a task. `name` appears in messages. The task runs until it completes, its host
    /// crashes or the runtime ends.
    fn spawn(&self, name: &str, task: Boxed<'static, ()>);

    /// A seed for ids and generators, which no other call returns. It comes from the seed of the
    /// simulation or from the system's entropy.
    fn seed(&self) -> u64;

    /// Runs `future` on the calling thread until it completes ([`wait_for`]). Tasks and simulated
    /// code must not call it.
    fn block_on(&self, future: Boxed<'_, ()>) {
        block_on(future);
    }
}

/// Number of steps after which a thread that runs a simulation lets another one run it.
const STEPS_OF_A_TURN: u32 = 256;

impl Runtime for Host {
    fn now_ns(&self) -> u64 {
        self.reading_ns()
    }

    fn unix_ms(&self) -> u64 {
        self.scheduler().clock().unix_ms()
    }

    fn sleep(&self, duration: Duration) -> Boxed<'static, ()> {
        Box::pin(self.scheduler().sleep(self.clock().takes(duration)))
    }

    fn spawn(&self, name: &str, task: Boxed<'static, ()>) {
        let _ends_with_the_host = Self::spawn(self, name, task);
    }

    fn seed(&self) -> u64 {
        self.scheduler().fresh_seed()
    }

    /// Runs the simulation until `future` completes. Code outside the simulation calls it. Several
    /// threads may wait, and a future may wait for another thread's future. So a thread runs no
    /// step while another thread can go on or polls its future, and it keeps its turn for a limited
    /// number of steps.
    fn block_on(&self, mut future: Boxed<'_, ()>) {
        let caller = Arc::new(OutsideCaller::new(self.scheduler()));
        let waker = Waker::from(Arc::clone(&caller));
        let mut context = Context::from_waker(&waker);
        let _no_later_wake_counts = OutsideCallEnd(&caller);
        let since_ns = self.scheduler().now_ns();
        loop {
            let polling = PollingCaller::count(&caller);
            if future.as_mut().poll(&mut context).is_ready() {
                return;
            }
            drop(polling);
            // The count of a wake-up ends with the next poll, which has a count of its own by then.
            while !caller.is_woken() {
                let steps_left = Cell::new(STEPS_OF_A_TURN);
                let ended = self.scheduler().run_for_caller(since_ns, || {
                    steps_left.set(steps_left.get() - 1);
                    let ready = self.scheduler().callers_ready().load(Ordering::Acquire);
                    ready > 0 || steps_left.get() == 0
                });
                let waiting = || self.scheduler().waiting().join(", ");
                assert!(ended, "nothing is left to happen in the simulation: {}", waiting());
            }
        }
    }
}

const IDLE: u8 = 0;
const WOKEN: u8 = 1;
const ENDED: u8 = 2;

/// A thread outside the simulation that waits for a future. The simulation counts it while it can
/// go on.
#[derive(Debug)]
struct OutsideCaller {
    scheduler: Scheduler,
    state: AtomicU8,
}

impl OutsideCaller {
    fn new(scheduler: &Scheduler) -> Self {
        Self { scheduler: scheduler.clone(), state: AtomicU8::new(IDLE) }
    }

    /// Whether the future was woken since the last poll began.
    fn is_woken(&self) -> bool {
        self.state.load(Ordering::Acquire) == WOKEN
    }

    /// Takes the wake-up, and with it its count.
    fn replace(&self, next: u8) {
        if self.state.swap(next, Ordering::AcqRel) == WOKEN {
            self.scheduler.callers_ready().fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A caller that polls its future. It counts as one that can go on until the drop, because the
/// future may hold what other threads wait for, and the system may suspend the thread.
struct PollingCaller<'a>(&'a OutsideCaller);

impl<'a> PollingCaller<'a> {
    fn count(caller: &'a OutsideCaller) -> Self {
        caller.scheduler.callers_ready().fetch_add(1, Ordering::AcqRel);
        caller.replace(IDLE);
        Self(caller)
    }
}

impl Drop for PollingCaller<'_> {
    fn drop(&mut self) {
        self.0.scheduler.callers_ready().fetch_sub(1, Ordering::AcqRel);
    }
}

impl Wake for OutsideCaller {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The count is never below the number of callers that are woken.
        self.scheduler.callers_ready().fetch_add(1, Ordering::AcqRel);
        let exchanged =
            self.state.compare_exchange(IDLE, WOKEN, Ordering::AcqRel, Ordering::Acquire);
        if exchanged.is_err() {
            self.scheduler.callers_ready().fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Ends the count of a caller, whatever wakes its future later.
struct OutsideCallEnd<'a>(&'a OutsideCaller);

impl Drop for OutsideCallEnd<'_> {
    fn drop(&mut self) {
        self.0.replace(ENDED);
    }
}

/// Runs `future` on the calling thread and returns its output: the thread sleeps while the future
/// waits, or runs the simulation that `runtime` is a host of. Synchronous code over a runtime uses
/// it. Tasks and simulated code must not call it.
pub fn wait_for<T: Send>(runtime: &dyn Runtime, future: impl Future<Output = T> + Send) -> T {
    let mut output = None;
    runtime.block_on(Box::pin(async { output = Some(future.await) }));
    output.expect("a runtime returns when the future has completed")
}

/// Wakes a thread that is parked.
struct Parked {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Runs `future` on the calling thread, which sleeps while the future waits. Tasks and simulated
/// code must not call it.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let parked = Arc::new(Parked { thread: std::thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&parked));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        while !parked.woken.swap(false, Ordering::Acquire) {
            std::thread::park();
        }
    }
}

/// Awaits all futures and returns their outputs in the given order. Each wake-up polls every future
/// that has not completed, so the function suits tens of futures and not thousands.
pub async fn join_all<T>(futures: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut pending: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    let mut done: Vec<Option<T>> = pending.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        let mut left = false;
        for (future, done) in pending.iter_mut().zip(&mut done) {
            let Some(waiting) = future else { continue };
            match waiting.as_mut().poll(context) {
                Poll::Ready(value) => (*done, *future) = (Some(value), None),
                Poll::Pending => left = true,
            }
        }
        if left { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[derive(Debug, Default)]
struct Waiting {
    taken: bool,
    wakers: VecDeque<Waker>,
}

/// A lock for tasks, which a task may hold over awaits. The order of the waiting tasks is not
/// defined.
#[derive(Debug, Default)]
pub struct Gate(Mutex<Waiting>);

/// The right to be inside a [`Gate`]. Dropping it opens the gate for another task.
#[derive(Debug)]
#[must_use = "a pass that is dropped immediately lets the next task in"]
pub struct Pass<'a>(&'a Gate);

impl Gate {
    /// Waits until no other task is inside, and enters.
    pub async fn enter(&self) -> Pass<'_> {
        std::future::poll_fn(|context| {
            let mut waiting = self.0.lock();
            if !waiting.taken {
                waiting.taken = true;
                return Poll::Ready(());
            }
            waiting.wakers.push_back(context.waker().clone());
            Poll::Pending
        })
        .await;
        Pass(self)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let wakers = {
            let mut waiting = self.0.0.lock();
            waiting.taken = false;
            // All waiting tasks are woken: a single one may have been dropped, and would not pass
            // the wake-up on.
            std::mem::take(&mut waiting.wakers)
        };
        for waker in wakers {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;
