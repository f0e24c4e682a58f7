//! The owner of a database in a process of its own: it opens the database, and writes and reads
//! from several threads until it is killed.
//!
//! Failure: any error is a violation, because no fault of another process may fail a write or a
//! read, or make a read wrong.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago::env::local::LocalFs;
use archipelago::{Db, Joiner, Result, Rng, Spawn as _, Storage, SystemClock, SystemSpawn, Ticker};
use archipelago_compute::Offloaded;
use archipelago_offload::message_points::MessageMoment;
use archipelago_offload::net::{OffloadMode, OwnerSettings};
use archipelago_offload::shard_owner::StayingMemtables;

use super::steps::Step;
use super::summary::Figures;
use crate::acks::AckWriter;
use crate::children::{
    AtStep, MOMENTS, OPENED, OPENING, StepMoment, StepTrigger, Words, chosen, moment_number,
    note_message, say,
};
use crate::reads::Reads;
use crate::settings::{Offloading, Over, open};
use crate::writers::{Refusals, ThreadStart, WriterPlan, Writers};

/// Longest time of a read while processes are away.
const READ_LIMIT: Duration = Duration::from_secs(20);
/// Pause between two lines with figures.
const FIGURES_PAUSE: Duration = Duration::from_millis(20);

/// Jobs and memtables that leave the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaving {
    pub(super) mode: OffloadMode,
    /// Memory nodes that get each shard.
    pub(super) copies: u32,
    /// Bytes of the cache of key offsets.
    pub(super) cache_bytes: u64,
    pub(super) staying: StayingMemtables,
}

impl Leaving {
    /// Modes by their numbers on a command line.
    const MODES: [OffloadMode; 4] =
        [OffloadMode::All, OffloadMode::Flushes, OffloadMode::Memtables, OffloadMode::Compactions];

    /// Draws the settings of an owner. Half of the owners send all jobs and memtables away.
    pub(super) fn choose(rng: &mut Rng) -> Self {
        let mode = match rng.bool() {
            true => OffloadMode::All,
            false => Self::MODES[rng.usize(..Self::MODES.len())],
        };
        let staying =
            [StayingMemtables::Fixed(0), StayingMemtables::Fixed(1), StayingMemtables::Auto];
        Self {
            mode,
            copies: rng.u32(1..3),
            cache_bytes: [0, 1 << 20][rng.usize(..2)],
            staying: staying[rng.usize(..3)],
        }
    }

    /// The same with all jobs and memtables away, and one copy of each shard, so that its node can
    /// lose it.
    pub(super) fn with_one_copy(self) -> Self {
        Self { mode: OffloadMode::All, copies: 1, staying: StayingMemtables::Fixed(0), ..self }
    }

    fn add_to(self, words: Words) -> Words {
        let mode = Self::MODES.iter().position(|mode| *mode == self.mode);
        let staying = match self.staying {
            StayingMemtables::Fixed(number) => number.to_string(),
            StayingMemtables::Auto => AUTO.to_owned(),
        };
        words
            .with("mode", mode.unwrap_or(Self::MODES.len()))
            .with("copies", self.copies)
            .with("cache_bytes", self.cache_bytes)
            .with("staying", staying)
    }

    fn parse(words: &Words) -> std::result::Result<Self, String> {
        let staying = match words.text("staying")? {
            AUTO => StayingMemtables::Auto,
            _ => StayingMemtables::Fixed(words.number("staying")? as u32),
        };
        Ok(Self {
            mode: chosen(&Self::MODES, words.number("mode")?)?,
            copies: words.number("copies")? as u32,
            cache_bytes: words.number("cache_bytes")?,
            staying,
        })
    }
}

/// The number of memtables that stay, if the database chooses it.
const AUTO: &str = "auto";

/// The database of a run, and the way in which it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DatabasePlan {
    pub(super) dir: PathBuf,
    /// Address of the manager: `HOST:PORT`.
    pub(super) manager: String,
    /// Seed of the database's settings and operations.
    pub(super) seed: u64,
    /// Decides the settings that differ from open to open.
    pub(super) open_seed: u64,
    pub(super) leaving: Leaving,
}

/// An open database, and the parts that offload.
#[derive(Debug)]
pub(super) struct OpenDatabase {
    pub(super) db: Db,
    offloaded: Offloaded,
}

impl OpenDatabase {
    /// The figures of the owner so far.
    fn figures(&self, reads: u64) -> Figures {
        let counters = self.offloaded.counters();
        let counter = |name: &str| counters.get(name).copied().unwrap_or(0);
        let statistics = self.db.statistics();
        Figures {
            jobs_away: counter("offload_jobs_away")
                + counter("offload_flushes_in_place")
                + counter("offload_flushes_remote"),
            shards_sent: counter("offload_shards_sent"),
            shards_kept: statistics.get(Ticker::AwayShardsKept),
            shards_rebuilt: statistics.get(Ticker::AwayShardsRebuilt),
            shards_left: 0,
            reads,
        }
    }
}

impl DatabasePlan {
    /// Opens the database, and creates it if it does not exist. `note` is invoked at the fault
    /// points of the engine.
    pub(super) fn open(&self, note: impl Fn(&str) + Send + Sync + 'static) -> Result<OpenDatabase> {
        let storage = Storage::open(&self.dir, &[])?;
        let settings = OwnerSettings {
            managers: vec![format!("tcp:{}", self.manager)],
            mode: self.leaving.mode,
            key_offset_cache_bytes: Some(self.leaving.cache_bytes),
            shard_copies: Some(self.leaving.copies),
            staying: Some(self.leaving.staying),
            ..OwnerSettings::default()
        };
        let offloaded = Offloaded::start(&storage, settings)?;
        let points = Arc::new(move |point: &str| {
            note(point);
            Ok(())
        });
        let parts = Offloading { storage, offloaded, points };
        let db = open(&self.dir, self.seed, self.open_seed, Over::Offloading(&parts))?;
        Ok(OpenDatabase { db, offloaded: parts.offloaded })
    }
}

