//! Jobs that free space without a write that needs it. Tables that no reader needs are removed by
//! an edit alone, and tables whose garbage is worth a rewrite are written again. Pure functions.
//!
//! **Dropped without being read** (`pick_drop`, before any other compaction):
//! 1. A table in which no reader finds anything: every point record is a delete or has expired. Its
//!    records still hide older versions of their keys, so nothing may overlap the table in a deeper
//!    level or in an older L0 file. No live snapshot may be older than its newest record either. A
//!    reader at such a snapshot would find the same values, but [`crate::db::Db::latest_seq`] must
//!    go on naming writes that came after the snapshot. (Compactions keep a delete for the same
//!    reason.)
//! 2. A table whose every key is deleted by newer range tombstones of other tables, if no reader
//!    looks between the table's oldest record and those tombstones. Older records below it are
//!    covered as well, and a compaction keeps the tombstones while anything overlaps them below.
//!
//! A drop claims no key range against running jobs. A job that would bring older records below a
//! table, or newer ones past it, has the table among its inputs (promises 3 and 4 of [`super`]).
//! Then the table is not idle. A job that carries the tombstones of rule 2 keeps them wherever
//! anything overlaps them below. Its spec lists the covered table as such an overlap.
//!
//! **Written again** (`pick_rewrite`, after everything else, one at a time in the whole database):
//! a table of which at least 1/[`GARBAGE_SHARE`] is garbage, by records or by bytes. Garbage is
//! what the rewrite certainly removes:
//! - records that have expired (the value in every level, the record in the last),
//! - shadowed records that no snapshot needs,
//! - in the last level, deletes that no snapshot needs.
//!
//! A table of the last level is also rewritten for range tombstones that no snapshot needs. While
//! no load goes on, it is rewritten once if it has another compression or lacks the family's
//! compaction filter.
//!
//! **Taken down a level** (`pick_sink`, when no load goes on or writers are delayed for space): a
//! table whose range tombstones delete at least 1/[`GARBAGE_SHARE`] of what they overlap in deeper
//! levels. Only tables that a tombstone covers in part are left for this.
//!
//! No job repeats. A drop removes its tables. A rewrite removes the garbage that it was picked for,
//! so its outputs do not qualify before time has passed or a snapshot has gone. A sink moves its
//! table closer to the last level, where its tombstones end.
//!
//! So the last level of an idle database holds expiring data of less than the live bytes times 1 +
//! 1 / ([`GARBAGE_SHARE`] − 1), rounded up to quarters (at most twice). Tables of expired data in
//! key order are removed completely.
//!
//! Cost: O(n log n) for `n` tables that may ever qualify, which a version lists when it is built.
//! While tables have range tombstones, a few binary searches for every table in addition.

use std::collections::HashSet;
use std::sync::Arc;

use super::picker::Picker;
use super::{Pick, PickInput, RangePick, Running, WIDEN_FILES_MAX, hull};
use crate::file_meta::FileMeta;
use crate::live_file::LiveFile;
use crate::options::CfOptions;
use crate::table_content::CoveredRange;
use crate::version::reclaimable::{GARBAGE_SHARE, content_bytes, is_share, is_written_otherwise};
use crate::version::{LAST_LEVEL, Version, total_bytes};

/// Whether all of a table's records are published and older than every live snapshot. A job over
/// such a table removes every delete with nothing older below.
fn is_before_readers(file: &FileMeta, input: &PickInput<'_>) -> bool {
    let oldest = input.snapshots.first().copied();
    file.largest_seq() <= input.visible && oldest.is_none_or(|oldest| file.largest_seq() < oldest)
}

/// Whether no reader finds a value in the table.
fn is_void(file: &FileMeta, now_ms: u64) -> bool {
    let content = &file.content;
    file.deletions.saturating_add(content.expiring) == file.entries
        && (content.expiring == 0 || content.expiry_ms[4] <= now_ms)
}

/// Whether a rewrite in `level` certainly removes 1/[`GARBAGE_SHARE`] of the table.
fn is_worth_rewriting(level: usize, file: &LiveFile, input: &PickInput<'_>) -> bool {
    if file.largest_seq() > input.visible {
        return false;
    }
    let content = &file.content;
    let quarters = content.expired_quarters(input.now_ms);
    let unneeded = content.unneeded_shadowed(input.snapshots);
    let share = |of: u64, part: u64, whole: u64| {
        u64::try_from(u128::from(of) * u128::from(part) / u128::from(whole.max(1))).unwrap_or(of)
    };
    let expired_bytes = share(content.expiring_bytes, quarters, 4);
    let shadowed_bytes = share(content.shadowed_bytes, unneeded, content.shadowed);
    let bytes = expired_bytes.saturating_add(shadowed_bytes);
    let last = level == LAST_LEVEL && is_before_readers(file, input);
    let deletes = if last { file.deletions } else { 0 };
    let expired = if last { share(content.expiring, quarters, 4) } else { 0 };
    let records = deletes.saturating_add(expired).saturating_add(unneeded);
    is_share(bytes, content_bytes(file))
        || is_share(records, file.entries)
        || (last && file.range_deletions > 0)
}

