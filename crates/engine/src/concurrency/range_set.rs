//! A set of keys as disjoint ranges. No I/O, no locks.
//!
//! Invariants:
//! 1. No two ranges overlap or meet: such ranges become one.
//! 2. No range is empty.
//!
//! Failure: none. Cost: an insertion is one search, and one removal for each range that it joins. A
//! question is one search.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::key::KeyRange;

/// Memory of a range in bytes, without its keys.
const RANGE_BYTES: u64 = 96;

/// Disjoint ranges of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    /// The end of each range (`None` for no end) by its start.
    ranges: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    bytes: u64,
}

impl RangeSet {
    /// Whether the set has no key.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Memory of the ranges in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The ranges in key order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = KeyRange> {
        self.ranges.iter().map(|(start, end)| KeyRange { start: start.clone(), end: end.clone() })
    }

    /// Adds the keys of `range`.
    pub(crate) fn insert(&mut self, mut range: KeyRange) {
        if range.is_empty() {
            return;
        }
        let before = self.last_from_before(&range.start);
        if let Some((start, end)) = before
            && end.as_ref().is_none_or(|end| *end >= range.start)
        {
            range.start.clone_from(start);
        }
        // From here on every range to be joined begins at or after the start.
        while let Some((start, _)) = self.ranges.range::<[u8], _>(from(&range.start)).next()
            && range.end.as_ref().is_none_or(|end| start <= end)
        {
            let start = start.clone();
            let end = self.ranges.remove(&start).expect("it was found");
            self.bytes -= bytes(&start, end.as_deref());
            range.end = match (range.end, end) {
                (Some(a), Some(b)) => Some(a.max(b)),
                _ => None,
            };
        }
        self.bytes += bytes(&range.start, range.end.as_deref());
        self.ranges.insert(range.start, range.end);
    }

    /// Replaces all ranges by the one from the first key to the last.
    pub(crate) fn join_all(&mut self) {
        let (Some((first, _)), Some((_, last))) =
            (self.ranges.first_key_value(), self.ranges.last_key_value())
        else {
            return;
        };
        let hull = KeyRange { start: first.clone(), end: last.clone() };
        *self = Self::default();
        self.insert(hull);
    }

    /// The last range that begins at or before `key`.
    fn last_from_before(&self, key: &[u8]) -> Option<(&Vec<u8>, &Option<Vec<u8>>)> {
        let until = (Bound::Unbounded, Bound::Included(key));
        self.ranges.range::<[u8], _>(until).next_back()
    }

    /// Whether the set has `key`.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        let before = self.last_from_before(key);
        before.is_some_and(|(_, end)| end.as_ref().is_none_or(|end| key < end.as_slice()))
    }

    /// Whether the set has a key from `start` (inclusive) to `end` (exclusive).
    pub(crate) fn overlaps(&self, start: &[u8], end: &[u8]) -> bool {
        if end <= start {
            return false;
        }
        let inside = (Bound::Included(start), Bound::Excluded(end));
        self.contains(start) || self.ranges.range::<[u8], _>(inside).next().is_some()
    }
}

/// Bounds of all keys at or after `key`.
fn from(key: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Included(key), Bound::Unbounded)
}

fn bytes(start: &[u8], end: Option<&[u8]>) -> u64 {
    RANGE_BYTES + (start.len() + end.map_or(0, <[u8]>::len)) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use archipelago_base::random::Rng;

    use super::*;

    fn range(start: u8, end: Option<u8>) -> KeyRange {
        KeyRange { start: vec![start], end: end.map(|end| vec![end]) }
    }

    #[test]
    fn ranges_that_meet_become_one() {
        let mut set = RangeSet::default();
        set.insert(range(5, Some(7)));
        set.insert(range(9, Some(12)));
        set.insert(range(7, Some(7)));
        assert_eq!(set.len(), 2);
        set.insert(range(7, Some(9)));
        assert_eq!(set.iter().collect::<Vec<_>>(), [range(5, Some(12))]);
        set.insert(range(10, None));
        assert_eq!(set.iter().collect::<Vec<_>>(), [range(5, None)]);
        assert!(set.contains(b"\xff\xff") && !set.contains(&[4]));
    }

    #[test]
    fn joined_set_is_the_range_from_first_to_last() {
        let mut set = RangeSet::default();
        set.join_all();
        assert!(set.is_empty());
        set.insert(range(5, Some(7)));
        set.insert(range(20, Some(30)));
        set.join_all();
        assert_eq!(set.iter().collect::<Vec<_>>(), [range(5, Some(30))]);
    }

    #[test]
    fn set_equals_a_set_of_its_keys() {
        let mut rng = Rng::with_seed(38);
        for _ in 0..300 {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for _ in 0..rng.usize(1..12) {
                let (start, len) = (rng.u8(0..60), rng.u8(0..9));
                set.insert(range(start, Some(start + len)));
                model.extend(start..start + len);
            }
            let spans = set.iter().collect::<Vec<_>>();
            assert!(spans.windows(2).all(|pair| pair[0].end.as_ref() < Some(&pair[1].start)));
            for key in 0..70 {
                assert_eq!(set.contains(&[key]), model.contains(&key));
                let end = key + rng.u8(0..6);
                let any = model.range(key..end.max(key)).next().is_some();
                assert_eq!(set.overlaps(&[key], &[end]), any);
            }
        }
    }
}
