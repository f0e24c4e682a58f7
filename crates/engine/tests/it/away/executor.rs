//! An executor that runs flushes at the nodes of the shards, and misbehaves as its [`Whim`] says.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::budget::ByteBudget;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::compaction::job::CompactionSpec;
use archipelago_engine::executor::wire::{self, Message};
use archipelago_engine::executor::{JobExecutor, JobKind, LocalExecutor};
use archipelago_engine::flush::{FlushSpec, run_flush};
use archipelago_engine::gc::job::GcSpec;
use archipelago_engine::job::{Cancel, JobContext, JobOutput, KnownKeys, ShardRef, ShardSource};
use archipelago_engine::memtable::SealedShard;
use archipelago_engine::sst::BlockCache;
use parking_lot::Mutex;

use super::{FakeStore, Mood};

/// How a [`FakeExecutor`] misbehaves. Each rate is one in this many flushes; 0 is never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whim {
    /// Flushes that it takes in parallel.
    pub(crate) room: usize,
    /// Flushes that return nothing, after all or none of their outputs were written. The database
    /// plans them again.
    pub(crate) silence: u32,
    /// Flushes that fail.
    pub(crate) fail: u32,
    /// Flushes that report damaged inputs.
    pub(crate) corrupt: u32,
    /// Flushes whose output is not that of their spec.
    pub(crate) wrong: u32,
    /// Flushes that run in the process of the database instead.
    pub(crate) here: u32,
    /// Flushes during which a node dies. The database is not notified.
    pub(crate) node_dies: u32,
    /// Flushes that panic.
    pub(crate) panic: u32,
    /// Condition that each flush waits for before it begins, but at most for `wait_max`.
    pub(crate) waits_for: fn(&Ran) -> bool,
    pub(crate) wait_max: Duration,
}

impl Whim {
    /// A [`Whim`] without any misbehaviour.
    pub(crate) const SOUND: Self = Self {
        room: 8,
        silence: 0,
        fail: 0,
        corrupt: 0,
        wrong: 0,
        here: 0,
        node_dies: 0,
        panic: 0,
        waits_for: |_| true,
        wait_max: Duration::ZERO,
    };
    /// A [`Whim`] with every misbehaviour from time to time.
    pub(crate) const ILL: Self =
        Self { silence: 4, fail: 6, corrupt: 9, wrong: 6, here: 5, panic: 20, ..Self::SOUND };
}

/// Counts of what a [`FakeExecutor`] did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ran {
    pub(crate) away: u64,
    pub(crate) here: u64,
    pub(crate) failed: u64,
    pub(crate) planned_again: u64,
    /// Largest number of memtables, and of shards, in one flush.
    pub(crate) memtables_max: usize,
    pub(crate) shards_max: usize,
    /// Largest number of flushes in parallel; `at_once` counts those that run now.
    pub(crate) at_once_max: usize,
    at_once: usize,
    /// Whether the test has called [`FakeExecutor::release`].
    pub(crate) is_released: bool,
}

/// Runs flushes of shards that the nodes of a store hold, from the images there and nothing else.
pub(crate) struct FakeExecutor {
    store: Arc<FakeStore>,
    whim: Mutex<Whim>,
    rng: Mutex<fastrand::Rng>,
    ran: Mutex<Ran>,
}

impl FakeExecutor {
    /// The executor of a database with that store; `None` if the mood has none.
    pub(crate) fn of(seed: u64, store: &Arc<FakeStore>, mood: Mood) -> Option<Arc<Self>> {
        let whim = Mutex::new(mood.whim?);
        let rng = Mutex::new(fastrand::Rng::with_seed(seed));
        let ran = Mutex::default();
        Some(Arc::new(Self { store: Arc::clone(store), whim, rng, ran }))
    }

    pub(crate) fn ran(&self) -> Ran {
        *self.ran.lock()
    }

    pub(crate) fn set_whim(&self, whim: Whim) {
        *self.whim.lock() = whim;
    }

    /// Lets the flushes go on that wait for this.
    pub(crate) fn release(&self) {
        self.ran.lock().is_released = true;
    }

