//! Tests of the state that the manager keeps from round to round.

use archipelago_base::Epoch;
use archipelago_env::FileClass;
use archipelago_fabric::NodeId;

use super::super::super::StorageId;
use super::super::super::layout::Scheme;
use super::super::super::placement::RepairLimits;
use super::super::super::wire::{
    ChunkDescriptor, ChunkId, ExtentAt, MemberState, Members, MissingChunk, NodeSpace,
    PlacementEpoch, Stamp, StorageMember,
};
use super::super::members::RepairMembers;
use super::super::planner::ExtentTarget;
use super::super::rounds::{ComparedPage, DrainingExtents, DrainingNodes, EndedRound, RoundState};
use crate::ids::{BlobId, LogId, VolumeId};

const NODE: StorageId = StorageId(1);
const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 24 * 3600 * SECOND;
const CHUNK: ChunkId = ChunkId { blob: BlobId([7; 16]), index: 0 };

/// The members of a cluster of which one node is in `state`.
fn members(state: MemberState) -> RepairMembers {
    members_in_life(state, 1)
}

fn members_in_life(state: MemberState, life: u64) -> RepairMembers {
    RepairMembers::new(&member_list(state, life), false)
}

fn member_list(state: MemberState, life: u64) -> Members {
    let member = StorageMember {
        storage: NODE,
        node: NodeId(1),
        life: Epoch(life),
        endpoints: Vec::new(),
        domain: "rack 1".to_owned(),
        state,
        space: NodeSpace::default(),
    };
    Members { members: vec![member], ..Members::default() }
}

fn new_state() -> RoundState {
    let bytes_per_s = 1 << 20;
    RoundState::new(RepairLimits {
        node_bytes_per_s: bytes_per_s,
        cluster_bytes_per_s: bytes_per_s,
    })
}

fn unlisted_since(at_ns: u64) -> RoundState {
    let mut state = new_state();
    state.note_unlisted(NODE, &members(MemberState::Up), at_ns);
    state.checked.insert(NODE, (Epoch(1), u64::MAX));
    state
}

#[test]
fn node_without_lists_counts_from_the_first_one_until_it_is_lost() {
    let mut state = unlisted_since(7);
    for stays in [MemberState::Silent, MemberState::Draining, MemberState::Up] {
        state.forget_unlisted(&members(stays));
        assert_eq!(state.note_unlisted(NODE, &members(stays), 9), 7, "{stays:?}");
    }
    state.forget_unlisted(&members(MemberState::Lost));
    assert!(state.unlisted.is_empty());
}

#[test]
fn node_without_lists_counts_anew_in_its_next_life() {
    let mut state = unlisted_since(7);
    let next_life = members_in_life(MemberState::Up, 2);
    state.forget_unlisted(&next_life);
    assert!(state.unlisted.is_empty());
    assert_eq!(state.note_unlisted(NODE, &next_life, 9), 9);
}

#[test]
fn manager_that_stands_by_forgets_what_nodes_did_not_answer() {
    let up = members(MemberState::Up);
    let mut state = unlisted_since(7);
    round(&mut state, &up, 0, None);
    state.note_failed(NODE, false, 7);
    state.stand_by();
    assert!(state.last.is_none() && state.checked.is_empty());
    assert!(state.failed_for_extents.is_empty());
    assert_eq!(state.note_unlisted(NODE, &up, 9), 9, "another manager may have got its lists");
}

#[test]
fn seals_on_a_draining_node_outdate_the_last_cycle() {
    let drains = members(MemberState::Draining);
    let reported =
        |sealed: u64, open: u64| DrainingNodes::from([(NODE, DrainingExtents { sealed, open })]);
    let mut state = new_state();
    round_of_drain(&mut state, &drains, &reported(3, 2), None);
    for (sealed, open) in [(3, 2), (2, 2), (2, 3)] {
        let now = reported(sealed, open);
        assert!(!state.is_outdated(&drains, &now), "nothing was sealed: {now:?}");
        assert!(!state.has_sealed_since(&now));
    }
    // The last one has lost a sealed extent meanwhile.
    for (sealed, open) in [(4, 1), (4, 2), (3, 1)] {
        let now = reported(sealed, open);
        assert!(state.is_outdated(&drains, &now) && state.has_sealed_since(&now), "{now:?}");
    }
    // An extent that is sealed during a cycle may belong to one of its earlier pages.
    let page_end = Some(ExtentAt { log: LogId([3; 16]), extent: 1 });
    let now = reported(4, 1);
    round_of_drain(&mut state, &drains, &now, page_end);
    assert!(!state.is_outdated(&drains, &now));
    let later = reported(5, 0);
    round_of_drain(&mut state, &drains, &later, None);
    assert!(state.has_sealed_since(&later));
    round_of_drain(&mut state, &drains, &later, None);
    assert!(!state.has_sealed_since(&later));
}

