//! Maps by key hash: the hash is the map's hash, the same in every run.

use std::hash::{BuildHasher, Hasher};

/// For maps whose keys are XXH3 hashes already. Iteration order follows from what went in, so runs
/// in `sim` replay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HashIsKey;

/// Passes a `u64` on.
#[derive(Debug, Default)]
pub(crate) struct Identity(u64);

impl BuildHasher for HashIsKey {
    type Hasher = Identity;
    fn build_hasher(&self) -> Identity {
        Identity::default()
    }
}

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}
