//! Room, debt, speed and pauses of garbage collection.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use archipelago_base::{CfId, Result};
use archipelago_env::WriterRoom;
use archipelago_env::capacity::CapacityFs;
use parking_lot::Mutex;

use super::super::{exposed_bytes_max, next_gc, run_gc_task};
use super::*;
use crate::db::background::space;
use crate::db::state::family::{DELAYED, Family, STOPPED};
use crate::db::state::family_space::{ExposedGarbage, FamilySpace};
use crate::db::write::disk_room;
use crate::db::{FaultPoint, IngestOptions};
use crate::gc::pick::GcReason;
use crate::gc::space_plan::{Margin, SpaceEvent};
use crate::manifest::SpaceFigures;
use crate::sst::{SstWriter, TableOptions};

const KEYS: u32 = 40;
/// A limit that stops writers.
const STOPPING: SpaceLimit = SpaceLimit { used_bytes: 10, slowdown_bytes: 1, stop_bytes: 10 };

fn key(at: u32) -> Vec<u8> {
    format!("key{at:05}").into_bytes()
}

/// Writes the keys for which `is` holds, and compacts the family.
fn overwrite(store: &mut Store, round: u8, is: impl Fn(u32) -> bool) {
    for at in (0..KEYS).filter(|at| is(*at)) {
        let value = (0..3000).map(|byte| round ^ (byte as u8).wrapping_mul(31)).collect();
        store.put_patiently(key(at), value);
    }
    store.compact();
}

/// A family whose values are not compressed on disk.
fn plain_family(bound: f64) -> CfOptions {
    CfOptions {
        space_amplification_max: bound,
        buckets: 1,
        compression: Compression::None,
        compression_last: Compression::None,
        ..small_family(64)
    }
}

/// A store in which two thirds of the bytes in value files are garbage. The bound is `bound`.
fn with_garbage(fs: Arc<dyn FileSystem>, memory: MemFs, bound: f64) -> Store {
    let family = plain_family(0.0);
    let db = Store::open_on(Arc::clone(&fs), &family);
    let (model, rng) = (BTreeMap::new(), Rng::with_seed(7));
    let mut store = Store { fs: memory, db, model, rng, family };
    overwrite(&mut store, 0, |_| true);
    overwrite(&mut store, 1, |at| at % 3 > 0);
    let Store { fs: memory, db, model, rng, family } = store;
    db.close().expect("closes");
    let family = CfOptions { space_amplification_max: bound, ..family };
    let db = Store::open_on(fs, &family);
    let store = Store { fs: memory, db, model, rng, family };
    assert!(store.version().values().exposed_bytes() > 60_000, "{:?}", store.version().values());
    store
}

fn in_memory(bound: f64) -> Store {
    let memory = MemFs::new();
    with_garbage(Arc::new(memory.clone()), memory, bound)
}

fn family_of(store: &Store) -> Arc<Family> {
    Arc::clone(&store.db.default_family().family)
}

/// Whether writers are close to the bound.
fn is_pressed(store: &Store) -> bool {
    let mut state = store.db.inner.jobs.lock(Order::none());
    state.space_mut(store.db.default_family().id()).is_pressed()
}

#[test]
fn room_of_an_heir_is_reserved_while_its_job_runs() {
    let store = in_memory(1.5);
    let db = &store.db.inner;
    let task = next_gc(db.pick_owners(), &mut db.jobs.lock(Order::none()), GcWorker::Reserved)
        .expect("is due");
    let reserved = db.disk.expected_output_bytes();
    assert_eq!(reserved, task.room_bytes);
    run_gc_task(db, &task).expect("collects");
    assert_eq!(db.disk.expected_output_bytes(), 0);
    let version = store.version();
    let heir = version.values().heirs().map(|(_, heir)| heir).max().expect("an heir exists");
    let bytes = version.values().get(heir).expect("is live").size_bytes;
    assert!(bytes <= reserved && reserved < 2 * bytes, "{bytes} of {reserved}");
    store.check();
}

#[test]
fn collection_without_room_on_the_disk_waits() {
    let memory = MemFs::new();
    let disk = CapacityFs::new(Arc::new(memory.clone()), Path::new("/db"), 64 << 20).unwrap();
    let store = with_garbage(Arc::new(disk.clone()), memory, 1.5);
    assert!(!is_pressed(&store), "a job that frees space may use the reserve");
    let db = &store.db.inner;
    disk_room::tend_disk(db);
    let is_due = || {
        let mut state = db.jobs.lock(Order::none());
        let task = next_gc(db.pick_owners(), &mut state, GcWorker::Reserved);
        if let Some(task) = &task {
            state.end(task.job_id);
            disk_room::return_room(&db.disk, task.room_bytes);
        }
        task.is_some()
    };
    assert!(is_due());
    let free = disk.free();
    disk.occupy(free);
    disk_room::tend_disk(db);
    assert!(!is_due() && !is_due(), "{} bytes are free", disk.free());
    disk.occupy(0);
    disk_room::tend_disk(db);
    assert!(is_due(), "{} bytes are free", disk.free());
    store.check();
}

