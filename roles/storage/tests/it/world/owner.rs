//! The owner of a volume on the nodes of the world.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::clock::{ManualClock, SystemClock};
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_store::StoreFs;
use archipelago_store::nodes::stores::NodeStoresOptions;
use archipelago_store::volume::{Volume, VolumeOptions};

use super::{ClientProcess, World};

/// Name of the volume of all tests.
pub(crate) const VOLUME: &str = "db";
/// Length of a lease that outlives every test.
const LEASE: Duration = Duration::from_secs(24 * 3600);

/// Starts threads that do nothing, so that no lease is renewed and the test alone runs the
/// simulation.
#[derive(Debug)]
struct IdleThreads;

impl Spawn for IdleThreads {
    fn spawn(&self, name: &str, _body: Box<dyn FnOnce() + Send>) -> Result<Joiner> {
        SystemSpawn.spawn(name, Box::new(|| {}))
    }
}

/// Options of an owner that takes the volume over, with a clock that the test does not wait for.
pub(crate) fn options(world: &World) -> VolumeOptions {
    VolumeOptions {
        lease: LEASE,
        take_over: true,
        // Pauses between attempts move this clock, and the test does not wait for them.
        clock: Arc::new(ManualClock::new(SystemClock::shared().unix_ms())),
        spawn: Arc::new(IdleThreads),
        seed: Some(world.simulation.fresh_seed()),
        ..VolumeOptions::new("a test")
    }
}

/// The process that owns the volume.
pub(crate) struct Owner {
    pub(crate) process: ClientProcess,
    pub(crate) volume: Arc<Volume>,
    pub(crate) fs: Arc<StoreFs>,
}

impl Owner {
    /// Creates the volume, and opens it in a new process.
    pub(crate) fn of_new_volume(world: &mut World) -> Self {
        let stores = world.stores("creator");
        Volume::create(&stores, VOLUME, &options(world)).unwrap();
        Self::take_over(world).unwrap()
    }

    /// Opens the volume in a new process, whether or not it has an owner.
    pub(crate) fn take_over(world: &mut World) -> Result<Self> {
        Self::take_over_with(world, NodeStoresOptions::default())
    }

    /// Opens the volume in a new process whose operator accepts that logs end with the bytes of the
    /// nodes that answer.
    pub(crate) fn take_over_accepting_loss(world: &mut World) -> Result<Self> {
        let options = NodeStoresOptions { accept_loss: true, ..NodeStoresOptions::default() };
        Self::take_over_with(world, options)
    }

    /// Opens the volume in a new process whose pool has these options.
    pub(crate) fn take_over_with(
        world: &mut World,
        stores_options: NodeStoresOptions,
    ) -> Result<Self> {
        let process = world.client("owner");
        let stores = process.stores_with(stores_options);
        let volume = Volume::open(&stores, VOLUME, &options(world))?;
        let fs = StoreFs::new(Arc::clone(&volume));
        Ok(Self { process, volume, fs })
    }

    /// Kills the process with `kill -9`. The drops of its handles never run.
    pub(crate) fn kill(self) {
        self.process.host.crash();
        std::mem::forget(self);
    }
}
