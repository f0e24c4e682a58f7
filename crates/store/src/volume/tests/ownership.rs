//! Leases, epochs and the register.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::memory::{Fault, PoolCall};

#[test]
fn closed_volume_reopens_with_its_files() {
    let harness = Harness::new();
    let first = harness.open("first").unwrap();
    put(&first, "/a").unwrap();
    submit(&first, "/b").unwrap();
    first.close().unwrap();
    let second = harness.open("second").unwrap();
    assert_eq!(names(&second), ["a", "b"]);
    assert!(second.epoch() > first.epoch());
    assert_eq!(second.boot_id(), first.boot_id());
    assert_eq!(second.id(), first.id());
    assert!(second.allocate() > FileKey(2), "numbers are not used twice");
}

#[test]
fn calls_after_a_close_get_closed() {
    let harness = Harness::new();
    let volume = harness.open("owner").unwrap();
    volume.close().unwrap();
    volume.close().unwrap();
    expect_kind(put(&volume, "/a"), ErrorKind::Closed);
    expect_kind(volume.begin_blob(TABLE, 0).map(|_| ()), ErrorKind::Closed);
    expect_kind(volume.check_lease(), ErrorKind::Closed);
}

#[test]
fn volume_is_created_once() {
    let harness = Harness::new();
    let create = |name: &str| Volume::create(&harness.stores(), name, &harness.options("x"));
    expect_kind(create(NAME), ErrorKind::InvalidArgument);
    expect_kind(create("a/b"), ErrorKind::InvalidArgument);
    expect_kind(create(""), ErrorKind::InvalidArgument);
    harness.pool.inject(PoolCall::RegisterSwap, 1, Fault::LoseAnswer);
    create("other").unwrap();
    expect_kind(
        Volume::open(&harness.stores(), "none", &harness.options("x")).map(|_| ()),
        ErrorKind::NotFound,
    );
}

#[test]
fn lease_that_is_too_short_is_refused() {
    let harness = Harness::new();
    let options = VolumeOptions { lease: Duration::from_millis(1), ..harness.options("x") };
    let opened = Volume::open(&harness.stores(), NAME, &options).map(|_| ());
    expect_kind(opened, ErrorKind::InvalidArgument);
}

#[test]
fn opener_is_busy_while_the_owner_renews() {
    let harness = Harness::new();
    let owner = harness.open("host 7").unwrap();
    let renewing = Arc::clone(&owner);
    let reads = AtomicUsize::new(0);
    harness.pool.on_call(Arc::new(move |_, call| {
        if call == PoolCall::RegisterRead && reads.fetch_add(1, Ordering::SeqCst) == 3 {
            renewing.registration.renew().expect("its lease");
        }
    }));
    let text = expect_kind(harness.open("other").map(|_| ()), ErrorKind::Busy);
    assert!(text.contains("host 7") && text.contains("whose lease is valid"), "{text}");
    put(&owner, "/a").unwrap();
    owner.check_lease().unwrap();
}

#[test]
fn opener_waits_for_the_lease_of_a_dead_owner() {
    let harness = Harness::new();
    let dead = harness.open("dead").unwrap();
    put(&dead, "/a").unwrap();
    drop(dead);
    let before = harness.clock.now_ns();
    let volume = harness.open("next").unwrap();
    let waited = Duration::from_nanos(harness.clock.now_ns() - before);
    assert!(waited >= LEASE, "{waited:?}");
    assert!(waited < LEASE + Duration::from_secs(1), "{waited:?}");
    assert_eq!(names(&volume), ["a"]);
}

#[test]
fn lease_that_was_given_up_is_not_waited_for() {
    let harness = Harness::new();
    harness.open("first").unwrap().close().unwrap();
    let before = harness.clock.now_ns();
    harness.open("second").unwrap();
    assert_eq!(harness.clock.now_ns(), before);
}

#[test]
fn opener_goes_on_when_the_owner_closes_meanwhile() {
    let harness = Harness::new();
    let owner = harness.open("owner").unwrap();
    put(&owner, "/a").unwrap();
    let reads = AtomicUsize::new(0);
    harness.pool.on_call(Arc::new(move |_, call| {
        if call == PoolCall::RegisterRead && reads.fetch_add(1, Ordering::SeqCst) == 2 {
            owner.close().expect("in order");
        }
    }));
    assert_eq!(names(&harness.open("next").unwrap()), ["a"]);
    assert!(harness.clock.now_ns() < LEASE.as_nanos() as u64);
}

#[test]
fn take_over_ends_the_old_owner_once() {
    let harness = Harness::new();
    let old = harness.open("old").unwrap();
    put(&old, "/a").unwrap();
    let new = harness.take_over("new").unwrap();
    expect_kind(put(&old, "/b"), ErrorKind::Fenced);
    assert_eq!(names(&new), ["a"]);
    let trips = harness.pool.round_trips();
    for _ in 0..3 {
        expect_kind(put(&old, "/c"), ErrorKind::Fenced);
        expect_kind(old.begin_blob(TABLE, 0).map(|_| ()), ErrorKind::Fenced);
        expect_kind(old.wait(old.moment()), ErrorKind::Fenced);
        expect_kind(old.check_lease(), ErrorKind::Fenced);
    }
    expect_kind(old.close(), ErrorKind::Fenced);
    assert_eq!(harness.pool.round_trips(), trips, "an owner that has ended asks nothing");
    put(&new, "/d").unwrap();
    assert_eq!(names(&new), ["a", "d"]);
}

