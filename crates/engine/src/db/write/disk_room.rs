//! Room on the disk: carries out the pure decisions of [`crate::disk_space`].
//!
//! The database owns one [`Disk`]. The commit path measures the free bytes whenever the writes have
//! used up the *credit* of the last measurement. Background workers measure between their jobs. The
//! state leads to actions: memtables are sealed early, log segments that were kept for reuse are
//! removed, and the reserve is given up or written again.
//!
//! Invariants:
//! 1. The reserve is given up only for a write or a compaction that frees space, a flush, recovery,
//!    or an append or sync that met a full disk. It is also given up if the settings want none.
//! 2. A write is admitted only under the commit lock, so that no two writes use one credit.
//! 3. The reserve is written only where its bytes are free in addition to the flush room.
//!
//! Thread-safety: any thread may call any function. The lock of the reserve is the last in the lock
//! order.
//! Failure: a file system that does not report free bytes always counts as roomy.
//! Cost: an admitted write pays one comparison and one subtraction under the commit lock, which it
//! holds anyway. A measurement (one system call, one visit of each family) comes every 8 MiB of log
//! on a roomy disk. Background work measures at most every 50 ms, in O(families) on a roomy disk;
//! on a disk that is small or three quarters full it also visits each table.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::ballast::Ballast;
use parking_lot::Mutex;

use crate::compaction::pick::{Pick, PickInput, Room, largest_job_bytes};
use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::jobs::Jobs;
use crate::db::state::observers::Observers;
use crate::db::state::storage::Storage;
use crate::db::write::commit_state::CommitGuard;
use crate::db::write::log_segments::{self, LogSegments};
use crate::db::write::submission::{FamilyShare, Submission};
use crate::db::write::{seal, stalling};
use crate::disk_space::{
    SLACK_BYTES, SpaceInput, SpaceState, SpaceUse, admits, compaction_room, cuts_max, flush_room,
    is_small, judge, manifest_length, may_write_reserve, must_wait, reserve_wanted, table_bytes,
};
use crate::file_meta::RESERVE_NAME;
use crate::live_file::LiveFile;
use crate::lock_order::{Before, JobsLock, Order};
use crate::options::LEVELS;
use crate::stats::Ticker;
use crate::version::Version;
use crate::wal::LogWriter;

/// Nanoseconds between two measurements by background workers that have other work.
const TEND_INTERVAL_NS: u64 = 50_000_000;
/// Nanoseconds after which a reserve that could not be written is tried again.
const RESERVE_PAUSE_NS: u64 = 10_000_000_000;
/// Longest wait of background work for the commit lock.
const LOCK_WAIT: Duration = Duration::from_millis(20);
/// With more than this part of the disk free, no compaction can be short of room.
const AMPLE_SHARE: u64 = 4;
/// Attempts of a writer to find room after the last progress that may have freed some.
const PATIENCE: u8 = 20;
/// Bytes that writers may write while the free room of a pool is not known yet.
const UNMEASURED_CREDIT_BYTES: u64 = 8 << 20;
/// Free bytes of a file system that does not report them.
const UNKNOWN: u64 = u64::MAX;

/// Measurements of the disk, and the reserve for a full one.
#[derive(Debug)]
pub(crate) struct Disk {
    ballast: Ballast,
    /// Held while the reserve is written or removed.
    changing: Mutex<()>,
    reserve_bytes: AtomicU64,
    /// Length that the reserve should have.
    wanted_bytes: AtomicU64,
    /// Time before which no reserve is written.
    reserve_at_ns: AtomicU64,
    state: AtomicU8,
    free_bytes: AtomicU64,
    /// Bytes of credit that writers got since the free room was measured.
    given_bytes: AtomicU64,
    /// Size of the disk for the database: bytes of its files, plus free bytes.
    disk_bytes: AtomicU64,
    compaction_bytes: AtomicU64,
    /// Length of the manifest at the last measurement by background work.
    manifest_bytes: AtomicU64,
    /// Bytes of the log that its file did not hold at the last measurement for a write.
    unwritten_bytes: AtomicU64,
    /// Estimated outputs of running compactions.
    running_bytes: AtomicU64,
    /// Bytes of room that the smallest of the due compactions lacks; 0 if one of them fits.
    lacking_bytes: AtomicU64,
    /// Number of compactions in a row whose estimated output was too small, since the last one that
    /// ended well.
    misjudged: AtomicU8,
    /// Whether the largest compaction exceeds the compaction room, so that flushes are cut.
    needs_cuts: AtomicBool,
    /// Number of attempts to find room that writers still have before they are refused.
    patience: AtomicU8,
    tended_at_ns: AtomicU64,
    /// Bytes in active memtables at the last measurement by background work.
    active_bytes: AtomicU64,
}

