//! Schemes that follow the observed writers and sizes.

use super::*;
use crate::history::Reason;
use crate::scheme::{LEVELS, PATIENCE, Scheme};

/// Tiers whose scheme follows observations, and whose fastest device takes `writers_max` writers.
fn follower(writers_max: u32) -> World {
    let mut world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 24]);
    // With write slots, a step on this thread would wait only for itself.
    world.policy = Policy { fast_levels: None, in_turn: false, ..world.policy };
    world.devices[0].writers_max = writers_max;
    world
}

/// Runs iterations of the control loop, half a second apart.
fn look(world: &World, fs: &TieredFs, times: u32) {
    for _ in 0..times {
        world.pass(500);
        fs.step();
    }
}

/// A table of the level that is open for writing.
fn writer(fs: &TieredFs, level: u8) -> Box<dyn WritableFile> {
    let name = path(&format!("writer-{level}.sst"));
    fs.create(&name, table(level), CreateOptions::default()).unwrap()
}

/// Changes of the scheme, with their reasons.
fn changes(fs: &TieredFs) -> Vec<(String, String)> {
    let of_scheme = |event: crate::history::Event| match event.reason {
        Reason::Scheme(why) => Some((event.what, why)),
        _ => None,
    };
    fs.stats().events.into_iter().filter_map(of_scheme).collect()
}

/// The device on which a new table of the level is created.
fn placed(fs: &TieredFs, level: u8) -> usize {
    let name = format!("placed-{level}.sst");
    write(fs, &name, level, b"x");
    let device = fs.shared.entry("find", &path(&name)).unwrap().inside.lock().main.device;
    fs.remove(&path(&name)).unwrap();
    device
}

#[test]
fn scheme_follows_the_number_of_writers() {
    let world = follower(3);
    let fs = world.open();
    assert_eq!((fs.stats().fast_levels, placed(&fs, 2)), (3, 0), "before anything was observed");
    let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: None };
    let log = fs.create_log(&path("1.log"), context, options).unwrap();
    let mut writers: Vec<_> = (0..3).map(|level| writer(&fs, level)).collect();
    look(&world, &fs, PATIENCE - 1);
    assert_eq!((changes(&fs), placed(&fs, 2)), (vec![], 0), "it may not last");
    look(&world, &fs, 1);
    let what = "L0 to the base level belong to dev0".to_owned();
    let why = "log and L0 to the base level on the fastest device; with the level 1 below the base \
               there would be 4.0 writers, and the device takes 3";
    assert_eq!(changes(&fs), [(what, why.to_owned())]);
    assert!(fs.stats().to_string().contains(why), "{}", fs.stats());
    assert!(fs.stats().facts().contains("tier_fast_levels:2\n"), "{}", fs.stats().facts());
    assert_eq!([0, 1, 2, 3].map(|level| placed(&fs, level)), [0, 0, 1, 1]);
    // One writer is left, so the device takes the writers of all levels.
    drop(log);
    writers.truncate(1);
    look(&world, &fs, PATIENCE);
    let all = changes(&fs);
    assert_eq!(all.len(), 2, "{all:?}");
    assert_eq!(all[1].1, "log and L0 to the level 6 below the base on the fastest device");
    assert_eq!((fs.stats().fast_levels, placed(&fs, 6)), (LEVELS as u8, 0));
}

#[test]
fn levels_that_no_longer_fit_leave_the_fastest_device() {
    let world = follower(16);
    let fs = world.open();
    let _writer = writer(&fs, 0);
    look(&world, &fs, PATIENCE);
    assert_eq!((changes(&fs).len(), placed(&fs, 4)), (1, 0), "all of nothing fits");
    // 5 % of the device stay free, so files may take 996,147 bytes.
    for (level, bytes) in [(1, 100_000), (2, 300_000), (3, 400_000), (4, 900_000)] {
        write(&fs, &format!("{level}.sst"), level, &filled(u64::from(level), bytes));
    }
    look(&world, &fs, PATIENCE);
    let all = changes(&fs);
    let why = "log and L0 to the level 2 below the base on the fastest device; with the level 3 \
               below the base there would be 1700000 bytes of 996147";
    assert_eq!(all.last().map(|(_, why)| why.as_str()), Some(why), "{all:?}");
    assert_eq!([3, 4].map(|level| placed(&fs, level)), [0, 1]);
}

#[test]
fn idle_and_read_mostly_intervals_change_no_scheme() {
    let world = follower(1);
    let fs = world.open();
    write(&fs, "read.sst", 5, &filled(1, 10_000));
    look(&world, &fs, 1);
    look(&world, &fs, 2 * PATIENCE);
    assert_eq!(changes(&fs), [], "nobody writes");
    let _writers: Vec<_> = (0..3).map(|level| writer(&fs, level)).collect();
    let read = || {
        let file = fs.open(&path("read.sst"), READ, OpenOptions::default()).unwrap();
        (0..100).for_each(|_| file.read_exact_at(0, &mut [0; 100], READ).unwrap());
    };
    for _ in 0..2 * PATIENCE {
        read();
        look(&world, &fs, 1);
    }
    assert_eq!((changes(&fs), fs.stats().fast_levels), (vec![], 3), "others read");
    look(&world, &fs, PATIENCE);
    assert_eq!((changes(&fs).len(), fs.stats().fast_levels), (1, 2), "now they only write");
}

#[test]
fn scheme_stays_where_following_is_switched_off() {
    let mut world = follower(2);
    world.scheme =
        Some(Scheme { fast_levels: 5, ..Scheme::of_profile(vec![], &Default::default(), 0) });
    let run = |world: &World| {
        let fs = world.open();
        let begun = (fs.stats().fast_levels, placed(&fs, 4));
        let _writers: Vec<_> = (0..3).map(|level| writer(&fs, level)).collect();
        look(world, &fs, 2 * PATIENCE);
        (begun, (fs.stats().fast_levels, placed(&fs, 4)), changes(&fs).len())
    };
    assert_eq!(run(&world), ((5, 0), (2, 1), 1));
    world.policy.online = false;
    assert_eq!(run(&world), ((5, 0), (5, 0), 0));
}