/// A store in which most records above the last level were found to shadow an older one.
fn with_shadow_share(bound: f64) -> Store {
    let mut store = Store::new(plain_family(bound));
    (0..5).for_each(|round| overwrite(&mut store, round, |_| true));
    let mut state = store.db.inner.jobs.lock(Order::none());
    let space = state.space_mut(store.db.default_family().id());
    let share = space.shadow_share().share();
    assert!(share > 0.7, "{share}");
    drop(state);
    store
}

/// The margin of the last examination of the family's space.
fn margin(store: &Store) -> Margin {
    let mut state = store.db.inner.jobs.lock(Order::none());
    let view = state.space_mut(store.db.default_family().id()).view().copied();
    view.and_then(|view| view.bound).expect("there is a bound").1
}

#[test]
fn measured_share_is_kept_over_a_restart() {
    let share = |store: &Store| {
        let mut state = store.db.inner.jobs.lock(Order::none());
        *state.space_mut(store.db.default_family().id()).shadow_share()
    };
    let store = with_shadow_share(1.05);
    let before = share(&store);
    // The second open finds the share in the snapshot of a new manifest.
    let store = store.reopened();
    assert_eq!(share(&store), before);
    let store = store.reopened();
    assert_eq!(share(&store), before);
    store.check();
}

#[test]
fn debt_of_hidden_garbage_is_kept_over_a_restart() {
    let mut store = with_shadow_share(1.05);
    for at in 0..KEYS {
        store.db.delete(&key(at)).expect("deletes");
    }
    store.db.flush(store.db.default_family()).expect("flushes");
    let before = margin(&store);
    assert!(before.debt_bytes > 0 && is_pressed(&store), "{before:?}");
    store.model.clear();
    let store = store.reopened();
    let after = margin(&store);
    assert_eq!(
        after.used_bytes, before.used_bytes,
        "hidden garbage is known from the first moment"
    );
    assert!(after.debt_bytes > 0 && is_pressed(&store), "{after:?}");
    store.check();
}

#[test]
fn restart_gives_no_room_to_writers_that_the_bound_stops() {
    let mut store = with_shadow_share(1.05);
    let mut before = margin(&store);
    for at in 0..200 {
        let now = margin(&store);
        if now.bytes() <= 0 {
            break;
        }
        before = now;
        let (key, value) = (key(at % KEYS), vec![at as u8; 5000]);
        store.db.put(&key, &value).expect("is not stopped yet");
        store.model.insert(key, value);
        store.db.flush(store.db.default_family()).expect("flushes");
    }
    assert!(margin(&store).bytes() <= 0, "updates did not reach the bound");
    let store = store.reopened();
    // The manifest has the margin before the last flush.
    let after = margin(&store);
    assert!(after.bytes() <= before.bytes(), "{after:?} after {before:?}");
    store.check();
}

#[test]
fn figures_of_a_family_end_with_its_value_files() {
    let mut store = Store::new(plain_family(1.5));
    (0..2).for_each(|round| overwrite(&mut store, round, |_| true));
    store.family.value_separation_bytes = 0;
    let mut store = store.reopened();
    overwrite(&mut store, 2, |_| true);
    assert!(store.version().values().is_empty(), "all values are in the tables again");
    let mut store = store.reopened();
    let kept = kept_figures(&store).expect("the manifest has those of the time before");
    assert!(kept.bound.is_some(), "{kept:?}");
    let cf = store.db.default_family().id();
    let has_space = store.db.inner.jobs.lock(Order::none()).has_space(cf);
    assert!(!has_space, "the bound has no effect without separated values");
    store.put_patiently(key(0), vec![7; 50]);
    store.db.flush(store.db.default_family()).expect("flushes");
    let kept = kept_figures(&store).expect("the measured share stays");
    assert!(kept.bound.is_none(), "{kept:?}");
    store.check();
}

fn kept_figures(store: &Store) -> Option<SpaceFigures> {
    let cf = store.db.default_family().id();
    store.db.inner.storage.lock_manifest(Order::none()).space_figures(cf)
}

