//! Flushes: planning (under the state lock), running (no lock), installing (manifest lock).
//!
//! A sealed memtable is first *readied* (filters built, empty shards marked installed) by a
//! background step, once its last writer has inserted. Then shards leave by
//! [`crate::db::background::flush_plan`]. Before an install the log is synced through the job's
//! highest sequence number, so that power loss cannot keep half a batch: what a file holds, the log
//! holds. It is not where the database has one family and the job takes the rest of its oldest
//! memtables: the tables then hold a prefix of all writes, whatever the log has lost (decision
//! 0015). The shards of a job are written at once ([`crate::db::background::parallel_job`]) and
//! installed by one edit.
//!
//! Failure: a job that fails or panics leaves its shards pending and no files; it is tried again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use archipelago_base::budget::MemoryClass;
use archipelago_base::{CfId, FileNo, Result, SeqNo};

use crate::border::{Border, contained};
use crate::bucket::BucketMap;
use crate::db::background::compaction::output_bytes;
use crate::db::background::flush_plan::{FlushPlan, SealedView, plan_flush};
use crate::db::background::parallel_job::{SizedWork, Work};
use crate::db::background::rebalance::sample;
use crate::db::inner::{DbInner, RunningJob, RunningKind, Sealed, ShardState, State};
use crate::db::state::family::Family;
use crate::db::state::job_threads::HandsKind;
use crate::db::state::memtable::{Immutable, Memtable};
use crate::disk_space::flush_room;
use crate::event::Event;
use crate::executor;
use crate::file_meta::sst_name;
use crate::flush::FlushSpec;
use crate::job::below::Below;
use crate::job::{Cancel, JobContext, JobOutput, NoShards, ShardRef, ShardSource};
use crate::key::KeyRange;
use crate::manifest::{Change, VersionEdit};
use crate::memtable::{SealedShard, Shard};
use crate::stall::flush_speed;
use crate::stats::{Ticker, Timer};
use crate::version::rebalance::RunningFlush;

/// A flush that was planned: its shards are marked running.
pub(crate) struct FlushTask {
    pub(crate) job_id: u64,
    pub(crate) family: Arc<Family>,
    /// Oldest first.
    pub(crate) memtables: Vec<Arc<Memtable>>,
    pub(crate) shards: std::ops::Range<usize>,
    pub(crate) range: KeyRange,
    /// Where its files are cut beside the boundaries of the map.
    pub(crate) planned_cuts: Vec<Vec<u8>>,
}

impl FlushTask {
    /// Everything of the family in the range with at most this sequence number is in the job or
    /// in older files.
    fn through(&self) -> SeqNo {
        self.memtables.iter().map(|memtable| memtable.last_seq()).max().unwrap_or_default()
    }

    /// Whether it flushes that shard.
    pub(crate) fn takes(&self, family: CfId, memtable: &Memtable, shard: usize) -> bool {
        self.family.id == family
            && self.shards.contains(&shard)
            && self.memtables.iter().any(|taken| taken.id == memtable.id)
    }

    fn data_bytes(&self, shards: std::ops::Range<usize>) -> u64 {
        self.memtables
            .iter()
            .flat_map(|memtable| &memtable.shards[shards.clone()])
            .map(|shard| shard.data_bytes())
            .sum()
    }

    /// The shards that have something to be flushed, each with its index.
    fn filled_shards(&self) -> impl Iterator<Item = usize> {
        let filled = |shard: &Arc<Shard>| shard.entries() > 0 || shard.has_tombstones();
        let is_filled =
            move |at: &usize| self.memtables.iter().any(|memtable| filled(&memtable.shards[*at]));
        self.shards.clone().filter(is_filled)
    }
}

impl ShardSource for FlushTask {
    fn shard(&self, wanted: &ShardRef) -> Result<Arc<dyn SealedShard>> {
        Taken(self.memtables.clone()).shard(wanted)
    }
}

/// The memtables of a flush, for a thread that writes some of their shards.
struct Taken(Vec<Arc<Memtable>>);

