//! A model of storage nodes, a network and the keeper of the layout, around real writers and
//! recoveries. Replicas are lengths, because all of them are prefixes of one stream.

use std::collections::{BTreeMap, VecDeque};

use archipelago_base::random::Rng;

use super::super::super::StorageId;
use super::super::quorum::{
    QuorumWriter, Refusal, ReplicaProgress, WriterAction, WriterRules, WriterSabotage,
};
use super::super::recovery::{FencedAnswer, Recovery, RecoveryAction, RecoverySabotage};
use super::super::{AckRule, LogLayout, ReplicaId};

const NODES: u64 = 6;
const MS: u64 = 1_000_000;
const BACKLOG_BYTES: u64 = 4000;

/// Settings of a seeded run.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub(super) ack: AckRule,
    pub(super) writer: WriterSabotage,
    pub(super) recovery: RecoverySabotage,
    /// Whether nodes lose unsynced bytes.
    pub(super) loses_power: bool,
}

/// How often runs reached the interesting cases.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    pub(super) extents: u64,
    pub(super) recoveries: u64,
    pub(super) unsynced_losses: u64,
    pub(super) finished: u64,
    pub(super) fenced_writers: u64,
    pub(super) damaged_answers: u64,
}

impl Coverage {
    pub(super) fn add(&mut self, other: &Self) {
        self.extents += other.extents;
        self.recoveries += other.recoveries;
        self.unsynced_losses += other.unsynced_losses;
        self.finished += other.finished;
        self.fenced_writers += other.fenced_writers;
        self.damaged_answers += other.damaged_answers;
    }
}

/// A replica of an extent on a node.
#[derive(Clone, Debug)]
struct SimReplica {
    start: u64,
    written: u64,
    synced: u64,
    is_sealed: bool,
    is_in_limbo: bool,
    /// The node has lost synced bytes.
    is_damaged: bool,
}

#[derive(Clone, Debug)]
struct SimNode {
    is_up: bool,
    /// The node never comes back.
    is_lost: bool,
    promised: u64,
    replicas: BTreeMap<u32, SimReplica>,
}

/// A process: the writer is 0, recoveries follow. The epoch is the number plus one.
type Process = usize;

#[derive(Clone, Debug)]
enum Request {
    Append { extent: u32, extent_start: u64, start: u64, end: u64, is_synced: bool },
    Sync { extent: u32 },
    Seal { extent: u32, end: u64 },
    Read { extent: u32, is_fencing: bool },
    Copy { extent: u32, from: StorageId, extent_start: u64, start: u64, end: u64 },
}

impl Request {
    fn extent(&self) -> u32 {
        match self {
            Self::Append { extent, .. }
            | Self::Sync { extent }
            | Self::Seal { extent, .. }
            | Self::Read { extent, .. }
            | Self::Copy { extent, .. } => *extent,
        }
    }
}

#[derive(Clone, Debug)]
enum Reply {
    Progress(ReplicaProgress),
    Refused(Refusal),
    Read(FencedAnswer),
    Sealed,
    /// The request to this node, or its answer, was lost.
    Failed(StorageId),
}

#[derive(Clone, Debug)]
struct Delivery {
    to: Process,
    replica: ReplicaId,
    reply: Reply,
}

struct KeepRequest {
    from: Process,
    version: u64,
    layout: LogLayout,
}

/// A recorded end of the log.
struct Ended {
    len: u64,
    acknowledged: u64,
}

/// One seeded run.
pub(super) struct Run {
    rng: Rng,
    settings: Settings,
    now_ns: u64,
    nodes: BTreeMap<StorageId, SimNode>,
    links: BTreeMap<(Process, StorageId), VecDeque<Request>>,
    deliveries: Vec<Delivery>,
    writer: Option<QuorumWriter>,
    /// Recoveries by process number minus one; `None` after a crash or the end.
    recoveries: Vec<Option<Recovery>>,
    keeper_epoch: u64,
    layout: LogLayout,
    keeps: VecDeque<KeepRequest>,
    avoid: Vec<StorageId>,
    acknowledged: u64,
    synced: u64,
    submitted: u64,
    ended: Option<Ended>,
    /// Whether the keeper knows that acknowledged bytes without a sync may be missing.
    is_loss_kept: bool,
    /// The node whose disk loses bytes at rest; one per run, and none if a node is lost for good.
    damaged: Option<StorageId>,
    losses_percent: u32,
    pub(super) coverage: Coverage,
    problem: Option<String>,
}

