//! Storage nodes in memory behind a network with delays, for tests of the driver. A node does what
//! the messages promise: one prefix per extent, durable promises, seals, and limbo after power
//! loss.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::runtime::{Boxed, Runtime};
use archipelago_base::{Epoch, Result};
use parking_lot::Mutex;

use super::super::super::StorageId;
use super::super::super::client::ClientStats;
use super::super::super::placement::NodeReport;
use super::super::super::wire::{ExtentAt, LogEntry, RefusalWhy, Refused, Stamp, StoreMessage};
use super::super::requests::{LogAnswer, LogCall, LogFailure, LogNodes};
use super::super::send_ring::LogBytes;
use crate::ids::VolumeId;

/// Whether and how a node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Up,
    /// Connections are refused.
    Down,
    /// Requests are lost, as with a stopped process.
    Silent,
    /// Every request takes this many nanoseconds longer.
    Slow(u64),
    /// Requests are refused for this reason.
    Refusing(RefusalWhy),
    /// Seals are refused, as if the disk of all extents so far had failed.
    RefusingSeals,
}

/// An extent on a node.
#[derive(Clone, Debug)]
pub(super) struct ModelExtent {
    volume: VolumeId,
    epoch: Epoch,
    start: u64,
    bytes: Vec<u8>,
    synced: u64,
    sealed: Option<u64>,
    is_in_limbo: bool,
    /// Whether the node has lost synced bytes.
    is_damaged: bool,
    /// Epoch, offset and bytes that a recovery has put.
    staged: Option<(Epoch, u64, Vec<u8>)>,
}

impl ModelExtent {
    fn written(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn progress(&self) -> StoreMessage {
        StoreMessage::Progress { written: self.written(), synced: self.synced }
    }
}

#[derive(Debug)]
struct ModelNode {
    health: Health,
    is_reported: bool,
    is_draining: bool,
    is_lost: bool,
    promised: BTreeMap<VolumeId, Epoch>,
    extents: BTreeMap<ExtentAt, ModelExtent>,
    /// Time of the last arrival, because requests arrive in order.
    arrived_ns: u64,
    received: Vec<StoreMessage>,
}

impl Default for ModelNode {
    fn default() -> Self {
        Self {
            health: Health::Up,
            is_reported: true,
            is_draining: false,
            is_lost: false,
            promised: BTreeMap::new(),
            extents: BTreeMap::new(),
            arrived_ns: 0,
            received: Vec::new(),
        }
    }
}

/// The nodes and what happens to them.
#[derive(Debug)]
pub(super) struct ModelState {
    rng: Rng,
    nodes: BTreeMap<StorageId, ModelNode>,
    delay_ns: Range<u64>,
    /// Number of requests that arrived.
    arrivals: u64,
    /// A node whose health changes when this many requests have arrived.
    planned: Option<(u64, StorageId, Health)>,
}

/// A pool of nodes, each in a domain of its own.
#[derive(Clone, Debug)]
pub(super) struct ModelPool {
    runtime: Arc<dyn Runtime>,
    state: Arc<Mutex<ModelState>>,
    stats: Arc<ClientStats>,
}

enum Arrival {
    Lost,
    Unreachable,
    Answered { answer: Box<LogAnswer>, back_ns: u64 },
}

impl ModelPool {
    pub(super) fn new(runtime: Arc<dyn Runtime>, nodes: u64, seed: u64) -> Self {
        let nodes = (1..=nodes).map(|id| (StorageId(id), ModelNode::default())).collect();
        let state = ModelState {
            rng: Rng::with_seed(seed),
            nodes,
            delay_ns: 10_000..200_000,
            arrivals: 0,
            planned: None,
        };
        Self { runtime, state: Arc::new(Mutex::new(state)), stats: Arc::default() }
    }

    pub(super) fn nodes(&self) -> Vec<StorageId> {
        self.state.lock().nodes.keys().copied().collect()
    }

