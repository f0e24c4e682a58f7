//! The rate limiter, with a manual clock: no real time passes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::{Clock, ManualClock};
use archipelago_env::limit::{LimitedFs, Priority, PriorityStats, RateLimiter};
use archipelago_env::mem::MemFs;
use archipelago_env::{CreateOptions, FileClass, FileSystem, IoContext, IoPurpose};

const MB: u64 = 1_000_000;

/// A clock that runs `during` once, in the middle of the first sleep.
struct Interrupted<F> {
    clock: Arc<ManualClock>,
    during: parking_lot::Mutex<Option<F>>,
}

impl<F> std::fmt::Debug for Interrupted<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.clock.fmt(f)
    }
}

impl<F: FnOnce() + Send + 'static> Clock for Interrupted<F> {
    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn unix_ms(&self) -> u64 {
        self.clock.unix_ms()
    }

    fn sleep(&self, duration: Duration) {
        let during = self.during.lock().take();
        if let Some(during) = during {
            during();
        }
        self.clock.sleep(duration);
    }
}

#[test]
fn rate_holds_over_time_and_bursts_are_bounded() {
    let (clock, limiter) = (ManualClock::new(0), RateLimiter::new(10 * MB));
    for _ in 0..1000 {
        limiter.request(50_000, Priority::Compaction, &clock);
    }
    let ms = clock.now_ns() / 1_000_000;
    assert!((4_900..=5_000).contains(&ms), "50 MB at 10 MB/s took {ms} ms");

    clock.advance(Duration::from_secs(3600));
    let before = clock.now_ns();
    limiter.request(2 * MB, Priority::Flush, &clock);
    let ms = (clock.now_ns() - before) / 1_000_000;
    assert!((90..=110).contains(&ms), "1 MB of 2 MB was saved up: {ms} ms");
}

#[test]
fn unlimited_request_neither_waits_nor_counts() {
    let (clock, limiter) = (ManualClock::new(0), RateLimiter::new(0));
    limiter.request(u64::MAX, Priority::Compaction, &clock);
    assert_eq!(clock.now_ns(), 0);
    assert_eq!(limiter.stats(Priority::Compaction), PriorityStats::default());
}

#[test]
fn flush_overtakes_a_large_compaction() {
    let clock = Arc::new(ManualClock::new(0));
    let limiter = Arc::new(RateLimiter::new(10 * MB));
    let (inner_clock, inner) = (Arc::clone(&clock), Arc::clone(&limiter));
    let interrupted = Interrupted {
        clock: Arc::clone(&clock),
        during: parking_lot::Mutex::new(Some(move || {
            assert_eq!(inner.waiting(Priority::Compaction), 1);
            inner.request(MB, Priority::Flush, &*inner_clock);
            let ms = inner_clock.now_ns() / 1_000_000;
            assert!((100..=120).contains(&ms), "0.9 of the rate is the flush's: {ms} ms");
            assert_eq!(inner.waiting(Priority::Compaction), 1, "not served meanwhile");
        })),
    };
    limiter.request(5 * MB, Priority::Compaction, &interrupted);
    let ms = clock.now_ns() / 1_000_000;
    assert!((580..=620).contains(&ms), "both took {ms} ms");
    let (flush, compaction) = (limiter.stats(Priority::Flush), limiter.stats(Priority::Compaction));
    assert_eq!((flush.bytes, flush.waits), (MB, 1));
    assert_eq!((compaction.bytes, compaction.waits), (5 * MB, 1));
    assert!(compaction.waited_ns > flush.waited_ns);
}

#[test]
fn compaction_makes_progress_while_flushes_wait() {
    let clock = Arc::new(ManualClock::new(0));
    let limiter = Arc::new(RateLimiter::new(10 * MB));
    let (inner_clock, inner) = (Arc::clone(&clock), Arc::clone(&limiter));
    let interrupted = Interrupted {
        clock: Arc::clone(&clock),
        during: parking_lot::Mutex::new(Some(move || {
            inner.request(20 * MB, Priority::Flush, &*inner_clock);
            assert_eq!(inner.waiting(Priority::Compaction), 0, "served from its tenth");
        })),
    };
    limiter.request(MB, Priority::Compaction, &interrupted);
}

#[test]
fn waiting_request_notices_a_changed_rate() {
    let clock = Arc::new(ManualClock::new(0));
    let limiter = Arc::new(RateLimiter::new(1000));
    let inner = Arc::clone(&limiter);
    let interrupted = Interrupted {
        clock: Arc::clone(&clock),
        during: parking_lot::Mutex::new(Some(move || inner.set_bytes_per_second(100 * MB))),
    };
    limiter.request(10 * MB, Priority::Flush, &interrupted);
    let ms = clock.now_ns() / 1_000_000;
    assert!((90..=120).contains(&ms), "{ms} ms");

    let inner = Arc::clone(&limiter);
    let interrupted = Interrupted {
        clock: Arc::clone(&clock),
        during: parking_lot::Mutex::new(Some(move || inner.set_bytes_per_second(0))),
    };
    let before = clock.now_ns();
    limiter.request(1 << 50, Priority::Flush, &interrupted);
    assert!(clock.now_ns() - before <= 10_000_000);
    assert_eq!(limiter.waiting(Priority::Flush), 0);
}

#[test]
fn many_threads_share_one_rate() {
    let (clock, limiter) = (ManualClock::new(0), RateLimiter::new(10 * MB));
    std::thread::scope(|scope| {
        for index in 0..4 {
            let (clock, limiter) = (&clock, &limiter);
            let priority = if index == 0 { Priority::Flush } else { Priority::Compaction };
            scope.spawn(move || {
                (0..100).for_each(|_| limiter.request(10_000, priority, clock));
            });
        }
    });
    let ms = clock.now_ns() / 1_000_000;
    assert!(ms >= 300, "4 MB at 10 MB/s in {ms} ms of a clock that all threads wind");
    assert_eq!(limiter.stats(Priority::Flush).bytes, MB);
    assert_eq!(limiter.stats(Priority::Compaction).bytes, 3 * MB);
}

#[test]
fn only_files_of_flush_and_compaction_are_charged() {
    let clock = Arc::new(ManualClock::new(0));
    let limiter = Arc::new(RateLimiter::new(MB));
    let fs = LimitedFs::new(Arc::new(MemFs::new()), Arc::clone(&limiter), clock);
    let write = |name: &str, purpose| {
        let context = IoContext::new(FileClass::Sst, purpose);
        let mut file = fs.create(Path::new(name), context, CreateOptions::default()).unwrap();
        for _ in 0..100 {
            file.append(&[1; 1000]).unwrap();
        }
        file.sync().unwrap();
        assert_eq!(fs.len(Path::new(name)).unwrap(), 100_000);
    };
    write("manifest", IoPurpose::ForegroundWrite);
    assert_eq!(limiter.stats(Priority::Flush).bytes, 0);
    write("flush", IoPurpose::Flush);
    write("compaction", IoPurpose::Compaction { from: 0, to: 1 });
    assert_eq!(limiter.stats(Priority::Flush).bytes, 100_000);
    assert_eq!(limiter.stats(Priority::Compaction).bytes, 100_000);
    assert!(limiter.stats(Priority::Compaction).waits > 0);
}
