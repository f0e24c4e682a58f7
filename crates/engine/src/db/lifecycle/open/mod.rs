//! Opening: what a directory holds becomes a running database.
//!
//! Steps: 1. check settings and look at the directory (nothing is changed if it is refused);
//! 2. take the lock; 3. recover the manifest, or create it; 4. replay the log into memtables,
//! skipping what each range's flushed-through sequence number covers; 5. flush what was replayed
//! and install **all** of it, of all families, in one edit that also moves the log floor past the
//! old segments: the replayed log may not be durable, so installing a part could keep half a batch
//! over a power loss; 6. start a new log segment, remove what nothing refers to.
//!
//! A read-only open replaces steps 4 to 6 by a picture of its own
//! ([`crate::db::lifecycle::catch_up`]).
//!
//! A disk without room for the tables of step 5: the reserve is given up first
//! ([`crate::disk_space`]). If that is not enough, the tables are removed, nothing is installed,
//! and the log is kept: its segments are made durable, its records stay in memtables that pin
//! them, and flushes bring them to tables as room comes
//! ([decision 0045](../../../../docs/decisions/0045-full-disks.md)).
//!
//! A crash at any point of this leaves the old state: only step 5's edit changes it. Cost: reads
//! the log once (twice where it is kept); memory is bounded by writing memtables that are full (of
//! records or of range deletes), or the largest one while the byte budget is exceeded, to files
//! before the edit. Where the log is kept, the memory budget bounds it.

mod kept_log;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use archipelago_base::budget::{ByteBudget, MemoryClass, Pressure};
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::{Rng, entropy_seed, unique_id};
use archipelago_base::{CfId, Error, ErrorKind, FileNo, Result, SeqNo};
use archipelago_env::FileSystem;
use archipelago_env::foreground::{Foreground, ForegroundFs};
use archipelago_env::limit::RateLimiter;
use archipelago_env::local::LocalFs;
use parking_lot::{Condvar, Mutex};

use crate::concurrency::RowLocks;
use crate::db::background::flush::FlushTask;
use crate::db::inner::{DbInner, State};
use crate::db::lifecycle::catch_up::{Following, Unusable, while_changing};
use crate::db::read::snapshot::Snapshots;
use crate::db::state::background_mode::BackgroundMode;
use crate::db::state::family::{Family, SuperVersion};
use crate::db::state::health::Health;
use crate::db::state::job_threads::Hands;
use crate::db::state::memtable::{Memtable, RECORD_OVERHEAD_BYTES};
use crate::db::write::commit::Committer;
use crate::db::write::disk_room::Disk;
use crate::disk_space::flush_room;
use crate::event::Listeners;
use crate::executor::{JobExecutor, LocalExecutor};
use crate::extension::Registry;
use crate::file_meta::{LOCK_NAME, log_name};
use crate::flush::run_flush;
use crate::job::JobOutput;
use crate::key::KeyRange;
use crate::live_file::Trash;
use crate::manifest::{
    Change, DirectoryState, LogMark, VersionEdit, VersionSet, file_number, inspect,
};
use crate::memory_shares::MemoryShares;
use crate::memtable::SlabPool;
use crate::options::{CfOptions, DbOptions};
use crate::sst::BlockCache;
use crate::stall::{DRAIN_WINDOW, DelayController, INGEST_WINDOW, RateMeter};
use crate::table_cache::TableCache;
use crate::wal::{LogChain, RecoveredLog, SegmentEnd, SegmentFile};

/// Called at named points of background work; an error makes the step fail there:
/// `flush.picked`, `compaction.picked` and `buckets.picked` (when a job begins),
/// `ingest.before_install`, `ingest.before_visible` (too late to fail: its error is ignored),
/// `flush.shard` (before each shard of a flush), `flush.before_install`, `compaction.part` (before
/// each part of a compaction that is cut), `compaction.before_install`, `recovery.before_install`,
/// `resume.before_install`, `checkpoint.before_manifest`, `transaction.checked` (between the two
/// steps of a commit's check; its thread must not write), `reserve.written` (before a reserve for a
/// full disk replaces the present one).
pub type FaultPoint = Arc<dyn Fn(&str) -> Result<()> + Send + Sync>;

