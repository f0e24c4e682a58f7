//! The part of a storage node that carries out the orders of the manager: it makes a chunk, copies
//! an extent, or compares chunks with other holders.
//!
//! A [`RepairExecutor`] belongs to a node and has a client of its own for the other nodes. Requests
//! to its own node do not travel.
//!
//! Invariant: an order that is answered as done is durable on this node.
//!
//! Thread-safety: any thread may call any method. Two orders for one chunk exclude each other.
//! Failure: an order that fails is refused as busy, with the reason, and the manager repeats it. An
//! order for a blob that no volume keeps is refused as *not there*, and is not repeated. The copy
//! of an extent is refused as *longer replica* if the node keeps a longer one of its own. The
//! manager repeats it when that may have changed.
//! Cost: a question for the members, and that of [`ChunkRepair`] and of the copy.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use archipelago_base::runtime::join_all;
use archipelago_base::{Error, Result};
use archipelago_env::FileClass;
use archipelago_fabric::TrafficClass;
use parking_lot::Mutex;

use super::super::StorageId;
use super::super::client::{CallOptions, Lane, NodeClient};
use super::super::code::Rs42;
use super::super::placement::WritePurpose;
use super::super::wire::{
    ChunkDescriptor, ChunkId, HeldChunk, Holder, MemberState, MissingChunk, RefusalWhy, Refused,
    SealedExtent, Stamp, StorageMember, StoreMessage,
};
use super::chunk::{ChunkRepair, RepairAction, RepairEnd, RepairInput};
use super::copying::{ChunkCopy, copy_extent};
use super::host::RepairHost;
use super::own_node::{OwnNode, refusal};
use crate::ids::VolumeId;

/// Time after which a question to another node counts as unanswered.
const ASK_DEADLINE: Duration = Duration::from_secs(5);
/// Largest answer with descriptors, in bytes.
const DESCRIPTORS_BYTES_MAX: usize = 1 << 20;

/// Makes chunks and extents on one storage node.
pub struct RepairExecutor {
    node: OwnNode,
    /// Chunks that are being made.
    running: Mutex<BTreeSet<ChunkId>>,
    stop: OrderStop,
}

/// Ends the orders under way, because the node ends.
#[derive(Debug, Default)]
struct OrderStop {
    is_stopped: AtomicBool,
    /// Wakers of the orders under way, by a number.
    waiting: Mutex<BTreeMap<u64, Waker>>,
    next: AtomicU64,
}

impl OrderStop {
    fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        for waker in std::mem::take(&mut *self.waiting.lock()).into_values() {
            waker.wake();
        }
    }

    /// Registers the waker of an order. Returns whether the node ends.
    fn poll(&self, order: u64, context: &Context<'_>) -> bool {
        self.waiting.lock().insert(order, context.waker().clone());
        self.is_stopped.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for RepairExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RepairExecutor({})", self.node.storage)
    }
}

/// A chunk that is being made. The drop ends that.
struct RunningRepair<'a> {
    executor: &'a RepairExecutor,
    chunk: ChunkId,
}

impl Drop for RunningRepair<'_> {
    fn drop(&mut self) {
        self.executor.running.lock().remove(&self.chunk);
    }
}

impl RepairExecutor {
    /// The executor of the node `storage`. `client` reaches the other nodes. Errors: `Internal` if
    /// the erasure code has another matrix.
    pub fn new(
        client: Arc<NodeClient>,
        host: Arc<dyn RepairHost>,
        storage: StorageId,
    ) -> Result<Self> {
        let node = OwnNode { client, host, code: Rs42::new()?, storage };
        Ok(Self { node, running: Mutex::default(), stop: OrderStop::default() })
    }

    /// Whether a request is an order for an executor.
    #[must_use]
    pub fn is_order(message: &StoreMessage) -> bool {
        matches!(
            message,
            StoreMessage::RepairChunk { .. }
                | StoreMessage::RepairExtent { .. }
                | StoreMessage::CheckHeld { .. }
        )
    }

