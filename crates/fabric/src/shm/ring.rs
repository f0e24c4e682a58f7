//! The protocol of a pipe: two rings of bytes, and the sleep and wake-up of their two sides. The
//! protocol uses abstract words ([`Words`]), so that the same code runs on shared memory and under
//! a model checker (`tests`).
//!
//! Invariants:
//! 1. A side writes the head of the ring that it fills and the tail of the ring that it empties,
//!    from its own counters. It does not trust the counters of the other side: a distance larger
//!    than the ring breaks the pipe.
//! 2. Bytes are in the ring before the head includes them, and are copied out before the tail does.
//! 3. A side announces its sleep and the reason before it sleeps, and checks the ring again after
//!    that. A side that made progress checks the announcement after that. Therefore one of them
//!    notices the other. A writer wakes every sleeping side. A reader wakes only a side that waits
//!    for room.
//!
//! Thread-safety: any thread may write, one at a time. One thread reads and sleeps.
//! Failure: counters that cannot be right break the pipe.
//! Cost without a sleeping side: a fence and a load for each read, an addition and a load for each
//! write.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One of the two ends of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Node,
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Client => Self::Node,
            Self::Node => Self::Client,
        }
    }
}

/// Reason of a sleep, in the `sleeping` word of a side. The word is 0 while the side is awake.
const FOR_BYTES: u32 = 1;
const FOR_ROOM: u32 = 2;

/// The words that both sides share. A ring has the name of the side that fills it.
pub(super) trait Words {
    /// Number of bytes of a ring.
    const RING_BYTES: usize;
    /// Loads the head with acquire ordering.
    fn head(&self, from: Side) -> u64;
    /// Stores the head with release ordering.
    fn set_head(&self, from: Side, head: u64);
    /// Loads the tail with acquire ordering.
    fn tail(&self, from: Side) -> u64;
    /// Stores the tail with release ordering.
    fn set_tail(&self, from: Side, tail: u64);
    /// Copies bytes into the ring. `at` and the length lie within the ring.
    fn copy_in(&self, from: Side, at: usize, bytes: &[u8]);
    /// Copies bytes out of the ring. `at` and the length lie within the ring.
    fn copy_out(&self, from: Side, at: usize, into: &mut [u8]);
    /// Loads the closed flag with acquire ordering.
    fn closed(&self) -> bool;
    /// Sets the closed flag. This method and the following ones are sequentially consistent.
    fn close(&self);
    fn bell(&self, of: Side) -> u32;
    fn toll(&self, of: Side);
    fn sleeping(&self, of: Side) -> u32;
    fn set_sleeping(&self, of: Side, why: u32);
    fn fence(&self);
    /// Sleeps while the bell equals `before`. The method may return early.
    fn sleep(&self, of: Side, before: u32, timeout: Option<Duration>);
    /// Wakes the side `of` if it sleeps on its bell.
    fn wake(&self, of: Side);
}

/// One end of a pipe with its own counters.
#[derive(Debug)]
pub(super) struct End<W> {
    pub(super) words: W,
    side: Side,
    /// Numbers of bytes that this side has written and read.
    written: AtomicU64,
    read: AtomicU64,
}

impl<W: Words> End<W> {
    pub(super) fn new(words: W, side: Side) -> Self {
        Self { words, side, written: AtomicU64::new(0), read: AtomicU64::new(0) }
    }

    /// Number of bytes that can be read.
    fn readable(&self) -> io::Result<usize> {
        let head = self.words.head(self.side.other());
        distance::<W>(head, self.read.load(Ordering::Relaxed))
    }

    /// Number of bytes that can be written.
    fn writable(&self) -> io::Result<usize> {
        let tail = self.words.tail(self.side);
        let used = distance::<W>(self.written.load(Ordering::Relaxed), tail)?;
        Ok(W::RING_BYTES - used)
    }

    /// Whether a wait for bytes or for room is over. The following read or write reports a broken
    /// pipe.
    pub(super) fn stirred(&self, read: bool, write: bool) -> bool {
        (read && self.readable().unwrap_or(1) > 0)
            || (write && self.writable().unwrap_or(1) > 0)
            || self.words.closed()
    }

    /// Reads the available bytes; `None` if there are none.
    pub(super) fn try_read(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let len = self.readable()?.min(into.len());
        if len == 0 {
            return Ok(None);
        }
        let from = self.side.other();
        let position = self.read.load(Ordering::Relaxed);
        let (at, first) = pieces::<W>(position, len);
        self.words.copy_out(from, at, &mut into[..first]);
        self.words.copy_out(from, 0, &mut into[first..len]);
        let read = position.wrapping_add(len as u64);
        self.read.store(read, Ordering::Relaxed);
        self.words.set_tail(from, read);
        self.words.fence();
        if self.words.sleeping(from) & FOR_ROOM != 0 {
            self.words.toll(from);
            self.words.wake(from);
        }
        Ok(Some(len))
    }

    /// Writes as many bytes as fit; `None` if the ring is full.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let len = self.writable()?.min(bytes.len());
        if len == 0 {
            return Ok(None);
        }
        let position = self.written.load(Ordering::Relaxed);
        let (at, first) = pieces::<W>(position, len);
        self.words.copy_in(self.side, at, &bytes[..first]);
        self.words.copy_in(self.side, 0, &bytes[first..len]);
        let written = position.wrapping_add(len as u64);
        self.written.store(written, Ordering::Relaxed);
        self.words.set_head(self.side, written);
        self.ring_bell(self.side.other());
        Ok(Some(len))
    }

    fn ring_bell(&self, of: Side) {
        self.words.toll(of);
        if self.words.sleeping(of) != 0 {
            self.words.wake(of);
        }
    }

    /// Sleeps until bytes arrive, until there is room if `for_room`, or until this side's bell
    /// rings. The method does not sleep if `stirred` returns true. Returns whether it slept.
    pub(super) fn sleep(
        &self,
        for_room: bool,
        timeout: Option<Duration>,
        stirred: impl Fn() -> bool,
    ) -> bool {
        let before = self.words.bell(self.side);
        let room = if for_room { FOR_ROOM } else { 0 };
        self.words.set_sleeping(self.side, FOR_BYTES | room);
        self.words.fence();
        let sleeps = !stirred();
        if sleeps {
            self.words.sleep(self.side, before, timeout);
        }
        self.words.set_sleeping(self.side, 0);
        sleeps
    }

    /// Ends this side's current or next sleep.
    pub(super) fn nudge(&self) {
        self.ring_bell(self.side);
    }

    /// Closes the pipe for both sides.
    pub(super) fn close(&self) {
        self.words.close();
        self.ring_bell(Side::Node);
        self.ring_bell(Side::Client);
    }
}

/// The distance of two counters. An impossible distance is an error.
fn distance<W: Words>(head: u64, tail: u64) -> io::Result<usize> {
    match usize::try_from(head.wrapping_sub(tail)) {
        Ok(bytes) if bytes <= W::RING_BYTES => Ok(bytes),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the peer broke the ring")),
    }
}

/// The start of a copy of `len` bytes, and the number of bytes before the end of the ring.
fn pieces<W: Words>(position: u64, len: usize) -> (usize, usize) {
    let at = (position % W::RING_BYTES as u64) as usize;
    (at, len.min(W::RING_BYTES - at))
}
