//! The coordinator: who serves which partition, and how that changes. A state machine without
//! clock, lock or I/O.
//!
//! It keeps nothing that cannot be had again. One that starts enters its term into the directory's
//! block and learns from the roster there who may act on the index ([`Coordinator::take_office`]).
//! Each of these must say what it knows, or be gone for good. Then the directory is read
//! ([`Coordinator::on_entries`]): it has what nobody who is left may know, a subtable that was made
//! larger, or everything if nobody is left. Only if nothing was ever in use there, the index is
//! made. A change of the map goes through three steps, each of which all living nodes must confirm:
//! *pause*, *prepare*, *resume* (`membership.rs`). A node that dies while it is under way is
//! left out, and the change begins anew under a larger version with that node's partitions in it.
//!
//! Invariants: 1. one change at a time; 2. a partition gets a new node only when the old one has
//! confirmed *pause* or is gone for good ([`Coordinator::on_gone`]: its keys are revoked everywhere
//! and its lease is over); 3. epochs of a partition grow with every change; 4. a map is told as
//! joined only when it holds; 5. nothing is decided before everybody in the roster was heard, or is
//! gone.
//!
//! Messages may be lost, late or doubled: what is not confirmed is sent again at a tick, and what
//! comes twice changes nothing. Cost: a change takes three rounds of messages to all nodes. Paper:
//! §4.2, §4.5.

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

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Answer the request that came with this ticket.
    Answer {
        /// Which.
        ticket: u64,
        /// With what.
        message: Message,
    },
    /// Ask a node; its answer goes to [`Coordinator::on_answer`].
    Send {
        /// Which.
        to: ClientId,
        /// What.
        message: Message,
    },
    /// Read the directory's entries, for [`Coordinator::on_entries`].
    Look,
}

/// How far a coordinator is that starts.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// It has no term yet.
    Starting,
    /// These clients may act on the index, and have not said what they know.
    Recalling(BTreeSet<ClientId>),
    /// The directory is read.
    Looking,
    /// It knows what there is.
    Ruling,
}

/// What is wanted of the next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Want {
    /// Every node gets its share.
    Balance,
    /// A new ranking holds.
    Reassign,
    /// A partition needs more room.
    Grow(u32),
    /// These partitions are to have, or lose, a proxy: the share in a thousand of each node's list.
    Offload(u32),
}

/// How a store is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// 2^this partitions.
    pub partition_bits: u32,
    /// 2^this buckets in each at first.
    pub log2_buckets: u32,
    /// The share of each node's partitions that it is the proxy of, in a thousand.
    pub offload: u32,
    /// Whether that stays so; otherwise it is where the knob begins.
    pub fixed: bool,
}

/// As [`FlexKvSettings`] cut a store, with half of the index at proxies.
impl Default for Plan {
    fn default() -> Self {
        let FlexKvSettings { partition_bits, log2_buckets, .. } = FlexKvSettings::default();
        Self { partition_bits, log2_buckets, offload: 500, fixed: false }
    }
}

#[derive(Clone, Debug)]
struct Node {
    member: Member,
    /// Dead for good.
    gone: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Coordinator {
    term: u64,
    plan: Plan,
    nodes: BTreeMap<u32, Node>,
    map: Vec<Assigned>,
    geometry: Geometry,
    directory: BlockId,
    version: u64,
    /// The node that makes the index.
    creating: Option<u32>,
    change: Option<Change>,
    wants: BTreeSet<Want>,
    /// Share of proxied partitions, in a thousand.
    offload: u32,
    joining: VecDeque<(u64, ClientId)>,
    /// Whom everybody knows as members, by the last change.
    spread: BTreeSet<ClientId>,
    phase: Phase,
    /// Where clients are reached that said so, and may be no nodes yet.
    heard: BTreeMap<ClientId, Vec<String>>,
    /// The directory that a node works by.
    told: Option<BlockId>,
    recalled: Vec<Message>,
    tuner: Tuner,
    /// A change that belongs to no sample was under way since the interval began.
    disturbed: bool,
    /// Partitions that found no room to grow, and until when they are not asked to grow again.
    stuck: BTreeMap<u32, u64>,
    /// Which nodes get partitions.
    protocol: Protocol,
    /// For statistics.
    now_ns: u64,
    actions: Vec<Action>,
}

impl Coordinator {
    /// One that knows nothing yet, and does nothing before [`Coordinator::take_office`].
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

