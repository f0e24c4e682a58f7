//! Tests of the shards of earlier owners.

use archipelago_base::Epoch;
use archipelago_engine::key::Kind;
use archipelago_fabric::{NodeId, RegionId, Rights};

use super::super::{MemoryNode, NextAsk, NodeTask, OwnerTerms};
use super::*;
use crate::ids::{OffloadDb, OwnerStamp, Token};
use crate::shard_owner::offsets::CachedOffset;
use crate::wire::shard::{NodeShare, ShardInfo, ShardMessage, ShardRefusal, ShardWhy};

const LIFE: Epoch = Epoch(7);

fn name(memtable: u64) -> ShardName {
    ShardName { epoch: Epoch(3), memtable, shard: 0 }
}

fn id(memtable: u64) -> ShardId {
    ShardId { memtable, shard: 0 }
}

fn listed(memtable: u64) -> ListedShard {
    let (node, epoch, region, rights) = (NodeId(1), LIFE, RegionId(3), Rights::READ);
    let key = RemoteKey { node, epoch, region, tag: 9, len: 4096, rights };
    let info = ShardInfo { last_seq: SeqNo(9), ..ShardInfo::default() };
    ListedShard { name: name(memtable), info, place: ShardPlace { key, at: 64, bytes: 100 } }
}

/// An owner whose node has three shards of the previous owner, and has confirmed that it holds
/// them.
fn opening() -> (OwnerState, StoreNode) {
    let (mut state, node) = unconfirmed();
    state.confirm_held(node);
    (state, node)
}

/// The owner of [`opening`] before the node has confirmed that it holds the shards.
fn unconfirmed() -> (OwnerState, StoreNode) {
    let owner = OwnerStamp { db: OffloadDb([1; 16]), epoch: Epoch(4), token: Token([2; 16]) };
    let mut state = OwnerState::new(owner, OwnerTerms::default());
    assert!(state.waits_for_nodes(), "none is known");
    let endpoints = vec!["there".to_owned()];
    let member = MemoryNode { node: NodeId(1), life: LIFE, endpoints, is_up: true };
    let node = state.on_members(1, &[member])[0];
    assert!(state.waits_for_nodes(), "it has not begun");
    let answer = ShardMessage::Begun {
        life: LIFE,
        landing_bytes: 1000,
        image_bytes_max: 400,
        share: NodeShare::default(),
        shards: 3,
    };
    state.on_answer(1, node, &NodeTask::Begin, &answer);
    assert!(!state.waits_for_nodes());
    assert_eq!(state.begun_nodes(), [node]);
    state.hold(node, &[listed(1), listed(2), listed(3)]);
    (state, node)
}

/// The requests for the node up to its next beat. Each one is answered.
fn asked(state: &mut OwnerState, node: StoreNode) -> Vec<ShardMessage> {
    state.nodes.values_mut().for_each(|node| node.beat_ns = u64::MAX);
    let mut asked = Vec::new();
    while let NextAsk::Ask(task, message) = state.next_ask(2, node) {
        state.on_answer(
            2,
            node,
            &task,
            &ShardMessage::Done { shards: 1, share: NodeShare::default() },
        );
        asked.push(message);
    }
    asked
}

#[test]
fn nothing_is_purged_before_the_open_has_decided() {
    let (mut state, node) = opening();
    assert!(asked(&mut state, node).is_empty());
    assert!(state.adopt(id(8), node, name(2)).is_err(), "its head was not read");
    state.note_head(node, name(2), 5);
    assert_eq!(state.adopt(id(8), node, name(2)), Ok(node));
    assert!(state.adopt(id(9), node, name(2)).is_err(), "it is adopted once");
    assert!(asked(&mut state, node).is_empty());
    let before = state.room(2).held_bytes;
    assert_eq!(before, 100);
    assert_eq!(state.purge().into_iter().collect::<Vec<_>>(), [node]);
    let messages = asked(&mut state, node);
    let [ShardMessage::Purge { .. }, ShardMessage::Release { shards, .. }] = &messages[..] else {
        panic!("{messages:?}");
    };
    assert_eq!(shards[..], [name(1), name(3)]);
    assert_eq!(state.target(node, &[id(8)]).expect("it is there").names, [name(2)]);
    assert_eq!(state.id_of(name(2)), Some(id(8)));
    assert_eq!(state.id_of(name(1)), None, "forgotten, because the node has confirmed it");
}

