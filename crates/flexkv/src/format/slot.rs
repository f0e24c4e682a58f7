//! A slot: the word of the index that says where a key's record lies, or that a key lay there until
//! some time.
//!
//! | bits | live | dying | pending | deleted |
//! | --- | --- | --- | --- | --- |
//! | 63 | 1 | 1 | 0 | 0 |
//! | 62 | 0 | 1 | 1 | 0 |
//! | 61–16 | packed address of the record (units of 64 bytes) | the same | the same, of the new
//! record | time of the deletion in µs of the owner's clock, modulo 2^46 |
//! | 15–8 | length in units of 64 bytes; 0: more than 255, the record has the length | the same |
//! the same | tag, high byte |
//! | 7–0 | fingerprint of the key | the same | the same | tag, low byte |
//!
//! **Dying**: the partition's node deletes the key one-sided and has the slot to itself. Readers
//! take the record as it is until the slot is deleted. A deletion needs no record of its own, so it
//! succeeds when all memory is in use (decision 0050).
//!
//! **Pending**: a client writes the key one-sided and has the slot to itself. The new record names
//! the former word, which readers use until the slot is live again (decision 0017).
//!
//! 0 is [`Slot::EMPTY`], a slot that was never used. Slots change by compare-and-swap of the whole
//! word.
//!
//! Invariants:
//! 1. A deletion never writes 0.
//! 2. Two deletions of one slot write different words if their tags or times differ. The deleter
//!    draws the tag, so that a swap that expects an old deletion fails after a new one.
//! 3. A deleted slot is reused only when it is more than a lease old, by the clock that makes all
//!    stamps of the partition ([`crate::lease`]). So no client acts on a position that it cached
//!    before.
//! 4. Only the first copy of a slot is ever pending or dying.
//!
//! Thread-safety: a value.
//! Cost: shifts. Paper: §4.5, "Index Structure" and "Garbage Collection". The tag, the escape and
//! the modulus are additions.

use archipelago_base::Result;
use archipelago_pool::Packing;

/// Unit of lengths, in bytes. Records begin at multiples of it.
pub const UNIT_BYTES: u64 = 64;
/// Largest length that a slot can express, in units.
pub const LENGTH_UNITS_MAX: u64 = 255;
/// Times and packed addresses have 46 bits. The clock wraps after 2.2 years.
pub const TIME_MASK: u64 = (1 << ADDRESS_BITS) - 1;

const ADDRESS_BITS: u32 = 46;
const VALID: u64 = 1 << 63;
const PENDING: u64 = 1 << 62;

/// The packing of addresses of records and subtables in a pool with blocks of `block_bytes`.
/// Invalid if the addresses do not fit.
pub fn packing(block_bytes: u64) -> Result<Packing> {
    Packing::new(block_bytes, UNIT_BYTES, ADDRESS_BITS)
}

/// A word of the index. Every word is a slot, so none is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slot(pub u64);

/// The meaning of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// The slot was never used.
    Empty,
    /// The slot names a record.
    Live {
        /// Packed address of the record.
        packed: u64,
        /// Length in units of 64 bytes. `None` if it is more than a slot can express.
        units: Option<u8>,
        /// Fingerprint of the key.
        fingerprint: u8,
    },
    /// The slot will name a record.
    Pending {
        /// Packed address of the new record.
        packed: u64,
    },
    /// The slot named a record until a time.
    Deleted {
        /// Time of the deletion in µs of the owner's clock, modulo 2^46.
        time_us: u64,
        /// Tag that the deleter drew.
        tag: u16,
    },
}

impl Slot {
    /// The word of a slot that was never used.
    pub const EMPTY: Self = Self(0);

    /// The word that names the record of `bytes` bytes at `packed`. `None` if the address has more
    /// than 46 bits.
    #[must_use]
    pub fn live(packed: u64, bytes: u64, fingerprint: u8) -> Option<Self> {
        if packed > TIME_MASK {
            return None;
        }
        let units = bytes.div_ceil(UNIT_BYTES);
        let length = if units > LENGTH_UNITS_MAX { 0 } else { units.max(1) };
        Some(Self(VALID | packed << 16 | length << 8 | u64::from(fingerprint)))
    }

    /// The pending word of this word, which is live.
    #[inline]
    #[must_use]
    pub fn to_pending(self) -> Self {
        debug_assert!(self.is_live(), "{self:?}");
        Self(self.0 & !VALID | PENDING)
    }

    /// The live word that a pending word becomes, or that a dying word was.
    #[inline]
    #[must_use]
    pub fn to_live(self) -> Self {
        debug_assert!(self.is_taken(), "{self:?}");
        Self(self.0 & !PENDING | VALID)
    }

