//! One operation on the register, as a client runs it.
//!
//! Invariants:
//! 1. Every round has a ballot that this proposer has not used before.
//! 2. A value is returned only if a majority has accepted one ballot with it, in this round or
//!    before. Members that got it by a copy have not accepted it.
//! 3. A change is applied at most once. [`ProposalResult::Lost`] means that it was not applied and
//!    never will be.
//! 4. A proposal that continues on the next root set keeps the state of its rounds in the old set,
//!    so invariant 3 holds over both sets.
//!
//! Thread-safety: none; the caller owns the value.
//! Failure: a round that was outbid or lost its majority asks for a retry after a random pause. A
//! caller that gives up gets [`ProposalResult::Unknown`] if the change may be applied.
//! Cost: O(members) per answer.

use std::collections::VecDeque;

use super::super::super::StorageId;
use super::acceptor::{AcceptorAnswer, AcceptorRequest};
use super::{AcceptedValue, Ballot, ChangeId, RootSet, StoredValue};
use crate::register::Versioned;

/// Operation of a proposal on the value of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads the value.
    Read,
    /// Replaces the value if its version is `expected` (0: if it has no value).
    Swap {
        /// Version that the value must have.
        expected: u64,
        /// The new value; `None` removes it.
        value: Option<Vec<u8>>,
    },
}

/// Outcome of a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProposalResult {
    /// The value that a read found.
    Value(Option<Versioned>),
    /// The change was applied, and made this version.
    Swapped(u64),
    /// The change was not applied, because the name has this value and not the expected one.
    Lost(Option<Versioned>),
    /// The change may have been applied.
    Unknown,
    /// The root set has been replaced, by this next one if a member named it. A change that the old
    /// set may have accepted is [`ProposalResult::Unknown`] instead. [`Proposal::follow`] continues
    /// both.
    Replaced(Option<RootSet>),
}

/// An action that the driver carries out for a proposal. The order of the actions counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProposalAction {
    /// Sends a request to a member.
    Send {
        /// Member that gets it.
        to: StorageId,
        /// Request to deliver.
        request: AcceptorRequest,
    },
    /// Asks for [`Proposal::retry`] after a random pause.
    RetryLater,
    /// The operation has ended.
    Done(ProposalResult),
}

#[derive(Clone, Debug)]
enum ProposalPhase {
    Preparing { promises: Vec<(StorageId, Option<AcceptedValue>)> },
    Accepting { accepted: Vec<StorageId>, result: ProposalResult },
    Waiting,
    Done,
}

/// An operation on a name.
#[derive(Debug)]
pub struct Proposal {
    name: String,
    operation: Operation,
    change: ChangeId,
    root_set: RootSet,
    ballot: Ballot,
    phase: ProposalPhase,
    /// Members that do not answer in this round.
    failed: Vec<StorageId>,
    /// Largest ballot that a member has promised to another proposer.
    outbid: Ballot,
    /// Version of the change in the last round that asked members to accept it.
    sent_version: Option<u64>,
    /// Root set that replaced the one of this proposal, as a member named it.
    newer: Option<RootSet>,
    actions: VecDeque<ProposalAction>,
}

impl Proposal {
    /// An operation on `name`. `change` must be unique; its proposer makes the ballots unique, and
    /// runs at most one proposal per name at a time.
    #[must_use]
    pub fn new(name: &str, operation: Operation, change: ChangeId, root_set: RootSet) -> Self {
        Self {
            name: name.to_owned(),
            operation,
            change,
            root_set,
            ballot: Ballot::default(),
            phase: ProposalPhase::Waiting,
            failed: Vec::new(),
            outbid: Ballot::default(),
            sent_version: None,
            newer: None,
            actions: VecDeque::new(),
        }
    }

    /// Begins the first round. The counter of its ballot is larger than `counter`, which is the
    /// largest one that this proposer has used or seen for the name.
    pub fn start(&mut self, counter: u64) {
        self.outbid.counter = counter;
        self.retry();
    }

    /// Counter of the newest ballot.
    #[must_use]
    pub fn counter(&self) -> u64 {
        self.ballot.counter.max(self.outbid.counter)
    }

    /// The next action of the driver.
    pub fn next_action(&mut self) -> Option<ProposalAction> {
        self.actions.pop_front()
    }

    /// Root set of the rounds.
    #[must_use]
    pub fn root_set(&self) -> &RootSet {
        &self.root_set
    }

    /// Ballot of the newest round.
    #[must_use]
    pub fn ballot(&self) -> Ballot {
        self.ballot
    }

    /// Whether members were asked to accept the change, so that it may be applied.
    #[must_use]
    pub fn may_be_applied(&self) -> bool {
        self.sent_version.is_some()
    }

    /// The newer root set that a member named and that ended the operation, if one did.
    #[must_use]
    pub fn newer_set(&self) -> Option<&RootSet> {
        self.newer.as_ref()
    }

    /// Continues the operation on a newer root set. The caller has not used an outcome from the old
    /// set. Either the operation has not ended, or it ended because the set was replaced.
    ///
    /// A value that the old set chose is in the copies of the new one. A value that the old set
    /// only may have accepted may be in them or not, and a round of the new set decides that.
    pub fn follow(&mut self, root_set: RootSet) {
        assert!(root_set.number > self.root_set.number, "{root_set:?} follows {:?}", self.root_set);
        self.root_set = root_set;
        self.newer = None;
        self.actions.clear();
        self.phase = ProposalPhase::Waiting;
        self.retry();
    }

