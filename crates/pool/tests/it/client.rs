//! The client in virtual time, with a manager and a memory node that give fixed answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use archipelago_base::simulation::Simulation;
use archipelago_base::{Epoch, ErrorKind};
use archipelago_fabric::sim::{Model, Network};
use archipelago_fabric::{
    BATCH_BYTES_MAX, ClientId, Handler, Listener, Node, NodeId, Provider, Region, Reply, Request,
    Rights,
};
use archipelago_pool::wire::{Member, Message, Why};
use archipelago_pool::{Address, BlockId, Config, Place, PoolClient, PoolOptions, Sharing};
use parking_lot::Mutex;

const PLACE: Place = Place { node: NodeId(1), life: Epoch(1) };
const BLOCK_BYTES: usize = BATCH_BYTES_MAX + (1 << 20);

/// Answers each request by a function of the sender and the message.
struct Scripted<F>(F);

impl<F: Fn(ClientId, &Message) -> Message + Send + Sync + 'static> Handler for Scripted<F> {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let message = Message::decode(request.body).unwrap();
        reply.send((self.0)(request.client, &message).encode());
    }
}

fn managed(client: ClientId, message: &Message) -> Message {
    let Place { node, life } = PLACE;
    match message {
        Message::Renew { .. } => Message::Renewed {
            term: 1,
            lease_ms: 2000,
            block_bytes: BLOCK_BYTES as u64,
            view: 1,
            members: Some(vec![Member {
                node,
                life,
                up: true,
                since: 1,
                endpoints: vec!["memory".to_owned()],
            }]),
            owned: 0,
            blocks: None,
            as_of: Epoch(0),
        },
        Message::Locate { block } => Message::Located {
            config: Config {
                block: *block,
                epoch: Epoch(1),
                born: Epoch(1),
                owner: Some(client),
                label: 7,
                request: 1,
                sharing: Sharing::Owner,
                wanted: 1,
                copies: vec![PLACE],
            },
        },
        _ => Message::Done {},
    }
}

/// A client that has joined, and a memory node. All blocks are the same region.
struct World {
    // The client is dropped before the simulation.
    client: PoolClient,
    region: Arc<Mutex<Option<Region>>>,
    /// Whether the memory node knows that the client was declared dead.
    evicted: Arc<AtomicBool>,
    _served: Vec<(Arc<Node>, Box<dyn Listener>)>,
    simulation: Simulation,
}

impl World {
    fn new() -> Self {
        let simulation = Simulation::new(1);
        let network = Network::new(&simulation);
        let join = |name: &str| network.join(&simulation.host(name), Model::quick());
        let (manager, memory, here) = (join("manager"), join("memory"), join("client"));
        let region = Arc::new(Mutex::new(None::<Region>));
        let evicted = Arc::new(AtomicBool::new(false));
        let (opened, over) = (Arc::clone(&region), Arc::clone(&evicted));
        let opens = move |_: ClientId, message: &Message| match message {
            Message::Open { .. } if over.load(Ordering::SeqCst) => Message::refuse(Why::Evicted),
            Message::Open { epoch, .. } => {
                let key = opened.lock().as_ref().unwrap().grant(Rights::ALL).unwrap();
                Message::Opened { epoch: *epoch, key }
            }
            _ => Message::Done {},
        };
        let managing = Some(Box::new(Scripted(managed)) as Box<dyn Handler>);
        let office = network.node(NodeId(u64::MAX), Epoch(1), managing).unwrap();
        let opening = Some(Box::new(Scripted(opens)) as Box<dyn Handler>);
        let node = network.node(PLACE.node, PLACE.life, opening).unwrap();
        *region.lock() = Some(node.allocate(BLOCK_BYTES, memory.atomic_path()).unwrap());
        let doors = (manager.serve(&office, "manager"), memory.serve(&node, "memory"));
        let served = vec![(office, doors.0.unwrap()), (node, doors.1.unwrap())];
        let (reach, runtime) = (Arc::new(here.clone()), Arc::new(here.host().clone()));
        let joining = PoolClient::join(PoolOptions::new("manager", 7), reach, runtime);
        let client = simulation.block_on(joining).unwrap();
        Self { client, region, evicted, _served: served, simulation }
    }
}

fn block(number: u32) -> BlockId {
    BlockId { home: PLACE.node, number }
}

#[test]
fn client_that_a_node_reports_dead_detaches_all_blocks() {
    let world = World::new();
    let open = |number| {
        let client = world.client.clone();
        world.simulation.block_on(async move { client.open(block(number)).await })
    };
    open(1).unwrap();
    open(2).unwrap();
    assert!(world.client.try_open(block(1)).is_some());
    world.evicted.store(true, Ordering::SeqCst);
    assert_eq!(open(3).unwrap_err().kind(), ErrorKind::Fenced);
    assert!(world.client.is_evicted());
    for number in 1..=3 {
        assert!(world.client.try_open(block(number)).is_none(), "block {number} is attached");
    }
}

#[test]
fn range_beyond_the_limit_of_a_batch_is_read_as_it_is_written() {
    let world = World::new();
    let bytes: Vec<u8> = (0..BATCH_BYTES_MAX + 1001).map(|at| (at / 7) as u8).collect();
    let (client, written) = (world.client.clone(), bytes.clone());
    let read = world.simulation.block_on(async move {
        let address = Address { block: block(1), offset: 64 };
        client.write(address, &written).await?;
        client.read(address, written.len() as u32).await
    });
    assert!(read.unwrap() == bytes, "the bytes differ");
    let mut end = [0; 2];
    let at = 64 + bytes.len() as u64 - 2;
    world.region.lock().as_ref().unwrap().read(at, &mut end).unwrap();
    assert_eq!(end, bytes[bytes.len() - 2..]);
    // A range that leaves the block within its second part is refused.
    let client = world.client.clone();
    let beyond = world.simulation.block_on(async move {
        client.read(Address { block: block(1), offset: 64 }, BLOCK_BYTES as u32).await
    });
    assert!(beyond.is_err());
}
