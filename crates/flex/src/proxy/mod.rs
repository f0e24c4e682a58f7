//! The partitions that this node serves: as their proxy, or looking after them.
//!
//! Every partition has one compute node. If it is **offloaded**, the node is its proxy: the slots are in its memory, it alone
//! changes them, and tells the copies in the pool beforehand. If not, clients update slots one-sided, and the node does
//! what changes the *structure*: inserts, which must see each other lest a key come in twice, and deletions; and it settles
//! what a client that died left pending (decision 0016).
//!
//! A write of a proxied partition: the word goes to all copies in the pool while the old record loses its valid bit; then the word is
//! swapped here, which is the commit point; then the answer. One write of a slot at a time; others fail at once. What is searched
//! for is answered from the slots here, at the moment of the answer.
//!
//! Invariants: 1. nothing is answered without the pool's lease: who was taken for dead serves nothing; 2. a slot here differs from the
//! pool's copies only while its write is under way; 3. a slot that was deleted is used again when a lease has passed by this node's clock,
//! and a lease after this node took the partition. Paper: §4.3.1, §4.5.

mod served;

use std::sync::Arc;

use archipelago_base::Result;
use archipelago_fabric::ClientId;
use parking_lot::Mutex;
use std::collections::BTreeMap;

use crate::format::{Bucket, Candidates, KeyHash, Slot, SlotIndex};
use crate::ids::PartitionId;
use crate::node::Inner;
use crate::onesided::{Change, Put};
use crate::rivals::Rival;
use crate::wire::{Message, Place, Why, WriteKind};

use served::Locked;
pub(crate) use served::Served;

/// The partitions that are served here.
#[derive(Debug, Default)]
pub(crate) struct Proxy {
    partitions: Mutex<BTreeMap<PartitionId, Arc<Served>>>,
}

impl Proxy {
    pub(crate) fn get(&self, partition: PartitionId, epoch: u32) -> Option<Arc<Served>> {
        let partitions = self.partitions.lock();
        partitions.get(&partition).filter(|served| served.assigned.epoch == epoch).cloned()
    }

    pub(crate) fn set(&self, partition: PartitionId, served: Option<Arc<Served>>) {
        let mut partitions = self.partitions.lock();
        match served {
            Some(served) => partitions.insert(partition, served),
            None => partitions.remove(&partition),
        };
    }

    pub(crate) fn close(&self, partition: PartitionId) {
        if let Some(served) = self.partitions.lock().get(&partition) {
            served.gate.close(Served::DOOR);
        }
    }

    pub(crate) async fn drained(&self, partition: PartitionId) {
        let served = self.partitions.lock().get(&partition).cloned();
        if let Some(served) = served {
            served.gate.drained(Served::DOOR).await;
        }
    }
}

/// A write, as it is asked for.
#[derive(Clone, Copy, Debug)]
struct Wanted<'a> {
    hash: KeyHash,
    kind: WriteKind,
    index: SlotIndex,
    expect: Slot,
    new: Slot,
    others: &'a [Place],
    /// Until when what the client saw counts, by this node's clock.
    valid_ns: u64,
}

impl Inner {
    /// Where a key may lie in a partition that this node is the proxy of.
    pub(crate) fn search(&self, partition: PartitionId, epoch: u32, hash: u64) -> Message {
        let Some(served) = self.proxy.get(partition, epoch) else {
            return self.declined(Why::Moved);
        };
        let Some(_inside) = served.gate.try_enter(Served::DOOR) else {
            return self.declined(Why::Moved);
        };
        let Some(candidates) = served.candidates(KeyHash(hash)) else {
            return self.declined(Why::Moved);
        };
        if let Some(fenced) = self.fenced() {
            return fenced;
        }
        let place = |(index, slot): (SlotIndex, Slot)| Place { index: index.0, word: slot.0 };
        let slots = candidates.matching(KeyHash(hash).fingerprint()).map(place).collect();
        Message::Found { slots, cache: false, grant: self.grant() }
    }

