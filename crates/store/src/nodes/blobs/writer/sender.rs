//! The sender of a node: the task that sends the node its part of every step.
//!
//! Calls are begun in the order of the steps, and the node executes them in that order while the
//! link stays up. After a refusal that may pass, everything from the refused step on is sent again.
//!
//! Thread-safety: a sender is one task.
//! Failure: [`SenderEnd::Failed`] replaces the node. A sender whose writer has ended awaits the
//! answers of its calls, so that nothing arrives after [`BlobWrite::drained`].
//! Cost: one call per step.

use std::sync::Arc;
use std::time::Duration;

use super::super::super::client::{OperationKind, StoreEvent, StoreOperation};
use super::super::super::layout::Redundancy;
use super::super::super::wire::ChunkId;
use super::super::chunk_nodes::{ChunkPut, NodeFailure};
use super::super::core::{CallTime, blob_name};
use super::super::in_flight::{First, InFlight, first};
use super::super::load::{CallGuard, CallKind, NodeLoad};
use super::super::stats::BlobEvent;
use super::progress::SlotNode;
use super::rebuild::rebuild;
use super::step::WriteStep;
use super::{BlobWrite, ReplaceReason, Running, WriteState, fatal};

/// Number of passing refusals in a row after which a node counts as failed. A refusal that took
/// most of the deadline counts as several.
const REFUSALS_MAX: u32 = 8;
const UNANSWERED_WEIGHT: u32 = 4;
/// Pause after the first passing refusal. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(4);

/// Reason for which a sender ends.
#[derive(Debug)]
pub(super) enum SenderEnd {
    /// The writer has ended, or another node has the slot.
    Over,
    /// The node must be replaced.
    Failed(ReplaceReason, NodeFailure),
}

impl SenderEnd {
    /// The end by a failure of the node.
    pub(super) fn of(failure: NodeFailure) -> Self {
        Self::Failed(ReplaceReason::of(&failure), failure)
    }
}

/// Runs a sender until its writer ends or its node is replaced.
pub(super) async fn run_sender(write: Arc<BlobWrite>, slot_node: SlotNode, running: Running) {
    let end = async {
        if slot_node.rebuild_bytes > 0 {
            rebuild(&write, &slot_node).await?;
            write.change(|state| {
                state.progress.as_mut().map(|progress| progress.rebuilt(&slot_node))
            });
        }
        SlotSender::new(&write, slot_node).run().await
    };
    if let Err(SenderEnd::Failed(reason, failure)) = end.await {
        write.replace(slot_node, reason, failure).await;
    }
    drop(running);
}

/// A call in flight.
struct PutInFlight {
    number: u64,
    bytes: u64,
    begun_ns: u64,
    /// Time, in nanoseconds, at which the call is compared with the other nodes.
    late_ns: u64,
    guard: CallGuard,
}

struct SlotSender<'a> {
    write: &'a Arc<BlobWrite>,
    slot_node: SlotNode,
    redundancy: Redundancy,
    load: Arc<NodeLoad>,
    /// Number of the next step to send.
    next: u64,
    /// Number of the step to begin again with, when no call is in flight any more.
    resend: Option<u64>,
    /// Number of passing refusals in a row.
    refusals: u32,
    /// Time, in nanoseconds, of the first of them.
    refused_ns: Option<u64>,
    /// Whether the node has bytes of the chunk.
    has_bytes: bool,
}

enum SenderEvent {
    Answered(PutInFlight, Result<(), NodeFailure>),
    /// The writer has changed, or a call is late.
    Woken,
}

type Puts<'a> = InFlight<'a, PutInFlight, Result<(), NodeFailure>>;

impl<'a> SlotSender<'a> {
    fn new(write: &'a Arc<BlobWrite>, slot_node: SlotNode) -> Self {
        let state = write.state.lock();
        let progress = state.progress.as_ref();
        let next = progress.map_or(0, |progress| progress.unconfirmed_from(&slot_node));
        let redundancy =
            progress.map_or(Redundancy::Replicated, |progress| progress.scheme().redundancy());
        drop(state);
        let load = write.core.loads.of(slot_node.node);
        let has_bytes = slot_node.rebuild_bytes > 0;
        Self {
            write,
            slot_node,
            redundancy,
            load,
            next,
            resend: None,
            refusals: 0,
            refused_ns: None,
            has_bytes,
        }
    }

