//! Links to a memory node over a simulated network.

use archipelago_base::Epoch;
use archipelago_base::runtime::{Boxed, join_all, wait_for};
use archipelago_base::simulation::{Host, Simulation};
use archipelago_fabric::sim::{Model, Network, Transport};
use archipelago_fabric::{
    AtomicPath, Connect, Handler, Listener, Node, NodeId, Provider, Reply, Request, Rights,
    Session, Tcp,
};

use super::*;
use crate::wire::shard::NodeShare;

/// Answers requests, but never a `Drain`.
#[derive(Default)]
struct Busy(Mutex<Vec<Reply>>);

impl Handler for Busy {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        match ShardMessage::decode(request.body) {
            Ok(ShardMessage::Drain { .. }) => self.0.lock().push(reply),
            _ => {
                let done = ShardMessage::Done { shards: 0, share: NodeShare::default() };
                reply.send(done.encode());
            }
        }
    }
}

/// An owner and a memory node.
struct Linked {
    owner: Host,
    host: Host,
    network: Arc<Network>,
    node: Arc<Node>,
    runtime: Arc<dyn Runtime>,
    links: NodeLinks,
    _listener: Box<dyn Listener>,
    _simulation: Simulation,
}

impl Linked {
    /// The transport itself does not notice a cut.
    fn new() -> Self {
        let simulation = Simulation::new(1);
        let network = Network::new(&simulation);
        network.set_transport(Transport { tries: u32::MAX, ..Transport::default() });
        let (owner, host) = (simulation.host("owner"), simulation.host("memory"));
        let reach: Arc<dyn Reach> = Arc::new(network.join(&owner, Model::quick()));
        let provider = network.join(&host, Model::quick());
        let handler: Box<dyn Handler> = Box::new(Busy::default());
        let node = network.node(NodeId(1), Epoch(1), Some(handler)).expect("a node");
        let listener = provider.serve(&node, host.name()).expect("an endpoint");
        let endpoints = vec![host.name().to_owned()];
        let peer = MemoryNode { node: NodeId(1), life: Epoch(1), endpoints, is_up: true };
        let runtime: Arc<dyn Runtime> = Arc::new(owner.clone());
        let links = NodeLinks::new(&reach, &runtime, &peer, &OwnerTerms::default());
        let (_listener, _simulation) = (listener, simulation);
        Self { owner, host, network, node, runtime, links, _listener, _simulation }
    }

    fn link(&self, route: &Route) -> Arc<dyn Link> {
        wait_for(&self.owner, self.links.link(route)).expect("it is up")
    }
}

#[test]
fn regions_of_a_link_that_is_down_do_not_replace_those_of_the_next_one() {
    let node = Node::new(NodeId(1), Epoch(3), None).expect("a node");
    let provider = Tcp::new();
    let listener = provider.serve(&node, "127.0.0.1:0").expect("a port");
    let link = || {
        let to = Connect::to(listener.address(), &Session::fresh());
        let deadline = Duration::from_secs(30);
        provider.connect(Connect { deadline, ..to }).wait().expect("a link")
    };
    let memory = node.allocate(4096, AtomicPath::Processor).expect("memory");
    let key = memory.grant(Rights::READ).expect("a key");
    let (first, next) = (link(), link());
    let mut attached = AttachedRegions::default();
    assert!(attached.of(&first).is_some_and(|regions| regions.is_empty()));
    first.close();
    let region = next.attach(&key).wait().expect("the region");
    attached.of(&next).expect("it is up").insert(key, region);
    assert!(attached.of(&first).is_none(), "a task that still uses the first link");
    assert_eq!(attached.of(&next).expect("it is up").get(&key), Some(&region));
    next.close();
}

#[test]
fn range_of_another_process_lies_within_its_region() {
    let node = Node::new(NodeId(1), Epoch(3), None).expect("a node");
    let memory = node.allocate(4096, AtomicPath::Processor).expect("memory");
    let key = memory.grant(Rights::READ).expect("a key");
    assert_eq!(end_within(&key, 96, 4000), Ok(4096));
    assert_eq!(end_within(&key, 4096, 0), Ok(4096));
    for (at, len) in [(97, 4000), (0, u64::MAX), (u64::MAX, 1), (u64::MAX, u64::MAX)] {
        let outside = end_within(&key, at, len).expect_err("outside");
        assert!(matches!(outside, OneSidedFailure::Refused(_)), "{outside:?}");
    }
}