#[test]
fn unconfirmed_shards_are_released_after_the_purge() {
    let (mut state, node) = unconfirmed();
    assert_eq!(state.held(node, name(1)), None);
    state.note_head(node, name(1), 5);
    assert!(state.adopt(id(8), node, name(1)).is_err(), "the purge may drop it");
    assert!(asked(&mut state, node).is_empty());
    state.purge();
    let messages = asked(&mut state, node);
    let [ShardMessage::Purge { .. }, ShardMessage::Release { shards, .. }] = &messages[..] else {
        panic!("{messages:?}");
    };
    assert_eq!(shards[..], [name(1), name(2), name(3)]);
}

#[test]
fn shards_at_a_node_of_another_owner_are_not_held() {
    let (mut state, node) = opening();
    state.note_head(node, name(2), 5);
    state.adopt(id(8), node, name(2)).expect("the node holds it");
    assert_eq!(state.room(2).held_bytes, 100);
    state.on_refused(2, node, &ShardRefusal::at(ShardWhy::OldEpoch, 5));
    state.purge();
    assert_eq!(state.room(2).held_bytes, 0, "the other owner purges them");
    assert!(asked(&mut state, node).is_empty());
    assert!(state.is_settled());
}

#[test]
fn regions_of_held_shards_are_in_use_until_the_open_has_decided() {
    let (mut state, node) = opening();
    assert_eq!(state.arenas(node), [listed(1).place.key; 3]);
    assert!(state.arenas(StoreNode(node.0 + 1)).is_empty());
    state.note_head(node, name(2), 5);
    state.adopt(id(8), node, name(2)).expect("the node holds it");
    assert_eq!(state.arenas(node).len(), 3);
    state.purge();
    assert_eq!(state.arenas(node), [listed(2).place.key]);
}

#[test]
fn adopted_shard_has_cached_offsets() {
    let (mut state, node) = opening();
    state.note_head(node, name(2), 5);
    state.adopt(id(8), node, name(2)).expect("the node holds it");
    let offset = CachedOffset { at: 10, len: 20, seq: SeqNo(4), kind: Kind::Put };
    state.offsets().learn(id(8), 7, offset, SeqNo(8));
    assert_eq!(state.offsets().find(id(8), 7), None, "the reader does not see version 9");
    state.offsets().learn(id(8), 7, offset, SeqNo(9));
    assert_eq!(state.offsets().find(id(8), 7), Some(offset));
    state.release(&[id(8)], 9);
    assert_eq!(state.offsets().find(id(8), 7), None);
}

#[test]
fn adopted_shards_are_released_by_their_own_names() {
    let (mut state, node) = opening();
    state.note_head(node, name(3), 5);
    assert_eq!(state.adopt(id(8), node, name(3)), Ok(node));
    state.purge();
    asked(&mut state, node);
    state.release(&[id(8)], 9);
    let messages = asked(&mut state, node);
    let [ShardMessage::Release { shards, oldest, .. }] = &messages[..] else {
        panic!("{messages:?}");
    };
    assert_eq!((&shards[..], *oldest), (&[name(3)][..], 9));
}

#[test]
fn shards_of_a_lost_node_are_not_adopted() {
    let (mut state, node) = opening();
    state.note_head(node, name(1), 5);
    let endpoints = vec!["there".to_owned()];
    let next = MemoryNode { node: NodeId(1), life: Epoch(8), endpoints, is_up: true };
    state.on_members(2, &[next]);
    assert!(matches!(state.adopt(id(8), node, name(1)), Err(AwayError::Lost(_))));
    state.purge();
    assert_eq!(state.counts().1, 0);
}
