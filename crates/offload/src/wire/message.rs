//! The messages, one variant each.

use std::fmt;

use archipelago_base::codec::Reader;
use archipelago_base::wire::{Malformed, Wire};
use archipelago_base::{Error, ErrorKind, wire_messages, wire_struct};
use archipelago_fabric::RouteMessage;

use super::{JobList, OwnerReport, SchedulerStatus, VERSION};
use crate::decide::{InputReach, Load};
use crate::failure::{FailedAttempt, ShortText};
use crate::ids::{
    AttemptId, ExecutorId, JobId, NumberRange, OwnerSession, OwnerStamp, SchedulerId, SchedulerLife,
};
use crate::job::{DeclineWhy, JobOrder, LocalWhy, Payload, PreparedAttempt, Verdict};

/// An attempt that an executor runs, and its progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// Attempt in question.
    pub at: AttemptId,
    /// Bytes that the job has read and written so far.
    pub progress_bytes: u64,
    /// Whether the job waits for room for its images or for its part of a rate limit.
    pub waits: bool,
}
wire_struct!(Running { at, progress_bytes, waits });

/// An owner or an executor, as the sender of mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Correspondent {
    /// One open of a database.
    Owner(OwnerStamp),
    /// The executor with this number.
    Executor(ExecutorId),
}

/// One byte for the variant, then the stamp or the number.
impl Wire for Correspondent {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Owner(stamp) => {
                1u8.put(out);
                stamp.put(out);
            }
            Self::Executor(executor) => {
                2u8.put(out);
                executor.put(out);
            }
        }
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        match reader.u8()? {
            1 => Wire::get(reader).map(Self::Owner),
            2 => Wire::get(reader).map(Self::Executor),
            _ => None,
        }
    }
}

