//! The regions of a host: landing zones and arenas, their free ranges, and their bytes.
//!
//! The core owns one [`Regions`].
//!
//! Invariants:
//! 1. The bytes of all regions are at most the host's limit, including regions that are being made.
//! 2. A region is unmapped only when it is retired, all its ranges were given back, and no other
//!    process can reach it by its key.
//!
//! Thread-safety: the core's owner holds a lock. Leases may be dropped anywhere.
//! Failure: a request that finds no room is refused.
//! Cost: O(regions of the database) for a lease; O(retired regions) for each message.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_base::Result;
use archipelago_fabric::{RemoteKey, Rights};

use super::memory::{HostMemory, RegionNo};
use super::ranges::{ALIGN_BYTES, FreeRanges, Lease, Returns};
use crate::ids::OffloadDb;

/// The use of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Owners write one-sided into it.
    Landing,
    /// Only the host writes into it.
    Arena,
}

/// An order to make a region, which the caller executes outside of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AllocateOrder {
    pub(super) region: RegionNo,
    pub(super) bytes: u64,
    pub(super) purpose: Purpose,
    pub(super) db: OffloadDb,
}

#[derive(Debug)]
struct HostRegion {
    db: OffloadDb,
    purpose: Purpose,
    bytes: u64,
    ranges: FreeRanges,
    key: RemoteKey,
}

/// All regions of a host.
#[derive(Debug)]
pub(super) struct Regions {
    bytes_max: u64,
    /// Bytes of all regions, including those that are being made.
    bytes: u64,
    next: u64,
    regions: BTreeMap<RegionNo, HostRegion>,
    making: BTreeMap<RegionNo, AllocateOrder>,
    retired: BTreeSet<RegionNo>,
    returns: Returns,
}

