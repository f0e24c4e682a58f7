//! How rivals change a slot one-sided.

use archipelago_base::Result;
use archipelago_fabric::{Batch, Promise};

use crate::format::Slot;
use crate::onesided::{Change, Put};
use crate::table::{Swapped, Table};

impl Table {
    /// One swap, on the first copy; the old record loses its valid bit beside it.
    pub(crate) async fn put_on_one(&self, change: Change, until_ns: u64) -> Result<Put> {
        self.invalidate(change.old, until_ns).await?;
        match self.swap(change.slot, change.old.0, change.end.0, until_ns).await? {
            Swapped::Was(was) if was == change.old.0 => Ok(Put::Done),
            Swapped::Was(was) => Ok(Put::Lost(Slot(was))),
            Swapped::Unknown => Ok(Put::Lost(change.old)),
        }
    }

    /// A swap on every copy, after SNAPSHOT (FUSEE, FAST '23): those behind the first decide who
    /// writes, who has them all or most, or the smallest word where nobody has most; it then swaps
    /// the first. Who does not write waits until somebody has, and counts as having written before
    /// that.
    pub(crate) async fn put_on_all(&self, change: Change, until_ns: u64) -> Result<Put> {
        let open = self.open_writable(change.slot).await?;
        let mut swaps: Vec<Promise<Batch>> = Vec::new();
        for copy in open.copies.iter().skip(1) {
            let mut batch = Batch::new();
            batch.compare_swap(copy.region, change.slot.offset, change.old.0, change.end.0);
            swaps.push(copy.link.post(batch));
            copy.link.flush();
        }
        // Harmless if another writes: the old record is superseded in any case.
        self.invalidate(change.old, until_ns).await?;
        let mut found = Vec::new();
        for swap in swaps {
            let batch = swap.await;
            batch.check()?;
            let was = batch.word(0).unwrap_or_default();
            found.push(if was == change.old.0 { change.end.0 } else { was });
        }
        let mine = found.iter().filter(|word| **word == change.end.0).count();
        let others = found.len() - mine;
        if others > mine
            || (others == mine && found.iter().min() != Some(&change.end.0)) && others > 0
        {
            return self.after_others(change, mine, until_ns).await;
        }
        for (copy, word) in open.copies.iter().skip(1).zip(&found) {
            if *word != change.end.0 {
                let mut batch = Batch::new();
                batch.compare_swap(copy.region, change.slot.offset, *word, change.end.0);
                copy.link.post(batch).await.check()?;
            }
        }
        match self.swap(change.slot, change.old.0, change.end.0, until_ns).await? {
            Swapped::Was(was) if was == change.old.0 => Ok(Put::Done),
            Swapped::Was(was) => Ok(Put::Lost(Slot(was))),
            Swapped::Unknown => Ok(Put::Lost(change.old)),
        }
    }

    /// Somebody else writes the slot: waits until the first copy says so.
    async fn after_others(&self, change: Change, mine: usize, until_ns: u64) -> Result<Put> {
        loop {
            let word = self.word(change.slot, until_ns).await?;
            if word != change.old.0 {
                // Superseded at once, if it took part; else it began from a word that was old.
                return Ok(if mine > 0 { Put::Superseded } else { Put::Lost(Slot(word)) });
            }
            self.late(until_ns, "a slot that another writer does not leave")?;
        }
    }
}
