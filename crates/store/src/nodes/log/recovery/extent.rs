//! The recovery of one extent: the answers of its nodes, the end that follows, and the nodes that
//! seal.
//!
//! [`Recovery`](super::Recovery) owns one [`ExtentRecovery`] per extent that is not sealed.
//!
//! Invariants:
//! 1. The chosen end never grows: the answer of a node that fails no longer counts, and later
//!    answers do not move the end.
//! 2. A node that sealed has all bytes through the end.
//! 3. A damaged answer may supply bytes but proves nothing: an end is chosen with it only if the
//!    other answers suffice to find every synced byte.
//! 4. No node seals at an end that may miss acknowledged bytes before that fact is durable.
//!
//! Thread-safety: none. Failure: as of [`Recovery`](super::Recovery). Cost: O(replicas) per call.

use std::collections::VecDeque;

use super::super::super::StorageId;
use super::super::{AckRule, ExtentRecord, ReplicaId, SEALED_COPIES};
use super::{FencedAnswer, RecoveryAction, RecoverySabotage};

/// Rules that the decisions about all extents follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExtentRules {
    ack: AckRule,
    /// Whether an operator accepts the loss of what the missing nodes have.
    pub(super) is_loss_accepted: bool,
    /// Whether the fact that acknowledged bytes may be missing is durable.
    pub(super) is_loss_kept: bool,
    pub(super) sabotage: RecoverySabotage,
}

impl ExtentRules {
    pub(super) fn new(ack: AckRule) -> Self {
        let sabotage = RecoverySabotage::default();
        Self { ack, is_loss_accepted: false, is_loss_kept: false, sabotage }
    }

    /// Whether the node of `answer` has every byte that it ever acknowledged for `ack`.
    fn is_certain(&self, answer: &FencedAnswer) -> bool {
        let is_synced = self.ack == AckRule::AllSynced;
        self.has_synced(answer) && (!answer.is_in_limbo || is_synced || self.sabotage.no_limbo())
    }