    /// The dying word of this word, which is live.
    #[inline]
    #[must_use]
    pub fn to_dying(self) -> Self {
        debug_assert!(self.is_live(), "{self:?}");
        Self(self.0 | PENDING)
    }

    /// Whether the key is being deleted one-sided. Such a slot also [is live](Self::is_live).
    #[inline]
    #[must_use]
    pub fn is_dying(self) -> bool {
        self.0 & (VALID | PENDING) == VALID | PENDING
    }

    /// The word that named the record before its deletion began. Any other word is returned
    /// unchanged.
    #[inline]
    #[must_use]
    pub fn undying(self) -> Self {
        if self.is_dying() { Self(self.0 & !PENDING) } else { self }
    }

    /// Whether a client changes the slot one-sided and has it to itself.
    #[inline]
    #[must_use]
    pub fn is_taken(self) -> bool {
        self.0 & PENDING != 0
    }

    /// Whether a client writes the key one-sided.
    #[inline]
    #[must_use]
    pub fn is_pending(self) -> bool {
        self.0 & (VALID | PENDING) == PENDING
    }

    /// The word of a deletion at `now_us` of the owner's clock. The caller draws a new `tag` for
    /// each deletion.
    #[must_use]
    pub fn deleted(now_us: u64, tag: u16) -> Self {
        let word = (now_us & TIME_MASK) << 16 | u64::from(tag);
        // A deletion never gives the word of a slot that was never used. The other word delays the
        // slot's reuse by a microsecond.
        Self(if word == 0 { 1 << 16 } else { word })
    }

    /// The meaning of the word.
    #[inline]
    #[must_use]
    pub fn state(self) -> SlotState {
        let middle = self.0 >> 16 & TIME_MASK;
        if self.is_live() {
            let units = Some((self.0 >> 8) as u8).filter(|&units| units > 0);
            SlotState::Live { packed: middle, units, fingerprint: self.0 as u8 }
        } else if self.is_pending() {
            SlotState::Pending { packed: middle }
        } else if self == Self::EMPTY {
            SlotState::Empty
        } else {
            SlotState::Deleted { time_us: middle, tag: self.0 as u16 }
        }
    }

    /// Whether the word names a record, which may be dying.
    #[inline]
    #[must_use]
    pub fn is_live(self) -> bool {
        self.0 & VALID != 0
    }

    /// Whether the word names a record whose key may have this fingerprint.
    #[inline]
    #[must_use]
    pub fn matches(self, fingerprint: u8) -> bool {
        self.is_live() && self.0 as u8 == fingerprint
    }

    /// Packed address of the record, if the word names one.
    #[inline]
    #[must_use]
    pub fn packed(self) -> Option<u64> {
        self.is_live().then_some(self.0 >> 16 & TIME_MASK)
    }

    /// Number of bytes to read of the record. If the slot cannot express the record's length, this
    /// is the longest length that it can, and the record's head has the full length. 0 without a
    /// record.
    #[inline]
    #[must_use]
    pub fn read_bytes(self) -> u64 {
        match self.state() {
            SlotState::Live { units, .. } => units.map_or(LENGTH_UNITS_MAX, u64::from) * UNIT_BYTES,
            _ => 0,
        }
    }

