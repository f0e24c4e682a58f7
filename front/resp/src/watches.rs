//! Registry of watched keys that were absent when clients watched them.
//!
//! WATCH notes the version of each key that has a record, and EXEC compares it
//! ([`crate::session::transaction`]). A key without a record has no version. If it is written and
//! removed again in between, its absence looks unchanged, but this registry notices the write.
//! Writers report which keys they put. The registry also counts the swaps of each database, because
//! after two of them a key has its old version again.
//!
//! Invariants:
//! 1. A watch is entered, and a put is reported, while the stripe of the key is held
//!    ([`crate::locks`]). So the read of WATCH sees the put, or the put marks the watch.
//! 2. A swap is reported while every stripe is held.
//! 3. The same key in two databases is two keys.
//!
//! Thread-safety: any thread may call any method. Cost of a put: one atomic load while no client
//! watches an absent key, and a mutex and a lookup otherwise. A swap checks at most
//! [`LOOKED_AT_MAX`] watched keys, because every client waits for a swap. If there are more, it
//! counts as a write of all of them. Then an EXEC may answer null although nothing has changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::databases::DATABASES;
use crate::store::Op;

/// Highest number of watched keys that a swap checks.
const LOOKED_AT_MAX: usize = 1000;

/// The watches of each key of a database, and whether the key was put since.
type ByKey = HashMap<Box<[u8]>, Vec<Arc<AtomicBool>>>;

/// The watches of absent keys of one server.
#[derive(Default)]
pub(crate) struct Watches {
    /// Number of watches.
    count: AtomicUsize,
    databases: Mutex<[ByKey; DATABASES]>,
    /// Number of swaps of each database.
    swaps: [AtomicU64; DATABASES],
}

/// Watch of an absent key by one client. It ends when this is dropped.
pub(crate) struct AbsentWatch {
    watches: Arc<Watches>,
    database: usize,
    key: Box<[u8]>,
    was_put: Arc<AtomicBool>,
}

impl Watches {
    /// Watches `key` of `database`, whose stripe is held.
    pub(crate) fn enter(self: &Arc<Self>, database: usize, key: &[u8]) -> AbsentWatch {
        let was_put = Arc::new(AtomicBool::new(false));
        let mut databases = self.databases.lock();
        databases[database].entry(key.into()).or_default().push(Arc::clone(&was_put));
        self.count.fetch_add(1, Ordering::SeqCst);
        AbsentWatch { watches: Arc::clone(self), database, key: key.into(), was_put }
    }

    /// Number of swaps of `database` so far.
    pub(crate) fn swaps(&self, database: usize) -> u64 {
        self.swaps[database].load(Ordering::SeqCst)
    }

    /// Reports that `databases` have changed places. Every stripe is held. `exists` says whether
    /// one of them has a key, or had it before. If none has, the key stays absent and unchanged. It
    /// is called for few keys, or not at all.
    pub(crate) fn tell_swapped(&self, databases: &[usize], exists: impl Fn(&[u8]) -> bool) {
        for database in databases {
            self.swaps[*database].fetch_add(1, Ordering::SeqCst);
        }
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let watched = self.databases.lock();
        let keys: usize = databases.iter().map(|database| watched[*database].len()).sum();
        for (key, watches) in databases.iter().flat_map(|database| &watched[*database]) {
            if keys > LOOKED_AT_MAX || exists(key) {
                watches.iter().for_each(|was_put| was_put.store(true, Ordering::SeqCst));
            }
        }
    }

    /// Reports that `key` of `database` was put. Its stripe is held.
    #[inline]
    pub(crate) fn tell_put(&self, database: usize, key: &[u8]) {
        if self.count.load(Ordering::SeqCst) > 0 {
            self.mark(database, key);
        }
    }

    /// Reports the puts among `ops` on `database`. Their stripes are held.
    #[inline]
    pub(crate) fn tell(&self, database: usize, ops: &[Op<'_>]) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        for op in ops {
            if let Op::Put { key, .. } = op {
                self.mark(database, key);
            }
        }
    }

    fn mark(&self, database: usize, key: &[u8]) {
        for was_put in self.databases.lock()[database].get(key).into_iter().flatten() {
            was_put.store(true, Ordering::SeqCst);
        }
    }
}

impl AbsentWatch {
    /// Whether the key was put since.
    pub(crate) fn was_put(&self) -> bool {
        self.was_put.load(Ordering::SeqCst)
    }
}

impl Drop for AbsentWatch {
    fn drop(&mut self) {
        let keys = &mut self.watches.databases.lock()[self.database];
        if let Some(of_key) = keys.get_mut(&self.key) {
            of_key.retain(|other| !Arc::ptr_eq(other, &self.was_put));
            if of_key.is_empty() {
                keys.remove(&self.key);
            }
        }
        self.watches.count.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn put_marks_only_the_watches_of_its_key() {
        let watches = Arc::new(Watches::default());
        let (first, second) = (watches.enter(2, b"a"), watches.enter(2, b"a"));
        let (other, elsewhere) = (watches.enter(2, b"b"), watches.enter(3, b"a"));
        watches.tell(2, &[Op::Delete { key: b"b" }]);
        watches.tell_put(2, b"a");
        assert!(first.was_put() && second.was_put());
        assert!(!other.was_put() && !elsewhere.was_put());
        drop(first);
        assert_eq!(watches.databases.lock()[2].len(), 2);
        drop((second, other, elsewhere));
        assert!(watches.databases.lock().iter().all(ByKey::is_empty));
        assert_eq!(watches.count.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn swap_looks_up_a_bounded_number_of_watched_keys() {
        let watches = Arc::new(Watches::default());
        let enter = |n: usize| watches.enter(n % 2, &n.to_be_bytes());
        let mut entered: Vec<AbsentWatch> = (0..LOOKED_AT_MAX).map(enter).collect();
        let elsewhere = watches.enter(2, b"a");
        let looked_at = std::cell::Cell::new(0);
        let exists = |_: &[u8]| {
            looked_at.set(looked_at.get() + 1);
            false
        };
        watches.tell_swapped(&[0, 1], exists);
        assert_eq!(looked_at.take(), LOOKED_AT_MAX);
        assert!(!entered.iter().any(AbsentWatch::was_put));
        entered.push(enter(LOOKED_AT_MAX));
        watches.tell_swapped(&[0, 1], exists);
        assert_eq!(looked_at.get(), 0);
        assert!(entered.iter().all(AbsentWatch::was_put) && !elsewhere.was_put());
    }

    #[test]
    fn swap_marks_the_watches_of_both_databases() {
        let watches = Arc::new(Watches::default());
        let (first, second) = (watches.enter(0, b"a"), watches.enter(4, b"a"));
        let (neither, elsewhere) = (watches.enter(0, b"b"), watches.enter(1, b"a"));
        watches.tell_swapped(&[0, 4], |key| key == b"a");
        assert!(first.was_put() && second.was_put());
        assert!(!neither.was_put(), "it is in neither database");
        assert!(!elsewhere.was_put());
        assert_eq!([0, 4, 1].map(|database| watches.swaps(database)), [1, 1, 0]);
    }
}
