//! The crate below all other crates of Archipelago: ids, the error type, the byte and wire codecs,
//! checksums, clocks, randomness, threads, tasks, virtual time, the byte budget, large buffers and
//! striped metrics.
//!
//! This crate is layer 0: it depends on no other crate of the workspace, and it does no file or
//! network I/O. It alone may use the raw clock, the raw random source and the raw thread spawner.
//! Clippy's `disallowed-methods` bans them elsewhere, so that a run in the simulation repeats
//! exactly from its seed.

pub mod budget;
pub mod buffers;
pub mod checksum;
pub mod clock;
pub mod codec;
pub mod error;
mod fault_switches;
pub mod ids;
pub mod metrics;
pub mod prefetch;
pub mod random;
pub mod runtime;
pub mod simulation;
pub mod size;
pub mod spawn;
pub mod stop_signal;
pub mod wire;

pub use error::{Error, ErrorKind, Result};
pub use ids::{CfId, Epoch, FileNo, SeqNo};
