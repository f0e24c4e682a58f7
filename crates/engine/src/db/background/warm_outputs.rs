//! Keeps the block cache warm when a compaction ran in another process.
//!
//! A compaction in this process puts blocks of its outputs into the block cache as it writes them
//! ([`crate::sst::TableBuilder::warming`]). A compaction elsewhere cannot, and so every offloaded
//! job would make the next reads of its keys slower. Before the install, the owner therefore notes
//! which blocks of the inputs are cached ([`plan`]). After the install, a *warm pass* reads the
//! blocks of the outputs that hold the same keys ([`WarmPass`]). The module
//! [`crate::db::background::warm_plan`] chooses the blocks.
//!
//! The passes of a database run on a thread of their own, because a pass may take minutes. On a
//! worker it would keep flushes waiting, and on the thread of a caller of `compact_range` it would
//! keep that caller waiting. In manual mode a pass runs on the thread that ran the compaction.
//!
//! Invariants:
//! 1. The data blocks that a pass reads have at most the bytes in their files that the cached data
//!    blocks of the inputs had. In addition the pass opens the outputs that may have such blocks,
//!    and reads their index partitions. It reads each partition at most once, and only while it may
//!    read further data blocks.
//! 2. While the cache evicts blocks, a data block is read only if at least half of the input blocks
//!    that it overlaps were cached. So blocks without readers do not push others out.
//! 3. A database has at most [`PASSES_MAX`] passes ([`WarmPermit`]), of which one runs and the
//!    others wait. The blocks of a compaction that is installed beyond them stay cold.
//! 4. A pass holds neither a version nor a task. It holds a file only while it reads that file.
//! 5. A pass ends before its next read when its job is cancelled, when the database closes, or when
//!    the memory budget is exceeded. It ends before its next file when the family is dropped.
//! 6. A pass has its permit from before the end of its compaction until its own end. So a caller
//!    that waits for the end of all compactions and then for the passes misses none
//!    ([`scheduler::wait_for_warm_passes`]).
//!
//! Thread-safety: a pass belongs to one thread. Any thread may start one.
//! Failure: a read that fails, or a panic, ends the pass with a warning in the log. The block stays
//! cold, and the next user read of it reports the error.
//! Cost: the memory of [`PASSES_MAX`] plans ([`crate::db::background::warm_plan`]), and one pass
//! over the index of each output that may have wanted blocks. All reads together are limited to
//! [`WARM_BYTES_PER_S`]; those of an open are charged after it, because their length is not known
//! before. One thread, which is idle without a pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use archipelago_base::Result;
use archipelago_base::budget::{ByteBudget, Pressure};
use archipelago_base::clock::Clock;
use archipelago_env::limit::{Priority, RateLimiter};
use parking_lot::Mutex;

use crate::border::contained;
use crate::db::background::compaction_pick::CompactionTask;
use crate::db::background::scheduler;
use crate::db::background::warm_plan::{InputSpans, WarmPlan};
use crate::db::inner::DbInner;
use crate::db::read::{ReadView, Reader};
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::jobs::Jobs;
use crate::db::state::observers::Observers;
use crate::db::state::storage::Storage;
use crate::file_meta::FileMeta;
use crate::job::Cancel;
use crate::live_file::LiveFile;
use crate::sst::{BlockCache, BlockSpan, TableBlocks, WarmChoice};
use crate::stats::Ticker;
use crate::version::Version;

/// Speed of the reads that keep the block cache of a database warm, in bytes a second.
const WARM_BYTES_PER_S: u64 = 32 << 20;
/// Largest number of passes that wait or run. Jobs of one database end together, so passes wait for
/// each other. The bound limits the memory of their plans.
const PASSES_MAX: usize = 4;
/// Largest number of bytes of one wait for the limiter. A pass that is cancelled ends its wait
/// after one piece.
const PIECE_BYTES: u64 = 1 << 20;

