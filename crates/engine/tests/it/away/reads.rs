//! Reads of memtable shards at memory nodes.

use archipelago_base::ErrorKind;
use archipelago_engine::db::ReadOptions;
use archipelago_engine::options::WriteOptions;
use archipelago_engine::stats::Ticker;

use super::Mood;
use super::world::{Change, KEYS, World, assert_busy, check_rows, key};

/// One node, whose pages have as many records as fit.
fn one_node() -> Change {
    Change { mood: Mood { nodes: 1, page_records: 0, ..Mood::default() }, ..Change::default() }
}

#[test]
fn every_read_finds_what_is_away() {
    for seed in 0..3 {
        let page_records = [1, 5, 0][seed];
        let mood = Mood { page_records, silence: 3, ..Mood::default() };
        let mut world = World::with(Change { mood, ..Change::default() });
        world.send_away(4);
        world.check();
        assert!(world.store.did().silent > 0, "no question was left without an answer");
        assert!(world.ticker(Ticker::AwayLookups) > 0 && world.ticker(Ticker::AwayPages) > 0);
        assert_eq!(world.ticker(Ticker::AwayReadsBusy), 0);
    }
}

#[test]
fn snapshots_and_iterators_keep_their_moment() {
    let mut world = World::new();
    world.send_away(2);
    let cf = world.db.default_family().clone();
    let (snapshot, before) = (world.db.snapshot(), world.model.clone());
    let mut iter = world.db.iter(&cf, &ReadOptions::default()).unwrap();
    world.send_away(5);
    check_rows(&mut iter, &before);
    let as_of = ReadOptions::new().snapshot(&snapshot);
    check_rows(&mut world.db.iter(&cf, &as_of).unwrap(), &before);
    for number in 0..KEYS {
        let found = world.db.get_with(&cf, &key(number), &as_of).unwrap();
        assert_eq!(found.as_deref(), before.get(&key(number)).map(Vec::as_slice));
    }
    // After everything is in tables, they must still show the same rows.
    world.db.wait_for_background().unwrap();
    assert!(world.store.held().is_empty());
    check_rows(&mut iter, &before);
    check_rows(&mut world.db.iter(&cf, &as_of).unwrap(), &before);
    world.check();
}

#[test]
fn bounds_and_prefixes_hold() {
    let mut world = World::new();
    world.send_away(3);
    let cf = world.db.default_family();
    for (lower, upper) in [(0, 40), (13, 14), (100, 333), (250, KEYS + 9)] {
        let options = ReadOptions::new().range(key(lower), key(upper));
        let range = world.model.range(key(lower)..key(upper));
        let within = range.map(|(k, v)| (k.clone(), v.clone())).collect();
        let mut iter = world.db.iter(cf, &options).unwrap();
        let mut found = std::collections::BTreeMap::new();
        iter.seek_to_last();
        while iter.valid() {
            found.insert(iter.key().to_vec(), iter.value().to_vec());
            iter.prev();
        }
        iter.status().unwrap();
        assert_eq!(found, within);
    }
    let mut iter = world.db.iter(cf, &ReadOptions::new().prefix(b"key0012")).unwrap();
    iter.seek_to_first();
    while iter.valid() {
        assert!(iter.key().starts_with(b"key0012"));
        iter.next();
    }
    iter.status().unwrap();
}

#[test]
fn read_of_the_cache_alone_is_busy() {
    let mut world = World::new();
    world.send_away(2);
    let cf = world.db.default_family();
    let cached = ReadOptions { cache_only: true, ..ReadOptions::default() };
    let (mut busy, mut right) = (0, 0);
    let asked = world.store.did();
    for number in 0..KEYS {
        match world.db.get_with(cf, &key(number), &cached) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                busy += 1;
            }
            Ok(found) => {
                assert_eq!(found.as_deref(), world.model.get(&key(number)).map(Vec::as_slice));
                right += 1;
            }
        }
    }
    assert!(busy > 0 && right > 0, "{busy} were busy, {right} were answered");
    let mut iter = world.db.iter(cf, &cached).unwrap();
    iter.seek_to_first();
    assert!(!iter.valid());
    assert_busy(iter.status());
    assert_eq!(world.store.did().lookups, asked.lookups, "no node is asked");
    assert_eq!(world.store.did().pages, asked.pages, "no node is asked");
}

