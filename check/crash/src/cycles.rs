//! The cycles of a run over the processes of a cluster: faults, checks, and the command that
//! repeats a failed run. The modules [`crate::storage`] and [`crate::offload`] have the sessions.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use archipelago::env::FileSystem as _;
use archipelago::env::local::LocalFs;
use archipelago::{Error, SystemClock};

use crate::arguments::Arguments;
use crate::sabotage::{SABOTAGES, Sabotage, is_of_damage};

/// The state of a run. Errors are violations, as sentences.
pub(crate) trait Session<'a>: Sized {
    type Case: Display;

    /// Starts a cluster in `dir`. `seed` decides all choices, but not the timing of processes.
    fn start(arguments: &'a Arguments, seed: u64, dir: &Path) -> Result<Self, String>;

    /// Begins a new database with other settings.
    fn begin_database(&mut self) -> Result<(), String>;

    /// Writes, makes a fault, and checks. Returns the case, and whether the fault hit the step.
    fn cycle(&mut self) -> Result<(Self::Case, bool), String>;

    /// Writes until an owner is killed, damages the database, and checks. The check must fail.
    fn damaged_cycle(&mut self, sabotage: Sabotage) -> Result<(), String>;

    /// Checks a database after its last cycle.
    fn end_database(&mut self) -> Result<(), String>;

    /// Carries out the extra losses that the arguments ask for after all cycles. Returns a text
    /// about them.
    fn after_cycles(&mut self) -> Result<String, String>;

    /// Ends the cluster in order. Returns a text about the cycles of the run.
    fn end(self) -> Result<String, String>;
}

/// Runs all cycles. `Err` has the violation and the command that repeats the run.
pub(crate) fn run<'a, S: Session<'a>>(arguments: &'a Arguments) -> Result<(), String> {
    let seed = arguments.seed.unwrap_or_else(archipelago::entropy_seed);
    let base = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = base.join(format!("archipelago-crash-{}", std::process::id()));
    println!("seed {seed}; working in {}", dir.display());
    match run_in::<S>(arguments, seed, &dir) {
        Ok(summary) => {
            println!("passed: {summary}");
            LocalFs::new().remove_dir_all(&dir).map_err(text)
        }
        Err(problem) => Err(format!(
            "FAILED: {problem}\nthe files and the messages of all processes are kept in {}\nto run \
             it again: {}",
            dir.display(),
            arguments.replay(seed)
        )),
    }
}

/// Runs everything that the arguments ask for. Returns the summary.
fn run_in<'a, S: Session<'a>>(
    arguments: &'a Arguments,
    seed: u64,
    dir: &Path,
) -> Result<String, String> {
    let mut session = S::start(arguments, seed, dir)?;
    if arguments.sabotage {
        for sabotage in SABOTAGES {
            session.begin_database()?;
            match session.damaged_cycle(sabotage) {
                Ok(()) => return Err(format!("{sabotage:?} was not seen")),
                Err(problem) if is_of_damage(&problem) => {
                    println!("{sabotage:?} is seen: {problem}");
                }
                Err(problem) => return Err(problem),
            }
        }
        return session.end();
    }
    let clock = SystemClock::shared();
    for cycle in 0..arguments.cycles {
        if cycle % arguments.cycles_per_database == 0 {
            session.begin_database()?;
        }
        let began_ns = clock.now_ns();
        let (case, hit) = session.cycle().map_err(|problem| format!("cycle {cycle}: {problem}"))?;
        println!(
            "cycle {} of {}: {case}{}, {:.1} s",
            cycle + 1,
            arguments.cycles,
            if hit { "" } else { " (not at the step)" },
            (clock.now_ns() - began_ns) as f64 / 1e9
        );
        let is_last = (cycle + 1) % arguments.cycles_per_database == 0;
        if is_last || cycle + 1 == arguments.cycles {
            session.end_database().map_err(|problem| format!("after cycle {cycle}: {problem}"))?;
        }
    }
    Ok(session.after_cycles()? + &session.end()?)
}

/// The text of an error.
#[expect(clippy::needless_pass_by_value, reason = "it is given to map_err")]
pub(crate) fn text(error: Error) -> String {
    error.to_string()
}

/// Sleeps for a number of milliseconds.
pub(crate) fn sleep_ms(ms: u64) {
    SystemClock::shared().sleep(Duration::from_millis(ms));
}
