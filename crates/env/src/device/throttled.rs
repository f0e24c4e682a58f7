//! A file system that is as slow as a device that somebody described.
//!
//! [`ThrottledFs`] does every operation on the file system inside at once and then makes the
//! caller wait until the device of the [`DeviceSpec`] would be done with it. Rules:
//!
//! 1. **A stream** is a caller in one operation: a synchronous caller has one operation in flight,
//!    so a thread that merges eight files is one stream, and eight threads are eight.
//! 2. **Tables and other files** are charged when they are read and written, whatever the file
//!    system inside caches; appends are gathered to `io_bytes_max`, or to what the caller wants at
//!    once (as the page cache and the direct writer gather them), and then the caller waits for the
//!    device. `sync` waits for the rest and the sync latency.
//! 3. **Logs**: an append goes to memory, as on a real machine, and costs nothing; its bytes take
//!    bandwidth in the background. Appends wait only beyond `log_dirty_bytes_max`. Writing a log
//!    through waits until what was appended has reached the device: for its bytes and, if there
//!    were any since the last time, the write latency. A log's sync waits for the same, and the
//!    sync latency.
//! 4. **Names** cost `metadata_latency`; syncing a directory costs a sync. Asking (`len`,
//!    `exists`) and opening cost nothing. `prefetch` is not emulated: what it would have read is
//!    charged to the read that follows.
//!
//! Waits shorter than a fifth of a millisecond are saved up per thread and slept together, since a
//! sleep costs that much and ends late; what a sleep ended late is credited to the next wait, up to
//! a fifth of a millisecond of the device's time at full scale. Both go with the thread from one
//! device to the next on the same clock. So
//! rates and averages are exact to a per mille or so, single latencies below 0.2 ms are not, and
//! streams share evenly only where a piece takes longer than that (1.3 GB/s at 256 KiB a piece).
//!
//! Thread-safe; the spec never changes. One short lock per 256 KiB moved or per small operation,
//! and none in a log append but every 64 KiB. Nobody sleeps with the lock. Errors are those of the
//! file system inside; an operation that failed is not charged. The time that the real file
//! system takes counts towards the wait: if it is slower than the device, nobody waits, and what
//! is measured is the real machine (`DeviceStats::total` and the machine's own load tell).

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::clock::Clock;
use parking_lot::Mutex;

use super::handles::{ThrottledLog, ThrottledReader, ThrottledWriter};
use super::queues::{CREDIT_NS, Queues};
use super::stats::{Count, DeviceStats, Tally, Waiting};
use super::{DeviceSpec, Direction};
use crate::context::{IoContext, IoPurpose};
use crate::fs::{
    CreateOptions, DirEntry, FileSystem, LogFile, LogOptions, OpenOptions, RandomFile, WritableFile,
};

/// Shorter waits are saved up.
const SLEEP_NS_MIN: i64 = 200_000;
/// Whatever the scale, no more than this is made up for.
const CREDIT_NS_MAX: i64 = 5_000_000;

/// How much of a sleep that ended late is made up for, on a device of `scale`: as much of the
/// device's time as at full scale.
fn credit_ns(scale: f64) -> i64 {
    ((CREDIT_NS as f64 / scale.min(1.0)) as i64).min(CREDIT_NS_MAX)
}

thread_local! {
    /// The clock that this thread waited by last (its address), and by how much the thread's time
    /// is ahead of it (waits saved up) or behind (a sleep that ended late).
    static AHEAD_NS: Cell<(usize, i64)> = const { Cell::new((0, 0)) };
}

/// What the handles of one [`ThrottledFs`] share.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) spec: DeviceSpec,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    tally: Tally,
    next_stream: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    queues: Queues,
    waiting: Waiting,
}

