//! Compactions: from a pick to a spec and an install.
//!
//! [`compaction_pick`] chooses a compaction, and [`crate::db::background::subcompaction`] runs it
//! between its spec and its install. [`job_specs`] makes the parts of the spec that other jobs have
//! as well.
//!
//! Invariant: a compaction is among the running jobs from its pick until its end.
//!
//! Thread-safety: any number of compactions run at the same time.
//! Failure: the outputs of a compaction that fails are removed, and its inputs stay.
//! Cost: reads and writes its inputs. A trivial move costs one edit.

use std::time::Duration;

use archipelago_base::Result;
use archipelago_env::{IoContext, IoPurpose};

use crate::border::contained;
use crate::compaction::job::{CompactionSpec, Input};
use crate::compaction::pick::Pick;
use crate::db::background::compaction_pick::CompactionTask;
use crate::db::background::job_numbers::JobNumbers;
use crate::db::background::job_specs::OutputPlan;
use crate::db::background::owners::InstallOwners;
use crate::db::background::subcompaction::{self, Compacted};
use crate::db::background::warm_outputs::{self, WarmPass};
use crate::db::background::warm_plan::WarmPlan;
use crate::db::background::{compaction_pick, job_specs, space};
use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::jobs::{JobState, Jobs};
use crate::db::state::observers::Observers;
use crate::db::state::pacing::Pacing;
use crate::db::state::storage::Storage;
use crate::db::write::disk_room::Disk;
use crate::db::write::stalling::StallOwners;
use crate::db::write::{disk_room, stalling};
use crate::disk_space::SpaceUse;
use crate::event::Event;
use crate::executor::{self, JobKind, JobPlace};
use crate::file_meta::{FileMeta, sst_name};
use crate::gc::hidden::ShadowShare;
use crate::gc::space_plan::SpaceEvent;
use crate::job::JobOutput;
use crate::job::below::{Below, range_of};
use crate::job::spec::Grandparent;
use crate::lock_order::Order;
use crate::manifest::{Change, SpaceFigures, VersionEdit};
use crate::options::{CfOptions, LEVELS};
use crate::sabotage::{Defect, has};
use crate::stats::{Ticker, Timer};
use crate::value_ref::InvalidFileMeta;
use crate::version::reclaimable::content_bytes;
use crate::version::{LAST_LEVEL, Version};

/// Assumed ratio of the raw bytes of separated values to their bytes in value files, for a job that
/// puts them back into tables. If the ratio is more than twice as high, the last table of the job
/// becomes larger.
const INLINED_SHARE: u64 = 4;
/// Bytes that a record takes in a table in addition to its key and its value. They are its trailer,
/// its lengths, and its shares of the index and of the filter.
const RECORD_OVERHEAD_BYTES: u64 = 32;

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
        (Ok(files), Some(plan)) => WarmPass::new(&db.context, &db.warm_passes, task, files, plan),
        _ => None,
    };
    end_compaction(db.stall_owners(), &db.disk, task);
    CompactionEnd { written, warm_pass }
}

