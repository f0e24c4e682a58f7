//! Which compaction comes next: a pure function from a version and the running jobs to a
//! [`Pick`]. No I/O, clock or lock.
//!
//! Policy (BucketLSM §V-B). Within L0: buckets by file count descending, then by input size
//! (L0 files and what they overlap in the base level) ascending. Among levels: by score, L0 first
//! when even, and always first once writes are being slowed down for it. Within a deeper level:
//! the file that rewrites least of the level below for what it moves, deletions counting extra,
//! because they free space when they sink.
//!
//! What every pick keeps:
//! 1. A file is input of at most one running job.
//! 2. Two running jobs never write overlapping key ranges into the same level.
//! 3. A job that moves a range from one level past others never passes an older job that writes
//!    into one of those others: what is newer never ends up below what is older.
//! 4. An L0 job takes the oldest files of one bucket, all of them from the oldest idle one on with
//!    no gap by age; so nothing older stays above what it writes.
//! 5. Jobs of different buckets share nothing and run at once, except where a file of the base
//!    level straddles a bucket boundary: the first job that meets it holds (and cuts) it, the
//!    other bucket waits.
//!
//! Cost: O(files of the levels that are due).

use std::collections::HashSet;
use std::sync::Arc;

use archipelago_base::{CfId, SeqNo};

use crate::file_meta::FileMeta;
use crate::key::KeyRange;
use crate::live_file::LiveFile;
use crate::version::{LAST_LEVEL, Version, total_bytes};

/// A job holds at most this many target file sizes of inputs when it widens itself.
const WIDEN_FILES_MAX: u64 = 25;
/// A file moves down without being rewritten if it overlaps at most this many target file sizes
/// two levels down: else the later rewrite there would be too large.
const GRANDPARENT_FILES_MAX: u64 = 10;
/// Idle files beyond the trigger that make it worth merging a blocked bucket's files in L0.
const INTRA_L0_EXTRA: usize = 2;
/// A delete weighs like this many bytes when files of a level are compared.
const DELETION_WEIGHT_BYTES: u64 = 512;

/// A compaction that runs: what it reads and where it writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its column family.
    pub cf: CfId,
    /// Covers every key of its inputs, and so of its outputs ([`Pick::range`]).
    pub range: KeyRange,
    /// The upper level of its inputs.
    pub from: usize,
    /// The level that it writes.
    pub to: usize,
    /// Numbers of its input files.
    pub files: Vec<u64>,
}

/// What a decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct PickInput<'a> {
    /// The newest version of the column family; its settings count.
    pub version: &'a Version,
    /// Every running compaction, of whatever column family.
    pub running: &'a [Running],
    /// How many compactions may run at once.
    pub jobs_max: usize,
    /// The oldest sequence number that a snapshot still reads; `SeqNo::MAX` if there is none.
    pub oldest_snapshot: SeqNo,
}

/// A compaction to run.
#[derive(Clone, Debug)]
pub enum Pick {
    /// A bucket's L0 files into the base level.
    L0ToBase {
        /// The bucket.
        bucket: usize,
        /// L0 inputs, newest first.
        l0: Vec<Arc<LiveFile>>,
        /// Base-level inputs, in key order.
        base: Vec<Arc<LiveFile>>,
        /// The base level.
        to: usize,
        /// Numbers of the base-level inputs that reach outside the bucket; the job's outputs are
        /// cut at the bucket map, so that afterwards none does.
        straddlers: Vec<u64>,
    },
    /// A bucket's newest L0 files into one, because the way down is blocked.
    IntraL0 {
        /// The bucket.
        bucket: usize,
        /// The inputs, newest first; neighbours by age.
        files: Vec<Arc<LiveFile>>,
    },
    /// Files of a level into the next.
    Level {
        /// The upper level.
        from: usize,
        /// The lower level.
        to: usize,
        /// Inputs of the upper level, in key order.
        inputs: Vec<Arc<LiveFile>>,
        /// The lower level's files that they overlap.
        overlapping: Vec<Arc<LiveFile>>,
    },
    /// Files that change their level without being rewritten.
    TrivialMove {
        /// Where they are.
        from: usize,
        /// Where they go.
        to: usize,
        /// The files.
        files: Vec<Arc<LiveFile>>,
    },
    /// A file of the last level whose deletions no snapshot needs any more, to be rewritten
    /// without them.
    Bottom {
        /// The last level.
        level: usize,
        /// The file.
        file: Arc<LiveFile>,
    },
}

