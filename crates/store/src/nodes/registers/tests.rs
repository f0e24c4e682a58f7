//! Seeded runs of the driver over members in virtual time, whose histories must be linearizable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::runtime::{Boxed, Runtime};
use archipelago_base::simulation::{Host, Simulation};
use archipelago_base::{ErrorKind, Result};
use archipelago_fabric::BULK_BYTES_MAX;
use parking_lot::Mutex;

use super::super::StorageId;
use super::super::register::caspaxos::acceptor::{
    Acceptor, AcceptorAnswer, AcceptorRequest, AcceptorState, CellPage, RegisterCell,
};
use super::super::register::caspaxos::proposer::{Operation, ProposalResult};
use super::super::register::caspaxos::tests::history::{History, value_of};
use super::super::register::caspaxos::{AcceptedValue, Ballot, ChangeId, RootSet, StoredValue};
use super::super::wire::{StoreMessage, envelope};
use super::{NodeRegister, RootMembers};
use crate::register::{Register, Swap, Versioned};

const NAME: &str = "volume/reef";
const CLIENTS: u64 = 3;
const OPERATIONS: u32 = 25;
/// Time after which a caller takes a request for lost.
const DEADLINE: Duration = Duration::from_millis(100);
/// Nodes that may be members: the first three are the first root set.
const NODES: u64 = 5;

/// Storage nodes behind a network that delays and loses messages.
#[derive(Debug)]
struct Nodes {
    host: Host,
    state: Mutex<NodesState>,
    losses_percent: u32,
}

#[derive(Debug)]
struct NodesState {
    rng: Rng,
    acceptors: BTreeMap<StorageId, Acceptor>,
    down: BTreeSet<StorageId>,
    /// The root set that the managers name.
    named: RootSet,
    /// Whether answers are lost, and members go down.
    is_faulty: bool,
    /// Bytes of the largest request or answer so far.
    largest_bytes: usize,
    /// Number of requests to retire and to take a copy.
    pages: u64,
}

impl NodesState {
    fn note_size(&mut self, message: &StoreMessage) {
        self.largest_bytes = self.largest_bytes.max(envelope::seal(message, &[]).len());
    }
}

fn root_set(number: u64, members: &[u64]) -> RootSet {
    RootSet { number, members: members.iter().map(|id| StorageId(*id)).collect() }
}

impl Nodes {
    fn new(host: Host, seed: u64) -> Arc<Self> {
        let first = root_set(1, &[1, 2, 3]);
        let acceptor = |id: u64| {
            let acceptor = match first.members.contains(&StorageId(id)) {
                true => Acceptor::founding(first.clone()),
                false => Acceptor::new(AcceptorState::default()),
            };
            (StorageId(id), acceptor)
        };
        let acceptors = (1..=NODES).map(acceptor).collect();
        let mut rng = Rng::with_seed(seed);
        let losses_percent = rng.u32(0..12);
        let down = BTreeSet::new();
        let state = NodesState {
            rng,
            acceptors,
            down,
            named: first.clone(),
            is_faulty: true,
            largest_bytes: 0,
            pages: 0,
        };
        Arc::new(Self { host, state: Mutex::new(state), losses_percent })
    }

    /// A delay, and whether the message that has it gets lost.
    fn draw(&self) -> (Duration, bool) {
        let mut state = self.state.lock();
        let longest_us = if state.rng.u8(0..10) == 0 { 20_000 } else { 1_000 };
        let delay = Duration::from_micros(state.rng.u64(10..longest_us));
        let is_lost = state.is_faulty && state.rng.u32(0..100) < self.losses_percent;
        (delay, is_lost)
    }

    async fn deliver(&self, to: StorageId, request: AcceptorRequest) -> Option<AcceptorAnswer> {
        let started_ns = self.host.now_ns();
        let (delay, is_lost) = self.draw();
        self.host.sleep(delay).await;
        let handled = {
            let mut state = self.state.lock();
            let is_down = state.down.contains(&to);
            let is_page =
                matches!(request, AcceptorRequest::Retire { .. } | AcceptorRequest::Install { .. });
            state.pages += u64::from(is_page);
            state.note_size(&StoreMessage::Acceptor { request: request.clone() });
            let acceptor = state.acceptors.get_mut(&to).filter(|_| !is_lost && !is_down);
            let answer = acceptor.map(|acceptor| acceptor.handle(request).answer);
            if let Some(answer) = &answer {
                state.note_size(&StoreMessage::AcceptorIs { answer: answer.clone() });
            }
            answer
        };
        let (delay, is_lost) = self.draw();
        self.host.sleep(delay).await;
        if handled.is_none() || is_lost {
            let passed = Duration::from_nanos(self.host.now_ns() - started_ns);
            self.host.sleep(DEADLINE.saturating_sub(passed)).await;
            return None;
        }
        handled
    }