    /// Whether an insert may take the slot at `now_us` of the owner's clock, because it was never
    /// used or was deleted more than `lease_us` ago.
    ///
    /// Times wrap. A time that is ahead by at most a lease, which another thread's reading of the
    /// same clock may give, counts as now. A time that is further ahead comes from a former owner,
    /// whose deletions are all older than a lease once the new owner may reuse slots
    /// ([`SlotLease`](crate::lease::SlotLease)).
    #[inline]
    #[must_use]
    pub fn is_reusable(self, now_us: u64, lease_us: u64) -> bool {
        match self.state() {
            SlotState::Empty => true,
            SlotState::Live { .. } | SlotState::Pending { .. } => false,
            SlotState::Deleted { time_us, .. } => {
                let age = now_us.wrapping_sub(time_us) & TIME_MASK;
                let ahead = time_us.wrapping_sub(now_us) & TIME_MASK;
                age > lease_us && ahead > lease_us
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use archipelago_pool::{Address, BlockId, NodeId};
    use proptest::prelude::*;

    use super::*;

    const LEASE: u64 = 200_000;

    #[test]
    fn golden_words() {
        let packing = packing(16 << 20).expect("fits");
        let address = Address { block: BlockId { home: NodeId(3), number: 9 }, offset: 0x1240 };
        let packed = packing.pack(address).expect("fits");
        assert_eq!(packed, 0xc_0024_0049);
        assert_eq!(Slot::live(packed, 130, 0xab).expect("fits").0, 0x800c_0024_0049_03ab);
        assert_eq!(Slot::live(packed, 255 * 64, 0).expect("fits").0, 0x800c_0024_0049_ff00);
        assert_eq!(Slot::live(packed, 255 * 64 + 1, 0xff).expect("fits").0, 0x800c_0024_0049_00ff);
        assert_eq!(Slot::deleted(0x1234, 0xbeef).0, 0x0000_0000_1234_beef);
        assert_eq!(Slot::deleted(0, 0).0, 0x1_0000, "never the empty slot");
        assert_eq!(Slot::EMPTY.0, 0);
        assert_eq!(Slot::live(1 << 46, 64, 0), None);
        let live = Slot::live(packed, 130, 0xab).expect("fits");
        assert_eq!(live.to_pending().0, 0x400c_0024_0049_03ab);
        assert_eq!(live.to_pending().to_live(), live);
        assert!(!live.to_pending().is_live() && !live.to_pending().is_reusable(u64::MAX, 0));
        assert_eq!(live.to_dying().0, 0xc00c_0024_0049_03ab);
    }

    #[test]
    fn dying_slot_names_its_record_and_is_not_reusable() {
        let live = Slot::live(77, 130, 0xab).expect("fits");
        let dying = live.to_dying();
        assert_eq!((dying.state(), dying.packed()), (live.state(), live.packed()));
        assert!(dying.is_dying() && dying.is_live() && dying.is_taken() && !dying.is_pending());
        assert!(!dying.is_reusable(u64::MAX, 0));
        assert_eq!((dying.undying(), dying.to_live(), live.undying()), (live, live, live));
        let pending = live.to_pending();
        assert!(pending.is_taken() && !pending.is_dying() && pending.undying() == pending);
    }

    #[test]
    fn deleted_slot_waits_over_a_lease_across_the_wrap() {
        for deleted in [0, 1, 5_000_000, TIME_MASK - 100_000, TIME_MASK, TIME_MASK + 7] {
            let slot = Slot::deleted(deleted, 7);
            assert!(!slot.is_reusable(deleted, LEASE));
            assert!(!slot.is_reusable(deleted.wrapping_sub(1), LEASE), "another thread's clock");
            assert!(
                !slot.is_reusable(deleted + LEASE, LEASE),
                "a stamp of that age is fresh still"
            );
            assert!(slot.is_reusable(deleted + LEASE + 1, LEASE));
            assert!(slot.is_reusable(deleted + 3_600_000_000, LEASE));
        }
        assert!(Slot::EMPTY.is_reusable(0, LEASE));
        assert!(!Slot::live(0, 64, 0).expect("fits").is_reusable(u64::MAX, LEASE));
    }

    proptest! {
        #[test]
        fn fields_of_a_slot_round_trip(packed in 0u64..1 << 46, bytes in 1u64..20_000, fingerprint: u8, time: u64, tag: u16) {
            let slot = Slot::live(packed, bytes, fingerprint).expect("fits");
            prop_assert_eq!(slot.packed(), Some(packed));
            prop_assert!(slot.matches(fingerprint) && !slot.matches(fingerprint ^ 1));
            if bytes <= LENGTH_UNITS_MAX * UNIT_BYTES {
                prop_assert_eq!(slot.read_bytes(), bytes.next_multiple_of(UNIT_BYTES));
            } else {
                prop_assert_eq!(slot.read_bytes(), LENGTH_UNITS_MAX * UNIT_BYTES);
            }
            let deleted = Slot::deleted(time, tag);
            prop_assert!(!deleted.is_live() && deleted != Slot::EMPTY && deleted.packed().is_none());
            prop_assert!(!deleted.matches(tag as u8));
        }

        #[test]
        fn every_word_is_a_slot_and_says_itself_again(word: u64) {
            // A dying word has the same facts as the live one.
            let word = Slot(word).undying().0;
            let again = match Slot(word).state() {
                SlotState::Empty => Slot::EMPTY,
                SlotState::Live { packed, units, fingerprint } => {
                    let bytes = units.map_or(256, u64::from) * UNIT_BYTES;
                    Slot::live(packed, bytes, fingerprint).expect("46 bits")
                }
                SlotState::Pending { packed } => {
                    prop_assert_eq!(Some(packed), Slot(word).to_live().packed());
                    Slot(word).to_live().to_pending()
                }
                SlotState::Deleted { time_us, tag } => Slot::deleted(time_us, tag),
            };
            prop_assert_eq!(again, Slot(word));
        }
    }
}
