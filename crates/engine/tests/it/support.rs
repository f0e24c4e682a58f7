//! Shared parts of the tests: a database over memory, stepped by the test or in threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use archipelago_engine::db::{BackgroundMode, Components, Db};
use archipelago_engine::options::{CfOptions, DbOptions};
use archipelago_engine::sabotage::{Defect, with_defect};
use archipelago_env::FileSystem;
use archipelago_tier::{DeviceKind, DeviceParts, DeviceSettings, Policy, TieredFs};

use crate::disk::TestDisk;

/// Small sizes, so that few records make many files.
pub(crate) fn small_family() -> CfOptions {
    CfOptions {
        write_buffer_bytes: 16 << 10,
        level_base_bytes: 64 << 10,
        target_file_bytes: 16 << 10,
        block_bytes: 512,
        buckets: 3,
        ..CfOptions::default()
    }
}

/// Small sizes of the log and the cache, so that a short test fills both.
pub(crate) fn small_db() -> DbOptions {
    DbOptions { wal_segment_bytes: 64 << 10, block_cache_bytes: 1 << 20, ..DbOptions::default() }
}

/// Components of a database whose background work the test steps.
pub(crate) fn stepped() -> Components {
    Components { background: BackgroundMode::Manual, ..Components::default() }
}

/// The same components for a database that runs its background work in threads.
pub(crate) fn in_threads(components: Components) -> Components {
    Components { background: BackgroundMode::Threads, ..components }
}

/// Components over `fs` with `family` as the default family's settings. The test steps the
/// background work.
pub(crate) fn over(fs: &TestDisk, family: CfOptions) -> Components {
    Components {
        fs: Arc::new(fs.clone()),
        families: [("default".to_owned(), family)].into_iter().collect(),
        seed: Some(1),
        ..stepped()
    }
}

/// A small database on `fs`.
pub(crate) fn open(fs: &TestDisk) -> Db {
    Db::open_with("/db", small_db(), over(fs, small_family())).unwrap()
}

/// Runs a check that passes without defects, on a database that this thread steps. Returns whether
/// the check fails with `defect`.
pub(crate) fn is_noticed(defect: Defect, core: fn()) -> bool {
    let failed = catch_unwind(AssertUnwindSafe(|| with_defect(defect, core)));
    let Err(panic) = failed else { return false };
    let text = panic.downcast_ref::<String>().map_or("", String::as_str);
    eprintln!("{defect:?} was noticed: {text}");
    true
}

/// Kind of storage between the database and a disk in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Beneath {
    Disk,
    /// Tiers of two directories, stepped by the test. The first directory has space for only a
    /// part.
    Tiers,
}

impl Beneath {
    /// The file system for the database, and the tiers if any.
    pub(crate) fn open(self, disk: &TestDisk) -> (Arc<dyn FileSystem>, Option<Arc<TieredFs>>) {
        if matches!(self, Self::Disk) {
            return (Arc::new(disk.clone()), None);
        }
        let device = |(path, capacity_bytes): (&str, u64)| DeviceParts {
            settings: DeviceSettings {
                capacity_bytes,
                ..DeviceSettings::new(path, DeviceKind::Directory).creating()
            },
            fs: Arc::new(disk.clone()),
            is_local: false,
        };
        let devices = [("/fast", 400 << 10), ("/slow", 64 << 20)].map(device).into();
        let policy = Policy { fast_levels: Some(1), range_bytes: 4096, ..Policy::default() };
        let components = archipelago_tier::Components {
            spawn: None,
            seed: Some(5),
            policy,
            ..archipelago_tier::Components::default()
        };
        let tiers = TieredFs::open_over("/db", devices, components)
            .unwrap_or_else(|error| panic!("the tiers cannot be opened: {error}"));
        (Arc::clone(&tiers) as Arc<dyn FileSystem>, Some(tiers))
    }
}
