//! Seeds of the protocol by which one of several managers acts, and proof that the check notices
//! faults.

use crate::seeds::{assert_seed_decides, is_noticed, sums};

const SEEDS: u64 = 400;

#[test]
fn one_manager_at_a_time_holds_office_in_every_seed() {
    let terms = sums("office", 0..SEEDS)("terms of office");
    // A run in which the office never passes to another manager proves nothing.
    assert!(terms > 4 * SEEDS, "{terms}");
}

#[test]
fn office_runs_of_one_seed_are_the_same() {
    assert_seed_decides("office");
}

#[test]
fn manager_that_acts_with_one_promise_is_noticed() {
    assert!(is_noticed("office", 0..SEEDS, &["majority"]));
}

#[test]
fn manager_that_counts_from_the_answer_is_noticed() {
    assert!(is_noticed("office", 0..SEEDS, &["sent-time"]));
}

#[test]
fn node_that_promises_again_after_a_restart_is_noticed() {
    assert!(is_noticed("office", 0..SEEDS, &["grace"]));
}

#[test]
fn node_that_promises_while_a_promise_lasts_is_noticed() {
    assert!(is_noticed("office", 0..SEEDS, &["patience"]));
}