    /// Begins a round with a larger ballot.
    pub fn retry(&mut self) {
        if !matches!(self.phase, ProposalPhase::Waiting) {
            return;
        }
        self.ballot = Ballot {
            root_set: self.root_set.number,
            counter: self.counter() + 1,
            proposer: self.change.proposer,
        };
        self.failed.clear();
        self.phase = ProposalPhase::Preparing { promises: Vec::new() };
        let (name, ballot) = (self.name.clone(), self.ballot);
        self.send(&AcceptorRequest::Prepare { name, ballot });
    }

    /// Ends the operation, because the caller waits no longer.
    pub fn give_up(&mut self) {
        if !matches!(self.phase, ProposalPhase::Done) {
            self.end(ProposalResult::Unknown);
        }
    }

    /// Notes that a member cannot be reached in the round of `ballot`.
    pub fn failed(&mut self, member: StorageId, ballot: Ballot) {
        let is_running = !matches!(self.phase, ProposalPhase::Done | ProposalPhase::Waiting);
        if !is_running || ballot != self.ballot || self.failed.contains(&member) {
            return;
        }
        self.failed.push(member);
        if self.root_set.members.len() - self.failed.len() < self.root_set.majority() {
            self.wait();
        }
    }

    /// Notes the answer of a member to a request of the round of `ballot`.
    pub fn answered(&mut self, member: StorageId, ballot: Ballot, answer: AcceptorAnswer) {
        if ballot != self.ballot || !self.root_set.members.contains(&member) {
            return;
        }
        match (answer, &mut self.phase) {
            (AcceptorAnswer::Promised { accepted, .. }, ProposalPhase::Preparing { promises }) => {
                if promises.iter().all(|(from, _)| *from != member) {
                    promises.push((member, accepted));
                }
                if promises.len() >= self.root_set.majority() {
                    self.choose();
                }
            }
            (AcceptorAnswer::Accepted { .. }, ProposalPhase::Accepting { accepted, result }) => {
                if !accepted.contains(&member) {
                    accepted.push(member);
                }
                if accepted.len() >= self.root_set.majority() {
                    let result = result.clone();
                    self.end(result);
                }
            }
            (AcceptorAnswer::Outbid { promised, .. }, _) => {
                self.outbid = self.outbid.max(promised);
                if !matches!(self.phase, ProposalPhase::Done | ProposalPhase::Waiting) {
                    self.wait();
                }
            }
            (AcceptorAnswer::WrongSet { known }, _) => self.wrong_set(member, known),
            _ => {}
        }
    }

    /// Ends the operation if the member knows a newer set. A member that knows none counts as down.
    fn wrong_set(&mut self, member: StorageId, known: Option<RootSet>) {
        if matches!(self.phase, ProposalPhase::Done) {
            return;
        }
        if known.as_ref().is_none_or(|known| known.number <= self.root_set.number) {
            self.failed(member, self.ballot);
            return;
        }
        self.newer.clone_from(&known);
        if self.sent_version.is_some() {
            self.end(ProposalResult::Unknown);
        } else {
            self.end(ProposalResult::Replaced(known));
        }
    }

    /// Applies the operation to the value that a majority knows.
    fn choose(&mut self) {
        let ProposalPhase::Preparing { promises } = &mut self.phase else { return };
        let ballot_of = |accepted: &Option<AcceptedValue>| accepted.as_ref().map(|a| a.ballot);
        let first = ballot_of(&promises[0].1);
        // Ballots of an older set were copied, and not accepted by the members that have them now.
        let is_own_set = first.is_none_or(|ballot| ballot.root_set == self.root_set.number);
        let is_chosen =
            is_own_set && promises.iter().all(|(_, accepted)| ballot_of(accepted) == first);
        let newest = promises.drain(..).max_by_key(|(_, accepted)| ballot_of(accepted));
        let current = newest.and_then(|(_, accepted)| accepted).map(|accepted| accepted.value);
        let raw_version = current.as_ref().map_or(0, |current| current.version);
        let is_own = current.as_ref().is_some_and(|current| current.change == self.change);
        let visible = current.as_ref().and_then(visible);
        let result = match &self.operation {
            Operation::Read => ProposalResult::Value(visible),
            Operation::Swap { .. } if is_own => ProposalResult::Swapped(raw_version),
            // The change may have been applied before other changes followed.
            Operation::Swap { .. } if self.sent_version.is_some_and(|sent| raw_version > sent) => {
                self.end(ProposalResult::Unknown);
                return;
            }
            Operation::Swap { expected, value } => {
                if visible.as_ref().map_or(0, |visible| visible.version) == *expected {
                    let version = raw_version + 1;
                    let value = StoredValue { version, change: self.change, value: value.clone() };
                    self.sent_version = Some(version);
                    self.propose(value, ProposalResult::Swapped(version));
                    return;
                }
                ProposalResult::Lost(visible)
            }
        };
        match current {
            Some(current) if !is_chosen => self.propose(current, result),
            _ => self.end(result),
        }
    }

    fn propose(&mut self, value: StoredValue, result: ProposalResult) {
        self.phase = ProposalPhase::Accepting { accepted: Vec::new(), result };
        let (name, ballot) = (self.name.clone(), self.ballot);
        self.send(&AcceptorRequest::Accept { name, ballot, value });
    }

    fn send(&mut self, request: &AcceptorRequest) {
        for to in &self.root_set.members {
            self.actions.push_back(ProposalAction::Send { to: *to, request: request.clone() });
        }
    }

    fn wait(&mut self) {
        self.phase = ProposalPhase::Waiting;
        self.actions.push_back(ProposalAction::RetryLater);
    }

    fn end(&mut self, result: ProposalResult) {
        self.phase = ProposalPhase::Done;
        self.actions.push_back(ProposalAction::Done(result));
    }
}

/// The value as callers see it.
fn visible(stored: &StoredValue) -> Option<Versioned> {
    let value = stored.value.clone()?;
    Some(Versioned { version: stored.version, value })
}
