use std::sync::{Arc, mpsc};

use archipelago_engine::db::Components;
use archipelago_engine::options::{DbOptions, WriteOptions};
use archipelago_env::FileSystem;
use archipelago_env::fault::{FaultFs, Operation, Rule};
use archipelago_env::mem::MemFs;

use super::*;
use crate::engine_store::EngineStore;
use crate::store::{Databases, JointWrite, Op, SpaceUse, Store};

fn open(fs: Arc<dyn FileSystem>) -> Db {
    let components = Components { fs, ..Components::default() };
    Db::open_with("/data", DbOptions::default(), components).unwrap()
}

fn put(key: &'static [u8], value: &'static [u8]) -> Vec<Op<'static>> {
    vec![Op::Put { key, value, expires_at_ms: None }]
}

fn swap(store: &EngineStore, a: usize, b: usize) -> Result<()> {
    let order = Order::IDENTITY.swapped(a, b);
    store.write_joint(&JointWrite { writes: Vec::new(), order, space_use: SpaceUse::Takes })
}

fn value(store: &EngineStore, index: usize, key: &[u8]) -> String {
    let entry = store.database(index).get(key).unwrap();
    entry.map_or_else(String::new, |entry| String::from_utf8_lossy(&entry.value).into_owned())
}

/// The values of `k` in the databases 0 and 1.
fn both(store: &EngineStore) -> [String; 2] {
    [value(store, 0, b"k"), value(store, 1, b"k")]
}

fn reopened(fs: MemFs) -> EngineStore {
    EngineStore::new(open(Arc::new(fs)), WriteOptions::default()).unwrap()
}

/// A store whose databases 0 and 1 have `zero` and `one` at `k`.
fn filled(fs: Arc<dyn FileSystem>) -> EngineStore {
    let store = EngineStore::new(open(fs), WriteOptions::synced()).unwrap();
    store.write(&put(b"k", b"zero")).unwrap();
    store.database(1).write(&put(b"k", b"one")).unwrap();
    store
}

const BEFORE: [&str; 2] = ["zero", "one"];
const AFTER: [&str; 2] = ["one", "zero"];

#[test]
fn order_has_the_documented_row() {
    let fs = Arc::new(MemFs::new());
    let db = open(Arc::clone(&fs) as _);
    let store = EngineStore::new(db.clone(), WriteOptions::default()).unwrap();
    store.database(3).write(&put(b"k", b"three")).unwrap();
    assert_eq!(db.list_families(), ["default", "archipelago.database.3"]);
    swap(&store, 3, 12).unwrap();
    swap(&store, 0, 3).unwrap();
    let family = db.family("archipelago.databases.1").unwrap();
    let mut iter = db.iter(&family, &ReadOptions::default()).unwrap();
    iter.seek_to_first();
    assert!(iter.valid());
    let expected = [12, 1, 2, 0, 4, 5, 6, 7, 8, 9, 10, 11, 3, 13, 14, 15];
    assert_eq!((iter.key(), iter.value()), (&b"order"[..], &expected[..]));
    iter.next();
    assert!(!iter.valid());
    assert_eq!(value(&reopened(fs.crash_clone(7)), 12, b"k"), "three");
}

#[test]
fn damaged_order_is_an_error_that_names_the_family() {
    let fs = Arc::new(MemFs::new());
    let store = filled(Arc::clone(&fs) as _);
    swap(&store, 0, 1).unwrap();
    let db = open_again(&fs);
    let family = db.family(ORDER_FAMILY).unwrap();
    db.put_with(&family, ORDER_ROW, &[0; 16], &WriteOptions::default()).unwrap();
    let error = EngineStore::new(db, WriteOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.context().contains(ORDER_FAMILY), "{error}");
}

fn open_again(fs: &MemFs) -> Db {
    open(Arc::new(fs.kill_clone()))
}

#[test]
fn swap_is_whole_or_absent_after_a_crash_at_any_sync() {
    let fs = MemFs::new();
    let store = filled(Arc::new(fs.clone()));
    let clones = Arc::new(Mutex::new(vec![fs.crash_clone(0)]));
    let taken = Arc::clone(&clones);
    fs.on_sync(Arc::new(move |fs, _| {
        let mut taken = taken.lock();
        let seed = taken.len() as u64;
        taken.extend([fs.crash_clone(seed), fs.kill_clone()]);
    }));
    swap(&store, 0, 1).unwrap();
    fs.clear_on_sync();
    let mut seen = Vec::new();
    for clone in clones.lock().drain(..) {
        let found = both(&reopened(clone));
        assert!(found == BEFORE || found == AFTER, "{found:?}");
        seen.push(found == AFTER);
    }
    assert!(!seen[0] && seen.len() > 2, "{seen:?}");
    assert_eq!(both(&reopened(fs.crash_clone(99))), AFTER, "it survives power loss on return");
}

