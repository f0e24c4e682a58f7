//! Blobs and logs that no record names.

use std::sync::atomic::Ordering;

use archipelago_base::random::Rng;
use parking_lot::Mutex;

use super::*;
use crate::blob::BlobOptions;
use crate::memory::{Fault, PoolCall};
use crate::volume::pending::Superfluous;

#[test]
fn removed_table_is_released_when_the_removal_is_durable() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let blob = put_table(&volume, "/1.sst");
    let removed = volume.commit(&[remove("/1.sst")]).unwrap();
    assert_eq!(blobs(&harness.pool), [blob.id], "the removal may be lost still");
    volume.wait(removed).unwrap();
    assert_eq!(blobs(&harness.pool), []);
}

#[test]
fn removed_log_is_released() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let log = put_log(&volume, "/1.log", FileClass::Wal);
    assert!(harness.pool.log_list().contains(&log.id));
    volume.wait(volume.commit(&[remove("/1.log")]).unwrap()).unwrap();
    assert!(!harness.pool.log_list().contains(&log.id));
}

#[test]
fn second_name_keeps_a_table() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let blob = put_table(&volume, "/a");
    let link = Record::Link { from: PathBuf::from("/a"), to: PathBuf::from("/b") };
    volume.wait(volume.commit(&[link, remove("/a")]).unwrap()).unwrap();
    assert_eq!(blobs(&harness.pool), [blob.id]);
    volume.wait(volume.commit(&[remove("/b")]).unwrap()).unwrap();
    assert_eq!(blobs(&harness.pool), []);
}

#[test]
fn hold_keeps_the_bytes_of_a_nameless_file() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let blob = put_table(&volume, "/1.sst");
    let (file, first) = volume.hold_path(Path::new("/1.sst")).unwrap();
    let second = volume.hold(file.key);
    volume.wait(volume.commit(&[remove("/1.sst")]).unwrap()).unwrap();
    assert!(volume.hold_path(Path::new("/1.sst")).is_none());
    drop(first);
    assert_eq!(blobs(&harness.pool), [blob.id]);
    drop(second);
    assert_eq!(blobs(&harness.pool), []);
}

#[test]
fn hold_that_ends_before_durability_releases_nothing() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let blob = put_table(&volume, "/1.sst");
    let (_, hold) = volume.hold_path(Path::new("/1.sst")).unwrap();
    let removed = volume.commit(&[remove("/1.sst")]).unwrap();
    drop(hold);
    assert_eq!(blobs(&harness.pool), [blob.id]);
    volume.wait(removed).unwrap();
    assert_eq!(blobs(&harness.pool), []);
}

#[test]
fn blob_that_was_given_up_is_released_and_never_named() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let blob = sealed(&volume, b"bytes");
    volume.give_up(blob.id);
    assert_eq!(blobs(&harness.pool), []);
    let table = file(&volume, "/1.sst", FileClass::Sst, Content::Blob(blob));
    expect_kind(volume.commit(&[table]), ErrorKind::InvalidArgument);
    assert!(names(&volume).is_empty());
}

#[test]
fn named_blob_cannot_be_given_up() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let blob = put_table(&volume, "/1.sst");
    volume.give_up(blob.id);
    assert_eq!(blobs(&harness.pool), [blob.id]);
}

#[test]
fn log_that_was_given_up_is_released() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let before = harness.pool.log_list();
    let (_, log, _) = volume.begin_log(volume.allocate(), FileClass::Wal).unwrap();
    volume.give_up_log(log);
    assert_eq!(harness.pool.log_list(), before);
}

#[test]
fn creation_without_an_answer_leaves_nothing() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let before = harness.pool.log_list();
    harness.pool.inject(PoolCall::LogCreate, 1, Fault::LoseAnswer);
    harness.pool.inject(PoolCall::BlobCreate, 1, Fault::LoseAnswer);
    expect_kind(volume.begin_log(volume.allocate(), FileClass::Wal).map(|_| ()), ErrorKind::Io);
    expect_kind(volume.begin_blob(TABLE, 0).map(|_| ()), ErrorKind::Io);
    assert_eq!(harness.pool.log_list(), before);
    assert_eq!(blobs(&harness.pool), []);
}

