//! Background work: who picks what next, and what happens to a job that fails.
//!
//! Order: ready a sealed memtable, make a wanted map change that fits, flush, compact. Picks happen
//! under the state lock and mark what they take as running; jobs run without locks. In threads mode
//! `max_background_jobs` workers loop; in manual mode a test calls [`Db::step_background`]. A
//! failed job is counted and told, and nothing is picked until a pause (doubling, at most a second)
//! is over. A job that panics is a failed job: whatever it had claimed is given back, and its
//! thread goes on ([`crate::border`]).
//!
//! A running job is not interrupted, and a compaction may take as long as it likes (under a rate
//! limit, minutes). No memtable waits for that: one worker more, the **spare** one, takes a flush
//! when all others are in something else.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{CfId, ErrorKind, Result};
use parking_lot::Mutex;

use crate::border::{EnginePanic, contained};
use crate::db::Db;
use crate::db::background::compaction::CompactionTask;
use crate::db::background::flush::FlushTask;
use crate::db::background::rebalance::MapTask;
use crate::db::inner::{DbInner, RunningKind, State};
use crate::db::state::family::Family;
use crate::db::state::memtable::Memtable;
use crate::disk_space::SpaceState;
use crate::file_meta::sst_name;
use crate::manifest::VersionEdit;
use crate::stats::Ticker;
use crate::version::Version;

/// How long an idle worker sleeps before it looks by itself.
const IDLE_WAIT: Duration = Duration::from_millis(500);
const RETRY_PAUSE_MAX_MS: u64 = 1000;

/// Something for a worker to do.
pub(crate) enum Task {
    Ready(CfId, Arc<Memtable>),
    ChangeMap(MapTask),
    Flush(FlushTask),
    Compact(CompactionTask),
}

impl Task {
    /// Whether its family was dropped.
    fn is_moot(&self) -> bool {
        match self {
            Self::Ready(..) => false,
            Self::ChangeMap(task) => task.family.check_alive().is_err(),
            Self::Flush(task) => task.family.check_alive().is_err(),
            Self::Compact(task) => task.family.check_alive().is_err(),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Ready(cf, _) => format!("sealing a memtable of column family {cf}"),
            Self::ChangeMap(task) => {
                format!("change of the bucket map of column family \"{}\"", task.family.name)
            }
            Self::Flush(task) => format!("flush of column family \"{}\"", task.family.name),
            Self::Compact(task) => format!(
                "compaction of column family \"{}\" from L{} to L{}",
                task.family.name,
                task.pick.from(),
                task.pick.to()
            ),
        }
    }
}

/// The worker threads of an open database.
#[derive(Debug, Default)]
pub(crate) struct Workers(Mutex<Vec<Joiner>>);

impl Workers {
    /// Starts them, unless the database is stepped by hand or read only.
    pub(crate) fn start(inner: &Arc<DbInner>) -> Result<Self> {
        let workers = Self::default();
        if inner.is_manual() || inner.options.read_only {
            return Ok(workers);
        }
        let jobs = inner.options.max_background_jobs;
        for index in 0..=jobs {
            let inner = Arc::clone(inner);
            let body = Box::new(move || inner.work(index == jobs));
            workers.0.lock().push(SystemSpawn.spawn(&format!("archi-bg-{index}"), body)?);
        }
        Ok(workers)
    }

    /// Waits for all of them to end (`closing` must be set).
    pub(crate) fn join(&self) -> Result<()> {
        let joiners = std::mem::take(&mut *self.0.lock());
        joiners.into_iter().map(Joiner::join).fold(Ok(()), Result::and)
    }
}

impl Db {
    /// Runs one step of background work on the calling thread; `false` if there was nothing to do.
    /// For databases opened with `BackgroundMode::Manual`; the step's error is returned, not
    /// retried.
    pub fn step_background(&self) -> Result<bool> {
        self.inner.check_open()?;
        self.inner.step()
    }

    /// Waits until no background work is due or running. In manual mode: steps until there is
    /// none. Fails with the error of background work that fails.
    pub fn wait_for_background(&self) -> Result<()> {
        if self.inner.is_manual() {
            while self.step_background()? {}
            return Ok(());
        }
        self.inner.waiters.fetch_add(1, Ordering::Relaxed);
        let result = self.wait_for_idle();
        self.inner.waiters.fetch_sub(1, Ordering::Relaxed);
        result
    }

    fn wait_for_idle(&self) -> Result<()> {
        let mut state = self.inner.state.lock();
        loop {
            self.inner.check_open()?;
            if let Some(error) = self.inner.health.failing() {
                return Err(error);
            }
            if state.running.is_empty() && !self.inner.has_work(&mut state) {
                return Ok(());
            }
            self.inner.wake();
            self.inner.progress.wait_for(&mut state, Duration::from_millis(20));
        }
    }
}

