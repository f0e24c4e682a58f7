//! The partitions that this node serves.
//!
//! The compute node owns one [`Proxy`]. Every partition has one compute node. If the partition is
//! **offloaded**, that node is its proxy: the slots lie in the node's memory, and the node alone
//! changes them (`write.rs`). If it is not, clients update slots one-sided ([`crate::onesided`]).
//! The node then performs inserts and deletions, because two inserts of one key must see each
//! other. It also settles slots that a dead client left pending.
//!
//! | file | task |
//! | --- | --- |
//! | `served/` | one partition: its slots, its locks, what is known of its keys |
//! | `write.rs` | writes of the index for clients |
//! | `invalidation.rs` | cache leases, and invalidation of those that cache a key |
//! | `unfinished.rs` | changes that a caller gave up |
//! | `refers.rs` | records that a partition refers to, for sweeps and counts |
//!
//! Invariants:
//! 1. A node without the pool's lease answers nothing.
//! 2. A slot here differs from the pool's copies only while a write of it is in progress.
//! 3. A deleted slot is reused at the earliest one slot lease after its deletion, by this node's
//!    clock, and one slot lease after this node took the partition. So a write may act on a
//!    position that was confirmed within a slot lease, whatever word the slot holds by then
//!    ([`SlotLease`](crate::lease::SlotLease)).
//! 4. If a record is superseded without losing its valid bit, only writers know its address.
//!
//! Thread-safety: any thread may call any method. Requests within a partition's gate keep it from
//! being moved.
//! Failure: a request to a partition that is not served here at the client's epoch is declined, and
//! the client waits for the next map.
//! Cost: a search takes two short locks. Paper: §4.3.1, §4.4, §4.5.

mod invalidation;
mod refers;
mod served;
mod unfinished;
mod write;

use std::hint::black_box;
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_fabric::ClientId;
use parking_lot::Mutex;

use crate::format::{KeyHash, Slot, SlotIndex};
use crate::ids::{ComputeId, PartitionId};
use crate::node::peers::Asked;
use crate::node::{Node, Stat};
use crate::wire::{Assigned, Candidate, Member, Message, ReadCount, SLOTS_BUCKETS_MAX, Why};

use invalidation::Leases;
use served::SearchAsker;
pub(crate) use served::{
    FastOutcome, Offloaded, Overwrite, PlacedWrite, ServedPartition, Target, UncommittedSlot,
    Writer, overwrite,
};
pub(crate) use unfinished::Unfinished;

/// A partition at the epoch at which a client knows it.
#[derive(Clone, Copy, Debug)]
struct PartitionAtEpoch {
    partition: PartitionId,
    epoch: u32,
}

/// The partitions that this node serves, and the leases that it gave to those that cache them.
pub(crate) struct Proxy {
    node: Arc<Node>,
    /// The partitions that are served here, by number.
    partitions: Mutex<Vec<Option<Arc<ServedPartition>>>>,
    leases: Leases,
}

impl Proxy {
    /// A proxy that serves no partition yet.
    pub(crate) fn new(node: Arc<Node>) -> Self {
        let leases = Leases::new(node.settings().terms());
        Self { node, partitions: Mutex::default(), leases }
    }

    /// Forgets the leases of nodes that are no longer members.
    pub(crate) fn retain_leases(&self, members: &[Member]) {
        self.leases.retain(members);
    }

    /// The partition, if this node serves it at `epoch`.
    pub(crate) fn get(&self, partition: PartitionId, epoch: u32) -> Option<Arc<ServedPartition>> {
        let partitions = self.partitions.lock();
        let served = partitions.get(partition.0 as usize)?.as_ref();
        served.filter(|served| served.assigned().epoch == epoch).cloned()
    }