#[test]
fn shards_of_one_node_are_asked_together() {
    let mut world = World::with(one_node());
    world.send_away(5);
    let cf = world.db.default_family();
    let before = world.store.did().lookups;
    let keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    let refs: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let values = world.db.multi_get(cf, &refs, &ReadOptions::default()).unwrap();
    assert_eq!(values.iter().flatten().count(), world.model.len());
    // One request for the first shards of all keys, and few requests for shards after other homes.
    let asked = world.store.did().lookups - before;
    assert!((1..=3).contains(&asked), "{asked} questions for one batch");
    let before = world.store.did().pages;
    let mut iter = world.db.iter(cf, &ReadOptions::default()).unwrap();
    iter.seek_to_first();
    iter.status().unwrap();
    let asked = world.store.did().pages - before;
    assert!((1..=2).contains(&asked), "{asked} pages for one seek over five memtables");
}

#[test]
fn keys_need_no_values() {
    let mut world = World::new();
    world.send_away(3);
    let cf = world.db.default_family();
    let options = ReadOptions::new().keys_only();
    let mut iter = world.db.iter(cf, &options).unwrap();
    let mut keys = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        keys.push(iter.key().to_vec());
        iter.next();
    }
    iter.status().unwrap();
    assert_eq!(keys, world.model.keys().cloned().collect::<Vec<_>>());
    for number in 0..KEYS {
        let head = world.db.get_head(cf, &key(number), &ReadOptions::default()).unwrap();
        assert_eq!(head.is_some(), world.model.contains_key(&key(number)));
    }
}

#[test]
fn expiry_is_judged_here() {
    let mut world = World::new();
    let cf = world.db.default_family().clone();
    let options = WriteOptions::default();
    let far = u64::MAX / 2;
    world.db.put_expiring(&cf, b"key1lasting", b"value", far, &options).unwrap();
    world.db.put_expiring(&cf, b"key1gone", b"value", 1, &options).unwrap();
    world.send_away(3);
    let entry = world.db.get_entry(&cf, b"key1lasting", &ReadOptions::default()).unwrap().unwrap();
    assert_eq!((entry.value.as_ref(), entry.expires_at_ms), (&b"value"[..], Some(far)));
    let head = world.db.get_head(&cf, b"key1lasting", &ReadOptions::default()).unwrap().unwrap();
    assert_eq!(head.expires_at_ms, Some(far));
    assert!(world.db.get(b"key1gone").unwrap().is_none());
}

#[test]
fn transactions_find_conflicts_that_are_away() {
    let mut world = World::new();
    let cf = world.db.default_family().clone();
    let range = ReadOptions::new().range(key(20), key(30));
    let (mut by_key, mut by_range, mut free) =
        (world.db.transaction(), world.db.transaction(), world.db.transaction());
    by_key.get(&cf, &key(7)).unwrap();
    let mut iter = by_range.iter(&cf, &range).unwrap();
    iter.seek_to_first();
    while iter.valid() {
        iter.next();
    }
    iter.status().unwrap();
    drop(iter);
    free.get(&cf, b"zz").unwrap();
    world.put(7, "newer");
    world.put(25, "newer");
    world.send_away(3);
    for transaction in [&mut by_key, &mut by_range, &mut free] {
        transaction.put(&cf, b"out", b"come").unwrap();
    }
    assert!(by_key.commit(&WriteOptions::default()).is_err(), "a key has changed");
    assert!(by_range.commit(&WriteOptions::default()).is_err(), "a range has changed");
    free.commit(&WriteOptions::default()).unwrap();
    // A transaction reads its own writes over those that are away.
    let mut own = world.db.transaction();
    own.put(&cf, &key(7), b"own").unwrap();
    own.delete(&cf, &key(8)).unwrap();
    let mut iter = own.iter(&cf, &ReadOptions::default()).unwrap();
    iter.seek(&key(7));
    assert_eq!(iter.value(), b"own");
    iter.next();
    let next = world.model.range(key(9)..).next().unwrap();
    assert_eq!((iter.key(), iter.value()), (next.0.as_slice(), next.1.as_slice()));
}

#[test]
fn keys_are_counted_without_a_question() {
    let mut world = World::new();
    world.send_away(4);
    let before = world.store.did();
    let estimate = world.db.estimate_keys(world.db.default_family());
    let after = world.store.did();
    assert_eq!((before.lookups, before.pages), (after.lookups, after.pages));
    let (estimate, exact) = (estimate as f64, world.model.len() as f64);
    assert!((estimate - exact).abs() <= exact * 0.1, "{estimate} instead of {exact}");
}
