//! Files whose writes are charged to a limiter.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_base::clock::Clock;

use super::{Priority, RateLimiter};
use crate::context::IoContext;
use crate::fs::{CreateOptions, FileSystem, WritableFile};

/// Number of bytes from which small appends are charged.
const CHARGE_BYTES: u64 = 64 << 10;

/// A file whose appends are charged to a limiter before they reach the decorated file. The last
/// 64 KiB are charged at the next `flush` or `sync`.
#[derive(Debug)]
pub struct LimitedFile {
    inner: Box<dyn WritableFile>,
    limiter: Arc<RateLimiter>,
    clock: Arc<dyn Clock>,
    priority: Priority,
    owed: u64,
}

impl LimitedFile {
    /// Decorates `inner` for a priority.
    #[must_use]
    pub fn new(
        inner: Box<dyn WritableFile>,
        limiter: Arc<RateLimiter>,
        clock: Arc<dyn Clock>,
        priority: Priority,
    ) -> Self {
        Self { inner, limiter, clock, priority, owed: 0 }
    }

    fn pay(&mut self) {
        self.limiter.request(self.owed, self.priority, &*self.clock);
        self.owed = 0;
    }
}

impl WritableFile for LimitedFile {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.owed += data.len() as u64;
        if self.owed >= CHARGE_BYTES {
            self.pay();
        }
        self.inner.append(data)
    }

    fn flush(&mut self) -> Result<()> {
        self.pay();
        self.inner.flush()
    }

    fn submit(&mut self) -> Result<()> {
        self.pay();
        self.inner.submit()
    }

    fn sync(&mut self) -> Result<()> {
        self.pay();
        self.inner.sync()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }
}

/// A file system whose files are [`LimitedFile`]s if [`Priority::of`] knows their purpose. Logs and
/// reads are not limited.
#[derive(Clone, Debug)]
pub struct LimitedFs {
    inner: Arc<dyn FileSystem>,
    limiter: Arc<RateLimiter>,
    clock: Arc<dyn Clock>,
}

impl LimitedFs {
    /// Decorates `inner` with a limiter.
    #[must_use]
    pub fn new(
        inner: Arc<dyn FileSystem>,
        limiter: Arc<RateLimiter>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { inner, limiter, clock }
    }
}

impl FileSystem for LimitedFs {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        let file = self.inner.create(path, context, options)?;
        let Some(priority) = Priority::of(context.purpose) else { return Ok(file) };
        let (limiter, clock) = (Arc::clone(&self.limiter), Arc::clone(&self.clock));
        Ok(Box::new(LimitedFile::new(file, limiter, clock, priority)))
    }

    crate::forward_fs!(inner: open, create_log, names);
}
