//! Maps by key hash. The key's hash is also the map's hash, so it is the same in every run.

use std::hash::{BuildHasher, Hasher};

/// Hasher for maps whose keys are already XXH3 hashes. The order of iteration follows from the
/// entries, so simulated runs replay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HashIsKey;

/// Returns a `u64` unchanged.
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
