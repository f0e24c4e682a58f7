//! Decorators state the redundancy of the file system that they decorate, and whether it recycles
//! logs. They pass on appends that do not wait.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::clock::{Clock, ManualClock};
use archipelago_base::{Epoch, Error, Result};
use archipelago_env::capacity::CapacityFs;
use archipelago_env::device::{DeviceSpec, ThrottledFs};
use archipelago_env::fault::FaultFs;
use archipelago_env::foreground::{Foreground, ForegroundFs};
use archipelago_env::limit::{LimitedFs, RateLimiter};
use archipelago_env::local::LocalFs;
use archipelago_env::local::mapped::MappedFs;
use archipelago_env::mem::MemFs;
use archipelago_env::stats::CountingFs;
use archipelago_env::{
    CreateOptions, FileClass, FileSystem, IoContext, IoPurpose, LogFile, LogOptions, LogSync,
    ReadLease, WritableFile,
};
use parking_lot::Mutex;

/// A file system with three replicas of each file, parity fragments for value files, and logs that
/// are not recycled.
#[derive(Debug)]
struct ReplicatedFs {
    inner: MemFs,
    handed: Arc<Mutex<Vec<&'static str>>>,
}

/// A writer that notes the name of each call that hands bytes over.
#[derive(Debug)]
struct NamedWriter {
    inner: Box<dyn WritableFile>,
    handed: Arc<Mutex<Vec<&'static str>>>,
}

impl WritableFile for NamedWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.inner.append(data)
    }

    fn flush(&mut self) -> Result<()> {
        self.handed.lock().push("flush");
        self.inner.flush()
    }

    fn submit(&mut self) -> Result<()> {
        self.handed.lock().push("submit of a file");
        self.inner.submit()
    }

    fn sync(&mut self) -> Result<()> {
        self.inner.sync()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }
}

/// A log that notes the name of each call that appends.
#[derive(Debug)]
struct NamedLog {
    inner: Box<dyn LogFile>,
    handed: Arc<Mutex<Vec<&'static str>>>,
}

impl LogFile for NamedLog {
    fn append(&mut self, parts: &[&[u8]]) -> Result<u64> {
        self.handed.lock().push("append");
        self.inner.append(parts)
    }

    fn submit(&mut self, parts: &[&[u8]]) -> Result<u64> {
        self.handed.lock().push("submit");
        self.inner.append(parts)
    }

    fn acknowledges_later(&self) -> bool {
        true
    }

    fn hold_back(&mut self, bytes: u64) {
        assert_eq!(bytes, 5);
        self.handed.lock().push("hold back");
    }

    fn follow(&mut self, previous: Arc<dyn LogSync>, end: u64) -> Result<()> {
        assert_eq!((previous.acknowledged(), end), (7, 6));
        self.handed.lock().push("follow");
        Ok(())
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn sync_handle(&self) -> Arc<dyn LogSync> {
        Arc::new(NamedSync { inner: self.inner.sync_handle(), handed: Arc::clone(&self.handed) })
    }

    fn finish(&mut self) -> Result<()> {
        self.inner.finish()
    }

    fn append_trailer(&mut self, bytes: &[u8]) -> Result<()> {
        self.inner.append_trailer(bytes)
    }

    fn unwritten_bytes(&self) -> u64 {
        self.inner.unwritten_bytes()
    }
}

/// A sync handle that notes waits.
#[derive(Debug)]
struct NamedSync {
    inner: Arc<dyn LogSync>,
    handed: Arc<Mutex<Vec<&'static str>>>,
}

impl LogSync for NamedSync {
    fn sync(&self) -> Result<u64> {
        self.inner.sync()
    }

    fn wait(&self, end: u64) -> Result<()> {
        assert_eq!(end, 2);
        self.handed.lock().push("wait");
        Ok(())
    }

    fn send(&self) -> Result<()> {
        self.handed.lock().push("send");
        Ok(())
    }

    fn acknowledged(&self) -> u64 {
        7
    }

    fn write_through(&self) -> Result<u64> {
        self.inner.write_through()
    }
}

/// A lease that has ended.
#[derive(Debug)]
struct EndedLease;

impl ReadLease for EndedLease {
    fn check(&self) -> Result<()> {
        Err(Error::busy("the lease has ended"))
    }
}

impl FileSystem for ReplicatedFs {
    fn read_lease(&self) -> Option<Arc<dyn ReadLease>> {
        Some(Arc::new(EndedLease))
    }

