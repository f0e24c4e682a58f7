//! Access counters: the accesses of an interval, from the counts of nodes since they began.
//!
//! A compute node adds to a 4-byte counter per partition, which wraps. The coordinator reads all of
//! them one-sided, and takes the difference to its last reading. A node in a new life begins at
//! zero. The first reading of a node says nothing about the interval and counts as no access, so
//! that a coordinator that has just started sees no burst.
//!
//! Invariant: an access is counted in at most one interval.
//!
//! Thread-safety: by `&mut`.
//! Cost: 4 bytes per partition and node. Paper: §4.2.

use std::collections::BTreeMap;

use crate::ids::ComputeId;

/// The accesses of the current interval.
#[derive(Clone, Debug)]
pub struct Window {
    counts: Vec<u64>,
    last: BTreeMap<ComputeId, (u64, Vec<u32>)>,
}

impl Window {
    /// A window over `partitions` partitions.
    #[must_use]
    pub fn new(partitions: u32) -> Self {
        Self { counts: vec![0; partitions as usize], last: BTreeMap::new() }
    }

    /// Takes a reading of a node in its `life`. Returns `false`, without effect, if the reading has
    /// another number of partitions.
    pub fn read(&mut self, node: ComputeId, life: u64, counters: &[u32]) -> bool {
        if counters.len() != self.counts.len() {
            return false;
        }
        match self.last.get_mut(&node) {
            None => {
                self.last.insert(node, (life, counters.to_vec()));
            }
            Some((known, last)) => {
                if *known != life {
                    *known = life;
                    last.fill(0);
                }
                for ((count, last), &now) in self.counts.iter_mut().zip(last).zip(counters) {
                    *count += u64::from(now.wrapping_sub(*last));
                    *last = now;
                }
            }
        }
        true
    }

    /// Forgets a node that is gone.
    pub fn forget(&mut self, node: ComputeId) {
        self.last.remove(&node);
    }

    /// Ends the interval, and returns the accesses by partition.
    pub fn take(&mut self) -> Vec<u64> {
        let partitions = self.counts.len();
        std::mem::replace(&mut self.counts, vec![0; partitions])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_summed_over_nodes_lives_and_wraps() {
        let mut window = Window::new(2);
        let (a, b) = (ComputeId(1), ComputeId(2));
        assert!(window.read(a, 1, &[100, u32::MAX]));
        assert_eq!(window.take(), [0, 0], "a first reading says nothing");
        assert!(window.read(b, 1, &[5, 5]));
        assert!(window.read(a, 1, &[110, 4]));
        assert!(window.read(b, 1, &[6, 5]));
        assert_eq!(window.take(), [11, 5]);
        assert!(window.read(a, 2, &[3, 0]), "restarted");
        assert_eq!(window.take(), [3, 0]);
        window.forget(a);
        assert!(window.read(a, 3, &[7, 7]));
        assert!(!window.read(a, 3, &[7]));
        assert_eq!(window.take(), [0, 0]);
    }
}
