//! Threads that run tasks immediately, and wait for the next task.
//!
//! A part of the database owns a [`ThreadGroup`] for work that must not queue behind other work. A
//! task gets an idle thread, or a new one. Idle threads are kept for [`IDLE`], because a new thread
//! costs its start, the pages of its stack and those of its allocator.
//!
//! Invariants:
//! 1. An accepted task runs, even if the group closes meanwhile.
//! 2. A task never waits for the end of another task.
//! 3. After [`ThreadGroup::close`] no thread is left.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a task that panics ends only its own thread. If the system refuses a thread, the task
//! is dropped and the caller gets the error.
//! Cost: a lock and a wake-up for each task.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::spawn::{Spawn, SystemSpawn, lower_priority};
use archipelago_base::{Error, Result};
use parking_lot::{Condvar, Mutex};

/// Time that an idle thread waits for its next task.
const IDLE: Duration = Duration::from_secs(2);

/// A task for a thread.
pub(crate) type Task = Box<dyn FnOnce() + Send>;

/// The threads of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadKind {
    /// Name of each thread. Linux shows at most 15 bytes of it.
    pub(crate) name: &'static str,
    /// Whether the threads run at a lower priority.
    pub(crate) yields: bool,
}

/// Threads of one kind.
#[derive(Debug)]
pub(crate) struct ThreadGroup(Arc<GroupShared>);

#[derive(Debug)]
struct GroupShared {
    kind: ThreadKind,
    state: Mutex<GroupState>,
    /// Idle threads wait here for a task.
    called: Condvar,
    /// The close waits here for the last thread.
    gone: Condvar,
}

#[derive(Default)]
struct GroupState {
    /// Tasks that wait for a thread to wake up. For each of them an idle thread was notified.
    waiting: VecDeque<Task>,
    idle: usize,
    alive: usize,
    closed: bool,
}

impl std::fmt::Debug for GroupState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} idle", self.idle, self.alive)
    }
}

impl ThreadGroup {
    pub(crate) fn new(kind: ThreadKind) -> Self {
        let (state, called, gone) = (Mutex::default(), Condvar::new(), Condvar::new());
        Self(Arc::new(GroupShared { kind, state, called, gone }))
    }

    /// Runs `task` on another thread, immediately. If the system refuses a thread or the group is
    /// closed, the call fails and drops the task.
    pub(crate) fn run(&self, task: Task) -> Result<()> {
        self.run_within(usize::MAX, task).map(drop)
    }

    /// Runs `task` on another thread, unless all `threads_max` threads are busy. Returns whether it
    /// runs. Errors are those of [`ThreadGroup::run`].
    pub(crate) fn run_within(&self, threads_max: usize, task: Task) -> Result<bool> {
        let shared = &self.0;
        let mut state = shared.state.lock();
        if state.closed {
            return Err(Error::closed("the database is closed"));
        }
        if state.idle > state.waiting.len() {
            state.waiting.push_back(task);
            shared.called.notify_one();
            return Ok(true);
        }
        if state.alive >= threads_max {
            return Ok(false);
        }
        state.alive += 1;
        drop(state);
        let life = Life(Arc::clone(shared));
        SystemSpawn.spawn(shared.kind.name, Box::new(move || life.live(task))).map(|_| true)
    }

    /// Refuses further tasks, and waits until all threads have ended.
    pub(crate) fn close(&self) {
        let mut state = self.0.state.lock();
        state.closed = true;
        self.0.called.notify_all();
        while state.alive > 0 {
            self.0.gone.wait(&mut state);
        }
    }
}

/// Count of a live thread. The drop ends it, also if a task panics.
struct Life(Arc<GroupShared>);

impl Life {
    fn live(self, first: Task) {
        if self.0.kind.yields {
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

impl GroupShared {
    /// The next task. `None` if no task arrives within [`IDLE`], or if the group is closed.
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

    fn group(yields: bool) -> ThreadGroup {
        ThreadGroup::new(ThreadKind { name: "tested", yields })
    }

    #[test]
    fn tasks_run_at_once_and_threads_are_used_again() {
        let threads = group(false);
        for _round in 0..50 {
            let meet = Arc::new(Barrier::new(4));
            for _task in 0..3 {
                let meet = Arc::clone(&meet);
                let wait = move || {
                    meet.wait();
                };
                threads.run(Box::new(wait)).unwrap();
            }
            // The wait ends only if all three tasks run at the same time.
            meet.wait();
            // The next round finds them idle.
            let all_idle = || threads.0.state.lock().idle == 3;
            while !all_idle() {
                std::thread::yield_now();
            }
            assert_eq!(threads.0.state.lock().alive, 3, "no round needs more");
        }
        threads.close();
        assert_eq!(threads.0.state.lock().alive, 0);
    }

    #[test]
    fn close_runs_accepted_tasks_and_refuses_later_ones() {
        let threads = group(true);
        let done = Arc::new(AtomicUsize::new(0));
        for _task in 0..20 {
            let done = Arc::clone(&done);
            let add = move || {
                done.fetch_add(1, Ordering::SeqCst);
            };
            threads.run(Box::new(add)).unwrap();
        }
        threads.close();
        assert_eq!(done.load(Ordering::SeqCst), 20);
        assert_eq!(threads.run(Box::new(|| ())).unwrap_err().kind(), ErrorKind::Closed);
    }

    #[test]
    fn a_task_that_panics_ends_its_thread_alone() {
        let threads = group(false);
        threads.run(Box::new(|| panic!("on purpose"))).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        threads.run(Box::new(move || tell.send(7).unwrap())).unwrap();
        assert_eq!(told.recv().unwrap(), 7);
        threads.close();
    }

    #[test]
    fn group_with_all_its_threads_busy_starts_no_more() {
        let threads = group(false);
        let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
        let wait = move || may_go_on.recv().unwrap();
        assert!(threads.run_within(1, Box::new(wait)).unwrap());
        assert!(!threads.run_within(1, Box::new(|| ())).unwrap());
        go_on.send(()).unwrap();
        threads.close();
    }
}
