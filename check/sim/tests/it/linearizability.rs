//! Seeds of the store's protocol, and proof that the check would see what is wrong.

use std::ops::Range;

use archipelago_flexkv::Sabotage;
use archipelago_sim::flexkv::{Cached, Outcome, Settings, replay_command, run, weaker};
use archipelago_sim::named;

const SEEDS: u64 = 60;

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
    let (mut answered, mut faults, mut changes, mut unknown) = (0, 0, 0, 0);
    let (mut tuned, mut refused_writes, mut cached) = (0, 0, [0; 9]);
    for seed in 0..SEEDS {
        let outcome = sound(seed);
        assert!(
            outcome.violations.is_empty(),
            "seed {seed}: {}\nrepeat: {}",
            outcome.violations.join("\n"),
            replay_command(seed, Default::default(), Sabotage::default())
        );
        answered += outcome.answered;
        unknown += outcome.unknown;
        faults += outcome.faults;
        changes += outcome.changes;
        tuned += outcome.tuned;
        refused_writes += outcome.refused;
        let Cached {
            pair_hits,
            address_hits,
            resolved,
            invalidations,
            waited_out,
            partitions_refused,
            delegated,
            set_at_once,
            set_back,
        } = outcome.cached;
        let refused = partitions_refused;
        let sets = [delegated, set_at_once, set_back];
        let now = [
            pair_hits,
            address_hits,
            resolved,
            invalidations,
            waited_out,
            refused,
            sets[0],
            sets[1],
            sets[2],
        ];
        cached.iter_mut().zip(now).for_each(|(sum, now)| *sum += now);
    }
    // A run in which nothing happens proves nothing.
    assert!(faults > 6 * SEEDS && changes > 4 * SEEDS, "{faults} {changes}");
    assert!(tuned > SEEDS && refused_writes > SEEDS, "{tuned} {refused_writes}");
    // Without Go clients make fewer calls (`judge.rs`).
    let calls = if weaker().is_some() { 200 } else { 800 };
    assert!(answered > calls * SEEDS && unknown < SEEDS / 10, "{answered} {unknown}");
    // Hits of pairs and of addresses, writes whose slot was known, invalidations; sent, and waited
    // out; sets that proxies did, and that waited for nobody, slots set back.
    let at_least = [2 * SEEDS, 20 * SEEDS, 5 * SEEDS, SEEDS / 2, 0, 0, 5 * SEEDS, SEEDS / 4, 1];
    assert!(cached.iter().zip(at_least).all(|(sum, least)| *sum >= least), "{cached:?}");
}

#[test]
fn two_runs_of_a_seed_are_the_same() {
    let (one, other) = (sound(3), sound(3));
    assert_eq!((one.trace, one.events), (other.trace, other.events));
    assert_ne!(one.trace, sound(11).trace);
}

/// Whether the history of some seed says that a step is left out.
fn noticed(
    mut seeds: Range<u64>,
    sabotage: archipelago_memory::core::Sabotage,
    flex: Sabotage,
) -> bool {
    seeds.any(|seed| {
        let replay = || replay_command(seed, sabotage, flex);
        let settings = Settings { flex, sabotage, ..Settings::new(seed) };
        let violations = named(seed, replay, || run(settings)).violations;
        violations.iter().any(|violation| violation.contains("not linearizable"))
    })
}

#[test]
fn a_write_that_commits_without_a_word_to_those_who_cache_the_old_value_is_noticed() {
    let silent = Sabotage { no_invalidation: true, ..Sabotage::default() };
    assert!((0..200).any(|seed| !with(seed, silent).violations.is_empty()));
}

#[test]
fn a_proxy_that_leaves_a_record_valid_whose_address_it_told_is_noticed() {
    let deaf = Sabotage { no_clearing: true, ..Sabotage::default() };
    assert!(noticed(0..200, Default::default(), deaf));
}

#[test]
fn a_write_that_commits_before_the_other_copies_have_it_is_noticed() {
    let early = Sabotage { early_commit: true, ..Sabotage::default() };
    assert!(noticed(0..60, Default::default(), early));
}

/// A number that a session had used up was sent for ever: who was told of a node before the map
/// named it forgot it, and began a new session as the same client.
#[test]
fn seeds_that_once_failed_are_sound() {
    for seed in [935, 1159] {
        let outcome = sound(seed);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
    }
}

/// One of some 80 seeds says so: the node's lease alone keeps nearly all of it from harm.
#[test]
fn a_deposed_owner_whose_late_writes_are_not_refused_is_noticed() {
    let sabotage = archipelago_memory::core::Sabotage { no_eviction: true, ..Default::default() };
    assert!((800..1400).any(|seed| {
        let replay = || replay_command(seed, sabotage, Sabotage::default());
        let settings = Settings { sabotage, ..Settings::new(seed) };
        !named(seed, replay, || run(settings)).violations.is_empty()
    }));
}

#[test]
fn a_node_that_was_taken_for_dead_and_goes_on_is_noticed() {
    let sabotage = archipelago_memory::core::Sabotage { no_eviction: true, ..Default::default() };
    let flex = Sabotage { no_lease: true, ..Sabotage::default() };
    assert!(noticed(0..120, sabotage, flex));
}
