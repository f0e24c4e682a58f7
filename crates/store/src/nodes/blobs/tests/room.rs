//! Room that writers have before the pool is full.

use archipelago_env::WriterRoom;

use super::super::super::StorageId;
use super::super::super::placement::NodeReport;
use super::super::room_of_writers;

/// A node of 1,000 bytes in a domain of its own.
fn node(id: u64, used_bytes: u64) -> NodeReport {
    NodeReport {
        id: StorageId(id),
        domain: id.to_string(),
        capacity_bytes: 1000,
        used_bytes,
        is_up: true,
        is_draining: false,
    }
}

#[test]
fn writers_slow_down_from_90_per_cent_on() {
    let at = |used_bytes| {
        let nodes: Vec<NodeReport> = (1..=3).map(|id| node(id, used_bytes)).collect();
        room_of_writers(&nodes).unwrap()
    };
    let room = |left_bytes| WriterRoom { left_bytes, slowdown_bytes: 50 };
    assert_eq!(at(500), room(450));
    assert_eq!(at(900), room(50), "the delay begins below this room");
    assert_eq!(at(930), room(20));
    assert_eq!(at(990), room(0));
}

#[test]
fn only_nodes_that_take_chunks_have_room() {
    let full = [1, 2, 3].map(|id| node(id, 950));
    assert_eq!(room_of_writers(&full).map(|room| room.left_bytes), Some(0));
    let with_new: Vec<NodeReport> =
        full.iter().cloned().chain((4..=6).map(|id| node(id, 0))).collect();
    let room = room_of_writers(&with_new).unwrap();
    assert_eq!(room, WriterRoom { left_bytes: 950, slowdown_bytes: 100 });
    let drains = full.map(|node| NodeReport { is_draining: true, ..node });
    assert_eq!(room_of_writers(&drains), None);
    assert_eq!(room_of_writers(&[]), None);
}
