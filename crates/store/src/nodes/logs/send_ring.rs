//! The bytes of a log that replicas or a new extent may still need.
//!
//! The writer of a log owns one [`SendRing`]. A submit copies its bytes into the *tail*. A
//! replica's task that takes the tail makes a block of it, which all replicas share, so the bytes
//! are copied once. Submits that arrive meanwhile gather in the next tail, and travel as one
//! message.
//!
//! Invariants:
//! 1. The blocks and the tail cover the bytes from the released offset to the end without gaps.
//! 2. A block never changes.
//! 3. The charge is the number of bytes in the ring.
//!
//! Thread-safety: none; the lock of the writer guards the value.
//! Cost: a submit copies its bytes once. A message of one block copies nothing here.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use archipelago_base::budget::{ByteBudget, Charge, MemoryClass};

/// A part of a log that no submit changes any more.
#[derive(Debug)]
struct LogBlock {
    start: u64,
    bytes: Arc<Vec<u8>>,
}

impl LogBlock {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// The bytes of a log from the released offset on.
#[derive(Debug)]
pub(super) struct SendRing {
    blocks: VecDeque<LogBlock>,
    /// Bytes that no task has taken.
    tail: Vec<u8>,
    tail_start: u64,
    charge: Option<Charge>,
}

/// A range of a log's bytes, in blocks that others share.
#[derive(Clone, Debug)]
pub(super) struct LogBytes {
    parts: Vec<(Arc<Vec<u8>>, Range<usize>)>,
    len: usize,
}

impl LogBytes {
    pub(super) const fn empty() -> Self {
        Self { parts: Vec::new(), len: 0 }
    }

    pub(super) fn of(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self { parts: vec![(Arc::new(bytes), 0..len)], len }
    }

    #[cfg(test)]
    const fn len(&self) -> usize {
        self.len
    }

    /// The bytes in one piece. They are copied only if they lie in several blocks.
    pub(super) fn contiguous(&self) -> Cow<'_, [u8]> {
        match self.parts.as_slice() {
            [] => Cow::Borrowed(&[]),
            [(bytes, range)] => Cow::Borrowed(&bytes[range.clone()]),
            parts => {
                let mut whole = Vec::with_capacity(self.len);
                parts.iter().for_each(|(bytes, range)| whole.extend(&bytes[range.clone()]));
                Cow::Owned(whole)
            }
        }
    }
}

impl SendRing {
    /// An empty ring at the beginning of a log, whose bytes are charged to `budget`.
    pub(super) fn new(budget: Option<&Arc<ByteBudget>>) -> Self {
        let charge = budget.map(|budget| budget.hold(MemoryClass::Log, 0));
        Self { blocks: VecDeque::new(), tail: Vec::new(), tail_start: 0, charge }
    }

    /// Offset after the last byte.
    fn end(&self) -> u64 {
        self.tail_start + self.tail.len() as u64
    }

    /// Offset of the first byte that the ring still has.
    fn start(&self) -> u64 {
        self.blocks.front().map_or(self.tail_start, |block| block.start)
    }

    /// Number of bytes in the ring.
    pub(super) fn held_bytes(&self) -> u64 {
        self.end() - self.start()
    }

    /// Adds bytes at the end.
    pub(super) fn append(&mut self, parts: &[&[u8]]) {
        self.tail.reserve(parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| self.tail.extend_from_slice(part));
        self.recharge();
    }

    /// The bytes of `range`: at most `bytes_max` of them, but at least one. `None` if the ring does
    /// not have them any more.
    pub(super) fn take(&mut self, range: Range<u64>, bytes_max: usize) -> Option<LogBytes> {
        let end = range.end.min(range.start + bytes_max.max(1) as u64);
        assert!(end <= self.end(), "{range:?} was never in the ring");
        if range.start < self.start() {
            return None;
        }
        if end > self.tail_start && !self.tail.is_empty() {
            self.freeze_tail();
        }
        let first = self.blocks.partition_point(|block| block.end() <= range.start);
        let overlapping = self.blocks.iter().skip(first).take_while(|block| block.start < end);
        let parts: Vec<_> = overlapping
            .map(|block| {
                let from = range.start.max(block.start) - block.start;
                let to = end.min(block.end()) - block.start;
                (Arc::clone(&block.bytes), from as usize..to as usize)
            })
            .collect();
        let len = parts.iter().map(|(_, range)| range.len()).sum();
        Some(LogBytes { parts, len })
    }

