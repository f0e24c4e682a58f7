//! Links over a stream of bytes, which `tcp` uses for everything and `shm` for messages.
//!
//! The provider implements [`Stream`], a pipe that does not block. [`Initiator`] is the client's
//! end with promises and deadlines, and [`Responder`] is the node's end.

mod greeting;
mod incoming;
mod initiator;
mod responder;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[cfg(feature = "ofi")]
pub(crate) use greeting::next_frame;
pub(crate) use greeting::{GREETING_BYTES_MAX, admit, call, hello_of, peer_of, send};
pub(crate) use incoming::{Arrived, Incoming};
pub(crate) use initiator::Initiator;
#[cfg(feature = "ofi")]
pub(crate) use initiator::farewell;
#[cfg(feature = "ofi")]
pub(crate) use responder::Registrar;
pub(crate) use responder::{Greeted, OneSided, Responder};

use crate::refusal::Refusal;

/// A pipe of bytes in both directions. Any thread may write. One thread at a time reads and waits.
pub(crate) trait Stream: Send + Sync + 'static {
    /// Reads the available bytes; 0 at the end, `WouldBlock` if there are none.
    fn try_read(&self, into: &mut [u8]) -> io::Result<usize>;

    /// Writes as many bytes as fit; `WouldBlock` if none fit.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Blocks until bytes arrive, until there is room if `write`, until [`Stream::nudge`], until
    /// the end of the stream, or until the time limit. A nudge after the last wait ends this one
    /// immediately. The method may return early.
    fn wait(&self, read: bool, write: bool, timeout: Option<Duration>);

    /// Ends the other thread's current or next wait.
    fn nudge(&self);

    /// Ends the stream for both sides. Reads find the end, and writes fail.
    fn shut(&self);

    /// Sends the frame with the reason for the end of the link, if the stream has a separate
    /// channel for it. Returns whether it has such a channel.
    fn say_last(&self, _frame: &[u8]) -> bool {
        false
    }

    /// The reason for the end that the other side sent on the channel of [`Stream::say_last`].
    fn last_words(&self) -> Option<Refusal> {
        None
    }
}

/// The send buffer of a stream.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
}

/// Counters of the messages and bytes that a stream accepted.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) writes: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Outgoing {
    /// Capacity above which an empty buffer frees memory, in bytes.
    const KEEP_BYTES: usize = 1 << 20;

    /// The buffer to which frames are appended.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(crate) fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Frees the buffer if it is empty.
    pub(crate) fn release(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
        }
    }

    /// Writes as many bytes as the stream accepts.
    pub(crate) fn flush(&mut self, stream: &impl Stream, taken: &Taken) -> io::Result<()> {
        while self.sent < self.bytes.len() {
            match stream.try_write(&self.bytes[self.sent..]) {
                Ok(count) => {
                    self.sent += count;
                    taken.writes.fetch_add(1, Ordering::Relaxed);
                    taken.bytes.fetch_add(count as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.sent == self.bytes.len() {
            self.sent = 0;
            self.bytes.clear();
            self.bytes.shrink_to(Self::KEEP_BYTES);
        } else if self.sent >= Self::KEEP_BYTES {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }
}