    /// Several partitions under one lock. An element is `None` if this node does not serve the
    /// partition at that epoch.
    pub(crate) fn get_all<'a>(
        &self,
        wanted: impl Iterator<Item = &'a Assigned> + Clone,
    ) -> Vec<Option<Arc<ServedPartition>>> {
        let partitions = self.partitions.lock();
        let get = |entry: &Assigned| partitions.get(entry.partition as usize)?.as_ref();
        // Cloning an `Arc` waits for its memory before the next clone begins. Plain loads of all
        // counts overlap, so the loads come first.
        wanted.clone().for_each(|entry| _ = black_box(get(entry).map(Arc::strong_count)));
        let of_epoch =
            |entry: &Assigned| get(entry).filter(|served| served.assigned().epoch == entry.epoch);
        wanted.map(|entry| of_epoch(entry).cloned()).collect()
    }

    /// Replaces the served state of a partition.
    pub(crate) fn set(&self, partition: PartitionId, served: Option<Arc<ServedPartition>>) {
        let at = partition.0 as usize;
        let mut partitions = self.partitions.lock();
        if partitions.len() <= at {
            partitions.resize(at + 1, None);
        }
        let before = std::mem::replace(&mut partitions[at], served);
        drop(partitions);
        drop(before);
    }

    /// Closes the gate of a partition that is served here.
    pub(crate) fn close(&self, partition: PartitionId) -> Option<Arc<ServedPartition>> {
        let served = self.partitions.lock().get(partition.0 as usize).cloned().flatten();
        if let Some(served) = &served {
            served.close();
        }
        served
    }

    /// Waits until no request is within a closed partition, and then drops it. If this node serves
    /// it again, it takes it again.
    pub(crate) async fn let_go(&self, closed: Arc<ServedPartition>) {
        closed.drained().await;
        let mut partitions = self.partitions.lock();
        if let Some(place) = partitions.get_mut(closed.assigned().partition as usize)
            && place.as_ref().is_some_and(|served| Arc::ptr_eq(served, &closed))
        {
            *place = None;
        }
    }

    /// Number of partitions that are served here, and number of those that are offloaded.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let partitions = self.partitions.lock();
        let served = partitions.iter().flatten();
        (served.clone().count(), served.filter(|served| served.is_offloaded()).count())
    }

    /// Answers a read's look-up with the slots that may hold the key.
    fn search(&self, from: ClientId, at: PartitionAtEpoch, hash: KeyHash, reads: u32) -> Message {
        // This node drops its own cached pairs without a message, so it may cache pairs of any
        // worth. But while memory is short, such a pair would displace one that is worth more.
        let caches_always = from == self.node.client() && self.node.caching().has_room();
        self.found_in(from, at, |served, sharer| {
            served.search(hash, reads.saturating_add(1), SearchAsker { sharer, caches_always })
        })
    }

    /// Answers a write's look-up. The asker does not read by the answer, so no sharer is noted.
    fn locate(&self, from: ClientId, at: PartitionAtEpoch, hash: KeyHash) -> Message {
        self.found_in(from, at, |served, _| {
            let place = |(index, slot): (SlotIndex, Slot)| Candidate {
                index: index.0,
                word: slot.0,
                cache: false,
            };
            let candidates = served.candidates(hash)?;
            Some(candidates.matching(hash.fingerprint()).map(place).collect())
        })
    }

    /// Answers `from` with what `look` finds in an offloaded partition, and with a lease. `look`
    /// gets the number under which the asker may cache pairs, if it may.
    fn found_in(
        &self,
        from: ClientId,
        at: PartitionAtEpoch,
        look: impl FnOnce(&ServedPartition, Option<ComputeId>) -> Option<Vec<Candidate>>,
    ) -> Message {
        // The clock is read before the slots: a deletion after the look-up has a later stamp.
        let stamp_us = self.node.now_us();
        let Some(served) = self.get(at.partition, at.epoch) else {
            return self.node.declined(Why::Moved);
        };
        let Some(_inside) = served.try_enter() else {
            return self.node.declined(Why::Moved);
        };
        let (grant, sharer) = self.lease_to(from, stamp_us);
        let Some(slots) = look(&served, sharer) else { return self.node.declined(Why::Moved) };
        self.node.fenced().unwrap_or(Message::Found { slots, grant })
    }

    /// Answers a scan with the committed slots of some buckets of a partition that this node is the
    /// proxy of. The asker reads the records within an address lease and caches nothing.
    fn slots_of_buckets(&self, at: PartitionAtEpoch, bucket: u32, buckets: u32) -> Message {
        if buckets > SLOTS_BUCKETS_MAX {
            return self.node.declined(Why::Malformed);
        }
        let Some(served) = self.get(at.partition, at.epoch) else {
            return self.node.declined(Why::Moved);
        };
        let Some(_inside) = served.try_enter() else {
            return self.node.declined(Why::Moved);
        };
        let Some(words) = served.words_of_buckets(bucket, buckets) else {
            return self.node.declined(Why::Malformed);
        };
        self.node.fenced().unwrap_or(Message::SlotsAre { words })
    }

    /// Counts reads that a cache served. Counts of another epoch are dropped.
    fn count_reads(&self, partition: PartitionId, epoch: u32, counts: &[ReadCount]) {
        if let Some(served) = self.get(partition, epoch) {
            served.count_reads(counts);
        }
    }

    /// Answers a message that a node also sends to itself, if the answer needs no waiting. `None`
    /// for every other message.
    pub(crate) fn answer(&self, from: ClientId, message: &Message) -> Option<Message> {
        let came_us = self.node.now_us();
        Some(match message {
            Message::Search { partition, epoch, hash, reads } => {
                self.node.stats().add(Stat::Served);
                let at = PartitionAtEpoch { partition: PartitionId(*partition), epoch: *epoch };
                self.search(from, at, KeyHash(*hash), *reads)
            }
            Message::Locate { partition, epoch, hash } => {
                self.node.stats().add(Stat::Served);
                let at = PartitionAtEpoch { partition: PartitionId(*partition), epoch: *epoch };
                self.locate(from, at, KeyHash(*hash))
            }
            Message::Slots { partition, epoch, bucket, buckets } => {
                let at = PartitionAtEpoch { partition: PartitionId(*partition), epoch: *epoch };
                self.slots_of_buckets(at, *bucket, *buckets)
            }
            Message::Renew {} => Message::Renewed { grant: self.lease_to(from, came_us).0 },
            Message::Reads { partition, epoch, counts } => {
                self.count_reads(PartitionId(*partition), *epoch, counts);
                Message::Renewed { grant: self.lease_to(from, came_us).0 }
            }
            _ => return None,
        })
    }

    /// Asks the partition's node, which may be this one, a question that may be asked twice.
    /// `None` if the node does not answer, or not now.
    pub(crate) async fn ask_node(
        self: &Arc<Self>,
        entry: Assigned,
        message: &Message,
    ) -> Result<Option<Message>> {
        let Some(peer) = self.node.node_of(entry)? else {
            return Ok(match message {
                Message::Settle { partition, epoch, place } => {
                    Some(self.settle(PartitionId(*partition), *epoch, *place).await)
                }
                _ => self.answer(self.node.client(), message),
            });
        };
        match self.node.ask_once(&peer, &mut Asked::new(message)).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                tracing::debug!(%error, "a partition's node does not answer");
                Ok(None)
            }
        }
    }
}