impl Run {
    pub(super) fn new(seed: u64, settings: Settings) -> Self {
        let rng = Rng::with_seed(seed);
        let node =
            || SimNode { is_up: true, is_lost: false, promised: 0, replicas: BTreeMap::new() };
        let nodes = (1..=NODES).map(|id| (StorageId(id), node())).collect();
        let mut run = Self {
            rng,
            settings,
            now_ns: 0,
            nodes,
            links: BTreeMap::new(),
            deliveries: Vec::new(),
            writer: None,
            recoveries: Vec::new(),
            keeper_epoch: 1,
            layout: LogLayout::default(),
            keeps: VecDeque::new(),
            avoid: Vec::new(),
            acknowledged: 0,
            synced: 0,
            submitted: 0,
            ended: None,
            is_loss_kept: false,
            damaged: None,
            losses_percent: 0,
            coverage: Coverage::default(),
            problem: None,
        };
        let rules = WriterRules {
            backlog_bytes_max: BACKLOG_BYTES,
            backlog_ns_max: 200 * MS,
            ..WriterRules::new(settings.ack)
        };
        let ensemble = if run.rng.u8(0..8) == 0 { 2 } else { 3 };
        let nodes = (1..=ensemble).map(StorageId).collect();
        run.writer = Some(QuorumWriter::new(rules, nodes).sabotaged(settings.writer));
        run.drive_writer();
        run
    }

    /// Runs to the end, and returns the rule that was broken, if any.
    pub(super) fn problem(&mut self) -> Option<String> {
        self.losses_percent = self.rng.u32(0..4);
        for _ in 0..self.rng.u32(50..500) {
            self.step();
        }
        self.heal();
        self.check_end();
        self.problem.take()
    }

    fn fail(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }

    fn step(&mut self) {
        match self.rng.u32(0..100) {
            0..55 => self.deliver_request(),
            55..75 => self.deliver_reply(),
            75..80 => self.keep(),
            80..88 => self.submit(),
            88..90 => self.sync(),
            90..94 => self.pass_time(),
            94..97 => self.fault(),
            97 if self.recoveries.len() < 5 && self.rng.u8(0..3) > 0 => self.begin_recovery(),
            98 => self.crash_recovery(),
            _ => self.end_of_writer(),
        }
    }

    fn submit(&mut self) {
        let len = self.rng.u64(1..1500);
        if let Some(writer) = &mut self.writer {
            // The send buffer is bounded.
            if self.submitted - self.acknowledged < 3 * BACKLOG_BYTES
                && writer.submit(len) == Some(self.submitted)
            {
                self.submitted += len;
            }
        }
        self.drive_writer();
    }

    fn sync(&mut self) {
        if let Some(writer) = &mut self.writer {
            let wanted = writer.sync();
            assert!(wanted <= self.submitted);
        }
        self.drive_writer();
    }

    fn pass_time(&mut self) {
        self.now_ns += self.rng.u64(1..60) * MS;
        if let Some(writer) = &mut self.writer {
            writer.tick(self.now_ns);
        }
        self.drive_writer();
        for at in 0..self.recoveries.len() {
            if let Some(recovery) = &mut self.recoveries[at] {
                recovery.ask_again();
            }
            self.drive_recovery(at + 1);
        }
    }

    fn end_of_writer(&mut self) {
        match self.rng.u8(0..6) {
            0 => self.writer = None,
            1 => {
                if let Some(writer) = &mut self.writer {
                    writer.finish(self.now_ns);
                }
            }
            _ => {}
        }
        self.drive_writer();
    }

