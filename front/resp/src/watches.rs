//! Watched keys that nobody had written when they were watched.
//!
//! WATCH notes the version of each key that has a record, and EXEC compares it
//! ([`crate::transaction`]). A key without a record has no version. If it is written and removed
//! again in between, it looks untouched; this registry notices that. Writers tell it which keys
//! they put.
//!
//! Invariant: a watch is entered, and a put is told, while the key's stripe is held
//! ([`crate::locks`]). So a put is either seen by the read of WATCH or told to its watch.
//!
//! Thread-safe. Cost of a put: one atomic load while nobody watches such a key, a mutex and a
//! lookup otherwise.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::store::Op;

/// The watches of each key: whether it was put since.
type ByKey = HashMap<Box<[u8]>, Vec<Arc<AtomicBool>>>;

/// See the module.
#[derive(Default)]
pub(crate) struct Watches {
    /// How many watches there are.
    count: AtomicUsize,
    keys: Mutex<ByKey>,
}

/// One client's watch of an absent key. It ends when this is dropped.
pub(crate) struct AbsentWatch {
    watches: Arc<Watches>,
    key: Box<[u8]>,
    was_put: Arc<AtomicBool>,
}

impl Watches {
    /// Watches `key`, whose stripe is held.
    pub(crate) fn enter(self: &Arc<Self>, key: &[u8]) -> AbsentWatch {
        let was_put = Arc::new(AtomicBool::new(false));
        let mut keys = self.keys.lock();
        keys.entry(key.into()).or_default().push(Arc::clone(&was_put));
        self.count.fetch_add(1, Ordering::SeqCst);
        AbsentWatch { watches: Arc::clone(self), key: key.into(), was_put }
    }

    /// Tells that `key` was put; its stripe is held.
    #[inline]
    pub(crate) fn tell_put(&self, key: &[u8]) {
        if self.count.load(Ordering::SeqCst) > 0 {
            self.mark(key);
        }
    }

    /// Tells of the puts among `ops`, whose stripes are held.
    #[inline]
    pub(crate) fn tell(&self, ops: &[Op<'_>]) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        for op in ops {
            if let Op::Put { key, .. } = op {
                self.mark(key);
            }
        }
    }

    fn mark(&self, key: &[u8]) {
        for was_put in self.keys.lock().get(key).into_iter().flatten() {
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
        let mut keys = self.watches.keys.lock();
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
    fn put_is_told_to_the_watches_of_its_key_alone() {
        let watches = Arc::new(Watches::default());
        let (first, second) = (watches.enter(b"a"), watches.enter(b"a"));
        let other = watches.enter(b"b");
        watches.tell(&[Op::Delete { key: b"b" }]);
        watches.tell_put(b"a");
        assert!(first.was_put() && second.was_put() && !other.was_put());
        drop(first);
        assert_eq!(watches.keys.lock().len(), 2);
        drop((second, other));
        assert!(watches.keys.lock().is_empty());
        assert_eq!(watches.count.load(Ordering::SeqCst), 0);
    }
}
