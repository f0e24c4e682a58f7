//! Look-ups with the key-offset cache (O³-LSM §4.5): one READ of a known record replaces a search
//! at the node.
//!
//! A look-up reads its known records in one batch, and in parallel requests the other keys from the
//! node. Each record must be exactly the record that the entry names. If it is not, or if it cannot
//! be read, the look-up requests that key from the node as well.
//!
//! Invariants:
//! 1. A record answers only if [`read_path`] permits it, and only if its key, sequence number, kind
//!    and checksum are those of the entry.
//! 2. Every key that no record answers is requested from the node.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a wrong or unreadable record costs a request, and is counted by its cause.
//! Cost: a short lock per look-up and one READ per known key. After a transfer, if any key is hot,
//! a copy of the image and a walk over its keys.

use archipelago_base::SeqNo;
use archipelago_engine::iter::InternalIterator;
use archipelago_engine::key::{KeyRef, Kind};
use archipelago_engine::lookup::Lookup;
use archipelago_engine::memtable::{SealedImage, decode_record};
use archipelago_engine::pinned::PinnedSlice;
use archipelago_engine::remote::{
    AwayError, KeyVersions, LookupAnswer, LookupAsk, ShardId, ShardVersion,
};

use super::counters::count;
use super::driver::OwnerDriver;
use super::links::{NodeLinks, OneSidedFailure, RecordRead};
use super::offsets::{CachedOffset, key_hash};
use super::sabotage::OwnerSabotage;
use super::search::NewestPut;
use super::within::both;
use crate::decide::{KeyLookup, KnownRecord, ReadPath, read_path};

/// Length in bytes of the longest record that a look-up reads if it wants only the key.
const KEYS_ONLY_RECORD_BYTES_MAX: u64 = 4096;
/// Number of steps of the READ of a known record, each of which may take the time of a request: a
/// link, a region and the batch. Each of several records may be in a batch of its own.
const STEPS_OF_KNOWN_READ: u32 = 3;

/// A known record that answers a key.
struct CachedRead {
    /// Key of the look-up.
    key: usize,
    hash: u64,
    shard: ShardId,
    offset: CachedOffset,
    read: RecordRead,
}

/// The path of each key of a look-up. A key in neither list is in no shard.
#[derive(Default)]
struct LookupPlan {
    reads: Vec<CachedRead>,
    /// Keys that are requested from the node.
    asks: Vec<usize>,
}

/// A look-up of some of the keys of `ask`.
fn part_of<'a>(ask: &LookupAsk<'a>, keys: &[usize]) -> LookupAsk<'a> {
    LookupAsk {
        node: ask.node,
        shards: ask.shards.clone(),
        keys: keys.iter().map(|key| ask.keys[*key].clone()).collect(),
        snapshot: ask.snapshot,
        keys_only: ask.keys_only,
        time_left: ask.time_left,
    }
}

/// The version in the bytes of a record, if the record is the one that the cache entry names.
fn named_version(
    bytes: &[u8],
    key: &[u8],
    offset: &CachedOffset,
    sabotage: OwnerSabotage,
) -> Option<ShardVersion> {
    let (found, value) = decode_record(bytes)?;
    let is_named = found.user_key == key && (found.seq, found.kind) == (offset.seq, offset.kind);
    if !is_named && !sabotage.no_offset_check() {
        return None;
    }
    let value = PinnedSlice::owned(value.to_vec());
    Some(ShardVersion { seq: offset.seq, kind: offset.kind, value })
}

impl OwnerDriver {
    fn has_offsets(&self) -> bool {
        self.terms().key_offset_cache_bytes > 0
    }

