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
//! 5. The replayed records of all families are flushed. One edit installs **all** of the tables,
//!    and moves the log floor past the old segments. The replayed log may not be durable. So an
//!    edit that installs only a part could keep half a batch over a power loss.
//! 6. A new log segment is started, and files that nothing refers to are removed.
//!
//! A database whose log lies outside its directory ([`FileSystem::log_place`]) raises the owner
//! epoch before step 4 at its first open, because the edit names the place of the log.
//!
//! A database with a store of memtable shards ([`crate::remote`]) raises the owner epoch before
//! step 4. If memory nodes have shards of the previous owner, these stay there. The rest of the log
//! is replayed into memory, and step 5 installs no tables ([`takeover`]).
//!
//! A read-only open replaces steps 4 to 6 by a picture of its own
//! ([`crate::db::lifecycle::catch_up`]).
//!
//! If the disk has no room for the tables of step 5, the reserve is given up first
//! ([`crate::disk_space`]). If that is not enough, the tables are removed, nothing is installed,
//! and the log is kept. Its segments are made durable, and its records stay in memtables that pin
//! them. Flushes bring the records to tables when there is room ([decision
//! 0045](../../../../docs/decisions/0045-full-disks.md)).
//!
//! Invariants: a crash before the edit of step 5 leaves the old state, because only that edit
//! changes data. The edit that raises the owner epoch changes no data.
//!
//! Thread-safety: one thread opens; the lock of the directory excludes others.
//! Failure: a refusal changes nothing. After a later failure the new tables are removed, and the
//! owner epoch may be raised.
//! Cost: the log is read once, or twice if it is kept. Memory is bounded: memtables that are full
//! of records or of range deletes are written to files before the edit. So is the largest memtable
//! while the byte budget is exceeded. If the log is kept, the memory budget bounds it.

mod components;
mod kept_log;
mod replay;
mod takeover;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Once};

use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_base::random::{Rng, entropy_seed, unique_id};
use archipelago_base::{CfId, Error, FileNo, Result};
use archipelago_env::foreground::{Foreground, ForegroundFs};
use archipelago_env::limit::RateLimiter;
use archipelago_env::{FileLock, FileSystem};

use crate::cache::BlockKind;
use crate::db::background::warm_outputs::WarmPasses;
use crate::db::background::{rebuild, scheduler, space};
use crate::db::inner::DbInner;
use crate::db::lifecycle::catch_up::{self, Unusable, while_changing};
use crate::db::read::ReadView;
use crate::db::read::pictures::Pictures;
use crate::db::read::values::ValueReaders;
use crate::db::state::away::{LinkParts, StoreLink};
use crate::db::state::background_mode::BackgroundMode;
use crate::db::state::context::{Context, ContextParts};
use crate::db::state::family::{Family, SuperVersion};
use crate::db::state::jobs::Jobs;
use crate::db::state::observers::Observers;
use crate::db::state::pacing::Pacing;
use crate::db::state::storage::{Storage, StorageParts};
use crate::db::write::WritePath;
use crate::db::write::disk_room::{self, Disk};
use crate::db::write::log_segments::{self, LogSegments};
use crate::executor::OwnerIdentity;
use crate::file_meta::LOCK_NAME;
use crate::live_file::Trash;
use crate::lock_order::Order;
use crate::manifest::{
    Change, DirectoryState, Owner, OwnerClaim, VersionEdit, VersionSet, file_number, inspect,
};
use crate::memory_shares::MemoryShares;
use crate::options::{CfOptions, DbOptions};
use crate::sst::BlockCache;
use crate::table_cache::TableCache;
use crate::wal::{LogChain, RecoveredLog, SegmentEnd};

pub use components::Components;
use replay::Replay;
pub(crate) use replay::check_known;

/// Bytes of the ring, in which a local log keeps appends in memory.
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
        inner.storage.lock_manifest(Order::none()).own_log_place()?;
        space::restore_figures(&inner.storage, &inner.jobs, &inner.view);
        recover_log(&inner, claim)?;
        claim_ownership(&inner.storage)?;
        tell_others(&inner, claim)?;
        remove_strays(&inner.storage)?;
        let limit_changes = {
            let mut state = inner.jobs.lock(Order::none());
            space::note_all(inner.space_owners(), &mut state, None);
            state.take_limit_changes()
        };
        scheduler::decide_throttles(inner.stall_owners(), &inner.view, &limit_changes);
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
        // The buffer has the records that are not sent yet. Sent records are kept until they are
        // acknowledged.
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
        warm_passes: WarmPasses::default(),
        writes: WritePath::new(last_seq, &budget),
        close_once: Once::new(),
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
    let cache_bytes = shares.cache_bytes(options.block_cache_bytes);
    let cache = BlockCache::refusing(refused, cache_bytes, budget);
    if components.shard_store.is_some() {
        cache.measure(&components.clock);
    }
    let tables = TableCache::new(
        Arc::clone(&components.fs),
        dir.to_owned(),
        cache,
        Arc::clone(budget),
        options.table_readers_max,
        options.direct_reads,
    );
    if options.read_only { tables.beside_a_writer() } else { tables }
}

