//! The plan: the steps that run, the number of their runs, and their estimated times. The functions
//! are pure.
//!
//! Estimates are from a machine of two cores whose disk syncs 2,500 times a second. They decide
//! only how often slow steps run. [`repeats`] decides anew with each measured time.

use std::collections::BTreeMap;

use super::flags::Settings;
use super::rows;
use super::steps::{Needs, Step, cold_reads, overwrites, writes_of_two};
use crate::compare::run::Side;

/// Smallest number of runs of a step to save time, unless a flag asks for fewer.
const RUNS_MIN: u64 = 3;

/// Steps that get fewer runs to save time, in this order. Steps that are measured for a time, and
/// steps that wait for the disk, vary least from run to run.
const LOWERED: [Step; 5] =
    [Step::Throttled, Step::FillSync, Step::FillRandom2, Step::FillSeq, Step::Cold];

/// Seconds of both sides together, per step.
pub(super) type Costs = BTreeMap<Step, f64>;

/// Steps that the chosen rows need, in order.
pub(super) fn steps(settings: &Settings) -> Vec<Step> {
    Step::ALL.into_iter().filter(|&step| rows::uses(step, &settings.rows)).collect()
}

/// Estimated seconds of one run of one side, with the database's removal.
pub(super) fn estimate(step: Step, side: Side, settings: &Settings) -> f64 {
    let Settings { num, reads, syncs, .. } = *settings;
    // Operations per second.
    let rate = |ours: f64, theirs: f64| match side {
        Side::Archipelago => ours,
        Side::RocksDb => theirs,
    };
    let load = rate(900e3, 75e3);
    let seconds = |ops: u64, rate: f64| ops as f64 / rate;
    let work = match step {
        Step::FillSeq => seconds(num, rate(1.2e6, 160e3)),
        Step::FillRandom => seconds(num, load) + seconds(num, rate(800e3, 500e3)),
        Step::Cold => seconds(cold_reads(settings), rate(10e3, 10e3)),
        Step::Warm => {
            seconds(2 * reads, rate(200e3, 72e3))
                + seconds(reads, rate(1e6, 400e3))
                + seconds(reads, rate(150e3, 60e3))
                + seconds(2 * reads, rate(4e6, 1e6))
        }
        Step::Warm2 => seconds(2 * reads, rate(350e3, 130e3)) + seconds(reads, rate(2e6, 700e3)),
        Step::Mixed => 3.0 * settings.mixed_seconds as f64,
        Step::Overwrite => seconds(overwrites(num), load) + seconds(num, rate(1e6, 1e6)),
        Step::FillRandom2 => seconds(2 * writes_of_two(num), rate(900e3, 100e3)),
        Step::FillSync => seconds(syncs, rate(2.5e3, 2.5e3)),
        Step::Throttled => settings.throttled_seconds as f64,
    };
    work + 1.0
}

/// The estimated costs of `steps`.
pub(super) fn costs(steps: &[Step], settings: &Settings) -> Costs {
    let both = |step: Step| {
        [Side::Archipelago, Side::RocksDb].iter().map(|&side| estimate(step, side, settings)).sum()
    };
    let mut costs: Costs = steps.iter().map(|&step| (step, both(step))).collect();
    // A load that no row asks for also runs if another step needs its database.
    let needs_load = |step: &&Step| matches!(step.needs(), Needs::Loaded | Needs::LoadedToChange);
    if !steps.contains(&Step::FillRandom)
        && let Some(first) = steps.iter().find(needs_load)
    {
        *costs.entry(*first).or_default() += both(Step::FillRandom);
    }
    costs
}

/// Number of runs of each step of `costs`, such that all runs fit into the settings' minutes. It is
/// the requested number, or less in the order of [`LOWERED`], but neither below [`RUNS_MIN`] nor
/// below the number of runs that are `done`.
pub(super) fn repeats(costs: &Costs, settings: &Settings, done: u64) -> BTreeMap<Step, u64> {
    let mut repeats: BTreeMap<Step, u64> =
        costs.keys().map(|&step| (step, settings.runs)).collect();
    if settings.minutes == 0 {
        return repeats;
    }
    let limit = settings.minutes as f64 * 60.0;
    let floor = RUNS_MIN.max(done).min(settings.runs);
    for step in LOWERED {
        while total(costs, &repeats) > limit && repeats.get(&step).is_some_and(|&n| n > floor) {
            repeats.entry(step).and_modify(|n| *n -= 1);
        }
    }
    repeats
}

/// Seconds of all runs together.
pub(super) fn total(costs: &Costs, repeats: &BTreeMap<Step, u64>) -> f64 {
    costs.iter().map(|(step, cost)| cost * repeats.get(step).copied().unwrap_or(0) as f64).sum()
}

/// The plan as text.
pub(super) fn text(costs: &Costs, repeats: &BTreeMap<Step, u64>, settings: &Settings) -> String {
    let mut text = format!(
        "{} keys, {} reads; each step is a process of each side, in turn.\nEstimated:\n",
        settings.num, settings.reads
    );
    for (step, cost) in costs {
        let runs = repeats.get(step).copied().unwrap_or(0);
        let lowered = if runs < settings.runs { " (lowered to save time)" } else { "" };
        let seconds = cost * runs as f64;
        text +=
            &format!("  {:<44} {runs} × {cost:5.0} s = {seconds:6.0} s{lowered}\n", step.name());
    }
    let minutes = total(costs, repeats) / 60.0;
    text += &format!("  {:<44} {minutes:.0} minutes", "all");
    if settings.minutes > 0 && minutes > settings.minutes as f64 {
        text += &format!(", more than the {} of --minutes: no step is run less", settings.minutes);
    }
    text
}
