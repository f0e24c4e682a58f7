//! Large slabs: parts of regions in huge pages.
//!
//! Inserts and reads of a memtable touch its memory at random, so they are faster with huge pages.
//! Small allocations of the program are not: one of them would keep a huge page resident. Therefore
//! large slabs have regions of their own, and everything else is left to the allocator.
//!
//! Invariants:
//! 1. A region is divided into units of [`UNIT_BYTES`]. A slab has a power of two of them and
//!    begins at a multiple of its length.
//! 2. A unit is free, or belongs to exactly one slab that was taken and not given back.
//!
//! Thread-safety: the pool has one lock around all regions. Regions are mapped and returned outside
//! of it.
//! Cost: taking a slab looks at the regions by their addresses until one has room. The lowest
//! addresses are filled first, so that the others become empty and can be returned.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use archipelago_env::huge::{HUGE_BYTES, HugeRegion};

/// Smallest slab in bytes that lies in a region.
pub(super) const UNIT_BYTES: usize = 64 << 10;

/// Bits of all units of a region.
const ALL: u32 = u32::MAX;
const _: () = assert!(HUGE_BYTES / UNIT_BYTES == ALL.count_ones() as usize);

struct Region {
    memory: HugeRegion,
    /// Bits of the units that are free.
    free: u32,
}

impl Region {
    /// Takes `count` units, a power of two. Returns the number of the first.
    fn take(&mut self, count: usize) -> Option<usize> {
        if self.free == 0 {
            return None;
        }
        let units = ALL.count_ones() as usize;
        let at =
            (0..units).step_by(count).find(|&at| self.free & bits(at, count) == bits(at, count))?;
        self.free &= !bits(at, count);
        Some(at)
    }
}

/// Bits of `count` units from number `at` on.
fn bits(at: usize, count: usize) -> u32 {
    (ALL >> (ALL.count_ones() as usize - count)) << at
}

/// The regions of a pool, by address.
#[derive(Default)]
pub(super) struct Regions {
    by_address: BTreeMap<usize, Region>,
    free_units: usize,
}

impl Regions {
    /// Bytes that belong to no slab.
    pub(super) fn free_bytes(&self) -> u64 {
        (self.free_units * UNIT_BYTES) as u64
    }

    /// Bytes of regions without a slab.
    pub(super) fn empty_bytes(&self) -> u64 {
        let empty = self.by_address.values().filter(|region| region.free == ALL).count();
        (empty * HUGE_BYTES) as u64
    }

    /// A slab of `bytes`, a power of two of at least [`UNIT_BYTES`], if a region has room.
    pub(super) fn take(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let count = bytes / UNIT_BYTES;
        let taken = self.by_address.values_mut().find_map(|region| {
            let at = region.take(count)?;
            Some(region.memory.at(at * UNIT_BYTES))
        })?;
        self.free_units -= count;
        Some(taken)
    }

    /// Adds a region.
    pub(super) fn add(&mut self, memory: HugeRegion) {
        let address = memory.at(0).as_ptr().addr();
        self.free_units += ALL.count_ones() as usize;
        let before = self.by_address.insert(address, Region { memory, free: ALL });
        debug_assert!(before.is_none(), "two regions at one address");
    }

    /// Takes a slab back. If that leaves its region empty, empty regions are taken out until at
    /// most `keep` bytes are free. The caller drops them.
    pub(super) fn give(&mut self, slab: NonNull<u8>, bytes: usize, keep: u64) -> Vec<HugeRegion> {
        let (address, count) = (slab.as_ptr().addr(), bytes / UNIT_BYTES);
        let region = self.by_address.get_mut(&(address & !(HUGE_BYTES - 1)));
        let region = region.expect("a slab is given back to its own pool");
        let bits = bits(address % HUGE_BYTES / UNIT_BYTES, count);
        debug_assert_eq!(region.free & bits, 0, "a slab is given back once");
        region.free |= bits;
        self.free_units += count;
        if region.free == ALL { self.trim(keep) } else { Vec::new() }
    }

    /// Takes empty regions out while more than `keep` bytes are free. The caller drops them.
    pub(super) fn trim(&mut self, keep: u64) -> Vec<HugeRegion> {
        let mut surplus = Vec::new();
        while self.free_bytes() > keep {
            let empty = self.by_address.iter().rfind(|(_, region)| region.free == ALL);
            let Some(address) = empty.map(|(address, _)| *address) else { break };
            let region = self.by_address.remove(&address);
            self.free_units -= ALL.count_ones() as usize;
            surplus.extend(region.map(|region| region.memory));
        }
        surplus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_of_a_region_are_apart_and_aligned() {
        let mut regions = Regions::default();
        assert_eq!(regions.take(UNIT_BYTES), None);
        regions.add(HugeRegion::map().expect("memory"));
        let sizes = [1, 16, 1, 2, 4, 1, 1].map(|units| units * UNIT_BYTES);
        let mut slabs: Vec<(usize, usize)> = sizes
            .into_iter()
            .map(|bytes| (regions.take(bytes).expect("room").as_ptr().addr(), bytes))
            .collect();
        assert!(slabs.iter().all(|(address, bytes)| address % bytes == 0), "{slabs:x?}");
        slabs.sort_unstable();
        let apart = |pair: &[(usize, usize)]| pair[0].0 + pair[0].1 <= pair[1].0;
        assert!(slabs.windows(2).all(apart), "{slabs:x?}");
        assert_eq!(regions.free_bytes() as usize, HUGE_BYTES - 26 * UNIT_BYTES);
        assert_eq!(regions.take(8 * UNIT_BYTES), None, "no aligned room");
        assert!(regions.trim(0).is_empty(), "the region is in use");
        assert_eq!(regions.empty_bytes(), 0);
    }

    #[test]
    fn empty_regions_are_returned_beyond_what_is_kept() {
        let mut regions = Regions::default();
        let mut take = |bytes| {
            regions.take(bytes).unwrap_or_else(|| {
                regions.add(HugeRegion::map().expect("memory"));
                regions.take(bytes).expect("an empty region")
            })
        };
        let large: Vec<NonNull<u8>> = (0..4).map(|_| take(HUGE_BYTES / 2)).collect();
        let small = take(UNIT_BYTES);
        let surplus: Vec<usize> =
            large.iter().map(|slab| regions.give(*slab, HUGE_BYTES / 2, 4 << 20).len()).collect();
        assert_eq!(surplus, [0, 0, 0, 1]);
        assert_eq!(regions.empty_bytes() as usize, HUGE_BYTES);
        assert_eq!(regions.trim(4 << 20).len(), 0, "less than that is free");
        assert_eq!(regions.trim(0).len(), 1);
        assert_eq!(regions.free_bytes() as usize, HUGE_BYTES - UNIT_BYTES);
        assert_eq!(regions.give(small, UNIT_BYTES, 0).len(), 1);
        assert_eq!((regions.free_bytes(), regions.empty_bytes()), (0, 0));
    }
}
