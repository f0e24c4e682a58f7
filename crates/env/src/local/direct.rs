//! Reading and writing past the page cache with `O_DIRECT`. This module aligns offsets, lengths and
//! memory, so callers need not.
//!
//! Invariants of a writer:
//! 1. `buffer` holds the bytes from `buffer_at` on, which is a block boundary.
//! 2. Complete blocks leave the buffer when they are written. A partial last block stays, because
//!    it is written again with later bytes.
//! 3. After `flush` the length of the file is exact, because the padding of the last block is cut
//!    off.
//!
//! A reader reads aligned requests directly into the caller's memory, and others through a buffer
//! of the thread.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Once;

use archipelago_base::{Error, Result};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::aligned::{AlignedBuffer, BLOCK_BYTES, is_aligned};
use super::batch_read::{self, Span};
use super::buffered::{Reservation, run_len};
use crate::context::IoContext;
use crate::failure::past_end;
use crate::fs::{CreateOptions, RandomFile, WritableFile};

/// Number of bytes of one write, unless the caller wants less.
const WRITE_BUFFER_BYTES: usize = 1 << 20;

/// Size up to which a thread keeps its read buffer: an unaligned readahead of 2 MiB.
const KEPT_BUFFER_BYTES: usize = (2 << 20) + BLOCK_BYTES;

/// Opens `path` with `O_DIRECT` if `direct`. If the file system refuses, opens it without the flag
/// and logs that once. Returns whether the file is direct.
pub(super) fn open(how: &OpenOptions, path: &Path, direct: bool) -> io::Result<(File, bool)> {
    if direct {
        let mut direct_how = how.clone();
        direct_how.custom_flags(OFlags::DIRECT.bits() as i32);
        match direct_how.open(path) {
            Err(refused) if refused.kind() == io::ErrorKind::InvalidInput => note_refusal(path),
            other => return Ok((other?, true)),
        }
    }
    Ok((how.open(path)?, false))
}

/// Creates `path` with `how`, which refuses a file that exists. A file system that refuses
/// `O_DIRECT` has created the file when it says so. Therefore the flag is set after the creation.
/// Returns whether the file is direct.
pub(super) fn create_new(how: &OpenOptions, path: &Path, direct: bool) -> io::Result<(File, bool)> {
    let file = how.open(path)?;
    if !direct {
        return Ok((file, false));
    }
    let flags = rustix::fs::fcntl_getfl(&file)?;
    match rustix::fs::fcntl_setfl(&file, flags | OFlags::DIRECT) {
        Ok(()) => Ok((file, true)),
        Err(Errno::INVAL) => {
            note_refusal(path);
            Ok((file, false))
        }
        Err(other) => Err(other.into()),
    }
}

fn note_refusal(path: &Path) {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        tracing::warn!(
            path = %path.display(),
            "the file system refuses direct I/O; files on it go through the page cache"
        );
    });
}

#[derive(Debug)]
pub(super) struct DirectWriter {
    file: File,
    path: PathBuf,
    buffer: AlignedBuffer,
    filled: usize,
    buffer_at: u64,
    /// Whether the buffer holds bytes that were not written.
    pending: bool,
    reserved: Reservation,
    failed: Option<Error>,
}

impl DirectWriter {
    pub(super) fn new(file: File, path: &Path, options: CreateOptions) -> Self {
        let reserved = Reservation::make(&file, options.size_hint_bytes);
        let buffer_bytes = match options.io_bytes_max {
            0 => WRITE_BUFFER_BYTES,
            most => {
                (most as usize / BLOCK_BYTES * BLOCK_BYTES).clamp(BLOCK_BYTES, WRITE_BUFFER_BYTES)
            }
        };
        Self {
            file,
            path: path.to_owned(),
            buffer: AlignedBuffer::new(buffer_bytes),
            filled: 0,
            buffer_at: 0,
            pending: false,
            reserved,
            failed: None,
        }
    }

    /// Writes the buffer, padded to complete blocks, and keeps only a partial last block.
    fn write_buffer(&mut self) -> io::Result<()> {
        let padded = self.filled.next_multiple_of(BLOCK_BYTES);
        let whole = self.filled / BLOCK_BYTES * BLOCK_BYTES;
        let bytes = self.buffer.as_mut_slice();
        bytes[self.filled..padded].fill(0);
        self.file.write_all_at(&bytes[..padded], self.buffer_at)?;
        if padded > self.filled {
            self.file.set_len(self.buffer_at + self.filled as u64)?;
        }
        bytes.copy_within(whole..self.filled, 0);
        self.filled -= whole;
        self.buffer_at += whole as u64;
        self.pending = false;
        Ok(())
    }

    fn or_fail(&mut self, doing: &str, outcome: io::Result<()>) -> Result<()> {
        outcome.map_err(|source| {
            let error = Error::io(doing, &self.path, source);
            self.failed = Some(error.clone());
            error
        })
    }

    fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }
}

