//! The recovery of a replicated log: a new owner decides where the log ends.
//!
//! The owner has raised the epoch in the register and read the layout before the recovery begins.
//! Sealed extents stay as they are. The last extent may be open, and extents before it may have a
//! recorded end without being sealed. The recovery treats all of these in parallel:
//!
//! 1. It reads the lengths of all replicas. Every read fences: a node that answers has durably
//!    promised the epoch and refuses older writers, also if it has no bytes.
//! 2. For the open extent it waits until enough nodes without limbo have answered to find every
//!    acknowledged byte, or until all nodes have answered. Enough are two of three for a quorum
//!    log, and one for a manifest ([`AckRule::recovery_answers`]). A node in *limbo* may have lost
//!    unsynced bytes. It may supply bytes, but bytes that it lacks may have been acknowledged. The
//!    bytes of a manifest are synced when they are acknowledged, so limbo does not matter there. A
//!    *damaged* node has lost synced bytes. It may supply bytes as well, but it never counts as an
//!    answer.
//! 3. The end is that of the longest prefix with valid checksums. An extent with a recorded end has
//!    all bytes on some node, unless several nodes have lost their memory. The log is then cut
//!    where the longest prefix ends.
//! 4. If acknowledged bytes may be missing, the driver makes this fact durable before any node
//!    seals the extent ([`RecoveryAction::KeepLoss`]). A seal ends limbo and damage, so the nodes
//!    would not report the loss to a later recovery.
//! 5. Two nodes get all bytes of an extent and seal it, which syncs.
//! 6. The recovery records the layout with the end. Only then does the caller use a byte.
//!
//! If fewer nodes answer, the recovery waits, unless an operator accepts the loss. If all answered
//! and too many of them are damaged, waiting does not help ([`Recovery::blocked_by_damage`]).
//!
//! Invariants:
//! 1. A recovery that records an end has found every acknowledged byte, or records that it may
//!    have missed some ([`LogLayout::may_miss_unsynced`]).
//! 2. Bytes that were synced are found unless an operator accepts the loss of their nodes.
//! 3. Two recoveries of one log agree: the later one finds the recorded end, or the earlier one
//!    cannot record, because its epoch is older.
//! 4. The recorded bytes are durable on two nodes, or on the only node of the extent.
//! 5. The fact of a loss is durable before a node forgets its part of the evidence, so the
//!    recovery may end at any point.
//!
//! Thread-safety: none; the driver owns the value.
//! Failure: a later epoch ends the recovery. A node that fails is asked again after
//! [`Recovery::ask_again`]. If the only node with the longest prefix fails, the recovery decides
//! again with the others.
//! Cost: one round trip for the lengths, the bytes that the shorter replica lacks, one sync, and
//! one record.

mod extent;

use std::collections::VecDeque;

use self::extent::{ExtentRecovery, ExtentRules};
use super::super::StorageId;
use super::{AckRule, LogLayout, ReplicaId};

archipelago_base::fault_switches! {
    /// Steps of the recovery that a checker leaves out, to prove that it notices.
    RecoverySabotage {
        /// Reads do not fence.
        no_fence,
        /// The recovery counts answers of nodes in limbo.
        no_limbo,
        /// The recovery counts answers of nodes that have lost synced bytes.
        believes_damaged,
    }
}

/// The state of a replica, as its node answers a read of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FencedAnswer {
    /// Offset in the log after the longest prefix with valid checksums; 0 if the node has no byte
    /// of the extent.
    pub valid_end: u64,
    /// Whether the node may have lost unsynced bytes of the extent.
    pub is_in_limbo: bool,
    /// Whether the node has lost synced bytes of the extent. The bytes that it has are a valid
    /// prefix, and their end proves nothing about the end of the extent.
    pub is_damaged: bool,
}

