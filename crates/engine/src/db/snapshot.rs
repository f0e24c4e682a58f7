//! Snapshots: which old versions of keys somebody still wants to see.
//!
//! Invariant: a sequence number is registered under the same lock under which a job takes the
//! list, and was the visible one then; so a job that did not see it in its list still keeps, by
//! its own `visible` number, everything that the snapshot needs. Taking and dropping one costs
//! O(log live snapshots); reads and writes cost nothing more however many are live.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::{CfId, SeqNo};
use parking_lot::Mutex;

use crate::db::family::SuperVersion;

/// The super version of a family that a snapshot reads.
pub(crate) struct HeldFamily {
    pub(crate) cf: CfId,
    pub(crate) picture: Arc<SuperVersion>,
}

/// All live snapshots of a database.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    live: Mutex<BTreeMap<SeqNo, usize>>,
}

impl Snapshots {
    /// Registers the sequence number that `visible` tells under the lock.
    pub(crate) fn take(
        self: &Arc<Self>,
        visible: impl FnOnce() -> SeqNo,
        hold: impl FnOnce() -> Vec<HeldFamily>,
    ) -> Snapshot {
        let seq = {
            let mut live = self.live.lock();
            let seq = visible();
            *live.entry(seq).or_insert(0) += 1;
            seq
        };
        let registration = Registration { seq, held: hold(), snapshots: Arc::clone(self) };
        Snapshot { registration: Arc::new(registration) }
    }

    /// The live sequence numbers, ascending, and the visible one, both as of one moment.
    pub(crate) fn list(&self, visible: impl FnOnce() -> SeqNo) -> (Vec<SeqNo>, SeqNo) {
        let live = self.live.lock();
        (live.keys().copied().collect(), visible())
    }

    pub(crate) fn count(&self) -> usize {
        self.live.lock().values().sum()
    }
}

struct Registration {
    seq: SeqNo,
    held: Vec<HeldFamily>,
    snapshots: Arc<Snapshots>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut live = self.snapshots.live.lock();
        if let Some(count) = live.get_mut(&self.seq) {
            *count -= 1;
            if *count == 0 {
                live.remove(&self.seq);
            }
        }
    }
}

/// A point in time to read as of. Cheap to clone; compactions keep what it sees until the last
/// clone is dropped.
#[derive(Clone)]
pub struct Snapshot {
    registration: Arc<Registration>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("seq", &self.seq()).finish_non_exhaustive()
    }
}

impl Snapshot {
    /// The sequence number of the last write that it sees.
    #[must_use]
    pub fn seq(&self) -> SeqNo {
        self.registration.seq
    }

    /// The super version in which reads of the family find what the snapshot sees; `None`: the
    /// current one.
    pub(crate) fn held(&self, cf: CfId) -> Option<&Arc<SuperVersion>> {
        self.registration.held.iter().find(|family| family.cf == cf).map(|family| &family.picture)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_a_registration() {
        let snapshots = Arc::new(Snapshots::default());
        let first = snapshots.take(|| SeqNo(7), Vec::new);
        let clone = first.clone();
        let second = snapshots.take(|| SeqNo(7), Vec::new);
        drop(first);
        assert_eq!(snapshots.list(|| SeqNo(9)), (vec![SeqNo(7)], SeqNo(9)));
        drop((clone, second));
        assert_eq!(snapshots.count(), 0);
    }
}
