//! Compaction of a key range on a user's request.
//!
//! The caller's thread runs the jobs, one after another. Background jobs that take the same files
//! count as progress. [`pick_range`] decides which job comes next.
//!
//! Invariants:
//! 1. A compaction of a range ends even if users go on writing. At its end, every record of the
//!    range that was written before the call lies in a table of the last level. The call has
//!    written that table, or the table had nothing to gain from being written again
//!    ([`RangeInput`]).
//! 2. While it waits for files that running jobs use, a *claim* keeps further background jobs from
//!    taking the files of its next job. The claim ends under the same hold of the jobs lock under
//!    which that job starts.
//! 3. After its end, also by an error, no claim remains, and the results of its installed jobs
//!    stay.
//!
//! Thread-safety: any number of compactions of ranges may run at the same time.
//! Failure: an error of a job ends the call. So does the close of the database, the drop of the
//! family, an error that makes the database read only, or a cancel.
//! Cost: every job reads and writes its inputs. The choice of a job is O(files of the range).

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use archipelago_base::{Error, Result, SeqNo};

use crate::border::Border;
use crate::compaction::pick::{Pick, PickInput, RangeInput, RangePick, pick_drop, pick_range};
use crate::db::ColumnFamily;
use crate::db::background::compaction::{self, CompactionEnd};
use crate::db::background::compaction_pick;
use crate::db::background::scheduler;
use crate::db::inner::DbInner;
use crate::db::state::context::Context;
use crate::db::state::jobs::Jobs;
use crate::job::Cancel;
use crate::key::KeyRange;
use crate::lock_order::Order;
use crate::options::LEVELS;
use crate::version::Version;

/// Tables of the last level that a compaction of a range writes again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LastLevel {
    /// Tables that gain something, which is the default. Such a table has deletes, range
    /// tombstones, expired records, versions that no snapshot needs, or another compression than
    /// the family's, or the family has a compaction filter. A table with separated values also
    /// gains if the family does not separate values any more. A table without separated values
    /// gains if its records have on average at least
    /// [`CfOptions::value_separation_bytes`](crate::options::CfOptions::value_separation_bytes)
    /// bytes.
    #[default]
    WhereItGains,
    /// All tables that existed at the beginning.
    Always,
}

/// Function that receives the progress of a compaction: bytes of tables that are done, and bytes in
/// all. Both are estimates, and the second may grow.
pub type OnProgress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Settings of [`Db::compact_range_with`](crate::db::Db::compact_range_with).
#[derive(Clone, Default)]
pub struct CompactRangeOptions {
    /// Tables of the last level that are written again. Default: those that gain something.
    pub last_level: LastLevel,
    /// Flag that cancels the compaction from another thread. Default: a flag that is never set.
    pub cancel: Cancel,
    /// Function that is called on the caller's thread before each job and at the end. Default:
    /// none.
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
    /// Number that identifies its claim.
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

    /// Reports the progress. `bytes_due` is the number of bytes that are left.
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

/// Claim of a compaction of a range. The drop removes it, also after an error.
struct Claim<'a> {
    jobs: &'a Jobs,
    id: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.jobs.lock(Order::none()).set_claim(self.id, None);
        self.jobs.wake();
    }
}

/// A compaction of a range that a caller asks for.
pub(crate) struct RangeRequest<'a> {
    pub(crate) cf: &'a ColumnFamily,
    pub(crate) range: &'a KeyRange,
    pub(crate) options: &'a CompactRangeOptions,
    /// The last sequence number that was visible before the call.
    pub(crate) through: SeqNo,
}

/// Compacts a range whose memtables were flushed. See
/// [`Db::compact_range_with`](crate::db::Db::compact_range_with).
pub(crate) fn compact_range(db: &DbInner, request: &RangeRequest<'_>) -> Result<()> {
    let RangeRequest { cf, range, options, through } = *request;
    let id = db.jobs.lock(Order::none()).new_job_id();
    let mut wish = Wish {
        cf,
        range,
        options,
        id,
        through,
        first_new_no: db.storage.file_numbers().next().0,
        written: HashSet::new(),
        bytes_done: 0,
        bytes_due: 0,
    };
    let _claim = Claim { jobs: &db.jobs, id: wish.id };
    while compact_step(db, &mut wish, None)? {}
    for level in 0..LEVELS {
        while compact_step(db, &mut wish, Some(level))? {}
    }
    wish.report(0);
    Ok(())
}

/// Runs one job of a wish, at `level`, or a job that drops tables without reading them (`None`).
/// Returns `false` if no job is left.
fn compact_step(db: &DbInner, wish: &mut Wish<'_>, level: Option<usize>) -> Result<bool> {
    wish.cf.family.check_alive()?;
    db.context.check_open()?;
    wish.check_cancelled()?;
    let (snapshots, visible) = db.view.snapshots().list(|| db.view.visible());
    let mut state = db.jobs.lock(Order::none());
    state.set_claim(wish.id, None);
    let version = Arc::clone(&wish.cf.family.current.load().version);
    let running = state.running().compactions_and_ingestions();
    let input = pick_input(&db.context, &version, &running, &snapshots, visible);
    let picked = match level {
        None => pick_drop(&input).map_or(RangePick::Done, RangePick::Ready),
        Some(level) => pick_range(&wish.input(input), level),
    };
    match picked {
        RangePick::Done => Ok(false),
        RangePick::Blocked(next) => {
            state.set_claim(wish.id, next.map(|next| next.running(wish.cf.id())));
            drop(state);
            scheduler::progress_or_step(db, Order::none())?;
            Ok(true)
        }
        RangePick::Ready(pick) => {
            let due_bytes = wish.input(input).due_bytes();
            let family = Arc::clone(&wish.cf.family);
            let is_last = pick.to() == LEVELS - 1 && !matches!(pick, Pick::Drop { .. });
            let mut task = compaction_pick::start_compaction(&mut state, family, version, pick);
            task.by_hand = true;
            task.cancel = wish.options.cancel.clone();
            drop(state);
            let callback = Border::new("callback", "on_progress", Some(wish.cf.name()));
            let CompactionEnd { written, warm_pass } =
                match callback.call(|| wish.report(due_bytes)) {
                    Ok(()) => compaction::run_compaction_task(db, &task),
                    Err(error) => {
                        compaction::end_compaction(db.stall_owners(), &db.disk, &task);
                        CompactionEnd { written: Err(error), warm_pass: None }
                    }
                };
            drop(task);
            if let Some(pass) = warm_pass {
                pass.start(&db.storage, db.reader(), &db.warm_passes);
            }
            scheduler::remove_obsolete(&db.storage, &db.observers, &db.view);
            wish.check_cancelled()?;
            // A job that ended because its family was dropped or the database closes is no
            // failure.
            let is_moot = wish.cf.family.check_alive().is_err() || db.context.is_closing();
            if let (Err(error), false) = (&written, is_moot) {
                db.observers.tell_failure("compaction of a range on request", error);
            }
            let written = written?;
            wish.written.extend(written.into_iter().filter(|_| is_last));
            Ok(true)
        }
    }
}

fn pick_input<'a>(
    context: &Context,
    version: &'a Version,
    running: &'a [crate::version::Running],
    snapshots: &'a [SeqNo],
    visible: SeqNo,
) -> PickInput<'a> {
    let now_ms = context.clock().unix_ms();
    PickInput {
        version,
        running,
        jobs_max: usize::MAX,
        snapshots,
        visible,
        now_ms,
        loading: false,
        space: &[],
    }
}
