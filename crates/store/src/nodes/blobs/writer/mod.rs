//! Writers of blobs on storage nodes.
//!
//! A [`NodeBlobWriter`] collects *steps*: 1 MiB with replicas, or one stripe with RS(4,2). Each
//! node of the blob has a *sender*: a task that sends it its part of every step, in order. A
//! bounded number of bytes is on its way, so the client's card stays busy while the next step is
//! filled.
//!
//! | module | purpose |
//! | --- | --- |
//! | `step` | a step: its parts, parity and checksums |
//! | `progress` | how far each node is, and what a replacement needs; pure |
//! | `sender` | the task of one node |
//! | `rebuild` | the earlier part of a chunk for a replacement |
//! | `seal` | descriptors with the final holders |
//!
//! A blob that may be coded gets its nodes when the first stripe is full or the blob ends. Until
//! then its scheme is undecided, because a blob under 1 MiB has replicas in every class.
//!
//! Invariants:
//! 1. A seal returns when all chunks are durable with a descriptor that names the final holders.
//! 2. A writer that has ended sends no more bytes. It has ended when it failed, when its blob was
//!    released, or when it was dropped.
//! 3. The budget is charged with all bytes that the writer holds.
//!
//! Thread-safety: one thread uses a writer. The lock of [`BlobWrite`] guards what it shares with
//! its senders, and is not held over an await.
//! Failure: a node that fails, is full or takes more than twice its usual time is replaced. The
//! blob fails if too few nodes are left, and at the first `Fenced` answer. A coded blob needs all
//! its nodes, so it waits for a slow one that no other can replace, up to the deadline of a call.
//! Cost: one copy of the bytes into the step, and one into each message. A blob of n steps takes n
//! round trips, which overlap, and one for the seal.

mod progress;
mod rebuild;
mod seal;
mod sender;
mod step;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use archipelago_base::budget::{Charge, MemoryClass};
use archipelago_base::runtime::wait_for;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{IoContext, IoPurpose};
use parking_lot::Mutex;

use super::super::StorageId;
use super::super::client::StoreEvent;
use super::super::layout::{CODED_BYTES_MIN, CellSize, Redundancy, Scheme};
use super::super::placement::{
    Placement, PlacementDebt, PlacementRequest, Replacement, WritePurpose, no_space, place, replace,
};
use super::super::wire::Stamp;
use super::chunk_nodes::{CallTerms, NodeFailure};
use super::core::{BlobsCore, blob_name, traffic_class};
use super::stats::BlobEvent;
use crate::blob::{BlobOptions, BlobRef, BlobWriter};
use crate::ids::BlobId;

use self::progress::{SlotFailure, SlotNode, WriteProgress};
use self::sender::run_sender;
use self::step::{WriteStep, step_bytes};

/// Bytes on their way to nodes above which a writer waits. The product of rate and round trip of a
/// fast card is a small part of it.
const WINDOW_BYTES: u64 = 3 << 20;

/// Reason for which a node is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplaceReason {
    Failed,
    Full,
    Slow,
}

impl ReplaceReason {
    fn of(failure: &NodeFailure) -> Self {
        if matches!(failure, NodeFailure::Full(_)) { Self::Full } else { Self::Failed }
    }
}

/// State that the writer shares with its senders.
#[derive(Debug)]
struct WriteState {
    /// `None` until the blob has nodes.
    progress: Option<WriteProgress>,
    debt: PlacementDebt,
    /// Whether the blob has replicas because domains were missing for RS(4,2).
    is_coding_due: bool,
    /// Nodes that failed.
    avoid: Vec<StorageId>,
    /// The error of every later call.
    ended: Option<Error>,
    /// Whether the blob is sealed, so that the senders end.
    is_sealed: bool,
    /// Number of tasks that may send something.
    running: usize,
    /// Whether the writer was dropped.
    is_dropped: bool,
    /// Bytes of the step that is being filled.
    filling_bytes: u64,
    charge: Charge,
    /// Number of changes of this state.
    version: u64,
    wakers: Vec<Waker>,
}

/// A blob that is being written.
#[derive(Debug)]
pub(super) struct BlobWrite {
    core: Arc<BlobsCore>,
    id: BlobId,
    stamp: Stamp,
    context: IoContext,
    size_hint_bytes: u64,
    state: Mutex<WriteState>,
}

