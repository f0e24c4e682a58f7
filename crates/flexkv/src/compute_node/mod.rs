//! A compute node: clients work through it, it serves partitions of the index, and it follows the
//! coordinator.
//!
//! [`ComputeNode`] owns the parts of a node. Each part holds those that stand before it here, and
//! no part reaches into the fields of another:
//!
//! | part | holds | task |
//! | --- | --- | --- |
//! | `node/` | none | settings, pool, records, cache, other nodes, the map |
//! | `proxy/` | node | the partitions that this node serves |
//! | `client/`, `scan/` | node, proxy | reads and writes of this node's clients |
//! | `membership.rs` | node, proxy | joins, and changes the map as the coordinator says |
//! | `sweep.rs`, `expiry.rs` | the parts above | find lost and expired records |
//!
//! The request handler (`request_handler.rs`) gives a request of another node to the part that
//! answers it. `operations.rs` has what callers see.
//!
//! Thread-safety: any thread may call any method. No lock is held over an await.
//! Failure: a node that lost its lease in the pool serves nothing any more, and its calls end as
//! fenced. Start another node then.
//! Cost: the map takes some 40 bytes per partition. A partition that this node is the proxy of
//! takes its slots as well.

mod operations;
mod request_handler;

use std::fmt;
use std::sync::Arc;

use archipelago_base::runtime::Runtime;
use archipelago_base::{Epoch, Result};
use archipelago_fabric::{ClientId, Handler, Node as FabricNode, NodeId, Reach};
use archipelago_pool::{Address, PoolClient};

use crate::client::{Client, Notifier};
use crate::expiry::Expirer;
use crate::membership::{MapStatus, Membership};
use crate::node::{Around, CacheStatus, Hooks, Node, fabric_id};
use crate::proxy::Proxy;
use crate::scan::Scanner;
use crate::settings::FlexKvSettings;
use crate::sweep::Sweeper;
use crate::wire::Figure;

use request_handler::RequestHandler;

/// The parts of a compute node.
struct Parts {
    node: Arc<Node>,
    proxy: Arc<Proxy>,
    notifier: Arc<Notifier>,
    client: Arc<Client>,
    scanner: Scanner,
    membership: Arc<Membership>,
    sweeper: Arc<Sweeper>,
    expirer: Arc<Expirer>,
}

/// A compute node of a store. See the head of the module.
#[derive(Clone)]
pub struct ComputeNode(Arc<Parts>);

impl fmt::Debug for ComputeNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ComputeNode({})", self.0.node.client())
    }
}

/// Connections of a node: its addresses, and the nodes that it reaches.
#[derive(Debug)]
pub struct Surroundings {
    /// Time and tasks.
    pub runtime: Arc<dyn Runtime>,
    /// Ways to other nodes.
    pub reach: Arc<dyn Reach>,
    /// This node as a client of the pool, with the store's label.
    pub pool: PoolClient,
    /// Endpoints of the coordinator.
    pub coordinator: Vec<String>,
    /// Endpoints of this node.
    pub endpoints: Vec<String>,
}

/// Partitions that a node serves, and its cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// Number of partitions that the node serves or looks after.
    pub served: usize,
    /// Number of these partitions that the node is the proxy of.
    pub offloaded: usize,
    /// State of the node's cache and of its memory limit.
    pub cache: CacheStatus,
}

impl ComputeNode {
    /// Makes a node that has not joined yet, and the handler for the fabric's node that it is
    /// reached by. Busy if the pool has no memory node.
    pub fn new(settings: FlexKvSettings, around: Surroundings) -> Result<(Self, Box<dyn Handler>)> {
        Self::with_hooks(settings, around, Hooks::default())
    }

    /// Makes a node as [`ComputeNode::new`] does, without the steps of the protocol that `sabotage`
    /// leaves out.
    #[cfg(feature = "sabotage")]
    pub fn sabotaged(
        settings: FlexKvSettings,
        around: Surroundings,
        sabotage: crate::Sabotage,
    ) -> Result<(Self, Box<dyn Handler>)> {
        Self::with_hooks(settings, around, Hooks { sabotage, ..Hooks::default() })
    }

