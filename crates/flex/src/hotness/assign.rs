//! From a ranking to owners: one partition of each rank per node, moving as few as possible.
//!
//! Within a rank every node that has some of its partitions keeps one, the hottest; no assignment of one per node can keep more. What is left
//! goes, hottest first, to the node with the least load so far among those that have none of the rank yet.
//!
//! Invariants: 1. of each rank a node gets one partition, of the short last rank one at most. 2. A node's list is from hot to cold. 3. Nodes'
//! loads differ by at most the hottest partition's (see [`super`]). Cost: P·log C. Thread-safety: values. Paper: §4.2; which of a rank's
//! partitions goes where is ours.

use std::collections::{BTreeMap, BTreeSet};

use super::Ranking;
use crate::ids::{ComputeId, PartitionId};
use crate::knob::Ratio;

/// Whose each partition is, if it is offloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    owners: Vec<Option<ComputeId>>,
    lists: BTreeMap<ComputeId, Vec<PartitionId>>,
}

/// How many ranks of the hot-to-cold lists are offloaded at a ratio: the same for all nodes, so that they carry the same
/// load. Rounded to the nearest; any ratio above zero offloads one at least.
#[must_use]
pub fn offloaded_ranks(ratio: Ratio, partitions: u32, nodes: u32) -> u32 {
    let ranks = u64::from(partitions.div_ceil(nodes.max(1)));
    let exact = ranks * u64::from(ratio.permille());
    let least = u64::from(ratio.permille() > 0);
    ((exact + 500) / 1000).max(least).min(ranks) as u32
}

impl Assignment {
    /// Nobody has anything.
    #[must_use]
    pub fn none(partitions: u32) -> Self {
        Self { owners: vec![None; partitions as usize], lists: BTreeMap::new() }
    }

    /// By whose each partition is; lists by `ranking`.
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

    /// Whose a partition is; `None`: nobody's, it is served from memory nodes.
    #[must_use]
    pub fn owner(&self, partition: PartitionId) -> Option<ComputeId> {
        self.owners.get(partition.0 as usize).copied().flatten()
    }

    /// A node's partitions from hot to cold; the first [`offloaded_ranks`] of them are offloaded.
    #[must_use]
    pub fn list(&self, node: ComputeId) -> &[PartitionId] {
        self.lists.get(&node).map_or(&[], Vec::as_slice)
    }

    /// The nodes that it gives partitions to, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = ComputeId> + '_ {
        self.lists.keys().copied()
    }

    /// Partitions that are another's, or nobody's, in `other`; ascending.
    pub fn changes<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = PartitionId> + 'a {
        let pairs = self.owners.iter().zip(&other.owners).enumerate();
        pairs.filter(|(_, (a, b))| a != b).map(|(at, _)| PartitionId(at as u32))
    }

    /// After a node's death: its partitions are nobody's, and only they change. They are served from memory nodes, until the
    /// next [`assign`] over the nodes that are left, or the node is back.
    #[must_use]
    pub fn without(&self, dead: ComputeId) -> Self {
        let mut rest = self.clone();
        for partition in rest.lists.remove(&dead).unwrap_or_default() {
            rest.owners[partition.0 as usize] = None;
        }
        rest
    }

    /// Gives what is nobody's to the nodes that have the fewest partitions, hottest first; all else stays. Not as even as
    /// [`assign`], but nothing else is paused for it: the first step after a node's death.
    #[must_use]
    pub fn spread_orphans(&self, ranking: &Ranking, nodes: &[ComputeId]) -> Self {
        let mut spread = self.clone();
        if nodes.is_empty() {
            return spread;
        }
        for &node in nodes {
            spread.lists.entry(node).or_default();
        }
        let mut load: BTreeMap<ComputeId, (usize, f64)> = BTreeMap::new();
        for &node in nodes {
            let list = &spread.lists[&node];
            let heat = list.iter().map(|p| ranking.hotness()[p.0 as usize]).sum();
            load.insert(node, (list.len(), heat));
        }
        for &partition in ranking.order() {
            let owner = &mut spread.owners[partition.0 as usize];
            if owner.is_some() {
                continue;
            }
            let by_load =
                |a: &(usize, f64), b: &(usize, f64)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1));
            let least = load.iter_mut().min_by(|a, b| by_load(a.1, b.1).then(a.0.cmp(b.0)));
            let Some((&node, carried)) = least else { break };
            *owner = Some(node);
            carried.0 += 1;
            carried.1 += ranking.hotness()[partition.0 as usize];
            spread.lists.entry(node).or_default().push(partition);
        }
        for list in spread.lists.values_mut() {
            list.sort_unstable_by_key(|&partition| ranking.rank(partition, 1));
        }
        spread
    }
}

/// Owners by rank among `nodes` (each once, at least one), keeping of `current` what can be kept.
#[must_use]
pub fn assign(ranking: &Ranking, nodes: &[ComputeId], current: &Assignment) -> Assignment {
    assert!(!nodes.is_empty(), "somebody must own the partitions");
    let partitions = ranking.order().len();
    let mut owners = vec![None; partitions];
    let mut load: BTreeMap<ComputeId, f64> = nodes.iter().map(|&node| (node, 0.0)).collect();
    let mut lists: BTreeMap<ComputeId, Vec<PartitionId>> = nodes
        .iter()
        .map(|&node| (node, Vec::with_capacity(partitions / nodes.len() + 1)))
        .collect();
    for rank in ranking.order().chunks(nodes.len()) {
        let mut free: BTreeSet<ComputeId> = nodes.iter().copied().collect();
        let mut moving = Vec::new();
        for &partition in rank {
            match current.owner(partition) {
                Some(node) if free.remove(&node) => owners[partition.0 as usize] = Some(node),
                _ => moving.push(partition),
            }
        }
        let mut takers: Vec<ComputeId> = free.into_iter().collect();
        takers.sort_by(|a, b| load[a].total_cmp(&load[b]).then(a.cmp(b)));
        for (partition, node) in moving.into_iter().zip(takers) {
            owners[partition.0 as usize] = Some(node);
        }
        for &partition in rank {
            if let Some(node) = owners[partition.0 as usize] {
                lists.entry(node).or_default().push(partition);
                *load.entry(node).or_default() += ranking.hotness()[partition.0 as usize];
            }
        }
    }
    Assignment { owners, lists }
}
