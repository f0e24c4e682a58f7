//! Running jobs, as scheduling sees them: the keys, files and slots that they hold.
//!
//! [`JobState`](crate::db::state::jobs::JobState) owns one [`RunningJobs`], so the jobs lock guards
//! it.
//!
//! Invariants:
//! 1. A job is in the list from its choice until its install, so that the scheduler chooses no job
//!    that collides with it.
//! 2. No two jobs have the same number.
//!
//! Thread-safety: the owner's lock guards everything.
//! Cost: a question walks over all running jobs, of which there are few.

use archipelago_base::CfId;

use crate::executor::JobKind;
use crate::key::KeyRange;
use crate::version::Running;
use crate::version::rebalance::RunningFlush;

/// Where a picked job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobSlot {
    /// One of the `max_background_jobs` threads of the database.
    Own,
    /// A place of the executor in addition to those threads. One more thread waits for the job:
    /// see [`JobExecutor::room`](crate::executor::JobExecutor::room).
    Extra,
}

/// A running job, as scheduling sees it.
#[derive(Clone, Debug)]
pub(crate) struct RunningJob {
    id: u64,
    slot: JobSlot,
    kind: RunningKind,
}

impl RunningJob {
    pub(crate) fn kind(&self) -> &RunningKind {
        &self.kind
    }
}

/// Which worker runs a garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GcWorker {
    /// The worker that is reserved for garbage collection takes every job.
    Reserved,
    /// An idle worker takes a job only if too much garbage is exposed.
    Idle,
}

/// Keys and files that a running job holds.
#[derive(Clone, Debug)]
pub(crate) enum RunningKind {
    /// A flush of a family's key range.
    Flush { cf: CfId, flush: RunningFlush },
    /// A send of a shard of a family to a memory node.
    Send { cf: CfId },
    /// A rebuild of lost shards, which reads the log.
    Rebuild,
    /// A compaction of a family.
    Compaction(Running),
    /// A change of a family's bucket map in a key range.
    MapChange { cf: CfId, range: KeyRange },
    /// A garbage collection of value files with these numbers, or a merge of invalid files, which
    /// has none.
    Gc { cf: CfId, inputs: Vec<u64>, by: GcWorker },
    /// An ingestion between the choice of its levels and its install: the target of each file.
    Ingestion(Vec<Running>),
}

impl RunningKind {
    fn is_flush(&self) -> bool {
        matches!(self, Self::Flush { .. })
    }

    /// Kind of the job for an executor; `None` if no executor gets it.
    fn job_kind(&self) -> Option<JobKind> {
        match self {
            Self::Flush { .. } => Some(JobKind::Flush),
            Self::Compaction(_) => Some(JobKind::Compaction),
            Self::Gc { .. } => Some(JobKind::Gc),
            Self::Send { .. } | Self::Rebuild | Self::MapChange { .. } | Self::Ingestion(_) => None,
        }
    }

    pub(crate) fn is_send(&self) -> bool {
        matches!(self, Self::Send { .. })
    }

    pub(crate) fn is_rebuild(&self) -> bool {
        matches!(self, Self::Rebuild)
    }
}

/// The running jobs of a database.
#[derive(Default)]
pub(crate) struct RunningJobs {
    jobs: Vec<RunningJob>,
    next_id: u64,
}

impl RunningJobs {
    /// A number that no other job or claim has.
    pub(crate) fn new_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Adds a job to the running ones, and returns its number.
    pub(crate) fn start(&mut self, kind: RunningKind) -> u64 {
        let id = self.new_id();
        self.jobs.push(RunningJob { id, slot: JobSlot::Own, kind });
        id
    }

    /// Notes that a running job takes a place of the executor and none of the database.
    pub(crate) fn set_extra(&mut self, job_id: u64) {
        let jobs = self.jobs.iter_mut().filter(|job| job.id == job_id);
        jobs.for_each(|job| job.slot = JobSlot::Extra);
    }

    /// Takes a job off the running ones.
    pub(crate) fn end(&mut self, job_id: u64) {
        self.jobs.retain(|job| job.id != job_id);
    }

    /// The running jobs, in the order of their starts.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, RunningJob> {
        self.jobs.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Whether a job of this kind runs.
    pub(crate) fn has(&self, is_kind: impl Fn(&RunningKind) -> bool) -> bool {
        self.jobs.iter().any(|job| is_kind(&job.kind))
    }

