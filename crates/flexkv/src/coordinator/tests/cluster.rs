//! Scripted nodes, and the messages in flight between them and the coordinator.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_base::random::Rng;
use archipelago_pool::{BlockId, ClientId};

use super::super::{Action, Coordinator, Plan};
use crate::format::Counts;
use crate::wire::{Assigned, Grant, Member, Message, Shaped, Why};

/// Bytes of a node for offloaded partitions, unless a test sets another number.
const INDEX_BYTES: u64 = 1 << 20;

pub(super) const PLAN: Plan = Plan { partition_bits: 3, log2_buckets: 1, offload: 0, fixed: false };

/// A message in flight.
#[derive(Clone, Debug)]
pub(super) enum Flight {
    Order {
        to: ClientId,
        message: Message,
    },
    /// The answer to an order of the coordinator of `term`.
    Answer {
        term: u64,
        from: ClientId,
        sent: Message,
        answer: Message,
    },
    Request {
        message: Message,
    },
    Reply {
        to: ClientId,
        message: Message,
    },
}

impl Flight {
    pub(super) fn is(&self, name: &str) -> bool {
        let (Self::Order { message, .. } | Self::Request { message } | Self::Reply { message, .. }) =
            self
        else {
            return false;
        };
        message.name() == name
    }
}

#[derive(Debug)]
struct Staged {
    version: u64,
    changes: Vec<Assigned>,
    members: Vec<ClientId>,
    prepared: Option<Vec<Assigned>>,
}

#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) number: u32,
    pub(super) version: u64,
    pub(super) map: Vec<Assigned>,
    /// Members that the node knows.
    pub(super) members: Vec<ClientId>,
    /// Whether the node neither receives nor sends any more. It may still serve until it is gone.
    pub(super) silent: bool,
    /// Whether the node finds no memory for a larger subtable.
    pub(super) full: bool,
    term: u64,
    directory: BlockId,
    staged: Option<Staged>,
    /// Whether each partition is paused.
    closed: Vec<bool>,
}

#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) core: Coordinator,
    /// Nodes that are not gone.
    pub(super) nodes: BTreeMap<ClientId, Node>,
    /// Nodes that are gone permanently and do not know it. They still answer requests that need no
    /// pool.
    pub(super) ghosts: BTreeMap<ClientId, Node>,
    pub(super) bag: Vec<Flight>,
    /// Epoch and node of each owner word.
    pub(super) claimed: BTreeMap<u32, (u32, u32)>,
    /// Subtables in the directory, once the index is made.
    pub(super) shapes: BTreeMap<u32, Shaped>,
    /// Clients that got a map and are not known to be gone.
    roster: BTreeSet<ClientId>,
    /// Whether the coordinator waits for the directory.
    looks: bool,
    last: Vec<Assigned>,
    /// Bytes of joining nodes for offloaded partitions.
    pub(super) index_bytes: u64,
    tickets: BTreeMap<u64, ClientId>,
    next_ticket: u64,
    next_client: u64,
    term: u64,
    counted: Vec<u32>,
    counted_ns: u64,
}

fn declined(why: Why) -> Message {
    Message::Declined { why, grant: Grant::default() }
}

