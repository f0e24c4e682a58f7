//! A storage pool in memory that can be killed, lose power and fail, for tests.
//!
//! [`MemoryPool`] is a handle, and its clones are the same pool. It implements the three traits of
//! a pool, and [`MemoryPool::stores`] gives them to a volume. It makes *other* pools with its state
//! - after a kill of all clients ([`MemoryPool::kill_clone`]): everything that was acknowledged,
//!   and of the submitted bytes of each log a prefix that the seed alone determines. Unsealed blobs
//!   are strays;
//! - after power loss of all nodes and clients ([`MemoryPool::crash_clone`]): everything that was
//!   synced, and of the unsynced bytes of each log a prefix that the seed alone determines.
//!
//! A test lets one owner die by dropping the owner's handles. The pool of this owner goes on. The
//! next recovery of each log decides by the pool's seed which submitted bytes arrived.
//!
//! A log consists of *extents*, as on storage nodes. [`Fault::EndExtent`] is the failure of a
//! replica: the log goes on in a new extent, whose layout it keeps before it acknowledges from it.
//!
//! Each call that reaches the pool is a [`PoolCall`]. A script makes chosen calls fail
//! ([`MemoryPool::inject`]), a hook runs before each call ([`MemoryPool::on_call`]), and a counter
//! has their number ([`MemoryPool::calls`]).
//!
//! Invariants:
//! 1. The invariants of [`BlobStore`](crate::BlobStore), [`LogStore`](crate::LogStore) and
//!    [`Register`](crate::Register). If they permit several outcomes, the pool takes the one that a
//!    caller expects least. Only a recovery fences a log, readers lose a blob that was given up,
//!    and a fenced writer gets the error at a wait.
//! 2. A clone shares nothing with its origin.
//! 3. The same calls in the same order and the same seed give the same clone.
//!
//! Thread-safety: any thread may call any method. One lock guards the state. Hooks,
//! [`LayoutKeeper`](crate::LayoutKeeper)s and [`LossKeeper`](crate::LossKeeper)s run without it.
//! Failure: calls fail as the script says, as the traits say, and for lack of room.
//! Cost: one lock and one copy of the bytes per call; a clone copies the bytes of all logs.

mod blobs;
mod calls;
mod layout;
mod logs;
mod register;
mod writer;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io;
use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use parking_lot::Mutex;

pub use self::calls::{Fault, PoolCall};

use self::blobs::StoredBlob;
use self::calls::{Answer, CallState};
use self::logs::StoredLog;
use self::register::StoredValue;
use crate::Stores;
use crate::ids::{BlobId, LogId, VolumeId};
use crate::sabotage::Sabotage;

/// Called before each call, on the thread of the call and without a lock. It may clone the pool,
/// sleep, or call the pool.
pub type OnCall = Arc<dyn Fn(&MemoryPool, PoolCall) + Send + Sync>;

/// A storage pool in memory. Clones are handles of the same pool.
#[derive(Clone)]
pub struct MemoryPool {
    shared: Arc<PoolShared>,
}

struct PoolShared {
    pool: Mutex<PoolState>,
    calls: Mutex<CallState>,
    sabotage: Sabotage,
}

/// Everything that the nodes of the pool know.
struct PoolState {
    blobs: BTreeMap<BlobId, StoredBlob>,
    /// Identities of all blobs that ever existed, because no identity may be used twice.
    blobs_used: HashSet<BlobId>,
    logs: BTreeMap<LogId, StoredLog>,
    /// Logs that were removed, each with the epoch of its removal.
    logs_removed: HashMap<LogId, Epoch>,
    register: BTreeMap<String, StoredValue>,
    /// Newest epoch of each volume that any call has carried.
    epochs: HashMap<VolumeId, Epoch>,
    /// Number of blobs and logs that were begun. It orders them against a release of strays.
    begun: u64,
    capacity_bytes: Option<u64>,
    /// Decides which submitted bytes arrived, if no call has waited for them.
    rng: Rng,
}

