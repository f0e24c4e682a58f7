//! Promises: a value that exists now or arrives later, for threads and for tasks.
//!
//! A [`Promise`] is a future, and a thread can also wait for it without a runtime. The provider for
//! shared memory returns a promise that is ready, which needs no allocation, no lock and no
//! wake-up. A network provider returns a promise with a [`Slot`], which the thread that receives
//! the completion fills.
//!
//! The provider implements [`Driver`]. A thread that waits drives the link itself
//! ([`Driver::drive`]), so a lone caller reads its own answer without a switch of threads. A task
//! cannot do that. Its first poll asks the driver for another thread ([`Driver::attend`]), unless
//! the thread that polls runs [`block_on`](crate::block_on). Dropping a promise abandons the
//! answer, not the operation.
//!
//! Thread-safety: any thread may fill, poll, wait and drop.
//! Failure: a provider that ends fills its slots with refusals.
//! Cost: a pending promise allocates its slot once.

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

/// The lock and the flag of a slot. The trait lets the same code run under a model checker.
trait SlotCells<T> {
    type Guard<'a>: DerefMut<Target = SlotState<T>>
    where
        Self: 'a;
    fn lock(&self) -> Self::Guard<'_>;
    /// Reads the flag with acquire ordering.
    fn done(&self) -> bool;
    /// Sets the flag with release ordering, while the lock is held.
    fn set_done(&self);
}

/// Stores the value, and wakes the polling task after the lock is released. Only the first value
/// counts.
fn fill<T>(place: &impl SlotCells<T>, value: T) {
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

/// Takes the value, or stores the waker for the thread that will fill the slot.
fn take_or_leave<T>(place: &impl SlotCells<T>, waker: &Waker) -> Option<T> {
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

/// The place where a completion arrives.
#[derive(Debug)]
pub struct Slot<T> {
    done: AtomicBool,
    state: Mutex<SlotState<T>>,
}

#[derive(Debug)]
struct SlotState<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

impl<T> SlotCells<T> for Slot<T> {
    type Guard<'a>
        = MutexGuard<'a, SlotState<T>>
    where
        T: 'a;

    fn lock(&self) -> MutexGuard<'_, SlotState<T>> {
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
    /// Makes an empty slot.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            done: AtomicBool::new(false),
            state: Mutex::new(SlotState { value: None, waker: None }),
        })
    }

    /// Stores the value and wakes the polling task. Only the first value counts.
    pub fn fill(&self, value: T) {
        fill(self, value);
    }

    /// Whether the value has arrived.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done()
    }
}

/// A value of type `T` that exists now or arrives later.
#[must_use = "an operation whose promise is dropped still takes place, and no task learns its outcome"]
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
    /// Makes a promise of a value that exists already.
    #[inline]
    pub fn ready(value: T) -> Self {
        Self(Form::Ready(Some(value)))
    }

    /// Makes a promise of a value that `driver` will store in `slot`.
    pub fn pending(slot: Arc<Slot<T>>, driver: Arc<dyn Driver>) -> Self {
        Self(Form::Pending { slot, driver })
    }

    /// Whether [`Promise::wait`] would return immediately. The method does not receive, so a loop
    /// over it alone may never end.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match &self.0 {
            Form::Ready(_) => true,
            Form::Pending { slot, .. } => slot.is_done(),
        }
    }

    /// Blocks until the value arrives. The waiting thread drives the provider. Tasks must await the
    /// promise instead.
    ///
    /// # Panics
    ///
    /// The method panics if the promise was awaited to its end before.
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
    /// Runs `work` on a new thread named `name`, and returns a promise of its result. It suits rare
    /// work that blocks. `failed` makes the result if the system starts no thread.
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

    /// Fills a slot when it is driven.
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
    fn thread_drives_and_task_requests_attendance() {
        let slot = Slot::new();
        let driver = Arc::new(Filler(Arc::clone(&slot), AtomicUsize::new(0)));
        let mut promise = Promise::pending(Arc::clone(&slot), driver.clone() as Arc<dyn Driver>);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut promise).poll(&mut context).is_pending());
        assert_eq!(driver.1.load(Ordering::Relaxed), 1);
        assert_eq!(promise.wait(), 7);
        assert_eq!(driver.1.load(Ordering::Relaxed), 1, "a fulfilled promise needs no attendance");
    }

    /// A slot with the cells of the model checker.
    struct Checked {
        done: shuttle::sync::atomic::AtomicBool,
        state: shuttle::sync::Mutex<SlotState<u32>>,
        forget_the_waker: bool,
    }

    impl SlotCells<u32> for Checked {
        type Guard<'a> = shuttle::sync::MutexGuard<'a, SlotState<u32>>;

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

    /// Lets two threads fill the slot while a task polls.
    fn a_task_gets_the_first_value(forget_the_waker: bool) {
        let state = SlotState { value: None, waker: None };
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
    fn polling_task_is_woken_by_the_first_value() {
        shuttle::check_random(|| a_task_gets_the_first_value(false), 3000);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn missing_waker_is_found() {
        shuttle::check_random(|| a_task_gets_the_first_value(true), 3000);
    }

    #[test]
    fn first_value_counts() {
        let slot = Slot::new();
        slot.fill(1);
        slot.fill(2);
        let driver = Arc::new(Filler(Slot::new(), AtomicUsize::new(0)));
        assert_eq!(Promise::pending(slot, driver).wait(), 1);
    }
}
