//! Files of a job. Their bytes are counted, their writes are charged to the rate limiter, and a
//! cancelled job stops at its next read or write. A large write is divided into pieces, because it
//! may wait long for the limiter.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::Result;
use archipelago_env::limit::{LimitedFile, Priority};
use archipelago_env::{IoContext, IoPurpose, RandomFile, WritableFile};

use super::{Cancel, JobContext, Progress};
use crate::sabotage::{Defect, has};

/// Largest number of bytes that a job writes between two checks of its cancel flag. At the smallest
/// part of a rate limit, 64 KiB a second, such a write takes up to 17 seconds.
const PIECE_BYTES: usize = 1 << 20;

/// An output that is being written.
pub(crate) struct MeteredWrite {
    file: Box<dyn WritableFile>,
    cancel: Cancel,
    progress: Arc<Progress>,
}

impl MeteredWrite {
    pub(crate) fn new(
        file: Box<dyn WritableFile>,
        purpose: IoPurpose,
        context: &JobContext<'_>,
    ) -> Self {
        let file: Box<dyn WritableFile> = match (&context.limiter, Priority::of(purpose)) {
            (Some(limiter), Some(priority)) => Box::new(LimitedFile::new(
                file,
                Arc::clone(limiter),
                Arc::clone(&context.clock),
                priority,
            )),
            _ => file,
        };
        let (cancel, progress) = (context.cancel.clone(), Arc::clone(&context.progress));
        Self { file, cancel, progress }
    }
}

impl fmt::Debug for MeteredWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MeteredWrite({:?})", self.file)
    }
}

impl WritableFile for MeteredWrite {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        let mut rest = data;
        loop {
            self.cancel.check()?;
            let (piece, later) = rest.split_at(rest.len().min(PIECE_BYTES));
            self.file.append(piece)?;
            self.progress.bytes_written.fetch_add(piece.len() as u64, Ordering::Relaxed);
            if later.is_empty() {
                return Ok(());
            }
            rest = later;
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }

    fn submit(&mut self) -> Result<()> {
        self.file.submit()
    }

    fn sync(&mut self) -> Result<()> {
        match has(Defect::UnsyncedOutputs) {
            true => self.file.flush(),
            false => self.file.sync(),
        }
    }

    fn len(&self) -> u64 {
        self.file.len()
    }
}

/// An input that is being read. All reads of it, those of its index too, count for the job.
pub(crate) struct MeteredRead {
    file: Arc<dyn RandomFile>,
    purpose: IoPurpose,
    cancel: Cancel,
    progress: Arc<Progress>,
}

impl MeteredRead {
    pub(crate) fn new(
        file: Arc<dyn RandomFile>,
        purpose: IoPurpose,
        cancel: Cancel,
        progress: Arc<Progress>,
    ) -> Self {
        Self { file, purpose, cancel, progress }
    }

    fn for_the_job(&self, context: IoContext) -> IoContext {
        IoContext { purpose: self.purpose, ..context }
    }

    fn count(&self, bytes: usize) {
        self.progress.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl fmt::Debug for MeteredRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MeteredRead({:?})", self.file)
    }
}

impl RandomFile for MeteredRead {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        self.cancel.check()?;
        self.count(buf.len());
        self.file.read_exact_at(offset, buf, self.for_the_job(context))
    }

    fn read_many(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        self.cancel.check()?;
        self.count(requests.iter().map(|(_, buf)| buf.len()).sum());
        self.file.read_many(requests, self.for_the_job(context))
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.file.prefetch(offset, len);
    }

    fn forget(&self, offset: u64, len: u64) {
        self.file.forget(offset, len);
    }

    fn len(&self) -> u64 {
        self.file.len()
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::ErrorKind;
    use parking_lot::Mutex;

    use super::*;

    /// A file that keeps its pieces, and cancels its job when it gets the second one.
    #[derive(Debug)]
    struct Cancelling {
        cancel: Cancel,
        pieces: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    impl WritableFile for Cancelling {
        fn append(&mut self, data: &[u8]) -> Result<()> {
            let mut pieces = self.pieces.lock();
            pieces.push(data.to_vec());
            if pieces.len() == 2 {
                self.cancel.cancel();
            }
            Ok(())
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }

        fn sync(&mut self) -> Result<()> {
            Ok(())
        }

        fn len(&self) -> u64 {
            self.pieces.lock().iter().map(|piece| piece.len() as u64).sum()
        }
    }

    #[test]
    fn cancelled_job_stops_between_two_pieces_of_a_large_write() {
        let (cancel, progress) = (Cancel::default(), Arc::new(Progress::default()));
        let pieces = Arc::default();
        let file = Box::new(Cancelling { cancel: cancel.clone(), pieces: Arc::clone(&pieces) });
        let mut written = MeteredWrite { file, cancel, progress: Arc::clone(&progress) };
        let bytes: Vec<u8> = (0..3 * PIECE_BYTES).map(|at| (at % 251) as u8).collect();
        written.append(&bytes[..PIECE_BYTES]).expect("one piece, and no empty one after it");
        let error = written.append(&bytes[PIECE_BYTES..]).expect_err("cancelled");
        assert_eq!(error.kind(), ErrorKind::Closed);
        let lengths: Vec<usize> = pieces.lock().iter().map(Vec::len).collect();
        assert_eq!(lengths, [PIECE_BYTES; 2]);
        assert_eq!(pieces.lock().concat(), bytes[..2 * PIECE_BYTES]);
        assert_eq!(progress.bytes_written(), written.len());
    }
}
