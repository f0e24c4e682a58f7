//! Writes of slots from beginning to end under their partitions' locks, for writes that wait for
//! nobody: the copies complete at once, and no other node is to be told.
//!
//! It is what `proxy/mod.rs` says of a write, in its order, with these differences: nobody else
//! comes in between, so the slot needs no lock of its own; and what it is about to put in needs not
//! be announced: who asks for that ([`Served::incoming`]) waits for the lock, and finds it in the
//! slot, or looked before `still` was asked. Several go together, so that their copies are written
//! in one batch, and what is known of their keys is fetched side by side.
//!
//! A key that nobody knows a slot of **comes in** if no slot in its buckets has its fingerprint, so
//! that no record has to be looked at, and no key with it is coming in; into a slot as
//! [`Candidates::free`](crate::format::Candidates::free) orders them.
//!
//! **If a copy does not take a word** others may have it, and the slot here has not. Then nothing
//! is committed, and the slot stays locked, the key coming in and the new word announced
//! ([`Ahead`]) until the slot's word is on all copies again: nobody writes the slot or brings the
//! key in meanwhile, and the new word is in no copy when the write is begun again. Should the
//! partition be taken by somebody else first, because this node was taken for dead, the write may
//! turn out to have happened, once: this node writes nothing any more.
//!
//! Thread-safety: one call at a time holds locks of several partitions ([`overwrite`] is called by
//! who holds this node's cache), and nobody who holds one asks for another, or for the cache.

use std::sync::Arc;

use archipelago_base::prefetch::prefetch_value;
use parking_lot::MutexGuard;

use super::{Coming, Incoming, Locked, Locks, Served};
use crate::format::{KeyHash, Slot, SlotIndex};
use crate::gates::Inside;
use crate::ids::ComputeId;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtOnce {
    /// Committed, in this slot and over this word. `worthy`: whether the pair is worth caching.
    Done { index: SlotIndex, old: Slot, worthy: bool },
    /// Nothing happened: it needs more than this.
    Not,
    /// It was not committed in this slot, over this word, but copies may have the new one: what is
    /// kept of it is [`Ahead`].
    Broken { index: SlotIndex, old: Slot },
}

/// Where a new word goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// Into this slot, if it holds this word.
    Slot(SlotIndex, Slot),
    /// Into any that the key may have, if it has none.
    Free(KeyHash),
}

/// A slot that is to get another word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overwrite<'a> {
    pub(crate) served: &'a Arc<Served>,
    pub(crate) target: Target,
    pub(crate) new: Slot,
}

/// Who writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer {
    /// This node, which caches the new pairs.
    pub(crate) me: ComputeId,
    /// No other node stands behind its bit among sharers.
    pub(crate) alone: bool,
    /// This node's clock.
    pub(crate) now_us: u64,
}

/// An overwrite that may take place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// Its number.
    pub(crate) nth: usize,
    pub(crate) index: SlotIndex,
    pub(crate) old: Slot,
    /// Whether the old record has to lose its valid bit before.
    pub(crate) clear: bool,
}

/// Puts new words of different keys where they go; what came of each. `still`: whether they are in
/// time, and this node a member. `copy` clears old records as it is told and then writes the new
/// words to all copies; whether that was done.
pub(crate) fn overwrite(
    writes: &[Overwrite<'_>],
    writer: Writer,
    still: impl FnOnce() -> bool,
    copy: impl FnOnce(&[Due]) -> bool,
) -> Vec<AtOnce> {
    let (mut held, of) = lock(writes);
    for (write, at) in writes.iter().zip(&of) {
        if let Target::Slot(index, _) = write.target {
            held[*at].metadata.prefetch(index);
        }
    }
    let mut due: Vec<Due> = Vec::with_capacity(writes.len());
    for (nth, write) in writes.iter().enumerate() {
        let locks = &*held[of[nth]];
        let is_taken = |index: SlotIndex| {
            due.iter().any(|other| other.index == index && of[other.nth] == of[nth])
        };
        if let Some((index, old)) = write.place(locks, writer, is_taken) {
            let clear = old.is_live() && locks.metadata.others(index);
            due.push(Due { nth, index, old, clear });
        }
    }
    let mut came = vec![AtOnce::Not; writes.len()];
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

/// Locks of the partitions, one each, and of each write which.
fn lock<'a>(writes: &[Overwrite<'a>]) -> (Vec<MutexGuard<'a, Locks>>, Vec<usize>) {
    let (mut held, mut partitions) = (Vec::with_capacity(writes.len()), Vec::<&Arc<Served>>::new());
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
    /// The slot, and what it holds; `None`: it may not take place.
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
                if locks.meets(self.served.coming(hash))
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

    /// The copies have the new word.
    fn commit(&self, locks: &mut Locks, due: Due, me: ComputeId) -> AtOnce {
        let Due { index, old, .. } = due;
        if let Some(words) = &self.served.words {
            words.commit(index, old, self.new);
        }
        let comes_in = matches!(self.target, Target::Free(_));
        locks.metadata.take_told(index);
        // As any insert's ([`Served::commit`]).
        locks.metadata.set_others(index, comes_in);
        let worthy = locks.metadata.get_mut(index).is_some_and(|key| {
            if comes_in {
                *key = Default::default();
            }
            key.count(1, 0);
            key.cache_worthy()
        });
        locks.metadata.share(index, me, worthy);
        AtOnce::Done { index, old, worthy }
    }
}

impl Overwrite<'_> {
    /// Of its key, if it comes in.
    fn coming(&self) -> Option<Coming> {
        match self.target {
            Target::Slot(..) => None,
            Target::Free(hash) => Some(self.served.coming(hash)),
        }
    }

    /// Some copies may have the new word.
    fn keep(&self, locks: &mut Locks, due: Due) -> AtOnce {
        let Due { index, old, .. } = due;
        let free = locks.add(index);
        assert!(free, "a slot was locked by two");
        locks.inserting.extend(self.coming());
        // With the lock, as [`Served::incoming`] wants it.
        self.served.incoming.lock().push(self.new.0);
        AtOnce::Broken { index, old }
    }

    /// Takes over what was kept of a write that is [`AtOnce::Broken`], and its place within the
    /// partition.
    pub(crate) fn ahead(&self, inside: Inside<'_>, (index, old): (SlotIndex, Slot)) -> Ahead {
        inside.stay();
        let (served, coming) = (Arc::clone(self.served), self.coming());
        Ahead { served, index, old, new: self.new, coming }
    }
}

/// A slot whose copies may have a word that was not committed. When it is dropped, the slot is
/// anybody's again.
#[derive(Debug)]
pub(crate) struct Ahead {
    pub(crate) served: Arc<Served>,
    pub(crate) index: SlotIndex,
    /// What the slot holds.
    pub(crate) old: Slot,
    new: Slot,
    coming: Option<Coming>,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let served = &*self.served;
        drop(Locked { served, slots: vec![self.index], inserting: self.coming });
        drop(Incoming(served, self.new.0));
        served.gate.leave(Served::DOOR);
    }
}

impl Served {
    /// One more read of a slot.
    pub(crate) fn count_read(&self, index: SlotIndex) {
        if let Some(key) = self.locks.lock().metadata.get_mut(index) {
            key.count(0, 1);
        }
    }

    /// Brings what a write or a read of the slot looks at nearer, without waiting for it.
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
