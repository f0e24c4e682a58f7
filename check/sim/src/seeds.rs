//! Runs of a scenario over a range of seeds, as the program makes them.
//!
//! [`Seeds::run`] continues after a failure, so that a summary says how many seeds fail. If a panic
//! ends the whole program, as it does in release builds, a hook prints the command that repeats the
//! run.
//!
//! Thread-safety: the hook and the run that it names are global, so one thread runs seeds.

use std::panic;

use parking_lot::Mutex;

use crate::run::{RunRequest, Scenario, Summary, replay_command, same_twice};

/// Seeds to run, and how.
#[derive(Clone, Debug)]
pub struct Seeds {
    /// Seed of the first run.
    pub from: u64,
    /// Number of seeds.
    pub count: u64,
    /// Whether to print the events of each run.
    pub trace: bool,
    /// Whether to run each seed twice and to compare the steps.
    pub twice: bool,
    /// Names of the steps that every run leaves out.
    pub without: Vec<&'static str>,
}

/// Run that is in progress: its scenario and its command.
static RUNNING: Mutex<Option<String>> = Mutex::new(None);

/// Makes a panic print the command that repeats the run in which it happened.
pub fn print_replay_on_panic() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        before(info);
        if let Some(command) = RUNNING.lock().as_ref() {
            eprintln!("replay: {command}");
        }
    }));
}

impl Seeds {
    /// Runs every seed. Notes of sound runs go to standard output, failures to standard error.
    pub fn run(&self, scenario: &Scenario) -> Summary {
        let mut summary = Summary::default();
        for seed in self.from..self.from.saturating_add(self.count) {
            let without = self.without.clone();
            let request = RunRequest { seed, trace: self.trace, without };
            *RUNNING.lock() = Some(replay_command(scenario.name(), &request));
            let checked = match self.twice {
                true => same_twice(scenario, &request),
                false => scenario.check(&request),
            };
            *RUNNING.lock() = None;
            match checked {
                Ok(outcome) => {
                    outcome.notes.iter().for_each(|note| println!("{note}"));
                    summary.add(&outcome);
                }
                Err(failure) => {
                    eprintln!("{failure}");
                    summary.add(&failure.outcome);
                }
            }
        }
        summary
    }

    /// One line with the results of the runs.
    #[must_use]
    pub fn line(&self, scenario: &Scenario, summary: &Summary) -> String {
        let mut line = format!(
            "{}: {} seeds from {}, {} failed; {} events, {:.3} s of virtual time",
            scenario.name(),
            summary.runs,
            self.from,
            summary.failed,
            summary.events,
            summary.virtual_ns as f64 / 1e9
        );
        for figure in &summary.figures {
            line += &format!(", {} {}", figure.count, figure.name);
        }
        line
    }
}