    pub(super) fn set_delay(&self, delay_ns: Range<u64>) {
        self.state.lock().delay_ns = delay_ns;
    }

    pub(super) fn set_health(&self, node: StorageId, health: Health) {
        self.state.lock().node(node).health = health;
    }

    /// All nodes are up, and no change is planned.
    pub(super) fn heal(&self) {
        let mut state = self.state.lock();
        state.planned = None;
        state.nodes.values_mut().for_each(|node| node.health = Health::Up);
    }

    /// The manager no longer reports a node as up.
    pub(super) fn forget(&self, node: StorageId) {
        self.state.lock().node(node).is_reported = false;
    }

    /// The manager reports a node as up again.
    pub(super) fn remember(&self, node: StorageId) {
        self.state.lock().node(node).is_reported = true;
    }

    /// An operator empties a node.
    pub(super) fn drain(&self, node: StorageId) {
        self.state.lock().node(node).is_draining = true;
    }

    /// No node drains any more.
    pub(super) fn end_drains(&self) {
        self.state.lock().nodes.values_mut().for_each(|node| node.is_draining = false);
    }

    /// A node goes down for good, and the manager declares it lost.
    pub(super) fn lose(&self, node: StorageId) {
        let mut state = self.state.lock();
        let node = state.node(node);
        (node.health, node.is_reported, node.is_lost) = (Health::Down, false, true);
    }

    /// Number of extents on a node that are not sealed.
    pub(super) fn open_extents(&self, node: StorageId) -> usize {
        let mut state = self.state.lock();
        state.node(node).extents.values().filter(|extent| extent.sealed.is_none()).count()
    }

    /// Changes the health of a node when `arrivals` more requests have arrived.
    pub(super) fn plan(&self, arrivals: u64, node: StorageId, health: Health) {
        let mut state = self.state.lock();
        state.planned = Some((state.arrivals + arrivals, node, health));
    }

    pub(super) fn arrivals(&self) -> u64 {
        self.state.lock().arrivals
    }

    /// A node loses the power and is up again: unsynced bytes may be lost.
    pub(super) fn lose_power(&self, node: StorageId) {
        let mut state = self.state.lock();
        let mut rng = state.rng.fork();
        for extent in state.node(node).extents.values_mut() {
            extent.staged = None;
            if extent.sealed.is_none() {
                let kept = rng.u64(extent.synced..=extent.written());
                extent.bytes.truncate((kept - extent.start) as usize);
                (extent.synced, extent.is_in_limbo) = (kept, true);
            }
        }
    }

    /// The disk of a node loses the bytes of all extents from `kept` bytes behind their begin on.
    pub(super) fn damage(&self, node: StorageId, kept: usize) {
        let mut state = self.state.lock();
        for extent in state.node(node).extents.values_mut() {
            extent.bytes.truncate(kept);
            extent.is_damaged |= extent.written() < extent.synced;
        }
    }

    /// Loses the power of all nodes.
    pub(super) fn lose_all_power(&self) {
        self.nodes().into_iter().for_each(|node| self.lose_power(node));
    }

    /// The requests that a node has received.
    pub(super) fn received(&self, node: StorageId) -> Vec<StoreMessage> {
        self.state.lock().node(node).received.clone()
    }

    /// The extent of a node.
    pub(super) fn extent(&self, at: ExtentAt, node: StorageId) -> ModelExtent {
        self.state.lock().node(node).extents.get(&at).cloned().expect("an extent of the node")
    }

    /// Gives a node an extent, as a repair does.
    pub(super) fn give(&self, at: ExtentAt, extent: ModelExtent, node: StorageId) {
        self.state.lock().node(node).extents.insert(at, extent);
    }

