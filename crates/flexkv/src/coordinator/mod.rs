//! The coordinator: it decides which node serves which partition, and how that changes. This is a
//! state machine without clock, lock or I/O. [`CoordinatorRpc`] drives it.
//!
//! The coordinator keeps nothing that it cannot recover. When it starts, it enters its term into
//! the block of the directory, and reads from the roster there which clients may act on the index
//! ([`Coordinator::take_office`]). Each of them must say what it knows, or must be gone for good.
//! Then the coordinator reads the directory ([`Coordinator::on_entries`]). The directory knows of
//! larger subtables that no remaining node may know of, and it knows everything if no node remains.
//! The index is made only if nothing was ever in use there.
//!
//! A change of the map has three steps, each of which every live node must confirm: *pause*,
//! *prepare* and *resume* (`membership.rs`). If a node dies meanwhile, it is left out. The change
//! then begins anew under a larger version, and includes that node's partitions.
//!
//! Invariants:
//! 1. One change is in progress at a time.
//! 2. A partition gets a new node only when the old one has confirmed *pause* or is gone for good
//!    ([`Coordinator::on_gone`]: its keys are revoked everywhere, and its lease is over).
//! 3. The epoch of a partition grows with every change.
//! 4. A joining node gets a map only when that map holds.
//! 5. Nothing is decided before every client in the roster was heard, or is gone.
//!
//! Thread-safety: by `&mut`.
//! Failure: messages may be lost, late or repeated. A tick sends unconfirmed messages again,
//! and a repeated message changes nothing.
//! Cost: a change takes three rounds of messages to all nodes. Paper: §4.2, §4.5.

mod change;
mod measuring;
mod rpc;
mod shares;
#[cfg(test)]
mod tests;
mod tuning;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use archipelago_pool::{BlockId, ClientId};

use crate::format::{Counts, Geometry};
use crate::ids::PartitionId;
use crate::offload_ratio::Ratio;
use crate::protocol::{self, Protocol};
use crate::settings::FlexKvSettings;
use crate::wire::{Assigned, ComputeStatus, Grant, Member, Message, Shaped, StoreStatus, Why};

pub use rpc::{CoordinatorRpc, Rhythm, directory_label};
pub use tuning::{Cause, Changed, Report, Tuning};

use change::Change;
use tuning::Tuner;

/// Action for the driver of the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Answer the request that came with this ticket.
    Answer {
        /// The ticket of the request.
        ticket: u64,
        /// The answer to the request.
        message: Message,
    },
    /// Ask a node; its answer goes to [`Coordinator::on_answer`].
    Send {
        /// The client to ask.
        to: ClientId,
        /// The order or question.
        message: Message,
    },
    /// Read the directory's entries, for [`Coordinator::on_entries`].
    Look,
}

/// Progress of the start of a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// The coordinator has no term yet.
    Starting,
    /// These clients may act on the index and have not reported their knowledge yet.
    Recalling(BTreeSet<ClientId>),
    /// The directory is being read.
    Looking,
    /// The coordinator knows the state of the store, and decides.
    Ruling,
}

/// Purpose of the next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Want {
    /// Give every node its share of the partitions.
    Balance,
    /// Assign the partitions by a new ranking.
    Reassign,
    /// Make the subtable of this partition larger.
    Grow(u32),
    /// Offload this share, in permille, of each node's list of partitions.
    Offload(u32),
}

/// Plan of a new store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Base-2 logarithm of the number of partitions.
    pub partition_bits: u32,
    /// Base-2 logarithm of the number of buckets in each partition at first.
    pub log2_buckets: u32,
    /// Share of each node's partitions that are offloaded, in permille.
    pub offload: u32,
    /// Whether that share is fixed. If not, the ratio controller begins with it.
    pub fixed: bool,
}

/// The numbers of [`FlexKvSettings`], with half of the partitions offloaded.
impl Default for Plan {
    fn default() -> Self {
        let FlexKvSettings { partition_bits, log2_buckets, .. } = FlexKvSettings::default();
        Self { partition_bits, log2_buckets, offload: 500, fixed: false }
    }
}

#[derive(Clone, Debug)]
struct Node {
    member: Member,
    /// Whether the node is gone permanently.
    gone: bool,
}

