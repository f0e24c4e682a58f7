//! The times and numbers that the manager guarantees, with nodes that follow every order.

use archipelago_base::Epoch;
use archipelago_fabric::{ClientId, NodeId};
use archipelago_pool::wire::{CopyReport, CopyStep, Message, NodeCounters, Refused, Why};
use archipelago_pool::{BlockId, Config, Membership, Owned, Place, Sharing};

use super::{Action, ManagerCore, ManagerWork, Terms};

const CLIENT: ClientId = ClientId(1);
const BLOCK_BYTES: u64 = 4096;
/// Time between two beats and renewals, shorter than any lease.
const STEP_NS: u64 = 100_000_000;

/// A manager, a client, and nodes that only count their memory.
struct Cluster {
    core: ManagerCore,
    now_ns: u64,
    /// For the nodes 1, 2 and so on: the number of blocks that fit, and the number of copies.
    nodes: Vec<(u64, u64)>,
    /// A node that refuses copies with this number of bytes left, as if the system gave it no
    /// memory.
    exhausted: Option<(NodeId, u64)>,
    /// A node that sends no beats.
    silent: Option<NodeId>,
    /// Reports that nodes send to a manager that they do not know.
    reported: Vec<(NodeId, CopyReport)>,
    /// Clients that every node reports to have keys.
    keyed: Vec<ClientId>,
    /// Clients that every node has fenced for an earlier manager.
    fenced: Vec<ClientId>,
    /// A node on which a process has the memory of every dead client mapped.
    holding: Option<NodeId>,
    /// Pairs of a node and a dead client that the manager reported to it.
    told: Vec<(NodeId, ClientId)>,
    /// A node that sends beats but answers no request.
    deaf: Option<NodeId>,
    answers: Vec<(u64, Message)>,
    /// Nodes that got an order to make a copy, and the epoch.
    filled: Vec<(NodeId, Epoch)>,
    dropped: Vec<(NodeId, BlockId)>,
}

impl Cluster {
    fn new(copies: u32, sizes: &[u64]) -> Self {
        let mut cluster = Self::starting(copies, sizes);
        cluster.wait_until_active();
        cluster
    }

    /// A manager that has just started.
    fn starting(copies: u32, sizes: &[u64]) -> Self {
        let terms = Terms { copies, ..Terms::default() };
        Self {
            core: ManagerCore::new(ClientId(1000), 1 << 20, 0, terms, 0),
            now_ns: 0,
            nodes: sizes.iter().map(|size| (*size, 0)).collect(),
            exhausted: None,
            silent: None,
            reported: Vec::new(),
            keyed: Vec::new(),
            fenced: Vec::new(),
            holding: None,
            told: Vec::new(),
            deaf: None,
            answers: Vec::new(),
            filled: Vec::new(),
            dropped: Vec::new(),
        }
    }

    fn wait_until_active(&mut self) {
        while !self.core.is_active() {
            self.pass(STEP_NS);
        }
        self.pass(STEP_NS);
    }

    fn counters(given: u64) -> NodeCounters {
        NodeCounters { operations: 77, given, ..NodeCounters::default() }
    }

