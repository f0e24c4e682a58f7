//! Layout of a ring file, and reading the bytes that a killed process left in one.
//!
//! A header page precedes the ring. The byte at offset `n` of the segment lies at position
//! `n % RING_BYTES` of the ring. All numbers are little-endian words of the header page:
//!
//! | at | word |
//! | --- | --- |
//! | 0 | magic |
//! | 8 | version, u32; at 12 the ring's size in bytes, u32 |
//! | 16 | incarnation of the segment that the ring serves; 0 for none |
//! | 64 | appended: the segment's bytes before this offset were written to the ring |
//! | 128 | drained: the segment's bytes before this offset are in its file |
//!
//! There is no checksum, because the words change with every append. After power loss they may have
//! any value. The reader of the log trusts only records with valid checksums.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use archipelago_base::{Epoch, Error, Result};

use crate::fs::LogTail;

pub(super) const PAGE_BYTES: usize = 4096;
/// Size of the ring in bytes. Four MiB suffice for a drainer that is several milliseconds late.
pub(super) const RING_BYTES: usize = 4 << 20;
pub(super) const FILE_BYTES: usize = PAGE_BYTES + RING_BYTES;

pub(super) const MAGIC_AT: usize = 0;
pub(super) const VERSION_AT: usize = 8;
pub(super) const INCARNATION_AT: usize = 16;
pub(super) const APPENDED_AT: usize = 64;
pub(super) const DRAINED_AT: usize = 128;

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"ARCHRING");
/// Version in the low half, and size of the ring in the high half.
pub(super) const VERSION: u64 = 1 | (RING_BYTES as u64) << 32;

/// The words of a valid header page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) incarnation: u64,
    pub(super) appended: u64,
    pub(super) drained: u64,
}

impl Header {
    /// Reads the words; `None` if the page is not that of a ring of this version, or if its words
    /// contradict each other.
    pub(super) fn decode(page: &[u8; PAGE_BYTES]) -> Option<Self> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&page[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let header = Self {
            incarnation: word(INCARNATION_AT),
            appended: word(APPENDED_AT),
            drained: word(DRAINED_AT),
        };
        let held = header.appended.checked_sub(header.drained)?;
        let valid = word(MAGIC_AT) == MAGIC && word(VERSION_AT) == VERSION;
        (valid && held <= RING_BYTES as u64).then_some(header)
    }

    /// Whether the ring holds bytes that no file has.
    pub(super) fn is_dirty(&self) -> bool {
        self.incarnation != 0 && self.appended > self.drained
    }
}

/// Reads the header of a ring file; `None` if it is not a ring file.
pub(super) fn read_header(file: &File, path: &Path) -> Result<Option<Header>> {
    let mut page = [0; PAGE_BYTES];
    match file.read_exact_at(&mut page, 0) {
        Ok(()) => Ok(Header::decode(&page)),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

/// The bytes of `incarnation` in the ring file that its segment's file may not have.
pub(super) fn read_tail(file: &File, path: &Path, incarnation: Epoch) -> Result<Option<LogTail>> {
    let Some(header) = read_header(file, path)? else { return Ok(None) };
    if !header.is_dirty() || header.incarnation != incarnation.0 {
        return Ok(None);
    }
    let mut bytes = vec![0; (header.appended - header.drained) as usize];
    let start = (header.drained % RING_BYTES as u64) as usize;
    let before_wrap = bytes.len().min(RING_BYTES - start);
    let (first, second) = bytes.split_at_mut(before_wrap);
    let read = |buf: &mut [u8], at: usize| match file.read_exact_at(buf, (PAGE_BYTES + at) as u64) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(Error::io("read", path, error)),
    };
    if !read(first, start)? || !read(second, 0)? {
        return Ok(None);
    }
    // A writer in another process may have continued meanwhile. It overwrites only bytes that it
    // has written to the segment's file before. Therefore the bytes that it had not drained are
    // unchanged.
    let Some(now) = read_header(file, path)? else { return Ok(None) };
    if now.incarnation != incarnation.0 || now.drained >= header.appended {
        return Ok(None);
    }
    let drained_meanwhile = now.drained.saturating_sub(header.drained) as usize;
    bytes.drain(..drained_meanwhile);
    Ok(Some(LogTail { offset: now.drained.max(header.drained), bytes }))
}