#[test]
fn bound_ends_with_the_last_value_file() {
    let family = CfOptions { write_buffer_bytes: 1 << 20, ..plain_family(1.05) };
    let mut store = Store::new(family);
    (0..5).for_each(|round| overwrite(&mut store, round, |_| true));
    for at in 0..KEYS {
        store.db.delete(&key(at)).expect("deletes");
    }
    store.model.clear();
    store.compact();
    assert!(store.version().values().is_empty(), "every value is deleted");
    // Most of these records would count as hidden garbage.
    for at in 0..2000 {
        store.put_patiently(key(at), vec![7; 50]);
    }
    store.db.flush(store.db.default_family()).expect("flushes");
    assert!(store.version().values().is_empty(), "short values are not separated");
    let limit = family_of(&store).space.stop_bytes();
    assert!(!is_pressed(&store) && limit == 0, "writers are bounded at {limit} bytes");
    let kept = kept_figures(&store).expect("the measured share stays");
    assert!(kept.bound.is_none(), "{kept:?}");
    let report = store.db.values(store.db.default_family()).expect("reports");
    assert!(report.space.is_none(), "no bound is reported");
    overwrite(&mut store, 6, |_| true);
    assert!(margin(&store).allowance_bytes > 0, "the bound holds again");
    store.check();
}

#[test]
fn bulk_deletes_delay_writers_and_do_not_stop_them() {
    let mut store = with_shadow_share(1.05);
    assert!(!is_pressed(&store));
    let before = store.debt().bytes();
    for at in 0..KEYS {
        store.db.delete(&key(at)).expect("deletes");
    }
    store.db.flush(store.db.default_family()).expect("flushes");
    let debt = store.debt();
    assert!(debt.bytes() > before, "{debt:?}");
    assert_eq!(debt.last_event(), Some(SpaceEvent::Delete));
    let family = family_of(&store);
    let (used, stop) = (family.space.used_bytes(), family.space.stop_bytes());
    assert!(family.space.slowdown_bytes() <= used && used < stop, "{used} of {stop}");
    assert!(store.db.would_stall(store.db.default_family()));
    store.db.put(b"another", b"value").expect("is delayed and not stopped");
    store.model.clear();
    store.model.insert(b"another".to_vec(), b"value".to_vec());
    store.compact();
    assert_eq!(store.debt().bytes(), 0, "what was freed repays the debt");
    store.check();
}

#[test]
fn compaction_of_a_delayed_family_ends_its_turn() {
    let store = with_shadow_share(1.05);
    // The last key keeps its value file, without which the bound would end.
    for at in 0..KEYS - 1 {
        store.db.delete(&key(at)).expect("deletes");
    }
    store.db.flush(store.db.default_family()).expect("flushes");
    assert!(is_pressed(&store));
    let turn = || space::demands(&store.db.inner.jobs.lock(Order::none()))[0].turn;
    // The latest compaction may have been one of this family while its writers were delayed.
    store.db.inner.jobs.lock(Order::none()).note_compaction(CfId(9));
    assert!(turn().is_some());
    while turn().is_some() {
        assert!(store.db.step_background().expect("steps"), "the deletes can sink");
    }
}

#[test]
fn debt_counts_an_event_once() {
    let mut store = Store::new(plain_family(1.05));
    overwrite(&mut store, 0, |_| true);
    let cf = store.db.default_family().id();
    let debt = |store: &Store| {
        let mut state = store.db.inner.jobs.lock(Order::none());
        let debt = *state.space_mut(cf).debt();
        (debt.bytes(), debt.last_event())
    };
    let (before, _) = debt(&store);
    let delete_all = |store: &Store| {
        let family = store.db.default_family();
        store.db.delete_range(family, &key(0), &key(KEYS), &WriteOptions::default()).unwrap();
        store.db.flush(family).expect("flushes");
    };
    delete_all(&store);
    let (once, event) = debt(&store);
    assert!(once > before, "{once} after {before}");
    assert_eq!(event, Some(SpaceEvent::RangeDelete));
    let family = family_of(&store);
    let (used, stop) = (family.space.used_bytes(), family.space.stop_bytes());
    assert!(used < stop, "{used} of {stop}: a range delete delays writers and does not stop them");
    // The same garbage is examined again, and the same keys are deleted again by range deletes.
    for _ in 0..3 {
        let db = &store.db.inner;
        let event = Some(SpaceEvent::RangeDelete);
        space::note_all(db.space_owners(), &mut db.jobs.lock(Order::none()), event);
        assert_eq!(debt(&store).0, once, "a look adds to the debt");
    }
    delete_all(&store);
    assert!(debt(&store).0 <= once, "{} after {once}", debt(&store).0);
    store.model.clear();
    store.compact();
    assert_eq!(debt(&store).0, 0, "what was freed repays the debt");
    store.check();
}

