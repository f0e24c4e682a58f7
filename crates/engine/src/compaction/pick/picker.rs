//! The picker's rules: which files are idle, which ranges may be written, which file of a level is
//! best. [`super`] numbers the promises that these rules keep.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Pick, RangeInput, RangePick, Running, WIDEN_FILES_MAX, hull};
use crate::file_meta::FileMeta;
use crate::key::KeyRange;
use crate::live_file::LiveFile;
use crate::version::{LAST_LEVEL, Version, compensated_bytes, layers, total_bytes};

/// Limit, in target file sizes, on the overlap two levels down of a file that moves without a
/// rewrite. With more overlap, the later rewrite there would be too large.
const GRANDPARENT_FILES_MAX: u64 = 10;
/// Idle layers above the trigger from which on a blocked bucket's files are merged in L0.
const INTRA_L0_EXTRA: usize = 2;
/// A patient bucket's L0 files are compacted at this many times the bytes that they overlap.
const BATCH_OVER_BASE: u64 = 2;
/// Smallest weight of a delete in bytes when files of a level are compared.
const DELETION_WEIGHT_BYTES_MIN: u64 = 512;

/// The picker's view of one column family.
pub(super) struct Picker<'a> {
    pub(super) version: &'a Version,
    /// Running jobs of this column family.
    running: Vec<&'a Running>,
    pub(super) in_use: HashSet<u64>,
    /// Whether due buckets wait for larger batches ([`super`] explains patience).
    patient: bool,
    /// Factor for scores ([`super::SpaceDemand`]).
    urgency: f64,
}

impl<'a> Picker<'a> {
    pub(super) fn new(version: &'a Version, running: &'a [Running]) -> Self {
        let running: Vec<_> = running.iter().filter(|job| job.cf == version.cf()).collect();
        let in_use = running.iter().flat_map(|job| job.files.iter().copied()).collect();
        Self { version, running, in_use, patient: false, urgency: 1.0 }
    }

    pub(super) fn patient(self, patient: bool) -> Self {
        Self { patient, ..self }
    }

    pub(super) fn urged(self, urgency: f64) -> Self {
        Self { urgency, ..self }
    }

    pub(super) fn is_idle(&self, file: &LiveFile) -> bool {
        !self.in_use.contains(&file.no)
    }

    fn all_idle(&self, files: &[Arc<LiveFile>]) -> bool {
        files.iter().all(|file| self.is_idle(file))
    }

    /// Whether a job that takes `range` from level `from` to `to` keeps promises 2 and 3.
    pub(super) fn may_write(&self, from: usize, to: usize, range: &KeyRange) -> bool {
        let in_the_way = |job: &&&Running| job.to == to || (from < job.to && job.to < to);
        !self.running.iter().filter(in_the_way).any(|job| job.range.overlaps(range))
    }

    /// The score of a level, without files that a running job already takes away; 0 if the level is
    /// not due.
    pub(super) fn idle_score(&self, level: usize) -> f64 {
        if self.version.score(level) * self.urgency <= 1.0 {
            return 0.0;
        }
        let files = self.version.level(level).files();
        let idle = compensated_bytes(files.iter().filter(|file| self.is_idle(file)));
        idle as f64 / self.version.targets().bytes[level].max(1) as f64 * self.urgency
    }

