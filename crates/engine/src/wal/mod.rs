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
//! The log is a chain of segments, each a file of its own, numbered upwards. The file system makes
//! an append survive `kill -9` ([`archipelago_env::FileSystem::create_log`]). `docs/formats/wal.md`
//! has the format.
//!
//! Invariants:
//! 1. A record is written after all earlier ones.
//! 2. A record never spans segments.
//! 3. A segment's *incarnation* is never used twice. Every checksum is bound to it and to the
//!    record's offset, so that bytes of an earlier use of the file never pass.
//! 4. A segment becomes durable only after every earlier one.
//! 5. A segment's header states the length of the previous one, so that a lost end is noticed.
//! 6. A closed segment ends with a record that names the next one, written once that exists. So a
//!    lost last segment is noticed.
//!
//! Cost: an append is one header of 28 bytes, one CRC over 36 bytes under the commit lock (the
//! payload's is computed outside), and one `LogFile::append`. It allocates nothing.

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
pub(crate) use writer::check_payload_len;
pub use writer::{Appended, Closed, Durable, LogConfig, LogSyncer, LogWriter, Unacknowledged};