    /// The nodes that have an extent, with its number of bytes and whether it is sealed.
    pub(super) fn holders(&self, at: ExtentAt) -> Vec<(StorageId, u64, bool)> {
        let state = self.state.lock();
        let holders = state.nodes.iter().filter_map(|(id, node)| {
            let extent = node.extents.get(&at)?;
            Some((*id, extent.bytes.len() as u64, extent.sealed.is_some()))
        });
        holders.collect()
    }
}

impl LogNodes for ModelPool {
    fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    fn stats(&self) -> Option<&ClientStats> {
        Some(&self.stats)
    }

    fn call(
        &self,
        to: StorageId,
        request: StoreMessage,
        payload: LogBytes,
        how: LogCall,
    ) -> Boxed<'static, LogAnswer> {
        let (runtime, state) = (Arc::clone(&self.runtime), Arc::clone(&self.state));
        let payload = payload.contiguous().into_owned();
        let wait_ns = state.lock().schedule(to, runtime.now_ns());
        Box::pin(async move {
            runtime.sleep(Duration::from_nanos(wait_ns)).await;
            let arrival = state.lock().arrive(to, request, &payload);
            match arrival {
                Arrival::Unreachable => Err(LogFailure::Unreachable(format!("node {to} is down"))),
                Arrival::Lost => {
                    runtime.sleep(how.deadline).await;
                    Err(LogFailure::Passing(format!("node {to} does not answer")))
                }
                Arrival::Answered { answer, back_ns } => {
                    runtime.sleep(Duration::from_nanos(back_ns)).await;
                    *answer
                }
            }
        })
    }

    fn lost(&self, nodes: &[StorageId]) -> Vec<StorageId> {
        let mut state = self.state.lock();
        nodes.iter().copied().filter(|node| state.node(*node).is_lost).collect()
    }

    fn reports(&self) -> Boxed<'static, Result<Vec<NodeReport>>> {
        let mut state = self.state.lock();
        let delay_ns = state.delay_ns.clone();
        let delay = Duration::from_nanos(state.rng.u64(delay_ns));
        let report = |id: &StorageId, node: &ModelNode| NodeReport {
            id: *id,
            domain: format!("domain {id}"),
            capacity_bytes: 1 << 40,
            used_bytes: 0,
            is_up: node.is_reported,
            is_draining: node.is_draining,
        };
        let reports = state.nodes.iter().map(|(id, node)| report(id, node)).collect();
        let runtime = Arc::clone(&self.runtime);
        Box::pin(async move {
            runtime.sleep(delay).await;
            Ok(reports)
        })
    }
}

impl ModelState {
    fn node(&mut self, id: StorageId) -> &mut ModelNode {
        self.nodes.get_mut(&id).expect("a node of the pool")
    }

    /// Time until a request that leaves now arrives, after all earlier ones to this node.
    fn schedule(&mut self, to: StorageId, now_ns: u64) -> u64 {
        let delay_ns = self.rng.u64(self.delay_ns.clone());
        let node = self.node(to);
        let slow_ns = if let Health::Slow(ns) = node.health { ns } else { 0 };
        let at_ns = (now_ns + delay_ns + slow_ns).max(node.arrived_ns + 1);
        node.arrived_ns = at_ns;
        at_ns - now_ns
    }

    fn arrive(&mut self, to: StorageId, request: StoreMessage, payload: &[u8]) -> Arrival {
        self.arrivals += 1;
        if let Some((at, node, health)) = self.planned.take_if(|(at, ..)| *at <= self.arrivals) {
            let _reached = at;
            self.node(node).health = health;
        }
        let back_ns = self.rng.u64(self.delay_ns.clone());
        let node = self.node(to);
        node.received.push(request.clone());
        match node.health {
            Health::Down => Arrival::Unreachable,
            Health::Silent => Arrival::Lost,
            Health::Refusing(why) => {
                let answer = Err(LogFailure::refused(&Refused::new(why, "on purpose")));
                Arrival::Answered { answer: Box::new(answer), back_ns }
            }
            Health::RefusingSeals if matches!(request, StoreMessage::SealLog { .. }) => {
                let refused = Refused::new(RefusalWhy::Failed, "on purpose");
                let answer = Box::new(Err(LogFailure::refused(&refused)));
                Arrival::Answered { answer, back_ns }
            }
            Health::Up | Health::Slow(_) | Health::RefusingSeals => {
                let answer = node.serve(request, payload);
                let answer = answer.map_err(|refused| LogFailure::refused(&refused));
                Arrival::Answered { answer: Box::new(answer), back_ns }
            }
        }
    }
}

