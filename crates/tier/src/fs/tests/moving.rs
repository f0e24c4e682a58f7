//! Moves, copies and migration.

use archipelago_env::fault::{FaultFs, Operation, Rule};

use super::*;
use crate::history::Reason;
use crate::settings::CacheBy;

const KIB: u64 = 1 << 10;

#[test]
fn trivial_move_moves_the_file_under_its_readers() {
    let world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    let bytes = filled(7, 50_000);
    write(&fs, "1.sst", 2, &bytes);
    let handle = fs.open(&path("1.sst"), READ, OpenOptions::default()).unwrap();
    fs.reassign(&path("1.sst"), table(2));
    fs.settle();
    assert_eq!(holders(&fs.stats(), "L2"), [0], "it belongs there");
    fs.reassign(&path("1.sst"), table(4));
    fs.settle();
    let stats = fs.stats();
    assert_eq!(holders(&stats, "L4"), [1]);
    assert!(stats.events.iter().any(|event| event.reason == Reason::LevelChanged));
    assert_eq!(stats.devices[0].moved, (0, 1));
    let mut buf = vec![0; bytes.len()];
    handle.read_exact_at(0, &mut buf, READ).unwrap();
    assert_eq!(buf, bytes);
    assert_eq!(physical(&*world.disk, 2), (1, 0), "the source went");
    assert_eq!(stats.devices[0].free, 1 << 20);
    drop(fs);
    drop(handle);
    let fs = world.open();
    assert_eq!(fs.read(&path("1.sst"), READ).unwrap(), bytes);
    assert_eq!(holders(&fs.stats(), "L4"), [1]);
}

/// Makes foreground reads, so that files get hot.
fn heat(fs: &TieredFs, name: &str, times: usize, offsets: impl Fn(usize) -> u64) {
    let file = fs.open(&path(name), READ, OpenOptions::default()).unwrap();
    for index in 0..times {
        file.read_exact_at(offsets(index), &mut [0; 100], READ).unwrap();
    }
}

/// Half of the files of the slow device are hot.
fn hot_world(world: &World) -> (Arc<TieredFs>, Vec<Vec<u8>>) {
    let fs = world.open();
    let files: Vec<_> = (0..6).map(|n| filled(n, 30_000)).collect();
    for (n, bytes) in files.iter().enumerate() {
        write(&fs, &format!("{n}.sst"), 5, bytes);
    }
    for n in 0..3 {
        heat(&fs, &format!("{n}.sst"), 100, |index| index as u64 * 290);
    }
    heat(&fs, "3.sst", 2, |_| 0);
    world.pass(500);
    fs.step();
    (fs, files)
}

#[test]
fn copies_of_hot_files_serve_reads_and_survive_a_restart() {
    let world = World::new(Arc::new(MemFs::new()), &[200 * KIB, 1 << 20]);
    let (fs, files) = hot_world(&world);
    let stats = fs.stats();
    assert!(stats.devices[0].copies.files >= 3, "{stats}");
    let before = stats.devices[1].reads;
    for (n, bytes) in files.iter().enumerate().take(3) {
        assert_eq!(&fs.read(&path(&format!("{n}.sst")), READ).unwrap(), bytes);
    }
    let stats = fs.stats();
    assert_eq!(stats.devices[1].reads, before, "none of them reached the slow device");
    assert!(stats.devices[0].copy_reads >= 3);
    let copies = stats.devices[0].copies;
    drop(fs);
    let fs = world.open();
    let stats = fs.stats();
    assert_eq!(stats.devices[0].copies, copies, "they are there after a restart");
    assert_eq!(fs.read(&path("1.sst"), READ).unwrap(), files[1]);
    assert_eq!(fs.stats().devices[1].reads, 0);
    fs.remove(&path("1.sst")).unwrap();
    fs.settle();
    assert_eq!(fs.stats().devices[0].copies.files, copies.files - 1, "goes with the original");
    assert_eq!(physical(&*world.disk, 2), (5, copies.files as usize - 1));
}

