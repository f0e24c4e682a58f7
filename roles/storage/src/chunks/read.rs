//! Reads of ranges of a chunk, with the checksums of the whole pieces that cover them.
//!
//! The node does not compare bytes and checksums. The client compares them after the whole
//! transfer, and reports damage ([`Chunks::check_report`]).

use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{IoContext, IoPurpose, OpenOptions, RandomFile};
use archipelago_store::nodes::layout::PIECE_BYTES;
use archipelago_store::nodes::wire::envelope::PAYLOAD_BYTES_MAX;
use archipelago_store::nodes::wire::{ChunkId, ChunkRange, RefusalWhy, StoreMessage};

use super::damage::is_damage;
use super::index::{ChunkEntry, Presence};
use super::open_files::OpenChunk;
use super::unsealed::UnsealedChunk;
use super::{Chunks, file};
use crate::answer::{Answer, Outcome, Refusal};

impl Chunks {
    /// Reads ranges of a chunk, sealed or not.
    pub(super) fn read(&self, chunk: ChunkId, ranges: &[ChunkRange]) -> Outcome {
        let (open, context) = match self.unsealed.get(chunk) {
            Some(unsealed) => match self.open_unsealed(&unsealed)? {
                Some(open) => open,
                // It was sealed or given up meanwhile.
                None => self.open_sealed(chunk)?,
            },
            None => self.open_sealed(chunk)?,
        };
        let covering = covering(chunk, ranges, open.data_bytes)?;
        let bytes = covering.iter().map(|range| (range.end - range.start) as usize).sum();
        let mut payload = vec![0; bytes];
        let mut crcs = Vec::with_capacity(file::pieces(bytes as u64) as usize + ranges.len());
        let mut requests = Vec::with_capacity(covering.len());
        let mut rest = &mut payload[..];
        for range in &covering {
            let (buf, after) = rest.split_at_mut((range.end - range.start) as usize);
            requests.push((range.start, buf));
            rest = after;
            crcs.extend_from_slice(open.crcs(range.start, range.end));
        }
        open.file.read_many(&mut requests, context)?;
        self.parts.counters.note_read(context.class, payload.len() as u64);
        Ok(Answer { message: StoreMessage::ChunkBytes { crcs }, payload })
    }

    /// The open file of a sealed chunk, and the context of its reads.
    fn open_sealed(&self, chunk: ChunkId) -> Result<(Arc<OpenChunk>, IoContext), Refusal> {
        let entry = self.index.lock().get(chunk).cloned();
        let not_there = || {
            let text = format!("chunk {chunk} is not on this node");
            Refusal::new(RefusalWhy::NotThere, text)
        };
        let entry = entry.ok_or_else(not_there)?;
        match entry.presence {
            Presence::Whole => {}
            Presence::Missing | Presence::Removed => return Err(not_there()),
            Presence::Damaged => {
                return Err(Refusal::new(
                    RefusalWhy::Damaged,
                    format!("chunk {chunk} is damaged on this node, and a repair must replace it"),
                ));
            }
        }
        let context = IoContext::new(entry.class, IoPurpose::ForegroundRead);
        if let Some(open) = self.files.get(chunk) {
            return Ok((open, context));
        }
        match self.open_file(chunk, &entry, context) {
            Ok(open) => {
                self.files.keep(chunk, Arc::clone(&open));
                // A chunk that was removed meanwhile must not stay open.
                if self.index.lock().get(chunk).is_none_or(|now| now.presence != Presence::Whole) {
                    self.files.forget(chunk);
                }
                Ok((open, context))
            }
            Err(error) => {
                if is_damage(&error) {
                    self.set_aside(chunk, &error)?;
                } else if error.kind() == ErrorKind::NotFound {
                    self.lose(chunk, &error);
                }
                Err(error.into())
            }
        }
    }

    /// Opens the file of a sealed chunk, and reads and checks its tail.
    pub(super) fn open_file(
        &self,
        chunk: ChunkId,
        entry: &ChunkEntry,
        context: IoContext,
    ) -> Result<Arc<OpenChunk>> {
        let (_, path) = self.file_of(chunk, entry).ok_or_else(|| {
            Error::not_found(format!("chunk {chunk}: its device {} is missing", entry.device))
        })?;
        let file = self.fs().open(&path, context, OpenOptions::default())?;
        let tail = file::read_tail(&path, &*file, chunk, context)?;
        if tail.descriptor.chunk_bytes() != entry.data_bytes {
            let what = format!("chunk {chunk}: the file and the metadata have different lengths");
            return Err(Error::corrupt(&path, 0, what));
        }
        Ok(Arc::new(OpenChunk { file, crcs: tail.crcs, data_bytes: entry.data_bytes }))
    }

    /// The present bytes of an unsealed chunk; `None` if its writing has ended.
    fn open_unsealed(
        &self,
        unsealed: &UnsealedChunk,
    ) -> Result<Option<(Arc<OpenChunk>, IoContext)>, Refusal> {
        let context = IoContext::new(unsealed.class, IoPurpose::Maintenance);
        let mut writing = unsealed.writing.lock();
        if writing.end.is_some() {
            return Ok(None);
        }
        let Some(writer) = &mut writing.file else {
            let text = format!("chunk {} has no bytes yet", unsealed.chunk);
            return Err(Refusal::new(RefusalWhy::OutOfOrder { len: 0 }, text));
        };
        writer.flush()?;
        let file: Arc<dyn RandomFile> =
            self.fs().open(&unsealed.path, context, OpenOptions::default())?;
        let (crcs, data_bytes) = (writing.crcs.clone(), writing.len_bytes);
        Ok(Some((Arc::new(OpenChunk { file, crcs, data_bytes }), context)))
    }
}

/// The whole pieces that cover each range. Refused if a range is empty or ends behind the chunk, or
/// if the answer would be too long.
fn covering(
    chunk: ChunkId,
    ranges: &[ChunkRange],
    data_bytes: u64,
) -> Result<Vec<ChunkRange>, Refusal> {
    let malformed = |text| Refusal::new(RefusalWhy::Malformed, text);
    let mut covering = Vec::with_capacity(ranges.len());
    let mut bytes = 0;
    for range in ranges {
        if range.start >= range.end || range.end > data_bytes {
            let (start, end) = (range.start, range.end);
            return Err(malformed(format!(
                "chunk {chunk} has {data_bytes} bytes, and the range {start}..{end} is empty or \
                 ends behind them"
            )));
        }
        let start = range.start / PIECE_BYTES * PIECE_BYTES;
        let end = range.end.next_multiple_of(PIECE_BYTES).min(data_bytes);
        covering.push(ChunkRange { start, end });
        bytes += end - start;
        if bytes > PAYLOAD_BYTES_MAX as u64 {
            return Err(malformed(format!(
                "chunk {chunk}: an answer has at most {PAYLOAD_BYTES_MAX} bytes: read less"
            )));
        }
    }
    Ok(covering)
}
