//! The discrete-event simulation: virtual time, threads that share cores and device, jobs.
//!
//! All decisions are the engine's: `plan_flush`, `pick`, `compaction_jobs`, `stall`. All other work
//! costs time by the profile. A step starts the jobs that may start, advances to the next event,
//! ends the jobs that are done, and then seals and decides. Asserted invariants: time never goes
//! back, at most `jobs` jobs run, and a step always leads to a later event.
//!
//! Running threads share the machine fairly: each runs at the same fraction of its own full speed
//! ([`Machine::speed`](super::profile::Machine::speed)). So one sum of *progress* (seconds at full
//! speed) determines when each thread ends, and a step costs O(log threads) and the sums. Installs
//! take turns, because they need the manifest's lock. A job counts as running until it is
//! installed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::SeqNo;
use archipelago_base::clock::ManualClock;
use archipelago_base::random::Rng;
use archipelago_engine::compaction::pick::{
    Pick, PickInput, compaction_jobs, flush_reserve_ns, is_loading, load_pause_ns, pick,
};
use archipelago_engine::db::flush_plan::FlushPlan;
use archipelago_engine::version::Running;

use super::keyspace::Run;
use super::profile::{Demand, Work};
use super::setting::Setting;
use super::store::{CF, Store, Taken, seqs_of};
use super::trace::{Outcome, Recorder};
use super::work::{self, Plan};
use super::writer::{DELAYED_LOOK_NS, Writer};
use archipelago_bench::harness::store::{Error, Result};

/// Task of a job.
#[derive(Debug)]
enum Task {
    Flush(Taken),
    Compact(Pick, Running),
}

#[derive(Debug)]
pub(super) struct Job {
    task: Task,
    outputs: Vec<Run>,
    threads_left: usize,
    started_ns: u64,
}

impl Job {
    fn is_l0_compaction(&self) -> bool {
        matches!(self.task, Task::Compact(Pick::L0ToBase { .. }, _))
    }
}

/// A modelled store, its jobs and its writers in virtual time.
#[derive(Debug)]
pub(crate) struct Sim {
    pub(super) setting: Setting,
    clock: Arc<ManualClock>,
    pub(super) now_ns: u64,
    rng: Rng,
    pub(super) store: Store,
    pub(super) writer: Writer,
    pub(super) jobs: BTreeMap<u64, Job>,
    next_job: u64,
    /// Progress of every running thread, in seconds at full speed.
    progress: f64,
    /// Jobs by the progress at which they end (as the bits of a positive number), then by number.
    pub(super) threads: BTreeMap<(u64, u64), (u64, Demand)>,
    next_thread: u64,
    installing: Option<(u64, u64)>,
    to_install: VecDeque<u64>,
    sealed_ns: Option<u64>,
    seal_interval_ns: u64,
    burst_left: f64,
    /// Whether the state changed after no job was found to start.
    may_start: bool,
    half_ns: Option<u64>,
    recorder: Recorder,
}

/// Time until the next event, and the rates until then.
#[derive(Clone, Copy, Debug)]
struct Step {
    seconds: f64,
    speed: f64,
    writes_per_s: f64,
    device_bytes_per_s: f64,
}

impl Sim {
    pub(crate) fn new(setting: Setting) -> Self {
        let clock = Arc::new(ManualClock::new(0));
        Self {
            now_ns: 0,
            rng: Rng::with_seed(setting.seed),
            store: Store::new(&setting),
            writer: Writer::new(&setting, &clock),
            jobs: BTreeMap::new(),
            next_job: 1,
            progress: 0.0,
            threads: BTreeMap::new(),
            next_thread: 1,
            installing: None,
            to_install: VecDeque::new(),
            sealed_ns: None,
            seal_interval_ns: 0,
            burst_left: setting.machine.burst_bytes,
            may_start: true,
            half_ns: None,
            recorder: Recorder::default(),
            clock,
            setting,
        }
    }

    /// Runs until everything is written.
    pub(crate) fn run(mut self) -> Result<Outcome> {
        while !self.is_written() {
            self.step()?;
        }
        self.store.check()?;
        Ok(self.outcome())
    }

    pub(super) fn is_written(&self) -> bool {
        self.writer.written >= self.setting.records as f64 - 0.5
    }

    /// Advances to the next event and handles it.
    pub(super) fn step(&mut self) -> Result<()> {
        self.start_jobs()?;
        let step = self.next_step()?;
        self.pass(step);
        self.end_threads();
        self.end_install()?;
        if self.writer.is_full() && self.writer.may_seal(&self.store) {
            self.seal();
        }
        if self.writer.is_delayed() {
            self.writer.decide(&self.store, self.now_ns);
        }
        if self.half_ns.is_none() && self.writer.written * 2.0 >= self.setting.records as f64 {
            self.half_ns = Some(self.now_ns);
        }
        Ok(())
    }

