//! The search that the live index and the sealed image share. Keys become eight-byte prefixes, and
//! records are read only if prefixes tie.
//!
//! A node maps keys to prefixes in one of two ways, both monotone (a smaller key never has a
//! larger prefix) for every key that is searched in the node:
//!
//! - [`GUESS`]: by the guess of the whole shard, a prefix that its first keys shared. A key before
//!   the guess maps to 0, and a key after it to the maximum. A key that starts with it maps to its
//!   next eight bytes. This is correct for any key, so a wrong guess costs only speed.
//! - a number `n`: the eight bytes from `n` on. This is correct only for keys between the node's
//!   fences, which share their first `n` bytes. A search that did not reach the node from its
//!   parent must compare whole keys ([`partition_full`]).
//!
//! Keys that end early are padded with zeros. So they tie with keys that continue with zeros.
//!
//! Cost: one binary search over prefixes (no record is touched), and one over the tied entries.

use std::cell::Cell;
use std::cmp::Ordering;
use std::ops::Range;

use super::kv::RecordRef;
use crate::key;

/// The skip value of nodes that use the shard's guess.
pub(super) const GUESS: u32 = u32::MAX;

/// Entries in key order.
pub(super) trait Slots {
    /// The prefix at a position.
    fn prefix(&self, position: usize) -> u64;
    /// The record at a position.
    fn record(&self, position: usize) -> RecordRef;
}

/// Source of the keys of records: trusted memory, which always answers, or foreign bytes.
pub(super) trait Records {
    /// The encoded internal key of a record; `None` if the bytes are damaged.
    fn key(&self, record: RecordRef) -> Option<&[u8]>;
}

/// The internal key that is searched, in two parts.
pub(super) struct Target<'a> {
    /// The user key.
    pub(super) key: &'a [u8],
    /// The trailer word.
    pub(super) trailer: u64,
    guess: Cell<Option<u64>>,
}

impl<'a> Target<'a> {
    #[inline(always)]
    pub(super) fn new(key: &'a [u8], trailer: u64) -> Self {
        Self { key, trailer, guess: Cell::new(None) }
    }

    /// The target of an encoded internal key.
    #[inline(always)]
    pub(super) fn encoded(encoded: &'a [u8]) -> Self {
        Self::new(key::user_key(encoded), key::trailer(encoded))
    }

    /// The key's prefix in a node with this skip. `guess` is called at most once, at the first node
    /// that needs it.
    #[inline(always)]
    pub(super) fn prefix<'g>(&self, skip: u32, guess: impl FnOnce() -> &'g [u8]) -> u64 {
        if skip != GUESS {
            return load8(self.key, skip as usize);
        }
        if let Some(prefix) = self.guess.get() {
            return prefix;
        }
        let prefix = guessed(self.key, guess());
        self.guess.set(Some(prefix));
        prefix
    }

    /// Compares an encoded internal key with the target.
    #[inline(always)]
    fn compare(&self, encoded: &[u8]) -> Ordering {
        key::user_key(encoded).cmp(self.key).then_with(|| self.trailer.cmp(&key::trailer(encoded)))
    }
}

/// The positions that a search passes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Past {
    /// Positions before the target.
    Before,
    /// Positions before the target, and the target itself.
    Equal,
}

impl Past {
    #[inline(always)]
    fn goes_past(self, entry: Ordering) -> bool {
        entry == Ordering::Less || (entry == Ordering::Equal && self == Self::Equal)
    }
}

/// The eight bytes of `key` from `at` on, big-endian, padded with zeros.
#[inline(always)]
pub(super) fn load8(key: &[u8], at: usize) -> u64 {
    if let Some(bytes) = key.get(at..at.wrapping_add(8))
        && let Ok(bytes) = bytes.try_into()
    {
        return u64::from_be_bytes(bytes);
    }
    let rest = key.get(at..).unwrap_or_default();
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(rest) {
        *to = *from;
    }
    u64::from_be_bytes(bytes)
}

/// The prefix of a key under a guess.
#[inline]
pub(super) fn guessed(key: &[u8], guess: &[u8]) -> u64 {
    if key.starts_with(guess) {
        load8(key, guess.len())
    } else if key < guess {
        0
    } else {
        u64::MAX
    }
}

/// Number of leading bytes that two keys share.
pub(super) fn shared(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// First position of `range` that the search does not go past. `None` if a record that had to
/// be looked at is damaged.
#[inline(always)]
pub(super) fn partition(
    slots: &impl Slots,
    range: Range<usize>,
    prefix: u64,
    target: &Target<'_>,
    past: Past,
    records: &impl Records,
) -> Option<usize> {
    let Range { start: from, end: to } = range;
    let lower = first_at_least(slots, from, to, prefix);
    if lower == to || slots.prefix(lower) != prefix {
        return Some(lower);
    }
    let upper = match prefix.checked_add(1) {
        Some(next) if lower + 1 < to && slots.prefix(lower + 1) == prefix => {
            first_at_least(slots, lower + 1, to, next)
        }
        Some(_) => lower + 1,
        None => to,
    };
    partition_full(slots, lower..upper, target, past, records)
}

/// Does the work of [`partition`] by whole keys, for nodes whose prefixes do not hold for the
/// target.
#[inline]
pub(super) fn partition_full(
    slots: &impl Slots,
    range: Range<usize>,
    target: &Target<'_>,
    past: Past,
    records: &impl Records,
) -> Option<usize> {
    let Range { start: mut low, end: mut high } = range;
    while low < high {
        let middle = (low + high) / 2;
        if past.goes_past(target.compare(records.key(slots.record(middle))?)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Some(low)
}

/// First position of `from..to` with a prefix of at least `prefix`.
#[inline(always)]
fn first_at_least(slots: &impl Slots, from: usize, to: usize, prefix: u64) -> usize {
    let (mut base, mut len) = (from, to - from);
    while len > 0 {
        let half = len / 2;
        let less = slots.prefix(base + half) < prefix;
        base = if less { base + half + 1 } else { base };
        len = if less { len - half - 1 } else { half };
    }
    base
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prefixes_never_invert_the_order(
            a in prop::collection::vec(0u8..3, 0..14),
            b in prop::collection::vec(0u8..3, 0..14),
            guess in prop::collection::vec(0u8..3, 0..5),
        ) {
            let (small, large) = if a <= b { (&a, &b) } else { (&b, &a) };
            prop_assert!(guessed(small, &guess) <= guessed(large, &guess));
            let skip = shared(small, large);
            for skip in 0..=skip {
                prop_assert!(load8(small, skip) <= load8(large, skip));
            }
        }
    }
}
