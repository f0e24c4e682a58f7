//! One background job on several threads: the shards of a flush, the parts of a compaction.
//!
//! A job that writes many files waits for the device with each of them (create, write, sync). A
//! device that many streams share gives each of them only a part of its bandwidth. Therefore the
//! works of a job run in parallel. Each work is a job of its own for the executor. For the
//! scheduler all works are one job, and one edit installs their outputs.
//!
//! Invariants:
//! 1. Helping threads come from [`crate::db::state::job_threads`]. The calling thread takes part in
//!    a flush; it leaves a compaction to threads of lower priority. The call returns only after all
//!    works have ended.
//! 2. The largest work starts first. If one bucket takes most of the load, the works of the other
//!    buckets run in parallel with its work, and not before it.
//! 3. In manual mode the works run one after another on the calling thread, so that a step does the
//!    same each time.
//!
//! Thread-safety: any thread may call [`run_parallel`].
//! Failure: the first work that fails or panics cancels the others, and its error is that of the
//! job. The outputs of works that had succeeded are returned, so that the caller can remove them.
//! Cost: one wake-up for each thread.

use std::collections::VecDeque;
use std::sync::Arc;

use archipelago_base::{Error, Result};
use parking_lot::{Condvar, Mutex};

use crate::border::contained;
use crate::db::state::context::Context;
use crate::db::state::job_threads::{JobPriority, JobThreads};
use crate::db::state::jobs::Jobs;
use crate::job::{Cancel, JobOutput};

/// A part of a job.
pub(crate) type Work = Box<dyn FnOnce() -> Result<JobOutput> + Send>;

/// A part of a job, and its approximate size in bytes.
pub(crate) type SizedWork = (u64, Work);

/// Results of the works of a job.
#[derive(Default)]
pub(crate) struct Ended {
    /// Output of each work; `None` until the work has succeeded.
    outputs: Vec<Option<JobOutput>>,
    /// Works that have succeeded and whose outputs the calling thread has not handled yet.
    unseen: Vec<usize>,
    /// The first failure. It cancels the other works, so later failures follow from it.
    failed: Option<Error>,
}

impl Ended {
    /// The outputs in the order of the works, and the error if one failed.
    pub(crate) fn into_parts(self) -> (Vec<JobOutput>, Option<Error>) {
        (self.outputs.into_iter().flatten().collect(), self.failed)
    }
}

/// State that the threads of one job share.
struct Group {
    cancel: Cancel,
    waiting: Mutex<VecDeque<(usize, Work)>>,
    ended: Mutex<Ended>,
    /// Number of threads that help.
    helping: Mutex<usize>,
    /// The calling thread waits here for its helpers.
    caller: Condvar,
}

impl Group {
    /// Runs works until none waits, and calls `between` after each.
    fn work(&self, mut between: impl FnMut()) {
        loop {
            let next = self.waiting.lock().pop_front();
            let Some((index, work)) = next else { return };
            let work = || contained("a part of a job", work);
            self.work_on(index, work);
            between();
        }
    }

    fn work_on(&self, index: usize, work: impl FnOnce() -> Result<JobOutput>) {
        match self.cancel.check().and_then(|()| work()) {
            Ok(output) => {
                let mut ended = self.ended.lock();
                ended.outputs[index] = Some(output);
                ended.unseen.push(index);
            }
            Err(error) => self.fail(error),
        }
    }

    /// Wakes the calling thread. It checks for outputs under the lock of `helping`, so the lock is
    /// taken here as well.
    fn tell_caller(&self) {
        let _helping = self.helping.lock();
        self.caller.notify_one();
    }

    /// Calls `each` on the calling thread for the outputs that it has not handled yet.
    fn see(&self, each: &mut impl FnMut(usize, &JobOutput) -> Result<()>) {
        loop {
            let unseen = {
                let mut ended = self.ended.lock();
                let next = ended.unseen.pop();
                next.and_then(|index| Some((index, ended.outputs[index].clone()?)))
            };
            let Some((index, output)) = unseen else { return };
            if let Err(error) = contained("a part of a job", || each(index, &output)) {
                self.fail(error);
            }
        }
    }

    fn fail(&self, error: Error) {
        self.ended.lock().failed.get_or_insert(error);
        self.cancel.cancel();
    }

    /// Starts up to `count` helping threads of that priority. If the system refuses a thread, the
    /// others do its share. Returns the number of threads that help.
    fn call(self: &Arc<Self>, threads: &JobThreads, kind: JobPriority, count: usize) -> usize {
        for called in 0..count {
            *self.helping.lock() += 1;
            let helper = Helper(Arc::clone(self));
            if let Err(error) =
                threads.run(kind, Box::new(move || helper.0.work(|| helper.0.tell_caller())))
            {
                tracing::warn!(%error, "a job runs with fewer threads than it could use");
                return called;
            }
        }
        count
    }

    fn wait_for_helpers(&self, each: &mut impl FnMut(usize, &JobOutput) -> Result<()>) {
        loop {
            self.see(each);
            let mut helping = self.helping.lock();
            let is_seen = self.ended.lock().unseen.is_empty();
            match (*helping, is_seen) {
                (0, true) => return,
                (_, true) => self.caller.wait(&mut helping),
                (_, false) => {}
            }
        }
    }
}

/// Count of a helping thread. The drop ends it, also after a panic outside of a work. A work that
/// panics ends with an error.
struct Helper(Arc<Group>);

impl Drop for Helper {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let what = "a thread of a background job panicked";
            self.0.fail(Error::internal(what));
        }
        *self.0.helping.lock() -= 1;
        self.0.caller.notify_one();
    }
}

/// Settings for the run of a job's works.
pub(crate) struct ParallelRun {
    /// Priority of the threads.
    pub(crate) kind: JobPriority,
    /// Cancels all works.
    pub(crate) cancel: Cancel,
    /// Largest number of threads.
    pub(crate) threads: usize,
}

/// Runs `works` as `run` says. The calling thread runs `first` meanwhile. It also calls `each` with
/// the output of every work that has succeeded, between its own works and while it waits. The job
/// fails if `first` or `each` fails.
pub(crate) fn run_parallel(
    context: &Context,
    jobs: &Jobs,
    run: ParallelRun,
    works: Vec<SizedWork>,
    first: impl FnOnce() -> Result<()>,
    mut each: impl FnMut(usize, &JobOutput) -> Result<()>,
) -> Ended {
    let ParallelRun { kind, cancel, threads } = run;
    let count = works.len();
    let mut works: Vec<_> = works.into_iter().enumerate().collect();
    works.sort_by_key(|(_, (bytes, _))| std::cmp::Reverse(*bytes));
    let waiting = works.into_iter().map(|(index, (_, work))| (index, work)).collect();
    let group = Arc::new(Group {
        cancel,
        waiting: Mutex::new(waiting),
        ended: Mutex::new(Ended { outputs: vec![None; count], ..Ended::default() }),
        helping: Mutex::new(0),
        caller: Condvar::new(),
    });
    let threads = threads.clamp(1, count.max(1));
    let helpers = match kind {
        _ if context.is_manual() => 0,
        JobPriority::Normal => group.call(jobs.threads(), kind, threads - 1),
        JobPriority::Low => group.call(jobs.threads(), kind, threads),
    };
    // An error of `first` is only noted, because the call must wait for the helping threads.
    if let Err(error) = contained("a part of a job", first) {
        group.fail(error);
    }
    if kind == JobPriority::Normal || helpers == 0 {
        group.work(|| group.see(&mut each));
    }
    group.wait_for_helpers(&mut each);
    std::mem::take(&mut *group.ended.lock())
}