impl Node {
    fn answer(
        &mut self,
        client: ClientId,
        message: &Message,
        claimed: &mut BTreeMap<u32, (u32, u32)>,
        shapes: &mut BTreeMap<u32, Shaped>,
    ) -> Message {
        let (Message::Create { term, .. }
        | Message::Pause { term, .. }
        | Message::Prepare { term, .. }
        | Message::Resume { term, .. }
        | Message::Recall { term }) = message
        else {
            return declined(Why::Malformed);
        };
        if *term < self.term {
            return declined(Why::OldTerm);
        }
        self.term = *term;
        match message {
            Message::Create { partition_bits, log2_buckets, .. } => {
                let shape = |packed| Shaped { packed, generation: 1, log2_buckets: *log2_buckets };
                let made = (0..1 << partition_bits)
                    .map(|partition| *shapes.entry(partition).or_insert(shape(partition.into())));
                Message::Created { shapes: made.collect() }
            }
            Message::Recall { .. } => Message::Recalled {
                member: Member {
                    number: self.number,
                    client,
                    endpoints: Vec::new(),
                    index_bytes: INDEX_BYTES,
                },
                version: self.version,
                partition_bits: if self.version > 0 { PLAN.partition_bits } else { 0 },
                map: self.map.clone(),
                directory: self.directory,
                paused: self.staged.as_ref().map_or(0, |staged| staged.version),
                members: Vec::new(),
            },
            _ if self.version == 0 => declined(Why::Busy),
            Message::Pause { version, changes, members, .. } => {
                self.pause(*version, changes, members)
            }
            Message::Prepare { version, .. } => self.prepare(*version, claimed, shapes),
            Message::Resume { version, changes, .. } => self.resume(*version, changes),
            _ => declined(Why::Malformed),
        }
    }

    fn pause(&mut self, version: u64, changes: &[Assigned], members: &[Member]) -> Message {
        if self.version >= version {
            return Message::Done {};
        }
        let staged = self.staged.as_ref().map_or(0, |staged| staged.version);
        if staged > version {
            return declined(Why::OldTerm);
        }
        if staged < version {
            let members = members.iter().map(|member| member.client).collect();
            let changes = changes.to_vec();
            self.staged = Some(Staged { version, changes, members, prepared: None });
        }
        for change in changes {
            self.closed[change.partition as usize] = true;
        }
        Message::Done {}
    }

    fn prepare(
        &mut self,
        version: u64,
        claimed: &mut BTreeMap<u32, (u32, u32)>,
        shapes: &mut BTreeMap<u32, Shaped>,
    ) -> Message {
        let (number, full) = (self.number, self.full);
        let Some(staged) = self.staged.as_mut().filter(|staged| staged.version == version) else {
            return declined(Why::OldTerm);
        };
        if staged.prepared.is_none() {
            let mine = staged.changes.iter().filter(|change| change.node == number);
            let mut prepared = Vec::new();
            for mut assigned in mine.copied() {
                let before = claimed.insert(assigned.partition, (assigned.epoch, number));
                let larger = before.is_none_or(|(epoch, _)| epoch < assigned.epoch);
                assert!(larger, "{assigned:?} is claimed after {before:?}");
                let entered = shapes[&assigned.partition];
                if entered.generation > assigned.shape.generation {
                    (assigned.shape, assigned.grow) = (entered, false);
                }
                if std::mem::take(&mut assigned.grow) && !full {
                    assigned.shape.log2_buckets += 1;
                    assigned.shape.generation += 1;
                }
                shapes.insert(assigned.partition, assigned.shape);
                prepared.push(assigned);
            }
            staged.prepared = Some(prepared);
        }
        Message::Prepared { changes: staged.prepared.clone().unwrap_or_default() }
    }

    fn resume(&mut self, version: u64, changes: &[Assigned]) -> Message {
        if self.version >= version {
            return Message::Done {};
        }
        let Some(staged) = self.staged.take_if(|staged| staged.version == version) else {
            return declined(Why::OldTerm);
        };
        self.members = staged.members;
        self.version = version;
        for change in changes {
            self.map[change.partition as usize] = *change;
            self.closed[change.partition as usize] = false;
        }
        Message::Done {}
    }

    fn is_ready_for(&self, version: u64, prepared: bool) -> bool {
        let staged = self.staged.as_ref().filter(|staged| staged.version == version);
        let ready = staged.is_some_and(|staged| !prepared || staged.prepared.is_some());
        self.version == 0 || self.version >= version || ready
    }
}

