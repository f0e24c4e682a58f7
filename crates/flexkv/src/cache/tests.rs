//! Compares the cache with a model, which is a list of entries and an account of their bytes.

use archipelago_base::random::Rng;
use proptest::prelude::*;

use super::*;
use crate::format::{HashedKey, key_hash};

fn place(partition: u32, owner: u32, word: u64) -> CachedSlot {
    CachedSlot {
        partition: PartitionId(partition),
        slot: SlotIndex(word as u32),
        word: Slot(word),
        owner: Some(ComputeId(owner)).filter(|owner| owner.0 > 0),
        session: 9,
        stamp: Stamp { epoch: 1, at_us: word },
        seen_ns: 7,
    }
}

fn put(cache: &mut LocalCache, key: &[u8], place: CachedSlot, cached: Cached<'_>) -> Finished {
    let fetch = cache.begin_fetch(key_hash(key));
    cache.finish_fetch(fetch, key, place, cached)
}

fn pair(value: &[u8]) -> Cached<'_> {
    Cached::Pair { value, expires_ms: 5 }
}

#[test]
fn constants_match_the_table() {
    assert_eq!((ENTRY_BYTES, TABLE_BYTES), (112, 24));
    let cache = LocalCache::new(FIXED_BYTES).expect("just enough");
    assert_eq!(cache.used_bytes(), FIXED_BYTES);
    assert!(LocalCache::new(FIXED_BYTES - 1).is_err());
}

#[test]
fn a_key_has_an_address_or_a_pair() {
    let mut cache = LocalCache::new(1 << 20).expect("room");
    let hash = key_hash(b"reef");
    assert_eq!(put(&mut cache, b"reef", place(1, 2, 3), Cached::Address), Finished::Cached);
    let hit = cache.get(hash, b"reef").expect("cached");
    assert_eq!(hit, Hit { place: place(1, 2, 3), cached: Cached::Address });
    assert_eq!(put(&mut cache, b"reef", place(1, 2, 4), pair(b"coral")), Finished::Cached);
    let hit = cache.get(hash, b"reef").expect("cached");
    assert_eq!(hit, Hit { place: place(1, 2, 4), cached: pair(b"coral") });
    assert_eq!(cache.get(hash, b"other"), None, "a hash is not a key");
    let renewed = CachedSlot { stamp: Stamp { epoch: 1, at_us: 99 }, ..place(1, 2, 4) };
    assert!(cache.renew(hash, b"reef", renewed));
    assert!(!cache.renew(hash, b"reef", place(1, 2, 5)), "the slot says another thing");
    assert_eq!(cache.get(hash, b"reef").expect("cached").place, renewed);
    let stats = cache.stats();
    assert_eq!((stats.pairs, stats.addresses), (1, 0));
}

#[test]
fn an_invalidation_that_overtakes_the_answer_keeps_it_out() {
    let mut cache = LocalCache::new(1 << 20).expect("room");
    let hash = key_hash(b"reef");
    let invalidations: [fn(&mut LocalCache); 4] = [
        |cache| assert!(!cache.invalidate(key_hash(b"reef"))),
        |cache| assert_eq!(cache.invalidate_partitions(&[PartitionId(1)]), 0),
        |cache| assert_eq!(cache.invalidate_owner(ComputeId(2)), 0),
        |cache| assert_eq!(cache.invalidate_all(), 0),
    ];
    for invalidate in invalidations {
        let fetch = cache.begin_fetch(hash);
        invalidate(&mut cache);
        let later = cache.begin_fetch(hash);
        let finished = cache.finish_fetch(fetch, b"reef", place(1, 2, 3), pair(b"stale"));
        assert_eq!((finished, cache.get(hash, b"reef")), (Finished::Invalidated, None));
        let finished = cache.finish_fetch(later, b"reef", place(1, 2, 4), pair(b"fresh"));
        assert_eq!(finished, Finished::Cached);
        assert!(cache.invalidate(hash));
    }
    let fetch = cache.begin_fetch(hash);
    cache.invalidate(key_hash(b"another"));
    assert_eq!(cache.finish_fetch(fetch, b"reef", place(1, 2, 3), pair(b"new")), Finished::Cached);
    assert_eq!(cache.stats().refused, 4);
}

#[test]
fn partitions_and_owners_leave_together() {
    let mut cache = LocalCache::new(1 << 20).expect("room");
    for number in 0..600u32 {
        let key = number.to_le_bytes();
        put(&mut cache, &key, place(number % 5, number % 3, 1), pair(&key));
    }
    assert_eq!(cache.invalidate_partitions(&[PartitionId(4)]), 120);
    assert_eq!(cache.invalidate_owner(ComputeId(2)), 160);
    for number in 0..600u32 {
        let key = number.to_le_bytes();
        let stays = number % 5 != 4 && number % 3 != 2;
        assert_eq!(cache.get(key_hash(&key), &key).is_some(), stays, "{number}");
    }
    cache.nodes.check();
    assert_eq!(cache.invalidate_all(), 320);
    assert_eq!(cache.used_bytes(), FIXED_BYTES);
}

