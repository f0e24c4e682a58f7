//! The members of a cluster of storage nodes, as a manager keeps them.
//!
//! [`MemberTable`] is a state machine without clock, lock or I/O. It takes the messages of nodes,
//! clients and operators with the time, and answers them. It keeps no list of blobs. The nodes'
//! beats rebuild everything that it keeps. Every node keeps and reports its cluster, the newest
//! root set that it received, whether it drains, and the nodes that an operator has given up.
//!
//! | part | file |
//! | --- | --- |
//! | messages, silence, drains, nodes that are given up, the list of members | `mod.rs` |
//! | the founding of a cluster | `founding.rs` |
//! | when the root set needs other members | `root_set.rs` |
//! | the status for operators | `status.rs` |
//!
//! **States.** A node is *up* while it beats, *silent* after [`MemberTerms::silent_after`], and
//! *lost* after [`MemberTerms::lost_after`] or on an operator's order. A lost node that beats is up
//! again, unless an operator has said that it never returns. That decision is final, and holds for
//! every later manager of the cluster.
//!
//! **Founding.** A manager founds a cluster only while no node reports one, and after nodes of
//! enough domains have been up for a while. It notifies the nodes first. When the root set and more
//! than half of the nodes have reported the cluster, it names the cluster to clients.
//!
//! Invariants:
//! 1. The version of the list grows with every change that a reader of the list sees.
//! 2. A cluster or a root set that a node reports is never replaced by an older or another one.
//! 3. A manager that stands by decides nothing, and names no members.
//! 4. A list that says that it is complete has every node that is not lost. The manager has founded
//!    the cluster since it acts, or it has listened for [`MemberTerms::lost_after`] since then.
//!
//! Thread-safety: none; the owner holds a lock.
//! Failure: a request that cannot be served is refused with the reason.
//! Cost: a beat takes O(log nodes); an answer with all members O(nodes).

mod founding;
mod root_set;
mod status;

use std::collections::BTreeMap;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, Error, Result};
use archipelago_fabric::{ClusterId, NodeId};

use super::StorageId;
use super::register::caspaxos::RootSet;
use super::repairs::RepairTerms;
use super::wire::{
    MemberState, Members, RefusalWhy, Refused, RepairStatus, StorageMember, StorageReport,
    StoreMessage,
};
use founding::Founding;
pub use root_set::RootReplacement;

/// Bits of a version below the random number of a manager's life.
const VERSION_BITS: u32 = 32;
/// Part of a node's capacity, as a divisor, by which its use must change before the list of members
/// names the new use.
const USE_STEPS: u64 = 128;

/// The times of the members, and the size of the root set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberTerms {
    /// Time between two beats of a node. Default: 500 ms.
    pub beat: Duration,
    /// Silence after which a node counts as silent, and nothing is placed on it. Default: 2 s.
    pub silent_after: Duration,
    /// Silence after which a node counts as lost, and another one takes its place in the root set.
    /// Default: 10 minutes.
    pub lost_after: Duration,
    /// Time for which the nodes of a new cluster must have been up. Default: 2 s.
    pub settle: Duration,
    /// Number of members of the root set: 1, 3 or 5. 1 is for a trial on one node only. Default:
    /// three, or five if there are five domains.
    pub root_nodes: Option<u8>,
    /// Number of storage nodes of a new cluster. A cluster is founded only when more than half of
    /// them have confirmed it. So managers that do not know of each other cannot found two
    /// clusters. All managers must have the same number. Default: the nodes that the manager knows,
    /// which suffices for one manager only.
    pub expected_nodes: Option<u32>,
    /// Rates and times of repairs.
    pub repair: RepairTerms,
}

impl Default for MemberTerms {
    fn default() -> Self {
        Self {
            beat: Duration::from_millis(500),
            silent_after: Duration::from_secs(2),
            lost_after: Duration::from_secs(600),
            settle: Duration::from_secs(2),
            root_nodes: None,
            expected_nodes: None,
            repair: RepairTerms::default(),
        }
    }
}