#[test]
fn take_over_releases_strays_and_keeps_named_objects() {
    let harness = Harness::new();
    let old = harness.open("old").unwrap();
    let named = put_table(&old, "/1.sst");
    let log = put_log(&old, "/2.log", FileClass::Wal);
    let _stray = sealed(&old, b"no name");
    let _unsealed = old.begin_blob(TABLE, 0).unwrap();
    let _unnamed = old.begin_log(old.allocate(), FileClass::Wal).unwrap();
    let new = harness.take_over("new").unwrap();
    assert_eq!(blobs(&harness.pool), [named.id]);
    let logs = harness.pool.log_list();
    assert!(logs.contains(&log.id));
    assert_eq!(logs.len(), 2, "the log file, and the namespace's");
    assert_eq!(new.core.lock().pending.len(), 0);
}

#[test]
fn release_of_strays_keeps_pending_and_held_objects() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let held = put_table(&volume, "/1.sst");
    let (_, _hold) = volume.hold_path(Path::new("/1.sst")).unwrap();
    volume.wait(volume.commit(&[remove("/1.sst")]).unwrap()).unwrap();
    let pending = sealed(&volume, b"soon");
    let reserved = volume.reserve_blob();
    let (_, log, _) = volume.begin_log(volume.allocate(), FileClass::Wal).unwrap();
    volume.core.lock().pending.release(Superfluous::Strays, Moment::default());
    volume.release_due();
    assert_eq!(harness.pool.calls(PoolCall::BlobStrays), 2, "at the open, and now");
    let mut expected = [held.id, pending.id];
    expected.sort_unstable();
    assert_eq!(blobs(&harness.pool), expected);
    assert!(harness.pool.log_list().contains(&log));
    assert_ne!(reserved, pending.id);
}

#[test]
fn refused_release_is_repeated() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let blob = put_table(&volume, "/1.sst");
    harness.pool.inject(PoolCall::BlobRelease, 1, Fault::Refuse);
    volume.wait(volume.commit(&[remove("/1.sst")]).unwrap()).unwrap();
    put(&volume, "/a").unwrap();
    assert_eq!(blobs(&harness.pool), [blob.id], "it is too early to ask again");
    harness.clock.advance(Duration::from_secs(2));
    put(&volume, "/b").unwrap();
    assert_eq!(blobs(&harness.pool), []);
}

/// Commits four logs and their removals, which are not durable yet.
fn remove_logs(volume: &Arc<Volume>) {
    let paths: Vec<String> = (0..4).map(|number| format!("/{number}.log")).collect();
    for path in &paths {
        put_log(volume, path, FileClass::Wal);
    }
    let removals: Vec<Record> = paths.iter().map(|path| remove(path)).collect();
    volume.commit(&removals).unwrap();
}

#[test]
fn close_does_not_wait_for_slow_releases() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    remove_logs(&volume);
    // Every removal takes 600 ms.
    let clock = Arc::clone(&harness.clock);
    harness.pool.on_call(Arc::new(move |_: &MemoryPool, call: PoolCall| {
        if call == PoolCall::LogRemove {
            clock.advance(Duration::from_millis(600));
        }
    }));
    volume.close().unwrap();
    assert_eq!(harness.pool.calls(PoolCall::LogRemove), 2, "the close has released for a second");
    let _next = harness.open("next").unwrap();
    assert_eq!(harness.pool.log_list().len(), 1, "the others were strays");
}

#[test]
fn close_releases_nothing_after_a_refusal() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    remove_logs(&volume);
    harness.pool.inject(PoolCall::LogRemove, 1, Fault::Refuse);
    volume.close().unwrap();
    assert_eq!(harness.pool.calls(PoolCall::LogRemove), 1);
    let _next = harness.open("next").unwrap();
    assert_eq!(harness.pool.log_list().len(), 1, "the others were strays");
}