#[test]
fn index_charge_evicts_immediately_and_is_released() {
    let mut cache = LocalCache::new(FIXED_BYTES + 100_000).expect("room");
    for number in 0..2000u32 {
        put(&mut cache, &number.to_le_bytes(), place(0, 1, 1), pair(&[7; 64]));
    }
    assert!(cache.used_bytes() > FIXED_BYTES + 90_000, "well used: {}", cache.used_bytes());
    cache.charge_index(60_000).expect("fits");
    assert!(cache.used_bytes() <= cache.limit_bytes());
    assert!(cache.stats().pairs > 100);
    let short = cache.charge_index(40_001).expect_err("a byte too many");
    assert_eq!(short, Short { needs: FIXED_BYTES + 100_001, limit: FIXED_BYTES + 100_000 });
    let pairs = cache.stats().pairs;
    assert!(pairs > 100, "a refused charge evicts nothing");
    cache.charge_index(40_000).expect("to the byte");
    assert_eq!((cache.used_bytes(), cache.stats().pairs), (cache.limit_bytes(), 0));
    assert_eq!(put(&mut cache, b"k", place(0, 1, 1), Cached::Address), Finished::TooLarge);
    assert!(cache.set_budget(FIXED_BYTES + 99_999).is_err());
    cache.release_index(100_000);
    assert_eq!(put(&mut cache, b"k", place(0, 1, 1), Cached::Address), Finished::Cached);
    let large = vec![0; 100_000];
    assert_eq!(put(&mut cache, b"l", place(0, 1, 1), pair(&large)), Finished::TooLarge);
    assert_eq!(cache.stats().addresses, 1, "nothing was evicted for what cannot fit");
}

#[test]
fn rewritten_entry_keeps_its_turn_and_refuses_fetch() {
    let mut cache = LocalCache::new(1 << 20).expect("room");
    let keys: Vec<Vec<u8>> = (0..100_u32).map(|number| number.to_le_bytes().to_vec()).collect();
    for key in &keys {
        put(&mut cache, key, place(1, 2, 3), Cached::Slot);
    }
    let hashes: Vec<_> = keys.iter().map(|key| key_hash(key)).collect();
    let (mut found, used) = (Vec::new(), cache.used_bytes());
    cache.seek(&hashes, &mut found);
    let fetch = cache.begin_fetch(hashes[7]);
    // A pair takes more bytes than a slot, so the first pair needs a new entry. The second pair
    // overwrites it in place.
    for (word, value) in [(4, b"coral"), (5, b"algae")] {
        let key = HashedKey { hash: hashes[7], key: &keys[7] };
        let new = place(1, 2, word);
        assert_eq!(cache.rewrite(found[7], key, new, pair(value)), Finished::Cached);
        let hit = Hit { place: new, cached: pair(value) };
        assert_eq!(cache.get_at(found[7], key.hash, key.key), Some(hit), "also by an old hint");
        assert_eq!((cache.stats().pairs, cache.used_bytes()), (1, used));
    }
    let late = cache.finish_fetch(fetch, &keys[7], place(1, 2, 3), pair(b"stale"));
    assert_eq!(late, Finished::Invalidated);
    let key = HashedKey { hash: hashes[3], key: &keys[3] };
    let same = cache.rewrite(found[3], key, place(1, 2, 9), Cached::Slot);
    assert_eq!((same, cache.nodes.oldest()), (Finished::Cached, Some(0)));
    for (key, hash) in keys.iter().zip(&hashes) {
        assert!(cache.get_at(Some(1_000), *hash, key).is_some(), "a hint is a hint");
    }
    assert_eq!(cache.get_at(None, hashes[3], &keys[3]), None);
    cache.nodes.check();
}

/// Entries that the cache should hold, oldest first, and their cost, which is counted each time.
struct Model {
    entries: Vec<(Vec<u8>, CachedSlot, Option<Vec<u8>>)>,
    index: u64,
    limit: u64,
    /// Chunks that the table has room for.
    table: u64,
}

impl Model {
    fn used(&self, table: u64) -> u64 {
        let pieces = self.entries.iter().map(|(key, _, value)| {
            let bytes = (key.len() + value.as_ref().map_or(0, Vec::len)) as u64;
            if bytes == 0 { 0 } else { bytes.div_ceil(16) * 16 + 16 }
        });
        let chunks = (self.entries.len() as u64).div_ceil(32);
        FIXED_BYTES + self.index + pieces.sum::<u64>() + chunks * (32 * 112 + 16) + table * 24
    }

