//! Where a database's jobs run: the interface at which offloading attaches.
//!
//! The database plans a job and installs its outputs. In between it hands the spec to its
//! [`JobExecutor`]. The default executor runs the job on the calling background thread. Another one
//! sends the spec ([`wire`]) and the images of a flush's shards elsewhere, waits, and returns the
//! outputs.
//!
//! Invariants:
//! 1. An executor returns `Ok` only when the outputs survive power loss where the database's file
//!    system finds them, under the file numbers and in the directory of the spec.
//! 2. The database checks every output (`check`). It also opens every file of an executor that does
//!    not run here ([`JobExecutor::runs_here`]). If it refuses an output, the job runs in this
//!    process once before the failure counts.
//! 3. One call is one attempt. The numbers of its spec are durably reserved and serve this attempt
//!    alone. An executor that begins a job anew returns an error, and gets other numbers with the
//!    next call. A job creates its files exclusively, so no execution writes into a file of another
//!    one.
//!
//! A compaction may come in parts (`CompactionSpec::subrange`). Each part is a job of its own that
//! an executor may run anywhere. All of them must succeed, or none counts.
//!
//! Thread-safety: many background threads call an executor in parallel.
//! Failure: any error, and a panic, leaves the job undone. The background sweep removes outputs
//! that such a job left, even those that it writes later. `Corrupt` makes the database read-only.
//! Therefore an executor must report trouble in transport as another kind (`Io`).

mod examine;
mod place;
pub mod wire;

use std::collections::{BTreeMap, HashSet};

use archipelago_base::{Epoch, Error, ErrorKind, Result};

use crate::compaction::job::{CompactionSpec, run_compaction};
use crate::flush::{FlushSpec, run_flush};
use crate::gc::job::{GcSpec, run_gc};
use crate::job::spec::{FileNumbers, OutputSpec};
use crate::job::{JobContext, JobOutput};
use crate::key::KeyRange;

pub(crate) use place::{JobPlace, run_planned};

/// Number of times that a job is planned before its failure counts.
const PLANS_MAX: u32 = 8;

/// Kind of a job that an executor gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobKind {
    /// Writes shards of sealed memtables into tables.
    Flush,
    /// Merges tables into tables of a lower level.
    Compaction,
    /// Rewrites value files without their garbage.
    Gc,
}

