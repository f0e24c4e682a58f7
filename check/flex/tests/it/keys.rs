//! All keys of a cluster in this process: listed, sampled and moved, by threads at two nodes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use archipelago_base::ErrorKind;
use archipelago_compute::flex::{Destination, FlexNode, Renamed, ScanLimits};
use archipelago_flex::WriteEffect;

use crate::full_memory::{Cluster, assert_is_full};

/// All keys that a scan returns whose steps go to the nodes in turn; and how many steps it took.
fn scan_all(nodes: &[FlexNode], records: usize) -> (BTreeSet<Vec<u8>>, usize) {
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
    let move_often = |node: &FlexNode, (from, to): (&[u8], &[u8]), mine: &AtomicU32| {
        // Each needs the other one to move the value back.
        while moves.iter().any(|moves| moves.load(Ordering::SeqCst) < 20) {
            match node.rename(from, to, Destination::Overwritten) {
                Ok(Renamed::Moved) => _ = mine.fetch_add(1, Ordering::SeqCst),
                Ok(_) => {
                    // The other one moves the value only once before this one moves it back.
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
