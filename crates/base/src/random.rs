//! Randomness: a seeded generator for everything that must repeat, and the only function that asks
//! the system for entropy.

/// A small fast generator (wyrand). The same seed gives the same numbers on every platform.
pub use fastrand::Rng;

/// A seed from the operating system's entropy. It cannot be guessed, and it differs between
/// processes. This is the only source of nondeterminism. A caller passes the seed on as a number,
/// so that a run can be repeated. The generator of `fastrand` is no such source: its seed is a hash
/// of the time and of the thread's number.
///
/// # Panics
///
/// Panics if the operating system has no entropy, because ids and keys would not be unique.
#[must_use]
pub fn entropy_seed() -> u64 {
    match getrandom::u64() {
        Ok(seed) => seed,
        Err(error) => panic!("the operating system gives no random bytes (getrandom): {error}"),
    }
}

/// A new unique id of 16 bytes, for a database or an SST.
#[must_use]
pub fn unique_id(rng: &mut Rng) -> [u8; 16] {
    rng.u128(..).to_le_bytes()
}