/// Runs flush and compaction jobs that are given as values, here or in another process.
pub trait JobExecutor: Send + Sync + 'static {
    /// Name of the executor in errors. Default: the name of its type.
    fn name(&self) -> &str {
        std::any::type_name::<Self>()
    }
    /// Runs a flush; its shards are in `context`.
    fn flush(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput>;
    /// Runs a compaction.
    fn compact(&self, spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput>;
    /// Runs a garbage collection of value files.
    fn gc(&self, spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput>;
    /// Jobs of this kind that the executor takes in addition to the `max_background_jobs` of the
    /// database, because they take no processor time of this process. The database asks whenever it
    /// looks for work, so the call must not block. Default: 0.
    fn room(&self, _kind: JobKind) -> usize {
        0
    }
    /// Whether the files of an output come from this process, so that the database need not open
    /// them before it installs them. Must always return the same answer. Default: no.
    fn runs_here(&self) -> bool {
        false
    }
    /// Whether the database shall immediately plan a job again, with other file numbers, because it
    /// ended with this error. Default: no.
    fn plans_again(&self, _error: &Error) -> bool {
        false
    }
    /// Notifies the executor that the database refused an output of a compaction or of a garbage
    /// collection, and that the job runs in this process now. Default: does nothing.
    fn output_refused(&self, _kind: JobKind) {}
    /// Notifies the executor of the open database's owner. The call comes once, before the first
    /// job, and never for a database that is open for reading only. An error ends the open.
    /// Default: does nothing.
    fn owner_is(&self, _owner: &OwnerIdentity) -> Result<()> {
        Ok(())
    }
    /// Whether garbage collections shall take validity from invalid files, so that the database
    /// looks nothing up. Compactions then write such files. If the files do not name all garbage, a
    /// job fails with `NotFound` and is made again with bitmaps. Must always return the same
    /// answer. Default: no.
    fn prefers_invalid_files(&self) -> bool {
        false
    }
}

/// Plans and runs a job, and plans it again as long as the executor wants that. Errors for which
/// `is_own` returns true do not come from the executor and end the loop.
pub(crate) fn planning_again<T>(
    executor: &dyn JobExecutor,
    is_own: impl Fn(&Error) -> bool,
    mut job: impl FnMut() -> Result<T>,
) -> Result<T> {
    for _ in 1..PLANS_MAX {
        match job() {
            Err(error) if !is_own(&error) && executor.plans_again(&error) => {
                tracing::debug!(%error, executor = executor.name(), "a job is planned again");
            }
            ended => return ended,
        }
    }
    job()
}

/// Identity of a database's owner, as its executor names it to other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerIdentity {
    /// Random id of the database for other processes ("offload id"). A copy of the database has
    /// another one.
    pub database: [u8; 16],
    /// Number of the open for writing, above that of every earlier one.
    pub epoch: Epoch,
    /// Random number of this open.
    pub token: [u8; 16],
}

/// Executor that runs jobs on the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalExecutor;

impl JobExecutor for LocalExecutor {
    fn flush(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        run_flush(spec, context)
    }

    fn compact(&self, spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        run_compaction(spec, context)
    }

    fn gc(&self, spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        run_gc(spec, context)
    }

    fn runs_here(&self) -> bool {
        true
    }
}

/// Opens every file of an output of `executor`, unless it runs here, and compares the files with
/// the output. The output has passed [`check`].
pub(crate) fn examine(
    executor: &dyn JobExecutor,
    output: &JobOutput,
    spec: &OutputSpec,
    context: &JobContext<'_>,
) -> Result<()> {
    match executor.runs_here() {
        true => Ok(()),
        false => examine::examine_files(output, spec, context),
    }
}

/// Checks the output of a flush, which must have read all `entries` records of its shards.
pub(crate) fn check_flush(output: &JobOutput, spec: &FlushSpec, entries: u64) -> Result<()> {
    check(output, &spec.range, &spec.output)?;
    let read = output.counts.records_in;
    if read != entries {
        return Err(unusable(&format!("it has read {read} of {entries} records of its shards")));
    }
    Ok(())
}

/// Checks the output of a compaction. A job over whole files must have read all of their records.
/// For the parts of a job only the sum is known, so it is not checked here.
pub(crate) fn check_compaction(output: &JobOutput, spec: &CompactionSpec) -> Result<()> {
    check(output, spec.keys(), &spec.output)?;
    let (read, expected) = (output.counts.records_in, spec.input_records());
    if spec.subrange.is_none() && read != expected {
        return Err(unusable(&format!("it has read {read} of {expected} records")));
    }
    Ok(())
}

/// Checks that an output is the heir of the spec: one value file with its number and its basis. It
/// must have the records and value bytes of the valid records of the inputs.
pub(crate) fn check_gc(output: &JobOutput, spec: &GcSpec, valid_bytes: u64) -> Result<()> {
    let [heir] = output.value_files.as_slice() else {
        return Err(unusable(&format!("{} value files, not one", output.value_files.len())));
    };
    // A file that the job did not order may have the name of a live one.
    let has_others = !output.files.is_empty() || !output.invalid_files.is_empty();
    if has_others || heir.file_no() != spec.heir() || heir.basis != spec.basis {
        return Err(unusable("the heir is not the one that was ordered"));
    }
    let (records, bytes) = (heir.records, heir.value_bytes());
    if records != spec.valid_records() || bytes != valid_bytes {
        return Err(unusable(&format!(
            "the heir has {records} records of {bytes} bytes, but {} of {valid_bytes} are valid",
            spec.valid_records()
        )));
    }
    Ok(())
}

fn unusable(what: &str) -> Error {
    Error::new(ErrorKind::Io, format!("the executor's output is not usable: {what}"))
}

/// Checks that an output fits the spec. Its files have the spec's numbers, lie in its range in
/// order, account for every record, and reference only values that exist ([`check_values`]).
pub(crate) fn check(output: &JobOutput, range: &KeyRange, spec: &OutputSpec) -> Result<()> {
    let refuse = |what: String| Err(unusable(&what));
    for file in &output.files {
        check_number(file.no, spec)?;
        let inside = range.end.as_ref().is_none_or(|end| file.ends_before(end));
        if file.smallest < range.start || !inside {
            return refuse(format!("file {} reaches out of the job's range", file.no));
        }
    }
    let in_order = |pair: &[crate::file_meta::FileMeta]| pair[0].ends_before(&pair[1].smallest);
    if !output.files.windows(2).all(in_order) {
        return refuse("its files overlap".to_owned());
    }
    let counts = &output.counts;
    if counts.records_in != counts.records_out + counts.dropped.total() {
        return refuse(format!("{} records went in, not all came out", counts.records_in));
    }
    let written: u64 = output.files.iter().map(|file| file.entries).sum();
    if written != counts.records_out {
        let came_out = counts.records_out;
        return refuse(format!("{came_out} records came out, its files have {written}"));
    }
    check_invalid_files(output, spec)?;
    check_values(output, range, spec)
}

/// Checks that the invalid files of an output have numbers of the job and name files of its inputs.
fn check_invalid_files(output: &JobOutput, spec: &OutputSpec) -> Result<()> {
    for (at, file) in output.invalid_files.iter().enumerate() {
        check_set_aside(file.no, &spec.values.invalid)?;
        let is_current = |no: &u64| spec.values.file(*no).is_some();
        let is_twice = output.invalid_files[..at].iter().any(|other| other.no == file.no);
        let ascend = file.names.windows(2).all(|pair| pair[0] < pair[1]);
        let is_whole = file.records > 0 && file.install_no == 0 && !file.names.is_empty();
        if is_twice || !is_whole || !ascend || !file.names.iter().all(is_current) {
            return Err(unusable(&format!("invalid file {} cannot be", file.no)));
        }
    }
    Ok(())
}

fn check_number(no: u64, spec: &OutputSpec) -> Result<()> {
    check_set_aside(no, &spec.file_numbers)
}

fn check_set_aside(no: u64, numbers: &FileNumbers) -> Result<()> {
    match no.checked_sub(numbers.first).is_some_and(|at| at < numbers.count) {
        true => Ok(()),
        false => Err(unusable(&format!("file {no} was not set aside for the job"))),
    }
}

/// Checks that the value files of an output have numbers of the job and lie in its range. Every
/// reference must name one of them or a current number of the spec. The references to a new value
/// file must cover all of its records and bytes. Values that no table references are garbage, so a
/// file with other records would begin with garbage that no job made.
fn check_values(output: &JobOutput, range: &KeyRange, spec: &OutputSpec) -> Result<()> {
    let mut unreferenced = BTreeMap::new();
    for file in &output.value_files {
        check_number(file.no, spec)?;
        if output.files.iter().any(|table| table.no == file.no)
            || unreferenced.insert(file.no, (file.records, file.value_bytes())).is_some()
        {
            return Err(unusable(&format!("two files have the number {}", file.no)));
        }
        let inside = range.end.as_ref().is_none_or(|end| file.largest < *end);
        if file.smallest < range.start || file.smallest > file.largest || !inside {
            return Err(unusable(&format!("value file {} reaches out of the range", file.no)));
        }
        let is_whole = file.records > 0 && file.keys_offset < file.size_bytes && file.basis == 0;
        if !is_whole {
            return Err(unusable(&format!("value file {} cannot be", file.no)));
        }
    }
    let current: HashSet<u64> = spec.values.current.iter().map(|at| at.current).collect();
    let is_current = |no: u64| current.contains(&no);
    for table in &output.files {
        for named in table.refs.by_file() {
            match unreferenced.get_mut(&named.no) {
                Some((records, bytes)) if *records >= named.records && *bytes >= named.bytes => {
                    *records -= named.records;
                    *bytes -= named.bytes;
                }
                None if is_current(named.no) => {}
                _ => {
                    return Err(unusable(&format!(
                        "file {} references {} records in value file {}, which has fewer or is \
                         not one of the job",
                        table.no, named.records, named.no
                    )));
                }
            }
        }
    }
    match unreferenced.into_iter().find(|(_, rest)| *rest != (0, 0)) {
        None => Ok(()),
        Some((no, (records, bytes))) => Err(unusable(&format!(
            "{records} records with {bytes} bytes of value file {no} are not referenced"
        ))),
    }
}

#[cfg(test)]
mod tests;
