//! Tests of the table without a server: its bounds, its sweeping, and the agreement of its figures.

use std::net::SocketAddr;

use super::*;
use crate::clients::{Clients, Socket};
use crate::reply::{Reply, Version};

fn client(clients: &Clients) -> Arc<Client> {
    let addr: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let socket = Socket { peer: addr, local: addr, descriptor: 0 };
    clients.enter(socket, 0, 100).ok().expect("room")
}

fn told(client: &Client) -> String {
    let mut reply = Reply::default();
    reply.set_version(Version::Resp3);
    client.invalidations.write_to(&mut reply);
    String::from_utf8_lossy(reply.bytes()).replace("\r\n", " ")
}

/// Checks that everything derived from the keys equals a fresh computation.
fn check(tracking: &Tracking) {
    let table = &tracking.table.lock().0;
    let of_keys: u64 = table.keys.iter().map(|(key, tracked)| tracked.bytes(key)).sum();
    let prefixes = table.trackers.values().flat_map(|tracker| &tracker.prefixes);
    assert_eq!(table.bytes, of_keys + prefixes.map(|prefix| prefix_bytes(prefix)).sum::<u64>());
    let items: usize = table.keys.values().map(|tracked| tracked.clients.len()).sum();
    assert_eq!(table.items, items);
    let deadlines = table.keys.iter().filter_map(|(key, tracked)| {
        let deadline = tracked.deadline_ms.map(|at_ms| (at_ms, Arc::clone(key)));
        assert!(deadline.is_some() || !tracked.clients.is_empty(), "{key:?} is for nobody");
        deadline
    });
    assert_eq!(deadlines.collect::<BTreeSet<_>>(), table.deadlines);
    let lengths: usize = table.prefix_lengths.values().sum();
    assert_eq!(lengths, table.prefixes.len());
}

fn delete(key: &[u8]) -> [Op<'_>; 1] {
    [Op::Delete { key }]
}

#[test]
fn table_keeps_to_its_bytes_whatever_the_keys() {
    let budget = ByteBudget::new(1 << 20);
    let (tracking, clients) = (Tracking::new(0, Arc::clone(&budget)), Clients::default());
    let client = client(&clients);
    tracking.begin(&client, TrackingMode::ON, &[]);
    for n in 0..100u8 {
        let key = vec![n; KEY_BYTES_MAX];
        tracking.register(&client, [&key[..], b"k"].into_iter());
        check(&tracking);
        assert!(budget.used_bytes(MemoryClass::Request) <= TABLE_BYTES_MIN + (128 << 10));
    }
    tracking.register(&client, [&vec![0; KEY_BYTES_MAX + 1][..]].into_iter());
    assert!(tracking.figures().keys < 20);
    assert_eq!(told(&client), ">2 $10 invalidate _ ", "more than a mailbox holds");
    tracking.end(&client);
    while tracking.keep_up(0) {}
    check(&tracking);
    assert_eq!((tracking.figures().keys, budget.total_bytes()), (0, 0));
}

#[test]
fn earliest_deadline_of_a_key_counts() {
    let (tracking, clients) = (Tracking::new(0, ByteBudget::unlimited()), Clients::default());
    let client = client(&clients);
    tracking.begin(&client, TrackingMode::ON, &[]);
    tracking.register(&client, [&b"k"[..], b"l"].into_iter());
    tracking.note_deadlines(&[(b"k", 70), (b"k", 50), (b"k", 60), (b"l", 80), (b"other", 10)]);
    check(&tracking);
    tracking.keep_up(49);
    assert_eq!(told(&client), "");
    tracking.keep_up(50);
    assert_eq!(told(&client), ">2 $10 invalidate *1 $1 k ");
    // A write ends the registration, and its deadline with it.
    tracking.written(&delete(b"l"), 0);
    assert_eq!(told(&client), ">2 $10 invalidate *1 $1 l ");
    tracking.note_deadlines(&[(b"l", 90)]);
    tracking.keep_up(1000);
    assert_eq!((told(&client), tracking.figures().keys), (String::new(), 0));
    check(&tracking);
}

