//! Information from compactions: the base level, and the heat that outputs take over from inputs.

use super::*;
use crate::history::Reason;

const KIB: u64 = 1024;

fn read_as(fs: &TieredFs, name: &str, context: IoContext, times: usize) {
    let file = fs.open(&path(name), context, OpenOptions::default()).unwrap();
    let mut buf = vec![0; file.len() as usize];
    (0..times).for_each(|_| file.read_exact_at(0, &mut buf, context).unwrap());
}

#[test]
fn base_level_is_fast_whatever_its_number() {
    let mut world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 20]);
    world.policy.fast_levels = Some(2);
    let fs = world.open();
    let from_l0 = IoContext::sst(IoPurpose::Compaction { from: 0, to: 5 }, 5);
    drop(fs.create(&path("base.sst"), from_l0, CreateOptions::default()).unwrap());
    write(&fs, "below.sst", 6, &filled(1, 1000));
    let placed = |fs: &TieredFs| {
        let stats = fs.stats();
        (stats.base_levels[0].1, holders(&stats, "L5"), holders(&stats, "L6"))
    };
    assert_eq!(placed(&fs), (5, vec![0], vec![1]));
    assert!(fs.stats().to_string().contains("(L5 is the base)"));
    drop(fs);
    // After a restart, the files show the base level.
    let fs = world.open();
    write(&fs, "more.sst", 5, &filled(2, 1000));
    assert_eq!(placed(&fs), (5, vec![0], vec![1]));
}

#[test]
fn column_families_have_base_levels_of_their_own() {
    let mut world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 20]);
    world.policy.fast_levels = Some(2);
    let fs = world.open();
    let make = |name: &str, from: u8, to: u8, family: u32| {
        let context = IoContext::sst(IoPurpose::Compaction { from, to }, to).of_family(family);
        let mut file = fs.create(&path(name), context, CreateOptions::default()).unwrap();
        file.append(&filled(1, 1000)).and_then(|()| file.sync()).unwrap();
        drop(file);
        fs.file_info(&path(name)).unwrap().device
    };
    // Large and small families alternate.
    assert_eq!((make("1.sst", 0, 4, 1), make("2.sst", 0, 6, 2)), (0, 0));
    assert_eq!(make("3.sst", 4, 5, 1), 1, "its second level, whatever the other one did last");
    assert_eq!(make("4.sst", 0, 6, 2), 0, "its first level, although L5 of the other is slow");
    assert_eq!((make("5.sst", 0, 4, 1), make("6.sst", 5, 6, 2)), (0, 0));
    let stats = fs.stats();
    assert_eq!(stats.base_levels, [(Some(1), 4), (Some(2), 6)]);
    let shown = stats.to_string();
    assert!(shown.contains("(the base is L4 of family 1, L6 of family 2)"), "{shown}");

    // A change of level without a rewrite counts for the column family of the file, even if the
    // context names no family.
    fs.reassign(&path("1.sst"), IoContext::sst(IoPurpose::Compaction { from: 4, to: 5 }, 5));
    fs.reassign(&path("2.sst"), IoContext::sst(IoPurpose::Compaction { from: 5, to: 6 }, 6));
    fs.settle();
    let device = |name: &str| fs.file_info(&path(name)).unwrap().device;
    assert_eq!((device("1.sst"), device("2.sst")), (1, 0));
}

#[test]
fn compaction_output_inherits_heat_of_inputs() {
    let mut world = World::new(Arc::new(MemFs::new()), &[200 * KIB, 1 << 20]);
    world.policy.cache_by = crate::settings::CacheBy::File;
    let fs = world.open();
    for (n, name) in ["hot.sst", "cold.sst"].into_iter().enumerate() {
        write(&fs, name, 5, &filled(n as u64, 20_000));
    }
    read_as(&fs, "hot.sst", READ, 300);
    world.pass(500);
    fs.step();
    for (from, to) in [("hot.sst", "hot-2.sst"), ("cold.sst", "cold-2.sst")] {
        let context = table(6);
        let mut output = fs.create(&path(to), context, CreateOptions::default()).unwrap();
        read_as(&fs, from, context, 1);
        output.append(&filled(9, 20_000)).unwrap();
        output.sync().unwrap();
        drop(output);
        fs.remove(&path(from)).unwrap();
    }
    let heat = |name: &str| fs.shared.entry("find", &path(name)).unwrap().accesses.heat();
    assert!((heat("hot-2.sst") - 300.0).abs() < 1.0, "{}", heat("hot-2.sst"));
    assert_eq!(heat("cold-2.sst"), 0.0);
    // Reads of other files miss the fast device, so it wants copies.
    write(&fs, "other.sst", 6, &filled(3, 190_000));
    read_as(&fs, "other.sst", READ, 40);
    world.pass(500);
    fs.step();
    let copies = |name: &str| {
        let entry = fs.shared.entry("find", &path(name)).unwrap();
        entry.inside.lock().copies.len()
    };
    assert_eq!((copies("hot-2.sst"), copies("cold-2.sst")), (1, 0), "it was never read itself");
}

