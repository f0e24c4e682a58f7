//! A storage node as a process runs it: a fabric node, its listeners, I/O threads and beats.
//!
//! [`StorageServer`] owns all of it.
//!
//! | module | purpose |
//! | --- | --- |
//! | `serving` | the way of a request through the lanes and the node |
//! | `lane` | a bounded queue with order per object |
//! | `pins` | the device on whose lanes the requests of an object are |
//! | `syncs` | answers that share a sync |
//!
//! Invariants:
//! 1. Every life of the process has a larger number than the previous life, because the number
//!    comes from the wall clock.
//! 2. The listeners end before the threads, and the threads before the node is closed.
//!
//! Thread-safety: any thread may call any method.
//! Failure: an error of `start` names the cause, and nothing keeps running.
//! Cost: eleven threads, fourteen more per device, and one per manager.

mod lane;
mod pins;
mod serving;
mod syncs;

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::clock::SystemClock;
use archipelago_base::runtime::ThreadRuntime;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn, lower_priority};
use archipelago_base::stop_signal::StopSignal;
use archipelago_base::{Epoch, Error, Result};
use archipelago_env::FileSystem;
use archipelago_env::local::LocalFs;
use archipelago_fabric::{Endpoints, Listener, Node, NodeId, NodeStats, Reach, Secret};
use archipelago_store::nodes::StorageId;
use archipelago_store::nodes::client::NodeClient;
use archipelago_store::nodes::repairs::{RepairExecutor, RepairHost};
use archipelago_store::nodes::wire::StorageReport;

use self::serving::{RequestHandler, Serving};
use crate::beats::{BeatThreads, Beats, NodeAddress};
use crate::node::StorageNode;
use crate::parts::NodeOptions;

/// Settings of a storage node's process.
#[derive(Clone, Debug)]
pub struct StorageSettings {
    /// The node's number in the fabric, at least 1, which stays the same over restarts.
    pub id: NodeId,
    /// Directories for the node's data, one per disk. The first one also has the metadata.
    pub devices: Vec<PathBuf>,
    /// Endpoints at which the node listens: `tcp:HOST:PORT` or `shm:PATH`.
    pub listen: Vec<String>,
    /// Endpoints that other members use instead of those in `listen` at the same index.
    pub advertise: Vec<String>,
    /// Endpoints of all managers.
    pub managers: Vec<String>,
    /// Set of nodes that fail together with this one.
    pub domain: String,
    /// The cluster's secret. Without one the node listens on loopback addresses only. Default:
    /// none.
    pub secret: Option<Secret>,
    /// Options of the node. Its life and its domain are set by the server.
    pub node: NodeOptions,
}

impl StorageSettings {
    /// An error that names the first setting that is not valid.
    pub fn validate(&self) -> Result<()> {
        if self.id.0 == 0 {
            return Err(Error::invalid("node id 0: a storage node's number is at least 1"));
        }
        if self.devices.is_empty() {
            return Err(Error::invalid("a storage node needs a directory: name at least one"));
        }
        if self.listen.is_empty() {
            return Err(Error::invalid("a storage node needs an address at which it listens"));
        }
        if self.domain.is_empty() {
            return Err(Error::invalid("the domain of a storage node is empty: name its rack"));
        }
        Ok(())
    }
}

/// Figures of a storage node at one moment.
#[derive(Clone, Debug)]
pub struct StorageFigures {
    /// The report of the node.
    pub report: StorageReport,
    /// Counters of the fabric's node; `None` after the server has ended.
    pub fabric: Option<NodeStats>,
}

/// Handle with which any thread can take the figures of a storage node.
#[derive(Clone)]
pub struct StorageMonitor {
    node: Arc<StorageNode>,
    fabric: Weak<Node>,
}

impl std::fmt::Debug for StorageMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StorageMonitor({})", self.node.storage())
    }
}

impl StorageMonitor {
    /// The figures of the node. Cost: one question to the file system per device, and one pass over
    /// chunks and extents.
    #[must_use]
    pub fn figures(&self) -> StorageFigures {
        StorageFigures {
            report: self.node.report(),
            fabric: self.fabric.upgrade().map(|fabric| fabric.stats()),
        }
    }
}

/// A running storage node. Drop closes it as [`StorageServer::close`] does, and logs errors.
pub struct StorageServer {
    settings: StorageSettings,
    node: Arc<StorageNode>,
    fabric: Arc<Node>,
    serving: Arc<Serving>,
    addresses: Vec<String>,
    listeners: Vec<Box<dyn Listener>>,
    beats: Option<BeatThreads>,
    threads: Vec<Joiner>,
    stopping: Arc<StopSignal>,
    is_closed: bool,
}

/// Pause between two checks of the free room of a device.
const ROOM_PAUSE: Duration = Duration::from_secs(1);

