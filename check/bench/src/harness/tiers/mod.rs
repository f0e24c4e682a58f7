//! A database on tiers, as `--tiers FILE` describes them, and figures of their devices.
//!
//! Between the engine and the tiers, a `trace::TracedFs` counts the foreground reads of each table.
//! After a benchmark, [`oracle`] computes which tables an oracle would have kept on the faster
//! devices. The runner owns the tiers, and closes them after the database.
//!
//! Cost: an atomic addition per foreground read.

pub mod oracle;
mod plan;
mod trace;

use std::path::Path;
use std::sync::Arc;

use archipelago_base::clock::SystemClock;
use archipelago_base::{Error, Result};
use archipelago_env::device::{DeviceSpec, ThrottledFs};
use archipelago_env::local::LocalFs;
use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose};
use archipelago_tier::{
    Components, DeviceKind, DeviceParts, DeviceSettings, Policy, TierStats, TieredFs,
};
use serde::{Deserialize, Serialize};

pub use self::plan::TierPlan;
use self::trace::{TableReads, TracedFs};

/// Directory of the database within the tiers.
pub(crate) const DATABASE: &str = "tiers:/db";
const ROOT: &str = "tiers:";
/// File that marks a directory as a device of tiers.
const DEVICE_FILE: &str = "DEVICE";

/// Open tiers and their recorders.
#[derive(Debug)]
pub(crate) struct Tiers {
    fs: Arc<TieredFs>,
    /// Recorder of reads, if there is more than one device.
    traced: Option<Arc<TracedFs>>,
    /// The emulated devices, by their index.
    throttled: Vec<Option<Arc<ThrottledFs>>>,
    /// Fraction of a device that stays empty.
    kept_free: f64,
}

/// Work of one device during a benchmark, and its state at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceOutcome {
    /// Name of the device.
    pub name: String,
    /// Number of users' reads that the device served.
    pub foreground_reads: u64,
    /// Bytes that users read from this device.
    pub foreground_bytes: u64,
    /// Bytes that callers, copies and moves wrote.
    pub written_bytes: u64,
    /// Bytes that the device may hold.
    pub capacity_bytes: u64,
    /// Bytes of tables at the end, without copies.
    pub table_bytes: u64,
    /// Bytes of copies on this device.
    pub copy_bytes: u64,
    /// Bytes of logs and of bookkeeping.
    pub other_bytes: u64,
    /// Copies that were made to this device.
    pub copies_made: u64,
    /// Files that were moved to this device.
    pub moved_in: u64,
    /// Fraction of the reads that this device and the faster ones served.
    pub hit_ratio: f64,
    /// Hit ratios of an oracle on the same reads ([`oracle::Oracle`]).
    pub oracle: oracle::Oracle,
}

/// Figures of the tiers during a benchmark.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TierOutcome {
    /// Figures per device, with the fastest device first.
    pub devices: Vec<DeviceOutcome>,
    /// Levels of the fastest device at the end.
    pub fast_levels: u8,
    /// Copies and moves that failed.
    pub failed_jobs: u64,
    /// Fraction of the bytes of all tables that fits on the fastest device. It is the hit ratio if
    /// all tables are equally hot.
    pub room_share: f64,
}

/// Counters at one moment. Figures are differences of two moments.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    stats: TierStats,
    bytes: Vec<u64>,
    tables: TableReads,
}

impl Tiers {
    /// Opens the tiers that `plan` describes.
    pub(crate) fn open(plan: &TierPlan) -> Result<Self> {
        let clock = SystemClock::shared();
        let policy = plan.policy();
        let kept_free = policy.force_below;
        let mut throttled = Vec::new();
        let mut parts = Vec::new();
        for settings in &plan.tiers {
            let emulated = match (settings.kind, &settings.spec) {
                (DeviceKind::Emulated, Some(spec)) => {
                    let spec = read_device(spec)?;
                    Some(ThrottledFs::new(LocalFs::shared(), spec, Arc::clone(&clock)))
                }
                _ => None,
            };
            let fs = match &emulated {
                Some(fs) => Arc::clone(fs) as Arc<dyn FileSystem>,
                None => archipelago_tier::profile::device_file_system(settings, &clock)?,
            };
            throttled.push(emulated);
            // A benchmark removes the files of the benchmark before it and starts with empty tiers.
            let settings = settings.clone().creating();
            parts.push(DeviceParts { settings, fs, is_local: true });
        }
        let components = Components { clock, policy, ..Components::default() };
        let fs = TieredFs::open_over(ROOT, parts, components)?;
        let traced =
            (throttled.len() > 1).then(|| TracedFs::new(Arc::clone(&fs) as Arc<dyn FileSystem>));
        Ok(Self { fs, traced, throttled, kept_free })
    }

    /// File system with which the database opens.
    pub(crate) fn file_system(&self) -> Arc<dyn FileSystem> {
        match &self.traced {
            Some(traced) => Arc::clone(traced) as Arc<dyn FileSystem>,
            None => Arc::clone(&self.fs) as Arc<dyn FileSystem>,
        }
    }

