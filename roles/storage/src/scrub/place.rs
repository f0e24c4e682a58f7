//! The place of a round of the scrub, as the metadata keep it. `docs/formats/storage-node.md` has
//! the byte table.
//!
//! The module consists of plain values. Failure: a record of another version is refused.

use archipelago_base::codec::{Reader, put_u8};
use archipelago_base::wire::Wire;
use archipelago_base::{Error, Result, wire_enum, wire_struct};
use archipelago_store::nodes::wire::{ChunkId, ExtentAt, ScrubStatus};

/// Version of the record.
const VERSION: u8 = 2;

/// Kind of the objects that a round visits now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ScrubStage {
    /// No round is running.
    #[default]
    Idle,
    /// The round visits chunks.
    Chunks,
    /// The round visits extents.
    Extents,
}
wire_enum!(ScrubStage { Idle = 0, Chunks = 1, Extents = 2 });

/// The present or last round, and how far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScrubRecord {
    /// Number of rounds that ended.
    pub(crate) rounds: u64,
    /// Time at which the round began, in milliseconds since the Unix epoch; 0 before the first one.
    pub(crate) began_ms: u64,
    /// Kind of the objects that the round visits now.
    pub(crate) stage: ScrubStage,
    /// The last chunk that was checked.
    pub(crate) chunk_done: Option<ChunkId>,
    /// The chunk that is being checked.
    pub(crate) chunk_current: Option<ChunkId>,
    /// Offset of its next piece.
    pub(crate) chunk_offset: u64,
    /// The last extent that was checked.
    pub(crate) extent_done: Option<ExtentAt>,
    /// The extent that is being checked.
    pub(crate) extent_current: Option<ExtentAt>,
    /// Offset, in the log, of its next byte.
    pub(crate) extent_offset: u64,
    /// Bytes that the round has read.
    pub(crate) read_bytes: u64,
    /// Bytes of all chunks and extents when the round began.
    pub(crate) total_bytes: u64,
    /// Number of chunks and extents with damage.
    pub(crate) damaged_chunks: u64,
    /// Number of chunks and extents that could not be read, for another reason than damage.
    pub(crate) unread: u64,
}
wire_struct!(ScrubRecord {
    rounds,
    began_ms,
    stage,
    chunk_done,
    chunk_current,
    chunk_offset,
    extent_done,
    extent_current,
    extent_offset,
    read_bytes,
    total_bytes,
    damaged_chunks,
    unread,
});

impl ScrubRecord {
    /// The value of the record.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(160);
        put_u8(&mut out, VERSION);
        self.put(&mut out);
        out
    }

    /// Reads the value of the record. Errors: `Unsupported` for another version.
    pub(crate) fn decode(value: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(value);
        let is_known = reader.u8() == Some(VERSION);
        let record = if is_known { Self::get(&mut reader) } else { None };
        record.filter(|_| reader.is_empty()).ok_or_else(|| {
            Error::unsupported(
                "the place of the scrub cannot be read; a program of another version wrote it",
            )
        })
    }

    /// Begins a round.
    pub(crate) fn begin(&mut self, now_ms: u64, total_bytes: u64) {
        let stage = ScrubStage::Chunks;
        *self =
            Self { rounds: self.rounds, began_ms: now_ms, stage, total_bytes, ..Self::default() };
    }

    /// Notes that a chunk is checked, or set aside.
    pub(crate) fn end_chunk(&mut self, chunk: ChunkId) {
        self.chunk_done = Some(chunk);
        self.chunk_current = None;
        self.chunk_offset = 0;
    }

    /// Notes that an extent is checked.
    pub(crate) fn end_extent(&mut self, at: ExtentAt) {
        self.extent_done = Some(at);
        self.extent_current = None;
        self.extent_offset = 0;
    }

    /// Ends the round.
    pub(crate) fn end_round(&mut self) {
        self.stage = ScrubStage::Idle;
        self.rounds += 1;
    }

    /// The progress as reports have it.
    pub(crate) fn status(&self) -> ScrubStatus {
        ScrubStatus {
            rounds: self.rounds,
            is_running: self.stage != ScrubStage::Idle,
            read_bytes: self.read_bytes,
            total_bytes: self.total_bytes,
            damaged_chunks: self.damaged_chunks,
            unread: self.unread,
        }
    }
}

#[cfg(test)]
mod tests {
    use archipelago_store::{BlobId, LogId};

    use super::*;

    #[test]
    fn golden_bytes_of_a_place_do_not_change() {
        let chunk = ChunkId { blob: BlobId([0xb1; 16]), index: 2 };
        let at = ExtentAt { log: LogId([0x1c; 16]), extent: 3 };
        let record = ScrubRecord {
            rounds: 1,
            began_ms: 2,
            stage: ScrubStage::Extents,
            chunk_done: Some(chunk),
            chunk_current: None,
            chunk_offset: 4,
            extent_done: None,
            extent_current: Some(at),
            extent_offset: 5,
            read_bytes: 6,
            total_bytes: 7,
            damaged_chunks: 8,
            unread: 9,
        };
        let word = |number: u8| format!("{number:02x}00000000000000");
        let golden = [
            "02".to_owned(),
            word(1),
            word(2),
            "02".to_owned(),
            format!("01{}02", "b1".repeat(16)),
            "00".to_owned(),
            word(4),
            "00".to_owned(),
            format!("01{}03000000", "1c".repeat(16)),
            word(5),
            word(6),
            word(7),
            word(8),
            word(9),
        ];
        let bytes = record.encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden.concat());
        assert_eq!(ScrubRecord::decode(&bytes).unwrap(), record);
        assert!(ScrubRecord::decode(&bytes[1..]).is_err());
    }
}