    /// Number of running jobs of a kind.
    pub(crate) fn count(&self, is_kind: impl Fn(&RunningKind) -> bool) -> usize {
        self.jobs.iter().filter(|job| is_kind(&job.kind)).count()
    }

    /// The running jobs in places of the executor.
    fn extra(&self) -> impl Iterator<Item = &RunningJob> {
        self.jobs.iter().filter(|job| job.slot == JobSlot::Extra)
    }

    /// Number of running jobs in places of the executor.
    pub(crate) fn extra_len(&self) -> usize {
        self.extra().count()
    }

    /// Number of running jobs of a kind in places of the executor.
    pub(crate) fn count_extra(&self, kind: JobKind) -> usize {
        self.extra().filter(|job| job.kind.job_kind() == Some(kind)).count()
    }

    /// Number of running jobs that take one of the slots for background jobs. The reserved worker
    /// of garbage collection has a slot of its own.
    pub(crate) fn slots_taken(&self) -> usize {
        let is_reserved =
            |kind: &RunningKind| matches!(kind, RunningKind::Gc { by: GcWorker::Reserved, .. });
        let takes_slot = |job: &&RunningJob| job.slot == JobSlot::Own && !is_reserved(&job.kind);
        self.jobs.iter().filter(takes_slot).count()
    }

    /// Numbers of the value files that running garbage collections of a family read.
    pub(crate) fn gc_inputs(&self, of: CfId) -> impl Iterator<Item = u64> {
        let inputs = self.jobs.iter().filter_map(move |job| match &job.kind {
            RunningKind::Gc { cf, inputs, .. } if *cf == of => Some(inputs.iter().copied()),
            _ => None,
        });
        inputs.flatten()
    }

    /// Whether a job of the garbage collection of a family runs.
    pub(crate) fn is_collecting(&self, of: CfId) -> bool {
        let is_of = |job: &RunningJob| matches!(job.kind, RunningKind::Gc { cf, .. } if cf == of);
        self.jobs.iter().any(is_of)
    }

    /// Number of running flushes.
    pub(crate) fn flushes_len(&self) -> usize {
        self.jobs.iter().filter(|job| job.kind.is_flush()).count()
    }

    /// The running flushes of a family.
    pub(crate) fn flushes_of(&self, of: CfId) -> impl Iterator<Item = &RunningFlush> {
        self.jobs.iter().filter_map(move |job| match &job.kind {
            RunningKind::Flush { cf, flush } if *cf == of => Some(flush),
            _ => None,
        })
    }

    /// Whether a compaction or a garbage collection runs, whose end gives back room on the disk.
    pub(crate) fn is_compacting(&self) -> bool {
        let gives_back = |kind: &RunningKind| {
            matches!(kind, RunningKind::Compaction(_) | RunningKind::Gc { .. })
        };
        self.jobs.iter().any(|job| gives_back(&job.kind))
    }

    /// The running compactions.
    pub(crate) fn compactions(&self) -> Vec<Running> {
        let kinds = self.jobs.iter().map(|job| &job.kind);
        kinds
            .filter_map(|kind| match kind {
                RunningKind::Compaction(running) => Some(running.clone()),
                _ => None,
            })
            .collect()
    }

    /// The targets of running ingestions, as compactions without inputs. No picked job may write
    /// the same keys of the same level, or move records of these keys past that level.
    pub(crate) fn ingestions(&self) -> Vec<Running> {
        let kinds = self.jobs.iter().map(|job| &job.kind);
        let claims = kinds.filter_map(|kind| match kind {
            RunningKind::Ingestion(claims) => Some(claims),
            _ => None,
        });
        claims.flatten().cloned().collect()
    }

    /// Every running job that a compaction must not collide with.
    pub(crate) fn compactions_and_ingestions(&self) -> Vec<Running> {
        [self.compactions(), self.ingestions()].concat()
    }

    /// The range of a running map change of the family.
    pub(crate) fn changing(&self, of: CfId) -> Option<&KeyRange> {
        self.jobs.iter().find_map(|job| match &job.kind {
            RunningKind::MapChange { cf, range } if *cf == of => Some(range),
            _ => None,
        })
    }
}
