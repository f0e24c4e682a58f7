//! Tiers over directories of one disk in memory, with a clock that the test moves.
//!
//! The unit tests in `src/fs/tests/mod.rs` have a `World` of their own, which reaches private
//! state.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::{Clock, ManualClock};
use archipelago_base::random::Rng;
use archipelago_env::mem::MemFs;
use archipelago_env::{CreateOptions, FileClass, FileSystem, GroupAccess, IoContext, IoPurpose};
use archipelago_tier::scheme::Scheme;
use archipelago_tier::stats::{DeviceReport, TierStats};
use archipelago_tier::{Components, DeviceKind, DeviceParts, DeviceSettings, Policy, TieredFs};

const ROOT: &str = "/db";

/// A user's read of a table.
pub(crate) const READ: IoContext = IoContext::new(FileClass::Sst, IoPurpose::ForegroundRead);

/// Parts with which a test opens tiers. No threads run: [`TieredFs::step`] does the background
/// work.
pub(crate) struct World {
    pub(crate) disk: Arc<dyn FileSystem>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) policy: Policy,
    pub(crate) devices: Vec<DeviceSettings>,
    pub(crate) scheme: Option<Scheme>,
}

impl World {
    /// Devices of these capacities in bytes, the fastest first.
    pub(crate) fn new(disk: Arc<dyn FileSystem>, capacities: &[u64]) -> Self {
        let device = |(index, &capacity_bytes): (usize, &u64)| DeviceSettings {
            name: format!("dev{index}"),
            capacity_bytes,
            cache_share: 1.0,
            ..DeviceSettings::new(format!("/dev{index}"), DeviceKind::Directory).creating()
        };
        Self {
            disk,
            clock: Arc::new(ManualClock::new(0)),
            policy: Policy { fast_levels: Some(3), range_bytes: 8192, ..Policy::default() },
            devices: capacities.iter().enumerate().map(device).collect(),
            scheme: None,
        }
    }

    pub(crate) fn open(&self) -> Arc<TieredFs> {
        let parts = |settings: &DeviceSettings| DeviceParts {
            settings: settings.clone(),
            fs: Arc::clone(&self.disk),
            is_local: false,
        };
        let components = Components {
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            spawn: None,
            outside: Arc::new(MemFs::new()),
            policy: self.policy.clone(),
            must_exist: None,
            group_access: GroupAccess::None,
            scheme: self.scheme.clone(),
            seed: Some(1),
            ..Components::default()
        };
        let devices = self.devices.iter().map(parts).collect();
        let tiers = TieredFs::open_over(ROOT, devices, components).unwrap();
        tiers.create_dir_all(Path::new(ROOT)).unwrap();
        tiers
    }

    pub(crate) fn pass(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }
}

pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(ROOT).join(name)
}

/// The context of a table that a compaction writes into `level`.
pub(crate) fn table(level: u8) -> IoContext {
    IoContext::sst(IoPurpose::Compaction { from: level.saturating_sub(1), to: level }, level)
}

/// Bytes that differ from file to file and from place to place.
pub(crate) fn filled(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::with_seed(seed);
    (0..len).map(|_| rng.u8(..)).collect()
}

pub(crate) fn write(fs: &TieredFs, name: &str, level: u8, bytes: &[u8]) {
    let mut file = fs.create(&path(name), table(level), CreateOptions::default()).unwrap();
    file.append(bytes).unwrap();
    file.sync().unwrap();
}

/// The indices of the devices that hold files of the key `what` of the statistics.
pub(crate) fn holders(stats: &TierStats, what: &str) -> Vec<usize> {
    let has = |(_, device): &(usize, &DeviceReport)| device.files.contains_key(what);
    stats.devices.iter().enumerate().filter(has).map(|(index, _)| index).collect()
}
