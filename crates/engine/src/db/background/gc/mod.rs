//! Garbage collection of value files: from the pure pick to a spec and an install.
//!
//! The owner of the database reads the keys of the inputs and looks them up in the tables of one
//! version. It gives the executor a spec with one bit for each record. If the executor prefers
//! invalid files, it gets these files instead of the bits. The install replaces the inputs by the
//! heir in one edit; no table is touched (`docs/design/separation.md`).
//!
//! Invariants:
//! 1. A job holds the version on which it bases validity, and so its inputs, until its end.
//! 2. Two running jobs share no input.
//! 3. At the install, an input that has left the version meanwhile is left out of the edit. If none
//!    remains, the heir is discarded. No file is removed twice.
//! 4. For each input, the valid records are exactly those that the tables of the version reference.
//!    References only become fewer afterwards, so the set stays a superset at every later time. If
//!    the number of references is the number of the input's records, all of them are valid, because
//!    no two tables of a version hold one record. A wrong number could keep garbage, but never drop
//!    a valid record.
//!
//! Thread-safety: any number of jobs may run. One thread is reserved for them, so that they never
//! wait behind compactions; idle workers run further ones while too much garbage is exposed.
//! Failure: the heir of a job that fails is removed, and its inputs stay. A job whose heir the
//! database refused runs in this process before it counts as failed. The inputs are left out for a
//! time that doubles with every failure. If the look-up contradicts the references twice on
//! one version, the database takes no more writes.
//! Cost: see [`crate::gc::lookup`] and [`crate::gc::job`]. An input without garbage takes no
//! look-up. A pick is linear in the value files of a family. If it finds nothing, a second one
//! ignores the room on the disk. If that finds nothing either, the version is not examined again
//! before the pause of a failed file ends.

pub(crate) mod invalid;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use archipelago_base::budget::MemoryClass;
use archipelago_base::{CfId, Error, ErrorKind, FileNo, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose, OpenOptions};

use crate::border::{Border, contained};
use crate::db::background::job_numbers::JobNumbers;
use crate::db::background::owners::{InstallOwners, PickOwners};
use crate::db::background::parallel_job::{self, Work};
use crate::db::background::{job_specs, space};
use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::family_space::{ExposedGarbage, FamilySpace, SpaceView};
use crate::db::state::job_threads::JobPriority;
use crate::db::state::jobs::JobState;
use crate::db::state::observers::Observers;
use crate::db::state::running_jobs::{GcWorker, RunningKind};
use crate::db::state::storage::Storage;
use crate::db::write::disk_room::Disk;
use crate::db::write::{disk_room, stalling};
use crate::disk_space::SpaceUse;
use crate::event::Event;
use crate::executor::{self, JobKind, JobPlace};
use crate::file_meta::value_file_name;
use crate::gc::BY_KEY;
use crate::gc::job::{GcInput, GcSpec, Validity};
use crate::gc::lookup::{self, LookupInput, valid_records};
use crate::gc::pick::{
    GcPick, GcReason, GcSnapshot, ValueFileState, is_due_with_room, key_memory_bytes, pick_gc,
};
use crate::gc::space_plan::{SpaceEvent, exposed_bytes_in_pool};
use crate::gc::valid_bits::ValidBits;
use crate::gc::windows::ReadaheadLimits;
use crate::job::{Cancel, JobContext, JobOutput, KnownKeys, NoShards};
use crate::live_file::LiveValueFile;
use crate::lock_order::Order;
use crate::manifest::{Change, VersionEdit};
use crate::sst::TableReadOptions;
use crate::stats::{Ticker, Timer};
use crate::value::{KeyList, ValueTable};
use crate::value_ref::ValueFileMeta;
use crate::version::Version;

/// A garbage collection that was picked. It is among the running jobs.
pub(crate) struct GcTask {
    pub(crate) job_id: u64,
    pub(crate) family: Arc<Family>,
    /// Version on which validity is based. It holds the inputs.
    version: Arc<Version>,
    inputs: Vec<Arc<LiveValueFile>>,
    reason: GcReason,
    /// Time of the pick, in nanoseconds of the clock.
    started_ns: u64,
    /// Estimated length of the heir, counted while the job runs.
    room_bytes: u64,
}

impl GcTask {
    /// Number among the running jobs.
    pub(crate) fn job_id(&self) -> u64 {
        self.job_id
    }

