//! Reading and writing through the page cache.
//!
//! A writer collects appends in 256 KiB, and passes larger ones to the system directly. A later
//! writer uses its buffer again. A reader executes one `pread` per request, or one `preadv` for
//! adjacent requests. New memory is not zeroed before it is read into, except for adjacent ranges
//! that are so short that one `preadv` for all of them is cheaper. A reader switches the kernel's
//! readahead off for foreground reads of tables and value files, because these are random. A scan
//! calls `prefetch`. Garbage collection forms the windows of its reads itself, so that readahead
//! would only read garbage.

use std::fs::File;
use std::io::{self, IoSliceMut, Write as _};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use archipelago_base::buffers::Buffer;
use archipelago_base::{Error, Result};
use rustix::buffer::spare_capacity;
use rustix::fs::{Advice, FallocateFlags};

use crate::context::{FileClass, IoContext, IoPurpose};
use crate::failure::past_end;
use crate::fs::{RandomFile, WritableFile};

const BUFFER_BYTES: usize = 256 << 10;

/// Length in bytes from which a range gets a `pread` of its own, because zeroing its memory would
/// cost more than the call.
const OWN_READ_BYTES: usize = 4096;

/// Limit of the ranges of one `preadv` or `pwritev`.
pub(super) const VECTORS_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct BufferedWriter {
    file: File,
    path: PathBuf,
    buffer: Buffer,
    /// Number of bytes in the buffer.
    gathered: usize,
    len: u64,
    reserved: Reservation,
    failed: Option<Error>,
}

impl BufferedWriter {
    pub(super) fn new(file: File, path: &Path, size_hint_bytes: u64) -> Self {
        let reserved = Reservation::make(&file, size_hint_bytes);
        let (path, buffer) = (path.to_owned(), Buffer::default());
        Self { file, path, buffer, gathered: 0, len: 0, reserved, failed: None }
    }

    fn write_buffer(&mut self) -> Result<()> {
        let gathered = std::mem::take(&mut self.gathered);
        if gathered == 0 {
            return Ok(());
        }
        let written = self.file.write_all(&self.buffer[..gathered]);
        self.or_fail("write to", written)
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

impl WritableFile for BufferedWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.check()?;
        if self.gathered + data.len() > BUFFER_BYTES {
            self.write_buffer()?;
        }
        if data.len() >= BUFFER_BYTES {
            let written = self.file.write_all(data);
            self.or_fail("write to", written)?;
        } else {
            if self.buffer.is_empty() {
                self.buffer = Buffer::take(BUFFER_BYTES);
            }
            let end = self.gathered + data.len();
            self.buffer[self.gathered..end].copy_from_slice(data);
            self.gathered = end;
        }
        self.len += data.len() as u64;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.check()?;
        self.write_buffer()
    }

    fn sync(&mut self) -> Result<()> {
        self.flush()?;
        let synced = self.file.sync_data();
        self.or_fail("sync", synced)
    }

    fn len(&self) -> u64 {
        self.len
    }
}

impl Drop for BufferedWriter {
    fn drop(&mut self) {
        let handed_over = self.len - self.gathered as u64;
        self.reserved.give_back(&self.file, handed_over);
    }
}

/// Space that is reserved after the end of a file that is being written.
#[derive(Debug)]
pub(super) struct Reservation {
    bytes: u64,
}

impl Reservation {
    /// Reserves `bytes` if the file system can. The call is a hint: a write to a full device
    /// reports the error.
    pub(super) fn make(file: &File, bytes: u64) -> Self {
        let made =
            bytes > 0 && rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes).is_ok();
        Self { bytes: if made { bytes } else { 0 } }
    }

    /// Frees the space after `len`, the length of the file.
    pub(super) fn give_back(&self, file: &File, len: u64) {
        if self.bytes > len {
            // A failure costs only some space until the file is removed.
            drop(file.set_len(len));
        }
    }
}

#[derive(Debug)]
pub(super) struct BufferedReader {
    file: File,
    path: PathBuf,
    len: u64,
}

impl BufferedReader {
    pub(super) fn new(file: File, path: &Path, len: u64, context: IoContext) -> Self {
        let advice = match (context.class, context.purpose) {
            (FileClass::Sst, IoPurpose::ForegroundRead)
            | (FileClass::ValueSst, IoPurpose::ForegroundRead | IoPurpose::Gc) => Advice::Random,
            _ => Advice::Sequential,
        };
        // Advice that the kernel ignores affects only speed.
        let _ = rustix::fs::fadvise(&file, 0, None, advice);
        Self { file, path: path.to_owned(), len }
    }

