//! Chooses the next compaction: a pure function from a version and the running jobs to a [`Pick`].
//! No I/O, clock or lock.
//!
//! Policy (BucketLSM §V-B):
//! - Within L0: buckets go by file count (counted as [`crate::version::layers`]) descending. Equal
//!   buckets go by input size ascending: L0 files and the base-level files that they overlap.
//! - Among levels: by score, and L0 first among equal scores. Once writes are slowed down for L0,
//!   its score also counts the files of running jobs. L0 still does not overtake a level with a
//!   higher score. A base level that never got its turn would make each L0 job larger than the
//!   last.
//! - Within a deeper level: the file with the fewest bytes to rewrite in the level below per byte
//!   that it moves. Deletions count extra, because they free space when they sink.
//! - Several families: [`pick_of_all`].
//!
//! The way down from L0 is blocked if another job writes there or takes files of the base level
//! away. L0 keeps its turn:
//! 1. A bucket's newest files are merged within L0, if that pays.
//! 2. No further job of the base level starts under a bucket that waits. So the bucket waits only
//!    for jobs that already run.
//!
//! With one bucket this is the classic order: one job from L0 to the base level at a time, and none
//! in parallel with a job that takes base-level files below it away.
//!
//! Patience: a bucket is due at `l0_compaction_trigger` files. While a load goes on
//! ([`PickInput::loading`]), it waits for more files while they are smaller than twice the bytes
//! that they would rewrite in the base level. It waits at most until half of the files at which
//! writes slow down. A batch of twice the base level's size costs one and a half bytes of writing
//! per byte; a batch of a quarter costs five. When the load pauses, the trigger alone counts again.
//!
//! Promises of every pick:
//! 1. A file is input of at most one running job.
//! 2. Two running jobs never write overlapping key ranges into the same level.
//! 3. A job that moves a range past levels never overtakes an older job that writes into one of
//!    them. So newer records never end up below older ones.
//! 4. An L0 job takes the oldest files of one bucket: the oldest idle file and all that follow it
//!    without a gap by age. So nothing older stays above what the job writes.
//! 5. Jobs of different buckets share nothing and run in parallel, except if a file of the base
//!    level straddles a bucket boundary. The first job that meets the file holds it and cuts it;
//!    the other bucket waits.
//!
//! Before all of this, tables that no reader needs are dropped by an edit alone. After it, tables
//! are rewritten or taken down for the space that they give back ([`reclaim`]). Last come jobs that
//! find hidden garbage of separated values, while writers are delayed for space (`hidden`).
//!
//! Cost: O(files of the levels that are due, and of the tables that may give space back).

mod freeing;
mod hidden;
mod picker;
pub mod reclaim;
mod share;

use std::sync::Arc;

use archipelago_base::{CfId, SeqNo};

use crate::key::KeyRange;
use crate::live_file::LiveFile;
use crate::version::{LAST_LEVEL, Running, Version, total_bytes};

pub use self::freeing::{Room, largest_job_bytes, pick_freeing, pick_part, pick_recut, pick_tiny};
pub use self::hidden::SpaceDemand;
use self::picker::Picker;
pub use self::reclaim::RangeInput;
pub use self::share::{compaction_jobs, flush_reserve_ns, is_loading, load_pause_ns, pick_of_all};

/// Limit on the inputs of a job that widens itself, in target file sizes.
const WIDEN_FILES_MAX: u64 = 25;

/// Everything that a decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct PickInput<'a> {
    /// The newest version of the column family; its settings count.
    pub version: &'a Version,
    /// Every running compaction, of whatever column family.
    pub running: &'a [Running],
    /// Largest number of compactions that run at the same time.
    pub jobs_max: usize,
    /// The sequence numbers of the live snapshots, ascending.
    pub snapshots: &'a [SeqNo],
    /// Newest published sequence number, as of the moment of `snapshots`.
    pub visible: SeqNo,
    /// Time by which records expire, in Unix milliseconds.
    pub now_ms: u64,
    /// Whether a load goes on: memtables are being sealed one after another. Due buckets then wait
    /// for larger batches.
    pub loading: bool,
    /// Demand of the bound on space, for each column family that has one.
    pub space: &'a [SpaceDemand],
}

