//! Sweeps: pieces of this node's blocks to which nobody refers are freed, and blocks that it
//! adopted are taken into use.
//!
//! Lost are: a record that its writer had written when it died, or whose fate it never heard; one
//! that was superseded by somebody who died before giving it back, or by a write that its proxy
//! gave up and the next map took for done ([`Inner::have_swept`]); a subtable that was made larger
//! by somebody who died. `pieces.rs` has the steps and why they find no more than that. The order
//! of questions matters: first what the index refers to, then what nodes hold. What left the index
//! before the first question is held by whoever took it out, until it was given back.
//!
//! A sweep waits an address lease and a quarter before it asks: a write that names a record is not
//! begun later than a lease after the record was allocated, and clocks differ in rate by less. It
//! comes when a block was adopted, when a member is gone, when a call ended and nobody knows how,
//! and again if something was held: its holder may die.
//!
//! Failure: who is asked and does not answer makes the sweep begin anew. Cost: a question per
//! partition, to its node; one to each node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_pool::{Address, BlockId, Owned};

use crate::format::{BUCKET_BYTES, Header, LENGTH_UNITS_MAX, Slot, SlotIndex, UNIT_BYTES};
use crate::ids::PartitionId;
use crate::node::Inner;
use crate::node::peers::{Asked, Peer};
use crate::proxy::Served;
use crate::table::Range;
use crate::wire::{Assigned, Message, Place, Shaped, Why};

/// Sweeps in a row that may find something held.
const AGAIN_MAX: u32 = 3;

impl Inner {
    /// A sweep is to come.
    pub(crate) fn want_sweep(&self) {
        self.wants_sweep.store(AGAIN_MAX, Ordering::SeqCst);
    }

    /// This node, a partition's proxy, gave a write up that may be on copies of the index: whether
    /// it happened is decided when the partition is taken anew, and then nobody knows what it
    /// superseded. The owner of the block in which `old` lies is told to sweep, once the partition
    /// is at another epoch. Should this node die first, everybody sweeps.
    pub(crate) fn have_swept(self: &Arc<Self>, assigned: Assigned, old: Slot) {
        let Some(range) = self.table.record(old).filter(|_| old.is_live()) else { return };
        let inner = Arc::clone(self);
        let task = async move {
            while !inner.pool.is_evicted() {
                inner.runtime.sleep(inner.settings.lease).await;
                match inner.is_owner_told(assigned, range).await {
                    Ok(false) => {}
                    Ok(true) => return,
                    Err(error) => {
                        if error.kind() == ErrorKind::NotFound {
                            return;
                        }
                        tracing::debug!(%error, "a block's owner is not told to sweep yet");
                    }
                }
            }
        };
        self.runtime.spawn("flex-swept", Box::pin(task));
    }

    /// A question for room that was sent and not answered may have been granted: the node that was
    /// asked is told to sweep. Best effort: if this node dies first, everybody sweeps.
    pub(crate) fn have_member_swept(self: &Arc<Self>, peer: &Arc<Peer>) {
        let (inner, peer) = (Arc::clone(self), Arc::clone(peer));
        let task = async move {
            let sweep = Message::Sweep {};
            if let Err(error) = inner.ask(&peer, &sweep, inner.until_ns()).await {
                tracing::debug!(%error, "a node that may have lent room is not told to sweep");
            }
        };
        self.runtime.spawn("flex-swept", Box::pin(task));
    }

    /// Whether the partition is at another epoch and the owner of the block told, or gone.
    async fn is_owner_told(self: &Arc<Self>, assigned: Assigned, range: Range) -> Result<bool> {
        let map = Arc::clone(&self.joined()?.map.read());
        let entry = map.entries.get(assigned.partition as usize);
        if entry.is_some_and(|entry| entry.epoch == assigned.epoch) {
            return Ok(false);
        }
        let owner = self.pool.locate(range.address.block).await?.owner;
        let owner = owner.ok_or_else(|| Error::busy("no owner"))?;
        if owner == self.pool.client() {
            self.want_sweep();
            return Ok(true);
        }
        let Some(peer) = self.peer_of(owner) else { return self.pool.is_gone(owner).await };
        let answer = self.ask_once(&peer, &mut Asked::new(&Message::Sweep {})).await?;
        Ok(matches!(answer, Some(Message::Done {})))
    }

    /// Sweeps when it is wanted, for as long as the node lives.
    pub(crate) fn keep_sweeping(self: &Arc<Self>) {
        let (weak, runtime) = (Arc::downgrade(self), Arc::clone(&self.runtime));
        let task = async move {
            loop {
                let Some(inner) = weak.upgrade().filter(|inner| !inner.pool.is_evicted()) else {
                    return;
                };
                inner.take_changes();
                // What is wanted from here on is of the next one.
                let wanted = inner.wants_sweep.swap(0, Ordering::SeqCst);
                if wanted > 0 {
                    let left = inner.sweep().await.map(|held| if held { wanted - 1 } else { 0 });
                    let left = left.unwrap_or_else(|error| {
                        tracing::debug!(%error, "a sweep begins anew");
                        inner.records.pieces.lock().drop_sweep();
                        wanted
                    });
                    inner.wants_sweep.fetch_max(left, Ordering::SeqCst);
                }
                let wait = inner.settings.lease;
                drop(inner);
                runtime.sleep(wait).await;
            }
        };
        self.runtime.spawn("flex-sweep", Box::pin(task));
    }

