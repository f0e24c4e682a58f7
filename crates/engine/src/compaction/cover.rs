//! The inputs' range tombstones: which records they cover, and which of them must be written on.
//!
//! One job owns the value. No reader looks between the ends of a stripe ([`super::stripes`]). So
//! within a stripe only the newest tombstone over a key matters, and a record is dropped only for a
//! tombstone of its own stripe. A job therefore holds one skyline for each stripe that has
//! tombstones.
//!
//! Invariants:
//! 1. Every tombstone lies in the skyline of its stripe or, above `visible`, in `latest` as it is.
//! 2. Keys are asked in ascending order, so every skyline is passed once.
//!
//! Cost: O(n log n) time and O(n) memory for `n` tombstones, for any overlap and any number of
//! snapshots: skylines have at most `2n` pieces in all. A question is a comparison with the next
//! cut of one skyline, and a search for the stripe if there are several.

use std::sync::Arc;

use archipelago_base::SeqNo;

use super::stripes::Stripes;
use crate::job::below::Below;
use crate::key::KeyRange;
use crate::tombstone::{RangeTombstone, Skyline};

/// The range tombstones of a job's inputs, as one skyline per stripe.
#[derive(Debug, Default)]
pub(super) struct Cover {
    /// The stripes that have tombstones, in ascending order of sequence numbers.
    stripes: Vec<StripeCover>,
    /// Tombstones above `visible`, which hide nothing yet.
    latest: Vec<RangeTombstone>,
}

#[derive(Debug)]
struct StripeCover {
    stripe: usize,
    skyline: Skyline,
    /// Number of cuts at or before the last key.
    at: usize,
}

impl Cover {
    pub(super) fn new(mut tombstones: Vec<RangeTombstone>, stripes: &Stripes) -> Self {
        tombstones.sort_unstable_by_key(|tombstone| tombstone.seq);
        let mut cover = Self::default();
        let of_one = tombstones.chunk_by(|a, b| stripes.of(a.seq) == stripes.of(b.seq));
        for group in of_one {
            match stripes.of(group[0].seq) {
                Some(stripe) => {
                    let skyline = Skyline::of(group);
                    cover.stripes.push(StripeCover { stripe, skyline, at: 0 });
                }
                None => cover.latest.extend_from_slice(group),
            }
        }
        cover
    }

    /// The newest tombstone of `stripe` over `key`. Keys must be asked in ascending order.
    #[inline]
    pub(super) fn newest(&mut self, key: &[u8], stripe: usize) -> Option<SeqNo> {
        let of_stripe = match self.stripes.as_mut_slice() {
            [] => return None,
            [only] => Some(only).filter(|only| only.stripe == stripe),
            all => {
                let at = all.partition_point(|cover| cover.stripe < stripe);
                all.get_mut(at).filter(|cover| cover.stripe == stripe)
            }
        }?;
        of_stripe.skyline.newest_from(&mut of_stripe.at, key)
    }

    /// The tombstones that the outputs must carry, sorted by start: the skyline of every stripe and
    /// all tombstones above `visible`. Pieces of the oldest stripe are left out if nothing older
    /// lies below them.
    pub(super) fn retained(&self, below: &Below) -> Vec<RangeTombstone> {
        let mut kept = self.latest.clone();
        for cover in &self.stripes {
            let needed = |piece: &RangeTombstone| {
                cover.stripe > 0 || below.overlaps(&piece.start, &piece.end)
            };
            kept.extend(cover.skyline.covered().filter(needed));
        }
        kept.sort_unstable();
        kept
    }

    /// Bytes of memory, without keys.
    pub(super) fn memory_bytes(&self) -> u64 {
        let skylines: u64 = self.stripes.iter().map(|cover| cover.skyline.memory_bytes()).sum();
        skylines + list_bytes(&self.latest)
    }
}

fn list_bytes(list: &[RangeTombstone]) -> u64 {
    size_of_val(list) as u64
}

/// The parts of `tombstones` that lie in `range`.
#[must_use]
pub(crate) fn clip(
    tombstones: impl IntoIterator<Item = RangeTombstone>,
    range: &KeyRange,
) -> Vec<RangeTombstone> {
    let start: Arc<[u8]> = range.start.as_slice().into();
    let end: Option<Arc<[u8]>> = range.end.as_deref().map(Into::into);
    tombstones.into_iter().filter_map(|tombstone| tombstone.clipped(&start, end.as_ref())).collect()
}
