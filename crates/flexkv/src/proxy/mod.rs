//! The partitions that this node serves: as their proxy, or looking after them.
//!
//! Every partition has one compute node. If it is **offloaded**, the node is its proxy: the slots
//! are in its memory, it alone changes them, and tells the copies in the pool beforehand. If not,
//! clients update slots one-sided, and the node does what changes the *structure*: inserts, which
//! must see each other lest a key come in twice, and deletions; and it settles what a client that
//! died left pending (decision 0016).
//!
//! A write of a proxied partition, which has its slot to itself (others fail at once), in this
//! order:
//!
//! 1. The new record is on all its copies (its writer sees to that). The old record loses its valid
//!    bit on all copies, if more than a few may have cached its address ([decision 0021]: most
//!    records of keys that are written a lot are superseded before many have asked for them), and
//!    always if an insert wrote it or a deletion removes it.
//! 2. The new word is written on all copies of the index.
//! 3. Everybody who may have cached the old pair, or is one of a few who may have the address,
//!    acknowledges that it is gone, or its lease has run out (`invalidation.rs`): behind 2 if
//!    somebody has the pair, so that it serves that long; otherwise beside it.
//! 4. The word is swapped here: the commit point. If somebody was told the old address since its
//!    bit was left, that is cleared first. 5. The answer.
//!
//! What is searched for is answered from the slots here, at the moment of the answer; "cache it" is
//! not answered for a slot whose write has begun with 3. **Why a reader never sees anything out of
//! turn.** Before 4 nobody reads the new value: the slots here name the old record, and the copies
//! of the index in the pool are read by writers alone. After 4 nobody reads the old one: a cached
//! pair went at 3; a cached address went, too, or leads to a record without its valid bit, and is
//! not believed; whoever read the record before it lost that bit, read before 4. Between 1 and 4
//! who has cached the address asks here, is told the old word, and takes the record for what it is,
//! valid bit or not: it was the newest when the slot was looked up, and its bytes stay for an
//! address lease. **Why 1 is before 2.** Whoever wrote the old record and never heard of it goes by
//! its bit once another word is in the copies ([`crate::client`]): it must not stand then. A proxy
//! that dies between leaves a record without its valid bit in the index: it is read like any other,
//! but its address is not cached before the key is written again. A proxy that dies behind 2 has
//! written: its successor finds the new word, and all caches of the partition are empty by then.
//!
//! Invariants: 1. nothing is answered without the pool's lease: who was taken for dead serves
//! nothing; 2. a slot here differs from the pool's copies only while its write is under way; 3. a
//! slot that was deleted is used again when a lease has passed by this node's clock, and a lease
//! after this node took the partition; so a write may act on a position that was confirmed less
//! than a lease ago, whatever word is there by now ([`SlotLease`](crate::lease::SlotLease)); 4. a
//! record that is superseded without losing its valid bit has an address that nobody but writers
//! knows. Paper: §4.3.1, §4.4, §4.5; what was told is ours.
//!
//! [decision 0021]: ../../../../docs/decisions/0021-flexkv-invalidation-of-cached-addresses.md

mod invalidation;
mod served;
mod unfinished;

use std::pin::Pin;
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_base::runtime::together;
use archipelago_fabric::ClientId;
use archipelago_pool::Address;
use parking_lot::Mutex;
use std::hint::black_box;

use crate::format::{Bucket, Candidates, KeyHash, Slot, SlotIndex};
use crate::ids::{ComputeId, PartitionId};
use crate::lease::Stamp;
use crate::node::Inner;
use crate::protocol::{IndexProtocol as _, SlotChange, SlotOutcome};
use crate::sharers::Told;
use crate::table::FromCopy;
use crate::wire::{
    Assigned, Candidate, Grant, Message, Place, ReadCount, SLOTS_BUCKETS_MAX, Why, WriteKind,
};
use crate::write_error::WriteEffect;

pub(crate) use invalidation::Leases;
use served::Locked;
pub(crate) use served::{
    Ahead, AtOnce, Due, Offloaded, Overwrite, Served, Target, Writer, overwrite,
};
pub(crate) use unfinished::Unfinished;

type Preparing<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// The partitions that are served here.
#[derive(Debug, Default)]
pub(crate) struct Proxy {
    /// By number.
    partitions: Mutex<Vec<Option<Arc<Served>>>>,
}

impl Proxy {
    pub(crate) fn get(&self, partition: PartitionId, epoch: u32) -> Option<Arc<Served>> {
        let partitions = self.partitions.lock();
        let served = partitions.get(partition.0 as usize)?.as_ref();
        served.filter(|served| served.assigned.epoch == epoch).cloned()
    }

