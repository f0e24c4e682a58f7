//! State that the writers, the readers and the store of one client share.
//!
//! Invariant: a blob has at most one writer in this process.
//!
//! Thread-safety: any thread may use it. The lock of `writers` is not held over an await.
//! Failure: none of its own.
//! Cost: a map lookup per writer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::runtime::Runtime;
use archipelago_base::{Error, Result};
use archipelago_env::IoPurpose;
use archipelago_fabric::TrafficClass;
use parking_lot::Mutex;

use super::super::StorageId;
use super::super::client::StoreOperation;
use super::super::code::Rs42;
use super::super::placement::NodeReport;
use super::BlobsOptions;
use super::chunk_nodes::{ChunkNodes, NodeFailure};
use super::hedges::HedgeBudget;
use super::load::NodeLoads;
use super::retention::MissedReleases;
use super::stats::BlobCounters;
use super::writer::BlobWrite;
use crate::ids::BlobId;

/// Time after which a node that could not be reached may get new chunks again, if the managers say
/// that it is up.
const UNREACHABLE: Duration = Duration::from_secs(5);

/// State that the writers, the readers and the store of one client share.
#[derive(Debug)]
pub(super) struct BlobsCore {
    pub(super) nodes: Arc<dyn ChunkNodes>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) code: Rs42,
    pub(super) options: BlobsOptions,
    pub(super) loads: NodeLoads,
    pub(super) hedges: HedgeBudget,
    pub(super) counters: BlobCounters,
    pub(super) missed: MissedReleases,
    /// Blobs that this process writes.
    writers: Mutex<BTreeMap<BlobId, Weak<BlobWrite>>>,
    turn: AtomicU64,
}

impl BlobsCore {
    pub(super) fn new(
        nodes: Arc<dyn ChunkNodes>,
        runtime: Arc<dyn Runtime>,
        options: BlobsOptions,
    ) -> Result<Self> {
        Ok(Self {
            nodes,
            runtime,
            code: Rs42::new()?,
            options,
            loads: NodeLoads::default(),
            hedges: HedgeBudget::default(),
            counters: BlobCounters::default(),
            missed: MissedReleases::default(),
            writers: Mutex::default(),
            turn: AtomicU64::new(0),
        })
    }

    /// Notes the time of an operation that began at `begun_ns` and succeeded now.
    pub(super) fn operation_took(&self, operation: StoreOperation, begun_ns: u64) {
        let time_ns = self.runtime.now_ns().saturating_sub(begun_ns);
        self.nodes.stats().took(operation, time_ns);
    }

    /// A number that differs from call to call, which decides between equal nodes.
    pub(super) fn next_turn(&self) -> u64 {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// The nodes for placement. Nodes that this client could not reach lately are down.
    pub(super) async fn reports(&self) -> Vec<NodeReport> {
        let mut reports = self.nodes.reports().await;
        for report in &mut reports {
            report.is_up &= !self.is_unreachable(report.id);
        }
        reports
    }

    /// Whether this client could not reach the node lately.
    pub(super) fn is_unreachable(&self, node: StorageId) -> bool {
        let now_ns = self.runtime.now_ns();
        let since_ns = self.loads.of(node).unreachable_since_ns();
        let is_recent = |since_ns| now_ns.saturating_sub(since_ns) < UNREACHABLE.as_nanos() as u64;
        since_ns.is_some_and(is_recent)
    }

    /// Notes a failed call. A node that cannot be reached, or does not answer for long, gets no new
    /// chunks for a while. A link that has just broken says nothing about the node.
    pub(super) fn note_failure(&self, node: StorageId, failure: &NodeFailure, call: CallTime) {
        let now_ns = self.runtime.now_ns();
        let is_long = call.is_long(now_ns);
        let is_silent = match failure {
            NodeFailure::Unreachable(_) => true,
            NodeFailure::Unanswered(_) => is_long,
            _ => false,
        };
        if is_silent {
            self.loads.of(node).note_unreachable(now_ns);
        }
    }

    /// Whether reads ask this node last: calls to it are late, or it could not be reached lately.
    pub(super) fn is_avoided(&self, node: StorageId) -> bool {
        self.loads.of(node).is_late() || self.is_unreachable(node)
    }

    /// Notes the writer of a blob. Errors: `InvalidArgument` if the blob has one.
    pub(super) fn register(&self, id: BlobId, write: &Arc<BlobWrite>) -> Result<()> {
        let mut writers = self.writers.lock();
        if writers.contains_key(&id) {
            return Err(Error::invalid(format!(
                "{} is being written; choose a new identity for each blob",
                blob_name(id)
            )));
        }
        writers.insert(id, Arc::downgrade(write));
        Ok(())
    }

    /// Forgets the writer of a blob.
    pub(super) fn unregister(&self, id: BlobId) {
        self.writers.lock().remove(&id);
    }

    /// The writer of a blob, if this process writes it.
    pub(super) fn writer(&self, id: BlobId) -> Option<Arc<BlobWrite>> {
        self.writers.lock().get(&id)?.upgrade()
    }

    /// All blobs that this process writes.
    pub(super) fn writers(&self) -> Vec<(BlobId, Arc<BlobWrite>)> {
        let writers = self.writers.lock();
        writers.iter().filter_map(|(id, write)| Some((*id, write.upgrade()?))).collect()
    }
}

/// When a call began, and its deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallTime {
    pub(super) begun_ns: u64,
    pub(super) deadline: Duration,
}

impl CallTime {
    /// Whether most of the deadline has passed.
    pub(super) fn is_long(self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.begun_ns) >= self.deadline.as_nanos() as u64 / 2
    }
}

/// Name of a blob in errors.
pub(super) fn blob_name(id: BlobId) -> String {
    format!("blob {id}")
}

/// Class by which the client's card orders messages of this purpose.
pub(super) fn traffic_class(purpose: IoPurpose) -> TrafficClass {
    match purpose {
        IoPurpose::ForegroundRead | IoPurpose::ForegroundWrite | IoPurpose::Recovery => {
            TrafficClass::Foreground
        }
        IoPurpose::Flush => TrafficClass::Flush,
        IoPurpose::Compaction { .. } | IoPurpose::Ingest | IoPurpose::Maintenance => {
            TrafficClass::Compaction
        }
        IoPurpose::Gc => TrafficClass::Gc,
    }
}
