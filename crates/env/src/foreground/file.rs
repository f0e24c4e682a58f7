//! A file system whose compactions yield to foreground reads.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use archipelago_base::Result;

use super::{Foreground, PIECE_BYTES, yields};
use crate::context::{IoContext, IoPurpose};
use crate::fs::{
    CreateOptions, FileSystem, OpenOptions, RandomFile, WritableFile, read_many_zeroed,
};

/// A file system that keeps a [`Foreground`] gauge and obeys it.
#[derive(Clone, Debug)]
pub struct ForegroundFs {
    inner: Arc<dyn FileSystem>,
    gauge: Arc<Foreground>,
}

impl ForegroundFs {
    /// Decorates `inner` with a gauge.
    #[must_use]
    pub fn new(inner: Arc<dyn FileSystem>, gauge: Arc<Foreground>) -> Self {
        Self { inner, gauge }
    }
}

impl FileSystem for ForegroundFs {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        let inner = self.inner.create(path, context, options)?;
        if !yields(context.purpose) {
            return Ok(inner);
        }
        let gauge = Arc::clone(&self.gauge);
        let credit = AtomicU64::new(0);
        Ok(Box::new(YieldingWriter { inner, gauge, credit, active: false, appended: 0 }))
    }

    fn open(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        let inner = self.inner.open(path, context, options)?;
        let gauge = Arc::clone(&self.gauge);
        Ok(Arc::new(SharedReader { inner, gauge, credit: AtomicU64::new(0) }))
    }

    crate::forward_fs!(inner: create_log, names);
}

/// An output of a compaction. Appends are usually smaller than a piece and are buffered by the
/// decorated file. Therefore the writer checks the gauge once per piece, and measures every append
/// while the device is being read.
#[derive(Debug)]
struct YieldingWriter {
    inner: Box<dyn WritableFile>,
    gauge: Arc<Foreground>,
    credit: AtomicU64,
    active: bool,
    /// Number of bytes since the last check of the gauge.
    appended: usize,
}

impl YieldingWriter {
    fn append_piece(&mut self, piece: &[u8]) -> Result<()> {
        if self.appended + piece.len() > PIECE_BYTES {
            self.appended = 0;
            self.active = self.gauge.is_active();
        }
        self.appended += piece.len();
        if self.active {
            self.gauge.after_reads(&self.credit, || self.inner.append(piece))
        } else {
            self.inner.append(piece)
        }
    }
}

impl WritableFile for YieldingWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return self.inner.append(data);
        }
        data.chunks(PIECE_BYTES).try_for_each(|piece| self.append_piece(piece))
    }

    crate::forward_writer!(inner);
}

/// A file that users and compactions read.
#[derive(Debug)]
struct SharedReader {
    inner: Arc<dyn RandomFile>,
    gauge: Arc<Foreground>,
    /// Credit of all compactions that read this file, which is usually one.
    credit: AtomicU64,
}

impl SharedReader {
    fn read_pieces(&self, mut offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        for piece in buf.chunks_mut(PIECE_BYTES) {
            let len = piece.len() as u64;
            self.gauge
                .after_reads(&self.credit, || self.inner.read_exact_at(offset, piece, context))?;
            offset = offset.saturating_add(len);
        }
        Ok(())
    }

    /// Reads ranges in batches of a piece at most, so that short ranges share a round trip.
    fn read_batches(
        &self,
        mut requests: &mut [(u64, &mut [u8])],
        context: IoContext,
    ) -> Result<()> {
        while !requests.is_empty() {
            let (batch, rest) = requests.split_at_mut(batch_len(requests));
            match batch {
                [(offset, buf)] => self.read_pieces(*offset, buf, context)?,
                batch => {
                    self.gauge
                        .after_reads(&self.credit, || self.inner.read_many(batch, context))?;
                }
            }
            requests = rest;
        }
        Ok(())
    }
}

/// Number of the first requests that have at most a piece together, which is at least one.
fn batch_len(requests: &[(u64, &mut [u8])]) -> usize {
    let mut bytes = 0;
    let fits = requests.iter().take_while(|(_, buf)| {
        bytes += buf.len();
        bytes <= PIECE_BYTES
    });
    fits.count().max(1)
}

impl RandomFile for SharedReader {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        if context.purpose == IoPurpose::ForegroundRead {
            return self.gauge.read(|| self.inner.read_exact_at(offset, buf, context));
        }
        if yields(context.purpose) && !buf.is_empty() && self.gauge.is_active() {
            return self.read_pieces(offset, buf, context);
        }
        self.inner.read_exact_at(offset, buf, context)
    }

    fn read_many(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        if context.purpose == IoPurpose::ForegroundRead {
            return self.gauge.read(|| self.inner.read_many(requests, context));
        }
        if yields(context.purpose) && self.gauge.is_active() {
            return self.read_batches(requests, context);
        }
        self.inner.read_many(requests, context)
    }

    fn read_new(&self, offset: u64, len: usize, context: IoContext) -> Result<Vec<u8>> {
        if context.purpose == IoPurpose::ForegroundRead {
            return self.gauge.read(|| self.inner.read_new(offset, len, context));
        }
        let mut bytes = vec![0; len];
        self.read_exact_at(offset, &mut bytes, context)?;
        Ok(bytes)
    }

    fn read_many_new(&self, ranges: &[(u64, usize)], context: IoContext) -> Result<Vec<Vec<u8>>> {
        if context.purpose == IoPurpose::ForegroundRead {
            return self.gauge.read(|| self.inner.read_many_new(ranges, context));
        }
        read_many_zeroed(self, ranges, context)
    }

    crate::forward_reader!(inner);
}