impl Cluster {
    pub(super) fn new() -> Self {
        let mut cluster = Self {
            core: Coordinator::new(PLAN),
            shapes: BTreeMap::new(),
            roster: BTreeSet::new(),
            looks: false,
            nodes: BTreeMap::new(),
            ghosts: BTreeMap::new(),
            bag: Vec::new(),
            claimed: BTreeMap::new(),
            last: Vec::new(),
            index_bytes: INDEX_BYTES,
            tickets: BTreeMap::new(),
            next_ticket: 1,
            next_client: 1,
            term: 0,
            counted: Vec::new(),
            counted_ns: 0,
        };
        cluster.take_office();
        cluster.read_directory();
        cluster
    }

    /// Lets the coordinator enter its term and read the roster.
    fn take_office(&mut self) {
        self.term += 1;
        let roster: Vec<ClientId> = self.roster.iter().copied().collect();
        self.core.take_office(self.term, BlockId::default(), &roster);
        self.collect();
    }

    /// Lets a node report that it lives.
    pub(super) fn announce(&mut self, client: ClientId) {
        self.bag.push(Flight::Request {
            message: Message::Here { client, endpoints: Vec::new(), directory: None },
        });
    }

    /// Lets a new node ask to join, and returns its client.
    pub(super) fn join(&mut self) -> u64 {
        let client = self.next_client;
        self.next_client += 1;
        self.nodes.insert(ClientId(client), Node::default());
        self.ask_to_join(ClientId(client));
        client
    }

    pub(super) fn ask_to_join(&mut self, client: ClientId) {
        let join = Message::Join { client, endpoints: Vec::new(), index_bytes: self.index_bytes };
        self.bag.push(Flight::Request { message: join });
    }

    pub(super) fn grow(&mut self, partition: u32, epoch: u32) {
        self.bag.push(Flight::Request { message: Message::Grow { partition, epoch } });
    }

    /// Ends an interval. Every node has counted more accesses, and many more of one partition.
    pub(super) fn count(&mut self, hot: usize, rng: &mut Rng) {
        let partitions = self.core.map().len();
        self.counted.resize(partitions, 0);
        for (partition, counted) in self.counted.iter_mut().enumerate() {
            *counted += if partition == hot % partitions { 10_000 } else { rng.u32(80..120) };
        }
        self.counted_ns += 1_000_000_000;
        let reads = u64::from(self.counted.iter().sum::<u32>());
        let counts = Counts { reads, writes: reads / 9, accesses: self.counted.clone() };
        let readings = self.nodes.keys().map(|client| (*client, counts.clone()));
        self.core.on_time(self.counted_ns);
        self.core.on_counts(&readings.collect::<Vec<_>>());
        self.collect();
    }

    /// Lets the pool declare a node dead whose lease is over.
    pub(super) fn die(&mut self, client: u64) {
        self.ghosts.extend(self.nodes.remove_entry(&ClientId(client)));
        self.core.on_gone(ClientId(client));
        self.collect();
    }

    /// Asks the pool which clients are dead, because a late join may have made a dead client a
    /// member.
    pub(super) fn watch(&mut self) {
        for client in self.core.watched() {
            if !self.nodes.contains_key(&client) {
                self.die(client.0);
            }
        }
    }

    pub(super) fn restart_coordinator(&mut self) {
        self.core = Coordinator::new(PLAN);
        self.looks = false;
        self.last.clear();
        self.tickets.clear();
        // Orders of the old coordinator may still arrive. All other messages went to it.
        self.bag.retain(|flight| matches!(flight, Flight::Order { .. }));
        self.take_office();
        let nodes: Vec<ClientId> = self.nodes.keys().chain(self.ghosts.keys()).copied().collect();
        nodes.into_iter().for_each(|client| self.announce(client));
    }

    /// Reads the directory, if the coordinator waits for it.
    pub(super) fn read_directory(&mut self) {
        if !std::mem::take(&mut self.looks) {
            return;
        }
        let epoch = |partition| self.claimed.get(partition).map_or(0, |(epoch, _)| *epoch);
        let entries: Vec<(u32, Shaped)> =
            self.shapes.iter().map(|(partition, shape)| (epoch(partition), *shape)).collect();
        let made = !entries.is_empty();
        let bits = made.then_some(PLAN.partition_bits);
        self.core.on_entries(bits, made.then_some(&entries[..]));
        self.collect();
    }

