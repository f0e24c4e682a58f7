//! Leader, sleeping threads, attendance and completion slots under a model checker, which tries
//! interleavings. The code is the production code ([`CompletionLeader`], the slot of
//! [`crate::promise`]), with the locks and cells of the checker. The checker reports a lost wake-up
//! as a deadlock.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use shuttle::sync::{Condvar, Mutex, MutexGuard};
use shuttle::thread;

use super::{CompletionLeader, LeaderState, Locked, Receive, Room};

#[derive(Default)]
struct Checked {
    state: Mutex<LeaderState>,
    changed: Condvar,
}

impl Room for Checked {
    type Guard<'a> = MutexGuard<'a, LeaderState>;

    fn lock(&self) -> MutexGuard<'_, LeaderState> {
        self.state.lock().unwrap()
    }

    fn sleep<'a>(
        &'a self,
        guard: MutexGuard<'a, LeaderState>,
        limit: Duration,
    ) -> MutexGuard<'a, LeaderState> {
        if limit == Duration::MAX {
            return self.changed.wait(guard).unwrap();
        }
        // The checker has no clock, so a sleep with a limit ends as soon as another thread has run.
        drop(guard);
        thread::yield_now();
        self.lock()
    }

    fn tell_all(&self) {
        self.changed.notify_all();
    }
}

/// A link to a network that answers each item as soon as a thread receives. It answers item 0 only
/// after item 2 has arrived.
#[derive(Default)]
struct Link {
    leader: CompletionLeader<Checked>,
    /// The items that are queued, in flight and completed.
    items: Mutex<Items>,
    arrived: Condvar,
    /// Omits the notification after a round. The checker must find that.
    forget_to_tell: bool,
    /// Omits the handover before a sleep. The checker must find that.
    forget_to_hand_over: bool,
    /// Whether each thread drives the link for a limited time first, and may lead meanwhile.
    leaves_early: bool,
}

#[derive(Default)]
struct Items {
    queued: Vec<usize>,
    flying: Vec<usize>,
    done: Vec<usize>,
    posted: usize,
    receiving: bool,
}

impl Items {
    fn answerable(&self) -> Option<usize> {
        let last = self.done.contains(&2) || self.flying.contains(&2);
        self.flying.iter().position(|&item| item != 0 || last)
    }
}

impl Link {
    fn post(&self, item: usize) {
        let mut items = self.items.lock().unwrap();
        items.queued.push(item);
        items.posted += 1;
    }

    fn is_done(&self, item: usize) -> bool {
        self.items.lock().unwrap().done.contains(&item)
    }

    fn wait(&self, item: usize) {
        if self.leaves_early {
            let checks = Cell::new(0);
            let left = || {
                checks.set(checks.get() + 1);
                if checks.get() < 3 { Duration::from_secs(1) } else { Duration::ZERO }
            };
            self.leader.drive(self, &|| self.is_done(item), &left);
        }
        self.leader.drive(self, &|| self.is_done(item), &|| Duration::MAX);
        assert!(self.is_done(item));
    }
}

impl Receive for Link {
    /// Sends the queued items, and then sleeps on the network until an answer arrives. With a limit
    /// it does not sleep.
    fn round(&self, limit: Duration) {
        let mut items = self.items.lock().unwrap();
        assert!(!std::mem::replace(&mut items.receiving, true), "two leaders");
        let queued = std::mem::take(&mut items.queued);
        items.flying.extend(queued);
        let came = loop {
            if let Some(at) = items.answerable() {
                break items.flying.remove(at);
            }
            if limit < Duration::MAX {
                items.receiving = false;
                return;
            }
            items = self.arrived.wait(items).unwrap();
        };
        items.done.push(came);
        items.receiving = false;
        drop(items);
        if !self.forget_to_tell {
            self.leader.tell();
        }
    }

    fn idle(&self) -> bool {
        let items = self.items.lock().unwrap();
        items.done.len() == items.posted
    }

    fn hand_over(&self) {
        if self.forget_to_hand_over {
            return;
        }
        let mut items = self.items.lock().unwrap();
        let queued = std::mem::take(&mut items.queued);
        items.flying.extend(queued);
        self.arrived.notify_all();
    }
}

