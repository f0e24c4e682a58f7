//! Properties that users of shards need: order, versions, both directions, concurrency, images.

mod complete_slabs;
// The model checker switches stacks by assembly, which Miri does not run.
#[cfg(not(miri))]
mod model;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use archipelago_base::SeqNo;
use archipelago_base::budget::ByteBudget;
use archipelago_base::random::Rng;
use proptest::prelude::*;

use super::*;
use crate::key::{self, Kind};
use crate::lookup::Lookup;
use crate::tombstone::RangeTombstone;

type ModelKey = (Vec<u8>, std::cmp::Reverse<u64>);
type Model = BTreeMap<ModelKey, Vec<u8>>;

fn pool() -> Arc<SlabPool> {
    SlabPool::new(ByteBudget::unlimited())
}

fn put(shard: &Shard, model: &mut Model, key: &[u8], seq: u64, kind: Kind, value: &[u8]) {
    shard.insert(key, SeqNo(seq), kind, value);
    let trailer = key::pack(SeqNo(seq), kind);
    model.insert((key.to_vec(), std::cmp::Reverse(trailer)), value.to_vec());
}

#[test]
fn almost_empty_shard_holds_two_small_slabs() {
    let budget = ByteBudget::unlimited();
    let pool = SlabPool::new(Arc::clone(&budget));
    let shard = Shard::new(&pool);
    assert!(size_of::<Shard>() <= 1024, "{}", size_of::<Shard>());
    assert_eq!((shard.memory_bytes(), budget.total_bytes()), (0, 0));
    shard.insert(b"key", SeqNo(1), Kind::Put, b"value");
    let slabs = 2 * SLAB_BYTES_MIN as u64;
    assert_eq!((shard.memory_bytes(), budget.total_bytes()), (slabs, slabs));
    assert_eq!(slabs, 8 << 10);
}

fn encoded(model_key: &ModelKey) -> Vec<u8> {
    let mut out = model_key.0.clone();
    out.extend_from_slice(&model_key.1.0.to_le_bytes());
    out
}

fn split(encoded: &[u8]) -> ModelKey {
    (key::user_key(encoded).to_vec(), std::cmp::Reverse(key::trailer(encoded)))
}

fn here(iter: &dyn InternalIterator) -> Option<(Vec<u8>, Vec<u8>)> {
    iter.status().unwrap();
    iter.valid().then(|| (iter.key().to_vec(), iter.value().to_vec()))
}

fn of_model(entry: Option<(&ModelKey, &Vec<u8>)>) -> Option<(Vec<u8>, Vec<u8>)> {
    entry.map(|(key, value)| (encoded(key), value.clone()))
}

/// Checks that every way of reading agrees with the model.
fn check_cursor(iter: &mut dyn InternalIterator, model: &Model, probes: &[Vec<u8>]) {
    iter.seek_to_first();
    for entry in model {
        assert_eq!(here(iter), of_model(Some(entry)));
        iter.next();
    }
    assert!(!iter.valid());
    iter.seek_to_last();
    for entry in model.iter().rev() {
        assert_eq!(here(iter), of_model(Some(entry)));
        iter.prev();
    }
    assert!(!iter.valid());
    for probe in probes {
        let at = split(probe);
        iter.seek(probe);
        let mut after = model.range(at.clone()..);
        assert_eq!(here(iter), of_model(after.next()), "seek {probe:?}");
        if iter.valid() {
            iter.prev();
            assert_eq!(here(iter), of_model(model.range(..at.clone()).next_back()));
        }
        iter.seek_for_prev(probe);
        assert_eq!(here(iter), of_model(model.range(..=at.clone()).next_back()), "{probe:?}");
        if iter.valid() {
            iter.next();
            let after = model.range((std::ops::Bound::Excluded(at), std::ops::Bound::Unbounded));
            assert_eq!(here(iter), of_model({ after }.next()));
        }
    }
}

fn versions(model: &Model, key: &[u8], snapshot: u64) -> Vec<(u64, Vec<u8>)> {
    let newest = std::cmp::Reverse(key::pack(SeqNo(snapshot), Kind::SEEK));
    model
        .range((key.to_vec(), newest)..)
        .take_while(|((found, _), _)| found == key)
        .map(|((_, trailer), value)| (trailer.0, value.clone()))
        .collect()
}

