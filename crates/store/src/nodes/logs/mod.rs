//! Logs on storage nodes: the driver that implements [`LogStore`] over the network.
//!
//! The state machines of [`log`](super::log) decide, and the modules here send messages, wait for
//! answers and measure time. Terark-DS (§4.2.2) replicates a log in the same way: the client sends
//! to all replicas, commits at two of three, and recovers without a leader.
//!
//! | module | purpose |
//! | --- | --- |
//! | `writer` | the writer of a log, its tasks and its callers |
//! | `replica_stream` | what a replica needs next, and repetitions. Pure. |
//! | `send_ring` | the bytes that replicas may still need |
//! | `waiters` | the callers that wait, in order |
//! | `append_times` | the times of submissions, for the latency of appends |
//! | `recovering` | recoveries |
//! | `removal` | the logs of a volume that is removed |
//! | `copying` | copies of extents between nodes |
//! | `reader` | reads of logs |
//! | `striped` | large groups over four logs in parallel |
//! | `placing` | nodes for extents |
//! | `requests` | requests of a log as typed calls |
//! | `call_set` | calls under way together |
//! | `layout` | the layout as the owner keeps it |
//! | `options` | [`NodeLogOptions`] |
//!
//! Invariants:
//! 1. A log exists on its nodes when its creation returns: a node has a durable record of it. So a
//!    recovery distinguishes an empty log from one that was removed.
//! 2. A store keeps no writer alive: it has weak references to its writers, to serve readers of
//!    this process.
//!
//! Thread-safety: any thread may call a store. Calls block their thread, so a simulation makes them
//! outside its tasks.
//! Failure: requests are repeated, extents change and other nodes are asked before a caller gets an
//! error ([`NodeLogOptions`] has the limits). Errors name the log.
//! Cost: a creation and a removal are one round trip. An append is one message to each replica, or
//! less if several appends wait.

mod append_times;
mod call_set;
mod client_nodes;
mod copying;
mod layout;
mod options;
mod placing;
mod reader;
mod recovering;
mod removal;
mod replica_stream;
mod requests;
mod send_ring;
mod striped;
mod waiters;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::runtime::{Boxed, join_all, wait_for};
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, RandomFile};
use parking_lot::Mutex;

use self::client_nodes::ClientNodes;
use self::options::ack_rule;
use self::placing::place_extent;
use self::reader::{NodeLogReader, NodeLogSet};
use self::recovering::{LossStanding, RecoveryEnd, RecoveryStanding, recover_log};
use self::requests::{LogFailure, LogNodes, LogPool, LogRequests, WritePlace, promise_and_list};
use self::send_ring::LogBytes;
use self::writer::{CreatedLog, LogCore, LogHandle, NodeLogWriter};
use super::StorageId;
use super::client::{NodeClient, StoreEvent};
use super::log::{AckRule, ExtentRecord, LogLayout, ReplicaId};
use super::wire::Stamp;
use crate::ids::{LogId, VolumeId};
use crate::log::{
    Layout, LogSetReader, LogStore, LogToRecover, LogWriter, NewLog, NewOwner, RecoveredLog,
};

pub use self::layout::VolumeLog;
pub use self::options::NodeLogOptions;
pub use self::striped::{LogWriting, StripedLayout, StripedLogs};

/// Number of recoveries that run in parallel. Each has at most a few pieces of its log in memory.
const RECOVERIES_MAX: usize = 64;
/// Number of attempts to create a log on nodes that answer.
const CREATIONS_MAX: usize = 4;
/// Time for which the creation of a quorum log waits for its last replica.
const CREATION_GRACE: Duration = Duration::from_millis(100);

/// The logs of a pool of storage nodes.
#[derive(Debug)]
pub struct NodeLogs {
    pool: LogPool,
    options: Arc<NodeLogOptions>,
    begun: Mutex<BegunLogs>,
}

