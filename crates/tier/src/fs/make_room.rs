//! Copies give way to files while these grow.
//!
//! Copies take what files leave of a device but for a reserve (`Policy::force_below`). A table that
//! grows into the reserve drops the coldest copies, in the order that the last look found, until it
//! is free again: however fast tables come, the device does not fill up between two looks, and a
//! copy serves until its room is needed. A log that grows into it wakes the thread that looks,
//! which does the same: what drops a copy appends to the namespace, and a log record is not to wait
//! for that. A file that moves to the device has its room made beforehand.
//!
//! Invariant: what was dropped counts as gone until it is (`Device::leaving`), so that nothing else
//! is dropped for the same bytes. Thread-safe: one at a time drops copies of a device, others go on
//! writing. Locks: the order's, then those of [`Shared`]. Cost: four relaxed loads for an append; a
//! change of the namespace and a removal for a copy.

use std::array;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::entry::{CachedCopy, Entry};
use super::shared::Shared;
use crate::history::Reason;
use crate::settings::DEVICES_MAX;

/// Copies of one device, the next to go last. They may have gone already.
type Order = VecDeque<(Weak<Entry>, Weak<CachedCopy>)>;

/// See the module.
#[derive(Debug)]
pub(crate) struct GivingWay([Mutex<Order>; DEVICES_MAX]);

impl Default for GivingWay {
    fn default() -> Self {
        Self(array::from_fn(|_| Mutex::default()))
    }
}

impl GivingWay {
    /// Which copies of the device go first if files need their room, the coldest last.
    pub(crate) fn note<'a>(
        &self,
        device: usize,
        order: impl Iterator<Item = (&'a Arc<Entry>, &'a Arc<CachedCopy>)>,
    ) {
        let order = order.map(|(entry, copy)| (Arc::downgrade(entry), Arc::downgrade(copy)));
        *self.0[device].lock() = order.collect();
    }

    /// A copy was made: until the next look it goes after all others.
    pub(crate) fn add(&self, device: usize, entry: &Arc<Entry>, copy: &Arc<CachedCopy>) {
        let added = (Arc::downgrade(entry), Arc::downgrade(copy));
        self.0[device].lock().push_front(added);
    }
}

impl Shared {
    /// What tables and copies leave free of the device at `index`.
    pub(crate) fn reserve_of(&self, index: usize) -> u64 {
        let capacity = self.devices[index].capacity.load(Ordering::Relaxed);
        (capacity as f64 * self.policy.force_below) as u64
    }

    /// Drops copies of the device at `index` while they and files leave less than its reserve and
    /// `more` bytes.
    #[inline]
    pub(crate) fn make_way(self: &Arc<Self>, index: usize, more: u64) {
        let wanted = self.reserve_of(index).saturating_add(more);
        if self.devices[index].short_of(wanted) > 0 {
            self.drop_coldest(index, wanted);
        }
    }

    #[cold]
    fn drop_coldest(self: &Arc<Self>, index: usize, wanted: u64) {
        let device = &self.devices[index];
        let Some(mut order) = self.giving_way.0[index].try_lock() else { return };
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
            tracing::warn!(%error, "copies gave way, but for what comes behind that");
        }
    }
}
