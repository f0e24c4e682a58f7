//! The writer of a replicated log.
//!
//! A driver owns one [`QuorumWriter`], feeds it appends, answers and the time, and carries out its
//! [`WriterAction`]s. The writer knows offsets only; the driver keeps the bytes from
//! [`retain_from`](QuorumWriter::retain_from) on in its send buffer.
//!
//! Every append goes to all replicas immediately. The acknowledged end is the largest offset that
//! enough replicas have reached ([`AckRule`]). With [`AckRule::Quorum`] the third replica follows.
//! A replica that fails, refuses, or is too far behind ends the extent:
//!
//! 1. The writer chooses the acknowledged end as the end of the extent. From here on no answer of
//!    this extent moves the acknowledged end.
//! 2. It asks for nodes of a new extent, and sends all bytes behind the end to them.
//! 3. It asks the driver to record the layout with the end and the new extent durably.
//! 4. Only after that do answers of the new extent acknowledge.
//! 5. Then it seals the old replicas at the end. A seal syncs. Replicas that still lack bytes get
//!    them first, and those of failed nodes are reported for repair. When all replicas are sealed,
//!    it records that, so that no recovery reads the extent.
//!
//! The driver ends an extent in the same way if the pool has better nodes for the next one
//! ([`QuorumWriter::replace_extent`]). An extent that ends without acknowledged bytes leaves the
//! layout. Its replicas are sealed as well, because a node counts an unsealed one as open.
//!
//! A log ends when everything is acknowledged and then sealed, and the record of its end comes
//! last.
//!
//! Invariants:
//! 1. The acknowledged end only grows, and covers bytes of recorded extents only.
//! 2. Appends are acknowledged in order, and the synced end is never beyond the acknowledged one.
//! 3. A replica of the open extent is behind the acknowledged end by at most the backlog's limits.
//! 4. After the end of the writer no action acknowledges anything.
//! 5. An extent stays in the list of closing ones until all its replicas have sealed it, or a
//!    repair has replaced those that failed.
//!
//! Thread-safety: none; the driver's lock guards the value.
//! Failure: a fence ends the writer for good. Other failures of nodes cost a new extent. If the
//! pool has no nodes for one, the driver asks again later and appends stay unacknowledged.
//! Cost: O(replicas) per call.

use std::collections::VecDeque;

use super::super::StorageId;
use super::{AckRule, ExtentRecord, LogLayout, ReplicaId, SEALED_COPIES};

archipelago_base::fault_switches! {
    /// Steps of the writer that a checker leaves out, to prove that it notices.
    WriterSabotage {
        /// A new extent acknowledges before it is recorded.
        early_extent,
        /// One answer acknowledges.
        ack_at_one,
        /// Answers of an extent acknowledge although its end was chosen.
        late_answers,
    }
}

/// Least time, in nanoseconds, between two marks of the acknowledged end.
const MARK_NS: u64 = 50_000_000;

/// The rules of a writer.
#[derive(Clone, Copy, Debug)]
pub struct WriterRules {
    /// Rule by which replicas acknowledge.
    pub ack: AckRule,
    /// Bytes that a replica may be behind the acknowledged end; 8 MiB by default.
    pub backlog_bytes_max: u64,
    /// Time, in nanoseconds, that an acknowledged byte may be missing on a replica; 2 s by default.
    pub backlog_ns_max: u64,
}

impl WriterRules {
    /// The default limits with the acknowledgement `ack`.
    #[must_use]
    pub fn new(ack: AckRule) -> Self {
        Self { ack, backlog_bytes_max: 8 << 20, backlog_ns_max: 2_000_000_000 }
    }
}

/// Reason for which a node refused a request of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The node has promised a later epoch.
    Fenced,
    /// The node does not take the bytes: it is in limbo, has another length, or is full.
    NotTaken,
}

/// Progress of a replica, as its node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaProgress {
    /// Offset through which the bytes survive a kill of the node's process.
    pub written: u64,
    /// Offset through which the bytes survive power loss of the node.
    pub synced: u64,
}