/// Takes a compaction that has ended off the running jobs.
pub(crate) fn end_compaction(owners: StallOwners<'_>, disk: &Disk, task: &CompactionTask) {
    disk_room::return_room(disk, task.room_bytes);
    let mut state = owners.jobs.lock(Order::none());
    state.end(task.job_id);
    drop(state);
    stalling::recompute_stall(owners, &task.family);
    owners.jobs.notify_progress();
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
        install_compaction(db.install_owners(), &db.pacing, task, None)?;
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
        install_compaction(db.install_owners(), &db.pacing, task, None)?;
        tell_levels(&db.storage, task);
        return Ok(Vec::new());
    }
    let expected =
        disk_room::room_for_compaction(&db.disk, &db.view, SpaceUse::Frees).expected(&task.pick);
    let inlined = compaction_pick::inlined_bytes(&task.family.options, &task.pick);
    disk_room::ensure_room(db, expected.saturating_add(inlined), "a compaction")?;
    let refs = task.pick.inputs().map(|(_, file)| &file.refs);
    let values = job_specs::value_plan(&db.storage, &task.family, refs);
    let numbers = JobNumbers::new(db.job_owners(), Order::none());
    let mut spec = compaction_spec(&numbers, task)?;
    spec.output.values.clone_from(&values.spec);
    spec.output.values.invalid = job_specs::invalid_numbers(&numbers, &spec)?;
    let compacted = subcompaction::run_compaction(&numbers, db.stall_owners(), task, &spec, place);
    disk_room::note_estimate(&db.disk, compacted.as_ref().err());
    let compacted = compacted?;
    if has(Defect::EntriesAheadOfTheirEdit) {
        install_entries_early(&db.storage, &db.jobs, &db.view, task, &compacted.output)?;
    }
    *plan = warm_outputs::plan(&db.jobs, &db.warm_passes, task);
    let installed = db
        .context
        .fault_point("compaction.before_install")
        .and_then(|()| install_compaction(db.install_owners(), &db.pacing, task, Some(&compacted)));
    match &installed {
        Ok(()) => numbers.note_installed(),
        Err(_) => db.storage.discard(&compacted.output, Order::none()),
    }
    installed.map(|()| compacted.output.files.iter().map(|meta| meta.no).collect())
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
    let owners = numbers.owners();
    let CompactionTask { family, version, pick, .. } = task;
    let range = pick.range();
    let to = pick.to();
    let cuts = match to {
        0 => {
            let mut cuts = owners.jobs.lock(Order::none()).l0_cuts(version);
            cuts.extend(disk_room::room_cuts(owners.disk, version));
            cuts.sort_unstable();
            cuts.dedup();
            cuts
        }
        // No file of the base level lies across a bucket boundary that is planned.
        to if to == version.base_level() => owners.jobs.lock(Order::none()).l0_cuts(version),
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
        retention: job_specs::retention(owners.context, owners.view, family, below),
        output: job_specs::output_spec(numbers, family, plan)?,
        readahead_bytes: job_specs::readahead_bytes(owners.context, pick.inputs().count()),
        direct_reads: owners.context.options().direct_background_io,
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

fn install_compaction(
    owners: InstallOwners<'_>,
    pacing: &Pacing,
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
        let mut manifest = owners.storage.lock_manifest(Order::none());
        family.check_alive()?;
        // A user's thread may reach this point after the close.
        owners.context.check_open()?;
        if manifest.version(cf).is_some_and(|version| version.values().heirs().next().is_some()) {
            owners.context.fault_point("inherit.before_prune")?;
        }
        if let (Some(compacted), Some(version)) = (compacted, manifest.version(cf))
            && !has(Defect::EntriesAheadOfTheirEdit)
        {
            add_invalid_files(&mut edit, version, &compacted.output);
        }
        let kept = manifest.space_figures(cf);
        let share =
            keep_space(&mut edit, &owners.jobs.lock(manifest.order()), kept, task, compacted);
        let built = manifest.apply(edit)?;
        let mut state = owners.jobs.lock(manifest.order());
        owners.view.republish_built(&mut state, built);
        if let Some(share) = share {
            state.space_mut(cf).set_shadow_share(share);
        }
        let event = Some(SpaceEvent::GarbageFound);
        space::note_install(owners.space_owners(), &mut state, family, event);
        if let Some(compacted) = compacted {
            measure_l0(pacing, &state, pick, &compacted.output);
        }
    }
    let moved = Compacted { output: JobOutput::default(), threads_ns: vec![0] };
    tell_compaction(owners.observers, task, inputs, compacted.unwrap_or(&moved));
    Ok(())
}

/// Adds the figures of the family's space to the edit. The manifest has kept `kept` before. Returns
/// the share of shadowing records after the compaction; `None` if that is the same as before.
fn keep_space(
    edit: &mut VersionEdit,
    state: &JobState,
    kept: Option<SpaceFigures>,
    task: &CompactionTask,
    compacted: Option<&Compacted>,
) -> Option<ShadowShare> {
    let CompactionTask { family, pick, .. } = task;
    let upper = pick.inputs().filter(|(level, _)| *level < LAST_LEVEL);
    let upper = upper.fold(0, |sum: u64, (_, file)| sum.saturating_add(file.entries));
    let space = state.space(family.id);
    let share = compacted
        .and_then(|compacted| space::share_after(space, pick.to(), upper, &compacted.output));
    space::keep_figures(edit, state, family.id, kept, share.as_ref());
    share
}

/// Learns the speed of compactions of L0 from an installed pick. Other picks are ignored.
fn measure_l0(pacing: &Pacing, state: &JobState, pick: &Pick, output: &JobOutput) {
    let Pick::L0ToBase { l0, .. } = pick else { return };
    let bytes = l0.iter().map(|file| content_bytes(file)).fold(0, u64::saturating_add);
    let at_once =
        state.running().compactions().iter().filter(|job| job.from == 0 && job.to > 0).count();
    pacing.measure_compaction(bytes, at_once, Duration::from_nanos(output.duration_ns));
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
fn install_entries_early(
    storage: &Storage,
    jobs: &Jobs,
    view: &ReadView,
    task: &CompactionTask,
    output: &JobOutput,
) -> Result<()> {
    let mut edit = VersionEdit::new();
    add_invalid_files(&mut edit, &task.version, output);
    let mut manifest = storage.lock_manifest(Order::none());
    let built = manifest.apply(edit)?;
    view.republish_built(&mut jobs.lock(manifest.order()), built);
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
    job_specs::count_job(observers, output);
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
