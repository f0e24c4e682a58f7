//! Placement, order of repairs and moves over small pools.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_base::ErrorKind;
use archipelago_base::random::Rng;

use super::super::StorageId;
use super::super::layout::{CellSize, Scheme};
use super::{
    ChunkAt, NextRepair, NodeReport, Placement, PlacementDebt, PlacementRequest, RepairDebt,
    RepairLimits, RepairRates, Replacement, WritePurpose, next_repair, place, rebalance, replace,
};
use crate::ids::BlobId;

const GIB: u64 = 1 << 30;
const RS: Scheme = Scheme::Rs42(CellSize::Small);

fn node(id: u64, domain: &str) -> NodeReport {
    NodeReport {
        id: StorageId(id),
        domain: domain.to_owned(),
        capacity_bytes: 100 * GIB,
        used_bytes: 10 * GIB,
        is_up: true,
        is_draining: false,
    }
}

/// `count` nodes, each in a domain of its own.
fn pool(count: u64) -> Vec<NodeReport> {
    (1..=count).map(|id| node(id, &format!("rack {id}"))).collect()
}

fn request(key: u8, scheme: Scheme) -> PlacementRequest {
    PlacementRequest {
        key: [key; 16],
        scheme,
        len_bytes: 64 << 20,
        purpose: WritePurpose::Job,
        copies_min: 2,
    }
}

fn placed(nodes: &[NodeReport], scheme: Scheme) -> Placement {
    place(nodes, &request(1, scheme)).unwrap()
}

#[test]
fn number_of_domains_decides_scheme_and_debt() {
    let of = |count, scheme| {
        let placement = placed(&pool(count), scheme);
        assert_eq!(placement.nodes.len(), usize::from(placement.scheme.chunks()));
        (placement.scheme, placement.debt)
    };
    assert_eq!(of(7, RS), (RS, PlacementDebt::None));
    assert_eq!(of(6, RS), (RS, PlacementDebt::None));
    assert_eq!(of(5, RS), (Scheme::Replicas(3), PlacementDebt::Coding));
    assert_eq!(of(3, RS), (Scheme::Replicas(3), PlacementDebt::Coding));
    assert_eq!(of(2, RS), (Scheme::Replicas(2), PlacementDebt::Copies(1)));
    assert_eq!(of(6, Scheme::Replicas(3)), (Scheme::Replicas(3), PlacementDebt::None));
    assert_eq!(of(2, Scheme::Replicas(3)), (Scheme::Replicas(2), PlacementDebt::Copies(1)));
}

#[test]
fn too_few_domains_are_refused_with_the_reason() {
    let mut nodes = pool(3);
    nodes[0].is_up = false;
    nodes[1].is_draining = true;
    let error = place(&nodes, &request(1, RS)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.context().contains("1 do not answer, 1 drain and 0 are too full"), "{error}");
    let trial = PlacementRequest { copies_min: 1, ..request(1, RS) };
    let placement = place(&nodes, &trial).unwrap();
    assert_eq!(placement.nodes, [StorageId(3)]);
    assert_eq!(placement.debt, PlacementDebt::Copies(2));
    assert_eq!(placement.debt.to_string(), "2 copies are missing");
    assert!(place(&[], &trial).is_err());
}

#[test]
fn full_nodes_are_another_reason_than_missing_ones() {
    let mut nodes = pool(3);
    for node in &mut nodes {
        node.used_bytes = node.capacity_bytes;
    }
    let error = place(&nodes, &request(1, RS)).unwrap_err();
    assert!(error.is_no_space(), "{error:?}");
    let replacement = || Replacement { holders: &[StorageId(1), StorageId(2)], avoid: &[] };
    let error = replace(&nodes, &request(1, RS), replacement()).unwrap_err();
    assert!(error.is_no_space(), "{error:?}");
    // With room on both nodes that are up there would be two copies, and now there is none.
    nodes[0].is_up = false;
    assert!(place(&nodes, &request(1, RS)).unwrap_err().is_no_space());
    // Room would not help: only one domain is up.
    nodes[1].is_up = false;
    let error = place(&nodes, &request(1, RS)).unwrap_err();
    assert_eq!((error.kind(), error.is_no_space()), (ErrorKind::Busy, false));
    let nobody = Replacement { holders: &[StorageId(3)], avoid: &[] };
    assert_eq!(replace(&nodes, &request(1, RS), nobody).unwrap_err().kind(), ErrorKind::Busy);
}

