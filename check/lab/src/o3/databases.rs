//! Several databases that share executors and memory nodes: an owner's process for each, all of
//! which write at the same time (O³-LSM §5.5).
//!
//! Each owner has a link of its own. All owners start together and write for the same time, so the
//! second halves of their benchmarks cover about the same seconds.
//!
//! Failure: the first error of an owner is returned after the end of all owners.
//! Cost: a thread for each owner.

use std::path::Path;

use archipelago_bench::harness::store::{Error, Result};
use serde::{Deserialize, Serialize};

use super::cluster::Place;
use super::timeline::{RoleSample, Timeline};
use crate::program::run_to_end;
use crate::results::ResultEntry;

const MIB: f64 = 1_048_576.0;

/// Result of the benchmark of one database.
#[derive(Clone, Debug)]
pub(super) struct OwnerResult {
    pub(super) result: ResultEntry,
    pub(super) timeline: Option<Timeline>,
}

/// Figures of one of several databases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct DatabaseFigures {
    /// Operations per second.
    pub(super) rate: f64,
    /// Operations per second in the second half.
    pub(super) second_half: Option<f64>,
    /// Times that writers were stopped.
    pub(super) stops: u64,
    /// Share of the time of all threads of the benchmark in which they were stalled.
    pub(super) stalled: f64,
}

/// Figures of several databases.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct DatabasesFigures {
    pub(super) databases: Vec<DatabaseFigures>,
    /// Seconds, and MiB of the images of all databases at memory nodes.
    pub(super) held_mib: Vec<(f64, f64)>,
}

impl DatabasesFigures {
    /// The figures of owners with `threads` threads each, and of samples of their nodes.
    pub(super) fn of(owners: &[OwnerResult], samples: &[RoleSample], threads: u64) -> Self {
        let figures = |owner: &OwnerResult| {
            let seconds = owner.result.seconds.max(1e-9);
            DatabaseFigures {
                rate: owner.result.ops as f64 / seconds,
                second_half: owner.timeline.as_ref().and_then(|timeline| timeline.second_half),
                stops: owner.timeline.as_ref().map_or(0, |timeline| timeline.stops),
                stalled: owner.result.stall_seconds.total() / (seconds * threads as f64),
            }
        };
        let held = |sample: &RoleSample| {
            let memory = sample.states.iter().filter(|(place, _)| *place == Place::Memory);
            let bytes: u64 = memory.map(|(_, state)| state.shard_bytes).sum();
            (sample.t_s, bytes as f64 / MIB)
        };
        Self {
            databases: owners.iter().map(figures).collect(),
            held_mib: samples.iter().map(held).collect(),
        }
    }

    /// Operations per second of all databases together.
    pub(super) fn rate(&self) -> f64 {
        self.databases.iter().map(|database| database.rate).sum()
    }

    /// Operations per second of all databases together in the second half. `None` if a database
    /// has none.
    pub(super) fn second_half(&self) -> Option<f64> {
        self.databases.iter().map(|database| database.second_half).sum()
    }

    /// Rate of the slowest database over that of the fastest one, in the second half.
    pub(super) fn slowest_over_fastest(&self) -> Option<f64> {
        let rates: Option<Vec<f64>> =
            self.databases.iter().map(|database| database.second_half).collect();
        let rates = rates?;
        let slowest = rates.iter().copied().reduce(f64::min)?;
        let fastest = rates.iter().copied().reduce(f64::max)?;
        (fastest > 0.0).then(|| slowest / fastest)
    }
}

/// Runs the owners with these words at the same time, to their ends.
pub(super) fn run_owners(program: &Path, owners: &[Vec<String>]) -> Result<()> {
    let panicked = || Error::invalid("the thread of an owner panicked");
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            owners.iter().map(|words| scope.spawn(move || run_to_end(program, words))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        // Every owner has ended before an error is returned.
        let ended: Vec<Result<()>> =
            ended.map(|ended| ended.unwrap_or_else(|_| Err(panicked()))).collect();
        ended.into_iter().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(second_half: Option<f64>) -> DatabaseFigures {
        DatabaseFigures { rate: 10.0, second_half, stops: 1, stalled: 0.5 }
    }

    #[test]
    fn databases_are_summed_and_compared() {
        let of = |halves: &[Option<f64>]| DatabasesFigures {
            databases: halves.iter().map(|half| database(*half)).collect(),
            held_mib: Vec::new(),
        };
        let two = of(&[Some(30.0), Some(60.0)]);
        assert_eq!((two.rate(), two.second_half()), (20.0, Some(90.0)));
        assert_eq!(two.slowest_over_fastest(), Some(0.5));
        let unknown = of(&[Some(30.0), None]);
        assert_eq!((unknown.second_half(), unknown.slowest_over_fastest()), (None, None));
    }
}