#[test]
fn open_handle_follows_the_copy_and_its_removal() {
    let world = World::new(Arc::new(MemFs::new()), &[200 * KIB, 1 << 20]);
    let fs = world.open();
    let bytes = filled(1, 30_000);
    write(&fs, "1.sst", 5, &bytes);
    let handle = fs.open(&path("1.sst"), READ, OpenOptions::default()).unwrap();
    let read = || {
        let mut buf = vec![0; 1000];
        for at in (0..29_000).step_by(700) {
            handle.read_exact_at(at as u64, &mut buf, READ).unwrap();
            assert_eq!(buf, bytes[at..at + 1000]);
        }
    };
    read();
    world.pass(500);
    fs.step();
    let before = fs.stats().devices[1].reads;
    read();
    assert_eq!(fs.stats().devices[1].reads, before);
    let copies = fs.shared.names.lock().space.state.copies.clone();
    let entry = fs.shared.entry("find", &path("1.sst")).unwrap();
    let copy = Arc::clone(&entry.inside.lock().copies[0]);
    fs.shared.drop_copy(&entry, &copy);
    drop(copy);
    fs.settle();
    assert_eq!(copies.len(), 1);
    assert_eq!(physical(&*world.disk, 2), (1, 0));
    read();
    assert!(fs.stats().devices[1].reads > before);
}

#[test]
fn damaged_copy_is_dropped_and_counted() {
    let world = World::new(Arc::new(MemFs::new()), &[200 * KIB, 1 << 20]);
    let (fs, files) = hot_world(&world);
    let copies = fs.shared.names.lock().space.state.copies.clone();
    drop(fs);
    // One copy gets other data, and one another index.
    let mut damaged = 0;
    for copy in copies.values().filter(|copy| copy.file <= 2 || copy.whole) {
        let file = PathBuf::from(format!("/dev0/cache/{:016x}.copy", copy.number));
        let mut bytes = world.disk.read(&file, READ).unwrap();
        let at = if damaged == 0 { 4100 } else { bytes.len() - 20 };
        bytes[at] ^= 0x40;
        let mut writer = world.disk.create(&file, READ, CreateOptions::default()).unwrap();
        writer.append(&bytes).unwrap();
        writer.sync().unwrap();
        damaged += 1;
    }
    assert!(damaged >= 2);
    let fs = world.open();
    for (n, bytes) in files.iter().enumerate() {
        assert_eq!(&fs.read(&path(&format!("{n}.sst")), READ).unwrap(), bytes);
    }
    let stats = fs.stats();
    assert_eq!(stats.devices[0].copies_made.2, damaged, "{stats}");
    assert_eq!(stats.devices[0].copies.files, copies.len() as u64 - damaged);
}

/// A table of the slow device. The 16 KiB after the first 16 KiB are copied.
fn one_hot_part(cache_by: CacheBy) -> (World, Arc<TieredFs>, Vec<u8>) {
    let mut world = World::new(Arc::new(MemFs::new()), &[200 * KIB, 1 << 20]);
    world.policy.cache_by = cache_by;
    let fs = world.open();
    let bytes = filled(5, 300_000);
    write(&fs, "1.sst", 5, &bytes);
    heat(&fs, "1.sst", 200, |index| 16_384 + (index as u64 * 71) % 16_000);
    world.pass(500);
    fs.step();
    (world, fs, bytes)
}

#[test]
fn hot_ranges_are_copied_if_they_are_a_small_part() {
    let (world, fs, bytes) = one_hot_part(CacheBy::Adaptive);
    let copies = fs.stats().devices[0].copies;
    assert_eq!(copies.files, 1);
    assert!(copies.bytes < 40_000, "{} bytes", copies.bytes);
    let file = fs.open(&path("1.sst"), READ, OpenOptions::default()).unwrap();
    let before = fs.stats().devices[1].reads;
    for at in [16_384usize, 20_000, 30_500] {
        let mut buf = [0; 60];
        file.read_exact_at(at as u64, &mut buf, READ).unwrap();
        assert_eq!(buf, bytes[at..at + 60]);
    }
    assert_eq!(fs.stats().devices[1].reads, before);
    let mut buf = [0; 60];
    file.read_exact_at(32_740, &mut buf, READ).unwrap();
    assert_eq!(buf, bytes[32_740..32_800], "over the end of the range: the original");
    assert_eq!(fs.stats().devices[1].reads, before + 1);
    // Other ranges become hot, and the copies follow.
    for _ in 0..40 {
        heat(&fs, "1.sst", 200, |index| 200_000 + (index as u64 * 71) % 16_000);
        world.pass(500);
        fs.step();
    }
    let before = fs.stats().devices[1].reads;
    heat(&fs, "1.sst", 100, |index| 200_000 + (index as u64 * 71) % 16_000);
    assert!(fs.stats().devices[1].reads < before + 20);
}

