//! Seeds of the protocol of offloaded jobs, and proof that the check notices faults.

use crate::seeds::{assert_seed_decides, is_noticed, sums};

const SEEDS: u64 = 300;

#[test]
fn every_job_is_installed_once_in_every_seed() {
    let sum = sums("offload", 0..SEEDS);
    // Runs in which executors install nothing, or nothing fails, prove nothing.
    assert!(sum("of them by executors") > sum("items installed") / 3);
    assert!(sum("of them through another scheduler") > SEEDS / 10);
    assert!(sum("owners that ended") > SEEDS);
    assert!(sum("schedulers that ended") > SEEDS);
    assert!(sum("executors that ended") > SEEDS);
    assert!(sum("memory nodes that ended") > SEEDS);
    assert!(sum("images that were gone") > SEEDS / 10);
    assert!(sum("jobs that waited long") > SEEDS);
}

#[test]
fn offload_runs_of_one_seed_are_the_same() {
    assert_seed_decides("offload");
}

#[test]
fn owner_that_discards_unknown_outputs_is_noticed() {
    assert!(is_noticed("offload", 0..SEEDS, &["forget"]));
}

#[test]
fn owner_that_installs_abandoned_attempts_is_noticed() {
    assert!(is_noticed("offload", 0..SEEDS, &["attempt"]));
}

#[test]
fn owner_that_decides_about_other_epochs_is_noticed() {
    assert!(is_noticed("offload", 0..SEEDS, &["epoch"]));
}

#[test]
fn scheduler_that_gives_out_attempts_of_another_life_is_noticed() {
    assert!(is_noticed("offload", 0..SEEDS, &["term"]));
}

#[test]
fn scheduler_that_serves_a_queue_from_its_end_is_noticed() {
    assert!(is_noticed("offload", 0..SEEDS, &["order"]));
}

#[test]
fn scheduler_that_gives_up_jobs_that_wait_is_noticed() {
    assert!(is_noticed("offload", 0..SEEDS, &["wait"]));
}

#[test]
fn owner_that_uses_numbers_before_they_are_durable_is_noticed() {
    assert!(is_noticed("offload", 0..SEEDS, &["lots"]));
}

#[test]
fn executor_that_reads_another_image_is_noticed() {
    assert!(is_noticed("offload", 0..SEEDS, &["image"]));
}