    /// Looks keys up: reads known records, and requests the other keys from the node.
    pub(super) async fn look_up_one(&self, ask: &LookupAsk<'_>) -> Result<LookupAnswer, AwayError> {
        let node = self.state.lock().common_node(&ask.shards).unwrap_or(ask.node);
        let moved = (node != ask.node).then(|| LookupAsk { node, ..ask.clone() });
        let ask = moved.as_ref().unwrap_or(ask);
        let links = self.links(ask.node).filter(|_| self.has_offsets());
        let end_ns = self.end_of(ask.time_left);
        let Some(links) = links else { return self.ask_node(ask, end_ns).await };
        let plan = self.plan(ask, &links);
        if plan.asks.len() == ask.keys.len() {
            return self.ask_node(ask, end_ns).await;
        }
        let known = self.read_known(ask, &links, &plan.reads);
        let reads = u32::try_from(plan.reads.len()).unwrap_or(u32::MAX);
        let steps = STEPS_OF_KNOWN_READ.saturating_mul(reads);
        let longest = self.terms().request.saturating_mul(steps);
        let known = self.in_time(end_ns, longest, known);
        let (known, asked) = both(known, self.ask_part(ask, &plan.asks, end_ns)).await;
        let known = known.unwrap_or_else(|| plan.reads.iter().map(|_| None).collect());
        let mut found = vec![KeyVersions::default(); ask.keys.len()];
        let mut missed = Vec::new();
        for (read, version) in plan.reads.iter().zip(known) {
            match version {
                Some(version) => found[read.key].versions.push(version),
                None => missed.push(read.key),
            }
        }
        let again = self.ask_part(ask, &missed, end_ns).await?;
        let answered = plan.asks.iter().zip(asked?).chain(missed.iter().zip(again));
        for (key, versions) in answered {
            found[*key] = versions;
        }
        Ok(LookupAnswer { keys: found })
    }

