//! A volume on a pool in memory with its owner, for tests.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::clock::{ManualClock, SystemClock};
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_store::memory::MemoryPool;
use archipelago_store::volume::{Volume, VolumeOptions};
use archipelago_store::{Sabotage, StoreFs};

/// Name of the volume of all tests.
const VOLUME: &str = "db";
/// Length of a lease that outlives every test.
const LEASE: Duration = Duration::from_secs(3600);

/// Starts threads that do nothing, so that no lease is renewed and the test alone calls the pool.
#[derive(Debug)]
pub(crate) struct IdleThreads;

impl Spawn for IdleThreads {
    fn spawn(&self, name: &str, _body: Box<dyn FnOnce() + Send>) -> Result<Joiner> {
        SystemSpawn.spawn(name, Box::new(|| {}))
    }
}

/// Options of an owner that takes the volume over, with a clock that the test does not wait for.
pub(crate) fn options(sabotage: Sabotage, seed: u64) -> VolumeOptions {
    VolumeOptions {
        lease: LEASE,
        take_over: true,
        // Pauses between attempts move this clock, and the test does not wait for them.
        clock: Arc::new(ManualClock::new(SystemClock::shared().unix_ms())),
        spawn: Arc::new(IdleThreads),
        seed: Some(seed),
        sabotage,
        ..VolumeOptions::new("a test")
    }
}

/// The owner of the volume, and the pool.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) pool: MemoryPool,
    pub(crate) volume: Arc<Volume>,
    pub(crate) fs: Arc<StoreFs>,
}

impl Owner {
    /// Creates the volume on an empty pool, and opens it. `seed` decides all identities.
    pub(crate) fn of_new_volume(pool: MemoryPool, sabotage: Sabotage, seed: u64) -> Self {
        let options = options(sabotage, seed);
        Volume::create(&pool.stores(), VOLUME, &options).unwrap();
        Self::take_over(pool, sabotage, seed + 1).unwrap()
    }

    /// Opens the volume whether or not it has an owner. No two calls for a pool and its clones may
    /// have one `seed`.
    pub(crate) fn take_over(pool: MemoryPool, sabotage: Sabotage, seed: u64) -> Result<Self> {
        let options = options(sabotage, seed);
        let volume = Volume::open(&pool.stores(), VOLUME, &options)?;
        let fs = StoreFs::new(Arc::clone(&volume));
        Ok(Self { pool, volume, fs })
    }
}