#[test]
fn blobs_that_are_due_are_released_in_one_call() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let tables: Vec<String> = (0..20).map(|number| format!("/{number}.sst")).collect();
    let mut log = put_log(&volume, "/1.log", FileClass::Wal);
    append(&mut log, b"bytes").unwrap();
    for table in &tables {
        put_table(&volume, table);
    }
    let removals: Vec<Record> = tables.iter().map(|table| remove(table)).collect();
    // A batch that fails is repeated as a whole.
    harness.pool.inject(PoolCall::BlobRelease, 1, Fault::LoseAnswer);
    volume.wait(volume.commit(&[&removals[..], &[remove("/1.log")]].concat()).unwrap()).unwrap();
    assert_eq!(harness.pool.calls(PoolCall::BlobRelease), 1);
    assert_eq!(harness.pool.calls(PoolCall::LogRemove), 1);
    harness.clock.advance(Duration::from_secs(2));
    put(&volume, "/a").unwrap();
    assert_eq!(harness.pool.calls(PoolCall::BlobRelease), 2);
    assert_eq!(blobs(&harness.pool), []);
    assert_eq!(volume.core.lock().pending.len(), 0);
}

#[test]
fn thread_releases_strays_again() {
    let pool = MemoryPool::new(1);
    let strays_every = Duration::from_millis(2);
    let options = VolumeOptions { strays_every, ..VolumeOptions::new("owner") };
    Volume::create(&pool.stores(), NAME, &options).unwrap();
    let volume = Volume::open(&pool.stores(), NAME, &options).unwrap();
    let named = put_table(&volume, "/1.sst");
    // A process of this epoch that the owner does not know, as a late request of an earlier one.
    let (stray, epoch) = (BlobId([9; 16]), volume.epoch());
    let blob = BlobOptions { volume: volume.id(), epoch, context: TABLE, size_hint_bytes: 0 };
    // It is a stray without a seal, too, and may be gone before one.
    let _unsealed = pool.stores().blobs.create(stray, blob).unwrap();
    for _ in 0..60_000 {
        if blobs(&pool) == [named.id] {
            break;
        }
        options.clock.sleep(Duration::from_millis(1));
    }
    assert_eq!(blobs(&pool), [named.id]);
    volume.close().unwrap();
}

#[test]
fn thread_of_the_owner_releases_what_others_leave() {
    let pool = MemoryPool::new(1);
    let options = VolumeOptions::new("owner");
    Volume::create(&pool.stores(), NAME, &options).unwrap();
    let volume = Volume::open(&pool.stores(), NAME, &options).unwrap();
    let wait_until = |is_so: &dyn Fn() -> bool| {
        for _ in 0..60_000 {
            if is_so() {
                return;
            }
            options.clock.sleep(Duration::from_millis(1));
        }
        panic!("the owner's thread does not do it");
    };
    wait_until(&|| volume.is_releasing.load(Ordering::Acquire));
    let releasing = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&releasing);
    pool.on_call(Arc::new(move |_: &MemoryPool, call: PoolCall| {
        if call == PoolCall::BlobRelease {
            noted.lock().push(std::thread::current().id());
        }
    }));
    let held = put_table(&volume, "/1.sst");
    put_table(&volume, "/2.sst");
    let (_, reader) = volume.hold_path(Path::new("/1.sst")).unwrap();
    volume.wait(volume.commit(&[remove("/1.sst"), remove("/2.sst")]).unwrap()).unwrap();
    wait_until(&|| blobs(&pool) == [held.id]);
    drop(reader);
    wait_until(&|| blobs(&pool).is_empty());
    volume.give_up(sealed(&volume, b"bytes").id);
    wait_until(&|| blobs(&pool).is_empty());
    let releasing = releasing.lock().clone();
    assert_eq!(releasing.len(), 3);
    assert!(!releasing.contains(&std::thread::current().id()), "a caller has waited for a node");
    volume.close().unwrap();
}

