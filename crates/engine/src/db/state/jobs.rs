//! Sealed memtables and running jobs of an open database, and the threads that run the jobs.
//!
//! The database owns one [`Jobs`]. The scheduler picks under the jobs lock and marks what it picks
//! as running. The jobs run without locks and take the lock again to end.
//!
//! Invariants:
//! 1. A family's super version changes only under the jobs lock.
//! 2. A job is among the running jobs from its choice until its install, so that the scheduler
//!    chooses no job that collides with it.
//! 3. The lock is never held over I/O.
//!
//! Thread-safety: any thread may call any method. The jobs lock comes after the commit lock and the
//! manifest lock, and before the log lock.
//! Failure: a failed job begins a pause, in which nothing is picked.
//! Cost: one short lock for each pick and for each end of a job.

use std::collections::{BTreeMap, VecDeque};
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
use crate::db::state::memtable::{Immutable, Memtable, SealedInfo, ShardHome};
use crate::executor::{JobExecutor, JobKind};
use crate::job::FetchRoom;
use crate::job::JobOutput;
use crate::key::KeyRange;
use crate::live_file::{LiveFile, LiveValueFile};
use crate::lock_order::{Before, JobsLock, Order, OrderedGuard, OrderedMutex};
use crate::memtable::Shard;
use crate::version::rebalance::RunningFlush;
use crate::version::{Running, Version};

/// Largest number of jobs that run at the executor in addition to those of the workers. Each of
/// them costs a thread that waits.
const EXTRA_JOBS_MAX: usize = 64;
/// Longest pause after failures, in milliseconds.
const RETRY_PAUSE_MAX_MS: u64 = 1000;

/// Progress of one shard of a sealed memtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardState {
    /// The shard waits for a flush, or rests at a memory node.
    Pending,
    /// A job has the shard: a flush, a send to a memory node, or a rebuild.
    Running,
    /// The records of the shard are in installed files, or it has none.
    Installed,
}

/// A sealed memtable, and the progress of its shards to L0.
pub(crate) struct Sealed {
    pub(crate) info: Arc<SealedInfo>,
    /// The memtable, until its shards have filters and empty ones are marked installed. The shards
    /// then belong to `view` alone.
    pub(crate) unready: Option<Arc<Memtable>>,
    pub(crate) view: Arc<Immutable>,
    pub(crate) shards: Vec<ShardState>,
    /// Number of times that each shard may still be sent to a memory node.
    pub(crate) sends_left: Vec<u8>,
    /// Whether each shard was lost and is here again.
    pub(crate) is_rebuilt: Vec<bool>,
}

/// Number of times that a shard is sent to a memory node before it stays here.
const SENDS_MAX: u8 = 3;

impl Sealed {
    /// Tracks a memtable that was just sealed.
    pub(crate) fn new(memtable: Arc<Memtable>) -> Self {
        Self {
            info: SealedInfo::of(&memtable),
            view: Arc::new(Immutable::of(&memtable)),
            shards: vec![ShardState::Pending; memtable.shards.len()],
            sends_left: vec![SENDS_MAX; memtable.shards.len()],
            is_rebuilt: vec![false; memtable.shards.len()],
            unready: Some(memtable),
        }
    }

