//! Scenarios and their runs.
//!
//! A [`Scenario`] is a protocol run in virtual time: a function from a [`RunRequest`], which holds
//! the seed, to a [`RunOutcome`], which lists the violations. The list of all scenarios is in
//! `scenarios/mod.rs`. The functions here run one seed or many, and turn a violation or a panic
//! into a [`Failure`], which prints the command that repeats the run.
//!
//! Invariants:
//! 1. Two runs of one request have the same [`Trace`]. [`same_twice`] checks that.
//! 2. A panic of a scenario is a violation of its run, not the end of the caller.
//!
//! Thread-safety: scenarios are immutable, and several threads may run them.
//! Cost: a run takes milliseconds for a small scenario and up to a second for a whole cluster.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use archipelago_base::simulation::Simulation;

type Body = dyn Fn(&RunRequest) -> RunOutcome + Send + Sync;

/// A protocol run that follows from a seed, with the properties that must hold in it.
pub struct Scenario {
    name: &'static str,
    about: &'static str,
    steps: &'static [Step],
    caveat: fn() -> Option<String>,
    body: Box<Body>,
}

/// A step of a protocol that a run can leave out, to prove that the check notices the omission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Name after `--without`.
    pub name: &'static str,
    /// Sentence that says what the protocol does in this step.
    pub about: &'static str,
}

/// Parameters of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunRequest {
    /// Seed from which everything in the run follows.
    pub seed: u64,
    /// Whether the run keeps notes of its events.
    pub trace: bool,
    /// Names of the steps that the run leaves out.
    pub without: Vec<&'static str>,
}

/// Fingerprint of a run. It is the same for two runs of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Hash over all steps of the scheduler and all records of the scenario.
    pub hash: u64,
    /// Number of steps of the scheduler.
    pub events: u64,
    /// Virtual time at the end, in nanoseconds.
    pub virtual_ns: u64,
}

impl Trace {
    /// The fingerprint of a simulation as it is now.
    pub(crate) fn of(simulation: &Simulation) -> Self {
        Self {
            hash: simulation.trace_hash(),
            events: simulation.events(),
            virtual_ns: simulation.now_ns(),
        }
    }
}

/// A figure that a run counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Words that follow the number in a report, such as `writes acknowledged`.
    pub name: &'static str,
    /// Number that was counted.
    pub count: u64,
}

/// Result of one run.
#[derive(Clone, Debug, Default)]
pub struct RunOutcome {
    /// The properties that must hold and did not hold.
    pub violations: Vec<String>,
    /// All figures that the run counted.
    pub figures: Vec<Figure>,
    /// Notes of the events, if the request asked for them.
    pub notes: Vec<String>,
    /// Fingerprint of the run.
    pub trace: Trace,
}

/// A run in which a property did not hold.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Parameters of the run.
    pub request: RunRequest,
    /// Result of the run, with at least one violation.
    pub outcome: Box<RunOutcome>,
}

/// Sums over the runs of several seeds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of runs.
    pub runs: u64,
    /// Number of runs in which a property did not hold.
    pub failed: u64,
    /// Steps of the scheduler.
    pub events: u64,
    /// Virtual time, in nanoseconds.
    pub virtual_ns: u64,
    /// Sums of the figures, in the order in which the scenario reports them.
    pub figures: Vec<Figure>,
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scenario({})", self.name)
    }
}

impl Scenario {
    /// A scenario over one [`Simulation`]: `body` builds a cluster, runs it and checks it.
    ///
    /// An `Err` is a violation, and so is a panic.
    pub fn new(
        name: &'static str,
        about: &'static str,
        body: impl Fn(&Simulation) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self::with_steps(name, about, &[], move |request| {
            let simulation = Simulation::new(request.seed);
            if request.trace {
                simulation.keep_notes();
            }
            // After a panic, only the notes and the counters of the simulation are read.
            let ended = catch_unwind(AssertUnwindSafe(|| body(&simulation)));
            let ended = ended.unwrap_or_else(|panic| Err(text_of(&*panic)));
            RunOutcome {
                violations: ended.err().into_iter().collect(),
                figures: Vec::new(),
                notes: simulation.notes(),
                trace: Trace::of(&simulation),
            }
        })
    }

    /// A scenario that makes its own simulation and can leave out `steps`.
    pub fn with_steps(
        name: &'static str,
        about: &'static str,
        steps: &'static [Step],
        body: impl Fn(&RunRequest) -> RunOutcome + Send + Sync + 'static,
    ) -> Self {
        Self { name, about, steps, caveat: || None, body: Box::new(body) }
    }

    /// The same scenario; before its runs, the program prints the text that `caveat` returns.
    pub(crate) fn with_caveat(self, caveat: fn() -> Option<String>) -> Self {
        Self { caveat, ..self }
    }

