//! The recovery of a log: it drives a [`Recovery`] over the network.
//!
//! A recovery that has enough answers could end without the third node. It waits a moment for that
//! node, so that the node seals too. Then a repeated recovery with the same layout finds the same
//! end, and the extent has all its replicas. The caller keeps the layout that the recovery returns.
//!
//! A recovery that may miss acknowledged bytes ends before a node seals, unless the caller has kept
//! this fact ([`LossStanding`]). The caller keeps it and begins the recovery anew. A task must not
//! keep the fact, because that would block the task. The recovery must not pause meanwhile either.
//! Its requests have places in the queues to the nodes, and the requests to the register would wait
//! after them.
//!
//! A log that no node knows was removed. Nodes have a durable record of every log since its
//! creation. So an answer without a record of the first extent is as conclusive as an answer with
//! its length.
//!
//! Invariants:
//! 1. Every read of a recovery fences.
//! 2. A recovery that lacks answers regularly logs the nodes that it waits for.
//! 3. A replica that has lost synced bytes does not count as an answer.
//! 4. A recovery that ends with [`RecoveryEnd::NeedsLossKept`] has sealed no extent that may miss
//!    bytes.
//!
//! Thread-safety: a recovery belongs to one caller. Several run in one task.
//! Failure: `Fenced` for an old epoch; `Busy` if too few nodes answer in time; `NotFound` for a log
//! that was removed; `Corrupt` if all nodes answered and too many have lost synced bytes.
//! Cost: that of the [`Recovery`], and at most [`GRACE`] for a node that does not answer.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use archipelago_base::runtime::Boxed;
use archipelago_base::{Error, ErrorKind, Result};

use super::super::StorageId;
use super::super::log::recovery::{FencedAnswer, Recovery, RecoveryAction};
use super::super::log::{AckRule, LogLayout, ReplicaId};
use super::call_set::CallSet;
use super::copying::{CopyFailed, ExtentCopy, copy_extent};
use super::options::{NodeLogOptions, ack_rule};
use super::placing::replace_replica;
use super::requests::{LogFailure, LogRequests, ReplicaFound};

/// Time for which a recovery that could end waits for the nodes that have not answered.
const GRACE: Duration = Duration::from_millis(300);
/// Pause before nodes that failed are asked again.
const ASK_PAUSE: Duration = Duration::from_millis(200);
/// Time between two messages about missing answers.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// Whether the fact that acknowledged bytes may be missing is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossStanding {
    /// No recovery of the owner has met a loss so far.
    NotKept,
    /// The keeper of losses has the fact.
    Kept,
}

/// State of the owner's earlier recoveries when a recovery begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecoveryStanding {
    /// Whether the fact of a loss is durable.
    pub(super) losses: LossStanding,
    /// Begin of an earlier pass, from which on [`NodeLogOptions::recovery_max`] counts.
    pub(super) first_started_ns: Option<u64>,
}

/// How a recovery ended.
#[derive(Debug)]
pub(super) enum RecoveryEnd {
    /// The log has this layout, which has its end.
    Recovered(LogLayout),
    /// Acknowledged bytes may be missing. The caller keeps this fact, and recovers the log once
    /// more.
    NeedsLossKept,
}

/// A request of a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RecoveryCall {
    Read(ReplicaId),
    Seal(ReplicaId),
    Choose { extent: u32 },
}

impl RecoveryCall {
    /// The replica that the request concerns, if it has one.
    fn replica(&self) -> Option<ReplicaId> {
        match self {
            Self::Read(replica) | Self::Seal(replica) => Some(*replica),
            Self::Choose { .. } => None,
        }
    }
}

/// Outcome of a request of a recovery.
#[derive(Debug)]
enum RecoveryAnswer {
    /// State of the replica on the node, and whether the node knows the log.
    Found(ReplicaFound, bool),
    Sealed,
    Chosen(StorageId),
    Failed(CopyFailed),
    NoNode(Error),
}

/// A recovery under way.
struct RecoveryRun<'a> {
    requests: &'a LogRequests,
    options: &'a NodeLogOptions,
    recovery: Recovery,
    calls: CallSet<RecoveryCall, RecoveryAnswer>,
    /// Nodes that do not know the log, if its first extent may be its only one.
    unknown: BTreeSet<StorageId>,
    /// Number of nodes without a record of the log that proves its removal; `None` if no number
    /// proves it.
    unknown_max: Option<usize>,
    /// Replicas whose seals the recovery has not been notified of yet.
    held: Vec<ReplicaId>,
    /// Time until which seals are held.
    held_until_ns: Option<u64>,
    /// Replicas whose last request failed, with the reason, for messages.
    missing: Vec<(ReplicaId, String)>,
    /// Replicas that have lost synced bytes.
    damaged: BTreeSet<ReplicaId>,
    has_accepted_loss: bool,
    /// Whether the recovery waits until the fact of a loss is kept.
    needs_loss_kept: bool,
    started_ns: u64,
    /// Time at which the recovery gives up.
    ends_ns: u64,
    reported_ns: u64,
    ask_again_ns: u64,
}