    /// Members go down and come back, at most `max` of the root set at a time.
    async fn disturb(&self, max: usize) {
        for _ in 0..40 {
            let pause = {
                let mut state = self.state.lock();
                let id = StorageId(state.rng.u64(1..=NODES));
                if !state.down.remove(&id) && state.down.len() < max {
                    state.down.insert(id);
                }
                Duration::from_micros(state.rng.u64(100..30_000))
            };
            Runtime::sleep(&self.host, pause).await;
        }
        self.state.lock().down.clear();
    }

    fn heal(&self) {
        let mut state = self.state.lock();
        state.down.clear();
        state.is_faulty = false;
    }
}

impl RootMembers for Nodes {
    fn root_set(&self) -> Boxed<'_, Result<RootSet>> {
        let named = self.state.lock().named.clone();
        Box::pin(async move { Ok(named) })
    }

    fn ask(&self, to: StorageId, request: AcceptorRequest) -> Boxed<'_, Option<AcceptorAnswer>> {
        Box::pin(self.deliver(to, request))
    }
}

/// A history, and the order in which its operations began and ended.
#[derive(Default)]
struct Recorder {
    history: Mutex<History>,
    time: AtomicU64,
}

impl Recorder {
    fn now(&self) -> u64 {
        self.time.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Runs one operation, and returns the version that it observed.
    async fn run(&self, register: &NodeRegister, is_read: bool, expected: u64) -> Option<u64> {
        let (number, value) = {
            let mut history = self.history.lock();
            let value = value_of(history.next());
            let operation = match is_read {
                true => Operation::Read,
                false => Operation::Swap { expected, value: Some(value.clone()) },
            };
            (history.begin(self.now(), operation), value)
        };
        let result = if is_read {
            register.read_value(NAME).await.map(ProposalResult::Value)
        } else {
            register.swap(NAME, expected, Some(&value)).await.map(|swap| match swap {
                Swap::Done(version) => ProposalResult::Swapped(version),
                Swap::Lost(value) => ProposalResult::Lost(value),
            })
        };
        let result = result.unwrap_or_else(|error| {
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            ProposalResult::Unknown
        });
        let version = match &result {
            ProposalResult::Value(value) | ProposalResult::Lost(value) => {
                Some(value.as_ref().map_or(0, |value| value.version))
            }
            ProposalResult::Swapped(version) => Some(*version),
            _ => None,
        };
        self.history.lock().end(self.now(), number, result);
        version
    }
}

async fn client(recorder: Arc<Recorder>, register: Arc<NodeRegister>, mut rng: Rng) {
    let mut version = 0;
    for _ in 0..OPERATIONS {
        let is_read = rng.u8(0..3) == 0;
        version = recorder.run(&register, is_read, version).await.unwrap_or(version);
    }
}

/// Events of a run in parallel with the clients' operations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Events {
    MembersGoDown,
    MemberIsReplaced,
}

/// How a run ended.
struct RunEnd {
    history: Arc<Recorder>,
    replaced: bool,
}