fn of_shard(shard: &Shard, key: &[u8], snapshot: u64) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    shard.lookup(&Lookup::new(key, SeqNo(snapshot)), |version| {
        found.push((key::pack(version.seq, version.kind), version.value.to_vec()));
        ControlFlow::Continue(())
    });
    found
}

fn of_image(image: &SealedImage, key: &[u8], snapshot: u64) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    image
        .lookup(&Lookup::new(key, SeqNo(snapshot)), |version| {
            let pinned = version.pin();
            assert!(pinned.is_pinned());
            found.push((key::pack(version.seq, version.kind), pinned.into_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    found
}

fn image_of(shard: &Shard) -> Vec<u8> {
    let mut bytes = vec![1, 2, 3];
    shard.write_image(&mut bytes).unwrap();
    bytes.split_off(3)
}

/// Checks that the shard agrees with the model, live, sealed and as an image.
fn check_all(shard: &Arc<Shard>, model: &Model, probes: &[Vec<u8>], snapshot: u64) {
    check_cursor(&mut shard.iter(), model, probes);
    assert_eq!(shard.entries(), model.len() as u64);
    let keys: Vec<&[u8]> = probes.iter().map(|probe| key::user_key(probe)).collect();
    for key in &keys {
        assert_eq!(of_shard(shard, key, snapshot), versions(model, key, snapshot));
    }
    shard.seal();
    let image = SealedImage::open(image_of(shard)).unwrap();
    check_cursor(&mut image.iter(), model, probes);
    check_cursor(&mut *SealedShard::verified_iter(Arc::clone(shard)), model, &[]);
    check_cursor(&mut *SealedShard::verified_iter(Arc::clone(&image)), model, &[]);
    for key in &keys {
        for snapshot in [snapshot, SeqNo::MAX.0] {
            assert_eq!(of_shard(shard, key, snapshot), versions(model, key, snapshot));
            assert_eq!(of_image(&image, key, snapshot), versions(model, key, snapshot));
        }
    }
    assert_eq!(
        SealedShard::seq_range(&**shard),
        SealedShard::seq_range(&*image),
        "sequence numbers travel"
    );
    assert_eq!((image.entries(), image.deletions()), (shard.entries(), shard.deletions()));
    assert_eq!(image.data_bytes(), shard.data_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 48 }))]
    #[test]
    fn shards_agree_with_a_sorted_map(
        seed in any::<u64>(),
        count in 0usize..1500,
        alphabet in 1u8..5,
        len_max in 0usize..24,
        prefix_len in 0usize..40,
        pattern in 0u8..4,
    ) {
        let mut rng = Rng::with_seed(seed);
        let shard = Shard::new(&pool());
        let mut model = Model::new();
        let prefix = vec![b'p'; prefix_len];
        let mut make = |at: usize| {
            let mut key = if rng.u8(..20) == 0 { Vec::new() } else { prefix.clone() };
            match pattern {
                0 => (0..rng.usize(..=len_max)).for_each(|_| key.push(rng.u8(..alphabet))),
                1 => key.extend_from_slice(&(at as u32).to_be_bytes()),
                2 => key.extend_from_slice(&(u32::MAX - at as u32).to_be_bytes()),
                _ => key.extend_from_slice(format!("{:012}", rng.u32(..200_000)).as_bytes()),
            }
            key
        };
        for at in 0..count {
            let key = make(at);
            let kind = [Kind::Put, Kind::Delete, Kind::Merge, Kind::PutExpiring][at % 4];
            let value = vec![at as u8; at % 7 * (at % 11)];
            put(&shard, &mut model, &key, at as u64, kind, &value);
        }
        let mut probes: Vec<Vec<u8>> = model.keys().step_by(17).map(encoded).collect();
        for at in 0..40 {
            let key = make(at);
            probes.push(key::encode(&key, SeqNo(at as u64 * 20), Kind::SEEK));
            probes.push(key::encode(&key[..key.len() / 2], SeqNo::MAX, Kind::SEEK));
            probes.push(key::encode(&[&key[..], &[0]].concat(), SeqNo(0), Kind::Delete));
        }
        check_all(&shard, &model, &probes, count as u64 / 2);
    }
}

