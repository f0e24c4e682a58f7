//! A file system that is as slow as a device of a [`DeviceSpec`].
//!
//! [`ThrottledFs`] executes every operation on the decorated file system, and then makes the caller
//! wait until the emulated device would have completed it. The rules are:
//!
//! 1. A stream is a caller in one call. A synchronous caller has one call in flight, so a thread
//!    that merges eight files is one stream, and eight threads are eight. The ranges of one
//!    `read_many` are in flight together: each range counts as an operation, unless it continues
//!    the one before it, and the latency counts once (decision 0062). They share the bandwidth of
//!    one stream.
//! 2. Tables and other files are charged when they are read and written, whatever the decorated
//!    file system caches. Appends are collected to `io_bytes_max`, or to the caller's limit, as the
//!    page cache and the direct writer do. The caller then waits for the device. `sync` waits for
//!    the rest and for the sync latency.
//! 3. An append to a log goes to memory and costs nothing, as on a real machine. Its bytes take
//!    bandwidth in the background. Appends wait only beyond `log_dirty_bytes_max`. Writing a log
//!    through waits until its bytes have reached the device, and if there were new ones, for the
//!    write latency. The sync of a log waits for the same, and for the sync latency.
//! 4. Operations on names cost `metadata_latency`, and the sync of a directory costs a sync.
//!    Queries (`len`, `exists`) and opens cost nothing. `prefetch` is not emulated: its bytes are
//!    charged to the read that follows.
//!
//! Waits under a fifth of a millisecond are collected per thread and slept together, because a
//! sleep takes that long and ends late. The delay of a late sleep shortens the next waits, by up to
//! a fifth of a millisecond of the device's time at full scale. A thread takes both from one device
//! to the next on the same clock. Therefore rates and averages are exact to about a per mille.
//! Single latencies below 0.2 ms are not exact, and streams share evenly only if a piece takes
//! longer than that (1.3 GB/s with pieces of 256 KiB).
//!
//! Thread-safety: any thread may call any method, and the spec never changes.
//! Failure: the errors of the decorated file system. A failed operation is not charged.
//! Cost: one short lock per 256 KiB and per small operation, and one per 64 KiB of log appends. No
//! thread sleeps with the lock. The time of the real file system counts as waiting time. If it is
//! slower than the emulated device, no caller waits, and a measurement shows the real machine
//! (`DeviceStats::total` and the machine's load tell).

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

/// Waits that are shorter than this are collected.
const SLEEP_NS_MIN: i64 = 200_000;
/// Limit of the time that later waits make up for, at any scale.
const CREDIT_NS_MAX: i64 = 5_000_000;

/// Part of a late sleep that later waits make up for on a device of `scale`. In the device's own
/// time it is the same as at full scale.
fn credit_ns(scale: f64) -> i64 {
    ((CREDIT_NS as f64 / scale.min(1.0)) as i64).min(CREDIT_NS_MAX)
}

thread_local! {
    /// Address of the clock by which this thread waited last, and the difference between the thread
    /// and that clock. It is positive for collected waits and negative after a late sleep.
    static AHEAD_NS: Cell<(usize, i64)> = const { Cell::new((0, 0)) };
}

/// Lengths of the pieces in which an operation of `bytes` moves.
fn pieces_of(bytes: u64, piece_bytes_max: u64) -> impl Iterator<Item = u64> {
    let whole = (0..bytes / piece_bytes_max).map(move |_| piece_bytes_max);
    whole.chain(Some(bytes % piece_bytes_max).filter(|&rest| rest > 0))
}

/// State that the handles of one [`ThrottledFs`] share.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) spec: DeviceSpec,
    clock: Arc<dyn Clock>,
    state: Mutex<ThrottledState>,
    tally: Tally,
    next_stream: AtomicU64,
}

#[derive(Debug, Default)]
struct ThrottledState {
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

