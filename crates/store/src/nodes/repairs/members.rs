//! The members of a cluster as one round of repairs sees them: which nodes keep their chunks, which
//! answer, and in which domains they are. Pure.
//!
//! A round takes its members once, so that all its decisions agree. The planner asks them about
//! single nodes, and the manager compares them with the members of the next round.
//!
//! Invariants:
//! 1. A node that keeps its chunks is a known node, and so is a node that answers.
//! 2. The content does not change after [`RepairMembers::with_settled_labels`].
//!
//! Cost: O(nodes) to build, and O(log n) for a question about one node.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_base::Epoch;

use super::super::StorageId;
use super::super::placement::NodeReport;
use super::super::wire::{Holder, MemberState, Members, StorageMember};

/// The members, as a round sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairMembers {
    /// Figures of the nodes on which placement depends.
    nodes: Vec<NodeReport>,
    /// Nodes that keep their chunks: up or silent, and not draining.
    present: BTreeSet<StorageId>,
    /// Nodes that answer.
    answering: BTreeSet<StorageId>,
    /// All nodes that the manager knows.
    known: BTreeSet<StorageId>,
    /// Lives of all these nodes.
    lives: BTreeMap<StorageId, Epoch>,
    /// Domains of all nodes that have named theirs.
    domains: BTreeMap<StorageId, String>,
    /// Whether a node that the manager does not know is lost.
    unknown_is_lost: bool,
    /// Whether the domains have stayed the same for so long that copies may move because of them.
    has_settled_labels: bool,
    /// Whether the manager knows all nodes that are not lost.
    is_complete: bool,
}

impl RepairMembers {
    /// The members of a cluster. `unknown_is_lost`: the manager has listened for so long that a
    /// node without any message to it is lost.
    #[must_use]
    pub fn new(members: &Members, unknown_is_lost: bool) -> Self {
        let with = |is: fn(MemberState) -> bool| {
            let chosen = members.members.iter().filter(move |member| is(member.state));
            chosen.map(|member| member.storage).collect()
        };
        // A node that has never beaten to this manager has an empty domain.
        let named = members.members.iter().filter(|member| !member.domain.is_empty());
        Self {
            nodes: members.members.iter().map(StorageMember::report).collect(),
            domains: named.map(|member| (member.storage, member.domain.clone())).collect(),
            present: with(|state| matches!(state, MemberState::Up | MemberState::Silent)),
            answering: with(|state| matches!(state, MemberState::Up | MemberState::Draining)),
            known: with(|_| true),
            lives: members.members.iter().map(|member| (member.storage, member.life)).collect(),
            unknown_is_lost,
            has_settled_labels: true,
            is_complete: members.is_complete || unknown_is_lost,
        }
    }

    /// Says whether the domains have stayed the same for so long that copies may move because of
    /// them. Without this call they have.
    #[must_use]
    pub fn with_settled_labels(self, has_settled_labels: bool) -> Self {
        Self { has_settled_labels, ..self }
    }

    /// Nodes that keep their chunks.
    pub fn present(&self) -> impl Iterator<Item = StorageId> {
        self.present.iter().copied()
    }

    /// Nodes that answer.
    pub fn answering(&self) -> impl Iterator<Item = StorageId> {
        self.answering.iter().copied()
    }

    /// Figures of the nodes on which placement depends.
    #[must_use]
    pub fn reports(&self) -> &[NodeReport] {
        &self.nodes
    }

    /// The life of a node that the manager knows.
    #[must_use]
    pub fn life_of(&self, node: StorageId) -> Option<Epoch> {
        self.lives.get(&node).copied()
    }

    /// Whether another list of members leads to the same repairs: the use and the lives of nodes do
    /// not matter.
    #[must_use]
    pub fn has_same_nodes(&self, other: &Self) -> bool {
        let times = |it: &Self| (it.unknown_is_lost, it.has_settled_labels, it.is_complete);
        (&self.present, &self.answering, &self.known, &self.domains, times(self))
            == (&other.present, &other.answering, &other.known, &other.domains, times(other))
    }

    /// Nodes that keep their chunks and are in the domain of another such node, by domain.
    #[must_use]
    pub fn shared_domains(&self) -> Vec<Vec<StorageId>> {
        let mut groups: BTreeMap<&str, Vec<StorageId>> = BTreeMap::new();
        for node in &self.present {
            if let Some(domain) = self.domains.get(node) {
                groups.entry(domain).or_default().push(*node);
            }
        }
        groups.into_values().filter(|group| group.len() > 1).collect()
    }

    /// A holder that answers, and that stays in the domain of another holder that stays. Of two
    /// such holders that answer, it is the later one.
    pub(super) fn sharing_holder(&self, holders: &[Holder]) -> Option<Holder> {
        let mut seen: BTreeMap<&str, Holder> = BTreeMap::new();
        for holder in holders.iter().filter(|it| self.present.contains(&it.storage)) {
            let Some(domain) = self.domains.get(&holder.storage) else { continue };
            let Some(earlier) = seen.insert(domain, *holder) else { continue };
            let moves = [*holder, earlier].into_iter().find(|it| self.answers(it.storage));
            if moves.is_some() {
                return moves;
            }
        }
        None
    }

    /// Number of domains of these nodes. A node without a known domain counts as one.
    pub(super) fn spread(&self, nodes: impl Iterator<Item = StorageId>) -> usize {
        let (mut domains, mut without) = (BTreeSet::new(), 0);
        for node in nodes {
            if let Some(domain) = self.domains.get(&node) {
                domains.insert(domain.as_str());
            } else {
                without += 1;
            }
        }
        domains.len() + without
    }

    /// Whether a holder has left, or must leave.
    pub(super) fn is_leaving(&self, node: StorageId) -> bool {
        match self.known.contains(&node) {
            true => !self.present.contains(&node),
            false => self.unknown_is_lost,
        }
    }

    /// Whether a node answers.
    pub(super) fn answers(&self, node: StorageId) -> bool {
        self.answering.contains(&node)
    }

    /// Whether the domains have stayed the same for so long that copies may move because of them.
    pub(super) fn has_settled_labels(&self) -> bool {
        self.has_settled_labels
    }

    /// Whether the manager knows all nodes that are not lost.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Number of domains with a node that takes chunks.
    pub(super) fn domains_with_room(&self) -> usize {
        let takes = self.nodes.iter().filter(|node| node.is_up && !node.is_draining);
        takes.map(|node| node.domain.as_str()).collect::<BTreeSet<_>>().len()
    }
}
