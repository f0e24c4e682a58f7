//! The layouts of a pool in memory: where the extents of a log begin, and its end once it has one.
//!
//! A layout never leaves the process, so its bytes are no format. They are the number of extents,
//! the start of each, and the end or `u64::MAX`. Each number has eight bytes in little-endian
//! order.
//!
//! The functions are pure. Failure: other bytes are `Corrupt`.

use std::fmt;

use archipelago_base::{Error, ErrorKind, Result};

use crate::log::Layout;

/// The end of a log that has none.
const OPEN: u64 = u64::MAX;

/// A layout as the pool understands it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExtentMap {
    /// Offset of the first byte of each extent.
    pub(super) starts: Vec<u64>,
    /// Length of the log, once it was finished or recovered.
    pub(super) end: Option<u64>,
}

impl ExtentMap {
    pub(super) fn encode(&self) -> Layout {
        let words = [self.starts.len() as u64].into_iter();
        let words = words.chain(self.starts.iter().copied()).chain([self.end.unwrap_or(OPEN)]);
        Layout(words.flat_map(u64::to_le_bytes).collect())
    }

    pub(super) fn decode(layout: &Layout, log: &dyn fmt::Display) -> Result<Self> {
        let words: Vec<u64> = layout
            .0
            .chunks_exact(8)
            .filter_map(|word| word.try_into().ok().map(u64::from_le_bytes))
            .collect();
        let sound = match words.as_slice() {
            [count, starts @ .., end] if layout.0.len().is_multiple_of(8) => {
                (*count == starts.len() as u64).then_some((starts, *end))
            }
            _ => None,
        };
        let (starts, end) = sound.ok_or_else(|| {
            Error::new(
                ErrorKind::Corrupt,
                format!("{log}: {} bytes are no layout of this pool", layout.0.len()),
            )
        })?;
        Ok(Self { starts: starts.to_vec(), end: (end != OPEN).then_some(end) })
    }
}
