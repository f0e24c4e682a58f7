//! Numbers for what C holds.
//!
//! A table gives out numbers in turn from a range of its own, so that a closed one does not come
//! back soon and one of another table is never taken for its own; none is a number that the
//! system's `open` returns. Cost of a look-up: a shared lock of one of 16 parts, a hash and a
//! reference count.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::RwLock;

use crate::failure::{CallResult, Failure};

const PARTS: usize = 16;
/// Numbers of a table.
const RANGE: u32 = 1 << 28;

/// See the module.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    what: &'static str,
    first: u32,
    next: AtomicU32,
    parts: [RwLock<HashMap<i32, Arc<T>>>; PARTS],
}

impl<T> Handles<T> {
    /// A table of `what`, the `place`th of those that there are (from 1, at most 7).
    pub(crate) fn new(what: &'static str, place: u32) -> Self {
        let parts = std::array::from_fn(|_| RwLock::default());
        Self { what, first: place * RANGE, next: AtomicU32::new(0), parts }
    }

    fn part(&self, handle: i32) -> &RwLock<HashMap<i32, Arc<T>>> {
        &self.parts[handle as usize % PARTS]
    }

    /// Keeps `value` under a new number.
    pub(crate) fn insert(&self, value: Arc<T>) -> i32 {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed) % RANGE;
            let handle = (self.first + number) as i32;
            let mut part = self.part(handle).write();
            if let std::collections::hash_map::Entry::Vacant(free) = part.entry(handle) {
                free.insert(value);
                return handle;
            }
        }
    }

    /// What the number stands for.
    pub(crate) fn get(&self, handle: i32) -> CallResult<Arc<T>> {
        let found = self.part(handle).read().get(&handle).cloned();
        found.ok_or_else(|| Failure::bad_handle(self.what, handle))
    }

    /// Forgets the number.
    pub(crate) fn remove(&self, handle: i32) -> CallResult<Arc<T>> {
        let found = self.part(handle).write().remove(&handle);
        found.ok_or_else(|| Failure::bad_handle(self.what, handle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_one_thing_of_one_table_until_it_is_removed() {
        let (files, locks) = (Handles::new("file", 1), Handles::new("lock", 2));
        let first = files.insert(Arc::new("a"));
        let second = files.insert(Arc::new("b"));
        let lock = locks.insert(Arc::new("c"));
        assert_eq!(*files.get(second).unwrap(), "b");
        assert!(files.get(lock).unwrap_err().message.contains("not an open file"));
        assert_eq!(*files.remove(first).unwrap(), "a");
        assert!(files.get(first).is_err() && files.remove(first).is_err());
        assert!(files.get(-1).is_err());
        assert_ne!(files.insert(Arc::new("d")), first);
    }
}