/// An action that the driver carries out for the recovery. The order of the actions counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryAction {
    /// Asks a node for its replica ([`Recovery::answered`]).
    Read {
        /// The replica, which the node may not have.
        replica: ReplicaId,
        /// Whether the node promises the epoch before it answers.
        is_fencing: bool,
    },
    /// Copies bytes to a replica ([`Recovery::sealed`]), which drops what it has behind `start`,
    /// takes them, and seals the extent at `end`. If the range is empty, the replica has all bytes.
    /// If the supplier fails, the driver calls [`Recovery::failed`] for it and for the replica.
    Seal {
        /// Node that supplies the bytes.
        from: StorageId,
        /// Replica that gets them.
        to: ReplicaId,
        /// Offset in the log at which the extent begins.
        extent_start: u64,
        /// Offset in the log of the first byte to copy.
        start: u64,
        /// Offset in the log at which the extent ends.
        end: u64,
    },
    /// Asks for a node that is not in the list ([`Recovery::node_chosen`]).
    ChooseNode {
        /// Number of the extent.
        extent: u32,
        /// The nodes that the extent has.
        avoid: Vec<StorageId>,
    },
    /// Asks to keep durably that acknowledged bytes may be missing ([`Recovery::loss_kept`]). The
    /// extents that miss them are not sealed before.
    KeepLoss,
    /// Asks to keep the layout durably under the epoch ([`Recovery::recorded`]).
    Record(LogLayout),
    /// Reports that the end is decided and recorded, with the recorded layout.
    Done(LogLayout),
    /// Reports that another owner has a later epoch.
    Fenced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecoveryPhase {
    /// Ends are being chosen, and nodes seal.
    Deciding,
    /// The layout with the end is being recorded.
    Recording,
    Done,
    Fenced,
}

/// The recovery of one log.
#[derive(Debug)]
pub struct Recovery {
    rules: ExtentRules,
    /// The sealed extents; in the end the layout that was recorded.
    layout: LogLayout,
    /// The extents that are not sealed, in order.
    extents: Vec<ExtentRecovery>,
    phase: RecoveryPhase,
    /// Whether the driver was asked to keep the fact of a loss.
    is_loss_reported: bool,
    actions: VecDeque<RecoveryAction>,
}

impl Recovery {
    /// A recovery of the log that `layout` describes. The caller has raised the epoch before it
    /// read the layout.
    #[must_use]
    pub fn new(ack: AckRule, mut layout: LogLayout) -> Self {
        let unsealed = layout.extents.iter().position(|extent| !extent.is_sealed);
        let unsealed = unsealed.filter(|_| !layout.is_ended).unwrap_or(layout.extents.len());
        let extents = layout.extents.drain(unsealed..).map(ExtentRecovery::new).collect();
        Self {
            rules: ExtentRules::new(ack),
            layout,
            extents,
            phase: RecoveryPhase::Deciding,
            is_loss_reported: false,
            actions: VecDeque::new(),
        }
    }

