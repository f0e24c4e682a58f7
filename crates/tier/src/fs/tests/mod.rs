//! Tests of the tiers over disks in memory: placement, moves, copies, refused and failing devices.
//! Power losses and kills at every sync and fault point are compared with a simple map.

mod crashes;
mod devices;
mod dispersion;
mod heat;
mod kept;
mod kinds;
mod lost;
mod make_room;
mod moving;
mod online;
mod removal;
mod unrecorded;
mod values;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::{Clock, ManualClock};
use archipelago_env::mem::MemFs;

use super::*;
use crate::scheme::Scheme;
use crate::settings::{DeviceKind, DeviceSettings, Policy};
use crate::stats::TierStats;

pub(super) const ROOT: &str = "/db";

/// Tiers over directories of one disk in memory, without threads.
pub(super) struct World {
    pub(super) disk: Arc<dyn FileSystem>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) policy: Policy,
    pub(super) devices: Vec<DeviceSettings>,
    pub(super) fault: Option<FaultPoint>,
    pub(super) scheme: Option<Scheme>,
}

impl World {
    /// Devices of these capacities in bytes, the fastest first.
    pub(super) fn new(disk: Arc<dyn FileSystem>, capacities: &[u64]) -> Self {
        let device = |(index, &capacity_bytes): (usize, &u64)| DeviceSettings {
            name: format!("dev{index}"),
            capacity_bytes,
            cache_share: 1.0,
            ..DeviceSettings::new(format!("/dev{index}"), DeviceKind::Directory).creating()
        };
        Self {
            disk,
            clock: Arc::new(ManualClock::new(0)),
            policy: Policy { fast_levels: Some(3), range_bytes: 8192, ..Policy::default() },
            devices: capacities.iter().enumerate().map(device).collect(),
            fault: None,
            scheme: None,
        }
    }

    pub(super) fn try_open(&self) -> Result<Arc<TieredFs>> {
        let parts = |settings: &DeviceSettings| DeviceParts {
            settings: settings.clone(),
            fs: Arc::clone(&self.disk),
            is_local: false,
        };
        let components = Components {
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            spawn: None,
            outside: Arc::new(MemFs::new()),
            policy: self.policy.clone(),
            must_exist: None,
            group_access: GroupAccess::None,
            fault_point: self.fault.clone(),
            scheme: self.scheme.clone(),
            seed: Some(1),
        };
        TieredFs::open_over(ROOT, self.devices.iter().map(parts).collect(), components)
    }

    pub(super) fn open(&self) -> Arc<TieredFs> {
        let tiers = self.try_open().unwrap();
        tiers.create_dir_all(Path::new(ROOT)).unwrap();
        tiers
    }

    /// The same devices over another disk, with a clock of its own and without faults.
    pub(super) fn over(&self, disk: &MemFs) -> Self {
        Self {
            disk: Arc::new(disk.clone()),
            clock: Arc::new(ManualClock::new(0)),
            policy: self.policy.clone(),
            devices: self.devices.clone(),
            fault: None,
            scheme: None,
        }
    }

    pub(super) fn pass(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }
}

pub(super) fn path(name: &str) -> PathBuf {
    Path::new(ROOT).join(name)
}

pub(super) fn table(level: u8) -> IoContext {
    IoContext::sst(IoPurpose::Compaction { from: level.saturating_sub(1), to: level }, level)
}

pub(super) const READ: IoContext = IoContext::new(FileClass::Sst, IoPurpose::ForegroundRead);

/// Bytes that differ from file to file and from place to place.
pub(super) fn filled(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = archipelago_base::random::Rng::with_seed(seed);
    (0..len).map(|_| rng.u8(..)).collect()
}

pub(super) fn write(fs: &TieredFs, name: &str, level: u8, bytes: &[u8]) {
    let mut file = fs.create(&path(name), table(level), CreateOptions::default()).unwrap();
    file.append(bytes).unwrap();
    file.sync().unwrap();
}

/// The indices of the devices that hold files of the key `what` of the statistics.
pub(super) fn holders(stats: &TierStats, what: &str) -> Vec<usize> {
    let has = |(_, device): &(usize, &crate::stats::DeviceReport)| device.files.contains_key(what);
    stats.devices.iter().enumerate().filter(has).map(|(index, _)| index).collect()
}

