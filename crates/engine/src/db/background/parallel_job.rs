//! One background job on several threads: the shards of a flush, the parts of a compaction.
//!
//! A job that writes many files waits for the device with each of them (create, write, sync), and a
//! device that many streams share gives each of them a part of its bandwidth. Therefore the works
//! of a job run in parallel. Each work is a job of its own for the executor. For scheduling they
//! are one job, and one edit installs their outputs.
//!
//! Invariants:
//! 1. Helping threads come from [`crate::db::state::job_threads`]. The calling thread takes part in
//!    a flush; it leaves a compaction to threads of lower priority. The call returns only after all
//!    works have ended.
//! 2. The largest work starts first: if one bucket takes most of the load, the works of the others
//!    run in parallel with its work and not before it.
//! 3. In manual mode the works run one after another on the calling thread, so that a step does the
//!    same each time.
//!
//! Thread-safety: any thread may call [`run_parallel`].
//! Failure: the first work that fails or panics cancels the others, and its error is the job's. The
//! outputs of works that had ended well are given back for the caller to remove.
//! Cost: one wake-up for each thread.

use std::collections::VecDeque;
use std::sync::Arc;

use archipelago_base::{Error, Result};
use parking_lot::{Condvar, Mutex};

use crate::border::contained;
use crate::db::inner::DbInner;
use crate::db::state::job_threads::{JobPriority, JobThreads};
use crate::job::{Cancel, JobOutput};

/// A part of a job.
pub(crate) type Work = Box<dyn FnOnce() -> Result<JobOutput> + Send>;

/// A part of a job, and about how many bytes it is.
pub(crate) type SizedWork = (u64, Work);

/// Results of the works of a job.
#[derive(Default)]
pub(crate) struct Ended {
    /// By work, once it has ended well.
    outputs: Vec<Option<JobOutput>>,
    /// Works that have ended well and that the calling thread has not seen yet.
    unseen: Vec<usize>,
    /// The first failure; what fails after it fails because of it.
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

    /// Wakes the calling thread, which waits with the number of helpers locked.
    fn tell_caller(&self) {
        let _helping = self.helping.lock();
        self.caller.notify_one();
    }

    /// Shows the calling thread the outputs that it has not seen.
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

    /// Calls up to `count` threads of that priority to help; fewer if the system refuses one,
    /// because the others do its share. Returns how many help.
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

/// A thread that helps: until this is dropped, however its work ends. (Works that panic end with an
/// error; this is for what is around them.)
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

/// How the works of a job run.
pub(crate) struct ParallelRun {
    /// Priority of the threads.
    pub(crate) kind: JobPriority,
    /// Ends all works.
    pub(crate) cancel: Cancel,
    /// Number of threads at most.
    pub(crate) threads: usize,
}

/// Runs `works` as `run` says; this thread does `first` meanwhile. It also calls `each` with the
/// output of every work that has ended well, between its own works and while it waits. The job
/// fails if `each` does.
pub(crate) fn run_parallel(
    db: &DbInner,
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
        _ if db.context.is_manual() => 0,
        JobPriority::Normal => group.call(db.jobs.threads(), kind, threads - 1),
        JobPriority::Low => group.call(db.jobs.threads(), kind, threads),
    };
    // Whatever happens here, the threads that help are waited for.
    if let Err(error) = contained("a part of a job", first) {
        group.fail(error);
    }
    if kind == JobPriority::Normal || helpers == 0 {
        group.work(|| group.see(&mut each));
    }
    group.wait_for_helpers(&mut each);
    std::mem::take(&mut *group.ended.lock())
}