    /// Tracks a ready memtable of which an earlier open has sent some shards. Shards without a home
    /// are empty.
    pub(crate) fn inherited(info: Arc<SealedInfo>, homes: Vec<Option<ShardHome>>) -> Self {
        let state = |home: &Option<ShardHome>| match home {
            Some(_) => ShardState::Pending,
            None => ShardState::Installed,
        };
        let (shards, count) = (homes.iter().map(state).collect(), homes.len());
        Self {
            view: Arc::new(Immutable { map: Arc::clone(&info.map), homes }),
            info,
            shards,
            sends_left: vec![SENDS_MAX; count],
            is_rebuilt: vec![false; count],
            unready: None,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.unready.is_none()
    }

    /// Whether an edit has installed all of its shards.
    pub(crate) fn is_installed(&self) -> bool {
        self.shards.iter().all(|shard| *shard == ShardState::Installed)
    }

    /// Removes shards from the view, because readers find their records in tables from now on.
    /// Readers of an older super version find an away shard in its copy, so its node may forget the
    /// shard.
    pub(crate) fn take_from_view(&mut self, shards: std::ops::Range<usize>) {
        let mut view = Immutable::clone(&self.view);
        let apart = view.homes[shards.clone()].iter().flatten().filter_map(ShardHome::away);
        apart.filter(|away| away.has_copy()).for_each(|away| away.release());
        view.homes[shards].fill(None);
        self.view = Arc::new(view);
    }

    /// Bytes of the records of its shards that were rebuilt and are in no table.
    pub(crate) fn rebuilt_bytes(&self) -> u64 {
        let homes = self.view.homes.iter().zip(&self.is_rebuilt);
        let rebuilt =
            homes.filter(|(_, is_rebuilt)| **is_rebuilt).filter_map(|(home, _)| home.as_ref());
        rebuilt.map(ShardHome::data_bytes).sum()
    }

    /// Puts a lost shard, which was rebuilt, into memory. It is not sent again.
    pub(crate) fn set_rebuilt(&mut self, shard: usize, here: Arc<Shard>) {
        self.sends_left[shard] = 0;
        self.is_rebuilt[shard] = true;
        self.set_home(shard, ShardHome::Here(here));
    }

    /// Changes the place at which readers find the records of a shard.
    pub(crate) fn set_home(&mut self, shard: usize, home: ShardHome) {
        let mut view = Immutable::clone(&self.view);
        view.homes[shard] = Some(home);
        self.view = Arc::new(view);
    }
}

/// A shard that a running flush has written. Readers find it in its tables, although no edit names
/// them yet: see [`crate::db::background::written_shards`].
pub(crate) struct WrittenShard {
    /// Numbers of the memtables whose records the shard has.
    pub(crate) memtables: Vec<u64>,
    /// Position in the map of the memtables.
    pub(crate) shard: usize,
    /// The keys of the shard, and those at which its tables are cut.
    pub(crate) flush: RunningFlush,
    pub(crate) output: JobOutput,
    /// The tables of `output`.
    pub(crate) tables: Vec<Arc<LiveFile>>,
    /// The value files of `output`.
    pub(crate) value_files: Vec<Arc<LiveValueFile>>,
}

/// The sealed memtables of a family, oldest first.
#[derive(Default)]
pub(crate) struct FlushTracker {
    pub(crate) queue: VecDeque<Sealed>,
    /// Shards of the queue that are written and wait for the edit of their job.
    pub(crate) written: Vec<WrittenShard>,
    /// Keys that cut the next memtables into shards, besides the boundaries of the bucket map.
    pub(crate) shard_cuts: Vec<Vec<u8>>,
    /// Number below which memtables are to be flushed, wherever their shards are.
    due_below: u64,
}

impl FlushTracker {
    /// Puts memtables that an earlier open has left before all others.
    pub(crate) fn inherit(&mut self, oldest_first: Vec<Sealed>) {
        oldest_first.into_iter().rev().for_each(|sealed| self.queue.push_front(sealed));
    }

    /// Has all memtables with smaller numbers flushed, wherever their shards are.
    pub(crate) fn make_due(&mut self, below: u64) {
        self.due_below = self.due_below.max(below);
    }

    /// Number below which memtables are to be flushed, because a caller asked for it.
    pub(crate) fn due_below(&self) -> u64 {
        self.due_below
    }

    /// Has all sealed memtables flushed, wherever their shards are.
    pub(crate) fn make_all_due(&mut self) {
        if let Some(last) = self.queue.back() {
            self.make_due(last.info.id + 1);
        }
    }
}

/// Where a picked job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobSlot {
    /// One of the `max_background_jobs` threads of the database.
    Own,
    /// A place of the executor in addition to those threads ([`JobExecutor::room`]). One more
    /// thread waits for the job.
    Extra,
}

