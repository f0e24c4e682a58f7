//! The manager's requests, answered by the state machine: the fabric's handler, shared by whoever drives the rest.
//!
//! Answers that wait keep their [`Reply`] here. What nodes are to be asked is queued by node; whoever drives
//! takes a node's orders one after another ([`Desk::take_orders`]) and brings the answers ([`Desk::on_answer`]).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::Clock;
use archipelago_fabric::{ClientId, Handler, NodeId, Reply, Request};
use archipelago_pool::wire::{Message, Why};
use parking_lot::{Condvar, Mutex};

use crate::core::{Action, ManagerCore};

/// Orders that wait for one node; what is over is sent again later.
const ORDERS_MAX: usize = 8192;

struct State {
    core: ManagerCore,
    replies: HashMap<u64, Reply>,
    next_ticket: u64,
    orders: BTreeMap<NodeId, VecDeque<Message>>,
}

/// See the module.
pub struct Desk {
    state: Mutex<Option<State>>,
    clock: Arc<dyn Clock>,
    changed: Condvar,
}

/// The fabric's handler.
struct Door(Arc<Desk>);

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Desk")
    }
}

/// Whether `message` may come from `client`: nobody speaks for others.
fn may_say(client: ClientId, message: &Message) -> bool {
    match message {
        Message::Renew { client: who, .. }
        | Message::Leave { client: who }
        | Message::Allocate { client: who, .. }
        | Message::Release { client: who, .. } => *who == client,
        _ => true,
    }
}

impl Handler for Door {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let refusal = match Message::decode(request.body) {
            Ok(message) if may_say(request.client, &message) => {
                self.0.ask(&message, reply);
                return;
            }
            Ok(_) => Why::NotAllowed,
            Err(malformed) => {
                tracing::warn!(client = %request.client, %malformed, "a request was refused");
                Why::Malformed
            }
        };
        reply.send(Message::refuse(refusal).encode());
    }
}

impl Desk {
    /// A desk for `core`; the handler to make the fabric's node with.
    #[must_use]
    pub fn new(core: ManagerCore, clock: Arc<dyn Clock>) -> (Arc<Self>, Box<dyn Handler>) {
        let state =
            State { core, replies: HashMap::new(), next_ticket: 0, orders: BTreeMap::new() };
        let desk =
            Arc::new(Self { state: Mutex::new(Some(state)), clock, changed: Condvar::new() });
        let door = Box::new(Door(Arc::clone(&desk)));
        (desk, door)
    }

    /// Requests are no longer answered.
    pub fn close(&self) {
        let state = self.state.lock().take();
        self.changed.notify_all();
        drop(state);
    }

    fn with(&self, work: impl FnOnce(&mut ManagerCore, u64)) {
        let now_ns = self.clock.now_ns();
        let mut guard = self.state.lock();
        let Some(state) = guard.as_mut() else { return };
        work(&mut state.core, now_ns);
        let (mut answers, mut ordered) = (Vec::new(), false);
        for action in state.core.take_actions() {
            match action {
                Action::Answer { ticket, message } => {
                    answers.extend(state.replies.remove(&ticket).map(|reply| (reply, message)));
                }
                Action::Send { node, message } => {
                    let orders = state.orders.entry(node).or_default();
                    if orders.len() < ORDERS_MAX && !orders.contains(&message) {
                        orders.push_back(message);
                        ordered = true;
                    }
                }
            }
        }
        drop(guard);
        if ordered {
            self.changed.notify_all();
        }
        for (reply, message) in answers {
            reply.send(message.encode());
        }
    }

    fn ask(&self, message: &Message, reply: Reply) {
        let ticket = {
            let mut state = self.state.lock();
            let Some(state) = state.as_mut() else { return };
            state.next_ticket += 1;
            state.replies.insert(state.next_ticket, reply);
            state.next_ticket
        };
        self.with(|core, now_ns| core.on_message(now_ns, ticket, message));
    }

    /// Time passed.
    pub fn tick(&self) {
        self.with(|core, now_ns| core.on_timer(now_ns));
    }

    /// A node answered what it was asked; `None`: it did not, in time.
    pub fn on_answer(&self, node: NodeId, asked: &Message, answer: Option<&Message>) {
        self.with(|core, now_ns| core.on_answer(now_ns, node, asked, answer));
    }

    /// Nodes that something waits for.
    pub fn waiting(&self) -> Vec<NodeId> {
        let state = self.state.lock();
        let orders = state.as_ref().map(|state| &state.orders);
        orders
            .into_iter()
            .flatten()
            .filter(|(_, queue)| !queue.is_empty())
            .map(|(n, _)| *n)
            .collect()
    }

    /// What a node is to be asked, in order; waits for it at most so long.
    pub fn take_orders(&self, node: NodeId, patience: Duration) -> VecDeque<Message> {
        let mut state = self.state.lock();
        let take = |state: &mut Option<State>| {
            let orders = state.as_mut().and_then(|state| state.orders.get_mut(&node));
            orders.map(std::mem::take).unwrap_or_default()
        };
        let orders = take(&mut state);
        if !orders.is_empty() || patience.is_zero() || state.is_none() {
            return orders;
        }
        self.changed.wait_for(&mut state, patience);
        take(&mut state)
    }

    /// Looks at the state machine.
    pub fn look<T>(&self, look: impl FnOnce(&ManagerCore) -> T) -> Option<T> {
        self.state.lock().as_ref().map(|state| look(&state.core))
    }
}
