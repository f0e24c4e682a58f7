//! Writes of slots that complete under the locks of their partitions, without waiting: every copy
//! takes its word before the call returns, and no other node must be invalidated.
//!
//! The steps are those of `proxy/write.rs` in the same order. There are two differences. No other
//! write can interleave, so the slot needs no lock of its own. And the new word is not announced: a
//! question for announced words ([`ServedPartition::incoming`]) waits for the partition's lock.
//! Then it finds the word in the slot, or it asked before `still` read the clock. Several writes go
//! together, so that their copies are written in one batch and the memory of their keys is fetched
//! in parallel.
//!
//! A key is **inserted** only if no slot in its buckets has its fingerprint, so that no record must
//! be read, and if no key with its fingerprint is being inserted. The order of free slots is that
//! of [`Candidates::free`](crate::format::Candidates::free).
//!
//! **If a copy does not take a word**, other copies may have it while the slot in memory does not.
//! Then nothing is committed. The slot stays locked, the key stays locked, and the new word stays
//! announced ([`UncommittedSlot`]) until all copies hold the slot's word again. So no other write
//! touches the slot or the key meanwhile, and no copy has the new word when the write starts again.
//! If this node was declared dead and another node takes the partition first, the write may turn
//! out to have happened once. This node then writes nothing more.
//!
//! Invariants:
//! 1. The caller of [`overwrite`] holds this node's cache, so at most one call at a time holds the
//!    locks of several partitions.
//! 2. No holder of a partition's lock asks for another lock or for the cache.
//!
//! Thread-safety: see the invariants.
//! Failure: a write that cannot complete is [`FastOutcome::NotDone`] or [`FastOutcome::Broken`].
//! Cost: a lock per partition, and one batch of writes per block.

use std::sync::Arc;

use archipelago_base::prefetch::prefetch_value;
use parking_lot::MutexGuard;

use super::{Incoming, IncomingKey, Locked, Locks, ServedPartition};
use crate::format::{KeyHash, Slot, SlotIndex};
use crate::gates::Inside;
use crate::ids::ComputeId;
use crate::wire::Shaped;

/// Result of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FastOutcome {
    /// The write was committed in this slot and superseded this word. `worthy` says whether the
    /// pair is worth caching.
    Committed { index: SlotIndex, old: Slot, worthy: bool },
    /// Nothing happened, because the write needs more than the fast path.
    NotDone,
    /// The write was not committed, but copies of this slot may have the new word. The caller makes
    /// an [`UncommittedSlot`] of it.
    Broken(OldSlot),
}

/// A slot, and the word that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OldSlot {
    pub(crate) index: SlotIndex,
    pub(crate) old: Slot,
}

/// Destination of a new word.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// The slot with this index, if it holds the given word.
    Slot(SlotIndex, Slot),
    /// Any free slot of the key's buckets, if the key has none.
    Free(KeyHash),
}

/// A write of one slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overwrite<'a> {
    pub(crate) served: &'a Arc<ServedPartition>,
    pub(crate) target: Target,
    pub(crate) new: Slot,
}

/// The node that writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer {
    /// The number of this node, which caches the new pairs.
    pub(crate) me: ComputeId,
    /// Whether no other node shares this node's bit in lists of sharers.
    pub(crate) alone: bool,
    /// This node's clock, in microseconds.
    pub(crate) now_us: u64,
}

/// A write that may take place, and its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacedWrite {
    /// Number of the write in its call.
    pub(crate) nth: usize,
    pub(crate) index: SlotIndex,
    pub(crate) old: Slot,
    /// Whether the old record must lose its valid bit first.
    pub(crate) clear: bool,
}

/// Writes the slots of different keys. `still` says whether the writes are in time and this node is
/// a member. `copy` clears old records where a [`PlacedWrite`] says so, and then writes the new
/// words to all copies. It returns whether every copy took its word.
pub(crate) fn overwrite(
    writes: &[Overwrite<'_>],
    writer: Writer,
    still: impl FnOnce() -> bool,
    copy: impl FnOnce(&[PlacedWrite]) -> bool,
) -> Vec<FastOutcome> {
    let (mut held, of) = lock(writes);
    for (write, at) in writes.iter().zip(&of) {
        if let Target::Slot(index, _) = write.target {
            held[*at].metadata.prefetch(index);
        }
    }
    let mut due: Vec<PlacedWrite> = Vec::with_capacity(writes.len());
    for (nth, write) in writes.iter().enumerate() {
        let locks = &*held[of[nth]];
        let is_taken = |index: SlotIndex| {
            due.iter().any(|other| other.index == index && of[other.nth] == of[nth])
        };
        if let Some((index, old)) = write.place(locks, writer, is_taken) {
            let clear = old.is_live() && locks.metadata.has_untracked(index);
            due.push(PlacedWrite { nth, index, old, clear });
        }
    }
    let mut came = vec![FastOutcome::NotDone; writes.len()];
    if due.is_empty() || !still() {
        return came;
    }
    let copied = copy(&due);
    for due in due {
        came[due.nth] = match copied {
            true => writes[due.nth].commit(&mut held[of[due.nth]], due, writer.me),
            false => writes[due.nth].keep(&mut held[of[due.nth]], due),
        };
    }
    came
}

/// Locks each partition once. Returns also, for each write, the number of its lock.
fn lock<'a>(writes: &[Overwrite<'a>]) -> (Vec<MutexGuard<'a, Locks>>, Vec<usize>) {
    let (mut held, mut partitions) =
        (Vec::with_capacity(writes.len()), Vec::<&Arc<ServedPartition>>::new());
    partitions.reserve(writes.len());
    let of = |write: &Overwrite<'a>| {
        let known = partitions.iter().position(|known| Arc::ptr_eq(known, write.served));
        known.unwrap_or_else(|| {
            partitions.push(write.served);
            held.push(write.served.locks.lock());
            held.len() - 1
        })
    };
    let of = writes.iter().map(of).collect();
    (held, of)
}

