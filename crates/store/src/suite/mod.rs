//! Tests of the traits of a pool that run over any backend.
//!
//! [`blobs_conform`], [`logs_conform`] and [`register_conforms`] check the invariants in the heads
//! of [`blob`](crate::blob), [`log`](crate::log) and [`register`](crate::register), as far as one
//! process can see them. A backend's own tests add losses of nodes, kills and power losses. The
//! cargo feature `suite` opens the module, and only tests turn it on.
//!
//! The pool may have other contents. Every run uses volumes, blobs, logs and names of its own,
//! which follow from its seed.
//!
//! Thread-safety: the checks start threads of their own. Failure: a check panics, and says what
//! differs. Cost: a few MB, and a few thousand calls.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod blobs;
mod logs;
mod register;

pub use blobs::blobs_conform;
pub use logs::{CountedLosses, KeptLayouts, logs_conform};
pub use register::register_conforms;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose};

fn context(class: FileClass) -> IoContext {
    IoContext::new(class, IoPurpose::Maintenance)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// The error of `outcome`, which must have `kind`.
fn assert_fails<T>(outcome: Result<T>, kind: ErrorKind, doing: &str) -> Error {
    let error = outcome.err().unwrap_or_else(|| panic!("{doing} should have failed"));
    assert_eq!(error.kind(), kind, "{doing}: {error}");
    error
}
