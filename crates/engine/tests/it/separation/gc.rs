//! Crash points and faults of jobs that write or collect value files.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::ErrorKind;
use archipelago_base::clock::Clock;
use archipelago_engine::db::{Components, Db};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, Compression};
use archipelago_env::FileSystem;
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};
use parking_lot::Mutex;

use super::admin::flip;
use super::world::{KEYS, Model, World, check_at, key, patiently, step_all, synced, value};
use super::{Separation, audit_at_rest};
use crate::disk::TestDisk;
use crate::support::{over, small_db, small_family};

#[test]
fn recovery_writes_value_files_with_its_tables() {
    let mut world = World::new(|_| ());
    world.fill(0, |_| true);
    for kill in [true, false] {
        let fs = if kill { world.fs.kill_clone() } else { world.fs.crash_clone(1) };
        world.db.sync().unwrap();
        let left = world.on(if kill { fs } else { world.fs.crash_clone(2) });
        left.check();
        let audit = audit_at_rest(&left.db);
        assert!(audit.references > 0 && !audit.live.is_empty(), "{audit:?}");
        left.finish();
    }
}

#[test]
fn resume_writes_value_files_with_its_tables() {
    let memory = TestDisk::new();
    let faults = FaultFs::new(Arc::new(memory.clone()), 3);
    let fs: Arc<dyn FileSystem> = Arc::new(faults.clone());
    let family = Separation::EAGER.of(small_family());
    let components = Components { fs, ..over(&memory, family.clone()) };
    let db = Db::open_with("/db", small_db(), components).unwrap();
    for n in 0..8 {
        db.put(&key(n), &value(n, 0)).unwrap();
    }
    faults.add(Rule::on(Operation::LogSync).fault(Fault::Io));
    db.put_with(db.default_family(), b"last", b"unsynced", &synced()).unwrap_err();
    db.resume().unwrap();
    let audit = audit_at_rest(&db);
    assert!(audit.references > 0, "{audit:?}");
    let left = Db::open_with("/db", small_db(), over(&memory.crash_clone(1), family)).unwrap();
    for n in 0..8 {
        assert_eq!(left.get(&key(n)).unwrap(), Some(value(n, 0).into()));
    }
    audit_at_rest(&left);
}

/// Points at which a crash is tested.
const POINTS: [&str; 6] = [
    "flush.value_file",
    "gc.picked",
    "gc.after_write",
    "gc.before_install",
    "compaction.before_install",
    "inherit.before_prune",
];

/// A disk after a crash, and its expected content.
struct Crashed {
    disk: TestDisk,
    model: Model,
    label: String,
}

/// Results that the fault points of a run collect.
#[derive(Default)]
struct Crashes {
    model: Mutex<Model>,
    found: Mutex<Vec<Crashed>>,
    reached: Mutex<[u64; POINTS.len()]>,
}

impl Crashes {
    /// A power loss or kill at every few visits of a point.
    fn reached(&self, disk: &TestDisk, name: &str) {
        let Some(at) = POINTS.iter().position(|point| *point == name) else { return };
        let visit = {
            let mut reached = self.reached.lock();
            reached[at] += 1;
            reached[at]
        };
        if !visit.is_multiple_of(if name.starts_with("gc") { 2 } else { 7 }) {
            return;
        }
        let is_kill = visit.is_multiple_of(4);
        let left = if is_kill { disk.kill_clone() } else { disk.crash_clone(visit) };
        let label = format!("visit {visit} of {name}, kill: {is_kill}");
        self.found.lock().push(Crashed { disk: left, model: self.model.lock().clone(), label });
    }
}

