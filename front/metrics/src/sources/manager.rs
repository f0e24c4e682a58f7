//! A manager: the pool, the FlexKV store, the storage nodes, and the links of its process.

use archipelago_flexkv::wire::StoreStatus;
use archipelago_manager::{ManagerMonitor, PoolFigures};
use archipelago_pool::wire::BlockState;
use archipelago_store::nodes::wire::{MemberState, StorageClusterStatus};

use super::Source;
use super::flexkv::figure;
use crate::catalogue::{flexkv as of_flexkv, pool as metric, storage as of_storage};
use crate::samples::{Samples, seconds};

/// The manager that `monitor` watches. Cost: a pass over the blocks of the pool and over the
/// partitions of the store.
#[must_use]
pub fn manager(monitor: ManagerMonitor) -> Source {
    Box::new(move |samples| {
        let figures = monitor.figures();
        samples.set(&metric::ACTING, &[], figures.is_acting);
        if let Some(pool) = &figures.pool {
            set_pool(samples, pool);
        }
        if let Some(store) = &figures.store {
            set_store(samples, store);
        }
        if let Some(storage) = &figures.storage {
            set_storage(samples, storage);
        }
        if let Some(fabric) = &figures.fabric {
            super::fabric(samples, fabric);
        }
    })
}

fn state_name(state: BlockState) -> &'static str {
    match state {
        BlockState::Whole => "whole",
        BlockState::Short => "short",
        BlockState::Changing => "changing",
        BlockState::Waiting => "waiting",
        BlockState::Unconfirmed => "unconfirmed",
        BlockState::Released => "released",
    }
}

fn set_pool(samples: &mut Samples, pool: &PoolFigures) {
    samples.set(&metric::REBUILDING, &[], pool.rebuilding);
    samples.set(&metric::TERM, &[], pool.term);
    samples.set(&metric::COPIES_WANTED, &[], pool.copies);
    samples.set(&metric::LOST, &[], pool.lost);
    samples.set(&metric::CLIENTS, &[], pool.clients);
    for (state, count) in &pool.blocks {
        samples.set(&metric::BLOCKS, &[state_name(*state)], *count);
    }
    for node in &pool.nodes {
        let number = node.node.to_string();
        let bytes = |blocks: u64| blocks.saturating_mul(node.block_bytes);
        samples.set(&metric::NODE_UP, &[&number], node.up);
        samples.set(&metric::NODE_CAPACITY, &[&number], bytes(node.blocks_max));
        samples.set(&metric::NODE_USED, &[&number], bytes(node.blocks_used));
        samples.set(&metric::NODE_SILENCE, &[&number], seconds(node.heard_ms * 1_000_000));
    }
}

fn set_store(samples: &mut Samples, store: &StoreStatus) {
    samples.set(&of_flexkv::STORE_PARTITIONS, &[], store.partitions);
    samples.set(&of_flexkv::STORE_PROXIED, &[], store.offloaded);
    samples.set(&of_flexkv::STORE_RATIO, &[], f64::from(store.offload) / 1000.0);
    samples.set(&of_flexkv::STORE_NODES, &[], store.nodes.len());
    samples.set(&of_flexkv::STORE_SETTLED, &[], store.settled);
    samples.set(&of_flexkv::STORE_VERSION, &[], store.version);
    let count = |name: &str| figure(&store.figures, name);
    samples.set_known(&of_flexkv::REASSIGNMENTS, &[], count("reassignments"));
    samples.set_known(&of_flexkv::RATIO_MOVES, &[], count("ratio_moves"));
    samples.set_known(&of_flexkv::STORE_RATE, &[], count("ops_per_s"));
    let last = count("last_change_us").map(|micros| seconds(micros * 1000));
    samples.set_known(&of_flexkv::LAST_CHANGE, &[], last);
}

/// Every state of a storage node with its name.
const MEMBER_STATES: [(MemberState, &str); 4] = [
    (MemberState::Up, "up"),
    (MemberState::Silent, "silent"),
    (MemberState::Lost, "lost"),
    (MemberState::Draining, "draining"),
];

fn set_storage(samples: &mut Samples, status: &StorageClusterStatus) {
    samples.set(&of_storage::FOUNDED, &[], status.cluster.is_some());
    samples.set(&of_storage::ROOT_NODES, &[], status.root_set.members.len());
    samples.set(&of_storage::WAITING, &[], !status.waits_for.is_empty());
    for node in &status.nodes {
        let name = node.member.storage.to_string();
        for (state, word) in MEMBER_STATES {
            samples.set(&of_storage::NODE_STATE, &[&name, word], node.member.state == state);
        }
        let silence = seconds(node.silent_ms.saturating_mul(1_000_000));
        samples.set(&of_storage::NODE_SILENCE, &[&name], silence);
        let space = &node.report.space;
        samples.set(&of_storage::NODE_CAPACITY, &[&name], space.capacity_bytes);
        samples.set(&of_storage::NODE_USED, &[&name], space.used_bytes);
    }
    set_repair(samples, status);
}

fn set_repair(samples: &mut Samples, status: &StorageClusterStatus) {
    let repair = &status.repair;
    samples.set(&of_storage::REPAIR_KNOWN, &[], repair.is_known);
    for (state, objects) in [
        ("chunks", repair.chunks_left),
        ("extents", repair.extents_left),
        ("waiting", repair.waiting_for_domains),
        ("sharing", repair.sharing_domains),
        ("coding", repair.coding_files),
        ("refused", repair.extents_refused),
        ("unrepairable", repair.unrepairable),
        ("unknown", repair.extents_unknown),
    ] {
        samples.set(&of_storage::REPAIR_DEBT, &[state], objects);
    }
    samples.set(&of_storage::REPAIR_BYTES, &[], repair.bytes_left);
    samples.set(&of_storage::CODING_BYTES, &[], repair.coding_bytes);
    for node in &status.nodes {
        let storage = node.member.storage;
        let debt = repair.nodes.iter().find(|debt| debt.storage == storage);
        let (chunks, stuck) = debt.map_or((0, 0), |debt| (debt.chunks, debt.stuck));
        samples.set(&of_storage::NODE_DEBT, &[&storage.to_string()], chunks);
        samples.set(&of_storage::NODE_STUCK, &[&storage.to_string()], stuck);
        let is_unlisted = repair.unlisted.contains(&storage);
        samples.set(&of_storage::NODE_UNLISTED, &[&storage.to_string()], is_unlisted);
    }
    samples.set(&of_storage::REPAIRED, &["chunk"], repair.chunks_repaired);
    samples.set(&of_storage::REPAIRED, &["extent"], repair.extents_repaired);
    samples.set(&of_storage::REPAIRED_BYTES, &[], repair.bytes_repaired);
    samples.set(&of_storage::REPAIRS_FAILED, &[], repair.failed);
}

#[cfg(test)]
mod tests {
    use archipelago_store::nodes::wire::RepairStatus;

    use super::*;

    #[test]
    fn extents_that_no_node_takes_are_a_repair_debt() {
        let repair = RepairStatus { extents_left: 5, extents_refused: 3, ..Default::default() };
        let status = StorageClusterStatus { repair, ..Default::default() };
        let mut samples = Samples::default();
        set_repair(&mut samples, &status);
        let text = samples.into_text().unwrap();
        for line in [
            "archipelago_storage_cluster_repair_debt{state=\"extents\"} 5",
            "archipelago_storage_cluster_repair_debt{state=\"refused\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
