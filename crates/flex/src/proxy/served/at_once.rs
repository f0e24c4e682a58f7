//! A write of a slot from beginning to end under the partition's lock, for writes that wait for nobody: the copies complete at once, and no
//! other node is to be told.
//!
//! It is what `proxy/mod.rs` says of a write, in its order, with these differences: nobody else comes in between, so the slot needs no lock of its own; and what it
//! is about to put in needs not be announced: who asks for that ([`Served::incoming`]) waits for the lock, and finds it in the slot, or looked before
//! `still` was asked.

use super::Served;
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

impl Served {
    /// Supersedes `old`, if the slot holds that, by this node `me`, which caches the new pair. `alone`: no other node stands behind its bit among
    /// sharers. `still`: whether it is in time, and this node a member. `copy` writes the new word to all copies, after the old record has lost its valid bit
    /// if it is told `true`; whether that was done.
    pub(crate) fn overwrite(
        &self,
        (index, old, new): (SlotIndex, Slot, Slot),
        (me, alone): (ComputeId, bool),
        still: impl FnOnce() -> bool,
        copy: impl FnOnce(bool) -> bool,
    ) -> AtOnce {
        let mut guard = self.locks.lock();
        let locks = &mut *guard;
        let Some(words) = self.words.as_ref().filter(|_| self.holds(index)) else {
            return AtOnce::Not;
        };
        let Some(key) = locks.metadata.get(index) else { return AtOnce::Not };
        let sharers = key.sharers;
        let told = !(sharers.is_empty() || alone && sharers.is_at_most(me));
        if !old.is_live() || words.load(index) != old || told || locks.slots.contains_key(&index) {
            return AtOnce::Not;
        }
        if !still() {
            return AtOnce::Not;
        }
        if !copy(locks.metadata.others(index)) {
            return AtOnce::Broken;
        }
        words.commit(index, old, new);
        locks.metadata.take_told(index);
        locks.metadata.set_others(index, false);
        let worthy = locks.metadata.get_mut(index).is_some_and(|key| {
            key.count(1, 0);
            key.cache_worthy()
        });
        locks.metadata.share(index, me, worthy);
        AtOnce::Done { worthy }
    }

    /// One more read of a slot.
    pub(crate) fn count_read(&self, index: SlotIndex) {
        if let Some(key) = self.locks.lock().metadata.get_mut(index) {
            key.count(0, 1);
        }
    }

    /// Brings what a write or a read of the slot looks at nearer, without waiting for it.
    pub(crate) fn touch(&self, index: SlotIndex) {
        if let Some(words) = self.words.as_ref().filter(|_| self.holds(index)) {
            std::hint::black_box(words.load(index));
        }
        std::hint::black_box((self.gate.is_closed(Self::DOOR), self.locks.is_locked()));
    }
}
