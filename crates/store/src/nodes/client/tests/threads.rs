//! Calls of threads and tasks to nodes over TCP, with and without a card that orders them.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::{Runtime, ThreadRuntime, block_on};
use archipelago_base::{Epoch, ErrorKind};
use archipelago_fabric::paced::{Card, CardSettings, Paced};
use archipelago_fabric::{
    ClusterId, Endpoints, Handler, Listener, Node, NodeId, Reach, Reply, Request, Secret,
    TrafficClass,
};
use parking_lot::Mutex;

use super::super::super::StorageId;
use super::super::super::wire::{
    ChunkRange, MemberState, Members, NodeSpace, StorageMember, StoreMessage, envelope,
};
use super::super::{CallOptions, Lane, NodeClient};
use super::{append, read};

const NODE: StorageId = StorageId(1);
const DEADLINE: Duration = Duration::from_secs(20);

/// A node that notes the offsets of appends, and answers reads with the bytes of their offsets.
struct Recorder(Arc<Mutex<Vec<u64>>>);

impl Handler for Recorder {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let (message, payload) = envelope::open(request.body).expect("a message");
        let (answer, bytes) = match message {
            StoreMessage::ReadChunk { ranges, .. } => {
                let bytes = ranges[0].start..ranges[0].end;
                let bytes = bytes.map(|at| at as u8).collect();
                (StoreMessage::ChunkBytes { crcs: Vec::new() }, bytes)
            }
            StoreMessage::Append { start, .. } => {
                self.0.lock().push(start);
                let written = start + payload.len() as u64;
                (StoreMessage::Progress { written, synced: written }, Vec::new())
            }
            _ => (StoreMessage::Done {}, Vec::new()),
        };
        reply.send(envelope::seal(&answer, &bytes));
    }
}

struct Named(Members);

impl Handler for Named {
    fn handle(&self, _request: Request<'_>, reply: Reply) {
        let answer = StoreMessage::MembersAre { members: Some(self.0.clone()), beat_ms: 1000 };
        reply.send(envelope::seal(&answer, &[]));
    }
}

/// A node and a manager over TCP.
struct Cluster {
    appends: Arc<Mutex<Vec<u64>>>,
    managers: Vec<String>,
    _listeners: Vec<Box<dyn Listener>>,
}

impl Cluster {
    fn start(secret: Option<&Secret>) -> Self {
        let endpoints = Endpoints::new().with_secret(secret.cloned());
        let serve = |number: u64, handler: Box<dyn Handler>| {
            let node = Node::new(NodeId(number), Epoch(1), Some(handler)).expect("a node");
            let listener = endpoints.serve(&node, "tcp:127.0.0.1:0").expect("a port");
            let endpoint = format!("tcp:{}", listener.address());
            (listener, endpoint)
        };
        let appends = Arc::default();
        let (node, endpoint) = serve(1, Box::new(Recorder(Arc::clone(&appends))));
        let member = StorageMember {
            storage: NODE,
            node: NodeId(1),
            life: Epoch(1),
            endpoints: vec![endpoint],
            domain: "a".into(),
            state: MemberState::Up,
            space: NodeSpace::default(),
        };
        let cluster = Some(ClusterId([1; 16]));
        let members = Members { version: 1, cluster, members: vec![member], ..Members::default() };
        let (manager, endpoint) = serve(2, Box::new(Named(members)));
        Self { appends, managers: vec![endpoint], _listeners: vec![node, manager] }
    }

    fn client(&self, card: Option<CardSettings>) -> Arc<NodeClient> {
        let runtime: Arc<dyn Runtime> = ThreadRuntime::shared().expect("threads");
        let reach: Arc<dyn Reach> = Arc::new(Endpoints::new());
        let reach = match card {
            Some(card) => {
                let card = Card::over(&card, &runtime).expect("settings");
                Arc::new(Paced::new(reach, &card)) as Arc<dyn Reach>
            }
            None => reach,
        };
        let client = NodeClient::new(reach, runtime, self.managers.clone());
        block_on(client.ready(DEADLINE)).expect("members");
        client
    }
}

fn with_and_without_a_card(run: impl Fn(&Cluster, &Arc<NodeClient>)) {
    for card in [None, Some(CardSettings::default())] {
        let cluster = Cluster::start(None);
        run(&cluster, &cluster.client(card));
    }
}

#[test]
fn threads_get_the_answers_to_their_own_calls() {
    const BYTES: u64 = 64 << 10;
    with_and_without_a_card(|_, client| {
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                scope.spawn(move || {
                    for round in 0..50 {
                        let StoreMessage::ReadChunk { chunk, .. } = read() else { unreachable!() };
                        let start = thread * 7 + round;
                        let ranges = vec![ChunkRange { start, end: start + BYTES }];
                        let request = StoreMessage::ReadChunk { chunk, ranges };
                        let class = TrafficClass::ALL[(thread % 5) as usize];
                        let how = CallOptions::new(class, DEADLINE).payload_max(BYTES as usize);
                        let answer = client.call(NODE, Lane::Bulk, &request, &[], how);
                        let payload = block_on(answer).expect("an answer").payload;
                        let right = (start..start + BYTES).zip(&*payload);
                        assert_eq!(payload.len() as u64, BYTES);
                        assert!(right.into_iter().all(|(at, byte)| at as u8 == *byte));
                    }
                });
            }
        });
        let calls = client.stats().snapshot().calls;
        assert_eq!(calls.iter().map(|counts| counts.calls).sum::<u64>(), 400);
    });
}

#[test]
fn calls_of_many_tasks_arrive_in_the_order_of_their_making() {
    with_and_without_a_card(|cluster, client| {
        let ended = Arc::new(Mutex::new(0));
        for start in 0..500u64 {
            let how = CallOptions::new(TrafficClass::Log, DEADLINE).short_answer();
            let call = client.call(NODE, Lane::Log, &append(start), &[7; 1000], how);
            let ended = Arc::clone(&ended);
            let task = async move {
                call.await.expect("progress");
                *ended.lock() += 1;
            };
            client.runtime().spawn("append", Box::pin(task));
        }
        let until_ns = client.runtime().now_ns() + DEADLINE.as_nanos() as u64;
        while *ended.lock() < 500 {
            assert!(client.runtime().now_ns() < until_ns, "{} of 500 ended", ended.lock());
            block_on(client.runtime().sleep(Duration::from_millis(1)));
        }
        assert_eq!(*cluster.appends.lock(), (0..500).collect::<Vec<_>>());
    });
}

#[test]
fn client_without_the_secret_fails_immediately() {
    let text = format!("archipelago-secret 1 {} {}\n", "11".repeat(16), "22".repeat(32));
    let secret = Secret::parse(&text);
    assert!(secret.is_some(), "the form of a secret");
    let cluster = Cluster::start(secret.as_ref());
    let runtime: Arc<dyn Runtime> = ThreadRuntime::shared().expect("threads");
    let reach: Arc<dyn Reach> = Arc::new(Endpoints::new());
    let client = NodeClient::new(reach, runtime, cluster.managers);
    let patience = Duration::from_secs(120);
    let from_ns = client.runtime().now_ns();
    let error = block_on(client.ready(patience)).expect_err("no secret");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("--secret-file"), "{error}");
    assert!(client.runtime().now_ns() - from_ns < patience.as_nanos() as u64 / 2);
}
