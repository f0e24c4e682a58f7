//! Nodes for the extents of a log that is being written. A new extent gets its nodes here, and so
//! does an ended extent that needs another replica after a node failed.
//!
//! Both are tasks. The task that chooses asks again until the pool has enough nodes, or until the
//! log has stalled for too long. It pauses before the next extent if the nodes of several extents
//! in a row took no byte. The task that repairs copies an ended extent to a node of another domain,
//! and seals all replicas, before it reports this to the quorum writer.
//!
//! Failure: a repair that fails is tried again while the log is written. A repair that has not
//! ended when the log ends is given up, and the extent keeps the replicas that it has.
//! Cost: a repair reads and writes the bytes of the extent once, in pieces.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::{Error, Result};

use super::super::super::StorageId;
use super::super::super::client::StoreEvent;
use super::super::super::log::ReplicaId;
use super::super::copying::{ExtentCopy, copy_extent};
use super::super::placing::{place_extent, replace_replica};
use super::LogCore;
use super::fail;

/// Pause before nodes are chosen again; every further pause doubles.
const CHOICE_PAUSE: Duration = Duration::from_millis(20);
/// Longest pause before nodes are chosen again.
const CHOICE_PAUSE_MAX: Duration = Duration::from_millis(500);
/// Number of extents in a row that may begin at the same offset of the log without a pause.
const EMPTY_EXTENTS_FREE: u32 = 3;
/// Pause before a repair is tried again.
const REPAIR_PAUSE: Duration = Duration::from_secs(1);

/// Extents in a row that began at the same offset of the log, because their nodes took no byte.
///
/// Without this limit, nodes that refuse each append immediately would get thousands of extents a
/// second until the log fails.
#[derive(Debug, Default)]
pub(super) struct EmptyExtents {
    start: u64,
    count: u32,
}

impl EmptyExtents {
    /// Notes that nodes were chosen for an extent that begins at `start`.
    fn note(&mut self, start: u64) {
        let is_same = self.start == start;
        self.count = if is_same { self.count.saturating_add(1) } else { 1 };
        self.start = start;
    }

    /// Pause before nodes are chosen for an extent that begins at `start`.
    fn pause(&self, start: u64) -> Duration {
        let count = if self.start == start { self.count } else { 0 };
        match count.checked_sub(EMPTY_EXTENTS_FREE) {
            None => Duration::ZERO,
            Some(doublings) => (CHOICE_PAUSE * (1 << doublings.min(8))).min(CHOICE_PAUSE_MAX),
        }
    }
}

/// An ended extent that has fewer replicas than it should.
#[derive(Clone, Debug)]
struct IncompleteExtent {
    number: u32,
    range: Range<u64>,
    /// Nodes that have all bytes, or are about to.
    holders: Vec<StorageId>,
    /// All nodes that the extent ever had.
    nodes: Vec<StorageId>,
}

impl LogCore {
    /// Starts the task that chooses nodes. The caller has noted that it runs.
    pub(super) fn spawn_choice(self: &Arc<Self>) {
        let core = Arc::clone(self);
        let task = Box::pin(async move {
            let mut pause = CHOICE_PAUSE;
            while core.needs_nodes() {
                let empty_pause = core.pause_of_empty_extents();
                if !empty_pause.is_zero() {
                    core.requests.runtime().sleep(empty_pause).await;
                    if !core.needs_nodes() {
                        return;
                    }
                }
                match core.choose().await {
                    Ok(()) => pause = CHOICE_PAUSE,
                    Err(error) => {
                        core.note_stall(&error);
                        core.requests.runtime().sleep(pause).await;
                        pause = (pause * 2).min(CHOICE_PAUSE_MAX);
                    }
                }
            }
        });
        self.requests.runtime().spawn("log-extent", task);
    }

    /// Whether an extent is wanted. If not, the task ends.
    fn needs_nodes(&self) -> bool {
        let mut state = self.state.lock();
        let is_over = state.error.is_some() || state.is_released;
        state.is_choosing = !is_over && state.writer.needs_nodes();
        state.is_choosing
    }

    fn pause_of_empty_extents(&self) -> Duration {
        let state = self.state.lock();
        state.empty_extents.pause(state.writer.acknowledged())
    }

    async fn choose(self: &Arc<Self>) -> Result<()> {
        let nodes = place_extent(&self.requests, self.options.copies_min).await?;
        let now_ns = self.now_ns();
        let stall_ns = self.options.stall_max.as_nanos() as u64;
        self.change(|state| {
            if state.is_stalled(now_ns, stall_ns) {
                fail(state, self.stalled("its nodes took no bytes"));
            } else if state.error.is_none() {
                self.requests.count(StoreEvent::NewExtent);
                state.empty_extents.note(state.writer.acknowledged());
                state.writer.nodes_chosen(nodes);
            }
        });
        Ok(())
    }

