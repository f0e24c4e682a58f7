//! Writes of slots from beginning to end under their partitions' locks, for writes that wait for nobody: the copies complete at once, and no
//! other node is to be told.
//!
//! It is what `proxy/mod.rs` says of a write, in its order, with these differences: nobody else comes in between, so the slot needs no lock of its own; and what it
//! is about to put in needs not be announced: who asks for that ([`Served::incoming`]) waits for the lock, and finds it in the slot, or looked before
//! `still` was asked. Several go together, so that their copies are written in one batch, and what is known of their keys is fetched side by side.
//!
//! A key that nobody knows a slot of **comes in** if no slot in its buckets has its fingerprint, so that no record has to be looked at, and no key with
//! it is coming in; into a slot as [`Candidates::free`](crate::format::Candidates::free) orders them.
//!
//! Thread-safety: one call at a time holds locks of several partitions ([`overwrite`] is called by who holds this node's cache), and nobody who holds one asks for
//! another, or for the cache.

use archipelago_base::prefetch::prefetch_value;
use parking_lot::MutexGuard;

use super::{Locks, Served};
use crate::format::{KeyHash, Slot, SlotIndex};
use crate::ids::ComputeId;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtOnce {
    /// Committed, in this slot and over this word. `worthy`: whether the pair is worth caching.
    Done { index: SlotIndex, old: Slot, worthy: bool },
    /// Nothing happened: it needs more than this.
    Not,
    /// Some copies may have the new word: another write has to follow.
    Broken,
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
    pub(crate) served: &'a Served,
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

/// Puts new words of different keys where they go; what came of each. `still`: whether they are in time, and this node a member. `copy` clears old
/// records as it is told and then writes the new words to all copies; whether that was done.
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
            false => AtOnce::Broken,
        };
    }
    came
}

/// Locks of the partitions, one each, and of each write which.
fn lock<'a>(writes: &[Overwrite<'a>]) -> (Vec<MutexGuard<'a, Locks>>, Vec<usize>) {
    let (mut held, mut partitions) = (Vec::with_capacity(writes.len()), Vec::new());
    partitions.reserve(writes.len());
    let of = |write: &Overwrite<'a>| {
        let known = partitions.iter().position(|known| std::ptr::eq(*known, write.served));
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
                (holds && !told && !locks.slots.contains_key(&index)).then_some((index, old))
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
                free.find(|(index, _)| !locks.slots.contains_key(index) && !is_taken(*index))
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
