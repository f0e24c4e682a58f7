//! The founding of a cluster: its identity and its first root set.
//!
//! 1. The manager waits until nodes of enough domains have been up for [`MemberTerms::settle`], no
//!    node reports a cluster, and no further node has appeared in that time.
//! 2. It chooses one node per domain for the root set, and a random identity. Only these nodes get
//!    both, with the answers to their beats, and keep them durably.
//! 3. When all of them have reported the cluster, the list of members names it to everybody. If a
//!    node does not, a majority suffices after a while: a member that has never answered has
//!    promised nothing, and may begin later.
//!
//! Invariants: 1. No client learns of a cluster before a majority of its root set keeps it. 2. A
//! manager that ends meanwhile leaves nodes that name the cluster, and the next manager completes
//! the founding with it.
//!
//! Thread-safety: none.
//! Failure: two managers that act at the same time may found two clusters on disjoint nodes. The
//! nodes of one of them are then refused.
//! Cost: O(nodes) per tick until the cluster exists.

use std::collections::BTreeMap;
use std::time::Duration;

use archipelago_fabric::ClusterId;

use super::super::StorageId;
use super::super::register::caspaxos::RootSet;
use super::{MemberTable, NodeEntry};

/// Fewest domains of a cluster, unless its operator asks for a single root node.
const ROOT_NODES: usize = 3;
/// Members of the root set of a cluster with as many domains.
const ROOT_NODES_MAX: usize = 5;
/// Number of times the settling time after which further nodes are not waited for, and after which
/// a majority of the root set suffices.
const PATIENCE: u32 = 5;

/// A cluster that its root set does not keep yet.
#[derive(Clone, Debug)]
pub(super) struct Founding {
    pub(super) cluster: ClusterId,
    pub(super) root_set: RootSet,
    since_ns: u64,
}

impl MemberTable {
    /// Number of root nodes for `domains` domains; `None` if there are too few.
    pub(super) fn root_nodes_of(&self, domains: usize) -> Option<usize> {
        match self.terms.root_nodes {
            Some(wanted) => (domains >= usize::from(wanted)).then_some(usize::from(wanted)),
            None if domains >= ROOT_NODES_MAX => Some(ROOT_NODES_MAX),
            None => (domains >= ROOT_NODES).then_some(ROOT_NODES),
        }
    }

    /// One node of each domain that is up and satisfies `may`, by domain.
    pub(super) fn one_per_domain(
        &self,
        may: impl Fn(&NodeEntry) -> bool,
    ) -> BTreeMap<&str, StorageId> {
        let mut chosen = BTreeMap::new();
        for (storage, entry) in &self.nodes {
            if entry.is_up() && !entry.is_draining && may(entry) {
                chosen.entry(entry.member.domain.as_str()).or_insert(*storage);
            }
        }
        chosen
    }

    /// Begins to found a cluster if it is time.
    pub(super) fn found(&mut self, now_ns: u64) {
        if self.cluster.is_some() || self.founding.is_some() {
            return;
        }
        let passed = |since_ns: u64| Duration::from_nanos(now_ns.saturating_sub(since_ns));
        let settle = self.terms.settle;
        if passed(self.since_ns) < settle {
            return;
        }
        let up = self.nodes.values().filter(|entry| entry.is_up());
        let newest = up.map(|entry| passed(entry.up_since_ns)).min().unwrap_or_default();
        if newest < settle && passed(self.since_ns) < settle * PATIENCE {
            return;
        }
        let chosen = self.one_per_domain(|entry| passed(entry.up_since_ns) >= settle);
        let Some(count) = self.root_nodes_of(chosen.len()) else { return };
        let members = chosen.into_values().take(count).collect();
        let mut cluster = [0; 16];
        cluster.fill_with(|| self.rng.u8(..));
        let (cluster, root_set) = (ClusterId(cluster), RootSet { number: 1, members });
        tracing::info!(%cluster, ?root_set, "the manager founds a cluster of storage nodes");
        self.founding = Some(Founding { cluster, root_set, since_ns: now_ns });
        self.version += 1;
    }

    /// Names the cluster to everybody when its root set keeps it.
    pub(super) fn conclude_founding(&mut self, now_ns: u64) {
        let Some(founding) = &self.founding else { return };
        let keeps = |id: &&StorageId| {
            self.nodes.get(*id).is_some_and(|entry| entry.cluster == Some(founding.cluster))
        };
        let kept = founding.root_set.members.iter().filter(keeps).count();
        let passed = Duration::from_nanos(now_ns.saturating_sub(founding.since_ns));
        let needed = if passed < self.terms.settle * PATIENCE {
            founding.root_set.members.len()
        } else {
            founding.root_set.majority()
        };
        if kept < needed {
            return;
        }
        tracing::info!(cluster = %founding.cluster, "the cluster of storage nodes is founded");
        self.cluster = Some(founding.cluster);
        self.root_set.clone_from(&founding.root_set);
        self.founding = None;
        self.version += 1;
    }
}
