//! The way of a request through a server: from the fabric's thread into a lane, through the node,
//! and back.
//!
//! The fabric calls [`Serving`] on its own thread, which only decodes the message, chooses the lane
//! and copies the body. It waits for no device. A full lane answers that the node is busy.
//!
//! | lane | requests | order |
//! | --- | --- | --- |
//! | log, one per device | appends, syncs and fences of logs | per extent |
//! | write, one per device | pieces and seals of chunks, puts and seals of extents | per chunk or extent |
//! | read, one per device | pieces of chunks, bytes of logs | none |
//! | control | registers, promises, status | none |
//! | sets | descriptors, lists of blobs, retentions: the metadata alone | none |
//! | wide | releases, abandonments, removals and lists of logs, which may touch every device | none |
//! | repair | orders of the manager, which take long | none |
//!
//! Invariants:
//! 1. No request waits behind one of another lane. So a slow or hung device delays no requests to
//!    other devices. It delays requests of the metadata only if it is the first device, which has
//!    the metadata.
//! 2. The appends of an extent run in the order in which they arrived over a link, also if the
//!    extent moves to another device ([`super::pins`]).
//! 3. Every request gets an answer. If a reply is dropped, the client learns from the fabric that
//!    no answer follows.
//! 4. A new object goes to the device with most room among those whose lanes are not backed up.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a body that is no request is refused as malformed.
//! Cost: one copy of the body, and two changes of threads.

use std::fmt;
use std::sync::{Arc, OnceLock};

use archipelago_base::Result;
use archipelago_base::runtime::block_on;
use archipelago_base::spawn::{Joiner, Spawn};
use archipelago_fabric::{ClientId, Handler, Reply, Request};
use archipelago_store::nodes::repairs::RepairExecutor;
use archipelago_store::nodes::wire::{ExtentAt, RefusalWhy, StoreMessage, envelope};

use super::lane::{Lane, LaneKey, LaneLimits, Rejected};
use super::pins::Pins;
use super::syncs::SyncQueue;
use crate::answer::Refusal;
use crate::identity::DeviceId;
use crate::logs::SyncWanted;
use crate::node::{Begun, StorageNode};

/// Threads of the log lane of a device. One may be held up by the creation of an extent.
const LOG_THREADS: usize = 3;
/// Threads that sync extents of a device. No two of them sync the same extent.
const SYNC_THREADS: usize = 4;
/// Threads of the write lane of a device.
const WRITE_THREADS: usize = 2;
/// Threads of the read lane of a device.
const READ_THREADS: usize = 4;
/// Threads of the control lane. Their syncs of the metadata are shared.
const CONTROL_THREADS: usize = 4;
/// Threads of the lanes for sets, and for requests that may touch every device.
const SET_THREADS: usize = 2;
/// Threads that carry out orders for repairs.
const REPAIR_THREADS: usize = 2;

/// Bounds of the lane of repairs. The manager gives a node few orders at a time.
const REPAIR_LIMITS: LaneLimits = LaneLimits { requests_max: 64, bytes_max: 4 << 20 };
/// Bounds of a lane with bulk bodies.
const BULK_LIMITS: LaneLimits = LaneLimits { requests_max: 256, bytes_max: 64 << 20 };
/// Bounds of a lane with short bodies.
const SHORT_LIMITS: LaneLimits = LaneLimits { requests_max: 4096, bytes_max: 16 << 20 };
/// Bounds of a log lane: many short appends, or some long ones.
const LOG_LIMITS: LaneLimits = LaneLimits { requests_max: 4096, bytes_max: 64 << 20 };
/// Number of waiting requests in a log or write lane above which new objects go to other devices.
const BACKED_UP: usize = 16;

/// A request in a lane.
struct LaneJob {
    from: ClientId,
    message: StoreMessage,
    /// The body of the request, whose payload begins at `payload_start`.
    body: Vec<u8>,
    payload_start: usize,
    /// The object that is pinned to the device of the lane.
    pinned: Option<LaneKey>,
    reply: Reply,
}

