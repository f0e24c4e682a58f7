//! Compactions: from the pure pick to a spec and an install (between them the run, in
//! [`crate::db::background::subcompaction`]); and what flush and compaction specs have in common.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::{CfId, Result};
use archipelago_env::{IoContext, IoPurpose};

use crate::border::contained;
use crate::compaction::job::{CompactionSpec, Input};
use crate::compaction::pick::{
    Pick, PickInput, compaction_jobs, is_loading, pick_freeing, pick_of_all, pick_part, pick_recut,
    pick_tiny,
};
use crate::db::background::subcompaction::Compacted;
use crate::db::inner::{DbInner, RunningJob, RunningKind, State};
use crate::db::state::family::Family;
use crate::disk_space::{SpaceState, SpaceUse};
use crate::event::Event;
use crate::file_meta::sst_name;
use crate::job::below::{Below, range_of};
use crate::job::spec::{FileNumbers, Grandparent, OutputSpec, Retention};
use crate::job::{Cancel, JobContext, JobOutput, ShardSource};
use crate::key::KeyRange;
use crate::manifest::VersionEdit;
use crate::options::LEVELS;
use crate::stats::{Ticker, Timer};
use crate::version::rebalance::RunningFlush;
use crate::version::{LAST_LEVEL, Running, Version};

/// Memory of a job's output: the block that is built, the write buffer, index and filter.
pub(crate) const JOB_OUTPUT_BYTES: u64 = 4 << 20;
/// The part of that which even a job of a few records takes.
const JOB_OUTPUT_BYTES_MIN: u64 = 512 << 10;

/// Memory that `threads` threads take for the outputs of a job that reads `input_bytes` in all.
pub(crate) fn output_bytes(threads: usize, input_bytes: u64) -> u64 {
    let threads = threads as u64;
    let least = JOB_OUTPUT_BYTES_MIN * threads;
    input_bytes.saturating_add(least).min(JOB_OUTPUT_BYTES * threads)
}

/// Most compactions that are looked at for one whose outputs fit the disk.
const PICKS_MAX: usize = 8;

/// What a compaction is picked from.
struct Candidates<'a> {
    versions: &'a [&'a Version],
    /// Everything but the version.
    common: PickInput<'a>,
}

impl Candidates<'_> {
    /// Each family alone, with its index.
    fn each(&self) -> impl Iterator<Item = (usize, PickInput<'_>)> {
        let families = self.versions.iter().enumerate();
        families.map(|(at, version)| (at, PickInput { version, ..self.common }))
    }
}

/// A compaction that was picked: it is among the running jobs.
pub(crate) struct CompactionTask {
    pub(crate) job_id: u64,
    pub(crate) family: Arc<Family>,
    /// What the pick was made from; holds its files.
    pub(crate) version: Arc<Version>,
    pub(crate) pick: Pick,
    /// A user asked for it.
    pub(crate) by_hand: bool,
    /// Ends the job early.
    pub(crate) cancel: Cancel,
    /// Estimated length of its outputs, counted while it runs.
    pub(crate) room_bytes: u64,
}

impl State {
    /// The running compactions.
    pub(crate) fn compactions(&self) -> Vec<Running> {
        let kinds = self.running.iter().map(|job| &job.kind);
        kinds
            .filter_map(|kind| match kind {
                RunningKind::Compaction(running) => Some(running.clone()),
                _ => None,
            })
            .collect()
    }

    /// What running ingestions write, as compactions without inputs: nothing that is picked may
    /// write the same keys of the same level, or pass them on its way down.
    pub(crate) fn ingestions(&self) -> Vec<Running> {
        let kinds = self.running.iter().map(|job| &job.kind);
        let claims = kinds.filter_map(|kind| match kind {
            RunningKind::Ingestion(claims) => Some(claims),
            _ => None,
        });
        claims.flatten().cloned().collect()
    }

    /// Every running job that a compaction must not collide with.
    pub(crate) fn compactions_and_ingestions(&self) -> Vec<Running> {
        [self.compactions(), self.ingestions()].concat()
    }

