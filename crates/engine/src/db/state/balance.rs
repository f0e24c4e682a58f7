//! Load of a column family by bucket, and the change of its bucket map that the load asks for.
//!
//! The state of the jobs owns one [`Balance`] for each family. It is kept in memory only: after an
//! open the window is empty, and nothing is decided before the window has half of its seals.
//!
//! Invariants:
//! 1. At most one change is wanted at a time. It is for the map of one epoch.
//! 2. A key of a wanted split stays wanted until the split is made or the window decides again.
//!
//! Thread-safety: the jobs lock guards it.
//! Failure: none.
//! Cost: memory for the window and for the last changes.

use std::collections::VecDeque;

use archipelago_base::Epoch;

use crate::version::rebalance::{ChangeKind, MapChange, SealSample, Window};

/// Largest number of map changes that are remembered.
const HISTORY_MAX: usize = 32;

/// A change of a bucket map that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketChange {
    /// Time of the change, in milliseconds of Unix time.
    pub unix_ms: u64,
    /// Epoch of the new map.
    pub epoch: Epoch,
    /// Number of buckets of the new map.
    pub buckets: usize,
    /// Description of the change and of its reason.
    pub reason: String,
}

/// A change that the load asks for.
#[derive(Debug)]
pub(crate) struct WantedChange {
    pub(crate) change: MapChange,
    /// Epoch of the map that it changes.
    pub(crate) epoch: Epoch,
}

/// The load of a family and what follows from it.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    window: Window,
    wanted: Option<WantedChange>,
    /// The newest changes that were made, oldest first.
    history: VecDeque<BucketChange>,
}

impl Balance {
    /// The sample of the last sealed memtables.
    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    /// The change that is wanted, if there is one.
    pub(crate) fn wanted(&self) -> Option<&WantedChange> {
        self.wanted.as_ref()
    }

    /// Adds a sealed memtable to the window.
    pub(crate) fn add_seal(&mut self, seal: SealSample) {
        self.window.push(seal);
    }

    /// Replaces the wanted change by the result of `decide`. That function gets the window, and the
    /// change of the map of `epoch` that was wanted before.
    pub(crate) fn decide(
        &mut self,
        epoch: Epoch,
        decide: impl FnOnce(&Window, Option<&MapChange>) -> Option<MapChange>,
    ) {
        let before = self.wanted.take().filter(|wanted| wanted.epoch == epoch);
        let decided = decide(&self.window, before.as_ref().map(|wanted| &wanted.change));
        self.wanted = decided.map(|change| WantedChange { change, epoch });
    }

    /// Forgets the wanted change until the window asks for it again.
    pub(crate) fn forget_wanted(&mut self) {
        self.wanted = None;
    }

    /// Removes the part of the wanted change that the change `made` has made. That change led to
    /// the map of `epoch`.
    pub(crate) fn note_made(&mut self, made: &ChangeKind, epoch: Epoch) {
        let Some(wanted) = &mut self.wanted else { return };
        let cuts = made.cuts();
        match &mut wanted.change.kind {
            ChangeKind::Split { keys } if !cuts.is_empty() => {
                keys.retain(|key| !cuts.contains(key));
                wanted.epoch = epoch;
                if keys.is_empty() {
                    self.wanted = None;
                }
            }
            _ => self.wanted = None,
        }
    }

    /// Remembers a change that was made.
    pub(crate) fn remember(&mut self, change: BucketChange) {
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(change);
    }

    /// The newest changes since the open, oldest first.
    pub(crate) fn history(&self) -> Vec<BucketChange> {
        self.history.iter().cloned().collect()
    }
}