    /// Ends the orders under way, and refuses later ones.
    pub fn stop(&self) {
        self.stop.stop();
    }

    /// Carries out an order, and returns the answer.
    pub async fn carry_out(&self, order: StoreMessage) -> StoreMessage {
        let number = self.stop.next.fetch_add(1, Ordering::Relaxed);
        let mut carrying_out = pin!(self.carry_out_alone(order));
        let answer = poll_fn(|context| match self.stop.poll(number, context) {
            true => {
                let text = "the node is ending and carries out no more repairs";
                Poll::Ready(Refused::new(RefusalWhy::Busy, text).into())
            }
            false => carrying_out.as_mut().poll(context),
        })
        .await;
        self.stop.waiting.lock().remove(&number);
        answer
    }

    async fn carry_out_alone(&self, order: StoreMessage) -> StoreMessage {
        // An order follows a change of the members, which this node may not know yet.
        if let Err(error) = self.node.client.refresh().await {
            if self.node.client.members().members.is_empty() {
                return Refused::new(RefusalWhy::Busy, error.to_string()).into();
            }
            tracing::debug!(%error, "an order is carried out with the last known members");
        }
        let done = match order {
            StoreMessage::RepairChunk { descriptor, replaces, bytes_per_s } => {
                self.repair_chunk(descriptor, replaces, bytes_per_s).await
            }
            StoreMessage::RepairExtent { extent, sources, bytes_per_s } => {
                self.repair_extent(&extent, &sources, bytes_per_s).await
            }
            StoreMessage::CheckHeld { after } => self.check_held(after).await,
            other => Err(Error::unsupported(format!("{} is no order for a repair", other.name()))),
        };
        done.unwrap_or_else(|error| {
            tracing::info!(%error, node = %self.node.storage, "a repair did not succeed");
            Refused::new(RefusalWhy::Busy, error.to_string()).into()
        })
    }

    async fn repair_chunk(
        &self,
        descriptor: ChunkDescriptor,
        replaces: Option<StorageId>,
        bytes_per_s: u64,
    ) -> Result<StoreMessage> {
        let chunk = descriptor.chunk;
        let class = descriptor.class;
        let members = self.node.client.members();
        let replaced = replaces.and_then(|node| members.member(node)).map(|member| member.state);
        let repair = ChunkRepair::new(self.node.storage, descriptor, replaces);
        let repair = match replaced {
            Some(MemberState::Up | MemberState::Silent) => repair.as_move(),
            _ => repair,
        };
        match self.run(repair, chunk, class, bytes_per_s).await? {
            // If a holder has not confirmed, a later comparison sends it the descriptor.
            RepairEnd::Whole { .. } => Ok(StoreMessage::Done {}),
            RepairEnd::Gone => {
                let text = format!("chunk {chunk}: no volume keeps the blob any more");
                Ok(Refused::new(RefusalWhy::NotThere, text).into())
            }
            RepairEnd::Superseded => {
                Err(Error::busy(format!("chunk {chunk}: another repair of the blob was faster")))
            }
            RepairEnd::Failed(why) => {
                Err(Error::busy(format!("chunk {chunk} was not repaired: {why}")))
            }
        }
    }

    async fn repair_extent(
        &self,
        extent: &SealedExtent,
        sources: &[StorageId],
        bytes_per_s: u64,
    ) -> Result<StoreMessage> {
        match copy_extent(&self.node, extent, sources, bytes_per_s).await? {
            None => Ok(StoreMessage::Done {}),
            Some(refused) => {
                tracing::info!(%refused, node = %self.node.storage, "a copy is refused");
                Ok(refused.into())
            }
        }
    }