/// A compaction to run.
#[derive(Clone, Debug)]
pub enum Pick {
    /// A job that takes a bucket's L0 files into the base level.
    L0ToBase {
        /// Index of the bucket.
        bucket: usize,
        /// L0 inputs, newest first.
        l0: Vec<Arc<LiveFile>>,
        /// Base-level inputs, in key order.
        base: Vec<Arc<LiveFile>>,
        /// The base level.
        to: usize,
        /// Numbers of the base-level inputs that reach outside the bucket. The job's outputs are
        /// cut at the bucket map, so that no file reaches outside it afterwards.
        straddlers: Vec<u64>,
    },
    /// A merge of a bucket's newest L0 files into one, because the way down is blocked.
    IntraL0 {
        /// Index of the bucket.
        bucket: usize,
        /// The inputs, newest first; neighbours by age.
        files: Vec<Arc<LiveFile>>,
    },
    /// A job that takes files of a level into the next one.
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
    /// A move of files that changes their level and rewrites nothing.
    TrivialMove {
        /// Level that the files leave.
        from: usize,
        /// Level that the files enter.
        to: usize,
        /// The files that move.
        files: Vec<Arc<LiveFile>>,
    },
    /// A rewrite of neighbours of one level below L0, without the records that no reader needs.
    Rewrite {
        /// Level of the files.
        level: usize,
        /// The files, in key order.
        files: Vec<Arc<LiveFile>>,
    },
    /// A removal, by an edit alone, of files that no reader needs.
    Drop {
        /// The files, each with its level.
        files: Vec<(usize, Arc<LiveFile>)>,
    },
}

impl Pick {
    /// The upper level of the inputs.
    #[must_use]
    pub fn from(&self) -> usize {
        match self {
            Self::L0ToBase { .. } | Self::IntraL0 { .. } => 0,
            Self::Level { from, .. } | Self::TrivialMove { from, .. } => *from,
            Self::Rewrite { level, .. } => *level,
            Self::Drop { files } => files.first().map_or(0, |(level, _)| *level),
        }
    }

    /// The level that is written. For a drop it is the level of its first file.
    #[must_use]
    pub fn to(&self) -> usize {
        match self {
            Self::IntraL0 { .. } => 0,
            Self::L0ToBase { to, .. } | Self::Level { to, .. } | Self::TrivialMove { to, .. } => {
                *to
            }
            Self::Rewrite { level, .. } => *level,
            Self::Drop { .. } => self.from(),
        }
    }

    /// Every input with its level.
    pub fn inputs(&self) -> impl Iterator<Item = (usize, &Arc<LiveFile>)> {
        let dropped: &[(usize, Arc<LiveFile>)] = match self {
            Self::Drop { files } => files,
            _ => &[],
        };
        let (upper, lower): (&[Arc<LiveFile>], &[Arc<LiveFile>]) = match self {
            Self::L0ToBase { l0, base, .. } => (l0, base),
            Self::Level { inputs, overlapping, .. } => (inputs, overlapping),
            Self::IntraL0 { files, .. } | Self::TrivialMove { files, .. } => (files, &[]),
            Self::Rewrite { files, .. } => (files, &[]),
            Self::Drop { .. } => (&[], &[]),
        };
        let (from, to) = (self.from(), self.to());
        let upper = upper.iter().map(move |file| (from, file));
        let merged = upper.chain(lower.iter().map(move |file| (to, file)));
        merged.chain(dropped.iter().map(|(level, file)| (*level, file)))
    }

    /// Length of all inputs in bytes.
    #[must_use]
    pub fn input_bytes(&self) -> u64 {
        total_bytes(self.inputs().map(|(_, file)| file))
    }

