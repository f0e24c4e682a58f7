//! Tests of overlays: agreement with a store that has applied the changes, and bounds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_base::clock::ManualClock;
use archipelago_base::random::Rng;

use super::*;
use crate::mem_store::MemStore;
use crate::store::Change;

const NOW_MS: u64 = 1_000_000;

fn over(below: &Arc<MemStore>, clock: &Arc<ManualClock>) -> Overlay {
    let charge = ByteBudget::unlimited().hold(MemoryClass::Request, 0);
    Overlay::new(Arc::clone(below) as _, Arc::clone(clock) as _, 1 << 20, charge)
}

type Rows = Vec<(Vec<u8>, Vec<u8>, Option<u64>)>;

fn scanned(store: &dyn Store, range: KeyRange<'_>, reverse: bool, limit: usize) -> Rows {
    let mut rows = Rows::new();
    store
        .scan(range, reverse, &mut |key, value, expiry| {
            rows.push((key.to_vec(), value.to_vec(), expiry));
            if rows.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .unwrap();
    rows
}

fn all(store: &dyn Store) -> Rows {
    let range = KeyRange { from: Bound::Unbounded, to: Bound::Unbounded };
    scanned(store, range, false, usize::MAX)
}

/// One random write, as a batch of one or two operations.
fn random_write(rng: &mut Rng, write: &mut dyn FnMut(&[Op<'_>])) {
    let key = |rng: &mut Rng| format!("k{}", rng.u8(..12)).into_bytes();
    let (a, b) = (key(rng), key(rng));
    let value = vec![b'v'; rng.usize(..9)];
    let expiry = [None, Some(NOW_MS - 1), Some(NOW_MS + 50)][rng.usize(..3)];
    let put = Op::Put { key: &a, value: &value, expires_at_ms: expiry };
    match rng.u8(..10) {
        0..5 => write(&[put]),
        5 | 6 => write(&[Op::Delete { key: &a }]),
        7 => write(&[Op::DeleteRange { start: &a, end: Some(&b) }, put]),
        8 => write(&[put, Op::DeleteRange { start: &a, end: Some(&b) }]),
        _ if rng.u8(..4) == 0 => write(&[Op::DeleteRange { start: b"", end: None }]),
        _ => write(&[Op::DeleteRange { start: &a, end: None }]),
    }
}

#[test]
fn overlay_shows_and_commits_what_the_store_would_have() {
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let clock = Arc::new(ManualClock::new(NOW_MS));
        let below = Arc::new(MemStore::new(Arc::clone(&clock) as _));
        let twin = MemStore::new(Arc::clone(&clock) as _);
        for _ in 0..rng.usize(..20) {
            random_write(&mut rng, &mut |ops| {
                below.write(ops).unwrap();
                twin.write(ops).unwrap();
            });
        }
        let untouched = all(&*below);
        let overlay = over(&below, &clock);
        for step in 0..rng.usize(1..25) {
            random_write(&mut rng, &mut |ops| {
                overlay.write(ops).unwrap();
                twin.write(ops).unwrap();
            });
            let run = format!("seed {seed}, step {step}");
            assert_eq!(all(&overlay), all(&twin), "{run}");
            let keys: Vec<Vec<u8>> = (0..12).map(|n| format!("k{n}").into_bytes()).collect();
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let values = |store: &dyn Store| -> Vec<Option<Vec<u8>>> {
                let values = store.multi_get(&keys).unwrap();
                values.into_iter().map(|value| value.map(|v| v.to_vec())).collect()
            };
            assert_eq!(values(&overlay), values(&twin), "{run}");
            let mut each = Vec::new();
            let mut take = |value: Option<&[u8]>| {
                each.push(value.map(<[u8]>::to_vec));
                ControlFlow::Continue(())
            };
            overlay.multi_get_each(&keys, &mut take).unwrap();
            assert_eq!(each, values(&twin), "{run}");
            for key in &keys {
                let entry = |store: &dyn Store| store.get(key).unwrap().map(|e| e.expires_at_ms);
                assert_eq!(entry(&overlay), entry(&twin), "{run}");
                assert_eq!(overlay.exists(key).unwrap(), twin.exists(key).unwrap(), "{run}");
            }
            let (a, b) = (keys[rng.usize(..12)], keys[rng.usize(..12)]);
            let from = [Bound::Included(a), Bound::Excluded(a), Bound::Unbounded][rng.usize(..3)];
            let to = [Bound::Included(b), Bound::Excluded(b), Bound::Unbounded][rng.usize(..3)];
            let (range, limit) = (KeyRange { from, to }, rng.usize(1..6));
            for reverse in [false, true] {
                let rows = |store: &dyn Store| scanned(store, range, reverse, limit);
                assert_eq!(rows(&overlay), rows(&twin), "{run}, {range:?}, {reverse}, {limit}");
            }
            let counts = (overlay.approximate_count().unwrap(), twin.approximate_count().unwrap());
            assert_eq!(counts.0, counts.1, "{run}");
        }
        assert_eq!(all(&*below), untouched, "seed {seed}: nothing is written before the commit");
        below.write(&overlay.changes().ops()).unwrap();
        assert_eq!(all(&*below), all(&twin), "seed {seed}");
    }
}

/// A store in memory that counts the values that it reads, and reads only one at a time.
#[derive(Default)]
struct Counting {
    records: MemStore,
    reads: AtomicUsize,
}

impl Store for Counting {
    fn get(&self, key: &[u8]) -> Result<Option<StoredValue>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.records.get(key)
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<PinnedSlice>>> {
        self.reads.fetch_add(keys.len(), Ordering::Relaxed);
        self.records.multi_get(keys)
    }

    fn multi_get_each(
        &self,
        keys: &[&[u8]],
        take: &mut dyn FnMut(Option<&[u8]>) -> ControlFlow<()>,
    ) -> Result<()> {
        for key in keys {
            let value = self.get(key)?.map(|entry| entry.value);
            if take(value.as_deref()).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn write(&self, ops: &[Op<'_>]) -> Result<()> {
        self.records.write(ops)
    }

    fn scan(&self, range: KeyRange<'_>, reverse: bool, visit: &mut Visit<'_>) -> Result<()> {
        self.records.scan(range, reverse, visit)
    }

    fn approximate_count(&self) -> Result<u64> {
        self.records.approximate_count()
    }

    fn keyspace(&self) -> Result<Keyspace> {
        self.records.keyspace()
    }

    fn expired_keys(&self) -> u64 {
        0
    }

    fn info(&self) -> String {
        String::new()
    }
}

#[test]
fn values_are_read_only_until_the_reader_ends() {
    let below = Arc::new(Counting::default());
    let clock = Arc::new(ManualClock::new(NOW_MS));
    let charge = ByteBudget::unlimited().hold(MemoryClass::Request, 0);
    let overlay = Overlay::new(Arc::clone(&below) as _, clock as _, 1 << 20, charge);
    let keys: Vec<[u8; 2]> = (0..1000u16).map(u16::to_be_bytes).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    for key in &keys {
        below.write(&[Op::Put { key, value: b"below", expires_at_ms: None }]).unwrap();
    }
    overlay.write(&[Op::Put { key: keys[1], value: b"above", expires_at_ms: None }]).unwrap();
    for (values, reads) in [(2, 1), (3, 2), (1000, 999)] {
        let mut shown = Vec::new();
        let mut take = |value: Option<&[u8]>| {
            shown.push(value.unwrap().to_vec());
            match shown.len() < values {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        overlay.multi_get_each(&keys, &mut take).unwrap();
        assert_eq!(shown.len(), values);
        assert_eq!(shown[..2], [b"below", b"above"]);
        assert_eq!(below.reads.swap(0, Ordering::Relaxed), reads, "{values} values");
    }
}

#[test]
fn cleared_ranges_stay_disjoint() {
    for seed in 0..200 {
        let mut rng = Rng::with_seed(seed);
        let mut changes = Changes::default();
        let mut model: BTreeMap<u8, bool> = (0..40).map(|key| (key, false)).collect();
        for _ in 0..rng.usize(1..12) {
            let (a, b) = (rng.u8(..40), rng.u8(..40));
            let end = if rng.u8(..8) == 0 { None } else { Some([b]) };
            changes.clear(&[a], end.as_ref().map(|end| &end[..]));
            for (key, cleared) in &mut model {
                *cleared |= a <= *key && (end.is_none() || *key < b);
            }
            for (key, cleared) in &model {
                assert_eq!(changes.is_cleared(&[*key]), *cleared, "seed {seed}, key {key}");
            }
            let ranges: Vec<_> = changes.cleared.iter().collect();
            for pair in ranges.windows(2) {
                assert!(pair[0].1.as_ref().is_some_and(|end| end < pair[1].0), "seed {seed}");
            }
        }
    }
}

#[test]
fn transaction_that_writes_too_much_is_refused() {
    let clock = Arc::new(ManualClock::new(NOW_MS));
    let below = Arc::new(MemStore::new(Arc::clone(&clock) as _));
    let overlay = over(&below, &clock);
    let value = vec![0; 900_000];
    let put = |key| overlay.write(&[Op::Put { key, value: &value, expires_at_ms: None }]);
    put(b"a").unwrap();
    put(b"a").unwrap();
    assert!(overlay.bytes() <= 1 << 20, "a value that was overwritten does not count");
    assert!(put(b"b").unwrap_err().to_string().contains("1048576 bytes"));
    assert!(overlay.bytes() > 1 << 20);
}

#[test]
fn only_the_last_change_of_a_key_counts() {
    let clock = Arc::new(ManualClock::new(NOW_MS));
    let below = Arc::new(MemStore::new(Arc::clone(&clock) as _));
    let overlay = over(&below, &clock);
    let put =
        |key| overlay.write(&[Op::Put { key, value: b"value", expires_at_ms: None }]).unwrap();
    let clear = |end| overlay.write(&[Op::DeleteRange { start: b"", end }]).unwrap();
    put(b"a");
    let one = overlay.bytes();
    put(b"b");
    let both = overlay.bytes();
    assert_eq!(both, 2 * one);
    for _ in 0..100 {
        put(b"a");
        overlay.write(&[Op::Delete { key: b"b" }]).unwrap();
        put(b"b");
    }
    assert_eq!(overlay.bytes(), both);
    clear(Some(&b"b"[..]));
    let cleared = overlay.bytes() - one;
    clear(None);
    assert!(overlay.bytes() <= cleared, "one range replaces the other, and the changes in it");
    let all = overlay.bytes();
    put(b"a");
    clear(None);
    assert_eq!(overlay.bytes(), all);
}

#[test]
fn changes_free_space_unless_they_write_values() {
    let clock = Arc::new(ManualClock::new(NOW_MS));
    let below = Arc::new(MemStore::new(Arc::clone(&clock) as _));
    let put = |store: &dyn Store, key: &[u8]| {
        store.write(&[Op::Put { key, value: b"v", expires_at_ms: None }]).unwrap();
    };
    let expire = |overlay: &Overlay| {
        overlay.modify(b"k", &mut |_| Change::Expire(Some(NOW_MS + 50))).unwrap();
    };
    let delete = |overlay: &Overlay, key: &[u8]| overlay.write(&[Op::Delete { key }]).unwrap();
    let space_use = |act: &dyn Fn(&Overlay)| {
        let overlay = over(&below, &clock);
        act(&overlay);
        overlay.changes().space_use()
    };
    put(&*below, b"k");
    let expire_twice_and_delete = |overlay: &Overlay| {
        expire(overlay);
        expire(overlay);
        delete(overlay, b"other");
    };
    let put_and_delete = |overlay: &Overlay| {
        put(overlay, b"k");
        delete(overlay, b"k");
    };
    assert_eq!(space_use(&expire_twice_and_delete), SpaceUse::Frees);
    assert_eq!(space_use(&put_and_delete), SpaceUse::Frees);
    let expire_and_put = |overlay: &Overlay| {
        expire(overlay);
        put(overlay, b"other");
    };
    // The expiry of a value that the transaction has written is no change of a stored record.
    let put_and_expire = |overlay: &Overlay| {
        put(overlay, b"k");
        expire(overlay);
    };
    let clear_put_and_expire = |overlay: &Overlay| {
        overlay.write(&[Op::DeleteRange { start: b"", end: None }]).unwrap();
        put_and_expire(overlay);
    };
    assert_eq!(space_use(&expire_and_put), SpaceUse::Takes);
    assert_eq!(space_use(&put_and_expire), SpaceUse::Takes);
    assert_eq!(space_use(&clear_put_and_expire), SpaceUse::Takes);
}