/// What a database is made of besides its settings.
#[derive(Clone)]
pub struct Components {
    /// Where files are. Default: the local file system.
    pub fs: Arc<dyn FileSystem>,
    /// Whether compactions let reads that users wait for go first. Default: yes; no is there to
    /// compare with.
    pub foreground_first: bool,
    /// What time it is. Default: the system's clock.
    pub clock: Arc<dyn Clock>,
    /// Merge operators and compaction filters. Default: the built-in ones.
    pub registry: Registry,
    /// Who is told of events. Default: nobody.
    pub listeners: Listeners,
    /// The byte budget, if it is shared with others. Default: one of its own, by
    /// `DbOptions::memory_budget_bytes`.
    pub budget: Option<Arc<ByteBudget>>,
    /// Settings of column families by name: for families that exist they replace the stored ones,
    /// for `default` they are used at creation.
    pub families: BTreeMap<String, CfOptions>,
    /// Existing column families whose names begin with this, and that `families` does not name,
    /// take the settings of the default family, those of `families` if it has some. Default: none.
    pub alike_default: Option<String>,
    /// Who runs flushes and compactions. Default: the database's own background threads. (What
    /// recovery and ingestion write runs where they are called.)
    pub executor: Arc<dyn JobExecutor>,
    /// Which threads run background work. Default: threads of the database.
    pub background: BackgroundMode,
    /// Seed of unique ids; `None` for entropy.
    pub seed: Option<u64>,
    /// Function that background work calls at named points, for tests. Default: none.
    #[cfg(any(test, feature = "fault-points"))]
    pub fault_point: Option<FaultPoint>,
}

impl Components {
    #[cfg(any(test, feature = "fault-points"))]
    fn fault_point(&self) -> Option<FaultPoint> {
        self.fault_point.clone()
    }

    /// A build without the feature has no fault points.
    #[cfg(not(any(test, feature = "fault-points")))]
    fn fault_point(&self) -> Option<FaultPoint> {
        None
    }
}

impl Default for Components {
    fn default() -> Self {
        Self {
            fs: Arc::new(LocalFs::new()),
            foreground_first: true,
            clock: SystemClock::shared(),
            registry: Registry::default(),
            listeners: Listeners::default(),
            budget: None,
            families: BTreeMap::new(),
            alike_default: None,
            executor: Arc::new(LocalExecutor),
            background: BackgroundMode::Threads,
            seed: None,
            #[cfg(any(test, feature = "fault-points"))]
            fault_point: None,
        }
    }
}

impl std::fmt::Debug for Components {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Components").field("fs", &self.fs).finish_non_exhaustive()
    }
}

/// What a local log keeps in memory: its ring.
const LOG_BUFFER_BYTES: u64 = 4 << 20;

/// Handles of one open database are told from those of another by this.
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);

pub(crate) fn open(dir: &Path, options: DbOptions, components: Components) -> Result<Arc<DbInner>> {
    options.validate()?;
    for (name, family) in &components.families {
        family.validate().map_err(|e| e.context_at(format!("column family \"{name}\"")))?;
    }
    let fs = Arc::clone(&components.fs);
    check_group_access(&*fs, &options)?;
    check_directory(&*fs, dir, &options, &components.families)?;
    let lock = if options.read_only {
        None
    } else {
        fs.create_dir_all(dir)?;
        Some(fs.lock(&dir.join(LOCK_NAME))?)
    };
    let trash = Arc::new(Trash::default());
    let mut rng = Rng::with_seed(components.seed.unwrap_or_else(entropy_seed));
    let manifest = match inspect(&*fs, dir)? {
        DirectoryState::Database(_) if options.read_only => while_changing(&*fs, dir, || {
            VersionSet::recover(Arc::clone(&fs), dir, true, Arc::clone(&trash))
                .map_err(Unusable::from)
        })?,
        DirectoryState::Database(_) => {
            VersionSet::recover(Arc::clone(&fs), dir, false, Arc::clone(&trash))?
        }
        DirectoryState::Absent => {
            let default = components.families.get("default").cloned().unwrap_or_default();
            let db_id = unique_id(&mut rng);
            VersionSet::create(Arc::clone(&fs), dir, db_id, &default, Arc::clone(&trash))?
        }
    };
    let inner = assemble(dir, options, components, manifest, trash, rng)?;
    *inner.lock.lock() = lock;
    inner.prepare_room()?;
    inner.open_families()?;
    if inner.options.read_only {
        inner.catch_up()?;
    } else {
        inner.recover_log()?;
        inner.remove_strays()?;
    }
    Ok(inner)
}

