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
//! Code of this crate may pass the value through a *filter* before it reaches the slot. The filter
//! runs without the slot's lock on the thread that fills the slot, so it must not block.
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
use std::time::Duration;

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

/// A function that transforms the value before it is stored. It returns `None` if it keeps the
/// value.
type Filter<T> = Box<dyn FnOnce(T) -> Option<T> + Send>;

/// Passes the value through the filters, stores it, and wakes the polling task after the lock is
/// released. Only the first value counts.
fn fill<T>(place: &impl SlotCells<T>, value: T) {
    let mut value = Some(value);
    let mut is_mine = false;
    loop {
        let filter = {
            let mut state = place.lock();
            if place.done() || (state.is_filling && !is_mine) {
                return;
            }
            let Some(filter) = state.filter.take() else {
                state.value = value;
                place.set_done();
                let waker = state.waker.take();
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
                return;
            };
            state.is_filling = true;
            filter
        };
        is_mine = true;
        value = value.and_then(filter);
    }
}

/// Adds a filter for the value, after those that were added before. The promise has not been used.
fn add_filter<T: 'static>(place: &impl SlotCells<T>, filter: Filter<T>) {
    let value = {
        let mut state = place.lock();
        if !place.done() {
            state.filter = Some(match state.filter.take() {
                Some(first) => Box::new(move |value| first(value).and_then(filter)),
                None => filter,
            });
            return;
        }
        state.value.take()
    };
    let value = value.and_then(filter);
    place.lock().value = value;
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
pub struct Slot<T> {
    done: AtomicBool,
    state: Mutex<SlotState<T>>,
}

impl<T> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot(done: {})", self.is_done())
    }
}

struct SlotState<T> {
    value: Option<T>,
    waker: Option<Waker>,
    filter: Option<Filter<T>>,
    /// Whether a filter is working on the first value.
    is_filling: bool,
}

impl<T> SlotState<T> {
    fn empty() -> Self {
        Self { value: None, waker: None, filter: None, is_filling: false }
    }
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
        Arc::new(Self { done: AtomicBool::new(false), state: Mutex::new(SlotState::empty()) })
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

impl<T: Send + 'static> Promise<T> {
    /// Passes the value through `filter` on the thread that completes the promise, or on this
    /// thread if the value already exists.
    pub(crate) fn passing(mut self, filter: impl FnOnce(T) -> T + Send + 'static) -> Self {
        match &mut self.0 {
            Form::Ready(value) => *value = value.take().map(filter),
            Form::Pending { slot, .. } => {
                add_filter(&**slot, Box::new(move |value| Some(filter(value))));
            }
        }
        self
    }

    /// Passes the value to `next` on the thread that completes the promise, or on this thread if
    /// the value already exists. A thread of the link receives the completion.
    pub(crate) fn then(mut self, next: impl FnOnce(T) + Send + 'static) {
        match &mut self.0 {
            Form::Ready(value) => {
                if let Some(value) = value.take() {
                    next(value);
                }
            }
            Form::Pending { slot, .. } => {
                let next = move |value| {
                    next(value);
                    None
                };
                add_filter(&**slot, Box::new(next));
            }
        }
        // Dropping the promise requests attendance of the link.
    }
}

/// The driver of a promise that other code completes through a [`Completer`].
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

    fn drive_for(&self, done: &dyn Fn() -> bool, left: &dyn Fn() -> Duration) {
        let limit = left();
        let mut lock = self.lock.lock();
        // One wait is enough, because the completer notifies this driver once.
        if !done() && !limit.is_zero() {
            let _in_time_or_late = self.changed.wait_for(&mut lock, limit);
        }
    }

    fn attend(&self) {}
}

/// The right to complete a promise that has no link of its own.
pub(crate) struct Completer<T> {
    slot: Arc<Slot<T>>,
    driver: Arc<Elsewhere>,
}

impl<T> Completer<T> {
    /// Completes the promise, and wakes the thread or the task that waits for it.
    pub(crate) fn complete(self, value: T) {
        self.slot.fill(value);
        let _lock = self.driver.lock.lock();
        self.driver.changed.notify_all();
    }
}

impl<T> Promise<T> {
    /// Makes a promise and the right to complete it. The owner of the right must use it.
    pub(crate) fn open() -> (Self, Completer<T>) {
        let (slot, driver) = (Slot::new(), Arc::new(Elsewhere::default()));
        let promise = Self::pending(Arc::clone(&slot), Arc::clone(&driver) as Arc<dyn Driver>);
        (promise, Completer { slot, driver })
    }
}

impl<T: Send + 'static> Promise<T> {
    /// Runs `work` on a new thread named `name`, and returns a promise of its result. It suits rare
    /// work that blocks. `failed` makes the result if the system starts no thread.
    pub fn on_thread(
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
        failed: impl FnOnce(Error) -> T,
    ) -> Self {
        let (promise, completer) = Self::open();
        match SystemSpawn.spawn(name, Box::new(move || completer.complete(work()))) {
            Ok(_runs_by_itself) => promise,
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

    impl Checked {
        fn slot(forget_the_waker: bool) -> Arc<Self> {
            let done = shuttle::sync::atomic::AtomicBool::new(false);
            let state = shuttle::sync::Mutex::new(SlotState::empty());
            Arc::new(Self { done, state, forget_the_waker })
        }
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
        let slot = Checked::slot(forget_the_waker);
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
    fn value_passes_its_filters_in_their_order() {
        let (promise, completer) = Promise::open();
        let promise = promise.passing(|value: u32| value + 1).passing(|value| value * 10);
        completer.complete(4);
        assert_eq!(promise.passing(|value| value + 7).wait(), 57);
        assert_eq!(Promise::ready(1).passing(|value| value + 1).wait(), 2);
    }

    #[test]
    fn value_goes_to_the_next_step_once() {
        let slot = Slot::new();
        let filler = Arc::new(Filler(Arc::clone(&slot), AtomicUsize::new(0)));
        let got = Arc::new(AtomicUsize::new(0));
        let promise = Promise::pending(Arc::clone(&slot), filler.clone() as Arc<dyn Driver>);
        let found = Arc::clone(&got);
        promise.then(move |value| _ = found.fetch_add(value as usize, Ordering::Relaxed));
        assert_eq!(filler.1.load(Ordering::Relaxed), 1, "a thread receives the value");
        slot.fill(7);
        slot.fill(8);
        assert_eq!(got.load(Ordering::Relaxed), 7);
        let found = Arc::clone(&got);
        Promise::ready(2_u32)
            .then(move |value| _ = found.fetch_add(value as usize, Ordering::Relaxed));
        assert_eq!(got.load(Ordering::Relaxed), 9);
    }

    #[test]
    fn filter_meets_the_value_on_two_threads() {
        let run = || {
            let slot = Checked::slot(false);
            let filler = {
                let slot = Arc::clone(&slot);
                shuttle::thread::spawn(move || fill(&*slot, 7))
            };
            add_filter(&*slot, Box::new(|value| Some(value + 1)));
            let next = |context: &mut Context<'_>| {
                take_or_leave(&*slot, context.waker()).map_or(Poll::Pending, Poll::Ready)
            };
            assert_eq!(shuttle::future::block_on(std::future::poll_fn(next)), 8);
            filler.join().expect("no panic");
        };
        shuttle::check_random(run, 3000);
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