impl BlobWrite {
    fn new(core: &Arc<BlobsCore>, id: BlobId, options: &BlobOptions) -> Arc<Self> {
        let state = WriteState {
            progress: None,
            debt: PlacementDebt::None,
            is_coding_due: false,
            avoid: Vec::new(),
            ended: None,
            is_sealed: false,
            running: 0,
            is_dropped: false,
            filling_bytes: 0,
            charge: core.options.budget.hold(MemoryClass::Job, 0),
            version: 0,
            wakers: Vec::new(),
        };
        Arc::new(Self {
            core: Arc::clone(core),
            id,
            stamp: Stamp { volume: options.volume, epoch: options.epoch },
            context: options.context,
            size_hint_bytes: options.size_hint_bytes,
            state: Mutex::new(state),
        })
    }

    /// Volume and epoch of the writer.
    pub(super) fn stamp(&self) -> Stamp {
        self.stamp
    }

    fn terms(&self) -> CallTerms {
        CallTerms {
            class: traffic_class(self.context.purpose),
            deadline: self.core.options.timing.write_deadline,
            file: self.context.class,
        }
    }

    fn purpose(&self) -> WritePurpose {
        match self.context.purpose {
            IoPurpose::Ingest => WritePurpose::Ingestion,
            _ => WritePurpose::Job,
        }
    }

    /// Changes the state, and wakes everything that waits for a change.
    fn change<T>(&self, change: impl FnOnce(&mut WriteState) -> T) -> T {
        let (output, wakers) = {
            let mut state = self.state.lock();
            let output = change(&mut state);
            state.version += 1;
            let retained = state.progress.as_ref().map_or(0, WriteProgress::memory_bytes);
            let held = retained + state.filling_bytes;
            if state.charge.bytes() != held {
                state.charge.resize(held);
            }
            (output, std::mem::take(&mut state.wakers))
        };
        wakers.into_iter().for_each(Waker::wake);
        output
    }

