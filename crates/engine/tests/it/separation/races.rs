//! Garbage collection in the middle of all other jobs, and all other jobs in the middle of a
//! garbage collection.
//!
//! Fault points choose the interleaving, so that each case happens in each run. A last test lets
//! threads race.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;

use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{Error, Result};
use archipelago_engine::db::{BackgroundMode, Db, IngestOptions, ReadOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, Compression, WriteOptions};
use archipelago_engine::sst::{SstWriter, TableOptions};
use archipelago_engine::stats::Ticker;
use archipelago_env::FileSystem;
use parking_lot::Mutex;

use super::world::{KEYS, Model, Tilde, World, check_at, key, patiently, step_all, value};
use super::{Collection, Separation, audit};
use crate::disk::TestDisk;
use crate::support::{over, small_db, small_family};

/// A thread that steps the background, and the result once it has ended.
type Collector = (Joiner, Arc<Mutex<Option<Result<()>>>>);

/// The steps of a garbage collection at which something else happens.
const STEPS: [&str; 3] = ["gc.picked", "gc.after_write", "gc.before_install"];

/// Something that happens in the middle of a job.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Nothing,
    Read,
    Compact,
    Update,
    DeleteRange,
    DeleteAll,
    Split,
    Join,
    Checkpoint,
    Ingest,
    Collect,
}

const ALL: [Meanwhile; 11] = [
    Meanwhile::Nothing,
    Meanwhile::Read,
    Meanwhile::Compact,
    Meanwhile::Update,
    Meanwhile::DeleteRange,
    Meanwhile::DeleteAll,
    Meanwhile::Split,
    Meanwhile::Join,
    Meanwhile::Checkpoint,
    Meanwhile::Ingest,
    Meanwhile::Collect,
];

impl Meanwhile {
    /// Executes it. The model of the caller follows with [`Meanwhile::apply`].
    fn act(self, db: &Db, fs: &TestDisk, model: &Model) -> Result<()> {
        let (cf, all) = (db.default_family(), KeyRange::all());
        match self {
            Self::Nothing => Ok(()),
            Self::Read => {
                check_at(db, cf, &ReadOptions::default(), model);
                Ok(())
            }
            Self::Compact => db.compact_range(cf, &all),
            Self::Update => {
                for n in (0..KEYS).step_by(2) {
                    patiently(db, || db.put(&key(n), &value(n, 2)));
                }
                db.flush(cf)?;
                db.compact_range(cf, &all)
            }
            Self::DeleteRange | Self::DeleteAll => {
                let (start, end) = self.deleted();
                db.delete_range(cf, &key(start), &key(end), &WriteOptions::default())?;
                db.flush(cf)?;
                db.compact_range(cf, &all)
            }
            Self::Split => {
                let index = db.buckets(cf)?.iter().position(|b| b.range.contains(&key(33)));
                tolerate(db.split_bucket(cf, index.unwrap_or(0), Some(&key(33))))
            }
            Self::Join => tolerate(db.merge_buckets(cf, 0)),
            Self::Checkpoint => {
                db.checkpoint("/copy")?;
                let family = Separation::EAGER.of(small_family());
                let copy = Db::open_with("/copy", small_db(), over(fs, family))?;
                check_at(&copy, copy.default_family(), &ReadOptions::default(), model);
                audit(&copy);
                copy.close()?;
                fs.remove_dir_all("/copy".as_ref())
            }
            Self::Ingest => {
                let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
                let path = PathBuf::from("/new.sst");
                let mut writer = SstWriter::create(&shared, &path, TableOptions::default())?;
                for n in 40..60 {
                    writer.put(&key(n), &value(n, 3))?;
                }
                writer.finish()?;
                db.ingest(cf, &[&path], &IngestOptions::default())?;
                fs.remove(&path)
            }
            Self::Collect => step_all(db),
        }
    }

    fn deleted(self) -> (u32, u32) {
        if matches!(self, Self::DeleteAll) { (0, KEYS) } else { (20, 90) }
    }