#[test]
fn one_key_with_very_many_versions_crosses_leaves() {
    let shard = Shard::new(&pool());
    let mut model = Model::new();
    for seq in 0..700u64 {
        let seq = seq * 7919 % 700;
        put(&shard, &mut model, b"hot", seq, Kind::Put, &seq.to_le_bytes());
        put(&shard, &mut model, b"hot\0", seq, Kind::Put, b"");
    }
    let probes: Vec<Vec<u8>> = (0..700u64)
        .step_by(13)
        .flat_map(|seq| [b"hot".as_slice(), b"hot\0", b"ho", b"hotter"].map(|key| (key, seq)))
        .map(|(key, seq)| key::encode(key, SeqNo(seq), Kind::SEEK))
        .collect();
    check_all(&shard, &model, &probes, 333);
}

#[test]
fn empty_shards_keys_and_values_are_legal() {
    let shard = Shard::new(&pool());
    assert!(shard.is_empty());
    assert_eq!(shard.memory_bytes(), 0, "an idle shard takes no slab");
    let probes = [key::encode(b"", SeqNo::MAX, Kind::SEEK), key::encode(b"x", SeqNo(0), Kind::Put)];
    check_all(&shard, &Model::new(), &probes, 5);
    let shard = Shard::new(&pool());
    let mut model = Model::new();
    put(&shard, &mut model, b"", 1, Kind::Put, b"");
    put(&shard, &mut model, b"\0", 1, Kind::Put, b"zero");
    put(&shard, &mut model, b"", 3, Kind::Delete, b"");
    check_all(&shard, &model, &probes, 2);
    assert_eq!((shard.smallest_seq(), shard.largest_seq()), (SeqNo(1), SeqNo(3)));
}

#[test]
fn records_larger_than_a_slab_are_kept_among_small_ones() {
    let budget = ByteBudget::unlimited();
    let pool = SlabPool::new(Arc::clone(&budget));
    let shard = Shard::new(&pool);
    let mut model = Model::new();
    let key_of = |at: usize| format!("{at:06}").repeat(1 + at % 3 * 2000).into_bytes();
    for (at, len) in [10, 300 << 10, 3 << 20, 0, 256 << 10, 255 << 10, 1 << 20, 100]
        .into_iter()
        .cycle()
        .take(24)
        .enumerate()
    {
        put(&shard, &mut model, &key_of(at), at as u64, Kind::Put, &vec![at as u8; len]);
    }
    let probes: Vec<_> = model.keys().map(encoded).collect();
    check_all(&shard, &model, &probes, SeqNo::MAX.0);
    assert!(shard.memory_bytes() >= shard.data_bytes());
    drop(shard);
    pool.trim();
    assert_eq!(budget.total_bytes(), 0);
}

#[test]
fn tombstones_are_seen_at_once_and_travel() {
    let shard = Shard::new(&pool());
    assert!(!shard.has_tombstones());
    assert!(shard.tombstones().is_empty());
    for seq in 1..20u64 {
        let tombstone = RangeTombstone {
            start: [seq as u8].into(),
            end: [seq as u8 + 5].into(),
            seq: SeqNo(seq),
        };
        shard.insert_tombstone(tombstone);
        let set = shard.tombstones();
        assert_eq!(set.max_covering(&[seq as u8], SeqNo::MAX), Some(SeqNo(seq)));
        assert!(Arc::ptr_eq(&set, &shard.tombstones()), "built once");
    }
    assert_eq!((shard.smallest_seq(), shard.largest_seq()), (SeqNo(1), SeqNo(19)));
    shard.seal();
    let image = SealedImage::open(image_of(&shard)).unwrap();
    assert_eq!(image.tombstones(), shard.tombstones());
    assert_eq!(SealedShard::seq_range(&*image), (SeqNo(1), SeqNo(19)));
}