    /// The same of several; `None` for those that are not served here at that epoch.
    pub(crate) fn get_all<'a>(
        &self,
        wanted: impl Iterator<Item = &'a Assigned> + Clone,
    ) -> Vec<Option<Arc<Served>>> {
        let partitions = self.partitions.lock();
        let get = |entry: &Assigned| partitions.get(entry.partition as usize)?.as_ref();
        // To count a reference waits for its memory, one after another; to look at it does not.
        wanted.clone().for_each(|entry| _ = black_box(get(entry).map(Arc::strong_count)));
        let of_epoch =
            |entry: &Assigned| get(entry).filter(|served| served.assigned.epoch == entry.epoch);
        wanted.map(|entry| of_epoch(entry).cloned()).collect()
    }

    pub(crate) fn set(&self, partition: PartitionId, served: Option<Arc<Served>>) {
        let at = partition.0 as usize;
        let mut partitions = self.partitions.lock();
        if partitions.len() <= at {
            partitions.resize(at + 1, None);
        }
        let before = std::mem::replace(&mut partitions[at], served);
        drop(partitions);
        drop(before);
    }

    /// Lets nobody in any more.
    pub(crate) fn close(&self, partition: PartitionId) -> Option<Arc<Served>> {
        let served = self.partitions.lock().get(partition.0 as usize).cloned().flatten();
        if let Some(served) = &served {
            served.gate.close(Served::DOOR);
        }
        served
    }

    /// Waits until nobody is within, and lets it go: if it is served again, it is taken anew.
    pub(crate) async fn let_go(&self, closed: Arc<Served>) {
        closed.gate.drained(Served::DOOR).await;
        let mut partitions = self.partitions.lock();
        if let Some(place) = partitions.get_mut(closed.assigned.partition as usize)
            && place.as_ref().is_some_and(|served| Arc::ptr_eq(served, &closed))
        {
            *place = None;
        }
    }

    /// How many partitions are served, and of how many this node is the proxy.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let partitions = self.partitions.lock();
        let served = partitions.iter().flatten();
        (served.clone().count(), served.filter(|served| served.words.is_some()).count())
    }
}

/// A write, as it is asked for.
#[derive(Clone, Copy, Debug)]
struct Wanted<'a> {
    hash: KeyHash,
    kind: WriteKind,
    index: SlotIndex,
    expect: Slot,
    /// The slot must hold `expect`; otherwise the stamp may suffice.
    exact: bool,
    new: Slot,
    others: &'a [Place],
    /// This node's clock before the client looked.
    stamp: Stamp,
    /// Until when what the client saw counts, by this node's clock.
    valid_ns: u64,
    /// Reads of the key by the client's cache.
    reads: u32,
    from: ClientId,
    /// This node's clock when the request came.
    came_us: u64,
}

impl Inner {
    /// Where a key may lie in a partition that this node is the proxy of.
    pub(crate) fn search(
        &self,
        from: ClientId,
        (partition, epoch): (PartitionId, u32),
        hash: KeyHash,
        reads: u32,
    ) -> Message {
        // What this node caches of its own costs no message when it is written, but may take the
        // place of what is worth more.
        let always = from == self.pool.client() && self.caching.has_room();
        self.found_in(from, (partition, epoch), |served, sharer| {
            served.search(hash, reads.saturating_add(1), (sharer, always))
        })
    }

    /// The same for a write: nobody reads by what is told.
    pub(crate) fn locate(
        &self,
        from: ClientId,
        (partition, epoch): (PartitionId, u32),
        hash: KeyHash,
    ) -> Message {
        self.found_in(from, (partition, epoch), |served, _| {
            let place = |(index, slot): (SlotIndex, Slot)| Candidate {
                index: index.0,
                word: slot.0,
                cache: false,
            };
            let candidates = served.candidates(hash)?;
            Some(candidates.matching(hash.fingerprint()).map(place).collect())
        })
    }

    /// What `look` finds in a partition that this node is the proxy of, for `from`, with its lease;
    /// `look` gets as whom that may cache pairs.
    fn found_in(
        &self,
        from: ClientId,
        (partition, epoch): (PartitionId, u32),
        look: impl FnOnce(&Served, Option<ComputeId>) -> Option<Vec<Candidate>>,
    ) -> Message {
        // Before it looks: what is deleted later is deleted after that.
        let stamp_us = self.now_us();
        let Some(served) = self.proxy.get(partition, epoch) else {
            return self.declined(Why::Moved);
        };
        let Some(_inside) = served.gate.try_enter(Served::DOOR) else {
            return self.declined(Why::Moved);
        };
        let (grant, sharer) = self.lease_to(from, stamp_us);
        let Some(slots) = look(&served, sharer) else { return self.declined(Why::Moved) };
        self.fenced().unwrap_or(Message::Found { slots, grant })
    }

