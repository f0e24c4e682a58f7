//! Changes of names that neither the log of the namespace nor a new generation takes: they fail and
//! have not happened.

use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};

use super::*;
use crate::history::Reason;

type Model = BTreeMap<String, Vec<u8>>;
type Change = fn(&TieredFs) -> Result<()>;
type Failure = fn(&FaultFs);

/// Every kind of change, with its name.
const CHANGES: &[(&str, Change)] = &[
    ("create", |fs| fs.create(&path("new"), table(0), CreateOptions::default()).map(drop)),
    ("replace", |fs| fs.create(&path("conf"), table(0), CreateOptions::default()).map(drop)),
    ("replace a copied file", |fs| {
        fs.create(&path("hot.sst"), table(0), CreateOptions::default()).map(drop)
    }),
    ("create log", |fs| {
        let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
        let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: None };
        fs.create_log(&path("new.log"), context, options).map(drop)
    }),
    ("rename", |fs| fs.rename(&path("conf"), &path("new"))),
    ("rename over a file", |fs| fs.rename(&path("conf"), &path("hot.sst"))),
    ("link", |fs| fs.link(&path("conf"), &path("dir/conf"))),
    ("remove", |fs| fs.remove(&path("conf"))),
    ("remove one of two names", |fs| fs.remove(&path("other"))),
    ("remove a copied file", |fs| fs.remove(&path("hot.sst"))),
    ("make directory", |fs| fs.create_dir_all(&path("new/deep"))),
    ("remove directory", |fs| fs.remove_dir(&path("empty"))),
    ("remove directory with files", |fs| fs.remove_dir_all(&path("dir"))),
    ("rename directory", |fs| fs.rename_dir(&path("dir"), &path("new"))),
    ("rename directory over an empty one", |fs| fs.rename_dir(&path("dir"), &path("empty"))),
    ("change level", |fs| fs.set_level(&path("conf"), table(2))),
    ("move", |fs| {
        let entry = fs.shared.entry("move", &path("conf"))?;
        fs.shared.mover.move_now(&fs.shared, &entry, 1, Reason::DeviceLeaves)
    }),
];

/// Ways in which the home device fails, with their names.
const FAILURES: &[(&str, Failure)] = &[
    ("nothing is written", |disk| {
        let refused = [Operation::LogAppend, Operation::LogSync, Operation::CreateLog];
        disk.add(Rule::on_any(&refused).path("/names/"));
    }),
    ("the record is torn", |disk| {
        disk.add(Rule::on(Operation::LogAppend).path("/names/").fault(Fault::ShortAppend));
        disk.add(Rule::on(Operation::CreateLog).path("/names/"));
    }),
    // The second sync of the directory follows the rename of the generation.
    ("a generation with the change has its final name", |disk| {
        disk.add(Rule::on(Operation::LogAppend).path("/names/"));
        disk.add(Rule::on(Operation::SyncDir).path("/dev0/names").nth(2));
    }),
];

/// A disk that may fail, the memory below it, and tiers over it.
struct Failing {
    memory: MemFs,
    disk: FaultFs,
    world: World,
    fs: Arc<TieredFs>,
}

impl Failing {
    /// Tiers with files, a file of two names, a file with a copy, and directories, all durable.
    fn new() -> Self {
        let memory = MemFs::new();
        let disk = FaultFs::new(Arc::new(memory.clone()), 1);
        let world = World::new(Arc::new(disk.clone()), &[1 << 20, 1 << 20]);
        let fs = world.open();
        for dir in ["dir/inner", "empty"] {
            fs.create_dir_all(&path(dir)).unwrap();
        }
        for (seed, name) in ["conf", "other", "dir/1", "dir/inner/2"].into_iter().enumerate() {
            write(&fs, name, 0, &filled(seed as u64, 1000));
        }
        fs.link(&path("other"), &path("dir/other")).unwrap();
        write(&fs, "hot.sst", 5, &filled(9, 30_000));
        let hot = fs.open(&path("hot.sst"), READ, OpenOptions::default()).unwrap();
        (0..100).for_each(|at| hot.read_exact_at(at * 290, &mut [0; 100], READ).unwrap());
        drop(hot);
        world.pass(500);
        fs.step();
        assert_eq!(fs.stats().devices[0].copies.files, 1);
        fs.sync_dir(Path::new(ROOT)).unwrap();
        Self { memory, disk, world, fs }
    }

    /// The files after a kill at this moment.
    fn killed(&self) -> Arc<TieredFs> {
        self.world.over(&self.memory.kill_clone()).open()
    }

