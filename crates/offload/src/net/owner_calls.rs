//! Calls of the engine that wait for their jobs at executors, and the state machine of the owner.
//!
//! The executor seam of an open database ([`super::owning`]) owns the calls, and the couriers bring
//! them the mail of the schedulers. A call hands its job to the state machine and waits. The steps
//! of the state machine end the wait: with the outputs of an executor, or because the job must run
//! in this process.
//!
//! Invariants:
//! 1. A call has one range of file numbers. The state machine gets it for one attempt at most. If
//!    the scheduler of that attempt ends, so does the call. The state machine decides whether the
//!    job is planned again for another scheduler, or runs here.
//! 2. A job ends for the state machine when its call ends, however the call ends. The caller of
//!    `submit` calls `forget` after the wait, also if the wait failed.
//! 3. The room of a kind is that of the state machine after its latest steps.
//!
//! Thread-safety: any thread may call any method. One lock guards the state machine and the waiting
//! calls. Callers send the returned messages without it.
//! Failure: a cancelled call ends with the error of the cancellation.
//! Cost: a short lock for each step of a job. A waiting call sleeps, and looks for a cancellation
//! at a fixed interval. The room of a kind is read without the lock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::clock::Clock;
use archipelago_base::runtime::{Runtime, wait_for};
use archipelago_engine::job::JobContext;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::counters::Tally;
use super::courier::{Addressed, Resident};
use crate::failure::FailedAttempt;
use crate::ids::{NumberRange, SchedulerId};
use crate::job::{JobAsk, JobKind, LocalWhy, Payload};
use crate::owner::{Owner, OwnerStep};
use crate::wire::OffloadMessage;

/// Interval at which a waiting call checks whether its job was cancelled.
const LOOK: Duration = Duration::from_millis(50);
/// Interval at which a call in virtual time checks whether its job has ended or was cancelled.
const LOOK_IN_RUNTIME: Duration = Duration::from_millis(5);

/// Number of the kinds of jobs.
pub(super) const KINDS: usize = JobKind::ALL.len();

/// Index of a kind in an array with one element for each.
pub(super) fn kind_index(kind: JobKind) -> usize {
    match kind {
        JobKind::Flush => 0,
        JobKind::Compaction => 1,
        JobKind::Gc => 2,
    }
}

/// The result that a waiting call gets.
#[derive(Debug)]
pub(super) enum JobEnding {
    /// The outputs of an executor.
    Output(Payload),
    /// The job must run in this process.
    Here {
        /// Reason for the counters.
        why: LocalWhy,
        /// Whether no executor can have used the file numbers of the call.
        is_untouched: bool,
        /// The latest attempt that has failed, if the scheduler knows one.
        failure: Option<FailedAttempt>,
    },
    /// The scheduler of the job has ended, and another one lives. The job needs another plan, with
    /// other numbers.
    PlanAgain,
}

/// A call of the engine that waits for its job.
#[derive(Debug)]
struct WaitingCall {
    /// File numbers of the only attempt, until it is prepared.
    numbers: Option<NumberRange>,
    ending: Option<JobEnding>,
}

#[derive(Debug)]
struct OwnerState {
    machine: Owner,
    /// The calls by the numbers of their jobs.
    waiting: BTreeMap<u64, WaitingCall>,
}

/// What the calls of one open use of their process.
pub(super) struct CallParts {
    /// Clock of the process.
    pub(super) clock: Arc<dyn Clock>,
    /// Counters for reports to the schedulers.
    pub(super) tally: Arc<Tally>,
    /// Address of this process in reports.
    pub(super) address: String,
    /// The runtime in whose time calls wait; `None` for the time of the system.
    pub(super) runtime: Option<Arc<dyn Runtime>>,
}

/// The state machine of the owner, and the calls that wait for it.
pub(super) struct OwnerCalls {
    state: Mutex<OwnerState>,
    /// Room for jobs of each kind, by [`kind_index`].
    rooms: [AtomicUsize; KINDS],
    ended: Condvar,
    parts: CallParts,
}

impl OwnerCalls {
    /// The calls of an open whose state machine is `machine`. None waits yet.
    pub(super) fn new(machine: Owner, parts: CallParts) -> Self {
        Self {
            state: Mutex::new(OwnerState { machine, waiting: BTreeMap::new() }),
            rooms: Default::default(),
            ended: Condvar::new(),
            parts,
        }
    }

    /// Number of jobs of a kind that executors have room for. It takes no lock.
    pub(super) fn room(&self, kind: JobKind) -> usize {
        self.rooms[kind_index(kind)].load(Ordering::Relaxed)
    }