/// Refuses a file system whose files would have other permission bits than the settings say.
fn check_group_access(fs: &dyn FileSystem, options: &DbOptions) -> Result<()> {
    match fs.group_access() {
        Some(access) if access != options.group_access && !options.read_only => {
            Err(Error::invalid(format!(
                "group_access is {:?}, but the file system of the components creates files for \
                 {access:?}: give it the same access (LocalFs::for_group)",
                options.group_access
            )))
        }
        _ => Ok(()),
    }
}

/// Refuses a directory that cannot be opened as asked, before anything is changed.
fn check_directory(
    fs: &dyn FileSystem,
    dir: &Path,
    options: &DbOptions,
    families: &BTreeMap<String, CfOptions>,
) -> Result<()> {
    let state = if fs.exists(dir)? { inspect(fs, dir)? } else { DirectoryState::Absent };
    match state {
        DirectoryState::Database(_) if options.error_if_exists => Err(Error::invalid(format!(
            "{} has a database already, and error_if_exists is set",
            dir.display()
        ))),
        DirectoryState::Absent if options.read_only || !options.create_if_missing => {
            Err(Error::not_found(format!("{} has no database", dir.display())))
        }
        DirectoryState::Absent => match families.keys().find(|name| *name != "default") {
            Some(unknown) => Err(unknown_family(unknown, dir)),
            None => Ok(()),
        },
        DirectoryState::Database(_) => Ok(()),
    }
}

fn unknown_family(name: &str, dir: &Path) -> Error {
    Error::invalid(format!(
        "settings were given for column family \"{name}\", which does not exist in {}; \
         create it first",
        dir.display()
    ))
}

fn assemble(
    dir: &Path,
    options: DbOptions,
    mut components: Components,
    manifest: VersionSet,
    trash: Arc<Trash>,
    rng: Rng,
) -> Result<Arc<DbInner>> {
    let foreground = put_foreground_first(&mut components);
    let budget =
        components.budget.take().unwrap_or_else(|| ByteBudget::new(budget_bytes(&options)));
    let tables = table_cache(dir, &options, &components.fs, &budget);
    let log_bytes = if options.read_only { 0 } else { LOG_BUFFER_BYTES };
    Ok(Arc::new(DbInner {
        fault: components.fault_point(),
        token: NEXT_TOKEN.fetch_add(1, Ordering::Relaxed),
        dir: dir.to_owned(),
        slabs: SlabPool::new(Arc::clone(&budget)),
        _log_buffer: budget.hold(MemoryClass::Log, log_bytes),
        budget,
        cache: Arc::clone(tables.block_cache()),
        tables: Arc::new(tables),
        limiter: Arc::new(RateLimiter::new(options.rate_limit_bytes_per_s)),
        foreground,
        stats: Arc::default(),
        reads_at_seal: AtomicU64::default(),
        committer: Committer::new(manifest.last_seq()),
        row_locks: RowLocks::default(),
        families: ArcSwap::from_pointee(Vec::new()),
        filtered: ArcSwap::from_pointee(Vec::new()),
        snapshots: Arc::new(Snapshots::default()),
        file_numbers: Arc::clone(manifest.file_numbers()),
        database_id: *manifest.db_id(),
        marks: Arc::clone(manifest.marks()),
        marked_log: AtomicU64::new(0),
        manifest: Mutex::new(manifest),
        state: Mutex::new(State::default()),
        work: Condvar::new(),
        progress: Condvar::new(),
        health: Health::default(),
        disk: Disk::new(dir),
        trash,
        closing: Arc::new(AtomicBool::new(false)),
        closed: AtomicBool::new(false),
        next_memtable_id: AtomicU64::new(1),
        open_log: AtomicU64::new(0),
        late_log: Mutex::new(None),
        delays: DelayController::new(Arc::clone(&components.clock)),
        ingest: RateMeter::new(Arc::clone(&components.clock), INGEST_WINDOW),
        drain: RateMeter::new(Arc::clone(&components.clock), DRAIN_WINDOW),
        flush_speed: AtomicU64::new(0),
        last_seal_ns: AtomicU64::new(0),
        seal_interval_ns: AtomicU64::new(0),
        waiters: AtomicUsize::new(0),
        rng: Mutex::new(rng),
        opened_ns: components.clock.now_ns(),
        lock: Mutex::new(None),
        fs: components.fs,
        clock: components.clock,
        registry: components.registry,
        listeners: components.listeners,
        family_overrides: components.families,
        alike_default: components.alike_default,
        executor: components.executor,
        background: components.background,
        hands: Hands::default(),
        following: Following::default(),
        options,
    }))
}

