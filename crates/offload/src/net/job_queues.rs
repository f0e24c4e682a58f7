//! Jobs of an executor that wait for a thread, with normal or low priority.
//!
//! There are two groups of threads, because a system lets no thread raise its priority again
//! without a privilege. Flushes have normal priority, since writers may wait for them. Compactions
//! and garbage collections run at a low one, as they do in the process of a database
//! (docs/decisions/0019-compaction-thread-priority.md). So an executor on a busy machine leaves the
//! processors to the searches of a memory node, and to other programs.
//!
//! Invariants: 1. A job that was pushed before [`JobQueues::stop`] gets a thread, if one serves its
//! priority. 2. Jobs of one priority start in the order of their arrival.
//!
//! Thread-safety: any thread may call any method.
//! Failure: none.
//! Cost: a lock and a wake-up for each job.

use std::collections::VecDeque;

use archipelago_base::spawn::lower_priority;
use parking_lot::{Condvar, Mutex};

use crate::job::JobKind;

/// Priority of a thread that runs jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobPriority {
    /// Jobs that writers may wait for.
    Normal,
    /// Jobs that can wait.
    Low,
}

impl JobPriority {
    /// Both priorities, in the order of their indexes.
    pub(super) const ALL: [Self; 2] = [Self::Normal, Self::Low];

    /// The priority of jobs of a kind.
    fn of(kind: JobKind) -> Self {
        match kind {
            JobKind::Flush => Self::Normal,
            JobKind::Compaction | JobKind::Gc => Self::Low,
        }
    }

    /// Name of the threads. Linux shows 15 bytes of it.
    pub(super) fn thread_name(self) -> &'static str {
        match self {
            Self::Normal => "offload-flush",
            Self::Low => "offload-compact",
        }
    }
}

#[derive(Debug)]
struct Waiting<T> {
    /// Queues by the index of their priority.
    jobs: [VecDeque<T>; 2],
    is_stopped: bool,
}

/// The jobs that wait.
#[derive(Debug)]
pub(super) struct JobQueues<T> {
    waiting: Mutex<Waiting<T>>,
    /// Threads of each priority wait here for a job.
    called: [Condvar; 2],
}

impl<T> JobQueues<T> {
    /// Queues without jobs.
    pub(super) fn new() -> Self {
        let jobs = [VecDeque::new(), VecDeque::new()];
        let waiting = Mutex::new(Waiting { jobs, is_stopped: false });
        Self { waiting, called: [Condvar::new(), Condvar::new()] }
    }

    /// Adds a job of a kind.
    pub(super) fn push(&self, kind: JobKind, job: T) {
        let index = JobPriority::of(kind) as usize;
        self.waiting.lock().jobs[index].push_back(job);
        self.called[index].notify_one();
    }

    /// Number of jobs that wait.
    pub(super) fn jobs_waiting(&self) -> usize {
        self.waiting.lock().jobs.iter().map(VecDeque::len).sum()
    }

    /// Takes a waiting job, one of normal priority first. Does not wait.
    pub(super) fn take(&self) -> Option<T> {
        let mut waiting = self.waiting.lock();
        waiting.jobs.iter_mut().find_map(VecDeque::pop_front)
    }

    /// Makes threads end as soon as no job waits for them.
    pub(super) fn stop(&self) {
        self.waiting.lock().is_stopped = true;
        self.called.iter().for_each(|called| {
            called.notify_all();
        });
    }

    /// Runs jobs on the calling thread, which gets this priority for good, until the queues are
    /// stopped.
    pub(super) fn serve(&self, priority: JobPriority, mut run: impl FnMut(T)) {
        if priority == JobPriority::Low {
            lower_priority();
        }
        while let Some(job) = self.next(priority) {
            run(job);
        }
    }

    fn next(&self, priority: JobPriority) -> Option<T> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(job) = waiting.jobs[priority as usize].pop_front() {
                return Some(job);
            }
            if waiting.is_stopped {
                return None;
            }
            self.called[priority as usize].wait(&mut waiting);
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::{Arc, mpsc};

    use archipelago_base::spawn::{Spawn, SystemSpawn};

    use super::*;

    /// Nice value of the calling thread.
    fn nice() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux has it");
        // The name of the thread, in parentheses, is the second field. The nice value is the 19th.
        let (_, fields) = stat.rsplit_once(')').expect("the name ends");
        let nice = fields.split_whitespace().nth(16).expect("the 19th field is the nice value");
        nice.parse().expect("a number")
    }

    #[test]
    fn only_flushes_run_at_normal_priority() {
        let queues = Arc::new(JobQueues::new());
        for kind in JobKind::ALL {
            queues.push(kind, kind);
        }
        assert_eq!(queues.jobs_waiting(), 3);
        // Jobs that wait run after the stop as well.
        queues.stop();
        let (tell, told) = mpsc::channel();
        let start = |priority: JobPriority| {
            let (queues, tell) = (Arc::clone(&queues), tell.clone());
            let work = move || queues.serve(priority, |kind| tell.send((kind, nice())).unwrap());
            SystemSpawn.spawn(priority.thread_name(), Box::new(work)).unwrap()
        };
        for thread in JobPriority::ALL.map(start) {
            thread.join().unwrap();
        }
        let mut found: Vec<(JobKind, i32)> = told.try_iter().collect();
        found.sort_unstable();
        let (normal, low) = (nice(), (nice() + 19).min(19));
        let expected = [(JobKind::Flush, normal), (JobKind::Compaction, low), (JobKind::Gc, low)];
        assert_eq!(found, expected);
    }
}
