//! Decorators state the redundancy of the file system that they decorate.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::clock::{Clock, ManualClock};
use archipelago_env::capacity::CapacityFs;
use archipelago_env::device::{DeviceSpec, ThrottledFs};
use archipelago_env::fault::FaultFs;
use archipelago_env::foreground::{Foreground, ForegroundFs};
use archipelago_env::limit::{LimitedFs, RateLimiter};
use archipelago_env::local::LocalFs;
use archipelago_env::local::mapped::MappedFs;
use archipelago_env::mem::MemFs;
use archipelago_env::stats::CountingFs;
use archipelago_env::{FileClass, FileSystem};

/// A file system with three replicas of each file, and parity fragments for value files.
#[derive(Debug)]
struct ReplicatedFs {
    inner: MemFs,
}

impl FileSystem for ReplicatedFs {
    fn redundancy(&self, class: FileClass) -> f64 {
        if class == FileClass::ValueSst { 1.5 } else { 3.0 }
    }

    archipelago_env::forward_fs!(
        inner: create, open, create_log, remove, logs, looks, moves, dirs, host, space
    );
}

fn of(fs: &dyn FileSystem) -> [f64; 2] {
    [FileClass::Sst, FileClass::ValueSst].map(|class| fs.redundancy(class))
}

#[test]
fn every_decorator_forwards_the_redundancy() {
    let spec = DeviceSpec::from_toml(include_str!("../../../../docs/devices/nvme.toml")).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(0));
    let inner = || -> Arc<dyn FileSystem> { Arc::new(ReplicatedFs { inner: MemFs::new() }) };
    let limiter = Arc::new(RateLimiter::new(0));
    let decorators: Vec<Arc<dyn FileSystem>> = vec![
        ThrottledFs::new(inner(), spec, Arc::clone(&clock)),
        Arc::new(FaultFs::new(inner(), 0)),
        Arc::new(LimitedFs::new(inner(), limiter, Arc::clone(&clock))),
        Arc::new(ForegroundFs::new(inner(), Foreground::new(clock))),
        Arc::new(CountingFs::new(inner())),
        Arc::new(CapacityFs::new(inner(), Path::new(""), 1 << 20).unwrap()),
    ];
    for fs in decorators {
        assert_eq!(of(&*fs), [3.0, 1.5], "{fs:?}");
    }
}

#[test]
fn local_file_systems_write_each_byte_once() {
    let local: [&dyn FileSystem; 3] = [&LocalFs::new(), &MappedFs::new(), &MemFs::new()];
    for fs in local {
        assert_eq!(of(fs), [1.0, 1.0], "{fs:?}");
    }
}
