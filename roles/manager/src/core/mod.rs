//! The protocol of the manager: its state, and its answers.
//!
//! [`ManagerCore`] is a state machine without clock, lock or I/O. It takes messages, answers and
//! ticks with the time, and returns [`Action`]s. Every message may be lost, late or doubled. A tick
//! sends unanswered requests again, and epochs and lives match answers to requests.
//!
//! Invariants:
//! 1. The [`Config`] of a block changes only as `change.rs` describes.
//! 2. The manager changes no block while it collects reports after its start, which lasts longer
//!    than any lease that its predecessor granted.
//! 3. A client that was declared dead stays dead under its id.
//! 4. A manager that learns of a larger term stops.
//!
//! Thread-safety: none; the request handler owns the machine under a lock.
//! Failure: none; a lost message is sent again.
//! Cost: a tick visits all blocks. A block takes some 200 bytes of state.

mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_fabric::{ClientId, NodeId};
use archipelago_pool::wire::{CopyReport, Message, NodeCounters, Refused, Why};
use archipelago_pool::{BlockId, Config, NUMBERS_MAX, Place, Sharing};

use crate::decide::{self, OwnerIs, PlaceIs, Room};

pub use self::work::ManagerWork;

/// Number of freed blocks that the manager remembers.
const REMEMBERED_MAX: usize = 1 << 16;

/// An action that the caller must take for the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Answer the request that has this ticket.
    Answer {
        /// Ticket of the request.
        ticket: u64,
        /// The answer to send.
        message: Message,
    },
    /// Send a request to a node. Its answer goes to [`ManagerCore::on_answer`].
    Send {
        /// The node to ask.
        node: NodeId,
        /// The request to send.
        message: Message,
    },
}

/// Number of copies, and the times of the protocol.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Number of copies of a block. A block has fewer while fewer nodes are up. Default: 3.
    pub copies: u32,
    /// Silence after which the manager declares a client dead. Default: 2 s.
    pub lease: Duration,
    /// Silence after which the manager declares a node dead. Default: 1 s.
    pub node_lease: Duration,
    /// Time after which an unanswered request is sent again. Default: 20 ms.
    pub resend: Duration,
    /// Time after which the manager tries an unfinished copy on another node. Default: 20 s.
    pub fill_max: Duration,
    /// Time between two audits of a node's copies, which drop copies that no configuration names.
    /// Default: 10 s.
    pub audit: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            copies: 3,
            lease: Duration::from_secs(2),
            node_lease: Duration::from_secs(1),
            resend: Duration::from_millis(20),
            fill_max: Duration::from_secs(20),
            audit: Duration::from_secs(10),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Rebuilding { until_ns: u64 },
    Active,
    Deposed,
}

#[derive(Clone, Debug)]
pub(crate) struct NodeInfo {
    pub(crate) life: Epoch,
    pub(crate) endpoints: Vec<String>,
    pub(crate) block_bytes: u64,
    pub(crate) blocks_max: u64,
    pub(crate) blocks_used: u64,
    /// Counters of the node, for the status.
    pub(crate) counters: NodeCounters,
    pub(crate) heard_ns: u64,
    pub(crate) up: bool,
    /// Whether the whole report of the node has arrived since it is up.
    pub(crate) claimed: bool,
    /// Whether the manager reports the node to clients as up. It does so when the node has no more
    /// copies to give up.
    pub(crate) announced: bool,
    /// Version of the list of members with which the node came up.
    pub(crate) since: u64,
    /// Whether an audit asks the node for its copies again.
    pub(crate) auditing: bool,
    pub(crate) audited_ns: u64,
    pub(crate) cursor: Option<BlockId>,
    pub(crate) seen: BTreeSet<BlockId>,
    /// Version of the list of members that reported the node's silence.
    pub(crate) gone_view: u64,
    pub(crate) forgotten: bool,
    /// Earliest time, in nanoseconds, at which the manager may ask a full node for memory again.
    pub(crate) full_until_ns: u64,
    /// Dead clients with which the node is not finished. `false` means that it has not confirmed
    /// the fence, and `true` that a process still has memory mapped.
    pub(crate) fences: BTreeMap<ClientId, bool>,
    /// Whether the node and this manager have exchanged their dead clients.
    pub(crate) told: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) config: Config,
    /// Nodes that serve `config`, by their own reports.
    pub(crate) installed: BTreeSet<NodeId>,
    /// Nodes of `config` that have no copy, by their own reports.
    pub(crate) lost: BTreeSet<NodeId>,
    /// Epoch of the latest change that began; the epoch of `config` if none did.
    pub(crate) promised: Epoch,
    pub(crate) change: Option<Change>,
    /// Time, in nanoseconds, at which the manager frees a released block.
    pub(crate) free_ns: Option<u64>,
    /// Earliest time, in nanoseconds, at which the manager may add a copy of this block.
    pub(crate) grow_ns: u64,
    /// Whether the block was ready once, so that a client may have written to it.
    pub(crate) used: bool,
    /// Tickets of the requests that wait for the block.
    pub(crate) tickets: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Seal,
    Barrier,
    Fill,
}

