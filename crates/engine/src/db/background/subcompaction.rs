//! Running a compaction: whole, or cut into parts of its keys that run at once (*subcompactions*).
//!
//! Which jobs are cut, with `DbOptions::subcompactions_max` above 1: those out of L0, and those
//! that a user asked for (`compact_range`), as in RocksDB. Other jobs below L0 are a file or a few
//! with what they overlap, and many of them run at once anyway; merges within L0 make one file.
//! Where the cuts are: [`crate::compaction::subcompaction`].
//!
//! Whatever that setting, a job out of L0 whose bucket is about to be split is cut where the bucket
//! will be ([`crate::db::background::rebalance`]), into as many parts as jobs are idle: the split
//! waits for this job, and a bucket that takes most of the load leaves the other jobs without work.
//!
//! 1. Each part is a job of its own through the database's executor: its own file numbers, seed of
//!    unique ids, context and counters; spec, snapshots and rate limiter are shared.
//! 2. They run as [`crate::db::background::parallel_job`] says. If one fails nothing is installed,
//!    and the outputs of the parts that had ended well are removed.
//! 3. Together the parts must have read every record of the inputs, as a whole job must.
//!
//! Cost beside a whole job: index, filter and range tombstones of an input are read once per part
//! that it reaches into, a data block on a boundary twice, and each part ends in a file that may
//! be short. Memory: readahead and output buffers per part, held from the budget.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::Result;
use archipelago_base::budget::MemoryClass;

use crate::border::Border;
use crate::compaction::job::{CompactionSpec, check_complete};
use crate::compaction::pick::Pick;
use crate::compaction::subcompaction::{ANCHORS_PER_FILE, parts_between, plan_subcompactions};
use crate::db::background::compaction::{CompactionTask, output_bytes};
use crate::db::background::parallel_job::Work;
use crate::db::inner::DbInner;
use crate::db::state::job_threads::HandsKind;
use crate::executor;
use crate::job::spec::FileNumbers;
use crate::job::{Cancel, JobContext, JobOutput, NoShards};
use crate::key::KeyRange;

/// What a compaction gave back, checked.
pub(crate) struct Compacted {
    pub(crate) output: JobOutput,
    /// How long each of its threads was busy: one entry, or one per part.
    pub(crate) threads_ns: Vec<u64>,
}

impl DbInner {
    /// Runs the compaction of `spec`, in parts if it is worth it.
    pub(crate) fn run_compaction(
        &self,
        task: &CompactionTask,
        spec: &CompactionSpec,
    ) -> Result<Compacted> {
        let ranges = self.plan_parts(task, spec)?;
        let threads = ranges.len().max(1);
        let readahead = spec.open_at_once() * u64::from(spec.readahead_bytes) * threads as u64;
        let readahead = readahead.min(spec.input_bytes());
        let bytes = readahead + output_bytes(threads, spec.input_bytes());
        let _held = self.budget.hold(MemoryClass::Job, bytes);
        let cancel = Cancel::under(&self.closing).linked_to(&task.cancel);
        let works = match ranges.len() {
            0 | 1 => vec![self.compaction_work(spec.clone(), &cancel)],
            _ => ranges.into_iter().map(|range| self.part(spec, range, &cancel)).collect(),
        };
        self.run_works(spec, works, cancel, self.hands_of(task))
    }

    /// Who runs it: what somebody waits for is not left to threads of low priority.
    fn hands_of(&self, task: &CompactionTask) -> HandsKind {
        let is_awaited = task.by_hand
            || self.waiters.load(Ordering::Relaxed) > 0
            || self.is_compaction_urgent(&task.family);
        if is_awaited { HandsKind::Urgent } else { HandsKind::Patient }
    }

