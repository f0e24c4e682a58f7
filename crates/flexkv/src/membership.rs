//! The map, and how it changes: what the coordinator tells a node to do.
//!
//! A change has a version. *Pause*: the changed partitions' doors close, for this node's own
//! requests and for those of others to it; answered when nobody is within, nothing of them is
//! cached here any more, and their slots are let go. *Prepare*: the node takes the partitions that
//! will be its own: it claims the owner word, settles what a forerunner left half done, loads the
//! slots if it is to be the proxy, moves them if the partition grows. *Resume*: the map holds from
//! here on.
//!
//! Invariants: 1. a request runs under the entry that it found when it came in, and no change ends
//! *pause* before it went out;
//! 2. orders of a smaller term are refused; 3. every order may come twice; 4. partitions are taken
//!    for one change at a time, and
//! *pause* is answered when nothing is being taken for an earlier one, whose late writes would meet
//! those of the next owner;
//! 5. a subtable that was made larger is the partition's from when it is in the directory, whatever
//!    becomes of the
//! change: whoever takes the partition looks there; the smaller one is given back at *resume*; 6.
//! when everybody has confirmed *pause*, nobody who lives caches anything of the changed
//! partitions, and nobody who is gone serves any: a node counts as gone only when the pool's lease,
//! without which it serves nothing, is over. So owners begin with empty lists of sharers; 7. a
//! partition that is to be offloaded here and does not fit the memory limit is taken without its
//! slots, and the coordinator is told so with *prepare*; 8. a partition that is to grow and gets no
//! room keeps its subtable: growth never keeps a partition closed. Paper: §4.2, atomic partition
//! reassignment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::together;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_pool::{BlockId, ClientId, Sharing};
use parking_lot::RwLock;

use crate::format::{
    Access, BUCKET_BYTES, Geometry, Owner, PartitionEntry, Shape, Slot, entry_offset,
};
use crate::gates::Gates;
use crate::ids::{ComputeId, PartitionId};
use crate::lease::SlotLease;
use crate::node::caching::{Charge, count};
use crate::node::load_counters::Counters;
use crate::node::peers::Asked;
use crate::node::{Inner, Joined, Map, PAUSE};
use crate::proxy::{Offloaded, Served};
use crate::sharers::offloaded_bytes;
use crate::table::{Image, Range, Repaired, Swapped};
use crate::wire::{Assigned, Member, Message, Shaped, Why};

/// A node asks to join again after so long.
const JOIN_AGAIN: Duration = Duration::from_millis(2);
/// Partitions that are taken side by side: each takes some six round trips.
const TAKEN_AT_ONCE: usize = 32;

/// What a node knows of the coordinator's doings.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    term: u64,
    pub(crate) directory: BlockId,
    /// The change that is under way.
    staged: Option<Staged>,
}

#[derive(Debug)]
struct Staged {
    version: u64,
    changes: Vec<Assigned>,
    members: Vec<Member>,
    /// Who is gone, as the coordinator says, and may have been a member of a map that never held.
    gone: Vec<ClientId>,
    prepared: Option<BTreeMap<u32, (Assigned, Arc<Served>)>>,
}

/// The map as people look at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapStatus {
    /// This node's number.
    pub number: u32,
    /// The map's version.
    pub version: u64,
    /// Partitions.
    pub entries: Vec<Assigned>,
    /// Compute nodes.
    pub members: Vec<Member>,
}

impl Inner {
    pub(crate) fn map_status(&self) -> Option<MapStatus> {
        let joined = self.joined().ok()?;
        let map = joined.map.read();
        Some(MapStatus {
            number: joined.number,
            version: map.version,
            entries: map.entries.clone(),
            members: map.members.clone(),
        })
    }

    pub(crate) async fn join(self: &Arc<Self>) -> Result<()> {
        let until_ns = self.until_ns();
        let message = Message::Join {
            client: self.pool.client(),
            endpoints: self.endpoints.clone(),
            index_bytes: self.caching.index_bytes_max(),
        };
        loop {
            let coordinator = Arc::clone(&self.peers.coordinator);
            let answer = self.ask(&coordinator, &message, until_ns).await?;
            if let Message::Joined { .. } = answer {
                return self.take_part(answer, until_ns).await;
            }
            self.table.late(until_ns, "joining the store")?;
            self.runtime.sleep(JOIN_AGAIN).await;
        }
    }

