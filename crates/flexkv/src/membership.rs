//! This node's part in the store: it joins, says where it is, and changes its map as the
//! coordinator says.
//!
//! The compute node owns one [`Membership`]. A change of the map has a version and three steps:
//!
//! 1. *Pause.* The gates of the changed partitions close, for this node's own requests and for
//!    those of other nodes. The answer follows when no request is within, nothing of the partitions
//!    is cached here, and their slots are dropped.
//! 2. *Prepare.* The node takes the partitions that become its own. It claims the owner word,
//!    settles what the last owner left half done, loads the slots if it becomes the proxy, and
//!    moves the subtable if the partition grows.
//! 3. *Resume.* The new map holds.
//!
//! Invariants:
//! 1. A request runs under the entry that it found when it entered the gate. No change ends *pause*
//!    before that request has left.
//! 2. Orders with a smaller term are refused.
//! 3. Every order may arrive twice.
//! 4. Partitions are taken for one change at a time. *Pause* is answered when nothing is being
//!    taken for an earlier change, because late writes of that would meet those of the next owner.
//! 5. A larger subtable belongs to the partition from the moment at which the directory names it,
//!    whatever becomes of the change. Each owner that takes the partition reads the directory. The
//!    smaller subtable is given back at *resume*.
//! 6. When every node has confirmed *pause*, no live node caches anything of the changed
//!    partitions, and no removed node serves them. A node counts as removed only when its lease in
//!    the pool, without which it serves nothing, is over. So owners begin with empty lists of
//!    sharers.
//! 7. If a partition is offloaded to this node and does not fit the memory limit, the node takes it
//!    without its slots and tells the coordinator so with *prepare*.
//! 8. A partition that should grow keeps its subtable if it gets no memory, or if a larger one
//!    makes no room or is not possible. Growth never keeps a partition closed.
//!
//! Thread-safety: any thread may call any method. One mutex guards the term, the directory and the
//! staged change. A gate lets one task at a time take partitions.
//! Failure: an order that fails is declined as busy, and the coordinator gives it again.
//! Cost: taking a partition takes some six round trips; 32 partitions are taken in parallel. Paper:
//! §4.2, atomic partition reassignment.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use archipelago_base::runtime::{Gate, join_all};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_fabric::Node as FabricNode;
use archipelago_pool::{BlockId, ClientId, Sharing};
use parking_lot::Mutex;

use crate::format::{
    Access, BUCKET_BYTES, Geometry, Owner, PartitionEntry, Shape, Slot, entry_offset, growth_sizes,
};
use crate::ids::{ComputeId, PartitionId};
use crate::lease::SlotLease;
use crate::node::caching::{CacheStat, Charge};
use crate::node::peers::Asked;
use crate::node::{Joined, Map, Node};
use crate::proxy::{Offloaded, Proxy, ServedPartition};
use crate::sharers::offloaded_bytes;
use crate::table::{Image, Repaired, Swapped};
use crate::wire::{Assigned, Member, Message, Shaped, Why};

/// Time after which a node asks to join again.
const JOIN_AGAIN: Duration = Duration::from_millis(2);
/// Number of partitions that are taken in parallel. Each takes some six round trips.
const PARTITIONS_IN_PARALLEL: usize = 32;

/// Knowledge of a node about the coordinator's orders.
#[derive(Debug, Default)]
pub(crate) struct MembershipState {
    term: u64,
    directory: BlockId,
    /// The change that is in progress.
    staged: Option<StagedChange>,
}

#[derive(Debug)]
struct StagedChange {
    version: u64,
    changes: Vec<Assigned>,
    members: Vec<Member>,
    /// Clients that are gone according to the coordinator. Some may have been members of a map that
    /// never held.
    gone: Vec<ClientId>,
    prepared: Option<BTreeMap<u32, (Assigned, Arc<ServedPartition>)>>,
}

/// An index that is being made.
#[derive(Clone, Copy, Debug)]
struct NewIndex {
    directory: BlockId,
    geometry: Geometry,
    log2_buckets: u32,
}

/// The map as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapStatus {
    /// Number of this node.
    pub number: u32,
    /// Version of the map.
    pub version: u64,
    /// All partitions in order.
    pub entries: Vec<Assigned>,
    /// All compute nodes.
    pub members: Vec<Member>,
}

