//! A member of a root set: its promises, accepted values and membership.
//!
//! The driver makes the state durable before it sends an answer with `is_changed`.
//!
//! Invariants:
//! 1. The promise of a name never shrinks, and is at least the accepted ballot.
//! 2. A member answers proposers only while it is active in the set that they name.
//! 3. A member that has retired from a set never becomes active in it again.
//! 4. A copy changes nothing on a member that is already active in the new set.
//!
//! Thread-safety: none; the driver's lock guards the value.
//! Failure: a request for another set is answered with the set that the member knows.
//! Cost: O(log names) per request; retiring and joining copy all names.

use std::collections::BTreeMap;

use super::{AcceptedValue, Ballot, RootSet, StoredValue};

archipelago_base::fault_switches! {
    /// Steps of a member that a checker leaves out, to prove that it notices.
    AcceptorSabotage {
        /// Promises do not survive a crash.
        promise_not_durable,
    }
}

/// Promise and value of a member for one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisterCell {
    /// Largest ballot that the member has promised.
    pub promised: Ballot,
    /// The value with the largest accepted ballot.
    pub accepted: Option<AcceptedValue>,
}

impl RegisterCell {
    /// Takes over what another member knows, if its ballots are larger.
    pub fn merge(&mut self, other: &Self) {
        self.promised = self.promised.max(other.promised);
        let ballot = |cell: &Self| cell.accepted.as_ref().map(|accepted| accepted.ballot);
        if ballot(other) > ballot(self) {
            self.accepted.clone_from(&other.accepted);
        }
    }
}

/// The part of a member in root sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Membership {
    /// The node is no member.
    #[default]
    None,
    /// The member answers proposers of this set.
    Active(RootSet),
    /// The member has left a set for the next one, whose members are here.
    Retired {
        /// The set that follows.
        next: RootSet,
    },
    /// The member has the values of the set's predecessor and waits for its activation.
    Joining(RootSet),
}

/// The durable state of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptorState {
    /// The part of the node in root sets.
    pub membership: Membership,
    /// All names that the member knows.
    pub cells: BTreeMap<String, RegisterCell>,
}

/// A request to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcceptorRequest {
    /// Asks for the promise of a ballot.
    Prepare {
        /// Name of the register.
        name: String,
        /// Ballot of the round, which names the root set.
        ballot: Ballot,
    },
    /// Asks to accept a value.
    Accept {
        /// Name of the register.
        name: String,
        /// Ballot of the round, which names the root set.
        ballot: Ballot,
        /// The value to accept.
        value: StoredValue,
    },
    /// Asks for the names that begin with a prefix.
    Names {
        /// Number of the root set.
        root_set: u64,
        /// First part of the names.
        prefix: String,
    },
    /// Asks to leave the set before `next` for good.
    Retire {
        /// The set that follows.
        next: RootSet,
    },
    /// Copies the values of the predecessor's majority to a member of a new set. A later copy may
    /// come from members of the set itself, which have the values of that majority.
    Install {
        /// The new set.
        root_set: RootSet,
        /// Names and values of the majority or of those members.
        cells: BTreeMap<String, RegisterCell>,
    },
    /// Asks a member that has the copy to answer proposers.
    Activate {
        /// Number of the new set.
        root_set: u64,
    },
}

/// The answer of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcceptorAnswer {
    /// The ballot is promised.
    Promised {
        /// The promised ballot.
        ballot: Ballot,
        /// The value that the member accepted last.
        accepted: Option<AcceptedValue>,
    },
    /// The value of the ballot is accepted.
    Accepted {
        /// Ballot of the value.
        ballot: Ballot,
    },
    /// The member has promised a larger ballot.
    Outbid {
        /// Ballot of the request.
        ballot: Ballot,
        /// The promised ballot.
        promised: Ballot,
    },
    /// The names that the member knows, sorted. Some may have no value.
    Names(Vec<String>),
    /// The member does not answer for the set that the request names.
    WrongSet {
        /// The set that the member is in, or the one that follows it.
        known: Option<RootSet>,
    },
    /// The member has left the old set, and may be in the new one. The map has everything that it
    /// knows.
    Retired(BTreeMap<String, RegisterCell>),
    /// The member has the copy.
    Installed,
    /// The member answers proposers.
    Activated,
}

/// An answer, and whether the state must be durable before it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandledRequest {
    /// The answer to send.
    pub answer: AcceptorAnswer,
    /// Whether the request changed the durable state.
    pub is_changed: bool,
}

impl HandledRequest {
    fn changed(answer: AcceptorAnswer) -> Self {
        Self { answer, is_changed: true }
    }

    fn unchanged(answer: AcceptorAnswer) -> Self {
        Self { answer, is_changed: false }
    }
}

/// A member of a root set.
#[derive(Clone, Debug)]
pub struct Acceptor {
    state: AcceptorState,
    sabotage: AcceptorSabotage,
}

impl Acceptor {
    /// A member with its durable state: the default state for a node that was never a member.
    #[must_use]
    pub fn new(state: AcceptorState) -> Self {
        Self { state, sabotage: AcceptorSabotage::default() }
    }

    /// A member of the first root set of a cluster.
    #[must_use]
    pub fn founding(root_set: RootSet) -> Self {
        let membership = Membership::Active(root_set);
        Self::new(AcceptorState { membership, cells: BTreeMap::new() })
    }

