//! Copies of chunks while an owner works: a node is lost, emptied, or fuller than the others.
//!
//! | step | cause of the copies |
//! | --- | --- |
//! | repair | a node is killed, and the manager declares it lost |
//! | drain | the manager gets the order to empty a node |
//! | rebalance | a node starts again with less room, so that it is fuller than the others |
//!
//! Each storage node reports to the parent when it begins a copy ([`COPIES`]). So a fault hits
//! while a copy is under way, and the parent knows its target. The rate of copies is low, so the
//! bytes of a chunk take some tens of milliseconds. Several copies run at a time.
//!
//! Invariant: after [`Cluster::end_copies`] no node is to be emptied, and nothing is left to copy.
//! Copies that no node takes do not count as left: nodes keep longer replicas of an extent, or no
//! domain is free.
//!
//! Thread-safety: one thread owns a cluster.
//! Failure: an error names the condition that the manager did not report in time.
//! Cost: a question to the manager every 20 ms while the parent waits for nodes.

use std::time::Duration;

use archipelago::SystemClock;
use archipelago_base::runtime::wait_for;
use archipelago_store::nodes::wire::{
    MemberState, NodeStanding, StorageClusterStatus, StoreMessage,
};

use super::cluster::{Cluster, Copying, LOOK_PAUSE, NODE_BYTES};
use super::servers::RUNS;
use super::steps::{COPIES, Step};
use crate::children::{Fault, Heard, Server};

/// Chunks that a node must hold before it is lost, emptied or too full. Two are copied at a time.
const CHUNKS_MIN: u64 = 6;
/// Time in which a node should get these chunks.
const CHUNKS_PATIENCE: Duration = Duration::from_secs(5);
/// Time in which a copy must begin. The manager needs three seconds to declare a node lost, and
/// compares the chunks of a node that has returned before it moves others.
const COPY_PATIENCE: Duration = Duration::from_secs(30);
/// Time in which the manager must have nothing left to copy. A node that failed to make a copy is
/// avoided for half a minute.
const REPAIR_PATIENCE: Duration = Duration::from_secs(120);
/// Time in which an executor must begin a job.
const JOB_PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two checks of the lines of servers.
const LINE_PAUSE: Duration = Duration::from_millis(1);
/// Factor by which the room of a node with too little room exceeds the bytes that it uses.
const ROOM_FACTOR: u64 = 4;
/// Least room of such a node in bytes.
const ROOM_MIN: u64 = 8 << 20;

impl Cluster {
    /// Waits until a random node has chunks. Returns its index; `None` if it has none in time.
    pub(super) fn await_chunks(&mut self) -> Result<Option<usize>, String> {
        let index = self.rng.usize(..self.nodes.len());
        let clock = SystemClock::shared();
        let until_ns = clock.now_ns() + CHUNKS_PATIENCE.as_nanos() as u64;
        loop {
            let chunks = self.standing(index)?.report.chunks;
            if chunks >= CHUNKS_MIN {
                return Ok(Some(index));
            }
            if clock.now_ns() > until_ns {
                return Ok((chunks > 0).then_some(index));
            }
            clock.sleep(LOOK_PAUSE);
        }
    }

    /// Makes the cluster copy the chunks of a node: those of `step`.
    pub(super) fn begin_copies(&mut self, step: Step, from: usize) -> Result<(), String> {
        forget_lines(&self.nodes);
        self.copying = Some(Copying { step, from });
        match step {
            Step::Repair => self.take_node(from, Fault::Kill),
            Step::Rebalance => {
                let used_bytes = self.standing(from)?.report.space.used_bytes;
                self.limit_node(from, (used_bytes * ROOM_FACTOR).max(ROOM_MIN))
            }
            _ => self.order_drain(from, true),
        }
    }

    /// Waits until another node than `from` begins a copy. Returns its index; `None` if no copy
    /// begins in time.
    pub(super) fn await_copy(&self, from: usize) -> Option<usize> {
        let targets = || (0..self.nodes.len()).filter(move |index| *index != from);
        await_line(COPY_PATIENCE, || targets().find(|index| has_said(&self.nodes[*index], COPIES)))
    }

    /// A random node that holds chunks and is none of these two.
    pub(super) fn other_node(&mut self, from: usize, target: usize) -> usize {
        let others: Vec<usize> =
            (0..self.nodes.len()).filter(|index| *index != from && *index != target).collect();
        others[self.rng.usize(..others.len())]
    }

    /// Forgets the jobs that executors have begun so far.
    pub(super) fn forget_jobs(&self) {
        forget_lines(&self.executors);
    }

    /// Waits until an executor begins a job. Returns its index; `None` if no job begins in time.
    pub(super) fn await_job(&self) -> Option<usize> {
        let executors = || 0..self.executors.len();
        await_line(JOB_PATIENCE, || executors().find(|at| has_said(&self.executors[*at], RUNS)))
    }