/// A running job, as scheduling sees it.
#[derive(Clone, Debug)]
pub(crate) struct RunningJob {
    id: u64,
    slot: JobSlot,
    pub(crate) kind: RunningKind,
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

/// The state that the jobs lock guards.
#[derive(Default)]
pub(crate) struct JobState {
    flushes: BTreeMap<CfId, FlushTracker>,
    running: Vec<RunningJob>,
    /// The load of each family.
    balances: BTreeMap<CfId, Balance>,
    /// Space bookkeeping of the families with separated values.
    spaces: BTreeMap<CfId, FamilySpace>,
    /// Turns of the families at the picks of compactions.
    turns: CompactionTurns,
    /// The oldest snapshot when the space of the families was examined last.
    oldest_snapshot: Option<SeqNo>,
    next_job_id: u64,
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
        self.flushes.get(&cf).into_iter().flat_map(|tracker| &tracker.queue)
    }

    /// Has all sealed memtables flushed, wherever their shards are.
    pub(crate) fn make_all_due(&mut self) {
        self.flushes.values_mut().for_each(FlushTracker::make_all_due);
    }

    /// Whether a sealed memtable waits for its flush, rests at a memory node or is being flushed.
    pub(crate) fn has_sealed(&self) -> bool {
        self.flushes.values().any(|tracker| !tracker.queue.is_empty())
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
        for shard in tracker.iter().flat_map(|tracker| &tracker.written) {
            shard.tables.iter().for_each(|table| table.mark_obsolete());
            shard.value_files.iter().for_each(|file| file.mark_obsolete());
        }
        self.balances.remove(&cf);
        self.spaces.remove(&cf);
        self.turns.forget(cf);
    }

    /// A number that no other job or claim has.
    pub(crate) fn new_job_id(&mut self) -> u64 {
        let id = self.next_job_id;
        self.next_job_id += 1;
        id
    }

    /// Adds a job to the running ones, and returns its number.
    pub(crate) fn start(&mut self, kind: RunningKind) -> u64 {
        let id = self.new_job_id();
        self.running.push(RunningJob { id, slot: JobSlot::Own, kind });
        id
    }

    /// Notes that a running job takes a place of the executor and none of the database.
    pub(crate) fn set_extra(&mut self, job_id: u64) {
        let jobs = self.running.iter_mut().filter(|job| job.id == job_id);
        jobs.for_each(|job| job.slot = JobSlot::Extra);
    }

    /// Number of running jobs of a kind in places of the executor.
    pub(crate) fn count_extra(&self, kind: JobKind) -> usize {
        self.extra().filter(|job| job.kind.job_kind() == Some(kind)).count()
    }

    /// The running jobs in places of the executor.
    fn extra(&self) -> impl Iterator<Item = &RunningJob> {
        self.running.iter().filter(|job| job.slot == JobSlot::Extra)
    }

    /// Takes a job off the running ones.
    pub(crate) fn end(&mut self, job_id: u64) {
        self.running.retain(|job| job.id != job_id);
    }

    pub(crate) fn running(&self) -> &[RunningJob] {
        &self.running
    }

    /// Number of running jobs that take one of the slots for background jobs. The reserved worker
    /// of garbage collection has a slot of its own.
    pub(crate) fn slots_taken(&self) -> usize {
        let is_reserved =
            |kind: &RunningKind| matches!(kind, RunningKind::Gc { by: GcWorker::Reserved, .. });
        let takes_slot = |job: &&RunningJob| job.slot == JobSlot::Own && !is_reserved(&job.kind);
        self.running.iter().filter(takes_slot).count()
    }

    /// Numbers of the value files that running garbage collections of a family read.
    pub(crate) fn gc_inputs(&self, of: CfId) -> impl Iterator<Item = u64> {
        let inputs = self.running.iter().filter_map(move |job| match &job.kind {
            RunningKind::Gc { cf, inputs, .. } if *cf == of => Some(inputs.iter().copied()),
            _ => None,
        });
        inputs.flatten()
    }