    /// Applies the same change to the model.
    fn apply(self, model: &mut Model) {
        match self {
            Self::Update => {
                model.extend((0..KEYS).step_by(2).map(|n| (key(n), value(n, 2))));
            }
            Self::DeleteRange | Self::DeleteAll => {
                let (start, end) = self.deleted();
                (start..end).for_each(|n| drop(model.remove(&key(n))));
            }
            Self::Ingest => model.extend((40..60).map(|n| (key(n), value(n, 3)))),
            _ => {}
        }
    }
}

/// Accepts the refusal of a change to a bucket that cannot be changed now.
fn tolerate(result: Result<()>) -> Result<()> {
    use archipelago_base::ErrorKind::{Busy, InvalidArgument};
    result.or_else(|error| match error.kind() {
        Busy | InvalidArgument => Ok(()),
        _ => Err(error),
    })
}

/// Readers that were there before, and the rows that they must continue to see.
struct Readers {
    model: Model,
    snapshot: archipelago_engine::db::Snapshot,
    forwards: archipelago_engine::db::Iter,
    backwards: archipelago_engine::db::Iter,
}

impl Readers {
    fn new(world: &World) -> Self {
        let options = ReadOptions::default();
        let mut forwards = world.db.iter(world.cf(), &options).unwrap();
        let mut backwards = world.db.iter(world.cf(), &options).unwrap();
        forwards.seek_to_first();
        backwards.seek_to_last();
        let (snapshot, model) = (world.db.snapshot(), world.model.clone());
        Self { model, snapshot, forwards, backwards }
    }

    /// Moves the iterators over half of the remaining rows, and reads at the snapshot.
    fn check_half(&mut self, world: &World) {
        let half = self.model.len() / 2;
        let Self { model, forwards, backwards, .. } = self;
        for (key, value) in model.iter().take(half) {
            assert!((forwards.key(), forwards.value()) == (key, value), "forwards");
            forwards.next();
        }
        for (key, value) in model.iter().rev().take(half) {
            assert!((backwards.key(), backwards.value()) == (key, value), "backwards");
            backwards.prev();
        }
        let options = ReadOptions::new().snapshot(&self.snapshot);
        check_at(&world.db, world.cf(), &options, &self.model);
    }

    /// Moves the iterators over the remaining rows.
    fn check_rest(mut self, world: &World) {
        let half = self.model.len() / 2;
        let Self { model, forwards, backwards, .. } = &mut self;
        for (key, value) in model.iter().skip(half) {
            assert!((forwards.key(), forwards.value()) == (key, value), "forwards");
            forwards.next();
        }
        for (key, value) in model.iter().rev().skip(half) {
            assert!((backwards.key(), backwards.value()) == (key, value), "backwards");
            backwards.prev();
        }
        assert!(!forwards.valid() && forwards.status().is_ok());
        assert!(!backwards.valid() && backwards.status().is_ok());
        let options = ReadOptions::new().snapshot(&self.snapshot);
        check_at(&world.db, world.cf(), &options, &self.model);
    }
}

#[test]
fn everything_else_may_happen_during_a_garbage_collection() {
    for point in STEPS {
        for meanwhile in ALL {
            eprintln!("{meanwhile:?} at {point}");
            let mut world = World::new(|_| ());
            world.expose_garbage();
            let mut readers = Readers::new(&world);
            let (db, fs, model) = (world.db.clone(), world.fs.clone(), world.model.clone());
            world.hook.at(point, move || meanwhile.act(&db, &fs, &model));
            while world.hook.is_armed() {
                assert!(world.db.step_background().unwrap(), "no garbage collection was due");
            }
            meanwhile.apply(&mut world.model);
            world.check();
            let left = world.on(world.fs.kill_clone());
            left.check();
            drop(left);
            readers.check_half(&world);
            world.settle();
            world.compact();
            world.settle();
            readers.check_rest(&world);
            world.finish();
        }
    }
}

/// Steps of other jobs at which garbage is collected, and the action that causes the job.
const OTHERS: [(&str, Meanwhile); 8] = [
    ("flush.picked", Meanwhile::Update),
    ("flush.shard", Meanwhile::Update),
    ("flush.value_file", Meanwhile::Update),
    ("flush.before_install", Meanwhile::DeleteRange),
    ("compaction.picked", Meanwhile::Update),
    ("compaction.before_install", Meanwhile::Update),
    ("ingest.before_install", Meanwhile::Ingest),
    ("checkpoint.before_manifest", Meanwhile::Checkpoint),
];