#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) epoch: Epoch,
    pub(crate) step: Step,
    pub(crate) sealed: BTreeSet<NodeId>,
    /// Copies that stay in the next configuration.
    pub(crate) kept: Vec<Place>,
    pub(crate) add: Vec<Place>,
    pub(crate) filled: BTreeSet<NodeId>,
    pub(crate) since_ns: u64,
}

/// A client's request for a block; [`Message::Allocate`] describes the fields.
#[derive(Clone, Copy, Debug)]
struct Allocation {
    client: ClientId,
    request: u64,
    sharing: Sharing,
    copies: u32,
}

/// The state of one client, as the manager knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientInfo {
    /// Label of the data that the client works on. It is `None` until the client has sent it to
    /// this manager.
    pub(crate) label: Option<u64>,
    /// Time of the client's last message, in nanoseconds.
    pub(crate) heard_ns: u64,
    /// Version of the members that the client has acted on.
    pub(crate) view: u64,
    /// Version of the list of the client's blocks.
    pub(crate) owned: u64,
    /// Epoch up to which the latest list was complete; `None` if it lacked no block.
    pub(crate) bound: Option<Epoch>,
}

/// The protocol of the manager, as a state machine.
#[derive(Debug)]
pub struct ManagerCore {
    pub(crate) me: ClientId,
    pub(crate) term: u64,
    pub(crate) terms: Terms,
    pub(crate) phase: Phase,
    pub(crate) nodes: BTreeMap<NodeId, NodeInfo>,
    pub(crate) clients: BTreeMap<ClientId, ClientInfo>,
    /// Labels of the clients that had no lease when they first sent a message to the manager, while
    /// it collected reports.
    pub(crate) claimants: BTreeMap<ClientId, u64>,
    /// Clients that hold a lease of this manager although a node reported them as dead under an
    /// earlier manager. The value is the end of the lease, in nanoseconds.
    pub(crate) given: BTreeMap<ClientId, u64>,
    pub(crate) dead: BTreeSet<ClientId>,
    pub(crate) dead_order: VecDeque<ClientId>,
    pub(crate) blocks: BTreeMap<BlockId, Block>,
    /// Reports of blocks whose configuration is not confirmed yet.
    pub(crate) reports: BTreeMap<BlockId, BTreeMap<NodeId, (Epoch, CopyReport)>>,
    pub(crate) freed: BTreeMap<BlockId, Epoch>,
    freed_order: VecDeque<BlockId>,
    /// Copies that nodes must give up: life, epoch, and whether the block is freed.
    pub(crate) dropping: BTreeMap<(NodeId, BlockId), (Epoch, Epoch, bool)>,
    /// Version of the members.
    pub(crate) view: u64,
    /// Version of the members at the start, which no client of an earlier manager knows.
    pub(crate) first_view: u64,
    /// Largest epoch of all blocks.
    pub(crate) epochs: u64,
    next_number: u32,
    pub(crate) lost: u64,
    pub(crate) work: ManagerWork,
    resent_ns: u64,
    /// Time of the last tick, in nanoseconds.
    timer_ns: u64,
    /// Whether the manager holds office by the promises of a majority ([`crate::office`]).
    /// Otherwise it runs alone.
    pub(crate) elected: bool,
    pub(crate) actions: Vec<Action>,
}

