//! Range tombstones: deletes of a whole key range, cut into fragments that do not overlap.
//!
//! A [`TombstoneSet`] is immutable; it belongs to a memtable shard (rebuilt when one is added) or
//! to a table (built when it is opened). Invariants: fragments are sorted by start, none is empty,
//! none overlap; each has its sequence numbers in strictly descending order. Building `n`
//! tombstones costs O(n log n) plus the fragments' sizes; a query is one binary search.

use std::collections::BTreeSet;

use archipelago_base::SeqNo;

/// One delete of the keys from `start` (inclusive) to `end` (exclusive).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeTombstone {
    /// First deleted key.
    pub start: Vec<u8>,
    /// First key that is not deleted.
    pub end: Vec<u8>,
    /// When it was written: older records in the range are deleted.
    pub seq: SeqNo,
}

impl RangeTombstone {
    /// The part within `start..end` (`None`: no end); `None` if nothing is left.
    #[must_use]
    pub fn clipped(&self, start: &[u8], end: Option<&[u8]>) -> Option<Self> {
        let clipped = Self {
            start: self.start.as_slice().max(start).to_vec(),
            end: end.map_or(self.end.as_slice(), |end| self.end.as_slice().min(end)).to_vec(),
            seq: self.seq,
        };
        (clipped.start < clipped.end).then_some(clipped)
    }
}

/// A range of keys and all deletes that cover it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// First key.
    pub start: Vec<u8>,
    /// First key past it.
    pub end: Vec<u8>,
    /// The deletes' sequence numbers, newest first.
    pub seqs: Vec<SeqNo>,
}

impl Fragment {
    /// The newest delete that `snapshot` sees.
    #[must_use]
    pub fn newest_visible(&self, snapshot: SeqNo) -> Option<SeqNo> {
        let at = self.seqs.partition_point(|&seq| seq > snapshot);
        self.seqs.get(at).copied()
    }
}

/// Range tombstones as non-overlapping fragments; see the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TombstoneSet {
    fragments: Vec<Fragment>,
}

impl TombstoneSet {
    /// Cuts `tombstones` (in any order, overlapping at will; empty ones are ignored).
    #[must_use]
    pub fn new(tombstones: &[RangeTombstone]) -> Self {
        let mut opens: Vec<&RangeTombstone> =
            tombstones.iter().filter(|tombstone| tombstone.start < tombstone.end).collect();
        opens.sort_by(|a, b| a.start.cmp(&b.start));
        let cuts: BTreeSet<&[u8]> =
            opens.iter().flat_map(|t| [t.start.as_slice(), t.end.as_slice()]).collect();
        let cuts: Vec<&[u8]> = cuts.into_iter().collect();
        let mut fragments: Vec<Fragment> = Vec::new();
        let mut active: Vec<&RangeTombstone> = Vec::new();
        let mut next = 0;
        for pair in cuts.windows(2) {
            let (start, end) = (pair[0], pair[1]);
            active.retain(|tombstone| tombstone.end.as_slice() > start);
            while next < opens.len() && opens[next].start.as_slice() <= start {
                active.push(opens[next]);
                next += 1;
            }
            let mut seqs: Vec<SeqNo> = active.iter().map(|tombstone| tombstone.seq).collect();
            seqs.sort_unstable_by(|a, b| b.cmp(a));
            seqs.dedup();
            if seqs.is_empty() {
                continue;
            }
            match fragments.last_mut() {
                Some(last) if last.end == start && last.seqs == seqs => last.end = end.to_vec(),
                _ => fragments.push(Fragment { start: start.to_vec(), end: end.to_vec(), seqs }),
            }
        }
        Self { fragments }
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// The fragments, sorted.
    #[must_use]
    pub fn fragments(&self) -> &[Fragment] {
        &self.fragments
    }

    /// The fragment that holds `key`.
    #[must_use]
    pub fn covering(&self, key: &[u8]) -> Option<&Fragment> {
        let at = self.fragments.partition_point(|fragment| fragment.end.as_slice() <= key);
        self.fragments.get(at).filter(|fragment| fragment.start.as_slice() <= key)
    }

    /// The newest delete of `key` that `snapshot` sees: records of the key older than it are
    /// deleted.
    #[inline]
    #[must_use]
    pub fn max_covering(&self, key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        if self.fragments.is_empty() {
            return None;
        }
        self.covering(key)?.newest_visible(snapshot)
    }

    /// The same tombstones as one list, a tombstone per fragment and sequence number.
    pub fn iter(&self) -> impl Iterator<Item = RangeTombstone> + '_ {
        self.fragments.iter().flat_map(|fragment| {
            fragment.seqs.iter().map(|&seq| RangeTombstone {
                start: fragment.start.clone(),
                end: fragment.end.clone(),
                seq,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fragments_say_what_the_tombstones_say(
            raw in prop::collection::vec((0u8..20, 0u8..20, 1u64..50), 0..30),
            snapshot in 0u64..60,
        ) {
            let tombstones: Vec<_> = raw
                .iter()
                .map(|&(a, b, seq)| RangeTombstone { start: vec![a], end: vec![b], seq: SeqNo(seq) })
                .collect();
            let set = TombstoneSet::new(&tombstones);
            for pair in set.fragments().windows(2) {
                prop_assert!(pair[0].end <= pair[1].start);
            }
            for key in 0u8..20 {
                let expected = tombstones
                    .iter()
                    .filter(|t| t.start[0] <= key && key < t.end[0] && t.seq.0 <= snapshot)
                    .map(|t| t.seq)
                    .max();
                prop_assert_eq!(set.max_covering(&[key], SeqNo(snapshot)), expected);
            }
            let again: Vec<_> = set.iter().collect();
            prop_assert_eq!(TombstoneSet::new(&again), set);
        }
    }
}
