//! The cache's entries: dense, in order of arrival, and found by hash.
//!
//! One array of nodes serves as three structures, so that each entry has the same cost and no array
//! is ever copied to twice its size:
//!
//! - **Slab**: the nodes 0 to n−1 without gaps, in chunks of [`CHUNK`]. When a node is removed, the
//!   last node takes its number.
//! - **FIFO**: a doubly linked list through the nodes, from the oldest to the newest.
//! - **Map**: linear hashing with as many buckets as nodes. Node `b` holds the head of the chain of
//!   bucket `b`. Adding a node splits one bucket, and removing a node joins two. So chains have one
//!   node on average at any size.
//!
//! Invariants:
//! 1. Every node is in the FIFO once, and in the chain of the bucket that its hash names among n.
//! 2. No two nodes have the same hash.
//! 3. [`Nodes::bytes`] is the size of the chunks and their table. [`Nodes::push_bytes`] is the size
//!    of one more node, including the old table while it is copied.
//!
//! Thread-safety: by `&mut`.
//! Cost: a look-up reads two to three nodes and allocates nothing. Adding and removing take
//! constant expected time.

use archipelago_base::prefetch::prefetch;

use super::{CachedSlot, EntryKind};

/// Number of nodes in a chunk.
pub(super) const CHUNK: usize = 32;
/// Number of chunks by which their table grows.
pub(super) const TABLE_STEP: usize = 64;
/// Bytes that the allocator adds to a piece, after it rounds the piece up to [`ALLOC_UNIT`].
pub(super) const ALLOC_BYTES: u64 = 16;
/// Unit of the allocator, in bytes.
pub(super) const ALLOC_UNIT: u64 = 16;
/// Bytes of a chunk.
pub(super) const CHUNK_BYTES: u64 = (CHUNK * size_of::<Node>()) as u64 + ALLOC_BYTES;
/// Bytes of the table per chunk.
pub(super) const TABLE_BYTES: u64 = size_of::<Vec<Node>>() as u64;

const NONE: u32 = u32::MAX;

/// Cached entry of a key. `data` has the bytes of the key and, for a pair, those of the value.
#[derive(Debug)]
pub(super) struct CacheEntry {
    pub(super) hash: u64,
    pub(super) place: CachedSlot,
    pub(super) data: Box<[u8]>,
    pub(super) expires_ms: u64,
    pub(super) key_bytes: u16,
    pub(super) kind: EntryKind,
}

#[derive(Debug)]
pub(super) struct Node {
    entry: CacheEntry,
    /// First node of the bucket with this node's number.
    head: u32,
    /// Next node of the bucket that this node is in.
    chain: u32,
    older: u32,
    newer: u32,
}

/// The entries of a cache. See the head of the module.
#[derive(Debug)]
pub(super) struct Nodes {
    chunks: Vec<Vec<Node>>,
    len: u32,
    oldest: u32,
    newest: u32,
}

/// The bucket of a hash among `count`.
fn bucket(hash: u64, count: u32) -> u32 {
    let power = count.next_power_of_two();
    let low = hash as u32 & (power - 1);
    if low >= count { low - power / 2 } else { low }
}

/// The bucket from which the last bucket, `at` above 0, was split.
fn parent(at: u32) -> u32 {
    at & !(1 << at.ilog2())
}

