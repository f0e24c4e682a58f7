//! Seeded runs of proposers, members and replacements of members, with a checker of
//! linearizability, and proofs that the runs notice a protocol with a step left out.

pub(in crate::nodes) mod history;
mod model;

use std::collections::BTreeMap;

use super::super::super::StorageId;
use super::acceptor::{
    Acceptor, AcceptorAnswer, AcceptorRequest, AcceptorSabotage, AcceptorState, CellPage,
    Membership, PAGE_BYTES_MAX, RegisterCell,
};
use super::proposer::{Operation, Proposal, ProposalAction, ProposalResult};
use super::root_change::{RootChange, RootChangeAction, RootChangeSabotage};
use super::{AcceptedValue, Ballot, ChangeId, ROOT_SET_NAME, RootSet, StoredValue};
use crate::register::Versioned;
use model::{Run, Settings};

fn settings() -> Settings {
    Settings {
        acceptor: AcceptorSabotage::default(),
        root_change: RootChangeSabotage::default(),
        replaces_member: false,
        has_pages: false,
    }
}

/// The first seed below `seeds` whose run breaks a rule, and the rule.
fn first_problem(settings: Settings, seeds: u64) -> Option<(u64, String)> {
    (0..seeds).find_map(|seed| Some((seed, Run::new(seed, settings).problem()?)))
}

#[test]
fn operations_are_linearizable_in_every_run() {
    assert_eq!(first_problem(settings(), 1000), None);
}

#[test]
fn operations_are_linearizable_while_members_are_replaced() {
    assert_eq!(first_problem(Settings { replaces_member: true, ..settings() }, 1000), None);
}

#[test]
fn operations_are_linearizable_while_values_are_copied_page_by_page() {
    let settings = Settings { replaces_member: true, has_pages: true, ..settings() };
    assert_eq!(first_problem(settings, 1000), None);
    let mut replaced = 0;
    for seed in 0..200 {
        let mut run = Run::new(seed, settings);
        assert_eq!(run.problem(), None, "seed {seed}");
        replaced += run.replaced();
    }
    assert!(replaced > 100, "{replaced} replacements");
}

#[test]
fn runs_reach_conflicts_crashes_and_replacements() {
    let (mut swapped, mut lost, mut unknown, mut replaced) = (0, 0, 0, 0);
    let (mut followed, mut chained, mut lost_early) = (0, 0, 0);
    // Each of the three replacements of a run stops the register for a while, so a run has few
    // swaps.
    for seed in 0..400 {
        let mut run = Run::new(seed, Settings { replaces_member: true, ..settings() });
        assert_eq!(run.problem(), None, "seed {seed}");
        swapped += run.history.count(|result| matches!(result, ProposalResult::Swapped(_)));
        lost += run.history.count(|result| matches!(result, ProposalResult::Lost(_)));
        unknown += run.history.count(|result| matches!(result, ProposalResult::Unknown));
        replaced += run.replaced();
        chained += usize::from(run.replaced() > 1);
        lost_early += run.lost_early;
        followed += run.followed;
    }
    assert!(swapped > 500, "{swapped} swaps");
    assert!(lost > 500, "{lost} lost swaps");
    assert!(unknown > 500, "{unknown} swaps without an answer");
    assert!(replaced > 500, "{replaced} replacements");
    assert!(chained > 200, "{chained} runs with several replacements");
    assert!(lost_early > 100, "{lost_early} new members were lost before their copies");
    assert!(followed > 500, "{followed} operations continued on the next root set");
}

#[test]
fn promise_that_a_crash_forgets_is_noticed() {
    let acceptor = AcceptorSabotage { promise_not_durable: true, ..AcceptorSabotage::default() };
    assert!(first_problem(Settings { acceptor, ..settings() }, 50_000).is_some());
}

#[test]
fn member_that_counts_after_the_first_page_is_noticed() {
    let acceptor = AcceptorSabotage { partial_copy: true, ..AcceptorSabotage::default() };
    let settings = Settings { acceptor, replaces_member: true, has_pages: true, ..settings() };
    assert!(first_problem(settings, 50_000).is_some());
}