/// The readers of the tables in `dir`, with a block cache of their own.
fn table_cache(
    dir: &Path,
    options: &DbOptions,
    fs: &Arc<dyn FileSystem>,
    budget: &Arc<ByteBudget>,
) -> TableCache {
    let shares = MemoryShares { budget_bytes: budget.limit_bytes() };
    shares.log_lowered(options);
    let tables = TableCache::new(
        Arc::clone(fs),
        dir.to_owned(),
        BlockCache::new(shares.cache_bytes(options.block_cache_bytes), budget),
        Arc::clone(budget),
        options.table_readers_max,
        options.direct_reads,
    );
    if options.read_only { tables.beside_a_writer() } else { tables }
}

/// Puts the file system that lets users' reads go first over the given one, if it shall.
fn put_foreground_first(components: &mut Components) -> Arc<Foreground> {
    let gauge = Foreground::new(Arc::clone(&components.clock));
    if components.foreground_first {
        let inner = Arc::clone(&components.fs);
        components.fs = Arc::new(ForegroundFs::new(inner, Arc::clone(&gauge)));
    }
    gauge
}

/// Half of what the machine (or its cgroup) allows, unless set.
fn budget_bytes(options: &DbOptions) -> u64 {
    match options.memory_budget_bytes {
        0 => archipelago_env::host::memory_bytes().map_or(u64::MAX, |bytes| bytes / 2),
        bytes => bytes,
    }
}

impl DbInner {
    /// Makes the families that the manifest knows, with stored or given settings.
    fn open_families(&self) -> Result<()> {
        let mut edit = VersionEdit::new();
        let mut opened = Vec::new();
        {
            let manifest = self.manifest.lock();
            let default = manifest.column_families().find(|(id, ..)| *id == CfId::DEFAULT);
            let default = default.map(|(_, name, version)| (name, version.options().clone()));
            for (id, name, version) in manifest.column_families() {
                let stored = CfOptions::clone(version.options());
                let is_alike =
                    self.alike_default.as_ref().is_some_and(|begin| name.starts_with(&begin[..]));
                let given = self.family_overrides.get(name).or_else(|| {
                    let (name, stored) = default.as_ref().filter(|_| is_alike)?;
                    self.family_overrides.get(*name).or(Some(&**stored))
                });
                let options = given.cloned().unwrap_or(stored.clone());
                if options != stored && !self.options.read_only {
                    let options = Box::new(options.clone());
                    edit.push(Change::SetCfOptions { cf: id, options });
                }
                opened.push((id, name.to_owned(), options, Arc::clone(version)));
            }
        }
        let known =
            |name: &String| name == "default" || opened.iter().any(|(_, n, _, _)| n == name);
        if let Some(unknown) = self.family_overrides.keys().find(|name| !known(name)) {
            return Err(unknown_family(unknown, &self.dir));
        }
        let mut commit = self.committer.lock();
        for (id, name, options, version) in opened {
            if !self.options.read_only {
                self.memory_shares().log_lowered_in_family(&name, &options);
            }
            let active = self.new_memtable(&version, &[]);
            let first =
                SuperVersion { active: Arc::clone(&active), immutables: Vec::new(), version };
            let family = Family::new(id, name, options, &self.registry, first)?;
            commit.set_active(id, Some(active));
            self.set_family(id, Some(family));
        }
        drop(commit);
        if edit.changes.is_empty() {
            return Ok(());
        }
        match self.apply_edit(edit) {
            Err(error) if error.is_no_space() => {
                tracing::warn!(%error, "the disk has no room to store other settings of families");
                Ok(())
            }
            stored => stored,
        }
    }

