//! A disk that fills: what the pure decisions ([`crate::disk_space`]) say, carried out.
//!
//! The database owns one [`Disk`]. The commit path measures the free bytes whenever the writes have
//! used up the *credit* of the last measurement, and background workers measure between their
//! jobs. With the state come the actions: sealing memtables early, giving up log segments that are
//! kept for reuse, giving up the reserve or writing it anew.
//!
//! Invariants:
//! 1. The reserve is given up only for a write that frees space, a flush, a compaction that frees
//!    space, recovery, or an append that met a full disk.
//! 2. A write is admitted only under the commit lock, so that no two writes use one credit.
//! 3. The reserve is written only where its bytes are free beside the flush room.
//!
//! Thread-safety: any thread may call any method; the lock of the reserve is the last in the lock
//! order. Failure: a file system that does not report free bytes is always roomy. Cost: an admitted
//! write pays one comparison and one subtraction under the commit lock, which it holds anyway. A
//! measurement (one system call, a look at each family) comes every 8 MiB of log on a roomy disk.
//! Background work looks at the disk at most every 50 ms, in O(families) on a roomy disk; on a
//! disk that is small or three quarters full it also looks at each table.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::ballast::Ballast;
use parking_lot::Mutex;

use crate::compaction::pick::{PickInput, Room, largest_job_bytes};
use crate::db::Db;
use crate::db::background::compaction::CompactionTask;
use crate::db::inner::{DbInner, RunningJob, RunningKind};
use crate::db::state::family::Family;
use crate::db::write::commit::{CommitState, Share, Submission};
use crate::disk_space::{
    SLACK_BYTES, SpaceInput, SpaceState, SpaceUse, admits, compaction_room, cuts_max, flush_room,
    is_small, judge, manifest_length, may_write_reserve, must_wait, reserve_wanted, table_bytes,
};
use crate::file_meta::RESERVE_NAME;
use crate::live_file::LiveFile;
use crate::options::LEVELS;
use crate::stats::Ticker;
use crate::version::Version;
use crate::wal::LogWriter;

/// Nanoseconds between two measurements by background workers that have other work.
const TEND_INTERVAL_NS: u64 = 50_000_000;
/// Nanoseconds after which a reserve that could not be written is tried again.
const RESERVE_PAUSE_NS: u64 = 10_000_000_000;
/// How long background work waits for the commit lock.
const LOCK_WAIT: Duration = Duration::from_millis(20);
/// With more than this part of the disk free, no compaction can be short of room.
const AMPLE_SHARE: u64 = 4;
/// Looks of a writer for room after the last progress that may have given some.
const PATIENCE: u8 = 20;
/// Free bytes of a file system that does not report them.
const UNKNOWN: u64 = u64::MAX;

/// See the module.
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
    /// Bytes that the database has or could have.
    disk_bytes: AtomicU64,
    compaction_bytes: AtomicU64,
    /// Length of the manifest when background work looked last.
    manifest_bytes: AtomicU64,
    /// Bytes of the log that its file did not hold at the last measurement for a write.
    unwritten_bytes: AtomicU64,
    /// Estimated outputs of running compactions.
    running_bytes: AtomicU64,
    /// Room that the smallest compaction lacks of those that are due; 0 if one fits.
    lacking_bytes: AtomicU64,
    /// Estimates of compactions that were too short since the last one that held.
    misjudged: AtomicU8,
    /// Whether the largest compaction exceeds the compaction room, so that flushes are cut.
    needs_cuts: AtomicBool,
    /// How many times writers look for progress that gives room before they are refused.
    patience: AtomicU8,
    tended_at_ns: AtomicU64,
    /// Bytes in active memtables when background work looked last.
    active_bytes: AtomicU64,
}

