//! Seeds of databases that share memory nodes, and proof that the check notices a fault.

use crate::seeds::{assert_seed_decides, is_noticed, sums};

const SEEDS: u64 = 60;

#[test]
fn guarantees_hold_in_every_seed() {
    let sum = sums("shares", 0..SEEDS);
    // Runs in which no memory is lent and given back prove nothing.
    assert!(sum("shards sent") > 100 * SEEDS);
    assert!(sum("shards flushed") > 50 * SEEDS);
    assert!(sum("guarantees given back") > SEEDS);
    assert!(sum("nodes drained") > SEEDS / 2);
    assert!(sum("times that a node was dead for a while") > 0);
}

#[test]
fn share_runs_of_one_seed_are_the_same() {
    assert_seed_decides("shares");
}

#[test]
fn host_that_ignores_guarantees_is_noticed() {
    assert!(is_noticed("shares", 0..SEEDS, &["guarantees"]));
}

#[test]
fn host_that_keeps_unused_grants_is_noticed() {
    assert!(is_noticed("shares", 0..SEEDS, &["unused"]));
}
