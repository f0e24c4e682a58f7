//! Changes that were given up half done, and what they leave behind.
//!
//! A caller waits for a limited time. Then its write ends with an error of unknown effect. Its slot
//! may be pending by then, and while the writer lives, only the writer takes a pending slot further
//! ([`crate::onesided`]). So a task continues the change in the background until the slot has its
//! final word, or until the change turns out never to have begun. Until then the words that the
//! change names stay held, so that sweeps do not free their records.
//!
//! A proxy that gives up a write does not know whether the next owner of the partition completes
//! it. Then no node knows which record was superseded, so the owner of the old record's block is
//! asked to sweep ([`Proxy::request_sweep`]).
//!
//! Invariants:
//! 1. A continued change acts within the partition's gate, and at the entry of the map under which
//!    it began. Once the partition changes, its next owner settles pending slots.
//! 2. A change of a partition's structure holds the slot's lock.
//! 3. A continued change swaps nothing, so a change that had not begun never begins.
//!
//! Thread-safety: each change has a task of its own.
//! Failure: a node that was declared dead stops, and its successor settles the slot. A block that
//! is gone or unreadable ends the task with a warning.
//! Cost: nothing without an error. After one, a READ in each lease until the change has ended.

use std::sync::Arc;

use archipelago_base::ErrorKind::{Fenced, NotFound, Unsupported};
use archipelago_base::{Error, Result};

use super::Proxy;
use super::served::ServedPartition;
use crate::format::{Slot, SlotIndex};
use crate::ids::PartitionId;
use crate::node::peers::Asked;
use crate::node::reclaim::Held;
use crate::protocol::{IndexProtocol as _, SlotChange, SlotOutcome};
use crate::table::Range;
use crate::wire::{Assigned, Message};

/// A change of a slot that ended with an error.
#[derive(Debug)]
pub(crate) struct Unfinished {
    pub(crate) entry: Assigned,
    pub(crate) change: SlotChange,
    /// The partition that is served here, and the slot, if the change is one of structure. `None`
    /// if it is an update by a client of this node.
    pub(crate) structure: Option<(Arc<ServedPartition>, SlotIndex)>,
}

enum Round {
    Ended(SlotOutcome),
    /// The slot is locked at the moment.
    Again,
    /// The partition was changed, so its next owner settles the slot.
    Over,
}

impl Proxy {
    /// Continues a change in the background for as long as it is this node's task. At the end the
    /// slot is not pending by this change. `held` are the words that the change names.
    pub(crate) fn finish_later(self: &Arc<Self>, unfinished: Unfinished, held: Vec<Held>) {
        if !self.node.table().protocol().finishes_abandoned_changes() {
            return;
        }
        let proxy = Arc::clone(self);
        let task = async move {
            let _held = held;
            loop {
                match proxy.finish_round(&unfinished).await {
                    Ok(Round::Ended(put)) => {
                        proxy.finished(&unfinished, put);
                        return;
                    }
                    Ok(Round::Over) => return,
                    Ok(Round::Again) => {}
                    Err(error) if matches!(error.kind(), NotFound | Unsupported | Fenced) => {
                        tracing::warn!(%error, "a half done write is left to the next change of its partition");
                        return;
                    }
                    Err(error) => tracing::debug!(%error, "a half-finished write continues"),
                }
                if proxy.node.pool().is_evicted() {
                    return;
                }
                proxy.node.runtime().sleep(proxy.node.settings().lease).await;
            }
        };
        self.node.runtime().spawn("flex-finish", Box::pin(task));
    }

    async fn finish_round(&self, unfinished: &Unfinished) -> Result<Round> {
        let Unfinished { entry, change, structure, .. } = unfinished;
        let (joined, partition) = (self.node.joined()?, PartitionId(entry.partition));
        let Some(_inside) = joined.gates().try_enter(partition) else { return Ok(Round::Over) };
        if joined.map().entries.get(partition.0 as usize) != Some(entry) {
            return Ok(Round::Over);
        }
        let locked = match structure {
            Some((served, index)) => {
                let Some(inside) = served.try_enter() else {
                    return Ok(Round::Over);
                };
                let Some(locked) = served.lock(*index) else { return Ok(Round::Again) };
                Some((inside, locked))
            }
            None => None,
        };
        let put = self.node.table().take_forward(*change, self.node.until_ns()).await?;
        drop(locked);
        Ok(Round::Ended(put))
    }

    fn finished(self: &Arc<Self>, unfinished: &Unfinished, put: SlotOutcome) {
        if put == SlotOutcome::Done {
            self.node.free_later(unfinished.change.old);
        }
        // If the new record was never in the index, its writer does not know that. A sweep finds
        // it.
        self.node.want_sweep();
    }

    /// Asks for a sweep after this node, a partition's proxy, gave up a write that may be on copies
    /// of the index. The next owner of the partition decides whether the write happened, and no
    /// node then knows that `old` was superseded. So this task waits until the partition has
    /// another epoch, and then asks the owner of the block in which `old` lies to sweep. If this
    /// node dies first, every node sweeps.
    pub(crate) fn request_sweep(self: &Arc<Self>, assigned: Assigned, old: Slot) {
        let Some(range) = self.node.table().record(old).filter(|_| old.is_live()) else { return };
        let proxy = Arc::clone(self);
        let task = async move {
            while !proxy.node.pool().is_evicted() {
                proxy.node.runtime().sleep(proxy.node.settings().lease).await;
                match proxy.has_requested_sweep(assigned, range).await {
                    Ok(false) => {}
                    Ok(true) => return,
                    Err(error) => {
                        if error.kind() == NotFound {
                            return;
                        }
                        tracing::debug!(%error, "a block's owner got no request to sweep yet");
                    }
                }
            }
        };
        self.node.runtime().spawn("flex-swept", Box::pin(task));
    }

    /// Whether the partition has another epoch, and the owner of the block got the request or is
    /// gone.
    async fn has_requested_sweep(
        self: &Arc<Self>,
        assigned: Assigned,
        range: Range,
    ) -> Result<bool> {
        let map = self.node.joined()?.map();
        let entry = map.entries.get(assigned.partition as usize);
        if entry.is_some_and(|entry| entry.epoch == assigned.epoch) {
            return Ok(false);
        }
        let owner = self.node.pool().locate(range.address.block).await?.owner;
        let owner = owner.ok_or_else(|| Error::busy("no owner"))?;
        if owner == self.node.client() {
            self.node.want_sweep();
            return Ok(true);
        }
        let Some(peer) = self.node.peer_of(owner) else {
            return self.node.pool().is_gone(owner).await;
        };
        let answer = self.node.ask_once(&peer, &mut Asked::new(&Message::Sweep {})).await?;
        Ok(matches!(answer, Some(Message::Done {})))
    }
}
