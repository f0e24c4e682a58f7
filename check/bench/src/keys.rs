//! Keys as db_bench makes them: a number, big-endian, then the digit `0` up to the key size.
//!
//! With `--prefix_size` and `--keys_per_prefix` a prefix comes first: the number modulo the count
//! of prefixes, big-endian in at most eight bytes, then `0` up to the prefix size. Cost of a key:
//! one eight-byte store into a buffer that the worker keeps.

use archipelago_base::random::Rng;

use crate::harness::flags::Flags;
use crate::zipf::below;

const NUMBER_BYTES: usize = 8;

/// Writes keys into a buffer that it reuses.
#[derive(Clone, Debug)]
pub(crate) struct KeyMaker {
    buffer: Vec<u8>,
    prefix_bytes: usize,
    prefixes: u64,
}

impl KeyMaker {
    /// Keys of the size and prefix that `flags` ask for, `longer` bytes longer.
    pub(crate) fn new(flags: &Flags, longer: usize) -> Self {
        let load = &flags.load;
        let prefixes = match load.keys_per_prefix {
            0 => 0,
            per_prefix => load.num.div_ceil(per_prefix),
        };
        let prefix_bytes = if prefixes == 0 { 0 } else { load.prefix_size };
        Self { buffer: vec![b'0'; load.key_size + longer], prefix_bytes, prefixes }
    }

    /// The key of `number`.
    #[inline]
    pub(crate) fn set(&mut self, number: u64) -> &[u8] {
        if self.prefix_bytes > 0 {
            put_number(&mut self.buffer[..self.prefix_bytes], number % self.prefixes);
        }
        put_number(&mut self.buffer[self.prefix_bytes..], number);
        &self.buffer
    }

    /// The last key that was set.
    #[inline]
    pub(crate) fn get(&self) -> &[u8] {
        &self.buffer
    }
}

/// The low bytes of `number`, most significant first, at the start of `to`.
#[inline]
fn put_number(to: &mut [u8], number: u64) {
    let bytes = number.to_be_bytes();
    if let Some(head) = to.first_chunk_mut::<NUMBER_BYTES>() {
        *head = bytes;
    } else {
        let skipped = NUMBER_BYTES - to.len();
        to.copy_from_slice(&bytes[skipped..]);
    }
}

/// Draws key numbers: uniform, or skewed by `--read_random_exp_range`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyPicker {
    num: u64,
    exp_range: f64,
}

impl KeyPicker {
    /// Numbers below `num`.
    pub(crate) fn new(num: u64, exp_range: f64) -> Self {
        Self { num, exp_range }
    }

    /// The next number.
    #[inline]
    pub(crate) fn next(self, rng: &mut Rng) -> u64 {
        if self.exp_range == 0.0 {
            return below(rng, self.num);
        }
        self.skewed(rng)
    }

    /// Exponentially few keys get most of the draws; a multiplication scatters them.
    fn skewed(self, rng: &mut Rng) -> u64 {
        const SCATTER: u64 = 0x5bd1_e995;
        let order = -rng.f64() * self.exp_range;
        let rank = (order.exp() * self.num as f64) as u64;
        ((u128::from(rank) * u128::from(SCATTER)) % u128::from(self.num)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::flags::tests::flags;

    #[test]
    fn a_key_is_a_big_endian_number_and_zeros() {
        let mut keys = KeyMaker::new(&flags(&[]), 0);
        assert_eq!(keys.set(0x0102_0304), b"\0\0\0\0\x01\x02\x03\x0400000000");
        assert_eq!(keys.set(u64::MAX), b"\xff\xff\xff\xff\xff\xff\xff\xff00000000");
        assert_eq!(keys.get().len(), 16);
    }

    #[test]
    fn a_short_key_keeps_the_low_bytes() {
        let mut keys = KeyMaker::new(&flags(&["--key_size=4"]), 0);
        assert_eq!(keys.set(0x0a0b_0c0d_0e0f), b"\x0c\x0d\x0e\x0f");
    }

    #[test]
    fn a_missing_key_is_one_byte_longer() {
        let mut keys = KeyMaker::new(&flags(&[]), 1);
        assert_eq!(keys.set(7), b"\0\0\0\0\0\0\0\x07000000000");
    }

    #[test]
    fn a_prefix_comes_first() {
        let given = flags(&["--prefix_size=4", "--keys_per_prefix=10", "--num=100"]);
        let mut keys = KeyMaker::new(&given, 0);
        assert_eq!(keys.set(23), b"\0\0\0\x03\0\0\0\0\0\0\0\x170000");
    }

    #[test]
    fn draws_stay_below_the_bound_and_reach_all_of_it() {
        let mut rng = Rng::with_seed(1);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[KeyPicker::new(10, 0.0).next(&mut rng) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
    }

    #[test]
    fn an_exponential_range_makes_few_keys_hot() {
        let mut rng = Rng::with_seed(1);
        let mut seen = std::collections::HashMap::new();
        for _ in 0..20_000 {
            *seen.entry(KeyPicker::new(10_000, 15.0).next(&mut rng)).or_insert(0u32) += 1;
        }
        let hottest = seen.values().max().copied().unwrap_or(0);
        assert!(seen.len() < 9_000 && hottest > 2_000, "{} keys, {hottest}", seen.len());
    }
}