#[test]
fn cold_table_leaves_the_fast_device_once_it_is_old() {
    let mut world = World::new(Arc::new(MemFs::new()), &[100 * KIB, 1 << 20]);
    world.policy.cache_by = crate::settings::CacheBy::File;
    let fs = world.open();
    write(&fs, "l0.sst", 0, &filled(0, 30_000));
    write(&fs, "cold.sst", 2, &filled(1, 50_000));
    write(&fs, "hot.sst", 5, &filled(2, 40_000));
    let look = || {
        read_as(&fs, "hot.sst", READ, 2000);
        world.pass(500);
        fs.step();
        fs.stats()
    };
    let young = look();
    assert_eq!((holders(&young, "L2"), young.devices[0].copies.files), (vec![0], 0));
    world.pass(10_000);
    look();
    let stats = look();
    assert_eq!(holders(&stats, "L2"), [1], "{stats}");
    assert_eq!(holders(&stats, "L0"), [0], "never L0");
    assert_eq!(stats.devices[0].copies.files, 1, "{stats}");
    assert!(stats.events.iter().any(|event| event.reason == Reason::Colder));
    assert_eq!(fs.read(&path("cold.sst"), READ).unwrap(), filled(1, 50_000));
}

#[test]
fn hot_table_stays_fast_when_its_level_changes() {
    let world = World::new(Arc::new(MemFs::new()), &[250 * KIB, 1 << 20]);
    let fs = world.open();
    for (n, name) in ["hot.sst", "warm.sst", "cold.sst"].into_iter().enumerate() {
        write(&fs, name, 2, &filled(n as u64, 40_000));
    }
    write(&fs, "other.sst", 5, &filled(9, 400_000));
    let look = |warm: usize| {
        for (name, times) in [("hot.sst", 2000), ("warm.sst", warm), ("other.sst", 800)] {
            read_as(&fs, name, READ, times);
        }
        world.pass(500);
        fs.step();
    };
    let place = |name: &str| {
        let entry = fs.shared.entry("find", &path(name)).unwrap();
        entry.inside.lock().main.device
    };
    look(10);
    fs.reassign(&path("warm.sst"), table(3));
    fs.settle();
    assert_eq!(place("warm.sst"), 0, "too young to tell");
    world.pass(world.policy.half_life_ms);
    look(10);
    for (name, level) in [("hot.sst", 4), ("warm.sst", 4), ("cold.sst", 3)] {
        fs.reassign(&path(name), table(level));
    }
    fs.settle();
    assert_eq!(["hot.sst", "warm.sst", "cold.sst"].map(place), [0, 1, 1], "{}", fs.stats());
    // The levels of the scheme had 120,000 bytes recently, and may have them again.
    write(&fs, "more.sst", 2, &filled(4, 90_000));
    read_as(&fs, "more.sst", READ, 3000);
    look(10);
    fs.reassign(&path("more.sst"), table(4));
    fs.settle();
    assert_eq!(place("more.sst"), 1, "no room: {}", fs.stats());
    assert_eq!(place("hot.sst"), 0);
    assert_eq!(fs.read(&path("hot.sst"), READ).unwrap(), filled(0, 40_000));
}

#[test]
fn hot_table_leaves_a_device_without_room_for_copies() {
    let mut world = World::new(Arc::new(MemFs::new()), &[250 * KIB, 1 << 20]);
    world.devices[0].cache_share = 0.0;
    let fs = world.open();
    write(&fs, "hot.sst", 2, &filled(1, 40_000));
    read_as(&fs, "hot.sst", READ, 2000);
    world.pass(500);
    fs.step();
    fs.reassign(&path("hot.sst"), table(4));
    fs.settle();
    assert_eq!(holders(&fs.stats(), "L4"), [1], "{}", fs.stats());
}

#[test]
fn heat_survives_a_kill() {
    let disk = MemFs::new();
    let world = World::new(Arc::new(disk.clone()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    write(&fs, "hot.sst", 5, &filled(1, 30_000));
    write(&fs, "cold.sst", 5, &filled(2, 30_000));
    world.pass(500);
    fs.step();
    read_as(&fs, "hot.sst", READ, 50);
    for _ in 0..2 {
        world.pass(300_000);
        fs.step();
    }
    let again = World { disk: Arc::new(disk.kill_clone()), ..world };
    let fs = again.open();
    let heat = |name: &str| fs.shared.entry("find", &path(name)).unwrap().accesses.heat();
    assert!(heat("hot.sst") > 5.0 * (1.0 + heat("cold.sst")), "{}", heat("hot.sst"));
}
