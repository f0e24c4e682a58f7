//! Splits of index nodes. [`super::tree`] has the invariants. Everything here runs under the write
//! lock of the tree.
//!
//! Cost: a split copies 62 entries. It reads their records only if the fences of a half allow a
//! clearly longer skip than the node had. A split for ascending inserts copies nothing.

use std::sync::atomic::Ordering;

use super::kv::{KvBlock, RecordRef};
use super::node::{InnerNode, NO_NODE, Node, SLOTS, Snapshot, snapshot};
use super::search::{GUESS, Target, guessed, load8};
use super::tree::{Fences, Path, Step, Tree};
use crate::key;

/// Number of entries of a full node that go to the left half.
const CUT: usize = SLOTS.div_ceil(2);

/// The entries of a full node and a new one, in order.
pub(super) struct Entries {
    skip: u32,
    prefixes: [u64; SLOTS + 1],
    records: [RecordRef; SLOTS + 1],
    children: [u32; SLOTS + 1],
}

impl Entries {
    pub(super) fn of_leaf(
        leaf: &Node,
        snap: &Snapshot,
        at: usize,
        prefix: u64,
        record: RecordRef,
    ) -> Self {
        let mut entries = Self {
            skip: leaf.skip,
            prefixes: [0; SLOTS + 1],
            records: [0; SLOTS + 1],
            children: [NO_NODE; SLOTS + 1],
        };
        for position in 0..SLOTS {
            let slot = snap.slot(position);
            let to = position + usize::from(position >= at);
            entries.prefixes[to] = leaf.prefix(slot);
            entries.records[to] = leaf.record(slot);
        }
        entries.prefixes[at] = prefix;
        entries.records[at] = record;
        entries
    }

    fn of_inner(
        inner: &InnerNode,
        snap: &Snapshot,
        at: usize,
        prefix: u64,
        new: &NewChild,
    ) -> Self {
        let mut entries = Self::of_leaf(&inner.node, snap, at, prefix, new.separator);
        for position in 0..SLOTS {
            let to = position + usize::from(position >= at);
            entries.children[to] = inner.child(snap.slot(position));
        }
        entries.children[at] = new.right;
        if let Some(left) = new.left {
            entries.children[at - 1] = left;
        }
        entries
    }

    /// Prefix and record of a range of entries, for a node with this skip.
    fn part<'a>(
        &'a self,
        range: std::ops::Range<usize>,
        skip: u32,
        tree: &'a Tree,
        records: &'a KvBlock,
    ) -> impl Iterator<Item = (u64, RecordRef)> + 'a {
        let same = skip == self.skip;
        let guess = if same || skip != GUESS { &[] } else { tree.guess_bytes(records) };
        range.map(move |at| {
            let record = self.records[at];
            if same {
                return (self.prefixes[at], record);
            }
            // SAFETY: an entry of a published node, or the record that is being inserted, which
            // is complete.
            let user_key = unsafe { key::user_key(records.key(record)) };
            let prefix = if skip == GUESS {
                guessed(user_key, guess)
            } else {
                load8(user_key, skip as usize)
            };
            (prefix, record)
        })
    }
}

/// The change of a child that its parent must apply: a new right sibling, and the node that
/// replaces the split child (`None` if the split child lives on).
struct NewChild {
    left: Option<u32>,
    separator: RecordRef,
    right: u32,
}

impl Tree {
    /// Begins a new leaf after a full one that lives on. Returns the new leaf.
    pub(super) fn append_leaf(
        &self,
        path: &Path,
        target: &Target<'_>,
        record: RecordRef,
        records: &KvBlock,
    ) -> u32 {
        let fences = Fences { low: record, high: path.fences.high };
        let skip = self.skip_of(fences, GUESS, records);
        let right = self.add_leaf(skip);
        let prefix = self.prefix(skip, target, records);
        self.node(right).build(std::iter::once((prefix, record)));
        self.link(path.leaf, None, right);
        self.add_child(path, &NewChild { left: None, separator: record, right }, records);
        right
    }

