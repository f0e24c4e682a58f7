//! Writes of the index: how the node of a partition changes a slot on a client's request.
//!
//! A write of an offloaded partition locks its slot, so that a second write of the slot is declined
//! as busy. Its steps:
//!
//! 1. The client has written the new record to all its copies. If more than a few nodes may have
//!    cached the old record's address, the proxy clears the old record's valid bit on all copies
//!    ([decision 0021]). It always does so if an insert wrote the old record or if the write is a
//!    deletion. Most records of frequently written keys are superseded before many nodes have asked
//!    for them.
//! 2. The proxy writes the new word to all copies of the index in the pool.
//! 3. Every node that may have cached the old pair acknowledges an invalidation, or its lease runs
//!    out (`invalidation.rs`). The same holds for a few nodes that may have cached the address. If
//!    a node has the pair, this step follows step 2, so that the pair is served until then.
//!    Otherwise it runs in parallel with step 2.
//! 4. The proxy swaps the word in its memory. This is the commit point. If a node was given the old
//!    address after step 3 began while the old record keeps its valid bit, step 1 comes first.
//! 5. The proxy answers.
//!
//! Searches are answered from the slots in memory. Once step 3 of a write has begun, no node may
//! cache the pair of its slot.
//!
//! **Why reads are linearizable.** Before step 4 no reader sees the new value. The slots in memory
//! name the old record, and only writers read the copies of the index in the pool. After step 4 no
//! reader takes the old value for the newest. Cached pairs were dropped in step 3. A cached address
//! was dropped as well, or it leads to a record without its valid bit, which a reader does not
//! believe. A reader that read the record while it had the bit did so before step 4. Between step 1
//! and step 4, a node that cached the address asks the proxy and gets the old word. It takes the
//! record as it is, with or without its valid bit. The record was the newest at the look-up, and
//! its bytes stay for an address lease.
//!
//! **Why step 1 comes before step 2.** If the writer of the old record never got an answer, it
//! decides by the valid bit once it finds another word in the copies ([`crate::client`]). The bit
//! must be clear by then. If the proxy dies between the two steps, the index names a record without
//! its valid bit. Reads still return it, but no node caches its address before the key is written
//! again. If the proxy dies after step 2, the write has happened: the next proxy finds the new
//! word, and all caches of the partition are empty by then.
//!
//! Thread-safety: any thread may write. Writes of one slot exclude each other.
//! Failure: after step 2 has begun, an error leaves the outcome to the next owner of the partition.
//! The owner of the block in which the old record lies then sweeps it (`unfinished.rs`).
//! Cost: one round trip for each of steps 1 to 3 that is needed, and one lock per step.
//!
//! [decision 0021]: ../../../../docs/decisions/0021-flexkv-invalidation-of-cached-addresses.md

use std::pin::Pin;
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_base::runtime::join_all;
use archipelago_fabric::ClientId;
use archipelago_pool::Address;

use super::Proxy;
use super::served::{Clearing, CommitContext, CommitOutcome, Locked, ServedPartition, SlotWrite};
use super::unfinished::Unfinished;
use crate::format::{Candidates, Header, KeyHash, Slot, SlotIndex};
use crate::ids::PartitionId;
use crate::lease::Stamp;
use crate::protocol::{IndexProtocol as _, SlotChange, SlotOutcome};
use crate::sharers::SlotReaders;
use crate::table::FromCopy;
use crate::wire::{Grant, Message, Place, Why, WriteKind};
use crate::write_error::WriteEffect;

type Preparing<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// A write of the index that a client asks for.
#[derive(Clone, Copy, Debug)]
struct IndexWrite<'a> {
    hash: KeyHash,
    kind: WriteKind,
    index: SlotIndex,
    expect: Slot,
    /// Whether the slot must hold `expect`. If not, a fresh stamp suffices.
    exact: bool,
    new: Slot,
    others: &'a [Place],
    /// This node's clock before the client looked the key up.
    stamp: Stamp,
    /// Time by this node's clock until which the words that the client saw name the same records.
    valid_ns: u64,
    /// Number of reads of the key that the client's cache served.
    reads: u32,
    from: ClientId,
    /// This node's clock when the request arrived.
    came_us: u64,
}

/// A word that all copies of a slot are to hold.
#[derive(Clone, Copy, Debug)]
struct CopiedWord {
    address: Address,
    word: Slot,
}