fn refused(why: RefusalWhy) -> Refused {
    Refused::new(why, "")
}

impl ModelNode {
    fn promise(&mut self, stamp: Stamp) -> Result<(), Refused> {
        let promised = self.promised.entry(stamp.volume).or_default();
        if stamp.epoch < *promised {
            return Err(Refused::fenced(*promised, ""));
        }
        *promised = stamp.epoch;
        Ok(())
    }

    fn extent(&mut self, at: ExtentAt) -> Result<&mut ModelExtent, Refused> {
        self.extents.get_mut(&at).ok_or_else(|| refused(RefusalWhy::NotThere))
    }

    fn create(&mut self, at: ExtentAt, stamp: Stamp, start: u64) -> &mut ModelExtent {
        self.extents.entry(at).or_insert_with(|| ModelExtent {
            volume: stamp.volume,
            epoch: stamp.epoch,
            start,
            bytes: Vec::new(),
            synced: start,
            sealed: None,
            is_in_limbo: false,
            is_damaged: false,
            staged: None,
        })
    }

    fn serve(
        &mut self,
        request: StoreMessage,
        payload: &[u8],
    ) -> Result<(StoreMessage, Vec<u8>), Refused> {
        let answer = match request {
            StoreMessage::Append { at, stamp, extent_start, start, is_synced, .. } => {
                self.append(at, stamp, extent_start, start, payload, is_synced)?
            }
            StoreMessage::SyncLog { at, stamp } => {
                self.promise(stamp)?;
                let extent = self.extent(at)?;
                if extent.is_in_limbo || extent.is_damaged {
                    return Err(refused(RefusalWhy::InLimbo));
                }
                extent.synced = extent.written();
                extent.progress()
            }
            StoreMessage::SealLog { at, stamp, extent_start, end, .. } => {
                self.seal(at, stamp, extent_start, end)?
            }
            StoreMessage::FenceLog { at, stamp } => {
                self.promise(stamp)?;
                self.replica(at)
            }
            StoreMessage::InspectLog { at } => self.replica(at),
            StoreMessage::ReadLog { at, start, end } => {
                let extent = self.extent(at)?;
                let end = end.min(extent.written()).max(start);
                let range = (start - extent.start) as usize..(end - extent.start) as usize;
                let bytes = extent.bytes.get(range).unwrap_or_default().to_vec();
                return Ok((StoreMessage::LogBytes {}, bytes));
            }
            StoreMessage::PutLog { at, stamp, extent_start, start, .. } => {
                self.put(at, stamp, extent_start, start, payload)?
            }
            StoreMessage::RemoveLog { log, stamp } => {
                self.promise(stamp)?;
                self.extents.retain(|at, _| at.log != log);
                StoreMessage::Done {}
            }
            StoreMessage::PromiseEpoch { stamp } => {
                self.promise(stamp)?;
                StoreMessage::Done {}
            }
            StoreMessage::ListLogs { volume, after } => {
                let mut logs: BTreeMap<_, Epoch> = BTreeMap::new();
                for (at, extent) in &self.extents {
                    if extent.volume == volume && after.is_none_or(|after| at.log > after) {
                        let epoch = logs.entry(at.log).or_default();
                        *epoch = (*epoch).max(extent.epoch);
                    }
                }
                let has_more = logs.len() > 2;
                let logs = logs.into_iter().take(2).map(|(log, epoch)| LogEntry { log, epoch });
                StoreMessage::Logs { logs: logs.collect(), has_more }
            }
            other => panic!("a log does not send {}", other.name()),
        };
        Ok((answer, Vec::new()))
    }