#[test]
fn nodes_of_one_domain_hold_one_chunk_together() {
    let mut nodes = pool(3);
    nodes.extend((10..20).map(|id| node(id, "rack 1")));
    for key in 0..50 {
        let placement = place(&nodes, &request(key, RS)).unwrap();
        assert_eq!(placement.scheme, Scheme::Replicas(3));
        let domains: BTreeSet<_> = nodes
            .iter()
            .filter(|node| placement.nodes.contains(&node.id))
            .map(|node| &node.domain)
            .collect();
        assert_eq!(domains.len(), 3);
    }
}

#[test]
fn purpose_decides_how_full_a_node_may_be() {
    use WritePurpose::{Ingestion, Job, Log, Repair};
    let takes = |percent: u64, purpose| {
        let mut nodes = pool(2);
        nodes[0].used_bytes = percent * GIB;
        let request = PlacementRequest { len_bytes: GIB / 2, purpose, ..request(1, RS) };
        place(&nodes, &request).is_ok()
    };
    for (percent, taken) in [
        (94, [true; 4]),
        (95, [false, true, true, true]),
        (97, [false, false, true, true]),
        (98, [false, false, false, true]),
        (100, [false, false, false, true]),
    ] {
        assert_eq!([Ingestion, Repair, Job, Log].map(|purpose| takes(percent, purpose)), taken);
    }
}

#[test]
fn nodes_get_blobs_in_proportion_to_free_bytes() {
    let mut nodes = pool(4);
    nodes[0].used_bytes = 70 * GIB;
    let mut rng = Rng::with_seed(1);
    let mut first: BTreeMap<u64, u32> = BTreeMap::new();
    for _ in 0..20_000 {
        let mut request = request(0, Scheme::Replicas(2));
        request.key.fill_with(|| rng.u8(..));
        *first.entry(place(&nodes, &request).unwrap().nodes[0].0).or_default() += 1;
    }
    // 30 of 300 free GiB are on the first node, 90 on each other one.
    assert!((1700..2300).contains(&first[&1]), "{first:?}");
    assert!((5600..6400).contains(&first[&2]), "{first:?}");
}

#[test]
fn a_node_that_leaves_moves_only_its_own_choices() {
    let nodes = pool(8);
    let without: Vec<_> = nodes[1..].to_vec();
    for key in 0..100 {
        let before = place(&nodes, &request(key, Scheme::Replicas(3))).unwrap().nodes;
        let after = place(&without, &request(key, Scheme::Replicas(3))).unwrap().nodes;
        let kept: Vec<_> = before.iter().filter(|id| id.0 != 1).copied().collect();
        assert_eq!(&after[..kept.len()], kept);
    }
}

