//! Picks of compactions: the pure pick, applied to the state of the database and the room on the
//! disk.
//!
//! Invariants:
//! 1. A compaction is among the running jobs from its pick until its end.
//! 2. A compaction is picked only if its outputs are expected to fit the disk. If none of the due
//!    compactions fits, a part of a due compaction is picked.
//!
//! Thread-safety: the caller holds the jobs lock, or passes the state that it guards.
//! Failure: none. Without a fitting compaction nothing is picked.
//! Cost: a pick examines the files of all families. On a nearly full disk it does so several times.

use std::sync::Arc;

use archipelago_base::SeqNo;

use crate::compaction::pick::{
    Pick, PickInput, Room, SpaceDemand, compaction_jobs, is_loading, pick_freeing, pick_of_all,
    pick_part, pick_recut, pick_tiny,
};
use crate::db::background::owners::PickOwners;
use crate::db::background::space;
use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::jobs::{JobState, Jobs};
use crate::db::state::pacing::Pacing;
use crate::db::state::running_jobs::{JobSlot, RunningKind};
use crate::db::write::disk_room::{self, Disk};
use crate::disk_space::{SpaceState, SpaceUse};
use crate::executor::JobKind;
use crate::job::Cancel;
use crate::options::CfOptions;
use crate::version::{Running, Version};

/// Largest number of compactions that a pick examines to find one whose outputs fit the disk.
const PICKS_MAX: usize = 8;

/// State of the database on which the picks of all families are based.
pub(crate) struct PickBasis {
    snapshots: Vec<SeqNo>,
    visible: SeqNo,
    now_ms: u64,
    loading: bool,
    demands: Vec<SpaceDemand>,
    /// Room on the disk for the outputs of one more compaction.
    room: Room,
}

impl PickBasis {
    pub(crate) fn new(owners: PickOwners<'_>, state: &JobState) -> Self {
        let (snapshots, visible) = owners.view.snapshots().list(|| owners.view.visible());
        Self {
            snapshots,
            visible,
            now_ms: owners.context.clock().unix_ms(),
            loading: is_load_running(owners.context, owners.pacing, owners.jobs),
            demands: space::demands(state),
            room: disk_room::room_for_compaction(owners.disk, owners.view, SpaceUse::Takes),
        }
    }

    fn input<'a>(
        &'a self,
        version: &'a Version,
        running: &'a [Running],
        jobs_max: usize,
    ) -> PickInput<'a> {
        PickInput {
            version,
            running,
            jobs_max,
            snapshots: &self.snapshots,
            visible: self.visible,
            now_ms: self.now_ms,
            loading: self.loading,
            space: &self.demands,
        }
    }
}

/// Families from which a compaction is picked.
struct Candidates<'a> {
    versions: &'a [&'a Version],
    /// Input of the pick for all families. Its version is replaced by that of each family.
    common: PickInput<'a>,
    /// Room on the disk for the outputs of the pick.
    room: Room,
}

impl Candidates<'_> {
    /// Each family alone, with its index.
    fn each(&self) -> impl Iterator<Item = (usize, PickInput<'_>)> {
        let families = self.versions.iter().enumerate();
        families.map(|(at, version)| (at, PickInput { version, ..self.common }))
    }
}

/// A compaction that was picked. It is among the running jobs.
pub(crate) struct CompactionTask {
    pub(crate) job_id: u64,
    pub(crate) family: Arc<Family>,
    /// Version from which the pick was made. It holds the files.
    pub(crate) version: Arc<Version>,
    pub(crate) pick: Pick,
    /// Whether a user asked for it (`compact_range`).
    pub(crate) by_hand: bool,
    /// Cancels the job.
    pub(crate) cancel: Cancel,
    /// Estimated length of its outputs, counted while it runs.
    pub(crate) room_bytes: u64,
}

/// Notes a compaction as running.
pub(crate) fn start_compaction(
    state: &mut JobState,
    family: Arc<Family>,
    version: Arc<Version>,
    pick: Pick,
) -> CompactionTask {
    let job_id = state.start(RunningKind::Compaction(pick.running(family.id)));
    let cancel = Cancel::default();
    CompactionTask { job_id, family, version, pick, by_hand: false, cancel, room_bytes: 0 }
}

/// Number of compactions that may run in parallel now: see [`compaction_jobs`]. While a caller
/// waits for the end of background work, all jobs may be compactions.
pub(crate) fn compactions_max(context: &Context, pacing: &Pacing, jobs: &Jobs) -> usize {
    let jobs_max = context.options().max_background_jobs;
    if jobs.is_awaited() {
        return jobs_max;
    }
    let last = pacing.last_seal(context.clock().now_ns());
    compaction_jobs(jobs_max, last.since_ns, last.interval_ns)
}

/// Whether memtables are sealed one after another, so that a compaction may wait for more input. It
/// is `false` while a caller waits for background work, and in manual mode, because time stands
/// still there.
pub(crate) fn is_load_running(context: &Context, pacing: &Pacing, jobs: &Jobs) -> bool {
    let last = pacing.last_seal(context.clock().now_ns());
    !context.is_manual() && !jobs.is_awaited() && is_loading(last.since_ns, last.interval_ns)
}