    fn seal(&mut self) {
        let drawn = std::mem::take(&mut self.writer.active).round() as u64;
        let last = self.writer.written.round() as u64;
        if self.store.sealed.is_empty() {
            self.writer.backlog_begins(self.now_ns);
        }
        self.store.seal(drawn, last.max(drawn));
        if let Some(before) = self.sealed_ns.replace(self.now_ns) {
            self.seal_interval_ns = self.now_ns - before;
        }
        self.may_start = true;
        self.recorder.event(&[1, self.now_ns]);
        self.writer.decide(&self.store, self.now_ns);
    }

    fn start_jobs(&mut self) -> Result<()> {
        while self.may_start && self.jobs.len() < self.setting.jobs {
            let task = match self.store.take_flush() {
                Some(taken) => Task::Flush(taken),
                None => match self.next_compaction() {
                    Some((pick, running)) => Task::Compact(pick, running),
                    None => break,
                },
            };
            self.start(task)?;
        }
        self.may_start = false;
        assert!(self.jobs.len() <= self.setting.jobs, "no more jobs than allowed");
        self.recorder.jobs_max = self.recorder.jobs_max.max(self.jobs.len());
        Ok(())
    }

    fn next_compaction(&self) -> Option<(Pick, Running)> {
        let running: Vec<Running> = self
            .jobs
            .values()
            .filter_map(|job| match &job.task {
                Task::Compact(_, running) => Some(running.clone()),
                Task::Flush(_) => None,
            })
            .collect();
        let since = self.sealed_ns.map(|sealed| self.now_ns - sealed);
        let picked = pick(&PickInput {
            version: &self.store.version,
            running: &running,
            jobs_max: compaction_jobs(self.setting.jobs, since, self.seal_interval_ns),
            snapshots: &[],
            visible: SeqNo::MAX,
            now_ms: 0,
            loading: is_loading(since, self.seal_interval_ns),
            space: &[],
        })?;
        let running = picked.running(CF);
        Some((picked, running))
    }

    fn start(&mut self, task: Task) -> Result<()> {
        let setting = &self.setting;
        let Plan { threads, outputs } = match &task {
            Task::Flush(taken) => {
                self.store.set_first_map(setting.buckets(), taken.drawn, &mut self.rng)?;
                let FlushPlan { shards, range, .. } = &taken.plan;
                let boundaries = self.store.boundaries();
                work::flush(setting, range, shards.len(), taken.drawn, boundaries)
            }
            // Only the level of the files changes, so the job consists of the install.
            Task::Compact(Pick::TrivialMove { .. }, _) => Plan::default(),
            Task::Compact(pick, _) => {
                let (version, cuts) = (&self.store.version, self.store.boundaries());
                work::compaction(setting, version, pick, cuts, &mut self.rng)
            }
        };
        let id = self.next_job;
        self.next_job += 1;
        self.recorder.event(&[2, self.now_ns, id, outputs.len() as u64]);
        let job = Job { task, outputs, threads_left: threads.len(), started_ns: self.now_ns };
        if job.is_l0_compaction() {
            self.note_parts(&threads);
        }
        if threads.is_empty() {
            self.to_install.push_back(id);
        }
        self.jobs.insert(id, job);
        for work in threads {
            let machine = &self.setting.machine;
            self.recorder.written_bytes += work.write_bytes;
            self.recorder.work_s += work.alone_s(machine);
            let ends = (self.progress + work.alone_s(machine)).to_bits();
            self.threads.insert((ends, self.next_thread), (id, work.demand(machine)));
            self.next_thread += 1;
        }
        self.next_install();
        Ok(())
    }

    fn note_parts(&mut self, parts: &[Work]) {
        let alone = parts.iter().map(|work| work.alone_s(&self.setting.machine));
        let (sum, most) = alone.fold((0.0, 0.0f64), |(sum, most), s| (sum + s, most.max(s)));
        if sum > 0.0 {
            self.recorder.stragglers.add(most * parts.len() as f64 / sum);
        }
    }

    /// Computes the rates now, and the time for which they last.
    fn next_step(&mut self) -> Result<Step> {
        let machine = &self.setting.machine;
        let wanted = self.writer.wanted_per_s();
        let record_bytes = self.setting.cost.record_bytes() as f64;
        let mut demand = Demand {
            cores: wanted * self.setting.cost.write_ns_per_record / 1e9,
            write: wanted * record_bytes,
            read: 0.0,
        };
        demand = self.threads.values().fold(demand, |sum, (_, demand)| sum + *demand);
        let speed = machine.speed(demand, self.threads.len(), self.burst_left > 0.0);
        let peak = self.setting.peak_bytes_per_s() / record_bytes;
        let writes_per_s = wanted.min(peak * speed);
        let step = Step {
            seconds: f64::INFINITY,
            speed,
            writes_per_s,
            device_bytes_per_s: demand.write * speed,
        };
        let seconds = self.until_next_event(&step);
        if !seconds.is_finite() {
            return Err(Error::invalid("the model cannot continue: no event is left"));
        }
        Ok(Step { seconds, ..step })
    }

