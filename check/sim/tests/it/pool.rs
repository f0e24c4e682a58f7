//! A few hundred seeds of the pool's protocol, and proof that the check notices faults.

use crate::seeds::{assert_seed_decides, is_noticed, sums};

#[test]
fn pool_loses_nothing_and_leaks_nothing() {
    let sum = sums("pool", 0..300);
    let (writes, reads) = (sum("writes acknowledged"), sum("reads checked"));
    let (faults, evictions) = (sum("faults"), sum("evictions"));
    assert!(writes > 30_000 && reads > 30_000 && faults > 600, "{writes} {reads} {faults}");
    assert!(evictions > 100, "{evictions}");
}

#[test]
fn pool_runs_of_one_seed_are_the_same() {
    assert_seed_decides("pool");
}

#[test]
fn node_that_does_not_fence_is_noticed() {
    assert!(is_noticed("pool", 0..300, &["fencing"]));
}

#[test]
fn copy_that_is_not_filled_is_noticed() {
    assert!(is_noticed("pool", 0..300, &["fill"]));
}

#[test]
fn evicted_client_that_keeps_its_keys_is_noticed() {
    assert!(is_noticed("pool", 0..300, &["eviction"]));
}