/// The state of a store's coordinator. See the head of the module.
#[derive(Debug)]
pub struct Coordinator {
    term: u64,
    plan: Plan,
    nodes: BTreeMap<u32, Node>,
    map: Vec<Assigned>,
    geometry: Geometry,
    directory: BlockId,
    version: u64,
    /// Number of the node that makes the index.
    creating: Option<u32>,
    change: Option<Change>,
    wants: BTreeSet<Want>,
    /// Share of offloaded partitions, in permille.
    offload: u32,
    joining: VecDeque<(u64, ClientId)>,
    /// Members according to the last change, which every node knows.
    spread: BTreeSet<ClientId>,
    phase: Phase,
    /// Endpoints of clients that have reported, which may be no nodes yet.
    heard: BTreeMap<ClientId, Vec<String>>,
    /// The block of the directory according to a node that works by it.
    told: Option<BlockId>,
    recalled: Vec<Message>,
    tuner: Tuner,
    /// Whether a change that spoils the sample was in progress since the interval began.
    disturbed: bool,
    /// Partitions that could not grow, for lack of memory or because it would make no room, and the
    /// time until which they need not try again.
    stuck: BTreeMap<u32, u64>,
    /// Decides which nodes get partitions.
    protocol: Protocol,
    /// Latest time that the driver told, for statistics and for partitions that are stuck.
    now_ns: u64,
    actions: Vec<Action>,
}

