//! What every file system must do, run over each of them, and what each one adds.

mod conformance;

use archipelago_env::{FileClass, IoContext, IoPurpose};

/// A context where it does not matter which.
fn any() -> IoContext {
    IoContext::new(FileClass::Other, IoPurpose::Maintenance)
}