    fn fault(&mut self) {
        let id = StorageId(self.rng.u64(1..=NODES));
        let kind = self.rng.u8(0..9);
        let loses_power = self.settings.loses_power;
        let has_lost = self.nodes.values().any(|node| node.is_lost);
        let node = self.nodes.get_mut(&id).unwrap();
        match kind {
            0..4 if !node.is_lost => node.is_up = true,
            4..6 => node.is_up = false,
            6 if loses_power => {
                node.is_up = false;
                for replica in node.replicas.values_mut().filter(|r| !r.is_sealed) {
                    if replica.written > replica.synced {
                        replica.written = self.rng.u64(replica.synced..=replica.written);
                    }
                    replica.is_in_limbo = true;
                }
            }
            7 if !has_lost && self.damaged.is_none() && self.rng.u8(0..8) == 0 => {
                node.is_up = false;
                node.is_lost = true;
            }
            8 if !has_lost && self.damaged.is_none_or(|damaged| damaged == id) => {
                self.damaged = Some(id);
                for replica in node.replicas.values_mut() {
                    let written = self.rng.u64(replica.start..=replica.written);
                    replica.is_damaged |= written < replica.synced;
                    replica.is_in_limbo |= written < replica.written;
                    replica.written = written;
                    replica.synced = replica.synced.min(written);
                }
            }
            _ => {}
        }
    }

    fn begin_recovery(&mut self) {
        let recovery = Recovery::new(self.settings.ack, self.layout.clone());
        let mut recovery = recovery.sabotaged(self.settings.recovery);
        recovery.start();
        self.recoveries.push(Some(recovery));
        self.keeper_epoch = self.recoveries.len() as u64 + 1;
        self.coverage.recoveries += 1;
        self.drive_recovery(self.recoveries.len());
    }

    fn crash_recovery(&mut self) {
        if self.rng.u8(0..3) == 0 && !self.recoveries.is_empty() {
            let at = self.rng.usize(0..self.recoveries.len());
            self.recoveries[at] = None;
        }
    }

    /// Delivers the first request of a random link, or loses it.
    fn deliver_request(&mut self) {
        let busy: Vec<_> =
            self.links.iter().filter(|(_, l)| !l.is_empty()).map(|(k, _)| *k).collect();
        if busy.is_empty() {
            return;
        }
        let (process, id) = busy[self.rng.usize(0..busy.len())];
        let link = self.links.get_mut(&(process, id)).unwrap();
        if link.len() > 1 && self.rng.u8(0..100) == 0 {
            link.swap(0, 1);
        }
        let request = link.pop_front().unwrap();
        let replica = ReplicaId { extent: request.extent(), node: id };
        let is_duplicate = self.rng.u8(0..50) == 0;
        let is_lost = self.rng.u32(0..100) < self.losses_percent || !self.nodes[&id].is_up;
        if is_lost {
            self.reply(process, replica, Reply::Failed(id));
            return;
        }
        if is_duplicate {
            let again = self.serve(process, id, &request);
            self.reply(process, replica, again);
        }
        let answer = self.serve(process, id, &request);
        let is_answer_lost = self.rng.u32(0..100) < self.losses_percent;
        self.reply(process, replica, if is_answer_lost { Reply::Failed(id) } else { answer });
    }

    fn reply(&mut self, to: Process, replica: ReplicaId, reply: Reply) {
        self.deliveries.push(Delivery { to, replica, reply });
    }

    /// Handles a request as a storage node does, and returns the reply.
    fn serve(&mut self, process: Process, id: StorageId, request: &Request) -> Reply {
        let epoch = process as u64 + 1;
        let supplier = match request {
            Request::Copy { from, extent, start, end, .. } if start < end && *from != id => {
                let node = &self.nodes[from];
                let has_bytes = node.replicas.get(extent).is_some_and(|r| r.written >= *end);
                if !(node.is_up && has_bytes) {
                    return Reply::Failed(*from);
                }
                true
            }
            _ => false,
        };
        let node = self.nodes.get_mut(&id).unwrap();
        if epoch < node.promised {
            return Reply::Refused(Refusal::Fenced);
        }
        if !matches!(request, Request::Read { is_fencing: false, .. }) {
            node.promised = epoch;
        }
        let refused = Reply::Refused(Refusal::NotTaken);
        match *request {
            Request::Append { extent, extent_start, start, end, is_synced } => {
                let replica = node.replicas.entry(extent).or_insert_with(|| empty(extent_start));
                let is_whole = !replica.is_in_limbo && !replica.is_damaged;
                if !is_whole || replica.is_sealed || replica.written != start {
                    return refused;
                }
                replica.written = end;
                if is_synced {
                    replica.synced = end;
                }
                progress(replica)
            }
            Request::Sync { extent } => match node.replicas.get_mut(&extent) {
                Some(replica) if !replica.is_in_limbo && !replica.is_damaged => {
                    replica.synced = replica.written;
                    progress(replica)
                }
                _ => refused,
            },
            Request::Seal { extent, end } => match node.replicas.get_mut(&extent) {
                Some(replica) if replica.written >= end => {
                    seal(replica, end);
                    progress(replica)
                }
                _ => refused,
            },
            Request::Read { extent, .. } => {
                let replica = node.replicas.get(&extent);
                let is_damaged = replica.is_some_and(|replica| replica.is_damaged);
                self.coverage.damaged_answers += u64::from(is_damaged);
                Reply::Read(FencedAnswer {
                    valid_end: replica.map_or(0, |replica| replica.written),
                    is_in_limbo: replica.is_some_and(|replica| replica.is_in_limbo),
                    is_damaged,
                })
            }
            Request::Copy { extent, extent_start, start, end, .. } => {
                let replica = node.replicas.entry(extent).or_insert_with(|| empty(extent_start));
                if replica.written < start || (!supplier && replica.written < end) {
                    return refused;
                }
                replica.written = end;
                seal(replica, end);
                Reply::Sealed
            }
        }
    }

