//! The one-sided path: how a client changes a slot of a partition without a proxy.
//!
//! [Decision 0017] has the reasons. A change is one swap, on the first copy, and some WRITEs:
//!
//! 1. The new record is on all its copies, and names the slot's former word.
//! 2. The slot's first copy is swapped from the old word to the new one, marked **pending**. A
//!    client whose swap succeeds has the slot to itself. A client whose swap fails has lost, and
//!    looks again. Meanwhile the valid bit of the old record is cleared on all copies.
//! 3. The final word is written to the other copies.
//! 4. The final word is written to the first copy. This is the commit point.
//!
//! A deletion has no record. While it is in progress its slot is **dying**: the slot keeps the old
//! word with one bit more. Steps 2 to 4 then use that word in place of the pending one. Readers
//! take a dying slot for what its record says.
//!
//! Readers take a pending slot for what its record names as the former word. So nothing is visible
//! that is not on all copies, and nothing is visible while a cached address of the old record still
//! passes for valid.
//!
//! Thread-safety: any thread may change slots.
//! Failure: all operations of a turn use one opening of the block. When one is refused, the block
//! is opened again, after which no late operation takes effect. The slot's first copy then shows
//! how far the change has come. A pending word means to go on, and the final word means that the
//! change is done. If the copy has the old word, it is a new first copy without the swap, and the
//! change begins again. Another word means that the change was superseded, if the new record has
//! lost its valid bit, and that it lost otherwise. Copies are equal when an epoch of the block
//! begins. A writer that dies leaves a pending slot. Once it is evicted, the partition's node
//! settles the slot ([`Table::settled`]). A writer that runs out of time continues in the
//! background (`proxy/unfinished.rs`).
//! Cost: three round trips after that of the record, and one swap. The paper (§4.5) leaves this
//! path to FUSEE, which swaps every copy.
//!
//! [Decision 0017]: ../../../../docs/decisions/0017-flexkv-one-sided-slot-updates.md

#[cfg(feature = "index-protocol")]
mod access;

use std::sync::Arc;

use archipelago_base::Result;
use archipelago_fabric::{Batch, Refusal};
use archipelago_pool::OpenBlock;

use crate::format::{INVALID_WORD, Slot};
use crate::protocol::{SlotChange, SlotOutcome};
use crate::table::{Range, Table};
use crate::write_error::WriteError;

enum Step {
    Swap,
    Look,
    Finish,
}

impl Table {
    /// Changes a slot. Until `valid_ns` the slot's word names the record that the caller saw, and
    /// no swap begins later. After an error of unknown effect the slot may be pending
    /// (`proxy/unfinished.rs`).
    pub(crate) async fn put(
        &self,
        change: SlotChange,
        valid_ns: u64,
        until_ns: u64,
    ) -> Result<SlotOutcome, WriteError> {
        let unknown = WriteError::of_unknown_effect;
        #[cfg(feature = "index-protocol")]
        if let Some(changing) = self.protocol().change_slot(self, change, until_ns) {
            return changing.await.map_err(unknown);
        }
        let mut begun = false;
        let put = self.put_from(Step::Swap, change, valid_ns, until_ns, &mut begun).await;
        // Without a swap there is nothing that could be committed.
        put.map_err(if begun { unknown } else { WriteError::without_effect })
    }

    /// Continues a change that ended with an error. A change that did not reach its swap is lost.
    pub(crate) async fn take_forward(
        &self,
        change: SlotChange,
        until_ns: u64,
    ) -> Result<SlotOutcome> {
        if Slot(self.word(change.slot, until_ns).await?) == change.under_way() {
            // The change may have failed at this step.
            self.invalidate(change.old, until_ns).await?;
        }
        self.put_from(Step::Look, change, 0, until_ns, &mut true).await
    }

    async fn put_from(
        &self,
        mut step: Step,
        change: SlotChange,
        valid_ns: u64,
        until_ns: u64,
        begun: &mut bool,
    ) -> Result<SlotOutcome> {
        let pending = change.under_way();
        loop {
            let open = self.open_writable(change.slot).await?;
            if matches!(step, Step::Swap) && self.now_ns() >= valid_ns {
                return Ok(SlotOutcome::Lost(change.old));
            }
            *begun |= matches!(step, Step::Swap);
            let refused = match step {
                Step::Swap => match self.lock(&open, change, pending, until_ns).await? {
                    Ok(was) if was == change.old || was == pending => {
                        match self.finish(&open, change).await {
                            Ok(()) => return Ok(SlotOutcome::Done),
                            Err(refusal) => refusal,
                        }
                    }
                    Ok(was) => return Ok(SlotOutcome::Lost(was)),
                    Err(refusal) => refusal,
                },
                Step::Finish => match self.finish(&open, change).await {
                    Ok(()) => return Ok(SlotOutcome::Done),
                    Err(refusal) => refusal,
                },
                Step::Look => {
                    let word = Slot(self.word(change.slot, until_ns).await?);
                    // The slot may be dying by now. Then its deleter saw the change committed.
                    if word.undying() == change.end {
                        return Ok(SlotOutcome::Done);
                    }
                    step = if word == pending {
                        Step::Finish
                    } else if word == change.old {
                        Step::Swap
                    } else if self.was_superseded(change.new, until_ns).await? {
                        return Ok(SlotOutcome::Done);
                    } else {
                        return Ok(SlotOutcome::Lost(word));
                    };
                    continue;
                }
            };
            self.again(&open, refused, until_ns).await?;
            step = Step::Look;
        }
    }

    /// Performs step 2.
    async fn lock(
        &self,
        open: &Arc<OpenBlock>,
        change: SlotChange,
        pending: Slot,
        until_ns: u64,
    ) -> Result<Result<Slot, Refusal>> {
        let Some(copy) = open.copies.first() else { return Ok(Ok(Slot::EMPTY)) };
        let mut batch = Batch::new();
        let word = batch.compare_swap(copy.region, change.slot.offset, change.old.0, pending.0);
        let swapping = copy.link.post(batch);
        copy.link.flush();
        // Harmless if the swap fails, because the old record is already superseded then.
        let invalidated = self.invalidate(change.old, until_ns).await;
        let batch = swapping.await;
        invalidated?;
        Ok(match (batch.refusal(), batch.word(word)) {
            (None, Some(was)) => Ok(Slot(was)),
            (Some((_, refusal)), _) => Err(refusal),
            (None, None) => Err(Refusal::new(archipelago_fabric::Reason::Protocol)),
        })
    }

    /// Performs steps 3 and 4 while the slot is pending.
    async fn finish(&self, open: &Arc<OpenBlock>, change: SlotChange) -> Result<(), Refusal> {
        let end = change.end.0.to_le_bytes();
        if !self.sabotage().early_commit() {
            open.post_write_from(1, change.slot.offset, &end).await?;
        }
        let Some(copy) = open.copies.first() else { return Ok(()) };
        let mut batch = Batch::new();
        batch.write(copy.region, change.slot.offset, &end);
        let writing = copy.link.post(batch);
        copy.link.flush();
        let batch = writing.await;
        batch.refusal().map_or(Ok(()), |(_, refusal)| Err(refusal))
    }

    /// Whether a record of this node was in the index and was superseded. Only the node that
    /// supersedes it clears its valid bit. Ask this after the slot was seen to hold another word.
    pub(crate) async fn was_superseded(&self, new: Slot, until_ns: u64) -> Result<bool> {
        let Some(Range { address, .. }) = self.record(new) else { return Ok(false) };
        Ok(self.word(address, until_ns).await? == INVALID_WORD)
    }
}