impl Disk {
    /// Bytes that running compactions are expected to write.
    pub(crate) fn expected_output_bytes(&self) -> u64 {
        self.running_bytes.load(Ordering::Relaxed)
    }

    /// The last measurement, for an operator.
    pub(crate) fn report(&self) -> DiskReport {
        let free_bytes = self.free_bytes.load(Ordering::Relaxed);
        DiskReport {
            state: self.state(),
            free_bytes: (free_bytes != UNKNOWN).then_some(free_bytes),
            reserve_bytes: self.reserve_bytes.load(Ordering::Relaxed),
            lacking_bytes: self.lacking_bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn new(dir: &Path) -> Self {
        Self {
            ballast: Ballast::new(dir, RESERVE_NAME),
            changing: Mutex::new(()),
            reserve_bytes: AtomicU64::new(0),
            wanted_bytes: AtomicU64::new(0),
            reserve_at_ns: AtomicU64::new(0),
            state: AtomicU8::new(SpaceState::Roomy as u8),
            free_bytes: AtomicU64::new(UNKNOWN),
            given_bytes: AtomicU64::new(0),
            disk_bytes: AtomicU64::new(UNKNOWN),
            compaction_bytes: AtomicU64::new(0),
            manifest_bytes: AtomicU64::new(0),
            unwritten_bytes: AtomicU64::new(0),
            running_bytes: AtomicU64::new(0),
            lacking_bytes: AtomicU64::new(0),
            misjudged: AtomicU8::new(0),
            needs_cuts: AtomicBool::new(false),
            patience: AtomicU8::new(0),
            tended_at_ns: AtomicU64::new(0),
            active_bytes: AtomicU64::new(0),
        }
    }

    /// Notes a measurement of free bytes. Writers had got `given_bytes` of credit before it began.
    /// The measurement may not include credit that they got meanwhile, so that credit still counts.
    fn note_free(&self, free_bytes: u64, given_bytes: u64) {
        self.free_bytes.store(free_bytes, Ordering::Relaxed);
        let left = |given: u64| Some(given.saturating_sub(given_bytes));
        let _always = self.given_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
    }

    /// The state by the last measurement.
    pub(crate) fn state(&self) -> SpaceState {
        SpaceState::from_u8(self.state.load(Ordering::Relaxed))
    }

    /// Size, in bytes, at which tables are closed, if the settings say `target_bytes`.
    pub(crate) fn table_bytes(&self, target_bytes: u64) -> u64 {
        table_bytes(target_bytes, self.disk_bytes.load(Ordering::Relaxed))
    }
}

/// Room on the disk, for an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskReport {
    /// State of the room on the disk.
    pub state: SpaceState,
    /// Free bytes by the last measurement; `None` if the file system does not report them.
    pub free_bytes: Option<u64>,
    /// Bytes of the reserve.
    pub reserve_bytes: u64,
    /// Bytes that must become free before the smallest due compaction can run; 0 if one can run
    /// now.
    pub lacking_bytes: u64,
}

/// Whether the disk takes a write now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Admitted,
    /// Memory must be flushed first.
    Waits,
    /// There is no room.
    Full,
}

/// Free bytes of the disk; [`UNKNOWN`] if the file system does not report them.
fn measure_free(storage: &Storage, disk: &Disk) -> u64 {
    let given = disk.given_bytes.load(Ordering::Relaxed);
    let free = storage.fs().free_bytes(storage.dir()).ok().flatten().unwrap_or(UNKNOWN);
    disk.note_free(free, given);
    free
}