impl WritableFile for DirectWriter {
    fn append(&mut self, mut data: &[u8]) -> Result<()> {
        self.check()?;
        while !data.is_empty() {
            let room = self.buffer.capacity() - self.filled;
            let (now, later) = data.split_at(room.min(data.len()));
            self.buffer.as_mut_slice()[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            self.pending = true;
            if self.filled == self.buffer.capacity() {
                let written = self.write_buffer();
                self.or_fail("write to", written)?;
            }
            data = later;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.check()?;
        if !self.pending {
            return Ok(());
        }
        let written = self.write_buffer();
        self.or_fail("write to", written)
    }

    fn sync(&mut self) -> Result<()> {
        self.flush()?;
        let synced = self.file.sync_data();
        self.or_fail("sync", synced)
    }

    fn len(&self) -> u64 {
        self.buffer_at + self.filled as u64
    }
}

impl Drop for DirectWriter {
    fn drop(&mut self) {
        let handed_over = if self.pending { self.buffer_at } else { self.len() };
        self.reserved.give_back(&self.file, handed_over);
    }
}

/// Lends the buffer of the thread, with space for `bytes`.
fn with_buffer<T>(bytes: usize, read: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local!(static KEPT: RefCell<Option<AlignedBuffer>> = const { RefCell::new(None) });
    let kept = KEPT.with_borrow_mut(Option::take);
    let mut buffer = match kept {
        Some(kept) if kept.capacity() >= bytes => kept,
        _ => AlignedBuffer::new(bytes),
    };
    let outcome = read(buffer.as_mut_slice());
    if buffer.capacity() <= KEPT_BUFFER_BYTES {
        KEPT.set(Some(buffer));
    }
    outcome
}

/// Copies the bytes of a run to its requests.
fn hand_out(mut bytes: &[u8], run: &mut [(u64, &mut [u8])]) {
    for (_, buf) in run {
        let (mine, later) = bytes.split_at(buf.len());
        buf.copy_from_slice(mine);
        bytes = later;
    }
}

#[derive(Debug)]
pub(super) struct DirectReader {
    file: File,
    path: PathBuf,
    len: u64,
}

impl DirectReader {
    pub(super) fn new(file: File, path: &Path, len: u64) -> Self {
        Self { file, path: path.to_owned(), len }
    }

    fn check(&self, offset: u64, len: usize) -> Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(past_end(&self.path, offset, len, self.len)),
        }
    }

    /// Reads `len` bytes at `offset` through the buffer of the thread, and passes them to `take`.
    fn bounce(&self, offset: u64, len: usize, take: impl FnOnce(&[u8])) -> Result<()> {
        let skip = (offset % BLOCK_BYTES as u64) as usize;
        let blocks = (skip + len).next_multiple_of(BLOCK_BYTES);
        with_buffer(blocks, |buffer| {
            self.fill(offset - skip as u64, &mut buffer[..blocks], skip + len)
                .map_err(|source| self.not_read(offset, len, source))?;
            take(&buffer[skip..skip + len]);
            Ok(())
        })
    }

    fn not_read(&self, offset: u64, len: usize, source: io::Error) -> Error {
        Error::io(&format!("read {len} bytes at {offset} of"), &self.path, source)
    }

    /// Reads several runs of requests in parallel. Returns whether that was possible.
    fn read_batch(&self, requests: &mut [(u64, &mut [u8])]) -> Result<bool> {
        let mut spans: Vec<(Span, usize)> = Vec::new();
        let (mut first, mut at) = (0, 0);
        while first < requests.len() {
            let run = &requests[first..first + run_len(&requests[first..])];
            let (offset, len) = (run[0].0, run.iter().map(|(_, buf)| buf.len()).sum::<usize>());
            self.check(offset, len)?;
            let skip = (offset % BLOCK_BYTES as u64) as usize;
            let blocks = (skip + len).next_multiple_of(BLOCK_BYTES);
            spans.push((Span { offset: offset - skip as u64, at, len: blocks }, skip + len));
            (first, at) = (first + run.len(), at + blocks);
        }
        if spans.len() < 2 || at > KEPT_BUFFER_BYTES {
            return Ok(false);
        }
        with_buffer(at, |buffer| {
            let asked: Vec<Span> = spans.iter().map(|(span, _)| *span).collect();
            let Some(outcomes) = batch_read::read(&self.file, &mut buffer[..at], &asked) else {
                return Ok(false);
            };
            let mut rest = requests;
            for ((span, needed), outcome) in spans.into_iter().zip(outcomes) {
                let bytes = &mut buffer[span.at..span.at + span.len];
                let got = outcome.unwrap_or(0).min(needed);
                if got < needed {
                    // The read was short or failed. A single read continues where it stopped, and
                    // reports the error.
                    let from = got / BLOCK_BYTES * BLOCK_BYTES;
                    let offset = span.offset + from as u64;
                    self.fill(offset, &mut bytes[from..], needed - from)
                        .map_err(|source| self.not_read(offset, needed - from, source))?;
                }
                let (run, later) = rest.split_at_mut(run_len(rest));
                let skip = (run[0].0 - span.offset) as usize;
                hand_out(&bytes[skip..needed], run);
                rest = later;
            }
            Ok(true)
        })
    }

    /// Reads aligned blocks until at least `needed` bytes have arrived.
    fn fill(&self, offset: u64, buf: &mut [u8], needed: usize) -> io::Result<()> {
        let mut done = 0;
        while done < needed {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => done += got,
                Err(again) if again.kind() == io::ErrorKind::Interrupted => (),
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }
}

impl RandomFile for DirectReader {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], _context: IoContext) -> Result<()> {
        self.check(offset, buf.len())?;
        if is_aligned(offset, buf) {
            let len = buf.len();
            return self
                .fill(offset, buf, len)
                .map_err(|source| self.not_read(offset, len, source));
        }
        self.bounce(offset, buf.len(), |bytes| buf.copy_from_slice(bytes))
    }

    fn read_many(&self, mut requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        if self.read_batch(requests)? {
            return Ok(());
        }
        while !requests.is_empty() {
            let (run, rest) = requests.split_at_mut(run_len(requests));
            if let [(offset, buf)] = run {
                self.read_exact_at(*offset, buf, context)?;
            } else {
                let offset = run[0].0;
                let len = run.iter().map(|(_, buf)| buf.len()).sum();
                self.check(offset, len)?;
                self.bounce(offset, len, |bytes| hand_out(bytes, run))?;
            }
            requests = rest;
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.len
    }
}
