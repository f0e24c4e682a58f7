//! Chooses the value files of the next garbage collection job: a pure function from a snapshot of
//! the value files to a [`GcPick`].
//!
//! A job copies the valid records of its inputs into one new file, the *heir*. A pick has one of
//! three reasons, in this order:
//! 1. *Space*: exposed garbage exceeds what the plan allows, or the room in a pool of storage
//!    nodes. The seed is the file with the largest garbage share. Neighbours of the seed join in
//!    falling order of their share while the valid bytes of all inputs fit into one heir. A
//!    neighbour joins only if its share is at least three quarters of the seed's. Otherwise files
//!    whose rewrite frees little for the bytes that it copies would fill the heir.
//! 2. *Small files*: more than [`SMALL_FILES_MAX`] neighbouring files are smaller than a quarter of
//!    a full value file. Each file costs an entry in the references of many tables. While the
//!    references of a family are large, more than [`SMALL_FILES_MAX_CROWDED`] are enough.
//! 3. *Runs*: more than [`RUNS_MAX`] files overlap at one key, which makes scans slow, and at least
//!    [`RUNS_MERGED_MIN`] of them fit into one heir.
//!
//! Two files are *neighbours* if their key ranges overlap, or if at most [`NEIGHBOURS_APART_MAX`]
//! positions in key order lie between them.
//!
//! Properties of every pick:
//! 1. It frees garbage, or it lowers the number of files. So an idle database comes to rest.
//! 2. A pick for space takes no file without garbage.
//! 3. It takes no input of a running job and no file that is left out after failures.
//! 4. If exposed garbage exceeds what the plan allows, then a pick exists, a job runs, or every
//!    file with garbage is left out after failures or has an heir without room on the disk.
//! 5. Its heir has room on the disk. If the heir of many files has no room, fewer are taken. Only
//!    the heir of a pick for space may use the reserve of the disk.
//!
//! Cost: O(n) for `n` files that are given in key order, plus O(n log n) with two allocations per
//! file if more than [`RUNS_MAX`] files overlap at one key. A family may have 130,000 value files.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::gc::lookup;
use crate::value::KeyList;

/// Number of neighbouring small files above which they are merged.
const SMALL_FILES_MAX: usize = 16;
/// The same limit while the references of the family exceed [`REFS_BYTES_CROWDED`].
const SMALL_FILES_MAX_CROWDED: usize = 4;
/// References of a family that occupy more bytes than this in the manifest are crowded.
const REFS_BYTES_CROWDED: u64 = 4 << 20;
/// A file with fewer value bytes than a full file divided by this is small.
const SMALL_FILE_SHARE: u64 = 4;
/// Number of files that overlap at one key above which they are merged.
const RUNS_MAX: usize = 16;
/// Smallest number of files of a merge that serves scans.
const RUNS_MERGED_MIN: usize = 4;
/// Largest distance, in positions in key order, of files that are neighbours without an overlap.
const NEIGHBOURS_APART_MAX: usize = 16;
/// Smallest garbage share of a neighbour that joins a pick for space, as a part of the seed's
/// share.
const NEIGHBOUR_SHARE_MIN: f64 = 0.75;
/// Limit on the bytes of memory that the keys of a job take; a single input may take more.
const KEY_MEMORY_BYTES_MAX: u64 = 64 << 20;
/// Bytes of memory that a job takes for each record, without its user key.
const RECORD_MEMORY_BYTES: u64 = KeyList::RECORD_BYTES + lookup::RECORD_BYTES;
/// Limit on the inputs of a job, because it keeps all of them open.
const INPUTS_MAX: usize = 256;

/// Pause after the first failure of a file, in nanoseconds.
const FAILURE_PAUSE_NS_MIN: u64 = 1_000_000_000;
/// Longest pause after repeated failures, in nanoseconds: one hour.
const FAILURE_PAUSE_NS_MAX: u64 = 3_600 * FAILURE_PAUSE_NS_MIN;

/// A value file as the picker sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueFileState<'a> {
    /// Number of the file.
    pub no: u64,
    /// Smallest user key.
    pub smallest: &'a [u8],
    /// Largest user key.
    pub largest: &'a [u8],
    /// Bytes of the value area.
    pub value_bytes: u64,
    /// Bytes of the key blocks.
    pub key_bytes: u64,
    /// Number of records.
    pub records: u64,
    /// Bytes of the value area that tables of the version refer to.
    pub referenced_bytes: u64,
}

