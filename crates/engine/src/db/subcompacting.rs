//! Running a compaction: whole, or cut into parts of its keys that run at once (*subcompactions*).
//!
//! Which jobs are cut, with `DbOptions::subcompactions_max` above 1: those out of L0, and those
//! that a user asked for (`compact_range`), as in RocksDB. Other jobs below L0 are a file or a few
//! with what they overlap, and many of them run at once anyway; merges within L0 make one file.
//! Where the cuts are: [`crate::compaction::subcompaction`].
//!
//! 1. Each part is a job of its own through the database's executor: its own file numbers, seed of
//!    unique ids, context and counters; spec, snapshots and rate limiter are shared.
//! 2. The first part runs on the thread that has the job, each other one on a thread of its own,
//!    in addition to the background workers; nobody returns before all have ended. For scheduling
//!    it is one running job. In manual mode the parts run one after another on the calling
//!    thread, so that a step does the same each time.
//! 3. The first part that fails cancels the others, its error is the job's. Nothing is installed
//!    then, and the outputs of the parts that had ended well are removed.
//! 4. Together the parts must have read every record of the inputs, as a whole job must.
//!
//! Cost beside a whole job: index, filter and range tombstones of an input are read once per part
//! that it reaches into, a data block on a boundary twice, and each part ends in a file that may
//! be short. Memory: readahead and output buffers per part, held from the budget.

use std::sync::Arc;

use archipelago_base::budget::MemoryClass;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{Error, Result};
use parking_lot::Mutex;

use crate::compaction::job::{CompactionSpec, check_complete};
use crate::compaction::pick::Pick;
use crate::compaction::subcompaction::{ANCHORS_PER_FILE, plan_subcompactions};
use crate::db::compacting::{CompactionTask, JOB_OUTPUT_BYTES};
use crate::db::inner::DbInner;
use crate::db::open::FaultPoint;
use crate::flush::NoShards;
use crate::job::executor::{self, JobExecutor};
use crate::job::spec::FileNumbers;
use crate::job::{Cancel, JobContext, JobOutput};
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
        let buffers = spec.inputs.len() as u64 * self.options.compaction_readahead_bytes;
        let each = buffers + JOB_OUTPUT_BYTES;
        let _held = self.budget.hold(MemoryClass::Job, each * ranges.len() as u64);
        if ranges.len() > 1 {
            return self.run_parts(spec, ranges);
        }
        let output = self.executor.compact(spec, &self.job_context(&NoShards))?;
        executor::check_compaction(&output, spec)?;
        let threads_ns = vec![output.duration_ns];
        Ok(Compacted { output, threads_ns })
    }

    fn plan_parts(&self, task: &CompactionTask, spec: &CompactionSpec) -> Result<Vec<KeyRange>> {
        let most = self.options.subcompactions_max;
        let may_be_cut = match &task.pick {
            Pick::L0ToBase { .. } => true,
            Pick::Level { .. } => task.by_hand,
            Pick::IntraL0 { .. } | Pick::TrivialMove { .. } | Pick::Bottom { .. } => false,
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

    fn run_parts(&self, spec: &CompactionSpec, ranges: Vec<KeyRange>) -> Result<Compacted> {
        let started_ns = self.clock.now_ns();
        let cancel = Cancel::under(&self.closing);
        let parts: Vec<Part> =
            ranges.into_iter().map(|range| self.part(spec, range, &cancel)).collect();
        let group = Arc::new(Group {
            executor: Arc::clone(&self.executor),
            fault: self.fault.clone(),
            cancel,
            state: Mutex::new(GroupState { failed: None, outputs: vec![None; parts.len()] }),
        });
        let threads = if self.is_manual() { Vec::new() } else { group.spawn_all_but_first(&parts) };
        let here = if self.is_manual() { &parts[..] } else { &parts[..1] };
        here.iter().enumerate().for_each(|(index, part)| group.run(index, part));
        for thread in threads {
            if let Err(error) = thread.join() {
                group.fail(error);
            }
        }
        let GroupState { failed, outputs } = std::mem::take(&mut *group.state.lock());
        let outputs: Vec<JobOutput> = outputs.into_iter().flatten().collect();
        let threads_ns = outputs.iter().map(|output| output.duration_ns).collect();
        let duration_ns = self.clock.now_ns().saturating_sub(started_ns);
        let output = JobOutput::joined(outputs, duration_ns);
        let complete = match failed {
            Some(error) => Err(error),
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
    fn part(&self, spec: &CompactionSpec, range: KeyRange, cancel: &Cancel) -> Part {
        let mut spec = CompactionSpec { subrange: Some(range), ..spec.clone() };
        // As many numbers as the whole would need: how much lies in a part is an estimate.
        let count = spec.output.file_numbers.count;
        let first = self.file_numbers.allocate_many(count).0;
        spec.output.file_numbers = FileNumbers { first, count };
        spec.output.unique_seed = self.unique_seed();
        let context = JobContext { cancel: cancel.clone(), ..self.job_context(&NoShards) };
        Part(Arc::new((spec, context)))
    }
}

/// A part and what it is given.
#[derive(Clone)]
struct Part(Arc<(CompactionSpec, JobContext<'static>)>);

/// What the threads of one compaction share.
struct Group {
    executor: Arc<dyn JobExecutor>,
    fault: Option<FaultPoint>,
    cancel: Cancel,
    state: Mutex<GroupState>,
}

#[derive(Default)]
struct GroupState {
    /// The first failure; what fails after it fails because of it.
    failed: Option<Error>,
    /// By part, once it has ended well.
    outputs: Vec<Option<JobOutput>>,
}

impl Group {
    /// Starts the parts from the second on, each on a thread.
    fn spawn_all_but_first(self: &Arc<Self>, parts: &[Part]) -> Vec<Joiner> {
        let mut threads = Vec::with_capacity(parts.len() - 1);
        for (index, part) in parts.iter().enumerate().skip(1) {
            let (group, part) = (Arc::clone(self), part.clone());
            let body = Box::new(move || group.run(index, &part));
            match SystemSpawn.spawn(&format!("archi-sub-{index}"), body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    self.fail(error);
                    break;
                }
            }
        }
        threads
    }

    /// Runs a part and notes how it ended.
    fn run(&self, index: usize, part: &Part) {
        let (spec, context) = &*part.0;
        let ran = context
            .check_cancelled()
            .and_then(|()| self.fault.as_ref().map_or(Ok(()), |fault| fault("compaction.part")))
            .and_then(|()| self.executor.compact(spec, context))
            .and_then(|output| executor::check_compaction(&output, spec).map(|()| output));
        match ran {
            Ok(output) => self.state.lock().outputs[index] = Some(output),
            Err(error) => self.fail(error),
        }
    }

    fn fail(&self, error: Error) {
        self.state.lock().failed.get_or_insert(error);
        self.cancel.cancel();
    }
}
