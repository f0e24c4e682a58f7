//! The open files of an emulated device.

use std::sync::Arc;

use archipelago_base::Result;
use parking_lot::Mutex;

use super::Direction;
use super::throttled::Device;
use crate::context::{IoContext, IoPurpose};
use crate::fs::{LogFile, LogSync, RandomFile, WritableFile};

/// Number of log bytes after which a log reports its appends to the device.
const LOG_STEP_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct ThrottledWriter {
    inner: Box<dyn WritableFile>,
    device: Arc<Device>,
    stream: u64,
    purpose: IoPurpose,
    /// Number of appended bytes that were not charged yet.
    gathered: u64,
    /// Number of bytes that are charged in one operation.
    operation_bytes: u64,
}

impl ThrottledWriter {
    pub(super) fn new(
        inner: Box<dyn WritableFile>,
        device: Arc<Device>,
        purpose: IoPurpose,
        io_bytes_max: u64,
    ) -> Self {
        let stream = device.new_stream();
        let operation_bytes = match io_bytes_max {
            0 => device.spec.io_bytes_max,
            most => most.min(device.spec.io_bytes_max),
        };
        Self { inner, device, stream, purpose, gathered: 0, operation_bytes }
    }

    /// Charges complete operations, or everything. Without a limit of the caller all bytes are one
    /// operation, which moves in pieces.
    fn charge(&mut self, everything: bool, mut begun_ns: u64) {
        let whole = self.gathered - self.gathered % self.operation_bytes;
        let mut left = if everything { self.gathered } else { whole };
        self.gathered -= left;
        let at_once = match self.operation_bytes < self.device.spec.io_bytes_max {
            true => self.operation_bytes,
            false => left,
        };
        while left > 0 {
            let bytes = left.min(at_once);
            self.device.transfer(Direction::Write, self.stream, self.purpose, begun_ns, &[bytes]);
            left -= bytes;
            begun_ns = self.device.now_ns();
        }
    }
}

impl WritableFile for ThrottledWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        if self.gathered + (data.len() as u64) < self.operation_bytes {
            self.inner.append(data)?;
            self.gathered += data.len() as u64;
            return Ok(());
        }
        let begun_ns = self.device.now_ns();
        self.inner.append(data)?;
        self.gathered += data.len() as u64;
        self.charge(false, begun_ns);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let begun_ns = self.device.now_ns();
        self.inner.flush()?;
        self.charge(true, begun_ns);
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        let begun_ns = self.device.now_ns();
        self.inner.submit()?;
        self.charge(true, begun_ns);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let begun_ns = self.device.now_ns();
        self.inner.sync()?;
        if self.gathered > 0 {
            self.charge(true, begun_ns);
            self.device.sync(self.purpose, self.device.now_ns());
        } else {
            self.device.sync(self.purpose, begun_ns);
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }
}

impl Drop for ThrottledWriter {
    fn drop(&mut self) {
        self.device.end_stream(self.stream);
    }
}

#[derive(Debug)]
pub(super) struct ThrottledReader {
    inner: Arc<dyn RandomFile>,
    device: Arc<Device>,
    stream: u64,
}

impl ThrottledReader {
    pub(super) fn new(inner: Arc<dyn RandomFile>, device: Arc<Device>) -> Self {
        let stream = device.new_stream();
        Self { inner, device, stream }
    }

    fn charge(&self, context: IoContext, begun_ns: u64, operations: &[u64]) {
        self.device.transfer(Direction::Read, self.stream, context.purpose, begun_ns, operations);
    }
}

/// Lengths in bytes of the operations of a batch. Adjacent ranges are one operation, and empty ones
/// are none.
fn operations_of(requests: &[(u64, &mut [u8])]) -> Vec<u64> {
    let mut operations: Vec<u64> = Vec::with_capacity(requests.len());
    let mut end = None;
    for (offset, buf) in requests.iter().filter(|(_, buf)| !buf.is_empty()) {
        let len = buf.len() as u64;
        match operations.last_mut().filter(|_| end == Some(*offset)) {
            Some(last) => *last += len,
            None => operations.push(len),
        }
        end = offset.checked_add(len);
    }
    operations
}

