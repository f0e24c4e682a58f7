//! Progress of the chunks of a blob that is being written, as a state machine without I/O.
//!
//! A writer hands over steps, and each chunk confirms them in its order. A step is *retained* until
//! every chunk has confirmed it. A node that fails is replaced. The new node first gets the bytes
//! before the first retained step, which all other chunks have, and then the retained steps.
//!
//! A *slot* is the place of a chunk in the blob: the index of the chunk with RS(4,2), and the
//! number of the replica otherwise. An *attempt* is the number of the node in a slot, so that late
//! answers of a replaced node are ignored.
//!
//! Invariants:
//! 1. Every chunk that takes steps has confirmed all bytes before the first retained step.
//! 2. A node is replaced only while enough other chunks have those bytes: four with RS(4,2), one
//!    with replicas. If no byte was dropped yet, the replacement needs no other chunk.
//! 3. The nodes of a blob differ from each other.
//!
//! Thread-safety: none; the lock of the writer guards the value.
//! Failure: [`SlotFailure::TooFew`] ends the blob.
//! Cost: O(slots) per call.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::super::StorageId;
use super::super::super::layout::{BlobLayout, Scheme};
use super::step::{WriteStep, step_bytes};

/// A node in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotNode {
    pub(super) slot: u8,
    pub(super) attempt: u32,
    pub(super) node: StorageId,
    /// Length of the blob's prefix whose part of the chunk must be copied or rebuilt before the
    /// node takes steps; 0 if there is none.
    pub(super) rebuild_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotPhase {
    /// The node takes steps.
    Writing,
    /// The node gets the bytes before the retained steps.
    Rebuilding,
    /// The node failed, and no other one was chosen yet.
    Failed,
    /// The blob goes on without this copy.
    Missing,
}

#[derive(Clone, Debug)]
struct Slot {
    node: StorageId,
    attempt: u32,
    phase: SlotPhase,
    /// Number of the first step that the node has not confirmed. All before it are confirmed.
    confirmed: u64,
}

impl Slot {
    fn is_missing(&self) -> bool {
        self.phase == SlotPhase::Missing
    }
}

/// Consequence of the failure of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotFailure {
    /// The node was replaced before.
    Stale,
    /// Another node may take the slot.
    Replaceable,
    /// Too few chunks are left for a replacement.
    TooFew,
}

/// The chunks of a blob that is being written.
#[derive(Debug)]
pub(super) struct WriteProgress {
    scheme: Scheme,
    slots: Vec<Slot>,
    /// Retained steps, from number `first` on.
    steps: VecDeque<Arc<WriteStep>>,
    first: u64,
    /// Bytes of the blob in all steps.
    len_bytes: u64,
}

impl WriteProgress {
    /// A blob without bytes on these nodes, by slot.
    pub(super) fn new(scheme: Scheme, nodes: &[StorageId]) -> Self {
        let slot = |node: &StorageId| Slot {
            node: *node,
            attempt: 0,
            phase: SlotPhase::Writing,
            confirmed: 0,
        };
        let slots = nodes.iter().map(slot).collect();
        Self { scheme, slots, steps: VecDeque::new(), first: 0, len_bytes: 0 }
    }

    /// Scheme of the blob.
    pub(super) fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Bytes of the blob in all steps.
    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Number of the next step.
    pub(super) fn next_number(&self) -> u64 {
        self.first + self.steps.len() as u64
    }

    /// All nodes that take steps now or later.
    pub(super) fn slot_nodes(&self) -> Vec<SlotNode> {
        let slots = (0..).zip(&self.slots).filter(|(_, slot)| !slot.is_missing());
        slots.map(|(number, slot)| self.slot_node(number, slot, 0)).collect()
    }

    fn slot_node(&self, number: u8, slot: &Slot, rebuild_bytes: u64) -> SlotNode {
        SlotNode { slot: number, attempt: slot.attempt, node: slot.node, rebuild_bytes }
    }

    /// Adds a step.
    pub(super) fn push(&mut self, step: WriteStep) {
        self.len_bytes += step.data_bytes();
        self.steps.push_back(Arc::new(step));
    }

    /// Step `number`, if it is retained.
    pub(super) fn step(&self, number: u64) -> Option<Arc<WriteStep>> {
        let at = number.checked_sub(self.first)?;
        self.steps.get(usize::try_from(at).ok()?).cloned()
    }

    /// Whether the node is still that of its slot.
    pub(super) fn is_current(&self, slot_node: &SlotNode) -> bool {
        let slot = &self.slots[usize::from(slot_node.slot)];
        slot.attempt == slot_node.attempt
            && matches!(slot.phase, SlotPhase::Writing | SlotPhase::Rebuilding)
    }

    /// Number of the first step that the node has not confirmed.
    pub(super) fn unconfirmed_from(&self, slot_node: &SlotNode) -> u64 {
        self.slots[usize::from(slot_node.slot)].confirmed
    }

    /// Notes that the node has confirmed step `number` and all before it.
    pub(super) fn confirm(&mut self, slot_node: &SlotNode, number: u64) {
        if !self.is_current(slot_node) {
            return;
        }
        let slot = &mut self.slots[usize::from(slot_node.slot)];
        slot.confirmed = slot.confirmed.max(number + 1);
        self.drop_confirmed();
    }