    /// Whether a job of the garbage collection of a family runs.
    pub(crate) fn is_collecting(&self, of: CfId) -> bool {
        let is_of = |job: &RunningJob| matches!(job.kind, RunningKind::Gc { cf, .. } if cf == of);
        self.running.iter().any(is_of)
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

    /// Whether a job of this kind runs.
    pub(crate) fn is_running(&self, is_kind: impl Fn(&RunningKind) -> bool) -> bool {
        self.running.iter().any(|job| is_kind(&job.kind))
    }

    /// Number of running jobs of a kind.
    pub(crate) fn count_running(&self, is_kind: impl Fn(&RunningKind) -> bool) -> usize {
        self.running.iter().filter(|job| is_kind(&job.kind)).count()
    }

    /// Number of running flushes.
    pub(crate) fn flushes_running(&self) -> usize {
        self.running.iter().filter(|job| job.kind.is_flush()).count()
    }

    /// Whether a compaction or a garbage collection runs, whose end gives back room on the disk.
    pub(crate) fn is_compacting(&self) -> bool {
        let gives_back = |kind: &RunningKind| {
            matches!(kind, RunningKind::Compaction(_) | RunningKind::Gc { .. })
        };
        self.running.iter().any(|job| gives_back(&job.kind))
    }

    /// Whether a job runs that is no compaction, or a memtable is being readied.
    pub(crate) fn is_changing_memtables(&self) -> bool {
        let is_other = |job: &RunningJob| {
            !matches!(job.kind, RunningKind::Compaction(_) | RunningKind::Gc { .. })
        };
        self.running.iter().any(is_other) || !self.readying.is_empty()
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
        self.is_running(is_of) || self.claims.iter().any(|(_, claim)| claim.cf == of)
    }

    /// Whether no job runs and no memtable is being readied.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.readying.is_empty()
    }

    /// The running compactions.
    pub(crate) fn compactions(&self) -> Vec<Running> {
        let kinds = self.running.iter().map(|job| &job.kind);
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
        let kinds = self.running.iter().map(|job| &job.kind);
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

    /// A family's running flushes, and the flushes of its written shards that no edit has
    /// installed.
    pub(crate) fn running_flushes(&self, of: CfId) -> Vec<RunningFlush> {
        let running = self.running.iter().filter_map(|job| match &job.kind {
            RunningKind::Flush { cf, flush } if *cf == of => Some(flush),
            _ => None,
        });
        let written = self.written_of(of).iter().map(|shard| &shard.flush);
        running.chain(written).cloned().collect()
    }

    /// The shards of a family that are written and not installed.
    pub(crate) fn written_of(&self, cf: CfId) -> &[WrittenShard] {
        self.flushes.get(&cf).map_or(&[], |tracker| &tracker.written)
    }

    /// The ranges of a family's running flushes.
    pub(crate) fn flush_ranges(&self, of: CfId) -> Vec<KeyRange> {
        self.running_flushes(of).into_iter().map(|flush| flush.range).collect()
    }

    /// The range of a running map change of the family.
    pub(crate) fn changing(&self, of: CfId) -> Option<&KeyRange> {
        self.running.iter().find_map(|job| match &job.kind {
            RunningKind::MapChange { cf, range } if *cf == of => Some(range),
            _ => None,
        })
    }

    /// The change of the version's bucket map that may be made next.
    pub(crate) fn wanted(&self, version: &Version) -> Option<&WantedChange> {
        let wanted = self.balances.get(&version.cf())?.wanted()?;
        (wanted.epoch == version.map().epoch() && self.changing(version.cf()).is_none())
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
            cuts.extend_from_slice(&tracker.shard_cuts);
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
            && state.extra().count() < EXTRA_JOBS_MAX
            && self.executor.room(kind) > state.count_extra(kind)
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