    /// Checks that the device, which works again, has the state `before`, now and after a later
    /// change and a reopen.
    fn stays(&self, before: &(Vec<Record>, Model), what: &str) {
        let fs = &self.fs;
        assert_eq!(state(fs), before.0, "{what}");
        assert!(contents(fs) == before.1, "{what}: {:?}", contents(fs).keys());
        let mut expected = before.1.clone();
        expected.insert("next".to_owned(), filled(7, 100));
        write(fs, "next", 0, &filled(7, 100));
        fs.sync_dir(Path::new(ROOT)).unwrap();
        fs.shared.empty_trash(true).unwrap();
        assert!(contents(fs) == expected, "{what}: {:?}", contents(fs).keys());
        let again = self.killed();
        assert!(contents(&again) == expected, "{what}: {:?}", contents(&again).keys());
        again.remove(&path("next")).unwrap();
        assert_eq!(state(&again), before.0, "{what}, after a kill");
        let lost = self.world.over(&self.memory.crash_clone(3)).open();
        assert!(contents(&lost) == expected, "{what}: {:?}", contents(&lost).keys());
    }
}

/// The records of the state, without access counts.
fn state(fs: &TieredFs) -> Vec<Record> {
    let records = fs.shared.names.lock().space.state.snapshot().into_iter();
    let without_heat = |record| match record {
        Record::File(file) => Record::File(FileRecord { heat: 0, ..file }),
        other => other,
    };
    records.map(without_heat).collect()
}

fn fails_without_effect(change: (&str, Change), failure: (&str, Failure)) {
    let what = format!("{}: {}", change.0, failure.0);
    let tiers = Failing::new();
    let before = (state(&tiers.fs), contents(&tiers.fs));
    let changed = tiers.killed();
    change.1(&changed).unwrap();
    let after = contents(&changed);
    failure.1(&tiers.disk);
    assert!(change.1(&tiers.fs).is_err(), "{what}");
    let found = contents(&tiers.killed());
    assert!(found == before.1 || found == after, "{what}: {:?} after a kill", found.keys());
    tiers.disk.clear();
    tiers.stays(&before, &what);
    assert_eq!(tiers.fs.stats().devices[0].copies.files, 1, "{what}");
}

#[test]
fn change_that_is_not_recorded_has_not_happened() {
    for &failure in FAILURES {
        for &change in CHANGES {
            fails_without_effect(change, failure);
        }
    }
}

#[test]
fn change_succeeds_after_it_failed() {
    for &(what, change) in CHANGES {
        let tiers = Failing::new();
        FAILURES[0].1(&tiers.disk);
        assert!(change(&tiers.fs).is_err(), "{what}");
        assert!(tiers.fs.sync_dir(Path::new(ROOT)).is_err(), "{what}: nothing is promised");
        tiers.disk.clear();
        change(&tiers.fs).unwrap();
        let (found, expected) = (contents(&tiers.killed()), contents(&tiers.fs));
        assert!(found == expected, "{what}: {:?}", found.keys());
    }
}

#[test]
fn directory_that_cannot_be_synced_is_not_there() {
    let names = |operations: &[Operation]| Rule::on_any(operations).path("/names/");
    for rule in [
        names(&[Operation::LogSync]),
        // Neither the log nor a new generation takes the record of the removal.
        names(&[Operation::LogSync, Operation::CreateLog]),
        // The log does not fail, but the name of a file is not durable.
        Rule::on(Operation::SyncDir).path("/dev0/files"),
    ] {
        let what = format!("{rule:?}");
        let tiers = Failing::new();
        write(&tiers.fs, "late", 0, &filled(8, 100));
        let before = (state(&tiers.fs), contents(&tiers.fs));
        tiers.disk.add(rule);
        assert!(tiers.fs.create_dir_all(&path("new/deep")).is_err(), "{what}");
        assert!(tiers.fs.create_dir_all(&path("dir/new")).is_err(), "{what}");
        tiers.disk.clear();
        tiers.stays(&before, &what);
        tiers.fs.create_dir_all(&path("new/deep")).unwrap();
        assert!(tiers.killed().exists(&path("new/deep")).unwrap(), "{what}");
    }
}

#[test]
fn dropped_copy_stays_dropped_without_its_record() {
    let tiers = Failing::new();
    let (fs, before) = (&tiers.fs, contents(&tiers.fs));
    let entry = fs.shared.entry("find", &path("hot.sst")).unwrap();
    let copy = Arc::clone(&entry.inside.lock().copies[0]);
    FAILURES[0].1(&tiers.disk);
    assert!(fs.shared.drop_copy(&entry, &copy));
    tiers.disk.clear();
    drop(copy);
    assert!(fs.shared.names.lock().space.state.copies.is_empty());
    tiers.stays(&(state(fs), before), "without a copy");
    assert_eq!(tiers.killed().stats().devices[0].copies.files, 0);
}

#[test]
fn removal_in_a_new_generation_needs_no_name_of_its_file() {
    let tiers = Failing::new();
    write(&tiers.fs, "deep.sst", 5, &filled(8, 100));
    tiers.disk.add(Rule::on(Operation::SyncDir).path("/dev1"));
    tiers.disk.add(Rule::on(Operation::LogAppend).path("/dev0/names").nth(1));
    tiers.fs.remove(&path("deep.sst")).unwrap();
    assert!(!tiers.killed().exists(&path("deep.sst")).unwrap());
}
