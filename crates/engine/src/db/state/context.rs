//! Settings, clock and extensions of an open database, and whether it still takes calls.
//!
//! The database owns one [`Context`]. Everything in it is fixed at the open, except the random
//! number generator and the two flags of the close.
//!
//! Invariants:
//! 1. `closed` is set before `closing`, so that no call of a user begins after jobs are cancelled.
//! 2. Neither flag is ever cleared.
//!
//! Thread-safety: any thread may call any method.
//! Failure: none, except the errors that the checks exist for.
//! Cost: one relaxed load for each check. A random number takes a short lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use archipelago_base::budget::ByteBudget;
use archipelago_base::clock::Clock;
use archipelago_base::random::Rng;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::ReadLease;
use parking_lot::Mutex;

use crate::db::state::away::StoreLink;
use crate::db::state::background_mode::BackgroundMode;
use crate::db::state::read_watch::ReadWatch;
use crate::extension::Registry;
use crate::memory_shares::MemoryShares;
use crate::options::{CfOptions, DbOptions};
use crate::version::Version;

/// Divisor of the usual memtable size, for memtables before the first bucket map.
const FIRST_MEMTABLE_SHARE: u64 = 8;
/// Smallest size, in bytes, of memtables before the first bucket map, unless the usual size is
/// smaller.
const FIRST_MEMTABLE_BYTES_MIN: u64 = 1 << 20;

/// A function that is called at named points of background work. If it returns an error, the step
/// fails there. The points are:
///
/// - `flush.picked`, `compaction.picked`, `buckets.picked`, `gc.picked`, `send.picked` and
///   `rebuild.picked`: a job begins.
/// - `flush.shard`: before each shard of a flush is written.
/// - `flush.value_file`: after a shard of a flush was written with a value file.
/// - `flush.shard_written`: before a written shard leaves memory.
/// - `flush.run_here`: a flush that failed at an executor runs in this process.
/// - `compaction.part`: before each part of a compaction that is cut.
/// - `flush.before_install`, `compaction.before_install`, `drop.before_install`,
///   `gc.after_write`, `gc.before_install`, `invalid.before_install`, `buckets.before_change`,
///   `recovery.before_install` and `resume.before_install`: before the edit of the step.
/// - `inherit.before_prune`: before a compaction is installed in a version with heirs.
/// - `gc.pick`: before a garbage collection is picked. An error keeps it from being picked. The
///   function runs under the jobs lock.
/// - `ingest.before_install`, and `ingest.before_visible`, whose error is ignored because it comes
///   too late.
/// - `checkpoint.before_manifest`: before the manifest of a checkpoint is written.
/// - `transaction.checked`: between the two steps of a commit's check. Its thread must not write.
/// - `warm_pass.begun`: before a pass reads outputs of another process into the block cache.
/// - `reserve.written`: before a new reserve for a full disk replaces the present one.
/// - `strays.sweep`: before the sweep of stray tables.
/// - `send.before_send`: before an image is sent, and `send.sent`: before readers use the shard at
///   its node.
/// - `rebuild.before_swap`: after the log was read for lost shards.
/// - `write.waits`: before a stopped write waits for background progress. Its error is ignored.
/// - `takeover.told`, `takeover.listed`, `takeover.replayed`, `takeover.before_edit`,
///   `takeover.before_adopt` and `takeover.adopted`: between the steps of a takeover.
pub type FaultPoint = Arc<dyn Fn(&str) -> Result<()> + Send + Sync>;

/// Token of the next open database. Tokens distinguish the handles of open databases.
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);

/// The parts of a [`Context`] that the open provides.
pub(crate) struct ContextParts {
    pub(crate) options: DbOptions,
    pub(crate) background: BackgroundMode,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) registry: Registry,
    pub(crate) budget: Arc<ByteBudget>,
    pub(crate) family_overrides: BTreeMap<String, CfOptions>,
    pub(crate) alike_default: Option<String>,
    pub(crate) fault: Option<FaultPoint>,
    pub(crate) lease: Option<Arc<dyn ReadLease>>,
    pub(crate) away: Option<Arc<StoreLink>>,
    pub(crate) rng: Rng,
}

/// The settings and services that every part of an open database uses.
pub(crate) struct Context {
    token: u64,
    options: DbOptions,
    /// Which threads run background work.
    background: BackgroundMode,
    clock: Arc<dyn Clock>,
    registry: Registry,
    budget: Arc<ByteBudget>,
    /// Settings of column families by name, as the caller of the open gave them.
    family_overrides: BTreeMap<String, CfOptions>,
    /// Prefix of the names of families that take the settings of the default family; `None` if no
    /// family does.
    alike_default: Option<String>,
    /// Time of the open, in nanoseconds of the clock.
    opened_ns: u64,
    fault: Option<FaultPoint>,
    /// The lease under which reads are answered; `None` if no other process can take the files
    /// over.
    lease: Option<Arc<dyn ReadLease>>,
    /// The store of memtable shards; `None` if all of them stay here.
    away: Option<Arc<StoreLink>>,
    /// What look-ups measure; `None` for nothing.
    read_watch: Option<Box<ReadWatch>>,
    rng: Mutex<Rng>,
    /// Set when background work must end. Jobs share it as their cancellation.
    closing: Arc<AtomicBool>,
    /// Set when calls of users are refused.
    closed: AtomicBool,
}

