//! Runs of scenarios, and what a failure says.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use archipelago_base::simulation::Simulation;

type Body = dyn Fn(&Simulation) -> Result<(), String> + Send + Sync;

/// Something that must hold in every run.
pub struct Scenario {
    name: &'static str,
    about: &'static str,
    body: Box<Body>,
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scenario({})", self.name)
    }
}

impl Scenario {
    /// `body` builds, runs and checks; an `Err` or a panic is a failure.
    pub fn new(
        name: &'static str,
        about: &'static str,
        body: impl Fn(&Simulation) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self { name, about, body: Box::new(body) }
    }

    /// As it is named on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// In a sentence.
    #[must_use]
    pub fn about(&self) -> &'static str {
        self.about
    }
}

/// A run that went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Over all its steps and what was recorded.
    pub trace_hash: u64,
    /// Steps.
    pub events: u64,
    /// Virtual time, in nanoseconds.
    pub virtual_ns: u64,
}

/// A run that did not.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Of what.
    pub scenario: &'static str,
    /// Of which seed.
    pub seed: u64,
    /// What did not hold.
    pub message: String,
    /// What happened, if notes were kept.
    pub notes: Vec<String>,
}

impl Failure {
    /// The command that replays the run and prints its notes; for a scenario that the program
    /// knows.
    #[must_use]
    pub fn command(&self) -> String {
        replay_command(self.scenario, self.seed)
    }
}

/// The command that replays one seed of a scenario.
#[must_use]
pub fn replay_command(scenario: &str, seed: u64) -> String {
    format!("cargo run --quiet -p archipelago-sim -- --scenario {scenario} --seed {seed} --notes")
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        writeln!(f, "scenario {}, seed {}: {}", self.scenario, self.seed, self.message)?;
        write!(f, "replay: {}", self.command())
    }
}

impl std::error::Error for Failure {}

/// What many runs came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How many.
    pub runs: u64,
    /// Steps of all of them.
    pub events: u64,
    /// Virtual time of all of them, in nanoseconds.
    pub virtual_ns: u64,
}

/// One run.
pub fn run(scenario: &Scenario, seed: u64) -> Result<Report, Failure> {
    run_as(scenario, seed, false).1
}

/// One run that keeps notes, and its notes.
pub fn run_noted(scenario: &Scenario, seed: u64) -> (Vec<String>, Result<Report, Failure>) {
    run_as(scenario, seed, true)
}

fn run_as(scenario: &Scenario, seed: u64, noted: bool) -> (Vec<String>, Result<Report, Failure>) {
    let simulation = Simulation::new(seed);
    if noted {
        simulation.keep_notes();
    }
    // The simulation is looked at afterwards for its counters alone.
    let outcome = catch_unwind(AssertUnwindSafe(|| (scenario.body)(&simulation)));
    let notes = simulation.notes();
    let message = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(message)) => Some(message),
        Err(panic) => Some(text_of(&*panic)),
    };
    let result = match message {
        None => Ok(Report {
            trace_hash: simulation.trace_hash(),
            events: simulation.events(),
            virtual_ns: simulation.now_ns(),
        }),
        Some(message) => {
            let notes = notes.clone();
            Err(Failure { scenario: scenario.name, seed, message, notes })
        }
    };
    (notes, result)
}

/// What a panic said.
fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("with no text"))
}

/// Every seed of the range, up to the first failure.
pub fn run_seeds(scenario: &Scenario, seeds: Range<u64>) -> Result<Summary, Failure> {
    let mut summary = Summary::default();
    for seed in seeds {
        let report = run(scenario, seed)?;
        summary.runs += 1;
        summary.events += report.events;
        summary.virtual_ns += report.virtual_ns;
    }
    Ok(summary)
}

/// Runs a seed twice. A failure if it fails, or if the two took different steps.
pub fn same_twice(scenario: &Scenario, seed: u64) -> Result<Report, Failure> {
    let (first, second) = (run(scenario, seed)?, run(scenario, seed)?);
    if first == second {
        return Ok(first);
    }
    let message = format!(
        "two runs of one seed differ: {first:?} and {second:?}; something asked a real clock, \
         entropy, a thread or the order of a HashMap"
    );
    Err(Failure { scenario: scenario.name, seed, message, notes: Vec::new() })
}
