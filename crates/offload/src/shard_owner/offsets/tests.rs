//! Tests of the key-offset cache.

use std::collections::BTreeMap;

use archipelago_base::random::Rng;

use super::*;

fn shard(memtable: u64) -> ShardId {
    ShardId { memtable, shard: 0 }
}

fn at(place: u64) -> CachedOffset {
    CachedOffset { at: place, len: 10, seq: SeqNo(place), kind: Kind::Put }
}

fn cache(entries: u64) -> KeyOffsets {
    KeyOffsets::new(entries * ENTRY_BYTES, OwnerSabotage::default())
}

#[test]
fn entries_go_with_their_shard() {
    let mut cache = cache(10);
    cache.fill(shard(1), 7, at(1));
    assert_eq!(cache.find(shard(1), 7), None, "the shard cannot be read yet");
    cache.open(shard(1), SeqNo(100));
    cache.open(shard(2), SeqNo(200));
    for hash in 0..3 {
        cache.fill(shard(1), hash, at(hash));
        cache.fill(shard(2), hash, at(10 + hash));
    }
    assert_eq!((cache.len(), cache.find(shard(1), 2)), (6, Some(at(2))));
    cache.forget(shard(1));
    assert_eq!((cache.len(), cache.find(shard(1), 2)), (3, None));
    cache.fill(shard(1), 2, at(2));
    assert_eq!(cache.find(shard(1), 2), None, "a reply that came late");
    assert_eq!(cache.find(shard(2), 2), Some(at(12)));
}

#[test]
fn reply_to_a_reader_of_an_old_snapshot_makes_no_entry() {
    let mut cache = cache(10);
    cache.open(shard(1), SeqNo(100));
    cache.learn(shard(1), 7, at(90), SeqNo(99));
    assert_eq!(cache.find(shard(1), 7), None, "version 100 may be of this key");
    cache.learn(shard(1), 7, at(95), SeqNo(100));
    assert_eq!(cache.find(shard(1), 7), Some(at(95)));
}

#[test]
fn least_recently_used_entry_goes_first() {
    let mut cache = cache(3);
    cache.open(shard(1), SeqNo(100));
    cache.open(shard(2), SeqNo(100));
    cache.fill(shard(1), 1, at(1));
    cache.fill(shard(2), 2, at(2));
    cache.fill(shard(1), 3, at(3));
    assert!(cache.find(shard(1), 1).is_some());
    cache.fill(shard(2), 4, at(4));
    let found = |cache: &mut KeyOffsets, memtable, hash| cache.find(shard(memtable), hash);
    assert_eq!(found(&mut cache, 2, 2), None);
    assert_eq!(found(&mut cache, 1, 1), Some(at(1)));
    cache.fill(shard(1), 1, at(9));
    assert_eq!((cache.len(), found(&mut cache, 1, 1)), (3, Some(at(9))));
}

#[test]
fn cache_without_bytes_has_no_entries() {
    let mut cache = KeyOffsets::new(0, OwnerSabotage::default());
    cache.open(shard(1), SeqNo(1));
    (0..20).for_each(|_| cache.count(5));
    cache.fill(shard(1), 5, at(1));
    assert_eq!((cache.find(shard(1), 5), cache.len()), (None, 0));
    assert!(!cache.frequencies().is_hot(5) && !cache.may_be_hot());
}

#[test]
fn entries_are_those_of_a_model() {
    let mut rng = Rng::with_seed(3);
    let mut cache = cache(20);
    // The entries of the model with the time of their last use.
    let mut model: BTreeMap<(ShardId, u64), (CachedOffset, u64)> = BTreeMap::new();
    let mut open: Vec<ShardId> = Vec::new();
    for now in 0..20_000u64 {
        let (shard, hash) = (shard(rng.u64(0..6)), rng.u64(0..12));
        match rng.u64(0..20) {
            0 if !open.contains(&shard) => {
                cache.open(shard, SeqNo(0));
                open.push(shard);
            }
            1 => {
                cache.forget(shard);
                open.retain(|known| *known != shard);
                model.retain(|(known, _), _| *known != shard);
            }
            2 => {
                cache.remove(shard, hash);
                model.remove(&(shard, hash));
            }
            3..=10 if open.contains(&shard) => {
                if model.len() == 20 && !model.contains_key(&(shard, hash)) {
                    let oldest = model.iter().min_by_key(|(_, (_, used))| *used);
                    let oldest = *oldest.expect("it is full").0;
                    model.remove(&oldest);
                }
                cache.fill(shard, hash, at(now));
                model.insert((shard, hash), (at(now), now));
            }
            _ => {
                let expected = model.get_mut(&(shard, hash)).map(|(offset, used)| {
                    *used = now;
                    *offset
                });
                assert_eq!(cache.find(shard, hash), expected);
            }
        }
        assert_eq!(cache.len(), model.len() as u64);
    }
}
