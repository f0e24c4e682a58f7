//! Opening a database, following its writer, and closing it.
//!
//! Thread-safety, failure and cost: see the modules.

pub(crate) mod catch_up;
pub(crate) mod close;
pub(crate) mod open;
