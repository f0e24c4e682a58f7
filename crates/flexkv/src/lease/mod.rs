//! Leases: how long cached knowledge is valid.
//!
//! Two things are cached, and each has a lease of its own:
//!
//! - The **position** of a key's slot. Deleted slots are reused, so a position is valid for a lease
//!   (200 ms) after the partition's owner last confirmed it. Only the owner's clock decides. The
//!   owner puts a [`Stamp`] on what it confirms, and the client sends the stamp along with a write.
//!   The owner then checks whether the stamp is fresh ([`SlotLease`]). No drift needs to be allowed
//!   for.
//! - **Values**. A compute node serves values from its cache only while it has a lease from their
//!   proxy. A proxy whose invalidation is not acknowledged waits until the lease has run out. Two
//!   clocks decide, so there is an allowance ([`Terms`], [`Holder`], [`Granter`]).
//!
//! Thread-safety: values. Paper: §4.5, "Garbage Collection", for the first lease. The second is an
//! addition, because the paper assumes a network that loses nothing.

mod pair;
#[cfg(test)]
mod tests;

pub use pair::{Adopted, Granted, Granter, Holder, Terms, Waiting};

use crate::format::Slot;

/// Default time for which a slot's position may be believed, in microseconds.
pub const SLOT_LEASE_US: u64 = 200_000;

/// The time at which the owner of a partition confirmed a slot's position, by the owner's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Epoch of the owner word. Stamps of another epoch do not count.
    pub epoch: u32,
    /// Time by the owner's clock, in microseconds.
    pub at_us: u64,
}

impl Stamp {
    /// Whether the stamp is at most a lease old. A stamp from the future, which another thread's
    /// reading of the same clock may give, is fresh as well if it is ahead by at most a lease.
    #[must_use]
    pub fn is_fresh(self, now_us: u64, lease_us: u64) -> bool {
        now_us.abs_diff(self.at_us) <= lease_us
    }
}

/// The owner's side of slot leases: its epoch and when it began.
///
/// A new owner reuses no slot for one lease, because stamps of the last owner, and deletions by
/// that owner's clock, may be younger than a lease. It never accepts a stamp of another epoch. Once
/// it reuses slots, everything that was deleted before it began is older than a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLease {
    epoch: u32,
    since_us: u64,
    lease_us: u64,
}

impl SlotLease {
    /// The lease of an owner that serves since `now_us` of its clock. Positions are believed for
    /// `lease_us`.
    #[must_use]
    pub fn new(epoch: u32, now_us: u64, lease_us: u64) -> Self {
        Self { epoch, since_us: now_us, lease_us }
    }

    /// The stamp of a position that is confirmed at `now_us`.
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