fn run(seed: u64, events: Events) -> RunEnd {
    let simulation = Simulation::new(seed);
    let world = simulation.host("world");
    let nodes = Nodes::new(world.clone(), seed);
    let recorder = Arc::new(Recorder::default());
    let mut tasks = Vec::new();
    for number in 0..CLIENTS {
        let host = simulation.host(&format!("client {number}"));
        let members = Arc::clone(&nodes) as Arc<dyn RootMembers>;
        let register = Arc::new(NodeRegister::over(members, Arc::new(host.clone())));
        let rng = Rng::with_seed(seed * CLIENTS + number);
        tasks.push(host.spawn("client", client(Arc::clone(&recorder), register, rng)));
    }
    let disturbed = Arc::clone(&nodes);
    let max = if events == Events::MembersGoDown { 2 } else { 0 };
    let disturbing = world.spawn("faults", async move { disturbed.disturb(max).await });
    let mut replaced = false;
    if events == Events::MemberIsReplaced {
        let (members, down) = (Arc::clone(&nodes), StorageId(seed % 3 + 1));
        let replacing = simulation.host("manager");
        let runtime = Arc::new(replacing.clone());
        let task = replacing.spawn("replace", async move {
            Runtime::sleep(&*runtime, Duration::from_millis(20)).await;
            members.state.lock().down.insert(down);
            let register = NodeRegister::over(Arc::clone(&members) as _, runtime);
            let (old, mut wanted) = (root_set(1, &[1, 2, 3]), vec![StorageId(4)]);
            wanted.extend(old.members.iter().copied().filter(|id| *id != down));
            let next = register.replace_root_set(&old, wanted).await?;
            members.state.lock().named = next;
            Ok(())
        });
        let end: Result<()> = simulation.block_on(task).expect("the manager does not crash");
        replaced = end.is_ok();
        end.expect("a majority of the old set and all new members are up");
    }
    for task in tasks {
        simulation.block_on(task).expect("no client crashes");
    }
    simulation.block_on(disturbing).expect("nothing crashes");
    nodes.heal();
    let register = NodeRegister::over(Arc::clone(&nodes) as _, Arc::new(world.clone()));
    let last = Arc::clone(&recorder);
    let reading = world.spawn("reader", async move { last.run(&register, true, 0).await });
    let version = simulation.block_on(reading).expect("nothing crashes");
    assert!(version.is_some(), "seed {seed}: the last read fails");
    RunEnd { history: recorder, replaced }
}

#[test]
fn histories_are_linearizable_while_members_go_down() {
    let (mut swapped, mut lost, mut unknown) = (0, 0, 0);
    for seed in 0..150 {
        let end = run(seed, Events::MembersGoDown);
        let history = end.history.history.lock();
        assert_eq!(history.problem(), None, "seed {seed}");
        swapped += history.count(|result| matches!(result, ProposalResult::Swapped(_)));
        lost += history.count(|result| matches!(result, ProposalResult::Lost(_)));
        unknown += history.count(|result| matches!(result, ProposalResult::Unknown));
    }
    assert!(swapped > 500, "{swapped} swaps");
    assert!(lost > 500, "{lost} lost swaps");
    assert!(unknown > 0, "{unknown} unknown outcomes");
}

#[test]
fn histories_are_linearizable_over_a_replacement() {
    for seed in 0..150 {
        let end = run(seed, Events::MemberIsReplaced);
        assert!(end.replaced, "seed {seed}");
        assert_eq!(end.history.history.lock().problem(), None, "seed {seed}");
    }
}

#[test]
fn register_conforms_over_threads() {
    let runtime = archipelago_base::runtime::ThreadRuntime::start(2).unwrap();
    let simulation = Simulation::new(1);
    let nodes = Nodes::new(simulation.host("world"), 1);
    let register = NodeRegister::over(Arc::new(Immediate(nodes)), runtime);
    crate::suite::register_conforms(&register, "suite");
}

/// Members that answer immediately.
#[derive(Debug)]
struct Immediate(Arc<Nodes>);

impl RootMembers for Immediate {
    fn root_set(&self) -> Boxed<'_, Result<RootSet>> {
        self.0.root_set()
    }

    fn ask(&self, to: StorageId, request: AcceptorRequest) -> Boxed<'_, Option<AcceptorAnswer>> {
        let mut state = self.0.state.lock();
        let handled = state.acceptors.get_mut(&to).map(|acceptor| acceptor.handle(request).answer);
        Box::pin(async move { handled })
    }
}

#[test]
fn majority_that_is_down_is_named_in_the_error() {
    let simulation = Simulation::new(1);
    let world = simulation.host("world");
    let nodes = Nodes::new(world.clone(), 1);
    nodes.heal();
    nodes.state.lock().down.extend([StorageId(2), StorageId(3)]);
    let register = NodeRegister::over(Arc::clone(&nodes) as _, Arc::new(world));
    let error = register.compare_and_swap(NAME, 0, b"x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    for part in [NAME, &StorageId(2).to_string(), &StorageId(3).to_string()] {
        assert!(error.to_string().contains(part), "{error}");
    }
    nodes.heal();
    assert_eq!(register.read(NAME).unwrap(), None, "the change was never sent");
}

