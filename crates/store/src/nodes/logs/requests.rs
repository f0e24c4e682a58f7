//! The requests of a log to the nodes of its replicas, as typed calls.
//!
//! [`LogRequests`] has the identity, the stamp and the class that every request of one log carries.
//! The calls own what they need, so that a task can have several of them under way. [`LogNodes`] is
//! the network below: the client of the pool, or nodes of a test.
//!
//! Thread-safety: any thread may call any method.
//! Failure: [`LogFailure`] sorts refusals and losses by what a caller does about them.
//! Cost: a call is one round trip, and two allocations.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::{Boxed, Runtime};
use archipelago_base::{Epoch, Error, Result};
use archipelago_env::FileClass;
use archipelago_fabric::TrafficClass;

use super::super::StorageId;
use super::super::client::{ClientStats, OperationKind, StoreEvent, StoreOperation};
use super::super::layout::Redundancy;
use super::super::log::ReplicaId;
use super::super::log::quorum::ReplicaProgress;
use super::super::placement::NodeReport;
use super::super::wire::{ExtentAt, RefusalWhy, Refused, Stamp, StoreMessage};
use super::placing::Suspects;
use super::send_ring::LogBytes;
use crate::ids::{LogId, VolumeId};

/// Largest answer without a payload, in bytes.
const ANSWER_BYTES_MAX: usize = 4 << 10;
/// Bytes of one read of an extent.
pub(super) const READ_BYTES_MAX: u64 = 1 << 20;
/// Room in an answer for the message in front of its payload, in bytes.
const ANSWER_HEAD_BYTES: usize = 1 << 10;
/// Largest answer to a listing, in bytes.
const LIST_BYTES_MAX: usize = 256 << 10;

/// Reason for which a request was not fulfilled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LogFailure {
    /// The node has promised a later epoch.
    Fenced(String),
    /// The bytes of the extent end at this offset, and those of the request begin behind it.
    OtherLength(u64),
    /// The node has no such extent or log.
    NotThere(String),
    /// The node refuses, and will refuse again.
    Refused(String),
    /// The node is overloaded, or no answer came. The request may have arrived.
    Passing(String),
    /// There is no link to the node, so the request did not arrive.
    Unreachable(String),
}

impl LogFailure {
    /// The failure that `refused` means.
    pub(super) fn refused(refused: &Refused) -> Self {
        let text = refused.to_string();
        match refused.why {
            RefusalWhy::Fenced => Self::Fenced(text),
            RefusalWhy::OutOfOrder { len } => Self::OtherLength(len),
            RefusalWhy::NotThere => Self::NotThere(text),
            RefusalWhy::Busy | RefusalWhy::Standby => Self::Passing(text),
            _ => Self::Refused(text),
        }
    }

    /// Whether the same request may succeed later.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Passing(_) | Self::Unreachable(_))
    }

    /// The error for a caller, if the failure is final. `what` names the object and the request.
    pub(super) fn error(&self, what: impl fmt::Display) -> Error {
        match self {
            Self::Fenced(text) => Error::fenced(format!("{what}: {text}")),
            Self::NotThere(text) => Error::not_found(format!("{what}: {text}")),
            Self::OtherLength(_) | Self::Refused(_) | Self::Passing(_) | Self::Unreachable(_) => {
                Error::busy(format!("{what}: {self}"))
            }
        }
    }
}

impl fmt::Display for LogFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fenced(text)
            | Self::NotThere(text)
            | Self::Refused(text)
            | Self::Passing(text)
            | Self::Unreachable(text) => f.write_str(text),
            Self::OtherLength(len) => write!(f, "its bytes of the extent end at {len}"),
        }
    }
}

/// Terms on which a request of a log travels.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogCall {
    /// Class by which the network card orders it. Appends and what follows them have links of their
    /// own ([`TrafficClass::Log`]); everything else travels with bulk data.
    pub(super) class: TrafficClass,
    /// Time after which no answer is expected.
    pub(super) deadline: Duration,
    /// Limit of the answer in bytes.
    pub(super) answer_bytes_max: usize,
}

/// An answer with its payload, or the reason for which there is no answer.
pub(super) type LogAnswer = Result<(StoreMessage, Vec<u8>), LogFailure>;