    /// Enters itself into the roster, before anything else: the next coordinator must know of
    /// everybody who may act.
    async fn take_part(self: &Arc<Self>, answer: Message, until_ns: u64) -> Result<()> {
        let Message::Joined { term, number, version, partition_bits, map, members, directory } =
            answer
        else {
            return Err(Error::unsupported("an answer that does not fit the question"));
        };
        let geometry = Geometry::new(partition_bits)
            .filter(|geometry| map.len() == geometry.partitions() as usize)
            .ok_or_else(|| Error::unsupported("a map of another size than it says"))?;
        self.table.enroll(directory, self.pool.client(), until_ns).await?;
        let newest = self.table.roster(directory, until_ns).await?.term;
        let mut standing = self.standing.lock();
        if newest != term || standing.term > term {
            return Err(Error::busy("another coordinator has taken over"));
        }
        standing.term = term;
        standing.directory = directory;
        let map = Arc::new(Map { version, geometry, entries: map, members });
        let gates = Gates::new(geometry.partitions());
        let counters = match self.lends.get() {
            Some(node) => Counters::new(node, geometry.partitions())?,
            None => None,
        };
        let joined = Joined { number, geometry, gates, map: RwLock::new(map), counters };
        // With the lock: whoever is asked what it knows says either that it takes part, or never
        // will by this map.
        if self.joined.set(joined).is_ok() {
            self.keep_releasing();
            self.keep_telling();
            self.keep_sweeping();
            self.keep_expiring();
        }
        Ok(())
    }

    /// Says where it is, for as long as it lives: a coordinator that starts anew knows it by name
    /// alone.
    pub(crate) fn keep_announcing(self: &Arc<Self>) {
        let (weak, runtime) = (Arc::downgrade(self), Arc::clone(&self.runtime));
        let task = async move {
            while let Some(inner) = weak.upgrade().filter(|inner| !inner.pool.is_evicted()) {
                let coordinator = Arc::clone(&inner.peers.coordinator);
                let here = Message::Here {
                    client: inner.pool.client(),
                    endpoints: inner.endpoints.clone(),
                    directory: inner.joined.get().map(|_| inner.standing.lock().directory),
                };
                if let Err(error) = inner.ask_once(&coordinator, &mut Asked::new(&here)).await {
                    tracing::debug!(%error, "the coordinator is not heard");
                }
                let wait = inner.settings.lease;
                drop(inner);
                runtime.sleep(wait).await;
            }
        };
        self.runtime.spawn("flex-here", Box::pin(task));
    }

    pub(crate) async fn obey(self: &Arc<Self>, message: Message) -> Message {
        let (Message::Create { term, .. }
        | Message::Pause { term, .. }
        | Message::Prepare { term, .. }
        | Message::Resume { term, .. }
        | Message::Recall { term }) = &message
        else {
            return self.declined(Why::Malformed);
        };
        {
            let mut standing = self.standing.lock();
            if *term < standing.term {
                return self.declined(Why::OldTerm);
            }
            standing.term = *term;
        }
        let done = match message {
            Message::Create { partition_bits, log2_buckets, directory, .. } => {
                self.create(partition_bits, log2_buckets, directory).await
            }
            Message::Pause { version, changes, members, gone, .. } => {
                self.pause_for(version, changes, members, gone).await
            }
            Message::Prepare { version, .. } => self.prepare(version).await,
            Message::Resume { version, changes, .. } => self.resume(version, &changes),
            _ => Ok(self.recall()),
        };
        done.unwrap_or_else(|error| {
            if error.kind() == ErrorKind::Busy {
                // It is given again.
                tracing::debug!(%error, "an order of the coordinator");
            } else {
                tracing::warn!(%error, "an order of the coordinator");
            }
            self.declined(Why::Busy)
        })
    }

