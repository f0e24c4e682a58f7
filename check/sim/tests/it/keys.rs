//! All keys of a cluster in this process, which threads at two nodes list, sample and move.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use archipelago_base::ErrorKind;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_compute::flexkv::{Destination, FlexKvNode, Renamed, ScanLimits};
use archipelago_flexkv::format::key_hash;
use archipelago_flexkv::{Value, WriteEffect, WriteError};

use crate::full_memory::{ADDRESS_LEASE, Cluster, assert_is_full};
use crate::processes::until;

/// All keys that a scan returns, and its number of steps. The nodes make the steps in turn.
fn scan_all(nodes: &[FlexKvNode], records: usize) -> (BTreeSet<Vec<u8>>, usize) {
    let (mut keys, mut cursor, mut steps) = (BTreeSet::new(), 0, 0);
    loop {
        let limits = ScanLimits { records, key_bytes: 1 << 20 };
        let step = nodes[steps % nodes.len()].scan(cursor, limits).expect("nobody is gone");
        let step = step.expect("a cursor that was given out");
        keys.extend(step.keys.into_iter().map(|found| found.key));
        steps += 1;
        match step.next {
            Some(next) => cursor = next,
            None => return (keys, steps),
        }
    }
}

#[test]
fn full_memory_can_be_scanned_but_not_renamed() {
    let cluster = Cluster::start();
    let large = vec![b'x'; 600 << 10];
    cluster.compute[0].set(b"large", &large, 0).expect("room");
    let (count, failed) = cluster.fill();
    assert_is_full(&failed);
    let mut all: BTreeSet<Vec<u8>> = (0..count).map(|n| format!("key{n}").into_bytes()).collect();
    all.insert(b"large".to_vec());
    let (keys, steps) = scan_all(&cluster.compute, 100);
    assert!(keys == all && steps >= count / 120, "{} of {count} in {steps} steps", keys.len());
    // A partition that cannot grow refuses its keys while there is room for records of others.
    let has_room = |number: usize| {
        let set = cluster.compute[0].set(format!("more{number}").as_bytes(), &large[..1000], 0);
        set.map_or_else(|failed| failed.to_string().contains("takes no further key"), |()| true)
    };
    assert!((0..2 * count).any(|number| !has_room(number)), "memory is bounded");
    // The new record needs more room than records and subtables that were given back leave.
    let node = &cluster.compute[1];
    let failed = node.rename(b"large", b"new", Destination::Overwritten).expect_err("full");
    assert_is_full(&failed);
    let value = node.get(b"large").expect("readable");
    assert!(value.is_some_and(|value| value.bytes == large), "the value is not lost");
    assert_eq!(node.get(b"new").expect("readable"), None);
}

#[test]
fn expired_keys_are_neither_listed_nor_counted() {
    let cluster = Cluster::start();
    #[expect(clippy::disallowed_methods, reason = "expiries are told by the wall clock")]
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_ms = now.expect("after 1970").as_millis() as u64;
    let [one, other] = [&cluster.compute[0], &cluster.compute[1]];
    for number in 0..300 {
        let expires_ms = [0, 1, now_ms + 1_000_000][number % 3];
        one.set(format!("key{number}").as_bytes(), b"value", expires_ms).expect("room");
    }
    let there = |key: &Vec<u8>| {
        let number: usize = String::from_utf8_lossy(&key[3..]).parse().expect("a number");
        number % 3 != 1
    };
    let (keys, _) = scan_all(&cluster.compute, 10);
    assert!(keys.len() == 200 && keys.iter().all(there), "{} keys", keys.len());
    for _ in 0..20 {
        let key = other.random_key().expect("readable").expect("a key");
        assert!(keys.contains(&key));
    }
    let figures = other.key_figures(now_ms).expect("readable");
    assert_eq!((figures.keys, figures.expiring, figures.mean_ttl_ms), (200, 100, 1_000_000));
    for number in 300..4_000 {
        let expires_ms = [0, now_ms + 1_000_000][number % 2];
        one.set(format!("key{number}").as_bytes(), b"value", expires_ms).expect("room");
    }
    let figures = other.key_figures(now_ms).expect("readable");
    let (keys, expiring) = (3_900, 1_950);
    // Six standard errors of the sample.
    let near = |told: u64, exact: u64| told.abs_diff(exact) < 400;
    assert!(near(figures.keys, keys) && near(figures.expiring, expiring), "{figures:?}");
    assert_eq!(figures.mean_ttl_ms, 1_000_000);
    one.clear().expect("deletions need no room");
    assert_eq!(other.random_key().expect("readable"), None);
    assert_eq!(other.key_figures(now_ms).expect("readable").keys, 0);
}

