//! Memtable shards that lie at a memory node, and the link to the store that has them
//! ([`crate::remote`]).
//!
//! An [`AwayShard`] has the parts of a shard that stay in memory: its name, its figures, its
//! filter, its range tombstones and a sample of its keys. Super versions, jobs and iterators share
//! it. The drop of the last reference releases the shard at the node.
//!
//! An away shard may get a **copy** in memory, once. The copy is the image, if a flush fetches it,
//! or a shard that was rebuilt from the log, if the node has lost it. Every reader uses the copy
//! from then on, also a reader that holds an old super version. So an iterator can go on when a
//! node dies. A reader never depends on whether the log still has the records.
//!
//! Invariants:
//! 1. A copy has exactly the records of the shard. It is set once and never changes.
//! 2. The log has the records of an away shard that has no copy, until an edit installs its tables
//!    or its family is dropped. A shard that is installed without a copy, because its flush ran
//!    elsewhere, is *retired*. New readers find its tables, and old readers soon get a copy
//!    ([`crate::db::background::kept_shards`]).
//! 3. No request goes to the store about a shard that has a copy or was released.
//! 4. An [`AwayShard`] has all range tombstones of its shard.
//!
//! Thread-safety: any thread may call any method. The lock of the link is a leaf: no other lock is
//! taken, and no reference to an away shard is dropped, while it is held.
//! Failure: `Busy` if a shard cannot be read in time. A shard whose records are lost for good keeps
//! the error that says so.
//! Cost: about 300 bytes for a shard, ten bits for each of its records, its range tombstones and at
//! most 256 of its keys.

mod copy;
mod deadline;
mod remainder;
mod shard;
mod stay_figures;
mod write_pause;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use archipelago_base::budget::ByteBudget;
use archipelago_base::clock::Clock;
use archipelago_base::{CfId, Result, SeqNo};
use parking_lot::{Condvar, Mutex};

use crate::executor::OwnerIdentity;
use crate::remote::{ShardId, ShardStore, StoreNode, StoreRoom, StoreWatcher, WriteLoad};
use crate::sabotage::{Defect, has};
use crate::stats::{Statistics, Ticker};

pub(crate) use copy::ShardCopy;
pub(crate) use deadline::ReadDeadline;
pub(crate) use remainder::Remainder;
pub(crate) use shard::AwayShard;
use shard::ShardNews;
pub(crate) use stay_figures::{AGES, ReadTotals, StayAverages, StayFigures};
pub use write_pause::WRITE_PAUSE;
use write_pause::WritePause;

/// Pause of sends after an image for which no node had room.
const NO_ROOM_PAUSE: Duration = Duration::from_secs(1);

/// Parts of a [`StoreLink`] that the open provides.
pub(crate) struct LinkParts {
    pub(crate) store: Arc<dyn ShardStore>,
    pub(crate) stats: Arc<Statistics>,
    pub(crate) budget: Arc<ByteBudget>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Condition that background workers wait for.
    pub(crate) workers: Arc<Condvar>,
    /// Whether threads run the background work, so that a read can wait for it.
    pub(crate) may_wait: bool,
}

/// Rebuilds lost shards on the calling thread, where no thread does it in the background.
pub(crate) type Rebuilder = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// The store of a database, and the shards that are away.
pub(crate) struct StoreLink {
    parts: LinkParts,
    rebuilder: OnceLock<Rebuilder>,
    registry: Mutex<Registry>,
    /// Readers wait here until a shard gets its copy.
    copied: Condvar,
    /// Number of the oldest memtable of which a shard may still be sent.
    oldest: AtomicU64,
    /// Whether the store was told the owner.
    knows_owner: AtomicBool,
    /// Whether shards may leave.
    is_open: AtomicBool,
    /// Whether the store is closed for good.
    is_closed: AtomicBool,
    /// Whether a caller waits for background work, or memory is short, so that sends hurry.
    is_hurried: AtomicBool,
    stay_figures: StayFigures,
    /// Number of the newest sealed memtables of each family that stay in memory, as the store wants
    /// it.
    staying: AtomicUsize,
    /// The number that stays now. It is 0 while memory is short.
    staying_now: AtomicUsize,
}

