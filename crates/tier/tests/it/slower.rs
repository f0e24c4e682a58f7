//! A device that writes slower than its profile says.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::clock::ManualClock;
use archipelago_env::mem::MemFs;
use archipelago_env::{CreateOptions, FileSystem, IoContext, WritableFile, forward_fs};
use archipelago_tier::Reason;
use archipelago_tier::scheme::{DeviceProfile, Point, Scheme};

use crate::world::{World, filled, path, write};

/// A file system whose writes advance the clock of the test.
#[derive(Debug)]
struct TimedFs {
    inner: Arc<dyn FileSystem>,
    clock: Arc<ManualClock>,
    bytes_per_s: Arc<AtomicU64>,
}

impl FileSystem for TimedFs {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        let inner = self.inner.create(path, context, options)?;
        let (clock, bytes_per_s) = (Arc::clone(&self.clock), Arc::clone(&self.bytes_per_s));
        Ok(Box::new(TimedWriter { inner, clock, bytes_per_s }))
    }

    forward_fs!(inner: open, create_log, names);
}

#[derive(Debug)]
struct TimedWriter {
    inner: Box<dyn WritableFile>,
    clock: Arc<ManualClock>,
    bytes_per_s: Arc<AtomicU64>,
}

impl WritableFile for TimedWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        let rate = self.bytes_per_s.load(Ordering::Relaxed);
        self.clock.advance(Duration::from_nanos(data.len() as u64 * 1_000_000_000 / rate));
        self.inner.append(data)
    }

    archipelago_env::forward_writer!(inner);
}

#[test]
fn device_slower_than_profiled_takes_fewer_writers() {
    let mut world = World::new(Arc::new(MemFs::new()), &[1 << 24, 1 << 24]);
    let bytes_per_s = Arc::new(AtomicU64::new(1_000_000));
    let (inner, clock) = (Arc::clone(&world.disk), Arc::clone(&world.clock));
    world.disk = Arc::new(TimedFs { inner, clock, bytes_per_s: Arc::clone(&bytes_per_s) });
    let point = |threads| Point { threads, bytes_per_s: 1_000_000.0 };
    let profile = DeviceProfile {
        name: "dev0".to_owned(),
        writers_max: 8,
        writes: vec![point(1), point(8)],
        ..DeviceProfile::default()
    };
    world.scheme = Some(Scheme {
        devices: vec![profile],
        ..Scheme::of_profile(vec![], &Default::default(), 0)
    });
    let fs = world.open();
    let mut written = 0;
    // One second of writes, and then an iteration of the control loop.
    let mut seconds = |count: usize, bytes: usize| {
        for _ in 0..count {
            let name = format!("{written}.sst");
            write(&fs, &name, 0, &filled(written, bytes));
            written += 1;
            fs.step();
            fs.remove(&path(&name)).unwrap();
        }
        let stats = fs.stats();
        (stats.devices[0].limit, stats.devices[0].pace_percent, stats.events)
    };
    let (limit, percent, events) = seconds(10, 1_000_000);
    assert_eq!((limit, percent), (8, 100), "{events:?}");
    bytes_per_s.store(250_000, Ordering::Relaxed);
    let (limit, percent, events) = seconds(10, 250_000);
    assert_eq!((limit, percent), (2, 25), "{events:?}");
    assert!(events.iter().any(|event| event.reason == Reason::SlowerThanProfiled(25)));
    assert!(fs.stats().to_string().contains("slower than profiled: it writes at 25 %"));
    bytes_per_s.store(1_000_000, Ordering::Relaxed);
    let (limit, percent, events) = seconds(10, 1_000_000);
    assert_eq!((limit, percent), (8, 100), "{events:?}");
    assert!(events.iter().any(|event| event.reason == Reason::AsProfiled));
}