    /// A random executor.
    pub(super) fn any_executor(&mut self) -> usize {
        self.rng.usize(..self.executors.len())
    }

    /// Ends the disturbance that [`Cluster::begin_copies`] has begun, and waits until nothing is
    /// left to copy. All processes run.
    pub(super) fn end_copies(&mut self) -> Result<(), String> {
        let Some(Copying { step, from }) = self.copying.take() else { return Ok(()) };
        match step {
            Step::Drain => self.order_drain(from, false)?,
            Step::Rebalance => self.limit_node(from, NODE_BYTES)?,
            _ => {}
        }
        self.wait_until_whole()?;
        self.await_repaired()
    }

    /// Starts a node again, which then may use this number of bytes.
    fn limit_node(&mut self, index: usize, bytes_max: u64) -> Result<(), String> {
        self.take_node(index, Fault::Kill)?;
        self.limits[index] = bytes_max;
        self.restore_node(index)
    }

    /// Lets the manager empty a node, or use it again.
    fn order_drain(&self, index: usize, is_draining: bool) -> Result<(), String> {
        let storage = self.standing(index)?.member.storage;
        let order = StoreMessage::DrainNode { storage, is_draining };
        match wait_for(&**self.client.runtime(), self.client.ask_manager(&order)) {
            Ok(StoreMessage::Done {}) => Ok(()),
            Ok(other) => Err(format!("the manager answers a drain with {}", other.name())),
            Err(error) => Err(format!("node {} cannot be emptied: {error}", index + 1)),
        }
    }

    fn status(&self) -> Result<StorageClusterStatus, String> {
        let ask = StoreMessage::StorageStatus {};
        match wait_for(&**self.client.runtime(), self.client.ask_manager(&ask)) {
            Ok(StoreMessage::StorageStatusIs { status }) => Ok(status),
            Ok(other) => Err(format!("the manager answers with {}", other.name())),
            Err(error) => Err(format!("the manager does not tell its state: {error}")),
        }
    }

    /// A node as the manager knows it.
    fn standing(&self, index: usize) -> Result<NodeStanding, String> {
        let number = index as u64 + 1;
        let nodes = self.status()?.nodes;
        let found = nodes.into_iter().find(|node| node.member.node.0 == number);
        found.ok_or_else(|| format!("the manager does not know node {number}"))
    }

    /// Waits until the manager has nothing left to copy.
    fn await_repaired(&self) -> Result<(), String> {
        let clock = SystemClock::shared();
        let until_ns = clock.now_ns() + REPAIR_PATIENCE.as_nanos() as u64;
        loop {
            let status = self.status();
            if status.as_ref().is_ok_and(is_repaired) {
                return Ok(());
            }
            if clock.now_ns() > until_ns {
                let repair = status.map(|status| status.repair);
                return Err(format!("copies are missing after {REPAIR_PATIENCE:?}: {repair:?}"));
            }
            clock.sleep(LOOK_PAUSE);
        }
    }
}

/// Whether all nodes are up, and the manager has no chunk and no sealed extent left to copy.
fn is_repaired(status: &StorageClusterStatus) -> bool {
    let repair = &status.repair;
    let left = repair.chunks_left + repair.extents_left;
    let is_up = |node: &NodeStanding| node.member.state == MemberState::Up;
    status.nodes.iter().all(is_up) && repair.is_known && left == 0
}

/// Forgets the lines that servers have printed so far.
fn forget_lines(servers: &[Server]) {
    for server in servers {
        while let Heard::Line(_) = server.process.hear(Duration::ZERO) {}
    }
}

/// Whether a server has printed a line.
fn has_said(server: &Server, wanted: &str) -> bool {
    while let Heard::Line(line) = server.process.hear(Duration::ZERO) {
        if line == wanted {
            return true;
        }
    }
    false
}

/// Repeats `look` until it finds a server, or the time has passed.
fn await_line(patience: Duration, look: impl Fn() -> Option<usize>) -> Option<usize> {
    let clock = SystemClock::shared();
    let until_ns = clock.now_ns() + patience.as_nanos() as u64;
    loop {
        let found = look();
        if found.is_some() || clock.now_ns() > until_ns {
            return found;
        }
        clock.sleep(LINE_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use archipelago_store::nodes::wire::RepairStatus;

    use super::*;

    #[test]
    fn cluster_is_repaired_when_all_is_known_and_nothing_is_left() {
        let repair = RepairStatus { is_known: true, ..RepairStatus::default() };
        let status = |repair| StorageClusterStatus { repair, ..StorageClusterStatus::default() };
        assert!(is_repaired(&status(repair.clone())));
        assert!(!is_repaired(&status(RepairStatus { is_known: false, ..repair.clone() })));
        assert!(!is_repaired(&status(RepairStatus { chunks_left: 1, ..repair.clone() })));
        assert!(!is_repaired(&status(RepairStatus { extents_left: 1, ..repair })));
    }
}
