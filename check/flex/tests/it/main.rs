//! Seeds of the store's protocol, and proof that the check would see what is wrong.

use std::panic::{AssertUnwindSafe, catch_unwind};

use archipelago_flex::Sabotage;
use archipelago_flex_check::{Cached, Outcome, Settings, replay_command, run};

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
    let (mut answered, mut faults, mut changes, mut tuned, mut cached) = (0, 0, 0, 0, [0; 6]);
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
        let Cached {
            pair_hits,
            address_hits,
            resolved,
            invalidations,
            waited_out,
            partitions_refused,
        } = outcome.cached;
        let now =
            [pair_hits, address_hits, resolved, invalidations, waited_out, partitions_refused];
        cached.iter_mut().zip(now).for_each(|(sum, now)| *sum += now);
    }
    // A run in which nothing happens proves nothing.
    assert!(
        answered > 40_000 && faults > 1000 && changes > 800 && tuned > 200,
        "{answered} {faults} {changes} {tuned}"
    );
    let at_least = [2000, 2000, 500, 200, 10, 10];
    assert!(cached.iter().zip(at_least).all(|(sum, least)| *sum > least), "{cached:?}");
}

#[test]
fn two_runs_of_a_seed_are_the_same() {
    let (one, other) = (sound(3), sound(3));
    assert_eq!((one.trace, one.events), (other.trace, other.events));
    assert_ne!(one.trace, sound(11).trace);
}

#[test]
fn a_write_that_commits_without_a_word_to_those_who_cache_the_old_value_is_noticed() {
    let silent = Sabotage { no_invalidation: true, ..Sabotage::default() };
    assert!((0..200).any(|seed| !with(seed, silent).violations.is_empty()));
}

#[test]
fn a_write_that_commits_before_the_other_copies_have_it_is_noticed() {
    let early = Sabotage { early_commit: true, ..Sabotage::default() };
    assert!((0..60).any(|seed| !with(seed, early).violations.is_empty()));
}