/// The storage nodes, as a log needs them.
pub(super) trait LogNodes: Send + Sync + fmt::Debug + 'static {
    /// The environment of tasks and time.
    fn runtime(&self) -> &Arc<dyn Runtime>;

    /// Asks a node. The request leaves with the first poll. All requests of a log are idempotent.
    fn call(
        &self,
        to: StorageId,
        request: StoreMessage,
        payload: LogBytes,
        how: LogCall,
    ) -> Boxed<'static, LogAnswer>;

    /// The nodes of the pool, as placement needs them. Errors: `Busy` if no manager answers.
    fn reports(&self) -> Boxed<'static, Result<Vec<NodeReport>>>;

    /// Those of `nodes` that are lost, as far as this process knows.
    fn lost(&self, nodes: &[StorageId]) -> Vec<StorageId>;

    /// The nodes whose answers a removal of everything needs: those that are not lost for good.
    /// Errors: `Busy` if no manager answers, or if the manager may not know all nodes yet.
    fn awaited(&self) -> Boxed<'static, Result<Vec<StorageId>>> {
        let reports = self.reports();
        Box::pin(async move { Ok(reports.await?.iter().map(|report| report.id).collect()) })
    }

    /// The counters of the client; `None` for nodes of a test.
    fn stats(&self) -> Option<&ClientStats> {
        None
    }
}

/// The place of bytes in a replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct WritePlace {
    pub(super) to: ReplicaId,
    /// Offset in the log at which the extent begins.
    pub(super) extent_start: u64,
    /// Offset in the log of the first byte.
    pub(super) start: u64,
}

/// State of an extent on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplicaFound {
    /// Offset after the longest prefix with valid checksums; 0 without any byte.
    pub(super) valid_end: u64,
    /// Offset through which it was synced.
    pub(super) synced: u64,
    /// Whether the extent was sealed.
    pub(super) is_sealed: bool,
    /// Whether the node may have lost unsynced bytes of it.
    pub(super) is_in_limbo: bool,
    /// Whether the node has lost bytes that were synced, so that its length proves nothing.
    pub(super) is_damaged: bool,
}

/// The nodes of a pool, and what all logs of a store know about them.
#[derive(Clone, Debug)]
pub(super) struct LogPool {
    pub(super) nodes: Arc<dyn LogNodes>,
    pub(super) suspects: Arc<Suspects>,
    /// Time after which no answer is expected.
    pub(super) deadline: Duration,
}

/// The requests of one log under one epoch.
#[derive(Clone, Debug)]
pub(super) struct LogRequests {
    nodes: Arc<dyn LogNodes>,
    suspects: Arc<Suspects>,
    pub(super) log: LogId,
    pub(super) stamp: Stamp,
    pub(super) class: FileClass,
    deadline: Duration,
}

/// The result of a call, which owns what it needs.
pub(super) type LogPromise<T> = Boxed<'static, Result<T, LogFailure>>;

impl LogRequests {
    /// Requests to the nodes of `pool`.
    pub(super) fn new(pool: &LogPool, log: LogId, stamp: Stamp, class: FileClass) -> Self {
        let LogPool { nodes, suspects, deadline } = pool.clone();
        Self { nodes, suspects, log, stamp, class, deadline }
    }

    /// The nodes that failed lately.
    pub(super) fn suspects(&self) -> &Suspects {
        &self.suspects
    }

    /// Notes that a node failed.
    pub(super) fn suspect(&self, node: StorageId) {
        self.suspects.note(node, self.runtime().now_ns());
    }

    /// Counts an event of this log.
    pub(super) fn count(&self, event: StoreEvent) {
        if let Some(stats) = self.nodes.stats() {
            stats.count(event, self.class);
        }
    }

    /// Notes the time of an operation of this log that succeeded.
    pub(super) fn took(&self, kind: OperationKind, time_ns: u64) {
        if let Some(stats) = self.nodes.stats() {
            let (class, redundancy) = (self.class, Redundancy::Replicated);
            stats.took(StoreOperation { kind, class, redundancy }, time_ns);
        }
    }

    pub(super) fn nodes(&self) -> &Arc<dyn LogNodes> {
        &self.nodes
    }

    pub(super) fn runtime(&self) -> &Arc<dyn Runtime> {
        self.nodes.runtime()
    }

    fn at(&self, extent: u32) -> ExtentAt {
        ExtentAt { log: self.log, extent }
    }

    fn writing(&self) -> LogCall {
        let (class, deadline) = (TrafficClass::Log, self.deadline);
        LogCall { class, deadline, answer_bytes_max: ANSWER_BYTES_MAX }
    }

