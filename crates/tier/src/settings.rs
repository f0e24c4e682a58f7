//! Settings of tiers: the list of devices, and the policy of moves and copies.
//!
//! An operator gives the list of devices. All other values are measured, adapt by themselves, or
//! keep their defaults.

use std::path::PathBuf;

use archipelago_base::{Error, Result};
use serde::{Deserialize, Serialize};

/// The way in which files of a device are read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A directory. Files go through the page cache, unless the caller asks for direct I/O. The
    /// default.
    #[default]
    Directory,
    /// A directory whose tables are read and written with `O_DIRECT`.
    Direct,
    /// A byte-addressable device (a DAX mount, tmpfs) whose tables are mapped.
    Mapped,
    /// A directory that is slowed down to the device that `spec` describes.
    Emulated,
}

impl std::fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Directory => "directory",
            Self::Direct => "direct",
            Self::Mapped => "mapped",
            Self::Emulated => "emulated",
        })
    }
}

/// One device. Devices are listed by speed, the fastest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceSettings {
    /// Name of the device in reports and placement schemes. It must be unique. Default: `tier0`,
    /// `tier1`, … by the place in the list.
    pub name: String,
    /// Directory of the device's files. Nothing else may lie in it.
    pub path: PathBuf,
    /// Whether the directory is created if it does not exist. Default: no. An open is then refused,
    /// because a missing directory usually means that the device is not mounted.
    pub create: bool,
    /// Way in which files are read and written. Default: `directory`.
    pub kind: DeviceKind,
    /// File that describes an emulated device (TOML, see `docs/guide/emulated-devices.md`). Only
    /// devices of the kind `emulated` have one.
    pub spec: Option<PathBuf>,
    /// Bytes that the tiers may use. Default 0: the bytes that the file system had free at the
    /// open, plus the bytes of the files that lie there already.
    pub capacity_bytes: u64,
    /// Fraction of the capacity that copies of hot files of slower devices may take, 0 to 1. Copies
    /// are dropped as soon as files need their room. Default 1. It has no effect on the last
    /// device.
    pub cache_share: f64,
    /// Number of files that may be written in parallel before the device gets slower. Default 0:
    /// the number of the placement scheme, or else 4 on a mapped device and 16 on others.
    pub writers_max: u32,
}

impl Default for DeviceSettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            path: PathBuf::new(),
            create: false,
            kind: DeviceKind::Directory,
            spec: None,
            capacity_bytes: 0,
            cache_share: 1.0,
            writers_max: 0,
        }
    }
}

impl DeviceSettings {
    /// A device of `kind` in `path`, with defaults for all other settings.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, kind: DeviceKind) -> Self {
        Self { path: path.into(), kind, ..Self::default() }
    }

    /// The same device, whose directory is created if it does not exist.
    #[must_use]
    pub fn creating(self) -> Self {
        Self { create: true, ..self }
    }

    /// Name of the device, or the default name of the device at `place` in the list.
    #[must_use]
    pub fn name_at(&self, place: usize) -> String {
        if self.name.is_empty() { format!("tier{place}") } else { self.name.clone() }
    }
}

/// Largest number of devices of one list.
pub const DEVICES_MAX: usize = 16;

/// Checks a list of devices. Errors: `InvalidArgument`, which names the device and the setting.
pub fn validate(devices: &[DeviceSettings]) -> Result<()> {
    if devices.is_empty() || devices.len() > DEVICES_MAX {
        return Err(Error::invalid(format!(
            "{} devices are given: 1 to {DEVICES_MAX} are possible",
            devices.len()
        )));
    }
    for (place, device) in devices.iter().enumerate() {
        let name = device.name_at(place);
        let refuse = |what: String| Err(Error::invalid(format!("device \"{name}\": {what}")));
        if device.path.as_os_str().is_empty() {
            return refuse("`path` is missing".to_owned());
        }
        if !(0.0..=1.0).contains(&device.cache_share) {
            return refuse(format!("`cache_share` is {}, not within 0 and 1", device.cache_share));
        }
        if (device.kind == DeviceKind::Emulated) != device.spec.is_some() {
            return refuse(
                "kind = \"emulated\" needs a `spec`, and no other kind has one".to_owned(),
            );
        }
        for (other_place, other) in devices.iter().enumerate().take(place) {
            if other.path == device.path {
                return refuse(format!(
                    "its path {} is that of another device too",
                    device.path.display()
                ));
            }
            if other.name_at(other_place) == name {
                return refuse("another device has the same name".to_owned());
            }
        }
    }
    Ok(())
}

