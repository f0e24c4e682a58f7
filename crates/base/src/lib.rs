//! What every other crate of Archipelago stands on: ids, the error type, the byte and wire codecs,
//! checksums, clocks, randomness, threads, tasks, the byte budget, large buffers and striped
//! metrics.
//!
//! Layer 0. It depends on no other crate of the workspace, does no I/O of its own, and is the
//! only place that may touch the raw clock, the raw random source and the raw thread spawner
//! (clippy's `disallowed-methods` bans them elsewhere), so that a run in simulation replays from
//! its seed.

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
pub mod wire;

pub use error::{Error, ErrorKind, Result};
pub use ids::{CfId, Epoch, FileNo, SeqNo};