/// Runs three threads. The answer of the first arrives only after the second has received its first
/// answer and posted its second item. The third is independent of them.
fn everybody_is_answered(link: Link) {
    let link = Arc::new(link);
    let spawn = |items: &'static [usize]| {
        let link = Arc::clone(&link);
        thread::spawn(move || {
            for &item in items {
                link.post(item);
                link.wait(item);
            }
        })
    };
    for thread in [spawn(&[0]), spawn(&[1, 2]), spawn(&[3])] {
        thread.join().unwrap();
    }
}

/// Runs a task that only requests attendance, in parallel with a thread that waits.
fn tasks_are_attended() {
    let link = Arc::new(Link::default());
    let attendant = {
        let link = Arc::clone(&link);
        assert!(link.leader.ask(), "the first asks for a thread");
        thread::spawn(move || link.leader.attendance(&*link))
    };
    let waiter = {
        let link = Arc::clone(&link);
        thread::spawn(move || {
            link.post(1);
            link.wait(1);
        })
    };
    link.post(2);
    link.hand_over();
    assert!(!link.leader.ask(), "there is one");
    // The slot wakes a task in production. Here the task polls under the checker's scheduler.
    while !link.is_done(2) {
        thread::yield_now();
    }
    waiter.join().unwrap();
    link.leader.end();
    attendant.join().unwrap();
}

#[test]
fn every_thread_is_answered_with_one_leader() {
    shuttle::check_random(|| everybody_is_answered(Link::default()), 3000);
    shuttle::check_pct(|| everybody_is_answered(Link::default()), 2000, 3);
}

#[test]
fn threads_that_stop_early_leave_no_other_without_a_leader() {
    let link = || Link { leaves_early: true, ..Link::default() };
    shuttle::check_random(move || everybody_is_answered(link()), 3000);
    shuttle::check_pct(move || everybody_is_answered(link()), 2000, 3);
}

/// A link that never completes anything.
#[derive(Default)]
struct Silent {
    is_driven: AtomicBool,
    is_over: AtomicBool,
}

impl Receive for Silent {
    fn round(&self, _limit: Duration) {
        self.is_driven.store(true, Ordering::SeqCst);
        std::thread::yield_now();
    }

    fn idle(&self) -> bool {
        false
    }

    fn hand_over(&self) {}
}

#[test]
fn thread_with_a_limit_does_not_sleep_until_the_leader_stops() {
    let (leader, link) = (CompletionLeader::<Locked>::default(), Silent::default());
    let clock = SystemClock::new();
    let is_over = || link.is_over.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| leader.drive(&link, &is_over, &|| Duration::MAX));
        while !link.is_driven.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let until_ns = clock.now_ns() + 1_000_000;
        let left = || Duration::from_nanos(until_ns.saturating_sub(clock.now_ns()));
        leader.drive(&link, &|| false, &left);
        link.is_over.store(true, Ordering::SeqCst);
    });
}

/// A link whose first round completes everything.
#[derive(Default)]
struct Prompt(AtomicBool);

impl Receive for Prompt {
    fn round(&self, _limit: Duration) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn idle(&self) -> bool {
        false
    }

    fn hand_over(&self) {}
}

#[test]
fn lone_thread_that_is_answered_measures_no_second_time() {
    let (leader, link) = (CompletionLeader::<Locked>::default(), Prompt::default());
    let measured = Cell::new(0);
    let left = || {
        measured.set(measured.get() + 1);
        Duration::from_secs(1)
    };
    leader.drive(&link, &|| link.0.load(Ordering::SeqCst), &left);
    assert_eq!(measured.get(), 1);
}

#[test]
fn attendance_serves_tasks_in_parallel_with_threads() {
    shuttle::check_random(tasks_are_attended, 3000);
}

#[test]
#[should_panic(expected = "deadlock")]
fn missing_notification_of_the_leader_is_found() {
    shuttle::check_random(
        || everybody_is_answered(Link { forget_to_tell: true, ..Link::default() }),
        3000,
    );
}

#[test]
#[should_panic(expected = "deadlock")]
fn missing_handover_before_a_sleep_is_found() {
    shuttle::check_random(
        || everybody_is_answered(Link { forget_to_hand_over: true, ..Link::default() }),
        3000,
    );
}