    /// Answers a scan with the committed slots of some buckets of a partition that this node is the
    /// proxy of. The asker reads the records within an address lease and caches nothing.
    pub(crate) fn slots_of_buckets(
        &self,
        (partition, epoch): (PartitionId, u32),
        bucket: u32,
        buckets: u32,
    ) -> Message {
        if buckets > SLOTS_BUCKETS_MAX {
            return self.declined(Why::Malformed);
        }
        let Some(served) = self.proxy.get(partition, epoch) else {
            return self.declined(Why::Moved);
        };
        let Some(_inside) = served.gate.try_enter(Served::DOOR) else {
            return self.declined(Why::Moved);
        };
        let Some(words) = served.words_of_buckets(bucket, buckets) else {
            return self.declined(Why::Malformed);
        };
        self.fenced().unwrap_or(Message::SlotsAre { words })
    }

    /// Reads that a cache served; a count of another epoch says nothing.
    pub(crate) fn count_reads(&self, partition: PartitionId, epoch: u32, counts: &[ReadCount]) {
        if let Some(served) = self.proxy.get(partition, epoch) {
            served.count_reads(counts);
        }
    }

    /// A write of another node, or of this one.
    pub(crate) async fn write_index(
        self: &Arc<Self>,
        from: ClientId,
        message: &Message,
    ) -> Message {
        let came_us = self.now_us();
        let Message::Write {
            partition,
            epoch,
            hash,
            kind,
            index,
            expect,
            exact,
            new,
            others,
            stamp_us,
            reads,
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
            exact: *exact,
            new: Slot(*new),
            others,
            stamp: Stamp { epoch: *epoch, at_us: *stamp_us },
            valid_ns: stamp_us.saturating_mul(1000).saturating_add(self.settings.address_use_ns()),
            reads: *reads,
            from,
            came_us,
        };
        // Before the time is looked at: a sweep that does not see it here knows that it is too
        // late.
        let _incoming = served.announce(wanted.new.0);
        if self.now_ns() >= wanted.valid_ns {
            // Words that the client saw may name other records by now.
            return self.declined(Why::Resolve);
        }
        match self.write_wanted(&served, wanted).await {
            Ok(Ok(written)) => written,
            Ok(Err(why)) => self.declined(why),
            Err(error) => {
                tracing::debug!(%error, "a write of the index did not end");
                self.declined(Why::Fenced)
            }
        }
    }

    async fn write_wanted(
        self: &Arc<Self>,
        served: &Arc<Served>,
        wanted: Wanted<'_>,
    ) -> Result<Result<Message, Why>> {
        let named = match wanted.kind {
            WriteKind::Delete => wanted.expect.is_live() && !wanted.expect.is_dying(),
            WriteKind::Insert | WriteKind::Update => wanted.new.is_live() && !wanted.new.is_dying(),
        };
        if !named || !served.holds(wanted.index) {
            return Ok(Err(Why::Malformed));
        }
        if served.words.is_some() {
            return self.write_proxied(served, wanted).await;
        }
        let done = self.write_structure(served, wanted).await?;
        Ok(done.map(|place| {
            let (grant, _) = self.lease_to(wanted.from, wanted.came_us);
            Message::Written { place, cache: false, yours: false, grant }
        }))
    }

    async fn write_proxied(
        self: &Arc<Self>,
        served: &Arc<Served>,
        wanted: Wanted<'_>,
    ) -> Result<Result<Message, Why>> {
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
        if wanted.kind != WriteKind::Insert && !self.is_still_there(served, wanted, old) {
            return Ok(Err(Why::Resolve));
        }
        let end = match wanted.kind {
            WriteKind::Delete => self.deleted_now(),
            _ => wanted.new,
        };
        let written = (index, old, end);
        let (cache, grant) = match self.supersede(served, wanted, written).await {
            Ok(superseded) => superseded,
            Err(error) => {
                self.have_swept(served.assigned, old);
                return Err(error);
            }
        };
        // The writer holds the word that it named, and gives it back without a message if it lies
        // in a block of its own.
        let yours = old == wanted.expect && self.is_block_of(old, wanted.from);
        if !yours {
            self.free_later(old);
        }
        let place = Place { index: index.0, word: old.0 };
        Ok(Ok(Message::Written { place, cache, yours, grant }))
    }