/// An action that the driver carries out for the writer. The order of the actions counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriterAction {
    /// Sends the bytes from `start` to `end` of the log to a replica. The first append creates the
    /// replica.
    Append {
        /// Replica that gets the bytes.
        to: ReplicaId,
        /// Offset in the log at which the extent begins.
        extent_start: u64,
        /// Offset in the log of the first byte.
        start: u64,
        /// Offset in the log after the last byte.
        end: u64,
        /// Whether the node syncs before it answers.
        is_synced: bool,
    },
    /// Asks a replica to sync what was sent to it.
    Sync(ReplicaId),
    /// Asks a replica that has all bytes to end, to drop bytes behind the end, and to sync. The
    /// answer is progress up to the end. A replica to which no byte was sent begins at its end.
    Seal {
        /// Replica that ends.
        to: ReplicaId,
        /// Offset in the log at which the extent ends.
        end: u64,
    },
    /// Asks for the nodes of the next extent ([`QuorumWriter::nodes_chosen`]), without those that
    /// have just failed.
    ChooseNodes {
        /// Nodes that failed in the last extent.
        avoid: Vec<StorageId>,
    },
    /// Asks to keep the layout durably ([`QuorumWriter::recorded`]). A later record replaces it.
    Record {
        /// Number of the record.
        version: u64,
        /// The whole layout.
        layout: LogLayout,
    },
    /// Reports an ended extent that failed nodes leave with fewer replicas
    /// ([`QuorumWriter::repaired`]).
    Repair {
        /// Number of the extent.
        extent: u32,
        /// Nodes that have all bytes of the extent, or are about to.
        holders: Vec<StorageId>,
    },
    /// Wakes the callers that wait for bytes before this offset.
    Acknowledged(u64),
    /// Wakes the callers that wait for a sync through this offset.
    Synced(u64),
    /// Reports that the log has ended at its full length and that its layout is recorded.
    Finished(LogLayout),
    /// Reports that another owner has taken over. Nothing is acknowledged from here on.
    Fenced,
}

#[derive(Clone, Debug)]
struct Replica {
    node: StorageId,
    /// Offset through which bytes were sent.
    sent: u64,
    written: u64,
    synced: u64,
    has_failed: bool,
    /// Whether a seal was sent.
    is_sealing: bool,
}

/// An extent that takes appends, or has not been sealed by all its replicas.
#[derive(Clone, Debug)]
struct Extent {
    record: ExtentRecord,
    replicas: Vec<Replica>,
    /// Number of the first record that has the extent in its present state.
    version: u64,
    is_repair_reported: bool,
}

impl Extent {
    /// The largest offset that `answers` replicas have reached in terms of `progress`.
    fn reached(&self, answers: usize, progress: impl Fn(&Replica) -> u64) -> u64 {
        let mut ends: Vec<u64> = self.replicas.iter().map(progress).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        ends.get(answers - 1).copied().unwrap_or(self.record.start)
    }

    /// Whether two replicas have synced everything up to the end.
    fn is_durable(&self) -> bool {
        let copies = SEALED_COPIES.min(self.replicas.len());
        self.record.end.is_some_and(|end| self.reached(copies, |replica| replica.synced) >= end)
    }

    fn replica_mut(&mut self, node: StorageId) -> Option<&mut Replica> {
        self.replicas.iter_mut().find(|replica| replica.node == node)
    }
}

