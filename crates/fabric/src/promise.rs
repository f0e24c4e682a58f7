//! Completions: a value that is there at once, or comes later, for threads and for tasks alike.
//!
//! A [`Promise`] is a future, and can be waited for without any runtime. Shared memory answers with
//! a promise that is ready: no allocation, no lock, no wake-up. A network answers with a [`Slot`],
//! which whoever receives the completion fills.
//!
//! Somebody has to receive. [`Driver`] is the provider's part: a thread that waits lends itself to
//! it ([`Driver::drive`]), so that a lone caller reads its own answer off the socket without a
//! switch of threads; a task cannot, so its first poll asks the driver for a thread of its own
//! ([`Driver::attend`]), unless the thread that polls has nothing else to do
//! ([`block_on`](crate::block_on)). Dropping a promise abandons the answer, never the operation.
//!
//! Thread-safety: all of it. Failure: a provider that goes away fills its slots with refusals.

use std::fmt;
use std::future::Future;
use std::ops::DerefMut;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use archipelago_base::Error;
use archipelago_base::spawn::{Spawn, SystemSpawn};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::block_on;
use crate::driver::Driver;

/// The lock and the flag of a slot: abstract, so that the same code runs under a model checker.
trait Place<T> {
    type Guard<'a>: DerefMut<Target = State<T>>
    where
        Self: 'a;
    fn lock(&self) -> Self::Guard<'_>;
    /// Acquires.
    fn done(&self) -> bool;
    /// Releases; with the lock held.
    fn set_done(&self);
}

/// Puts the value in and wakes the task that polls, without the lock. Only the first value counts.
fn fill<T>(place: &impl Place<T>, value: T) {
    let waker = {
        let mut state = place.lock();
        if place.done() {
            return;
        }
        state.value = Some(value);
        place.set_done();
        state.waker.take()
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Takes the value, or leaves the waker there for whoever fills the slot.
fn take_or_leave<T>(place: &impl Place<T>, waker: &Waker) -> Option<T> {
    let mut state = place.lock();
    if let Some(value) = state.value.take() {
        return Some(value);
    }
    assert!(!place.done(), "a promise is used once");
    match &mut state.waker {
        Some(known) => known.clone_from(waker),
        none => *none = Some(waker.clone()),
    }
    None
}

/// Where a completion arrives.
#[derive(Debug)]
pub struct Slot<T> {
    done: AtomicBool,
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

impl<T> Place<T> for Slot<T> {
    type Guard<'a>
        = MutexGuard<'a, State<T>>
    where
        T: 'a;

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock()
    }

    fn done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    fn set_done(&self) {
        self.done.store(true, Ordering::Release);
    }
}

impl<T> Slot<T> {
    /// An empty slot.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            done: AtomicBool::new(false),
            state: Mutex::new(State { value: None, waker: None }),
        })
    }

    /// Puts the value in and wakes the task that polls. Only the first value counts.
    pub fn fill(&self, value: T) {
        fill(self, value);
    }

    /// Whether the value has come.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done()
    }
}

/// A value of type `T`, now or later. See the module.
#[must_use = "an operation whose promise is dropped still takes place, and nobody learns how it went"]
pub struct Promise<T>(Form<T>);

enum Form<T> {
    Ready(Option<T>),
    Pending { slot: Arc<Slot<T>>, driver: Arc<dyn Driver> },
}

impl<T> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Promise(done: {})", self.is_done())
    }
}

impl<T> Promise<T> {
    /// A value that is there.
    #[inline]
    pub fn ready(value: T) -> Self {
        Self(Form::Ready(Some(value)))
    }

    /// A value that `driver` will put into `slot`.
    pub fn pending(slot: Arc<Slot<T>>, driver: Arc<dyn Driver>) -> Self {
        Self(Form::Pending { slot, driver })
    }

    /// Whether [`Promise::wait`] would return at once. Asking does not receive: to loop over this
    /// alone may take for ever.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match &self.0 {
            Form::Ready(_) => true,
            Form::Pending { slot, .. } => slot.is_done(),
        }
    }

    /// Blocks until the value is there; lends this thread to the provider meanwhile. Not for tasks:
    /// await the promise instead.
    ///
    /// # Panics
    ///
    /// If the promise was awaited to its end before.
    #[inline]
    pub fn wait(mut self) -> T {
        match &mut self.0 {
            Form::Ready(value) => value.take().expect("a promise is used once"),
            Form::Pending { slot, driver } => {
                if !slot.is_done() {
                    driver.drive(&|| slot.is_done());
                }
                let value = slot.state.lock().value.take();
                value.expect("a driver returns when the slot is filled")
            }
        }
    }
}