/// Measures the free room of a pool for the writers. They use the last measurement and do not wait
/// for a new one. If the pool does not answer, the last measurement stays. Called without locks.
pub(crate) fn refresh_free_room(db: &DbInner) {
    stalling::refresh_writer_room(db.stall_owners(), &db.storage, &db.view);
    let given = db.disk.given_bytes.load(Ordering::Relaxed);
    match db.storage.fs().free_bytes(db.storage.dir()) {
        Ok(free) => db.disk.note_free(free.unwrap_or(UNKNOWN), given),
        Err(error) => tracing::debug!(%error, "the free room could not be measured"),
    }
}

/// Free bytes for a writer that holds the commit lock. For a pool, the writer does not wait for an
/// answer. It uses the last measurement minus the credit since then, and requests the next
/// measurement.
fn free_for_write(storage: &Storage, logs: &LogSegments, disk: &Disk) -> u64 {
    if !logs.ahead().is_kept() {
        return measure_free(storage, disk);
    }
    logs.ahead().request_room();
    match disk.free_bytes.load(Ordering::Relaxed) {
        UNKNOWN => UNKNOWN,
        free => free.saturating_sub(disk.given_bytes.load(Ordering::Relaxed)),
    }
}

/// Largest length of the tables that a flush of all memory makes.
pub(crate) fn flush_bytes(disk: &Disk, view: &ReadView) -> u64 {
    flush_bytes_with(disk, view, &[])
}

/// Largest length of the tables that a flush of all memory makes, with the bytes of a write added
/// to the active memtables.
fn flush_bytes_with(disk: &Disk, view: &ReadView, write: &[FamilyShare]) -> u64 {
    let (mut memory, mut tables) = (0u64, 0u64);
    for family in view.live_families() {
        let current = family.current.load();
        let own = write.iter().filter(|share| share.cf == family.id);
        let more: u64 = own.map(|share| share.bytes).sum();
        let active = current.active.charged_bytes().saturating_add(more);
        let sealed = current.immutables.iter().flat_map(|sealed| sealed.homes());
        let (mut bytes, mut shards) = (active, 0u64);
        if active > 0 {
            shards = current.active.shards.len() as u64;
        }
        for home in sealed {
            bytes = bytes.saturating_add(home.data_bytes());
            shards += 1;
        }
        let target = disk.table_bytes(family.options.target_file_bytes).max(1);
        if bytes > 0 {
            tables += shards + bytes / target + room_cuts_max(disk, &current.version) as u64;
        }
        memory = memory.saturating_add(bytes);
    }
    flush_room(memory, tables)
}

fn space_input(disk: &Disk, view: &ReadView, free_bytes: u64) -> SpaceInput {
    SpaceInput {
        free_bytes,
        reserve_bytes: disk.reserve_bytes.load(Ordering::Relaxed),
        wanted_bytes: disk.wanted_bytes.load(Ordering::Relaxed),
        is_small: is_small(disk.disk_bytes.load(Ordering::Relaxed)),
        flush_bytes: flush_bytes(disk, view),
        unwritten_bytes: disk.unwritten_bytes.load(Ordering::Relaxed),
        manifest_bytes: disk.manifest_bytes.load(Ordering::Relaxed),
        compaction_bytes: disk.compaction_bytes.load(Ordering::Relaxed),
    }
}

/// Judges the disk with `free_bytes`, and stores the state.
fn measure(jobs: &Jobs, disk: &Disk, view: &ReadView, free_bytes: u64) -> SpaceInput {
    let input = space_input(disk, view, free_bytes);
    let state = judge(&input, SpaceUse::Takes).state;
    let before = disk.state.swap(state as u8, Ordering::Relaxed);
    let before = SpaceState::from_u8(before);
    if before != state {
        let (free, was, now) = (input.free_bytes, before.name(), state.name());
        if state >= SpaceState::Low {
            tracing::warn!(free, was, now, "the room on the disk changed");
        } else {
            tracing::info!(free, was, now, "the room on the disk changed");
        }
        jobs.notify_progress();
    }
    input
}

