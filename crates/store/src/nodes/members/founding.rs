//! The founding of a cluster: its identity and its first root set.
//!
//! 1. The manager waits until nodes of enough domains have been up for [`MemberTerms::settle`], no
//!    node reports a cluster, and no further node has appeared in that time.
//! 2. It chooses one node per domain for the root set, and a random identity. All nodes without a
//!    cluster get both, with the answers to their beats, and keep them durably. A node keeps one
//!    identity for ever, so this is its *vote*.
//! 3. When the root set and more than half of the nodes have reported the cluster, the list of
//!    members names it to all readers. After a while, a majority of the root set suffices. A member
//!    that has never answered has promised nothing, so it may begin later.
//!
//! A manager may learn of another cluster meanwhile. It abandons its own attempt if the other
//! cluster has more votes. With equally many votes, the cluster with the smaller identity wins. Two
//! majorities of [`MemberTerms::expected_nodes`] nodes have a node in common. So the lists of
//! several managers name at most one cluster, even if the managers do not reach each other's nodes.
//! The first root set is replaced soon after the founding by one with the same members: its number
//! shows later managers that the founding was concluded.
//!
//! Invariants:
//! 1. No client learns of a cluster before a majority of its root set keeps it, and before more
//!    than half of the expected nodes do.
//! 2. A manager that ends meanwhile leaves nodes that name the cluster, and the next manager
//!    completes the founding with it.
//!
//! Thread-safety: none.
//! Failure: the votes may be divided so that no attempt gets a majority. The status then names the
//! clusters. An operator keeps one cluster, and empties the nodes of the others, which hold no data
//! yet.
//! Cost: O(nodes) per tick and per beat until the cluster exists.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use archipelago_fabric::ClusterId;

use super::super::StorageId;
use super::super::register::caspaxos::RootSet;
use super::{MemberTable, NodeEntry};

/// Fewest domains of a cluster, and members of its root set, unless its operator asks for another
/// number of root nodes.
const ROOT_NODES: usize = 3;
/// Members of the root set of a cluster that has at least this number of domains.
const ROOT_NODES_MAX: usize = 5;
/// Multiple of the settling time after which the manager waits for no further nodes, and after
/// which a majority of the root set suffices.
const PATIENCE: u32 = 5;

/// Origin of a founding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Founder {
    ThisManager,
    /// Nodes reported the cluster, which may have existed for long.
    AnotherManager,
}

/// The cluster may not be founded yet.
#[derive(Clone, Debug)]
pub(super) struct Founding {
    pub(super) cluster: ClusterId,
    pub(super) root_set: RootSet,
    founder: Founder,
    since_ns: u64,
}

/// Number of nodes that report a cluster, and its newest root set that they know.
#[derive(Clone, Debug, Default)]
pub(super) struct ClusterVotes {
    pub(super) nodes: usize,
    root_set: RootSet,
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

    /// Nodes by the clusters that they report.
    pub(super) fn votes(&self) -> BTreeMap<[u8; 16], ClusterVotes> {
        let mut votes: BTreeMap<[u8; 16], ClusterVotes> = BTreeMap::new();
        for entry in self.nodes.values().filter(|entry| !entry.is_forgotten) {
            let Some(cluster) = entry.cluster else { continue };
            let of_cluster = votes.entry(cluster.0).or_default();
            of_cluster.nodes += 1;
            if entry.root_set.number > of_cluster.root_set.number {
                of_cluster.root_set.clone_from(&entry.root_set);
            }
        }
        votes
    }

    /// Number of nodes that vote for a new cluster.
    pub(super) fn voters(&self) -> usize {
        let known = self.nodes.values().filter(|entry| entry.has_beaten() && !entry.is_forgotten);
        known.count().max(self.terms.expected_nodes.unwrap_or(0) as usize)
    }

    /// Follows the clusters that nodes report, while no cluster is known to exist.
    pub(super) fn weigh_clusters(&mut self, now_ns: u64) {
        if self.cluster.is_some() {
            return;
        }
        let votes = self.votes();
        let established = votes.iter().find(|(_, votes)| votes.root_set.number > 1);
        if let Some((id, votes)) = established {
            let cluster = ClusterId(*id);
            tracing::info!(%cluster, "storage nodes named their cluster");
            self.exists(cluster, votes.root_set.clone());
            return;
        }
        let known = votes.iter().filter(|(_, votes)| votes.root_set.number > 0);
        let Some((id, leading)) = known.max_by_key(|(id, votes)| (votes.nodes, Reverse(**id)))
        else {
            return;
        };
        let cluster = ClusterId(*id);
        if self.founding.as_ref().is_some_and(|founding| founding.cluster == cluster) {
            return;
        }
        tracing::info!(%cluster, "storage nodes name a cluster; its founding goes on");
        let (root_set, founder) = (leading.root_set.clone(), Founder::AnotherManager);
        self.founding = Some(Founding { cluster, root_set, founder, since_ns: now_ns });
        self.version += 1;
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
        let up: Vec<&NodeEntry> = self.nodes.values().filter(|entry| entry.is_up()).collect();
        let newest = up.iter().map(|entry| passed(entry.up_since_ns)).min().unwrap_or_default();
        let is_patient = passed(self.since_ns) < settle * PATIENCE;
        let expected = self.terms.expected_nodes.unwrap_or(0) as usize;
        let is_awaited = up.len() < expected || newest < settle;
        if (is_awaited && is_patient) || up.len() <= expected / 2 {
            return;
        }
        let chosen = self.one_per_domain(|entry| passed(entry.up_since_ns) >= settle);
        let Some(count) = self.root_nodes_of(chosen.len()) else { return };
        let members = chosen.into_values().take(count).collect();
        let mut cluster = [0; 16];
        cluster.fill_with(|| self.rng.u8(..));
        let (cluster, root_set) = (ClusterId(cluster), RootSet { number: 1, members });
        tracing::info!(%cluster, ?root_set, "the manager founds a cluster of storage nodes");
        let founder = Founder::ThisManager;
        self.founding = Some(Founding { cluster, root_set, founder, since_ns: now_ns });
        self.version += 1;
    }

    /// Adds the cluster to the list of members, which all readers see, when its root set and most
    /// nodes keep it.
    pub(super) fn conclude_founding(&mut self, now_ns: u64) {
        let Some(founding) = &self.founding else { return };
        let keeps = |entry: &NodeEntry| entry.cluster == Some(founding.cluster);
        let root_nodes = founding.root_set.members.iter();
        let kept = root_nodes.filter(|id| self.nodes.get(*id).is_some_and(keeps)).count();
        let passed = Duration::from_nanos(now_ns.saturating_sub(founding.since_ns));
        let is_patient = passed < self.terms.settle * PATIENCE;
        let needed = match founding.founder {
            Founder::ThisManager if is_patient => founding.root_set.members.len(),
            _ => founding.root_set.majority(),
        };
        let votes = self.nodes.values().filter(|entry| keeps(entry)).count();
        if kept < needed || votes <= self.voters() / 2 {
            return;
        }
        let (cluster, root_set) = (founding.cluster, founding.root_set.clone());
        tracing::info!(%cluster, "the cluster of storage nodes is founded");
        // No node has kept anything in the cluster before this manager founded it.
        self.is_complete |= founding.founder == Founder::ThisManager;
        self.exists(cluster, root_set);
    }

    /// Adds a cluster to the list of members, which all readers see from now on.
    fn exists(&mut self, cluster: ClusterId, root_set: RootSet) {
        self.cluster = Some(cluster);
        self.root_set = root_set;
        self.founding = None;
        self.version += 1;
    }
}
