//! Counters of the driver of blobs.
//!
//! A [`NodeBlobs`](super::NodeBlobs) owns one [`BlobCounters`], and [`BlobStats`] is what they have
//! counted at one moment. Events that concern single nodes are in the counters of the client
//! ([`StoreEvent`](super::super::client::StoreEvent)): hedges, degraded reads, damage, replaced
//! nodes and debts. The client also has the times of whole reads, of writes to a node and of seals
//! ([`StoreOperation`](super::super::client::StoreOperation)).
//!
//! Thread-safety: any thread may count and read.
//! Failure: none.
//! Cost: a relaxed atomic addition per count.

use archipelago_base::metrics::{Counters, Histogram, Summary};
use archipelago_env::FileClass;

/// Number of classes of files.
const CLASSES: usize = 5;

/// An event that is counted, in the order of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlobEvent {
    /// A blob with replicas was sealed.
    SealedReplicated,
    /// A blob with RS(4,2) was sealed.
    SealedCoded,
    /// A writer failed.
    GivenUp,
    /// Bytes of chunks that were sent to nodes.
    PutBytes,
    /// Bytes of chunks that were written to replacements of nodes.
    RebuiltBytes,
    /// A request for ranges of a chunk.
    ReadRequest,
    /// Bytes of chunks that nodes answered with.
    FetchedBytes,
    /// After a hedge, another source answered first.
    HedgeWon,
    /// A reader asked nodes for the holders of a blob.
    StaleHint,
    /// A blob was released.
    Release,
    /// A stray was released.
    StrayReleased,
}

const EVENTS: usize = BlobEvent::StrayReleased as usize + 1;

/// Way in which a range was read, for the times of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadWay {
    /// From a replica.
    Replica,
    /// From the chunk that has the range.
    Cell,
    /// From other chunks.
    Degraded,
}

/// The counters of a client.
#[derive(Debug, Default)]
pub(super) struct BlobCounters {
    events: Counters<EVENTS>,
    /// Bytes of users by class: written, then read.
    bytes: Counters<{ 2 * CLASSES }>,
    read_ns: [Histogram; 3],
}

impl BlobCounters {
    pub(super) fn count(&self, event: BlobEvent) {
        self.add(event, 1);
    }

    pub(super) fn add(&self, event: BlobEvent, value: u64) {
        self.events.add(event as usize, value);
    }

    /// Counts bytes that a user wrote.
    pub(super) fn written(&self, class: FileClass, bytes: u64) {
        self.bytes.add(class_index(class), bytes);
    }

    /// Counts bytes that a user read.
    pub(super) fn read(&self, class: FileClass, bytes: u64) {
        self.bytes.add(CLASSES + class_index(class), bytes);
    }

    /// Notes the time of a read.
    pub(super) fn read_took(&self, way: ReadWay, time_ns: u64) {
        self.read_ns[way as usize].record(time_ns);
    }

    /// All counters at this moment.
    pub(super) fn stats(&self) -> BlobStats {
        let event = |event: BlobEvent| self.events.get(event as usize);
        let class = |first: usize| {
            CLASSES_IN_ORDER.map(|class| (class, self.bytes.get(first + class_index(class))))
        };
        BlobStats {
            sealed_replicated: event(BlobEvent::SealedReplicated),
            sealed_coded: event(BlobEvent::SealedCoded),
            given_up: event(BlobEvent::GivenUp),
            put_bytes: event(BlobEvent::PutBytes),
            rebuilt_bytes: event(BlobEvent::RebuiltBytes),
            read_requests: event(BlobEvent::ReadRequest),
            fetched_bytes: event(BlobEvent::FetchedBytes),
            hedges_won: event(BlobEvent::HedgeWon),
            stale_hints: event(BlobEvent::StaleHint),
            releases: event(BlobEvent::Release),
            strays_released: event(BlobEvent::StrayReleased),
            written_bytes: class(0),
            read_bytes: class(CLASSES),
            replica_read_ns: self.read_ns[ReadWay::Replica as usize].summary(),
            cell_read_ns: self.read_ns[ReadWay::Cell as usize].summary(),
            degraded_read_ns: self.read_ns[ReadWay::Degraded as usize].summary(),
        }
    }
}

const CLASSES_IN_ORDER: [FileClass; CLASSES] =
    [FileClass::Wal, FileClass::Sst, FileClass::Manifest, FileClass::Other, FileClass::ValueSst];

fn class_index(class: FileClass) -> usize {
    usize::from(class.code()) - 1
}

/// Counters of a client for blobs on storage nodes, since the client was opened.
#[derive(Clone, Copy, Debug)]
pub struct BlobStats {
    /// Number of blobs with replicas that were sealed.
    pub sealed_replicated: u64,
    /// Number of blobs with RS(4,2) that were sealed.
    pub sealed_coded: u64,
    /// Number of blobs whose writers failed.
    pub given_up: u64,
    /// Bytes of chunks that were sent to nodes.
    pub put_bytes: u64,
    /// Bytes of chunks that writers copied or rebuilt for replacements.
    pub rebuilt_bytes: u64,
    /// Number of requests for ranges of a chunk.
    pub read_requests: u64,
    /// Bytes of chunks that nodes answered with.
    pub fetched_bytes: u64,
    /// Number of hedged reads that another source answered first.
    pub hedges_won: u64,
    /// Number of times that a reader asked nodes for the holders of a blob.
    pub stale_hints: u64,
    /// Number of blobs that were released.
    pub releases: u64,
    /// Number of strays that were released.
    pub strays_released: u64,
    /// Bytes that users wrote, by class.
    pub written_bytes: [(FileClass, u64); CLASSES],
    /// Bytes that users read, by class.
    pub read_bytes: [(FileClass, u64); CLASSES],
    /// Times, in nanoseconds, of reads from a replica.
    pub replica_read_ns: Summary,
    /// Times, in nanoseconds, of reads from the chunk that has the range.
    pub cell_read_ns: Summary,
    /// Times, in nanoseconds, of reads from other chunks.
    pub degraded_read_ns: Summary,
}
