//! Two rings of bytes in shared memory: a [`Stream`] without system calls while both sides are awake.
//!
//! Layout (bytes): 0 head and 64 tail of the ring to the node, 128 head and 192 tail of the ring to the client; 256 bell
//! and 264 sleeping of the node, 320 bell and 328 sleeping of the client; 384 closed; 4096 the ring to
//! the node, then the ring to the client, [`RING_BYTES`] each. Heads and tails count bytes since the
//! beginning.
//!
//! Invariants: 1. a side writes the head of the ring that it fills and the tail of the ring that it empties, from
//! counters of its own, and never trusts what it reads of the other's: a distance larger than the ring breaks
//! the pipe; 2. the words from 256 to 384 are accessed as 4-byte words only, all others as 8-byte words; 3. a side that goes to
//! sleep says so first and looks again after, a side that makes progress rings the bell first and looks at
//! `sleeping` after: one of them sees the other.
//!
//! Thread-safety: any thread writes (one at a time, which `Outgoing`'s lock ensures), one reads. Failure: a peer that
//! lies breaks its own pipe. A peer that says that it is awake while it sleeps is not woken.

use std::hint::spin_loop;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use archipelago_base::clock::Clock;
use rustix::thread::futex;

use crate::alarm::timespec;
use crate::memory::{self, Mapping};
use crate::stream::Stream;

/// Bytes of each ring.
pub(super) const RING_BYTES: usize = 256 << 10;
const RINGS_AT: usize = 4096;
/// Bytes of a pipe's memory.
pub(super) const PIPE_BYTES: usize = RINGS_AT + 2 * RING_BYTES;
const CLOSED_WORD: usize = 384 / 8;
/// How often a side looks before it sleeps, from nearly never to some microseconds. See [`Patience`].
const SPINS_MIN: u32 = 16;
const SPINS_MAX: u32 = 512;
/// A sleep that spinning might have spared: two wake-ups of idle processors and what lies between.
const SHORT_SLEEP_NS: u64 = 100_000;
/// Short sleeps in a row that are tried to be spared by spinning, and waits until that is tried again.
const MISSES_TRIED: u32 = 8;
const MISSES_PAUSE: u32 = 64;

/// How long it is worth to spin. A wake-up of an idle processor costs tens of microseconds, which spinning spares if the
/// other side is awake; on a busy machine, and while nobody calls, spinning only takes the processor from whoever could answer.
/// So looks are doubled while they find something or the sleep after them was short, and given up for a while when they find
/// nothing several times in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Patience {
    spins: u32,
    misses: u32,
}

impl Patience {
    const NEW: Self = Self { spins: SPINS_MIN, misses: 0 };

    /// After a wait that slept for `slept_ns`; `None` if a look found something first.
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

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Node,
}

#[derive(Debug)]
pub(super) struct Pipe {
    memory: Arc<Mapping>,
    side: Side,
    /// How much this side wrote, and read, since the beginning.
    written: AtomicU64,
    read: AtomicU64,
    nudged: AtomicBool,
    shut: AtomicBool,
    /// Of the one thread that waits; a race only costs a guess.
    spins: AtomicU32,
    misses: AtomicU32,
    clock: Arc<dyn Clock>,
}

impl Pipe {
    pub(super) fn new(memory: Arc<Mapping>, side: Side, clock: &Arc<dyn Clock>) -> Self {
        assert_eq!(memory.bytes(), PIPE_BYTES, "the memory of a pipe");
        Self {
            memory,
            side,
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            nudged: AtomicBool::new(false),
            shut: AtomicBool::new(false),
            spins: AtomicU32::new(Patience::NEW.spins),
            misses: AtomicU32::new(Patience::NEW.misses),
            clock: Arc::clone(clock),
        }
    }

    /// Head, tail and first byte of the ring from `side`.
    fn ring(&self, from: Side) -> (&AtomicU64, &AtomicU64, usize) {
        let words = self.memory.words();
        match from {
            Side::Client => (&words[0], &words[8], RINGS_AT),
            Side::Node => (&words[16], &words[24], RINGS_AT + RING_BYTES),
        }
    }

    fn other(&self) -> Side {
        match self.side {
            Side::Client => Side::Node,
            Side::Node => Side::Client,
        }
    }

    /// Bell and sleeping word of a side.
    fn bell(&self, of: Side) -> (&AtomicU32, &AtomicU32) {
        let at = if of == Side::Node { 256 } else { 320 };
        (self.memory.bell(at), self.memory.bell(at + 8))
    }

