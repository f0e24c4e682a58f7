//! Content of a table that a rewrite could free: expiries, versions kept for snapshots, range
//! deletes. It also records how the table was written. Plain data, owned by `FileMeta` and by a
//! table's properties.
//!
//! The builder counts while it writes (`ContentCounter`); the manifest keeps the result, so that
//! a picker decides without opening a table.
//!
//! Invariants:
//! 1. `expiry_ms` ascends, and every expiring record expires at `expiry_ms[0]` or later and at
//!    `expiry_ms[4]` or earlier. At `expiry_ms[q]` at least `q` quarters of `expiring_bytes` have
//!    expired, for `q` from 1 to 4.
//! 2. A shadowed record follows a newer record of its key in the same table. The job that wrote the
//!    table kept it because a snapshot was between the two, or because the newer one was not
//!    published yet. So if no snapshot is between them any more, a rewrite removes one of the two.
//! 3. Every key of a covered range is deleted by a range tombstone of the table whose sequence
//!    number lies in `oldest_seq..=newest_seq`.
//!
//! Cost: a few integer operations for each record that is added, and one array of 2 KiB for a table
//! that has an expiring record.

use std::cmp::Reverse;

use archipelago_base::SeqNo;
use archipelago_base::codec::{Reader, put_bytes, put_u8, put_varint};

use crate::options::Compression;
use crate::tombstone::Skyline;

/// Largest number of covered ranges that a table names.
pub const COVERED_RANGES_MAX: usize = 8;
/// Largest length in bytes of the name of a compaction filter.
const FILTER_NAME_BYTES_MAX: usize = 1024;

/// Keys that range tombstones of a table delete without a gap.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CoveredRange {
    /// First deleted key.
    pub start: Vec<u8>,
    /// First key past the range.
    pub end: Vec<u8>,
    /// Smallest sequence number among the newest tombstones of each part. Older records are deleted
    /// everywhere in the range.
    pub oldest_seq: u64,
    /// Largest sequence number of a tombstone of the range.
    pub newest_seq: u64,
}

/// Content of a table that a rewrite could free. Bytes are those of user keys and values before
/// encoding. A separated value counts with its reference and its value record.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TableContent {
    /// Number of different user keys of point records.
    pub user_keys: u64,
    /// Number of point records that are merge operands.
    pub merges: u64,
    /// Number of point records that expire.
    pub expiring: u64,
    /// Bytes of point records that expire.
    pub expiring_bytes: u64,
    /// Unix milliseconds of the earliest expiry, of the times by which one, two and three quarters
    /// of `expiring_bytes` have expired, and of the latest expiry. All are 0 if nothing expires.
    pub expiry_ms: [u64; 5],
    /// Number of point records that are kept for a snapshot only: a newer record of their key is in
    /// the table.
    pub shadowed: u64,
    /// Bytes of the shadowed records.
    pub shadowed_bytes: u64,
    /// Upper bound of the number of user keys that have shadowed records.
    pub shadowed_keys: u64,
    /// Sequence number of the oldest shadowed record. It is 0 if there is none.
    pub shadowed_oldest_seq: u64,
    /// Sequence number of the newest record that shadows another. It is 0 if there is none.
    pub shadowing_newest_seq: u64,
    /// Compression that was demanded for data blocks.
    pub compression: Compression,
    /// Name of the compaction filter that was applied to the table when it was written.
    pub compaction_filter: Option<String>,
    /// Disjoint ranges that range tombstones of the table delete, in key order; the widest
    /// [`COVERED_RANGES_MAX`] if there are more.
    pub covered: Vec<CoveredRange>,
}

impl TableContent {
    /// Quarters of `expiring_bytes` that have expired at `now_ms` for certain: 0 to 4.
    #[must_use]
    pub fn expired_quarters(&self, now_ms: u64) -> u64 {
        match self.expiring {
            0 => 0,
            _ => self.expiry_ms[1..].iter().take_while(|&&at_ms| at_ms <= now_ms).count() as u64,
        }
    }

    /// Whether at least one record has expired at `now_ms`.
    #[must_use]
    pub fn has_expired(&self, now_ms: u64) -> bool {
        self.expiring > 0 && self.expiry_ms[0] <= now_ms
    }

