//! Kills and power losses at every call, of owners and of takers.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::*;
use crate::memory::{Fault, PoolCall};

/// A pool as it was at one call, and how far the owner had come.
struct Snapshot {
    killed: MemoryPool,
    crashed: MemoryPool,
    call: PoolCall,
    /// Number of steps that were acknowledged.
    acknowledged: usize,
    /// Number of steps that were submitted, or were about to be.
    submitted: usize,
}

/// Counts the steps of a workload, and takes a snapshot at each call.
#[derive(Default)]
struct Recorder {
    acknowledged: AtomicUsize,
    submitted: AtomicUsize,
    snapshots: Mutex<Vec<Snapshot>>,
}

impl Recorder {
    fn attach(pool: &MemoryPool) -> Arc<Self> {
        let recorder = Arc::new(Self::default());
        let record = Arc::clone(&recorder);
        pool.on_call(Arc::new(move |pool, call| {
            let seed = record.snapshots.lock().len() as u64;
            let snapshot = Snapshot {
                killed: pool.kill_clone(seed),
                crashed: pool.crash_clone(seed),
                call,
                acknowledged: record.acknowledged.load(Ordering::SeqCst),
                submitted: record.submitted.load(Ordering::SeqCst),
            };
            record.snapshots.lock().push(snapshot);
        }));
        recorder
    }

    fn take(&self) -> Vec<Snapshot> {
        std::mem::take(&mut self.snapshots.lock())
    }
}

/// The commits of the workload, one step each, with a wait after every second one.
fn workload(volume: &Arc<Volume>, recorder: &Recorder) {
    for step in 0..12 {
        recorder.submitted.store(step + 1, Ordering::SeqCst);
        let records = match step {
            3 => {
                let (from, to) = (PathBuf::from("/f2"), PathBuf::from("/renamed"));
                vec![Record::Rename { from, to }]
            }
            5 => vec![remove("/f0")],
            7 => {
                let blob = sealed(volume, b"table");
                vec![file(volume, "/table", FileClass::Sst, Content::Blob(blob))]
            }
            9 => vec![remove("/table")],
            _ => {
                vec![file(volume, &format!("/f{step}"), FileClass::Other, Content::Inline(vec![]))]
            }
        };
        let moment = volume.commit(&records).expect("committed");
        if step % 2 == 1 {
            volume.wait(moment).expect("durable");
            recorder.acknowledged.store(step + 1, Ordering::SeqCst);
        }
    }
}

/// Names after each number of steps.
fn expected() -> Vec<Vec<String>> {
    let harness = Harness::new();
    let volume = harness.open("model").unwrap();
    let mut states = vec![names(&volume)];
    for step in 0..12 {
        match step {
            3 => {
                let (from, to) = (PathBuf::from("/f2"), PathBuf::from("/renamed"));
                volume.commit(&[Record::Rename { from, to }]).map(|_| ())
            }
            5 => volume.commit(&[remove("/f0")]).map(|_| ()),
            7 => {
                put_table(&volume, "/table");
                Ok(())
            }
            9 => volume.commit(&[remove("/table")]).map(|_| ()),
            _ => put(&volume, &format!("/f{step}")),
        }
        .expect("committed");
        states.push(names(&volume));
    }
    states
}

/// Opens the volume of a pool after a crash. Checks that it has a prefix of the steps with all
/// acknowledged ones, that its tables are readable, and that nothing else is in the pool.
fn check(pool: MemoryPool, snapshot: &Snapshot, states: &[Vec<String>]) {
    let harness = Harness::over(pool);
    let volume = harness.take_over("next").unwrap_or_else(|error| {
        panic!("after {:?}: {error}", snapshot.call);
    });
    let found = names(&volume);
    let steps = snapshot.acknowledged..=snapshot.submitted;
    assert!(
        states[steps.clone()].contains(&found),
        "at {:?}: {found:?} is no state of {steps:?}",
        snapshot.call
    );
    let tables = volume.look(|state| {
        let blobs = state.files().filter_map(|file| match &file.content {
            Content::Blob(blob) => Some(blob.clone()),
            _ => None,
        });
        blobs.collect::<Vec<_>>()
    });
    assert_eq!(blobs(&harness.pool), tables.iter().map(|blob| blob.id).collect::<Vec<_>>());
    for blob in &tables {
        assert_eq!(volume.stores().blobs.open(blob, TABLE).unwrap().len_bytes(), 5);
    }
    put(&volume, "/after").unwrap();
}

