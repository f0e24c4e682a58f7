//! Which node gets each partition, and which partitions are offloaded. The functions decide from
//! the state of the coordinator and do no I/O.

use std::collections::BTreeMap;

use super::Coordinator;
use crate::hotness::{Assignment, Ranking, assign, offloaded, partitions_max};
use crate::ids::{ComputeId, PartitionId};
use crate::protocol::IndexProtocol as _;
use crate::sharers::offloaded_bytes;
use crate::wire::Assigned;

impl Coordinator {
    /// Gives every live node its share of the partitions, and offloads the wanted share of each
    /// node's list. `entries` takes the entries that change. With `reassign` the ranking decides
    /// throughout. Otherwise as few partitions move as the shares allow.
    pub(super) fn assign(&self, entries: &mut BTreeMap<u32, Assigned>, reassign: bool) {
        let living: Vec<ComputeId> = self
            .nodes
            .values()
            .filter(|node| !node.gone)
            .map(|node| ComputeId(node.member.number))
            .enumerate()
            .filter(|(position, _)| self.protocol.may_hold_partitions(*position))
            .map(|(_, node)| node)
            .collect();
        if living.is_empty() {
            return entries.clear();
        }
        let lists = match self.tuner.ranking() {
            Some(ranking) => self.by_rank(ranking, &living, reassign),
            None => self.by_number(&living),
        };
        let ratio = super::ratio_of(self.offload);
        let proxied = offloaded(ratio, self.map.len() as u32);
        for (node, list) in lists {
            // A partition that does not fit the node's memory limit is not offloaded.
            let mut room = self.nodes.get(&node.0).map_or(0, |node| node.member.index_bytes);
            for partition in list {
                let Some(now) = self.partition(partition.0).copied() else { continue };
                let bytes = offloaded_bytes(now.shape.log2_buckets);
                let place = self.tuner.ranking().map_or(partition.0, |r| r.rank(partition, 1));
                let offloaded = place < proxied && bytes <= room;
                room -= if offloaded { bytes } else { 0 };
                let wanted = Assigned { node: node.0, offloaded, ..now };
                let grows = entries.contains_key(&partition.0);
                if wanted != now || grows {
                    entries.insert(partition.0, Assigned { grow: grows, ..wanted });
                }
            }
        }
    }

    /// The partitions of each node, from hot to cold.
    fn by_rank(
        &self,
        ranking: &Ranking,
        living: &[ComputeId],
        reassign: bool,
    ) -> BTreeMap<ComputeId, Vec<PartitionId>> {
        let lives = |entry: &Assigned| living.contains(&ComputeId(entry.node));
        let owner = |entry: &Assigned| lives(entry).then_some(ComputeId(entry.node));
        let mut next = Assignment::of(self.map.iter().map(owner).collect(), ranking);
        if !reassign {
            next = next.spread_orphans(ranking, living);
        }
        // A node that has just joined has no partition.
        let least = usize::from(self.map.len() >= living.len());
        let fair = least..=partitions_max(self.map.len(), living.len());
        if reassign || !living.iter().all(|node| fair.contains(&next.list(*node).len())) {
            next = assign(ranking, living, &next);
        }
        living.iter().map(|node| (*node, next.list(*node).to_vec())).collect()
    }

    /// The partitions of each node by number, before their hotness is known.
    fn by_number(&self, living: &[ComputeId]) -> BTreeMap<ComputeId, Vec<PartitionId>> {
        let most = self.map.len().div_ceil(living.len());
        let mut lists: BTreeMap<ComputeId, Vec<PartitionId>> =
            living.iter().map(|node| (*node, Vec::new())).collect();
        let mut homeless = Vec::new();
        for entry in &self.map {
            let partition = PartitionId(entry.partition);
            match lists.get_mut(&ComputeId(entry.node)).filter(|list| list.len() < most) {
                Some(list) => list.push(partition),
                None => homeless.push(partition),
            }
        }
        // The node with the fewest partitions comes first, and among equal ones the lowest number.
        for partition in homeless {
            let fewest = lists.iter_mut().min_by_key(|(node, list)| (list.len(), **node));
            if let Some((_, list)) = fewest {
                list.push(partition);
            }
        }
        let least = self.map.len() / living.len();
        while let Some(to) = living.iter().copied().find(|node| lists[node].len() < least) {
            let from = lists.iter().max_by_key(|(_, list)| list.len()).map(|(node, _)| *node);
            let moved = from.and_then(|from| lists.get_mut(&from)).and_then(Vec::pop);
            let Some(moved) = moved else { break };
            lists.entry(to).or_default().push(moved);
        }
        for list in lists.values_mut() {
            list.sort_unstable();
        }
        lists
    }
}
