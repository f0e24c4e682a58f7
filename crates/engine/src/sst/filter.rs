//! A Bloom filter in which each key uses one 64-byte cache line.
//!
//! An SST has one (or one per index partition). Stored as `lines (64 bytes each) ++ probes (u8)`.
//! The upper half of a key's hash selects a line. Slices of nine bits of the remixed hash select
//! `probes` bits in it. A query touches one cache line; about 1 % false positives at 10 bits a key.
//! Source: Putze, Sanders and Singler, "Cache-, hash- and space-efficient Bloom filters" (blocked
//! Bloom filters).

const LINE_BYTES: usize = 64;
/// Factor that mixes a hash again, so that bits in a line do not depend on the choice of the line.
const REMIX: u64 = 0x9e37_79b9_7f4a_7c15;
/// Number of slices of nine bits in one remixed hash.
const SLICES: u32 = 7;

/// Collects key hashes and writes a filter over them.
#[derive(Debug, Default)]
pub struct BloomBuilder {
    hashes: Vec<u64>,
    bits_per_key: u32,
}

impl BloomBuilder {
    /// A builder of filters with `bits_per_key` bits a key; 0 for no filter at all.
    #[must_use]
    pub fn new(bits_per_key: u32) -> Self {
        Self { hashes: Vec::new(), bits_per_key }
    }

    /// Adds a key by its hash ([`archipelago_base::checksum::hash64`]).
    #[inline]
    pub fn add(&mut self, hash: u64) {
        if self.bits_per_key > 0 {
            self.hashes.push(hash);
        }
    }

    /// Number of keys that were added.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether no key was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// The hashes of the keys that were added.
    #[must_use]
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// Length in bytes of the filter over the keys added so far.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        bloom_bytes(self.hashes.len(), self.bits_per_key)
    }

    /// Appends the filter to `out`; nothing if there are no keys or no bits.
    pub fn finish(&self, out: &mut Vec<u8>) {
        build(&self.hashes, self.bits_per_key, out);
    }
}

/// Length in bytes of a filter over `keys` keys.
#[must_use]
pub fn bloom_bytes(keys: usize, bits_per_key: u32) -> usize {
    if keys == 0 || bits_per_key == 0 {
        return 0;
    }
    lines_for(keys, bits_per_key) * LINE_BYTES + 1
}

fn lines_for(keys: usize, bits_per_key: u32) -> usize {
    let bits = keys as u64 * u64::from(bits_per_key);
    (bits.div_ceil(LINE_BYTES as u64 * 8)).clamp(1, u64::from(u32::MAX)) as usize
}

/// Best number of probes for a line of 512 bits. It is a little below `bits · ln 2`, because some
/// lines get more keys than others.
fn probes_for(bits_per_key: u32) -> u8 {
    (bits_per_key * 6 / 10).clamp(1, 12) as u8
}

/// Appends a filter over `hashes`; nothing if there are none or no bits.
pub fn build(hashes: &[u64], bits_per_key: u32, out: &mut Vec<u8>) {
    if hashes.is_empty() || bits_per_key == 0 {
        return;
    }
    let lines = lines_for(hashes.len(), bits_per_key);
    let probes = probes_for(bits_per_key);
    let start = out.len();
    out.resize(start + lines * LINE_BYTES, 0);
    let body = &mut out[start..];
    for &hash in hashes {
        let line = &mut body[line_of(hash, lines) * LINE_BYTES..][..LINE_BYTES];
        for bit in bits_of(hash, probes) {
            line[bit / 8] |= 1 << (bit % 8);
        }
    }
    out.push(probes);
}

#[inline]
fn line_of(hash: u64, lines: usize) -> usize {
    ((u128::from(hash) * lines as u128) >> 64) as usize
}

#[inline]
fn bits_of(hash: u64, probes: u8) -> impl Iterator<Item = usize> {
    let mut mixed = hash.wrapping_mul(REMIX);
    let mut slices = 0;
    (0..probes).map(move |_| {
        if slices == SLICES {
            mixed = mixed.wrapping_mul(REMIX) ^ hash.rotate_left(29).wrapping_mul(REMIX | 2);
            slices = 0;
        }
        slices += 1;
        mixed = mixed.rotate_left(9);
        (mixed & 511) as usize
    })
}

/// A filter over stored bytes.
#[derive(Clone, Copy, Debug)]
pub struct BloomRef<'a> {
    body: &'a [u8],
    probes: u8,
}

impl<'a> BloomRef<'a> {
    /// Decodes stored bytes; `None` if they are not a filter.
    #[inline]
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let (&probes, body) = bytes.split_last()?;
        if body.is_empty() || !body.len().is_multiple_of(LINE_BYTES) || !(1..=64).contains(&probes)
        {
            return None;
        }
        Some(Self { body, probes })
    }

    /// Whether a key with this hash may have been added: false means that it was not.
    #[inline]
    #[must_use]
    pub fn may_contain(&self, hash: u64) -> bool {
        let lines = self.body.len() / LINE_BYTES;
        let at = line_of(hash, lines) * LINE_BYTES;
        let line = &self.body[at..at + LINE_BYTES];
        bits_of(hash, self.probes).all(|bit| line[bit / 8] & (1 << (bit % 8)) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use archipelago_base::checksum::hash64;

    fn rate(keys: u64, bits: u32) -> f64 {
        let mut builder = BloomBuilder::new(bits);
        (0..keys).for_each(|key| builder.add(hash64(&key.to_be_bytes())));
        let mut bytes = Vec::new();
        builder.finish(&mut bytes);
        assert_eq!(bytes.len(), builder.encoded_bytes());
        let filter = BloomRef::new(&bytes).unwrap();
        assert!((0..keys).all(|key| filter.may_contain(hash64(&key.to_be_bytes()))));
        let asked = 100_000;
        let wrong = (keys..keys + asked)
            .filter(|key| filter.may_contain(hash64(&key.to_be_bytes())))
            .count();
        wrong as f64 / asked as f64
    }

    #[test]
    fn ten_bits_give_one_percent() {
        let ten = rate(200_000, 10);
        assert!(ten < 0.012, "{ten}");
        assert!(rate(50_000, 16) < 0.0025);
        assert!(rate(50_000, 4) < 0.2);
        assert!(rate(3, 10) < 0.01);
        println!("10 bits: {ten}");
    }

    #[test]
    fn foreign_bytes_are_refused_or_answered() {
        for len in 0..200 {
            let bytes = vec![7u8; len];
            if let Some(filter) = BloomRef::new(&bytes) {
                let _ = filter.may_contain(u64::MAX);
            }
        }
        assert!(BloomRef::new(&[]).is_none());
    }

    #[test]
    fn stored_bits_do_not_change() {
        let mut bytes = Vec::new();
        build(&[hash64(b"a"), hash64(b"b"), hash64(b"c")], 10, &mut bytes);
        assert_eq!(archipelago_base::checksum::crc(&bytes), GOLDEN, "golden filter changed");
    }

    const GOLDEN: u32 = 0x5f9f_388f;
}
