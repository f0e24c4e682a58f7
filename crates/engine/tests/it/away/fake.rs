//! A store of memtable shards in memory, which misbehaves as its [`Mood`] says.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::clock::{ManualClock, SystemClock};
use archipelago_base::{Epoch, Result};
use archipelago_engine::executor::OwnerIdentity;
use archipelago_engine::iter::InternalIterator;
use archipelago_engine::job::ShardRef;
use archipelago_engine::key::{KeyRef, Kind};
use archipelago_engine::lookup::Lookup;
use archipelago_engine::memtable::{ImageHead, SealedImage, Shard};
use archipelago_engine::pinned::PinnedSlice;
use archipelago_engine::remote::{
    ActiveShard, AwayError, EarlierShard, FoundShard, KeyVersions, LookupAnswer, LookupAsk,
    NewShard, ResumeAt, ScanAsk, ScanDirection, ScanPage, ScanRecord, SealedReads, ShardId,
    ShardStore, ShardVersion, StoreNode, StoreRoom, StoreWatcher, WriteLoad,
};
use parking_lot::Mutex;

use super::Whim;

/// Number of times that a held send looks for a flush that waits for it, a millisecond apart. Then
/// it goes on, so that a test without such a flush fails and does not hang.
const HOLD_LOOKS: u32 = 20_000;
/// Largest number of requests of one read.
const PATIENCE: u32 = 40;

/// How a [`FakeStore`] misbehaves. Each rate is one in this many calls; 0 is never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mood {
    /// Bytes that the nodes may hold.
    pub(crate) limit_bytes: u64,
    /// Number of copies of each shard that the store reports.
    pub(crate) copies: u64,
    /// Bytes of the largest image.
    pub(crate) image_bytes_max: u64,
    /// Sends that fail.
    pub(crate) refuse: u32,
    /// Whether no node has room, although the store says so.
    pub(crate) no_room: bool,
    /// Calls during which a node is lost.
    pub(crate) lose: u32,
    /// Requests of reads that get no answer. The next [`PATIENCE`] requests get one.
    pub(crate) silence: u32,
    /// Largest number of records of a page; 0 for no limit.
    pub(crate) page_records: usize,
    /// Number of nodes.
    pub(crate) nodes: usize,
    /// Shards of the previous owner that are not listed, whose head cannot be read, and that are
    /// lost when they are adopted.
    pub(crate) unlisted: u32,
    pub(crate) headless: u32,
    pub(crate) unadopted: u32,
    /// Whether a close leaves the shards.
    pub(crate) leaves: bool,
    /// How the executor of flushes at the nodes misbehaves; `None` if flushes do not run there.
    pub(crate) whim: Option<Whim>,
    /// Memtables that stay in the process.
    pub(crate) stays: Stays,
}

/// Rule by which a [`FakeStore`] lets memtables stay in the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stays {
    /// A fixed number of memtables stays.
    Count(usize),
    /// The newest ones that each answer at least this share of the reads.
    Share(f64),
}

impl Default for Mood {
    fn default() -> Self {
        Self {
            limit_bytes: 8 << 20,
            copies: 1,
            image_bytes_max: 1 << 20,
            refuse: 0,
            no_room: false,
            lose: 0,
            silence: 0,
            page_records: 5,
            nodes: 2,
            unlisted: 0,
            headless: 0,
            unadopted: 0,
            leaves: false,
            whim: None,
            stays: Stays::Count(0),
        }
    }
}

/// Counts of the calls of a [`FakeStore`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Did {
    pub(crate) sent: u64,
    pub(crate) refused: u64,
    /// Largest number of times that no node had room for one shard.
    pub(crate) no_room_max: u64,
    /// Number of times that the shard was sent whose name is used up ([`FakeStore::use_up_next`]).
    pub(crate) used_up_sends: u64,
    pub(crate) lookups: u64,
    pub(crate) pages: u64,
    pub(crate) fetched: u64,
    pub(crate) lost: u64,
    pub(crate) listed: u64,
    pub(crate) adopted: u64,
    pub(crate) silent: u64,
    /// Number of asks that named the node of a shard before it moved.
    pub(crate) astray: u64,
    /// Number of active shards that were offered, and of those that were sent afterwards.
    pub(crate) offered: u64,
    pub(crate) offered_sent: u64,
    /// Bytes of the records of these that had left before the seal, and bytes of their images.
    pub(crate) ahead_bytes: u64,
    pub(crate) ahead_image_bytes: u64,
    /// Largest number of bytes held.
    pub(crate) held_max: u64,
    /// Load of the writers at the latest transfer that had one.
    pub(crate) load: WriteLoad,
    /// Windows of reads that the database has reported.
    pub(crate) windows: u64,
    /// Memtables that stay in the process.
    pub(crate) staying: usize,
}