#[test]
fn copies_on_two_devices_are_stable() {
    let mut world = World::new(Arc::new(MemFs::new()), &[60 * KIB, 400 * KIB, 1 << 20]);
    world.policy.range_bytes = 4096;
    world.devices[0].writers_max = 1;
    let fs = world.open();
    let names: Vec<_> = (0..3).map(|n| format!("{n}.sst")).collect();
    for (n, name) in names.iter().enumerate() {
        write(&fs, name, 5, &filled(n as u64, 120_000));
        let (entry, kind) = (entry(&fs, name), job_queue::JobKind::Move);
        let reason = Reason::SpaceLow;
        fs.shared.queue.push(job_queue::Job { entry, to: 2, kind, reason });
        fs.settle();
    }
    assert_eq!(holders(&fs.stats(), "L5"), [2]);
    let made = || fs.stats().devices.iter().map(|device| device.copies_made.0).sum::<u64>();
    let mut after_a_while = 0;
    // The first device takes no copies until the second one has its own.
    let mut writer = Some(fs.create(&path("w"), table(0), CreateOptions::default()).unwrap());
    for look in 0..60 {
        // A few blocks of each file have most of the reads.
        for name in &names {
            let file = fs.open(&path(name), READ, OpenOptions::default()).unwrap();
            let blocks = (0..29).chain([3, 10, 20].into_iter().cycle().take(60));
            for block in blocks {
                file.read_exact_at(block * 4096, &mut [0; 4000], READ).unwrap();
            }
        }
        world.pass(500);
        fs.step();
        if look == 20 {
            assert!(fs.stats().devices[1].copies.files >= 2, "{}", fs.stats());
            drop(writer.take());
        }
        if look == 40 {
            after_a_while = made();
        }
    }
    let stats = fs.stats();
    let both = names.iter().filter(|name| entry(&fs, name).inside.lock().copies.len() == 2);
    assert!(both.count() > 0, "parts on the first, all of it on the second: {stats}");
    assert_eq!(stats.devices[1].copies_made.1, 0, "none of them dropped: {stats}");
    assert!(stats.devices[0].copy_reads > 0 && stats.devices[1].copy_reads > 0, "{stats}");
    assert!(made() <= after_a_while + 1, "{} after {after_a_while}: {stats}", made());
    for (n, name) in names.iter().enumerate() {
        assert_eq!(fs.read(&path(name), READ).unwrap(), filled(n as u64, 120_000));
    }
}

fn entry(fs: &TieredFs, name: &str) -> Arc<Entry> {
    fs.shared.entry("find", &path(name)).unwrap()
}

#[test]
fn copies_wait_for_writers_and_are_dropped_for_files() {
    let mut world = World::new(Arc::new(MemFs::new()), &[200 * KIB, 1 << 20]);
    world.devices[0].writers_max = 2;
    let fs = world.open();
    let writers: Vec<_> = (0..2)
        .map(|n| fs.create(&path(&format!("w{n}")), table(0), CreateOptions::default()).unwrap())
        .collect();
    write(&fs, "1.sst", 5, &filled(1, 30_000));
    for _ in 0..3 {
        heat(&fs, "1.sst", 100, |index| index as u64 * 290);
        world.pass(500);
        fs.step();
    }
    assert_eq!(fs.stats().devices[0].copies.files, 0, "the device has its writers");
    drop(writers);
    heat(&fs, "1.sst", 100, |index| index as u64 * 290);
    world.pass(500);
    fs.step();
    assert_eq!(fs.stats().devices[0].copies.files, 1);
    write(&fs, "big.sst", 0, &filled(2, 180_000));
    world.pass(500);
    fs.step();
    let stats = fs.stats();
    assert_eq!(stats.devices[0].copies.files, 0, "{stats}");
    assert!(stats.events.iter().any(|event| event.reason == Reason::RoomForFiles));
}