    fn copying(&self) -> LogCall {
        LogCall { class: TrafficClass::Compaction, ..self.writing() }
    }

    fn reading(&self) -> LogCall {
        LogCall { class: TrafficClass::Foreground, ..self.writing() }
    }

    fn progress(
        &self,
        to: ReplicaId,
        request: StoreMessage,
        payload: LogBytes,
        how: LogCall,
    ) -> LogPromise<ReplicaProgress> {
        let call = self.nodes.call(to.node, request, payload, how);
        Box::pin(async move {
            match call.await? {
                (StoreMessage::Progress { written, synced }, _) => {
                    Ok(ReplicaProgress { written, synced })
                }
                (other, _) => Err(unexpected(&other)),
            }
        })
    }

    /// Appends `bytes` to a replica.
    pub(super) fn append(
        &self,
        place: WritePlace,
        is_synced: bool,
        bytes: LogBytes,
    ) -> LogPromise<ReplicaProgress> {
        let WritePlace { to, extent_start, start } = place;
        let (at, stamp, class) = (self.at(to.extent), self.stamp, self.class);
        let request = StoreMessage::Append { at, stamp, class, extent_start, start, is_synced };
        self.progress(to, request, bytes, self.writing())
    }

    /// Syncs a replica.
    pub(super) fn sync(&self, to: ReplicaId) -> LogPromise<ReplicaProgress> {
        let request = StoreMessage::SyncLog { at: self.at(to.extent), stamp: self.stamp };
        self.progress(to, request, LogBytes::empty(), self.writing())
    }

    /// Ends a replica at `end`, which syncs it.
    pub(super) fn seal(
        &self,
        to: ReplicaId,
        extent_start: u64,
        end: u64,
    ) -> LogPromise<ReplicaProgress> {
        let (at, stamp, class) = (self.at(to.extent), self.stamp, self.class);
        let request = StoreMessage::SealLog { at, stamp, class, extent_start, end };
        self.progress(to, request, LogBytes::empty(), self.writing())
    }

    /// Reads the state of an extent on a node. With `is_fencing` the node promises the epoch before
    /// it answers.
    pub(super) fn inspect(&self, replica: ReplicaId, is_fencing: bool) -> LogPromise<ReplicaFound> {
        let (at, stamp) = (self.at(replica.extent), self.stamp);
        let request = match is_fencing {
            true => StoreMessage::FenceLog { at, stamp },
            false => StoreMessage::InspectLog { at },
        };
        let call = self.nodes.call(replica.node, request, LogBytes::empty(), self.writing());
        Box::pin(async move {
            match call.await? {
                (StoreMessage::ReplicaIs { valid_end, synced, sealed, is_in_limbo }, _) => {
                    let (is_sealed, is_damaged) = (sealed.is_some(), false);
                    Ok(ReplicaFound { valid_end, synced, is_sealed, is_in_limbo, is_damaged })
                }
                (StoreMessage::ReplicaDamaged { valid_end, synced, sealed }, _) => {
                    let (is_in_limbo, is_damaged) = (true, true);
                    let is_sealed = sealed.is_some();
                    Ok(ReplicaFound { valid_end, synced, is_sealed, is_in_limbo, is_damaged })
                }
                (other, _) => Err(unexpected(&other)),
            }
        })
    }

    /// Reads a range of an extent, of at most [`READ_BYTES_MAX`] bytes. The answer has fewer bytes
    /// if the node has fewer.
    pub(super) fn read(&self, replica: ReplicaId, range: Range<u64>) -> LogPromise<Vec<u8>> {
        let (at, Range { start, end }) = (self.at(replica.extent), range);
        let answer_bytes_max = (end - start) as usize + ANSWER_HEAD_BYTES;
        let how = LogCall { answer_bytes_max, ..self.reading() };
        let request = StoreMessage::ReadLog { at, start, end };
        let call = self.nodes.call(replica.node, request, LogBytes::empty(), how);
        Box::pin(async move {
            match call.await? {
                (StoreMessage::LogBytes {}, bytes) => Ok(bytes),
                (other, _) => Err(unexpected(&other)),
            }
        })
    }

    /// Writes `bytes` at the place. They replace everything that the replica has from there on.
    pub(super) fn put(&self, place: WritePlace, bytes: LogBytes) -> LogPromise<ReplicaProgress> {
        let WritePlace { to, extent_start, start } = place;
        let (at, stamp, class) = (self.at(to.extent), self.stamp, self.class);
        let request = StoreMessage::PutLog { at, stamp, class, extent_start, start };
        self.progress(to, request, bytes, self.copying())
    }