#[test]
fn crash_at_every_point_keeps_synced_values_and_leaves_no_strays() {
    let (memory, crashes) = (TestDisk::new(), Arc::<Crashes>::default());
    let family = Separation::EAGER.of(CfOptions {
        level_base_bytes: 16 << 10,
        target_file_bytes: 4 << 10,
        l0_compaction_trigger: 2,
        ..small_family()
    });
    let (disk, watch) = (memory.clone(), Arc::clone(&crashes));
    let components = Components {
        fault_point: Some(Arc::new(move |name| {
            watch.reached(&disk, name);
            Ok(())
        })),
        ..over(&memory, family.clone())
    };
    let db = Db::open_with("/db", small_db(), components).unwrap();
    for round in 0..6 {
        for n in (0..KEYS).filter(|n| (n + round) % 3 > 0) {
            let (key, value) = (key(n), value(n, round));
            patiently(&db, || db.put_with(db.default_family(), &key, &value, &synced()));
            crashes.model.lock().insert(key, value);
            db.step_background().unwrap();
        }
        db.flush(db.default_family()).unwrap();
        if round % 2 == 1 {
            db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
        }
        step_all(&db).unwrap();
    }
    let reached = *crashes.reached.lock();
    assert!(reached.iter().all(|visits| *visits > 2), "{POINTS:?}: {reached:?}");
    let found = std::mem::take(&mut *crashes.found.lock());
    eprintln!("{} crashes, visits {reached:?}", found.len());
    for Crashed { disk, model, label } in found {
        eprintln!("{label}");
        let open = |disk: &TestDisk| {
            let db = Db::open_with("/db", small_db(), over(disk, family.clone())).unwrap();
            check_at(&db, db.default_family(), &Default::default(), &model);
            audit_at_rest(&db);
            db
        };
        let db = open(&disk);
        db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
        db.wait_for_background().unwrap();
        check_at(&db, db.default_family(), &Default::default(), &model);
        audit_at_rest(&db);
        drop(db);
        open(&disk.crash_clone(5));
    }
}

/// The file system operations that a garbage collection may use.
const OPERATIONS: [Operation; 9] = [
    Operation::Open,
    Operation::Read,
    Operation::Create,
    Operation::Append,
    Operation::Flush,
    Operation::Sync,
    Operation::SyncDir,
    Operation::Remove,
    Operation::Stat,
];

/// Opens a world with garbage and applies `rule` to the collector. Returns whether the rule fired.
fn collect_with(world: &World, rule: Rule, label: &str) -> bool {
    let memory = world.fs.kill_clone();
    let faults = FaultFs::new(Arc::new(memory.clone()), 3);
    let fs: Arc<dyn FileSystem> = Arc::new(faults.clone());
    let db = world.open_through(&fs).unwrap();
    let before = audit_at_rest(&db);
    assert!(before.garbage_bytes > 0);
    let rule = faults.add(rule);
    let stepped = step_all(&db);
    let fired = faults.fired_by(rule) > 0;
    faults.clear();
    if let Err(error) = &stepped {
        let text = error.to_string();
        assert!(text.contains("sst") || text.contains("/db"), "{label}: no file in: {text}");
    }
    check_at(&db, db.default_family(), &Default::default(), &world.model);
    let health = db.property(db.default_family(), "archipelago.health").unwrap();
    assert!(!health.contains("read"), "{label}: {health}");
    db.put(b"later", b"write").unwrap();
    db.delete(b"later").unwrap();
    db.sync().unwrap();
    let left = world.on(memory.crash_clone(7));
    left.check();
    audit_at_rest(&left.db);
    drop(left);
    // The inputs of a failed job wait.
    world.clock.sleep(Duration::from_secs(7200));
    db.wait_for_background().unwrap();
    check_at(&db, db.default_family(), &Default::default(), &world.model);
    let after = super::audit(&db);
    assert!(after.garbage_bytes < before.garbage_bytes, "{label}: {before:?}, {after:?}");
    db.close().unwrap();
    let again = world.on(memory);
    again.check();
    audit_at_rest(&again.db);
    fired
}

#[test]
fn failed_operation_of_a_garbage_collection_loses_nothing() {
    let mut world = World::new(|_| ());
    world.expose_garbage();
    world.db.sync().unwrap();
    let mut fired = 0;
    for operation in OPERATIONS {
        for fault in [Fault::Io, Fault::NoSpace] {
            let is_full = matches!(fault, Fault::NoSpace);
            if is_full && !matches!(operation, Operation::Create | Operation::Append) {
                continue;
            }
            let mut nth = 1;
            loop {
                let label = format!("{operation:?} {nth}: {fault:?}");
                let rule = Rule::on(operation).path(".vsst").fault(fault).nth(nth);
                if !collect_with(&world, rule, &label) {
                    break;
                }
                fired += 1;
                // All of the first operations, then a selection.
                nth += if nth < 6 { 1 } else { 7 };
            }
        }
    }
    eprintln!("{fired} operations failed");
    assert!(fired > 15, "{fired} operations failed");
}