#[test]
fn garbage_collection_may_happen_during_everything_else() {
    for (point, job) in OTHERS {
        for buckets in [1, 3] {
            eprintln!("garbage collection at {point}, {buckets} buckets");
            let mut world = World::new(|family| family.buckets = buckets);
            world.expose_garbage();
            let mut readers = Readers::new(&world);
            let before = world.collections();
            let db = world.db.clone();
            let beside = Arc::<Mutex<Option<Collector>>>::default();
            let spawned = Arc::clone(&beside);
            world.hook.at(point, move || {
                if !point.starts_with("ingest") {
                    return step_all(&db);
                }
                // The ingestion holds the manifest, so the collector continues after it.
                let ended = Arc::new(Mutex::new(None));
                let result = Arc::clone(&ended);
                let body = Box::new(move || *result.lock() = Some(step_all(&db)));
                let joiner = SystemSpawn.spawn("collector", body)?;
                *spawned.lock() = Some((joiner, ended));
                Ok(())
            });
            job.act(&world.db, &world.fs, &world.model).unwrap();
            assert!(!world.hook.is_armed(), "{point} was not reached");
            if let Some((joiner, ended)) = beside.lock().take() {
                joiner.join().unwrap();
                ended.lock().take().expect("it ended").unwrap();
            }
            assert!(world.collections() > before, "{point}: nothing was collected");
            job.apply(&mut world.model);
            // A crash directly after it.
            let left = world.on(world.fs.kill_clone());
            left.check();
            drop(left);
            world.check();
            readers.check_half(&world);
            world.settle();
            world.compact();
            readers.check_rest(&world);
            world.finish();
        }
    }
}

/// A world with garbage, in which a compaction is cut into parts: most of its bytes are inline
/// values between separated ones. L0 is compacted into the last level.
fn parted() -> World {
    let mut world = World::new(|family| {
        family.buckets = 1;
        family.level_base_bytes = 1 << 20;
        family.value_separation_bytes = 512;
        family.compression = Compression::None;
        family.compression_last = Compression::None;
    });
    for n in 0..KEYS {
        for inline in 0..6 {
            let (key, value) = (format!("key{n:05}+{inline}").into_bytes(), vec![b'i'; 100]);
            patiently(&world.db, || world.db.put(&key, &value));
            world.model.insert(key, value);
        }
    }
    world.expose_garbage();
    world
}

#[test]
fn garbage_collection_may_happen_between_parts_of_a_compaction() {
    let mut world = parted();
    let mut readers = Readers::new(&world);
    let parts = |world: &World| world.db.statistics().get(Ticker::Subcompactions);
    let (collections, parts_before) = (world.collections(), parts(&world));
    let (db, hook) = (world.db.clone(), Arc::clone(&world.hook));
    // The collector works at the beginning of a part, and not before.
    world.hook.starve(true);
    world.hook.at("compaction.part", move || {
        hook.starve(false);
        let collected = step_all(&db);
        hook.starve(true);
        collected
    });
    Meanwhile::Update.act(&world.db, &world.fs, &world.model).unwrap();
    assert!(!world.hook.is_armed(), "no compaction was cut into parts");
    assert!(parts(&world) > parts_before + 1, "no compaction of several parts was installed");
    assert!(world.collections() > collections, "nothing was collected");
    world.hook.starve(false);
    Meanwhile::Update.apply(&mut world.model);
    let left = world.on(world.fs.kill_clone());
    left.check();
    drop(left);
    world.check();
    readers.check_half(&world);
    world.settle();
    world.compact();
    readers.check_rest(&world);
    world.finish();
}

/// A world whose compactions read values: of operands and of a filter that changes some.
fn fetching(buckets: usize) -> World {
    World::new(|family| {
        family.buckets = buckets;
        family.buckets_dynamic = false;
        reading_values(family);
    })
}