    /// Description of the job for messages.
    pub(crate) fn name(&self) -> String {
        format!(
            "garbage collection of {} value files of column family \"{}\" ({})",
            self.inputs.len(),
            self.family.name,
            self.reason.name()
        )
    }

    /// Bytes of the valid records, which the heir will have.
    fn valid_bytes(&self) -> u64 {
        let values = self.version.values();
        self.inputs.iter().map(|input| values.refs(input.no).bytes).sum()
    }
}

/// One plan of a garbage collection, and the executor that runs it.
struct GcAttempt<'a> {
    db: &'a DbInner,
    task: &'a GcTask,
    place: &'a JobPlace,
}

/// Urgency of a pick. The fields are compared in their order.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
struct PickRank {
    /// Whether writers of the family are delayed for space.
    is_pressed: bool,
    is_for_space: bool,
    /// Exposed garbage over the live bytes.
    exposed_share: f64,
}

/// The most urgent garbage collection of all families, noted as running.
pub(crate) fn next_gc(
    owners: PickOwners<'_>,
    state: &mut JobState,
    worker: GcWorker,
) -> Option<GcTask> {
    // A test may keep the collector from taking a job. The function runs under the jobs lock.
    owners.context.fault_point("gc.pick").ok()?;
    let mut best: Option<(PickRank, Arc<Family>, Arc<Version>, GcPick)> = None;
    for family in owners.view.live_families() {
        let version = Arc::clone(&family.current.load().version);
        if version.values().is_empty() {
            continue;
        }
        let Some(pick) = pick_in(owners, state, &family, &version, None) else { continue };
        let is_for_space = pick.reason == GcReason::Space;
        let values = version.values();
        let rank = PickRank {
            is_pressed: state.space_mut(family.id).is_pressed(),
            is_for_space,
            exposed_share: values.exposed_bytes() as f64 / values.referenced_bytes().max(1) as f64,
        };
        // The disk may have been measured since the pick. Another family may still have room.
        if !has_room(owners.disk, owners.view, &pick, rank.is_pressed) {
            continue;
        }
        let is_taken = worker == GcWorker::Reserved || is_for_space;
        if is_taken && best.as_ref().is_none_or(|(most, ..)| rank > *most) {
            best = Some((rank, family, version, pick));
        }
    }
    let (_, family, version, pick) = best?;
    let inputs: Vec<_> =
        pick.inputs.iter().filter_map(|&no| version.values().get(no).cloned()).collect();
    let (reason, room_bytes) = (pick.reason, pick.heir_bytes);
    disk_room::add_running(owners.disk, room_bytes);
    let numbers = inputs.iter().map(|input| input.no).collect();
    let kind = RunningKind::Gc { cf: family.id, inputs: numbers, by: worker };
    let job_id = state.start(kind);
    let started_ns = owners.context.clock().now_ns();
    Some(GcTask { job_id, family, version, inputs, reason, started_ns, room_bytes })
}

/// Room on the disk for heirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeirRoom {
    /// Bytes for the heir of a pick for space.
    space_bytes: u64,
    /// Bytes for the heir of small files or of runs.
    merge_bytes: u64,
}

impl HeirRoom {
    const UNBOUNDED: Self = Self { space_bytes: u64::MAX, merge_bytes: u64::MAX };

    /// The present room. `is_pressed` says whether writers of the family are delayed for space.
    pub(crate) fn now(disk: &Disk, view: &ReadView, is_pressed: bool) -> Self {
        Self {
            space_bytes: heir_room_bytes(disk, view, space_use(is_pressed)),
            merge_bytes: heir_room_bytes(disk, view, SpaceUse::Takes),
        }
    }
}