    /// What is to be done since the last call.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// The map's version; 0: none yet.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether no change is under way or wanted.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.change.is_none()
            && self.wants.is_empty()
            && self.version > 0
            && self.phase == Phase::Ruling
    }

    /// The map.
    #[must_use]
    pub fn map(&self) -> &[Assigned] {
        &self.map
    }

    /// Nodes that live, as far as is known.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let living = self.nodes.values().filter(|node| !node.gone);
        living.map(|node| node.member.clone()).collect()
    }

    /// Members as nodes are told of them: while the map changes, those that the change is for. Who
    /// has come since is told of with the next, whomever it is told to: somebody who knew of one
    /// that the change he pauses for does not name would take that one for gone when it ends.
    pub(super) fn told_of(&self) -> Vec<Member> {
        let mut members = self.members();
        if let Some(change) = &self.change {
            members.retain(|member| change.told.contains(&member.client));
        }
        members
    }

    /// The store, as far as is known here: nodes have not been asked what they counted.
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

    /// Clients whose end it must hear of.
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

    /// Where a client is reached, if it is known.
    #[must_use]
    pub fn endpoints(&self, client: ClientId) -> Option<&[String]> {
        let node = self.nodes.values().find(|node| node.member.client == client);
        let known = node.map(|node| &node.member.endpoints).or_else(|| self.heard.get(&client));
        known.map(Vec::as_slice)
    }

    /// The directory's block by what nodes say that work by it.
    #[must_use]
    pub fn told_directory(&self) -> Option<BlockId> {
        self.told
    }

    /// Whether all of these have said that they are there; `false` of nobody.
    #[must_use]
    pub fn has_heard_all(&self, clients: &[ClientId]) -> bool {
        !clients.is_empty() && clients.iter().all(|client| self.heard.contains_key(client))
    }

    /// It is the one whose `term` is the newest. `roster`: clients of the pool that may act on the
    /// index, or are gone; each is asked what it knows as soon as it says where it is.
    pub fn take_office(&mut self, term: u64, directory: BlockId, roster: &[ClientId]) {
        if self.phase != Phase::Starting {
            return;
        }
        (self.term, self.directory) = (term, directory);
        self.phase = Phase::Recalling(roster.iter().copied().collect());
        self.recalled_all();
        self.resend();
    }

    /// The directory as it was read after [`Action::Look`]: log2 of the number of partitions, if
    /// somebody began to make the index; epoch and shape of each, if it was made.
    pub fn on_entries(&mut self, partition_bits: Option<u32>, entries: Option<&[(u32, Shaped)]>) {
        if self.phase != Phase::Looking {
            return;
        }
        self.phase = Phase::Ruling;
        self.take_over(partition_bits, entries);
        self.resend();
    }

    /// Somebody is there: it is asked at once, if it has yet to say what it knows.
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

    /// A request of a node.
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

    /// Another share of partitions is to be proxied, in a thousand. It stays so: the knob is off
    /// from now on.
    pub fn set_offload(&mut self, share: u32) {
        self.tuner.fix();
        self.want_offload(share);
        self.begin();
    }

    fn want_offload(&mut self, share: u32) {
        self.wants.retain(|want| !matches!(want, Want::Offload(_)));
        self.wants.insert(Want::Offload(share.min(1000)));
    }

    /// How the map follows the load from now on.
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

    /// How the map follows the load.
    #[must_use]
    pub fn tuning(&self) -> Tuning {
        self.tuner.tuning()
    }

    /// What came of it.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.tuner.report
    }

    /// The share of proxied partitions, in a thousand.
    #[must_use]
    pub fn offload(&self) -> u32 {
        self.offload
    }

    /// Whether partitions get other nodes, or others of them a proxy, at the moment.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        self.change.as_ref().is_some_and(Change::disturbs)
    }

    /// What time it is: for statistics, and for what is done a second. Never goes back.
    pub fn on_time(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// What the nodes have counted since they joined: an interval ends here, and the next begins.
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

    /// A client is dead for good: none of its operations takes place any more, and it serves
    /// nothing.
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
        // The change that is under way waits for it, or gives it partitions: it begins anew.
        if let Some(change) = self.change.take() {
            self.restart(change);
        }
        self.proceed();
        self.begin();
        self.resend();
    }

    /// Sends again what was not confirmed.
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
            // The lowest number that nobody who lives has, and neither the map nor its change
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

    /// Tells those who wait what the map is; while it changes, only those who have yet to confirm
    /// that they paused for that.
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
                // It gets its share once it is there to take it.
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

    /// The client of a living node.
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
