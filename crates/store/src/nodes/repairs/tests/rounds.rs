//! Tests of the state that the manager keeps from round to round.

use archipelago_base::Epoch;
use archipelago_fabric::NodeId;

use super::super::super::StorageId;
use super::super::super::placement::RepairLimits;
use super::super::super::wire::{ExtentAt, MemberState, Members, NodeSpace, StorageMember};
use super::super::planner::{ExtentTarget, RepairMembers};
use super::super::rounds::{ExtentCycle, LastScan, RoundState};
use crate::ids::LogId;

const NODE: StorageId = StorageId(1);
const SECOND: u64 = 1_000_000_000;

/// The members of a cluster of which one node is in `state`.
fn members(state: MemberState) -> RepairMembers {
    members_in_life(state, 1)
}

fn members_in_life(state: MemberState, life: u64) -> RepairMembers {
    let member = StorageMember {
        storage: NODE,
        node: NodeId(1),
        life: Epoch(life),
        endpoints: Vec::new(),
        domain: "rack 1".to_owned(),
        state,
        space: NodeSpace::default(),
    };
    let members = Members { members: vec![member], ..Members::default() };
    RepairMembers::new(&members, false)
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
    state.unlisted.insert(NODE, at_ns);
    state.checked.insert(NODE, (Epoch(1), u64::MAX));
    state
}

#[test]
fn node_without_lists_counts_from_the_first_one_until_it_is_lost() {
    let mut state = unlisted_since(7);
    for stays in [MemberState::Silent, MemberState::Draining, MemberState::Up] {
        state.forget_unlisted(&members(stays));
        assert_eq!(state.unlisted.get(&NODE), Some(&7), "{stays:?}");
    }
    state.forget_unlisted(&members(MemberState::Lost));
    assert!(state.unlisted.is_empty());
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
    for changed in [members_in_life(MemberState::Up, 2), members(MemberState::Draining)] {
        round(&mut state, &up, 0, None);
        state.note_refused(copy, &up);
        state.forget_refused(&up);
        assert!(state.refused.contains_key(&copy), "nothing has changed");
        state.forget_refused(&changed);
        assert!(state.refused.is_empty(), "{changed:?}");
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
    state.begin_page(members);
    let again_ns = state.again_ns(members, now_ns);
    let (members, is_unfinished) = (members.clone(), next.is_some());
    state.last =
        Some(LastScan { members, chunks_unreadable: 0, at_ns: now_ns, again_ns, is_unfinished });
    state.cycle = ExtentCycle { after: next, ..ExtentCycle::default() };
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
