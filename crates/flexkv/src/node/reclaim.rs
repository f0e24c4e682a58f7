//! Superseded records on their way back to the owners of their blocks.
//!
//! The node that commits a write sends the old record's word to the owner of its block. If the
//! writer is that owner, it learns so with the answer and needs no message. A message keeps its
//! number until it is answered, so the owner executes it once. If the owner is gone, no node knows
//! whether it executed the message. Then the words are dropped, because the node that adopts the
//! block sweeps it (`sweep.rs`). If the owner lives but no longer knows the number, it is asked to
//! sweep instead.
//!
//! A word that this node may still give back is **held**: sweeps take its record for in use.
//! Otherwise a sweep could free a piece, a new record could take its place, and a late message
//! could free that record.
//!
//! Invariants:
//! 1. A word is held from before the write that supersedes it until its owner has it back or is
//!    gone.
//! 2. At most one message to an owner is in flight.
//!
//! Thread-safety: any thread may call any method. Two mutexes guard the held and the leaving words;
//! neither is taken within the other.
//! Failure: a message that fails is sent again until the owner answers or is gone.
//! Cost: one task and one message per owner for all words that arrive meanwhile. A record in this
//! node's own block costs one short lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_pool::{BlockId, ClientId};
use parking_lot::Mutex;

use super::Node;
use super::peers::Asked;
use crate::format::{LENGTH_UNITS_MAX, Slot, UNIT_BYTES};
use crate::wire::Message;

/// Largest number of words in one message.
const WORDS_MAX: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct Reclaim {
    /// Number of guards of each held word.
    held: Mutex<BTreeMap<u64, u32>>,
    /// Words that leave, by owner. Each owner in the map has a task that sends its words.
    leaving: Mutex<BTreeMap<ClientId, Vec<Held>>>,
}

/// Guard of a word whose record sweeps take for in use.
#[derive(Debug)]
pub(crate) struct Held {
    reclaim: Arc<Reclaim>,
    word: u64,
}

impl Reclaim {
    fn hold(self: &Arc<Self>, slot: Slot) -> Held {
        *self.held.lock().entry(slot.0).or_default() += 1;
        Held { reclaim: Arc::clone(self), word: slot.0 }
    }

    /// The words that are held at the moment.
    fn held(&self) -> Vec<u64> {
        self.held.lock().keys().copied().collect()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.reclaim.held.lock();
        if let Some(count) = held.get_mut(&self.word) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.word);
            }
        }
    }
}

impl Node {
    /// Holds a word: sweeps take its record for in use until the guard is dropped.
    pub(crate) fn hold(&self, slot: Slot) -> Held {
        self.reclaim.hold(slot)
    }

    /// The words that this node holds of records in these blocks.
    pub(crate) fn held_in(&self, blocks: &BTreeSet<BlockId>) -> Vec<u64> {
        self.words_in(self.reclaim.held().into_iter(), blocks)
    }

    /// The words, among `words`, whose records lie in these blocks.
    pub(crate) fn words_in(
        &self,
        words: impl Iterator<Item = u64>,
        blocks: &BTreeSet<BlockId>,
    ) -> Vec<u64> {
        let within = |word: &u64| {
            let range = self.table.record(Slot(*word));
            range.is_some_and(|range| blocks.contains(&range.address.block))
        };
        words.filter(within).collect()
    }

    /// Gives back the record that `old` names, in whichever node's block it lies.
    pub(crate) fn free_later(self: &Arc<Self>, old: Slot) {
        if !old.is_live() || self.free_here_now(old) {
            return;
        }
        let (node, held) = (Arc::clone(self), self.reclaim.hold(old));
        let task = async move {
            while let Err(error) = node.send_back(&held).await {
                tracing::debug!(%error, "a record is not given back yet");
                let released = error.kind() == archipelago_base::ErrorKind::NotFound;
                if released || node.pool.is_evicted() {
                    return;
                }
                node.runtime.sleep(node.settings.lease).await;
            }
        };
        self.runtime.spawn("flex-free", Box::pin(task));
    }

