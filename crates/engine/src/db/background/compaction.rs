//! Compactions: from the pure pick to a spec and an install.
//!
//! [`crate::db::background::subcompaction`] runs a compaction between its spec and its install. The
//! module also has the functions that make the common parts of the specs of flushes and
//! compactions.
//!
//! Invariants:
//! 1. A compaction is among the running jobs from its pick until its end.
//! 2. A compaction is picked only if its outputs are expected to fit the disk. If none of the due
//!    compactions fits, a part of a due compaction is picked.
//! 3. A job drops only versions that no snapshot of its list sees, and keeps everything that is
//!    newer than the visible number of that list.
//!
//! Thread-safety: any number of compactions run at the same time.
//! Failure: the outputs of a compaction that fails are removed, and its inputs stay.
//! Cost: reads and writes its inputs. A trivial move costs one edit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::{Result, SeqNo};
use archipelago_env::{IoContext, IoPurpose};

use crate::border::contained;
use crate::compaction::job::{CompactionSpec, Input};
use crate::compaction::pick::{
    Pick, PickInput, Room, SpaceDemand, compaction_jobs, is_loading, pick_freeing, pick_of_all,
    pick_part, pick_recut, pick_tiny,
};
use crate::db::background::job_numbers::JobNumbers;
use crate::db::background::space;
use crate::db::background::subcompaction::{self, Compacted};
use crate::db::background::warm_outputs::{self, WarmPass};
use crate::db::background::warm_plan::WarmPlan;
use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::jobs::{JobState, Jobs};
use crate::db::state::observers::Observers;
use crate::db::state::pacing::Pacing;
use crate::db::state::running_jobs::{JobSlot, RunningKind};
use crate::db::state::storage::Storage;
use crate::db::write::disk_room::{self, Disk};
use crate::db::write::stalling;
use crate::disk_space::{SpaceState, SpaceUse};
use crate::event::Event;
use crate::executor::{self, JobKind, JobPlace};
use crate::file_meta::{FileMeta, sst_name};
use crate::gc::hidden::ShadowShare;
use crate::gc::invalid;
use crate::gc::space_plan::SpaceEvent;
use crate::job::below::{Below, range_of};
use crate::job::spec::{CurrentNumber, FileNumbers, Grandparent, OutputSpec, Retention, ValueSpec};
use crate::job::{Cancel, JobContext, JobOutput, KnownKeys, ShardSource};
use crate::lock_order::{Before, ManifestLock, Order};
use crate::manifest::{Change, VersionEdit};
use crate::options::{CfOptions, LEVELS};
use crate::sabotage::{Defect, has};
use crate::stats::{Ticker, Timer};
use crate::value_ref::{InvalidFileMeta, ValueRefs};
use crate::version::reclaimable::content_bytes;
use crate::version::{Hold, LAST_LEVEL, Running, Version};

/// Bytes of memory for a job's output: the block that is built, the write buffer, index and filter.
pub(crate) const JOB_OUTPUT_BYTES: u64 = 4 << 20;
/// Bytes of memory for the output of even the smallest job.
const JOB_OUTPUT_BYTES_MIN: u64 = 512 << 10;

/// Bytes of memory that `threads` threads take for the outputs of a job that reads `input_bytes` in
/// all.
pub(crate) fn output_bytes(threads: usize, input_bytes: u64) -> u64 {
    let threads = threads as u64;
    let least = JOB_OUTPUT_BYTES_MIN * threads;
    input_bytes.saturating_add(least).min(JOB_OUTPUT_BYTES * threads)
}