    /// A write of another node, or of this one.
    pub(crate) async fn write_index(
        self: &Arc<Self>,
        _from: ClientId,
        message: &Message,
    ) -> Message {
        let Message::Write {
            partition,
            epoch,
            hash,
            kind,
            index,
            expect,
            new,
            others,
            stamp_us,
            ..
        } = message
        else {
            return self.declined(Why::Malformed);
        };
        let Some(served) = self.proxy.get(PartitionId(*partition), *epoch) else {
            return self.declined(Why::Moved);
        };
        let Some(_inside) = served.gate.try_enter(Served::DOOR) else {
            return self.declined(Why::Moved);
        };
        if let Some(fenced) = self.fenced() {
            return fenced;
        }
        let wanted = Wanted {
            hash: KeyHash(*hash),
            kind: *kind,
            index: SlotIndex(*index),
            expect: Slot(*expect),
            new: Slot(*new),
            others,
            valid_ns: stamp_us
                .saturating_mul(1000)
                .saturating_add(self.settings.address_lease_ns()),
        };
        if self.now_ns() >= wanted.valid_ns {
            // Words that the client saw may name other records by now.
            return self.declined(Why::Resolve);
        }
        let named = *kind == WriteKind::Delete && served.words.is_some() || wanted.new.is_live();
        if !named || !served.holds(wanted.index) {
            return self.declined(Why::Malformed);
        }
        let done = match &served.words {
            Some(_) => self.write_proxied(&served, wanted).await,
            None => self.write_structure(&served, wanted).await,
        };
        match done {
            Ok(Ok(place)) => Message::Written { place, cache: false, grant: self.grant() },
            Ok(Err(why)) => self.declined(why),
            Err(error) => {
                tracing::debug!(%error, "a write of the index did not end");
                self.declined(Why::Fenced)
            }
        }
    }

    async fn write_proxied(
        self: &Arc<Self>,
        served: &Arc<Served>,
        wanted: Wanted<'_>,
    ) -> Result<Result<Place, Why>> {
        let Some(words) = &served.words else { return Ok(Err(Why::Moved)) };
        let (index, _locked) = match wanted.kind {
            WriteKind::Insert => {
                let Some(candidates) = served.candidates(wanted.hash) else {
                    return Ok(Err(Why::Moved));
                };
                match self.place_for(served, wanted, &candidates) {
                    Ok(placed) => placed,
                    Err(why) => return Ok(Err(why)),
                }
            }
            _ => match served.lock(wanted.index) {
                Some(locked) => (wanted.index, locked),
                None => return Ok(Err(Why::Busy)),
            },
        };
        let old = words.load(index);
        if wanted.kind != WriteKind::Insert && (old != wanted.expect || !old.is_live()) {
            return Ok(Err(Why::Resolve));
        }
        let end = match wanted.kind {
            WriteKind::Delete => self.deleted_now(),
            _ => wanted.new,
        };
        let until_ns = u64::MAX;
        let address = self.table.slot(served.assigned.shape, index);
        let bytes = end.0.to_le_bytes();
        let invalid = crate::format::INVALID_WORD.to_le_bytes();
        // A metadata server keeps its index to itself.
        let pooled = self.table.rival != Some(Rival::Clover);
        let mut writes: Vec<(_, &[u8])> = Vec::new();
        writes.extend(pooled.then_some((address, &bytes[..])));
        if old.is_live()
            && let Some(range) = self.table.record(old)
        {
            writes.push((range.address, &invalid));
        }
        // Ends, or this node does: nobody else may go on from here.
        self.table.write(&writes, until_ns).await?;
        words.commit(index, old, end);
        self.free_later(old);
        Ok(Ok(Place { index: index.0, word: old.0 }))
    }

    /// Inserts and deletions of a partition that clients update one-sided.
    async fn write_structure(
        self: &Arc<Self>,
        served: &Arc<Served>,
        wanted: Wanted<'_>,
    ) -> Result<Result<Place, Why>> {
        let until_ns = self.until_ns();
        let shape = served.assigned.shape;
        let (index, old, end, _locked) = match wanted.kind {
            WriteKind::Update => return Ok(Err(Why::Malformed)),
            WriteKind::Delete => {
                let Some(locked) = served.lock(wanted.index) else { return Ok(Err(Why::Busy)) };
                (wanted.index, wanted.expect, self.deleted_now(), locked)
            }
            WriteKind::Insert => {
                let Some(inserting) = served.insert(wanted.hash) else {
                    return Ok(Err(Why::Busy));
                };
                let candidates = self.table.candidates(shape, wanted.hash, until_ns).await?;
                match self.place_for_locked(served, wanted, &candidates, inserting) {
                    Ok((index, locked)) => {
                        let held = candidates.all().find(|(at, _)| *at == index);
                        let old = held.map_or(Slot::EMPTY, |(_, slot)| slot);
                        (index, old, wanted.new, locked)
                    }
                    Err(why) => return Ok(Err(why)),
                }
            }
        };
        let change = Change { slot: self.table.slot(shape, index), old, new: wanted.new, end };
        match self.table.put(change, wanted.valid_ns, until_ns).await? {
            Put::Lost(_) | Put::Superseded => Ok(Err(Why::Resolve)),
            Put::Done => {
                self.free_later(old);
                if wanted.kind == WriteKind::Delete {
                    self.free_later(wanted.new);
                }
                Ok(Ok(Place { index: index.0, word: old.0 }))
            }
        }
    }

