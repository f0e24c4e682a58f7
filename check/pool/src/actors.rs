//! Memory nodes and the manager, driven by tasks in virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::simulation::{Host, Scheduler};
use archipelago_fabric::sim::{Network, Sim};
use archipelago_fabric::{
    Batch, Call, ClientId, Connect, Link, Listener, NodeId, Provider, Session,
};
use archipelago_manager::core::{ManagerCore, Terms};
use archipelago_manager::desk::Desk;
use archipelago_memory::core::{Limits, Sabotage};
use archipelago_memory::serving::{Order, Serving};
use archipelago_pool::copier;
use archipelago_pool::wire::{Message, Purpose};
use parking_lot::Mutex;

/// The manager's host and address.
pub(crate) const MANAGER: &str = "manager";
/// A request is given up after this long.
pub(crate) const REQUEST: Duration = Duration::from_millis(8);

/// Asks over a link. `None`: no answer that could be read.
pub(crate) async fn ask(link: &Arc<dyn Link>, message: &Message) -> Option<Message> {
    match link.request(Call::new(&message.encode(), REQUEST)).await {
        Ok(body) => Message::decode(&body).ok(),
        Err(_) => {
            link.close();
            None
        }
    }
}

/// A link that is made again when it is down.
#[derive(Clone)]
pub(crate) struct Line {
    sim: Sim,
    address: String,
    session: Arc<Session>,
    link: Arc<Mutex<Option<Arc<dyn Link>>>>,
}

impl Line {
    pub(crate) fn new(sim: &Sim, address: &str, session: Arc<Session>) -> Self {
        let link = Arc::new(Mutex::new(None));
        Self { sim: sim.clone(), address: address.to_owned(), session, link }
    }

    pub(crate) async fn link(&self) -> Option<Arc<dyn Link>> {
        let known = self.link.lock().clone();
        if let Some(link) = known.filter(|link| link.closed().is_none()) {
            return Some(link);
        }
        let mut to = Connect::to(&*self.address, &self.session);
        to.deadline = REQUEST;
        let link = self.sim.connect(to).await.ok()?;
        *self.link.lock() = Some(Arc::clone(&link));
        Some(link)
    }

    pub(crate) async fn ask(&self, message: &Message) -> Option<Message> {
        ask(&self.link().await?, message).await
    }
}

/// A memory node in one of its lives.
pub(crate) struct MemoryActor {
    pub(crate) serving: Arc<Serving>,
    _door: Box<dyn Listener>,
}

impl Drop for MemoryActor {
    fn drop(&mut self) {
        self.serving.close();
    }
}

pub(crate) fn start_memory(
    network: &Arc<Network>,
    sim: &Sim,
    (id, life): (NodeId, Epoch),
    limits: Limits,
    sabotage: Sabotage,
) -> MemoryActor {
    let make = |handler| network.node(id, life, Some(handler));
    let (serving, node) =
        Serving::start(id, life, limits, sabotage, make).expect("a node in memory");
    let host = sim.host().clone();
    let door = sim.serve(&node, host.name()).expect("a host serves at its name");
    let line = Line::new(sim, MANAGER, network.session());
    let (beating, me, endpoint) = (Arc::clone(&serving), host.clone(), host.name().to_owned());
    host.spawn("beat", async move {
        while let Some(beat) = beating.beat(vec![endpoint.clone()]) {
            let answer = line.ask(&beat).await;
            let wait_ms = answer.and_then(|answer| beating.on_beat_answer(&answer));
            beating.tick();
            me.scheduler().sleep(Duration::from_millis(wait_ms.unwrap_or(2))).await;
        }
    });
    let (filling, sim) = (Arc::clone(&serving), sim.clone());
    host.spawn("fill", async move {
        // One client of other nodes: a session per node and life, as its numbers go on.
        let mut sessions = BTreeMap::new();
        loop {
            while let Some(order) = filling.take_order(Duration::ZERO) {
                let source = (order.order.source.node, order.order.source.life);
                let client = copier(id, life);
                let session = sessions.entry(source).or_insert_with(|| Session::new(client));
                let arrived = copy(&sim, (session, client), &filling, &order).await.is_some();
                filling.on_copied(&order.order, arrived);
            }
            sim.host().scheduler().sleep(Duration::from_millis(1)).await;
        }
    });
    MemoryActor { serving, _door: door }
}