    /// Name on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Sentence that describes the scenario.
    #[must_use]
    pub fn about(&self) -> &'static str {
        self.about
    }

    /// Steps that a run can leave out.
    #[must_use]
    pub fn steps(&self) -> &'static [Step] {
        self.steps
    }

    /// Reason for which runs on this machine prove less than usual.
    #[must_use]
    pub fn caveat(&self) -> Option<String> {
        (self.caveat)()
    }

    /// Runs one seed.
    #[must_use]
    pub fn run(&self, request: &RunRequest) -> RunOutcome {
        let known = |step: &&str| self.steps.iter().any(|known| known.name == *step);
        assert!(request.without.iter().all(known), "{self:?} has no such step: {request:?}");
        catch_unwind(AssertUnwindSafe(|| (self.body)(request))).unwrap_or_else(|panic| RunOutcome {
            violations: vec![text_of(&*panic)],
            ..RunOutcome::default()
        })
    }

    /// Runs one seed, and returns a failure if a property does not hold.
    pub fn check(&self, request: &RunRequest) -> Result<RunOutcome, Failure> {
        let outcome = self.run(request);
        if outcome.violations.is_empty() {
            Ok(outcome)
        } else {
            Err(self.failure(request, outcome))
        }
    }

    fn failure(&self, request: &RunRequest, outcome: RunOutcome) -> Failure {
        Failure { scenario: self.name, request: request.clone(), outcome: Box::new(outcome) }
    }
}

impl RunRequest {
    /// A run of `seed` that keeps no notes and leaves out nothing.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// The same run without the steps of these names.
    #[must_use]
    pub fn without(self, steps: &[&'static str]) -> Self {
        Self { without: steps.to_vec(), ..self }
    }

    /// Whether the run leaves out `step`.
    #[must_use]
    pub fn leaves_out(&self, step: &str) -> bool {
        self.without.contains(&step)
    }
}

impl RunOutcome {
    /// The figure of that name.
    ///
    /// # Panics
    ///
    /// The run did not count it.
    #[must_use]
    pub fn figure(&self, name: &str) -> u64 {
        match self.figures.iter().find(|figure| figure.name == name) {
            Some(figure) => figure.count,
            None => panic!("no figure `{name}` in {:?}", self.figures),
        }
    }
}

impl Summary {
    /// Adds a run.
    pub fn add(&mut self, outcome: &RunOutcome) {
        self.runs += 1;
        self.failed += u64::from(!outcome.violations.is_empty());
        self.events += outcome.trace.events;
        self.virtual_ns += outcome.trace.virtual_ns;
        for figure in &outcome.figures {
            match self.figures.iter_mut().find(|sum| sum.name == figure.name) {
                Some(sum) => sum.count += figure.count,
                None => self.figures.push(*figure),
            }
        }
    }
}

impl Failure {
    /// Command that repeats the run and prints its notes, for a scenario that the program knows.
    #[must_use]
    pub fn command(&self) -> String {
        replay_command(self.scenario, &self.request)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.outcome.notes {
            writeln!(f, "{note}")?;
        }
        let violations = self.outcome.violations.join("\n    ");
        writeln!(f, "scenario {}, seed {}: {violations}", self.scenario, self.request.seed)?;
        write!(f, "replay: {}", self.command())
    }
}

impl std::error::Error for Failure {}

/// Command that repeats one run of a scenario and prints its notes.
#[must_use]
pub fn replay_command(scenario: &str, request: &RunRequest) -> String {
    let mut command = format!(
        "cargo run --quiet -p archipelago-sim -- --scenario {scenario} --from {} --seeds 1 --trace",
        request.seed
    );
    for step in &request.without {
        command += &format!(" --without {step}");
    }
    command
}

/// Runs every seed of the range, up to the first failure.
pub fn run_seeds(scenario: &Scenario, seeds: Range<u64>) -> Result<Summary, Failure> {
    let mut summary = Summary::default();
    for seed in seeds {
        summary.add(&scenario.check(&RunRequest::new(seed))?);
    }
    Ok(summary)
}

/// Runs a request twice. It is a failure if a run fails, or if the runs took different steps.
pub fn same_twice(scenario: &Scenario, request: &RunRequest) -> Result<RunOutcome, Failure> {
    let mut first = scenario.check(request)?;
    let second = scenario.check(request)?;
    if first.trace == second.trace {
        return Ok(first);
    }
    first.violations.push(format!(
        "two runs of one seed differ: {:?} and {:?}; a real clock, entropy, a thread or the order \
         of a HashMap had an influence",
        first.trace, second.trace
    ));
    Err(scenario.failure(request, first))
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("with no text"))
}