/// An append or a sync whose answer waits for the device.
struct SyncJob {
    from: ClientId,
    wanted: SyncWanted,
    reply: Reply,
}

/// The lanes of one device.
struct DeviceLanes {
    device: DeviceId,
    log: Lane<LaneJob>,
    write: Lane<LaneJob>,
    read: Lane<LaneJob>,
    syncs: SyncQueue<SyncJob>,
}

impl DeviceLanes {
    fn new(device: DeviceId) -> Self {
        Self {
            device,
            log: Lane::new("storage-log", LOG_LIMITS),
            write: Lane::new("storage-write", BULK_LIMITS),
            read: Lane::new("storage-read", SHORT_LIMITS),
            syncs: SyncQueue::new(),
        }
    }

    /// Whether many requests wait, so that the device may hang.
    fn is_backed_up(&self) -> bool {
        self.log.waiting() > BACKED_UP || self.write.waiting() > BACKED_UP
    }

    fn close(&self) {
        [&self.log, &self.write, &self.read].into_iter().for_each(Lane::close);
        self.syncs.close();
    }
}

/// The node with its lanes.
pub(super) struct Serving {
    node: Arc<StorageNode>,
    /// In the order of the present devices.
    devices: Vec<DeviceLanes>,
    control: Lane<LaneJob>,
    sets: Lane<LaneJob>,
    wide: Lane<LaneJob>,
    pins: Pins,
    repair: Lane<LaneJob>,
    /// Executor of orders for repairs, once the node reaches other nodes.
    executor: OnceLock<RepairExecutor>,
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").field("node", &self.node).finish_non_exhaustive()
    }
}

/// The lane of a request, and the object whose requests keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Log(ExtentAt),
    Fence,
    Control,
    Sets,
    Wide,
    Write(LaneKey),
    Read,
    Repair,
}

fn way_of(message: &StoreMessage) -> Way {
    match message {
        StoreMessage::Append { at, .. } | StoreMessage::SyncLog { at, .. } => Way::Log(*at),
        StoreMessage::FenceLog { .. } | StoreMessage::InspectLog { .. } => Way::Fence,
        StoreMessage::PutLog { at, .. } | StoreMessage::SealLog { at, .. } => {
            Way::Write(LaneKey::Extent(*at))
        }
        StoreMessage::PutChunk { chunk, .. } | StoreMessage::DropChunk { chunk, .. } => {
            Way::Write(LaneKey::Chunk(*chunk))
        }
        StoreMessage::SealChunk { descriptor, .. } | StoreMessage::Redescribe { descriptor } => {
            Way::Write(LaneKey::Chunk(descriptor.chunk))
        }
        StoreMessage::Retain { .. }
        | StoreMessage::Describe { .. }
        | StoreMessage::ListBlobs { .. }
        | StoreMessage::ListHeld { .. } => Way::Sets,
        StoreMessage::Release { .. }
        | StoreMessage::AbandonBlob { .. }
        | StoreMessage::RemoveLog { .. }
        | StoreMessage::ListLogs { .. }
        | StoreMessage::ListSealed { .. } => Way::Wide,
        StoreMessage::ReadChunk { .. }
        | StoreMessage::ReportDamage { .. }
        | StoreMessage::ReadLog { .. } => Way::Read,
        order if RepairExecutor::is_order(order) => Way::Repair,
        _ => Way::Control,
    }
}

/// The lane of a request.
struct ChosenLane<'a> {
    lane: &'a Lane<LaneJob>,
    /// The object whose requests run one after the other, and which is pinned to a device.
    key: Option<LaneKey>,
}

impl Serving {
    /// The lanes of `node`, without threads.
    pub(super) fn new(node: Arc<StorageNode>) -> Arc<Self> {
        let devices = node.devices().present().iter();
        let devices = devices.map(|device| DeviceLanes::new(device.id)).collect();
        Arc::new(Self {
            node,
            devices,
            control: Lane::new("storage-control", SHORT_LIMITS),
            sets: Lane::new("storage-sets", SHORT_LIMITS),
            wide: Lane::new("storage-wide", SHORT_LIMITS),
            pins: Pins::default(),
            repair: Lane::new("storage-repair", REPAIR_LIMITS),
            executor: OnceLock::new(),
        })
    }

