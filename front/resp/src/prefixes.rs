//! Table of the key prefixes that SCAN cursors refer to by number.
//!
//! A cursor has no room for a long key, so it names a kept prefix. The table belongs to the store.
//! Invariants:
//!
//! 1. A prefix is kept for ever under the same number. Numbers start at 1.
//! 2. The table lives as long as the data of the store: over a restart, and over power loss if the
//!    data survives one. Otherwise a cursor of an earlier run could name another prefix, and a SCAN
//!    would leave out keys.
//! 3. [`PrefixTable::keep`] is called only as often as the number of written keys allows
//!    (`cursors/mod.rs`, invariant 3).
//!
//! Thread-safety: any thread may call any method.

use std::collections::HashMap;

use archipelago_base::{Error, Result};
use parking_lot::RwLock;

/// Numbers are below this limit, because a cursor has 20 bits for one.
pub const PREFIXES_MAX: u32 = 1 << 20;

/// The kept prefixes of a store.
pub trait PrefixTable: Send + Sync {
    /// The number of `prefix`. `None`: it is not kept.
    fn number(&self, prefix: &[u8]) -> Result<Option<u32>>;

    /// The prefix with this number. `None`: no prefix has it.
    fn prefix(&self, number: u32) -> Result<Option<Vec<u8>>>;

    /// Keeps `prefix` and returns its number. The prefix is durable on return. Errors:
    /// [`prefixes_full`], and those of a write.
    fn keep(&self, prefix: &[u8]) -> Result<u32>;

    /// The number of kept prefixes.
    fn len(&self) -> Result<u32>;

    /// Whether no prefix is kept.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// The error of a table without free numbers.
#[must_use]
pub fn prefixes_full() -> Error {
    Error::unsupported(format!(
        "SCAN has used all of its {PREFIXES_MAX} prefixes of keys for cursors: use a larger COUNT, \
         a longer literal start of MATCH, or RANGE"
    ))
}

/// The prefixes of a store whose data lives in memory.
#[derive(Debug, Default)]
pub struct MemoryPrefixes {
    rows: RwLock<Rows>,
}

#[derive(Debug, Default)]
struct Rows {
    numbers: HashMap<Vec<u8>, u32>,
    /// The prefixes by their number minus one.
    prefixes: Vec<Vec<u8>>,
}

impl PrefixTable for MemoryPrefixes {
    fn number(&self, prefix: &[u8]) -> Result<Option<u32>> {
        Ok(self.rows.read().numbers.get(prefix).copied())
    }

    fn prefix(&self, number: u32) -> Result<Option<Vec<u8>>> {
        let rows = self.rows.read();
        Ok(number.checked_sub(1).and_then(|at| rows.prefixes.get(at as usize).cloned()))
    }

    fn keep(&self, prefix: &[u8]) -> Result<u32> {
        let mut rows = self.rows.write();
        if let Some(number) = rows.numbers.get(prefix) {
            return Ok(*number);
        }
        let number = rows.prefixes.len() as u32 + 1;
        if number >= PREFIXES_MAX {
            return Err(prefixes_full());
        }
        rows.prefixes.push(prefix.to_vec());
        rows.numbers.insert(prefix.to_vec(), number);
        Ok(number)
    }

    fn len(&self) -> Result<u32> {
        Ok(self.rows.read().prefixes.len() as u32)
    }
}
