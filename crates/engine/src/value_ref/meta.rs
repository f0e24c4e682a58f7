//! Metadata of value files and of references to them, as manifests and job messages carry it.

use archipelago_base::FileNo;
use serde::{Deserialize, Serialize};

use crate::key::KeyRange;

/// Bytes that follow each stored value in a value file: its compression and its checksum.
pub const VALUE_TRAILER_BYTES: u64 = 5;

/// References of one table to one value file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueRef {
    /// Number of the value file that the records name. A version resolves it to the file that
    /// holds the values now.
    pub no: u64,
    /// Number of records that reference the file.
    pub records: u64,
    /// Bytes of the referenced value records, their trailers included, so that the sum compares
    /// with the bytes of a value area.
    pub bytes: u64,
}

/// References of one table to value files, ascending by number. Each number occurs once, with at
/// least one record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueRefs(Vec<ValueRef>);

impl ValueRefs {
    /// Makes the references of a table from `refs`. `None` if they are not ascending by number, if
    /// a number has no record, or if a sum overflows.
    #[must_use]
    pub fn new(refs: Vec<ValueRef>) -> Option<Self> {
        let ascending = refs.windows(2).all(|pair| pair[0].no < pair[1].no);
        let is_sound = |at: &ValueRef| {
            at.records > 0 && at.records.checked_mul(VALUE_TRAILER_BYTES) <= Some(at.bytes)
        };
        let sum = |part: fn(&ValueRef) -> u64| {
            refs.iter().try_fold(0_u64, |sum, at| sum.checked_add(part(at)))
        };
        let sums = sum(|at| at.records).zip(sum(|at| at.bytes));
        (ascending && refs.iter().all(is_sound) && sums.is_some()).then_some(Self(refs))
    }

    /// Counts one record that references `stored_bytes` of payload in value file `no`. Costs a
    /// binary search, and a move of later entries when the number is new.
    pub fn add(&mut self, no: u64, stored_bytes: u64) {
        let bytes = stored_bytes + VALUE_TRAILER_BYTES;
        match self.0.binary_search_by_key(&no, |at| at.no) {
            Ok(at) => {
                self.0[at].records += 1;
                self.0[at].bytes += bytes;
            }
            Err(at) => self.0.insert(at, ValueRef { no, records: 1, bytes }),
        }
    }

    /// The references by value file, ascending by number.
    #[must_use]
    pub fn by_file(&self) -> &[ValueRef] {
        &self.0
    }

    /// Whether no record references a value file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of records that reference a value file.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.0.iter().map(|at| at.records).sum()
    }

    /// Bytes of all referenced value records, their trailers included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|at| at.bytes).sum()
    }
}

/// The record of a value file in a version. Immutable; all versions that hold the file share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueFileMeta {
    /// Number of the file; its name is `NNNNNN.vsst`.
    pub no: u64,
    /// Random id that the file's value records and blocks are bound to.
    pub unique_id: [u8; 16],
    /// Length in bytes.
    pub size_bytes: u64,
    /// CRC-32C of the whole file.
    pub checksum: u32,
    /// Offset of the first key block, which is the length of the value area.
    pub keys_offset: u64,
    /// Smallest user key.
    pub smallest: Vec<u8>,
    /// Largest user key.
    pub largest: Vec<u8>,
    /// Smallest sequence number in the file.
    pub smallest_seq: u64,
    /// Largest sequence number in the file.
    pub largest_seq: u64,
    /// Number of value records; at least one.
    pub records: u64,
    /// Time at which the file was written, in Unix milliseconds.
    pub created_unix_ms: u64,
    /// Counter of invalid files of the version on which a garbage collection job based validity; 0
    /// for a file that a flush or compaction wrote.
    pub basis: u64,
}

impl ValueFileMeta {
    /// The file number as its type.
    #[must_use]
    pub fn file_no(&self) -> FileNo {
        FileNo(self.no)
    }

    /// Bytes of the value area: of all value records, their trailers included.
    #[must_use]
    pub fn value_bytes(&self) -> u64 {
        self.keys_offset
    }

    /// Bytes after the value area: keys, index, properties and footer.
    #[must_use]
    pub fn keys_bytes(&self) -> u64 {
        self.size_bytes - self.keys_offset
    }

    /// Whether the file may hold a value of a key of `range`.
    #[must_use]
    pub fn overlaps(&self, range: &KeyRange) -> bool {
        self.largest >= range.start && range.end.as_ref().is_none_or(|end| self.smallest < *end)
    }
}

/// The record of an invalid file in a version. The file is a table of records to which compactions
/// dropped references (Terark-DS §4.4.2, Invalid Tree). Immutable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvalidFileMeta {
    /// Number of the file; its name is `NNNNNN.inv`.
    pub no: u64,
    /// Random id that the file's blocks are bound to.
    pub unique_id: [u8; 16],
    /// Length in bytes.
    pub size_bytes: u64,
    /// CRC-32C of the whole file.
    pub checksum: u32,
    /// Number of records.
    pub records: u64,
    /// Install number of its latest records. Each edit that adds an invalid file takes the next
    /// one.
    pub install_no: u64,
    /// Numbers of the value files that the records name, ascending.
    pub names: Vec<u64>,
}

impl InvalidFileMeta {
    /// The file number as its type.
    #[must_use]
    pub fn file_no(&self) -> FileNo {
        FileNo(self.no)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_counted_by_file_and_ascend() {
        let mut refs = ValueRefs::default();
        for (no, bytes) in [(7, 10), (3, 1), (7, 20), (5, 0)] {
            refs.add(no, bytes);
        }
        let at = |no, records, bytes| ValueRef { no, records, bytes };
        let expected = [at(3, 1, 6), at(5, 1, 5), at(7, 2, 40)];
        assert_eq!(refs.by_file(), expected);
        assert_eq!((refs.records(), refs.bytes()), (4, 51));
        assert_eq!(ValueRefs::new(expected.to_vec()), Some(refs));
    }

    #[test]
    fn unsound_references_are_refused() {
        let at = |no, records, bytes| ValueRef { no, records, bytes };
        assert_eq!(ValueRefs::new(vec![at(3, 1, 6), at(3, 1, 6)]), None);
        assert_eq!(ValueRefs::new(vec![at(3, 0, 6)]), None);
        assert_eq!(ValueRefs::new(vec![at(3, 2, 9)]), None);
        assert_eq!(ValueRefs::new(vec![at(1, 1, u64::MAX), at(2, 1, 5)]), None);
    }
}