fn reading_values(family: &mut CfOptions) {
    family.compaction_filter = Some("tilde".to_owned());
    family.merge_operator = Some("append".to_owned());
}

fn filtered(model: &Model) -> Model {
    model.iter().map(|(key, value)| (key.clone(), Tilde::applied(key, value))).collect()
}

#[test]
fn compaction_fetches_values_while_they_move() {
    for (buckets, calls) in [(1, 0), (1, 1), (1, 60), (3, 40)] {
        let mut world = fetching(buckets);
        world.expose_garbage();
        world.model = filtered(&world.model);
        for n in (0..KEYS).step_by(5) {
            let cf = world.db.default_family();
            patiently(&world.db, || {
                world.db.merge(cf, &key(n), b"+more.", &WriteOptions::default())
            });
            let old = world.model.get_mut(&key(n)).unwrap();
            old.extend_from_slice(b"+more.");
        }
        world.check();
        let before = world.collections();
        let db = world.db.clone();
        world.filter.after(calls, move || step_all(&db));
        world.compact();
        assert!(world.collections() > before, "nothing was collected");
        world.model = filtered(&world.model);
        world.check();
        let left = world.on(world.fs.crash_clone(3));
        left.check();
        left.compact();
        left.check();
        drop(left);
        world.finish();
    }
}

/// A compaction changes values that a flush had separated as they were, so that the same key and
/// sequence number lie in two files, and garbage of the first is collected.
pub(super) fn change_separated_values() {
    let mut world = fetching(1);
    world.hook.starve(true);
    world.filter.pause(true);
    world.fill(1, |_| true);
    world.compact();
    world.check();
    world.filter.pause(false);
    // A few writes, so that a compaction rewrites all tables.
    world.fill(2, |n| n % 20 == 0);
    world.compact();
    world.db.wait_for_background().unwrap();
    world.model = filtered(&world.model);
    world.check();
    assert!(audit(&world.db).garbage_bytes > 0, "no changed value was separated");
    world.fill(3, |n| n % 10 < 5);
    world.compact();
    world.model = filtered(&world.model);
    world.check();
    world.hook.starve(false);
    step_all(&world.db).unwrap();
    assert!(world.collections() > 0, "nothing was collected");
    world.check();
    world.finish();
}

#[test]
fn filter_that_changes_values_leaves_two_copies_apart() {
    change_separated_values();
}

/// Keys of the two halves of a [`halves`] world.
const HALVES: [std::ops::Range<u32>; 2] = [0..30, 30..60];

fn compact_half(db: &Db, half: usize) -> Result<()> {
    db.flush(db.default_family())?;
    let (start, end) = (key(HALVES[half].start), Some(key(HALVES[half].end)));
    db.compact_range(db.default_family(), &KeyRange { start, end })
}

/// Two halves in tables of their own, with garbage that one heir replaces. The collector starves.
fn halves() -> World {
    let mut world = fetching(1);
    world.hook.starve(true);
    for round in 0..2 {
        for (half, keys) in HALVES.iter().enumerate() {
            world.fill(round, |n| keys.contains(&n) && (round == 0 || n % 3 > 0));
            compact_half(&world.db, half).unwrap();
            if (round, half) == (0, 0) {
                world.db.split_bucket(world.cf(), 0, Some(&key(HALVES[1].start))).unwrap();
            }
        }
    }
    world.model = filtered(&world.model);
    world
}

/// Overwrites the first half, so that its values become garbage.
fn overwrite_first_half(db: &Db, round: u32) -> Result<()> {
    for n in HALVES[0].clone() {
        patiently(db, || db.put(&key(n), &value(n, round)));
    }
    compact_half(db, 0)
}

fn note_first_half(model: &mut Model, round: u32) {
    model.extend(HALVES[0].clone().map(|n| (key(n), value(n, round))));
}

/// A few writes that cause a rewrite of the second half's tables. The first one is small.
fn touch_second_half(world: &mut World) {
    for n in [30, 38, 46] {
        world.put(n, 2);
    }
    world.db.flush(world.cf()).unwrap();
}

