//! Calls of a client to small nodes, in virtual time.

mod threads;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use archipelago_base::runtime::{Runtime, join_all};
use archipelago_base::simulation::{Host, Simulation};
use archipelago_base::{Epoch, ErrorKind};
use archipelago_env::FileClass;
use archipelago_fabric::sim::{Faults, Model, Network};
use archipelago_fabric::{
    ClusterId, Handler, Listener, NodeId, Provider, Reach, Reply, Request, TrafficClass,
};
use parking_lot::Mutex;

use super::super::StorageId;
use super::super::wire::{
    ChunkId, ChunkRange, ExtentAt, MemberState, Members, NodeSpace, RefusalWhy, Refused, Stamp,
    StorageMember, StoreMessage, envelope,
};
use super::{CallError, CallOptions, Lane, NodeClient};
use crate::ids::{BlobId, LogId, VolumeId};

const SECOND: Duration = Duration::from_secs(1);
const READ: CallOptions = CallOptions::new(TrafficClass::Foreground, SECOND);

/// State that the nodes and the manager of a test share.
#[derive(Default)]
struct Script {
    members: Members,
    /// Requests that nodes received, in order.
    received: Vec<(StorageId, StoreMessage)>,
    /// Questions for the members that the manager answered.
    asked_members: u64,
    /// Nodes that keep requests without an answer.
    silent: Vec<StorageId>,
    kept: Vec<Reply>,
}

type Shared = Arc<Mutex<Script>>;

/// A node that answers reads with bytes, refuses to seal, and does everything else.
struct TestNode {
    storage: StorageId,
    script: Shared,
}

impl Handler for TestNode {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let (message, payload) = envelope::open(request.body).expect("a message");
        let mut script = self.script.lock();
        script.received.push((self.storage, message.clone()));
        if script.silent.contains(&self.storage) {
            script.kept.push(reply);
            return;
        }
        let (answer, bytes) = match message {
            StoreMessage::ReadChunk { .. } => {
                (StoreMessage::ChunkBytes { crcs: vec![7] }, b"coral".to_vec())
            }
            StoreMessage::SealLog { .. } => {
                (Refused::fenced(Epoch(9), "volume a").into(), Vec::new())
            }
            StoreMessage::Append { start, .. } => {
                let written = start + payload.len() as u64;
                (StoreMessage::Progress { written, synced: 0 }, Vec::new())
            }
            _ => (StoreMessage::Done {}, Vec::new()),
        };
        reply.send(envelope::seal(&answer, &bytes));
    }
}

struct TestManager(Shared);

impl Handler for TestManager {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let (message, _) = envelope::open(request.body).expect("a message");
        let mut script = self.0.lock();
        let answer = match message {
            StoreMessage::AskMembers { version } => {
                script.asked_members += 1;
                let is_new = script.members.version != version;
                let members = is_new.then(|| script.members.clone());
                StoreMessage::MembersAre { members, beat_ms: 0 }
            }
            _ => Refused::new(RefusalWhy::NotThere, "node 7").into(),
        };
        reply.send(envelope::seal(&answer, &[]));
    }
}

struct World {
    simulation: Simulation,
    network: Arc<Network>,
    script: Shared,
    hosts: BTreeMap<StorageId, Host>,
    listeners: Vec<Box<dyn Listener>>,
    client_host: Host,
    client: Arc<NodeClient>,
}

impl World {
    /// A manager and nodes 1 to `nodes`.
    fn new(nodes: u64) -> Self {
        let simulation = Simulation::new(41);
        let network = Network::new(&simulation);
        let script = Shared::default();
        script.lock().members.cluster = Some(ClusterId([1; 16]));
        let manager_host = simulation.host("manager");
        let provider = network.join(&manager_host, Model::quick());
        let handler = Box::new(TestManager(Arc::clone(&script)));
        let node = network.node(NodeId(100), Epoch(1), Some(handler)).expect("a node");
        let listeners = vec![provider.serve(&node, "manager").expect("served")];
        let client_host = simulation.host("client");
        let reach: Arc<dyn Reach> = Arc::new(network.join(&client_host, Model::quick()));
        let runtime: Arc<dyn Runtime> = Arc::new(client_host.clone());
        let client = NodeClient::new(reach, runtime, vec!["manager".into()]);
        let hosts = BTreeMap::new();
        let mut world = Self { simulation, network, script, hosts, listeners, client_host, client };
        for number in 1..=nodes {
            let host = world.simulation.host(&format!("node-{number}"));
            world.hosts.insert(StorageId(number), host);
            world.serve(StorageId(number), Epoch(1));
        }
        world
    }