impl Proxy {
    /// Performs a write that another node, or this one, asks for.
    pub(crate) async fn write_index(
        self: &Arc<Self>,
        from: ClientId,
        message: &Message,
    ) -> Message {
        let came_us = self.node.now_us();
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
            return self.node.declined(Why::Malformed);
        };
        let Some(served) = self.get(PartitionId(*partition), *epoch) else {
            return self.node.declined(Why::Moved);
        };
        let Some(_inside) = served.try_enter() else {
            return self.node.declined(Why::Moved);
        };
        if let Some(fenced) = self.node.fenced() {
            return fenced;
        }
        let write = IndexWrite {
            hash: KeyHash(*hash),
            kind: *kind,
            index: SlotIndex(*index),
            expect: Slot(*expect),
            exact: *exact,
            new: Slot(*new),
            others,
            stamp: Stamp { epoch: *epoch, at_us: *stamp_us },
            valid_ns: stamp_us
                .saturating_mul(1000)
                .saturating_add(self.node.settings().address_use_ns()),
            reads: *reads,
            from,
            came_us,
        };
        // Announced before the clock is read. A sweep that does not see the word here then knows
        // that the write comes too late.
        let _incoming = served.announce(write.new.0);
        if self.node.now_ns() >= write.valid_ns {
            // The words that the client saw may name other records by now.
            return self.node.declined(Why::Resolve);
        }
        match self.write_slot(&served, write).await {
            Ok(Ok(written)) => written,
            Ok(Err(why)) => self.node.declined(why),
            Err(error) => {
                tracing::debug!(%error, "a write of the index did not end");
                self.node.declined(Why::Fenced)
            }
        }
    }

    async fn write_slot(
        self: &Arc<Self>,
        served: &Arc<ServedPartition>,
        write: IndexWrite<'_>,
    ) -> Result<Result<Message, Why>> {
        let named = match write.kind {
            WriteKind::Delete => write.expect.is_live() && !write.expect.is_dying(),
            WriteKind::Insert | WriteKind::Update => write.new.is_live() && !write.new.is_dying(),
        };
        if !named || !served.holds(write.index) {
            return Ok(Err(Why::Malformed));
        }
        if served.is_offloaded() {
            return self.write_proxied(served, write).await;
        }
        let done = self.write_structure(served, write).await?;
        Ok(done.map(|place| {
            let (grant, _) = self.lease_to(write.from, write.came_us);
            Message::Written { place, cache: false, yours: false, grant }
        }))
    }

    async fn write_proxied(
        self: &Arc<Self>,
        served: &Arc<ServedPartition>,
        write: IndexWrite<'_>,
    ) -> Result<Result<Message, Why>> {
        let (index, _locked) = match write.kind {
            WriteKind::Insert => {
                // The key is locked before its slots are read. So a word with its fingerprint is
                // among the candidates, or it comes in after this write.
                let Some(inserting) = served.insert(write.hash) else {
                    return Ok(Err(Why::Busy));
                };
                let Some(candidates) = served.candidates(write.hash) else {
                    return Ok(Err(Why::Moved));
                };
                match self.place_for(served, write, &candidates, inserting) {
                    Ok(placed) => placed,
                    Err(why) => return Ok(Err(why)),
                }
            }
            _ => match served.lock(write.index) {
                Some(locked) => (write.index, locked),
                None => return Ok(Err(Why::Busy)),
            },
        };
        let Some(old) = served.load(index) else { return Ok(Err(Why::Moved)) };
        if write.kind != WriteKind::Insert && !self.is_still_there(served, write, old) {
            return Ok(Err(Why::Resolve));
        }
        let end = match write.kind {
            WriteKind::Delete => self.node.deleted_now(),
            _ => write.new,
        };
        let change = SlotWrite { index, old, new: end, kind: write.kind };
        let (cache, grant) = match self.supersede(served, write, change).await {
            Ok(superseded) => superseded,
            Err(error) => {
                self.request_sweep(served.assigned(), old);
                return Err(error);
            }
        };
        // The writer holds the word that it named. If the record lies in one of the writer's own
        // blocks, the writer gives it back without a message.
        let yours = old == write.expect && self.node.is_block_of(old, write.from);
        if !yours {
            self.node.free_later(old);
        }
        let place = Place { index: index.0, word: old.0 };
        Ok(Ok(Message::Written { place, cache, yours, grant }))
    }

    /// Changes a slot in the pool and here. Returns whether the writer may cache the pair, and the
    /// writer's lease. After an error, the next map decides whether the write happened.
    async fn supersede(
        &self,
        served: &Arc<ServedPartition>,
        write: IndexWrite<'_>,
        change: SlotWrite,
    ) -> Result<(bool, Grant)> {
        let SlotWrite { index, old, new, .. } = change;
        let copies =
            CopiedWord { address: self.node.table().slot(served.shape(), index), word: new };
        let skips = self.node.table().sabotage().no_clearing();
        let always = write.kind != WriteKind::Update
            || self.node.table().protocol().clears_every_valid_bit();
        // Pairs are invalidated only after the copies have the new word. So caches serve a
        // frequently written key for as long as possible.
        let late = served.has_pairs(index);
        let mut clears = !skips && (always || served.has_untracked(index));
        if late {
            self.prepare_commit(served, copies, Some(old).filter(|_| clears)).await?;
        }
        let SlotReaders { sharers, has_pairs, has_untracked } = served.take_readers(index);
        self.drop_own(sharers, write.hash);
        // A node that may have the pair must be invalidated by a message.
        let messages = has_pairs || self.are_few(sharers, write.from);
        clears |= !skips && !late && (has_untracked || !messages);
        let preparing = async {
            if late {
                return Ok(());
            }
            self.prepare_commit(served, copies, Some(old).filter(|_| clears)).await
        };
        if messages && !sharers.is_empty() {
            let telling = self.invalidate_sharers(sharers, write.hash);
            let both: [Preparing<'_>; 2] = [Box::pin(preparing), Box::pin(telling)];
            join_all(both).await.into_iter().collect::<Result<()>>()?;
        } else {
            preparing.await?;
        }
        let (grant, sharer) = self.lease_to(write.from, write.came_us);
        loop {
            let old_record = if clears || skips { Clearing::Done } else { Clearing::Pending };
            let context = CommitContext { old_record, reads: write.reads, sharer };
            if let CommitOutcome::Committed { may_cache } = served.commit(change, context) {
                return Ok((may_cache, grant));
            }
            clears = true;
            self.prepare_commit(served, copies, Some(old)).await?;
        }
    }

    /// Clears the valid bit of `old`, if it is given, and then writes the new word to all copies.
    ///
    /// From here on the copies may be ahead of the slot in memory, and sweeps and the next writer
    /// rely on the copies. So this call repeats the writes until they succeed, until this node is
    /// evicted, or until the partition's gate closes and its next owner decides by the copies.
    async fn prepare_commit(
        &self,
        served: &ServedPartition,
        new: CopiedWord,
        old: Option<Slot>,
    ) -> Result<()> {
        while let Err(error) = self.write_copies(new, old).await {
            if self.node.pool().is_evicted() || served.is_closed() {
                return Err(error);
            }
            tracing::debug!(%error, "a write of the index continues");
            self.node.pause().await;
        }
        Ok(())
    }

    /// Clears and writes the copies once. The call may be repeated.
    async fn write_copies(&self, new: CopiedWord, old: Option<Slot>) -> Result<()> {
        if let Some(old) = old {
            self.node.table().invalidate(old, u64::MAX).await?;
        }
        if !self.node.table().protocol().writes_index_copies() {
            return Ok(());
        }
        self.node.table().write(&[(new.address, &new.word.0.to_le_bytes())], u64::MAX).await
    }

    /// Whether a slot that holds `old` is the slot in which the client found its key.
    fn is_still_there(&self, served: &ServedPartition, write: IndexWrite<'_>, old: Slot) -> bool {
        let fresh = !write.exact && served.accepts(write.stamp, self.node.now_us());
        old.is_live() && (old == write.expect || fresh && old.matches(write.hash.fingerprint()))
    }

    /// Performs an insert or a deletion in a partition that clients update one-sided.
    async fn write_structure(
        self: &Arc<Self>,
        served: &Arc<ServedPartition>,
        write: IndexWrite<'_>,
    ) -> Result<Result<Place, Why>> {
        let until_ns = self.node.until_ns();
        let shape = served.shape();
        let (index, old, end, _locked) = match write.kind {
            WriteKind::Update => return Ok(Err(Why::Malformed)),
            WriteKind::Delete => {
                let Some(locked) = served.lock(write.index) else { return Ok(Err(Why::Busy)) };
                (write.index, write.expect, self.node.deleted_now(), locked)
            }
            WriteKind::Insert => {
                let Some(inserting) = served.insert(write.hash) else {
                    return Ok(Err(Why::Busy));
                };
                let candidates = self
                    .node
                    .table()
                    .candidates(FromCopy::First, shape, write.hash, until_ns)
                    .await?;
                match self.place_for(served, write, &candidates, inserting) {
                    Ok((index, locked)) => {
                        let held = candidates.all().find(|(at, _)| *at == index);
                        let old = held.map_or(Slot::EMPTY, |(_, slot)| slot);
                        (index, old, write.new, locked)
                    }
                    Err(why) => return Ok(Err(why)),
                }
            }
        };
        let change =
            SlotChange { slot: self.node.table().slot(shape, index), old, new: write.new, end };
        let held = vec![self.node.hold(old), self.node.hold(write.new)];
        match self.node.table().put(change, write.valid_ns, until_ns).await {
            Err(failed) if failed.effect() == WriteEffect::None => {
                tracing::debug!(%failed, "a write of the index did not begin");
                Ok(Err(Why::Busy))
            }
            Err(failed) => {
                let (entry, structure) = (served.assigned(), Some((Arc::clone(served), index)));
                self.finish_later(Unfinished { entry, change, structure }, held);
                Err(failed.into_error())
            }
            Ok(SlotOutcome::Lost(_)) => Ok(Err(Why::Resolve)),
            Ok(SlotOutcome::Done) => {
                self.node.free_later(old);
                Ok(Ok(Place { index: index.0, word: old.0 }))
            }
        }
    }

    /// Finds a slot for a key that is inserted. `inserting` has the key, and `candidates` were read
    /// after it was locked. A slot with the key's fingerprint must not hold a word that the client
    /// did not see, because that word may name a record of the key.
    fn place_for<'a>(
        &self,
        served: &'a Arc<ServedPartition>,
        write: IndexWrite<'_>,
        candidates: &Candidates,
        mut inserting: Locked<'a>,
    ) -> Result<(SlotIndex, Locked<'a>), Why> {
        let fingerprint = write.hash.fingerprint();
        let seen = |index: SlotIndex, slot: Slot| {
            write.others.iter().any(|other| other.index == index.0 && other.word == slot.0)
        };
        let named = |slot: &Slot| slot.is_live() || slot.is_pending();
        let mut same =
            candidates.all().filter(|(_, slot)| named(slot) && slot.0 as u8 == fingerprint);
        if same.any(|(index, slot)| !seen(index, slot)) {
            return Err(Why::Resolve);
        }
        let now_us = self.node.now_us();
        let mut full = true;
        for (index, slot) in candidates.reusable(now_us, self.node.settings().lease_us()) {
            full = false;
            if served.may_reuse(slot, now_us) && inserting.add(index, slot) {
                return Ok((index, inserting));
            }
        }
        Err(if full && candidates.is_crowded() { Why::Full } else { Why::Busy })
    }

    /// Settles a slot that a client found pending for long. Nothing happens while its writer lives.
    pub(crate) async fn settle(
        self: &Arc<Self>,
        partition: PartitionId,
        epoch: u32,
        place: Place,
    ) -> Message {
        let Some(served) = self.get(partition, epoch) else {
            return self.node.declined(Why::Moved);
        };
        let Some(_inside) = served.try_enter() else {
            return self.node.declined(Why::Moved);
        };
        match self.settle_slot(&served, place).await {
            Ok(()) => Message::Done {},
            Err(error) => {
                tracing::debug!(%error, "a pending slot was not settled");
                self.node.declined(Why::Busy)
            }
        }
    }

    async fn settle_slot(
        self: &Arc<Self>,
        served: &Arc<ServedPartition>,
        place: Place,
    ) -> Result<()> {
        let (pending, index) = (Slot(place.word), SlotIndex(place.index));
        if !pending.is_pending() || !served.holds(index) || served.is_offloaded() {
            return Ok(());
        }
        let Some(_locked) = served.lock(index) else { return Ok(()) };
        let until_ns = self.node.until_ns();
        let address = self.node.table().slot(served.shape(), index);
        if self.node.table().word(address, until_ns).await? != pending.0 {
            return Ok(());
        }
        let bytes = self.node.table().read_record(pending, until_ns).await?;
        let header = Header::read(&bytes).ok().flatten();
        let Some(header) = header else { return Ok(()) };
        if !self.node.pool().is_gone(ClientId(header.writer)).await? {
            return Ok(());
        }
        let old = Slot(header.previous);
        let _held = self.node.hold(old);
        let mut stamp = || self.node.deleted_now();
        let (end, _) = self.node.table().settled(pending, &mut stamp, until_ns).await?;
        // Only its writer changes a pending slot, and that writer is gone.
        self.node.table().write_backups(&[(address, &end.0.to_le_bytes())], until_ns).await?;
        self.node.table().swap(address, pending.0, end.0, until_ns).await?;
        self.node.free_later(old);
        Ok(())
    }
}
