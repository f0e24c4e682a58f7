//! Collects the merge operands of one key during a scan.
//!
//! All operands lie in one buffer that is reused for the next key. Cost: a copy per operand, and a
//! vector of slices per fold.

use archipelago_base::{Error, Result};

use crate::extension::FamilyMerge;

/// Collects the merge operands of the current key.
#[derive(Default)]
pub(super) struct Operands {
    bytes: Vec<u8>,
    /// End of each operand in `bytes`.
    ends: Vec<usize>,
}

/// Order in which operands were pushed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    OldestFirst,
    NewestFirst,
}

impl Operands {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(super) fn push(&mut self, operand: &[u8]) {
        self.bytes.extend_from_slice(operand);
        self.ends.push(self.bytes.len());
    }

    /// The value of `key` after the operands were applied to `base`.
    pub(super) fn fold(
        &self,
        operator: Option<&FamilyMerge>,
        key: &[u8],
        base: Option<&[u8]>,
        pushed: Pushed,
    ) -> Result<Vec<u8>> {
        let operator = operator.ok_or_else(|| no_operator(key))?;
        let mut start = 0;
        let mut slices = Vec::with_capacity(self.ends.len());
        for &end in &self.ends {
            slices.push(&self.bytes[start..end]);
            start = end;
        }
        if pushed == Pushed::NewestFirst {
            slices.reverse();
        }
        operator.full_merge(key, base, &slices)?
    }
}

#[cold]
fn no_operator(key: &[u8]) -> Error {
    Error::invalid(format!(
        "key \"{}\" has merge operands, but its column family was opened without a merge \
         operator: open it with the one that wrote them",
        key.escape_ascii()
    ))
}