    fn place_for<'a>(
        &self,
        served: &'a Arc<Served>,
        wanted: Wanted<'_>,
        candidates: &Candidates,
    ) -> Result<(SlotIndex, Locked<'a>), Why> {
        let inserting = served.insert(wanted.hash).ok_or(Why::Busy)?;
        self.place_for_locked(served, wanted, candidates, inserting)
    }

    /// A slot for a key that the client did not find: no slot with its fingerprint may hold anything that the client did not see.
    fn place_for_locked<'a>(
        &self,
        served: &'a Arc<Served>,
        wanted: Wanted<'_>,
        candidates: &Candidates,
        mut inserting: Locked<'a>,
    ) -> Result<(SlotIndex, Locked<'a>), Why> {
        let fingerprint = wanted.hash.fingerprint();
        let seen = |index: SlotIndex, slot: Slot| {
            wanted.others.iter().any(|other| other.index == index.0 && other.word == slot.0)
        };
        let named = |slot: &Slot| slot.is_live() || slot.is_pending();
        let mut same =
            candidates.all().filter(|(_, slot)| named(slot) && slot.0 as u8 == fingerprint);
        if same.any(|(index, slot)| !seen(index, slot)) {
            return Err(Why::Resolve);
        }
        let (now_us, lease_us) = (self.now_us(), self.settings.lease_us());
        let rested = now_us.saturating_sub(served.since_us) > lease_us;
        let mut full = true;
        for (index, slot) in candidates.reusable(now_us, lease_us) {
            full = false;
            if (slot == Slot::EMPTY || rested) && inserting.add(index) {
                return Ok((index, inserting));
            }
        }
        Err(if full { Why::Full } else { Why::Busy })
    }

    /// Somebody found a slot that stays pending. If its writer is gone, it is taken forward.
    pub(crate) async fn settle(
        self: &Arc<Self>,
        partition: PartitionId,
        epoch: u32,
        place: Place,
    ) -> Message {
        let Some(served) = self.proxy.get(partition, epoch) else {
            return self.declined(Why::Moved);
        };
        let Some(_inside) = served.gate.try_enter(Served::DOOR) else {
            return self.declined(Why::Moved);
        };
        match self.settle_slot(&served, place).await {
            Ok(()) => Message::Done {},
            Err(error) => {
                tracing::debug!(%error, "a pending slot was not settled");
                self.declined(Why::Busy)
            }
        }
    }

    async fn settle_slot(self: &Arc<Self>, served: &Arc<Served>, place: Place) -> Result<()> {
        let (pending, index) = (Slot(place.word), SlotIndex(place.index));
        if !pending.is_pending() || !served.holds(index) || served.words.is_some() {
            return Ok(());
        }
        let Some(_locked) = served.lock(index) else { return Ok(()) };
        let until_ns = self.until_ns();
        let range = self.slot_range(served.assigned.shape, index.0);
        if self.table.word(range.address, until_ns).await? != pending.0 {
            return Ok(());
        }
        let bytes = self.table.read_record(pending, until_ns).await?;
        let header = crate::format::Header::read(&bytes).ok().flatten();
        let Some(header) = header else { return Ok(()) };
        if !self.pool.is_gone(ClientId(header.writer)).await? {
            return Ok(());
        }
        let old = Slot(header.previous);
        let mut stamp = || self.deleted_now();
        let end = self.table.settled(pending, &mut stamp, until_ns).await?;
        // Nobody else writes a pending slot, and its writer cannot any more.
        self.table.write_backups(&[(range.address, &end.0.to_le_bytes())], until_ns).await?;
        self.table.swap(range.address, pending.0, end.0, until_ns).await?;
        self.free_later(old);
        Ok(())
    }
}

/// The buckets of a key in words that lie in a row.
fn candidates_in(word: impl Fn(SlotIndex) -> Slot, hash: KeyHash, log2_buckets: u32) -> Candidates {
    let numbers = hash.buckets(log2_buckets);
    let bucket = |number: u32| {
        let mut bucket = Bucket::default();
        for (at, slot) in bucket.0.iter_mut().enumerate() {
            *slot = word(SlotIndex::new(number, at));
        }
        bucket
    };
    Candidates::new(numbers, numbers.map(bucket))
}
