//! One operation on the register, from its first round to its outcome.
//!
//! Invariants:
//! 1. A round ends before the next one begins, and its late answers are ignored by their ballots.
//! 2. The outcome of a change is one of *applied*, *not applied and never will be*, and *unknown*.
//!
//! Thread-safety: any number of tasks; operations on one name run one after the other.
//! Failure: `Busy` after the time limit of [`NodeRegister`], with the members that did not answer.
//! Cost: as the head of the module `registers` says.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use archipelago_base::{Error, Result};

use super::super::StorageId;
use super::super::register::caspaxos::acceptor::{AcceptorAnswer, AcceptorRequest};
use super::super::register::caspaxos::proposer::{
    Operation, Proposal, ProposalAction, ProposalResult,
};
use super::super::register::caspaxos::{Ballot, RootSet};
use super::NodeRegister;
use super::calls::{CallsInFlight, MemberAnswer};

/// The next step of a proposal.
enum NextStep {
    /// Await an answer.
    Await,
    /// Begin another round after a pause.
    Retry,
    /// The operation has ended.
    Done(ProposalResult),
}

/// End of an operation without a majority.
struct NoMajority<'a> {
    name: &'a str,
    root_set: &'a RootSet,
    /// Members that answered in the last round.
    answered: &'a BTreeSet<StorageId>,
    /// Whether the change may be applied.
    may_be_applied: bool,
}

impl NoMajority<'_> {
    fn error(&self) -> Error {
        let silent = self.root_set.members.iter().filter(|id| !self.answered.contains(id));
        let silent: Vec<String> = silent.map(ToString::to_string).collect();
        let outcome = match self.may_be_applied {
            true => "; whether the change was applied is unknown, so read the value again",
            false => "",
        };
        let silent = if silent.is_empty() { "none".to_owned() } else { silent.join(", ") };
        Error::busy(format!(
            "the register {:?}: no majority of root set {} answered in time (silent members: \
             {silent}){outcome}. Start the missing storage nodes, or replace them in the root set",
            self.name, self.root_set.number
        ))
    }
}

/// Fate of an operation whose root set is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Following {
    /// It continues on the next set.
    Newest,
    /// It ends with [`ProposalResult::Replaced`], and the change is unknown.
    OnlyThisSet,
}

impl NodeRegister {
    /// Runs an operation until it has an outcome. Errors: `Busy` without a majority, and for a
    /// change whose outcome can no longer be determined.
    pub(super) async fn run(&self, name: &str, operation: Operation) -> Result<ProposalResult> {
        let root_set = self.founded_set(self.give_up_ns()).await?;
        self.run_in(root_set, Following::Newest, name, operation).await
    }

    /// Runs an operation, beginning in `root_set`.
    pub(super) async fn run_in(
        &self,
        root_set: RootSet,
        following: Following,
        name: &str,
        operation: Operation,
    ) -> Result<ProposalResult> {
        let gate = self.gate(name);
        let ended = {
            let _pass = gate.enter().await;
            let proposal = Proposal::new(name, operation, self.next_change(), root_set);
            self.drive(proposal, following, name).await
        };
        drop(gate);
        self.forget_gates();
        ended
    }

    async fn drive(
        &self,
        mut proposal: Proposal,
        following: Following,
        name: &str,
    ) -> Result<ProposalResult> {
        let give_up_ns = self.give_up_ns();
        proposal.start(self.counter.load(Ordering::Relaxed));
        let mut calls = CallsInFlight::new();
        let mut answered = BTreeSet::new();
        let mut round = 0;
        loop {
            match self.next_step(&mut proposal, &mut calls) {
                NextStep::Done(result) => match proposal.newer_set().cloned() {
                    Some(newer) if following == Following::Newest => {
                        proposal.follow(self.learn(&newer));
                    }
                    Some(newer) => return Ok(ProposalResult::Replaced(Some(newer))),
                    None if result == ProposalResult::Unknown => return Err(overtaken(name)),
                    None => return Ok(result),
                },
                NextStep::Retry => {
                    if self.runtime.now_ns() >= give_up_ns {
                        let (root_set, answered) = (proposal.root_set(), &answered);
                        let may_be_applied = proposal.may_be_applied();
                        let ended = NoMajority { name, root_set, answered, may_be_applied };
                        return Err(ended.error());
                    }
                    self.runtime.sleep(self.pause(round)).await;
                    round += 1;
                    answered.clear();
                    calls = CallsInFlight::new();
                    self.begin_round(&mut proposal, following).await;
                }
                NextStep::Await => match calls.next().await {
                    Some(MemberAnswer { from, tag, answer: Some(answer) }) => {
                        answered.insert(from);
                        proposal.answered(from, tag, answer);
                    }
                    Some(MemberAnswer { from, tag, answer: None }) => proposal.failed(from, tag),
                    None => lose_round(&mut proposal),
                },
            }
        }
    }

