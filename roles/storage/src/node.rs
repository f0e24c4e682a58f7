//! A storage node as a value: it opens its parts, and gives each request to one of them.
//!
//! [`StorageNode`] is synchronous and has no threads of its own, except one of the metadata
//! database unless [`NodeOptions::meta_threads`] forbids it.
//! [`StorageServer`](crate::StorageServer) calls it from I/O threads, and a simulation calls it
//! directly. A restart is [`StorageNode::open`].
//!
//! Invariants:
//! 1. One process has a node open; a lock file on its first device ensures that.
//! 2. Every fact in an answer survives a kill of the process. If a request asks for durability, its
//!    effect survives power loss before it is answered.
//! 3. A node that may have lost unsynced bytes since its last life puts its open extents into limbo
//!    before it answers the first request.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a request that cannot be served is refused with a reason. An error of `open` names the
//! file. After such an error, no file was changed.
//! Cost: as the heads of the parts say.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::random::{Rng, entropy_seed};
use archipelago_env::FileSystem;
use archipelago_fabric::ClientId;
use archipelago_store::nodes::StorageId;
use archipelago_store::nodes::wire::{RefusalWhy, StorageReport, StoreMessage};

use crate::answer::{Answer, Outcome, Refusal};
use crate::chunks::Chunks;
use crate::counters::Counters;
use crate::devices::Devices;
use crate::epochs::Epochs;
use crate::identity::DeviceId;
use crate::life::LifeRecord;
use crate::logs::{LogStep, Logs, SyncWanted};
use crate::meta::{Meta, MetaBatch};
use crate::parts::{NodeOptions, NodeParts};
use crate::registers::Registers;
use crate::scrub::{Scrub, ScrubSources};
use crate::status;
use crate::tombstones::Tombstones;

/// A storage node.
#[derive(Debug)]
pub struct StorageNode {
    parts: NodeParts,
    chunks: Chunks,
    logs: Logs,
    registers: Registers,
    scrub: Scrub,
    life: LifeRecord,
}

/// Name of the directory of the metadata on the first device.
const META_NAME: &str = "meta";

/// Result of the first half of a request: the answer, or the work that remains before it.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would cost an allocation per append")]
pub(crate) enum Begun {
    /// The answer, which waits for nothing.
    Answered(StoreMessage, Vec<u8>),
    /// The bytes are in the extent, and the answer waits for a sync ([`StorageNode::finish`]).
    NeedsSync(SyncWanted),
}

impl StorageNode {
    /// Opens the node on `devices`, or makes a new one on empty directories. Errors: `Busy` if
    /// another process has it open; `InvalidArgument` if the directories belong to different nodes;
    /// `Corrupt`, which names the damaged file.
    pub fn open(
        fs: Arc<dyn FileSystem>,
        devices: &[PathBuf],
        options: NodeOptions,
    ) -> Result<Arc<Self>> {
        let mut rng = Rng::with_seed(options.seed.unwrap_or_else(entropy_seed));
        let limit = options.device_bytes_max;
        let devices = Arc::new(Devices::open(Arc::clone(&fs), devices, limit, &mut rng)?);
        let meta =
            Arc::new(Meta::open(&fs, &devices.first().dir.join(META_NAME), options.meta_threads)?);
        let epochs = Arc::new(Epochs::open(Arc::clone(&meta), options.sabotage)?);
        let tombstones = Arc::new(Tombstones::open(&meta)?);
        let storage = devices.storage();
        let counters = Arc::new(Counters::default());
        let parts = NodeParts { fs, devices, meta, epochs, tombstones, counters, storage, options };
        let beginning = LifeRecord::begin(&parts.meta, parts.fs.boot_id())?;
        let mut batch = MetaBatch::default();
        let logs = Logs::open(&parts, &beginning, &mut batch)?;
        // The limbo of extents becomes durable together with the new life. If a crash comes before
        // that, the next opening reaches the same conclusions from the old life.
        beginning.life.put(&mut batch);
        parts.meta.write(&batch)?;
        // The tails are cleared only now, because the conclusions in the batch rest on them.
        logs.clear_tails()?;
        let chunks = Chunks::open(&parts)?;
        let registers = Registers::open(&parts)?;
        let scrub = Scrub::open(&parts.meta, parts.options.scrub)?;
        let life = beginning.life;
        Ok(Arc::new(Self { parts, chunks, logs, registers, scrub, life }))
    }

