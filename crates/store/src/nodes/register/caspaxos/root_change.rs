//! The replacement of a member of the root set: steps 2 to 4 of the module above.
//!
//! The driver has made the next set the value of the register's own name before it begins, or a
//! member of the old set has named it.
//!
//! Invariants:
//! 1. No member is activated before every member of the new set has the values of a retired
//!    majority.
//! 2. The steps may be repeated, also by several processes: retiring, copying and activating change
//!    nothing when they were done.
//!
//! Thread-safety: none; the caller owns the value.
//! Failure: the change waits for a majority of the old set and for all members of the new one. The
//! driver calls [`RootChange::ask_again`] after a pause.
//! Cost: one message per member and step; the second and the third carry all values.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::super::StorageId;
use super::RootSet;
use super::acceptor::{AcceptorAnswer, AcceptorRequest, RegisterCell};

archipelago_base::fault_switches! {
    /// Steps of a change that a checker leaves out, to prove that it notices.
    RootChangeSabotage {
        /// Members count before they have the copy.
        no_copy,
    }
}

/// What the driver does for a change of the root set, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootChangeAction {
    /// Sends a request to a member of the old or the new set.
    Send {
        /// Member that gets it.
        to: StorageId,
        /// Request to deliver.
        request: AcceptorRequest,
    },
    /// A majority of the new set answers proposers.
    Done,
    /// The old set has been left for another set than the wanted one.
    Superseded(RootSet),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangePhase {
    Retiring,
    Installing,
    Activating,
    Done,
}

/// A change from one root set to the next.
#[derive(Debug)]
pub struct RootChange {
    old: RootSet,
    next: RootSet,
    phase: ChangePhase,
    /// Members that have taken the present step.
    finished: BTreeSet<StorageId>,
    /// What the retired majority knows.
    cells: BTreeMap<String, RegisterCell>,
    actions: VecDeque<RootChangeAction>,
    sabotage: RootChangeSabotage,
}

impl RootChange {
    /// A change from `old` to `next`, which the register already names.
    #[must_use]
    pub fn new(old: RootSet, next: RootSet) -> Self {
        assert_eq!(next.number, old.number + 1, "root sets are numbered without gaps");
        Self {
            old,
            next,
            phase: ChangePhase::Retiring,
            finished: BTreeSet::new(),
            cells: BTreeMap::new(),
            actions: VecDeque::new(),
            sabotage: RootChangeSabotage::default(),
        }
    }

    /// The same change without the steps that `sabotage` leaves out.
    #[must_use]
    pub fn sabotaged(self, sabotage: RootChangeSabotage) -> Self {
        Self { sabotage, ..self }
    }

    /// The next action of the driver.
    pub fn next_action(&mut self) -> Option<RootChangeAction> {
        self.actions.pop_front()
    }

    /// Sends the request of the present step to all members that have not answered it. The driver
    /// also begins with it.
    pub fn ask_again(&mut self) {
        let members = match self.phase {
            ChangePhase::Retiring => &self.old.members,
            ChangePhase::Installing | ChangePhase::Activating => &self.next.members,
            ChangePhase::Done => return,
        };
        for to in members.iter().filter(|member| !self.finished.contains(member)) {
            let request = match self.phase {
                ChangePhase::Retiring => AcceptorRequest::Retire { next: self.next.clone() },
                ChangePhase::Installing => {
                    let cells = self.cells.clone();
                    AcceptorRequest::Install { root_set: self.next.clone(), cells }
                }
                ChangePhase::Activating | ChangePhase::Done => {
                    AcceptorRequest::Activate { root_set: self.next.number }
                }
            };
            self.actions.push_back(RootChangeAction::Send { to: *to, request });
        }
    }

    /// A member answered.
    pub fn answered(&mut self, member: StorageId, answer: AcceptorAnswer) {
        match (self.phase, answer) {
            (ChangePhase::Retiring, AcceptorAnswer::Retired(cells)) => {
                if self.finished.insert(member) {
                    for (name, cell) in cells {
                        self.cells.entry(name).or_default().merge(&cell);
                    }
                }
                if self.finished.len() >= self.old.majority() {
                    if self.sabotage.no_copy() {
                        self.cells.clear();
                    }
                    self.advance(ChangePhase::Installing);
                }
            }
            (ChangePhase::Installing, AcceptorAnswer::Installed) => {
                self.finished.insert(member);
                if self.finished.len() == self.next.members.len() {
                    self.advance(ChangePhase::Activating);
                }
            }
            (ChangePhase::Activating, AcceptorAnswer::Activated) => {
                self.finished.insert(member);
                if self.finished.len() == self.next.majority() {
                    self.actions.push_back(RootChangeAction::Done);
                }
                if self.finished.len() == self.next.members.len() {
                    self.phase = ChangePhase::Done;
                }
            }
            (phase, AcceptorAnswer::WrongSet { known: Some(known) })
                if phase != ChangePhase::Done
                    && known.number >= self.next.number
                    && known != self.next =>
            {
                self.phase = ChangePhase::Done;
                self.actions.push_back(RootChangeAction::Superseded(known));
            }
            _ => {}
        }
    }

    fn advance(&mut self, phase: ChangePhase) {
        self.phase = phase;
        self.finished.clear();
        self.ask_again();
    }
}