    fn plan_parts(&self, task: &CompactionTask, spec: &CompactionSpec) -> Result<Vec<KeyRange>> {
        if let Some(parts) = self.planned_parts(task, spec) {
            return Ok(parts);
        }
        let most = self.options.subcompactions_max;
        let may_be_cut = match &task.pick {
            Pick::L0ToBase { .. } => true,
            Pick::Level { .. } | Pick::Rewrite { .. } => task.by_hand,
            Pick::IntraL0 { .. } | Pick::TrivialMove { .. } | Pick::Drop { .. } => false,
        };
        let least = spec.output.target_file_bytes;
        let mut anchors = Vec::new();
        if most > 1 && may_be_cut && spec.input_bytes() / 2 >= least {
            for (_, file) in task.pick.inputs() {
                anchors.extend(self.tables.get(file)?.anchors(ANCHORS_PER_FILE));
            }
        }
        Ok(plan_subcompactions(anchors, most, least, &spec.range))
    }

    /// The parts of a job that clears a bucket for a split; `None` if there is no split to be made
    /// there, no idle job, or too little to share.
    fn planned_parts(&self, task: &CompactionTask, spec: &CompactionSpec) -> Option<Vec<KeyRange>> {
        if !matches!(task.pick, Pick::L0ToBase { .. }) {
            return None;
        }
        let (cuts, running) = {
            let state = self.state.lock();
            (state.planned_cuts(&task.version), state.compactions().len())
        };
        let idle = self.compactions_max().saturating_sub(running);
        let worth = spec.input_bytes() / spec.output.target_file_bytes.max(1);
        let most = (idle + 1).min(usize::try_from(worth).unwrap_or(usize::MAX));
        let parts = parts_between(&spec.range, &cuts, most);
        (parts.len() > 1).then_some(parts)
    }

    fn run_works(
        &self,
        spec: &CompactionSpec,
        works: Vec<Work>,
        cancel: Cancel,
        kind: HandsKind,
    ) -> Result<Compacted> {
        let started_ns = self.clock.now_ns();
        let threads = works.len();
        // Of about the same size each.
        let works = works.into_iter().map(|work| (0, work)).collect();
        let ended = self.run_together(kind, cancel, works, threads, || Ok(()));
        let (outputs, failed) = ended.into_parts();
        let threads_ns = outputs.iter().map(|output| output.duration_ns).collect();
        let duration_ns = self.clock.now_ns().saturating_sub(started_ns);
        let output = JobOutput::joined(outputs, duration_ns);
        let complete = match failed {
            Some(error) => Err(error),
            // A job over the whole has looked itself.
            None if threads == 1 => Ok(()),
            None => check_complete(spec, output.counts.records_in)
                .map_err(|error| error.context_at(spec.describe())),
        };
        if let Err(error) = complete {
            self.discard(&output);
            return Err(error);
        }
        Ok(Compacted { output, threads_ns })
    }

    /// The job over the keys of `range`.
    fn part(&self, spec: &CompactionSpec, range: KeyRange, cancel: &Cancel) -> Work {
        let mut spec = CompactionSpec { subrange: Some(range), ..spec.clone() };
        // As many numbers as the whole would need: how much lies in a part is an estimate.
        let count = spec.output.file_numbers.count;
        let first = self.file_numbers.allocate_many(count).0;
        spec.output.file_numbers = FileNumbers { first, count };
        spec.output.unique_seed = self.unique_seed();
        let (work, fault) = (self.compaction_work(spec, cancel), self.fault.clone());
        Box::new(move || {
            fault.as_ref().map_or(Ok(()), |fault| fault("compaction.part"))?;
            work()
        })
    }

    /// A job for the executor.
    fn compaction_work(&self, spec: CompactionSpec, cancel: &Cancel) -> Work {
        let context = JobContext { cancel: cancel.clone(), ..self.job_context(&NoShards) };
        let executor = Arc::clone(&self.executor);
        let border = Border::new("job executor", executor.name(), Some(&spec.output.cf_name));
        Box::new(move || {
            let output = border.call(|| executor.compact(&spec, &context))??;
            executor::check_compaction(&output, &spec)?;
            Ok(output)
        })
    }
}