    /// Reason for which a job of this kind would get no slot now; `None` if there is one.
    pub(super) fn lacks_room(&self, kind: JobKind) -> Option<LocalWhy> {
        self.state.lock().machine.lacks_room(kind)
    }

    /// Hands a job to the protocol, whose only attempt may use `numbers`. Returns the number of the
    /// job, and messages to send.
    pub(super) fn submit(
        &self,
        job: JobAsk,
        numbers: NumberRange,
        spec: Payload,
    ) -> (u64, Vec<Addressed>) {
        let now_ns = self.parts.clock.now_ns();
        let mut state = self.state.lock();
        let (job, steps) = state.machine.submit(now_ns, job, spec);
        state.waiting.insert(job, WaitingCall { numbers: Some(numbers), ending: None });
        let messages = self.step(&mut state, now_ns, steps);
        (job, messages)
    }

    /// Waits until a job has ended elsewhere, must run here, or was cancelled.
    pub(super) fn wait(&self, job: u64, context: &JobContext<'_>) -> Result<JobEnding> {
        let mut state = self.state.lock();
        loop {
            context.check_cancelled()?;
            let waiting = state.waiting.get_mut(&job);
            if let Some(ending) = waiting.and_then(|waiting| waiting.ending.take()) {
                return Ok(ending);
            }
            match &self.parts.runtime {
                None => {
                    self.ended.wait_for(&mut state, LOOK);
                }
                Some(runtime) => MutexGuard::unlocked(&mut state, || {
                    wait_for(&**runtime, runtime.sleep(LOOK_IN_RUNTIME));
                }),
            }
        }
    }

    /// Ends a job for the state machine, unless its outputs have ended it.
    pub(super) fn forget(&self, job: u64) -> Vec<Addressed> {
        let mut state = self.state.lock();
        state.waiting.remove(&job);
        let steps = state.machine.ran_here(job);
        self.step(&mut state, self.parts.clock.now_ns(), steps)
    }

    /// Takes the steps of the state machine. Returns the messages to send.
    fn step(&self, state: &mut OwnerState, now_ns: u64, steps: Vec<OwnerStep>) -> Vec<Addressed> {
        let mut messages = Vec::new();
        let mut left = VecDeque::from(steps);
        while let Some(step) = left.pop_front() {
            match step {
                OwnerStep::Send { to, message } => messages.push(Addressed { to, message }),
                OwnerStep::Prepare { job } => {
                    let waiting = state.waiting.get_mut(&job);
                    let numbers = waiting.and_then(|waiting| waiting.numbers.take());
                    left.extend(match numbers {
                        Some(numbers) => state.machine.prepared(now_ns, job, &[numbers]),
                        // Another scheduler, or another life of it, needs other file numbers, and
                        // this call has only one range.
                        None => state.machine.without_numbers(now_ns, job),
                    });
                }
                OwnerStep::PlanAgain { job } => self.end(state, job, JobEnding::PlanAgain),
                OwnerStep::RunHere { job, why, is_untouched, failure } => {
                    self.end(state, job, JobEnding::Here { why, is_untouched, failure });
                }
                OwnerStep::Check { at, output, .. } => {
                    if let Some(waiting) = state.waiting.get_mut(&at.job.number) {
                        waiting.ending = Some(JobEnding::Output(output));
                        self.ended.notify_all();
                    }
                    left.extend(state.machine.checked(now_ns, at, true));
                }
                // The engine reserved the numbers, so its sweep already covers them.
                OwnerStep::Abandon { .. } => {}
            }
        }
        for kind in JobKind::ALL {
            let room = state.machine.room(kind);
            self.rooms[kind_index(kind)].store(room, Ordering::Relaxed);
        }
        messages
    }

    fn end(&self, state: &mut OwnerState, job: u64, ending: JobEnding) {
        if let Some(waiting) = state.waiting.get_mut(&job) {
            waiting.ending = Some(ending);
            self.ended.notify_all();
        }
    }
}

impl Resident for OwnerCalls {
    fn take(&self, from: SchedulerId, messages: Vec<OffloadMessage>) -> Vec<Addressed> {
        let now_ns = self.parts.clock.now_ns();
        let mut state = self.state.lock();
        let mut sent = Vec::new();
        for message in messages {
            let steps = state.machine.on_message(now_ns, from, message);
            sent.extend(self.step(&mut state, now_ns, steps));
        }
        sent
    }

    fn tick(&self) -> Vec<Addressed> {
        let now_ns = self.parts.clock.now_ns();
        let report = self.parts.tally.report(&self.parts.address);
        let mut state = self.state.lock();
        state.machine.set_report(report);
        let steps = state.machine.on_timer(now_ns);
        self.step(&mut state, now_ns, steps)
    }
}
