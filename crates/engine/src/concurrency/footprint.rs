//! The keys and ranges that the commit of a transaction checks. No I/O, no locks.
//!
//! Owned by one transaction. Invariants:
//! 1. A key that is noted twice keeps the note of the older moment: if nothing has changed since
//!    then, nothing has changed since the later one.
//! 2. Ranges of one column family that overlap or meet are one range.
//!
//! Failure: none. Cost: a note is one ordered insertion with a copy of the key. A question is a
//! search among keys and ranges. [`Footprint::bytes`] returns the memory.

use std::collections::BTreeMap;
use std::ops::Bound;

use archipelago_base::{CfId, SeqNo};

use super::range_set::RangeSet;
use crate::key::KeyRange;

/// Memory of a noted key in bytes, without the key itself.
const NOTE_BYTES: u64 = 96;

/// The moment and the result of a read of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRead {
    /// Sequence number as of which the key was read.
    pub(crate) as_of: SeqNo,
    /// Sequence number of the record that the read found. It is set if no snapshot keeps the
    /// evidence of a change. Then the key has changed if its newest record is another one, or it
    /// has none. If it is `None`, the key has changed if it has a record newer than `as_of`.
    pub(crate) exactly: Option<SeqNo>,
}

/// A key or a range that another write changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touch<'a> {
    /// The column family.
    pub(crate) cf: CfId,
    /// The key, or the first key of the range.
    pub(crate) start: &'a [u8],
    /// First key after the range; `None` for the single key `start`.
    pub(crate) end: Option<&'a [u8]>,
}

/// The notes of one column family.
#[derive(Clone, Debug, Default)]
pub(crate) struct FamilyFootprint {
    /// The keys that were read one by one, each with what the read found.
    pub(crate) keys: BTreeMap<Vec<u8>, KeyRead>,
    /// Keys that were read as parts of ranges.
    pub(crate) ranges: RangeSet,
    /// Sequence number as of which the first of the ranges was read.
    pub(crate) ranges_as_of: SeqNo,
}

impl FamilyFootprint {
    /// The part of the notes that a write of `touch` changes; `None` if it changes nothing.
    fn touched(&self, touch: Touch<'_>) -> Option<Touched> {
        let is_noted = match touch.end {
            None => self.keys.contains_key(touch.start),
            Some(end) if end <= touch.start => return None,
            Some(end) => {
                let range = (Bound::Included(touch.start), Bound::Excluded(end));
                self.keys.range::<[u8], _>(range).next().is_some()
            }
        };
        if is_noted {
            return Some(Touched::Key);
        }
        let is_in_range = match touch.end {
            None => self.ranges.contains(touch.start),
            Some(end) => self.ranges.overlaps(touch.start, end),
        };
        is_in_range.then_some(Touched::Range)
    }
}

/// The part of a footprint that a write changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touched {
    /// A key that was noted by itself.
    Key,
    /// A key of a noted range.
    Range,
}

/// The keys and ranges that a commit checks.
#[derive(Clone, Debug)]
pub(crate) struct Footprint {
    families: BTreeMap<CfId, FamilyFootprint>,
    /// Earliest expiry (Unix milliseconds) of a value that was read; `u64::MAX` for none.
    expires_at_ms: u64,
    /// Smallest sequence number as of which something was read.
    oldest: SeqNo,
    bytes: u64,
}

impl Default for Footprint {
    fn default() -> Self {
        Self { families: BTreeMap::new(), expires_at_ms: u64::MAX, oldest: SeqNo::MAX, bytes: 0 }
    }
}

impl Footprint {
    /// Whether nothing was noted.
    pub(crate) fn is_empty(&self) -> bool {
        self.families.is_empty()
    }

    /// The notes by column family.
    pub(crate) fn families(&self) -> impl Iterator<Item = (CfId, &FamilyFootprint)> {
        self.families.iter().map(|(&cf, family)| (cf, family))
    }

    /// Smallest sequence number as of which something was read. If nothing was written after it,
    /// nothing has changed.
    pub(crate) fn oldest(&self) -> SeqNo {
        self.oldest
    }

    /// Whether a value that was read has expired at `now_ms`.
    pub(crate) fn has_expired(&self, now_ms: impl FnOnce() -> u64) -> bool {
        self.expires_at_ms != u64::MAX && self.expires_at_ms <= now_ms()
    }

    /// Memory of the notes in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Notes a read of `key`.
    pub(crate) fn note_key(&mut self, cf: CfId, key: &[u8], read: KeyRead) {
        self.oldest = self.oldest.min(read.as_of);
        let keys = &mut self.families.entry(cf).or_default().keys;
        if let Some(noted) = keys.get_mut(key) {
            if read.as_of < noted.as_of {
                *noted = read;
            }
            return;
        }
        keys.insert(key.to_vec(), read);
        self.bytes += key.len() as u64 + NOTE_BYTES;
    }

    /// Notes the expiry of a value that was read, if it has one.
    pub(crate) fn note_expiry(&mut self, expires_at_ms: Option<u64>) {
        self.expires_at_ms = self.expires_at_ms.min(expires_at_ms.unwrap_or(u64::MAX));
    }