    /// Steps 4 to 6 of the module.
    fn recover_log(&self) -> Result<()> {
        let floor = self.manifest.lock().log_floor();
        let segments = self.log_segments(floor)?;
        let is_listed = |no| segments.iter().any(|segment| segment.no == no).then_some(u64::MAX);
        self.manifest.lock().evidence().check_log(&self.dir, floor, is_listed)?;
        let chain = LogChain {
            segments: &segments,
            floor,
            mode: self.options.recovery_mode,
            database_id: self.database_id,
        };
        self.look_at_disk();
        match self.recover_to_tables(&chain) {
            Err(error) if error.is_no_space() => {
                tracing::warn!(%error, "the disk has no room for the tables of recovery: the log \
                    is kept, and its records stay in memory until there is room");
                self.recover_to_memory(&chain, &error)
            }
            recovered => recovered,
        }
    }

    /// Recovery as the module tells it. After an error nothing is installed.
    fn recover_to_tables(&self, chain: &LogChain<'_>) -> Result<()> {
        let mut replay = Replay::new(self, None);
        let recovered = replay.read(chain)?;
        // The guard must end before `discard`, which takes the manifest lock as well.
        let checked = self.check_log(&self.manifest.lock(), chain.floor, &recovered);
        if let Err(lost) = checked {
            replay.discard();
            return Err(lost);
        }
        let last_seq = replay.last_seq_of(&recovered);
        let next_log = self.file_numbers.allocate();
        let installed = replay.flush_all().and_then(|()| {
            self.fault_point("recovery.before_install")?;
            let mut edit = std::mem::take(&mut replay.outputs);
            edit.push(Change::LastSeq(last_seq));
            edit.push(Change::LogFloor(next_log));
            self.apply_edit(edit)
        });
        if let Err(error) = installed {
            replay.discard();
            return Err(error);
        }
        self.committer.start_at(last_seq);
        self.fs.clear_log_tails(&self.dir)?;
        self.start_log(next_log, recovered.previous)
    }

    /// The log segments of the directory from `floor` on, oldest first.
    pub(crate) fn log_segments(&self, floor: FileNo) -> Result<Vec<SegmentFile>> {
        let mut segments: Vec<SegmentFile> = Vec::new();
        for entry in self.fs.list(&self.dir)? {
            let Some(no) = file_number(&entry.name) else { continue };
            if entry.name == log_name(no) && no >= floor {
                segments.push(SegmentFile { no, path: self.path_of(&entry.name) });
            }
        }
        segments.sort_by_key(|segment| segment.no);
        Ok(segments)
    }

    /// Refuses a log that has less than other files prove to have been durable.
    pub(crate) fn check_log(
        &self,
        manifest: &VersionSet,
        floor: FileNo,
        recovered: &RecoveredLog,
    ) -> Result<()> {
        // A segment that was durable was never cut off the log rightly: all before it was durable.
        let whole_through = |no| {
            let read = recovered.segments.iter().find(|segment| segment.no == no);
            read.map(SegmentEnd::whole_through)
        };
        manifest.evidence().check_log(&self.dir, floor, whole_through)
    }