    /// A family's running flushes.
    pub(crate) fn running_flushes(&self, of: CfId) -> Vec<RunningFlush> {
        let kinds = self.running.iter().map(|job| &job.kind);
        kinds
            .filter_map(|kind| match kind {
                RunningKind::Flush { cf, flush } if *cf == of => Some(flush.clone()),
                _ => None,
            })
            .collect()
    }

    /// The ranges of a family's running flushes.
    pub(crate) fn flush_ranges(&self, of: CfId) -> Vec<KeyRange> {
        self.running_flushes(of).into_iter().map(|flush| flush.range).collect()
    }

    /// Notes a compaction as running.
    pub(crate) fn start_compaction(
        &mut self,
        family: Arc<Family>,
        version: Arc<Version>,
        pick: Pick,
    ) -> CompactionTask {
        let job_id = self.next_job_id;
        self.next_job_id += 1;
        let kind = RunningKind::Compaction(pick.running(family.id));
        self.running.push(RunningJob { id: job_id, kind });
        let cancel = Cancel::default();
        CompactionTask { job_id, family, version, pick, by_hand: false, cancel, room_bytes: 0 }
    }
}

impl DbInner {
    /// Compactions that may run at once now: see [`compaction_jobs`]. Somebody who waits for the
    /// background gets all jobs.
    pub(crate) fn compactions_max(&self) -> usize {
        let jobs = self.options.max_background_jobs;
        if self.waiters.load(Ordering::Relaxed) > 0 {
            return jobs;
        }
        let (since_ns, interval_ns) = self.last_seal();
        compaction_jobs(jobs, since_ns, interval_ns)
    }

    /// How long ago the last memtable was sealed, and how long after the one before.
    fn last_seal(&self) -> (Option<u64>, u64) {
        let sealed_ns = self.last_seal_ns.load(Ordering::Relaxed);
        let since_ns = (sealed_ns > 0).then(|| self.clock.now_ns().saturating_sub(sealed_ns));
        (since_ns, self.seal_interval_ns.load(Ordering::Relaxed))
    }

    /// Whether memtables come one after another, so that a compaction may wait for more input.
    /// Not while somebody waits for the background, and not in manual mode, where time stands.
    pub(crate) fn is_loading(&self) -> bool {
        let (since_ns, interval_ns) = self.last_seal();
        !self.is_manual()
            && self.waiters.load(Ordering::Relaxed) == 0
            && is_loading(since_ns, interval_ns)
    }

    /// The next compaction of any family, the most urgent first; noted as running.
    pub(crate) fn next_compaction(&self, state: &mut State) -> Option<CompactionTask> {
        let mut running = state.compactions();
        let mut jobs_max = self.compactions_max();
        if running.len() >= jobs_max {
            return None;
        }
        // Claims of users and of ingestions are in the way like jobs, but take the place of none.
        let ingestions = state.ingestions();
        jobs_max += state.claims.len() + ingestions.len();
        running.extend(state.claims.iter().map(|(_, claim)| claim.clone()));
        running.extend(ingestions);
        let mut families = self.live_families();
        families.retain(|family| state.changing(family.id).is_none());
        let versions: Vec<Arc<Version>> =
            families.iter().map(|family| Arc::clone(&family.current.load().version)).collect();
        let all: Vec<&Version> = versions.iter().map(|version| &**version).collect();
        let (snapshots, visible) = self.snapshots.list(|| self.visible());
        let common = PickInput {
            version: all.first()?,
            running: &running,
            jobs_max,
            snapshots: &snapshots,
            visible,
            now_ms: self.clock.unix_ms(),
            loading: self.is_loading(),
        };
        let candidates = Candidates { versions: &all, common };
        let (at, pick) = self.pick_that_fits(&candidates)?;
        let (family, version) = (Arc::clone(&families[at]), Arc::clone(&versions[at]));
        let mut task = state.start_compaction(family, version, pick);
        self.take_room(&mut task);
        Some(task)
    }

