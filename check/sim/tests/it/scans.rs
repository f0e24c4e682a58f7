//! Seeds in which nodes scan all keys while others come and go.

use archipelago_flexkv::Sabotage;
use archipelago_sim::flexkv::{Outcome, Settings, replay_command, run};
use archipelago_sim::named;

const SEEDS: u64 = 20;

fn with(seed: u64, flex: Sabotage) -> Outcome {
    let replay = || replay_command(seed, Default::default(), flex);
    let settings = Settings { flex, scans: true, calls: 40, ..Settings::new(seed) };
    named(seed, replay, || run(settings))
}

#[test]
fn scans_return_every_key_that_stays() {
    let (mut iterations, mut steps, mut grown, mut errors) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let outcome = with(seed, Sabotage::default());
        assert!(
            outcome.violations.is_empty(),
            "seed {seed}: {}\nrepeat, with --scans: {}",
            outcome.violations.join("\n"),
            replay_command(seed, Default::default(), Sabotage::default())
        );
        iterations += outcome.scans.iterations;
        steps += outcome.scans.steps;
        grown += outcome.scans.grown;
        errors += outcome.scans.errors;
    }
    // A run in which nothing happens proves nothing.
    let enough = iterations > 2 * SEEDS && steps > 50 * SEEDS && grown > 4 * SEEDS && errors > 0;
    assert!(enough, "{iterations} iterations, {steps} steps, {grown} doublings, {errors} errors");
}

/// Whether some seed says that a scan missed a key.
fn missed(flex: Sabotage) -> bool {
    let missed = |outcome: Outcome| outcome.violations.iter().any(|text| text.contains("missed"));
    (0..60).any(|seed| missed(with(seed, flex)))
}

#[test]
fn scan_that_skips_a_bucket_is_noticed() {
    assert!(missed(Sabotage { skip_bucket: true, ..Sabotage::default() }));
}

#[test]
fn scan_that_ignores_growth_is_noticed() {
    assert!(missed(Sabotage { no_rescan: true, ..Sabotage::default() }));
}
