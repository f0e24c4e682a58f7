//! Bits that say which records of a value file are valid: one for each, in key order. A plain
//! value. A file with 16,000 records has 2 KB of bits.

use serde::{Deserialize, Serialize};

/// One bit for each record of a value file: whether a table references it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidBits {
    records: u64,
    bytes: Vec<u8>,
}

impl ValidBits {
    /// Bits for `records` records, all of them not valid.
    #[must_use]
    pub fn none_of(records: usize) -> Self {
        Self { records: records as u64, bytes: vec![0; records.div_ceil(8)] }
    }

    /// Bits for `records` records, all of them valid.
    pub(crate) fn all_of(records: usize) -> Self {
        let mut bits = Self { records: records as u64, bytes: vec![u8::MAX; records.div_ceil(8)] };
        if let Some(last) = bits.bytes.last_mut().filter(|_| !records.is_multiple_of(8)) {
            *last = (1 << (records % 8)) - 1;
        }
        bits
    }

    /// Number of records.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Marks record `at` as valid.
    pub(crate) fn set(&mut self, at: usize) {
        self.bytes[at / 8] |= 1 << (at % 8);
    }

    /// Marks record `at` as not valid.
    pub(crate) fn clear(&mut self, at: usize) {
        self.bytes[at / 8] &= !(1 << (at % 8));
    }

    /// Whether record `at` is valid.
    #[inline]
    #[must_use]
    pub fn is_valid(&self, at: usize) -> bool {
        self.bytes.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1)
    }

    /// Number of valid records.
    #[must_use]
    pub fn valid_records(&self) -> u64 {
        self.bytes.iter().map(|byte| u64::from(byte.count_ones())).sum()
    }

    /// Whether the number of bytes fits the records, and no bit past the last record is set.
    pub(crate) fn is_sound(&self) -> bool {
        let whole = self.records.div_ceil(8) == self.bytes.len() as u64;
        let rest = self.records % 8;
        whole && (rest == 0 || self.bytes.last().is_none_or(|last| last >> rest == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_past_the_last_record_are_refused() {
        let mut bits = ValidBits::none_of(11);
        bits.set(0);
        bits.set(10);
        assert!(bits.is_sound() && bits.is_valid(10) && !bits.is_valid(9) && !bits.is_valid(99));
        assert_eq!((bits.records(), bits.valid_records()), (11, 2));
        assert!(!ValidBits { records: 11, bytes: vec![0, 8] }.is_sound());
        assert!(!ValidBits { records: 17, bytes: vec![0, 0] }.is_sound());
        assert!(ValidBits::none_of(0).is_sound() && ValidBits::all_of(0).is_sound());
    }

    #[test]
    fn all_bits_can_be_cleared_one_by_one() {
        for records in [1, 8, 11] {
            let mut bits = ValidBits::all_of(records);
            assert!(bits.is_sound());
            assert_eq!(bits.valid_records(), records as u64);
            (0..records).for_each(|at| bits.clear(at));
            assert_eq!(bits, ValidBits::none_of(records));
        }
    }
}