/// Bytes of one READ of a copy.
const PART: u64 = 64;

async fn copy(
    sim: &Sim,
    (session, client): (&Arc<Session>, ClientId),
    serving: &Serving,
    order: &Order,
) -> Option<()> {
    let from = &order.order.source;
    let mut to = Connect::to(from.endpoints.first()?.as_str(), session);
    to.deadline = REQUEST;
    to.node = Some(from.node);
    to.epoch = Some(from.life);
    let link = sim.connect(to).await.ok()?;
    let (block, epoch) = (order.order.block, order.order.epoch);
    let open = Message::Open { client, block, epoch, purpose: Purpose::Copy };
    let Message::Opened { key, .. } = ask(&link, &open).await? else { return None };
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
        if !serving.write_part(order, offset, batch.data(0)) {
            return None;
        }
        offset += PART;
    }
    link.close();
    Some(())
}

/// A manager.
pub(crate) struct ManagerActor {
    pub(crate) desk: Arc<Desk>,
    _door: Box<dyn Listener>,
}

impl Drop for ManagerActor {
    fn drop(&mut self) {
        self.desk.close();
    }
}

pub(crate) fn start_manager(
    network: &Arc<Network>,
    sim: &Sim,
    life: Epoch,
    (terms, random): (Terms, u64),
) -> ManagerActor {
    let host = sim.host().clone();
    let scheduler: &Scheduler = host.scheduler();
    let now_ns = scheduler.now_ns();
    let term = (now_ns / 1_000_000) << 16 | (random & 0xffff);
    let me = ClientId(random);
    let core = ManagerCore::new(me, term, (random >> 32) as u32, terms, now_ns);
    let (desk, door) = Desk::new(core, scheduler.clock());
    let node = network.node(NodeId(u64::MAX), life, Some(door)).expect("a node in memory");
    let door = sim.serve(&node, MANAGER).expect("a host serves at its name");
    let (ticking, ticks) = (Arc::clone(&desk), scheduler.clone());
    host.spawn("tick", async move {
        loop {
            ticking.tick();
            ticks.sleep(Duration::from_millis(1)).await;
        }
    });
    let (sending, sim) = (Arc::clone(&desk), sim.clone());
    host.clone().spawn("send", async move { send_orders(&host, &sim, &sending, me).await });
    ManagerActor { desk, _door: door }
}

/// Starts a task per node, which asks it one thing after another.
async fn send_orders(host: &Host, sim: &Sim, desk: &Arc<Desk>, me: ClientId) {
    let mut known: BTreeMap<(NodeId, Epoch), ()> = BTreeMap::new();
    loop {
        for node in desk.waiting() {
            let Some(Some((life, endpoints))) = desk.look(|core| core.endpoints(node)) else {
                continue;
            };
            if known.insert((node, life), ()).is_some() || endpoints.is_empty() {
                continue;
            }
            let line = Line::new(sim, &endpoints[0], Session::new(me));
            let (desk, scheduler) = (Arc::clone(desk), host.scheduler().clone());
            host.spawn("orders", async move {
                loop {
                    let now = desk.look(|core| core.endpoints(node)).flatten();
                    if now.is_none_or(|(now, _)| now != life) {
                        return;
                    }
                    for message in desk.take_orders(node, Duration::ZERO) {
                        let answer = line.ask(&message).await;
                        desk.on_answer(node, &message, answer.as_ref());
                    }
                    scheduler.sleep(Duration::from_micros(100)).await;
                }
            });
        }
        host.scheduler().sleep(Duration::from_micros(100)).await;
    }
}
