//! The coordinator's requests, answered by the state machine; its orders, sent by tasks.
//!
//! It is a fabric node of its own, in the manager's process or anywhere; it stores nothing. A client of the pool
//! whom it asks who is dead.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::runtime::Runtime;
use archipelago_fabric::{Call, ClientId, Handler, Reply, Request};
use archipelago_pool::{PoolClient, Reach, Route};
use parking_lot::Mutex;

use super::measuring::Meter;
use super::{Action, Coordinator, Tuning};
use crate::node::fabric_id;
use crate::wire::{Grant, Member, Message, StoreStatus, Why};

/// Between two ticks.
const TICK: Duration = Duration::from_millis(2);
/// Between two looks at who is dead.
const WATCH: Duration = Duration::from_millis(10);
/// An order is taken for lost after so long, and sent again.
pub(super) const ORDER: Duration = Duration::from_millis(500);
/// A node that does not say what it counted within so long is shown without.
const COUNT: Duration = Duration::from_millis(200);

struct State {
    core: Coordinator,
    replies: BTreeMap<u64, Reply>,
    next_ticket: u64,
}

/// See the module.
pub struct Desk {
    state: Mutex<State>,
    pub(super) runtime: Arc<dyn Runtime>,
    reach: Arc<dyn Reach>,
    pool: PoolClient,
    routes: Mutex<BTreeMap<ClientId, Arc<Route>>>,
    /// What the nodes count.
    pub(super) meters: Mutex<BTreeMap<ClientId, Meter>>,
    /// Orders that are under way.
    sending: Mutex<BTreeSet<(ClientId, Vec<u8>)>>,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Desk")
    }
}

struct Door(Weak<Desk>);

impl Handler for Door {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let Some(desk) = self.0.upgrade() else { return };
        match Message::decode(request.body) {
            Ok(message) => desk.ask(&message, reply),
            Err(malformed) => {
                tracing::warn!(client = %request.client, %malformed, "a request was refused");
                let grant = Grant::default();
                reply.send(Message::Declined { why: Why::Malformed, grant }.encode());
            }
        }
    }
}

impl Desk {
    /// Hosts `core`; the handler for the fabric's node that it is reached by. Work begins with [`Desk::start`].
    #[must_use]
    pub fn new(
        core: Coordinator,
        runtime: Arc<dyn Runtime>,
        reach: Arc<dyn Reach>,
        pool: PoolClient,
    ) -> (Arc<Self>, Box<dyn Handler>) {
        let state = State { core, replies: BTreeMap::new(), next_ticket: 1 };
        let desk = Arc::new(Self {
            state: Mutex::new(state),
            runtime,
            reach,
            pool,
            routes: Mutex::default(),
            meters: Mutex::default(),
            sending: Mutex::default(),
        });
        let door = Box::new(Door(Arc::downgrade(&desk)));
        (desk, door)
    }

    /// Ticks and watches for as long as the desk is there.
    pub fn start(self: &Arc<Self>) {
        let (weak, runtime) = (Arc::downgrade(self), Arc::clone(&self.runtime));
        let ticking = async move {
            loop {
                runtime.sleep(TICK).await;
                let Some(desk) = weak.upgrade() else { return };
                desk.with(Coordinator::on_tick);
            }
        };
        self.runtime.spawn("flex-tick", Box::pin(ticking));
        let (weak, runtime) = (Arc::downgrade(self), Arc::clone(&self.runtime));
        let watching = async move {
            loop {
                runtime.sleep(WATCH).await;
                let Some(desk) = weak.upgrade() else { return };
                if let Err(error) = desk.watch().await {
                    tracing::debug!(%error, "the pool's manager is not heard");
                }
            }
        };
        self.runtime.spawn("flex-watch", Box::pin(watching));
        self.start_measuring();
    }

    /// Looks at the state machine.
    pub fn look<T>(&self, look: impl FnOnce(&Coordinator) -> T) -> T {
        look(&self.state.lock().core)
    }

    /// As [`Coordinator::concentrate`].
    pub fn concentrate(self: &Arc<Self>) {
        self.with(Coordinator::concentrate);
    }

    /// How the map follows the load from now on.
    pub fn tune(self: &Arc<Self>, tuning: Tuning) {
        self.with(|core| core.tune(tuning));
    }

    /// Changes the share of proxied partitions, in a thousand, for good: the knob is off from then on.
    pub fn set_offload(self: &Arc<Self>, share: u32) {
        self.with(|core| core.set_offload(share));
    }

