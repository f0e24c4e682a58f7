//! The manager's part of repairs: it asks the nodes which chunks and extents lack a copy, and gives
//! them orders.
//!
//! A round has these steps:
//! 1. Ask all nodes that answer for chunks and extents that need a repair.
//! 2. Give the orders, the most urgent ones first, as the rates permit. If a node is lost or
//!    returns meanwhile, no further order is given, and the next round begins.
//! 3. When nothing is left, let nodes that have joined or returned compare their chunks with the
//!    other holders, one after the other and page by page. A round that is due runs between two
//!    pages. If a node is lost or returns, the round does not even wait for the end of the page.
//! 4. When no comparison is due either, move chunks away from nodes that are much fuller than the
//!    mean.
//!
//! No state outlives the manager: the next manager asks again. An order that was given is carried
//! out by its node, even if the manager dies.
//!
//! Invariants:
//! 1. A manager that stands by sends no questions and no orders, and keeps no state of earlier
//!    rounds.
//! 2. Orders are charged to the rates of all nodes that they use, and of the cluster.
//!
//! Thread-safety: one task runs the rounds; any thread may take the status.
//! Failure: a node that does not list its chunks and extents is asked in the next round, and other
//! holders list its blobs then. An order that fails is counted, and its target is avoided for a
//! while. If the target did not answer, the round gives it no further order. A node that refuses
//! the copy of an extent, because it keeps a longer replica, does not get that order again until
//! its life or the members change.
//! Cost: a round asks every node for a list, which reads the records of its chunks. There are two
//! rounds after each change of the members, and one per [`RepairTerms::scan_every`].

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use archipelago_base::runtime::Boxed;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_fabric::TrafficClass;
use parking_lot::Mutex;

use super::super::StorageId;
use super::super::client::{CallError, CallOptions, Lane, NodeClient};
use super::super::placement::{
    ChunkAt, NextRepair, NodeReport, RepairDebt, RepairLimits, next_repair, rebalance,
};
use super::super::wire::{
    ChunkId, CodingDue, ExtentAt, HeldChunk, Members, RefusalWhy, RepairStatus, StoreMessage,
};
use super::extent_page::ExtentPage;
use super::members::RepairMembers;
use super::planner::{ExtentTarget, RepairJob, RepairPlan, RepairPlanner, UnlistedExtents};
use super::rounds::{
    ComparedPage, Comparison, DrainingExtents, DrainingNodes, EndedRound, ExtentCycle, RoundState,
    has_sealed,
};

/// Time after which a question for a list counts as unanswered.
const LIST_DEADLINE: Duration = Duration::from_secs(10);
/// Time after which a page of comparisons counts as unanswered.
const CHECK_DEADLINE: Duration = Duration::from_secs(120);
/// Time that an order may take in addition to the copy.
const ORDER_SLACK: Duration = Duration::from_secs(60);
/// Largest answer with descriptors, in bytes.
const LIST_BYTES_MAX: usize = 2 << 20;
/// Orders under way at a time.
const ORDERS_MAX: usize = 16;
/// Orders under way at a time for one node.
const ORDERS_OF_NODE_MAX: usize = 2;
/// Pause between two checks of the members.
const LOOK: Duration = Duration::from_millis(500);
/// Chunks of a full node that one round of moves considers.
const MOVES_FROM_MAX: usize = 1024;

/// Rates and times of repairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairTerms {
    /// Bytes per second of one node, read and written. Default: 64 MiB.
    pub node_bytes_per_s: u64,
    /// Bytes per second of all nodes together. Default: 512 MiB.
    pub cluster_bytes_per_s: u64,
    /// Time between two rounds while the members do not change. Default: 10 minutes.
    pub scan_every: Duration,
    /// Time to the next round while something is left to repair. Default: 5 s.
    pub scan_again: Duration,
    /// Time after which a node compares its chunks with the other holders again. Default: one day.
    pub check_every: Duration,
}

impl Default for RepairTerms {
    fn default() -> Self {
        Self {
            node_bytes_per_s: 64 << 20,
            cluster_bytes_per_s: 512 << 20,
            scan_every: Duration::from_secs(600),
            scan_again: Duration::from_secs(5),
            check_every: Duration::from_secs(24 * 3600),
        }
    }
}

