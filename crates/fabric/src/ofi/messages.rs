//! Requests and answers over `fi_send` and `fi_recv`: a [`Stream`] of bytes in messages of at most
//! [`MESSAGE_BYTES`].
//!
//! A message is a [`Header`] and bytes. A sender has at most [`WINDOW`] messages with bytes in
//! flight that the other side has not confirmed. A side that does not read therefore needs
//! [`RECEIVES`] buffers and no more. A message without bytes is only a confirmation. Completions
//! arrive in any order, and the numbers of messages restore the order.
//!
//! Invariants:
//! 1. Every buffer is posted, or holds bytes that arrived, or is free.
//! 2. The other side is not trusted. Lengths are checked against the completion, and numbers
//!    against the sent messages. A contradiction ends the stream.
//! 3. The lock of the state is not held during a sleep.
//!
//! Thread-safety: any thread may call any method.
//! Failure: an error of libfabric ends the stream. It is then unknown which messages arrived, and
//! everything in flight completes as disconnected.
//! Cost: one call per message.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::clock::Clock;
use parking_lot::Mutex;

use super::control::Control;
use super::ffi::{Code, Completion, Domain, End};
use crate::memory::{self, Mapping};
use crate::refusal::{Reason, Refusal};
use crate::stream::Stream;
use crate::wire::ofi::{HEADER_BYTES, Header};

/// Limit of a message in bytes with its header, which providers send without a rendezvous.
const MESSAGE_BYTES: u64 = 8 << 10;
/// Limit of the unconfirmed messages with bytes.
const WINDOW: u32 = 16;
/// Number of receive buffers: the window, and confirmations.
const RECEIVES: u32 = 24;
/// Number of send buffers. Some of them are reserved for confirmations.
const SENDS: u32 = 20;
const SENDS_KEPT: usize = 4;
/// Number of checks before a side sleeps.
const LOOKS: u32 = 8;
/// Sleep before libfabric is called again after it asked for that. No descriptor reports the right
/// moment.
const AGAIN: Duration = Duration::from_millis(1);

/// A message that was not read completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unread {
    number: u32,
    /// The buffer, its first unread byte, and the number of unread bytes.
    token: u32,
    at: u64,
    bytes: u64,
}

/// The flow control of both directions.
#[derive(Debug, Default)]
struct Window {
    /// Numbers of messages with bytes: sent, confirmed by the other side, taken here, and confirmed
    /// here.
    sent: u32,
    acknowledged: u32,
    taken: u32,
    told: u32,
    /// Messages that arrived, in the order of their numbers.
    unread: VecDeque<Unread>,
}

impl Window {
    fn open(&self) -> bool {
        self.sent.wrapping_sub(self.acknowledged) < WINDOW
    }

    /// Whether the other side needs a confirmation.
    fn owes(&self) -> bool {
        self.taken.wrapping_sub(self.told) >= WINDOW / 2
    }

    /// Handles a message that arrived. Returns false if it contradicts the protocol.
    fn arrive(&mut self, header: Header, token: u32) -> bool {
        let newly = header.taken.wrapping_sub(self.acknowledged);
        if newly <= self.sent.wrapping_sub(self.acknowledged) {
            self.acknowledged = header.taken;
        } else if newly < u32::MAX - WINDOW {
            // The header is neither newer than the latest one nor one that another overtook.
            return false;
        }
        if header.bytes == 0 {
            return true;
        }
        let ahead = |number: u32| number.wrapping_sub(self.taken);
        let place = self.unread.partition_point(|u| ahead(u.number) < ahead(header.number));
        let again = self.unread.get(place).is_some_and(|u| u.number == header.number);
        if again || ahead(header.number) >= WINDOW {
            return false;
        }
        let (number, bytes) = (header.number, u64::from(header.bytes));
        self.unread.insert(place, Unread { number, token, at: HEADER_BYTES, bytes });
        true
    }

    /// The next message in order, if it has arrived.
    fn next(&self) -> Option<Unread> {
        self.unread.front().copied().filter(|unread| unread.number == self.taken)
    }

    /// Records that `count` bytes of the next message were read. Returns whether it is complete.
    fn read(&mut self, count: u64) -> bool {
        let Some(unread) = self.unread.front_mut() else { return false };
        unread.at += count;
        unread.bytes -= count;
        let over = unread.bytes == 0;
        if over {
            self.unread.pop_front();
            self.taken = self.taken.wrapping_add(1);
        }
        over
    }
}

