//! The engine's [`ShardStore`] over memory nodes.
//!
//! Thread-safety: any thread may call any method.
//! Failure: until the database has named its owner, the store has no room and no shards.
//! Cost: that of the operations in `sends.rs`, `reads.rs` and `takeover.rs`.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use archipelago_base::runtime::{Runtime, ThreadRuntime};
use archipelago_base::{Error, Result};
use archipelago_engine::executor::OwnerIdentity;
use archipelago_engine::memtable::{ImageHead, SealedImage};
use archipelago_engine::remote::{
    ActiveShard, AwayError, FoundShard, LookupAnswer, LookupAsk, NewShard, ScanAsk, ScanPage,
    SealedReads, ShardId, ShardStore, StoreNode, StoreRoom, StoreWatcher,
};
use archipelago_fabric::{Endpoints, Reach, Secret};

use super::counters::{OwnerFigures, StateFigures};
use super::driver::{OwnerDriver, OwnerParts, Waits};
use super::nodes::PoolNodes;
use super::state::{OwnerState, OwnerTerms};
use crate::ids::{OffloadDb, OwnerStamp, Token};
use crate::parcel::JobImages;

/// Keeps sealed memtable shards of one open of a database at memory nodes.
pub struct RemoteShards {
    parts: OwnerParts,
    driver: OnceLock<Arc<OwnerDriver>>,
}

impl fmt::Debug for RemoteShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteShards").field("terms", &self.parts.terms).finish_non_exhaustive()
    }
}

impl RemoteShards {
    /// A store for one open of a database. It sends nothing before [`ShardStore::owner_is`].
    #[must_use]
    pub fn new(parts: OwnerParts) -> Arc<Self> {
        Arc::new(Self { parts, driver: OnceLock::new() })
    }

    /// A store for one open of a database. It uses the memory nodes of the cluster with these
    /// managers, and finds them in the background. Errors: those of starting threads.
    pub fn in_cluster(
        managers: Vec<String>,
        secret: Option<Secret>,
        terms: OwnerTerms,
    ) -> Result<Arc<Self>> {
        let runtime: Arc<dyn Runtime> = ThreadRuntime::shared()?;
        let reach: Arc<dyn Reach> = Arc::new(Endpoints::new().with_secret(secret));
        let nodes = PoolNodes::join(managers, &reach, &runtime);
        Ok(Self::new(OwnerParts { nodes, reach, runtime, waits: Waits::Receiving, terms }))
    }

    /// The figures of this open.
    #[must_use]
    pub fn figures(&self) -> OwnerFigures {
        let Some(driver) = self.driver.get() else { return OwnerFigures::default() };
        let copy_bytes = driver.copies.lock().bytes();
        let figures = {
            let mut state = driver.state.lock();
            let (nodes, shards) = state.counts();
            let (mut flow, copies) = (driver.flow.figures(), driver.copy_flow.figures());
            let ahead_flow = driver.ahead_flow.figures();
            flow.written_bytes += copies.written_bytes + ahead_flow.written_bytes;
            flow.peak_bytes = flow.peak_bytes.max(ahead_flow.peak_bytes);
            StateFigures {
                nodes,
                shards,
                doubled: state.doubled(),
                copy_bytes,
                room: state.room(driver.now_ns()),
                guaranteed_bytes: state.guaranteed_bytes(),
                surplus_bytes: state.surplus_bytes(),
                entries: state.offsets().len(),
                active: state.ahead_count(),
                flow,
                staying: driver.staying.figures(),
            }
        };
        driver.tally.figures(&figures)
    }

    /// Places of these shards at memory nodes, in their order. `None` if one of them is not at a
    /// memory node, or was just lost. The call does not block.
    #[must_use]
    pub fn images(&self, shards: &[ShardId]) -> Option<JobImages> {
        self.driver.get()?.state.lock().images(shards)
    }

    /// Whether writers of the database wait or are slowed down. The call does not block.
    #[must_use]
    pub fn writers_wait(&self) -> bool {
        self.driver.get().is_some_and(|driver| driver.writers_wait())
    }

    fn driver(&self) -> Result<&Arc<OwnerDriver>, AwayError> {
        let early = || AwayError::Lost("the shard store has no owner yet".to_owned());
        self.driver.get().ok_or_else(early)
    }
}