/// While a compaction copies references, the file that they will name is replaced, and further
/// edits follow.
pub(super) fn replace_the_file_that_outputs_will_name() {
    let mut world = halves();
    world.hook.starve(false);
    step_all(&world.db).unwrap();
    assert!(audit(&world.db).heirs > 0);
    world.hook.starve(true);
    overwrite_first_half(&world.db, 3).unwrap();
    note_first_half(&mut world.model, 3);
    touch_second_half(&mut world);
    let (db, hook, before) = (world.db.clone(), Arc::clone(&world.hook), world.collections());
    world.filter.after(0, move || {
        hook.starve(false);
        step_all(&db)?;
        for round in 4..7 {
            patiently(&db, || db.put(&key(0), &value(0, round)));
            db.flush(db.default_family())?;
        }
        Ok(())
    });
    compact_half(&world.db, 1).unwrap();
    world.model.insert(key(0), value(0, 6));
    assert!(world.collections() > before, "nothing was collected");
    world.model = filtered(&world.model);
    world.finish();
}

#[test]
fn compaction_may_name_a_file_that_was_replaced_meanwhile() {
    replace_the_file_that_outputs_will_name();
}

/// A file that did not exist when a compaction was picked, and that it reads, is replaced while it
/// runs.
pub(super) fn replace_the_file_that_a_compaction_reads() {
    let mut world = halves();
    touch_second_half(&mut world);
    let (db, hook, before) = (world.db.clone(), Arc::clone(&world.hook), world.collections());
    world.hook.at("compaction.picked", move || {
        hook.starve(false);
        step_all(&db)?;
        hook.starve(true);
        Ok(())
    });
    let (db, hook) = (world.db.clone(), Arc::clone(&world.hook));
    world.filter.after(0, move || {
        overwrite_first_half(&db, 3)?;
        hook.starve(false);
        step_all(&db)
    });
    compact_half(&world.db, 1).unwrap();
    note_first_half(&mut world.model, 3);
    assert!(world.collections() > before + 1, "two files in a row were not replaced");
    world.model = filtered(&world.model);
    world.finish();
}

#[test]
fn compaction_reads_a_file_that_was_replaced_meanwhile() {
    replace_the_file_that_a_compaction_reads();
}

#[test]
fn garbage_collection_of_a_dropped_family_leaves_nothing() {
    for point in STEPS {
        let world = World::new(|_| ());
        let family = Separation::EAGER.of(small_family());
        let guest = world.db.create_family("guest", family).unwrap();
        world.hook.starve(true);
        for round in 0..2 {
            for n in (0..KEYS).filter(|n| round == 0 || n % 3 > 0) {
                let (key, value) = (key(n), value(n, round));
                let write = || world.db.put_with(&guest, &key, &value, &WriteOptions::default());
                patiently(&world.db, write);
            }
            world.db.flush(&guest).unwrap();
            world.db.compact_range(&guest, &KeyRange::all()).unwrap();
        }
        world.db.wait_for_background().unwrap();
        world.hook.starve(false);
        let (db, handle) = (world.db.clone(), guest.clone());
        world.hook.at(point, move || db.drop_family(&handle));
        drop(guest);
        while world.hook.is_armed() {
            assert!(world.db.step_background().unwrap(), "no garbage collection was due");
        }
        world.db.wait_for_background().unwrap();
        world.finish();
    }
}

#[test]
fn expired_value_is_found_again_if_the_clock_is_set_back() {
    let mut world = World::new(|_| ());
    world.hook.starve(true);
    world.fill(0, |_| true);
    world.compact();
    let expiry = 2_000_000;
    for n in (0..KEYS).filter(|n| n % 3 > 0) {
        let (cf, key, value) = (world.db.default_family(), key(n), value(n, 1));
        let options = WriteOptions::default();
        patiently(&world.db, || world.db.put_expiring(cf, &key, &value, expiry, &options));
        world.model.insert(key, value);
    }
    world.compact();
    world.db.wait_for_background().unwrap();
    world.check();
    world.clock.set(expiry + 1);
    let lasting: Model = world.model.iter().filter(|(key, _)| is_lasting(key)).map(owned).collect();
    check_at(&world.db, world.cf(), &ReadOptions::default(), &lasting);
    // A compaction would drop what has expired. The collector works while one waits, and then that
    // compaction fails.
    let before = world.collections();
    let (db, hook) = (world.db.clone(), Arc::clone(&world.hook));
    world.hook.at("compaction.picked", move || {
        hook.starve(false);
        step_all(&db)?;
        hook.starve(true);
        Err(Error::busy("the test holds the compaction back"))
    });
    let held_back = world.db.compact_range(world.cf(), &KeyRange::all()).unwrap_err();
    assert!(held_back.to_string().contains("holds the compaction back"), "{held_back}");
    assert!(world.collections() > before, "nothing was collected");
    check_at(&world.db, world.cf(), &ReadOptions::default(), &lasting);
    world.clock.set(1_000_000);
    assert!(lasting.len() < world.model.len());
    world.check();
    world.hook.starve(false);
    world.finish();
}