/// Rule 12 of the store: the blobs of the pool are those that are named, pending or due, and
/// strays.
#[test]
fn space_adds_up_and_a_take_over_leaves_no_strays() {
    for seed in 0..200 {
        let harness = Harness::new();
        let mut rng = Rng::with_seed(seed);
        let mut volume = harness.open("first").unwrap();
        let mut files: Vec<String> = Vec::new();
        let mut pending: Vec<BlobRef> = Vec::new();
        for step in 0..40 {
            match rng.u8(0..10) {
                0..3 => pending.push(sealed(&volume, b"bytes")),
                3..5 if !pending.is_empty() => {
                    let blob = pending.swap_remove(rng.usize(..pending.len()));
                    let path = format!("/{step}.sst");
                    let table = file(&volume, &path, FileClass::Sst, Content::Blob(blob));
                    volume.wait(volume.commit(&[table]).unwrap()).unwrap();
                    files.push(path);
                }
                5 if !pending.is_empty() => {
                    volume.give_up(pending.swap_remove(rng.usize(..pending.len())).id);
                }
                6..8 if !files.is_empty() => {
                    let path = files.swap_remove(rng.usize(..files.len()));
                    if rng.bool() {
                        harness.pool.inject(PoolCall::BlobRelease, 1, Fault::Refuse);
                    }
                    volume.wait(volume.commit(&[remove(&path)]).unwrap()).unwrap();
                    harness.pool.clear_faults();
                }
                8 => {
                    volume = harness.take_over("next").unwrap();
                    pending.clear();
                    let blobs = blobs(&harness.pool);
                    assert_eq!(blobs.len(), files.len(), "seed {seed}: strays after a take-over");
                }
                _ => {
                    let _released = volume.release_strays().unwrap();
                }
            }
            let in_pool = blobs(&harness.pool);
            let is_known = |blob: &BlobId| {
                let core = volume.core.lock();
                core.state.blob_owner(*blob).is_some() || core.pending.has_blob(*blob)
            };
            assert!(in_pool.iter().all(is_known), "seed {seed}, step {step}: a stray");
            let named = volume.look(|state| state.len());
            assert!(in_pool.len() >= named + pending.len(), "seed {seed}, step {step}: a loss");
        }
    }
}

#[test]
fn open_goes_on_without_the_release_of_strays() {
    let harness = Harness::new();
    let _stray = sealed(&harness.open("old").unwrap(), b"no name");
    harness.pool.inject(PoolCall::BlobStrays, 1, Fault::Refuse);
    let volume = harness.take_over("new").unwrap();
    assert_eq!(blobs(&harness.pool).len(), 1);
    harness.clock.advance(Duration::from_secs(2));
    put(&volume, "/a").unwrap();
    assert_eq!(blobs(&harness.pool), []);
}

#[test]
fn owner_that_lost_its_volume_releases_nothing() {
    let harness = Harness::new();
    let old = harness.open("old").unwrap();
    let blob = put_table(&old, "/1.sst");
    let (_, hold) = old.hold_path(Path::new("/1.sst")).unwrap();
    let new = harness.take_over("new").unwrap();
    let removed = old.commit(&[remove("/1.sst")]);
    assert!(removed.and_then(|moment| old.wait(moment)).is_err());
    drop(hold);
    old.give_up(blob.id);
    assert_eq!(blobs(&harness.pool), [blob.id]);
    assert_eq!(names(&new), ["1.sst"]);
}

/// With its step left out, a test above fails; without, the volume keeps its promise.
#[cfg(feature = "sabotage")]
mod sabotaged {
    use super::*;
    use crate::Sabotage;

    #[test]
    fn early_release_is_noticed() {
        let harness = Harness::new();
        let sabotage = Sabotage { early_release: true, ..Sabotage::default() };
        let options = VolumeOptions { sabotage, ..harness.options("owner") };
        let volume = Volume::open(&harness.stores(), NAME, &options).unwrap();
        put_table(&volume, "/1.sst");
        volume.commit(&[remove("/1.sst")]).unwrap();
        volume.release_due();
        assert_eq!(blobs(&harness.pool), [], "the table is gone before its removal is durable");
    }

    #[test]
    fn ignored_pending_blob_is_noticed() {
        let harness = Harness::new();
        let sabotage = Sabotage { pending_ignored: true, ..Sabotage::default() };
        let options = VolumeOptions { sabotage, ..harness.options("owner") };
        let volume = Volume::open(&harness.stores(), NAME, &options).unwrap();
        let _pending = sealed(&volume, b"soon");
        volume.core.lock().pending.release(Superfluous::Strays, Moment::default());
        volume.release_due();
        assert_eq!(blobs(&harness.pool), [], "the pending blob is gone");
    }
}
