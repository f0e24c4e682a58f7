//! The cache keeps to its capacity and its charges.

use super::*;
use crate::sst::tests_block as block;

fn key(n: u64) -> BlockKey {
    BlockKey { file: [n % 7, 1], offset: n * 4096 }
}

#[test]
fn the_capacity_is_never_exceeded() {
    let budget = ByteBudget::unlimited();
    for capacity in [100_000u64, 1 << 20, 5_000_000] {
        let cache = BlockCache::new(capacity, &budget);
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let cache = &cache;
                scope.spawn(move || {
                    for n in 0..4000u64 {
                        let n = (n * 31 + thread) % 3000;
                        let len = 100 + (n % 97 * 90) as usize;
                        if cache.get(&key(n), BlockKind::Data).is_none() {
                            cache.insert(key(n), block(len));
                        }
                        assert!(cache.usage_bytes() <= capacity);
                    }
                });
            }
        });
        assert!(cache.usage_bytes() > capacity * 3 / 4, "{} of {capacity}", cache.usage_bytes());
        assert_eq!(budget.used_bytes(MemoryClass::BlockCache), cache.usage_bytes());
        let stats = cache.stats(BlockKind::Data);
        assert_eq!(stats.hits + stats.misses, 12_000);
        assert_eq!(stats.misses, stats.inserts);
        assert!(stats.evictions > 0 && stats.evictions <= stats.inserts);
        cache.shrink_to(capacity / 2);
        assert!(cache.usage_bytes() <= capacity / 2);
        cache.relax();
        cache.set_capacity(0);
        assert_eq!((cache.usage_bytes(), cache.len()), (0, 0));
        assert_eq!(budget.used_bytes(MemoryClass::BlockCache), 0);
    }
}

/// Hits of a loop over 40 blocks of which only three fit in the part of a full cache for new
/// blocks. A block stays in the cache only if the cache remembers that it has evicted the block.
fn loop_hits(cache: &crate::sst::BlockCache) -> u64 {
    let read = |n: u64| {
        if cache.get(&key(n), BlockKind::Data).is_none() {
            cache.insert(key(n), block(4000));
        }
    };
    for n in 1000..1200 {
        read(n);
    }
    for n in (0..10).flat_map(|_| 0..40) {
        read(n);
    }
    cache.stats(BlockKind::Data).hits
}

#[test]
fn evicted_blocks_are_remembered_after_pressure_on_an_empty_cache() {
    let budget = ByteBudget::unlimited();
    let without_pressure = loop_hits(&BlockCache::new(1 << 19, &budget));
    assert!(without_pressure > 200, "{without_pressure} hits");
    for bytes in [0, 1, 10_000] {
        let cache = BlockCache::new(1 << 19, &budget);
        for _ in 0..10 {
            cache.shrink_to(bytes);
            cache.relax();
        }
        let hits = loop_hits(&cache);
        assert!(hits > without_pressure * 9 / 10, "{hits} hits after {bytes} bytes");
    }
}

#[test]
fn pressure_leaves_a_share_of_the_capacity() {
    let budget = ByteBudget::unlimited();
    for capacity in [1u64 << 20, 5_000_001] {
        let cache = BlockCache::new(capacity, &budget);
        (0..2000).for_each(|n| drop(cache.insert(key(n), block(4000))));
        assert!(cache.usage_bytes() > capacity * 3 / 4);
        cache.shrink_to(0);
        let left = cache.usage_bytes();
        assert!(left > 0 && left <= capacity / PRESSED_SHARE + 16, "{left} of {capacity}");
    }
    let none = BlockCache::new(0, &budget);
    none.shrink_to(0);
    drop(none.insert(key(1), block(10)));
    assert!(none.is_empty());
}

#[test]
fn a_capacity_of_zero_works_and_can_grow() {
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(0, &budget);
    drop(cache.insert(key(1), block(10)));
    assert!(cache.get(&key(1), BlockKind::Data).is_none());
    cache.set_capacity(1 << 20);
    cache.insert(key(1), block(10));
    assert!(cache.get(&key(1), BlockKind::Data).is_some());
    cache.remove(&key(1));
    assert!(cache.is_empty());
}

#[test]
fn a_pinned_block_stays_in_the_budget() {
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(1 << 20, &budget);
    let held = cache.insert(key(1), block(1000));
    cache.clear();
    assert_eq!(cache.usage_bytes(), 0);
    assert_eq!(budget.used_bytes(MemoryClass::BlockCache), held.memory_bytes() as u64);
    drop(held);
    assert_eq!(budget.total_bytes(), 0);
}

#[test]
fn a_block_larger_than_the_cache_is_served_and_not_kept() {
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(1 << 16, &budget);
    let held = cache.insert(key(1), block(1 << 20));
    assert!(held.memory_bytes() > 1 << 20);
    assert!(cache.is_empty());
}

#[test]
fn an_evicted_block_leaves_its_slot() {
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(1 << 20, &budget);
    let slots = Slots::new(1000);
    let at = |n: u64| cache.get_at(Spot::new(&slots, n as usize), BlockKind::Data, || key(n));
    for n in 0..1000 {
        cache.insert(key(n), block(4000));
        // The first call puts the block into the slot, and the second one finds it there.
        assert_eq!(at(n).is_some(), at(n).is_some());
    }
    assert!(cache.stats(BlockKind::Data).evictions > 500);
    // Slots hold nothing that the cache does not count.
    assert_eq!(budget.used_bytes(MemoryClass::BlockCache), cache.usage_bytes());
    let found = (0..1000).filter(|&n| at(n).is_some()).count();
    assert_eq!(found, cache.len());
    let last = (0..1000).rfind(|&n| at(n).is_some()).unwrap();
    cache.remove(&key(last));
    assert!(at(last).is_none());
    cache.clear();
    assert!((0..1000).all(|n| at(n).is_none()));
    assert_eq!(budget.used_bytes(MemoryClass::BlockCache), 0);
    // A block that was never in the cache does not enter a slot.
    Spot::new(&slots, 0).fill(&Arc::new(block(10)));
    assert!(at(0).is_none());
}
