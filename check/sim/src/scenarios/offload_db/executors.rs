//! Executors: processes of their own, or in the process of a memory node.
//!
//! A slot is a thread that runs one job at a time. The run gives it a job whenever one waits.

use std::path::PathBuf;
use std::sync::Arc;

use archipelago_base::simulation::Host;
use archipelago_base::{ErrorKind, Result};
use archipelago_engine::sabotage::{Defect, with_defect};
use archipelago_fabric::sim::Sim;
use archipelago_offload::net::{ExecutorFigures, ExecutorServer, ExecutorSettings, RuntimeParts};
use archipelago_offload::shard_host::ShardHost;

use super::files::ProcessFiles;
use super::owner::DIR;
use crate::scenarios::thread::{Call, ProcessClock, ProcessRuntime, SimThread};

/// Number of jobs that an executor runs at the same time.
const SLOTS: usize = 2;

/// Runs `work` without the step that `defect` names.
pub(super) fn without<T>(defect: Option<Defect>, work: impl FnOnce() -> T) -> T {
    match defect {
        Some(defect) => with_defect(defect, work),
        None => work(),
    }
}

/// The parts of a process on the machine of `there`.
pub(super) fn parts_of(there: &Sim) -> RuntimeParts {
    let runtime = ProcessRuntime(there.host().clone());
    RuntimeParts {
        reach: Arc::new(there.clone()),
        runtime: Arc::new(runtime.clone()),
        clock: Arc::new(ProcessClock(runtime)),
    }
}

/// Text about jobs that have met a broken invariant. An executor reports the panic of a job in the
/// same way as other failures, and the job then runs elsewhere, so no other check would notice it.
fn defect_of_jobs(figures: &ExecutorFigures) -> Option<String> {
    let kind = ErrorKind::Internal.name();
    let count = figures.failed_by.get(kind)?;
    Some(format!("{count} jobs have panicked or failed with an {kind}"))
}

/// A thread of an executor, with the job that it runs.
struct Slot {
    thread: SimThread<()>,
    call: Option<Call<()>>,
}

/// An executor in one of its lives.
pub(super) struct ExecutorProcess {
    host: Host,
    files: ProcessFiles,
    server: Arc<ExecutorServer>,
    slots: Vec<Slot>,
    defect: Option<Defect>,
}

impl ExecutorProcess {
    /// Starts an executor on the machine of `there`. `hosted` is the memory node in its process.
    pub(super) fn start(
        there: &Sim,
        files: ProcessFiles,
        managers: Vec<String>,
        hosted: Option<&Arc<ShardHost>>,
        defect: Option<Defect>,
    ) -> Result<Self> {
        let host = there.host().clone();
        let settings = ExecutorSettings {
            managers,
            slots: SLOTS as u32,
            shares: vec![PathBuf::from(DIR)],
            hosted: hosted.cloned(),
            address: host.name().to_owned(),
            ..ExecutorSettings::default()
        };
        let shared = Arc::new(files.clone());
        let server = ExecutorServer::start_in_runtime(shared, settings, &parts_of(there))?;
        let slot = || Slot { thread: SimThread::start(&host, ()), call: None };
        let slots = (0..SLOTS).map(|_| slot()).collect();
        Ok(Self { host, files, server: Arc::new(server), slots, defect })
    }

    /// Text about a panic or a broken invariant in the process; `None` if there was none.
    pub(super) fn defect_text(&self) -> Option<String> {
        let panic_text = self.slots.iter().find_map(|slot| slot.thread.panic_text());
        panic_text.or_else(|| defect_of_jobs(&self.server.figures()))
    }

    /// Gives waiting jobs to free slots.
    pub(super) fn tend(&mut self) {
        let mut waiting = self.server.jobs_waiting();
        for slot in &mut self.slots {
            slot.call.take_if(|call| call.is_done());
            if waiting > 0 && slot.call.is_none() {
                waiting -= 1;
                let (server, defect) = (Arc::clone(&self.server), self.defect);
                slot.call = Some(slot.thread.call(move |()| {
                    without(defect, || server.work());
                }));
            }
        }
    }

    /// The machine of this life.
    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    /// The files of the process.
    pub(super) fn files(&self) -> &ProcessFiles {
        &self.files
    }

    /// Whether no job is left.
    pub(super) fn is_idle(&self) -> bool {
        self.server.is_idle()
    }

    /// Kills the process. Its machine is cut off, or the process ends in good order later.
    pub(super) fn kill(&self) {
        self.host.go_on();
        self.files.kill();
        self.server.leave();
        self.slots.iter().for_each(|slot| slot.thread.close());
    }

    /// Whether the threads of a killed process have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.slots.iter().all(|slot| slot.thread.has_ended())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_from_outside_are_no_defect_of_a_job() {
        let failed = |kind: ErrorKind| {
            let failed_by = [(kind.name(), 2)].into();
            defect_of_jobs(&ExecutorFigures { failed_by, ..ExecutorFigures::default() })
        };
        for outside in [ErrorKind::Io, ErrorKind::Closed, ErrorKind::NotFound] {
            assert_eq!(failed(outside), None, "{outside:?}");
        }
        let text = failed(ErrorKind::Internal).expect("a defect");
        assert!(text.starts_with("2 jobs have panicked"), "{text}");
    }
}