    fn until_next_event(&self, step: &Step) -> f64 {
        let mut next = f64::INFINITY;
        let mut at = |seconds: f64| next = next.min(seconds.max(0.0));
        let after = |ns: u64| ns.saturating_sub(self.now_ns) as f64 / 1e9;
        if let Some(((ends, _), _)) = self.threads.first_key_value() {
            at((f64::from_bits(*ends) - self.progress) / step.speed);
        }
        if let Some((ends_ns, _)) = self.installing {
            at(after(ends_ns));
        }
        if step.writes_per_s > 0.0 {
            let left = self.setting.records as f64 - self.writer.written;
            at(self.writer.room().min(left) / step.writes_per_s);
        }
        if self.writer.is_delayed() {
            at(DELAYED_LOOK_NS as f64 / 1e9);
        }
        if self.burst_left > 0.0 && step.device_bytes_per_s > 0.0 {
            at(self.burst_left / step.device_bytes_per_s);
        }
        for due in self.patience_ends() {
            if due > self.now_ns {
                at(after(due));
            }
        }
        next
    }

    /// Advances the clock by the time of one step.
    fn pass(&mut self, step: Step) {
        let ns = ((step.seconds * 1e9).ceil() as u64).max(1);
        let seconds = ns as f64 / 1e9;
        let threads = self.threads.len() + usize::from(self.installing.is_some());
        let record_bytes = self.setting.cost.record_bytes() as f64;
        let mb_per_s = step.writes_per_s * record_bytes / 1e6;
        let at_s = self.now_ns as f64 / 1e9;
        self.recorder.step(at_s, seconds, threads, mb_per_s, &self.store.version);
        if step.speed < 1.0 {
            self.note_limit(&step, seconds);
        }
        self.progress += seconds * step.speed;
        let writable = step.seconds.min(seconds);
        self.writer.write(writable, step.writes_per_s);
        self.burst_left = (self.burst_left - seconds * step.device_bytes_per_s).max(0.0);
        // A rest of the burst that is due to rounding counts as nothing.
        if self.burst_left < 1.0 {
            self.burst_left = 0.0;
        }
        let before = self.now_ns;
        self.now_ns += ns;
        assert!(self.now_ns > before, "time goes on");
        self.clock.advance(Duration::from_nanos(ns));
        let now = self.now_ns;
        self.may_start |= self.patience_ends().into_iter().any(|due| before < due && due <= now);
    }

    /// Times at which jobs that are kept for flushes are free again, and at which the load counts
    /// as over.
    fn patience_ends(&self) -> Vec<u64> {
        let interval_ns = self.seal_interval_ns;
        let Some(sealed) = self.sealed_ns else { return Vec::new() };
        let ends = [flush_reserve_ns(interval_ns), load_pause_ns(interval_ns)];
        ends.into_iter().map(|pause| sealed + pause + 1).collect()
    }

    fn note_limit(&mut self, step: &Step, seconds: f64) {
        let machine = &self.setting.machine;
        let device = machine.write_rate(self.threads.len(), self.burst_left > 0.0);
        if step.device_bytes_per_s >= device * 0.999 {
            self.recorder.device_full_s += seconds;
        } else {
            self.recorder.cores_full_s += seconds;
        }
    }

    fn end_threads(&mut self) {
        while let Some((&(ends, thread), &(job, _))) = self.threads.first_key_value()
            && f64::from_bits(ends) <= self.progress + 1e-10
        {
            self.threads.remove(&(ends, thread));
            self.recorder.event(&[3, self.now_ns, job]);
            if let Some(ended) = self.jobs.get_mut(&job) {
                ended.threads_left -= 1;
                if ended.threads_left == 0 {
                    self.to_install.push_back(job);
                }
            }
        }
        self.next_install();
    }

    /// Gives the manifest to the next job.
    fn next_install(&mut self) {
        if self.installing.is_some() {
            return;
        }
        let Some(job) = self.to_install.pop_front() else { return };
        let cost = &self.setting.cost;
        let files = self.store.version.files().count() as f64;
        let sync_ns = self.setting.machine.device.sync_latency().as_secs_f64() * 1e9;
        let ns = cost.install_ns + files * cost.install_ns_per_file + sync_ns;
        self.recorder.install_s += ns / 1e9;
        self.installing = Some((self.now_ns + ns.max(1.0) as u64, job));
    }

