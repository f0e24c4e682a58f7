//! Seeds of the store's protocol, and proof that the check would see what is wrong.

use archipelago_flex::Sabotage;
use archipelago_flex_check::{Outcome, Settings, replay_command, run};
use archipelago_pool_check::named;

/// A run; should it panic, the test ends with the seed and the command that repeats it.
fn with(seed: u64, flex: Sabotage) -> Outcome {
    let replay = || replay_command(seed, Default::default(), flex);
    named(seed, replay, || run(Settings { flex, ..Settings::new(seed) }))
}

fn sound(seed: u64) -> Outcome {
    with(seed, Sabotage::default())
}

#[test]
fn seeds_find_every_key_linearizable_and_the_map_at_rest() {
    let (mut answered, mut faults, mut changes) = (0, 0, 0);
    for seed in 0..200 {
        let outcome = sound(seed);
        assert!(
            outcome.violations.is_empty(),
            "seed {seed}: {}\nrepeat: {}",
            outcome.violations.join("\n"),
            replay_command(seed, Default::default(), Sabotage::default())
        );
        answered += outcome.answered;
        faults += outcome.faults;
        changes += outcome.changes;
    }
    // A run in which nothing happens proves nothing.
    assert!(answered > 40_000 && faults > 1000 && changes > 800, "{answered} {faults} {changes}");
}

#[test]
fn two_runs_of_a_seed_are_the_same() {
    let (one, other) = (sound(3), sound(3));
    assert_eq!((one.trace, one.events), (other.trace, other.events));
    assert_ne!(one.trace, sound(11).trace);
}

#[test]
fn a_write_that_commits_before_the_other_copies_have_it_is_noticed() {
    let early = Sabotage { early_commit: true, ..Sabotage::default() };
    assert!((0..60).any(|seed| !with(seed, early).violations.is_empty()));
}
