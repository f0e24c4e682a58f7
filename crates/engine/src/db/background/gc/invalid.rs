//! Merging the invalid files of a family: from the choice of files to a spec and an install.
//!
//! Invariants:
//! 1. A merge starts only while no garbage collection of the family runs. Such a job may turn a
//!    file that is about to lose its last reference into an ancestor of its heir. Then entries of
//!    that file count, which the merge would drop as needless.
//! 2. The edit changes no entry that counts, so a job may read the old files or the new one.
//!
//! Thread-safety: one merge of a family runs at a time.
//! Failure: the new file is removed, and the old files stay. They are left out for a time that
//! doubles with every failure, so that a damaged file holds up no other work.
//! Cost: see [`files_to_merge`].

use std::sync::Arc;

use archipelago_base::{CfId, Error, FileNo, Result};

use crate::border::contained;
use crate::db::background::job_numbers::JobNumbers;
use crate::db::background::job_specs;
use crate::db::background::owners::JobOwners;
use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::jobs::JobState;
use crate::db::state::running_jobs::{GcWorker, RunningKind};
use crate::gc::invalid::{InvalidSource, files_to_merge, merge_invalid};
use crate::job::{JobOutput, NoShards};
use crate::live_file::LiveInvalidFile;
use crate::lock_order::Order;
use crate::manifest::{Change, VersionEdit};
use crate::value_ref::InvalidFileMeta;
use crate::version::{ValueFiles, Version};

/// A merge of invalid files that was picked. It is among the running jobs.
pub(crate) struct MergeTask {
    job_id: u64,
    pub(crate) family: Arc<Family>,
    /// Version that determines which entries count. It holds the inputs.
    version: Arc<Version>,
    inputs: Vec<Arc<LiveInvalidFile>>,
}

impl MergeTask {
    /// Description of the job for messages.
    pub(crate) fn name(&self) -> String {
        let (count, name) = (self.inputs.len(), &self.family.name);
        format!("merge of {count} invalid files of column family \"{name}\"")
    }
}

/// The next merge of any family, noted as running.
pub(crate) fn next_merge(
    context: &Context,
    view: &ReadView,
    state: &mut JobState,
) -> Option<MergeTask> {
    let (family, version, inputs) = view.live_families().into_iter().find_map(|family| {
        let version = Arc::clone(&family.current.load().version);
        if state.running().is_collecting(family.id) {
            return None;
        }
        let files = files_not_left_out(context, state, family.id, &version);
        let sizes: Vec<u64> = files.iter().map(|file| file.size_bytes).collect();
        let chosen = files_to_merge(&sizes);
        if chosen.is_empty() {
            return None;
        }
        let inputs = chosen.into_iter().map(|at| Arc::clone(&files[at])).collect();
        Some((family, version, inputs))
    })?;
    let job_id =
        state.start(RunningKind::Gc { cf: family.id, inputs: Vec::new(), by: GcWorker::Reserved });
    Some(MergeTask { job_id, family, version, inputs })
}

/// The invalid files of a version that are not left out after failures now.
fn files_not_left_out(
    context: &Context,
    state: &mut JobState,
    cf: CfId,
    version: &Version,
) -> Vec<Arc<LiveInvalidFile>> {
    let mut files: Vec<_> = version.values().invalid_files().cloned().collect();
    if !files.is_empty() {
        let failures = state.space_mut(cf).merge_failures_mut();
        failures.retain(|no| files.iter().any(|file| file.no == no));
        let left_out = failures.left_out(context.clock().now_ns());
        files.retain(|file| !left_out.contains(&file.no));
    }
    files
}

/// Whether a merge is due, without taking it.
pub(crate) fn is_merge_due(context: &Context, view: &ReadView, state: &mut JobState) -> bool {
    match next_merge(context, view, state) {
        Some(task) => {
            state.end(task.job_id);
            true
        }
        None => false,
    }
}

/// Runs a picked merge and installs it. Afterwards it is not running any more.
pub(crate) fn run_merge_task(owners: JobOwners<'_>, task: &MergeTask) -> Result<()> {
    let result = contained(&task.name(), || merge_and_install(owners, task));
    let now_ns = owners.context.clock().now_ns();
    let mut state = owners.jobs.lock(Order::none());
    state.end(task.job_id);
    if result.is_err() && task.family.check_alive().is_ok() {
        let failures = state.space_mut(task.family.id).merge_failures_mut();
        task.inputs.iter().for_each(|input| failures.note_failure(input.no, now_ns));
    }
    drop(state);
    owners.jobs.notify_progress();
    result
}

/// Whether an entry under `no` counts for a live file.
fn counts(values: &ValueFiles, no: u64, install_no: u64) -> bool {
    let current = values.current(no);
    values.get(current).is_some_and(|file| current == no || install_no > file.basis)
}

fn merge_and_install(owners: JobOwners<'_>, task: &MergeTask) -> Result<()> {
    let numbers = JobNumbers::new(owners, Order::none());
    let spec = job_specs::heir_spec(&numbers, &task.family)?;
    let context = job_specs::job_context(owners, &NoShards);
    let source = InvalidSource {
        cf: task.family.id.0,
        dir: spec.dir(),
        direct_reads: owners.context.options().direct_background_io,
        context: &context,
    };
    let inputs: Vec<InvalidFileMeta> = task.inputs.iter().map(|file| file.meta().clone()).collect();
    let values = task.version.values();
    let merged = merge_invalid(&inputs, |no, at| counts(values, no, at), &spec, source)?;
    let installed = owners
        .context
        .fault_point("invalid.before_install")
        .and_then(|()| install(owners, task, merged.as_ref()));
    if installed.is_ok() {
        numbers.note_installed();
    } else {
        let output =
            JobOutput { invalid_files: merged.into_iter().collect(), ..JobOutput::default() };
        owners.storage.discard(&output, Order::none());
    }
    installed
}

fn install(
    owners: JobOwners<'_>,
    task: &MergeTask,
    merged: Option<&InvalidFileMeta>,
) -> Result<()> {
    let cf = task.family.id;
    let mut edit = VersionEdit::new();
    for input in &task.inputs {
        edit.push(Change::RemoveInvalidFile { cf, no: FileNo(input.no) });
    }
    if let Some(meta) = merged {
        edit.push(Change::AddInvalidFile { cf, meta: Box::new(meta.clone()) });
    }
    let mut manifest = owners.storage.lock_manifest(Order::none());
    task.family.check_alive()?;
    owners.context.check_open()?;
    if manifest.version(cf).is_none() {
        return Err(Error::internal("a living family has no version"));
    }
    let built = manifest.apply(edit)?;
    owners.view.republish_built(&mut owners.jobs.lock(manifest.order()), built);
    Ok(())
}
