//! Randomness: a seeded generator for everything that must replay, and one place that asks the
//! system for entropy.

/// A small fast generator (wyrand); the same seed gives the same numbers on every platform.
pub use fastrand::Rng;

/// A seed from the system's entropy. The only source of nondeterminism; pass it on as a number
/// so that a run can be repeated.
#[must_use]
pub fn entropy_seed() -> u64 {
    fastrand::u64(..)
}

/// A fresh 16-byte unique id, for a database or an SST.
#[must_use]
pub fn unique_id(rng: &mut Rng) -> [u8; 16] {
    rng.u128(..).to_le_bytes()
}