/// The garbage collection of the family to start now. Without `room`, the present room counts.
fn pick_in(
    owners: PickOwners<'_>,
    state: &mut JobState,
    family: &Family,
    version: &Arc<Version>,
    room: Option<HeirRoom>,
) -> Option<GcPick> {
    let now_ns = owners.context.clock().now_ns();
    let running: HashSet<u64> = state.running().gc_inputs(family.id).collect();
    let space = state.space_mut(family.id);
    let planned_bytes = exposed_bytes_max(space);
    let live_bytes = space.view().map_or(0, |view| view.usage.live_bytes());
    let exposed_bytes_max =
        exposed_bytes_in_pool(planned_bytes, live_bytes, owners.pacing.writer_room());
    let exposed = match version.values().exposed_bytes() > exposed_bytes_max {
        true => ExposedGarbage::OverLimit,
        false => ExposedGarbage::WithinLimit,
    };
    if running.is_empty() && space.is_at_rest(version, now_ns, exposed) {
        return None;
    }
    let is_pressed = space.is_pressed();
    let room = room.unwrap_or_else(|| HeirRoom::now(owners.disk, owners.view, is_pressed));
    let values = version.values();
    space.failures_mut().retain(|no| values.get(no).is_some());
    let left_out = space.failures().left_out(now_ns);
    let suspects = space.failures().known();
    let files: Vec<ValueFileState<'_>> = values
        .files()
        .map(|(file, refs)| ValueFileState {
            no: file.no,
            smallest: &file.smallest,
            largest: &file.largest,
            value_bytes: file.value_bytes(),
            key_bytes: file.keys_bytes(),
            records: file.records,
            referenced_bytes: refs.bytes,
        })
        .collect();
    let snapshot = GcSnapshot {
        files: &files,
        running: &running,
        left_out: &left_out,
        suspects: &suspects,
        value_file_bytes: family.options.value_file_bytes,
        space_room_bytes: room.space_bytes,
        merge_room_bytes: room.merge_bytes,
        exposed_bytes_max,
        refs_bytes: values.reference_entries().saturating_mul(REFERENCE_ENTRY_BYTES),
    };
    let pick = pick_gc(&snapshot);
    // The disk may get room without a new version. A pool may lose room without one.
    if pick.is_none() && running.is_empty() && !is_due_with_room(&snapshot) {
        let until_ns = space.failures().next_end_ns(now_ns);
        space.note_rest(version, until_ns.unwrap_or(u64::MAX), exposed);
    }
    pick
}

/// Whether garbage of the family could be collected now, if a worker were free and running jobs had
/// given back their room on the disk. `room` is the room without that.
pub(crate) fn can_collect(
    owners: PickOwners<'_>,
    state: &mut JobState,
    room: HeirRoom,
    family: &Family,
) -> bool {
    if owners.context.fault_point("gc.pick").is_err() {
        return false;
    }
    let version = Arc::clone(&family.current.load().version);
    if version.values().is_empty() {
        return false;
    }
    let room = if state.running().is_compacting() { HeirRoom::UNBOUNDED } else { room };
    pick_in(owners, state, family, &version, Some(room)).is_some()
}

/// Whether the heir of a pick has room on the disk. `is_pressed` says whether writers of the family
/// are delayed for space.
fn has_room(disk: &Disk, view: &ReadView, pick: &GcPick, is_pressed: bool) -> bool {
    let is_awaited = is_pressed && pick.reason == GcReason::Space;
    pick.heir_bytes <= heir_room_bytes(disk, view, space_use(is_awaited))
}

/// A job that frees space while writers wait for it may use the reserve of the disk.
fn space_use(is_awaited: bool) -> SpaceUse {
    if is_awaited { SpaceUse::Frees } else { SpaceUse::Takes }
}

/// Room on the disk for an heir.
fn heir_room_bytes(disk: &Disk, view: &ReadView, space_use: SpaceUse) -> u64 {
    disk_room::room_for_compaction(disk, view, space_use).bytes
}

/// Bytes that the references of one table to one value file take in the manifest, about.
const REFERENCE_ENTRY_BYTES: u64 = 11;

/// Bytes of exposed garbage that the plan of the family allows: any while there is no bound, and
/// none while writers are delayed for space.
fn exposed_bytes_max(space: &FamilySpace) -> u64 {
    match space.view() {
        Some(SpaceView { bound: Some((plan, margin)), usage, .. }) => match margin.is_pressed() {
            true => 0,
            false => plan.exposed_bytes_max(usage.live_bytes()),
        },
        _ => u64::MAX,
    }
}

/// Whether a garbage collection is due, without taking it.
pub(crate) fn is_gc_due(owners: PickOwners<'_>, state: &mut JobState) -> bool {
    match next_gc(owners, state, GcWorker::Reserved) {
        Some(task) => {
            state.end(task.job_id);
            disk_room::return_room(owners.disk, task.room_bytes);
            state.space_mut(task.family.id).end_rest();
            true
        }
        None => false,
    }
}

