//! Open files whose operations consult the script first.
//!
//! A writer, a log and a log's sync fail permanently after their first failure, as their traits
//! promise.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{Error, Result};
use parking_lot::Mutex;

use super::script::{Call, Operation, Script, Verdict};
use crate::context::IoContext;
use crate::fs::{LogFile, LogSync, RandomFile, WritableFile};

/// A path and the script that decides about its operations.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    pub(super) script: Arc<Script>,
    pub(super) path: PathBuf,
}

impl Gate {
    fn judge(&self, operation: Operation, offset: Option<u64>, len: usize) -> Verdict {
        self.script.judge(&Call { operation, paths: [Some(&self.path), None], offset, len })
    }

    /// Decides about an operation that succeeds or fails as a whole.
    fn pass(&self, operation: Operation, doing: &str) -> Result<()> {
        match self.judge(operation, None, 0) {
            Verdict::Fail(cause) => Err(Error::io(doing, &self.path, cause)),
            _ => Ok(()),
        }
    }

    fn error(&self, doing: &str, cause: std::io::Error) -> Error {
        Error::io(doing, &self.path, cause)
    }
}

/// Runs `work` unless it failed before, and remembers its failure.
fn once<T>(failed: &mut Option<Error>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    if let Some(error) = failed {
        return Err(error.clone());
    }
    work().inspect_err(|error| *failed = Some(error.clone()))
}

#[derive(Debug)]
pub(super) struct FaultWriter {
    pub(super) inner: Box<dyn WritableFile>,
    pub(super) gate: Gate,
    pub(super) failed: Option<Error>,
}

impl WritableFile for FaultWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        let Self { inner, gate, failed } = self;
        once(failed, || match gate.judge(Operation::Append, Some(inner.len()), data.len()) {
            Verdict::Fail(cause) => Err(gate.error("append to", cause)),
            Verdict::Short { len, cause } => {
                inner.append(&data[..len])?;
                inner.flush()?;
                Err(gate.error("append to", cause))
            }
            _ => inner.append(data),
        })
    }

    fn flush(&mut self) -> Result<()> {
        let Self { inner, gate, failed } = self;
        once(failed, || {
            gate.pass(Operation::Flush, "write to")?;
            inner.flush()
        })
    }

    fn submit(&mut self) -> Result<()> {
        let Self { inner, gate, failed } = self;
        once(failed, || {
            gate.pass(Operation::Flush, "write to")?;
            inner.submit()
        })
    }

    fn sync(&mut self) -> Result<()> {
        let Self { inner, gate, failed } = self;
        once(failed, || {
            gate.pass(Operation::Sync, "sync")?;
            inner.sync()
        })
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }
}

#[derive(Debug)]
pub(super) struct FaultReader {
    pub(super) inner: Arc<dyn RandomFile>,
    pub(super) gate: Gate,
}

impl RandomFile for FaultReader {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        match self.gate.judge(Operation::Read, Some(offset), buf.len()) {
            Verdict::Fail(cause) => {
                let doing = format!("read {} bytes at {offset} of", buf.len());
                Err(self.gate.error(&doing, cause))
            }
            Verdict::Flip { at, mask } => {
                self.inner.read_exact_at(offset, buf, context)?;
                buf[at] ^= mask;
                Ok(())
            }
            _ => self.inner.read_exact_at(offset, buf, context),
        }
    }

    fn read_many(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        if !self.gate.script.is_armed() {
            for (offset, buf) in requests.iter() {
                self.gate.judge(Operation::Read, Some(*offset), buf.len());
            }
            return self.inner.read_many(requests, context);
        }
        for (offset, buf) in requests.iter_mut() {
            self.read_exact_at(*offset, buf, context)?;
        }
        Ok(())
    }

    crate::forward_reader!(inner);
}

#[derive(Debug)]
pub(super) struct FaultLog {
    inner: Box<dyn LogFile>,
    sync: Arc<FaultLogSync>,
    failed: Option<Error>,
}

#[derive(Debug)]
struct FaultLogSync {
    inner: Arc<dyn LogSync>,
    gate: Gate,
    failed: Mutex<Option<Error>>,
}

