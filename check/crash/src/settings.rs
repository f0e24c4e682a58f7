//! Settings with which the database opens. A seed chooses them, and they are small, so that seconds
//! of writing cause flushes, compactions and log rotations.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago::env::FileSystem;
use archipelago::tier::{self, DeviceKind, DeviceSettings, Policy};
use archipelago::{CfOptions, Components, Compression, Db, DbOptions, Result, Storage};
use archipelago_compute::Offloaded;
use archipelago_engine::db::FaultPoint as FaultPoints;
use archipelago_tier::FaultPoint;
use rustix::process::{Signal, getpid, kill_process};

pub(crate) use archipelago::Rng;

use crate::shared_disk::SharedDisk;

/// Column families for everything but counters.
pub(crate) const FAMILIES: [&str; 3] = ["default", "wide", "plain"];
/// Index of the family of counters, which follows the other families.
pub(crate) const COUNTERS: usize = FAMILIES.len();
/// Name of the column family with counters.
pub(crate) const COUNTERS_NAME: &str = "counters";

/// The name of a family by its index.
pub(crate) fn family_name(index: usize) -> &'static str {
    FAMILIES.get(index).copied().unwrap_or(COUNTERS_NAME)
}

fn family_options(seed: u64, index: usize) -> CfOptions {
    let mut rng = Rng::with_seed(seed ^ 0xfa51 ^ ((index as u64) << 40));
    let compression = [Compression::None, Compression::Lz4, Compression::Zstd];
    CfOptions {
        write_buffer_bytes: rng.u64(16..128) << 10,
        write_buffers_max: rng.usize(2..5),
        buckets: [1, 3, 16][rng.usize(..3)],
        block_bytes: [512, 4096][rng.usize(..2)],
        compression: compression[rng.usize(..3)],
        compression_last: compression[rng.usize(..3)],
        l0_compaction_trigger: rng.usize(2..5),
        level_base_bytes: rng.u64(64..512) << 10,
        level_multiplier: rng.u64(3..10),
        target_file_bytes: rng.u64(32..256) << 10,
        merge_operator: (index == COUNTERS).then(|| "u64-counter".to_owned()),
        value_separation_bytes: [0, 1, 64, 512][rng.usize(..4)],
        value_file_bytes: rng.u64(64..1024) << 10,
        space_amplification_max: [0.0, 1.05, 1.5][rng.usize(..3)],
        ..CfOptions::default()
    }
}

/// Three small devices next to the database's directory, so that files have to move and copies are
/// made. The database's seed decides how small they are.
fn devices(dir: &Path, seed: u64) -> Vec<DeviceSettings> {
    let mut rng = Rng::with_seed(seed ^ 0x71e5);
    let base = dir.parent().unwrap_or(dir);
    let kinds = [DeviceKind::Directory, DeviceKind::Direct, DeviceKind::Mapped];
    let device = |name: &str, rng: &mut Rng, mib: u64| DeviceSettings {
        name: name.to_owned(),
        capacity_bytes: mib << 20,
        // The number is small, so that tables wait for write slots.
        writers_max: rng.u32(..4),
        ..DeviceSettings::new(base.join(name), kinds[rng.usize(..3)]).creating()
    };
    let (fast, middle) = (rng.u64(2..8), rng.u64(1..8));
    vec![
        device("fast", &mut rng, fast),
        device("middle", &mut rng, middle),
        device("slow", &mut rng, 4096),
    ]
}

/// The tiers of the database, whose control loop runs much more often than usual.
fn storage(dir: &Path, seed: u64, open_seed: u64, dies: bool) -> Result<Storage> {
    let mut rng = Rng::with_seed(open_seed ^ 0x71e5);
    let policy = Policy {
        interval_ms: rng.u64(5..50),
        range_bytes: rng.u64(1..64) << 12,
        threads_max: rng.usize(1..5),
        fast_levels: rng.bool().then(|| rng.u8(1..5)),
        ..Policy::default()
    };
    let fault_point = (dies && rng.bool()).then(|| death(rng.u64(..48)));
    let components = tier::Components { policy, fault_point, ..tier::Components::default() };
    Storage::open_with(dir, &devices(dir, seed), components)
}

