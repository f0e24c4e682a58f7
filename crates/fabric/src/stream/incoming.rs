//! Bytes on their way in: a buffer that frames are cut from.

use std::io;

use archipelago_base::wire::Malformed;

use super::Stream;
use crate::wire::{FRAME_HEADER_BYTES, Frame, frame_at};

/// Room for a read, at least.
const READ_BYTES: usize = 64 << 10;

/// What a read found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// Bytes; there may be more.
    Bytes,
    /// Nothing now.
    Nothing,
    /// The other side closed, or the stream broke.
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

    /// With what has arrived before.
    pub(crate) fn with(arrived: &[u8]) -> Self {
        let mut incoming = Self::new();
        // Greetings are far shorter than a read.
        incoming.bytes[..arrived.len()].copy_from_slice(arrived);
        incoming.end = arrived.len();
        incoming
    }

    /// Whether it takes memory.
    pub(crate) fn holds_buffer(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Gives the buffer back, if it holds nothing; the next read makes another.
    pub(crate) fn release(&mut self) {
        if self.len() == 0 {
            *self = Self { bytes: Vec::new(), start: 0, end: 0 };
        }
    }

    /// Reads once.
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

    /// The next whole frame, and what it takes; hand that to [`Incoming::consume`].
    pub(crate) fn frame(&self) -> Result<Option<(Frame<'_>, usize)>, Malformed> {
        frame_at(&self.bytes[self.start..self.end])
    }

    /// Bytes that are held.
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end);
    }

    /// Moves a part of a frame to the front; grows only by what has arrived, whatever its header
    /// says.
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
