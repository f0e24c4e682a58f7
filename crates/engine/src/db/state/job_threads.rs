//! Threads that lend a hand to background jobs, and wait for the next one.
//!
//! A flush writes its shards on as many threads as there are jobs, a hundred times a second when
//! memtables are small; a thread of its own for each would cost its start, its stack's pages and
//! its allocator's. So they are kept for [`IDLE`] after their last task.
//!
//! There are two kinds ([`HandsKind`]), because a system lets nobody raise a thread's priority
//! again without a privilege. Compactions run on patient ones, at a low priority: where processors
//! are scarce, writers and the flushes that they wait for come first, and compactions take what is
//! left (decision 0019). A compaction that somebody waits for runs on urgent ones: a user's own, or
//! one that starts while writers are slowed down because compactions are behind.
//!
//! Invariants: 1. a task that was accepted is run, also while closing; 2. a task never waits for
//! another one to end: there is an idle thread for it, or a new one; 3. after [`Hands::close`] no
//! thread is left. Thread-safe; a task that panics ends its thread alone. Cost: a lock and a
//! wake-up for each task.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::spawn::{Spawn, SystemSpawn, lower_priority};
use archipelago_base::{Error, Result};
use parking_lot::{Condvar, Mutex};

/// How long a thread waits for its next task.
const IDLE: Duration = Duration::from_secs(2);

/// What a thread is given to do.
pub(crate) type Task = Box<dyn FnOnce() + Send>;

/// Whose work they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandsKind {
    /// What writers wait for.
    Urgent,
    /// What can wait: run at a lower priority.
    Patient,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Hands {
    urgent: Crew,
    patient: Crew,
}

impl Default for Hands {
    fn default() -> Self {
        let (urgent, patient) = (Crew::new(HandsKind::Urgent), Crew::new(HandsKind::Patient));
        Self { urgent, patient }
    }
}

impl Hands {
    /// Has `task` run on another thread, at once. `Err` if the system refuses a thread or this is
    /// closed; the task is dropped then.
    pub(crate) fn run(&self, kind: HandsKind, task: Task) -> Result<()> {
        match kind {
            HandsKind::Urgent => self.urgent.run(task),
            HandsKind::Patient => self.patient.run(task),
        }
    }

    /// Waits until all threads have ended; tasks are refused from here on.
    pub(crate) fn close(&self) {
        self.urgent.close();
        self.patient.close();
    }
}

/// Those of one kind.
#[derive(Debug)]
struct Crew(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    kind: HandsKind,
    state: Mutex<State>,
    /// Idle threads wait here for a task.
    called: Condvar,
    /// Who closes waits here for the last thread.
    gone: Condvar,
}

#[derive(Default)]
struct State {
    /// Each has an idle thread that was called for it.
    waiting: VecDeque<Task>,
    idle: usize,
    alive: usize,
    closed: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} idle", self.idle, self.alive)
    }
}

impl Crew {
    fn new(kind: HandsKind) -> Self {
        let (state, called, gone) = (Mutex::default(), Condvar::new(), Condvar::new());
        Self(Arc::new(Shared { kind, state, called, gone }))
    }

    fn run(&self, task: Task) -> Result<()> {
        let shared = &self.0;
        let mut state = shared.state.lock();
        if state.closed {
            return Err(Error::closed("the database is closed"));
        }
        if state.idle > state.waiting.len() {
            state.waiting.push_back(task);
            shared.called.notify_one();
            return Ok(());
        }
        state.alive += 1;
        drop(state);
        let name = match shared.kind {
            HandsKind::Urgent => "archi-flush",
            HandsKind::Patient => "archi-compact",
        };
        let life = Life(Arc::clone(shared));
        SystemSpawn.spawn(name, Box::new(move || life.live(task))).map(drop)
    }

    fn close(&self) {
        let mut state = self.0.state.lock();
        state.closed = true;
        self.0.called.notify_all();
        while state.alive > 0 {
            self.0.gone.wait(&mut state);
        }
    }
}

/// A thread that counts as alive: until this is dropped, however it ends.
struct Life(Arc<Shared>);

impl Life {
    fn live(self, first: Task) {
        if self.0.kind == HandsKind::Patient {
            lower_priority();
        }
        let mut task = Some(first);
        while let Some(run) = task {
            run();
            task = self.0.next();
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.0.state.lock().alive -= 1;
        self.0.gone.notify_all();
    }
}

impl Shared {
    /// The next task, or `None` if none came for a while.
    fn next(&self) -> Option<Task> {
        let mut state = self.state.lock();
        state.idle += 1;
        let mut waited = false;
        loop {
            if let Some(task) = state.waiting.pop_front() {
                state.idle -= 1;
                return Some(task);
            }
            if waited || state.closed {
                state.idle -= 1;
                return None;
            }
            waited = self.called.wait_for(&mut state, IDLE).timed_out();
        }
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::ErrorKind;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn tasks_run_at_once_and_threads_are_used_again() {
        let hands = Crew::new(HandsKind::Urgent);
        for _round in 0..50 {
            let meet = Arc::new(Barrier::new(4));
            for _task in 0..3 {
                let meet = Arc::clone(&meet);
                let wait = move || {
                    meet.wait();
                };
                hands.run(Box::new(wait)).unwrap();
            }
            // Ends only if all three run at the same time.
            meet.wait();
            // The next round finds them idle.
            let all_idle = || hands.0.state.lock().idle == 3;
            while !all_idle() {
                std::thread::yield_now();
            }
            assert_eq!(hands.0.state.lock().alive, 3, "no round needs more");
        }
        hands.close();
        assert_eq!(hands.0.state.lock().alive, 0);
    }

    #[test]
    fn what_was_accepted_is_run_before_the_close_ends_and_then_nothing_is() {
        let hands = Crew::new(HandsKind::Patient);
        let done = Arc::new(AtomicUsize::new(0));
        for _task in 0..20 {
            let done = Arc::clone(&done);
            let add = move || {
                done.fetch_add(1, Ordering::SeqCst);
            };
            hands.run(Box::new(add)).unwrap();
        }
        hands.close();
        assert_eq!(done.load(Ordering::SeqCst), 20);
        assert_eq!(hands.run(Box::new(|| ())).unwrap_err().kind(), ErrorKind::Closed);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn patient_hands_run_at_a_lower_priority_and_urgent_ones_do_not() {
        let own = rustix::process::getpriority_process(None).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        for kind in [HandsKind::Urgent, HandsKind::Patient] {
            let hands = Crew::new(kind);
            let tell = tell.clone();
            let tell = move || tell.send(rustix::process::getpriority_process(None)).unwrap();
            hands.run(Box::new(tell)).unwrap();
            hands.close();
        }
        assert_eq!(told.recv().unwrap().unwrap(), own);
        assert_eq!(told.recv().unwrap().unwrap(), 19);
    }

    #[test]
    fn a_task_that_panics_ends_its_thread_alone() {
        let hands = Crew::new(HandsKind::Urgent);
        hands.run(Box::new(|| panic!("on purpose"))).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        hands.run(Box::new(move || tell.send(7).unwrap())).unwrap();
        assert_eq!(told.recv().unwrap(), 7);
        hands.close();
    }
}
