//! Frozen ranges of a region: bytes that nobody writes, which the node reads as plain slices.
//!
//! Each region owns a [`FrozenRanges`]. Code that keeps data in a region and searches it in place
//! gets a [`FrozenSlice`] of it (`Region::frozen`).
//!
//! Invariants:
//! 1. A region with a frozen range has never given a key with the right to change bytes, and it
//!    gives none. A key that was revoked counts, too, because a process of this host may still have
//!    the region mapped by it. Therefore no client writes, and a process that maps the region has a
//!    descriptor for reading only.
//! 2. While a range is frozen, the node writes no word of 8 bytes that the range touches. Its own
//!    writes hold the lock of the ranges, and are refused if they overlap a frozen range.
//! 3. Frozen ranges of a region do not overlap.
//!
//! Thread-safety: any thread may call any method.
//! Failure: `InvalidArgument` for a range that cannot be frozen.
//! Cost: one shared lock for each write of the node, and O(log n) comparisons with `n` ranges.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use archipelago_base::{Error, Result};
use parking_lot::{RwLock, RwLockReadGuard};

use crate::ids::Rights;
use crate::memory::{Mapping, WORD_BYTES};
use crate::refusal::{Reason, Refusal};

/// The state that the lock of [`FrozenRanges`] guards.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// End of each frozen range by its start, rounded outwards to whole words.
    frozen: BTreeMap<u64, u64>,
    /// Whether the region has given a key with the right to change bytes.
    was_writable: bool,
}

impl Ranges {
    /// Whether a range shares a word with a frozen range.
    fn overlap(&self, start: u64, end: u64) -> bool {
        let before = self.frozen.range(..end).next_back();
        before.is_some_and(|(_, &frozen_end)| frozen_end > start)
    }
}

/// The frozen ranges of a region, with their lock.
#[derive(Debug, Default)]
pub(super) struct FrozenRanges(RwLock<Ranges>);

/// `start..end` rounded outwards to whole words.
fn words(range: &Range<u64>) -> (u64, u64) {
    let word = WORD_BYTES as u64;
    (range.start / word * word, range.end.next_multiple_of(word))
}

impl FrozenRanges {
    /// Permits a write of the node within the region until the guard is dropped. Meanwhile no range
    /// becomes frozen. The write is refused with [`Reason::NoRight`] if it touches a word of a
    /// frozen range.
    pub(super) fn hold(
        &self,
        offset: u64,
        len: u64,
    ) -> Result<RwLockReadGuard<'_, Ranges>, Refusal> {
        let ranges = self.0.read();
        let (start, end) = words(&(offset..offset + len));
        if ranges.overlap(start, end) {
            return Err(Reason::NoRight.into());
        }
        Ok(ranges)
    }

    /// Records that the region gives a key. Errors: `InvalidArgument` if the key could change bytes
    /// and a range is frozen.
    pub(super) fn before_grant(&self, rights: Rights) -> Result<()> {
        if !rights.change() {
            return Ok(());
        }
        let mut ranges = self.0.write();
        if !ranges.frozen.is_empty() {
            return Err(Error::invalid(
                "the region has frozen ranges, so it gives keys for reading only",
            ));
        }
        ranges.was_writable = true;
        Ok(())
    }

    /// Freezes a range of `memory`.
    pub(super) fn freeze(
        self: &Arc<Self>,
        memory: &Arc<Mapping>,
        range: Range<u64>,
    ) -> Result<FrozenSlice> {
        let bytes = memory.bytes() as u64;
        if range.start >= range.end || range.end > bytes {
            let Range { start, end } = range;
            return Err(Error::invalid(format!(
                "a frozen range needs bytes within the region of {bytes}: {start}..{end}"
            )));
        }
        let (start, end) = words(&range);
        let mut ranges = self.0.write();
        if ranges.was_writable {
            return Err(Error::invalid(
                "a region whose keys could change its bytes cannot have frozen ranges: allocate \
                 another region",
            ));
        }
        if ranges.overlap(start, end) {
            return Err(Error::invalid("the range overlaps another frozen range"));
        }
        ranges.frozen.insert(start, end);
        let range = range.start as usize..range.end as usize;
        Ok(FrozenSlice { ranges: Arc::clone(self), memory: Arc::clone(memory), range })
    }

    fn thaw(&self, range: &Range<usize>) {
        let (start, _) = words(&(range.start as u64..range.end as u64));
        let _was_frozen = self.0.write().frozen.remove(&start);
    }
}