    fn deliver_reply(&mut self) {
        if self.deliveries.is_empty() {
            return;
        }
        let at = self.rng.usize(0..self.deliveries.len());
        let Delivery { to, replica, reply } = self.deliveries.swap_remove(at);
        if to == 0 {
            if let Some(writer) = &mut self.writer {
                match reply {
                    Reply::Progress(progress) => writer.answered(replica, progress, self.now_ns),
                    Reply::Refused(refusal) => writer.refused(replica, refusal, self.now_ns),
                    Reply::Failed(_) => writer.failed(replica, self.now_ns),
                    Reply::Read(_) | Reply::Sealed => unreachable!("the writer does not ask that"),
                }
            }
            self.drive_writer();
            return;
        }
        if let Some(recovery) = &mut self.recoveries[to - 1] {
            match reply {
                Reply::Read(answer) => recovery.answered(replica, answer),
                Reply::Sealed => recovery.sealed(replica),
                Reply::Refused(Refusal::Fenced) => recovery.fenced(),
                Reply::Refused(Refusal::NotTaken) => recovery.failed(replica),
                Reply::Failed(node) => {
                    recovery.failed(ReplicaId { node, ..replica });
                    recovery.failed(replica);
                }
                Reply::Progress(_) => unreachable!("a recovery does not append"),
            }
        }
        self.drive_recovery(to);
    }

    /// The keeper serves the oldest request.
    fn keep(&mut self) {
        let Some(KeepRequest { from, version, layout }) = self.keeps.pop_front() else { return };
        let is_current = from as u64 + 1 == self.keeper_epoch;
        if is_current {
            if layout.is_ended && self.ended.is_none() {
                let (len, acknowledged) = (layout.ended_bytes(), self.acknowledged);
                self.ended = Some(Ended { len, acknowledged });
            }
            self.layout = layout;
        }
        if from == 0 {
            if let Some(writer) = &mut self.writer {
                if is_current {
                    writer.recorded(version, self.now_ns);
                } else {
                    writer.record_refused();
                }
            }
            self.drive_writer();
        } else {
            if let Some(recovery) = &mut self.recoveries[from - 1] {
                if is_current {
                    recovery.recorded();
                } else {
                    recovery.fenced();
                }
            }
            self.drive_recovery(from);
        }
    }

    fn send(&mut self, process: Process, node: StorageId, request: Request) {
        self.links.entry((process, node)).or_default().push_back(request);
    }