impl RepairTerms {
    /// An error that names the first term that is not valid.
    pub fn validate(&self) -> Result<()> {
        if self.node_bytes_per_s == 0 || self.cluster_bytes_per_s == 0 {
            return Err(Error::invalid(
                "a rate of repairs is 0, so a lost copy would never be made again: give bytes per \
                 second",
            ));
        }
        Ok(())
    }

    fn limits(&self) -> RepairLimits {
        RepairLimits {
            node_bytes_per_s: self.node_bytes_per_s,
            cluster_bytes_per_s: self.cluster_bytes_per_s,
        }
    }
}

/// State that the manager knows when a round begins.
#[derive(Clone, Debug)]
pub struct RepairView {
    /// The members of the cluster.
    pub members: Members,
    /// Whether this manager acts.
    pub acts: bool,
    /// Whether the manager has listened for so long that a node without any message to it is lost.
    pub unknown_is_lost: bool,
    /// Whether the domains of all nodes have stayed the same for [`RepairView::lost_after`], by the
    /// beats to this manager. Until then nothing moves because of a domain.
    pub has_settled_labels: bool,
    /// Number of chunks that nodes cannot read, as they report. A change of it begins a round.
    pub chunks_unreadable: u64,
    /// Extents of draining nodes, as they report. A round compares the sealed extents. So a further
    /// seal begins a round, and the status is unknown until then.
    pub draining: BTreeMap<StorageId, DrainingExtents>,
    /// Silence after which a node counts as lost. For the same time, a node that beats, but does
    /// not list its extents, counts as a node that may have a copy of any extent.
    pub lost_after: Duration,
}

impl RepairView {
    fn repair_members(&self) -> RepairMembers {
        RepairMembers::new(&self.members, self.unknown_is_lost)
            .with_settled_labels(self.has_settled_labels)
    }
}

/// The source of views, which the manager implements. `None` ends the repairs.
pub trait RepairLook: Send + Sync + 'static {
    /// The state that the manager knows now.
    fn look(&self) -> Option<RepairView>;
}

impl<F: Fn() -> Option<RepairView> + Send + Sync + 'static> RepairLook for F {
    fn look(&self) -> Option<RepairView> {
        self()
    }
}

/// The manager's part of repairs: it asks the nodes for debts, and gives them orders.
pub struct RepairManager {
    client: Arc<NodeClient>,
    terms: RepairTerms,
    status: Mutex<RepairStatus>,
    /// Members and draining nodes to which the status belongs.
    planned_for: Mutex<Option<PlannedFor>>,
}

/// State of the cluster to which a status belongs.
struct PlannedFor {
    members: RepairMembers,
    draining: DrainingNodes,
}

impl std::fmt::Debug for RepairManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RepairManager").field("terms", &self.terms).finish_non_exhaustive()
    }
}

/// An order under way.
struct Order {
    debt: RepairDebt,
    /// The extent that is copied; `None` for a chunk.
    extent: Option<ExtentAt>,
    answer: Boxed<'static, OrderEnd>,
}

/// The end of an order.
struct OrderEnd {
    done: Result<()>,
    /// Reason for which the target refused the order.
    refusal: Option<RefusalWhy>,
}

impl OrderEnd {
    /// Whether the target refused the order or carried it out.
    fn is_answered(&self) -> bool {
        self.done.is_ok() || self.refusal.is_some()
    }
}

impl RepairManager {
    /// Repairs over the nodes that `client` reaches.
    #[must_use]
    pub fn new(client: Arc<NodeClient>, terms: RepairTerms) -> Arc<Self> {
        Arc::new(Self { client, terms, status: Mutex::default(), planned_for: Mutex::default() })
    }

