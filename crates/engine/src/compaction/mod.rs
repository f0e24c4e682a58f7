//! Being built.

pub mod pick;
