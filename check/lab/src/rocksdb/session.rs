//! Runs the steps of the plan, in rounds: each step here, then in db_bench, then the next step.
//!
//! The main thread owns the session. Another thread waits for SIGINT and SIGTERM, and then ends the
//! running process. A failed step becomes an entry of the journal, and the following steps still
//! run. A step that needs the loaded database loads it again if it is missing.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use indicatif::ProgressBar;

use super::entry::Entry;
use super::flags::Settings;
use super::plan::{self, Costs};
use super::steps::{self, Needs, Step};
use crate::compare::run::{self, Onlooker, Program, Side, SideRun};
use crate::journal::Journal;
use archipelago_bench::harness::progress::say_above;
use archipelago_bench::harness::store::{Error, FileSystem, LocalFs, Result};

/// State of the directory of the loaded database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loaded {
    Nothing,
    Intact,
    Changed,
}

/// Time after which a signal to the step's process has also reached this one.
const SIGNAL_DELAY: Duration = Duration::from_millis(300);

/// Runs of all steps, in rounds.
#[derive(Debug)]
pub(super) struct Session<'a> {
    settings: &'a Settings,
    journal: &'a mut Journal,
    entries: Vec<Entry>,
    /// Directories of Archipelago and of RocksDB.
    loaded: [Loaded; 2],
    stop: Arc<AtomicBool>,
    clock: SystemClock,
    bar: ProgressBar,
}

impl<'a> Session<'a> {
    /// Continues with `entries`. `bar` counts estimated seconds.
    pub(super) fn new(
        settings: &'a Settings,
        journal: &'a mut Journal,
        entries: Vec<Entry>,
        stop: Arc<AtomicBool>,
        bar: ProgressBar,
    ) -> Self {
        let loaded = [Loaded::Nothing; 2];
        Self { settings, journal, entries, loaded, stop, clock: SystemClock::new(), bar }
    }

    /// Runs the rest of the plan and returns all entries. Databases are removed at the end. The
    /// error says that the session was stopped, or that the journal or a directory failed.
    pub(super) fn run(mut self) -> Result<Vec<Entry>> {
        LocalFs::new().create_dir_all(&self.settings.db)?;
        let result = self.rounds();
        let removed = self.remove_databases();
        self.bar.finish_and_clear();
        result.and(removed).map(|()| self.entries)
    }

    fn rounds(&mut self) -> Result<()> {
        let steps = plan::steps(self.settings);
        let estimated = plan::costs(&steps, self.settings);
        for round in 0..self.settings.runs {
            let repeats = plan::repeats(&self.known_costs(&estimated), self.settings, round);
            for &step in &steps {
                if repeats.get(&step).is_none_or(|&runs| round >= runs) {
                    self.say(&format!(
                        "run {}: {} is left out to save time",
                        round + 1,
                        step.name()
                    ));
                    continue;
                }
                for side in [Side::Archipelago, Side::RocksDb] {
                    self.once(round, step, side)?;
                }
            }
        }
        Ok(())
    }

    /// `estimated`, with the measured mean instead where a step has run on both sides.
    fn known_costs(&self, estimated: &Costs) -> Costs {
        let measured = |step: Step, estimate: f64| {
            let mut both = 0.0;
            for side in [Side::Archipelago, Side::RocksDb] {
                let of_side = |entry: &&Entry| entry.step == step && entry.side == side;
                let runs: Vec<f64> =
                    self.entries.iter().filter(of_side).map(|entry| entry.seconds).collect();
                if runs.is_empty() {
                    return estimate;
                }
                both += runs.iter().sum::<f64>() / runs.len() as f64;
            }
            both
        };
        estimated.iter().map(|(&step, &cost)| (step, measured(step, cost))).collect()
    }

    /// Runs `step` of `side` unless the journal has it.
    fn once(&mut self, round: u64, step: Step, side: Side) -> Result<()> {
        let estimate = plan::estimate(step, side, self.settings);
        let is_it = |entry: &Entry| (entry.round, entry.step, entry.side) == (round, step, side);
        if self.entries.iter().any(is_it) {
            self.bar.inc(estimate as u64);
            return Ok(());
        }
        self.bar.set_message(format!("{} of {}", step.name(), side.name()));
        self.say(&format!(
            "run {} of {}: {}: {}",
            round + 1,
            self.settings.runs,
            step.name(),
            side.name()
        ));
        let started_ns = self.clock.now_ns();
        let result = self.measure(round, step, side);
        if result.is_err() {
            // Ctrl-C also ends the step's process, perhaps before this process handles its own
            // signal.
            self.clock.sleep(SIGNAL_DELAY);
        }
        if self.stop.load(Ordering::Acquire) {
            return Err(Error::invalid(format!(
                "stopped; what was measured is in {0}: go on with --resume {0}",
                self.journal.path().display()
            )));
        }
        let seconds = (self.clock.now_ns() - started_ns) as f64 / 1e9;
        let (run, opening, error) = match result {
            Ok((run, opening)) => (Some(run), opening, None),
            Err(error) => (None, None, Some(error.to_string())),
        };
        if let Some(error) = &error {
            self.say(&format!("  failed: {error}"));
        }
        let entry = Entry { round, step, side, seconds, run, opening, error };
        self.journal.append(&entry)?;
        self.entries.push(entry);
        self.bar.inc(estimate as u64);
        Ok(())
    }

