//! Sealed memtables and running jobs of an open database, and the threads that run the jobs.
//!
//! `sealed` holds the memtables of one family and `running_jobs` the jobs. This module puts them,
//! and all other state of background work, under one lock.
//!
//! The database owns one [`Jobs`]. The scheduler picks under the jobs lock and marks what it picks
//! as running. The jobs run without locks and take the lock again to end.
//!
//! Invariants:
//! 1. A family's super version changes only under the jobs lock.
//! 2. The lock is never held over I/O.
//!
//! Thread-safety: any thread may call any method. The jobs lock comes after the commit lock and the
//! manifest lock, and before the log lock.
//! Failure: a failed job begins a pause, in which nothing is picked.
//! Cost: one short lock for each pick and for each end of a job.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use archipelago_base::{CfId, SeqNo};
use archipelago_env::limit::RateLimiter;
use parking_lot::Condvar;

use crate::db::state::balance::{Balance, WantedChange};
use crate::db::state::compaction_turns::CompactionTurns;
use crate::db::state::family_space::FamilySpace;
use crate::db::state::job_threads::JobThreads;
use crate::db::state::running_jobs::{RunningJobs, RunningKind};
use crate::db::state::sealed::{FlushTracker, Sealed, WrittenShard};
use crate::executor::{JobExecutor, JobKind};
use crate::job::FetchRoom;
use crate::key::KeyRange;
use crate::lock_order::{Before, JobsLock, Order, OrderedGuard, OrderedMutex};
use crate::version::rebalance::RunningFlush;
use crate::version::{Running, Version};

/// Largest number of jobs that run at the executor in addition to those of the workers. Each of
/// them costs a thread that waits.
const EXTRA_JOBS_MAX: usize = 64;
/// Longest pause after failures, in milliseconds.
const RETRY_PAUSE_MAX_MS: u64 = 1000;

/// The state that the jobs lock guards.
#[derive(Default)]
pub(crate) struct JobState {
    flushes: BTreeMap<CfId, FlushTracker>,
    running: RunningJobs,
    /// The load of each family.
    balances: BTreeMap<CfId, Balance>,
    /// Space bookkeeping of the families with separated values.
    spaces: BTreeMap<CfId, FamilySpace>,
    /// Turns of the families at the picks of compactions.
    turns: CompactionTurns,
    /// The oldest snapshot when the space of the families was examined last.
    oldest_snapshot: Option<SeqNo>,
    /// Background failures in a row, for the pause before the next attempt.
    failures_in_row: u32,
    /// Time at which the pause ends, in nanoseconds of the clock.
    retry_at_ns: u64,
    /// Time, in nanoseconds of the clock, before which background work does not leave the log,
    /// because a memory node did not give a shard.
    leave_log_at_ns: u64,
    /// Memtables that a worker is readying.
    readying: Vec<u64>,
    /// Inputs and ranges that compactions of a range wait for, each with its owner's number: no
    /// background job takes these files or writes into these ranges.
    claims: Vec<(u64, Running)>,
    /// Number of reasons to pick nothing new (leaving the log, a map change on request).
    paused: usize,
    /// Number of further flushes that are planned as if they ran in this process.
    plans_for_here: u32,
}

/// Number of flushes that are planned for this process after a flush that was planned for an
/// executor ran here.
const PLANS_FOR_HERE: u32 = 8;

impl JobState {
    /// The sealed memtables by family.
    pub(crate) fn flushes(&self) -> &BTreeMap<CfId, FlushTracker> {
        &self.flushes
    }

    pub(crate) fn flushes_mut(&mut self) -> &mut BTreeMap<CfId, FlushTracker> {
        &mut self.flushes
    }

    /// The sealed memtables of a family, oldest first.
    pub(crate) fn sealed_of(&self, cf: CfId) -> impl Iterator<Item = &Sealed> {
        self.flushes.get(&cf).into_iter().flat_map(FlushTracker::queue)
    }

    /// Has all sealed memtables flushed, wherever their shards are.
    pub(crate) fn make_all_due(&mut self) {
        self.flushes.values_mut().for_each(FlushTracker::make_all_due);
    }

    /// Whether a sealed memtable waits for its flush, rests at a memory node or is being flushed.
    pub(crate) fn has_sealed(&self) -> bool {
        self.flushes.values().any(|tracker| !tracker.queue().is_empty())
    }

    pub(crate) fn balances(&self) -> &BTreeMap<CfId, Balance> {
        &self.balances
    }

    /// The load of a family; empty at first.
    pub(crate) fn balance_mut(&mut self, cf: CfId) -> &mut Balance {
        self.balances.entry(cf).or_default()
    }

