//! The records that a partition of this node refers to: for sweeps of other nodes, and for counts
//! of keys.
//!
//! Invariants:
//! 1. The words that writes are about to put into a partition are read before its slots. So a sweep
//!    finds every word that enters the index, here or there.
//! 2. A node without the pool's lease answers nothing. It may have given up a write that is on the
//!    copies in the pool and not in its slots.
//!
//! Thread-safety: any thread may ask.
//! Failure: an error of the pool declines the question, and the sweep asks again.
//! Cost: none but memory for an offloaded partition. Otherwise a READ of the subtable and one READ
//! per pending slot.

use std::collections::BTreeSet;
use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_pool::{Address, BlockId};

use super::Proxy;
use super::served::ServedPartition;
use crate::format::{BUCKET_BYTES, Header, Slot, SlotIndex};
use crate::ids::PartitionId;
use crate::table::Range;
use crate::wire::{Message, Place, Shaped, Why};

impl Proxy {
    /// Answers which records in some blocks a partition of this node refers to.
    pub(crate) async fn what_refers(self: &Arc<Self>, refers: &Message) -> Message {
        let Message::Refers { partition, epoch, blocks } = refers else {
            return self.node.declined(Why::Malformed);
        };
        let Some(served) = self.get(PartitionId(*partition), *epoch) else {
            return self.node.declined(Why::Moved);
        };
        let Some(_inside) = served.try_enter() else {
            return self.node.declined(Why::Moved);
        };
        let blocks: BTreeSet<BlockId> = blocks.iter().copied().collect();
        let incoming = served.incoming();
        let slots = match served.all_words() {
            Some(words) => Ok((words, Vec::new())),
            None => self.words_of(served.shape()).await,
        };
        match slots {
            Ok(_) if !self.node.table().holds_lease() => self.node.declined(Why::Fenced),
            Ok((slots, pending)) => {
                self.settle_later(&served, pending);
                let words = incoming.into_iter().chain(slots);
                Message::Referred { words: self.node.words_in(words, &blocks) }
            }
            Err(error) => {
                tracing::debug!(%error, "a partition's slots");
                self.node.declined(Why::Busy)
            }
        }
    }

    /// The words of a partition that is updated one-sided, and the words that its pending slots
    /// supersede. Returns also where the pending slots are.
    pub(crate) async fn words_of(&self, shape: Shaped) -> Result<(Vec<u64>, Vec<Place>)> {
        let start = self.node.table().slot(shape, SlotIndex(0));
        let total = (BUCKET_BYTES as u64) << shape.log2_buckets;
        let part = 64 << 10;
        let mut words = Vec::new();
        for at in (0..total).step_by(part) {
            let address = Address { offset: start.offset + at, ..start };
            let range = Range { address, bytes: (part as u64).min(total - at) };
            let read = self.node.table().read(&[range], self.node.until_ns()).await?;
            let read = read.first().map_or(&[][..], Vec::as_slice);
            words.extend(read.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)));
        }
        if !self.node.table().holds_lease() {
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
            let bytes =
                self.node.table().read_record(Slot(place.word), self.node.until_ns()).await?;
            if let Ok(Some(header)) = Header::read(&bytes) {
                words.push(header.previous);
            }
        }
        Ok((words, pending))
    }

    /// Settles pending slots whose writers are gone. Otherwise their old records would stay in use
    /// until a client finds the slots.
    fn settle_later(self: &Arc<Self>, served: &ServedPartition, pending: Vec<Place>) {
        if pending.is_empty() {
            return;
        }
        let (proxy, assigned) = (Arc::clone(self), served.assigned());
        let task = async move {
            for place in pending {
                proxy.settle(PartitionId(assigned.partition), assigned.epoch, place).await;
            }
        };
        self.node.runtime().spawn("flex-settle", Box::pin(task));
    }
}
