//! Leader, sleepers, attendance and completion slots under every interleaving that a model checker
//! tries. The code is that of production ([`CompletionLeader`], [`crate::promise`]'s slot); locks
//! and cells are the checker's. A lost wake-up is a deadlock, which it reports.

use std::sync::Arc;

use shuttle::sync::{Condvar, Mutex, MutexGuard};
use shuttle::thread;

use super::{CompletionLeader, Receive, Room, State};

#[derive(Default)]
struct Checked {
    state: Mutex<State>,
    changed: Condvar,
}

impl Room for Checked {
    type Guard<'a> = MutexGuard<'a, State>;

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn sleep<'a>(&'a self, guard: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(guard).unwrap()
    }

    fn tell_all(&self) {
        self.changed.notify_all();
    }
}

/// A link to a network that answers each item as soon as somebody receives; but item 0 only when
/// item 2 has come.
#[derive(Default)]
struct Link {
    leader: CompletionLeader<Checked>,
    /// Queued, on the way back, and completed, by item.
    items: Mutex<Items>,
    arrived: Condvar,
    /// Leave out what production does after a round, to see that the checker finds it.
    forget_to_tell: bool,
    /// Leave out what production does before it sleeps.
    forget_to_hand_over: bool,
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
        self.leader.drive(self, &|| self.is_done(item));
        assert!(self.is_done(item));
    }
}

impl Receive for Link {
    /// Sends what is queued; then sleeps on the network until something comes back.
    fn round(&self) {
        let mut items = self.items.lock().unwrap();
        assert!(!std::mem::replace(&mut items.receiving, true), "two leaders");
        let queued = std::mem::take(&mut items.queued);
        items.flying.extend(queued);
        let came = loop {
            if let Some(at) = items.answerable() {
                break items.flying.remove(at);
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

/// One thread's answer comes only after the other has had its first and posted its second; a third
/// thread has nothing to do with them.
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

/// A task that only asks for attendance, beside a thread that waits.
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
    // A task is woken by its slot; here the checker's scheduler looks.
    while !link.is_done(2) {
        thread::yield_now();
    }
    waiter.join().unwrap();
    link.leader.end();
    attendant.join().unwrap();
}

#[test]
fn no_wake_up_is_lost_and_there_is_one_leader() {
    shuttle::check_random(|| everybody_is_answered(Link::default()), 3000);
    shuttle::check_pct(|| everybody_is_answered(Link::default()), 2000, 3);
}

#[test]
fn attendance_serves_tasks_beside_threads() {
    shuttle::check_random(tasks_are_attended, 3000);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_leader_that_does_not_tell_is_found() {
    shuttle::check_random(
        || everybody_is_answered(Link { forget_to_tell: true, ..Link::default() }),
        3000,
    );
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_sleeper_that_hands_nothing_over_is_found() {
    shuttle::check_random(
        || everybody_is_answered(Link { forget_to_hand_over: true, ..Link::default() }),
        3000,
    );
}