    /// The state of the repairs for `view`. The status is marked as unknown if the members of the
    /// last round differ from those of `view`. The same holds if a node that drains has sealed
    /// extents since that round.
    #[must_use]
    pub fn status_for(&self, view: &RepairView) -> RepairStatus {
        let members = view.repair_members();
        let planned_for = self.planned_for.lock();
        let is_same = planned_for.as_ref().is_some_and(|it| {
            it.members.has_same_nodes(&members) && !has_sealed(&it.draining, &view.draining)
        });
        let status = self.status();
        RepairStatus { is_known: status.is_known && is_same, ..status }
    }

    /// The state of the repairs: what is to be repaired, and what was repaired.
    #[must_use]
    pub fn status(&self) -> RepairStatus {
        self.status.lock().clone()
    }

    fn now_ns(&self) -> u64 {
        self.client.runtime().now_ns()
    }

    /// Runs rounds until `look` ends.
    pub async fn run(self: Arc<Self>, look: impl RepairLook) {
        let mut state = RoundState::new(self.terms.limits());
        while let Some(view) = look.look() {
            if view.acts && view.members.cluster.is_some() {
                self.round(&mut state, &view, &look).await;
            } else {
                state.stand_by();
                *self.status.lock() = RepairStatus::default();
            }
            self.client.runtime().sleep(LOOK).await;
        }
    }

    async fn round(&self, state: &mut RoundState, view: &RepairView, look: &impl RepairLook) {
        let members = view.repair_members();
        state.forget_lost(&view.members);
        if state.is_outdated(&members, &view.draining) {
            self.status.lock().is_known = false;
        }
        if self.is_scan_due(state, &members, view) {
            if let Err(error) = self.client.refresh().await {
                tracing::debug!(%error, "a round of repairs does not begin");
                return;
            }
            let now_ns = self.now_ns();
            state.forget_failed(now_ns);
            state.begin_page(&members, &view.draining);
            let again_ns = state.again_ns(&members, now_ns);
            let plan = self.scan(state, &members, view.lost_after).await;
            let next = plan.extents_next;
            state.cycle.is_known &= plan.status.is_known;
            state.cycle.without_job.clone_from(&plan.without_job);
            state.cycle.is_unfinished |= !plan.status.unlisted.is_empty() || !plan.jobs.is_empty();
            self.note_plan(&plan, &state.cycle, &members);
            self.carry_out(state, plan, &members, look).await;
            let (chunks_unreadable, at_ns) = (view.chunks_unreadable, self.now_ns());
            state.end_round(EndedRound { members, chunks_unreadable, at_ns, again_ns, next });
        } else if !self.check_next(state, view, &members, look).await {
            self.level(state, &members, look).await;
        }
    }

    fn is_scan_due(&self, state: &RoundState, members: &RepairMembers, view: &RepairView) -> bool {
        let Some(last) = &state.last else { return true };
        let pause = match last.is_unfinished {
            true => self.terms.scan_again,
            false => self.terms.scan_every,
        };
        !last.members.has_same_nodes(members)
            || last.chunks_unreadable != view.chunks_unreadable
            || state.has_sealed_since(&view.draining)
            || !state.missing.is_empty()
            || state.is_again_due(self.now_ns())
            || self.now_ns() >= last.at_ns + pause.as_nanos() as u64
    }

    /// Asks all nodes that answer, and plans the copies that they lack.
    async fn scan(
        &self,
        state: &mut RoundState,
        members: &RepairMembers,
        lost_after: Duration,
    ) -> RepairPlan {
        let answering: Vec<StorageId> = members.answering().collect();
        state.forget_unlisted(members);
        state.forget_refused(members);
        let avoid = state.failed.keys().copied().collect();
        let page = ExtentPage { after: state.cycle.after, ..ExtentPage::default() };
        let mut planner = RepairPlanner::new(members.clone(), avoid)
            .on_page(page)
            .after_pages(state.cycle.without_job.clone())
            .avoiding_for_extents(state.failed_for_extents.keys().copied())
            .without_copies(state.refused.keys().copied())
            .without_logs(state.removed_logs.iter().copied())
            .without_lists_of(state.unlisted.keys().copied());
        for missing in std::mem::take(&mut state.missing) {
            planner.add_missing(&missing);
        }
        for node in answering {
            let Err(error) = self.list(node, &mut planner).await else {
                state.note_listed(node);
                continue;
            };
            tracing::info!(%error, "a node does not list its chunks and extents for repairs");
            let now_ns = self.now_ns();
            let since_ns = state.note_unlisted(node, members, now_ns);
            let silence = Duration::from_nanos(now_ns.saturating_sub(since_ns));
            let extents = match silence > lost_after {
                true => UnlistedExtents::Missing,
                false => UnlistedExtents::Unknown,
            };
            planner.note_unlisted(node, extents);
        }
        let plan = planner.finish();
        if plan.extents_next.is_some() {
            let extents = plan.status.extents_compared;
            tracing::info!(extents, "a round compares a part of the extents, and the next goes on");
        }
        plan
    }

