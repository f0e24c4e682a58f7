//! The answer to a question about range tombstones, with the range of keys for which it holds.

use archipelago_base::SeqNo;

/// A range of keys and the newest visible delete that covers all of it.
#[derive(Clone, Debug)]
pub struct TombstoneSpan {
    newest: SeqNo,
    start: Vec<u8>,
    end: Vec<u8>,
    /// Whether the span has no end; `end` is then not used.
    endless: bool,
}

impl Default for TombstoneSpan {
    fn default() -> Self {
        Self { newest: SeqNo::ZERO, start: Vec::new(), end: Vec::new(), endless: true }
    }
}

impl TombstoneSpan {
    /// Sequence number of the newest delete; [`SeqNo::ZERO`] if there is none. Records with a
    /// smaller number are deleted.
    #[inline]
    #[must_use]
    pub fn newest(&self) -> SeqNo {
        self.newest
    }

    /// First key of the span.
    #[inline]
    #[must_use]
    pub fn start(&self) -> &[u8] {
        &self.start
    }

    /// First key past the span; `None` if it has no end. A covered span always has one.
    #[must_use]
    pub fn end(&self) -> Option<&[u8]> {
        (!self.endless).then_some(&self.end)
    }

    /// Resets the span to all keys without a delete, which is the start of a question.
    pub fn reset(&mut self) {
        self.newest = SeqNo::ZERO;
        self.start.clear();
        self.endless = true;
    }

    /// Adds the answer of one source. The range from `start` to `end` (`None`: no end) holds the
    /// asked key. In it, the source's newest visible delete is `newest`, if there is one.
    pub fn add(&mut self, start: &[u8], end: Option<&[u8]>, newest: Option<SeqNo>) {
        if start > self.start.as_slice() {
            self.start.clear();
            self.start.extend_from_slice(start);
        }
        if let Some(end) = end
            && (self.endless || end < self.end.as_slice())
        {
            self.end.clear();
            self.end.extend_from_slice(end);
            self.endless = false;
        }
        self.newest = self.newest.max(newest.unwrap_or_default());
    }

    /// Whether the span ends at or before `key`.
    #[inline]
    pub(crate) fn ends_before_or_at(&self, key: &[u8]) -> bool {
        !self.endless && self.end.as_slice() <= key
    }
}
