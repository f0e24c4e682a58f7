//! Tests of the planner.

use std::collections::BTreeSet;

use archipelago_base::Epoch;
use archipelago_env::FileClass;
use archipelago_fabric::NodeId;

use super::super::super::StorageId;
use super::super::super::layout::{CellSize, Scheme};
use super::super::super::placement::{NextRepair, RepairLimits, RepairRates, next_repair};
use super::super::super::wire::{
    ChunkDescriptor, ChunkId, CodingDue, ExtentAt, HeldChunk, Holder, MemberState, Members,
    NodeSpace, PlacementEpoch, SealedExtent, Stamp, StorageMember,
};
use super::super::extent_page::ExtentPage;
use super::super::members::RepairMembers;
use super::super::planner::{
    ExtentTarget, ExtentsWithoutJob, RepairJob, RepairPlan, RepairPlanner, UnlistedExtents,
};
use crate::ids::{BlobId, LogId, VolumeId};

const VOLUME: VolumeId = VolumeId([1; 16]);

fn members(states: &[MemberState]) -> Members {
    let member = |(n, state): (usize, &MemberState)| StorageMember {
        storage: StorageId(n as u64 + 1),
        node: NodeId(n as u64 + 1),
        life: Epoch(1),
        endpoints: Vec::new(),
        domain: format!("rack {n}"),
        state: *state,
        space: NodeSpace { capacity_bytes: 1 << 40, used_bytes: 1 << 30 },
    };
    let members = states.iter().enumerate().map(member).collect();
    Members { members, is_complete: true, ..Members::default() }
}

fn held(blob: u8, scheme: Scheme, holders: &[u64], is_readable: bool) -> HeldChunk {
    let is_coded = matches!(scheme, Scheme::Rs42(_));
    let holder = |(at, node): (usize, &u64)| Holder {
        storage: StorageId(*node),
        chunk: if is_coded { at as u8 } else { 0 },
    };
    let holders = holders.iter().enumerate().map(holder).collect();
    let descriptor = ChunkDescriptor {
        chunk: ChunkId { blob: BlobId([blob; 16]), index: 0 },
        written: Stamp { volume: VOLUME, epoch: Epoch(1) },
        class: FileClass::Sst,
        scheme,
        is_coding_due: false,
        blob_bytes: 8 << 20,
        placement: PlacementEpoch::WRITTEN,
        holders,
        retaining: vec![VOLUME],
    };
    HeldChunk { descriptor, is_readable }
}

fn plan(states: &[MemberState], chunks: &[(u64, HeldChunk)]) -> RepairPlan {
    let members = RepairMembers::new(&members(states), false);
    let mut planner = RepairPlanner::new(members, Vec::new());
    chunks.iter().for_each(|(node, held)| planner.add_chunk(StorageId(*node), held));
    planner.finish()
}

fn chunk_of(job: &RepairJob) -> (ChunkId, Option<StorageId>) {
    match job {
        RepairJob::Chunk { descriptor, replaces } => (descriptor.chunk, *replaces),
        RepairJob::Extent { .. } => panic!("{job:?} is no chunk"),
    }
}

#[test]
fn chunk_of_a_lost_node_is_made_in_another_domain() {
    use MemberState::{Lost, Up};
    let states = [Lost, Up, Up, Up];
    let plan = plan(&states, &[(2, held(1, Scheme::Replicas(3), &[1, 2, 3], true))]);
    assert_eq!(plan.debts[0].target, StorageId(4), "the only domain without a copy");
    assert_eq!(plan.debts[0].losses_left, 1);
    assert_eq!(chunk_of(&plan.jobs[0]).1, Some(StorageId(1)));
    assert_eq!((plan.status.chunks_left, plan.status.nodes[0].storage), (1, StorageId(1)));
}

#[test]
fn silent_node_and_unknown_node_are_not_repaired_yet() {
    use MemberState::{Silent, Up};
    let chunks = [
        (2, held(1, Scheme::Replicas(3), &[1, 2, 3], true)),
        (2, held(2, Scheme::Replicas(3), &[99, 2, 3], true)),
    ];
    assert!(plan(&[Silent, Up, Up, Up], &chunks).jobs.is_empty());
    let members = RepairMembers::new(&members(&[Silent, Up, Up, Up]), true);
    let mut planner = RepairPlanner::new(members, Vec::new());
    chunks.iter().for_each(|(node, held)| planner.add_chunk(StorageId(*node), held));
    assert_eq!(planner.finish().jobs.len(), 1, "a node of which no manager hears is lost");
}