impl Regions {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            next: 1,
            regions: BTreeMap::new(),
            making: BTreeMap::new(),
            retired: BTreeSet::new(),
            returns: Returns::default(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn retired(&self) -> usize {
        self.retired.len()
    }

    /// Bytes that can be allocated.
    pub(super) fn left(&self, memory: &dyn HostMemory) -> u64 {
        self.bytes_max.saturating_sub(self.bytes).min(memory.left())
    }

    /// Bytes of the arenas of a database, and their free bytes.
    pub(super) fn arenas(&self, db: OffloadDb) -> (u64, u64) {
        let arenas = || {
            self.regions.iter().filter(|(number, region)| {
                let is_arena = region.purpose == Purpose::Arena;
                region.db == db && is_arena && !self.retired.contains(number)
            })
        };
        let free = arenas().map(|(_, region)| region.ranges.free_bytes()).sum();
        (arenas().map(|(_, region)| region.bytes).sum(), free)
    }

    /// Bytes of the regions of each database, those that are being made included, and without
    /// those that wait to be unmapped.
    pub(super) fn bytes_by_database(&self) -> BTreeMap<OffloadDb, u64> {
        let mut bytes: BTreeMap<OffloadDb, u64> = BTreeMap::new();
        for (number, region) in &self.regions {
            if !self.retired.contains(number) {
                *bytes.entry(region.db).or_default() += region.bytes;
            }
        }
        for order in self.making.values() {
            *bytes.entry(order.db).or_default() += order.bytes;
        }
        bytes
    }

    /// Reserves bytes for a region. `None` if the host has fewer bytes left.
    pub(super) fn order(
        &mut self,
        memory: &mut dyn HostMemory,
        db: OffloadDb,
        purpose: Purpose,
        bytes: u64,
    ) -> Option<AllocateOrder> {
        let bytes = bytes.checked_next_multiple_of(ALIGN_BYTES)?;
        if bytes == 0 || bytes > self.left(memory) || !memory.reserve(bytes) {
            return None;
        }
        let order = AllocateOrder { region: RegionNo(self.next), bytes, purpose, db };
        self.next += 1;
        self.bytes += bytes;
        self.making.insert(order.region, order);
        Some(order)
    }

    /// Whether a region of that kind is being made for the database.
    pub(super) fn is_making(&self, db: OffloadDb, purpose: Purpose) -> bool {
        self.making.values().any(|order| (order.db, order.purpose) == (db, purpose))
    }

    /// Ends an order. `made` says whether the region was made. Returns whether the region is in use
    /// from now on.
    pub(super) fn made(
        &mut self,
        memory: &mut dyn HostMemory,
        order: &AllocateOrder,
        made: Result<()>,
    ) -> bool {
        let AllocateOrder { region, bytes, purpose, db } = *order;
        self.making.remove(&region);
        let rights = match purpose {
            Purpose::Landing => Rights::WRITE,
            Purpose::Arena => Rights::READ,
        };
        match made.and_then(|()| memory.grant(region, rights)) {
            Ok(key) => {
                let ranges = FreeRanges::new(bytes);
                self.regions.insert(region, HostRegion { db, purpose, bytes, ranges, key });
                true
            }
            Err(error) => {
                tracing::warn!(%error, bytes, "the system gives no memory for shards");
                memory.release(region);
                self.give_up(memory, bytes);
                false
            }
        }
    }

    fn give_up(&mut self, memory: &mut dyn HostMemory, bytes: u64) {
        self.bytes -= bytes;
        memory.give_back(bytes);
    }

    /// Leases a range of an arena of the database. `None` if no arena has room.
    pub(super) fn lease_arena(&mut self, db: OffloadDb, bytes: u64) -> Option<Lease> {
        let arenas = self.regions.iter_mut().filter(|(number, region)| {
            region.db == db && region.purpose == Purpose::Arena && !self.retired.contains(number)
        });
        for (number, region) in arenas {
            if let Some(at) = region.ranges.take(bytes) {
                return Some(self.returns.lease(*number, at, bytes));
            }
        }
        None
    }

    /// Leases a range of one region. `None` if it has no room.
    pub(super) fn lease(&mut self, region: RegionNo, bytes: u64) -> Option<Lease> {
        let at = self.regions.get_mut(&region)?.ranges.take(bytes)?;
        Some(self.returns.lease(region, at, bytes))
    }

    /// Key and size of a region.
    pub(super) fn key(&self, region: RegionNo) -> Option<(RemoteKey, u64)> {
        self.regions.get(&region).map(|region| (region.key, region.bytes))
    }

    /// Bytes of the longest free range of a region.
    pub(super) fn longest(&self, region: RegionNo) -> u64 {
        self.regions.get(&region).map_or(0, |region| region.ranges.longest())
    }

    /// Bytes of the longest free range in the arenas of a database.
    pub(super) fn longest_in_arenas(&self, db: OffloadDb) -> u64 {
        let arenas = self.regions.iter().filter(|(number, region)| {
            region.db == db && region.purpose == Purpose::Arena && !self.retired.contains(number)
        });
        arenas.map(|(_, region)| region.ranges.longest()).max().unwrap_or(0)
    }

    /// Retires a region. Its key is revoked immediately, and it is unmapped when it has no users.
    pub(super) fn retire(&mut self, memory: &mut dyn HostMemory, region: RegionNo) {
        if let Some(retired) = self.regions.get(&region)
            && self.retired.insert(region)
        {
            memory.revoke(&retired.key);
        }
    }

    /// Retires all regions of a database.
    pub(super) fn retire_all(&mut self, memory: &mut dyn HostMemory, db: OffloadDb) {
        let of_db = self.regions.iter().filter(|(_, region)| region.db == db);
        let numbers: Vec<RegionNo> = of_db.map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.retire(memory, number));
    }

    /// Retires arenas without an image: all but one of each database, or all.
    pub(super) fn retire_empty(&mut self, memory: &mut dyn HostMemory, keep_one: bool) {
        let mut kept = BTreeSet::new();
        let mut empty = Vec::new();
        for (number, region) in &self.regions {
            let is_empty = region.purpose == Purpose::Arena && region.ranges.is_whole();
            if is_empty && !self.retired.contains(number) && !(keep_one && kept.insert(region.db)) {
                empty.push(*number);
            }
        }
        empty.into_iter().for_each(|number| self.retire(memory, number));
    }

    /// Takes back the ranges of dropped leases, and unmaps retired regions without users.
    pub(super) fn settle(&mut self, memory: &mut dyn HostMemory) {
        for returned in self.returns.drain() {
            if let Some(region) = self.regions.get_mut(&returned.region) {
                region.ranges.give_back(returned.at, returned.bytes);
            }
        }
        let done: Vec<RegionNo> = self
            .retired
            .iter()
            .copied()
            .filter(|number| {
                let region = self.regions.get(number);
                region.is_none_or(|region| region.ranges.is_whole() && !memory.is_held(&region.key))
            })
            .collect();
        for number in done {
            self.retired.remove(&number);
            if let Some(region) = self.regions.remove(&number) {
                memory.release(number);
                self.give_up(memory, region.bytes);
            }
        }
    }
}
