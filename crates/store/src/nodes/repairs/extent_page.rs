//! The extents of one page, and the nodes that list copies of them. Pure.
//!
//! A round compares a bounded number of extents, and the next rounds compare those that follow. The
//! planner of a round owns the page. The nodes list their extents from the beginning of the page
//! on, and the page keeps the first ones.
//!
//! Invariants:
//! 1. The page holds at most `extents_max` extents, or one if that is 0, and none at or after its
//!    end.
//! 2. If an extent leaves the page, it leaves with all its copies. So each extent of a page has all
//!    copies that the nodes have listed.
//! 3. All copies of an extent have the same end, which is the largest one that a node has listed.
//!
//! Cost: O(log n) for a copy.

use std::collections::BTreeMap;

use super::super::StorageId;
use super::super::wire::{ExtentAt, SealedExtent};

/// Largest number of extents that one round compares.
const EXTENTS_MAX: usize = 262_144;

/// Part of all extents that one round compares, in the order of logs and numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentPage {
    /// Extent after which the page begins; `None` for the first page.
    pub after: Option<ExtentAt>,
    /// Largest number of extents of the page. Default: 262,144.
    pub extents_max: usize,
}

impl Default for ExtentPage {
    fn default() -> Self {
        Self { after: None, extents_max: EXTENTS_MAX }
    }
}

/// The copies of an extent.
#[derive(Clone, Debug)]
pub(super) struct ExtentCopies {
    /// The extent with the largest end of all listed copies.
    pub(super) extent: SealedExtent,
    /// Nodes that have a copy with this end.
    pub(super) nodes: Vec<StorageId>,
}

/// Collects the copies of the extents of one page.
#[derive(Debug, Default)]
pub(super) struct PagedExtents {
    page: ExtentPage,
    copies: BTreeMap<ExtentAt, ExtentCopies>,
    /// Smallest extent that the page has no room for.
    end: Option<ExtentAt>,
}

impl PagedExtents {
    /// The extents of this page, of which no node has listed any yet.
    pub(super) fn new(page: ExtentPage) -> Self {
        Self { page, ..Self::default() }
    }

    /// Takes an extent that `node` has. Ignores extents outside of the page, and extents without a
    /// byte, which no layout names.
    pub(super) fn add(&mut self, node: StorageId, extent: SealedExtent) {
        if extent.start == extent.end {
            return;
        }
        let is_before = self.page.after.is_some_and(|after| extent.at <= after);
        if is_before || self.end.is_some_and(|end| extent.at >= end) {
            return;
        }
        let new = || ExtentCopies { extent, nodes: Vec::new() };
        let copies = self.copies.entry(extent.at).or_insert_with(new);
        if extent.end > copies.extent.end {
            // A copy with an earlier end was sealed by a recovery that did not finish.
            (copies.extent, copies.nodes) = (extent, Vec::new());
        }
        if extent.end == copies.extent.end {
            copies.nodes.push(node);
        }
        if self.copies.len() > self.page.extents_max.max(1) {
            // The last extent leaves the page with all its copies, and a later round compares them.
            self.end = self.copies.pop_last().map(|(at, _)| at);
        }
    }

    /// Extent after which a node begins its list for this page.
    pub(super) fn after(&self) -> Option<ExtentAt> {
        self.page.after
    }

    /// Whether the page may have extents after `at`.
    pub(super) fn takes_after(&self, at: ExtentAt) -> bool {
        self.end.is_none_or(|end| at < end)
    }

    /// Number of extents of the page.
    pub(super) fn count(&self) -> u64 {
        self.copies.len() as u64
    }

    /// Extent after which the next page begins. `None` if no extents follow this page.
    pub(super) fn next_after(&self) -> Option<ExtentAt> {
        let last = self.copies.last_key_value().map(|(at, _)| *at);
        self.end.and(last)
    }

    /// Moves the extents and their copies out of the page, in the order of logs and numbers.
    pub(super) fn take_copies(&mut self) -> BTreeMap<ExtentAt, ExtentCopies> {
        std::mem::take(&mut self.copies)
    }
}