/// A shard at a node.
#[derive(Clone)]
struct Held {
    image: Arc<SealedImage>,
    raw: Arc<Vec<u8>>,
    found: FoundShard,
}

#[derive(Default)]
struct Nodes {
    epoch: Epoch,
    /// The shards of each node.
    nodes: BTreeMap<u64, BTreeMap<ShardId, Held>>,
    /// Shards of the previous owner, until they are purged.
    left: Vec<Held>,
    is_purged: bool,
    next_node: u64,
    /// Every shard that the store has ever accepted.
    taken: BTreeSet<ShardId>,
    /// Shards that have moved to another node since they were sent.
    moved: BTreeSet<ShardId>,
    released: BTreeSet<ShardId>,
    /// Number of times that no node had room for a shard.
    no_room: BTreeMap<ShardId, u64>,
    /// Whether the name of the next shard is used up when it is sent.
    uses_up_next: bool,
    /// The shard whose name is used up.
    used_up: Option<ShardId>,
    oldest: u64,
    /// Number of requests that certainly get an answer.
    answers_due: u32,
    is_hung: bool,
    is_closed: bool,
    did: Did,
}

impl Nodes {
    fn held_bytes(&self) -> u64 {
        let held = self.nodes.values().flat_map(BTreeMap::values);
        held.map(|held| held.found.image_bytes).sum()
    }

    /// The image of a shard at a node, or at another node if the shard has moved.
    fn find(&mut self, node: StoreNode, id: ShardId) -> Result<Arc<SealedImage>, AwayError> {
        let at =
            |shards: &BTreeMap<ShardId, Held>| shards.get(&id).map(|held| Arc::clone(&held.image));
        let mut found = self.nodes.get(&node.0).and_then(at);
        if found.is_none() && self.moved.contains(&id) {
            self.did.astray += 1;
            found = self.nodes.values().find_map(at);
        }
        found.ok_or_else(|| AwayError::Lost(format!("{id}")))
    }

    /// Whether no node has one of these shards.
    fn lacks_some(&self, ids: &[ShardId]) -> bool {
        let is_here = |id: &ShardId| self.nodes.values().any(|shards| shards.contains_key(id));
        !ids.iter().all(is_here)
    }

    /// Whether these shards are at one node.
    fn are_together(&self, ids: &[ShardId]) -> bool {
        let has_all =
            |shards: &BTreeMap<ShardId, Held>| ids.iter().all(|id| shards.contains_key(id));
        self.nodes.values().any(has_all)
    }
}

/// An active shard, and a copy of its complete slabs.
struct Copied {
    records: Weak<Shard>,
    slabs: usize,
    bytes: Vec<u8>,
    image_bytes: u64,
}

impl Copied {
    /// Copies the slabs that are complete by now.
    fn copy_more(&mut self) {
        let Some(shard) = self.records.upgrade().filter(|shard| !shard.is_sealed()) else { return };
        for slab in shard.complete_slabs(self.slabs) {
            self.bytes.extend_from_slice(slab);
            self.slabs += 1;
        }
    }
}

/// A send that lasts until a flush waits for its shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SendHold {
    /// Sends take no time.
    #[default]
    None,
    /// The next send is held.
    Next,
    /// A send is held.
    Holding,
    /// A held send was given up.
    GivenUp,
}

/// Time that the requests of reads take while the nodes hang or are slow.
#[derive(Clone)]
pub(crate) struct Stall {
    pub(crate) clock: Arc<ManualClock>,
    /// Time of a request, unless the read has less time left.
    pub(crate) each: Duration,
    /// Whether all nodes are lost, with a report, in the first of these requests.
    pub(crate) loses: bool,
}

