//! A few hundred seeds of the pool's protocol, and proof that the check would see what is wrong.

use archipelago_memory::core::Sabotage;
use archipelago_pool_check::{Outcome, Settings, run};

fn with(seed: u64, sabotage: Sabotage) -> Outcome {
    run(Settings { sabotage, ..Settings::new(seed) })
}

#[test]
fn seeds_find_nothing_lost_doubly_owned_or_leaked() {
    let (mut writes, mut reads, mut faults) = (0, 0, 0);
    for seed in 0..300 {
        let outcome = run(Settings::new(seed));
        assert!(
            outcome.violations.is_empty(),
            "{}\nrepeat: cargo run -p archipelago-pool-check -- --from {seed} --seeds 1 --trace",
            outcome.violations.join("\n")
        );
        writes += outcome.acknowledged;
        reads += outcome.reads;
        faults += outcome.faults;
    }
    assert!(writes > 30_000 && reads > 30_000 && faults > 600, "{writes} {reads} {faults}");
}

#[test]
fn two_runs_of_a_seed_are_the_same() {
    for seed in [3, 11] {
        let (one, other) = (run(Settings::new(seed)), run(Settings::new(seed)));
        assert_eq!((one.trace, one.events), (other.trace, other.events), "seed {seed}");
    }
    assert_ne!(run(Settings::new(3)).trace, run(Settings::new(11)).trace);
}

/// Whether some seed notices that a step of the protocol is left out.
fn noticed(sabotage: Sabotage) -> bool {
    (0..300).any(|seed| !with(seed, sabotage).violations.is_empty())
}

#[test]
fn a_node_that_does_not_fence_is_noticed() {
    assert!(noticed(Sabotage { no_fencing: true, ..Sabotage::default() }));
}

#[test]
fn a_copy_that_is_not_filled_is_noticed() {
    assert!(noticed(Sabotage { no_fill: true, ..Sabotage::default() }));
}