    async fn list(&self, node: StorageId, planner: &mut RepairPlanner) -> Result<()> {
        self.list_chunks(node, planner).await?;
        self.list_extents(node, planner).await
    }

    async fn list_chunks(&self, node: StorageId, planner: &mut RepairPlanner) -> Result<()> {
        let members = planner.members();
        let mut request = StoreMessage::ListHeld {
            present: members.present().collect(),
            answering: planner.listing().collect(),
            is_all: false,
            after: None,
            shared: members.shared_domains(),
        };
        loop {
            let (chunks, next, due) = self.ask_held(node, &request).await?;
            chunks.iter().for_each(|held| planner.add_chunk(node, held));
            planner.add_coding_due(due);
            if next.is_none() {
                return Ok(());
            }
            if let StoreMessage::ListHeld { after, .. } = &mut request {
                *after = next;
            }
        }
    }

    async fn ask_held(
        &self,
        node: StorageId,
        request: &StoreMessage,
    ) -> Result<(Vec<HeldChunk>, Option<ChunkId>, CodingDue)> {
        match self.ask(node, request, LIST_DEADLINE).await? {
            StoreMessage::Held { chunks, next, coding_due } => Ok((chunks, next, coding_due)),
            other => Err(other_version(node, &other)),
        }
    }

    async fn list_extents(&self, node: StorageId, planner: &mut RepairPlanner) -> Result<()> {
        let mut after = planner.extents_after();
        loop {
            let request = StoreMessage::ListSealed { after };
            let (extents, has_more) = match self.ask(node, &request, LIST_DEADLINE).await? {
                StoreMessage::Sealed { extents, has_more } => (extents, has_more),
                other => return Err(other_version(node, &other)),
            };
            after = extents.last().map(|extent| extent.at);
            extents.into_iter().for_each(|extent| planner.add_extent(node, extent));
            let is_wanted = after.is_some_and(|at| planner.takes_extents_after(at));
            if !has_more || !is_wanted {
                return Ok(());
            }
        }
    }

    async fn ask(
        &self,
        node: StorageId,
        request: &StoreMessage,
        deadline: Duration,
    ) -> Result<StoreMessage> {
        let how = CallOptions::new(TrafficClass::Compaction, deadline).payload_max(LIST_BYTES_MAX);
        Ok(self.client.ask(node, Lane::Bulk, request, how).await?.message)
    }

    /// Shows a plan, and keeps the counters. The extents that earlier pages of the cycle left open
    /// are added. The plan has the extents without a job already.
    fn note_plan(&self, plan: &RepairPlan, cycle: &ExtentCycle, members: &RepairMembers) {
        let (members, draining) = (members.clone(), cycle.draining.clone());
        *self.planned_for.lock() = Some(PlannedFor { members, draining });
        let mut status = self.status.lock();
        let earlier_left = cycle.after.map_or(0, |_| status.extents_left);
        *status = RepairStatus {
            is_known: cycle.is_known && plan.extents_next.is_none(),
            extents_left: plan.status.extents_left + earlier_left,
            chunks_repaired: status.chunks_repaired,
            extents_repaired: status.extents_repaired,
            bytes_repaired: status.bytes_repaired,
            failed: status.failed,
            ..plan.status.clone()
        };
    }

