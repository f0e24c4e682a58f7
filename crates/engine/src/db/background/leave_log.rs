//! Leaving a log that cannot be trusted: everything in memory goes to tables, in one edit, and a
//! new log segment begins.
//!
//! Needed when a segment could not be closed or synced: its records are in memory, but nothing
//! will ever make the segment durable. Steps:
//!
//! 1. Background work is paused and running flushes end.
//! 2. Under the commit lock, with every granted write inserted, every memtable is sealed, and each
//!    memtable's shards that are not installed are flushed, without syncing the log.
//! 3. The log goes on in a new segment. The segment comes after the tables, so that a mapped ring
//!    of the log does not take the room that the tables need on a full disk.
//! 4. One edit installs all of it, of all families, and moves the log floor to the new segment, as
//!    recovery does: a part of it could keep half a batch over a power loss.
//! 5. The old segments are forgotten and removed, and so is what rings hold of them.
//!
//! Who does it: [`Db::resume`](crate::db::Db::resume); a synced write and background work (with
//! the pause of failed jobs) when a closed segment is not whole, or when the database
//! is read only because the device was full.
//!
//! Invariants: 1. before the edit nothing has changed but the open segment; 2. health is cleared
//! only after the edit. Failure: outputs are removed, the memtables stay, it may be tried again. A
//! compaction that runs may hold the room that the flush needs: on a full disk the attempt is
//! repeated until no compaction runs. Cost: writers wait for a flush of all memory; compactions go
//! on.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::{Error, ErrorKind, Result};

use crate::border::contained;
use crate::db::background::flush::FlushTask;
use crate::db::inner::{DbInner, RunningKind, ShardState, State};
use crate::db::state::family::Family;
use crate::db::state::memtable::{Immutable, Memtable};
use crate::db::write::commit::CommitState;
use crate::flush::run_flush;
use crate::job::JobOutput;
use crate::key::KeyRange;
use crate::manifest::{Change, VersionEdit};
use crate::stats::Ticker;

/// How long one attempt waits for the commit lock, which an ingestion may hold while it waits for
/// background work, which is paused meanwhile.
const LOCK_WAIT: Duration = Duration::from_millis(100);

/// Holds background picks off until dropped.
struct Paused<'a>(&'a DbInner);

impl<'a> Paused<'a> {
    fn new(inner: &'a DbInner) -> Self {
        inner.state.lock().paused += 1;
        Self(inner)
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.state.lock().paused -= 1;
        self.0.wake();
        self.0.progress.notify_all();
    }
}