#[test]
fn node_that_lists_again_is_compared_anew() {
    let mut state = unlisted_since(7);
    state.note_listed(NODE);
    assert!(state.unlisted.is_empty() && state.checked.is_empty());
    state.checked.insert(NODE, (Epoch(1), u64::MAX));
    state.note_listed(NODE);
    assert!(state.checked.contains_key(&NODE), "it has listed before as well");
}

#[test]
fn refused_copy_waits_for_another_life_or_other_members() {
    let copy = ExtentTarget { at: ExtentAt { log: LogId([3; 16]), extent: 1 }, node: NODE };
    let up = members(MemberState::Up);
    let mut state = new_state();
    // A removed log stays removed in each life of a node.
    let another_life = (members_in_life(MemberState::Up, 2), true);
    let other_members = (members(MemberState::Draining), false);
    for (changed, is_still_removed) in [another_life, other_members] {
        round(&mut state, &up, 0, None);
        state.note_refused(copy, &up);
        state.removed_logs.insert(copy.at.log);
        state.forget_refused(&up);
        assert!(state.refused.contains_key(&copy), "nothing has changed");
        assert!(state.removed_logs.contains(&copy.at.log));
        state.forget_refused(&changed);
        assert!(state.refused.is_empty(), "{changed:?}");
        assert_eq!(state.removed_logs.contains(&copy.at.log), is_still_removed, "{changed:?}");
    }
}

#[test]
fn failed_copy_of_an_extent_says_nothing_about_chunks() {
    let mut state = unlisted_since(7);
    state.note_failed(NODE, false, SECOND);
    assert!(state.failed.is_empty() && state.checked.contains_key(&NODE));
    assert!(state.failed_for_extents.contains_key(&NODE));
    state.note_failed(NODE, true, 2 * SECOND);
    assert!(state.failed.contains_key(&NODE) && state.checked.is_empty());
    state.forget_failed(31 * SECOND);
    assert!(state.failed_for_extents.is_empty() && state.failed.contains_key(&NODE));
}

/// Notes a round at `now_ns`, after which the next page begins after `next`.
fn round(state: &mut RoundState, members: &RepairMembers, now_ns: u64, next: Option<ExtentAt>) {
    state.begin_page(members, &DrainingNodes::new());
    let again_ns = state.again_ns(members, now_ns);
    let members = members.clone();
    state.end_round(EndedRound { members, chunks_unreadable: 0, at_ns: now_ns, again_ns, next });
}

/// Notes a round that begins with these extents of draining nodes.
fn round_of_drain(
    state: &mut RoundState,
    members: &RepairMembers,
    draining: &DrainingNodes,
    next: Option<ExtentAt>,
) {
    state.begin_page(members, draining);
    let (members, again_ns) = (members.clone(), None);
    state.end_round(EndedRound { members, chunks_unreadable: 0, at_ns: 0, again_ns, next });
}

/// A page of a comparison after which the next one begins after `next`. A node lacks a chunk.
fn page(next: Option<ChunkId>) -> ComparedPage {
    let descriptor = ChunkDescriptor {
        chunk: CHUNK,
        written: Stamp { volume: VolumeId([1; 16]), epoch: Epoch(1) },
        class: FileClass::Sst,
        scheme: Scheme::Replicas(3),
        is_coding_due: false,
        blob_bytes: 100,
        placement: PlacementEpoch::WRITTEN,
        holders: Vec::new(),
        retaining: Vec::new(),
    };
    ComparedPage { missing: vec![MissingChunk { storage: StorageId(2), descriptor }], next }
}