fn check_all(snapshots: &[Snapshot]) {
    let states = expected();
    for snapshot in snapshots {
        check(snapshot.killed.kill_clone(1), snapshot, &states);
        check(snapshot.crashed.kill_clone(1), snapshot, &states);
    }
}

#[test]
fn kill_or_power_loss_at_any_call_keeps_acknowledged_commits() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let recorder = Recorder::attach(&harness.pool);
    workload(&volume, &recorder);
    let snapshots = recorder.take();
    assert!(snapshots.len() > 20, "{}", snapshots.len());
    check_all(&snapshots);
}

#[test]
fn kill_while_a_failed_log_is_replaced_keeps_acknowledged_commits() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let recorder = Recorder::attach(&harness.pool);
    harness.pool.inject(PoolCall::LogWait, 2, Fault::Refuse);
    harness.pool.inject(PoolCall::LogSubmit, 9, Fault::Refuse);
    harness.pool.inject(PoolCall::LogWait, 6, Fault::EndExtent);
    workload(&volume, &recorder);
    assert!(harness.pool.calls(PoolCall::LogCreate) >= 3, "two generations");
    check_all(&recorder.take());
}

#[test]
fn kill_of_a_close_keeps_everything() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let states = expected();
    workload(&volume, &Recorder::default());
    let recorder = Recorder::attach(&harness.pool);
    recorder.submitted.store(12, Ordering::SeqCst);
    recorder.acknowledged.store(12, Ordering::SeqCst);
    volume.close().unwrap();
    for snapshot in recorder.take() {
        check(snapshot.killed.kill_clone(2), &snapshot, &states);
    }
}

#[test]
fn interrupted_take_over_is_repeated_by_the_next_taker() {
    let harness = Harness::new();
    let volume = harness.open("first").unwrap();
    workload(&volume, &Recorder::default());
    let mut log = put_log(&volume, "/1.log", FileClass::Wal);
    append(&mut log, b"acknowledged").unwrap();
    log.writer.submit(&[b" submitted"]).unwrap();
    let before = names(&volume);
    let recorder = Recorder::attach(&harness.pool);
    drop(harness.take_over("second").unwrap());
    let snapshots = recorder.take();
    assert!(snapshots.len() > 8, "{}", snapshots.len());
    for snapshot in snapshots {
        for pool in [snapshot.killed.kill_clone(1), snapshot.crashed.kill_clone(1)] {
            let third = Harness::over(pool).take_over("third").unwrap();
            assert_eq!(names(&third), before, "at {:?}", snapshot.call);
        }
        let third = Harness::over(snapshot.killed).take_over("third").unwrap();
        assert!(read_log(&third, "/1.log").starts_with(b"acknowledged"));
    }
}

#[test]
fn recovered_end_of_a_log_is_final() {
    for seed in 0..20 {
        let harness = Harness::over(MemoryPool::new(seed));
        Volume::create(&harness.stores(), NAME, &harness.options("nobody")).unwrap();
        let first = harness.open("first").unwrap();
        let mut log = put_log(&first, "/1.log", FileClass::Wal);
        append(&mut log, b"acknowledged").unwrap();
        log.writer.submit(&[b" or not"]).unwrap();
        let second = harness.take_over("second").unwrap();
        let bytes = read_log(&second, "/1.log");
        assert!(bytes.starts_with(b"acknowledged"));
        let (_, _, len_bytes) = recorded_log(&second, "/1.log");
        assert_eq!(len_bytes, Some(bytes.len() as u64));
        assert!(append(&mut log, b"late").is_err(), "the old writer is fenced");
        drop(second);
        let crashed = Harness::over(harness.pool.crash_clone(seed)).take_over("third").unwrap();
        assert_eq!(read_log(&crashed, "/1.log"), bytes);
        assert_eq!(read_log(&harness.take_over("third").unwrap(), "/1.log"), bytes);
    }
}