#[test]
fn full_device_fails_a_garbage_collection_and_nothing_else() {
    let mut world = World::new(|_| ());
    world.expose_garbage();
    world.db.sync().unwrap();
    let all = [Operation::Create, Operation::Append, Operation::Flush, Operation::Sync];
    let rule = Rule::on_any(&all).path(".vsst").fault(Fault::NoSpace);
    assert!(collect_with(&world, rule, "full device"));
}

#[test]
fn failed_collection_is_tried_again_after_doubling_pauses() {
    let mut world = World::new(|_| ());
    world.expose_garbage();
    world.settle_with_starved_collector();
    let fs = world.fs.kill_clone();
    let most = world.db.values(world.cf()).unwrap().files.remove(0);
    flip(&fs, &format!("/db/{:06}.vsst", most.no), most.value_bytes);
    let left = world.on(fs);
    let failures = || {
        let mut failures = 0;
        loop {
            match left.db.step_background() {
                Ok(true) => {}
                Ok(false) => return failures,
                Err(_) => failures += 1,
            }
        }
    };
    assert!(failures() > 0);
    let mut failing_seconds = Vec::new();
    for second in 1..=16 {
        left.clock.sleep(Duration::from_secs(1));
        match failures() {
            0 => {}
            1 => failing_seconds.push(second),
            more => panic!("{more} failures after {second} seconds"),
        }
    }
    assert_eq!(failing_seconds, [1, 3, 7, 15]);
    check_at(&left.db, left.cf(), &Default::default(), &left.model);
}

#[test]
fn open_readers_stop_no_writer_and_are_reported() {
    let mut world = World::new(|family| {
        family.compression = Compression::None;
        family.compression_last = Compression::None;
        family.space_amplification_max = 1.1;
    });
    world.fill(0, |_| true);
    world.compact();
    let (snapshot, before) = (world.db.snapshot(), world.model.clone());
    let mut iter = world.db.iter(world.cf(), &Default::default()).unwrap();
    iter.seek_to_first();
    for round in 1..8 {
        for n in 0..KEYS {
            let (key, value) = (key(n), value(n, round));
            let mut refusals = 0;
            while let Err(error) = world.db.put(&key, &value) {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                world.db.step_background().unwrap();
                refusals += 1;
                assert!(refusals < 1000, "round {round}: a writer waits for ever");
            }
            world.model.insert(key, value);
        }
        world.db.flush(world.cf()).unwrap();
        step_all(&world.db).unwrap();
    }
    world.compact();
    let report = world.db.values(world.cf()).unwrap();
    assert!(report.pinned.bytes > 0, "{report}");
    assert_eq!(report.pinned.reader_bytes(), report.pinned.bytes, "{report}");
    assert_eq!(report.oldest_snapshot, Some(snapshot.seq()));
    let named = format!("the oldest snapshot has sequence number {}", snapshot.seq());
    assert!(report.to_string().contains(&named), "{report}");
    world.clock.sleep(Duration::from_secs(90));
    let report = world.db.values(world.cf()).unwrap();
    assert_eq!((report.pinned.under_minute_bytes, report.pinned.older_bytes()), (0, 0));
    assert!(report.pinned.oldest_ms >= 90_000, "{report}");
    assert!(report.oldest_snapshot_ms >= 90_000, "{report}");
    let named = format!("Oldest snapshot: sequence number {}, open for ", snapshot.seq());
    assert!(report.to_string().contains(&named), "{report}");
    for (key, value) in &before {
        assert!((iter.key(), iter.value()) == (key, value), "{}", key.escape_ascii());
        iter.next();
    }
    let options = archipelago_engine::db::ReadOptions::new().snapshot(&snapshot);
    check_at(&world.db, world.cf(), &options, &before);
    drop((iter, options, snapshot));
    step_all(&world.db).unwrap();
    let report = world.db.values(world.cf()).unwrap();
    assert_eq!((report.pinned.bytes, report.oldest_snapshot_ms), (0, 0));
    assert!(report.to_string().contains("Oldest snapshot: none is open"), "{report}");
    world.finish();
}