/// The logs that this store has begun.
#[derive(Debug, Default)]
struct BegunLogs {
    /// Number of logs that were begun so far.
    count: u64,
    /// Logs whose creation may not be recorded yet, with their numbers, and those with a writer.
    logs: BTreeMap<LogId, BegunLog>,
}

/// A log that this store has begun.
#[derive(Debug)]
struct BegunLog {
    number: u64,
    volume: VolumeId,
    writer: Weak<LogCore>,
}

impl NodeLogs {
    /// Logs on the nodes of `client`'s cluster.
    #[must_use]
    pub fn new(client: &Arc<NodeClient>, options: NodeLogOptions) -> Self {
        Self::over(Arc::new(ClientNodes::new(client)), options)
    }

    fn over(nodes: Arc<dyn LogNodes>, options: NodeLogOptions) -> Self {
        let pool = LogPool { nodes, suspects: Arc::default(), deadline: options.patience };
        Self { pool, options: Arc::new(options), begun: Mutex::default() }
    }

    fn requests(&self, log: LogId, class: FileClass, stamp: Stamp) -> LogRequests {
        LogRequests::new(&self.pool, log, stamp, class)
    }

    /// Acknowledged bytes of the logs of this store that a replica lacks.
    #[must_use]
    pub fn backlog_bytes(&self) -> u64 {
        let begun = self.begun.lock();
        let writers: Vec<_> = begun.logs.values().filter_map(|it| it.writer.upgrade()).collect();
        drop(begun);
        writers.iter().map(|writer| writer.backlog_bytes()).sum()
    }