/// Leaves all value files of the default family out of garbage collections, as after failures.
fn leave_out_all_files(store: &Store) {
    let (db, version) = (&store.db.inner, store.version());
    let mut state = db.jobs.lock(Order::none());
    let now_ns = db.context.clock().now_ns();
    let space = state.space_mut(store.db.default_family().id());
    for (file, _) in version.values().files() {
        // Enough failures for a pause of half an hour.
        (0..12).for_each(|_| space.failures_mut().note_failure(file.no, now_ns));
    }
    space.end_rest();
}

#[test]
fn writers_do_not_wait_for_a_job_of_another_family() {
    let store = in_memory(1.05);
    let (db, family) = (&store.db.inner, family_of(&store));
    let other = store.db.create_family("other", plain_family(0.0)).expect("creates");
    leave_out_all_files(&store);
    let job_of = |cf| RunningKind::Gc { cf, inputs: Vec::new(), by: GcWorker::Reserved };
    let own_job = db.jobs.lock(Order::none()).start(job_of(family.id));
    assert!(!store.db.step_background().expect("steps"), "every file is left out");
    assert!(family.space.stop_bytes() > 0, "the job of the family may free space");
    let other_job = {
        let mut state = db.jobs.lock(Order::none());
        state.end(own_job);
        state.start(job_of(other.id()))
    };
    assert!(!store.db.step_background().expect("steps"), "every file is left out");
    assert_eq!(family.space.stop_bytes(), 0, "the other job frees no space of the family");
    db.jobs.lock(Order::none()).end(other_job);
}

#[test]
fn writers_wait_for_room_that_a_job_of_another_family_holds() {
    let memory = MemFs::new();
    let disk = CapacityFs::new(Arc::new(memory.clone()), Path::new("/db"), 64 << 20).unwrap();
    let store = with_garbage(Arc::new(disk), memory, 1.05);
    let (db, family) = (&store.db.inner, family_of(&store));
    let other = store.db.create_family("other", plain_family(0.0)).expect("creates");
    assert!(is_pressed(&store));
    let room_bytes = 1 << 40;
    disk_room::add_running(&db.disk, room_bytes);
    let job = RunningKind::Gc { cf: other.id(), inputs: Vec::new(), by: GcWorker::Reserved };
    let job = db.jobs.lock(Order::none()).start(job);
    assert!(!store.db.step_background().expect("steps"), "no heir has room");
    assert!(family.space.stop_bytes() > 0, "the end of the job gives back room");
    db.jobs.lock(Order::none()).end(job);
    assert!(!store.db.step_background().expect("steps"), "no heir has room");
    assert_eq!(family.space.stop_bytes(), 0, "no job runs that would give back room");
    disk_room::return_room(&db.disk, room_bytes);
}

#[test]
fn released_writers_are_bounded_again_by_a_job_of_their_family() {
    let store = in_memory(1.05);
    let (db, family) = (&store.db.inner, family_of(&store));
    leave_out_all_files(&store);
    let step = || {
        assert!(!store.db.step_background().expect("steps"), "every file is left out");
        family.space.stop_bytes()
    };
    assert_eq!(step(), 0, "nothing would end the wait of a writer");
    let job = RunningKind::Gc { cf: family.id, inputs: Vec::new(), by: GcWorker::Reserved };
    let job = db.jobs.lock(Order::none()).start(job);
    assert!(step() > 0, "the job may free space");
    let report = store.db.values(store.db.default_family()).expect("reports");
    assert!(!report.space.expect("looked").cannot_keep_bound);
    db.jobs.lock(Order::none()).end(job);
    assert_eq!(step(), 0, "the job has ended");
}

#[test]
fn work_that_was_found_is_not_looked_for_again_immediately() {
    let store = in_memory(1.05);
    let mut state = store.db.inner.jobs.lock(Order::none());
    let space = state.space_mut(store.db.default_family().id());
    assert!(space.may_lack_work(0));
    space.note_work_found(100);
    assert!(!space.may_lack_work(99) && space.may_lack_work(100));
    let (view, demand) = (*space.view().expect("value files exist"), space.demand().copied());
    space.set_view(view, demand);
    assert!(space.may_lack_work(0), "a new version may have no work");
}

