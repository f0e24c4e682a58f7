//! The state of an open database, who guards which part of it, and the lock order.
//!
//! Locks, in the order in which they may be taken: the **commit lock** (`db::write::commit`:
//! sequence numbers, log, active memtables), the **manifest lock** (`manifest`: installs, one at a
//! time, held over the manifest's I/O), the **state lock** (`state`: sealed memtables, running
//! jobs, log segments; never held over I/O). Reads take none of them: they load a family's
//! [`SuperVersion`](crate::db::state::family::SuperVersion) and the visible sequence number.
//!
//! Invariants:
//! 1. A family's super version changes only under the state lock.
//! 2. A version is published only while the manifest lock is held since its edit was applied, so
//!    super versions follow the manifest's order.
//! 3. A log segment is removed only when no unflushed record lies in it.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use archipelago_base::budget::{ByteBudget, Charge};
use archipelago_base::clock::Clock;
use archipelago_base::random::Rng;
use archipelago_base::{CfId, Error, FileNo, Result, SeqNo};
use archipelago_env::foreground::Foreground;
use archipelago_env::limit::RateLimiter;
use archipelago_env::{FileLock, FileSystem};
use parking_lot::{Condvar, Mutex};

use crate::border::ExtensionPanic;
use crate::concurrency::RowLocks;
use crate::db::background::rebalance::Balance;
use crate::db::lifecycle::catch_up::Following;
use crate::db::lifecycle::open::FaultPoint;
use crate::db::read::snapshot::{HeldFamily, Snapshots};
use crate::db::state::background_mode::BackgroundMode;
use crate::db::state::family::{Family, SuperVersion};
use crate::db::state::health::Health;
use crate::db::state::job_threads::Hands;
use crate::db::state::memtable::{Birth, Immutable, Memtable};
use crate::db::write::commit::Committer;
use crate::db::write::disk_room::Disk;
use crate::event::{Event, Listeners};
use crate::executor::JobExecutor;
use crate::extension::Registry;
use crate::live_file::Trash;
use crate::manifest::{FileNumbers, ImpossibleEdit, Marks, VersionSet};
use crate::memory_shares::MemoryShares;
use crate::memtable::SlabPool;
use crate::options::{CfOptions, DbOptions};
use crate::sst::BlockCache;
use crate::stall::{DelayController, RateMeter};
use crate::stats::{Statistics, Ticker};
use crate::table_cache::TableCache;
use crate::version::rebalance::RunningFlush;
use crate::version::{Running, Version};

/// What becomes of one shard of a sealed memtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardState {
    /// Waits for a flush.
    Pending,
    /// A flush job has it.
    Running,
    /// Its records are in installed files (or it has none).
    Installed,
}

/// A sealed memtable on its way to L0.
pub(crate) struct Sealed {
    pub(crate) memtable: Arc<Memtable>,
    pub(crate) view: Arc<Immutable>,
    pub(crate) shards: Vec<ShardState>,
    /// Whether its shards have filters and empty ones are marked installed.
    pub(crate) ready: bool,
}

/// The sealed memtables of a family, oldest first.
#[derive(Default)]
pub(crate) struct FlushTracker {
    pub(crate) queue: VecDeque<Sealed>,
}

/// A live log segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogSegment {
    pub(crate) no: FileNo,
    pub(crate) bytes: u64,
}

/// The segment that a log ended with; `None` for a log that never had one.
pub(crate) type LogEnd = Option<crate::wal::SegmentRef>;

/// A running job, as scheduling sees it.
#[derive(Clone, Debug)]
pub(crate) struct RunningJob {
    pub(crate) id: u64,
    pub(crate) kind: RunningKind,
}

/// What a running job holds.
#[derive(Clone, Debug)]
pub(crate) enum RunningKind {
    /// A flush of a family's key range.
    Flush { cf: CfId, flush: RunningFlush },
    /// A compaction.
    Compaction(Running),
    /// A change of a family's bucket map in a key range.
    MapChange { cf: CfId, range: crate::key::KeyRange },
    /// An ingestion between the choice of its levels and its install: for each file, where it goes.
    Ingestion(Vec<Running>),
}

