//! The protocol of a pipe under a model checker, which tries interleavings of sequentially
//! consistent steps. Further tests prove that the checker finds the mistakes that the protocol
//! avoids. The code is the production code ([`End`]) with the words of the checker and rings of
//! four bytes. The module `ring` gives the reasons for weaker memory. The checker reports a lost
//! wake-up as a deadlock.

use std::sync::Arc;
use std::time::Duration;

use shuttle::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

use super::ring::{End, Side, Words};

const BYTES: usize = 4;

/// The step that a model omits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mistake {
    #[default]
    None,
    /// A side sleeps without announcing it.
    SecretSleep,
    /// A reader makes room without checking for a sleeping side.
    NoRoomTold,
    /// The head is stored before the bytes.
    HeadFirst,
}

#[derive(Default)]
struct Ring {
    head: AtomicU64,
    tail: AtomicU64,
    bytes: [AtomicU8; BYTES],
}

#[derive(Default)]
struct Bell {
    count: AtomicU32,
    sleeping: AtomicU32,
    /// Makes the comparison and the sleep of the kernel one step.
    kernel: Mutex<()>,
    woken: Condvar,
}

#[derive(Default)]
struct Memory {
    rings: [Ring; 2],
    bells: [Bell; 2],
    closed: AtomicBool,
    mistake: Mistake,
}

impl Memory {
    fn ring(&self, from: Side) -> &Ring {
        &self.rings[usize::from(from == Side::Node)]
    }

    fn of(&self, side: Side) -> &Bell {
        &self.bells[usize::from(side == Side::Node)]
    }
}

impl Words for Arc<Memory> {
    const RING_BYTES: usize = BYTES;

    fn head(&self, from: Side) -> u64 {
        self.ring(from).head.load(Ordering::Acquire)
    }
    fn set_head(&self, from: Side, head: u64) {
        if self.mistake != Mistake::HeadFirst {
            self.ring(from).head.store(head, Ordering::Release);
        }
    }
    fn tail(&self, from: Side) -> u64 {
        self.ring(from).tail.load(Ordering::Acquire)
    }
    fn set_tail(&self, from: Side, tail: u64) {
        self.ring(from).tail.store(tail, Ordering::Release);
    }
    fn copy_in(&self, from: Side, at: usize, bytes: &[u8]) {
        let ring = self.ring(from);
        if self.mistake == Mistake::HeadFirst {
            ring.head.fetch_add(bytes.len() as u64, Ordering::Release);
        }
        for (place, &byte) in ring.bytes[at..].iter().zip(bytes) {
            place.store(byte, Ordering::Relaxed);
        }
    }
    fn copy_out(&self, from: Side, at: usize, into: &mut [u8]) {
        for (place, byte) in self.ring(from).bytes[at..].iter().zip(into) {
            *byte = place.load(Ordering::Relaxed);
        }
    }
    fn closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }
    fn bell(&self, of: Side) -> u32 {
        self.of(of).count.load(Ordering::SeqCst)
    }
    fn toll(&self, of: Side) {
        self.of(of).count.fetch_add(1, Ordering::SeqCst);
    }
    fn sleeping(&self, of: Side) -> u32 {
        let why = self.of(of).sleeping.load(Ordering::SeqCst);
        // The second bit means that the side waits for room.
        if self.mistake == Mistake::NoRoomTold { why & 1 } else { why }
    }
    fn set_sleeping(&self, of: Side, why: u32) {
        if self.mistake != Mistake::SecretSleep {
            self.of(of).sleeping.store(why, Ordering::SeqCst);
        }
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
    fn sleep(&self, of: Side, before: u32, _timeout: Option<Duration>) {
        let bell = self.of(of);
        let kernel = bell.kernel.lock().unwrap();
        if bell.count.load(Ordering::SeqCst) == before {
            drop(bell.woken.wait(kernel).unwrap());
        }
    }
    fn wake(&self, of: Side) {
        let bell = self.of(of);
        let _kernel = bell.kernel.lock().unwrap();
        bell.woken.notify_all();
    }
}

