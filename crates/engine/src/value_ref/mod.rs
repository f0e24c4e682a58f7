//! References to separated values, and metadata of value files.
//!
//! Large values lie in value files, outside of the levels. The levels keep a record of kind
//! [`crate::key::Kind::Indirect`] with a reference, so that compactions rewrite short references
//! instead of values. This module holds the types that tables, manifests and jobs share. It is
//! pure and knows no file. Paper: Terark-DS §2.2; design: `docs/design/separation.md`.

mod handle;
mod meta;
mod reference;

pub use handle::ValueHandle;
pub use meta::{InvalidFileMeta, VALUE_TRAILER_BYTES, ValueFileMeta, ValueRef, ValueRefs};
pub use reference::{BadReference, Reference};