#[test]
fn one_step_of_upkeep_handles_a_bounded_number_of_keys() {
    let (tracking, clients) = (Tracking::new(0, ByteBudget::unlimited()), Clients::default());
    let (stays, leaves) = (client(&clients), client(&clients));
    tracking.begin(&stays, TrackingMode::ON, &[]);
    tracking.begin(&leaves, TrackingMode::ON, &[]);
    let keys: Vec<[u8; 4]> = (0..1000u32).map(u32::to_be_bytes).collect();
    for key in &keys {
        tracking.register(&leaves, [&key[..]].into_iter());
    }
    tracking.register(&stays, keys[..10].iter().map(|key| &key[..]));
    tracking.end(&leaves);
    let mut steps = 1;
    while tracking.keep_up(0) {
        steps += 1;
    }
    check(&tracking);
    assert_eq!((tracking.figures().items, tracking.figures().keys), (10, 10));
    assert!(steps >= keys.len() / UPKEEP_KEYS, "{steps}");
    tracking.set_keys_max(3);
    while tracking.keep_up(0) {}
    assert_eq!(tracking.figures().keys, 3);
    assert!(told(&stays).starts_with(">2 $10 invalidate *7 "));
    let deadlines: Vec<(&[u8], u64)> = keys.iter().map(|key| (&key[..], 5)).collect();
    tracking.set_keys_max(0);
    tracking.register(&stays, keys.iter().map(|key| &key[..]));
    tracking.note_deadlines(&deadlines);
    assert!(tracking.keep_up(5));
    assert_eq!(tracking.figures().keys, keys.len() - UPKEEP_KEYS);
    check(&tracking);
}

#[test]
fn range_touches_the_prefixes_that_may_lie_in_it() {
    let (tracking, clients) = (Tracking::new(0, ByteBudget::unlimited()), Clients::default());
    let client = client(&clients);
    let mode = TrackingMode::ON.with(TrackingMode::BCAST);
    tracking.begin(&client, mode, &[b"m"]);
    for (start, end, touches) in [
        (&b"a"[..], Some(&b"m"[..]), false),
        (b"a", Some(b"m\0"), true),
        (b"mm", Some(b"mn"), true),
        (b"m", None, true),
        (b"n", None, false),
        (b"z", Some(b"a"), false),
    ] {
        tracking.written(&[Op::DeleteRange { start, end }], 0);
        let expected = if touches { ">2 $10 invalidate _ " } else { "" };
        assert_eq!(told(&client), expected, "{start:?} {end:?}");
    }
    tracking.note_deadlines(&[(b"moray", 5), (b"coral", 5)]);
    assert_eq!(tracking.figures().keys, 1);
    tracking.keep_up(5);
    assert_eq!(told(&client), ">2 $10 invalidate *1 $5 moray ");
    tracking.end(&client);
    check(&tracking);
    assert_eq!((tracking.figures().clients, tracking.figures().prefixes), (0, 0));
}

#[test]
fn published_figures_share_no_cache_line_with_the_table() {
    let (tracking, clients) = (Tracking::new(0, ByteBudget::unlimited()), Clients::default());
    let line = |address: usize| address / 128;
    let published = line(&raw const tracking.published as usize);
    assert_ne!(line(&raw const tracking.table as usize), published);
    assert_ne!(line(&raw const tracking.keys_max as usize), published);
    let client = client(&clients);
    tracking.begin(&client, TrackingMode::ON.with(TrackingMode::BCAST), &[b"k"]);
    assert!(tracking.is_active() && tracking.has_prefixes());
    tracking.end(&client);
    assert!(!tracking.is_active() && !tracking.has_prefixes());
}