    fn ring_bell(&self, of: Side) {
        let (bell, sleeping) = self.bell(of);
        bell.fetch_add(1, Ordering::SeqCst);
        if sleeping.load(Ordering::SeqCst) != 0 {
            // Nobody to wake is no failure.
            let _woken = futex::wake(bell, futex::Flags::empty(), 1);
        }
    }

    /// Bytes to be read.
    fn readable(&self) -> io::Result<usize> {
        let (head, ..) = self.ring(self.other());
        distance(head.load(Ordering::Acquire), self.read.load(Ordering::Relaxed))
    }

    /// Room to be written to.
    fn writable(&self) -> io::Result<usize> {
        let (_, tail, _) = self.ring(self.side);
        let used = distance(self.written.load(Ordering::Relaxed), tail.load(Ordering::Acquire))?;
        Ok(RING_BYTES - used)
    }

    fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire)
            || self.memory.words()[CLOSED_WORD].load(Ordering::Acquire) != 0
    }

    fn stirred(&self, read: bool, write: bool) -> bool {
        // A pipe that is broken is found so by the read or write that follows.
        (read && self.readable().unwrap_or(1) > 0)
            || (write && self.writable().unwrap_or(1) > 0)
            || self.nudged.load(Ordering::Acquire)
            || self.is_shut()
    }

    fn learn(&self, patience: Patience) {
        self.spins.store(patience.spins, Ordering::Relaxed);
        self.misses.store(patience.misses, Ordering::Relaxed);
    }

    /// Copies between a ring and `bytes`, around its end.
    fn pieces(position: u64, len: usize) -> (usize, usize) {
        let at = (position % RING_BYTES as u64) as usize;
        (at, len.min(RING_BYTES - at))
    }
}

/// How far a counter is ahead of another; an error if that cannot be.
fn distance(head: u64, tail: u64) -> io::Result<usize> {
    match usize::try_from(head.wrapping_sub(tail)) {
        Ok(bytes) if bytes <= RING_BYTES => Ok(bytes),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the peer broke the ring")),
    }
}

impl Stream for Pipe {
    fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        let available = self.readable()?;
        let len = available.min(into.len());
        if len == 0 {
            let nothing =
                if self.is_shut() { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
            return nothing;
        }
        let (_, tail, base) = self.ring(self.other());
        let position = self.read.load(Ordering::Relaxed);
        let (at, first) = Self::pieces(position, len);
        let words = self.memory.words();
        memory::read(words, base + at, &mut into[..first]);
        memory::read(words, base, &mut into[first..len]);
        let read = position.wrapping_add(len as u64);
        self.read.store(read, Ordering::Relaxed);
        tail.store(read, Ordering::Release);
        if available > RING_BYTES / 2 {
            // The other side may wait for room.
            self.ring_bell(self.other());
        }
        Ok(len)
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_shut() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let len = self.writable()?.min(bytes.len());
        if len == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (head, _, base) = self.ring(self.side);
        let position = self.written.load(Ordering::Relaxed);
        let (at, first) = Self::pieces(position, len);
        let words = self.memory.words();
        memory::write(words, base + at, &bytes[..first]);
        memory::write(words, base, &bytes[first..len]);
        let written = position.wrapping_add(len as u64);
        self.written.store(written, Ordering::Relaxed);
        head.store(written, Ordering::Release);
        self.ring_bell(self.other());
        Ok(len)
    }

    fn wait(&self, read: bool, write: bool, timeout: Option<Duration>) {
        let patience = Patience {
            spins: self.spins.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
        };
        for look in 0..patience.spins {
            if self.stirred(read, write) {
                self.nudged.store(false, Ordering::Release);
                // What was there at once says nothing about spinning.
                if look > 0 {
                    self.learn(patience.after(None));
                }
                return;
            }
            spin_loop();
        }
        let (bell, sleeping) = self.bell(self.side);
        let before = bell.load(Ordering::SeqCst);
        sleeping.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !self.stirred(read, write) {
            let timeout = timeout.map(timespec);
            let start_ns = self.clock.now_ns();
            // Woken, too late, interrupted: the caller looks again in each case.
            let _why = futex::wait(bell, futex::Flags::empty(), before, timeout.as_ref());
            self.learn(patience.after(Some(self.clock.now_ns() - start_ns)));
        }
        sleeping.store(0, Ordering::SeqCst);
        self.nudged.store(false, Ordering::Release);
    }

    fn nudge(&self) {
        self.nudged.store(true, Ordering::SeqCst);
        self.ring_bell(self.side);
    }

