use std::path::PathBuf;
use std::sync::Arc;

use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};
use archipelago_env::mem::MemFs;
use archipelago_fabric::{ClientId, ClusterId};
use archipelago_store::nodes::StorageId;
use archipelago_store::nodes::register::caspaxos::acceptor::{
    AcceptorAnswer, AcceptorRequest, CellPage, RegisterCell,
};
use archipelago_store::nodes::register::caspaxos::{
    AcceptedValue, Ballot, ChangeId, RootSet, StoredValue,
};
use archipelago_store::nodes::wire::{RefusalWhy, StoreMessage};

use crate::meta::MetaThreads;
use crate::node::StorageNode;
use crate::parts::NodeOptions;

const CLUSTER: ClusterId = ClusterId([7; 16]);

fn open(fs: &MemFs) -> Arc<StorageNode> {
    let options =
        NodeOptions { meta_threads: MetaThreads::Caller, seed: Some(5), ..NodeOptions::default() };
    StorageNode::open(Arc::new(fs.clone()), &[PathBuf::from("/device")], options).unwrap()
}

fn first_set(node: &StorageNode) -> RootSet {
    RootSet { number: 1, members: vec![node.storage(), StorageId(2), StorageId(3)] }
}

fn found(node: &StorageNode, cluster: ClusterId, root_set: RootSet) -> StoreMessage {
    node.handle(ClientId(1), StoreMessage::Found { cluster, root_set }, &[]).0
}

fn ask(node: &StorageNode, request: AcceptorRequest) -> AcceptorAnswer {
    match node.handle(ClientId(1), StoreMessage::Acceptor { request }, &[]).0 {
        StoreMessage::AcceptorIs { answer } => answer,
        other => panic!("no answer of an acceptor: {other:?}"),
    }
}

fn ballot(root_set: u64, counter: u64) -> Ballot {
    Ballot { root_set, counter, proposer: 4 }
}

fn prepare(root_set: u64, counter: u64) -> AcceptorRequest {
    AcceptorRequest::Prepare { name: "volume/a".to_owned(), ballot: ballot(root_set, counter) }
}

fn accept(counter: u64, value: &[u8]) -> AcceptorRequest {
    let change = ChangeId { proposer: 4, sequence: counter };
    let value = StoredValue { version: counter, change, value: Some(value.to_vec()) };
    AcceptorRequest::Accept { name: "volume/a".to_owned(), ballot: ballot(1, counter), value }
}

/// The identity of a copy.
fn copy(sequence: u64) -> ChangeId {
    ChangeId { proposer: 6, sequence }
}

/// A page of a copy with one name.
fn page(after: Option<&str>, name: &str, has_more: bool) -> CellPage {
    let value = StoredValue { version: 1, change: copy(0), value: Some(vec![1]) };
    let accepted = Some(AcceptedValue { ballot: ballot(1, 1), value });
    let cell = RegisterCell { promised: ballot(1, 1), accepted };
    CellPage { after: after.map(str::to_owned), cells: [(name.to_owned(), cell)].into(), has_more }
}

/// The node after a power loss, for several seeds.
fn after_power_loss(fs: &MemFs) -> impl Iterator<Item = Arc<StorageNode>> {
    (0..8).map(|seed| open(&fs.crash_clone(seed)))
}

#[test]
fn founded_member_answers_over_power_loss() {
    let fs = MemFs::new();
    let node = open(&fs);
    assert_eq!(ask(&node, prepare(1, 1)), AcceptorAnswer::WrongSet { known: None });
    assert_eq!(found(&node, CLUSTER, first_set(&node)), StoreMessage::Done {});
    assert_eq!(found(&node, CLUSTER, first_set(&node)), StoreMessage::Done {}, "repeated");
    for node in after_power_loss(&fs) {
        let promised = AcceptorAnswer::Promised { ballot: ballot(1, 1), accepted: None };
        assert_eq!(ask(&node, prepare(1, 1)), promised);
    }
}

#[test]
fn node_belongs_to_one_cluster() {
    let node = open(&MemFs::new());
    found(&node, CLUSTER, first_set(&node));
    for (cluster, number) in [(ClusterId([8; 16]), 1), (CLUSTER, 2)] {
        let answer = found(&node, cluster, RootSet { number, ..first_set(&node) });
        assert!(
            matches!(answer, StoreMessage::Refuse { why: RefusalWhy::WrongCluster, .. }),
            "{answer:?}"
        );
    }
}

