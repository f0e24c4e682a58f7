//! Changes of slots that were given up half done: they go on behind their caller's back.
//!
//! A caller has patience for so long, and is then told that nobody knows whether its write
//! happened. By that time the slot may be pending, and only its writer takes it further while that
//! lives ([`crate::onesided`]). So it does: until the slot has its final word or the change turns
//! out never to have begun. What the change names stays held meanwhile, for sweeps.
//!
//! Invariants: 1. it acts within the partition's door, at the entry of the map that the change was
//! begun under: once the partition is changed, whoever changes it takes pending slots forward; 2.
//! of a partition's structure it acts with the slot's lock, as the change did; 3. it swaps nothing:
//! a change that had not begun never does. Failure: who is taken for dead stops, and its successor
//! settles the slot; so does, with a warning, who finds the block gone or unreadable. Cost: nothing
//! but after an error, then a READ in each lease until it is done.

use std::sync::Arc;

use archipelago_base::ErrorKind::{Fenced, NotFound, Unsupported};
use archipelago_base::Result;

use crate::format::SlotIndex;
use crate::ids::PartitionId;
use crate::node::Inner;
use crate::node::reclaim::Held;
use crate::protocol::{IndexProtocol as _, SlotChange, SlotOutcome};
use crate::proxy::Served;
use crate::wire::Assigned;

/// A change that ended with an error.
#[derive(Debug)]
pub(crate) struct Unfinished {
    pub(crate) entry: Assigned,
    pub(crate) change: SlotChange,
    /// The partition as it is served here and the slot, if it is a change of structure; otherwise
    /// it is this node's own update.
    pub(crate) structure: Option<(Arc<Served>, SlotIndex)>,
}

enum Round {
    Ended(SlotOutcome),
    /// Not now.
    Again,
    /// The partition is somebody else's task.
    Over,
}

impl Inner {
    /// Takes a change forward, for as long as it is this node's task. After it the slot is not
    /// pending by this change. `held`: the words that it names.
    pub(crate) fn finish_later(self: &Arc<Self>, unfinished: Unfinished, held: Vec<Held>) {
        if !self.table.protocol.finishes_abandoned_changes() {
            return;
        }
        let inner = Arc::clone(self);
        let task = async move {
            let _held = held;
            loop {
                match inner.finish_round(&unfinished).await {
                    Ok(Round::Ended(put)) => {
                        inner.finished(&unfinished, put);
                        return;
                    }
                    Ok(Round::Over) => return,
                    Ok(Round::Again) => {}
                    Err(error) if matches!(error.kind(), NotFound | Unsupported | Fenced) => {
                        tracing::warn!(%error, "a half done write is left to the next change of its partition");
                        return;
                    }
                    Err(error) => tracing::debug!(%error, "a half done write goes on"),
                }
                if inner.pool.is_evicted() {
                    return;
                }
                inner.runtime.sleep(inner.settings.lease).await;
            }
        };
        self.runtime.spawn("flex-finish", Box::pin(task));
    }

    async fn finish_round(&self, unfinished: &Unfinished) -> Result<Round> {
        let Unfinished { entry, change, structure, .. } = unfinished;
        let (joined, partition) = (self.joined()?, PartitionId(entry.partition));
        let Some(_inside) = joined.gates.try_enter(partition) else { return Ok(Round::Over) };
        if joined.map.read().entries.get(partition.0 as usize) != Some(entry) {
            return Ok(Round::Over);
        }
        let locked = match structure {
            Some((served, index)) => {
                let Some(inside) = served.gate.try_enter(Served::DOOR) else {
                    return Ok(Round::Over);
                };
                let Some(locked) = served.lock(*index) else { return Ok(Round::Again) };
                Some((inside, locked))
            }
            None => None,
        };
        let put = self.table.take_forward(*change, self.until_ns()).await?;
        drop(locked);
        Ok(Round::Ended(put))
    }

    fn finished(self: &Arc<Self>, unfinished: &Unfinished, put: SlotOutcome) {
        if put == SlotOutcome::Done {
            self.free_later(unfinished.change.old);
        }
        // What was never in the index is its writer's, who was told nothing: the sweep finds it.
        self.want_sweep();
    }
}