#[test]
fn full_device_moves_deep_and_idle_files_down() {
    let world = World::new(Arc::new(MemFs::new()), &[1 << 20, 200 * KIB, 1 << 20]);
    let fs = world.open();
    let mut expected = BTreeMap::new();
    for n in 0..30u64 {
        let (name, level) = (format!("{n:02}.sst"), 3 + (n % 3) as u8);
        let bytes = filled(n, 15_000);
        write(&fs, &name, level, &bytes);
        expected.insert(name, bytes);
        world.pass(500);
        fs.step();
        let stats = fs.stats();
        assert!(stats.devices[1].free >= 4 * KIB, "always room for the next: {stats}");
    }
    assert_eq!(contents(&fs), expected);
    let stats = fs.stats();
    assert!(stats.devices[2].moved.0 > 0 && stats.devices[2].files.contains_key("L5"), "{stats}");
    let left = |level: &str| stats.devices[2].files.get(level).map_or(0, |count| count.files);
    assert!(left("L5") > left("L3"), "deep ones left sooner: {stats}");
    let reasons: Vec<_> = stats.events.iter().map(|event| &event.reason).collect();
    assert!(reasons.contains(&&Reason::SpaceLow) || reasons.contains(&&Reason::SpaceForced));
    assert_eq!(physical(&*world.disk, 3).0, 30);
}

/// Moves a file that is removed at a step of the move.
fn removed_at(step: &'static str) {
    let disk: Arc<dyn FileSystem> = Arc::new(MemFs::new());
    let mut world = World::new(Arc::clone(&disk), &[1 << 20, 1 << 20]);
    let tiers: Arc<Mutex<Option<Arc<TieredFs>>>> = Arc::default();
    let shared = Arc::clone(&tiers);
    world.fault = Some(Arc::new(move |name| {
        if name == step {
            let fs = shared.lock().take().unwrap();
            fs.remove(&path("1.sst"))?;
        }
        Ok(())
    }));
    let fs = world.open();
    *tiers.lock() = Some(Arc::clone(&fs));
    write(&fs, "1.sst", 1, &filled(1, 10_000));
    fs.reassign(&path("1.sst"), table(5));
    fs.settle();
    assert!(tiers.lock().is_none(), "it was being moved");
    assert_eq!(contents(&fs).len(), 0);
    fs.settle();
    assert_eq!(physical(&*disk, 2), (0, 0));
    for device in fs.shared.devices.iter() {
        let counted = [&device.files_bytes, &device.cache_bytes, &device.leaving];
        assert_eq!(counted.map(|count| count.load(Ordering::Relaxed)), [0; 3], "{step}");
    }
}

#[test]
fn file_removed_during_its_move_takes_no_room() {
    ["move.copied", "move.before_publish"].into_iter().for_each(removed_at);
}

