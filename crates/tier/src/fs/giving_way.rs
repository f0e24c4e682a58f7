//! Copies give way to files while these grow.
//!
//! Copies take what files leave of a device but for a reserve (`Policy::force_below`). A table that grows into the reserve drops
//! the coldest copies, in the order that the last look found, until it is free again: however fast files come, the device does not
//! fill up between two looks, and a copy serves until its room is needed. Logs grow into the reserve, which the next table or look
//! frees again: what drops a copy appends to the namespace, and a log record is not to wait for that.
//!
//! Thread-safe: one at a time drops copies of a device, others go on writing. Cost: three relaxed loads for an append; a change of the
//! namespace and a removal for a copy.

use std::array;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::entry::{CachedCopy, Entry};
use super::shared::Shared;
use crate::history::Reason;
use crate::settings::DEVICES_MAX;

/// Copies of one device, the next to go last. They may have gone already.
type Order = Vec<(Weak<Entry>, Weak<CachedCopy>)>;

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
}

impl Shared {
    /// Drops copies of the device at `index` while files leave less than its reserve.
    #[inline]
    pub(crate) fn make_way(self: &Arc<Self>, index: usize) {
        let device = &self.devices[index];
        let capacity = device.capacity.load(Ordering::Relaxed);
        let short = device.short_of((capacity as f64 * self.policy.force_below) as u64);
        if short > 0 {
            self.drop_coldest(index, short);
        }
    }

    #[cold]
    fn drop_coldest(self: &Arc<Self>, index: usize, short: u64) {
        let Some(mut order) = self.giving_way.0[index].try_lock() else { return };
        let (_, going) = self.trash.waiting_on(index);
        let mut short = short.saturating_sub(going);
        while short > 0 {
            let Some((entry, copy)) = order.pop() else { break };
            let (Some(entry), Some(copy)) = (entry.upgrade(), copy.upgrade()) else { continue };
            let len = copy.physical.len();
            short = short.saturating_sub(len);
            self.drop_copy(&entry, &copy);
            let name = &self.devices[index].name;
            let what = format!("a copy ({len} bytes) dropped from {name}");
            self.history.tell(self.now_ms(), what, Reason::RoomForFiles);
        }
        let settled = self.names.lock().space.settled();
        self.trash.empty(settled, self.now_ns(), Some(index));
        if let Err(error) = self.fault_point("drop.removed") {
            tracing::warn!(%error, "copies gave way, but for what comes behind that");
        }
    }
}
