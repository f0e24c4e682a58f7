//! The faults of a run with offloading: which process fails in which way at which step.
//!
//! The module consists of plain values.

use std::fmt;

use super::steps::Step;
use crate::children::{Fault, FaultCase};

/// The process that a fault takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Victim {
    Owner,
    /// A memory node, with the executor in its process.
    Memory,
    Executor,
    Manager,
    /// The owner and all servers.
    Everything,
}

impl Victim {
    /// Victims that are killed and stopped.
    const SINGLE: [Self; 4] = [Self::Owner, Self::Memory, Self::Executor, Self::Manager];
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Owner => "owner",
            Self::Memory => "memory node",
            Self::Executor => "executor",
            Self::Manager => "manager",
            Self::Everything => "everything",
        })
    }
}

/// A fault of one cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Case {
    pub(super) victim: Victim,
    pub(super) fault: Fault,
    pub(super) step: Step,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { victim, fault, step } = self;
        write!(f, "{fault} of {victim} at {step}")
    }
}

impl Case {
    /// The process and its fault, for the summary.
    fn process(&self) -> String {
        format!("{}, {}", self.victim, self.fault)
    }

    /// Every fault of every role at every message once.
    pub(super) fn of_messages() -> Vec<Self> {
        let mut cases = Vec::new();
        for step in Step::messages() {
            for victim in Victim::SINGLE {
                cases.extend(Fault::ALL.map(|fault| Self { victim, fault, step }));
            }
        }
        cases
    }

    /// Every fault of every role at every step of an owner once.
    pub(super) fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for step in Step::ALL {
            for fault in Fault::ALL {
                cases.extend(Victim::SINGLE.map(|victim| Self { victim, fault, step }));
            }
            cases.push(Self { victim: Victim::Everything, fault: Fault::Kill, step });
        }
        cases
    }
}

impl FaultCase for Case {
    // There are many messages, so they are the rows.
    fn row(&self) -> String {
        match self.step.message() {
            Some(message) => message.to_string(),
            None => self.process(),
        }
    }

    fn column(&self) -> String {
        match self.step.message() {
            Some(_) => self.process(),
            None => self.step.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_every_fault_of_every_role_at_every_step() {
        let cases = Case::all();
        assert_eq!(cases.len(), Step::ALL.len() * (Victim::SINGLE.len() * 2 + 1));
        for (victim, fault) in [(Victim::Executor, Fault::Stop), (Victim::Memory, Fault::Kill)] {
            assert!(cases.contains(&Case { victim, fault, step: Step::Rebuild }));
        }
    }

    #[test]
    fn cases_of_messages_have_every_fault_of_every_role() {
        let cases = Case::of_messages();
        assert_eq!(cases.len(), Step::messages().count() * Victim::SINGLE.len() * 2);
        let case = Case { victim: Victim::Owner, fault: Fault::Stop, step: Step::Message(0) };
        assert!(cases.contains(&case));
        assert_eq!((case.row(), case.column()), (case.step.to_string(), case.process()));
    }
}
