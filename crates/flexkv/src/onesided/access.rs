//! The operations that a protocol other than the product's may use to change slots.
//!
//! The table of a node implements [`SlotAccess`]. Each operation is one of the table's own, so it
//! has the same retries, and the same errors.

use std::sync::Arc;

use archipelago_base::Result;
use archipelago_base::runtime::Boxed;
use archipelago_pool::{Address, OpenBlock};

use crate::format::Slot;
use crate::protocol::{SlotAccess, SlotChange, SlotOutcome};
use crate::table::{Swapped, Table};

impl SlotAccess for Table {
    fn open_writable(&self, slot: Address) -> Boxed<'_, Result<Arc<OpenBlock>>> {
        Box::pin(self.open_writable(slot))
    }

    fn clear_valid_bit(&self, record: Slot, until_ns: u64) -> Boxed<'_, Result<()>> {
        Box::pin(self.invalidate(record, until_ns))
    }

    fn swap_first_copy(&self, change: SlotChange, until_ns: u64) -> Boxed<'_, Result<SlotOutcome>> {
        Box::pin(async move {
            match self.swap(change.slot, change.old.0, change.end.0, until_ns).await? {
                Swapped::Found(was) if was == change.old.0 => Ok(SlotOutcome::Done),
                Swapped::Found(was) => Ok(SlotOutcome::Lost(Slot(was))),
                Swapped::Unknown => Ok(SlotOutcome::Lost(change.old)),
            }
        })
    }

    fn first_copy(&self, slot: Address, until_ns: u64) -> Boxed<'_, Result<Slot>> {
        Box::pin(async move { Ok(Slot(self.word(slot, until_ns).await?)) })
    }

    fn check_patience(&self, until_ns: u64, task: &str) -> Result<()> {
        self.late(until_ns, task)
    }
}