/// Nodes of one seed without faults, with a value in the register.
fn quiet_nodes(world: &Host) -> Arc<Nodes> {
    let nodes = Nodes::new(world.clone(), 1);
    nodes.heal();
    let register = NodeRegister::over(Arc::clone(&nodes) as _, Arc::new(world.clone()));
    register.compare_and_swap(NAME, 0, b"kept").unwrap();
    nodes
}

/// Replaces a root set, as a process that begins anew does.
fn replace(world: &Host, nodes: &Arc<Nodes>, old: &RootSet, members: &[u64]) -> Result<RootSet> {
    let register = NodeRegister::over(Arc::clone(nodes) as _, Arc::new(world.clone()));
    let members = members.iter().map(|id| StorageId(*id)).collect();
    archipelago_base::runtime::wait_for(world, register.replace_root_set(old, members))
}

#[test]
fn second_replacement_completes_the_first_one() {
    let simulation = Simulation::new(1);
    let world = simulation.host("world");
    let nodes = quiet_nodes(&world);
    // Two new members are down, so the first attempt stops after the old members have retired.
    nodes.state.lock().down.extend([1, 4, 5].map(StorageId));
    let old = root_set(1, &[1, 2, 3]);
    let error = replace(&world, &nodes, &old, &[4, 5, 3]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    nodes.state.lock().down.remove(&StorageId(4));
    let next = root_set(2, &[4, 5, 3]);
    let decided = replace(&world, &nodes, &old, &[4, 2, 3]).unwrap();
    assert_eq!(decided, next, "the first one had decided the next set");
    nodes.state.lock().named = next;
    let over = || NodeRegister::over(Arc::clone(&nodes) as _, Arc::new(world.clone()));
    let value = over().read(NAME).unwrap();
    assert_eq!(value, Some(Versioned { version: 1, value: b"kept".to_vec() }));
    assert_eq!(over().list("volume/").unwrap(), [NAME]);
    assert!(over().list("").unwrap().iter().all(|name| name == NAME));
}

#[test]
fn new_member_that_is_lost_before_its_copy_is_replaced() {
    let simulation = Simulation::new(1);
    let world = simulation.host("world");
    let nodes = quiet_nodes(&world);
    nodes.state.lock().down.extend([1, 4].map(StorageId));
    let (first, second) = (root_set(1, &[1, 2, 3]), root_set(2, &[4, 2, 3]));
    assert_eq!(replace(&world, &nodes, &first, &[4, 2, 3]).unwrap(), second);
    nodes.state.lock().named = second.clone();
    let over = || NodeRegister::over(Arc::clone(&nodes) as _, Arc::new(world.clone()));
    let value = over().read(NAME).unwrap().expect("the value is kept");
    assert_eq!(over().compare_and_swap(NAME, value.version, b"more").unwrap(), Swap::Done(2));
    let third = root_set(3, &[5, 2, 3]);
    assert_eq!(replace(&world, &nodes, &second, &[5, 2, 3]).unwrap(), third);
    nodes.state.lock().named = third;
    // The set works without its third member, whose copy has the newest value.
    nodes.state.lock().down.insert(StorageId(2));
    assert_eq!(over().read(NAME).unwrap().expect("the value is kept").value, b"more");
}

#[test]
fn member_that_missed_its_copy_is_found_and_brought_in() {
    let simulation = Simulation::new(1);
    let world = simulation.host("world");
    let nodes = quiet_nodes(&world);
    nodes.state.lock().down.insert(StorageId(4));
    let (first, second) = (root_set(1, &[1, 2, 3]), root_set(2, &[4, 2, 3]));
    assert_eq!(replace(&world, &nodes, &first, &[4, 2, 3]).unwrap(), second);
    let register = NodeRegister::over(Arc::clone(&nodes) as _, Arc::new(world.clone()));
    let without = |root_set: &RootSet| {
        archipelago_base::runtime::wait_for(&world, register.members_without_copy(root_set))
    };
    assert_eq!(without(&second), [], "a member that is down does not answer");
    nodes.state.lock().down.clear();
    assert_eq!(without(&second), [StorageId(4)]);
    let third = root_set(3, &[4, 2, 3]);
    assert_eq!(replace(&world, &nodes, &second, &[4, 2, 3]).unwrap(), third);
    assert_eq!(without(&third), []);
    assert_eq!(without(&second), [], "the members have gone on to a later set");
    nodes.state.lock().named = third;
    nodes.state.lock().down.insert(StorageId(3));
    assert_eq!(register.read(NAME).unwrap().expect("the value is kept").value, b"kept");
}

#[test]
fn member_with_its_copy_is_activated_when_it_is_found() {
    let simulation = Simulation::new(1);
    let world = simulation.host("world");
    let nodes = quiet_nodes(&world);
    nodes.state.lock().down.insert(StorageId(4));
    let (first, second) = (root_set(1, &[1, 2, 3]), root_set(2, &[4, 2, 3]));
    assert_eq!(replace(&world, &nodes, &first, &[4, 2, 3]).unwrap(), second);
    {
        // The process that copied the values ended before the last step.
        let mut state = nodes.state.lock();
        state.down.clear();
        let cells = state.acceptors[&StorageId(2)].state().cells.clone();
        let member = state.acceptors.get_mut(&StorageId(4)).unwrap();
        let (root_set, copy) = (second.clone(), ChangeId { proposer: 9, sequence: 1 });
        let page = CellPage { cells, ..CellPage::default() };
        let installed = member.handle(AcceptorRequest::Install { root_set, copy, page }).answer;
        assert_eq!(installed, AcceptorAnswer::Installed);
    }
    let register = NodeRegister::over(Arc::clone(&nodes) as _, Arc::new(world.clone()));
    let without = register.members_without_copy(&second);
    assert_eq!(archipelago_base::runtime::wait_for(&world, without), []);
    nodes.state.lock().named = second;
    nodes.state.lock().down.insert(StorageId(2));
    assert_eq!(register.read(NAME).unwrap().expect("the value is kept").value, b"kept");
}

#[test]
fn more_values_than_fit_into_a_message_reach_a_new_member() {
    let simulation = Simulation::new(1);
    let world = simulation.host("world");
    let nodes = quiet_nodes(&world);
    let name = |n: u32| format!("volume/{n:05}");
    {
        let mut state = nodes.state.lock();
        for id in [1, 2, 3].map(StorageId) {
            let member = state.acceptors.get_mut(&id).unwrap();
            let mut known = member.state().clone();
            let cell = |n: u32| {
                let ballot = Ballot { root_set: 1, counter: 1, proposer: 7 };
                let change = ChangeId { proposer: 7, sequence: u64::from(n) };
                // A tenth of the volumes was removed.
                let value = (!n.is_multiple_of(10)).then(|| vec![n as u8; 3000]);
                let value = StoredValue { version: 2, change, value };
                let accepted = Some(AcceptedValue { ballot, value });
                (name(n), RegisterCell { promised: ballot, accepted })
            };
            known.cells.extend((0..3000).map(cell));
            *member = Acceptor::new(known);
        }
        state.down.insert(StorageId(1));
    }
    let (first, second) = (root_set(1, &[1, 2, 3]), root_set(2, &[4, 2, 3]));
    assert_eq!(replace(&world, &nodes, &first, &[4, 2, 3]).unwrap(), second);
    nodes.state.lock().named = second;
    {
        let state = nodes.state.lock();
        let (largest, pages) = (state.largest_bytes, state.pages);
        assert!(largest < BULK_BYTES_MAX, "a message of {largest} bytes");
        assert!(pages > 20, "{pages} requests for eight megabytes");
        let accepted = |id| -> BTreeMap<String, Option<AcceptedValue>> {
            let cells = state.acceptors[&StorageId(id)].state().cells.clone();
            cells.into_iter().map(|(name, cell)| (name, cell.accepted)).collect()
        };
        assert!(accepted(4) == accepted(2), "a value was not copied");
    }
    // The new member is needed for every majority.
    nodes.state.lock().down.insert(StorageId(2));
    let register = NodeRegister::over(Arc::clone(&nodes) as _, Arc::new(world));
    for n in [1, 1499, 2999] {
        let found = register.read(&name(n)).unwrap().unwrap();
        assert_eq!((found.version, found.value), (2, vec![n as u8; 3000]), "{n}");
    }
    assert_eq!(register.read(&name(10)).unwrap(), None, "it was removed");
    assert_eq!(register.compare_and_swap(&name(10), 0, b"again").unwrap(), Swap::Done(3));
    assert_eq!(register.read(NAME).unwrap().unwrap().value, b"kept");
}
