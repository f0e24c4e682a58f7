//! A storage pool of own nodes: one client, and the drivers of blobs, logs and the register over
//! it.
//!
//! Invariants:
//! 1. The three drivers share the client, with its links, members and counters.
//! 2. A pool that was opened belongs to a cluster that is founded.
//!
//! Thread-safety: any thread may call any method.
//! Failure: `Busy` if no manager knows a founded cluster in time. `InvalidArgument` for a wrong
//! secret.
//! Cost: a round trip to a manager.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::budget::ByteBudget;
use archipelago_base::runtime::{Runtime, wait_for};
use archipelago_fabric::paced::{Card, CardSettings, CardStats, Paced};
use archipelago_fabric::{ClusterId, Reach};

use super::blobs::{BlobStats, BlobsOptions, NodeBlobs};
use super::client::{NodeClient, StatsSnapshot};
use super::layout::RedundancyMode;
use super::logs::{LogWriting, NodeLogOptions, NodeLogs, StripedLogs};
use super::registers::NodeRegister;
use crate::Stores;

/// Options of a pool of storage nodes.
#[derive(Clone, Debug)]
pub struct NodeStoresOptions {
    /// Classes of files that are coded. The default is by class.
    pub mode: RedundancyMode,
    /// Fewest copies of a blob or a log: 2 by default, and 1 for a trial on one node.
    pub copies_min: u8,
    /// Time for which the call that opens the pool waits for a manager and for the founding of the
    /// cluster. The default is 10 s.
    pub patience: Duration,
    /// Form in which new write-ahead logs are written. The default is serial.
    pub log_writing: LogWriting,
    /// Whether the recovery of a log gives up the nodes that do not answer, as an operator may
    /// decide. Off by default.
    pub accept_loss: bool,
    /// The card that orders the messages of this client: logs first, then the foreground, flushes,
    /// compactions and garbage collections, with a bounded number of background bytes in flight.
    /// `None` sends everything in the order of the calls. The default is a card without rates.
    pub card: Option<CardSettings>,
    /// Budget that is charged with the memory of writers. The default is none.
    pub budget: Option<Arc<ByteBudget>>,
}

impl Default for NodeStoresOptions {
    fn default() -> Self {
        Self {
            mode: RedundancyMode::default(),
            copies_min: 2,
            patience: Duration::from_secs(10),
            log_writing: LogWriting::default(),
            accept_loss: false,
            card: Some(CardSettings::default()),
            budget: None,
        }
    }
}

/// Counters of a process for its pool, since it opened the pool.
#[derive(Clone, Debug)]
pub struct NodeStoresReport {
    /// Calls by node, and events of the drivers beyond the usual calls.
    pub client: StatsSnapshot,
    /// Blobs that were written and read.
    pub blobs: BlobStats,
    /// Acknowledged bytes of logs that a replica lacks now.
    pub log_backlog_bytes: u64,
    /// Counters of the card; `None` if the options set no card.
    pub card: Option<CardStats>,
}

/// A pool of storage nodes: its client and its drivers.
#[derive(Debug)]
pub struct NodeStores {
    client: Arc<NodeClient>,
    blobs: Arc<NodeBlobs>,
    logs: Arc<NodeLogs>,
    log_writing: LogWriting,
    register: Arc<NodeRegister>,
    card: Option<Card>,
}

impl NodeStores {
    /// Opens the pool of the cluster whose managers are at `managers` (`tcp:HOST:PORT`), and
    /// returns its three parts. Errors: see [`NodeStores::connect`].
    pub fn open(
        reach: Arc<dyn Reach>,
        runtime: Arc<dyn Runtime>,
        managers: Vec<String>,
        options: NodeStoresOptions,
    ) -> Result<Stores> {
        Ok(Self::connect(reach, runtime, managers, options)?.stores())
    }

    /// Opens a pool. Errors: `Busy` if no manager knows a founded cluster within the patience;
    /// `InvalidArgument` if the card has wrong settings, or the cluster another secret.
    pub fn connect(
        reach: Arc<dyn Reach>,
        runtime: Arc<dyn Runtime>,
        managers: Vec<String>,
        options: NodeStoresOptions,
    ) -> Result<Self> {
        let card = options.card.map(|card| Card::over(&card, &runtime)).transpose()?;
        let reach: Arc<dyn Reach> = match &card {
            Some(card) => Arc::new(Paced::new(reach, card)),
            None => reach,
        };
        let client = NodeClient::new(reach, runtime, managers);
        wait_for(&**client.runtime(), client.ready(options.patience))?;
        let NodeStoresOptions { mode, copies_min, log_writing, accept_loss, budget, .. } = options;
        let mut blobs = BlobsOptions { mode, copies_min, ..BlobsOptions::default() };
        if let Some(budget) = &budget {
            blobs.budget = Arc::clone(budget);
        }
        let logs = NodeLogOptions { copies_min, accept_loss, budget, ..NodeLogOptions::default() };
        Ok(Self {
            blobs: Arc::new(NodeBlobs::new(&client, blobs)?),
            logs: Arc::new(NodeLogs::new(&client, logs)),
            log_writing,
            register: Arc::new(NodeRegister::new(&client)),
            client,
            card,
        })
    }

    /// The client of the pool, with its counters.
    #[must_use]
    pub fn client(&self) -> &Arc<NodeClient> {
        &self.client
    }

    /// Identity of the cluster, by which processes find out whether they use the same one. `None`
    /// if no manager has named it yet.
    #[must_use]
    pub fn cluster(&self) -> Option<ClusterId> {
        self.client.members().cluster
    }

    /// Counters of this process for the pool.
    #[must_use]
    pub fn report(&self) -> NodeStoresReport {
        NodeStoresReport {
            client: self.client.stats().snapshot(),
            blobs: self.blobs.stats(),
            log_backlog_bytes: self.logs.backlog_bytes(),
            card: self.card.as_ref().map(Card::stats),
        }
    }

    /// The three parts of the pool.
    #[must_use]
    pub fn stores(&self) -> Stores {
        Stores {
            blobs: Arc::clone(&self.blobs) as _,
            logs: Arc::new(StripedLogs::new(Arc::clone(&self.logs) as _, self.log_writing)),
            register: Arc::clone(&self.register) as _,
        }
    }
}