impl ShardSource for Taken {
    fn shard(&self, wanted: &ShardRef) -> Result<Arc<dyn SealedShard>> {
        let memtable = self.0.iter().find(|memtable| memtable.id == wanted.memtable);
        let shard = memtable.and_then(|memtable| memtable.shards.get(wanted.shard as usize));
        shard.map(|shard| Arc::clone(shard) as Arc<dyn SealedShard>).ok_or_else(|| {
            archipelago_base::Error::not_found(format!(
                "shard {} of memtable {}",
                wanted.shard, wanted.memtable
            ))
        })
    }
}

impl DbInner {
    /// A sealed memtable that has to be readied.
    pub(crate) fn next_to_ready(&self, state: &State) -> Option<(CfId, Arc<Memtable>)> {
        state.flushes.iter().find_map(|(cf, tracker)| {
            let sealed = tracker.queue.iter().find(|sealed| !sealed.ready)?;
            Some((*cf, Arc::clone(&sealed.memtable)))
        })
    }

    /// Builds the filters of a sealed memtable, marks its empty shards installed and takes it into
    /// the family's window.
    pub(crate) fn ready_memtable(&self, cf: CfId, memtable: &Arc<Memtable>) {
        let backoff = crossbeam_utils::Backoff::new();
        while !memtable.is_quiet() {
            backoff.snooze();
        }
        for shard in &memtable.shards {
            shard.seal();
        }
        let Some(family) = self.family(cf) else { return };
        let buckets = family.current.load().version.map().len();
        let seal = sample(memtable, buckets.max(self.buckets_initial(&family.options)));
        let mut state = self.state.lock();
        let Some(tracker) = state.flushes.get_mut(&cf) else { return };
        let Some(sealed) = tracker.queue.iter_mut().find(|s| s.memtable.id == memtable.id) else {
            return;
        };
        let mut view = Immutable::clone(&sealed.view);
        for (index, shard) in memtable.shards.iter().enumerate() {
            if shard.entries() == 0 && !shard.has_tombstones() {
                sealed.shards[index] = ShardState::Installed;
                view.shards[index] = None;
            }
        }
        sealed.view = Arc::new(view);
        let first_time = !std::mem::replace(&mut sealed.ready, true);
        tracker.queue.retain(|sealed| !sealed.view.is_installed());
        if first_time {
            self.note_seal(&mut state, &family, seal);
        }
        self.republish(&mut state, &family, None);
        drop(state);
        self.recompute_stall(&family);
        self.progress.notify_all();
        self.wake();
    }

    /// The next flush of any family; its shards are marked running.
    pub(crate) fn next_flush(&self, state: &mut State) -> Option<FlushTask> {
        let families: Vec<CfId> = state.flushes.keys().copied().collect();
        families.into_iter().find_map(|cf| self.next_flush_of(state, cf))
    }

    fn next_flush_of(&self, state: &mut State, cf: CfId) -> Option<FlushTask> {
        let family = self.family(cf)?;
        let held = state.changing(cf).cloned();
        let planned_cuts = state.planned_cuts(&family.current.load().version);
        let tracker = state.flushes.get_mut(&cf)?;
        let views: Vec<SealedView<'_>> = tracker
            .queue
            .iter()
            .map(|sealed| SealedView {
                map: &sealed.memtable.map,
                shards: &sealed.shards,
                ready: sealed.ready,
                unlogged: sealed.memtable.has_unlogged(),
            })
            .collect();
        let FlushPlan { memtables, shards, range } = plan_flush(&views, held.as_ref())?;
        drop(views);
        let mut taken = Vec::with_capacity(memtables.len());
        for sealed in tracker.queue.range_mut(memtables) {
            for shard in shards.clone() {
                if sealed.shards[shard] == ShardState::Pending {
                    sealed.shards[shard] = ShardState::Running;
                }
            }
            taken.push(Arc::clone(&sealed.memtable));
        }
        let job_id = state.next_job_id;
        state.next_job_id += 1;
        // What a job over several shards writes ends where they do.
        let ends = taken.first().map_or(&[][..], |memtable| memtable.map.boundaries());
        let cuts = [ends, &planned_cuts].concat();
        let flush = RunningFlush { range: range.clone(), planned_cuts: cuts };
        let kind = RunningKind::Flush { cf, flush };
        state.running.push(RunningJob { id: job_id, kind });
        Some(FlushTask { job_id, family, memtables: taken, shards, range, planned_cuts })
    }