impl Device {
    pub(super) fn new_stream(&self) -> u64 {
        self.next_stream.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// The moment that it is for this thread: the clock's, but for what it owes or is owed.
    fn caller_ns(&self, now_ns: u64) -> i64 {
        match AHEAD_NS.get() {
            (clock, ahead_ns) if clock == self.clock_id() => now_ns as i64 + ahead_ns,
            _ => now_ns as i64,
        }
    }

    /// Makes it `until_ns` for this thread: sleeps if that is far enough ahead.
    fn wait_until(&self, until_ns: i64) {
        let mut now_ns = self.now_ns() as i64;
        if until_ns - now_ns >= SLEEP_NS_MIN {
            self.clock.sleep(Duration::from_nanos((until_ns - now_ns) as u64));
            now_ns = self.now_ns() as i64;
        }
        AHEAD_NS.set((self.clock_id(), (until_ns - now_ns).max(-credit_ns(self.spec.scale))));
    }

    /// Tells clocks apart: the address of this one.
    fn clock_id(&self) -> usize {
        Arc::as_ptr(&self.clock).cast::<()>() as usize
    }

    /// Waits as an operation of `bytes` does that was begun at `begun_ns`.
    pub(super) fn transfer(
        &self,
        direction: Direction,
        stream: u64,
        purpose: IoPurpose,
        begun_ns: u64,
        bytes: u64,
    ) {
        let from_ns = self.caller_ns(begun_ns);
        let mut time_ns = from_ns;
        let mut left = bytes;
        self.state.lock().waiting.begin(direction, begun_ns);
        loop {
            let piece = left.min(self.spec.io_bytes_max);
            let now_ns = self.now_ns();
            {
                let queues = &mut self.state.lock().queues;
                queues.advance(&self.spec, now_ns);
                time_ns = queues.transfer(&self.spec, direction, stream, time_ns, now_ns, piece);
            }
            left -= piece;
            if left == 0 {
                break;
            }
            self.wait_until(time_ns);
        }
        time_ns += self.spec.latency(direction).as_nanos() as i64;
        self.wait_until(time_ns);
        self.state.lock().waiting.end(direction, self.now_ns());
        let (ops, moved) = match direction {
            Direction::Read => (Count::ReadOps, Count::ReadBytes),
            Direction::Write => (Count::WriteOps, Count::WriteBytes),
        };
        self.tally.add(purpose, ops, self.spec.operations(bytes));
        self.tally.add(purpose, moved, bytes);
        self.tally.add(purpose, Count::WaitedNs, (time_ns - from_ns).max(0) as u64);
    }

    /// Waits for the latency of something that moves no bytes and was begun at `begun_ns`.
    fn pause(&self, latency: Duration, begun_ns: u64) {
        self.wait_until(self.caller_ns(begun_ns) + latency.as_nanos() as i64);
    }

    pub(super) fn sync(&self, purpose: IoPurpose, begun_ns: u64) {
        let latency = self.spec.sync_latency();
        self.pause(latency, begun_ns);
        self.tally.add(purpose, Count::Syncs, 1);
        self.tally.add(purpose, Count::WaitedNs, latency.as_nanos() as u64);
    }

    pub(super) fn end_stream(&self, stream: u64) {
        self.state.lock().queues.forget(stream);
    }

    /// Tells how far the log of `stream` is, and waits while too much of the logs is not on the
    /// device.
    pub(super) fn append_log(&self, stream: u64, purpose: IoPurpose, appended: u64, bytes: u64) {
        self.tally.add(purpose, Count::WriteBytes, bytes);
        let begun_ns = self.now_ns();
        let mut now_ns = begun_ns;
        let mut state = self.state.lock();
        state.queues.advance(&self.spec, now_ns);
        state.queues.append_log(stream, appended, now_ns);
        loop {
            state.queues.advance(&self.spec, now_ns);
            if state.queues.dirty_bytes(now_ns) <= self.spec.log_dirty_bytes_max {
                break;
            }
            let Some(until_ns) = state.queues.log_step(stream, appended, now_ns) else { break };
            drop(state);
            now_ns = self.sleep_until(until_ns, now_ns);
            state = self.state.lock();
        }
        drop(state);
        self.tally.add(purpose, Count::WaitedNs, now_ns - begun_ns);
    }

    /// Waits until the log's first `through` bytes, some of which are new since the last time, are
    /// on the device.
    pub(super) fn log_reaches(&self, stream: u64, purpose: IoPurpose, through: u64, begun_ns: u64) {
        let (mut now_ns, mut done_ns) = (begun_ns, begun_ns);
        loop {
            let step = {
                let queues = &mut self.state.lock().queues;
                queues.advance(&self.spec, now_ns);
                queues.append_log(stream, through, now_ns);
                queues.advance(&self.spec, now_ns);
                queues.log_step(stream, through, now_ns)
            };
            let Some(until_ns) = step else { break };
            done_ns = done_ns.max(until_ns.max(0) as u64);
            // What the file system inside took counts towards the wait.
            now_ns = match self.now_ns() {
                now_ns if now_ns as i64 >= until_ns => now_ns,
                now_ns => self.sleep_until(until_ns, now_ns),
            };
        }
        let latency = self.spec.latency(Direction::Write);
        self.pause(latency, done_ns);
        self.tally.add(purpose, Count::WriteOps, 1);
        let waited_ns = done_ns - begun_ns + latency.as_nanos() as u64;
        self.tally.add(purpose, Count::WaitedNs, waited_ns);
    }

    fn sleep_until(&self, until_ns: i64, now_ns: u64) -> u64 {
        self.clock.sleep(Duration::from_nanos((until_ns - now_ns as i64).max(1) as u64));
        self.now_ns()
    }

    pub(super) fn close_log(&self, stream: u64) {
        let mut state = self.state.lock();
        state.queues.close_log(stream);
        state.queues.advance(&self.spec, self.now_ns());
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct ThrottledFs {
    inner: Arc<dyn FileSystem>,
    device: Arc<Device>,
}

impl ThrottledFs {
    /// `inner`, as slow as `spec` (which is taken as it is: see [`DeviceSpec::validate`]).
    #[must_use]
    pub fn new(inner: Arc<dyn FileSystem>, spec: DeviceSpec, clock: Arc<dyn Clock>) -> Arc<Self> {
        let device = Device {
            spec,
            clock,
            state: Mutex::default(),
            tally: Tally::default(),
            next_stream: AtomicU64::new(1),
        };
        Arc::new(Self { inner, device: Arc::new(device) })
    }

    /// What is emulated.
    #[must_use]
    pub fn spec(&self) -> &DeviceSpec {
        &self.device.spec
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> DeviceStats {
        let now_ns = self.device.now_ns();
        let mut state = self.device.state.lock();
        state.queues.advance(&self.device.spec, now_ns);
        let mut stats = self.device.tally.snapshot(&state.waiting);
        stats.log_dirty_bytes = state.queues.dirty_bytes(now_ns);
        stats
    }

    /// Does something with names and waits for the metadata latency if it worked.
    fn names<T>(&self, operation: impl FnOnce(&dyn FileSystem) -> Result<T>) -> Result<T> {
        let begun_ns = self.device.now_ns();
        let done = operation(&*self.inner)?;
        self.device.pause(self.device.spec.metadata_latency(), begun_ns);
        Ok(done)
    }
}

impl FileSystem for ThrottledFs {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        let inner = self.names(|fs| fs.create(path, context, options))?;
        let (device, most) = (Arc::clone(&self.device), options.io_bytes_max);
        Ok(Box::new(ThrottledWriter::new(inner, device, context.purpose, most)))
    }

    fn open(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        let inner = self.inner.open(path, context, options)?;
        Ok(Arc::new(ThrottledReader::new(inner, Arc::clone(&self.device))))
    }

    fn create_log(
        &self,
        path: &Path,
        context: IoContext,
        options: LogOptions,
    ) -> Result<Box<dyn LogFile>> {
        let inner = self.names(|fs| fs.create_log(path, context, options))?;
        let stream = self.device.new_stream();
        self.device.state.lock().queues.open_log(stream, self.device.now_ns());
        let device = Arc::clone(&self.device);
        Ok(Box::new(ThrottledLog::new(inner, device, stream, context.purpose)))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.names(|fs| fs.rename(from, to))
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.names(|fs| fs.link(from, to))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.names(|fs| fs.remove(path))
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.names(|fs| fs.list(dir))
    }

    fn len(&self, path: &Path) -> Result<u64> {
        self.inner.len(path)
    }

    fn modified_ms(&self, path: &Path) -> Result<Option<u64>> {
        self.inner.modified_ms(path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.inner.exists(path)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.names(|fs| fs.create_dir_all(dir))
    }

    fn remove_dir_all(&self, dir: &Path) -> Result<()> {
        self.names(|fs| fs.remove_dir_all(dir))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let begun_ns = self.device.now_ns();
        self.inner.sync_dir(dir)?;
        self.device.pause(self.device.spec.sync_latency(), begun_ns);
        Ok(())
    }

    fn write_bytes_best(&self) -> Option<u64> {
        Some(self.device.spec.write_bytes_best())
    }

    crate::forward_fs!(inner: logs, host, space);
}