    /// The run, and, if the step needs it, a run that only opens the database.
    fn measure(
        &mut self,
        round: u64,
        step: Step,
        side: Side,
    ) -> Result<(SideRun, Option<SideRun>)> {
        let at = side_index(side);
        match step.needs() {
            Needs::Empty => {
                let dir = self.dir(side, "fresh");
                remove(&dir)?;
                let run = self.process(round, step, side, &dir, None);
                remove(&dir)?;
                Ok((run?, None))
            }
            Needs::EmptyToKeep => {
                let dir = self.dir(side, "loaded");
                self.loaded[at] = Loaded::Nothing;
                remove(&dir)?;
                let run = self.process(round, step, side, &dir, None)?;
                self.loaded[at] = Loaded::Intact;
                Ok((run, None))
            }
            Needs::Loaded => {
                let dir = self.load(round, side, Loaded::Intact)?;
                let opening = match step {
                    Step::Cold => Some(self.process(round, step, side, &dir, Some(1))?),
                    _ => None,
                };
                Ok((self.process(round, step, side, &dir, None)?, opening))
            }
            Needs::LoadedToChange => {
                let dir = self.load(round, side, Loaded::Changed)?;
                // Overwriting changes more than the next step may find.
                let left = if step == Step::Mixed { Loaded::Changed } else { Loaded::Nothing };
                self.loaded[at] = Loaded::Nothing;
                let run = self.process(round, step, side, &dir, None)?;
                self.loaded[at] = left;
                Ok((run, None))
            }
        }
    }

    /// The directory of the loaded database. It is loaded again unless it exists in the state
    /// `wanted` or a better one.
    fn load(&mut self, round: u64, side: Side, wanted: Loaded) -> Result<PathBuf> {
        let dir = self.dir(side, "loaded");
        let found = self.loaded[side_index(side)];
        if found != Loaded::Intact && (found != wanted || found == Loaded::Nothing) {
            self.say("  loading the database for it");
            remove(&dir)?;
            self.process(round, Step::FillRandom, side, &dir, None)?;
            self.loaded[side_index(side)] = Loaded::Intact;
        }
        Ok(dir)
    }

    fn process(
        &self,
        round: u64,
        step: Step,
        side: Side,
        dir: &std::path::Path,
        reads: Option<u64>,
    ) -> Result<SideRun> {
        if self.stop.load(Ordering::Acquire) {
            return Err(Error::invalid("stopped"));
        }
        let path = match side {
            Side::RocksDb => self.settings.db_bench.clone(),
            Side::Archipelago => {
                crate::program::named_or_beside(self.settings.archipelago.as_ref())?
            }
        };
        let args = steps::args(side, step, self.settings, round, dir, reads);
        let onlooker =
            Onlooker { said: &|line| self.say(&format!("  {line}")), stop: self.stop.as_ref() };
        run::run(side, &Program { path, args }, dir, step.entry(), onlooker)
    }

    fn dir(&self, side: Side, name: &str) -> PathBuf {
        self.settings.db.join(format!("{}-{name}", side.word()))
    }

    /// Removes only directories of this session, because the parent directory may be the user's.
    fn remove_databases(&self) -> Result<()> {
        for side in [Side::Archipelago, Side::RocksDb] {
            remove(&self.dir(side, "fresh"))?;
            remove(&self.dir(side, "loaded"))?;
        }
        let fs = LocalFs::new();
        let db = std::path::absolute(&self.settings.db).unwrap_or_default();
        match fs.list(&db).is_ok_and(|entries| entries.is_empty()) {
            true => fs.remove_dir_all(&db),
            false => Ok(()),
        }
    }

    fn say(&self, line: &str) {
        say_above(&self.bar, line);
    }
}

fn side_index(side: Side) -> usize {
    match side {
        Side::Archipelago => 0,
        Side::RocksDb => 1,
    }
}

fn remove(dir: &std::path::Path) -> Result<()> {
    let fs = LocalFs::new();
    if fs.exists(dir)? { fs.remove_dir_all(dir) } else { Ok(()) }
}