impl MemberTerms {
    /// An error that names the first term that is not valid.
    pub fn validate(&self) -> Result<()> {
        if self.root_nodes.is_some_and(|nodes| !matches!(nodes, 1 | 3 | 5)) {
            return Err(Error::invalid(
                "the root set has 1, 3 or 5 nodes: correct --root-nodes, or leave it out",
            ));
        }
        if self.expected_nodes.is_some_and(|nodes| nodes < u32::from(self.root_nodes.unwrap_or(3)))
        {
            return Err(Error::invalid(
                "a new cluster needs as many storage nodes as its root set has: correct \
                 --storage-nodes, or leave it out",
            ));
        }
        if self.beat.is_zero() || self.silent_after < self.beat * 2 {
            return Err(Error::invalid(
                "a storage node must be silent for two beats at least before it counts as silent",
            ));
        }
        if self.lost_after < self.silent_after {
            return Err(Error::invalid(format!(
                "a storage node cannot be lost after {:?}: that is less than the {:?} after which \
                 it counts as silent",
                self.lost_after, self.silent_after
            )));
        }
        self.repair.validate()
    }
}

/// Whether a manager may decide, or leaves decisions to another manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagerPart {
    /// The manager runs alone or holds office.
    Acts,
    /// Another manager acts, or none does.
    StandsBy,
}

/// State of a node, as the manager knows it.
#[derive(Clone, Debug)]
struct NodeEntry {
    member: StorageMember,
    /// Time of the last beat; for a node that has never beaten, the time at which the manager
    /// learned its name.
    heard_ns: u64,
    /// Time since which the node is up.
    up_since_ns: u64,
    /// Cluster of the node, as it reported.
    cluster: Option<ClusterId>,
    /// The newest root set that the node reported with it.
    root_set: RootSet,
    /// Whether the node is to be emptied.
    is_draining: bool,
    /// An operator's order that the node has not repeated yet.
    ordered: Option<bool>,
    /// Whether an operator said that the node never returns.
    is_forgotten: bool,
    /// Used bytes that the list of members names.
    named_used_bytes: u64,
    report: StorageReport,
}

impl NodeEntry {
    /// A node of which the manager knows only the name.
    fn unknown(storage: StorageId, now_ns: u64) -> Self {
        let member = StorageMember {
            storage,
            node: NodeId(0),
            life: Epoch(0),
            endpoints: Vec::new(),
            domain: String::new(),
            state: MemberState::Silent,
            space: super::wire::NodeSpace::default(),
        };
        Self {
            member,
            heard_ns: now_ns,
            up_since_ns: now_ns,
            cluster: None,
            root_set: RootSet::default(),
            is_draining: false,
            ordered: None,
            is_forgotten: false,
            named_used_bytes: 0,
            report: StorageReport::default(),
        }
    }

    /// Whether the node has ever beaten to this manager.
    fn has_beaten(&self) -> bool {
        self.member.life != Epoch(0)
    }

    fn is_up(&self) -> bool {
        matches!(self.member.state, MemberState::Up | MemberState::Draining)
    }

    /// Whether the node said in its last beat that it is being emptied, and that it has no chunks
    /// and no open extents. An order that the node has not received yet does not count. Sealed
    /// extents may still lack copies elsewhere, which the table does not know.
    fn has_drained(&self) -> bool {
        self.is_draining && self.ordered.is_none() && self.report.needed_objects() == 0
    }

    /// End of a sentence that says how many objects are left on a node that is being emptied. It is
    /// empty if none are left.
    fn unfinished_drain(&self) -> String {
        match self.report.needed_objects() {
            left if left > 0 && self.is_draining => {
                format!(", or start it to end its drain, which has {left} chunks and extents left")
            }
            _ => String::new(),
        }
    }

    /// The state of the node at `now_ns`.
    fn state_at(&self, now_ns: u64, terms: &MemberTerms) -> MemberState {
        let silence = Duration::from_nanos(now_ns.saturating_sub(self.heard_ns));
        if self.is_forgotten || silence > terms.lost_after {
            MemberState::Lost
        } else if silence > terms.silent_after || self.member.life == Epoch(0) {
            MemberState::Silent
        } else if self.is_draining {
            MemberState::Draining
        } else {
            MemberState::Up
        }
    }
}

/// A beat, by its fields.
struct Beat<'a> {
    storage: StorageId,
    node: NodeId,
    life: Epoch,
    endpoints: &'a [String],
    domain: &'a str,
    cluster: Option<ClusterId>,
    root_set: Option<&'a RootSet>,
    is_draining: bool,
    version: u64,
    report: &'a StorageReport,
    forgotten: &'a [StorageId],
}