#[test]
fn coded_chunk_reads_four_others_and_a_drained_one_reads_itself() {
    use MemberState::{Draining, Lost, Up};
    let coded = held(1, Scheme::Rs42(CellSize::Small), &[1, 2, 3, 4, 5, 6], true);
    let lost = plan(&[Up, Lost, Up, Up, Up, Up, Up], &[(1, coded.clone())]);
    assert_eq!((lost.debts[0].sources.len(), lost.debts[0].target), (4, StorageId(7)));
    assert_eq!(chunk_of(&lost.jobs[0]).0.index, 1);
    let drained = plan(&[Up, Draining, Up, Up, Up, Up, Up], &[(1, coded.clone())]);
    assert_eq!(drained.debts[0].sources, [StorageId(2)]);
    assert_eq!((lost.debts[0].losses_left, drained.debts[0].losses_left), (1, 2));
    let no_room = plan(&[Up, Draining, Up, Up, Up, Up], &[(1, coded)]);
    assert!(no_room.jobs.is_empty());
    assert_eq!(no_room.status.nodes[0].stuck, 1);
    assert!(no_room.status.nodes[0].examples[0].contains("add nodes"), "{:?}", no_room.status);
}

#[test]
fn damage_is_repaired_in_place_and_too_few_sources_are_counted() {
    use MemberState::{Lost, Up};
    let scheme = Scheme::Replicas(3);
    let damaged = plan(&[Up; 4], &[(2, held(1, scheme, &[1, 2, 3], false))]);
    assert_eq!((damaged.debts[0].target, chunk_of(&damaged.jobs[0]).1), (StorageId(2), None));
    let gone = plan(&[Lost, Up, Lost, Up], &[(2, held(1, scheme, &[1, 2, 3], false))]);
    assert!(gone.jobs.is_empty());
    assert_eq!(gone.status.unrepairable, 1);
}

#[test]
fn blob_with_two_copies_waits_for_a_third_domain() {
    use MemberState::Up;
    let short = held(1, Scheme::Replicas(2), &[1, 2], true);
    let waiting = plan(&[Up, Up], &[(1, short.clone())]);
    assert_eq!((waiting.jobs.len(), waiting.status.waiting_for_domains), (0, 1));
    let completed = plan(&[Up, Up, Up], &[(1, short)]);
    assert_eq!((completed.debts[0].target, completed.debts[0].losses_left), (StorageId(3), 1));
}

#[test]
fn blobs_whose_code_is_due_are_counted_and_not_moved() {
    use MemberState::{Draining, Up};
    let due = |blob: u8, holders: &[u64]| {
        let replicated = held(blob, Scheme::Replicas(3), holders, true);
        let descriptor = ChunkDescriptor { is_coding_due: true, ..replicated.descriptor };
        HeldChunk { descriptor, ..replicated }
    };
    // The node that drains lists its chunks.
    let chunks = [(2, due(2, &[2, 3, 4])), (4, due(2, &[2, 3, 4]))];
    for (states, jobs) in [([Up; 6], 0), ([Up, Up, Up, Draining, Up, Up], 1)] {
        let members = RepairMembers::new(&members(&states), false);
        let mut planner = RepairPlanner::new(members, Vec::new());
        for (node, held) in &chunks {
            planner.add_chunk(StorageId(*node), held);
            planner.add_coding_due(CodingDue { files: 1, bytes: 8 << 20 });
        }
        let RepairPlan { status, jobs: planned, .. } = planner.finish();
        assert_eq!((status.coding_files, status.coding_bytes), (2, 16 << 20));
        assert_eq!(planned.len(), jobs);
    }
    // Another holder lists and counts the blobs of a node that listed nothing in the last round.
    let members = RepairMembers::new(&members(&[Up; 6]), false);
    let planner =
        RepairPlanner::new(members, Vec::new()).without_lists_of(std::iter::once(StorageId(1)));
    let listing: Vec<u64> = planner.listing().map(|node| node.0).collect();
    assert_eq!(listing, [2, 3, 4, 5, 6]);
}