    /// Removes what interrupted work left: tables of no version, old manifests and log segments,
    /// temporary files. Failures are logged; the next open tries again.
    fn remove_strays(&self) -> Result<()> {
        let (live, manifest_no, log_floor) = {
            let manifest = self.manifest.lock();
            if manifest.is_unsettled() {
                // The next open may find the edit that a full disk interrupted, and what it names.
                return Ok(());
            }
            let live: std::collections::HashSet<u64> = manifest
                .column_families()
                .flat_map(|(_, _, version)| version.files().map(|(_, file)| file.no))
                .collect();
            (live, manifest.manifest_no(), manifest.log_floor())
        };
        for entry in self.fs.list(&self.dir)? {
            let name = entry.name.as_str();
            let stray = match file_number(name) {
                _ if entry.is_dir => false,
                _ if name.ends_with(".tmp") => true,
                Some(no) if name.ends_with(".sst") => !live.contains(&no.0),
                Some(no) if name.ends_with(".log") => no < log_floor,
                Some(no) if name.starts_with("MANIFEST-") => no != manifest_no,
                Some(no) if name.starts_with("MARK-") => no != manifest_no,
                _ => false,
            };
            if stray && let Err(error) = self.fs.remove(&self.path_of(name)) {
                tracing::warn!(%error, "a stray file could not be removed");
            }
        }
        Ok(())
    }

    /// Fails where a test wants a background step to fail.
    pub(crate) fn fault_point(&self, name: &str) -> Result<()> {
        self.fault.as_ref().map_or(Ok(()), |fault| fault(name))
    }

    /// A fresh random number for the unique ids of a job's files.
    pub(crate) fn unique_seed(&self) -> u64 {
        self.rng.lock().u64(..)
    }
}

/// Recovery looks at the byte budget once for so many records.
const BUDGET_LOOK_RECORDS: u64 = 64;
/// Over the budget, recovery writes a memtable to files that holds at least this share of it,
const FLUSH_SHARE: u64 = 32;
/// and at least so many bytes, so that a budget that is spent elsewhere does not make tiny files.
const FLUSH_BYTES_MIN: u64 = 256 << 10;

/// Refuses a record of the log of a column family that the manifest does not know yet, which is
/// one with the id `next` or a larger one: the manifest has lost the edit that created it.
pub(crate) fn check_known(cf: CfId, next: CfId) -> Result<()> {
    if cf < next {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Corrupt,
        format!(
            "record: it writes to column family {cf}, which the manifest does not know: the \
             manifest has lost the edit that created it"
        ),
    ))
}

/// The log's records on their way into memtables and files.
struct Replay<'a> {
    inner: &'a DbInner,
    /// What the one edit of recovery will say.
    outputs: VersionEdit,
    /// What was written for it.
    written: Vec<JobOutput>,
    last_seq: SeqNo,
    /// No column family with this id or a larger one was ever created.
    next_cf_id: CfId,
    /// Set if the log is kept and its records stay in memory.
    kept: Option<KeptLog>,
}

/// A log that recovery keeps, because the disk has no room for its tables.
struct KeptLog {
    /// Its oldest segment.
    oldest: FileNo,
    /// What recovery to tables failed with.
    no_room: Error,
}

impl<'a> Replay<'a> {
    fn new(inner: &'a DbInner, kept: Option<KeptLog>) -> Self {
        Self {
            inner,
            outputs: VersionEdit::new(),
            written: Vec::new(),
            last_seq: SeqNo::ZERO,
            next_cf_id: inner.manifest.lock().next_cf_id(),
            kept,
        }
    }

    /// Replays the log.
    fn read(&mut self, chain: &LogChain<'_>) -> Result<RecoveredLog> {
        let fs = Arc::clone(&self.inner.fs);
        let read = crate::wal::recover(&*fs, chain, &mut |first_seq, batch| {
            self.apply(first_seq, batch.iter())
        });
        match read {
            Ok(recovered) => {
                if let Some(lost) = &recovered.lost {
                    tracing::warn!(
                        lost,
                        "the end of the log was not whole; unsynced writes were lost"
                    );
                }
                Ok(recovered)
            }
            Err(error) => {
                self.discard();
                Err(error)
            }
        }
    }

