//! The waits-for graph: whether a request for a lock closes a circle. Pure functions.
//!
//! The nodes are owners of locks. An edge leads from an owner that waits to each owner that it
//! waits for. The row locks ask for each request that has to wait, before it waits. Every new edge
//! begins or ends at the owner of that request. So a circle exists if and only if it contains this
//! owner.
//!
//! Cost: one visit of each owner that the request waits for, directly or through others.

use std::collections::BTreeSet;

/// Whether a path along `blockers` leads from `start` back to `start`.
pub(super) fn closes_cycle<N: Copy + Ord>(start: N, blockers: impl Fn(N) -> Vec<N>) -> bool {
    let mut open = blockers(start);
    let mut visited = BTreeSet::new();
    while let Some(owner) = open.pop() {
        if owner == start {
            return true;
        }
        if visited.insert(owner) {
            open.extend(blockers(owner));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closes(edges: &[(u32, u32)], start: u32) -> bool {
        closes_cycle(start, |from| {
            edges.iter().filter(|edge| edge.0 == from).map(|edge| edge.1).collect()
        })
    }

    #[test]
    fn cycle_of_any_length_is_found() {
        assert!(closes(&[(1, 1)], 1));
        assert!(closes(&[(1, 2), (2, 1)], 1));
        assert!(closes(&[(1, 2), (1, 3), (3, 4), (4, 5), (5, 1)], 1));
    }

    #[test]
    fn paths_that_meet_again_are_no_cycle() {
        assert!(!closes(&[(1, 2), (1, 3), (2, 4), (3, 4)], 1));
        assert!(!closes(&[], 1));
    }

    #[test]
    fn cycle_that_the_start_only_leads_to_ends_the_search() {
        assert!(!closes(&[(1, 2), (2, 3), (3, 2)], 1));
    }
}