#[test]
fn split_keys_cut_into_equal_parts() {
    let shard = Shard::new(&pool());
    assert!(shard.median_key().is_none());
    let mut rng = Rng::with_seed(3);
    let mut keys: Vec<u32> = (0..10_000).collect();
    rng.shuffle(&mut keys);
    for (seq, key) in keys.iter().enumerate() {
        shard.insert(&key.to_be_bytes(), SeqNo(seq as u64), Kind::Put, b"v");
    }
    let cuts = shard.split_keys(8);
    let expected: Vec<Vec<u8>> =
        (1..8u32).map(|part| (part * 1250).to_be_bytes().to_vec()).collect();
    assert_eq!(cuts, expected);
    assert_eq!(shard.median_key(), Some(5000u32.to_be_bytes().to_vec()));
    let same = Shard::new(&pool());
    (0..500).for_each(|seq| same.insert(b"one", SeqNo(seq), Kind::Put, b""));
    assert!(same.split_keys(4).is_empty(), "one key cannot be cut");
    same.insert(b"two", SeqNo(1), Kind::Put, b"");
    assert!(same.split_keys(600).contains(&b"two".to_vec()));
}

#[test]
fn the_oldest_log_is_remembered() {
    let shard = Shard::new(&pool());
    assert_eq!(shard.oldest_log(), None);
    [7, 9, 5, 6].into_iter().for_each(|log| shard.note_log(log));
    assert_eq!(shard.oldest_log(), Some(5));
}

/// Two writers, a reader and a walker: acknowledged records are found, order holds.
#[test]
fn readers_see_what_was_acknowledged_while_writers_insert() {
    const KEYS: usize = if cfg!(miri) { 200 } else { 12_000 };
    let shard = Shard::new(&pool());
    let mut rng = Rng::with_seed(5);
    let mut random: Vec<Vec<u8>> =
        (0..KEYS as u64).map(|at| format!("shared-prefix-{:09}", at * 7).into_bytes()).collect();
    rng.shuffle(&mut random);
    let ascending: Vec<Vec<u8>> =
        (0..KEYS as u64).map(|at| format!("shared-prefix-{:09}a", at * 5).into_bytes()).collect();
    let all = [random, ascending];
    let index: BTreeMap<&[u8], (usize, usize)> = all
        .iter()
        .enumerate()
        .flat_map(|(writer, keys)| {
            keys.iter().enumerate().map(move |(at, key)| (key.as_slice(), (writer, at)))
        })
        .collect();
    let acknowledged = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let done = || acknowledged.iter().all(|count| count.load(Ordering::Acquire) == KEYS);
    std::thread::scope(|scope| {
        for (writer, keys) in all.iter().enumerate() {
            let (shard, acknowledged) = (&shard, &acknowledged);
            scope.spawn(move || {
                for (at, key) in keys.iter().enumerate() {
                    let seq = SeqNo((at * 2 + writer) as u64);
                    shard.insert(key, seq, Kind::Put, key);
                    acknowledged[writer].store(at + 1, Ordering::Release);
                }
            });
        }
        scope.spawn(|| {
            let mut rng = Rng::with_seed(6);
            while !done() {
                let writer = rng.usize(..2);
                let count = acknowledged[writer].load(Ordering::Acquire);
                if count > 0 {
                    let recent = rng.bool() && count > 8;
                    let at = if recent { count - 1 - rng.usize(..8) } else { rng.usize(..count) };
                    let key = &all[writer][at];
                    assert_eq!(of_shard(&shard, key, SeqNo::MAX.0).len(), 1, "{at} of {count}");
                }
            }
        });
        let mut forward = true;
        while !done() {
            walk_beside_writers(&shard, &index, &acknowledged, forward);
            forward = !forward;
        }
    });
    walk_beside_writers(&shard, &index, &acknowledged, true);
    assert_eq!(shard.entries(), 2 * KEYS as u64);
    shard.seal();
    let image = SealedImage::open(image_of(&shard)).unwrap();
    assert!(index.keys().all(|key| of_image(&image, key, SeqNo::MAX.0).len() == 1));
}