/// Whether the disk takes a write (commit lock held). A measurement decides if the credit does not
/// cover the write. `Closed` once the close has begun.
#[inline]
pub(crate) fn admit(
    commit: &mut CommitGuard<'_>,
    db: &DbInner,
    write: &Submission<'_>,
) -> Result<Admission> {
    let bytes = write.bytes();
    if commit.spend_credit(write.space_use, bytes) {
        return Ok(Admission::Admitted);
    }
    // The close has taken all credit, so every write of a closing database gets here.
    if commit.is_closing() {
        return Err(Error::closed("the database is being closed, and takes no more writes"));
    }
    Ok(admit_by_measure(db, commit, write, bytes))
}

/// Whether the disk has room for a write that the last credit does not cover (commit lock
/// held). Gives the next credit.
#[cold]
fn admit_by_measure(
    db: &DbInner,
    commit: &mut CommitGuard<'_>,
    write: &Submission<'_>,
    bytes: u64,
) -> Admission {
    let unwritten = commit.log().map_or(0, LogWriter::unwritten_bytes);
    db.disk.unwritten_bytes.store(unwritten, Ordering::Relaxed);
    let mut input =
        measure(&db.jobs, &db.disk, &db.view, free_for_write(&db.storage, &db.logs, &db.disk));
    if input.free_bytes == UNKNOWN {
        let is_asked_later = db.logs.ahead().is_kept();
        let credit_bytes = if is_asked_later { UNMEASURED_CREDIT_BYTES } else { u64::MAX };
        commit.set_credit(SpaceUse::Takes, credit_bytes);
        return Admission::Admitted;
    }
    if db.disk.state() != SpaceState::Roomy {
        make_room(db, commit, &input);
        input =
            measure(&db.jobs, &db.disk, &db.view, free_for_write(&db.storage, &db.logs, &db.disk));
    }
    // The state as if the write were in the log and in memory already.
    let after = SpaceInput {
        free_bytes: input.free_bytes.saturating_sub(bytes),
        flush_bytes: flush_bytes_with(&db.disk, &db.view, write.shares),
        ..input
    };
    let verdict = judge(&after, write.space_use);
    if !admits(verdict.state, write.space_use) {
        if commit.take_has_freed() {
            // Deletes free space only once they are in tables.
            seal_for_room(db, commit);
        }
        commit.drop_credits();
        // Health shows the state that writers meet.
        db.disk.state.fetch_max(verdict.state.min(SpaceState::Low) as u8, Ordering::Relaxed);
        return Admission::Full;
    }
    if must_wait(&input, &after) {
        commit.drop_credits();
        if !is_flushing(&db.jobs, commit.order()) {
            seal_for_room(db, commit);
        }
        // Shards at memory nodes have to be flushed first as well.
        db.jobs.lock(commit.order()).make_all_due();
        return Admission::Waits;
    }
    if after.needs_reserve() {
        give_up_reserve(&db.storage, &db.observers, &db.disk);
    }
    db.disk.given_bytes.fetch_add(bytes.saturating_add(verdict.credit_bytes), Ordering::Relaxed);
    commit.set_credit(write.space_use, verdict.credit_bytes);
    if write.space_use == SpaceUse::Frees {
        renew_patience(&db.disk);
    }
    Admission::Admitted
}

/// Removes log segments that are kept for reuse, and seals memtables whose flush frees log segments
/// (commit lock held).
fn make_room(db: &DbInner, commit: &mut CommitGuard<'_>, input: &SpaceInput) {
    remove_spare_logs(&db.storage, &db.observers, &db.logs);
    if active_bytes(&db.view) >= input.early_flush_bytes() {
        seal_for_room(db, commit);
    }
}

/// Whether a flush runs or a sealed memtable waits for one.
pub(crate) fn is_flushing<Held: Before<JobsLock>>(jobs: &Jobs, order: Order<Held>) -> bool {
    let state = jobs.lock(order);
    state.has_sealed() || state.running().flushes_len() > 0
}

