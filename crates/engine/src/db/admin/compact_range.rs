//! Compaction of a key range on a user's request.
//!
//! The caller's thread runs the jobs, one after another; background jobs that take the same files
//! count as progress. Which job comes next is decided by [`pick_range`].
//!
//! Invariants:
//! 1. It ends while others write: it is over when every record of the range that was written before
//!    the call lies in a table of the last level that was written for it, or that had nothing to
//!    gain from being written again ([`RangeInput`]).
//! 2. While it waits for files that running jobs use, a *claim* keeps further background jobs away
//!    from the files of its next job. A claim is left under the lock under which the job starts.
//! 3. However it ends, no claim is left behind, and every job that it installed stays.
//!
//! Failure: the error of a job ends it, as do the close of the database, a family that is dropped,
//! an error that makes the database read only, and a cancel.
//! Cost: every job reads and writes its inputs; beside that O(files of the range) for each job.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::{Error, Result, SeqNo};

use crate::border::Border;
use crate::compaction::pick::{Pick, PickInput, RangeInput, RangePick, pick_drop, pick_range};
use crate::db::inner::DbInner;
use crate::db::{ColumnFamily, Db};
use crate::job::Cancel;
use crate::key::KeyRange;
use crate::options::LEVELS;
use crate::version::Version;

/// Which tables of the last level a compaction of a range writes again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LastLevel {
    /// Those that gain something: they have deletes, range tombstones, expired records or versions
    /// that no snapshot needs, another compression than the family's, or the family has a
    /// compaction filter. The default.
    #[default]
    WhereItGains,
    /// All tables that were there at the beginning.
    Always,
}

/// What is told of a compaction's progress: bytes of tables that were done, and bytes in all. Both
/// are estimates; the second may grow.
pub type OnProgress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Settings of [`Db::compact_range_with`].
#[derive(Clone, Default)]
pub struct CompactRangeOptions {
    /// Which tables of the last level are written again. Default: those that gain something.
    pub last_level: LastLevel,
    /// Ends the compaction from another thread. Default: one that nobody sets.
    pub cancel: Cancel,
    /// Called on the caller's thread before each job and at the end. Default none.
    pub on_progress: Option<OnProgress>,
}

impl fmt::Debug for CompactRangeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompactRangeOptions")
            .field("last_level", &self.last_level)
            .field("cancel", &self.cancel)
            .finish_non_exhaustive()
    }
}

/// A compaction of a range that is under way.
struct Wish<'a> {
    cf: &'a ColumnFamily,
    range: &'a KeyRange,
    options: &'a CompactRangeOptions,
    /// Number of its claim.
    id: u64,
    through: SeqNo,
    first_new_no: u64,
    written: HashSet<u64>,
    bytes_done: u64,
    bytes_due: u64,
}

impl Wish<'_> {
    fn input<'v>(&'v self, input: PickInput<'v>) -> RangeInput<'v> {
        RangeInput {
            input,
            range: self.range,
            through: self.through,
            first_new_no: self.first_new_no,
            is_forced: self.options.last_level == LastLevel::Always,
            written: &self.written,
        }
    }

    /// Tells how far it is, when `bytes_due` are left.
    fn report(&mut self, bytes_due: u64) {
        let Some(on_progress) = &self.options.on_progress else { return };
        self.bytes_done += self.bytes_due.saturating_sub(bytes_due);
        self.bytes_due = bytes_due;
        on_progress(self.bytes_done, self.bytes_done + bytes_due);
    }

    fn check_cancelled(&self) -> Result<()> {
        if self.options.cancel.is_cancelled() {
            return Err(Error::closed("the compaction was cancelled; what it had finished stays"));
        }
        Ok(())
    }
}

/// Takes a wish's claim back, however it ends.
struct Claim<'a> {
    inner: &'a DbInner,
    id: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.inner.state.lock().claims.retain(|(id, _)| *id != self.id);
        self.inner.wake();
    }
}

impl Db {
    /// Compacts the keys of `range` down to the last level and waits for it; flushes first. Tables
    /// of the last level are written again where that gives something back: see [`LastLevel`].
    ///
    /// Everything that was written before the call is compacted when it returns. Others may write
    /// meanwhile. Errors: those of [`Db::compact_range_with`].
    pub fn compact_range(&self, cf: &ColumnFamily, range: &KeyRange) -> Result<()> {
        self.compact_range_with(cf, range, &CompactRangeOptions::default())
    }