#[test]
fn member_that_counts_before_the_copy_is_noticed() {
    let root_change = RootChangeSabotage { no_copy: true };
    let settings = Settings { root_change, replaces_member: true, ..settings() };
    assert!(first_problem(settings, 50_000).is_some());
}

fn root_set(number: u64, members: &[u64]) -> RootSet {
    RootSet { number, members: members.iter().map(|id| StorageId(*id)).collect() }
}

/// Three members that answer every request immediately.
struct Cluster {
    members: BTreeMap<StorageId, Acceptor>,
    next_change: u64,
}

impl Cluster {
    fn new() -> Self {
        let set = root_set(1, &[1, 2, 3]);
        let members = set.members.iter().map(|id| (*id, Acceptor::founding(set.clone())));
        Self { members: members.collect(), next_change: 0 }
    }

    fn run(&mut self, name: &str, operation: Operation) -> ProposalResult {
        self.next_change += 1;
        let change = ChangeId { proposer: 1, sequence: self.next_change };
        let mut proposal = Proposal::new(name, operation, change, root_set(1, &[1, 2, 3]));
        proposal.start(self.next_change * 10);
        while let Some(action) = proposal.next_action() {
            match action {
                ProposalAction::Send { to, request } => {
                    let ballot = match &request {
                        AcceptorRequest::Prepare { ballot, .. }
                        | AcceptorRequest::Accept { ballot, .. } => *ballot,
                        _ => panic!("a proposal sends no {request:?}"),
                    };
                    let handled = self.members.get_mut(&to).unwrap().handle(request);
                    proposal.answered(to, ballot, handled.answer);
                }
                ProposalAction::RetryLater => proposal.retry(),
                ProposalAction::Done(result) => return result,
            }
        }
        panic!("the proposal does not end")
    }

    fn swap(&mut self, expected: u64, value: Option<&[u8]>) -> ProposalResult {
        let value = value.map(<[u8]>::to_vec);
        self.run("volume/a", Operation::Swap { expected, value })
    }
}

fn versioned(version: u64, value: &[u8]) -> Option<Versioned> {
    Some(Versioned { version, value: value.to_vec() })
}

#[test]
fn swap_needs_the_expected_version() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.run("volume/a", Operation::Read), ProposalResult::Value(None));
    assert_eq!(cluster.swap(1, Some(b"x")), ProposalResult::Lost(None));
    assert_eq!(cluster.swap(0, Some(b"x")), ProposalResult::Swapped(1));
    assert_eq!(cluster.swap(0, Some(b"y")), ProposalResult::Lost(versioned(1, b"x")));
    assert_eq!(cluster.swap(1, Some(b"y")), ProposalResult::Swapped(2));
    let read = cluster.run("volume/a", Operation::Read);
    assert_eq!(read, ProposalResult::Value(versioned(2, b"y")));
}

#[test]
fn removed_name_has_no_value_and_can_be_set_again() {
    let mut cluster = Cluster::new();
    cluster.swap(0, Some(b"x"));
    assert_eq!(cluster.swap(1, None), ProposalResult::Swapped(2));
    assert_eq!(cluster.run("volume/a", Operation::Read), ProposalResult::Value(None));
    assert_eq!(cluster.swap(0, Some(b"y")), ProposalResult::Swapped(3));
}

#[test]
fn names_are_listed_by_prefix() {
    let mut cluster = Cluster::new();
    for name in ["volume/b", "node/1", "volume/a", ROOT_SET_NAME] {
        cluster.run(name, Operation::Swap { expected: 0, value: Some(vec![1]) });
    }
    let request = AcceptorRequest::Names { root_set: 1, prefix: "volume/".to_owned() };
    let member = cluster.members.get_mut(&StorageId(1)).unwrap();
    let names = ["volume/a", "volume/b"].map(str::to_owned).to_vec();
    assert_eq!(member.handle(request).answer, AcceptorAnswer::Names(names));
}