impl std::fmt::Debug for StorageServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StorageServer({})", self.node.storage())
    }
}

impl StorageServer {
    /// Opens the node on local directories and starts to serve. Errors: those of
    /// [`StorageNode::open`], a setting that is not valid, and an address that cannot be used.
    pub fn start(settings: StorageSettings) -> Result<Self> {
        // A node has many open extents, and rings would cost memory and a thread for each.
        Self::start_on(Arc::new(LocalFs::new().with_plain_logs()), settings)
    }

    /// Starts as [`StorageServer::start`] does, on another file system, such as emulated devices.
    pub fn start_on(fs: Arc<dyn FileSystem>, settings: StorageSettings) -> Result<Self> {
        settings.validate()?;
        let life = Epoch(SystemClock::shared().unix_ms());
        let domain = settings.domain.clone();
        let options = NodeOptions { life, domain, ..settings.node };
        let node = StorageNode::open(fs, &settings.devices, options)?;
        let serving = Serving::new(Arc::clone(&node));
        let handler = Box::new(RequestHandler(Arc::clone(&serving)));
        let fabric = Node::new(settings.id, life, Some(handler))?;
        let mut server = Self {
            settings,
            node,
            fabric,
            serving,
            addresses: Vec::new(),
            listeners: Vec::new(),
            beats: None,
            threads: Vec::new(),
            stopping: Arc::default(),
            is_closed: false,
        };
        // From here on the drop of the server ends the threads and listeners that have begun.
        server.start_threads()?;
        server.listen(life)?;
        Ok(server)
    }

    fn start_threads(&mut self) -> Result<()> {
        self.serving.start(&SystemSpawn, &mut self.threads)?;
        let (node, signal) = (Arc::clone(&self.node), Arc::clone(&self.stopping));
        let scrub = Box::new(move || {
            lower_priority();
            let clock = SystemClock::shared();
            signal.repeat(|| node.scrub_step(clock.unix_ms()));
        });
        self.threads.push(SystemSpawn.spawn("storage-scrub", scrub)?);
        for place in 0..self.node.devices().present().len() {
            self.node.look_at_device(place);
            let (node, signal) = (Arc::clone(&self.node), Arc::clone(&self.stopping));
            let look = Box::new(move || {
                signal.repeat(|| {
                    node.look_at_device(place);
                    ROOM_PAUSE
                });
            });
            self.threads.push(SystemSpawn.spawn("storage-room", look)?);
        }
        Ok(())
    }

    fn listen(&mut self, life: Epoch) -> Result<()> {
        let settings = &self.settings;
        let endpoints = Arc::new(Endpoints::new().with_secret(settings.secret.clone()));
        for (place, listen) in settings.listen.iter().enumerate() {
            let listener = endpoints.serve(&self.fabric, listen)?;
            let kind = listen.split(':').next().unwrap_or_default();
            let bound = format!("{kind}:{}", listener.address());
            self.addresses.push(settings.advertise.get(place).cloned().unwrap_or(bound));
            self.listeners.push(listener);
        }
        let address = NodeAddress {
            node: settings.id,
            life,
            endpoints: self.addresses.clone(),
            domain: settings.domain.clone(),
        };
        let reach: Arc<dyn Reach> = endpoints.clone();
        let client = NodeClient::new(reach, ThreadRuntime::shared()?, settings.managers.clone());
        let host: Arc<dyn RepairHost> = self.node.clone();
        self.serving.repair_with(RepairExecutor::new(client, host, self.node.storage())?);
        let beats = Arc::new(Beats::new(Arc::clone(&self.node), address)?);
        self.beats = Some(BeatThreads::start(&beats, &settings.managers, &endpoints)?);
        Ok(())
    }

    /// Identity of the node, which its directories keep.
    #[must_use]
    pub fn storage(&self) -> StorageId {
        self.node.storage()
    }

    /// Endpoints of the node, as other members know them.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// A handle that takes figures of the node.
    #[must_use]
    pub fn monitor(&self) -> StorageMonitor {
        let fabric = Arc::downgrade(&self.fabric);
        StorageMonitor { node: Arc::clone(&self.node), fabric }
    }

    /// Ends the node: no request is answered any more, and open extents are synced. Errors: those
    /// of the syncs.
    pub fn close(mut self) -> Result<()> {
        self.shut_down()
    }

    fn shut_down(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_closed, true) {
            return Ok(());
        }
        self.beats = None;
        self.listeners.clear();
        self.serving.close();
        self.stopping.stop();
        for thread in self.threads.drain(..) {
            if let Err(error) = thread.join() {
                tracing::error!(%error, "a thread of the storage node panicked");
            }
        }
        self.node.close()
    }
}

impl Drop for StorageServer {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            tracing::error!(%error, "the storage node was not closed; its next start recovers it");
        }
    }
}

#[cfg(test)]
mod tests;
