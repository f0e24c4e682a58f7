//! The conformance suite over every file system of the crate.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::clock::SystemClock;
use archipelago_env::FileSystem;
use archipelago_env::device::{DeviceSpec, ThrottledFs};
use archipelago_env::fault::FaultFs;
use archipelago_env::foreground::{Foreground, ForegroundFs};
use archipelago_env::limit::{LimitedFs, RateLimiter};
use archipelago_env::local::LocalFs;
use archipelago_env::mem::MemFs;
use archipelago_env::stats::CountingFs;
use archipelago_env::suite::conforms;
use tempfile::TempDir;

fn shared(fs: impl FileSystem) -> Arc<dyn FileSystem> {
    Arc::new(fs)
}

#[test]
fn memory_conforms() {
    conforms(&shared(MemFs::new()), Path::new("/db"), false);
    conforms(&shared(MemFs::new()), Path::new("relative"), false);
}

#[test]
fn local_buffered_conforms() {
    let dir = TempDir::new().unwrap();
    conforms(&LocalFs::shared(), dir.path(), false);
}

#[test]
fn local_direct_conforms() {
    // The system's temporary directory may be in memory, and the build directory is on a disk.
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    conforms(&LocalFs::shared(), dir.path(), true);
}

#[test]
fn a_throttled_file_system_conforms() {
    let spec = DeviceSpec::from_toml(
        r#"
        name = "fast"
        source = "made up, so that the checks do not take long"
        total_bytes_per_s = 20_000_000_000
        read_bytes_per_s = 10_000_000_000
        write_bytes_per_s = 10_000_000_000
        stream_bytes_per_s = 5_000_000_000
        operations_per_s = 10_000_000
        read_latency_us = 10
        write_latency_us = 10
        sync_latency_us = 50
        metadata_latency_us = 10
        "#,
    )
    .unwrap();
    let throttled = |inner, spec: &DeviceSpec| -> Arc<dyn FileSystem> {
        ThrottledFs::new(inner, spec.clone(), SystemClock::shared())
    };
    conforms(&throttled(Arc::new(MemFs::new()), &spec), Path::new("/db"), false);
    let dir = TempDir::new().unwrap();
    conforms(&throttled(LocalFs::shared(), &spec), dir.path(), false);
    // A throttled file system with a small limit of dirty log bytes makes each append wait for the
    // device.
    let tight = DeviceSpec { log_dirty_bytes_max: 1, ..spec };
    let fs = CountingFs::new(throttled(Arc::new(FaultFs::new(LocalFs::shared(), 0)), &tight));
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    conforms(&shared(fs), dir.path(), true);
}

#[test]
fn decorators_without_work_conform() {
    let clock = SystemClock::shared();
    let fs: Arc<dyn FileSystem> = Arc::new(FaultFs::new(Arc::new(MemFs::new()), 0));
    let fs = Arc::new(CountingFs::new(fs));
    let fs = LimitedFs::new(fs, Arc::new(RateLimiter::new(0)), clock);
    conforms(&shared(fs), Path::new("/db"), false);

    let dir = TempDir::new().unwrap();
    conforms(&shared(FaultFs::new(LocalFs::shared(), 0)), dir.path(), false);

    let dir = TempDir::new().unwrap();
    let gauge = Foreground::new(SystemClock::shared());
    conforms(&shared(ForegroundFs::new(LocalFs::shared(), gauge)), dir.path(), false);
}
