//! Checks of the stored bytes of sealed extents, for the scrub.

use std::ops::{Bound, Range};
use std::sync::Arc;

use archipelago_store::nodes::wire::{ExtentAt, RefusalWhy, StoreMessage};

use super::Logs;
use super::extent::Extent;

/// A sealed extent, and the range of the log that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SealedExtent {
    /// Log and number of the extent.
    pub(crate) at: ExtentAt,
    /// Offset of its first byte.
    pub(crate) start: u64,
    /// Offset after its last byte.
    pub(crate) end: u64,
}

impl Logs {
    /// Bytes of the logs in sealed extents.
    pub(crate) fn sealed_bytes(&self) -> u64 {
        let extents = self.extents.read();
        let sealed = extents.values().filter_map(|extent| sealed_range(extent));
        sealed.map(|extent| extent.end - extent.start).sum()
    }

    /// The first sealed extent after `after`.
    pub(crate) fn next_sealed(&self, after: Option<ExtentAt>) -> Option<SealedExtent> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let extents = self.extents.read();
        extents.range((from, Bound::Unbounded)).find_map(|(_, extent)| sealed_range(extent))
    }

    /// Whether the bytes of a range of an extent have their checksums. An extent that was removed
    /// meanwhile is sound.
    pub(crate) fn is_sound(&self, at: ExtentAt, range: Range<u64>) -> bool {
        let extent: Option<Arc<Extent>> = self.extents.read().get(&at).cloned();
        let Some(extent) = extent else { return true };
        let mut start = range.start;
        while start < range.end {
            match extent.read(&self.env, start..range.end) {
                Ok(bytes) if bytes.is_empty() => return sealed_range(&extent).is_none(),
                Ok(bytes) => start += bytes.len() as u64,
                Err(refusal) => return refusal.why == RefusalWhy::NotThere,
            }
        }
        true
    }
}

fn sealed_range(extent: &Extent) -> Option<SealedExtent> {
    let summary = extent.summary()?;
    match extent.replica() {
        StoreMessage::ReplicaIs { valid_end, sealed: Some(_), is_in_limbo: false, .. } => {
            let start = valid_end.saturating_sub(summary.log_bytes);
            Some(SealedExtent { at: extent.at, start, end: valid_end })
        }
        _ => None,
    }
}
