//! Where a new file goes: a pure function of its context, the scheme and the devices' state
//! (Keigo §4.2, §4.4).
//!
//! The log, small bookkeeping files and the levels of the scheme go to the fastest device; other
//! levels to the first of the others that has room. Deep levels pass a device that is about to
//! migrate its own files of that level. Tables leave the log as much room of the fastest device as
//! it took lately, and the log may take what is kept free, too: on a slower device every write
//! would wait for that. A device that fails or is full is passed over; where all are, the best of
//! them is tried all the same, so that the caller gets the device's own error.

use archipelago_env::{FileClass, IoContext};

use crate::scheme::depth;

/// What placement knows of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceView {
    /// Bytes that it may hold.
    pub capacity: u64,
    /// Bytes that files may still take: copies of hot files give way and do not count.
    pub free: u64,
    /// Whether it failed or was full so lately that it is better left alone.
    pub avoid: bool,
    /// The deepest level of which it holds a file.
    pub deepest: Option<u8>,
    /// Bytes that logs are going to take there.
    pub log_room: u64,
}

/// Why a file is where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// The write-ahead log is in every write's way.
    Log,
    /// Manifest and other small files that commits wait for.
    Bookkeeping,
    /// Its level is one of those whose writers the fastest device takes.
    FastLevel,
    /// Its level belongs to the devices of capacity.
    Capacity,
    /// A device before was full.
    Full,
    /// A device before was failing.
    Failing,
    /// There is one device.
    Only,
}

impl Why {
    /// The reason as it is printed.
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

/// What [`place`] decides from.
#[derive(Clone, Copy, Debug)]
pub struct PlaceInput<'a> {
    /// What the file is, and for whom.
    pub context: IoContext,
    /// How large it will be, as far as that is known.
    pub size_hint_bytes: u64,
    /// Levels of a [`depth`] below this one belong to the fastest device.
    pub fast_levels: u8,
    /// The level that L0 compacts into.
    pub base_level: u8,
    /// The devices, fastest first.
    pub devices: &'a [DeviceView],
    /// Part of a device that stays free of its own accord (see `Policy::force_below`).
    pub reserve: f64,
    /// Part below which the device migrates (see `Policy::migrate_below`).
    pub migrate: f64,
}

/// The device for a file, and the reason. `devices` is not empty.
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
    // Nobody has room to spare: the one with the most, if need be one that failed lately.
    let best = order.max_by_key(|&index| {
        (!devices[index].avoid, devices[index].free, std::cmp::Reverse(index))
    });
    (best.unwrap_or(first), passed.unwrap_or(why))
}

/// The first device in the order of a file's wishes.
fn wanted(context: IoContext, input: &PlaceInput<'_>) -> (usize, Why) {
    let is_fast = |level| depth(level, input.base_level) < input.fast_levels;
    match (context.class, context.level) {
        (FileClass::Wal, _) => (0, Why::Log),
        (FileClass::Manifest | FileClass::Other, _) => (0, Why::Bookkeeping),
        (FileClass::Sst, Some(level)) if is_fast(level) => (0, Why::FastLevel),
        (FileClass::Sst, _) => (1, Why::Capacity),
    }
}

fn fits(device: &DeviceView, input: &PlaceInput<'_>, may_pass_on: bool) -> bool {
    let part = |share: f64| (device.capacity as f64 * share) as u64;
    let IoContext { class, level, .. } = input.context;
    if class != FileClass::Sst {
        // Of unknown length: half of what tables keep free, so that a full device gets none that
        // would fail as it grows.
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
    // It would be among the first to leave again.
    let first_to_leave = level.is_some_and(|level| device.deepest.is_some_and(|d| level >= d));
    !(may_pass_on && first_to_leave && left < part(input.migrate))
}

/// How hot a file on the fastest device is, and what that is measured by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heat {
    /// Its accesses per byte.
    pub density: f64,
    /// Those of what would be copied to the device last: what a copy of it would need.
    pub worth: f64,
    /// Whether it was written so lately that its accesses do not tell yet: what is newest is read
    /// from the block cache first.
    pub is_young: bool,
    /// Bytes that hot tables of levels beyond the scheme may still take.
    pub room: u64,
}

impl Heat {
    /// Of a file of which nothing is known.
    pub const UNKNOWN: Self = Self { density: 0.0, worth: f64::INFINITY, is_young: false, room: 0 };

    /// Whether a file of `len` bytes stays: it is read, would be copied back if it left or might
    /// be, and has room.
    #[must_use]
    pub fn stays(&self, len: u64) -> bool {
        self.density > 0.0 && (self.is_young || self.density >= self.worth) && self.room >= len
    }
}

/// Whether a file of `level` on device `from` belongs on another one after its level changed
/// without a rewrite; the device, if so. What is hot stays on the fastest one while there is room:
/// it would be read back for a copy, and the newest records of a load that appends are in such
/// tables. Files do not come back up for this: reading them there is what copies are for, and
/// deeper levels only grow colder.
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

/// What becomes of a file whose level changed without a rewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterMove {
    /// It lies where it belongs, or is hot.
    Stays,
    /// To this device.
    Goes(usize),
    /// Further down, where nothing takes it now.
    Waits,
}

#[cfg(test)]
mod tests;