    /// Begins a life of a node, which the manager then names.
    fn serve(&mut self, storage: StorageId, life: Epoch) {
        let host = &self.hosts[&storage];
        let provider = self.network.join(host, Model::quick());
        let handler = Box::new(TestNode { storage, script: Arc::clone(&self.script) });
        let node = NodeId(storage.0);
        let served = self.network.node(node, life, Some(handler)).expect("a node");
        self.listeners.push(provider.serve(&served, host.name()).expect("served"));
        let member = StorageMember {
            storage,
            node,
            life,
            endpoints: vec![host.name().to_owned()],
            domain: format!("domain {storage}"),
            state: MemberState::Up,
            space: NodeSpace { capacity_bytes: 100, used_bytes: 1 },
        };
        let members = &mut self.script.lock().members;
        members.members.retain(|member| member.storage != storage);
        members.members.push(member);
        members.version += 1;
    }

    /// Runs a task of the client.
    fn run<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> T {
        let task = self.client_host.spawn("test", task);
        self.simulation.block_on(task).expect("the client's host stays up")
    }

    fn received(&self, storage: StorageId) -> Vec<StoreMessage> {
        let script = self.script.lock();
        let own = script.received.iter().filter(|(node, _)| *node == storage);
        own.map(|(_, message)| message.clone()).collect()
    }
}

fn read() -> StoreMessage {
    let chunk = ChunkId { blob: BlobId([1; 16]), index: 0 };
    StoreMessage::ReadChunk { chunk, ranges: vec![ChunkRange { start: 0, end: 5 }] }
}

fn stamp() -> Stamp {
    Stamp { volume: VolumeId([2; 16]), epoch: Epoch(3) }
}

fn at() -> ExtentAt {
    ExtentAt { log: LogId([4; 16]), extent: 1 }
}

fn append(start: u64) -> StoreMessage {
    let (at, stamp, class) = (at(), stamp(), FileClass::Wal);
    StoreMessage::Append { at, stamp, class, extent_start: 0, start, is_synced: false }
}

fn seal() -> StoreMessage {
    let (at, stamp, class) = (at(), stamp(), FileClass::Wal);
    StoreMessage::SealLog { at, stamp, class, extent_start: 0, end: 8 }
}

#[test]
fn call_returns_message_and_payload() {
    let world = World::new(2);
    let client = Arc::clone(&world.client);
    let answer = world.run(async move {
        client.ready(SECOND).await.expect("members");
        client.call(StorageId(2), Lane::Bulk, &read(), &[], READ.payload_max(5)).await
    });
    let answer = answer.expect("an answer");
    assert_eq!(answer.message, StoreMessage::ChunkBytes { crcs: vec![7] });
    assert_eq!(&answer.payload[..], b"coral");
    assert_eq!(
        (world.received(StorageId(1)), world.received(StorageId(2))),
        (vec![], vec![read()])
    );
}

#[test]
fn payload_of_replicas_is_copied_only_while_links_connect() {
    let world = World::new(3);
    let client = Arc::clone(&world.client);
    let payload = vec![7; 100_000];
    let len = payload.len() as u64;
    let nodes = [1, 2, 3].map(StorageId);
    world.run(async move {
        client.ready(SECOND).await.expect("members");
        for start in [0, len, 2 * len] {
            let send =
                |node: &StorageId| client.call(*node, Lane::Log, &append(start), &payload, READ);
            for answer in join_all(nodes.iter().map(send)).await {
                let progress = StoreMessage::Progress { written: start + len, synced: 0 };
                assert_eq!(answer.expect("an answer").message, progress, "the payload is whole");
            }
        }
    });
    let copied = world.client.copied_bytes.load(Ordering::Relaxed);
    assert_eq!(copied, 3 * len, "the first round only");
}

#[test]
fn refusal_names_node_request_and_reason() {
    let world = World::new(1);
    let client = Arc::clone(&world.client);
    let (error, told) = world.run(async move {
        let error = client.call(StorageId(1), Lane::Log, &seal(), &[], READ).await;
        let told = client.ask(StorageId(1), Lane::Log, &seal(), READ).await;
        (error.expect_err("refused"), told.expect_err("refused"))
    });
    assert!(
        matches!(&error, CallError::Refused { why: RefusalWhy::Fenced, epoch: Epoch(9), .. }),
        "{error}"
    );
    assert_eq!(told.kind(), ErrorKind::Fenced);
    let told = told.to_string();
    for part in ["0000000000000001 at node-1", "SealLog", "epoch 9", "volume a"] {
        assert!(told.contains(part), "{told}");
    }
}

