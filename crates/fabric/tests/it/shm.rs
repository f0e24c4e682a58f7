//! Tests of `shm`: the holders of mappings, and a socket that a killed node left.

use archipelago_fabric::{Connect, Provider, Session, Shm};

use crate::process::{Helper, hex_of, node};
use crate::world::{World, read, to, until, write};

#[test]
fn owner_knows_which_processes_can_still_reach_a_region() {
    let world = World::new("shm");
    let (address, key) = (world.listener.address(), hex_of(&world.key));
    let mut one = Helper::start(&["hold", "shm", address, &key]);
    let mut two = Helper::start(&["hold", "shm", address, &key]);
    assert_eq!((one.hear(), two.hear()), ("attached".to_owned(), "attached".to_owned()));
    let pids = || -> Vec<u32> {
        let mut pids: Vec<u32> = world.node.holders(&world.key).iter().map(|h| h.pid).collect();
        pids.sort_unstable();
        pids
    };
    let mut both = vec![one.id(), two.id()];
    both.sort_unstable();
    assert_eq!(pids(), both);
    // A revocation does not remove the mapping, so the holders stay known.
    assert!(world.node.revoke(&world.key));
    assert_eq!(pids(), both);
    one.say("detach");
    assert_eq!(one.hear(), "detached");
    until("one has let go", || pids() == [two.id()]);
    two.kill();
    until("two has ended", || pids().is_empty());
}

#[test]
fn closed_link_removes_its_mappings() {
    let world = World::new("shm");
    let (link, region) = world.attached();
    write(&*link, region, 0, b"x");
    assert_eq!(world.node.holders(&world.key).len(), 1);
    link.close();
    until("it has let go", || world.node.holders(&world.key).is_empty());
}

#[test]
fn socket_of_a_killed_node_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node").display().to_string();
    let (mut first, ..) = node("shm", &path, 1);
    let taken = World::new("shm");
    let error = taken.provider.serve(&taken.node, &path).unwrap_err();
    assert!(error.to_string().contains("another node listens"), "{error}");
    first.kill();
    let listener = taken.provider.serve(&taken.node, &path).unwrap();
    let link = Shm::new().connect(to(listener.address(), &Session::fresh())).wait().unwrap();
    let region = link.attach(&taken.key).wait().unwrap();
    assert_eq!(read(&*link, region, 0, 8), [0; 8]);
}

#[test]
fn only_the_owner_may_connect_to_the_socket() {
    use std::os::unix::fs::MetadataExt as _;
    let world = World::new("shm");
    let mode = std::fs::metadata(world.listener.address()).unwrap().mode();
    assert_eq!(mode & 0o077, 0, "mode {mode:o}");
}

#[test]
fn one_sided_operations_send_nothing() {
    let world = World::new("shm");
    let (link, region) = world.attached();
    for _ in 0..10 {
        write(&*link, region, 0, b"x");
    }
    let stats = link.stats();
    assert_eq!((stats.batches, stats.operations, stats.packets), (10, 10, 0));
    assert_eq!(world.node.stats().operations, 0, "the node's process executed none");
}

#[test]
fn impossible_path_is_refused() {
    let long = format!("/tmp/{}", "x".repeat(200));
    let error = Shm::new().connect(Connect::to(&long, &Session::fresh())).wait().unwrap_err();
    assert!(error.to_string().contains("no path of a Unix socket"), "{error}");
    let error = Shm::new().connect(Connect::to("/nowhere/node", &Session::fresh())).wait();
    assert_eq!(error.unwrap_err().kind(), archipelago_base::ErrorKind::NotFound);
}
