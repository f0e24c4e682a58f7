//! When a subtable may grow, and to which sizes.
//!
//! Keys whose hashes agree in the bits for buckets share their two buckets at every size. A client
//! that chooses its keys so would double the subtable with each write, and none of the doublings
//! would make room. So a subtable in which few slots are in use does not grow, and a key that finds
//! no place there is refused. Keys that were not chosen practically never crowd two buckets of such
//! a subtable: on average, their buckets have one key together. Slots that were deleted shortly
//! before count as used, so a subtable of the smallest usual size (256 slots) may grow as soon as
//! two buckets are full.
//!
//! Invariant: a subtable that grows has at most 2^[`DOUBLINGS`] · [`SLOTS_PER_USE_MAX`] slots for
//! each slot that was in use, so its memory follows from its keys.
//!
//! Thread-safety: values.
//! Failure: [`GrowthRefused`].
//! Cost: some instructions. The rule is an addition to the paper.

use std::ops::RangeInclusive;

use super::partition::LOG2_BUCKETS_MAX;
use super::table::{BUCKET_BYTES, BUCKET_SLOTS};

/// Number of doublings that are tried when a subtable grows.
const DOUBLINGS: u32 = 3;
/// A subtable with more slots for each slot that is in use does not grow.
const SLOTS_PER_USE_MAX: u64 = 16;

/// The reason for which a subtable may not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GrowthRefused {
    /// Few slots are in use, so more slots make no room for the key that found no place.
    #[error("too many keys share their buckets: only {used} of {slots} slots are in use")]
    Sparse {
        /// Number of slots that are in use.
        used: u64,
        /// Number of slots of the subtable.
        slots: u64,
    },
    /// A larger subtable fits neither the hash nor a block.
    #[error("it has 2^{log2_buckets} buckets, and no more are possible")]
    Largest {
        /// Base-2 logarithm of the number of buckets.
        log2_buckets: u32,
    },
}

/// The base-2 logarithms of the numbers of buckets that a subtable of 2^`log2_buckets` buckets may
/// get, in the order in which to try them. `used` is the number of slots that an insert may not
/// take. A subtable has at most `bytes_max` bytes, which are those of a block.
pub(crate) fn growth_sizes(
    used: u64,
    log2_buckets: u32,
    bytes_max: u64,
) -> Result<RangeInclusive<u32>, GrowthRefused> {
    let slots = (BUCKET_SLOTS as u64) << log2_buckets;
    if used * SLOTS_PER_USE_MAX < slots {
        return Err(GrowthRefused::Sparse { used, slots });
    }
    let fits =
        |log2: &u32| *log2 <= LOG2_BUCKETS_MAX && (BUCKET_BYTES as u64) << *log2 <= bytes_max;
    let sizes = log2_buckets + 1..=log2_buckets + DOUBLINGS;
    let last = sizes.take_while(fits).last();
    last.map(|last| log2_buckets + 1..=last).ok_or(GrowthRefused::Largest { log2_buckets })
}

#[cfg(test)]
mod tests {
    use super::super::slot::Slot;
    use super::super::table::{KeyHash, regrow};
    use super::*;

    const BLOCK: u64 = 16 << 20;

    #[test]
    fn keys_that_share_their_buckets_do_not_double_a_subtable_without_end() {
        let entry = |n: u64| {
            let hash = KeyHash(n << 40 | 0x12_3456_789a);
            (hash, Slot::live(n, 64, hash.fingerprint()).expect("fits"))
        };
        let keys = |count: u64| (0..count).map(entry);
        // The seventeenth key finds no place at any size.
        assert!((1..12).all(|log2| regrow(keys(17), log2).is_none()));
        let mut log2 = 0;
        let refused = loop {
            match growth_sizes(16, log2, BLOCK) {
                Ok(mut sizes) => {
                    let larger = sizes.find(|larger| regrow(keys(16), *larger).is_some());
                    log2 = larger.expect("two buckets take sixteen keys");
                }
                Err(refused) => break refused,
            }
        };
        assert_eq!((log2, refused), (6, GrowthRefused::Sparse { used: 16, slots: 512 }));
        assert!(refused.to_string().contains("share their buckets"), "{refused}");
    }

    #[test]
    fn subtable_in_use_doubles_up_to_the_sizes_that_are_possible() {
        let full = |log2: u32| 8_u64 << log2;
        assert_eq!(growth_sizes(full(5), 5, BLOCK), Ok(6..=8));
        assert_eq!(growth_sizes(16, 5, BLOCK), Ok(6..=8), "two full buckets suffice");
        assert!(growth_sizes(15, 5, BLOCK).is_err());
        assert_eq!(growth_sizes(full(17), 17, BLOCK), Ok(18..=18), "2^18 buckets fill a block");
        let largest = |log2_buckets: u32| GrowthRefused::Largest { log2_buckets };
        assert_eq!(growth_sizes(full(18), 18, BLOCK), Err(largest(18)));
        assert_eq!(growth_sizes(full(18), 18, u64::MAX), Ok(19..=LOG2_BUCKETS_MAX));
        assert_eq!(growth_sizes(full(20), LOG2_BUCKETS_MAX, u64::MAX), Err(largest(20)));
    }
}
