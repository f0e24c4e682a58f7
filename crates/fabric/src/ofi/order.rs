//! Rules for operations that are in flight at the same time, and the places of their bytes in
//! staging memory. The module consists of pure functions over its state.
//!
//! A link promises that operations take effect in order. A provider of libfabric promises an order
//! only for some pairs of operations. This crate does not rely on the promise for atomic
//! operations, which a provider may emulate with messages. An operation is posted while others are
//! in flight only if each pair is ordered. Otherwise it waits until they have completed.
//!
//! Thread-safety: none. The owner holds a lock.

use std::collections::VecDeque;

/// The effect of an operation on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Read,
    Write,
    Atomic,
}

/// The pairs of READ and WRITE that the provider keeps in order, for any length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) read_after_read: bool,
    pub(super) read_after_write: bool,
    pub(super) write_after_write: bool,
    pub(super) write_after_read: bool,
}

/// Number of operations of each sort in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flying {
    reads: usize,
    writes: usize,
    atomics: usize,
}

impl Flying {
    pub(super) fn add(&mut self, sort: Sort) {
        *self.of(sort) += 1;
    }

    pub(super) fn remove(&mut self, sort: Sort) {
        *self.of(sort) -= 1;
    }

    pub(super) fn none(&self) -> bool {
        *self == Self::default()
    }

    fn of(&mut self, sort: Sort) -> &mut usize {
        match sort {
            Sort::Read => &mut self.reads,
            Sort::Write => &mut self.writes,
            Sort::Atomic => &mut self.atomics,
        }
    }

    /// Whether an operation of the sort `next` may be posted now.
    pub(super) fn admits(&self, next: Sort, order: Order) -> bool {
        let after = |in_flight: usize, ordered: bool| in_flight == 0 || ordered;
        self.atomics == 0
            && match next {
                Sort::Read => {
                    after(self.reads, order.read_after_read)
                        && after(self.writes, order.read_after_write)
                }
                Sort::Write => {
                    after(self.reads, order.write_after_read)
                        && after(self.writes, order.write_after_write)
                }
                Sort::Atomic => self.none(),
            }
    }
}

/// Places in staging memory, which are used in order.
#[derive(Debug)]
pub(super) struct Ring {
    bytes: u64,
    /// Start of the next place, and bytes in use since the oldest place.
    head: u64,
    used: u64,
    given: VecDeque<u64>,
}

impl Ring {
    /// Makes a ring of `bytes` bytes, which is a multiple of 8.
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, head: 0, used: 0, given: VecDeque::new() }
    }

    /// A contiguous place of `len` bytes, aligned to 8; `None` if there is no room.
    pub(super) fn give(&mut self, len: u64) -> Option<u64> {
        let len = len.next_multiple_of(8).max(8);
        let to_end = self.bytes - self.head;
        // A place that does not fit before the end starts at 0, and uses the rest of the end.
        let skipped = if len <= to_end { 0 } else { to_end };
        let taken = len + skipped;
        if len > self.bytes || self.used + taken > self.bytes {
            return None;
        }
        let at = if skipped > 0 { 0 } else { self.head };
        self.head = (at + len) % self.bytes;
        self.used += taken;
        self.given.push_back(taken);
        Some(at)
    }

    /// Releases the newest place.
    pub(super) fn undo(&mut self) {
        if let Some(taken) = self.given.pop_back() {
            self.used -= taken;
            self.head = (self.head + self.bytes - taken % self.bytes) % self.bytes;
        }
    }

    /// Releases the oldest place.
    pub(super) fn take(&mut self) {
        if let Some(taken) = self.given.pop_front() {
            self.used -= taken;
        }
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::random::Rng;

    use super::*;

    #[test]
    fn operation_without_a_promised_order_waits() {
        let mut flying = Flying::default();
        let none = Order::default();
        for sort in [Sort::Read, Sort::Write, Sort::Atomic] {
            assert!(flying.admits(sort, none), "nothing is in flight");
        }
        flying.add(Sort::Read);
        let reads = Order { read_after_read: true, ..none };
        assert!(flying.admits(Sort::Read, reads) && !flying.admits(Sort::Read, none));
        assert!(!flying.admits(Sort::Write, reads) && !flying.admits(Sort::Atomic, reads));
        flying.add(Sort::Write);
        assert!(!flying.admits(Sort::Read, reads), "a READ after a WRITE");
        let all = Order {
            read_after_read: true,
            read_after_write: true,
            write_after_write: true,
            write_after_read: true,
        };
        assert!(flying.admits(Sort::Read, all) && flying.admits(Sort::Write, all));
        assert!(!flying.admits(Sort::Atomic, all));
        flying.remove(Sort::Read);
        flying.remove(Sort::Write);
        flying.add(Sort::Atomic);
        for sort in [Sort::Read, Sort::Write, Sort::Atomic] {
            assert!(!flying.admits(sort, all), "an atomic operation is alone");
        }
    }

    #[test]
    fn places_do_not_overlap_and_are_released() {
        let mut rng = Rng::with_seed(5);
        let mut ring = Ring::new(4096);
        let mut out: VecDeque<(u64, u64)> = VecDeque::new();
        let mut refused = 0;
        for _ in 0..20_000 {
            let len = if rng.bool() { rng.u64(0..40) } else { rng.u64(0..2000) };
            match ring.give(len) {
                Some(at) => {
                    let end = at + len.next_multiple_of(8).max(8);
                    assert!(at % 8 == 0 && end <= 4096);
                    assert!(out.iter().all(|&(a, e)| end <= a || e <= at), "{at}..{end} {out:?}");
                    if rng.u8(0..8) == 0 {
                        ring.undo();
                    } else {
                        out.push_back((at, end));
                    }
                }
                None => {
                    refused += 1;
                    assert!(out.pop_front().is_some(), "an empty ring has room");
                    ring.take();
                }
            }
        }
        assert!(refused > 1000, "{refused}");
        out.drain(..).for_each(|_| ring.take());
        assert_eq!((ring.used, ring.given.len()), (0, 0));
    }
}