    /// Makes the index: a subtable for each partition, and the directory's entries. Blocks are
    /// zeroes: slots that were never used. What somebody else has made of it stays as it is.
    async fn create(
        self: &Arc<Self>,
        partition_bits: u32,
        log2_buckets: u32,
        directory: BlockId,
    ) -> Result<Message> {
        // Before the first map nothing is prepared, nor swept.
        let _pass = self.taking.enter().await;
        let begun = self.table.begin_index(directory, partition_bits, self.until_ns());
        let geometry = begun.await?;
        self.blocks_for_an_index().await;
        let all: Vec<PartitionId> = (0..geometry.partitions()).map(PartitionId).collect();
        let mut shapes = Vec::with_capacity(all.len());
        for some in all.chunks(TAKEN_AT_ONCE) {
            let make = |partition: &PartitionId| {
                self.create_partition((directory, geometry), *partition, log2_buckets)
            };
            for made in together(some.iter().map(make)).await {
                shapes.push(made?);
            }
        }
        Ok(Message::Created { shapes })
    }

    /// As many blocks as there are memory nodes, so that first copies of subtables, which one-sided
    /// requests go to, lie on all of them; fewer if the pool has no more. What the index does not
    /// need of them is for records.
    async fn blocks_for_an_index(&self) {
        let nodes = self.pool.members().len() as u64;
        while self.records.pieces.lock().stats().blocks < nodes {
            match self.pool.allocate(Sharing::All).await {
                Ok(block) => self.records.pieces.lock().add(block),
                Err(error) => {
                    tracing::info!(%error, "the index lies in fewer blocks than there are memory nodes");
                    return;
                }
            }
        }
    }

    /// A partition's first subtable, and its entry; what is there if somebody was faster.
    async fn create_partition(
        &self,
        (directory, geometry): (BlockId, Geometry),
        partition: PartitionId,
        log2_buckets: u32,
    ) -> Result<Shaped> {
        let (table, until_ns) = (&self.table, self.until_ns());
        if let Some((_, shape)) = table.entry(directory, geometry, partition, until_ns).await? {
            return Ok(shape);
        }
        let log2_buckets =
            table.begin_partition(directory, partition, log2_buckets, until_ns).await?;
        let bytes = (BUCKET_BYTES as u64) << log2_buckets;
        self.records.pieces.lock().turn();
        let mine = self.new_table(1, log2_buckets, bytes).await?;
        let shape = table.place_partition(directory, geometry, partition, mine, until_ns).await?;
        if shape != mine {
            self.free_table(mine);
        }
        Ok(shape)
    }

    /// Room for a subtable; what was never used holds zeroes.
    async fn new_table(&self, generation: u32, log2_buckets: u32, bytes: u64) -> Result<Shaped> {
        let address = self.allocate(bytes).await?;
        let packed = self.table.packing.pack(address);
        let packed = packed.ok_or_else(|| Error::unsupported("an address out of range"))?;
        self.records.pieces.lock().pin(address);
        Ok(Shaped { packed, generation, log2_buckets })
    }

    async fn pause_for(
        self: &Arc<Self>,
        version: u64,
        changes: Vec<Assigned>,
        members: Vec<Member>,
        gone: Vec<ClientId>,
    ) -> Result<Message> {
        let joined = self.joined()?;
        {
            let mut standing = self.standing.lock();
            if joined.map.read().version >= version {
                return Ok(Message::Done {});
            }
            let staged = standing.staged.as_ref();
            if staged.is_some_and(|staged| staged.version > version) {
                return Ok(self.declined(Why::OldTerm));
            }
            if staged.is_none_or(|staged| staged.version < version) {
                // What an earlier change closed and this one does not name stays closed until it
                // holds.
                let prepared = None;
                let changes = changes.clone();
                let next = Staged { version, changes, members, gone, prepared };
                standing.staged = Some(next);
            }
        }
        let mut partitions: Vec<PartitionId> =
            changes.iter().map(|change| PartitionId(change.partition)).collect();
        partitions.sort_unstable();
        let mut closed = Vec::new();
        for partition in &partitions {
            joined.gates.close(*partition);
            closed.extend(self.proxy.close(*partition));
        }
        for partition in &partitions {
            joined.gates.drained(*partition).await;
        }
        // Nothing is being fetched of them any more either.
        self.caching.paused(&partitions);
        for served in closed {
            self.proxy.let_go(served).await;
        }
        drop(self.taking.enter().await);
        Ok(Message::Done {})
    }

