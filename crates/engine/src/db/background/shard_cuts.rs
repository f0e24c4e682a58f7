//! The keys that cut a memtable into shards that a flush frees one after another.
//!
//! A bucket may take half of a memtable, and the shards of a flush that are written in parallel end
//! at about the same time. If each bucket were one shard, little would be freed before the end of a
//! flush ([`crate::db::background::written_shards`]). So a memtable has more shards than the map
//! has buckets. The keys come from the memtable that was sealed last. They stay the same while its
//! shards are of similar size, because only memtables with the same map are flushed together.
//!
//! Rules:
//! 1. A memtable has a shard for each [`SHARD_BYTES`] of its size, and at most [`SHARDS_MAX`].
//! 2. A memtable after one with many range deletes is not cut, because a range delete is copied
//!    into every shard that it touches.
//! 3. A family with separated values has larger shards ([`VALUE_FILE_PARTS`]), because each shard
//!    has a value file of its own, and garbage collection merges small ones.
//!
//! Cost: the headers of the leaves of a shard that is cut ([`crate::memtable::Shard::split_keys`]).

use crate::db::state::memtable::Memtable;
use crate::options::CfOptions;

/// Bytes of a memtable's size for each of its shards. Smaller shards would cost too many tables,
/// because each shard makes a table of its own, with a create and a sync.
const SHARD_BYTES: u64 = 4 << 20;
/// Largest number of shards that the size of a memtable asks for. With more, a shard would free
/// less memory than the index and the buffers of its table take.
const SHARDS_MAX: u64 = 16;
/// Smallest number of shards whose values fill one value file. Garbage collection merges more than
/// 16 small neighbours. So one merge of such files makes more than half of a value file, which is
/// not small.
const VALUE_FILE_PARTS: u64 = 32;
/// Factor by which the records of a shard must exceed its share before new cuts are made.
const UNEVEN: u64 = 2;
/// Smallest number of records for each range delete of a memtable at which its successor is cut.
const RANGE_DELETE_SHARE: u64 = 256;

/// Bytes of a memtable's size for each of its shards.
fn shard_bytes(options: &CfOptions) -> u64 {
    match options.value_separation_bytes {
        0 => SHARD_BYTES,
        _ => SHARD_BYTES.max(options.value_file_bytes / VALUE_FILE_PARTS),
    }
}

