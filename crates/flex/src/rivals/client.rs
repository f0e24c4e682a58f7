//! Reads and writes of the rivals.

use std::sync::Arc;

use archipelago_base::{Error, Result};

use super::{Rival, Rivalry};
use crate::cache::{Cached, Place as Placed};
use crate::client::{Found, If, Looked, Submitted, Value, Write, expired};
use crate::format::{BUCKET_BYTES, Decoded, KeyHash, Record, Slot, SlotIndex};
use crate::ids::PartitionId;
use crate::lease::Stamp;
use crate::node::Inner;
use crate::table::Range;
use crate::wire::{Assigned, Carrying, Message, Payload, WriteKind};

impl Rivalry {
    fn recall(&self, entry: Assigned, hash: KeyHash, key: &[u8]) -> Option<Found> {
        let cache = self.cache.lock();
        let place = cache.get(hash, key)?.place;
        (place.generation == entry.shape.generation).then_some(Found {
            index: place.slot,
            slot: place.word,
            expires_ms: 0,
        })
    }

    fn remember(&self, entry: Assigned, hash: KeyHash, key: &[u8], found: &Found) {
        let place = Placed {
            partition: PartitionId(entry.partition),
            generation: entry.shape.generation,
            slot: found.index,
            word: found.slot,
            owner: None,
            session: 0,
            stamp: Stamp::default(),
        };
        let mut cache = self.cache.lock();
        if !cache.renew(hash, key, place) {
            let fetch = cache.begin_fetch(hash);
            cache.finish_fetch(fetch, key, place, Cached::Address);
        }
    }

    fn forget(&self, hash: KeyHash) {
        self.cache.lock().invalidate(hash);
    }
}

impl Inner {
    /// A read, in whichever way this node does it.
    pub(crate) async fn read(self: &Arc<Self>, key: &[u8]) -> Result<Option<Value>> {
        match &self.rivalry {
            None => self.get(key).await,
            Some(rivalry) if rivalry.mode == Rival::Ownership => {
                match self.carry(key, (Carrying::Get, b"", 0)).await? {
                    Some((found, value)) => Ok(found.then_some(value)),
                    None => self.get(key).await,
                }
            }
            Some(rivalry) => self.rival_get(rivalry, key).await,
        }
    }

    /// A write.
    pub(crate) async fn change(
        self: &Arc<Self>,
        key: &[u8],
        value: Option<(&[u8], u64)>,
        when: If,
    ) -> Result<bool> {
        let Some(rivalry) = &self.rivalry else { return self.write(key, value, when).await };
        if rivalry.mode != Rival::Ownership {
            let hash = crate::format::key_hash(key);
            return self.rival_write(rivalry, &Write { key, hash, value, when }).await;
        }
        let kind = match (when, value) {
            (If::Present, None) => Carrying::Delete,
            (If::Always, _) => Carrying::Set,
            (If::Absent, _) => Carrying::Insert,
            (If::Present, _) => Carrying::Update,
            (If::Version(_), _) => {
                return Err(Error::unsupported("conditional writes under ownership"));
            }
        };
        let (bytes, expires_ms) = value.unwrap_or_default();
        match self.carry(key, (kind, bytes, expires_ms)).await? {
            Some((done, _)) => Ok(done),
            None => self.write(key, value, when).await,
        }
    }

    async fn rival_get(self: &Arc<Self>, rivalry: &Rivalry, key: &[u8]) -> Result<Option<Value>> {
        let (hash, until_ns) = (crate::format::key_hash(key), self.until_ns());
        loop {
            let (inside, entry) = self.enter(hash, until_ns).await?;
            let found = self.get_by_address(rivalry, entry, (key, hash), until_ns).await?;
            drop(inside);
            if let Some(found) = found {
                self.count(entry.partition, true);
                return Ok(found.filter(|value| !expired(value.expires_ms, self)));
            }
            self.table.late(until_ns, "get")?;
            self.pause().await;
        }
    }