    #[cold]
    fn failed(&self, offset: u64, len: usize, source: io::Error) -> Error {
        if source.kind() == io::ErrorKind::UnexpectedEof {
            return past_end(&self.path, offset, len, self.len);
        }
        Error::io(&format!("read {len} bytes at {offset} of"), &self.path, source)
    }

    /// Reads `run`, whose ranges are adjacent, in one call. After a short read the rest is read
    /// range by range.
    fn read_run(&self, run: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        let start = run[0].0;
        let mut vectors: Vec<_> = run.iter_mut().map(|(_, buf)| IoSliceMut::new(buf)).collect();
        let got = rustix::io::retry_on_intr(|| rustix::io::preadv(&self.file, &mut vectors, start))
            .map_err(|cause| {
                self.failed(start, run.iter().map(|(_, buf)| buf.len()).sum(), cause.into())
            })?;
        let through = start + got as u64;
        for (offset, buf) in run {
            if *offset + buf.len() as u64 > through {
                self.read_exact_at(*offset, buf, context)?;
            }
        }
        Ok(())
    }
}

impl RandomFile for BufferedReader {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], _context: IoContext) -> Result<()> {
        self.file
            .read_exact_at(buf, offset)
            .map_err(|source| self.failed(offset, buf.len(), source))
    }

    fn read_many(&self, mut requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        while !requests.is_empty() {
            let (run, rest) = requests.split_at_mut(run_len(requests));
            match run {
                [(offset, buf)] => self.read_exact_at(*offset, buf, context)?,
                run => self.read_run(run, context)?,
            }
            requests = rest;
        }
        Ok(())
    }

    fn read_new(&self, offset: u64, len: usize, _context: IoContext) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let from = offset.saturating_add(bytes.len() as u64);
            let got = rustix::io::retry_on_intr(|| {
                rustix::io::pread(&self.file, spare_capacity(&mut bytes), from)
            });
            match got {
                Ok(0) => return Err(past_end(&self.path, offset, len, self.len)),
                Ok(_) => {}
                Err(cause) => return Err(self.failed(offset, len, cause.into())),
            }
        }
        // The vector may have more room than was asked for.
        bytes.truncate(len);
        Ok(bytes)
    }

    fn read_many_new(&self, ranges: &[(u64, usize)], context: IoContext) -> Result<Vec<Vec<u8>>> {
        let mut found = Vec::with_capacity(ranges.len());
        while let Some(&(offset, len)) = ranges.get(found.len()) {
            let run = &ranges[found.len()..][..short_run_len(&ranges[found.len()..])];
            if run.len() < 2 {
                found.push(self.read_new(offset, len, context)?);
                continue;
            }
            let mut bufs: Vec<Vec<u8>> = run.iter().map(|&(_, len)| vec![0; len]).collect();
            let offsets = run.iter().map(|&(offset, _)| offset);
            let mut requests: Vec<(u64, &mut [u8])> =
                offsets.zip(bufs.iter_mut().map(Vec::as_mut_slice)).collect();
            self.read_run(&mut requests, context)?;
            found.append(&mut bufs);
        }
        Ok(found)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        if let Some(len) = NonZeroU64::new(len) {
            let _ = rustix::fs::fadvise(&self.file, offset, Some(len), Advice::WillNeed);
        }
    }

    fn forget(&self, offset: u64, len: u64) {
        if let Some(len) = NonZeroU64::new(len) {
            let _ = rustix::fs::fadvise(&self.file, offset, Some(len), Advice::DontNeed);
        }
    }

    fn len(&self) -> u64 {
        self.len
    }
}

/// Number of the first ranges that are adjacent and shorter than [`OWN_READ_BYTES`].
fn short_run_len(ranges: &[(u64, usize)]) -> usize {
    let mut end = ranges.first().map(|&(offset, _)| offset);
    let joined = ranges.iter().take_while(|&&(offset, len)| {
        let is_next = len < OWN_READ_BYTES && end == Some(offset);
        end = offset.checked_add(len as u64);
        is_next
    });
    joined.count().min(VECTORS_MAX)
}

/// Number of the first requests that are adjacent, which is at least one.
pub(super) fn run_len(requests: &[(u64, &mut [u8])]) -> usize {
    let joined = requests
        .windows(2)
        .take_while(|pair| pair[0].0.checked_add(pair[0].1.len() as u64) == Some(pair[1].0));
    (joined.count() + 1).min(VECTORS_MAX)
}