/// Bytes of a region that nobody writes until this value is dropped. The region's keys may read
/// them meanwhile. The memory stays mapped while this value lives, also after the region was
/// dropped.
pub struct FrozenSlice {
    ranges: Arc<FrozenRanges>,
    memory: Arc<Mapping>,
    range: Range<usize>,
}

impl fmt::Debug for FrozenSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrozenSlice({:?})", self.range)
    }
}

impl AsRef<[u8]> for FrozenSlice {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the words of the range are frozen until the drop of `self`, which the slice
        // borrows. No key lets a client change them (invariant 1), and the node's own writes are
        // refused (invariant 2). A write that began earlier ended before the range was frozen,
        // because it held the lock.
        unsafe { self.memory.plain_bytes(self.range.clone()) }
    }
}

impl Drop for FrozenSlice {
    fn drop(&mut self) {
        self.ranges.thaw(&self.range);
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::{Epoch, ErrorKind};

    use super::*;
    use crate::ids::NodeId;
    use crate::node::{AtomicPath, Node, Region};

    fn region() -> Region {
        let node = Node::new(NodeId(1), Epoch(1), None).expect("a node");
        node.allocate(64, AtomicPath::Processor).expect("memory")
    }

    fn reason(refused: Result<(), Refusal>) -> Option<Reason> {
        refused.err().map(|refusal| refusal.reason)
    }

    #[test]
    fn frozen_bytes_are_not_written_until_the_slice_is_dropped() {
        let region = region();
        region.write(0, &[7; 64]).expect("room");
        let slice = region.frozen(10..21).expect("no key was given");
        assert_eq!(slice.as_ref(), [7; 11]);
        for (offset, len) in [(9, 1), (8, 8), (0, 9), (20, 1), (23, 8), (0, 64)] {
            let refused = reason(region.write(offset, &vec![1; len]));
            assert_eq!(refused, Some(Reason::NoRight), "{offset}+{len} touches a frozen word");
        }
        assert_eq!(region.fetch_add(8, 1).map_err(|refusal| refusal.reason), Err(Reason::NoRight));
        region.write(0, &[2; 8]).expect("the word before");
        region.write(24, &[2; 8]).expect("the word after");
        assert_eq!(slice.as_ref(), [7; 11]);
        drop(slice);
        region.write(8, &[3; 16]).expect("nothing is frozen");
        assert_eq!(region.frozen(8..24).expect("free again").as_ref(), [3; 16]);
    }

    #[test]
    fn ranges_that_cannot_be_frozen_are_refused() {
        let region = region();
        let slice = region.frozen(8..16).expect("no key was given");
        for range in [0..9, 15..17, 8..16, 0..64, 16..16, 0..65, 64..72] {
            let error = region.frozen(range.clone()).expect_err("cannot be frozen");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{range:?}");
        }
        let beside = [region.frozen(0..8), region.frozen(16..64)];
        assert!(beside.iter().all(Result::is_ok), "the neighbours");
        drop((slice, beside));
        assert_eq!(region.frozen(0..64).expect("all of it").as_ref().len(), 64);
    }

    #[test]
    fn region_has_frozen_ranges_or_keys_that_change_it() {
        let region = region();
        region.grant(Rights::READ).expect("a reader changes nothing");
        let slice = region.frozen(0..8).expect("readers only");
        for rights in [Rights::WRITE, Rights::ATOMIC, Rights::ALL] {
            assert!(region.grant(rights).is_err(), "{rights:?} beside a frozen range");
        }
        region.grant(Rights::READ).expect("another reader");
        drop(slice);
        region.grant(Rights::WRITE).expect("nothing is frozen");
        assert!(region.frozen(0..8).is_err(), "a writer may have it mapped, revoked or not");
    }

    #[test]
    fn slice_outlives_its_region() {
        let region = region();
        region.write(0, &[9; 8]).expect("room");
        let slice = region.frozen(0..8).expect("no key was given");
        drop(region);
        assert_eq!(slice.as_ref(), [9; 8]);
    }
}