/// Bytes of memory that a job takes for the keys of a value file: for their list and for the order
/// in which they are looked up. The key blocks say little about it, because they are compressed and
/// keys share their prefixes there. The mean length of a key is taken from the smallest and the
/// largest one.
#[must_use]
pub(crate) fn key_memory_bytes(records: u64, smallest: &[u8], largest: &[u8]) -> u64 {
    let mean_key_bytes = (smallest.len() + largest.len()).div_ceil(2) as u64;
    records.saturating_mul(RECORD_MEMORY_BYTES + mean_key_bytes)
}

impl ValueFileState<'_> {
    /// Bytes that a job copies from the file.
    fn valid_bytes(&self) -> u64 {
        self.referenced_bytes.min(self.value_bytes)
    }

    /// Bytes of the value area that no table refers to.
    fn garbage_bytes(&self) -> u64 {
        self.value_bytes - self.valid_bytes()
    }

    /// Bytes of memory that a job takes for the keys of the file.
    fn key_memory_bytes(&self) -> u64 {
        key_memory_bytes(self.records, self.smallest, self.largest)
    }

    /// Garbage as a share of the value area, from 0 to 1.
    fn garbage_share(&self) -> f64 {
        self.garbage_bytes() as f64 / self.value_bytes.max(1) as f64
    }
}

/// State of a family's value files from which a pick follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GcSnapshot<'a> {
    /// Every value file of the family. The cost is lowest if they are in order of their smallest
    /// key.
    pub files: &'a [ValueFileState<'a>],
    /// Numbers of the inputs of running jobs.
    pub running: &'a HashSet<u64>,
    /// Numbers of files that are left out after failures ([`FailureLeave::left_out`]).
    pub left_out: &'a HashSet<u64>,
    /// Numbers of files with which a job has failed before ([`FailureLeave::known`]). Each is taken
    /// alone, so that a damaged file does not hold up its neighbours again.
    pub suspects: &'a HashSet<u64>,
    /// Bytes of values at which a value file is full, from the settings of the family.
    pub value_file_bytes: u64,
    /// Bytes that the heir of a pick for space may take on the disk.
    pub space_room_bytes: u64,
    /// Bytes that the heir of small files or of runs may take on the disk.
    pub merge_room_bytes: u64,
    /// Bytes of exposed garbage that the plan and the room in a pool allow. It is `u64::MAX`
    /// without either, and 0 while writers are delayed for space, so that any file with garbage is
    /// due.
    pub exposed_bytes_max: u64,
    /// Bytes that the references of the family's tables occupy in the manifest.
    pub refs_bytes: u64,
}

/// Why a job was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GcReason {
    /// Exposed garbage exceeds what the plan allows.
    Space,
    /// Many neighbouring files are small.
    SmallFiles,
    /// Many files overlap at one key.
    Runs,
}

impl GcReason {
    /// The reason as reports and events spell it.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Space => "space",
            Self::SmallFiles => "small_files",
            Self::Runs => "runs",
        }
    }
}

/// A job to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GcPick {
    /// Why the job is due.
    pub reason: GcReason,
    /// Numbers of the inputs, in order of their smallest keys.
    pub inputs: Vec<u64>,
    /// Bytes that the heir takes on the disk: the valid bytes and the keys of the inputs.
    pub heir_bytes: u64,
}

/// The job to start now. `None` if nothing is due, or if everything that is due is in use or left
/// out. For a further job, call again with the inputs of this pick among the running ones.
#[must_use]
pub(crate) fn pick_gc(snapshot: &GcSnapshot<'_>) -> Option<GcPick> {
    let mut picker = Picker::new(snapshot);
    let mut picked = picker.space().map(|inputs| (GcReason::Space, inputs));
    if picked.is_none() {
        picker.room_bytes = snapshot.merge_room_bytes;
        picked = picker.small_files().map(|inputs| (GcReason::SmallFiles, inputs));
        picked = picked.or_else(|| picker.runs().map(|inputs| (GcReason::Runs, inputs)));
    }
    let (reason, mut inputs) = picked?;
    inputs.sort_unstable();
    let sum = inputs.iter().fold(InputSum::default(), |sum, &at| sum.with(picker.file(at)));
    let inputs = inputs.into_iter().map(|at| picker.file(at).no).collect();
    Some(GcPick { reason, inputs, heir_bytes: sum.heir_bytes() })
}