    /// Nodes that may know a map, from a coordinator before this one.
    pub fn recall(self: &Arc<Self>, members: &[Member]) {
        self.with(|core| core.recall(members));
    }

    fn ask(self: &Arc<Self>, message: &Message, reply: Reply) {
        if matches!(message, Message::Status {}) {
            let desk = Arc::clone(self);
            let task = async move {
                let status = desk.status().await;
                reply.send(Message::StatusIs { status }.encode());
            };
            self.runtime.spawn("flex-status", Box::pin(task));
            return;
        }
        self.with_ticket(reply, |core, ticket| core.on_message(ticket, message));
    }

    fn with_ticket(self: &Arc<Self>, reply: Reply, work: impl FnOnce(&mut Coordinator, u64)) {
        let ticket = {
            let mut state = self.state.lock();
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            state.replies.insert(ticket, reply);
            ticket
        };
        self.with(|core| work(core, ticket));
    }

    pub(super) fn with(self: &Arc<Self>, work: impl FnOnce(&mut Coordinator)) {
        let (mut answers, mut orders) = (Vec::new(), Vec::new());
        {
            let mut state = self.state.lock();
            let state = &mut *state;
            state.core.on_time(self.runtime.now_ns());
            work(&mut state.core);
            for action in state.core.take_actions() {
                match action {
                    Action::Answer { ticket, message } => {
                        answers.extend(state.replies.remove(&ticket).map(|reply| (reply, message)));
                    }
                    Action::Send { to, message } => {
                        let members = state.core.nodes.values().map(|node| &node.member);
                        let member = members.clone().find(|member| member.client == to);
                        orders.extend(member.map(|member| (member.clone(), message)));
                    }
                }
            }
        }
        for (reply, message) in answers {
            reply.send(message.encode());
        }
        for (member, message) in orders {
            self.send(member, message);
        }
    }

    pub(super) fn route(&self, member: &Member) -> Arc<Route> {
        let mut routes = self.routes.lock();
        let (me, peer) = (self.pool.client(), Some(fabric_id(member.client)));
        let route = || Arc::new(Route::new(&self.reach, me, peer));
        Arc::clone(routes.entry(member.client).or_insert_with(route))
    }

    /// Sends an order, unless the same one is under way.
    fn send(self: &Arc<Self>, member: Member, message: Message) {
        let order = (member.client, message.encode());
        if !self.sending.lock().insert(order.clone()) {
            return;
        }
        let desk = Arc::clone(self);
        let task = async move {
            let answer = desk.ask_node(&member, &order.1, ORDER).await;
            desk.sending.lock().remove(&order);
            tracing::debug!(
                at_us = desk.runtime.now_ns() / 1000,
                node = member.number,
                ?message,
                ?answer,
                "order"
            );
            if let Some(answer) = answer {
                desk.with(|core| core.on_answer(member.client, &message, &answer));
            }
        };
        self.runtime.spawn("flex-order", Box::pin(task));
    }

    /// Asks a node; `None`: no answer in time.
    async fn ask_node(&self, member: &Member, body: &[u8], patience: Duration) -> Option<Message> {
        let link = self.route(member).link(&member.endpoints, patience).await.ok()?;
        match link.request(Call::new(body, patience)).await {
            Ok(body) => Message::decode(&body).ok(),
            Err(_) => {
                link.close();
                None
            }
        }
    }

    /// The store, with what its nodes say that they counted.
    async fn status(&self) -> StoreStatus {
        let (mut status, members) = self.look(|core| (core.status(), core.members()));
        let count = Message::Count {}.encode();
        for member in members {
            let answer = self.ask_node(&member, &count, COUNT).await;
            let node = status.nodes.iter_mut().find(|node| node.member == member);
            if let (Some(node), Some(Message::Counted { figures })) = (node, answer) {
                (node.answered, node.figures) = (true, figures);
            }
        }
        status
    }

    /// Tells the state machine of nodes that the pool took for dead.
    async fn watch(self: &Arc<Self>) -> Result<()> {
        let members = self.look(Coordinator::members);
        if members.is_empty() {
            return Ok(());
        }
        for member in members {
            if !self.pool.is_gone(member.client).await? {
                continue;
            }
            tracing::info!(node = member.number, "a compute node is gone");
            self.with(|core| core.on_gone(member.client));
        }
        Ok(())
    }
}
