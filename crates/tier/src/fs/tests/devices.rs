//! Devices that are refused, and devices that fail.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;

use archipelago_base::ErrorKind;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};
use archipelago_env::{LogSync, forward_fs, forward_writer};

use super::*;

fn refusal(world: &World, words: &[&str]) -> ErrorKind {
    let error = world.try_open().unwrap_err();
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    error.kind()
}

/// Closed tiers of two devices with a file on each.
fn two_devices() -> World {
    let world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    write(&fs, "fast.sst", 0, &filled(1, 1000));
    write(&fs, "slow.sst", 5, &filled(2, 2000));
    world
}

fn names_below(disk: &dyn FileSystem, dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in disk.list(dir).unwrap() {
        let inner = dir.join(&entry.name);
        names.push(inner.display().to_string());
        if entry.is_dir {
            names.extend(names_below(disk, &inner));
        }
    }
    names
}

#[test]
fn missing_device_is_named_with_its_files() {
    let mut world = two_devices();
    let before = names_below(&*world.disk, Path::new("/"));
    let devices = world.devices.clone();
    world.devices.truncate(1);
    assert_eq!(refusal(&world, &["\"dev1\"", "/dev1", "L5: 1", "slow.sst"]), ErrorKind::NotFound);
    world.devices = vec![devices[1].clone()];
    assert_eq!(refusal(&world, &["\"dev0\"", "/dev0", "namespace"]), ErrorKind::NotFound);
    // An empty directory in place of the device means that it is not mounted.
    world.devices = vec![
        devices[0].clone(),
        DeviceSettings { path: "/elsewhere".into(), ..devices[1].clone() },
    ];
    assert_eq!(refusal(&world, &["\"dev1\"", "/dev1", "slow.sst"]), ErrorKind::NotFound);
    assert_eq!(names_below(&*world.disk, Path::new("/")), before);
    world.devices = devices;
    let fs = world.open();
    assert_eq!(contents(&fs).len(), 2);
}

#[test]
fn foreign_devices_and_other_versions_are_refused() {
    let mut world = two_devices();
    let other = World::new(Arc::clone(&world.disk), &[]);
    let devices = world.devices.clone();
    // A directory with foreign files.
    world.disk.create_dir_all(Path::new("/home")).unwrap();
    drop(world.disk.create(Path::new("/home/letter"), READ, CreateOptions::default()).unwrap());
    let home =
        DeviceSettings { name: "home".to_owned(), path: "/home".into(), ..devices[0].clone() };
    world.devices.push(home);
    assert_eq!(refusal(&world, &["\"home\"", "letter"]), ErrorKind::InvalidArgument);
    // A device of another namespace.
    let stranger = DeviceSettings {
        name: "stranger".to_owned(),
        path: "/stranger".into(),
        ..devices[0].clone()
    };
    let other = World { devices: vec![stranger.clone()], ..other };
    let parts =
        DeviceParts { settings: stranger.clone(), fs: Arc::clone(&world.disk), is_local: false };
    let components = Components { spawn: None, seed: Some(99), ..Components::default() };
    drop(TieredFs::open_over(ROOT, vec![parts], components).unwrap());
    drop(other);
    world.devices = vec![devices[0].clone(), devices[1].clone(), stranger];
    assert_eq!(refusal(&world, &["\"stranger\"", "different"]), ErrorKind::InvalidArgument);
    // An identity of another format version.
    world.devices = devices;
    let identity = Path::new("/dev1/DEVICE");
    let mut bytes = world.disk.read(identity, READ).unwrap();
    bytes[8] = 9;
    world.disk.write_atomic(identity, &bytes, READ).unwrap();
    assert_eq!(refusal(&world, &["version 9", "/dev1"]), ErrorKind::Unsupported);
}

#[test]
fn devices_may_be_reordered_added_and_mounted_elsewhere() {
    let mut world = two_devices();
    world.devices.reverse();
    world.devices.push(DeviceSettings {
        name: "third".to_owned(),
        path: "/third".into(),
        ..world.devices[0].clone()
    });
    let fs = world.open();
    assert_eq!(contents(&fs).len(), 2);
    write(&fs, "new.sst", 0, &filled(3, 100));
    assert_eq!(holders(&fs.stats(), "L0"), [0, 1], "the new one on what is fastest now");
    drop(fs);
    world.devices.swap(1, 2);
    assert_eq!(contents(&world.open()).len(), 3);
}

