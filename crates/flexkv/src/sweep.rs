//! Sweeps: they free pieces of this node's blocks to which nothing refers, and take adopted blocks
//! into use.
//!
//! A record is lost in these cases:
//!
//! - Its writer died after it wrote the record, or never heard what became of the write.
//! - A node superseded it and died before giving it back, or a proxy gave up the write that
//!   superseded it ([`Proxy::request_sweep`]).
//!
//! A subtable is lost if a node made a partition larger and died. `node/pieces.rs` has the steps of
//! a sweep and says why it finds nothing but lost pieces. The order of the questions matters: the
//! sweeper asks first what the index refers to, and then what nodes hold. A word that left the
//! index before the first question is held by the node that took it out until it was given back.
//!
//! Before the questions, a sweep waits for an address lease and a quarter. A write that names a
//! record begins at most one address lease after the record was allocated, and clocks differ in
//! rate by less than a quarter. A sweep follows when a block was adopted, when a member was
//! removed, and when a call ended with an unknown outcome. It is repeated if a record was held,
//! because its holder may die.
//!
//! Invariants:
//! 1. One sweep runs at a time.
//! 2. A sweep frees nothing that was allocated after it began.
//!
//! Thread-safety: one task per node sweeps.
//! Failure: if a node does not answer, the sweep begins anew.
//! Cost: a question per partition to its node, and one question to each node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_pool::{BlockId, Owned};

use crate::format::{BUCKET_BYTES, Header, LENGTH_UNITS_MAX, Slot, UNIT_BYTES};
use crate::ids::PartitionId;
use crate::membership::Membership;
use crate::node::Node;
use crate::node::peers::Asked;
use crate::proxy::Proxy;
use crate::table::Range;
use crate::wire::{Assigned, Message, Shaped};

/// Finds the lost records of this node's blocks. See the head of the module.
pub(crate) struct Sweeper {
    node: Arc<Node>,
    proxy: Arc<Proxy>,
    membership: Arc<Membership>,
}

impl Sweeper {
    pub(crate) fn new(node: Arc<Node>, proxy: Arc<Proxy>, membership: Arc<Membership>) -> Self {
        Self { node, proxy, membership }
    }

    /// Sweeps whenever a sweep is wanted, for as long as the node lives.
    pub(crate) fn keep_sweeping(self: &Arc<Self>) {
        let (weak, runtime) = (Arc::downgrade(self), Arc::clone(self.node.runtime()));
        let task = async move {
            loop {
                let Some(sweeper) =
                    weak.upgrade().filter(|sweeper| !sweeper.node.pool().is_evicted())
                else {
                    return;
                };
                sweeper.take_changes();
                // Wishes from here on are for the next sweep.
                let wanted = sweeper.node.take_sweeps_wanted();
                if wanted > 0 {
                    let left = sweeper.sweep().await.map(|held| if held { wanted - 1 } else { 0 });
                    let left = left.unwrap_or_else(|error| {
                        tracing::debug!(%error, "a sweep starts again");
                        sweeper.node.records().drop_sweep();
                        wanted
                    });
                    sweeper.node.want_sweeps_again(left);
                }
                let wait = sweeper.node.settings().lease;
                drop(sweeper);
                runtime.sleep(wait).await;
            }
        };
        self.node.runtime().spawn("flex-sweep", Box::pin(task));
    }

    fn take_changes(&self) {
        for change in self.node.pool().take_changes() {
            match change {
                Owned::Adopted(block) => {
                    self.node.records().adopt_block(block);
                    self.node.want_sweep();
                }
                Owned::Gone(block) => self.node.records().remove_block(block),
            }
        }
    }

