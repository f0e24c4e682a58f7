//! Memtables of the previous owner, made again around the shards that an open keeps.
//!
//! An open that keeps some shards of a memtable makes the whole memtable again. A kept shard stays
//! at its node, and the log gives the records of the other shards. So every memtable has all
//! records of its family after the last sequence number of the memtable before it, up to its own.
//! They may be at nodes or in memory, as if the owner had never changed. Flushes, rebuilds of lost
//! shards and later takeovers rely on that.
//!
//! If neither tables nor kept shards have a record of the log, it belongs to the oldest memtable
//! whose last sequence number is at least that of the record. Memtables of which nothing is kept
//! are not made again. Their records belong to the next memtable.
//!
//! Invariants:
//! 1. A kept shard is exactly one bucket of its memtable's map.
//! 2. No record gets into a bucket whose shard is kept.
//!
//! Thread-safety: the thread that opens the database owns the value.
//! Failure: none.
//! Cost: O(kept shards), and a binary search for each record of the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::{CfId, FileNo, SeqNo};

use crate::bucket::BucketMap;
use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::memtable::{Memtable, SealedInfo, ShardHome, ShardInfo};
use crate::db::write::WritePath;
use crate::key::KeyRange;
use crate::remote::FoundShard;
use crate::version::FlushedThrough;

/// A memtable of the previous owner, made again around its kept shards.
pub(super) struct InheritedMemtable {
    pub(super) memtable: Arc<Memtable>,
    /// Positions of its kept shards in the list of found shards, by their buckets.
    pub(super) kept: BTreeMap<usize, usize>,
}

/// Memtables that an open keeps from the previous owner, and the records that need no replay.
pub(in super::super) struct Inherited {
    /// For each family, the sequence numbers through which tables and kept shards have its records.
    covered: BTreeMap<CfId, FlushedThrough>,
    /// The memtables of each family, oldest first.
    pub(super) memtables: BTreeMap<CfId, Vec<InheritedMemtable>>,
}

impl Inherited {
    /// Makes memtables around the shards of `found` at the positions `kept`. They are younger than
    /// all memtables that were made before.
    pub(super) fn new(
        context: &Context,
        view: &ReadView,
        writes: &WritePath,
        found: &[FoundShard],
        kept: impl Iterator<Item = usize>,
        covered: BTreeMap<CfId, FlushedThrough>,
    ) -> Self {
        // Shards of one memtable have one last sequence number, and no two memtables of a family
        // have the same one.
        let mut groups: BTreeMap<(CfId, SeqNo), Vec<usize>> = BTreeMap::new();
        for at in kept {
            groups.entry((found[at].family, found[at].last_seq)).or_default().push(at);
        }
        let mut memtables: BTreeMap<CfId, Vec<InheritedMemtable>> = BTreeMap::new();
        for ((cf, last_seq), positions) in groups {
            let ranges: Vec<&KeyRange> = positions.iter().map(|at| &found[*at].keys).collect();
            let wanted = view.family(cf).map(|family| family.current.load().version.map().clone());
            let others =
                found.iter().filter(|shard| (shard.family, shard.last_seq) == (cf, last_seq));
            let others: Vec<&KeyRange> = others.map(|shard| &shard.keys).collect();
            let map = map_around(&ranges, &others, wanted.as_deref());
            let memtable = writes.inherited_memtable(context, map);
            memtable.close_at(last_seq);
            let seal_log = positions.iter().map(|at| found[*at].seal_log).max();
            memtable.note_seal_log(seal_log.unwrap_or(FileNo(0)));
            let bucket = |at: usize| (memtable.map.bucket_of(&found[at].keys.start), at);
            let kept = positions.into_iter().map(bucket).collect();
            memtables.entry(cf).or_default().push(InheritedMemtable { memtable, kept });
        }
        Self { covered, memtables }
    }

    /// The sequence numbers through which tables and kept shards have the records of a family.
    pub(in super::super) fn covered(&self, cf: CfId) -> Option<&FlushedThrough> {
        self.covered.get(&cf)
    }

    /// The memtable to which a record belongs that neither tables nor kept shards have. `None` if
    /// the record is younger than all of these memtables.
    pub(in super::super) fn memtable_of(&self, cf: CfId, seq: SeqNo) -> Option<&Arc<Memtable>> {
        let memtables = self.memtables.get(&cf)?;
        let at = memtables.partition_point(|inherited| inherited.memtable.last_seq() < seq);
        memtables.get(at).map(|inherited| &inherited.memtable)
    }