/// An extent that ended without acknowledged bytes, and whose replicas must be sealed.
#[derive(Clone, Debug)]
struct EmptyExtent {
    /// Offset at which the extent begins and ends.
    end: u64,
    /// Replicas that nodes may have.
    replicas: Vec<ReplicaId>,
    /// Number of the first record without the extent.
    version: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriterPhase {
    Writing,
    /// The log ends when everything is acknowledged.
    Finishing,
    /// Everything is acknowledged, and the replicas seal.
    EndChosen,
    /// The record of this version has the end of the log.
    EndRecorded(u64),
    Finished,
    Fenced,
}

/// The writer of a replicated log.
#[derive(Debug)]
pub struct QuorumWriter {
    rules: WriterRules,
    phase: WriterPhase,
    submitted: u64,
    acknowledged: u64,
    synced: u64,
    /// Offset through which a caller wants bytes to be synced.
    sync_wanted: u64,
    /// The extent that takes appends; `None` while its nodes are being chosen.
    open: Option<Extent>,
    /// Ended extents that not all replicas have sealed, in order.
    closing: Vec<Extent>,
    /// Extents that left the layout without a byte, until their seals are sent.
    emptied: Vec<EmptyExtent>,
    /// Records of ended extents whose replicas are complete.
    complete: Vec<ExtentRecord>,
    next_number: u32,
    /// Number of the newest record.
    version: u64,
    /// Number of the newest record that is durable.
    recorded: u64,
    /// Offsets that the acknowledged end reached, with the times, at least [`MARK_NS`] apart.
    marks: VecDeque<AckMark>,
    actions: VecDeque<WriterAction>,
    sabotage: WriterSabotage,
}

/// A time at which bytes were acknowledged.
#[derive(Clone, Copy, Debug)]
struct AckMark {
    end: u64,
    time_ns: u64,
}

impl QuorumWriter {
    /// The writer of an empty log with its first extent on `nodes`. The first action records it.
    #[must_use]
    pub fn new(rules: WriterRules, nodes: Vec<StorageId>) -> Self {
        let mut writer = Self {
            rules,
            phase: WriterPhase::Writing,
            submitted: 0,
            acknowledged: 0,
            synced: 0,
            sync_wanted: 0,
            open: None,
            closing: Vec::new(),
            emptied: Vec::new(),
            complete: Vec::new(),
            next_number: 1,
            version: 0,
            recorded: 0,
            marks: VecDeque::new(),
            actions: VecDeque::new(),
            sabotage: WriterSabotage::default(),
        };
        writer.nodes_chosen(nodes);
        writer
    }

    /// The same writer without the steps that `sabotage` leaves out.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn sabotaged(self, sabotage: WriterSabotage) -> Self {
        Self { sabotage, ..self }
    }

    /// The next action of the driver.
    pub fn next_action(&mut self) -> Option<WriterAction> {
        self.actions.pop_front()
    }

    /// Offset through which bytes are acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Offset through which bytes are synced.
    #[must_use]
    pub fn synced(&self) -> u64 {
        self.synced
    }

    /// Whether the writer waits for [`Self::nodes_chosen`].
    #[must_use]
    pub fn needs_nodes(&self) -> bool {
        self.takes_part() && self.open.is_none() && !self.is_end_chosen()
    }

    /// Nodes of the extent that takes appends. `None` while it is not recorded, and once the log
    /// is ending.
    #[must_use]
    pub fn open_nodes(&self) -> Option<&[StorageId]> {
        let open = self.open.as_ref().filter(|open| self.recorded >= open.version);
        let is_writing = self.phase == WriterPhase::Writing;
        open.filter(|_| is_writing).map(|open| open.record.nodes.as_slice())
    }

    /// Offset from which the driver must keep bytes: a replica may still need them, or a new
    /// extent.
    #[must_use]
    pub fn retain_from(&self) -> u64 {
        let extents = self.closing.iter().chain(&self.open);
        let live = extents.flat_map(|extent| &extent.replicas).filter(|r| !r.has_failed);
        live.map(|replica| replica.written).min().unwrap_or(u64::MAX).min(self.acknowledged)
    }

    /// Appends `len` bytes and returns the offset of the first one. `None` after the end of the
    /// writer.
    pub fn submit(&mut self, len: u64) -> Option<u64> {
        if self.phase != WriterPhase::Writing {
            return None;
        }
        let start = self.submitted;
        self.submitted += len;
        self.send();
        Some(start)
    }