    /// Number of shadowed records that a rewrite certainly removes, if `snapshots`, ascending, are
    /// the live ones. A snapshot needs at most one shadowed record of each key.
    #[must_use]
    pub fn unneeded_shadowed(&self, snapshots: &[SeqNo]) -> u64 {
        let from = snapshots.partition_point(|seq| seq.0 < self.shadowed_oldest_seq);
        let to = snapshots.partition_point(|seq| seq.0 < self.shadowing_newest_seq);
        let needed = (to.saturating_sub(from) as u64).saturating_mul(self.shadowed_keys);
        self.shadowed.saturating_sub(needed)
    }

    /// Appends the encoded content to `out`, for the manifest.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        self.numbers().iter().for_each(|&number| put_varint(out, number));
        put_u8(out, compression_byte(self.compression));
        put_bytes(out, self.compaction_filter.as_deref().unwrap_or_default().as_bytes());
        put_varint(out, self.covered.len() as u64);
        for range in &self.covered {
            put_bytes(out, &range.start);
            put_bytes(out, &range.end);
            put_varint(out, range.oldest_seq);
            put_varint(out, range.newest_seq);
        }
    }

    /// Decodes bytes that [`TableContent::encode`] wrote; `None` if they are damaged.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let mut numbers = [0; NUMBERS];
        for number in &mut numbers {
            *number = reader.varint()?;
        }
        let mut content = Self::from_numbers(numbers)?;
        content.compression = compression_of(reader.u8()?)?;
        let name = reader.bytes().filter(|name| name.len() <= FILTER_NAME_BYTES_MAX)?;
        let name = std::str::from_utf8(name).ok()?;
        content.compaction_filter = (!name.is_empty()).then(|| name.to_owned());
        let count = usize::try_from(reader.varint()?).ok()?;
        if count > COVERED_RANGES_MAX {
            return None;
        }
        for _ in 0..count {
            let (start, end) = (reader.bytes()?.to_vec(), reader.bytes()?.to_vec());
            let (oldest_seq, newest_seq) = (reader.varint()?, reader.varint()?);
            let follows = content.covered.last().is_none_or(|last| last.end <= start);
            if start >= end || !follows || oldest_seq > newest_seq || newest_seq > SeqNo::MAX.0 {
                return None;
            }
            content.covered.push(CoveredRange { start, end, oldest_seq, newest_seq });
        }
        Some(content)
    }

    fn numbers(&self) -> [u64; NUMBERS] {
        let [earliest, first, second, third, latest] = self.expiry_ms;
        [
            self.user_keys,
            self.merges,
            self.expiring,
            self.expiring_bytes,
            earliest,
            first,
            second,
            third,
            latest,
            self.shadowed,
            self.shadowed_bytes,
            self.shadowed_keys,
            self.shadowed_oldest_seq,
            self.shadowing_newest_seq,
        ]
    }

    fn from_numbers(numbers: [u64; NUMBERS]) -> Option<Self> {
        let [user_keys, merges, expiring, expiring_bytes, ..] = numbers;
        let expiry_ms = [numbers[4], numbers[5], numbers[6], numbers[7], numbers[8]];
        let seqs = (numbers[12], numbers[13]);
        let sound = expiry_ms.is_sorted() && seqs.0 <= seqs.1 && seqs.1 <= SeqNo::MAX.0;
        sound.then(|| Self {
            user_keys,
            merges,
            expiring,
            expiring_bytes,
            expiry_ms,
            shadowed: numbers[9],
            shadowed_bytes: numbers[10],
            shadowed_keys: numbers[11],
            shadowed_oldest_seq: seqs.0,
            shadowing_newest_seq: seqs.1,
            ..Self::default()
        })
    }
}

/// Number of numbers in the encoding.
const NUMBERS: usize = 14;

/// The byte that stands for a compression in formats.
pub(crate) fn compression_byte(compression: Compression) -> u8 {
    match compression {
        Compression::None => 0,
        Compression::Lz4 => 1,
        Compression::Zstd => 2,
    }
}

/// The compression for which `byte` stands in formats; `None` for another byte.
pub(crate) fn compression_of(byte: u8) -> Option<Compression> {
    [Compression::None, Compression::Lz4, Compression::Zstd].get(usize::from(byte)).copied()
}

