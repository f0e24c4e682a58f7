//! Tables of numbers for the objects that C holds.
//!
//! A table gives out the numbers of its own range in turn. So the number of a closed object does
//! not return soon, and no table accepts a number of another one. No number equals one that the
//! system's `open` returns.
//!
//! Thread-safety: any thread may call any method. Cost of a lookup: a shared lock of one of 16
//! parts, a hash and a reference count.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::RwLock;

use crate::failure::{CallResult, Failure};

const PARTS: usize = 16;
/// Number of numbers in the range of a table.
const RANGE: u32 = 1 << 28;

/// A table of numbers for objects of one type.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    what: &'static str,
    first: u32,
    next: AtomicU32,
    parts: [RwLock<HashMap<i32, Arc<T>>>; PARTS],
}

impl<T> Handles<T> {
    /// A table of `what`. `place` is its number among all tables, from 1 to 7.
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

    /// The object with a number.
    pub(crate) fn get(&self, handle: i32) -> CallResult<Arc<T>> {
        let found = self.part(handle).read().get(&handle).cloned();
        found.ok_or_else(|| Failure::bad_handle(self.what, handle))
    }

    /// Removes the object with a number, unless somebody else holds it. Then it stays, and the
    /// result is `None`.
    pub(crate) fn remove_unused(&self, handle: i32) -> CallResult<Option<Arc<T>>> {
        let mut part = self.part(handle).write();
        match part.get_mut(&handle).map(|found| Arc::get_mut(found).is_some()) {
            Some(true) => Ok(part.remove(&handle)),
            Some(false) => Ok(None),
            None => Err(Failure::bad_handle(self.what, handle)),
        }
    }

    /// Removes the object with a number.
    pub(crate) fn remove(&self, handle: i32) -> CallResult<Arc<T>> {
        let found = self.part(handle).write().remove(&handle);
        found.ok_or_else(|| Failure::bad_handle(self.what, handle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_belongs_to_one_object_until_it_is_removed() {
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

    #[test]
    fn object_in_use_is_not_removed() {
        let files = Handles::new("file", 1);
        let file = files.insert(Arc::new("a"));
        let used = files.get(file).unwrap();
        assert_eq!(files.remove_unused(file).unwrap(), None);
        assert_eq!(*files.get(file).unwrap(), "a");
        drop(used);
        assert_eq!(files.remove_unused(file).unwrap().as_deref(), Some(&"a"));
        assert!(files.remove_unused(file).unwrap_err().message.contains("not an open file"));
    }
}
