//! Small runs of the store's testbed: every system serves the loaded keys, and runs repeat.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_flexkv::CacheMode;
use archipelago_flexkv::coordinator::Tuning;
use archipelago_flexkv_rivals::Rival;
use archipelago_lab::flexkv::testbed::{Measured, Request, Setup, Testbed, Workload, Ycsb};

const MS: Duration = Duration::from_millis(1);

fn small() -> Setup {
    Setup {
        compute: 3,
        clients: 2,
        coroutines: 4,
        keys: 600,
        memory_bytes: 128 << 10,
        partition_bits: 4,
        log2_buckets: 3,
        ..Setup::default()
    }
}

fn under(setup: &Setup, load: char) -> (Testbed, Measured) {
    let testbed = Testbed::start(setup).expect("it starts");
    let load = Arc::new(Ycsb::named(load, setup.keys, Ycsb::ALPHA).expect("a workload"));
    let measured = testbed.measure(load, setup.clients, MS, MS * 3);
    (testbed, measured)
}

#[test]
fn every_system_serves_every_key_that_was_loaded() {
    let addresses = Setup { cache: CacheMode::Addresses, ..small() };
    let rival = |rival, setup: Setup| Setup { rival: Some(rival), ..setup };
    let systems = [
        Setup { offload: 500, ..small() },
        addresses.clone(),
        rival(Rival::Base, addresses.clone()),
        rival(Rival::Fusee, addresses.clone()),
        rival(Rival::Clover, addresses),
        rival(Rival::Ownership, Setup { offload: 500, ..small() }),
    ];
    for setup in systems {
        let (_, measured) = under(&setup, 'a');
        let Measured { operations, missing, errors, met, .. } = measured;
        assert!(operations > 500, "{setup:?}: {operations}");
        assert_eq!((missing, errors), (0, 0), "{setup:?}");
        assert!(met < operations / 2, "{setup:?}: {met} of {operations} met another");
    }
}

#[test]
fn a_run_repeats_from_its_seed() {
    let counted = |seed| {
        let (testbed, measured) = under(&Setup { seed, offload: 300, ..small() }, 'b');
        (measured.operations, measured.latencies_ns, testbed.events())
    };
    assert_eq!(counted(5), counted(5));
    assert_ne!(counted(5), counted(6));
}

/// Few keys, which all nodes read and write all the time. Between two nodes, more writes are in
/// flight than a session takes.
#[derive(Debug)]
struct Rush;

impl Workload for Rush {
    fn next(&self, rng: &mut Rng) -> Request {
        let key = rng.u64(..200);
        if rng.u8(..4) == 0 { Request::Write(key) } else { Request::Read(key) }
    }
}

#[test]
fn parallel_writes_of_two_nodes_notify_all_sharers() {
    let crowd = Setup { compute: 2, clients: 10, coroutines: 40, offload: 1000, ..small() };
    let setup = Setup { keys: 200, patience: MS, ..crowd };
    let testbed = Testbed::start(&setup).expect("it starts");
    let measured = testbed.measure(Arc::new(Rush), setup.clients, MS, MS * 8);
    // A cache's lease is 10 ms, so a write that waited for its end would not return within the run.
    let longest = measured.latencies_ns.last().copied().unwrap_or_default();
    assert!(measured.operations > 10_000, "{}", measured.operations);
    assert_eq!((measured.errors, measured.missing), (0, 0));
    assert!(longest < 2_000_000, "{longest} ns");
}

/// All clients set one key.
#[derive(Debug)]
struct OneKey;

impl Workload for OneKey {
    fn next(&self, _rng: &mut Rng) -> Request {
        Request::Write(7)
    }
}

#[test]
fn sets_of_one_key_by_all_nodes_are_combined_at_its_proxy() {
    let setup = Setup { compute: 4, offload: 1000, keys: 100, patience: MS * 5, ..small() };
    let testbed = Testbed::start(&setup).expect("it starts");
    let measured = testbed.measure(Arc::new(OneKey), setup.clients, MS, MS * 5);
    assert_eq!((measured.errors, measured.met), (0, 0));
    // Sets that ran one after another would take three round trips each, some 10 µs: 500 in all.
    assert!(measured.operations > 2000, "{}", measured.operations);
}

#[test]
fn reader_without_the_first_copy_reads_no_other_copy() {
    // Nothing is proxied or cached. Each read reads the first copy of a slot, which decides, and a
    // record from any copy.
    let setup = Setup { compute: 2, offload: 0, cache: CacheMode::Off, ..small() };
    let testbed = Testbed::start(&setup).expect("it starts");
    let reads = |testbed: &Testbed| {
        let load = Arc::new(Ycsb::named('c', setup.keys, Ycsb::ALPHA).expect("a workload"));
        // The warm-up is long enough for nodes to give up connections.
        testbed.measure(load, setup.clients, MS * 60, MS * 4)
    };
    let all = reads(&testbed).operations;
    assert!(all > 1000, "{all}");
    (0..setup.memory).for_each(|memory| testbed.cut_off(1, memory));
    let half = reads(&testbed).operations;
    assert!(half < all * 2 / 3, "a node without memory nodes reads nothing: {half} of {all}");
    // First copies of the small index lie on all memory nodes. A client that does not reach one of
    // them soon waits for a key whose slot lies there.
    let without = |memory| {
        let testbed = Testbed::start(&setup).expect("it starts");
        testbed.cut_off(1, memory);
        reads(&testbed).operations
    };
    let each: Vec<u64> = (0..setup.memory).map(without).collect();
    let stuck = each.iter().filter(|&&read| read < half * 11 / 10).count();
    assert_eq!(stuck, setup.memory, "as little as without any: {each:?}, {half} of {all}");
}

/// All clients set and delete one key all the time.
#[derive(Debug)]
struct Churn;

impl Workload for Churn {
    fn next(&self, rng: &mut Rng) -> Request {
        if rng.bool() { Request::Write(7) } else { Request::Delete(7) }
    }
}

#[test]
fn repeated_set_and_delete_of_a_key_grows_no_subtable() {
    for offload in [0, 1000] {
        let setup = Setup { offload, keys: 100, ..small() };
        let testbed = Testbed::start(&setup).expect("it starts");
        let measured = testbed.measure(Arc::new(Churn), setup.clients, MS, MS * 20);
        assert!(measured.operations > 500 && measured.errors == 0, "{measured:?}");
        let grown = testbed.report().changes.iter().filter(|change| change.cause.grow).count();
        assert_eq!(grown, 0, "{offload}: its slots are only waited for");
    }
}

#[test]
fn coordinator_finds_hot_partitions_and_a_ratio() {
    let setup = small();
    let testbed = Testbed::start(&setup).expect("it starts");
    let load = Arc::new(Ycsb::named('b', setup.keys, Ycsb::ALPHA).expect("a workload"));
    let tuning = Tuning { interval: MS * 2, ..Tuning::default() };
    testbed.adapt(load.clone(), tuning, MS * 120);
    let report = testbed.report();
    assert!(report.steady && report.reassignments >= 1 && report.ratio_moves >= 2, "{report:?}");
    let tuned = report.changes.iter().filter(|c| c.cause.reassign || c.cause.offload);
    assert!(tuned.clone().count() > 0);
    for changed in tuned {
        assert!(changed.took_ns < 6_000_000, "{changed:?}");
    }
    let measured = testbed.measure(load, setup.clients, MS, MS * 2);
    assert_eq!((measured.missing, measured.errors), (0, 0));
    assert!(measured.hits.iter().all(|hits| *hits > 0), "{:?}", measured.hits);
}