#[test]
fn writers_are_released_while_another_family_has_due_jobs() {
    let store = in_memory(1.05);
    let family = family_of(&store);
    let other = store.db.create_family("other", plain_family(0.0)).expect("creates");
    leave_out_all_files(&store);
    store.db.put_with(&other, b"key", b"value", &WriteOptions::default()).expect("writes");
    assert!(family.space.stop_bytes() > 0);
    // Each step of the flush has a job of the other family.
    store.db.flush(&other).expect("flushes");
    assert_eq!(family.space.stop_bytes(), 0, "nothing would end the wait of a writer");
}

#[test]
fn debt_counts_an_ingestion_once() {
    let mut store = with_shadow_share(1.05);
    let before = store.debt().bytes();
    let fs: Arc<dyn FileSystem> = Arc::new(store.fs.clone());
    let options = TableOptions { compression: Compression::None, ..TableOptions::default() };
    let mut writer = SstWriter::create(&fs, Path::new("/ingested.sst"), options).expect("creates");
    for at in 0..KEYS {
        let value = vec![at as u8; 3000];
        writer.put(&key(at), &value).expect("adds");
        store.model.insert(key(at), value);
    }
    writer.finish().expect("ends");
    let family = family_of(&store);
    let (cf, options) = (store.db.default_family(), IngestOptions::default());
    store.db.ingest(cf, &["/ingested.sst"], &options).expect("ingests");
    let once = store.debt();
    assert!(once.bytes() > before, "{once:?} after {before}");
    assert_eq!(once.last_event(), Some(SpaceEvent::Ingestion));
    let (used, stop) = (family.space.used_bytes(), family.space.stop_bytes());
    assert!(used < stop, "{used} of {stop}: an ingestion delays writers and does not stop them");
    assert!(store.db.would_stall(store.db.default_family()));
    for _ in 0..3 {
        let db = &store.db.inner;
        let event = Some(SpaceEvent::Ingestion);
        space::note_all(db.space_owners(), &mut db.jobs.lock(Order::none()), event);
        assert_eq!(store.debt(), once, "a look adds to the debt");
    }
    store.compact();
    assert_eq!(store.debt().bytes(), 0, "what was freed repays the debt");
    store.check();
}

/// Garbage collections that wait, once picked.
struct HeldCollections {
    /// Its drop ends the wait.
    release: mpsc::Sender<()>,
    /// Gets a message for each garbage collection that waits.
    is_picked: Receiver<()>,
    /// Gets a message whenever a stopped writer begins to wait.
    is_waiting: Receiver<()>,
}

/// Opens the default family with threads, and holds its garbage collections.
fn with_held_collections(fs: MemFs, family: CfOptions) -> (Db, HeldCollections) {
    let (release, released) = mpsc::channel::<()>();
    let (picked, is_picked) = mpsc::channel();
    let (waiting, is_waiting) = mpsc::channel();
    let released = Mutex::new(released);
    let fault: FaultPoint = Arc::new(move |point: &str| {
        // The test may have ended, so that nothing receives the messages.
        match point {
            "gc.picked" => {
                let _ = picked.send(());
                // The channel has no message, so that the call ends when it is closed.
                let _ = released.lock().recv();
            }
            "write.waits" => drop(waiting.send(())),
            _ => {}
        }
        Ok(())
    });
    let components = Components {
        background: BackgroundMode::Threads,
        fs: Arc::new(fs),
        families: [("default".to_owned(), family)].into_iter().collect(),
        seed: Some(1),
        fault_point: Some(fault),
        ..Components::default()
    };
    let options = DbOptions {
        wal_segment_bytes: 64 << 10,
        block_cache_bytes: 1 << 20,
        ..DbOptions::default()
    };
    let db = Db::open_with("/db", options, components).expect("opens");
    (db, HeldCollections { release, is_picked, is_waiting })
}