    /// Asks for a sync of all submitted bytes, and returns the offset to wait for.
    pub fn sync(&mut self) -> u64 {
        if self.takes_part() && self.sync_wanted < self.submitted {
            self.sync_wanted = self.submitted;
            self.send_syncs();
        }
        self.sync_wanted
    }

    /// Ends the log as soon as everything is acknowledged.
    pub fn finish(&mut self, now_ns: u64) {
        if self.phase == WriterPhase::Writing {
            self.phase = WriterPhase::Finishing;
            self.advance(now_ns);
        }
    }

    /// Notes how far a replica is.
    pub fn answered(&mut self, from: ReplicaId, progress: ReplicaProgress, now_ns: u64) {
        if !self.takes_part() {
            return;
        }
        let takes_late_answers = self.sabotage.late_answers();
        let extent = self.closing.iter_mut().chain(&mut self.open);
        let Some(extent) = { extent }.find(|extent| extent.record.number == from.extent) else {
            return;
        };
        let limit = extent.record.end.filter(|_| !takes_late_answers).unwrap_or(u64::MAX);
        let Some(replica) = extent.replica_mut(from.node) else { return };
        let limit = limit.min(replica.sent);
        replica.written = replica.written.max(progress.written.min(limit));
        replica.synced = replica.synced.max(progress.synced.min(limit)).min(replica.written);
        self.advance(now_ns);
    }

    /// Notes that a replica cannot be reached, or that its answer did not come in time.
    pub fn failed(&mut self, replica: ReplicaId, now_ns: u64) {
        if !self.takes_part() {
            return;
        }
        if let Some(open) = &mut self.open
            && open.record.number == replica.extent
        {
            let Some(failed) = open.replica_mut(replica.node) else { return };
            failed.has_failed = true;
            self.end_extent(vec![replica.node]);
        } else {
            let mut closing = self.closing.iter_mut();
            if let Some(extent) = closing.find(|extent| extent.record.number == replica.extent)
                && let Some(failed) = extent.replica_mut(replica.node)
            {
                let is_new = !failed.has_failed;
                failed.has_failed = true;
                extent.is_repair_reported &= !is_new;
            }
        }
        self.advance(now_ns);
    }

    /// Notes that a node refused a request for a replica.
    pub fn refused(&mut self, replica: ReplicaId, refusal: Refusal, now_ns: u64) {
        match refusal {
            Refusal::Fenced => self.fence(),
            Refusal::NotTaken => self.failed(replica, now_ns),
        }
    }

    /// Ends the extent of [`Self::open_nodes`], because the pool has better nodes for the next one.
    /// Without such an extent nothing happens.
    pub fn replace_extent(&mut self, now_ns: u64) {
        if self.open_nodes().is_some() {
            self.end_extent(Vec::new());
            self.advance(now_ns);
        }
    }

    /// Takes the nodes of the next extent. The driver calls it after [`WriterAction::ChooseNodes`].
    pub fn nodes_chosen(&mut self, nodes: Vec<StorageId>) {
        if !self.needs_nodes() {
            return;
        }
        assert!(!nodes.is_empty(), "an extent has nodes");
        let start = self.acknowledged;
        let replicas = nodes.iter().map(|node| Replica {
            node: *node,
            sent: start,
            written: start,
            synced: start,
            has_failed: false,
            is_sealing: false,
        });
        let replicas = replicas.collect();
        let record =
            ExtentRecord { number: self.next_number, start, end: None, nodes, is_sealed: false };
        self.next_number += 1;
        let version = self.version + 1;
        self.open = Some(Extent { record, replicas, version, is_repair_reported: false });
        self.record();
        self.send();
        self.send_syncs();
    }

    /// Notes that the record with this number, or a later one, is durable.
    pub fn recorded(&mut self, version: u64, now_ns: u64) {
        if !self.takes_part() {
            return;
        }
        self.recorded = self.recorded.max(version);
        self.advance(now_ns);
    }

