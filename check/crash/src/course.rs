//! The course of a run over the processes of a cluster: its seeds, and the operations of its
//! owners. The sessions of both kinds of cluster have one.

use std::path::{Path, PathBuf};

use archipelago::Rng;

use crate::acks;
use crate::arguments::Arguments;
use crate::check::Progress;
use crate::children::Share;
use crate::cycles::{sleep_ms, text};
use crate::writers::ThreadStart;

/// Seeds, acknowledged operations, and the numbers of a run.
pub(crate) struct Course<'a> {
    arguments: &'a Arguments,
    dir: PathBuf,
    /// Seeds of databases and cycles. So no cycle depends on the number of choices in the previous
    /// cycle.
    seeds: Rng,
    /// Choices of the present cycle.
    rng: Rng,
    progress: Progress,
    /// Number of the first operation of the cycle, by thread.
    first: Vec<u64>,
    /// Acknowledged operations of all cycles that were counted.
    operations: u64,
}

impl<'a> Course<'a> {
    /// A run in `dir` that follows `seeds`.
    pub(crate) fn new(arguments: &'a Arguments, dir: &Path, mut seeds: Rng) -> Self {
        Self {
            arguments,
            dir: dir.to_owned(),
            rng: Rng::with_seed(seeds.u64(..)),
            seeds,
            progress: Progress::new(0, arguments.threads),
            first: Vec::new(),
            operations: 0,
        }
    }

    /// Begins a new database, and its first cycle.
    pub(crate) fn begin_database(&mut self) -> Result<(), String> {
        self.progress = Progress::new(self.seeds.u64(..), self.arguments.threads);
        self.begin_cycle()
    }

    /// Begins a cycle, in which no operation is acknowledged yet.
    pub(crate) fn begin_cycle(&mut self) -> Result<(), String> {
        self.rng = Rng::with_seed(self.seeds.u64(..));
        self.first = self.progress.done.clone();
        acks::create(&self.acks_path()).map_err(text)
    }

    /// Adds the operations of the cycle, which a check has compared, to those of the run.
    pub(crate) fn count_cycle(&mut self) {
        let sum = |numbers: &[u64]| numbers.iter().sum::<u64>();
        self.operations += sum(&self.progress.done) - sum(&self.first);
    }

    /// Acknowledged operations of all cycles that were counted.
    pub(crate) fn operations(&self) -> u64 {
        self.operations
    }

    /// The arguments of the run.
    pub(crate) fn arguments(&self) -> &'a Arguments {
        self.arguments
    }

    /// The directory of the run.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The choices of the present cycle.
    pub(crate) fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Seed of the database's settings.
    pub(crate) fn seed(&self) -> u64 {
        self.progress.seed
    }

    /// The contents that the database must hold.
    pub(crate) fn progress(&mut self) -> &mut Progress {
        &mut self.progress
    }

    /// File in which owners record the acknowledged operations of the cycle.
    pub(crate) fn acks_path(&self) -> PathBuf {
        self.dir.join("acks")
    }

    /// Number of acknowledged operations by thread, with those of earlier cycles.
    pub(crate) fn acknowledged(&self) -> Result<Vec<u64>, String> {
        acks::read(&self.acks_path(), &self.first).map_err(text)
    }

    /// The first operation of each thread of a share.
    pub(crate) fn threads(&self, share: Share) -> Vec<ThreadStart> {
        share.threads(&self.first)
    }

    /// Largest number of operations of a thread in a cycle.
    pub(crate) fn ops_per_thread(&self) -> u64 {
        self.arguments.ops_per_cycle.div_ceil(self.arguments.threads)
    }

    /// Lets the processes run for a while.
    pub(crate) fn run_on(&mut self) {
        sleep_ms(self.rng.u64(..self.arguments.kill_after_ms_max.max(1)));
    }
}