#[test]
fn node_outside_of_the_set_knows_it_without_answering() {
    let fs = MemFs::new();
    let node = open(&fs);
    let members = vec![StorageId(1), StorageId(2), StorageId(3)];
    found(&node, CLUSTER, RootSet { number: 1, members });
    assert_eq!(ask(&node, prepare(1, 1)), AcceptorAnswer::WrongSet { known: None });
    let known = open(&fs.crash_clone(1)).parts().devices.cluster().unwrap();
    assert_eq!((known.id, known.root_set.number), (CLUSTER, 1));
}

#[test]
fn promises_and_values_survive_power_loss() {
    let fs = MemFs::new();
    let node = open(&fs);
    found(&node, CLUSTER, first_set(&node));
    ask(&node, prepare(1, 1));
    assert_eq!(ask(&node, accept(1, b"owner")), AcceptorAnswer::Accepted { ballot: ballot(1, 1) });
    ask(&node, prepare(1, 5));
    for node in after_power_loss(&fs) {
        let outbid = AcceptorAnswer::Outbid { ballot: ballot(1, 4), promised: ballot(1, 5) };
        assert_eq!(ask(&node, prepare(1, 4)), outbid);
        let AcceptorAnswer::Promised { accepted: Some(accepted), .. } = ask(&node, prepare(1, 6))
        else {
            panic!("the value is lost");
        };
        assert_eq!(accepted.ballot, ballot(1, 1));
        assert_eq!(accepted.value.value.as_deref(), Some(&b"owner"[..]));
    }
}

#[test]
fn steps_of_a_root_change_survive_power_loss() {
    let fs = MemFs::new();
    let node = open(&fs);
    found(&node, CLUSTER, first_set(&node));
    ask(&node, accept(1, b"owner"));
    let next = RootSet { number: 2, ..first_set(&node) };
    let retire = AcceptorRequest::Retire { next: next.clone(), after: None };
    let AcceptorAnswer::Retired(page) = ask(&node, retire) else {
        panic!("the member did not retire");
    };
    for node in after_power_loss(&fs) {
        assert!(matches!(ask(&node, prepare(1, 9)), AcceptorAnswer::WrongSet { .. }));
    }
    let install = AcceptorRequest::Install { root_set: next, copy: copy(1), page };
    assert_eq!(ask(&node, install), AcceptorAnswer::Installed);
    let activate = AcceptorRequest::Activate { root_set: 2 };
    assert_eq!(ask(&node, activate), AcceptorAnswer::Activated);
    for node in after_power_loss(&fs) {
        let answer = ask(&node, prepare(2, 1));
        assert!(matches!(answer, AcceptorAnswer::Promised { accepted: Some(_), .. }), "{answer:?}");
        assert_eq!(node.parts().devices.cluster().unwrap().root_set.number, 2);
    }
}

/// A founded member on a disk that fails by a script.
fn faulty_member(fs: &MemFs) -> (FaultFs, Arc<StorageNode>) {
    let faults = FaultFs::new(Arc::new(fs.clone()), 1);
    let options =
        NodeOptions { meta_threads: MetaThreads::Caller, seed: Some(5), ..NodeOptions::default() };
    let devices = [PathBuf::from("/device")];
    let node = StorageNode::open(Arc::new(faults.clone()), &devices, options).unwrap();
    found(&node, CLUSTER, first_set(&node));
    ask(&node, accept(1, b"owner"));
    (faults, node)
}

fn tell(node: &StorageNode, request: &AcceptorRequest) -> Option<AcceptorAnswer> {
    let request = StoreMessage::Acceptor { request: request.clone() };
    match node.handle(ClientId(1), request, &[]).0 {
        StoreMessage::AcceptorIs { answer } => Some(answer),
        StoreMessage::Refuse { .. } => None,
        other => panic!("no answer of an acceptor: {other:?}"),
    }
}

#[test]
fn change_that_was_not_written_is_not_confirmed_when_repeated() {
    for operation in [Operation::LogAppend, Operation::LogSync] {
        for fault in [Fault::Io, Fault::NoSpace] {
            let fs = MemFs::new();
            let (faults, node) = faulty_member(&fs);
            let next = RootSet { number: 2, ..first_set(&node) };
            let retire = AcceptorRequest::Retire { next, after: None };
            faults.add(Rule::on(operation).path("/meta/").fault(fault).times(1));
            for attempt in 0..3 {
                if tell(&node, &retire).is_none() {
                    continue;
                }
                for node in after_power_loss(&fs) {
                    let known = ask(&node, prepare(1, 5));
                    let holds = matches!(known, AcceptorAnswer::WrongSet { .. });
                    assert!(holds, "{operation:?} {fault:?}, attempt {attempt}: {known:?}");
                }
            }
        }
    }
}