fn is_lasting(key: &[u8]) -> bool {
    let digits = std::str::from_utf8(&key[3..]).unwrap();
    digits.parse::<u32>().unwrap() % 3 == 0
}

fn owned(row: (&Vec<u8>, &Vec<u8>)) -> (Vec<u8>, Vec<u8>) {
    (row.0.clone(), row.1.clone())
}

#[test]
fn switching_separation_off_leaves_no_value_file() {
    let mut world = World::new(|_| ());
    world.expose_garbage();
    world.settle();
    world.db.clone().close().unwrap();
    let family = CfOptions { value_separation_bytes: 0, ..small_family() };
    let mut off = World::over(world.fs.clone(), family, BackgroundMode::Manual);
    off.model = world.model;
    off.check();
    off.fill(7, |_| true);
    off.compact();
    off.settle();
    off.check();
    let audit = audit(&off.db);
    assert!(audit.references == 0 && audit.on_disk.is_empty(), "{audit:?}");
}

#[test]
fn close_ends_a_garbage_collection() {
    let mut world = World::new(|_| ());
    world.expose_garbage();
    let model = world.model.clone();
    world.db.clone().close().unwrap();
    for point in STEPS {
        let fs = world.fs.kill_clone();
        let family = Separation::EAGER.of(small_family());
        let mut threads = World::over(TestDisk::new(), family, BackgroundMode::Threads);
        // The hook must stand before the workers start.
        let (reached, wait) = channel();
        threads.hook.at(point, move || {
            reached.send(()).unwrap();
            std::thread::yield_now();
            Ok(())
        });
        threads.db.clone().close().unwrap();
        let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
        threads.db = threads.open_through(&shared).unwrap();
        wait.recv().unwrap();
        threads.db.clone().close().unwrap();
        let mut left = world.on(fs);
        left.model.clone_from(&model);
        left.finish();
    }
}

#[test]
fn threads_collect_garbage_beside_writers_and_readers() {
    let family = CfOptions { buckets: 3, ..Separation::EAGER.of(small_family()) };
    let collection = Collection::Eager;
    assert_eq!(Separation::EAGER.collection, collection);
    let mut world = World::over(TestDisk::new(), family, BackgroundMode::Threads);
    let (stop, stopped) = channel::<()>();
    std::thread::scope(|scope| {
        let (db, fs) = (world.db.clone(), world.fs.clone());
        scope.spawn(move || {
            let mut round = 0;
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                round += 1;
                let snapshot = db.snapshot();
                let options = ReadOptions::new().snapshot(&snapshot);
                let mut iter = db.iter(db.default_family(), &options).unwrap();
                let mut rows = Model::new();
                iter.seek_to_last();
                while iter.valid() {
                    rows.insert(iter.key().to_vec(), iter.value().to_vec());
                    iter.prev();
                }
                iter.status().unwrap();
                db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
                check_at(&db, db.default_family(), &options, &rows);
                if round % 4 == 0 {
                    db.checkpoint("/copy").unwrap();
                    fs.remove_dir_all("/copy".as_ref()).unwrap();
                }
            }
        });
        for round in 0..12 {
            world.fill(round, |n| (n + round) % 3 > 0);
        }
        drop(stop);
    });
    world.settle();
    assert!(world.collections() > 0, "nothing was collected");
    world.finish();
}