    fn append(
        &mut self,
        at: ExtentAt,
        stamp: Stamp,
        extent_start: u64,
        start: u64,
        bytes: &[u8],
        is_synced: bool,
    ) -> Result<StoreMessage, Refused> {
        self.promise(stamp)?;
        if start != extent_start {
            self.extent(at)?;
        }
        let extent = self.create(at, stamp, extent_start);
        if extent.sealed.is_some() {
            return Err(refused(RefusalWhy::Sealed));
        }
        if extent.is_in_limbo || extent.is_damaged {
            return Err(refused(RefusalWhy::InLimbo));
        }
        let written = extent.written();
        if start > written {
            return Err(refused(RefusalWhy::OutOfOrder { len: written }));
        }
        extent.bytes.extend(bytes.iter().skip((written - start) as usize));
        if is_synced {
            extent.synced = extent.written();
        }
        Ok(extent.progress())
    }

    fn put(
        &mut self,
        at: ExtentAt,
        stamp: Stamp,
        extent_start: u64,
        start: u64,
        bytes: &[u8],
    ) -> Result<StoreMessage, Refused> {
        self.promise(stamp)?;
        let extent = self.create(at, stamp, extent_start);
        let continues = |staged: &(Epoch, u64, Vec<u8>)| {
            staged.0 == stamp.epoch && staged.1 + staged.2.len() as u64 == start
        };
        if !extent.staged.as_ref().is_some_and(continues) {
            if start > extent.written() {
                return Err(refused(RefusalWhy::OutOfOrder { len: extent.written() }));
            }
            extent.staged = Some((stamp.epoch, start, Vec::new()));
        }
        let synced = extent.synced;
        let Some(staged) = &mut extent.staged else { unreachable!("it was just staged") };
        staged.2.extend(bytes);
        let written = staged.1 + staged.2.len() as u64;
        Ok(StoreMessage::Progress { written, synced })
    }

    fn seal(
        &mut self,
        at: ExtentAt,
        stamp: Stamp,
        extent_start: u64,
        end: u64,
    ) -> Result<StoreMessage, Refused> {
        self.promise(stamp)?;
        let extent = self.create(at, stamp, extent_start);
        let staged = extent.staged.take().filter(|staged| staged.0 == stamp.epoch);
        if let Some((_, start, bytes)) = staged.filter(|s| s.1 + s.2.len() as u64 == end) {
            extent.bytes.truncate((start - extent.start) as usize);
            extent.bytes.extend(bytes);
        }
        if extent.written() < end {
            return Err(refused(RefusalWhy::OutOfOrder { len: extent.written() }));
        }
        extent.bytes.truncate((end - extent.start) as usize);
        (extent.synced, extent.sealed) = (end, Some(end));
        (extent.is_in_limbo, extent.is_damaged) = (false, false);
        Ok(extent.progress())
    }

    fn replica(&self, at: ExtentAt) -> StoreMessage {
        let extent = self.extents.get(&at);
        if let Some(damaged) = extent.filter(|extent| extent.is_damaged) {
            let (valid_end, synced, sealed) = (damaged.written(), damaged.synced, damaged.sealed);
            return StoreMessage::ReplicaDamaged { valid_end, synced, sealed };
        }
        StoreMessage::ReplicaIs {
            valid_end: extent.map_or(0, ModelExtent::written),
            synced: extent.map_or(0, |extent| extent.synced),
            sealed: extent.and_then(|extent| extent.sealed),
            is_in_limbo: extent.is_some_and(|extent| extent.is_in_limbo),
        }
    }
}