impl DbInner {
    /// See [`Db::step_background`].
    pub(crate) fn step(&self) -> Result<bool> {
        self.tend_disk();
        self.enforce_log_bound();
        self.relieve_pressure();
        let due = self.is_due_to_leave(&self.state.lock());
        if due && self.leave_log_in_background()? {
            return Ok(true);
        }
        let task = {
            let mut state = self.state.lock();
            self.next_task(&mut state)
        };
        let Some(task) = task else {
            self.forget_failure_if_idle(&mut self.state.lock());
            self.remove_obsolete();
            return Ok(false);
        };
        let result = self.run_task(&task);
        self.note_result(&task, &result);
        self.remove_obsolete();
        result.map(|()| true)
    }

    /// A worker's life; of the spare one, or another.
    fn work(&self, spare: bool) {
        loop {
            let task = {
                let mut state = self.state.lock();
                if self.closing.load(Ordering::Acquire) {
                    return;
                }
                if self.is_due_to_leave(&state) {
                    drop(state);
                    if let Ok(true) = self.leave_log_in_background() {
                        continue;
                    }
                    state = self.state.lock();
                }
                let next = if spare {
                    self.next_spare_task(&mut state)
                } else {
                    self.next_task(&mut state)
                };
                match next {
                    Some(task) => task,
                    None => {
                        if !spare {
                            self.forget_failure_if_idle(&mut state);
                        }
                        let pause = self.pause(&state);
                        self.work.wait_for(&mut state, pause);
                        drop(state);
                        self.keep_bounds();
                        continue;
                    }
                }
            };
            self.wake();
            let result = self.run_task(&task);
            self.note_result(&task, &result);
            self.keep_bounds();
        }
    }

    /// What a worker looks after between jobs: the log's size, memory, files to be removed, room on
    /// the disk.
    fn keep_bounds(&self) {
        self.enforce_log_bound();
        self.relieve_pressure();
        self.remove_obsolete();
        self.tend_disk();
    }

    fn pause(&self, state: &State) -> Duration {
        if state.failures_in_row == 0 {
            return IDLE_WAIT;
        }
        let ms = 1u64 << state.failures_in_row.min(10);
        Duration::from_millis(ms.min(RETRY_PAUSE_MAX_MS))
    }

    /// Whether the pause after a failure is not over.
    pub(crate) fn is_pausing(&self, state: &State) -> bool {
        state.failures_in_row > 0 && !self.is_manual() && self.clock.now_ns() < state.retry_at_ns
    }

    /// Counts a failure and begins the pause after it.
    pub(crate) fn note_pause(&self) {
        let mut state = self.state.lock();
        state.failures_in_row = state.failures_in_row.saturating_add(1);
        let pause = self.pause(&state).as_nanos() as u64;
        state.retry_at_ns = self.clock.now_ns() + pause;
    }

    /// Forgets an earlier failure if nothing is left that could fail: what failed was done by hand
    /// meanwhile, or its family was dropped. Called when there is nothing to pick.
    fn forget_failure_if_idle(&self, state: &mut State) {
        let is_idle = state.running.is_empty() && state.readying.is_empty();
        if state.failures_in_row > 0 && is_idle && self.may_pick(state) {
            state.failures_in_row = 0;
            self.health.clear_failing();
            self.progress.notify_all();
        }
    }

    /// Whether anything may be picked now.
    fn may_pick(&self, state: &State) -> bool {
        // A log that is to be left cannot be synced, and no flush installs without that.
        state.paused == 0
            && !state.leave_log
            && !self.options.read_only
            && !self.health.is_read_only()
            && !self.is_pausing(state)
    }

    /// What must not wait for a job to end, marked as taken: a flush when as many jobs run as may,
    /// and no flush is among them.
    fn next_spare_task(&self, state: &mut State) -> Option<Task> {
        let is_flush = |kind: &RunningKind| matches!(kind, RunningKind::Flush { .. });
        let busy = state.running.len() >= self.options.max_background_jobs;
        if !busy || state.running.iter().any(|job| is_flush(&job.kind)) || !self.may_pick(state) {
            return None;
        }
        if let Some((cf, memtable)) = self.claim_to_ready(state) {
            return Some(Task::Ready(cf, memtable));
        }
        self.next_flush(state).map(Task::Flush)
    }

    /// The next thing to do, marked as taken.
    pub(crate) fn next_task(&self, state: &mut State) -> Option<Task> {
        if !self.may_pick(state) {
            return None;
        }
        if let Some((cf, memtable)) = self.claim_to_ready(state) {
            return Some(Task::Ready(cf, memtable));
        }
        if let Some(task) = self.next_rebalance(state) {
            return Some(task);
        }
        if let Some(flush) = self.next_flush(state) {
            return Some(Task::Flush(flush));
        }
        self.next_compaction(state).map(Task::Compact)
    }