/// The next step of a run.
enum RunStep {
    Answer(RecoveryCall, RecoveryAnswer),
    Time,
}

/// Recovers the log of `requests` with the layout `layout`.
pub(super) async fn recover_log(
    requests: &LogRequests,
    options: &NodeLogOptions,
    layout: LogLayout,
    standing: RecoveryStanding,
) -> Result<RecoveryEnd> {
    let ack = ack_rule(requests.class);
    let unknown_max = match layout.extents.as_slice() {
        [only] if only.number == 1 && !only.is_sealed => {
            Some(ack.recovery_answers(only.nodes.len()))
        }
        _ => None,
    };
    let now_ns = requests.runtime().now_ns();
    let mut run = RecoveryRun {
        requests,
        options,
        recovery: new_recovery(ack, layout, options),
        calls: CallSet::default(),
        unknown: BTreeSet::new(),
        unknown_max,
        held: Vec::new(),
        held_until_ns: None,
        missing: Vec::new(),
        damaged: BTreeSet::new(),
        has_accepted_loss: false,
        needs_loss_kept: false,
        started_ns: now_ns,
        ends_ns: ends_ns(now_ns, options, standing),
        reported_ns: now_ns,
        ask_again_ns: now_ns,
    };
    run.recovery.start();
    if standing.losses == LossStanding::Kept {
        run.recovery.loss_kept();
    }
    loop {
        if let Some(end) = run.carry_out()? {
            return Ok(end);
        }
        // The next recovery may choose other ends, so this one awaits its seals. A request that
        // missed its deadline may still arrive later, and nodes accept a smaller end. Each end that
        // a recovery chooses covers the bytes that it knows to be acknowledged.
        if run.needs_loss_kept && !run.is_sealing() {
            return Ok(RecoveryEnd::NeedsLossKept);
        }
        if run.release_held() {
            continue;
        }
        match run.next_step().await {
            RunStep::Answer(call, answer) => run.note(&call, answer)?,
            RunStep::Time => run.pass_time()?,
        }
    }
}

/// Time at which a recovery that begins now gives up. One that continues an earlier pass shares its
/// limit, but has time to ask each node once.
fn ends_ns(now_ns: u64, options: &NodeLogOptions, standing: RecoveryStanding) -> u64 {
    let max_ns = options.recovery_max.as_nanos() as u64;
    let patience_ns = options.patience.as_nanos() as u64;
    match standing.first_started_ns {
        None => now_ns.saturating_add(max_ns),
        Some(first_ns) => first_ns.saturating_add(max_ns).max(now_ns.saturating_add(patience_ns)),
    }
}

fn new_recovery(ack: AckRule, layout: LogLayout, options: &NodeLogOptions) -> Recovery {
    let recovery = Recovery::new(ack, layout);
    #[cfg(feature = "sabotage")]
    let recovery = recovery.sabotaged(options.recovery_sabotage);
    let _unused_without_sabotage = options;
    recovery
}

