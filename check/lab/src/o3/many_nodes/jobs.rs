//! Jobs of the modelled cluster, and the executors that run them.

use archipelago_base::Epoch;
use archipelago_fabric::NodeId;
use archipelago_offload::decide::{Candidate, Choice, InputReach, Load, choose};
use archipelago_offload::ids::{ExecutorId, NodeLife};
use archipelago_offload::job::InputPlace;

use super::super::bounds::{Factors, Offloaded};
use super::fair::Use;
use super::{MEMORY_LINK, bytes};

/// Work of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobWork {
    Flush,
    Compaction,
}

/// A flush or a compaction of one bucket.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) work: JobWork,
    pub(super) owner: usize,
    pub(super) bucket: usize,
    pub(super) executor: usize,
    /// User bytes that it moves, in MB.
    pub(super) user_mb: f64,
    /// MB that it takes from each memory node. Empty if it takes nothing there.
    pub(super) taken_mb: Vec<f64>,
    /// Layers of L0 that it takes.
    pub(super) layers: usize,
    /// MB that its stream has still to move.
    pub(super) left_mb: f64,
    pub(super) began_ns: u64,
    pub(super) uses: Vec<Use>,
}

/// Node of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// Compute node of the owner with this number.
    Compute(usize),
    /// Memory node with this number.
    Memory(usize),
    Storage,
}

/// Whether an executor may run a job of an owner.
pub(super) fn may_run(offloaded: Offloaded, work: JobWork, node: Node, owner: usize) -> bool {
    let is_own = node == Node::Compute(owner);
    let is_storage = node == Node::Storage;
    match (offloaded, work) {
        (Offloaded::Nothing | Offloaded::Memtables, _)
        | (Offloaded::Compactions, JobWork::Flush)
        | (Offloaded::Flushes, JobWork::Compaction) => is_own,
        (Offloaded::Compactions | Offloaded::AllAtStorage, JobWork::Compaction) => is_storage,
        (Offloaded::AllAtStorage, JobWork::Flush) => !is_storage,
        (Offloaded::Flushes, JobWork::Flush) | (Offloaded::All { .. }, _) => true,
    }
}

/// Links of the nodes that have one: to the storage, and among each other. A link has two
/// directions, and each of them is a resource.
#[derive(Clone, Debug)]
pub(super) struct Links {
    /// Number of nodes with links: first the compute nodes, then the memory nodes.
    pub(super) nodes: usize,
    /// MB/s of each resource.
    pub(super) capacities: Vec<f64>,
}

impl Links {
    /// Links of `nodes` nodes, each with `storage` MB/s in each direction to the storage.
    pub(super) fn new(nodes: usize, storage: f64) -> Self {
        let capacities = [vec![storage; 2 * nodes], vec![MEMORY_LINK; 2 * nodes]].concat();
        Self { nodes, capacities }
    }

    /// Whether the executor is on a node with links.
    fn has(&self, executor: usize) -> bool {
        executor < self.nodes
    }

    pub(super) fn storage_out(&self, node: usize) -> usize {
        node
    }

    pub(super) fn storage_in(&self, node: usize) -> usize {
        self.nodes + node
    }

    /// From a node to compute and memory nodes.
    pub(super) fn node_out(&self, node: usize) -> usize {
        2 * self.nodes + node
    }

    /// From compute and memory nodes to a node.
    pub(super) fn node_in(&self, node: usize) -> usize {
        3 * self.nodes + node
    }

    /// Resources of a flush that takes `taken_mb` from the memory nodes, of which the first has the
    /// number `memory`. Images of the executor's own node cross no link.
    pub(super) fn of_flush(&self, executor: usize, memory: usize, taken_mb: &[f64]) -> Vec<Use> {
        let mut uses = Vec::new();
        if self.has(executor) {
            uses.push(Use { resource: self.storage_out(executor), share: 1.0 });
        }
        let all_mb: f64 = taken_mb.iter().sum();
        for (at, taken) in taken_mb.iter().enumerate() {
            if *taken > 0.0 && memory + at != executor {
                let share = taken / all_mb;
                uses.push(Use { resource: self.node_out(memory + at), share });
                if self.has(executor) {
                    uses.push(Use { resource: self.node_in(executor), share });
                }
            }
        }
        uses
    }

    /// Resources of a compaction.
    pub(super) fn of_compaction(&self, executor: usize, factors: &Factors) -> Vec<Use> {
        if !self.has(executor) {
            return Vec::new();
        }
        let moved = factors.read + factors.written;
        vec![
            Use { resource: self.storage_out(executor), share: factors.written / moved },
            Use { resource: self.storage_in(executor), share: factors.read / moved },
        ]
    }
}

/// The executors of all nodes, and their loads.
#[derive(Clone, Debug)]
pub(super) struct Executors {
    pub(super) nodes: Vec<Node>,
    /// Running jobs of each executor.
    pub(super) busy: Vec<u32>,
    /// MB/s that each executor writes now, over the highest such rate.
    pub(super) written_share: Vec<f64>,
    slots: u32,
    /// Time to fetch an image over the time to write its records, in thousandths.
    fetch: u32,
}

impl Executors {
    pub(super) fn new(nodes: Vec<Node>, factors: &Factors) -> Self {
        let count = nodes.len();
        Self {
            nodes,
            busy: vec![0; count],
            written_share: vec![0.0; count],
            slots: factors.jobs as u32,
            fetch: (factors.stream / MEMORY_LINK * 1000.0) as u32,
        }
    }

    pub(super) fn has_slot(&self) -> bool {
        self.busy.iter().any(|busy| *busy < self.slots)
    }

    /// Chooses the executor of a job by the rule of the scheduler. `taken_mb` is the job's input at
    /// each memory node.
    pub(super) fn choose(
        &self,
        can_run: impl Fn(Node) -> bool,
        user_mb: f64,
        taken_mb: &[f64],
    ) -> Option<usize> {
        let life = |node: usize| NodeLife { node: NodeId(node as u64), life: Epoch(1) };
        let taken = taken_mb.iter().enumerate().filter(|(_, taken)| **taken > 0.0);
        let places: Vec<InputPlace> = taken
            .map(|(node, taken)| InputPlace { at: life(node), bytes: bytes(*taken) })
            .collect();
        let candidate = |(at, node): (usize, &Node)| {
            let home = match node {
                Node::Memory(node) => Some(life(*node)),
                _ => None,
            };
            let reach = InputReach { home, fetch: self.fetch };
            let cpu = 1000 * self.busy[at] / self.slots;
            let io = (self.written_share[at] * 1000.0) as u32;
            Candidate {
                executor: ExecutorId(at as u64),
                load: Load { cpu, io, queue: 0 },
                fetch: reach.term(&places),
                has_slot: self.busy[at] < self.slots,
                can_run: can_run(*node),
                is_excluded: false,
            }
        };
        let candidates: Vec<Candidate> = self.nodes.iter().enumerate().map(candidate).collect();
        match choose(bytes(user_mb), &candidates) {
            Choice::Assign(executor) => Some(executor.0 as usize),
            _ => None,
        }
    }
}
