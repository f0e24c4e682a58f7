//! Files of a job. Their bytes are counted, their writes are charged to the rate limiter, and a
//! cancelled job stops at its next read or write.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::Result;
use archipelago_env::limit::{LimitedFile, Priority};
use archipelago_env::{IoContext, IoPurpose, RandomFile, WritableFile};

use super::{Cancel, JobContext, Progress};

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
        self.cancel.check()?;
        self.file.append(data)?;
        self.progress.bytes_written.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    archipelago_env::forward_writer!(file);
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