    /// Requests some of the keys from the node.
    async fn ask_part(
        &self,
        ask: &LookupAsk<'_>,
        keys: &[usize],
        end_ns: u64,
    ) -> Result<Vec<KeyVersions>, AwayError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.ask_node(&part_of(ask, keys), end_ns).await?.keys)
    }

    /// Chooses the path of each key.
    fn plan(&self, ask: &LookupAsk<'_>, links: &NodeLinks) -> LookupPlan {
        let link = links.figures();
        let (mut plan, mut passed) = (LookupPlan::default(), 0);
        let mut state = self.state.lock();
        for (key, asked) in ask.keys.iter().enumerate() {
            let hash = key_hash(asked.key, self.terms().sabotage);
            state.offsets().count(hash);
            let first = asked.within.first().and_then(|at| ask.shards.get(*at as usize)).copied();
            let known = first.and_then(|shard| {
                let place = state.readable(ask.node, shard)?.place;
                let offset = state.offsets().find(shard, hash)?;
                let end = offset.at.checked_add(offset.len)?;
                if end > place.bytes {
                    return None;
                }
                let read = RecordRead { key: place.key, at: place.at + offset.at, len: offset.len };
                Some(CachedRead { key, hash, shard, offset, read })
            });
            let record = known.as_ref().map(|known| KnownRecord {
                shard: known.shard,
                seq: known.offset.seq,
                kind: known.offset.kind,
            });
            let lookup = KeyLookup { first, snapshot: ask.snapshot, floor: asked.floor };
            let is_long =
                |read: &CachedRead| ask.keys_only && read.offset.len > KEYS_ONLY_RECORD_BYTES_MAX;
            match (read_path(record.as_ref(), &lookup, &link), known) {
                (ReadPath::Nothing, _) => {}
                (ReadPath::Read, Some(known)) if !is_long(&known) => plan.reads.push(known),
                (ReadPath::RequestIsFaster, Some(known)) if links.meter().is_read_probe() => {
                    plan.reads.push(known);
                }
                (path, _) => {
                    passed += u64::from(path != ReadPath::Request);
                    plan.asks.push(key);
                }
            }
        }
        drop(state);
        count(&self.tally.cache_passed, passed);
        count(&self.tally.cache_misses, plan.asks.len() as u64 - passed);
        plan
    }

    /// Reads known records. The result has `None` for each record that is not the one that its
    /// entry names.
    async fn read_known(
        &self,
        ask: &LookupAsk<'_>,
        links: &NodeLinks,
        reads: &[CachedRead],
    ) -> Vec<Option<ShardVersion>> {
        let records: Vec<RecordRead> = reads.iter().map(|known| known.read).collect();
        let results = links.read_records(&records).await;
        count(&self.tally.cache_reads, records.len() as u64);
        let mut versions = Vec::with_capacity(reads.len());
        let silent = reads.iter().zip(&results).filter_map(|(known, result)| {
            matches!(result, Err(OneSidedFailure::NoAnswer(_))).then_some(known.shard)
        });
        let silent: Vec<ShardId> = silent.collect();
        if !silent.is_empty() {
            // The request that follows goes to the other copies, if there are any.
            self.state.lock().avoid(ask.node, &silent);
            self.tell_news();
        }
        for (known, result) in reads.iter().zip(results) {
            let Ok(bytes) = result else {
                count(&self.tally.cache_unread, 1);
                versions.push(None);
                continue;
            };
            let key = ask.keys[known.key].key;
            let version = named_version(&bytes, key, &known.offset, self.terms().sabotage);
            if version.is_none() {
                count(&self.tally.cache_mismatches, 1);
                self.state.lock().offsets().remove(known.shard, known.hash);
            }
            versions.push(version);
        }
        count(&self.tally.cache_hits, versions.iter().flatten().count() as u64);
        versions
    }

    /// Whether answers of nodes should contain the places of records.
    pub(super) fn wants_places(&self) -> bool {
        self.has_offsets()
    }

    /// Adds the places that an answer has reported to the cache.
    pub(super) fn learn(&self, ask: &LookupAsk<'_>, newest: &[NewestPut]) {
        if newest.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for put in newest {
            let Some(shard) = ask.shards.get(put.shard) else { continue };
            let hash = key_hash(ask.keys[put.key].key, self.terms().sabotage);
            state.offsets().learn(*shard, hash, put.offset, ask.snapshot);
        }
    }

    /// Adds the places of hot keys in an image that was sent to the cache.
    pub(super) fn fill_hot(&self, shard: ShardId, image: &[u8]) {
        let frequencies = {
            let mut state = self.state.lock();
            if !state.offsets().may_be_hot() {
                return;
            }
            state.offsets().frequencies()
        };
        let Ok(image) = SealedImage::open(image.to_vec()) else { return };
        let (mut hot, mut before): (Vec<(u64, CachedOffset)>, Option<Vec<u8>>) = (Vec::new(), None);
        let mut records = image.iter();
        records.seek_to_first();
        while records.valid() {
            let Some(KeyRef { user_key, kind, .. }) = KeyRef::decode(records.key()) else { return };
            // The newest version of a key comes first.
            if before.as_deref() != Some(user_key) {
                let hash = key_hash(user_key, self.terms().sabotage);
                if matches!(kind, Kind::Put | Kind::PutExpiring) && frequencies.is_hot(hash) {
                    hot.extend(newest_in(&image, user_key).map(|offset| (hash, offset)));
                }
                let key = before.get_or_insert_default();
                key.clear();
                key.extend_from_slice(user_key);
            }
            records.next();
        }
        count(&self.tally.cache_filled, hot.len() as u64);
        let mut state = self.state.lock();
        hot.into_iter().for_each(|(hash, offset)| state.offsets().fill(shard, hash, offset));
    }
}

/// The place of the newest version of a key.
fn newest_in(image: &SealedImage, key: &[u8]) -> Option<CachedOffset> {
    let mut newest = None;
    let visited = image.lookup_records(&Lookup::new(key, SeqNo::MAX), |found, span| {
        let (seq, kind) = (found.seq, found.kind);
        newest = Some(CachedOffset { at: span.at, len: span.len, seq, kind });
        std::ops::ControlFlow::Break(())
    });
    newest.filter(|_| visited.is_ok())
}
