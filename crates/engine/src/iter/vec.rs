//! A cursor over a sorted vector in memory: what tests and benchmarks put under the other
//! iterators, and the reference for how a cursor behaves.
//!
//! Invariant: the entries are sorted by [`crate::key::compare`], each key at least eight bytes
//! long. Seeks are binary searches; steps allocate nothing. It cannot fail.

use std::sync::Arc;

use archipelago_base::Result;

use super::InternalIterator;
use crate::key::compare;

/// See the module.
#[derive(Clone, Debug)]
pub struct VecIterator {
    entries: Arc<Vec<(Vec<u8>, Vec<u8>)>>,
    /// Not valid at `entries.len()` and past it.
    at: usize,
}

impl VecIterator {
    /// A cursor over encoded internal keys and values, which it sorts.
    #[must_use]
    pub fn new(mut entries: Vec<(Vec<u8>, Vec<u8>)>) -> Self {
        entries.sort_by(|a, b| compare(&a.0, &b.0));
        Self { at: entries.len(), entries: Arc::new(entries) }
    }
}

impl InternalIterator for VecIterator {
    fn valid(&self) -> bool {
        self.at < self.entries.len()
    }

    fn seek_to_first(&mut self) {
        self.at = 0;
    }

    fn seek_to_last(&mut self) {
        self.at = self.entries.len().wrapping_sub(1);
    }

    fn seek(&mut self, target: &[u8]) {
        self.at = self.entries.partition_point(|(key, _)| compare(key, target).is_lt());
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        let past = self.entries.partition_point(|(key, _)| compare(key, target).is_le());
        self.at = past.wrapping_sub(1);
    }

    fn next(&mut self) {
        self.at += 1;
    }

    fn prev(&mut self) {
        self.at = self.at.wrapping_sub(1);
    }

    fn key(&self) -> &[u8] {
        &self.entries[self.at].0
    }

    fn value(&self) -> &[u8] {
        &self.entries[self.at].1
    }

    fn status(&self) -> Result<()> {
        Ok(())
    }
}
