//! A model of members with durable state and of a network without order, around real proposals and
//! changes of the root set.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_base::random::Rng;

use super::super::super::super::StorageId;
use super::super::acceptor::{
    Acceptor, AcceptorAnswer, AcceptorRequest, AcceptorSabotage, AcceptorState, PAGE_BYTES_MAX,
    RegisterCell,
};
use super::super::proposer::{Operation, Proposal, ProposalAction, ProposalResult};
use super::super::root_change::{RootChange, RootChangeAction, RootChangeSabotage};
use super::super::{AcceptedValue, Ballot, ChangeId, RootSet, StoredValue};
use super::history::{History, value_of};

const NAME: &str = "volume/reef";
const CLIENTS: usize = 4;
/// Number of replacements of a run, at most.
const REPLACEMENTS_MAX: u64 = 3;

/// Settings of a seeded run.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub(super) acceptor: AcceptorSabotage,
    pub(super) root_change: RootChangeSabotage,
    /// Whether members are lost and replaced, also new ones that do not have their copy yet.
    pub(super) replaces_member: bool,
    /// Whether the members know other names as well, and a page has one name.
    pub(super) has_pages: bool,
}

impl Settings {
    fn page_bytes_max(&self) -> usize {
        if self.has_pages { 1 } else { PAGE_BYTES_MAX }
    }

    /// A member with a state.
    fn member(&self, state: AcceptorState) -> Acceptor {
        Acceptor::new(state).paged(self.page_bytes_max()).sabotaged(self.acceptor)
    }

    /// State of a member of the first root set.
    fn founding(&self, root_set: &RootSet) -> AcceptorState {
        let mut state = Acceptor::founding(root_set.clone()).state().clone();
        if self.has_pages {
            let cell = |name: &str| {
                let ballot = Ballot { root_set: 1, counter: 1, proposer: 99 };
                let change = ChangeId { proposer: 99, sequence: 1 };
                let value = StoredValue { version: 1, change, value: Some(vec![1]) };
                let accepted = Some(AcceptedValue { ballot, value });
                (name.to_owned(), RegisterCell { promised: ballot, accepted })
            };
            state.cells.extend(["root-set", "volume/a", "volume/z"].map(cell));
        }
        state
    }
}

struct Member {
    acceptor: Acceptor,
    durable: AcceptorState,
    is_up: bool,
}

/// The process that a message belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Process {
    Client(usize),
    Change(usize),
}

#[derive(Clone)]
struct Message {
    process: Process,
    member: StorageId,
    ballot: Ballot,
    body: Body,
}

#[derive(Clone)]
enum Body {
    Request(AcceptorRequest),
    Answer(AcceptorAnswer),
    /// The request or its answer was lost.
    Failed,
}

/// A client and its running operation.
struct Client {
    root_set: RootSet,
    running: Option<(usize, Proposal)>,
    waits: bool,
    counter: u64,
    /// Version that the client saw last.
    version: u64,
}

/// A process that replaces a member.
struct RunningChange {
    /// Number of the new set.
    number: u64,
    /// `None` when another set has taken the place of the new one.
    change: Option<RootChange>,
}

/// One seeded run.
pub(super) struct Run {
    rng: Rng,
    settings: Settings,
    time: u64,
    members: BTreeMap<StorageId, Member>,
    lost: BTreeSet<StorageId>,
    clients: Vec<Client>,
    changes: Vec<RunningChange>,
    newest: RootSet,
    /// Numbers of the sets of which a majority answers.
    answering: BTreeSet<u64>,
    network: Vec<Message>,
    losses_percent: u32,
    pub(super) history: History,
    /// Number of new members that were lost before their sets answered.
    pub(super) lost_early: u32,
    /// Number of operations that continued on the next root set.
    pub(super) followed: u32,
    is_healed: bool,
}

impl Run {
    pub(super) fn new(seed: u64, settings: Settings) -> Self {
        let mut rng = Rng::with_seed(seed);
        let size = if rng.u8(0..4) == 0 { 5 } else { 3 };
        let root_set = RootSet { number: 1, members: (1..=size).map(StorageId).collect() };
        let member = |id: u64| {
            let durable = match id <= size {
                true => settings.founding(&root_set),
                false => AcceptorState::default(),
            };
            let acceptor = settings.member(durable.clone());
            (StorageId(id), Member { acceptor, durable, is_up: true })
        };
        let client = |_| Client {
            root_set: root_set.clone(),
            running: None,
            waits: false,
            counter: 0,
            version: 0,
        };
        Self {
            losses_percent: rng.u32(0..10),
            rng,
            settings,
            time: 0,
            members: (1..=size + REPLACEMENTS_MAX).map(member).collect(),
            lost: BTreeSet::new(),
            clients: (0..CLIENTS).map(client).collect(),
            changes: Vec::new(),
            newest: root_set,
            answering: BTreeSet::from([1]),
            network: Vec::new(),
            history: History::default(),
            lost_early: 0,
            followed: 0,
            is_healed: false,
        }
    }