impl FaultLog {
    pub(super) fn new(inner: Box<dyn LogFile>, script: &Arc<Script>, path: &Path) -> Self {
        let gate = Gate { script: Arc::clone(script), path: path.to_owned() };
        let sync = FaultLogSync { inner: inner.sync_handle(), gate, failed: Mutex::default() };
        Self { inner, sync: Arc::new(sync), failed: None }
    }
}

/// The first `len` bytes of `parts` in one buffer.
fn start_of(parts: &[&[u8]], len: usize) -> Vec<u8> {
    parts.iter().copied().flatten().copied().take(len).collect()
}

impl FaultLog {
    /// Appends as the script says, with `push` if nothing fails.
    fn push(
        &mut self,
        parts: &[&[u8]],
        push: impl FnOnce(&mut dyn LogFile) -> Result<u64>,
    ) -> Result<u64> {
        let Self { inner, sync, failed } = self;
        let len = parts.iter().map(|part| part.len()).sum();
        let at = inner.len();
        let failing = |cause| sync.gate.error(&format!("append at {at} to log"), cause);
        once(failed, || match sync.gate.judge(Operation::LogAppend, Some(at), len) {
            Verdict::Fail(cause) => Err(failing(cause)),
            Verdict::Short { len, cause } => {
                inner.append(&[&start_of(parts, len)])?;
                Err(failing(cause))
            }
            _ => push(&mut **inner),
        })
    }
}

impl LogFile for FaultLog {
    fn append(&mut self, parts: &[&[u8]]) -> Result<u64> {
        self.push(parts, |inner| inner.append(parts))
    }

    fn submit(&mut self, parts: &[&[u8]]) -> Result<u64> {
        self.push(parts, |inner| inner.submit(parts))
    }

    fn acknowledges_later(&self) -> bool {
        self.inner.acknowledges_later()
    }

    fn hold_back(&mut self, bytes: u64) {
        self.inner.hold_back(bytes);
    }

    fn follow(&mut self, previous: Arc<dyn LogSync>, end: u64) -> Result<()> {
        self.inner.follow(previous, end)
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn sync_handle(&self) -> Arc<dyn LogSync> {
        Arc::clone(&self.sync) as Arc<dyn LogSync>
    }

    fn finish(&mut self) -> Result<()> {
        self.sync.gate.pass(Operation::LogFinish, "finish log")?;
        self.inner.finish()
    }

    fn append_trailer(&mut self, bytes: &[u8]) -> Result<()> {
        self.sync.gate.pass(Operation::LogTrailer, "append the trailer to log")?;
        self.inner.append_trailer(bytes)
    }

    fn unwritten_bytes(&self) -> u64 {
        self.inner.unwritten_bytes()
    }
}

impl FaultLogSync {
    /// Executes what the script permits. The lock covers only the remembered failure, so syncs may
    /// run in parallel.
    fn judged<T>(
        &self,
        operation: Operation,
        doing: &str,
        act: impl FnOnce(&dyn LogSync) -> Result<T>,
    ) -> Result<T> {
        if let Some(error) = &*self.failed.lock() {
            return Err(error.clone());
        }
        let outcome = self.gate.pass(operation, doing).and_then(|()| act(&*self.inner));
        outcome.inspect_err(|error| *self.failed.lock() = Some(error.clone()))
    }
}

impl LogSync for FaultLogSync {
    fn sync(&self) -> Result<u64> {
        self.judged(Operation::LogSync, "sync log", |inner| inner.sync())
    }

    fn wait(&self, end: u64) -> Result<()> {
        self.judged(Operation::LogWait, "wait for an append to log", |inner| inner.wait(end))
    }

    fn send(&self) -> Result<()> {
        self.inner.send()
    }

    fn acknowledged(&self) -> u64 {
        self.inner.acknowledged()
    }

    fn write_through(&self) -> Result<u64> {
        self.judged(Operation::LogWriteThrough, "write through the log", |inner| {
            inner.write_through()
        })
    }
}
