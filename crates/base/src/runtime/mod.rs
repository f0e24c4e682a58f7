//! What asynchronous code needs of the world, so that the same code runs over threads and in the
//! seeded simulation: time, sleep, tasks, random seeds.
//!
//! | implemented by | time | tasks |
//! | --- | --- | --- |
//! | [`Host`] | virtual | of the host's present life; they end when it crashes |
//! | [`ThreadRuntime`] | the system's | on a few threads, until the process ends |
//!
//! Rules for such code: 1. it awaits, it never blocks a thread; 2. it asks for time and seeds here
//! alone; 3. nothing that it does depends on the order of a `HashMap`; 4. it may be dropped at any
//! await, and leaves its state in order then.
//!
//! [`block_on`] is for callers that have a thread to spare, never for tasks. [`Gate`] is a lock
//! that is held over awaits; [`join_all`] awaits several.
//!
//! Thread-safety: all of it. Cost: one allocation per task and per sleep.

mod threads;

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::simulation::Host;

pub use threads::ThreadRuntime;

/// A future on the heap, of any type, that may move between threads.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// See the module.
pub trait Runtime: Send + Sync + fmt::Debug + 'static {
    /// Nanoseconds since some fixed moment; never goes back.
    fn now_ns(&self) -> u64;

    /// Milliseconds since 1970: for what people set and read, never for leases.
    fn unix_ms(&self) -> u64;

    /// Done after `duration`. Dropped, it leaves nothing behind.
    fn sleep(&self, duration: Duration) -> Boxed<'static, ()>;

    /// Starts a task; `name` stands in messages. It goes on by itself until it is done or the world
    /// that it lives in ends.
    fn spawn(&self, name: &str, task: Boxed<'static, ()>);

    /// A seed that no other call got: for ids and generators. From the simulation's seed, or the
    /// system's entropy.
    fn seed(&self) -> u64;
}

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

/// Runs `future` on this thread, which sleeps while there is nothing to do. Not for tasks, and not
/// in a simulation.
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

/// Done when all are; what came of them, in their order. Whichever is woken, all that are not done
/// are asked again: for tens, not thousands.
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

/// Lets one task through at a time; the others await. Unlike a mutex it may be held over awaits.
/// Whoever is let through next is not decided by who came first.
#[derive(Debug, Default)]
pub struct Gate(Mutex<Waiting>);

/// The right to be within a [`Gate`]; given back when dropped.
#[derive(Debug)]
#[must_use = "dropped at once it keeps nobody out"]
pub struct Pass<'a>(&'a Gate);

impl Gate {
    /// Done when nobody else is within.
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
            // All of them: one that was dropped meanwhile would keep the news to itself.
            std::mem::take(&mut waiting.wakers)
        };
        for waker in wakers {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;