impl Pick {
    /// The upper level of the inputs.
    #[must_use]
    pub fn from(&self) -> usize {
        match self {
            Self::L0ToBase { .. } | Self::IntraL0 { .. } => 0,
            Self::Level { from, .. } | Self::TrivialMove { from, .. } => *from,
            Self::Bottom { level, .. } => *level,
        }
    }

    /// The level that is written.
    #[must_use]
    pub fn to(&self) -> usize {
        match self {
            Self::IntraL0 { .. } => 0,
            Self::L0ToBase { to, .. } | Self::Level { to, .. } | Self::TrivialMove { to, .. } => {
                *to
            }
            Self::Bottom { level, .. } => *level,
        }
    }

    /// Every input with its level.
    pub fn inputs(&self) -> impl Iterator<Item = (usize, &Arc<LiveFile>)> {
        let (upper, lower): (&[Arc<LiveFile>], &[Arc<LiveFile>]) = match self {
            Self::L0ToBase { l0, base, .. } => (l0, base),
            Self::Level { inputs, overlapping, .. } => (inputs, overlapping),
            Self::IntraL0 { files, .. } | Self::TrivialMove { files, .. } => (files, &[]),
            Self::Bottom { file, .. } => (std::slice::from_ref(file), &[]),
        };
        let (from, to) = (self.from(), self.to());
        let upper = upper.iter().map(move |file| (from, file));
        upper.chain(lower.iter().map(move |file| (to, file)))
    }

    /// Length of all inputs in bytes.
    #[must_use]
    pub fn input_bytes(&self) -> u64 {
        total_bytes(self.inputs().map(|(_, file)| file))
    }

    /// A range that covers every key of the inputs.
    #[must_use]
    pub fn range(&self) -> KeyRange {
        hull(self.inputs().map(|(_, file)| file))
    }

    /// The entry for the list of running jobs.
    #[must_use]
    pub fn running(&self, cf: CfId) -> Running {
        Running {
            cf,
            range: self.range(),
            from: self.from(),
            to: self.to(),
            files: self.inputs().map(|(_, file)| file.no).collect(),
        }
    }
}

/// The smallest range that covers every key of `files`; empty for no file.
fn hull<'a>(files: impl IntoIterator<Item = &'a Arc<LiveFile>>) -> KeyRange {
    let mut bounds: Option<(&[u8], (&[u8], bool))> = None;
    for file in files {
        let last: (&[u8], bool) = (&file.largest, !file.largest_exclusive);
        bounds = Some(match bounds {
            None => (&file.smallest, last),
            Some((start, end)) => (start.min(&file.smallest), end.max(last)),
        });
    }
    let (start, (last, inclusive)) = bounds.unwrap_or_default();
    let mut end = last.to_vec();
    if inclusive {
        // The first key after `last`.
        end.push(0);
    }
    KeyRange { start: start.to_vec(), end: Some(end) }
}

/// The picker's view of one column family.
struct Picker<'a> {
    version: &'a Version,
    /// Running jobs of this column family.
    running: Vec<&'a Running>,
    in_use: HashSet<u64>,
}

/// The compaction to start now; `None` if nothing is due, everything due is blocked or enough
/// jobs run. Call again with the pick among the running jobs for the next one.
#[must_use]
pub fn pick(input: &PickInput<'_>) -> Option<Pick> {
    if input.running.len() >= input.jobs_max {
        return None;
    }
    let picker = Picker::new(input.version, input.running);
    let version = input.version;
    let mut levels: Vec<(f64, usize)> = (version.base_level()..LAST_LEVEL)
        .map(|level| (picker.idle_score(level), level))
        .filter(|&(score, _)| score > 1.0)
        .collect();
    levels.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let (l0_score, slowed) = picker.l0_urgency();
    // L0 takes its turn before the first level that is less urgent.
    let turn = match slowed {
        true => 0,
        false => levels.partition_point(|&(score, _)| score > l0_score),
    };
    let (before, after) = levels.split_at(turn);
    let deeper = |levels: &[(f64, usize)]| levels.iter().find_map(|&(_, l)| picker.pick_level(l));
    deeper(before)
        .or_else(|| picker.pick_l0())
        .or_else(|| deeper(after))
        .or_else(|| picker.pick_intra_l0())
        .or_else(|| picker.pick_bottom(input.oldest_snapshot))
}