#[test]
fn only_a_refusal_that_stays_counts_against_a_node() {
    for reason in [Reason::Exhausted, Reason::Full, Reason::Deadline, Reason::NotAttached] {
        let failure = OneSidedFailure::from(Refusal::new(reason));
        assert!(matches!(failure, OneSidedFailure::NoAnswer(_)), "{failure:?}");
    }
    for reason in [Reason::Revoked, Reason::UnknownKey, Reason::OutOfRange] {
        let failure = OneSidedFailure::from(Refusal::new(reason));
        assert!(matches!(failure, OneSidedFailure::Refused(_)), "{failure:?}");
    }
}

#[test]
fn unanswered_read_or_write_leads_to_a_new_link() {
    let linked = Linked::new();
    let Linked { owner, links, .. } = &linked;
    let memory = linked.node.allocate(4096, AtomicPath::Processor).expect("memory");
    let key = memory.grant(Rights::READ.and(Rights::WRITE)).expect("a key");
    let (flow, image) = (Flow::default(), [7; 100]);
    let write = || {
        let (key, flow, image) = (&key, &flow, &image[..]);
        let (speed, is_wanted) = (|_| u64::MAX, |_| true);
        let order = WriteOrder { key, at: 0, image, flow, speed, is_wanted };
        wait_for(owner, links.write(order))
    };
    let read = || wait_for(owner, links.read(&key, 0, 100)).map(drop);
    let both: [&dyn Fn() -> Result<(), OneSidedFailure>; 2] = [&write, &read];
    for operate in both {
        operate().expect("the node is there");
        let link = linked.link(&links.images);
        linked.network.cut(owner, &linked.host);
        let failure = operate().expect_err("nobody answers");
        assert!(matches!(failure, OneSidedFailure::NoAnswer(_)), "{failure:?}");
        assert!(link.closed().is_some() && links.figures().is_unanswered);
        linked.network.heal_all();
    }
    write().expect("a new link");
}

#[test]
fn records_after_an_unanswered_batch_are_not_read() {
    let linked = Linked::new();
    let Linked { owner, runtime, links, .. } = &linked;
    let memory = linked.node.allocate(4096, AtomicPath::Processor).expect("memory");
    let key = memory.grant(Rights::READ).expect("a key");
    let read = |at: usize| RecordRead { key, at: 8 * at as u64, len: 8 };
    let reads: Vec<RecordRead> = (0..4 * DOORBELL).map(read).collect();
    let results = wait_for(owner, links.read_records(&reads));
    assert!(results.len() == reads.len() && results.iter().all(Result::is_ok), "{results:?}");
    linked.network.cut(owner, &linked.host);
    let begin_ns = runtime.now_ns();
    let results = wait_for(owner, links.read_records(&reads));
    let is_unanswered = |read: &Result<_, _>| matches!(read, Err(OneSidedFailure::NoAnswer(_)));
    assert!(results.len() == reads.len() && results.iter().all(is_unanswered), "{results:?}");
    let taken = Duration::from_nanos(runtime.now_ns() - begin_ns);
    assert!(taken < 2 * links.request, "one batch was waited for, in {taken:?}");
}

#[test]
fn unanswered_request_leads_to_a_new_link_unless_others_are_answered() {
    let linked = Linked::new();
    let Linked { owner, runtime, links, .. } = &linked;
    let (answered, unanswered) =
        (ShardMessage::Accounts {}, ShardMessage::Drain { is_draining: true });
    let ask = || wait_for(owner, links.ask(Way::Asks, &answered, 4096)).map(drop);
    ask().expect("an answer");
    let link = linked.link(&links.asks.route);
    let both = wait_for(owner, async {
        let slow: Boxed<'_, _> = Box::pin(links.ask(Way::Asks, &unanswered, 4096));
        let quick: Boxed<'_, _> = Box::pin(async {
            runtime.sleep(links.request / 2).await;
            links.ask(Way::Asks, &answered, 4096).await
        });
        join_all([slow, quick]).await
    });
    assert!(both[0].is_err() && both[1].is_ok(), "{both:?}");
    assert!(link.closed().is_none(), "the node is busy, and the link is up");
    linked.network.cut(owner, &linked.host);
    ask().expect_err("nobody answers");
    assert!(link.closed().is_some());
    linked.network.heal_all();
    ask().expect("a new link");
}