#[test]
fn value_is_never_lost_by_moves_of_two_nodes() {
    let cluster = Cluster::start();
    let token = b"token".to_vec();
    cluster.compute[0].set(b"here", &token, 0).expect("room");
    let moves = [AtomicU32::new(0), AtomicU32::new(0)];
    let move_often = |node: &FlexKvNode, (from, to): (&[u8], &[u8]), mine: &AtomicU32| {
        // Before a node can move the value again, the other node must move it back.
        while moves.iter().any(|moves| moves.load(Ordering::SeqCst) < 20) {
            match node.rename(from, to, Destination::Overwritten) {
                Ok(Renamed::Moved) => _ = mine.fetch_add(1, Ordering::SeqCst),
                Ok(_) => {
                    // The other node moves the value only once before this node moves it back.
                    let absent = |key: &[u8]| node.get(key).expect("readable").is_none();
                    let is_lost = (0..3).all(|_| absent(from) && absent(to));
                    assert!(!is_lost, "the value is lost");
                }
                Err(failed) => {
                    let of_both = (failed.kind(), failed.effect());
                    assert_eq!(of_both, (ErrorKind::Busy, WriteEffect::Unknown), "{failed}");
                }
            }
        }
    };
    let [there, back] = [(&b"here"[..], &b"there"[..]), (b"there", b"here")];
    std::thread::scope(|scope| {
        scope.spawn(|| move_often(&cluster.compute[0], there, &moves[0]));
        scope.spawn(|| move_often(&cluster.compute[1], back, &moves[1]));
    });
    let left: Vec<Vec<u8>> = [&b"here"[..], b"there"]
        .iter()
        .filter_map(|key| cluster.compute[0].get(key).expect("readable"))
        .map(|value| value.bytes)
        .collect();
    assert!(!left.is_empty() && left.iter().all(|value| *value == token), "{left:?}");
}

#[test]
fn keys_longer_than_the_slot_length_are_listed_and_cleared() {
    let cluster = Cluster::start();
    let mut all = BTreeSet::new();
    for (nth, bytes) in [16_272, 16_273, 16_320, 20_000, 65_534, 65_535].into_iter().enumerate() {
        let key = vec![b'a' + nth as u8; bytes];
        cluster.compute[nth % 2].set(&key, b"value", 0).expect("room");
        all.insert(key);
    }
    // A short key whose value needs the same length of the slot.
    cluster.compute[0].set(b"short", &[b'x'; 70_000], 0).expect("room");
    all.insert(b"short".to_vec());
    assert!(scan_all(&cluster.compute, 2).0 == all, "SCAN");
    let mut listed = BTreeSet::new();
    let listing = cluster.compute[1].each_partition(&mut |mut keys| {
        listed.append(&mut keys);
        Ok(ControlFlow::Continue(()))
    });
    listing.expect("readable");
    assert!(listed == all, "KEYS");
    assert!(all.contains(&cluster.compute[1].random_key().expect("readable").expect("a key")));
    cluster.compute[1].clear().expect("deletions need no room");
    assert_eq!(scan_all(&cluster.compute, 2).0.len(), 0);
}

#[test]
fn long_keys_are_overwritten_moved_and_deleted() {
    for offload in [0, 1000] {
        let cluster = Cluster::with_proxies(offload);
        let is_as_planned = || {
            let map = cluster.compute[0].node().expect("a member").map_status().expect("joined");
            map.entries.iter().all(|entry| entry.offloaded == (offload > 0))
        };
        until("the map is as planned", is_as_planned);
        let [one, other] = [&cluster.compute[0], &cluster.compute[1]];
        let (key, new) = (vec![b'k'; 20_000], vec![b'n'; 40_000]);
        for (node, value) in [(one, b"first"), (other, b"other"), (one, b"third")] {
            node.set(&key, value, 0).expect("room");
        }
        assert_eq!(one.count().expect("readable"), 1, "a key has one slot");
        let read = |key: &[u8]| other.get(key).expect("readable").map(|value| value.bytes);
        assert_eq!(read(&key).as_deref(), Some(&b"third"[..]));
        let renamed = other.rename(&key, &new, Destination::Overwritten).expect("room");
        assert_eq!((renamed, read(&key)), (Renamed::Moved, None));
        assert_eq!(read(&new).as_deref(), Some(&b"third"[..]));
        assert!(one.delete(&new).expect("there"));
        assert!(!one.delete(&new).expect("gone"));
        assert_eq!((read(&new), one.count().expect("readable")), (None, 0));
    }
}

