//! The cluster itself: its founding, its members, and the register of its root set.

use std::time::Duration;

use archipelago_base::ErrorKind;
use archipelago_base::random::Rng;
use archipelago_store::nodes::members::MemberTerms;
use archipelago_store::nodes::wire::MemberState;
use archipelago_store::{Register, Swap, Versioned};

use crate::world::{World, WorldOptions};

const NAME: &str = "volume/reef";

fn quick_losses() -> MemberTerms {
    MemberTerms { lost_after: Duration::from_secs(20), ..MemberTerms::default() }
}

fn swap(register: &dyn Register, expected: u64, value: &[u8]) -> u64 {
    match register.compare_and_swap(NAME, expected, value).unwrap() {
        Swap::Done(version) => version,
        Swap::Lost(now) => panic!("version {expected} was expected: {now:?}"),
    }
}

fn read(register: &dyn Register) -> Option<Versioned> {
    register.read(NAME).unwrap()
}

#[test]
fn cluster_survives_power_loss_of_all_nodes_and_managers() {
    let mut world = World::founded(6, 1);
    let before = world.members();
    assert_eq!(before.root_set.members.len(), 5);
    let register = world.stores("first").register;
    let version = swap(&*register, 0, b"kept");
    world.kill_manager();
    for n in 0..world.node_count() {
        world.lose_power(n);
    }
    world.start_manager();
    world.start_all();
    world.found();
    let after = world.members();
    assert_eq!((after.cluster, after.root_set), (before.cluster, before.root_set));
    let register = world.stores("second").register;
    assert_eq!(read(&*register), Some(Versioned { version, value: b"kept".to_vec() }));
}

#[test]
fn clients_and_nodes_go_on_without_a_manager() {
    let mut world = World::founded(4, 2);
    let register = world.stores("client").register;
    let version = swap(&*register, 0, b"one");
    world.kill_manager();
    world.run_for(Duration::from_secs(60));
    let version = swap(&*register, version, b"two");
    world.start_manager();
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.members().members.len(), 4);
    assert_eq!(read(&*register).unwrap().version, version);
}

#[test]
fn new_node_of_a_founded_cluster_learns_it() {
    let mut world = World::founded(3, 3);
    let before = world.members();
    let added = world.add_node();
    world.run_for(Duration::from_secs(2));
    world.found();
    let after = world.members();
    assert_eq!(after.cluster, before.cluster);
    assert_eq!(after.root_set, before.root_set);
    assert_eq!(after.member(world.storage(added)).unwrap().state, MemberState::Up);
}

#[test]
fn lost_root_node_is_replaced_and_values_are_kept() {
    let mut world =
        World::founded_with(WorldOptions { terms: quick_losses(), ..WorldOptions::new(4, 4) });
    let register = world.stores("client").register;
    let version = swap(&*register, 0, b"kept");
    let old = world.members().root_set;
    let lost = world.place_of(old.members[0]);
    world.wipe(lost);
    world.run_for(Duration::from_secs(40));
    let next = world.members().root_set;
    assert_eq!(next.number, 2, "{:?}", world.members());
    assert!(!next.members.contains(&old.members[0]) && next.members.len() == 3);
    // The new set needs its new member now.
    world.kill(world.place_of(old.members[1]));
    assert_eq!(read(&*register), Some(Versioned { version, value: b"kept".to_vec() }));
    swap(&*register, version, b"more");
    let newcomer = world.stores("newcomer").register;
    assert_eq!(read(&*newcomer).unwrap().value, b"more");
}

#[test]
fn drained_root_node_leaves_the_root_set() {
    let mut world = World::founded(4, 5);
    let register = world.stores("client").register;
    let version = swap(&*register, 0, b"kept");
    let leaving = world.members().root_set.members[2];
    world.drain(leaving);
    world.run_for(Duration::from_secs(10));
    let members = world.members();
    assert_eq!(members.member(leaving).unwrap().state, MemberState::Draining);
    assert!(!members.root_set.members.contains(&leaving), "{members:?}");
    assert_eq!(read(&*register).unwrap().version, version);
    // The node and the manager keep the order.
    world.lose_power(world.place_of(leaving));
    world.kill_manager();
    world.start_manager();
    world.start_all();
    assert_eq!(world.members().member(leaving).unwrap().state, MemberState::Draining);
}

#[test]
fn register_without_a_majority_says_so_and_recovers() {
    let mut world = World::founded(3, 6);
    let register = world.stores("client").register;
    let version = swap(&*register, 0, b"one");
    world.kill(0);
    let version = swap(&*register, version, b"two");
    world.lose_power(1);
    let error = register.compare_and_swap(NAME, version, b"three").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    world.start_all();
    let now = read(&*register).unwrap();
    assert!(now.value == b"two" || now.value == b"three", "{now:?}");
}

/// Counts in one value by several clients while nodes are killed and lose power.
fn count(seed: u64) {
    let mut world = World::founded(3, seed);
    let mut rng = Rng::with_seed(seed);
    let mut registers = [0, 1, 2].map(|_| world.stores("client").register);
    let mut sure = 0_u64;
    let mut possible = 0_u64;
    for _ in 0..60 {
        match rng.u8(0..8) {
            0 => {
                let n = rng.usize(0..3);
                if !world.is_up(n) {
                    world.start(n);
                } else if rng.bool() {
                    world.kill(n);
                } else {
                    world.lose_power(n);
                }
            }
            1 => world.start_all(),
            2 => registers[rng.usize(0..3)] = world.stores("client").register,
            _ => {}
        }
        let register = &registers[rng.usize(0..3)];
        let Ok(now) = register.read(NAME) else {
            continue;
        };
        let (version, value) = now.map_or((0, 0), |now| {
            (now.version, u64::from_le_bytes(now.value[..].try_into().unwrap()))
        });
        assert!((sure..=possible).contains(&value), "seed {seed}: {value} of {sure}..={possible}");
        (sure, possible) = (value, possible.max(value));
        match register.compare_and_swap(NAME, version, &(value + 1).to_le_bytes()) {
            Ok(Swap::Done(_)) => sure += 1,
            // The value is the one that was read, unless a change with an unknown outcome came in
            // between.
            Ok(Swap::Lost(_)) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "seed {seed}: {error}"),
        }
        possible = possible.max(value + 1);
    }
    world.start_all();
    let value =
        read(&*registers[0]).map_or(0, |now| u64::from_le_bytes(now.value[..].try_into().unwrap()));
    assert!((sure..=possible).contains(&value), "seed {seed}: {value} of {sure}..={possible}");
}

#[test]
fn counter_loses_no_increment_while_nodes_crash() {
    for seed in 0..20 {
        count(seed);
    }
}
