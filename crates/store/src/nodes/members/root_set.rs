//! When the root set needs other members, and which ones.
//!
//! A member is replaced when it is lost for good or drains, and another node can take its place. A
//! set of three grows to five when nodes of five domains are up. The decision is a function of the
//! list of members; its caller runs the replacement
//! ([`NodeRegister::replace_root_set`](super::super::registers::NodeRegister::replace_root_set)).
//!
//! Thread-safety: none.
//! Failure: without a node in another domain the set stays as it is, and the status says so.
//! Cost: O(nodes).

use std::collections::BTreeSet;

use super::super::StorageId;
use super::super::register::caspaxos::RootSet;
use super::super::wire::MemberState;
use super::{ManagerPart, MemberTable};

/// A replacement of the root set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootReplacement {
    /// The present set.
    pub old: RootSet,
    /// Members of the next set.
    pub members: Vec<StorageId>,
}

impl MemberTable {
    /// The replacement that the root set needs; `None` if it needs none, if no node can take the
    /// place of a member, or if this manager stands by.
    #[must_use]
    pub fn wanted_root_set(&self) -> Option<RootReplacement> {
        if self.part == ManagerPart::StandsBy || self.cluster.is_none() {
            return None;
        }
        let old = &self.root_set;
        let (kept, gone): (Vec<StorageId>, Vec<StorageId>) =
            old.members.iter().copied().partition(|id| !self.must_leave(*id));
        let is_up = |id: &&StorageId| self.nodes.get(*id).is_some_and(super::NodeEntry::is_up);
        if old.members.is_empty() || old.members.iter().filter(is_up).count() < old.majority() {
            return None;
        }
        let domain_of = |id: &StorageId| self.nodes.get(id).map(|entry| &entry.member.domain);
        let taken: BTreeSet<_> = kept.iter().filter_map(domain_of).collect();
        let is_free = |entry: &super::NodeEntry| {
            entry.cluster == self.cluster
                && !taken.contains(&entry.member.domain)
                && !old.members.contains(&entry.member.storage)
        };
        let free = self.one_per_domain(is_free);
        let wanted = self.root_nodes_of(kept.len() + free.len()).unwrap_or(0);
        let wanted = wanted.max(old.members.len());
        let mut members = kept.clone();
        members.extend(free.into_values().take(wanted.saturating_sub(kept.len())));
        // An even set tolerates no more losses than the odd one below it.
        let left_out = wanted - members.len();
        members.extend(gone.into_iter().take(left_out));
        if members.len().is_multiple_of(2) {
            return None;
        }
        let same = |id: &StorageId| old.members.contains(id);
        let is_other = members.len() != old.members.len() || !members.iter().all(same);
        is_other.then(|| RootReplacement { old: old.clone(), members })
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
