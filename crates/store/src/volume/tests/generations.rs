//! Generations of the namespace's log, and its failures.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::memory::{Fault, PoolCall};

#[test]
fn commits_share_the_round_trip_of_one_wait() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let trips = harness.pool.round_trips();
    let moments: Vec<_> =
        (0..10).map(|index| submit(&volume, &format!("/{index}")).unwrap()).collect();
    for moment in moments.into_iter().rev() {
        volume.wait(moment).unwrap();
    }
    assert_eq!(harness.pool.round_trips() - trips, 1);
}

#[test]
fn refused_change_leaves_the_namespace_as_it_was() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    put(&volume, "/a").unwrap();
    expect_kind(volume.commit(&[remove("/a"), remove("/none")]), ErrorKind::NotFound);
    assert_eq!(names(&volume), ["a"]);
    put(&volume, "/b").unwrap();
    drop(volume);
    assert_eq!(names(&harness.take_over("next").unwrap()), ["a", "b"]);
}

#[test]
fn failed_append_begins_a_generation() {
    for (call, fault) in [
        (PoolCall::LogSubmit, Fault::Refuse),
        (PoolCall::LogSubmit, Fault::LoseAnswer),
        (PoolCall::LogWait, Fault::Refuse),
        (PoolCall::LogWait, Fault::LoseAnswer),
    ] {
        let harness = Harness::new();
        let volume = harness.open("owner").unwrap();
        put(&volume, "/a").unwrap();
        harness.pool.inject(call, 1, fault);
        let moment = submit(&volume, "/b").unwrap();
        let later = submit(&volume, "/c").unwrap();
        assert!(later >= moment);
        volume.wait(moment).unwrap();
        volume.wait(later).unwrap();
        put(&volume, "/d").unwrap();
        assert_eq!(harness.pool.log_list().len(), 1, "the failed log was released");
        drop(volume);
        let next = harness.take_over("next").unwrap();
        assert_eq!(names(&next), ["a", "b", "c", "d"], "{call:?} {fault:?}");
    }
}

#[test]
fn failed_generation_is_reported_and_tried_again() {
    for (call, nth) in [(PoolCall::LogCreate, 1), (PoolCall::LogSubmit, 2), (PoolCall::LogWait, 2)]
    {
        let harness = Harness::new();
        let volume = harness.open("owner").unwrap();
        put(&volume, "/a").unwrap();
        harness.pool.inject(PoolCall::LogWait, 1, Fault::Refuse);
        harness.pool.inject(call, nth, Fault::Refuse);
        let moment = submit(&volume, "/b").unwrap();
        expect_kind(volume.wait(moment), ErrorKind::Io);
        volume.wait(moment).unwrap();
        put(&volume, "/c").unwrap();
        drop(volume);
        assert_eq!(names(&harness.take_over("next").unwrap()), ["a", "b", "c"], "{call:?}");
    }
}

#[test]
fn unanswered_swap_of_a_generation_loses_nothing() {
    for fault in [Fault::LoseAnswer, Fault::Refuse] {
        let harness = Harness::new();
        let volume = harness.open("owner").unwrap();
        put(&volume, "/a").unwrap();
        harness.pool.inject(PoolCall::LogWait, 1, Fault::Refuse);
        for swap in 1..=4 {
            harness.pool.inject(PoolCall::RegisterSwap, swap, fault);
        }
        expect_kind(put(&volume, "/b"), ErrorKind::Io);
        let killed = Harness::over(harness.pool.kill_clone(3));
        let recovered = names(&killed.take_over("next").unwrap());
        assert!(recovered.starts_with(&["a".to_owned()]), "{recovered:?}");
        volume.registration.renew().unwrap();
        put(&volume, "/c").unwrap();
        assert_eq!(harness.pool.log_list().len(), 1);
        drop(volume);
        assert_eq!(names(&harness.take_over("next").unwrap()), ["a", "b", "c"], "{fault:?}");
    }
}

#[test]
fn long_log_is_replaced_by_a_snapshot() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let bytes = vec![7; 256 << 10];
    for index in 0..40 {
        let content = Content::Inline(bytes.clone());
        let record = file(&volume, "/large", FileClass::Other, content);
        volume.wait(volume.commit(&[record]).unwrap()).unwrap();
        put(&volume, &format!("/{index}")).unwrap();
    }
    let logs = harness.pool.calls(PoolCall::LogCreate);
    assert!((3..=4).contains(&logs), "ten MiB take two generations more: {logs}");
    assert_eq!(harness.pool.log_list().len(), 1);
    assert!(harness.pool.used_bytes() < 6 << 20);
    drop(volume);
    assert_eq!(names(&harness.take_over("next").unwrap()).len(), 41);
}