    fn drop_confirmed(&mut self) {
        let slots = self.slots.iter().filter(|slot| !slot.is_missing());
        let confirmed = slots.map(|slot| slot.confirmed).min().unwrap_or(self.first);
        while self.first < confirmed && self.steps.pop_front().is_some() {
            self.first += 1;
        }
    }

    /// Whether every chunk has confirmed every step.
    pub(super) fn is_flushed(&self) -> bool {
        let is_writing =
            |slot: &Slot| matches!(slot.phase, SlotPhase::Writing | SlotPhase::Missing);
        self.steps.is_empty() && self.slots.iter().all(is_writing)
    }

    /// Bytes of memory that the retained steps have.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.steps.iter().map(|step| step.memory_bytes()).sum()
    }

    /// Bytes that nodes have not confirmed.
    pub(super) fn unconfirmed_bytes(&self) -> u64 {
        let slots = (0..).zip(&self.slots).filter(|(_, slot)| !slot.is_missing());
        let of_slot = |(number, slot): (u8, &Slot)| {
            let skipped = slot.confirmed.saturating_sub(self.first) as usize;
            let steps = self.steps.iter().skip(skipped);
            steps.map(|step| step.cell(number).bytes.len() as u64).sum::<u64>()
        };
        slots.map(of_slot).sum()
    }

    /// Whether most of the other nodes that take steps have confirmed step `number`. If a node is
    /// late together with the others, the client's card is slow, and not the node.
    pub(super) fn others_have(&self, slot: u8, number: u64) -> bool {
        let others = (0..)
            .zip(&self.slots)
            .filter(|(at, other): &(u8, &Slot)| *at != slot && other.phase == SlotPhase::Writing);
        let (mut count, mut confirmed) = (0, 0);
        for (_, other) in others {
            count += 1;
            confirmed += usize::from(other.confirmed > number);
        }
        count > 0 && confirmed * 2 > count
    }

    /// Notes that the node has failed.
    pub(super) fn fail(&mut self, slot_node: &SlotNode) -> SlotFailure {
        if !self.is_current(slot_node) {
            return SlotFailure::Stale;
        }
        self.slots[usize::from(slot_node.slot)].phase = SlotPhase::Failed;
        self.failure()
    }

    fn failure(&self) -> SlotFailure {
        let sources = self.slots.iter().filter(|slot| slot.phase == SlotPhase::Writing).count();
        if self.first > 0 && sources < usize::from(self.scheme.chunks_min()) {
            return SlotFailure::TooFew;
        }
        SlotFailure::Replaceable
    }

    /// Puts another node into a slot whose node has failed.
    pub(super) fn replace(&mut self, slot: u8, node: StorageId) -> SlotNode {
        let rebuild_bytes = self.dropped_bytes();
        let first = self.first;
        let phase = if rebuild_bytes > 0 { SlotPhase::Rebuilding } else { SlotPhase::Writing };
        let state = &mut self.slots[usize::from(slot)];
        state.node = node;
        state.attempt += 1;
        state.phase = phase;
        state.confirmed = first;
        let state = self.slots[usize::from(slot)].clone();
        self.slot_node(slot, &state, rebuild_bytes)
    }

    /// Bytes of the blob before the first retained step.
    fn dropped_bytes(&self) -> u64 {
        (self.first * step_bytes(self.scheme)).min(self.len_bytes)
    }

    /// Goes on without the copy in a slot whose node has failed. Returns the number of copies that
    /// are left.
    pub(super) fn go_without(&mut self, slot: u8) -> usize {
        assert!(matches!(self.scheme, Scheme::Replicas(_)), "every chunk of a stripe is needed");
        self.slots[usize::from(slot)].phase = SlotPhase::Missing;
        self.drop_confirmed();
        self.slots.iter().filter(|slot| !slot.is_missing()).count()
    }

    /// Notes that the node has the bytes before the retained steps.
    pub(super) fn rebuilt(&mut self, slot_node: &SlotNode) {
        if self.is_current(slot_node) {
            self.slots[usize::from(slot_node.slot)].phase = SlotPhase::Writing;
        }
    }

    /// The nodes that have all bytes before the first retained step, with the indices of their
    /// chunks.
    pub(super) fn sources(&self) -> Vec<(u8, StorageId)> {
        let layout = BlobLayout { scheme: self.scheme, len_bytes: self.len_bytes };
        let slots = (0..).zip(&self.slots).filter(|(_, slot)| slot.phase == SlotPhase::Writing);
        slots.map(|(number, slot)| (layout.checksum_index(number), slot.node)).collect()
    }

    /// The nodes in all slots, except for one.
    pub(super) fn nodes_without(&self, slot: u8) -> Vec<StorageId> {
        let slots = (0..).zip(&self.slots);
        let others = slots.filter(|(number, other): &(u8, &Slot)| {
            *number != slot && matches!(other.phase, SlotPhase::Writing | SlotPhase::Rebuilding)
        });
        others.map(|(_, other)| other.node).collect()
    }
}

#[cfg(test)]
mod tests;