/// The ranges that `tombstones` delete; the widest ones if there are more than
/// [`COVERED_RANGES_MAX`]. The width is the distance of the first bytes that differ within the
/// table.
pub(crate) fn covered_ranges(tombstones: &Skyline) -> Vec<CoveredRange> {
    let mut ranges: Vec<CoveredRange> = Vec::new();
    for piece in tombstones.covered() {
        let newest = piece.seq.0;
        match ranges.last_mut() {
            Some(last) if *last.end == *piece.start => {
                last.end = piece.end.to_vec();
                last.oldest_seq = last.oldest_seq.min(newest);
                last.newest_seq = last.newest_seq.max(newest);
            }
            _ => ranges.push(CoveredRange {
                start: piece.start.to_vec(),
                end: piece.end.to_vec(),
                oldest_seq: newest,
                newest_seq: newest,
            }),
        }
    }
    if ranges.len() > COVERED_RANGES_MAX {
        let (first, last) = (&ranges[0].start, &ranges[ranges.len() - 1].end);
        let shared = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        let width = |range: &CoveredRange| {
            head(&range.end, shared).saturating_sub(head(&range.start, shared))
        };
        // A stable sort: of ranges with equal widths, the first ones in key order stay.
        ranges.sort_by_key(|range| Reverse(width(range)));
        ranges.truncate(COVERED_RANGES_MAX);
        ranges.sort_by(|one, other| one.start.cmp(&other.start));
    }
    ranges
}

/// The eight bytes of `key` from `from` on, as a number that orders like them.
fn head(key: &[u8], from: usize) -> u64 {
    let bytes = key.get(from..).unwrap_or_default();
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_be_bytes(word)
}

/// Number of bits below the highest one of an expiry's distance that a slot of the histogram
/// distinguishes.
const SLOT_BITS: u32 = 2;
const SLOTS: usize = 64 << SLOT_BITS;

/// Counts a table's content while the table is written.
#[derive(Debug, Default)]
pub(crate) struct ContentCounter {
    content: TableContent,
    /// Bytes of expiring records by their distance from `created_ms`; empty before the first.
    slots: Vec<u64>,
    created_ms: u64,
    /// Whether the previous record was shadowed.
    after_shadowed: bool,
}

impl ContentCounter {
    /// A counter for a table that is written at `created_ms` (Unix milliseconds).
    pub(crate) fn new(created_ms: u64, compression: Compression, filter: Option<String>) -> Self {
        let content =
            TableContent { compression, compaction_filter: filter, ..TableContent::default() };
        Self { content, slots: Vec::new(), created_ms, after_shadowed: false }
    }

    /// Counts a record's user key. `is_new` says that it differs from that of the previous record.
    #[inline]
    pub(crate) fn add_key(&mut self, is_new: bool) {
        self.content.user_keys += u64::from(is_new);
    }

    /// Counts a merge operand.
    #[inline]
    pub(crate) fn add_merge(&mut self) {
        self.content.merges += 1;
    }

    /// Counts a record of `bytes` that expires at `expiry_ms`.
    #[inline]
    pub(crate) fn add_expiring(&mut self, bytes: u64, expiry_ms: u64) {
        let content = &mut self.content;
        if content.expiring == 0 {
            self.slots.resize(SLOTS, 0);
            content.expiry_ms = [expiry_ms; 5];
        }
        content.expiring += 1;
        content.expiring_bytes += bytes;
        content.expiry_ms[0] = content.expiry_ms[0].min(expiry_ms);
        content.expiry_ms[4] = content.expiry_ms[4].max(expiry_ms);
        self.slots[slot_of(expiry_ms.saturating_sub(self.created_ms))] += bytes;
    }

    /// Counts a record that only a snapshot needs. It has the sequence number `seq` and follows a
    /// newer record of its key with `newer_seq`.
    #[inline]
    pub(crate) fn add_shadowed(&mut self, bytes: u64, seq: u64, newer_seq: u64) {
        let content = &mut self.content;
        if content.shadowed == 0 {
            content.shadowed_oldest_seq = seq;
        }
        content.shadowed += 1;
        content.shadowed_bytes += bytes;
        content.shadowed_keys += u64::from(!self.after_shadowed);
        content.shadowed_oldest_seq = content.shadowed_oldest_seq.min(seq);
        content.shadowing_newest_seq = content.shadowing_newest_seq.max(newer_seq);
        self.after_shadowed = true;
    }

