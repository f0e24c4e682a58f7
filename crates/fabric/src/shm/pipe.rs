//! Two rings of bytes in shared memory: a [`Stream`] without system calls while both sides are
//! awake.
//!
//! Layout (bytes): 0 head and 64 tail of the ring to the node, 128 head and 192 tail of the ring to
//! the client; 256 bell and 264 sleeping of the node, 320 bell and 328 sleeping of the client; 384
//! closed; 4096 the ring to the node, then the ring to the client, [`RING_BYTES`] each. Heads and
//! tails count bytes since the beginning.
//!
//! The protocol, and its invariants, are in [`super::ring`]; here are the words on shared memory
//! and how long to spin. The words from 256 to 384 are accessed as 4-byte words only, all others as
//! 8-byte words.
//!
//! Thread-safety: any thread writes (one at a time, which `Outgoing`'s lock ensures), one reads.
//! Failure: a peer that lies breaks its own pipe. A peer that says that it is awake while it sleeps
//! is not woken.

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

/// Bytes of each ring.
pub(super) const RING_BYTES: usize = 256 << 10;
const RINGS_AT: usize = 4096;
/// Bytes of a pipe's memory.
pub(super) const PIPE_BYTES: usize = RINGS_AT + 2 * RING_BYTES;
const CLOSED_WORD: usize = 384 / 8;
/// How long a side looks before it sleeps, in looks: from nearly never to about as long as a
/// wake-up takes. See [`Patience`].
const SPINS_MIN: u32 = 16;
const SPINS_MAX: u32 = 4096;
/// So many looks (some microseconds) follow each other; before each later one the processor is
/// offered to whoever else could use it, which counts for this many.
const SPINS_ALONE: u32 = 512;
const SPINS_OFFERED: u32 = 16;
/// A sleep that spinning might have spared: two wake-ups of idle processors and what lies between.
const SHORT_SLEEP_NS: u64 = 100_000;
/// Short sleeps in a row that are tried to be spared by spinning, and waits until that is tried
/// again.
const MISSES_TRIED: u32 = 9;
const MISSES_PAUSE: u32 = 64;

/// How long it is worth to spin. A wake-up of an idle processor costs tens of microseconds, which
/// spinning spares if the other side is awake; on a busy machine, and while nobody calls, spinning
/// only takes the processor from whoever could answer. So looks are doubled while they find
/// something or the sleep after them was short, and given up for a while when they find nothing
/// several times in a row. The most of them take longer than a wake-up: two sides that both sleep
/// each time, and wake each other, get out of it when one of them still looks while the other wakes
/// up.
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

/// The pipe's memory.
#[derive(Debug)]
struct Shared(Arc<Mapping>);

impl Shared {
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

impl Words for Shared {
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
        // Woken, too late, interrupted: the caller looks again in each case.
        let _why = futex::wait(self.bells(of).0, futex::Flags::empty(), before, timeout.as_ref());
    }

    fn wake(&self, of: Side) {
        // Nobody to wake is no failure.
        let _woken = futex::wake(self.bells(of).0, futex::Flags::empty(), 1);
    }
}

#[derive(Debug)]
pub(super) struct Pipe {
    end: End<Shared>,
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
            end: End::new(Shared(memory), side),
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
            // What was written before the end is read before it is told.
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
                // What was there at once says nothing about spinning.
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
            client.end.words.0.words()[0].store(lie, Ordering::SeqCst);
            assert_eq!(kind(node.try_read(&mut [0; 8])), Err(io::ErrorKind::InvalidData), "{lie}");
            client.end.words.0.words()[24].store(lie >> 1, Ordering::SeqCst);
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
        let settled = (0..MISSES_TRIED).fold(Patience::NEW, |patience, _| patience.after(None));
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

    /// What is sent with `seed`: now and then exactly half a ring, or more than one.
    fn lengths(seed: u64) -> impl Iterator<Item = usize> {
        let mut rng = archipelago_base::random::Rng::with_seed(seed);
        (0..400).map(move |_| match rng.u8(0..8) {
            0 => RING_BYTES / 2,
            1 => rng.usize(1..RING_BYTES + 99),
            _ => rng.usize(1..300),
        })
    }

    /// Sends all of it, and waits for room when there is none.
    fn pour(end: &Pipe, seed: u64) {
        let mut sent = 0_u64;
        for len in lengths(seed) {
            let bytes: Vec<u8> = (0..len).map(|at| (sent + at as u64) as u8).collect();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                match end.try_write(rest) {
                    Ok(count) => rest = &rest[count..],
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                        end.wait(false, true, None);
                    }
                }
            }
            sent += len as u64;
        }
    }

    /// Reads until `end` bytes have come, in pieces of lengths that `seed` says.
    fn drain(pipe: &Pipe, seed: u64, end: u64) {
        let mut rng = archipelago_base::random::Rng::with_seed(seed);
        let mut buffer = vec![0; RING_BYTES];
        let mut got = 0_u64;
        while got < end {
            let room = if rng.bool() { RING_BYTES / 2 } else { rng.usize(1..buffer.len()) };
            match pipe.try_read(&mut buffer[..room]) {
                Ok(count) => {
                    assert!((0..count).all(|at| buffer[at] == (got + at as u64) as u8), "{got}");
                    got += count as u64;
                }
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    pipe.wait(true, false, None);
                }
            }
        }
    }

    /// The model's claims on real memory with real sleeps: nobody has a timeout, so a wake-up that
    /// is lost hangs the test.
    #[test]
    fn two_sides_that_sleep_for_bytes_and_for_room_lose_no_wake_up() {
        for seed in 0..4 {
            let (client, node) = pair();
            let length = lengths(seed).map(|len| len as u64).sum();
            std::thread::scope(|scope| {
                let echo = scope.spawn(|| {
                    drain(&node, seed + 100, length);
                    pour(&node, seed);
                });
                pour(&client, seed);
                drain(&client, seed + 200, length);
                echo.join().expect("no panic");
            });
        }
    }
}
