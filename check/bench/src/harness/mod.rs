//! What the benchmark shares with the laboratory (`archipelago-lab`): the command line's flags, the
//! database behind them, and how runs are measured and reported.
//!
//! The laboratory runs other programs and reads their results, so it needs flags, files and
//! figures, but none of the loops that measure.

pub mod flags;
pub mod histogram;
pub mod json;
pub mod process;
pub mod progress;
pub mod report;
pub mod samples;
pub mod skew;
pub mod store;
pub mod tally;
pub mod tiers;
pub mod twitter;
