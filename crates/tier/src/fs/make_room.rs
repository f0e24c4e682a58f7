//! Room for files that grow: copies are dropped to free it.
//!
//! Copies may take the room that files leave on a device, except for a reserve
//! (`Policy::force_below`). If a table grows into the reserve, the writer drops the coldest copies
//! until the reserve is free again, in the order that the last iteration of the control loop found.
//! So the device does not fill up between two iterations, even if tables grow fast, and a copy
//! serves reads until files need its room. If a log grows into the reserve, its writer only wakes
//! the control loop, which then drops copies. The drop of a copy appends to the namespace, and a
//! log record must not wait for that. Before a file moves to the device, the mover makes room for
//! it.
//!
//! Invariant: the bytes of a dropped copy count as free (`Device::leaving`) until the copy is
//! removed, so that no second copy is dropped for the same bytes.
//!
//! Thread-safety: one thread at a time drops copies of a device, and other writers do not wait for
//! it. Locks: that of the order of eviction, then those of [`OpenTiers`].
//! Failure: a copy that cannot be dropped stays, and the writer goes on.
//! Cost: four relaxed loads for an append. A dropped copy costs an append to the namespace and a
//! removal.

use std::array;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::entry::{CachedCopy, Entry};
use super::shared::OpenTiers;
use crate::history::Reason;
use crate::settings::DEVICES_MAX;

/// Copies of one device in order of eviction, the next one last. They may be dropped already.
type Order = VecDeque<(Weak<Entry>, Weak<CachedCopy>)>;

/// The order in which the copies of each device are dropped if files need their room.
#[derive(Debug)]
pub(crate) struct EvictionOrder([Mutex<Order>; DEVICES_MAX]);

impl Default for EvictionOrder {
    fn default() -> Self {
        Self(array::from_fn(|_| Mutex::default()))
    }
}

impl EvictionOrder {
    /// Notes the copies of a device in order of eviction. The last one of `order` is dropped first.
    pub(crate) fn note<'a>(
        &self,
        device: usize,
        order: impl Iterator<Item = (&'a Arc<Entry>, &'a Arc<CachedCopy>)>,
    ) {
        let order = order.map(|(entry, copy)| (Arc::downgrade(entry), Arc::downgrade(copy)));
        *self.0[device].lock() = order.collect();
    }

    /// Adds a new copy. It is dropped after all others, until the next iteration.
    pub(crate) fn add(&self, device: usize, entry: &Arc<Entry>, copy: &Arc<CachedCopy>) {
        let added = (Arc::downgrade(entry), Arc::downgrade(copy));
        self.0[device].lock().push_front(added);
    }
}

impl OpenTiers {
    /// Bytes of the device at `index` that tables and copies leave free.
    pub(crate) fn reserve_of(&self, index: usize) -> u64 {
        let capacity = self.devices[index].capacity.load(Ordering::Relaxed);
        (capacity as f64 * self.policy.force_below) as u64
    }

    /// Drops copies of the device at `index` while less than its reserve and `more` bytes are free.
    #[inline]
    pub(crate) fn make_room(self: &Arc<Self>, index: usize, more: u64) {
        let wanted = self.reserve_of(index).saturating_add(more);
        if self.devices[index].short_of(wanted) > 0 {
            self.drop_coldest(index, wanted);
        }
    }

    #[cold]
    fn drop_coldest(self: &Arc<Self>, index: usize, wanted: u64) {
        let device = &self.devices[index];
        let Some(mut order) = self.evictions.0[index].try_lock() else { return };
        let (mut copies, mut bytes) = (0, 0);
        while device.short_of(wanted) > 0 {
            let Some((entry, copy)) = order.pop_back() else { break };
            let (Some(entry), Some(copy)) = (entry.upgrade(), copy.upgrade()) else { continue };
            if self.drop_copy(&entry, &copy) {
                copies += 1;
                bytes += copy.physical.len();
            }
        }
        drop(order);
        if copies == 0 {
            return;
        }
        let what = format!("{copies} copies ({bytes} bytes) dropped from {}", device.name);
        self.history.tell(self.now_ms(), what, Reason::RoomForFiles);
        let settled = self.names.lock().space.settled();
        self.empty_settled(settled, Some(index));
        if let Err(error) = self.fault_point("drop.removed") {
            tracing::warn!(%error, "copies were dropped to free room, and a later step failed");
        }
    }
}