    /// Starts the threads of all lanes, and adds them to `threads`.
    pub(super) fn start(
        self: &Arc<Self>,
        spawn: &dyn Spawn,
        threads: &mut Vec<Joiner>,
    ) -> Result<()> {
        let mut start =
            |name: &str, count: usize, body: fn(&Self, usize), place: usize| -> Result<()> {
                for _ in 0..count {
                    let serving = Arc::clone(self);
                    threads.push(spawn.spawn(name, Box::new(move || body(&serving, place)))?);
                }
                Ok(())
            };
        start(self.control.name(), CONTROL_THREADS, |it, _| it.work(&it.control, None), 0)?;
        start(self.sets.name(), SET_THREADS, |it, _| it.work(&it.sets, None), 0)?;
        start(self.wide.name(), SET_THREADS, |it, _| it.work(&it.wide, None), 0)?;
        start(self.repair.name(), REPAIR_THREADS, |it, _| it.work_repairs(), 0)?;
        for (place, lanes) in self.devices.iter().enumerate() {
            let (log, write, read) = (lanes.log.name(), lanes.write.name(), lanes.read.name());
            start(log, LOG_THREADS, |it, at| it.work_on(at, |lanes| &lanes.log), place)?;
            start(write, WRITE_THREADS, |it, at| it.work_on(at, |lanes| &lanes.write), place)?;
            start(read, READ_THREADS, |it, at| it.work_on(at, |lanes| &lanes.read), place)?;
            start("storage-sync", SYNC_THREADS, Self::work_syncs, place)?;
        }
        Ok(())
    }

    /// Ends the threads of all lanes. Requests that wait get no answer from the node.
    pub(super) fn close(&self) {
        let lanes = [&self.control, &self.sets, &self.wide, &self.repair];
        lanes.into_iter().for_each(Lane::close);
        self.devices.iter().for_each(DeviceLanes::close);
        if let Some(executor) = self.executor.get() {
            executor.stop();
        }
    }

    /// Runs the requests of a lane. New files go to `device`.
    fn work(&self, lane: &Lane<LaneJob>, device: Option<DeviceId>) {
        lane.work(|job| self.run(job, device));
    }

    /// Runs the requests of a lane of the device at `place`.
    fn work_on(&self, place: usize, lane: fn(&DeviceLanes) -> &Lane<LaneJob>) {
        let lanes = &self.devices[place];
        self.work(lane(lanes), Some(lanes.device));
    }

    fn run(&self, job: LaneJob, device: Option<DeviceId>) {
        let LaneJob { from, message, body, payload_start, pinned, reply } = job;
        match self.node.begin(from, message, &body[payload_start..], device) {
            Begun::Answered(message, payload) => send(reply, &message, &payload),
            Begun::NeedsSync(wanted) => {
                let place = self.place_of(wanted.device().or(device));
                self.devices[place].syncs.add(wanted.at(), SyncJob { from, wanted, reply });
            }
        }
        if let Some(key) = pinned {
            self.pins.release(key);
        }
    }

    /// Sets the executor of orders. The server calls it once, when the node reaches other nodes.
    pub(super) fn repair_with(&self, executor: RepairExecutor) {
        let _known = self.executor.set(executor);
    }

    fn work_repairs(&self) {
        self.repair.work(|job| {
            let LaneJob { message, reply, .. } = job;
            let answer = match self.executor.get() {
                Some(executor) => block_on(executor.carry_out(message)),
                None => self.node.refuse_busy("this node does not reach others yet".to_owned()),
            };
            send(reply, &answer, &[]);
        });
    }

    fn work_syncs(&self, place: usize) {
        self.devices[place].syncs.work(|jobs| {
            for SyncJob { from, wanted, reply } in jobs {
                // The first answer syncs the bytes of all jobs, because they were in the extent
                // before.
                let (message, payload) = self.node.finish(from, &wanted);
                send(reply, &message, &payload);
            }
        });
    }

