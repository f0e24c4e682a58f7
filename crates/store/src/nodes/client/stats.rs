//! Counters of a client: calls by node and class of traffic, their times, and events of its drivers
//! by class of file and node. `operations.rs` has the times of the operations of drivers. Drivers
//! that decide by the speed of a node keep times of their own.
//!
//! Invariant: no counter shrinks. Calls in flight are a gauge.
//!
//! Thread-safety: any thread may count and read.
//! Cost: a call costs eight relaxed additions. An event takes a short lock, because events are
//! rare.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::metrics::{Counters, Distribution, Histogram, Summary};
use archipelago_env::FileClass;
use archipelago_fabric::TrafficClass;
use parking_lot::Mutex;

use super::super::StorageId;
use super::super::wire::StoreMessage;
use super::operations::{OperationHistograms, OperationTimes, StoreOperation};

/// An event of a driver beyond its usual calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoreEvent {
    /// A read was sent to a second source, because the first one was slow.
    HedgedRead,
    /// A read was answered from other cells of its stripe.
    DegradedRead,
    /// Bytes from a node did not have their checksums.
    DamagedPiece,
    /// A request was sent again after a failure.
    Retry,
    /// A node of a blob that was being written was replaced.
    ReplacedNode,
    /// A log went on in a new extent, because a replica failed or was too far behind.
    NewExtent,
    /// A log was recovered.
    RecoveredLog,
    /// A blob got three replicas instead of RS(4,2).
    CodingDebt,
    /// A blob or an extent got fewer replicas than it should have.
    CopyDebt,
}

impl StoreEvent {
    /// All kinds of events.
    pub const ALL: [Self; 9] = [
        Self::HedgedRead,
        Self::DegradedRead,
        Self::DamagedPiece,
        Self::Retry,
        Self::ReplacedNode,
        Self::NewExtent,
        Self::RecoveredLog,
        Self::CodingDebt,
        Self::CopyDebt,
    ];

    /// Name of the event in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HedgedRead => "hedged_reads",
            Self::DegradedRead => "degraded_reads",
            Self::DamagedPiece => "damaged_pieces",
            Self::Retry => "retries",
            Self::ReplacedNode => "replaced_nodes",
            Self::NewExtent => "new_extents",
            Self::RecoveredLog => "recovered_logs",
            Self::CodingDebt => "coding_debts",
            Self::CopyDebt => "copy_debts",
        }
    }
}

/// Requests whose times are comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A read of a chunk.
    Read,
    /// A piece of a chunk, or an append.
    Write,
    /// Any other request.
    Other,
}

impl CallKind {
    pub(super) fn of(message: &StoreMessage) -> Self {
        match message {
            StoreMessage::ReadChunk { .. } => Self::Read,
            StoreMessage::PutChunk { .. } | StoreMessage::Append { .. } => Self::Write,
            _ => Self::Other,
        }
    }
}

/// End of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEnd {
    /// The call ended with an answer of this length.
    Answered(u64),
    /// The call ended with a refusal.
    Refused,
    /// The call ended without an answer.
    Unanswered,
}

const CALLS: usize = 0;
const SENT_BYTES: usize = 1;
const RECEIVED_BYTES: usize = 2;
const REFUSED: usize = 3;
const UNANSWERED: usize = 4;
/// Number of counters of a class.
const PER_CLASS: usize = 5;
const CLASSES: usize = TrafficClass::ALL.len();

/// The calls to one node: counters by class of traffic, and times of answered calls by kind.
#[derive(Debug, Default)]
pub(super) struct NodeCalls {
    counters: Counters<{ PER_CLASS * CLASSES }>,
    in_flight: AtomicU64,
    read_ns: Histogram,
    write_ns: Histogram,
}

fn class_index(class: TrafficClass) -> usize {
    match class {
        TrafficClass::Log => 0,
        TrafficClass::Foreground => 1,
        TrafficClass::Flush => 2,
        TrafficClass::Compaction => 3,
        TrafficClass::Gc => 4,
    }
}