fn ballot(counter: u64) -> Ballot {
    Ballot { root_set: 1, counter, proposer: 7 }
}

#[test]
fn member_refuses_ballots_below_its_promise() {
    let mut member = Acceptor::founding(root_set(1, &[1, 2, 3]));
    let prepare = |counter| AcceptorRequest::Prepare { name: "a".into(), ballot: ballot(counter) };
    let promised = member.handle(prepare(5));
    assert!(promised.is_changed);
    assert_eq!(promised.answer, AcceptorAnswer::Promised { ballot: ballot(5), accepted: None });
    let outbid = AcceptorAnswer::Outbid { ballot: ballot(4), promised: ballot(5) };
    assert_eq!(member.handle(prepare(4)).answer, outbid);
}

#[test]
fn retired_member_refuses_the_old_set_for_good() {
    let (old, next) = (root_set(1, &[1, 2, 3]), root_set(2, &[1, 2, 4]));
    let mut member = Acceptor::founding(old);
    let retired = member.handle(AcceptorRequest::Retire { next: next.clone(), after: None });
    assert!(retired.is_changed);
    // The state survives a crash.
    let mut member = Acceptor::new(member.state().clone());
    let prepare = AcceptorRequest::Prepare { name: "a".into(), ballot: ballot(9) };
    let refused = AcceptorAnswer::WrongSet { known: Some(next.clone()) };
    assert_eq!(member.handle(prepare).answer, refused);
    let activate = AcceptorRequest::Activate { root_set: 2 };
    assert_eq!(member.handle(activate.clone()).answer, refused, "the copy is missing");
    let (root_set, page) = (next.clone(), CellPage::default());
    member.handle(AcceptorRequest::Install { root_set, copy: copy(1), page });
    assert_eq!(member.handle(activate).answer, AcceptorAnswer::Activated);
    assert_eq!(member.state().membership, Membership::Active(next));
}

/// Runs a change of the root set until a majority of the new set answers. Members in `down` do not
/// answer, and the requests that `is_lost` names do not arrive.
fn replace(
    members: &mut BTreeMap<StorageId, Acceptor>,
    old: &RootSet,
    next: &RootSet,
    down: &[u64],
    is_lost: impl Fn(StorageId, &AcceptorRequest) -> bool,
) -> bool {
    let mut change = RootChange::new(old.clone(), next.clone(), copy(next.number)).paged(1);
    let (mut is_done, mut actions) = (false, 0);
    for _ in 0..5 {
        change.ask_again();
        while let Some(action) = change.next_action() {
            actions += 1;
            assert!(actions < 100, "the change does not end");
            match action {
                RootChangeAction::Send { to, request } => {
                    if !down.contains(&to.0) && !is_lost(to, &request) {
                        let handled = members.entry(to).or_insert_with(emptied).handle(request);
                        change.answered(to, handled.answer);
                    }
                }
                RootChangeAction::Done => is_done = true,
                RootChangeAction::Superseded(known) => panic!("superseded by {known:?}"),
            }
        }
    }
    is_done
}

/// The identity of a copy.
fn copy(sequence: u64) -> ChangeId {
    ChangeId { proposer: 8, sequence }
}

fn emptied() -> Acceptor {
    Acceptor::new(AcceptorState::default())
}