    pub(super) fn number(&self, client: u64) -> Option<u32> {
        self.nodes.get(&ClientId(client)).map(|node| node.number).filter(|number| *number > 0)
    }

    /// Whether a node got the map, or the map is in flight to it.
    pub(super) fn is_told(&self, client: u64) -> bool {
        let told = |flight: &Flight| matches!(flight, Flight::Reply { to, .. } if to.0 == client);
        self.number(client).is_some()
            || self.bag.iter().any(|flight| told(flight) && flight.is("Joined"))
    }

    /// Performs the coordinator's actions, and checks the whole cluster.
    pub(super) fn collect(&mut self) {
        for action in self.core.take_actions() {
            self.bag.push(match action {
                Action::Send { to, message } => {
                    self.check_order(&message);
                    Flight::Order { to, message }
                }
                Action::Look => {
                    self.looks = true;
                    continue;
                }
                Action::Answer { ticket, message } => {
                    let Some(to) = self.tickets.remove(&ticket) else { continue };
                    Flight::Reply { to, message }
                }
            });
        }
        self.check();
    }

    fn check_order(&self, message: &Message) {
        let (version, prepared) = match message {
            Message::Prepare { version, .. } => (*version, false),
            Message::Resume { version, .. } => (*version, true),
            _ => return,
        };
        for (client, node) in &self.nodes {
            assert!(
                node.is_ready_for(version, prepared),
                "{message:?} too early for {client}: {node:?}"
            );
        }
    }

