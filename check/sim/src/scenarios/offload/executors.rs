//! Executors: the driver of [`Executor`], which writes the files of a job one after another.

use std::collections::BTreeMap;

use archipelago_offload::decide::InputReach;
use archipelago_offload::executor::{Executor, ExecutorOffer, ExecutorStep};
use archipelago_offload::ids::{AttemptId, ExecutorId, NumberRange, OffloadDb, SchedulerId};
use archipelago_offload::wire::OffloadMessage;

use super::owners::{MEMORIES, Output, memory_life};
use super::storage::WriterId;

/// Time within which an attempt that was given up stops: five beats, with their answers.
const STOP_NS: u64 = 1_000_000_000;

/// A job that an executor runs.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// Scheduler whose package began it.
    pub(super) scheduler: SchedulerId,
    /// Time at which the world saw that the scheduler had given the run up.
    pub(super) given_up_ns: Option<u64>,
    pub(super) numbers: NumberRange,
    pub(super) item: u64,
    /// Life of the memory node whose image the job's package names; 0 for a job without an image.
    pub(super) image: u64,
    /// Life of the memory node whose image the run has read.
    pub(super) read: Option<u64>,
    pub(super) writer: WriterId,
    pub(super) written: Vec<u64>,
    pub(super) is_stopped: bool,
    /// Time at which the run began to wait for a bounded resource.
    pub(super) waits_since_ns: Option<u64>,
    /// Whether the run has begun to wait. It waits once.
    pub(super) has_waited: bool,
}

/// Action that the world carries out for an executor.
#[derive(Clone, Debug)]
pub(super) enum ExecutorDeed {
    Send {
        to: SchedulerId,
        message: OffloadMessage,
    },
    /// The run takes its next step soon.
    Go {
        at: AttemptId,
    },
    Remove {
        db: OffloadDb,
        numbers: NumberRange,
    },
}

/// One process that runs jobs.
pub(super) struct ExecutorHost {
    pub(super) machine: Executor,
    pub(super) stopped_until_ns: u64,
    pub(super) runs: BTreeMap<AttemptId, Run>,
    /// Memory node in whose process the executor runs; `None` for a process of its own.
    pub(super) home: Option<usize>,
    next_writer: u64,
}

impl ExecutorHost {
    /// A new process.
    pub(super) fn new(
        id: ExecutorId,
        slots: u32,
        schedulers: &[SchedulerId],
        memories: &[u64; MEMORIES],
    ) -> Self {
        let offer = ExecutorOffer { slots, ..ExecutorOffer::default() };
        let mut machine = Executor::new(id, offer, schedulers);
        // Every third process is an executor without a memory node.
        let home = Some(id.0 as usize % 3).filter(|memory| *memory < MEMORIES);
        let life = home.map(|memory| memory_life(memory, memories[memory]));
        machine.note_reach(InputReach { home: life, ..InputReach::default() });
        Self { machine, stopped_until_ns: 0, runs: BTreeMap::new(), home, next_writer: 1 }
    }

    /// Takes the steps of the machine. Only a message of the scheduler `from` begins runs.
    pub(super) fn take(
        &mut self,
        from: Option<SchedulerId>,
        steps: Vec<ExecutorStep>,
    ) -> Vec<ExecutorDeed> {
        let mut deeds = Vec::new();
        for step in steps {
            match step {
                ExecutorStep::Send { to, message } => {
                    deeds.push(ExecutorDeed::Send { to, message });
                }
                ExecutorStep::Run { at, numbers, spec, .. } => {
                    let writer = WriterId(1 << 63 | self.machine.id().0 << 32 | self.next_writer);
                    self.next_writer += 1;
                    let Output { item, image, .. } = Output::decode(&spec);
                    let run = Run {
                        scheduler: from.unwrap_or_default(),
                        given_up_ns: None,
                        numbers,
                        item,
                        image,
                        read: None,
                        writer,
                        written: Vec::new(),
                        is_stopped: false,
                        waits_since_ns: None,
                        has_waited: false,
                    };
                    self.runs.insert(at, run);
                    deeds.push(ExecutorDeed::Go { at });
                }
                ExecutorStep::Stop { at } => {
                    if let Some(run) = self.runs.get_mut(&at) {
                        run.is_stopped = true;
                    }
                }
                ExecutorStep::Keep { .. } => {}
                ExecutorStep::Remove { at, numbers } => {
                    deeds.push(ExecutorDeed::Remove { db: at.job.db, numbers });
                }
            }
        }
        deeds
    }

    /// Violations of runs that go on for long after their scheduler has given them up.
    /// `is_given_up` says whether it has.
    pub(super) fn check_given_up(
        &mut self,
        now_ns: u64,
        is_given_up: impl Fn(SchedulerId, AttemptId, ExecutorId) -> bool,
    ) -> Vec<String> {
        let me = self.machine.id();
        let mut violations = Vec::new();
        for (at, run) in &mut self.runs {
            if run.is_stopped || !is_given_up(run.scheduler, *at, me) {
                run.given_up_ns = None;
                continue;
            }
            let since_ns = *run.given_up_ns.get_or_insert(now_ns);
            if since_ns + STOP_NS <= now_ns {
                violations.push(format!("attempt {at} was given up and goes on"));
            }
        }
        violations
    }

    /// Whether nothing runs and no verdict is missing.
    pub(super) fn is_idle(&self) -> bool {
        self.machine.is_idle() && self.runs.is_empty()
    }
}
