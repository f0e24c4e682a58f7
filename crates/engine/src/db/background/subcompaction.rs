//! Runs a compaction: as a whole, or cut into key ranges that run in parallel (*subcompactions*).
//!
//! With `DbOptions::subcompactions_max` above 1, jobs out of L0 and jobs that a user asked for
//! (`compact_range`) are cut, as in RocksDB. Other jobs are not cut. Jobs below L0 have a few files
//! and those that they overlap, and many of them run in parallel anyway. Merges within L0 make one
//! file. [`crate::compaction::subcompaction`] decides where the cuts are.
//!
//! Independent of that setting, a job out of L0 is cut if its bucket is hot or about to be split
//! ([`crate::db::background::rebalance`]), into one part for each idle job. A split waits for this
//! job. If the bucket takes most of the load, the other jobs would have no work.
//!
//! Invariants:
//! 1. Each part is a job of its own for the database's executor. It has its own file numbers, seed
//!    of unique ids, context and counters. The parts share the rest of the spec, the snapshots and
//!    the rate limiter.
//! 2. Together the parts must have read every record of the inputs, as a whole job must.
//!
//! Thread-safety: the parts run as [`crate::db::background::parallel_job`] says.
//! Failure: if a part fails, nothing is installed, and the outputs of the other parts are removed.
//! So are outputs that the database refused, if all of their numbers belong to the job.
//! Cost in addition to a whole job: index, filter and range tombstones of an input are read once
//! for each part that it reaches into. A data block on a boundary is read twice. Each part ends in
//! a file that may be short. Readahead and output buffers of each part are held from the budget.

use archipelago_base::Result;
use archipelago_base::budget::MemoryClass;

use crate::border::Border;
use crate::compaction::job::{CompactionSpec, check_complete, check_invalid};
use crate::compaction::pick::Pick;
use crate::compaction::subcompaction::{ANCHORS_PER_FILE, plan_subcompactions};
use crate::db::background::compaction_pick::{self, CompactionTask};
use crate::db::background::job_numbers::JobNumbers;
use crate::db::background::job_specs::{self, output_bytes};
use crate::db::background::owners::JobOwners;
use crate::db::background::parallel_job::{self, ParallelRun, Work};
use crate::db::background::rebalance;
use crate::db::state::context::Context;
use crate::db::state::job_threads::JobPriority;
use crate::db::state::jobs::Jobs;
use crate::db::state::pacing::Pacing;
use crate::db::write::stalling::{self, StallOwners};
use crate::executor::{self, JobPlace};
use crate::job::{Cancel, JobContext, JobOutput, NoShards};
use crate::key::KeyRange;
use crate::lock_order::Order;
use crate::sst::anchors as anchors_of;

/// Output of a compaction, checked.
pub(crate) struct Compacted {
    pub(crate) output: JobOutput,
    /// Busy time of each of its threads, in nanoseconds: one entry, or one for each part.
    pub(crate) threads_ns: Vec<u64>,
}

/// Executor of the works of one compaction, and the flag that cancels all of them.
struct WorkTerms<'a> {
    place: &'a JobPlace,
    cancel: &'a Cancel,
}

/// Runs the compaction of `spec` at `place`, in parts if it is worth it.
pub(crate) fn run_compaction(
    numbers: &JobNumbers<'_>,
    stall: StallOwners<'_>,
    task: &CompactionTask,
    spec: &CompactionSpec,
    place: &JobPlace,
) -> Result<Compacted> {
    let owners = numbers.owners();
    let ranges = plan_parts(owners, stall.pacing, task, spec)?;
    let threads = ranges.len().max(1);
    let readahead = spec.open_at_once() * u64::from(spec.readahead_bytes) * threads as u64;
    let readahead = readahead.min(spec.input_bytes());
    let bytes = readahead + output_bytes(threads, spec.input_bytes());
    let _held = owners.context.budget().hold(MemoryClass::Job, bytes);
    let cancel = Cancel::under(owners.context.closing()).linked_to(&task.cancel);
    let terms = WorkTerms { place, cancel: &cancel };
    let works = match ranges.len() {
        0 | 1 => vec![compaction_work(owners, spec.clone(), &terms)],
        _ => {
            let work = |range| part_work(numbers, spec, range, &terms);
            ranges.into_iter().map(work).collect::<Result<_>>()?
        }
    };
    let kind = priority_of(stall, task);
    let run = ParallelRun { kind, cancel, threads: works.len() };
    let compacted = run_works(owners, spec, works, run, place);
    for refused in place.take_removable() {
        owners.storage.discard(&refused, Order::none());
    }
    compacted
}

/// Priority of the threads that run a compaction: low, unless a caller or a writer waits for it.
fn priority_of(owners: StallOwners<'_>, task: &CompactionTask) -> JobPriority {
    let StallOwners { context, observers, pacing, jobs } = owners;
    let is_awaited = task.by_hand
        || jobs.is_awaited()
        || stalling::is_compaction_urgent(context, observers, pacing, &task.family);
    if is_awaited { JobPriority::Normal } else { JobPriority::Low }
}

