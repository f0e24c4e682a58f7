//! Seeds of the store's protocol, and proof that the check notices faults.

use archipelago_sim::flexkv::weaker;
use archipelago_sim::{RunRequest, find, run_seeds, same_twice};

use crate::seeds::{is_noticed, is_noticed_with, sums};

const SEEDS: u64 = 60;

#[test]
fn every_key_is_linearizable_and_the_map_settles() {
    let sum = sums("flexkv", 0..SEEDS);
    // A run without calls and faults proves nothing. On a machine without Go, clients make fewer
    // calls (`judge.rs`).
    let calls = if weaker().is_some() { 200 } else { 800 };
    let at_least = [
        ("calls answered", calls * SEEDS + 1),
        ("faults", 6 * SEEDS + 1),
        ("changes of maps", 4 * SEEDS + 1),
        ("decisions by load", SEEDS + 1),
        ("writes refused without effect", SEEDS + 1),
        ("reads from cached pairs", 2 * SEEDS),
        ("reads from cached addresses", 20 * SEEDS),
        ("writes to cached slots", 5 * SEEDS),
        ("invalidations", SEEDS / 2),
        ("sets delegated to proxies", 5 * SEEDS),
        ("sets on the fast path", SEEDS / 4),
        ("slots set back", 1),
    ];
    for (name, least) in at_least {
        assert!(sum(name) >= least, "{} {name}, expected {least}", sum(name));
    }
    let unknown = sum("keys that the judge did not finish");
    assert!(unknown < SEEDS / 10, "{unknown}");
}

#[test]
fn store_runs_of_one_seed_are_the_same() {
    let store = find("flexkv").expect("a scenario");
    let sound = |request: &RunRequest| store.check(request).unwrap_or_else(|f| panic!("{f}"));
    let twice =
        same_twice(store, &RunRequest::new(3)).unwrap_or_else(|failure| panic!("{failure}"));
    assert_ne!(twice.trace, sound(&RunRequest::new(11)).trace);
}

/// Violation that the judge of histories reports.
const NOT_LINEARIZABLE: &str = "not linearizable";

#[test]
fn write_that_does_not_notify_caches_is_noticed() {
    assert!(is_noticed("flexkv", 0..200, &["invalidation"]));
}

#[test]
fn proxy_that_leaves_an_old_record_valid_is_noticed() {
    assert!(is_noticed_with("flexkv", 0..200, &["clearing"], NOT_LINEARIZABLE));
}

#[test]
fn write_that_commits_before_the_copies_is_noticed() {
    assert!(is_noticed_with("flexkv", 0..60, &["copies-first"], NOT_LINEARIZABLE));
}

/// In these seeds, a session sent a used number again and again. A node was notified of another
/// node before the map named it. It forgot that node, and began a new session as the same client.
#[test]
fn seeds_that_once_failed_are_sound() {
    let store = find("flexkv").expect("a scenario");
    for seed in [935, 1159] {
        if let Err(failure) = run_seeds(store, seed..seed + 1) {
            panic!("{failure}");
        }
    }
}

/// About one of 80 seeds notices the omission, because the node's lease alone prevents nearly all
/// harm.
#[test]
fn deposed_owner_with_late_writes_is_noticed() {
    assert!(is_noticed("flexkv", 800..1400, &["eviction"]));
}

#[test]
fn dead_node_that_continues_is_noticed() {
    assert!(is_noticed_with("flexkv", 0..120, &["eviction", "lease"], NOT_LINEARIZABLE));
}
