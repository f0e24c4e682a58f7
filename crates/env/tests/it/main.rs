//! What every file system must do, run over each of them, and what each one adds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod conformance;
mod devices;
mod faults;
mod foreground;
mod limits;
mod local;
mod modes;
mod power_loss;
mod statistics;
mod virtual_time;

use archipelago_env::{FileClass, IoContext, IoPurpose};

/// A context where it does not matter which.
fn any() -> IoContext {
    IoContext::new(FileClass::Other, IoPurpose::Maintenance)
}