    /// Compares a page of this node's chunks with the other holders.
    async fn check_held(&self, after: Option<ChunkId>) -> Result<StoreMessage> {
        let (present, answering, shared) = (Vec::new(), Vec::new(), Vec::new());
        let page = StoreMessage::ListHeld { present, answering, is_all: true, after, shared };
        let StoreMessage::Held { chunks, next, .. } = self.node.ask(page, &[])?.0 else {
            return Err(Error::internal("the node does not list its chunks"));
        };
        let mut missing = Vec::new();
        for HeldChunk { descriptor, is_readable } in chunks {
            if !is_readable {
                continue;
            }
            let chunk = descriptor.chunk;
            let blob = descriptor.clone();
            let check = ChunkRepair::check(self.node.storage, descriptor);
            match self.run(check, chunk, blob.class, u64::MAX).await {
                Ok(RepairEnd::Whole { missing: lacking, .. }) => {
                    missing.extend(lacking.into_iter().filter_map(|it| lost_chunk(&blob, it)));
                }
                end => tracing::debug!(%chunk, ?end, "a chunk was not compared"),
            }
        }
        Ok(StoreMessage::Checked { missing, next })
    }

    /// Runs the repair of a chunk to its end. A chunk that this node has is only compared.
    async fn run(
        &self,
        mut repair: ChunkRepair,
        chunk: ChunkId,
        class: FileClass,
        bytes_per_s: u64,
    ) -> Result<RepairEnd> {
        if !self.running.lock().insert(chunk) {
            return Err(Error::busy(format!("chunk {chunk} is being repaired on this node")));
        }
        let _running = RunningRepair { executor: self, chunk };
        let mut action = repair.start();
        loop {
            let input =
                match action {
                    RepairAction::Done(end) => return Ok(end),
                    RepairAction::Describe(nodes) => self.describe(&nodes, chunk).await,
                    RepairAction::Begin => self.begin(StoreMessage::PutChunk {
                        chunk,
                        stamp: None,
                        class,
                        purpose: WritePurpose::Repair,
                        offset: 0,
                        crcs: Vec::new(),
                    }),
                    RepairAction::Copy { descriptor, sources } => {
                        self.copy(&descriptor, sources, bytes_per_s).await
                    }
                    RepairAction::Seal(descriptor) => self.seal(&descriptor),
                    RepairAction::Redescribe(told) => {
                        self.tell(told.into_iter().map(|(node, descriptor)| {
                            (node, StoreMessage::Redescribe { descriptor })
                        }))
                        .await
                    }
                    RepairAction::FixSet { add, take } => outcome(self.fix_set(add, &take)),
                    RepairAction::Drop(surplus) => {
                        self.tell(surplus.into_iter().map(|(node, chunk, placement)| {
                            (node, StoreMessage::DropChunk { chunk, placement })
                        }))
                        .await
                    }
                    RepairAction::Abandon => {
                        self.node.host.abandon_repair(chunk);
                        RepairInput::Done
                    }
                };
            action = repair.step(input);
        }
    }

    /// Asks those of the nodes that the managers report as up.
    async fn describe(&self, nodes: &[StorageId], chunk: ChunkId) -> RepairInput {
        let members = self.node.client.members();
        let is_up = |node: &&StorageId| {
            let report = members.member(**node).map(StorageMember::report);
            **node == self.node.storage || report.is_some_and(|report| report.is_up)
        };
        let nodes: Vec<StorageId> = nodes.iter().filter(is_up).copied().collect();
        let request = StoreMessage::Describe { blob: chunk.blob };
        let answers = join_all(nodes.iter().map(|node| self.ask(*node, &request))).await;
        let answers = nodes.iter().zip(answers).filter_map(|(node, answer)| match answer {
            Ok(StoreMessage::Descriptors { descriptors }) => Some((*node, descriptors)),
            Ok(_) => None,
            Err(error) => {
                tracing::debug!(%error, "a holder does not describe its chunk");
                None
            }
        });
        RepairInput::Described(answers.collect())
    }

    fn begin(&self, put: StoreMessage) -> RepairInput {
        let (answer, _) = self.node.host.answer(put, &[]);
        match refusal(&answer, "this node") {
            None => RepairInput::Begun { is_sealed: false },
            Some((RefusalWhy::Sealed, _)) => RepairInput::Begun { is_sealed: true },
            Some((_, error)) => RepairInput::Failed(error.to_string()),
        }
    }

