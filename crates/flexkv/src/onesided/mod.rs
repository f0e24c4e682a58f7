//! The one-sided path: how a slot of a partition without a proxy is changed, by who wants to change
//! it.
//!
//! Decision 0016. One swap, on the first copy, and WRITEs:
//!
//! 1. The new record is on all its copies; it names the slot's word before.
//! 2. Swap of the slot's first copy from the old word to the new one, **pending**. Who succeeds has
//!    the slot to itself; who does not has lost, and looks again. Meanwhile the old record's valid
//!    bit is cleared on all copies.
//! 3. WRITE of the final word to the other copies.
//! 4. WRITE of the final word to the first copy: the commit point.
//!
//! A deletion has no record: its slot is **dying** while it is under way, which keeps the old word
//! and adds a bit, and 2 to 4 go on as above with that word in place of the pending one. Readers
//! take a dying slot for what its record says.
//!
//! Readers take a pending slot for what its record names as the word before. So nothing is visible
//! that is not on all copies, and nothing is visible while a cached address of the old record still
//! passes for valid.
//!
//! **Failure.** All operations of a turn go over one opening of the block. When one is refused, the
//! block is opened again, after which nothing late takes place, and the slot's first copy tells how
//! far it is: still pending (go on), final (done), the old word (a new first copy never had the
//! swap: begin again), another one (superseded if somebody cleared the new record's valid bit, lost
//! if not). Copies are equal when an epoch of the block begins. A writer that dies leaves a pending
//! slot: once it is evicted, the partition's node takes it forward ([`Table::settled`]). One that
//! has no time left goes on behind its caller's back (`proxy/unfinished.rs`).
//!
//! Cost: three round trips behind the record's, one swap. The paper (§4.5) leaves this path to
//! FUSEE, which swaps every copy.

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
    /// Changes a slot. `valid_ns`: until when what it was seen to hold names the same record; no
    /// swap is begun later. After an error of unknown effect the slot may be pending:
    /// [`Inner::finish_later`](crate::node::Inner::finish_later).
    pub(crate) async fn put(
        &self,
        change: SlotChange,
        valid_ns: u64,
        until_ns: u64,
    ) -> Result<SlotOutcome, WriteError> {
        let unknown = WriteError::of_unknown_effect;
        #[cfg(feature = "index-protocol")]
        if let Some(changing) = self.protocol.change_slot(self, change, until_ns) {
            return changing.await.map_err(unknown);
        }
        let mut begun = false;
        let put = self.put_from(Step::Swap, change, valid_ns, until_ns, &mut begun).await;
        // Without a swap nothing is there that could be committed.
        put.map_err(if begun { unknown } else { WriteError::without_effect })
    }

    /// Goes on with a change that ended with an error; one that did not get as far as its swap is
    /// lost.
    pub(crate) async fn take_forward(
        &self,
        change: SlotChange,
        until_ns: u64,
    ) -> Result<SlotOutcome> {
        if Slot(self.word(change.slot, until_ns).await?) == change.under_way() {
            // It may have failed at this.
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
                    // It may be dying by now: who deletes it saw it committed.
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

    /// Step 2.
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
        // Harmless if the swap fails: then the old record is superseded already.
        let invalidated = self.invalidate(change.old, until_ns).await;
        let batch = swapping.await;
        invalidated?;
        Ok(match (batch.refusal(), batch.word(word)) {
            (None, Some(was)) => Ok(Slot(was)),
            (Some((_, refusal)), _) => Err(refusal),
            (None, None) => Err(Refusal::new(archipelago_fabric::Reason::Protocol)),
        })
    }

    /// Steps 3 and 4, while the slot is pending.
    async fn finish(&self, open: &Arc<OpenBlock>, change: SlotChange) -> Result<(), Refusal> {
        let end = change.end.0.to_le_bytes();
        if !self.sabotage.early_commit() {
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

    /// Whether a record of this node's was in the index and is no more: only who supersedes it
    /// clears its valid bit. To be asked after the slot was seen to hold something else.
    pub(crate) async fn was_superseded(&self, new: Slot, until_ns: u64) -> Result<bool> {
        let Some(Range { address, .. }) = self.record(new) else { return Ok(false) };
        Ok(self.word(address, until_ns).await? == INVALID_WORD)
    }
}
