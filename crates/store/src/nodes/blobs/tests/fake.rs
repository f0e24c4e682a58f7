//! Storage nodes in memory behind [`ChunkNodes`], with a card of limited rate, and with failures
//! that a test switches on.
//!
//! A node keeps the rules of a real one: it appends in order, checks checksums and epochs, and
//! deletes a blob with its last volume.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::{Boxed, Runtime};
use archipelago_base::{Epoch, Result};
use parking_lot::Mutex;

use super::super::super::StorageId;
use super::super::super::client::ClientStats;
use super::super::super::layout::PIECE_BYTES;
use super::super::super::placement::NodeReport;
use super::super::super::wire::{BlobEntry, ChunkDescriptor, ChunkId, Stamp};
use super::super::chunk_nodes::{
    BlobList, CallTerms, Called, ChunkNodes, ChunkPieces, ChunkPut, NodeFailure,
};
use crate::ids::{BlobId, VolumeId};

/// How a node behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NodeMood {
    #[default]
    Works,
    /// It cannot be reached, and has lost its chunks that are not sealed.
    Dead,
    /// It does nothing and answers nothing.
    Stopped,
    /// It refuses new bytes.
    Full,
    /// It refuses writes for now.
    Overloaded,
}

#[derive(Clone, Debug)]
pub(super) struct FakeChunk {
    pub(super) bytes: Vec<u8>,
    pub(super) crcs: Vec<u32>,
    pub(super) writer: Stamp,
    pub(super) descriptor: Option<ChunkDescriptor>,
}

#[derive(Debug, Default)]
pub(super) struct FakeNode {
    pub(super) mood: NodeMood,
    /// Time from a request to its answer, besides that of the card.
    pub(super) delay: Duration,
    pub(super) chunks: BTreeMap<ChunkId, FakeChunk>,
    promised: BTreeMap<VolumeId, Epoch>,
    /// Number of writes and seals.
    pub(super) writes: u64,
    /// Number of requests that release blobs.
    pub(super) releases: u64,
    /// Number of the write at which the node changes its mood.
    pub(super) changes_at: Option<(u64, NodeMood)>,
    /// Number of the next requests that are lost on a link to an earlier life of the node.
    pub(super) loses: u64,
    /// Damage that a client reported.
    pub(super) reports: Vec<(ChunkId, u64)>,
    /// Time at which the last request arrived, in nanoseconds.
    arrived_ns: u64,
}

impl FakeNode {
    fn admit(&mut self, stamp: Stamp) -> Result<(), NodeFailure> {
        let promised = self.promised.entry(stamp.volume).or_default();
        if stamp.epoch < *promised {
            return Err(NodeFailure::Fenced(format!("epoch {promised} is promised")));
        }
        *promised = stamp.epoch;
        Ok(())
    }

    /// Counts a write, and changes the mood if it is time.
    fn count_write(&mut self) -> Result<(), NodeFailure> {
        if let Some((at, mood)) = self.changes_at
            && at == self.writes
        {
            self.set_mood(mood);
        }
        self.writes += 1;
        match self.mood {
            NodeMood::Works => Ok(()),
            NodeMood::Full => Err(NodeFailure::Full("the node is full".to_owned())),
            NodeMood::Overloaded => Err(NodeFailure::Busy("the queue is full".to_owned())),
            NodeMood::Dead | NodeMood::Stopped => Err(silence()),
        }
    }

    pub(super) fn set_mood(&mut self, mood: NodeMood) {
        self.mood = mood;
        if mood == NodeMood::Dead {
            self.chunks.retain(|_, chunk| chunk.descriptor.is_some());
        }
    }

    fn put(&mut self, put: &ChunkPut<'_>) -> Result<(), NodeFailure> {
        self.count_write()?;
        self.admit(put.stamp)?;
        let damaged = put.chunk.checksums().first_damaged_piece(put.offset, put.bytes, put.crcs);
        assert_eq!(damaged, None, "the writer sent wrong checksums");
        if put.offset > 0 && !self.chunks.contains_key(&put.chunk) {
            return Err(NodeFailure::NotThere);
        }
        let chunk = self.chunks.entry(put.chunk).or_insert_with(|| FakeChunk {
            bytes: Vec::new(),
            crcs: Vec::new(),
            writer: put.stamp,
            descriptor: None,
        });
        if chunk.descriptor.is_some() {
            return Err(NodeFailure::Sealed("the chunk is sealed".to_owned()));
        }
        let end = put.offset + put.bytes.len() as u64;
        let len = chunk.bytes.len() as u64;
        if end <= len {
            return Ok(());
        }
        if len != put.offset {
            return Err(NodeFailure::OutOfOrder);
        }
        chunk.bytes.extend_from_slice(put.bytes);
        chunk.crcs.extend_from_slice(put.crcs);
        Ok(())
    }

