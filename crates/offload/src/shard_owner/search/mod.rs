//! A look-up of keys in shards of one node, as a state machine without I/O. It handles requests,
//! answers in parts, and long values that are read one-sided.
//!
//! An answer that has no room for all keys, or for all versions of a key, is followed by further
//! requests. For a value that is longer than an answer permits, the answer has the place of its
//! record. The caller reads the record, and [`Search::on_record`] verifies its checksum, key,
//! sequence number and kind.
//!
//! Invariants:
//! 1. The result has every version that the node named, in its order.
//! 2. Every accepted answer makes progress, so the search ends.
//! 3. An answer that contradicts the request is an error, and never a result.
//!
//! Thread-safety: none; one task owns a search.
//! Cost: O(bytes) of the answers.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use archipelago_base::SeqNo;
use archipelago_engine::key::Kind;
use archipelago_engine::memtable::decode_record;
use archipelago_engine::pinned::PinnedSlice;
use archipelago_engine::remote::{KeyAsk, KeyVersions, LookupAnswer, LookupAsk, ShardVersion};

use super::offsets::CachedOffset;
use crate::ids::OwnerStamp;
use crate::wire::shard::{
    self, KEYS_ONLY_BYTES, RecordPlace, ShardMessage, ShardName, StoredValue,
};

/// Largest size of the keys and lists of one request, in bytes, so that it fits into a message.
const REQUEST_BYTES_MAX: usize = 160 << 10;
/// Bytes of a key's list entry and lengths in a request.
const KEY_BYTES_BESIDE: usize = 24;
/// Bytes of the name of a shard in a request.
const NAME_BYTES: usize = 20;

/// Error: an answer of the node contradicts the request. It says how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contradiction(pub(super) &'static str);

/// A record that the caller reads one-sided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordAt {
    /// Index of the key in the search. The next field is the index of the version.
    key: usize,
    version: usize,
    /// Shard that has the record, as an index into those of the search.
    pub(super) shard: usize,
    /// Offset within the image.
    pub(super) at: u64,
    /// Length of the whole record.
    pub(super) len: u64,
}

/// The place of the newest put of a key in the shards that the search visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewestPut {
    /// Index of the key in the search.
    pub(super) key: usize,
    /// Shard that has the record, as an index into those of the search.
    pub(super) shard: usize,
    pub(super) offset: CachedOffset,
}

/// The keys of the request in flight.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Nothing,
    /// Versions of one key up to this sequence number.
    Rest {
        key: usize,
        snapshot: SeqNo,
    },
    /// Keys from the first key without an answer on.
    Keys {
        first: usize,
        count: usize,
    },
}

/// A lookup of keys in shards of one node.
#[derive(Debug)]
pub(super) struct Search<'a> {
    owner: OwnerStamp,
    ask: &'a LookupAsk<'a>,
    names: &'a [ShardName],
    inline_max: u32,
    found: Vec<KeyVersions>,
    /// Number of keys whose first answer has arrived.
    answered: usize,
    /// Key whose versions have not all arrived, and the snapshot with which the search goes on.
    rest: Option<(usize, SeqNo)>,
    asked: Asked,
    /// Shards that the latest request for several keys named, as indexes into those of the search.
    named: Vec<u32>,
    records: Vec<RecordAt>,
    wants_place: bool,
    newest: Vec<NewestPut>,
}

impl<'a> Search<'a> {
    /// A search for `ask` in the shards with these names. Values up to `inline_max` bytes come with
    /// the answers. If `wants_place`, the answers contain the places of newest versions.
    pub(super) fn new(
        owner: OwnerStamp,
        ask: &'a LookupAsk<'a>,
        names: &'a [ShardName],
        inline_max: u32,
        wants_place: bool,
    ) -> Self {
        let inline_max = if ask.keys_only { KEYS_ONLY_BYTES } else { inline_max };
        let found = vec![KeyVersions::default(); ask.keys.len()];
        Self {
            owner,
            ask,
            names,
            inline_max,
            found,
            answered: 0,
            rest: None,
            asked: Asked::Nothing,
            named: Vec::new(),
            records: Vec::new(),
            wants_place,
            newest: Vec::new(),
        }
    }

