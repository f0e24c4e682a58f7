//! Files that their device lost, with a whole copy on another device and without one.

use super::*;
use crate::settings::CacheBy;

const KIB: u64 = 1024;

/// A table of the slow device, with a whole copy on the fast one, that vanishes from the slow
/// device. Returns its bytes.
fn with_a_lost_table(disk: &MemFs) -> (World, Vec<u8>) {
    let mut world = World::new(Arc::new(disk.clone()), &[100 * KIB, 1 << 20]);
    world.policy.cache_by = CacheBy::File;
    // The slow device is the home, so that the other device may be missing.
    world.devices.reverse();
    drop(world.open());
    world.devices.reverse();
    let (fs, bytes) = (world.open(), filled(1, 20_000));
    write(&fs, "1.sst", 5, &bytes);
    let file = fs.open(&path("1.sst"), READ, OpenOptions::default()).unwrap();
    (0..400).for_each(|n| file.read_exact_at(n * 40, &mut [0; 40], READ).unwrap());
    drop(file);
    world.pass(500);
    fs.step();
    assert_eq!(fs.stats().devices[0].copies.files, 1);
    fs.close().unwrap();
    drop(fs);
    let files = Path::new("/dev1/files");
    for entry in disk.list(files).unwrap() {
        disk.remove(&files.join(entry.name)).unwrap();
    }
    disk.sync_dir(files).unwrap();
    (world, bytes)
}

#[test]
fn lost_file_is_served_and_restored_from_its_copy() {
    let (world, bytes) = with_a_lost_table(&MemFs::new());
    let fs = world.open();
    let expected = BTreeMap::from([("1.sst".to_owned(), bytes)]);
    assert_eq!(contents(&fs), expected, "it is read, and as long as it was");
    // The copy is the only one, so it is not dropped for files.
    let device = &fs.shared.devices[0];
    let capacity = device.capacity.swap(1000, Ordering::Relaxed);
    fs.shared.make_room(0, 0);
    device.capacity.store(capacity, Ordering::Relaxed);
    assert_eq!(fs.stats().devices[0].copies.files, 1);
    let held = fs.open(&path("1.sst"), READ, OpenOptions::default()).unwrap();
    fs.step();
    assert_eq!(holders(&fs.stats(), "L5"), [1]);
    assert_eq!(physical(&*world.disk, 2), (1, 1), "there it is again");
    let stats = fs.stats();
    assert!(stats.events.iter().any(|event| event.reason == crate::Reason::Missing));
    assert_eq!(stats.devices[1].errors, 0, "the device did nothing wrong");
    let entry = fs.shared.entry("look at", &path("1.sst")).unwrap();
    let copy = Arc::clone(&entry.inside.lock().copies[0]);
    assert!(fs.shared.drop_copy(&entry, &copy), "one of several now");
    let mut buf = vec![0; 100];
    held.read_exact_at(19_900, &mut buf, READ).unwrap();
    assert_eq!(buf, expected["1.sst"][19_900..], "who had it open reads what was made");
    drop(held);
    assert_eq!(contents(&fs), expected);
    fs.close().unwrap();
    drop(fs);
    assert_eq!(contents(&world.open()), expected);
}

#[test]
fn lost_log_is_listed_but_not_opened() {
    let disk = MemFs::new();
    let world = World::new(Arc::new(disk.clone()), &[1 << 20, 1 << 20]);
    let (fs, bytes) = (world.open(), filled(1, 5000));
    let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: None };
    let mut log = fs.create_log(&path("1.log"), context, options).unwrap();
    log.append(&[b"one"]).unwrap();
    log.finish().unwrap();
    drop(log);
    write(&fs, "2.sst", 5, &bytes);
    fs.close().unwrap();
    drop(fs);
    let device = Path::new("/dev0");
    let found = disk.list(device).unwrap();
    let logs = found.iter().find(|entry| entry.name.starts_with("logs-")).unwrap();
    let logs = device.join(&logs.name);
    for entry in disk.list(&logs).unwrap() {
        disk.remove(&logs.join(entry.name)).unwrap();
    }
    disk.sync_dir(&logs).unwrap();

    let fs = world.open();
    let listed = fs.list(Path::new(ROOT)).unwrap();
    let listed: Vec<_> = listed.iter().map(|entry| (entry.name.as_str(), entry.len)).collect();
    assert_eq!(listed, [("1.log", 0), ("2.sst", 5000)]);
    assert_eq!(fs.len(&path("1.log")).unwrap(), 0);
    assert_eq!(fs.read(&path("2.sst"), READ).unwrap(), bytes, "the other file is not concerned");
    let refused = fs.open(&path("1.log"), context, OpenOptions::default()).unwrap_err();
    assert_eq!(refused.kind(), archipelago_base::ErrorKind::NotFound);
    let refused = refused.to_string();
    assert!(refused.contains("1.log") && refused.contains("\"dev0\""), "{refused}");
}