#[test]
fn writer_that_waits_for_space_is_counted() {
    let Store { fs, db, family, .. } = in_memory(1.05);
    db.close().expect("closes");
    let (db, held) = with_held_collections(fs, family);
    let cf = db.default_family();
    held.is_picked.recv().expect("garbage is due");
    let stalls = || db.statistics().get(Ticker::StallSpaceNs);
    assert_eq!(stalls(), 0);
    assert!(db.would_stall(cf), "garbage is close to the bound, and nothing was collected");
    // The first install of a collection replaces the limit.
    cf.family.space.set(Some(STOPPING), 0);
    scheduler::decide_throttles(db.inner.stall_owners(), &db.inner.view, &[cf.id()]);
    let is_released = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            db.put(b"another", b"value").expect("writes");
            assert!(is_released.load(Ordering::SeqCst), "the writer did not wait");
        });
        // Without the bound, a writer that does not wait would hang the test.
        held.is_waiting.recv_timeout(Duration::from_secs(60)).expect("the writer waits");
        is_released.store(true, Ordering::SeqCst);
        drop(held.release);
        writer.join().expect("the writer goes on");
    });
    assert!(stalls() > 0);
    let others = [Ticker::StallL0Ns, Ticker::StallMemtablesNs, Ticker::StallPendingNs];
    assert!(others.iter().all(|ticker| db.statistics().get(*ticker) == 0));
    db.wait_for_background().expect("collects");
    assert!(db.statistics().get(Ticker::GcJobs) > 0);
    assert_eq!(cf.family.space.stop_bytes(), 0, "the garbage is collected");
    assert_eq!(db.get(b"another").expect("reads").as_deref(), Some(&b"value"[..]));
    db.close().expect("closes");
}

#[test]
fn writers_stay_bounded_while_picks_are_held_back() {
    let store = in_memory(1.05);
    let (db, family) = (&store.db.inner, family_of(&store));
    assert!(is_pressed(&store) && family.space.stop_bytes() > 0);
    leave_out_all_files(&store);
    db.jobs.lock(Order::none()).pause();
    assert!(!store.db.step_background().expect("steps"), "all is held back");
    assert!(family.space.stop_bytes() > 0, "there may be work, but writers were released");
    db.jobs.lock(Order::none()).unpause();
    assert!(!store.db.step_background().expect("steps"), "every file is left out");
    assert_eq!(family.space.stop_bytes(), 0, "nothing would end the wait of a writer");
    let report = store.db.values(store.db.default_family()).expect("reports");
    assert!(report.space.expect("looked").cannot_keep_bound);
    assert!(report.to_string().contains("it cannot be kept"), "{report}");
    // A new version may have work again.
    store.db.put(b"another", b"key").expect("writes");
    store.db.flush(store.db.default_family()).expect("flushes");
    assert!(family.space.stop_bytes() > 0);
}

/// Sets a limit that stops the writers of the default family, and decides their throttle.
fn stop_writers(store: &Store) {
    let (db, family) = (&store.db.inner, family_of(store));
    family.space.set(Some(STOPPING), 0);
    scheduler::decide_throttles(db.stall_owners(), &db.view, &[family.id]);
    assert!(store.db.would_stall(store.db.default_family()));
}

/// Writes a record, unless the write would have to wait.
fn put_without_waiting(store: &Store) -> Result<()> {
    let options = WriteOptions { no_slowdown: true, ..WriteOptions::default() };
    store.db.put_with(store.db.default_family(), b"key", b"value", &options)
}

#[test]
fn released_family_takes_writes_that_do_not_wait() {
    let store = in_memory(1.05);
    leave_out_all_files(&store);
    stop_writers(&store);
    let refused = put_without_waiting(&store).expect_err("writers are stopped");
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert!(!store.db.step_background().expect("steps"), "every file is left out");
    assert!(!store.db.would_stall(store.db.default_family()), "nothing can be collected");
    put_without_waiting(&store).expect("writers were released");
}

#[test]
fn write_is_not_refused_for_a_limit_that_is_gone() {
    let store = in_memory(1.5);
    stop_writers(&store);
    assert!(put_without_waiting(&store).is_err());
    family_of(&store).space.set(None, 0);
    put_without_waiting(&store).expect("there is no limit");
}

#[test]
fn only_a_refusal_for_space_is_decided_again() {
    let store = in_memory(1.5);
    let family = family_of(&store);
    family.throttle.store(STOPPED, Ordering::Relaxed);
    assert!(put_without_waiting(&store).is_err(), "the next install decides");
    family.is_slowed_for_space.store(true, Ordering::Relaxed);
    put_without_waiting(&store).expect("there is no limit");
}

#[test]
fn full_pool_delays_no_write_that_frees_space() {
    let store = Store::new(CfOptions { write_buffer_bytes: 1 << 20, ..small_family(64) });
    let (db, family) = (&store.db.inner, family_of(&store));
    let room = WriterRoom { left_bytes: 0, slowdown_bytes: 1 << 20 };
    assert!(db.pacing.note_writer_room(Some(room)));
    scheduler::decide_throttles(db.stall_owners(), &db.view, &[family.id]);
    assert!(store.db.would_stall(store.db.default_family()));
    assert!(!store.db.is_behind(store.db.default_family()), "no background work ends the delay");
    let stalled = || store.db.statistics().get(Ticker::StallPoolNs);
    for at in 0..KEYS {
        store.db.delete(&key(at)).expect("writes");
    }
    assert_eq!(stalled(), 0, "deletes are not delayed");
    store.db.put(&key(0), b"value").expect("writes");
    assert!(stalled() > 0, "the pool has no room for writers");
}

