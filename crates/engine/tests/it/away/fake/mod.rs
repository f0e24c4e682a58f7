//! A store of memtable shards in memory, which misbehaves as its [`Mood`] says.
//!
//! | module | concept |
//! | --- | --- |
//! | `mood` | how the store misbehaves |
//! | `ahead` | copies of active shards before their seal |
//! | `search` | the answers of nodes to look-ups and scans |

mod ahead;
mod mood;
mod search;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::clock::{ManualClock, SystemClock};
use archipelago_base::{Epoch, Result};
use archipelago_engine::executor::OwnerIdentity;
use archipelago_engine::job::ShardRef;
use archipelago_engine::memtable::{ImageHead, SealedImage};
use archipelago_engine::remote::{
    ActiveShard, AwayError, EarlierShard, FoundShard, LookupAnswer, LookupAsk, NewShard, ScanAsk,
    ScanPage, SealedReads, ShardId, ShardStore, StoreNode, StoreRoom, StoreWatcher, WriteLoad,
};
use parking_lot::Mutex;

pub(crate) use mood::{Mood, Stays};

use ahead::AheadCopies;

/// Number of times that a held send looks for a flush that waits for it, a millisecond apart. Then
/// it goes on, so that a test without such a flush fails and does not hang.
const HOLD_LOOKS: u32 = 20_000;
/// Largest number of requests of one read.
const PATIENCE: u32 = 40;

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
    active: AheadCopies,
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
            active: AheadCopies::default(),
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

    /// Compares the image of a shard with what had left before its seal.
    fn check_ahead(&self, id: ShardId, image: &[u8]) {
        let Some(ahead_bytes) = self.active.check(id, image) else { return };
        let mut nodes = self.nodes.lock();
        nodes.did.offered_sent += 1;
        nodes.did.ahead_bytes += ahead_bytes;
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
        Ok(search::answer(&images, ask))
    }
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
        self.nodes.lock().did.offered += 1;
        self.active.add(shard);
    }

    fn room(&self) -> StoreRoom {
        self.active.copy_more();
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
            is_shared: mood.is_shared,
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
            (Stays::Share(_) | Stays::Through(_), None) => nodes.did.staying,
            (Stays::Share(least), Some(reads)) => {
                reads.answered.iter().take_while(|share| **share >= least).count()
            }
            (Stays::Through(least), Some(reads)) => {
                let oldest = reads.answered.iter().rposition(|share| *share >= least);
                oldest.map_or(0, |age| age + 1)
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
        let records = search::records(&images, ask);
        let count = match self.mood.lock().page_records {
            0 => records.len(),
            most => self.rng.lock().usize(..=most),
        };
        Ok(search::page(records, ask, count))
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