/// The plan for a blob after node 2 got the label of node 1, with nodes in `domains` domains.
fn plan_after_relabel(
    nodes: usize,
    held: &HeldChunk,
    states: &[(usize, MemberState)],
) -> RepairPlan {
    let mut members = members(&vec![MemberState::Up; nodes]);
    members.members[1].domain = members.members[0].domain.clone();
    states.iter().for_each(|(at, state)| members.members[*at].state = *state);
    let members = RepairMembers::new(&members, false);
    assert_eq!(members.shared_domains().len(), 1);
    let mut planner = RepairPlanner::new(members, Vec::new());
    planner.add_chunk(StorageId(3), held);
    planner.finish()
}

#[test]
fn second_holder_in_a_domain_moves_to_a_free_one() {
    let replicated = held(1, Scheme::Replicas(3), &[1, 2, 3], true);
    let moved = plan_after_relabel(4, &replicated, &[]);
    assert_eq!((moved.debts[0].target, moved.status.sharing_domains), (StorageId(4), 0));
    assert_eq!(chunk_of(&moved.jobs[0]).1, Some(StorageId(2)));
    let coded = held(1, Scheme::Rs42(CellSize::Small), &[1, 2, 3, 4, 5, 6], true);
    let moved = plan_after_relabel(7, &coded, &[]);
    assert_eq!((moved.debts[0].target, moved.debts[0].sources.len()), (StorageId(7), 1));
    assert_eq!(
        (chunk_of(&moved.jobs[0]).0.index, chunk_of(&moved.jobs[0]).1),
        (1, Some(StorageId(2)))
    );
    let no_room = plan_after_relabel(6, &coded, &[]);
    assert!(no_room.jobs.is_empty());
    assert_eq!((no_room.status.sharing_domains, no_room.status.unrepairable), (1, 0));
}

#[test]
fn nothing_moves_because_of_a_domain_while_labels_change() {
    let mut members = members(&[MemberState::Up; 5]);
    members.members[1].domain = members.members[0].domain.clone();
    let settled = RepairMembers::new(&members, false);
    let changing = settled.clone().with_settled_labels(false);
    assert!(!settled.has_same_nodes(&changing), "the moves begin when the labels are settled");
    let plan = |members: RepairMembers| {
        let mut planner = RepairPlanner::new(members, Vec::new());
        planner.add_chunk(StorageId(3), &held(1, Scheme::Replicas(3), &[1, 2, 3], true));
        (1..=3).for_each(|node| planner.add_extent(StorageId(node), sealed(1, 100)));
        // An extent that lacks a copy is repaired before the labels settle.
        (1..=2).for_each(|node| planner.add_extent(StorageId(node), sealed(2, 100)));
        planner.finish()
    };
    let waiting = plan(changing);
    assert_eq!((waiting.jobs.len(), waiting.status.sharing_domains), (1, 2));
    assert!(matches!(&waiting.jobs[0], RepairJob::Extent { extent, .. } if extent.at.extent == 2));
    let moving = plan(settled);
    assert_eq!((moving.jobs.len(), moving.status.sharing_domains), (3, 0));
}

#[test]
fn silent_holder_in_a_shared_domain_stays_where_it_is() {
    let replicated = held(1, Scheme::Replicas(3), &[1, 2, 3], true);
    let moved = plan_after_relabel(4, &replicated, &[(1, MemberState::Silent)]);
    assert_eq!(chunk_of(&moved.jobs[0]).1, Some(StorageId(1)), "the holder that answers moves");
    let both = [(0, MemberState::Silent), (1, MemberState::Silent)];
    assert!(plan_after_relabel(4, &replicated, &both).jobs.is_empty());
}

#[test]
fn another_label_of_a_node_changes_what_is_to_be_repaired() {
    let before = members(&[MemberState::Up; 3]);
    let mut after = before.clone();
    after.members[2].space.used_bytes += 1 << 30;
    let of = |members: &Members| RepairMembers::new(members, false);
    assert!(of(&before).has_same_nodes(&of(&after)));
    after.members[2].domain.clone_from(&before.members[1].domain);
    assert!(!of(&before).has_same_nodes(&of(&after)));
}

#[test]
fn extent_with_two_copies_in_one_domain_gets_a_third_domain() {
    let plan = |nodes: usize| {
        let mut members = members(&vec![MemberState::Up; nodes]);
        members.members[1].domain = members.members[0].domain.clone();
        let mut planner = RepairPlanner::new(RepairMembers::new(&members, false), Vec::new());
        (1..=3).for_each(|node| planner.add_extent(StorageId(node), sealed(1, 100)));
        planner.finish()
    };
    let moved = plan(4);
    assert_eq!((moved.debts[0].target, moved.status.extents_left), (StorageId(4), 1));
    assert!(plan(3).jobs.is_empty(), "two domains have room for two copies");
}

