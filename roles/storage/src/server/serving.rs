//! The way of a request through a server: from the fabric's thread into a lane, through the node,
//! and back.
//!
//! The fabric calls [`Serving`] on its own thread, which only decodes the message, chooses the lane
//! and copies the body. A full lane answers that the node is busy.
//!
//! | lane | requests | order |
//! | --- | --- | --- |
//! | log | appends, syncs of logs | per extent |
//! | control | fences, registers, promises, status | none |
//! | write | pieces and seals of chunks, puts and seals of extents, sets | per chunk or extent |
//! | read, one per device | pieces of chunks, bytes of logs, descriptors, lists | none |
//! | repair | orders of the manager, which take long | none |
//!
//! Invariants:
//! 1. No request waits behind one of another lane. So a slow device does not delay reads of others.
//! 2. The appends of an extent run in the order in which they arrived over a link.
//! 3. Every request is answered, or its reply is dropped, which answers as well.
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
use super::syncs::SyncQueue;
use crate::answer::Refusal;
use crate::logs::SyncWanted;
use crate::node::{Begun, StorageNode};

/// Threads of the log lane. One may be held up by the creation of an extent.
const LOG_THREADS: usize = 3;
/// Threads that sync extents, each another one.
const SYNC_THREADS: usize = 4;
/// Threads of the control lane. Their syncs of the metadata are shared.
const CONTROL_THREADS: usize = 4;
/// Threads of the write lane per device.
const WRITE_THREADS: usize = 2;
/// Threads of the read lane per device.
const READ_THREADS: usize = 4;

/// Threads that carry out orders for repairs.
const REPAIR_THREADS: usize = 2;

/// Bounds of the lane of repairs. The manager gives a node few orders at a time.
const REPAIR_LIMITS: LaneLimits = LaneLimits { requests_max: 64, bytes_max: 4 << 20 };
/// Bounds of a lane with bulk bodies.
const BULK_LIMITS: LaneLimits = LaneLimits { requests_max: 256, bytes_max: 64 << 20 };
/// Bounds of a lane with short bodies.
const SHORT_LIMITS: LaneLimits = LaneLimits { requests_max: 4096, bytes_max: 16 << 20 };
/// Bounds of the log lane: many short appends, or some long ones.
const LOG_LIMITS: LaneLimits = LaneLimits { requests_max: 4096, bytes_max: 64 << 20 };

/// A request in a lane.
struct LaneJob {
    from: ClientId,
    message: StoreMessage,
    /// The body of the request, whose payload begins at `payload_start`.
    body: Vec<u8>,
    payload_start: usize,
    reply: Reply,
}

/// An append or a sync whose answer waits for the device.
struct SyncJob {
    from: ClientId,
    wanted: SyncWanted,
    reply: Reply,
}

/// The node with its lanes.
pub(super) struct Serving {
    node: Arc<StorageNode>,
    log: Lane<LaneJob>,
    control: Lane<LaneJob>,
    write: Lane<LaneJob>,
    /// One lane per device.
    reads: Vec<Lane<LaneJob>>,
    syncs: SyncQueue<SyncJob>,
    repair: Lane<LaneJob>,
    /// What carries out orders, once the node reaches others.
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
    Control,
    Write(Option<LaneKey>),
    Read,
    Repair,
}

fn way_of(message: &StoreMessage) -> Way {
    match message {
        StoreMessage::Append { at, .. } | StoreMessage::SyncLog { at, .. } => Way::Log(*at),
        StoreMessage::PutLog { at, .. } | StoreMessage::SealLog { at, .. } => {
            Way::Write(Some(LaneKey::Extent(*at)))
        }
        StoreMessage::PutChunk { chunk, .. } | StoreMessage::DropChunk { chunk, .. } => {
            Way::Write(Some(LaneKey::Chunk(*chunk)))
        }
        StoreMessage::SealChunk { descriptor, .. } | StoreMessage::Redescribe { descriptor } => {
            Way::Write(Some(LaneKey::Chunk(descriptor.chunk)))
        }
        StoreMessage::Retain { .. }
        | StoreMessage::Release { .. }
        | StoreMessage::AbandonBlob { .. }
        | StoreMessage::RemoveLog { .. } => Way::Write(None),
        StoreMessage::ReadChunk { .. }
        | StoreMessage::ReportDamage { .. }
        | StoreMessage::ReadLog { .. }
        | StoreMessage::Describe { .. }
        | StoreMessage::ListBlobs { .. }
        | StoreMessage::ListLogs { .. }
        | StoreMessage::ListHeld { .. }
        | StoreMessage::ListSealed { .. } => Way::Read,
        order if RepairExecutor::is_order(order) => Way::Repair,
        _ => Way::Control,
    }
}