#[test]
fn old_owner_reads_until_its_lease_ends() {
    let harness = Harness::new();
    let old = harness.open("old").unwrap();
    let _new = harness.take_over("new").unwrap();
    old.check_lease().unwrap();
    harness.clock.advance(LEASE - LEASE / 8);
    expect_kind(old.check_lease(), ErrorKind::Busy);
    let text = expect_kind(old.registration.renew(), ErrorKind::Fenced);
    assert!(text.contains("new"), "{text}");
    expect_kind(old.check_lease(), ErrorKind::Fenced);
}

#[test]
fn old_owner_begins_no_generation_after_a_take_over() {
    let harness = Harness::new();
    let old = harness.open("old").unwrap();
    let new = harness.take_over("new").unwrap();
    // The old owner's log fails for another reason than the fence.
    harness.pool.inject(PoolCall::LogWait, 1, Fault::Refuse);
    expect_kind(put(&old, "/a"), ErrorKind::Fenced);
    put(&new, "/b").unwrap();
    drop(new);
    assert_eq!(names(&harness.take_over("third").unwrap()), ["b"]);
}

#[test]
fn register_that_does_not_answer_stops_reads_until_it_does() {
    let harness = Harness::new();
    let owner = harness.open("owner").unwrap();
    for call in 1..=4 {
        harness.pool.inject(PoolCall::RegisterSwap, call, Fault::Refuse);
    }
    expect_kind(owner.registration.renew(), ErrorKind::Io);
    owner.check_lease().unwrap();
    harness.clock.advance(LEASE);
    expect_kind(owner.check_lease(), ErrorKind::Busy);
    put(&owner, "/a").expect("writes rest on the epoch alone");
    owner.registration.renew().unwrap();
    owner.check_lease().unwrap();
}

#[test]
fn lease_counts_from_the_sending_of_a_renewal() {
    let harness = Harness::new();
    let owner = harness.open("owner").unwrap();
    let clock = Arc::clone(&harness.clock);
    harness.pool.on_call(Arc::new(move |_, call| {
        if call == PoolCall::RegisterSwap {
            clock.advance(LEASE / 2);
        }
    }));
    owner.registration.renew().unwrap();
    owner.check_lease().unwrap();
    harness.clock.advance(LEASE / 2 - LEASE / 8);
    expect_kind(owner.check_lease(), ErrorKind::Busy);
}

#[test]
fn one_of_two_openers_at_the_same_time_wins() {
    for take_over in [false, true] {
        let harness = Harness::new();
        let (stores, options) = (harness.stores(), harness.options("fast"));
        let (swaps, fast) = (AtomicUsize::new(0), Arc::new(parking_lot::Mutex::new(None)));
        let won = Arc::clone(&fast);
        harness.pool.on_call(Arc::new(move |_, call| {
            if call == PoolCall::RegisterSwap && swaps.fetch_add(1, Ordering::SeqCst) == 0 {
                let opened = Volume::open(&stores, NAME, &options).expect("it is free");
                *won.lock() = Some(opened);
            }
        }));
        let slow = VolumeOptions { take_over, ..harness.options("slow") };
        let lost = Volume::open(&harness.stores(), NAME, &slow).map(|_| ());
        harness.pool.clear_on_call();
        let text = expect_kind(lost, ErrorKind::Busy);
        assert!(text.contains("fast"), "{text}");
        put(&fast.lock().take().unwrap(), "/a").unwrap();
    }
}

#[test]
fn one_of_many_racing_openers_wins() {
    let harness = Harness::new();
    let options = harness.options("racer");
    let opened: Vec<_> = std::thread::scope(|scope| {
        let open = || Volume::open(&harness.stores(), NAME, &options);
        let racers: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).collect()
    });
    // A late racer may find the lease of the winner ended, because waiting moves the clock.
    let winners: Vec<_> = opened.into_iter().filter_map(Result::ok).collect();
    let writers = winners.iter().filter(|volume| put(volume, "/a").is_ok());
    assert_eq!(writers.count(), 1);
}

#[test]
fn take_over_wins_against_a_renewal_in_between() {
    let harness = Harness::new();
    let old = harness.open("old").unwrap();
    let swaps = AtomicUsize::new(0);
    harness.pool.on_call(Arc::new(move |_, call| {
        if call == PoolCall::RegisterSwap && swaps.fetch_add(1, Ordering::SeqCst) == 0 {
            old.registration.renew().expect("its lease");
        }
    }));
    put(&harness.take_over("new").unwrap(), "/a").unwrap();
}

