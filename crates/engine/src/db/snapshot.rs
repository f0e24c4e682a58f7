//! Snapshots: which old versions of keys somebody still wants to see.
//!
//! Invariant: a sequence number is registered under the same lock under which a job takes the
//! list, and was the visible one then; so a job that did not see it in its list still keeps, by
//! its own `visible` number, everything that the snapshot needs. Taking and dropping one costs
//! O(log live snapshots); reads and writes cost nothing more however many are live.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::SeqNo;
use parking_lot::Mutex;

/// All live snapshots of a database.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    live: Mutex<BTreeMap<SeqNo, usize>>,
}

impl Snapshots {
    /// Registers the sequence number that `visible` tells under the lock.
    pub(crate) fn take(self: &Arc<Self>, visible: impl FnOnce() -> SeqNo) -> Snapshot {
        let mut live = self.live.lock();
        let seq = visible();
        *live.entry(seq).or_insert(0) += 1;
        Snapshot { registration: Arc::new(Registration { seq, snapshots: Arc::clone(self) }) }
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

#[derive(Debug)]
struct Registration {
    seq: SeqNo,
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
#[derive(Clone, Debug)]
pub struct Snapshot {
    registration: Arc<Registration>,
}

impl Snapshot {
    /// The sequence number of the last write that it sees.
    #[must_use]
    pub fn seq(&self) -> SeqNo {
        self.registration.seq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_a_registration() {
        let snapshots = Arc::new(Snapshots::default());
        let first = snapshots.take(|| SeqNo(7));
        let clone = first.clone();
        let second = snapshots.take(|| SeqNo(7));
        drop(first);
        assert_eq!(snapshots.list(|| SeqNo(9)), (vec![SeqNo(7)], SeqNo(9)));
        drop((clone, second));
        assert_eq!(snapshots.count(), 0);
    }
}