impl Coordinator {
    /// A coordinator that knows nothing. It does nothing before [`Coordinator::take_office`].
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let tuning = Tuning { adapt_ratio: !plan.fixed, ..Tuning::default() };
        Self {
            term: 0,
            plan,
            nodes: BTreeMap::new(),
            map: Vec::new(),
            geometry: Geometry::new(plan.partition_bits).unwrap_or_default(),
            directory: BlockId::default(),
            version: 0,
            creating: None,
            change: None,
            wants: BTreeSet::new(),
            offload: plan.offload.min(1000),
            joining: VecDeque::new(),
            spread: BTreeSet::new(),
            phase: Phase::Starting,
            heard: BTreeMap::new(),
            told: None,
            recalled: Vec::new(),
            tuner: Tuner::new(tuning, ratio_of(plan.offload)),
            disturbed: false,
            stuck: BTreeMap::new(),
            protocol: protocol::of_product(),
            now_ns: 0,
            actions: Vec::new(),
        }
    }

    /// Takes the actions that have become due since the last call.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Version of the map. 0 before there is one.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether no change is in progress or wanted.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.change.is_none()
            && self.wants.is_empty()
            && self.version > 0
            && self.phase == Phase::Ruling
    }

    /// The entries of the map, by partition.
    #[must_use]
    pub fn map(&self) -> &[Assigned] {
        &self.map
    }

    /// Nodes that live, as far as the coordinator knows.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let living = self.nodes.values().filter(|node| !node.gone);
        living.map(|node| node.member.clone()).collect()
    }

    /// Members that the coordinator tells nodes about. While the map changes, these are the members
    /// of the change. Nodes learn of a later member only with the next change. If a node knew a
    /// member that the change it pauses for does not name, it would treat that member as gone at
    /// the end.
    pub(super) fn told_of(&self) -> Vec<Member> {
        let mut members = self.members();
        if let Some(change) = &self.change {
            members.retain(|member| change.told.contains(&member.client));
        }
        members
    }

    /// State of the store as far as the coordinator knows it, without the counters of nodes.
    #[must_use]
    pub fn status(&self) -> StoreStatus {
        let of = |number: u32, offloaded: bool| {
            let mine = |entry: &&Assigned| entry.node == number && (entry.offloaded || !offloaded);
            self.map.iter().filter(mine).count() as u32
        };
        let node = |member: Member| ComputeStatus {
            partitions: of(member.number, false),
            offloaded: of(member.number, true),
            member,
            answered: false,
            figures: Vec::new(),
        };
        StoreStatus {
            term: self.term,
            version: self.version,
            settled: self.is_settled(),
            partitions: self.map.len() as u32,
            offloaded: self.map.iter().filter(|entry| entry.offloaded).count() as u32,
            offload: self.offload,
            figures: self.report().figures(),
            nodes: self.members().into_iter().map(node).collect(),
        }
    }

    /// Clients whose death the driver must report.
    #[must_use]
    pub fn watched(&self) -> Vec<ClientId> {
        let mut clients = self.living();
        if let Phase::Recalling(silent) = &self.phase {
            clients.extend(silent);
        }
        let members = self.recalled_members().filter(|member| member.number > 0);
        clients.extend(members.map(|member| member.client));
        clients.into_iter().collect()
    }

    /// Endpoints of a client, if they are known.
    #[must_use]
    pub fn endpoints(&self, client: ClientId) -> Option<&[String]> {
        let node = self.nodes.values().find(|node| node.member.client == client);
        let known = node.map(|node| &node.member.endpoints).or_else(|| self.heard.get(&client));
        known.map(Vec::as_slice)
    }

    /// The block of the directory according to nodes that work by it.
    #[must_use]
    pub fn told_directory(&self) -> Option<BlockId> {
        self.told
    }

    /// Whether all of these clients have reported. `false` for an empty list.
    #[must_use]
    pub fn has_heard_all(&self, clients: &[ClientId]) -> bool {
        !clients.is_empty() && clients.iter().all(|client| self.heard.contains_key(client))
    }

    /// Begins the term, which is the newest. `roster` has the clients of the pool that may act on
    /// the index or are gone. Each client gets a request for its knowledge as soon as it reports
    /// its endpoints.
    pub fn take_office(&mut self, term: u64, directory: BlockId, roster: &[ClientId]) {
        if self.phase != Phase::Starting {
            return;
        }
        (self.term, self.directory) = (term, directory);
        self.phase = Phase::Recalling(roster.iter().copied().collect());
        self.recalled_all();
        self.resend();
    }

    /// Takes the directory that was read after [`Action::Look`]. `partition_bits` is known if a
    /// node began to make the index. `entries` are the epoch and shape of each partition, if the
    /// index was made.
    pub fn on_entries(&mut self, partition_bits: Option<u32>, entries: Option<&[(u32, Shaped)]>) {
        if self.phase != Phase::Looking {
            return;
        }
        self.phase = Phase::Ruling;
        self.take_over(partition_bits, entries);
        self.resend();
    }

    /// Notes a client that reported. It gets a request for its knowledge immediately if it has not
    /// reported it yet.
    fn hear(&mut self, client: ClientId, endpoints: &[String]) {
        if self.phase == Phase::Ruling {
            return;
        }
        self.heard.insert(client, endpoints.to_vec());
        if matches!(&self.phase, Phase::Recalling(silent) if silent.contains(&client)) {
            let message = Message::Recall { term: self.term };
            self.actions.push(Action::Send { to: client, message });
        }
    }

    /// Takes a request of a node.
    pub fn on_message(&mut self, ticket: u64, message: &Message) {
        match message {
            Message::Join { client, endpoints, index_bytes } => {
                self.join(ticket, *client, endpoints, *index_bytes);
            }
            Message::Here { client, endpoints, directory } => {
                self.told = self.told.or(*directory);
                self.hear(*client, endpoints);
                self.answer(ticket, Message::Done {});
            }
            Message::Grow { partition, epoch } => {
                if self.stuck.get(partition).is_some_and(|until_ns| self.now_ns < *until_ns) {
                    return self.decline(ticket, Why::Full);
                }
                let entry = self.map.get(*partition as usize);
                if entry.is_some_and(|entry| entry.epoch == *epoch) {
                    self.wants.insert(Want::Grow(*partition));
                }
                self.answer(ticket, Message::Done {});
                self.begin();
            }
            _ => self.decline(ticket, Why::Malformed),
        }
    }

    /// Sets the share of offloaded partitions, in permille, and switches the ratio controller off.
    pub fn set_offload(&mut self, share: u32) {
        self.tuner.fix();
        self.want_offload(share);
        self.begin();
    }

    fn want_offload(&mut self, share: u32) {
        self.wants.retain(|want| !matches!(want, Want::Offload(_)));
        self.wants.insert(Want::Offload(share.min(1000)));
    }

    /// Sets how the map follows the load from now on.
    pub fn tune(&mut self, tuning: Tuning) {
        self.tuner.tune(tuning, ratio_of(self.offload));
    }

    /// Assigns partitions only to the nodes that `protocol` names, from now on.
    #[cfg(feature = "index-protocol")]
    pub fn assign_by(&mut self, protocol: Protocol) {
        self.protocol = protocol;
        self.wants.insert(Want::Balance);
        self.begin();
    }

    /// Rules by which the map follows the load.
    #[must_use]
    pub fn tuning(&self) -> Tuning {
        self.tuner.tuning()
    }

    /// Changes that followed the load.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.tuner.report
    }

    /// Share of offloaded partitions, in permille.
    #[must_use]
    pub fn offload(&self) -> u32 {
        self.offload
    }

    /// Whether a change is in progress that moves partitions or changes which are offloaded.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        self.change.as_ref().is_some_and(Change::disturbs)
    }

    /// Tells the time. Earlier times than before are ignored.
    pub fn on_time(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Takes the counts of the nodes since they joined. An interval ends here, and the next begins.
    pub fn on_counts(&mut self, readings: &[(ClientId, Counts)]) {
        for (client, counts) in readings {
            let node = self.nodes.values().find(|node| node.member.client == *client && !node.gone);
            let Some(number) = node.map(|node| node.member.number) else { continue };
            if counts.accesses.len() == self.map.len() {
                self.tuner.read(number, client.0, counts);
            }
        }
        let changing = self.change.as_ref().is_some_and(Change::disturbs);
        let disturbed = std::mem::replace(&mut self.disturbed, changing) || changing;
        let nodes = self.living().len() as u32;
        let decision = self.tuner.end(self.now_ns, nodes, disturbed || self.version == 0);
        if decision.reassign {
            self.wants.insert(Want::Reassign);
        }
        if let Some(ratio) = decision.ratio {
            self.want_offload(u32::from(ratio.permille()));
        }
        self.begin();
    }

    /// Records that a client is gone permanently. None of its operations takes effect any more, and
    /// it serves nothing.
    pub fn on_gone(&mut self, client: ClientId) {
        self.forget_recalled(client);
        if let Phase::Recalling(silent) = &mut self.phase {
            silent.remove(&client);
            self.recalled_all();
        }
        let number = self.nodes.values().find(|node| node.member.client == client && !node.gone);
        let Some(number) = number.map(|node| node.member.number) else { return };
        if let Some(node) = self.nodes.get_mut(&number) {
            node.gone = true;
        }
        self.tuner.forget(number);
        self.joining.retain(|(_, joining)| *joining != client);
        if self.creating == Some(number) {
            self.creating = None;
        }
        self.wants.insert(Want::Balance);
        // The current change waits for the client or gives it partitions, so it starts again.
        if let Some(change) = self.change.take() {
            self.restart(change);
        }
        self.proceed();
        self.begin();
        self.resend();
    }

    /// Sends unconfirmed messages again, and begins the next wanted change.
    pub fn on_tick(&mut self) {
        self.welcome();
        self.begin();
        self.resend();
    }

    fn answer(&mut self, ticket: u64, message: Message) {
        self.actions.push(Action::Answer { ticket, message });
    }

    fn decline(&mut self, ticket: u64, why: Why) {
        let grant = Grant::default();
        self.answer(ticket, Message::Declined { why, grant });
    }

    fn join(&mut self, ticket: u64, client: ClientId, endpoints: &[String], index_bytes: u64) {
        self.hear(client, endpoints);
        if self.phase != Phase::Ruling {
            return self.decline(ticket, Why::OldTerm);
        }
        let known = self.nodes.values().find(|node| node.member.client == client);
        if known.is_some_and(|node| node.gone) {
            return self.decline(ticket, Why::Fenced);
        }
        if known.is_none() {
            // The lowest number that no live node has and that neither the map nor its change
            // names.
            let free = |number: &u32| {
                let living = self.nodes.get(number).is_some_and(|node| !node.gone);
                let changing = self.change.as_ref().is_some_and(|change| change.names(*number));
                !living && !changing && self.map.iter().all(|entry| entry.node != *number)
            };
            let Some(number) = (1..).find(free) else { return };
            let member = Member { number, client, endpoints: endpoints.to_vec(), index_bytes };
            self.nodes.insert(number, Node { member, gone: false });
        }
        self.joining.push_back((ticket, client));
        self.welcome();
        self.begin();
    }

    /// Tells joining nodes the map. While it changes, only nodes that have not confirmed *pause*
    /// get it.
    fn welcome(&mut self) {
        if self.version == 0 {
            return;
        }
        for (ticket, client) in std::mem::take(&mut self.joining) {
            if self.change.as_ref().is_some_and(|change| !change.pauses(client)) {
                self.joining.push_back((ticket, client));
                continue;
            }
            let node = self.nodes.values().find(|node| node.member.client == client && !node.gone);
            let Some(number) = node.map(|node| node.member.number) else { continue };
            let message = Message::Joined {
                term: self.term,
                number,
                version: self.version,
                partition_bits: self.geometry.partition_bits(),
                map: self.map.clone(),
                members: self.told_of(),
                directory: self.directory,
            };
            self.answer(ticket, message);
            if self.change.is_none() && self.map.iter().all(|entry| entry.node != number) {
                // The node gets its share now that it can take it.
                self.wants.insert(Want::Balance);
            }
        }
    }

    fn create(&mut self) {
        let living = self.nodes.values().find(|node| !node.gone);
        let Some(first) = living.map(|node| node.member.clone()) else { return };
        self.creating = Some(first.number);
        let message = self.create_message();
        self.actions.push(Action::Send { to: first.client, message });
    }

    fn create_message(&self) -> Message {
        Message::Create {
            term: self.term,
            partition_bits: self.plan.partition_bits,
            log2_buckets: self.plan.log2_buckets,
            directory: self.directory,
        }
    }

    /// The client of a live node.
    fn client(&self, number: u32) -> Option<ClientId> {
        self.nodes.get(&number).filter(|node| !node.gone).map(|node| node.member.client)
    }

    fn living(&self) -> BTreeSet<ClientId> {
        self.nodes.values().filter(|node| !node.gone).map(|node| node.member.client).collect()
    }

    fn partition(&self, partition: u32) -> Option<&Assigned> {
        self.map.get(PartitionId(partition).0 as usize)
    }
}

fn ratio_of(share: u32) -> Ratio {
    Ratio::from_permille(u16::try_from(share).unwrap_or(u16::MAX))
}
