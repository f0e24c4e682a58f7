//! What was invalidated while it was being fetched.
//!
//! An answer that carries a value may be overtaken by the invalidation of that value; cached then,
//! it would be stale for ever. So a fetch begins by taking the state of its hash's **mark** and of
//! the mark for all, and what it brings is cached only if both are as they were. An invalidation
//! advances the mark of its hash; one of a partition, of an owner or of everything advances the
//! mark for all.
//!
//! Hashes share [`MARKS`] marks, so a fetch may be refused for another key's sake; it is then only
//! not cached. Nothing is kept per fetch, so nothing leaks when one is given up.
//!
//! Cost: O(1). Paper: §4.4 ("check for in-flight RPCs on the same key").

/// How many marks hashes share.
pub(super) const MARKS: usize = 2048;
/// Bytes of the marks.
pub(super) const MARKS_BYTES: u64 = (MARKS * size_of::<u32>()) as u64 + super::nodes::ALLOC_BYTES;

/// A fetch that began. What it brings is given to
/// [`LocalCache::finish_fetch`](super::LocalCache::finish_fetch); a fetch that fails needs no end.
#[derive(Debug)]
#[must_use = "what the fetch brings is cached with it"]
pub struct Fetch {
    pub(super) hash: u64,
    mark: u32,
    all: u32,
}

#[derive(Debug)]
pub(super) struct Marks {
    marks: Box<[u32]>,
    all: u32,
}

impl Marks {
    pub(super) fn new() -> Self {
        Self { marks: vec![0; MARKS].into_boxed_slice(), all: 0 }
    }

    pub(super) fn begin(&self, hash: u64) -> Fetch {
        Fetch { hash, mark: self.marks[Self::of(hash)], all: self.all }
    }

    pub(super) fn invalidate(&mut self, hash: u64) {
        let mark = &mut self.marks[Self::of(hash)];
        *mark = mark.wrapping_add(1);
    }

    pub(super) fn invalidate_all(&mut self) {
        self.all = self.all.wrapping_add(1);
    }

    pub(super) fn holds(&self, fetch: &Fetch) -> bool {
        fetch.mark == self.marks[Self::of(fetch.hash)] && fetch.all == self.all
    }

    fn of(hash: u64) -> usize {
        hash as usize % MARKS
    }
}
