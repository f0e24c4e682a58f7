//! Memory nodes and the manager, driven by tasks in virtual time.
//!
//! The tasks replace the threads of the product; the state machines and handlers are the product's.
//! A dropped actor closes its state machine, as a crash of its host does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::runtime::Runtime;
use archipelago_base::simulation::{Host, Scheduler};
use archipelago_fabric::sim::{Network, Sim};
use archipelago_fabric::{Batch, ClientId, Listener, NodeId, Provider, Reach, Route};
use archipelago_manager::core::{ManagerCore, Terms};
use archipelago_manager::rpc::ManagerRpc;
use archipelago_memory::core::{Limits, Sabotage};
use archipelago_memory::rpc::{MemoryRpc, Order};
use archipelago_pool::copier;
use archipelago_pool::wire::{Message, Purpose};

/// The manager's host and address.
pub const MANAGER: &str = "manager";
/// Time after which a request is given up.
pub(crate) const REQUEST: Duration = Duration::from_millis(8);

/// A link to the node at `address`, as `client`.
pub(crate) struct Line {
    route: Route,
    ways: Vec<String>,
}

impl Line {
    fn new(sim: &Sim, address: &str, client: ClientId, peer: Option<(NodeId, Epoch)>) -> Self {
        let reach: Arc<dyn Reach> = Arc::new(sim.clone());
        Self { route: Route::new(&reach, client, peer), ways: vec![address.to_owned()] }
    }

    async fn ask(&self, message: &Message) -> Option<Message> {
        self.route.ask(&self.ways, message, REQUEST).await.ok()
    }
}

/// One life of a memory node that runs.
pub struct MemoryActor {
    /// State machine of the role.
    pub rpc: Arc<MemoryRpc>,
    _listener: Box<dyn Listener>,
}

impl Drop for MemoryActor {
    fn drop(&mut self) {
        self.rpc.close();
    }
}

/// One life of a memory node.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLife {
    /// Number of the node, the same in all its lives.
    pub node: NodeId,
    /// Epoch of this life.
    pub epoch: Epoch,
    /// Sizes of the node.
    pub limits: Limits,
    /// Steps of the protocol that the node leaves out.
    pub sabotage: Sabotage,
}

/// Starts a memory node on its host.
pub fn start_memory(network: &Arc<Network>, sim: &Sim, life: MemoryLife) -> MemoryActor {
    let MemoryLife { node: id, epoch: life, limits, sabotage } = life;
    let clock = sim.host().scheduler().clock();
    let make = |handler| network.node(id, life, Some(handler));
    let (rpc, node) = MemoryRpc::start_sabotaged(id, life, limits, sabotage, &clock, make)
        .expect("a node in memory");
    let host = sim.host().clone();
    let listener = sim.serve(&node, host.name()).expect("a host serves at its name");
    let line = Line::new(sim, MANAGER, ClientId(host.seed()), None);
    let (beating, me, endpoint) = (Arc::clone(&rpc), host.clone(), host.name().to_owned());
    let _ends_with_the_host = Host::spawn(&host, "beat", async move {
        while let Some(beat) = beating.beat(vec![endpoint.clone()]) {
            let answer = line.ask(&beat).await;
            let wait_ms = answer.and_then(|answer| beating.on_beat_answer(&answer));
            beating.tick();
            me.scheduler().sleep(Duration::from_millis(wait_ms.unwrap_or(2))).await;
        }
    });
    let (filling, sim) = (Arc::clone(&rpc), sim.clone());
    let _ends_with_the_host = Host::spawn(&host, "fill", async move {
        // A client of other nodes has one line per node and life, because its numbers continue.
        let mut lines = BTreeMap::new();
        loop {
            while let Some(order) = filling.take_order(Duration::ZERO) {
                let from = &order.order.source;
                let (source, client) = ((from.node, from.life), copier(id, life));
                let address = from.endpoints.first().map_or("", String::as_str);
                let line = || Line::new(&sim, address, client, Some(source));
                let line = lines.entry(source).or_insert_with(line);
                let arrived = copy(line, client, &filling, &order).await.is_some();
                line.route.hang_up();
                filling.on_copied(&order.order, arrived);
            }
            sim.host().scheduler().sleep(Duration::from_millis(1)).await;
        }
    });
    MemoryActor { rpc, _listener: listener }
}