/// All files below the root.
pub(super) fn contents(fs: &TieredFs) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![String::new()];
    while let Some(dir) = dirs.pop() {
        for entry in fs.list(&path(&dir)).unwrap() {
            let name = format!("{dir}{}", entry.name);
            if entry.is_dir {
                dirs.push(name + "/");
                continue;
            }
            let bytes = fs.read(&path(&name), READ).unwrap();
            assert_eq!(bytes.len() as u64, entry.len);
            found.insert(name, bytes);
        }
    }
    found
}

/// Number of physical files on the disk: originals and copies.
pub(super) fn physical(disk: &dyn FileSystem, devices: usize) -> (usize, usize) {
    let mut counts = (0, 0);
    for index in 0..devices {
        let root = PathBuf::from(format!("/dev{index}"));
        for dir in disk.list(&root).unwrap().into_iter().filter(|entry| entry.is_dir) {
            let files = disk.list(&root.join(&dir.name)).unwrap().len();
            match dir.name.as_str() {
                "files" => counts.0 += files,
                "cache" => counts.1 += files,
                _ => (),
            }
        }
    }
    counts
}

#[test]
fn files_are_placed_by_context_and_found_after_a_restart() {
    let world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    for level in 0..6 {
        write(&fs, &format!("{level}.sst"), level, &filled(u64::from(level), 5000));
    }
    let log_context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: None };
    let mut log = fs.create_log(&path("1.log"), log_context, options).unwrap();
    log.append(&[b"one", b"two"]).unwrap();
    log.sync_handle().sync().unwrap();
    fs.write_atomic(&path("CURRENT"), b"MANIFEST-1", IoContext::manifest(IoPurpose::Flush))
        .unwrap();
    let before = contents(&fs);
    let stats = fs.stats();
    for (what, device) in [("L0", 0), ("L2", 0), ("L3", 1), ("L5", 1), ("log", 0)] {
        assert_eq!(holders(&stats, what), [device], "{what}");
    }
    drop(log);
    drop(fs);
    let fs = world.open();
    assert_eq!(contents(&fs), before);
    assert_eq!(before["1.log"], b"onetwo");
    assert_eq!(holders(&fs.stats(), "L5"), [1]);
    let log_path = path("1.log");
    assert_eq!(fs.log_tail(&log_path, Epoch(1)).unwrap(), None);
}

#[test]
fn names_behave_as_on_any_file_system() {
    let world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    let (one, two, three) = (filled(1, 100), filled(2, 200), filled(3, 300));
    write(&fs, "a", 1, &one);
    write(&fs, "b", 4, &two);
    fs.link(&path("a"), &path("c")).unwrap();
    assert!(fs.link(&path("a"), &path("b")).is_err(), "it exists");
    let old = fs.open(&path("b"), READ, OpenOptions::default()).unwrap();
    fs.rename(&path("a"), &path("b")).unwrap();
    let mut buf = vec![0; 200];
    old.read_exact_at(0, &mut buf, READ).unwrap();
    assert_eq!(buf, two, "who holds the replaced file reads on");
    write(&fs, "c", 0, &three);
    let expected = BTreeMap::from([("b".to_owned(), one.clone()), ("c".to_owned(), three)]);
    assert_eq!(contents(&fs), expected);
    assert_eq!(fs.len(&path("c")).unwrap(), 300);
    for missing in [
        fs.open(&path("x"), READ, OpenOptions::default()).map(|_| ()),
        fs.rename(&path("x"), &path("y")),
        fs.remove(&path("x")),
        fs.list(&path("x")).map(|_| ()),
        fs.sync_dir(&path("x")),
        fs.create(&path("x/y"), READ, CreateOptions::default()).map(|_| ()),
    ] {
        assert_eq!(missing.unwrap_err().kind(), archipelago_base::ErrorKind::NotFound);
    }
    fs.create_dir_all(&path("check/point")).unwrap();
    fs.link(&path("b"), &path("check/point/b")).unwrap();
    fs.remove(&path("b")).unwrap();
    assert_eq!(fs.read(&path("check/point/b"), READ).unwrap(), one);
    drop(old);
    fs.settle();
    assert_eq!(physical(&*world.disk, 2), (2, 0), "b's first and c's first are gone");
    fs.remove_dir_all(&path("check")).unwrap();
    assert!(!fs.exists(&path("check/point")).unwrap());
    fs.settle();
    assert_eq!(physical(&*world.disk, 2), (1, 0));
}

