//! One-sided changes of a slot without a pending word: on one copy, and on every copy.
//!
//! The functions post one-sided operations and keep no state. An error leaves the effect of the
//! change unknown.

use archipelago_base::Result;
use archipelago_fabric::{Batch, Promise};
use archipelago_flexkv::{SlotAccess, SlotChange, SlotOutcome};

/// Outcome of a swap on every copy.
pub(crate) struct SwappedCopies {
    pub(crate) outcome: SlotOutcome,
    /// Whether the winner of the slot superseded this change, which had reached some copies.
    pub(crate) is_overtaken: bool,
}

impl SwappedCopies {
    fn of(outcome: SlotOutcome) -> Self {
        Self { outcome, is_overtaken: false }
    }
}

/// One swap, on the first copy. The old record loses its valid bit before.
pub(crate) async fn one_copy(
    slots: &dyn SlotAccess,
    change: SlotChange,
    until_ns: u64,
) -> Result<SlotOutcome> {
    slots.clear_valid_bit(change.old, until_ns).await?;
    slots.swap_first_copy(change, until_ns).await
}

/// A swap on every copy, after SNAPSHOT (FUSEE, FAST '23).
///
/// The copies after the first decide which writer wins: the one whose word is on all or on most of
/// them, or the one with the smallest word if none has most. The winner then swaps the first copy.
/// The other writers wait until the first copy has changed. Their changes count as written before
/// the winner's.
pub(crate) async fn all_copies(
    slots: &dyn SlotAccess,
    change: SlotChange,
    until_ns: u64,
) -> Result<SwappedCopies> {
    let (old, end) = (change.old.0, change.end.0);
    let open = slots.open_writable(change.slot).await?;
    let mut swaps: Vec<Promise<Batch>> = Vec::new();
    for copy in open.copies.iter().skip(1) {
        let mut batch = Batch::new();
        batch.compare_swap(copy.region, change.slot.offset, old, end);
        swaps.push(copy.link.post(batch));
        copy.link.flush();
    }
    // Harmless if another writer wins, because the old record is superseded in any case.
    slots.clear_valid_bit(change.old, until_ns).await?;
    let mut found = Vec::new();
    for swap in swaps {
        let batch = swap.await;
        batch.check()?;
        let was = batch.word(0).unwrap_or_default();
        found.push(if was == old { end } else { was });
    }
    let mine = found.iter().filter(|word| **word == end).count();
    let others = found.len() - mine;
    let is_smallest = found.iter().min() == Some(&end);
    if others > mine || (others == mine && others > 0 && !is_smallest) {
        return await_winner(slots, change, mine > 0, until_ns).await;
    }
    for (copy, word) in open.copies.iter().skip(1).zip(&found) {
        if *word != end {
            let mut batch = Batch::new();
            batch.compare_swap(copy.region, change.slot.offset, *word, end);
            copy.link.post(batch).await.check()?;
        }
    }
    slots.swap_first_copy(change, until_ns).await.map(SwappedCopies::of)
}

/// Waits until the winner has changed the first copy. A change that reached no copy began with an
/// old word and has no effect.
async fn await_winner(
    slots: &dyn SlotAccess,
    change: SlotChange,
    is_overtaken: bool,
    until_ns: u64,
) -> Result<SwappedCopies> {
    loop {
        let word = slots.first_copy(change.slot, until_ns).await?;
        if word != change.old {
            return Ok(SwappedCopies { outcome: SlotOutcome::Lost(word), is_overtaken });
        }
        slots.check_patience(until_ns, "a slot that another writer does not leave")?;
    }
}
