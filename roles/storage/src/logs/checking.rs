//! Checks of the stored bytes of extents, for the scrub.
//!
//! Open extents are checked through the bytes that are durable, since later bytes may be in the
//! middle of a write. An extent that is known to be damaged is not checked again before a recovery
//! or a repair has put its bytes anew.

use std::ops::{Bound, Range};

use archipelago_store::nodes::wire::{ExtentAt, RefusalWhy};

use super::Logs;
use super::extent::Extent;
use crate::answer::Refusal;

/// An extent, and the range of the log that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckedExtent {
    /// Log and number of the extent.
    pub(crate) at: ExtentAt,
    /// Offset of its first byte.
    pub(crate) start: u64,
    /// Offset after its last durable byte.
    pub(crate) end: u64,
}

/// Outcome of a check of a range of an extent.
#[derive(Debug)]
pub(crate) enum RangeCheck {
    /// All bytes have their checksums, or the extent has changed or was removed meanwhile.
    Sound,
    /// The extent is damaged. The node reports the damage from now on.
    Damaged,
    /// The bytes could not be read, so it is unknown whether they are damaged.
    Unread(Refusal),
}

impl Logs {
    /// Bytes of the logs that a round checks.
    pub(crate) fn checked_bytes(&self) -> u64 {
        let extents = self.extents.read();
        let checked = extents.values().filter_map(|extent| checked_range(extent));
        checked.map(|extent| extent.end - extent.start).sum()
    }

    /// The first extent after `after` that has bytes to check.
    pub(crate) fn next_checked(&self, after: Option<ExtentAt>) -> Option<CheckedExtent> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let extents = self.extents.read();
        extents.range((from, Bound::Unbounded)).find_map(|(_, extent)| checked_range(extent))
    }

    /// Compares the bytes of a range of an extent with their checksums.
    pub(crate) fn check(&self, at: ExtentAt, range: Range<u64>) -> RangeCheck {
        let extent = self.extents.read().get(&at).cloned();
        let Some(extent) = extent else { return RangeCheck::Sound };
        let mut start = range.start;
        while start < range.end {
            match extent.read(&self.env, start..range.end) {
                // The extent was sealed meanwhile at an end before this place.
                Ok(bytes) if bytes.is_empty() => break,
                Ok(bytes) => start += bytes.len() as u64,
                Err(refusal) => {
                    return match refusal.why {
                        RefusalWhy::NotThere | RefusalWhy::Busy => RangeCheck::Sound,
                        RefusalWhy::Damaged => RangeCheck::Damaged,
                        _ => RangeCheck::Unread(refusal),
                    };
                }
            }
        }
        RangeCheck::Sound
    }
}

fn checked_range(extent: &Extent) -> Option<CheckedExtent> {
    let range = extent.durable_range()?;
    let is_checked = !range.is_empty();
    is_checked.then_some(CheckedExtent { at: extent.at, start: range.start, end: range.end })
}