    /// A range that covers every key of the inputs. For a drop it is the empty range, because a
    /// drop writes nothing and blocks no job.
    #[must_use]
    pub fn range(&self) -> KeyRange {
        if let Self::Drop { .. } = self {
            return KeyRange { start: Vec::new(), end: Some(Vec::new()) };
        }
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
    let mut start: Option<&[u8]> = None;
    // The largest key, and whether it belongs to the range.
    let (mut last, mut inclusive): (&[u8], bool) = (&[], false);
    for file in files {
        start = Some(start.map_or(file.smallest.as_slice(), |start| start.min(&file.smallest)));
        (last, inclusive) = (last, inclusive).max((&file.largest, !file.largest_exclusive));
    }
    let mut end = last.to_vec();
    if inclusive {
        // The first key after `last`.
        end.push(0);
    }
    KeyRange { start: start.unwrap_or_default().to_vec(), end: Some(end) }
}

/// The compaction to start now. `None` if nothing is due, everything due is blocked, or enough jobs
/// run. For a further job, call again with this pick among the running jobs.
#[must_use]
pub fn pick(input: &PickInput<'_>) -> Option<Pick> {
    if input.running.len() >= input.jobs_max {
        return None;
    }
    let picker = Picker::new(input.version, input.running)
        .patient(input.loading)
        .urged(input.space_urgency());
    let version = input.version;
    if let Some(dropped) = picker.pick_drop(input) {
        return Some(dropped);
    }
    let mut levels: Vec<(f64, usize)> = (version.base_level()..LAST_LEVEL)
        .map(|level| (picker.idle_score(level), level))
        .filter(|&(score, _)| score > 1.0)
        .collect();
    levels.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    // L0 goes before the first level that is less urgent.
    let l0_score = picker.l0_urgency();
    let (before, after) = levels.split_at(levels.partition_point(|&(score, _)| score > l0_score));
    let deeper = |levels: &[(f64, usize)], waiting: &[KeyRange]| {
        levels.iter().find_map(|&(_, level)| picker.pick_level(level, waiting))
    };
    deeper(before, &[])
        .or_else(|| picker.pick_l0())
        .or_else(|| picker.pick_intra_l0())
        .or_else(|| deeper(after, &picker.due_l0()))
        .or_else(|| picker.pick_sink(input))
        .or_else(|| picker.pick_rewrite(input))
        .or_else(|| picker.pick_hidden(input))
}

/// Answer of [`pick_range`].
#[derive(Clone, Debug)]
pub enum RangePick {
    /// Run this job, then call again.
    Ready(Pick),
    /// Files in the range are in use: call again when a job has ended. Until then no background job
    /// may take the files of the pick or write where it writes. Otherwise the request might never
    /// be served under steady writes. `None` for L0, from which background jobs take the oldest
    /// files first.
    Blocked(Option<Pick>),
    /// The level has no file in the range that is still to be compacted.
    Done,
}

/// The next job of a compaction that a user requested. It brings files of `level` one level down
/// (L0: to the base level), and files of the last level into new files. Call it level by level from
/// 0 to the last, each until it is done. It never returns a trivial move, so that every record is
/// read.
///
/// The sequence of jobs ends under concurrent writes. Only files with a record that existed at the
/// beginning count ([`RangeInput::through`]). Jobs only take such records down, so their bytes
/// above the last level shrink with each pick. In the last level each file is written once.
#[must_use]
pub fn pick_range(wish: &RangeInput<'_>, level: usize) -> RangePick {
    let version = wish.input.version;
    let picker = Picker::new(version, wish.input.running);
    match level {
        0 => return picker.range_l0(wish),
        LAST_LEVEL => return picker.range_last(wish),
        _ => {}
    }
    let due: Vec<Arc<LiveFile>> = wish.due(version, level).cloned().collect();
    let Some(first) = due.first() else { return RangePick::Done };
    // The job takes as many neighbours as fit; the next call takes the rest.
    let most = WIDEN_FILES_MAX.saturating_mul(version.options().target_file_bytes);
    let all = version.level(level).files();
    for first in &due {
        let from = all.partition_point(|file| file.smallest < first.smallest);
        let mut len = 0;
        let mut bytes = 0u64;
        for file in &all[from..] {
            let is_due = due.iter().any(|due| due.no == file.no);
            bytes = bytes.saturating_add(file.size_bytes);
            if !is_due || picker.in_use.contains(&file.no) || (len > 0 && bytes > most) {
                break;
            }
            len += 1;
        }
        if len == 0 {
            continue;
        }
        let pick = picker.level_job(level, all[from..from + len].to_vec());
        if let Some(pick) = pick.or_else(|| picker.level_job(level, vec![Arc::clone(first)])) {
            return RangePick::Ready(pick);
        }
    }
    let inputs = vec![Arc::clone(first)];
    let overlapping = version.overlapping(level + 1, &hull(&inputs)).to_vec();
    RangePick::Blocked(Some(Pick::Level { from: level, to: level + 1, inputs, overlapping }))
}

/// The tables of the version that no reader needs, whether or not enough jobs run.
#[must_use]
pub fn pick_drop(input: &PickInput<'_>) -> Option<Pick> {
    Picker::new(input.version, input.running).pick_drop(input)
}

#[cfg(test)]
mod tests;
