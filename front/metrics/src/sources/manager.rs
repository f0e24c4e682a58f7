//! A manager: the pool, the FlexKV store, the storage nodes, the scheduler of jobs, and the links
//! of its process.

use archipelago_flexkv::wire::StoreStatus;
use archipelago_manager::{ManagerMonitor, PoolFigures};
use archipelago_offload::job::JobKind;
use archipelago_offload::scheduler::SchedulerFigures;
use archipelago_pool::wire::BlockState;
use archipelago_store::nodes::wire::{MemberState, StorageClusterStatus};

use super::Source;
use super::flexkv::figure;
use crate::catalogue::{
    flexkv as of_flexkv, pool as metric, scheduler as of_scheduler, storage as of_storage,
};
use crate::samples::{Samples, seconds};

/// The manager that `monitor` watches. Cost: a pass over the blocks of the pool, over the
/// partitions of the store, and over the jobs of the scheduler.
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
        if let Some(scheduler) = &figures.offload {
            set_scheduler(samples, scheduler);
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
    samples.set(&metric::BLOCK_EVENTS, &["made"], pool.work.blocks_made);
    samples.set(&metric::BLOCK_EVENTS, &["changed"], pool.work.blocks_changed);
    samples.set(&metric::BLOCK_EVENTS, &["freed"], pool.work.blocks_freed);
    samples.set(&metric::BEGUN_CHANGES, &[], pool.work.changes_begun);
    samples.set(&metric::ADDED_COPIES, &[], pool.work.copies_added);
    samples.set(&metric::MEMBER_LOSSES, &["node"], pool.work.nodes_silenced);
    samples.set(&metric::MEMBER_LOSSES, &["client"], pool.work.clients_expired);
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

fn kind_name(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Flush => "flush",
        JobKind::Compaction => "compaction",
        JobKind::Gc => "gc",
    }
}

fn set_scheduler(samples: &mut Samples, scheduler: &SchedulerFigures) {
    for jobs in &scheduler.jobs {
        let kind = [kind_name(jobs.kind)];
        let waited = seconds(jobs.waited_ms_max.saturating_mul(1_000_000));
        samples.set(&of_scheduler::WAITING, &kind, jobs.waiting);
        samples.set(&of_scheduler::OLDEST, &kind, waited);
        samples.set(&of_scheduler::RUNNING, &kind, jobs.running);
        samples.set(&of_scheduler::DECIDING, &kind, jobs.committed);
    }
    let counters = &scheduler.counters;
    samples.set(&of_scheduler::JOBS, &["arrived"], counters.arrived);
    samples.set(&of_scheduler::JOBS, &["installed"], counters.installed);
    samples.set(&of_scheduler::JOBS, &["given_back"], counters.given_back);
    samples.set(&of_scheduler::ATTEMPTS, &["assigned"], counters.assigned);
    samples.set(&of_scheduler::ATTEMPTS, &["declined"], counters.declined);
    samples.set(&of_scheduler::ATTEMPTS, &["failed"], counters.failed);
    samples.set(&of_scheduler::EXECUTORS, &[], scheduler.executors);
    samples.set(&of_scheduler::SLOTS, &[], scheduler.slots);
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
        let garbage = node.report.unserved.garbage_bytes();
        samples.set(&of_storage::NODE_GARBAGE, &[&name], garbage);
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
    use archipelago_base::Epoch;
    use archipelago_fabric::NodeId;
    use archipelago_offload::scheduler::{JobFigures, SchedulerCounters};
    use archipelago_store::nodes::StorageId;
    use archipelago_store::nodes::wire::{
        NodeSpace, NodeStanding, RepairStatus, StorageMember, StorageReport, UnservedBytes,
    };

    use super::*;

    #[test]
    fn garbage_of_a_storage_node_has_a_metric() {
        let space = NodeSpace { capacity_bytes: 100, used_bytes: 10 };
        let member = StorageMember {
            storage: StorageId(0x21),
            node: NodeId(1),
            life: Epoch(1),
            endpoints: Vec::new(),
            domain: String::new(),
            state: MemberState::Up,
            space,
        };
        let unserved = UnservedBytes { unsealed: 4, damaged: 2, removed: 1 };
        let report = StorageReport { space, unserved, ..Default::default() };
        let nodes = vec![NodeStanding { member, silent_ms: 0, report }];
        let status = StorageClusterStatus { nodes, ..Default::default() };
        let mut samples = Samples::default();
        set_storage(&mut samples, &status);
        let text = samples.into_text().unwrap();
        let line = format!(
            "archipelago_storage_cluster_node_garbage_bytes{{node=\"{}\"}} 3",
            StorageId(0x21)
        );
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }

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

    #[test]
    fn waiting_jobs_have_their_number_and_the_longest_wait() {
        let of_kind = |kind| JobFigures { kind, ..JobFigures::default() };
        let [flushes, compactions, gc] = JobKind::ALL.map(of_kind);
        let flushes = JobFigures { waiting: 3, waited_ms_max: 250, ..flushes };
        let compactions = JobFigures { running: 2, committed: 1, ..compactions };
        let counters = SchedulerCounters { arrived: 9, declined: 4, ..Default::default() };
        let jobs = [flushes, compactions, gc];
        let figures = SchedulerFigures { counters, jobs, executors: 2, slots: 8 };
        let mut samples = Samples::default();
        set_scheduler(&mut samples, &figures);
        let text = samples.into_text().unwrap();
        for line in [
            "waiting_jobs{kind=\"flush\"} 3",
            "waiting_jobs{kind=\"gc\"} 0",
            "oldest_waiting_job_seconds{kind=\"flush\"} 0.25",
            "running_jobs{kind=\"compaction\"} 2",
            "deciding_jobs{kind=\"compaction\"} 1",
            "jobs_total{event=\"arrived\"} 9",
            "attempts_total{event=\"declined\"} 4",
            "executors 2",
            "executor_slots 8",
        ] {
            let line = format!("archipelago_scheduler_{line}");
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
