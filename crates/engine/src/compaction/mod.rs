//! Compaction: which records a merge of sorted runs may drop, and the job that merges them.
//!
//! [`iterator`] turns merged inputs into the records to write. It is pure: no file, no clock, no
//! lock. It decides by the snapshots in [`stripes`] and by the older records below
//! ([`crate::job::below`]). `references` handles references to separated values. [`job`] runs one
//! compaction from a serialised spec. The picker ([`pick`]) chooses what to compact, and
//! [`subcompaction`] cuts a compaction into parts; both are pure functions.

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