/// Runs a picked garbage collection and installs it. Afterwards it is not running any more.
pub(crate) fn run_gc_task(db: &DbInner, task: &GcTask) -> Result<()> {
    db.observers.tell(&Event::GcStarted {
        cf: task.family.id,
        reason: task.reason.name(),
        inputs: task.inputs.iter().map(|input| input.no).collect(),
    });
    let result = contained(&task.name(), || {
        db.context.fault_point("gc.picked")?;
        executor::run_planned(db.jobs.executor(), JobKind::Gc, |place| {
            collect_and_install(&GcAttempt { db, task, place })
        })
    });
    let now_ns = db.context.clock().now_ns();
    disk_room::return_room(&db.disk, task.room_bytes);
    let mut state = db.jobs.lock(Order::none());
    state.end(task.job_id);
    if task.family.check_alive().is_ok() {
        let space = state.space_mut(task.family.id);
        space.end_rest();
        if result.is_err() {
            for input in &task.inputs {
                space.failures_mut().note_failure(input.no, now_ns);
            }
        }
    }
    drop(state);
    stalling::recompute_stall(db.stall_owners(), &task.family);
    db.jobs.notify_progress();
    result
}

fn collect_and_install(attempt: &GcAttempt<'_>) -> Result<()> {
    let GcAttempt { db, task, .. } = *attempt;
    disk_room::ensure_room(db, task.valid_bytes(), "a garbage collection of value files")?;
    if db.jobs.executor().prefers_invalid_files() {
        match collect_by_invalid_files(attempt) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                tracing::info!(%error, "the garbage collection runs again with a look-up");
            }
            ended => return ended,
        }
    }
    collect_by_look_up(attempt)
}

/// Lets the executor determine validity by the invalid files of the version. Fails with `NotFound`
/// if they do not list all garbage.
fn collect_by_invalid_files(attempt: &GcAttempt<'_>) -> Result<()> {
    let GcAttempt { db, task, .. } = *attempt;
    let values = task.version.values();
    let valid = task.inputs.iter().map(|input| Validity::Invalid {
        ancestors: values.ancestors(input.no).collect(),
        records: values.refs(input.no).records,
    });
    let numbers = JobNumbers::new(db.job_owners(), Order::none());
    let mut spec = gc_spec(&numbers, task, valid.collect())?;
    let is_wanted = |no: &u64| spec.inputs.iter().any(|input| input.meta.no == values.current(*no));
    let files = values.invalid_files().filter(|file| file.names.iter().any(is_wanted));
    spec.invalid = files.map(|file| file.meta().clone()).collect();
    let collected = run_spec(attempt, &spec, Vec::new())?;
    install_or_discard(db.install_owners(), &numbers, task, &spec, collected)
}

fn collect_by_look_up(attempt: &GcAttempt<'_>) -> Result<()> {
    let GcAttempt { db, task, .. } = *attempt;
    let mut output = JobOutput::default();
    let expected = task.inputs.iter().fold(0, |sum: u64, input| {
        let bytes = key_memory_bytes(input.records, &input.smallest, &input.largest);
        sum.saturating_add(bytes)
    });
    let mut held = db.context.budget().hold(MemoryClass::Job, expected);
    let keys = read_keys(&db.context, &db.storage, &db.view, task, &mut output)?;
    let list_bytes: u64 = keys.iter().map(|list| list.memory_bytes()).sum();
    let order_bytes: u64 = keys.iter().map(|list| list.len() as u64 * lookup::RECORD_BYTES).sum();
    held.resize(list_bytes + order_bytes);
    let started_ns = db.context.clock().now_ns();
    let valid = look_up(&db.view, task, &keys)?;
    let lookup_ns = db.context.clock().now_ns().saturating_sub(started_ns);
    held.resize(list_bytes);
    let numbers = JobNumbers::new(db.job_owners(), Order::none());
    let spec = gc_spec(&numbers, task, valid.into_iter().map(Validity::Bits).collect())?;
    let mut collected = run_spec(attempt, &spec, keys)?;
    collected.gc.lookup_ns = lookup_ns;
    collected.gc.key_reads += output.gc.key_reads;
    collected.gc.key_bytes_read += output.gc.key_bytes_read;
    collected.gc.key_read_ns += output.gc.key_read_ns;
    collected.bytes_read += output.gc.key_bytes_read;
    install_or_discard(db.install_owners(), &numbers, task, &spec, collected)
}