/// The warm passes of an open database.
pub(crate) struct WarmPasses {
    /// Number of passes that wait or run.
    count: Arc<AtomicUsize>,
    /// The way to the thread; `None` if there is none, as in manual mode.
    thread: Mutex<Option<Sender<WarmPass>>>,
    limiter: RateLimiter,
}

impl Default for WarmPasses {
    fn default() -> Self {
        let limiter = RateLimiter::new(WARM_BYTES_PER_S);
        Self { count: Arc::default(), thread: Mutex::default(), limiter }
    }
}

impl WarmPasses {
    /// Permission for a pass; `None` if as many wait or run as may.
    fn permit(&self) -> Option<WarmPermit> {
        let one_more = |count| (count < PASSES_MAX).then_some(count + 1);
        self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(WarmPermit(Arc::clone(&self.count)))
    }

    /// Whether a pass waits or runs.
    pub(crate) fn has_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether no further pass is permitted.
    fn is_full(&self) -> bool {
        self.count.load(Ordering::Acquire) >= PASSES_MAX
    }

    /// The passes from now on, for the thread that calls [`run_passes`].
    pub(crate) fn open(&self) -> Receiver<WarmPass> {
        let (sender, passes) = channel();
        *self.thread.lock() = Some(sender);
        passes
    }

    /// Ends the thread after the passes that wait or run.
    pub(crate) fn close(&self) {
        drop(self.thread.lock().take());
    }
}

/// Permission for a warm pass. The drop ends it.
struct WarmPermit(Arc<AtomicUsize>);

impl Drop for WarmPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Runs warm passes until [`WarmPasses::close`].
pub(crate) fn run_passes(db: &DbInner, passes: &Receiver<WarmPass>) {
    while let Ok(pass) = passes.recv() {
        pass.run(&db.storage, db.reader(), &db.warm_passes);
        db.jobs.notify_progress();
    }
}

/// The plan of a compaction that is about to be installed; `None` if its executor runs in this
/// process, if no further pass is permitted, or if no block of its inputs is cached.
pub(crate) fn plan(
    jobs: &Jobs,
    warm_passes: &WarmPasses,
    task: &CompactionTask,
) -> Option<WarmPlan> {
    if jobs.executor().runs_here() || warm_passes.is_full() {
        return None;
    }
    let block_bytes = task.family.options.block_bytes as u64;
    let inputs = task.pick.inputs().map(|(_, file)| {
        let spans = match file.reader.load_full() {
            Some(table) => TableBlocks(&table).spans(),
            // A table that is not open has no blocks that a user read lately.
            None => vec![closed_span(file.meta(), block_bytes)],
        };
        InputSpans::new(file.meta().smallest.clone(), spans)
    });
    WarmPlan::over(inputs.collect())
}

/// All data blocks of a table that is not open. Their number is an estimate.
fn closed_span(meta: &FileMeta, block_bytes: u64) -> BlockSpan {
    BlockSpan {
        last: meta.largest.clone(),
        bytes: meta.size_bytes,
        blocks: meta.size_bytes.div_ceil(block_bytes.max(1)),
        is_cached: false,
    }
}

/// A plan at work.
struct Warming<'a> {
    plan: &'a mut WarmPlan,
    cache: &'a BlockCache,
    /// Blocks that the cache had evicted when the work began.
    evicted: u64,
    budget: &'a ByteBudget,
    limiter: &'a RateLimiter,
    clock: &'a dyn Clock,
    cancel: &'a Cancel,
}

impl Warming<'_> {
    /// Whether the pass may go on. While the budget is exceeded, the cache shrinks, and each block
    /// that is read pushes another one out.
    fn may_go_on(&self) -> bool {
        !self.cancel.is_cancelled() && self.budget.pressure() != Pressure::Over
    }
}