/// Whether a job would be due if the disk had room for every heir.
#[must_use]
pub(crate) fn is_due_with_room(snapshot: &GcSnapshot<'_>) -> bool {
    let (space_room_bytes, merge_room_bytes) = (u64::MAX, u64::MAX);
    pick_gc(&GcSnapshot { space_room_bytes, merge_room_bytes, ..*snapshot }).is_some()
}

/// Sums over the inputs of a job.
#[derive(Clone, Copy, Debug, Default)]
struct InputSum {
    files: usize,
    valid_bytes: u64,
    key_bytes: u64,
    key_memory_bytes: u64,
}

impl InputSum {
    fn with(self, file: &ValueFileState<'_>) -> Self {
        Self {
            files: self.files + 1,
            valid_bytes: self.valid_bytes.saturating_add(file.valid_bytes()),
            key_bytes: self.key_bytes.saturating_add(file.key_bytes),
            key_memory_bytes: self.key_memory_bytes.saturating_add(file.key_memory_bytes()),
        }
    }

    fn without(self, file: &ValueFileState<'_>) -> Self {
        Self {
            files: self.files - 1,
            valid_bytes: self.valid_bytes.saturating_sub(file.valid_bytes()),
            key_bytes: self.key_bytes.saturating_sub(file.key_bytes),
            key_memory_bytes: self.key_memory_bytes.saturating_sub(file.key_memory_bytes()),
        }
    }

    /// Whether one job may take all of the files.
    fn fits(self, value_file_bytes: u64) -> bool {
        self.files <= INPUTS_MAX
            && self.valid_bytes <= value_file_bytes
            && self.key_memory_bytes <= KEY_MEMORY_BYTES_MAX
    }

    /// Bytes that an heir of all of the files takes on the disk.
    fn heir_bytes(self) -> u64 {
        self.valid_bytes.saturating_add(self.key_bytes)
    }
}

/// The files of a snapshot in key order. A *position* is an index into that order.
struct Picker<'a> {
    snapshot: &'a GcSnapshot<'a>,
    /// Indices of the files, by smallest key and then by number.
    order: Vec<usize>,
    /// Bytes that an heir may take on the disk, which depend on the reason of the pick.
    room_bytes: u64,
}

impl<'a> Picker<'a> {
    fn new(snapshot: &'a GcSnapshot<'a>) -> Self {
        let files = snapshot.files;
        let mut order: Vec<usize> = (0..files.len()).collect();
        order.sort_unstable_by(|&one, &other| {
            let (one, other) = (&files[one], &files[other]);
            one.smallest.cmp(other.smallest).then(one.no.cmp(&other.no))
        });
        Self { snapshot, order, room_bytes: snapshot.space_room_bytes }
    }

    fn file(&self, at: usize) -> &'a ValueFileState<'a> {
        &self.snapshot.files[self.order[at]]
    }

    fn positions(&self) -> std::ops::Range<usize> {
        0..self.order.len()
    }

    fn fits(&self, sum: InputSum) -> bool {
        sum.fits(self.snapshot.value_file_bytes) && sum.heir_bytes() <= self.room_bytes
    }

    /// Whether a new job may take the file.
    fn is_free(&self, at: usize) -> bool {
        let no = self.file(at).no;
        let heir_bytes = InputSum::default().with(self.file(at)).heir_bytes();
        let has_room = heir_bytes <= self.room_bytes;
        !self.snapshot.running.contains(&no) && !self.snapshot.left_out.contains(&no) && has_room
    }

    /// Whether a job has failed with the file before.
    fn is_suspect(&self, at: usize) -> bool {
        self.snapshot.suspects.contains(&self.file(at).no)
    }

    /// Whether a new job may take the file together with others.
    fn may_merge(&self, at: usize) -> bool {
        self.is_free(at) && !self.is_suspect(at)
    }

    /// Whether the two files are neighbours, as the module defines them.
    fn are_neighbours(&self, one: usize, other: usize) -> bool {
        let (one_file, other_file) = (self.file(one), self.file(other));
        one.abs_diff(other) <= NEIGHBOURS_APART_MAX
            || one_file.smallest <= other_file.largest && other_file.smallest <= one_file.largest
    }