fn install_or_discard(
    owners: InstallOwners<'_>,
    numbers: &JobNumbers<'_>,
    task: &GcTask,
    spec: &GcSpec,
    mut collected: JobOutput,
) -> Result<()> {
    collected.gc.records_checked = spec.inputs.iter().map(|input| input.meta.records).sum();
    let installed = owners
        .context
        .fault_point("gc.after_write")
        .and_then(|()| owners.context.fault_point("gc.before_install"))
        .and_then(|()| install_gc(owners, task, spec, &collected));
    match installed {
        Ok(Installed::Heir) => numbers.note_installed(),
        _ => owners.storage.discard(&collected, Order::none()),
    }
    installed.map(|_| ())
}

fn io(task: &GcTask) -> IoContext {
    IoContext::new(FileClass::ValueSst, IoPurpose::Gc).of_family(task.family.id.0)
}

/// Reads the keys of every input, with one range read for each input.
fn read_keys(
    context: &Context,
    storage: &Storage,
    view: &ReadView,
    task: &GcTask,
    output: &mut JobOutput,
) -> Result<Vec<Arc<KeyList>>> {
    let started_ns = context.clock().now_ns();
    let direct = context.options().direct_background_io;
    let mut lists = Vec::with_capacity(task.inputs.len());
    for input in &task.inputs {
        let path = storage.path_of(&value_file_name(input.file_no()));
        let file = storage.fs().open(&path, io(task), OpenOptions { direct })?;
        let (cache, budget) = (view.cache(), context.budget());
        let table = ValueTable::open(file, &path, input.meta(), cache, budget)?;
        lists.push(Arc::new(KeyList::read(table.keys(io(task))?)?));
        output.gc.key_reads += 1;
        output.gc.key_bytes_read += input.keys_bytes();
        context.check_open()?;
    }
    output.gc.key_read_ns = context.clock().now_ns().saturating_sub(started_ns);
    Ok(lists)
}

/// Cause of an error: the look-up of a garbage collection contradicted the references of the tables
/// twice on one version.
#[derive(Debug)]
pub(crate) struct ReferenceMismatch;

impl fmt::Display for ReferenceMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the look-up contradicts the references of the tables")
    }
}

impl std::error::Error for ReferenceMismatch {}

/// The valid records of the inputs. An input whose records are all referenced needs no look-up.
fn look_up(view: &ReadView, task: &GcTask, keys: &[Arc<KeyList>]) -> Result<Vec<ValidBits>> {
    let values = task.version.values();
    // Figures that do not agree lead to a look-up, which reports them.
    let is_whole = |at: usize| {
        let (input, refs) = (&task.inputs[at], values.refs(task.inputs[at].no));
        !BY_KEY
            && refs.records == input.records
            && refs.bytes == input.value_bytes()
            && keys[at].len() as u64 == input.records
    };
    let searched: Vec<usize> = (0..task.inputs.len()).filter(|&at| !is_whole(at)).collect();
    let mut valid: Vec<ValidBits> = keys.iter().map(|keys| ValidBits::all_of(keys.len())).collect();
    for (&at, found) in searched.iter().zip(look_up_some(view, task, keys, &searched)?) {
        valid[at] = found;
    }
    Ok(valid)
}

/// The valid records of the inputs at the positions `searched`, by a look-up in the tables. If the
/// result contradicts the references of the version, the look-up is made once more. A second
/// contradiction is `Corrupt`.
fn look_up_some(
    view: &ReadView,
    task: &GcTask,
    keys: &[Arc<KeyList>],
    searched: &[usize],
) -> Result<Vec<ValidBits>> {
    let files: Vec<&Arc<LiveValueFile>> = searched.iter().map(|&at| &task.inputs[at]).collect();
    let inputs: Vec<LookupInput<'_>> = searched
        .iter()
        .map(|&at| LookupInput { no: task.inputs[at].no, keys: &keys[at] })
        .collect();
    let context = IoContext { class: FileClass::Sst, ..io(task) };
    let options = TableReadOptions { context, ..TableReadOptions::foreground() };
    let values = task.version.values();
    let mut contradiction = String::new();
    for _ in 0..2 {
        let valid = valid_records(&task.version, view.tables(), &inputs, &options)?;
        let wrong = files
            .iter()
            .zip(&valid)
            .find(|(input, valid)| valid.valid_records() != values.refs(input.no).records);
        let Some((input, bits)) = wrong else { return Ok(valid) };
        contradiction = format!(
            "{}: {} records are valid by a look-up, but the tables reference {}",
            value_file_name(input.file_no()),
            bits.valid_records(),
            values.refs(input.no).records
        );
        tracing::warn!(contradiction, "garbage collection looks again");
    }
    Err(Error::with_source(ErrorKind::Corrupt, contradiction, ReferenceMismatch))
}