/// A blob of the pool, as [`MemoryPool::blob_list`] reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolBlob {
    /// Identity of the blob.
    pub id: BlobId,
    /// Volumes that retain it, sorted.
    pub volumes: Vec<VolumeId>,
    /// Whether its seal returned, or was done and lost its answer.
    pub is_sealed: bool,
    /// Length in bytes.
    pub len_bytes: u64,
}

impl fmt::Debug for MemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("MemoryPool");
        // The thread that formats the pool may hold the lock already, so this does not wait for it.
        if let Some(pool) = self.shared.pool.try_lock() {
            text.field("blobs", &pool.blobs.len()).field("logs", &pool.logs.len());
        }
        text.finish_non_exhaustive()
    }
}

impl Default for MemoryPool {
    fn default() -> Self {
        Self::new(0)
    }
}

impl MemoryPool {
    /// Makes an empty pool without limit. `seed` decides which submitted bytes arrive if no call
    /// waits for them.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::sabotaged(seed, Sabotage::default())
    }

    /// Makes an empty pool that leaves out the steps of `sabotage`.
    #[must_use]
    pub fn sabotaged(seed: u64, sabotage: Sabotage) -> Self {
        let pool = PoolState {
            blobs: BTreeMap::new(),
            blobs_used: HashSet::new(),
            logs: BTreeMap::new(),
            logs_removed: HashMap::new(),
            register: BTreeMap::new(),
            epochs: HashMap::new(),
            begun: 0,
            capacity_bytes: None,
            rng: Rng::with_seed(seed),
        };
        Self::of(pool, sabotage)
    }

    fn of(pool: PoolState, sabotage: Sabotage) -> Self {
        let calls = Mutex::new(CallState::default());
        Self { shared: Arc::new(PoolShared { pool: Mutex::new(pool), calls, sabotage }) }
    }

    /// The pool as the three stores of a volume.
    #[must_use]
    pub fn stores(&self) -> Stores {
        let pool = Arc::new(self.clone());
        Stores { blobs: pool.clone(), logs: pool.clone(), register: pool }
    }

    /// A pool with the state after a kill of all clients now. It has no faults, no hook, no calls
    /// and the same capacity. Unsynced bytes are still unsynced. The same `seed` gives the same
    /// clone.
    #[must_use]
    pub fn kill_clone(&self, seed: u64) -> Self {
        let pool = self.shared.pool.lock().after(seed, StoredLog::after_kill);
        Self::of(pool, self.shared.sabotage)
    }

    /// A pool with the state after power loss of all nodes and clients now. The same `seed` gives
    /// the same clone. It has no faults, no hook, no calls and the same capacity. Everything in it
    /// is synced. The first recovery of each of its open write-ahead logs reports that bytes may be
    /// missing.
    #[must_use]
    pub fn crash_clone(&self, seed: u64) -> Self {
        let pool = self.shared.pool.lock().after(seed, StoredLog::after_power_loss);
        Self::of(pool, self.shared.sabotage)
    }

    /// Limits the bytes of all blobs and logs; `None` removes the limit. Beyond it, blobs take no
    /// more bytes and the error is [`Error::is_no_space`]. Logs still take them.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.shared.pool.lock().capacity_bytes = bytes;
    }

    /// Bytes of all blobs and logs, sealed or not, including bytes that were only submitted.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.shared.pool.lock().used_bytes()
    }

    /// All blobs, sorted by their identities.
    #[must_use]
    pub fn blob_list(&self) -> Vec<PoolBlob> {
        let pool = self.shared.pool.lock();
        pool.blobs.iter().map(|(id, blob)| blob.listed(*id)).collect()
    }

    /// Identities of all logs, sorted.
    #[must_use]
    pub fn log_list(&self) -> Vec<LogId> {
        self.shared.pool.lock().logs.keys().copied().collect()
    }

    /// Gives `fault` to the `nth` call of the kind `call` from now on; 1 is the next call. Faults
    /// may be pending for several calls at the same time.
    pub fn inject(&self, call: PoolCall, nth: u64, fault: Fault) {
        self.shared.calls.lock().inject(call, nth, fault);
    }

    /// Removes all faults that no call has had yet.
    pub fn clear_faults(&self) {
        self.shared.calls.lock().clear_faults();
    }

    /// Calls `hook` before each call from now on.
    pub fn on_call(&self, hook: OnCall) {
        self.shared.calls.lock().hook = Some(hook);
    }

    /// Removes the hook.
    pub fn clear_on_call(&self) {
        self.shared.calls.lock().hook = None;
    }

    /// Number of calls of the kind `call` that reached the pool so far.
    #[must_use]
    pub fn calls(&self, call: PoolCall) -> u64 {
        self.shared.calls.lock().count(call)
    }

    /// Number of calls so far for whose answer a thread waited ([`PoolCall::waits`]).
    #[must_use]
    pub fn round_trips(&self) -> u64 {
        self.shared.calls.lock().round_trips()
    }

    /// Counts a call, runs the hook and takes the call's fault. Returns an error if the fault
    /// prevents the call.
    fn reach(&self, call: PoolCall, object: &dyn fmt::Display) -> Result<Answer> {
        let hook = self.shared.calls.lock().hook.clone();
        if let Some(hook) = hook {
            hook(self, call);
        }
        let fault = self.shared.calls.lock().enter(call);
        match fault {
            Some(Fault::Refuse) => Err(refused(call, object)),
            Some(Fault::LoseAnswer) => Ok(Answer::Lost),
            Some(Fault::EndExtent) => Ok(Answer::ExtentEnded),
            None => Ok(Answer::Heard),
        }
    }
}

