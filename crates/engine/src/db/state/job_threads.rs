//! Threads that help with background jobs, and wait for the next one.
//!
//! [`Jobs`](crate::db::state::jobs::Jobs) owns one [`JobThreads`]. A flush writes its shards on
//! several threads, one per background job. With small memtables that happens a hundred times a
//! second. A new thread for each shard would cost its start, the pages of its stack and those of
//! its allocator. Therefore idle threads are kept ([`ThreadGroup`]).
//!
//! There are two groups ([`JobPriority`]), because a system lets no thread raise its priority again
//! without a privilege. Compactions run at low priority. If processors are scarce, writers and the
//! flushes that they wait for come first (decision 0019). A compaction runs at normal priority in
//! two cases: a caller waits for it, or it starts while writers are slowed down because compactions
//! are behind.
//!
//! Invariants, thread-safety, failure and cost: those of [`ThreadGroup`].

use archipelago_base::Result;

use crate::db::state::thread_group::{Task, ThreadGroup, ThreadKind};

/// Priority of threads and of their work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobPriority {
    /// Work that writers wait for.
    Normal,
    /// Work that can wait. Its threads run at a lower priority.
    Low,
}

/// Threads that help with background jobs.
#[derive(Debug)]
pub(crate) struct JobThreads {
    normal: ThreadGroup,
    low: ThreadGroup,
}

impl Default for JobThreads {
    fn default() -> Self {
        let normal = ThreadKind { name: "archi-flush", yields: false };
        let low = ThreadKind { name: "archi-compact", yields: true };
        Self { normal: ThreadGroup::new(normal), low: ThreadGroup::new(low) }
    }
}

impl JobThreads {
    /// Runs `task` on another thread, immediately. If the system refuses a thread or the group is
    /// closed, the call fails and drops the task.
    pub(crate) fn run(&self, kind: JobPriority, task: Task) -> Result<()> {
        match kind {
            JobPriority::Normal => self.normal.run(task),
            JobPriority::Low => self.low.run(task),
        }
    }

    /// Refuses further tasks, and waits until all threads have ended.
    pub(crate) fn close(&self) {
        self.normal.close();
        self.low.close();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn low_threads_run_at_a_lower_priority_and_normal_ones_do_not() {
        let own = rustix::process::getpriority_process(None).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let threads = JobThreads::default();
        for kind in [JobPriority::Normal, JobPriority::Low] {
            let tell = tell.clone();
            let tell = move || tell.send(rustix::process::getpriority_process(None)).unwrap();
            threads.run(kind, Box::new(tell)).unwrap();
        }
        threads.close();
        let found = told.try_iter().map(Result::unwrap).collect::<Vec<i32>>();
        let low = (own + 19).min(19);
        assert!(found == [own, low] || found == [low, own], "{found:?}");
    }
}