    /// Waits until `look` returns a value. `look` runs under the lock, and again after every
    /// change.
    async fn wait_until<T>(&self, mut look: impl FnMut(&WriteState) -> Option<T>) -> T {
        poll_fn(|context| {
            let mut state = self.state.lock();
            if let Some(output) = look(&state) {
                return Poll::Ready(output);
            }
            if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                state.wakers.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Ends the writer with `error`, unless it has ended before. A sealed blob stays sealed.
    pub(super) fn end(&self, error: &Error) {
        self.change(|state| {
            if state.ended.is_none() && !state.is_sealed {
                state.ended = Some(error.clone());
            }
        });
    }

    /// Whether the writer has not ended, or something is still on its way to a node.
    pub(super) fn may_send(&self) -> bool {
        let state = self.state.lock();
        !state.is_sealed && (state.ended.is_none() || state.running > 0)
    }

    /// Waits until nothing is on its way to a node any more. The caller has ended the writer
    /// before.
    pub(super) async fn drained(&self) {
        self.wait_until(|state| (state.running == 0).then_some(())).await;
    }

    /// Forgets a writer that was dropped, once nothing is on its way to a node any more. Until then
    /// a release of the blob finds the writer, and waits for it.
    fn forget_if_over(&self) {
        let is_over = {
            let state = self.state.lock();
            state.is_dropped && state.running == 0
        };
        if is_over {
            self.core.unregister(self.id);
        }
    }

    fn check(state: &WriteState) -> Result<()> {
        state.ended.clone().map_or(Ok(()), Err)
    }

    /// Chooses the nodes of the blob and starts their senders. Returns the scheme. Errors: `Busy`.
    async fn begin(self: &Arc<Self>, wanted: Scheme, len_bytes: u64) -> Result<Scheme> {
        let reports = self.core.reports().await;
        let placed = place(&reports, &self.placement_request(wanted, len_bytes));
        let Placement { scheme, nodes, debt } =
            placed.map_err(|error| error.context_at(blob_name(self.id)))?;
        // Two replicas are three of which one is missing, so that its descriptors show the debt.
        let scheme = match (scheme, debt) {
            (Scheme::Replicas(copies), PlacementDebt::Copies(missing)) => {
                Scheme::Replicas(copies + missing)
            }
            (scheme, _) => scheme,
        };
        let (wants_code, is_replicated) =
            (matches!(wanted, Scheme::Rs42(_)), matches!(scheme, Scheme::Replicas(_)));
        let slot_nodes = self.change(|state| {
            Self::check(state)?;
            state.debt = debt;
            state.is_coding_due = wants_code && is_replicated;
            let progress = state.progress.insert(WriteProgress::new(scheme, &nodes));
            Ok::<_, Error>(progress.slot_nodes())
        })?;
        slot_nodes.into_iter().for_each(|slot_node| self.start(slot_node));
        Ok(scheme)
    }

    fn placement_request(&self, scheme: Scheme, len_bytes: u64) -> PlacementRequest {
        PlacementRequest {
            key: self.id.0,
            scheme,
            len_bytes: len_bytes.max(self.size_hint_bytes),
            purpose: self.purpose(),
            copies_min: self.core.options.copies_min,
        }
    }

    /// Starts the sender of a node.
    fn start(self: &Arc<Self>, slot_node: SlotNode) {
        let running = self.run();
        let task = run_sender(Arc::clone(self), slot_node, running);
        self.core.runtime.spawn("blob sender", Box::pin(task));
    }

    /// Counts a task that may send something.
    fn run(self: &Arc<Self>) -> Running {
        self.change(|state| state.running += 1);
        Running(Arc::clone(self))
    }

    /// Hands a step over to the senders, and waits until there is room for the next one.
    fn push(&self, data: Vec<u8>) -> Result<()> {
        let (scheme, number) = {
            let state = self.state.lock();
            Self::check(&state)?;
            let progress = state.progress.as_ref().ok_or_else(|| self.has_no_nodes())?;
            (progress.scheme(), progress.next_number())
        };
        let step = WriteStep::new(self.id, scheme, number, data, &self.core.code)?;
        self.change(|state| {
            if let Some(progress) = &mut state.progress {
                progress.push(step);
            }
        });
        wait_for(
            &*self.core.runtime,
            self.wait_until(|state| {
                if let Some(error) = &state.ended {
                    return Some(Err(error.clone()));
                }
                let progress = state.progress.as_ref()?;
                (progress.unconfirmed_bytes() < WINDOW_BYTES).then_some(Ok(()))
            }),
        )
    }

    fn has_no_nodes(&self) -> Error {
        Error::internal(format!("{} has no nodes yet", blob_name(self.id)))
    }

    /// Waits until every node has confirmed every step.
    async fn flushed(&self) -> Result<()> {
        self.wait_until(|state| match &state.ended {
            Some(error) => Some(Err(error.clone())),
            None => state.progress.as_ref()?.is_flushed().then_some(Ok(())),
        })
        .await
    }

    /// Replaces a node that has failed. If no other one can take its place, the blob goes on with
    /// fewer replicas, or ends.
    async fn replace(
        self: &Arc<Self>,
        slot_node: SlotNode,
        reason: ReplaceReason,
        failure: NodeFailure,
    ) {
        let name = blob_name(self.id);
        let node = slot_node.node;
        let outcome = self.change(|state| {
            let outcome = state.progress.as_mut().map(|progress| progress.fail(&slot_node));
            if outcome == Some(SlotFailure::Replaceable) {
                state.avoid.push(slot_node.node);
            }
            outcome
        });
        match outcome {
            None | Some(SlotFailure::Stale) => return,
            Some(SlotFailure::Replaceable) => {}
            Some(SlotFailure::TooFew) => {
                let text = format!(
                    "{name}: too few nodes have its first bytes after node {node} failed \
                     ({failure}): write it again"
                );
                let is_full = matches!(failure, NodeFailure::Full(_));
                self.end(&if is_full { no_space(text) } else { Error::busy(text) });
                return;
            }
        }
        let slot = slot_node.slot;
        tracing::warn!(%name, %node, slot, ?reason, %failure, "a node is replaced");
        let stats = self.core.nodes.stats();
        stats.count_at(StoreEvent::ReplacedNode, self.context.class, node);
        if !matches!(failure, NodeFailure::Unreachable(_)) {
            self.abandon(node);
        }
        let reports = self.core.reports().await;
        let next = self.change(|state| {
            let progress = state.progress.as_mut()?;
            let request = self.placement_request(progress.scheme(), progress.len_bytes());
            let holders = progress.nodes_without(slot_node.slot);
            let replacement = Replacement { holders: &holders, avoid: &state.avoid };
            match replace(&reports, &request, replacement) {
                Ok(node) => Some(Ok(progress.replace(slot_node.slot, node))),
                Err(error) => {
                    let copies_min = usize::from(self.core.options.copies_min.max(1));
                    let is_coded = matches!(progress.scheme(), Scheme::Rs42(_));
                    if is_coded || progress.go_without(slot_node.slot) < copies_min {
                        return Some(Err(error));
                    }
                    None
                }
            }
        });
        match next {
            Some(Ok(slot_node)) => self.start(slot_node),
            Some(Err(error)) => {
                // The reports of the nodes may be older than the refusal of a full one.
                let error = match failure {
                    NodeFailure::Full(_) => no_space(error.context().to_owned()),
                    _ => error,
                };
                self.end(&error.context_at(format_args!(
                    "{name}: node {node} failed ({failure}), and no other one can replace it"
                )));
            }
            None => tracing::warn!(%name, %node, "no node can replace it: a copy is missing"),
        }
    }

    /// Whether the blob has RS(4,2), which needs every node.
    fn is_coded(&self) -> bool {
        let scheme = self.state.lock().progress.as_ref().map(WriteProgress::scheme);
        matches!(scheme, Some(Scheme::Rs42(_)))
    }

    /// Whether the blob can do without this node, because another one may take its place or a copy
    /// may be missing.
    async fn can_do_without(&self, slot_node: &SlotNode) -> bool {
        if !self.is_coded() {
            return true;
        }
        let reports = self.core.reports().await;
        let state = self.state.lock();
        let Some(progress) = &state.progress else { return true };
        let request = self.placement_request(progress.scheme(), progress.len_bytes());
        let holders = progress.nodes_without(slot_node.slot);
        let avoid = [state.avoid.as_slice(), &[slot_node.node]].concat();
        replace(&reports, &request, Replacement { holders: &holders, avoid: &avoid }).is_ok()
    }

    /// Asks a node that was replaced to drop its chunk. If the request is lost, the release of the
    /// blob removes the chunk.
    fn abandon(self: &Arc<Self>, node: StorageId) {
        let write = Arc::clone(self);
        let task = async move {
            let terms = write.terms();
            let dropped = write.core.nodes.abandon(node, write.id, write.stamp, terms).await;
            if let Err(failure) = dropped {
                tracing::debug!(blob = %write.id, %node, %failure, "a replaced chunk may remain");
            }
        };
        self.core.runtime.spawn("abandoned chunk", Box::pin(task));
    }
}

/// A task that may send something. The drop ends it.
#[derive(Debug)]
struct Running(Arc<BlobWrite>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.change(|state| state.running -= 1);
        self.0.forget_if_over();
    }
}

/// The writer of a blob.
#[derive(Debug)]
pub(super) struct NodeBlobWriter {
    write: Arc<BlobWrite>,
    redundancy: Redundancy,
    /// Scheme of the blob; `None` until it has nodes.
    scheme: Option<Scheme>,
    filling: Vec<u8>,
    len_bytes: u64,
    is_sealed: bool,
    has_failed: bool,
}

impl NodeBlobWriter {
    /// Begins the blob `id`. The nodes get their first request with its first step.
    pub(super) fn create(core: &Arc<BlobsCore>, id: BlobId, options: &BlobOptions) -> Result<Self> {
        let redundancy = core.options.mode.redundancy(options.context.class);
        let write = BlobWrite::new(core, id, options);
        core.register(id, &write)?;
        Ok(Self {
            write,
            redundancy,
            scheme: None,
            filling: Vec::new(),
            len_bytes: 0,
            is_sealed: false,
            has_failed: false,
        })
    }

    /// Scheme that the blob should have, as far as its length is known.
    fn wanted(&self) -> Scheme {
        Scheme::for_blob(self.redundancy, self.write.size_hint_bytes)
    }

    /// Scheme of a blob that ends with the bytes in `filling`.
    fn wanted_at_end(&self) -> Scheme {
        let len = self.filling.len() as u64;
        match self.wanted() {
            Scheme::Rs42(_) if len < CODED_BYTES_MIN => {
                Scheme::for_blob(Redundancy::Replicated, len)
            }
            // A large cell would leave most of the only stripe empty.
            Scheme::Rs42(CellSize::Large) => Scheme::Rs42(CellSize::Small),
            wanted => wanted,
        }
    }

    /// Bytes that `filling` has when it is handed over.
    fn full_bytes(&self) -> usize {
        step_bytes(self.scheme.unwrap_or_else(|| self.wanted())) as usize
    }

    fn try_append(&mut self, mut data: &[u8]) -> Result<()> {
        BlobWrite::check(&self.write.state.lock())?;
        while !data.is_empty() {
            let full = self.full_bytes();
            if self.filling.is_empty() {
                let hint = self.write.size_hint_bytes as usize;
                let expected = if hint > 0 { full.min(hint) } else { full };
                self.filling.reserve_exact(expected.max(data.len().min(full)));
                let filling_bytes = self.filling.capacity() as u64;
                self.write.change(|state| state.filling_bytes = filling_bytes);
            }
            let (now, later) = data.split_at(data.len().min(full - self.filling.len()));
            self.filling.extend_from_slice(now);
            self.len_bytes += now.len() as u64;
            data = later;
            if self.filling.len() == full {
                self.hand_over(self.wanted())?;
            }
        }
        Ok(())
    }

    /// Hands the bytes in `filling` over, and gives the blob nodes first if it has none.
    fn hand_over(&mut self, wanted: Scheme) -> Result<()> {
        let scheme = match self.scheme {
            Some(scheme) => scheme,
            None => {
                let begun = self.write.begin(wanted, self.len_bytes);
                *self.scheme.insert(wait_for(&*self.write.core.runtime, begun)?)
            }
        };
        // The blob may have got another scheme than the one whose step is full.
        let mut rest = std::mem::take(&mut self.filling);
        let step = step_bytes(scheme) as usize;
        self.write.change(|state| state.filling_bytes = 0);
        while rest.len() > step {
            let later = rest.split_off(step);
            self.write.push(std::mem::replace(&mut rest, later))?;
        }
        self.write.push(rest)
    }

    fn try_seal(&mut self) -> Result<BlobRef> {
        BlobWrite::check(&self.write.state.lock())?;
        if !self.filling.is_empty() || self.scheme.is_none() {
            let wanted = if self.scheme.is_none() { self.wanted_at_end() } else { self.wanted() };
            self.hand_over(wanted)?;
        }
        let runtime = Arc::clone(&self.write.core.runtime);
        wait_for(&*runtime, seal::seal(&self.write))
    }

    /// Keeps the error of `outcome` for all later calls.
    fn keep_error<T>(&mut self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| {
            self.write.end(&error.context_at("the blob failed before"));
            if !std::mem::replace(&mut self.has_failed, true) {
                self.write.core.counters.count(BlobEvent::GivenUp);
            }
        })
    }

    fn check_unsealed(&self) -> Result<()> {
        if self.is_sealed {
            let name = blob_name(self.write.id);
            return Err(Error::closed(format!("{name} is sealed and takes no bytes")));
        }
        Ok(())
    }
}

impl BlobWriter for NodeBlobWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.check_unsealed()?;
        let appended = self.try_append(data);
        self.keep_error(appended)?;
        self.write.core.counters.written(self.write.context.class, data.len() as u64);
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn seal(&mut self) -> Result<BlobRef> {
        self.check_unsealed()?;
        let sealed = self.try_seal();
        let sealed = self.keep_error(sealed)?;
        self.is_sealed = true;
        Ok(sealed)
    }
}

impl Drop for NodeBlobWriter {
    fn drop(&mut self) {
        let name = blob_name(self.write.id);
        self.write.end(&Error::closed(format!("the writer of {name} was dropped before its seal")));
        self.write.change(|state| state.is_dropped = true);
        self.write.forget_if_over();
    }
}

/// The error for a refusal that ends a blob: another owner, or an identity that was used before.
fn fatal(name: &str, node: StorageId, failure: &NodeFailure) -> Option<Error> {
    let kind = match failure {
        NodeFailure::Fenced(_) => ErrorKind::Fenced,
        NodeFailure::Sealed(_) => ErrorKind::InvalidArgument,
        _ => return None,
    };
    Some(Error::new(kind, format!("{name}: node {node} refuses: {failure}")))
}
