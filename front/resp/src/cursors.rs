//! SCAN cursors: a bounded table from a number to the key that the next step starts behind.
//!
//! Keys are strings, a cursor has 64 bits, so the server must remember. Owned by the server.
//! Invariants:
//!
//! 1. A cursor that is in the table always means the same key, so a client may repeat a step.
//! 2. At most [`CURSORS_MAX`] cursors and [`CURSOR_BYTES_MAX`] bytes of keys are kept. Cursors
//!    that were followed go first (their client has a newer one), then the oldest.
//! 3. A number is never given twice while the server lives, and starts at a random place, so
//!    that a cursor of an earlier run is unknown instead of wrong.
//!
//! A forgotten cursor is an error that tells to start again, never a silent skip: SCAN returns
//! every key that was there during the whole iteration. Thread-safe by one mutex.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Most cursors that are remembered.
pub(crate) const CURSORS_MAX: usize = 65_536;

/// Most bytes of keys that are remembered.
pub(crate) const CURSOR_BYTES_MAX: usize = 32 << 20;

/// See the module.
pub(crate) struct Cursors {
    table: Mutex<Table>,
}

struct Table {
    next: u64,
    bytes: usize,
    /// Not followed yet, by number, hence by age.
    fresh: BTreeMap<u64, Box<[u8]>>,
    /// Followed at least once.
    followed: BTreeMap<u64, Box<[u8]>>,
}

impl Table {
    fn forget_one(&mut self) {
        if let Some((_, key)) = self.followed.pop_first().or_else(|| self.fresh.pop_first()) {
            self.bytes -= key.len();
        }
    }
}

impl Cursors {
    /// An empty table; `seed` is any random number.
    pub(crate) fn new(seed: u64) -> Self {
        // Clients hold cursors in signed 64 bits at times, and no run gives out 2^62 of them.
        let next = (seed >> 2).max(1);
        let (fresh, followed) = (BTreeMap::new(), BTreeMap::new());
        Self { table: Mutex::new(Table { next, bytes: 0, fresh, followed }) }
    }

    /// A new cursor that continues behind `key`.
    pub(crate) fn remember(&self, key: &[u8]) -> u64 {
        let mut table = self.table.lock();
        while table.fresh.len() + table.followed.len() >= CURSORS_MAX
            || (table.bytes > 0 && table.bytes + key.len() > CURSOR_BYTES_MAX)
        {
            table.forget_one();
        }
        let cursor = table.next;
        table.next += 1;
        table.bytes += key.len();
        table.fresh.insert(cursor, key.into());
        cursor
    }

    /// The key behind which `cursor` continues; `None` if it was forgotten or never given.
    pub(crate) fn follow(&self, cursor: u64) -> Option<Box<[u8]>> {
        let mut table = self.table.lock();
        if let Some(key) = table.fresh.remove(&cursor) {
            table.followed.insert(cursor, key.clone());
            return Some(key);
        }
        table.followed.get(&cursor).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_may_be_followed_twice() {
        let cursors = Cursors::new(u64::MAX);
        let cursor = cursors.remember(b"k");
        assert!(i64::try_from(cursor).is_ok());
        assert_eq!(cursors.follow(cursor).as_deref(), Some(&b"k"[..]));
        assert_eq!(cursors.follow(cursor).as_deref(), Some(&b"k"[..]));
        assert_eq!(cursors.follow(cursor + 1), None);
    }

    #[test]
    fn followed_cursors_are_forgotten_first() {
        let cursors = Cursors::new(0);
        let waiting = cursors.remember(b"waiting");
        let mut last = waiting;
        for _ in 0..2 * CURSORS_MAX {
            last = cursors.remember(b"k");
            cursors.follow(last);
        }
        assert!(cursors.follow(waiting).is_some(), "another client's cursor survives");
        assert!(cursors.follow(last).is_some());
        assert!(cursors.follow(waiting + 1).is_none());
    }

    #[test]
    fn bytes_are_bounded() {
        let cursors = Cursors::new(0);
        let big = vec![0; 64 << 10];
        let first = cursors.remember(&big);
        for _ in 0..CURSOR_BYTES_MAX / big.len() {
            cursors.remember(&big);
        }
        assert!(cursors.follow(first).is_none());
        assert!(cursors.table.lock().bytes <= CURSOR_BYTES_MAX);
    }
}