/// Bytes in active memtables.
fn active_bytes(view: &ReadView) -> u64 {
    let families = view.live_families();
    families.iter().map(|family| family.current.load().active.charged_bytes()).sum()
}

/// Seals every memtable that may be sealed and ends the log segment, so that the flush frees
/// the segment (commit lock held).
fn seal_for_room(db: &DbInner, commit: &mut CommitGuard<'_>) {
    for family in db.view.live_families() {
        if !family.current.load().active.is_empty() && seal::may_seal(&family) {
            seal::seal_active(db, commit, &family);
            db.observers.stats().add(Ticker::DiskEarlyFlushes, 1);
        }
    }
    if let Err(error) = log_segments::rotate_early(db, commit) {
        tracing::warn!(%error, "the log segment stays open on a disk that is nearly full");
    }
}

/// Counts a write for which the disk has no room. Returns the error of the write.
pub(crate) fn refuse_for_room(storage: &Storage, observers: &Observers, disk: &Disk) -> Error {
    observers.stats().add(Ticker::DiskFullRefusals, 1);
    disk_full(storage, disk)
}

/// The error of a write for which the disk has no room.
#[cold]
pub(crate) fn disk_full(storage: &Storage, disk: &Disk) -> Error {
    let free = disk.free_bytes.load(Ordering::Relaxed);
    let dir = storage.dir().display();
    let what = match disk.state() {
        SpaceState::Critical => {
            "make room on the disk; deletes are refused as well, because \
                                 the reserve is used up"
        }
        _ => "delete keys or make room on the disk; deletes are taken",
    };
    no_space(format!(
        "the disk of {dir} is full ({free} bytes are free, and the rest is needed to flush \
         memory): {what}. Writes are taken again as soon as there is room"
    ))
}

/// The error of a writer that waits for background progress which a full disk prevents; `None` if
/// the disk is not the reason.
pub(crate) fn full_disk_blocks(storage: &Storage, disk: &Disk) -> Option<Error> {
    let lacks_room = disk.lacking_bytes.load(Ordering::Relaxed) > 0;
    (lacks_room || disk.state() >= SpaceState::Low).then(|| disk_full(storage, disk))
}

/// Makes room for `bytes` of tables and for the files that are written with them. Gives up the
/// reserve if necessary. Fails if there is not even room for the tables.
pub(crate) fn ensure_room(db: &DbInner, bytes: u64, what: &str) -> Result<()> {
    let input = space_input(&db.disk, &db.view, measure_free(&db.storage, &db.disk));
    let least = bytes.saturating_add(input.rest_bytes());
    if input.free_bytes >= least {
        return Ok(());
    }
    remove_spare_logs(&db.storage, &db.observers, &db.logs);
    let free = measure_free(&db.storage, &db.disk);
    if free >= least {
        return Ok(());
    }
    let reserve = db.disk.reserve_bytes.load(Ordering::Relaxed);
    let with_reserve = free.saturating_add(reserve);
    if with_reserve >= bytes && give_up_reserve(&db.storage, &db.observers, &db.disk)
        || free >= bytes
    {
        return Ok(());
    }
    Err(no_space(format!(
        "{what} needs {bytes} bytes on the disk of {}, and {free} are free: make room there; \
         it is tried again by itself",
        db.storage.dir().display()
    )))
}

/// Gives up the reserve. Returns whether there was one and its room is free now.
pub(crate) fn give_up_reserve(storage: &Storage, observers: &Observers, disk: &Disk) -> bool {
    let _changing = disk.changing.lock();
    let bytes = disk.reserve_bytes.load(Ordering::Relaxed);
    if bytes == 0 {
        return false;
    }
    match disk.ballast.give_up(&**storage.fs()) {
        Ok(()) => {
            disk.reserve_bytes.store(0, Ordering::Relaxed);
            observers.stats().add(Ticker::DiskReserveUses, 1);
            tracing::warn!(bytes, "the disk is full: the reserve is given up");
            true
        }
        Err(error) => {
            tracing::warn!(%error, "the disk is full, and the reserve cannot be given up");
            false
        }
    }
}