fn walk_beside_writers(
    shard: &Arc<Shard>,
    index: &BTreeMap<&[u8], (usize, usize)>,
    acknowledged: &[AtomicUsize; 2],
    forward: bool,
) {
    let before = [0, 1].map(|writer| acknowledged[writer].load(Ordering::Acquire));
    let mut seen = [0, 0];
    let mut last: Option<Vec<u8>> = None;
    let mut iter = shard.iter();
    if forward {
        iter.seek_to_first();
    } else {
        iter.seek_to_last();
    }
    while iter.valid() {
        let key = key::user_key(iter.key());
        assert_eq!(key, iter.value());
        let ordered = last.as_deref().is_none_or(|last| (last < key) == forward && last != key);
        assert!(ordered, "{last:?} before {key:?}");
        let (writer, at) = index[key];
        seen[writer] += usize::from(at < before[writer]);
        last = Some(key.to_vec());
        if forward { iter.next() } else { iter.prev() }
    }
    assert_eq!(seen, before, "every record that was acknowledged before the walk");
}

#[test]
fn a_seal_waits_for_the_records_in_flight() {
    let shard = Shard::new(&pool());
    std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let shard = &shard;
            scope.spawn(move || {
                for at in 0..2000u64 {
                    let seq = SeqNo(at * 2 + writer);
                    shard.insert(&(at * 31 % 2000).to_be_bytes(), seq, Kind::Put, b"value");
                }
            });
        }
    });
    shard.seal();
    shard.seal();
    assert!(shard.may_contain(archipelago_base::checksum::hash64(&7u64.to_be_bytes())));
    let strangers = (10_000..20_000u64)
        .filter(|key| shard.may_contain(archipelago_base::checksum::hash64(&key.to_be_bytes())))
        .count();
    assert!(strangers < 300, "{strangers} strangers pass the filter");
}

#[test]
fn sampled_keys_stand_for_equal_parts() {
    let shard = Shard::new(&pool());
    assert!(shard.sample_keys(4).is_empty());
    (0..1000u32).for_each(|n| shard.insert(&n.to_be_bytes(), SeqNo(n.into()), Kind::Put, b"v"));
    let expected: Vec<Vec<u8>> =
        [125u32, 375, 625, 875].iter().map(|n| n.to_be_bytes().to_vec()).collect();
    assert_eq!(shard.sample_keys(4), expected);
    assert_eq!(shard.sample_keys(5000).len(), 1000);
    // A key with many versions is sampled in proportion to its entries.
    (1000..9000).for_each(|seq| shard.insert(&7u32.to_be_bytes(), SeqNo(seq), Kind::Put, b"v"));
    let sevens = shard.sample_keys(90).iter().filter(|key| **key == 7u32.to_be_bytes()).count();
    assert!((79..=81).contains(&sevens), "{sevens} of 90 for eight ninths");
}

#[test]
fn tombstones_of_many_threads_are_found_once_they_are_inserted() {
    const EACH: u64 = 600;
    let budget = ByteBudget::unlimited();
    let shard = Shard::new(&SlabPool::new(Arc::clone(&budget)));
    let next = AtomicUsize::new(1);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (shard, next) = (&shard, &next);
            scope.spawn(move || {
                for at in 0..EACH {
                    let seq = SeqNo(next.fetch_add(1, Ordering::Relaxed) as u64);
                    let (start, end) =
                        ((thread * at).to_be_bytes(), (thread * at + 40).to_be_bytes());
                    let (start, end) = (start.into(), end.into());
                    shard.insert_tombstone(RangeTombstone { start, end, seq });
                    let key = (thread * at + 20).to_be_bytes();
                    assert!(shard.newest_tombstone(&key, SeqNo::MAX) >= Some(seq));
                    assert!(shard.newest_tombstone(&key, SeqNo(seq.0 - 1)) < Some(seq));
                }
            });
        }
    });
    let list = shard.tombstone_list();
    assert_eq!(list.len() as u64, 4 * EACH);
    let set = shard.tombstones();
    for key in (0..2000u64).step_by(7).map(u64::to_be_bytes) {
        for at in [300, 1100, 2000, 2400].map(SeqNo) {
            let seen = |t: &&RangeTombstone| t.seq <= at && t.covers(&key);
            let expected = list.iter().filter(seen).map(|t| t.seq).max();
            assert_eq!(set.max_covering(&key, at), expected);
        }
    }
    assert!(budget.total_bytes() >= set.memory_bytes());
    drop((shard, set));
    assert_eq!(budget.total_bytes(), 0);
}