impl ManagerCore {
    /// A manager that begins to collect reports at `now_ns`. `term` comes from the wall clock and
    /// is larger than the term of every earlier manager; if it is not, the manager raises it. `me`
    /// is a random id that nodes learn to obey. `number` is the random number with which block
    /// names begin.
    #[must_use]
    pub fn new(me: ClientId, term: u64, number: u32, terms: Terms, now_ns: u64) -> Self {
        let longest = terms.lease.max(terms.node_lease);
        let until_ns = now_ns + longest.as_nanos() as u64 * 5 / 4;
        Self {
            me,
            term,
            terms,
            phase: Phase::Rebuilding { until_ns },
            nodes: BTreeMap::new(),
            clients: BTreeMap::new(),
            claimants: BTreeMap::new(),
            given: BTreeMap::new(),
            dead: BTreeSet::new(),
            dead_order: VecDeque::new(),
            blocks: BTreeMap::new(),
            reports: BTreeMap::new(),
            freed: BTreeMap::new(),
            freed_order: VecDeque::new(),
            dropping: BTreeMap::new(),
            view: term,
            first_view: term,
            epochs: term,
            next_number: number % NUMBERS_MAX,
            lost: 0,
            work: ManagerWork::default(),
            resent_ns: now_ns,
            timer_ns: now_ns,
            elected: false,
            actions: Vec::new(),
        }
    }

    /// A manager that a majority of the memory nodes has promised to obey in `term`; see
    /// [`ManagerCore::new`].
    #[must_use]
    pub fn elected(me: ClientId, term: u64, number: u32, terms: Terms, now_ns: u64) -> Self {
        Self { elected: true, ..Self::new(me, term, number, terms, now_ns) }
    }

    /// Takes the actions since the last call.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Term of the manager.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Client id under which the manager calls nodes.
    #[must_use]
    pub fn me(&self) -> ClientId {
        self.me
    }

    /// Whether another manager has taken over, so that this manager does nothing any more.
    #[must_use]
    pub fn is_deposed(&self) -> bool {
        self.phase == Phase::Deposed
    }