    fn redundancy(&self, class: FileClass) -> f64 {
        if class == FileClass::ValueSst { 1.5 } else { 3.0 }
    }

    fn recycles_logs(&self) -> bool {
        false
    }

    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        let inner = self.inner.create(path, context, options)?;
        Ok(Box::new(NamedWriter { inner, handed: Arc::clone(&self.handed) }))
    }

    fn create_log(
        &self,
        path: &Path,
        context: IoContext,
        options: LogOptions,
    ) -> Result<Box<dyn LogFile>> {
        let inner = self.inner.create_log(path, context, options)?;
        Ok(Box::new(NamedLog { inner, handed: Arc::clone(&self.handed) }))
    }

    archipelago_env::forward_fs!(
        inner: open, remove, logs, looks, moves, dirs, host, space
    );
}

fn of(fs: &dyn FileSystem) -> [f64; 2] {
    [FileClass::Sst, FileClass::ValueSst].map(|class| fs.redundancy(class))
}

/// Every decorator over a [`ReplicatedFs`] that notes into `handed`.
fn decorators(handed: &Arc<Mutex<Vec<&'static str>>>) -> Vec<Arc<dyn FileSystem>> {
    let spec = DeviceSpec::from_toml(include_str!("../../../../docs/devices/nvme.toml")).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(0));
    let inner = || -> Arc<dyn FileSystem> {
        Arc::new(ReplicatedFs { inner: MemFs::new(), handed: Arc::clone(handed) })
    };
    let limiter = Arc::new(RateLimiter::new(0));
    vec![
        ThrottledFs::new(inner(), spec, Arc::clone(&clock)),
        Arc::new(FaultFs::new(inner(), 0)),
        Arc::new(LimitedFs::new(inner(), limiter, Arc::clone(&clock))),
        Arc::new(ForegroundFs::new(inner(), Foreground::new(clock))),
        Arc::new(CountingFs::new(inner())),
        Arc::new(CapacityFs::new(inner(), Path::new(""), 1 << 20).unwrap()),
    ]
}

#[test]
fn every_decorator_forwards_redundancy_recycling_and_lease() {
    for fs in decorators(&Arc::default()) {
        assert_eq!(of(&*fs), [3.0, 1.5], "{fs:?}");
        assert!(!fs.recycles_logs(), "{fs:?}");
        assert!(fs.read_lease().unwrap().check().is_err(), "{fs:?}");
    }
}

#[test]
fn every_decorator_forwards_submit_and_wait() {
    let handed = Arc::default();
    let context = IoContext::new(FileClass::Wal, IoPurpose::Flush);
    for fs in decorators(&handed) {
        let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: None };
        let mut log = fs.create_log(Path::new("log"), context, options).unwrap();
        log.hold_back(5);
        let previous = log.sync_handle();
        log.follow(previous, 6).unwrap();
        assert_eq!(log.submit(&[b"a", b"b"]).unwrap(), 0);
        assert_eq!(log.len(), 2);
        assert!(log.acknowledges_later());
        assert_eq!(log.sync_handle().acknowledged(), 7);
        log.sync_handle().send().unwrap();
        log.sync_handle().wait(2).unwrap();
        log.append(&[b"c"]).unwrap();
        let mut file = fs.create(Path::new("file"), context, CreateOptions::default()).unwrap();
        file.append(b"d").unwrap();
        file.submit().unwrap();
        file.flush().unwrap();
        let seen = std::mem::take(&mut *handed.lock());
        let log = ["hold back", "follow", "submit", "send", "wait", "append"];
        let all = [&log[..], &["submit of a file", "flush"]].concat();
        assert_eq!(seen, all, "{fs:?}");
    }
}

#[test]
fn local_file_systems_write_each_byte_once() {
    let local: [&dyn FileSystem; 3] = [&LocalFs::new(), &MappedFs::new(), &MemFs::new()];
    for fs in local {
        assert_eq!(of(fs), [1.0, 1.0], "{fs:?}");
        assert!(fs.recycles_logs(), "{fs:?}");
        assert!(fs.read_lease().is_none(), "{fs:?}");
    }
}
