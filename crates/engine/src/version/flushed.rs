//! The sequence number through which each key range has been flushed.
//!
//! Recovery asks it for every log record: a covered record lies in a table and must not be applied
//! again.
//!
//! Invariants:
//! 1. The first entry starts at the empty key.
//! 2. Starts are strictly ascending.
//! 3. Neighbours have different numbers.
//!
//! `raise` never lowers a number. The map is immutable once it is in a version. Cost: a look-up is
//! one binary search; `raise` costs the length of the map.

use archipelago_base::SeqNo;

use crate::key::KeyRange;

/// A map from key ranges to flushed-through sequence numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushedThrough {
    /// First key and sequence number of every range. A range ends at the next entry's first key.
    entries: Vec<(Vec<u8>, SeqNo)>,
}

impl Default for FlushedThrough {
    fn default() -> Self {
        Self { entries: vec![(Vec::new(), SeqNo::ZERO)] }
    }
}

impl FlushedThrough {
    /// Index of the entry that holds `key`.
    fn entry_of(&self, key: &[u8]) -> usize {
        self.entries.partition_point(|(start, _)| start.as_slice() <= key) - 1
    }

    /// The number for `key`: every record of the key with at most this sequence number is in a
    /// table.
    #[inline]
    #[must_use]
    pub fn get(&self, key: &[u8]) -> SeqNo {
        self.entries[self.entry_of(key)].1
    }

    /// The smallest number of all ranges: every record with at most this sequence number is in a
    /// table.
    #[must_use]
    pub fn min(&self) -> SeqNo {
        self.entries.iter().map(|(_, seq)| *seq).min().unwrap_or(SeqNo::ZERO)
    }

    /// The smallest number of any key in `range`.
    #[must_use]
    pub fn min_in(&self, range: &KeyRange) -> SeqNo {
        self.numbers_in(range).min().unwrap_or(SeqNo::ZERO)
    }

    /// The largest number of any key in `range`.
    #[must_use]
    pub fn max_in(&self, range: &KeyRange) -> SeqNo {
        self.numbers_in(range).max().unwrap_or(SeqNo::ZERO)
    }

    /// The numbers of the keys in `range`, at least one.
    fn numbers_in(&self, range: &KeyRange) -> impl Iterator<Item = SeqNo> {
        let from = self.entry_of(&range.start);
        let within = |start: &[u8]| range.end.as_deref().is_none_or(|end| start < end);
        let is_in = move |at: usize, start: &[u8]| at == 0 || within(start);
        let rest = self.entries[from..].iter().enumerate();
        rest.take_while(move |(at, (start, _))| is_in(*at, start)).map(|(_, (_, seq))| *seq)
    }

    /// Every range with its number, in key order.
    pub fn ranges(&self) -> impl Iterator<Item = (KeyRange, SeqNo)> + '_ {
        self.entries.iter().enumerate().map(|(index, (start, seq))| {
            let end = self.entries.get(index + 1).map(|(next, _)| next.clone());
            (KeyRange { start: start.clone(), end }, *seq)
        })
    }

    /// The largest parts of the keys from `start` to `end` (exclusive) whose number is below `seq`.
    /// In these parts, no table has a range delete with that sequence number.
    pub fn parts_below<'a>(
        &'a self,
        seq: SeqNo,
        start: &'a [u8],
        end: &'a [u8],
    ) -> Vec<(&'a [u8], &'a [u8])> {
        let mut parts: Vec<(&[u8], &[u8])> = Vec::new();
        for (at, (from, number)) in self.entries.iter().enumerate().skip(self.entry_of(start)) {
            let next = self.entries.get(at + 1).map_or(end, |(next, _)| next.as_slice());
            let (from, to) = (start.max(from), end.min(next));
            if from >= to {
                break;
            }
            match parts.last_mut() {
                _ if *number >= seq => {}
                Some(last) if last.1 == from => last.1 = to,
                _ => parts.push((from, to)),
            }
        }
        parts
    }

    /// Makes an entry begin at `key`. Returns its index.
    fn cut(&mut self, key: &[u8]) -> usize {
        let at = self.entry_of(key);
        if self.entries[at].0 == key {
            return at;
        }
        let seq = self.entries[at].1;
        self.entries.insert(at + 1, (key.to_vec(), seq));
        at + 1
    }

    /// Raises the number of every key in `range` to at least `seq`.
    pub fn raise(&mut self, range: &KeyRange, seq: SeqNo) {
        if range.is_empty() {
            return;
        }
        let from = self.cut(&range.start);
        let to = range.end.as_ref().map_or(self.entries.len(), |end| self.cut(end));
        for (_, number) in &mut self.entries[from..to] {
            *number = (*number).max(seq);
        }
        self.entries.dedup_by(|next, kept| next.1 == kept.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u8, end: Option<u8>) -> KeyRange {
        let key = |at: u8| if at == 0 { Vec::new() } else { vec![at] };
        KeyRange { start: key(start), end: end.map(key) }
    }

    #[test]
    fn random_raises_agree_with_an_array() {
        let mut rng = archipelago_base::random::Rng::with_seed(7);
        for _ in 0..200 {
            let (mut map, mut model) = (FlushedThrough::default(), [0u64; 256]);
            for _ in 0..20 {
                let (a, b) = (rng.u8(..), rng.u8(..));
                let end = (rng.u8(..8) > 0).then_some(a.max(b));
                let seq = rng.u64(..20);
                map.raise(&range(a.min(b), end), SeqNo(seq));
                for (key, number) in model.iter_mut().enumerate() {
                    if key >= a.min(b) as usize && end.is_none_or(|end| key < end as usize) {
                        *number = (*number).max(seq);
                    }
                }
            }
            for (key, &number) in model.iter().enumerate().skip(1) {
                assert_eq!(map.get(&[key as u8]), SeqNo(number));
            }
            assert_eq!(map.get(b""), SeqNo(model[0]));
            assert_eq!(map.min().0, *model.iter().min().expect("not empty"));
            assert!(map.entries.windows(2).all(|p| p[0].0 < p[1].0 && p[0].1 != p[1].1));
            let (from, to) = (rng.u8(1..100), rng.u8(100..));
            let seq = rng.u64(..20);
            let (first, end) = ([from], [to]);
            let parts = map.parts_below(SeqNo(seq), &first, &end);
            assert!(parts.windows(2).all(|pair| pair[0].1 < pair[1].0), "{parts:?}");
            for key in from..to {
                let inside =
                    parts.iter().any(|(first, end)| *first <= &[key][..] && &[key][..] < *end);
                assert_eq!(inside, model[key as usize] < seq);
            }
            let least = model[from as usize..to as usize].iter().min();
            assert_eq!(map.min_in(&range(from, Some(to))).0, *least.expect("not empty"));
            let most = model[from as usize..to as usize].iter().max();
            assert_eq!(map.max_in(&range(from, Some(to))).0, *most.expect("not empty"));
        }
    }
}
