//! Carries out the actions of the quorum writer, under the lock of the log.
//!
//! Failure: none of its own.
//! Cost: O(replicas) per action.

use std::sync::Arc;

use archipelago_base::Error;

use super::super::super::StorageId;
use super::super::super::client::OperationKind;
use super::super::super::log::quorum::WriterAction;
use super::super::super::log::{LogLayout, ReplicaId};
use super::super::replica_stream::ReplicaStream;
use super::super::waiters::WaitGoal;
use super::{BackgroundTask, Effects, LogCore, LogState, PendingRecord, fail, wake_failed};

impl LogCore {
    /// Carries out all pending actions of the quorum writer, and collects their effects.
    pub(super) fn carry_out(self: &Arc<Self>, state: &mut LogState, effects: &mut Effects) {
        if state.error.is_none() {
            while let Some(action) = state.writer.next_action() {
                self.carry_out_one(state, action, effects);
            }
        }
        if state.error.is_none() {
            state.ring.release(state.writer.retain_from());
            self.publish(state);
        }
        if state.has_reached(WaitGoal::Room, self.options.ring_bytes_max) {
            state.waiters.has_room(&mut effects.wakers);
        }
        wake_failed(state, effects);
        state.find_keeper(effects);
    }

    fn carry_out_one(
        self: &Arc<Self>,
        state: &mut LogState,
        action: WriterAction,
        effects: &mut Effects,
    ) {
        match action {
            WriterAction::Append { to, extent_start, end, is_synced, start: _ } => {
                let stream = state.streams.entry(to);
                let stream =
                    stream.or_insert_with(|| ReplicaStream::new(to, extent_start, is_synced));
                stream.extend(end);
            }
            WriterAction::Sync(to) => {
                let submitted = state.submitted;
                if let Some(stream) = state.streams.get_mut(&to) {
                    stream.want_sync(submitted);
                }
            }
            WriterAction::Seal { to, end } => {
                // Without a stream no byte was sent, so the extent begins at its end.
                let stream = state.streams.entry(to);
                let stream = stream.or_insert_with(|| ReplicaStream::new(to, end, false));
                match stream.is_over() {
                    // A request to a replica without acknowledged bytes has failed before.
                    true => state.note_left_empty(to, end),
                    false => stream.want_seal(end),
                }
            }
            WriterAction::ChooseNodes { avoid } => self.want_nodes(state, &avoid, effects),
            WriterAction::Record { version, layout } => self.want_record(state, version, layout),
            WriterAction::Repair { extent, holders } => {
                if state.repairs.insert(extent, holders).is_none() {
                    effects.tasks.push(BackgroundTask::Repair(extent));
                }
            }
            WriterAction::Acknowledged(end) => {
                state.stalled_since_ns = None;
                state.waiters.acknowledged(end, &mut effects.wakers);
                self.note_acknowledged(state, end);
            }
            WriterAction::Synced(end) => {
                let is_enough = end >= state.sync_wanted;
                state.sync_since_ns = if is_enough { None } else { Some(self.now_ns()) };
                state.waiters.synced(end, &mut effects.wakers);
            }
            WriterAction::Finished(layout) => {
                state.finished = Some(layout);
                state.waiters.all(&mut effects.wakers);
            }
            WriterAction::Fenced => fail(state, self.fenced("a later epoch was promised")),
        }
    }

    /// Notes the times of the appends before `end`, which are acknowledged now.
    fn note_acknowledged(&self, state: &mut LogState, end: u64) {
        let now_ns = self.now_ns();
        while let Some(submitted_ns) = state.append_times.take_acknowledged(end) {
            self.requests.took(OperationKind::Append, now_ns.saturating_sub(submitted_ns));
        }
    }

    /// The error of a writer whose volume another process took over. `why` is the evidence.
    pub(super) fn fenced(&self, why: &str) -> Error {
        Error::fenced(format!(
            "{}: {why}; another process owns the volume now, so close this handle",
            self.name()
        ))
    }

    fn want_nodes(
        self: &Arc<Self>,
        state: &mut LogState,
        failed: &[StorageId],
        effects: &mut Effects,
    ) {
        // The extent has ended at the acknowledged end, so its replicas get no byte behind it.
        let end = state.writer.acknowledged();
        let ended = state.layout.extents.last().map(|extent| extent.number);
        for stream in state.streams.values_mut() {
            stream.cap(end);
            // A repair supplies the bytes that a failed replica lacks, and the ring drops them.
            let to = stream.to();
            if Some(to.extent) == ended && failed.contains(&to.node) {
                stream.end();
            }
        }
        failed.iter().for_each(|node| self.requests.suspect(*node));
        let without_bytes = state.layout.extents.last().filter(|extent| extent.start == end);
        if let Some(extent) = without_bytes.map(|extent| extent.number) {
            // No repair replaces these replicas, because the layout no longer has the extent.
            for node in failed {
                state.note_left_empty(ReplicaId { extent, node: *node }, end);
            }
        }
        state.stalled_since_ns.get_or_insert(self.now_ns());
        if !state.is_choosing {
            state.is_choosing = true;
            effects.tasks.push(BackgroundTask::Choose);
        }
    }

    fn want_record(&self, state: &mut LogState, version: u64, layout: LogLayout) {
        state.layout = layout.clone();
        let is_needed = |stream: &ReplicaStream| {
            let to = stream.to();
            let mut extents = layout.extents.iter();
            let extent = extents.find(|extent| extent.number == to.extent);
            extent.is_some_and(|extent| extent.nodes.contains(&to.node))
        };
        state.streams.retain(|_, stream| is_needed(stream) || stream.is_busy());
        if layout.is_ended {
            // The caller of `finish` keeps this layout.
            state.record = None;
            let now_ns = self.now_ns();
            state.writer.recorded(version, now_ns);
        } else {
            state.record = Some(PendingRecord { version, layout });
        }
    }
}