#[test]
fn exclusive_creation_refuses_a_file_and_leaves_nothing() {
    let world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    let exclusive = CreateOptions { exclusive: true, ..CreateOptions::default() };
    let refused = |name: &str| {
        let error = fs.create(&path(name), table(1), exclusive).unwrap_err();
        assert_eq!(error.io_kind(), Some(std::io::ErrorKind::AlreadyExists), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    };
    let mut file = fs.create(&path("1.sst"), table(1), exclusive).unwrap();
    refused("1.sst");
    file.append(b"the first").unwrap();
    file.sync().unwrap();
    drop(file);
    refused("1.sst");
    assert_eq!(physical(&*world.disk, 2), (1, 0), "the refused ones have no physical file");
    assert_eq!(contents(&fs), BTreeMap::from([("1.sst".to_owned(), b"the first".to_vec())]));
    fs.remove(&path("1.sst")).unwrap();
    drop(fs.create(&path("1.sst"), table(1), exclusive).unwrap());
}

#[test]
fn one_of_many_exclusive_creations_succeeds() {
    let world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    let options = CreateOptions { exclusive: true, ..CreateOptions::default() };
    for round in 0..50 {
        let name = path(&format!("{round}.sst"));
        let created: Vec<bool> = std::thread::scope(|scope| {
            let create = || fs.create(&name, table(1), options).is_ok();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(create)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(created.iter().filter(|is_created| **is_created).count(), 1, "{created:?}");
    }
    assert_eq!(physical(&*world.disk, 2), (50, 0));
}

#[test]
fn recycled_log_keeps_its_place_under_the_new_name() {
    let world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    let options = |recycle| LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle };
    let mut log = fs.create_log(&path("1.log"), context, options(None)).unwrap();
    log.append(&[&[1; 1000]]).unwrap();
    drop(log);
    let mut log = fs.create_log(&path("2.log"), context, options(Some(path("1.log")))).unwrap();
    log.append(&[&[2; 10]]).unwrap();
    drop(log);
    let mut expected = vec![2; 10];
    expected.resize(1000, 1);
    assert_eq!(contents(&fs), BTreeMap::from([("2.log".to_owned(), expected)]));
}

#[test]
fn log_stays_on_a_fastest_device_full_of_tables() {
    const SEGMENT: usize = 50_000;
    let world = World::new(Arc::new(MemFs::new()), &[1_000_000, 10_000_000]);
    let fs = world.open();
    let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    let log = |name: &str, recycle: Option<&str>| {
        let recycle = recycle.map(path);
        let size_hint_bytes = SEGMENT as u64;
        let options = LogOptions { incarnation: Epoch(1), size_hint_bytes, recycle };
        let mut log = fs.create_log(&path(name), context, options).unwrap();
        log.append(&[&vec![1; SEGMENT]]).unwrap();
        log.finish().unwrap();
    };
    log("1.log", None);
    log("2.log", None);
    world.pass(500);
    fs.step();
    // Tables of the levels of the fastest device, each with a hint of its length.
    for number in 0..20 {
        let options = CreateOptions { size_hint_bytes: 60_000, ..CreateOptions::default() };
        let name = path(&format!("{number}.sst"));
        let mut file = fs.create(&name, table(0), options).unwrap();
        file.append(&filled(number, 60_000)).unwrap();
        file.sync().unwrap();
    }
    assert_eq!(holders(&fs.stats(), "L0"), [0, 1], "tables went where there is room");
    log("3.log", None);
    log("4.log", Some("1.log"));
    log("5.log", Some("2.log"));
    assert_eq!(holders(&fs.stats(), "log"), [0]);
}

#[test]
fn lock_is_exclusive_until_its_guard_is_dropped() {
    let world = World::new(Arc::new(MemFs::new()), &[1 << 20]);
    let fs = world.open();
    let lock = fs.lock(&path("LOCK")).unwrap();
    assert!(fs.exists(&path("LOCK")).unwrap());
    let busy = fs.lock(&path("LOCK")).unwrap_err();
    assert_eq!(busy.kind(), archipelago_base::ErrorKind::Busy);
    drop(lock);
    drop(fs.lock(&path("LOCK")).unwrap());
    let twice = world.try_open().unwrap_err();
    assert_eq!(twice.kind(), archipelago_base::ErrorKind::Busy, "{twice}");
}