fn wait(end: &End<Arc<Memory>>, read: bool, write: bool) {
    end.sleep(write, None, || end.stirred(read, write));
}

/// Sends 1 to `count` in pieces of at most `piece` bytes.
fn send(end: &End<Arc<Memory>>, count: u8, piece: usize) {
    let bytes: Vec<u8> = (1..=count).collect();
    let mut sent = 0;
    while sent < bytes.len() {
        let next = bytes.len().min(sent + piece);
        match end.try_write(&bytes[sent..next]).expect("the peer is honest") {
            Some(written) => sent += written,
            None => wait(end, false, true),
        }
    }
}

/// Reads until `count` bytes have arrived, or until the end.
fn receive(end: &End<Arc<Memory>>, count: usize) -> Vec<u8> {
    let mut got = Vec::new();
    let mut into = [0; BYTES];
    while got.len() < count {
        match end.try_read(&mut into).expect("the peer is honest") {
            Some(len) => got.extend_from_slice(&into[..len]),
            None if end.words.closed() => break,
            None => wait(end, true, false),
        }
    }
    got
}

fn ends(mistake: Mistake) -> (End<Arc<Memory>>, End<Arc<Memory>>) {
    let memory = Arc::new(Memory { mistake, ..Memory::default() });
    (End::new(Arc::clone(&memory), Side::Client), End::new(memory, Side::Node))
}

/// Sends more bytes than the ring holds, in both directions. With pieces of half the ring, a reader
/// finds exactly that number.
fn bytes_pass(mistake: Mistake, piece: usize) {
    const COUNT: u8 = 9;
    let (client, node) = ends(mistake);
    let echo = thread::spawn(move || {
        let got = receive(&node, COUNT as usize);
        assert_eq!(got, (1..=COUNT).collect::<Vec<u8>>(), "bytes out of order or never written");
        send(&node, COUNT, piece);
    });
    send(&client, COUNT, piece);
    let got = receive(&client, COUNT as usize);
    assert_eq!(got, (1..=COUNT).collect::<Vec<u8>>(), "bytes out of order or never written");
    echo.join().unwrap();
}

/// Lets the other side, or a nudge of the same side, end a sleep.
fn ends_are_noticed() {
    let (client, node) = ends(Mistake::None);
    let node = Arc::new(node);
    let sleeper = {
        let node = Arc::clone(&node);
        thread::spawn(move || receive(&node, usize::MAX))
    };
    let nudger = {
        let node = Arc::clone(&node);
        thread::spawn(move || node.nudge())
    };
    send(&client, 2, 2);
    client.close();
    // Bytes before the end may be read after it: `Pipe::try_read` checks once more.
    let mut got = sleeper.join().unwrap();
    nudger.join().unwrap();
    got.extend(receive(&node, 2 - got.len()));
    assert_eq!(got, [1, 2]);
}

#[test]
fn every_byte_arrives_in_order() {
    for piece in [1, BYTES / 2, BYTES - 1] {
        shuttle::check_random(move || bytes_pass(Mistake::None, piece), 2000);
        shuttle::check_pct(move || bytes_pass(Mistake::None, piece), 2000, 3);
    }
}

#[test]
fn end_and_nudge_wake_the_sleeping_side() {
    shuttle::check_random(ends_are_noticed, 4000);
}

#[test]
#[should_panic(expected = "deadlock")]
fn unannounced_sleep_is_found() {
    shuttle::check_random(|| bytes_pass(Mistake::SecretSleep, 3), 4000);
}

#[test]
#[should_panic(expected = "deadlock")]
fn missing_wake_up_for_room_is_found() {
    shuttle::check_random(|| bytes_pass(Mistake::NoRoomTold, 2), 4000);
}

#[test]
#[should_panic(expected = "never written")]
fn head_before_its_bytes_is_found() {
    shuttle::check_random(|| bytes_pass(Mistake::HeadFirst, 3), 4000);
}