    /// Notes that a record was refused, because another owner has taken over.
    pub fn record_refused(&mut self) {
        self.fence();
    }

    /// Notes that a repair has completed an ended extent: `nodes` have all its bytes durably.
    pub fn repaired(&mut self, extent: u32, nodes: Vec<StorageId>, now_ns: u64) {
        if !self.takes_part() {
            return;
        }
        let at = self.closing.iter().position(|closing| closing.record.number == extent);
        let Some(at) = at else { return };
        let closing = &mut self.closing[at];
        let end = closing.record.end.unwrap_or(closing.record.start);
        let replica = |node: &StorageId| Replica {
            node: *node,
            sent: end,
            written: end,
            synced: end,
            has_failed: false,
            is_sealing: true,
        };
        closing.replicas = nodes.iter().map(replica).collect();
        closing.record.nodes = nodes;
        self.record();
        self.advance(now_ns);
    }

    /// Lets time pass: a replica that is behind for too long ends the extent.
    pub fn tick(&mut self, now_ns: u64) {
        if self.takes_part() {
            self.advance(now_ns);
        }
    }

    fn takes_part(&self) -> bool {
        !matches!(self.phase, WriterPhase::Fenced)
    }

    /// Whether the newest record has the end of the log.
    fn has_end(&self) -> bool {
        matches!(self.phase, WriterPhase::EndRecorded(_) | WriterPhase::Finished)
    }

    fn is_end_chosen(&self) -> bool {
        self.phase == WriterPhase::EndChosen || self.has_end()
    }

    fn fence(&mut self) {
        if self.takes_part() {
            self.phase = WriterPhase::Fenced;
            self.actions.clear();
            self.actions.push_back(WriterAction::Fenced);
        }
    }

    /// Moves everything forward that the last input permits.
    fn advance(&mut self, now_ns: u64) {
        self.acknowledge(now_ns);
        self.end_slow_extent(now_ns);
        self.choose_end();
        self.seal();
        self.publish_synced();
        self.retire();
        self.record_end();
        if let WriterPhase::EndRecorded(version) = self.phase
            && self.recorded >= version
        {
            self.phase = WriterPhase::Finished;
            let layout = self.layout();
            self.actions.push_back(WriterAction::Finished(layout));
        }
    }

    fn acknowledge(&mut self, now_ns: u64) {
        let ack_at_one = self.sabotage.ack_at_one();
        let reached = |extent: &Extent| {
            let replicas = extent.replicas.len();
            let answers = if ack_at_one { 1 } else { self.rules.ack.answers(replicas) };
            extent.reached(answers, |replica| match self.rules.ack {
                AckRule::Quorum => replica.written,
                AckRule::AllSynced => replica.synced,
            })
        };
        let mut end = self.acknowledged;
        if let Some(open) = &self.open
            && (self.recorded >= open.version || self.sabotage.early_extent())
        {
            end = end.max(reached(open));
        }
        if self.sabotage.late_answers() {
            end = self.closing.iter().map(reached).fold(end, u64::max);
        }
        if end > self.acknowledged {
            self.acknowledged = end;
            self.actions.push_back(WriterAction::Acknowledged(end));
            match self.marks.back_mut() {
                Some(mark) if now_ns < mark.time_ns + MARK_NS => mark.end = end,
                _ => self.marks.push_back(AckMark { end, time_ns: now_ns }),
            }
        }
    }