/// This node's part in the store. See the head of the module.
pub(crate) struct Membership {
    node: Arc<Node>,
    proxy: Arc<Proxy>,
    state: Mutex<MembershipState>,
    /// Lets one task at a time take partitions.
    taking: Gate,
    announcing: AtomicBool,
    endpoints: Vec<String>,
    /// The fabric's node that the load counters are lent from.
    lends: OnceLock<Weak<FabricNode>>,
}

impl Membership {
    pub(crate) fn new(node: Arc<Node>, proxy: Arc<Proxy>, endpoints: Vec<String>) -> Self {
        Self {
            node,
            proxy,
            state: Mutex::default(),
            taking: Gate::default(),
            announcing: AtomicBool::new(false),
            endpoints,
            lends: OnceLock::new(),
        }
    }

    /// Sets the fabric's node that the load counters are lent from, unless one was set before.
    pub(crate) fn lend_counters(&self, node: &Arc<FabricNode>) {
        let _the_first_one_counts = self.lends.set(Arc::downgrade(node));
    }

    /// The block of the directory that this node works by.
    pub(crate) fn directory(&self) -> BlockId {
        self.state.lock().directory
    }

    pub(crate) fn map_status(&self) -> Option<MapStatus> {
        let joined = self.node.joined().ok()?;
        let map = joined.map();
        Some(MapStatus {
            number: joined.number(),
            version: map.version,
            entries: map.entries.clone(),
            members: map.members.clone(),
        })
    }

    /// Joins the store. Returns whether the node had not joined before.
    pub(crate) async fn join(&self) -> Result<bool> {
        let until_ns = self.node.until_ns();
        let message = Message::Join {
            client: self.node.client(),
            endpoints: self.endpoints.clone(),
            index_bytes: self.node.caching().index_bytes_max(),
        };
        loop {
            let coordinator = Arc::clone(self.node.peers().coordinator());
            let answer = self.node.ask(&coordinator, &message, until_ns).await?;
            if let Message::Joined { .. } = answer {
                return self.take_part(answer, until_ns).await;
            }
            self.node.table().late(until_ns, "joining the store")?;
            self.node.runtime().sleep(JOIN_AGAIN).await;
        }
    }

    /// Enters this node into the roster before anything else, because the next coordinator must
    /// know every node that may act. Then takes the map.
    async fn take_part(&self, answer: Message, until_ns: u64) -> Result<bool> {
        let Message::Joined { term, number, version, partition_bits, map, members, directory } =
            answer
        else {
            return Err(Error::unsupported(
                "the coordinator answered the join with another message",
            ));
        };
        let geometry = Geometry::new(partition_bits)
            .filter(|geometry| map.len() == geometry.partitions() as usize)
            .ok_or_else(|| {
                Error::unsupported(
                    "the coordinator's map does not have the stated number of partitions",
                )
            })?;
        self.node.table().enroll(directory, self.node.client(), until_ns).await?;
        let newest = self.node.table().roster(directory, until_ns).await?.term;
        let mut state = self.state.lock();
        if newest != term || state.term > term {
            return Err(Error::busy("another coordinator has taken over"));
        }
        state.term = term;
        state.directory = directory;
        let map = Map { version, geometry, entries: map, members };
        let joined = Joined::new(number, map, self.lends.get())?;
        // This happens under the lock of `state`. So an answer to *recall* says that this node
        // takes part, or this node never takes part by this map.
        Ok(self.node.set_joined(joined))
    }

