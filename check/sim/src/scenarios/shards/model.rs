//! Model of the shards: their contents, and their states as the newest owner knows them.
//!
//! The contents of a shard never change. Only the newest owner changes its state.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::random::Rng;
use archipelago_base::{Epoch, SeqNo};
use archipelago_engine::key::Kind;
use archipelago_engine::memtable::{Shard, SlabPool};
use archipelago_offload::wire::shard::{ShardInfo, ShardName, ShardPlace};
use parking_lot::Mutex;

/// Number of different keys in all shards.
pub(super) const KEYS: usize = 12;
/// Number of records of a shard. It is the same for all shards, so that most images have one
/// length. A late write of one image may then replace another image as a whole.
const RECORDS: usize = 24;
const VALUE_BYTES: usize = 24;

/// A version: sequence number, kind and value.
pub(super) type ModelVersion = (SeqNo, Kind, Vec<u8>);

/// The contents of a shard.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) name: ShardName,
    pub(super) image: Vec<u8>,
    pub(super) info: ShardInfo,
    /// Versions of each key, newest first.
    pub(super) records: BTreeMap<Vec<u8>, Vec<ModelVersion>>,
}

/// The key with that number.
pub(super) fn key_of(number: usize) -> Vec<u8> {
    format!("key-{number:02}").into_bytes()
}

impl Contents {
    /// A shard of random records after `seq`.
    pub(super) fn new(name: ShardName, seq: u64, rng: &mut Rng) -> Self {
        let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
        let has_deletes = rng.u32(..4) == 0;
        let mut records = BTreeMap::<Vec<u8>, Vec<ModelVersion>>::new();
        let mut last_seq = SeqNo(seq);
        for _ in 0..RECORDS {
            last_seq = last_seq.next();
            let kind = match rng.u32(..8) {
                0 if has_deletes => Kind::Delete,
                0..=2 => Kind::Put,
                3 => Kind::PutExpiring,
                _ => Kind::Merge,
            };
            let len = if kind == Kind::Delete { 0 } else { VALUE_BYTES };
            let value: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
            let key = key_of(rng.usize(..KEYS));
            shard.insert(&key, last_seq, kind, &value);
            records.entry(key).or_default().insert(0, (last_seq, kind, value));
        }
        shard.seal();
        let mut image = Vec::new();
        shard.write_image(&mut image).expect("the shard is sealed");
        let info = ShardInfo { after_seq: SeqNo(seq), last_seq, ..ShardInfo::default() };
        Self { name, image, info, records }
    }
}

/// The versions that a search of shards, newest first, must find.
pub(super) fn expected(
    shards: &[Arc<Contents>],
    key: &[u8],
    floor: SeqNo,
    snapshot: SeqNo,
) -> Vec<ModelVersion> {
    let versions = shards.iter().filter_map(|shard| shard.records.get(key)).flatten();
    let seen = versions.filter(|(seq, ..)| *seq <= snapshot);
    let mut found = Vec::new();
    for version in seen.take_while(|(seq, ..)| *seq >= floor) {
        found.push(version.clone());
        if version.1 != Kind::Merge {
            break;
        }
    }
    found
}

/// The state of a shard, as the newest owner knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShardState {
    /// The owner sends the shard, and may never learn the outcome.
    Sending,
    /// The shard is registered in this life of the node.
    Away { life: Epoch, place: ShardPlace },
    /// The owner wants the shard to be released, or lets the host purge it.
    Leaving,
    /// The host has confirmed the release in this life of the node.
    Released { life: Epoch },
    /// The node has restarted, or may have dropped the shard because the owner was silent.
    Lost,
}

/// State of a database outside of the simulated network, with which answers are compared.
#[derive(Debug, Default)]
pub(super) struct DatabaseBook {
    /// Epoch of the newest owner, which may not have begun yet.
    pub(super) newest: u64,
    /// Life of the node, and epoch of the last owner that got the answer that it has begun.
    pub(super) begun: Option<(Epoch, u64)>,
    /// Time at which the newest owner sent the last message that was accepted.
    pub(super) contact_ns: u64,
    pub(super) shards: BTreeMap<ShardName, (Arc<Contents>, ShardState)>,
    /// Epoch of the last owner that asked to adopt each shard.
    pub(super) adopting: BTreeMap<ShardName, u64>,
    /// Epoch of the last owner that got the answer that it has adopted each shard.
    pub(super) adopted: BTreeMap<ShardName, u64>,
    pub(super) last_seq: u64,
    /// Whether the newest owner has released everything, in the time of peace.
    pub(super) is_clean: bool,
}

impl DatabaseBook {
    /// Registered shards, newest first, with their places.
    pub(super) fn away(&self) -> Vec<(Arc<Contents>, ShardPlace)> {
        let away = self.shards.values().filter_map(|(contents, state)| match state {
            ShardState::Away { place, .. } => Some((Arc::clone(contents), *place)),
            _ => None,
        });
        let mut away: Vec<_> = away.collect();
        away.sort_by_key(|(contents, _)| std::cmp::Reverse(contents.info.last_seq));
        away
    }

    /// The state of a shard.
    pub(super) fn state(&self, name: ShardName) -> Option<ShardState> {
        self.shards.get(&name).map(|(_, state)| *state)
    }

    /// Whether the node may list a shard to the owner of `epoch`. That owner, or the one directly
    /// before it, must have sent the shard, or must be in `by` as the last owner that adopted it.
    pub(super) fn is_recent(name: ShardName, by: &BTreeMap<ShardName, u64>, epoch: u64) -> bool {
        let holder = by.get(&name).copied().unwrap_or(0).max(name.epoch.0);
        holder + 1 >= epoch
    }

    /// Names of the shards in a state.
    pub(super) fn names(&self, is_wanted: impl Fn(&ShardState) -> bool) -> Vec<ShardName> {
        let wanted = self.shards.iter().filter(|(_, (_, state))| is_wanted(state));
        wanted.map(|(name, _)| *name).collect()
    }

    pub(super) fn set(&mut self, name: ShardName, state: ShardState) {
        if let Some((_, known)) = self.shards.get_mut(&name) {
            *known = state;
        }
    }

    /// Marks shards as lost that the host may have forgotten, by the life of the node. The host
    /// then knows neither a registration nor a release of them.
    pub(super) fn lose(&mut self, is_gone: impl Fn(Epoch) -> bool) {
        for (_, state) in self.shards.values_mut() {
            match state {
                ShardState::Away { life, .. } | ShardState::Released { life } if is_gone(*life) => {
                    *state = ShardState::Lost;
                }
                _ => {}
            }
        }
    }
}

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) registered: u64,
    pub(super) keys: u64,
    pub(super) pages: u64,
    pub(super) cut: u64,
    pub(super) damaged: u64,
    pub(super) unknown: u64,
    pub(super) adopted: u64,
    pub(super) repeated: u64,
    pub(super) owners: u64,
    pub(super) lives: u64,
    pub(super) full: u64,
    /// Shards whose first records were written ahead, and grants that were given back.
    pub(super) ahead: u64,
    pub(super) given_back: u64,
}

/// State outside of the simulated network, with which answers are compared.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) databases: Vec<DatabaseBook>,
    /// Life of the node.
    pub(super) life: Epoch,
    pub(super) is_peace: bool,
    pub(super) counted: Counted,
    pub(super) violations: Vec<String>,
}

/// The book that all tasks share.
pub(super) type SharedBook = Arc<Mutex<Book>>;