    /// The load of a family that was noted before.
    pub(crate) fn known_balance_mut(&mut self, cf: CfId) -> Option<&mut Balance> {
        self.balances.get_mut(&cf)
    }

    /// Forgets a family that was dropped.
    pub(crate) fn forget_family(&mut self, cf: CfId) {
        let tracker = self.flushes.remove(&cf);
        for shard in tracker.iter().flat_map(FlushTracker::written) {
            shard.tables.iter().for_each(|table| table.mark_obsolete());
            shard.value_files.iter().for_each(|file| file.mark_obsolete());
        }
        self.balances.remove(&cf);
        self.spaces.remove(&cf);
        self.turns.forget(cf);
    }

    /// The running jobs.
    pub(crate) fn running(&self) -> &RunningJobs {
        &self.running
    }

    /// A number that no other job or claim has.
    pub(crate) fn new_job_id(&mut self) -> u64 {
        self.running.new_id()
    }

    /// Adds a job to the running ones, and returns its number.
    pub(crate) fn start(&mut self, kind: RunningKind) -> u64 {
        self.running.start(kind)
    }

    /// Notes that a running job takes a place of the executor and none of the database.
    pub(crate) fn set_extra(&mut self, job_id: u64) {
        self.running.set_extra(job_id);
    }

    /// Takes a job off the running ones.
    pub(crate) fn end(&mut self, job_id: u64) {
        self.running.end(job_id);
    }

    /// Whether the family has had value files.
    pub(crate) fn has_space(&self, cf: CfId) -> bool {
        self.spaces.contains_key(&cf)
    }

    /// Whether any family has had value files.
    pub(crate) fn has_any_space(&self) -> bool {
        !self.spaces.is_empty()
    }

    /// Whether the oldest snapshot is another one than at the last call. Returns `false` while no
    /// family has had value files.
    pub(crate) fn has_new_oldest_snapshot(&mut self, oldest: Option<SeqNo>) -> bool {
        let before = std::mem::replace(&mut self.oldest_snapshot, oldest);
        !self.spaces.is_empty() && before != oldest
    }

    /// Whether writers of a family are close to its bound on space.
    pub(crate) fn is_any_pressed(&self) -> bool {
        self.spaces.values().any(FamilySpace::is_pressed)
    }

    /// Space bookkeeping of all families that have had value files.
    pub(crate) fn spaces(&self) -> impl Iterator<Item = &FamilySpace> {
        self.spaces.values()
    }

    /// The families whose limit on space has changed since the last call. The caller decides the
    /// throttle of their writers again, after it has released the lock.
    pub(crate) fn take_limit_changes(&mut self) -> Vec<CfId> {
        let spaces = self.spaces.iter_mut();
        spaces.filter_map(|(cf, space)| space.take_limit_change().then_some(*cf)).collect()
    }

    /// Turns of the families at the picks of compactions.
    pub(crate) fn turns(&self) -> &CompactionTurns {
        &self.turns
    }

    /// Notes the start of a compaction that was picked among those of all families.
    pub(crate) fn note_compaction(&mut self, cf: CfId) {
        let is_delayed = self.spaces.get(&cf).is_some_and(FamilySpace::is_pressed);
        self.turns.note(cf, is_delayed);
    }

    /// Space bookkeeping of a family that has had value files; else `None`.
    pub(crate) fn space(&self, cf: CfId) -> Option<&FamilySpace> {
        self.spaces.get(&cf)
    }

    /// Space bookkeeping of a family; empty at first.
    pub(crate) fn space_mut(&mut self, cf: CfId) -> &mut FamilySpace {
        self.spaces.entry(cf).or_default()
    }

    /// Whether a job runs that is no compaction, or a memtable is being readied.
    pub(crate) fn is_changing_memtables(&self) -> bool {
        let is_other = |kind: &RunningKind| {
            !matches!(kind, RunningKind::Compaction(_) | RunningKind::Gc { .. })
        };
        self.running.has(is_other) || !self.readying.is_empty()
    }

    /// Whether a job of a family runs, or a compaction of it that a user requested waits for its
    /// turn. A rebuild may concern any family.
    pub(crate) fn is_working_on(&self, of: CfId) -> bool {
        let is_of = |kind: &RunningKind| match kind {
            RunningKind::Flush { cf, .. }
            | RunningKind::Send { cf }
            | RunningKind::MapChange { cf, .. }
            | RunningKind::Gc { cf, .. } => *cf == of,
            RunningKind::Compaction(running) => running.cf == of,
            RunningKind::Ingestion(claims) => claims.iter().any(|claim| claim.cf == of),
            RunningKind::Rebuild => true,
        };
        self.running.has(is_of) || self.claims.iter().any(|(_, claim)| claim.cf == of)
    }

