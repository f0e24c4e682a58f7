//! An owner of a database as its parent sees it: when it comes to the step, and which threads it
//! runs.

use std::time::Duration;

use super::process::{Heard, Process};
use super::server::{Fault, PATIENCE};
use super::trigger::{AT_STEP, AtStep};
use crate::writers::ThreadStart;

/// Line of an owner that begins to open its database.
pub(crate) const OPENING: &str = "opening";
/// Line of an owner whose database is open.
pub(crate) const OPENED: &str = "opened";

/// Time in which an owner under load must come to the step. Afterwards the fault hits anyway.
const STEP_PATIENCE: Duration = Duration::from_secs(3);

/// State of an owner when it came to the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtStepSeen {
    /// The owner was opening the database.
    Opening,
    /// The owner's database was open.
    Open,
    /// The owner did not come to the step in time.
    Never,
}

/// Part of the threads that an owner runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    All,
    FirstHalf,
    SecondHalf,
}

impl Share {
    /// The threads of the share. `first` has the number of the first operation of each thread.
    pub(crate) fn threads(self, first: &[u64]) -> Vec<ThreadStart> {
        let half = first.len() / 2;
        let threads = match self {
            Self::All => 0..first.len(),
            Self::FirstHalf => 0..half,
            Self::SecondHalf => half..first.len(),
        };
        let start = |thread: usize| ThreadStart { thread: thread as u64, first: first[thread] };
        threads.map(start).collect()
    }
}

/// An owner's process, which prints lines.
pub(crate) trait Owner {
    /// Waits for the next line of the protocol with the parent.
    fn hear(&mut self, patience: Duration) -> Heard;

    /// The process of the owner.
    fn process(&mut self) -> &mut Process;
}

impl Owner for Process {
    fn hear(&mut self, patience: Duration) -> Heard {
        Self::hear(self, patience)
    }

    fn process(&mut self) -> &mut Process {
        self
    }
}

/// Waits until an owner is at the step. `from` is its state now. An owner that opens has more time.
pub(crate) fn await_step(owner: &mut impl Owner, from: AtStepSeen) -> Result<AtStepSeen, String> {
    let mut seen = from;
    loop {
        let patience = if seen == AtStepSeen::Open { STEP_PATIENCE } else { PATIENCE };
        match owner.hear(patience) {
            Heard::Line(line) if line == AT_STEP => return Ok(seen),
            Heard::Line(line) if line == OPENED => seen = AtStepSeen::Open,
            Heard::Line(_) => {}
            Heard::Silence if seen == AtStepSeen::Open => return Ok(AtStepSeen::Never),
            Heard::Silence => {
                let said = owner.process().messages();
                return Err(format!("an owner did not open in {PATIENCE:?}: {said}"));
            }
            Heard::End => {
                let status = owner.process().wait(PATIENCE)?;
                let said = owner.process().messages();
                return match status.success() {
                    // The owner has done all of its operations.
                    true => Ok(AtStepSeen::Never),
                    false => Err(format!("an owner ended by itself ({status}): {said}")),
                };
            }
        }
    }
}

/// Stops an owner that stops itself at the step, or one that did not come to it. Returns whether it
/// is stopped and has not ended.
pub(crate) fn stop_at(owner: &mut Process, seen: AtStepSeen) -> Result<bool, String> {
    match seen {
        AtStepSeen::Never => owner.stop(),
        AtStepSeen::Opening | AtStepSeen::Open => owner.wait_until_stopped(),
    }
}

impl AtStep {
    /// Action of an owner at the step. `own` is its own fault; `None` if the fault hits another
    /// process.
    pub(crate) fn of_owner(own: Option<Fault>) -> Self {
        match own {
            Some(Fault::Kill) => Self::Die,
            Some(Fault::Stop) => Self::Halt,
            None => Self::Ask,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_have_all_threads() {
        let first = [5, 6, 7];
        let all = Share::All.threads(&first);
        let halves = [Share::FirstHalf.threads(&first), Share::SecondHalf.threads(&first)];
        assert_eq!(halves.concat(), all);
        assert_eq!(all[2], ThreadStart { thread: 2, first: 7 });
    }
}
