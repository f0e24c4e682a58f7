//! Blobs on storage nodes: the driver that implements [`BlobStore`] over the client of a cluster.
//!
//! A blob lies in chunks on nodes of distinct domains: three replicas, or four data and two parity
//! chunks (Terark-DS §4.2). Chunks describe themselves, so no component keeps a map of blobs. The
//! namespace has a hint of the holders, and any holder corrects it.
//!
//! | module | purpose |
//! | --- | --- |
//! | `writer` | pipelined writes to all nodes of a blob, replacement of nodes, seal |
//! | `reader` | reads of ranges, over changes of the holders |
//! | `fetch` | one chunk: least loaded holder, hedges, degraded reads, checksums, damage |
//! | `plan` | requests for many ranges; pure |
//! | `lookup`, `hint` | holders of a blob |
//! | `retention` | retain, release, strays |
//! | `load` | load and usual times of nodes |
//! | `hedges` | how many requests hedges may add |
//! | `chunk_nodes`, `client_nodes` | the calls to nodes as a trait, and over the network |
//! | `core`, `in_flight`, `stats` | what the others share |
//!
//! Invariants:
//! 1. A blob whose seal returned is durable on all its holders. It survives the loss of any two
//!    nodes. If the pool has fewer domains, it survives the loss of all but one of its replicas.
//! 2. No byte is returned whose piece does not have its checksum, which is bound to blob, chunk and
//!    offset.
//! 3. All chunks of a blob are in distinct domains. If the pool has too few, the blob has fewer
//!    chunks, and the difference is counted.
//! 4. Every write carries the epoch of the volume's owner.
//!
//! Thread-safety: any thread may call a store or a reader. Calls block their thread on the runtime,
//! so tasks of the runtime must not make them. Outside a simulation, the calling thread runs it.
//! Failure: the driver retries, replaces nodes and reads elsewhere before it reports an error.
//! `Fenced` ends a writer immediately.
//! Cost: a create sends nothing. The modules of the other calls state their round trips.

mod chunk_nodes;
mod client_nodes;
mod core;
mod fetch;
mod hedges;
mod hint;
mod in_flight;
mod load;
mod lookup;
mod plan;
mod reader;
mod retention;
mod stats;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::budget::ByteBudget;
use archipelago_base::runtime::{Runtime, wait_for};
use archipelago_base::{Epoch, Result};
use archipelago_env::{FileClass, IoContext, WriterRoom};

use self::chunk_nodes::ChunkNodes;
use self::client_nodes::ClientNodes;
use self::core::BlobsCore;
use self::reader::NodeBlobReader;
use self::writer::NodeBlobWriter;
use super::client::NodeClient;
use super::layout::{DATA_CHUNKS, PARITY_CHUNKS, REPLICAS, Redundancy, RedundancyMode, Scheme};
use super::placement::{NodeReport, WritePurpose};
use super::wire::Stamp;
use crate::blob::{BlobOptions, BlobReader, BlobRef, BlobStore, BlobWriter};
use crate::ids::{BlobId, VolumeId};

pub use self::stats::BlobStats;

/// Fullness of nodes, in per cent, from which writers are slowed down.
const WRITERS_SLOWED_PERCENT: u64 = 90;
/// Fullness of nodes, in per cent, at which writers are slowest. Nodes refuse ingestion there.
const WRITERS_END_PERCENT: u64 = percent_of(WritePurpose::Ingestion);
/// Fullness of nodes, in per cent, at which they refuse jobs.
const JOBS_END_PERCENT: u64 = percent_of(WritePurpose::Job);

const fn percent_of(purpose: WritePurpose) -> u64 {
    match purpose.fullness_max_percent() {
        Some(percent) => percent,
        None => 100,
    }
}

archipelago_base::fault_switches! {
    /// Steps of the driver of blobs that a checker leaves out, to prove that it notices.
    BlobSabotage {
        /// A seal returns when one chunk is durable.
        early_seal,
        /// A reader does not compare bytes with their checksums.
        no_client_crc,
    }
}