#[test]
fn old_member_that_never_became_active_helps_to_leave_its_set() {
    let late = StorageId(2);
    let is_copy = |to: StorageId, it: &AcceptorRequest| {
        to == late && matches!(it, AcceptorRequest::Install { .. })
    };
    let is_activation = |to: StorageId, it: &AcceptorRequest| {
        to == late && matches!(it, AcceptorRequest::Activate { .. })
    };
    let sets = [&[1, 2, 3], &[1, 2, 4], &[1, 2, 5]];
    let [first, second, third] = [1, 2, 3].map(|n: u64| root_set(n, sets[n as usize - 1]));
    for has_copy in [true, false] {
        let mut cluster = Cluster::new();
        cluster.swap(0, Some(b"x"));
        let members = &mut cluster.members;
        let is_done = match has_copy {
            true => replace(members, &first, &second, &[3], is_activation),
            false => replace(members, &first, &second, &[3], is_copy),
        };
        assert!(is_done, "members 1 and 4 answer");
        // Member 4 is lost, so member 2 is needed.
        let old = members[&late].state().clone();
        assert!(!matches!(old.membership, Membership::Active(_)), "{old:?}");
        assert!(replace(members, &second, &third, &[3, 4], |_, _| false), "copy: {has_copy}");
        for id in [1, 2, 5].map(StorageId) {
            let state = members[&id].state();
            assert_eq!(state.membership, Membership::Active(third.clone()), "member {id}");
            let accepted = state.cells["volume/a"].accepted.as_ref().unwrap();
            assert_eq!(accepted.value.value.as_deref(), Some(&b"x"[..]), "member {id}");
        }
    }
}

#[test]
fn copied_ballot_does_not_prove_that_a_value_was_chosen() {
    // A third member may hold a larger ballot of the old set, which the copy has not brought.
    let set = root_set(2, &[1, 2, 3]);
    let change = ChangeId { proposer: 9, sequence: 1 };
    let value = StoredValue { version: 1, change, value: Some(vec![7]) };
    let ends_after_promises = |root_set: u64| {
        let change = ChangeId { proposer: 1, sequence: 1 };
        let mut read = Proposal::new("a", Operation::Read, change, set.clone());
        read.start(10);
        let round = Ballot { root_set: 2, counter: 11, proposer: 1 };
        let ballot = Ballot { root_set, counter: 5, proposer: 9 };
        let accepted = Some(AcceptedValue { ballot, value: value.clone() });
        for member in [1, 2] {
            let accepted = accepted.clone();
            read.answered(
                StorageId(member),
                round,
                AcceptorAnswer::Promised { ballot: round, accepted },
            );
        }
        std::iter::from_fn(|| read.next_action()).any(|a| matches!(a, ProposalAction::Done(_)))
    };
    assert!(!ends_after_promises(1));
    assert!(ends_after_promises(2));
}

#[test]
fn emptied_node_is_no_member() {
    let mut node = Acceptor::new(AcceptorState::default());
    let prepare = AcceptorRequest::Prepare { name: "a".into(), ballot: ballot(1) };
    assert_eq!(node.handle(prepare).answer, AcceptorAnswer::WrongSet { known: None });
}

/// Cells of names with one digit, each with a value of this length.
fn cells(names: std::ops::Range<u8>, len: usize) -> BTreeMap<String, RegisterCell> {
    let cell = |name: u8| {
        let value = StoredValue { version: 1, change: copy(0), value: Some(vec![name; len]) };
        let (promised, ballot) = (ballot(1), ballot(1));
        RegisterCell { promised, accepted: Some(AcceptedValue { ballot, value }) }
    };
    names.map(|name| (name.to_string(), cell(name))).collect()
}

/// A page of names with one digit.
fn page(after: Option<u8>, names: std::ops::Range<u8>, has_more: bool) -> CellPage {
    CellPage { after: after.map(|name| name.to_string()), cells: cells(names, 1), has_more }
}

