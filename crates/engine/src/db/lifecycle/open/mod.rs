//! Opening: the files of a directory become a running database.
//!
//! Steps:
//!
//! 1. The settings and the directory are checked. Nothing is changed if the open is refused.
//! 2. The lock of the directory is taken.
//! 3. The manifest is recovered, or created. The next edit raises the owner epoch and reserves file
//!    numbers, and it comes before the first table is created. So no process that still works for
//!    an earlier owner can write a file of this one.
//! 4. The log is replayed into memtables. Records that each range's flushed-through sequence number
//!    covers are skipped.
//! 5. The replayed records are flushed and **all** of them are installed, of all families, in one
//!    edit that also moves the log floor past the old segments. The replayed log may not be
//!    durable, so installing a part could keep half a batch over a power loss.
//! 6. A new log segment is started, and files that nothing refers to are removed.
//!
//! A read-only open replaces steps 4 to 6 by a picture of its own
//! ([`crate::db::lifecycle::catch_up`]).
//!
//! If the disk has no room for the tables of step 5, the reserve is given up first
//! ([`crate::disk_space`]). If that is not enough, the tables are removed, nothing is installed,
//! and the log is kept: its segments are made durable, its records stay in memtables that pin them,
//! and flushes bring them to tables when there is room ([decision
//! 0045](../../../../docs/decisions/0045-full-disks.md)).
//!
//! Invariants: a crash at any point leaves the old state, because only the edit of step 5 changes
//! it. The edit that raises the owner epoch changes no data.
//!
//! Thread-safety: one thread opens; the lock of the directory excludes others.
//! Failure: a refusal changes nothing. A failure after the first table has removed the tables, and
//! may leave a raised owner epoch.
//! Cost: the log is read once, or twice if it is kept. Memory is bounded: memtables that are full
//! (of records or of range deletes), or the largest one while the byte budget is exceeded, are
//! written to files before the edit. If the log is kept, the memory budget bounds it.

mod kept_log;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use archipelago_base::budget::{ByteBudget, MemoryClass, Pressure};
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::{Rng, entropy_seed, unique_id};
use archipelago_base::{CfId, Error, ErrorKind, FileNo, Result, SeqNo};
use archipelago_env::foreground::{Foreground, ForegroundFs};
use archipelago_env::limit::RateLimiter;
use archipelago_env::local::LocalFs;
use archipelago_env::{FileLock, FileSystem};

use crate::cache::BlockKind;
use crate::db::background::flush;
use crate::db::background::flush_task::{FlushCut, FlushPart, FlushTask, TakenMemtable};
use crate::db::background::job_numbers::JobNumbers;
use crate::db::background::taken::Taken;
use crate::db::background::{compaction, rebuild, scheduler, space};
use crate::db::inner::DbInner;
use crate::db::lifecycle::catch_up::{self, Unusable, while_changing};
use crate::db::read::ReadView;
use crate::db::read::pictures::Pictures;
use crate::db::read::values::ValueReaders;
use crate::db::state::away::{LinkParts, StoreLink};
use crate::db::state::background_mode::BackgroundMode;
use crate::db::state::context::{Context, ContextParts, FaultPoint};
use crate::db::state::family::{Family, SuperVersion};
use crate::db::state::jobs::Jobs;
use crate::db::state::memtable::{Memtable, RECORD_OVERHEAD_BYTES, SealedInfo, ShardHome};
use crate::db::state::observers::Observers;
use crate::db::state::pacing::Pacing;
use crate::db::state::storage::{Storage, StorageParts};
use crate::db::write::disk_room::{self, Disk};
use crate::db::write::log_segments::{self, LogSegments};
use crate::db::write::{WritePath, seal};
use crate::disk_space::flush_room;
use crate::event::Listeners;
use crate::executor::{JobExecutor, LocalExecutor, OwnerIdentity};
use crate::extension::Registry;
use crate::file_meta::LOCK_NAME;
use crate::flush::run_flush;
use crate::job::JobOutput;
use crate::key::KeyRange;
use crate::live_file::Trash;
use crate::lock_order::Order;
use crate::manifest::{
    Change, DirectoryState, Owner, OwnerClaim, VersionEdit, VersionSet, file_number, inspect,
};
use crate::memory_shares::MemoryShares;
use crate::options::{CfOptions, DbOptions};
use crate::remote::ShardStore;
use crate::sst::BlockCache;
use crate::table_cache::TableCache;
use crate::wal::{LogChain, RecoveredLog, SegmentEnd};

