//! The answers of the rivals to the questions of the store.
//!
//! All rivals are measured as published. They combine no writes, delegate nothing, cache no pair
//! that answers immediately, read records from the first copy, and clear the valid bit of every
//! superseded record.
//!
//! Thread-safety: any thread may ask; one lock guards the overtaken words. Failure: none. Cost: a
//! change of a slot by FUSEE takes that lock if another writer wins.

use std::collections::HashSet;

use archipelago_base::Result;
use archipelago_base::runtime::Boxed;
use archipelago_flexkv::format::Slot;
use archipelago_flexkv::{IndexProtocol, SlotAccess, SlotChange, SlotOutcome};
use parking_lot::Mutex;

use crate::{Rival, swap};

/// The index protocol of a rival's nodes, and of its coordinator.
#[derive(Debug)]
pub struct RivalProtocol {
    rival: Rival,
    /// Words of updates by FUSEE that took part in a conflict and were superseded by its winner.
    overtaken: Mutex<HashSet<u64>>,
}

impl RivalProtocol {
    /// The protocol of `rival`, for one node or for a coordinator.
    #[must_use]
    pub fn new(rival: Rival) -> Self {
        Self { rival, overtaken: Mutex::default() }
    }

    async fn swap_all_copies(
        &self,
        slots: &dyn SlotAccess,
        change: SlotChange,
        until_ns: u64,
    ) -> Result<SlotOutcome> {
        let swapped = swap::all_copies(slots, change, until_ns).await?;
        // The node of the partition makes the other changes, and its client begins again.
        let is_update = change.old.is_live() && change.new.is_live();
        if swapped.is_overtaken && is_update {
            self.overtaken.lock().insert(change.new.0);
        }
        Ok(swapped.outcome)
    }
}

impl IndexProtocol for RivalProtocol {
    fn combines_writes(&self) -> bool {
        false
    }

    fn delegates_contended_sets(&self) -> bool {
        false
    }

    fn has_fast_path(&self) -> bool {
        false
    }

    fn serves_pairs_immediately(&self) -> bool {
        false
    }

    /// FUSEE saves a round trip if the cached address is old, at the price of two READs each time.
    fn reads_buckets_with_record(&self) -> bool {
        self.rival == Rival::Fusee
    }

    fn looks_up_at_proxy(&self) -> bool {
        false
    }

    fn hides_index_at_proxy(&self) -> bool {
        self.rival == Rival::Clover
    }

    fn writes_index_copies(&self) -> bool {
        self.rival != Rival::Clover
    }

    fn clears_every_valid_bit(&self) -> bool {
        true
    }

    fn caches_slots_for_writes(&self) -> bool {
        false
    }

    fn reads_first_copy_only(&self) -> bool {
        true
    }

    fn change_slot<'a>(
        &'a self,
        slots: &'a dyn SlotAccess,
        change: SlotChange,
        until_ns: u64,
    ) -> Option<Boxed<'a, Result<SlotOutcome>>> {
        match self.rival {
            Rival::Base => Some(Box::pin(swap::one_copy(slots, change, until_ns))),
            Rival::Fusee => Some(Box::pin(self.swap_all_copies(slots, change, until_ns))),
            Rival::Clover | Rival::Ownership => None,
        }
    }

    fn is_written(&self, new: Slot) -> bool {
        self.rival == Rival::Fusee && self.overtaken.lock().remove(&new.0)
    }

    fn finishes_abandoned_changes(&self) -> bool {
        false
    }

    fn may_hold_partitions(&self, position: usize) -> bool {
        self.rival != Rival::Clover || position == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIVALS: [Rival; 4] = [Rival::Base, Rival::Fusee, Rival::Clover, Rival::Ownership];

    #[test]
    fn overtaken_update_counts_as_written_once() {
        let word = Slot(7);
        for rival in RIVALS {
            let protocol = RivalProtocol::new(rival);
            assert!(!protocol.is_written(word), "{rival:?}");
            protocol.overtaken.lock().insert(word.0);
            assert_eq!(protocol.is_written(word), rival == Rival::Fusee);
            assert!(!protocol.is_written(word), "{rival:?}");
        }
    }

    #[test]
    fn only_a_metadata_server_holds_the_whole_index() {
        for rival in RIVALS {
            let (protocol, serves) = (RivalProtocol::new(rival), rival == Rival::Clover);
            assert!(protocol.may_hold_partitions(0));
            assert_eq!(protocol.may_hold_partitions(1), !serves);
            assert_eq!(protocol.hides_index_at_proxy(), serves);
            assert_eq!(protocol.writes_index_copies(), !serves);
        }
    }

    #[test]
    fn no_rival_has_a_shortcut_of_the_product() {
        for rival in RIVALS {
            let protocol = RivalProtocol::new(rival);
            assert!(!protocol.has_fast_path() && !protocol.serves_pairs_immediately());
            assert!(!protocol.combines_writes() && !protocol.delegates_contended_sets());
        }
    }
}
