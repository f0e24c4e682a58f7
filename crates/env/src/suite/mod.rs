//! Tests of the contract of [`FileSystem`](crate::FileSystem) that run over any implementation, and
//! replays of fuzz inputs.
//!
//! The tests of this crate run them over its own file systems and decoders, and other crates over
//! theirs. The cargo feature `suite` opens the module, and only tests turn it on.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`conforms`] | a list of checks of single operations |
//! | [`corpus`], [`replay`] | the inputs of fuzz targets, and changes of them |
//! | [`power_loss`] | random operations, then kills and power losses, compared with a model |
//!
//! Failure: a test panics, and says what differs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod conformance;
mod corpus;
pub mod power_loss;

pub use conformance::conforms;
pub use corpus::{corpus, replay};

use crate::context::{FileClass, IoContext, IoPurpose};

/// A context for tests in which the context does not matter.
fn any() -> IoContext {
    IoContext::new(FileClass::Other, IoPurpose::Maintenance)
}
