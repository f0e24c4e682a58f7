//! The manager's requests and orders: the handler that the fabric calls, and the queues of messages
//! to the memory nodes.
//!
//! `server` and the simulation own one [`ManagerRpc`] each. The state machine answers a request. A
//! late answer keeps its [`Reply`] here. Orders to memory nodes are queued per node. The driver
//! takes the orders of a node one after the other ([`ManagerRpc::take_orders`]), and passes the
//! answers back ([`ManagerRpc::on_answer`]).
//!
//! Invariants:
//! 1. A manager among several ([`ManagerRpc::elected`]) has a state machine only while it holds
//!    office ([`crate::office`]). The office is checked under the lock before each request, answer
//!    and tick.
//! 2. A request that the manager may not answer is refused as [`Why::Standby`].
//! 3. A client sends messages in its own name only.
//!
//! Thread-safety: any thread may call any method. One lock guards the state.
//! Failure: a malformed request is refused and logged.
//! Cost: one short lock per request and per answer.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::clock::Clock;
use archipelago_fabric::{ClientId, Handler, NodeId, Reply, Request};
use archipelago_pool::wire::{Message, Refused, Why};
use parking_lot::{Condvar, Mutex};

use crate::core::{Action, ManagerCore};
use crate::office::Office;

/// Limit of the orders that wait for one node. The manager sends dropped orders again later.
const ORDERS_MAX: usize = 8192;

struct ManagerState {
    /// The state machine. A manager that runs alone always has one; a manager among several has one
    /// only in office.
    core: Option<ManagerCore>,
    election: Option<Election>,
    replies: HashMap<u64, Reply>,
    next_ticket: u64,
    orders: BTreeMap<NodeId, VecDeque<Message>>,
}

/// The additional state of a manager among several.
pub struct Election {
    /// Decides whether this manager holds office.
    pub office: Office,
    /// Makes the state machine of a term that begins at a time: the arguments are the term and the
    /// time in nanoseconds.
    pub make: Box<dyn Fn(u64, u64) -> ManagerCore + Send>,
    /// Lower bound of new terms, from the wall clock.
    pub floor: Box<dyn Fn() -> u64 + Send>,
    /// Life and endpoints of each memory node, from its beats.
    nodes: BTreeMap<NodeId, (Epoch, Vec<String>)>,
    /// Questions for promises that were not sent yet.
    questions: BTreeMap<NodeId, Message>,
}

impl std::fmt::Debug for Election {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Election({:?})", self.office)
    }
}

impl Election {
    /// Makes the state of a manager that stands by.
    #[must_use]
    pub fn new(
        office: Office,
        make: impl Fn(u64, u64) -> ManagerCore + Send + 'static,
        floor: impl Fn() -> u64 + Send + 'static,
    ) -> Self {
        let (nodes, questions) = (BTreeMap::new(), BTreeMap::new());
        Self { office, make: Box::new(make), floor: Box::new(floor), nodes, questions }
    }
}

impl ManagerState {
    /// The state machine, if this manager may act now. It begins and ends with a term.
    fn acting(&mut self, now_ns: u64) -> Option<&mut ManagerCore> {
        if let Some(election) = &self.election {
            let term = election.office.holds(now_ns);
            if self.core.as_ref().is_some_and(|core| Some(core.term()) != term) {
                tracing::warn!("this manager lost its office and is a standby now");
                self.core = None;
                self.orders.clear();
            }
            if let (None, Some(term)) = (&self.core, term) {
                tracing::info!(term, "this manager takes office");
                self.core = Some((election.make)(term, now_ns));
            }
        }
        self.core.as_mut()
    }
}

impl ManagerState {
    /// Handles a beat. A manager among several also learns the node's promise from it.
    fn hear(&mut self, now_ns: u64, message: &Message) -> Result<(), Refused> {
        let (Some(election), Message::Beat { node, life, endpoints, term, held_ms, .. }) =
            (&mut self.election, message)
        else {
            return Ok(());
        };
        if !election.office.lists(*node) {
            return Err(Refused::at(Why::Unlisted, election.office.nodes().into()));
        }
        election.nodes.insert(*node, (*life, endpoints.clone()));
        election.office.on_beat(now_ns, *node, *term, *held_ms);
        Ok(())
    }
}

/// Answers requests with the manager's state machine, and queues its orders.
pub struct ManagerRpc {
    state: Mutex<Option<ManagerState>>,
    clock: Arc<dyn Clock>,
    changed: Condvar,
}

/// The handler that the fabric calls.
struct RequestHandler(Arc<ManagerRpc>);

impl std::fmt::Debug for ManagerRpc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ManagerRpc")
    }
}

/// Whether `message` may come from `client`. A client must not send a message in the name of
/// another client.
fn may_say(client: ClientId, message: &Message) -> bool {
    match message {
        Message::Renew { client: who, .. }
        | Message::Leave { client: who }
        | Message::Allocate { client: who, .. }
        | Message::Release { client: who, .. } => *who == client,
        _ => true,
    }
}

impl Handler for RequestHandler {
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

impl ManagerRpc {
    /// Makes the interface of a manager that runs alone, and the handler for the fabric's node.
    #[must_use]
    pub fn new(core: ManagerCore, clock: Arc<dyn Clock>) -> (Arc<Self>, Box<dyn Handler>) {
        Self::start(Some(core), None, clock)
    }

    /// Makes the interface of one of several managers, and the handler for the fabric's node. One
    /// manager acts at a time.
    #[must_use]
    pub fn elected(election: Election, clock: Arc<dyn Clock>) -> (Arc<Self>, Box<dyn Handler>) {
        Self::start(None, Some(election), clock)
    }

