//! The executor of a compaction or a garbage collection, and the outputs that the database refuses.
//!
//! An executor may return outputs that the database cannot use, for example because it sees another
//! directory under the same path. The next pick would go to the same executor and fail again, while
//! level 0 grows until writers stop. So a job whose output was refused runs in this process, and
//! only an error of that run counts. An executor that returns an error itself decides whether the
//! job is planned again ([`JobExecutor::plans_again`]). Flushes have a rule of their own
//! (`db/background/flush.rs`).
//!
//! Invariants:
//! 1. A refused output is never installed.
//! 2. The files of a refused output are removed only if all of their numbers belong to the job. The
//!    background sweep removes the others.
//!
//! Thread-safety: the parts of one job share a place, and use it in parallel.
//! Failure: a job that was cancelled, or whose owner was superseded, does not run again.
//! Cost: a short lock for each plan, and for each refused output.

use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use super::{JobExecutor, JobKind, LocalExecutor, examine, planning_again};
use crate::job::spec::OutputSpec;
use crate::job::{JobContext, JobOutput};

/// Outputs of one plan of a job that the database refused.
#[derive(Default)]
struct RefusedOutputs {
    has_any: bool,
    /// Outputs whose files all have numbers of the job.
    removable: Vec<JobOutput>,
}

/// Executor of the parts of a job. Clones share the refused outputs.
#[derive(Clone)]
pub(crate) struct JobPlace {
    executor: Arc<dyn JobExecutor>,
    refused: Arc<Mutex<RefusedOutputs>>,
}

impl JobPlace {
    fn of(executor: Arc<dyn JobExecutor>) -> Self {
        Self { executor, refused: Arc::default() }
    }

    /// The executor of the parts.
    pub(crate) fn executor(&self) -> &dyn JobExecutor {
        &*self.executor
    }

    /// Returns the output of a part if it is usable. `checked` is the result of its check against
    /// the spec. If the executor does not run here, the files of the output are opened as well.
    pub(crate) fn accept(
        &self,
        output: JobOutput,
        checked: Result<()>,
        spec: &OutputSpec,
        context: &JobContext<'_>,
    ) -> Result<JobOutput> {
        if let Err(error) = checked {
            // The output may name files of another job.
            self.note_refused();
            return Err(error);
        }
        match examine(&*self.executor, &output, spec, context) {
            Ok(()) => Ok(output),
            Err(error) => {
                let mut refused = self.refused.lock();
                refused.has_any = true;
                refused.removable.push(output);
                Err(error)
            }
        }
    }

    /// Notes that the database refused outputs. Their files are left to the caller and the sweep.
    pub(crate) fn note_refused(&self) {
        self.refused.lock().has_any = true;
    }

    /// Takes the refused outputs whose files the caller removes.
    pub(crate) fn take_removable(&self) -> Vec<JobOutput> {
        std::mem::take(&mut self.refused.lock().removable)
    }

    /// Whether a job that ended with this error runs in this process now.
    fn may_run_here(&self, error: &Error) -> bool {
        let is_final = matches!(error.kind(), ErrorKind::Closed | ErrorKind::Fenced);
        !is_final && !self.executor.runs_here() && self.refused.lock().has_any
    }
}

/// Plans and runs a job of this kind, and plans it again as long as the executor wants that. If the
/// database refused an output of the last plan, the job runs once in this process.
pub(crate) fn run_planned<T>(
    executor: &Arc<dyn JobExecutor>,
    kind: JobKind,
    mut job: impl FnMut(&JobPlace) -> Result<T>,
) -> Result<T> {
    let place = JobPlace::of(Arc::clone(executor));
    let ended = planning_again(
        &**executor,
        |_| false,
        || {
            *place.refused.lock() = RefusedOutputs::default();
            job(&place)
        },
    );
    match ended {
        Err(error) if place.may_run_here(&error) => {
            let executor_name = executor.name();
            tracing::warn!(
                %error,
                executor = executor_name,
                "a job runs in this process, because the outputs of its executor were refused"
            );
            executor.output_refused(kind);
            job(&JobPlace::of(Arc::new(LocalExecutor)))
        }
        ended => ended,
    }
}