    /// Whether the manager has collected reports for long enough, and acts.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.phase == Phase::Active
    }

    /// Number of blocks of which all copies were lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Endpoints of a node, in its known life.
    #[must_use]
    pub fn endpoints(&self, node: NodeId) -> Option<(Epoch, Vec<String>)> {
        self.nodes.get(&node).map(|info| (info.life, info.endpoints.clone()))
    }

    /// Blocks that clients can use now, for checks.
    pub fn ready_blocks(&self) -> impl Iterator<Item = &Config> {
        self.blocks.values().filter(|block| block.is_ready()).map(|block| &block.config)
    }

    /// Blocks that a node has reported, for checks.
    #[must_use]
    pub fn heard_of(&self) -> BTreeSet<BlockId> {
        self.blocks.keys().chain(self.reports.keys()).copied().collect()
    }

    /// Takes a request. Its answer is an [`Action::Answer`] with this ticket, now or later.
    pub fn on_message(&mut self, now_ns: u64, ticket: u64, message: &Message) {
        let answered = if self.is_deposed() {
            Err(Refused::at(Why::OldTerm, self.term))
        } else {
            self.ask(now_ns, ticket, message)
        };
        match answered {
            Ok(None) => {}
            Ok(Some(message)) => self.actions.push(Action::Answer { ticket, message }),
            Err(refused) => {
                let message = Message::refuse(refused);
                self.actions.push(Action::Answer { ticket, message });
            }
        }
    }

    fn ask(
        &mut self,
        now_ns: u64,
        ticket: u64,
        message: &Message,
    ) -> Result<Option<Message>, Refused> {
        match message {
            Message::Renew { client, label, first, view, owned } => {
                self.renew(now_ns, *client, *label, *first, *view)?;
                Ok(Some(self.renewed(*client, *view, *owned)))
            }
            Message::Leave { client } => {
                self.kill(*client);
                self.advance_all(now_ns, false);
                Ok(Some(Message::Done {}))
            }
            Message::Evict { client } => {
                self.kill(*client);
                self.advance_all(now_ns, false);
                self.ready(now_ns)?;
                self.gone(now_ns, *client).map(Some)
            }
            Message::Gone { client } => {
                self.ready(now_ns)?;
                if self.clients.contains_key(client) {
                    return Err(Why::Changing.into());
                }
                // A client that is still unknown was silent for longer than any lease.
                self.kill(*client);
                self.gone(now_ns, *client).map(Some)
            }
            Message::Allocate { client, request, sharing, copies } => {
                let (client, request, sharing, copies) = (*client, *request, *sharing, *copies);
                self.allocate(now_ns, ticket, Allocation { client, request, sharing, copies })
            }
            Message::Locate { block } => self.locate(now_ns, *block).map(Some),
            Message::Find { label } => self.find(now_ns, *label).map(Some),
            Message::Release { client, block } => {
                self.release(now_ns, *client, *block).map(|()| Some(Message::Done {}))
            }
            Message::Forget { node } => self.forget(now_ns, *node).map(|()| Some(Message::Done {})),
            Message::Status {} => Ok(Some(Message::StatusIs { status: self.status(now_ns) })),
            Message::Beat { .. } => self.beat(now_ns, message).map(Some),
            _ => Err(Why::Malformed.into()),
        }
    }

    /// Takes a node's answer to a request; `None` means that it did not answer.
    pub fn on_answer(
        &mut self,
        now_ns: u64,
        node: NodeId,
        asked: &Message,
        answer: Option<&Message>,
    ) {
        let Some(answer) = answer.filter(|_| !self.is_deposed()) else { return };
        match asked {
            Message::Claim { term, after } if *term == self.term => {
                self.on_report(now_ns, node, *after, answer);
            }
            Message::Fence { term, .. } if *term == self.term => {
                self.on_fenced(now_ns, node, asked, answer);
            }
            Message::Drop { block, epoch, .. } => self.on_dropped(node, *block, *epoch, answer),
            Message::Seal { block, epoch, .. } => {
                self.on_copy_answer(now_ns, node, *block, *epoch, answer);
            }
            Message::Fill { config, .. } | Message::Install { config, .. } => {
                self.on_copy_answer(now_ns, node, config.block, config.epoch, answer);
            }
            _ => {}
        }
    }

    /// Handles the passing of time: does everything that is due.
    pub fn on_timer(&mut self, now_ns: u64) {
        self.forgive(now_ns);
        if let Phase::Rebuilding { until_ns } = self.phase
            && now_ns >= until_ns
        {
            self.phase = Phase::Active;
            self.take_claimants(now_ns);
            tracing::info!(term = self.term, blocks = self.blocks.len(), "the manager is ready");
        }
        if self.is_deposed() {
            return;
        }
        let resend = now_ns.saturating_sub(self.resent_ns) >= self.terms.resend.as_nanos() as u64;
        if resend {
            self.resent_ns = now_ns;
        }
        self.given.retain(|_, until_ns| *until_ns > now_ns);
        self.watch_nodes(now_ns, resend);
        if self.is_active() {
            self.watch_clients(now_ns);
        }
        self.confirm_all(now_ns);
        self.advance_all(now_ns, resend);
    }

    /// Ignores the silence of members during a stop of this process, because a stopped process
    /// receives no messages.
    fn forgive(&mut self, now_ns: u64) {
        let stood_ns = now_ns.saturating_sub(std::mem::replace(&mut self.timer_ns, now_ns));
        if stood_ns < self.terms.lease.min(self.terms.node_lease).as_nanos() as u64 / 4 {
            return;
        }
        for info in self.clients.values_mut() {
            info.heard_ns = (info.heard_ns + stood_ns).min(now_ns);
        }
        for info in self.nodes.values_mut() {
            info.heard_ns = (info.heard_ns + stood_ns).min(now_ns);
        }
    }

    // Blocks.

    fn allocate(
        &mut self,
        now_ns: u64,
        ticket: u64,
        allocation: Allocation,
    ) -> Result<Option<Message>, Refused> {
        let Allocation { client, request, sharing, copies } = allocation;
        self.ready(now_ns)?;
        let Some(info) = self.clients.get(&client) else { return Err(Why::Evicted.into()) };
        // The label is unknown, and a client of the right label must adopt the block later. So the
        // client must renew its lease first.
        let Some(label) = info.label else { return Err(Why::Changing.into()) };
        if request == 0 {
            return Err(Why::Malformed.into());
        }
        let same = |block: &&mut Block| {
            block.config.owner == Some(client) && block.config.request == request
        };
        if let Some(block) = self.blocks.values_mut().find(same) {
            if block.is_ready() {
                return Ok(Some(Message::Located { config: block.config.clone() }));
            }
            block.tickets.push(ticket);
            return Ok(None);
        }
        let up = self.nodes.values().filter(|info| info.announced).count();
        let wanted = if copies == 0 { self.terms.copies } else { copies } as usize;
        let need = wanted.min(up);
        let chosen = decide::choose(self.rooms(now_ns, &[]), need);
        if up == 0 {
            return Err(Refused::at(Why::NoNodes, 0));
        }
        if chosen.len() < need {
            return Err(Refused::at(Why::Full, self.bytes_left()));
        }
        let chosen = decide::in_front(chosen, &self.fronts());
        let Some(id) = self.name(chosen[0]) else {
            return Err(Refused::at(Why::Full, self.bytes_left()));
        };
        let epoch = self.next_epoch(Epoch(0));
        let config = Config {
            block: id,
            epoch: Epoch(0),
            born: epoch,
            owner: Some(client),
            label,
            request,
            sharing,
            wanted: wanted as u32,
            copies: Vec::new(),
        };
        let add = chosen.iter().filter_map(|node| self.place(*node)).collect();
        let mut block = Block::unborn(config, add, now_ns);
        block.tickets.push(ticket);
        self.blocks.insert(id, block);
        self.advance(now_ns, id, true);
        Ok(None)
    }

    pub(crate) fn ready(&self, now_ns: u64) -> Result<(), Refused> {
        match self.phase {
            Phase::Active => Ok(()),
            Phase::Rebuilding { until_ns } => {
                let ms = until_ns.saturating_sub(now_ns) / 1_000_000 + 1;
                Err(Refused::at(Why::Rebuilding, ms))
            }
            Phase::Deposed => Err(Refused::at(Why::OldTerm, self.term)),
        }
    }

    fn locate(&self, now_ns: u64, id: BlockId) -> Result<Message, Refused> {
        match self.blocks.get(&id) {
            Some(block) if block.is_ready() => {
                Ok(Message::Located { config: block.config.clone() })
            }
            Some(_) => Err(Why::Changing.into()),
            None if self.reports.contains_key(&id) => Err(Why::Changing.into()),
            None => self.ready(now_ns).and(Err(Why::UnknownBlock.into())),
        }
    }

    fn release(&mut self, now_ns: u64, client: ClientId, id: BlockId) -> Result<(), Refused> {
        let lease_ns = self.terms.lease.as_nanos() as u64;
        let Some(block) = self.blocks.get_mut(&id) else {
            self.ready(now_ns)?;
            // The answer is not *unknown block*. After that answer the client would not repeat the
            // release, and would get the block back when the nodes have confirmed it.
            let unconfirmed = self.reports.contains_key(&id);
            let why = if unconfirmed { Why::Changing } else { Why::UnknownBlock };
            return Err(why.into());
        };
        if block.config.owner != Some(client) {
            return Err(Why::NotOwner.into());
        }
        block.free_ns.get_or_insert(now_ns + lease_ns);
        Ok(())
    }

    /// Chooses a name that no known block has.
    fn name(&mut self, home: NodeId) -> Option<BlockId> {
        for _ in 0..NUMBERS_MAX {
            let block = BlockId { home, number: self.next_number };
            self.next_number = (self.next_number + 1) % NUMBERS_MAX;
            if !self.blocks.contains_key(&block) && !self.reports.contains_key(&block) {
                return Some(block);
            }
        }
        None
    }

    pub(crate) fn next_epoch(&mut self, above: Epoch) -> Epoch {
        self.epochs = self.epochs.max(above.0) + 1;
        Epoch(self.epochs)
    }

    pub(crate) fn place(&self, node: NodeId) -> Option<Place> {
        self.nodes.get(&node).map(|info| Place { node, life: info.life })
    }

    /// Room on nodes that are up, except on those that `but` names.
    pub(crate) fn rooms(&self, now_ns: u64, but: &[NodeId]) -> Vec<Room> {
        let could = |node: &NodeId, info: &NodeInfo| {
            let free = info.blocks_used < info.blocks_max;
            info.announced && free && info.full_until_ns <= now_ns && !but.contains(node)
        };
        let nodes = self.nodes.iter().filter(|(node, info)| could(node, info));
        let mut planned: BTreeMap<Place, u64> =
            nodes.map(|(node, info)| (Place { node: *node, life: info.life }, 0)).collect();
        if planned.is_empty() {
            return Vec::new();
        }
        for block in self.blocks.values() {
            let added = block.change.iter().flat_map(|change| change.add.iter());
            for place in block.config.copies.iter().chain(added) {
                if let Some(count) = planned.get_mut(place) {
                    *count += 1;
                }
            }
        }
        let left = |(place, planned): (Place, u64)| {
            let info = &self.nodes[&place.node];
            let used = info.blocks_used.max(planned);
            Room { node: place.node, blocks: info.blocks_max.saturating_sub(used) }
        };
        planned.into_iter().map(left).collect()
    }

    /// Number of blocks whose first copy is, or will be, on each node.
    fn fronts(&self) -> BTreeMap<NodeId, u64> {
        let mut fronts = BTreeMap::new();
        for block in self.blocks.values() {
            let added = block.change.iter().flat_map(|change| change.add.iter());
            if let Some(first) = block.config.copies.iter().chain(added).next() {
                *fronts.entry(first.node).or_insert(0) += 1;
            }
        }
        fronts
    }

    /// Bytes that are left for new copies on all nodes that are up.
    pub(crate) fn bytes_left(&self) -> u64 {
        let of = |room: &Room| {
            let bytes = self.nodes.get(&room.node).map_or(0, |info| info.block_bytes);
            room.blocks.saturating_mul(bytes)
        };
        self.rooms(u64::MAX, &[]).iter().map(of).sum()
    }

    pub(crate) fn place_is(&self, block: &Block, place: Place) -> PlaceIs {
        let Some(info) = self.nodes.get(&place.node) else { return PlaceIs::Silent };
        if info.forgotten || info.life > place.life || block.lost.contains(&place.node) {
            PlaceIs::Lost
        } else if info.up && info.claimed && info.life == place.life {
            PlaceIs::Up
        } else if info.up && info.life == place.life {
            PlaceIs::Coming
        } else {
            PlaceIs::Silent
        }
    }

    pub(crate) fn owner_is(&self, owner: Option<ClientId>) -> OwnerIs {
        match owner {
            None => OwnerIs::Nobody,
            Some(client) if self.clients.contains_key(&client) => OwnerIs::Live,
            Some(_) => OwnerIs::Dead,
        }
    }

    pub(crate) fn remember_freed(&mut self, block: BlockId, epoch: Epoch) {
        let known = self.freed.entry(block).or_insert_with(|| {
            self.freed_order.push_back(block);
            epoch
        });
        *known = epoch.max(*known);
        if self.freed_order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.freed_order.pop_front()
        {
            self.freed.remove(&oldest);
        }
    }
}

