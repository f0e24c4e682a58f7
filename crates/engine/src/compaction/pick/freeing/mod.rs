//! Compactions that free space on a disk that is nearly full: pure functions.
//!
//! A compaction needs room for its outputs before its inputs are removed. Therefore the jobs are as
//! small as possible. The L0 files of a bucket are grouped into *parts* whose keys do not overlap,
//! and each part moves down alone. Deeper levels move file by file. [`output_estimate`] estimates
//! the length of the outputs from the deletions. Among the jobs that fit, the one with the smallest
//! outputs goes first.
//!
//! The promises of [`super`] hold: a part takes all L0 files of the bucket that overlap its keys,
//! so nothing older stays above what the job writes. Cost: O(files · log files).

use std::sync::Arc;

use archipelago_base::SeqNo;

use super::picker::Picker;
use super::{Pick, PickInput};
use crate::live_file::LiveFile;
use crate::version::{LAST_LEVEL, layers};

/// Length in bytes up to which a table is tiny.
const TINY_BYTES: u64 = 64 << 10;
/// Number of layers of tiny tables from which on they are merged on a nearly full disk.
const TINY_LAYERS_MIN: usize = 8;
/// Largest number of point records in a file whose bounds are taken for those of its range
/// tombstone.
const BARE_ENTRIES_MAX: u64 = 1;

/// Estimated length of a compaction's outputs in bytes, from the inputs' metadata. Each point
/// deletion removes one older record. A file that holds hardly more than range tombstones covers
/// its own range. The estimate is too short if deletions met nothing.
fn output_estimate(pick: &Pick) -> u64 {
    if writes_nothing(pick) {
        return 0;
    }
    let covers = covers_of(pick);
    let is_covered = |file: &LiveFile| {
        covers.iter().any(|cover| {
            let begins = cover.start <= file.smallest.as_slice();
            begins && file.largest.as_slice() <= cover.end && cover.seq > file.largest_seq
        })
    };
    let (mut bytes, mut entries, mut deletions) = (0u64, 0u64, 0u64);
    for (_, file) in pick.inputs().filter(|(_, file)| !is_covered(file)) {
        bytes = bytes.saturating_add(file.size_bytes);
        entries = entries.saturating_add(file.entries);
        deletions = deletions.saturating_add(file.deletions);
    }
    let puts = entries.saturating_sub(deletions);
    let live = puts.saturating_sub(deletions);
    let estimate = u128::from(bytes) * u128::from(live) / u128::from(puts.max(1));
    u64::try_from(estimate).unwrap_or(u64::MAX)
}

/// Keys that range tombstones cover without a gap.
struct Cover<'a> {
    start: &'a [u8],
    end: &'a [u8],
    /// Smallest sequence number of the tombstones.
    seq: u64,
}

/// The key ranges that files of the upper level with hardly more than range tombstones cover.
fn covers_of(pick: &Pick) -> Vec<Cover<'_>> {
    let upper = pick.inputs().filter(|(level, file)| *level < pick.to() && is_bare(file));
    let mut bare: Vec<&Arc<LiveFile>> = upper.map(|(_, file)| file).collect();
    bare.sort_by(|a, b| a.smallest.cmp(&b.smallest));
    let mut covers: Vec<Cover<'_>> = Vec::new();
    for file in bare {
        match covers.last_mut() {
            Some(cover) if file.smallest.as_slice() <= cover.end => {
                cover.end = cover.end.max(&file.largest);
                cover.seq = cover.seq.min(file.smallest_seq);
            }
            _ => covers.push(Cover {
                start: &file.smallest,
                end: &file.largest,
                seq: file.smallest_seq,
            }),
        }
    }
    covers
}

/// Whether the job changes the manifest alone.
fn writes_nothing(pick: &Pick) -> bool {
    matches!(pick, Pick::TrivialMove { .. } | Pick::Drop { .. })
}

/// Whether the file holds range tombstones and hardly anything else.
fn is_bare(file: &LiveFile) -> bool {
    file.range_deletions > 0 && file.entries <= BARE_ENTRIES_MAX
}