    /// Bytes of exposed garbage that no running job is about to free.
    fn exposed_bytes(&self) -> u64 {
        let files = self.snapshot.files.iter();
        let idle = files.filter(|file| !self.snapshot.running.contains(&file.no));
        idle.fold(0, |sum: u64, file| sum.saturating_add(file.garbage_bytes()))
    }

    /// The inputs of a job that frees exposed garbage.
    fn space(&self) -> Option<Vec<usize>> {
        if self.exposed_bytes() <= self.snapshot.exposed_bytes_max {
            return None;
        }
        let has_garbage = |at: &usize| self.file(*at).garbage_bytes() > 0 && self.is_free(*at);
        let by_share = |one: &usize, other: &usize| {
            let (one, other) = (self.file(*one), self.file(*other));
            other.garbage_share().total_cmp(&one.garbage_share()).then(one.no.cmp(&other.no))
        };
        let seed = self.positions().filter(has_garbage).min_by(by_share)?;
        if self.is_suspect(seed) {
            return Some(vec![seed]);
        }
        let share_min = self.file(seed).garbage_share() * NEIGHBOUR_SHARE_MIN;
        let mut joining: Vec<usize> = self
            .positions()
            .filter(has_garbage)
            .filter(|&at| at != seed && self.file(at).garbage_share() >= share_min)
            .filter(|&at| !self.is_suspect(at))
            .filter(|&at| self.are_neighbours(seed, at))
            .collect();
        joining.sort_unstable_by(by_share);
        let mut sum = InputSum::default().with(self.file(seed));
        let mut inputs = vec![seed];
        for at in joining {
            let with = sum.with(self.file(at));
            if with.files > INPUTS_MAX {
                break;
            }
            if self.fits(with) {
                sum = with;
                inputs.push(at);
            }
        }
        Some(inputs)
    }

    /// The inputs of a job that merges small files: the stretch of neighbours with the most files
    /// among those that fit into one heir.
    fn small_files(&self) -> Option<Vec<usize>> {
        let full = self.snapshot.value_file_bytes;
        let small: Vec<usize> = self
            .positions()
            .filter(|&at| self.file(at).value_bytes.saturating_mul(SMALL_FILE_SHARE) < full)
            .filter(|&at| self.is_free(at) && !self.is_suspect(at))
            .collect();
        let files_max = match self.snapshot.refs_bytes > REFS_BYTES_CROWDED {
            true => SMALL_FILES_MAX_CROWDED,
            false => SMALL_FILES_MAX,
        };
        if small.len() <= files_max {
            return None;
        }
        let mut best: &[usize] = &[];
        for group in self.neighbourhoods(&small) {
            let stretch = self.longest_fitting(group);
            if group.len() > files_max && stretch.len() > best.len().max(1) {
                best = stretch;
            }
        }
        (!best.is_empty()).then(|| best.to_vec())
    }