/// Thresholds and limits of moves and copies. Only tests and experiments change the defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Free fraction of a device below which files leave for the next device. Default 0.05.
    pub migrate_below: f64,
    /// Free fraction below which files leave, without regard to other writers. Tables and copies
    /// leave this fraction free. Default 0.02.
    pub force_below: f64,
    /// Fraction of the foreground reads that a device could serve, up to which it gets more copies.
    /// Default 0.95.
    pub hit_ratio_target: f64,
    /// Interval of the control loop in milliseconds. Default 500.
    pub interval_ms: u64,
    /// Least time, in milliseconds, until access counts are halved. It is up to thirty times as
    /// long while there are too few reads to distinguish hot ranges of files from others. Default
    /// 10,000.
    pub half_life_ms: u64,
    /// Largest number of threads that move and copy. Default 16.
    pub threads_max: usize,
    /// Whether exactly `threads_max` threads move and copy, without regard to other writers. For
    /// comparisons. Default false.
    pub threads_fixed: bool,
    /// Length, in bytes, of the ranges by which files are counted and copied. Default 0: one 128th
    /// of the file, and at least 4 KiB.
    pub range_bytes: u64,
    /// Whether hot files are copied whole, by range, or as their accesses suggest. Default: as
    /// their accesses suggest.
    pub cache_by: CacheBy,
    /// Whether the scheme adapts to observed writers and sizes. Default true.
    pub online: bool,
    /// Whether flushes and compactions wait for one another if their device takes no more writers.
    /// Default true; false is for comparisons.
    pub in_turn: bool,
    /// Number of levels, by depth, on the fastest device. It replaces the number of the scheme and
    /// of observations. Default: `None`, which keeps that number.
    pub fast_levels: Option<u8>,
}

/// The parts of hot files that are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheBy {
    /// Copies the hottest ranges to the fastest device. Copies whole files there if all of them
    /// fit, or if most of a file is hot. Copies whole files to the devices between the fastest and
    /// the last one.
    #[default]
    Adaptive,
    /// Copies whole files only.
    File,
    /// Copies ranges only.
    Range,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            migrate_below: 0.05,
            force_below: 0.02,
            hit_ratio_target: 0.95,
            interval_ms: 500,
            half_life_ms: 10_000,
            threads_max: 16,
            threads_fixed: false,
            range_bytes: 0,
            cache_by: CacheBy::Adaptive,
            online: true,
            in_turn: true,
            fast_levels: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_lists_are_refused_by_device_and_setting() {
        let device = |path: &str| DeviceSettings::new(path, DeviceKind::Directory);
        validate(&[device("/a"), device("/b")]).unwrap();
        let refused = |devices: &[DeviceSettings], words: &[&str]| {
            let text = validate(devices).unwrap_err().to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        };
        refused(&[], &["0 devices"]);
        refused(&[device("/a"), device("/a")], &["tier1", "/a"]);
        refused(&[device("")], &["tier0", "`path`"]);
        let greedy = DeviceSettings { cache_share: 1.5, name: "x".to_owned(), ..device("/a") };
        refused(&[greedy], &["\"x\"", "`cache_share`", "1.5"]);
        let lost = DeviceSettings { kind: DeviceKind::Emulated, ..device("/a") };
        refused(&[lost], &["`spec`"]);
        let same = DeviceSettings { name: "tier1".to_owned(), ..device("/a") };
        refused(&[same, device("/b")], &["same name"]);
    }
}