    /// Copies the bytes of a chunk, unless this node knows that the blob was released.
    async fn copy(
        &self,
        descriptor: &ChunkDescriptor,
        sources: Vec<Holder>,
        bytes_per_s: u64,
    ) -> RepairInput {
        if self.node.host.has_released(descriptor) {
            return match self.forward_release(descriptor, &sources).await {
                Ok(()) => RepairInput::Released,
                Err(error) => RepairInput::Failed(error.to_string()),
            };
        }
        let copy = ChunkCopy { node: &self.node, descriptor, sources, bytes_per_s };
        outcome(copy.run().await)
    }

    /// Forwards the release of a blob to holders that have missed it, so that they do not restore
    /// the blob. The volume that wrote a blob never keeps it again after its release. Errors: the
    /// first refusal. A holder that knows a later owner refuses, and that owner finds its chunk
    /// among the strays.
    async fn forward_release(&self, released: &ChunkDescriptor, holders: &[Holder]) -> Result<()> {
        let volume = released.written.volume;
        let stamp = Stamp { volume, epoch: self.node.host.promised_epoch(volume) };
        let release = StoreMessage::Release { blobs: vec![released.chunk.blob], stamp };
        let told = join_all(holders.iter().map(|holder| self.ask(holder.storage, &release))).await;
        told.into_iter().try_for_each(|answer| answer.map(drop))
    }

    /// Seals the chunk of this node. A release that arrived during the copy refuses the seal.
    fn seal(&self, descriptor: &ChunkDescriptor) -> RepairInput {
        let seal = StoreMessage::SealChunk { stamp: None, descriptor: descriptor.clone() };
        match self.node.ask(seal, &[]) {
            Err(_) if self.node.host.has_released(descriptor) => RepairInput::Released,
            sealed => outcome(sealed.map(|_| ())),
        }
    }

    fn fix_set(&self, add: ChunkDescriptor, take: &[VolumeId]) -> Result<()> {
        let chunk = add.chunk;
        if !add.retaining.is_empty() {
            self.node.ask(StoreMessage::Redescribe { descriptor: add }, &[])?;
        }
        if take.is_empty() { Ok(()) } else { self.node.host.take_volumes(chunk, take) }
    }

    /// Sends requests whose outcome the next look shows.
    async fn tell(&self, told: impl Iterator<Item = (StorageId, StoreMessage)>) -> RepairInput {
        let told: Vec<(StorageId, StoreMessage)> = told.collect();
        let answers = join_all(told.iter().map(|(node, request)| self.ask(*node, request))).await;
        for error in answers.into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "a holder has not confirmed a repair");
        }
        RepairInput::Done
    }

    /// Asks a node, or this node itself. A refusal is an error.
    async fn ask(&self, node: StorageId, request: &StoreMessage) -> Result<StoreMessage> {
        if node == self.node.storage {
            return Ok(self.node.ask(request.clone(), &[])?.0);
        }
        let how = CallOptions::new(TrafficClass::Compaction, ASK_DEADLINE)
            .payload_max(DESCRIPTORS_BYTES_MAX);
        Ok(self.node.client.ask(node, Lane::Bulk, request, how).await?.message)
    }
}

fn outcome(done: Result<()>) -> RepairInput {
    match done {
        Ok(()) => RepairInput::Done,
        Err(error) => RepairInput::Failed(error.to_string()),
    }
}

/// The chunk that a holder lacks.
fn lost_chunk(blob: &ChunkDescriptor, storage: StorageId) -> Option<MissingChunk> {
    let holder = blob.holders.iter().find(|holder| holder.storage == storage)?;
    let chunk = ChunkId { index: holder.chunk, ..blob.chunk };
    Some(MissingChunk { storage, descriptor: ChunkDescriptor { chunk, ..blob.clone() } })
}