/// The most urgent compaction of all families, noted as running.
pub(crate) fn next_compaction(
    owners: PickOwners<'_>,
    state: &mut JobState,
    slot: JobSlot,
) -> Option<CompactionTask> {
    let mut running = state.running().compactions();
    let mut jobs_max = compactions_max(owners.context, owners.pacing, owners.jobs);
    // Compactions in places of the executor have a limit of their own.
    jobs_max += match slot {
        JobSlot::Own => state.running().count_extra(JobKind::Compaction),
        JobSlot::Extra => owners.jobs.executor().room(JobKind::Compaction),
    };
    if running.len() >= jobs_max {
        return None;
    }
    // Claims of users and ingestions block keys as jobs do, but take no slot of a job.
    let ingestions = state.running().ingestions();
    jobs_max += state.claims().len() + ingestions.len();
    running.extend(state.claims().cloned());
    running.extend(ingestions);
    let mut families = owners.view.live_families();
    families.retain(|family| state.running().changing(family.id).is_none());
    let versions: Vec<Arc<Version>> =
        families.iter().map(|family| Arc::clone(&family.current.load().version)).collect();
    let all: Vec<&Version> = versions.iter().map(|version| &**version).collect();
    let first = *all.first()?;
    let basis = PickBasis::new(owners, state);
    let common = basis.input(first, &running, jobs_max);
    let candidates = Candidates { versions: &all, common, room: basis.room };
    let found = pick_that_fits(owners.disk, owners.view, &candidates);
    disk_room::note_lacking(owners.disk, found.lacking_bytes);
    let (at, pick) = found.pick?;
    let (family, version) = (Arc::clone(&families[at]), Arc::clone(&versions[at]));
    let mut task = start_compaction(state, family, version, pick);
    let inlined = inlined_bytes(&task.family.options, &task.pick);
    task.room_bytes = disk_room::take_room(owners.disk, owners.view, &task.pick, inlined);
    Some(task)
}

/// Whether a compaction of the family could start now, if a job were free and running jobs had
/// given back their room on the disk. No job of the family may run.
pub(crate) fn can_compact(
    disk: &Disk,
    view: &ReadView,
    state: &JobState,
    basis: &PickBasis,
    family: &Family,
) -> bool {
    let version = Arc::clone(&family.current.load().version);
    let versions = [&*version];
    let common = basis.input(&version, &[], 1);
    if state.running().is_compacting() && pick_of_all(&versions, &common).is_some() {
        return true;
    }
    let candidates = Candidates { versions: &versions, common, room: basis.room };
    pick_that_fits(disk, view, &candidates).pick.is_some()
}

/// Result of [`pick_that_fits`].
struct FittingPick {
    /// The pick, with the index of its family.
    pick: Option<(usize, Pick)>,
    /// Bytes by which the smallest due compaction exceeds the room on the disk, if nothing else can
    /// run; else 0.
    lacking_bytes: u64,
}

/// The most urgent compaction whose outputs fit the room on the disk. If none of the due
/// compactions fits, a part of one is picked. On a nearly full disk, a compaction that is not due
/// but frees space may be picked as well.
fn pick_that_fits(disk: &Disk, view: &ReadView, from: &Candidates<'_>) -> FittingPick {
    let room = from.room;
    let mut lacking = u64::MAX;
    let mut running = from.common.running.to_vec();
    for _ in 0..PICKS_MAX {
        // A pick that does not fit counts as running, so that the next pick is another one.
        let jobs_max = from.common.jobs_max + running.len() - from.common.running.len();
        let common = PickInput { running: &running, jobs_max, ..from.common };
        let Some((at, pick)) = pick_of_all(from.versions, &common) else { break };
        let inlined = inlined_bytes(from.versions[at].options(), &pick);
        let needed = room.expected(&pick).saturating_add(inlined);
        // A merge within L0 frees little, and joins parts that could be compacted alone.
        let is_detour = lacking < u64::MAX && matches!(pick, Pick::IntraL0 { .. });
        if needed <= room.bytes && !is_detour {
            return FittingPick { pick: Some((at, pick)), lacking_bytes: 0 };
        }
        if !is_detour {
            lacking = lacking.min(needed - room.bytes);
        }
        running.push(pick.running(from.versions[at].cf()));
    }
    let is_short = lacking < u64::MAX;
    if !is_short && disk.state() == SpaceState::Roomy {
        return FittingPick { pick: None, lacking_bytes: 0 };
    }
    let of_each = |pick: &dyn Fn(&PickInput<'_>) -> Option<Pick>| {
        from.each().find_map(|(at, input)| Some((at, pick(&input)?)))
    };
    let with_reserve = disk_room::room_for_compaction(disk, view, SpaceUse::Frees);
    let part = |input: &PickInput<'_>| pick_part(input, &room);
    let freeing = |input: &PickInput<'_>| pick_freeing(input, &with_reserve);
    let recut = |input: &PickInput<'_>| {
        pick_recut(input, &disk_room::room_cuts(disk, input.version), &with_reserve)
    };
    let due = if is_short { of_each(&part) } else { None };
    let tiny = |input: &PickInput<'_>| pick_tiny(input, &with_reserve);
    let found =
        due.or_else(|| of_each(&freeing)).or_else(|| of_each(&recut)).or_else(|| of_each(&tiny));
    let is_stuck = is_short && found.is_none() && from.common.running.is_empty();
    FittingPick { pick: found, lacking_bytes: if is_stuck { lacking } else { 0 } }
}

/// Bytes of separated values that a job puts back into tables, because the family does not separate
/// values any more.
pub(crate) fn inlined_bytes(options: &CfOptions, pick: &Pick) -> u64 {
    match options.value_separation_bytes {
        0 => pick.inputs().map(|(_, file)| file.refs.bytes()).sum(),
        _ => 0,
    }
}
