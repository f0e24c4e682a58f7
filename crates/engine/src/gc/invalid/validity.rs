//! Determines the valid records of value files from the entries of invalid files.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use archipelago_base::{Error, ErrorKind, Result};

use super::{InvalidCursor, InvalidEntry, InvalidSource};
use crate::file_meta::value_file_name;
use crate::gc::valid_bits::ValidBits;
use crate::sabotage::{Defect, has};
use crate::value::KeyList;
use crate::value_ref::{InvalidFileMeta, ValueFileMeta};

/// An input of a garbage collection whose validity follows from invalid files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InvalidInput<'a> {
    /// The value file. Its basis limits the entries of its ancestors.
    pub(crate) meta: &'a ValueFileMeta,
    /// Numbers of files whose values lie in the file now, without its own number.
    pub(crate) ancestors: &'a [u64],
    /// All keys of the value file.
    pub(crate) keys: &'a KeyList,
    /// Number of records that the tables reference.
    pub(crate) records: u64,
}

/// Cause of an error: the invalid files have too few entries for the references of the tables.
#[derive(Debug)]
pub(super) struct EntriesMissing;

impl fmt::Display for EntriesMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the invalid files do not tell of all garbage")
    }
}

impl std::error::Error for EntriesMissing {}

/// Each number that an input has or inherited, with the position of the input. Entries under the
/// number count if their install number is above the one given here, or all of them for `None`.
type Numbers = BTreeMap<u64, (usize, Option<u64>)>;

/// For each of `inputs`, the records for which no entry of `files` counts. `NotFound` with
/// [`EntriesMissing`] if their number differs from that of the tables' references.
pub(crate) fn valid_by_entries(
    files: &[InvalidFileMeta],
    inputs: &[InvalidInput<'_>],
    from: InvalidSource<'_>,
) -> Result<Vec<ValidBits>> {
    let mut valid: Vec<_> = inputs.iter().map(|at| ValidBits::all_of(at.keys.len())).collect();
    let mut numbers = Numbers::new();
    for (at, input) in inputs.iter().enumerate() {
        numbers.insert(input.meta.no, (at, None));
        let ancestors = input.ancestors.iter();
        numbers.extend(ancestors.map(|&no| (no, (at, Some(input.meta.basis)))));
    }
    let wanted: BTreeSet<u64> = numbers.keys().copied().collect();
    for file in files {
        let names_none = !file.names.iter().any(|no| wanted.contains(no));
        if names_none && !has(Defect::EntryOfAnotherFile) {
            continue;
        }
        let mut cursor = InvalidCursor::open(file, &from)?;
        while let Some(entry) = cursor.current()? {
            if let Some((at, basis)) = counting_for(&numbers, &entry)
                && basis.is_none_or(|basis| entry.install_no > basis)
                && let Some(record) = find(inputs[at].keys, &entry)
            {
                valid[at].clear(record);
            }
            cursor.advance();
        }
        from.context.check_cancelled()?;
    }
    for (input, valid) in inputs.iter().zip(&valid) {
        if valid.valid_records() != input.records {
            let what = format!(
                "{}: {} records are valid by the invalid files, but the tables reference {}",
                value_file_name(input.meta.file_no()),
                valid.valid_records(),
                input.records
            );
            return Err(Error::with_source(ErrorKind::NotFound, what, EntriesMissing));
        }
    }
    Ok(valid)
}

/// The input that the entry names by the input's own or an ancestor's number. The second value is
/// the install number above which entries under that number count.
fn counting_for(numbers: &Numbers, entry: &InvalidEntry<'_>) -> Option<(usize, Option<u64>)> {
    let named = numbers.get(&entry.no).copied();
    let (at, basis) = match named {
        None if has(Defect::EntryOfAnotherFile) => (0, None),
        named => named?,
    };
    Some((at, basis.filter(|_| !has(Defect::EntriesWithoutLimit))))
}

/// Position of the entry's record in the file, if the file has it.
fn find(keys: &KeyList, entry: &InvalidEntry<'_>) -> Option<usize> {
    let (mut low, mut high) = (0, keys.len());
    while low < high {
        let middle = usize::midpoint(low, high);
        let order = keys.user_key(middle).cmp(entry.user_key);
        match order.then_with(|| entry.seq.cmp(&keys.seq(middle).0)) {
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
            Ordering::Equal => return Some(middle),
        }
    }
    None
}
