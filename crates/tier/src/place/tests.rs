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
fn log_and_fast_levels_go_to_the_fastest_device() {
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
fn value_files_go_to_the_capacity_device_like_deep_tables() {
    let values = IoContext::new(FileClass::ValueSst, IoPurpose::Gc);
    let full = device(2);
    assert_eq!(put(values, &[device(50), device(50), device(50)]), (1, Why::Capacity));
    assert_eq!(put(values, &[device(50), full, device(50)]), (2, Why::Full));
    assert_eq!(put(values, &[device(50), full]), (0, Why::Full));
    assert_eq!(put(values, &[device(50)]), (0, Why::Only));
    // These files leave the log its room on the fastest device, as tables do.
    let wanted = DeviceView { log_room: 3 * GIB, ..device(5) };
    assert_eq!(put(values, &[wanted, full, device(3)]).0, 2);
}

#[test]
fn base_level_is_fast_with_dynamic_level_sizes() {
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
fn placement_passes_over_full_and_failing_devices() {
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
fn log_stays_fast_and_tables_leave_it_room() {
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
fn file_avoids_a_device_that_it_would_leave_first() {
    let nearly = DeviceView { deepest: Some(5), ..device(5) };
    assert_eq!(put(table(5), &[device(90), nearly, device(90)]).0, 2);
    assert_eq!(put(table(4), &[device(90), nearly, device(90)]).0, 1);
    assert_eq!(put(table(6), &[device(90), nearly]).0, 1, "there is nobody behind");
}

/// The device of a table of 1 GiB after its level changed to `level`.
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
fn trivial_move_never_moves_a_file_up() {
    use AfterMove::{Goes, Stays};
    let moved = |level, from| moved(level, from, &Heat::UNKNOWN);
    assert_eq!(moved(3, 0), Goes(1));
    assert_eq!(moved(2, 0), Stays);
    assert_eq!(moved(3, 1), Stays);
    assert_eq!(moved(1, 1), Stays);
}

#[test]
fn table_waits_while_no_slower_device_has_room() {
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
fn table_as_hot_as_a_copy_stays_while_there_is_room() {
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
