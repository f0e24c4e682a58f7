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
mod tests {
    use archipelago_env::IoPurpose;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn device(free: u64) -> DeviceView {
        let free = free * GIB;
        DeviceView { capacity: 100 * GIB, free, avoid: false, deepest: None, log_room: 0 }
    }

    fn put(context: IoContext, devices: &[DeviceView]) -> (usize, Why) {
        place(&PlaceInput {
            context,
            size_hint_bytes: GIB,
            fast_levels: 3,
            base_level: 1,
            devices,
            reserve: 0.02,
            migrate: 0.05,
        })
    }

    fn table(level: u8) -> IoContext {
        IoContext::sst(IoPurpose::Compaction { from: level.saturating_sub(1), to: level }, level)
    }

    const LOG: IoContext = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);

    #[test]
    fn what_writers_wait_for_is_on_the_fastest_and_the_rest_by_capacity() {
        let devices = [device(50), device(50), device(50)];
        assert_eq!(put(LOG, &devices), (0, Why::Log));
        assert_eq!(put(IoContext::manifest(IoPurpose::Flush), &devices), (0, Why::Bookkeeping));
        assert_eq!(put(table(2), &devices), (0, Why::FastLevel));
        assert_eq!(put(table(3), &devices), (1, Why::Capacity));
        let unknown = IoContext::new(FileClass::Sst, IoPurpose::Ingest);
        assert_eq!(put(unknown, &devices), (1, Why::Capacity));
        assert_eq!(put(LOG, &devices[..1]), (0, Why::Only));
    }

    #[test]
    fn with_dynamic_level_sizes_the_level_below_l0_is_fast_whatever_its_number() {
        let devices = [device(50), device(50)];
        let put = |level, fast_levels| {
            let context = table(level);
            let (reserve, migrate) = (0.02, 0.05);
            let input = PlaceInput {
                context,
                size_hint_bytes: GIB,
                fast_levels,
                base_level: 5,
                devices: &devices,
                reserve,
                migrate,
            };
            place(&input)
        };
        assert_eq!(put(5, 2), (0, Why::FastLevel));
        assert_eq!(put(6, 2), (1, Why::Capacity));
        assert_eq!(put(6, 3), (0, Why::FastLevel));
    }

    #[test]
    fn full_and_failing_devices_are_passed_over_and_slower_ones_come_first() {
        let full = device(2);
        assert_eq!(put(table(0), &[full, device(9), device(9)]), (1, Why::Full));
        assert_eq!(put(table(4), &[device(90), full, device(9)]), (2, Why::Full));
        assert_eq!(put(table(4), &[device(90), full, full]), (0, Why::Full));
        let failing = DeviceView { avoid: true, ..device(90) };
        assert_eq!(put(table(0), &[failing, device(9), device(9)]), (1, Why::Failing));
        assert_eq!(put(table(0), &[failing, full, device(1)]).0, 1, "the most room of the sound");
        assert_eq!(put(table(0), &[failing, failing]).0, 0, "somebody has to try");
    }

    #[test]
    fn the_log_stays_on_the_fastest_device_while_it_fits_and_tables_leave_it_room() {
        let full = device(2);
        assert_eq!(put(table(0), &[full, device(90)]), (1, Why::Full));
        assert_eq!(put(LOG, &[full, device(90)]), (0, Why::Log), "it takes what is kept free");
        let bookkeeping = IoContext::manifest(IoPurpose::Flush);
        assert_eq!(put(bookkeeping, &[full, device(90)]), (0, Why::Bookkeeping));
        assert_eq!(put(LOG, &[device(0), device(90)]), (1, Why::Full));
        let unknown = |free_mib: u64| {
            let device = DeviceView { free: free_mib << 20, ..device(0) };
            let devices = [device, self::device(90)];
            let input = PlaceInput {
                context: LOG,
                size_hint_bytes: 0,
                fast_levels: 3,
                base_level: 1,
                devices: &devices,
                reserve: 0.02,
                migrate: 0.05,
            };
            place(&input).0
        };
        assert_eq!((unknown(1025), unknown(1000)), (0, 1), "it grows from nothing");
        let wanted = DeviceView { log_room: 3 * GIB, ..device(5) };
        assert_eq!(put(table(0), &[wanted, device(90)]), (1, Why::Full));
        assert_eq!(put(LOG, &[wanted, device(90)]), (0, Why::Log));
        let roomier = DeviceView { log_room: 3 * GIB, ..device(6) };
        assert_eq!(put(table(0), &[roomier, device(90)]), (0, Why::FastLevel));
    }

    #[test]
    fn a_file_does_not_go_where_it_would_be_the_first_to_leave() {
        let nearly = DeviceView { deepest: Some(5), ..device(5) };
        assert_eq!(put(table(5), &[device(90), nearly, device(90)]).0, 2);
        assert_eq!(put(table(4), &[device(90), nearly, device(90)]).0, 1);
        assert_eq!(put(table(6), &[device(90), nearly]).0, 1, "there is nobody behind");
    }

    /// Where a table of 1 GiB goes after its move to `level`.
    fn moved(level: u8, from: usize, heat: &Heat) -> AfterMove {
        let input = PlaceInput {
            context: table(level),
            size_hint_bytes: GIB,
            fast_levels: 3,
            base_level: 1,
            devices: &[device(50), device(50)],
            reserve: 0.02,
            migrate: 0.05,
        };
        place_after_move(&input, from, heat)
    }

    #[test]
    fn a_trivial_move_takes_a_file_down_and_never_up() {
        use AfterMove::{Goes, Stays};
        let moved = |level, from| moved(level, from, &Heat::UNKNOWN);
        assert_eq!(moved(3, 0), Goes(1));
        assert_eq!(moved(2, 0), Stays);
        assert_eq!(moved(3, 1), Stays);
        assert_eq!(moved(1, 1), Stays);
    }

    #[test]
    fn a_table_waits_where_it_is_while_nothing_below_takes_it() {
        let full = DeviceView { avoid: true, ..device(50) };
        let input = PlaceInput {
            context: table(3),
            size_hint_bytes: GIB,
            fast_levels: 3,
            base_level: 1,
            devices: &[device(50), full],
            reserve: 0.02,
            migrate: 0.05,
        };
        assert_eq!(place_after_move(&input, 0, &Heat::UNKNOWN), AfterMove::Waits);
    }

    #[test]
    fn what_is_as_hot_as_a_copy_stays_while_hot_tables_have_room() {
        use AfterMove::{Goes, Stays};
        let hot = Heat { density: 0.2, worth: 0.1, is_young: false, room: GIB };
        assert_eq!(moved(3, 0, &hot), Stays);
        assert_eq!(moved(3, 0, &Heat { room: GIB - 1, ..hot }), Goes(1));
        let warm = Heat { density: 0.05, ..hot };
        assert_eq!(moved(3, 0, &warm), Goes(1));
        assert_eq!(moved(3, 0, &Heat { is_young: true, ..warm }), Stays);
        assert_eq!(moved(3, 0, &Heat { is_young: true, density: 0.0, ..warm }), Goes(1));
        let all_fit = Heat { worth: 0.0, ..hot };
        assert_eq!(moved(3, 0, &all_fit), Stays);
        assert_eq!(moved(3, 0, &Heat { density: 0.0, ..all_fit }), Goes(1), "never read");
        assert_eq!(moved(3, 1, &hot), Stays, "it does not come up");
    }
}