    /// Does the actions of a proposal.
    fn next_step<'a>(
        &'a self,
        proposal: &mut Proposal,
        calls: &mut CallsInFlight<'a, Ballot>,
    ) -> NextStep {
        let mut step = NextStep::Await;
        while let Some(action) = proposal.next_action() {
            match action {
                ProposalAction::Send { to, request } => {
                    calls.push(to, ballot_of(&request), self.members.ask(to, request));
                }
                ProposalAction::RetryLater => step = NextStep::Retry,
                ProposalAction::Done(result) => step = NextStep::Done(result),
            }
        }
        self.counter.fetch_max(proposal.counter(), Ordering::Relaxed);
        step
    }

    /// Begins another round, in a newer root set if the managers name one.
    async fn begin_round(&self, proposal: &mut Proposal, following: Following) {
        if following == Following::Newest
            && let Ok(named) = self.members.root_set().await
        {
            let newest = self.learn(&named);
            if newest.number > proposal.root_set().number {
                proposal.follow(newest);
                return;
            }
        }
        proposal.retry();
    }

    /// The newest root set. Waits for the cluster to have one.
    pub(super) async fn founded_set(&self, give_up_ns: u64) -> Result<RootSet> {
        let known = self.known.lock().clone();
        if !known.members.is_empty() {
            return Ok(known);
        }
        let mut round = 0;
        loop {
            let named = self.members.root_set().await;
            if let Ok(named) = &named {
                let known = self.learn(named);
                if !known.members.is_empty() {
                    return Ok(known);
                }
            }
            if self.runtime.now_ns() >= give_up_ns {
                named?;
                return Err(Error::busy(
                    "the storage cluster is not founded yet: start at least three storage nodes \
                     in distinct domains, and look at `archipelago cluster status`",
                ));
            }
            self.runtime.sleep(self.pause(round)).await;
            round += 1;
        }
    }

    /// The names that begin with `prefix`, with and without values, as a majority knows them.
    pub(super) async fn ask_for_names(&self, prefix: &str) -> Result<BTreeSet<String>> {
        let give_up_ns = self.give_up_ns();
        let mut root_set = self.founded_set(give_up_ns).await?;
        let mut round = 0;
        loop {
            let mut calls = CallsInFlight::new();
            for to in &root_set.members {
                let (number, prefix) = (root_set.number, prefix.to_owned());
                let request = AcceptorRequest::Names { root_set: number, prefix };
                calls.push(*to, (), self.members.ask(*to, request));
            }
            let mut answered = BTreeSet::new();
            let mut names = BTreeSet::new();
            while let Some(MemberAnswer { from, answer, .. }) = calls.next().await {
                match answer {
                    Some(AcceptorAnswer::Names(known)) => {
                        answered.insert(from);
                        names.extend(known);
                    }
                    Some(AcceptorAnswer::WrongSet { known: Some(known) }) => {
                        self.learn(&known);
                    }
                    _ => {}
                }
                if answered.len() >= root_set.majority() {
                    return Ok(names);
                }
            }
            if self.runtime.now_ns() >= give_up_ns {
                let (root_set, answered) = (&root_set, &answered);
                let name = prefix;
                let ended = NoMajority { name, root_set, answered, may_be_applied: false };
                return Err(ended.error());
            }
            self.runtime.sleep(self.pause(round)).await;
            round += 1;
            if let Ok(named) = self.members.root_set().await {
                self.learn(&named);
            }
            root_set = self.known.lock().clone();
        }
    }
}

fn ballot_of(request: &AcceptorRequest) -> Ballot {
    match request {
        AcceptorRequest::Prepare { ballot, .. } | AcceptorRequest::Accept { ballot, .. } => *ballot,
        _ => unreachable!("a proposal sends no {request:?}"),
    }
}

/// Ends a round in which every member has answered and no majority was reached. The reason may be a
/// member whose answer belongs to another request.
fn lose_round(proposal: &mut Proposal) {
    let ballot = proposal.ballot();
    for member in proposal.root_set().members.clone() {
        proposal.failed(member, ballot);
    }
}

/// The error of a change that was sent, and whose name has been changed again since.
fn overtaken(name: &str) -> Error {
    Error::busy(format!(
        "the register {name:?}: whether the change was applied is unknown, because other changes \
         followed it; read the value again"
    ))
}
