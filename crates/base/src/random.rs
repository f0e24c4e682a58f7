//! Randomness: a seeded generator for everything that must repeat, and the only function that asks
//! the system for entropy.

/// A small fast generator (wyrand). The same seed gives the same numbers on every platform.
pub use fastrand::Rng;

/// A seed from the system's entropy. This is the only source of nondeterminism. A caller passes the
/// seed on as a number, so that a run can be repeated.
#[must_use]
pub fn entropy_seed() -> u64 {
    fastrand::u64(..)
}

/// A new unique id of 16 bytes, for a database or an SST.
#[must_use]
pub fn unique_id(rng: &mut Rng) -> [u8; 16] {
    rng.u128(..).to_le_bytes()
}
