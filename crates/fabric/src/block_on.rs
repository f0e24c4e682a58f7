//! Runs a future on the calling thread, which itself receives the completions that the future waits
//! for.
//!
//! A task that polls a promise asks the link for a thread that receives ([`Driver::attend`]), which
//! costs two switches of threads per answer. A thread in [`block_on`] has nothing else to do. It
//! therefore drives the first link that the future waits for ([`Driver::drive`]) until the future
//! is woken. The other links of the same poll get attendance ([`Driver::attend`]).
//!
//! A thread of a server has other work: other connections wait for it. [`block_on_with`] therefore
//! waits on such a thread for a short time only, which is enough for the usual answer. After that
//! it calls a function of the caller for the rest of the wait.
//!
//! Invariants:
//! 1. A driver is offered and driven within one poll.
//! 2. A future that runs within the poll of another future has a waker of its own.
//! 3. A future is polled again only after it was woken, also when its wait becomes a long one.
//!
//! A future that waits for a link and for another event in parallel may notice the other event
//! late. The thread drives the link until the link completes something, which happens at its
//! deadline at the latest. Such a future should await the two one after the other.
//!
//! Thread-safety: the state belongs to the thread.
//! Failure: none of its own.
//! Cost: that of the promise, and one allocation per thread. [`block_on_with`] reads the clock at
//! the beginning of each wait after the first one. It also reads the clock each time that the
//! thread goes on with a wait, for example because the thread that leads has received a completion
//! of another thread. So a future with one wait, which the first wake-up ends, needs no clock.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};

use crate::driver::Driver;

/// The driver that the calling thread will drive.
#[derive(Default)]
enum Offer {
    /// The thread runs no future in [`block_on`].
    #[default]
    Closed,
    /// The thread will drive the first driver that is offered.
    Open,
    /// The thread will drive this driver.
    Taken(Arc<dyn Driver>),
}

/// Wakes a thread that is parked or drives a link.
struct Parked {
    thread: Thread,
    woken: AtomicBool,
}

impl Parked {
    fn new() -> Arc<Self> {
        Arc::new(Self { thread: std::thread::current(), woken: AtomicBool::new(false) })
    }
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

thread_local! {
    static OFFER: RefCell<Offer> = const { RefCell::new(Offer::Closed) };
    static PARKED: Arc<Parked> = Parked::new();
}

/// Whether the thread that polls will drive `driver` itself.
pub(crate) fn takes(driver: &Arc<dyn Driver>) -> bool {
    OFFER.with_borrow_mut(|offer| match offer {
        Offer::Closed => false,
        Offer::Open => {
            *offer = Offer::Taken(Arc::clone(driver));
            true
        }
        Offer::Taken(taken) => Arc::ptr_eq(taken, driver),
    })
}

/// Restores the previous offer, however the poll ends.
struct Within(Option<Offer>);

impl Within {
    fn enter() -> Self {
        Self(Some(OFFER.replace(Offer::Open)))
    }

    /// Ends the poll, and returns the driver that was offered during it.
    fn leave(mut self) -> Offer {
        self.0.take().map_or(Offer::Closed, |before| OFFER.replace(before))
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        if let Some(before) = self.0.take() {
            OFFER.set(before);
        }
    }
}

/// A future that the calling thread runs.
struct Running<'f, F> {
    future: Pin<&'f mut F>,
    parked: Arc<Parked>,
    waker: Waker,
    /// The driver that the last poll has offered.
    driver: Option<Arc<dyn Driver>>,
}

impl<'f, F: Future> Running<'f, F> {
    fn new(future: Pin<&'f mut F>) -> Self {
        let nested = OFFER.with_borrow(|offer| !matches!(offer, Offer::Closed));
        let parked = if nested { Parked::new() } else { PARKED.with(Arc::clone) };
        let waker = Waker::from(Arc::clone(&parked));
        Self { future, parked, waker, driver: None }
    }

