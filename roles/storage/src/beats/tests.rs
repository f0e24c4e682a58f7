use std::path::PathBuf;
use std::sync::Arc;

use archipelago_base::{Epoch, ErrorKind};
use archipelago_env::FileSystem;
use archipelago_env::mem::MemFs;
use archipelago_fabric::{ClusterId, NodeId};
use archipelago_store::nodes::StorageId;
use archipelago_store::nodes::register::caspaxos::RootSet;
use archipelago_store::nodes::wire::{
    MemberState, Members, NodeSpace, RefusalWhy, StorageMember, StoreMessage,
};

use super::{Beats, NodeAddress};
use crate::meta::MetaThreads;
use crate::node::StorageNode;
use crate::parts::NodeOptions;

const CLUSTER: ClusterId = ClusterId([7; 16]);

fn open(fs: &MemFs) -> Beats {
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let options =
        NodeOptions { meta_threads: MetaThreads::Caller, seed: Some(3), ..NodeOptions::default() };
    let node = StorageNode::open(fs, &[PathBuf::from("/device")], options).unwrap();
    let address = NodeAddress {
        node: NodeId(5),
        life: Epoch(9),
        endpoints: vec!["tcp:node:1".to_owned()],
        domain: "rack".to_owned(),
    };
    Beats::new(node, address).unwrap()
}

/// The cluster and the number of the root set in a beat, and whether it reports that the node
/// drains.
fn said(beats: &Beats) -> (Option<ClusterId>, Option<u64>, bool) {
    match beats.beat(0) {
        StoreMessage::StorageBeat { cluster, root_set, is_draining, .. } => {
            (cluster, root_set.map(|set| set.number), is_draining)
        }
        other => panic!("no beat: {other:?}"),
    }
}

fn answer(beats: &Beats, number: u64, state: MemberState) -> StoreMessage {
    let storage = beats.node.storage();
    let member = StorageMember {
        storage,
        node: NodeId(5),
        life: Epoch(9),
        endpoints: Vec::new(),
        domain: "rack".to_owned(),
        state,
        space: NodeSpace::default(),
    };
    let root_set = RootSet { number, members: vec![storage, StorageId(2), StorageId(3)] };
    let cluster = Some(CLUSTER);
    let members = Members {
        version: 70,
        cluster,
        root_set,
        members: vec![member],
        is_complete: true,
        forgotten: Vec::new(),
    };
    StoreMessage::MembersAre { members: Some(members), beat_ms: 250 }
}

#[test]
fn node_keeps_its_cluster_and_newest_root_set_over_power_loss() {
    let fs = MemFs::new();
    let beats = open(&fs);
    assert_eq!(said(&beats), (None, None, false));
    let taken = beats.take_answer(0, answer(&beats, 1, MemberState::Up)).unwrap();
    assert_eq!((taken.version, taken.pause.as_millis()), (70, 250));
    let beats = open(&fs.crash_clone(1));
    assert_eq!(said(&beats), (Some(CLUSTER), Some(1), false));
    beats.take_answer(0, answer(&beats, 3, MemberState::Up)).unwrap();
    beats.take_answer(0, answer(&beats, 2, MemberState::Up)).unwrap();
    assert_eq!(said(&beats), (Some(CLUSTER), Some(3), false), "an older set changes nothing");
}

#[test]
fn node_keeps_whether_it_drains_over_power_loss() {
    let fs = MemFs::new();
    let beats = open(&fs);
    beats.take_answer(0, answer(&beats, 1, MemberState::Draining)).unwrap();
    let crashed = fs.crash_clone(1);
    let beats = open(&crashed);
    assert!(said(&beats).2);
    let unchanged = StoreMessage::MembersAre { members: None, beat_ms: 250 };
    assert_eq!(beats.take_answer(70, unchanged).unwrap().version, 70);
    assert!(said(&beats).2, "an answer without members says nothing about it");
    beats.take_answer(0, answer(&beats, 1, MemberState::Up)).unwrap();
    assert!(!said(&open(&crashed.crash_clone(2))).2);
}

/// The nodes that a beat names as given up.
fn forgotten(beats: &Beats) -> Vec<StorageId> {
    match beats.beat(0) {
        StoreMessage::StorageBeat { forgotten, .. } => forgotten,
        other => panic!("no beat: {other:?}"),
    }
}

#[test]
fn node_keeps_which_nodes_were_given_up_over_power_loss() {
    let fs = MemFs::new();
    let beats = open(&fs);
    let given_up = |nodes: &[u64]| match answer(&beats, 1, MemberState::Up) {
        StoreMessage::MembersAre { members: Some(members), beat_ms } => {
            let forgotten = nodes.iter().copied().map(StorageId).collect();
            let members = Some(Members { forgotten, ..members });
            StoreMessage::MembersAre { members, beat_ms }
        }
        other => panic!("no members: {other:?}"),
    };
    beats.take_answer(0, given_up(&[31])).unwrap();
    let crashed = fs.crash_clone(1);
    let again = open(&crashed);
    assert_eq!(forgotten(&again), [StorageId(31)]);
    // A manager that does not know the first given-up node yet does not remove it from the node's
    // set.
    again.take_answer(0, given_up(&[33])).unwrap();
    let last = open(&crashed.crash_clone(2));
    assert_eq!(forgotten(&last), [StorageId(31), StorageId(33)]);
    assert_eq!(said(&last), (Some(CLUSTER), Some(1), false));
}

#[test]
fn node_refuses_a_second_cluster() {
    let beats = open(&MemFs::new());
    beats.take_answer(0, answer(&beats, 1, MemberState::Up)).unwrap();
    let StoreMessage::MembersAre { members: Some(members), beat_ms } =
        answer(&beats, 2, MemberState::Up)
    else {
        unreachable!("the answer has members")
    };
    let members = Some(Members { cluster: Some(ClusterId([8; 16])), ..members });
    let other = StoreMessage::MembersAre { members, beat_ms };
    let error = beats.take_answer(0, other).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("--manager"), "{error}");
    assert_eq!(said(&beats), (Some(CLUSTER), Some(1), false));
}

#[test]
fn refused_beat_is_an_error_that_names_the_node() {
    let beats = open(&MemFs::new());
    let (why, epoch) = (RefusalWhy::NotThere, Epoch(0));
    let refused = StoreMessage::Refuse { why, epoch, text: "it never returns".to_owned() };
    let error = beats.take_answer(0, refused).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains(&beats.node.storage().to_string()), "{error}");
}
