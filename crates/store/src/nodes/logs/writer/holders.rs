//! The nodes of a log over time: nodes that drain or are lost, domains that return, and replicas
//! that failed nodes still have.
//!
//! A log that is idle sends nothing, so it does not notice what happens to its nodes. A task of the
//! log therefore looks at the members of the pool from time to time. If the pool has better nodes
//! for the open extent, the task ends that extent, and the next one gets nodes like any other
//! (`extents`). The ended extent is sealed, and repairs then give it all its copies. The new layout
//! is kept by a caller that waits for the log, or by the owner's thread.
//!
//! A repair puts another replica in the place of one whose node failed. When that node answers
//! again, the task seals the replica there, because the node counts an unsealed one as open. It
//! does the same for a replica of an extent that left the layout without a byte.
//!
//! Invariants:
//! 1. An extent ends only if the pool takes the next one on at least as many nodes as stay.
//! 2. The pause before a look may end the next extent grows each time. So a node that the manager
//!    reports as up, and that this process does not reach, costs few extents.
//! 3. A look tries to seal a limited number of replicas. After a failure on a node it tries no
//!    further replica of that node. So such a node does not keep the task from looking at the
//!    members.
//! 4. A replica without acknowledged bytes is sealed only after a layout without its extent is
//!    kept.
//!
//! Thread-safety: as for the writer; the task holds no lock over an await.
//! Failure: a look that fails is repeated by the next one.
//! Cost: a look reads the members that the client knows. It sends requests only for replicas that
//! are left.

use std::sync::Arc;
use std::time::Duration;

use super::super::super::StorageId;
use super::super::super::log::ReplicaId;
use super::super::copying::{ExtentCopy, copy_extent};
use super::super::placing::{reachable_nodes, wants_other_nodes};
use super::super::requests::LogFailure;
use super::{LogCore, LogState};

/// Longest pause before a look may end another extent.
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// Number of pauses after which the next extent counts as the first one again.
const PAUSES_OF_REST: u64 = 10;
/// Limit of the replicas that wait for their nodes. Those beyond it stay unsealed.
const LEFT_MAX: usize = 1024;
/// Number of replicas that one look tries to seal.
const SEALS_MAX: usize = 16;

/// A replica of an ended extent on a node that failed, which the layout does not name any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeftReplica {
    to: ReplicaId,
    /// Offset in the log at which the extent begins.
    start: u64,
    /// Offset in the log at which it ends.
    end: u64,
}

impl LogState {
    /// Notes the replicas that a repair leaves behind: `nodes` have the extent from now on.
    pub(super) fn note_left_replicas(&mut self, extent: u32, nodes: &[StorageId]) {
        let Some(record) = self.layout.extents.iter().find(|it| it.number == extent) else {
            return;
        };
        let Some(end) = record.end else { return };
        let room = LEFT_MAX.saturating_sub(self.left_replicas.len());
        let left = record.nodes.iter().filter(|node| !nodes.contains(node));
        let replica = |node: &StorageId| {
            let to = ReplicaId { extent, node: *node };
            LeftReplica { to, start: record.start, end }
        };
        self.left_replicas.extend(left.map(replica).take(room));
    }

    /// Notes a replica that failed, of an extent that leaves the layout without a byte. The extent
    /// begins and ends at `end`.
    pub(super) fn note_left_empty(&mut self, to: ReplicaId, end: u64) {
        let left = LeftReplica { to, start: end, end };
        if self.left_replicas.len() < LEFT_MAX && !self.left_replicas.contains(&left) {
            self.left_replicas.push(left);
        }
    }

    /// Takes the replicas that may be sealed now. A recovery must not find an extent without
    /// acknowledged bytes. So a replica of such an extent waits until all layouts are kept.
    fn take_left_replicas(&mut self) -> Vec<LeftReplica> {
        let is_kept = self.record.is_none() && !self.is_keeping;
        let extents = &self.layout.extents;
        let is_named = |number: u32| extents.iter().any(|extent| extent.number == number);
        let may_seal = |left: &mut LeftReplica| {
            left.start < left.end || (is_kept && !is_named(left.to.extent))
        };
        self.left_replicas.extract_if(.., may_seal).collect()
    }
}

/// Decides when a look may end an extent.
#[derive(Debug)]
struct MovePace {
    pause_min_ns: u64,
    pause_ns: u64,
    /// Time of the last extent that a look ended.
    moved_ns: Option<u64>,
}

impl MovePace {
    /// A pace whose first pause is `pause_min`.
    fn new(pause_min: Duration) -> Self {
        let pause_min_ns = pause_min.as_nanos() as u64;
        Self { pause_min_ns, pause_ns: pause_min_ns, moved_ns: None }
    }

    /// Whether a look may end an extent at `now_ns`. If so, the look does.
    fn may_move(&mut self, now_ns: u64) -> bool {
        if let Some(moved_ns) = self.moved_ns {
            let passed_ns = now_ns.saturating_sub(moved_ns);
            if passed_ns < self.pause_ns {
                return false;
            }
            self.pause_ns = match passed_ns >= PAUSES_OF_REST * self.pause_ns {
                true => self.pause_min_ns,
                false => (2 * self.pause_ns).min(PAUSE_MAX.as_nanos() as u64),
            };
        }
        self.moved_ns = Some(now_ns);
        true
    }
}

