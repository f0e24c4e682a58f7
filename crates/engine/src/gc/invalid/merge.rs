//! Merging invalid files: fewer files, without the entries that no live file needs.

use archipelago_base::{CfId, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose};

use super::writer::InvalidFiles;
use super::{InvalidCursor, InvalidSource, put_install_no};
use crate::job::spec::OutputSpec;
use crate::key;
use crate::sabotage::{Defect, has};
use crate::value_ref::InvalidFileMeta;

/// Number of a family's invalid files from which on some are merged.
const MERGE_FILES_MIN: usize = 8;

/// Selects the files that a merge takes now, as positions in `sizes`; none if there are few. A
/// merge takes at least the smaller half of the files. Then it takes every file that is at most as
/// large as all smaller ones together. So an entry is written once for each doubling of the
/// entries.
pub(crate) fn files_to_merge(sizes: &[u64]) -> Vec<usize> {
    if sizes.len() < MERGE_FILES_MIN {
        return Vec::new();
    }
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_unstable_by_key(|&at| (sizes[at], at));
    let mut bytes = 0_u64;
    let mut taken = 0;
    for &at in &order {
        if taken >= sizes.len() / 2 && sizes[at] > bytes {
            break;
        }
        bytes = bytes.saturating_add(sizes[at]);
        taken += 1;
    }
    order.truncate(taken);
    order
}

/// Merges `inputs` into one file, each entry with its install number. Entries for which `counts`
/// (of number and install number) returns false are dropped. `None` if no entry is left.
pub(crate) fn merge_invalid(
    inputs: &[InvalidFileMeta],
    counts: impl Fn(u64, u64) -> bool,
    spec: &OutputSpec,
    from: InvalidSource<'_>,
) -> Result<Option<InvalidFileMeta>> {
    let mut cursors = Vec::with_capacity(inputs.len());
    for input in inputs {
        cursors.push(InvalidCursor::open(input, &from)?);
    }
    let io = IoContext::new(FileClass::Sst, IoPurpose::Gc).of_family(from.cf);
    let cf = CfId(from.cf);
    let mut files = InvalidFiles::new(spec, spec.file_numbers, cf, io, from.context);
    let mut open = None;
    let mut last: Vec<u8> = Vec::new();
    let mut value = Vec::new();
    loop {
        let left = cursors.iter().enumerate().filter(|(_, cursor)| !cursor.is_at_end());
        let least = left.min_by(|(_, one), (_, other)| key::compare(one.key(), other.key()));
        let Some((at, _)) = least else { break };
        let cursor = &mut cursors[at];
        // A reference is dropped once, so a key occurs once.
        if let Some(entry) = cursor.current()?.filter(|_| cursor.key() != last)
            && counts(entry.no, entry.install_no)
            && !(has(Defect::DroppedMergedEntry) && entry.seq % 8 == 3)
        {
            value.clear();
            put_install_no(&mut value, entry.install_no);
            let file = match &mut open {
                Some(file) => file,
                None => open.insert(files.create()?),
            };
            file.add(entry.no, cursor.key(), &value)?;
            last.clear();
            last.extend_from_slice(cursor.key());
        }
        cursor.advance();
    }
    for cursor in &cursors {
        cursor.current()?;
    }
    let Some(file) = open else { return Ok(None) };
    let mut meta = file.finish()?;
    meta.install_no = inputs.iter().map(|input| input.install_no).max().unwrap_or(0);
    files.settle()?;
    files.release();
    Ok(Some(meta))
}