    /// Runs to the end, and returns the rule that was broken, if any.
    pub(super) fn problem(&mut self) -> Option<String> {
        for _ in 0..self.rng.u32(200..1500) {
            self.step();
        }
        self.heal();
        let answer = self.history.problem();
        answer.or_else(|| (!self.is_healed).then(|| "the last read does not end".to_owned()))
    }

    fn step(&mut self) {
        self.time += 1;
        match self.rng.u32(0..100) {
            0..70 => self.deliver(),
            70..84 => {
                let client = self.rng.usize(0..CLIENTS);
                self.act(client);
            }
            84..90 => self.crash_or_restart(),
            90 => self.give_up(),
            91 if self.settings.replaces_member => self.replace_member(),
            92..94 => self.repeat_change(),
            _ => {}
        }
    }

    /// A client begins an operation, or tries again.
    fn act(&mut self, at: usize) {
        let time = self.time;
        let client = &mut self.clients[at];
        if let Some((_, proposal)) = &mut client.running {
            if client.waits {
                client.waits = false;
                proposal.retry();
            }
        } else {
            let expected = client.version;
            let operation = match self.rng.u8(0..3) {
                0 => Operation::Read,
                _ => Operation::Swap { expected, value: Some(value_of(self.history.next())) },
            };
            let number = self.history.begin(time, operation.clone());
            let change = ChangeId { proposer: at as u64 + 1, sequence: number as u64 };
            let mut proposal = Proposal::new(NAME, operation, change, client.root_set.clone());
            proposal.start(client.counter);
            client.running = Some((number, proposal));
            client.waits = false;
        }
        self.drive(at);
    }

    fn give_up(&mut self) {
        let at = self.rng.usize(0..CLIENTS);
        if let Some((_, proposal)) = &mut self.clients[at].running {
            proposal.give_up();
        }
        self.drive(at);
    }

    fn drive(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let Some((number, proposal)) = &mut client.running else { return };
        let number = *number;
        client.counter = client.counter.max(proposal.counter());
        let mut result = None;
        while let Some(action) = proposal.next_action() {
            match action {
                ProposalAction::Send { to, request } => {
                    let ballot = match &request {
                        AcceptorRequest::Prepare { ballot, .. }
                        | AcceptorRequest::Accept { ballot, .. } => *ballot,
                        _ => unreachable!("a proposal sends no {request:?}"),
                    };
                    let body = Body::Request(request);
                    let process = Process::Client(at);
                    self.network.push(Message { process, member: to, ballot, body });
                }
                ProposalAction::RetryLater => client.waits = true,
                ProposalAction::Done(done) => result = Some(done),
            }
        }
        let Some(result) = result else { return };
        let newer = proposal.newer_set().cloned();
        if let Some(newer) = newer
            && self.rng.u8(0..4) > 0
        {
            client.root_set = newer.clone();
            client.waits = false;
            proposal.follow(newer);
            self.followed += 1;
            self.drive(at);
            return;
        }
        client.running = None;
        match &result {
            ProposalResult::Value(value) | ProposalResult::Lost(value) => {
                client.version = value.as_ref().map_or(0, |value| value.version);
            }
            ProposalResult::Swapped(version) => client.version = *version,
            ProposalResult::Replaced(Some(next)) => client.root_set = next.clone(),
            ProposalResult::Unknown | ProposalResult::Replaced(None) => {
                client.root_set = self.newest.clone();
            }
        }
        self.history.end(self.time, number, result);
    }

    /// Delivers a random message, or loses or duplicates it.
    fn deliver(&mut self) {
        if self.network.is_empty() {
            return;
        }
        let at = self.rng.usize(0..self.network.len());
        let message = match self.rng.u8(0..30) {
            0 if self.network.len() < 200 => self.network[at].clone(),
            _ => self.network.swap_remove(at),
        };
        let is_lost = self.rng.u32(0..100) < self.losses_percent;
        let Message { process, member: id, ballot, body } = message;
        match body {
            Body::Request(request) => {
                let member = self.members.get_mut(&id).unwrap();
                let body = if is_lost || !member.is_up {
                    Body::Failed
                } else {
                    let handled = member.acceptor.handle(request);
                    if handled.is_changed {
                        member.durable = member.acceptor.state().clone();
                    }
                    Body::Answer(handled.answer)
                };
                self.network.push(Message { process, member: id, ballot, body });
            }
            Body::Answer(answer) if !is_lost => self.answer(process, id, ballot, answer),
            Body::Answer(_) | Body::Failed => self.answer_failed(process, id, ballot),
        }
    }

    fn answer(&mut self, process: Process, id: StorageId, ballot: Ballot, answer: AcceptorAnswer) {
        match process {
            Process::Client(at) => {
                if let Some((_, proposal)) = &mut self.clients[at].running {
                    proposal.answered(id, ballot, answer);
                }
                self.drive(at);
            }
            Process::Change(at) => {
                if let Some(change) = &mut self.changes[at].change {
                    change.answered(id, answer);
                }
                self.drive_change(at);
            }
        }
    }