/// The members of a cluster.
#[derive(Debug)]
pub struct MemberTable {
    terms: MemberTerms,
    /// Time at which the manager began to listen, or to act.
    since_ns: u64,
    /// Time of the newest message or tick.
    now_ns: u64,
    part: ManagerPart,
    nodes: BTreeMap<StorageId, NodeEntry>,
    /// Time at which a node that the manager knew named another domain last.
    relabelled_ns: u64,
    /// The cluster that the list of members names, once nodes reported it or it was founded.
    cluster: Option<ClusterId>,
    /// The newest root set that a node reported.
    root_set: RootSet,
    founding: Option<Founding>,
    version: u64,
    /// Whether every node that is not lost is in `nodes`.
    is_complete: bool,
    /// Repairs, as the owner of the table noted them last.
    repair: RepairStatus,
    rng: Rng,
}

impl MemberTable {
    /// An empty table of a manager that begins at `now_ns`. `seed` makes versions and clusters
    /// differ from those of other managers.
    #[must_use]
    pub fn new(terms: MemberTerms, seed: u64, now_ns: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        Self {
            terms,
            since_ns: now_ns,
            now_ns,
            part: ManagerPart::StandsBy,
            nodes: BTreeMap::new(),
            relabelled_ns: now_ns,
            cluster: None,
            root_set: RootSet::default(),
            founding: None,
            version: u64::from(rng.u32(1..)) << VERSION_BITS,
            is_complete: false,
            repair: RepairStatus::default(),
            rng,
        }
    }

    /// Answers a request.
    pub fn handle(
        &mut self,
        now_ns: u64,
        part: ManagerPart,
        message: &StoreMessage,
    ) -> StoreMessage {
        self.take_part(now_ns, part);
        self.answer(now_ns, message).unwrap_or_else(StoreMessage::from)
    }

    /// Takes the time: nodes become silent or lost, and a cluster may be founded.
    pub fn on_timer(&mut self, now_ns: u64, part: ManagerPart) {
        self.take_part(now_ns, part);
        self.watch(now_ns);
        if part == ManagerPart::Acts {
            self.found(now_ns);
        }
    }

    /// The list of members, as clients and nodes may see it.
    #[must_use]
    pub fn members(&self) -> Members {
        let members = self.nodes.values().map(|entry| entry.member.clone()).collect();
        let (cluster, root_set) = (self.cluster, self.root_set.clone());
        let (version, is_complete) = (self.version, self.is_complete);
        let forgotten = self.nodes.iter().filter(|(_, entry)| entry.is_forgotten);
        let forgotten = forgotten.map(|(storage, _)| *storage).collect();
        Members { version, cluster, root_set, members, is_complete, forgotten }
    }

    fn take_part(&mut self, now_ns: u64, part: ManagerPart) {
        self.now_ns = self.now_ns.max(now_ns);
        if self.part == part {
            return;
        }
        self.part = part;
        self.since_ns = now_ns;
        if std::mem::take(&mut self.is_complete) {
            self.version += 1;
        }
        // The beats show what another manager has founded meanwhile.
        self.founding = None;
    }

    fn answer(&mut self, now_ns: u64, message: &StoreMessage) -> Result<StoreMessage, Refused> {
        if let StoreMessage::StorageBeat { .. } = message {
            return self.beat(now_ns, message);
        }
        if self.part == ManagerPart::StandsBy {
            return Err(Refused::new(RefusalWhy::Standby, ""));
        }
        match message {
            StoreMessage::AskMembers { version } => Ok(self.members_for(*version)),
            StoreMessage::DrainNode { storage, is_draining } => {
                self.drain(now_ns, *storage, *is_draining)
            }
            StoreMessage::ForgetNode { storage } => self.forget(now_ns, *storage),
            StoreMessage::StorageStatus {} => {
                Ok(StoreMessage::StorageStatusIs { status: self.status(now_ns) })
            }
            other => Err(Refused::new(
                RefusalWhy::Malformed,
                format!("the manager does not serve {}", other.name()),
            )),
        }
    }

    /// The list of members, if a reader that knows `version` needs it.
    fn members_for(&self, version: u64) -> StoreMessage {
        let members = (version != self.version).then(|| self.members());
        StoreMessage::MembersAre { members, beat_ms: self.beat_ms() }
    }

    fn beat_ms(&self) -> u64 {
        (self.terms.beat.as_millis() as u64).max(1)
    }