    /// The place of a device among the present devices. Without a device, the place of the first
    /// device.
    fn place_of(&self, device: Option<DeviceId>) -> usize {
        let place = device.and_then(|id| self.devices.iter().position(|it| it.device == id));
        place.unwrap_or(0)
    }

    /// The place of the device that has an object, or of the device for a new object.
    fn place_for(&self, message: &StoreMessage) -> usize {
        if let Some(device) = self.node.device_of(message) {
            return self.place_of(Some(device));
        }
        let is_free = |id| !self.devices[self.place_of(Some(id))].is_backed_up();
        let devices = self.node.devices();
        let chosen = devices.roomiest_of(is_free).or_else(|_| devices.roomiest());
        // If no device works, a lane of the first device refuses the request.
        chosen.map_or(0, |(device, _)| self.place_of(Some(device.id)))
    }

    fn choose(&self, message: &StoreMessage) -> ChosenLane<'_> {
        let pinned = |key| &self.devices[self.pins.pin(key, || self.place_for(message))];
        let known = || &self.devices[self.place_of(self.node.device_of(message))];
        let unordered = |lane| ChosenLane { lane, key: None };
        match way_of(message) {
            Way::Log(at) => {
                let key = LaneKey::Extent(at);
                ChosenLane { lane: &pinned(key).log, key: Some(key) }
            }
            Way::Write(key) => ChosenLane { lane: &pinned(key).write, key: Some(key) },
            Way::Fence => unordered(&known().log),
            Way::Read => unordered(&known().read),
            Way::Control => unordered(&self.control),
            Way::Sets => unordered(&self.sets),
            Way::Wide => unordered(&self.wide),
            Way::Repair => unordered(&self.repair),
        }
    }

    fn queue(&self, from: ClientId, body: &[u8], reply: Reply) {
        let (message, payload_start) = match envelope::open(body) {
            Ok((message, payload)) => (message, body.len() - payload.len()),
            Err(malformed) => {
                tracing::warn!(client = %from, %malformed, "a request was refused");
                let refusal = Refusal::new(RefusalWhy::Malformed, malformed.to_string());
                send(reply, &refusal.into_message(), &[]);
                return;
            }
        };
        let ChosenLane { lane, key } = self.choose(&message);
        let (bytes, pinned) = (body.len(), key);
        let job = LaneJob { from, message, body: body.to_vec(), payload_start, pinned, reply };
        if let Err(Rejected(job)) = lane.submit(key, bytes, job) {
            if let Some(key) = key {
                self.pins.release(key);
            }
            let text = format!("the lane {} of this node is full", lane.name());
            let refusal = self.node.refuse_busy(text);
            send(job.reply, &refusal, &[]);
        }
    }
}

fn send(reply: Reply, message: &StoreMessage, payload: &[u8]) {
    reply.send(envelope::seal(message, payload));
}

/// The handler of the fabric's node.
#[derive(Debug)]
pub(super) struct RequestHandler(pub(super) Arc<Serving>);

impl Handler for RequestHandler {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        self.0.queue(request.client, request.body, reply);
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::Epoch;
    use archipelago_store::BlobId;
    use archipelago_store::nodes::wire::Stamp;

    use super::*;

    #[test]
    fn appends_go_another_way_than_bulk() {
        let (at, stamp) = (ExtentAt::default(), Stamp::default());
        assert_eq!(way_of(&StoreMessage::SyncLog { at, stamp }), Way::Log(at));
        let read = StoreMessage::ReadLog { at, start: 0, end: 1 };
        assert_eq!(way_of(&read), Way::Read);
        assert_eq!(way_of(&StoreMessage::PromiseEpoch { stamp }), Way::Control);
        assert_eq!(way_of(&StoreMessage::FenceLog { at, stamp }), Way::Fence);
        let abandonment = StoreMessage::AbandonBlob { blob: BlobId::default(), stamp };
        assert_eq!(way_of(&abandonment), Way::Wide);
        assert_eq!(stamp.epoch, Epoch(0));
    }
}