#[test]
fn node_that_joined_later_is_looked_up() {
    let mut world = World::new(1);
    let client = Arc::clone(&world.client);
    world.run(async move { client.ready(SECOND).await.expect("members") });
    let host = world.simulation.host("node-2");
    world.hosts.insert(StorageId(2), host);
    world.serve(StorageId(2), Epoch(1));
    let client = Arc::clone(&world.client);
    let (known, unknown) = world.run(async move {
        let known = client.call(StorageId(2), Lane::Bulk, &read(), &[], READ).await;
        (known, client.call(StorageId(3), Lane::Bulk, &read(), &[], READ).await)
    });
    assert!(known.is_ok());
    assert!(matches!(unknown, Err(CallError::Unreachable { .. })));
}

#[test]
fn call_after_a_restart_reaches_the_next_life() {
    let mut world = World::new(1);
    let client = Arc::clone(&world.client);
    let first = world.run(async move {
        client.call(StorageId(1), Lane::Bulk, &read(), &[], READ).await.is_ok()
    });
    assert!(first);
    world.hosts[&StorageId(1)].crash();
    world.hosts[&StorageId(1)].restart();
    world.serve(StorageId(1), Epoch(2));
    let client = Arc::clone(&world.client);
    let calls = world.run(async move {
        // The first request may be lost with the link to the earlier life.
        let lost = client.call(StorageId(1), Lane::Bulk, &read(), &[], READ).await;
        (lost, client.call(StorageId(1), Lane::Bulk, &read(), &[], READ).await)
    });
    assert!(!matches!(calls.0, Err(CallError::Refused { .. })));
    assert!(calls.1.is_ok(), "{:?}", calls.1);
}

#[test]
fn dead_node_costs_its_callers_one_connection() {
    let world = World::new(2);
    let client = Arc::clone(&world.client);
    world.run(async move { client.ready(SECOND).await.expect("members") });
    world.hosts[&StorageId(1)].crash();
    let client = Arc::clone(&world.client);
    let (errors, ns) = world.run(async move {
        let call = || client.call(StorageId(1), Lane::Bulk, &read(), &[], READ);
        let first = call().await;
        let from_ns = client.runtime().now_ns();
        let others = join_all((0..10).map(|_| call())).await;
        let ns = client.runtime().now_ns() - from_ns;
        (others.into_iter().chain([first]).collect::<Vec<_>>(), ns)
    });
    for error in errors {
        let error = error.expect_err("the node is dead");
        assert!(matches!(error, CallError::Unreachable { .. }), "{error}");
        assert_eq!(error.error("node 1").kind(), ErrorKind::Busy);
    }
    assert_eq!(ns, 0, "the second to the eleventh call waited");
    let client = Arc::clone(&world.client);
    let other =
        world.run(async move { client.call(StorageId(2), Lane::Bulk, &read(), &[], READ).await });
    assert!(other.is_ok());
}

#[test]
fn calls_leave_in_order_while_the_link_is_connected() {
    let world = World::new(1);
    let client = Arc::clone(&world.client);
    world.run(async move {
        client.ready(SECOND).await.expect("members");
        let mut calls: Vec<_> = (0..20u64)
            .map(|start| {
                client.call(StorageId(1), Lane::Log, &append(start), b"x", READ.short_answer())
            })
            .collect();
        // The order of the polls is another one.
        calls.reverse();
        for answer in join_all(calls).await {
            answer.expect("progress");
        }
    });
    let expected: Vec<_> = (0..20).map(append).collect();
    assert_eq!(world.received(StorageId(1)), expected);
}

#[test]
fn silent_node_leaves_the_call_unanswered() {
    let world = World::new(2);
    world.script.lock().silent.push(StorageId(1));
    let client = Arc::clone(&world.client);
    let error = world.run(async move {
        client.call(StorageId(1), Lane::Bulk, &read(), &[], READ).await.expect_err("no answer")
    });
    assert!(matches!(error, CallError::Unanswered { .. }), "{error}");
    assert!(error.error("node 1").to_string().contains("may have executed"));
    // A call that is dropped does not wait any more.
    let client = Arc::clone(&world.client);
    let in_flight = world.run(async move {
        let mut call = Box::pin(client.call(StorageId(1), Lane::Bulk, &read(), &[], READ));
        let mut sleep = client.runtime().sleep(Duration::from_millis(10));
        std::future::poll_fn(|context| {
            assert!(call.as_mut().poll(context).is_pending(), "no answer comes");
            sleep.as_mut().poll(context)
        })
        .await;
        let in_flight = || client.stats().snapshot().times[0].in_flight;
        let during = in_flight();
        drop(call);
        (during, in_flight())
    });
    assert_eq!(in_flight, (1, 0));
}

