//! The register: small values with compare-and-swap. The processes of a cluster use it to agree
//! which of them owns a volume.
//!
//! Invariants that every backend keeps:
//! 1. Reads and swaps of a name are linearizable.
//! 2. A swap that answered [`Swap::Done`] is durable on a majority.
//!
//! Thread-safety: any thread may call any method.
//! Failure: after an error, a swap may have happened or not. The caller reads again and compares,
//! so every value has an owner and a counter in it.

use std::fmt;

use archipelago_base::Result;

/// A value and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// Version of the value. It grows with every swap, and the first one is 1. A name that was
    /// removed and set again has a larger version than before.
    pub version: u64,
    /// The value's bytes.
    pub value: Vec<u8>,
}

/// Outcome of a compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The value was replaced, and has this version now.
    Done(u64),
    /// Nothing was changed, because the name has this other value, or none.
    Lost(Option<Versioned>),
}

/// Values by name, with compare-and-swap.
pub trait Register: Send + Sync + fmt::Debug + 'static {
    /// The value of `name`; `None` if it was never set, or was removed.
    fn read(&self, name: &str) -> Result<Option<Versioned>>;
    /// Replaces the value of `name` if its version is `expected` (0: if it has no value).
    fn compare_and_swap(&self, name: &str, expected: u64, value: &[u8]) -> Result<Swap>;
    /// Removes the value of `name` if its version is `expected`.
    fn remove(&self, name: &str, expected: u64) -> Result<Swap>;
    /// All names that begin with `prefix`, sorted.
    fn list(&self, prefix: &str) -> Result<Vec<String>>;
}