#[derive(Debug)]
struct MessageState {
    /// Whether the peer is known.
    joined: bool,
    window: Window,
    free: Vec<u32>,
    broken: bool,
    /// Whether libfabric asked to be called again.
    again: bool,
}

pub(super) struct Messages {
    end: End,
    control: Arc<Control>,
    state: Mutex<MessageState>,
}

/// Place of the buffer of a token.
fn place(token: u32) -> u64 {
    u64::from(token) * MESSAGE_BYTES
}

impl Messages {
    /// Opens an endpoint that is ready to receive.
    pub(super) fn open(domain: &Arc<Domain>) -> Result<End> {
        let buffers = RECEIVES + SENDS;
        let staging = Mapping::create("archipelago-ofi-messages", place(buffers) as usize)?;
        let end = End::open(domain, staging, buffers)?;
        for token in 0..RECEIVES {
            end.receive(token, place(token), MESSAGE_BYTES).map_err(super::unusable)?;
        }
        Ok(end)
    }

    /// Makes the messages to a peer that [`Messages::join`] names later.
    pub(super) fn new(end: End, control: Arc<Control>) -> Self {
        let state = MessageState {
            joined: false,
            window: Window::default(),
            free: (RECEIVES..RECEIVES + SENDS).collect(),
            broken: false,
            again: false,
        };
        Self { end, control, state: Mutex::new(state) }
    }

    pub(super) fn join(&self, name: &[u8]) -> Result<(), Code> {
        let mut state = self.state.lock();
        self.end.join(name)?;
        state.joined = true;
        Ok(())
    }

    /// Sends the first message, so that later messages find a connection. Some providers connect
    /// only with the first message.
    pub(super) fn knock(&self, clock: &dyn Clock, end_ns: u64) -> Result<(), Refusal> {
        loop {
            {
                let mut state = self.state.lock();
                self.progress(&mut state);
                if state.broken || self.control.known_ended() {
                    return Err(Reason::Disconnected.into());
                }
                if self.send(&mut state, &[]) {
                    return Ok(());
                }
            }
            if clock.now_ns() >= end_ns {
                return Err(Reason::Deadline.into());
            }
            self.control.sleep(&self.end, true, Some(AGAIN));
        }
    }

    /// Handles all completions of libfabric.
    fn progress(&self, state: &mut MessageState) {
        let mut completions = [Completion::default(); 32];
        while !state.broken {
            let count = match self.end.poll(&mut completions) {
                Ok(0) => break,
                Ok(count) => count,
                Err(code) => return self.fail(state, "polling", code),
            };
            for completion in &completions[..count] {
                self.complete(state, completion);
            }
        }
        if state.joined && !state.broken && state.window.owes() {
            // If no buffer is free now, the next progress sends the confirmation.
            self.send(state, &[]);
        }
    }

    fn fail(&self, state: &mut MessageState, what: &str, code: Code) {
        if !self.control.known_ended() {
            tracing::warn!(%code, what, "messages over libfabric: the link is closed");
        }
        state.broken = true;
    }

    fn complete(&self, state: &mut MessageState, completion: &Completion) {
        let token = completion.token;
        if completion.error != 0 || token >= RECEIVES + SENDS {
            return self.fail(state, "a message", Code::of(completion.error));
        }
        if token >= RECEIVES {
            state.free.push(token);
            return;
        }
        let mut header = [0; HEADER_BYTES as usize];
        memory::read(self.end.staging().words(), place(token) as usize, &mut header);
        let header = Header::decode(&header, completion.bytes);
        if !header.is_some_and(|header| state.window.arrive(header, token)) {
            tracing::warn!("a peer broke the protocol of messages over libfabric");
            state.broken = true;
        } else if header.is_some_and(|header| header.bytes == 0) {
            self.repost(state, token);
        }
    }

    fn repost(&self, state: &mut MessageState, token: u32) {
        if let Err(code) = self.end.receive(token, place(token), MESSAGE_BYTES) {
            self.fail(state, "a buffer", code);
        }
    }

    /// Sends one message from a free buffer. Returns whether it left.
    fn send(&self, state: &mut MessageState, bytes: &[u8]) -> bool {
        let Some(&token) = state.free.last() else { return false };
        let (number, taken) = (state.window.sent, state.window.taken);
        let header = Header { number, taken, bytes: bytes.len() as u32 }.encode();
        let (words, at) = (self.end.staging().words(), place(token));
        memory::write(words, at as usize, &header);
        memory::write(words, (at + HEADER_BYTES) as usize, bytes);
        match self.end.send(token, at, HEADER_BYTES + bytes.len() as u64) {
            Ok(completes) => {
                if completes {
                    state.free.pop();
                }
                state.window.told = taken;
                state.again = false;
                true
            }
            Err(code) if code.is_again() => {
                state.again = true;
                false
            }
            Err(code) => {
                self.fail(state, "sending", code);
                false
            }
        }
    }