    /// Counters at this moment.
    pub(crate) fn moment(&self) -> Moment {
        let bytes = self.throttled.iter().map(|fs| {
            fs.as_ref().map_or(0, |fs| fs.stats().of(IoPurpose::ForegroundRead).read_bytes)
        });
        let tables = self.traced.as_ref().map_or_else(TableReads::default, |fs| fs.tables());
        Moment { stats: self.fs.stats(), bytes: bytes.collect(), tables }
    }

    /// Figures between two moments.
    pub(crate) fn outcome(&self, from: &Moment, to: &Moment) -> TierOutcome {
        let tables = to.tables.since(&from.tables);
        let reads: Vec<u64> = to
            .stats
            .devices
            .iter()
            .zip(&from.stats.devices)
            .map(|(to, from)| to.foreground_reads - from.foreground_reads)
            .collect();
        let all: u64 = reads.iter().sum();
        let (mut served, mut room) = (0, 0);
        let mut devices = Vec::new();
        for (place, device) in to.stats.devices.iter().enumerate() {
            let before = &from.stats.devices[place];
            let bytes_of = |is_table: bool| {
                let counted = device.files.iter().filter(|(what, _)| is_table == names_table(what));
                counted.map(|(_, count)| count.bytes).sum::<u64>()
            };
            let (table_bytes, other_bytes) = (bytes_of(true), bytes_of(false));
            let kept = (device.capacity as f64 * (1.0 - self.kept_free)) as u64;
            served += reads[place];
            room += kept.saturating_sub(other_bytes);
            devices.push(DeviceOutcome {
                name: device.name.clone(),
                foreground_reads: reads[place],
                foreground_bytes: to.bytes[place] - from.bytes[place],
                written_bytes: device.written_bytes + device.moved_bytes + device.copied_bytes
                    - (before.written_bytes + before.moved_bytes + before.copied_bytes),
                capacity_bytes: device.capacity,
                table_bytes,
                copy_bytes: device.copies.bytes,
                other_bytes,
                copies_made: device.copies_made.0 - before.copies_made.0,
                moved_in: device.moved.0 - before.moved.0,
                hit_ratio: if all == 0 { 0.0 } else { served as f64 / all as f64 },
                oracle: oracle::best(&tables.tables, room, tables.seconds),
            });
        }
        let table_bytes: u64 = devices.iter().map(|device| device.table_bytes).sum();
        let first_room = devices.first().map_or(0.0, |device| {
            device.capacity_bytes as f64 * (1.0 - self.kept_free) - device.other_bytes as f64
        });
        TierOutcome {
            fast_levels: to.stats.fast_levels,
            failed_jobs: to.stats.failed_jobs,
            room_share: (first_room / table_bytes.max(1) as f64).clamp(0.0, 1.0),
            devices,
        }
    }

    /// Text that `archipelago db tiers` would print.
    pub(crate) fn text(&self) -> String {
        self.fs.stats().to_string()
    }

    /// Closes the tiers. The caller has closed the database before.
    pub(crate) fn close(&self) -> Result<()> {
        self.fs.close()
    }
}

/// Whether files that are counted under `what` are tables.
fn names_table(what: &str) -> bool {
    what != "log" && what != "bookkeeping"
}

/// Empties the devices of `plan`. A directory that is something else is refused, all of them
/// untouched.
pub(crate) fn destroy(plan: &TierPlan) -> Result<()> {
    let fs = LocalFs::new();
    let mut mine = Vec::new();
    for DeviceSettings { path, .. } in &plan.tiers {
        if is_empty_or_absent(&fs, path)? {
            continue;
        }
        if !fs.exists(&path.join(DEVICE_FILE))? {
            return Err(Error::invalid(format!(
                "{} is not empty and no device of tiers: nothing was removed",
                path.display()
            )));
        }
        mine.push(path);
    }
    mine.into_iter().try_for_each(|path| fs.remove_dir_all(path))
}

impl TierPlan {
    fn policy(&self) -> Policy {
        let defaults = Policy::default();
        Policy {
            threads_max: self.threads_fixed.unwrap_or(defaults.threads_max),
            threads_fixed: self.threads_fixed.is_some(),
            fast_levels: self.fast_levels,
            in_turn: self.in_turn.unwrap_or(defaults.in_turn),
            ..defaults
        }
    }
}

/// The device that the file at `path` describes. Errors: `InvalidArgument`, which names the field
/// and the fault.
pub fn read_device(path: &Path) -> Result<DeviceSpec> {
    let context = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
    let bytes = LocalFs::new().read(path, context)?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Error::invalid(format!("{} is not UTF-8", path.display())))?;
    DeviceSpec::from_toml(&text)
}

/// Whether the directory `dir` is empty.
fn is_empty_or_absent(fs: &LocalFs, dir: &Path) -> Result<bool> {
    Ok(!fs.exists(dir)? || fs.list(dir)?.is_empty())
}