/// Fault point that kills the process at a step of a move, copy or sync, after `after` other steps.
fn death(after: u64) -> FaultPoint {
    let steps = AtomicU64::new(0);
    Arc::new(move |_| {
        if steps.fetch_add(1, Ordering::Relaxed) == after {
            // The process kills itself as the parent does, so no other exit passes for a kill.
            let _dead = kill_process(getpid(), Signal::KILL);
            loop {
                std::thread::park();
            }
        }
        Ok(())
    })
}

/// The storage of a database in a directory of a file system.
fn on(fs: Arc<dyn FileSystem>, dir: &Path) -> Storage {
    Storage { fs, dir: dir.to_owned(), tiers: None, volume: None }
}

/// File system of the open, and whether the process may die at one of its steps.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Over<'a> {
    Plain,
    Tiers {
        dies: bool,
    },
    Disk(&'a SharedDisk),
    /// The file system of a volume on storage nodes.
    Volume(&'a Arc<dyn FileSystem>),
    /// A directory or a volume whose database offloads.
    Offloading(&'a Offloading),
}

impl Over<'_> {
    /// Whether the database lies on storage nodes.
    fn is_volume(self) -> bool {
        match self {
            Self::Volume(_) => true,
            Self::Offloading(parts) => parts.storage.volume.is_some(),
            Self::Plain | Self::Tiers { .. } | Self::Disk(_) => false,
        }
    }
}

/// The storage of a database, and the jobs and memtables that leave its process.
pub(crate) struct Offloading {
    pub(crate) storage: Storage,
    pub(crate) offloaded: Offloaded,
    /// Invoked at named points of background work.
    pub(crate) points: FaultPoints,
}

impl fmt::Debug for Offloading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offloading").field("offloaded", &self.offloaded).finish_non_exhaustive()
    }
}

/// Opens the database of `seed`, over tiers or not. `open_seed` decides what may differ between
/// opens. Creates everything that is missing. Families may be missing, because a kill may have come
/// between their creations. On return, the room of a shared disk has been given back.
pub(crate) fn open(dir: &Path, seed: u64, open_seed: u64, over: Over<'_>) -> Result<Db> {
    let mut rng = Rng::with_seed(open_seed);
    let options = DbOptions {
        max_background_jobs: rng.usize(1..5),
        wal_segment_bytes: rng.u64(64..512) << 10,
        wal_bytes_max: if rng.bool() { rng.u64(256..4096) << 10 } else { 0 },
        block_cache_bytes: rng.u64(1..16) << 20,
        // A failed write-through leaves open whether the write is there.
        log_write_through: rng.u8(..4) == 0 && !matches!(over, Over::Disk(_)) && !over.is_volume(),
        ..DbOptions::default()
    };
    let options = match over.is_volume() {
        // Storage nodes keep a reserve themselves.
        true => DbOptions { disk_reserve_bytes: 0, ..options },
        false => options,
    };
    let families = [("default".to_owned(), family_options(seed, 0))].into_iter().collect();
    let Storage { fs, dir, .. } = match over {
        Over::Tiers { dies } => storage(dir, seed, open_seed, dies)?,
        Over::Plain => Storage::open(dir, &[])?,
        Over::Disk(disk) => on(disk.file_system(), dir),
        Over::Volume(fs) => on(Arc::clone(fs), dir),
        Over::Offloading(parts) => on(Arc::clone(&parts.storage.fs), dir),
    };
    let mut components = Components { families, fs, ..Components::default() };
    if let Over::Offloading(parts) = over {
        parts.offloaded.join(&mut components);
        components.fault_point = Some(Arc::clone(&parts.points));
    }
    let db = Db::open_with(&dir, options, components)?;
    if let Over::Disk(disk) = over {
        disk.leave();
    }
    let known = db.list_families();
    for index in 1..=COUNTERS {
        let name = family_name(index);
        if !known.iter().any(|known| known == name) {
            db.create_family(name, family_options(seed, index))?;
        }
    }
    Ok(db)
}
