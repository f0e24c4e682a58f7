//! The protocol of a pipe: two rings of bytes, and how a side sleeps and is woken. Over abstract
//! words ([`Words`]), so that the same code runs on shared memory and under a model checker
//! (`tests`).
//!
//! Invariants: 1. a side writes the head of the ring that it fills and the tail of the ring that it
//! empties, from counters of its own, and never trusts what it reads of the other's: a distance
//! larger than the ring breaks the pipe; 2. bytes are in the ring before the head says so, and out
//! of it before the tail does; 3. a side that goes to sleep says first for what, and looks again
//! after; a side that made progress looks after it whether the other sleeps for that: one of them
//! sees the other. Who wrote wakes any sleeper, who made room only one that waits for room.
//!
//! Thread-safety: any thread writes (one at a time), one reads and sleeps. Cost without a sleeper:
//! a fence and a load for each read, an addition and a load for each write.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Which end.
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

/// What a side sleeps for, in its `sleeping` word; 0 while it is awake.
const FOR_BYTES: u32 = 1;
const FOR_ROOM: u32 = 2;

/// The words that both sides share. A ring is named by the side that fills it.
pub(super) trait Words {
    /// Bytes of a ring.
    const RING_BYTES: usize;
    /// Acquires.
    fn head(&self, from: Side) -> u64;
    /// Releases.
    fn set_head(&self, from: Side, head: u64);
    /// Acquires.
    fn tail(&self, from: Side) -> u64;
    /// Releases.
    fn set_tail(&self, from: Side, tail: u64);
    /// `at` and the length lie within the ring.
    fn copy_in(&self, from: Side, at: usize, bytes: &[u8]);
    /// As above.
    fn copy_out(&self, from: Side, at: usize, into: &mut [u8]);
    /// Acquires.
    fn closed(&self) -> bool;
    /// Sequentially consistent, as all that follows.
    fn close(&self);
    fn bell(&self, of: Side) -> u32;
    fn toll(&self, of: Side);
    fn sleeping(&self, of: Side) -> u32;
    fn set_sleeping(&self, of: Side, why: u32);
    fn fence(&self);
    /// Sleeps while the bell holds `before`. May return early.
    fn sleep(&self, of: Side, before: u32, timeout: Option<Duration>);
    /// Ends the other side's sleep on its bell.
    fn wake(&self, of: Side);
}

/// One side of a pipe.
#[derive(Debug)]
pub(super) struct End<W> {
    pub(super) words: W,
    side: Side,
    /// How much this side wrote, and read, since the beginning.
    written: AtomicU64,
    read: AtomicU64,
}

impl<W: Words> End<W> {
    pub(super) fn new(words: W, side: Side) -> Self {
        Self { words, side, written: AtomicU64::new(0), read: AtomicU64::new(0) }
    }

    /// Bytes to be read.
    fn readable(&self) -> io::Result<usize> {
        let head = self.words.head(self.side.other());
        distance::<W>(head, self.read.load(Ordering::Relaxed))
    }

    /// Room to be written to.
    fn writable(&self) -> io::Result<usize> {
        let tail = self.words.tail(self.side);
        let used = distance::<W>(self.written.load(Ordering::Relaxed), tail)?;
        Ok(W::RING_BYTES - used)
    }

    /// Whether a wait for bytes or for room is over. A pipe that is broken is found so by the read
    /// or write that follows.
    pub(super) fn stirred(&self, read: bool, write: bool) -> bool {
        (read && self.readable().unwrap_or(1) > 0)
            || (write && self.writable().unwrap_or(1) > 0)
            || self.words.closed()
    }

    /// Reads what is there; `None` if nothing is.
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

    /// Writes what there is room for; `None` if there is none.
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

    /// Sleeps until there are bytes, or also `for_room`, or until the bell of this side rings; not
    /// at all if `stirred` says that there is something already. Whether it slept.
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

    /// Ends this side's sleep, or its next one.
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

/// How far a counter is ahead of another; an error if that cannot be.
fn distance<W: Words>(head: u64, tail: u64) -> io::Result<usize> {
    match usize::try_from(head.wrapping_sub(tail)) {
        Ok(bytes) if bytes <= W::RING_BYTES => Ok(bytes),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the peer broke the ring")),
    }
}

/// Where a copy of `len` bytes begins, and how much of it lies before the ring's end.
fn pieces<W: Words>(position: u64, len: usize) -> (usize, usize) {
    let at = (position % W::RING_BYTES as u64) as usize;
    (at, len.min(W::RING_BYTES - at))
}