    fn claim_to_ready(&self, state: &mut State) -> Option<(CfId, Arc<Memtable>)> {
        let (cf, memtable) = self.next_to_ready(state)?;
        if state.readying.contains(&memtable.id) {
            return None;
        }
        state.readying.push(memtable.id);
        Some((cf, memtable))
    }

    /// Whether something is due, without taking it.
    fn has_work(&self, state: &mut State) -> bool {
        if self.options.read_only || self.health.is_read_only() {
            return false;
        }
        if state.leave_log
            || state.flushes.values().any(|tracker| !tracker.queue.is_empty())
            || self.is_rebalance_due(state)
        {
            return true;
        }
        match self.next_compaction(state) {
            Some(task) => {
                state.running.retain(|job| job.id != task.job_id);
                self.return_room(&task);
                true
            }
            None => false,
        }
    }

    fn run_task(&self, task: &Task) -> Result<()> {
        match task {
            Task::Ready(cf, memtable) => {
                let result = contained("readying a memtable", || {
                    self.ready_memtable(*cf, memtable);
                    Ok(())
                });
                self.state.lock().readying.retain(|id| *id != memtable.id);
                result
            }
            Task::ChangeMap(task) => unless_dropped(&task.family, self.run_map_task(task)),
            Task::Flush(task) => unless_dropped(&task.family, self.run_flush_task(task)),
            Task::Compact(task) => {
                unless_dropped(&task.family, self.run_compaction_task(task).map(drop))
            }
        }
    }

    /// Counts a failure and sets the pause, or clears an earlier failure.
    fn note_result(&self, task: &Task, result: &Result<()>) {
        match result {
            Ok(()) => {
                if self.disk.state() != SpaceState::Roomy && !matches!(task, Task::Ready(..)) {
                    self.renew_patience();
                }
                let mut state = self.state.lock();
                if state.failures_in_row > 0 && !matches!(task, Task::Ready(..)) {
                    state.failures_in_row = 0;
                    self.health.clear_failing();
                }
            }
            // Ended because the database closes or the family was dropped: nothing is wrong.
            Err(_) if self.closing.load(Ordering::Acquire) || task.is_moot() => {}
            Err(error) => {
                self.note_pause();
                let is_halfway = error.cause::<EnginePanic>().is_some();
                if matches!(task, Task::Flush(_)) && error.is_no_space() {
                    // The next attempt has the room of the reserve.
                    self.give_up_reserve();
                }
                if matches!(task, Task::Compact(_)) && error.is_no_space() {
                    // The room was estimated. Nothing that is needed has failed.
                    self.stats.add(Ticker::BackgroundErrors, 1);
                    tracing::warn!(job = task.name(), %error, "a compaction had no room on the disk");
                } else if error.kind() == ErrorKind::Corrupt || is_halfway {
                    self.fail_read_only(&task.name(), error);
                } else {
                    self.fail_soft(&task.name(), error);
                }
            }
        }
    }

    /// Applies an edit that changes no memtable, and publishes the versions.
    pub(crate) fn apply_edit(&self, edit: VersionEdit) -> Result<()> {
        let mut manifest = self.manifest.lock();
        let built = manifest.apply(edit)?;
        self.republish_built(&mut self.state.lock(), built);
        Ok(())
    }

    /// Publishes versions (manifest and state locks held).
    pub(crate) fn republish_built(&self, state: &mut State, built: Vec<(CfId, Arc<Version>)>) {
        for (cf, version) in built {
            if let Some(family) = self.family(cf) {
                self.republish(state, &family, Some(version));
            }
        }
    }

    /// Removes the files that no version, iterator or job holds any more.
    pub(crate) fn remove_obsolete(&self) {
        if self.trash.is_empty() {
            return;
        }
        for (no, reader) in self.trash.take() {
            self.tables.evict(no);
            // Nobody asks for them again, and the cache would find that out last.
            if let Some(reader) = reader {
                reader.forget_blocks();
            }
            match self.fs.remove(&self.path_of(&sst_name(no))) {
                Ok(()) => self.stats.add(Ticker::FilesRemoved, 1),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(%error, "an obsolete table could not be removed; the next open does");
                }
            }
        }
    }
}

/// A job of a family that was dropped while it ran has nothing to install: no failure.
fn unless_dropped(family: &Family, result: Result<()>) -> Result<()> {
    match family.dropped.load(Ordering::Acquire) {
        true => Ok(()),
        false => result,
    }
}
