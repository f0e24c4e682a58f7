//! The manifest's record of an SST, and the names of the files of a database.

use archipelago_base::{FileNo, SeqNo};

use crate::key::KeyRange;
use crate::table_content::TableContent;
use crate::value_ref::ValueRefs;

/// The record of an SST in a version. Immutable; shared by all versions that hold the file.
///
/// The bounds are user keys. `smallest` is the smallest key of a point record or start of a range
/// tombstone. `largest` is the largest key of a point record or end of a range tombstone. If a
/// range tombstone ends at `largest` and no point record lies there, `largest_exclusive` is set:
/// the file says nothing about `largest` itself.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FileMeta {
    /// Number of the file; its name is `NNNNNN.sst`.
    pub no: u64,
    /// Random id that the file's blocks are bound to.
    pub unique_id: [u8; 16],
    /// Length in bytes.
    pub size_bytes: u64,
    /// CRC-32C of the whole file.
    pub checksum: u32,
    /// Smallest user key of a point record, or start of a range tombstone.
    pub smallest: Vec<u8>,
    /// Largest user key of a point record, or end of a range tombstone.
    pub largest: Vec<u8>,
    /// Whether the file says nothing about `largest` itself, because a range tombstone ends there.
    pub largest_exclusive: bool,
    /// Smallest sequence number in the file.
    pub smallest_seq: u64,
    /// Largest sequence number in the file.
    pub largest_seq: u64,
    /// Number of point records.
    pub entries: u64,
    /// Number of point records that delete.
    pub deletions: u64,
    /// Number of range tombstones.
    pub range_deletions: u64,
    /// Bytes of user keys and values before encoding.
    pub raw_bytes: u64,
    /// Sequence number that every record of an ingested file reads as; `None` for other files.
    pub global_seq: Option<u64>,
    /// Key in the middle of the file (the median of its index keys), where a bucket would be cut.
    pub median_key: Vec<u8>,
    /// Time at which the file was written, in Unix milliseconds.
    pub created_unix_ms: u64,
    /// What a rewrite of the file could free, by reason.
    pub content: TableContent,
    /// References to separated values, by the number of the value file that the records name.
    pub refs: ValueRefs,
}

impl FileMeta {
    /// The file number as its type.
    #[must_use]
    pub fn file_no(&self) -> FileNo {
        FileNo(self.no)
    }

    /// The largest sequence number as its type.
    #[must_use]
    pub fn largest_seq(&self) -> SeqNo {
        SeqNo(self.largest_seq)
    }

    /// Whether the file may say something about `key`.
    #[inline]
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.smallest.as_slice() <= key && !self.ends_before(key)
    }

    /// Whether everything that the file says concerns keys before `key`.
    #[inline]
    #[must_use]
    pub fn ends_before(&self, key: &[u8]) -> bool {
        match self.largest.as_slice().cmp(key) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => self.largest_exclusive,
            std::cmp::Ordering::Greater => false,
        }
    }

    /// Whether the file may say something about a key of `range`.
    #[must_use]
    pub fn overlaps(&self, range: &KeyRange) -> bool {
        !self.ends_before(&range.start)
            && range.end.as_ref().is_none_or(|end| self.smallest.as_slice() < end.as_slice())
    }

    /// Whether the two files may say something about the same key.
    #[must_use]
    pub fn overlaps_file(&self, other: &Self) -> bool {
        !self.ends_before(&other.smallest) && !other.ends_before(&self.smallest)
    }

    /// Whether everything that the file says concerns keys in `range`.
    #[must_use]
    pub fn within(&self, range: &KeyRange) -> bool {
        self.smallest >= range.start
            && range.end.as_ref().is_none_or(|end| {
                self.largest < *end || (self.largest == *end && self.largest_exclusive)
            })
    }
}

/// Name of an SST.
#[must_use]
pub fn sst_name(no: FileNo) -> String {
    format!("{:06}.sst", no.0)
}

/// Name of a value file.
#[must_use]
pub fn value_file_name(no: FileNo) -> String {
    format!("{:06}.vsst", no.0)
}

/// Name of an invalid file.
#[must_use]
pub fn invalid_file_name(no: FileNo) -> String {
    format!("{:06}.inv", no.0)
}

/// Name of a log segment.
#[must_use]
pub fn log_name(no: FileNo) -> String {
    format!("{:06}.log", no.0)
}

/// Name of a manifest.
#[must_use]
pub fn manifest_name(no: FileNo) -> String {
    format!("MANIFEST-{:06}", no.0)
}

/// Name of the file with the durability marks of a manifest.
#[must_use]
pub fn mark_name(manifest: FileNo) -> String {
    format!("MARK-{:06}", manifest.0)
}

/// Name of the file that names the current manifest.
pub const CURRENT_NAME: &str = "CURRENT";
/// Name of the lock file.
pub const LOCK_NAME: &str = "LOCK";
/// Name of the file that marks a directory as a database and holds its format version.
pub const IDENTITY_NAME: &str = "IDENTITY";
/// Name of the file that occupies the reserve for a full disk; see [`crate::disk_space`].
pub const RESERVE_NAME: &str = "RESERVE";
