//! Lives of a compute node: a process joins the cluster, and joins again if the cluster declared it
//! dead.
//!
//! A node that the cluster declared dead, because its process was stopped or cut off, cannot
//! continue. A thread notices that, ends this **life**, and begins another life under another id.
//! The node of the process owns one [`Lives`], and its thread runs [`Lives::keep`].
//!
//! Invariants:
//! 1. At most one life exists at a time.
//! 2. The listeners of a life are closed before those of the next one open.
//!
//! Thread-safety: any thread may call any method. One thread at most runs [`Lives::keep`].
//! Failure: the first life fails if it cannot join the cluster. If the cluster admitted the node
//! and then declared it dead, the first life is tried again for half a minute. A later life is
//! tried again without a limit.
//! Cost: an access to the present life takes a read lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use archipelago_base::clock::Clock;
use archipelago_base::runtime::ThreadRuntime;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_fabric::{Endpoints, Handler, Listener, Node, Reply, Request, Secret, block_on};
use archipelago_flexkv::{ComputeNode, FlexKvSettings, Surroundings, fabric_id};
use archipelago_pool::{PoolClient, PoolOptions};
use parking_lot::RwLock;

/// Time between two checks whether the cluster declared the node dead.
const LOOK: Duration = Duration::from_millis(20);
/// Pause between two tries to begin a life.
const AGAIN: Duration = Duration::from_millis(100);
/// Time after which a start fails if the cluster has no memory.
const MEMORY: Duration = Duration::from_secs(10);
/// Time within which the first life must begin once a manager has answered.
const FIRST_LIFE: Duration = Duration::from_secs(30);

/// The reason why a life did not begin.
enum Failed {
    /// No manager answers, the cluster has no memory, or the settings do not fit it.
    ForGood(Error),
    /// The cluster admitted the node, and a later step failed. Another life may succeed.
    WhileJoined(Error),
}

impl Failed {
    fn into_error(self) -> Error {
        match self {
            Self::ForGood(error) | Self::WhileJoined(error) => error,
        }
    }
}

/// Settings of a compute node of FlexKV.
#[derive(Clone, Debug)]
pub struct FlexKvNodeSettings {
    /// Endpoints of all managers: `tcp:HOST:PORT`.
    pub manager: Vec<String>,
    /// Endpoints at which the node listens for other compute nodes: `tcp:HOST:PORT` or `shm:PATH`.
    pub listen: Vec<String>,
    /// Endpoints that other nodes use instead of those in `listen` at the same index.
    pub advertise: Vec<String>,
    /// The cluster's secret. Without one the node listens on loopback addresses only.
    pub secret: Option<Secret>,
    /// Settings of the store.
    pub store: FlexKvSettings,
}

/// The handler of a life's fabric node, which exists before the compute node does.
#[derive(Default)]
struct LateHandler(Arc<OnceLock<Box<dyn Handler>>>);

impl Handler for LateHandler {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        if let Some(handler) = self.0.get() {
            handler.handle(request, reply);
        }
    }
}

/// One life of the node.
struct Life {
    compute: ComputeNode,
    pool: PoolClient,
    addresses: Vec<String>,
    /// The listeners, which are dropped before the fabric's node.
    listeners: Vec<Box<dyn Listener>>,
    _fabric: Arc<Node>,
}

/// The lives of a compute node, of which at most one exists at a time.
pub(crate) struct Lives {
    settings: FlexKvNodeSettings,
    endpoints: Arc<Endpoints>,
    runtime: Arc<ThreadRuntime>,
    clock: Arc<dyn Clock>,
    life: RwLock<Option<Life>>,
    stop: AtomicBool,
}

impl Life {
    /// Leaves the cluster. Running calls end as closed.
    fn end(self) {
        block_on(self.pool.leave());
    }
}

impl Lives {
    /// Begins the first life. Errors: those of a start of the node.
    pub(crate) fn start(settings: FlexKvNodeSettings, clock: Arc<dyn Clock>) -> Result<Self> {
        let endpoints = Arc::new(Endpoints::new().with_secret(settings.secret.clone()));
        let lives = Self {
            settings,
            endpoints,
            runtime: ThreadRuntime::shared()?,
            clock,
            life: RwLock::new(None),
            stop: AtomicBool::new(false),
        };
        lives.begin_first()?;
        Ok(lives)
    }

    /// Passes the compute node of the present life to `read`; `None` while no life exists. The life
    /// does not end meanwhile.
    #[inline]
    pub(crate) fn present<T>(&self, read: impl FnOnce(&ComputeNode) -> T) -> Option<T> {
        self.life.read().as_ref().map(|life| read(&life.compute))
    }