/// Deadlines of the driver of blobs, and the times at which it hedges or replaces a node.
#[derive(Clone, Copy, Debug)]
pub struct BlobTiming {
    /// Time after which a write to a node, or a seal, counts as unanswered. Default: 10 s.
    pub write_deadline: Duration,
    /// Time after which a read from a node counts as unanswered. Default: 5 s.
    pub read_deadline: Duration,
    /// Time for which a read repeats its requests to nodes that do not answer. Default: 10 s.
    pub read_give_up: Duration,
    /// Time below which no write is late. A node is replaced if most of the others have answered,
    /// and it takes longer than this and than twice its usual time. The replacement copies the
    /// earlier part of a chunk, which takes longer than a short pause of a node or of the client's
    /// own card. Default: 1 s.
    pub slow_min: Duration,
    /// Time after which a read is hedged if the usual time of the node is not known. Default:
    /// 50 ms.
    pub hedge_first: Duration,
    /// Time below which no read is hedged. Default: 1 ms.
    pub hedge_min: Duration,
}

impl Default for BlobTiming {
    fn default() -> Self {
        Self {
            write_deadline: Duration::from_secs(10),
            read_deadline: Duration::from_secs(5),
            read_give_up: Duration::from_secs(10),
            slow_min: Duration::from_secs(1),
            hedge_first: Duration::from_millis(50),
            hedge_min: Duration::from_millis(1),
        }
    }
}

/// Options of the driver of blobs.
#[derive(Clone, Debug)]
pub struct BlobsOptions {
    /// Classes of files that are coded. Default: value files.
    pub mode: RedundancyMode,
    /// Fewest replicas of a blob: 2, or 1 for a trial on one node. Default: 2.
    pub copies_min: u8,
    /// Budget that is charged with the memory of writers. Default: one without a limit.
    pub budget: Arc<ByteBudget>,
    /// Times of calls. Default: those of [`BlobTiming`].
    pub timing: BlobTiming,
    /// Steps that a checker leaves out. Default: none.
    pub sabotage: BlobSabotage,
}

impl Default for BlobsOptions {
    fn default() -> Self {
        Self {
            mode: RedundancyMode::default(),
            copies_min: 2,
            budget: ByteBudget::unlimited(),
            timing: BlobTiming::default(),
            sabotage: BlobSabotage::default(),
        }
    }
}

/// Blobs on the storage nodes of a cluster.
pub struct NodeBlobs(Arc<BlobsCore>);

impl fmt::Debug for NodeBlobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeBlobs").field("mode", &self.0.options.mode).finish_non_exhaustive()
    }
}

impl NodeBlobs {
    /// Blobs on the nodes of `client`. Sends nothing. Errors: `Internal` if the erasure code has
    /// another matrix.
    pub fn new(client: &Arc<NodeClient>, options: BlobsOptions) -> Result<Self> {
        let runtime = Arc::clone(client.runtime());
        Self::over(Arc::new(ClientNodes::new(client)), runtime, options)
    }

    fn over(
        nodes: Arc<dyn ChunkNodes>,
        runtime: Arc<dyn Runtime>,
        options: BlobsOptions,
    ) -> Result<Self> {
        Ok(Self(Arc::new(BlobsCore::new(nodes, runtime, options)?)))
    }

    /// Counters of this client for blobs. Events that concern single nodes are in the
    /// [`ClientStats`](super::client::ClientStats) of the client.
    #[must_use]
    pub fn stats(&self) -> BlobStats {
        self.0.counters.stats()
    }

    fn reports(&self) -> Vec<NodeReport> {
        wait_for(&*self.0.runtime, self.0.nodes.reports())
    }
}

impl BlobStore for NodeBlobs {
    fn create(&self, id: BlobId, options: BlobOptions) -> Result<Box<dyn BlobWriter>> {
        Ok(Box::new(NodeBlobWriter::create(&self.0, id, &options)?))
    }

    fn open(&self, blob: &BlobRef, context: IoContext) -> Result<Arc<dyn BlobReader>> {
        Ok(Arc::new(NodeBlobReader::open(&self.0, blob, context)?))
    }

    fn retain_all(&self, blobs: &[BlobRef], volume: VolumeId, epoch: Epoch) -> Result<()> {
        let stamp = Stamp { volume, epoch };
        wait_for(&*self.0.runtime, retention::retain_all(&self.0, blobs, stamp))
    }

    fn release(&self, id: BlobId, volume: VolumeId, epoch: Epoch) -> Result<()> {
        self.release_all(&[id], volume, epoch)
    }

    fn release_all(&self, ids: &[BlobId], volume: VolumeId, epoch: Epoch) -> Result<()> {
        let stamp = Stamp { volume, epoch };
        wait_for(&*self.0.runtime, retention::release_all(&self.0, ids, stamp))
    }