    /// Notes that the last counted record is not shadowed.
    #[inline]
    pub(crate) fn end_shadowed(&mut self) {
        self.after_shadowed = false;
    }

    /// The content of the whole table, whose range tombstones are `tombstones`.
    pub(crate) fn finish(mut self, tombstones: &Skyline) -> TableContent {
        let content = &mut self.content;
        content.covered = covered_ranges(tombstones);
        let (earliest, latest) = (content.expiry_ms[0], content.expiry_ms[4]);
        let (mut slot, mut expired) = (0, 0u128);
        for quarter in 1..4 {
            let wanted = u128::from(content.expiring_bytes) * quarter as u128;
            while slot < self.slots.len() && expired * 4 < wanted {
                expired += u128::from(self.slots[slot]);
                slot += 1;
            }
            // The end of the last slot that was counted. By then all of its records have expired.
            let end_ms = slot
                .checked_sub(1)
                .map_or(earliest, |last| self.created_ms.saturating_add(slot_last(last)));
            content.expiry_ms[quarter] = end_ms.clamp(earliest, latest);
        }
        self.content
    }
}

/// The slot of a distance, by its highest bit and the [`SLOT_BITS`] bits below.
#[inline]
fn slot_of(distance_ms: u64) -> usize {
    let Some(top) = distance_ms.checked_ilog2() else { return 0 };
    let below = match top.checked_sub(SLOT_BITS) {
        Some(shift) => distance_ms >> shift,
        None => distance_ms << (SLOT_BITS - top),
    };
    ((top as usize) << SLOT_BITS) | (below as usize & ((1 << SLOT_BITS) - 1))
}