/// Bytes that one READ of a copy transfers.
const PART: u64 = 64;

async fn copy(line: &Line, client: ClientId, rpc: &MemoryRpc, order: &Order) -> Option<()> {
    let (block, epoch) = (order.order.block, order.order.epoch);
    let open = Message::Open { client, block, epoch, purpose: Purpose::Copy };
    let Message::Opened { key, .. } = line.ask(&open).await? else { return None };
    let link = line.route.link(&line.ways, REQUEST).await.ok()?;
    let source = link.attach(&key).await.ok()?;
    let mut offset = 0;
    while offset < key.len {
        let mut batch = Batch::new();
        batch.set_deadline(REQUEST);
        batch.read(source, offset, PART.min(key.len - offset) as u32);
        let batch = link.post(batch).await;
        if batch.refusal().is_some() {
            return None;
        }
        if !rpc.write_part(order, offset, batch.data(0)) {
            return None;
        }
        offset += PART;
    }
    Some(())
}

/// One life of a manager that runs.
pub struct ManagerActor {
    /// State machine of the role.
    pub rpc: Arc<ManagerRpc>,
    _listener: Box<dyn Listener>,
}

impl Drop for ManagerActor {
    fn drop(&mut self) {
        self.rpc.close();
    }
}

/// One life of a manager.
#[derive(Clone, Copy, Debug)]
pub struct ManagerLife {
    /// Epoch of this life.
    pub epoch: Epoch,
    /// Time-outs of the manager, and the number of copies of a block.
    pub terms: Terms,
    /// Id of the manager, which no other life has.
    pub random: u64,
}

/// Starts a manager on its host.
pub fn start_manager(network: &Arc<Network>, sim: &Sim, life: ManagerLife) -> ManagerActor {
    let ManagerLife { epoch: life, terms, random } = life;
    let host = sim.host().clone();
    let scheduler: &Scheduler = host.scheduler();
    let now_ns = scheduler.now_ns();
    let term = (now_ns / 1_000_000) << 16 | (random & 0xffff);
    let me = ClientId(random);
    let core = ManagerCore::new(me, term, (random >> 32) as u32, terms, now_ns);
    let (rpc, handler) = ManagerRpc::new(core, scheduler.clock());
    let node = network.node(NodeId(u64::MAX), life, Some(handler)).expect("a node in memory");
    let listener = sim.serve(&node, MANAGER).expect("a host serves at its name");
    let (ticking, ticks) = (Arc::clone(&rpc), scheduler.clone());
    let _ends_with_the_host = Host::spawn(&host, "tick", async move {
        loop {
            ticking.tick();
            ticks.sleep(Duration::from_millis(1)).await;
        }
    });
    let (sending, sim) = (Arc::clone(&rpc), sim.clone());
    host.clone().spawn("send", async move { send_orders(&host, &sim, &sending, me).await });
    ManagerActor { rpc, _listener: listener }
}

/// Starts one task per node, which sends the orders for that node one after another.
async fn send_orders(host: &Host, sim: &Sim, rpc: &Arc<ManagerRpc>, me: ClientId) {
    let mut known: BTreeMap<(NodeId, Epoch), ()> = BTreeMap::new();
    loop {
        for node in rpc.waiting() {
            let Some(Some((life, endpoints))) = rpc.look(|core| core.endpoints(node)) else {
                continue;
            };
            if known.insert((node, life), ()).is_some() || endpoints.is_empty() {
                continue;
            }
            let line = Line::new(sim, &endpoints[0], me, Some((node, life)));
            let (rpc, scheduler) = (Arc::clone(rpc), host.scheduler().clone());
            let _ends_with_the_host = Host::spawn(host, "orders", async move {
                loop {
                    let now = rpc.look(|core| core.endpoints(node)).flatten();
                    if now.is_none_or(|(now, _)| now != life) {
                        return;
                    }
                    for message in rpc.take_orders(node, Duration::ZERO) {
                        let answer = line.ask(&message).await;
                        rpc.on_answer(node, &message, answer.as_ref());
                    }
                    scheduler.sleep(Duration::from_micros(100)).await;
                }
            });
        }
        host.scheduler().sleep(Duration::from_micros(100)).await;
    }
}