    fn drive_writer(&mut self) {
        while let Some(action) = self.writer.as_mut().and_then(QuorumWriter::next_action) {
            match action {
                WriterAction::Append { to, extent_start, start, end, is_synced } => {
                    let extent = to.extent;
                    let request = Request::Append { extent, extent_start, start, end, is_synced };
                    self.send(0, to.node, request);
                }
                WriterAction::Sync(to) => {
                    self.send(0, to.node, Request::Sync { extent: to.extent });
                }
                WriterAction::Seal { to, end } => {
                    self.send(0, to.node, Request::Seal { extent: to.extent, end });
                }
                WriterAction::ChooseNodes { avoid } => self.avoid = avoid,
                WriterAction::Record { version, layout } => {
                    self.keeps.push_back(KeepRequest { from: 0, version, layout });
                }
                WriterAction::Repair { extent, holders } => self.repair(extent, &holders),
                WriterAction::Acknowledged(end) => self.acknowledge(end),
                WriterAction::Synced(end) => {
                    self.synced = end;
                }
                WriterAction::Finished(layout) => {
                    self.coverage.finished += 1;
                    if layout.ended_bytes() != self.submitted {
                        self.fail(format!("finished at {}", layout.ended_bytes()));
                    }
                }
                WriterAction::Fenced => self.coverage.fenced_writers += 1,
            }
        }
        self.choose_nodes();
        let Some(writer) = &self.writer else { return };
        if writer.retain_from() > self.acknowledged {
            self.fail("the driver may drop bytes that are not acknowledged".to_owned());
        }
    }

    /// Copies an ended extent to a node in place of one that failed, unless no node can take it.
    fn repair(&mut self, number: u32, holders: &[StorageId]) {
        let recorded = self.layout.extents.iter().find(|extent| extent.number == number);
        let Some((start, end)) = recorded.and_then(|e| Some((e.start, e.end?))) else { return };
        let has_all = |id: &&StorageId| {
            let node = &self.nodes[*id];
            node.is_up && node.replicas.get(&number).is_some_and(|r| r.written >= end)
        };
        let from = holders.iter().find(has_all).copied();
        let is_other = |id: &&StorageId| self.nodes[*id].is_up && !holders.contains(id);
        let to = self.nodes.keys().find(is_other).copied();
        let (Some(from), Some(to)) = (from, to) else { return };
        for id in [from, to] {
            let replicas = &mut self.nodes.get_mut(&id).unwrap().replicas;
            seal(replicas.entry(number).or_insert_with(|| empty(start)), end);
        }
        if let Some(writer) = &mut self.writer {
            writer.repaired(number, vec![from, to], self.now_ns);
        }
    }

    fn acknowledge(&mut self, end: u64) {
        if end <= self.acknowledged || end > self.submitted {
            self.fail(format!("acknowledged {end} after {}", self.acknowledged));
        }
        self.acknowledged = end;
        if let Some(ended) = &self.ended
            && end > ended.len
        {
            self.fail(format!("acknowledged {end} behind the recorded end {}", ended.len));
        }
    }

    fn choose_nodes(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        if !writer.needs_nodes() || self.rng.u8(0..4) == 0 {
            return;
        }
        let takes = |id: &StorageId| self.nodes[id].is_up && !self.avoid.contains(id);
        let mut chosen: Vec<StorageId> = self.nodes.keys().copied().filter(takes).collect();
        self.rng.shuffle(&mut chosen);
        chosen.truncate(3);
        if chosen.len() >= 2 {
            self.coverage.extents += 1;
            writer.nodes_chosen(chosen);
            self.drive_writer();
        } else {
            self.avoid.clear();
        }
    }

    fn drive_recovery(&mut self, process: Process) {
        loop {
            let recovery = self.recoveries[process - 1].as_mut();
            let Some(action) = recovery.and_then(Recovery::next_action) else { return };
            match action {
                RecoveryAction::Read { replica, is_fencing } => {
                    let extent = replica.extent;
                    self.send(process, replica.node, Request::Read { extent, is_fencing });
                }
                RecoveryAction::Seal { from, to, extent_start, start, end } => {
                    let extent = to.extent;
                    let request = Request::Copy { extent, from, extent_start, start, end };
                    self.send(process, to.node, request);
                }
                RecoveryAction::ChooseNode { extent, avoid } => {
                    let takes = |id: &StorageId| self.nodes[id].is_up && !avoid.contains(id);
                    let mut ids = self.nodes.keys().copied().filter(takes);
                    if let (Some(node), Some(recovery)) =
                        (ids.next(), &mut self.recoveries[process - 1])
                    {
                        recovery.node_chosen(ReplicaId { extent, node });
                    }
                }
                RecoveryAction::KeepLoss => self.keep_loss(process),
                RecoveryAction::Record(layout) => {
                    self.keeps.push_back(KeepRequest { from: process, version: 0, layout });
                }
                RecoveryAction::Done(layout) => {
                    self.check_done(&layout);
                    self.recoveries[process - 1] = None;
                }
                RecoveryAction::Fenced => self.recoveries[process - 1] = None,
            }
        }
    }