    /// Whether no job runs and no memtable is being readied.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.readying.is_empty()
    }

    /// A family's running flushes, and the flushes of its written shards that no edit has
    /// installed.
    pub(crate) fn running_flushes(&self, of: CfId) -> Vec<RunningFlush> {
        let written = self.written_of(of).iter().map(|shard| &shard.flush);
        self.running.flushes_of(of).chain(written).cloned().collect()
    }

    /// The shards of a family that are written and not installed.
    pub(crate) fn written_of(&self, cf: CfId) -> &[WrittenShard] {
        self.flushes.get(&cf).map_or(&[], FlushTracker::written)
    }

    /// The ranges of a family's running flushes.
    pub(crate) fn flush_ranges(&self, of: CfId) -> Vec<KeyRange> {
        self.running_flushes(of).into_iter().map(|flush| flush.range).collect()
    }

    /// The change of the version's bucket map that may be made next.
    pub(crate) fn wanted(&self, version: &Version) -> Option<&WantedChange> {
        let wanted = self.balances.get(&version.cf())?.wanted()?;
        (wanted.epoch == version.map().epoch() && self.running.changing(version.cf()).is_none())
            .then_some(wanted)
    }

    /// Keys at which L0 files are to be cut in addition to the boundaries of the map.
    pub(crate) fn planned_cuts(&self, version: &Version) -> Vec<Vec<u8>> {
        let wanted = self.balances.get(&version.cf()).and_then(Balance::wanted);
        let current = wanted.filter(|wanted| wanted.epoch == version.map().epoch());
        current.map_or_else(Vec::new, |wanted| wanted.change.kind.cuts().to_vec())
    }

    /// Keys that cut a new memtable of the version's family, in addition to the boundaries of the
    /// bucket map. They are the keys of a wanted split, and keys that make shards of a useful size
    /// for freeing memory.
    pub(crate) fn memtable_cuts(&self, version: &Version) -> Vec<Vec<u8>> {
        let mut cuts = self.planned_cuts(version);
        // The keys of a memtable with one shard determine the first map, so that memtable is not
        // cut.
        if version.map().epoch().0 > 0
            && let Some(tracker) = self.flushes.get(&version.cf())
        {
            cuts.extend_from_slice(tracker.shard_cuts());
        }
        cuts
    }

    /// Keys at which a job cuts the L0 files that it writes.
    pub(crate) fn l0_cuts(&self, version: &Version) -> Vec<Vec<u8>> {
        version.map().boundaries_and(&self.planned_cuts(version))
    }

    /// The inputs and ranges that compactions of a range wait for.
    pub(crate) fn claims(&self) -> impl ExactSizeIterator<Item = &Running> {
        self.claims.iter().map(|(_, claim)| claim)
    }

    /// Replaces the claim of `owner`.
    pub(crate) fn set_claim(&mut self, owner: u64, claim: Option<Running>) {
        self.claims.retain(|(id, _)| *id != owner);
        self.claims.extend(claim.map(|claim| (owner, claim)));
    }

    /// Marks a memtable as being readied; `false` if a worker does that already.
    pub(crate) fn start_readying(&mut self, memtable: u64) -> bool {
        let is_new = !self.readying.contains(&memtable);
        if is_new {
            self.readying.push(memtable);
        }
        is_new
    }

    /// Whether a worker readies this memtable.
    pub(crate) fn is_readying(&self, memtable: u64) -> bool {
        self.readying.contains(&memtable)
    }

    /// Ends what [`JobState::start_readying`] began.
    pub(crate) fn end_readying(&mut self, memtable: u64) {
        self.readying.retain(|id| *id != memtable);
    }

    /// Adds a reason to pick nothing new.
    pub(crate) fn pause(&mut self) {
        self.paused += 1;
    }

    /// Ends what [`JobState::pause`] began.
    pub(crate) fn unpause(&mut self) {
        self.paused -= 1;
    }

    /// Whether nothing new may be picked.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused > 0
    }

    /// Whether the last background job failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failures_in_row > 0
    }

    /// Whether the pause after a failure is not over at `now_ns`.
    pub(crate) fn is_waiting_to_retry(&self, now_ns: u64) -> bool {
        self.failures_in_row > 0 && now_ns < self.retry_at_ns
    }

    /// Pause after the failures so far; `None` if the last job did not fail.
    pub(crate) fn retry_pause(&self) -> Option<Duration> {
        let ms = 1u64 << self.failures_in_row.min(10);
        self.has_failed().then(|| Duration::from_millis(ms.min(RETRY_PAUSE_MAX_MS)))
    }

    /// Counts a failure at `now_ns` and begins the pause after it.
    pub(crate) fn note_failure(&mut self, now_ns: u64) {
        self.failures_in_row = self.failures_in_row.saturating_add(1);
        self.retry_at_ns = now_ns + self.retry_pause().unwrap_or_default().as_nanos() as u64;
    }

    /// Puts off until `at_ns` that background work leaves the log.
    pub(crate) fn put_off_leaving_log(&mut self, at_ns: u64) {
        self.leave_log_at_ns = at_ns;
    }

    /// Whether background work may leave the log at `now_ns`.
    pub(crate) fn may_leave_log(&self, now_ns: u64) -> bool {
        self.leave_log_at_ns <= now_ns
    }

    /// Plans the next flushes for this process, because a flush that was planned for an executor
    /// ran here.
    pub(crate) fn plan_for_here(&mut self) {
        self.plans_for_here = PLANS_FOR_HERE;
    }

    /// Whether the next flush is planned as if it ran here.
    pub(crate) fn is_planning_for_here(&self) -> bool {
        self.plans_for_here > 0
    }

    /// Notes that a flush was planned.
    pub(crate) fn note_planned(&mut self) {
        self.plans_for_here = self.plans_for_here.saturating_sub(1);
    }

    /// Forgets earlier failures.
    pub(crate) fn forget_failures(&mut self) {
        self.failures_in_row = 0;
    }
}

