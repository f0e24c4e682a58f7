//! The bytes of a repair. A chunk is copied from another holder of the same bytes, or computed from
//! four chunks of RS(4,2). An extent is copied from a node that has it.
//!
//! Bytes are read and written in steps of 1 MiB, and the pause between two steps keeps the rate.
//!
//! Invariants:
//! 1. A byte is written only if the checksum that came with it, or those of all its sources, are
//!    right.
//! 2. A copy of an extent cuts no longer replica of this node.
//! 3. A source with a wrong checksum is reported to its node, and is not used any more.
//!
//! Thread-safety: functions of one task.
//! Failure: an error names the object when no source is left, or if the node cannot write.
//! Cost: one read and one write per byte of a replica; four reads and one computation with RS(4,2).

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use archipelago_base::runtime::join_all;
use archipelago_base::{Error, Result};
use archipelago_fabric::TrafficClass;

use super::super::StorageId;
use super::super::client::{CallOptions, Lane};
use super::super::code::rebuild_range;
use super::super::layout::{BlobLayout, DegradedRead, Scheme};
use super::super::placement::WritePurpose;
use super::super::wire::{
    ChunkDescriptor, ChunkId, ChunkRange, Holder, Refused, SealedExtent, Stamp, StoreMessage,
};
use super::own_node::OwnNode;

/// Bytes of one step, a multiple of the size of a piece.
const STEP_BYTES: u64 = 1 << 20;
/// Time after which a read counts as unanswered.
const READ_DEADLINE: Duration = Duration::from_secs(10);

/// A chunk that is being made.
pub(super) struct ChunkCopy<'a> {
    pub(super) node: &'a OwnNode,
    /// Descriptor of the blob, with the index of the wanted chunk.
    pub(super) descriptor: &'a ChunkDescriptor,
    /// Holders that may be read.
    pub(super) sources: Vec<Holder>,
    pub(super) bytes_per_s: u64,
}

/// The bytes of a step, and the checksums of their pieces.
struct StepBytes {
    bytes: Vec<u8>,
    crcs: Vec<u32>,
}

