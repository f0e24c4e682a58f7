//! Settings, clock and extensions of an open database, and whether it still takes calls.
//!
//! The database owns one [`Context`]. Everything in it is fixed at the open, except the random
//! number generator and the two flags of the close.
//!
//! Invariants:
//! 1. `closed` is set before `closing`, so that no call of a user begins once jobs are cancelled.
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
use crate::extension::Registry;
use crate::memory_shares::MemoryShares;
use crate::options::{CfOptions, DbOptions};
use crate::version::Version;

/// The memtables before the first bucket map take one part in this many of the usual size.
const FIRST_MEMTABLE_SHARE: u64 = 8;
/// Smallest bound on these memtables, unless the usual size is smaller.
const FIRST_MEMTABLE_BYTES_MIN: u64 = 1 << 20;

/// Called at named points of background work; an error makes the step fail there:
/// `flush.picked`, `compaction.picked` and `buckets.picked` (when a job begins),
/// `ingest.before_install`, `ingest.before_visible` (too late to fail: its error is ignored),
/// `flush.shard` (before each shard of a flush), `flush.shard_written` (before a shard leaves
/// memory), `flush.run_here` (when a flush that failed away runs in this process),
/// `flush.before_install`, `compaction.part` (before each part of a compaction that is cut),
/// `compaction.before_install`, `recovery.before_install`, `resume.before_install`,
/// `checkpoint.before_manifest`, `transaction.checked` (between the two steps of a commit's check;
/// its thread must not write), `reserve.written` (before a reserve for a full disk replaces the
/// present one), `strays.sweep` (before the sweep of stray tables), `send.picked` (when a memtable
/// shard is to leave), `send.before_send`, `send.sent` (before readers use the shard at its node),
/// `rebuild.picked`, `rebuild.before_swap` (when the log was read for lost shards).
pub type FaultPoint = Arc<dyn Fn(&str) -> Result<()> + Send + Sync>;

/// Distinguishes the handles of one open database from those of another.
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
    /// Threads that run background work.
    background: BackgroundMode,
    clock: Arc<dyn Clock>,
    registry: Registry,
    budget: Arc<ByteBudget>,
    /// Settings of column families by name, as the open was given them.
    family_overrides: BTreeMap<String, CfOptions>,
    /// Prefix of the names of families that take the settings of the default family.
    alike_default: Option<String>,
    /// Time of the open, in nanoseconds of the clock.
    opened_ns: u64,
    fault: Option<FaultPoint>,
    /// The lease under which reads are answered; `None` if no other process can take the files
    /// over.
    lease: Option<Arc<dyn ReadLease>>,
    /// The store of memtable shards; `None` if all of them stay here.
    away: Option<Arc<StoreLink>>,
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

    /// Whether the answer of a read, which is ready, may be given. Errors: those of the lease.
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

    /// Whether a test steps the background work.
    pub(crate) fn is_manual(&self) -> bool {
        self.background == BackgroundMode::Manual
    }

    /// Shares of the memory budget for the parts of the engine.
    pub(crate) fn memory_shares(&self) -> MemoryShares {
        MemoryShares { budget_bytes: self.budget.limit_bytes() }
    }

    /// Size at which a memtable that is made over `version` is sealed. The memtables before the
    /// first bucket map have one shard each, which leaves memory as a whole. They only have to tell
    /// by which keys the map is cut, so a part of the usual size is enough.
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

    /// Fails where a test wants a background step to fail.
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
