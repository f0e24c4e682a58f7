//! The parts that stay in memory of a memtable shard that leaves: its figures, its filter, its
//! range tombstones and a sample of its keys.
//!
//! Thread-safety: plain values.
//! Failure: none.
//! Cost: a walk over the keys of the shard. The sample has at most [`SAMPLED_KEYS_MAX`] keys.

use std::sync::Arc;

use archipelago_base::SeqNo;

use crate::iter::InternalIterator;
use crate::key::{self, Kind, split_expiry};
use crate::memtable::{ImageHead, Shard, ShardFilter};
use crate::sst::SampledKey;
use crate::tombstone::TombstoneSet;

/// Largest number of keys of a shard that stay as a sample.
const SAMPLED_KEYS_MAX: usize = 256;

/// Figures of a shard that left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AwayFigures {
    /// Number of point records.
    pub(crate) entries: u64,
    /// Number of point records that are deletes.
    pub(crate) deletions: u64,
    /// Number of different user keys. For a shard that an earlier open sent, it is the number of
    /// point records.
    pub(crate) user_keys: u64,
    /// Bytes of the records as stored, tombstones included.
    pub(crate) data_bytes: u64,
    /// Smallest sequence number, tombstones included.
    pub(crate) smallest_seq: SeqNo,
    /// Largest sequence number, tombstones included.
    pub(crate) largest_seq: SeqNo,
    /// Bytes of the image.
    pub(crate) image_bytes: u64,
}

/// The parts that stay in memory of a shard that leaves.
pub(crate) struct Remainder {
    pub(super) figures: AwayFigures,
    pub(super) filter: Option<ShardFilter>,
    pub(super) tombstones: Arc<TombstoneSet>,
    pub(super) sample: Vec<SampledKey>,
}

impl Remainder {
    /// Bytes of memory of the filter and the sample. The range tombstones have a charge of their
    /// own.
    pub(super) fn bytes(&self) -> u64 {
        let filter_bytes = self.filter.as_ref().map_or(0, ShardFilter::bytes);
        let keys: usize = self.sample.iter().map(|sampled| sampled.key.capacity()).sum();
        let sample_bytes = self.sample.capacity() * size_of::<SampledKey>() + keys;
        (filter_bytes + sample_bytes) as u64
    }

    /// The remainder of a sealed shard whose image has `image_bytes` bytes. Costs a walk over the
    /// keys.
    pub(crate) fn of(shard: &Arc<Shard>, image_bytes: u64) -> Self {
        let (user_keys, sample) = sample_of(shard);
        let figures = AwayFigures {
            entries: shard.entries(),
            deletions: shard.deletions(),
            user_keys,
            data_bytes: shard.data_bytes(),
            smallest_seq: shard.smallest_seq(),
            largest_seq: shard.largest_seq(),
            image_bytes,
        };
        let filter = shard.filter().cloned();
        Self { figures, filter, tombstones: shard.tombstones(), sample }
    }

    /// The remainder of a shard that an earlier open sent, whose image has `image_bytes` bytes. Its
    /// keys are not sampled, because that would need the whole image.
    pub(crate) fn of_head(head: ImageHead, image_bytes: u64) -> Self {
        let figures = AwayFigures {
            entries: head.entries,
            deletions: head.deletions,
            user_keys: head.entries,
            data_bytes: head.data_bytes,
            smallest_seq: head.smallest_seq,
            largest_seq: head.largest_seq,
            image_bytes,
        };
        Self { figures, filter: head.filter, tombstones: head.tombstones, sample: Vec::new() }
    }
}

/// The number of user keys, and some keys at even distances, each with its newest record.
fn sample_of(shard: &Arc<Shard>) -> (u64, Vec<SampledKey>) {
    let distance = shard.entries().div_ceil(SAMPLED_KEYS_MAX as u64).max(1);
    let (mut user_keys, mut at, mut wanted_at) = (0, 0, 0);
    let mut sample = Vec::new();
    let mut last: Option<Vec<u8>> = None;
    let mut iter = shard.iter();
    iter.seek_to_first();
    while iter.valid() {
        let user_key = key::user_key(iter.key());
        if last.as_deref() != Some(user_key) {
            user_keys += 1;
            if at >= wanted_at
                && let Some(record) = key::KeyRef::decode(iter.key())
            {
                wanted_at = at + distance;
                let expires = record.kind == Kind::PutExpiring;
                let expiry = expires.then(|| split_expiry(iter.value())).flatten();
                sample.push(SampledKey {
                    key: user_key.to_vec(),
                    seq: record.seq,
                    kind: record.kind,
                    expiry: expiry.map(|(at_ms, _)| at_ms),
                });
            }
            let last = last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(user_key);
        }
        at += 1;
        iter.next();
    }
    (user_keys, sample)
}