    /// The same member without the steps that `sabotage` leaves out.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn sabotaged(self, sabotage: AcceptorSabotage) -> Self {
        Self { sabotage, ..self }
    }

    /// The state that must be durable.
    #[must_use]
    pub fn state(&self) -> &AcceptorState {
        &self.state
    }

    /// Handles a request.
    pub fn handle(&mut self, request: AcceptorRequest) -> HandledRequest {
        match request {
            AcceptorRequest::Prepare { name, ballot } if self.answers(ballot.root_set) => {
                self.prepare(name, ballot)
            }
            AcceptorRequest::Accept { name, ballot, value } if self.answers(ballot.root_set) => {
                self.accept(name, AcceptedValue { ballot, value })
            }
            AcceptorRequest::Names { root_set, prefix } if self.answers(root_set) => {
                let names = self.state.cells.range(prefix.clone()..).map(|(name, _)| name);
                let names = names.take_while(|name| name.starts_with(&prefix)).cloned().collect();
                HandledRequest::unchanged(AcceptorAnswer::Names(names))
            }
            AcceptorRequest::Retire { next } => self.retire(next),
            AcceptorRequest::Install { root_set, cells } => self.install(root_set, cells),
            AcceptorRequest::Activate { root_set } => self.activate(root_set),
            AcceptorRequest::Prepare { .. }
            | AcceptorRequest::Accept { .. }
            | AcceptorRequest::Names { .. } => self.wrong_set(),
        }
    }

    fn answers(&self, root_set: u64) -> bool {
        matches!(&self.state.membership, Membership::Active(active) if active.number == root_set)
    }

    fn wrong_set(&self) -> HandledRequest {
        let known = match &self.state.membership {
            Membership::None => None,
            Membership::Active(known)
            | Membership::Retired { next: known }
            | Membership::Joining(known) => Some(known.clone()),
        };
        HandledRequest::unchanged(AcceptorAnswer::WrongSet { known })
    }

    fn prepare(&mut self, name: String, ballot: Ballot) -> HandledRequest {
        let cell = self.state.cells.entry(name).or_default();
        if ballot < cell.promised {
            let promised = cell.promised;
            return HandledRequest::unchanged(AcceptorAnswer::Outbid { ballot, promised });
        }
        cell.promised = ballot;
        let answer = AcceptorAnswer::Promised { ballot, accepted: cell.accepted.clone() };
        HandledRequest { answer, is_changed: !self.sabotage.promise_not_durable() }
    }

    fn accept(&mut self, name: String, accepted: AcceptedValue) -> HandledRequest {
        let ballot = accepted.ballot;
        let cell = self.state.cells.entry(name).or_default();
        if ballot < cell.promised {
            let promised = cell.promised;
            return HandledRequest::unchanged(AcceptorAnswer::Outbid { ballot, promised });
        }
        cell.promised = ballot;
        cell.accepted = Some(accepted);
        HandledRequest::changed(AcceptorAnswer::Accepted { ballot })
    }

    fn retire(&mut self, next: RootSet) -> HandledRequest {
        let is_changed = match &self.state.membership {
            // A member that joins the old set has all values of the set before that one.
            Membership::Active(old) | Membership::Joining(old) if old.number + 1 == next.number => {
                true
            }
            // Another process has moved the member on. It still has all that it knew in the old
            // set.
            Membership::Retired { next: known }
            | Membership::Joining(known)
            | Membership::Active(known)
                if *known == next =>
            {
                false
            }
            _ => return self.wrong_set(),
        };
        if is_changed {
            self.state.membership = Membership::Retired { next };
        }
        HandledRequest { answer: AcceptorAnswer::Retired(self.state.cells.clone()), is_changed }
    }

    fn install(
        &mut self,
        root_set: RootSet,
        cells: BTreeMap<String, RegisterCell>,
    ) -> HandledRequest {
        match &self.state.membership {
            Membership::Active(active) if active.number == root_set.number => {
                return HandledRequest::unchanged(AcceptorAnswer::Installed);
            }
            Membership::Active(active) if active.number + 1 == root_set.number => {}
            Membership::Retired { next } if next.number == root_set.number => {}
            Membership::Joining(joining) if joining.number == root_set.number => {}
            Membership::Active(known)
            | Membership::Retired { next: known }
            | Membership::Joining(known)
                if known.number > root_set.number =>
            {
                return self.wrong_set();
            }
            // What the node knows from an earlier membership is outdated.
            _ => self.state.cells.clear(),
        }
        for (name, cell) in cells {
            self.state.cells.entry(name).or_default().merge(&cell);
        }
        self.state.membership = Membership::Joining(root_set);
        HandledRequest::changed(AcceptorAnswer::Installed)
    }

    fn activate(&mut self, root_set: u64) -> HandledRequest {
        match &self.state.membership {
            Membership::Joining(joining) if joining.number == root_set => {
                self.state.membership = Membership::Active(joining.clone());
                HandledRequest::changed(AcceptorAnswer::Activated)
            }
            Membership::Active(active) if active.number == root_set => {
                HandledRequest::unchanged(AcceptorAnswer::Activated)
            }
            _ => self.wrong_set(),
        }
    }
}
