//! Runs of many settings, on one thread per processor.

use std::sync::Arc;

use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use parking_lot::Mutex;

use super::flags::ModelFlags;
use super::profile::{CostProfile, Machine};
use super::setting::{Mode, Setting};
use super::sim::Sim;
use super::trace::Outcome;
use archipelago_bench::harness::store::Result;

/// Settings of a sweep.
#[derive(Debug)]
pub(super) struct Sweep {
    pub(super) degrees: Vec<usize>,
    pub(super) background: usize,
    pub(super) modes: Vec<Mode>,
    pub(super) base: Setting,
}

/// Results of one sweep, by mode and degree.
#[derive(Debug)]
pub(super) struct Runs {
    /// Outcomes where the number of jobs is the degree.
    pub(super) by_jobs: Vec<Outcome>,
    /// Outcomes with a fixed number of jobs. Empty without that sweep.
    pub(super) by_degree: Vec<Outcome>,
}

impl Sweep {
    pub(super) fn new(flags: &ModelFlags, cost: CostProfile, machine: Machine) -> Self {
        let mut degrees: Vec<usize> = flags.degrees.iter().map(|&degree| degree as usize).collect();
        degrees.sort_unstable();
        degrees.dedup();
        let mut modes = flags.modes.clone();
        modes.sort_unstable();
        modes.dedup();
        let records = flags.gigabytes * 1_000_000_000 / cost.record_bytes();
        let mut base = Setting::of(Mode::Classic, 1, cost);
        base.machine = machine;
        base.records = records;
        base.writers = flags.writers as usize;
        base.seed = flags.seed;
        Self { degrees, background: flags.background as usize, modes, base }
    }

    fn setting(&self, mode: Mode, degree: usize, jobs: usize) -> Setting {
        Setting { mode, degree, jobs, ..self.base.clone() }
    }

    pub(super) fn run(&self) -> Result<Runs> {
        let mut settings = Vec::new();
        for &mode in &self.modes {
            settings.extend(self.degrees.iter().map(|&degree| self.setting(mode, degree, degree)));
        }
        let first = settings.len();
        for &mode in self.modes.iter().filter(|_| self.background > 0) {
            // Classic has no degree.
            let degrees = if mode == Mode::Classic { &[1][..] } else { &self.degrees };
            let more = degrees.iter().map(|&degree| self.setting(mode, degree, self.background));
            settings.extend(more);
        }
        let mut by_jobs = run_all(settings)?;
        let by_degree = by_jobs.split_off(first);
        Ok(Runs { by_jobs, by_degree })
    }
}

/// Runs every setting, and returns the results in the same order.
fn run_all(settings: Vec<Setting>) -> Result<Vec<Outcome>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(settings.len());
    let results: Vec<Option<Result<Outcome>>> = settings.iter().map(|_| None).collect();
    let shared = Arc::new(Mutex::new((settings.into_iter().enumerate(), results)));
    let mut joiners = Vec::new();
    for _ in 0..threads {
        let shared = Arc::clone(&shared);
        let body = move || {
            loop {
                let next = shared.lock().0.next();
                let Some((at, setting)) = next else { return };
                let result = Sim::new(setting).run();
                shared.lock().1[at] = Some(result);
            }
        };
        joiners.push(SystemSpawn.spawn("archi-model", Box::new(body))?);
    }
    joiners.into_iter().map(Joiner::join).fold(Ok(()), Result::and)?;
    let results = std::mem::take(&mut shared.lock().1);
    results.into_iter().flatten().collect()
}
