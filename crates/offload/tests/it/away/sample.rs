//! Shards as their owner has them, and what a search of their images finds.

use std::ops::ControlFlow;
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::random::Rng;
use archipelago_base::{CfId, FileNo, SeqNo};
use archipelago_engine::key::{KeyRange, Kind};
use archipelago_engine::lookup::Lookup;
use archipelago_engine::memtable::{SealedImage, Shard, SlabPool};
use archipelago_engine::remote::{LookupAnswer, NewShard, ShardId};

/// A shard as its owner has it.
pub(crate) struct Sample {
    pub(crate) id: ShardId,
    pub(crate) keys: KeyRange,
    pub(crate) last_seq: SeqNo,
    pub(crate) bytes: Vec<u8>,
    pub(crate) image: Arc<SealedImage>,
}

/// Key by its number; the longest values are read one-sided.
pub(crate) fn key_of(number: u64) -> Vec<u8> {
    format!("key-{number:04}").into_bytes()
}

impl Sample {
    /// A shard with records of some of the keys: some have several versions, and some long values.
    pub(crate) fn new(rng: &mut Rng, memtable: u64, keys: u64, longest: u64) -> Self {
        let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
        let first = memtable * 10_000;
        let mut seq = first;
        for number in 0..keys {
            for _ in 0..rng.u64(0..4) {
                seq += 1;
                let kind = match rng.u64(0..8) {
                    0 => Kind::Delete,
                    1..=4 => Kind::Merge,
                    _ => Kind::Put,
                };
                let len = match rng.u64(0..20) {
                    0 => longest,
                    _ => rng.u64(0..200),
                };
                let value = vec![rng.u8(..); if kind == Kind::Delete { 0 } else { len as usize }];
                shard.insert(&key_of(number), SeqNo(seq), kind, &value);
            }
        }
        shard.seal();
        let mut bytes = Vec::new();
        shard.write_image(&mut bytes).unwrap();
        let image = SealedImage::open(bytes.clone()).unwrap();
        let keys = KeyRange { start: b"k".to_vec(), end: Some(b"l".to_vec()) };
        let id = ShardId { memtable, shard: 0 };
        Self { id, keys, last_seq: SeqNo(seq), bytes, image }
    }

    /// A shard with a put of each of the keys below this number, whose values have this length.
    pub(crate) fn puts(memtable: u64, keys: u64, value_bytes: usize) -> Self {
        let mut sample = Self::new(&mut Rng::with_seed(0), memtable, 0, 0);
        let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
        for number in 0..keys {
            let value = vec![memtable as u8; value_bytes];
            shard.insert(&key_of(number), SeqNo(memtable * 10_000 + number), Kind::Put, &value);
        }
        shard.seal();
        sample.bytes.clear();
        shard.write_image(&mut sample.bytes).unwrap();
        sample.image = SealedImage::open(sample.bytes.clone()).unwrap();
        sample.last_seq = SeqNo(memtable * 10_000 + keys);
        sample
    }

    pub(crate) fn shard(&self) -> NewShard<'_> {
        NewShard {
            id: self.id,
            family: CfId(0),
            keys: &self.keys,
            after_seq: SeqNo(0),
            last_seq: self.last_seq,
            oldest_log: FileNo(1),
            seal_log: FileNo(2),
        }
    }
}

pub(crate) type Versions = Vec<(u64, Kind, Vec<u8>)>;

/// Versions of a key that a search of these shards, newest first, must find.
pub(crate) fn expected(samples: &[&Sample], key: &[u8], snapshot: SeqNo, floor: SeqNo) -> Versions {
    let mut versions = Vec::new();
    let mut is_decided = false;
    for sample in samples {
        let lookup = Lookup::new(key, snapshot);
        let visited = sample.image.lookup(&lookup, |found| {
            if is_decided || found.seq < floor {
                return ControlFlow::Break(());
            }
            versions.push((found.seq.0, found.kind, found.value.to_vec()));
            is_decided = found.kind != Kind::Merge;
            ControlFlow::Continue(())
        });
        visited.unwrap();
    }
    versions
}

pub(crate) fn versions(answer: &LookupAnswer, key: usize) -> Versions {
    let found = answer.keys[key].versions.iter();
    found.map(|at| (at.seq.0, at.kind, at.value.as_ref().to_vec())).collect()
}

pub(crate) fn samples(rng: &mut Rng, count: u64, keys: u64, longest: u64) -> Vec<Sample> {
    (1..=count).map(|memtable| Sample::new(rng, memtable, keys, longest)).collect()
}