    /// Drops the oldest entries until the others fit.
    fn shrink(&mut self) {
        while self.used(self.table) > self.limit && !self.entries.is_empty() {
            self.entries.remove(0);
            self.settle();
        }
    }

    fn settle(&mut self) {
        if self.entries.is_empty() {
            self.table = 0;
        }
    }

    /// Adds the newest, dropping the oldest until it fits.
    fn insert(&mut self, key: Vec<u8>, place: CachedSlot, value: Option<Vec<u8>>) -> bool {
        self.entries.retain(|entry| entry.0 != key);
        self.settle();
        let alone = Self { entries: vec![(key, place, value)], table: 64, ..*self };
        let fits = alone.used(64) <= self.limit;
        if fits {
            self.entries.extend(alone.entries);
            loop {
                let chunks = (self.entries.len() as u64).div_ceil(32);
                // A growing table exists twice for a moment.
                let grows = chunks > self.table;
                let peak = if grows { 2 * self.table + 64 } else { self.table };
                if self.used(peak) <= self.limit {
                    self.table += if grows { 64 } else { 0 };
                    break;
                }
                self.entries.remove(0);
                if self.entries.len() == 1 {
                    self.table = 0;
                }
            }
        }
        fits
    }
}

fn step(rng: &mut Rng, cache: &mut LocalCache, model: &mut Model) {
    let key = vec![rng.u8(..); rng.usize(..40)];
    let hash = key_hash(&key);
    match rng.u8(..40) {
        0 => {
            model.limit = FIXED_BYTES + model.index + rng.u64(..60_000);
            cache.set_budget(model.limit).expect("above the index");
            model.shrink();
        }
        1 => {
            let bytes = rng.u64(..20_000);
            let fits = FIXED_BYTES + model.index + bytes <= model.limit;
            assert_eq!(cache.charge_index(bytes).is_ok(), fits);
            if fits {
                model.index += bytes;
                model.shrink();
            }
        }
        2 => {
            let bytes = rng.u64(..=model.index);
            cache.release_index(bytes);
            model.index -= bytes;
        }
        3 => {
            let partition = PartitionId(rng.u32(..8));
            cache.invalidate_partitions(&[partition]);
            model.entries.retain(|entry| entry.1.partition != partition);
        }
        4 if rng.u8(..10) == 0 => {
            cache.invalidate_all();
            model.entries.clear();
        }
        5..=8 => {
            let before = model.entries.len();
            model.entries.retain(|entry| entry.0 != key);
            assert_eq!(cache.invalidate(hash), model.entries.len() < before);
        }
        _ => insert(rng, cache, model, key),
    }
    model.settle();
}

fn insert(rng: &mut Rng, cache: &mut LocalCache, model: &mut Model, key: Vec<u8>) {
    let place = place(rng.u32(..8), rng.u32(..3), rng.u64(..));
    let value = rng.bool().then(|| vec![rng.u8(..); rng.usize(..400)]);
    let cached = value.as_deref().map_or(Cached::Address, pair);
    let finished = put(cache, &key, place, cached);
    assert_eq!(finished == Finished::Cached, model.insert(key, place, value));
}

#[test]
fn the_chunks_table_grows_within_the_limit_too() {
    let mut rng = Rng::with_seed(17);
    let limit = FIXED_BYTES + 1_400_000;
    let mut cache = LocalCache::new(limit).expect("room");
    let mut model = Model { entries: Vec::new(), index: 0, limit, table: 0 };
    for number in 0..9_000u32 {
        insert(&mut rng, &mut cache, &mut model, number.to_le_bytes().to_vec());
        assert!(cache.used_bytes() <= limit);
    }
    assert!(
        model.table > 64 && cache.stats().evicted > 1_000,
        "{} {:?}",
        model.table,
        cache.stats()
    );
    assert_eq!(cache.used_bytes(), model.used(model.table));
    cache.nodes.check();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn cache_equals_list_model_within_its_limit(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        let limit = FIXED_BYTES + rng.u64(..60_000);
        let mut cache = LocalCache::new(limit).expect("room");
        let mut model = Model { entries: Vec::new(), index: 0, limit, table: 0 };
        for _ in 0..600 {
            step(&mut rng, &mut cache, &mut model);
            prop_assert_eq!(cache.used_bytes(), model.used(model.table));
            prop_assert!(cache.used_bytes() <= model.limit);
            cache.nodes.check();
        }
        prop_assert_eq!(u64::from(cache.nodes.len()), model.entries.len() as u64);
        for (key, place, value) in &model.entries {
            let hit = cache.get(key_hash(key), key).expect("in the list");
            let expected = value.as_deref().map_or(Cached::Address, pair);
            prop_assert_eq!(hit, Hit { place: *place, cached: expected });
        }
    }
}
