//! Moves and copies that wait, and how many of them run.
//!
//! A file has at most one job at a time ([`Entry::busy`]); a move takes the place of a copy that
//! has not begun. Thread-safe: a lock over what waits, counters for what runs. Cost: each call is
//! linear in what waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::entry::Entry;
use super::shared::Shared;
use crate::cache::hot_ranges::CopyPlan;
use crate::device::Writer;
use crate::history::Reason;
use crate::migrate::threads;
use crate::settings::DEVICES_MAX;

/// Something to copy or move.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) entry: Arc<Entry>,
    pub(crate) to: usize,
    pub(crate) kind: JobKind,
    pub(crate) reason: Reason,
}

#[derive(Debug)]
pub(crate) enum JobKind {
    Move,
    Copy(CopyPlan),
}

/// What waits and what runs.
#[derive(Debug, Default)]
pub(crate) struct JobQueue {
    jobs: Mutex<VecDeque<Job>>,
    /// Jobs that write to each device now.
    running: [AtomicUsize; DEVICES_MAX],
    /// Moves among them.
    moving: [AtomicUsize; DEVICES_MAX],
    pub(crate) failed: AtomicU64,
    pub(crate) errors: Mutex<Option<String>>,
}

impl JobQueue {
    /// Puts a job at the end, unless its file has one already; whether it was taken.
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

    /// Takes a file for a move: it has no job, or one that is a copy and has not begun, which is
    /// forgotten.
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

    /// Jobs that wait to write to a device: moves and copies.
    pub(crate) fn waiting(&self, to: usize) -> (usize, usize) {
        let jobs = self.jobs.lock();
        let mine = jobs.iter().filter(|job| job.to == to);
        mine.fold((0, 0), |(moves, copies), job| match job.kind {
            JobKind::Move => (moves + 1, copies),
            JobKind::Copy(_) => (moves, copies + 1),
        })
    }

    /// Jobs that write to a device now.
    pub(crate) fn running(&self, to: usize) -> usize {
        self.running[to].load(Ordering::Acquire)
    }

    /// Bytes that the copies take which wait to be made on a device.
    pub(crate) fn waiting_bytes(&self, to: usize) -> u64 {
        let room = |job: &Job| match &job.kind {
            JobKind::Copy(plan) if job.to == to => plan.room(),
            _ => 0,
        };
        self.jobs.lock().iter().map(room).sum()
    }

    /// Forgets jobs of files that were removed: what they hold goes with the last who holds it.
    pub(crate) fn forget_removed(&self) {
        self.jobs.lock().retain(|job| {
            let is_there = !job.entry.gone.load(Ordering::Acquire);
            if !is_there {
                free(&job.entry);
            }
            is_there
        });
    }

    /// The first job whose device takes another writer; a move, unless moves have half of the
    /// threads.
    pub(crate) fn take(&self, shared: &Shared) -> Option<Job> {
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

    pub(crate) fn begun(&self, job: &Job) {
        self.running[job.to].fetch_add(1, Ordering::AcqRel);
        if matches!(job.kind, JobKind::Move) {
            self.moving[job.to].fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn done(&self, job: &Job) {
        self.running[job.to].fetch_sub(1, Ordering::AcqRel);
        if matches!(job.kind, JobKind::Move) {
            self.moving[job.to].fetch_sub(1, Ordering::AcqRel);
        }
        free(&job.entry);
    }

    /// Whether a file waits to move to a device, or does.
    pub(crate) fn moves_to(&self, to: usize) -> bool {
        self.waiting(to).0 > 0 || self.moving[to].load(Ordering::Acquire) > 0
    }

    /// Whether anything waits.
    pub(crate) fn has_jobs(&self) -> bool {
        !self.jobs.lock().is_empty()
    }

    /// Forgets what waits.
    pub(crate) fn clear(&self) {
        for job in self.jobs.lock().drain(..) {
            free(&job.entry);
        }
    }
}

impl Shared {
    /// Whether a file moves, or is about to, to a device slower than this one.
    pub(crate) fn moves_below(&self, index: usize) -> bool {
        (index + 1..self.devices.len()).any(|to| self.queue.moves_to(to))
    }

    /// How many threads may copy and move to a device now.
    pub(crate) fn threads_for(&self, to: usize, forced: bool) -> usize {
        if forced || self.policy.threads_fixed {
            return self.policy.threads_max;
        }
        let device = &self.devices[to];
        let limit = device.limit.load(Ordering::Relaxed);
        threads(limit, device.writers_of(Writer::Caller), self.policy.threads_max)
    }
}

/// The file has no job any more.
fn free(entry: &Entry) {
    entry.copying.store(false, Ordering::Release);
    entry.busy.store(false, Ordering::Release);
}
