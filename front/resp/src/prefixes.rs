//! Prefixes of keys that SCAN cursors refer to by number.
//!
//! A cursor has no room for a long key, so it names a kept prefix instead. The table belongs to the
//! store. Invariants:
//!
//! 1. A prefix that was kept is kept for ever, under the same number. Numbers start at 1.
//! 2. The table lives as long as the store's data: over a restart, and over a loss of power where
//!    the data can survive one. Otherwise a cursor of an earlier run could name another prefix, and
//!    a SCAN would leave keys out.
//! 3. [`PrefixTable::keep`] is only called as often as the keys that were written allow
//!    (`cursors.rs`, invariant 3).
//!
//! Thread-safe.

use std::collections::HashMap;

use archipelago_base::{Error, Result};
use parking_lot::RwLock;

/// Numbers below this exist; a cursor has 20 bits for one.
pub const PREFIXES_MAX: u32 = 1 << 20;

/// The kept prefixes of a store; see the module for what it promises.
pub trait PrefixTable: Send + Sync {
    /// The number of `prefix`; `None` if it is not kept.
    fn number(&self, prefix: &[u8]) -> Result<Option<u32>>;

    /// The prefix with this number; `None` if none has it.
    fn prefix(&self, number: u32) -> Result<Option<Vec<u8>>>;

    /// Keeps `prefix`, durably on return, and gives its number. Errors: [`prefixes_full`], and
    /// those of a write.
    fn keep(&self, prefix: &[u8]) -> Result<u32>;

    /// The number of kept prefixes.
    fn len(&self) -> Result<u32>;

    /// Whether no prefix is kept.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// The error of a table that has no number left.
#[must_use]
pub fn prefixes_full() -> Error {
    Error::unsupported(format!(
        "SCAN has used all of its {PREFIXES_MAX} prefixes of keys for cursors: use a larger COUNT, \
         a longer literal start of MATCH, or RANGE"
    ))
}

/// The prefixes of a store in memory.
#[derive(Debug, Default)]
pub struct MemoryPrefixes {
    rows: RwLock<Rows>,
}

#[derive(Debug, Default)]
struct Rows {
    numbers: HashMap<Vec<u8>, u32>,
    /// By number, minus one.
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