/// Whether a rewrite would move values to another place. They go back inline if the family no
/// longer separates values, or into value files if the table was written before separation. The
/// mean size of the records tells the second case, because metadata does not have the largest
/// value. A table with references was written while values were separated.
fn has_misplaced_values(file: &FileMeta, options: &CfOptions) -> bool {
    let values = file.entries.saturating_sub(file.deletions);
    match options.value_separation_bytes {
        0 => !file.refs.is_empty(),
        least => file.refs.is_empty() && values > 0 && file.raw_bytes / values >= least,
    }
}

/// Whether a rewrite in the last level would remove anything, or write the table in another way.
fn has_gain(file: &FileMeta, input: &PickInput<'_>, options: &CfOptions) -> bool {
    let content = &file.content;
    let deletes = file.deletions > 0 || file.range_deletions > 0;
    content.has_expired(input.now_ms)
        || content.unneeded_shadowed(input.snapshots) > 0
        || (deletes && is_before_readers(file, input))
        || is_written_otherwise(file, options)
        || has_misplaced_values(file, options)
}

/// Picks of drops, rewrites and sinks for one version.
impl Picker<'_> {
    /// The tables that an edit alone removes.
    pub(super) fn pick_drop(&self, input: &PickInput<'_>) -> Option<Pick> {
        let candidates = self.version.reclaimable();
        let covers = Covers::of(candidates);
        let mut files: Vec<(usize, Arc<LiveFile>)> = Vec::new();
        for (level, file) in candidates.iter().filter(|(_, file)| self.is_idle(file)) {
            let is_void = is_void(file, input.now_ms) && is_before_readers(file, input);
            if is_void && !self.has_older_below(*level, file) {
                files.push((*level, Arc::clone(file)));
            }
        }
        if !covers.0.is_empty() {
            let listed: HashSet<u64> = files.iter().map(|(_, file)| file.no).collect();
            for (level, file) in self.version.files().filter(|(_, file)| self.is_idle(file)) {
                if covers.delete(file, input) && !listed.contains(&file.no) {
                    files.push((level, Arc::clone(file)));
                }
            }
        }
        (!files.is_empty()).then_some(Pick::Drop { files })
    }

    /// Whether an older version of a key of the file may lie in a deeper level or an older L0 file.
    fn has_older_below(&self, level: usize, file: &LiveFile) -> bool {
        let deeper = (level.max(1)..=LAST_LEVEL).skip(usize::from(level > 0));
        let mut below = deeper.map(|level| self.version.level(level).overlapping_file(file));
        if below.any(|files| !files.is_empty()) {
            return true;
        }
        let l0 = if level == 0 { self.version.l0_of(&file.smallest) } else { &[] };
        let older = l0.iter().skip_while(|other| other.no != file.no).skip(1);
        older.into_iter().any(|older| older.overlaps_file(file))
    }

    /// The rewrite of the table below L0 that frees most.
    pub(super) fn pick_rewrite(&self, input: &PickInput<'_>) -> Option<Pick> {
        if input.running.iter().any(Running::is_rewrite) {
            return None;
        }
        let options = self.version.options();
        let is_due = |level: usize, file: &LiveFile| {
            let otherwise = level == LAST_LEVEL
                && !input.loading
                && file.largest_seq() <= input.visible
                && is_written_otherwise(file, options);
            level > 0 && (otherwise || is_worth_rewriting(level, file, input))
        };
        let mut due = self.version.reclaimable().iter();
        let (level, file) = due.find(|(level, file)| {
            is_due(*level, file)
                && self.is_idle(file)
                && self.may_write(*level, *level, &hull([file]))
        })?;
        Some(Pick::Rewrite { level: *level, files: vec![Arc::clone(file)] })
    }

    /// The job that takes down a table whose range tombstones delete much below it.
    pub(super) fn pick_sink(&self, input: &PickInput<'_>) -> Option<Pick> {
        // Writers that are delayed for space must not wait for the end of their own load.
        if input.loading && !input.is_pressed() {
            return None;
        }
        let above = self.version.reclaimable().iter().filter(|(level, file)| {
            *level < LAST_LEVEL && !file.content.covered.is_empty() && self.is_idle(file)
        });
        for (level, file) in above {
            if !self.deletes_much_below(*level, file, input) {
                continue;
            }
            let job = match level {
                0 => self.l0_job(self.version.map().bucket_of(&file.smallest)),
                _ => self.level_job(*level, vec![Arc::clone(file)]),
            };
            if job.is_some() {
                return job;
            }
        }
        None
    }

    /// Whether the table's range tombstones delete 1/[`GARBAGE_SHARE`] of what they overlap below.
    fn deletes_much_below(&self, level: usize, file: &LiveFile, input: &PickInput<'_>) -> bool {
        let (mut overlapped, mut deleted) = (0u64, 0u64);
        for cover in covers_of(file) {
            let range =
                crate::key::KeyRange { start: cover.start.to_vec(), end: Some(cover.end.to_vec()) };
            for below in level + 1..=LAST_LEVEL {
                for other in self.version.overlapping(below, &range) {
                    overlapped = overlapped.saturating_add(other.size_bytes);
                    if range.contains(&other.median_key) && deletes(&cover, other, input) {
                        // The median key is among the deleted ones, so about a half of the table is
                        // deleted.
                        deleted = deleted.saturating_add(other.size_bytes / 2);
                    }
                }
            }
        }
        deleted > 0 && deleted.saturating_mul(GARBAGE_SHARE) >= overlapped
    }

    /// The next tables of the last level to rewrite for a range compaction of a user.
    pub(super) fn range_last(&self, range: &RangeInput<'_>) -> RangePick {
        let due: Vec<&Arc<LiveFile>> = range.due(self.version, LAST_LEVEL).collect();
        if due.is_empty() {
            return RangePick::Done;
        }
        let most = WIDEN_FILES_MAX.saturating_mul(self.version.options().target_file_bytes);
        let all = self.version.level(LAST_LEVEL).files();
        for first in &due {
            let from = all.partition_point(|file| file.smallest < first.smallest);
            let mut files: Vec<Arc<LiveFile>> = Vec::new();
            // Due neighbours join, so that small tables become one.
            for file in &all[from..] {
                let bytes = total_bytes(&files).saturating_add(file.size_bytes);
                let is_due = due.iter().any(|due| due.no == file.no);
                if !is_due || !self.is_idle(file) || (!files.is_empty() && bytes > most) {
                    break;
                }
                files.push(Arc::clone(file));
            }
            if !files.is_empty() && self.may_write(LAST_LEVEL, LAST_LEVEL, &hull(&files)) {
                return RangePick::Ready(Pick::Rewrite { level: LAST_LEVEL, files });
            }
        }
        let first = vec![Arc::clone(due[0])];
        RangePick::Blocked(Some(Pick::Rewrite { level: LAST_LEVEL, files: first }))
    }
}