    /// Sweeps once. Returns whether a piece was left only because a node held it.
    async fn sweep(&self) -> Result<bool> {
        let blocks = self.node.records().begin_sweep();
        let lease = self.node.settings().address_lease;
        self.node.runtime().sleep(lease + lease / 4).await;
        let mut referred = BTreeMap::new();
        let mut words = BTreeSet::new();
        let entries = self.node.joined()?.map().entries.len() as u32;
        for partition in (0..entries).map(PartitionId) {
            for shape in self.shapes_of(partition).await? {
                let bytes = (BUCKET_BYTES as u64) << shape.log2_buckets;
                referred.insert(self.node.table().address(shape.packed), bytes);
            }
            words.extend(self.ask_what_refers(partition, &blocks).await?);
        }
        let held = self.ask_what_is_held(&blocks).await?;
        for word in words.iter().chain(&held) {
            let slot = Slot(*word);
            let Some(range) = self.node.table().record(slot) else { continue };
            if blocks.contains(&range.address.block) && !referred.contains_key(&range.address) {
                referred.insert(range.address, self.length_of(slot, range).await?);
            }
        }
        let from_ns = self.node.now_ns() + self.node.settings().address_lease_ns();
        let freed = self.node.records().end_sweep(&blocks, &referred, from_ns)?;
        tracing::info!(blocks = blocks.len(), freed, held = held.len(), "a sweep");
        Ok(held.iter().any(|word| !words.contains(word)))
    }

    /// Addresses of a partition's subtable, by the map and by the directory.
    async fn shapes_of(&self, partition: PartitionId) -> Result<Vec<Shaped>> {
        let map = self.node.joined()?.map();
        let entry = map.entries.get(partition.0 as usize).map(|entry| entry.shape);
        let directory = self.membership.directory();
        let until_ns = self.node.until_ns();
        let entered = self.node.table().entry(directory, map.geometry, partition, until_ns).await?;
        let (_, entered) = entered.ok_or_else(|| Error::busy("the directory is being changed"))?;
        Ok(entry.into_iter().chain([entered]).collect())
    }

    /// Bytes that were allocated for the record that a slot names.
    async fn length_of(&self, slot: Slot, range: Range) -> Result<u64> {
        let live = if slot.is_pending() { slot.to_live() } else { slot };
        if live.read_bytes() < LENGTH_UNITS_MAX * UNIT_BYTES {
            return Ok(range.bytes);
        }
        let head = Range { bytes: UNIT_BYTES, ..range };
        let read = self.node.table().read(&[head], self.node.until_ns()).await?;
        let header = read.first().and_then(|bytes| Header::read(bytes).ok().flatten());
        let header = header.ok_or_else(|| {
            Error::busy("the index or a node names a record that the pool does not have")
        })?;
        Ok(header.record_bytes())
    }

    async fn ask_what_refers(
        &self,
        partition: PartitionId,
        blocks: &BTreeSet<BlockId>,
    ) -> Result<Vec<u64>> {
        let until_ns = self.node.until_ns();
        loop {
            let map = self.node.joined()?.map();
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
            self.node.table().late(until_ns, "what refers to records")?;
            self.node.runtime().sleep(self.node.settings().lease).await;
        }
    }

    async fn ask_owner(&self, entry: Assigned, refers: &Message) -> Result<Option<Message>> {
        match self.node.node_of(entry) {
            Ok(None) => Ok(Some(self.proxy.what_refers(refers).await)),
            Ok(Some(peer)) => {
                Ok(self.node.ask_once(&peer, &mut Asked::new(refers)).await.ok().flatten())
            }
            Err(_) => Ok(None),
        }
    }

    async fn ask_what_is_held(&self, blocks: &BTreeSet<BlockId>) -> Result<BTreeSet<u64>> {
        let mut held: BTreeSet<u64> = self.node.held_in(blocks).into_iter().collect();
        let map = self.node.joined()?.map();
        let holds = Message::Holds { blocks: blocks.iter().copied().collect() };
        for member in map.members.iter().filter(|member| member.client != self.node.client()) {
            let peer = self.node.peers().peer(member);
            match self.node.ask(&peer, &holds, self.node.until_ns()).await {
                Ok(Message::Referred { words }) => held.extend(words),
                Ok(_) => {
                    return Err(Error::busy("a node did not answer which records it refers to"));
                }
                Err(_) if self.node.pool().is_gone(member.client).await? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(held)
    }
}