    /// Identity of the node, which its directories keep.
    #[must_use]
    pub fn storage(&self) -> StorageId {
        self.parts.storage
    }

    /// The chunks of the node, for repairs.
    pub(crate) fn chunks(&self) -> &Chunks {
        &self.chunks
    }

    /// The parts of the node, for beats.
    pub(crate) fn parts(&self) -> &NodeParts {
        &self.parts
    }

    /// Answers a request. Every fact in the answer is as durable as the request asked for.
    pub fn handle(
        &self,
        from: ClientId,
        message: StoreMessage,
        payload: &[u8],
    ) -> (StoreMessage, Vec<u8>) {
        match self.begin(from, message, payload, None) {
            Begun::Answered(message, payload) => (message, payload),
            Begun::NeedsSync(wanted) => self.finish(from, &wanted),
        }
    }

    /// Does a put or the seal of a repair, whose copy of an extent ends at `end`.
    pub(crate) fn handle_copy(
        &self,
        message: StoreMessage,
        payload: &[u8],
        end: u64,
    ) -> (StoreMessage, Vec<u8>) {
        let name = message.name();
        self.parts.counters.note_request();
        let outcome = self.logs.handle_copy(message, payload, end);
        let answer = outcome.unwrap_or_else(|refusal| self.refuse(ClientId(0), name, refusal));
        (answer.message, answer.payload)
    }

    /// Does the part of a request that must keep the order of the requests of an extent. All other
    /// requests are answered completely. `device` is that of new files; `None` for the one with
    /// most room.
    pub(crate) fn begin(
        &self,
        from: ClientId,
        message: StoreMessage,
        payload: &[u8],
        device: Option<DeviceId>,
    ) -> Begun {
        let name = message.name();
        self.parts.counters.note_request();
        let outcome = match &message {
            StoreMessage::Append { .. } | StoreMessage::SyncLog { .. } => {
                match self.logs.begin(message, payload, device) {
                    Ok(LogStep::Sync(wanted)) => return Begun::NeedsSync(wanted),
                    Ok(LogStep::Answer(answer)) => Ok(answer),
                    Err(refusal) => Err(refusal),
                }
            }
            _ => self.dispatch(message, payload, device),
        };
        let answer = outcome.unwrap_or_else(|refusal| self.refuse(from, name, refusal));
        Begun::Answered(answer.message, answer.payload)
    }

    fn refuse(&self, from: ClientId, request: &str, refusal: Refusal) -> Answer {
        self.parts.counters.note_refusal(refusal.why);
        tracing::debug!(client = %from, request, why = ?refusal.why, text = refusal.text, "a request was refused");
        refusal.into_message().into()
    }

    /// The device of the object that a request concerns; `None` if the request concerns no single
    /// object, or one that the node does not have. It waits for no device.
    pub(crate) fn device_of(&self, message: &StoreMessage) -> Option<DeviceId> {
        match message {
            StoreMessage::PutChunk { chunk, .. }
            | StoreMessage::DropChunk { chunk, .. }
            | StoreMessage::ReadChunk { chunk, .. }
            | StoreMessage::ReportDamage { chunk, .. } => self.chunks.device_of(*chunk),
            StoreMessage::SealChunk { descriptor, .. }
            | StoreMessage::Redescribe { descriptor } => self.chunks.device_of(descriptor.chunk),
            StoreMessage::ReadLog { at, start, .. } => self.logs.device_at(*at, *start),
            StoreMessage::Append { at, .. }
            | StoreMessage::SyncLog { at, .. }
            | StoreMessage::SealLog { at, .. }
            | StoreMessage::PutLog { at, .. }
            | StoreMessage::FenceLog { at, .. }
            | StoreMessage::InspectLog { at } => self.logs.device_of(*at),
            _ => None,
        }
    }

    /// The devices that are present.
    pub(crate) fn devices(&self) -> &Devices {
        &self.parts.devices
    }

    /// The answer to a request that finds no room to wait.
    pub(crate) fn refuse_busy(&self, text: String) -> StoreMessage {
        self.parts.counters.note_request();
        self.parts.counters.note_refusal(RefusalWhy::Busy);
        Refusal::new(RefusalWhy::Busy, text).into_message()
    }

