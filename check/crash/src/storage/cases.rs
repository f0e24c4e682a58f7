//! The faults of a run: which process fails in which way at which step, and how often each case was
//! hit.
//!
//! A run takes its cases from a deck that has every case once. The seed shuffles it. A deck that is
//! used up is shuffled anew.
//!
//! The module consists of plain values.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use archipelago::Rng;

use super::cluster::Fault;
use super::steps::Step;

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

/// The cases that are left, in a random order.
#[derive(Debug)]
pub(super) struct Deck {
    rng: Rng,
    left: Vec<Case>,
}

impl Deck {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: Rng::with_seed(seed), left: Vec::new() }
    }

    /// The next case.
    pub(super) fn draw(&mut self) -> Case {
        loop {
            if let Some(case) = self.left.pop() {
                return case;
            }
            self.left = all_cases();
            self.rng.shuffle(&mut self.left);
        }
    }
}

/// Number of tries of a case, and of tries in which its fault hit the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CaseCount {
    tried: u64,
    hit: u64,
}

/// The cases of a run so far.
#[derive(Debug, Default)]
pub(super) struct Tally(BTreeMap<Case, CaseCount>);

impl Tally {
    /// Notes that a cycle has tried `case`. `hit` says whether the fault hit at the step.
    pub(super) fn note(&mut self, case: Case, hit: bool) {
        let count = self.0.entry(case).or_default();
        count.tried += 1;
        count.hit += u64::from(hit);
    }

    /// Number of cycles.
    pub(super) fn tried(&self) -> u64 {
        self.0.values().map(|count| count.tried).sum()
    }

    /// Number of cycles whose fault hit at its step.
    pub(super) fn hit(&self) -> u64 {
        self.0.values().map(|count| count.hit).sum()
    }

    /// A table: one line per victim and fault, and one column per step, with the number of hits of
    /// the number of tries.
    pub(super) fn table(&self) -> String {
        let mut rows: BTreeMap<(Victim, Fault), BTreeMap<Step, CaseCount>> = BTreeMap::new();
        for (case, count) in &self.0 {
            rows.entry((case.victim, case.fault)).or_default().insert(case.step, *count);
        }
        let mut text = format!("  {:<20}", "hits of tries");
        for step in Step::ALL {
            let _infallible = write!(text, " {:>10}", step.to_string());
        }
        for ((victim, fault), steps) in rows {
            let name = match victim {
                Victim::Nobody => victim.to_string(),
                _ => format!("{victim}, {fault}"),
            };
            let _infallible = write!(text, "\n  {name:<20}");
            for step in Step::ALL {
                let cell = match steps.get(&step) {
                    Some(CaseCount { tried, hit }) => format!("{hit}/{tried}"),
                    None => "-".to_owned(),
                };
                let _infallible = write!(text, " {cell:>10}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn deck_has_every_fault_of_every_role_at_every_step_once() {
        let mut deck = Deck::new(7);
        let count = all_cases().len();
        let drawn: BTreeSet<Case> = (0..count).map(|_| deck.draw()).collect();
        assert_eq!(drawn, all_cases().into_iter().collect());
        assert_eq!(drawn.len(), count);
        for (victim, fault) in [(Victim::Owner, Fault::Kill), (Victim::Manager, Fault::Stop)] {
            for step in Step::ALL {
                assert!(drawn.contains(&Case { victim, fault, step }), "{victim} {fault} {step}");
            }
        }
        assert!(all_cases().contains(&deck.draw()), "the next deck");
    }

    #[test]
    fn table_counts_hits_and_tries() {
        let mut tally = Tally::default();
        let case = Case { victim: Victim::Node, fault: Fault::Stop, step: Step::Gc };
        tally.note(case, true);
        tally.note(case, false);
        assert_eq!((tally.tried(), tally.hit()), (2, 1));
        let table = tally.table();
        assert!(table.contains("node, stop") && table.contains("1/2"), "{table}");
    }
}
