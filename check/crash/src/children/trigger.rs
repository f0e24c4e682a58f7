//! The moment of a step at which a child process ends, stops, or lets its parent act.
//!
//! A [`StepTrigger`] counts the moments of one step. The steps are those of an owner over storage
//! nodes, or of an owner that offloads.
//!
//! Invariants:
//! 1. A trigger fires at most once.
//! 2. The process prints [`AT_STEP`] before it ends, stops or waits.
//!
//! Thread-safety: any thread may note a step. Only the thread at the step waits for the parent.
//! Failure: a parent that has ended lets the waiting thread go on.
//! Cost: a comparison and an atomic addition per moment of the step.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Signal, getpid, kill_process};

use super::words::{Words, chosen};

/// Line that a process prints when it is at the step.
pub(crate) const AT_STEP: &str = "at the step";
/// Line with which the parent lets a waiting thread go on.
pub(crate) const GO_ON: &str = "go on";

/// Action of a process at the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtStep {
    /// Nothing, at no step.
    Nothing,
    /// The process kills itself.
    Die,
    /// The process stops itself, until its parent lets it continue.
    Halt,
    /// The thread at the step waits until the parent has acted.
    Ask,
}

impl AtStep {
    /// All reactions, by their numbers on a command line.
    pub(crate) const ALL: [Self; 4] = [Self::Nothing, Self::Die, Self::Halt, Self::Ask];
}

/// Moment that a run chose: the step, and the number of its moments that pass before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepMoment<S> {
    pub(crate) step: S,
    pub(crate) after: u64,
    pub(crate) reaction: AtStep,
}

impl<S: Copy + PartialEq> StepMoment<S> {
    /// Adds the moment to a command line. `all` has all steps.
    pub(crate) fn add_to(self, words: Words, all: &[S]) -> Words {
        let step = all.iter().position(|step| *step == self.step);
        let reaction = AtStep::ALL.iter().position(|way| *way == self.reaction);
        words
            .with("step", step.unwrap_or(all.len()))
            .with("after", self.after)
            .with("reaction", reaction.unwrap_or(AtStep::ALL.len()))
    }

    /// Reads the moment from a command line.
    pub(crate) fn parse(words: &Words, all: &[S]) -> Result<Self, String> {
        Ok(Self {
            step: chosen(all, words.number("step")?)?,
            after: words.number("after")?,
            reaction: chosen(&AtStep::ALL, words.number("reaction")?)?,
        })
    }
}

/// Waits for the chosen moment, and reacts.
#[derive(Debug)]
pub(crate) struct StepTrigger<S> {
    moment: StepMoment<S>,
    seen: AtomicU64,
}

impl<S: Copy + PartialEq> StepTrigger<S> {
    pub(crate) fn new(moment: StepMoment<S>) -> Arc<Self> {
        Arc::new(Self { moment, seen: AtomicU64::new(0) })
    }

    /// The moment that the trigger waits for.
    pub(crate) fn moment(&self) -> StepMoment<S> {
        self.moment
    }

    /// Notes one moment of `step`, and reacts if it is the chosen one.
    pub(crate) fn note(&self, step: S) {
        let StepMoment { step: chosen, after, reaction } = self.moment;
        if step == chosen
            && reaction != AtStep::Nothing
            && self.seen.fetch_add(1, Ordering::Relaxed) == after
        {
            react(reaction);
        }
    }

    /// Reacts now, without regard to the noted moments.
    pub(crate) fn fire(&self) {
        if self.moment.reaction != AtStep::Nothing {
            react(self.moment.reaction);
        }
    }
}

/// Prints [`AT_STEP`], and carries the reaction out.
pub(crate) fn react(reaction: AtStep) {
    say(AT_STEP);
    match reaction {
        AtStep::Nothing => {}
        AtStep::Die => {
            // The process kills itself as the parent does, so no other exit passes for a kill.
            let _dead = kill_process(getpid(), Signal::KILL);
            loop {
                std::thread::park();
            }
        }
        AtStep::Halt => {
            // The call returns when the parent lets the process go on.
            let _stopped = kill_process(getpid(), Signal::STOP);
        }
        AtStep::Ask => {
            let mut answer = String::new();
            // The end of the input means that the parent has ended.
            let _read = std::io::stdin().read_line(&mut answer);
        }
    }
}

/// Prints a line for the parent.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A parent that has ended reads nothing.
    let _told = writeln!(out, "{line}").and_then(|()| out.flush());
}
