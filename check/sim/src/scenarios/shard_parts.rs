//! Parts around the shard store and the shard host of the product: memory nodes that execute
//! requests when they arrive, a list of these nodes, a watcher, and an operator.
//!
//! Thread-safety: any thread may call any method. The operator runs the simulation, so tasks must
//! not call it.
//! Failure: an operator gets no answer from a node that is dead. The other parts do not fail.
//! Cost: one lock for each call; the operator connects for each message.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::runtime::wait_for;
use archipelago_base::simulation::{Host, Simulation};
use archipelago_engine::remote::{ShardId, StoreWatcher};
use archipelago_fabric::sim::{Model, Network, Sim};
use archipelago_fabric::{
    Call, Connect, Handler, Listener, Node, NodeId, Provider, Reply, Request,
};
use archipelago_offload::shard_host::ShardHost;
use archipelago_offload::shard_owner::{MemoryNode, NodeList};
use archipelago_offload::wire::shard::ShardMessage;
use parking_lot::{Mutex, MutexGuard};

/// Time after which a connection or a message of the operator counts as lost.
const REQUEST: Duration = Duration::from_secs(1);
/// Number of times that the operator sends a message at most.
const TRIES: usize = 20;
/// Largest answer to the operator, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Executes each request of a host when it arrives.
struct InlineHost(Arc<ShardHost>);

impl Handler for InlineHost {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        self.0.handle(&request, reply);
        while self.0.work() {}
    }
}

/// A shard host of a run, which is closed when it is dropped. A host and its fabric node hold each
/// other until the close, so without it the memory and the files of each run would stay.
pub(super) struct OpenHost(pub(super) Arc<ShardHost>);

impl Deref for OpenHost {
    type Target = ShardHost;

    fn deref(&self) -> &ShardHost {
        &self.0
    }
}

impl Drop for OpenHost {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A memory node in one of its lives, which executes each request when it arrives.
pub(super) struct NodeLife {
    pub(super) shards: OpenHost,
    /// The entry of the node in the pool's list.
    pub(super) member: MemoryNode,
    _node: Arc<Node>,
    /// `None` after the end of the life.
    listener: Option<Box<dyn Listener>>,
}

impl NodeLife {
    /// Begins the life `life` of a node on the machine of `there`, whose name is its address.
    pub(super) fn begin(there: &Sim, id: NodeId, life: Epoch, shards: Arc<ShardHost>) -> Self {
        let handler = Box::new(InlineHost(Arc::clone(&shards)));
        let node = there.network().node(id, life, Some(handler)).expect("a node");
        shards.open(&node);
        let address = there.host().name().to_owned();
        let listener = there.serve(&node, &address).expect("a host serves at its name");
        let member = MemoryNode { node: id, life, endpoints: vec![address], is_up: true };
        Self { shards: OpenHost(shards), member, _node: node, listener: Some(listener) }
    }

    /// Ends the life. The node answers no longer.
    pub(super) fn end(&mut self) {
        self.shards.close();
        self.listener = None;
    }

    /// Whether the life has not ended.
    pub(super) fn is_up(&self) -> bool {
        self.listener.is_some()
    }
}

/// The list of nodes that a pool would return. The scenario changes it.
#[derive(Debug, Default)]
pub(super) struct KnownNodes(Mutex<Vec<MemoryNode>>);

impl KnownNodes {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<MemoryNode>> {
        self.0.lock()
    }
}

impl NodeList for KnownNodes {
    fn nodes(&self) -> Option<Vec<MemoryNode>> {
        Some(self.0.lock().clone())
    }
}

/// Shards that a store has reported as lost.
#[derive(Default)]
pub(super) struct LostShards(Mutex<Vec<ShardId>>);

impl LostShards {
    /// The shards that were reported since the last call.
    pub(super) fn take(&self) -> Vec<ShardId> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl StoreWatcher for LostShards {
    fn lost(&self, shards: &[ShardId]) {
        self.0.lock().extend_from_slice(shards);
    }
    fn room_has_changed(&self) {}
}

/// An operator who sends messages to memory nodes.
pub(super) struct Operator {
    host: Host,
    provider: Sim,
    network: Arc<Network>,
}

impl Operator {
    pub(super) fn new(simulation: &Simulation, network: &Arc<Network>) -> Self {
        let host = simulation.host("operator");
        let provider = network.join(&host, Model::quick());
        Self { host, provider, network: Arc::clone(network) }
    }

    /// Sends a message to the node at an address, and repeats it until the node answers. `None` if
    /// it does not answer.
    pub(super) fn ask(&self, address: &str, message: &ShardMessage) -> Option<ShardMessage> {
        (0..TRIES).find_map(|_| wait_for(&self.host, self.ask_once(address, message)))
    }

    async fn ask_once(&self, address: &str, message: &ShardMessage) -> Option<ShardMessage> {
        let mut to = Connect::to(address, &self.network.session());
        to.deadline = REQUEST;
        let link = self.provider.connect(to).await.ok()?;
        let body = message.encode();
        let call = Call::new(&body, REQUEST).idempotent().answer_bytes_max(ANSWER_BYTES_MAX);
        let answer = link.request(call).await.ok()?;
        ShardMessage::decode(&answer).ok()
    }
}