impl DbInner {
    /// See `Db::resume`.
    pub(crate) fn resume(&self) -> Result<()> {
        self.refuse_read_only()?;
        if self.health.failing().is_some_and(|cause| cause.kind() == ErrorKind::Corrupt) {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                "the cause is corruption: restore the damaged file from a copy and reopen",
            ));
        }
        self.leave_log()
    }

    /// Whether background work should leave the log now (`state` is the locked state).
    pub(crate) fn is_due_to_leave(&self, state: &State) -> bool {
        if self.options.read_only || state.paused > 0 {
            return false;
        }
        let wanted = if self.health.is_read_only() {
            self.health.failing().is_some_and(|cause| cause.is_no_space())
        } else {
            state.leave_log
        };
        wanted && !self.is_pausing(state)
    }

    /// Leaves the log for background work; `false` if somebody has the commit lock for long.
    pub(crate) fn leave_log_in_background(&self) -> Result<bool> {
        let result = contained("leaving the log", || self.try_leave_log());
        if let Err(error) = &result {
            self.note_pause();
            self.fail_soft("leaving a log segment that is not whole", error);
        }
        result
    }

    /// Before a sync: a log that cannot become durable is left first.
    pub(crate) fn leave_log_before_sync(&self) -> Result<()> {
        if !self.state.lock().leave_log {
            return Ok(());
        }
        self.leave_log()
    }

    /// See the module.
    fn leave_log(&self) -> Result<()> {
        while !self.try_leave_log()? {
            self.check_open()?;
            let mut state = self.state.lock();
            self.progress.wait_for(&mut state, Duration::from_millis(20));
        }
        Ok(())
    }

    /// One attempt; `false` if the commit lock did not become free, or if there is no room while a
    /// compaction runs.
    fn try_leave_log(&self) -> Result<bool> {
        let _paused = Paused::new(self);
        self.wait_for_flushes()?;
        let left = self
            .ensure_room(self.flush_bytes(), "a flush of all memory")
            .and_then(|()| self.leave_log_with_room());
        match left {
            Err(error) if error.is_no_space() && self.is_compacting() => Ok(false),
            left => left,
        }
    }

    /// Steps 2 to 5 of the module; `false` if the commit lock did not become free.
    fn leave_log_with_room(&self) -> Result<bool> {
        let Some(mut commit) = self.committer.try_lock_for(LOCK_WAIT) else { return Ok(false) };
        self.committer.wait_all_visible(&commit);
        for family in self.live_families() {
            self.seal_active(&mut commit, &family);
        }
        let mut edit = VersionEdit::new();
        let mut outputs = Vec::new();
        let installed = self
            .flush_memory(&mut edit, &mut outputs)
            .and_then(|()| self.rotate_log(&mut commit))
            .and_then(|()| self.fault_point("resume.before_install"))
            .and_then(|()| self.install_memory(&commit, edit));
        if let Err(error) = installed {
            outputs.iter().for_each(|output| self.discard(output));
            return Err(error);
        }
        drop(commit);
        for output in &outputs {
            self.stats.add(Ticker::Flushes, 1);
            self.stats.add(Ticker::FlushBytesWritten, output.bytes_written);
            self.count_job(output);
        }
        tracing::info!("the log was left: all that was in memory is in tables");
        for family in self.live_families() {
            self.recompute_stall(&family);
        }
        Ok(true)
    }

    fn is_compacting(&self) -> bool {
        let state = self.state.lock();
        state.running.iter().any(|job| matches!(job.kind, RunningKind::Compaction(_)))
    }

    /// Waits until no flush and no map change runs and no memtable is being readied (picks are
    /// paused).
    fn wait_for_flushes(&self) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            let flushing =
                state.running.iter().any(|job| !matches!(job.kind, RunningKind::Compaction(_)));
            if !flushing && state.readying.is_empty() {
                return Ok(());
            }
            self.check_open()?;
            self.progress.wait_for(&mut state, Duration::from_millis(20));
        }
    }

    /// Flushes every sealed memtable of every family (commit lock held, picks paused).
    fn flush_memory(&self, edit: &mut VersionEdit, outputs: &mut Vec<JobOutput>) -> Result<()> {
        for family in self.live_families() {
            for memtable in self.sealed_memtables(&family) {
                self.ready_memtable(family.id, &memtable);
                for shards in self.pending_runs(&family, &memtable) {
                    let output = self.flush_run(&family, &memtable, shards)?;
                    for meta in &output.files {
                        edit.add_file(family.id, 0, meta.clone());
                    }
                    outputs.push(output);
                }
            }
        }
        Ok(())
    }

    /// The sealed memtables of a family, oldest first.
    fn sealed_memtables(&self, family: &Family) -> Vec<Arc<Memtable>> {
        let state = self.state.lock();
        let tracker = state.flushes.get(&family.id);
        let queue = tracker.into_iter().flat_map(|tracker| &tracker.queue);
        queue.map(|sealed| Arc::clone(&sealed.memtable)).collect()
    }

    /// The shards of a memtable that are not installed, as runs of neighbours.
    fn pending_runs(&self, family: &Family, memtable: &Memtable) -> Vec<std::ops::Range<usize>> {
        let state = self.state.lock();
        let queue = state.flushes.get(&family.id).map(|tracker| &tracker.queue);
        let found = queue.into_iter().flatten().find(|sealed| sealed.memtable.id == memtable.id);
        let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
        for (index, shard) in found.into_iter().flat_map(|sealed| &sealed.shards).enumerate() {
            if *shard == ShardState::Installed {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.end == index => run.end = index + 1,
                _ => runs.push(index..index + 1),
            }
        }
        runs
    }

    fn flush_run(
        &self,
        family: &Arc<Family>,
        memtable: &Arc<Memtable>,
        shards: std::ops::Range<usize>,
    ) -> Result<JobOutput> {
        let task = FlushTask {
            job_id: 0,
            family: Arc::clone(family),
            memtables: vec![Arc::clone(memtable)],
            range: memtable.map.hull(&shards),
            shards,
            planned_cuts: Vec::new(),
        };
        self.set_first_map(&task)?;
        run_flush(&self.flush_spec(&task, task.shards.clone()), &self.job_context(&task))
    }

    /// The one edit, and what follows from it.
    fn install_memory(&self, commit: &CommitState, mut edit: VersionEdit) -> Result<()> {
        let open = self.open_log_no();
        for family in self.live_families() {
            edit.flushed_through(family.id, KeyRange::all(), commit.last_seq);
        }
        edit.push(Change::LastSeq(commit.last_seq));
        edit.push(Change::LogFloor(open));
        {
            let mut manifest = self.manifest.lock();
            let built = manifest.apply(edit)?;
            let mut state = self.state.lock();
            for tracker in state.flushes.values_mut() {
                for sealed in &mut tracker.queue {
                    sealed.shards.fill(ShardState::Installed);
                    let mut view = Immutable::clone(&sealed.view);
                    view.shards.fill(None);
                    sealed.view = Arc::new(view);
                }
                tracker.queue.clear();
            }
            self.republish_built(&mut state, built);
            state.leave_log = false;
            state.failures_in_row = 0;
        }
        self.health.clear();
        self.remove_logs_below(open);
        // A ring that kept the end of an old segment is free for the next one.
        if let Err(error) = self.fs.clear_log_tails(&self.dir) {
            tracing::warn!(%error, "the rings of old log segments are not emptied");
        }
        Ok(())
    }
}