#[test]
fn move_succeeds_if_a_handle_cannot_follow() {
    let memory: Arc<dyn FileSystem> = Arc::new(MemFs::new());
    let disk = FaultFs::new(Arc::clone(&memory), 1);
    let world = World::new(Arc::new(disk.clone()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    let bytes = filled(1, 10_000);
    write(&fs, "1.sst", 1, &bytes);
    let held = fs.open(&path("1.sst"), READ, OpenOptions::default()).unwrap();
    // The first open reads the target back, and the second one is that of the handle.
    let refused = disk.add(Rule::on(Operation::Open).path("/dev1/files").nth(2));
    fs.reassign(&path("1.sst"), table(5));
    fs.settle();
    assert_eq!(disk.fired_by(refused), 1);
    disk.clear();
    assert_eq!(holders(&fs.stats(), "L5"), [1]);
    let read = |file: &dyn RandomFile| {
        let mut found = vec![0; bytes.len()];
        file.read_exact_at(0, &mut found, READ).unwrap();
        found
    };
    assert!(read(&*held) == bytes, "from the source, which it holds");
    drop(held);
    fs.settle();
    assert_eq!(physical(&*memory, 2), (1, 0));
    assert!(fs.read(&path("1.sst"), READ).unwrap() == bytes);
    drop(fs);
    assert!(world.open().read(&path("1.sst"), READ).unwrap() == bytes);
}

#[test]
fn batch_reads_the_slow_device_only_without_a_copy() {
    let (_world, fs, bytes) = one_hot_part(CacheBy::Range);
    assert_eq!(fs.stats().devices[0].copies.files, 1);
    let file = fs.open(&path("1.sst"), READ, OpenOptions::default()).unwrap();
    let before = fs.stats();
    let offsets = [200_000u64, 16_384, 20_000, 250_000, 30_500];
    let mut bufs = [[0; 60]; 5];
    let mut requests: Vec<(u64, &mut [u8])> =
        offsets.into_iter().zip(bufs.iter_mut().map(|buf| &mut buf[..])).collect();
    file.read_many(&mut requests, READ).unwrap();
    for (at, buf) in offsets.into_iter().zip(bufs) {
        assert_eq!(buf, bytes[at as usize..at as usize + 60]);
    }
    let after = fs.stats();
    let device = |pick: fn(&crate::stats::DeviceReport) -> u64, index: usize| {
        pick(&after.devices[index]) - pick(&before.devices[index])
    };
    assert_eq!(device(|device| device.copy_reads, 0), 3);
    assert_eq!(device(|device| device.foreground_reads, 1), 2);
    assert_eq!(device(|device| device.read_bytes, 1), 120);
}

#[test]
fn reads_into_new_memory_take_the_same_ways() {
    let (_world, fs, bytes) = one_hot_part(CacheBy::Range);
    let file = fs.open(&path("1.sst"), READ, OpenOptions::default()).unwrap();
    let before = fs.stats();
    // A copy has the first one, and the slow device the second one.
    for at in [16_384u64, 200_000] {
        let found = file.read_new(at, 60, READ).unwrap();
        assert_eq!(found, bytes[at as usize..at as usize + 60]);
    }
    let found = file.read_many_new(&[(20_000, 60), (250_000, 60)], READ).unwrap();
    assert_eq!(found, [&bytes[20_000..20_060], &bytes[250_000..250_060]]);
    let after = fs.stats();
    let device = |pick: fn(&crate::stats::DeviceReport) -> u64, index: usize| {
        pick(&after.devices[index]) - pick(&before.devices[index])
    };
    assert_eq!(device(|device| device.copy_reads, 0), 2);
    assert_eq!(device(|device| device.foreground_reads, 1), 2);
    assert_eq!(device(|device| device.read_bytes, 1), 120);
    assert!(file.read_new(bytes.len() as u64, 1, READ).is_err(), "past the end");
}

#[test]
fn facts_list_files_and_events_with_reasons() {
    let world = World::new(Arc::new(MemFs::new()), &[200 * KIB, 1 << 20]);
    let (fs, _) = hot_world(&world);
    fs.reassign(&path("5.sst"), table(6));
    let facts = fs.stats().facts();
    for wanted in
        ["tier0:name=", "tier1_L5:files=5,bytes=150000\n", "tier1_L6:files=1,bytes=30000\n"]
    {
        assert!(facts.contains(wanted), "{wanted}: {facts}");
    }
    let made = fs.stats().devices[0].copies_made.0;
    assert!(facts.contains(&format!("tier0_copies:made={made},dropped=0,damaged=0,")), "{facts}");
    assert!(facts.contains("copied to dev0: the device served too few reads\n"), "{facts}");
    assert!(facts.lines().all(|line| line.split_once(':').is_some()), "{facts}");
}

#[test]
fn facts_name_waits_for_write_slots_as_the_metrics_do() {
    let world = World::new(Arc::new(MemFs::new()), &[200 * KIB, 1 << 20]);
    let (fs, _) = hot_world(&world);
    let facts = fs.stats().facts();
    let line = facts.lines().find(|line| line.starts_with("tier0:")).unwrap();
    let value = |name: &str| {
        let mut fields = line.split(',').filter_map(|field| field.split_once('='));
        fields.find(|field| field.0 == name).map(|field| field.1.to_owned())
    };
    let names = [
        ("turns_waiting", "write_slots_waiting"),
        ("turns_waited", "write_slot_waits"),
        ("turns_waited_ms", "write_slot_wait_ms"),
    ];
    for (old, new) in names {
        assert!(value(new).is_some(), "{new}: {line}");
        assert_eq!(value(old), value(new), "{new}: {line}");
    }
}