    fn check(&mut self) {
        if self.core.version() == 0 {
            self.last.clear();
            return;
        }
        for (now, old) in self.core.map().iter().zip(&self.last) {
            assert!(now.epoch > old.epoch || now == old, "{now:?} after {old:?}");
        }
        self.last = self.core.map().to_vec();
        let mut open: BTreeMap<u32, Assigned> = BTreeMap::new();
        for node in self.nodes.values() {
            for entry in node.map.iter().filter(|entry| !node.closed[entry.partition as usize]) {
                // A node that joins during a change may know a later epoch of the same entry until
                // it pauses. Its requests are declined.
                let entry = Assigned { epoch: 0, ..*entry };
                let first = *open.entry(entry.partition).or_insert(entry);
                assert_eq!(first, entry, "two nodes work by different entries");
            }
        }
        let mut numbers: Vec<u32> =
            self.core.members().iter().map(|member| member.number).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), self.core.members().len(), "a number is two nodes'");
    }

    /// Delivers one message.
    pub(super) fn deliver(&mut self, flight: Flight) {
        match flight {
            Flight::Order { to, message } => {
                let needs_no_pool =
                    matches!(message, Message::Recall { .. } | Message::Pause { .. });
                let ghosts = needs_no_pool.then_some(&mut self.ghosts);
                let there = self.nodes.get_mut(&to).or_else(|| ghosts?.get_mut(&to));
                let Some(node) = there.filter(|node| !node.silent) else { return };
                let before = node.members.clone();
                let answer = node.answer(to, &message, &mut self.claimed, &mut self.shapes);
                let after = node.members.clone();
                let lost = before.iter().find(|member| !after.contains(member));
                // The next coordinator may not know a node that only got a number.
                let takes_part =
                    |lost: &&ClientId| self.nodes.get(lost).is_some_and(|n| n.version > 0);
                let lives = lost.filter(takes_part);
                assert!(lives.is_none(), "{to} is to take {lives:?} for gone: {message:?}");
                let term = self.term;
                self.bag.push(Flight::Answer { term, from: to, sent: message, answer });
            }
            Flight::Answer { term, from, sent, answer } if term == self.term => {
                self.core.on_answer(from, &sent, &answer);
            }
            Flight::Answer { .. } => {}
            Flight::Request { message } => {
                let ticket = self.next_ticket;
                self.next_ticket += 1;
                let named = |core: &Coordinator, number: u32| {
                    let change = core.change.as_ref().is_some_and(|change| change.names(number));
                    change || core.map.iter().any(|entry| entry.node == number)
                };
                let before: Vec<u32> = (1..64).filter(|n| named(&self.core, *n)).collect();
                let known = self.core.members();
                if let Message::Join { client, .. } = &message {
                    self.tickets.insert(ticket, *client);
                }
                self.core.on_message(ticket, &message);
                let new = |member: &&Member| !known.contains(member);
                for member in self.core.members().iter().filter(new) {
                    assert!(!before.contains(&member.number), "{member:?} has a number in use");
                }
            }
            Flight::Reply { to, message } => self.told(to, message),
        }
        self.collect();
    }

    fn told(&mut self, to: ClientId, message: Message) {
        let Some(node) = self.nodes.get_mut(&to).filter(|node| !node.silent) else { return };
        let Message::Joined { term, number, version, map, directory, members, .. } = message else {
            return;
        };
        // The node enters itself, and checks whether the term is still the newest.
        self.roster.insert(to);
        if node.version == 0 && term >= node.term && term == self.term {
            let closed = vec![false; map.len()];
            let members = members.iter().map(|member| member.client).collect();
            *node =
                Node { number, version, map, members, directory, term, closed, ..Node::default() };
        }
    }

    /// Delivers all messages of one kind.
    pub(super) fn deliver_all(&mut self, name: &str) {
        while let Some(at) = self.bag.iter().position(|flight| flight.is(name)) {
            let flight = self.bag.remove(at);
            self.deliver(flight);
        }
    }

    /// Delivers a node's next order, and the answer to it.
    pub(super) fn run_order(&mut self, client: u64) {
        let order = |flight: &Flight| matches!(flight, Flight::Order { to, .. } if to.0 == client);
        let at = self.bag.iter().position(order).expect("an order is under way");
        let order = self.bag.remove(at);
        self.deliver(order);
        let answer = self.bag.pop().expect("it was answered");
        assert!(matches!(answer, Flight::Answer { .. }));
        self.deliver(answer);
    }

    /// Delivers all messages until the cluster is at rest, and checks its state.
    pub(super) fn settle(&mut self) {
        for _ in 0..200 {
            while !self.bag.is_empty() {
                let flight = self.bag.remove(0);
                self.deliver(flight);
            }
            let all_joined = self.nodes.values().all(|node| node.version == self.core.version());
            if self.core.is_settled() && all_joined {
                return self.check_shares();
            }
            let unjoined: Vec<ClientId> =
                self.nodes.iter().filter(|(_, n)| n.version == 0).map(|(c, _)| *c).collect();
            unjoined.into_iter().for_each(|client| self.ask_to_join(client));
            let known: Vec<ClientId> = self.nodes.keys().copied().collect();
            known.into_iter().for_each(|client| self.announce(client));
            self.watch();
            self.read_directory();
            self.core.on_tick();
            self.collect();
        }
        panic!("it does not come to rest: {:?}", self.core);
    }

    fn check_shares(&self) {
        let mut shares: BTreeMap<u32, usize> =
            self.nodes.values().map(|node| (node.number, 0)).collect();
        for entry in self.core.map() {
            *shares.get_mut(&entry.node).expect("partitions are those of living nodes") += 1;
            assert!(!entry.grow, "{entry:?}");
        }
        // Partitions are assigned by load, and there are few, so no node has hardly any.
        let most = crate::hotness::partitions_max(self.core.map().len(), shares.len().max(1));
        assert!(shares.values().all(|share| *share <= most), "{shares:?}");
        let all = self.core.map().len() >= shares.len();
        assert!(!all || shares.values().all(|share| *share > 0), "{shares:?}");
        for node in self.nodes.values() {
            assert_eq!(node.map, self.core.map());
            assert!(
                node.closed.iter().all(|closed| !closed),
                "{node:?} has gates that stay closed"
            );
        }
    }
}