    /// Makes a node as [`ComputeNode::new`] does, with another protocol for the index.
    #[cfg(feature = "index-protocol")]
    pub fn with_protocol(
        settings: FlexKvSettings,
        around: Surroundings,
        protocol: Arc<dyn crate::IndexProtocol>,
    ) -> Result<(Self, Box<dyn Handler>)> {
        Self::with_hooks(settings, around, Hooks { protocol, ..Hooks::default() })
    }

    fn with_hooks(
        settings: FlexKvSettings,
        around: Surroundings,
        hooks: Hooks,
    ) -> Result<(Self, Box<dyn Handler>)> {
        settings.validate()?;
        let Surroundings { runtime, reach, pool, coordinator, endpoints } = around;
        let around = Around { runtime, reach, pool, coordinator };
        let node = Arc::new(Node::new(settings, around, hooks)?);
        let proxy = Arc::new(Proxy::new(Arc::clone(&node)));
        let of_both = || (Arc::clone(&node), Arc::clone(&proxy));
        let ((a, b), (c, d), (e, f)) = (of_both(), of_both(), of_both());
        let notifier = Arc::new(Notifier::new(a, b));
        let client = Arc::new(Client::new(c, d, Arc::clone(&notifier)));
        let membership = Arc::new(Membership::new(e, f, endpoints));
        let parts = Arc::new(Parts {
            scanner: Scanner::new(Arc::clone(&node), Arc::clone(&proxy)),
            sweeper: Arc::new(Sweeper::new(
                Arc::clone(&node),
                Arc::clone(&proxy),
                Arc::clone(&membership),
            )),
            expirer: Arc::new(Expirer::new(Arc::clone(&node), Arc::clone(&client))),
            node,
            proxy,
            notifier,
            client,
            membership,
        });
        let handler = Box::new(RequestHandler::new(Arc::downgrade(&parts)));
        Ok((Self(parts), handler))
    }

    /// Sets the fabric's node that this node is reached by. The node lends its load counters from
    /// there, and the coordinator reads them. Call it before [`join`](Self::join); the coordinator
    /// takes a node without it for a node without load.
    pub fn lend_counters(&self, node: &Arc<FabricNode>) {
        self.0.membership.lend_counters(node);
    }

    /// Joins the store, and makes the store if this is its first node. Call it when the handler can
    /// be reached. The first success starts the node's background tasks.
    pub async fn join(&self) -> Result<()> {
        self.0.membership.keep_announcing();
        if self.0.membership.join().await? {
            self.0.node.keep_releasing();
            self.0.notifier.keep_notifying();
            self.0.sweeper.keep_sweeping();
            self.0.expirer.keep_expiring();
        }
        Ok(())
    }

    /// The client of the pool that this node works as.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.0.node.client()
    }

    /// The name in the fabric under which this node must be served. So no other node takes a later
    /// node at the same address for this one.
    #[must_use]
    pub fn fabric_id(&self) -> (NodeId, Epoch) {
        fabric_id(self.client())
    }

    /// Whether the pool declared this node dead. Its calls then end as fenced. Start another node.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.node.pool().is_evicted()
    }

    /// Counters of the node since its start, by name.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        self.0.node.figures()
    }

    /// Whether requests wait at the moment, because the map changes or the node has not joined. A
    /// caller that must not wait asks this first.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.0.node.joined().map_or(true, |joined| joined.gates().any_closed())
    }

    /// The pieces of this node's blocks that are in use, with their bytes. For checks.
    #[must_use]
    pub fn pieces(&self) -> Vec<(Address, u64)> {
        self.0.node.records().in_use()
    }

    /// The map as this node has it. `None` before the node has joined.
    #[must_use]
    pub fn map_status(&self) -> Option<MapStatus> {
        self.0.membership.map_status()
    }

    /// Partitions that this node serves, and its cache.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        let (served, offloaded) = self.0.proxy.counts();
        NodeStatus { served, offloaded, cache: self.0.node.caching().status() }
    }
}
