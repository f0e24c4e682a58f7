//! Offsets of values that garbage collection has moved, for references that a compaction writes.
//!
//! A reference whose file was collected names the heir from the next compaction on. Its old offset
//! is wrong there, and without an offset each read searches the key blocks of the heir. So the
//! compaction reads the keys of the heir along with its own inputs ([`KeyWalk`]). Both are in
//! internal-key order. `docs/decisions/0098-offsets-of-moved-values.md` says when that pays.
//!
//! One job owns the value and uses it on one thread. Invariants:
//!
//! 1. A walk only goes forward, and is placed once. So it reads each byte of the keys at most once.
//! 2. A job walks over the keys of an heir only if it renames many references for each device read
//!    of the walk ([`heirs_to_walk`]).
//!
//! Failure: an error ends the walk. References are correct without an offset, so the job goes on.
//! Cost: a walk decodes the keys of the heir in the range of the job, and holds [`STEP_BYTES`].

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use archipelago_base::{FileNo, Result};

use super::spec::ValueSpec;
use crate::key::{self, Kind};
use crate::value::{ValueKey, ValueKeys};
use crate::value_ref::{ValueFileMeta, ValueHandle, ValueRefs};

/// Bytes of keys that one read of a walk brings.
pub(super) const STEP_BYTES: u64 = 256 << 10;
/// Largest number of heirs over which one job walks.
const WALKS_MAX: usize = 8;
/// Reads that open the keys of a value file.
const OPEN_READS: u64 = 2;
/// Smallest number of references that a job renames for each device read of a walk.
const RENAMED_PER_READ_MIN: u64 = 64;
/// Largest number of keys of an heir for each reference that a job renames.
const KEYS_PER_RENAMED_MAX: u64 = 4;

/// A walk over the keys of one heir.
pub(super) struct KeyWalk {
    /// Number of the heir.
    pub(super) no: FileNo,
    /// The keys, once they were opened.
    pub(super) keys: Option<ValueKeys>,
    is_placed: bool,
    /// Internal key of the last record that was wanted.
    target: Vec<u8>,
}

impl KeyWalk {
    /// A walk over the keys of the heir `no`, which are not open yet.
    pub(super) fn new(no: FileNo) -> Self {
        Self { no, keys: None, is_placed: false, target: Vec::new() }
    }

    /// Position of the value of the record `wanted`. Calls come in internal-key order. `None` if
    /// the walk has passed the record, or if the keys are not open.
    pub(super) fn find(&mut self, wanted: ValueKey<'_>) -> Result<Option<ValueHandle>> {
        let Some(keys) = &mut self.keys else { return Ok(None) };
        self.target.clear();
        key::encode_into(&mut self.target, wanted.user_key, wanted.seq, Kind::Indirect);
        if !self.is_placed {
            keys.seek(&self.target);
            self.is_placed = true;
        }
        while let Some((found, handle)) = keys.current()? {
            match key::compare(found, &self.target) {
                Ordering::Less => keys.advance(),
                Ordering::Equal => return Ok(Some(handle)),
                Ordering::Greater => return Ok(None),
            }
        }
        Ok(None)
    }
}

/// The heirs over whose keys a compaction of tables with the references `refs` walks. Those of most
/// references are the first.
pub(crate) fn heirs_to_walk<'a>(
    values: &ValueSpec,
    refs: impl Iterator<Item = &'a ValueRefs>,
) -> Vec<FileNo> {
    let mut renamed: BTreeMap<u64, u64> = BTreeMap::new();
    for at in refs.flat_map(ValueRefs::by_file) {
        if let Some(current) = values.current(at.no).filter(|&current| current != at.no) {
            let records = renamed.entry(current).or_default();
            *records = records.saturating_add(at.records);
        }
    }
    let pays = |&(no, records): &(u64, u64)| {
        values.file(no).is_some_and(|heir| is_worth_walking(heir, records))
    };
    let mut heirs: Vec<(u64, u64)> = renamed.into_iter().filter(pays).collect();
    heirs.sort_by_key(|&(no, records)| (Reverse(records), no));
    heirs.truncate(WALKS_MAX);
    heirs.into_iter().map(|(no, _)| FileNo(no)).collect()
}

