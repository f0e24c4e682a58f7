//! Placement of new files: a pure function of a file's context, the scheme and the state of the
//! devices (Keigo §4.2, §4.4).
//!
//! - The log, small bookkeeping files and the levels of the scheme go to the fastest device.
//! - Other levels go to the first of the other devices that has room. A deep level passes over a
//!   device that is about to migrate its own files of that level.
//! - Value files go to these devices as well: they hold most of the bytes of a database, and belong
//!   to no level. Ranges of them that are read often are copied to faster devices.
//! - Tables leave the log as much room on the fastest device as it took recently. The log may also
//!   use the reserve, because on a slower device every write would wait for it.
//! - A device that fails or is full is passed over. If all devices fail or are full, the best of
//!   them is tried nevertheless, so that the caller gets the device's own error.

use archipelago_env::{FileClass, IoContext};

use crate::scheme::depth;

/// The state of a device from which placement decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceView {
    /// Bytes that the device may hold.
    pub capacity: u64,
    /// Bytes that files may still take. Copies do not count as used, because they are dropped for
    /// files.
    pub free: u64,
    /// Whether the device failed or was full recently, or is being emptied, so that placement
    /// avoids it.
    pub avoid: bool,
    /// Deepest level of the files on the device.
    pub deepest: Option<u8>,
    /// Bytes that logs are expected to take on the device.
    pub log_room: u64,
}

/// The reason for the place of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// Every write waits for the write-ahead log.
    Log,
    /// Commits wait for the manifest and other small files.
    Bookkeeping,
    /// The level is one of those that the scheme gives to the fastest device.
    FastLevel,
    /// The level belongs to the slower devices, or the file is a value file.
    Capacity,
    /// A preferred device was full.
    Full,
    /// A preferred device was failing.
    Failing,
    /// There is only one device.
    Only,
}

impl Why {
    /// The reason as text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Bookkeeping => "bookkeeping",
            Self::FastLevel => "fast level",
            Self::Capacity => "capacity",
            Self::Full => "faster device full",
            Self::Failing => "faster device failing",
            Self::Only => "only device",
        }
    }
}

/// The input of [`place`].
#[derive(Clone, Copy, Debug)]
pub struct PlaceInput<'a> {
    /// Class, level and family of the file, and the purpose of its writer.
    pub context: IoContext,
    /// Expected length of the file in bytes. 0 if it is not known.
    pub size_hint_bytes: u64,
    /// Number of levels, by [`depth`], that belong to the fastest device.
    pub fast_levels: u8,
    /// Level that L0 compacts into.
    pub base_level: u8,
    /// Devices, the fastest first.
    pub devices: &'a [DeviceView],
    /// Fraction of a device that tables and copies leave free (`Policy::force_below`).
    pub reserve: f64,
    /// Free fraction below which a device migrates files (`Policy::migrate_below`).
    pub migrate: f64,
}

/// Chooses the device of a file, and gives the reason. `devices` must not be empty.
#[must_use]
pub fn place(input: &PlaceInput<'_>) -> (usize, Why) {
    let (context, devices) = (input.context, input.devices);
    if devices.len() == 1 {
        return (0, Why::Only);
    }
    let (first, why) = wanted(context, input);
    let order = (first..devices.len()).chain(0..first);
    let mut passed = None;
    for index in order.clone() {
        let device = &devices[index];
        let fits = fits(device, input, index + 1 < devices.len() && index > 0);
        match (device.avoid, fits) {
            (false, true) => return (index, passed.unwrap_or(why)),
            (true, _) => passed = passed.or(Some(Why::Failing)),
            (false, false) => passed = passed.or(Some(Why::Full)),
        }
    }
    // No device has room to spare. The one with the most room comes first, and avoided ones last.
    let best = order.max_by_key(|&index| {
        (!devices[index].avoid, devices[index].free, std::cmp::Reverse(index))
    });
    (best.unwrap_or(first), passed.unwrap_or(why))
}