    async fn prepare(self: &Arc<Self>, version: u64) -> Result<Message> {
        let joined = self.joined()?;
        // The same order may be under way already; what comes second finds what the first prepared.
        let _pass = self.taking.enter().await;
        let mine: Vec<Assigned> = {
            let standing = self.standing.lock();
            let Some(staged) = standing.staged.as_ref().filter(|staged| staged.version == version)
            else {
                return Ok(self.declined(Why::OldTerm));
            };
            if let Some(prepared) = &staged.prepared {
                let changes = prepared.values().map(|(assigned, _)| *assigned).collect();
                return Ok(Message::Prepared { changes });
            }
            let mine = staged.changes.iter().filter(|change| change.node == joined.number);
            mine.copied().collect()
        };
        let prepared = self.take_all(mine).await;
        // Whatever was made larger is in the directory now, or never will be.
        self.records.pieces.lock().unpin_all();
        let prepared = prepared?;
        let changes = prepared.values().map(|(assigned, _)| *assigned).collect();
        let mut standing = self.standing.lock();
        match standing.staged.as_mut().filter(|staged| staged.version == version) {
            Some(staged) => staged.prepared = Some(prepared),
            None => return Ok(self.declined(Why::OldTerm)),
        }
        Ok(Message::Prepared { changes })
    }

    /// Settles what was left half done in a subtable; records that nobody names any more are given
    /// back.
    async fn repair(self: &Arc<Self>, shape: Shaped, until_ns: u64) -> Result<(Image, Repaired)> {
        let (mut held, mut superseded) = (Vec::new(), Vec::new());
        let mut stamp = || self.deleted_now();
        let mut hold = |slot| held.push(self.frees.hold(slot));
        let table = &self.table;
        let repaired = table.repair(shape, &mut stamp, &mut hold, &mut superseded, until_ns).await;
        superseded.into_iter().for_each(|slot| self.free_later(slot));
        repaired
    }

    async fn take_all(
        self: &Arc<Self>,
        mine: Vec<Assigned>,
    ) -> Result<BTreeMap<u32, (Assigned, Arc<Served>)>> {
        let mut prepared = BTreeMap::new();
        for some in mine.chunks(TAKEN_AT_ONCE) {
            let taking = some.iter().map(|assigned| self.take(*assigned));
            for taken in together(taking).await {
                let (assigned, served) = taken?;
                prepared.insert(assigned.partition, (assigned, served));
            }
        }
        Ok(prepared)
    }

    /// Takes a partition: nobody else works on it.
    async fn take(self: &Arc<Self>, mut assigned: Assigned) -> Result<(Assigned, Arc<Served>)> {
        let until_ns = self.until_ns();
        let partition = PartitionId(assigned.partition);
        self.claim(assigned, until_ns).await?;
        let (directory, geometry) = (self.standing.lock().directory, self.geometry()?);
        let entered = self.table.entry(directory, geometry, partition, until_ns).await?;
        if let Some((_, shape)) =
            entered.filter(|(_, shape)| shape.generation > assigned.shape.generation)
        {
            // Whoever had it before made it larger, and may have told others than those who are
            // left.
            (assigned.shape, assigned.grow) = (shape, false);
        }
        // Should it not fit, the entry says so below; nobody works by its owner word before.
        let mut charge = self.charge(&mut assigned);
        let (mut image, repaired) = self.repair(assigned.shape, until_ns).await?;
        if repaired.pending + repaired.differed > 0 {
            tracing::info!(%partition, ?repaired, "slots that a node left half done were settled");
        }
        if std::mem::replace(&mut assigned.grow, false) {
            match self.grow(partition, assigned.shape, &image, until_ns).await {
                Ok(grown) => {
                    (assigned.shape, image) = grown;
                    drop(charge);
                    charge = self.charge(&mut assigned);
                }
                // It is of use as it is, and would be of none while it waits for room.
                Err(error) => tracing::warn!(%partition, %error, "a partition does not grow"),
            }
        }
        self.enter_shape(assigned, until_ns).await?;
        let lease = SlotLease::new(assigned.epoch, self.now_us(), self.settings.lease_us());
        let offloaded = charge.map(|charge| Offloaded { image, charge });
        Ok((assigned, Arc::new(Served::new(assigned, offloaded, lease))))
    }

