//! Jobs are values: a flush or a compaction is a function from a serialisable spec, files and
//! memory to output files. It never touches a database.
//!
//! [`crate::flush::run_flush`] and [`crate::compaction::job::run_compaction`] are the functions.
//! This module has their common parts: parts of the specs ([`spec`]), the services
//! ([`JobContext`]), the result ([`JobOutput`]), and the writing of outputs ([`output`]).
//! [`crate::executor`] runs them for a database, and sends specs and outputs. Invariants:
//!
//! 1. A job reads nothing but its spec, its context and the files and shards that the spec names;
//!    merge operators and filters are found by name. So it runs the same in another process.
//! 2. Readers see outputs only after the owner's manifest edit. When a job returns `Ok`, its
//!    outputs survive power loss. When it fails or is cancelled, it has removed its files as far as
//!    the file system let it. The next start removes the rest as garbage.
//! 3. Nothing is lost silently. A job over whole files or shards fails if it has not read as many
//!    records as their metadata says. All dropped records are counted by reason.
//!
//! Each job runs on one thread. Several threads share a compaction as *subcompactions*: each is a
//! job of its own over a part of the keys ([`crate::compaction::subcompaction`]), and the owner
//! installs all their outputs in one edit.

pub mod below;
mod cancel;
mod counts;
mod created;
mod fetch_room;
mod files;
mod moved_offsets;
pub mod output;
mod separate;
mod shards;
pub mod spec;
#[cfg(test)]
pub(crate) mod testing;
mod value_input;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::budget::ByteBudget;
use archipelago_base::clock::Clock;
use archipelago_base::{FileNo, Result};
use archipelago_env::FileSystem;
use archipelago_env::limit::RateLimiter;

pub use cancel::Cancel;
pub use counts::{Counts, Dropped, GcFigures};
pub(crate) use created::{CreatedFile, CreatedFiles, creation};
pub use fetch_room::{FetchPermit, FetchRoom};
pub(crate) use files::{MeteredRead, MeteredWrite};
pub(crate) use moved_offsets::heirs_to_walk;
pub use shards::{NoShards, ShardRef, ShardSource};
pub(crate) use value_input::{ValueInputs, ValueSource};

use crate::extension::Registry;
use crate::file_meta::{FileMeta, invalid_file_name, sst_name, value_file_name};
use crate::job::output::Written;
use crate::sst::BlockCache;
use crate::value::KeyList;
use crate::value_ref::{InvalidFileMeta, ValueFileMeta};

/// Progress of a running job, which other threads read while it runs.
#[derive(Debug, Default)]
pub struct Progress {
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

impl Progress {
    /// File bytes read so far.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// File bytes written so far.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written.load(Ordering::Relaxed)
    }
}

/// Services that the executor gives to a job. Each job has its own, because it counts the job's
/// bytes.
pub struct JobContext<'a> {
    /// File system of the inputs and outputs.
    pub fs: Arc<dyn FileSystem>,
    /// The merge operators and filters that this process knows.
    pub registry: Registry,
    /// Clock that times the job. Expiry goes by the spec's `now_ms` instead.
    pub clock: Arc<dyn Clock>,
    /// Limiter that writes are charged to, if there is one and `fs` does not do so itself.
    pub limiter: Option<Arc<RateLimiter>>,
    /// Flag that ends the job with an error soon.
    pub cancel: Cancel,
    /// Source of the shards of a flush.
    pub shards: &'a dyn ShardSource,
    /// Cache that readers of inputs are tied to. Data blocks of inputs are not put into it. A data
    /// block of an output is put into it if its records come from blocks that were in it, so that
    /// the blocks that users read stay cached.
    pub cache: Arc<BlockCache>,
    /// Whether all data blocks of the outputs are put into the cache. A flush sets it for memtables
    /// that users read.
    pub warm: bool,
    /// Budget to which readers of inputs charge their index and filter blocks.
    pub budget: Arc<ByteBudget>,
    /// Source of further file numbers when the spec's are used up; `None` if there is none.
    pub more_file_numbers: Option<&'a (dyn Fn() -> FileNo + Sync)>,
    /// Keys of the inputs of a garbage collection that the owner has read in this process.
    pub value_keys: KnownKeys,
    /// The job's counters.
    pub progress: Arc<Progress>,
}

/// Keys of the inputs of a garbage collection that its owner has read; empty by default. An
/// executor in another process has none, and its job reads them.
#[derive(Clone, Debug, Default)]
pub struct KnownKeys(Vec<Arc<KeyList>>);

impl KnownKeys {
    /// The keys of each input, in the order of the inputs.
    pub(crate) fn of(lists: Vec<Arc<KeyList>>) -> Self {
        Self(lists)
    }

    /// The keys of the input at `position`, if they are known.
    pub(crate) fn get(&self, position: usize) -> Option<&Arc<KeyList>> {
        self.0.get(position)
    }
}

impl JobContext<'_> {
    /// Returns `Closed` if the job was cancelled.
    #[inline]
    pub fn check_cancelled(&self) -> Result<()> {
        self.cancel.check()
    }
}

impl fmt::Debug for JobContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContext")
            .field("registry", &self.registry)
            .field("cancel", &self.cancel)
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}

/// Result of a job: files to install, and figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct JobOutput {
    /// The tables in key order. They and their directory are synced. They share no user key.
    pub files: Vec<FileMeta>,
    /// The value files that the job wrote, ascending by number, synced before the tables that
    /// reference them.
    pub value_files: Vec<ValueFileMeta>,
    /// The invalid files that a compaction wrote, if its spec asks for them. Their install numbers
    /// are 0 until the owner installs them.
    pub invalid_files: Vec<InvalidFileMeta>,
    /// Numbers of records that were read, written and dropped.
    pub counts: Counts,
    /// File bytes read.
    pub bytes_read: u64,
    /// File bytes written.
    pub bytes_written: u64,
    /// Duration of the job in nanoseconds.
    pub duration_ns: u64,
    /// Steps of a garbage collection; zeros for other jobs.
    pub gc: GcFigures,
}

impl JobOutput {
    /// Names of all files that the job wrote.
    pub fn file_names(&self) -> impl Iterator<Item = String> {
        let tables = self.files.iter().map(|file| sst_name(FileNo(file.no)));
        let values = self.value_files.iter().map(|file| value_file_name(FileNo(file.no)));
        let invalid = self.invalid_files.iter().map(|file| invalid_file_name(FileNo(file.no)));
        tables.chain(values).chain(invalid)
    }

    /// Joins the results of the parts of one job, which are given in key order.
    pub(crate) fn joined(parts: Vec<Self>, duration_ns: u64) -> Self {
        let mut whole = Self { duration_ns, ..Self::default() };
        for part in parts {
            whole.files.extend(part.files);
            whole.value_files.extend(part.value_files);
            whole.invalid_files.extend(part.invalid_files);
            whole.counts.add(&part.counts);
            whole.bytes_read += part.bytes_read;
            whole.bytes_written += part.bytes_written;
        }
        whole.value_files.sort_unstable_by_key(|file| file.no);
        whole
    }
}

impl JobContext<'_> {
    pub(crate) fn output(&self, written: Written, counts: Counts, started_ns: u64) -> JobOutput {
        JobOutput {
            files: written.tables,
            value_files: written.value_files,
            invalid_files: Vec::new(),
            counts,
            bytes_read: self.progress.bytes_read(),
            bytes_written: self.progress.bytes_written(),
            duration_ns: self.clock.now_ns().saturating_sub(started_ns),
            gc: GcFigures::default(),
        }
    }
}