    /// Lets time pass. Nodes send beats, the client renews its lease, and the nodes answer the
    /// manager's requests.
    fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
        for (place, (size, used)) in self.nodes.clone().into_iter().enumerate() {
            let node = NodeId(place as u64 + 1);
            if self.silent == Some(node) {
                continue;
            }
            let beat = Message::Beat {
                node,
                life: Epoch(5),
                endpoints: Vec::new(),
                block_bytes: BLOCK_BYTES,
                blocks_max: size,
                blocks_used: used,
                term: 0,
                held_ms: 0,
                counters: Self::counters(used),
            };
            self.core.on_message(self.now_ns, 0, &beat);
        }
        let (first, view, owned) = (true, u64::MAX, 0);
        let renew = Message::Renew { client: CLIENT, label: 0, first, view, owned };
        self.core.on_message(self.now_ns, 0, &renew);
        self.core.on_timer(self.now_ns);
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            let actions = self.core.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Answer { ticket, message } => self.answers.push((ticket, message)),
                    Action::Send { node, .. } if self.deaf == Some(node) => {}
                    Action::Send { node, message } => {
                        let answer = self.answer(node, &message);
                        self.core.on_answer(self.now_ns, node, &message, Some(&answer));
                    }
                }
            }
        }
    }

    fn answer(&mut self, node: NodeId, message: &Message) -> Message {
        let life = Epoch(5);
        let is = |block, epoch, step| Message::CopyIs { node, life, block, epoch, step };
        let used = &mut self.nodes[node.0 as usize - 1].1;
        match message {
            Message::Claim { .. } => Message::Report {
                node,
                life,
                copies: {
                    let own = self.reported.iter().filter(|(of, _)| *of == node);
                    own.map(|(_, report)| report.clone()).collect()
                },
                freed: Vec::new(),
                clients: self.keyed.clone(),
                more: false,
            },
            Message::Fill { config, .. } => {
                self.filled.push((node, config.epoch));
                match self.exhausted {
                    Some((of, left)) if of == node => Message::refuse(Refused::at(Why::Full, left)),
                    _ => {
                        *used += 1;
                        is(config.block, config.epoch, CopyStep::Filled)
                    }
                }
            }
            Message::Seal { block, epoch, .. } => is(*block, *epoch, CopyStep::Sealed),
            Message::Fence { clients, tell, .. } => {
                self.told.extend(clients.iter().map(|client| (node, *client)));
                let held = clients.iter().filter(|_| self.holding == Some(node)).copied().collect();
                let fenced = if *tell { self.fenced.clone() } else { Vec::new() };
                Message::FenceIs { life, held, fenced }
            }
            Message::Install { config, .. } => is(config.block, config.epoch, CopyStep::Installed),
            Message::Drop { block, epoch, .. } => {
                *used = used.saturating_sub(1);
                self.dropped.push((node, *block));
                is(*block, *epoch, CopyStep::Dropped)
            }
            other => panic!("{other:?} is not expected here"),
        }
    }

    fn ask(&mut self, message: &Message) -> Message {
        self.answers.clear();
        self.core.on_message(self.now_ns, 9, message);
        self.settle();
        let answer = self.answers.iter().find(|(ticket, _)| *ticket == 9);
        answer.map(|(_, answer)| answer.clone()).expect("an answer")
    }

    fn allocate(&mut self, request: u64) -> Result<Config, Refused> {
        self.allocate_for(request, Sharing::Owner)
    }

    fn allocate_for(&mut self, request: u64, sharing: Sharing) -> Result<Config, Refused> {
        let allocate = Message::Allocate { client: CLIENT, request, sharing, copies: 0 };
        match self.ask(&allocate) {
            Message::Located { config } => Ok(config),
            Message::Refuse { refused } => Err(refused),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn released_block_is_freed_after_a_lease() {
    let mut cluster = Cluster::new(2, &[4, 4]);
    let block = cluster.allocate(1).expect("a block").block;
    let released_ns = cluster.now_ns;
    let release = Message::Release { client: CLIENT, block };
    assert_eq!(cluster.ask(&release), Message::Done {});
    let lease_ns = Terms::default().lease.as_nanos() as u64;
    while cluster.now_ns + STEP_NS < released_ns + lease_ns {
        cluster.pass(STEP_NS);
    }
    // The client repeats the request in between, as after a lost answer. The lease does not begin
    // again.
    assert_eq!(cluster.ask(&release), Message::Done {});
    cluster.pass(released_ns + lease_ns - 1 - cluster.now_ns);
    assert!(cluster.dropped.is_empty(), "one nanosecond before the lease is over");
    assert_eq!(cluster.ask(&Message::Locate { block }), Message::refuse(Why::Changing));
    cluster.pass(1);
    cluster.dropped.sort();
    assert_eq!(cluster.dropped, [(NodeId(1), block), (NodeId(2), block)]);
    assert_eq!(cluster.ask(&Message::Locate { block }), Message::refuse(Why::UnknownBlock));
}

#[test]
fn manager_counts_the_changes_and_losses_that_it_handles() {
    let mut cluster = Cluster::new(3, &[4, 4, 4, 4]);
    assert_eq!(cluster.core.figures(cluster.now_ns).work, ManagerWork::default());
    let config = cluster.allocate(1).expect("a block");
    let made = ManagerWork { blocks_made: 1, ..ManagerWork::default() };
    assert_eq!(cluster.core.figures(cluster.now_ns).work, made);
    let (first, view, owned) = (true, u64::MAX, 0);
    let other = Message::Renew { client: ClientId(2), label: 0, first, view, owned };
    cluster.core.on_message(cluster.now_ns, 0, &other);
    cluster.settle();
    // Another node gets the copy of the silent one.
    cluster.silent = Some(config.copies[0].node);
    (0..20).for_each(|_| cluster.pass(STEP_NS));
    let release = Message::Release { client: CLIENT, block: config.block };
    assert_eq!(cluster.ask(&release), Message::Done {});
    (0..25).for_each(|_| cluster.pass(STEP_NS));
    let work = cluster.core.figures(cluster.now_ns).work;
    let expected = ManagerWork {
        blocks_changed: 1,
        blocks_freed: 1,
        changes_begun: work.changes_begun.max(1),
        copies_added: 1,
        nodes_silenced: 1,
        clients_expired: 1,
        ..made
    };
    assert_eq!(work, expected);
}

#[test]
fn full_cluster_is_refused_with_the_bytes_left() {
    let mut cluster = Cluster::new(2, &[1, 4]);
    cluster.allocate(1).expect("each node has room");
    let full = Refused::at(Why::Full, 3 * BLOCK_BYTES);
    assert_eq!(cluster.allocate(2), Err(full), "the second node alone has room, for three");
    assert!(full.to_string().contains("12288 bytes are left"), "{full}");
}

#[test]
fn node_without_memory_is_skipped_and_reported() {
    let mut cluster = Cluster::new(1, &[8]);
    cluster.exhausted = Some((NodeId(1), 8 * BLOCK_BYTES));
    let full = Refused::at(Why::Full, 8 * BLOCK_BYTES);
    assert_eq!(cluster.allocate(1), Err(full));
    let status = cluster.core.status(cluster.now_ns);
    assert_eq!((status.nodes[0].blocks_used, status.blocks_total), (0, 0));
    cluster.exhausted = None;
    assert_eq!(cluster.allocate(1), Err(full), "not asked again within a lease");
    let until_ns = cluster.now_ns + Terms::default().lease.as_nanos() as u64;
    while cluster.now_ns < until_ns {
        cluster.pass(STEP_NS);
    }
    cluster.allocate(1).expect("there is memory again");
}

#[test]
fn status_has_counters_of_every_last_beat() {
    let mut cluster = Cluster::new(1, &[4, 4]);
    cluster.allocate(1).expect("a block");
    cluster.pass(STEP_NS);
    let told = |node: usize| cluster.core.status(cluster.now_ns).nodes[node].counters.clone();
    assert_eq!((told(0), told(1)), (Cluster::counters(1), Cluster::counters(0)));
}

#[test]
fn new_block_moves_to_another_node_under_a_new_epoch() {
    let mut cluster = Cluster::new(1, &[8, 4]);
    cluster.exhausted = Some((NodeId(1), BLOCK_BYTES));
    let config = cluster.allocate(1).expect("the other node has room");
    let [(NodeId(1), first), (NodeId(2), second)] = cluster.filled[..] else {
        panic!("{:?}", cluster.filled)
    };
    assert!(first < second, "{first} {second}");
    assert_eq!((config.epoch, config.born), (second, second));
    assert_eq!(config.copies, [Place { node: NodeId(2), life: Epoch(5) }]);
}

#[test]
fn abandoned_uninstalled_copy_does_not_free_the_block() {
    // An earlier manager made the block on node 1, gave it up there, and made it on node 2.
    let block = BlockId { home: NodeId(1), number: 7 };
    let report = |node: u64, epoch: u64, installed: bool| {
        let copies = vec![Place { node: NodeId(node), life: Epoch(5) }];
        let config = Config {
            block,
            epoch: Epoch(epoch),
            born: Epoch(epoch),
            owner: Some(CLIENT),
            label: 0,
            request: 1,
            sharing: Sharing::Owner,
            wanted: 1,
            copies,
        };
        (NodeId(node), CopyReport { config, promised: Epoch(epoch), whole: true, installed })
    };
    let mut cluster = Cluster::starting(1, &[4, 4]);
    cluster.reported = vec![report(1, 40, false), report(2, 41, true)];
    cluster.silent = Some(NodeId(2));
    cluster.wait_until_active();
    assert_eq!(cluster.dropped, [(NodeId(1), block)], "it was never in use there");
    // Node 2 sends beats again.
    cluster.silent = None;
    cluster.pass(STEP_NS);
    cluster.pass(STEP_NS);
    match cluster.ask(&Message::Locate { block }) {
        Message::Located { config } => assert_eq!(config.copies[0].node, NodeId(2)),
        other => panic!("{other:?}"),
    }
    assert_eq!(cluster.dropped, [(NodeId(1), block)]);
}

#[test]
fn kept_copies_are_made_equal_if_members_share_the_block() {
    for (sharing, refreshed) in
        [(Sharing::All, vec![NodeId(3), NodeId(4)]), (Sharing::Owner, vec![NodeId(4)])]
    {
        let mut cluster = Cluster::new(3, &[4, 4, 4, 0]);
        let config = cluster.allocate_for(1, sharing).expect("room");
        assert_eq!(config.copies.len(), 3);
        cluster.filled.clear();
        // The first copy's node falls silent; a fourth has room by then.
        cluster.nodes[3].0 = 4;
        cluster.silent = Some(config.copies[0].node);
        for _ in 0..200 {
            cluster.pass(STEP_NS);
        }
        let Message::Located { config: now } =
            cluster.ask(&Message::Locate { block: config.block })
        else {
            panic!("it goes on")
        };
        assert!(now.epoch > config.epoch && now.copies.len() == 3, "{now:?}");
        let mut filled: Vec<NodeId> = cluster.filled.iter().map(|(node, _)| *node).collect();
        filled.sort();
        filled.dedup();
        assert!(
            !filled.contains(&now.copies[0].node),
            "the first is what the others are made equal to"
        );
        assert_eq!(filled.len(), refreshed.len(), "{sharing:?}: {filled:?}");
    }
}

#[test]
fn find_lists_unreleased_blocks_oldest_first() {
    let mut cluster = Cluster::new(1, &[4, 4]);
    let (one, two) = (cluster.allocate(1).expect("room"), cluster.allocate(2).expect("room"));
    let found = |cluster: &mut Cluster, label| match cluster.ask(&Message::Find { label }) {
        Message::Found { blocks } => blocks.into_iter().map(|at| at.block).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(found(&mut cluster, 0), [one.block, two.block]);
    assert!(found(&mut cluster, 9).is_empty());
    cluster.ask(&Message::Release { client: CLIENT, block: one.block });
    assert_eq!(found(&mut cluster, 0), [two.block]);
    let mut starting = Cluster::starting(1, &[4]);
    let answer = starting.ask(&Message::Find { label: 0 });
    assert!(matches!(answer, Message::Refuse { refused } if refused.why == Why::Rebuilding));
}

/// The answer to a renewal of the client whose list of blocks has the version `owned`.
fn renewed(cluster: &mut Cluster, owned: u64) -> Message {
    let (first, view) = (true, u64::MAX);
    cluster.ask(&Message::Renew { client: CLIENT, label: 0, first, view, owned })
}

/// Version, blocks and bound of the list in an answer to a renewal.
fn list(answer: &Message) -> (u64, Option<Vec<BlockId>>, Epoch) {
    let Message::Renewed { owned, blocks, as_of, .. } = answer else { panic!("{answer:?}") };
    let ids = blocks.as_ref().map(|blocks| blocks.iter().map(|at| at.block).collect());
    (*owned, ids, *as_of)
}

#[test]
fn list_that_a_new_block_overtakes_does_not_end_the_block() {
    let mut cluster = Cluster::new(1, &[4]);
    let mut member = Membership::new(CLIENT, 0);
    cluster.deaf = Some(NodeId(1));
    let request = member.next_request();
    let (client, sharing) = (CLIENT, Sharing::Owner);
    let allocate = Message::Allocate { client, request, sharing, copies: 0 };
    cluster.core.on_message(cluster.now_ns, 7, &allocate);
    cluster.settle();
    let slow = renewed(&mut cluster, 0);
    assert_eq!(list(&slow).1, Some(Vec::new()), "the block may still fail");
    cluster.deaf = None;
    cluster.pass(STEP_NS);
    let located = cluster.answers.iter().find(|(ticket, _)| *ticket == 7);
    let Some((_, Message::Located { config })) = located else { panic!("{located:?}") };
    let config = config.clone();
    member.allocated(config.block, config.epoch);
    member.on_renewed(0, &slow);
    assert!(member.take_changes().is_empty());
    assert_eq!(member.owned().collect::<Vec<_>>(), [config.block]);
    let (version, ids, as_of) = list(&renewed(&mut cluster, list(&slow).0));
    assert_eq!(ids, Some(vec![config.block]));
    assert!(as_of >= config.epoch, "the list is complete");
    assert_eq!(list(&renewed(&mut cluster, version)), (version, None, as_of), "and is sent once");
}

#[test]
fn list_is_sent_again_after_a_new_block_was_given_up() {
    let mut cluster = Cluster::new(1, &[4]);
    cluster.deaf = Some(NodeId(1));
    let (client, sharing) = (CLIENT, Sharing::Owner);
    let allocate = Message::Allocate { client, request: 1, sharing, copies: 0 };
    cluster.core.on_message(cluster.now_ns, 7, &allocate);
    cluster.settle();
    let (version, _, incomplete) = list(&renewed(&mut cluster, 0));
    assert_eq!(list(&renewed(&mut cluster, version)).1, None, "nothing has changed");
    cluster.silent = Some(NodeId(1));
    for _ in 0..20 {
        cluster.pass(STEP_NS);
    }
    let given_up = cluster.answers.iter().any(|(ticket, _)| *ticket == 7);
    assert!(given_up, "no node is left");
    let (now, ids, as_of) = list(&renewed(&mut cluster, version));
    assert!(now > version && as_of > incomplete, "{now} {version} {as_of} {incomplete}");
    assert_eq!(ids, Some(Vec::new()));
}

#[test]
fn unconfirmed_block_is_neither_gone_nor_unknown() {
    let block = BlockId { home: NodeId(1), number: 7 };
    let life = Epoch(5);
    let config = Config {
        block,
        epoch: Epoch(41),
        born: Epoch(40),
        owner: Some(CLIENT),
        label: 0,
        request: 1,
        sharing: Sharing::Owner,
        wanted: 2,
        copies: [1, 2].map(|node| Place { node: NodeId(node), life }).to_vec(),
    };
    let report = CopyReport { config, promised: Epoch(41), whole: true, installed: true };
    let mut cluster = Cluster::starting(2, &[4, 4]);
    cluster.reported = vec![(NodeId(1), report.clone()), (NodeId(2), report)];
    cluster.silent = Some(NodeId(1));
    cluster.wait_until_active();
    let lost = BlockId { home: NodeId(1), number: 8 };
    let mut member = Membership::new(CLIENT, 0);
    member.allocated(block, Epoch(41));
    member.allocated(lost, Epoch(50));
    let answer = renewed(&mut cluster, 0);
    member.on_renewed(0, &answer);
    assert!(member.take_changes().is_empty(), "which blocks exist is not known yet");
    assert_eq!(list(&renewed(&mut cluster, list(&answer).0)).1, None, "nothing has changed");
    let release = Message::Release { client: CLIENT, block };
    assert_eq!(cluster.ask(&release), Message::refuse(Why::Changing));
    assert_eq!(cluster.ask(&Message::Locate { block }), Message::refuse(Why::Changing));
    // The node of the other copy sends beats again.
    cluster.silent = None;
    cluster.pass(STEP_NS);
    cluster.pass(STEP_NS);
    member.on_renewed(0, &renewed(&mut cluster, list(&answer).0));
    assert_eq!(member.take_changes(), [Owned::Gone(lost)]);
    assert_eq!(member.owned().collect::<Vec<_>>(), [block]);
    assert_eq!(cluster.ask(&release), Message::Done {});
}

const VICTIM: ClientId = ClientId(2);
const EVICT: Message = Message::Evict { client: VICTIM };

fn joins(cluster: &mut Cluster, client: ClientId, first: bool) -> Message {
    cluster.ask(&Message::Renew { client, label: 9, first, view: u64::MAX, owned: 0 })
}

#[test]
fn eviction_completes_after_every_copy_revoked_client() {
    let mut cluster = Cluster::new(2, &[4, 4, 4]);
    let config = cluster.allocate(1).expect("a block");
    assert_eq!(config.copies.iter().map(|copy| copy.node.0).collect::<Vec<_>>(), [1, 2]);
    joins(&mut cluster, VICTIM, true);
    let gone = Message::Gone { client: VICTIM };
    let changing = Message::refuse(Why::Changing);
    assert_eq!(cluster.ask(&gone), changing, "it lives");
    // One node does not answer.
    cluster.deaf = Some(NodeId(2));
    assert_eq!(cluster.ask(&EVICT), changing);
    assert_eq!(joins(&mut cluster, VICTIM, false), Message::refuse(Why::Evicted), "dead at once");
    // The node answers, but a process still has the memory mapped. On a node without a copy this
    // does not matter.
    (cluster.deaf, cluster.holding) = (None, Some(NodeId(2)));
    cluster.pass(STEP_NS);
    assert_eq!((cluster.ask(&EVICT), cluster.ask(&gone)), (changing.clone(), changing));
    cluster.holding = None;
    cluster.pass(STEP_NS);
    assert_eq!((cluster.ask(&EVICT), cluster.ask(&gone)), (Message::Done {}, Message::Done {}));
}

#[test]
fn eviction_does_not_wait_for_a_node_without_copies() {
    let mut cluster = Cluster::new(1, &[4, 4]);
    let block = cluster.allocate(1).expect("a block").block;
    assert_eq!(block.home, NodeId(1));
    joins(&mut cluster, VICTIM, true);
    cluster.deaf = Some(NodeId(2));
    let changing = Message::refuse(Why::Changing);
    assert_eq!(cluster.ask(&EVICT), changing, "it could be given a copy any moment");
    cluster.silent = Some(NodeId(2));
    for _ in 0..20 {
        cluster.pass(STEP_NS);
    }
    assert_eq!(cluster.ask(&EVICT), Message::Done {}, "no copy is there");
    // After its return, the node gets no copy before it knows that the client is dead.
    cluster.silent = None;
    cluster.nodes[0].0 = 1;
    cluster.pass(STEP_NS);
    cluster.pass(STEP_NS);
    assert!(cluster.allocate(2).is_err());
    cluster.deaf = None;
    cluster.pass(STEP_NS);
    cluster.pass(STEP_NS);
    assert_eq!(cluster.allocate(3).expect("room again").copies[0].node, NodeId(2));
}

#[test]
fn new_node_learns_deaths_before_it_gets_a_copy() {
    let mut cluster = Cluster::new(2, &[4]);
    joins(&mut cluster, VICTIM, true);
    assert_eq!(cluster.ask(&Message::Leave { client: VICTIM }), Message::Done {});
    cluster.pass(STEP_NS);
    assert_eq!(cluster.ask(&EVICT), Message::Done {});
    cluster.allocate(1).expect("one copy");
    cluster.nodes.push((4, 0));
    let there = |cluster: &Cluster| cluster.filled.iter().any(|(node, _)| *node == NodeId(2));
    while !there(&cluster) {
        let told = cluster.told.contains(&(NodeId(2), VICTIM));
        cluster.pass(STEP_NS);
        assert!(told || !there(&cluster), "a copy first");
    }
}

#[test]
fn claimant_gets_a_lease_after_nodes_reported_deaths() {
    let other = ClientId(3);
    let mut cluster = Cluster::starting(1, &[4]);
    cluster.fenced = vec![VICTIM];
    let lapsed = |cluster: &mut Cluster, client| {
        cluster.ask(&Message::Renew { client, label: 9, first: false, view: 0, owned: 0 })
    };
    for client in [VICTIM, other] {
        assert_eq!(lapsed(&mut cluster, client), Message::refuse(Why::Changing), "{client}");
    }
    cluster.wait_until_active();
    assert_eq!(lapsed(&mut cluster, VICTIM), Message::refuse(Why::Evicted));
    assert!(matches!(lapsed(&mut cluster, other), Message::Renewed { .. }));
    assert_eq!(lapsed(&mut cluster, ClientId(4)), Message::refuse(Why::Evicted), "too late");
}

#[test]
fn reported_client_needs_a_label_before_it_gets_a_block() {
    let mut cluster = Cluster::starting(1, &[4]);
    let other = ClientId(3);
    cluster.keyed = vec![other];
    cluster.silent = Some(NodeId(1));
    cluster.wait_until_active();
    cluster.silent = None;
    cluster.pass(STEP_NS);
    cluster.pass(STEP_NS);
    let allocate =
        Message::Allocate { client: other, request: 1, sharing: Sharing::Owner, copies: 0 };
    assert_eq!(cluster.ask(&allocate), Message::refuse(Why::Changing), "adopted by whom?");
    assert!(matches!(joins(&mut cluster, other, false), Message::Renewed { .. }));
    match cluster.ask(&allocate) {
        Message::Located { config } => assert_eq!(config.label, 9, "what it renews with"),
        refused => panic!("{refused:?}"),
    }
}

#[test]
fn claimant_with_keys_waits_for_reports_of_deaths() {
    let mut cluster = Cluster::starting(1, &[4, 4]);
    cluster.keyed = vec![VICTIM];
    cluster.silent = Some(NodeId(2));
    cluster.pass(STEP_NS);
    let renew = Message::Renew { client: VICTIM, label: 9, first: false, view: 0, owned: 0 };
    assert_eq!(cluster.ask(&renew), Message::refuse(Why::Changing));
    // The other node knows that the client is dead.
    cluster.fenced = vec![VICTIM];
    cluster.silent = None;
    cluster.wait_until_active();
    assert_eq!(cluster.ask(&renew), Message::refuse(Why::Evicted));
}

#[test]
fn client_reported_dead_late_is_gone_after_its_lease() {
    let mut cluster = Cluster::starting(1, &[4]);
    cluster.fenced = vec![VICTIM];
    cluster.silent = Some(NodeId(1));
    while !cluster.core.is_active() {
        assert!(matches!(joins(&mut cluster, VICTIM, false), Message::Renewed { .. }));
        cluster.pass(STEP_NS);
    }
    cluster.silent = None;
    cluster.pass(STEP_NS);
    cluster.pass(STEP_NS);
    assert_eq!(joins(&mut cluster, VICTIM, false), Message::refuse(Why::Evicted));
    let gone = Message::Gone { client: VICTIM };
    assert_eq!(cluster.ask(&gone), Message::refuse(Why::Changing), "it may serve until then");
    cluster.pass(Terms::default().lease.as_nanos() as u64 * 9 / 8);
    assert_eq!(cluster.ask(&gone), Message::Done {});
}

#[test]
fn dead_client_stays_dead_under_the_next_manager() {
    let mut cluster = Cluster::starting(1, &[4]);
    cluster.fenced = vec![VICTIM];
    assert!(matches!(joins(&mut cluster, VICTIM, false), Message::Renewed { .. }), "not known yet");
    assert!(matches!(cluster.ask(&EVICT), Message::Refuse { .. }), "it is gathering reports");
    cluster.wait_until_active();
    assert_eq!(joins(&mut cluster, VICTIM, false), Message::refuse(Why::Evicted));
    assert_eq!(cluster.ask(&EVICT), Message::Done {});
    let other = ClientId(77);
    assert_eq!(cluster.ask(&Message::Gone { client: other }), Message::refuse(Why::Changing));
    cluster.pass(STEP_NS);
    assert_eq!(cluster.ask(&Message::Gone { client: other }), Message::Done {}, "nobody knows it");
    assert_eq!(joins(&mut cluster, other, true), Message::refuse(Why::Evicted), "and stays so");
}