    /// Ends the open extent if a replica exceeds the backlog.
    fn end_slow_extent(&mut self, now_ns: u64) {
        let Some(open) = &self.open else { return };
        let least = open.replicas.iter().map(|replica| replica.written).min();
        while self.marks.front().is_some_and(|mark| least.is_some_and(|least| least >= mark.end)) {
            self.marks.pop_front();
        }
        let is_late = |replica: &Replica| {
            let missing = self.marks.iter().find(|mark| mark.end > replica.written);
            missing.is_some_and(|mark| now_ns >= mark.time_ns + self.rules.backlog_ns_max)
        };
        let is_slow = |replica: &&Replica| {
            let behind = self.acknowledged.saturating_sub(replica.written);
            behind > self.rules.backlog_bytes_max || is_late(replica)
        };
        let slow: Vec<StorageId> = open.replicas.iter().filter(is_slow).map(|r| r.node).collect();
        if slow.is_empty() {
            return;
        }
        // Bytes for a slow replica would fill the send buffer, so a repair supplies them.
        let replicas = self.open.iter_mut().flat_map(|open| &mut open.replicas);
        replicas.filter(|r| slow.contains(&r.node)).for_each(|r| r.has_failed = true);
        self.end_extent(slow);
    }

    /// Ends the open extent at the acknowledged end and asks for nodes of the next one.
    fn end_extent(&mut self, avoid: Vec<StorageId>) {
        self.close_open();
        self.actions.push_back(WriterAction::ChooseNodes { avoid });
    }

    fn close_open(&mut self) {
        let Some(mut extent) = self.open.take() else { return };
        self.marks.clear();
        let end = self.acknowledged;
        // An extent without acknowledged bytes leaves the layout: no reader needs it.
        if end == extent.record.start {
            self.note_empty(&extent);
        } else {
            extent.record.end = Some(end);
            extent.version = self.version + 1;
            if !self.sabotage.late_answers() {
                for replica in &mut extent.replicas {
                    replica.written = replica.written.min(end);
                    replica.synced = replica.synced.min(end);
                }
            }
            self.closing.push(extent);
        }
    }

    /// Notes the replicas of an extent that leaves the layout. A node has one if bytes were sent to
    /// it, and each node has one of the first extent since the creation of the log.
    fn note_empty(&mut self, extent: &Extent) {
        let ExtentRecord { number, start, .. } = extent.record;
        let exists =
            |replica: &&Replica| !replica.has_failed && (number == 1 || replica.sent > start);
        let replica = |replica: &Replica| ReplicaId { extent: number, node: replica.node };
        let replicas: Vec<ReplicaId> = extent.replicas.iter().filter(exists).map(replica).collect();
        if !replicas.is_empty() {
            self.emptied.push(EmptyExtent { end: start, replicas, version: self.version + 1 });
        }
    }

    /// Chooses the end of the log when it should end and everything is acknowledged.
    fn choose_end(&mut self) {
        let is_open = self.open.as_ref().is_some_and(|open| self.recorded >= open.version);
        if self.phase == WriterPhase::Finishing && is_open && self.acknowledged == self.submitted {
            self.close_open();
            self.phase = WriterPhase::EndChosen;
        }
    }

    /// Records the end of the log when all extents are durable. A reader of a log that has ended
    /// then needs no recovery.
    fn record_end(&mut self) {
        if self.phase == WriterPhase::EndChosen && self.synced == self.submitted {
            self.phase = WriterPhase::EndRecorded(self.version + 1);
            self.record();
        }
    }

    /// Seals replicas of extents whose end is recorded, and reports those of failed nodes.
    fn seal(&mut self) {
        let is_log_ending = self.is_end_chosen();
        let (recorded, actions) = (self.recorded, &mut self.actions);
        self.emptied.retain(|extent| {
            let may_seal = is_log_ending || recorded >= extent.version;
            if may_seal {
                let seal = |to: &ReplicaId| WriterAction::Seal { to: *to, end: extent.end };
                actions.extend(extent.replicas.iter().map(seal));
            }
            !may_seal
        });
        for extent in &mut self.closing {
            // A replica is sealed only after its end is recorded, because a recovery might not find
            // an unrecorded end. At the end of the log, the seals come first.
            let may_seal = is_log_ending || self.recorded >= extent.version;
            let Some(end) = extent.record.end.filter(|_| may_seal) else { continue };
            let number = extent.record.number;
            for replica in &mut extent.replicas {
                if replica.written >= end && !replica.has_failed && !replica.is_sealing {
                    replica.is_sealing = true;
                    let to = ReplicaId { extent: number, node: replica.node };
                    self.actions.push_back(WriterAction::Seal { to, end });
                }
            }
            if extent.replicas.iter().any(|replica| replica.has_failed)
                && !extent.is_repair_reported
            {
                extent.is_repair_reported = true;
                let live = extent.replicas.iter().filter(|replica| !replica.has_failed);
                let holders = live.map(|replica| replica.node).collect();
                self.actions.push_back(WriterAction::Repair { extent: number, holders });
            }
        }
    }