fn gc_spec(numbers: &JobNumbers<'_>, task: &GcTask, valid: Vec<Validity>) -> Result<GcSpec> {
    let inputs = task.inputs.iter().zip(valid);
    Ok(GcSpec {
        cf: task.family.id.0,
        inputs: inputs.map(|(file, valid)| GcInput { meta: file.meta().clone(), valid }).collect(),
        invalid: Vec::new(),
        output: job_specs::heir_spec(numbers, &task.family)?,
        basis: task.version.values().installs(),
        readahead: ReadaheadLimits::PAPER,
        direct_reads: numbers.owners().context.options().direct_background_io,
    })
}

/// Runs the job on the executor, at the priority of compactions.
fn run_spec(attempt: &GcAttempt<'_>, spec: &GcSpec, keys: Vec<Arc<KeyList>>) -> Result<JobOutput> {
    let GcAttempt { db, task, place } = *attempt;
    let cancel = Cancel::under(db.context.closing());
    let context = JobContext {
        cancel: cancel.clone(),
        value_keys: KnownKeys::of(keys),
        ..job_specs::job_context(db.job_owners(), &NoShards)
    };
    let executor_place = place.clone();
    let executor_name = place.executor().name();
    let border = Border::new("job executor", executor_name, Some(&task.family.name));
    let (owned, valid_bytes) = (spec.clone(), task.valid_bytes());
    let work: Work = Box::new(move || {
        let output = border.call(|| executor_place.executor().gc(&owned, &context))??;
        let checked = executor::check_gc(&output, &owned, valid_bytes);
        executor_place.accept(output, checked, &owned.output, &context)
    });
    let is_urgent = task.reason == GcReason::Space || db.jobs.is_awaited();
    let priority = if is_urgent { JobPriority::Normal } else { JobPriority::Low };
    let works = vec![(0, work)];
    let ended = {
        let run = parallel_job::ParallelRun { kind: priority, cancel, threads: 1 };
        parallel_job::run_parallel(&db.context, &db.jobs, run, works, || Ok(()), |_, _| Ok(()))
    };
    for refused in place.take_removable() {
        db.storage.discard(&refused, Order::none());
    }
    let (outputs, failed) = ended.into_parts();
    match (failed, outputs.into_iter().next()) {
        (None, Some(output)) => Ok(output),
        (Some(error), _) => Err(error),
        (None, None) => Err(Error::internal("a garbage collection ended without a result")),
    }
}

/// Outcome of an install for the heir.
enum Installed {
    /// The heir replaced inputs.
    Heir,
    /// All inputs had left the version.
    Nothing,
}

fn install_gc(
    owners: InstallOwners<'_>,
    task: &GcTask,
    spec: &GcSpec,
    output: &JobOutput,
) -> Result<Installed> {
    let (family, cf) = (&task.family, task.family.id);
    let [heir] = output.value_files.as_slice() else {
        return Err(Error::internal("a garbage collection has no heir"));
    };
    let replaced = {
        let mut manifest = owners.storage.lock_manifest(Order::none());
        family.check_alive()?;
        owners.context.check_open()?;
        let Some(version) = manifest.version(cf).map(Arc::clone) else {
            return Err(Error::internal("a living family has no version"));
        };
        let replaced = still_live(&version, spec)?;
        if replaced.is_empty() {
            return Ok(Installed::Nothing);
        }
        let mut edit = heir_edit(cf, heir, &replaced);
        inherit_of_removed(&mut edit, &version, spec, &replaced);
        let kept = manifest.space_figures(cf);
        space::keep_figures(&mut edit, &owners.jobs.lock(manifest.order()), cf, kept, None);
        let built = manifest.apply(edit)?;
        let mut state = owners.jobs.lock(manifest.order());
        owners.view.republish_built(&mut state, built);
        if task.reason == GcReason::Space {
            let ns = owners.context.clock().now_ns().saturating_sub(task.started_ns);
            state.space_mut(cf).note_freed(bytes_freed(task, output), ns);
        }
        let event = Some(SpaceEvent::GarbageFound);
        space::note_install(owners.space_owners(), &mut state, family, event);
        replaced
    };
    tell_gc(owners.observers, task, output, &replaced);
    Ok(Installed::Heir)
}

