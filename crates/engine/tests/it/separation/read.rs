//! Reads of separated values return the results of the same reads without separation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::ErrorKind;
use archipelago_base::clock::Clock;
use archipelago_base::random::Rng;
use archipelago_engine::db::{
    ColumnFamily, Components, Db, Iter, ReadOptions, Snapshot, ValueEntry,
};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::stats::Ticker;

use crate::disk::TestDisk;
use crate::support::{over, small_db, small_family};

const KEYS: u32 = 150;
const START_MS: u64 = 1_000_000;
/// Length of the values that [`rewrite`] puts.
const VALUE_BYTES: usize = 600;

/// A wall clock that a test sets; the monotonic time does not advance.
#[derive(Debug)]
struct WallClock(AtomicU64);

impl WallClock {
    fn set(&self, unix_ms: u64) {
        self.0.store(unix_ms, Ordering::SeqCst);
    }
}

impl Clock for WallClock {
    fn now_ns(&self) -> u64 {
        0
    }

    fn unix_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn sleep(&self, _: Duration) {}
}

fn family(separation_bytes: u64) -> CfOptions {
    CfOptions {
        merge_operator: Some("append".to_owned()),
        value_separation_bytes: separation_bytes,
        value_file_bytes: 64 << 10,
        ..small_family()
    }
}

fn open(disk: &TestDisk, separation_bytes: u64, clock: Arc<WallClock>) -> Db {
    let components = Components { clock, ..over(disk, family(separation_bytes)) };
    Db::open_with("/db", small_db(), components).unwrap()
}

/// The same writes in a database with separation and in one without.
struct Pair {
    separated: Db,
    inline: Db,
    clock: Arc<WallClock>,
    rng: Rng,
}

/// A snapshot of each database of a pair.
struct SnapshotPair {
    separated: Snapshot,
    inline: Snapshot,
}

fn key_of(n: u32) -> Vec<u8> {
    format!("key{n:04}").into_bytes()
}

impl Pair {
    fn new(separation_bytes: u64) -> Self {
        let clock = Arc::new(WallClock(AtomicU64::new(START_MS)));
        let separated = open(&TestDisk::new(), separation_bytes, Arc::clone(&clock));
        let inline = open(&TestDisk::new(), 0, Arc::clone(&clock));
        Self { separated, inline, clock, rng: Rng::with_seed(separation_bytes) }
    }

    fn both(&self) -> [(&Db, &ColumnFamily); 2] {
        [&self.separated, &self.inline].map(|db| (db, db.default_family()))
    }

    /// One write to both databases.
    fn write(&mut self) {
        let key = key_of(self.rng.u32(0..KEYS));
        let len = [0, 10, 64, 100, 600, 3000][self.rng.usize(0..6)];
        let value: Vec<u8> = (0..len).map(|_| self.rng.u8(..)).collect();
        let options = WriteOptions::default();
        let kind = self.rng.u32(0..20);
        let expiry = self.clock.unix_ms() + self.rng.u64(0..400);
        let end = key_of(self.rng.u32(0..KEYS));
        for (db, cf) in self.both() {
            while db.step_background().unwrap() {}
            match kind {
                0..=9 => db.put(&key, &value).unwrap(),
                10..=12 => db.put_expiring(cf, &key, &value, expiry, &options).unwrap(),
                13 | 14 => db.delete(&key).unwrap(),
                15 if key < end => db.delete_range(cf, &key, &end, &options).unwrap(),
                _ => db.merge(cf, &key, &value, &options).unwrap(),
            }
        }
    }

    fn settle(&self, whole: bool) {
        for (db, cf) in self.both() {
            db.flush(cf).unwrap();
            if whole {
                db.compact_range(cf, &KeyRange::all()).unwrap();
            }
            db.wait_for_background().unwrap();
        }
    }

    fn snapshot(&self) -> SnapshotPair {
        SnapshotPair { separated: self.separated.snapshot(), inline: self.inline.snapshot() }
    }

    /// Checks every kind of read at the newest state or at a snapshot.
    fn check(&mut self, snapshot: Option<&SnapshotPair>) {
        let at = |options: ReadOptions, snapshot: Option<&Snapshot>| match snapshot {
            Some(snapshot) => options.snapshot(snapshot),
            None => options,
        };
        let separated = at(ReadOptions::default(), snapshot.map(|both| &both.separated));
        let inline = at(ReadOptions::default(), snapshot.map(|both| &both.inline));
        self.check_points(&separated, &inline);
        for value_prefetch in [true, false] {
            for fill_cache in [true, false] {
                let separated = ReadOptions { value_prefetch, fill_cache, ..separated.clone() };
                self.check_scans(&separated, &inline);
                self.check_walk(&separated, &inline);
            }
        }
        self.check_keys(&separated.keys_only(), &inline);
    }

