//! The promises of `Link` over every provider, within one process. `sim` has two hosts.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::{Epoch, ErrorKind};
use archipelago_fabric::{
    AtomicPath, BATCH_BYTES_MAX, Batch, Connect, Link, NodeId, Outcome, Reason, RemoteKey, Rights,
    Session,
};

use crate::world::{REGION_BYTES, World, block_on, read, refused, to, until, write};

macro_rules! tests_over {
    ($provider:literal: $($test:ident)*) => { $(#[test] fn $test() { super::$test($provider); })* };
}

macro_rules! every_provider {
    ($($test:ident)* ; by threads: $($threaded:ident)*) => {
        mod shm { tests_over! { "shm": $($test)* $($threaded)* } }
        mod tcp { tests_over! { "tcp": $($test)* $($threaded)* } }
        mod paced { tests_over! { "paced": $($test)* $($threaded)* } }
        mod emulated { tests_over! { "emulated": $($test)* $($threaded)* } }
        #[cfg(feature = "ofi")]
        mod ofi { tests_over! { "ofi": $($test)* $($threaded)* } }
        // Virtual time has one thread. The tasks of `sim.rs` share a link.
        mod sim { tests_over! { "sim": $($test)* } }
    };
}

every_provider! {
    bytes_written_are_read_at_any_alignment
    operations_of_a_batch_take_effect_in_order
    a_batch_behind_another_finds_all_of_it
    a_write_that_completed_is_seen_by_the_node_and_by_others
    a_bad_range_is_refused_named_and_touches_nothing
    rights_are_kept
    keys_that_were_not_given_open_nothing
    a_revoked_key_is_refused_and_a_new_one_works
    a_dropped_region_is_not_reached
    a_handle_of_another_link_is_refused
    limits_are_the_same_everywhere
    another_epoch_ends_keys_and_links
    a_client_may_insist_on_node_and_epoch
    closed_listener_takes_its_links_down
    tasks_await_without_a_runtime
    dropped_promises_still_take_effect
    a_batch_is_used_again
    atomics_that_go_another_way_are_refused
    ; by threads:
    threads_share_a_link
}

fn bytes_written_are_read_at_any_alignment(name: &str) {
    let world = World::new(name);
    let (link, region) = world.attached();
    let bytes: Vec<u8> = (0..=255).cycle().take(100_001).collect();
    for (offset, len) in [(0, 8), (1, 7), (3, 13), (4095, 4099), (7, 100_001), (64, 0)] {
        write(&*link, region, offset, &bytes[..len]);
        assert_eq!(read(&*link, region, offset, len as u32), bytes[..len], "{offset} {len}");
        let mut local = vec![0; len];
        world.region.read(offset, &mut local).unwrap();
        assert_eq!(local, bytes[..len]);
    }
    let end = REGION_BYTES as u64 - 5;
    write(&*link, region, end, b"coral");
    assert_eq!(read(&*link, region, end, 5), b"coral");
}

fn operations_of_a_batch_take_effect_in_order(name: &str) {
    let world = World::new(name);
    let (link, region) = world.attached();
    let mut batch = Batch::new();
    batch.write(region, 0, &7_u64.to_ne_bytes());
    let before = batch.read(region, 0, 8);
    let swap = batch.compare_swap(region, 0, 7, 9);
    let lost = batch.compare_swap(region, 0, 7, 11);
    let add = batch.fetch_add(region, 0, u64::MAX);
    let after = batch.read(region, 0, 8);
    let batch = link.post(batch).wait();
    batch.check().unwrap();
    assert_eq!(batch.data(before), 7_u64.to_ne_bytes());
    assert_eq!((batch.word(swap), batch.word(lost), batch.word(add)), (Some(7), Some(9), Some(9)));
    assert_eq!(batch.data(after), 8_u64.to_ne_bytes(), "9 and -1, wrapping");
    // Batches of a link stay in order as well, for any number of batches in flight.
    let promises: Vec<_> = (0..200_u64)
        .map(|round| {
            let mut batch = Batch::new();
            batch.read(region, 64, 8);
            batch.write(region, 64, &(round + 1).to_ne_bytes());
            link.post(batch)
        })
        .collect();
    for (round, promise) in promises.into_iter().enumerate() {
        let batch = promise.wait();
        batch.check().unwrap();
        assert_eq!(batch.data(0), (round as u64).to_ne_bytes());
    }
}

/// Posts batches of every sort together. A READ finds the bytes of the batch before it, and no
/// later ones.
fn a_batch_behind_another_finds_all_of_it(name: &str) {
    let world = World::new(name);
    let (link, region) = world.attached();
    let mut promises = Vec::new();
    for round in 0..100_u64 {
        let (mut first, mut second) = (Batch::new(), Batch::new());
        first.write(region, 8, &(round + 1).to_ne_bytes().repeat(512));
        first.compare_swap(region, 0, round, round + 1);
        second.read(region, 0, 8 + 4096);
        promises.push((link.post(first), link.post(second)));
    }
    for (round, (first, second)) in (1_u64..).zip(promises) {
        let (first, second) = (first.wait(), second.wait());
        first.check().unwrap();
        assert_eq!(first.word(1), Some(round - 1));
        let words =
            second.data(0).chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
        assert_eq!(words.filter(|&word| word != round).count(), 0, "round {round}");
    }
}

fn a_write_that_completed_is_seen_by_the_node_and_by_others(name: &str) {
    let world = World::new(name);
    let (one, region_one) = world.attached();
    let (two, region_two) = world.attached();
    for round in 0..100_u64 {
        write(&*one, region_one, 8 * round, &round.to_ne_bytes());
        assert_eq!(read(&*two, region_two, 8 * round, 8), round.to_ne_bytes());
        let mut local = [0; 8];
        world.region.read(8 * round, &mut local).unwrap();
        assert_eq!(local, round.to_ne_bytes());
        world.region.write(8 * round, &[0xaa; 8]).unwrap();
        assert_eq!(read(&*one, region_one, 8 * round, 8), [0xaa; 8]);
    }
}

/// All bytes of the region, to check that nothing changed.
fn content(world: &World) -> Vec<u8> {
    let mut all = vec![0; REGION_BYTES];
    world.region.read(0, &mut all).unwrap();
    all
}

fn a_bad_range_is_refused_named_and_touches_nothing(name: &str) {
    let world = World::new(name);
    let (link, region) = world.attached();
    let end = REGION_BYTES as u64;
    let before = content(&world);
    let out = Some((0, Reason::OutOfRange));
    for offset in [end - 7, end, end + 1, u64::MAX - 3, u64::MAX] {
        assert_eq!(refused(&*link, |b| _ = b.write(region, offset, &[1; 8])), out, "{offset}");
        assert_eq!(refused(&*link, |b| _ = b.read(region, offset, 8)), out, "{offset}");
    }
    assert_eq!(refused(&*link, |b| _ = b.fetch_add(region, end, 1)), out);
    assert_eq!(refused(&*link, |b| _ = b.fetch_add(region, u64::MAX - 7, 1)), out);
    let misaligned = Some((0, Reason::Misaligned));
    assert_eq!(refused(&*link, |b| _ = b.compare_swap(region, 4, 0, 1)), misaligned);
    // The operations after a refusal are not tried, and those before it happened.
    let mut batch = Batch::new();
    batch.write(region, 0, &[0; 8]);
    batch.write(region, end, &[1]);
    batch.fetch_add(region, 8, 1);
    let batch = link.post(batch).wait();
    assert_eq!(batch.outcome(0), Outcome::Visible);
    assert!(matches!(batch.outcome(2), Outcome::Refused(r) if r.reason == Reason::Skipped));
    let text = batch.check().unwrap_err().to_string();
    assert!(text.contains(&format!("WRITE of 1 bytes at {end}")), "{text}");
    assert!(text.contains(&format!("({end} bytes)")), "{text}");
    assert_eq!(content(&world), before);
    write(&*link, region, 0, b"the link lives on");
}

fn rights_are_kept(name: &str) {
    let world = World::new(name);
    let link = world.link();
    let attach = |rights| link.attach(&world.region.grant(rights).unwrap()).wait().unwrap();
    let (read_only, write_only) = (attach(Rights::READ), attach(Rights::WRITE));
    let atomic = attach(Rights::ATOMIC);
    let no = Some((0, Reason::NoRight));
    assert_eq!(refused(&*link, |b| _ = b.read(read_only, 0, 8)), None);
    assert_eq!(refused(&*link, |b| _ = b.write(read_only, 0, &[1])), no);
    assert_eq!(refused(&*link, |b| _ = b.fetch_add(read_only, 0, 1)), no);
    assert_eq!(refused(&*link, |b| _ = b.write(write_only, 0, &[0])), None);
    assert_eq!(refused(&*link, |b| _ = b.read(write_only, 0, 8)), no);
    assert_eq!(refused(&*link, |b| _ = b.compare_swap(write_only, 0, 0, 1)), no);
    assert_eq!(refused(&*link, |b| _ = b.fetch_add(atomic, 0, 0)), None);
    assert_eq!(refused(&*link, |b| _ = b.read(atomic, 0, 8)), no);
    assert_eq!(refused(&*link, |b| _ = b.write(atomic, 0, &[1])), no);
    assert!(content(&world).iter().all(|&byte| byte == 0));
}

fn keys_that_were_not_given_open_nothing(name: &str) {
    let world = World::new(name);
    let link = world.link();
    let key = world.key;
    let why = |key: RemoteKey| link.attach(&key).wait().map_err(|refusal| refusal.reason);
    let unknown = Err(Reason::UnknownKey);
    assert_eq!(why(RemoteKey { tag: key.tag ^ (1 << 20), ..key }), unknown);
    assert_eq!(why(RemoteKey { region: archipelago_fabric::RegionId(77), ..key }), unknown);
    assert_eq!(why(RemoteKey { region: archipelago_fabric::RegionId(u32::MAX), ..key }), unknown);
    assert_eq!(why(RemoteKey { node: NodeId(2), ..key }), Err(Reason::WrongNode));
    assert_eq!(why(RemoteKey { epoch: Epoch(0), ..key }), Err(Reason::StaleEpoch));
    // Rights and length that a client adds to its key have no effect.
    let small = world.region.grant(Rights::READ).unwrap();
    let lie = RemoteKey { rights: Rights::ALL, len: u64::MAX, ..small };
    let region = link.attach(&lie).wait().unwrap();
    let end = REGION_BYTES as u64;
    assert_eq!(refused(&*link, |b| _ = b.write(region, 0, &[1])), Some((0, Reason::NoRight)));
    assert_eq!(refused(&*link, |b| _ = b.read(region, end, 8)), Some((0, Reason::OutOfRange)));
}

fn a_revoked_key_is_refused_and_a_new_one_works(name: &str) {
    let world = World::new(name);
    let (link, region) = world.attached();
    write(&*link, region, 0, b"before");
    assert!(world.node.revoke(&world.key));
    assert!(!world.node.revoke(&world.key), "once");
    let revoked = Some((0, Reason::Revoked));
    assert_eq!(refused(&*link, |b| _ = b.write(region, 0, b"after!")), revoked);
    assert_eq!(refused(&*link, |b| _ = b.read(region, 0, 6)), revoked);
    assert_eq!(refused(&*link, |b| _ = b.fetch_add(region, 0, 1)), revoked);
    let again = link.attach(&world.key).wait().map_err(|refusal| refusal.reason);
    assert_eq!(again, Err(Reason::Revoked));
    let key = world.region.grant(Rights::READ).unwrap();
    let region_again = link.attach(&key).wait().unwrap();
    assert_eq!(read(&*link, region_again, 0, 6), b"before");
    assert_eq!(refused(&*link, |b| _ = b.read(region, 0, 6)), revoked, "the old one stays so");
    link.detach(region);
    let gone = Some((0, Reason::NotAttached));
    assert_eq!(refused(&*link, |b| _ = b.read(region, 0, 6)), gone);
}

fn a_dropped_region_is_not_reached(name: &str) {
    let world = World::new(name);
    let link = world.link();
    let second = world.node.allocate(4096, world.provider.atomic_path()).unwrap();
    let key = second.grant(Rights::ALL).unwrap();
    let region = link.attach(&key).wait().unwrap();
    write(&*link, region, 0, b"here");
    drop(second);
    assert_eq!(refused(&*link, |b| _ = b.write(region, 0, b"gone")), Some((0, Reason::Revoked)));
}

fn a_handle_of_another_link_is_refused(name: &str) {
    let world = World::new(name);
    let (_one, region) = world.attached();
    let (two, _) = world.attached();
    let not = |index| Some((index, Reason::NotAttached));
    assert_eq!(refused(&*two, |b| _ = b.write(region, 0, b"x")), not(0));
    assert!(content(&world).iter().all(|&byte| byte == 0));
}

fn limits_are_the_same_everywhere(name: &str) {
    let world = World::new(name);
    let (link, region) = world.attached();
    let large = Some((0, Reason::TooLarge));
    assert_eq!(refused(&*link, |b| _ = b.read(region, 0, BATCH_BYTES_MAX as u32 + 1)), large);
    let crowd = |batch: &mut Batch| {
        for _ in 0..=archipelago_fabric::BATCH_OPS_MAX {
            batch.fetch_add(region, 0, 1);
        }
    };
    assert_eq!(refused(&*link, crowd), large);
    assert!(content(&world).iter().all(|&byte| byte == 0), "nothing of it was tried");
    let big = world.node.allocate(BATCH_BYTES_MAX, world.provider.atomic_path()).unwrap();
    let region = link.attach(&big.grant(Rights::ALL).unwrap()).wait().unwrap();
    let bytes: Vec<u8> = (0..BATCH_BYTES_MAX).map(|at| (at / 7) as u8).collect();
    write(&*link, region, 0, &bytes);
    assert!(read(&*link, region, 0, BATCH_BYTES_MAX as u32) == bytes);
}

fn another_epoch_ends_keys_and_links(name: &str) {
    let world = World::new(name);
    let (link, region) = world.attached();
    write(&*link, region, 0, b"one");
    assert!(world.node.advance_epoch(Epoch(1)).is_err(), "epochs grow");
    world.node.advance_epoch(Epoch(2)).unwrap();
    let (_, reason) = refused(&*link, |b| _ = b.write(region, 0, b"two")).unwrap();
    let expected = [Reason::StaleEpoch, Reason::Revoked, Reason::Disconnected];
    assert!(expected.contains(&reason), "{reason:?}");
    until("the link is down", || {
        _ = refused(&*link, |b| _ = b.read(region, 0, 1));
        link.closed().is_some_and(|refusal| refusal.reason == Reason::StaleEpoch)
    });
    let mut local = [0; 3];
    world.region.read(0, &mut local).unwrap();
    assert_eq!(&local, b"one");
    let link = world.link();
    assert_eq!(link.peer().epoch, Epoch(2));
    let old = link.attach(&world.key).wait().map_err(|refusal| refusal.reason);
    assert_eq!(old, Err(Reason::StaleEpoch));
    let key = world.region.grant(Rights::ALL).unwrap();
    let region = link.attach(&key).wait().unwrap();
    assert_eq!(read(&*link, region, 0, 3), b"one");
}

fn a_client_may_insist_on_node_and_epoch(name: &str) {
    let world = World::new(name);
    let to = || to(world.listener.address(), &Session::fresh());
    let error = world.provider.connect(Connect { node: Some(NodeId(9)), ..to() }).wait();
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let error = world.provider.connect(Connect { epoch: Some(Epoch(4)), ..to() }).wait();
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert!(error.to_string().contains("epoch 1"), "{error}");
    let exact = Connect { node: Some(NodeId(1)), epoch: Some(Epoch(1)), ..to() };
    assert_eq!(world.provider.connect(exact).wait().unwrap().peer().node, NodeId(1));
}

fn closed_listener_takes_its_links_down(name: &str) {
    let world = World::new(name);
    let (link, region) = world.attached();
    let World { listener, provider, .. } = world;
    let address = listener.address().to_owned();
    drop(listener);
    until("the link is down", || {
        _ = refused(&*link, |b| _ = b.read(region, 0, 1));
        link.closed().is_some()
    });
    let (_, reason) = refused(&*link, |b| _ = b.read(region, 0, 1)).unwrap();
    assert_eq!(reason, Reason::Disconnected);
    let to = to(&address, &Session::fresh());
    assert!(provider.connect(to).wait().is_err());
}

fn tasks_await_without_a_runtime(name: &str) {
    let world = World::new(name);
    let (link, region) = world.attached();
    block_on(async {
        for round in 0..50_u64 {
            let mut batch = Batch::new();
            batch.write(region, 0, &round.to_ne_bytes());
            batch.read(region, 0, 8);
            let batch = link.post(batch).await;
            batch.check().unwrap();
            assert_eq!(batch.data(1), round.to_ne_bytes());
            let call = archipelago_fabric::Call::new(b"abc", Duration::from_secs(30));
            assert_eq!(&*link.request(call).await.unwrap(), b"cba");
        }
    });
}

fn dropped_promises_still_take_effect(name: &str) {
    let world = World::new(name);
    let (link, region) = world.attached();
    for _ in 0..100 {
        let mut batch = Batch::new();
        batch.fetch_add(region, 0, 1);
        drop(link.post(batch));
    }
    let count = || {
        let mut word = [0; 8];
        world.region.read(0, &mut word).unwrap();
        u64::from_ne_bytes(word)
    };
    until("all were executed", || count() == 100);
}

fn a_batch_is_used_again(name: &str) {
    let world = World::new(name);
    let (link, region) = world.attached();
    let mut batch = Batch::new();
    for round in 0..20_u64 {
        batch.clear();
        batch.write_in_place(region, 8, 8).copy_from_slice(&round.to_ne_bytes());
        batch.read(region, 8, 8);
        batch = link.post(batch).wait();
        assert_eq!(batch.data(1), round.to_ne_bytes());
    }
    // A batch that is posted again takes effect again.
    batch.clear();
    batch.fetch_add(region, 16, 1);
    for round in 0..3 {
        batch = link.post(batch).wait();
        assert_eq!(batch.word(0), Some(round));
    }
}

fn atomics_that_go_another_way_are_refused(name: &str) {
    let world = World::new(name);
    let link = world.link();
    let other = match world.provider.atomic_path() {
        AtomicPath::Processor => AtomicPath::Card,
        AtomicPath::Card => AtomicPath::Processor,
    };
    let region = world.node.allocate(64, other).unwrap();
    let key = region.grant(Rights::ALL).unwrap();
    let refusal = link.attach(&key).wait().unwrap_err();
    assert_eq!(refusal.reason, Reason::AtomicPath);
    // The node's own processor is one of the two paths.
    let cards = if other == AtomicPath::Card { &region } else { &world.region };
    assert_eq!(cards.fetch_add(0, 1).unwrap_err().reason, Reason::AtomicPath);
    let plain = region.grant(Rights::READ.and(Rights::WRITE)).unwrap();
    let plain = link.attach(&plain).wait().unwrap();
    write(&*link, plain, 0, b"bytes have no path");
}

fn threads_share_a_link(name: &str) {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 300;
    let world = World::new(name);
    let (link, region) = world.attached();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let link: &Arc<dyn Link> = &link;
            scope.spawn(move || {
                let at = 1024 + thread * 8;
                for round in 0..ROUNDS {
                    let mut batch = Batch::new();
                    batch.fetch_add(region, 0, 1);
                    batch.write(region, at, &round.to_ne_bytes());
                    batch.read(region, at, 8);
                    let posted = link.post(batch);
                    let batch = if round % 3 == 0 { block_on(posted) } else { posted.wait() };
                    assert_eq!(batch.data(2), round.to_ne_bytes());
                }
            });
        }
    });
    assert_eq!(read(&*link, region, 0, 8), (THREADS * ROUNDS).to_ne_bytes());
}