#[test]
fn full_pool_leaves_other_delays_of_writes_that_free_space() {
    let store = Store::new(small_family(64));
    let family = family_of(&store);
    family.throttle.store(DELAYED, Ordering::Relaxed);
    family.is_slowed_for_pool.store(true, Ordering::Relaxed);
    let stalled = || store.db.statistics().get(Ticker::StallL0Ns);
    store.db.delete(&key(0)).expect("writes");
    assert_eq!(stalled(), 0, "only the pool delays writers");
    family.freeing_rate.store(1, Ordering::Relaxed);
    store.db.delete(&key(1)).expect("writes");
    assert!(stalled() > 0, "compactions are behind as well");
}

#[test]
fn release_of_a_snapshot_delays_writers() {
    let mut store = Store::new(plain_family(1.05));
    overwrite(&mut store, 0, |_| true);
    let snapshot = store.db.snapshot();
    overwrite(&mut store, 1, |_| true);
    assert!(!is_pressed(&store), "records that a snapshot keeps are live");
    drop(snapshot);
    let (db, family) = (&store.db.inner, family_of(&store));
    let changes = {
        let mut state = db.jobs.lock(Order::none());
        state.take_limit_changes();
        space::note_snapshots(db.space_owners(), &mut state);
        state.take_limit_changes()
    };
    assert_eq!(changes, [family.id]);
    assert!(!store.db.would_stall(store.db.default_family()), "nothing was decided yet");
    scheduler::decide_throttles(db.stall_owners(), &db.view, &changes);
    assert!(store.db.would_stall(store.db.default_family()));
}

#[test]
fn flush_that_finds_garbage_of_a_released_snapshot_names_it() {
    let mut store = Store::new(plain_family(1.05));
    overwrite(&mut store, 0, |_| true);
    let snapshot = store.db.snapshot();
    overwrite(&mut store, 1, |_| true);
    drop(snapshot);
    let before = store.debt().bytes();
    // The flush is installed before background work notices the release.
    store.db.put(b"another", b"value").expect("writes");
    store.db.flush(store.db.default_family()).expect("flushes");
    let debt = store.debt();
    assert!(debt.bytes() > before, "{debt:?} after {before}");
    assert_eq!(debt.last_event(), Some(SpaceEvent::SnapshotReleased));
}

#[test]
fn speed_of_garbage_collection_follows_the_last_jobs() {
    const SECOND_NS: u64 = 1_000_000_000;
    let mut space = FamilySpace::default();
    assert_eq!(space.freed_bytes_per_s(), 0, "nothing was measured");
    space.note_freed(4000, SECOND_NS);
    assert_eq!(space.freed_bytes_per_s(), 4000, "the first measurement counts in full");
    space.note_freed(8000, SECOND_NS);
    assert_eq!(space.freed_bytes_per_s(), 5000);
    (0..40).for_each(|_| space.note_freed(400, SECOND_NS / 2));
    assert!((780..830).contains(&space.freed_bytes_per_s()), "{}", space.freed_bytes_per_s());
    space.note_freed(u64::MAX, 0);
    assert!(space.freed_bytes_per_s() > 1 << 60, "a job in no time overflows nothing");
}

#[test]
fn writers_learn_the_speed_of_a_collection_for_space() {
    let store = in_memory(1.5);
    let (db, family) = (&store.db.inner, family_of(&store));
    assert_eq!(family.space.freed_bytes_per_s(), 0);
    let task = next_gc(db.pick_owners(), &mut db.jobs.lock(Order::none()), GcWorker::Reserved)
        .expect("is due");
    run_gc_task(db, &task).expect("collects");
    assert!(family.space.freed_bytes_per_s() > 0);
}

#[test]
fn every_step_of_a_collection_is_timed() {
    let store = in_memory(1.5);
    let db = &store.db.inner;
    let task = next_gc(db.pick_owners(), &mut db.jobs.lock(Order::none()), GcWorker::Reserved)
        .expect("is due");
    run_gc_task(db, &task).expect("collects");
    for ticker in [
        Ticker::GcKeyReadNs,
        Ticker::GcLookupNs,
        Ticker::GcValueReadNs,
        Ticker::GcWriteNs,
        Ticker::GcFinishNs,
    ] {
        assert!(store.ticker(ticker) > 0, "{}", ticker.name());
    }
}

