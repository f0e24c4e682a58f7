//! Seeds of the store over storage nodes, proof that the checks notice omissions, and the
//! throughput of clusters of growing size.

use archipelago_sim::storage::growth;
use archipelago_sim::{RunRequest, find, same_twice};

use crate::seeds::{is_noticed, sums};

/// Number of seeds within which an omission must be noticed.
const NOTICED_MAX: u64 = 150;

#[test]
fn storage_loses_nothing_and_leaves_nothing_behind() {
    let sum = sums("storage", 0..60);
    let (operations, take_overs) = (sum("operations"), sum("take-overs"));
    let (faults, reads) = (sum("faults"), sum("files read"));
    assert!(operations > 1_200 && reads > 2_500, "{operations} operations, {reads} reads");
    assert!(take_overs > 200 && faults > 600, "{take_overs} take-overs, {faults} faults");
    let failed = sum("failed operations");
    assert!(failed * 2 < operations, "{failed} of {operations} operations failed");
    assert!(sum("register operations") > 800, "{}", sum("register operations"));
    assert!(sum("devices lost") > 0, "{} devices were lost", sum("devices lost"));
    let damaged = sum("damaged files of logs");
    let reported = sum("damaged extents that nodes reported");
    assert!(damaged > 10 && reported > 2, "{damaged} damaged files, {reported} reported extents");
    let (chunks, extents) = (sum("chunks repaired"), sum("copies of extents repaired"));
    assert!(chunks > 10 && extents > 5, "{chunks} chunks and {extents} extents were repaired");
    let whole = sum("runs with all copies of logs");
    assert!(whole > 5, "{whole} runs repaired all logs");
    let (renewed, kept_away) = (sum("leases renewed"), sum("openers that found a living lease"));
    assert!(renewed > 20 && kept_away > 5, "{renewed} renewals kept {kept_away} openers away");
}

#[test]
fn databases_on_storage_nodes_lose_nothing() {
    let sum = sums("storage-db", 0..60);
    let (writes, reads) = (sum("writes acknowledged"), sum("reads"));
    assert!(writes > 500 && reads > 200, "{writes} writes, {reads} reads");
    assert!(sum("owners") > 120 && sum("faults") > 200, "{}", sum("owners"));
}

#[test]
fn storage_loses_nothing_in_rare_situations() {
    let sum = sums("storage-directed", 0..24);
    assert!(sum("take-overs") > 80, "{} take-overs", sum("take-overs"));
    assert!(sum("register operations") > 300, "{}", sum("register operations"));
    assert!(sum("faults") > 40, "{} faults", sum("faults"));
}

#[test]
fn storage_runs_of_one_seed_are_the_same() {
    for name in ["storage", "storage-db", "storage-directed"] {
        let scenario = find(name).expect("a scenario");
        let trace = |seed| match same_twice(scenario, &RunRequest::new(seed)) {
            Ok(outcome) => outcome.trace,
            Err(failure) => panic!("{failure}"),
        };
        assert_ne!(trace(3), trace(11), "{name}");
        trace(4);
        trace(5);
    }
}

/// Checks that the scenario notices the omission of a step.
fn assert_noticed(scenario: &str, step: &'static str) {
    assert!(
        is_noticed(scenario, 0..NOTICED_MAX, &[step]),
        "no seed notices that {step} is missing"
    );
}

#[test]
fn node_that_serves_old_epochs_is_noticed() {
    assert_noticed("storage", "epoch-check");
}

#[test]
fn node_that_is_never_in_limbo_is_noticed() {
    assert_noticed("storage", "limbo");
}

#[test]
fn bytes_without_checksums_are_noticed() {
    assert_noticed("storage", "checksums");
}

#[test]
fn acknowledgement_by_one_node_is_noticed() {
    assert_noticed("storage", "quorum");
}

#[test]
fn seal_before_all_chunks_are_durable_is_noticed() {
    assert_noticed("storage", "whole-seal");
}

#[test]
fn release_of_pending_blobs_is_noticed() {
    assert_noticed("storage", "pending");
}

#[test]
fn release_that_ignores_other_volumes_is_noticed() {
    assert_noticed("storage", "retaining-sets");
}

#[test]
fn recovery_that_reads_without_a_fence_is_noticed() {
    assert_noticed("storage-directed", "fence");
}

#[test]
fn answer_that_counts_after_the_end_of_its_extent_is_noticed() {
    assert_noticed("storage-directed", "chosen-end");
}

#[test]
fn root_member_that_counts_before_the_copy_is_noticed() {
    assert_noticed("storage-directed", "root-copy");
}

#[test]
fn insertion_before_the_quorum_is_noticed() {
    assert_noticed("storage-db", "insertion-after-quorum");
}

#[test]
fn throughput_follows_the_number_of_nodes() {
    let measure = |nodes, clients| growth(nodes, clients).expect("every write succeeds");
    let (small, large) = (measure(6, 12), measure(24, 12));
    let factor = large.bytes_per_s as f64 / small.bytes_per_s as f64;
    assert!(factor >= 0.9 * 4.0, "{factor}: {small:?} {large:?}");
    assert!(large.client_card_use() < 0.9, "the clients have room");
    let full = measure(24, 1);
    assert!(full.client_card_use() > 0.9, "one client sends as fast as its card: {full:?}");
}