    /// Runs a planned flush and installs it; afterwards its shards are installed or pending again.
    pub(crate) fn run_flush_task(&self, task: &FlushTask) -> Result<()> {
        let result = contained(&format!("a flush of \"{}\"", task.family.name), || {
            self.fault_point("flush.picked")?;
            self.flush_and_install(task)
        });
        let mut state = self.state.lock();
        state.running.retain(|job| job.id != task.job_id);
        if result.is_err()
            && let Some(tracker) = state.flushes.get_mut(&task.family.id)
        {
            let ids: Vec<u64> = task.memtables.iter().map(|memtable| memtable.id).collect();
            for sealed in tracker.queue.iter_mut().filter(|s| ids.contains(&s.memtable.id)) {
                for shard in task.shards.clone() {
                    if sealed.shards[shard] == ShardState::Running {
                        sealed.shards[shard] = ShardState::Pending;
                    }
                }
            }
        }
        drop(state);
        self.recompute_stall(&task.family);
        self.progress.notify_all();
        result
    }

    fn flush_and_install(&self, task: &FlushTask) -> Result<()> {
        let bytes = task.data_bytes(task.shards.clone());
        let cuts = self.room_cuts_max(&task.family.current.load().version);
        let tables = task.shards.len() * task.memtables.len() + cuts;
        self.ensure_room(flush_room(bytes, tables as u64), "a flush")?;
        self.set_first_map(task)?;
        let output = self.write_shards(task)?;
        let installed = self
            .fault_point("flush.before_install")
            .and_then(|()| self.sync_before_install(task))
            .and_then(|()| self.install_flush(task, &output));
        if installed.is_err() {
            self.discard(&output);
        }
        installed
    }

    /// Writes the files of a flush: its shards at once, on as many threads as there are background
    /// jobs, and meanwhile syncs the log if that has to precede the install.
    fn write_shards(&self, task: &FlushTask) -> Result<JobOutput> {
        let started_ns = self.clock.now_ns();
        let cancel = Cancel::under(&self.closing);
        let warm = task.memtables.iter().any(|memtable| memtable.was_read());
        let work = |shard| {
            (task.data_bytes(shard..shard + 1), self.shard_work(task, shard, &cancel, warm))
        };
        let works: Vec<SizedWork> = task.filled_shards().map(work).collect();
        let threads = works.len().min(self.options.max_background_jobs);
        let bytes = task.data_bytes(task.shards.clone());
        let _held = self.budget.hold(MemoryClass::Job, output_bytes(threads, bytes));
        let sync = || if threads > 1 { self.sync_before_install(task) } else { Ok(()) };
        let ended = self.run_together(HandsKind::Urgent, cancel, works, threads, sync);
        let (outputs, failed) = ended.into_parts();
        let duration_ns = self.clock.now_ns().saturating_sub(started_ns);
        let output = JobOutput::joined(outputs, duration_ns);
        match failed {
            None => Ok(output),
            Some(error) => {
                self.discard(&output);
                Err(error)
            }
        }
    }

    /// The flush of one shard, a job of its own for the executor.
    fn shard_work(&self, task: &FlushTask, shard: usize, cancel: &Cancel, warm: bool) -> Work {
        let spec = self.flush_spec(task, shard..shard + 1);
        let taken = Taken(task.memtables.clone());
        let cancel = cancel.clone();
        let context = JobContext { cancel, warm, ..self.job_context(&NoShards) };
        let (executor, fault) = (Arc::clone(&self.executor), self.fault.clone());
        let border = Border::new("job executor", executor.name(), Some(&task.family.name));
        Box::new(move || {
            fault.as_ref().map_or(Ok(()), |fault| fault("flush.shard"))?;
            let context = JobContext { shards: &taken, ..context };
            let output = border.call(|| executor.flush(&spec, &context))??;
            // The files of an output that is not one of the spec may be anybody's: they stay.
            executor::check(&output, &spec.range, &spec.output)?;
            Ok(output)
        })
    }