#[test]
fn open_survives_lost_answers_of_the_register() {
    // The swaps of an open: the claim, the recovered namespace, and the first generation.
    for lost in 1..=3 {
        for fault in [Fault::LoseAnswer, Fault::Refuse] {
            let harness = Harness::new();
            put(&harness.open("first").unwrap(), "/a").unwrap();
            harness.pool.inject(PoolCall::RegisterSwap, lost, fault);
            let volume = harness.take_over("second").unwrap();
            assert_eq!(volume.epoch().0, 2, "{lost} {fault:?}");
            volume.check_lease().unwrap();
            put(&volume, "/b").unwrap();
            drop(volume);
            assert_eq!(names(&harness.take_over("third").unwrap()), ["a", "b"]);
        }
    }
}

#[test]
fn failed_open_gives_up_its_lease() {
    let harness = Harness::new();
    put(&harness.open("first").unwrap(), "/a").unwrap();
    harness.pool.inject(PoolCall::LogRecover, 1, Fault::Refuse);
    expect_kind(harness.take_over("second").map(|_| ()), ErrorKind::Io);
    let before = harness.clock.now_ns();
    assert_eq!(names(&harness.open("third").unwrap()), ["a"]);
    assert_eq!(harness.clock.now_ns(), before);
}

#[test]
fn opener_that_overlaps_with_a_failed_one_opens() {
    for take_over in [false, true] {
        let harness = Harness::new();
        let first = harness.open("first").unwrap();
        put(&first, "/a").unwrap();
        first.close().unwrap();
        let (stores, options) = (harness.stores(), harness.options("failed"));
        let swaps = AtomicUsize::new(0);
        harness.pool.on_call(Arc::new(move |pool, call| {
            if call == PoolCall::RegisterSwap && swaps.fetch_add(1, Ordering::SeqCst) == 0 {
                pool.inject(PoolCall::LogRecover, 1, Fault::Refuse);
                expect_kind(Volume::open(&stores, NAME, &options).map(|_| ()), ErrorKind::Io);
            }
        }));
        let options = VolumeOptions { take_over, ..harness.options("slow") };
        let opened = Volume::open(&harness.stores(), NAME, &options).unwrap();
        assert_eq!(names(&opened), ["a"]);
        assert_eq!(opened.epoch().0, 3, "the failed opener used an epoch");
        opened.check_lease().unwrap();
    }
}

#[test]
fn opener_waits_for_another_opener_that_died() {
    let harness = Harness::new();
    put(&harness.open("first").unwrap(), "/a").unwrap();
    let (stores, clock) = (harness.stores(), Arc::clone(&harness.clock));
    let options = VolumeOptions { take_over: true, ..harness.options("second") };
    let (reads, died) = (AtomicUsize::new(0), Arc::new(parking_lot::Mutex::new(0)));
    let died_ns = Arc::clone(&died);
    harness.pool.on_call(Arc::new(move |_, call| {
        if call == PoolCall::RegisterRead && reads.fetch_add(1, Ordering::SeqCst) == 3 {
            drop(Volume::open(&stores, NAME, &options).expect("it takes over"));
            *died_ns.lock() = clock.now_ns();
        }
    }));
    let volume = harness.open("third").unwrap();
    assert_eq!(names(&volume), ["a"]);
    let waited = Duration::from_nanos(harness.clock.now_ns() - *died.lock());
    assert!(waited >= LEASE, "{waited:?}");
}

#[test]
fn opener_that_another_one_overtook_is_fenced() {
    let harness = Harness::new();
    put(&harness.open("first").unwrap(), "/a").unwrap();
    let fast = Arc::new(parking_lot::Mutex::new(None));
    let (stores, opened, recoveries) = (harness.stores(), Arc::clone(&fast), AtomicUsize::new(0));
    let options = VolumeOptions { take_over: true, ..harness.options("fast") };
    harness.pool.on_call(Arc::new(move |_, call| {
        if call == PoolCall::LogRecover && recoveries.fetch_add(1, Ordering::SeqCst) == 0 {
            *opened.lock() = Some(Volume::open(&stores, NAME, &options).expect("it takes over"));
        }
    }));
    expect_kind(harness.take_over("slow").map(|_| ()), ErrorKind::Fenced);
    harness.pool.clear_on_call();
    let fast = fast.lock().take().unwrap();
    put(&fast, "/b").unwrap();
    assert_eq!(names(&fast), ["a", "b"]);
}

#[test]
fn thread_renews_the_lease_until_the_owner_is_dropped() {
    let pool = MemoryPool::new(1);
    let lease = Duration::from_secs(3);
    let options = |owner: &str| VolumeOptions { lease, ..VolumeOptions::new(owner) };
    Volume::create(&pool.stores(), NAME, &options("nobody")).unwrap();
    let owner = Volume::open(&pool.stores(), NAME, &options("owner")).unwrap();
    let second = Volume::open(&pool.stores(), NAME, &options("second")).map(|_| ());
    expect_kind(second, ErrorKind::Busy);
    owner.check_lease().unwrap();
    drop(owner);
    Volume::open(&pool.stores(), NAME, &options("third")).unwrap().close().unwrap();
}