/// The state that the lock of a link guards.
#[derive(Default)]
struct Registry {
    shards: BTreeMap<ShardId, RegisteredShard>,
    /// Lost shards without a copy.
    lost: BTreeSet<ShardId>,
    /// The last refusal of an image for want of room; `None` once it is outdated.
    no_room: Option<NoRoom>,
    /// Families whose shards must not leave and whose sealed memtables are all due for a flush,
    /// each with the number of reasons.
    stays: BTreeMap<CfId, usize>,
    /// Shards without a copy whose tables are installed.
    retired: Vec<Retired>,
    /// Shards that were given up before the store was open. They are released when the store opens.
    /// If the open fails, the next open finds them.
    unreleased: Vec<ShardId>,
    /// Shards of running sends for which flushes wait, at the last choice of a flush.
    due_sends: BTreeSet<ShardId>,
    /// Load by the writers of each family, at the last stall decision.
    loads: BTreeMap<CfId, WriteLoad>,
    write_pause: WritePause,
}

/// A shard whose tables are installed, so that only old readers may need it.
struct Retired {
    shard: Arc<AwayShard>,
    since_ns: u64,
}

/// A refusal: no node had room for an image, although the store had reported room.
#[derive(Clone, Copy)]
struct NoRoom {
    image_bytes: u64,
    /// Time, in nanoseconds of the clock, until which no image of this size or more is sent. A
    /// report of more room by the store ends it earlier.
    until_ns: u64,
}

/// An away shard to which a reference exists.
struct RegisteredShard {
    shard: Weak<AwayShard>,
    news: Arc<ShardNews>,
    /// Whether the shard has its copy or was released, so that a loss does not matter any more.
    is_settled: bool,
}

/// Bytes and number of the shards that are away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AwaySums {
    /// Number of shards.
    pub(crate) shards: usize,
    /// Bytes of their images.
    pub(crate) bytes: u64,
}

/// Until it is dropped, no shard of a family leaves, and its sealed memtables are all due for a
/// flush.
pub(crate) struct StayHome {
    link: Arc<StoreLink>,
    cf: CfId,
}

impl Drop for StayHome {
    fn drop(&mut self) {
        {
            let mut registry = self.link.registry.lock();
            if let Some(reasons) = registry.stays.get_mut(&self.cf) {
                *reasons -= 1;
            }
            registry.stays.retain(|_, reasons| *reasons > 0);
        }
        self.link.wake_workers();
    }
}

impl StoreLink {
    pub(crate) fn new(parts: LinkParts) -> Arc<Self> {
        Arc::new(Self {
            parts,
            rebuilder: OnceLock::new(),
            registry: Mutex::default(),
            copied: Condvar::new(),
            oldest: AtomicU64::new(0),
            knows_owner: AtomicBool::new(false),
            is_open: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_hurried: AtomicBool::new(false),
            stay_figures: StayFigures::default(),
            staying: AtomicUsize::new(0),
            staying_now: AtomicUsize::new(0),
        })
    }

    #[inline]
    pub(crate) fn store(&self) -> &dyn ShardStore {
        &*self.parts.store
    }

    pub(crate) fn stats(&self) -> &Statistics {
        &self.parts.stats
    }

    /// Time that a read has left; `None` once its deadline has passed.
    pub(crate) fn left(&self, deadline: &ReadDeadline) -> Option<Duration> {
        deadline.left(self.parts.clock.now_ns())
    }

    /// Tells the store the owner, which the manifest names durably. Later calls do nothing.
    pub(crate) fn tell_owner(&self, owner: &OwnerIdentity) -> Result<()> {
        match self.knows_owner.swap(true, Ordering::AcqRel) {
            true => Ok(()),
            false => self.store().owner_is(owner),
        }
    }