impl Nodes {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), len: 0, oldest: NONE, newest: NONE }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Bytes of the chunks and their table.
    pub(super) fn bytes(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK_BYTES + self.chunks.capacity() as u64 * TABLE_BYTES
    }

    /// Bytes that one more node takes.
    pub(super) fn push_bytes(&self) -> u64 {
        if (self.len as usize) < self.chunks.len() * CHUNK {
            return 0;
        }
        let full = self.chunks.len() == self.chunks.capacity();
        let table = if full { self.chunks.capacity() + TABLE_STEP } else { 0 };
        CHUNK_BYTES + table as u64 * TABLE_BYTES
    }

    pub(super) fn entry(&self, at: u32) -> &CacheEntry {
        &self.node(at).entry
    }

    pub(super) fn entry_mut(&mut self, at: u32) -> &mut CacheEntry {
        &mut self.node_mut(at).entry
    }

    pub(super) fn oldest(&self) -> Option<u32> {
        Some(self.oldest).filter(|&at| at != NONE)
    }

    /// The node with this hash.
    pub(super) fn find(&self, hash: u64) -> Option<u32> {
        self.find_from(self.head(hash), hash)
    }

    /// The node at which the search for a hash begins, for [`Nodes::find_from`]. It is valid until
    /// the nodes change.
    pub(super) fn head(&self, hash: u64) -> u32 {
        if self.len == 0 { NONE } else { self.node(bucket(hash, self.len)).head }
    }

    /// Prefetches the node at which a search begins. Nodes are not aligned to cache lines, so the
    /// whole node is prefetched.
    pub(super) fn prefetch_from(&self, at: u32) {
        if at != NONE {
            prefetch(std::ptr::from_ref(self.node(at)).cast(), size_of::<Node>());
        }
    }

    /// The node with this hash, in the chain that begins at `at`.
    pub(super) fn find_from(&self, mut at: u32, hash: u64) -> Option<u32> {
        while at != NONE {
            let node = self.node(at);
            if node.entry.hash == hash {
                return Some(at);
            }
            at = node.chain;
        }
        None
    }

    /// Adds an entry as the newest. No node has its hash.
    pub(super) fn push(&mut self, entry: CacheEntry) {
        let at = self.len;
        assert!(at < NONE - 1, "more entries than numbers");
        if at as usize == self.chunks.len() * CHUNK {
            if self.chunks.len() == self.chunks.capacity() {
                self.chunks.reserve_exact(TABLE_STEP);
            }
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let hash = entry.hash;
        let node = Node { entry, head: NONE, chain: NONE, older: self.newest, newer: NONE };
        self.chunks[at as usize / CHUNK].push(node);
        self.len += 1;
        match self.newest {
            NONE => self.oldest = at,
            newest => self.node_mut(newest).newer = at,
        }
        self.newest = at;
        self.split(at);
        self.chain_in(hash, at);
    }

    /// Removes a node. The last node takes its number.
    pub(super) fn remove(&mut self, at: u32) -> CacheEntry {
        self.chain_out(at);
        let (older, newer) = (self.node(at).older, self.node(at).newer);
        self.link(older, newer);
        let last = self.len - 1;
        self.join(last);
        if at != last {
            // The last node leaves its chain under its old number and enters it under the new one.
            // From here on there are `last` buckets.
            self.chain_out_of(last, last);
        }
        let mut gone = self.pop();
        self.len = last;
        if at != last {
            let (hash, older, newer) = (gone.entry.hash, gone.older, gone.newer);
            let here = self.node_mut(at);
            gone.head = here.head;
            std::mem::swap(here, &mut gone);
            match older {
                NONE => self.oldest = at,
                older => self.node_mut(older).newer = at,
            }
            match newer {
                NONE => self.newest = at,
                newer => self.node_mut(newer).older = at,
            }
            self.chain_in(hash, at);
        }
        gone.entry
    }

    /// Removes all nodes.
    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }

    fn node(&self, at: u32) -> &Node {
        &self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node {
        &mut self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }

    fn pop(&mut self) -> Node {
        let chunk = self.chunks.last_mut().expect("a node is there");
        let node = chunk.pop().expect("chunks are not empty");
        if chunk.is_empty() {
            self.chunks.pop();
        }
        if self.chunks.is_empty() {
            self.chunks = Vec::new();
        }
        node
    }

    /// Joins the neighbours of a node that leaves the FIFO.
    fn link(&mut self, older: u32, newer: u32) {
        match older {
            NONE => self.oldest = newer,
            older => self.node_mut(older).newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.node_mut(newer).older = older,
        }
    }

    fn chain_in(&mut self, hash: u64, at: u32) {
        let bucket = bucket(hash, self.len);
        let head = std::mem::replace(&mut self.node_mut(bucket).head, at);
        self.node_mut(at).chain = head;
    }

    fn chain_out(&mut self, at: u32) {
        self.chain_out_of(at, self.len);
    }

    /// Takes a node out of its chain, with `count` buckets.
    fn chain_out_of(&mut self, at: u32, count: u32) {
        let bucket = bucket(self.node(at).entry.hash, count);
        let next = self.node(at).chain;
        let head = &mut self.node_mut(bucket).head;
        if *head == at {
            *head = next;
            return;
        }
        let mut before = *head;
        while self.node(before).chain != at {
            before = self.node(before).chain;
        }
        self.node_mut(before).chain = next;
    }

    /// Fills the new bucket `new` with the nodes of its parent that belong there. Every node except
    /// `new` itself is in a chain already.
    fn split(&mut self, new: u32) {
        if new == 0 {
            return;
        }
        let from = parent(new);
        let mut at = std::mem::replace(&mut self.node_mut(from).head, NONE);
        while at != NONE {
            let next = self.node(at).chain;
            self.chain_in(self.node(at).entry.hash, at);
            at = next;
        }
    }

    /// Removes bucket `last`, and adds the nodes of its chain to the chain of its parent bucket.
    fn join(&mut self, last: u32) {
        let mut at = std::mem::replace(&mut self.node_mut(last).head, NONE);
        while at != NONE {
            let next = self.node(at).chain;
            let head = std::mem::replace(&mut self.node_mut(parent(last)).head, at);
            self.node_mut(at).chain = head;
            at = next;
        }
    }

    /// Checks the invariants, for tests.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut chained = vec![0; self.len as usize];
        for number in 0..self.len {
            let mut at = self.node(number).head;
            while at != NONE {
                assert_eq!(bucket(self.node(at).entry.hash, self.len), number);
                chained[at as usize] += 1;
                at = self.node(at).chain;
            }
        }
        assert!(chained.iter().all(|&times| times == 1), "{chained:?}");
        let (mut at, mut before, mut seen) = (self.oldest, NONE, 0);
        while at != NONE {
            assert_eq!(self.node(at).older, before);
            (before, at, seen) = (at, self.node(at).newer, seen + 1);
        }
        assert_eq!((before, seen), (self.newest, self.len));
        assert_eq!(self.chunks.len(), (self.len as usize).div_ceil(CHUNK));
    }
}