/// The device that the file prefers, and the reason.
fn wanted(context: IoContext, input: &PlaceInput<'_>) -> (usize, Why) {
    let is_fast = |level| depth(level, input.base_level) < input.fast_levels;
    match (context.class, context.level) {
        (FileClass::Sst, Some(level)) if is_fast(level) => (0, Why::FastLevel),
        (class, _) => of_class(class),
    }
}

/// The device that a file of the class prefers if nothing is known of its level, and the reason.
fn of_class(class: FileClass) -> (usize, Why) {
    match class {
        FileClass::Wal => (0, Why::Log),
        FileClass::Manifest | FileClass::Other => (0, Why::Bookkeeping),
        FileClass::Sst | FileClass::ValueSst => (1, Why::Capacity),
    }
}

/// Index of the device that takes most bytes of new files of the class, with `devices` devices.
pub(crate) fn device_of_class(class: FileClass, devices: usize) -> usize {
    of_class(class).0.min(devices.saturating_sub(1))
}

/// Whether the device has room for the file. With `may_pass_on`, a file that would be among the
/// first to leave the device again does not fit.
fn fits(device: &DeviceView, input: &PlaceInput<'_>, may_pass_on: bool) -> bool {
    let part = |share: f64| (device.capacity as f64 * share) as u64;
    let IoContext { class, level, .. } = input.context;
    if !class.is_table() {
        // A file of unknown length needs half of the reserve, so that a full device gets no file
        // that would fail as it grows.
        let needed = match input.size_hint_bytes {
            0 => part(input.reserve / 2.0).max(1),
            known => known,
        };
        return device.free >= needed;
    }
    let Some(left) = device.free.checked_sub(input.size_hint_bytes) else { return false };
    if left < part(input.reserve).saturating_add(device.log_room) {
        return false;
    }
    // A file of the deepest level would be among the first to leave again.
    let first_to_leave = level.is_some_and(|level| device.deepest.is_some_and(|d| level >= d));
    !(may_pass_on && first_to_leave && left < part(input.migrate))
}

/// The heat of a file on the fastest device, with the thresholds by which it is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heat {
    /// Accesses per byte of the file.
    pub density: f64,
    /// Least accesses per byte from which on a file is copied to the device.
    pub worth: f64,
    /// Whether the file is too young to be judged by its accesses. Reads of the newest records are
    /// served by the block cache at first.
    pub is_young: bool,
    /// Bytes that hot tables of levels beyond the scheme may still take of the device.
    pub room: u64,
}

impl Heat {
    /// The heat of a file without any known accesses.
    pub const UNKNOWN: Self = Self { density: 0.0, worth: f64::INFINITY, is_young: false, room: 0 };

    /// Whether a file of `len` bytes stays on the device. It must have accesses, it must be young
    /// or hot enough to be copied back, and it must have room.
    #[must_use]
    pub fn stays(&self, len: u64) -> bool {
        self.density > 0.0 && (self.is_young || self.density >= self.worth) && self.room >= len
    }
}

/// Decides whether a file on the device `from` moves after its level changed without a rewrite.
///
/// A hot file stays on the fastest device while it has room there. Otherwise it would be read back
/// for a copy, and such tables hold the newest records of a load that appends. A file never moves
/// to a faster device for a change of level: copies serve reads there, and deeper levels only get
/// colder.
#[must_use]
pub fn place_after_move(input: &PlaceInput<'_>, from: usize, heat: &Heat) -> AfterMove {
    let (first, _) = wanted(input.context, input);
    if from >= first || input.devices.len() == 1 {
        return AfterMove::Stays;
    }
    if from == 0 && heat.stays(input.size_hint_bytes) {
        return AfterMove::Stays;
    }
    match place(input) {
        (to, _) if to > from => AfterMove::Goes(to),
        _ => AfterMove::Waits,
    }
}

/// The decision of [`place_after_move`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterMove {
    /// The file lies where it belongs, or is hot.
    Stays,
    /// The file moves to the device of this index.
    Goes(usize),
    /// The file belongs on a slower device, but none has room for it now.
    Waits,
}

#[cfg(test)]
mod tests;
