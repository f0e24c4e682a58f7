//! The status of the storage nodes, for operators. The functions read the table and change nothing.

use super::super::repairs::{DrainingExtents, RepairView};
use super::super::wire::{NodeStanding, RepairStatus, StorageClusterStatus};
use super::{MemberState, MemberTable, NodeEntry};

impl MemberTable {
    /// The status of all storage nodes, except those that an operator has given up.
    #[must_use]
    pub fn status(&self, now_ns: u64) -> StorageClusterStatus {
        let known = self.nodes.values().filter(|entry| !entry.is_forgotten);
        let nodes = known.map(|entry| NodeStanding {
            member: entry.member.clone(),
            silent_ms: now_ns.saturating_sub(entry.heard_ns) / 1_000_000,
            report: entry.report.clone(),
        });
        StorageClusterStatus {
            cluster: self.cluster,
            root_set: self.root_set.clone(),
            lost_after_ms: self.terms.lost_after.as_millis() as u64,
            waits_for: self.waits_for(),
            nodes: nodes.collect(),
            repair: self.repair.clone(),
        }
    }

    /// Notes how far repairs are, for the status.
    pub fn note_repairs(&mut self, repair: RepairStatus) {
        self.repair = repair;
    }

    /// The state on which repairs depend. `acts` says whether the manager acts or stands by.
    #[must_use]
    pub fn repair_view(&self, now_ns: u64, acts: bool) -> RepairView {
        let lost_after_ns = self.terms.lost_after.as_nanos() as u64;
        let listened_ns = now_ns.saturating_sub(self.since_ns);
        let labels_ns = now_ns.saturating_sub(self.since_ns.max(self.relabelled_ns));
        let unreadable = self.nodes.values().filter(|entry| entry.is_up());
        let is_draining = |entry: &&NodeEntry| entry.member.state == MemberState::Draining;
        let draining = self.nodes.values().filter(is_draining);
        let draining = draining.map(|entry| {
            let (extents, open) = (entry.report.extents, entry.report.extents_open);
            let sealed = extents.saturating_sub(open);
            (entry.member.storage, DrainingExtents { sealed, open })
        });
        RepairView {
            members: self.members(),
            acts,
            unknown_is_lost: listened_ns > lost_after_ns,
            // Another manager may have seen a label change shortly before this one listened.
            has_settled_labels: labels_ns > lost_after_ns,
            chunks_unreadable: unreadable.map(|entry| entry.report.chunks_unreadable).sum(),
            draining: draining.collect(),
            lost_after: self.terms.lost_after,
        }
    }

    /// Sentence that names the condition for which the manager waits; empty if it waits for
    /// nothing.
    fn waits_for(&self) -> String {
        if self.cluster.is_none() {
            return self.waits_for_founding();
        }
        let leaving = self.root_set.members.iter().filter(|id| self.must_leave(**id));
        let leaving: Vec<String> = leaving.map(ToString::to_string).collect();
        if leaving.is_empty() {
            return self.waits_for_majority();
        }
        let names = leaving.join(", ");
        match self.wanted_root_set() {
            Some(_) => format!("Other nodes take the place of {names} in the root set."),
            None => format!(
                "{names} must leave the root set, which is not possible yet: a majority of the \
                 root set must be up, and a node in a domain without another root node."
            ),
        }
    }

    fn waits_for_majority(&self) -> String {
        let is_up = |id: &&super::StorageId| {
            self.nodes.get(*id).is_some_and(|entry| {
                matches!(entry.member.state, MemberState::Up | MemberState::Draining)
            })
        };
        let up = self.root_set.members.iter().filter(is_up).count();
        if up >= self.root_set.majority() {
            return String::new();
        }
        let (members, needed) = (self.root_set.members.len(), self.root_set.majority());
        format!(
            "{up} of {members} root nodes are up, and {needed} are needed to open volumes and to \
             renew leases: start the others."
        )
    }

    fn waits_for_founding(&self) -> String {
        if let Some(founding) = &self.founding {
            let names: Vec<String> =
                founding.root_set.members.iter().map(ToString::to_string).collect();
            let (votes, voters) = (self.votes(), self.voters());
            let own = votes.get(&founding.cluster.0).map_or(0, |votes| votes.nodes);
            let others: usize = votes.values().map(|votes| votes.nodes).sum::<usize>() - own;
            let divided = match others {
                0 => String::new(),
                others => format!(
                    " {others} nodes have confirmed another cluster, of a second manager: if no \
                     cluster gets a majority, stop one manager, and start its nodes with empty \
                     directories."
                ),
            };
            return format!(
                "The cluster is founded when its root nodes {} and more than half of {voters} \
                 storage nodes have confirmed it. Confirmations so far: {own}.{divided}",
                names.join(", ")
            );
        }
        if let Some(expected) = self.terms.expected_nodes {
            let up = self.nodes.values().filter(|entry| entry.is_up()).count();
            if up <= expected as usize / 2 {
                return format!(
                    "A new cluster needs more than half of its {expected} storage nodes \
                     (--storage-nodes), and {up} are up: start more nodes."
                );
            }
        }
        let domains = self.one_per_domain(|_| true).len();
        let needed = self.terms.root_nodes.map_or(3, usize::from);
        if domains < needed {
            return format!(
                "A new cluster needs storage nodes in {needed} domains, and {domains} have nodes \
                 that are up: start more nodes."
            );
        }
        "The cluster is founded when its nodes have been up for a while.".to_owned()
    }
}