    /// The bucket's oldest L0 files that are idle without a gap by age, newest first.
    fn oldest_idle(&self, bucket: usize) -> &'a [Arc<LiveFile>] {
        let files = self.version.l0(bucket);
        let from = files.iter().rposition(|file| !self.is_idle(file)).map_or(0, |at| at + 1);
        &files[from..]
    }

    /// Urgency of L0: the idle files of the fullest bucket over the trigger. While writes are
    /// slowed down for L0, all files of the bucket count.
    pub(super) fn l0_urgency(&self) -> f64 {
        let options = self.version.options();
        let trigger = options.l0_compaction_trigger.max(1) as f64;
        let most = self.version.l0_layers_max();
        if most >= options.l0_slowdown {
            return most as f64 / trigger * self.urgency;
        }
        let buckets = 0..self.version.map().len();
        let idle = buckets.map(|bucket| layers(self.oldest_idle(bucket))).max().unwrap_or(0);
        idle as f64 / trigger * self.urgency
    }

    /// Urgency of a pick of this version, comparable between column families.
    pub(super) fn urgency(&self, pick: &Pick) -> f64 {
        match pick {
            Pick::Rewrite { .. } | Pick::Drop { .. } => 0.0,
            _ if pick.from() == 0 => self.l0_urgency(),
            _ => self.idle_score(pick.from()),
        }
    }

    /// The keys of the idle L0 files of every bucket that is due.
    pub(super) fn due_l0(&self) -> Vec<KeyRange> {
        let trigger = self.version.options().l0_compaction_trigger.max(1);
        let buckets = 0..self.version.map().len();
        let due = buckets.map(|bucket| self.oldest_idle(bucket));
        due.filter(|files| layers(files) >= trigger).map(hull).collect()
    }

    /// The best L0 job, in the order that the module states.
    pub(super) fn pick_l0(&self) -> Option<Pick> {
        let trigger = self.version.options().l0_compaction_trigger.max(1);
        let mut counts: Vec<(usize, usize)> = (0..self.version.map().len())
            .map(|bucket| (layers(self.oldest_idle(bucket)), bucket))
            .filter(|&(count, bucket)| count >= trigger && !self.may_wait(bucket, count))
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

    /// Whether a due bucket should wait for more files ([`super`] explains patience).
    fn may_wait(&self, bucket: usize, count: usize) -> bool {
        if !self.patient || count >= self.version.options().l0_slowdown / 2 {
            return false;
        }
        let l0 = self.oldest_idle(bucket);
        let base = self.version.overlapping(self.version.base_level(), &hull(l0));
        total_bytes(l0) < total_bytes(base).saturating_mul(BATCH_OVER_BASE)
    }

    /// The job that takes the bucket's oldest idle files down, unless it is blocked.
    pub(super) fn l0_job(&self, bucket: usize) -> Option<Pick> {
        self.l0_part_job(bucket, self.oldest_idle(bucket).to_vec())
    }

    /// The job that takes `l0` down: files of the bucket, newest first, with every older file of
    /// the bucket that overlaps one of them. `None` if it is blocked.
    pub(super) fn l0_part_job(&self, bucket: usize, l0: Vec<Arc<LiveFile>>) -> Option<Pick> {
        if l0.is_empty() || !self.all_idle(&l0) {
            return None;
        }
        let to = self.version.base_level();
        let base = self.version.overlapping(to, &hull(&l0));
        let range = hull(l0.iter().chain(base));
        if !self.all_idle(base) || !self.may_write(0, to, &range) {
            return None;
        }
        let own = self.version.map().range(bucket);
        let straddlers = base.iter().filter(|file| !file.within(&own)).map(|file| file.no);
        Some(Pick::L0ToBase {
            bucket,
            straddlers: straddlers.collect(),
            l0,
            base: base.to_vec(),
            to,
        })
    }

    /// The trivial move that replaces an L0 job whose files overlap neither each other nor the base
    /// level. A sequential load makes such files.
    pub(super) fn moved_if_possible(&self, job: Pick) -> Pick {
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

    /// Whether the file, once in level `to`, would overlap few enough bytes of the level below.
    fn light_below(&self, to: usize, file: &FileMeta) -> bool {
        if to >= LAST_LEVEL {
            return true;
        }
        let most = GRANDPARENT_FILES_MAX.saturating_mul(self.version.options().target_file_bytes);
        total_bytes(self.version.level(to + 1).overlapping_file(file)) <= most
    }

    /// The best job from `level` to the next. It does not rewrite base-level files under L0 files
    /// that wait to go there; these have the keys `waiting`.
    pub(super) fn pick_level(&self, level: usize, waiting: &[KeyRange]) -> Option<Pick> {
        let waiting = if level == self.version.base_level() { waiting } else { &[] };
        let awaited = |file: &Arc<LiveFile>| waiting.iter().any(|keys| file.overlaps(keys));
        let below = self.version.level(level + 1);
        let mut order: Vec<(u64, usize)> = Vec::new();
        let delete_bytes = self.version.referenced_mean_bytes().max(DELETION_WEIGHT_BYTES_MIN);
        let files = self.version.level(level).files();
        for (at, file) in files.iter().enumerate().filter(|(_, file)| self.is_idle(file)) {
            let deletions = file.deletions.saturating_add(file.range_deletions);
            let weight =
                file.compensated_bytes().saturating_add(deletions.saturating_mul(delete_bytes));
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
                Pick::Level { inputs, .. } if inputs.iter().any(awaited) => None,
                _ => Some(job),
            }
        })
    }

    /// The job that takes `inputs`, neighbours in `level`, one level down. Further files of `level`
    /// join it if they add no file of the level below. `None` if it is blocked.
    pub(super) fn level_job(&self, level: usize, inputs: Vec<Arc<LiveFile>>) -> Option<Pick> {
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
    pub(super) fn pick_intra_l0(&self) -> Option<Pick> {
        let trigger = self.version.options().l0_compaction_trigger;
        let least = trigger.max(2).saturating_add(INTRA_L0_EXTRA);
        let newest_idle = |bucket: usize| {
            let files = self.version.l0(bucket);
            let to = files.iter().position(|file| !self.is_idle(file)).unwrap_or(files.len());
            &files[..to]
        };
        let buckets = 0..self.version.map().len();
        let (_, bucket) = buckets
            .map(|bucket| (layers(newest_idle(bucket)), bucket))
            .filter(|&(count, bucket)| count >= least && !self.may_wait(bucket, count))
            .max_by_key(|&(count, bucket)| (count, std::cmp::Reverse(bucket)))?;
        // Older files join while they lower the bytes rewritten per file, and while the job stays
        // within its limit. So a large file is not rewritten for every few small ones.
        let most = WIDEN_FILES_MAX.saturating_mul(self.version.options().target_file_bytes);
        let files = newest_idle(bucket);
        let mut taken = 1;
        let mut bytes = files[0].size_bytes;
        for file in &files[1..] {
            let with = bytes.saturating_add(file.size_bytes);
            let dearer = taken > 1 && with / taken as u64 > bytes / (taken as u64 - 1);
            if dearer || with > most {
                break;
            }
            (taken, bytes) = (taken + 1, with);
        }
        let files = &files[..taken];
        let free = self.may_write(0, 0, &hull(files));
        (layers(files) >= least && free).then(|| Pick::IntraL0 { bucket, files: files.to_vec() })
    }

    /// Whether a job may merge all of these files of L0.
    pub(super) fn may_merge_l0(&self, files: &[Arc<LiveFile>]) -> bool {
        self.all_idle(files) && self.may_write(0, 0, &hull(files))
    }

    /// Whether a job may rewrite the file of the last level in its place.
    pub(super) fn may_rewrite(&self, file: &Arc<LiveFile>) -> bool {
        self.is_idle(file) && self.may_write(LAST_LEVEL, LAST_LEVEL, &hull([file]))
    }

    /// L0's part of [`super::pick_range`].
    pub(super) fn range_l0(&self, wish: &RangeInput<'_>) -> RangePick {
        let is_due = |file: &Arc<LiveFile>| file.overlaps(wish.range) && wish.is_old(file);
        let mut due = self
            .version
            .map()
            .buckets_of(wish.range)
            .filter(|&bucket| self.version.l0(bucket).iter().any(is_due))
            .peekable();
        if due.peek().is_none() {
            return RangePick::Done;
        }
        due.find_map(|bucket| self.l0_job(bucket))
            .map_or(RangePick::Blocked(None), RangePick::Ready)
    }
}