    /// The same recovery without the steps that `sabotage` leaves out.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn sabotaged(mut self, sabotage: RecoverySabotage) -> Self {
        self.rules.sabotage = sabotage;
        self
    }

    /// Begins: asks all nodes of the extents that are not sealed. A log that has ended keeps its
    /// end.
    pub fn start(&mut self) {
        if self.layout.is_ended {
            self.done();
        } else {
            self.ask_again();
        }
    }

    /// The next action of the driver.
    pub fn next_action(&mut self) -> Option<RecoveryAction> {
        self.actions.pop_front()
    }

    /// Repeats the requests to the nodes that have failed. The driver calls it after a pause.
    pub fn ask_again(&mut self) {
        if self.phase == RecoveryPhase::Deciding {
            for extent in &mut self.extents {
                extent.ask_again(self.rules, &mut self.actions);
            }
            self.advance();
        }
    }

    /// Notes the answer of a node to a read.
    pub fn answered(&mut self, replica: ReplicaId, answer: FencedAnswer) {
        self.update(replica.extent, |extent| extent.answered(replica.node, answer));
    }

    /// Notes that a node cannot be reached, or refused for another reason than a later epoch.
    pub fn failed(&mut self, replica: ReplicaId) {
        self.update(replica.extent, |extent| extent.failed(replica.node));
    }

    /// Notes that a node has all bytes durably and has sealed the extent.
    pub fn sealed(&mut self, replica: ReplicaId) {
        self.update(replica.extent, |extent| extent.sealed(replica.node));
    }

    /// Takes a node in place of those that do not answer. It has no byte of the extent.
    pub fn node_chosen(&mut self, replica: ReplicaId) {
        self.update(replica.extent, |extent| extent.add(replica.node));
    }

    /// Gives up the nodes that do not answer, as an operator decided: one answer suffices from here
    /// on.
    pub fn accept_loss(&mut self) {
        self.rules.is_loss_accepted = true;
        self.advance();
    }

    /// Notes that the fact of a loss is durable, so that nodes may forget it. A driver that knows
    /// this from the beginning calls it after [`Self::start`].
    pub fn loss_kept(&mut self) {
        self.rules.is_loss_kept = true;
        self.advance();
    }

    /// The damaged replicas of an extent whose nodes have all answered, if too few of the others
    /// are left to find every synced byte. The recovery then ends only if an operator accepts the
    /// loss.
    #[must_use]
    pub fn blocked_by_damage(&self) -> Option<Vec<ReplicaId>> {
        let is_deciding = self.phase == RecoveryPhase::Deciding;
        let mut extents = self.extents.iter().filter(|_| is_deciding);
        extents.find_map(|extent| extent.blocked_by_damage(self.rules))
    }

    /// Notes that a node or the keeper of the layout knows a later epoch.
    pub fn fenced(&mut self) {
        if matches!(self.phase, RecoveryPhase::Deciding | RecoveryPhase::Recording) {
            self.phase = RecoveryPhase::Fenced;
            self.actions.clear();
            self.actions.push_back(RecoveryAction::Fenced);
        }
    }

    /// Notes that the layout of [`RecoveryAction::Record`] is durable.
    pub fn recorded(&mut self) {
        if self.phase == RecoveryPhase::Recording {
            self.done();
        }
    }

    fn update(&mut self, number: u32, change: impl FnOnce(&mut ExtentRecovery)) {
        let extent = self.extents.iter_mut().find(|extent| extent.number() == number);
        if let (RecoveryPhase::Deciding, Some(extent)) = (self.phase, extent) {
            change(extent);
            self.advance();
        }
    }

    fn advance(&mut self) {
        if self.phase != RecoveryPhase::Deciding {
            return;
        }
        for extent in &mut self.extents {
            extent.advance(self.rules, &mut self.actions);
        }
        self.report_loss();
        // The log ends with an extent that lost bytes of its end, so no extent follows.
        let cut = self.extents.iter().position(ExtentRecovery::is_cut);
        let kept = cut.map_or(self.extents.len(), |cut| cut + 1);
        if self.extents[..kept].iter().all(ExtentRecovery::is_sealed) {
            self.extents.truncate(kept);
            self.record();
        }
    }

    /// Asks the driver to keep the fact of a loss, unless it was asked before.
    fn report_loss(&mut self) {
        let may_miss = self.extents.iter().any(ExtentRecovery::may_miss_unsynced);
        if may_miss && !self.rules.is_loss_kept && !self.is_loss_reported {
            self.is_loss_reported = true;
            self.actions.push_back(RecoveryAction::KeepLoss);
        }
    }

    /// Records the layout with the end.
    fn record(&mut self) {
        let may_miss = self.extents.iter().any(ExtentRecovery::may_miss_unsynced);
        self.layout.may_miss_unsynced = may_miss;
        self.layout.extents.extend(self.extents.iter().filter_map(ExtentRecovery::record));
        self.layout.is_ended = true;
        self.phase = RecoveryPhase::Recording;
        self.actions.push_back(RecoveryAction::Record(self.layout.clone()));
    }

    fn done(&mut self) {
        self.phase = RecoveryPhase::Done;
        self.actions.push_back(RecoveryAction::Done(self.layout.clone()));
    }
}

#[cfg(test)]
mod tests;
