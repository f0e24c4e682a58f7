//! From a ranking to owners: by load, moving as few as possible ([decision 0024]).
//!
//! Hottest first, each partition goes to the node with the least load so far, or stays with its
//! node if that has hardly more. So the node with the hottest one gets fewer of the others; the
//! hottest P·r partitions are shared out as evenly as all, whatever r is, as what comes later
//! changes nothing of what came before. A partition weighs its accesses, and a sixteenth of the
//! mean at least: cold ones are shared out by number.
//!
//! Invariants: 1. a node has [`partitions_max`] partitions at most, as each takes memory while it
//! is proxied. 2. A node's list is from hot to cold. 3. Where no node has as many as it may, nodes'
//! loads differ by at most the hottest partition's and a thirty-second of a share. Cost: P·C.
//! Thread-safety: values. Paper: §4.2 gives every node one partition of each rank instead.
//!
//! [decision 0024]: ../../../../docs/decisions/0024-flexkv-partition-assignment-by-load.md

use std::collections::BTreeMap;

use super::Ranking;
use crate::ids::{ComputeId, PartitionId};
use crate::offload_ratio::Ratio;

/// What a partition weighs at least, in mean ones.
const LEAST_WEIGHT: f64 = 1.0 / 16.0;
/// A node keeps a partition if it has no more than this above the least, in shares of what is given
/// out so far.
const KEEP_SLACK: f64 = 1.0 / 32.0;

/// Whose each partition is, if it is offloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    owners: Vec<Option<ComputeId>>,
    lists: BTreeMap<ComputeId, Vec<PartitionId>>,
}

/// How many partitions are offloaded at a ratio: the hottest of all, wherever they are. Rounded to
/// the nearest; any ratio above zero offloads one at least.
#[must_use]
pub fn offloaded(ratio: Ratio, partitions: u32) -> u32 {
    let exact = u64::from(partitions) * u64::from(ratio.permille());
    let least = u64::from(ratio.permille() > 0);
    ((exact + 500) / 1000).max(least).min(u64::from(partitions)) as u32
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

    /// A node's partitions from hot to cold; those of them that are among the [`offloaded`] hottest
    /// of all are offloaded.
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

    /// After a node's death: its partitions are nobody's, and only they change. They are served
    /// from memory nodes, until the next [`assign`] over the nodes that are left, or the node is
    /// back.
    #[must_use]
    pub fn without(&self, dead: ComputeId) -> Self {
        let mut rest = self.clone();
        for partition in rest.lists.remove(&dead).unwrap_or_default() {
            rest.owners[partition.0 as usize] = None;
        }
        rest
    }

    /// Gives what is nobody's to others, hottest first, each to the node with the least load; all
    /// else stays. Not as even as [`assign`], but nothing else is paused for it: the first step
    /// after a node's death.
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

/// Who carries how much while partitions are given out.
struct Shares<'a> {
    ranking: &'a Ranking,
    /// What a partition weighs at least.
    least: f64,
    partitions_max: usize,
    /// By node: its load, and how many partitions it has.
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

    /// The node with the least load of those that may take another.
    fn least(&self) -> ComputeId {
        let may = self.load.iter().filter(|(_, (_, count))| *count < self.partitions_max);
        let least = may.min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        *least.expect("there is room for all").0
    }

    /// Whether a node may keep one, though another has less to carry.
    fn may_keep(&self, node: ComputeId, least: ComputeId) -> bool {
        let Some((load, count)) = self.load.get(&node) else { return false };
        let slack = self.given / self.load.len() as f64 * KEEP_SLACK;
        *count < self.partitions_max && load - self.load[&least].0 <= slack
    }
}

/// As many partitions a node gets at most.
#[must_use]
pub fn partitions_max(partitions: usize, nodes: usize) -> usize {
    partitions.div_ceil(nodes.max(1)) * 9 / 8 + 1
}

/// Owners among `nodes` (each once, at least one) by load, keeping of `current` what can be kept.
#[must_use]
pub fn assign(ranking: &Ranking, nodes: &[ComputeId], current: &Assignment) -> Assignment {
    assert!(!nodes.is_empty(), "somebody must own the partitions");
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
