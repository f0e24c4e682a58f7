//! The receive buffer of a stream, from which frames are read.

use std::io;

use archipelago_base::wire::Malformed;

use super::Stream;
use crate::wire::{FRAME_HEADER_BYTES, Frame, frame_at};

/// Least free space of the buffer before a read, in bytes.
const READ_BYTES: usize = 64 << 10;

/// The outcome of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// Bytes have arrived, and more may follow.
    Bytes,
    /// No bytes have arrived.
    Nothing,
    /// The other side closed the stream, or the stream broke.
    End,
}

#[derive(Debug)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Incoming {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; READ_BYTES], start: 0, end: 0 }
    }

    /// Makes a buffer with bytes that arrived before.
    pub(crate) fn with(arrived: &[u8]) -> Self {
        let mut incoming = Self::new();
        // A greeting is far shorter than a read.
        incoming.bytes[..arrived.len()].copy_from_slice(arrived);
        incoming.end = arrived.len();
        incoming
    }

    /// Whether the buffer has memory.
    pub(crate) fn holds_buffer(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Frees the memory if the buffer is empty. The next read allocates again.
    pub(crate) fn release(&mut self) {
        if self.len() == 0 {
            *self = Self { bytes: Vec::new(), start: 0, end: 0 };
        }
    }

    /// Reads once from the stream.
    pub(crate) fn fill(&mut self, stream: &impl Stream) -> Arrived {
        self.make_room();
        match stream.try_read(&mut self.bytes[self.end..]) {
            Ok(0) => Arrived::End,
            Ok(count) => {
                self.end += count;
                Arrived::Bytes
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Arrived::Nothing,
                _ => Arrived::End,
            },
        }
    }

    /// The next complete frame and its length, which the caller passes to [`Incoming::consume`].
    pub(crate) fn frame(&self) -> Result<Option<(Frame<'_>, usize)>, Malformed> {
        frame_at(&self.bytes[self.start..self.end])
    }

    /// Number of bytes in the buffer.
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end);
    }

    /// Moves a partial frame to the front. The buffer grows only with bytes that have arrived,
    /// whatever length the header claims.
    fn make_room(&mut self) {
        let held = self.end - self.start;
        if held == 0 {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > 16 * READ_BYTES || self.bytes.is_empty() {
                self.bytes = vec![0; READ_BYTES];
            }
        } else if self.bytes.len() - self.end < READ_BYTES / 2 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, held);
            let wanted = (held * 2).max(READ_BYTES);
            if self.bytes.len() - held < READ_BYTES / 2 {
                self.bytes.resize(wanted.max(held + FRAME_HEADER_BYTES + READ_BYTES), 0);
            }
        }
    }
}