    fn wait(&self, whim: &Whim) {
        let clock = SystemClock::new();
        let is_over = || u128::from(clock.now_ns()) >= whim.wait_max.as_nanos();
        while !is_over() && !(whim.waits_for)(&self.ran()) {
            clock.sleep(Duration::from_millis(1));
        }
    }

    fn is_due(&self, n: u32) -> bool {
        n > 0 && self.rng.lock().u32(..n) == 0
    }

    fn flush_away(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        let whim = *self.whim.lock();
        self.wait(&whim);
        let fails = |kind, text: &'static str| {
            self.ran.lock().failed += 1;
            Err(Error::new(kind, text))
        };
        if self.is_due(whim.fail) {
            return fails(ErrorKind::Io, "the executor fails");
        }
        if self.is_due(whim.corrupt) {
            return fails(ErrorKind::Corrupt, "the executor finds damage");
        }
        assert!(!self.is_due(whim.panic), "the executor panics");
        let is_silent = self.is_due(whim.silence);
        if is_silent && self.rng.lock().bool() {
            self.ran.lock().planned_again += 1;
            return Err(Error::busy("the executor says nothing"));
        }
        if self.is_due(whim.node_dies) {
            self.store.lose_any();
        }
        let budget = ByteBudget::unlimited();
        let images = Images(&self.store);
        let own = JobContext {
            fs: Arc::clone(&context.fs),
            registry: context.registry.clone(),
            clock: Arc::clone(&context.clock),
            limiter: None,
            cancel: Cancel::default(),
            shards: &images,
            cache: BlockCache::new(1 << 20, &budget),
            warm: false,
            budget,
            more_file_numbers: None,
            value_keys: KnownKeys::default(),
            progress: Arc::default(),
        };
        let mut output = through_wire(&run_flush(&through_wire(spec), &own)?);
        if is_silent {
            // The next execution of the job must not touch these files.
            self.ran.lock().planned_again += 1;
            return Err(Error::busy("the executor says nothing, and has done it all"));
        }
        if self.is_due(whim.wrong) {
            self.ran.lock().failed += 1;
            match self.rng.lock().u32(..3) {
                0 => output.counts.records_in -= 1,
                1 => output.files.iter_mut().for_each(|file| file.no += 1_000_000),
                _ => output.files.iter_mut().for_each(|file| file.size_bytes += 1),
            }
            return Ok(output);
        }
        self.ran.lock().away += 1;
        Ok(output)
    }
}

/// A message as it arrives in another process.
fn through_wire<T: Message>(message: &T) -> T {
    wire::decode(&wire::encode(message).unwrap()).unwrap()
}

/// The images at the nodes.
struct Images<'a>(&'a FakeStore);

impl ShardSource for Images<'_> {
    fn shard(&self, shard: &ShardRef) -> Result<Arc<dyn SealedShard>> {
        match self.0.image(shard) {
            Some(image) => Ok(image),
            None => Err(Error::new(ErrorKind::Io, "the node is gone")),
        }
    }
}

impl JobExecutor for FakeExecutor {
    fn flush(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        let here = self.whim.lock().here;
        let is_away = spec.shards.iter().all(|shard| self.store.image(shard).is_some());
        if !is_away || self.is_due(here) {
            self.ran.lock().here += 1;
            return LocalExecutor.flush(spec, context);
        }
        {
            let mut memtables: Vec<u64> = spec.shards.iter().map(|shard| shard.memtable).collect();
            memtables.dedup();
            let mut ran = self.ran.lock();
            ran.memtables_max = ran.memtables_max.max(memtables.len());
            ran.shards_max = ran.shards_max.max(spec.shards.len());
            ran.at_once += 1;
            ran.at_once_max = ran.at_once_max.max(ran.at_once);
        }
        let _running = Running(&self.ran);
        self.flush_away(spec, context)
    }

    fn compact(&self, spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.compact(spec, context)
    }

    fn gc(&self, spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.gc(spec, context)
    }

    fn room(&self, kind: JobKind) -> usize {
        if kind == JobKind::Flush { self.whim.lock().room } else { 0 }
    }

    fn plans_again(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::Busy
    }
}

/// A flush that runs, until this is dropped.
struct Running<'a>(&'a Mutex<Ran>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().at_once -= 1;
    }
}
