use std::sync::atomic::AtomicU64;

use archipelago_base::Error;

use super::*;

#[test]
fn one_acts_for_all_that_it_covers_and_the_next_for_the_rest() {
    let leading = GroupSync::default();
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
    let leading = GroupSync::default();
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

/// The checker's lock and threads. With `EARLY`, threads are woken before their cell is set.
#[derive(Default)]
struct Model<const EARLY: bool> {
    state: shuttle::sync::Mutex<SyncState<Modelled<EARLY>>>,
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
    type Guard<'a> = shuttle::sync::MutexGuard<'a, SyncState<Modelled<EARLY>>>;

    fn lock(&self) -> Self::Guard<'_> {
        self.state.lock().unwrap()
    }
}

/// The log of the modelled threads: the last sequence number that was given out, the end of the
/// log, the number of leaders at the moment, and how often a thread has led.
#[derive(Default)]
struct Log {
    given: shuttle::sync::atomic::AtomicU64,
    end: shuttle::sync::atomic::AtomicU64,
    at_it: shuttle::sync::atomic::AtomicU64,
    led: shuttle::sync::atomic::AtomicU64,
}

impl Log {
    /// Brings the log to the last number that was given out. The attempt number `fails` of all
    /// leaders fails.
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

/// Four threads, each of which waits until the log has the number that was given out to it. A lost
/// wake-up is a deadlock, which the checker reports.
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