    /// Forgets a read of `key`, if there was one.
    pub(crate) fn forget_key(&mut self, cf: CfId, key: &[u8]) {
        let Some(family) = self.families.get_mut(&cf) else { return };
        if family.keys.remove(key).is_some() {
            self.bytes -= key.len() as u64 + NOTE_BYTES;
        }
    }

    /// Notes a read of a range.
    pub(crate) fn note_range(&mut self, cf: CfId, range: KeyRange, as_of: SeqNo) {
        if range.is_empty() {
            return;
        }
        let family = self.families.entry(cf).or_default();
        if family.ranges.is_empty() {
            family.ranges_as_of = as_of;
        }
        family.ranges_as_of = family.ranges_as_of.min(as_of);
        let before = family.ranges.bytes();
        family.ranges.insert(range);
        self.bytes = self.bytes + family.ranges.bytes() - before;
        self.oldest = self.oldest.min(as_of);
    }

    /// The part of the footprint that a write of `touch` changes; `None` if it changes nothing.
    pub(crate) fn touched(&self, touch: Touch<'_>) -> Option<Touched> {
        self.families.get(&touch.cf)?.touched(touch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CF: CfId = CfId(1);

    fn range(start: &[u8], end: &[u8]) -> KeyRange {
        KeyRange { start: start.to_vec(), end: Some(end.to_vec()) }
    }

    fn read(as_of: u64) -> KeyRead {
        KeyRead { as_of: SeqNo(as_of), exactly: None }
    }

    fn key(start: &[u8]) -> Touch<'_> {
        Touch { cf: CF, start, end: None }
    }

    fn keys<'a>(start: &'a [u8], end: &'a [u8]) -> Touch<'a> {
        Touch { cf: CF, start, end: Some(end) }
    }

    #[test]
    fn key_is_touched_by_itself_and_by_ranges_over_it() {
        let mut footprint = Footprint::default();
        footprint.note_key(CF, b"m", read(5));
        assert_eq!(footprint.touched(key(b"m")), Some(Touched::Key));
        assert_eq!(footprint.touched(key(b"ma")), None);
        assert_eq!(footprint.touched(keys(b"a", b"m")), None);
        assert_eq!(footprint.touched(keys(b"a", b"ma")), Some(Touched::Key));
        assert_eq!(footprint.touched(keys(b"m", b"m")), None);
        assert_eq!(footprint.touched(keys(b"z", b"a")), None);
        assert_eq!(footprint.touched(Touch { cf: CfId(2), ..key(b"m") }), None);
    }

    #[test]
    fn range_is_touched_by_keys_inside_and_ranges_across() {
        let mut footprint = Footprint::default();
        footprint.note_range(CF, range(b"c", b"f"), SeqNo(5));
        assert_eq!(footprint.touched(key(b"c")), Some(Touched::Range));
        assert_eq!(footprint.touched(key(b"f")), None);
        assert_eq!(footprint.touched(keys(b"a", b"c")), None);
        assert_eq!(footprint.touched(keys(b"a", b"ca")), Some(Touched::Range));
        assert_eq!(footprint.touched(keys(b"f", b"z")), None);
        footprint.note_range(CF, KeyRange { start: b"x".to_vec(), end: None }, SeqNo(5));
        assert_eq!(footprint.touched(key(b"zz")), Some(Touched::Range));
    }

    #[test]
    fn ranges_are_as_old_as_the_first_of_them() {
        let mut footprint = Footprint::default();
        footprint.note_range(CF, range(b"c", b"e"), SeqNo(6));
        footprint.note_range(CF, range(b"a", b"c"), SeqNo(5));
        footprint.note_range(CF, range(b"x", b"x"), SeqNo(1));
        let (_, family) = footprint.families().next().unwrap();
        assert_eq!(family.ranges.iter().collect::<Vec<_>>(), [range(b"a", b"e")]);
        assert_eq!((family.ranges_as_of, footprint.oldest()), (SeqNo(5), SeqNo(5)));
        assert_eq!(footprint.bytes(), family.ranges.bytes());
    }

    #[test]
    fn oldest_note_of_a_key_stays_until_it_is_forgotten() {
        let mut footprint = Footprint::default();
        footprint.note_key(CF, b"k", read(4));
        footprint.note_key(CF, b"k", read(3));
        footprint.note_key(CF, b"k", read(9));
        let noted = |footprint: &Footprint| footprint.families().next().unwrap().1.keys.clone();
        assert_eq!(noted(&footprint)[&b"k"[..]], read(3));
        assert!(footprint.bytes() > 0);
        footprint.forget_key(CF, b"k");
        assert_eq!((noted(&footprint).len(), footprint.bytes()), (0, 0));
    }

    #[test]
    fn earliest_expiry_counts() {
        let mut footprint = Footprint::default();
        footprint.note_expiry(None);
        assert!(!footprint.has_expired(|| unreachable!("no value expires")));
        footprint.note_expiry(Some(70));
        footprint.note_expiry(Some(50));
        assert!(!footprint.has_expired(|| 49));
        assert!(footprint.has_expired(|| 50));
    }
}