    /// Lets shards leave from now on, because the store knows the owner. The store gives up the
    /// shards of earlier owners that this owner has not adopted.
    pub(crate) fn open(self: &Arc<Self>, rebuilder: Rebuilder) {
        // A database is opened once.
        let _same = self.rebuilder.set(rebuilder);
        let weak: Weak<Self> = Arc::downgrade(self);
        self.store().purge();
        self.store().watch(weak as Weak<dyn StoreWatcher>);
        self.set_staying(self.store().staying(None));
        self.set_staying_now(self.staying());
        let unreleased = {
            let mut registry = self.registry.lock();
            self.is_open.store(true, Ordering::Release);
            std::mem::take(&mut registry.unreleased)
        };
        if !unreleased.is_empty() {
            self.store().release(&unreleased, self.oldest.load(Ordering::Relaxed));
        }
    }

    /// Room of the store. It is none before the store knows the owner and after the close.
    pub(crate) fn room(&self) -> StoreRoom {
        let is_usable =
            self.is_open.load(Ordering::Acquire) && !self.is_closed.load(Ordering::Acquire);
        if !is_usable {
            return StoreRoom::default();
        }
        let mut room = self.store().room();
        let now_ns = self.parts.clock.now_ns();
        let no_room = self.registry.lock().no_room;
        if let Some(refused) = no_room.filter(|refused| now_ns < refused.until_ns) {
            room.free_bytes = room.free_bytes.min(refused.image_bytes.saturating_sub(1));
        }
        room
    }

    /// Notes the shards of running sends for which flushes wait.
    pub(crate) fn note_due_sends(&self, due: BTreeSet<ShardId>) {
        self.registry.lock().due_sends = due;
    }

    /// Whether a flush waits for a shard that is being sent.
    pub(crate) fn is_send_due(&self, shard: ShardId) -> bool {
        self.registry.lock().due_sends.contains(&shard)
    }

    /// Notes the newest visible sequence number at a pick of background work. Returns whether no
    /// write was acknowledged for a while.
    pub(crate) fn note_newest(&self, newest: SeqNo) -> bool {
        let now_ns = self.parts.clock.now_ns();
        self.registry.lock().write_pause.observe(newest, now_ns)
    }

    /// Notes the load by the writers of a family.
    pub(crate) fn note_load(&self, family: CfId, load: WriteLoad) {
        self.registry.lock().loads.insert(family, load);
    }

    /// Forgets the load of a family that was dropped.
    pub(crate) fn forget_load(&self, family: CfId) {
        self.registry.lock().loads.remove(&family);
    }

    /// Measured reads of sealed memtables.
    #[inline]
    pub(crate) fn stay_figures(&self) -> &StayFigures {
        &self.stay_figures
    }

    /// Number of the newest sealed memtables of each family that the store wants to stay.
    pub(crate) fn staying(&self) -> usize {
        self.staying.load(Ordering::Relaxed)
    }

    pub(crate) fn set_staying(&self, count: usize) {
        self.staying.store(count.min(AGES), Ordering::Relaxed);
    }

    /// Number of the newest sealed memtables of each family that stay now.
    pub(crate) fn staying_now(&self) -> usize {
        self.staying_now.load(Ordering::Relaxed)
    }

    /// Sets the number of memtables that stay now. Returns the number before.
    pub(crate) fn set_staying_now(&self, count: usize) -> usize {
        self.staying_now.swap(count, Ordering::Relaxed)
    }

    /// Notes whether a caller waits for background work, or memory is short.
    pub(crate) fn note_hurry(&self, is_hurried: bool) {
        self.is_hurried.store(is_hurried, Ordering::Relaxed);
    }

    /// Notes that no node had room for an image of `image_bytes`. No image of this size or more is
    /// sent until the store reports more room, or until a pause is over.
    pub(crate) fn note_no_room(&self, image_bytes: u64) {
        let now_ns = self.parts.clock.now_ns();
        let until_ns = now_ns + NO_ROOM_PAUSE.as_nanos() as u64;
        let mut registry = self.registry.lock();
        let known = registry.no_room.filter(|known| now_ns < known.until_ns);
        let image_bytes = known.map_or(image_bytes, |known| known.image_bytes.min(image_bytes));
        registry.no_room = Some(NoRoom { image_bytes, until_ns });
    }