    fn answer_failed(&mut self, process: Process, id: StorageId, ballot: Ballot) {
        if let Process::Client(at) = process {
            if let Some((_, proposal)) = &mut self.clients[at].running {
                proposal.failed(id, ballot);
            }
            self.drive(at);
        }
    }

    /// A member crashes and keeps its durable state, or comes back.
    fn crash_or_restart(&mut self) {
        let ids: Vec<StorageId> = self.members.keys().copied().collect();
        let id = ids[self.rng.usize(0..ids.len())];
        let is_restart = self.rng.u8(0..3) > 0;
        let settings = self.settings;
        let is_lost = self.lost.contains(&id);
        let member = self.members.get_mut(&id).unwrap();
        member.is_up = is_restart && !is_lost;
        member.acceptor = settings.member(member.durable.clone());
    }

    /// Number of sets that took the place of another one and answer.
    pub(super) fn replaced(&self) -> usize {
        self.answering.len() - 1
    }

    fn lose(&mut self, id: StorageId) {
        self.lost.insert(id);
        self.members.get_mut(&id).unwrap().is_up = false;
    }

    /// Loses a member and replaces it, or replaces a new member that was lost. The next set is
    /// chosen by construction: the first step of a replacement is an ordinary swap, which the other
    /// runs test.
    fn replace_member(&mut self) {
        let old = self.newest.clone();
        let is_idle = self.answering.contains(&old.number);
        if !is_idle || old.number > REPLACEMENTS_MAX || self.time < 100 {
            return;
        }
        let lost = old.members.iter().copied().find(|id| self.lost.contains(id));
        let lost = lost.unwrap_or_else(|| old.members[self.rng.usize(0..old.members.len())]);
        self.lose(lost);
        // The numbers of the first members are one to the size of the first set.
        let new = StorageId(old.members.len() as u64 + old.number);
        let members = old.members.iter().map(|id| if *id == lost { new } else { *id });
        let next = RootSet { number: old.number + 1, members: members.collect() };
        self.newest = next.clone();
        if self.rng.u8(0..3) == 0 {
            self.lose(new);
            self.lost_early += 1;
        }
        for _ in 0..self.rng.u8(1..3) {
            let copy = ChangeId { proposer: 98, sequence: self.changes.len() as u64 };
            let change = RootChange::new(old.clone(), next.clone(), copy);
            let change = change.paged(self.settings.page_bytes_max());
            let change = Some(change.sabotaged(self.settings.root_change));
            self.changes.push(RunningChange { number: next.number, change });
        }
        self.repeat_change();
    }

    /// A process that replaces a member asks again, or crashes and begins anew.
    fn repeat_change(&mut self) {
        if self.changes.is_empty() {
            return;
        }
        let at = self.rng.usize(0..self.changes.len());
        if let Some(change) = &mut self.changes[at].change {
            change.ask_again();
        }
        self.drive_change(at);
    }

    fn drive_change(&mut self, at: usize) {
        let RunningChange { number, change } = &mut self.changes[at];
        let mut is_superseded = false;
        while let Some(action) = change.as_mut().and_then(RootChange::next_action) {
            match action {
                RootChangeAction::Send { to, request } => {
                    let (process, body) = (Process::Change(at), Body::Request(request));
                    let ballot = Ballot::default();
                    self.network.push(Message { process, member: to, ballot, body });
                }
                RootChangeAction::Done => {
                    self.answering.insert(*number);
                }
                RootChangeAction::Superseded(known) => {
                    assert!(known.number > *number, "one set has two successors");
                    is_superseded = true;
                }
            }
        }
        if is_superseded {
            *change = None;
        }
    }

    /// Ends all faults, and reads the value.
    fn heal(&mut self) {
        self.losses_percent = 0;
        for (id, member) in &mut self.members {
            member.is_up = !self.lost.contains(id);
        }
        for _ in 0..30 {
            for at in 0..self.changes.len() {
                if let Some(change) = self.changes[at].change.as_mut() {
                    change.ask_again();
                }
                self.drive_change(at);
            }
            self.run_dry();
        }
        for at in 0..CLIENTS {
            self.time += 1;
            if let Some((_, proposal)) = &mut self.clients[at].running {
                proposal.give_up();
            }
            self.drive(at);
        }
        self.clients[0].root_set = self.newest.clone();
        let number = self.history.begin(self.time, Operation::Read);
        let change = ChangeId { proposer: 1, sequence: number as u64 };
        let root_set = self.newest.clone();
        let mut proposal = Proposal::new(NAME, Operation::Read, change, root_set);
        self.time += 1;
        proposal.start(self.clients[0].counter);
        self.clients[0].running = Some((number, proposal));
        self.drive(0);
        for _ in 0..30 {
            self.run_dry();
            if let Some((_, proposal)) = &mut self.clients[0].running {
                proposal.retry();
            }
            self.drive(0);
        }
        self.is_healed = self.clients[0].running.is_none();
    }

    /// Delivers messages until none is under way.
    fn run_dry(&mut self) {
        for _ in 0..5000 {
            if self.network.is_empty() {
                return;
            }
            self.time += 1;
            self.deliver();
        }
    }
}