    async fn run(mut self) -> Result<(), SenderEnd> {
        let mut calls = Puts::new();
        loop {
            let seen = self.write.state.lock().version;
            let is_over = self.is_over();
            if !is_over && self.resend.is_none() {
                self.send(&mut calls);
            }
            if calls.is_empty() {
                if is_over {
                    return Err(SenderEnd::Over);
                }
                match self.resend.take() {
                    Some(number) => self.pause_before(number).await,
                    None => self.changed_since(seen).await,
                }
                continue;
            }
            match self.next_event(&mut calls, seen).await {
                SenderEvent::Answered(put, outcome) => self.answered(&put, outcome)?,
                SenderEvent::Woken => self.check_late(&mut calls).await?,
            }
        }
    }

    fn is_over(&self) -> bool {
        let state = self.write.state.lock();
        let is_current = |state: &WriteState| {
            state.progress.as_ref().is_some_and(|p| p.is_current(&self.slot_node))
        };
        state.ended.is_some() || state.is_sealed || !is_current(&state)
    }

    async fn changed_since(&self, seen: u64) {
        self.write.wait_until(|state| (state.version != seen).then_some(())).await;
    }

    async fn pause_before(&mut self, number: u64) {
        let pause = FIRST_PAUSE * (1 << self.refusals.min(REFUSALS_MAX));
        self.write.core.runtime.sleep(pause).await;
        self.next = number;
    }

    /// Begins calls for the steps that were not sent yet.
    fn send(&mut self, calls: &mut Puts<'a>) {
        loop {
            let Some((number, step)) = self.next_step() else { return };
            self.next = number + 1;
            let cell = step.cell(self.slot_node.slot);
            if cell.bytes.is_empty() && cell.offset > 0 {
                // The chunk ends before the last stripe does.
                self.confirm(number);
                continue;
            }
            let begun_ns = self.write.core.runtime.now_ns();
            let put = PutInFlight {
                number,
                bytes: cell.bytes.len() as u64,
                begun_ns,
                late_ns: begun_ns + self.patience_ns(),
                guard: CallGuard::begin(&self.load),
            };
            let call = send_step(Arc::clone(self.write), self.slot_node, step);
            calls.push(put, Box::pin(call));
        }
    }

    /// The next step to send. A step that is sent again may have been confirmed meanwhile.
    fn next_step(&self) -> Option<(u64, Arc<WriteStep>)> {
        let state = self.write.state.lock();
        let progress = state.progress.as_ref()?;
        let number = self.next.max(progress.unconfirmed_from(&self.slot_node));
        Some((number, progress.step(number)?))
    }

    /// Time, in nanoseconds, after which a call is late: twice the usual time.
    fn patience_ns(&self) -> u64 {
        let timing = &self.write.core.options.timing;
        let least_ns = timing.slow_min.as_nanos() as u64;
        let usual_ns = self.load.usual_ns(CallKind::Write);
        usual_ns.map_or(least_ns, |usual_ns| usual_ns.saturating_mul(2).max(least_ns))
    }

    async fn next_event(&self, calls: &mut Puts<'a>, seen: u64) -> SenderEvent {
        let late_ns = calls.tags_mut().map(|put| put.late_ns).min().unwrap_or(u64::MAX);
        let runtime = &self.write.core.runtime;
        let patience = Duration::from_nanos(late_ns.saturating_sub(runtime.now_ns()));
        let woken = first(self.changed_since(seen), runtime.sleep(patience));
        match first(calls.next(), woken).await {
            First::One(Some((put, outcome))) => SenderEvent::Answered(put, outcome),
            First::One(None) | First::Other(_) => SenderEvent::Woken,
        }
    }

    fn confirm(&self, number: u64) {
        self.write.change(|state| {
            if let Some(progress) = &mut state.progress {
                progress.confirm(&self.slot_node, number);
            }
        });
    }

