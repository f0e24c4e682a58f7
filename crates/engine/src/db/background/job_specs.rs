//! Parts that the jobs of flushes, compactions and garbage collections have in common: their specs,
//! the services that they get, and their memory.
//!
//! The functions read the state of the database and hold none of their own. A [`ValuePlan`] holds
//! the value files that its spec names.
//!
//! Invariants:
//! 1. A job drops only versions that no snapshot of its list sees, and keeps everything that is
//!    newer than the visible number of that list.
//! 2. Each spec has file numbers of its own.
//!
//! Thread-safety: any number of threads may call the functions.
//! Failure: a reservation of file numbers fails if the manifest cannot be written.
//! Cost: a reservation of file numbers may take the manifest lock.

use std::collections::BTreeSet;
use std::sync::Arc;

use archipelago_base::Result;

use crate::compaction::job::CompactionSpec;
use crate::db::background::job_numbers::JobNumbers;
use crate::db::background::owners::JobOwners;
use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::observers::Observers;
use crate::db::state::storage::Storage;
use crate::gc::invalid;
use crate::job::below::Below;
use crate::job::spec::{CurrentNumber, FileNumbers, Grandparent, OutputSpec, Retention, ValueSpec};
use crate::job::{Cancel, JobContext, JobOutput, KnownKeys, ShardSource};
use crate::lock_order::{Before, ManifestLock};
use crate::options::CfOptions;
use crate::sabotage::{Defect, has};
use crate::stats::Ticker;
use crate::value_ref::ValueRefs;
use crate::version::{Hold, LAST_LEVEL, Version};

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

/// Reserves numbers for the invalid files of a compaction. There are none unless the executor
/// prefers such files and an input has references.
pub(crate) fn invalid_numbers(
    numbers: &JobNumbers<'_>,
    spec: &CompactionSpec,
) -> Result<FileNumbers> {
    let has_refs = spec.inputs.iter().any(|input| !input.meta.refs.is_empty());
    if !has_refs || !numbers.owners().jobs.executor().prefers_invalid_files() {
        return Ok(FileNumbers::default());
    }
    let raw_bytes = spec.inputs.iter().map(|input| input.meta.raw_bytes).sum();
    numbers.reserve(invalid::file_numbers_wanted(spec.input_records(), raw_bytes))
}

/// Readahead of each of `inputs` files, in bytes.
pub(crate) fn readahead_bytes(context: &Context, inputs: usize) -> u32 {
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
    storage: &Storage,
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
        let hold = storage.held_numbers().hold(numbers);
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
    let owners = numbers.owners();
    let OutputPlan { level, cuts, grandparents, written_bytes, value_bytes } = plan;
    let options = &family.options;
    let on_disk = owners.disk.table_bytes(options.target_file_bytes);
    // Tables of L0 are cut by size only on small disks.
    let is_whole = level == 0 && on_disk == options.target_file_bytes;
    let table_bytes = match level {
        0 => on_disk,
        _ => owners.context.memory_shares().table_bytes(on_disk),
    };
    let tables =
        OutputSpec::file_numbers_wanted(written_bytes, table_bytes, cuts.len(), &grandparents);
    let count = tables.saturating_add(value_numbers_wanted(options, value_bytes));
    let target_file_bytes = if is_whole { u64::MAX } else { table_bytes };
    Ok(OutputSpec {
        dir: owners.storage.dir().to_owned(),
        cf_name: family.name.clone(),
        level: level as u8,
        file_numbers: numbers.reserve(count)?,
        unique_seed: owners.context.unique_seed(),
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
        created_unix_ms: owners.context.clock().unix_ms(),
        direct_io: owners.context.options().direct_background_io,
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
    owners: JobOwners<'_>,
    shards: &'a dyn ShardSource,
) -> JobContext<'a> {
    let JobOwners { context, storage, jobs, view, .. } = owners;
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