#[test]
fn boot_id_changes_only_if_unsynced_bytes_may_be_missing() {
    let harness = Harness::new();
    let volume = harness.open("first").unwrap();
    let mut log = put_log(&volume, "/1.log", FileClass::Wal);
    append(&mut log, b"bytes").unwrap();
    let killed = Harness::over(harness.pool.kill_clone(1)).take_over("second").unwrap();
    assert_eq!(killed.boot_id(), volume.boot_id());
    let crashed = Harness::over(harness.pool.crash_clone(1));
    let second = crashed.take_over("second").unwrap();
    assert_ne!(second.boot_id(), volume.boot_id());
    let boot_id = second.boot_id();
    drop(second);
    assert_eq!(crashed.take_over("third").unwrap().boot_id(), boot_id, "it is durable");
}

/// A pool after a power loss that may have taken bytes of a log, and the boot id before it.
fn lossy_harness() -> (Harness, [u8; 16]) {
    let harness = Harness::new();
    let volume = harness.open("first").unwrap();
    let mut log = put_log(&volume, "/1.log", FileClass::Wal);
    append(&mut log, b"bytes").unwrap();
    (Harness::over(harness.pool.crash_clone(1)), volume.boot_id())
}

#[test]
fn taker_that_dies_at_any_call_leaves_the_loss_to_the_next() {
    let (harness, before) = lossy_harness();
    let recorder = Recorder::attach(&harness.pool);
    let second = harness.take_over("second").unwrap();
    assert_ne!(second.boot_id(), before);
    let snapshots = recorder.take();
    assert!(snapshots.len() > 8, "{}", snapshots.len());
    for snapshot in snapshots {
        let harness = Harness::over(snapshot.killed);
        let third = harness.take_over("third").unwrap();
        assert_ne!(third.boot_id(), before, "at {:?}", snapshot.call);
        let boot_id = third.boot_id();
        drop(third);
        let fourth = harness.take_over("fourth").unwrap();
        assert_eq!(fourth.boot_id(), boot_id, "the loss is told once");
    }
}

#[test]
fn loss_survives_failures_of_the_register() {
    for nth in 1..=4 {
        for fault in [Fault::Refuse, Fault::LoseAnswer] {
            let (harness, before) = lossy_harness();
            harness.pool.inject(PoolCall::RegisterSwap, nth, fault);
            let second = harness.take_over("second").unwrap();
            let boot_id = second.boot_id();
            assert_ne!(boot_id, before, "swap {nth}: {fault:?}");
            drop(second);
            assert_eq!(harness.take_over("third").unwrap().boot_id(), boot_id);
        }
    }
}

#[test]
fn opening_that_fails_after_its_recoveries_does_not_hide_a_loss() {
    for call in [PoolCall::LogCreate, PoolCall::LogWait] {
        let (harness, before) = lossy_harness();
        harness.pool.inject(call, 1, Fault::Refuse);
        harness.take_over("second").unwrap_err();
        let third = harness.open("third").unwrap();
        assert_ne!(third.boot_id(), before, "{call:?}");
    }
}

#[test]
fn manifest_log_keeps_the_boot_id_over_power_loss() {
    let harness = Harness::new();
    let volume = harness.open("first").unwrap();
    let mut log = put_log(&volume, "/MANIFEST", FileClass::Manifest);
    append(&mut log, b"edit").unwrap();
    let crashed = Harness::over(harness.pool.crash_clone(1)).take_over("second").unwrap();
    assert_eq!(crashed.boot_id(), volume.boot_id());
    assert_eq!(read_log(&crashed, "/MANIFEST"), b"edit");
}