impl NodeCalls {
    pub(super) fn sent(&self, class: TrafficClass, bytes: u64) {
        let first = class_index(class) * PER_CLASS;
        self.counters.add(first + CALLS, 1);
        self.counters.add(first + SENT_BYTES, bytes);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a call is not in flight any more, with or without an answer.
    pub(super) fn left(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes the time of an answered call.
    pub(super) fn took(&self, kind: CallKind, time_ns: u64) {
        match kind {
            CallKind::Read => self.read_ns.record(time_ns),
            CallKind::Write => self.write_ns.record(time_ns),
            CallKind::Other => {}
        }
    }

    pub(super) fn ended(&self, class: TrafficClass, end: CallEnd) {
        let first = class_index(class) * PER_CLASS;
        match end {
            CallEnd::Answered(bytes) => self.counters.add(first + RECEIVED_BYTES, bytes),
            CallEnd::Refused => self.counters.add(first + REFUSED, 1),
            CallEnd::Unanswered => self.counters.add(first + UNANSWERED, 1),
        }
    }

    fn of(&self, storage: StorageId, class: TrafficClass) -> NodeCallCounts {
        let get = |counter| self.counters.get(class_index(class) * PER_CLASS + counter);
        NodeCallCounts {
            storage,
            class,
            calls: get(CALLS),
            sent_bytes: get(SENT_BYTES),
            received_bytes: get(RECEIVED_BYTES),
            refused: get(REFUSED),
            unanswered: get(UNANSWERED),
        }
    }
}

/// Calls to a node in a class of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCallCounts {
    /// Node that was called.
    pub storage: StorageId,
    /// Class of the traffic.
    pub class: TrafficClass,
    /// Requests that were sent.
    pub calls: u64,
    /// Bytes of the requests.
    pub sent_bytes: u64,
    /// Bytes of the answers.
    pub received_bytes: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests without an answer.
    pub unanswered: u64,
}

/// Calls in flight to a node, and times of the answered ones.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeCallTimes {
    /// Node that was called.
    pub storage: StorageId,
    /// Calls that the node has not answered.
    pub in_flight: u64,
    /// Times of reads of chunks, in nanoseconds.
    pub read_ns: Summary,
    /// Times of pieces of chunks and of appends to logs, in nanoseconds.
    pub write_ns: Summary,
    /// Times of reads by powers of two of a nanosecond.
    pub reads: Distribution,
    /// Times of pieces and appends by powers of two of a nanosecond.
    pub writes: Distribution,
}

/// Occurrences of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventCount {
    /// Kind of the event.
    pub event: StoreEvent,
    /// Class of the file.
    pub class: FileClass,
    /// Node that caused it; `None` if no single node did.
    pub storage: Option<StorageId>,
    /// Number of occurrences.
    pub count: u64,
}

/// The counters at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatsSnapshot {
    /// Calls by node and class. Pairs without calls have no entry.
    pub calls: Vec<NodeCallCounts>,
    /// Times of the calls to each node.
    pub times: Vec<NodeCallTimes>,
    /// Events by kind, class and node. Combinations that did not occur have no entry.
    pub events: Vec<EventCount>,
    /// Times of operations by kind, class and redundancy. Those that did not occur have no entry.
    pub operations: Vec<OperationTimes>,
}

impl StatsSnapshot {
    /// Occurrences of `event` for all classes and nodes.
    #[must_use]
    pub fn of(&self, event: StoreEvent) -> u64 {
        self.events.iter().filter(|count| count.event == event).map(|count| count.count).sum()
    }
}

/// Event, number of the class, and node.
type EventKey = (StoreEvent, u8, Option<StorageId>);

/// The counters of a client.
#[derive(Debug, Default)]
pub struct ClientStats {
    nodes: Mutex<BTreeMap<StorageId, Arc<NodeCalls>>>,
    events: Mutex<BTreeMap<EventKey, u64>>,
    operations: OperationHistograms,
}

impl ClientStats {
    /// Counts an event that no single node caused.
    pub fn count(&self, event: StoreEvent, class: FileClass) {
        *self.events.lock().entry((event, class.code(), None)).or_default() += 1;
    }

    /// Counts an event that `storage` caused.
    pub fn count_at(&self, event: StoreEvent, class: FileClass, storage: StorageId) {
        *self.events.lock().entry((event, class.code(), Some(storage))).or_default() += 1;
    }