    fn seal(&mut self, stamp: Stamp, descriptor: &ChunkDescriptor) -> Result<(), NodeFailure> {
        self.count_write()?;
        self.admit(stamp)?;
        let chunk = self.chunks.get_mut(&descriptor.chunk).ok_or(NodeFailure::NotThere)?;
        assert_eq!(chunk.bytes.len() as u64, descriptor.chunk_bytes(), "a seal of a whole chunk");
        let known = chunk.descriptor.as_ref().map(|known| known.placement);
        if known.is_none_or(|known| known < descriptor.placement) {
            chunk.descriptor = Some(descriptor.clone());
        }
        Ok(())
    }

    fn read(&self, id: ChunkId, ranges: &[Range<u64>]) -> Result<ChunkPieces, NodeFailure> {
        let chunk = self.chunks.get(&id).ok_or(NodeFailure::NotThere)?;
        let mut pieces = ChunkPieces::default();
        for range in ranges {
            assert_eq!(range.start % PIECE_BYTES, 0, "reads begin at pieces");
            assert!(!range.is_empty(), "a node refuses empty ranges");
            let end = range.end as usize;
            let is_whole = range.end % PIECE_BYTES == 0 || end == chunk.bytes.len();
            assert!(is_whole && end <= chunk.bytes.len(), "{range:?} of {}", chunk.bytes.len());
            pieces.bytes.extend_from_slice(&chunk.bytes[range.start as usize..end]);
            let first = (range.start / PIECE_BYTES) as usize;
            let last = range.end.div_ceil(PIECE_BYTES) as usize;
            pieces.crcs.extend_from_slice(&chunk.crcs[first..last]);
        }
        Ok(pieces)
    }

    fn describe(&self, blob: BlobId) -> Vec<ChunkDescriptor> {
        let own = self.chunks.iter().filter(|(id, _)| id.blob == blob);
        own.filter_map(|(_, chunk)| chunk.descriptor.clone()).collect()
    }

    fn retain(&mut self, blob: BlobId, stamp: Stamp) -> Result<(), NodeFailure> {
        self.admit(stamp)?;
        let volume = stamp.volume;
        let sealed = self.chunks.iter_mut().filter(|(id, _)| id.blob == blob);
        let sealed: Vec<_> = sealed.filter_map(|(_, chunk)| chunk.descriptor.as_mut()).collect();
        if sealed.is_empty() {
            return Err(NodeFailure::NotThere);
        }
        for descriptor in sealed {
            let volumes: BTreeSet<_> =
                descriptor.retaining.iter().copied().chain([volume]).collect();
            descriptor.retaining = volumes.into_iter().collect();
        }
        Ok(())
    }

    fn release(&mut self, blobs: &[BlobId], stamp: Stamp) -> Result<(), NodeFailure> {
        self.releases += 1;
        self.admit(stamp)?;
        self.chunks.retain(|id, chunk| {
            if !blobs.contains(&id.blob) {
                return true;
            }
            match &mut chunk.descriptor {
                Some(descriptor) => {
                    descriptor.retaining.retain(|volume| *volume != stamp.volume);
                    !descriptor.retaining.is_empty()
                }
                None => chunk.writer.volume != stamp.volume,
            }
        });
        Ok(())
    }

    fn list(&self, volume: VolumeId, after: Option<BlobId>) -> BlobList {
        let belongs = |chunk: &FakeChunk| match &chunk.descriptor {
            Some(descriptor) => descriptor.retaining.contains(&volume),
            None => chunk.writer.volume == volume,
        };
        let after = |id: &ChunkId| after.is_none_or(|after| id.blob > after);
        let own = self.chunks.iter().filter(|(id, chunk)| after(id) && belongs(chunk));
        let mut blobs: Vec<BlobEntry> = own
            .map(|(id, chunk)| BlobEntry {
                blob: id.blob,
                epoch: chunk.writer.epoch,
                is_sealed: chunk.descriptor.is_some(),
            })
            .collect();
        // Small parts, so that lists are continued.
        let has_more = blobs.len() > 2;
        blobs.truncate(2);
        BlobList { blobs, has_more }
    }
}

fn silence() -> NodeFailure {
    NodeFailure::Unanswered("the node is silent".to_owned())
}

/// The nodes of a pool.
#[derive(Debug)]
pub(super) struct FakeNodes {
    runtime: Arc<dyn Runtime>,
    nodes: Mutex<BTreeMap<StorageId, FakeNode>>,
    stats: ClientStats,
    card: Mutex<FakeCard>,
    /// Nodes that the managers call down.
    down: Mutex<BTreeSet<StorageId>>,
    /// Nodes that the managers call lost for good.
    lost: Mutex<BTreeSet<StorageId>>,
}