    fn check_points(&mut self, separated: &ReadOptions, inline: &ReadOptions) {
        let [(one, one_cf), (other, other_cf)] = self.both();
        for n in 0..KEYS {
            let key = key_of(n);
            let expected = facts(other.get_entry(other_cf, &key, inline).unwrap());
            let found = facts(one.get_entry(one_cf, &key, separated).unwrap());
            assert!(found == expected, "key {n}: {found:?} instead of {expected:?}");
            let head = one.get_head(one_cf, &key, separated).unwrap();
            let head = head.map(|entry| (entry.expires_at_ms, entry.seq.0));
            assert_eq!(head, expected.as_ref().map(|entry| (entry.1, entry.2)), "key {n}");
            assert_eq!(one.contains(one_cf, &key, separated).unwrap(), expected.is_some());
            let newest = other.latest_seq(other_cf, &key).unwrap();
            let is_known = one.latest_seq(one_cf, &key).unwrap();
            // A compaction of one database may have dropped what it deleted.
            assert!(is_known == newest || is_known.is_none() || newest.is_none(), "key {n}");
        }
        let keys: Vec<Vec<u8>> = (0..KEYS).map(|n| key_of(n * 37 % KEYS)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let found = one.multi_get(one_cf, &keys, separated).unwrap();
        let expected = other.multi_get(other_cf, &keys, inline).unwrap();
        for ((found, expected), key) in found.iter().zip(&expected).zip(keys) {
            assert_eq!(found.as_deref(), expected.as_deref(), "{}", key.escape_ascii());
        }
    }

    fn check_scans(&self, separated: &ReadOptions, inline: &ReadOptions) {
        let [(one, one_cf), (other, other_cf)] = self.both();
        let mut found = one.iter(one_cf, separated).unwrap();
        let mut expected = other.iter(other_cf, inline).unwrap();
        for backward in [false, true] {
            for iter in [&mut found, &mut expected] {
                if backward { iter.seek_to_last() } else { iter.seek_to_first() }
            }
            loop {
                same(&found, &expected);
                if !expected.valid() {
                    break;
                }
                for iter in [&mut found, &mut expected] {
                    if backward { iter.prev() } else { iter.next() }
                }
            }
        }
    }

    /// Moves both iterators at random: runs in both directions, with turns and seeks in between.
    fn check_walk(&mut self, separated: &ReadOptions, inline: &ReadOptions) {
        let mut rng = Rng::with_seed(self.rng.u64(..));
        let [(one, one_cf), (other, other_cf)] = self.both();
        let mut found = one.iter(one_cf, separated).unwrap();
        let mut expected = other.iter(other_cf, inline).unwrap();
        for _ in 0..20 {
            let (how, target) = (rng.u32(0..6), key_of(rng.u32(0..KEYS)));
            let (run, backward) = (rng.usize(0..40), rng.bool());
            for iter in [&mut found, &mut expected] {
                match how {
                    0 => iter.seek(&target),
                    1 => iter.seek_for_prev(&target),
                    2 => iter.seek_to_first(),
                    3 => iter.seek_to_last(),
                    _ => {}
                }
            }
            same(&found, &expected);
            for _ in 0..run {
                if !expected.valid() {
                    break;
                }
                for iter in [&mut found, &mut expected] {
                    if backward { iter.prev() } else { iter.next() }
                }
                same(&found, &expected);
            }
        }
    }

    fn check_keys(&self, separated: &ReadOptions, inline: &ReadOptions) {
        let [(one, one_cf), (other, other_cf)] = self.both();
        let before = values_fetched(one);
        let mut found = one.iter(one_cf, separated).unwrap();
        let mut expected = other.iter(other_cf, inline).unwrap();
        found.seek_to_first();
        expected.seek_to_first();
        while expected.valid() {
            assert_eq!(found.key(), expected.key());
            assert_eq!(found.expires_at_ms(), expected.expires_at_ms());
            found.next();
            expected.next();
        }
        assert!(!found.valid());
        found.status().unwrap();
        assert_eq!(values_fetched(one), before, "a read of keys fetched values");
    }
}

/// Value, expiry and sequence number of an entry.
fn facts(entry: Option<ValueEntry>) -> Option<(Vec<u8>, Option<u64>, u64)> {
    entry.map(|entry| (entry.value.to_vec(), entry.expires_at_ms, entry.seq.0))
}

fn same(found: &Iter, expected: &Iter) {
    found.status().unwrap();
    expected.status().unwrap();
    assert_eq!(found.valid(), expected.valid());
    if expected.valid() {
        let shown = found.key().escape_ascii().to_string();
        assert_eq!(found.key(), expected.key());
        assert!(found.value() == expected.value(), "value of {shown}");
        assert_eq!(found.expires_at_ms(), expected.expires_at_ms(), "expiry of {shown}");
        assert_eq!(found.seq(), expected.seq(), "number of {shown}");
    }
}

/// Separated values that reads of `db` fetched.
fn values_fetched(db: &Db) -> u64 {
    let stats = db.statistics();
    stats.get(Ticker::ValuesCached) + stats.get(Ticker::ValuesRead)
}

#[test]
fn separated_values_read_as_inline_values_do() {
    for separation_bytes in [1, 64, 512] {
        let mut pair = Pair::new(separation_bytes);
        let mut held = None;
        for round in 0..4 {
            for _ in 0..250 {
                pair.write();
            }
            pair.settle(round % 2 == 1);
            pair.check(None);
            if let Some(snapshot) = &held {
                pair.check(Some(snapshot));
            }
            held = Some(pair.snapshot());
            // Reads before and after expiry; no compaction runs until the clock is set back.
            let now_ms = pair.clock.unix_ms();
            for later_ms in [150, 1000, 0] {
                pair.clock.set(now_ms + later_ms);
                pair.check(None);
            }
            pair.clock.set(now_ms + 100);
        }
        assert!(values_fetched(&pair.separated) > 0, "nothing was separated");
        assert_eq!(values_fetched(&pair.inline), 0);
    }
}

#[test]
fn reads_of_the_cache_alone_are_busy_or_right() {
    let mut pair = Pair::new(64);
    for _ in 0..400 {
        pair.write();
    }
    pair.settle(true);
    let (db, cf) = pair.both()[0];
    let full = ReadOptions { fill_cache: true, ..ReadOptions::default() };
    let cached = ReadOptions { cache_only: true, ..ReadOptions::default() };
    let mut busy = 0;
    for n in 0..KEYS {
        let key = key_of(n);
        match db.get_with(cf, &key, &cached) {
            Ok(found) => {
                let expected = db.get_with(cf, &key, &full).unwrap();
                assert_eq!(found.as_deref(), expected.as_deref(), "key {n}");
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                busy += 1;
            }
        }
        let expected = db.get_with(cf, &key, &full).unwrap();
        let found = db.get_with(cf, &key, &cached).unwrap();
        assert_eq!(found.as_deref(), expected.as_deref(), "key {n}");
    }
    assert!(busy > 0, "every value was cached from the start");
    let mut iter = db.iter(cf, &cached).unwrap();
    iter.seek_to_first();
    while iter.valid() {
        let expected = db.get_with(cf, iter.key(), &full).unwrap();
        assert_eq!(Some(iter.value()), expected.as_deref());
        iter.next();
    }
    if let Err(error) = iter.status() {
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    }
}

/// Writes a round of every key, flushes and compacts, so that older tables and value files are
/// removed.
fn rewrite(db: &Db, keys: u32, round: u8) {
    for n in 0..keys {
        while db.step_background().unwrap() {}
        db.put(&key_of(n), &[round; VALUE_BYTES]).unwrap();
    }
    db.flush(db.default_family()).unwrap();
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    db.wait_for_background().unwrap();
}

fn check_round(db: &Db, options: &ReadOptions, keys: u32, round: u8) {
    let cf = db.default_family();
    let mut iter = db.iter(cf, options).unwrap();
    iter.seek_to_first();
    for n in 0..keys {
        let value = db.get_with(cf, &key_of(n), options).unwrap().unwrap();
        assert!(value == [round; VALUE_BYTES], "key {n}");
        assert_eq!((iter.key(), iter.value()), (key_of(n).as_slice(), &value[..]));
        iter.next();
    }
    iter.status().unwrap();
    assert!(!iter.valid());
}

fn follower(disk: &TestDisk, table_readers_max: usize) -> Db {
    let options = DbOptions { read_only: true, table_readers_max, ..small_db() };
    Db::open_with("/db", options, over(disk, family(64))).unwrap()
}

#[test]
fn follower_holds_value_files_that_its_writer_removes() {
    let disk = TestDisk::new();
    let writer = Db::open_with("/db", small_db(), over(&disk, family(64))).unwrap();
    rewrite(&writer, KEYS, 1);
    let reader = follower(&disk, 10_000);
    let before = ReadOptions::new().snapshot(&reader.snapshot());
    rewrite(&writer, KEYS, 2);
    rewrite(&writer, KEYS, 3);
    check_round(&reader, &ReadOptions::default(), KEYS, 1);
    reader.catch_up().unwrap();
    check_round(&reader, &ReadOptions::default(), KEYS, 3);
    check_round(&reader, &before, KEYS, 1);
    assert!(values_fetched(&reader) > 0, "nothing was separated");
}

#[test]
fn value_file_that_is_not_held_makes_a_read_catch_up() {
    let disk = TestDisk::new();
    let keys = 1500;
    let writer = Db::open_with("/db", small_db(), over(&disk, family(64))).unwrap();
    rewrite(&writer, keys, 1);
    let reader = follower(&disk, 16);
    let before = ReadOptions::new().snapshot(&reader.snapshot());
    rewrite(&writer, keys, 2);
    let mut refused = 0;
    for n in (0..keys).rev() {
        match reader.get_with(reader.default_family(), &key_of(n), &before) {
            Ok(value) => assert!(value.unwrap() == [1; VALUE_BYTES], "key {n}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
                refused += usize::from(error.to_string().contains(".vsst"));
            }
        }
    }
    assert!(refused > 0, "every value file was held");
    // Reads of the newest state are repeated on a newer catalog.
    for n in (0..keys).rev() {
        let value = reader.get(&key_of(n)).unwrap().unwrap();
        assert!(value == [1; VALUE_BYTES] || value == [2; VALUE_BYTES], "key {n}");
    }
    check_round(&reader, &ReadOptions::default(), keys, 2);
}