    /// Gives the orders of a plan, until all are answered or the members change.
    async fn carry_out(
        &self,
        state: &mut RoundState,
        plan: RepairPlan,
        members: &RepairMembers,
        look: &impl RepairLook,
    ) {
        let RepairPlan { mut debts, mut jobs, .. } = plan;
        let mut orders: Vec<Order> = Vec::new();
        loop {
            if !is_current(members, look) {
                self.status.lock().is_known = false;
                debts.clear();
                jobs.clear();
            }
            let mut pause = LOOK;
            while orders.len() < ORDERS_MAX {
                let now_ns = self.now_ns();
                let next = match next_repair(&debts, &state.rates, &busy_targets(&orders), now_ns) {
                    NextRepair::Idle => break,
                    NextRepair::WaitUntil(at_ns) => {
                        pause = pause.min(Duration::from_nanos(at_ns.saturating_sub(now_ns)));
                        break;
                    }
                    NextRepair::Start(next) => next,
                };
                let (debt, job) = (debts.swap_remove(next), jobs.swap_remove(next));
                state.rates.charge(&debt, now_ns);
                orders.push(self.order(debt, job));
            }
            if debts.is_empty() && orders.is_empty() {
                return;
            }
            if let Some((order, end)) = self.next_answer(&mut orders, pause).await {
                if !end.is_answered() {
                    // Each further order to this target would keep the round open until the
                    // deadline of the order.
                    drop_debts_of(order.debt.target, &mut debts, &mut jobs);
                }
                self.note_answer(state, &order, end, members);
            }
        }
    }

    /// Sends an order.
    fn order(&self, debt: RepairDebt, job: RepairJob) -> Order {
        let bytes_per_s = self.terms.node_bytes_per_s;
        let extent = match &job {
            RepairJob::Chunk { .. } => None,
            RepairJob::Extent { extent, .. } => Some(extent.at),
        };
        let request = match job {
            RepairJob::Chunk { descriptor, replaces } => {
                StoreMessage::RepairChunk { descriptor, replaces, bytes_per_s }
            }
            RepairJob::Extent { extent, sources } => {
                StoreMessage::RepairExtent { extent, sources, bytes_per_s }
            }
        };
        let copy_s = debt.chunk_bytes / bytes_per_s.max(1);
        let deadline = ORDER_SLACK + Duration::from_secs(3 * copy_s);
        let (client, target) = (Arc::clone(&self.client), debt.target);
        let answer = Box::pin(async move {
            let how = CallOptions::new(TrafficClass::Compaction, deadline).short_answer();
            let answer = client.call(target, Lane::Bulk, &request, &[], how).await;
            let refusal = answer.as_ref().err().and_then(CallError::refusal);
            let what = |error: CallError| {
                error.error(format!("storage node {target}, {}", request.name()))
            };
            OrderEnd { done: answer.map(|_| ()).map_err(what), refusal }
        });
        Order { debt, extent, answer }
    }

    /// Waits until an order is answered, at most for `pause`.
    async fn next_answer(
        &self,
        orders: &mut Vec<Order>,
        pause: Duration,
    ) -> Option<(Order, OrderEnd)> {
        let mut sleep = self.client.runtime().sleep(pause.max(Duration::from_millis(1)));
        poll_fn(|context| {
            for at in 0..orders.len() {
                if let Poll::Ready(end) = Pin::new(&mut orders[at].answer).poll(context) {
                    return Poll::Ready(Some((orders.remove(at), end)));
                }
            }
            Pin::new(&mut sleep).poll(context).map(|()| None)
        })
        .await
    }