#[test]
fn kill_at_any_step_leaves_the_copy_or_the_file() {
    let disk = MemFs::new();
    let (mut world, bytes) = with_a_lost_table(&disk);
    let clones: Arc<Mutex<Vec<(String, MemFs)>>> = Arc::default();
    let told = Arc::clone(&clones);
    world.fault = Some(Arc::new(move |name: &str| {
        let mut clones = told.lock();
        let seed = clones.len() as u64;
        let lost = (0..8).map(|more| disk.crash_clone(8 * seed + more));
        clones.extend(lost.chain([disk.kill_clone()]).map(|found| (name.to_owned(), found)));
        Ok(())
    }));
    // The file is restored, and then its copy is removed with the device.
    let fs = world.open();
    fs.empty_device("dev0", |_| {}).unwrap();
    assert_eq!(physical(&*world.disk, 2), (1, 0));
    assert_eq!(contents(&fs)["1.sst"], bytes);
    drop(fs);
    let clones = std::mem::take(&mut *clones.lock());
    for step in ["move.before_publish", "move.restored", "move.published", "drop.recorded"] {
        assert!(clones.iter().any(|(name, ..)| name == step), "{step}");
    }
    for (name, found) in clones {
        world.disk = Arc::new(found);
        world.fault = None;
        let fs = world.open();
        assert_eq!(contents(&fs)["1.sst"], bytes, "at {name}");
        fs.step();
        assert_eq!(contents(&fs)["1.sst"], bytes, "made after {name}");
        assert_eq!(physical(&*world.disk, 2).0, 1, "at {name}");
    }
}

#[test]
fn copy_stays_until_the_restored_file_is_durable() {
    let disk = MemFs::new();
    let (world, bytes) = with_a_lost_table(&disk);
    let fs = world.open();
    let entry = fs.shared.entry("look at", &path("1.sst")).unwrap();
    fs.shared.mover.move_now(&fs.shared, &entry, 1, crate::Reason::Missing).unwrap();
    let copy = Arc::clone(&entry.inside.lock().copies[0]);
    assert!(fs.shared.drop_copy(&entry, &copy));
    drop(copy);
    fs.shared.empty_trash(false).unwrap();
    assert_eq!(physical(&disk, 2), (1, 0));
    for seed in 0..16 {
        let lost = world.over(&disk.crash_clone(seed));
        assert_eq!(contents(&lost.open())["1.sst"], bytes);
    }
}

#[test]
fn device_with_the_only_copy_is_needed() {
    let (mut world, bytes) = with_a_lost_table(&MemFs::new());
    let all = world.devices.clone();
    world.devices.remove(0);
    let refused = world.try_open().unwrap_err().to_string();
    assert!(refused.contains("\"dev0\"") && refused.contains("1.sst"), "{refused}");
    world.devices = all;
    // After a power loss that undoes the removal, the file exists again.
    let fs = world.open();
    fs.remove(&path("1.sst")).unwrap();
    assert_eq!(physical(&*world.disk, 2), (0, 1), "not yet");
    fs.settle();
    assert_eq!(physical(&*world.disk, 2), (0, 0));
    drop(fs);
    let (world, _) = with_a_lost_table(&MemFs::new());
    assert_eq!(contents(&world.open())["1.sst"], bytes);
}

#[test]
fn damaged_copy_of_a_lost_file_stays() {
    let (world, _) = with_a_lost_table(&MemFs::new());
    let cache = Path::new("/dev0/cache");
    let copy = cache.join(&world.disk.list(cache).unwrap()[0].name);
    let mut bytes = world.disk.read(&copy, READ).unwrap();
    bytes[10_000] ^= 1;
    world.disk.write_atomic(&copy, &bytes, READ).unwrap();
    let fs = world.open();
    let file = fs.open(&path("1.sst"), READ, OpenOptions::default()).unwrap();
    file.read_exact_at(0, &mut [0; 100], READ).unwrap();
    let refused = file.read_exact_at(10_000, &mut [0; 100], READ).unwrap_err();
    assert!(refused.to_string().contains("does not have it"), "{refused}");
    world.pass(500);
    fs.step();
    assert_eq!(physical(&*world.disk, 2), (0, 1), "what is sound of it can still be read");
    assert_eq!(fs.stats().failed_jobs, 1);
}