    fn start(
        core: Option<ManagerCore>,
        election: Option<Election>,
        clock: Arc<dyn Clock>,
    ) -> (Arc<Self>, Box<dyn Handler>) {
        let (replies, orders) = (HashMap::new(), BTreeMap::new());
        let state = ManagerState { core, election, replies, next_ticket: 0, orders };
        let rpc = Arc::new(Self { state: Mutex::new(Some(state)), clock, changed: Condvar::new() });
        let handler = Box::new(RequestHandler(Arc::clone(&rpc)));
        (rpc, handler)
    }

    /// Ends the interface. Requests are not answered any more.
    pub fn close(&self) {
        let state = self.state.lock().take();
        self.changed.notify_all();
        drop(state);
    }

    /// Runs `work` on the state machine, if this manager may act. Returns whether it may.
    fn with(&self, work: impl FnOnce(&mut ManagerCore, u64)) -> bool {
        let now_ns = self.clock.now_ns();
        let mut guard = self.state.lock();
        let Some(state) = guard.as_mut() else { return false };
        let Some(core) = state.acting(now_ns) else { return false };
        work(core, now_ns);
        let (mut answers, mut ordered) = (Vec::new(), false);
        for action in core.take_actions() {
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
        true
    }

    fn ask(&self, message: &Message, reply: Reply) {
        let now_ns = self.clock.now_ns();
        let ticket = {
            let mut state = self.state.lock();
            let Some(state) = state.as_mut() else { return };
            if let Err(refused) = state.hear(now_ns, message) {
                reply.send(Message::refuse(refused).encode());
                return;
            }
            state.next_ticket += 1;
            state.replies.insert(state.next_ticket, reply);
            state.next_ticket
        };
        if self.with(|core, now_ns| core.on_message(now_ns, ticket, message)) {
            return;
        }
        let left = self.state.lock().as_mut().and_then(|state| {
            let reply = state.replies.remove(&ticket)?;
            let answer = match (&state.election, message) {
                (Some(election), Message::Beat { .. }) => election.office.beat_answer(),
                _ => Message::refuse(Why::Standby),
            };
            Some((reply, answer))
        });
        if let Some((reply, answer)) = left {
            reply.send(answer.encode());
        }
    }

    /// Handles the passing of time. The driver calls it in short intervals.
    pub fn tick(&self) {
        let now_ns = self.clock.now_ns();
        if let Some(state) = self.state.lock().as_mut()
            && let Some(election) = &mut state.election
        {
            let questions = election.office.on_timer(now_ns, (election.floor)());
            election.questions.extend(questions);
        }
        if !self.with(|core, now_ns| core.on_timer(now_ns)) {
            self.refuse_all();
        }
    }

    /// Refuses waiting requests after this manager has lost its office.
    fn refuse_all(&self) {
        let replies = self.state.lock().as_mut().map(|state| std::mem::take(&mut state.replies));
        for reply in replies.into_iter().flatten().map(|(_, reply)| reply) {
            reply.send(Message::refuse(Why::Standby).encode());
        }
    }

    /// Nodes for which a question for a promise is queued.
    pub fn to_be_asked(&self) -> Vec<NodeId> {
        let state = self.state.lock();
        let election = state.as_ref().and_then(|state| state.election.as_ref());
        election.map_or_else(Vec::new, |election| election.questions.keys().copied().collect())
    }

    /// Takes the queued question for a promise of a node.
    pub fn take_question(&self, node: NodeId) -> Option<Message> {
        self.state.lock().as_mut()?.election.as_mut()?.questions.remove(&node)
    }

    /// Handles a node's answer to a question for its promise. The question was sent at `sent_ns` of
    /// this manager's clock.
    pub fn on_promise(&self, node: NodeId, asked: &Message, sent_ns: u64, answer: &Message) {
        let now_ns = self.clock.now_ns();
        if let Some(state) = self.state.lock().as_mut()
            && let Some(election) = &mut state.election
        {
            election.office.on_answer(now_ns, node, asked, sent_ns, answer);
        }
    }

    /// Life and endpoints of a node, as far as they are known.
    pub fn endpoints(&self, node: NodeId) -> Option<(Epoch, Vec<String>)> {
        let state = self.state.lock();
        let state = state.as_ref()?;
        let heard = state.election.as_ref().and_then(|election| election.nodes.get(&node));
        heard.cloned().or_else(|| state.core.as_ref()?.endpoints(node))
    }

    /// Whether this manager acts: it runs alone, or holds office.
    pub fn is_acting(&self) -> bool {
        let now_ns = self.clock.now_ns();
        self.state.lock().as_mut().is_some_and(|state| state.acting(now_ns).is_some())
    }

    /// Handles a node's answer to an order; `None` if no answer arrived in time.
    pub fn on_answer(&self, node: NodeId, asked: &Message, answer: Option<&Message>) {
        self.with(|core, now_ns| core.on_answer(now_ns, node, asked, answer));
    }

    /// Nodes with queued orders.
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

    /// Takes the queued orders of a node, in order. Waits for at most `patience` if there are none.
    pub fn take_orders(&self, node: NodeId, patience: Duration) -> VecDeque<Message> {
        let mut state = self.state.lock();
        let take = |state: &mut Option<ManagerState>| {
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

    /// Runs `look` on the state machine, if there is one.
    pub fn look<T>(&self, look: impl FnOnce(&ManagerCore) -> T) -> Option<T> {
        self.state.lock().as_ref().and_then(|state| state.core.as_ref()).map(look)
    }
}