#[test]
fn full_or_failing_device_is_passed_over() {
    let disk = FaultFs::new(Arc::new(MemFs::new()), 1);
    let world = World::new(Arc::new(disk.clone()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    for fault in [Fault::NoSpace, Fault::Io] {
        disk.add(Rule::on(Operation::Create).path("/dev0/files").fault(fault));
        write(&fs, &format!("{fault:?}.sst"), 0, &filled(1, 1000));
        assert_eq!(holders(&fs.stats(), "L0"), [1]);
        disk.clear();
    }
    // The device fills while a file is written. That write fails, and the next file goes to another
    // device.
    world.pass(1000);
    disk.add(Rule::on(Operation::Append).path("/dev0/files").fault(Fault::NoSpace));
    let mut file = fs.create(&path("2.sst"), table(0), CreateOptions::default()).unwrap();
    assert!(file.append(&filled(2, 1000)).unwrap_err().is_no_space());
    drop(file);
    fs.remove(&path("2.sst")).unwrap();
    write(&fs, "2.sst", 0, &filled(2, 1000));
    disk.clear();
    assert_eq!(fs.read(&path("2.sst"), READ).unwrap(), filled(2, 1000));
    world.pass(1000);
    write(&fs, "3.sst", 0, &filled(3, 1000));
    assert_eq!(holders(&fs.stats(), "L0"), [0, 1], "it is used again");
}

/// Makes foreground reads of 30,000 bytes, so that a copy is wanted.
fn read_often(fs: &TieredFs, name: &str) {
    let file = fs.open(&path(name), READ, OpenOptions::default()).unwrap();
    for at in 0..100 {
        file.read_exact_at(at * 290, &mut [0; 100], READ).unwrap();
    }
}

#[test]
fn lost_device_fails_only_reads_without_a_copy() {
    let disk = FaultFs::new(Arc::new(MemFs::new()), 1);
    let world = World::new(Arc::new(disk.clone()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    let (hot, cold, fast) = (filled(1, 30_000), filled(2, 30_000), filled(3, 30_000));
    write(&fs, "hot.sst", 5, &hot);
    write(&fs, "cold.sst", 5, &cold);
    write(&fs, "fast.sst", 0, &fast);
    read_often(&fs, "hot.sst");
    world.pass(500);
    fs.step();
    disk.add(Rule::on_any(&Operation::ALL).path("/dev1"));
    assert_eq!(fs.read(&path("hot.sst"), READ).unwrap(), hot, "the copy serves");
    assert_eq!(fs.read(&path("fast.sst"), READ).unwrap(), fast);
    for _ in 0..4 {
        let error = fs.read(&path("cold.sst"), READ).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    }
    let stats = fs.stats();
    assert!(stats.devices[1].failing && stats.devices[1].errors >= 3, "{stats}");
    write(&fs, "new.sst", 5, &filled(4, 1000));
    assert_eq!(fs.read(&path("new.sst"), READ).unwrap(), filled(4, 1000));
    disk.clear();
    assert_eq!(fs.read(&path("cold.sst"), READ).unwrap(), cold, "it came back");
}

#[test]
fn failed_move_leaves_the_file_where_it_was() {
    let disk = FaultFs::new(Arc::new(MemFs::new()), 1);
    let world = World::new(Arc::new(disk.clone()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    let bytes = filled(1, 50_000);
    write(&fs, "1.sst", 1, &bytes);
    let faults = [
        (Operation::Create, Fault::NoSpace),
        (Operation::Append, Fault::Io),
        (Operation::Sync, Fault::Io),
        (Operation::Read, Fault::FlipByte),
        (Operation::SyncDir, Fault::Io),
    ];
    for (operation, fault) in faults {
        disk.add(Rule::on(operation).path("/dev1").fault(fault));
        fs.reassign(&path("1.sst"), table(5));
        fs.settle();
        disk.clear();
        assert_eq!(fs.stats().devices[1].files.len(), 0, "{operation:?}");
        assert_eq!(fs.read(&path("1.sst"), READ).unwrap(), bytes);
        world.pass(120_000);
    }
    assert_eq!(fs.stats().failed_jobs, faults.len() as u64);
    // The level does not change again. A later iteration moves the file.
    fs.step();
    assert_eq!(holders(&fs.stats(), "L5"), [1]);
    assert_eq!(fs.read(&path("1.sst"), READ).unwrap(), bytes);
    assert_eq!(physical(&disk, 2), (1, 0));
    world.pass(7_200_000);
    let moved = fs.stats().devices[0].moved.1;
    fs.step();
    assert_eq!(fs.stats().devices[0].moved.1, moved, "nothing is owed any more");
}

#[test]
fn removal_during_a_job_is_not_charged_to_a_device() {
    let tiers: Arc<std::sync::OnceLock<std::sync::Weak<TieredFs>>> = Arc::default();
    let known = Arc::clone(&tiers);
    let mut world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 20]);
    world.fault = Some(Arc::new(move |step| {
        let Some(fs) = known.get().and_then(std::sync::Weak::upgrade) else { return Ok(()) };
        if matches!(step, "copy.begin" | "move.begin") {
            let names = fs.list(Path::new(ROOT)).unwrap();
            names.iter().for_each(|entry| fs.remove(&path(&entry.name)).unwrap());
        }
        Ok(())
    }));
    let fs = world.open();
    tiers.set(Arc::downgrade(&fs)).unwrap();
    for n in 0..4 {
        write(&fs, &format!("{n}.sst"), 5, &filled(n, 30_000));
        read_often(&fs, &format!("{n}.sst"));
        world.pass(500);
        fs.step();
        assert!(fs.list(Path::new(ROOT)).unwrap().is_empty(), "a copy was begun");
        write(&fs, &format!("{n}.sst"), 0, &filled(n, 1000));
        fs.reassign(&path(&format!("{n}.sst")), table(5));
        fs.settle();
        assert!(fs.list(Path::new(ROOT)).unwrap().is_empty(), "a move was begun");
    }
    let stats = fs.stats();
    assert_eq!((stats.failed_jobs, stats.last_failure.as_ref()), (0, None), "{stats}");
    assert!(stats.devices.iter().all(|device| device.errors == 0 && !device.failing), "{stats}");
    assert_eq!(physical(&*world.disk, 2), (0, 0));
}

#[test]
fn source_read_error_is_not_charged_to_target_device() {
    let disk = FaultFs::new(Arc::new(MemFs::new()), 1);
    let world = World::new(Arc::new(disk.clone()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    for n in 0..6 {
        write(&fs, &format!("{n}.sst"), 5, &filled(n, 30_000));
        read_often(&fs, &format!("{n}.sst"));
    }
    disk.add(Rule::on(Operation::Read).path("/dev1/files"));
    world.pass(500);
    fs.step();
    let stats = fs.stats();
    assert!(stats.failed_jobs >= 3, "{stats}");
    assert!(stats.devices[0].errors == 0 && !stats.devices[0].failing, "{stats}");
    assert!(stats.devices[1].errors >= 3, "{stats}");
    write(&fs, "new.sst", 0, &filled(9, 1000));
    assert_eq!(holders(&fs.stats(), "L0"), [0], "the fast device is used as before");
}

#[test]
fn namespace_survives_a_home_that_fails_for_a_while() {
    let disk = FaultFs::new(Arc::new(MemFs::new()), 1);
    let world = World::new(Arc::new(disk.clone()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    write(&fs, "1.sst", 5, &filled(1, 1000));
    fs.sync_dir(Path::new(ROOT)).unwrap();
    disk.add(
        Rule::on_any(&[Operation::LogAppend, Operation::LogSync, Operation::CreateLog])
            .path("/names/"),
    );
    assert!(fs.create(&path("2.sst"), table(5), CreateOptions::default()).is_err());
    assert!(fs.sync_dir(Path::new(ROOT)).is_err());
    disk.clear();
    write(&fs, "3.sst", 5, &filled(3, 1000));
    fs.sync_dir(Path::new(ROOT)).unwrap();
    let before = contents(&fs);
    assert!(before.contains_key("1.sst") && before.contains_key("3.sst"));
    drop(fs);
    assert_eq!(contents(&world.open()), before);
}

#[test]
fn missing_namespace_is_not_replaced_by_a_new_one() {
    let world = two_devices();
    let names = Path::new("/dev0/names");
    let of = |kind: &str| {
        let entries = world.disk.list(names).unwrap();
        let found = entries.into_iter().find(|entry| entry.name.ends_with(kind)).unwrap();
        names.join(found.name)
    };
    world.disk.remove(&of(".tail")).unwrap();
    assert_eq!(refusal(&world, &["names-", "missing"]), ErrorKind::Corrupt);
    world.disk.remove(&of(".log")).unwrap();
    let before = names_below(&*world.disk, Path::new("/"));
    let words = ["/dev0/names", "2 files", "\"dev0\"", "nothing was changed", "lost+found"];
    assert_eq!(refusal(&world, &words), ErrorKind::Corrupt);
    assert_eq!(names_below(&*world.disk, Path::new("/")), before);
}

#[test]
fn superseded_generation_acknowledges_nothing() {
    let memory = MemFs::new();
    let disk = FaultFs::new(Arc::new(memory.clone()), 1);
    let world = World::new(Arc::new(disk.clone()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    // The second sync of the directory follows the rename.
    disk.add(Rule::on(Operation::SyncDir).path("/dev0/names").nth(2));
    assert!(fs.shared.names.lock().space.renew(true).is_err());
    let bytes = filled(1, 1000);
    write(&fs, "new.sst", 0, &bytes);
    let killed = World::new(Arc::new(memory.kill_clone()), &[1 << 20, 1 << 20]);
    assert_eq!(contents(&killed.open()), BTreeMap::from([("new.sst".to_owned(), bytes)]));
}

#[test]
fn unrecorded_file_exists_or_not_but_is_never_missing() {
    let memory = MemFs::new();
    let disk = FaultFs::new(Arc::new(memory.clone()), 1);
    let world = World::new(Arc::new(disk.clone()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    // The record cannot be appended, and the generation that holds it fails after its rename.
    disk.add(Rule::on(Operation::LogAppend).path("/dev0/names"));
    disk.add(Rule::on(Operation::SyncDir).path("/dev0/names").nth(2));
    assert!(fs.create(&path("1.sst"), table(0), CreateOptions::default()).is_err());
    let killed = World::new(Arc::new(memory.kill_clone()), &[1 << 20, 1 << 20]);
    let found = contents(&killed.open());
    assert!(found.values().all(Vec::is_empty), "{:?}", found.keys());
}

#[test]
fn device_taken_before_its_lock_is_refused() {
    let world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 20]);
    let parts = |settings: &DeviceSettings| DeviceParts {
        settings: settings.clone(),
        fs: Arc::clone(&world.disk),
        is_local: false,
    };
    let seen = discovery::find_devices(world.devices.iter().map(parts).collect()).unwrap();
    write(&world.open(), "1.sst", 0, &filled(1, 100));
    let before = names_below(&*world.disk, Path::new("/"));
    let error = discovery::lock_new_devices(&seen).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains("\"dev0\""), "{error}");
    assert_eq!(names_below(&*world.disk, Path::new("/")), before);
    assert_eq!(contents(&world.open()).len(), 1);
}

/// Starts two threads, and then fails.
#[derive(Debug, Default)]
struct Two(AtomicUsize);

impl Spawn for Two {
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<Joiner> {
        if self.0.fetch_add(1, Ordering::Relaxed) >= 2 {
            return Err(Error::io("start", Path::new(name), std::io::ErrorKind::WouldBlock.into()));
        }
        SystemSpawn.spawn(name, body)
    }
}

#[test]
fn failed_thread_start_releases_the_locks() {
    let world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 20]);
    let parts = |settings: &DeviceSettings| DeviceParts {
        settings: settings.clone(),
        fs: Arc::clone(&world.disk),
        is_local: false,
    };
    let components = Components {
        spawn: Some(Arc::new(Two::default())),
        outside: Arc::new(MemFs::new()),
        ..Components::default()
    };
    let devices = world.devices.iter().map(parts).collect();
    let error = TieredFs::open_over(ROOT, devices, components).unwrap_err();
    assert!(error.to_string().contains("tier-move-1"), "{error}");
    drop(world.open());
}

#[test]
fn dead_device_fails_syncs_only_while_its_new_files_count() {
    let memory = MemFs::new();
    let disk = FaultFs::new(Arc::new(memory.clone()), 1);
    let world = World::new(Arc::new(disk.clone()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    write(&fs, "deep.sst", 5, &filled(1, 1000));
    disk.add(Rule::on_any(&Operation::ALL).path("/dev1"));
    let bytes = filled(2, 1000);
    write(&fs, "fast.sst", 0, &bytes);
    let error = fs.sync_dir(Path::new(ROOT)).unwrap_err();
    assert!(error.to_string().contains("\"dev1\""), "{error}");
    fs.remove(&path("deep.sst")).unwrap();
    fs.sync_dir(Path::new(ROOT)).unwrap();
    let lost = World::new(Arc::new(memory.crash_clone(7)), &[1 << 20, 1 << 20]);
    assert_eq!(contents(&lost.open()), BTreeMap::from([("fast.sst".to_owned(), bytes)]));
}

#[test]
fn names_stay_unsynced_until_a_running_sync_ends() {
    let disk = FaultFs::new(Arc::new(MemFs::new()), 1);
    let world = World::new(Arc::new(disk.clone()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    write(&fs, "1.sst", 0, &filled(1, 1000));
    let device = &fs.shared.devices[0];
    let under_way = device.unsynced();
    assert_eq!(under_way.values().map(BTreeSet::len).sum::<usize>(), 1);
    // A generation that begins in the meantime, because the log failed, must not rely on names that
    // are not durable.
    disk.add(Rule::on(Operation::SyncDir).path("/dev0/files"));
    disk.add(Rule::on(Operation::LogAppend).path("/dev0/names").nth(1));
    let generation = || fs.shared.names.lock().space.moment().generation;
    let before = generation();
    assert!(fs.create(&path("2.sst"), table(0), CreateOptions::default()).is_err());
    assert_eq!(generation(), before);
    disk.clear();
    write(&fs, "2.sst", 0, &filled(2, 1000));
    assert_eq!(generation(), before + 1);
    write(&fs, "3.sst", 0, &filled(3, 1000));
    device.sync_names(&under_way).unwrap();
    assert_eq!(device.unsynced().values().map(BTreeSet::len).sum::<usize>(), 1, "the third");
    fs.sync_dir(Path::new(ROOT)).unwrap();
    assert!(device.unsynced().is_empty());
}

/// A file system with a capacity below `dir`. Open files that were removed take no room.
#[derive(Clone, Debug)]
struct Small {
    inner: Arc<dyn FileSystem>,
    dir: &'static str,
    bytes: u64,
}

impl Small {
    fn check(&self, more: usize) -> Result<()> {
        let entries = self.inner.list(Path::new(self.dir))?;
        let used: u64 = entries.iter().map(|entry| entry.len).sum();
        if used + more as u64 <= self.bytes {
            return Ok(());
        }
        let full = std::io::Error::from_raw_os_error(28);
        Err(Error::io("write", Path::new(self.dir), full))
    }
}

#[derive(Debug)]
struct SmallWriter {
    inner: Box<dyn WritableFile>,
    disk: Small,
}

impl WritableFile for SmallWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.disk.check(data.len())?;
        self.inner.append(data)
    }

    forward_writer!(inner);
}

#[derive(Debug)]
struct SmallLog(Box<dyn LogFile>, Small);

impl LogFile for SmallLog {
    fn append(&mut self, parts: &[&[u8]]) -> Result<u64> {
        self.1.check(parts.iter().map(|part| part.len()).sum())?;
        self.0.append(parts)
    }
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn sync_handle(&self) -> Arc<dyn LogSync> {
        self.0.sync_handle()
    }
    fn finish(&mut self) -> Result<()> {
        self.0.finish()
    }
    fn append_trailer(&mut self, bytes: &[u8]) -> Result<()> {
        self.1.check(bytes.len())?;
        self.0.append_trailer(bytes)
    }

    fn unwritten_bytes(&self) -> u64 {
        self.0.unwritten_bytes()
    }
}

impl FileSystem for Small {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        let inner = self.inner.create(path, context, options)?;
        match path.starts_with(self.dir) {
            true => Ok(Box::new(SmallWriter { inner, disk: self.clone() })),
            false => Ok(inner),
        }
    }
    fn create_log(
        &self,
        path: &Path,
        context: IoContext,
        options: LogOptions,
    ) -> Result<Box<dyn LogFile>> {
        let inner = self.inner.create_log(path, context, options)?;
        match path.starts_with(self.dir) {
            true => Ok(Box::new(SmallLog(inner, self.clone()))),
            false => Ok(inner),
        }
    }

    forward_fs!(inner: open, remove, logs, looks, moves, dirs, host, figures);
}

#[test]
fn full_home_removes_files_with_its_ballast() {
    let (dir, memory) = ("/dev0/names", MemFs::new());
    let open = |bytes: u64| {
        let disk = Small { inner: Arc::new(memory.clone()), dir, bytes };
        let world = World::new(Arc::new(disk), &[1 << 20, 1 << 20]);
        let fs = world.open();
        (world, fs)
    };
    let ballast = || memory.len(Path::new("/dev0/names/ballast")).unwrap_or(0);
    let (_, fs) = open(u64::MAX);
    fs.settle();
    assert_eq!(ballast(), 256 << 10);
    // A generation of this many files is longer, and its ballast grows before it begins.
    for n in 0..3000 {
        let name = format!("{n:0100}.sst");
        drop(fs.create(&path(&name), table(0), CreateOptions::default()).unwrap());
    }
    fs.settle();
    assert_eq!(ballast(), 512 << 10);
    fs.sync_dir(Path::new(ROOT)).unwrap();
    drop(fs);
    // From here on the home device has hardly more room than that.
    let used: u64 = memory.list(Path::new(dir)).unwrap().iter().map(|entry| entry.len).sum();
    let (_, fs) = open(used + (40 << 10));
    fs.settle();
    assert_eq!(ballast(), 512 << 10);
    let generation = || fs.shared.names.lock().space.moment().generation;
    let before = generation();
    for n in 0..1500 {
        fs.remove(&path(&format!("{n:0100}.sst"))).unwrap();
        fs.settle();
    }
    let left = memory.list(Path::new("/dev0/files")).unwrap().len();
    assert_eq!(left, 1500, "the space of the others is free");
    assert_eq!((generation() - before, ballast()), (2, 512 << 10), "used twice and made anew");
}

#[test]
fn generation_that_may_count_keeps_its_tail() {
    let memory = MemFs::new();
    let disk = FaultFs::new(Arc::new(memory.clone()), 1);
    let world = World::new(Arc::new(disk.clone()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    disk.add(Rule::on(Operation::SyncDir).path("/dev0/names").nth(2));
    disk.add(Rule::on(Operation::Create).path("*.log.tmp").nth(2));
    let renew = || fs.shared.names.lock().space.renew(true);
    assert!(renew().is_err() && renew().is_err());
    let killed = World::new(Arc::new(memory.kill_clone()), &[1 << 20, 1 << 20]);
    assert!(contents(&killed.open()).is_empty());
}

#[test]
fn missing_directory_is_created_only_if_settings_say_so() {
    let mut world = two_devices();
    for device in &mut world.devices {
        device.create = false;
    }
    assert_eq!(contents(&world.open()).len(), 2, "what is there needs no making");
    let third = DeviceSettings {
        name: "third".to_owned(),
        path: "/third".into(),
        ..world.devices[0].clone()
    };
    world.devices.push(third);
    let before = names_below(&*world.disk, Path::new("/"));
    let words = ["\"third\"", "/third does not exist", "create = true", "Nothing was changed"];
    assert_eq!(refusal(&world, &words), ErrorKind::NotFound);
    assert_eq!(names_below(&*world.disk, Path::new("/")), before);
    world.disk.create_dir_all(Path::new("/third")).unwrap();
    assert_eq!(contents(&world.open()).len(), 2);
}