/// Wraps the file system so that reads of users go first, if the components say so.
fn put_foreground_first(components: &mut Components) -> Arc<Foreground> {
    let gauge = Foreground::new(Arc::clone(&components.clock));
    if components.foreground_first {
        let inner = Arc::clone(&components.fs);
        components.fs = Arc::new(ForegroundFs::new(inner, Arc::clone(&gauge)));
    }
    gauge
}

/// Bytes of the memory budget: the setting, or half of the memory of the machine or its cgroup.
fn budget_bytes(options: &DbOptions) -> u64 {
    match options.memory_budget_bytes {
        0 => archipelago_env::host::memory_bytes().map_or(u64::MAX, |bytes| bytes / 2),
        bytes => bytes,
    }
}

/// Raises the owner epoch. On a disk without room, the first edit that succeeds raises it. No job
/// can run before that, because jobs need the file numbers of that edit.
fn claim_ownership(storage: &Storage) -> Result<()> {
    match storage.lock_manifest(Order::none()).own() {
        Err(error) if error.is_no_space() => {
            tracing::warn!(%error, "the disk has no room to note the new owner of the database");
            Ok(())
        }
        claimed => claimed,
    }
}

/// Tells the executor and the store of memtable shards the owner of the database, if the manifest
/// names the owner durably. On a disk without room it does not yet. Then both send nothing to other
/// processes.
fn tell_others(db: &Arc<DbInner>, claim: OwnerClaim) -> Result<()> {
    let Some(identity) = owner_by(&db.storage, claim) else { return Ok(()) };
    db.jobs.executor().owner_is(&identity)?;
    if let Some(away) = db.context.away() {
        away.tell_owner(&identity)?;
        let weak = Arc::downgrade(db);
        away.open(Box::new(move || match weak.upgrade() {
            Some(db) => rebuild::rebuild_here(&db),
            None => Ok(()),
        }));
    }
    Ok(())
}

/// The owner by `claim`, if the manifest names it durably.
fn owner_by(storage: &Storage, claim: OwnerClaim) -> Option<OwnerIdentity> {
    match storage.lock_manifest(Order::none()).owner().cloned() {
        Some(Owner { epoch, token, offload_id, .. }) if token == claim.token => {
            Some(OwnerIdentity { database: offload_id, epoch, token })
        }
        _ => None,
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

/// Recovers the log: steps 4 to 6 of the module.
fn recover_log(db: &DbInner, claim: OwnerClaim) -> Result<()> {
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
    if let Some(left) = takeover::find(&db.context, &db.storage, &db.view, claim)?
        && takeover::recover(db, &chain, left)?
    {
        return Ok(());
    }
    match recover_to_tables(db, &chain) {
        Err(error) if error.is_no_space() => {
            tracing::warn!(%error, "the disk has no room for the tables of recovery: the log \
                is kept, and its records stay in memory until there is room");
            kept_log::recover_to_memory(db, &chain, &error)
        }
        recovered => recovered,
    }
}

/// Recovers the log to tables, as the module describes. After an error nothing is installed.
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
        let mut edit = replay.take_changes();
        edit.push(Change::LastSeq(last_seq));
        edit.push(Change::LogFloor(next_log));
        scheduler::apply_edit(&db.storage, &db.jobs, &db.view, edit)
    });
    if let Err(error) = installed {
        replay.discard();
        return Err(error);
    }
    replay.note_installed();
    db.writes.committer().start_at(&db.view, last_seq);
    db.storage.fs().clear_log_tails(db.storage.dir())?;
    kept_log::start_log(db, next_log, recovered.previous)
}

/// Refuses a log that lacks records which were durable by the evidence of other files.
pub(crate) fn check_log(
    storage: &Storage,
    manifest: &VersionSet,
    floor: FileNo,
    recovered: &RecoveredLog,
) -> Result<()> {
    // A durable segment must not be cut off the log, because everything before it was durable.
    let whole_through = |no| {
        let read = recovered.segments.iter().find(|segment| segment.no == no);
        read.map(SegmentEnd::whole_through)
    };
    manifest.evidence().check_log(storage.dir(), floor, whole_through)
}

/// Removes files that interrupted work left: tables of no version, old manifests and log segments,
/// temporary files. A file that cannot be removed is logged, and the next open tries again.
fn remove_strays(storage: &Storage) -> Result<()> {
    let (live, manifest_no, log_floor) = {
        let manifest = storage.lock_manifest(Order::none());
        if manifest.is_unsettled() {
            // The next open may find the edit that a full disk interrupted, and needs the files
            // that it names.
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