/// Whether a walk over all keys of `heir` pays for `renamed` references. If only a part of the keys
/// lies in the range of the job, the walk costs less.
fn is_worth_walking(heir: &ValueFileMeta, renamed: u64) -> bool {
    let keys_bytes = heir.size_bytes.saturating_sub(heir.keys_offset);
    // Each step may read a partition of the index as well.
    let reads = keys_bytes.div_ceil(STEP_BYTES).saturating_mul(2).saturating_add(OPEN_READS);
    renamed >= reads.saturating_mul(RENAMED_PER_READ_MIN)
        && renamed.saturating_mul(KEYS_PER_RENAMED_MAX) >= heir.records
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::spec::CurrentNumber;
    use crate::value_ref::ValueRef;

    fn heir(no: u64, records: u64, keys_bytes: u64) -> ValueFileMeta {
        ValueFileMeta {
            no,
            unique_id: [no as u8; 16],
            size_bytes: (1 << 30) + keys_bytes,
            checksum: 1,
            keys_offset: 1 << 30,
            smallest: b"a".to_vec(),
            largest: b"z".to_vec(),
            smallest_seq: 1,
            largest_seq: 9,
            records,
            created_unix_ms: 1,
            basis: 0,
        }
    }

    fn walked(files: Vec<ValueFileMeta>, refs: &[(u64, u64, u64)]) -> Vec<u64> {
        let current = |&(named, current, _): &(u64, u64, u64)| CurrentNumber { named, current };
        let values = ValueSpec {
            current: refs.iter().map(current).collect(),
            files,
            ..ValueSpec::default()
        };
        let reference = |&(no, _, records): &(u64, u64, u64)| {
            let bytes = records * 1_000;
            ValueRefs::new(vec![ValueRef { no, records, bytes }]).expect("sound")
        };
        let refs: Vec<ValueRefs> = refs.iter().map(reference).collect();
        heirs_to_walk(&values, refs.iter()).into_iter().map(|no| no.0).collect()
    }

    #[test]
    fn walk_needs_many_renamed_references_for_each_read() {
        // One step of keys costs at most four reads.
        let files = || vec![heir(90, 1_000, 40_000)];
        assert_eq!(walked(files(), &[(1, 90, 255)]), [0; 0]);
        assert_eq!(walked(files(), &[(1, 90, 256)]), [90]);
        assert_eq!(walked(files(), &[(1, 90, 128), (2, 90, 128)]), [90], "of two ancestors");
        assert_eq!(walked(files(), &[(90, 90, 1_000)]), [0; 0], "nothing was moved");
        // Ten steps cost at most 22 reads.
        let large = || vec![heir(90, 1_500, 10 * STEP_BYTES)];
        assert_eq!(walked(large(), &[(1, 90, 1_407)]), [0; 0]);
        assert_eq!(walked(large(), &[(1, 90, 1_408)]), [90]);
    }

    #[test]
    fn walk_needs_a_large_share_of_the_keys() {
        let files = || vec![heir(90, 4_000, 40_000)];
        assert_eq!(walked(files(), &[(1, 90, 999)]), [0; 0]);
        assert_eq!(walked(files(), &[(1, 90, 1_000)]), [90]);
    }

    #[test]
    fn heirs_of_most_references_are_walked() {
        let files: Vec<ValueFileMeta> = (90..100).map(|no| heir(no, 1_000, 40_000)).collect();
        let refs: Vec<(u64, u64, u64)> = (0..10).map(|at| (at + 1, at + 90, 300 + at)).collect();
        assert_eq!(walked(files, &refs), [99, 98, 97, 96, 95, 94, 93, 92]);
    }
}
