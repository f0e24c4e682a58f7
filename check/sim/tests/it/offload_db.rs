//! Seeds of a database that offloads, and proof that the checks notice omissions.

use crate::seeds::{assert_seed_decides, is_noticed, sums};

const SEEDS: u64 = 20;
/// Number of seeds within which an omission must be noticed.
const NOTICED_MAX: u64 = 100;

#[test]
fn database_that_offloads_loses_nothing_and_leaves_nothing_behind() {
    let sum = sums("offload-db", 0..SEEDS);
    assert!(sum("writes acknowledged") > 100 * SEEDS && sum("reads compared") > 40 * SEEDS);
    // Runs in which little leaves the owner, or nothing fails, prove nothing.
    assert!(sum("shards sent") > 5 * SEEDS, "{}", sum("shards sent"));
    assert!(sum("jobs in executors") > 2 * SEEDS, "{}", sum("jobs in executors"));
    assert!(sum("of them flushes") > SEEDS, "{}", sum("of them flushes"));
    assert!(sum("shards lost") > SEEDS / 10, "{}", sum("shards lost"));
    assert!(sum("owners") > 3 * SEEDS && sum("losses of power") > SEEDS / 4);
    assert!(sum("faults") > 30 * SEEDS);
}

#[test]
fn runs_of_a_database_that_offloads_follow_from_their_seed() {
    assert_seed_decides("offload-db");
}

#[test]
fn log_without_the_records_of_shards_that_are_away_is_noticed() {
    assert!(is_noticed("offload-db", 0..NOTICED_MAX, &["log-pin"]));
}

#[test]
fn flush_that_is_installed_before_its_log_is_durable_is_noticed() {
    assert!(is_noticed("offload-db", 0..NOTICED_MAX, &["log-sync"]));
}

#[test]
fn unsynced_outputs_of_jobs_are_noticed() {
    assert!(is_noticed("offload-db", 0..NOTICED_MAX, &["output-sync"]));
}
