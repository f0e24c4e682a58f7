//! The index protocol: how a node reads and changes the index, as one trait.
//!
//! The store asks these questions at the steps whose answer differs between published protocols.
//! The product has one protocol, [`FlexKvProtocol`]. Its answers are constants, so the compiler
//! removes every branch on them. The package `archipelago-flexkv-rivals` turns on the cargo feature
//! `index-protocol`, which publishes the trait, and measures other protocols in its tests and in
//! the laboratory. Nothing else may turn the feature on, because a protocol other than the
//! product's survives no failures.
//!
//! Invariants:
//! 1. A node keeps its protocol for its whole life.
//! 2. The answers of a protocol, except [`IndexProtocol::is_written`], never change.
//!
//! Thread-safety: any thread may ask.
//! Failure: a question has no failure; a change of a slot ends with an error whose effect is
//! unknown.
//! Cost: nothing in the product. With the feature, a virtual call for each question, and an
//! allocation for each change of a slot.

use std::fmt;
#[cfg(feature = "index-protocol")]
use std::sync::Arc;

#[cfg(feature = "index-protocol")]
use archipelago_base::Result;
#[cfg(feature = "index-protocol")]
use archipelago_base::runtime::Boxed;
use archipelago_pool::Address;
#[cfg(feature = "index-protocol")]
use archipelago_pool::OpenBlock;

use crate::format::Slot;

/// The protocol of a node: a type without size in the product.
#[cfg(not(feature = "index-protocol"))]
pub(crate) type Protocol = FlexKvProtocol;
/// The protocol of a node: any implementation of the trait.
#[cfg(feature = "index-protocol")]
pub(crate) type Protocol = Arc<dyn IndexProtocol>;

/// The protocol of the product.
#[cfg(not(feature = "index-protocol"))]
pub(crate) fn of_product() -> Protocol {
    FlexKvProtocol
}

/// The protocol of the product.
#[cfg(feature = "index-protocol")]
pub(crate) fn of_product() -> Protocol {
    Arc::new(FlexKvProtocol)
}

/// A change of one slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotChange {
    /// Address of the slot.
    pub slot: Address,
    /// Word that the slot holds before the change.
    pub old: Slot,
    /// Word that names the new record; [`Slot::EMPTY`] if the change is a deletion.
    pub new: Slot,
    /// Word that the slot holds after the change.
    pub end: Slot,
}

impl SlotChange {
    /// The word of the first copy while the change is under way.
    pub(crate) fn under_way(&self) -> Slot {
        if self.new.is_live() { self.new.to_pending() } else { self.old.to_dying() }
    }
}

/// Outcome of a change of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotOutcome {
    /// The change is committed. Another write may have superseded it since.
    Done,
    /// The slot holds this word instead of the old one, and the change has no effect.
    Lost(Slot),
}

/// Operations of a protocol on the copies of the index.
#[cfg(feature = "index-protocol")]
pub trait SlotAccess: fmt::Debug + Send + Sync {
    /// Opens the block of a slot for writes, at its present epoch.
    fn open_writable(&self, slot: Address) -> Boxed<'_, Result<Arc<OpenBlock>>>;

    /// Clears the valid bit of the record that `record` names, on all copies.
    fn clear_valid_bit(&self, record: Slot, until_ns: u64) -> Boxed<'_, Result<()>>;

    /// Swaps the slot's first copy from the old word to the last one of the change.
    fn swap_first_copy(&self, change: SlotChange, until_ns: u64) -> Boxed<'_, Result<SlotOutcome>>;

    /// The word in the slot's first copy.
    fn first_copy(&self, slot: Address, until_ns: u64) -> Boxed<'_, Result<Slot>>;

    /// An error if `until_ns` has passed, or if this node was evicted from the pool.
    fn check_patience(&self, until_ns: u64, task: &str) -> Result<()>;
}