    fn may_send(state: &MessageState) -> bool {
        state.joined && !state.broken && state.free.len() > SENDS_KEPT && state.window.open()
    }

    /// Whether a wait is over.
    fn stirred(&self, read: bool, write: bool) -> bool {
        let mut state = self.state.lock();
        self.progress(&mut state);
        state.broken
            || (read && state.window.next().is_some())
            || (write && !state.again && Self::may_send(&state))
    }
}

impl Stream for Messages {
    fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state.lock();
        self.progress(&mut state);
        let Some(Unread { token, at, bytes, .. }) = state.window.next() else {
            let ended = state.broken || self.control.known_ended();
            return if ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        };
        let len = bytes.min(into.len() as u64);
        let words = self.end.staging().words();
        memory::read(words, (place(token) + at) as usize, &mut into[..len as usize]);
        if state.window.read(len) {
            self.repost(&mut state, token);
            self.progress(&mut state);
        }
        Ok(len as usize)
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state.lock();
        self.progress(&mut state);
        if state.broken || self.control.known_ended() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let len = bytes.len().min((MESSAGE_BYTES - HEADER_BYTES) as usize);
        if !Self::may_send(&state) || !self.send(&mut state, &bytes[..len]) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.window.sent = state.window.sent.wrapping_add(1);
        Ok(len)
    }

    fn wait(&self, read: bool, write: bool, timeout: Option<Duration>) {
        for _ in 0..LOOKS {
            if self.stirred(read, write) || self.control.known_ended() {
                return;
            }
            spin_loop();
        }
        let again = write && self.state.lock().again;
        let timeout = if again { Some(timeout.map_or(AGAIN, |t| t.min(AGAIN))) } else { timeout };
        self.control.sleep(&self.end, true, timeout);
    }

    fn nudge(&self) {
        self.control.nudge_messages();
    }

    fn shut(&self) {
        self.control.shut();
    }

    fn say_last(&self, frame: &[u8]) -> bool {
        self.control.say_last(frame);
        true
    }

    fn last_words(&self) -> Option<Refusal> {
        self.control.last_words()
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::random::Rng;

    use super::*;

    #[test]
    fn windows_stay_within_their_limit_in_any_order() {
        let mut rng = Rng::with_seed(3);
        // The numbers start near their end, so that they wrap.
        let start = u32::MAX - 40;
        let fresh = || Window {
            sent: start,
            acknowledged: start,
            taken: start,
            told: start,
            unread: VecDeque::new(),
        };
        let (mut one, mut two) = (fresh(), fresh());
        let (mut forth, mut back): (Vec<Header>, Vec<Header>) = (Vec::new(), Vec::new());
        let mut taken = 0;
        while taken < 500 {
            if one.open() && rng.bool() {
                forth.push(Header { number: one.sent, taken: one.taken, bytes: 1 });
                one.sent = one.sent.wrapping_add(1);
            }
            // Neighbouring messages overtake each other.
            if forth.len() > 2 || (!forth.is_empty() && !one.open()) {
                let header = forth.remove(rng.usize(..forth.len().min(3)));
                assert!(two.arrive(header, 0));
                assert!(two.unread.len() <= WINDOW as usize);
            }
            if let Some(next) = two.next()
                && rng.bool()
            {
                assert_eq!(next.number, start.wrapping_add(taken), "in order");
                assert!(two.read(1));
                taken += 1;
            }
            if two.owes() {
                back.push(Header { number: two.sent, taken: two.taken, bytes: 0 });
                two.told = two.taken;
            }
            if !back.is_empty() && rng.u8(0..4) == 0 {
                assert!(one.arrive(back.remove(rng.usize(..back.len())), 0));
            }
        }
    }

    #[test]
    fn contradicting_peer_ends_the_stream() {
        let mut window = Window::default();
        let message = |number, taken, bytes| Header { number, taken, bytes };
        assert!(!window.arrive(message(0, 1, 0), 0), "it took what was never sent");
        assert!(!window.arrive(message(WINDOW, 0, 1), 0), "more than the window");
        assert!(window.arrive(message(3, 0, 1), 0));
        assert!(!window.arrive(message(3, 0, 1), 0), "twice");
        assert!(window.next().is_none(), "three are missing before it");
    }
}