#[test]
fn read_of_an_unknown_name_leaves_no_cell_and_keeps_its_promise() {
    let mut cluster = Cluster::new();
    cluster.swap(0, Some(b"x"));
    for name in ["a", "volume/mistyped", "z"] {
        assert_eq!(cluster.run(name, Operation::Read), ProposalResult::Value(None));
    }
    let swap = Operation::Swap { expected: 3, value: None };
    assert_eq!(cluster.run("volume/gone", swap), ProposalResult::Lost(None));
    for member in cluster.members.values() {
        assert_eq!(member.state().cells.keys().collect::<Vec<_>>(), ["volume/a"]);
    }
    let mut member = Acceptor::founding(root_set(1, &[1, 2, 3]));
    let prepare = |name: &str, counter| AcceptorRequest::Prepare {
        name: name.to_owned(),
        ballot: ballot(counter),
    };
    member.handle(prepare("a", 5));
    // The promise survives a crash, and holds for a value of the name.
    let mut member = Acceptor::new(member.state().clone());
    let outbid = AcceptorAnswer::Outbid { ballot: ballot(4), promised: ballot(5) };
    let value = StoredValue { version: 1, change: copy(0), value: Some(vec![1]) };
    let accept = |counter| AcceptorRequest::Accept {
        name: "a".to_owned(),
        ballot: ballot(counter),
        value: value.clone(),
    };
    assert_eq!(member.handle(accept(4)).answer, outbid);
    assert_eq!(member.handle(prepare("b", 4)).answer, outbid);
    assert_eq!(member.handle(accept(5)).answer, AcceptorAnswer::Accepted { ballot: ballot(5) });
    // A name with a value has a promise of its own.
    member.handle(prepare("b", 9));
    let promised = member.handle(prepare("a", 6)).answer;
    assert!(matches!(promised, AcceptorAnswer::Promised { accepted: Some(_), .. }), "{promised:?}");
}

#[test]
fn pages_have_all_names_and_stay_within_their_limit() {
    let cells: BTreeMap<String, RegisterCell> = (0..3000)
        .map(|n| (format!("volume/{n:04}"), cells(0..1, 2000).remove("0").unwrap()))
        .collect();
    let (mut all, mut after, mut pages) = (BTreeMap::new(), None, 0);
    loop {
        let page = CellPage::of(&cells, after, PAGE_BYTES_MAX);
        let mut bytes = Vec::new();
        archipelago_base::wire::Wire::put(&page, &mut bytes);
        assert!(bytes.len() <= PAGE_BYTES_MAX + (64 << 10), "{} bytes", bytes.len());
        after = page.last().cloned();
        pages += 1;
        let has_more = page.has_more;
        all.extend(page.cells);
        if !has_more {
            break;
        }
    }
    assert!(pages > 4, "{pages} pages");
    assert_eq!(all, cells);
    let none = CellPage::of(&BTreeMap::new(), None, 1);
    assert_eq!(none, CellPage::default());
}

#[test]
fn member_joins_with_consecutive_pages_of_one_copy_only() {
    let next = root_set(2, &[4, 5, 6]);
    let install = |by, page| AcceptorRequest::Install {
        root_set: root_set(2, &[4, 5, 6]),
        copy: copy(by),
        page,
    };
    let copied =
        |through: &str| AcceptorAnswer::Copied { root_set: 2, through: through.to_owned() };
    let refused = AcceptorAnswer::WrongSet { known: None };
    let activate = AcceptorRequest::Activate { root_set: 2 };
    let mut member = emptied();
    let mut ask = |request: AcceptorRequest| {
        // Every answer survives a crash.
        member = Acceptor::new(member.state().clone());
        let state = member.state().clone();
        let handled = member.handle(request);
        assert_eq!(handled.is_changed, *member.state() != state);
        handled.answer
    };
    assert_eq!(ask(install(1, page(Some(1), 2..4, false))), refused, "it has no first page");
    assert_eq!(ask(install(1, page(None, 0..2, true))), copied("1"));
    assert_eq!(ask(activate.clone()), refused, "it lacks pages");
    let retire = AcceptorRequest::Retire { next: root_set(3, &[4, 5, 7]), after: None };
    assert_eq!(ask(retire), refused, "it has never joined");
    assert_eq!(ask(install(1, page(None, 0..0, true))), refused, "it is no page");
    assert_eq!(ask(install(1, page(Some(3), 4..5, false))), refused, "a page is missing");
    assert_eq!(ask(install(2, page(Some(1), 2..4, false))), refused, "it is of another copy");
    assert_eq!(ask(install(1, page(Some(1), 2..4, true))), copied("3"));
    assert_eq!(ask(install(1, page(Some(1), 2..4, true))), copied("3"), "a lost answer");
    // Another process begins its copy, and the first one cannot complete its own.
    assert_eq!(ask(install(2, page(None, 0..3, true))), copied("2"));
    assert_eq!(ask(install(1, page(Some(3), 4..5, false))), refused);
    assert_eq!(ask(install(2, page(Some(2), 3..5, false))), AcceptorAnswer::Installed);
    assert_eq!(ask(install(1, page(None, 0..1, true))), AcceptorAnswer::Installed, "it has all");
    assert_eq!(ask(activate), AcceptorAnswer::Activated);
    assert_eq!(member.state().membership, Membership::Active(next));
    assert_eq!(member.state().cells.len(), 5);
    assert_eq!(member.state().copy, None);
}