#[test]
fn blobs_with_the_least_redundancy_come_first() {
    use MemberState::{Lost, Up};
    let scheme = Scheme::Replicas(3);
    let chunks = [
        (3, held(1, scheme, &[1, 3, 4], true)),
        (3, held(2, scheme, &[1, 2, 3], true)),
        (4, held(3, scheme, &[2, 4, 5], true)),
    ];
    let plan = plan(&[Lost, Lost, Up, Up, Up, Up], &chunks);
    let limits = RepairLimits { node_bytes_per_s: 1 << 30, cluster_bytes_per_s: 1 << 30 };
    let (rates, idle) = (RepairRates::new(limits), BTreeSet::new());
    let NextRepair::Start(first) = next_repair(&plan.debts, &rates, &idle, 0) else {
        panic!("a repair may start: {:?}", plan.debts)
    };
    assert_eq!(chunk_of(&plan.jobs[first]).0.blob, BlobId([2; 16]), "one copy is left");
}

fn sealed(number: u32, end: u64) -> SealedExtent {
    let at = ExtentAt { log: LogId([3; 16]), extent: number };
    SealedExtent { at, volume: VOLUME, class: FileClass::Wal, start: 0, end }
}

/// A planner that has got these extents from these nodes.
fn listed(states: &[MemberState], lists: &[(u64, SealedExtent)]) -> RepairPlanner {
    let members = RepairMembers::new(&members(states), false);
    let mut planner = RepairPlanner::new(members, Vec::new());
    lists.iter().for_each(|(node, extent)| planner.add_extent(StorageId(*node), *extent));
    planner
}

#[test]
fn sealed_extents_get_three_copies_when_all_nodes_have_listed_theirs() {
    use MemberState::{Lost, Up};
    let list = |are_all_listed: bool| {
        let lists = [(2, sealed(1, 100)), (3, sealed(1, 100))];
        let mut planner = listed(&[Lost, Up, Up, Up], &lists);
        if !are_all_listed {
            planner.note_unlisted(StorageId(4), UnlistedExtents::Unknown);
        }
        planner.finish()
    };
    let whole = list(true);
    assert_eq!((whole.debts[0].target, whole.status.extents_left), (StorageId(4), 1));
    assert!(whole.status.is_known);
    let unknown = list(false);
    assert!(unknown.jobs.is_empty(), "a node that did not list may have a copy");
    assert_eq!((unknown.status.is_known, unknown.status.extents_unknown), (false, 1));
    assert_eq!(unknown.status.unlisted, [StorageId(4)]);
}

#[test]
fn extents_without_a_target_are_counted_for_all_nodes_that_leave() {
    use MemberState::{Draining, Up};
    // The only node without copies lists nothing, so it is no target.
    let stuck = |states: &[MemberState], copies: &[u64]| {
        let lists: Vec<(u64, SealedExtent)> =
            copies.iter().map(|node| (*node, sealed(1, 100))).collect();
        let mut planner = listed(states, &lists);
        planner.note_unlisted(StorageId(5), UnlistedExtents::Missing);
        let plan = planner.finish();
        assert!(plan.jobs.is_empty(), "{:?}", plan.jobs);
        let nodes: Vec<(u64, u64)> =
            plan.status.nodes.iter().map(|debt| (debt.storage.0, debt.stuck)).collect();
        (nodes, plan.status.waiting_for_domains)
    };
    let two_leave = stuck(&[Draining, Draining, Up, Up, Up], &[1, 2, 3, 4]);
    assert_eq!(two_leave, (vec![(1, 1), (2, 1)], 0));
    let mut members = members(&[Up; 3]);
    members.members[2].space.used_bytes = members.members[2].space.capacity_bytes;
    let mut planner = RepairPlanner::new(RepairMembers::new(&members, false), Vec::new());
    (1..=2).for_each(|node| planner.add_extent(StorageId(node), sealed(1, 100)));
    let plan = planner.finish();
    assert_eq!((plan.jobs.len(), plan.status.waiting_for_domains), (0, 1), "node 3 is full");
}