    fn take_changes(&self) {
        for change in self.pool.take_changes() {
            match change {
                Owned::Adopted(block) => {
                    self.records.pieces.lock().adopt(block);
                    self.records.has_expiring.store(true, Ordering::Relaxed);
                    self.want_sweep();
                }
                Owned::Gone(block) => self.records.pieces.lock().remove(block),
            }
        }
    }

    /// Whether something was left because somebody held it.
    async fn sweep(self: &Arc<Self>) -> Result<bool> {
        let blocks = self.records.pieces.lock().begin_sweep();
        let lease = self.settings.address_lease;
        self.runtime.sleep(lease + lease / 4).await;
        let mut referred = BTreeMap::new();
        let mut words = BTreeSet::new();
        let entries = Arc::clone(&self.joined()?.map.read()).entries.len() as u32;
        for partition in (0..entries).map(PartitionId) {
            for shape in self.shapes_of(partition).await? {
                let bytes = (BUCKET_BYTES as u64) << shape.log2_buckets;
                referred.insert(self.table.address(shape.packed), bytes);
            }
            words.extend(self.ask_what_refers(partition, &blocks).await?);
        }
        let held = self.ask_what_is_held(&blocks).await?;
        for word in words.iter().chain(&held) {
            let slot = Slot(*word);
            let Some(range) = self.table.record(slot) else { continue };
            if blocks.contains(&range.address.block) && !referred.contains_key(&range.address) {
                referred.insert(range.address, self.length_of(slot, range).await?);
            }
        }
        let from_ns = self.now_ns() + self.settings.address_lease_ns();
        let freed = self.records.pieces.lock().end_sweep(&blocks, &referred, from_ns)?;
        tracing::info!(blocks = blocks.len(), freed, held = held.len(), "a sweep");
        Ok(held.iter().any(|word| !words.contains(word)))
    }

    /// Where a partition's subtable lies by the map and by the directory.
    async fn shapes_of(&self, partition: PartitionId) -> Result<Vec<Shaped>> {
        let map = Arc::clone(&self.joined()?.map.read());
        let entry = map.entries.get(partition.0 as usize).map(|entry| entry.shape);
        let directory = self.standing.lock().directory;
        let until_ns = self.until_ns();
        let entered = self.table.entry(directory, map.geometry, partition, until_ns).await?;
        let (_, entered) = entered.ok_or_else(|| Error::busy("the directory is being changed"))?;
        Ok(entry.into_iter().chain([entered]).collect())
    }

    /// Bytes that were asked for, of the record that a slot names.
    async fn length_of(&self, slot: Slot, range: Range) -> Result<u64> {
        let live = if slot.is_pending() { slot.to_live() } else { slot };
        if live.read_bytes() < LENGTH_UNITS_MAX * UNIT_BYTES {
            return Ok(range.bytes);
        }
        let head = Range { bytes: UNIT_BYTES, ..range };
        let read = self.table.read(&[head], self.until_ns()).await?;
        let header = read.first().and_then(|bytes| Header::read(bytes).ok().flatten());
        let header =
            header.ok_or_else(|| Error::busy("a record that is referred to is not there"))?;
        Ok(header.record_bytes())
    }

    async fn ask_what_refers(
        self: &Arc<Self>,
        partition: PartitionId,
        blocks: &BTreeSet<BlockId>,
    ) -> Result<Vec<u64>> {
        let until_ns = self.until_ns();
        loop {
            let map = Arc::clone(&self.joined()?.map.read());
            let entry = map.entries.get(partition.0 as usize).copied();
            let Some(entry) = entry else { return Ok(Vec::new()) };
            let refers = Message::Refers {
                partition: entry.partition,
                epoch: entry.epoch,
                blocks: blocks.iter().copied().collect(),
            };
            if let Some(Message::Referred { words }) = self.ask_owner(entry, &refers).await? {
                return Ok(words);
            }
            self.table.late(until_ns, "what refers to records")?;
            self.runtime.sleep(self.settings.lease).await;
        }
    }

    async fn ask_owner(
        self: &Arc<Self>,
        entry: Assigned,
        refers: &Message,
    ) -> Result<Option<Message>> {
        match self.node_of(entry) {
            Ok(None) => Ok(Some(self.what_refers(refers).await)),
            Ok(Some(peer)) => {
                Ok(self.ask_once(&peer, &mut Asked::new(refers)).await.ok().flatten())
            }
            Err(_) => Ok(None),
        }
    }