    /// The oldest log segment that the memtables pin, with the kept shards of `found`.
    pub(super) fn oldest_log(&self, found: &[FoundShard]) -> Option<FileNo> {
        let memtables = self.memtables.values().flatten();
        let pins = memtables.flat_map(|inherited| {
            let kept = inherited.kept.values().map(|at| found[*at].oldest_log);
            kept.chain(inherited.memtable.oldest_log())
        });
        pins.min()
    }
}

impl InheritedMemtable {
    /// The figures of the memtable after the log was read, and the homes of its shards in memory.
    /// The caller adds the homes of the kept shards. `data_bytes` returns the bytes of a kept
    /// shard.
    pub(super) fn finish(
        &self,
        found: &[FoundShard],
        data_bytes: impl Fn(usize) -> u64,
    ) -> (Arc<SealedInfo>, Vec<Option<ShardHome>>) {
        let (mut infos, mut homes) = (Vec::new(), Vec::new());
        for (bucket, shard) in self.memtable.shards.iter().enumerate() {
            shard.seal();
            let info = match self.kept.get(&bucket) {
                Some(at) => ShardInfo {
                    data_bytes: data_bytes(*at),
                    oldest_log: Some(found[*at].oldest_log),
                    is_filled: true,
                },
                None => ShardInfo::of(shard),
            };
            let is_here = info.is_filled && !self.kept.contains_key(&bucket);
            homes.push(is_here.then(|| ShardHome::Here(Arc::clone(shard))));
            infos.push(info);
        }
        (SealedInfo::inherited(&self.memtable, infos.into()), homes)
    }
}

/// A map in which each of `kept` is one bucket. The keys between them are cut at the ends of
/// `others`, which are found shards of the same memtable, and at the boundaries of `current`.
fn map_around(kept: &[&KeyRange], others: &[&KeyRange], current: Option<&BucketMap>) -> BucketMap {
    let is_cut = |key: &&Vec<u8>| {
        let is_inside = |range: &&KeyRange| range.start < **key && range.contains(key);
        !key.is_empty() && !kept.iter().any(is_inside)
    };
    let ends = |ranges: &[&KeyRange]| -> Vec<Vec<u8>> {
        let ends = ranges.iter().flat_map(|range| range.end.iter().chain([&range.start]));
        ends.filter(is_cut).cloned().collect()
    };
    let epoch = current.map_or(archipelago_base::Epoch(1), BucketMap::epoch);
    let necessary = ends(kept);
    let between = current.map_or(&[][..], BucketMap::boundaries).iter().filter(is_cut).cloned();
    let all = necessary.iter().cloned().chain(ends(others)).chain(between).collect();
    let map = |mut boundaries: Vec<Vec<u8>>| {
        boundaries.sort_unstable();
        boundaries.dedup();
        BucketMap::new(epoch, boundaries)
    };
    // The kept shards were buckets of one map, so they alone do not make too many buckets.
    map(all).or_else(|_| map(necessary)).unwrap_or_else(|_| BucketMap::single())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: &str, end: &str) -> KeyRange {
        let end = (!end.is_empty()).then(|| end.as_bytes().to_vec());
        KeyRange { start: start.as_bytes().to_vec(), end }
    }

    fn cuts(map: &BucketMap) -> Vec<&str> {
        map.boundaries().iter().map(|key| str::from_utf8(key).expect("text")).collect()
    }

    #[test]
    fn kept_shards_are_buckets_of_their_memtable() {
        let current = BucketMap::new(archipelago_base::Epoch(7), vec![b"d".into(), b"p".into()]);
        let current = current.expect("a map");
        let (first, middle, last) = (range("", "c"), range("f", "k"), range("t", ""));
        let map = map_around(&[&first, &middle, &last], &[&range("m", "o")], Some(&current));
        assert_eq!(cuts(&map), ["c", "d", "f", "k", "m", "o", "p", "t"]);
        assert_eq!(map.epoch(), archipelago_base::Epoch(7));
        // Cuts within a kept shard do not count.
        let map = map_around(&[&range("c", "q")], &[&range("e", "f")], Some(&current));
        assert_eq!(cuts(&map), ["c", "q"]);
        assert_eq!(map_around(&[&range("", "")], &[], Some(&current)).len(), 1);
    }
}
