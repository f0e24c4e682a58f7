//! Values that compress to a chosen fraction of their size, as slices of one buffer.
//!
//! The buffer consists of 100-byte pieces, and each piece repeats a short random string.
//!
//! Thread-safety: all workers share the buffer and only read it.
//! Cost: a value takes an addition and a comparison.

use archipelago_base::random::Rng;

use crate::harness::flags::{Flags, SizeDistribution};
use crate::zipf::below;

/// Size of the buffer, unless a value can be larger.
const POOL_BYTES: usize = 1 << 20;
const PIECE_BYTES: usize = 100;
const SEED: u64 = 301;

/// Buffer from which all values are cut.
#[derive(Debug)]
pub(crate) struct ValuePool {
    bytes: Vec<u8>,
}

impl ValuePool {
    /// A buffer for values of at most `largest` bytes which compress to `ratio` of their size.
    pub(crate) fn new(ratio: f64, largest: usize) -> Self {
        let mut rng = Rng::with_seed(SEED);
        let size = POOL_BYTES.max(largest);
        let random = ((PIECE_BYTES as f64 * ratio) as usize).clamp(1, PIECE_BYTES);
        let mut bytes = Vec::with_capacity(size + PIECE_BYTES);
        while bytes.len() < size {
            let start = bytes.len();
            bytes.extend((0..random).map(|_| rng.u8(b' '..=b'~')));
            for at in start + random..start + PIECE_BYTES {
                bytes.push(bytes[at - random]);
            }
        }
        Self { bytes }
    }

    /// A cursor at the start.
    pub(crate) fn cursor(&self) -> Values<'_> {
        Values { bytes: &self.bytes, at: 0 }
    }
}

/// Position in the pool from which the next value is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Values<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Values<'a> {
    /// The next `len` bytes; `len` is at most the `largest` that the pool was made for.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        if self.at + len > self.bytes.len() {
            self.at = 0;
        }
        let value = &self.bytes[self.at..self.at + len];
        self.at += len;
        value
    }
}

/// Draws the lengths of values, as `--value_size_distribution_type` says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueSizes {
    bytes_min: u64,
    /// Number of different lengths, from `bytes_min` on.
    lengths: u64,
}

impl ValueSizes {
    /// The lengths that `flags` ask for.
    pub(crate) fn new(flags: &Flags) -> Self {
        let load = &flags.load;
        match load.value_size_distribution_type {
            SizeDistribution::Fixed => Self { bytes_min: load.value_size as u64, lengths: 1 },
            SizeDistribution::Uniform => Self {
                bytes_min: load.value_size_min,
                lengths: load.value_size_max - load.value_size_min + 1,
            },
        }
    }

    /// The largest length.
    pub(crate) fn largest(self) -> usize {
        (self.bytes_min + self.lengths - 1) as usize
    }

    /// The next length.
    #[inline]
    pub(crate) fn next(self, rng: &mut Rng) -> usize {
        if self.lengths == 1 {
            return self.bytes_min as usize;
        }
        (self.bytes_min + below(rng, self.lengths)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::flags::tests::flags;

    #[test]
    fn lengths_are_fixed_or_uniform() {
        let mut rng = Rng::with_seed(1);
        let fixed = ValueSizes::new(&flags(&["--value_size=7"]));
        assert_eq!((fixed.next(&mut rng), fixed.largest()), (7, 7));
        let uniform = ValueSizes::new(&flags(&[
            "--value_size_distribution_type=uniform",
            "--value_size_min=100",
            "--value_size_max=300",
        ]));
        let drawn: Vec<usize> = (0..20_000).map(|_| uniform.next(&mut rng)).collect();
        let mean = drawn.iter().sum::<usize>() as f64 / 20_000.0;
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&100), Some(&300)));
        assert!((mean - 200.0).abs() < 2.0, "{mean}");
        assert_eq!(uniform.largest(), 300);
    }

    /// Bytes of the distinct part of each piece.
    fn distinct_share(pool: &ValuePool) -> f64 {
        let pieces = pool.bytes.chunks_exact(PIECE_BYTES).take(100);
        let shares = pieces.map(|piece| {
            let period = (1..PIECE_BYTES).find(|&p| piece[p..] == piece[..PIECE_BYTES - p]);
            period.unwrap_or(PIECE_BYTES) as f64 / PIECE_BYTES as f64
        });
        shares.sum::<f64>() / 100.0
    }

    #[test]
    fn the_random_share_is_the_compression_ratio() {
        for ratio in [0.1, 0.5, 1.0] {
            let share = distinct_share(&ValuePool::new(ratio, 100));
            assert!((share - ratio).abs() < 0.02, "{ratio}: {share}");
        }
    }

    #[test]
    fn values_have_the_length_and_differ() {
        let pool = ValuePool::new(0.5, 3 << 20);
        let mut values = pool.cursor();
        let (first, second) = (values.take(100), values.take(100));
        assert_ne!(first, second);
        assert_eq!(values.take(3 << 20).len(), 3 << 20);
        for _ in 0..100_000 {
            assert_eq!(values.take(1000).len(), 1000);
        }
    }
}