    /// Cuts `sorted` positions into groups in which each file is a neighbour of an earlier one.
    fn neighbourhoods<'s>(&self, sorted: &'s [usize]) -> Vec<&'s [usize]> {
        let mut groups = Vec::new();
        let mut from = 0;
        // The file of the group whose keys reach furthest.
        let mut furthest = sorted.first().copied().unwrap_or(0);
        for (index, &at) in sorted.iter().enumerate().skip(1) {
            let is_near = self.are_neighbours(sorted[index - 1], at);
            if !is_near && !self.are_neighbours(furthest, at) {
                groups.push(&sorted[from..index]);
                (from, furthest) = (index, at);
            } else if self.file(at).largest > self.file(furthest).largest {
                furthest = at;
            }
        }
        groups.push(&sorted[from..]);
        groups
    }

    /// The longest stretch of `group` that one job may take; of equal ones the first.
    fn longest_fitting<'s>(&self, group: &'s [usize]) -> &'s [usize] {
        let mut best = 0..0;
        let mut from = 0;
        let mut sum = InputSum::default();
        for (index, &at) in group.iter().enumerate() {
            sum = sum.with(self.file(at));
            while !self.fits(sum) && from <= index {
                sum = sum.without(self.file(group[from]));
                from += 1;
            }
            if index + 1 - from > best.len() {
                best = from..index + 1;
            }
        }
        &group[best]
    }

    /// The inputs of a job that merges files which overlap at one key. It takes the key with most
    /// files, and there the files with the fewest valid bytes.
    fn runs(&self) -> Option<Vec<usize>> {
        let start = self.most_runs()?;
        let key = self.file(start).smallest;
        let mut inputs: Vec<usize> =
            (0..=start).filter(|&at| self.file(at).largest >= key && self.may_merge(at)).collect();
        inputs.sort_unstable_by_key(|&at| (self.file(at).valid_bytes(), at));
        let mut sum = InputSum::default();
        let fitting = inputs.iter().take_while(|&&at| {
            sum = sum.with(self.file(at));
            self.fits(sum)
        });
        let len = fitting.count();
        inputs.truncate(len);
        Some(inputs)
    }

    /// The position at whose smallest key most files overlap. Only positions count at which a merge
    /// is due and [`RUNS_MERGED_MIN`] files fit into one heir.
    fn most_runs(&self) -> Option<usize> {
        if self.order.len() <= RUNS_MAX {
            return None;
        }
        let mut ends: Vec<usize> = self.positions().collect();
        ends.sort_unstable_by_key(|&at| (self.file(at).largest, at));
        let mut ended = 0;
        // Files that hold the current key and may be taken by a job, by valid bytes.
        let mut mergeable: BTreeSet<(u64, usize)> = BTreeSet::new();
        let mut best: Option<(usize, usize)> = None;
        for at in self.positions() {
            let file = self.file(at);
            // A file that has not started ends no earlier than it starts, so all files here have
            // started.
            while self.file(ends[ended]).largest < file.smallest {
                let end = ends[ended];
                mergeable.remove(&(self.file(end).valid_bytes(), end));
                ended += 1;
            }
            if self.may_merge(at) {
                mergeable.insert((file.valid_bytes(), at));
            }
            let runs = at + 1 - ended;
            if runs <= RUNS_MAX || best.is_some_and(|(most, _)| runs <= most) {
                continue;
            }
            let smallest = mergeable.iter().take(RUNS_MERGED_MIN);
            let sum = smallest.fold(InputSum::default(), |sum, &(_, at)| sum.with(self.file(at)));
            if sum.files == RUNS_MERGED_MIN && self.fits(sum) {
                best = Some((runs, at));
            }
        }
        best.map(|(_, at)| at)
    }
}

/// Value files or invalid files that jobs leave out for a while, because a job with them failed. A
/// plain value: the caller passes the time.
///
/// The pause of a file doubles with each failure, from one second to one hour, so that one damaged
/// file does not hold up all the others.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailureLeave {
    /// Failures of each file, by its number.
    files: BTreeMap<u64, FileFailures>,
}

#[derive(Clone, Copy, Debug)]
struct FileFailures {
    pause_ns: u64,
    until_ns: u64,
}

impl FailureLeave {
    /// Notes that a job with the input `no` failed at `now_ns`.
    pub(crate) fn note_failure(&mut self, no: u64, now_ns: u64) {
        let before = self.files.get(&no).map_or(0, |failures| failures.pause_ns);
        let pause_ns = (before * 2).clamp(FAILURE_PAUSE_NS_MIN, FAILURE_PAUSE_NS_MAX);
        let until_ns = now_ns.saturating_add(pause_ns);
        self.files.insert(no, FileFailures { pause_ns, until_ns });
    }

    /// Keeps only files for which `is_live` holds. Call it with the files of a new version.
    pub(crate) fn retain(&mut self, is_live: impl Fn(u64) -> bool) {
        self.files.retain(|&no, _| is_live(no));
    }

    /// Numbers of the files that are left out at `now_ns`.
    #[must_use]
    pub(crate) fn left_out(&self, now_ns: u64) -> HashSet<u64> {
        let waiting = self.files.iter().filter(|(_, failures)| failures.until_ns > now_ns);
        waiting.map(|(&no, _)| no).collect()
    }

    /// Numbers of all files with which a job has failed.
    #[must_use]
    pub(crate) fn known(&self) -> HashSet<u64> {
        self.files.keys().copied().collect()
    }

    /// The time at which the next pause ends, in nanoseconds; `None` if no file waits.
    #[must_use]
    pub(crate) fn next_end_ns(&self, now_ns: u64) -> Option<u64> {
        let ends = self.files.values().map(|failures| failures.until_ns);
        ends.filter(|&until_ns| until_ns > now_ns).min()
    }
}

#[cfg(test)]
mod tests;
