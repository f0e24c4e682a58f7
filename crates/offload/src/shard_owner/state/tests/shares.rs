//! An owner learns from the answers of nodes whether other databases share their memory.

use super::*;

fn is_shared(world: &World) -> bool {
    world.state.room(world.now_ns).is_shared
}

/// The node counts this number of databases in an answer.
fn count(world: &mut World, node: StoreNode, databases: u32) {
    world.state.on_share(node, &NodeShare { databases, ..share(5000) });
}

#[test]
fn only_nodes_with_images_of_the_database_are_shared() {
    let mut world = World::new(2);
    let node = world.send(1);
    let other = if node == StoreNode(1) { StoreNode(2) } else { StoreNode(1) };
    count(&mut world, node, 1);
    count(&mut world, other, 3);
    assert!(!is_shared(&world), "nothing can be given back at the other node");
    count(&mut world, node, 2);
    assert!(is_shared(&world));
    // An image counts until it is released, whether the node has confirmed that or not.
    world.state.release(&[id(1)], 2);
    assert!(!is_shared(&world));
}

#[test]
fn sharing_follows_the_answers_of_a_node() {
    let mut world = World::new(1);
    let Pick::Node { node, losses } = world.begin(1, 100) else { panic!("room") };
    assert!(!is_shared(&world));
    count(&mut world, node, 2);
    assert!(is_shared(&world), "an image is on its way");
    world.state.sent(node, id(1), losses, readable()).expect("the node is there");
    assert!(is_shared(&world));
    // The other database has closed, as the answer to a beat says.
    world.now_ns += SECOND;
    world.answer(node, &begun(1));
    assert!(!is_shared(&world));
    count(&mut world, node, 2);
    let silent = MemoryNode { is_up: false, ..member(1, LIFE) };
    world.state.on_members(world.now_ns, &[silent]);
    assert!(!is_shared(&world), "the pool gets no beats of the node");
}