    async fn ask_what_is_held(
        self: &Arc<Self>,
        blocks: &BTreeSet<BlockId>,
    ) -> Result<BTreeSet<u64>> {
        let mut held: BTreeSet<u64> = self.held_in(blocks).into_iter().collect();
        let map = Arc::clone(&self.joined()?.map.read());
        let holds = Message::Holds { blocks: blocks.iter().copied().collect() };
        for member in map.members.iter().filter(|member| member.client != self.pool.client()) {
            let peer = self.peers.peer(member);
            match self.ask(&peer, &holds, self.until_ns()).await {
                Ok(Message::Referred { words }) => held.extend(words),
                Ok(_) => return Err(Error::busy("a node does not say what it holds")),
                Err(_) if self.pool.is_gone(member.client).await? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(held)
    }

    fn held_in(&self, blocks: &BTreeSet<BlockId>) -> Vec<u64> {
        self.words_in(self.frees.held().into_iter(), blocks)
    }

    fn words_in(&self, words: impl Iterator<Item = u64>, blocks: &BTreeSet<BlockId>) -> Vec<u64> {
        let within = |word: &u64| {
            let range = self.table.record(Slot(*word));
            range.is_some_and(|range| blocks.contains(&range.address.block))
        };
        words.filter(within).collect()
    }

    /// What this node holds in blocks.
    pub(crate) fn what_is_held(&self, blocks: &[BlockId]) -> Message {
        Message::Referred { words: self.held_in(&blocks.iter().copied().collect()) }
    }

    /// What a partition of this node's refers to in blocks: what is being written into it first,
    /// then its slots. Who was taken for dead may have given a write up after it was on the copies
    /// in the pool, which its slots do not show: it has nothing to say.
    pub(crate) async fn what_refers(self: &Arc<Self>, refers: &Message) -> Message {
        let Message::Refers { partition, epoch, blocks } = refers else {
            return self.declined(Why::Malformed);
        };
        let Some(served) = self.proxy.get(PartitionId(*partition), *epoch) else {
            return self.declined(Why::Moved);
        };
        let Some(_inside) = served.gate.try_enter(Served::DOOR) else {
            return self.declined(Why::Moved);
        };
        let blocks: BTreeSet<BlockId> = blocks.iter().copied().collect();
        let incoming = served.incoming();
        let slots = match served.all_words() {
            Some(words) => Ok((words, Vec::new())),
            None => self.words_of(served.assigned.shape).await,
        };
        match slots {
            Ok(_) if !self.table.holds_lease() => self.declined(Why::Fenced),
            Ok((slots, pending)) => {
                self.settle_later(&served, pending);
                let words = incoming.into_iter().chain(slots);
                Message::Referred { words: self.words_in(words, &blocks) }
            }
            Err(error) => {
                tracing::debug!(%error, "a partition's slots");
                self.declined(Why::Busy)
            }
        }
    }

    /// The words of a partition that is updated one-sided, with what those that are pending
    /// supersede; and where these are.
    pub(crate) async fn words_of(&self, shape: Shaped) -> Result<(Vec<u64>, Vec<Place>)> {
        let start = self.table.slot(shape, SlotIndex(0));
        let total = (BUCKET_BYTES as u64) << shape.log2_buckets;
        let part = 64 << 10;
        let mut words = Vec::new();
        for at in (0..total).step_by(part) {
            let address = Address { offset: start.offset + at, ..start };
            let range = Range { address, bytes: (part as u64).min(total - at) };
            let read = self.table.read(&[range], self.until_ns()).await?;
            let read = read.first().map_or(&[][..], Vec::as_slice);
            words.extend(read.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)));
        }
        if !self.table.holds_lease() {
            return Err(Error::busy("slots were read without a lease"));
        }
        let places =
            words.iter().enumerate().map(|(at, word)| Place { index: at as u32, word: *word });
        let pending: Vec<Place> = places.filter(|at| Slot(at.word).is_pending()).collect();
        words.retain(|word| Slot(*word).is_live() || Slot(*word).is_pending());
        for word in &mut words {
            *word = Slot(*word).undying().0;
        }
        for place in &pending {
            let bytes = self.table.read_record(Slot(place.word), self.until_ns()).await?;
            if let Ok(Some(header)) = Header::read(&bytes) {
                words.push(header.previous);
            }
        }
        Ok((words, pending))
    }

    /// Takes pending slots forward whose writers are gone: nobody may ever come upon them, and what
    /// they supersede would stay in use.
    fn settle_later(self: &Arc<Self>, served: &Served, pending: Vec<Place>) {
        if pending.is_empty() {
            return;
        }
        let (inner, assigned) = (Arc::clone(self), served.assigned);
        let task = async move {
            for place in pending {
                inner.settle(PartitionId(assigned.partition), assigned.epoch, place).await;
            }
        };
        self.runtime.spawn("flex-settle", Box::pin(task));
    }
}
