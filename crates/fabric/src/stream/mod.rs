//! Links over a stream of bytes: what `tcp` is, and what `shm` sends messages through.
//!
//! [`Stream`] is the provider's part: a pipe that does not block. [`Initiator`] is the client's end
//! (promises, deadlines, who receives), [`Responder`] the target's.

mod greeting;
mod incoming;
mod initiator;
mod responder;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[cfg(feature = "ofi")]
pub(crate) use greeting::next_frame;
pub(crate) use greeting::{GREETING_BYTES_MAX, admit, call, hello_of, send, welcome_of};
pub(crate) use incoming::{Arrived, Incoming};
pub(crate) use initiator::Initiator;
#[cfg(feature = "ofi")]
pub(crate) use initiator::farewell;
#[cfg(feature = "ofi")]
pub(crate) use responder::Registrar;
pub(crate) use responder::{OneSided, Responder};

use crate::refusal::Refusal;

/// A two-way pipe of bytes. Any thread may write; one at a time reads and waits.
pub(crate) trait Stream: Send + Sync + 'static {
    /// Reads what is there; 0 at the end, `WouldBlock` if nothing is.
    fn try_read(&self, into: &mut [u8]) -> io::Result<usize>;

    /// Writes what there is room for; `WouldBlock` if there is none.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Blocks until one can read, or write if that is wanted, or [`Stream::nudge`] was called since
    /// the last wait, or the stream is shut, or the time is over. May return early.
    fn wait(&self, read: bool, write: bool, timeout: Option<Duration>);

    /// Ends the other thread's wait, or its next one.
    fn nudge(&self);

    /// Ends the stream for both sides. Reads find the end, writes fail.
    fn shut(&self);

    /// Sends the frame that says why the link ends, where that goes another way than the bytes
    /// before it. Whether it does.
    fn say_last(&self, _frame: &[u8]) -> bool {
        false
    }

    /// What the other side said there.
    fn last_words(&self) -> Option<Refusal> {
        None
    }
}

/// Bytes on their way out, and how they went.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
}

/// What a stream took.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) writes: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Outgoing {
    /// A buffer that keeps more than this gives memory back once it is empty.
    const KEEP_BYTES: usize = 1 << 20;

    /// Where frames are appended.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(crate) fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Gives the buffer back, if it holds nothing.
    pub(crate) fn release(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
        }
    }

    /// Writes as much as the stream takes.
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