    fn answered(
        &mut self,
        put: &PutInFlight,
        outcome: Result<(), NodeFailure>,
    ) -> Result<(), SenderEnd> {
        let core = &self.write.core;
        let failure = match outcome {
            Ok(()) => {
                let time_ns = core.runtime.now_ns().saturating_sub(put.begun_ns);
                put.guard.answered(CallKind::Write, time_ns);
                let (kind, class) = (OperationKind::Put, self.write.context.class);
                let operation = StoreOperation { kind, class, redundancy: self.redundancy };
                core.nodes.stats().took(operation, time_ns);
                core.counters.add(BlobEvent::PutBytes, put.bytes);
                (self.refusals, self.refused_ns, self.has_bytes) = (0, None, true);
                self.confirm(put.number);
                return Ok(());
            }
            Err(failure) => failure,
        };
        if let Some(error) = fatal(&blob_name(self.write.id), self.slot_node.node, &failure) {
            self.write.end(&error);
            return Ok(());
        }
        let deadline = core.options.timing.write_deadline;
        let call = CallTime { begun_ns: put.begun_ns, deadline };
        core.note_failure(self.slot_node.node, &failure, call);
        // The calls that follow a refused one are refused as well, and do not count.
        if self.resend.is_none() {
            let is_long = call.is_long(core.runtime.now_ns());
            self.refusals += if is_long { UNANSWERED_WEIGHT } else { 1 };
        }
        if !self.may_pass(put.number, &failure) || self.has_had_enough(&failure) {
            return Err(SenderEnd::of(failure));
        }
        let stats = core.nodes.stats();
        stats.count_at(StoreEvent::Retry, self.write.context.class, self.slot_node.node);
        let number = self.resend.map_or(put.number, |resend| resend.min(put.number));
        self.resend = Some(number);
        Ok(())
    }

    /// Whether the node has refused for so long that another one is better. An overloaded node gets
    /// the time of a whole call, because a replacement is work for all nodes.
    fn has_had_enough(&mut self, failure: &NodeFailure) -> bool {
        let now_ns = self.write.core.runtime.now_ns();
        let since_ns = *self.refused_ns.get_or_insert(now_ns);
        if matches!(failure, NodeFailure::Busy(_)) {
            self.refusals = self.refusals.min(REFUSALS_MAX);
            let deadline = self.write.core.options.timing.write_deadline;
            return CallTime { begun_ns: since_ns, deadline: deadline * 2 }.is_long(now_ns);
        }
        self.refusals > REFUSALS_MAX
    }

    /// Whether step `number` may succeed when it is sent again.
    fn may_pass(&self, number: u64, failure: &NodeFailure) -> bool {
        match failure {
            // Bytes that arrive damaged are sent again.
            NodeFailure::Damaged(_) => true,
            // The first step is lost, or has not arrived yet, and it creates the chunk.
            NodeFailure::NotThere => number > 0 && !self.has_bytes,
            failure => failure.may_pass(),
        }
    }

    /// Ends the sender if a call takes more than twice the usual time although most other nodes
    /// have answered, and the blob can do without the node.
    async fn check_late(&self, calls: &mut Puts<'a>) -> Result<(), SenderEnd> {
        let now_ns = self.write.core.runtime.now_ns();
        let patience_ns = self.patience_ns();
        let mut slow_since_ns = None;
        for put in calls.tags_mut().filter(|put| put.late_ns <= now_ns) {
            put.late_ns = now_ns + patience_ns;
            if slow_since_ns.is_none() && self.others_have(put.number) {
                slow_since_ns = Some(put.begun_ns);
            }
        }
        let Some(since_ns) = slow_since_ns else { return Ok(()) };
        if !self.write.can_do_without(&self.slot_node).await {
            let (blob, node) = (self.write.id, self.slot_node.node);
            tracing::debug!(%blob, %node, "a slow node is kept, because none can replace it");
            return Ok(());
        }
        let ms = now_ns.saturating_sub(since_ns) / 1_000_000;
        let text = format!("it took {ms} ms, which is more than twice its usual time");
        Err(SenderEnd::Failed(ReplaceReason::Slow, NodeFailure::Unanswered(text)))
    }

    /// Whether most other nodes have step `number`.
    fn others_have(&self, number: u64) -> bool {
        let state = self.write.state.lock();
        let progress = state.progress.as_ref();
        progress.is_some_and(|progress| progress.others_have(self.slot_node.slot, number))
    }
}

/// Sends the part of a step that a node gets.
async fn send_step(
    write: Arc<BlobWrite>,
    slot_node: SlotNode,
    step: Arc<WriteStep>,
) -> Result<(), NodeFailure> {
    let cell = step.cell(slot_node.slot);
    let put = ChunkPut {
        chunk: ChunkId { blob: write.id, index: step.index(slot_node.slot) },
        stamp: write.stamp,
        class: write.context.class,
        purpose: write.purpose(),
        offset: cell.offset,
        bytes: cell.bytes,
        crcs: cell.crcs,
    };
    write.core.nodes.put(slot_node.node, put, write.terms()).await
}