#[test]
fn comparison_goes_on_with_its_next_page_after_a_round() {
    let list = member_list(MemberState::Up, 1);
    let mut state = new_state();
    let first = state.next_comparison(&list, 0).expect("the node is new");
    assert_eq!((first.node, first.after), (NODE, None));
    state.note_page(first, page(Some(CHUNK)), DAY);
    assert!(state.missing.is_empty(), "the chunks of all pages are repaired together");
    for _interrupted in 0..2 {
        let second = state.next_comparison(&list, 0).expect("a second page");
        assert_eq!(second.after, Some(CHUNK));
        state.comparison = Some(second);
    }
    let second = state.next_comparison(&list, 0).expect("a second page");
    state.note_page(second, page(None), DAY);
    assert_eq!(state.missing.len(), 2);
    assert!(state.next_comparison(&list, DAY - 1).is_none());
    assert!(state.next_comparison(&list, DAY).is_some());
}

#[test]
fn comparison_begins_again_if_its_node_may_have_other_chunks() {
    let list = member_list(MemberState::Up, 1);
    let begun = || {
        let mut state = new_state();
        let first = state.next_comparison(&list, 0).expect("the node is new");
        state.note_page(first, page(Some(CHUNK)), DAY);
        state
    };
    let mut restarted = begun();
    let mut failed = begun();
    failed.note_failed(NODE, true, 0);
    for (state, life) in [(&mut restarted, 2), (&mut failed, 1)] {
        let list = member_list(MemberState::Up, life);
        let again = state.next_comparison(&list, 0).expect("it has ended no comparison");
        assert_eq!((again.after, state.missing.len()), (None, 1), "life {life}");
    }
    let mut silent = begun();
    assert!(silent.next_comparison(&member_list(MemberState::Silent, 1), 0).is_none());
    let mut refused = begun();
    let first = refused.next_comparison(&list, 0).expect("a second page");
    refused.put_off(first, 0);
    assert!(refused.next_comparison(&list, 29 * SECOND).is_none(), "other nodes come first");
    let again = refused.next_comparison(&list, 30 * SECOND).expect("it has ended no comparison");
    assert_eq!(again.after, None);
}

#[test]
fn comparisons_that_fail_keep_no_other_node_from_its_own() {
    let mut list = member_list(MemberState::Up, 1);
    for number in [2, 3] {
        let member = StorageMember { storage: StorageId(number), ..list.members[0].clone() };
        list.members.push(member);
    }
    let mut state = new_state();
    let mut now_ns = 0;
    for expected in [1, 2, 3, 1, 2] {
        let hangs = state.next_comparison(&list, now_ns).expect("a node is due");
        assert_eq!(hangs.node, StorageId(expected));
        // The first node is due again before the answer of the next one fails to come.
        now_ns += 120 * SECOND;
        state.put_off(hangs, now_ns);
    }
    now_ns += DAY;
    for expected in [3, 1, 2] {
        let begun = state.next_comparison(&list, now_ns).expect("a node is due");
        assert_eq!(begun.node, StorageId(expected));
        state.note_page(begun, page(Some(CHUNK)), now_ns + DAY);
        state.note_failed(StorageId(expected), true, now_ns);
    }
}

#[test]
fn extents_are_looked_for_again_after_a_change_of_the_members() {
    let mut state = new_state();
    let [before, after] =
        [false, true].map(|is_lost| RepairMembers::new(&Members::default(), is_lost));
    for members in [&before, &after] {
        round(&mut state, members, 100 * SECOND, None);
        assert!(!state.is_again_due(109 * SECOND));
        // A round that repairs what the first one has found does not count.
        round(&mut state, members, 105 * SECOND, None);
        assert!(!state.is_again_due(109 * SECOND) && state.is_again_due(110 * SECOND));
        round(&mut state, members, 110 * SECOND, None);
        assert!(!state.is_again_due(1000 * SECOND), "once is enough");
    }
}

#[test]
fn extents_are_looked_for_again_from_the_first_page_on() {
    let mut state = new_state();
    let members = RepairMembers::new(&Members::default(), false);
    let page_end = Some(ExtentAt { log: LogId([3; 16]), extent: 1 });
    round(&mut state, &members, 0, page_end);
    assert!(!state.is_again_due(20 * SECOND), "the next page follows anyway");
    round(&mut state, &members, 20 * SECOND, None);
    assert!(state.is_again_due(25 * SECOND), "the first page was compared too early");
    round(&mut state, &members, 25 * SECOND, page_end);
    round(&mut state, &members, 30 * SECOND, None);
    assert!(!state.is_again_due(1000 * SECOND));
}
