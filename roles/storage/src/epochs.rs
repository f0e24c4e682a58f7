//! The promised epoch of each volume: the fence of every write to this node.
//!
//! [`Epochs`] belongs to the node. Chunks and logs ask it before a write. A promise is raised by the
//! first request of a larger epoch, or by a request that only fences.
//!
//! Invariants:
//! 1. A promise only grows, and survives power loss before an answer reveals it.
//! 2. A write under an epoch below the promise is refused.
//! 3. A write that must not pass a fence compares its epoch ([`VolumePromise::admits`]) under the
//!    lock that the fence takes after [`Epochs::promise`] returned.
//!
//! Thread-safety: any thread may call any method. One lock per volume orders its promises.
//! Failure: if a promise cannot be made durable, the request is refused and older epochs stay
//! refused until the node restarts.
//! Cost: an epoch that is promised already costs a look-up under one shared lock. A new one costs
//! one sync.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::{Epoch, Error, Result};
use archipelago_store::VolumeId;
use archipelago_store::nodes::wire::{RefusalWhy, Stamp};
use parking_lot::{Mutex, RwLock};

use crate::answer::Refusal;
use crate::meta::{Meta, MetaBatch, MetaSpace, Scan};
use crate::sabotage::Sabotage;

/// The promise for one volume.
#[derive(Debug, Default)]
pub(crate) struct VolumePromise {
    /// Requests below this epoch are refused. It may be ahead of `durable`.
    refuses_below: AtomicU64,
    /// The promise that survives power loss. It changes under `raising`.
    durable: AtomicU64,
    raising: Mutex<()>,
    ignores_epochs: bool,
}

impl VolumePromise {
    /// Whether the volume still takes writes of `epoch`.
    pub(crate) fn admits(&self, epoch: Epoch) -> bool {
        self.ignores_epochs || epoch.0 >= self.refuses_below.load(Ordering::SeqCst)
    }

    /// The promised epoch.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.refuses_below.load(Ordering::SeqCst))
    }

    /// The refusal of a write of `stamp`, if it is fenced.
    pub(crate) fn check(&self, stamp: Stamp) -> Result<(), Refusal> {
        if self.admits(stamp.epoch) {
            return Ok(());
        }
        let promised = self.epoch();
        let text = format!(
            "volume {}: epoch {} is older than {promised}, which this node has promised; another \
             process owns the volume, so close this handle",
            stamp.volume, stamp.epoch
        );
        Err(Refusal { why: RefusalWhy::Fenced, epoch: promised, text })
    }
}

/// The promises for all volumes.
#[derive(Debug)]
pub(crate) struct Epochs {
    meta: Arc<Meta>,
    volumes: RwLock<HashMap<VolumeId, Arc<VolumePromise>>>,
    sabotage: Sabotage,
}

impl Epochs {
    /// Reads the promises of the node.
    pub(crate) fn open(meta: Arc<Meta>, sabotage: Sabotage) -> Result<Self> {
        let mut volumes = HashMap::new();
        meta.scan(MetaSpace::Epochs, &[], &mut |key, value| {
            let (Ok(volume), Ok(epoch)) = (key.try_into(), value.try_into()) else {
                return Err(Error::internal(format!(
                    "the promised epoch of volume {key:02x?} has {} bytes",
                    value.len()
                )));
            };
            let epoch = Epoch(u64::from_le_bytes(epoch));
            let promise = VolumePromise {
                refuses_below: AtomicU64::new(epoch.0),
                durable: AtomicU64::new(epoch.0),
                raising: Mutex::new(()),
                ignores_epochs: sabotage.no_epoch_check(),
            };
            volumes.insert(VolumeId(volume), Arc::new(promise));
            Ok(Scan::Continue)
        })?;
        Ok(Self { meta, volumes: RwLock::new(volumes), sabotage })
    }

    /// Promises the epoch of a request durably, and returns the promise of its volume. Refused as
    /// fenced if a later epoch is promised.
    pub(crate) fn promise(&self, stamp: Stamp) -> Result<Arc<VolumePromise>, Refusal> {
        let promise = self.of(stamp.volume);
        let durable = promise.durable.load(Ordering::SeqCst);
        if promise.epoch() != stamp.epoch || durable != stamp.epoch.0 {
            self.raise(&promise, stamp)?;
        }
        Ok(promise)
    }

    /// The promise of a volume without a change, for requests that do not fence.
    pub(crate) fn of(&self, volume: VolumeId) -> Arc<VolumePromise> {
        if let Some(promise) = self.volumes.read().get(&volume) {
            return Arc::clone(promise);
        }
        let ignores_epochs = self.sabotage.no_epoch_check();
        let new = || Arc::new(VolumePromise { ignores_epochs, ..VolumePromise::default() });
        Arc::clone(self.volumes.write().entry(volume).or_insert_with(new))
    }

    /// The promised epoch of each volume that the node knows, sorted.
    pub(crate) fn all(&self) -> Vec<(VolumeId, Epoch)> {
        let volumes = self.volumes.read();
        let mut all: Vec<_> = volumes.iter().map(|(id, promise)| (*id, promise.epoch())).collect();
        all.sort_unstable();
        all
    }

    fn raise(&self, promise: &VolumePromise, stamp: Stamp) -> Result<(), Refusal> {
        promise.check(stamp)?;
        promise.refuses_below.fetch_max(stamp.epoch.0, Ordering::SeqCst);
        let _raising = promise.raising.lock();
        // A later epoch may have been promised while this thread waited for the lock.
        promise.check(stamp)?;
        if promise.durable.load(Ordering::SeqCst) < stamp.epoch.0 {
            let mut batch = MetaBatch::default();
            batch.put(MetaSpace::Epochs, &stamp.volume.0, &stamp.epoch.0.to_le_bytes());
            self.meta.write(&batch)?;
            promise.durable.store(stamp.epoch.0, Ordering::SeqCst);
        }
        Ok(())
    }
}
