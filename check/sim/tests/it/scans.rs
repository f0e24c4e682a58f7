//! Seeds in which nodes scan all keys while clients add and remove keys.

use crate::seeds::{is_noticed_with, sums};

const SEEDS: u64 = 20;

#[test]
fn scans_return_every_key_that_stays() {
    let sum = sums("flexkv-scans", 0..SEEDS);
    let (iterations, steps) = (sum("scan iterations"), sum("scan steps"));
    let (grown, errors) = (sum("partitions doubled"), sum("scan steps with an error"));
    // A run without scans and faults proves nothing.
    let enough = iterations > 2 * SEEDS && steps > 50 * SEEDS && grown > 4 * SEEDS && errors > 0;
    assert!(enough, "{iterations} iterations, {steps} steps, {grown} doublings, {errors} errors");
}

#[test]
fn scan_that_skips_a_bucket_is_noticed() {
    assert!(is_noticed_with("flexkv-scans", 0..60, &["first-bucket"], "missed"));
}

#[test]
fn scan_that_ignores_growth_is_noticed() {
    assert!(is_noticed_with("flexkv-scans", 0..60, &["rescan"], "missed"));
}
