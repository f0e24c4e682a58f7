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
    /// Any storage node.
    Node,
    /// A node whose chunks are copied: the drained node, the node with too little room, or another
    /// holder of the blobs of a lost node.
    Source,
    /// The node that makes a copy.
    Target,
    /// A process that runs jobs of the owner.
    Executor,
    Manager,
    /// The owner, all nodes, all executors and the manager.
    Everything,
    /// No process. A second owner takes the volume over from the first owner, which is alive.
    Nobody,
}

impl Victim {
    /// The victims of a step that are killed and stopped.
    fn single(step: Step) -> &'static [Self] {
        match step.is_copy() {
            true => &[Self::Owner, Self::Source, Self::Target, Self::Executor, Self::Manager],
            false => &[Self::Owner, Self::Node, Self::Executor, Self::Manager],
        }
    }
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Owner => "owner",
            Self::Node => "node",
            Self::Source => "source",
            Self::Target => "target",
            Self::Executor => "executor",
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

impl Case {
    /// Every case of a cluster of this size once. `full_disk`: the disks of nodes are full at
    /// times.
    pub(super) fn all(nodes: usize, full_disk: bool) -> Vec<Self> {
        let has_copies = nodes >= COPY_NODES_MIN && !full_disk;
        let mut cases = Vec::new();
        for step in Step::ALL.into_iter().filter(|step| has_copies || !step.is_copy()) {
            // An executor whose outputs a full disk refuses gives its jobs back.
            let victims = Victim::single(step).iter().copied();
            for victim in victims.filter(|victim| !full_disk || *victim != Victim::Executor) {
                cases.extend(Fault::ALL.map(|fault| Self { victim, fault, step }));
            }
            cases.push(Self { victim: Victim::Everything, fault: Fault::Kill, step });
            // The take-over itself is the step that a second owner adds.
            if step != Step::TakeOver {
                cases.push(Self { victim: Victim::Nobody, fault: Fault::Kill, step });
            }
        }
        cases
    }
}

/// Fewest nodes of a run whose nodes are lost, emptied or levelled: four are left for new files
/// while one is lost and another one has the fault.
const COPY_NODES_MIN: usize = 6;

impl FaultCase for Case {
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
        let cases = Case::all(COPY_NODES_MIN, false);
        for step in Step::ALL {
            for fault in Fault::ALL {
                let nodes: &[Victim] = match step.is_copy() {
                    true => &[Victim::Source, Victim::Target],
                    false => &[Victim::Node],
                };
                for victim in [Victim::Owner, Victim::Manager, Victim::Executor].iter().chain(nodes)
                {
                    let case = Case { victim: *victim, fault, step };
                    assert!(cases.contains(&case), "{case}");
                }
            }
        }
    }

    #[test]
    fn copies_need_nodes_that_are_left_and_room() {
        for cases in [Case::all(COPY_NODES_MIN - 1, false), Case::all(COPY_NODES_MIN, true)] {
            assert!(cases.iter().all(|case| !case.step.is_copy()));
        }
        let full = Case::all(3, true);
        assert!(full.iter().all(|case| case.victim != Victim::Executor));
        assert!(Case::all(3, false).iter().any(|case| case.victim == Victim::Executor));
    }
}