    fn poll(&mut self) -> Poll<F::Output> {
        let within = Within::enter();
        let polled = self.future.as_mut().poll(&mut Context::from_waker(&self.waker));
        self.driver = match within.leave() {
            Offer::Taken(driver) => Some(driver),
            Offer::Open | Offer::Closed => None,
        };
        polled
    }

    /// Waits until the future is woken.
    fn wait(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.drive(&|| self.parked.woken.load(Ordering::Acquire));
        }
        while !self.parked.woken.swap(false, Ordering::Acquire) {
            std::thread::park();
        }
    }

    /// Waits until the future is woken, or until `left`, the time that is left for it, becomes
    /// zero. Returns whether the future is woken. If not, the caller waits again.
    fn wait_while(&self, left: &dyn Fn() -> Duration) -> bool {
        if let Some(driver) = &self.driver {
            driver.drive_for(&|| self.parked.woken.load(Ordering::Acquire), left);
        }
        loop {
            if self.parked.woken.swap(false, Ordering::Acquire) {
                return true;
            }
            let limit = left();
            if limit.is_zero() {
                return false;
            }
            std::thread::park_timeout(limit);
        }
    }

    /// Runs the future to its end.
    fn finish(&mut self) -> F::Output {
        loop {
            if let Poll::Ready(value) = self.poll() {
                return value;
            }
            self.wait();
        }
    }
}

/// Runs `future` on the calling thread, which receives the completions of the link that the future
/// awaits. Tasks and simulated code must not call it.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let future = pin!(future);
    Running::new(future).finish()
}

/// The time that is left of `limit`. Only a wait that has lasted long needs the clock, so the first
/// call returns all of `limit`, and the measurement begins with the second call. Together the waits
/// therefore last for twice the limit at most.
fn time_left(limit: Duration) -> impl Fn() -> Duration {
    let (is_first, clock) = (Cell::new(true), OnceCell::new());
    move || {
        if is_first.replace(false) {
            return limit;
        }
        // The time of this clock begins with its creation.
        let since_ns = clock.get_or_init(SystemClock::new).now_ns();
        limit.saturating_sub(Duration::from_nanos(since_ns))
    }
}

