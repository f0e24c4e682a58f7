//! Access counts over a restart.

use super::*;
use crate::settings::CacheBy;

const KIB: u64 = 1024;

/// Makes foreground reads of a file of the slow device.
fn read_often(fs: &TieredFs, name: &str, times: usize) {
    let file = fs.open(&path(name), READ, OpenOptions::default()).unwrap();
    (0..times).for_each(|_| file.read_exact_at(0, &mut [0; 100], READ).unwrap());
}

fn heat(fs: &TieredFs, name: &str) -> f64 {
    fs.shared.entry("find", &path(name)).unwrap().accesses.heat()
}

/// Tiers without copies, with two files of which one was read often.
fn without_copies() -> World {
    let mut world = World::new(Arc::new(MemFs::new()), &[100 * KIB, 1 << 20]);
    world.policy.cache_by = CacheBy::File;
    world.devices[0].cache_share = 0.0;
    let fs = world.open();
    for (n, name) in ["hot.sst", "cold.sst"].into_iter().enumerate() {
        write(&fs, name, 5, &filled(n as u64, 60_000));
    }
    read_often(&fs, "hot.sst", 300);
    read_often(&fs, "cold.sst", 10);
    world.pass(500);
    fs.step();
    assert_eq!(fs.stats().devices[0].copies.files, 0);
    fs.close().unwrap();
    world
}

#[test]
fn restart_copies_previously_hot_file_first() {
    let mut world = without_copies();
    world.devices[0].cache_share = 1.0;
    let fs = world.open();
    assert_eq!(["hot.sst", "cold.sst"].map(|name| heat(&fs, name)), [300.0, 10.0]);
    // The fast device has room for one of the files.
    read_often(&fs, "cold.sst", 60);
    world.pass(500);
    fs.step();
    let copies = |name: &str| {
        let entry = fs.shared.entry("find", &path(name)).unwrap();
        entry.inside.lock().copies.len()
    };
    assert_eq!(["hot.sst", "cold.sst"].map(copies), [1, 0], "{}", fs.stats());
    let before = fs.stats().devices[1].reads;
    assert!(fs.read(&path("hot.sst"), READ).unwrap() == filled(0, 60_000));
    assert_eq!(fs.stats().devices[1].reads, before);
}

#[test]
fn accesses_survive_several_restarts() {
    let world = without_copies();
    for _ in 0..3 {
        let fs = world.open();
        assert_eq!(["hot.sst", "cold.sst"].map(|name| heat(&fs, name)), [300.0, 10.0]);
        world.pass(500);
        fs.step();
    }
    let fs = world.open();
    fs.rename(&path("hot.sst"), &path("renamed.sst")).unwrap();
    write(&fs, "hot.sst", 5, &filled(3, 60_000));
    drop(fs);
    let fs = world.open();
    assert_eq!(["renamed.sst", "hot.sst"].map(|name| heat(&fs, name)), [300.0, 0.0]);
}