/// Rules by which a node reads and changes the index: one method for each question of the store.
pub trait IndexProtocol: fmt::Debug + Send + Sync + 'static {
    /// Whether a node combines the writes of one key by its own clients.
    fn combines_writes(&self) -> bool;

    /// Whether the proxy of a contended key executes the sets of other nodes.
    fn delegates_contended_sets(&self) -> bool;

    /// Whether reads and sets may be executed without a task, from cached pairs and slots.
    fn has_fast_path(&self) -> bool;

    /// Whether a cached pair may answer a read without a task.
    fn serves_pairs_immediately(&self) -> bool;

    /// Whether a read by a cached address also reads the buckets of the index.
    fn reads_buckets_with_record(&self) -> bool;

    /// Whether writers and scans look up the slots of a proxied partition at the proxy.
    fn looks_up_at_proxy(&self) -> bool;

    /// Whether the proxy alone holds the index, so that no node looks it up in the pool.
    fn hides_index_at_proxy(&self) -> bool;

    /// Whether a proxy writes new words to the copies of the index in the pool.
    fn writes_index_copies(&self) -> bool;

    /// Whether a proxy clears the valid bit of every superseded record, even if no node knows its
    /// address.
    fn clears_every_valid_bit(&self) -> bool;

    /// Whether a writer may cache the slot of its record without the right to read by it.
    fn caches_slots_for_writes(&self) -> bool;

    /// Whether readers read records from the first copy only, not from all copies in turn.
    fn reads_first_copy_only(&self) -> bool;

    /// Changes a slot of a partition without a proxy, without the pending word of the product.
    /// `None` means that the protocol changes slots as the product does.
    #[cfg(feature = "index-protocol")]
    fn change_slot<'a>(
        &'a self,
        slots: &'a dyn SlotAccess,
        change: SlotChange,
        until_ns: u64,
    ) -> Option<Boxed<'a, Result<SlotOutcome>>>;

    /// Whether an update that lost its slot counts as written nevertheless, because the winner of
    /// the slot superseded it. `new` is the word of the update.
    fn is_written(&self, new: Slot) -> bool;

    /// Whether a node continues a change that its caller gave up.
    fn finishes_abandoned_changes(&self) -> bool;

    /// Whether the coordinator assigns partitions to the living node of this position, counted from
    /// 0 in the order of node numbers.
    fn may_hold_partitions(&self, position: usize) -> bool;
}

#[cfg(feature = "index-protocol")]
macro_rules! forward {
    ($($question:ident($($argument:ident: $type:ty)?)),* $(,)?) => {
        $(fn $question(&self $(, $argument: $type)?) -> bool {
            (**self).$question($($argument)?)
        })*
    };
}

/// A shared protocol gives the answers of the protocol itself.
#[cfg(feature = "index-protocol")]
impl IndexProtocol for Arc<dyn IndexProtocol> {
    forward!(
        combines_writes(),
        delegates_contended_sets(),
        has_fast_path(),
        serves_pairs_immediately(),
        reads_buckets_with_record(),
        looks_up_at_proxy(),
        hides_index_at_proxy(),
        writes_index_copies(),
        clears_every_valid_bit(),
        caches_slots_for_writes(),
        reads_first_copy_only(),
        is_written(new: Slot),
        finishes_abandoned_changes(),
        may_hold_partitions(position: usize),
    );

    fn change_slot<'a>(
        &'a self,
        slots: &'a dyn SlotAccess,
        change: SlotChange,
        until_ns: u64,
    ) -> Option<Boxed<'a, Result<SlotOutcome>>> {
        (**self).change_slot(slots, change, until_ns)
    }
}

/// The protocol of the product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlexKvProtocol;

impl IndexProtocol for FlexKvProtocol {
    #[inline]
    fn combines_writes(&self) -> bool {
        true
    }

    #[inline]
    fn delegates_contended_sets(&self) -> bool {
        true
    }

    #[inline]
    fn has_fast_path(&self) -> bool {
        true
    }

    #[inline]
    fn serves_pairs_immediately(&self) -> bool {
        true
    }

    #[inline]
    fn reads_buckets_with_record(&self) -> bool {
        false
    }

    #[inline]
    fn looks_up_at_proxy(&self) -> bool {
        true
    }

    #[inline]
    fn hides_index_at_proxy(&self) -> bool {
        false
    }

    #[inline]
    fn writes_index_copies(&self) -> bool {
        true
    }

    #[inline]
    fn clears_every_valid_bit(&self) -> bool {
        false
    }

    #[inline]
    fn caches_slots_for_writes(&self) -> bool {
        true
    }

    #[inline]
    fn reads_first_copy_only(&self) -> bool {
        false
    }

    #[cfg(feature = "index-protocol")]
    fn change_slot<'a>(
        &'a self,
        _slots: &'a dyn SlotAccess,
        _change: SlotChange,
        _until_ns: u64,
    ) -> Option<Boxed<'a, Result<SlotOutcome>>> {
        None
    }

    #[inline]
    fn is_written(&self, _new: Slot) -> bool {
        false
    }

    #[inline]
    fn finishes_abandoned_changes(&self) -> bool {
        true
    }

    #[inline]
    fn may_hold_partitions(&self, _position: usize) -> bool {
        true
    }
}