    fn note_answer(
        &self,
        state: &mut RoundState,
        order: &Order,
        end: OrderEnd,
        members: &RepairMembers,
    ) {
        let (blob, target) = (order.debt.blob, order.debt.target);
        // A refused copy is left until the next plan, which may find another target.
        match (order.extent, end.refusal) {
            (Some(at), Some(RefusalWhy::LongerReplica)) => {
                tracing::info!(extent = %at, node = %target, "a longer replica refuses a copy");
                state.note_refused(ExtentTarget { at, node: target }, members);
                return;
            }
            (Some(at), Some(RefusalWhy::RemovedLog)) => {
                tracing::info!(extent = %at, node = %target, "the log of an extent was removed");
                state.removed_logs.insert(at.log);
                return;
            }
            _ => {}
        }
        let is_chunk = order.extent.is_none();
        count_answer(&mut self.status.lock(), &order.debt, is_chunk, &end.done);
        match end.done {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                tracing::debug!(%error, %blob, "a repair is not needed any more");
            }
            Err(error) => {
                tracing::info!(%error, %blob, "a repair failed, and is tried again");
                state.note_failed(target, is_chunk, self.now_ns());
            }
        }
    }

    /// Lets the next node compare a page of its chunks. Returns whether a node was due.
    async fn check_next(
        &self,
        state: &mut RoundState,
        view: &RepairView,
        members: &RepairMembers,
        look: &impl RepairLook,
    ) -> bool {
        let due = state.next_comparison(&view.members, self.now_ns());
        let Some(comparison) = due else { return false };
        match self.compare_page(&comparison, members, look).await {
            // A round comes first, and the comparison goes on with the same page.
            None => state.comparison = Some(comparison),
            Some(Ok(page)) => {
                let due_ns = self.now_ns() + self.terms.check_every.as_nanos() as u64;
                state.note_page(comparison, page, due_ns);
            }
            Some(Err(error)) => {
                tracing::info!(%error, "a node does not compare its chunks; it is asked again");
                state.put_off(comparison, self.now_ns());
            }
        }
        true
    }

    /// Asks for the next page of a comparison. `None` if the members change meanwhile.
    async fn compare_page(
        &self,
        comparison: &Comparison,
        members: &RepairMembers,
        look: &impl RepairLook,
    ) -> Option<Result<ComparedPage>> {
        let node = comparison.node;
        let request = StoreMessage::CheckHeld { after: comparison.after };
        let mut asked = pin!(self.ask(node, &request, CHECK_DEADLINE));
        loop {
            let mut pause = self.client.runtime().sleep(LOOK);
            let answer = poll_fn(|context| match asked.as_mut().poll(context) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending => Pin::new(&mut pause).poll(context).map(|()| None),
            });
            match answer.await {
                Some(Ok(StoreMessage::Checked { missing, next })) => {
                    return Some(Ok(ComparedPage { missing, next }));
                }
                Some(Ok(other)) => return Some(Err(other_version(node, &other))),
                Some(Err(error)) => return Some(Err(error)),
                None if is_current(members, look) => {}
                None => return None,
            }
        }
    }

    /// Moves chunks away from nodes that are much fuller than the mean.
    async fn level(&self, state: &mut RoundState, members: &RepairMembers, look: &impl RepairLook) {
        let now_ns = self.now_ns();
        if now_ns < state.level_ns {
            return;
        }
        let mut moves = RepairPlan::default();
        for node in fuller_nodes(members) {
            match self.some_chunks(node).await {
                Ok(chunks) => plan_moves(members, node, &chunks, &mut moves),
                Err(error) => tracing::debug!(%error, "a full node does not list its chunks"),
            }
        }
        let pause = match moves.jobs.is_empty() {
            true => self.terms.scan_every,
            false => self.terms.scan_again,
        };
        state.level_ns = now_ns + pause.as_nanos() as u64;
        if !moves.jobs.is_empty() {
            tracing::info!(chunks = moves.jobs.len(), "chunks move away from full nodes");
            self.carry_out(state, moves, members, look).await;
        }
    }

    async fn some_chunks(&self, node: StorageId) -> Result<Vec<HeldChunk>> {
        let mut all: Vec<HeldChunk> = Vec::new();
        let mut after = None;
        loop {
            let (present, answering, shared) = (Vec::new(), Vec::new(), Vec::new());
            let request =
                StoreMessage::ListHeld { present, answering, is_all: true, after, shared };
            let (chunks, next, _) = self.ask_held(node, &request).await?;
            all.extend(chunks.into_iter().filter(|held| held.is_readable));
            if next.is_none() || all.len() >= MOVES_FROM_MAX {
                return Ok(all);
            }
            after = next;
        }
    }
}

