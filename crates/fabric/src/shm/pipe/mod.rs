//! A pipe: two rings of bytes in shared memory. It is a [`Stream`] that needs no system call while
//! both sides are awake.
//!
//! Layout in bytes: 0 head and 64 tail of the ring to the node, 128 head and 192 tail of the ring
//! to the client; 256 bell and 264 sleeping word of the node, 320 bell and 328 sleeping word of the
//! client; 384 closed flag; 4096 the ring to the node, then the ring to the client, of
//! [`RING_BYTES`] each. Heads and tails count bytes since the beginning. The words from 256 to 384
//! are accessed only as words of 4 bytes, and all others only as words of 8 bytes.
//!
//! [`super::ring`] has the protocol and its invariants. This module has the words in shared memory
//! and the duration of spinning.
//!
//! Thread-safety: any thread may write, one at a time, which the lock of `Outgoing` ensures. One
//! thread reads.
//! Failure: a side with impossible counters breaks its own pipe. A side that sleeps without
//! announcing it is not woken.
//! Cost: no system call while both sides are awake.

#[cfg(test)]
mod tests;

use std::hint::spin_loop;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::thread::yield_now;
use std::time::Duration;

use archipelago_base::clock::Clock;
use rustix::thread::futex;

pub(super) use super::ring::Side;
use super::ring::{End, Words};
use crate::alarm::timespec;
use crate::memory::{self, Mapping};
use crate::stream::Stream;

/// Size of each ring, in bytes.
pub(super) const RING_BYTES: usize = 256 << 10;
const RINGS_AT: usize = 4096;
/// Size of a pipe's memory, in bytes.
pub(super) const PIPE_BYTES: usize = RINGS_AT + 2 * RING_BYTES;
const CLOSED_WORD: usize = 384 / 8;
/// Bounds of the number of checks before a side sleeps: from almost none to the duration of a
/// wake-up. [`Patience`] chooses the number.
const SPINS_MIN: u32 = 16;
const SPINS_MAX: u32 = 4096;
/// Number of checks that follow each other directly, which takes some microseconds. Before each
/// later check the thread yields the processor, which counts as `SPINS_OFFERED` checks.
const SPINS_ALONE: u32 = 512;
const SPINS_OFFERED: u32 = 16;
/// Duration of a sleep that spinning might have avoided: two wake-ups of idle processors.
const SHORT_SLEEP_NS: u64 = 100_000;
/// Number of short sleeps in a row that spinning tries to avoid, and number of waits until it tries
/// again.
const MISSES_TRIED: u32 = 9;
const MISSES_PAUSE: u32 = 64;

/// The number of checks that are worthwhile. A wake-up of an idle processor costs tens of
/// microseconds, which spinning saves if the other side is awake. On a busy machine, and while no
/// requests arrive, spinning takes the processor from the thread that could answer. Therefore the
/// number doubles while the checks succeed or the following sleep is short. After several failures
/// in a row it falls to the minimum for a while. The maximum takes longer than a wake-up, so that
/// two sides that sleep each time meet again when one of them still checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Patience {
    spins: u32,
    misses: u32,
}

impl Patience {
    const NEW: Self = Self { spins: SPINS_MIN, misses: 0 };

    /// The next value after a wait that slept for `slept_ns`; `None` if a check succeeded.
    fn after(self, slept_ns: Option<u64>) -> Self {
        let longer = (self.spins * 2).min(SPINS_MAX);
        match slept_ns {
            None => Self { spins: longer, misses: 0 },
            Some(slept_ns) => {
                let misses = (self.misses + 1) % MISSES_PAUSE;
                let again = slept_ns < SHORT_SLEEP_NS && misses < MISSES_TRIED;
                Self { spins: if again { longer } else { SPINS_MIN }, misses }
            }
        }
    }
}

/// The memory of a pipe.
#[derive(Debug)]
struct PipeMemory(Arc<Mapping>);

impl PipeMemory {
    /// Head, tail and first byte of a ring.
    fn ring(&self, from: Side) -> (&AtomicU64, &AtomicU64, usize) {
        let words = self.0.words();
        match from {
            Side::Client => (&words[0], &words[8], RINGS_AT),
            Side::Node => (&words[16], &words[24], RINGS_AT + RING_BYTES),
        }
    }

    /// Bell and sleeping word of a side.
    fn bells(&self, of: Side) -> (&AtomicU32, &AtomicU32) {
        let at = if of == Side::Node { 256 } else { 320 };
        (self.0.bell(at), self.0.bell(at + 8))
    }
}

impl Words for PipeMemory {
    const RING_BYTES: usize = RING_BYTES;

    fn head(&self, from: Side) -> u64 {
        self.ring(from).0.load(Ordering::Acquire)
    }