/// A covered range of a table, with its sequence numbers as readers see them.
#[derive(Clone, Copy)]
struct Cover<'a> {
    start: &'a [u8],
    end: &'a [u8],
    oldest_seq: u64,
    newest_seq: u64,
}

/// The range tombstones of a table as readers see them.
fn covers_of(file: &LiveFile) -> impl Iterator<Item = Cover<'_>> {
    file.content.covered.iter().map(|CoveredRange { start, end, oldest_seq, newest_seq }| {
        let oldest_seq = file.global_seq.unwrap_or(*oldest_seq);
        let newest_seq = file.global_seq.unwrap_or(*newest_seq);
        Cover { start, end, oldest_seq, newest_seq }
    })
}

/// Whether every record of `file` in the range of `cover` is deleted for all present and future
/// readers, those at live snapshots included.
fn deletes(cover: &Cover<'_>, file: &FileMeta, input: &PickInput<'_>) -> bool {
    let from = input.snapshots.partition_point(|seq| seq.0 < file.smallest_seq);
    let is_between = input.snapshots.get(from).is_some_and(|seq| seq.0 < cover.newest_seq);
    file.largest_seq < cover.oldest_seq && cover.newest_seq <= input.visible.0 && !is_between
}

/// The ranges that the range tombstones of one level's tables delete.
#[derive(Default)]
struct LevelCovers<'a> {
    /// The tombstones, ordered by their start.
    covers: Vec<Cover<'a>>,
    /// For each cover, the largest end up to it.
    reached: Vec<&'a [u8]>,
}

impl<'a> LevelCovers<'a> {
    fn of(mut covers: Vec<Cover<'a>>) -> Self {
        covers.sort_by(|a, b| a.start.cmp(b.start));
        let mut reached: Vec<&[u8]> = Vec::with_capacity(covers.len());
        for cover in &covers {
            let before = reached.last().copied().unwrap_or_default();
            reached.push(before.max(cover.end));
        }
        Self { covers, reached }
    }

