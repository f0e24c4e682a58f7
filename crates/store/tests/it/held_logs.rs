//! Log segments that keep bytes back: until the segment before them is acknowledged, or so that
//! small appends travel together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use archipelago_base::{ErrorKind, Result};
use archipelago_env::LogSync;
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

/// A segment of three bytes. The first wait for them takes until the barrier has been passed twice.
#[derive(Debug)]
struct SlowSegment {
    waits: AtomicU64,
    acknowledged: AtomicU64,
    barrier: Barrier,
}

impl LogSync for SlowSegment {
    fn sync(&self) -> Result<u64> {
        Ok(3)
    }

    fn wait(&self, _end: u64) -> Result<()> {
        if self.waits.fetch_add(1, Ordering::SeqCst) == 0 {
            self.barrier.wait();
            self.barrier.wait();
        }
        self.acknowledged.store(3, Ordering::SeqCst);
        Ok(())
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    fn write_through(&self) -> Result<u64> {
        Ok(3)
    }
}

#[test]
fn slow_waiter_of_acknowledged_bytes_is_not_told_of_a_later_loss() {
    let (pool, fs) = new_world(7);
    let mut log = create_log(&fs, "2.log");
    sync_dir(&fs);
    let before = Arc::new(SlowSegment {
        waits: AtomicU64::new(0),
        acknowledged: AtomicU64::new(0),
        barrier: Barrier::new(2),
    });
    log.follow(Arc::clone(&before) as _, 3).unwrap();
    log.submit(&[b"one"]).unwrap();
    let sync = log.sync_handle();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| sync.wait(3));
        before.barrier.wait();
        let second = log.submit(&[b"two"]).and_then(|_| sync.wait(6));
        pool.inject(PoolCall::LogWait, 1, Fault::Refuse);
        let third = log.submit(&[b"three"]).and_then(|_| sync.wait(11));
        before.barrier.wait();
        let first = slow.join().unwrap();
        assert!(second.is_ok() && third.is_err(), "{second:?}, {third:?}");
        // The header of the next segment says that this one ends after six bytes.
        assert_eq!(sync.acknowledged(), 6);
        first.unwrap();
    });
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