    fn set_head(&self, from: Side, head: u64) {
        self.ring(from).0.store(head, Ordering::Release);
    }

    fn tail(&self, from: Side) -> u64 {
        self.ring(from).1.load(Ordering::Acquire)
    }

    fn set_tail(&self, from: Side, tail: u64) {
        self.ring(from).1.store(tail, Ordering::Release);
    }

    fn copy_in(&self, from: Side, at: usize, bytes: &[u8]) {
        memory::write(self.0.words(), self.ring(from).2 + at, bytes);
    }

    fn copy_out(&self, from: Side, at: usize, into: &mut [u8]) {
        memory::read(self.0.words(), self.ring(from).2 + at, into);
    }

    fn closed(&self) -> bool {
        self.0.words()[CLOSED_WORD].load(Ordering::Acquire) != 0
    }

    fn close(&self) {
        self.0.words()[CLOSED_WORD].store(1, Ordering::SeqCst);
    }

    fn bell(&self, of: Side) -> u32 {
        self.bells(of).0.load(Ordering::SeqCst)
    }

    fn toll(&self, of: Side) {
        self.bells(of).0.fetch_add(1, Ordering::SeqCst);
    }

    fn sleeping(&self, of: Side) -> u32 {
        self.bells(of).1.load(Ordering::SeqCst)
    }

    fn set_sleeping(&self, of: Side, why: u32) {
        self.bells(of).1.store(why, Ordering::SeqCst);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn sleep(&self, of: Side, before: u32, timeout: Option<Duration>) {
        let timeout = timeout.map(timespec);
        // The caller checks again, whether the wait was woken, was late or was interrupted.
        let _why = futex::wait(self.bells(of).0, futex::Flags::empty(), before, timeout.as_ref());
    }

    fn wake(&self, of: Side) {
        // If no thread sleeps, nothing needs to be woken.
        let _woken = futex::wake(self.bells(of).0, futex::Flags::empty(), 1);
    }
}

#[derive(Debug)]
pub(super) struct Pipe {
    end: End<PipeMemory>,
    nudged: AtomicBool,
    shut: AtomicBool,
    /// Written by the one thread that waits. A race affects only the estimate.
    spins: AtomicU32,
    misses: AtomicU32,
    clock: Arc<dyn Clock>,
}

impl Pipe {
    pub(super) fn new(memory: Arc<Mapping>, side: Side, clock: &Arc<dyn Clock>) -> Self {
        assert_eq!(memory.bytes(), PIPE_BYTES, "the memory of a pipe");
        Self {
            end: End::new(PipeMemory(memory), side),
            nudged: AtomicBool::new(false),
            shut: AtomicBool::new(false),
            spins: AtomicU32::new(Patience::NEW.spins),
            misses: AtomicU32::new(Patience::NEW.misses),
            clock: Arc::clone(clock),
        }
    }

    fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire) || self.end.words.closed()
    }

    fn stirred(&self, read: bool, write: bool) -> bool {
        self.end.stirred(read, write)
            || self.nudged.load(Ordering::Acquire)
            || self.shut.load(Ordering::Acquire)
    }

    fn learn(&self, patience: Patience) {
        self.spins.store(patience.spins, Ordering::Relaxed);
        self.misses.store(patience.misses, Ordering::Relaxed);
    }
}

impl Stream for Pipe {
    fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self.end.try_read(into)? {
            Some(count) => Ok(count),
            // Bytes before the end are read before the end is reported.
            None if self.is_shut() => Ok(self.end.try_read(into)?.unwrap_or(0)),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_shut() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.end.try_write(bytes)?.ok_or(io::ErrorKind::WouldBlock.into())
    }

    fn wait(&self, read: bool, write: bool, timeout: Option<Duration>) {
        let patience = Patience {
            spins: self.spins.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
        };
        let mut looks = 0;
        while looks < patience.spins {
            if self.stirred(read, write) {
                self.nudged.store(false, Ordering::Release);
                // Bytes that exist already say nothing about spinning.
                if looks > 0 {
                    self.learn(patience.after(None));
                }
                return;
            }
            looks += if looks < SPINS_ALONE {
                spin_loop();
                1
            } else {
                yield_now();
                SPINS_OFFERED
            };
        }
        let start_ns = self.clock.now_ns();
        if self.end.sleep(write, timeout, || self.stirred(read, write)) {
            self.learn(patience.after(Some(self.clock.now_ns() - start_ns)));
        }
        self.nudged.store(false, Ordering::Release);
    }

    fn nudge(&self) {
        self.nudged.store(true, Ordering::SeqCst);
        self.end.nudge();
    }

    fn shut(&self) {
        self.shut.store(true, Ordering::SeqCst);
        self.end.close();
    }
}