    /// The inner `None`: no such key; the outer: again.
    async fn get_by_address(
        self: &Arc<Self>,
        rivalry: &Rivalry,
        entry: Assigned,
        (key, hash): (&[u8], KeyHash),
        until_ns: u64,
    ) -> Result<Option<Option<Value>>> {
        if let Some(found) = rivalry.recall(entry, hash, key) {
            let value = self.read_at(rivalry, entry, &found, (key, hash), until_ns).await?;
            if let Some(value) = value {
                return Ok(Some(Some(value)));
            }
            rivalry.forget(hash);
        }
        let looked = self.resolve(rivalry, entry, (key, hash), until_ns).await?;
        let Some(looked) = looked else { return Ok(None) };
        let Some(found) = looked.found else {
            return Ok(looked.pending.is_none().then_some(None));
        };
        rivalry.remember(entry, hash, key, &found);
        Ok(Some(looked.value))
    }

    /// The record at a cached address, if it is still the key's newest.
    async fn read_at(
        &self,
        rivalry: &Rivalry,
        entry: Assigned,
        found: &Found,
        (key, hash): (&[u8], KeyHash),
        until_ns: u64,
    ) -> Result<Option<Value>> {
        let Some(record) = self.table.record(found.slot) else { return Ok(None) };
        let mut ranges = vec![record];
        if rivalry.mode == Rival::Fusee {
            // In case that the address is old: a round trip less then.
            let range = |bucket| Range {
                address: self.table.slot(entry.shape, SlotIndex::new(bucket, 0)),
                bytes: BUCKET_BYTES as u64,
            };
            ranges.extend(hash.buckets(entry.shape.log2_buckets).map(range));
        }
        let read = self.table.read(&ranges, until_ns).await?;
        let mut bytes = read.into_iter().next().unwrap_or_default();
        if let Ok(Decoded::Needs(_)) = Record::decode(&bytes, self.pool.block_bytes()) {
            bytes = self.table.read_record(found.slot, until_ns).await?;
        }
        Ok(match Record::decode(&bytes, self.pool.block_bytes()) {
            Ok(Decoded::Record(record)) if record.valid && record.key == key => Some(Value {
                bytes: record.value.to_vec(),
                expires_ms: record.expires_ms,
                version: found.slot,
            }),
            _ => None,
        })
    }

    /// The key's slot: by the metadata server, or in the pool.
    async fn resolve(
        self: &Arc<Self>,
        rivalry: &Rivalry,
        entry: Assigned,
        (key, hash): (&[u8], KeyHash),
        until_ns: u64,
    ) -> Result<Option<Looked>> {
        if rivalry.mode != Rival::Clover {
            return self.look(entry, key, hash, until_ns).await;
        }
        let Assigned { partition, epoch, .. } = entry;
        let search = Message::Search { partition, epoch, hash: hash.0, reads: 0, session: 0 };
        let Some(Message::Found { slots, .. }) = self.ask_node(entry, &search).await? else {
            return Ok(None);
        };
        let slots = slots.iter().map(|place| (SlotIndex(place.index), Slot(place.word)));
        self.look_at(slots.collect(), key, until_ns).await
    }

    pub(crate) async fn rival_write(
        self: &Arc<Self>,
        rivalry: &Rivalry,
        write: &Write<'_>,
    ) -> Result<bool> {
        let until_ns = self.until_ns();
        loop {
            let (inside, entry) = self.enter(write.hash, until_ns).await?;
            let done = self.rival_turn(rivalry, entry, write, until_ns).await?;
            drop(inside);
            if let Some(done) = done {
                self.count(entry.partition, false);
                return Ok(done);
            }
            self.table.late(until_ns, "a write; whether it happened is not known")?;
            self.pause().await;
        }
    }

