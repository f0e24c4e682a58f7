//! Records that were superseded, on their way back to who owns their block.
//!
//! Whoever commits a write gives the old record's word to its block's owner; a writer who is that
//! itself is told so with the answer, and needs no message. A message goes out under one number
//! until it is answered, so it is executed once; should the owner be gone, nobody knows whether it
//! was, and the words are dropped: whoever adopts the block sweeps it (`sweep.rs`). An owner who
//! lives and lost the number is asked to sweep instead. What this node may still give back is
//! **held**: a sweep takes it for in use, so that a piece is not freed by the sweep, used again,
//! and then freed by a message that was late.
//!
//! Invariants: 1. a word is held from before the write that supersedes it until its owner has it
//! back, or is gone; 2. one message to an owner at a time. Thread-safety: all of it. Cost: one task
//! and one message per owner for all words that come meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_pool::ClientId;
use parking_lot::Mutex;

use super::Inner;
use super::peers::Asked;
use crate::format::{LENGTH_UNITS_MAX, Slot, UNIT_BYTES};
use crate::wire::Message;

/// Words of one message.
const WORDS_MAX: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct Frees {
    /// How often each word is held.
    held: Mutex<BTreeMap<u64, u32>>,
    /// By owner; an owner that is here has a task that sends.
    leaving: Mutex<BTreeMap<ClientId, Vec<Held>>>,
}

/// A word that a sweep must take for in use; not held any more when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    frees: Arc<Frees>,
    pub(crate) word: u64,
}

impl Frees {
    pub(crate) fn hold(self: &Arc<Self>, slot: Slot) -> Held {
        *self.held.lock().entry(slot.0).or_default() += 1;
        Held { frees: Arc::clone(self), word: slot.0 }
    }

    /// The words that are held.
    pub(crate) fn held(&self) -> Vec<u64> {
        self.held.lock().keys().copied().collect()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.frees.held.lock();
        if let Some(count) = held.get_mut(&self.word) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.word);
            }
        }
    }
}

impl Inner {
    /// Gives back the record that `old` named, wherever it lies.
    pub(crate) fn free_later(self: &Arc<Self>, old: Slot) {
        if !old.is_live() || self.free_at_once(old) {
            return;
        }
        let (inner, held) = (Arc::clone(self), self.frees.hold(old));
        let task = async move {
            while let Err(error) = inner.send_back(&held).await {
                tracing::debug!(%error, "a record is not given back yet");
                let released = error.kind() == archipelago_base::ErrorKind::NotFound;
                if released || inner.pool.is_evicted() {
                    return;
                }
                inner.runtime.sleep(inner.settings.lease).await;
            }
        };
        self.runtime.spawn("flex-free", Box::pin(task));
    }

    /// Whether a record is known to lie in a block of another node's, `client`.
    pub(crate) fn is_block_of(&self, slot: Slot, client: ClientId) -> bool {
        let range = self.table.record(slot).filter(|_| slot.is_live());
        let open = range.and_then(|range| self.pool.try_open(range.address.block));
        client != self.pool.client() && open.is_some_and(|open| open.config.owner == Some(client))
    }

    /// What lies in a block of this node's, and whose length the word says, needs no message and no
    /// task.
    fn free_at_once(&self, old: Slot) -> bool {
        let Some(range) = self.table.record(old) else { return true };
        let open = self.pool.try_open(range.address.block);
        let mine = open.is_some_and(|open| open.config.owner == Some(self.pool.client()));
        let known = range.bytes < LENGTH_UNITS_MAX * UNIT_BYTES;
        if mine && known {
            let from_ns = self.now_ns() + self.settings.address_lease_ns();
            self.records.pieces.lock().free(range.address, range.bytes, from_ns);
        }
        mine && known
    }

    /// Hands a word to the task that speaks with its block's owner.
    async fn send_back(self: &Arc<Self>, held: &Held) -> Result<()> {
        let Some(range) = self.table.record(Slot(held.word)) else { return Ok(()) };
        let block = range.address.block;
        // Opened once, its owner is known from then on.
        let known = self.table.open(range.address).await?.config.owner;
        let owner = match known.filter(|owner| self.is_member(*owner)) {
            Some(owner) => owner,
            // As it was opened, the block was of somebody who is gone.
            None => self.pool.locate(block).await?.owner.ok_or_else(|| Error::busy("no owner"))?,
        };
        if owner == self.pool.client() {
            self.free_here(&[held.word]).await;
            return Ok(());
        }
        if !self.is_member(owner) {
            return Err(Error::busy("the block's owner is no member, or not yet"));
        }
        let again = self.frees.hold(Slot(held.word));
        let begins = {
            let mut leaving = self.frees.leaving.lock();
            let begins = !leaving.contains_key(&owner);
            leaving.entry(owner).or_default().push(again);
            begins
        };
        if begins {
            let inner = Arc::clone(self);
            let task = async move { inner.keep_sending(owner).await };
            self.runtime.spawn("flex-free", Box::pin(task));
        }
        Ok(())
    }

    async fn keep_sending(self: &Arc<Self>, owner: ClientId) {
        loop {
            let words: Vec<Held> = {
                let mut leaving = self.frees.leaving.lock();
                let Some(waiting) = leaving.get_mut(&owner).filter(|list| !list.is_empty()) else {
                    leaving.remove(&owner);
                    return;
                };
                let most = waiting.len().min(WORDS_MAX);
                waiting.drain(..most).collect()
            };
            let free = Message::Free { words: words.iter().map(|held| held.word).collect() };
            let mut asked = Asked::new(&free);
            while !self.is_told(owner, &mut asked).await {
                self.pause().await;
            }
        }
    }

    /// Whether the owner has executed it, or is gone.
    async fn is_told(self: &Arc<Self>, owner: ClientId, asked: &mut Asked) -> bool {
        if self.pool.is_evicted() {
            return true;
        }
        let Some(peer) = self.peer_of(owner) else {
            return self.pool.is_gone(owner).await.unwrap_or(false);
        };
        match self.ask_once(&peer, asked).await {
            Ok(Some(Message::Done {})) => true,
            Ok(Some(_)) => {
                // Nothing was done: what is asked next is another question.
                *asked = asked.anew();
                false
            }
            Ok(None) => false,
            Err(error) => {
                // Nobody will hear whether they were: whoever has the block looks what lies in it
                // that nobody refers to.
                tracing::debug!(%error, "records that were given back are swept for");
                *asked = Asked::new(&Message::Sweep {});
                false
            }
        }
    }
}