wire_messages! {
    /// A message of the protocol of offloaded jobs (O³-LSM §4.3). The paper has PREPARE, ASSIGN,
    /// ACCEPT, COMMIT, ABORT and ACK. The other messages exist for failures.
    OffloadMessage, version VERSION {
    /// Owner → scheduler: report your life, and take the jobs of this owner. The owner repeats the
    /// greeting for as long as it lives, so that it knows the slots of executors.
    Greet = 1 {
        /// Owner that greets.
        owner: OwnerStamp,
        /// Names that all of its jobs need.
        needs: Vec<String>,
    }
    /// Scheduler → owner: answer to [`OffloadMessage::Greet`], and to a
    /// [`OffloadMessage::Prepare`] for another session.
    Lives = 2 {
        /// Life of the scheduler, and the session of the owner in it.
        session: OwnerSession,
        /// Slots of all executors that have the needed names, free or not.
        slots: u32,
    }
    /// Owner → scheduler: run this job. Repeated until the job has ended. A repetition may name
    /// more attempts. It has no package when the scheduler has confirmed the job.
    Prepare = 3 {
        /// Job to run.
        order: JobOrder,
        /// Session for which the attempts were prepared.
        session: OwnerSession,
        /// Attempts that the scheduler may give out.
        attempts: Vec<PreparedAttempt>,
        /// Number of the owner's oldest job that has not ended. The scheduler forgets older jobs.
        oldest: u64,
        /// Package of the job ([`crate::parcel`]), which the executor gets. `None` after a
        /// [`OffloadMessage::Queued`] of the same session.
        spec: Option<Payload>,
    }
    /// Scheduler → owner: the job waits or runs, and the scheduler has its package.
    Queued = 4 {
        /// Job in question.
        job: JobId,
        /// Session in which the scheduler has the job.
        session: OwnerSession,
        /// Slots of all executors that could run the job, free or not.
        slots: u32,
    }
    /// Scheduler → owner: run the job yourself. Repeated until the owner cancels the job.
    GiveBack = 5 {
        /// Job in question.
        job: JobId,
        /// Reason for the counters of the owner.
        why: LocalWhy,
        /// Whether no executor got a package of the job in this session. The owner may then use the
        /// numbers itself.
        is_untouched: bool,
        /// The latest attempt that has failed, if one has.
        failure: Option<FailedAttempt>,
    }
    /// Owner → scheduler: the job has ended for its owner. Stop its attempts.
    CancelJob = 6 {
        /// Job in question.
        job: JobId,
    }
    /// Scheduler → owner: the database has a newer owner, so the scheduler runs no job of this one.
    Stale = 7 {
        /// Owner that the scheduler knows.
        newest: OwnerStamp,
    }
    /// Owner → scheduler: the jobs that left the owner's process, and those that ran there instead.
    /// Only operators see the report. It follows the greetings.
    Report = 8 {
        /// Owner that reports.
        owner: OwnerStamp,
        /// Jobs of this open of the database.
        report: OwnerReport,
    }
    /// Scheduler → executor (ASSIGN of the paper): reserve a slot for this attempt, or decline it.
    Assign = 20 {
        /// Attempt in question.
        at: AttemptId,
        /// Life of the scheduler.
        life: SchedulerLife,
        /// Job to run.
        order: JobOrder,
    }
    /// Executor → scheduler: the executor reserves a slot for the attempt until the package comes.
    Accept = 21 {
        /// Attempt in question.
        at: AttemptId,
        /// Executor that accepts.
        by: ExecutorId,
    }
    /// Executor → scheduler: another executor must take the attempt.
    Decline = 22 {
        /// Attempt in question.
        at: AttemptId,
        /// Executor that declines.
        by: ExecutorId,
        /// Reason of the executor.
        why: DeclineWhy,
    }
    /// Scheduler → executor: run this attempt. Repeated until it is answered.
    Package = 23 {
        /// Attempt in question.
        at: AttemptId,
        /// Life of the scheduler.
        life: SchedulerLife,
        /// File numbers of the outputs.
        numbers: NumberRange,
        /// Package of the job ([`crate::parcel`]).
        spec: Payload,
    }
    /// Executor → scheduler: the attempt runs, or has run.
    Started = 24 {
        /// Attempt in question.
        at: AttemptId,
        /// Executor that runs it.
        by: ExecutorId,
    }
    /// Executor → scheduler: this executor neither reserves a slot for the attempt nor runs it.
    NotMine = 25 {
        /// Attempt in question.
        at: AttemptId,
        /// Executor that answers.
        by: ExecutorId,
    }
    /// Scheduler → executor: end this attempt if it runs. Repeated with the answer to each beat
    /// that names the attempt.
    Cancel = 26 {
        /// Attempt in question.
        at: AttemptId,
        /// Life of the scheduler.
        life: SchedulerLife,
    }
    /// Executor → scheduler: sign of life, with the load of the executor.
    Beat = 30 {
        /// Executor in question.
        executor: ExecutorId,
        /// Names that the executor has ([`JobOrder::needs`]).
        names: Vec<String>,
        /// Host and process of the executor, with the kind of a node that hosts it.
        address: ShortText,
        /// Number of jobs that it can run at the same time.
        slots: u32,
        /// Load of the executor.
        load: Load,
        /// Memory node whose images it reads in place, and the cost of a fetch from others.
        reach: InputReach,
        /// Attempts of the receiving scheduler that it runs. The scheduler answers those that it
        /// has given up with a [`OffloadMessage::Cancel`] each.
        running: Vec<Running>,
        /// Whether an operator drains the executor, so that it takes no more jobs.
        is_draining: bool,
    }
    /// Scheduler → executor: answer to [`OffloadMessage::Beat`].
    Heard = 31 {
        /// Life of the scheduler.
        life: SchedulerLife,
        /// Milliseconds until the next beat.
        next_ms: u32,
    }
    /// Executor → scheduler: the outputs of the attempt are durable. Repeated until the verdict
    /// comes, also to another life of the scheduler.
    Commit = 40 {
        /// Attempt in question.
        at: AttemptId,
        /// Executor that ran it.
        by: ExecutorId,
        /// Return parcel of the executor for the owner ([`crate::parcel`]).
        output: Payload,
    }
    /// Executor → scheduler: the attempt has failed and has left no files. Repeated until it is
    /// answered.
    Abort = 41 {
        /// Attempt in question.
        at: AttemptId,
        /// Executor that ran it.
        by: ExecutorId,
        /// Error of the job.
        reason: ShortText,
    }
    /// Scheduler → executor: answer to [`OffloadMessage::Abort`].
    Noted = 42 {
        /// Attempt in question.
        at: AttemptId,
    }
    /// Scheduler → owner: an executor has committed this attempt. Repeated until the verdict comes.
    Done = 43 {
        /// Attempt in question.
        at: AttemptId,
        /// Return parcel of the executor for the owner ([`crate::parcel`]).
        output: Payload,
    }
    /// Owner or executor → scheduler: messages of the sender. The scheduler keeps the answer until
    /// it has messages for the sender. All other messages of jobs travel in this message and its
    /// answer.
    Post = 60 {
        /// Sender of the mail.
        from: Correspondent,
        /// Milliseconds for which the scheduler may keep the answer.
        wait_ms: u32,
        /// Encoded messages, one after another.
        mail: Vec<Payload>,
    }
    /// Scheduler → owner or executor: answer to [`OffloadMessage::Post`].
    Mail = 61 {
        /// Encoded messages, one after another.
        mail: Vec<Payload>,
    }
    /// Manager → owner or executor: this manager stands by. Ask another one.
    Standby = 62 {}
    /// Manager → owner or executor: the message cannot be read.
    Malformed = 63 {}
    /// Operator → scheduler: report the state of executors and jobs.
    Status = 64 {}
    /// Scheduler → operator: answer to [`OffloadMessage::Status`].
    StatusIs = 65 {
        /// State of the scheduler.
        status: SchedulerStatus,
    }
    /// Operator → scheduler: list the jobs.
    Jobs = 66 {}
    /// Scheduler → operator: answer to [`OffloadMessage::Jobs`].
    JobsAre = 67 {
        /// Jobs of the scheduler.
        jobs: JobList,
    }
    /// Operator → scheduler → executor: take no more jobs, or take jobs again. The scheduler
    /// repeats it until a beat agrees, and answers the operator with a
    /// [`OffloadMessage::StatusIs`].
    Drain = 68 {
        /// Executor in question.
        executor: ExecutorId,
        /// Whether it takes no more jobs.
        is_draining: bool,
    }
    /// Owner → scheduler → executor: the decision about the outputs of the attempt.
    Decided = 44 {
        /// Attempt in question.
        at: AttemptId,
        /// Decision of the owner.
        verdict: Verdict,
    }
    }
}

impl OffloadMessage {
    /// The same message with this number of the scheduler in its life or session. Each owner and
    /// each executor numbers the schedulers that it knows, because managers do not know the lists
    /// of managers that others have.
    #[must_use]
    pub(crate) fn with_scheduler(mut self, scheduler: SchedulerId) -> Self {
        match &mut self {
            Self::Lives { session, .. }
            | Self::Prepare { session, .. }
            | Self::Queued { session, .. } => session.life.scheduler = scheduler,
            Self::Assign { life, .. }
            | Self::Package { life, .. }
            | Self::Cancel { life, .. }
            | Self::Heard { life, .. } => life.scheduler = scheduler,
            _ => {}
        }
        self
    }
}

impl RouteMessage for OffloadMessage {
    fn encode(&self) -> Vec<u8> {
        Self::encode(self)
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        Self::decode(bytes)
    }

    fn standby(&self, asked: &dyn fmt::Display) -> Option<Error> {
        matches!(self, Self::Standby {})
            .then(|| Error::new(ErrorKind::Busy, format!("the manager at {asked} stands by")))
    }
}
