//! Waits of the threads of callers for the calls of a compute node.
//!
//! A compute node owns one [`Waits`]. A caller whose threads have other work gives it a
//! [`LongWait`]. A call then waits in place for a short time, and the rest of its wait is a long
//! wait.
//!
//! Invariant: the earliest beginning of a long wait, which is read without the lock, is that of the
//! waits that have not ended.
//!
//! Thread-safety: any thread may call any method.
//! Cost: a wait that ends in place takes no lock, and reads the clock only while another call waits
//! long. A long wait takes a lock when it begins and when it ends.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use archipelago_base::clock::Clock;
use archipelago_fabric::{block_on, block_on_with};
use parking_lot::Mutex;

/// Time for which a call waits in place while another call waits for a silent node. Both probably
/// need the same node, and the usual answer takes less time.
const IN_PLACE_MEANWHILE: Duration = Duration::from_micros(50);

/// Time of a long wait after which the node that it needs counts as silent. A node that is busy, or
/// that waits for a device, answers sooner.
const SILENCE: Duration = Duration::from_millis(20);

/// Treatment of long waits on a thread that has other work, such as a worker thread of a server.
#[derive(Clone, Copy, Debug)]
pub struct LongWait {
    /// Time of waiting after which the rest of the wait counts as long.
    pub after: Duration,
    /// Calls its argument once, on the calling thread, and lets another thread do the other work of
    /// this thread meanwhile.
    pub run: fn(&mut dyn FnMut()),
}

/// Waits of the threads of callers.
pub(crate) struct Waits {
    clock: Arc<dyn Clock>,
    /// Treatment of long waits. Without one, all waits are in place.
    long_wait: OnceLock<LongWait>,
    /// Beginnings of the long waits that have not ended, in nanoseconds of the clock, each with the
    /// number of waits that began then.
    waiting_long: Mutex<BTreeMap<u64, usize>>,
    /// The earliest of these beginnings; `u64::MAX` without a long wait. It can be read without the
    /// lock.
    long_since_ns: AtomicU64,
}

/// Notes a long wait until it is dropped.
struct WaitingLong<'a> {
    waits: &'a Waits,
    since_ns: u64,
}

impl<'a> WaitingLong<'a> {
    fn begin(waits: &'a Waits) -> Self {
        let since_ns = waits.clock.now_ns();
        let mut waiting = waits.waiting_long.lock();
        *waiting.entry(since_ns).or_default() += 1;
        waits.note_earliest(&waiting);
        Self { waits, since_ns }
    }
}

impl Drop for WaitingLong<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waits.waiting_long.lock();
        if let Entry::Occupied(mut count) = waiting.entry(self.since_ns) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.waits.note_earliest(&waiting);
    }
}

impl Waits {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            long_wait: OnceLock::new(),
            waiting_long: Mutex::default(),
            long_since_ns: AtomicU64::new(u64::MAX),
        }
    }

    /// Makes the calls of all threads treat long waits by `long_wait`. Only the first call of this
    /// method has an effect.
    pub(crate) fn set_long_wait(&self, long_wait: LongWait) {
        let _is_first = self.long_wait.set(long_wait);
    }

    fn note_earliest(&self, waiting: &BTreeMap<u64, usize>) {
        let earliest = waiting.first_key_value().map_or(u64::MAX, |(since_ns, _)| *since_ns);
        self.long_since_ns.store(earliest, Ordering::Relaxed);
    }

    /// Time for which a call waits in place. It reads the clock only if another call waits long.
    fn in_place(&self, long_wait: &LongWait) -> Duration {
        let silence_ns = match self.long_since_ns.load(Ordering::Relaxed) {
            u64::MAX => return long_wait.after,
            since_ns => self.clock.now_ns().saturating_sub(since_ns),
        };
        match Duration::from_nanos(silence_ns) < SILENCE {
            true => long_wait.after,
            false => long_wait.after.min(IN_PLACE_MEANWHILE),
        }
    }

    /// Blocks the calling thread until `future` completes.
    pub(crate) fn wait_for<T>(&self, future: impl Future<Output = T>) -> T {
        let Some(long_wait) = self.long_wait.get() else { return block_on(future) };
        block_on_with(future, self.in_place(long_wait), |rest| {
            let _noted = WaitingLong::begin(self);
            (long_wait.run)(rest);
        })
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Poll, Waker};

    use archipelago_base::clock::ManualClock;

    use super::*;

    /// Waker of the future that waits long.
    static LONG: Mutex<Option<Waker>> = Mutex::new(None);

    fn wake_and_run(rest: &mut dyn FnMut()) {
        if let Some(waker) = LONG.lock().take() {
            waker.wake();
        }
        rest();
    }

    #[test]
    fn calls_wait_shorter_in_place_while_another_waits_for_a_silent_node() {
        let long_wait = LongWait { after: Duration::from_millis(1), run: wake_and_run };
        let clock = Arc::new(ManualClock::new(0));
        let waits = Waits::new(Arc::clone(&clock) as _);
        waits.set_long_wait(long_wait);
        let mut is_long = false;
        let meanwhile = waits.wait_for(std::future::poll_fn(|context| {
            if std::mem::replace(&mut is_long, true) {
                clock.advance(SILENCE - Duration::from_nanos(1));
                let answered_soon = waits.in_place(&long_wait);
                clock.advance(Duration::from_nanos(1));
                return Poll::Ready([answered_soon, waits.in_place(&long_wait)]);
            }
            *LONG.lock() = Some(context.waker().clone());
            Poll::Pending
        }));
        assert_eq!(meanwhile, [long_wait.after, IN_PLACE_MEANWHILE]);
        assert_eq!(waits.in_place(&long_wait), long_wait.after);
        // The earliest wait counts. A wait that has ended does not count.
        let (first, second) = (WaitingLong::begin(&waits), WaitingLong::begin(&waits));
        clock.advance(SILENCE);
        let third = WaitingLong::begin(&waits);
        drop(first);
        assert_eq!(waits.in_place(&long_wait), IN_PLACE_MEANWHILE);
        drop(second);
        assert_eq!(waits.in_place(&long_wait), long_wait.after);
        drop(third);
        assert!(waits.waiting_long.lock().is_empty());
    }
}
