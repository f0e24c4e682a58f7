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

#[test]
fn silent_node_with_images_ends_sharing_until_it_is_lost() {
    let mut world = World::new(2);
    let first = world.send(1);
    let mut boundaries = 2..40u8;
    let second = boundaries
        .find_map(|at| Some(world.send_from(at.into(), &[at])).filter(|node| *node != first));
    let second = second.expect("some key range belongs to the other node");
    count(&mut world, first, 2);
    count(&mut world, second, 2);
    assert!(is_shared(&world));
    let numbers = if second == StoreNode(1) { [2, 1] } else { [1, 2] };
    let up = numbers.map(|number| member(number, LIFE));
    let silent = MemoryNode { is_up: false, ..up[1].clone() };
    world.state.on_members(world.now_ns, &[up[0].clone(), silent.clone()]);
    assert!(!is_shared(&world), "flushes of the images at the silent node would fail");
    world.state.on_members(world.now_ns, &up);
    assert!(is_shared(&world));
    world.miss(second, 1);
    assert!(!is_shared(&world), "the pool has not noticed the silence yet");
    world.now_ns += SECOND;
    world.answer(second, &begun(1));
    assert!(is_shared(&world));
    world.state.on_members(world.now_ns, &[up[0].clone(), silent]);
    world.miss(second, 1);
    assert!(!world.state.take_news().lost.is_empty());
    assert!(is_shared(&world), "nothing is left at the lost node");
}
