//! Settings of a scan: snapshot, bounds, merge operator and the time for expiry.

use std::sync::Arc;

use archipelago_base::SeqNo;

use crate::extension::FamilyMerge;

/// Settings that decide which records a [`super::UserIterator`] shows.
#[derive(Clone)]
pub struct View {
    /// Writes with a larger sequence number are invisible.
    pub snapshot: SeqNo,
    /// First key that is shown; empty for the first of all.
    pub lower: Vec<u8>,
    /// First key that is not shown any more; `None` for no end.
    pub upper: Option<Vec<u8>>,
    /// Folds merge operands; without it, a merge operand is an error.
    pub operator: Option<Arc<FamilyMerge>>,
    /// Time in Unix milliseconds. Records that expire then or earlier read as deleted.
    pub now_ms: u64,
    /// Whether only keys matter. Operands are then not folded, and values are not copied and may be
    /// cut.
    pub keys_only: bool,
}

impl View {
    /// All keys as of `snapshot` at `now_ms`, without a merge operator.
    #[must_use]
    pub fn new(snapshot: SeqNo, now_ms: u64) -> Self {
        Self { snapshot, lower: Vec::new(), upper: None, operator: None, now_ms, keys_only: false }
    }

    /// Hides keys that do not start with `prefix` as well.
    #[must_use]
    pub fn with_prefix(mut self, prefix: &[u8]) -> Self {
        if prefix > self.lower.as_slice() {
            self.lower = prefix.to_vec();
        }
        if let Some(end) = prefix_end(prefix)
            && self.upper.as_ref().is_none_or(|upper| end < *upper)
        {
            self.upper = Some(end);
        }
        self
    }
}

/// The first key after all that start with `prefix`; `None` if there is none.
#[must_use]
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}
