//! Assignment of partitions to nodes by load, with as few moves as possible ([decision 0024]).
//!
//! Partitions are assigned from hot to cold. Each goes to the node with the least load so far, or
//! stays with its node if that has hardly more load. So the node with the hottest partition gets
//! fewer of the others. The hottest P·r partitions are distributed as evenly as all partitions,
//! whatever r is, because later ones change nothing of earlier ones. A partition's weight is its
//! accesses, and at least a sixteenth of the mean, so that cold partitions are distributed by
//! number.
//!
//! Invariants:
//! 1. A node has at most [`partitions_max`] partitions, because each takes memory while it is
//!    offloaded.
//! 2. The list of a node is from hot to cold.
//! 3. Unless a node has its maximum, the loads of nodes differ by at most the hottest partition's
//!    load and a thirty-second of a share.
//!
//! Thread-safety: values.
//! Cost: P·C steps. Paper: §4.2 gives every node one partition of each rank instead.
//!
//! [decision 0024]: ../../../../docs/decisions/0024-flexkv-partition-assignment-by-load.md

use std::collections::BTreeMap;

use super::Ranking;
use crate::ids::{ComputeId, PartitionId};
use crate::offload_ratio::Ratio;

/// Least weight of a partition, in shares of the mean weight.
const LEAST_WEIGHT: f64 = 1.0 / 16.0;
/// Largest load above the least loaded node at which a node keeps a partition, in shares of the
/// load assigned so far.
const KEEP_SLACK: f64 = 1.0 / 32.0;

/// The owner of each partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    owners: Vec<Option<ComputeId>>,
    lists: BTreeMap<ComputeId, Vec<PartitionId>>,
}

/// Number of partitions that are offloaded at a ratio, rounded to the nearest. These are the
/// hottest partitions of all nodes. A ratio above zero offloads at least one.
#[must_use]
pub fn offloaded(ratio: Ratio, partitions: u32) -> u32 {
    let exact = u64::from(partitions) * u64::from(ratio.permille());
    let least = u64::from(ratio.permille() > 0);
    ((exact + 500) / 1000).max(least).min(u64::from(partitions)) as u32
}

impl Assignment {
    /// An assignment in which no partition has an owner.
    #[must_use]
    pub fn none(partitions: u32) -> Self {
        Self { owners: vec![None; partitions as usize], lists: BTreeMap::new() }
    }

    /// The assignment with these owners. The lists are ordered by `ranking`.
    #[must_use]
    pub fn of(owners: Vec<Option<ComputeId>>, ranking: &Ranking) -> Self {
        let mut lists: BTreeMap<ComputeId, Vec<PartitionId>> = BTreeMap::new();
        for &partition in ranking.order() {
            if let Some(node) = owners.get(partition.0 as usize).copied().flatten() {
                lists.entry(node).or_default().push(partition);
            }
        }
        Self { owners, lists }
    }

    /// The owner of a partition. `None` if it has none.
    #[must_use]
    pub fn owner(&self, partition: PartitionId) -> Option<ComputeId> {
        self.owners.get(partition.0 as usize).copied().flatten()
    }

    /// The partitions of a node from hot to cold. Those among the [`offloaded`] hottest of all are
    /// offloaded.
    #[must_use]
    pub fn list(&self, node: ComputeId) -> &[PartitionId] {
        self.lists.get(&node).map_or(&[], Vec::as_slice)
    }