    /// Replaces a full leaf by two.
    pub(super) fn split_leaf(&self, path: &Path, entries: &Entries, records: &KvBlock) {
        let separator = entries.records[CUT];
        let Fences { low, high } = path.fences;
        let skip = |low, high| self.skip_of(Fences { low, high }, entries.skip, records);
        let (left_skip, right_skip) = (skip(low, separator), skip(separator, high));
        let (left, right) = (self.add_leaf(left_skip), self.add_leaf(right_skip));
        self.node(left).build(entries.part(0..CUT, left_skip, self, records));
        self.node(right).build(entries.part(CUT..SLOTS + 1, right_skip, self, records));
        self.link(path.leaf, Some(left), right);
        self.add_child(path, &NewChild { left: Some(left), separator, right }, records);
    }

    /// Links `right`, and `left` in place of `old` if given, into the chain of leaves.
    fn link(&self, old: u32, left: Option<u32>, right: u32) {
        let dying = self.node(old);
        let before = dying.prev.load(Ordering::Relaxed);
        let after = dying.next.load(Ordering::Relaxed);
        let new = self.node(right);
        new.next.store(after, Ordering::Relaxed);
        new.prev.store(left.unwrap_or(old), Ordering::Relaxed);
        match left {
            None => dying.next.store(right, Ordering::Release),
            Some(left) => {
                self.node(left).prev.store(before, Ordering::Relaxed);
                self.node(left).next.store(right, Ordering::Relaxed);
                if before != NO_NODE {
                    self.node(before).next.store(left, Ordering::Release);
                }
            }
        }
        if after != NO_NODE {
            self.node(after).prev.store(right, Ordering::Release);
        }
    }

    /// Adds a new child to the lowest inner node of the path, and splits nodes upwards as needed.
    fn add_child(&self, path: &Path, new: &NewChild, records: &KvBlock) {
        let mut new = NewChild { ..*new };
        for step in path.steps[..path.height].iter().rev() {
            let inner = self.inner(step.node);
            let (snap, at) = (snapshot(&inner.node), step.at as usize);
            if snap.count() < SLOTS {
                // SAFETY: the separator is complete; readers see it after this publication.
                let separator = unsafe { records.key(new.separator) };
                let prefix = self.prefix(inner.node.skip, &Target::encoded(separator), records);
                inner.set_child(snap.count(), new.right);
                inner.node.insert(at + 1, &snap, prefix, new.separator);
                if let Some(left) = new.left {
                    inner.set_child(snap.slot(at), left);
                }
                return;
            }
            new = self.split_inner(step, inner, &snap, &new, records);
        }
        let old = self.root().expect("a tree that splits has a root");
        let root = self.add_inner(GUESS);
        let inner = self.inner(root);
        // SAFETY: as above.
        let separator = unsafe { records.key(new.separator) };
        let prefix = self.prefix(GUESS, &Target::encoded(separator), records);
        inner.set_child(0, new.left.unwrap_or(old.1));
        inner.set_child(1, new.right);
        inner.node.build([(0, new.separator), (prefix, new.separator)].into_iter());
        self.set_root(old.0 + 1, root);
    }

    /// Replaces a full inner node by two that also hold `new`. Returns the change for the parent.
    fn split_inner(
        &self,
        step: &Step,
        inner: &InnerNode,
        snap: &Snapshot,
        new: &NewChild,
        records: &KvBlock,
    ) -> NewChild {
        let (Fences { low, high }, at) = (step.fences, step.at as usize);
        if new.left.is_none() && at == SLOTS - 1 {
            let fences = Fences { low: new.separator, high };
            let right = self.add_inner(self.skip_of(fences, GUESS, records));
            self.inner(right).set_child(0, new.right);
            self.node(right).build(std::iter::once((0, new.separator)));
            return NewChild { left: None, separator: new.separator, right };
        }
        // SAFETY: the separator is complete.
        let key = unsafe { records.key(new.separator) };
        let prefix = self.prefix(inner.node.skip, &Target::encoded(key), records);
        let entries = Entries::of_inner(inner, snap, at + 1, prefix, new);
        let separator = entries.records[CUT];
        let skip = |low, high| self.skip_of(Fences { low, high }, entries.skip, records);
        let (left_skip, right_skip) = (skip(low, separator), skip(separator, high));
        let (left, right) = (self.add_inner(left_skip), self.add_inner(right_skip));
        for (node, range, skip) in [(left, 0..CUT, left_skip), (right, CUT..SLOTS + 1, right_skip)]
        {
            let half = self.inner(node);
            for (slot, &child) in entries.children[range.clone()].iter().enumerate() {
                half.set_child(slot, child);
            }
            half.node.build(entries.part(range, skip, self, records));
        }
        NewChild { left: Some(left), separator, right }
    }
}