    /// Writes `end` over `old`, in the pool and here; whether the writer may cache the pair, and
    /// its lease. After an error the next map says whether it happened.
    async fn supersede(
        &self,
        served: &Arc<Served>,
        wanted: Wanted<'_>,
        (index, old, end): (SlotIndex, Slot, Slot),
    ) -> Result<(bool, Grant)> {
        let address = self.table.slot(served.assigned.shape, index);
        let skips = self.table.sabotage.no_clearing();
        let always =
            wanted.kind != WriteKind::Update || self.table.protocol.clears_every_valid_bit();
        // A pair may be cached, and serve, until the copies have the new word: a key that is
        // written all the time is read from caches in between.
        let late = served.has_pairs(index);
        let mut clears = !skips && (always || served.has_others(index));
        if late {
            self.prepare_commit(served, (address, end), Some(old).filter(|_| clears)).await?;
        }
        let Told { sharers, pairs, others } = served.take_told(index);
        self.drop_own(sharers, wanted.hash);
        // Who has a pair has to be told.
        let messages = pairs || self.are_few(sharers, wanted.from);
        clears |= !skips && !late && (others || !messages);
        let preparing = async {
            if late {
                return Ok(());
            }
            self.prepare_commit(served, (address, end), Some(old).filter(|_| clears)).await
        };
        if messages && !sharers.is_empty() {
            let telling = self.tell_sharers(sharers, wanted.hash);
            let both: [Preparing<'_>; 2] = [Box::pin(preparing), Box::pin(telling)];
            together(both).await.into_iter().collect::<Result<()>>()?;
        } else {
            preparing.await?;
        }
        let (grant, sharer) = self.lease_to(wanted.from, wanted.came_us);
        loop {
            let (slot, counts) = ((index, old, end), (clears || skips, wanted.reads));
            if let Some(cache) = served.commit(slot, wanted.kind, counts, sharer) {
                return Ok((cache, grant));
            }
            clears = true;
            self.prepare_commit(served, (address, end), Some(old)).await?;
        }
    }

    /// The old record without its valid bit, if it is to lose it; then the new word on all copies.
    /// The copies may be ahead of the slot here from now on, which sweeps and the next writer go
    /// by: it ends, or this node does, or the partition is taken anew and the copies decide.
    async fn prepare_commit(
        &self,
        served: &Served,
        new: (Address, Slot),
        old: Option<Slot>,
    ) -> Result<()> {
        while let Err(error) = self.write_copies(new, old).await {
            if self.pool.is_evicted() || served.gate.is_closed(Served::DOOR) {
                return Err(error);
            }
            tracing::debug!(%error, "a write of the index goes on");
            self.pause().await;
        }
        Ok(())
    }

    /// May be done again.
    async fn write_copies(&self, (slot, end): (Address, Slot), old: Option<Slot>) -> Result<()> {
        if let Some(old) = old {
            self.table.invalidate(old, u64::MAX).await?;
        }
        if !self.table.protocol.writes_index_copies() {
            return Ok(());
        }
        self.table.write(&[(slot, &end.0.to_le_bytes())], u64::MAX).await
    }

    /// Whether a slot that holds `old` is the one that the client found its key in.
    fn is_still_there(&self, served: &Served, wanted: Wanted<'_>, old: Slot) -> bool {
        let fresh = !wanted.exact && served.lease.accepts(wanted.stamp, self.now_us());
        old.is_live() && (old == wanted.expect || fresh && old.matches(wanted.hash.fingerprint()))
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
                let candidates =
                    self.table.candidates(FromCopy::First, shape, wanted.hash, until_ns).await?;
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
        let change = SlotChange { slot: self.table.slot(shape, index), old, new: wanted.new, end };
        let held = vec![self.frees.hold(old), self.frees.hold(wanted.new)];
        match self.table.put(change, wanted.valid_ns, until_ns).await {
            Err(failed) if failed.effect() == WriteEffect::None => {
                tracing::debug!(%failed, "a write of the index did not begin");
                Ok(Err(Why::Busy))
            }
            Err(failed) => {
                let (entry, structure) = (served.assigned, Some((Arc::clone(served), index)));
                self.finish_later(Unfinished { entry, change, structure }, held);
                Err(failed.into_error())
            }
            Ok(SlotOutcome::Lost(_)) => Ok(Err(Why::Resolve)),
            Ok(SlotOutcome::Done) => {
                self.free_later(old);
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

    /// A slot for a key that the client did not find: no slot with its fingerprint may hold
    /// anything that the client did not see.
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
        let now_us = self.now_us();
        let mut full = true;
        for (index, slot) in candidates.reusable(now_us, self.settings.lease_us()) {
            full = false;
            if served.lease.may_reuse(slot, now_us) && inserting.add(index) {
                return Ok((index, inserting));
            }
        }
        Err(if full && candidates.is_crowded() { Why::Full } else { Why::Busy })
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
        let _held = self.frees.hold(old);
        let mut stamp = || self.deleted_now();
        let (end, _) = self.table.settled(pending, &mut stamp, until_ns).await?;
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