    /// [`Db::compact_range`] with settings.
    ///
    /// Errors: `Closed` if it was cancelled, the database closed or the family dropped meanwhile;
    /// `ReadOnly` if the database takes no writes; the error of a job that failed. What was
    /// compacted before an error stays.
    pub fn compact_range_with(
        &self,
        cf: &ColumnFamily,
        range: &KeyRange,
        options: &CompactRangeOptions,
    ) -> Result<()> {
        let through = self.inner.visible();
        self.flush(cf)?;
        let id = {
            let mut state = self.inner.state.lock();
            state.next_job_id += 1;
            state.next_job_id - 1
        };
        let wish = Wish {
            cf,
            range,
            options,
            id,
            through,
            first_new_no: self.inner.file_numbers.next().0,
            written: HashSet::new(),
            bytes_done: 0,
            bytes_due: 0,
        };
        self.inner.compact_range(wish)
    }
}

impl DbInner {
    fn compact_range(&self, mut wish: Wish<'_>) -> Result<()> {
        let _claim = Claim { inner: self, id: wish.id };
        while self.compact_step(&mut wish, None)? {}
        for level in 0..LEVELS {
            while self.compact_step(&mut wish, Some(level))? {}
        }
        wish.report(0);
        Ok(())
    }

    /// One job of a wish, at `level`, or one that drops tables without reading them (`None`);
    /// `false` if there is none left.
    fn compact_step(&self, wish: &mut Wish<'_>, level: Option<usize>) -> Result<bool> {
        wish.cf.family.check_alive()?;
        self.check_open()?;
        wish.check_cancelled()?;
        let (snapshots, visible) = self.snapshots.list(|| self.visible());
        let mut state = self.state.lock();
        state.claims.retain(|(id, _)| *id != wish.id);
        let version = Arc::clone(&wish.cf.family.current.load().version);
        let running = state.compactions_and_ingestions();
        let input = self.pick_input(&version, &running, &snapshots, visible);
        let picked = match level {
            None => pick_drop(&input).map_or(RangePick::Done, RangePick::Ready),
            Some(level) => pick_range(&wish.input(input), level),
        };
        match picked {
            RangePick::Done => Ok(false),
            RangePick::Blocked(next) => {
                if let Some(next) = next {
                    state.claims.push((wish.id, next.running(wish.cf.id())));
                }
                drop(state);
                self.progress_or_step()?;
                Ok(true)
            }
            RangePick::Ready(pick) => {
                let due_bytes = wish.input(input).due_bytes();
                let family = Arc::clone(&wish.cf.family);
                let is_last = pick.to() == LEVELS - 1 && !matches!(pick, Pick::Drop { .. });
                let mut task = state.start_compaction(family, version, pick);
                task.by_hand = true;
                task.cancel = wish.options.cancel.clone();
                drop(state);
                let callback = Border::new("callback", "on_progress", Some(wish.cf.name()));
                let result = match callback.call(|| wish.report(due_bytes)) {
                    Ok(()) => self.run_compaction_task(&task),
                    Err(error) => {
                        self.end_compaction(&task);
                        Err(error)
                    }
                };
                drop(task);
                self.remove_obsolete();
                wish.check_cancelled()?;
                // A job that ended because its family was dropped or the database closes is no
                // failure.
                let is_moot =
                    wish.cf.family.check_alive().is_err() || self.closing.load(Ordering::Acquire);
                if let (Err(error), false) = (&result, is_moot) {
                    self.tell_failure("compaction of a range by hand", error);
                }
                let written = result?;
                wish.written.extend(written.into_iter().filter(|_| is_last));
                Ok(true)
            }
        }
    }

    fn pick_input<'a>(
        &self,
        version: &'a Version,
        running: &'a [crate::version::Running],
        snapshots: &'a [SeqNo],
        visible: SeqNo,
    ) -> PickInput<'a> {
        let now_ms = self.clock.unix_ms();
        PickInput {
            version,
            running,
            jobs_max: usize::MAX,
            snapshots,
            visible,
            now_ms,
            loading: false,
        }
    }
}