impl Disk {
    pub(crate) fn new(dir: &Path) -> Self {
        Self {
            ballast: Ballast::new(dir, RESERVE_NAME),
            changing: Mutex::new(()),
            reserve_bytes: AtomicU64::new(0),
            wanted_bytes: AtomicU64::new(0),
            reserve_at_ns: AtomicU64::new(0),
            state: AtomicU8::new(SpaceState::Roomy as u8),
            free_bytes: AtomicU64::new(UNKNOWN),
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

    /// The state by the last measurement.
    pub(crate) fn state(&self) -> SpaceState {
        SpaceState::from_u8(self.state.load(Ordering::Relaxed))
    }

    /// Size at which tables are closed, where the settings say `target_bytes`.
    pub(crate) fn table_bytes(&self, target_bytes: u64) -> u64 {
        table_bytes(target_bytes, self.disk_bytes.load(Ordering::Relaxed))
    }
}

/// What an operator sees of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskReport {
    /// How full the disk is.
    pub state: SpaceState,
    /// Free bytes by the last measurement; `None` if the file system does not report them.
    pub free_bytes: Option<u64>,
    /// Bytes of the reserve.
    pub reserve_bytes: u64,
    /// Bytes that have to be free before a compaction that is due can run; 0 if one can.
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

impl Db {
    /// How full the disk is, as [`DiskReport::state`] says it. Costs one load.
    #[must_use]
    pub fn space_state(&self) -> SpaceState {
        self.inner.disk.state()
    }

    /// How full the disk is, by the last measurement.
    #[must_use]
    pub fn disk(&self) -> DiskReport {
        let disk = &self.inner.disk;
        let free_bytes = disk.free_bytes.load(Ordering::Relaxed);
        DiskReport {
            state: disk.state(),
            free_bytes: (free_bytes != UNKNOWN).then_some(free_bytes),
            reserve_bytes: disk.reserve_bytes.load(Ordering::Relaxed),
            lacking_bytes: disk.lacking_bytes.load(Ordering::Relaxed),
        }
    }
}

impl DbInner {
    /// Free bytes of the disk; [`UNKNOWN`] if the file system does not report them.
    fn measure_free(&self) -> u64 {
        let free = self.fs.free_bytes(&self.dir).ok().flatten().unwrap_or(UNKNOWN);
        self.disk.free_bytes.store(free, Ordering::Relaxed);
        free
    }

    /// Length of the tables that a flush of all memory makes, at most.
    pub(crate) fn flush_bytes(&self) -> u64 {
        self.flush_bytes_with(&[])
    }

    /// The same with the bytes of a write in the active memtables.
    fn flush_bytes_with(&self, write: &[Share]) -> u64 {
        let (mut memory, mut tables) = (0u64, 0u64);
        for family in self.live_families() {
            let current = family.current.load();
            let own = write.iter().filter(|share| share.cf == family.id);
            let more: u64 = own.map(|share| share.bytes).sum();
            let active = current.active.charged_bytes().saturating_add(more);
            let sealed =
                current.immutables.iter().flat_map(|sealed| sealed.shards.iter().flatten());
            let (mut bytes, mut shards) = (active, 0u64);
            if active > 0 {
                shards = current.active.shards.len() as u64;
            }
            for shard in sealed {
                bytes = bytes.saturating_add(shard.data_bytes());
                shards += 1;
            }
            let target = self.disk.table_bytes(family.options.target_file_bytes).max(1);
            if bytes > 0 {
                tables += shards + bytes / target + self.room_cuts_max(&current.version) as u64;
            }
            memory = memory.saturating_add(bytes);
        }
        flush_room(memory, tables)
    }

    fn space_input(&self) -> SpaceInput {
        let disk = &self.disk;
        SpaceInput {
            free_bytes: self.measure_free(),
            reserve_bytes: disk.reserve_bytes.load(Ordering::Relaxed),
            wanted_bytes: disk.wanted_bytes.load(Ordering::Relaxed),
            is_small: is_small(disk.disk_bytes.load(Ordering::Relaxed)),
            flush_bytes: self.flush_bytes(),
            unwritten_bytes: disk.unwritten_bytes.load(Ordering::Relaxed),
            manifest_bytes: disk.manifest_bytes.load(Ordering::Relaxed),
            compaction_bytes: disk.compaction_bytes.load(Ordering::Relaxed),
        }
    }

    /// Measures the disk and stores the state.
    fn measure(&self) -> SpaceInput {
        let input = self.space_input();
        let state = judge(&input, SpaceUse::Takes).state;
        let before = self.disk.state.swap(state as u8, Ordering::Relaxed);
        let before = SpaceState::from_u8(before);
        if before != state {
            let (free, was, now) = (input.free_bytes, before.name(), state.name());
            if state >= SpaceState::Low {
                tracing::warn!(free, was, now, "the room on the disk changed");
            } else {
                tracing::info!(free, was, now, "the room on the disk changed");
            }
            self.progress.notify_all();
        }
        input
    }

    /// Whether the disk has room for a write that the last credit does not cover (commit lock
    /// held). Gives the next credit.
    #[cold]
    pub(crate) fn admit_by_measure(
        &self,
        commit: &mut CommitState,
        write: &Submission<'_>,
        bytes: u64,
    ) -> Admission {
        let unwritten = commit.log.as_ref().map_or(0, LogWriter::unwritten_bytes);
        self.disk.unwritten_bytes.store(unwritten, Ordering::Relaxed);
        let mut input = self.measure();
        if input.free_bytes == UNKNOWN {
            commit.credit_bytes = u64::MAX;
            return Admission::Admitted;
        }
        if self.disk.state() != SpaceState::Roomy {
            self.make_room(commit, &input);
            input = self.measure();
        }
        // As if the write were in the log and in memory already.
        let after = SpaceInput {
            free_bytes: input.free_bytes.saturating_sub(bytes),
            flush_bytes: self.flush_bytes_with(write.shares),
            ..input
        };
        let verdict = judge(&after, write.space_use);
        if !admits(verdict.state, write.space_use) {
            if std::mem::take(&mut commit.has_freed) {
                // Deletes free space only once they are in tables.
                self.seal_for_room(commit);
            }
            (commit.credit_bytes, commit.freeing_credit_bytes) = (0, 0);
            // Health shows the state that writers meet.
            self.disk.state.fetch_max(verdict.state.min(SpaceState::Low) as u8, Ordering::Relaxed);
            return Admission::Full;
        }
        if must_wait(&input, &after) {
            (commit.credit_bytes, commit.freeing_credit_bytes) = (0, 0);
            if !self.is_flushing() {
                self.seal_for_room(commit);
            }
            return Admission::Waits;
        }
        if after.needs_reserve() {
            self.give_up_reserve();
        }
        match write.space_use {
            SpaceUse::Takes => commit.credit_bytes = verdict.credit_bytes,
            SpaceUse::Frees => {
                commit.freeing_credit_bytes = verdict.credit_bytes;
                self.renew_patience();
            }
        }
        Admission::Admitted
    }

    /// Gives up what is kept for speed alone, and seals memtables whose flush frees log segments
    /// (commit lock held).
    fn make_room(&self, commit: &mut CommitState, input: &SpaceInput) {
        self.remove_spare_logs();
        if self.active_bytes() >= input.early_flush_bytes() {
            self.seal_for_room(commit);
        }
    }

    /// Whether a flush runs or a sealed memtable waits for one.
    pub(crate) fn is_flushing(&self) -> bool {
        let state = self.state.lock();
        let is_flush = |job: &RunningJob| matches!(job.kind, RunningKind::Flush { .. });
        state.flushes.values().any(|tracker| !tracker.queue.is_empty())
            || state.running.iter().any(is_flush)
    }

    /// Bytes in active memtables.
    fn active_bytes(&self) -> u64 {
        let families = self.live_families();
        families.iter().map(|family| family.current.load().active.charged_bytes()).sum()
    }

    /// Seals every memtable that may be sealed and ends the log segment, so that the flush frees
    /// the segment (commit lock held).
    fn seal_for_room(&self, commit: &mut CommitState) {
        for family in self.live_families() {
            if !family.current.load().active.is_empty() && self.may_seal(&family) {
                self.seal_active(commit, &family);
                self.stats.add(Ticker::DiskEarlyFlushes, 1);
            }
        }
        if let Err(error) = self.rotate_log(commit) {
            tracing::warn!(%error, "the log segment stays open on a disk that is nearly full");
        }
    }

    /// Counts a write that the disk has no room for; its error.
    pub(crate) fn refuse_for_room(&self) -> Error {
        self.stats.add(Ticker::DiskFullRefusals, 1);
        self.disk_full()
    }

    /// The error of a write that the disk has no room for.
    #[cold]
    pub(crate) fn disk_full(&self) -> Error {
        let free = self.disk.free_bytes.load(Ordering::Relaxed);
        let dir = self.dir.display();
        let what = match self.disk.state() {
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

    /// Why background progress that a writer waits for cannot be made, if the disk is the reason.
    pub(crate) fn full_disk_blocks(&self) -> Option<Error> {
        let lacks_room = self.disk.lacking_bytes.load(Ordering::Relaxed) > 0;
        (lacks_room || self.disk.state() >= SpaceState::Low).then(|| self.disk_full())
    }

    /// Sees to room for `bytes` of tables and what is written with them, at the expense of the
    /// reserve if need be. Fails if there is not even room for the tables.
    pub(crate) fn ensure_room(&self, bytes: u64, what: &str) -> Result<()> {
        let input = self.space_input();
        let least = bytes.saturating_add(input.rest_bytes());
        if input.free_bytes >= least {
            return Ok(());
        }
        self.remove_spare_logs();
        let free = self.measure_free();
        if free >= least {
            return Ok(());
        }
        let reserve = self.disk.reserve_bytes.load(Ordering::Relaxed);
        let with_reserve = free.saturating_add(reserve);
        if with_reserve >= bytes && self.give_up_reserve() || free >= bytes {
            return Ok(());
        }
        Err(no_space(format!(
            "{what} needs {bytes} bytes on the disk of {}, and {free} are free: make room there; \
             it is tried again by itself",
            self.dir.display()
        )))
    }

    /// Gives the reserve up; whether there was one and its room is free now.
    pub(crate) fn give_up_reserve(&self) -> bool {
        let _changing = self.disk.changing.lock();
        let bytes = self.disk.reserve_bytes.load(Ordering::Relaxed);
        if bytes == 0 {
            return false;
        }
        match self.disk.ballast.give_up(&*self.fs) {
            Ok(()) => {
                self.disk.reserve_bytes.store(0, Ordering::Relaxed);
                self.stats.add(Ticker::DiskReserveUses, 1);
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
    pub(crate) fn has_room_to_recover(&self, log_bytes: u64) -> bool {
        let room = flush_room(log_bytes, 1).saturating_add(2 * SLACK_BYTES);
        self.measure_free() >= room
    }

    /// Finds the reserve that an earlier process left.
    pub(crate) fn find_reserve(&self) {
        if !self.options.read_only {
            let bytes = self.disk.ballast.held(&*self.fs);
            self.disk.reserve_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    /// Removes the log segments that are kept for reuse.
    pub(crate) fn remove_spare_logs(&self) {
        let spare = std::mem::take(&mut self.state.lock().spare_logs);
        self.remove_logs(&spare);
    }

    /// Looks at the disk between two background jobs, and acts. Called without locks.
    pub(crate) fn tend_disk(&self) {
        let now_ns = self.clock.now_ns();
        let due_ns = self.disk.tended_at_ns.load(Ordering::Relaxed) + TEND_INTERVAL_NS;
        if self.options.read_only || now_ns < due_ns && !self.is_manual() {
            return;
        }
        self.disk.tended_at_ns.store(now_ns, Ordering::Relaxed);
        if self.measure_free() == UNKNOWN {
            return;
        }
        self.measure_disk();
        let input = self.measure();
        let state = self.disk.state();
        self.keep_reserve(&input, now_ns);
        if state == SpaceState::Roomy {
            return;
        }
        self.remove_spare_logs();
        let bytes = self.active_bytes();
        let is_idle = self.disk.active_bytes.swap(bytes, Ordering::Relaxed) == bytes;
        let is_large = bytes >= input.early_flush_bytes();
        let is_idle = is_idle || self.is_manual();
        if bytes > 0
            && (is_large || is_idle)
            && let Some(mut commit) = self.committer.try_lock_for(LOCK_WAIT)
        {
            // Deletes free space only once they are in tables.
            let has_freed = std::mem::take(&mut commit.has_freed);
            if is_large || has_freed || state >= SpaceState::Low {
                self.seal_for_room(&mut commit);
            }
        }
    }

    /// Looks at the disk for the first time: before recovery writes tables.
    pub(crate) fn look_at_disk(&self) {
        if !self.options.read_only && self.measure_free() != UNKNOWN {
            self.measure_disk();
        }
    }

    /// Notes how large the disk is for the database, and what its largest compaction needs.
    fn measure_disk(&self) {
        let families = self.live_families();
        let tables = families.iter().fold(0u64, |sum, family| {
            let version = &family.current.load().version;
            (0..LEVELS).fold(sum, |sum, level| sum.saturating_add(version.bytes(level)))
        });
        let logs: u64 = self.state.lock().logs.iter().map(|segment| segment.bytes).sum();
        let free = self.disk.free_bytes.load(Ordering::Relaxed);
        let reserve = self.disk.reserve_bytes.load(Ordering::Relaxed);
        let disk = [tables, logs, reserve].into_iter().fold(free, u64::saturating_add);
        self.disk.disk_bytes.store(disk, Ordering::Relaxed);
        let buffers = families
            .iter()
            .fold(0u64, |sum, family| sum.saturating_add(self.memtable_bytes_max(&family.options)));
        let wanted = reserve_wanted(self.options.disk_reserve_bytes, buffers, disk);
        self.disk.wanted_bytes.store(wanted, Ordering::Relaxed);
        if let Some(mut manifest) = self.manifest.try_lock() {
            manifest.limit_length(manifest_length(disk));
            self.disk.manifest_bytes.store(manifest.len_bytes(), Ordering::Relaxed);
        }
        let is_ample = free > disk / AMPLE_SHARE && !is_small(disk);
        let largest = if is_ample { 0 } else { self.largest_job_bytes(&families) };
        let room = compaction_room(disk, largest);
        self.disk.compaction_bytes.store(room, Ordering::Relaxed);
        self.disk.needs_cuts.store(largest > room, Ordering::Relaxed);
    }

    /// Bytes that the largest compaction reads of those that take deletions down.
    fn largest_job_bytes(&self, families: &[Arc<Family>]) -> u64 {
        let of_family = |family: &Arc<Family>| {
            let version = Arc::clone(&family.current.load().version);
            largest_job_bytes(&PickInput {
                version: &version,
                running: &[],
                jobs_max: usize::MAX,
                snapshots: &[],
                visible: self.visible(),
                now_ms: 0,
                loading: false,
            })
        };
        families.iter().map(of_family).max().unwrap_or(0)
    }

    /// Writes the reserve, or a longer one, if its bytes are free.
    fn keep_reserve(&self, input: &SpaceInput, now_ns: u64) {
        let wanted = self.disk.wanted_bytes.load(Ordering::Relaxed);
        if wanted == 0 && input.reserve_bytes > 0 {
            self.give_up_reserve();
            return;
        }
        let is_in_use = self.disk.running_bytes.load(Ordering::Relaxed) > 0;
        let is_pausing = now_ns < self.disk.reserve_at_ns.load(Ordering::Relaxed);
        if is_in_use || is_pausing || !may_write_reserve(input) {
            return;
        }
        let Some(_changing) = self.disk.changing.try_lock() else { return };
        let fs = &*self.fs;
        let written = self
            .disk
            .ballast
            .write(fs, wanted)
            .and_then(|()| self.fault_point("reserve.written"))
            .and_then(|()| self.disk.ballast.put(fs));
        match written {
            Ok(()) => self.disk.reserve_bytes.store(wanted, Ordering::Relaxed),
            Err(error) => {
                self.disk.reserve_at_ns.store(now_ns + RESERVE_PAUSE_NS, Ordering::Relaxed);
                tracing::warn!(%error, "there is no reserve for a full disk; it is tried again");
            }
        }
    }

    /// Room for the outputs of one more compaction. One that frees space may use the reserve.
    pub(crate) fn compaction_room(&self, space_use: SpaceUse) -> Room {
        let misjudged = self.disk.misjudged.load(Ordering::Relaxed);
        let free = self.disk.free_bytes.load(Ordering::Relaxed);
        if free == UNKNOWN {
            return Room { bytes: u64::MAX, misjudged: 0 };
        }
        let reserve = match space_use {
            SpaceUse::Frees if self.disk.state() >= SpaceState::Low => {
                self.disk.reserve_bytes.load(Ordering::Relaxed)
            }
            _ => 0,
        };
        let taken = self
            .flush_bytes()
            .saturating_add(self.disk.running_bytes.load(Ordering::Relaxed))
            .saturating_add(SLACK_BYTES / 2);
        Room { bytes: free.saturating_add(reserve).saturating_sub(taken), misjudged }
    }

    /// Learns from a compaction whether its estimate held.
    pub(crate) fn note_estimate(&self, failure: Option<&Error>) {
        match failure {
            None => self.disk.misjudged.store(0, Ordering::Relaxed),
            Some(error) if error.is_no_space() => {
                let before = self.disk.misjudged.load(Ordering::Relaxed);
                self.disk.misjudged.store(before.saturating_add(1), Ordering::Relaxed);
            }
            Some(_) => {}
        }
    }

    /// Something may give room soon: writers look for it before they are refused.
    pub(crate) fn renew_patience(&self) {
        self.disk.patience.store(PATIENCE, Ordering::Relaxed);
    }

    /// Whether a writer looks once more for room.
    pub(crate) fn use_patience(&self) -> bool {
        let less = |left: u8| left.checked_sub(1);
        self.disk.patience.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Notes by how much the smallest of the due compactions exceeds the room; 0 if one fits.
    pub(crate) fn note_lacking(&self, bytes: u64) {
        self.disk.lacking_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Counts the outputs of a compaction that is about to run.
    pub(crate) fn take_room(&self, task: &mut CompactionTask) {
        task.room_bytes = self.compaction_room(SpaceUse::Frees).expected(&task.pick);
        self.disk.running_bytes.fetch_add(task.room_bytes, Ordering::Relaxed);
    }

    /// Counts a compaction that has ended, or was not run.
    pub(crate) fn return_room(&self, task: &CompactionTask) {
        self.disk.running_bytes.fetch_sub(task.room_bytes, Ordering::Relaxed);
    }

    /// Where flushes cut their tables beside the bucket map on a disk that is small or nearly full:
    /// where tables of the base level begin, so that each part can go down alone.
    pub(crate) fn room_cuts(&self, version: &Version) -> Vec<Vec<u8>> {
        let most = self.room_cuts_max(version);
        if most == 0 {
            return Vec::new();
        }
        let files: &[Arc<LiveFile>] = version.level(version.base_level()).files();
        let stride = files.len().div_ceil(most).max(1);
        files.iter().skip(stride).step_by(stride).map(|file| file.smallest.clone()).collect()
    }

    /// Most cuts of one flush beside the bucket map.
    pub(crate) fn room_cuts_max(&self, version: &Version) -> usize {
        let target = version.options().target_file_bytes;
        let is_small = self.disk.table_bytes(target) < target;
        let needs_cuts = is_small || self.disk.needs_cuts.load(Ordering::Relaxed);
        if self.disk.state() == SpaceState::Roomy && !needs_cuts {
            return 0;
        }
        cuts_max(self.disk.disk_bytes.load(Ordering::Relaxed))
    }

    /// "healthy", or what is wrong.
    pub(crate) fn health_text(&self) -> String {
        let text = self.health.text();
        let free = self.disk.free_bytes.load(Ordering::Relaxed);
        let lacking = self.disk.lacking_bytes.load(Ordering::Relaxed);
        match self.disk.state() {
            _ if self.health.failing().is_some() => text,
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
}

/// An error whose cause is a full disk.
pub(crate) fn no_space(context: String) -> Error {
    let cause = std::io::Error::from(std::io::ErrorKind::StorageFull);
    Error::with_source(ErrorKind::Io, context, cause)
}
