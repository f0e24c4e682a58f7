//! Queue of moves and copies, and the number of them that run.
//!
//! The tiers own one [`JobQueue`]. The control loop fills it, and the threads of the mover take
//! jobs from it.
//!
//! Invariants:
//! 1. A file has at most one job, queued or running ([`Entry::busy`]).
//! 2. A move takes the place of a queued copy of the same file.
//!
//! Thread-safety: a lock guards the queued jobs, and atomics count the running ones. Cost: each
//! call is linear in the number of queued jobs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::entry::Entry;
use super::shared::OpenTiers;
use crate::cache::hot_ranges::CopyPlan;
use crate::device::Writer;
use crate::history::Reason;
use crate::migrate::threads;
use crate::settings::DEVICES_MAX;

/// A file to move or to copy.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) entry: Arc<Entry>,
    /// Index of the target device.
    pub(crate) to: usize,
    pub(crate) kind: JobKind,
    pub(crate) reason: Reason,
}

#[derive(Debug)]
pub(crate) enum JobKind {
    Move,
    Copy(CopyPlan),
}

/// Queued jobs, and counts of the running ones.
#[derive(Debug, Default)]
pub(crate) struct JobQueue {
    jobs: Mutex<VecDeque<Job>>,
    /// Number of running jobs that write to each device.
    running: [AtomicUsize; DEVICES_MAX],
    /// Number of running moves to each device.
    moving: [AtomicUsize; DEVICES_MAX],
    /// Number of jobs that failed.
    pub(crate) failed: AtomicU64,
    /// The error of the last job that failed.
    pub(crate) errors: Mutex<Option<String>>,
}

impl JobQueue {
    /// Appends a job, unless its file has one already. Returns whether the job was appended.
    pub(crate) fn push(&self, job: Job) -> bool {
        let is_copy = matches!(job.kind, JobKind::Copy(_));
        let is_free = match is_copy {
            true => !job.entry.busy.swap(true, Ordering::AcqRel),
            false => self.claim(&job.entry),
        };
        if !is_free {
            return false;
        }
        job.entry.copying.store(is_copy, Ordering::Release);
        self.jobs.lock().push_back(job);
        true
    }

    /// Claims a file for a move. This succeeds if the file has no job. It also succeeds if the file
    /// has a queued copy, which is removed.
    pub(crate) fn claim(&self, entry: &Arc<Entry>) -> bool {
        if !entry.busy.swap(true, Ordering::AcqRel) {
            return true;
        }
        let mut jobs = self.jobs.lock();
        let is_its_copy =
            |job: &Job| job.entry.id == entry.id && matches!(job.kind, JobKind::Copy(_));
        let Some(at) = jobs.iter().position(is_its_copy) else { return false };
        jobs.remove(at);
        entry.copying.store(false, Ordering::Release);
        true
    }

    /// Number of queued moves and of queued copies to a device.
    pub(crate) fn waiting(&self, to: usize) -> (usize, usize) {
        let jobs = self.jobs.lock();
        let mine = jobs.iter().filter(|job| job.to == to);
        mine.fold((0, 0), |(moves, copies), job| match job.kind {
            JobKind::Move => (moves + 1, copies),
            JobKind::Copy(_) => (moves, copies + 1),
        })
    }

    /// Number of running jobs that write to a device.
    pub(crate) fn running(&self, to: usize) -> usize {
        self.running[to].load(Ordering::Acquire)
    }

    /// Bytes that the queued copies to a device will take.
    pub(crate) fn waiting_bytes(&self, to: usize) -> u64 {
        let room = |job: &Job| match &job.kind {
            JobKind::Copy(plan) if job.to == to => plan.room(),
            _ => 0,
        };
        self.jobs.lock().iter().map(room).sum()
    }

    /// Removes the jobs of files that were removed, so that their physical files lose their last
    /// holder.
    pub(crate) fn forget_removed(&self) {
        self.jobs.lock().retain(|job| {
            let is_there = !job.entry.gone.load(Ordering::Acquire);
            if !is_there {
                free(&job.entry);
            }
            is_there
        });
    }

    /// Takes the first job whose device takes another writer. Moves come first, unless they have
    /// half of the threads already.
    pub(crate) fn take(&self, shared: &OpenTiers) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        let may_begin = |job: &Job| {
            let forced = job.reason == Reason::SpaceForced;
            self.running(job.to) < shared.threads_for(job.to, forced)
        };
        let is_move = |job: &Job| matches!(job.kind, JobKind::Move);
        let moving: usize = self.moving.iter().map(|moves| moves.load(Ordering::Acquire)).sum();
        let first = (moving < shared.policy.threads_max.div_ceil(2))
            .then(|| jobs.iter().position(|job| is_move(job) && may_begin(job)))
            .flatten();
        let at = first.or_else(|| jobs.iter().position(may_begin))?;
        let job = jobs.remove(at)?;
        self.begun(&job);
        Some(job)
    }

    /// Counts a job as running.
    pub(crate) fn begun(&self, job: &Job) {
        self.running[job.to].fetch_add(1, Ordering::AcqRel);
        if matches!(job.kind, JobKind::Move) {
            self.moving[job.to].fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Counts a job as ended, and releases its file.
    pub(crate) fn done(&self, job: &Job) {
        self.running[job.to].fetch_sub(1, Ordering::AcqRel);
        if matches!(job.kind, JobKind::Move) {
            self.moving[job.to].fetch_sub(1, Ordering::AcqRel);
        }
        free(&job.entry);
    }

    /// Whether a move to the device is queued or running.
    pub(crate) fn moves_to(&self, to: usize) -> bool {
        self.waiting(to).0 > 0 || self.moving[to].load(Ordering::Acquire) > 0
    }

    /// Whether any job is queued.
    pub(crate) fn has_jobs(&self) -> bool {
        !self.jobs.lock().is_empty()
    }

    /// Removes all queued jobs.
    pub(crate) fn clear(&self) {
        for job in self.jobs.lock().drain(..) {
            free(&job.entry);
        }
    }
}

impl OpenTiers {
    /// Whether a move to a device slower than the one at `index` is queued or running.
    pub(crate) fn moves_below(&self, index: usize) -> bool {
        (index + 1..self.devices.len()).any(|to| self.queue.moves_to(to))
    }

    /// Number of threads that may copy and move to a device. `forced` jobs may use all threads.
    pub(crate) fn threads_for(&self, to: usize, forced: bool) -> usize {
        if forced || self.policy.threads_fixed {
            return self.policy.threads_max;
        }
        let device = &self.devices[to];
        let limit = device.limit.load(Ordering::Relaxed);
        threads(limit, device.writers_of(Writer::Caller), self.policy.threads_max)
    }
}

/// Releases a file whose job ended.
fn free(entry: &Entry) {
    entry.copying.store(false, Ordering::Release);
    entry.busy.store(false, Ordering::Release);
}
