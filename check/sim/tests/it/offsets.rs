//! Seeds of look-ups with the key-offset cache, and proof that the check notices faults.

use crate::seeds::{assert_seed_decides, is_noticed, sums};

const SEEDS: u64 = 60;

#[test]
fn look_ups_with_cached_offsets_hold_in_every_seed() {
    let sum = sums("offsets", 0..SEEDS);
    // Runs that use no entry, or in which nothing fails, prove nothing.
    assert!(sum("keys looked up") > 50 * SEEDS);
    assert!(sum("cached offsets read") > 10 * SEEDS);
    assert!(sum("cached offsets of other keys") > 5 * SEEDS);
    assert!(sum("offsets of hot keys") > SEEDS);
    assert!(sum("lives of the node") > SEEDS + SEEDS / 4);
}

#[test]
fn look_up_runs_of_one_seed_are_the_same() {
    assert_seed_decides("offsets");
}

#[test]
fn owner_that_takes_any_record_at_a_cached_offset_is_noticed() {
    assert!(is_noticed("offsets", 0..SEEDS, &["offsets"]));
}

#[test]
fn owner_that_caches_an_older_version_of_a_shard_is_noticed() {
    // Few readers see an older version of a key and meet its entry again.
    assert!(is_noticed("offsets", 0..200, &["newest"]));
}