impl Context {
    pub(crate) fn new(parts: ContextParts) -> Self {
        Self {
            token: NEXT_TOKEN.fetch_add(1, Ordering::Relaxed),
            opened_ns: parts.clock.now_ns(),
            read_watch: ReadWatch::of(&parts.options, parts.away.as_ref()),
            options: parts.options,
            background: parts.background,
            clock: parts.clock,
            registry: parts.registry,
            budget: parts.budget,
            family_overrides: parts.family_overrides,
            alike_default: parts.alike_default,
            fault: parts.fault,
            lease: parts.lease,
            away: parts.away,
            rng: Mutex::new(parts.rng),
            closing: Arc::new(AtomicBool::new(false)),
            closed: AtomicBool::new(false),
        }
    }

    /// Number of this opening. Handles of column families carry it.
    #[inline]
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    #[inline]
    pub(crate) fn options(&self) -> &DbOptions {
        &self.options
    }

    #[inline]
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    #[inline]
    pub(crate) fn budget(&self) -> &Arc<ByteBudget> {
        &self.budget
    }

    pub(crate) fn family_overrides(&self) -> &BTreeMap<String, CfOptions> {
        &self.family_overrides
    }

    /// Whether the family `name` takes the settings of the default family.
    pub(crate) fn is_alike_default(&self, name: &str) -> bool {
        self.alike_default.as_ref().is_some_and(|begin| name.starts_with(&begin[..]))
    }

    pub(crate) fn opened_ns(&self) -> u64 {
        self.opened_ns
    }

    /// `Closed` once the database is closed.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::closed("the database is closed"));
        }
        Ok(())
    }

    /// Checks that the lease still holds, so that a read may return the answer that it has found.
    /// Errors: those of the lease.
    #[inline]
    pub(crate) fn check_answer(&self) -> Result<()> {
        match &self.lease {
            None => Ok(()),
            Some(lease) => lease.check(),
        }
    }

    /// The lease under which reads are answered.
    pub(crate) fn lease(&self) -> Option<&Arc<dyn ReadLease>> {
        self.lease.as_ref()
    }

    /// The store of memtable shards; `None` if all of them stay here.
    #[inline]
    pub(crate) fn away(&self) -> Option<&Arc<StoreLink>> {
        self.away.as_ref()
    }

    /// What look-ups measure; `None` for nothing.
    #[inline]
    pub(crate) fn read_watch(&self) -> Option<&ReadWatch> {
        self.read_watch.as_deref()
    }

    /// Whether calls of users are refused.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether background work must end.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// The flag that cancels jobs when the database closes.
    pub(crate) fn closing(&self) -> &Arc<AtomicBool> {
        &self.closing
    }

    /// Refuses calls of users, and ends background work.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.closing.store(true, Ordering::Release);
    }

    /// `ReadOnly` if the database was opened read only.
    pub(crate) fn refuse_read_only(&self) -> Result<()> {
        if self.options.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "the database was opened read only"));
        }
        Ok(())
    }

    /// Whether calls of `Db::step_background` run the background work.
    pub(crate) fn is_manual(&self) -> bool {
        self.background == BackgroundMode::Manual
    }

    /// Shares of the memory budget for the parts of the engine.
    pub(crate) fn memory_shares(&self) -> MemoryShares {
        MemoryShares { budget_bytes: self.budget.limit_bytes() }
    }

    /// Size, in bytes, at which a memtable that is made over `version` is sealed. A memtable before
    /// the first bucket map has one shard, which leaves memory as a whole. Its keys only have to
    /// determine the cuts of the map, so a part of the usual size is enough.
    pub(crate) fn memtable_bytes(&self, version: &Version) -> u64 {
        let options = version.options();
        let full = self.memtable_bytes_max(options);
        let is_cut_later = match options.buckets {
            0 => self.options.max_background_jobs > 1,
            buckets => buckets > 1,
        };
        let is_first = version.map().epoch().0 == 0 && version.files().next().is_none();
        match is_cut_later && is_first {
            true => (full / FIRST_MEMTABLE_SHARE).max(FIRST_MEMTABLE_BYTES_MIN).min(full),
            false => full,
        }
    }

    /// Size, in bytes, at which a memtable of a family with these options is sealed.
    pub(crate) fn memtable_bytes_max(&self, options: &CfOptions) -> u64 {
        self.memory_shares().memtable_bytes(options.write_buffer_bytes)
    }

    /// Calls the fault function of a test, if there is one. Returns its error, so that the step
    /// fails.
    pub(crate) fn fault_point(&self, name: &str) -> Result<()> {
        self.fault.as_ref().map_or(Ok(()), |fault| fault(name))
    }

    /// The fault points of a test, for work that runs on another thread.
    pub(crate) fn fault(&self) -> Option<FaultPoint> {
        self.fault.clone()
    }

    /// A fresh random number for the unique ids of a job's files.
    pub(crate) fn unique_seed(&self) -> u64 {
        self.rng.lock().u64(..)
    }
}
