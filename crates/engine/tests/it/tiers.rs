//! A database whose tables lie on two devices: its checkpoint into a directory outside of the
//! tiers, where the levels of its column families lie, and the loss of its log.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{ErrorKind, Result};
use archipelago_engine::db::{Components, Db, ReadOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{DbOptions, WriteOptions};
use archipelago_engine::wal::WriteBatch;
use archipelago_env::local::LocalFs;
use archipelago_env::mem::MemFs;
use archipelago_env::{FileSystem, IoContext, IoPurpose};
use archipelago_tier::{DeviceKind, DeviceParts, DeviceSettings, Policy, TieredFs};

use crate::support::{small_db, small_family, stepped};

const KEYS: u32 = 900;

fn key(n: u32) -> Vec<u8> {
    format!("reef:{n:04}").into_bytes()
}

fn value(n: u32) -> Vec<u8> {
    format!("{n} ").repeat(30).into_bytes()
}

/// Components of the tiers: L0 belongs to the first device, all other levels to the second.
fn tier_components(outside: &Arc<dyn FileSystem>) -> archipelago_tier::Components {
    archipelago_tier::Components {
        spawn: None,
        seed: Some(5),
        outside: Arc::clone(outside),
        policy: Policy { fast_levels: Some(1), ..Policy::default() },
        ..archipelago_tier::Components::default()
    }
}

/// Two devices on a disk in memory; copies may take `cache_share` of the first.
fn two_in_memory(disk: &MemFs, cache_share: f64) -> Vec<DeviceParts> {
    let device = |path: &str| DeviceParts {
        settings: DeviceSettings {
            capacity_bytes: 64 << 20,
            cache_share,
            ..DeviceSettings::new(path, DeviceKind::Directory).creating()
        },
        fs: Arc::new(disk.clone()),
        is_local: false,
    };
    vec![device("/fast"), device("/slow")]
}

fn open(fs: &Arc<dyn FileSystem>, dir: &Path, create_if_missing: bool) -> Db {
    try_open(fs, dir, create_if_missing).unwrap()
}

fn try_open(fs: &Arc<dyn FileSystem>, dir: &Path, create_if_missing: bool) -> Result<Db> {
    let components = Components {
        fs: Arc::clone(fs),
        families: [("default".to_owned(), small_family())].into_iter().collect(),
        ..stepped()
    };
    Db::open_with(dir, DbOptions { create_if_missing, ..small_db() }, components)
}

/// A database with a third of its records in deep tables, a third in L0 and a third in the log.
fn filled(tiers: &Arc<TieredFs>) -> Db {
    let db = open(&(Arc::clone(tiers) as Arc<dyn FileSystem>), Path::new("/tiers/db"), true);
    let family = db.default_family().clone();
    for n in 0..KEYS {
        db.put(&key(n), &value(n)).unwrap();
        if n == KEYS / 3 {
            db.compact_range(&family, &KeyRange::all()).unwrap();
        } else if n == KEYS / 3 * 2 {
            db.flush(&family).unwrap();
        }
    }
    let stats = tiers.stats();
    let has = |device: usize, is_level: fn(&str) -> bool| {
        stats.devices[device].files.keys().any(|what| is_level(what))
    };
    assert!(has(0, |what| what == "L0") && has(0, |what| what == "log"), "{stats}");
    assert!(has(1, |what| what.starts_with('L') && what != "L0"), "{stats}");
    db
}

fn all_of(db: &Db) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut iter = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
    let mut all = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        all.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.next();
    }
    iter.status().unwrap();
    all
}

/// Makes a checkpoint in `copy` on `outside`, and checks that neither database affects the other.
fn check(tiers: &Arc<TieredFs>, outside: &Arc<dyn FileSystem>, copy: &Path) {
    let db = filled(tiers);
    let expected: Vec<_> = (0..KEYS).map(|n| (key(n), value(n))).collect();
    db.checkpoint(copy).unwrap();
    // The tables of the checkpoint are removed here.
    let family = db.default_family().clone();
    for n in 0..KEYS {
        db.delete(&key(n)).unwrap();
        while db.step_background().unwrap() {}
    }
    db.put(b"only", b"here").unwrap();
    db.compact_range(&family, &KeyRange::all()).unwrap();
    tiers.settle();
    let copied = open(outside, copy, false);
    assert!(all_of(&copied) == expected, "the checkpoint has other records");
    assert!(copied.verify(|_, _| ()).unwrap().is_clean());
    copied.put(b"only", b"there").unwrap();
    copied.compact_range(copied.default_family(), &KeyRange::all()).unwrap();
    copied.close().unwrap();
    let one = [(b"only".to_vec(), b"here".to_vec())];
    assert_eq!(all_of(&db), one);
    db.close().unwrap();
    tiers.close().unwrap();
    let copied = open(outside, copy, false);
    assert_eq!(all_of(&copied).len(), KEYS as usize + 1);
    copied.close().unwrap();
}

#[test]
fn checkpoint_of_two_directories_shares_their_tables() {
    let base = tempfile::tempdir().unwrap();
    let device =
        |name: &str| DeviceSettings::new(base.path().join(name), DeviceKind::Directory).creating();
    let devices = [device("fast"), device("slow")];
    let outside: Arc<dyn FileSystem> = LocalFs::shared();
    let open_tiers = || TieredFs::open("/tiers", &devices, tier_components(&outside)).unwrap();
    check(&open_tiers(), &outside, &base.path().join("copy"));
    // Linked, from either device.
    let tiers = open_tiers();
    let db = open(&(Arc::clone(&tiers) as Arc<dyn FileSystem>), Path::new("/tiers/db"), false);
    let family = db.default_family().clone();
    db.put(b"deep", b"1").unwrap();
    db.compact_range(&family, &KeyRange::all()).unwrap();
    db.put(b"shallow", b"2").unwrap();
    db.flush(&family).unwrap();
    let copy = base.path().join("second-copy");
    db.checkpoint(&copy).unwrap();
    let tables = outside.list(&copy).unwrap().into_iter().filter(|e| e.name.ends_with(".sst"));
    let links: Vec<_> =
        tables.map(|e| std::fs::metadata(copy.join(e.name)).unwrap().nlink()).collect();
    assert!(links.len() >= 2 && links.iter().all(|&links| links == 2), "{links:?}");
}

