//! A file system whose log does not lie on the emulated device (`--local_log`): a compute node with
//! storage behind a link keeps its log on a disk of its own.
//!
//! Both file systems show the same directories. Segments of the log are made, and their tails
//! found, by one of them, and everything else by the other one. So only the time of an operation
//! depends on the place.
//!
//! Thread-safety: that of the two file systems. Failure: errors are theirs. Cost: nothing.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_env::{FileSystem, IoContext, LogFile, LogOptions};

/// The emulated device, and the disk of the log.
#[derive(Clone, Debug)]
pub struct LocalLogFs {
    device: Arc<dyn FileSystem>,
    log: Arc<dyn FileSystem>,
}

impl LocalLogFs {
    /// A file system with files of `device`, and with logs of `log`. Both must show the same
    /// directories.
    #[must_use]
    pub fn new(device: Arc<dyn FileSystem>, log: Arc<dyn FileSystem>) -> Arc<Self> {
        Arc::new(Self { device, log })
    }

    /// The file system that removes or renames the file at `path`.
    fn of(&self, path: &Path) -> &dyn FileSystem {
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        if is_log { &*self.log } else { &*self.device }
    }
}

impl FileSystem for LocalLogFs {
    fn create_log(
        &self,
        path: &Path,
        context: IoContext,
        options: LogOptions,
    ) -> Result<Box<dyn LogFile>> {
        self.log.create_log(path, context, options)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.of(path).remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.of(from).rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.of(from).link(from, to)
    }

    archipelago_env::forward_fs!(log: logs);
    archipelago_env::forward_fs!(device: create, open, looks, dirs, host, figures, space);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use archipelago_base::Epoch;
    use archipelago_base::clock::SystemClock;
    use archipelago_env::device::{DeviceSpec, ThrottledFs};
    use archipelago_env::local::LocalFs;
    use archipelago_env::{CreateOptions, FileClass, IoPurpose};

    use super::*;

    #[test]
    fn log_takes_no_bandwidth_of_the_device() {
        let dir = tempfile::tempdir().expect("a directory");
        let spec = DeviceSpec::from_toml(
            "name = 'd'\nsource = 's'\ntotal_bytes_per_s = 2000000000\n\
             read_bytes_per_s = 1000000000\nwrite_bytes_per_s = 1000000000\n",
        )
        .expect("a device");
        let local: Arc<dyn FileSystem> = Arc::new(LocalFs::new());
        let device = ThrottledFs::new(Arc::clone(&local), spec, SystemClock::shared());
        let fs = LocalLogFs::new(Arc::clone(&device) as _, local);
        let log_context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
        let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 1 << 16, recycle: None };
        let path = dir.path().join("000001.log");
        let mut log = fs.create_log(&path, log_context, options).expect("a log");
        log.append(&[&[7; 1000]]).expect("an append");
        log.finish().expect("an end");
        assert_eq!(device.stats().total().write_bytes, 0);
        let context = IoContext::new(FileClass::Sst, IoPurpose::Flush);
        let table = dir.path().join("000002.sst");
        let mut file = fs.create(&table, context, CreateOptions::default()).expect("a file");
        file.append(&[7; 1000]).expect("an append");
        file.sync().expect("a sync");
        assert_eq!(device.stats().total().write_bytes, 1000);
        // One directory shows both.
        let names = || {
            let entries = fs.list(dir.path()).expect("a list").into_iter();
            let names = entries.map(|entry| entry.name);
            names.filter(|name| name.starts_with("00000")).collect::<BTreeSet<String>>()
        };
        assert_eq!(names(), ["000001.log", "000002.sst"].map(str::to_owned).into());
        fs.remove(&path).expect("a removal");
        assert_eq!(names(), ["000002.sst"].map(str::to_owned).into());
    }
}