    /// The nodes that own partitions, in ascending order.
    pub fn nodes(&self) -> impl Iterator<Item = ComputeId> + '_ {
        self.lists.keys().copied()
    }

    /// Partitions that have another owner, or none, in `other`, in ascending order.
    pub fn changes<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = PartitionId> + 'a {
        let pairs = self.owners.iter().zip(&other.owners).enumerate();
        pairs.filter(|(_, (a, b))| a != b).map(|(at, _)| PartitionId(at as u32))
    }

    /// The assignment after a node's death. Its partitions have no owner, and nothing else changes.
    #[must_use]
    pub fn without(&self, dead: ComputeId) -> Self {
        let mut rest = self.clone();
        for partition in rest.lists.remove(&dead).unwrap_or_default() {
            rest.owners[partition.0 as usize] = None;
        }
        rest
    }

    /// Gives partitions without an owner to nodes, from hot to cold, each to the node with the
    /// least load. Everything else stays. The result is less even than that of [`assign`], but no
    /// other partition is paused for it, so it is the first step after a node's death.
    #[must_use]
    pub fn spread_orphans(&self, ranking: &Ranking, nodes: &[ComputeId]) -> Self {
        if nodes.is_empty() {
            return self.clone();
        }
        let mut shares = Shares::new(ranking, nodes);
        let mut owners = self.owners.clone();
        for (at, owner) in owners.iter().enumerate() {
            if let Some(node) = *owner {
                shares.take(node, PartitionId(at as u32));
            }
        }
        for &partition in ranking.order() {
            let owner = &mut owners[partition.0 as usize];
            if owner.is_none() {
                let node = shares.least();
                *owner = Some(node);
                shares.take(node, partition);
            }
        }
        Self::of(owners, ranking)
    }
}

/// The load of each node while partitions are assigned.
struct Shares<'a> {
    ranking: &'a Ranking,
    /// Least weight of a partition.
    least: f64,
    partitions_max: usize,
    /// Load and number of partitions of each node.
    load: BTreeMap<ComputeId, (f64, usize)>,
    given: f64,
}

impl<'a> Shares<'a> {
    fn new(ranking: &'a Ranking, nodes: &[ComputeId]) -> Self {
        let partitions = ranking.order().len();
        let total: f64 = ranking.hotness().iter().sum();
        let mean = if total > 0.0 { total / partitions as f64 } else { 1.0 };
        Self {
            ranking,
            least: mean * LEAST_WEIGHT,
            partitions_max: partitions_max(partitions, nodes.len()),
            load: nodes.iter().map(|&node| (node, (0.0, 0))).collect(),
            given: 0.0,
        }
    }

    fn take(&mut self, node: ComputeId, partition: PartitionId) {
        let weight = self.ranking.hotness()[partition.0 as usize].max(self.least);
        let (load, count) = self.load.entry(node).or_default();
        *load += weight;
        *count += 1;
        self.given += weight;
    }

    /// The node with the least load among those that may take another partition.
    fn least(&self) -> ComputeId {
        let may = self.load.iter().filter(|(_, (_, count))| *count < self.partitions_max);
        let least = may.min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        *least.expect("there is room for all").0
    }

    /// Whether a node may keep a partition although another node has less load.
    fn may_keep(&self, node: ComputeId, least: ComputeId) -> bool {
        let Some((load, count)) = self.load.get(&node) else { return false };
        let slack = self.given / self.load.len() as f64 * KEEP_SLACK;
        *count < self.partitions_max && load - self.load[&least].0 <= slack
    }
}

/// Largest number of partitions of a node.
#[must_use]
pub fn partitions_max(partitions: usize, nodes: usize) -> usize {
    partitions.div_ceil(nodes.max(1)) * 9 / 8 + 1
}

/// Assigns all partitions to `nodes` by load, and keeps as much of `current` as it can. `nodes`
/// names each node once, and at least one.
#[must_use]
pub fn assign(ranking: &Ranking, nodes: &[ComputeId], current: &Assignment) -> Assignment {
    assert!(!nodes.is_empty(), "a node must own the partitions");
    let mut shares = Shares::new(ranking, nodes);
    let mut owners = vec![None; ranking.order().len()];
    for &partition in ranking.order() {
        let least = shares.least();
        let keeps = current.owner(partition).filter(|&node| shares.may_keep(node, least));
        let node = keeps.unwrap_or(least);
        owners[partition.0 as usize] = Some(node);
        shares.take(node, partition);
    }
    Assignment::of(owners, ranking)
}