#[test]
fn checkpoint_copies_tables_that_cannot_be_linked() {
    let outside: Arc<dyn FileSystem> = Arc::new(MemFs::new());
    let devices = two_in_memory(&MemFs::new(), 1.0);
    let tiers = TieredFs::open_over("/tiers", devices, tier_components(&outside)).unwrap();
    check(&tiers, &outside, &PathBuf::from("/copy"));
}

/// Moves all files of one directory of the disk to another one.
fn move_files(disk: &MemFs, from: &Path, to: &Path) {
    let files = disk.list(from).unwrap();
    assert!(!files.is_empty());
    for file in files {
        disk.rename(&from.join(&file.name), &to.join(&file.name)).unwrap();
    }
}

#[test]
fn lost_log_file_fails_the_open_and_changes_nothing() {
    let disk = MemFs::new();
    let outside: Arc<dyn FileSystem> = Arc::new(MemFs::new());
    let open_tiers = || {
        let devices = two_in_memory(&disk, 0.0);
        TieredFs::open_over("/tiers", devices, tier_components(&outside)).unwrap()
    };
    let dir = Path::new("/tiers/db");
    let pointers = |tiers: &TieredFs| {
        let context = IoContext::manifest(IoPurpose::Recovery);
        ["IDENTITY", "CURRENT"].map(|name| tiers.read(&dir.join(name), context).unwrap())
    };
    let tiers = open_tiers();
    filled(&tiers).close().unwrap();
    let before = pointers(&tiers);
    let found = disk.list(Path::new("/fast")).unwrap();
    let logs = found.iter().find(|entry| entry.name.starts_with("logs-")).unwrap();
    let (logs, away) = (Path::new("/fast").join(&logs.name), Path::new("/away"));
    disk.create_dir_all(away).unwrap();
    move_files(&disk, &logs, away);

    let refuse = |tiers: &Arc<TieredFs>| {
        let fs = Arc::clone(tiers) as Arc<dyn FileSystem>;
        let refused = try_open(&fs, dir, true).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound, "{refused}");
        assert!(pointers(tiers) == before, "the database is no longer the same");
        refused.to_string()
    };
    // Tiers that were open during the loss do not know of it, so the listing itself fails.
    refuse(&tiers);
    tiers.close().unwrap();
    drop(tiers);
    let tiers = open_tiers();
    let refused = refuse(&tiers);
    assert!(refused.contains(".log should lie on device \"tier0\""), "{refused}");
    tiers.close().unwrap();
    drop(tiers);
    move_files(&disk, away, &logs);

    let tiers = open_tiers();
    let db = open(&(Arc::clone(&tiers) as Arc<dyn FileSystem>), dir, true);
    let expected: Vec<_> = (0..KEYS).map(|n| (key(n), value(n))).collect();
    assert!(all_of(&db) == expected, "the database has other records");
    db.close().unwrap();
}

#[test]
fn each_family_counts_levels_from_its_own_base() {
    let outside: Arc<dyn FileSystem> = Arc::new(MemFs::new());
    let mut components = tier_components(&outside);
    components.policy.fast_levels = Some(2);
    let devices = two_in_memory(&MemFs::new(), 0.0);
    let tiers = TieredFs::open_over("/tiers", devices, components).unwrap();
    let db = open(&(Arc::clone(&tiers) as Arc<dyn FileSystem>), Path::new("/tiers/db"), true);
    let large = db.default_family().clone();
    let small = db.create_family("small", small_family()).unwrap();
    let mut rng = fastrand::Rng::with_seed(3);
    let mut noise = [0; 300];
    for n in 0..20_000 {
        rng.fill(&mut noise);
        let mut batch = WriteBatch::new();
        batch.put_cf(large.id(), &key(rng.u32(..9000)), &noise);
        if n % 100 == 0 {
            batch.put_cf(small.id(), &key(n), b"small");
        }
        db.write(&batch, &WriteOptions::default()).unwrap();
        if n % 500 == 0 {
            db.flush(&small).unwrap();
        }
        while db.step_background().unwrap() {}
    }
    db.compact_range(&small, &KeyRange::all()).unwrap();
    tiers.settle();
    let stats = tiers.stats();
    let base = |family: u32| {
        let mut known = stats.base_levels.iter();
        known.find(|(of, _)| *of == Some(family)).unwrap_or_else(|| panic!("{stats}")).1
    };
    assert!(base(0) < 6 && base(1) == 6, "{stats}");
    let bytes = |device: usize, level: u8| {
        let files = stats.devices[device].files.get(&format!("L{level}"));
        files.map_or(0, |found| found.bytes)
    };
    assert!((1..64 << 10).contains(&bytes(0, 6)), "the small one's: {stats}");
    assert!(bytes(1, 6) > 1 << 20, "the large one's: {stats}");
    for level in base(0) + 1..6 {
        assert_eq!(bytes(0, level), 0, "{stats}");
    }
    db.close().unwrap();
}