    /// The next request; `None` when all versions are known.
    pub(super) fn next_request(&mut self) -> Option<ShardMessage> {
        if let Some((key, snapshot)) = self.rest {
            self.asked = Asked::Rest { key, snapshot };
            return Some(self.get(key, snapshot));
        }
        let first = self.answered;
        let count = self.keys_that_fit(first);
        self.asked = Asked::Keys { first, count };
        match count {
            0 => None,
            1 => Some(self.get(first, self.ask.snapshot)),
            _ => Some(self.multi_get(first, count)),
        }
    }

    /// Number of keys from `first` on that fit into one request with the names of their shards.
    fn keys_that_fit(&self, first: usize) -> usize {
        let (mut bytes, mut named) = (0, BTreeSet::new());
        let fits = |asked: &&KeyAsk<'_>| {
            let more = asked.within.iter().filter(|at| named.insert(**at)).count();
            bytes += NAME_BYTES * more;
            bytes += asked.key.len() + 4 * asked.within.len() + KEY_BYTES_BESIDE;
            bytes <= REQUEST_BYTES_MAX
        };
        let left = &self.ask.keys[first..];
        left.iter().take_while(fits).count().max(usize::from(!left.is_empty()))
    }

    /// Names of the shards of a key, newest first.
    fn names_of(&self, key: usize) -> Vec<ShardName> {
        self.ask.keys[key].within.iter().map(|at| self.names[*at as usize]).collect()
    }

    fn get(&self, key: usize, snapshot: SeqNo) -> ShardMessage {
        let asked = &self.ask.keys[key];
        ShardMessage::Get {
            owner: self.owner,
            shards: self.names_of(key),
            key: asked.key.to_vec().into(),
            floor: asked.floor,
            snapshot,
            inline_max: self.inline_max,
            wants_place: self.wants_place,
        }
    }

    fn multi_get(&mut self, first: usize, count: usize) -> ShardMessage {
        let keys = &self.ask.keys[first..first + count];
        // The request names only the shards of these keys, and its indexes refer to its own list.
        let all: BTreeSet<u32> = keys.iter().flat_map(|asked| &asked.within).copied().collect();
        self.named = all.into_iter().collect();
        let place = |at: &u32| self.named.partition_point(|named| named < at) as u32;
        let asks = keys.iter().map(|asked| shard::KeyAsk {
            key: asked.key.to_vec().into(),
            floor: asked.floor,
            within: asked.within.iter().map(place).collect(),
        });
        ShardMessage::MultiGet {
            owner: self.owner,
            shards: self.named.iter().map(|at| self.names[*at as usize]).collect(),
            asks: asks.collect(),
            snapshot: self.ask.snapshot,
            inline_max: self.inline_max,
            wants_place: self.wants_place,
        }
    }

    /// Takes the answer to the last request.
    pub(super) fn on_answer(&mut self, answer: ShardMessage) -> Result<(), Contradiction> {
        match (std::mem::replace(&mut self.asked, Asked::Nothing), answer) {
            (Asked::Rest { key, snapshot }, ShardMessage::Versions { found }) => {
                self.rest = None;
                self.take(key, snapshot, found, true)
            }
            (Asked::Keys { first, count: 1 }, ShardMessage::Versions { found }) => {
                self.answered = first + 1;
                self.take(first, self.ask.snapshot, found, true)
            }
            (Asked::Keys { first, count: count @ 2.. }, ShardMessage::ManyVersions { found }) => {
                if !(1..=count).contains(&found.len()) {
                    return Err(Contradiction("an answer about another number of keys"));
                }
                for (key, versions) in (first..).zip(found) {
                    if self.rest.is_some() {
                        return Err(Contradiction("keys after one whose versions have not ended"));
                    }
                    self.answered = key + 1;
                    self.take(key, self.ask.snapshot, versions, false)?;
                }
                Ok(())
            }
            _ => Err(Contradiction("an answer of another kind than the request")),
        }
    }

    /// Takes versions of a key from the answer to a request with this snapshot. If the request was
    /// about this key alone, shard indexes refer to the shards of the key.
    fn take(
        &mut self,
        key: usize,
        snapshot: SeqNo,
        found: shard::KeyVersions,
        is_alone: bool,
    ) -> Result<(), Contradiction> {
        let mut last = snapshot.0.saturating_add(1);
        let (mut is_decided, has_versions) = (false, !found.versions.is_empty());
        for version in found.versions {
            if is_decided || version.seq.0 >= last {
                return Err(Contradiction("versions in another order than newest first"));
            }
            last = version.seq.0;
            is_decided = version.kind != Kind::Merge;
            let place = version.value.place();
            if let Some(place) = place
                && self.wants_place
                && self.found[key].versions.is_empty()
                && matches!(version.kind, Kind::Put | Kind::PutExpiring)
            {
                let (shard, at, len) = (place.shard, place.at, place.len);
                let shard = self.shard_of(key, shard, is_alone)?;
                let offset = CachedOffset { at, len, seq: version.seq, kind: version.kind };
                self.newest.push(NewestPut { key, shard, offset });
            }
            let value = match version.value {
                StoredValue::Inline(value) | StoredValue::Placed { value, .. } => {
                    PinnedSlice::owned(value.0.to_vec())
                }
                StoredValue::At(RecordPlace { shard, at, len }) => {
                    if !self.ask.keys_only || version.kind == Kind::PutExpiring {
                        let shard = self.shard_of(key, shard, is_alone)?;
                        let version = self.found[key].versions.len();
                        self.records.push(RecordAt { key, version, shard, at, len });
                    }
                    PinnedSlice::owned(Vec::new())
                }
            };
            let (seq, kind) = (version.seq, version.kind);
            self.found[key].versions.push(ShardVersion { seq, kind, value });
        }
        match found.resume {
            Some(next) if is_decided || !has_versions || next.0 >= last => {
                Err(Contradiction("a search that goes on without progress"))
            }
            next => {
                self.rest = next.map(|next| (key, next));
                Ok(())
            }
        }
    }

    /// The shard that an answer names, as an index into the shards of the search.
    fn shard_of(&self, key: usize, named: u32, is_alone: bool) -> Result<usize, Contradiction> {
        let within = &self.ask.keys[key].within;
        let listed = if is_alone { within } else { &self.named };
        let shard = listed.get(named as usize).copied();
        let of_key = shard.filter(|shard| within.contains(shard));
        of_key.map(|shard| shard as usize).ok_or(Contradiction("a value in a shard of another key"))
    }

    /// Places of the newest versions of the keys, for those that are puts and whose places the
    /// answers have reported.
    pub(super) fn newest(&self) -> &[NewestPut] {
        &self.newest
    }

    /// Records that the caller must read one-sided after the last answer.
    pub(super) fn records(&self) -> &[RecordAt] {
        &self.records
    }

    /// Takes the bytes of a record of [`Search::records`]. Returns false if they are not that
    /// record.
    pub(super) fn on_record(&mut self, record: RecordAt, bytes: &[u8]) -> bool {
        let Some((key, value)) = decode_record(bytes) else { return false };
        let version = &mut self.found[record.key].versions[record.version];
        let is_it = key.user_key == self.ask.keys[record.key].key
            && (key.seq, key.kind) == (version.seq, version.kind);
        if is_it {
            version.value = PinnedSlice::owned(value.to_vec());
        }
        is_it
    }

    /// The result, after all requests and records.
    pub(super) fn finish(self) -> LookupAnswer {
        LookupAnswer { keys: self.found }
    }
}
