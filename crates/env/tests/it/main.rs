//! Tests of the contract of all file systems, and of the properties of each.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod conformance;
mod devices;
mod faults;
mod foreground;
mod limits;
mod local;
mod modes;
mod power_loss;
mod redundancy;
mod statistics;
mod virtual_time;

use archipelago_env::{FileClass, IoContext, IoPurpose};

/// A context for tests in which the context does not matter.
fn any() -> IoContext {
    IoContext::new(FileClass::Other, IoPurpose::Maintenance)
}
