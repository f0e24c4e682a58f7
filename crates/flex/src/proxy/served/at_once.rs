//! Writes of slots from beginning to end under their partitions' locks, for writes that wait for nobody: the copies complete at once, and no
//! other node is to be told.
//!
//! It is what `proxy/mod.rs` says of a write, in its order, with these differences: nobody else comes in between, so the slot needs no lock of its own; and what it
//! is about to put in needs not be announced: who asks for that ([`Served::incoming`]) waits for the lock, and finds it in the slot, or looked before
//! `still` was asked. Several go together, so that their copies are written in one batch, and what is known of their keys is fetched side by side.
//!
//! Thread-safety: one call at a time holds locks of several partitions ([`overwrite`] is called by who holds this node's cache), and nobody who holds one asks for
//! another, or for the cache.

use archipelago_base::prefetch::prefetch_value;
use parking_lot::MutexGuard;

use super::{Locks, Served};
use crate::format::{Slot, SlotIndex};
use crate::ids::ComputeId;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtOnce {
    /// Committed. `worthy`: whether the pair is worth caching.
    Done { worthy: bool },
    /// Nothing happened: it needs more than this.
    Not,
    /// Some copies may have the new word: another write has to follow.
    Broken,
}

/// A slot that is to get another word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overwrite<'a> {
    pub(crate) served: &'a Served,
    pub(crate) index: SlotIndex,
    pub(crate) old: Slot,
    pub(crate) new: Slot,
}

/// An overwrite that may take place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// Its number.
    pub(crate) nth: usize,
    /// Whether the old record has to lose its valid bit before.
    pub(crate) clear: bool,
}

/// Supersedes the old words of different slots where those hold them, by this node `me`, which caches the new pairs; what came of each. `alone`: no other node
/// stands behind its bit among sharers. `still`: whether they are in time, and this node a member. `copy` clears old records as it is told and then writes
/// the new words to all copies; whether that was done.
pub(crate) fn overwrite(
    writes: &[Overwrite<'_>],
    (me, alone): (ComputeId, bool),
    still: impl FnOnce() -> bool,
    copy: impl FnOnce(&[Due]) -> bool,
) -> Vec<AtOnce> {
    let (mut held, of) = lock(writes);
    for (write, at) in writes.iter().zip(&of) {
        held[*at].metadata.prefetch(write.index);
    }
    let may = |(nth, write): (usize, &Overwrite<'_>)| {
        let locks = &*held[of[nth]];
        let may = write.may_take_place(locks, (me, alone));
        may.then(|| Due { nth, clear: locks.metadata.others(write.index) })
    };
    let due: Vec<Due> = writes.iter().enumerate().filter_map(may).collect();
    let mut came = vec![AtOnce::Not; writes.len()];
    if due.is_empty() || !still() {
        return came;
    }
    let copied = copy(&due);
    for Due { nth, .. } in due {
        came[nth] = match copied {
            true => writes[nth].commit(&mut held[of[nth]], me),
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
    fn may_take_place(&self, locks: &Locks, (me, alone): (ComputeId, bool)) -> bool {
        let Self { served, index, old, .. } = *self;
        let Some(words) = served.words.as_ref().filter(|_| served.holds(index)) else {
            return false;
        };
        let Some(key) = locks.metadata.get(index) else { return false };
        let told = !(key.sharers.is_empty() || alone && key.sharers.is_at_most(me));
        old.is_live() && words.load(index) == old && !told && !locks.slots.contains_key(&index)
    }

    /// The copies have the new word.
    fn commit(&self, locks: &mut Locks, me: ComputeId) -> AtOnce {
        let Self { served, index, old, new } = *self;
        if let Some(words) = &served.words {
            words.commit(index, old, new);
        }
        locks.metadata.take_told(index);
        locks.metadata.set_others(index, false);
        let worthy = locks.metadata.get_mut(index).is_some_and(|key| {
            key.count(1, 0);
            key.cache_worthy()
        });
        locks.metadata.share(index, me, worthy);
        AtOnce::Done { worthy }
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
