//! A process that uses the cluster: its links, its stores, and the steps that it leaves out.
//!
//! Thread-safety: a process belongs to one [`SimThread`](crate::scenarios::thread::SimThread).
//! Failure: errors of the product pass through.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::runtime::{Runtime, wait_for};
use archipelago_base::simulation::Host;
use archipelago_fabric::Reach;
use archipelago_fabric::paced::{Card, CardSettings, Paced};
use archipelago_fabric::sim::Sim;
use archipelago_store::nodes::blobs::{BlobSabotage, BlobTiming, BlobsOptions, NodeBlobs};
use archipelago_store::nodes::client::NodeClient;
use archipelago_store::nodes::log::quorum::WriterSabotage;
use archipelago_store::nodes::logs::{LogWriting, NodeLogOptions, NodeLogs, StripedLogs};
use archipelago_store::nodes::registers::NodeRegister;
use archipelago_store::volume::VolumeOptions;
use archipelago_store::{Sabotage, StoreFs, Stores, Volume};

use super::manager::MANAGER;
use crate::scenarios::thread::{IdleThreads, ProcessClock, ProcessRuntime};

/// Time after which a log gives up a message to a node.
pub(crate) const LOG_PATIENCE: Duration = Duration::from_millis(400);
/// Name of the volume of a run.
pub(crate) const VOLUME: &str = "db";
/// Time for which a process waits for a manager.
const READY: Duration = Duration::from_secs(5);
/// Length of a lease that outlives every run.
pub(crate) const LEASE_LONG: Duration = Duration::from_secs(24 * 3600);
/// Length of a lease that ends within a run, unless its owner renews it.
pub(crate) const LEASE_SHORT: Duration = Duration::from_secs(2);

/// How the processes of a run use the cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientSettings {
    /// Whether new write-ahead logs are striped.
    pub(crate) log_writing: LogWriting,
    /// Length of the leases of owners.
    pub(crate) lease: Duration,
    /// Whether owners renew their leases.
    pub(crate) renews: bool,
    /// Whether an opener takes the volume from an owner whose lease lives.
    pub(crate) takes_over: bool,
    /// Whether a card orders what a process sends.
    pub(crate) has_card: bool,
    /// Times of readers and writers of blobs.
    pub(crate) timing: BlobTiming,
    /// Steps that writers of logs leave out.
    pub(crate) writer: WriterSabotage,
    /// Steps that readers and writers of blobs leave out.
    pub(crate) blobs: BlobSabotage,
    /// Steps that owners leave out.
    pub(crate) owner: Sabotage,
}

/// A process that uses the cluster.
#[derive(Debug)]
pub(crate) struct ClientProcess {
    runtime: ProcessRuntime,
    sim: Sim,
    settings: ClientSettings,
    stores: Option<Stores>,
}

/// The volume as its owner has it.
#[derive(Debug)]
pub(crate) struct OpenVolume {
    pub(crate) volume: Arc<Volume>,
    pub(crate) fs: Arc<StoreFs>,
}

impl ClientProcess {
    /// The process on the host of `sim`.
    pub(crate) fn new(sim: &Sim, settings: ClientSettings) -> Self {
        let runtime = ProcessRuntime(sim.host().clone());
        Self { runtime, sim: sim.clone(), settings, stores: None }
    }

    /// The host of the process.
    pub(crate) fn host(&self) -> &Host {
        &self.runtime.0
    }

    /// The stores of the process, which the first call opens. Errors: `Busy` without a manager.
    pub(crate) fn stores(&mut self) -> Result<Stores> {
        if let Some(stores) = &self.stores {
            return Ok(stores.clone());
        }
        let stores = self.open_stores()?;
        self.stores = Some(stores.clone());
        Ok(stores)
    }

    fn open_stores(&self) -> Result<Stores> {
        let runtime: Arc<dyn Runtime> = Arc::new(self.runtime.clone());
        let reach: Arc<dyn Reach> = Arc::new(self.sim.clone());
        let reach: Arc<dyn Reach> = match self.settings.has_card {
            true => Arc::new(Paced::new(reach, &Card::over(&CardSettings::default(), &runtime)?)),
            false => reach,
        };
        let client = NodeClient::new(reach, runtime, vec![MANAGER.to_owned()]);
        wait_for(&self.runtime, client.ready(READY))?;
        let blobs = BlobsOptions {
            timing: self.settings.timing,
            sabotage: self.settings.blobs,
            ..BlobsOptions::default()
        };
        let logs = NodeLogOptions {
            patience: LOG_PATIENCE,
            stall_max: Duration::from_secs(5),
            backlog_max: Duration::from_millis(300),
            recovery_max: Duration::from_secs(8),
            writer_sabotage: self.settings.writer,
            ..NodeLogOptions::default()
        };
        let logs = Arc::new(NodeLogs::new(&client, logs));
        Ok(Stores {
            blobs: Arc::new(NodeBlobs::new(&client, blobs)?),
            logs: Arc::new(StripedLogs::new(logs, self.settings.log_writing)),
            register: Arc::new(NodeRegister::new(&client)),
        })
    }

    fn options(&self) -> VolumeOptions {
        VolumeOptions {
            lease: self.settings.lease,
            take_over: self.settings.takes_over,
            clock: Arc::new(ProcessClock(self.runtime.clone())),
            spawn: Arc::new(IdleThreads),
            seed: Some(self.runtime.seed()),
            sabotage: self.settings.owner,
            ..VolumeOptions::new(self.host().name())
        }
    }

    /// Creates the volume.
    pub(crate) fn create_volume(&mut self) -> Result<()> {
        Volume::create(&self.stores()?, VOLUME, &self.options())
    }

    /// Becomes the owner of the volume, after the end of another owner's lease or before it.
    pub(crate) fn open_volume(&mut self) -> Result<OpenVolume> {
        let volume = Volume::open(&self.stores()?, VOLUME, &self.options())?;
        let fs = StoreFs::new(Arc::clone(&volume));
        Ok(OpenVolume { volume, fs })
    }
}