/// The cuts for the memtables after `memtable`, which takes no more records; `None` to keep the
/// present ones.
pub(crate) fn next_cuts(memtable: &Memtable, options: &CfOptions) -> Option<Vec<Vec<u8>>> {
    // A small memory budget makes memtables smaller than their setting.
    let memtable_bytes = options.write_buffer_bytes.min(memtable.limit_bytes());
    let shards_wanted = (memtable_bytes / shard_bytes(options)).clamp(1, SHARDS_MAX);
    // A memtable that was sealed early says little.
    if shards_wanted == 1 || memtable.charged_bytes() < memtable.limit_bytes() / 2 {
        return None;
    }
    let entries: Vec<u64> = memtable.shards.iter().map(|shard| shard.entries()).collect();
    let range_deletes: usize = memtable.shards.iter().map(|shard| shard.tombstone_count()).sum();
    if range_deletes as u64 * RANGE_DELETE_SHARE > entries.iter().sum::<u64>() {
        return Some(Vec::new());
    }
    let share = (entries.iter().sum::<u64>() / shards_wanted).max(1);
    if entries.iter().all(|&entries| entries <= UNEVEN * share) {
        return None;
    }
    let mut cuts = Vec::new();
    let mut before = 0;
    for (at, (&entries, shard)) in entries.iter().zip(&memtable.shards).enumerate() {
        if before > 0 && before + entries > share {
            cuts.push(memtable.map.start(at).to_vec());
            before = 0;
        }
        let parts = (entries / share) as usize;
        if parts > 1 {
            cuts.extend(shard.split_keys(parts));
            before = entries / parts as u64;
        } else {
            before += entries;
        }
    }
    Some(cuts)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use archipelago_base::budget::ByteBudget;
    use archipelago_base::{Epoch, SeqNo};

    use super::*;
    use crate::bucket::BucketMap;
    use crate::db::state::memtable::Birth;
    use crate::key::Kind;
    use crate::memtable::SlabPool;

    const LIMIT_BYTES: u64 = 64 << 20;

    fn options() -> CfOptions {
        CfOptions { write_buffer_bytes: LIMIT_BYTES, ..CfOptions::default() }
    }

    /// A full memtable over a map with these boundaries, with `entries` keys from `first` on.
    fn full(boundaries: Vec<Vec<u8>>, first: u32, entries: u32) -> Arc<Memtable> {
        let birth = Birth { id: 1, limit_bytes: LIMIT_BYTES, born_ns: 0 };
        let map = BucketMap::new(Epoch(1), boundaries).expect("valid");
        let pool = SlabPool::new(ByteBudget::unlimited());
        let memtable = Memtable::new(birth, Arc::new(map), &pool);
        for n in first..first + entries {
            let key = n.to_be_bytes();
            memtable.insert(SeqNo(u64::from(n)), Kind::Put, &key, b"", None);
        }
        memtable.charge_replayed(LIMIT_BYTES);
        memtable
    }

    #[test]
    fn cuts_make_similar_shards_and_then_stay() {
        let first = full(vec![8_000u32.to_be_bytes().to_vec()], 1_000, 16_000);
        let cuts = next_cuts(&first, &options()).expect("two shards are too large");
        let map = first.map.finer(&cuts).expect("within the map");
        assert!((14..=18).contains(&map.len()), "{} shards", map.len());
        let second = full(map.boundaries().to_vec(), 1_000, 16_000);
        let sizes: Vec<u64> = second.shards.iter().map(|shard| shard.entries()).collect();
        assert!(sizes.iter().all(|size| (400..=2_000).contains(size)), "{sizes:?}");
        assert_eq!(next_cuts(&second, &options()), None, "they are similar");
        // With other keys the old cuts are dropped, and the number of new cuts is the same.
        let moved = full(map.boundaries().to_vec(), 50_000, 16_000);
        let cuts = next_cuts(&moved, &options()).expect("one shard has everything");
        assert!((14..=18).contains(&cuts.len()), "{} cuts", cuts.len());
        assert!(cuts.iter().all(|cut| *cut >= 50_000u32.to_be_bytes().to_vec()), "{cuts:?}");
    }

    #[test]
    fn separated_values_have_fewer_and_larger_shards() {
        let memtable = full(Vec::new(), 0, 16_000);
        let cuts = |value_separation_bytes, value_file_bytes| {
            let separated =
                CfOptions { value_separation_bytes, value_file_bytes, ..CfOptions::default() };
            let options = CfOptions { write_buffer_bytes: LIMIT_BYTES, ..separated };
            next_cuts(&memtable, &options).map_or(0, |cuts| cuts.len())
        };
        assert!((14..=18).contains(&cuts(0, 256 << 20)));
        assert!((6..=9).contains(&cuts(512, 256 << 20)), "shards of 8 MiB");
        assert!((14..=18).contains(&cuts(512, 64 << 20)), "no shard has less than 4 MiB");
        assert_eq!(cuts(512, 4 << 30), 0, "one shard has less than a part of a value file");
    }

    #[test]
    fn small_memtables_are_not_cut() {
        let memtable = full(Vec::new(), 0, 1_000);
        let small = CfOptions { write_buffer_bytes: 4 << 20, ..options() };
        assert_eq!(next_cuts(&memtable, &small), None);
        let cleared = full(Vec::new(), 0, 1_000);
        for seq in 0..4 {
            let (start, end) = (0u32.to_be_bytes(), 9u32.to_be_bytes());
            cleared.insert(SeqNo(2_000 + seq), Kind::RangeDelete, &start, &end, None);
        }
        assert_eq!(next_cuts(&cleared, &options()), Some(Vec::new()));
    }
}