    /// Room for the slots of a partition that is to be offloaded here; without it, it is not.
    fn charge(&self, assigned: &mut Assigned) -> Option<Charge> {
        if !assigned.offloaded {
            return None;
        }
        match self.caching.charge(offloaded_bytes(assigned.shape.log2_buckets)) {
            Ok(charge) => Some(charge),
            Err(short) => {
                let partition = assigned.partition;
                tracing::info!(partition, %short, "a partition does not fit the memory limit");
                count(&self.caching.counters.partitions_refused);
                assigned.offloaded = false;
                None
            }
        }
    }

    fn owner_of(assigned: Assigned) -> Owner {
        let access = if assigned.offloaded { Access::Proxied } else { Access::OneSided };
        Owner { epoch: assigned.epoch, node: Some(ComputeId(assigned.node)), access }
    }

    /// The owner word becomes this node's, if no later epoch is there.
    async fn claim(&self, assigned: Assigned, until_ns: u64) -> Result<()> {
        let address = self.entry_address(assigned.partition);
        let owner = Self::owner_of(assigned).encode();
        let mine = owner.ok_or_else(|| Error::unsupported("a node's number is out of range"))?;
        let mut word = self.table.word(address, until_ns).await?;
        loop {
            if word == mine {
                return Ok(());
            }
            if word >> 32 > u64::from(assigned.epoch) {
                let what = format!("partition {} is of a later epoch already", assigned.partition);
                return Err(Error::new(ErrorKind::Fenced, what));
            }
            match self.table.swap(address, word, mine, until_ns).await? {
                Swapped::Was(was) if was == word => return Ok(()),
                Swapped::Was(was) => word = was,
                Swapped::Unknown => word = self.table.word(address, until_ns).await?,
            }
        }
    }

    fn entry_address(&self, partition: u32) -> archipelago_pool::Address {
        let block = self.standing.lock().directory;
        archipelago_pool::Address { block, offset: entry_offset(PartitionId(partition)) }
    }

    /// Writes the whole entry to all copies.
    async fn enter_shape(&self, assigned: Assigned, until_ns: u64) -> Result<()> {
        let geometry = self.geometry()?;
        let Shaped { packed, generation, log2_buckets } = assigned.shape;
        let shape = Shape { packed, generation, log2_buckets };
        let entry = PartitionEntry { owner: Self::owner_of(assigned), shape };
        let bytes = entry.encode(geometry, PartitionId(assigned.partition));
        let bytes = bytes.ok_or_else(|| Error::unsupported("an entry is out of range"))?;
        self.table.write(&[(self.entry_address(assigned.partition), &bytes)], until_ns).await
    }

    fn geometry(&self) -> Result<Geometry> {
        Ok(self.joined()?.map.read().geometry)
    }

    /// Moves a partition to a larger subtable.
    async fn grow(
        self: &Arc<Self>,
        partition: PartitionId,
        shape: Shaped,
        image: &Image,
        until_ns: u64,
    ) -> Result<(Shaped, Image)> {
        let (log2_buckets, bytes) = self.table.regrown(shape, image, partition, until_ns).await?;
        let shape = self.new_table(shape.generation + 1, log2_buckets, bytes.len() as u64).await?;
        if let Err(error) = self.fill_table(shape, &bytes, until_ns).await {
            // Nobody knows of it yet.
            self.free_table(shape);
            return Err(error);
        }
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        Ok((shape, Image { words: words.collect() }))
    }

    async fn fill_table(&self, shape: Shaped, bytes: &[u8], until_ns: u64) -> Result<()> {
        let address = self.table.address(shape.packed);
        for (nth, part) in bytes.chunks(64 << 10).enumerate() {
            let offset = address.offset + (nth * (64 << 10)) as u64;
            let to = archipelago_pool::Address { offset, ..address };
            self.table.write(&[(to, part)], until_ns).await?;
        }
        Ok(())
    }