    fn beat(&mut self, now_ns: u64, message: &StoreMessage) -> Result<StoreMessage, Refused> {
        let StoreMessage::StorageBeat {
            storage,
            node,
            life,
            endpoints,
            domain,
            cluster,
            root_set,
            is_draining,
            version,
            report,
            forgotten,
        } = message
        else {
            return Err(Refused::new(RefusalWhy::Malformed, message.name()));
        };
        let beat = Beat {
            storage: *storage,
            node: *node,
            life: *life,
            endpoints,
            domain,
            cluster: *cluster,
            root_set: root_set.as_ref(),
            is_draining: *is_draining,
            version: *version,
            report,
            forgotten,
        };
        self.admit(now_ns, &beat)?;
        self.hear(now_ns, &beat);
        self.weigh_clusters(now_ns);
        self.conclude_founding(now_ns);
        self.learn_root_set(&beat);
        self.learn_forgotten(now_ns, &beat);
        if self.part == ManagerPart::StandsBy {
            // Only the manager in office says which nodes drain.
            return Ok(StoreMessage::MembersAre { members: None, beat_ms: self.beat_ms() });
        }
        Ok(self.members_for_node(&beat))
    }

    /// The answer to a beat. Nodes learn of a cluster that is being founded before clients do.
    fn members_for_node(&self, beat: &Beat<'_>) -> StoreMessage {
        if let Some(founding) = &self.founding
            && beat.cluster.is_none()
        {
            let cluster = Some(founding.cluster);
            let members = Members {
                cluster,
                root_set: founding.root_set.clone(),
                // The node asks again with a version that differs from that of the public list.
                version: self.version ^ 1 << (u64::BITS - 1),
                ..self.members()
            };
            return StoreMessage::MembersAre { members: Some(members), beat_ms: self.beat_ms() };
        }
        self.members_for(beat.version)
    }

    /// Refuses a beat of a node that is not a member.
    fn admit(&self, now_ns: u64, beat: &Beat<'_>) -> Result<(), Refused> {
        if beat.storage == StorageId(0) || beat.life == Epoch(0) {
            return Err(Refused::new(RefusalWhy::Malformed, "a beat without an identity"));
        }
        if let (Some(known), Some(reported)) = (self.cluster, beat.cluster)
            && known != reported
        {
            return Err(Refused::new(
                RefusalWhy::WrongCluster,
                format!(
                    "the manager's nodes belong to cluster {known}, and this one to {reported}: if \
                     it holds no data, start it with an empty directory"
                ),
            ));
        }
        let Some(entry) = self.nodes.get(&beat.storage) else { return Ok(()) };
        if entry.is_forgotten {
            return Err(Refused::new(
                RefusalWhy::NotThere,
                "an operator said that this node never returns; start it with an empty directory",
            ));
        }
        let silence = Duration::from_nanos(now_ns.saturating_sub(entry.heard_ns));
        if beat.life < entry.member.life && silence <= self.terms.silent_after {
            return Err(Refused::new(
                RefusalWhy::Busy,
                format!("life {} of this node beats as well", entry.member.life),
            ));
        }
        Ok(())
    }

    /// Takes a newer root set that a node of the cluster reports.
    fn learn_root_set(&mut self, beat: &Beat<'_>) {
        if self.cluster.is_none() || beat.cluster != self.cluster {
            return;
        }
        if let Some(root_set) = beat.root_set
            && root_set.number > self.root_set.number
        {
            self.root_set.clone_from(root_set);
            self.version += 1;
        }
    }

    /// Takes over which nodes an operator has given up, as a node of the cluster reports.
    fn learn_forgotten(&mut self, now_ns: u64, beat: &Beat<'_>) {
        if self.cluster.is_none() || beat.cluster != self.cluster {
            return;
        }
        for storage in beat.forgotten {
            let unknown = || NodeEntry::unknown(*storage, now_ns);
            let entry = self.nodes.entry(*storage).or_insert_with(unknown);
            if !std::mem::replace(&mut entry.is_forgotten, true) {
                entry.member.state = MemberState::Lost;
                self.version += 1;
                tracing::info!(%storage, "an operator has given this storage node up before");
            }
        }
    }