/// What [`pick_range`] says.
#[derive(Clone, Debug)]
pub enum RangePick {
    /// Run this, then ask again.
    Ready(Pick),
    /// Files in the range are in use: ask again when a job has ended.
    Blocked,
    /// The level has no file in the range.
    Done,
}

/// The next job that brings the files of `level` in `range` one level down (L0: to the base
/// level), for compacting a range by hand: go level by level from 0 to the last but one, each
/// until it is done. Never a trivial move, so that every record is looked at.
#[must_use]
pub fn pick_range(
    version: &Version,
    running: &[Running],
    level: usize,
    range: &KeyRange,
) -> RangePick {
    let picker = Picker::new(version, running);
    if level == 0 {
        return picker.range_l0(range);
    }
    if level >= LAST_LEVEL {
        return RangePick::Done;
    }
    let due = version.overlapping(level, range);
    if due.is_empty() {
        return RangePick::Done;
    }
    // As many neighbours as fit; the next call takes the rest.
    let most = WIDEN_FILES_MAX.saturating_mul(version.options().target_file_bytes);
    for (at, first) in due.iter().enumerate() {
        if picker.in_use.contains(&first.no) {
            continue;
        }
        let mut len = 0;
        let mut bytes = 0u64;
        for file in &due[at..] {
            bytes = bytes.saturating_add(file.size_bytes);
            if picker.in_use.contains(&file.no) || (len > 0 && bytes > most) {
                break;
            }
            len += 1;
        }
        let pick = picker.level_job(level, due[at..at + len].to_vec());
        if let Some(pick) = pick.or_else(|| picker.level_job(level, vec![Arc::clone(first)])) {
            return RangePick::Ready(pick);
        }
    }
    RangePick::Blocked
}

impl<'a> Picker<'a> {
    fn new(version: &'a Version, running: &'a [Running]) -> Self {
        let running: Vec<_> = running.iter().filter(|job| job.cf == version.cf()).collect();
        let in_use = running.iter().flat_map(|job| job.files.iter().copied()).collect();
        Self { version, running, in_use }
    }

    fn idle(&self, file: &LiveFile) -> bool {
        !self.in_use.contains(&file.no)
    }

    fn all_idle(&self, files: &[Arc<LiveFile>]) -> bool {
        files.iter().all(|file| self.idle(file))
    }

    /// Whether a job that brings `range` from level `from` to `to` keeps promises 2 and 3.
    fn may_write(&self, from: usize, to: usize, range: &KeyRange) -> bool {
        let in_the_way = |job: &&&Running| job.to == to || (from < job.to && job.to < to);
        !self.running.iter().filter(in_the_way).any(|job| job.range.overlaps(range))
    }

    /// The score of a level without what already leaves it.
    fn idle_score(&self, level: usize) -> f64 {
        if self.version.score(level) <= 1.0 {
            return 0.0;
        }
        let files = self.version.level(level).files();
        let idle = total_bytes(files.iter().filter(|file| self.idle(file)));
        idle as f64 / self.version.targets().bytes[level].max(1) as f64
    }