fn plan_parts(
    owners: JobOwners<'_>,
    pacing: &Pacing,
    task: &CompactionTask,
    spec: &CompactionSpec,
) -> Result<Vec<KeyRange>> {
    let most = parts_max(owners.context, pacing, owners.jobs, task);
    let least = spec.output.target_file_bytes;
    let mut anchors = Vec::new();
    if most > 1 && spec.input_bytes() / 2 >= least {
        for (_, file) in task.pick.inputs() {
            anchors.extend(anchors_of(&*owners.view.tables().get(file)?, ANCHORS_PER_FILE));
        }
    }
    Ok(plan_subcompactions(anchors, most, least, &spec.range))
}

/// Largest number of parts of a job.
fn parts_max(context: &Context, pacing: &Pacing, jobs: &Jobs, task: &CompactionTask) -> usize {
    let set = context.options().subcompactions_max;
    match &task.pick {
        Pick::L0ToBase { .. } => set.max(parts_of_hot_bucket(context, pacing, jobs, task)),
        Pick::Level { .. } | Pick::Rewrite { .. } if task.by_hand => set,
        _ => 1,
    }
}

/// Number of parts of a job that empties the L0 of a hot bucket: one for each idle job, and its
/// own. The result is 1 if the bucket is not hot.
fn parts_of_hot_bucket(
    context: &Context,
    pacing: &Pacing,
    jobs: &Jobs,
    task: &CompactionTask,
) -> usize {
    let state = jobs.lock(Order::none());
    if !rebalance::is_hot(context, &state, task) {
        return 1;
    }
    compaction_pick::compactions_max(context, pacing, jobs)
        .saturating_sub(state.running().compactions().len())
        + 1
}

fn run_works(
    owners: JobOwners<'_>,
    spec: &CompactionSpec,
    works: Vec<Work>,
    run: ParallelRun,
    place: &JobPlace,
) -> Result<Compacted> {
    let JobOwners { context, storage, jobs, .. } = owners;
    let started_ns = context.clock().now_ns();
    let threads = works.len();
    // The works have about the same size, so their order does not matter.
    let works = works.into_iter().map(|work| (0, work)).collect();
    let ended = parallel_job::run_parallel(context, jobs, run, works, || Ok(()), |_, _| Ok(()));
    let (outputs, failed) = ended.into_parts();
    let threads_ns = outputs.iter().map(|output| output.duration_ns).collect();
    let duration_ns = context.clock().now_ns().saturating_sub(started_ns);
    let output = JobOutput::joined(outputs, duration_ns);
    let whole = |output: &JobOutput| match threads {
        // A single job over all keys has checked its records itself.
        1 => check_invalid(spec, output),
        _ => check_complete(spec, output.counts.records_in)
            .map_err(|error| error.context_at(spec.describe()))
            .and_then(|()| check_invalid(spec, output)),
    };
    let complete = match failed {
        Some(error) => Err(error),
        None => whole(&output).inspect_err(|_| place.note_refused()),
    };
    if let Err(error) = complete {
        storage.discard(&output, Order::none());
        return Err(error);
    }
    Ok(Compacted { output, threads_ns })
}

/// The job over the keys of `range`.
fn part_work(
    numbers: &JobNumbers<'_>,
    spec: &CompactionSpec,
    range: KeyRange,
    terms: &WorkTerms<'_>,
) -> Result<Work> {
    let owners = numbers.owners();
    let mut spec = CompactionSpec { subrange: Some(range), ..spec.clone() };
    // Each part reserves the numbers that the whole job would need, because the size of a part is
    // an estimate.
    spec.output.file_numbers = numbers.reserve(spec.output.file_numbers.count)?;
    spec.output.values.invalid = job_specs::invalid_numbers(numbers, &spec)?;
    spec.output.unique_seed = owners.context.unique_seed();
    let (work, fault) = (compaction_work(owners, spec, terms), owners.context.fault());
    Ok(Box::new(move || {
        fault.as_ref().map_or(Ok(()), |fault| fault("compaction.part"))?;
        work()
    }))
}

/// A job for the executor.
fn compaction_work(owners: JobOwners<'_>, spec: CompactionSpec, terms: &WorkTerms<'_>) -> Work {
    let context =
        JobContext { cancel: terms.cancel.clone(), ..job_specs::job_context(owners, &NoShards) };
    let place = terms.place.clone();
    let border = Border::new("job executor", place.executor().name(), Some(&spec.output.cf_name));
    Box::new(move || {
        let output = border.call(|| place.executor().compact(&spec, &context))??;
        let checked = executor::check_compaction(&output, &spec);
        place.accept(output, checked, &spec.output, &context)
    })
}