    fn resume(self: &Arc<Self>, version: u64, changes: &[Assigned]) -> Result<Message> {
        let joined = self.joined()?;
        let mut standing = self.standing.lock();
        if joined.map.read().version >= version {
            return Ok(Message::Done {});
        }
        if standing.staged.as_ref().is_none_or(|staged| staged.version != version) {
            return Ok(self.declined(Why::OldTerm));
        }
        let Some(staged) = standing.staged.take() else { return Ok(Message::Done {}) };
        let mut prepared = staged.prepared.unwrap_or_default();
        let shapes: BTreeMap<u32, Shaped> =
            changes.iter().map(|now| (now.partition, now.shape)).collect();
        for before in &staged.changes {
            if shapes.get(&before.partition).is_some_and(|now| *now != before.shape) {
                // Nobody starts from it again. Whoever has its block knows.
                self.free_table(before.shape);
            }
        }
        for change in changes {
            let served = prepared.remove(&change.partition).map(|(_, served)| served);
            self.proxy.set(PartitionId(change.partition), served);
        }
        self.peers.retain(&staged.members, &staged.gone);
        let stays = |member: &Member| staged.members.iter().any(|now| now.client == member.client);
        if !staged.gone.is_empty() || !joined.map.read().members.iter().all(stays) {
            self.want_sweep();
        }
        self.leases.retain(&staged.members);
        self.caching.retain(&staged.members);
        {
            let mut map = joined.map.write();
            let mut next = Map::clone(&map);
            next.version = version;
            next.members = staged.members;
            for change in changes {
                next.entries[change.partition as usize] = *change;
            }
            *map = Arc::new(next);
        }
        drop(standing);
        for change in changes {
            joined.gates.open(PartitionId(change.partition));
        }
        Ok(Message::Done {})
    }

    fn recall(&self) -> Message {
        let standing = self.standing.lock();
        let member = Member {
            number: self.joined.get().map_or(0, |joined| joined.number),
            client: self.pool.client(),
            endpoints: self.endpoints.clone(),
            index_bytes: self.caching.index_bytes_max(),
        };
        let paused = standing.staged.as_ref().map_or(0, |staged| staged.version);
        let map = self.joined.get().map(|joined| Arc::clone(&joined.map.read()));
        Message::Recalled {
            member,
            version: map.as_ref().map_or(0, |map| map.version),
            partition_bits: map.as_ref().map_or(0, |map| map.geometry.partition_bits()),
            map: map.as_ref().map_or_else(Vec::new, |map| map.entries.clone()),
            directory: standing.directory,
            paused,
            members: map.as_ref().map_or_else(Vec::new, |map| map.members.clone()),
        }
    }

    /// The word of a slot that is deleted now. No two deletions give the same.
    pub(crate) fn deleted_now(&self) -> Slot {
        Slot::deleted(self.now_us(), self.rng.lock().u16(..))
    }

    /// The slot's first copy and those behind it, for who looks after a partition.
    pub(crate) fn slot_range(&self, shape: Shaped, index: u32) -> Range {
        Range { address: self.table.slot(shape, crate::format::SlotIndex(index)), bytes: 8 }
    }

    /// Asks the coordinator for more room in a partition, and waits for a moment. Busy if a change
    /// made lately found no room for it.
    pub(crate) async fn ask_to_grow(&self, entry: Assigned, until_ns: u64) -> Result<()> {
        let grow = Message::Grow { partition: entry.partition, epoch: entry.epoch };
        let coordinator = Arc::clone(&self.peers.coordinator);
        match self.ask(&coordinator, &grow, until_ns).await {
            Ok(Message::Declined { why: Why::Full, .. }) => {
                let partition = entry.partition;
                return Err(Error::busy(format!(
                    "the memory nodes are full: partition {partition} takes no further key before others are deleted"
                )));
            }
            Ok(_) => {}
            // The next one is asked when the write comes here again.
            Err(error) => tracing::debug!(%error, "the coordinator is not heard"),
        }
        self.runtime.sleep(PAUSE * 10).await;
        Ok(())
    }
}