/// A store of memtable shards in memory.
pub(crate) struct FakeStore {
    stall: Mutex<Option<Stall>>,
    hold: Mutex<SendHold>,
    active: Mutex<BTreeMap<ShardId, Copied>>,
    mood: Mutex<Mood>,
    rng: Mutex<fastrand::Rng>,
    nodes: Mutex<Nodes>,
    watcher: Mutex<Option<Weak<dyn StoreWatcher>>>,
}

impl FakeStore {
    pub(crate) fn new(seed: u64, mood: Mood) -> Arc<Self> {
        let nodes = Nodes { next_node: 1, ..Nodes::default() };
        Arc::new(Self {
            stall: Mutex::default(),
            hold: Mutex::default(),
            active: Mutex::default(),
            mood: Mutex::new(mood),
            rng: Mutex::new(fastrand::Rng::with_seed(seed)),
            nodes: Mutex::new(nodes),
            watcher: Mutex::new(None),
        })
    }

    /// The store of the next owner, with the present content of the nodes.
    pub(crate) fn next(&self, seed: u64, mood: Mood) -> Arc<Self> {
        let next = Self::new(seed, mood);
        {
            let (mut to, from) = (next.nodes.lock(), self.nodes.lock());
            to.next_node = from.next_node;
            to.left = from.nodes.values().flat_map(BTreeMap::values).cloned().collect();
            to.left.extend(from.left.iter().cloned());
        }
        next
    }

    pub(crate) fn did(&self) -> Did {
        self.nodes.lock().did
    }

    pub(crate) fn set_mood(&self, change: impl FnOnce(&mut Mood)) {
        change(&mut self.mood.lock());
    }

    /// Copies the complete slabs of all active shards.
    fn copy_ahead(&self) {
        let mut active = self.active.lock();
        active.values_mut().for_each(Copied::copy_more);
        active.retain(|_, copied| copied.records.strong_count() > 0);
    }

    /// Compares the image of a shard with what had left before its seal.
    fn check_ahead(&self, id: ShardId, image: &[u8]) {
        let Some(copied) = self.active.lock().remove(&id) else { return };
        let records_at = ImageHead::records_at(image, image.len() as u64).unwrap() as usize;
        assert!(image[records_at..].starts_with(&copied.bytes), "records of {id} have changed");
        assert!(image.len() as u64 <= 2 * copied.image_bytes, "{id} is larger than expected");
        let mut nodes = self.nodes.lock();
        nodes.did.offered_sent += 1;
        nodes.did.ahead_bytes += copied.bytes.len() as u64;
        nodes.did.ahead_image_bytes += image.len() as u64;
    }

    /// The image of a shard, for an execution of a job at its node.
    pub(crate) fn image(&self, shard: &ShardRef) -> Option<Arc<SealedImage>> {
        let id = ShardId { memtable: shard.memtable, shard: shard.shard };
        let nodes = self.nodes.lock();
        let found = nodes.nodes.values().find_map(|shards| shards.get(&id));
        found.map(|held| Arc::clone(&held.image))
    }

    /// The shards that the nodes hold now.
    pub(crate) fn held(&self) -> Vec<ShardId> {
        self.nodes.lock().nodes.values().flat_map(|shards| shards.keys().copied()).collect()
    }

    /// Stops answering requests from now on, or starts again.
    pub(crate) fn hang(&self, is_hung: bool) {
        self.nodes.lock().is_hung = is_hung;
    }

    /// Stops answering requests, each of which takes the time of `stall` from now on.
    pub(crate) fn hang_for(&self, stall: Stall) {
        self.slow_down(stall);
        self.hang(true);
    }

    /// Answers requests, each of which takes the time of `stall` from now on.
    pub(crate) fn slow_down(&self, stall: Stall) {
        *self.stall.lock() = Some(stall);
    }

    /// From now on, the next send lasts until a flush waits for its shard.
    pub(crate) fn hold_next_send(&self) {
        *self.hold.lock() = SendHold::Next;
    }

    pub(crate) fn send_hold(&self) -> SendHold {
        *self.hold.lock()
    }