impl LogCore {
    /// Starts the task that looks at the members. It does not keep the log.
    pub(super) fn spawn_looks(self: &Arc<Self>) {
        let (weak, every) = (Arc::downgrade(self), self.options.look_every);
        let runtime = Arc::clone(self.requests.runtime());
        let task = Box::pin(async move {
            let mut pace = MovePace::new(every);
            loop {
                runtime.sleep(every).await;
                let Some(core) = weak.upgrade() else { return };
                if !core.look(&mut pace).await {
                    return;
                }
            }
        });
        self.requests.runtime().spawn("log-holders", task);
    }

    /// Looks at the members once. Returns whether the log still takes appends.
    async fn look(self: &Arc<Self>, pace: &mut MovePace) -> bool {
        let holders = {
            let state = self.state.lock();
            if state.error.is_some() || state.is_finishing || state.is_released {
                return false;
            }
            state.writer.open_nodes().map(<[StorageId]>::to_vec)
        };
        if let Some(holders) = holders {
            let copies_min = self.options.copies_min;
            match wants_other_nodes(&self.requests, copies_min, &holders).await {
                Ok(true) if pace.may_move(self.now_ns()) => self.leave_nodes(&holders),
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, log = %self.requests.log, "a log stays on its nodes");
                }
            }
        }
        self.seal_left_replicas().await;
        true
    }

    /// Ends the open extent, unless another one than that on `holders` has begun meanwhile.
    fn leave_nodes(self: &Arc<Self>, holders: &[StorageId]) {
        let (log, now_ns) = (self.requests.log, self.now_ns());
        self.change(|state| {
            let is_same = state.writer.open_nodes() == Some(holders);
            if is_same && state.error.is_none() && !state.is_finishing {
                tracing::info!(%log, ?holders, "a log leaves its nodes for better ones");
                state.writer.replace_extent(now_ns);
            }
        });
    }

    /// Seals replicas that repairs have left on nodes which answer again.
    async fn seal_left_replicas(self: &Arc<Self>) {
        let left = self.state.lock().take_left_replicas();
        if left.is_empty() {
            return;
        }
        let mut reachable = reachable_nodes(&self.requests).await.unwrap_or_default();
        let (mut waiting, mut tries) = (Vec::new(), 0);
        for replica in left {
            let node = replica.to.node;
            if tries == SEALS_MAX || !reachable.contains(&node) {
                waiting.push(replica);
                continue;
            }
            tries += 1;
            if !self.seal_left_replica(&replica).await {
                reachable.retain(|reachable| *reachable != node);
                waiting.push(replica);
            }
        }
        let mut state = self.state.lock();
        state.left_replicas.extend(waiting);
        state.left_replicas.truncate(LEFT_MAX);
    }

    /// Seals a replica that a repair has left. Returns whether its node has no open replica of the
    /// extent any more.
    async fn seal_left_replica(&self, left: &LeftReplica) -> bool {
        let LeftReplica { to, start, end } = *left;
        let len = match self.requests.seal(to, start, end).await {
            // The node has no such replica, or has promised a later epoch, so this writer has
            // nothing to seal there.
            Ok(_) | Err(LogFailure::NotThere(_) | LogFailure::Fenced(_)) => return true,
            Err(LogFailure::OtherLength(len)) => len,
            Err(failure) => {
                tracing::debug!(log = %self.requests.log, %failure, "a replica is sealed later");
                self.suspect_silent(to.node, &failure);
                return false;
            }
        };
        // The replica lacks bytes before its end, which the nodes of the extent have.
        let sources = {
            let state = self.state.lock();
            let mut extents = state.layout.extents.iter();
            let extent = extents.find(|it| it.number == to.extent);
            let nodes = extent.map(|it| it.nodes.clone()).unwrap_or_default();
            nodes.into_iter().map(|node| ReplicaId { node, ..to }).collect()
        };
        let range = len.clamp(start, end)..end;
        let copy = ExtentCopy { extent_start: start, range, sources, to };
        let copied = copy_extent(&self.requests, &copy).await;
        copied.inspect_err(|failed| self.suspect_silent(failed.node, &failed.failure)).is_ok()
    }

    /// Notes that a node does not answer. A node that refuses may still take new extents, for
    /// example on another disk than that of the replica.
    fn suspect_silent(&self, node: StorageId, failure: &LogFailure) {
        if failure.may_pass() {
            self.requests.suspect(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_moves_grow_and_end_after_a_rest() {
        let second = 1_000_000_000;
        let mut pace = MovePace::new(Duration::from_secs(3));
        let mut moves = Vec::new();
        for now in 0..60 {
            if pace.may_move(now * second) {
                moves.push(now);
            }
        }
        assert_eq!(moves, [0, 3, 9, 21, 45]);
        let rested = 45 + PAUSES_OF_REST * 48;
        assert!(pace.may_move(rested * second));
        assert!(pace.may_move((rested + 3) * second), "the pause is short again");
    }
}
