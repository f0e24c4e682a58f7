//! A cursor over sorted records in memory. Tests and benchmarks put it under the other iterators,
//! and it is the reference for the behaviour of a cursor.
//!
//! Invariant: the records are sorted by [`crate::key::compare`], and each key is at least eight
//! bytes long. The records lie one after the other in one buffer, as in a block; clones share it.
//! Seeks are binary searches; steps allocate nothing. No call fails.

use std::cmp::Ordering;
use std::sync::Arc;

use archipelago_base::Result;

use super::InternalIterator;
use crate::key::compare;

/// A cursor over sorted records in memory; clones share them.
#[derive(Clone, Debug)]
pub struct VecIterator {
    records: Arc<Records>,
    /// Index of the current record; the cursor is not valid at `records.spans.len()` and past it.
    at: usize,
}

#[derive(Debug)]
struct Records {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

/// Position of a record: its key, followed by its value.
#[derive(Clone, Copy, Debug)]
struct Span {
    key: usize,
    value: usize,
    end: usize,
}

impl Records {
    fn key(&self, span: Span) -> &[u8] {
        &self.bytes[span.key..span.value]
    }

    /// Number of records whose keys lie before the wanted position.
    fn partition_point(&self, before: impl Fn(&[u8]) -> bool) -> usize {
        self.spans.partition_point(|&span| before(self.key(span)))
    }
}

impl VecIterator {
    /// A cursor over encoded internal keys and values, which it sorts.
    #[must_use]
    pub fn new(mut entries: Vec<(Vec<u8>, Vec<u8>)>) -> Self {
        entries.sort_by(|a, b| compare(&a.0, &b.0));
        let mut bytes = Vec::new();
        let mut spans = Vec::with_capacity(entries.len());
        for (key, value) in &entries {
            let start = bytes.len();
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(value);
            spans.push(Span { key: start, value: start + key.len(), end: bytes.len() });
        }
        Self { at: spans.len(), records: Arc::new(Records { bytes, spans }) }
    }
}

impl InternalIterator for VecIterator {
    fn valid(&self) -> bool {
        self.at < self.records.spans.len()
    }

    fn seek_to_first(&mut self) {
        self.at = 0;
    }

    fn seek_to_last(&mut self) {
        self.at = self.records.spans.len().wrapping_sub(1);
    }

    fn seek(&mut self, target: &[u8]) {
        self.at = self.records.partition_point(|key| compare(key, target) == Ordering::Less);
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        let past = self.records.partition_point(|key| compare(key, target) != Ordering::Greater);
        self.at = past.wrapping_sub(1);
    }

    fn next(&mut self) {
        self.at += 1;
    }

    fn prev(&mut self) {
        self.at = self.at.wrapping_sub(1);
    }

    fn key(&self) -> &[u8] {
        self.records.key(self.records.spans[self.at])
    }

    fn value(&self) -> &[u8] {
        let span = self.records.spans[self.at];
        &self.records.bytes[span.value..span.end]
    }

    fn status(&self) -> Result<()> {
        Ok(())
    }
}