    /// Holds a send, if this is the one to be held. Gives it up when a flush waits for its shard.
    fn hold_send(&self, shard: ShardId) -> Result<(), AwayError> {
        {
            let mut hold = self.hold.lock();
            if *hold != SendHold::Next {
                return Ok(());
            }
            *hold = SendHold::Holding;
        }
        let clock = SystemClock::shared();
        for _ in 0..HOLD_LOOKS {
            let watcher = self.watcher.lock().clone().and_then(|watcher| watcher.upgrade());
            if watcher.is_some_and(|watcher| watcher.is_due(shard)) {
                *self.hold.lock() = SendHold::GivenUp;
                return Err(AwayError::Busy("a flush waits for the shard".to_owned()));
            }
            clock.sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Lets the time of a request pass.
    fn pass_time(&self, time_left: Duration) {
        let stall = self.stall.lock().clone();
        let Some(Stall { clock, each, loses }) = stall else { return };
        clock.advance(each.min(time_left));
        if loses {
            self.lose_all(true);
        }
    }

    /// Loses all shards of all nodes. `tells` says whether the database is notified.
    pub(crate) fn lose_all(&self, tells: bool) {
        let nodes: Vec<u64> = self.nodes.lock().nodes.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.lose(node, tells));
    }

    /// From now on, no node takes the shard that is sent next.
    pub(crate) fn use_up_next(&self) {
        self.nodes.lock().uses_up_next = true;
    }

    /// Refuses a shard for want of room, and counts how often it was refused so.
    fn without_room(&self, shard: ShardId) -> AwayError {
        let mut nodes = self.nodes.lock();
        let times = nodes.no_room.entry(shard).or_default();
        *times += 1;
        let times = *times;
        nodes.did.no_room_max = nodes.did.no_room_max.max(times);
        nodes.did.refused += 1;
        AwayError::NoRoom("there was some a moment ago".to_owned())
    }

    /// Whether no node takes this shard, which is sent now.
    fn is_used_up(&self, id: ShardId) -> bool {
        let mut nodes = self.nodes.lock();
        if std::mem::take(&mut nodes.uses_up_next) {
            nodes.used_up = Some(id);
        }
        let is_used_up = nodes.used_up == Some(id);
        nodes.did.used_up_sends += u64::from(is_used_up);
        is_used_up
    }

    /// Whether the database says that writers wait.
    pub(crate) fn writers_wait(&self) -> bool {
        let watcher = self.watcher.lock().clone().and_then(|watcher| watcher.upgrade());
        watcher.is_some_and(|watcher| watcher.writers_wait())
    }

    /// Makes room again, and reports it.
    pub(crate) fn make_room(&self) {
        self.set_mood(|mood| mood.no_room = false);
        let watcher = self.watcher.lock().clone();
        if let Some(watcher) = watcher.and_then(|watcher| watcher.upgrade()) {
            watcher.room_has_changed();
        }
    }

    /// Moves every second shard of each node to a new node. `tells` says whether the database is
    /// notified now. A scan of shards at several nodes notifies it in any case.
    pub(crate) fn move_some(&self, tells: bool) {
        {
            let mut nodes = self.nodes.lock();
            let mut moved: BTreeMap<ShardId, Held> = BTreeMap::new();
            for shards in nodes.nodes.values_mut() {
                let ids: Vec<ShardId> = shards.keys().step_by(2).copied().collect();
                moved.extend(ids.iter().filter_map(|id| shards.remove_entry(id)));
            }
            nodes.moved.extend(moved.keys());
            nodes.next_node += 1;
            let next = nodes.next_node;
            nodes.nodes.insert(next, moved);
        }
        if tells {
            self.tell_moved();
        }
    }

    /// Notifies the database of the nodes of all shards.
    fn tell_moved(&self) {
        let watcher = self.watcher.lock().clone().and_then(|watcher| watcher.upgrade());
        let Some(watcher) = watcher else { return };
        let nodes: Vec<(u64, Vec<ShardId>)> = {
            let nodes = self.nodes.lock();
            let at = |(node, shards): (&u64, &BTreeMap<ShardId, Held>)| {
                (*node, shards.keys().copied().collect())
            };
            nodes.nodes.iter().map(at).collect()
        };
        for (node, shards) in nodes {
            watcher.moved(&shards, StoreNode(node));
        }
    }

    /// Loses one shard without a report.
    pub(crate) fn lose_one(&self, id: ShardId) {
        let mut nodes = self.nodes.lock();
        let lost = nodes.nodes.values_mut().filter_map(|shards| shards.remove(&id)).count();
        nodes.did.lost += lost as u64;
    }

    fn lose(&self, node: u64, tells: bool) {
        let lost: Vec<ShardId> = {
            let mut nodes = self.nodes.lock();
            let Some(shards) = nodes.nodes.remove(&node) else { return };
            nodes.did.lost += shards.len() as u64;
            shards.into_keys().collect()
        };
        let watcher = self.watcher.lock().clone().filter(|_| tells);
        if let Some(watcher) = watcher.and_then(|watcher| watcher.upgrade()) {
            watcher.lost(&lost);
        }
    }

    /// Whether a misbehaviour of one in `n` calls is due now.
    fn is_due(&self, n: u32) -> bool {
        n > 0 && self.rng.lock().u32(..n) == 0
    }

    /// Loses a node from time to time.
    fn maybe_lose(&self) {
        let lose = self.mood.lock().lose;
        if self.is_due(lose) {
            let tells = self.rng.lock().bool();
            self.lose_one_of(tells);
        }
    }

    /// Loses a node without a report to the database.
    pub(crate) fn lose_any(&self) {
        self.lose_one_of(false);
    }

    fn lose_one_of(&self, tells: bool) {
        let nodes: Vec<u64> = self.nodes.lock().nodes.keys().copied().collect();
        let picked = self.rng.lock().choice(nodes);
        if let Some(node) = picked {
            self.lose(node, tells);
        }
    }

    /// Gives no answer from time to time, but never twice to one read.
    fn maybe_silent(&self) -> Result<(), AwayError> {
        let silence = self.mood.lock().silence;
        let is_due = self.is_due(silence);
        let mut nodes = self.nodes.lock();
        let is_silent = nodes.is_hung || is_due && nodes.answers_due == 0;
        nodes.answers_due = nodes.answers_due.saturating_sub(1);
        if is_silent {
            nodes.did.silent += 1;
            nodes.answers_due = PATIENCE;
            return Err(AwayError::Busy("the node says nothing".to_owned()));
        }
        Ok(())
    }

    fn answer(&self, ask: &LookupAsk<'_>) -> Result<LookupAnswer, AwayError> {
        self.maybe_silent()?;
        let images: Vec<Arc<SealedImage>> = {
            let mut nodes = self.nodes.lock();
            nodes.did.lookups += 1;
            ask.shards.iter().map(|id| nodes.find(ask.node, *id)).collect::<Result<_, _>>()?
        };
        assert!(!ask.keys.is_empty(), "a question without keys");
        let keys = ask.keys.iter().map(|key| {
            let mut versions: Vec<ShardVersion> = Vec::new();
            let lookup = Lookup::new(key.key, ask.snapshot);
            let mut is_over = false;
            for &at in &key.within {
                if is_over {
                    break;
                }
                let visited = images[at as usize].lookup(&lookup, |found| {
                    is_over |= found.seq < key.floor;
                    if is_over {
                        return ControlFlow::Break(());
                    }
                    let value = cut(found.kind, found.pin(), ask.keys_only);
                    versions.push(ShardVersion { seq: found.seq, kind: found.kind, value });
                    is_over = found.kind != Kind::Merge;
                    if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                visited.unwrap();
            }
            KeyVersions { versions }
        });
        Ok(LookupAnswer { keys: keys.collect() })
    }
}

/// The value as an answer for keys only may have it.
fn cut(kind: Kind, value: PinnedSlice, keys_only: bool) -> PinnedSlice {
    match (keys_only, kind) {
        (false, _) => value,
        (true, Kind::PutExpiring) => PinnedSlice::owned(value[..8].to_vec()),
        (true, _) => PinnedSlice::owned(Vec::new()),
    }
}

/// All records of `images` that a page of the scan may have, in the order of the scan.
fn records_of(images: &[Arc<SealedImage>], ask: &ScanAsk<'_>) -> Vec<ScanRecord> {
    let mut all: Vec<ScanRecord> = Vec::new();
    for image in images {
        let mut iter = image.iter();
        iter.seek_to_first();
        while iter.valid() {
            let record = KeyRef::decode(iter.key()).unwrap();
            if ask.keys.contains(record.user_key) && record.seq <= ask.snapshot {
                let value = PinnedSlice::owned(iter.value().to_vec());
                let value = cut(record.kind, value, ask.keys_only);
                all.push(ScanRecord { key: iter.key().to_vec(), value });
            }
            iter.next();
        }
        iter.status().unwrap();
    }
    all.sort_by(|a, b| archipelago_engine::key::compare(&a.key, &b.key));
    let mut decided: Option<Vec<u8>> = None;
    all.retain(|record| {
        let KeyRef { user_key, kind, .. } = KeyRef::decode(&record.key).unwrap();
        let is_decided = decided.as_deref() == Some(user_key);
        if !is_decided && kind != Kind::Merge {
            decided = Some(user_key.to_vec());
        }
        !is_decided
    });
    if ask.direction == ScanDirection::Backward {
        all.reverse();
        let user_key = |record: &ScanRecord| KeyRef::decode(&record.key).unwrap().user_key.to_vec();
        all.chunk_by_mut(|a, b| user_key(a) == user_key(b)).for_each(<[ScanRecord]>::reverse);
    }
    all
}

/// Whether a record comes at or after a place, in the order of the scan.
fn is_at_or_after(record: &ScanRecord, place: &ResumeAt, direction: ScanDirection) -> bool {
    let KeyRef { user_key, seq, .. } = KeyRef::decode(&record.key).unwrap();
    let order = match direction {
        ScanDirection::Forward => user_key.cmp(&place.key),
        ScanDirection::Backward => place.key.as_slice().cmp(user_key),
    };
    order.is_gt() || order.is_eq() && place.seq.is_some_and(|at| seq <= at)
}

impl ShardStore for FakeStore {
    fn owner_is(&self, owner: &OwnerIdentity) -> Result<()> {
        assert!(owner.epoch.0 > 0);
        self.nodes.lock().epoch = owner.epoch;
        Ok(())
    }

    fn list(&self) -> Vec<FoundShard> {
        let unlisted = self.mood.lock().unlisted;
        let mut nodes = self.nodes.lock();
        assert!(nodes.epoch.0 > 1 && !nodes.is_purged && nodes.did.listed == 0);
        nodes.left.retain(|_| !self.is_due(unlisted));
        nodes.did.listed = nodes.left.len() as u64;
        nodes.left.iter().map(|held| held.found.clone()).collect()
    }

    fn heads(&self, shards: &[FoundShard]) -> Vec<Result<ImageHead, AwayError>> {
        let headless = self.mood.lock().headless;
        let nodes = self.nodes.lock();
        let head = |shard: &FoundShard| {
            if self.is_due(headless) {
                return Err(AwayError::Busy("the node says nothing".to_owned()));
            }
            let held = nodes.left.iter().find(|held| held.found.name == shard.name).unwrap();
            let (raw, bytes) = (&held.raw[..], held.raw.len() as u64);
            let tail = ImageHead::tail(&raw[..ImageHead::BYTES], bytes).unwrap();
            let tail = &raw[tail.start as usize..tail.end as usize];
            Ok(ImageHead::read(&raw[..ImageHead::BYTES], tail, bytes).unwrap())
        };
        shards.iter().map(head).collect()
    }

    fn adopt(&self, shards: &[(ShardId, &FoundShard)]) -> Vec<Result<StoreNode, AwayError>> {
        let unadopted = self.mood.lock().unadopted;
        let mut nodes = self.nodes.lock();
        let adopt = |(id, found): &(ShardId, &FoundShard)| {
            let at = nodes.left.iter().position(|held| held.found.name == found.name).unwrap();
            let held = nodes.left.swap_remove(at);
            assert!(nodes.taken.insert(*id), "shard {id} was named before");
            if self.is_due(unadopted) {
                return Err(AwayError::Lost("the node is gone".to_owned()));
            }
            nodes.nodes.entry(found.node.0).or_default().insert(*id, held);
            nodes.did.adopted += 1;
            Ok(found.node)
        };
        shards.iter().map(adopt).collect()
    }

    fn purge(&self) {
        let mut nodes = self.nodes.lock();
        assert!(!std::mem::replace(&mut nodes.is_purged, true));
        nodes.left.clear();
    }

    fn leaves_shards(&self) -> bool {
        self.mood.lock().leaves
    }

    fn watch(&self, watcher: Weak<dyn StoreWatcher>) {
        assert!(self.watcher.lock().replace(watcher).is_none(), "a second watcher");
    }

    fn offer(&self, shard: ActiveShard) {
        let ActiveShard { id, records, image_bytes, .. } = shard;
        self.nodes.lock().did.offered += 1;
        let copied = Copied { records, slabs: 0, bytes: Vec::new(), image_bytes };
        let before = self.active.lock().insert(id, copied);
        assert!(before.is_none(), "shard {id} is offered twice");
    }

    fn room(&self) -> StoreRoom {
        self.copy_ahead();
        let mood = *self.mood.lock();
        let held_bytes = self.nodes.lock().held_bytes();
        StoreRoom {
            free_bytes: mood.limit_bytes.saturating_sub(held_bytes),
            sending_bytes: 0,
            held_bytes: held_bytes * mood.copies,
            spare_bytes: held_bytes * (mood.copies - 1),
            limit_bytes: mood.limit_bytes,
            image_bytes_max: mood.image_bytes_max,
            link_bytes_per_s: 0,
        }
    }

    fn send(&self, shard: &NewShard<'_>, image: &[u8]) -> Result<StoreNode, AwayError> {
        self.hold_send(shard.id)?;
        self.maybe_lose();
        let mood = *self.mood.lock();
        if self.is_due(mood.refuse) {
            self.nodes.lock().did.refused += 1;
            return Err(match self.rng.lock().u32(..3) {
                0 => AwayError::Lost("on the way".to_owned()),
                1 => AwayError::Busy("on the way".to_owned()),
                _ => AwayError::NoRoom("on the way".to_owned()),
            });
        }
        if mood.no_room {
            return Err(self.without_room(shard.id));
        }
        if self.is_used_up(shard.id) {
            return Err(AwayError::Busy("the name of the shard is used up".to_owned()));
        }
        self.check_ahead(shard.id, image);
        let opened = SealedImage::open(image.to_vec()).unwrap();
        assert!(opened.entries() > 0 || !opened.tombstones().is_empty());
        assert!(shard.after_seq < shard.last_seq && shard.oldest_log <= shard.seal_log);
        let watcher = self.watcher.lock().clone().and_then(|watcher| watcher.upgrade());
        let load = watcher.map(|watcher| watcher.write_load()).unwrap_or_default();
        let mut nodes = self.nodes.lock();
        if load != WriteLoad::default() {
            nodes.did.load = load;
        }
        assert!(!nodes.is_closed && shard.id.memtable >= nodes.oldest.max(1));
        let bytes = image.len() as u64;
        if nodes.held_bytes() + bytes > mood.limit_bytes {
            nodes.did.refused += 1;
            return Err(AwayError::NoRoom(format!("{bytes} bytes")));
        }
        assert!(nodes.taken.insert(shard.id), "shard {} was sent again", shard.id);
        // Each node has a new number in each life.
        let node = match self.rng.lock().bool() || nodes.nodes.is_empty() {
            true if nodes.nodes.len() < mood.nodes => {
                nodes.next_node += 1;
                nodes.next_node
            }
            _ => {
                let all: Vec<u64> = nodes.nodes.keys().copied().collect();
                self.rng.lock().choice(all).unwrap()
            }
        };
        let held = Held {
            image: opened,
            raw: Arc::new(image.to_vec()),
            found: FoundShard {
                node: StoreNode(node),
                name: EarlierShard { epoch: nodes.epoch, id: shard.id },
                family: shard.family,
                keys: shard.keys.clone(),
                after_seq: shard.after_seq,
                last_seq: shard.last_seq,
                oldest_log: shard.oldest_log,
                seal_log: shard.seal_log,
                image_bytes: bytes,
            },
        };
        nodes.nodes.entry(node).or_default().insert(shard.id, held);
        nodes.did.sent += 1;
        nodes.did.held_max = nodes.did.held_max.max(nodes.held_bytes());
        Ok(StoreNode(node))
    }

    fn lookup(&self, asks: &[LookupAsk<'_>]) -> Vec<Result<LookupAnswer, AwayError>> {
        self.maybe_lose();
        // Asks of several nodes run in parallel.
        self.pass_time(asks.iter().map(|ask| ask.time_left).min().unwrap_or_default());
        asks.iter().map(|ask| self.answer(ask)).collect()
    }

    fn staying(&self, reads: Option<&SealedReads<'_>>) -> usize {
        let stays = self.mood.lock().stays;
        let mut nodes = self.nodes.lock();
        if let Some(reads) = reads {
            assert_eq!(reads.misses.len(), reads.answered.len() + 1);
            assert!(reads.answered.iter().all(|share| (0.0..=1.0).contains(share)), "{reads:?}");
            nodes.did.windows += 1;
        }
        nodes.did.staying = match (stays, reads) {
            (Stays::Count(count), _) => count,
            (Stays::Share(_), None) => nodes.did.staying,
            (Stays::Share(least), Some(reads)) => {
                reads.answered.iter().take_while(|share| **share >= least).count()
            }
        };
        nodes.did.staying
    }

    fn scan(&self, ask: &ScanAsk<'_>) -> Result<ScanPage, AwayError> {
        self.maybe_lose();
        self.pass_time(ask.time_left);
        self.maybe_silent()?;
        let images: Vec<Arc<SealedImage>> = {
            let mut nodes = self.nodes.lock();
            nodes.did.pages += 1;
            if ask.shards.iter().any(|id| nodes.moved.contains(id))
                && !nodes.are_together(ask.shards)
                && !nodes.lacks_some(ask.shards)
            {
                drop(nodes);
                self.tell_moved();
                return Err(AwayError::Busy("the shards are at several nodes".to_owned()));
            }
            ask.shards.iter().map(|id| nodes.find(ask.node, *id)).collect::<Result<_, _>>()?
        };
        if let Some(resume) = ask.resume {
            assert!(ask.keys.contains(&resume.key), "a place outside of the scan");
        }
        let mut records = records_of(&images, ask);
        if let Some(resume) = ask.resume {
            records.retain(|record| is_at_or_after(record, resume, ask.direction));
        }
        let place = |record: &ScanRecord, exactly: bool| {
            let KeyRef { user_key, seq, .. } = KeyRef::decode(&record.key).unwrap();
            ResumeAt { key: user_key.to_vec(), seq: exactly.then_some(seq) }
        };
        let count = match self.mood.lock().page_records {
            0 => records.len(),
            most => self.rng.lock().usize(..=most),
        };
        if count == 0 && !records.is_empty() {
            // The node has visited enough records that no reader sees.
            let here = place(&records[0], true);
            if ask.resume != Some(&here) {
                return Ok(ScanPage { records: Vec::new(), resume: Some(here) });
            }
        }
        let rest = records.split_off(count.max(1).min(records.len()));
        let user_key = |record: &ScanRecord| KeyRef::decode(&record.key).unwrap().user_key.to_vec();
        let resume = match (records.last(), rest.first()) {
            (Some(last), Some(next)) if user_key(last) == user_key(next) => Some(place(next, true)),
            (Some(last), Some(_)) => Some(place(last, false)),
            _ => None,
        };
        Ok(ScanPage { records, resume })
    }

    fn fetch(&self, shard: ShardId) -> Result<Arc<SealedImage>, AwayError> {
        self.maybe_lose();
        let mut nodes = self.nodes.lock();
        if nodes.is_hung {
            return Err(AwayError::Busy("the node says nothing".to_owned()));
        }
        let node = nodes.nodes.iter().find(|(_, shards)| shards.contains_key(&shard));
        let Some(node) = node.map(|(node, _)| StoreNode(*node)) else {
            return Err(AwayError::Lost(format!("{shard}")));
        };
        nodes.did.fetched += 1;
        nodes.find(node, shard)
    }

    fn release(&self, shards: &[ShardId], oldest: u64) {
        let mut nodes = self.nodes.lock();
        assert!(oldest >= nodes.oldest, "the oldest memtable went back");
        nodes.oldest = oldest;
        for id in shards {
            assert!(nodes.taken.contains(id), "{id} was never taken");
            assert!(nodes.released.insert(*id), "{id} is released twice");
            nodes.nodes.values_mut().for_each(|node| drop(node.remove(id)));
        }
    }

    fn close(&self) {
        let mut nodes = self.nodes.lock();
        let leaves = self.mood.lock().leaves;
        assert!(leaves || nodes.held_bytes() == 0, "shards are left at the close");
        nodes.is_closed = true;
    }
}
