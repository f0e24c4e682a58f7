//! The suites of the three traits over storage nodes.

use archipelago_store::Stores;
use archipelago_store::nodes::NodeStoresOptions;
use archipelago_store::nodes::logs::LogWriting;
use archipelago_store::suite::{blobs_conform, logs_conform, register_conforms};

use crate::world::World;

fn conforms(stores: &Stores, seed: u64) {
    blobs_conform(&*stores.blobs, seed);
    logs_conform(&*stores.logs, seed);
    register_conforms(&*stores.register, &format!("suite {seed}"));
}

#[test]
fn six_nodes_conform() {
    let mut world = World::founded(6, 1);
    conforms(&world.stores("client"), 1);
}

#[test]
fn three_nodes_conform() {
    let mut world = World::founded(3, 2);
    conforms(&world.stores("client"), 2);
}

#[test]
fn striped_logs_conform_on_six_nodes() {
    let mut world = World::founded(6, 6);
    let log_writing = LogWriting::Striped;
    let options = NodeStoresOptions { log_writing, ..NodeStoresOptions::default() };
    logs_conform(&*world.client("client").stores_with(options).logs, 6);
}

#[test]
fn logs_and_register_conform_while_one_node_is_down() {
    // The suite of blobs is left out. It asks for blobs that do not exist, and a node that is down
    // cannot confirm that.
    let mut world = World::founded(6, 3);
    world.kill(2);
    let stores = world.stores("client");
    logs_conform(&*stores.logs, 3);
    register_conforms(&*stores.register, "suite");
}

#[test]
fn nodes_conform_after_a_power_loss_of_all() {
    let mut world = World::founded(6, 4);
    conforms(&world.stores("client"), 4);
    for n in 0..world.node_count() {
        world.lose_power(n);
    }
    world.start_all();
    conforms(&world.stores("client"), 5);
}