    fn end_install(&mut self) -> Result<()> {
        while let Some((ends_ns, id)) = self.installing
            && ends_ns <= self.now_ns
        {
            self.installing = None;
            if let Some(job) = self.jobs.remove(&id) {
                self.recorder.event(&[4, self.now_ns, id]);
                self.install(&job)?;
            }
            self.may_start = true;
            self.writer.decide(&self.store, self.now_ns);
            self.next_install();
        }
        Ok(())
    }

    fn install(&mut self, job: &Job) -> Result<()> {
        match &job.task {
            Task::Flush(taken) => {
                let added: Vec<_> =
                    job.outputs.iter().map(|run| (0, self.store.file(run, taken.seqs))).collect();
                let kept: u64 = added.iter().map(|(_, meta)| meta.entries).sum();
                self.store.flushed += taken.drawn;
                self.store.dropped += taken.drawn as i64 - kept as i64;
                self.store.install(&[], added)?;
                self.store.mark_installed(taken);
                let flushes = self.jobs.values().filter(|job| matches!(job.task, Task::Flush(_)));
                let at_once = flushes.count() + 1;
                self.writer.drained(taken.drawn, at_once, job.started_ns, self.now_ns);
                self.recorder.flushes += 1;
            }
            Task::Compact(pick, _) => self.install_compaction(pick, job)?,
        }
        Ok(())
    }

    fn install_compaction(&mut self, pick: &Pick, job: &Job) -> Result<()> {
        let removed: Vec<_> = pick.inputs().map(|(level, file)| (level, file.no)).collect();
        let to = pick.to();
        if let Pick::TrivialMove { files, .. } = pick {
            self.recorder.moves += 1;
            let added = files.iter().map(|file| (to, file.meta().clone())).collect();
            return self.store.install(&removed, added);
        }
        let took_s = (self.now_ns - job.started_ns) as f64 / 1e9;
        match pick {
            Pick::L0ToBase { l0, .. } => {
                let records = l0.iter().map(|file| file.entries).sum();
                let others = self.jobs.values().filter(|job| job.is_l0_compaction()).count();
                self.writer.compacted(records, others + 1, job.started_ns, self.now_ns);
                self.recorder.l0_jobs.add(took_s);
            }
            Pick::IntraL0 { .. } => self.recorder.intra_jobs += 1,
            _ => self.recorder.level_jobs += 1,
        }
        let seqs = seqs_of(pick);
        let added: Vec<_> =
            job.outputs.iter().map(|run| (to, self.store.file(run, seqs))).collect();
        let read: u64 = pick.inputs().map(|(_, file)| file.entries).sum();
        let kept: u64 = added.iter().map(|(_, meta)| meta.entries).sum();
        self.store.dropped += read as i64 - kept as i64;
        self.store.install(&removed, added)
    }

    fn outcome(mut self) -> Outcome {
        let setting = &self.setting;
        let seconds = self.now_ns as f64 / 1e9;
        let bytes = setting.records as f64 * setting.cost.record_bytes() as f64;
        let half_s = seconds - self.half_ns.unwrap_or(0) as f64 / 1e9;
        let recorder = &mut self.recorder;
        recorder.event(&[5, self.now_ns, self.store.records()]);
        Outcome {
            mode: setting.mode,
            jobs: setting.jobs,
            degree: setting.degree,
            seconds,
            ops_per_s: setting.records as f64 / seconds,
            mb_per_s: bytes / seconds / 1e6,
            second_half_mb_per_s: bytes / 2.0 / half_s.max(1e-9) / 1e6,
            threads_mean: recorder.threads_mean(),
            threads_max: recorder.threads_max,
            work_s: recorder.work_s,
            install_s: recorder.install_s,
            write_amplification: recorder.written_bytes / bytes,
            stalled_s: self.writer.stalled_s,
            l0_compactions: recorder.l0_jobs.count,
            l0_compaction_s_mean: recorder.l0_jobs.mean(),
            l0_compaction_s_std: recorder.l0_jobs.std(),
            straggler_ratio: recorder.stragglers.mean(),
            level_compactions: recorder.level_jobs,
            intra_l0_compactions: recorder.intra_jobs,
            moves: recorder.moves,
            flushes: recorder.flushes,
            jobs_max_seen: recorder.jobs_max,
            cores_full_share: recorder.cores_full_s / seconds,
            device_full_share: recorder.device_full_s / seconds,
            pending_bytes: self.store.version.pending_compaction_bytes(),
            buckets: self.store.version.map().len(),
            series: recorder.series(seconds),
            trace: recorder.trace,
        }
    }
}