    /// Runs `future` on the calling thread.
    fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        wait_for(&**self.pool.nodes.runtime(), future)
    }

    /// The writer of a log in this process.
    fn writer(&self, log: LogId) -> Option<Arc<LogCore>> {
        self.begun.lock().logs.get(&log).and_then(|begun| begun.writer.upgrade())
    }

    /// Ends the writer of a log that was removed, and forgets it.
    fn forget(&self, log: LogId) {
        let begun = self.begun.lock().logs.remove(&log);
        if let Some(writer) = begun.and_then(|begun| begun.writer.upgrade()) {
            writer.end(Error::not_found(format!("log {log} was removed")));
        }
    }

    fn note_begun(&self, log: LogId, volume: VolumeId) {
        let mut begun = self.begun.lock();
        begun.count += 1;
        let number = begun.count;
        begun.logs.insert(log, BegunLog { number, volume, writer: Weak::new() });
    }

    /// Creates a log on nodes of its own choice, and returns them.
    async fn create_on_nodes(&self, requests: &LogRequests) -> Result<Vec<StorageId>> {
        let mut failures: Vec<String> = Vec::new();
        let mut usable = None;
        for _ in 0..CREATIONS_MAX {
            let nodes = match place_extent(requests, self.options.copies_min).await {
                Ok(nodes) => nodes,
                Err(error) if usable.is_none() => return Err(error),
                Err(_) => break,
            };
            let failed = create_extent(requests, &nodes).await?;
            let quorum = ack_rule(requests.class).answers(nodes.len());
            let is_whole = failed.is_empty();
            if nodes.len() - failed.len() >= quorum {
                usable = Some(nodes);
            }
            if is_whole {
                break;
            }
            // The next choice is without the nodes that failed.
            for (node, failure) in failed {
                requests.suspect(node);
                failures.push(format!("node {node}: {failure}"));
            }
        }
        usable.ok_or_else(|| {
            let (log, why) = (requests.log, failures.join("; "));
            Error::busy(format!("log {log} cannot be created: {why}"))
        })
    }

    /// Creates a log, without waiting on the thread.
    async fn create_one(&self, new: NewLog) -> Result<(Box<dyn LogWriter>, Layout)> {
        let NewLog { id, volume, epoch, class, keeper } = new;
        let requests = self.requests(id, class, Stamp { volume, epoch });
        self.note_begun(id, volume);
        let nodes = self.create_on_nodes(&requests).await.inspect_err(|_| {
            self.begun.lock().logs.remove(&id);
        })?;
        let options = (*self.options).clone();
        let (core, layout) = LogCore::start(CreatedLog { requests, keeper, options, nodes });
        if let Some(log) = self.begun.lock().logs.get_mut(&id) {
            log.writer = Arc::downgrade(&core);
        }
        let writer: Box<dyn LogWriter> = Box::new(NodeLogWriter::new(LogHandle::new(core)));
        Ok((writer, VolumeLog { volume, layout }.encode()))
    }

    /// The layout that a log has for a reader, and the end of its bytes.
    async fn readable(
        &self,
        requests: &LogRequests,
        layout: LogLayout,
    ) -> Result<(LogLayout, u64)> {
        let Some(open) = layout.extents.iter().find(|extent| extent.end.is_none()) else {
            let end = layout.ended_bytes();
            return Ok((layout, end));
        };
        let end = acknowledged_end(requests, open).await?;
        Ok((layout, end))
    }

    /// Recovers a log, without waiting on the thread. `None` if acknowledged bytes may be missing.
    /// The owner must keep that fact before the log is recovered again.
    async fn recover_one(&self, log: &LogToRecover<'_>, by: Recoverer) -> RecoveryOutcome {
        let Recoverer { epoch, .. } = by;
        let name = format!("log {}", log.id);
        let VolumeLog { volume, layout } = VolumeLog::decode(log.layout, &name)?;
        // A recovery under the epoch of a writer ends that writer; the nodes fence older ones.
        if let Some(writer) = self.writer(log.id).filter(|writer| writer.epoch() == epoch) {
            writer.end(Error::closed(format!("{name} was recovered; begin a new log")));
        }
        let requests = self.requests(log.id, log.class, Stamp { volume, epoch });
        let standing =
            RecoveryStanding { losses: by.losses, first_started_ns: by.first_started_ns };
        let layout = match recover_log(&requests, &self.options, layout, standing).await? {
            RecoveryEnd::Recovered(layout) => layout,
            RecoveryEnd::NeedsLossKept => return Ok(None),
        };
        requests.count(StoreEvent::RecoveredLog);
        let (len_bytes, may_miss_unsynced) = (layout.ended_bytes(), layout.may_miss_unsynced);
        let layout = VolumeLog { volume, layout }.encode();
        Ok(Some(RecoveredLog { layout, len_bytes, may_miss_unsynced }))
    }

    /// Recovers several logs, without waiting on the thread. The outcomes are in the given order.
    async fn recover_many(&self, logs: &[LogToRecover<'_>], by: Recoverer) -> Vec<RecoveryOutcome> {
        let next = AtomicUsize::new(0);
        let lanes = 0..RECOVERIES_MAX.min(logs.len());
        let lanes = join_all(lanes.map(|_| self.recover_next(logs, by, &next))).await;
        let mut done: Vec<_> = lanes.into_iter().flatten().collect();
        done.sort_by_key(|(at, _)| *at);
        done.into_iter().map(|(_, outcome)| outcome).collect()
    }

    /// Recovers one log after the other. Takes their numbers from `next`, which parallel calls
    /// share. Returns the outcomes with the numbers of their logs.
    async fn recover_next(
        &self,
        logs: &[LogToRecover<'_>],
        by: Recoverer,
        next: &AtomicUsize,
    ) -> Vec<(usize, RecoveryOutcome)> {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(log) = logs.get(at) else { return done };
            done.push((at, self.recover_one(log, by).await));
        }
    }

    /// Has the owner keep the fact that logs may miss acknowledged bytes, and then recovers these
    /// logs. The first pass began at `first_started_ns`.
    fn recover_lossy(
        &self,
        logs: &[LogToRecover<'_>],
        owner: NewOwner<'_>,
        first_started_ns: u64,
    ) -> Vec<RecoveryOutcome> {
        if let Err(error) = owner.losses.keep_loss() {
            return logs.iter().map(|_| Err(error.clone())).collect();
        }
        let (losses, first_started_ns) = (LossStanding::Kept, Some(first_started_ns));
        let by = Recoverer { epoch: owner.epoch, losses, first_started_ns };
        self.wait(self.recover_many(logs, by))
    }

    /// Opens a log for reading, without waiting on the thread.
    async fn open_one(
        &self,
        id: LogId,
        layout: &Layout,
        context: IoContext,
    ) -> Result<NodeLogReader> {
        let VolumeLog { volume, layout } = VolumeLog::decode(layout, &format!("log {id}"))?;
        let requests = self.requests(id, context.class, Stamp { volume, epoch: Epoch(0) });
        let writer = self.writer(id).filter(|_| !layout.is_ended);
        let (layout, len) = match writer {
            Some(writer) => writer.readable(),
            None => self.readable(&requests, layout).await?,
        };
        Ok(NodeLogReader::new(requests, &self.options, layout, len))
    }

    /// Removes a log from nodes. A node that is down keeps its part until strays are released.
    async fn remove_from(&self, requests: &LogRequests, nodes: &[StorageId]) -> Result<()> {
        let live = self.live_nodes().await?;
        let nodes: Vec<StorageId> = nodes.iter().copied().filter(|it| live.contains(it)).collect();
        let removed = join_all(nodes.iter().map(|node| requests.remove(*node))).await;
        let mut failed = Ok(());
        for (node, removed) in nodes.iter().zip(removed) {
            match removed {
                Ok(()) | Err(LogFailure::NotThere(_)) => {}
                // A fence takes precedence over a node that does not answer.
                Err(failure) => {
                    let what = format!("log {}: its removal from node {node}", requests.log);
                    let is_fence = matches!(failure, LogFailure::Fenced(_));
                    if is_fence || failed.is_ok() {
                        failed = Err(failure.error(what));
                    }
                    if is_fence {
                        break;
                    }
                }
            }
        }
        failed
    }

    /// Removes a log from `nodes`, and from `others` as far as they answer.
    async fn remove_everywhere(
        &self,
        requests: &LogRequests,
        nodes: &[StorageId],
        others: Vec<StorageId>,
    ) -> Result<()> {
        let removals = [nodes, others.as_slice()].map(|nodes| self.remove_from(requests, nodes));
        let mut removed = join_all(removals).await;
        match removed.pop() {
            Some(Err(error)) if error.kind() == ErrorKind::Fenced => return Err(error),
            Some(Err(error)) => {
                tracing::debug!(%error, log = %requests.log, "copies of a removed log are left");
            }
            Some(Ok(())) | None => {}
        }
        removed.pop().unwrap_or(Ok(()))
    }

    /// Nodes of the pool that answer.
    async fn live_nodes(&self) -> Result<Vec<StorageId>> {
        let reports = self.pool.nodes.reports().await?;
        Ok(reports.iter().filter(|report| report.is_up).map(|report| report.id).collect())
    }

    /// The logs of a volume and the nodes that have parts of them. Every node that answers has
    /// promised the epoch. Errors: `Fenced`.
    async fn list(&self, stamp: Stamp) -> Result<BTreeMap<LogId, FoundLog>> {
        let nodes = self.live_nodes().await?;
        let ask = |node: &StorageId| promise_and_list(&self.pool, *node, stamp);
        let answers = join_all(nodes.iter().map(ask)).await;
        let mut found: BTreeMap<LogId, FoundLog> = BTreeMap::new();
        for (node, answer) in nodes.iter().zip(answers) {
            match answer {
                Ok(logs) => logs.into_iter().for_each(|(log, epoch)| {
                    let entry = found.entry(log).or_default();
                    entry.nodes.push(*node);
                    entry.epoch = entry.epoch.max(epoch);
                }),
                Err(failure @ LogFailure::Fenced(_)) => {
                    return Err(failure.error(format!("logs of volume {}", stamp.volume)));
                }
                // The logs of a node that does not answer are listed the next time.
                Err(failure) => {
                    tracing::debug!(%node, %failure, volume = %stamp.volume, "logs are not listed");
                }
            }
        }
        Ok(found)
    }
}

/// The owner for whom a recovery runs.
#[derive(Clone, Copy, Debug)]
struct Recoverer {
    epoch: Epoch,
    losses: LossStanding,
    /// Begin of the first pass; `None` during that pass.
    first_started_ns: Option<u64>,
}

/// The error of a log that is not sealed, because the recovery of `failed` has failed with `error`.
/// It says whether a later owner took over.
fn waits_for(log: &LogToRecover<'_>, failed: &LogToRecover<'_>, error: &Error) -> Error {
    let kind = match error.kind() {
        ErrorKind::Fenced => ErrorKind::Fenced,
        _ => ErrorKind::Busy,
    };
    let text = format!(
        "log {}: its recovery may miss acknowledged bytes and waits for that of log {}, which \
         failed: {error}",
        log.id, failed.id
    );
    Error::new(kind, text)
}

/// Outcome of the recovery of a log; `None` if the owner must keep the fact of a loss before the
/// recovery can end.
type RecoveryOutcome = Result<Option<RecoveredLog>>;

/// A log that nodes list.
#[derive(Debug, Default)]
struct FoundLog {
    nodes: Vec<StorageId>,
    /// Largest epoch under which an extent was created.
    epoch: Epoch,
}

/// A node on which an extent was not created, and why.
type NotCreated = (StorageId, LogFailure);

/// Creates the first extent of a log on `nodes`. Returns the nodes on which that failed. Errors:
/// `Fenced`; `InvalidArgument` if the log exists.
async fn create_extent(requests: &LogRequests, nodes: &[StorageId]) -> Result<Vec<NotCreated>> {
    let quorum = ack_rule(requests.class).answers(nodes.len());
    let mut calls = call_set::CallSet::default();
    for node in nodes {
        let to = ReplicaId { extent: 1, node: *node };
        let place = WritePlace { to, extent_start: 0, start: 0 };
        calls.push(*node, requests.append(place, false, LogBytes::empty()));
    }
    let mut left: BTreeSet<StorageId> = nodes.iter().copied().collect();
    let mut failed = Vec::new();
    let mut grace: Option<Boxed<'static, ()>> = None;
    while !calls.is_empty() {
        if grace.is_none() && nodes.len() - left.len() - failed.len() >= quorum {
            grace = Some(requests.runtime().sleep(CREATION_GRACE));
        }
        let Some((node, answer)) = calls.next_within(grace.as_mut()).await else { break };
        match answer {
            Ok(progress) if progress.written == 0 => {
                left.remove(&node);
            }
            Ok(_) => {
                return Err(Error::invalid(format!(
                    "log {} was created before; choose a new identity for each log",
                    requests.log
                )));
            }
            Err(failure @ LogFailure::Fenced(_)) => {
                return Err(failure.error(format!("log {}: node {node}", requests.log)));
            }
            Err(failure) => {
                left.remove(&node);
                failed.push((node, failure));
            }
        }
    }
    let silent = LogFailure::Passing("it has not answered yet".to_owned());
    failed.extend(left.into_iter().map(|node| (node, silent.clone())));
    Ok(failed)
}

/// The end of the bytes of the open extent that are acknowledged for certain. Errors: `NotFound` if
/// the nodes do not know the log; `Busy`.
async fn acknowledged_end(requests: &LogRequests, open: &ExtentRecord) -> Result<u64> {
    let replicas = open.nodes.iter().map(|node| ReplicaId { extent: open.number, node: *node });
    let answers = join_all(replicas.map(|replica| requests.inspect(replica, false))).await;
    let ack = ack_rule(requests.class);
    let mut ends: Vec<u64> = Vec::new();
    // The length of a replica that has lost synced bytes proves nothing.
    for found in answers.iter().flatten().filter(|found| !found.is_damaged) {
        ends.push(if ack == AckRule::AllSynced { found.synced } else { found.valid_end });
    }
    ends.sort_unstable_by(|a, b| b.cmp(a));
    if ends.is_empty() {
        let failure = answers.into_iter().find_map(std::result::Result::err);
        let what = format!("log {}: no node of its last extent answers", requests.log);
        return Err(failure.map_or_else(|| Error::busy(&*what), |failure| failure.error(&what)));
    }
    let may_be_gone = open.number == 1 && ends[0] == 0;
    if may_be_gone {
        let known = join_all(open.nodes.iter().map(|node| requests.is_known(*node))).await;
        let knows = |known: &Result<bool, LogFailure>| known.as_ref().is_ok_and(|known| *known);
        if !known.iter().any(knows) && known.iter().any(std::result::Result::is_ok) {
            return Err(Error::not_found(format!(
                "log {} is not on its nodes; it was removed",
                requests.log
            )));
        }
    }
    let at = ack.answers(open.nodes.len()).min(ends.len()) - 1;
    Ok(ends[at].max(open.start))
}

impl LogStore for NodeLogs {
    fn create(&self, new: NewLog) -> Result<(Box<dyn LogWriter>, Layout)> {
        self.wait(self.create_one(new))
    }

    /// All logs are created in parallel.
    fn create_all(&self, new: Vec<NewLog>) -> Vec<Result<(Box<dyn LogWriter>, Layout)>> {
        self.wait(join_all(new.into_iter().map(|new| self.create_one(new))))
    }

    fn recover(
        &self,
        id: LogId,
        class: FileClass,
        layout: &Layout,
        owner: NewOwner<'_>,
    ) -> Result<RecoveredLog> {
        let log = LogToRecover { id, class, layout };
        let missing = || Err(Error::internal(format!("log {id} was not recovered")));
        self.recover_all(&[log], owner).pop().unwrap_or_else(missing)
    }

    /// The recoveries run in parallel, a limited number of them at a time. Logs that may miss
    /// acknowledged bytes are recovered once more, after the owner has kept that. If another log
    /// has failed, the owner cannot open, so nothing is kept and these logs stay unsealed.
    fn recover_all(
        &self,
        logs: &[LogToRecover<'_>],
        owner: NewOwner<'_>,
    ) -> Vec<Result<RecoveredLog>> {
        let started_ns = self.pool.nodes.runtime().now_ns();
        let losses = LossStanding::NotKept;
        let by = Recoverer { epoch: owner.epoch, losses, first_started_ns: None };
        let first = self.wait(self.recover_many(logs, by));
        let lossy = logs.iter().zip(&first).filter(|(_, end)| matches!(end, Ok(None)));
        let lossy: Vec<LogToRecover<'_>> = lossy.map(|(log, _)| *log).collect();
        let failed =
            logs.iter().zip(&first).find_map(|(log, end)| Some((log, end.as_ref().err()?)));
        let again = match failed {
            _ if lossy.is_empty() => Vec::new(),
            Some((log, error)) => lossy.iter().map(|it| Err(waits_for(it, log, error))).collect(),
            None => self.recover_lossy(&lossy, owner, started_ns),
        };
        let mut again = again.into_iter();
        let last = |outcome: RecoveryOutcome| match outcome {
            Ok(None) => again.next().unwrap_or(Ok(None)),
            outcome => outcome,
        };
        let endless = |log: &LogToRecover<'_>| {
            Error::internal(format!(
                "log {}: its recovery has no end although its loss is kept",
                log.id
            ))
        };
        let outcomes = first.into_iter().map(last).zip(logs);
        outcomes.map(|(outcome, log)| outcome?.ok_or_else(|| endless(log))).collect()
    }

    fn open(&self, id: LogId, layout: &Layout, context: IoContext) -> Result<Arc<dyn RandomFile>> {
        let reader = self.wait(self.open_one(id, layout, context))?;
        Ok(Arc::new(reader))
    }

    /// The logs are opened and read in parallel.
    fn open_all(
        &self,
        logs: &[(LogId, &Layout)],
        context: IoContext,
    ) -> Result<Arc<dyn LogSetReader>> {
        let opened = logs.iter().map(|(id, layout)| self.open_one(*id, layout, context));
        let readers = self.wait(join_all(opened)).into_iter().collect::<Result<_>>()?;
        Ok(Arc::new(NodeLogSet::new(Arc::clone(self.pool.nodes.runtime()), readers)))
    }

    fn keep_layouts(&self, volume: VolumeId) {
        let begun = self.begun.lock();
        let of_volume = begun.logs.values().filter(|log| log.volume == volume);
        let writers: Vec<_> = of_volume.filter_map(|log| log.writer.upgrade()).collect();
        drop(begun);
        writers.iter().for_each(|writer| writer.keep_pending());
    }

    fn remove(&self, id: LogId, layout: &Layout, epoch: Epoch) -> Result<()> {
        let VolumeLog { volume, layout } = VolumeLog::decode(layout, &format!("log {id}"))?;
        // The class does not matter for a removal.
        let requests = self.requests(id, FileClass::Wal, Stamp { volume, epoch });
        let mut nodes: BTreeSet<StorageId> =
            layout.extents.iter().flat_map(|extent| extent.nodes.iter().copied()).collect();
        if let Some(writer) = self.writer(id).filter(|writer| writer.epoch() <= epoch) {
            let (newest, _) = writer.readable();
            nodes.extend(newest.extents.iter().flat_map(|extent| extent.nodes.iter().copied()));
            // No append should leave after the removal.
            writer.end(Error::not_found(format!("log {id} was removed")));
        }
        self.wait(async {
            let live = self.live_nodes().await?;
            if nodes.is_empty() {
                // A log that ended without a byte has no extents, but its nodes know it.
                nodes.extend(&live);
            }
            // Repairs make copies on nodes that the layout does not name. Those of a node that does
            // not answer are strays, which the owner releases later.
            let others = live.into_iter().filter(|node| !nodes.contains(node)).collect();
            let nodes: Vec<StorageId> = nodes.iter().copied().collect();
            self.remove_everywhere(&requests, &nodes, others).await
        })?;
        self.forget(id);
        Ok(())
    }

    fn release_volume(&self, volume: VolumeId, epoch: Epoch) -> Result<u64> {
        self.wait(self.remove_all(Stamp { volume, epoch }))
    }

    fn release_strays(
        &self,
        volume: VolumeId,
        epoch: Epoch,
        keeps: &dyn Fn(LogId) -> bool,
    ) -> Result<u64> {
        let begun_before = self.begun.lock().count;
        let stamp = Stamp { volume, epoch };
        let found = self.wait(self.list(stamp))?;
        // The owner answers without a lock of the store, because it may take a lock of its own.
        let mut strays = found;
        strays.retain(|log, _| !keeps(*log));
        {
            let mut begun = self.begun.lock();
            let is_new =
                |log: &LogId| begun.logs.get(log).is_some_and(|log| log.number > begun_before);
            strays.retain(|log, found| found.epoch <= epoch && !is_new(log));
            // Logs without a writer are recorded, or strays of this call.
            let is_needed = |log: &BegunLog| {
                log.volume != volume || log.number > begun_before || log.writer.strong_count() > 0
            };
            begun.logs.retain(|_, log| is_needed(log));
        }
        let released = self.wait(async {
            let mut released = Vec::new();
            for (log, found) in &strays {
                let requests = self.requests(*log, FileClass::Wal, stamp);
                match self.remove_from(&requests, &found.nodes).await {
                    Ok(()) => released.push(*log),
                    Err(error) if error.kind() == ErrorKind::Fenced => return Err(error),
                    Err(error) => tracing::debug!(%error, "a stray log is left for the next time"),
                }
            }
            Ok(released)
        })?;
        released.iter().for_each(|log| self.forget(*log));
        Ok(released.len() as u64)
    }
}

#[cfg(test)]
mod tests;
