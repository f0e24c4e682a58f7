//! A cursor over a live or sealed shard.
//!
//! The cursor holds a leaf and a copy of the leaf's order, so that it moves within a leaf
//! independently of writers. It shows every record that was inserted before its last seek, in
//! order. Later records may or may not appear. It may be at a leaf that has died since
//! ([`super::tree`], invariant 1).
//!
//! Thread-safety: not shared between threads. Cost: `next` and `prev` touch one order byte, one
//! reference and the record. A step to the next leaf copies its order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::{Error, ErrorKind, Result};

use super::kv::Record;
use super::node::{NO_NODE, Node, Snapshot, snapshot};
use super::search::{Past, Target, partition, partition_full};
use super::shard::Shard;
use super::tree::View;
use crate::iter::InternalIterator;
use crate::key::KeyRef;

/// Number of records that a cursor prefetches ahead of its position.
const AHEAD: usize = 6;

/// A cursor over the records of a [`Shard`], live or sealed.
pub struct ShardIter {
    /// The current record, which borrows from `shard`. It is declared first, so that it is dropped
    /// first.
    current: Option<Record<'static>>,
    leaf: u32,
    snap: Snapshot,
    at: usize,
    verify: bool,
    status: Result<()>,
    shard: Arc<Shard>,
}

impl ShardIter {
    pub(super) fn new(shard: Arc<Shard>, verify: bool) -> Self {
        Self {
            current: None,
            leaf: NO_NODE,
            snap: Snapshot::EMPTY,
            at: 0,
            verify,
            status: Ok(()),
            shard,
        }
    }

    fn node(&self) -> &Node {
        self.shard.tree().node(self.leaf)
    }

    /// Moves to the entry at `at` of the leaf.
    #[inline]
    fn settle(&mut self) {
        let node = self.shard.tree().node(self.leaf);
        let record = node.record(self.snap.slot(self.at));
        // SAFETY: the record is published, immutable and lives as long as the shard, which this
        // cursor keeps alive; the borrow is handed out only for as long as the cursor's.
        let record = unsafe {
            std::mem::transmute::<Record<'_>, Record<'static>>(self.shard.kv().record(record))
        };
        if self.verify && !record.is_intact() {
            self.status = Err(damaged(record.key));
            self.current = None;
            return;
        }
        self.current = Some(record);
    }

    /// Prefetches the record at a position of the leaf, if there is one.
    #[inline]
    fn prefetch(&self, at: usize) {
        if at < self.snap.count() {
            let record = self.node().record(self.snap.slot(at));
            // SAFETY: a record that the index holds.
            unsafe { self.shard.kv().prefetch(record) };
        }
    }

    fn clear(&mut self) {
        self.current = None;
        self.status = Ok(());
    }

    /// Moves to the leaf that holds the target, without a position in it. Returns whether there is
    /// one.
    fn descend(&mut self, target: &Target<'_>) -> bool {
        self.clear();
        match self.shard.tree().descend(target, self.shard.kv(), |_, _, _, _, _| {}) {
            None => false,
            Some(leaf) => {
                self.leaf = leaf;
                self.snap = snapshot(self.node());
                true
            }
        }
    }

    /// Moves to the neighbour leaf `to`, if there is one. Returns whether there is.
    fn step(&mut self, to: u32) -> bool {
        if to == NO_NODE {
            return false;
        }
        self.leaf = to;
        self.snap = snapshot(self.node());
        true
    }

    fn next_leaf(&self) -> u32 {
        self.node().next.load(Ordering::Acquire)
    }

    /// First position in the leaf that the search does not pass. `first` says that the leaf was
    /// reached from its parent, so that its prefixes hold for the target.
    fn search(&self, target: &Target<'_>, past: Past, first: bool) -> usize {
        let (node, kv) = (self.node(), self.shard.kv());
        let view = View { node, snap: &self.snap };
        let range = 0..self.snap.count();
        let found = if first {
            let prefix = self.shard.tree().prefix(node.skip, target, kv);
            partition(&view, range, prefix, target, past, kv)
        } else {
            partition_full(&view, range, target, past, kv)
        };
        found.expect("records of a live shard always decode")
    }
}

/// The error for a record whose checksum does not match.
fn damaged(encoded: &[u8]) -> Error {
    let user_key = KeyRef::decode(encoded).map_or(encoded, |key| key.user_key);
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "memtable record \"{}\": checksum mismatch: the memory it lay in was damaged",
            user_key.escape_ascii()
        ),
    )
}

impl InternalIterator for ShardIter {
    #[inline]
    fn valid(&self) -> bool {
        self.current.is_some()
    }

    fn seek_to_first(&mut self) {
        if self.descend(&Target::new(&[], u64::MAX)) {
            self.at = 0;
            self.settle();
        }
    }

    fn seek_to_last(&mut self) {
        self.clear();
        let Some(leaf) = self.shard.tree().last_leaf() else { return };
        self.leaf = leaf;
        self.snap = snapshot(self.node());
        while self.step(self.next_leaf()) {}
        self.at = self.snap.count() - 1;
        self.settle();
    }

    fn seek(&mut self, target: &[u8]) {
        let target = Target::encoded(target);
        if !self.descend(&target) {
            return;
        }
        self.at = self.search(&target, Past::Before, true);
        while self.at == self.snap.count() {
            if !self.step(self.next_leaf()) {
                return;
            }
            self.at = self.search(&target, Past::Before, false);
        }
        self.settle();
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        let target = Target::encoded(target);
        if !self.descend(&target) {
            return;
        }
        let mut past = self.search(&target, Past::Equal, true);
        while past == self.snap.count() {
            let (leaf, snap) = (self.leaf, self.snap);
            if !self.step(self.next_leaf()) {
                break;
            }
            let further = self.search(&target, Past::Equal, false);
            if further == 0 {
                (self.leaf, self.snap) = (leaf, snap);
                break;
            }
            past = further;
        }
        if past == 0 {
            if !self.step(self.node().prev.load(Ordering::Acquire)) {
                return;
            }
            past = self.snap.count();
        }
        self.at = past - 1;
        self.settle();
    }

    #[inline]
    fn next(&mut self) {
        debug_assert!(self.valid());
        self.at += 1;
        if self.at == self.snap.count() {
            if !self.step(self.next_leaf()) {
                self.current = None;
                return;
            }
            self.at = 0;
            (0..AHEAD).for_each(|at| self.prefetch(at));
        }
        self.prefetch(self.at + AHEAD);
        self.settle();
    }

    #[inline]
    fn prev(&mut self) {
        debug_assert!(self.valid());
        if self.at == 0 {
            if !self.step(self.node().prev.load(Ordering::Acquire)) {
                self.current = None;
                return;
            }
            self.at = self.snap.count();
            (1..=AHEAD).for_each(|back| self.prefetch(self.at.wrapping_sub(back)));
        }
        self.at -= 1;
        self.prefetch(self.at.wrapping_sub(AHEAD));
        self.settle();
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.current.as_ref().expect("the caller checked that the cursor is valid").key
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.current.as_ref().expect("the caller checked that the cursor is valid").value
    }

    fn status(&self) -> Result<()> {
        self.status.clone()
    }
}
