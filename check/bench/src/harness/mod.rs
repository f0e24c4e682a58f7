//! Parts that the benchmark shares with the laboratory (`archipelago-lab`): flags of the command
//! line, opening the database, and measuring and reporting runs.
//!
//! The laboratory runs other programs and reads their results, so it needs flags, files and
//! figures, but none of the loops that measure.

pub mod flags;
pub mod gc;
pub mod histogram;
pub mod io;
pub mod json;
pub mod local_log;
pub mod network;
pub mod process;
pub mod progress;
pub mod report;
pub mod samples;
pub mod steps;
pub mod store;
pub mod tally;
pub mod tiers;
pub mod twitter;
pub(crate) mod volume;