#[test]
fn commits_go_on_if_a_long_log_cannot_be_replaced() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let bytes = vec![7; 256 << 10];
    harness.pool.inject(PoolCall::LogCreate, 1, Fault::Refuse);
    for _ in 0..30 {
        let content = Content::Inline(bytes.clone());
        let record = file(&volume, "/large", FileClass::Other, content);
        volume.wait(volume.commit(&[record]).unwrap()).unwrap();
    }
    assert!(harness.pool.calls(PoolCall::LogCreate) >= 3, "it tries again later");
}

#[test]
fn new_extent_of_the_namespace_is_kept_in_the_register() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    for path in ["/a", "/b", "/c"] {
        harness.pool.inject(PoolCall::LogWait, 1, Fault::EndExtent);
        put(&volume, path).unwrap();
    }
    drop(volume);
    assert_eq!(names(&harness.take_over("next").unwrap()), ["a", "b", "c"]);
}

#[test]
fn new_extent_during_a_generation_is_kept() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    harness.pool.inject(PoolCall::LogWait, 1, Fault::Refuse);
    harness.pool.inject(PoolCall::LogWait, 2, Fault::EndExtent);
    put(&volume, "/a").unwrap();
    put(&volume, "/b").unwrap();
    drop(volume);
    assert_eq!(names(&harness.take_over("next").unwrap()), ["a", "b"]);
}

#[test]
fn new_extent_of_a_log_file_is_recorded() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let mut log = put_log(&volume, "/1.log", FileClass::Wal);
    let (_, first, _) = recorded_log(&volume, "/1.log");
    append(&mut log, b"one").unwrap();
    harness.pool.inject(PoolCall::LogWait, 1, Fault::EndExtent);
    append(&mut log, b"two").unwrap();
    let (_, second, _) = recorded_log(&volume, "/1.log");
    assert_ne!(first, second);
    drop(volume);
    assert_eq!(read_log(&harness.take_over("next").unwrap(), "/1.log"), b"onetwo");
}

#[test]
fn log_is_named_with_the_layout_that_it_has_by_then() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let key = volume.allocate();
    let (mut writer, id, layout) = volume.begin_log(key, FileClass::Wal).unwrap();
    writer.submit(&[b"bytes"]).unwrap();
    harness.pool.inject(PoolCall::LogWait, 1, Fault::EndExtent);
    writer.position().wait(5).unwrap();
    volume.wait(commit_log(&volume, "/1.log", FileClass::Wal, (key, id, layout))).unwrap();
    drop(volume);
    assert_eq!(read_log(&harness.take_over("next").unwrap(), "/1.log"), b"bytes");
}

#[test]
fn layout_of_a_removed_log_is_no_error() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let mut log = put_log(&volume, "/1.log", FileClass::Wal);
    let _hold = volume.hold(log.key);
    volume.wait(volume.commit(&[remove("/1.log")]).unwrap()).unwrap();
    harness.pool.inject(PoolCall::LogWait, 1, Fault::EndExtent);
    append(&mut log, b"more").unwrap();
}

#[test]
fn concurrent_commits_survive_failures_of_the_log() {
    const THREADS: u64 = 4;
    const FILES: u64 = 60;
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    harness.pool.on_call(Arc::new(move |pool, call| {
        let fault = match (call, counted.fetch_add(1, Ordering::SeqCst) % 37) {
            (PoolCall::LogWait, 5) => Fault::Refuse,
            (PoolCall::LogWait, 17) => Fault::EndExtent,
            (PoolCall::LogSubmit, 11) => Fault::LoseAnswer,
            _ => return,
        };
        pool.inject(call, 1, fault);
    }));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let volume = &volume;
            scope.spawn(move || {
                for index in 0..FILES {
                    let path = format!("/{thread}-{index:02}");
                    let moment = submit(volume, &path).expect("committed");
                    // An error of a generation is reported, and the next call tries again.
                    let repeats = (0..50).find(|_| volume.wait(moment).is_ok());
                    repeats.expect("it becomes durable");
                }
            });
        }
    });
    harness.pool.clear_on_call();
    harness.pool.clear_faults();
    let expected = names(&volume);
    assert_eq!(expected.len() as u64, THREADS * FILES);
    drop(volume);
    assert_eq!(names(&harness.take_over("next").unwrap()), expected);
    assert!(harness.pool.calls(PoolCall::LogCreate) > 3, "the log failed several times");
}
