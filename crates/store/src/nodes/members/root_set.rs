//! When the root set needs other members, and which ones.
//!
//! A member is replaced when it is lost for good or drains, and another node can take its place.
//! That node beats, has been up for a while, and has no failed device. A set of three grows to five
//! when nodes of five domains are up. One replacement brings in a minority of new members.
//!
//! The decision is a function of the list of members; its caller runs the replacement
//! ([`NodeRegister::replace_root_set`](super::super::registers::NodeRegister::replace_root_set)).
//!
//! Thread-safety: none.
//! Failure: without a node in another domain the set stays as it is, and the status says so.
//! Cost: O(nodes).

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::StorageId;
use super::super::register::caspaxos::RootSet;
use super::super::wire::MemberState;
use super::{ManagerPart, MemberTable, NodeEntry};

/// A replacement of the root set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootReplacement {
    /// The present set.
    pub old: RootSet,
    /// Members of the next set.
    pub members: Vec<StorageId>,
}

impl MemberTable {
    /// The replacement that the root set needs. `None` if it needs none, if no node can take the
    /// place of a member, or if this manager stands by.
    #[must_use]
    pub fn wanted_root_set(&self) -> Option<RootReplacement> {
        let old = self.settled_root_set()?;
        let is_up = |id: &StorageId| self.nodes.get(id).is_some_and(NodeEntry::is_up);
        if old.members.iter().filter(|id| is_up(id)).count() < old.majority() {
            return None;
        }
        let (kept, mut gone): (Vec<StorageId>, Vec<StorageId>) =
            old.members.iter().copied().partition(|id| !self.must_leave(*id));
        // A node that drains can stay for a while, and a lost one cannot.
        gone.sort_by_key(|id| !is_up(id));
        let domain_of = |id: &StorageId| self.nodes.get(id).map(|entry| &entry.member.domain);
        let taken: BTreeSet<_> = kept.iter().filter_map(domain_of).collect();
        let is_free = |entry: &NodeEntry| {
            !taken.contains(&entry.member.domain)
                && !old.members.contains(&entry.member.storage)
                && self.may_join(entry)
        };
        let free: Vec<StorageId> = self.one_per_domain(is_free).into_values().collect();
        let largest = self.root_nodes_of(kept.len() + free.len()).unwrap_or(0);
        let of_size = |size: usize| {
            // The old members of the next set are a majority of it. So new members that are lost
            // before they have their copies do not block it.
            let added =
                free.len().min(size.saturating_sub(kept.len())).min(((size - 1) / 2).max(1));
            let members = kept.iter().chain(&free[..added]).take(size).copied();
            members.collect::<Vec<StorageId>>()
        };
        let mut members = of_size(largest.max(old.members.len()));
        if members.len() < largest {
            members = of_size(old.members.len());
        }
        // An even set tolerates no more losses than the odd one below it.
        let left_out = old.members.len().saturating_sub(members.len());
        members.extend(gone.into_iter().take(left_out));
        if members.len().is_multiple_of(2) {
            return None;
        }
        let same = |id: &StorageId| old.members.contains(id);
        let is_other = members.len() != old.members.len() || !members.iter().all(same);
        // The second set proves to later managers that the founding was concluded.
        let is_first = self.terms.expected_nodes.is_some() && old.number == 1;
        (is_other || is_first).then_some(RootReplacement { old, members })
    }

    /// The present root set, if this manager may replace it.
    #[must_use]
    pub fn settled_root_set(&self) -> Option<RootSet> {
        let acts = self.part == ManagerPart::Acts && self.cluster.is_some();
        (acts && !self.root_set.members.is_empty()).then(|| self.root_set.clone())
    }

    /// Whether a node may become a root node. A node that was silent for two beats may be down, and
    /// a node that has just begun its life may end it again. A node with a failed device may lose
    /// its metadata next.
    fn may_join(&self, entry: &NodeEntry) -> bool {
        let passed = |since_ns: u64| Duration::from_nanos(self.now_ns.saturating_sub(since_ns));
        entry.cluster == self.cluster
            && passed(entry.heard_ns) <= self.terms.silent_after / 2
            && passed(entry.up_since_ns) >= self.terms.settle
            && entry.report.devices.iter().all(|device| !device.is_failed)
    }

    /// Takes the set that follows a replacement.
    pub fn root_set_is(&mut self, root_set: &RootSet) {
        if root_set.number > self.root_set.number {
            self.root_set.clone_from(root_set);
            self.version += 1;
        }
    }

    /// Whether another node should take the place of this root node.
    pub(super) fn must_leave(&self, root_node: StorageId) -> bool {
        self.nodes.get(&root_node).is_some_and(|entry| {
            matches!(entry.member.state, MemberState::Lost | MemberState::Draining)
        })
    }
}