impl<T: Unpin> Future for Promise<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut self.0 {
            Form::Ready(value) => Poll::Ready(value.take().expect("a promise is used once")),
            Form::Pending { slot, driver } => {
                if let Some(value) = take_or_leave(&**slot, context.waker()) {
                    return Poll::Ready(value);
                }
                if !block_on::takes(driver) {
                    driver.attend();
                }
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if let Form::Pending { slot, driver } = &self.0
            && !slot.is_done()
        {
            driver.attend();
        }
    }
}

/// The driver of work that has a thread of its own.
#[derive(Default)]
struct Elsewhere {
    lock: Mutex<()>,
    changed: Condvar,
}

impl Driver for Elsewhere {
    fn drive(&self, done: &dyn Fn() -> bool) {
        let mut lock = self.lock.lock();
        while !done() {
            self.changed.wait(&mut lock);
        }
    }

    fn attend(&self) {}
}

impl<T: Send + 'static> Promise<T> {
    /// What `work` returns, on a thread named `name`: for what is rare and blocks. `failed` says
    /// what it is if there is no thread.
    pub fn on_thread(
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
        failed: impl FnOnce(Error) -> T,
    ) -> Self {
        let slot = Slot::new();
        let driver = Arc::new(Elsewhere::default());
        let (filled, told) = (Arc::clone(&slot), Arc::clone(&driver));
        let body = Box::new(move || {
            filled.fill(work());
            let _lock = told.lock.lock();
            told.changed.notify_all();
        });
        match SystemSpawn.spawn(name, body) {
            Ok(_runs_by_itself) => Self::pending(slot, driver),
            Err(error) => Self::ready(failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Fills a slot when driven.
    struct Filler(Arc<Slot<u32>>, AtomicUsize);

    impl Driver for Filler {
        fn drive(&self, done: &dyn Fn() -> bool) {
            self.0.fill(7);
            assert!(done());
        }

        fn attend(&self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_waiter_drives_and_a_task_asks_for_attention() {
        let slot = Slot::new();
        let driver = Arc::new(Filler(Arc::clone(&slot), AtomicUsize::new(0)));
        let mut promise = Promise::pending(Arc::clone(&slot), driver.clone() as Arc<dyn Driver>);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut promise).poll(&mut context).is_pending());
        assert_eq!(driver.1.load(Ordering::Relaxed), 1);
        assert_eq!(promise.wait(), 7);
        assert_eq!(driver.1.load(Ordering::Relaxed), 1, "a kept promise needs no attention");
    }

    /// A slot of the model checker's cells.
    struct Checked {
        done: shuttle::sync::atomic::AtomicBool,
        state: shuttle::sync::Mutex<State<u32>>,
        forget_the_waker: bool,
    }

    impl Place<u32> for Checked {
        type Guard<'a> = shuttle::sync::MutexGuard<'a, State<u32>>;

        fn lock(&self) -> Self::Guard<'_> {
            self.state.lock().expect("no panic")
        }

        fn done(&self) -> bool {
            self.done.load(Ordering::Acquire)
        }

        fn set_done(&self) {
            self.done.store(true, Ordering::Release);
        }
    }

    /// Two fill it, one of them late, while a task polls.
    fn a_task_gets_the_first_value(forget_the_waker: bool) {
        let state = State { value: None, waker: None };
        let slot = Arc::new(Checked {
            done: shuttle::sync::atomic::AtomicBool::new(false),
            state: shuttle::sync::Mutex::new(state),
            forget_the_waker,
        });
        let fillers: Vec<_> = [7, 8]
            .into_iter()
            .map(|value| {
                let slot = Arc::clone(&slot);
                shuttle::thread::spawn(move || fill(&*slot, value))
            })
            .collect();
        let value = shuttle::future::block_on(std::future::poll_fn(|context| {
            if slot.forget_the_waker {
                return slot.lock().value.take().map_or(Poll::Pending, Poll::Ready);
            }
            take_or_leave(&*slot, context.waker()).map_or(Poll::Pending, Poll::Ready)
        }));
        assert!([7, 8].contains(&value));
        for filler in fillers {
            filler.join().expect("no panic");
        }
        assert!(slot.done() && slot.lock().value.is_none(), "a second value is nobody's");
    }

    #[test]
    fn whoever_polls_is_woken_once_the_value_is_there() {
        shuttle::check_random(|| a_task_gets_the_first_value(false), 3000);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_task_that_leaves_no_waker_is_found() {
        shuttle::check_random(|| a_task_gets_the_first_value(true), 3000);
    }

    #[test]
    fn the_first_value_counts() {
        let slot = Slot::new();
        slot.fill(1);
        slot.fill(2);
        let driver = Arc::new(Filler(Slot::new(), AtomicUsize::new(0)));
        assert_eq!(Promise::pending(slot, driver).wait(), 1);
    }
}
