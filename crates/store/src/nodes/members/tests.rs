use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, ErrorKind};
use archipelago_fabric::{ClusterId, NodeId};

use super::super::StorageId;
use super::super::register::caspaxos::RootSet;
use super::super::wire::{
    DeviceStatus, MemberState, Members, NodeSpace, RefusalWhy, StorageReport, StoreMessage,
    UnservedBytes,
};
use super::{ManagerPart, MemberTable, MemberTerms, RootReplacement};

const MS: u64 = 1_000_000;

/// A node that keeps the orders of managers.
#[derive(Clone, Debug)]
struct NodeModel {
    life: u64,
    domain: String,
    cluster: Option<ClusterId>,
    root_set: Option<RootSet>,
    is_draining: bool,
    used_bytes: u64,
    has_failed_device: bool,
    /// Numbers of chunks and extents that the node reports.
    report: StorageReport,
    version: u64,
    forgotten: BTreeSet<StorageId>,
}

/// Nodes that beat to one manager.
struct World {
    now_ns: u64,
    table: MemberTable,
    part: ManagerPart,
    nodes: BTreeMap<u64, NodeModel>,
    down: BTreeSet<u64>,
}

impl World {
    fn new(terms: MemberTerms, nodes: u64) -> Self {
        let table = MemberTable::new(terms, 7, 0);
        let (nodes_added, part) = (BTreeMap::new(), ManagerPart::Acts);
        let mut world = Self { now_ns: 0, table, part, nodes: nodes_added, down: BTreeSet::new() };
        (1..=nodes).for_each(|id| world.add(id, &format!("rack {id}")));
        world
    }

    fn add(&mut self, id: u64, domain: &str) {
        let domain = domain.to_owned();
        let (cluster, root_set) = (None, None);
        let (life, is_draining, used_bytes, version) = (1, false, 0, 0);
        let has_failed_device = false;
        let node = NodeModel {
            life,
            domain,
            cluster,
            root_set,
            is_draining,
            used_bytes,
            has_failed_device,
            report: StorageReport::default(),
            version,
            forgotten: BTreeSet::new(),
        };
        self.nodes.insert(id, node);
    }

    /// The answer to a beat of a node, which keeps the orders in it.
    fn beat(&mut self, id: u64) -> StoreMessage {
        let node = self.nodes[&id].clone();
        let space = NodeSpace { capacity_bytes: 1 << 30, used_bytes: node.used_bytes };
        let (path, is_failed) = ("/disk".to_owned(), node.has_failed_device);
        let devices = vec![DeviceStatus { path, space, is_failed }];
        let beat = StoreMessage::StorageBeat {
            storage: StorageId(id),
            node: NodeId(id),
            life: Epoch(node.life),
            endpoints: vec![format!("tcp:node:{id}")],
            domain: node.domain,
            cluster: node.cluster,
            root_set: node.root_set,
            is_draining: node.is_draining,
            version: node.version,
            report: StorageReport { space, devices, ..node.report },
            forgotten: node.forgotten.into_iter().collect(),
        };
        let answer = self.table.handle(self.now_ns, self.part, &beat);
        if let StoreMessage::MembersAre { members: Some(members), .. } = &answer {
            let node = self.nodes.get_mut(&id).unwrap();
            node.version = members.version;
            if node.cluster.is_none() && members.cluster.is_some() {
                node.cluster = members.cluster;
                node.root_set = Some(members.root_set.clone());
            }
            node.forgotten.extend(&members.forgotten);
            if let Some(member) = members.member(StorageId(id)) {
                node.is_draining = member.state == MemberState::Draining;
            }
        }
        answer
    }

    /// All nodes that are up beat for some time.
    fn run(&mut self, duration: Duration) {
        let until_ns = self.now_ns + duration.as_nanos() as u64;
        while self.now_ns < until_ns {
            self.now_ns += 100 * MS;
            let up: Vec<u64> =
                self.nodes.keys().copied().filter(|id| !self.down.contains(id)).collect();
            for id in up {
                self.beat(id);
            }
            self.table.on_timer(self.now_ns, self.part);
        }
    }