    /// Whether a record is known to lie in a block of `client`, another node.
    pub(crate) fn is_block_of(&self, slot: Slot, client: ClientId) -> bool {
        let range = self.table.record(slot).filter(|_| slot.is_live());
        let open = range.and_then(|range| self.pool.try_open(range.address.block));
        client != self.pool.client() && open.is_some_and(|open| open.config.owner == Some(client))
    }

    /// Frees a record without a message or a task, if it lies in a block of this node and its word
    /// tells its length. Returns whether it did.
    fn free_here_now(&self, old: Slot) -> bool {
        let Some(range) = self.table.record(old) else { return true };
        let open = self.pool.try_open(range.address.block);
        let mine = open.is_some_and(|open| open.config.owner == Some(self.pool.client()));
        let known = range.bytes < LENGTH_UNITS_MAX * UNIT_BYTES;
        if mine && known {
            let from_ns = self.now_ns() + self.settings.address_lease_ns();
            self.records.free(range.address, range.bytes, from_ns);
        }
        mine && known
    }

    /// Hands a word to the task that speaks with its block's owner.
    async fn send_back(self: &Arc<Self>, held: &Held) -> Result<()> {
        let Some(range) = self.table.record(Slot(held.word)) else { return Ok(()) };
        let block = range.address.block;
        // An open block names its owner.
        let known = self.table.open(range.address).await?.config.owner;
        let owner = match known.filter(|owner| self.is_member(*owner)) {
            Some(owner) => owner,
            // When the block was opened, its owner was a client that is gone now.
            None => self.pool.locate(block).await?.owner.ok_or_else(|| Error::busy("no owner"))?,
        };
        if owner == self.pool.client() {
            self.free_here(&[held.word]).await;
            return Ok(());
        }
        if !self.is_member(owner) {
            return Err(Error::busy("the owner of the block is no member of the store now"));
        }
        let again = self.reclaim.hold(Slot(held.word));
        let begins = {
            let mut leaving = self.reclaim.leaving.lock();
            let begins = !leaving.contains_key(&owner);
            leaving.entry(owner).or_default().push(again);
            begins
        };
        if begins {
            let node = Arc::clone(self);
            let task = async move { node.keep_sending(owner).await };
            self.runtime.spawn("flex-free", Box::pin(task));
        }
        Ok(())
    }

    async fn keep_sending(self: &Arc<Self>, owner: ClientId) {
        loop {
            let words: Vec<Held> = {
                let mut leaving = self.reclaim.leaving.lock();
                let Some(waiting) = leaving.get_mut(&owner).filter(|list| !list.is_empty()) else {
                    leaving.remove(&owner);
                    return;
                };
                let most = waiting.len().min(WORDS_MAX);
                waiting.drain(..most).collect()
            };
            let free = Message::Free { words: words.iter().map(|held| held.word).collect() };
            let mut asked = Asked::new(&free);
            while !self.is_acknowledged(owner, &mut asked).await {
                self.pause().await;
            }
        }
    }

    /// Whether the owner has executed the message, or is gone.
    async fn is_acknowledged(self: &Arc<Self>, owner: ClientId, asked: &mut Asked) -> bool {
        if self.pool.is_evicted() {
            return true;
        }
        let Some(peer) = self.peer_of(owner) else {
            return self.pool.is_gone(owner).await.unwrap_or(false);
        };
        match self.ask_once(&peer, asked).await {
            Ok(Some(Message::Done {})) => true,
            Ok(Some(_)) => {
                // The owner did nothing, so the next message is a new one.
                *asked = asked.anew();
                false
            }
            Ok(None) => false,
            Err(error) => {
                // Whether the records were freed cannot be found out. A sweep of the block finds
                // those that were not.
                tracing::debug!(%error, "records that were given back are swept for");
                *asked = Asked::new(&Message::Sweep {});
                false
            }
        }
    }
}
