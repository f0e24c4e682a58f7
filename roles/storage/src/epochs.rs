//! The promised epoch of each volume: the fence of every write to this node.
//!
//! [`Epochs`] belongs to the node. Chunks and logs ask it before a write. The first request of a
//! larger epoch raises a promise, and so does a request that only fences.
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use archipelago_env::FileSystem;
    use archipelago_env::mem::MemFs;

    use super::*;
    use crate::meta::MetaThreads;

    const VOLUME: VolumeId = VolumeId([1; 16]);

    fn open(fs: &MemFs) -> Epochs {
        let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let meta = Meta::open(&fs, Path::new("/node/meta"), MetaThreads::Caller).unwrap();
        Epochs::open(Arc::new(meta), Sabotage::default()).unwrap()
    }

    fn stamp(epoch: u64) -> Stamp {
        Stamp { volume: VOLUME, epoch: Epoch(epoch) }
    }

    #[test]
    fn promise_is_durable_when_it_is_returned() {
        let fs = MemFs::new();
        let epochs = open(&fs);
        epochs.promise(stamp(3)).unwrap();
        epochs.promise(stamp(5)).unwrap();
        for seed in 0..10 {
            let refusal = open(&fs.crash_clone(seed)).promise(stamp(4)).unwrap_err();
            assert_eq!((refusal.why, refusal.epoch), (RefusalWhy::Fenced, Epoch(5)));
        }
    }

    #[test]
    fn promise_fences_requests_that_began_before_it() {
        let epochs = open(&MemFs::new());
        let promise = epochs.promise(stamp(3)).unwrap();
        assert!(promise.admits(Epoch(3)));
        epochs.promise(stamp(4)).unwrap();
        assert!(!promise.admits(Epoch(3)));
        assert!(promise.check(stamp(3)).is_err());
    }

    #[test]
    fn volumes_have_promises_of_their_own() {
        let fs = MemFs::new();
        let epochs = open(&fs);
        epochs.promise(stamp(9)).unwrap();
        let other = Stamp { volume: VolumeId([2; 16]), epoch: Epoch(1) };
        epochs.promise(other).unwrap();
        let known = open(&fs.kill_clone());
        assert_eq!(known.of(VOLUME).epoch(), Epoch(9));
        assert_eq!(known.of(other.volume).epoch(), Epoch(1));
    }

    #[test]
    fn promise_of_a_known_epoch_costs_no_sync() {
        let fs = MemFs::new();
        let epochs = open(&fs);
        epochs.promise(stamp(3)).unwrap();
        let syncs = fs.sync_count();
        epochs.promise(stamp(3)).unwrap();
        assert_eq!(fs.sync_count(), syncs);
    }
}
