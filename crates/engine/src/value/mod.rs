//! Separated values: large values lie in value files, outside of the levels.
//!
//! A flush or compaction moves the value of a record to a value file if the value has at least
//! `value_separation_bytes`. The levels keep a record of kind [`crate::key::Kind::Indirect`] with a
//! reference, so that compactions rewrite short references instead of values. Paper: Terark-DS
//! §2.2; design: `docs/design/separation.md`.

mod meta;

pub use meta::{VALUE_TRAILER_BYTES, ValueFileMeta, ValueRef, ValueRefs};