/// Parts of a database besides its settings.
#[derive(Clone)]
pub struct Components {
    /// File system of the files. Default: the local file system.
    pub fs: Arc<dyn FileSystem>,
    /// Whether compactions let reads that users wait for go first. Default: yes; no is there to
    /// compare with.
    pub foreground_first: bool,
    /// Whether the block cache keeps references of tables in the Flat Index Cache. Default: yes; no
    /// is there to compare with.
    pub flat_index: bool,
    /// Source of the time. Default: the system's clock.
    pub clock: Arc<dyn Clock>,
    /// Merge operators and compaction filters. Default: the built-in ones.
    pub registry: Registry,
    /// Receivers of events. Default: none.
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
    /// Runs flushes and compactions. Default: the database's own background threads. (What
    /// recovery and ingestion write runs where they are called.)
    pub executor: Arc<dyn JobExecutor>,
    /// Keeps sealed memtable shards outside the memory of this process. Default: none; all stay
    /// here until they are flushed.
    pub shard_store: Option<Arc<dyn ShardStore>>,
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
            flat_index: true,
            clock: SystemClock::shared(),
            registry: Registry::default(),
            listeners: Listeners::default(),
            budget: None,
            families: BTreeMap::new(),
            alike_default: None,
            executor: Arc::new(LocalExecutor),
            shard_store: None,
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

/// Bytes that a local log keeps in memory: its ring.
const LOG_BUFFER_BYTES: u64 = 4 << 20;

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
    let trash = Arc::new(Trash::new(Arc::clone(&components.clock)));
    let mut rng = Rng::with_seed(components.seed.unwrap_or_else(entropy_seed));
    let claim = OwnerClaim { token: unique_id(&mut rng), offload_id: unique_id(&mut rng) };
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
    let files = DirectoryFiles { dir, manifest, trash, lock };
    let inner = assemble(files, options, components, rng);
    kept_log::prepare_room(&inner.context, &inner.storage, &inner.observers, &inner.disk)?;
    if !inner.context.options().read_only {
        inner.storage.lock_manifest(Order::none()).intend_to_own(claim);
    }
    open_families(&inner)?;
    if inner.context.options().read_only {
        catch_up::catch_up(&inner)?;
    } else {
        recover_log(&inner)?;
        claim_ownership(&inner.storage)?;
        tell_others(&inner, claim)?;
        remove_strays(&inner.storage)?;
        space::note_all(&inner, &mut inner.jobs.lock(Order::none()), None);
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

/// The directory of a database that is being opened, locked.
struct DirectoryFiles<'a> {
    dir: &'a Path,
    manifest: VersionSet,
    trash: Arc<Trash>,
    lock: Option<Box<dyn FileLock>>,
}

fn assemble(
    files: DirectoryFiles<'_>,
    options: DbOptions,
    mut components: Components,
    rng: Rng,
) -> Arc<DbInner> {
    let DirectoryFiles { dir, manifest, trash, lock } = files;
    let foreground = put_foreground_first(&mut components);
    let budget =
        components.budget.take().unwrap_or_else(|| ByteBudget::new(budget_bytes(&options)));
    let tables = table_cache(dir, &options, &components, &budget);
    let log_bytes = match options.read_only {
        true => 0,
        // A buffered record is in the buffer, and is kept until it is acknowledged.
        false => LOG_BUFFER_BYTES + 2 * options.log_buffer_bytes,
    };
    let log_buffer = budget.hold(MemoryClass::Log, log_bytes);
    let limiter = RateLimiter::new(options.rate_limit_bytes_per_s);
    let last_seq = manifest.last_seq();
    let fault = components.fault_point();
    let lease = components.fs.read_lease();
    let value_readers = ValueReaders::new(components.background, &components.clock);
    let pictures = Pictures::new(catch_up::take_new_picture);
    let jobs = Jobs::new(components.executor, limiter);
    let observers = Observers::new(components.listeners);
    let store = components.shard_store.take().filter(|_| !options.read_only);
    let away = store.map(|store| {
        StoreLink::new(LinkParts {
            store,
            stats: Arc::clone(observers.stats()),
            budget: Arc::clone(&budget),
            clock: Arc::clone(&components.clock),
            workers: Arc::clone(jobs.work()),
            may_wait: components.background == BackgroundMode::Threads,
        })
    });
    Arc::new(DbInner {
        pacing: Pacing::new(&components.clock, foreground),
        jobs,
        view: ReadView::new(last_seq, tables, value_readers, pictures),
        writes: WritePath::new(last_seq, &budget),
        logs: LogSegments::new(log_buffer),
        disk: Disk::new(dir),
        observers,
        storage: Storage::new(StorageParts { fs: components.fs, dir, manifest, trash, lock }),
        context: Context::new(ContextParts {
            options,
            background: components.background,
            clock: components.clock,
            registry: components.registry,
            budget,
            family_overrides: components.families,
            alike_default: components.alike_default,
            fault,
            lease,
            away,
            rng,
        }),
    })
}

/// The readers of the tables in `dir`, with a block cache of their own.
fn table_cache(
    dir: &Path,
    options: &DbOptions,
    components: &Components,
    budget: &Arc<ByteBudget>,
) -> TableCache {
    let refused = (!components.flat_index).then_some(BlockKind::Flat);
    let shares = MemoryShares { budget_bytes: budget.limit_bytes() };
    shares.log_lowered(options);
    let tables = TableCache::new(
        Arc::clone(&components.fs),
        dir.to_owned(),
        BlockCache::refusing(refused, shares.cache_bytes(options.block_cache_bytes), budget),
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

/// Raises the owner epoch. On a disk without room the first edit that succeeds does it, and no job
/// can run before, because it needs file numbers of that edit.
fn claim_ownership(storage: &Storage) -> Result<()> {
    match storage.lock_manifest(Order::none()).own() {
        Err(error) if error.is_no_space() => {
            tracing::warn!(%error, "the disk has no room to note the new owner of the database");
            Ok(())
        }
        claimed => claimed,
    }
}

/// Tells the executor and the store of memtable shards who owns the database, if the manifest names
/// the owner durably. Otherwise those of a disk without room send nothing to other processes.
fn tell_others(db: &Arc<DbInner>, claim: OwnerClaim) -> Result<()> {
    let owner = db.storage.lock_manifest(Order::none()).owner().cloned();
    match owner {
        Some(Owner { epoch, token, offload_id, .. }) if token == claim.token => {
            let identity = OwnerIdentity { database: offload_id, epoch, token };
            db.jobs.executor().owner_is(&identity)?;
            if let Some(away) = db.context.away() {
                away.store().owner_is(&identity)?;
                let weak = Arc::downgrade(db);
                away.open(Box::new(move || match weak.upgrade() {
                    Some(db) => rebuild::rebuild_here(&db),
                    None => Ok(()),
                }));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Makes the families that the manifest knows, with stored or given settings.
fn open_families(db: &DbInner) -> Result<()> {
    let mut edit = VersionEdit::new();
    let mut opened = Vec::new();
    {
        let manifest = db.storage.lock_manifest(Order::none());
        let default = manifest.column_families().find(|(id, ..)| *id == CfId::DEFAULT);
        let default = default.map(|(_, name, version)| (name, version.options().clone()));
        for (id, name, version) in manifest.column_families() {
            let stored = CfOptions::clone(version.options());
            let is_alike = db.context.is_alike_default(name);
            let given = db.context.family_overrides().get(name).or_else(|| {
                let (name, stored) = default.as_ref().filter(|_| is_alike)?;
                db.context.family_overrides().get(*name).or(Some(&**stored))
            });
            let options = given.cloned().unwrap_or(stored.clone());
            if options != stored && !db.context.options().read_only {
                let options = Box::new(options.clone());
                edit.push(Change::SetCfOptions { cf: id, options });
            }
            opened.push((id, name.to_owned(), options, Arc::clone(version)));
        }
    }
    let known = |name: &String| name == "default" || opened.iter().any(|(_, n, _, _)| n == name);
    if let Some(unknown) = db.context.family_overrides().keys().find(|name| !known(name)) {
        return Err(unknown_family(unknown, db.storage.dir()));
    }
    let mut commit = db.writes.committer().lock(Order::none());
    for (id, name, options, version) in opened {
        if !db.context.options().read_only {
            db.context.memory_shares().log_lowered_in_family(&name, &options);
        }
        let active = db.writes.new_memtable(&db.context, &version, &[]);
        let first = SuperVersion::new(Arc::clone(&active), version);
        let family = Family::new(id, name, options, db.context.registry(), first)?;
        commit.set_active(id, Some(active));
        db.view.set_family(id, Some(family));
    }
    drop(commit);
    if edit.changes.is_empty() {
        return Ok(());
    }
    match scheduler::apply_edit(&db.storage, &db.jobs, &db.view, edit) {
        Err(error) if error.is_no_space() => {
            tracing::warn!(%error, "the disk has no room to store other settings of families");
            Ok(())
        }
        stored => stored,
    }
}

/// Steps 4 to 6 of the module.
fn recover_log(db: &DbInner) -> Result<()> {
    let floor = db.storage.lock_manifest(Order::none()).log_floor();
    let segments = log_segments::listed_segments(&db.storage, floor)?;
    let is_listed = |no| segments.iter().any(|segment| segment.no == no).then_some(u64::MAX);
    db.storage.lock_manifest(Order::none()).evidence().check_log(
        db.storage.dir(),
        floor,
        is_listed,
    )?;
    let chain = LogChain {
        segments: &segments,
        floor,
        mode: db.context.options().recovery_mode,
        database_id: db.storage.database_id(),
    };
    disk_room::look_at_disk(db);
    match recover_to_tables(db, &chain) {
        Err(error) if error.is_no_space() => {
            tracing::warn!(%error, "the disk has no room for the tables of recovery: the log \
                is kept, and its records stay in memory until there is room");
            kept_log::recover_to_memory(db, &chain, &error)
        }
        recovered => recovered,
    }
}

/// Recovery as the module tells it. After an error nothing is installed.
fn recover_to_tables(db: &DbInner, chain: &LogChain<'_>) -> Result<()> {
    let mut replay = Replay::new(db, None);
    let recovered = replay.read(chain)?;
    // The guard must end before `discard`, which takes the manifest lock as well.
    let checked =
        check_log(&db.storage, &db.storage.lock_manifest(Order::none()), chain.floor, &recovered);
    if let Err(lost) = checked {
        replay.discard();
        return Err(lost);
    }
    let last_seq = replay.last_seq_of(&recovered);
    let next_log = db.storage.file_numbers().allocate();
    let installed = replay.flush_all().and_then(|()| {
        db.context.fault_point("recovery.before_install")?;
        let mut edit = std::mem::take(&mut replay.outputs);
        edit.push(Change::LastSeq(last_seq));
        edit.push(Change::LogFloor(next_log));
        scheduler::apply_edit(&db.storage, &db.jobs, &db.view, edit)
    });
    if let Err(error) = installed {
        replay.discard();
        return Err(error);
    }
    replay.numbers.note_installed();
    db.writes.committer().start_at(&db.view, last_seq);
    db.storage.fs().clear_log_tails(db.storage.dir())?;
    kept_log::start_log(db, next_log, recovered.previous)
}

/// Refuses a log that has less than other files prove to have been durable.
pub(crate) fn check_log(
    storage: &Storage,
    manifest: &VersionSet,
    floor: FileNo,
    recovered: &RecoveredLog,
) -> Result<()> {
    // A segment that was durable was never cut off the log rightly: all before it was durable.
    let whole_through = |no| {
        let read = recovered.segments.iter().find(|segment| segment.no == no);
        read.map(SegmentEnd::whole_through)
    };
    manifest.evidence().check_log(storage.dir(), floor, whole_through)
}

/// Removes what interrupted work left: tables of no version, old manifests and log segments,
/// temporary files. Failures are logged; the next open tries again.
fn remove_strays(storage: &Storage) -> Result<()> {
    let (live, manifest_no, log_floor) = {
        let manifest = storage.lock_manifest(Order::none());
        if manifest.is_unsettled() {
            // The next open may find the edit that a full disk interrupted, and what it names.
            return Ok(());
        }
        let live: std::collections::HashSet<u64> =
            manifest.column_families().flat_map(|(_, _, version)| version.file_numbers()).collect();
        (live, manifest.manifest_no(), manifest.log_floor())
    };
    for entry in storage.fs().list(storage.dir())? {
        let name = entry.name.as_str();
        let stray = match file_number(name) {
            _ if entry.is_dir => false,
            _ if name.ends_with(".tmp") => true,
            Some(no) if [".sst", ".vsst", ".inv"].iter().any(|end| name.ends_with(end)) => {
                !live.contains(&no.0)
            }
            Some(no) if name.ends_with(".log") => no < log_floor,
            Some(no) if name.starts_with("MANIFEST-") => no != manifest_no,
            Some(no) if name.starts_with("MARK-") => no != manifest_no,
            _ => false,
        };
        if stray && let Err(error) = storage.fs().remove(&storage.path_of(name)) {
            tracing::warn!(%error, "a stray file could not be removed");
        }
    }
    Ok(())
}

/// Number of records after which recovery checks the byte budget again.
const BUDGET_LOOK_RECORDS: u64 = 64;
/// Smallest share of the budget that a memtable must hold to be written to files early.
const FLUSH_SHARE: u64 = 32;
/// Smallest size, in bytes, of a memtable that is written early. A budget that is spent elsewhere
/// must not lead to tiny files.
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
    /// Changes for the one edit of recovery.
    outputs: VersionEdit,
    /// Outputs that were written for it.
    written: Vec<JobOutput>,
    /// Numbers of these outputs.
    numbers: JobNumbers<'a>,
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
    /// Error of the recovery to tables.
    no_room: Error,
}

impl<'a> Replay<'a> {
    fn new(inner: &'a DbInner, kept: Option<KeptLog>) -> Self {
        Self {
            inner,
            outputs: VersionEdit::new(),
            written: Vec::new(),
            numbers: JobNumbers::new(inner, Order::none()),
            last_seq: SeqNo::ZERO,
            next_cf_id: inner.storage.lock_manifest(Order::none()).next_cf_id(),
            kept,
        }
    }

    /// Replays the log.
    fn read(&mut self, chain: &LogChain<'_>) -> Result<RecoveredLog> {
        let fs = Arc::clone(self.inner.storage.fs());
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
            .max(self.inner.storage.lock_manifest(Order::none()).last_seq())
    }

    /// Removes the tables of a recovery that was not installed.
    fn discard(&mut self) {
        std::mem::take(&mut self.written)
            .iter()
            .for_each(|output| self.inner.storage.discard(output, Order::none()));
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
            if let Some(family) = self.inner.view.family(op.cf) {
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
        let budget = self.inner.context.budget();
        let full = self.inner.context.memtable_bytes_max(&family.options);
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
        let budget = self.inner.context.budget();
        if budget.total_bytes() > budget.limit_bytes() {
            return Err(kept.no_room.context_at(
                "the log holds more than the memory budget, so its records must go to tables: make \
                 room on the disk, or raise memory_budget_bytes, and open the database again",
            ));
        }
        let mut commit = self.inner.writes.committer().lock(Order::none());
        commit.last_seq = self.last_seq;
        seal::seal_active(self.inner, &mut commit, family);
        Ok(())
    }

    /// Writes the largest memtable to files, if that gives back a share of the budget that is worth
    /// a file.
    fn flush_largest(&mut self) -> Result<()> {
        let families = self.inner.view.live_families();
        let size = |family: &Arc<Family>| family.current.load().active.charged_bytes();
        let Some(largest) = families.into_iter().max_by_key(size) else { return Ok(()) };
        let worth = (self.inner.context.budget().limit_bytes() / FLUSH_SHARE).max(FLUSH_BYTES_MIN);
        let active = Arc::clone(&largest.current.load().active);
        if active.charged_bytes() >= worth { self.flush(&largest, &active) } else { Ok(()) }
    }

    /// Writes a family's memtable to files that the final edit will install.
    fn flush(&mut self, family: &Arc<Family>, memtable: &Arc<Memtable>) -> Result<()> {
        memtable.close_at(self.last_seq);
        memtable.shards.iter().for_each(|shard| shard.seal());
        let info = SealedInfo::of(memtable);
        info.note_shards(memtable);
        let shards = memtable.shards.iter().cloned().map(ShardHome::Here).enumerate();
        let taken = Taken::of_memtable(info.id, shards);
        let task = FlushTask {
            job_id: 0,
            family: Arc::clone(family),
            memtables: vec![TakenMemtable { info, shards: 0..memtable.shards.len() }],
            cut: FlushCut::Uncut,
            range: KeyRange::all(),
            planned_cuts: Vec::new(),
        };
        // A file that waits for the final edit lies in the one bucket there was.
        let waits =
            |change: &Change| matches!(change, Change::AddFile { cf, .. } if *cf == family.id);
        if let [shard] = &*memtable.shards
            && !self.outputs.changes.iter().any(waits)
        {
            flush::set_first_map(self.inner, family, shard, Order::none())?;
        }
        let room = flush_room(memtable.charged_bytes(), task.tables_max() as u64);
        disk_room::ensure_room(self.inner, room, "recovery")?;
        let output = {
            let spec = flush::flush_spec(&self.numbers, &task, FlushPart::Whole, taken.refs())?;
            run_flush(
                &spec,
                &compaction::job_context(
                    &self.inner.context,
                    &self.inner.storage,
                    &self.inner.jobs,
                    &self.inner.view,
                    &taken,
                ),
            )?
        };
        flush::add_output(&mut self.outputs, family.id, &output);
        self.written.push(output);
        self.outputs.flushed_through(family.id, KeyRange::all(), self.last_seq);
        let version = Arc::clone(&family.current.load().version);
        let active = self.inner.writes.new_memtable(&self.inner.context, &version, &[]);
        self.inner
            .writes
            .committer()
            .lock(Order::none())
            .set_active(family.id, Some(Arc::clone(&active)));
        let next = SuperVersion::new(active, version);
        self.inner.view.publish(&mut self.inner.jobs.lock(Order::none()), family, next);
        Ok(())
    }

    fn flush_all(&mut self) -> Result<()> {
        for family in self.inner.view.live_families() {
            let active = Arc::clone(&family.current.load().active);
            if !active.is_empty() {
                self.flush(&family, &active)?;
            }
        }
        Ok(())
    }
}