/// Whether the tables of a log of `log_bytes` fit the free room, as far as is known.
pub(crate) fn has_room_to_recover(storage: &Storage, disk: &Disk, log_bytes: u64) -> bool {
    let room = flush_room(log_bytes, 1).saturating_add(2 * SLACK_BYTES);
    measure_free(storage, disk) >= room
}

/// Finds the reserve that an earlier process left.
pub(crate) fn find_reserve(context: &Context, storage: &Storage, disk: &Disk) {
    if !context.options().read_only {
        let bytes = disk.ballast.held(&**storage.fs());
        disk.reserve_bytes.store(bytes, Ordering::Relaxed);
    }
}

/// Removes the log segments that are kept for reuse.
pub(crate) fn remove_spare_logs(storage: &Storage, observers: &Observers, logs: &LogSegments) {
    let spare = logs.take_spare();
    log_segments::remove_logs(storage, observers, &spare);
}

/// Measures the disk between two background jobs, and acts. Called without locks.
pub(crate) fn tend_disk(db: &DbInner) {
    let now_ns = db.context.clock().now_ns();
    let due_ns = db.disk.tended_at_ns.load(Ordering::Relaxed) + TEND_INTERVAL_NS;
    if db.context.options().read_only || now_ns < due_ns && !db.context.is_manual() {
        return;
    }
    db.disk.tended_at_ns.store(now_ns, Ordering::Relaxed);
    stalling::refresh_writer_room(db.stall_owners(), &db.storage, &db.view);
    let free = measure_free(&db.storage, &db.disk);
    if free == UNKNOWN {
        return;
    }
    measure_disk(db);
    let input = measure(&db.jobs, &db.disk, &db.view, free);
    let state = db.disk.state();
    keep_reserve(db, &input, now_ns);
    if state == SpaceState::Roomy {
        return;
    }
    remove_spare_logs(&db.storage, &db.observers, &db.logs);
    let bytes = active_bytes(&db.view);
    let is_idle = db.disk.active_bytes.swap(bytes, Ordering::Relaxed) == bytes;
    let is_large = bytes >= input.early_flush_bytes();
    let is_idle = is_idle || db.context.is_manual();
    if bytes > 0
        && (is_large || is_idle)
        && let Some(mut commit) = db.writes.committer().try_lock_for(LOCK_WAIT, Order::none())
    {
        // Deletes free space only once they are in tables.
        let has_freed = commit.take_has_freed();
        if is_large || has_freed || state >= SpaceState::Low {
            seal_for_room(db, &mut commit);
        }
    }
}

/// Measures the disk for the first time, before recovery writes tables.
pub(crate) fn look_at_disk(db: &DbInner) {
    if !db.context.options().read_only && measure_free(&db.storage, &db.disk) != UNKNOWN {
        measure_disk(db);
    }
}

/// Notes how large the disk is for the database, and how much room its largest compaction needs.
fn measure_disk(db: &DbInner) {
    let families = db.view.live_families();
    let tables = families.iter().fold(0u64, |sum, family| {
        let version = &family.current.load().version;
        let sum = sum.saturating_add(version.values().file_bytes());
        (0..LEVELS).fold(sum, |sum, level| sum.saturating_add(version.bytes(level)))
    });
    let logs = db.logs.closed_bytes();
    let free = db.disk.free_bytes.load(Ordering::Relaxed);
    let reserve = db.disk.reserve_bytes.load(Ordering::Relaxed);
    let disk = [tables, logs, reserve].into_iter().fold(free, u64::saturating_add);
    db.disk.disk_bytes.store(disk, Ordering::Relaxed);
    let buffers = families.iter().fold(0u64, |sum, family| {
        sum.saturating_add(db.context.memtable_bytes_max(&family.options))
    });
    let wanted = reserve_wanted(db.context.options().disk_reserve_bytes, buffers, disk);
    db.disk.wanted_bytes.store(wanted, Ordering::Relaxed);
    if let Some(mut manifest) = db.storage.try_lock_manifest(Order::none()) {
        manifest.limit_length(manifest_length(disk));
        db.disk.manifest_bytes.store(manifest.len_bytes(), Ordering::Relaxed);
    }
    let is_ample = free > disk / AMPLE_SHARE && !is_small(disk);
    let largest = if is_ample { 0 } else { largest_compaction_bytes(&db.view, &families) };
    let room = compaction_room(disk, largest);
    db.disk.compaction_bytes.store(room, Ordering::Relaxed);
    db.disk.needs_cuts.store(largest > room, Ordering::Relaxed);
}

