//! Copies that are dropped for files, and options of writes to a device.

use super::*;
use crate::history::Reason;
use crate::scheme::{DeviceProfile, Point, Scheme};

const KIB: u64 = 1024;

/// Makes foreground reads until the file is hot.
fn read_often(fs: &TieredFs, name: &str, times: u64) {
    let file = fs.open(&path(name), READ, OpenOptions::default()).unwrap();
    (0..times).for_each(|n| file.read_exact_at(n * 20 % 19_000, &mut [0; 100], READ).unwrap());
}

/// Tables of the slow device, the first one hottest, all with copies on the fast device.
fn copied(world: &World) -> Arc<TieredFs> {
    let fs = world.open();
    (0..3).for_each(|n| write(&fs, &format!("{n}.sst"), 5, &filled(n, 20_000)));
    for _ in 0..2 {
        (0..3).for_each(|n| read_often(&fs, &format!("{n}.sst"), 4000 >> n));
        world.pass(500);
        fs.step();
    }
    assert_eq!(fs.stats().devices[0].copies.files, 3);
    fs
}

fn has_copy(fs: &TieredFs, name: &str) -> bool {
    !fs.shared.entry("find", &path(name)).unwrap().inside.lock().copies.is_empty()
}

fn copies_of(fs: &TieredFs) -> [bool; 3] {
    [0, 1, 2].map(|n| has_copy(fs, &format!("{n}.sst")))
}

#[test]
fn growing_table_drops_the_coldest_copies() {
    let world = World::new(Arc::new(MemFs::new()), &[200 * KIB, 1 << 20]);
    let fs = copied(&world);
    let held = fs.open(&path("2.sst"), READ, OpenOptions::default()).unwrap();
    let mut output = fs.create(&path("new.sst"), table(1), CreateOptions::default()).unwrap();
    let reserve = (200.0 * 1024.0 * world.policy.force_below) as u64;
    let mut seen = Vec::new();
    for n in 0..19 {
        output.append(&filled(n, 10_000)).unwrap();
        seen.push(copies_of(&fs));
        let unused = fs.shared.devices[0].unused();
        assert!(unused >= reserve || seen.last() == Some(&[false; 3]), "{unused} at {n}");
    }
    seen.dedup();
    let (all, first) = ([true; 3], [true, false, false]);
    assert_eq!(seen, [all, [true, true, false], first, [false; 3]], "the coldest first");
    assert_eq!(physical(&*world.disk, 2), (4, 0), "their space is free");
    assert!(fs.stats().events.iter().any(|event| event.reason == Reason::RoomForFiles));
    // An open handle reads the original.
    let mut bytes = vec![0; 20_000];
    held.read_exact_at(0, &mut bytes, READ).unwrap();
    assert_eq!(bytes, filled(2, 20_000));
    drop(output);
    assert_eq!(holders(&fs.stats(), "L1"), [0]);
}

#[test]
fn dropped_copy_in_use_counts_as_leaving() {
    let world = World::new(Arc::new(MemFs::new()), &[200 * KIB, 1 << 20]);
    let fs = copied(&world);
    let coldest =
        Arc::clone(&fs.shared.entry("find", &path("2.sst")).unwrap().inside.lock().copies[0]);
    let mut output = fs.create(&path("new.sst"), table(1), CreateOptions::default()).unwrap();
    output.append(&filled(9, 145_000)).unwrap();
    assert_eq!(copies_of(&fs), [true, true, false]);
    assert_eq!(physical(&*world.disk, 2).1, 3, "somebody has it still");
    output.append(&[1]).unwrap();
    assert_eq!(copies_of(&fs), [true, true, false], "what is on its way out counts as gone");
    drop(coldest);
    fs.settle();
    assert_eq!(physical(&*world.disk, 2).1, 2);
    assert_eq!(fs.shared.devices[0].leaving.load(Ordering::Relaxed), 0);
}

#[test]
fn growing_log_leaves_dropping_to_the_control_loop() {
    let world = World::new(Arc::new(MemFs::new()), &[200 * KIB, 1 << 20]);
    let fs = copied(&world);
    let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: None };
    let mut log = fs.create_log(&path("1.log"), context, options).unwrap();
    log.append(&[&filled(7, 150_000)]).unwrap();
    log.finish().unwrap();
    assert_eq!(copies_of(&fs), [true; 3]);
    // The thread of the control loop does this after a wake-up.
    fs.settle();
    assert_eq!(copies_of(&fs), [true, true, false]);
}

#[test]
fn copy_without_room_is_not_begun() {
    let world = World::new(Arc::new(MemFs::new()), &[100 * KIB, 1 << 20]);
    let fs = world.open();
    write(&fs, "hot.sst", 5, &filled(0, 60_000));
    for n in 0..300 {
        read_often(&fs, "hot.sst", n);
    }
    world.pass(500);
    fs.shared.mover.iterate(&fs.shared);
    assert!(fs.shared.queue.has_jobs());
    write(&fs, "new.sst", 1, &filled(1, 80_000));
    fs.settle();
    let stats = fs.stats();
    assert_eq!((stats.devices[0].copies.files, stats.failed_jobs), (0, 0), "{stats}");
    assert_eq!(physical(&*world.disk, 2), (2, 0));
}

#[test]
fn write_length_follows_caller_and_profile_within_bounds() {
    let mut world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 20]);
    let point = |threads, bytes_per_s| Point { threads, bytes_per_s };
    let profile = |name: &str, most| DeviceProfile {
        name: name.to_owned(),
        writes: vec![point(1, 1.0), point(8, most)],
        ..DeviceProfile::default()
    };
    world.scheme = Some(Scheme {
        devices: vec![profile("dev0", 1e300), profile("dev1", 1.0)],
        ..Scheme::of_profile(vec![], &Default::default(), 0)
    });
    let fs = world.open();
    let longest = |index: usize| {
        let device = &fs.shared.devices[index];
        fs.shared.create_options(device, FileClass::Sst, 0).io_bytes_max
    };
    assert_eq!([longest(0), longest(1)], [1 << 20, 16 << 10]);
    assert_eq!([shorter(0, 8), shorter(8, 0), shorter(4, 8), shorter(9, 8)], [8, 8, 4, 8]);
}

#[test]
fn control_loop_wakes_for_removed_files_with_much_room() {
    let world = World::new(Arc::new(MemFs::new()), &[64 * 100 * KIB]);
    let fs = world.open();
    let removed = |names: &[&str], len: usize| {
        names.iter().for_each(|name| write(&fs, name, 0, &filled(1, len)));
        let before = *fs.shared.wake.0.lock();
        names.iter().for_each(|name| fs.remove(&path(name)).unwrap());
        *fs.shared.wake.0.lock() - before
    };
    assert_eq!(removed(&["1.sst", "2.sst", "3.sst"], 20_000), 0, "the next look does it");
    assert_eq!(removed(&["4.sst"], 60_000), 1, "with those before a 64th of what is free");
    fs.settle();
    assert_eq!(physical(&*world.disk, 1), (0, 0));
    assert_eq!(removed(&["5.sst"], 60_000), 0, "they are gone");
}