impl WarmChoice for Warming<'_> {
    fn may_want(&mut self, after: Option<&[u8]>, last: &[u8]) -> bool {
        self.plan.may_want(after, last)
    }

    fn wants(&mut self, after: Option<&[u8]>, last: &[u8], bytes: u64) -> bool {
        let has_room = self.cache.evicted() == self.evicted;
        self.plan.wants(after, last, bytes, has_room)
    }

    fn waits_for(&mut self, bytes: u64) -> bool {
        let mut left = bytes;
        while left > 0 && self.may_go_on() {
            let piece = left.min(PIECE_BYTES);
            self.limiter.request(piece, Priority::Compaction, self.clock);
            left -= piece;
        }
        self.may_go_on()
    }
}

/// A warm pass over the outputs of one compaction. It names the files by number, so that it keeps
/// none alive before it runs.
pub(crate) struct WarmPass {
    plan: WarmPlan,
    family: Arc<Family>,
    /// Level in which the outputs were installed.
    level: usize,
    /// Numbers of the outputs, in key order.
    files: Vec<u64>,
    /// Set when the job is cancelled or the database closes.
    cancel: Cancel,
    _permit: WarmPermit,
}

impl WarmPass {
    /// The pass over the outputs `files` of a compaction that was installed; `None` if no further
    /// pass is permitted. The files are in key order.
    pub(crate) fn new(
        context: &Context,
        warm_passes: &WarmPasses,
        task: &CompactionTask,
        files: &[u64],
        plan: WarmPlan,
    ) -> Option<Self> {
        let Some(permit) = warm_passes.permit() else {
            tracing::debug!(
                family = task.family.name.as_str(),
                level = task.pick.to(),
                files = files.len(),
                bytes_max = plan.bytes_left(),
                "the outputs of a compaction stay cold, because other warm passes are due"
            );
            return None;
        };
        Some(Self {
            plan,
            family: Arc::clone(&task.family),
            level: task.pick.to(),
            files: files.to_vec(),
            cancel: Cancel::under(context.closing()).linked_to(&task.cancel),
            _permit: permit,
        })
    }

    /// Gives the pass to the thread of the database, and does not wait for it. Without such a
    /// thread the pass runs here. The caller has dropped the task, which holds the files that the
    /// compaction replaced.
    pub(crate) fn start(self, storage: &Storage, reader: Reader<'_>, warm_passes: &WarmPasses) {
        let thread = warm_passes.thread.lock().clone();
        let Some(thread) = thread else { return self.run(storage, reader, warm_passes) };
        if thread.send(self).is_err() {
            tracing::warn!("the thread of the warm passes has ended: the block cache stays cold");
        }
    }

    fn run(mut self, storage: &Storage, reader: Reader<'_>, warm_passes: &WarmPasses) {
        let passed = contained("a warm pass", || {
            // The blocks of the files that the compaction replaced leave the cache first.
            scheduler::remove_obsolete(storage, reader.observers, reader.view);
            let read = self.read_outputs(reader, warm_passes);
            // A job that replaced a file while the pass held it could not remove that file.
            scheduler::remove_obsolete(storage, reader.observers, reader.view);
            read
        });
        if let Err(error) = passed {
            let family = self.family.name.as_str();
            tracing::warn!(%error, family, "the block cache stays cold");
        }
    }

    fn read_outputs(&mut self, reader: Reader<'_>, warm_passes: &WarmPasses) -> Result<()> {
        reader.context.fault_point("warm_pass.begun")?;
        let Self { plan, family, level, files, cancel, .. } = self;
        let cache = reader.view.cache();
        let mut warming = Warming {
            plan,
            cache,
            evicted: cache.evicted(),
            budget: reader.context.budget(),
            limiter: &warm_passes.limiter,
            clock: &**reader.context.clock(),
            cancel,
        };
        // Largest key of the file before.
        let mut after: Option<Vec<u8>> = None;
        for no in files.iter() {
            if !warming.may_go_on() || family.check_alive().is_err() {
                break;
            }
            // A later job may have replaced the file already.
            let Some(file) = current_file(family, *level, *no) else { continue };
            let largest = file.meta().largest.clone();
            if warming.may_want(after.as_deref(), &largest) {
                warm_file(reader.observers, reader.view, &file, after, &mut warming)?;
            }
            after = Some(largest);
        }
        Ok(())
    }
}