    /// The covers that may hold a key of `file`; they are neighbours by start.
    fn around(&self, file: &FileMeta) -> &[Cover<'a>] {
        let from = self.reached.partition_point(|end| *end <= file.smallest.as_slice());
        let to = self.covers.partition_point(|cover| cover.start <= file.largest.as_slice());
        self.covers.get(from..to).unwrap_or_default()
    }
}

/// The ranges that the range tombstones of all tables delete.
///
/// Covers of one level below L0 are disjoint, and those of L0 lie in one bucket each. So a question
/// compares a file with few covers, however many tables have range tombstones.
pub(super) struct Covers<'a>(Vec<LevelCovers<'a>>);

impl<'a> Covers<'a> {
    pub(super) fn of(files: &'a [(usize, Arc<LiveFile>)]) -> Self {
        // The tables are listed level by level.
        let levels = files.chunk_by(|(one, _), (other, _)| one == other).map(|files| {
            LevelCovers::of(files.iter().flat_map(|(_, file)| covers_of(file)).collect())
        });
        Self(levels.filter(|level| !level.covers.is_empty()).collect())
    }

    /// The covers of every level that may hold a key of `file`.
    fn around(&self, file: &FileMeta) -> impl Iterator<Item = &Cover<'a>> {
        self.0.iter().flat_map(|level| level.around(file))
    }

    /// Number of covers that are compared with `file`, for a test that counts.
    #[cfg(test)]
    pub(super) fn looks(&self, file: &FileMeta) -> usize {
        self.around(file).count()
    }

    /// Whether the covers together delete every key of `file`. Adjacent covers count as one, so
    /// that a table across a bucket boundary is found as well.
    fn delete(&self, file: &FileMeta, input: &PickInput<'_>) -> bool {
        let mut deleting: Vec<&Cover<'_>> =
            self.around(file).filter(|cover| deletes(cover, file, input)).collect();
        deleting.sort_by(|a, b| a.start.cmp(b.start));
        let mut at = file.smallest.as_slice();
        let last = file.largest.as_slice();
        for cover in deleting {
            if cover.start > at {
                return false;
            }
            at = at.max(cover.end);
            if cover.end > last || (cover.end == last && file.largest_exclusive) {
                return true;
            }
        }
        false
    }
}

/// A compaction of a range that a user requested; input of [`super::pick_range`].
#[derive(Clone, Copy, Debug)]
pub struct RangeInput<'a> {
    /// Input of the decision. Its `jobs_max` and `loading` have no effect.
    pub input: PickInput<'a>,
    /// The keys to compact.
    pub range: &'a crate::key::KeyRange,
    /// Sequence number of the request: later writes need not be compacted.
    pub through: archipelago_base::SeqNo,
    /// Files with this number or a larger one were created after the request.
    pub first_new_no: u64,
    /// Whether tables of the last level are rewritten even without a gain.
    pub is_forced: bool,
    /// Numbers of tables of the last level that were written for this request.
    pub written: &'a HashSet<u64>,
}

impl<'a> RangeInput<'a> {
    /// The files of `level` (below L0) that are still to be compacted.
    pub fn due<'v>(
        &self,
        version: &'v Version,
        level: usize,
    ) -> impl Iterator<Item = &'v Arc<LiveFile>> + use<'v, 'a> {
        let this = *self;
        let options = Arc::clone(version.options());
        let is_due = move |file: &&Arc<LiveFile>| {
            let was_there = this.is_old(file);
            let is_old_file = file.no < this.first_new_no;
            let has_filter = options.compaction_filter.is_some();
            was_there
                && (level < LAST_LEVEL
                    || (!this.written.contains(&file.no)
                        && ((is_old_file && (this.is_forced || has_filter))
                            || has_gain(file, &this.input, &options))))
        };
        version.overlapping(level, self.range).iter().filter(is_due)
    }

    /// Whether the file may hold a record that was written before the request.
    pub(super) fn is_old(&self, file: &FileMeta) -> bool {
        file.smallest_seq <= self.through.0
    }

    /// Bytes of the files that are still to be compacted.
    #[must_use]
    pub fn due_bytes(&self) -> u64 {
        let version = self.input.version;
        let l0 = version.map().buckets_of(self.range).flat_map(|bucket| version.l0(bucket));
        let l0 = l0.filter(|file| file.overlaps(self.range) && self.is_old(file));
        let deeper = (1..=LAST_LEVEL).map(|level| total_bytes(self.due(version, level)));
        deeper.fold(total_bytes(l0), u64::saturating_add)
    }
}