    /// The bucket's oldest L0 files, newest first: as many as are idle with no gap by age.
    fn oldest_idle(&self, bucket: usize) -> &'a [Arc<LiveFile>] {
        let files = self.version.l0(bucket);
        let from = files.iter().rposition(|file| !self.idle(file)).map_or(0, |at| at + 1);
        &files[from..]
    }

    /// The fullest bucket's idle files over the trigger, and whether writes are slowed for L0.
    fn l0_urgency(&self) -> (f64, bool) {
        let options = self.version.options();
        let buckets = 0..self.version.map().len();
        let fullest = buckets.map(|bucket| self.oldest_idle(bucket).len()).max().unwrap_or(0);
        let score = fullest as f64 / options.l0_compaction_trigger.max(1) as f64;
        (score, self.version.l0_files_max() >= options.l0_slowdown)
    }

    /// The best L0 job: see the module for the order.
    fn pick_l0(&self) -> Option<Pick> {
        let trigger = self.version.options().l0_compaction_trigger.max(1);
        let mut counts: Vec<(usize, usize)> = (0..self.version.map().len())
            .map(|bucket| (self.oldest_idle(bucket).len(), bucket))
            .filter(|&(count, _)| count >= trigger)
            .collect();
        counts.sort_unstable_by_key(|&(count, bucket)| (std::cmp::Reverse(count), bucket));
        for same_count in counts.chunk_by(|a, b| a.0 == b.0) {
            let jobs = same_count.iter().filter_map(|&(_, bucket)| self.l0_job(bucket));
            if let Some(smallest) = jobs.min_by_key(Pick::input_bytes) {
                return Some(self.moved_if_possible(smallest));
            }
        }
        None
    }

    /// The job that takes the bucket's oldest idle files down, unless it is blocked.
    fn l0_job(&self, bucket: usize) -> Option<Pick> {
        let l0 = self.oldest_idle(bucket);
        if l0.is_empty() {
            return None;
        }
        let to = self.version.base_level();
        let base = self.version.overlapping(to, &hull(l0));
        let range = hull(l0.iter().chain(base));
        if !self.all_idle(base) || !self.may_write(0, to, &range) {
            return None;
        }
        let own = self.version.map().range(bucket);
        let straddlers = base.iter().filter(|file| !file.within(&own)).map(|file| file.no);
        Some(Pick::L0ToBase {
            bucket,
            l0: l0.to_vec(),
            straddlers: straddlers.collect(),
            base: base.to_vec(),
            to,
        })
    }

    /// A trivial move instead of an L0 job whose files overlap neither each other nor the base
    /// level (a sequential load).
    fn moved_if_possible(&self, job: Pick) -> Pick {
        let Pick::L0ToBase { l0, base, to, .. } = &job else { return job };
        if !base.is_empty() || !l0.iter().all(|file| self.light_below(*to, file)) {
            return job;
        }
        let mut sorted = l0.clone();
        sorted.sort_by(|a, b| a.smallest.cmp(&b.smallest));
        if sorted.windows(2).any(|pair| !pair[0].ends_before(&pair[1].smallest)) {
            return job;
        }
        Pick::TrivialMove { from: 0, to: *to, files: sorted }
    }

    /// Whether the file, once in level `to`, would overlap little enough of the level below.
    fn light_below(&self, to: usize, file: &FileMeta) -> bool {
        if to >= LAST_LEVEL {
            return true;
        }
        let most = GRANDPARENT_FILES_MAX.saturating_mul(self.version.options().target_file_bytes);
        total_bytes(self.version.level(to + 1).overlapping_file(file)) <= most
    }

    /// The best job from `level` to the next.
    fn pick_level(&self, level: usize) -> Option<Pick> {
        let below = self.version.level(level + 1);
        let mut order: Vec<(u64, usize)> = Vec::new();
        let files = self.version.level(level).files();
        for (at, file) in files.iter().enumerate().filter(|(_, file)| self.idle(file)) {
            let deletions = file.deletions.saturating_add(file.range_deletions);
            let weight =
                file.size_bytes.saturating_add(deletions.saturating_mul(DELETION_WEIGHT_BYTES));
            let overlap = total_bytes(below.overlapping_file(file));
            // Bytes rewritten below for each mebibyte moved.
            let cost = (u128::from(overlap) << 20) / u128::from(weight.max(1));
            order.push((u64::try_from(cost).unwrap_or(u64::MAX), at));
        }
        order.sort_unstable();
        order.into_iter().find_map(|(_, at)| {
            let file = &files[at];
            let job = self.level_job(level, vec![Arc::clone(file)])?;
            match &job {
                Pick::Level { overlapping, .. }
                    if overlapping.is_empty() && self.light_below(level + 1, file) =>
                {
                    Some(Pick::TrivialMove {
                        from: level,
                        to: level + 1,
                        files: vec![Arc::clone(file)],
                    })
                }
                _ => Some(job),
            }
        })
    }

    /// The job that takes `inputs`, neighbours in `level`, one level down; widened by further
    /// files of `level` where that costs nothing below. `None` if it is blocked.
    fn level_job(&self, level: usize, inputs: Vec<Arc<LiveFile>>) -> Option<Pick> {
        let to = level + 1;
        let overlapping = self.version.overlapping(to, &hull(&inputs));
        let range = hull(inputs.iter().chain(overlapping));
        if !self.all_idle(overlapping) || !self.may_write(level, to, &range) {
            return None;
        }
        let most = WIDEN_FILES_MAX.saturating_mul(self.version.options().target_file_bytes);
        let wider = self.version.overlapping(level, &range);
        let widened = !overlapping.is_empty()
            && wider.len() > inputs.len()
            && self.all_idle(wider)
            && total_bytes(wider.iter().chain(overlapping)) <= most
            && self.version.overlapping(to, &hull(wider)).len() == overlapping.len()
            && self.may_write(level, to, &hull(wider.iter().chain(overlapping)));
        let inputs = if widened { wider.to_vec() } else { inputs };
        Some(Pick::Level { from: level, to, inputs, overlapping: overlapping.to_vec() })
    }

    /// Merges the newest files of the fullest bucket that cannot go down.
    fn pick_intra_l0(&self) -> Option<Pick> {
        let least = self.version.options().l0_compaction_trigger.max(2) + INTRA_L0_EXTRA;
        let newest_idle = |bucket: usize| {
            let files = self.version.l0(bucket);
            let to = files.iter().position(|file| !self.idle(file)).unwrap_or(files.len());
            &files[..to]
        };
        let buckets = 0..self.version.map().len();
        let (_, bucket) = buckets
            .map(|bucket| (newest_idle(bucket).len(), bucket))
            .filter(|&(count, _)| count >= least)
            .max_by_key(|&(count, bucket)| (count, std::cmp::Reverse(bucket)))?;
        // Older files join while they make it cheaper to get rid of a file, so that a large one
        // is not rewritten for every few small ones.
        let files = newest_idle(bucket);
        let mut taken = 1;
        let mut bytes = files[0].size_bytes;
        for file in &files[1..] {
            let with = bytes.saturating_add(file.size_bytes);
            if taken > 1 && with / taken as u64 > bytes / (taken as u64 - 1) {
                break;
            }
            (taken, bytes) = (taken + 1, with);
        }
        let files = &files[..taken];
        let free = self.may_write(0, 0, &hull(files));
        (taken >= least && free).then(|| Pick::IntraL0 { bucket, files: files.to_vec() })
    }

    /// A file of the last level that is rid of its deletions by a rewrite.
    fn pick_bottom(&self, oldest_snapshot: SeqNo) -> Option<Pick> {
        let worth = |file: &&Arc<LiveFile>| {
            let heavy = file.range_deletions > 0 || file.deletions > file.entries / 2;
            heavy && file.largest_seq() < oldest_snapshot && self.idle(file)
        };
        let level = LAST_LEVEL;
        let mut files = self.version.level(level).files().iter().filter(worth);
        let file = files.find(|file| self.may_write(level, level, &hull([*file])))?;
        Some(Pick::Bottom { level, file: Arc::clone(file) })
    }

    /// L0's part of [`pick_range`].
    fn range_l0(&self, range: &KeyRange) -> RangePick {
        let mut due = self
            .version
            .map()
            .buckets_of(range)
            .filter(|&bucket| self.version.l0(bucket).iter().any(|file| file.overlaps(range)))
            .peekable();
        if due.peek().is_none() {
            return RangePick::Done;
        }
        due.find_map(|bucket| self.l0_job(bucket)).map_or(RangePick::Blocked, RangePick::Ready)
    }
}

#[cfg(test)]
mod tests;