    fn publish_synced(&mut self) {
        let answers = |extent: &Extent| self.rules.ack.answers(extent.replicas.len());
        let mut end = self.acknowledged;
        for extent in self.closing.iter().chain(&self.open) {
            let is_recorded = extent.record.end.is_some() || self.recorded >= extent.version;
            let reached = extent.reached(answers(extent), |replica| replica.synced);
            let reached = if is_recorded { reached } else { extent.record.start };
            if reached < extent.record.end.unwrap_or(u64::MAX) {
                end = end.min(reached);
                break;
            }
        }
        if end > self.synced {
            self.synced = end;
            self.actions.push_back(WriterAction::Synced(end));
        }
    }

    /// Removes extents from the front of the list while all their replicas have sealed. So the
    /// layout keeps its order.
    fn retire(&mut self) {
        let is_complete = |extent: &Extent| {
            let end = extent.record.end.unwrap_or(u64::MAX);
            let has_sealed = |r: &Replica| r.is_sealing && r.synced >= end && !r.has_failed;
            self.recorded >= extent.version && extent.replicas.iter().all(has_sealed)
        };
        let complete = self.closing.iter().take_while(|extent| is_complete(extent)).count();
        self.complete.extend(self.closing.drain(..complete).map(|extent| extent.record));
        if complete > 0 && !self.is_end_chosen() {
            self.record();
        }
    }

    fn layout(&self) -> LogLayout {
        let complete = self.complete.iter().cloned();
        let complete = complete.map(|record| ExtentRecord { is_sealed: true, ..record });
        let others = self.closing.iter().chain(&self.open);
        let others = others.map(|e| ExtentRecord { is_sealed: e.is_durable(), ..e.record.clone() });
        let extents = complete.chain(others).collect();
        LogLayout { extents, is_ended: self.has_end(), may_miss_unsynced: false }
    }

    fn record(&mut self) {
        self.version += 1;
        let (version, layout) = (self.version, self.layout());
        self.actions.push_back(WriterAction::Record { version, layout });
    }

    /// Sends the bytes that were not sent to the replicas of the open extent yet.
    fn send(&mut self) {
        let Some(open) = &mut self.open else { return };
        let (extent, extent_start) = (open.record.number, open.record.start);
        for replica in open.replicas.iter_mut().filter(|r| r.sent < self.submitted) {
            let to = ReplicaId { extent, node: replica.node };
            let (start, end) = (replica.sent, self.submitted);
            let is_synced = self.rules.ack == AckRule::AllSynced;
            self.actions.push_back(WriterAction::Append {
                to,
                extent_start,
                start,
                end,
                is_synced,
            });
            replica.sent = end;
        }
    }

    /// Asks the replicas for the syncs that a caller waits for.
    fn send_syncs(&mut self) {
        if self.rules.ack == AckRule::AllSynced {
            return;
        }
        for extent in self.closing.iter().chain(&self.open) {
            let wanted = self.sync_wanted.min(extent.record.end.unwrap_or(u64::MAX));
            for replica in extent.replicas.iter().filter(|r| !r.has_failed && r.synced < wanted) {
                let to = ReplicaId { extent: extent.record.number, node: replica.node };
                self.actions.push_back(WriterAction::Sync(to));
            }
        }
    }
}

#[cfg(test)]
mod tests;