    fn shut(&self) {
        self.shut.store(true, Ordering::SeqCst);
        self.memory.words()[CLOSED_WORD].store(1, Ordering::SeqCst);
        self.ring_bell(Side::Node);
        self.ring_bell(Side::Client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Pipe, Pipe) {
        let memory = Arc::new(Mapping::create("test-pipe", PIPE_BYTES).expect("memory"));
        let clock = archipelago_base::clock::SystemClock::shared();
        (
            Pipe::new(Arc::clone(&memory), Side::Client, &clock),
            Pipe::new(memory, Side::Node, &clock),
        )
    }

    fn kind(result: io::Result<usize>) -> Result<usize, io::ErrorKind> {
        result.map_err(|error| error.kind())
    }

    #[test]
    fn bytes_come_out_in_order_whatever_the_pieces_and_the_wrap() {
        let (client, node) = pair();
        let (mut sent, mut got) = (0_u64, 0_u64);
        let mut rng = archipelago_base::random::Rng::with_seed(7);
        let mut buffer = vec![0; 70_000];
        while got < 3 * RING_BYTES as u64 {
            let want = rng.usize(1..buffer.len());
            let bytes: Vec<u8> = (0..want).map(|at| (sent + at as u64) as u8).collect();
            if let Ok(count) = client.try_write(&bytes) {
                sent += count as u64;
            }
            let room = rng.usize(1..buffer.len());
            if let Ok(count) = node.try_read(&mut buffer[..room]) {
                assert!((0..count).all(|at| buffer[at] == (got + at as u64) as u8));
                got += count as u64;
            }
        }
    }

    #[test]
    fn a_full_ring_takes_no_more_and_an_end_is_read_after_what_came_before() {
        let (client, node) = pair();
        assert_eq!(kind(client.try_write(&vec![1; RING_BYTES + 9])), Ok(RING_BYTES));
        assert_eq!(kind(client.try_write(&[1])), Err(io::ErrorKind::WouldBlock));
        client.shut();
        assert_eq!(kind(client.try_write(&[1])), Err(io::ErrorKind::BrokenPipe));
        let mut buffer = vec![0; RING_BYTES];
        assert_eq!(kind(node.try_read(&mut buffer)), Ok(RING_BYTES));
        assert_eq!(kind(node.try_read(&mut buffer)), Ok(0));
    }

    #[test]
    fn a_peer_that_lies_about_its_counters_breaks_the_pipe_and_nothing_else() {
        for lie in [RING_BYTES as u64 + 1, u64::MAX, 1 << 63] {
            let (client, node) = pair();
            // More to read than the ring holds; more read than was ever written.
            client.memory.words()[0].store(lie, Ordering::SeqCst);
            assert_eq!(kind(node.try_read(&mut [0; 8])), Err(io::ErrorKind::InvalidData), "{lie}");
            client.memory.words()[24].store(lie >> 1, Ordering::SeqCst);
            assert_eq!(kind(node.try_write(&[0; 8])), Err(io::ErrorKind::InvalidData), "{lie}");
        }
    }

    #[test]
    fn spinning_is_tried_given_up_and_tried_again() {
        let mut patience = Patience::NEW;
        let mut long = 0;
        for _ in 0..MISSES_PAUSE * 10 {
            patience = patience.after(Some(SHORT_SLEEP_NS - 1));
            long += u32::from(patience.spins > SPINS_MIN);
        }
        assert!((40..=90).contains(&long), "{long} of 640 waits spin for long in vain");
        let found = patience.after(None);
        assert_eq!((found.after(None).spins, found.misses), (4 * patience.spins, 0));
        let settled = (0..9).fold(Patience::NEW, |patience, _| patience.after(None));
        assert_eq!(settled.spins, SPINS_MAX);
        assert_eq!(settled.after(Some(u64::MAX)).spins, SPINS_MIN, "nobody calls");
    }

    #[test]
    fn a_sleeper_is_woken_by_bytes_by_a_nudge_and_by_the_end() {
        let (client, node) = pair();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut got = Vec::new();
                let mut buffer = [0; 16];
                loop {
                    node.wait(true, false, None);
                    match node.try_read(&mut buffer) {
                        Ok(0) => return got,
                        Ok(count) => got.extend_from_slice(&buffer[..count]),
                        Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                    }
                }
            });
            for round in 0..200 {
                client.try_write(&[round]).expect("room");
                node.nudge();
            }
            client.shut();
            assert_eq!(waiter.join().expect("no panic").len(), 200);
        });
    }
}