    /// The current time of this thread: the clock's, plus collected waits, minus late sleeps.
    fn caller_ns(&self, now_ns: u64) -> i64 {
        match AHEAD_NS.get() {
            (clock, ahead_ns) if clock == self.clock_id() => now_ns as i64 + ahead_ns,
            _ => now_ns as i64,
        }
    }

    /// Advances this thread to `until_ns`. It sleeps if that is far enough ahead.
    fn wait_until(&self, until_ns: i64) {
        let mut now_ns = self.now_ns() as i64;
        if until_ns - now_ns >= SLEEP_NS_MIN {
            self.clock.sleep(Duration::from_nanos((until_ns - now_ns) as u64));
            now_ns = self.now_ns() as i64;
        }
        AHEAD_NS.set((self.clock_id(), (until_ns - now_ns).max(-credit_ns(self.spec.scale))));
    }

    /// Address of this clock, which identifies it.
    fn clock_id(&self) -> usize {
        Arc::as_ptr(&self.clock).cast::<()>() as usize
    }

    /// Waits as operations of these lengths do that one caller started together at `begun_ns`. They
    /// are one stream. Their bytes pass one after another, and the latency counts once, because the
    /// latencies of all of them overlap.
    pub(super) fn transfer(
        &self,
        direction: Direction,
        stream: u64,
        purpose: IoPurpose,
        begun_ns: u64,
        operations: &[u64],
    ) {
        let from_ns = self.caller_ns(begun_ns);
        let mut time_ns = from_ns;
        self.state.lock().waiting.begin(direction, begun_ns);
        let pieces = |&bytes: &u64| pieces_of(bytes, self.spec.io_bytes_max);
        for (index, piece) in operations.iter().flat_map(pieces).enumerate() {
            if index > 0 {
                self.wait_until(time_ns);
            }
            let now_ns = self.now_ns();
            let queues = &mut self.state.lock().queues;
            queues.advance(&self.spec, now_ns);
            time_ns = queues.transfer(&self.spec, direction, stream, time_ns, now_ns, piece);
        }
        time_ns += self.spec.latency(direction).as_nanos() as i64;
        self.wait_until(time_ns);
        self.state.lock().waiting.end(direction, self.now_ns());
        let (ops, moved) = match direction {
            Direction::Read => (Count::ReadOps, Count::ReadBytes),
            Direction::Write => (Count::WriteOps, Count::WriteBytes),
        };
        let count = operations.iter().map(|&bytes| self.spec.operations(bytes)).sum();
        self.tally.add(purpose, ops, count);
        self.tally.add(purpose, moved, operations.iter().sum());
        self.tally.add(purpose, Count::WaitedNs, (time_ns - from_ns).max(0) as u64);
    }

    /// Waits for the latency of an operation without bytes that started at `begun_ns`.
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

    /// Records the length of the log of `stream`, and waits while too many log bytes are not on the
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

    /// Waits until the log's first `through` bytes, some of which are new, are on the device.
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
            // The time of the decorated file system counts as waiting time.
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

/// A file system that is as slow as a described device.
#[derive(Clone, Debug)]
pub struct ThrottledFs {
    inner: Arc<dyn FileSystem>,
    device: Arc<Device>,
}

impl ThrottledFs {
    /// Makes `inner` as slow as `spec`, which must be valid ([`DeviceSpec::validate`]).
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

    /// The description of the emulated device.
    #[must_use]
    pub fn spec(&self) -> &DeviceSpec {
        &self.device.spec
    }

    /// The statistics so far.
    #[must_use]
    pub fn stats(&self) -> DeviceStats {
        let now_ns = self.device.now_ns();
        let mut state = self.device.state.lock();
        state.queues.advance(&self.device.spec, now_ns);
        let mut stats = self.device.tally.snapshot(&state.waiting);
        stats.log_dirty_bytes = state.queues.dirty_bytes(now_ns);
        stats
    }

    /// Executes an operation on names, and waits for the metadata latency if it succeeded.
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

    crate::forward_fs!(inner: logs, host, traits, space);
}