/// Runs `future` like [`block_on`], on a thread that has other work. If it is pending for longer
/// than about `after`, the rest of the wait is long. It runs within `run`, which calls its argument
/// once, on the calling thread, and lets another thread do the other work of this thread meanwhile.
pub fn block_on_with<T>(
    future: impl Future<Output = T>,
    after: Duration,
    run: impl FnOnce(&mut dyn FnMut()),
) -> T {
    let future = pin!(future);
    let mut running = Running::new(future);
    if let Poll::Ready(value) = running.poll() {
        return value;
    }
    let left = time_left(after);
    while running.wait_while(&left) {
        if let Poll::Ready(value) = running.poll() {
            return value;
        }
    }
    let mut value = None;
    run(&mut || {
        running.wait();
        value = Some(running.finish());
    });
    value.expect("a long wait runs to its end")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::promise::{Promise, Slot};

    /// Fills its slot when it is driven, or when it is attended.
    struct Filler {
        slot: Arc<Slot<u32>>,
        value: u32,
        driven: AtomicUsize,
        attended: AtomicUsize,
    }

    impl Filler {
        fn promise(value: u32) -> (Arc<Self>, Promise<u32>) {
            let slot = Slot::new();
            let (driven, attended) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let filler = Arc::new(Self { slot: Arc::clone(&slot), value, driven, attended });
            let promise = Promise::pending(slot, filler.clone() as Arc<dyn Driver>);
            (filler, promise)
        }
    }

    impl Driver for Filler {
        fn drive(&self, done: &dyn Fn() -> bool) {
            self.driven.fetch_add(1, Ordering::Relaxed);
            self.slot.fill(self.value);
            assert!(done(), "the polling task is woken");
        }

        fn attend(&self) {
            self.attended.fetch_add(1, Ordering::Relaxed);
            self.slot.fill(self.value);
        }
    }

    #[test]
    fn thread_drives_the_link_that_its_future_awaits() {
        let (first, one) = Filler::promise(1);
        let (second, two) = Filler::promise(2);
        let (inner, three) = Filler::promise(3);
        let sum = block_on(async {
            let one = one.await;
            one + two.await + block_on(three)
        });
        assert_eq!(sum, 6);
        for filler in [first, second, inner] {
            let (driven, attended) = (&filler.driven, &filler.attended);
            assert_eq!((driven.load(Ordering::Relaxed), attended.load(Ordering::Relaxed)), (1, 0));
        }
    }

    #[test]
    fn second_link_of_one_poll_is_attended() {
        let (first, mut one) = Filler::promise(1);
        let (second, mut two) = Filler::promise(2);
        let (mut got, mut polls) = (0, 0);
        block_on(std::future::poll_fn(|context| {
            polls += 1;
            for promise in [&mut one, &mut two] {
                if (polls == 1 || promise.is_done())
                    && let Poll::Ready(value) = Pin::new(promise).poll(context)
                {
                    got += value;
                }
            }
            if got == 3 { Poll::Ready(()) } else { Poll::Pending }
        }));
        assert_eq!(first.driven.load(Ordering::Relaxed), 1);
        assert_eq!(second.attended.load(Ordering::Relaxed), 1);
        let (_, outside) = Filler::promise(4);
        assert_eq!(outside.wait(), 4);
        assert!(!takes(&(first as Arc<dyn Driver>)), "no future runs any more");
    }

    static LONG_WAITS: AtomicUsize = AtomicUsize::new(0);

    fn count_and_run(rest: &mut dyn FnMut()) {
        LONG_WAITS.fetch_add(1, Ordering::Relaxed);
        rest();
    }

    #[test]
    fn only_a_long_wait_leaves_the_thread_to_other_work() {
        let (filler, promise) = Filler::promise(5);
        assert_eq!(block_on_with(promise, Duration::from_secs(3600), count_and_run), 5);
        assert_eq!(block_on_with(async { 6 }, Duration::ZERO, count_and_run), 6);
        assert_eq!(LONG_WAITS.load(Ordering::Relaxed), 0);
        assert_eq!(filler.driven.load(Ordering::Relaxed), 1);
        // Each of the two waits is long, and both run in one call.
        let (_, one) = Filler::promise(1);
        let (_, two) = Filler::promise(2);
        let sum = block_on_with(async { one.await + two.await }, Duration::ZERO, count_and_run);
        assert_eq!((sum, LONG_WAITS.load(Ordering::Relaxed)), (3, 1));
    }

    /// Completes nothing in a limited time, and fills its slot when it is driven without a limit.
    struct Late {
        slot: Arc<Slot<u32>>,
        driven_for: AtomicUsize,
    }

    impl Driver for Late {
        fn drive(&self, done: &dyn Fn() -> bool) {
            self.slot.fill(7);
            assert!(done(), "the polling task is woken");
        }

        fn drive_for(&self, done: &dyn Fn() -> bool, left: &dyn Fn() -> Duration) {
            assert!(!done() && !left().is_zero());
            self.driven_for.fetch_add(1, Ordering::Relaxed);
        }

        fn attend(&self) {}
    }

    #[test]
    fn long_wait_drives_the_link_that_has_completed_nothing_in_time() {
        let slot = Slot::new();
        let late = Arc::new(Late { slot: Arc::clone(&slot), driven_for: AtomicUsize::new(0) });
        let promise = Promise::pending(slot, late.clone() as Arc<dyn Driver>);
        let mut long_waits = 0;
        let value = block_on_with(promise, Duration::from_millis(1), |rest| {
            long_waits += 1;
            rest();
        });
        let driven_for = late.driven_for.load(Ordering::Relaxed);
        assert_eq!((value, long_waits, driven_for), (7, 1, 1));
    }
}
