//! A clock for several threads that stands still while any of them runs.
//!
//! When all threads sleep, it jumps to the first wake-up and wakes only that thread. Therefore
//! threads that wait for each other only through the clock run one at a time, in the order of their
//! times, and no real time passes.

use std::collections::BTreeSet;
use std::time::Duration;

use archipelago_base::clock::Clock;
use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
struct State {
    now_ns: u64,
    running: usize,
    /// The sleeping threads: time of the wake-up, and a number.
    sleepers: BTreeSet<(u64, u64)>,
    next: u64,
    awake: Option<(u64, u64)>,
}

impl State {
    fn stop_running(&mut self) {
        self.running -= 1;
        if self.running == 0
            && let Some(first) = self.sleepers.pop_first()
        {
            self.now_ns = self.now_ns.max(first.0);
            self.awake = Some(first);
            self.running = 1;
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct VirtualClock {
    state: Mutex<State>,
    woken: Condvar,
}

impl VirtualClock {
    /// Runs each of `actors` on a thread of its own, all starting at the same moment. Returns their
    /// results.
    pub(crate) fn run<T: Send>(&self, actors: Vec<Box<dyn FnOnce() -> T + Send + '_>>) -> Vec<T> {
        // No thread starts before all sleep at the start: this thread counts as running until then.
        self.state.lock().running = actors.len() + 1;
        std::thread::scope(|scope| {
            let start = |actor: Box<dyn FnOnce() -> T + Send + '_>| {
                // The end is recorded after a panic as well. Otherwise the other threads would
                // sleep forever.
                let _leave = Leave(self);
                self.sleep(Duration::ZERO);
                actor()
            };
            let threads: Vec<_> =
                actors.into_iter().map(|actor| scope.spawn(move || start(actor))).collect();
            self.leave();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn leave(&self) {
        self.state.lock().stop_running();
        self.woken.notify_all();
    }
}

struct Leave<'a>(&'a VirtualClock);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Clock for VirtualClock {
    fn now_ns(&self) -> u64 {
        self.state.lock().now_ns
    }

    fn unix_ms(&self) -> u64 {
        self.now_ns() / 1_000_000
    }

    fn sleep(&self, duration: Duration) {
        let mut state = self.state.lock();
        let me = (state.now_ns + duration.as_nanos() as u64, state.next);
        state.next += 1;
        state.sleepers.insert(me);
        state.stop_running();
        self.woken.notify_all();
        while state.awake != Some(me) {
            self.woken.wait(&mut state);
        }
        state.awake = None;
    }
}