/// Bytes of the largest compaction among those that move deletions down.
fn largest_compaction_bytes(view: &ReadView, families: &[Arc<Family>]) -> u64 {
    let of_family = |family: &Arc<Family>| {
        let version = Arc::clone(&family.current.load().version);
        largest_job_bytes(&PickInput {
            version: &version,
            running: &[],
            jobs_max: usize::MAX,
            snapshots: &[],
            visible: view.visible(),
            now_ms: 0,
            loading: false,
            space: &[],
        })
    };
    families.iter().map(of_family).max().unwrap_or(0)
}

/// Writes the reserve, or a longer one, if its bytes are free.
fn keep_reserve(db: &DbInner, input: &SpaceInput, now_ns: u64) {
    let wanted = db.disk.wanted_bytes.load(Ordering::Relaxed);
    if wanted == 0 && input.reserve_bytes > 0 {
        give_up_reserve(&db.storage, &db.observers, &db.disk);
        return;
    }
    let is_in_use = db.disk.running_bytes.load(Ordering::Relaxed) > 0;
    let is_pausing = now_ns < db.disk.reserve_at_ns.load(Ordering::Relaxed);
    if is_in_use || is_pausing || !may_write_reserve(input) {
        return;
    }
    let Some(_changing) = db.disk.changing.try_lock() else { return };
    let fs = &**db.storage.fs();
    let written = db
        .disk
        .ballast
        .write(fs, wanted)
        .and_then(|()| db.context.fault_point("reserve.written"))
        .and_then(|()| db.disk.ballast.put(fs));
    match written {
        Ok(()) => db.disk.reserve_bytes.store(wanted, Ordering::Relaxed),
        Err(error) => {
            db.disk.reserve_at_ns.store(now_ns + RESERVE_PAUSE_NS, Ordering::Relaxed);
            tracing::warn!(%error, "there is no reserve for a full disk; it is tried again");
        }
    }
}

/// Room for the outputs of one more compaction. A compaction that frees space may use the reserve.
pub(crate) fn room_for_compaction(disk: &Disk, view: &ReadView, space_use: SpaceUse) -> Room {
    let misjudged = disk.misjudged.load(Ordering::Relaxed);
    let free = disk.free_bytes.load(Ordering::Relaxed);
    if free == UNKNOWN {
        return Room { bytes: u64::MAX, misjudged: 0 };
    }
    let reserve = match space_use {
        SpaceUse::Frees if disk.state() >= SpaceState::Low => {
            disk.reserve_bytes.load(Ordering::Relaxed)
        }
        _ => 0,
    };
    let taken = flush_bytes(disk, view)
        .saturating_add(disk.running_bytes.load(Ordering::Relaxed))
        .saturating_add(SLACK_BYTES / 2);
    Room { bytes: free.saturating_add(reserve).saturating_sub(taken), misjudged }
}

/// Learns from a compaction whether its estimate held.
pub(crate) fn note_estimate(disk: &Disk, failure: Option<&Error>) {
    match failure {
        None => disk.misjudged.store(0, Ordering::Relaxed),
        Some(error) if error.is_no_space() => {
            let before = disk.misjudged.load(Ordering::Relaxed);
            disk.misjudged.store(before.saturating_add(1), Ordering::Relaxed);
        }
        Some(_) => {}
    }
}

/// Notes that room may become free soon. Writers look for it [`PATIENCE`] times before they are
/// refused.
pub(crate) fn renew_patience(disk: &Disk) {
    disk.patience.store(PATIENCE, Ordering::Relaxed);
}