    /// Endpoints of the present life, as other nodes know them.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.life.read().as_ref().map_or_else(Vec::new, |life| life.addresses.clone())
    }

    /// Makes [`Lives::keep`] return soon.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Ends the present life.
    pub(crate) fn end(&self) {
        let life = self.life.write().take();
        if let Some(life) = life {
            life.end();
        }
    }

    /// Begins another life whenever the cluster has declared the present one dead, until
    /// [`Lives::stop`].
    pub(crate) fn keep(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            self.clock.sleep(LOOK);
            let over = self.life.read().as_ref().is_none_or(|life| life.compute.is_over());
            if !over {
                continue;
            }
            let gone = self.life.write().take();
            if let Some(life) = gone {
                tracing::warn!(client = %life.compute.client(), "the cluster declared this node dead");
                // The next life needs the listeners.
                drop(life);
            }
            if let Err(failed) = self.begin() {
                let error = failed.into_error();
                tracing::warn!(%error, "the node could not join again");
                self.clock.sleep(AGAIN);
            }
        }
    }

    /// Begins the first life. If a manager answers, is stopped for longer than a lease, and then
    /// declares this node dead, the node joins again.
    fn begin_first(&self) -> Result<()> {
        let until_ns = self.clock.now_ns() + FIRST_LIFE.as_nanos() as u64;
        loop {
            match self.begin() {
                Err(Failed::WhileJoined(error)) if self.clock.now_ns() < until_ns => {
                    tracing::warn!(%error, "the node could not join again");
                    self.clock.sleep(AGAIN);
                }
                other => return other.map_err(Failed::into_error),
            }
        }
    }

    fn begin(&self) -> Result<(), Failed> {
        let life = self.live()?;
        *self.life.write() = Some(life);
        Ok(())
    }

    fn live(&self) -> Result<Life, Failed> {
        let options = PoolOptions {
            manager: self.settings.manager.clone(),
            ..PoolOptions::new(String::new(), self.settings.store.label)
        };
        let (endpoints, runtime) = (Arc::clone(&self.endpoints), Arc::clone(&self.runtime));
        let pool =
            block_on(PoolClient::join(options, endpoints, runtime)).map_err(Failed::ForGood)?;
        let until_ns = self.clock.now_ns() + MEMORY.as_nanos() as u64;
        while pool.block_bytes() == 0 {
            if pool.is_evicted() {
                return Err(Failed::WhileJoined(Error::busy(
                    "the cluster declared this node dead before it knew of any memory",
                )));
            }
            if self.clock.now_ns() > until_ns || self.stop.load(Ordering::SeqCst) {
                let what = Error::busy("no memory node has registered with the manager");
                return Err(Failed::ForGood(what));
            }
            self.clock.sleep(LOOK);
        }
        self.take_part(pool).map_err(|error| match error.kind() {
            ErrorKind::Busy | ErrorKind::Fenced | ErrorKind::Closed => Failed::WhileJoined(error),
            _ => Failed::ForGood(error),
        })
    }

    /// Makes this process, which is a member of the pool, a node of the store.
    fn take_part(&self, pool: PoolClient) -> Result<Life> {
        let (endpoints, runtime) = (Arc::clone(&self.endpoints), Arc::clone(&self.runtime));
        let (id, epoch) = fabric_id(pool.client());
        let late = Arc::new(OnceLock::new());
        let fabric = Node::new(id, epoch, Some(Box::new(LateHandler(Arc::clone(&late)))))?;
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for (at, listen) in self.settings.listen.iter().enumerate() {
            let listener = endpoints.serve(&fabric, listen)?;
            let kind = listen.split(':').next().unwrap_or_default();
            let address = format!("{kind}:{}", listener.address());
            addresses.push(self.settings.advertise.get(at).cloned().unwrap_or(address));
            listeners.push(listener);
        }
        let around = Surroundings {
            runtime,
            reach: endpoints,
            pool: pool.clone(),
            coordinator: self.settings.manager.clone(),
            endpoints: addresses.clone(),
        };
        let (compute, handler) = ComputeNode::new(self.settings.store.clone(), around)?;
        compute.lend_counters(&fabric);
        // The cell is empty, because it was made above.
        let _set = late.set(handler);
        let life = Life { compute, pool, addresses, listeners, _fabric: fabric };
        match block_on(life.compute.join()) {
            Ok(()) => {
                tracing::info!(listeners = life.listeners.len(), client = %life.compute.client(), "joined");
                Ok(life)
            }
            Err(error) => {
                life.end();
                Err(error)
            }
        }
    }
}
