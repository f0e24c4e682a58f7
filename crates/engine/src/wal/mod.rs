//! The write-ahead log: what makes an acknowledged write survive.
//!
//! - [`batch`]: [`WriteBatch`], the operations of one atomic write, and their encoding;
//! - [`record`]: a batch in the log: header, checksums, the segment's header;
//! - [`writer`]: [`LogWriter`], the open segment, and [`LogSyncer`], which makes it durable;
//! - `segment`: a segment before it is open ([`PreparedSegment`]) and after ([`RetiredSegment`]);
//! - `retained`: records of a buffered log that may have to be appended again;
//! - [`reader`]: recovery of one segment and of a chain of segments;
//! - `salvage`: every whole record of a damaged segment, for a repair.
//!
//! The log is a chain of segments, each a file of its own, numbered upwards. How an append is
//! made to survive `kill -9` is the file system's affair
//! ([`archipelago_env::FileSystem::create_log`]). The format is in `docs/formats/wal.md`.
//!
//! Invariants: 1. a record is written once all earlier ones are; 2. a record never spans
//! segments; 3. a segment's *incarnation* is never used twice, and every checksum is bound to it
//! and to the record's place, so that bytes left by an earlier use of the file never pass;
//! 4. a segment becomes durable only after every earlier one; 5. a segment's header says how long
//! the one before it was, so that a lost end is seen; 6. a closed segment ends with a record that
//! names the next one, written once that exists, so that a lost last segment is seen.
//!
//! Cost of an append: one header of 28 bytes, one CRC over 36 bytes under the commit lock (the
//! payload's is computed outside), one `LogFile::append`; no allocation.

pub mod batch;
pub mod reader;
pub mod record;
mod retained;
mod salvage;
mod segment;
mod source;
#[cfg(test)]
mod tests;
pub mod writer;

pub(crate) use batch::BatchMark;
pub use batch::{BatchOp, BatchView, WriteBatch};
pub use reader::{
    End, LogChain, ReadRequest, RecoveredLog, SegmentEnd, SegmentFile, read_header, read_segment,
    recover, recover_beside,
};
pub use record::{
    Entry, ManifestPosition, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentRef,
    payload_crc,
};
pub use salvage::{BatchVisitor, LogGap, SalvageLimits, SegmentSalvage, salvage_segment};
pub use segment::{LostRecords, PreparedSegment, RetiredSegment};
pub use writer::{Appended, Closed, Durable, LogConfig, LogSyncer, LogWriter, Unacknowledged};
