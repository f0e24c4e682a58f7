//! Memory nodes with shard hosts in this process, over TCP and shared memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::clock::SystemClock;
use archipelago_base::runtime::ThreadRuntime;
use archipelago_base::spawn::SystemSpawn;
use archipelago_fabric::{Endpoints, Handler, Listener, Node, NodeId, Reply, Request};
use archipelago_offload::shard_host::{HostThreads, NodeBytes, ShardHost, ShardLimits};
use archipelago_offload::shard_owner::{
    MemoryNode, NodeList, OwnerParts, OwnerTerms, RemoteShards, Waits,
};
use parking_lot::Mutex;

const MIB: u64 = 1 << 20;

struct ToHost(Arc<ShardHost>);

impl Handler for ToHost {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        self.0.handle(&request, reply);
    }
}

/// A memory node in one of its lives.
pub(crate) struct Memory {
    pub(crate) number: u64,
    pub(crate) life: u64,
    pub(crate) host: Arc<ShardHost>,
    kind: &'static str,
    listener: Option<Box<dyn Listener>>,
}

/// Where the nodes of a world listen.
#[derive(Clone, Debug)]
pub(crate) enum Listening {
    Tcp,
    Shm(PathBuf),
}

impl Listening {
    fn endpoint(&self, number: u64, life: u64) -> String {
        match self {
            Self::Tcp => "tcp:127.0.0.1:0".to_owned(),
            Self::Shm(dir) => format!("shm:{}", dir.join(format!("{number}-{life}")).display()),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Shm(_) => "shm",
        }
    }
}

impl Memory {
    pub(crate) fn start(listening: &Listening, number: u64, life: u64) -> Self {
        let clock = SystemClock::shared();
        let threads = HostThreads::Own(Arc::new(SystemSpawn), 2);
        let limits = ShardLimits { arena_bytes: MIB, ..ShardLimits::new(8 * MIB) };
        let host = ShardHost::new(limits, NodeBytes::new(8 * MIB), clock, threads);
        let handler = Box::new(ToHost(Arc::clone(&host)));
        let node = Node::new(NodeId(number), Epoch(life), Some(handler)).unwrap();
        host.open(&node);
        let endpoint = listening.endpoint(number, life);
        let listener = Endpoints::new().serve(&node, &endpoint).unwrap();
        Self { number, life, host, kind: listening.kind(), listener: Some(listener) }
    }

    pub(crate) fn end(&mut self) {
        self.listener = None;
        self.host.close();
    }

    pub(crate) fn member(&self) -> MemoryNode {
        let endpoint = |at: &dyn Listener| format!("{}:{}", self.kind, at.address());
        let endpoint = self.listener.as_deref().map(endpoint);
        MemoryNode {
            node: NodeId(self.number),
            life: Epoch(self.life),
            endpoints: endpoint.into_iter().collect(),
            is_up: self.listener.is_some(),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Debug, Default)]
pub(crate) struct Listed(pub(crate) Mutex<Vec<MemoryNode>>);

impl NodeList for Listed {
    fn nodes(&self) -> Option<Vec<MemoryNode>> {
        Some(self.0.lock().clone())
    }
}

/// The shard store of a database over the nodes of a list. Nodes of a busy machine may be late,
/// which costs a rebuild and no answer.
pub(crate) fn shard_store(listed: &Arc<Listed>) -> Arc<RemoteShards> {
    shard_store_that(listed, false)
}

/// The same store. If `leaves_shards` is set, its close leaves the shards at their nodes.
pub(crate) fn shard_store_that(listed: &Arc<Listed>, leaves_shards: bool) -> Arc<RemoteShards> {
    let terms = OwnerTerms {
        beat: Duration::from_millis(50),
        silence: Duration::from_millis(500),
        // A close waits for every node that is not lost, also on a busy machine.
        farewell: Duration::from_secs(60),
        landing_bytes: MIB,
        leaves_shards,
        ..OwnerTerms::default()
    };
    RemoteShards::new(OwnerParts {
        nodes: Arc::clone(listed) as _,
        reach: Arc::new(Endpoints::new()),
        runtime: ThreadRuntime::shared().unwrap(),
        waits: Waits::Receiving,
        terms,
    })
}