fn has_deletions(file: &Arc<LiveFile>) -> bool {
    file.deletions > 0 || file.range_deletions > 0
}

/// Room that a job may take, and how far estimates of its outputs are trusted.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes that its outputs may take.
    pub bytes: u64,
    /// Number of estimates that proved too short since the last one that held.
    pub misjudged: u8,
}

/// After this many estimates that were too short, a job is expected to write all that it reads.
const MISJUDGED_MAX: u8 = 4;

impl Room {
    /// Expected length of the job's outputs in bytes: the estimate, or more after estimates that
    /// were too short.
    #[must_use]
    pub fn expected(&self, pick: &Pick) -> u64 {
        if writes_nothing(pick) {
            return 0;
        }
        let (estimate, all) = (output_estimate(pick), pick.input_bytes());
        let doubts = u64::from(self.misjudged.min(MISJUDGED_MAX));
        estimate + all.saturating_sub(estimate) / u64::from(MISJUDGED_MAX) * doubts
    }

    /// Whether the job is expected to fit.
    #[must_use]
    pub fn fits(&self, pick: &Pick) -> bool {
        self.expected(pick) <= self.bytes
    }
}

/// The compaction that frees space and is expected to fit into `room`, the one with the smallest
/// outputs first; `None` if there is none.
#[must_use]
pub fn pick_freeing(input: &PickInput<'_>, room: &Room) -> Option<Pick> {
    if input.running.len() >= input.jobs_max {
        return None;
    }
    let picker = Picker::new(input.version, input.running);
    let fits = |pick: &Pick| room.fits(pick) && output_estimate(pick) < pick.input_bytes();
    candidates(&picker, input, |files| files.iter().any(has_deletions))
        .into_iter()
        .filter(fits)
        .min_by_key(output_estimate)
}

/// The compaction with the fewest inputs that takes L0 files down and fits into `room`. It serves a
/// due bucket whose regular job is too large for the disk.
#[must_use]
pub fn pick_part(input: &PickInput<'_>, room: &Room) -> Option<Pick> {
    if input.running.len() >= input.jobs_max {
        return None;
    }
    let picker = Picker::new(input.version, input.running);
    let trigger = input.version.options().l0_compaction_trigger.max(1);
    l0_parts(&picker, input, |files| layers(files) >= trigger)
        .into_iter()
        .filter(|pick| room.fits(pick))
        .min_by_key(Pick::input_bytes)
}

/// A merge within L0 whose outputs end at `cuts`, after which the parts of the bucket are smaller.
/// It serves a bucket with a file that reaches across a cut and with a part that does not fit into
/// `room`.
#[must_use]
pub fn pick_recut(input: &PickInput<'_>, cuts: &[Vec<u8>], room: &Room) -> Option<Pick> {
    if input.running.len() >= input.jobs_max {
        return None;
    }
    let version = input.version;
    let picker = Picker::new(version, input.running);
    let is_across = |file: &Arc<LiveFile>| {
        cuts.iter().any(|cut| file.smallest < *cut && !file.ends_before(cut))
    };
    let bucket = (0..version.map().len()).find(|&bucket| {
        let files = version.l0(bucket);
        let too_large = |part: Vec<Arc<LiveFile>>| {
            picker.l0_part_job(bucket, part).is_some_and(|job| !room.fits(&job))
        };
        files.iter().any(is_across)
            && picker.may_merge_l0(files)
            && parts_of(files).into_iter().any(too_large)
    })?;
    let merge = Pick::IntraL0 { bucket, files: version.l0(bucket).to_vec() };
    (merge.input_bytes() <= room.bytes).then_some(merge)
}

