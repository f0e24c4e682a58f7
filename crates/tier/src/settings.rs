//! What an operator says about tiers: a list of devices. The rest is measured or adapts.

use std::path::PathBuf;

use archipelago_base::{Error, Result};
use serde::{Deserialize, Serialize};

/// How files are kept on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A directory, through the page cache unless the caller asks otherwise. The default.
    #[default]
    Directory,
    /// A directory, with `O_DIRECT` for tables.
    Direct,
    /// A byte-addressable device (a DAX mount, tmpfs): tables are mapped.
    Mapped,
    /// A directory that is made as slow as the device that `spec` describes.
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

/// One device. The order of devices is their speed: the fastest comes first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceSettings {
    /// What reports call it, and placement schemes; unique. Default: `tier0`, `tier1`, … by place
    /// in the list.
    pub name: String,
    /// The directory that holds the device's files. It belongs to the tiers alone.
    pub path: PathBuf,
    /// Whether the directory is made if it is missing. Default: no, and an open is refused, because
    /// a directory that is missing is more often a device that is not mounted.
    pub create: bool,
    /// How files are kept. Default: `directory`.
    pub kind: DeviceKind,
    /// The description of an emulated device (TOML, see `docs/guide/emulated-devices.md`).
    pub spec: Option<PathBuf>,
    /// Bytes that may be used. 0, the default: what the file system had free when the device was
    /// opened, and what lies there already.
    pub capacity_bytes: u64,
    /// Which part of the capacity may hold copies of hot files of slower devices; they give way to
    /// files at once. 0 to 1, default 1; without meaning on the last device.
    pub cache_share: f64,
    /// How many files may be written at once before the device gets slower. 0, the default: what
    /// the placement scheme says, or 4 on a mapped device and 16 on others.
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
    /// A device of `kind` in `path`, the rest by default.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, kind: DeviceKind) -> Self {
        Self { path: path.into(), kind, ..Self::default() }
    }

    /// The same device, whose directory is made if it is missing.
    #[must_use]
    pub fn creating(self) -> Self {
        Self { create: true, ..self }
    }

    /// Its name, or the default one of the device at `place` of the list.
    #[must_use]
    pub fn name_at(&self, place: usize) -> String {
        if self.name.is_empty() { format!("tier{place}") } else { self.name.clone() }
    }
}

/// Most devices that a namespace may have.
pub const DEVICES_MAX: usize = 16;

/// Checks a list of devices together. Errors: `InvalidArgument`, which names device and setting.
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
            return refuse("`spec` goes with kind = \"emulated\", and only with it".to_owned());
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

/// When things are moved and copied. The defaults are meant to stay; tests and experiments change
/// them.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Files leave a device for the next one when less than this part of it is free. 0.05.
    pub migrate_below: f64,
    /// Below this part they leave whatever else is being written. Tables and copies leave so much
    /// free. 0.02.
    pub force_below: f64,
    /// Copies are made while less than this part of the foreground reads that a device could
    /// serve is served by it. 0.95.
    pub hit_ratio_target: f64,
    /// How often the hit ratio is looked at and moves are decided, in milliseconds. 500.
    pub interval_ms: u64,
    /// How long at least until an access counts half, in milliseconds. 10,000. Longer, up to thirty
    /// times as long, while less was read than tells parts of files apart.
    pub half_life_ms: u64,
    /// Most threads that copy and move, in all. 16; with `threads_fixed` exactly so many, whatever
    /// the writers: to compare with.
    pub threads_max: usize,
    /// See `threads_max`.
    pub threads_fixed: bool,
    /// Unit of copies of parts of files. 0, the default: a 128th of the file, at least 4 KiB.
    pub range_bytes: u64,
    /// Whether hot files are copied whole, by range, or as their accesses suggest.
    pub cache_by: CacheBy,
    /// Whether the scheme follows what is observed. True.
    pub online: bool,
    /// Whether flushes and compactions wait for one another where a device takes no more writers.
    /// True; false to compare with.
    pub in_turn: bool,
    /// Levels on the fastest device by depth, whatever scheme and observation say. `None`.
    pub fast_levels: Option<u8>,
}

/// See [`Policy::cache_by`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheBy {
    /// On the fastest device the hottest ranges, and whole files where there is room for all of
    /// them, or most of a file is hot; whole files on those between it and the last.
    #[default]
    Adaptive,
    /// Whole files only.
    File,
    /// Ranges only.
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
    fn lists_that_make_no_sense_are_refused_by_device_and_setting() {
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