impl PoolState {
    /// A copy whose logs are changed by `end`, and whose later choices follow `seed`.
    fn after(&self, seed: u64, end: fn(&StoredLog, &mut Rng) -> StoredLog) -> Self {
        let mut rng = Rng::with_seed(seed);
        // The order of their creation does not depend on identities, which may be random.
        let mut logs: Vec<_> = self.logs.iter().collect();
        logs.sort_by_key(|(_, log)| log.begun());
        let logs = logs.into_iter().map(|(id, log)| (*id, end(log, &mut rng))).collect();
        Self {
            blobs: self.blobs.clone(),
            blobs_used: self.blobs_used.clone(),
            logs,
            logs_removed: self.logs_removed.clone(),
            register: self.register.clone(),
            epochs: self.epochs.clone(),
            begun: self.begun,
            capacity_bytes: self.capacity_bytes,
            rng,
        }
    }

    fn used_bytes(&self) -> u64 {
        let blobs: u64 = self.blobs.values().map(StoredBlob::len_bytes).sum();
        let logs: u64 = self.logs.values().map(StoredLog::stored_bytes).sum();
        blobs + logs
    }

    fn free_bytes(&self) -> Option<u64> {
        self.capacity_bytes.map(|capacity| capacity.saturating_sub(self.used_bytes()))
    }

    /// Checks the epoch of a write of `volume`, and notes it if it is the newest.
    fn admit(&mut self, volume: VolumeId, epoch: Epoch) -> Result<()> {
        let newest = self.epochs.entry(volume).or_default();
        if epoch < *newest {
            return Err(Error::fenced(format!(
                "volume {volume}: epoch {epoch} is older than {newest}; another process owns the \
                 volume now, so close this handle"
            )));
        }
        *newest = epoch;
        Ok(())
    }

    fn next_begun(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }
}

/// The error of a call that did not happen, or whose answer was lost.
fn refused(call: PoolCall, object: &dyn fmt::Display) -> Error {
    let cause = io::Error::from(io::ErrorKind::ConnectionReset);
    Error::with_source(
        ErrorKind::Io,
        format!("{object}: the pool did not answer {call:?}; try again or recover"),
        cause,
    )
}

/// The error of a blob for whose bytes the pool has no room.
fn no_space(object: &dyn fmt::Display) -> Error {
    Error::with_source(
        ErrorKind::Io,
        format!("{object}: the pool is full; remove files or add nodes"),
        io::Error::from(io::ErrorKind::StorageFull),
    )
}