impl Drop for RemoteShards {
    fn drop(&mut self) {
        if let Some(driver) = self.driver.get() {
            driver.end();
        }
    }
}

impl ShardStore for RemoteShards {
    fn name(&self) -> &'static str {
        "memory nodes"
    }

    fn node_name(&self, node: StoreNode) -> String {
        let peer = self.driver.get().and_then(|driver| driver.state.lock().peer(node));
        match peer {
            Some(peer) => match peer.endpoints.first() {
                Some(endpoint) => format!("memory node {} at {endpoint}", peer.node),
                None => format!("memory node {}", peer.node),
            },
            None => "a memory node whose life is over".to_owned(),
        }
    }

    fn owner_is(&self, owner: &OwnerIdentity) -> Result<()> {
        let OwnerIdentity { database, epoch, token } = *owner;
        let stamp = OwnerStamp { db: OffloadDb(database), epoch, token: Token(token) };
        let state = OwnerState::new(stamp, self.parts.terms);
        let driver = OwnerDriver::start(self.parts.clone(), state);
        self.driver.set(driver).map_err(|_| Error::internal("a shard store has two owners"))
    }

    fn list(&self) -> Vec<FoundShard> {
        let Some(driver) = self.driver.get() else { return Vec::new() };
        driver.wait(driver.list())
    }

    fn heads(&self, shards: &[FoundShard]) -> Vec<Result<ImageHead, AwayError>> {
        match self.driver() {
            Ok(driver) => driver.wait(driver.heads(shards)),
            Err(early) => shards.iter().map(|_| Err(early.clone())).collect(),
        }
    }

    fn adopt(&self, shards: &[(ShardId, &FoundShard)]) -> Vec<Result<StoreNode, AwayError>> {
        match self.driver() {
            Ok(driver) => driver.adopt(shards),
            Err(early) => shards.iter().map(|_| Err(early.clone())).collect(),
        }
    }

    fn purge(&self) {
        if let Some(driver) = self.driver.get() {
            driver.purge();
        }
    }

    fn leaves_shards(&self) -> bool {
        self.parts.terms.leaves_shards
    }

    fn watch(&self, watcher: Weak<dyn StoreWatcher>) {
        if let Some(driver) = self.driver.get() {
            driver.watch(watcher);
        }
    }

    fn room(&self) -> StoreRoom {
        let Some(driver) = self.driver.get() else { return StoreRoom::default() };
        let link_bytes_per_s = driver.link_bytes_per_s();
        StoreRoom { link_bytes_per_s, ..driver.state.lock().room(driver.now_ns()) }
    }

    fn staying(&self, reads: Option<&SealedReads<'_>>) -> usize {
        let Some(driver) = self.driver.get() else { return 0 };
        driver.staying.after(reads, driver.link_times(), driver.tally.lookups())
    }

    fn offer(&self, shard: ActiveShard) {
        if let Some(driver) = self.driver.get() {
            driver.ahead.offer(driver, shard);
        }
    }

    fn send(&self, shard: &NewShard<'_>, image: &[u8]) -> Result<StoreNode, AwayError> {
        let driver = self.driver()?;
        driver.wait(driver.send(shard, image))
    }

    fn lookup(&self, asks: &[LookupAsk<'_>]) -> Vec<Result<LookupAnswer, AwayError>> {
        match self.driver() {
            Ok(driver) => driver.wait(driver.look_up(asks)),
            Err(early) => asks.iter().map(|_| Err(early.clone())).collect(),
        }
    }

    fn scan(&self, ask: &ScanAsk<'_>) -> Result<ScanPage, AwayError> {
        let driver = self.driver()?;
        driver.wait(driver.scan(ask))
    }

    fn fetch(&self, shard: ShardId) -> Result<Arc<SealedImage>, AwayError> {
        let driver = self.driver()?;
        driver.wait(driver.fetch(shard))
    }

    fn release(&self, shards: &[ShardId], oldest: u64) {
        if let Some(driver) = self.driver.get() {
            driver.release(shards, oldest);
        }
    }

    fn close(&self) {
        if let Some(driver) = self.driver.get() {
            driver.close();
        }
    }
}