    /// Notes that no nodes were found, or that a repair failed. The log fails if callers have
    /// waited for too long.
    fn note_stall(self: &Arc<Self>, error: &Error) {
        let now_ns = self.now_ns();
        let stall_ns = self.options.stall_max.as_nanos() as u64;
        tracing::debug!(%error, log = %self.requests.log, "a log waits for nodes");
        self.change(|state| {
            let lacks_sync = state.sync_since_ns.is_some_and(|since| now_ns >= since + stall_ns);
            if lacks_sync || state.is_stalled(now_ns, stall_ns) {
                fail(state, self.stalled(&error.to_string()));
            }
        });
    }

    fn stalled(&self, why: &str) -> Error {
        Error::busy(format!(
            "{}: nothing was acknowledged or synced for {} s: {why}",
            self.name(),
            self.options.stall_max.as_secs()
        ))
    }

    /// Starts the task that repairs an ended extent. The caller has noted its holders.
    pub(super) fn spawn_repair(self: &Arc<Self>, extent: u32) {
        let core = Arc::clone(self);
        let task = Box::pin(async move {
            while let Some(incomplete) = core.incomplete_extent(extent) {
                match core.repair(&incomplete).await {
                    Ok(nodes) => core.end_repair(extent, nodes),
                    Err(error) => {
                        tracing::debug!(%error, log = %core.requests.log, extent, "a repair waits");
                        core.note_stall(&error);
                        core.requests.runtime().sleep(REPAIR_PAUSE).await;
                    }
                }
            }
        });
        self.requests.runtime().spawn("log-repair", task);
    }

    /// The extent as it is now; `None` if it needs no repair any more.
    fn incomplete_extent(&self, number: u32) -> Option<IncompleteExtent> {
        let mut state = self.state.lock();
        let is_over = state.error.is_some() || state.is_released || state.finished.is_some();
        let record = state.layout.extents.iter().find(|extent| extent.number == number);
        let incomplete = record.filter(|_| !is_over).and_then(|record| {
            let holders = state.repairs.get(&number)?.clone();
            let (range, nodes) = (record.start..record.end?, record.nodes.clone());
            Some(IncompleteExtent { number, range, holders, nodes })
        });
        if incomplete.is_none() {
            state.repairs.remove(&number);
        }
        incomplete
    }

    /// Adds the missing replicas and seals all of them. Returns the nodes that have all bytes
    /// durably. One added replica suffices if the pool has no node for another one.
    async fn repair(&self, incomplete: &IncompleteExtent) -> Result<Vec<StorageId>> {
        let IncompleteExtent { number, range, holders, nodes } = incomplete;
        let replica = |node| ReplicaId { extent: *number, node };
        for holder in holders {
            let sealed = self.requests.seal(replica(*holder), range.start, range.end).await;
            sealed.map_err(|failure| failure.error(format!("{}: node {holder}", self.name())))?;
        }
        let mut all = holders.clone();
        while all.len() < nodes.len() {
            let avoid: Vec<StorageId> = nodes.iter().chain(&all).copied().collect();
            // If the pool has no other node, a node that failed may be up again.
            let added = match replace_replica(&self.requests, &all, &avoid).await {
                Err(_) => replace_replica(&self.requests, &all, &all).await,
                added => added,
            };
            let added = match added {
                Ok(added) => added,
                Err(_) if all.len() > holders.len() => break,
                Err(error) => return Err(error),
            };
            let copy = ExtentCopy {
                extent_start: range.start,
                range: range.clone(),
                sources: all.iter().map(|holder| replica(*holder)).collect(),
                to: replica(added),
            };
            if let Err(failed) = copy_extent(&self.requests, &copy).await {
                self.requests.suspect(failed.node);
                return Err(failed.failure.error(format!("{}: {failed}", self.name())));
            }
            all.push(added);
        }
        Ok(all)
    }

    fn end_repair(self: &Arc<Self>, extent: u32, nodes: Vec<StorageId>) {
        let now_ns = self.now_ns();
        tracing::info!(log = %self.requests.log, extent, "an extent has all its replicas again");
        self.change(|state| {
            state.repairs.remove(&extent);
            state.note_left_replicas(extent, &nodes);
            if state.error.is_none() && state.finished.is_none() {
                state.writer.repaired(extent, nodes, now_ns);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_that_take_no_byte_get_longer_and_longer_pauses() {
        let mut empty = EmptyExtents::default();
        assert_eq!(empty.pause(0), Duration::ZERO, "no extent has begun yet");
        let mut pauses = Vec::new();
        for _ in 0..12 {
            empty.note(7);
            pauses.push(empty.pause(7).as_millis());
        }
        assert_eq!(pauses, [0, 0, 20, 40, 80, 160, 320, 500, 500, 500, 500, 500]);
        assert_eq!(empty.pause(8), Duration::ZERO, "the nodes took a byte");
        empty.note(8);
        assert_eq!(empty.pause(8), Duration::ZERO);
    }
}