    /// Whether the node of `answer` has every byte that it ever synced.
    fn has_synced(&self, answer: &FencedAnswer) -> bool {
        !answer.is_damaged || self.sabotage.believes_damaged()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceState {
    /// The node was asked and has not answered.
    Asked,
    /// The node failed and is asked again later.
    Failed,
    /// The node answered.
    Answered(FencedAnswer),
    /// The node gets bytes and seals.
    Sealing(FencedAnswer),
    /// The node has all bytes durably.
    Sealed,
}

#[derive(Clone, Copy, Debug)]
struct Source {
    node: StorageId,
    state: SourceState,
    /// Whether the node was in the ensemble of the writer, so that its answer counts.
    is_member: bool,
    /// Whether the node has failed since its last answer. It is asked again, but another node may
    /// already seal in its place. Without this flag, two nodes that fail alternately would never be
    /// replaced.
    has_failed: bool,
}

impl Source {
    /// The answer, before and while the node seals.
    fn answer(&self) -> Option<FencedAnswer> {
        match self.state {
            SourceState::Answered(answer) | SourceState::Sealing(answer) => Some(answer),
            SourceState::Asked | SourceState::Failed | SourceState::Sealed => None,
        }
    }

    fn is_sealed(&self) -> bool {
        self.state == SourceState::Sealed
    }

    fn has_all(&self, end: u64) -> bool {
        self.is_sealed() || self.answer().is_some_and(|answer| answer.valid_end >= end)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExtentPhase {
    /// Too few nodes have answered.
    Reading,
    /// The end is chosen, and nodes seal.
    Sealing { end: u64 },
    /// Enough nodes have sealed.
    Sealed { end: u64 },
}

/// The recovery of one extent.
#[derive(Debug)]
pub(super) struct ExtentRecovery {
    extent: ExtentRecord,
    sources: Vec<Source>,
    phase: ExtentPhase,
    may_miss_unsynced: bool,
    is_node_wanted: bool,
}

impl ExtentRecovery {
    pub(super) fn new(extent: ExtentRecord) -> Self {
        let member = |node: &StorageId| Source {
            node: *node,
            state: SourceState::Failed,
            is_member: true,
            has_failed: false,
        };
        Self {
            sources: extent.nodes.iter().map(member).collect(),
            extent,
            phase: ExtentPhase::Reading,
            may_miss_unsynced: false,
            is_node_wanted: false,
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.extent.number
    }

    /// Whether enough nodes have sealed the extent at the chosen end.
    pub(super) fn is_sealed(&self) -> bool {
        matches!(self.phase, ExtentPhase::Sealed { .. })
    }

    /// Whether the chosen end is before the recorded one.
    pub(super) fn is_cut(&self) -> bool {
        self.chosen_end().zip(self.extent.end).is_some_and(|(chosen, recorded)| chosen < recorded)
    }

    pub(super) fn may_miss_unsynced(&self) -> bool {
        self.may_miss_unsynced
    }

    /// The extent as the layout has it after the recovery; `None` if it has no byte.
    pub(super) fn record(&self) -> Option<ExtentRecord> {
        let end = self.chosen_end().filter(|end| *end > self.extent.start)?;
        let sealed = self.sources.iter().filter(|source| source.is_sealed());
        let others = self.sources.iter().filter(|source| !source.is_sealed() && source.is_member);
        let nodes = sealed.chain(others).map(|source| source.node).collect();
        Some(ExtentRecord { end: Some(end), nodes, is_sealed: true, ..self.extent.clone() })
    }

    /// Asks the nodes that have failed, or were not asked yet.
    pub(super) fn ask_again(&mut self, rules: ExtentRules, actions: &mut VecDeque<RecoveryAction>) {
        let failed = |source: &&mut Source| source.state == SourceState::Failed;
        for source in self.sources.iter_mut().filter(failed) {
            source.state = SourceState::Asked;
            let replica = ReplicaId { extent: self.extent.number, node: source.node };
            let is_fencing = !rules.sabotage.no_fence();
            actions.push_back(RecoveryAction::Read { replica, is_fencing });
        }
        self.is_node_wanted = false;
    }

    pub(super) fn answered(&mut self, node: StorageId, answer: FencedAnswer) {
        let valid_end = answer.valid_end.max(self.extent.start);
        if let Some(source) = self.source_mut(node)
            && matches!(source.state, SourceState::Asked | SourceState::Failed)
        {
            source.state = SourceState::Answered(FencedAnswer { valid_end, ..answer });
            source.has_failed = false;
        }
    }

    pub(super) fn failed(&mut self, node: StorageId) {
        if let Some(source) = self.source_mut(node)
            && !source.is_sealed()
        {
            source.state = SourceState::Failed;
            source.has_failed = true;
        }
    }

    pub(super) fn sealed(&mut self, node: StorageId) {
        if let Some(source) = self.source_mut(node)
            && matches!(source.state, SourceState::Sealing(_))
        {
            source.state = SourceState::Sealed;
        }
    }

    /// Adds a node that has no byte of the extent.
    pub(super) fn add(&mut self, node: StorageId) {
        if self.source_mut(node).is_none() {
            let answer = FencedAnswer {
                valid_end: self.extent.start,
                is_in_limbo: false,
                is_damaged: false,
            };
            let state = SourceState::Answered(answer);
            self.sources.push(Source { node, state, is_member: false, has_failed: false });
            self.is_node_wanted = false;
        }
    }

    /// Chooses the end and asks nodes to seal, as far as the answers permit.
    pub(super) fn advance(&mut self, rules: ExtentRules, actions: &mut VecDeque<RecoveryAction>) {
        if let ExtentPhase::Sealing { end } = self.phase
            && !self.sources.iter().any(|source| source.has_all(end))
        {
            // The only source of the longest prefix has failed, and no node has sealed. A seal that
            // is under way may still add bytes to a node. Those bytes lie after the next chosen
            // end, so they do no harm.
            self.phase = ExtentPhase::Reading;
        }
        if self.phase == ExtentPhase::Reading {
            self.choose_end(rules);
        }
        let may_seal = !self.may_miss_unsynced || rules.is_loss_kept;
        if let (ExtentPhase::Sealing { end }, true) = (self.phase, may_seal) {
            self.seal(end, actions);
        }
    }

    fn chosen_end(&self) -> Option<u64> {
        match self.phase {
            ExtentPhase::Reading => None,
            ExtentPhase::Sealing { end } | ExtentPhase::Sealed { end } => Some(end),
        }
    }

    fn source_mut(&mut self, node: StorageId) -> Option<&mut Source> {
        self.sources.iter_mut().find(|source| source.node == node)
    }

    fn members(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|source| source.is_member)
    }

    /// Whether enough members have answered, without those that have lost synced bytes.
    fn finds_all_synced(&self, rules: ExtentRules) -> bool {
        let answers = self.members().filter_map(Source::answer);
        let whole = answers.filter(|answer| rules.has_synced(answer)).count();
        whole >= rules.ack.recovery_answers(self.members().count())
    }

    /// The damaged replicas, if all members answered and too few are whole.
    pub(super) fn blocked_by_damage(&self, rules: ExtentRules) -> Option<Vec<ReplicaId>> {
        let has_all_answers = self.members().all(|source| source.answer().is_some());
        let is_blocked = self.phase == ExtentPhase::Reading
            && has_all_answers
            && !rules.is_loss_accepted
            && !self.finds_all_synced(rules);
        let damaged = self
            .members()
            .filter(|source| source.answer().is_some_and(|answer| !rules.has_synced(&answer)));
        let replica = |source: &Source| ReplicaId { extent: self.extent.number, node: source.node };
        is_blocked.then(|| damaged.map(replica).collect())
    }

    fn choose_end(&mut self, rules: ExtentRules) {
        let answers: Vec<FencedAnswer> = self.members().filter_map(Source::answer).collect();
        let members = self.members().count();
        let Some(longest) = answers.iter().map(|answer| answer.valid_end).max() else { return };
        let certain = answers.iter().filter(|answer| rules.is_certain(answer)).count();
        let has_found_all = match self.extent.end {
            // Every byte before a recorded end was acknowledged.
            Some(recorded) => longest >= recorded,
            None => certain >= rules.ack.recovery_answers(members),
        };
        let is_complete = answers.len() == members && self.finds_all_synced(rules);
        if has_found_all || is_complete || rules.is_loss_accepted {
            self.may_miss_unsynced = !has_found_all;
            let end = longest.min(self.extent.end.unwrap_or(u64::MAX)).max(self.extent.start);
            self.phase = ExtentPhase::Sealing { end };
            for source in &mut self.sources {
                if let SourceState::Sealing(answer) = source.state {
                    source.state = SourceState::Answered(answer);
                }
            }
        }
    }

    fn seal(&mut self, end: u64, actions: &mut VecDeque<RecoveryAction>) {
        let wanted = SEALED_COPIES.min(self.extent.nodes.len());
        let sealed = self.sources.iter().filter(|source| source.is_sealed()).count();
        if sealed >= wanted {
            self.phase = ExtentPhase::Sealed { end };
            return;
        }
        let Some(supplier) = self.sources.iter().find(|s| s.has_all(end)).map(|s| s.node) else {
            return;
        };
        for source in &mut self.sources {
            if let SourceState::Answered(answer) = source.state {
                source.state = SourceState::Sealing(answer);
                let start = answer.valid_end.min(end);
                let from = if start == end { source.node } else { supplier };
                let to = ReplicaId { extent: self.extent.number, node: source.node };
                let extent_start = self.extent.start;
                actions.push_back(RecoveryAction::Seal { from, to, extent_start, start, end });
            }
        }
        let is_pending = |source: &&Source| match source.state {
            SourceState::Asked => !source.has_failed,
            SourceState::Sealing(_) => true,
            _ => false,
        };
        let possible = sealed + self.sources.iter().filter(is_pending).count();
        if possible < wanted && !self.is_node_wanted {
            self.is_node_wanted = true;
            let avoid = self.sources.iter().map(|source| source.node).collect();
            actions.push_back(RecoveryAction::ChooseNode { extent: self.extent.number, avoid });
        }
    }
}