    fn release_volume(&self, volume: VolumeId, epoch: Epoch) -> Result<u64> {
        let stamp = Stamp { volume, epoch };
        wait_for(&*self.0.runtime, retention::release_volume(&self.0, stamp))
    }

    fn release_strays(
        &self,
        volume: VolumeId,
        epoch: Epoch,
        keeps: &dyn Fn(BlobId) -> bool,
    ) -> Result<u64> {
        let (runtime, stamp) = (&*self.0.runtime, Stamp { volume, epoch });
        let blobs = wait_for(runtime, retention::list_blobs(&self.0, stamp))?;
        // The owner answers without a lock of this crate, because it may take a lock of its own.
        let strays: Vec<BlobId> = blobs.into_iter().filter(|id| !keeps(*id)).collect();
        wait_for(runtime, retention::release_strays(&self.0, &strays, stamp))?;
        Ok(strays.len() as u64)
    }

    fn redundancy(&self, class: FileClass) -> f64 {
        let domains = room_by_domain(&self.reports(), JOBS_END_PERCENT).len();
        let wanted = self.0.options.mode.redundancy(class);
        match wanted {
            Redundancy::Coded if domains >= usize::from(DATA_CHUNKS + PARITY_CHUNKS) => {
                let chunks = f64::from(DATA_CHUNKS + PARITY_CHUNKS);
                chunks / f64::from(DATA_CHUNKS)
            }
            Redundancy::Coded | Redundancy::Replicated => f64::from(copies_in(domains)),
        }
    }

    fn free_bytes(&self) -> Result<Option<u64>> {
        let reports = self.reports();
        let domains = room_by_domain(&reports, JOBS_END_PERCENT);
        if domains.is_empty() {
            return Ok(None);
        }
        let copies = usize::from(copies_in(domains.len()));
        Ok(Some(replicated_room(domains.into_values().collect(), copies)))
    }

    fn writer_room(&self) -> Option<WriterRoom> {
        room_of_writers(&self.reports())
    }
}

/// Room of writers on nodes with these reports; `None` without a node that takes chunks.
fn room_of_writers(reports: &[NodeReport]) -> Option<WriterRoom> {
    let left = room_by_domain(reports, WRITERS_END_PERCENT);
    if left.is_empty() {
        return None;
    }
    let copies = usize::from(copies_in(left.len()));
    let slope_percent = WRITERS_END_PERCENT - WRITERS_SLOWED_PERCENT;
    let empty: Vec<NodeReport> =
        reports.iter().map(|node| NodeReport { used_bytes: 0, ..node.clone() }).collect();
    let slope = room_by_domain(&empty, slope_percent);
    Some(WriterRoom {
        left_bytes: replicated_room(left.into_values().collect(), copies),
        slowdown_bytes: replicated_room(slope.into_values().collect(), copies),
    })
}

/// Replicas of a blob in a pool with this number of domains.
fn copies_in(domains: usize) -> u8 {
    domains.clamp(1, usize::from(Scheme::Replicas(REPLICAS).chunks())) as u8
}

/// Bytes that the nodes of each domain that takes chunks have left up to this fullness.
fn room_by_domain(reports: &[NodeReport], percent: u64) -> BTreeMap<&str, u64> {
    let mut domains = BTreeMap::new();
    for node in reports.iter().filter(|node| node.is_up && !node.is_draining) {
        let limit = u128::from(node.capacity_bytes) * u128::from(percent) / 100;
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        let room: &mut u64 = domains.entry(node.domain.as_str()).or_default();
        *room = room.saturating_add(limit.saturating_sub(node.used_bytes));
    }
    domains
}

/// Bytes that fit with `copies` copies each in distinct domains with this room. A domain holds at
/// most one copy of a byte, so the largest domains may not be filled.
fn replicated_room(mut rooms: Vec<u64>, copies: usize) -> u64 {
    rooms.sort_unstable_by(|a, b| b.cmp(a));
    for unfilled in 0..copies {
        let rest = rooms.get(unfilled..).unwrap_or(&[]);
        let sum: u128 = rest.iter().map(|room| u128::from(*room)).sum();
        let bytes = u64::try_from(sum / (copies - unfilled) as u128).unwrap_or(u64::MAX);
        if rest.first().is_none_or(|largest| *largest <= bytes) {
            return bytes;
        }
    }
    0
}