impl Block {
    /// A block to make, with copies at the places `add`.
    fn unborn(config: Config, add: Vec<Place>, now_ns: u64) -> Self {
        let change = Change {
            epoch: config.born,
            step: Step::Fill,
            sealed: BTreeSet::new(),
            kept: Vec::new(),
            add,
            filled: BTreeSet::new(),
            since_ns: now_ns,
        };
        let promised = config.born;
        Self { promised, change: Some(change), used: false, ..Self::settled(config) }
    }

    /// A block with the configuration `config`, which no node has reported to serve yet.
    pub(crate) fn settled(config: Config) -> Self {
        Self {
            promised: config.epoch,
            installed: BTreeSet::new(),
            lost: BTreeSet::new(),
            change: None,
            free_ns: None,
            grow_ns: 0,
            used: true,
            tickets: Vec::new(),
            config,
        }
    }

    /// Whether clients can use the block.
    pub(crate) fn is_ready(&self) -> bool {
        self.change.is_none()
            && self.promised == self.config.epoch
            && self.is_installed()
            && self.free_ns.is_none()
    }

    pub(crate) fn is_installed(&self) -> bool {
        self.config.copies.iter().all(|copy| self.installed.contains(&copy.node))
    }

    /// Whether `place` has a copy of the block, or will get one.
    pub(crate) fn takes(&self, place: Place) -> bool {
        let added = |change: &Change| change.add.contains(&place);
        self.config.has(place) || self.change.as_ref().is_some_and(added)
    }
}

#[cfg(test)]
mod tests;