/// The largest distance in a slot.
fn slot_last(slot: usize) -> u64 {
    let (top, below) = (slot >> SLOT_BITS, slot & ((1 << SLOT_BITS) - 1));
    let next = ((1u128 << SLOT_BITS) + below as u128 + 1) << top;
    u64::try_from(next.div_ceil(1 << SLOT_BITS) - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use archipelago_base::random::Rng;

    use super::*;
    use crate::tombstone::RangeTombstone;

    #[test]
    fn slots_hold_their_distances_in_order() {
        let mut rng = Rng::with_seed(3);
        let mut last = 0;
        for distance in (0..5000).chain((0..64).map(|bit| (1u64 << bit) + (1u64 << bit) / 3)) {
            let slot = slot_of(distance);
            assert!(slot >= last && slot < SLOTS, "{distance}");
            assert!(slot_last(slot) >= distance, "{distance}: {}", slot_last(slot));
            assert!(slot_last(slot) <= distance.saturating_add(distance / 4).max(1), "{distance}");
            last = if distance < 4999 { slot } else { 0 };
        }
        for _ in 0..2000 {
            let distance = rng.u64(..) >> rng.u32(..64);
            assert!(slot_last(slot_of(distance)) >= distance, "{distance}");
        }
        assert_eq!(slot_last(slot_of(u64::MAX)), u64::MAX);
    }

    #[test]
    fn quarters_are_expired_when_the_content_says_so() {
        let mut rng = Rng::with_seed(4);
        for _ in 0..200 {
            let created = rng.u64(0..2000);
            let mut counter = ContentCounter::new(created, Compression::None, None);
            let spread = 1u64 << rng.u32(1..40);
            let records: Vec<(u64, u64)> = (0..rng.usize(1..60))
                .map(|_| (rng.u64(1..50), created / 2 + rng.u64(..spread)))
                .collect();
            records.iter().for_each(|&(bytes, at)| counter.add_expiring(bytes, at));
            let content = counter.finish(&Skyline::default());
            assert!(content.expiry_ms.is_sorted(), "{content:?}");
            let total: u64 = records.iter().map(|record| record.0).sum();
            assert_eq!(content.expiring_bytes, total);
            for (quarter, &now) in content.expiry_ms.iter().enumerate() {
                let expired: u64 =
                    records.iter().filter(|record| record.1 <= now).map(|record| record.0).sum();
                assert!(expired * 4 >= total * quarter as u64, "{quarter} {records:?}");
                assert!(content.expired_quarters(now) >= quarter as u64);
            }
            assert_eq!(content.expired_quarters(content.expiry_ms[0].wrapping_sub(1)) % 4, 0);
            let (first, last) = (content.expiry_ms[0], content.expiry_ms[4]);
            assert_eq!(Some(first), records.iter().map(|record| record.1).min());
            assert_eq!(Some(last), records.iter().map(|record| record.1).max());
        }
    }

    #[test]
    fn a_snapshot_needs_one_shadowed_record_of_each_key() {
        let content = TableContent {
            shadowed: 80,
            shadowed_keys: 10,
            shadowed_oldest_seq: 100,
            shadowing_newest_seq: 900,
            ..TableContent::default()
        };
        let unneeded = |seqs: &[u64]| {
            let seqs: Vec<SeqNo> = seqs.iter().map(|&seq| SeqNo(seq)).collect();
            content.unneeded_shadowed(&seqs)
        };
        assert_eq!(unneeded(&[]), 80);
        assert_eq!(unneeded(&[99, 900, 5000]), 80, "none of them is between two versions");
        assert_eq!(unneeded(&[99, 100, 899]), 60);
        assert_eq!(unneeded(&[100, 200, 300, 400, 500, 600, 700, 800, 899]), 0);
    }

    #[test]
    fn adjacent_range_deletes_are_one_range() {
        let set = |of: &[(&str, &str, u64)]| {
            let all: Vec<RangeTombstone> = of
                .iter()
                .map(|&(start, end, seq)| RangeTombstone {
                    start: start.as_bytes().into(),
                    end: end.as_bytes().into(),
                    seq: SeqNo(seq),
                })
                .collect();
            covered_ranges(&Skyline::of(&all))
        };
        let range = |start: &str, end: &str, oldest_seq, newest_seq| CoveredRange {
            start: start.into(),
            end: end.into(),
            oldest_seq,
            newest_seq,
        };
        assert_eq!(
            set(&[("a", "c", 5), ("b", "d", 9), ("d", "e", 7), ("x", "y", 3)]),
            [range("a", "e", 5, 9), range("x", "y", 3, 3)]
        );
        let many: Vec<(String, String)> = (0..40u8)
            .map(|n| (format!("k{n:02}"), format!("k{n:02}{}", if n % 4 == 0 { "z" } else { "a" })))
            .collect();
        let many: Vec<(&str, &str, u64)> =
            many.iter().map(|(start, end)| (start.as_str(), end.as_str(), 1)).collect();
        let widest = set(&many);
        assert_eq!(widest.len(), COVERED_RANGES_MAX);
        assert!(widest.iter().all(|range| range.end.ends_with(b"z")), "{widest:?}");
    }

    #[test]
    fn bytes_come_back_and_damage_is_refused() {
        let content = TableContent {
            user_keys: 3,
            expiring: 2,
            expiring_bytes: 50,
            expiry_ms: [5, 6, 7, 8, 9],
            shadowed: 1,
            shadowed_oldest_seq: 4,
            shadowing_newest_seq: 6,
            compression: Compression::Zstd,
            compaction_filter: Some("ttl".into()),
            covered: vec![CoveredRange {
                start: b"a".to_vec(),
                end: b"b".to_vec(),
                oldest_seq: 1,
                newest_seq: 2,
            }],
            ..TableContent::default()
        };
        let mut bytes = Vec::new();
        content.encode(&mut bytes);
        let decode = |bytes: &[u8]| TableContent::decode(&mut Reader::new(bytes));
        assert_eq!(decode(&bytes).as_ref(), Some(&content));
        (0..bytes.len()).for_each(|cut| assert_eq!(decode(&bytes[..cut]), None));
        let refused = |change: fn(&mut TableContent)| {
            let mut other = content.clone();
            change(&mut other);
            let mut bytes = Vec::new();
            other.encode(&mut bytes);
            decode(&bytes).is_none()
        };
        assert!(refused(|content| content.expiry_ms = [9, 8, 7, 6, 5]));
        assert!(refused(|content| content.shadowed_oldest_seq = 7));
        assert!(refused(|content| content.covered[0].start = b"c".to_vec()));
        assert!(refused(|content| content.covered = vec![content.covered[0].clone(); 2]));
    }
}
