//! A few hundred seeds of the pool's protocol, and proof that the check would see what is wrong.

use std::panic::{AssertUnwindSafe, catch_unwind};

use archipelago_memory::core::Sabotage;
use archipelago_sim::named;
use archipelago_sim::pool::{Outcome, Settings, replay_command, run};

fn with(seed: u64, sabotage: Sabotage) -> Outcome {
    named(
        seed,
        || replay_command(seed, sabotage),
        || run(Settings { sabotage, ..Settings::new(seed) }),
    )
}

fn sound(seed: u64) -> Outcome {
    with(seed, Sabotage::default())
}

#[test]
fn a_seed_that_panics_names_itself_and_the_command_that_repeats_it() {
    let sabotage = Sabotage { no_fill: true, ..Sabotage::default() };
    let panics =
        || named::<()>(4711, || replay_command(4711, sabotage), || panic!("a copy too many"));
    let cause = catch_unwind(AssertUnwindSafe(panics)).expect_err("it panics");
    let text = cause.downcast_ref::<String>().expect("a sentence");
    for word in ["seed 4711", "a copy too many", "--from 4711 --seeds 1 --trace --no-fill"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!text.contains("--no-fencing"), "{text}");
}

#[test]
fn seeds_find_nothing_lost_doubly_owned_or_leaked() {
    let (mut writes, mut reads, mut faults, mut evictions) = (0, 0, 0, 0);
    for seed in 0..300 {
        let outcome = sound(seed);
        assert!(
            outcome.violations.is_empty(),
            "seed {seed}: {}\nrepeat: {}",
            outcome.violations.join("\n"),
            replay_command(seed, Sabotage::default())
        );
        writes += outcome.acknowledged;
        reads += outcome.reads;
        faults += outcome.faults;
        evictions += outcome.evictions;
    }
    assert!(writes > 30_000 && reads > 30_000 && faults > 600, "{writes} {reads} {faults}");
    assert!(evictions > 100, "{evictions}");
}

#[test]
fn two_runs_of_a_seed_are_the_same() {
    for seed in [3, 11] {
        let (one, other) = (sound(seed), sound(seed));
        assert_eq!((one.trace, one.events), (other.trace, other.events), "seed {seed}");
    }
    assert_ne!(sound(3).trace, sound(11).trace);
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

#[test]
fn a_client_that_keeps_its_keys_when_it_is_gone_is_noticed() {
    assert!(noticed(Sabotage { no_eviction: true, ..Sabotage::default() }));
}