/// The client's card, which sends one message after the other.
#[derive(Debug, Default)]
struct FakeCard {
    bytes_per_s: Option<u64>,
    free_ns: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

/// Bytes of a message without its payload: frame, envelope and fields.
const HEAD_BYTES: u64 = 150;

impl FakeNodes {
    /// Nodes 1 to `count`, each in a domain of its own.
    pub(super) fn new(runtime: Arc<dyn Runtime>, count: u64) -> Arc<Self> {
        let nodes = (1..=count).map(|id| (StorageId(id), FakeNode::default())).collect();
        Arc::new(Self {
            runtime,
            nodes: Mutex::new(nodes),
            stats: ClientStats::default(),
            card: Mutex::default(),
            down: Mutex::default(),
            lost: Mutex::default(),
        })
    }

    /// Limits the rate of the client's card.
    pub(super) fn limit_card(&self, bytes_per_s: u64) {
        self.card.lock().bytes_per_s = Some(bytes_per_s);
    }

    /// Changes or looks at a node.
    pub(super) fn node<T>(&self, id: StorageId, change: impl FnOnce(&mut FakeNode) -> T) -> T {
        change(self.nodes.lock().get_mut(&id).unwrap())
    }

    pub(super) fn ids(&self) -> Vec<StorageId> {
        self.nodes.lock().keys().copied().collect()
    }

    pub(super) fn set_mood(&self, id: StorageId, mood: NodeMood) {
        self.node(id, |node| node.set_mood(mood));
    }

    /// Lets the managers call exactly these nodes down.
    pub(super) fn set_down(&self, down: &[StorageId]) {
        *self.down.lock() = down.iter().copied().collect();
    }

    /// Lets the managers call exactly these nodes lost for good.
    pub(super) fn set_lost(&self, lost: &[StorageId]) {
        *self.lost.lock() = lost.iter().copied().collect();
    }

    /// The nodes with chunks of a blob.
    pub(super) fn holders(&self, blob: BlobId) -> Vec<(StorageId, ChunkId)> {
        let nodes = self.nodes.lock();
        let chunks = nodes.iter().flat_map(|(node, state)| {
            state.chunks.keys().filter(|id| id.blob == blob).map(|id| (*node, *id))
        });
        chunks.collect()
    }

    /// Bytes that the client sent, and bytes that it received.
    pub(super) fn traffic(&self) -> (u64, u64) {
        let card = self.card.lock();
        (card.sent_bytes, card.received_bytes)
    }

    /// Time at which a message of these bytes leaves the card.
    fn leaves_ns(&self, bytes: u64) -> u64 {
        let mut card = self.card.lock();
        card.sent_bytes += bytes;
        let start_ns = card.free_ns.max(self.runtime.now_ns());
        let takes_ns = card.bytes_per_s.map_or(1, |rate| bytes * 1_000_000_000 / rate);
        card.free_ns = start_ns + takes_ns;
        card.free_ns
    }

    /// A call: the request travels, the node handles it, and the answer travels back.
    fn call<'a, T: Send + 'a>(
        &'a self,
        to: StorageId,
        payload_bytes: u64,
        terms: CallTerms,
        handle: impl FnOnce(&mut FakeNode) -> Result<T, NodeFailure> + Send + 'a,
    ) -> Called<'a, T> {
        let leaves_ns = self.leaves_ns(payload_bytes + HEAD_BYTES);
        let delay = self.node(to, |node| node.delay);
        // Requests arrive in the order in which they were sent.
        let arrives_ns = self.node(to, |node| {
            let arrives_ns = leaves_ns + delay.as_nanos() as u64 / 2;
            node.arrived_ns = arrives_ns.max(node.arrived_ns + 1);
            node.arrived_ns
        });
        let is_lost = self.node(to, |node| {
            let is_lost = node.loses > 0;
            node.loses = node.loses.saturating_sub(1);
            is_lost
        });
        Box::pin(async move {
            if is_lost {
                self.runtime.sleep(Duration::from_micros(10)).await;
                return Err(silence());
            }
            let mood = self.node(to, |node| node.mood);
            if mood == NodeMood::Dead {
                self.runtime.sleep(Duration::from_micros(10)).await;
                return Err(NodeFailure::Unreachable("the node is dead".to_owned()));
            }
            let wait_ns = arrives_ns.saturating_sub(self.runtime.now_ns());
            self.runtime.sleep(Duration::from_nanos(wait_ns).min(terms.deadline)).await;
            let silent = |node: &FakeNode| matches!(node.mood, NodeMood::Dead | NodeMood::Stopped);
            if self.node(to, |node| silent(node)) {
                self.runtime.sleep(terms.deadline).await;
                return Err(silence());
            }
            let outcome = self.node(to, handle);
            if self.node(to, |node| silent(node)) {
                self.runtime.sleep(terms.deadline).await;
                return Err(silence());
            }
            self.runtime.sleep(delay / 2).await;
            if delay > terms.deadline {
                return Err(silence());
            }
            outcome
        })
    }
}