/// What the state lock guards.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) flushes: BTreeMap<CfId, FlushTracker>,
    pub(crate) running: Vec<RunningJob>,
    /// What is known of each family's load.
    pub(crate) balances: BTreeMap<CfId, Balance>,
    /// Closed segments that are still needed, oldest first.
    pub(crate) logs: VecDeque<LogSegment>,
    /// Segments whose space may be used again.
    pub(crate) spare_logs: Vec<PathBuf>,
    pub(crate) next_job_id: u64,
    /// Background failures in a row, for the pause before the next try.
    pub(crate) failures_in_row: u32,
    /// When the pause is over.
    pub(crate) retry_at_ns: u64,
    /// A closed log segment is not whole: everything in memory is to be flushed at once.
    pub(crate) leave_log: bool,
    /// Memtables that a worker is readying.
    pub(crate) readying: Vec<u64>,
    /// What users who compact a range wait for, each with its owner's number: no background job
    /// takes these files or writes into these ranges.
    pub(crate) claims: Vec<(u64, Running)>,
    /// When positive, background picks nothing new (leaving the log, map change by hand).
    pub(crate) paused: usize,
}

/// See the module.
pub(crate) struct DbInner {
    pub(crate) token: u64,
    pub(crate) dir: PathBuf,
    pub(crate) options: DbOptions,
    pub(crate) background: BackgroundMode,
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) registry: Registry,
    pub(crate) listeners: Listeners,
    pub(crate) budget: Arc<ByteBudget>,
    pub(crate) slabs: Arc<SlabPool>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) tables: Arc<TableCache>,
    pub(crate) limiter: Arc<RateLimiter>,
    /// Who reads, for compactions to let go first, and whether they may.
    pub(crate) foreground: Arc<Foreground>,
    pub(crate) stats: Arc<Statistics>,
    /// Look-ups that memtables had answered, and seeks, when the last memtable was sealed.
    pub(crate) reads_at_seal: AtomicU64,
    pub(crate) committer: Committer,
    /// Families by id. Swapped only under the manifest lock.
    pub(crate) families: ArcSwap<Vec<Option<Arc<Family>>>>,
    /// Those of the families that have a compaction filter, by id. Swapped with them.
    pub(crate) filtered: ArcSwap<Vec<Arc<Family>>>,
    pub(crate) snapshots: Arc<Snapshots>,
    /// Row locks of transactions. Its lock is held over no other.
    pub(crate) row_locks: RowLocks,
    pub(crate) manifest: Mutex<VersionSet>,
    /// Evidence of what is durable of the manifest and the log. Its lock is the last one taken.
    pub(crate) marks: Arc<Marks>,
    /// The newest log segment that `marks` was told of.
    pub(crate) marked_log: AtomicU64,
    pub(crate) state: Mutex<State>,
    /// Background workers wait here for work.
    pub(crate) work: Condvar,
    /// Stalled writers and waiters for background progress wait here.
    pub(crate) progress: Condvar,
    pub(crate) health: Health,
    /// What is known of the room on the disk, and the reserve.
    pub(crate) disk: Disk,
    pub(crate) trash: Arc<Trash>,
    pub(crate) closing: Arc<AtomicBool>,
    pub(crate) closed: AtomicBool,
    pub(crate) next_memtable_id: AtomicU64,
    pub(crate) opened_ns: u64,
    /// Number of the open log segment.
    pub(crate) open_log: AtomicU64,
    /// Where the log ended, if the disk had no room for the first segment at the open. The first
    /// write begins that segment.
    pub(crate) late_log: Mutex<Option<LogEnd>>,
    pub(crate) file_numbers: Arc<FileNumbers>,
    pub(crate) database_id: [u8; 16],
    pub(crate) delays: DelayController,
    /// What users write, while they are not delayed.
    pub(crate) ingest: RateMeter,
    /// What flushes bring to tables.
    pub(crate) drain: RateMeter,
    /// Measured speed of flushes, bytes a second; 0 before the first.
    pub(crate) flush_speed: AtomicU64,
    /// When a memtable was last sealed, by the clock.
    pub(crate) last_seal_ns: AtomicU64,
    /// How long after the seal before it; 0 until there were two.
    pub(crate) seal_interval_ns: AtomicU64,
    /// Callers that wait until no background work is due.
    pub(crate) waiters: AtomicUsize,
    pub(crate) rng: Mutex<Rng>,
    pub(crate) family_overrides: BTreeMap<String, CfOptions>,
    /// How the names of families begin that take the settings of the default one.
    pub(crate) alike_default: Option<String>,
    pub(crate) executor: Arc<dyn JobExecutor>,
    /// Who helps with jobs.
    pub(crate) hands: Hands,
    /// How a read-only database follows a writer.
    pub(crate) following: Following,
    pub(crate) fault: Option<FaultPoint>,
    pub(crate) lock: Mutex<Option<Box<dyn FileLock>>>,
    /// The log's buffer, counted while the database is open.
    pub(crate) _log_buffer: Charge,
}

