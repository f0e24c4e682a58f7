//! Tests with several processes, over every provider that supports them: contention, and the kill,
//! stop and restart of either side. `sim.rs` has hosts instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::{Epoch, ErrorKind};
use archipelago_fabric::{AtomicPath, Attached, Batch, Connect, Link, Reason, RemoteKey, Session};

use crate::process::{Helper, hex_of, node};
use crate::world::{World, ask, fresh_address, provider, read, refused, to, until, write};

macro_rules! every_provider {
    ($($test:ident)*) => {
        mod shm { $(#[test] fn $test() { super::$test("shm"); })* }
        mod tcp { $(#[test] fn $test() { super::$test("tcp"); })* }
        #[cfg(feature = "ofi")]
        mod ofi { $(#[test] fn $test() { super::$test("ofi"); })* }
    };
}

every_provider! {
    atomics_of_several_processes_lose_nothing
    a_killed_node_is_noticed_and_its_next_life_refuses_old_keys
    killed_client_harms_no_other_client
    stopped_client_harms_no_other_client
    a_revocation_in_another_process_is_seen
    a_stopped_node_answers_when_it_goes_on
}

fn link_to(name: &str, address: &str) -> Arc<dyn Link> {
    provider(name).connect(to(address, &Session::fresh())).wait().unwrap()
}

fn link(name: &str, address: &str, key: &RemoteKey) -> (Arc<dyn Link>, Attached) {
    let link = link_to(name, address);
    let region = link.attach(key).wait().unwrap();
    (link, region)
}

/// Number of additions of a process. Over `shm` they take longer than one time slice of the
/// scheduler.
fn rounds(name: &str) -> u64 {
    if name == "shm" { 100_000 } else { 400 }
}

fn atomics_of_several_processes_lose_nothing(name: &str) {
    const CLIENTS: u64 = 3;
    let world = World::new(name);
    let (address, key) = (world.listener.address(), hex_of(&world.key));
    let start = |name: &str, address: &str| {
        Helper::start(&["count", name, address, &key, &rounds(name).to_string()])
    };
    let mut helpers: Vec<Helper> = (0..CLIENTS).map(|_| start(name, address)).collect();
    let mut total = CLIENTS * rounds(name);
    // If processors execute atomic operations, the node and clients of the other provider take part
    // as well: all use one path.
    let on_processors = world.provider.atomic_path() == AtomicPath::Processor;
    let dir = tempfile::tempdir().unwrap();
    let other = if name == "shm" { "tcp" } else { "shm" };
    let listener = provider(other).serve(&world.node, &fresh_address(other, &dir)).unwrap();
    if on_processors {
        helpers.push(start(other, listener.address()));
        total += rounds(other);
    } else {
        let link = link_to(other, listener.address());
        let refusal = link.attach(&world.key).wait().unwrap_err();
        assert_eq!(refusal.reason, Reason::AtomicPath, "{other} goes another way");
    }
    for helper in &mut helpers {
        assert_eq!(helper.hear(), "ready");
    }
    let added = AtomicU64::new(0);
    let failed: Vec<u64> = std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            let (last, others) = helpers.split_last_mut().unwrap();
            others.iter_mut().for_each(|helper| helper.say("go"));
            // The node adds before the last helper does.
            until("the node adds", || added.load(Ordering::SeqCst) > 0 || !on_processors);
            last.say("go");
            helpers.iter_mut().map(failed_swaps).collect()
        });
        while on_processors && !done.is_finished() {
            world.region.fetch_add(0, 1).unwrap();
            added.fetch_add(1, Ordering::SeqCst);
        }
        done.join().unwrap()
    });
    let added = added.into_inner();
    let word = |offset| {
        let mut word = [0; 8];
        world.region.read(offset, &mut word).unwrap();
        u64::from_ne_bytes(word)
    };
    assert_eq!((word(0), word(8)), (total + added, total));
    assert_eq!(added > 0, on_processors, "the node added meanwhile");
    if name == "shm" {
        // Only processes with mapped memory count, because a client of `tcp` loses to them anyway.
        let mapped: u64 = failed[..CLIENTS as usize].iter().sum();
        assert!(mapped > 0, "the processes never came between each other: {failed:?}");
    }
}

/// Waits for a counting helper. Returns the number of its failed compare-and-swaps.
fn failed_swaps(helper: &mut Helper) -> u64 {
    let said = helper.hear();
    said.strip_prefix("done ").and_then(|failed| failed.parse().ok()).expect(&said)
}

fn a_killed_node_is_noticed_and_its_next_life_refuses_old_keys(name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (mut first, address, key) = node(name, &fresh_address(name, &dir), 1);
    let (old, region) = link(name, &address, &key);
    write(&*old, region, 0, b"of the first life");
    first.kill();
    until("the client notices", || {
        refused(&*old, |batch| _ = batch.read(region, 0, 8)) == Some((0, Reason::Disconnected))
    });
    assert_eq!(ask(&*old, b"anybody?"), Err(Reason::Disconnected));
    let refusal = old.attach(&key).wait().unwrap_err();
    assert_eq!(refusal.reason, Reason::Disconnected);
    // The second node has the same address and the next epoch.
    let (_second, address, fresh) = node(name, &address, 2);
    let insists = Connect { epoch: Some(Epoch(1)), ..to(&address, &Session::fresh()) };
    let error = provider(name).connect(insists).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    let (new, anew) = link(name, &address, &fresh);
    assert_eq!(new.peer().epoch, Epoch(2));
    let refusal = new.attach(&key).wait().unwrap_err();
    assert_eq!((refusal.reason, refusal.limit), (Reason::StaleEpoch, 2));
    assert_eq!(read(&*new, anew, 0, 17), [0; 17], "memory does not outlive its node");
    let stale = refused(&*old, |batch| _ = batch.read(region, 0, 8));
    assert_eq!(stale.map(|(_, reason)| reason), Some(Reason::Disconnected), "down stays down");
}

fn killed_client_harms_no_other_client(name: &str) {
    let world = World::new(name);
    let (address, key) = (world.listener.address(), hex_of(&world.key));
    let mut client = Helper::start(&["write", name, address, &key]);
    assert_eq!(client.hear(), "writing");
    client.kill();
    let (link, region) = world.attached();
    write(&*link, region, 0, b"others go on");
    assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba");
    drop(link);
    until("nobody holds the region", || world.node.holders(&world.key).is_empty());
}

fn stopped_client_harms_no_other_client(name: &str) {
    let world = World::new(name);
    let (address, key) = (world.listener.address(), hex_of(&world.key));
    let mut client = Helper::start(&["write", name, address, &key]);
    assert_eq!(client.hear(), "writing");
    client.stop();
    let (link, region) = world.attached();
    for _ in 0..50 {
        write(&*link, region, 0, b"others go on");
        assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba");
    }
    client.go_on();
}

fn a_revocation_in_another_process_is_seen(name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (mut helper, address, key) = node(name, &fresh_address(name, &dir), 1);
    let (link, region) = link(name, &address, &key);
    write(&*link, region, 0, b"before");
    helper.say("revoke");
    assert_eq!(helper.hear(), "revoked");
    let after = refused(&*link, |batch| _ = batch.write(region, 0, b"after!"));
    assert_eq!(after, Some((0, Reason::Revoked)));
}

fn a_stopped_node_answers_when_it_goes_on(name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (helper, address, key) = node(name, &fresh_address(name, &dir), 1);
    let (link, region) = link(name, &address, &key);
    assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba");
    helper.stop();
    if name == "shm" {
        // No thread of the target takes part.
        for round in 0..1000_u64 {
            write(&*link, region, 0, &round.to_ne_bytes());
            assert_eq!(read(&*link, region, 0, 8), round.to_ne_bytes());
            assert_eq!(refused(&*link, |batch| _ = batch.fetch_add(region, 8, 1)), None);
        }
    } else {
        let mut batch = Batch::new();
        batch.set_deadline(Duration::from_millis(50));
        batch.fetch_add(region, 8, 1000);
        let batch = link.post(batch).wait();
        assert_eq!(batch.refusal().map(|(_, refusal)| refusal.reason), Some(Reason::Deadline));
    }
    let call = archipelago_fabric::Call::new(b"abc", Duration::from_millis(50));
    let late = link.request(call).wait().map_err(|refusal| refusal.reason);
    assert_eq!(late, Err(Reason::Deadline));
    helper.go_on();
    assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba");
    assert_eq!(read(&*link, region, 8, 8), 1000_u64.to_ne_bytes(), "late is not never");
}
