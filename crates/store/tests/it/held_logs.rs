//! Log segments that keep bytes back: until the segment before them is acknowledged, or so that
//! small appends travel together.

use archipelago_base::ErrorKind;
use archipelago_store::memory::{Fault, PoolCall};

use crate::world::{create_log, error_of, get, new_world, sync_dir, take_over};

#[test]
fn segment_sends_nothing_before_its_predecessor_is_acknowledged() {
    let (pool, fs) = new_world(1);
    let (mut old, mut new) = (create_log(&fs, "1.log"), create_log(&fs, "2.log"));
    old.submit(&[b"old"]).unwrap();
    let submitted = pool.calls(PoolCall::LogSubmit);
    new.follow(old.sync_handle(), 3).unwrap();
    new.submit(&[b"header"]).unwrap();
    new.submit(&[b", record"]).unwrap();
    assert_eq!(new.len(), 14);
    new.sync_handle().send().unwrap();
    assert_eq!(pool.calls(PoolCall::LogSubmit), submitted, "the old end is not acknowledged");
    // A waiter of the new segment waits for the old one first.
    new.sync_handle().wait(14).unwrap();
    assert_eq!(pool.calls(PoolCall::LogSubmit), submitted + 1);
    assert_eq!(old.sync_handle().acknowledged(), 3);
    // From here on nothing is kept back.
    new.submit(&[b"!"]).unwrap();
    assert_eq!(pool.calls(PoolCall::LogSubmit), submitted + 2);
    new.finish().unwrap();
    let after = take_over(&pool.kill_clone(1));
    assert_eq!(get(&after, "1.log").unwrap(), b"old");
    assert_eq!(get(&after, "2.log").unwrap(), b"header, record!");
}

#[test]
fn segment_fails_with_its_predecessor_and_has_sent_nothing() {
    let (pool, fs) = new_world(2);
    let (mut old, mut new) = (create_log(&fs, "1.log"), create_log(&fs, "2.log"));
    // The records of both files are durable, so the next wait is for bytes of a segment. A wait
    // for a record that fails begins a new generation of the namespace, and succeeds.
    sync_dir(&fs);
    old.submit(&[b"old"]).unwrap();
    new.follow(old.sync_handle(), 3).unwrap();
    new.submit(&[b"header"]).unwrap();
    let submitted = pool.calls(PoolCall::LogSubmit);
    pool.inject(PoolCall::LogWait, 1, Fault::Refuse);
    let error = error_of(old.sync_handle().wait(3), "1.log");
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(new.sync_handle().wait(6).unwrap_err().kind(), ErrorKind::Io);
    assert!(new.submit(&[b"more"]).is_err());
    assert!(new.sync_handle().sync().is_err());
    assert!(new.finish().is_err());
    assert_eq!(pool.calls(PoolCall::LogSubmit), submitted);
    drop((old, new));
    assert_eq!(get(&take_over(&pool.kill_clone(2)), "2.log").unwrap(), b"");
}

#[test]
fn bytes_that_are_held_back_leave_together() {
    let (pool, fs) = new_world(3);
    let mut log = create_log(&fs, "1.log");
    log.hold_back(10);
    let sync = log.sync_handle();
    let submitted = pool.calls(PoolCall::LogSubmit);
    let sent = || pool.calls(PoolCall::LogSubmit) - submitted;
    assert_eq!(log.submit(&[b"abcd"]).unwrap(), 0);
    assert_eq!(log.submit(&[b"efgh"]).unwrap(), 4);
    assert_eq!((log.len(), sent()), (8, 0));
    assert_eq!(log.submit(&[b"ijkl"]).unwrap(), 8);
    assert_eq!(sent(), 1, "more than the limit");
    log.submit(&[b"m"]).unwrap();
    sync.send().unwrap();
    sync.send().unwrap();
    assert_eq!(sent(), 2);
    log.submit(&[b"n"]).unwrap();
    sync.wait(13).unwrap();
    assert_eq!((sync.acknowledged(), sent()), (13, 2), "the wait was for earlier bytes");
    sync.wait(14).unwrap();
    assert_eq!(sent(), 3);
    log.submit(&[b"o"]).unwrap();
    assert_eq!(sync.sync().unwrap(), 15);
    log.submit(&[b"0123456789"]).unwrap();
    assert_eq!(sent(), 5, "a large append is not copied");
    log.submit(&[b"p"]).unwrap();
    log.finish().unwrap();
    assert_eq!(
        get(&take_over(&pool.kill_clone(3)), "1.log").unwrap(),
        b"abcdefghijklmno0123456789p"
    );
}
