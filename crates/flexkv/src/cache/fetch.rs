//! Detection of invalidations that arrive while a value is being fetched.
//!
//! The invalidation of a value may overtake the answer that carries the value. If the answer were
//! cached then, it would be stale for ever. So a fetch begins by noting the state of the **mark**
//! of its hash and the state of the mark for all hashes. Its result is cached only if neither has
//! changed. An invalidation advances the mark of its hash. The invalidation of a partition, of an
//! owner or of everything advances the mark for all.
//!
//! Hashes share [`MARKS`] marks, so an invalidation of another key may refuse a fetch. Its result
//! is then only not cached. Nothing is stored per fetch, so a fetch that is given up leaves
//! nothing.
//!
//! Cost: constant time. Paper: §4.4 ("check for in-flight RPCs on the same key").

/// Number of marks that all hashes share.
pub(super) const MARKS: usize = 2048;
/// Bytes of the marks.
pub(super) const MARKS_BYTES: u64 = (MARKS * size_of::<u32>()) as u64 + super::nodes::ALLOC_BYTES;

/// A fetch that began. Its result goes to
/// [`LocalCache::finish_fetch`](super::LocalCache::finish_fetch). A fetch that fails is just
/// dropped.
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
