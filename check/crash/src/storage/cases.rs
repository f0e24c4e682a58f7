//! The faults of a run over storage nodes: which process fails in which way at which step.
//!
//! The module consists of plain values.

use std::fmt;

use super::steps::Step;
use crate::children::{Fault, FaultCase};

/// The process that a fault takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Victim {
    Owner,
    Node,
    Manager,
    /// The owner, all nodes and the manager.
    Everything,
    /// None: a second owner takes the volume over from the first, which lives.
    Nobody,
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Owner => "owner",
            Self::Node => "node",
            Self::Manager => "manager",
            Self::Everything => "everything",
            Self::Nobody => "second owner",
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
        match victim {
            Victim::Nobody => write!(f, "{victim} at {step}"),
            _ => write!(f, "{fault} of {victim} at {step}"),
        }
    }
}

/// Every case once.
fn all_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for step in Step::ALL {
        for fault in Fault::ALL {
            for victim in [Victim::Owner, Victim::Node, Victim::Manager] {
                cases.push(Case { victim, fault, step });
            }
        }
        cases.push(Case { victim: Victim::Everything, fault: Fault::Kill, step });
        // The take-over itself is the step that a second owner adds.
        if step != Step::TakeOver {
            cases.push(Case { victim: Victim::Nobody, fault: Fault::Kill, step });
        }
    }
    cases
}

impl FaultCase for Case {
    fn all() -> Vec<Self> {
        all_cases()
    }

    fn columns() -> Vec<String> {
        Step::ALL.iter().map(Step::to_string).collect()
    }

    fn row(&self) -> String {
        match self.victim {
            Victim::Nobody => self.victim.to_string(),
            _ => format!("{}, {}", self.victim, self.fault),
        }
    }

    fn column(&self) -> String {
        self.step.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_every_fault_of_every_role_at_every_step() {
        let cases = Case::all();
        for step in Step::ALL {
            for fault in Fault::ALL {
                for victim in [Victim::Owner, Victim::Node, Victim::Manager] {
                    assert!(cases.contains(&Case { victim, fault, step }), "{victim} at {step}");
                }
            }
        }
        assert!(cases.iter().all(|case| Case::columns().contains(&case.column())));
    }
}