#[test]
fn partition_with_a_long_key_grows() {
    let cluster = Cluster::start();
    let long = vec![b'k'; 20_000];
    cluster.compute[0].set(&long, b"value", 0).expect("room");
    let node = cluster.compute[0].node().expect("a member");
    let shape_of = || {
        let map = node.map_status().expect("joined");
        let bits = map.entries.len().ilog2();
        let partition = key_hash(&long).0 >> (64 - bits);
        (bits, partition, map.entries[partition as usize].shape.log2_buckets)
    };
    let (bits, partition, before) = shape_of();
    let mut number = 0_u32;
    while shape_of().2 == before {
        let key = format!("key{number}");
        number += 1;
        if key_hash(key.as_bytes()).0 >> (64 - bits) == partition {
            cluster.compute[0].set(key.as_bytes(), b"value", 0).expect("the partition grows");
        }
    }
    let value = cluster.compute[1].get(&long).expect("readable").expect("a key stays");
    assert_eq!(value.bytes, b"value");
}

#[test]
fn random_key_is_found_among_expired_records() {
    let cluster = Cluster::start();
    // Each node in turn finds the few keys behind thousands of records that have expired.
    for number in 0..3_000_u32 {
        let expires_ms = if number.is_multiple_of(300) { 0 } else { 1 };
        cluster.compute[0]
            .set(format!("key{number}").as_bytes(), b"value", expires_ms)
            .expect("room");
    }
    for turn in 0..20 {
        let key = cluster.compute[turn % 2].random_key().expect("readable").expect("a key");
        let number: u32 = String::from_utf8_lossy(&key[3..]).parse().expect("a number");
        assert!(number.is_multiple_of(300), "{number}");
    }
}

#[test]
fn write_for_a_value_read_an_address_lease_ago_is_refused() {
    let cluster = Cluster::start();
    let node = &cluster.compute[0];
    node.set(b"key", b"value", 0).expect("room");
    let read = || node.get(b"key").expect("readable").expect("there");
    let old = read();
    SystemClock::new().sleep(ADDRESS_LEASE);
    assert_eq!(read(), old, "it is the same value");
    let refused = |failed: WriteError| {
        let of_both = (failed.kind(), failed.effect());
        assert_eq!(of_both, (ErrorKind::Busy, WriteEffect::None), "{failed}");
        false
    };
    refused(node.compare_and_delete(b"key", &old).expect_err("too old"));
    refused(node.compare_and_set(b"key", Some(&old), b"new", 0).expect_err("too old"));
    until("a value that was just read is set", || {
        node.compare_and_set(b"key", Some(&read()), b"new", 0).unwrap_or_else(refused)
    });
    assert_eq!(read().bytes, b"new");
}

/// Both conditional writes for a value that was read. `None` if the value was read too long ago.
fn write_if_unchanged(node: &FlexKvNode, key: &[u8], old: &Value) -> Option<[bool; 2]> {
    let known = |result: Result<bool, WriteError>| match result {
        Ok(is_done) => Some(is_done),
        Err(failed) => {
            assert_eq!((failed.kind(), failed.effect()), (ErrorKind::Busy, WriteEffect::None));
            None
        }
    };
    let set = known(node.compare_and_set(key, Some(old), b"set", 0))?;
    Some([set, known(node.compare_and_delete(key, old))?])
}

#[test]
fn conditional_delete_honours_what_conditional_set_does() {
    let clock = SystemClock::new();
    for offload in [0, 1000] {
        let cluster = Cluster::with_proxies(offload);
        let [node, other] = [&cluster.compute[0], &cluster.compute[1]];
        let is = |wanted: Option<&[u8]>| {
            let value = other.get(b"key").expect("readable").map(|value| value.bytes);
            assert_eq!(value.as_deref(), wanted);
        };
        // Sets the key, reads it, and lets `outdate` change it. Then neither write applies.
        let refused = |expires_in_ms: Option<u64>, outdate: &dyn Fn()| {
            until("the value was read a moment ago", || {
                let expires_ms = expires_in_ms.map_or(0, |ms| clock.unix_ms() + ms);
                other.set(b"key", b"old", expires_ms).expect("room");
                let Some(old) = node.get(b"key").expect("readable") else { return false };
                outdate();
                let Some(done) = write_if_unchanged(node, b"key", &old) else { return false };
                assert_eq!(done, [false, false]);
                true
            });
        };
        refused(None, &|| other.set(b"key", b"new", 0).expect("room"));
        is(Some(b"new"));
        // The same bytes are another version.
        refused(None, &|| other.set(b"key", b"old", 0).expect("room"));
        is(Some(b"old"));
        refused(None, &|| assert!(other.delete(b"key").expect("no room is needed")));
        is(None);
        refused(Some(200), &|| clock.sleep(Duration::from_millis(300)));
        is(None);
        until("a value that was just read is deleted", || {
            other.set(b"key", b"old", 0).expect("room");
            let old = node.get(b"key").expect("readable").expect("there");
            node.compare_and_delete(b"key", &old).is_ok_and(|is_done| is_done)
        });
        is(None);
    }
}
