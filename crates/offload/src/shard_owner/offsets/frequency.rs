//! Look-up frequencies of keys: saturating counters of four bits per key hash (O³-LSM §4.5).
//!
//! A key has a counter in each of two rows, and its count is the smaller one. Keys that share a
//! counter make a count too large and never too small. After [`ROUND`] look-ups per counter of a
//! row, all counters are halved, so that old look-ups lose weight.
//!
//! Cost: reads and writes two bytes per look-up.

/// Count from which on a key is hot.
const HOT: u8 = 4;
/// Largest value of a counter.
const COUNT_MAX: u8 = 15;
/// Look-ups per counter of a row after which the counts are halved.
const ROUND: usize = 8;

/// Counters by key hash, two in each byte.
#[derive(Clone, Debug, Default)]
pub(in crate::shard_owner) struct Frequencies {
    /// Each byte has a counter of the first row in its low bits, and one of the second in its high
    /// bits.
    counters: Vec<u8>,
    /// Look-ups that were counted since the last halving.
    counted: usize,
    /// Whether a counter may be [`HOT`].
    may_be_hot: bool,
}

impl Frequencies {
    /// Makes counters for `keys` keys: at least one counter per key in each row.
    pub(super) fn new(keys: usize) -> Self {
        let counters = vec![0; keys.next_power_of_two().max(64)];
        Self { counters, counted: 0, may_be_hot: false }
    }

    /// Indexes of a key's counters in the two rows.
    fn places(&self, hash: u64) -> (usize, usize) {
        let mask = self.counters.len() - 1;
        (hash as usize & mask, (hash >> 32) as usize & mask)
    }

    pub(super) fn count(&mut self, hash: u64) {
        if self.counters.is_empty() {
            return;
        }
        let (low, high) = self.places(hash);
        let first = self.counters[low] & 15;
        let second = self.counters[high] >> 4;
        if first < COUNT_MAX {
            self.counters[low] += 1;
        }
        if second < COUNT_MAX {
            self.counters[high] += 16;
        }
        self.may_be_hot |= first.min(second) + 1 >= HOT;
        self.counted += 1;
        if self.counted >= ROUND * self.counters.len() {
            self.halve();
        }
    }

    fn halve(&mut self) {
        self.counted = 0;
        // Both halves of a byte are halved at the same time. The mask drops the bit that moves from
        // the high half to the low one.
        self.counters.iter_mut().for_each(|pair| *pair = (*pair >> 1) & 0x77);
        let is_hot = |pair: &u8| pair & 15 >= HOT || pair >> 4 >= HOT;
        self.may_be_hot = self.counters.iter().any(is_hot);
    }

    /// Whether any key may be hot.
    pub(super) fn may_be_hot(&self) -> bool {
        self.may_be_hot
    }

    /// Whether a key was looked up often.
    pub(in crate::shard_owner) fn is_hot(&self, hash: u64) -> bool {
        if self.counters.is_empty() {
            return false;
        }
        let (low, high) = self.places(hash);
        (self.counters[low] & 15).min(self.counters[high] >> 4) >= HOT
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::checksum::hash64;

    use super::*;

    #[test]
    fn key_is_hot_after_four_look_ups_and_cools_down() {
        let mut frequencies = Frequencies::new(1000);
        let hash = |number: u64| hash64(&number.to_le_bytes());
        for _ in 0..3 {
            frequencies.count(hash(1));
        }
        assert!(!frequencies.is_hot(hash(1)) && !frequencies.may_be_hot());
        frequencies.count(hash(1));
        assert!(frequencies.is_hot(hash(1)) && frequencies.may_be_hot());
        assert!(!frequencies.is_hot(hash(2)));
        for _ in 0..100 {
            frequencies.count(hash(1));
        }
        let is_hot = (0..3).map(|_| {
            frequencies.halve();
            frequencies.is_hot(hash(1))
        });
        assert_eq!(is_hot.collect::<Vec<bool>>(), [true, false, false], "15, 7, 3, 1");
        assert!(!frequencies.may_be_hot());
    }

    #[test]
    fn look_ups_of_many_keys_make_few_of_them_hot() {
        let mut frequencies = Frequencies::new(1024);
        for number in 0..64_000u64 {
            frequencies.count(hash64(&number.to_le_bytes()));
        }
        assert!(frequencies.counted < ROUND * 1024, "the counts were halved");
        assert!(!Frequencies::default().is_hot(1), "without counters nothing is hot");
    }
}