    /// What the files hold, the log must hold durably; unless, with the files, everything up to
    /// some write is in tables, and nothing later is: then they need no log.
    fn sync_before_install(&self, task: &FlushTask) -> Result<()> {
        let is_logged = task.memtables.iter().any(|memtable| memtable.oldest_log().is_some());
        if is_logged && !self.leaves_a_prefix(task) {
            self.sync_log(task.through())?;
        }
        Ok(())
    }

    /// Whether, once `task` is installed, the tables of the database hold every write up to the
    /// job's last one and none after it: it is the only family's, and it completes the oldest
    /// memtables. (Shards that earlier jobs installed alone were synced then. A family that is
    /// created meanwhile syncs the log.)
    fn leaves_a_prefix(&self, task: &FlushTask) -> bool {
        if self.live_families().len() != 1 {
            return false;
        }
        let state = self.state.lock();
        let Some(tracker) = state.flushes.get(&task.family.id) else { return false };
        let oldest = tracker.queue.iter().zip(&task.memtables);
        let complete = |(sealed, taken): (&Sealed, &Arc<Memtable>)| {
            let is_left = |(at, shard): (usize, &ShardState)| {
                *shard != ShardState::Installed && !task.shards.contains(&at)
            };
            sealed.memtable.id == taken.id && !sealed.shards.iter().enumerate().any(is_left)
        };
        tracker.queue.len() >= task.memtables.len() && oldest.into_iter().all(complete)
    }

    /// Removes the outputs of a job that was not installed. They stay if the next open might find
    /// the edit that names them.
    pub(crate) fn discard(&self, output: &JobOutput) {
        if self.manifest.lock().is_unsettled() {
            return;
        }
        for meta in &output.files {
            if let Err(error) = self.fs.remove(&self.path_of(&sst_name(meta.file_no()))) {
                tracing::warn!(%error, "cannot remove the output of a failed job");
            }
        }
    }

    /// The flush of some of the task's shards: the files of each end where it ends.
    pub(crate) fn flush_spec(&self, task: &FlushTask, shards: std::ops::Range<usize>) -> FlushSpec {
        let version = Arc::clone(&task.family.current.load().version);
        let cuts = [&task.planned_cuts[..], &self.room_cuts(&version)].concat();
        let cuts = version.map().boundaries_and(&cuts);
        let bytes = task.data_bytes(shards.clone());
        let range = match task.memtables.first() {
            Some(memtable) if shards != task.shards => memtable.map.hull(&shards),
            _ => task.range.clone(),
        };
        let shards = task
            .memtables
            .iter()
            .flat_map(|memtable| {
                shards.clone().map(|shard| ShardRef { memtable: memtable.id, shard: shard as u32 })
            })
            .collect();
        FlushSpec {
            cf: task.family.id.0,
            range,
            shards,
            retention: self.retention(&task.family, Below::Everything),
            output: self.output_spec(&task.family, 0, cuts, Vec::new(), bytes),
        }
    }