impl Overwrite<'_> {
    /// The slot of the write, and the word that it holds. `None` if the write may not take place.
    fn place(
        &self,
        locks: &Locks,
        writer: Writer,
        is_taken: impl Fn(SlotIndex) -> bool,
    ) -> Option<(SlotIndex, Slot)> {
        let words = self.served.words.as_ref()?;
        match self.target {
            Target::Slot(index, old) => {
                let holds = self.served.holds(index) && old.is_live() && words.load(index) == old;
                let sharers = locks.metadata.get(index)?.sharers;
                let told = !(sharers.is_empty() || writer.alone && sharers.is_at_most(writer.me));
                (holds && !told && !locks.has(index)).then_some((index, old))
            }
            Target::Free(hash) => {
                let candidates = self.served.candidates(hash)?;
                let mut named =
                    candidates.all().filter(|(_, slot)| slot.is_live() || slot.is_pending());
                if locks.meets(self.served.incoming_key(hash))
                    || named.any(|(_, slot)| slot.0 as u8 == hash.fingerprint())
                {
                    return None;
                }
                let lease = self.served.lease;
                let mut free = candidates.free(|slot| lease.may_reuse(slot, writer.now_us));
                free.find(|(index, _)| !locks.has(*index) && !is_taken(*index))
            }
        }
    }

    /// Commits a write whose new word is on all copies.
    fn commit(&self, locks: &mut Locks, due: PlacedWrite, me: ComputeId) -> FastOutcome {
        let PlacedWrite { index, old, .. } = due;
        if let Some(words) = &self.served.words {
            words.commit(index, old, self.new);
        }
        let comes_in = matches!(self.target, Target::Free(_));
        locks.metadata.take_readers(index);
        // As for every insert ([`ServedPartition::commit`]).
        locks.metadata.set_untracked(index, comes_in);
        let worthy = locks.metadata.get_mut(index).is_some_and(|key| {
            if comes_in {
                *key = Default::default();
            }
            key.count(1, 0);
            key.cache_worthy()
        });
        locks.metadata.share(index, me, worthy);
        FastOutcome::Committed { index, old, worthy }
    }
}

impl Overwrite<'_> {
    /// The key, if the write inserts it.
    fn incoming_key(&self) -> Option<IncomingKey> {
        match self.target {
            Target::Slot(..) => None,
            Target::Free(hash) => Some(self.served.incoming_key(hash)),
        }
    }

    /// Keeps the slot and the key locked, because some copies may have the new word.
    fn keep(&self, locks: &mut Locks, due: PlacedWrite) -> FastOutcome {
        let PlacedWrite { index, old, .. } = due;
        let free = locks.add(index);
        assert!(free, "a slot was locked by two");
        locks.inserting.extend(self.incoming_key());
        // Under the partition's lock, on which [`ServedPartition::incoming`] relies.
        self.served.incoming.lock().push(self.new.0);
        FastOutcome::Broken(OldSlot { index, old })
    }

    /// Takes over the locks of a write that is [`FastOutcome::Broken`], and its place within the
    /// partition's gate.
    pub(crate) fn keep_uncommitted(&self, inside: Inside<'_>, slot: OldSlot) -> UncommittedSlot {
        inside.stay();
        let (served, inserting) = (Arc::clone(self.served), self.incoming_key());
        UncommittedSlot { served, slot, new: self.new, inserting }
    }
}

/// A slot whose copies may have a word that was not committed. Dropping it unlocks the slot.
#[derive(Debug)]
pub(crate) struct UncommittedSlot {
    served: Arc<ServedPartition>,
    /// The slot, and the committed word that it holds.
    slot: OldSlot,
    new: Slot,
    inserting: Option<IncomingKey>,
}

impl UncommittedSlot {
    pub(crate) fn shape(&self) -> Shaped {
        self.served.shape()
    }

    pub(crate) fn slot(&self) -> OldSlot {
        self.slot
    }
}

impl Drop for UncommittedSlot {
    fn drop(&mut self) {
        let served = &*self.served;
        drop(Locked { served, slots: vec![self.slot.index], inserting: self.inserting });
        drop(Incoming(served, self.new.0));
        served.gate.leave(ServedPartition::GATE);
    }
}

impl ServedPartition {
    /// Counts one read of a slot.
    pub(crate) fn count_read(&self, index: SlotIndex) {
        if let Some(key) = self.locks.lock().metadata.get_mut(index) {
            key.count(0, 1);
        }
    }

    /// Prefetches the memory that a write or a read of the slot touches.
    pub(crate) fn touch(&self, index: SlotIndex) {
        for part in [std::ptr::from_ref(&self.gate).cast(), std::ptr::from_ref(&self.locks).cast()]
        {
            archipelago_base::prefetch::prefetch(part, 1);
        }
        if let Some(words) = self.words.as_ref().filter(|_| self.holds(index)) {
            prefetch_value(&words.0[index.0 as usize]);
        }
    }
}
