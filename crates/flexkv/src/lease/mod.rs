//! How long something cached may be believed.
//!
//! Two things are cached, and each has a lease of its own:
//!
//! - The **position** of a key's slot. Deleted slots are reused, so a position is good for a lease
//!   (200 ms) since the partition's owner last confirmed it. One clock decides: the owner's. It
//!   puts a [`Stamp`] on what it confirms, the client sends the stamp along with a write, and the
//!   owner looks whether it is fresh ([`SlotLease`]). No drift is to be allowed for.
//! - **Values**. A compute node serves values from its cache only while it has a lease from their
//!   proxy; a proxy that does not get an invalidation acknowledged waits until the lease ran out.
//!   Two clocks decide, so there is an allowance ([`Terms`], [`Holder`], [`Granter`]).
//!
//! Paper: §4.5, "Garbage Collection" for the first; the second is ours (the paper assumes a network
//! that loses nothing). Thread-safety: values.

mod pair;
#[cfg(test)]
mod tests;

pub use pair::{Adopted, Granted, Granter, Holder, Terms, Waiting};

use crate::format::Slot;

/// How long a slot's position may be believed, unless a store is told otherwise.
pub const SLOT_LEASE_US: u64 = 200_000;

/// When the owner of a partition confirmed a slot's position, by its clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// The owner word's epoch: stamps of another owner, or of the same at another time, say
    /// nothing.
    pub epoch: u32,
    /// µs of the owner's clock.
    pub at_us: u64,
}

impl Stamp {
    /// Whether it is at most a lease old. One that is of the future (another thread's reading of
    /// the same clock) is fresh too, if by no more than a lease.
    #[must_use]
    pub fn is_fresh(self, now_us: u64, lease_us: u64) -> bool {
        now_us.abs_diff(self.at_us) <= lease_us
    }
}

/// The owner's side of slot leases: its epoch and when it began.
///
/// A new owner reuses no slot for a lease: stamps of its forerunner, and deletions by its clock,
/// may be younger than a lease. It never accepts a stamp of another epoch. What was deleted before
/// it began is older than a lease once it reuses anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLease {
    epoch: u32,
    since_us: u64,
    lease_us: u64,
}

impl SlotLease {
    /// Of an owner that serves since `now_us` of its clock; `lease_us`: how long positions are
    /// believed.
    #[must_use]
    pub fn new(epoch: u32, now_us: u64, lease_us: u64) -> Self {
        Self { epoch, since_us: now_us, lease_us }
    }

    /// The stamp for what is confirmed at `now_us`.
    #[must_use]
    pub fn stamp(self, now_us: u64) -> Stamp {
        Stamp { epoch: self.epoch, at_us: now_us }
    }

    /// Whether a write may act on a position with this stamp.
    #[must_use]
    pub fn accepts(self, stamp: Stamp, now_us: u64) -> bool {
        stamp.epoch == self.epoch && stamp.is_fresh(now_us, self.lease_us)
    }

    /// Whether an insert may take the slot.
    #[must_use]
    pub fn may_reuse(self, slot: Slot, now_us: u64) -> bool {
        let settled = now_us > self.since_us && now_us - self.since_us > self.lease_us;
        slot == Slot::EMPTY || settled && slot.is_reusable(now_us, self.lease_us)
    }
}