#[test]
fn node_that_a_manager_has_not_heard_of_yet_may_have_copies() {
    use MemberState::Up;
    let plan = |is_complete: bool, unknown_is_lost: bool| {
        let members = Members { is_complete, ..members(&[Up; 4]) };
        let members = RepairMembers::new(&members, unknown_is_lost);
        let mut planner = RepairPlanner::new(members, Vec::new());
        planner.add_extent(StorageId(1), sealed(1, 100));
        (1..=3).for_each(|node| planner.add_extent(StorageId(node), sealed(2, 100)));
        planner.finish()
    };
    let unheard = plan(false, false);
    assert!(unheard.jobs.is_empty());
    assert_eq!((unheard.status.is_known, unheard.status.extents_unknown), (false, 1));
    for heard in [plan(true, false), plan(false, true)] {
        assert_eq!(heard.jobs.len(), 1);
        assert_eq!((heard.status.is_known, heard.status.extents_unknown), (true, 0));
    }
}

#[test]
fn extents_without_bytes_need_no_copies() {
    use MemberState::{Draining, Up};
    let empty = |number: u32| SealedExtent { start: 100, ..sealed(number, 100) };
    let lists = [(1, empty(1)), (2, empty(1)), (1, empty(2)), (3, empty(2))];
    for states in [vec![Up, Up, Up, Up], vec![Up, Up], vec![Draining, Up, Up]] {
        let status = listed(&states, &lists).finish().status;
        let lacking = (status.extents_left, status.waiting_for_domains, status.extents_unknown);
        assert_eq!((lacking, status.nodes.len()), ((0, 0, 0), 0), "{states:?}");
    }
}

#[test]
fn unlisted_extents_hold_up_only_those_that_they_may_complete() {
    use MemberState::{Silent, Up};
    // Extent 1 has one copy and extent 2 has two, and one more node may have copies of both.
    let lists = [(2, sealed(1, 100)), (2, sealed(2, 100)), (3, sealed(2, 100))];
    let mut hung = listed(&[Up; 5], &lists);
    hung.note_unlisted(StorageId(1), UnlistedExtents::Unknown);
    let silent = listed(&[Silent, Up, Up, Up, Up], &lists);
    for plan in [hung.finish(), silent.finish()] {
        let extents = plan.jobs.iter().map(|job| match job {
            RepairJob::Extent { extent, .. } => extent.at.extent,
            RepairJob::Chunk { .. } => panic!("{job:?} is no extent"),
        });
        assert_eq!(extents.collect::<Vec<_>>(), [1]);
        assert_ne!(plan.debts[0].target, StorageId(1), "its copy may be longer");
        assert_eq!((plan.status.is_known, plan.status.extents_unknown), (false, 1));
    }
}

#[test]
fn node_that_lists_nothing_for_long_is_no_holder_and_no_target() {
    use MemberState::{Lost, Up};
    let lists = [(3, sealed(1, 100)), (4, sealed(1, 100))];
    let mut planner = listed(&[Lost, Up, Up, Up, Up], &lists);
    planner.note_unlisted(StorageId(2), UnlistedExtents::Missing);
    let plan = planner.finish();
    assert_eq!(plan.debts[0].target, StorageId(5));
    assert_eq!((plan.status.is_known, plan.status.extents_unknown), (false, 0));
    // The only node without a known copy may have a longer one, which an order would cut.
    let mut planner = listed(&[Lost, Up, Up, Up], &lists);
    planner.note_unlisted(StorageId(2), UnlistedExtents::Missing);
    assert!(planner.finish().jobs.is_empty());
}

#[test]
fn removed_log_needs_no_copies_and_holds_no_drain_up() {
    use MemberState::{Draining, Up};
    let removed = LogId([3; 16]);
    for states in [[Up; 4], [Draining, Up, Up, Up]] {
        let lists = [(1, sealed(1, 100)), (1, sealed(2, 100))];
        let plan = listed(&states, &lists).without_logs(std::iter::once(removed)).finish();
        assert!(plan.jobs.is_empty(), "{states:?}: {:?}", plan.jobs);
        let status = &plan.status;
        let counts = (status.extents_left, status.extents_refused, status.waiting_for_domains);
        assert_eq!((counts, status.nodes.len()), ((0, 0, 0), 0), "{states:?}");
        let others = std::iter::once(LogId([4; 16]));
        assert_eq!(listed(&states, &lists).without_logs(others).finish().jobs.len(), 2);
    }
}