    fn last_seq_of(&self, recovered: &RecoveredLog) -> SeqNo {
        self.last_seq
            .max(recovered.last_seq.unwrap_or_default())
            .max(self.inner.manifest.lock().last_seq())
    }

    /// Removes the tables of a recovery that was not installed.
    fn discard(&mut self) {
        std::mem::take(&mut self.written).iter().for_each(|output| self.inner.discard(output));
    }

    fn apply<'b>(
        &mut self,
        first_seq: SeqNo,
        ops: impl Iterator<Item = Result<crate::wal::BatchOp<'b>>>,
    ) -> Result<()> {
        let mut seq = first_seq;
        for op in ops {
            let op = op?;
            self.last_seq = self.last_seq.max(seq);
            check_known(op.cf, self.next_cf_id)?;
            // A family that was dropped after the write was logged: nothing to restore.
            if let Some(family) = self.inner.family(op.cf) {
                self.apply_one(&family, seq, &op)?;
            }
            seq = SeqNo(seq.0 + 1);
        }
        Ok(())
    }

    fn apply_one(
        &mut self,
        family: &Arc<Family>,
        seq: SeqNo,
        op: &crate::wal::BatchOp<'_>,
    ) -> Result<()> {
        let current = family.current.load_full();
        let flushed = current.version.flushed_through();
        let bytes = (op.key.len() + op.value.len()) as u64 + RECORD_OVERHEAD_BYTES;
        let kept_log = self.kept.as_ref().map(|kept| kept.oldest);
        if op.kind == crate::key::Kind::RangeDelete {
            for (start, end) in flushed.parts_below(seq, op.key, op.value) {
                current.active.insert(seq, op.kind, start, end, kept_log);
            }
        } else if flushed.get(op.key) < seq {
            current.active.insert(seq, op.kind, op.key, op.value, kept_log);
        } else {
            return Ok(());
        }
        match kept_log {
            None => current.active.charge_replayed(bytes),
            Some(log) => {
                current.active.grant(bytes, Some(log));
                current.active.release();
            }
        }
        let budget = &self.inner.budget;
        let full = self.inner.memtable_bytes_max(&family.options);
        let is_full = current.active.charged_bytes() >= full || current.active.is_crowded();
        match &self.kept {
            Some(kept) if is_full => self.seal(family, kept)?,
            None if is_full => self.flush(family, &current.active)?,
            None if seq.0.is_multiple_of(BUDGET_LOOK_RECORDS)
                && budget.pressure() == Pressure::Over =>
            {
                self.flush_largest()?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Seals a full memtable of a log that is kept.
    fn seal(&self, family: &Arc<Family>, kept: &KeptLog) -> Result<()> {
        let budget = &self.inner.budget;
        if budget.total_bytes() > budget.limit_bytes() {
            return Err(kept.no_room.context_at(
                "the log holds more than the memory budget, so its records must go to tables: make \
                 room on the disk, or raise memory_budget_bytes, and open the database again",
            ));
        }
        let mut commit = self.inner.committer.lock();
        commit.last_seq = self.last_seq;
        self.inner.seal_active(&mut commit, family);
        Ok(())
    }

    /// Writes the largest memtable to files, if that gives back a share of the budget that is worth
    /// a file.
    fn flush_largest(&mut self) -> Result<()> {
        let families = self.inner.live_families();
        let size = |family: &Arc<Family>| family.current.load().active.charged_bytes();
        let Some(largest) = families.into_iter().max_by_key(size) else { return Ok(()) };
        let worth = (self.inner.budget.limit_bytes() / FLUSH_SHARE).max(FLUSH_BYTES_MIN);
        let active = Arc::clone(&largest.current.load().active);
        if active.charged_bytes() >= worth { self.flush(&largest, &active) } else { Ok(()) }
    }

    /// Writes a family's memtable to files that the final edit will install.
    fn flush(&mut self, family: &Arc<Family>, memtable: &Arc<Memtable>) -> Result<()> {
        memtable.close_at(self.last_seq);
        memtable.shards.iter().for_each(|shard| shard.seal());
        let task = FlushTask {
            job_id: 0,
            family: Arc::clone(family),
            memtables: vec![Arc::clone(memtable)],
            shards: 0..memtable.shards.len(),
            range: KeyRange::all(),
            planned_cuts: Vec::new(),
        };
        // A file that waits for the final edit lies in the one bucket there was.
        let waits =
            |change: &Change| matches!(change, Change::AddFile { cf, .. } if *cf == family.id);
        if !self.outputs.changes.iter().any(waits) {
            self.inner.set_first_map(&task)?;
        }
        let room = flush_room(memtable.charged_bytes(), task.shards.len() as u64);
        self.inner.ensure_room(room, "recovery")?;
        let output = {
            let spec = self.inner.flush_spec(&task, task.shards.clone());
            run_flush(&spec, &self.inner.job_context(&task))?
        };
        for meta in &output.files {
            self.outputs.add_file(family.id, 0, meta.clone());
        }
        self.written.push(output);
        self.outputs.flushed_through(family.id, KeyRange::all(), self.last_seq);
        let version = Arc::clone(&family.current.load().version);
        let active = self.inner.new_memtable(&version, &[]);
        self.inner.committer.lock().set_active(family.id, Some(Arc::clone(&active)));
        let next = SuperVersion { active, immutables: Vec::new(), version };
        self.inner.publish(&mut self.inner.state.lock(), family, next);
        Ok(())
    }

    fn flush_all(&mut self) -> Result<()> {
        for family in self.inner.live_families() {
            let active = Arc::clone(&family.current.load().active);
            if !active.is_empty() {
                self.flush(&family, &active)?;
            }
        }
        Ok(())
    }
}

/// How a database ends.
impl DbInner {
    /// Stops background work, makes what was written durable, releases the lock. Once.
    pub(crate) fn shut_down(
        &self,
        workers: &crate::db::background::scheduler::Workers,
    ) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let left = match self.health.is_read_only() {
            true => Ok(()),
            false => self.leave_log_before_sync(),
        };
        let flushed = left.and_then(|()| self.flush_unlogged());
        self.closed.store(true, Ordering::Release);
        self.closing.store(true, Ordering::Release);
        self.work.notify_all();
        self.progress.notify_all();
        let joined = workers.join();
        self.hands.close();
        let ended = self.end_log();
        self.remove_obsolete();
        // An install of a user's thread that began before is over now, and none begins any more.
        drop(self.manifest.lock());
        *self.lock.lock() = None;
        flushed.and(joined).and(ended)
    }

    /// Flushes memtables with records that no log has.
    pub(crate) fn flush_unlogged(&self) -> Result<()> {
        if self.options.read_only || self.health.is_read_only() {
            return Ok(());
        }
        for family in self.live_families() {
            let current = family.current.load_full();
            let sealed = self.state.lock().flushes.get(&family.id).is_some_and(|tracker| {
                tracker.queue.iter().any(|sealed| sealed.memtable.has_unlogged())
            });
            if sealed || current.active.has_unlogged() {
                match self.flush_family(&family) {
                    // Dropped meanwhile: there is nothing left to flush.
                    Err(_) if family.check_alive().is_err() => {}
                    flushed => flushed?,
                }
            }
        }
        Ok(())
    }

    fn end_log(&self) -> Result<()> {
        let mut commit = self.committer.lock();
        let Some(mut log) = commit.log.take() else { return Ok(()) };
        let after = commit.last_seq.next();
        drop(commit);
        let synced = log.syncer().sync().map(|durable| {
            self.marks.log(LogMark { no: durable.segment, bytes: durable.offset });
        });
        if synced.is_ok()
            && !log.is_broken()
            && let Err(error) = log.mark_synced(after)
        {
            tracing::warn!(%error, "the end of the log could not be marked as synced");
        }
        let closed = log.finish();
        match (synced, closed.unfinished) {
            (Err(error), _) => Err(error.context_at("the log could not be synced at close")),
            (Ok(()), Some(error)) => Err(error),
            (Ok(()), None) => Ok(()),
        }
    }
}