impl DbInner {
    /// `Closed` once closed.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::closed("the database is closed"));
        }
        Ok(())
    }

    pub(crate) fn family(&self, cf: CfId) -> Option<Arc<Family>> {
        self.families.load().get(cf.0 as usize)?.clone()
    }

    /// All families that are not dropped.
    pub(crate) fn live_families(&self) -> Vec<Arc<Family>> {
        self.families.load().iter().flatten().cloned().collect()
    }

    /// The super versions that a snapshot holds: of each family that has a compaction filter, and
    /// of all families of a read-only database, where [`Db::catch_up`](crate::db::Db::catch_up)
    /// replaces what a snapshot sees.
    pub(crate) fn filtered_pictures(&self) -> Vec<HeldFamily> {
        let held = |family: &Arc<Family>| HeldFamily {
            cf: family.id,
            picture: family.current.load_full(),
        };
        match self.options.read_only {
            true => self.live_families().iter().map(held).collect(),
            false => self.filtered.load().iter().map(held).collect(),
        }
    }

    /// The last sequence number that readers see.
    #[inline]
    pub(crate) fn visible(&self) -> SeqNo {
        self.committer.visible()
    }

    /// A memtable for a family, with a shard for each bucket and for each part between `cuts`.
    pub(crate) fn new_memtable(&self, version: &Version, cuts: &[Vec<u8>]) -> Arc<Memtable> {
        let id = self.next_memtable_id.fetch_add(1, Ordering::Relaxed);
        let mut map = Arc::clone(version.map());
        // Cuts that would make too many buckets are no reason not to write.
        if !cuts.is_empty()
            && let Ok(finer) = map.finer(cuts)
        {
            map = Arc::new(finer);
        }
        let limit_bytes = self.memtable_bytes_max(version.options());
        let birth = Birth { id, limit_bytes, born_ns: self.clock.now_ns() };
        Memtable::new(birth, map, &self.slabs)
    }

    /// What the parts of the engine may take of the memory budget now.
    pub(crate) fn memory_shares(&self) -> MemoryShares {
        MemoryShares { budget_bytes: self.budget.limit_bytes() }
    }

    /// Size at which a memtable of a family with these options is sealed.
    pub(crate) fn memtable_bytes_max(&self, options: &CfOptions) -> u64 {
        self.memory_shares().memtable_bytes(options.write_buffer_bytes)
    }

    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Swaps a family's super version (state lock held, as the borrow of `State` shows).
    pub(crate) fn publish(&self, _state: &mut State, family: &Family, next: SuperVersion) {
        family.current.store(Arc::new(next));
    }

    /// A new super version with another version and the tracker's immutables.
    pub(crate) fn republish(
        &self,
        state: &mut State,
        family: &Family,
        version: Option<Arc<Version>>,
    ) {
        let current = family.current.load_full();
        let immutables = state.flushes.get(&family.id).map_or_else(Vec::new, |tracker| {
            tracker.queue.iter().rev().map(|sealed| Arc::clone(&sealed.view)).collect()
        });
        let next = SuperVersion {
            active: Arc::clone(&current.active),
            immutables,
            version: version.unwrap_or_else(|| Arc::clone(&current.version)),
        };
        self.publish(state, family, next);
    }

    /// Tells all listeners. A listener that panics disturbs nobody: it is counted, logged and shown
    /// in the health.
    pub(crate) fn tell(&self, event: &Event) {
        for error in self.listeners.tell(event) {
            self.stats.add(Ticker::ListenerPanics, 1);
            tracing::error!(%error, "an event listener panicked; the others were told");
            self.health.note_listener(&error);
        }
    }

    /// Counts a failed job by its cause and tells of it.
    pub(crate) fn tell_failure(&self, job: &str, error: &Error) {
        self.stats.add(Ticker::BackgroundErrors, 1);
        if error.cause::<ExtensionPanic>().is_some() {
            self.stats.add(Ticker::ExtensionPanics, 1);
        }
        if error.cause::<ImpossibleEdit>().is_some() {
            self.stats.add(Ticker::EditsRefused, 1);
        }
        self.tell(&Event::BackgroundError { job: job.to_owned(), error: error.clone() });
    }

    /// Counts and tells a background failure that is tried again.
    pub(crate) fn fail_soft(&self, job: &str, error: &Error) {
        tracing::warn!(job, %error, "background job failed; it will be tried again");
        self.health.set_failing(error);
        self.tell_failure(job, error);
        self.progress.notify_all();
    }

    /// Counts and tells a failure after which the database takes no writes.
    pub(crate) fn fail_read_only(&self, job: &str, error: &Error) {
        tracing::error!(job, %error, "the database is read only now");
        self.health.set_read_only(error);
        self.tell_failure(job, error);
        self.progress.notify_all();
    }

    /// Wakes background workers.
    pub(crate) fn wake(&self) {
        self.work.notify_all();
    }
}