    /// The most urgent compaction whose outputs fit the room on the disk. If none of the due ones
    /// fits, a part of one; on a disk that is nearly full also one that is not due but frees space.
    fn pick_that_fits(&self, from: &Candidates<'_>) -> Option<(usize, Pick)> {
        let room = self.compaction_room(SpaceUse::Takes);
        let mut lacking = u64::MAX;
        let mut running = from.common.running.to_vec();
        for _ in 0..PICKS_MAX {
            // A pick that does not fit counts as running, so that the next pick is another one.
            let jobs_max = from.common.jobs_max + running.len() - from.common.running.len();
            let common = PickInput { running: &running, jobs_max, ..from.common };
            let Some((at, pick)) = pick_of_all(from.versions, &common) else { break };
            let needed = room.expected(&pick);
            // Merging within L0 frees little, and joins parts that could go down alone.
            let is_detour = lacking < u64::MAX && matches!(pick, Pick::IntraL0 { .. });
            if needed <= room.bytes && !is_detour {
                self.note_lacking(0);
                return Some((at, pick));
            }
            if !is_detour {
                lacking = lacking.min(needed - room.bytes);
            }
            running.push(pick.running(from.versions[at].cf()));
        }
        let is_short = lacking < u64::MAX;
        if !is_short && self.disk.state() == SpaceState::Roomy {
            self.note_lacking(0);
            return None;
        }
        let of_each = |pick: &dyn Fn(&PickInput<'_>) -> Option<Pick>| {
            from.each().find_map(|(at, input)| Some((at, pick(&input)?)))
        };
        let with_reserve = self.compaction_room(SpaceUse::Frees);
        let part = |input: &PickInput<'_>| pick_part(input, &room);
        let freeing = |input: &PickInput<'_>| pick_freeing(input, &with_reserve);
        let recut = |input: &PickInput<'_>| {
            pick_recut(input, &self.room_cuts(input.version), &with_reserve)
        };
        let due = if is_short { of_each(&part) } else { None };
        let tiny = |input: &PickInput<'_>| pick_tiny(input, &with_reserve);
        let found = due
            .or_else(|| of_each(&freeing))
            .or_else(|| of_each(&recut))
            .or_else(|| of_each(&tiny));
        let is_stuck = is_short && found.is_none() && from.common.running.is_empty();
        self.note_lacking(if is_stuck { lacking } else { 0 });
        found
    }

    /// Runs a picked compaction and installs it; afterwards it is not running any more. Returns the
    /// numbers of the files that it wrote.
    pub(crate) fn run_compaction_task(&self, task: &CompactionTask) -> Result<Vec<u64>> {
        let result = contained(&format!("a compaction of \"{}\"", task.family.name), || {
            self.fault_point("compaction.picked")?;
            self.compact_and_install(task)
        });
        self.end_compaction(task);
        result
    }

    /// Takes a compaction that has ended off the running jobs.
    pub(crate) fn end_compaction(&self, task: &CompactionTask) {
        self.return_room(task);
        let mut state = self.state.lock();
        state.running.retain(|job| job.id != task.job_id);
        drop(state);
        self.recompute_stall(&task.family);
        self.progress.notify_all();
    }

    fn compact_and_install(&self, task: &CompactionTask) -> Result<Vec<u64>> {
        if let Pick::Drop { files } = &task.pick {
            self.fault_point("drop.before_install")?;
            self.install_compaction(task, None)?;
            self.stats.add(Ticker::TablesDropped, files.len() as u64);
            let now_ms = self.clock.unix_ms();
            let expired = files.iter().map(|(_, file)| &file.content);
            let expired = expired.filter(|content| content.expired_quarters(now_ms) == 4);
            self.stats.add(Ticker::RecordsExpired, expired.map(|content| content.expiring).sum());
            return Ok(Vec::new());
        }
        if let Pick::TrivialMove { .. } = &task.pick {
            self.stats.add(Ticker::TrivialMoves, 1);
            self.install_compaction(task, None)?;
            self.tell_levels(task);
            return Ok(Vec::new());
        }
        let expected = self.compaction_room(SpaceUse::Frees).expected(&task.pick);
        self.ensure_room(expected, "a compaction")?;
        let spec = self.compaction_spec(task);
        let compacted = self.run_compaction(task, &spec);
        self.note_estimate(compacted.as_ref().err());
        let compacted = compacted?;
        let installed = self
            .fault_point("compaction.before_install")
            .and_then(|()| self.install_compaction(task, Some(&compacted)));
        if installed.is_err() {
            self.discard(&compacted.output);
        }
        installed.map(|()| compacted.output.files.iter().map(|meta| meta.no).collect())
    }

    /// Tells the file system where the files of a trivial move are now: they may belong elsewhere.
    fn tell_levels(&self, CompactionTask { family, pick, .. }: &CompactionTask) {
        let (from, to) = (pick.from() as u8, pick.to() as u8);
        let purpose = IoPurpose::Compaction { from, to };
        let context = IoContext::sst(purpose, to).of_family(family.id.0);
        for (_, file) in pick.inputs() {
            self.fs.reassign(&self.path_of(&sst_name(file.file_no())), context);
        }
    }

    fn compaction_spec(&self, task: &CompactionTask) -> CompactionSpec {
        let CompactionTask { family, version, pick, .. } = task;
        let range = pick.range();
        let to = pick.to();
        let cuts = match to {
            0 => {
                let mut cuts = self.state.lock().l0_cuts(version);
                cuts.extend(self.room_cuts(version));
                cuts.sort_unstable();
                cuts.dedup();
                cuts
            }
            to if to == version.base_level() => version.map().boundaries().to_vec(),
            _ => Vec::new(),
        };
        let below = match pick {
            Pick::IntraL0 { .. } => Below::Everything,
            _ => Below::Runs(
                (to + 1..LEVELS)
                    .map(|level| {
                        version.overlapping(level, &range).iter().map(|f| range_of(f)).collect()
                    })
                    .collect(),
            ),
        };
        let grandparents = if to > 0 && to < LAST_LEVEL {
            version
                .overlapping(to + 1, &range)
                .iter()
                .filter_map(|file| {
                    Some(Grandparent { end: range_of(file).end?, bytes: file.size_bytes })
                })
                .collect()
        } else {
            Vec::new()
        };
        let inputs = pick
            .inputs()
            .map(|(level, file)| Input { level: level as u8, meta: file.meta().clone() })
            .collect();
        CompactionSpec {
            cf: family.id.0,
            from: pick.from() as u8,
            inputs,
            range,
            subrange: None,
            retention: self.retention(family, below),
            output: self.output_spec(family, to, cuts, grandparents, pick.input_bytes()),
            readahead_bytes: self.readahead_bytes(pick.inputs().count()),
            direct_reads: self.options.direct_background_io,
        }
    }

    /// Readahead of each of `inputs` files, in bytes.
    fn readahead_bytes(&self, inputs: usize) -> u32 {
        let wanted = self.options.compaction_readahead_bytes;
        self.memory_shares().readahead_bytes(wanted, inputs) as u32
    }

    /// What all background jobs are charged for at most, with the default number of inputs each.
    pub(crate) fn job_bytes_max(&self) -> u64 {
        let readahead = self.memory_shares().readahead_bytes_max();
        let jobs = self.options.max_background_jobs as u64;
        jobs.saturating_mul(readahead + JOB_OUTPUT_BYTES)
    }

    fn install_compaction(
        &self,
        task: &CompactionTask,
        compacted: Option<&Compacted>,
    ) -> Result<()> {
        let CompactionTask { family, pick, .. } = task;
        let (cf, to) = (family.id, pick.to());
        let mut edit = VersionEdit::new();
        let mut inputs = Vec::new();
        for (level, file) in pick.inputs() {
            edit.remove_file(cf, level, file.file_no());
            inputs.push(file.no);
        }
        match compacted {
            Some(compacted) => {
                for meta in &compacted.output.files {
                    edit.add_file(cf, to, meta.clone());
                }
            }
            None if matches!(pick, Pick::Drop { .. }) => {}
            None => {
                for (_, file) in pick.inputs() {
                    edit.add_file(cf, to, file.meta().clone());
                }
            }
        }
        {
            let mut manifest = self.manifest.lock();
            family.check_alive()?;
            // A user's thread may get here after the close.
            self.check_open()?;
            let built = manifest.apply(edit)?;
            self.republish_built(&mut self.state.lock(), built);
        }
        let moved = Compacted { output: JobOutput::default(), threads_ns: vec![0] };
        self.tell_compaction(task, inputs, compacted.unwrap_or(&moved));
        Ok(())
    }

    /// Counts an installed compaction and tells of it.
    fn tell_compaction(&self, task: &CompactionTask, inputs: Vec<u64>, compacted: &Compacted) {
        let Compacted { output, threads_ns } = compacted;
        self.stats.add(Ticker::Compactions, 1);
        if threads_ns.len() > 1 {
            self.stats.add(Ticker::Subcompactions, threads_ns.len() as u64);
        }
        self.stats.add(Ticker::CompactionBytesRead, output.bytes_read);
        self.stats.add(Ticker::CompactionBytesWritten, output.bytes_written);
        self.count_job(output);
        self.stats.record(Timer::Compaction, output.duration_ns);
        let bucket = match &task.pick {
            Pick::L0ToBase { bucket, .. } | Pick::IntraL0 { bucket, .. } => Some(*bucket),
            _ => None,
        };
        self.tell(&Event::CompactionInstalled {
            cf: task.family.id,
            from: task.pick.from(),
            to: task.pick.to(),
            bucket,
            inputs,
            outputs: output.files.iter().map(|meta| meta.no).collect(),
            bytes_read: output.bytes_read,
            bytes_written: output.bytes_written,
            duration_ns: output.duration_ns,
            threads_ns: threads_ns.clone(),
        });
    }

    pub(crate) fn count_job(&self, output: &JobOutput) {
        self.stats.add(Ticker::RecordsDropped, output.counts.dropped.total());
        self.stats.add(Ticker::RecordsExpired, output.counts.dropped.expired);
        if output.counts.merge_errors > 0 {
            self.stats.add(Ticker::MergeErrors, output.counts.merge_errors);
            let error = output.counts.merge_error.clone().unwrap_or_default();
            tracing::warn!(error, "a merge operator refused operands; they were kept");
        }
    }

    /// What a job may forget now.
    pub(crate) fn retention(&self, family: &Family, below: Below) -> Retention {
        let (snapshots, visible) = self.snapshots.list(|| self.visible());
        Retention {
            visible_seq: visible.0,
            snapshots: snapshots.into_iter().map(|seq| seq.0).collect(),
            below,
            now_ms: self.clock.unix_ms(),
            merge_operator: family.options.merge_operator.clone(),
            compaction_filter: family.options.compaction_filter.clone(),
        }
    }

    /// How a job that reads `input_bytes` writes its outputs.
    pub(crate) fn output_spec(
        &self,
        family: &Family,
        level: usize,
        cuts: Vec<Vec<u8>>,
        grandparents: Vec<Grandparent>,
        input_bytes: u64,
    ) -> OutputSpec {
        let options = &family.options;
        let on_disk = self.disk.table_bytes(options.target_file_bytes);
        // Tables of L0 are cut on small disks alone.
        let is_whole = level == 0 && on_disk == options.target_file_bytes;
        let table_bytes = match level {
            0 => on_disk,
            _ => self.memory_shares().table_bytes(on_disk),
        };
        let count = OutputSpec::file_numbers_wanted(input_bytes, table_bytes, cuts.len());
        let first = self.file_numbers.allocate_many(count).0;
        let target_file_bytes = if is_whole { u64::MAX } else { table_bytes };
        OutputSpec {
            dir: self.dir.clone(),
            cf_name: family.name.clone(),
            level: level as u8,
            file_numbers: FileNumbers { first, count },
            unique_seed: self.unique_seed(),
            target_file_bytes,
            cuts,
            grandparents,
            block_bytes: options.block_bytes as u32,
            compression: if level == LAST_LEVEL {
                options.compression_last
            } else {
                options.compression
            },
            bloom_bits_per_key: options.bloom_bits_per_key,
            created_unix_ms: self.clock.unix_ms(),
            direct_io: self.options.direct_background_io,
        }
    }

    /// What a job that runs here is given.
    pub(crate) fn job_context<'a>(&self, shards: &'a dyn ShardSource) -> JobContext<'a> {
        JobContext {
            fs: Arc::clone(&self.fs),
            registry: self.registry.clone(),
            clock: Arc::clone(&self.clock),
            limiter: Some(Arc::clone(&self.limiter)),
            cancel: Cancel::under(&self.closing),
            shards,
            cache: Arc::clone(&self.cache),
            warm: false,
            budget: Arc::clone(&self.budget),
            more_file_numbers: None,
            progress: Arc::default(),
        }
    }
}