    /// Tells the coordinator where this node is, at intervals for as long as it lives. A
    /// coordinator that starts knows nodes by name only. A second call does nothing.
    pub(crate) fn keep_announcing(self: &Arc<Self>) {
        if self.announcing.swap(true, Ordering::SeqCst) {
            return;
        }
        let (weak, runtime) = (Arc::downgrade(self), Arc::clone(self.node.runtime()));
        let task = async move {
            while let Some(membership) =
                weak.upgrade().filter(|membership| !membership.node.pool().is_evicted())
            {
                let coordinator = Arc::clone(membership.node.peers().coordinator());
                let here = Message::Here {
                    client: membership.node.client(),
                    endpoints: membership.endpoints.clone(),
                    directory: membership
                        .node
                        .joined()
                        .ok()
                        .map(|_| membership.state.lock().directory),
                };
                if let Err(error) =
                    membership.node.ask_once(&coordinator, &mut Asked::new(&here)).await
                {
                    tracing::debug!(%error, "the coordinator does not answer");
                }
                let wait = membership.node.settings().lease;
                drop(membership);
                runtime.sleep(wait).await;
            }
        };
        self.node.runtime().spawn("flex-here", Box::pin(task));
    }

    pub(crate) async fn obey(&self, message: Message) -> Message {
        let (Message::Create { term, .. }
        | Message::Pause { term, .. }
        | Message::Prepare { term, .. }
        | Message::Resume { term, .. }
        | Message::Recall { term }) = &message
        else {
            return self.node.declined(Why::Malformed);
        };
        {
            let mut state = self.state.lock();
            if *term < state.term {
                return self.node.declined(Why::OldTerm);
            }
            state.term = *term;
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
                // The coordinator gives the order again.
                tracing::debug!(%error, "an order of the coordinator");
            } else {
                tracing::warn!(%error, "an order of the coordinator");
            }
            self.node.declined(Why::Busy)
        })
    }

    /// Makes the index: a subtable for each partition, and the entries of the directory. New blocks
    /// hold zeroes, which are slots that were never used. Parts of the index that another node has
    /// already made stay as they are.
    async fn create(
        &self,
        partition_bits: u32,
        log2_buckets: u32,
        directory: BlockId,
    ) -> Result<Message> {
        // Nothing is prepared or swept before the first map.
        let _pass = self.taking.enter().await;
        let begun = self.node.table().begin_index(directory, partition_bits, self.node.until_ns());
        let geometry = begun.await?;
        self.blocks_for_an_index().await;
        let all: Vec<PartitionId> = (0..geometry.partitions()).map(PartitionId).collect();
        let index = NewIndex { directory, geometry, log2_buckets };
        let mut shapes = Vec::with_capacity(all.len());
        for some in all.chunks(PARTITIONS_IN_PARALLEL) {
            let make = |partition: &PartitionId| self.create_partition(index, *partition);
            for made in join_all(some.iter().map(make)).await {
                shapes.push(made?);
            }
        }
        Ok(Message::Created { shapes })
    }

    /// Allocates one block per memory node, or fewer if the pool has no more. Then the first copies
    /// of subtables, to which one-sided requests go, lie on all memory nodes. Records take the rest
    /// of these blocks.
    async fn blocks_for_an_index(&self) {
        let nodes = self.node.pool().members().len() as u64;
        while self.node.records().stats().blocks < nodes {
            match self.node.pool().allocate(Sharing::All).await {
                Ok(block) => self.node.records().add_block(block),
                Err(error) => {
                    tracing::info!(%error, "the index lies in fewer blocks than there are memory nodes");
                    return;
                }
            }
        }
    }

    /// Makes a partition's first subtable and its entry. If another node was faster, returns the
    /// subtable and entry of that node.
    async fn create_partition(&self, index: NewIndex, partition: PartitionId) -> Result<Shaped> {
        let NewIndex { directory, geometry, log2_buckets } = index;
        let (table, until_ns) = (self.node.table(), self.node.until_ns());
        if let Some((_, shape)) = table.entry(directory, geometry, partition, until_ns).await? {
            return Ok(shape);
        }
        let log2_buckets =
            table.begin_partition(directory, partition, log2_buckets, until_ns).await?;
        let bytes = (BUCKET_BYTES as u64) << log2_buckets;
        self.node.records().next_block();
        let mine = self.new_table(1, log2_buckets, bytes).await?;
        let shape = table.place_partition(directory, geometry, partition, mine, until_ns).await?;
        if shape != mine {
            self.node.free_table(mine);
        }
        Ok(shape)
    }

    /// Allocates a subtable. Memory that was never used holds zeroes.
    async fn new_table(&self, generation: u32, log2_buckets: u32, bytes: u64) -> Result<Shaped> {
        let address = self.node.allocate(bytes).await?;
        let packed = self.node.table().pack(address);
        let packed = packed.ok_or_else(|| Error::unsupported("an address out of range"))?;
        self.node.records().pin(address);
        Ok(Shaped { packed, generation, log2_buckets })
    }

    async fn pause_for(
        &self,
        version: u64,
        changes: Vec<Assigned>,
        members: Vec<Member>,
        gone: Vec<ClientId>,
    ) -> Result<Message> {
        let joined = self.node.joined()?;
        {
            let mut state = self.state.lock();
            if joined.map_version() >= version {
                return Ok(Message::Done {});
            }
            let staged = state.staged.as_ref();
            if staged.is_some_and(|staged| staged.version > version) {
                return Ok(self.node.declined(Why::OldTerm));
            }
            if staged.is_none_or(|staged| staged.version < version) {
                // A partition that an earlier change closed and this one does not name stays closed
                // until this change holds.
                let prepared = None;
                let changes = changes.clone();
                let next = StagedChange { version, changes, members, gone, prepared };
                state.staged = Some(next);
            }
        }
        let mut partitions: Vec<PartitionId> =
            changes.iter().map(|change| PartitionId(change.partition)).collect();
        partitions.sort_unstable();
        let mut closed = Vec::new();
        for partition in &partitions {
            joined.gates().close(*partition);
            closed.extend(self.proxy.close(*partition));
        }
        for partition in &partitions {
            joined.gates().drained(*partition).await;
        }
        // No fetch of these partitions is in progress any more.
        self.node.caching().paused(&partitions);
        for served in closed {
            self.proxy.let_go(served).await;
        }
        drop(self.taking.enter().await);
        Ok(Message::Done {})
    }

    async fn prepare(&self, version: u64) -> Result<Message> {
        let joined = self.node.joined()?;
        // The same order may be in progress already. The second order finds the work of the first
        // one.
        let _pass = self.taking.enter().await;
        let mine: Vec<Assigned> = {
            let state = self.state.lock();
            let Some(staged) = state.staged.as_ref().filter(|staged| staged.version == version)
            else {
                return Ok(self.node.declined(Why::OldTerm));
            };
            if let Some(prepared) = &staged.prepared {
                let changes = prepared.values().map(|(assigned, _)| *assigned).collect();
                return Ok(Message::Prepared { changes });
            }
            let mine = staged.changes.iter().filter(|change| change.node == joined.number());
            mine.copied().collect()
        };
        let prepared = self.take_all(mine).await;
        // Every larger subtable is in the directory now, or never will be.
        self.node.records().unpin_all();
        let prepared = prepared?;
        let changes = prepared.values().map(|(assigned, _)| *assigned).collect();
        let mut state = self.state.lock();
        match state.staged.as_mut().filter(|staged| staged.version == version) {
            Some(staged) => staged.prepared = Some(prepared),
            None => return Ok(self.node.declined(Why::OldTerm)),
        }
        Ok(Message::Prepared { changes })
    }

    /// Completes half-finished changes in a subtable, and gives back the superseded records.
    async fn repair(&self, shape: Shaped, until_ns: u64) -> Result<(Image, Repaired)> {
        let (mut held, mut superseded) = (Vec::new(), Vec::new());
        let mut stamp = || self.node.deleted_now();
        let mut hold = |slot| held.push(self.node.hold(slot));
        let table = self.node.table();
        let repaired = table.repair(shape, &mut stamp, &mut hold, &mut superseded, until_ns).await;
        superseded.into_iter().for_each(|slot| self.node.free_later(slot));
        repaired
    }

    async fn take_all(
        &self,
        mine: Vec<Assigned>,
    ) -> Result<BTreeMap<u32, (Assigned, Arc<ServedPartition>)>> {
        let mut prepared = BTreeMap::new();
        for some in mine.chunks(PARTITIONS_IN_PARALLEL) {
            let taking = some.iter().map(|assigned| self.take(*assigned));
            for taken in join_all(taking).await {
                let (assigned, served) = taken?;
                prepared.insert(assigned.partition, (assigned, served));
            }
        }
        Ok(prepared)
    }

    /// Takes a partition on which no other node works.
    async fn take(&self, mut assigned: Assigned) -> Result<(Assigned, Arc<ServedPartition>)> {
        let until_ns = self.node.until_ns();
        let partition = PartitionId(assigned.partition);
        self.claim(assigned, until_ns).await?;
        let (directory, geometry) = (self.state.lock().directory, self.geometry()?);
        let entered = self.node.table().entry(directory, geometry, partition, until_ns).await?;
        if let Some((_, shape)) =
            entered.filter(|(_, shape)| shape.generation > assigned.shape.generation)
        {
            // An earlier owner made the subtable larger, and may have told only nodes that are
            // gone.
            (assigned.shape, assigned.grow) = (shape, false);
        }
        // If the slots do not fit, the entry below says so. No node acts on the owner word before.
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
                // The partition works at its size, and would not work while it waits for memory.
                Err(error) => tracing::warn!(%partition, %error, "a partition does not grow"),
            }
        }
        self.enter_shape(assigned, until_ns).await?;
        let lease =
            SlotLease::new(assigned.epoch, self.node.now_us(), self.node.settings().lease_us());
        let offloaded = charge.map(|charge| Offloaded { image, charge });
        Ok((assigned, Arc::new(ServedPartition::new(assigned, offloaded, lease))))
    }

    /// Takes memory of the limit for the slots of an offloaded partition. If there is none, the
    /// partition is not offloaded.
    fn charge(&self, assigned: &mut Assigned) -> Option<Charge> {
        if !assigned.offloaded {
            return None;
        }
        match self.node.caching().charge(offloaded_bytes(assigned.shape.log2_buckets)) {
            Ok(charge) => Some(charge),
            Err(short) => {
                let partition = assigned.partition;
                tracing::info!(partition, %short, "a partition does not fit the memory limit");
                self.node.caching().count(CacheStat::PartitionsRefused);
                assigned.offloaded = false;
                None
            }
        }
    }

    fn owner_of(assigned: Assigned) -> Owner {
        let access = if assigned.offloaded { Access::Proxied } else { Access::OneSided };
        Owner { epoch: assigned.epoch, node: Some(ComputeId(assigned.node)), access }
    }

    /// Makes the owner word this node's, unless it has a later epoch.
    async fn claim(&self, assigned: Assigned, until_ns: u64) -> Result<()> {
        let address = self.entry_address(assigned.partition);
        let owner = Self::owner_of(assigned).encode();
        let mine = owner.ok_or_else(|| Error::unsupported("a node's number is out of range"))?;
        let mut word = self.node.table().word(address, until_ns).await?;
        loop {
            if word == mine {
                return Ok(());
            }
            if word >> 32 > u64::from(assigned.epoch) {
                let what = format!("partition {} is of a later epoch already", assigned.partition);
                return Err(Error::fenced(what));
            }
            match self.node.table().swap(address, word, mine, until_ns).await? {
                Swapped::Found(was) if was == word => return Ok(()),
                Swapped::Found(was) => word = was,
                Swapped::Unknown => word = self.node.table().word(address, until_ns).await?,
            }
        }
    }

    fn entry_address(&self, partition: u32) -> archipelago_pool::Address {
        let block = self.state.lock().directory;
        archipelago_pool::Address { block, offset: entry_offset(PartitionId(partition)) }
    }

    /// Writes a partition's whole entry to all copies of the directory.
    async fn enter_shape(&self, assigned: Assigned, until_ns: u64) -> Result<()> {
        let geometry = self.geometry()?;
        let Shaped { packed, generation, log2_buckets } = assigned.shape;
        let shape = Shape { packed, generation, log2_buckets };
        let entry = PartitionEntry { owner: Self::owner_of(assigned), shape };
        let bytes = entry.encode(geometry, PartitionId(assigned.partition));
        let bytes = bytes.ok_or_else(|| Error::unsupported("an entry is out of range"))?;
        self.node.table().write(&[(self.entry_address(assigned.partition), &bytes)], until_ns).await
    }

    fn geometry(&self) -> Result<Geometry> {
        Ok(self.node.joined()?.geometry())
    }

    /// Moves a partition to a larger subtable. Unsupported if a larger one would make no room, or
    /// is not possible.
    async fn grow(
        &self,
        partition: PartitionId,
        shape: Shaped,
        image: &Image,
        until_ns: u64,
    ) -> Result<(Shaped, Image)> {
        let (now_us, lease_us) = (self.node.now_us(), self.node.settings().lease_us());
        let is_used = |word: &&u64| !Slot(**word).is_reusable(now_us, lease_us);
        let used = image.words.iter().filter(is_used).count() as u64;
        let sizes = growth_sizes(used, shape.log2_buckets, self.node.pool().block_bytes());
        let sizes = sizes
            .map_err(|refused| Error::unsupported(format!("{partition} cannot grow: {refused}")))?;
        let (log2_buckets, bytes) =
            self.node.table().regrown(image, sizes, partition, until_ns).await?;
        let shape = self.new_table(shape.generation + 1, log2_buckets, bytes.len() as u64).await?;
        if let Err(error) = self.fill_table(shape, &bytes, until_ns).await {
            // No other node knows of the new subtable.
            self.node.free_table(shape);
            return Err(error);
        }
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        Ok((shape, Image { words: words.collect() }))
    }

    async fn fill_table(&self, shape: Shaped, bytes: &[u8], until_ns: u64) -> Result<()> {
        let address = self.node.table().address(shape.packed);
        for (nth, part) in bytes.chunks(64 << 10).enumerate() {
            let offset = address.offset + (nth * (64 << 10)) as u64;
            let to = archipelago_pool::Address { offset, ..address };
            self.node.table().write(&[(to, part)], until_ns).await?;
        }
        Ok(())
    }

    fn resume(&self, version: u64, changes: &[Assigned]) -> Result<Message> {
        let joined = self.node.joined()?;
        let mut state = self.state.lock();
        if joined.map_version() >= version {
            return Ok(Message::Done {});
        }
        if state.staged.as_ref().is_none_or(|staged| staged.version != version) {
            return Ok(self.node.declined(Why::OldTerm));
        }
        let Some(staged) = state.staged.take() else { return Ok(Message::Done {}) };
        let mut prepared = staged.prepared.unwrap_or_default();
        let shapes: BTreeMap<u32, Shaped> =
            changes.iter().map(|now| (now.partition, now.shape)).collect();
        for before in &staged.changes {
            if shapes.get(&before.partition).is_some_and(|now| *now != before.shape) {
                // No node reads the old subtable again. The owner of its block frees it.
                self.node.free_table(before.shape);
            }
        }
        for change in changes {
            let served = prepared.remove(&change.partition).map(|(_, served)| served);
            self.proxy.set(PartitionId(change.partition), served);
        }
        self.node.peers().retain(&staged.members, &staged.gone);
        let stays = |member: &Member| staged.members.iter().any(|now| now.client == member.client);
        if !staged.gone.is_empty() || !joined.all_members(stays) {
            self.node.want_sweep();
        }
        self.proxy.retain_leases(&staged.members);
        self.node.caching().retain(&staged.members);
        joined.change_map(|map| {
            map.version = version;
            map.members = staged.members;
            for change in changes {
                map.entries[change.partition as usize] = *change;
            }
        });
        drop(state);
        for change in changes {
            joined.gates().open(PartitionId(change.partition));
        }
        Ok(Message::Done {})
    }

    fn recall(&self) -> Message {
        let state = self.state.lock();
        let member = Member {
            number: self.node.joined().map_or(0, Joined::number),
            client: self.node.client(),
            endpoints: self.endpoints.clone(),
            index_bytes: self.node.caching().index_bytes_max(),
        };
        let paused = state.staged.as_ref().map_or(0, |staged| staged.version);
        let map = self.node.joined().ok().map(Joined::map);
        Message::Recalled {
            member,
            version: map.as_ref().map_or(0, |map| map.version),
            partition_bits: map.as_ref().map_or(0, |map| map.geometry.partition_bits()),
            map: map.as_ref().map_or_else(Vec::new, |map| map.entries.clone()),
            directory: state.directory,
            paused,
            members: map.as_ref().map_or_else(Vec::new, |map| map.members.clone()),
        }
    }
}