#[test]
fn refused_copy_is_made_in_another_domain_or_counted_apart() {
    use MemberState::{Draining, Up};
    // Nodes 1 and 2 have the extent, and node 3 keeps a longer replica of its own.
    let plan = |states: &[MemberState]| {
        let refused = ExtentTarget { at: sealed(1, 100).at, node: StorageId(3) };
        let lists = [(1, sealed(1, 100)), (2, sealed(1, 100))];
        listed(states, &lists).without_copies(std::iter::once(refused)).finish()
    };
    let elsewhere = plan(&[Up; 4]);
    assert_eq!((elsewhere.debts[0].target, elsewhere.status.extents_refused), (StorageId(4), 0));
    for states in [[Up, Up, Up], [Draining, Up, Up]] {
        let refused = plan(&states);
        let status = &refused.status;
        assert!(refused.jobs.is_empty(), "{states:?}: {:?}", refused.jobs);
        let counts = (status.extents_left, status.extents_refused, status.waiting_for_domains);
        assert_eq!((counts, status.nodes.len()), ((0, 1, 0), 0), "{states:?}: a drain may end");
    }
    let needed = plan(&[Draining, Draining, Up]).status;
    assert_eq!((needed.extents_refused, needed.nodes.len()), (0, 2), "no other node has the bytes");
    assert!(needed.nodes.iter().all(|debt| debt.stuck == 1), "{needed:?}");
}

#[test]
fn drain_waits_for_a_full_node_although_another_one_refuses_a_copy() {
    use MemberState::{Draining, Up};
    // Nodes 1 and 2 have the extent, node 3 keeps a longer replica of its own, and node 4 is full.
    let refused = ExtentTarget { at: sealed(1, 100).at, node: StorageId(3) };
    let status = |states: &[MemberState]| {
        let mut members = members(states);
        members.members[3].space.used_bytes = members.members[3].space.capacity_bytes;
        let mut planner = RepairPlanner::new(RepairMembers::new(&members, false), Vec::new())
            .without_copies(std::iter::once(refused));
        (1..=2).for_each(|node| planner.add_extent(StorageId(node), sealed(1, 100)));
        let plan = planner.finish();
        assert!(plan.jobs.is_empty(), "{:?}", plan.jobs);
        plan.status
    };
    let drains = status(&[Draining, Up, Up, Up]);
    let stuck: Vec<(u64, u64)> =
        drains.nodes.iter().map(|debt| (debt.storage.0, debt.stuck)).collect();
    assert_eq!((stuck, drains.extents_refused), (vec![(1, 1)], 0), "only node 2 would have it");
    let stays = status(&[Up; 4]);
    assert_eq!((stays.waiting_for_domains, stays.extents_refused), (1, 0));
}

#[test]
fn failed_copies_of_extents_keep_no_damaged_chunk_from_its_node() {
    use MemberState::Up;
    let members = RepairMembers::new(&members(&[Up; 3]), false);
    let failed = std::iter::once(StorageId(2));
    let mut planner = RepairPlanner::new(members, Vec::new()).avoiding_for_extents(failed);
    planner.add_chunk(StorageId(2), &held(1, Scheme::Replicas(3), &[1, 2, 3], false));
    let plan = planner.finish();
    assert_eq!((plan.debts[0].target, chunk_of(&plan.jobs[0]).1), (StorageId(2), None));
    let members = RepairMembers::new(&self::members(&[Up; 4]), false);
    let failed = std::iter::once(StorageId(3));
    let mut planner = RepairPlanner::new(members, Vec::new()).avoiding_for_extents(failed);
    (1..=2).for_each(|node| planner.add_extent(StorageId(node), sealed(1, 100)));
    assert_eq!(planner.finish().debts[0].target, StorageId(4), "another node gets the extent");
}

#[test]
fn node_that_listed_nothing_gets_no_chunk_of_others_and_repairs_its_own() {
    use MemberState::{Lost, Up};
    let hanging = || {
        let members = RepairMembers::new(&members(&[Lost, Up, Up, Up]), false);
        RepairPlanner::new(members, Vec::new()).without_lists_of(std::iter::once(StorageId(4)))
    };
    let mut planner = hanging();
    planner.add_chunk(StorageId(2), &held(1, Scheme::Replicas(3), &[1, 2, 3], true));
    let plan = planner.finish();
    assert!(plan.jobs.is_empty(), "no other domain is free, and the node would not answer");
    assert_eq!(plan.status.nodes[0].stuck, 1);
    // It lists again, and names a damaged chunk.
    let mut planner = hanging();
    planner.add_chunk(StorageId(4), &held(2, Scheme::Replicas(3), &[2, 3, 4], false));
    let plan = planner.finish();
    assert_eq!((plan.debts[0].target, chunk_of(&plan.jobs[0]).1), (StorageId(4), None));
}