#[test]
fn delayed_writers_make_all_garbage_due() {
    let exposed_max = |store: &Store| {
        let mut state = store.db.inner.jobs.lock(Order::none());
        exposed_bytes_max(state.space_mut(store.db.default_family().id()))
    };
    let (unbounded, wide, tight) = (in_memory(0.0), in_memory(1.5), in_memory(1.05));
    assert_eq!(exposed_max(&unbounded), u64::MAX);
    assert!(!is_pressed(&wide) && is_pressed(&tight));
    let live = wide.version().values().referenced_bytes();
    let planned = exposed_max(&wide);
    assert!(live / 4 < planned && planned < live / 2 + live / 10, "{planned} of {live}");
    assert_eq!(exposed_max(&tight), 0);
    // Debt does not count against writers.
    let mut state = tight.db.inner.jobs.lock(Order::none());
    let space = state.space_mut(tight.db.default_family().id());
    let (_, margin) = space.view().and_then(|view| view.bound).expect("has a bound");
    let owing = Margin { debt_bytes: margin.used_bytes, ..margin };
    assert!(margin.is_pressed() && !owing.is_pressed());
}

#[test]
fn nearly_full_pool_makes_garbage_due_before_writers_are_delayed() {
    let store = in_memory(0.0);
    let (db, family) = (&store.db.inner, family_of(&store));
    let due = || {
        let mut state = db.jobs.lock(Order::none());
        let task = next_gc(db.pick_owners(), &mut state, GcWorker::Reserved)?;
        state.end(task.job_id);
        disk_room::return_room(&db.disk, task.room_bytes);
        Some(task.reason)
    };
    let slowdown_bytes = 1 << 20;
    let note_room = |left_bytes| {
        let room = WriterRoom { left_bytes, slowdown_bytes };
        assert!(!db.pacing.note_writer_room(Some(room)), "the pool slows no writers down");
    };
    let exposed = store.version().values().exposed_bytes();
    assert_eq!(due(), None, "the family has no bound on space");
    note_room(slowdown_bytes + exposed);
    assert_eq!(due(), None, "the garbage fits into the room that is left");
    note_room(slowdown_bytes + exposed - 1);
    assert_eq!(due(), Some(GcReason::Space));
    scheduler::decide_throttles(db.stall_owners(), &db.view, &[family.id]);
    assert!(!store.db.would_stall(store.db.default_family()));
}

#[test]
fn failures_of_files_that_are_gone_are_forgotten() {
    let store = in_memory(1.5);
    let (db, cf) = (&store.db.inner, store.db.default_family().id());
    let live = store.version().values().files().map(|(file, _)| file.no).next().expect("exists");
    let mut state = db.jobs.lock(Order::none());
    let now_ns = db.context.clock().now_ns();
    for no in [live, 999_999] {
        (0..12).for_each(|_| state.space_mut(cf).failures_mut().note_failure(no, now_ns));
    }
    assert_eq!(state.space_mut(cf).failures().known().len(), 2);
    let task = next_gc(db.pick_owners(), &mut state, GcWorker::Reserved).expect("others are due");
    assert!(task.inputs.iter().all(|input| input.no != live), "{:?}", task.inputs);
    let known = state.space_mut(cf).failures().known();
    assert_eq!(known.into_iter().collect::<Vec<_>>(), [live]);
    state.end(task.job_id);
    disk_room::return_room(&db.disk, task.room_bytes);
}

#[test]
fn family_rests_until_its_version_or_a_pause_ends() {
    let (store, other) = (in_memory(0.0), in_memory(0.0));
    let (version, another) = (store.version(), other.version());
    let mut space = FamilySpace::default();
    let (within, over) = (ExposedGarbage::WithinLimit, ExposedGarbage::OverLimit);
    assert!(!space.is_at_rest(&version, 0, within));
    space.note_rest(&version, 100, within);
    let is_at_rest = |at_ns| space.is_at_rest(&version, at_ns, within);
    assert!(is_at_rest(99) && !is_at_rest(100));
    assert!(!space.is_at_rest(&another, 99, within), "a new version is examined");
    assert!(!space.is_at_rest(&version, 99, over), "a lower limit makes garbage due");
    space.note_rest(&version, 100, over);
    assert!(space.is_at_rest(&version, 99, over), "it was due before and could not be taken");
    assert!(space.is_at_rest(&version, 99, within));
    space.end_rest();
    assert!(!space.is_at_rest(&version, 99, within));
}