/// Whether a writer may look once more for room. Each `true` uses up one attempt.
pub(crate) fn use_patience(disk: &Disk) -> bool {
    let less = |left: u8| left.checked_sub(1);
    disk.patience.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
}

/// Notes by how much the smallest of the due compactions exceeds the room; 0 if one fits.
pub(crate) fn note_lacking(disk: &Disk, bytes: u64) {
    disk.lacking_bytes.store(bytes, Ordering::Relaxed);
}

/// Counts the outputs of a compaction that is about to run. Returns their expected bytes, for
/// [`return_room`].
pub(crate) fn take_room(disk: &Disk, view: &ReadView, pick: &Pick, inlined_bytes: u64) -> u64 {
    let room = room_for_compaction(disk, view, SpaceUse::Frees);
    let room_bytes = room.expected(pick).saturating_add(inlined_bytes);
    disk.running_bytes.fetch_add(room_bytes, Ordering::Relaxed);
    room_bytes
}

/// Counts the estimated output of a job that is about to run.
pub(crate) fn add_running(disk: &Disk, room_bytes: u64) {
    disk.running_bytes.fetch_add(room_bytes, Ordering::Relaxed);
}

/// Ends the count of a job that has ended, or was not run.
pub(crate) fn return_room(disk: &Disk, room_bytes: u64) {
    disk.running_bytes.fetch_sub(room_bytes, Ordering::Relaxed);
}

/// Keys at which flushes cut their tables in addition to the bucket map, on a small or nearly full
/// disk. Tables of the base level begin at these keys, so that each part can be compacted alone.
pub(crate) fn room_cuts(disk: &Disk, version: &Version) -> Vec<Vec<u8>> {
    let most = room_cuts_max(disk, version);
    if most == 0 {
        return Vec::new();
    }
    let files: &[Arc<LiveFile>] = version.level(version.base_level()).files();
    let stride = files.len().div_ceil(most).max(1);
    files.iter().skip(stride).step_by(stride).map(|file| file.smallest.clone()).collect()
}

/// Largest number of cuts of one flush in addition to the bucket map.
pub(crate) fn room_cuts_max(disk: &Disk, version: &Version) -> usize {
    let target = version.options().target_file_bytes;
    let is_small = disk.table_bytes(target) < target;
    let needs_cuts = is_small || disk.needs_cuts.load(Ordering::Relaxed);
    if disk.state() == SpaceState::Roomy && !needs_cuts {
        return 0;
    }
    cuts_max(disk.disk_bytes.load(Ordering::Relaxed))
}

/// Health of the database: "healthy", or a description of the error.
pub(crate) fn health_text(observers: &Observers, disk: &Disk) -> String {
    let text = observers.health().text();
    let free = disk.free_bytes.load(Ordering::Relaxed);
    let lacking = disk.lacking_bytes.load(Ordering::Relaxed);
    match disk.state() {
        _ if observers.health().failing().is_some() => text,
        SpaceState::Low => format!(
            "the disk is full: {free} bytes are free; writes that take space are refused, \
             deletes are taken"
        ),
        SpaceState::Critical => format!(
            "the disk is full: {free} bytes are free and the reserve is used up; all writes \
             are refused"
        ),
        _ if lacking > 0 => format!(
            "the disk is nearly full: {free} bytes are free, and the smallest compaction that \
             is due needs {lacking} more"
        ),
        _ => text,
    }
}

/// Whether background work fails, or the disk lacks room for writes or compactions.
pub(crate) fn is_impaired(observers: &Observers, disk: &Disk) -> bool {
    observers.health().failing().is_some()
        || matches!(disk.state(), SpaceState::Low | SpaceState::Critical)
        || disk.lacking_bytes.load(Ordering::Relaxed) > 0
}

/// An error whose cause is a full disk.
pub(crate) fn no_space(context: String) -> Error {
    let cause = std::io::Error::from(std::io::ErrorKind::StorageFull);
    Error::with_source(ErrorKind::Io, context, cause)
}