/// A merge within L0 of the newest tables of a bucket that are tiny. Each occupies whole blocks,
/// and a few deletes at a time make many of them. The function counts layers, so that the outputs
/// of a merge that were cut are not merged again.
#[must_use]
pub fn pick_tiny(input: &PickInput<'_>, room: &Room) -> Option<Pick> {
    if input.running.len() >= input.jobs_max {
        return None;
    }
    let version = input.version;
    let picker = Picker::new(version, input.running);
    let is_tiny = |file: &&Arc<LiveFile>| file.size_bytes <= TINY_BYTES && picker.is_idle(file);
    (0..version.map().len()).find_map(|bucket| {
        let files = version.l0(bucket);
        let files = &files[..files.iter().take_while(is_tiny).count()];
        let may_merge = layers(files) >= TINY_LAYERS_MIN && picker.may_merge_l0(files);
        let merge = may_merge.then(|| Pick::IntraL0 { bucket, files: files.to_vec() })?;
        (merge.input_bytes() <= room.bytes).then_some(merge)
    })
}

/// Input bytes of the largest job among those that take deletions down.
#[must_use]
pub fn largest_job_bytes(input: &PickInput<'_>) -> u64 {
    let picker = Picker::new(input.version, &[]);
    let jobs = candidates(&picker, input, |_| true);
    jobs.iter().map(Pick::input_bytes).max().unwrap_or(0)
}

/// Every job that takes down files that `wanted` accepts.
fn candidates(
    picker: &Picker<'_>,
    input: &PickInput<'_>,
    wanted: impl Fn(&[Arc<LiveFile>]) -> bool,
) -> Vec<Pick> {
    let version = input.version;
    let mut jobs = l0_parts(picker, input, &wanted);
    for level in version.base_level()..LAST_LEVEL {
        let files = version.level(level).files().iter();
        let idle = files.filter(|file| wanted(std::slice::from_ref(file)) && picker.is_idle(file));
        jobs.extend(idle.filter_map(|file| picker.level_job(level, vec![Arc::clone(file)])));
    }
    let oldest_snapshot = input.snapshots.first().copied().unwrap_or(SeqNo::MAX);
    let last = version.level(LAST_LEVEL).files().iter().filter(|file| {
        has_deletions(file) && file.largest_seq() < oldest_snapshot && picker.may_rewrite(file)
    });
    jobs.extend(
        last.map(|file| Pick::Rewrite { level: LAST_LEVEL, files: vec![Arc::clone(file)] }),
    );
    jobs
}

/// The jobs of the parts of every bucket that `wanted` accepts.
fn l0_parts(
    picker: &Picker<'_>,
    input: &PickInput<'_>,
    wanted: impl Fn(&[Arc<LiveFile>]) -> bool,
) -> Vec<Pick> {
    let version = input.version;
    let buckets = 0..version.map().len();
    let parts = buckets.flat_map(|bucket| {
        parts_of(version.l0(bucket)).into_iter().map(move |part| (bucket, part))
    });
    let due = parts.filter(|(_, files)| wanted(files));
    due.filter_map(|(bucket, files)| picker.l0_part_job(bucket, files)).collect()
}

/// Groups of files whose keys overlap, each newest first as `files` are.
fn parts_of(files: &[Arc<LiveFile>]) -> Vec<Vec<Arc<LiveFile>>> {
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by(|&a, &b| files[a].smallest.cmp(&files[b].smallest));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    // The file of the last group whose keys reach furthest.
    let mut furthest: Option<usize> = None;
    for at in order {
        let apart = furthest.is_none_or(|other| files[other].ends_before(&files[at].smallest));
        if apart {
            groups.push(Vec::new());
        }
        let end = |at: usize| (&files[at].largest, !files[at].largest_exclusive);
        furthest = match furthest {
            Some(other) if !apart && end(other) >= end(at) => Some(other),
            _ => Some(at),
        };
        if let Some(group) = groups.last_mut() {
            group.push(at);
        }
    }
    let newest_first = |mut group: Vec<usize>| {
        group.sort_unstable();
        group.into_iter().map(|at| Arc::clone(&files[at])).collect()
    };
    groups.into_iter().map(newest_first).collect()
}

#[cfg(test)]
mod tests;
