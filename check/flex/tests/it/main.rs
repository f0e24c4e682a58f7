//! Seeds of the store's protocol, and proof that the check would see what is wrong.

use std::panic::{AssertUnwindSafe, catch_unwind};

use archipelago_flex::Sabotage;
use archipelago_flex_check::{Outcome, Settings, replay_command, run};

/// A run; should it panic, the test ends with the seed and the command that repeats it.
fn with(seed: u64, flex: Sabotage) -> Outcome {
    let running = || run(Settings { flex, ..Settings::new(seed) });
    catch_unwind(AssertUnwindSafe(running)).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().cloned();
        let text = text.or_else(|| cause.downcast_ref::<&str>().map(ToString::to_string));
        let text = text.unwrap_or_else(|| "a panic without words".into());
        panic!("seed {seed} panicked: {text}\nrepeat: {}", replay_command(seed))
    })
}

fn sound(seed: u64) -> Outcome {
    with(seed, Sabotage::default())
}

#[test]
fn seeds_find_every_key_linearizable_and_the_map_at_rest() {
    let (mut answered, mut faults, mut changes, mut tuned) = (0, 0, 0, 0);
    for seed in 0..200 {
        let outcome = sound(seed);
        assert!(
            outcome.violations.is_empty(),
            "seed {seed}: {}\nrepeat: {}",
            outcome.violations.join("\n"),
            replay_command(seed)
        );
        answered += outcome.answered;
        faults += outcome.faults;
        changes += outcome.changes;
        tuned += outcome.tuned;
    }
    // A run in which nothing happens proves nothing.
    assert!(
        answered > 40_000 && faults > 1000 && changes > 800 && tuned > 200,
        "{answered} {faults} {changes} {tuned}"
    );
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