impl RandomFile for ThrottledReader {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        let begun_ns = self.device.now_ns();
        self.inner.read_exact_at(offset, buf, context)?;
        if !buf.is_empty() {
            self.charge(context, begun_ns, &[buf.len() as u64]);
        }
        Ok(())
    }

    /// The operations of the call are in flight together (decision 0062).
    fn read_many(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        let begun_ns = self.device.now_ns();
        self.inner.read_many(requests, context)?;
        let operations = operations_of(requests);
        if !operations.is_empty() {
            self.charge(context, begun_ns, &operations);
        }
        Ok(())
    }

    crate::forward_reader!(inner);
}

#[derive(Debug)]
pub(super) struct ThrottledLog {
    inner: Box<dyn LogFile>,
    device: Arc<Device>,
    stream: u64,
    purpose: IoPurpose,
    /// Number of log bytes that were reported to the device.
    told: u64,
    sync: Arc<ThrottledLogSync>,
}

impl ThrottledLog {
    pub(super) fn new(
        inner: Box<dyn LogFile>,
        device: Arc<Device>,
        stream: u64,
        purpose: IoPurpose,
    ) -> Self {
        let sync = Arc::new(ThrottledLogSync {
            inner: inner.sync_handle(),
            device: Arc::clone(&device),
            stream,
            purpose,
            reached: Mutex::new(0),
        });
        Self { inner, device, stream, purpose, told: 0, sync }
    }

    fn push(&mut self, push: impl FnOnce(&mut dyn LogFile) -> Result<u64>) -> Result<u64> {
        let offset = push(&mut *self.inner)?;
        if self.inner.len() - self.told >= LOG_STEP_BYTES {
            self.tell();
        }
        Ok(offset)
    }

    fn tell(&mut self) {
        let appended = self.inner.len();
        if appended > self.told {
            let bytes = appended - self.told;
            self.told = appended;
            self.device.append_log(self.stream, self.purpose, appended, bytes);
        }
    }
}

impl LogFile for ThrottledLog {
    fn append(&mut self, parts: &[&[u8]]) -> Result<u64> {
        self.push(|inner| inner.append(parts))
    }

    fn submit(&mut self, parts: &[&[u8]]) -> Result<u64> {
        self.push(|inner| inner.submit(parts))
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
        self.inner.finish()?;
        self.tell();
        Ok(())
    }

    fn append_trailer(&mut self, bytes: &[u8]) -> Result<()> {
        self.inner.append_trailer(bytes)
    }

    fn unwritten_bytes(&self) -> u64 {
        self.inner.unwritten_bytes()
    }
}

impl Drop for ThrottledLog {
    fn drop(&mut self) {
        self.device.close_log(self.stream);
        self.device.end_stream(self.stream);
    }
}

#[derive(Debug)]
struct ThrottledLogSync {
    inner: Arc<dyn LogSync>,
    device: Arc<Device>,
    stream: u64,
    purpose: IoPurpose,
    /// Number of bytes for which a caller has waited. The lock is held during a wait.
    reached: Mutex<u64>,
}

impl ThrottledLogSync {
    fn reach(&self, through: u64, mut begun_ns: u64) {
        let mut reached = self.reached.try_lock().unwrap_or_else(|| {
            let reached = self.reached.lock();
            begun_ns = self.device.now_ns();
            reached
        });
        if through > *reached {
            self.device.log_reaches(self.stream, self.purpose, through, begun_ns);
            *reached = through;
        }
    }
}

impl LogSync for ThrottledLogSync {
    fn sync(&self) -> Result<u64> {
        let begun_ns = self.device.now_ns();
        let through = self.inner.sync()?;
        self.reach(through, begun_ns);
        self.device.sync(self.purpose, self.device.now_ns());
        Ok(through)
    }

    fn wait(&self, end: u64) -> Result<()> {
        self.inner.wait(end)
    }

    fn send(&self) -> Result<()> {
        self.inner.send()
    }

    fn acknowledged(&self) -> u64 {
        self.inner.acknowledged()
    }

    fn write_through(&self) -> Result<u64> {
        let begun_ns = self.device.now_ns();
        let through = self.inner.write_through()?;
        self.reach(through, begun_ns);
        Ok(through)
    }
}