    /// Drops whole blocks before `through`.
    pub(super) fn release(&mut self, through: u64) {
        let before = self.blocks.len();
        while self.blocks.front().is_some_and(|block| block.end() <= through) {
            self.blocks.pop_front();
        }
        if self.blocks.is_empty() && !self.tail.is_empty() && self.end() <= through {
            self.tail_start = self.end();
            self.tail.clear();
            self.recharge();
        } else if self.blocks.len() < before {
            self.recharge();
        }
    }

    /// Drops all bytes, because nothing is sent any more.
    pub(super) fn clear(&mut self) {
        self.tail_start = self.end();
        (self.blocks, self.tail) = (VecDeque::new(), Vec::new());
        self.recharge();
    }

    fn freeze_tail(&mut self) {
        let bytes = std::mem::take(&mut self.tail);
        let (start, len) = (self.tail_start, bytes.len() as u64);
        self.blocks.push_back(LogBlock { start, bytes: Arc::new(bytes) });
        self.tail_start += len;
    }

    fn recharge(&mut self) {
        let held = self.held_bytes();
        if let Some(charge) = &mut self.charge {
            charge.resize(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(ring: &mut SendRing, range: Range<u64>, bytes_max: usize) -> Vec<u8> {
        let bytes = ring.take(range, bytes_max).unwrap();
        let whole = bytes.contiguous().into_owned();
        assert_eq!(whole.len(), bytes.len());
        whole
    }

    #[test]
    fn submits_between_two_messages_travel_together() {
        let mut ring = SendRing::new(None);
        ring.append(&[b"one", b"", b"two"]);
        assert_eq!(taken(&mut ring, 0..6, 100), b"onetwo");
        ring.append(&[b"three"]);
        ring.append(&[b"four"]);
        let second = ring.take(6..15, 100).unwrap();
        assert_eq!(*second.contiguous(), *b"threefour");
        assert!(matches!(second.contiguous(), Cow::Borrowed(_)), "one block is not copied");
        assert_eq!(taken(&mut ring, 3..12, 100), b"twothreef");
        assert_eq!(taken(&mut ring, 3..15, 4), b"twot");
    }

    #[test]
    fn released_bytes_are_no_longer_charged() {
        let budget = ByteBudget::unlimited();
        let mut ring = SendRing::new(Some(&budget));
        ring.append(&[b"abcdef"]);
        ring.take(0..6, 100).unwrap();
        ring.append(&[b"gh"]);
        assert_eq!(budget.used_bytes(MemoryClass::Log), 8);
        ring.release(5);
        assert_eq!(ring.held_bytes(), 8, "a block goes as a whole");
        ring.release(6);
        assert_eq!(budget.used_bytes(MemoryClass::Log), 2);
        ring.release(8);
        assert_eq!((ring.held_bytes(), budget.used_bytes(MemoryClass::Log)), (0, 0));
        ring.append(&[b"i"]);
        assert_eq!(taken(&mut ring, 8..9, 100), b"i");
        ring.clear();
        drop(ring);
        assert_eq!(budget.used_bytes(MemoryClass::Log), 0);
    }

    #[test]
    fn bytes_that_were_released_are_not_there() {
        let mut ring = SendRing::new(None);
        ring.append(&[b"abcdef"]);
        ring.take(0..6, 100).unwrap();
        ring.release(6);
        ring.append(&[b"gh"]);
        assert!(ring.take(3..8, 100).is_none());
        assert_eq!(ring.take(6..8, 100).unwrap().len, 2);
    }
}