#[test]
fn members_are_refreshed_every_second_while_used() {
    let world = World::new(1);
    let client = Arc::clone(&world.client);
    world.run(async move {
        client.ready(SECOND).await.expect("members");
        for _ in 0..50 {
            assert_eq!(client.reports().len(), 1);
            client.runtime().sleep(Duration::from_millis(100)).await;
        }
        client.runtime().sleep(Duration::from_secs(60)).await;
    });
    let asked = world.script.lock().asked_members;
    assert!((5..=7).contains(&asked), "{asked} questions in 5 s of use and 60 s without");
}

#[test]
fn client_counts_calls_bytes_and_times_by_node() {
    let world = World::new(1);
    let client = Arc::clone(&world.client);
    world.run(async move {
        for _ in 0..20 {
            let how = READ.payload_max(5);
            client.call(StorageId(1), Lane::Bulk, &read(), &[], how).await.expect("bytes");
        }
        let _refused = client.call(StorageId(1), Lane::Log, &seal(), &[], READ).await;
    });
    let snapshot = world.client.stats().snapshot();
    assert_eq!(snapshot.calls.len(), 1);
    let calls = snapshot.calls[0];
    assert_eq!((calls.storage, calls.class), (StorageId(1), TrafficClass::Foreground));
    assert_eq!((calls.calls, calls.refused, calls.unanswered), (21, 1, 0));
    assert!(calls.sent_bytes > 20 * 40 && calls.received_bytes > 20 * 5);
    let times = &snapshot.times[0];
    assert!(times.read_ns.count == 20 && times.read_ns.mean >= 2000.0, "{times:?}");
    assert_eq!((times.in_flight, times.write_ns.count), (0, 0));
}

#[test]
fn refusal_of_the_manager_is_an_error_that_names_it() {
    let world = World::new(1);
    let client = Arc::clone(&world.client);
    let error = world.run(async move {
        let forget = StoreMessage::ForgetNode { storage: StorageId(7) };
        client.ask_manager(&forget).await.expect_err("refused")
    });
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let text = error.to_string();
    assert!(text.contains("manager") && text.contains("ForgetNode"), "{text}");
}

#[test]
fn cluster_that_is_not_founded_is_waited_for() {
    let world = World::new(1);
    world.script.lock().members.cluster = None;
    let client = Arc::clone(&world.client);
    let error = world.run(async move { client.ready(SECOND).await.expect_err("not founded") });
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("not founded"), "{error}");
    let script = Arc::clone(&world.script);
    let client = Arc::clone(&world.client);
    let founded = world.run(async move {
        let waiting = client.ready(SECOND * 10);
        let founding = async {
            client.runtime().sleep(SECOND).await;
            let members = &mut script.lock().members;
            members.cluster = Some(ClusterId([1; 16]));
            members.version += 1;
            Ok(Arc::default())
        };
        let both: [archipelago_base::runtime::Boxed<'_, archipelago_base::Result<Arc<Members>>>;
            2] = [Box::pin(waiting), Box::pin(founding)];
        join_all(both).await.remove(0)
    });
    assert!(founded.is_ok_and(|members| members.cluster.is_some()));
}

#[test]
fn every_call_ends_on_a_network_with_faults() {
    let world = World::new(3);
    let client = Arc::clone(&world.client);
    world.run(async move { client.ready(SECOND).await.expect("members") });
    let faults = Faults { loss: 0.1, duplicate: 0.1, delay_ns_max: 50_000, ..Faults::default() };
    world.network.set_faults(faults);
    let client = Arc::clone(&world.client);
    let (answered, unanswered) = world.run(async move {
        let call = |number: u64| {
            let lane = if number.is_multiple_of(2) { Lane::Log } else { Lane::Bulk };
            client.call(StorageId(1 + number % 3), lane, &append(number), b"coral", READ)
        };
        let mut counts = (0, 0);
        for round in 0..20 {
            for answer in join_all((0..30).map(|number| call(round * 30 + number))).await {
                match answer.map(|answer| answer.message) {
                    Ok(StoreMessage::Progress { written, .. }) => {
                        assert!((5..605).contains(&written));
                        counts.0 += 1;
                    }
                    Err(CallError::Unanswered { .. } | CallError::Unreachable { .. }) => {
                        counts.1 += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        counts
    });
    assert_eq!(answered + unanswered, 600);
    assert!(answered > 500, "{answered} of 600 calls were answered");
    let snapshot = world.client.stats().snapshot();
    assert!(snapshot.times.iter().all(|times| times.in_flight == 0), "{:?}", snapshot.times);
}