/// Whether this manager acts, and the members are still those of a round.
fn is_current(members: &RepairMembers, look: &impl RepairLook) -> bool {
    look.look().is_some_and(|view| view.acts && members.has_same_nodes(&view.repair_members()))
}

/// Counts the answer to an order. A repair that failed still counts as left, so that a drain waits
/// for it.
pub(super) fn count_answer(
    status: &mut RepairStatus,
    debt: &RepairDebt,
    is_chunk: bool,
    done: &Result<()>,
) {
    let (left, repaired) = match is_chunk {
        true => (&mut status.chunks_left, &mut status.chunks_repaired),
        false => (&mut status.extents_left, &mut status.extents_repaired),
    };
    match done {
        Ok(()) => {
            *repaired += 1;
            status.bytes_repaired += debt.chunk_bytes;
        }
        // No volume keeps the blob any more, so there is nothing to make.
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(_) => {
            status.failed += 1;
            return;
        }
    }
    *left = left.saturating_sub(1);
    status.bytes_left = status.bytes_left.saturating_sub(debt.chunk_bytes);
}

/// Drops the debts with this target, which does not answer. The next round plans them anew.
pub(super) fn drop_debts_of(
    target: StorageId,
    debts: &mut Vec<RepairDebt>,
    jobs: &mut Vec<RepairJob>,
) {
    let all = std::mem::take(debts).into_iter().zip(std::mem::take(jobs));
    (*debts, *jobs) = all.filter(|(debt, _)| debt.target != target).unzip();
}

/// Targets that have as many orders under way as a node may have.
fn busy_targets(orders: &[Order]) -> BTreeSet<StorageId> {
    let under_way =
        |target: StorageId| orders.iter().filter(|order| order.debt.target == target).count();
    let targets = orders.iter().map(|order| order.debt.target);
    targets.filter(|target| under_way(*target) >= ORDERS_OF_NODE_MAX).collect()
}

/// Nodes that stay and are over 10 % fuller than the mean. A difference below a hundredth of the
/// capacity is not worth a move, so that nodes that are nearly empty keep their chunks.
fn fuller_nodes(members: &RepairMembers) -> Vec<StorageId> {
    let staying = || members.reports().iter().filter(|node| node.is_up && !node.is_draining);
    let used: u128 = staying().map(|node| u128::from(node.used_bytes)).sum();
    let capacity: u128 = staying().map(|node| u128::from(node.capacity_bytes)).sum();
    let is_fuller = |node: &&NodeReport| {
        let own = u128::from(node.used_bytes) * capacity * 100;
        let mean = used * u128::from(node.capacity_bytes) * 100;
        own > mean / 100 * 110 && own - mean > capacity * u128::from(node.capacity_bytes)
    };
    staying().filter(is_fuller).map(|node| node.id).collect()
}

/// Adds the moves of the chunks of `from` to a plan.
fn plan_moves(
    members: &RepairMembers,
    from: StorageId,
    held: &[HeldChunk],
    moves: &mut RepairPlan,
) {
    let chunks: Vec<ChunkAt> = held
        .iter()
        .map(|held| {
            let blob = &held.descriptor;
            let others = blob.holders.iter().map(|it| it.storage).filter(|it| *it != from);
            ChunkAt {
                blob: blob.chunk.blob,
                node: from,
                bytes: blob.chunk_bytes(),
                others: others.collect(),
            }
        })
        .collect();
    for chosen in rebalance(members.reports(), &chunks).moves {
        let blob = &held[chosen.chunk].descriptor;
        moves.debts.push(RepairDebt {
            blob: blob.chunk.blob,
            losses_left: u8::MAX,
            chunk_bytes: blob.chunk_bytes(),
            sources: vec![from],
            target: chosen.to,
        });
        moves.jobs.push(RepairJob::Chunk { descriptor: blob.clone(), replaces: Some(from) });
    }
}

fn other_version(node: StorageId, answer: &StoreMessage) -> Error {
    Error::unsupported(format!(
        "storage node {node} answers with {}: manager and node may have different versions",
        answer.name()
    ))
}
