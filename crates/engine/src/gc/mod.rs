//! Garbage collection of value files: which files a job takes, what it reads, and how much space
//! garbage may occupy. The database owns the jobs; the modules here make the decisions.
//!
//! Large values lie in value files outside the levels, and tables refer to them. A value whose
//! reference a compaction dropped is *exposed* garbage; a value whose newest record already lies in
//! a higher level is *hidden* garbage. `docs/design/separation.md` describes the whole.
//!
//! - `pick`: the inputs of the next job.
//! - [`windows`]: the ranges of a value file that a job reads.
//! - `space_plan`: how garbage is divided between exposed and hidden, and when writers wait.
//! - `hidden`: the estimate of hidden garbage.
//!
//! The modules above consist of pure functions and values without I/O, clock or lock. The others do
//! the work:
//!
//! - `lookup`: which records of a value file are valid.
//! - `invalid`: valid records from the notes of compactions, for jobs without a database.
//! - [`job`]: copies the valid records of some value files into one.
//!
//! A build with the cargo feature `gc-by-key` looks up and reads one record at a time. It exists
//! for a comparison with the batches of the product, whose build has no such switch.

pub(crate) mod hidden;
pub(crate) mod invalid;
pub mod job;
pub(crate) mod lookup;
pub(crate) mod pick;
pub(crate) mod space_plan;
pub mod valid_bits;
pub mod windows;

/// Whether collections look up and read one record at a time instead of in batches.
pub(crate) const BY_KEY: bool = cfg!(feature = "gc-by-key");
