//! Compaction: what may be forgotten when sorted runs are merged, and the job that merges them.
//!
//! [`iterator`] turns merged inputs into the records to write (pure: no file, no clock, no lock),
//! by the snapshots in [`stripes`] and what lies older below ([`crate::job::below`]), and
//! `references` says what becomes of references to separated values; [`job`] runs
//! one compaction from a serialised spec. Choosing what to compact is not here but in the picker, a
//! function of its own; so is cutting a compaction into parts ([`subcompaction`]).

pub(crate) mod cover;
mod drive;
mod fold;
pub mod iterator;
pub mod job;
pub mod pick;
pub(crate) mod references;
mod rules;
pub mod stripes;
pub mod subcompaction;

pub(crate) use drive::drive;