#[test]
fn refused_change_leaves_the_register_as_it_was() {
    let fs = MemFs::new();
    let (faults, node) = faulty_member(&fs);
    faults.add(Rule::on(Operation::LogAppend).path("/meta/").times(1));
    assert_eq!(tell(&node, &prepare(1, 7)), None);
    faults.add(Rule::on(Operation::LogAppend).path("/meta/"));
    let next = RootSet { number: 2, ..first_set(&node) };
    assert_eq!(tell(&node, &AcceptorRequest::Retire { next, after: None }), None);
    // No answer has revealed the promise of ballot 7 or the retirement.
    let outbid = AcceptorAnswer::Outbid { ballot: ballot(1, 0), promised: ballot(1, 1) };
    assert_eq!(ask(&node, prepare(1, 0)), outbid);
}

#[test]
fn new_member_drops_what_it_knew_before() {
    let fs = MemFs::new();
    let node = open(&fs);
    found(&node, CLUSTER, first_set(&node));
    ask(&node, accept(1, b"owner"));
    let root_set = RootSet { number: 5, ..first_set(&node) };
    let next = RootSet { number: 2, ..root_set.clone() };
    ask(&node, AcceptorRequest::Retire { next, after: None });
    let page = CellPage::default();
    ask(&node, AcceptorRequest::Install { root_set, copy: copy(1), page });
    ask(&node, AcceptorRequest::Activate { root_set: 5 });
    for node in after_power_loss(&fs) {
        let names = AcceptorRequest::Names { root_set: 5, prefix: String::new() };
        assert_eq!(ask(&node, names), AcceptorAnswer::Names(Vec::new()));
    }
}

#[test]
fn pages_of_a_copy_survive_power_loss_and_the_last_one_completes_it() {
    let fs = MemFs::new();
    let node = open(&fs);
    let known = RootSet { number: 1, members: vec![StorageId(1), StorageId(2), StorageId(3)] };
    found(&node, CLUSTER, known);
    let next = RootSet { number: 2, ..first_set(&node) };
    let install = |by, page| {
        let root_set = next.clone();
        AcceptorRequest::Install { root_set, copy: copy(by), page }
    };
    let copied = AcceptorAnswer::Copied { root_set: 2, through: "volume/a".to_owned() };
    assert_eq!(ask(&node, install(1, page(None, "volume/a", true))), copied);
    for node in after_power_loss(&fs) {
        let activated = ask(&node, AcceptorRequest::Activate { root_set: 2 });
        assert_eq!(activated, AcceptorAnswer::WrongSet { known: None }, "it lacks a page");
        let of_another = install(2, page(Some("volume/a"), "volume/b", false));
        assert!(matches!(ask(&node, of_another), AcceptorAnswer::WrongSet { .. }));
        let last = install(1, page(Some("volume/a"), "volume/b", false));
        assert_eq!(ask(&node, last), AcceptorAnswer::Installed);
        let activate = AcceptorRequest::Activate { root_set: 2 };
        assert_eq!(ask(&node, activate), AcceptorAnswer::Activated);
        let names = AcceptorRequest::Names { root_set: 2, prefix: String::new() };
        let both = ["volume/a", "volume/b"].map(str::to_owned).to_vec();
        assert_eq!(ask(&node, names), AcceptorAnswer::Names(both));
    }
}

#[test]
fn promise_of_an_unknown_name_survives_power_loss_without_an_entry() {
    let fs = MemFs::new();
    let node = open(&fs);
    found(&node, CLUSTER, first_set(&node));
    for name in ["volume/mistyped", "volume/gone"] {
        let (name, ballot) = (name.to_owned(), ballot(1, 7));
        ask(&node, AcceptorRequest::Prepare { name, ballot });
    }
    for node in after_power_loss(&fs) {
        let names = AcceptorRequest::Names { root_set: 1, prefix: String::new() };
        assert_eq!(ask(&node, names), AcceptorAnswer::Names(Vec::new()));
        let outbid = AcceptorAnswer::Outbid { ballot: ballot(1, 6), promised: ballot(1, 7) };
        assert_eq!(ask(&node, accept(6, b"late")), outbid);
    }
}
