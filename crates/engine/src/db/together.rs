//! One background job, done by several threads: the shards of a flush, the parts of a compaction.
//!
//! A job that writes many files waits for the device with each of them (create, write, sync), and
//! a device that many streams share gives one of them a part of its bandwidth. So its works run at
//! once, each a job of its own for the executor; for scheduling they are one job, and what they
//! made is installed by one edit.
//!
//! 1. The calling thread takes part; the others are started for the job and end with it. Nobody
//!    returns before all works have ended.
//! 2. Works start in order. The first that fails cancels the others, and its error is the job's;
//!    outputs of works that had ended well are given back for the caller to remove.
//! 3. In manual mode the works run one after another on the calling thread, so that a step does
//!    the same each time.
//!
//! Cost: a thread per work beyond the first, some 50 µs each, which is little beside the files.

use std::collections::VecDeque;
use std::sync::Arc;

use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{Error, Result};
use parking_lot::Mutex;

use crate::db::inner::DbInner;
use crate::job::{Cancel, JobOutput};

/// A part of a job.
pub(crate) type Work = Box<dyn FnOnce() -> Result<JobOutput> + Send>;

/// How the works of a job ended.
#[derive(Default)]
pub(crate) struct Ended {
    /// By work, once it has ended well.
    outputs: Vec<Option<JobOutput>>,
    /// The first failure; what fails after it fails because of it.
    failed: Option<Error>,
}

impl Ended {
    /// The outputs in the order of the works, and the error if one failed.
    pub(crate) fn into_parts(self) -> (Vec<JobOutput>, Option<Error>) {
        (self.outputs.into_iter().flatten().collect(), self.failed)
    }
}

/// What the threads of one job share.
struct Group {
    cancel: Cancel,
    waiting: Mutex<VecDeque<(usize, Work)>>,
    ended: Mutex<Ended>,
}

impl Group {
    /// Runs works until none waits.
    fn work(&self) {
        loop {
            let next = self.waiting.lock().pop_front();
            let Some((index, work)) = next else { return };
            match self.cancel.check().and_then(|()| work()) {
                Ok(output) => self.ended.lock().outputs[index] = Some(output),
                Err(error) => self.fail(error),
            }
        }
    }

    fn fail(&self, error: Error) {
        self.ended.lock().failed.get_or_insert(error);
        self.cancel.cancel();
    }
}

impl DbInner {
    /// Runs `works`, all of which end with `cancel`, on at most `threads` threads; this one does
    /// `first` before it takes part.
    pub(crate) fn run_together(
        &self,
        cancel: Cancel,
        works: Vec<Work>,
        threads: usize,
        first: impl FnOnce() -> Result<()>,
    ) -> Ended {
        let count = works.len();
        let group = Arc::new(Group {
            cancel,
            waiting: Mutex::new(works.into_iter().enumerate().collect()),
            ended: Mutex::new(Ended { outputs: vec![None; count], failed: None }),
        });
        let threads = if self.is_manual() { 1 } else { threads.clamp(1, count.max(1)) };
        let others = start(&group, threads - 1);
        if let Err(error) = first() {
            group.fail(error);
        }
        group.work();
        for thread in others {
            if let Err(error) = thread.join() {
                group.fail(error);
            }
        }
        std::mem::take(&mut *group.ended.lock())
    }
}

/// Starts `count` threads that work; fewer if the system refuses one, as what it would have done
/// is done by the others.
fn start(group: &Arc<Group>, count: usize) -> Vec<Joiner> {
    let mut threads = Vec::with_capacity(count);
    for index in 1..=count {
        let shared = Arc::clone(group);
        match SystemSpawn.spawn(&format!("archi-part-{index}"), Box::new(move || shared.work())) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                tracing::warn!(%error, "a job runs with fewer threads than it could use");
                break;
            }
        }
    }
    threads
}
