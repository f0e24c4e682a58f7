//! Seeds of the shard host, and proof that the check notices faults.

use crate::seeds::{assert_seed_decides, is_noticed, sums};

const SEEDS: u64 = 100;

#[test]
fn searches_of_shards_hold_in_every_seed() {
    let sum = sums("shards", 0..SEEDS);
    // Runs in which little is registered or searched, or nothing fails, prove nothing.
    assert!(sum("shards registered") > 20 * SEEDS);
    assert!(sum("keys searched") > 50 * SEEDS);
    assert!(sum("pages scanned") > 50 * SEEDS);
    assert!(sum("answers cut") > 3 * SEEDS);
    assert!(sum("images that a late write damaged") > SEEDS / 4);
    assert!(sum("searches refused") > SEEDS);
    assert!(sum("shards adopted") > SEEDS);
    assert!(sum("messages repeated") > 10 * SEEDS);
    assert!(sum("grants refused") > SEEDS);
    assert!(sum("shards written ahead") > 2 * SEEDS && sum("grants given back") > SEEDS / 2);
    assert!(sum("owners") > 3 * SEEDS && sum("lives of the node") > 2 * SEEDS);
}

#[test]
fn shard_runs_of_one_seed_are_the_same() {
    assert_seed_decides("shards");
}

#[test]
fn host_that_serves_earlier_owners_is_noticed() {
    assert!(is_noticed("shards", 0..SEEDS, &["epoch"]));
}

#[test]
fn host_that_takes_damaged_pieces_is_noticed() {
    assert!(is_noticed("shards", 0..SEEDS, &["pieces"]));
}

#[test]
fn host_that_keeps_grants_of_released_shards_is_noticed() {
    assert!(is_noticed("shards", 0..SEEDS, &["void"]));
}

#[test]
fn host_that_keeps_grants_that_nobody_uses_is_noticed() {
    assert!(is_noticed("shards", 0..SEEDS, &["grants"]));
}

#[test]
fn host_that_finds_nothing_in_unknown_shards_is_noticed() {
    assert!(is_noticed("shards", 0..SEEDS, &["unknown"]));
}

#[test]
fn host_that_cuts_answers_without_a_word_is_noticed() {
    assert!(is_noticed("shards", 0..SEEDS, &["resume"]));
}

#[test]
fn host_without_a_limit_is_noticed() {
    assert!(is_noticed("shards", 0..SEEDS, &["limit"]));
}

#[test]
fn host_that_keeps_shards_of_silent_owners_is_noticed() {
    assert!(is_noticed("shards", 0..SEEDS, &["orphans"]));
}

#[test]
fn host_that_registers_a_shard_twice_is_noticed() {
    assert!(is_noticed("shards", 0..SEEDS, &["idempotence"]));
}