    fn install_flush(&self, task: &FlushTask, output: &JobOutput) -> Result<()> {
        let family = &task.family;
        let cf = family.id;
        let mut edit = VersionEdit::new();
        for meta in &output.files {
            edit.add_file(cf, 0, meta.clone());
        }
        edit.flushed_through(cf, task.range.clone(), task.through());
        let (files, bytes) =
            (output.files.iter().map(|meta| meta.no).collect(), output.bytes_written);
        let floor = {
            let mut manifest = self.manifest.lock();
            family.check_alive()?;
            // A segment may go (or be overwritten) only once the manifest says so: the floor that
            // the logs are dropped below is the one in the edit.
            let floor = self.log_floor(&self.state.lock(), self.open_log_no(), task);
            edit.push(Change::LogFloor(floor));
            let built = manifest.apply(edit)?;
            let mut state = self.state.lock();
            self.mark_installed(&mut state, task);
            self.republish_built(&mut state, built);
            floor
        };
        self.drop_logs_below(floor);
        let bytes_flushed = task.data_bytes(task.shards.clone());
        self.drain.add(bytes_flushed);
        self.measure_flush(bytes_flushed, output.duration_ns);
        family.backlog_since_ns.store(self.clock.now_ns(), Ordering::Relaxed);
        self.stats.add(Ticker::Flushes, 1);
        self.stats.add(Ticker::FlushBytesWritten, output.bytes_written);
        self.count_job(output);
        self.stats.record(Timer::Flush, output.duration_ns);
        self.tell(&Event::FlushInstalled {
            cf,
            range: task.range.clone(),
            files,
            bytes,
            duration_ns: output.duration_ns,
        });
        Ok(())
    }

    /// Learns from a flush how fast flushes run.
    fn measure_flush(&self, bytes: u64, duration_ns: u64) {
        let running = &self.state.lock().running;
        let at_once = running.iter().filter(|job| matches!(job.kind, RunningKind::Flush { .. }));
        let before = self.flush_speed.load(Ordering::Relaxed);
        let duration = Duration::from_nanos(duration_ns);
        let speed = flush_speed(before, bytes, at_once.count(), duration);
        self.flush_speed.store(speed, Ordering::Relaxed);
    }

    fn mark_installed(&self, state: &mut State, task: &FlushTask) {
        let Some(tracker) = state.flushes.get_mut(&task.family.id) else { return };
        for memtable in &task.memtables {
            let found = tracker.queue.iter_mut().find(|sealed| sealed.memtable.id == memtable.id);
            let Some(sealed) = found else { continue };
            let mut view = Immutable::clone(&sealed.view);
            for shard in task.shards.clone() {
                assert_ne!(sealed.shards[shard], ShardState::Pending, "installed what ran");
                sealed.shards[shard] = ShardState::Installed;
                view.shards[shard] = None;
            }
            sealed.view = Arc::new(view);
        }
        tracker.queue.retain(|sealed| !sealed.view.is_installed());
    }

    /// The open log segment's number; what is below it may go once nothing pins it.
    pub(crate) fn open_log_no(&self) -> FileNo {
        FileNo(self.open_log.load(Ordering::Acquire))
    }

    /// Cuts the key space by the keys of the first memtable, once (BucketLSM §V-C): equal parts by
    /// records, which the index knows, not by bytes, which it does not; temperatures, which are in
    /// bytes, mend what values of different sizes make of it.
    pub(crate) fn set_first_map(&self, task: &FlushTask) -> Result<()> {
        let family = &task.family;
        let wanted = self.buckets_initial(&family.options);
        let Some(memtable) = task.memtables.first() else { return Ok(()) };
        let [shard] = &*memtable.shards else { return Ok(()) };
        if wanted <= 1 || family.current.load().version.map().epoch().0 > 0 {
            return Ok(());
        }
        let boundaries = shard.split_keys(wanted);
        if boundaries.is_empty() {
            return Ok(());
        }
        let map = BucketMap::new(archipelago_base::Epoch(1), boundaries)?;
        let buckets = map.len();
        {
            let mut manifest = self.manifest.lock();
            // Looked at under the lock: an ingestion may just have put a file into L0, which the
            // new map would cut through.
            let version = Arc::clone(&family.current.load().version);
            if version.map().epoch().0 > 0 || version.l0_layers_max() > 0 {
                return Ok(());
            }
            let mut edit = VersionEdit::new();
            edit.push(Change::SetBucketMap { cf: family.id, map });
            let built = manifest.apply(edit)?;
            self.republish_built(&mut self.state.lock(), built);
        }
        let reason = format!(
            "{buckets} buckets of equally many records, by the {} of the first memtable",
            shard.entries()
        );
        self.note_map_change(family, archipelago_base::Epoch(1), buckets, reason);
        Ok(())
    }
}