impl RecoveryRun<'_> {
    fn now_ns(&self) -> u64 {
        self.requests.runtime().now_ns()
    }

    fn name(&self) -> String {
        format!("log {}", self.requests.log)
    }

    /// Carries out what the recovery wants. Returns the end when there is one.
    fn carry_out(&mut self) -> Result<Option<RecoveryEnd>> {
        while let Some(action) = self.recovery.next_action() {
            match action {
                RecoveryAction::Read { replica, is_fencing } => self.read(replica, is_fencing),
                RecoveryAction::Seal { from, to, extent_start, start, end } => {
                    let source = ReplicaId { node: from, ..to };
                    let (sources, range) = (vec![source], start..end);
                    self.seal(ExtentCopy { extent_start, range, sources, to });
                }
                RecoveryAction::ChooseNode { extent, avoid } => self.choose(extent, avoid),
                RecoveryAction::KeepLoss => {
                    let log = self.requests.log;
                    tracing::warn!(%log, "acknowledged bytes without a sync may be missing");
                    self.needs_loss_kept = true;
                }
                // The caller keeps the layout before it uses a byte.
                RecoveryAction::Record(_) => self.recovery.recorded(),
                RecoveryAction::Done(layout) => return Ok(Some(RecoveryEnd::Recovered(layout))),
                RecoveryAction::Fenced => {
                    return Err(Error::fenced(format!(
                        "{}: another process has a later epoch than {}; close this handle",
                        self.name(),
                        self.requests.stamp.epoch
                    )));
                }
            }
        }
        Ok(None)
    }

    fn read(&mut self, replica: ReplicaId, is_fencing: bool) {
        let requests = self.requests.clone();
        let asks_for_log = self.unknown_max.is_some();
        self.push(RecoveryCall::Read(replica), async move {
            let read = async {
                let found = requests.inspect(replica, is_fencing).await?;
                let has_bytes = found.valid_end > 0 || found.is_sealed || found.is_damaged;
                let is_known =
                    has_bytes || !asks_for_log || requests.is_known(replica.node).await?;
                Ok::<_, LogFailure>(RecoveryAnswer::Found(found, is_known))
            };
            let node = replica.node;
            read.await
                .unwrap_or_else(|failure| RecoveryAnswer::Failed(CopyFailed { node, failure }))
        });
    }

    /// Whether a seal is under way.
    fn is_sealing(&self) -> bool {
        self.calls.keys().any(|call| matches!(call, RecoveryCall::Seal(_)))
    }

    fn seal(&mut self, copy: ExtentCopy) {
        let requests = self.requests.clone();
        self.push(RecoveryCall::Seal(copy.to), async move {
            match copy_extent(&requests, &copy).await {
                Ok(()) => RecoveryAnswer::Sealed,
                Err(failed) => RecoveryAnswer::Failed(failed),
            }
        });
    }

    fn choose(&mut self, extent: u32, avoid: Vec<StorageId>) {
        let requests = self.requests.clone();
        self.push(RecoveryCall::Choose { extent }, async move {
            // The nodes that do not answer keep their domains, because they may return.
            match replace_replica(&requests, &avoid, &avoid).await {
                Ok(node) => RecoveryAnswer::Chosen(node),
                Err(error) => RecoveryAnswer::NoNode(error),
            }
        });
    }

    fn push(
        &mut self,
        call: RecoveryCall,
        answer: impl Future<Output = RecoveryAnswer> + Send + 'static,
    ) {
        self.calls.push(call, Box::pin(answer));
    }

    /// Waits for an answer, or for the time at which something else is due.
    async fn next_step(&mut self) -> RunStep {
        let due_ns = self.held_until_ns.unwrap_or(u64::MAX).min(self.ask_again_ns);
        let left = Duration::from_nanos(due_ns.saturating_sub(self.now_ns()));
        let mut sleep: Boxed<'static, ()> = self.requests.runtime().sleep(left);
        let calls = &mut self.calls;
        poll_fn(|context| {
            if let Poll::Ready((call, answer)) = calls.poll_ended(context) {
                return Poll::Ready(RunStep::Answer(call, answer));
            }
            Pin::new(&mut sleep).poll(context).map(|()| RunStep::Time)
        })
        .await
    }

    fn note(&mut self, call: &RecoveryCall, answer: RecoveryAnswer) -> Result<()> {
        let replica = call.replica();
        if let Some(replica) = replica {
            self.missing.retain(|(missing, _)| *missing != replica);
        }
        match (call, answer) {
            (RecoveryCall::Read(replica), RecoveryAnswer::Found(found, is_known)) => {
                self.note_knowledge(replica.node, is_known)?;
                let ReplicaFound { valid_end, is_in_limbo, is_damaged, .. } = found;
                let answer = FencedAnswer { valid_end, is_in_limbo, is_damaged };
                self.recovery.answered(*replica, answer);
                self.note_damage(*replica, is_damaged);
                self.check_damage()?;
            }
            (RecoveryCall::Seal(replica), RecoveryAnswer::Sealed) => self.hold(*replica),
            (RecoveryCall::Choose { extent }, RecoveryAnswer::Chosen(node)) => {
                self.recovery.node_chosen(ReplicaId { extent: *extent, node });
            }
            (_, RecoveryAnswer::Failed(failed)) => self.note_failure(replica, &failed),
            (_, RecoveryAnswer::NoNode(error)) => {
                tracing::debug!(%error, log = %self.requests.log, "a recovery waits for a node");
            }
            _ => {}
        }
        Ok(())
    }

    fn note_damage(&mut self, replica: ReplicaId, is_damaged: bool) {
        if !is_damaged {
            self.damaged.remove(&replica);
        } else if self.damaged.insert(replica) {
            let ReplicaId { extent, node } = replica;
            tracing::error!(log = %self.requests.log, extent, %node, "a replica has lost synced bytes; it does not count");
        }
    }

    /// Errors: `Corrupt` if all nodes of an extent answered, too many of them have lost synced
    /// bytes, and no operator accepts that.
    fn check_damage(&mut self) -> Result<()> {
        let Some(damaged) = self.recovery.blocked_by_damage() else { return Ok(()) };
        if self.options.accept_loss {
            self.accept_loss("the bytes that damaged replicas have lost");
            return Ok(());
        }
        let damaged: Vec<String> = damaged.iter().map(lost_synced_bytes).collect();
        let text = format!(
            "{}: {}; too few undamaged replicas are left to find its end. Return the missing \
             device or the file to one of these nodes and start it again, or accept the loss of \
             the bytes that no other node has (--accept-loss)",
            self.name(),
            damaged.join(", ")
        );
        Err(Error::new(ErrorKind::Corrupt, text))
    }

    fn accept_loss(&mut self, what: &str) {
        if !std::mem::replace(&mut self.has_accepted_loss, true) {
            tracing::warn!(log = %self.requests.log, "a recovery gives up {what}");
            self.recovery.accept_loss();
        }
    }

    /// Notes whether a node knows the log. Errors: `NotFound` if enough nodes do not.
    fn note_knowledge(&mut self, node: StorageId, is_known: bool) -> Result<()> {
        if is_known {
            self.unknown.remove(&node);
            return Ok(());
        }
        self.unknown.insert(node);
        match self.unknown_max {
            Some(most) if self.unknown.len() >= most => Err(Error::not_found(format!(
                "{} is not on its nodes; it was removed",
                self.name()
            ))),
            _ => Ok(()),
        }
    }

    fn note_failure(&mut self, replica: Option<ReplicaId>, failed: &CopyFailed) {
        if let LogFailure::Fenced(_) = failed.failure {
            self.recovery.fenced();
            return;
        }
        let Some(replica) = replica else { return };
        self.missing.push((replica, failed.to_string()));
        self.recovery.failed(ReplicaId { node: failed.node, ..replica });
        self.recovery.failed(replica);
    }

    /// Keeps a seal back while other replicas of the extent may seal as well.
    fn hold(&mut self, replica: ReplicaId) {
        self.held.push(replica);
        let until_ns = self.now_ns() + GRACE.as_nanos() as u64;
        self.held_until_ns.get_or_insert(until_ns);
    }

    /// Notifies the recovery of seals that are not kept back any longer. Returns whether there were
    /// any.
    fn release_held(&mut self) -> bool {
        let is_over = self.held_until_ns.is_some_and(|until_ns| self.now_ns() >= until_ns);
        let busy: BTreeSet<u32> =
            self.calls.keys().filter_map(|call| Some(call.replica()?.extent)).collect();
        let is_due = |replica: &ReplicaId| is_over || !busy.contains(&replica.extent);
        let (due, held) = std::mem::take(&mut self.held).into_iter().partition(is_due);
        self.held = held;
        let due: Vec<ReplicaId> = due;
        due.iter().for_each(|replica| self.recovery.sealed(*replica));
        if self.held.is_empty() {
            self.held_until_ns = None;
        }
        !due.is_empty()
    }

    /// Does what is due by now: asks nodes again, logs what is missing, or gives up.
    fn pass_time(&mut self) -> Result<()> {
        let now_ns = self.now_ns();
        if now_ns < self.ask_again_ns {
            return Ok(());
        }
        self.ask_again_ns = now_ns + ASK_PAUSE.as_nanos() as u64;
        let waited_ns = now_ns - self.started_ns;
        let is_patient = waited_ns < self.options.patience.as_nanos() as u64;
        if self.options.accept_loss && !is_patient {
            self.accept_loss("the nodes that do not answer");
        }
        if now_ns >= self.ends_ns {
            return Err(Error::busy(format!("{}: {}", self.name(), self.missing_answers())));
        }
        if now_ns - self.reported_ns >= REPORT_EVERY.as_nanos() as u64 {
            self.reported_ns = now_ns;
            let missing = self.missing_answers();
            tracing::warn!(log = %self.requests.log, missing, "a recovery waits for nodes");
        }
        self.recovery.ask_again();
        Ok(())
    }

    fn missing_answers(&self) -> String {
        let asked = self.calls.keys().filter_map(RecoveryCall::replica);
        let asked = asked.map(|replica| format!("node {} has not answered", replica.node));
        let failed = self.missing.iter().map(|(_, why)| why.clone());
        let damaged = self.damaged.iter().map(lost_synced_bytes);
        let missing: Vec<String> = asked.chain(failed).chain(damaged).collect();
        format!(
            "its recovery lacks answers: {}; start these nodes, or accept the loss of the bytes \
             that no other node has",
            missing.join(", ")
        )
    }
}

fn lost_synced_bytes(replica: &ReplicaId) -> String {
    let ReplicaId { extent, node } = replica;
    format!("node {node} has lost synced bytes of extent {extent}")
}