    /// Bytes of images that may be at all nodes together; 0 before the store knows the owner.
    pub(crate) fn limit_bytes(&self) -> u64 {
        match self.is_open.load(Ordering::Acquire) && !self.is_closed.load(Ordering::Acquire) {
            true => self.store().room().limit_bytes,
            false => 0,
        }
    }

    /// The families whose shards must not leave and whose sealed memtables are all due for a flush.
    pub(crate) fn wholly_due(&self) -> Vec<CfId> {
        self.registry.lock().stays.keys().copied().collect()
    }

    /// Keeps shards of a family from leaving, and makes all of its sealed memtables due for a
    /// flush.
    pub(crate) fn stay_home(self: &Arc<Self>, cf: CfId) -> StayHome {
        *self.registry.lock().stays.entry(cf).or_default() += 1;
        self.wake_workers();
        StayHome { link: Arc::clone(self), cf }
    }

    /// Notes the oldest memtable of which a shard may still be sent.
    pub(crate) fn note_oldest(&self, memtable: u64) {
        self.oldest.fetch_max(memtable, Ordering::Relaxed);
    }

    /// Number and bytes of the shards that are away and have no copy.
    pub(crate) fn sums(&self) -> AwaySums {
        let mut sums = AwaySums::default();
        for shard in self.shards() {
            if !shard.has_copy() {
                sums.shards += 1;
                sums.bytes += shard.figures().image_bytes;
            }
        }
        sums
    }

    /// All away shards to which a reference exists.
    fn shards(&self) -> Vec<Arc<AwayShard>> {
        let registry = self.registry.lock();
        registry.shards.values().filter_map(|registered| registered.shard.upgrade()).collect()
    }

    /// Lost shards that have no copy yet.
    pub(crate) fn lost(&self) -> Vec<Arc<AwayShard>> {
        let registry = self.registry.lock();
        let lost = registry.lost.iter().filter_map(|id| registry.shards.get(id)?.shard.upgrade());
        lost.collect()
    }

    /// Forgets a lost shard that has a copy.
    pub(crate) fn forget_lost(&self, id: ShardId) {
        self.registry.lock().lost.remove(&id);
    }

    /// Retires shards whose records are in installed tables from now on.
    pub(crate) fn retire(&self, shards: Vec<Arc<AwayShard>>) {
        if shards.is_empty() {
            return;
        }
        if has(Defect::ReleaseBeforeLastReader) {
            shards.iter().for_each(|shard| shard.release());
        }
        let since_ns = self.parts.clock.now_ns();
        let retired = shards.into_iter().map(|shard| Retired { shard, since_ns });
        self.registry.lock().retired.extend(retired);
    }