    /// The keeper notes a loss for the owner of the newest epoch. The recovery may die any time
    /// later.
    fn keep_loss(&mut self, process: Process) {
        let is_current = process as u64 + 1 == self.keeper_epoch;
        self.is_loss_kept |= is_current;
        let Some(recovery) = &mut self.recoveries[process - 1] else { return };
        if is_current {
            recovery.loss_kept();
        } else {
            recovery.fenced();
        }
    }

    fn check_done(&mut self, layout: &LogLayout) {
        if *layout != self.layout {
            self.fail("two recoveries disagree".to_owned());
        }
        self.coverage.unsynced_losses += u64::from(layout.may_miss_unsynced);
        if layout.may_miss_unsynced && !self.is_loss_kept {
            self.fail("a loss was recorded that the keeper does not know".to_owned());
        }
        let len = layout.ended_bytes();
        // The recovery that lost them may have died after its seals.
        if len < self.acknowledged && !self.is_loss_kept {
            self.fail(format!("the log has {len} bytes, acknowledged are {}", self.acknowledged));
        }
        if len < self.synced {
            self.fail(format!("the log has {len} bytes, synced are {}", self.synced));
        }
        self.check_readable(layout);
    }

    /// Checks that every byte of the log is on a node that is not lost.
    fn check_readable(&mut self, layout: &LogLayout) {
        let mut at = 0;
        for extent in &layout.extents {
            let has_all = |id: &&StorageId| {
                let node = &self.nodes[id];
                let replica = node.replicas.get(&extent.number);
                let end = extent.end.unwrap_or(u64::MAX);
                let is_whole = |r: &SimReplica| r.start == extent.start && r.written >= end;
                !node.is_lost && replica.is_some_and(is_whole)
            };
            let holders = extent.nodes.iter().filter(has_all).count();
            if extent.start != at || holders == 0 {
                let problem = format!("extent {extent:?} at {at} has {holders} holders");
                self.fail(problem);
                return;
            }
            at = extent.end.unwrap_or(at);
        }
    }

    /// Ends all faults, recovers the log, and delivers everything that is still under way.
    fn heal(&mut self) {
        self.losses_percent = 0;
        for node in self.nodes.values_mut() {
            node.is_up = !node.is_lost;
        }
        self.begin_recovery();
        let process = self.recoveries.len();
        for round in 0..200 {
            for _ in 0..200 {
                match self.rng.u8(0..8) {
                    0..4 => self.deliver_request(),
                    4..6 => self.deliver_reply(),
                    6 => self.keep(),
                    _ => self.submit(),
                }
            }
            let Some(recovery) = &mut self.recoveries[process - 1] else { break };
            // If a node is lost for good, the operator must accept the loss of its bytes.
            if round > 100 && self.nodes.values().any(|node| node.is_lost) {
                recovery.accept_loss();
            }
            recovery.ask_again();
            self.drive_recovery(process);
        }
        if self.recoveries[process - 1].is_some() {
            self.fail("the recovery does not end".to_owned());
        }
        for _ in 0..2000 {
            self.deliver_request();
            self.deliver_reply();
            self.keep();
        }
    }

    fn check_end(&mut self) {
        let Some(ended) = &self.ended else {
            self.fail("the log has no end".to_owned());
            return;
        };
        let len = ended.len;
        let is_late = self.acknowledged > ended.acknowledged && self.acknowledged > len;
        if is_late || (self.acknowledged > len && !self.is_loss_kept) {
            self.fail(format!("the log has {len} bytes, acknowledged are {}", self.acknowledged));
        }
        let layout = self.layout.clone();
        self.check_readable(&layout);
    }
}

fn empty(start: u64) -> SimReplica {
    SimReplica {
        start,
        written: start,
        synced: start,
        is_sealed: false,
        is_in_limbo: false,
        is_damaged: false,
    }
}

fn seal(replica: &mut SimReplica, end: u64) {
    replica.written = end;
    replica.synced = end;
    replica.is_sealed = true;
    replica.is_in_limbo = false;
    replica.is_damaged = false;
}

fn progress(replica: &SimReplica) -> Reply {
    Reply::Progress(ReplicaProgress { written: replica.written, synced: replica.synced })
}
