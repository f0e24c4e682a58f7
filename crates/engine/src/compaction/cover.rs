//! The inputs' range tombstones: which records they cover, and which of them must be written on.

use archipelago_base::SeqNo;

use super::below::Below;
use super::stripes::Stripes;
use crate::key::KeyRange;
use crate::tombstone::{RangeTombstone, TombstoneSet};

/// Walks the fragments along with the keys; each fragment is passed once per job.
#[derive(Debug)]
pub(super) struct Cover {
    set: TombstoneSet,
    at: usize,
    /// Whether `at` is the fragment that holds the current key.
    covers: bool,
}

impl Cover {
    pub(super) fn new(set: TombstoneSet) -> Self {
        Self { set, at: 0, covers: false }
    }

    /// Goes to `key`, which is larger than the one before.
    #[inline]
    pub(super) fn enter(&mut self, key: &[u8]) {
        let fragments = self.set.fragments();
        if self.at == fragments.len() {
            self.covers = false;
            return;
        }
        while fragments.get(self.at).is_some_and(|fragment| fragment.end.as_slice() <= key) {
            self.at += 1;
        }
        self.covers =
            fragments.get(self.at).is_some_and(|fragment| fragment.start.as_slice() <= key);
    }

    /// The newest tombstone over the current key at or below `upper`.
    #[inline]
    pub(super) fn newest(&self, upper: SeqNo) -> Option<SeqNo> {
        if !self.covers {
            return None;
        }
        self.set.fragments()[self.at].newest_visible(upper)
    }
}

/// The tombstones of several inputs within `range`, as one set.
#[must_use]
pub(crate) fn union<'a>(
    sets: impl IntoIterator<Item = &'a TombstoneSet>,
    range: &KeyRange,
) -> TombstoneSet {
    let all: Vec<RangeTombstone> = sets
        .into_iter()
        .flat_map(TombstoneSet::iter)
        .filter_map(|tombstone| tombstone.clipped(&range.start, range.end.as_deref()))
        .collect();
    TombstoneSet::new(&all)
}

/// What of `set` the outputs must carry: of each fragment the newest tombstone of every stripe
/// and all above `visible`; none in the oldest stripe where nothing older lies below.
pub(super) fn retained(set: &TombstoneSet, stripes: &Stripes, below: &Below) -> TombstoneSet {
    let mut kept = Vec::new();
    for fragment in set.fragments() {
        let mut last = None;
        for &seq in &fragment.seqs {
            let stripe = stripes.of(seq);
            let hidden = stripe.is_some() && stripe == last;
            let needless = stripe == Some(0) && !below.overlaps(&fragment.start, &fragment.end);
            last = stripe;
            if !hidden && !needless {
                let (start, end) = (fragment.start.clone(), fragment.end.clone());
                kept.push(RangeTombstone { start, end, seq });
            }
        }
    }
    TombstoneSet::new(&kept)
}
