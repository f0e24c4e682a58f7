//! Seeds of shards with two copies, and proof that the check notices faults.

use crate::seeds::{assert_seed_decides, is_noticed, sums};

const SEEDS: u64 = 60;

#[test]
fn nothing_is_lost_while_a_copy_lives_in_every_seed() {
    let sum = sums("copies", 0..SEEDS);
    // Runs in which nothing fails, or in which no copy is used, prove nothing.
    assert!(sum("second copies sent") > 10 * SEEDS);
    assert!(sum("other copies used") > 2 * SEEDS);
    assert!(sum("second copies given up") > 2 * SEEDS);
    assert!(sum("failures of nodes") > 3 * SEEDS);
    assert!(sum("reads") > 50 * SEEDS && sum("reads failed") * 5 < sum("reads"));
}

#[test]
fn copy_runs_of_one_seed_are_the_same() {
    assert_seed_decides("copies");
}

#[test]
fn owner_that_releases_one_of_two_copies_is_noticed() {
    assert!(is_noticed("copies", 0..SEEDS, &["second-release"]));
}

#[test]
fn owner_that_does_not_use_the_other_copy_is_noticed() {
    assert!(is_noticed("copies", 0..SEEDS, &["promotion"]));
}