/// An owner that writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnerRole {
    pub(super) database: DatabasePlan,
    /// File of the acknowledged operations.
    pub(super) acks: PathBuf,
    pub(super) ops_per_thread: u64,
    pub(super) threads: Vec<ThreadStart>,
    pub(super) moment: StepMoment<Step>,
    /// Moment of the message, if the step is one.
    pub(super) message_moment: MessageMoment,
}

impl OwnerRole {
    pub(super) const NAME: &str = "offload-owner";

    pub(super) fn words(&self) -> Vec<String> {
        let DatabasePlan { dir, manager, seed, open_seed, leaving } = &self.database;
        let words = Words::default()
            .with("dir", dir.display())
            .with("manager", manager)
            .with("seed", seed)
            .with("open_seed", open_seed)
            .with("acks", self.acks.display())
            .with("ops", self.ops_per_thread)
            .with("threads", ThreadStart::words(&self.threads))
            .with("message_moment", moment_number(self.message_moment));
        self.moment.add_to(leaving.add_to(words), &Step::known()).command_line(Self::NAME)
    }

    pub(super) fn parse(words: &Words) -> std::result::Result<Self, String> {
        let database = DatabasePlan {
            dir: words.path("dir")?,
            manager: words.text("manager")?.to_owned(),
            seed: words.number("seed")?,
            open_seed: words.number("open_seed")?,
            leaving: Leaving::parse(words)?,
        };
        let moment = StepMoment::parse(words, &Step::known())?;
        Ok(Self {
            database,
            acks: words.path("acks")?,
            ops_per_thread: words.number("ops")?,
            threads: ThreadStart::parse(words.text("threads")?)?,
            moment,
            message_moment: chosen(&MOMENTS, words.number("message_moment")?)?,
        })
    }

    /// Writes, and returns when all operations are done.
    pub(super) fn run(&self) -> Result<()> {
        let trigger = StepTrigger::new(self.moment);
        let acks = AckWriter::open(&self.acks)?;
        say(OPENING);
        if let Step::Message(index) = self.moment.step {
            let (noting, step) = (Arc::clone(&trigger), self.moment.step);
            note_message(index, self.message_moment, move || noting.note(step));
        }
        let steps = Arc::clone(&trigger);
        let note = move |point: &str| {
            if let Some(step) = Step::of(point) {
                steps.note(step);
            }
        };
        let opened = Arc::new(self.database.open(note)?);
        say(OPENED);
        let is_stopped = self.moment.reaction == AtStep::Halt;
        let plan = WriterPlan {
            seed: self.database.seed,
            ops_per_thread: self.ops_per_thread,
            threads: self.threads.clone(),
            refusals: Refusals::Fail,
            fs: Arc::new(LocalFs::new()),
            scratch: scratch(&self.database.dir),
            reads: Reads::Compared { limit: (!is_stopped).then_some(READ_LIMIT) },
        };
        let observer = Box::new(move || trigger.note(Step::Write));
        let writers = Writers::new(opened.db.clone(), acks, plan, observer)?;
        let ended = Arc::new(AtomicBool::new(false));
        let teller = tell_figures(&opened, &writers, &ended)?;
        let written = writers.run();
        ended.store(true, Ordering::Release);
        teller.join()?;
        written?;
        opened.db.clone().close()
    }
}

/// Directory for tables that are ingested, beside the database.
pub(super) fn scratch(dir: &Path) -> PathBuf {
    dir.parent().unwrap_or(dir).to_owned()
}

/// Prints the figures of the owner until it has ended.
fn tell_figures(
    opened: &Arc<OpenDatabase>,
    writers: &Arc<Writers>,
    ended: &Arc<AtomicBool>,
) -> Result<Joiner> {
    let (opened, writers, ended) = (Arc::clone(opened), Arc::clone(writers), Arc::clone(ended));
    let body = Box::new(move || {
        let clock = SystemClock::shared();
        loop {
            let is_last = ended.load(Ordering::Acquire);
            say(&opened.figures(writers.reads()).line());
            if is_last {
                return;
            }
            clock.sleep(FIGURES_PAUSE);
        }
    });
    SystemSpawn.spawn("figures", body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_gets_every_argument() {
        for staying in [StayingMemtables::Fixed(3), StayingMemtables::Auto] {
            let owner = OwnerRole {
                database: DatabasePlan {
                    dir: "/tmp/x/db".into(),
                    manager: "127.0.0.1:7".to_owned(),
                    seed: 1,
                    open_seed: 2,
                    leaving: Leaving {
                        mode: OffloadMode::Memtables,
                        copies: 2,
                        cache_bytes: 9,
                        staying,
                    },
                },
                acks: "/tmp/acks".into(),
                ops_per_thread: 4,
                threads: vec![ThreadStart { thread: 1, first: 5 }],
                moment: StepMoment { step: Step::Gc, after: 7, reaction: AtStep::Halt },
                message_moment: MessageMoment::Handled,
            };
            let words = Words::parse(owner.words().into_iter().skip(2)).unwrap();
            assert_eq!(OwnerRole::parse(&words).unwrap(), owner);
        }
    }

    #[test]
    fn owners_send_everything_half_of_the_time() {
        let mut rng = Rng::with_seed(3);
        let all = (0..100).filter(|_| Leaving::choose(&mut rng).mode == OffloadMode::All).count();
        assert!((40..90).contains(&all), "{all}");
    }
}