    /// Notes a beat of a member.
    fn hear(&mut self, now_ns: u64, beat: &Beat<'_>) {
        let is_new =
            self.nodes.get(&beat.storage).is_none_or(|entry| entry.member.life != beat.life);
        if is_new {
            let (storage, node, life) = (beat.storage, beat.node, beat.life);
            let domain = beat.domain;
            tracing::info!(%storage, %node, %life, domain, "a storage node registered");
        }
        let unknown = || NodeEntry::unknown(beat.storage, now_ns);
        let entry = self.nodes.entry(beat.storage).or_insert_with(unknown);
        let before = entry.member.clone();
        if !entry.is_up() || entry.member.life != beat.life {
            entry.up_since_ns = now_ns;
        }
        entry.heard_ns = now_ns;
        entry.cluster = beat.cluster;
        if let Some(root_set) = beat.root_set {
            entry.root_set.clone_from(root_set);
        }
        entry.report.clone_from(beat.report);
        match entry.ordered {
            Some(ordered) if ordered != beat.is_draining => entry.is_draining = ordered,
            _ => {
                entry.ordered = None;
                entry.is_draining = beat.is_draining;
            }
        }
        let member = &mut entry.member;
        member.node = beat.node;
        member.life = beat.life;
        beat.endpoints.clone_into(&mut member.endpoints);
        beat.domain.clone_into(&mut member.domain);
        let used_bytes = beat.report.space.used_bytes;
        member.space = beat.report.space;
        // The list names only larger changes of the used space, so that the list of an idle cluster
        // keeps its version.
        let step = (member.space.capacity_bytes / USE_STEPS).max(1);
        if used_bytes.abs_diff(entry.named_used_bytes) < step {
            member.space.used_bytes = entry.named_used_bytes;
        } else {
            entry.named_used_bytes = used_bytes;
        }
        entry.member.state = entry.state_at(now_ns, &self.terms);
        if !before.domain.is_empty() && before.domain != beat.domain {
            self.relabelled_ns = now_ns;
        }
        if entry.member != before {
            self.version += 1;
        }
    }

    /// Declares nodes silent or lost, by the time since their last beats.
    fn watch(&mut self, now_ns: u64) {
        for storage in &self.root_set.members {
            // A root node that has never beaten to this manager also counts as lost in the end.
            let unknown = || NodeEntry::unknown(*storage, now_ns);
            if !self.nodes.contains_key(storage) {
                self.nodes.insert(*storage, unknown());
                self.version += 1;
            }
        }
        for (storage, entry) in &mut self.nodes {
            let state = entry.state_at(now_ns, &self.terms);
            if state == entry.member.state {
                continue;
            }
            match state {
                MemberState::Silent => tracing::warn!(%storage, "a storage node is silent"),
                MemberState::Lost => tracing::error!(%storage, "a storage node is lost"),
                MemberState::Up | MemberState::Draining => {}
            }
            entry.member.state = state;
            self.version += 1;
        }
        let listened = Duration::from_nanos(now_ns.saturating_sub(self.since_ns));
        if !self.is_complete && listened > self.terms.lost_after {
            // A node that has not reported to the manager by now is lost.
            self.is_complete = true;
            self.version += 1;
        }
    }

    fn drain(
        &mut self,
        now_ns: u64,
        storage: StorageId,
        is_draining: bool,
    ) -> Result<StoreMessage, Refused> {
        let entry = self.known(storage)?;
        entry.is_draining = is_draining;
        entry.ordered = Some(is_draining);
        self.watch(now_ns);
        Ok(StoreMessage::Done {})
    }

    /// Records an operator's decision that a node never returns. The answers to beats spread it.
    /// The decision is final, so it needs more than a short silence of the node.
    fn forget(&mut self, now_ns: u64, storage: StorageId) -> Result<StoreMessage, Refused> {
        let lost_after = self.terms.lost_after;
        let entry = self.known(storage)?;
        if entry.is_up() {
            return Err(Refused::new(
                RefusalWhy::Busy,
                format!("node {storage} is up: stop it before the cluster forgets it"),
            ));
        }
        let silence = Duration::from_nanos(now_ns.saturating_sub(entry.heard_ns));
        if !entry.has_drained() && !entry.is_forgotten && silence <= lost_after {
            let wait_s = (lost_after - silence).as_secs() + 1;
            return Err(Refused::new(
                RefusalWhy::Busy,
                format!(
                    "node {storage} has been silent for {} s only, and may return: repeat this in \
                     {wait_s} s, when it counts as lost{}",
                    silence.as_secs(),
                    entry.unfinished_drain()
                ),
            ));
        }
        if !std::mem::replace(&mut entry.is_forgotten, true) {
            // If the node was lost before, its state does not change. The list gets a new version
            // nevertheless, because it names forgotten nodes.
            self.version += 1;
        }
        self.watch(now_ns);
        Ok(StoreMessage::Done {})
    }

    fn known(&mut self, storage: StorageId) -> Result<&mut NodeEntry, Refused> {
        self.nodes.get_mut(&storage).ok_or_else(|| {
            let text = format!("the manager knows no storage node {storage}");
            Refused::new(RefusalWhy::NotThere, text)
        })
    }
}

#[cfg(test)]
mod tests;
