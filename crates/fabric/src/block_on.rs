//! Runs a future on the calling thread, which itself receives the completions that the future waits
//! for.
//!
//! A task that polls a promise asks the link for a thread that receives ([`Driver::attend`]), which
//! costs two switches of threads per answer. A thread in [`block_on`] has nothing else to do. It
//! therefore drives the first link that the future waits for ([`Driver::drive`]) until the future
//! is woken. The other links of the same poll get attendance ([`Driver::attend`]).
//!
//! Invariants:
//! 1. A driver is offered and driven within one poll.
//! 2. A future that runs within the poll of another future has a waker of its own.
//!
//! A future that waits for a link and for another event in parallel may notice the other event
//! late. The thread drives the link until the link completes something, which happens at its
//! deadline at the latest. Such a future should await the two one after the other.
//!
//! Thread-safety: the state belongs to the thread.
//! Failure: none of its own.
//! Cost: that of the promise, and one allocation per thread.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

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

/// Runs `future` on the calling thread, which receives the completions of the link that the future
/// awaits. Tasks and simulated code must not call it.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let nested = OFFER.with_borrow(|offer| !matches!(offer, Offer::Closed));
    let parked = if nested { Parked::new() } else { PARKED.with(Arc::clone) };
    let waker = Waker::from(Arc::clone(&parked));
    let mut context = Context::from_waker(&waker);
    loop {
        let within = Within::enter();
        let polled = future.as_mut().poll(&mut context);
        let taken = within.leave();
        if let Poll::Ready(value) = polled {
            return value;
        }
        if let Offer::Taken(driver) = taken {
            driver.drive(&|| parked.woken.load(Ordering::Acquire));
        }
        while !parked.woken.swap(false, Ordering::Acquire) {
            std::thread::park();
        }
    }
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
                    && let Poll::Ready(value) = std::pin::Pin::new(promise).poll(context)
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
}