impl Serving {
    /// The lanes of `node`, without threads.
    pub(super) fn new(node: Arc<StorageNode>) -> Arc<Self> {
        let read = |_| Lane::new("storage-read", SHORT_LIMITS);
        let reads = (0..node.devices()).map(read).collect();
        Arc::new(Self {
            node,
            log: Lane::new("storage-log", LOG_LIMITS),
            control: Lane::new("storage-control", SHORT_LIMITS),
            write: Lane::new("storage-write", BULK_LIMITS),
            reads,
            syncs: SyncQueue::new(),
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
        let write_threads = WRITE_THREADS * self.reads.len();
        start(self.log.name(), LOG_THREADS, |it, _| it.work(&it.log), 0)?;
        start("storage-sync", SYNC_THREADS, |it, _| it.work_syncs(), 0)?;
        start(self.control.name(), CONTROL_THREADS, |it, _| it.work(&it.control), 0)?;
        start(self.write.name(), write_threads, |it, _| it.work(&it.write), 0)?;
        start(self.repair.name(), REPAIR_THREADS, |it, _| it.work_repairs(), 0)?;
        for (place, lane) in self.reads.iter().enumerate() {
            start(lane.name(), READ_THREADS, |it, place| it.work(&it.reads[place]), place)?;
        }
        Ok(())
    }

    /// Ends the threads of all lanes. Requests that wait get no answer from the node.
    pub(super) fn close(&self) {
        let lanes = [&self.log, &self.control, &self.write, &self.repair];
        for lane in lanes.into_iter().chain(&self.reads) {
            lane.close();
        }
        if let Some(executor) = self.executor.get() {
            executor.stop();
        }
        self.syncs.close();
    }

    fn work(&self, lane: &Lane<LaneJob>) {
        lane.work(|job| self.run(job));
    }

    fn run(&self, job: LaneJob) {
        let LaneJob { from, message, body, payload_start, reply } = job;
        match self.node.begin(from, message, &body[payload_start..]) {
            Begun::Answered(message, payload) => send(reply, &message, &payload),
            Begun::NeedsSync(wanted) => {
                self.syncs.add(wanted.at(), SyncJob { from, wanted, reply });
            }
        }
    }

    /// Sets what carries out orders. The server calls it once, when the node reaches others.
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

    fn work_syncs(&self) {
        self.syncs.work(|jobs| {
            for SyncJob { from, wanted, reply } in jobs {
                // The first one syncs for all: their bytes were in the extent before.
                let (message, payload) = self.node.finish(from, &wanted);
                send(reply, &message, &payload);
            }
        });
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
        let (lane, key) = match way_of(&message) {
            Way::Log(at) => (&self.log, Some(LaneKey::Extent(at))),
            Way::Control => (&self.control, None),
            Way::Write(key) => (&self.write, key),
            Way::Read => (&self.reads[self.node.device_of(&message)], None),
            Way::Repair => (&self.repair, None),
        };
        let job = LaneJob { from, message, body: body.to_vec(), payload_start, reply };
        if let Err(Rejected(job)) = lane.submit(key, body.len(), job) {
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
    use archipelago_store::nodes::wire::Stamp;

    use super::*;

    #[test]
    fn appends_go_another_way_than_bulk() {
        let (at, stamp) = (ExtentAt::default(), Stamp::default());
        assert_eq!(way_of(&StoreMessage::SyncLog { at, stamp }), Way::Log(at));
        let read = StoreMessage::ReadLog { at, start: 0, end: 1 };
        assert_eq!(way_of(&read), Way::Read);
        assert_eq!(way_of(&StoreMessage::PromiseEpoch { stamp }), Way::Control);
        assert_eq!(stamp.epoch, Epoch(0));
    }
}