    /// Notes the time of an operation of a driver that succeeded.
    pub fn took(&self, operation: StoreOperation, time_ns: u64) {
        self.operations.record(operation, time_ns);
    }

    /// The counters of calls to `storage`.
    pub(super) fn node(&self, storage: StorageId) -> Arc<NodeCalls> {
        Arc::clone(self.nodes.lock().entry(storage).or_default())
    }

    /// The counters now.
    #[must_use]
    pub fn snapshot(&self) -> StatsSnapshot {
        let nodes: Vec<_> =
            self.nodes.lock().iter().map(|(id, calls)| (*id, Arc::clone(calls))).collect();
        let calls = nodes
            .iter()
            .flat_map(|(storage, calls)| TrafficClass::ALL.map(|class| calls.of(*storage, class)));
        let times = nodes.iter().map(|(storage, calls)| {
            let (read_ns, write_ns) = (calls.read_ns.summary(), calls.write_ns.summary());
            let (reads, writes) = (calls.read_ns.distribution(), calls.write_ns.distribution());
            let in_flight = calls.in_flight.load(Ordering::Relaxed);
            NodeCallTimes { storage: *storage, in_flight, read_ns, write_ns, reads, writes }
        });
        let events = self.events.lock();
        let events = events.iter().filter_map(|(key, count)| {
            let (event, code, storage) = *key;
            let class = FileClass::from_code(code)?;
            Some(EventCount { event, class, storage, count: *count })
        });
        StatsSnapshot {
            calls: calls.filter(|counts| counts.calls > 0).collect(),
            times: times.collect(),
            events: events.collect(),
            operations: self.operations.all(),
        }
    }
}

#[cfg(test)]
mod tests {
    use archipelago_env::FileClass;
    use archipelago_fabric::TrafficClass;

    use super::super::super::StorageId;
    use super::{CallEnd, CallKind, ClientStats, StoreEvent};

    #[test]
    fn snapshot_has_calls_by_node_and_class() {
        let stats = ClientStats::default();
        for class in TrafficClass::ALL {
            stats.node(StorageId(1)).sent(class, 10);
        }
        let node = stats.node(StorageId(2));
        node.sent(TrafficClass::Gc, 5);
        node.ended(TrafficClass::Gc, CallEnd::Answered(70));
        node.took(CallKind::Read, 4000);
        node.sent(TrafficClass::Gc, 5);
        node.ended(TrafficClass::Gc, CallEnd::Refused);
        node.sent(TrafficClass::Gc, 5);
        node.ended(TrafficClass::Gc, CallEnd::Unanswered);
        let snapshot = stats.snapshot();
        let longest: Vec<_> = snapshot.times.iter().map(|times| times.read_ns.max).collect();
        assert_eq!(longest, [0, 4000]);
        assert_eq!(snapshot.times.iter().map(|times| times.in_flight).sum::<u64>(), 8);
        let calls = snapshot.calls;
        assert_eq!(calls.len(), 6);
        let gc = calls[5];
        assert_eq!((gc.storage, gc.class), (StorageId(2), TrafficClass::Gc));
        assert_eq!((gc.calls, gc.sent_bytes, gc.received_bytes), (3, 15, 70));
        assert_eq!((gc.refused, gc.unanswered), (1, 1));
    }

    #[test]
    fn snapshot_has_events_by_class_and_node() {
        let stats = ClientStats::default();
        stats.count(StoreEvent::DegradedRead, FileClass::ValueSst);
        stats.count_at(StoreEvent::HedgedRead, FileClass::Sst, StorageId(3));
        stats.count_at(StoreEvent::HedgedRead, FileClass::Sst, StorageId(3));
        stats.count_at(StoreEvent::HedgedRead, FileClass::ValueSst, StorageId(3));
        let snapshot = stats.snapshot();
        assert_eq!(snapshot.of(StoreEvent::HedgedRead), 3);
        assert_eq!(snapshot.of(StoreEvent::DegradedRead), 1);
        assert_eq!(snapshot.events.len(), 3);
    }

    #[test]
    fn every_event_has_its_own_name() {
        let names: std::collections::BTreeSet<_> =
            StoreEvent::ALL.iter().map(|event| event.name()).collect();
        assert_eq!(names.len(), StoreEvent::ALL.len());
    }
}