#[test]
fn replacement_has_a_domain_of_its_own() {
    let mut nodes = pool(4);
    nodes.push(node(9, "rack 1"));
    let holders = [StorageId(1), StorageId(2)];
    let choose = |avoid: &[StorageId]| {
        replace(&nodes, &request(5, RS), Replacement { holders: &holders, avoid })
    };
    assert_eq!(choose(&[StorageId(3)]).unwrap(), StorageId(4));
    let error = choose(&[StorageId(3), StorageId(4)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
}

fn debt(blob: u8, losses_left: u8, nodes: &[u64]) -> RepairDebt {
    let (target, sources) = nodes.split_last().unwrap();
    RepairDebt {
        blob: BlobId([blob; 16]),
        losses_left,
        chunk_bytes: 1000,
        sources: sources.iter().map(|id| StorageId(*id)).collect(),
        target: StorageId(*target),
    }
}

fn rates(node_bytes_per_s: u64, cluster_bytes_per_s: u64) -> RepairRates {
    RepairRates::new(RepairLimits { node_bytes_per_s, cluster_bytes_per_s })
}

#[test]
fn blob_that_survives_fewest_losses_is_repaired_first() {
    let debts = [debt(1, 1, &[1, 2]), debt(2, 0, &[1, 3]), debt(3, 1, &[2, 3])];
    let (unused, idle) = (rates(1000, 1000), BTreeSet::new());
    assert_eq!(next_repair(&debts, &unused, &idle, 0), NextRepair::Start(1));
    assert_eq!(next_repair(&[], &unused, &idle, 0), NextRepair::Idle);
}

#[test]
fn busy_target_holds_no_other_target_up() {
    // The most urgent repairs read from node 1 and write to node 2, which is slow.
    let debts = [debt(1, 0, &[1, 2]), debt(2, 0, &[1, 2]), debt(3, 1, &[1, 3])];
    let (unused, busy) = (rates(1000, 1000), BTreeSet::from([StorageId(2)]));
    assert_eq!(next_repair(&debts, &unused, &busy, 0), NextRepair::Start(2));
    assert_eq!(next_repair(&debts[..2], &unused, &busy, 0), NextRepair::WaitUntil(u64::MAX));
}

#[test]
fn repairs_keep_to_the_rates_of_nodes_and_cluster() {
    let (second, idle) = (1_000_000_000, BTreeSet::new());
    let mut debts = vec![debt(1, 0, &[1, 2]), debt(2, 1, &[1, 3]), debt(3, 1, &[3, 4])];
    let mut used = rates(1000, 1_000_000_000);
    used.charge(&debts.remove(0), 0);
    // Node 1 is busy for a second, so the repair without it starts.
    let now = 10_000;
    assert_eq!(next_repair(&debts[1..], &used, &idle, now), NextRepair::Start(0));
    assert_eq!(next_repair(&debts[..1], &used, &idle, now), NextRepair::WaitUntil(second));
    // The blocked repair is the more urgent one and keeps node 3 for itself.
    assert_eq!(next_repair(&debts, &used, &idle, now), NextRepair::WaitUntil(second));
    assert_eq!(next_repair(&debts, &used, &idle, second), NextRepair::Start(0));
    // Two nodes with 1,000 bytes each take the cluster two seconds at 1,000 bytes per second.
    let mut slow = rates(1_000_000_000, 1000);
    slow.charge(&debts[0], 0);
    assert_eq!(next_repair(&debts[1..], &slow, &idle, 5), NextRepair::WaitUntil(2 * second));
}

fn chunk(blob: u8, at: u64, others: &[u64]) -> ChunkAt {
    let others = others.iter().map(|id| StorageId(*id)).collect();
    ChunkAt { blob: BlobId([blob; 16]), node: StorageId(at), bytes: 5 * GIB, others }
}

#[test]
fn full_node_gives_chunks_away_until_near_the_mean() {
    let mut nodes = pool(4);
    nodes[0].used_bytes = 50 * GIB;
    let chunks: Vec<_> = (0..10).map(|blob| chunk(blob, 1, &[2])).collect();
    let plan = rebalance(&nodes, &chunks);
    // The mean is 20 GiB, so nodes 3 and 4 take two chunks each, and node 2 holds the other chunks.
    assert_eq!(plan.moves.len(), 4, "{plan:?}");
    assert!(plan.moves.iter().all(|m| [3, 4].contains(&m.to.0)), "{plan:?}");
    assert!(plan.stuck.is_empty());
    assert_eq!(rebalance(&pool(4), &[chunk(1, 1, &[2])]).moves, []);
}

#[test]
fn draining_node_is_emptied_past_stuck_chunks() {
    let mut nodes = pool(3);
    nodes[0].is_draining = true;
    let chunks = [chunk(1, 1, &[2, 3]), chunk(2, 1, &[2]), chunk(3, 1, &[3])];
    let plan = rebalance(&nodes, &chunks);
    assert_eq!(plan.stuck, [0]);
    let moves: Vec<_> = plan.moves.iter().map(|m| (m.chunk, m.to.0)).collect();
    assert_eq!(moves, [(1, 3), (2, 2)]);
}