#[test]
fn extents_beyond_a_page_are_compared_by_the_next_rounds() {
    use MemberState::Up;
    let page_after = |after| {
        let members = RepairMembers::new(&members(&[Up; 4]), false);
        let page = ExtentPage { after, extents_max: 3 };
        let mut planner = RepairPlanner::new(members, Vec::new()).on_page(page);
        for node in [1, 2] {
            for number in (0..8_u32).filter(|number| number.is_multiple_of(2) || node == 1) {
                planner.add_extent(StorageId(node), sealed(number, 100));
            }
        }
        planner.finish()
    };
    let (mut after, mut compared) = (None, Vec::new());
    loop {
        let plan = page_after(after);
        assert_eq!(plan.status.extents_compared, plan.jobs.len() as u64);
        for (job, debt) in plan.jobs.iter().zip(&plan.debts) {
            let RepairJob::Extent { extent, sources } = job else { panic!("{job:?}") };
            let copies = if extent.at.extent.is_multiple_of(2) { 2 } else { 1 };
            assert_eq!((sources.len(), debt.losses_left), (copies, copies as u8 - 1));
            compared.push(extent.at.extent);
        }
        assert_eq!(plan.status.has_more_extents, plan.extents_next.is_some());
        match plan.extents_next {
            Some(_) => after = plan.extents_next,
            None => break,
        }
    }
    assert_eq!(compared, (0..8).collect::<Vec<_>>());
}

#[test]
fn extents_without_a_place_count_until_the_last_page() {
    use MemberState::{Draining, Up};
    let mut members = members(&[Draining, Up, Up]);
    for full in &mut members.members[1..] {
        full.space.used_bytes = full.space.capacity_bytes;
    }
    let (mut after, mut earlier) = (None, ExtentsWithoutJob::default());
    let mut stuck = Vec::new();
    loop {
        let mut planner = RepairPlanner::new(RepairMembers::new(&members, false), Vec::new())
            .on_page(ExtentPage { after, extents_max: 3 })
            .after_pages(earlier);
        (0..4).for_each(|number| planner.add_extent(StorageId(1), sealed(number, 100)));
        let plan = planner.finish();
        assert!(plan.jobs.is_empty(), "{:?}", plan.jobs);
        let [debt] = &plan.status.nodes[..] else { panic!("{:?}", plan.status) };
        stuck.push((debt.storage, debt.stuck, debt.examples.len()));
        match plan.extents_next {
            Some(_) => (after, earlier) = (plan.extents_next, plan.without_job),
            None => break,
        }
    }
    let node = StorageId(1);
    assert_eq!(stuck, [(node, 3, 3), (node, 4, 4)], "a drain waits for all of them");
}

#[test]
fn sealed_extents_with_two_copies_wait_for_a_third_domain() {
    use MemberState::{Draining, Silent, Up};
    let list = |states: &[MemberState], nodes: &[u64]| {
        let lists: Vec<_> = nodes.iter().map(|node| (*node, sealed(1, 100))).collect();
        listed(states, &lists).finish()
    };
    for (states, nodes) in [(vec![Up, Up], vec![1, 2]), (vec![Up, Up, Draining], vec![1, 2, 3])] {
        let waiting = list(&states, &nodes);
        assert_eq!((waiting.jobs.len(), waiting.status.waiting_for_domains), (0, 1), "{states:?}");
    }
    let completed = list(&[Up, Up, Up], &[1, 2]);
    let status = &completed.status;
    assert_eq!((status.extents_left, status.waiting_for_domains), (1, 0));
    assert_eq!(completed.debts[0].target, StorageId(3));
    assert_eq!(list(&[Up, Up, Up], &[1, 2, 3]).status.waiting_for_domains, 0);
    let silent = list(&[Up, Up, Silent], &[1, 2]).status;
    assert_eq!((silent.waiting_for_domains, silent.extents_unknown), (0, 1), "it may have a copy");
}