/// The jobs lock, held.
pub(crate) type JobsGuard<'a> = OrderedGuard<'a, JobState, JobsLock>;

/// The jobs of an open database.
pub(crate) struct Jobs {
    state: OrderedMutex<JobState, JobsLock>,
    /// Background workers wait here for work.
    work: Arc<Condvar>,
    /// Stalled writers, and callers that wait for background progress, wait here.
    progress: Condvar,
    /// Number of callers that wait until no background work is due.
    waiters: AtomicUsize,
    executor: Arc<dyn JobExecutor>,
    /// The threads that help with jobs.
    threads: JobThreads,
    limiter: Arc<RateLimiter>,
    fetch_room: Arc<FetchRoom>,
}

/// Counts a caller that waits until no background work is due. The drop ends the count.
pub(crate) struct IdleWaiter<'a>(&'a Jobs);

impl Drop for IdleWaiter<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Jobs {
    pub(crate) fn new(executor: Arc<dyn JobExecutor>, limiter: RateLimiter) -> Self {
        Self {
            state: OrderedMutex::new(JobState::default()),
            work: Arc::default(),
            progress: Condvar::new(),
            waiters: AtomicUsize::new(0),
            executor,
            threads: JobThreads::default(),
            limiter: Arc::new(limiter),
            fetch_room: Arc::default(),
        }
    }

    /// Takes the jobs lock.
    #[inline]
    pub(crate) fn lock<Held: Before<JobsLock>>(&self, order: Order<Held>) -> JobsGuard<'_> {
        self.state.lock(order)
    }

    /// The condition that background workers wait for.
    pub(crate) fn work(&self) -> &Arc<Condvar> {
        &self.work
    }

    /// Wakes the background workers.
    pub(crate) fn wake(&self) {
        self.work.notify_all();
    }

    /// Wakes all that wait for background progress.
    pub(crate) fn notify_progress(&self) {
        self.progress.notify_all();
    }

    /// Waits for work, at most `timeout`.
    pub(crate) fn wait_for_work(&self, state: &mut JobsGuard<'_>, timeout: Duration) {
        self.work.wait_for(state.raw(), timeout);
    }

    /// Waits for background progress, at most `timeout`.
    pub(crate) fn wait_for_progress(&self, state: &mut JobsGuard<'_>, timeout: Duration) {
        self.progress.wait_for(state.raw(), timeout);
    }

    /// Counts the caller as waiting for the end of all background work.
    pub(crate) fn wait_idle(&self) -> IdleWaiter<'_> {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        IdleWaiter(self)
    }

    /// Whether a caller waits for the end of all background work.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    /// Whether the executor takes one more job of a kind in addition to those of the workers.
    pub(crate) fn has_extra_room(&self, state: &JobState, kind: JobKind) -> bool {
        !self.executor.runs_here()
            && state.running.extra_len() < EXTRA_JOBS_MAX
            && self.executor.room(kind) > state.running.count_extra(kind)
    }

    pub(crate) fn executor(&self) -> &Arc<dyn JobExecutor> {
        &self.executor
    }

    pub(crate) fn threads(&self) -> &JobThreads {
        &self.threads
    }

    /// The bound on images that running flushes fetch.
    pub(crate) fn fetch_room(&self) -> &Arc<FetchRoom> {
        &self.fetch_room
    }

    pub(crate) fn limiter(&self) -> &Arc<RateLimiter> {
        &self.limiter
    }
}