#[test]
fn first_page_ends_the_membership_in_earlier_sets() {
    let install = |number, after: Option<u8>, has_more| AcceptorRequest::Install {
        root_set: root_set(number, &[1, 2, 4]),
        copy: copy(number),
        page: page(after, after.map_or(0, |name| name + 1)..5, has_more),
    };
    let retire = |number| {
        let next = root_set(number, &[1, 2, 4]);
        AcceptorRequest::Retire { next, after: None }
    };
    // A member of the previous set retires, and still supplies its values.
    let mut member = Acceptor::founding(root_set(1, &[1, 2, 3]));
    member.handle(install(2, None, true));
    let prepare = AcceptorRequest::Prepare { name: "a".into(), ballot: ballot(9) };
    let refused = AcceptorAnswer::WrongSet { known: Some(root_set(2, &[1, 2, 4])) };
    assert_eq!(member.handle(prepare).answer, refused);
    let AcceptorAnswer::Retired(known) = member.handle(retire(2)).answer else {
        panic!("it has left set 1")
    };
    assert_eq!(known.cells.len(), 5);
    // A node of an earlier set drops its values, and never again joins a set that it has left.
    let mut member = Acceptor::founding(root_set(3, &[1, 2, 3]));
    member.handle(install(9, None, true));
    assert_eq!(member.state().membership, Membership::Copying { least: 4 });
    let nothing = AcceptorAnswer::WrongSet { known: None };
    assert_eq!(member.handle(retire(9)).answer, nothing);
    assert_eq!(member.handle(install(3, None, false)).answer, nothing);
    // Another process may need it as a member of the set before.
    assert_eq!(member.handle(install(8, None, false)).answer, AcceptorAnswer::Installed);
    assert_eq!(
        member.handle(install(9, Some(4), false)).answer,
        AcceptorAnswer::WrongSet { known: Some(root_set(8, &[1, 2, 4])) }
    );
    assert!(matches!(member.handle(retire(9)).answer, AcceptorAnswer::Retired(_)));
}

#[test]
fn late_copy_of_the_old_set_is_not_taken_for_one_of_the_next() {
    let (old, next) = (root_set(1, &[1, 2, 3]), root_set(2, &[1, 2, 4]));
    let mut change = RootChange::new(old.clone(), next, copy(2));
    let retired = |names: std::ops::Range<u8>| AcceptorAnswer::Retired(page(None, names, false));
    change.ask_again();
    change.answered(StorageId(1), retired(0..5));
    change.answered(StorageId(2), AcceptorAnswer::WrongSet { known: None });
    change.answered(StorageId(3), retired(0..5));
    // Member 2 has joined the old set, and the request to join the next one is lost.
    change.answered(StorageId(2), AcceptorAnswer::Installed);
    change.answered(StorageId(1), AcceptorAnswer::Installed);
    change.answered(StorageId(2), AcceptorAnswer::WrongSet { known: Some(old) });
    while change.next_action().is_some() {}
    change.ask_again();
    let is_copy = |action| {
        let RootChangeAction::Send { to, request } = action else { return false };
        to == StorageId(2) && matches!(request, AcceptorRequest::Install { .. })
    };
    assert!(std::iter::from_fn(|| change.next_action()).any(is_copy));
}