    async fn rival_turn(
        self: &Arc<Self>,
        rivalry: &Rivalry,
        entry: Assigned,
        write: &Write<'_>,
        until_ns: u64,
    ) -> Result<Option<bool>> {
        let Some(stamp_us) = self.stamp_of(entry).await? else { return Ok(None) };
        let valid_ns = self.now_ns() + self.settings.address_lease_ns();
        // Any slot of the key will do to be superseded; whether it was the newest shows when it is swapped.
        let blind = write.value.is_some() && matches!(write.when, If::Always | If::Present);
        let cached = if blind { rivalry.recall(entry, write.hash, write.key) } else { None };
        let looked = match cached {
            Some(found) => Looked { found: Some(found), ..Looked::default() },
            None => {
                let key = (write.key, write.hash);
                match self.resolve(rivalry, entry, key, until_ns).await? {
                    Some(looked) if looked.pending.is_none() => looked,
                    _ => return Ok(None),
                }
            }
        };
        let looked = Looked { stamp_us, valid_ns, ..looked };
        let there = looked.found.as_ref().filter(|found| !expired(found.expires_ms, self));
        if !write.applies(there) {
            return Ok(Some(false));
        }
        let Some(kind) = write.kind(looked.found.as_ref()) else { return Ok(Some(false)) };
        let record = self.new_record(write, &looked, until_ns).await?;
        let submitted = self.submit(write, entry, kind, &looked, record, until_ns).await?;
        rivalry.forget(write.hash);
        match submitted {
            Submitted::Done => {
                let index = looked.found.map_or(SlotIndex::default(), |found| found.index);
                if kind == WriteKind::Update {
                    let found = Found { index, slot: record.slot, expires_ms: 0 };
                    rivalry.remember(entry, write.hash, write.key, &found);
                }
                Ok(Some(true))
            }
            Submitted::Superseded => {
                self.free_unpublished(record);
                Ok(Some(true))
            }
            Submitted::Not => {
                self.free_unpublished(record);
                Ok(None)
            }
            Submitted::Full => {
                self.free_unpublished(record);
                self.ask_to_grow(entry, until_ns).await?;
                Ok(None)
            }
            Submitted::Fenced | Submitted::Unknown(_) => {
                Err(Error::busy("a rival's node is gone; rivals survive no failures"))
            }
        }
    }

    /// Has the partition's node do a request. `None`: that is this node.
    pub(crate) async fn carry(
        self: &Arc<Self>,
        key: &[u8],
        (kind, value, expires_ms): (Carrying, &[u8], u64),
    ) -> Result<Option<(bool, Value)>> {
        let (hash, until_ns) = (crate::format::key_hash(key), self.until_ns());
        let payload = |bytes: &[u8]| Payload(bytes.to_vec());
        let message = Message::Carry { key: payload(key), kind, value: payload(value), expires_ms };
        loop {
            let (inside, entry) = self.enter(hash, until_ns).await?;
            let peer = self.node_of(entry)?;
            drop(inside);
            let Some(peer) = peer else { return Ok(None) };
            match self.ask(&peer, &message, until_ns).await? {
                Message::Carried { done, value, expires_ms } => {
                    let version = Slot::EMPTY;
                    return Ok(Some((done, Value { bytes: value.0, expires_ms, version })));
                }
                _ => self.table.late(until_ns, "a request that is sent to its partition's node")?,
            }
            self.pause().await;
        }
    }

    /// Does what another node was asked for.
    pub(crate) async fn carried(self: &Arc<Self>, message: &Message) -> Message {
        let Message::Carry { key, kind, value, expires_ms } = message else {
            return self.declined(crate::wire::Why::Malformed);
        };
        let (key, value) = (&key.0, Some((&value.0[..], *expires_ms)));
        let done = match kind {
            Carrying::Get => match self.get(key).await {
                Ok(Some(value)) => {
                    let expires_ms = value.expires_ms;
                    let value = Payload(value.bytes);
                    return Message::Carried { done: true, value, expires_ms };
                }
                Ok(None) => Ok(false),
                Err(error) => Err(error),
            },
            Carrying::Set => self.write(key, value, If::Always).await,
            Carrying::Insert => self.write(key, value, If::Absent).await,
            Carrying::Update => self.write(key, value, If::Present).await,
            Carrying::Delete => self.write(key, None, If::Present).await,
        };
        match done {
            Ok(done) => Message::Carried { done, value: Payload::default(), expires_ms: 0 },
            Err(error) => {
                tracing::debug!(%error, "a request of another node");
                self.declined(crate::wire::Why::Busy)
            }
        }
    }
}