    /// Syncs the extent of an append, and answers it. Concurrent calls for one extent share a sync.
    pub(crate) fn finish(&self, from: ClientId, wanted: &SyncWanted) -> (StoreMessage, Vec<u8>) {
        let refuse = |refusal| self.refuse(from, "a sync of a log", refusal);
        let answer = self.logs.finish(wanted).unwrap_or_else(refuse);
        (answer.message, answer.payload)
    }

    fn dispatch(&self, message: StoreMessage, payload: &[u8], device: Option<DeviceId>) -> Outcome {
        match message {
            StoreMessage::SealLog { .. }
            | StoreMessage::FenceLog { .. }
            | StoreMessage::InspectLog { .. }
            | StoreMessage::ReadLog { .. }
            | StoreMessage::PutLog { .. }
            | StoreMessage::RemoveLog { .. }
            | StoreMessage::ListLogs { .. }
            | StoreMessage::ListSealed { .. } => self.logs.handle(message, payload, device),
            StoreMessage::PutChunk { .. }
            | StoreMessage::SealChunk { .. }
            | StoreMessage::ReadChunk { .. }
            | StoreMessage::Describe { .. }
            | StoreMessage::Redescribe { .. }
            | StoreMessage::Retain { .. }
            | StoreMessage::Release { .. }
            | StoreMessage::ListBlobs { .. }
            | StoreMessage::ListHeld { .. }
            | StoreMessage::DropChunk { .. }
            | StoreMessage::ReportDamage { .. }
            | StoreMessage::AbandonBlob { .. } => self.chunks.handle(message, payload, device),
            StoreMessage::Acceptor { request } => self.registers.handle(request),
            StoreMessage::Found { cluster, root_set } => self.registers.found(cluster, root_set),
            StoreMessage::PromiseEpoch { stamp } => {
                self.parts.epochs.promise(stamp)?;
                Ok(StoreMessage::Done {}.into())
            }
            StoreMessage::NodeStatus {} => Ok(self.status().into()),
            StoreMessage::Scrub {} => {
                self.scrub.request();
                Ok(StoreMessage::Done {}.into())
            }
            other => Err(Refusal::new(
                RefusalWhy::Unsupported,
                format!("a storage node does not serve {}", other.name()),
            )),
        }
    }

    /// State and counters of the node, for managers and operators.
    pub(crate) fn report(&self) -> StorageReport {
        status::report(&self.parts, &self.chunks, &self.logs, &self.scrub)
    }

    /// Asks the file system how much room the device at `place` has, and how long the files of the
    /// metadata are if they lie there. The node keeps the answers. The caller must repeat the call
    /// regularly ([`Devices::look_at_room`]).
    pub(crate) fn look_at_device(&self, place: usize) {
        self.parts.devices.look_at_room(place);
        if place == 0 {
            self.parts.meta.look_at_files();
        }
    }

    /// Checks a part of the stored bytes if a round of the scrub is due or running, and returns the
    /// pause after which the caller continues. `now_ms` is the time since the Unix epoch.
    pub fn scrub_step(&self, now_ms: u64) -> Duration {
        let sources =
            ScrubSources { chunks: &self.chunks, logs: &self.logs, meta: &self.parts.meta };
        self.scrub.step(sources, now_ms)
    }

    fn status(&self) -> StoreMessage {
        let known = self.parts.devices.cluster();
        StoreMessage::NodeStatusIs {
            storage: self.parts.storage,
            life: self.parts.options.life,
            domain: self.parts.options.domain.clone(),
            cluster: known.as_ref().map(|known| known.id),
            root_set: known.map(|known| known.root_set),
            report: self.report(),
        }
    }

    /// Ends the node: open extents are synced, so that the next open finds all of their bytes. A
    /// node that is dropped instead ends as if its process was killed. Requests that come later are
    /// refused.
    pub fn close(&self) -> Result<()> {
        self.logs.close()?;
        self.chunks.settle()?;
        let mut batch = MetaBatch::default();
        LifeRecord { is_closed: true, ..self.life }.put(&mut batch);
        self.parts.meta.write(&batch)?;
        self.parts.meta.close()
    }
}