impl ChunkCopy<'_> {
    /// Makes all bytes of the chunk. The chunk has been begun.
    pub(super) async fn run(mut self) -> Result<()> {
        let (wanted, layout) = (self.descriptor.chunk, self.descriptor.layout());
        let len = layout.chunk_len(wanted.index);
        let mut pace = self.node.begin_pace(self.bytes_per_s);
        let mut at = 0;
        while at < len {
            let range = at..len.min(at + STEP_BYTES);
            let step = self.step(layout, &range).await?;
            self.put(at, &step)?;
            self.node.pace(&mut pace, range.end - at).await;
            at = range.end;
        }
        Ok(())
    }

    async fn step(&mut self, layout: BlobLayout, range: &Range<u64>) -> Result<StepBytes> {
        let wanted = self.descriptor.chunk;
        loop {
            // A holder of the same bytes costs one read, with RS(4,2) as well.
            let same = self.sources.iter().find(|source| source.chunk == wanted.index).copied();
            if let Some(source) = same {
                match self.read(source, range).await {
                    Ok(step) => return Ok(step),
                    Err(error) => self.give_up(source, &error),
                }
                continue;
            }
            let readable: BTreeSet<u8> = self.sources.iter().map(|source| source.chunk).collect();
            let readable: Vec<u8> = readable.into_iter().collect();
            let plan = match layout.scheme {
                Scheme::Replicas(_) => None,
                Scheme::Rs42(_) => layout.degraded(wanted.index, range.clone(), &readable),
            };
            let plan = plan.ok_or_else(|| {
                Error::busy(format!("chunk {wanted}: too few holders answer with whole bytes"))
            })?;
            if let Some(bytes) = self.rebuild(&plan).await? {
                let crcs = wanted.checksums().piece_crcs(range.start, &bytes);
                return Ok(StepBytes { bytes, crcs });
            }
        }
    }

    fn give_up(&mut self, source: Holder, error: &Error) {
        tracing::debug!(%error, node = %source.storage, chunk = %self.descriptor.chunk, "a repair reads elsewhere");
        self.sources.retain(|it| it.storage != source.storage);
    }

    /// Computes a range from four other chunks. `None` if a source failed, which is not used again.
    async fn rebuild(&mut self, plan: &DegradedRead) -> Result<Option<Vec<u8>>> {
        let mut sources = Vec::new();
        for source in &plan.sources {
            let holder = self.sources.iter().find(|it| it.chunk == source.chunk).copied();
            sources.push((source, holder));
        }
        let this = &*self;
        let reads = sources.iter().map(|(source, holder)| async move {
            match holder {
                Some(holder) if !source.stored.is_empty() => {
                    Some((*holder, this.read(*holder, &source.covering).await))
                }
                _ => None,
            }
        });
        let answers = join_all(reads).await;
        let mut stored: Vec<Vec<u8>> = Vec::new();
        let mut failed = Vec::new();
        for ((source, _), answer) in sources.iter().zip(answers) {
            let len = (source.stored.end - source.stored.start) as usize;
            match answer {
                None => stored.push(Vec::new()),
                Some((_, Ok(mut step))) => {
                    step.bytes.truncate(len);
                    stored.push(step.bytes);
                }
                Some((holder, Err(error))) => failed.push((holder, error)),
            }
        }
        if !failed.is_empty() {
            failed.iter().for_each(|(holder, error)| self.give_up(*holder, error));
            return Ok(None);
        }
        let stored: Vec<&[u8]> = stored.iter().map(Vec::as_slice).collect();
        Ok(Some(rebuild_range(&self.node.code, plan, &stored)?))
    }

    /// Reads whole pieces of a holder's chunk, and checks them.
    async fn read(&self, source: Holder, range: &Range<u64>) -> Result<StepBytes> {
        let chunk = ChunkId { blob: self.descriptor.chunk.blob, index: source.chunk };
        let ranges = vec![ChunkRange { start: range.start, end: range.end }];
        let request = StoreMessage::ReadChunk { chunk, ranges };
        let how = CallOptions::new(TrafficClass::Compaction, READ_DEADLINE)
            .payload_max((range.end - range.start) as usize);
        let client = &self.node.client;
        let answer = client.ask(source.storage, Lane::Bulk, &request, how).await?;
        let StoreMessage::ChunkBytes { crcs } = answer.message else {
            return Err(answer.unexpected(format!("chunk {chunk}")));
        };
        let bytes = answer.payload.to_vec();
        if bytes.len() as u64 != range.end - range.start {
            return Err(Error::busy(format!("chunk {chunk}: the answer has another length")));
        }
        if let Some(offset) = chunk.checksums().first_damaged_piece(range.start, &bytes, &crcs) {
            let report = StoreMessage::ReportDamage { chunk, offset };
            let reported = client.ask(source.storage, Lane::Bulk, &report, how).await;
            if let Err(error) = reported {
                tracing::debug!(%error, %chunk, "damage was not reported; the scrub finds it");
            }
            return Err(Error::busy(format!("chunk {chunk}: the piece at {offset} is damaged")));
        }
        Ok(StepBytes { bytes, crcs })
    }

    fn put(&self, offset: u64, step: &StepBytes) -> Result<()> {
        let request = StoreMessage::PutChunk {
            chunk: self.descriptor.chunk,
            stamp: None,
            class: self.descriptor.class,
            purpose: WritePurpose::Repair,
            offset,
            crcs: step.crcs.clone(),
        };
        self.node.ask(request, &step.bytes).map(|_| ())
    }
}

/// Copies a sealed extent to this node, and seals it. Returns the refusal of a node that keeps a
/// longer replica of its own.
pub(super) async fn copy_extent(
    node: &OwnNode,
    extent: &SealedExtent,
    sources: &[StorageId],
    bytes_per_s: u64,
) -> Result<Option<Refused>> {
    let SealedExtent { at, volume, class, start: extent_start, end } = *extent;
    let stamp = Stamp { volume, epoch: node.host.promised_epoch(volume) };
    let mut pace = node.begin_pace(bytes_per_s);
    let mut start = extent_start;
    while start < end {
        let bytes = read_extent(node, extent, sources, start).await?;
        let request = StoreMessage::PutLog { at, stamp, class, extent_start, start };
        if let Some(refused) = node.ask_copy(request, &bytes, end)? {
            return Ok(Some(refused));
        }
        node.pace(&mut pace, bytes.len() as u64).await;
        start += bytes.len() as u64;
    }
    node.ask_copy(StoreMessage::SealLog { at, stamp, class, extent_start, end }, &[], end)
}

/// Reads bytes of an extent from the first source that has some.
async fn read_extent(
    node: &OwnNode,
    extent: &SealedExtent,
    sources: &[StorageId],
    start: u64,
) -> Result<Vec<u8>> {
    let end = extent.end.min(start + STEP_BYTES);
    let request = StoreMessage::ReadLog { at: extent.at, start, end };
    let how = CallOptions::new(TrafficClass::Compaction, READ_DEADLINE)
        .payload_max((end - start) as usize);
    let mut last = Error::busy(format!("extent {}: no node that answers has it", extent.at));
    for source in sources {
        match node.client.ask(*source, Lane::Bulk, &request, how).await {
            Ok(answer) if answer.payload.is_empty() => {}
            Ok(answer) => return Ok(answer.payload.to_vec()),
            Err(error) => last = error,
        }
    }
    Err(last)
}