    /// Removes all extents of the log from a node.
    pub(super) fn remove(&self, node: StorageId) -> LogPromise<()> {
        let request = StoreMessage::RemoveLog { log: self.log, stamp: self.stamp };
        done(self.nodes.call(node, request, LogBytes::empty(), self.reading()))
    }

    /// Whether a node has an extent of the log.
    pub(super) fn is_known(&self, node: StorageId) -> LogPromise<bool> {
        let (log, volume) = (self.log, self.stamp.volume);
        let page = list_page(&self.nodes, node, volume, before(log), self.reading());
        Box::pin(async move { Ok(page.await?.0.first().is_some_and(|(found, _)| *found == log)) })
    }
}

/// Identity directly before `log`. A list that continues behind it begins with `log`.
fn before(log: LogId) -> Option<LogId> {
    u128::from_be_bytes(log.0).checked_sub(1).map(|before| LogId(before.to_be_bytes()))
}

fn unexpected(answer: &StoreMessage) -> LogFailure {
    LogFailure::Refused(format!("it gave the answer {}, which does not fit", answer.name()))
}

fn done(call: Boxed<'static, LogAnswer>) -> LogPromise<()> {
    Box::pin(async move {
        match call.await? {
            (StoreMessage::Done {}, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    })
}

/// Logs and the largest epochs under which their extents were created, and whether more follow.
type LogPage = (Vec<(LogId, Epoch)>, bool);

fn list_page(
    nodes: &Arc<dyn LogNodes>,
    node: StorageId,
    volume: VolumeId,
    after: Option<LogId>,
    how: LogCall,
) -> LogPromise<LogPage> {
    let how = LogCall { answer_bytes_max: LIST_BYTES_MAX, ..how };
    let request = StoreMessage::ListLogs { volume, after };
    let call = nodes.call(node, request, LogBytes::empty(), how);
    Box::pin(async move {
        match call.await? {
            (StoreMessage::Logs { logs, has_more }, _) => {
                Ok((logs.iter().map(|entry| (entry.log, entry.epoch)).collect(), has_more))
            }
            (other, _) => Err(unexpected(&other)),
        }
    })
}

/// Has a node promise the epoch of `stamp`, and returns the logs that it has of the volume.
pub(super) fn promise_and_list(
    pool: &LogPool,
    node: StorageId,
    stamp: Stamp,
) -> LogPromise<Vec<(LogId, Epoch)>> {
    let (nodes, deadline) = (Arc::clone(&pool.nodes), pool.deadline);
    let answer_bytes_max = ANSWER_BYTES_MAX;
    let how = LogCall { class: TrafficClass::Foreground, deadline, answer_bytes_max };
    Box::pin(async move {
        let request = StoreMessage::PromiseEpoch { stamp };
        done(nodes.call(node, request, LogBytes::empty(), how)).await?;
        let mut all: Vec<(LogId, Epoch)> = Vec::new();
        loop {
            let after = all.last().map(|(log, _)| *log);
            let (page, has_more) = list_page(&nodes, node, stamp.volume, after, how).await?;
            let is_end = page.is_empty() || !has_more;
            all.extend(page);
            if is_end {
                return Ok(all);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_begins_with_the_log_in_question() {
        let log = |last| LogId([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, last]);
        assert_eq!(before(log(5)), Some(log(4)));
        assert_eq!(before(LogId([0; 16])), None);
        let mut borrowed = log(255);
        borrowed.0[14] = 0;
        assert_eq!(before(log(0)), Some(borrowed));
    }

    #[test]
    fn failures_are_sorted_by_what_a_caller_does() {
        let of = |why| LogFailure::refused(&Refused::new(why, ""));
        assert!(matches!(of(RefusalWhy::Fenced), LogFailure::Fenced(_)));
        assert_eq!(of(RefusalWhy::OutOfOrder { len: 7 }), LogFailure::OtherLength(7));
        assert!(matches!(of(RefusalWhy::Busy), LogFailure::Passing(_)));
        for why in [RefusalWhy::InLimbo, RefusalWhy::Sealed, RefusalWhy::Full, RefusalWhy::Failed] {
            assert!(matches!(of(why), LogFailure::Refused(_)), "{why:?}");
        }
    }
}