/// Assumed ratio of the raw bytes of values to the bytes that a job reads, if the job does not know
/// the raw bytes. If the ratio is higher, the last value file of the job becomes larger.
const RAW_SHARE_MAX: u64 = 64;
/// Assumed ratio of the raw bytes of separated values to their bytes in value files, for a job that
/// puts them back into tables. If the ratio is more than twice as high, the last table of the job
/// becomes larger.
const INLINED_SHARE: u64 = 4;
/// Bytes that a record takes in a table in addition to its key and its value. They are its trailer,
/// its lengths, and its shares of the index and of the filter.
const RECORD_OVERHEAD_BYTES: u64 = 32;

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
    pub(crate) fn new(db: &DbInner, state: &JobState) -> Self {
        let (snapshots, visible) = db.view.snapshots().list(|| db.view.visible());
        Self {
            snapshots,
            visible,
            now_ms: db.context.clock().unix_ms(),
            loading: is_load_running(&db.context, &db.pacing, &db.jobs),
            demands: space::demands(state),
            room: disk_room::room_for_compaction(&db.disk, &db.view, SpaceUse::Takes),
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
pub(crate) fn compactions_max(db: &DbInner) -> usize {
    let jobs = db.context.options().max_background_jobs;
    if db.jobs.is_awaited() {
        return jobs;
    }
    let last = db.pacing.last_seal(db.context.clock().now_ns());
    compaction_jobs(jobs, last.since_ns, last.interval_ns)
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
    db: &DbInner,
    state: &mut JobState,
    slot: JobSlot,
) -> Option<CompactionTask> {
    let mut running = state.running().compactions();
    let mut jobs_max = compactions_max(db);
    // Compactions in places of the executor have a limit of their own.
    jobs_max += match slot {
        JobSlot::Own => state.running().count_extra(JobKind::Compaction),
        JobSlot::Extra => db.jobs.executor().room(JobKind::Compaction),
    };
    if running.len() >= jobs_max {
        return None;
    }
    // Claims of users and ingestions block keys as jobs do, but take no slot of a job.
    let ingestions = state.running().ingestions();
    jobs_max += state.claims().len() + ingestions.len();
    running.extend(state.claims().cloned());
    running.extend(ingestions);
    let mut families = db.view.live_families();
    families.retain(|family| state.running().changing(family.id).is_none());
    let versions: Vec<Arc<Version>> =
        families.iter().map(|family| Arc::clone(&family.current.load().version)).collect();
    let all: Vec<&Version> = versions.iter().map(|version| &**version).collect();
    let first = *all.first()?;
    let basis = PickBasis::new(db, state);
    let common = basis.input(first, &running, jobs_max);
    let candidates = Candidates { versions: &all, common, room: basis.room };
    let found = pick_that_fits(&db.disk, &db.view, &candidates);
    disk_room::note_lacking(&db.disk, found.lacking_bytes);
    let (at, pick) = found.pick?;
    let (family, version) = (Arc::clone(&families[at]), Arc::clone(&versions[at]));
    let mut task = start_compaction(state, family, version, pick);
    let inlined = inlined_bytes(&task.family.options, &task.pick);
    task.room_bytes = disk_room::take_room(&db.disk, &db.view, &task.pick, inlined);
    Some(task)
}

/// Whether a compaction of the family could start now, if a job were free and running jobs had
/// given back their room on the disk. No job of the family may run.
pub(crate) fn can_compact(
    db: &DbInner,
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
    pick_that_fits(&db.disk, &db.view, &candidates).pick.is_some()
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

/// End of a picked compaction.
pub(crate) struct CompactionEnd {
    /// Numbers of the files that it wrote.
    pub(crate) written: Result<Vec<u64>>,
    /// Pass over these files. The caller starts it after it has dropped the task, because the task
    /// holds the files that the compaction replaced.
    pub(crate) warm_pass: Option<WarmPass>,
}

/// Runs a picked compaction and installs it. Afterwards it is not running any more.
pub(crate) fn run_compaction_task(db: &DbInner, task: &CompactionTask) -> CompactionEnd {
    let mut plan = None;
    let written = contained(&format!("a compaction of \"{}\"", task.family.name), || {
        db.context.fault_point("compaction.picked")?;
        executor::run_planned(db.jobs.executor(), JobKind::Compaction, |place| {
            compact_and_install(db, task, place, &mut plan)
        })
    });
    // A caller that waits for background work must not find the time between the two idle.
    let warm_pass = match (&written, plan) {
        (Ok(files), Some(plan)) => WarmPass::new(db, task, files, plan),
        _ => None,
    };
    end_compaction(db, task);
    CompactionEnd { written, warm_pass }
}

/// Takes a compaction that has ended off the running jobs.
pub(crate) fn end_compaction(db: &DbInner, task: &CompactionTask) {
    disk_room::return_room(&db.disk, task.room_bytes);
    let mut state = db.jobs.lock(Order::none());
    state.end(task.job_id);
    drop(state);
    stalling::recompute_stall(&db.context, &db.observers, &db.pacing, &db.jobs, &task.family);
    db.jobs.notify_progress();
}

/// Runs the compaction at `place` and installs it. Returns the numbers of its outputs. `plan` gets
/// the blocks that were cached just before the install.
fn compact_and_install(
    db: &DbInner,
    task: &CompactionTask,
    place: &JobPlace,
    plan: &mut Option<WarmPlan>,
) -> Result<Vec<u64>> {
    if let Pick::Drop { files } = &task.pick {
        db.context.fault_point("drop.before_install")?;
        install_compaction(db, task, None)?;
        db.observers.stats().add(Ticker::TablesDropped, files.len() as u64);
        let now_ms = db.context.clock().unix_ms();
        let expired = files.iter().map(|(_, file)| &file.content);
        let expired = expired.filter(|content| content.expired_quarters(now_ms) == 4);
        db.observers
            .stats()
            .add(Ticker::RecordsExpired, expired.map(|content| content.expiring).sum());
        return Ok(Vec::new());
    }
    if let Pick::TrivialMove { .. } = &task.pick {
        db.observers.stats().add(Ticker::TrivialMoves, 1);
        install_compaction(db, task, None)?;
        tell_levels(&db.storage, task);
        return Ok(Vec::new());
    }
    let expected =
        disk_room::room_for_compaction(&db.disk, &db.view, SpaceUse::Frees).expected(&task.pick);
    let inlined = inlined_bytes(&task.family.options, &task.pick);
    disk_room::ensure_room(db, expected.saturating_add(inlined), "a compaction")?;
    let refs = task.pick.inputs().map(|(_, file)| &file.refs);
    let values = value_plan(db, &task.family, refs);
    let numbers = JobNumbers::new(db, Order::none());
    let mut spec = compaction_spec(&numbers, task)?;
    spec.output.values.clone_from(&values.spec);
    spec.output.values.invalid = invalid_numbers(&numbers, &spec)?;
    let compacted = subcompaction::run_compaction(&numbers, task, &spec, place);
    disk_room::note_estimate(&db.disk, compacted.as_ref().err());
    let compacted = compacted?;
    if has(Defect::EntriesAheadOfTheirEdit) {
        install_entries_early(db, task, &compacted.output)?;
    }
    *plan = warm_outputs::plan(db, task);
    let installed = db
        .context
        .fault_point("compaction.before_install")
        .and_then(|()| install_compaction(db, task, Some(&compacted)));
    match &installed {
        Ok(()) => numbers.note_installed(),
        Err(_) => db.storage.discard(&compacted.output, Order::none()),
    }
    installed.map(|()| compacted.output.files.iter().map(|meta| meta.no).collect())
}

/// Bytes of separated values that a job puts back into tables, because the family does not separate
/// values any more.
fn inlined_bytes(options: &CfOptions, pick: &Pick) -> u64 {
    match options.value_separation_bytes {
        0 => pick.inputs().map(|(_, file)| file.refs.bytes()).sum(),
        _ => 0,
    }
}

/// Reserves numbers for the invalid files of a compaction. There are none unless the executor
/// prefers such files and an input has references.
pub(crate) fn invalid_numbers(
    numbers: &JobNumbers<'_>,
    spec: &CompactionSpec,
) -> Result<FileNumbers> {
    let has_refs = spec.inputs.iter().any(|input| !input.meta.refs.is_empty());
    if !has_refs || !numbers.db().jobs.executor().prefers_invalid_files() {
        return Ok(FileNumbers::default());
    }
    let raw_bytes = spec.inputs.iter().map(|input| input.meta.raw_bytes).sum();
    numbers.reserve(invalid::file_numbers_wanted(spec.input_records(), raw_bytes))
}

/// Tells the file system the new level of the files of a trivial move. The files may belong on
/// another device then.
fn tell_levels(storage: &Storage, CompactionTask { family, pick, .. }: &CompactionTask) {
    let (from, to) = (pick.from() as u8, pick.to() as u8);
    let purpose = IoPurpose::Compaction { from, to };
    let context = IoContext::sst(purpose, to).of_family(family.id.0);
    for (_, file) in pick.inputs() {
        storage.fs().reassign(&storage.path_of(&sst_name(file.file_no())), context);
    }
}

fn compaction_spec(numbers: &JobNumbers<'_>, task: &CompactionTask) -> Result<CompactionSpec> {
    let db = numbers.db();
    let CompactionTask { family, version, pick, .. } = task;
    let range = pick.range();
    let to = pick.to();
    let cuts = match to {
        0 => {
            let mut cuts = db.jobs.lock(Order::none()).l0_cuts(version);
            cuts.extend(disk_room::room_cuts(&db.disk, version));
            cuts.sort_unstable();
            cuts.dedup();
            cuts
        }
        // No file of the base level lies across a bucket boundary that is planned.
        to if to == version.base_level() => db.jobs.lock(Order::none()).l0_cuts(version),
        _ => Vec::new(),
    };
    let below = match pick {
        Pick::IntraL0 { .. } => Below::Everything,
        _ => Below::Runs(
            (to + 1..LEVELS)
                .map(|level| {
                    version.overlapping(level, &range).iter().map(|f| range_of(f)).collect()
                })
                .collect(),
        ),
    };
    let grandparents = if to > 0 && to < LAST_LEVEL {
        version
            .overlapping(to + 1, &range)
            .iter()
            .filter_map(|file| {
                Some(Grandparent { end: range_of(file).end?, bytes: file.size_bytes })
            })
            .collect()
    } else {
        Vec::new()
    };
    let inputs = pick
        .inputs()
        .map(|(level, file)| Input { level: level as u8, meta: file.meta().clone() })
        .collect();
    let written_bytes = uncompressed_bytes(&family.options, pick);
    let value_bytes = written_bytes;
    let plan = OutputPlan { level: to, cuts, grandparents, written_bytes, value_bytes };
    Ok(CompactionSpec {
        cf: family.id.0,
        from: pick.from() as u8,
        inputs,
        range,
        subrange: None,
        retention: retention(&db.context, &db.view, family, below),
        output: output_spec(numbers, family, plan)?,
        readahead_bytes: readahead_bytes(&db.context, pick.inputs().count()),
        direct_reads: db.context.options().direct_background_io,
    })
}

/// Upper estimate of the bytes that a compaction writes before compression, if it drops no record.
/// It includes the values that the inputs reference, which the job may put into tables.
fn uncompressed_bytes(options: &CfOptions, pick: &Pick) -> u64 {
    let share = if options.value_separation_bytes == 0 { INLINED_SHARE } else { 1 };
    let of_file = |file: &FileMeta| {
        let overhead = file.entries.saturating_mul(RECORD_OVERHEAD_BYTES);
        let referenced = file.refs.bytes().saturating_mul(share);
        // A table with range tombstones may be larger than its raw bytes.
        let inline = file.raw_bytes.saturating_add(overhead).max(file.size_bytes);
        inline.saturating_add(referenced)
    };
    pick.inputs().map(|(_, file)| of_file(file.meta())).fold(0, u64::saturating_add)
}

/// Readahead of each of `inputs` files, in bytes.
fn readahead_bytes(context: &Context, inputs: usize) -> u32 {
    let wanted = context.options().compaction_readahead_bytes;
    context.memory_shares().readahead_bytes(wanted, inputs) as u32
}

/// Largest number of bytes that all background jobs are charged for, with the default number of
/// inputs each.
pub(crate) fn job_bytes_max(context: &Context) -> u64 {
    let readahead = context.memory_shares().readahead_bytes_max();
    let jobs = context.options().max_background_jobs as u64;
    jobs.saturating_mul(readahead + JOB_OUTPUT_BYTES)
}

fn install_compaction(
    db: &DbInner,
    task: &CompactionTask,
    compacted: Option<&Compacted>,
) -> Result<()> {
    let CompactionTask { family, pick, .. } = task;
    let (cf, to) = (family.id, pick.to());
    let mut edit = VersionEdit::new();
    let mut inputs = Vec::new();
    for (level, file) in pick.inputs() {
        edit.remove_file(cf, level, file.file_no());
        inputs.push(file.no);
    }
    match compacted {
        Some(compacted) => {
            for meta in &compacted.output.files {
                edit.add_file(cf, to, meta.clone());
            }
            for meta in &compacted.output.value_files {
                edit.add_value_file(cf, meta.clone());
            }
        }
        None if matches!(pick, Pick::Drop { .. }) => {}
        None => {
            for (_, file) in pick.inputs() {
                edit.add_file(cf, to, file.meta().clone());
            }
        }
    }
    {
        let mut manifest = db.storage.lock_manifest(Order::none());
        family.check_alive()?;
        // A user's thread may reach this point after the close.
        db.context.check_open()?;
        if manifest.version(cf).is_some_and(|version| version.values().heirs().next().is_some()) {
            db.context.fault_point("inherit.before_prune")?;
        }
        if let (Some(compacted), Some(version)) = (compacted, manifest.version(cf))
            && !has(Defect::EntriesAheadOfTheirEdit)
        {
            add_invalid_files(&mut edit, version, &compacted.output);
        }
        let share = keep_space(&mut edit, &db.jobs.lock(manifest.order()), task, compacted);
        let built = manifest.apply(edit)?;
        let mut state = db.jobs.lock(manifest.order());
        db.view.republish_built(&mut state, built);
        if let Some(share) = share {
            state.space_mut(cf).set_shadow_share(share);
        }
        space::note_install(db, &mut state, family, Some(SpaceEvent::GarbageFound));
        if let Some(compacted) = compacted {
            measure_l0(db, &state, pick, &compacted.output);
        }
    }
    let moved = Compacted { output: JobOutput::default(), threads_ns: vec![0] };
    tell_compaction(&db.observers, task, inputs, compacted.unwrap_or(&moved));
    Ok(())
}

/// Adds the figures of the family's space to the edit. Returns the share of shadowing records after
/// the compaction; `None` if that is the same as before.
fn keep_space(
    edit: &mut VersionEdit,
    state: &JobState,
    task: &CompactionTask,
    compacted: Option<&Compacted>,
) -> Option<ShadowShare> {
    let CompactionTask { family, pick, .. } = task;
    let upper = pick.inputs().filter(|(level, _)| *level < LAST_LEVEL);
    let upper = upper.fold(0, |sum: u64, (_, file)| sum.saturating_add(file.entries));
    let space = state.space(family.id);
    let share = compacted
        .and_then(|compacted| space::share_after(space, pick.to(), upper, &compacted.output));
    space::keep_figures(edit, state, family.id, share.as_ref());
    share
}

/// Learns the speed of compactions of L0 from an installed pick. Other picks are ignored.
fn measure_l0(db: &DbInner, state: &JobState, pick: &Pick, output: &JobOutput) {
    let Pick::L0ToBase { l0, .. } = pick else { return };
    let bytes = l0.iter().map(|file| content_bytes(file)).fold(0, u64::saturating_add);
    let at_once =
        state.running().compactions().iter().filter(|job| job.from == 0 && job.to > 0).count();
    db.pacing.measure_compaction(bytes, at_once, Duration::from_nanos(output.duration_ns));
}

/// Adds the invalid files of `output` to the edit that makes their entries true. The files of one
/// edit have the same install number.
fn add_invalid_files(edit: &mut VersionEdit, version: &Version, output: &JobOutput) {
    let install_no = version.values().installs() + 1;
    for meta in &output.invalid_files {
        let meta = Box::new(InvalidFileMeta { install_no, ..meta.clone() });
        edit.push(Change::AddInvalidFile { cf: version.cf(), meta });
    }
}

/// Makes entries visible before they are true. Only [`Defect::EntriesAheadOfTheirEdit`] does so.
#[cold]
fn install_entries_early(db: &DbInner, task: &CompactionTask, output: &JobOutput) -> Result<()> {
    let mut edit = VersionEdit::new();
    add_invalid_files(&mut edit, &task.version, output);
    let mut manifest = db.storage.lock_manifest(Order::none());
    let built = manifest.apply(edit)?;
    db.view.republish_built(&mut db.jobs.lock(manifest.order()), built);
    Ok(())
}

/// Counts an installed compaction and sends an event.
fn tell_compaction(
    observers: &Observers,
    task: &CompactionTask,
    inputs: Vec<u64>,
    compacted: &Compacted,
) {
    let Compacted { output, threads_ns } = compacted;
    observers.stats().add(Ticker::Compactions, 1);
    if threads_ns.len() > 1 {
        observers.stats().add(Ticker::Subcompactions, threads_ns.len() as u64);
    }
    observers.stats().add(Ticker::CompactionBytesRead, output.bytes_read);
    observers.stats().add(Ticker::CompactionBytesWritten, output.bytes_written);
    count_job(observers, output);
    observers.stats().record(Timer::Compaction, output.duration_ns);
    let bucket = match &task.pick {
        Pick::L0ToBase { bucket, .. } | Pick::IntraL0 { bucket, .. } => Some(*bucket),
        _ => None,
    };
    observers.tell(&Event::CompactionInstalled {
        cf: task.family.id,
        from: task.pick.from(),
        to: task.pick.to(),
        bucket,
        inputs,
        outputs: output.files.iter().map(|meta| meta.no).collect(),
        bytes_read: output.bytes_read,
        bytes_written: output.bytes_written,
        duration_ns: output.duration_ns,
        threads_ns: threads_ns.clone(),
    });
}

pub(crate) fn count_job(observers: &Observers, output: &JobOutput) {
    observers.stats().add(Ticker::RecordsDropped, output.counts.dropped.total());
    observers.stats().add(Ticker::RecordsExpired, output.counts.dropped.expired);
    if output.counts.merge_errors > 0 {
        observers.stats().add(Ticker::MergeErrors, output.counts.merge_errors);
        let error = output.counts.merge_error.clone().unwrap_or_default();
        tracing::warn!(error, "a merge operator refused operands; they were kept");
    }
}

/// Rules for the versions and tombstones that a job may drop now.
pub(crate) fn retention(
    context: &Context,
    view: &ReadView,
    family: &Family,
    below: Below,
) -> Retention {
    let (snapshots, visible) = view.snapshots().list(|| view.visible());
    Retention {
        visible_seq: visible.0,
        snapshots: snapshots.into_iter().map(|seq| seq.0).collect(),
        below,
        now_ms: context.clock().unix_ms(),
        merge_operator: family.options.merge_operator.clone(),
        compaction_filter: family.options.compaction_filter.clone(),
    }
}

/// The part of a job's spec about separated values, and the holds that keep it true while the job
/// runs.
pub(crate) struct ValuePlan {
    pub(crate) spec: ValueSpec,
    /// Holds the value files of the spec.
    _version: Option<Arc<Version>>,
    /// Keeps the inheritance of the numbers that the outputs may name, until they are installed.
    _hold: Hold,
}

/// Plan for the separated values of a job over tables with the references `refs`. The current
/// numbers are held first, and then compared with the newest version. So an edit that replaces one
/// of the files afterwards sees the hold ([`crate::version::HeldNumbers`]).
pub(crate) fn value_plan<'a>(
    db: &DbInner,
    family: &Family,
    refs: impl Iterator<Item = &'a ValueRefs>,
) -> ValuePlan {
    let named: BTreeSet<u64> =
        refs.flat_map(|refs| refs.by_file().iter().map(|at| at.no)).collect();
    let current_in = |version: &Version| -> Vec<CurrentNumber> {
        let at = |&named: &u64| CurrentNumber { named, current: version.values().current(named) };
        named.iter().map(at).collect()
    };
    loop {
        let version = Arc::clone(&family.current.load().version);
        let current = current_in(&version);
        let numbers = current.iter().flat_map(|at| [at.named, at.current]);
        let hold = db.storage.held_numbers().hold(numbers);
        if current_in(&family.current.load().version) != current {
            continue;
        }
        let numbers: BTreeSet<u64> = current.iter().map(|at| at.current).collect();
        let files = numbers.iter().filter_map(|&no| version.values().get(no));
        let spec = ValueSpec {
            separation_bytes: family.options.value_separation_bytes,
            value_file_bytes: family.options.value_file_bytes,
            current,
            files: files.map(|file| file.meta().clone()).collect(),
            invalid: FileNumbers::default(),
        };
        let version = (!has(Defect::UnheldValueFiles)).then_some(version);
        return ValuePlan { spec, _version: version, _hold: hold };
    }
}

/// Number of file numbers that a job reserves for its value files, if it handles `raw_bytes` of
/// keys and values.
fn value_numbers_wanted(options: &CfOptions, raw_bytes: u64) -> u64 {
    match options.value_separation_bytes {
        0 => 0,
        _ => (raw_bytes / options.value_file_bytes).saturating_mul(2).saturating_add(16),
    }
}

/// Level and expected size of the outputs of a job, and the keys at which they are cut.
pub(crate) struct OutputPlan {
    pub(crate) level: usize,
    pub(crate) cuts: Vec<Vec<u8>>,
    pub(crate) grandparents: Vec<Grandparent>,
    /// Upper estimate of the bytes that the job writes into tables, before compression.
    pub(crate) written_bytes: u64,
    /// Upper estimate of the bytes that the job writes into value files, before compression.
    pub(crate) value_bytes: u64,
}

impl OutputPlan {
    /// Outputs in L0, which are cut at `cuts`, of a job that reads `input_bytes`.
    pub(crate) fn l0(cuts: Vec<Vec<u8>>, input_bytes: u64) -> Self {
        // Value files hold values as users wrote them, and inputs may be compressed to a fraction.
        let value_bytes = input_bytes.saturating_mul(RAW_SHARE_MAX);
        let (written_bytes, grandparents) = (input_bytes, Vec::new());
        Self { level: 0, cuts, grandparents, written_bytes, value_bytes }
    }
}

/// Specification of the outputs of a job, with file numbers of its own.
pub(crate) fn output_spec<Held: Before<ManifestLock>>(
    numbers: &JobNumbers<'_, Held>,
    family: &Family,
    plan: OutputPlan,
) -> Result<OutputSpec> {
    let db = numbers.db();
    let OutputPlan { level, cuts, grandparents, written_bytes, value_bytes } = plan;
    let options = &family.options;
    let on_disk = db.disk.table_bytes(options.target_file_bytes);
    // Tables of L0 are cut by size only on small disks.
    let is_whole = level == 0 && on_disk == options.target_file_bytes;
    let table_bytes = match level {
        0 => on_disk,
        _ => db.context.memory_shares().table_bytes(on_disk),
    };
    let tables =
        OutputSpec::file_numbers_wanted(written_bytes, table_bytes, cuts.len(), &grandparents);
    let count = tables.saturating_add(value_numbers_wanted(options, value_bytes));
    let target_file_bytes = if is_whole { u64::MAX } else { table_bytes };
    Ok(OutputSpec {
        dir: db.storage.dir().to_owned(),
        cf_name: family.name.clone(),
        level: level as u8,
        file_numbers: numbers.reserve(count)?,
        unique_seed: db.context.unique_seed(),
        target_file_bytes,
        cuts,
        grandparents,
        block_bytes: options.block_bytes as u32,
        compression: if level == LAST_LEVEL {
            options.compression_last
        } else {
            options.compression
        },
        bloom_bits_per_key: options.bloom_bits_per_key,
        created_unix_ms: db.context.clock().unix_ms(),
        direct_io: db.context.options().direct_background_io,
        values: ValueSpec {
            separation_bytes: options.value_separation_bytes,
            value_file_bytes: options.value_file_bytes,
            ..ValueSpec::default()
        },
    })
}

/// Specification of the heir of a garbage collection.
pub(crate) fn heir_spec(numbers: &JobNumbers<'_>, family: &Family) -> Result<OutputSpec> {
    let spec = output_spec(numbers, family, OutputPlan::l0(Vec::new(), 0))?;
    Ok(OutputSpec { file_numbers: FileNumbers { count: 1, ..spec.file_numbers }, ..spec })
}

/// Services for a job that runs in this process.
pub(crate) fn job_context<'a>(
    context: &Context,
    storage: &Storage,
    jobs: &Jobs,
    view: &ReadView,
    shards: &'a dyn ShardSource,
) -> JobContext<'a> {
    JobContext {
        fs: Arc::clone(storage.fs()),
        registry: context.registry().clone(),
        clock: Arc::clone(context.clock()),
        limiter: Some(Arc::clone(jobs.limiter())),
        value_keys: KnownKeys::default(),
        cancel: Cancel::under(context.closing()),
        shards,
        cache: Arc::clone(view.cache()),
        warm: false,
        budget: Arc::clone(context.budget()),
        more_file_numbers: None,
        progress: Arc::default(),
    }
}