    /// The retired shards that readers still have after `grace`. Those that no reader has are
    /// released.
    pub(crate) fn take_retired(&self, grace: Duration) -> Vec<Arc<AwayShard>> {
        let now_ns = self.parts.clock.now_ns();
        let (mut left, mut due, mut unread) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut registry = self.registry.lock();
            for retired in registry.retired.drain(..) {
                let is_due = now_ns.saturating_sub(retired.since_ns) >= grace.as_nanos() as u64;
                match Arc::strong_count(&retired.shard) > 1 {
                    true if is_due => due.push(retired.shard),
                    true => left.push(retired),
                    false => unread.push(retired.shard),
                }
            }
            registry.retired = left;
        }
        // A drop takes the lock.
        drop(unread);
        due
    }

    /// Whether a lost shard waits for its copy.
    pub(crate) fn has_lost(&self) -> bool {
        !self.registry.lock().lost.is_empty()
    }

    /// Closes the store, and releases every shard unless the store leaves them for the next open.
    /// Reads of shards without a copy fail afterwards.
    pub(crate) fn close(&self) {
        if self.is_closed.swap(true, Ordering::AcqRel) || !self.is_open.load(Ordering::Acquire) {
            return;
        }
        let retired = std::mem::take(&mut self.registry.lock().retired);
        retired.iter().for_each(|retired| retired.shard.release());
        drop(retired);
        let leaves = self.store().leaves_shards();
        for shard in self.shards() {
            match leaves {
                true => shard.leave(),
                false => shard.release(),
            }
        }
        drop(self.registry.lock());
        self.copied.notify_all();
        self.store().close();
    }

    /// Makes an [`AwayShard`] for the shard `id`, which is at `node` from now on.
    pub(crate) fn register(
        self: &Arc<Self>,
        id: ShardId,
        node: StoreNode,
        rest: Remainder,
    ) -> Arc<AwayShard> {
        let news = Arc::new(ShardNews::new(node));
        let shard = Arc::new(AwayShard::new(id, rest, Arc::clone(&news), self));
        let registered = RegisteredShard { shard: Arc::downgrade(&shard), news, is_settled: false };
        let before = self.registry.lock().shards.insert(id, registered);
        debug_assert!(before.is_none(), "the name of a shard is used twice");
        shard
    }

    /// Notes that the store has lost shards, so that background work rebuilds them. The call takes
    /// no reference to an [`AwayShard`], so it drops none, and a store may make it while it holds
    /// its own locks.
    fn mark_lost(&self, shards: &[ShardId], why: &str) {
        let mut news = 0;
        {
            let mut registry = self.registry.lock();
            for id in shards {
                let Some(registered) = registry.shards.get(id) else { continue };
                if registered.is_settled {
                    continue;
                }
                if !registered.news.set_lost() {
                    tracing::warn!(shard = %id, why, "a memtable shard is lost and is rebuilt");
                    news += 1;
                }
                registry.lost.insert(*id);
            }
        }
        self.stats().add(Ticker::AwayShardsLost, news);
        self.wake_workers();
    }

    /// Notes that a loss of the shard does not matter any more.
    fn settle(&self, id: ShardId) {
        let mut registry = self.registry.lock();
        registry.lost.remove(&id);
        if let Some(registered) = registry.shards.get_mut(&id) {
            registered.is_settled = true;
        }
    }

    /// Wakes background workers. A worker that is about to sleep may miss the call, and checks
    /// again by itself.
    fn wake_workers(&self) {
        self.parts.workers.notify_all();
    }
}

impl StoreWatcher for StoreLink {
    fn lost(&self, shards: &[ShardId]) {
        self.mark_lost(shards, "its node is lost");
    }

    fn moved(&self, shards: &[ShardId], node: StoreNode) {
        let registry = self.registry.lock();
        for registered in shards.iter().filter_map(|id| registry.shards.get(id)) {
            registered.news.set_node(node);
        }
    }

    fn room_has_changed(&self) {
        self.registry.lock().no_room = None;
        self.wake_workers();
    }

    fn write_load(&self) -> WriteLoad {
        // A close and a caller of a flush wait for the sends in progress.
        let is_closed = self.is_closed.load(Ordering::Acquire);
        let registry = self.registry.lock();
        if is_closed || self.is_hurried.load(Ordering::Relaxed) || !registry.stays.is_empty() {
            return WriteLoad::default();
        }
        let mut loads = registry.loads.values().filter(|load| load.backlog_bytes > 0);
        let Some(first) = loads.next().copied() else { return WriteLoad::default() };
        loads.fold(first, |sum, load| WriteLoad {
            backlog_bytes: sum.backlog_bytes + load.backlog_bytes,
            space_bytes: sum.space_bytes.min(load.space_bytes),
            fill_bytes_per_s: sum.fill_bytes_per_s.max(load.fill_bytes_per_s),
        })
    }

    fn is_due(&self, shard: ShardId) -> bool {
        self.is_send_due(shard)
    }

    fn writers_wait(&self) -> bool {
        let registry = self.registry.lock();
        // Writers that are slowed down have no space, unless the storage pool alone slows them.
        registry.loads.values().any(|load| load.space_bytes == 0)
    }

    fn fill_bytes_per_s(&self) -> u64 {
        let registry = self.registry.lock();
        let fills = registry.loads.values().map(|load| load.fill_bytes_per_s);
        fills.fold(0, u64::saturating_add)
    }
}