/// Reads the wanted blocks of a file, whose keys are above `after`.
fn warm_file(
    observers: &Observers,
    view: &ReadView,
    file: &Arc<LiveFile>,
    after: Option<Vec<u8>>,
    warming: &mut Warming<'_>,
) -> Result<()> {
    let was_open = file.reader.load().is_some();
    let table = view.tables().get(file)?;
    if !was_open && !warming.waits_for(table.memory_bytes()) {
        return Ok(());
    }
    let (blocks, bytes) = TableBlocks(&table).warm(after, warming)?;
    observers.stats().add(Ticker::BlocksWarmed, blocks);
    observers.stats().add(Ticker::BytesWarmed, bytes);
    Ok(())
}

/// The file `no` of `level`, if the newest version of the family has it.
fn current_file(family: &Family, level: usize, no: u64) -> Option<Arc<LiveFile>> {
    file_at(&family.current.load().version, level, no).cloned()
}

fn file_at(version: &Version, level: usize, no: u64) -> Option<&Arc<LiveFile>> {
    let is_it = |file: &&Arc<LiveFile>| file.meta().no == no;
    match level {
        0 => (0..version.map().len()).flat_map(|bucket| version.l0(bucket)).find(is_it),
        _ => version.level(level).files().iter().find(is_it),
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::budget::MemoryClass;
    use archipelago_base::clock::SystemClock;

    use super::*;

    /// Answers of a pass that may wait for a read before and after `event`.
    fn waits_around(event: impl FnOnce(&Cancel, &Arc<ByteBudget>)) -> [bool; 2] {
        let (clock, limiter) = (SystemClock::shared(), RateLimiter::new(0));
        let budget = ByteBudget::new(1 << 30);
        let cache = BlockCache::new(0, &budget);
        let job = Cancel::default();
        let cancel = Cancel::default().linked_to(&job);
        let span = BlockSpan { last: b"z".to_vec(), bytes: 10, blocks: 1, is_cached: true };
        let mut plan = WarmPlan::over(vec![InputSpans::new(b"a".to_vec(), vec![span])]).unwrap();
        let mut warming = Warming {
            plan: &mut plan,
            cache: &cache,
            evicted: cache.evicted(),
            budget: &budget,
            limiter: &limiter,
            clock: &*clock,
            cancel: &cancel,
        };
        let before = warming.waits_for(10);
        event(&job, &budget);
        [before, warming.waits_for(10)]
    }

    #[test]
    fn pass_waits_for_no_read_after_the_cancel_of_its_job() {
        assert_eq!(waits_around(|job, _| job.cancel()), [true, false]);
    }

    #[test]
    fn pass_waits_for_no_read_while_the_budget_is_exceeded() {
        let charge =
            |budget: &Arc<ByteBudget>| budget.charge(MemoryClass::Job, budget.limit_bytes() + 1);
        assert_eq!(waits_around(|_, budget| charge(budget)), [true, false]);
    }

    #[test]
    fn few_passes_are_permitted_at_a_time() {
        let passes = WarmPasses::default();
        for _ in 0..2 {
            assert!(!passes.has_any());
            let mut permits: Vec<_> = (0..PASSES_MAX).map(|_| passes.permit().unwrap()).collect();
            assert!(passes.permit().is_none() && passes.is_full() && passes.has_any());
            permits.pop();
            assert!(!passes.is_full() && passes.has_any());
            permits.push(passes.permit().unwrap());
            assert!(passes.permit().is_none());
        }
        // A pass that panics gives its permission back.
        let panicked = contained("a pass", || -> Result<()> {
            let _permit = passes.permit();
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        assert!(!passes.has_any());
    }

    #[test]
    fn closed_passes_end_their_thread() {
        let passes = WarmPasses::default();
        let receiver = passes.open();
        passes.close();
        assert!(receiver.recv().is_err());
        passes.close();
    }
}