    fn ask(&mut self, message: &StoreMessage) -> StoreMessage {
        self.table.handle(self.now_ns, self.part, message)
    }

    fn members(&mut self) -> Members {
        match self.ask(&StoreMessage::AskMembers { version: 0 }) {
            StoreMessage::MembersAre { members: Some(members), .. } => members,
            other => panic!("unexpected answer {other:?}"),
        }
    }

    fn state(&mut self, id: u64) -> MemberState {
        self.members().member(StorageId(id)).expect("a member").state
    }

    fn waits_for(&mut self) -> String {
        match self.ask(&StoreMessage::StorageStatus {}) {
            StoreMessage::StorageStatusIs { status } => status.waits_for,
            other => panic!("unexpected answer {other:?}"),
        }
    }

    /// A manager that knows nothing replaces the present one.
    fn restart_manager(&mut self) {
        self.table = MemberTable::new(self.table.terms, 8, self.now_ns);
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn founded(nodes: u64) -> World {
    let mut world = World::new(MemberTerms::default(), nodes);
    world.run(seconds(4));
    assert!(world.members().cluster.is_some(), "{}", world.waits_for());
    world
}

fn refusal(answer: &StoreMessage) -> Option<RefusalWhy> {
    match answer {
        StoreMessage::Refuse { why, .. } => Some(*why),
        _ => None,
    }
}

fn ids(ids: &[u64]) -> Vec<StorageId> {
    ids.iter().copied().map(StorageId).collect()
}

#[test]
fn cluster_is_founded_when_three_domains_have_settled() {
    let mut world = World::new(MemberTerms::default(), 2);
    world.run(seconds(20));
    assert_eq!(world.members().cluster, None);
    assert!(world.waits_for().contains("3 domains"), "{}", world.waits_for());
    world.add(3, "rack 2");
    world.run(seconds(20));
    assert_eq!(world.members().cluster, None, "two nodes share a rack");
    world.add(4, "rack 4");
    world.run(seconds(1));
    assert_eq!(world.members().cluster, None, "the fourth node has not settled");
    world.run(seconds(3));
    let members = world.members();
    assert!(members.cluster.is_some());
    assert_eq!(members.root_set, RootSet { number: 1, members: ids(&[1, 2, 4]) });
    assert_eq!(world.nodes[&3].cluster, members.cluster, "the other node learns the cluster");
    assert_eq!(world.waits_for(), "");
}

#[test]
fn root_set_has_five_members_with_five_domains() {
    assert_eq!(founded(4).members().root_set.members.len(), 3);
    assert_eq!(founded(6).members().root_set.members, ids(&[1, 2, 3, 4, 5]));
    let terms = MemberTerms { root_nodes: Some(1), ..MemberTerms::default() };
    let mut trial = World::new(terms, 1);
    trial.run(seconds(4));
    assert_eq!(trial.members().root_set.members, ids(&[1]));
}

#[test]
fn cluster_is_hidden_until_its_root_set_keeps_it() {
    let mut world = World::new(MemberTerms::default(), 4);
    world.run(seconds(2));
    while world.nodes.values().all(|node| node.cluster.is_none()) {
        world.now_ns += 100 * MS;
        world.table.on_timer(world.now_ns, world.part);
        world.beat(1);
        assert!(world.now_ns < 10_000 * MS);
    }
    world.beat(1);
    assert_eq!(world.members().cluster, None, "one of three root nodes keeps it");
    for id in [4, 4, 2, 2] {
        world.beat(id);
    }
    assert_eq!(world.nodes[&4].cluster, world.nodes[&1].cluster, "all nodes vote");
    assert_eq!(world.members().cluster, None, "two of three root nodes keep it");
    for id in [3, 3] {
        world.beat(id);
    }
    assert_eq!(world.members().cluster, world.nodes[&1].cluster);
}

#[test]
fn new_manager_completes_a_founding_instead_of_repeating_it() {
    let mut world = World::new(MemberTerms::default(), 3);
    while world.nodes[&1].cluster.is_none() {
        world.run(Duration::from_millis(100));
        // Node 2 and node 3 get no answers yet.
        for id in [2, 3] {
            let node = world.nodes.get_mut(&id).unwrap();
            (node.cluster, node.root_set) = (None, None);
        }
    }
    let cluster = world.nodes[&1].cluster;
    world.restart_manager();
    world.run(seconds(1));
    assert!(world.nodes.values().all(|node| node.cluster == cluster));
    assert_eq!(world.members().cluster, cluster);
}

/// Two managers that act at the same time, and nodes whose messages to both are lost at times.
struct TwoManagers {
    now_ns: u64,
    rng: Rng,
    tables: [MemberTable; 2],
    nodes: BTreeMap<u64, NodeModel>,
    /// Probability in percent that a beat to each manager gets lost, by node.
    losses: BTreeMap<u64, [u32; 2]>,
}

impl TwoManagers {
    fn new(seed: u64, terms: MemberTerms, nodes: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let tables = [1, 2].map(|number| MemberTable::new(terms, seed * 2 + number, 0));
        let mut world = World::new(terms, nodes);
        let losses = (1..=nodes).map(|id| (id, [0, 1].map(|_| [0, 30, 95, 100][rng.usize(..4)])));
        let losses = losses.collect();
        Self { now_ns: 0, losses, rng, tables, nodes: std::mem::take(&mut world.nodes) }
    }

    /// Runs, and returns the clusters that were ever named to clients.
    fn run(&mut self, duration: Duration) -> BTreeSet<[u8; 16]> {
        let mut named = BTreeSet::new();
        let until_ns = self.now_ns + duration.as_nanos() as u64;
        while self.now_ns < until_ns {
            self.now_ns += 100 * MS;
            for id in self.nodes.keys().copied().collect::<Vec<_>>() {
                for manager in 0..2 {
                    if self.rng.u32(0..100) >= self.losses[&id][manager] {
                        self.beat(id, manager);
                    }
                }
            }
            for number in 0..2 {
                if self.rng.u8(0..100) == 0 {
                    let (terms, seed) = (self.tables[number].terms, self.rng.u64(..));
                    self.tables[number] = MemberTable::new(terms, seed, self.now_ns);
                }
                let table = &mut self.tables[number];
                table.on_timer(self.now_ns, ManagerPart::Acts);
                named.extend(table.members().cluster.map(|cluster| cluster.0));
                // The replacement of the root set, which a majority of it must be up for.
                if let Some(wanted) = table.wanted_root_set() {
                    let next = RootSet { number: wanted.old.number + 1, members: wanted.members };
                    table.root_set_is(&next);
                }
            }
        }
        named
    }

    fn beat(&mut self, id: u64, manager: usize) {
        let node = self.nodes.get_mut(&id).unwrap();
        let beat = StoreMessage::StorageBeat {
            storage: StorageId(id),
            node: NodeId(id),
            life: Epoch(1),
            endpoints: Vec::new(),
            domain: node.domain.clone(),
            cluster: node.cluster,
            root_set: node.root_set.clone(),
            is_draining: false,
            version: 0,
            report: StorageReport::default(),
            forgotten: Vec::new(),
        };
        let answer = self.tables[manager].handle(self.now_ns, ManagerPart::Acts, &beat);
        let StoreMessage::MembersAre { members: Some(members), .. } = answer else { return };
        if members.cluster.is_none() || node.cluster.is_some_and(|it| Some(it) != members.cluster) {
            return;
        }
        node.cluster = members.cluster;
        if node.root_set.as_ref().is_none_or(|known| known.number < members.root_set.number) {
            node.root_set = Some(members.root_set);
        }
    }
}

#[test]
fn two_managers_never_found_two_clusters() {
    let terms = MemberTerms { expected_nodes: Some(6), ..MemberTerms::default() };
    let (mut founded, mut undecided) = (0, 0);
    for seed in 0..200 {
        let named = TwoManagers::new(seed, terms, 6).run(seconds(60));
        assert!(named.len() <= 1, "seed {seed}: {named:x?}");
        founded += named.len();
        undecided += usize::from(named.is_empty());
    }
    assert!(founded > 60 && undecided > 0, "{founded} founded, {undecided} undecided");
}

#[test]
fn cluster_waits_for_most_of_its_expected_nodes() {
    let terms = MemberTerms { expected_nodes: Some(6), ..MemberTerms::default() };
    let mut world = World::new(terms, 3);
    world.run(seconds(30));
    assert_eq!(world.members().cluster, None);
    assert!(world.waits_for().contains("6 storage nodes"), "{}", world.waits_for());
    world.add(4, "rack 4");
    world.run(seconds(5));
    let members = world.members();
    assert!(members.cluster.is_some(), "{}", world.waits_for());
    // The second set with the same members is the proof of the founding.
    let wanted = world.table.wanted_root_set().expect("a second set");
    assert_eq!(wanted, RootReplacement { old: members.root_set.clone(), members: ids(&[1, 2, 3]) });
    world.table.root_set_is(&RootSet { number: 2, members: wanted.members });
    assert_eq!(world.table.wanted_root_set(), None);
    // A new manager needs only one node that knows the cluster.
    world.nodes.get_mut(&4).unwrap().root_set = Some(world.members().root_set);
    world.restart_manager();
    world.beat(4);
    assert_eq!(world.members().cluster, members.cluster);
}

#[test]
fn divided_votes_are_named_and_found_nothing() {
    let terms = MemberTerms { expected_nodes: Some(4), ..MemberTerms::default() };
    let mut world = World::new(terms, 4);
    for (id, cluster, members) in
        [(1, 1, [1, 2, 3]), (2, 1, [1, 2, 3]), (3, 2, [2, 3, 4]), (4, 2, [2, 3, 4])]
    {
        let node = world.nodes.get_mut(&id).unwrap();
        node.cluster = Some(ClusterId([cluster; 16]));
        node.root_set = Some(RootSet { number: 1, members: ids(&members) });
    }
    world.run(seconds(60));
    assert_eq!(world.members().cluster, None);
    assert!(world.waits_for().contains("another cluster"), "{}", world.waits_for());
}

#[test]
fn new_manager_knows_cluster_root_set_and_drains_from_beats() {
    let mut world = founded(6);
    let before = world.members();
    assert_eq!(
        world.ask(&StoreMessage::DrainNode { storage: StorageId(6), is_draining: true }),
        StoreMessage::Done {}
    );
    world.run(seconds(1));
    world.restart_manager();
    world.run(seconds(1));
    let after = world.members();
    assert_eq!((after.cluster, after.root_set), (before.cluster, before.root_set));
    assert_eq!(world.state(6), MemberState::Draining);
    world.ask(&StoreMessage::DrainNode { storage: StorageId(6), is_draining: false });
    world.run(seconds(1));
    assert_eq!(world.state(6), MemberState::Up);
    assert!(!world.nodes[&6].is_draining);
}

#[test]
fn node_is_silent_then_lost_then_up_again() {
    let mut world = founded(4);
    world.down.insert(4);
    world.run(seconds(1));
    assert_eq!(world.state(4), MemberState::Up);
    world.run(seconds(2));
    assert_eq!(world.state(4), MemberState::Silent);
    world.run(seconds(596));
    assert_eq!(world.state(4), MemberState::Silent);
    world.run(seconds(4));
    assert_eq!(world.state(4), MemberState::Lost);
    world.down.clear();
    world.run(seconds(1));
    assert_eq!(world.state(4), MemberState::Up);
}

#[test]
fn lost_root_node_is_replaced_by_a_node_of_another_domain() {
    let mut world = founded(3);
    world.add(4, "rack 1");
    world.add(5, "rack 3");
    world.down.insert(3);
    world.run(seconds(599));
    assert_eq!(world.table.wanted_root_set(), None);
    world.run(seconds(5));
    let old = RootSet { number: 1, members: ids(&[1, 2, 3]) };
    let wanted = RootReplacement { old, members: ids(&[1, 2, 5]) };
    assert_eq!(world.table.wanted_root_set(), Some(wanted.clone()));
    assert!(world.waits_for().contains("root set"), "{}", world.waits_for());
    let next = RootSet { number: 2, members: wanted.members };
    world.table.root_set_is(&next);
    assert_eq!(world.members().root_set, next);
    assert_eq!(world.table.wanted_root_set(), None);
    world.table.root_set_is(&wanted.old);
    assert_eq!(world.members().root_set, next, "an older set changes nothing");
}

#[test]
fn draining_root_node_is_replaced_and_three_grow_to_five() {
    let mut world = founded(3);
    world.add(4, "rack 4");
    world.run(seconds(3));
    assert_eq!(world.table.wanted_root_set(), None, "four domains have three root nodes");
    world.ask(&StoreMessage::DrainNode { storage: StorageId(2), is_draining: true });
    let wanted = world.table.wanted_root_set().map(|wanted| wanted.members);
    assert_eq!(wanted, Some(ids(&[1, 3, 4])));
    world.add(5, "rack 5");
    world.add(6, "rack 6");
    world.run(seconds(3));
    let wanted = world.table.wanted_root_set().map(|wanted| wanted.members);
    assert_eq!(wanted, Some(ids(&[1, 3, 4])), "three new members of five would be a majority");
    world.table.root_set_is(&RootSet { number: 2, members: ids(&[1, 3, 4]) });
    let wanted = world.table.wanted_root_set().map(|wanted| wanted.members);
    assert_eq!(wanted, Some(ids(&[1, 3, 4, 5, 6])));
}

#[test]
fn two_draining_root_nodes_are_replaced_one_after_the_other() {
    let mut world = founded(3);
    world.add(4, "rack 4");
    world.add(5, "rack 5");
    for id in [2, 3] {
        world.ask(&StoreMessage::DrainNode { storage: StorageId(id), is_draining: true });
    }
    world.run(seconds(3));
    let wanted = world.table.wanted_root_set().map(|wanted| wanted.members);
    assert_eq!(wanted, Some(ids(&[1, 4, 2])));
    world.table.root_set_is(&RootSet { number: 2, members: ids(&[1, 4, 2]) });
    let wanted = world.table.wanted_root_set().map(|wanted| wanted.members);
    assert_eq!(wanted, Some(ids(&[1, 4, 5])));
}

#[test]
fn root_set_takes_no_node_that_is_silent_young_or_damaged() {
    let mut world = founded(3);
    for id in [4, 5, 6, 7] {
        world.add(id, "rack 4");
    }
    world.down.insert(3);
    world.run(seconds(600));
    // Node 4 has just become silent, node 5 begins a life, and node 6 has lost a device.
    world.down.insert(4);
    world.nodes.get_mut(&6).unwrap().has_failed_device = true;
    world.run(Duration::from_millis(1_500));
    world.nodes.get_mut(&5).unwrap().life += 1;
    world.run(Duration::from_millis(500));
    assert_eq!(world.state(4), MemberState::Up, "its silence is short");
    let wanted = world.table.wanted_root_set().map(|wanted| wanted.members);
    assert_eq!(wanted, Some(ids(&[1, 2, 7])));
    world.down.insert(7);
    world.run(Duration::from_millis(1_100));
    assert_eq!(world.table.wanted_root_set(), None);
    world.run(seconds(1));
    let wanted = world.table.wanted_root_set().map(|wanted| wanted.members);
    assert_eq!(wanted, Some(ids(&[1, 2, 5])), "its new life has settled");
}

#[test]
fn root_set_without_a_majority_is_not_replaced() {
    let mut world = founded(4);
    world.down.extend([2, 3]);
    world.run(seconds(605));
    assert_eq!(world.table.wanted_root_set(), None);
    assert!(world.waits_for().contains("majority"), "{}", world.waits_for());
}

#[test]
fn forgotten_node_is_lost_and_its_beats_are_refused() {
    let mut world = founded(4);
    let forget = |id| StoreMessage::ForgetNode { storage: StorageId(id) };
    assert_eq!(refusal(&world.ask(&forget(4))), Some(RefusalWhy::Busy), "it is up");
    assert_eq!(refusal(&world.ask(&forget(9))), Some(RefusalWhy::NotThere));
    world.down.insert(4);
    world.run(seconds(3));
    assert_eq!(refusal(&world.ask(&forget(4))), Some(RefusalWhy::Busy), "it may return");
    let drain = StoreMessage::DrainNode { storage: StorageId(4), is_draining: true };
    assert_eq!(world.ask(&drain), StoreMessage::Done {});
    let refused = world.ask(&forget(4));
    assert_eq!(refusal(&refused), Some(RefusalWhy::Busy), "it has not heard the order");
    let StoreMessage::Refuse { text, .. } = refused else { panic!("{refused:?}") };
    assert!(text.contains("repeat this in 59"), "{text}");
    world.run(seconds(600));
    assert_eq!(world.ask(&forget(4)), StoreMessage::Done {});
    assert_eq!(world.state(4), MemberState::Lost);
    assert_eq!(refusal(&world.beat(4)), Some(RefusalWhy::NotThere));
    assert_eq!(world.state(4), MemberState::Lost);
}

#[test]
fn node_whose_drain_has_not_ended_is_not_forgotten_before_it_is_lost() {
    let none = StorageReport::default();
    for unfinished in [
        StorageReport { chunks: 1, ..none.clone() },
        StorageReport { chunks_unsealed: 1, ..none.clone() },
        StorageReport { extents: 2, extents_open: 1, ..none.clone() },
    ] {
        let mut world = founded(4);
        let drain = StoreMessage::DrainNode { storage: StorageId(4), is_draining: true };
        assert_eq!(world.ask(&drain), StoreMessage::Done {});
        world.nodes.get_mut(&4).unwrap().report = unfinished;
        world.run(seconds(2));
        world.down.insert(4);
        world.run(seconds(3));
        let forget = StoreMessage::ForgetNode { storage: StorageId(4) };
        let refused = world.ask(&forget);
        assert_eq!(refusal(&refused), Some(RefusalWhy::Busy), "its objects may need it");
        let StoreMessage::Refuse { text, .. } = refused else { panic!("{refused:?}") };
        assert!(text.contains("start it to end its drain"), "{text}");
        // A sealed extent stays on a node that is empty.
        world.down.clear();
        let empty = StorageReport { extents: 2, ..none.clone() };
        world.nodes.get_mut(&4).unwrap().report = empty;
        world.run(seconds(1));
        world.down.insert(4);
        world.run(seconds(3));
        assert_eq!(world.ask(&forget), StoreMessage::Done {});
    }
}

#[test]
fn status_has_the_last_report_of_each_node() {
    let mut world = founded(4);
    let garbage = |world: &World| -> Vec<u64> {
        let nodes = world.table.status(world.now_ns).nodes;
        nodes.iter().map(|node| node.report.unserved.garbage_bytes()).collect()
    };
    let unserved = UnservedBytes { unsealed: 5, damaged: 2, removed: 1 };
    let metadata_bytes = Some(9);
    world.nodes.get_mut(&2).unwrap().report =
        StorageReport { unserved, metadata_bytes, ..StorageReport::default() };
    world.run(seconds(1));
    assert_eq!(garbage(&world), [0, 3, 0, 0]);
    assert_eq!(world.table.status(world.now_ns).nodes[1].report.metadata_bytes, metadata_bytes);
    world.nodes.get_mut(&2).unwrap().report = StorageReport::default();
    world.run(seconds(1));
    assert_eq!(garbage(&world), [0; 4]);
}

#[test]
fn forgotten_node_stays_lost_for_every_later_manager() {
    for silence in [seconds(3), seconds(605)] {
        let mut world = founded(4);
        if silence < seconds(600) {
            // A node that was emptied and stopped need not be waited for.
            let drain = StoreMessage::DrainNode { storage: StorageId(4), is_draining: true };
            assert_eq!(world.ask(&drain), StoreMessage::Done {});
            world.run(seconds(2));
        }
        world.down.insert(4);
        world.run(silence);
        let forget = StoreMessage::ForgetNode { storage: StorageId(4) };
        assert_eq!(world.ask(&forget), StoreMessage::Done {});
        world.run(seconds(1));
        world.restart_manager();
        world.run(seconds(1));
        assert_eq!(world.state(4), MemberState::Lost, "after {silence:?}");
        assert_eq!(world.members().forgotten, ids(&[4]));
        assert_eq!(refusal(&world.beat(4)), Some(RefusalWhy::NotThere));
        // A node that joins later learns it as well.
        world.add(5, "rack 5");
        world.run(seconds(1));
        assert_eq!(world.nodes[&5].forgotten, BTreeSet::from([StorageId(4)]));
    }
}

#[test]
fn labels_are_settled_when_none_has_changed_for_long() {
    let mut world = founded(4);
    let has_settled =
        |world: &World| world.table.repair_view(world.now_ns, true).has_settled_labels;
    assert!(!has_settled(&world), "the manager before this one may have seen a change");
    world.run(seconds(605));
    assert!(has_settled(&world));
    // A node that joins changes no label.
    world.add(5, "rack 5");
    world.run(seconds(1));
    assert!(has_settled(&world));
    world.nodes.get_mut(&2).unwrap().domain = "rack 1".to_owned();
    world.run(seconds(300));
    assert!(!has_settled(&world));
    world.nodes.get_mut(&3).unwrap().domain = "rack 2".to_owned();
    world.run(seconds(400));
    assert!(!has_settled(&world), "the last change counts");
    world.run(seconds(300));
    assert!(has_settled(&world));
}

#[test]
fn node_of_another_cluster_names_no_forgotten_nodes() {
    let mut world = founded(3);
    world.add(4, "rack 4");
    let stranger = world.nodes.get_mut(&4).unwrap();
    stranger.forgotten = BTreeSet::from([StorageId(1)]);
    world.beat(4);
    assert_eq!(world.state(1), MemberState::Up, "the node has not joined the cluster yet");
    world.nodes.get_mut(&4).unwrap().cluster = Some(ClusterId([9; 16]));
    assert_eq!(refusal(&world.beat(4)), Some(RefusalWhy::WrongCluster));
    assert_eq!(world.state(1), MemberState::Up);
}

#[test]
fn node_of_another_cluster_is_refused() {
    let mut world = founded(3);
    world.add(9, "rack 9");
    world.nodes.get_mut(&9).unwrap().cluster = Some(ClusterId([9; 16]));
    assert_eq!(refusal(&world.beat(9)), Some(RefusalWhy::WrongCluster));
    assert_eq!(world.members().member(StorageId(9)), None);
}

#[test]
fn second_process_of_a_node_replaces_it_only_when_newer() {
    let mut world = founded(3);
    world.nodes.get_mut(&3).unwrap().life = 5;
    world.run(seconds(1));
    world.nodes.get_mut(&3).unwrap().life = 4;
    assert_eq!(refusal(&world.beat(3)), Some(RefusalWhy::Busy));
    // The clock of the machine went back, and the later process is gone.
    world.down.insert(3);
    world.run(seconds(3));
    world.down.clear();
    world.run(seconds(1));
    assert_eq!(world.state(3), MemberState::Up);
}

#[test]
fn standby_manager_hears_beats_and_decides_nothing() {
    let mut world = World::new(MemberTerms::default(), 3);
    world.part = ManagerPart::StandsBy;
    world.run(seconds(20));
    assert!(world.nodes.values().all(|node| node.cluster.is_none()));
    let refused = world.ask(&StoreMessage::AskMembers { version: 0 });
    assert_eq!(refusal(&refused), Some(RefusalWhy::Standby));
    world.part = ManagerPart::Acts;
    world.run(seconds(1));
    assert_eq!(world.members().members.len(), 3, "it knows the nodes immediately");
    assert_eq!(world.members().cluster, None, "another manager may have founded a cluster");
    world.run(seconds(3));
    assert!(world.members().cluster.is_some());
}

#[test]
fn version_grows_with_every_change_that_readers_see() {
    let mut world = founded(4);
    let version = world.members().version;
    world.run(seconds(5));
    assert_eq!(world.members().version, version, "an idle cluster keeps its version");
    let unchanged = world.ask(&StoreMessage::AskMembers { version });
    assert!(matches!(unchanged, StoreMessage::MembersAre { members: None, .. }));
    world.nodes.get_mut(&1).unwrap().used_bytes = 1 << 20;
    world.run(seconds(1));
    assert_eq!(world.members().version, version, "a thousandth of the node is no news");
    world.nodes.get_mut(&1).unwrap().used_bytes = 1 << 26;
    world.run(seconds(1));
    let members = world.members();
    assert!(members.version > version);
    assert_eq!(members.member(StorageId(1)).unwrap().space.used_bytes, 1 << 26);
}

#[test]
fn list_is_complete_when_no_node_can_be_unknown() {
    let mut world = founded(4);
    let all = world.members().awaited().unwrap();
    assert_eq!(all, ids(&[1, 2, 3, 4]), "this manager has founded the cluster");
    world.down.insert(4);
    world.restart_manager();
    world.run(seconds(5));
    let early = world.members();
    assert!(early.member(StorageId(4)).is_none());
    let error = early.awaited().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    world.run(seconds(600));
    let late = world.members();
    assert!(late.version > early.version);
    assert_eq!(late.awaited().unwrap(), ids(&[1, 2, 3]), "node 4 counts as lost");
    world.part = ManagerPart::StandsBy;
    world.run(seconds(1));
    world.part = ManagerPart::Acts;
    world.run(seconds(1));
    assert!(!world.members().is_complete, "another manager may have acted meanwhile");
}

#[test]
fn root_node_that_never_beats_is_lost_one_day() {
    let mut world = founded(4);
    world.down.insert(2);
    world.restart_manager();
    world.run(seconds(1));
    assert_eq!(world.state(2), MemberState::Silent);
    assert_eq!(world.table.wanted_root_set(), None);
    world.run(seconds(603));
    assert_eq!(world.state(2), MemberState::Lost);
    let wanted = world.table.wanted_root_set().map(|wanted| wanted.members);
    assert_eq!(wanted, Some(ids(&[1, 3, 4])));
}

#[test]
fn terms_that_cannot_work_are_refused() {
    let valid = MemberTerms::default();
    assert!(valid.validate().is_ok());
    assert!(MemberTerms { root_nodes: Some(2), ..valid }.validate().is_err());
    assert!(MemberTerms { expected_nodes: Some(2), ..valid }.validate().is_err());
    let trial = MemberTerms { expected_nodes: Some(1), root_nodes: Some(1), ..valid };
    assert!(trial.validate().is_ok());
    assert!(MemberTerms { lost_after: seconds(1), ..valid }.validate().is_err());
    assert!(MemberTerms { beat: Duration::ZERO, ..valid }.validate().is_err());
}