impl ChunkNodes for FakeNodes {
    fn stats(&self) -> &ClientStats {
        &self.stats
    }

    fn reports(&self) -> Boxed<'_, Vec<NodeReport>> {
        let down = self.down.lock().clone();
        let report = |id: StorageId| NodeReport {
            id,
            domain: format!("domain of {id}"),
            capacity_bytes: 1 << 40,
            used_bytes: 1 << 30,
            is_up: !down.contains(&id),
            is_draining: false,
        };
        let reports = self.ids().into_iter().map(report).collect();
        Box::pin(std::future::ready(reports))
    }

    fn awaited(&self) -> Boxed<'_, Result<Vec<StorageId>>> {
        let lost = self.lost.lock().clone();
        let mut awaited: Vec<StorageId> = self.ids();
        awaited.retain(|id| !lost.contains(id));
        Box::pin(async move { Ok(awaited) })
    }

    fn lost<'a>(&'a self, nodes: &'a [StorageId]) -> Boxed<'a, Vec<StorageId>> {
        let lost = self.lost.lock();
        let lost: Vec<StorageId> =
            nodes.iter().copied().filter(|node| lost.contains(node)).collect();
        Box::pin(std::future::ready(lost))
    }

    fn put<'a>(&'a self, to: StorageId, put: ChunkPut<'a>, terms: CallTerms) -> Called<'a, ()> {
        let bytes = (put.bytes.len() + 4 * put.crcs.len()) as u64;
        self.call(to, bytes, terms, move |node| node.put(&put))
    }

    fn seal<'a>(
        &'a self,
        to: StorageId,
        stamp: Stamp,
        descriptor: &'a ChunkDescriptor,
        terms: CallTerms,
    ) -> Called<'a, ()> {
        self.call(to, 200, terms, move |node| node.seal(stamp, descriptor))
    }

    fn read<'a>(
        &'a self,
        from: StorageId,
        chunk: ChunkId,
        ranges: &'a [Range<u64>],
        terms: CallTerms,
    ) -> Called<'a, ChunkPieces> {
        self.call(from, 16 * ranges.len() as u64, terms, move |node| {
            let pieces = node.read(chunk, ranges)?;
            self.card.lock().received_bytes += pieces.bytes.len() as u64;
            Ok(pieces)
        })
    }

    fn describe(
        &self,
        from: StorageId,
        blob: BlobId,
        terms: CallTerms,
    ) -> Called<'_, Vec<ChunkDescriptor>> {
        self.call(from, 0, terms, move |node| Ok(node.describe(blob)))
    }

    fn retain(
        &self,
        at: StorageId,
        blob: BlobId,
        stamp: Stamp,
        terms: CallTerms,
    ) -> Called<'_, ()> {
        self.call(at, 0, terms, move |node| node.retain(blob, stamp))
    }

    fn release<'a>(
        &'a self,
        at: StorageId,
        blobs: &'a [BlobId],
        stamp: Stamp,
        terms: CallTerms,
    ) -> Called<'a, ()> {
        self.call(at, 0, terms, move |node| node.release(blobs, stamp))
    }

    fn list(
        &self,
        at: StorageId,
        volume: VolumeId,
        after: Option<BlobId>,
        terms: CallTerms,
    ) -> Called<'_, BlobList> {
        self.call(at, 0, terms, move |node| Ok(node.list(volume, after)))
    }

    fn promise(&self, at: StorageId, stamp: Stamp, terms: CallTerms) -> Called<'_, ()> {
        self.call(at, 0, terms, move |node| node.admit(stamp))
    }

    fn abandon(
        &self,
        at: StorageId,
        blob: BlobId,
        stamp: Stamp,
        terms: CallTerms,
    ) -> Called<'_, ()> {
        self.call(at, 0, terms, move |node| {
            node.admit(stamp)?;
            node.chunks.retain(|id, chunk| id.blob != blob || chunk.descriptor.is_some());
            Ok(())
        })
    }

    fn report_damage(
        &self,
        at: StorageId,
        chunk: ChunkId,
        offset: u64,
        terms: CallTerms,
    ) -> Called<'_, ()> {
        self.call(at, 0, terms, move |node| {
            node.reports.push((chunk, offset));
            Ok(())
        })
    }
}