#[test]
fn failed_swap_leaves_memory_and_disk_in_one_order() {
    let writes = [
        Operation::Create,
        Operation::Append,
        Operation::Flush,
        Operation::Sync,
        Operation::SyncDir,
        Operation::Rename,
        Operation::CreateLog,
        Operation::LogAppend,
        Operation::LogSync,
        Operation::LogFinish,
    ];
    let mut outcomes = Vec::new();
    for nth in 1.. {
        let disk = MemFs::new();
        let faulty = Arc::new(FaultFs::new(Arc::new(disk.clone()), nth));
        let store = filled(Arc::clone(&faulty) as _);
        faulty.add(Rule::on_any(&writes).nth(nth));
        let swapped = swap(&store, 0, 1);
        let fired = faulty.fired_total() > 0;
        faulty.clear();
        let found = both(&store);
        assert!(found == BEFORE || found == AFTER, "operation {nth}: {found:?}");
        assert!(swapped.is_err() || found == AFTER, "operation {nth}: {found:?}");
        let killed = both(&reopened(disk.kill_clone()));
        assert!(killed == BEFORE || killed == AFTER, "operation {nth}: {killed:?}");
        assert!(swapped.is_err() || killed == AFTER, "operation {nth}: {killed:?}");
        // Later writes go to the same database, also after a restart.
        store.resume().unwrap();
        store.write(&put(b"later", b"here")).unwrap();
        let again = reopened(disk.crash_clone(nth));
        assert_eq!(both(&again), found, "operation {nth}");
        assert_eq!(value(&again, 0, b"later"), "here", "operation {nth}");
        outcomes.push(swapped.is_ok());
        if !fired {
            break;
        }
    }
    assert!(outcomes.len() > 3 && !outcomes[0], "{outcomes:?}");
}

/// A runtime with one worker thread for tasks.
fn one_worker() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap()
}

#[test]
fn read_that_waits_for_an_order_gives_up_its_worker() {
    let databases = Arc::new(EngineDatabases::open(open(Arc::new(MemFs::new()))).unwrap());
    let runtime = one_worker();
    let (begun, is_odd) = mpsc::channel();
    let (end, may_end) = mpsc::channel::<()>();
    let changing = Arc::clone(&databases);
    std::thread::scope(|scope| {
        let change = scope.spawn(move || {
            changing.change_order(Order::IDENTITY, || {
                begun.send(()).unwrap();
                may_end.recv().unwrap();
                Ok(())
            })
        });
        is_odd.recv().unwrap();
        assert!(databases.holds_readers());
        let (reading, other) = (Arc::clone(&databases), runtime.handle().clone());
        let read = runtime.spawn(async move {
            // This task runs on the worker that the read gives up. Otherwise the change would never
            // end.
            drop(other.spawn(async move { end.send(()).unwrap() }));
            reading.read(0, |_| Ok("found"))
        });
        assert_eq!(runtime.block_on(read).unwrap().unwrap(), Some("found"));
        change.join().unwrap().unwrap();
    });
    assert!(!databases.holds_readers());
}

#[test]
fn read_is_tried_four_times_at_most_while_the_order_changes() {
    let databases = EngineDatabases::open(open(Arc::new(MemFs::new()))).unwrap();
    let (mut rounds, mut locked) = (0, false);
    let found = databases.read(0, |_| {
        rounds += 1;
        // Another swap happens during each round, as long as swaps are possible.
        locked = databases.changing.is_locked();
        if !locked {
            databases.change_order(Order::IDENTITY, || Ok(()))?;
        }
        Ok(rounds)
    });
    assert_eq!((found.unwrap(), locked), (Some(OPTIMISTIC_ROUNDS + 1), true));
}

#[test]
fn writers_are_held_until_a_swap_is_synced_and_readers_are_not() {
    let fs = MemFs::new();
    let store = Arc::new(filled(Arc::new(fs.clone())));
    let (synced, seen) = (Arc::new(Mutex::new(Vec::new())), Arc::clone(&store));
    let notes = Arc::clone(&synced);
    let me = std::thread::current().id();
    fs.on_sync(Arc::new(move |_, _| {
        if std::thread::current().id() == me {
            notes.lock().push((seen.would_stall(true), seen.would_stall(false), both(&seen)));
        }
    }));
    swap(&store, 0, 1).unwrap();
    fs.clear_on_sync();
    let synced = synced.lock();
    assert!(!synced.is_empty() && !store.would_stall(true));
    assert!(synced.iter().all(|(writers, readers, _)| *writers && !readers), "{synced:?}");
    assert_eq!(synced.last().unwrap().2, AFTER, "the order is visible before it is synced");
}

#[test]
fn joint_write_with_a_swap_is_one_write() {
    let fs = Arc::new(MemFs::new());
    let store = filled(Arc::clone(&fs) as _);
    let order = Order::IDENTITY.swapped(0, 1).swapped(1, 9);
    let writes = vec![(0, put(b"k", b"new")), (1, vec![Op::Delete { key: b"k" }])];
    store.write_joint(&JointWrite { writes, order, space_use: SpaceUse::Takes }).unwrap();
    for store in [store, reopened(fs.crash_clone(3))] {
        let values = [0, 1, 9].map(|index| value(&store, index, b"k"));
        assert_eq!(values, ["", "", "new"]);
    }
}