/// The inputs that `version` still holds. Fails with `Internal` if an input has more references
/// than when it was examined, because references only become fewer.
fn still_live(version: &Version, spec: &GcSpec) -> Result<Vec<FileNo>> {
    let mut live = Vec::new();
    for input in &spec.inputs {
        if version.values().get(input.meta.no).is_none() {
            continue;
        }
        let (now, then) =
            (version.values().refs(input.meta.no).records, input.valid.valid_records());
        if now > then {
            return Err(Error::internal(format!(
                "value file {} has {now} references, and had {then} when it was examined",
                input.meta.no
            )));
        }
        live.push(input.meta.file_no());
    }
    Ok(live)
}

fn heir_edit(cf: CfId, heir: &ValueFileMeta, replaced: &[FileNo]) -> VersionEdit {
    let mut edit = VersionEdit::new();
    edit.add_value_file(cf, heir.clone());
    for &no in replaced {
        edit.push(Change::RemoveValueFile { cf, no });
        edit.inherit(cf, no, heir.file_no());
    }
    edit
}

/// Lets the heir also inherit from inputs that have left `version` meanwhile, if invalid files name
/// them. Their records lie in the heir, and only these entries say that they are garbage.
fn inherit_of_removed(
    edit: &mut VersionEdit,
    version: &Version,
    spec: &GcSpec,
    replaced: &[FileNo],
) {
    let values = version.values();
    let named: HashSet<u64> =
        values.invalid_files().flat_map(|file| file.names.iter().copied()).collect();
    let has_entries = |no: u64| {
        named.contains(&no) || values.ancestors(no).any(|ancestor| named.contains(&ancestor))
    };
    let removed = spec.inputs.iter().map(|input| input.meta.file_no());
    for no in removed.filter(|no| !replaced.contains(no) && has_entries(no.0)) {
        edit.inherit(version.cf(), no, spec.heir());
    }
}

/// Bytes of values in the inputs that the heir does not hold.
fn bytes_freed(task: &GcTask, output: &JobOutput) -> u64 {
    let read: u64 = task.inputs.iter().map(|input| input.value_bytes()).sum();
    let written = output.value_files.iter().map(ValueFileMeta::value_bytes).sum();
    read.saturating_sub(written)
}

/// Counts an installed garbage collection and sends an event.
fn tell_gc(observers: &Observers, task: &GcTask, output: &JobOutput, replaced: &[FileNo]) {
    let (stats, figures) = (observers.stats(), &output.gc);
    for (ticker, value) in [
        (Ticker::GcJobs, 1),
        (Ticker::GcFilesCollected, replaced.len() as u64),
        (Ticker::GcBytesRead, output.bytes_read),
        (Ticker::GcBytesWritten, output.bytes_written),
        (Ticker::GcRecordsChecked, figures.records_checked),
        (Ticker::GcRecordsCopied, figures.records_copied),
        (Ticker::GcKeyReads, figures.key_reads),
        (Ticker::GcKeyBytesRead, figures.key_bytes_read),
        (Ticker::GcKeyReadNs, figures.key_read_ns),
        (Ticker::GcLookupNs, figures.lookup_ns),
        (Ticker::GcValueReads, figures.value_reads),
        (Ticker::GcValueRanges, figures.value_ranges),
        (Ticker::GcValueBytesRead, figures.value_bytes_read),
        (Ticker::GcValueReadNs, figures.value_read_ns),
        (Ticker::GcWriteNs, figures.write_ns),
        (Ticker::GcFinishNs, figures.finish_ns),
    ] {
        stats.add(ticker, value);
    }
    stats.record(Timer::Gc, output.duration_ns);
    let heir = output.value_files.first();
    observers.tell(&Event::GcInstalled {
        cf: task.family.id,
        reason: task.reason.name(),
        replaced: replaced.iter().map(|no| no.0).collect(),
        heir: heir.map_or(0, |heir| heir.no),
        bytes_read: output.bytes_read,
        bytes_written: output.bytes_written,
        bytes_freed: bytes_freed(task, output),
        duration_ns: output.duration_ns,
    });
}

#[cfg(test)]
mod tests;
