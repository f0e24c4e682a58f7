//! Sealed memtables of a family, and the progress of their shards to L0.
//!
//! [`JobState`](crate::db::state::jobs::JobState) owns one [`FlushTracker`] for each family, so the
//! jobs lock guards all of it.
//!
//! Invariants:
//! 1. The queue is ordered by age, oldest memtable first.
//! 2. A shard is running from the choice of its job until the job has installed it or gives it
//!    back.
//! 3. An installed shard is not in the view.
//!
//! Thread-safety: the owner's lock guards everything.
//! Cost: a change of the view copies the list of the places of the shards.

use std::collections::VecDeque;
use std::collections::vec_deque::IterMut;
use std::ops::Range;
use std::sync::Arc;

use crate::db::state::memtable::{Immutable, Memtable, SealedInfo, ShardHome};
use crate::job::JobOutput;
use crate::live_file::{LiveFile, LiveValueFile};
use crate::memtable::Shard;
use crate::version::rebalance::RunningFlush;

/// Number of times that a shard is sent to a memory node before it stays here.
const SENDS_MAX: u8 = 3;

/// Progress of one shard of a sealed memtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardState {
    /// The shard waits for a flush, or rests at a memory node.
    Pending,
    /// A job has the shard: a flush, a send to a memory node, or a rebuild.
    Running,
    /// The records of the shard are in installed files, or it has none.
    Installed,
}

/// A sealed memtable, and the progress of its shards to L0.
pub(crate) struct Sealed {
    info: Arc<SealedInfo>,
    /// The memtable, until its shards have filters and empty ones are marked installed. The shards
    /// then belong to `view` alone.
    unready: Option<Arc<Memtable>>,
    view: Arc<Immutable>,
    shards: Vec<ShardState>,
    /// Number of times that each shard may still be sent to a memory node.
    sends_left: Vec<u8>,
    /// Whether each shard was lost and is here again.
    is_rebuilt: Vec<bool>,
}

impl Sealed {
    /// Tracks a memtable that was just sealed.
    pub(crate) fn new(memtable: Arc<Memtable>) -> Self {
        Self {
            info: SealedInfo::of(&memtable),
            view: Arc::new(Immutable::of(&memtable)),
            shards: vec![ShardState::Pending; memtable.shards.len()],
            sends_left: vec![SENDS_MAX; memtable.shards.len()],
            is_rebuilt: vec![false; memtable.shards.len()],
            unready: Some(memtable),
        }
    }

    /// Tracks a ready memtable of which an earlier open has sent some shards. Shards without a home
    /// are empty.
    pub(crate) fn inherited(info: Arc<SealedInfo>, homes: Vec<Option<ShardHome>>) -> Self {
        let state = |home: &Option<ShardHome>| match home {
            Some(_) => ShardState::Pending,
            None => ShardState::Installed,
        };
        let (shards, count) = (homes.iter().map(state).collect(), homes.len());
        Self {
            view: Arc::new(Immutable { map: Arc::clone(&info.map), homes }),
            info,
            shards,
            sends_left: vec![SENDS_MAX; count],
            is_rebuilt: vec![false; count],
            unready: None,
        }
    }

    pub(crate) fn info(&self) -> &Arc<SealedInfo> {
        &self.info
    }

    /// The memtable as readers see it.
    pub(crate) fn view(&self) -> &Arc<Immutable> {
        &self.view
    }

    /// Progress of each shard.
    pub(crate) fn shards(&self) -> &[ShardState] {
        &self.shards
    }

    /// Number of times that a shard may still be sent to a memory node.
    pub(crate) fn sends_left(&self, shard: usize) -> u8 {
        self.sends_left[shard]
    }

    /// The memtable, while it is not ready.
    pub(crate) fn unready(&self) -> Option<&Arc<Memtable>> {
        self.unready.as_ref()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.unready.is_none()
    }

    /// Notes that the shards have filters, so that they belong to the view alone. Returns `false`
    /// if that was noted before.
    pub(crate) fn make_ready(&mut self) -> bool {
        self.unready.take().is_some()
    }

    /// Whether an edit has installed all of its shards.
    pub(crate) fn is_installed(&self) -> bool {
        self.shards.iter().all(|shard| *shard == ShardState::Installed)
    }

    /// Marks the pending shards of a range as running, because a job takes them.
    pub(crate) fn begin(&mut self, shards: Range<usize>) {
        let pending = |shard: &&mut ShardState| **shard == ShardState::Pending;
        self.shards[shards].iter_mut().filter(pending).for_each(|s| *s = ShardState::Running);
    }

    /// Marks a shard as pending, because its job has ended and has not installed it.
    pub(crate) fn give_back(&mut self, shard: usize) {
        self.shards[shard] = ShardState::Pending;
    }

    /// Marks shards as installed, and removes them from the view as [`Sealed::take_from_view`]
    /// does.
    pub(crate) fn install(&mut self, shards: Range<usize>) {
        self.shards[shards.clone()].fill(ShardState::Installed);
        self.take_from_view(shards);
    }

    /// Counts a send of a shard that failed. After several of them the shard stays here.
    pub(crate) fn note_failed_send(&mut self, shard: usize) {
        self.sends_left[shard] -= 1;
    }

    /// Makes a shard stay here.
    pub(crate) fn keep_here(&mut self, shard: usize) {
        self.sends_left[shard] = 0;
    }

    /// Removes shards from the view, because readers find their records in tables from now on.
    /// Readers of an older super version find an away shard in its copy, so its node may forget the
    /// shard.
    pub(crate) fn take_from_view(&mut self, shards: Range<usize>) {
        let mut view = Immutable::clone(&self.view);
        let apart = view.homes[shards.clone()].iter().flatten().filter_map(ShardHome::away);
        apart.filter(|away| away.has_copy()).for_each(|away| away.release());
        view.homes[shards].fill(None);
        self.view = Arc::new(view);
    }

    /// Bytes of the records of its shards that were rebuilt and are in no table.
    pub(crate) fn rebuilt_bytes(&self) -> u64 {
        let homes = self.view.homes.iter().zip(&self.is_rebuilt);
        let rebuilt =
            homes.filter(|(_, is_rebuilt)| **is_rebuilt).filter_map(|(home, _)| home.as_ref());
        rebuilt.map(ShardHome::data_bytes).sum()
    }

    /// Puts a lost shard, which was rebuilt, into memory. It is not sent again.
    pub(crate) fn set_rebuilt(&mut self, shard: usize, here: Arc<Shard>) {
        self.keep_here(shard);
        self.is_rebuilt[shard] = true;
        self.set_home(shard, ShardHome::Here(here));
    }

    /// Changes the place at which readers find the records of a shard.
    pub(crate) fn set_home(&mut self, shard: usize, home: ShardHome) {
        let mut view = Immutable::clone(&self.view);
        view.homes[shard] = Some(home);
        self.view = Arc::new(view);
    }
}

/// A shard that a running flush has written. Readers find it in its tables, although no edit names
/// them yet: see [`crate::db::background::written_shards`].
pub(crate) struct WrittenShard {
    /// Numbers of the memtables whose records the shard has.
    pub(crate) memtables: Vec<u64>,
    /// Position in the map of the memtables.
    pub(crate) shard: usize,
    /// The keys of the shard, and those at which its tables are cut.
    pub(crate) flush: RunningFlush,
    pub(crate) output: JobOutput,
    /// The tables of `output`.
    pub(crate) tables: Vec<Arc<LiveFile>>,
    /// The value files of `output`.
    pub(crate) value_files: Vec<Arc<LiveValueFile>>,
}

/// The sealed memtables of a family, oldest first.
#[derive(Default)]
pub(crate) struct FlushTracker {
    queue: VecDeque<Sealed>,
    /// Shards of the queue that are written and wait for the edit of their job.
    written: Vec<WrittenShard>,
    /// Keys that cut the next memtables into shards, besides the boundaries of the bucket map.
    shard_cuts: Vec<Vec<u8>>,
    /// Number below which memtables are to be flushed, wherever their shards are.
    due_below: u64,
}

impl FlushTracker {
    /// Puts memtables that an earlier open has left before all others.
    pub(crate) fn inherit(&mut self, oldest_first: Vec<Sealed>) {
        oldest_first.into_iter().rev().for_each(|sealed| self.queue.push_front(sealed));
    }

    /// Adds a memtable that was just sealed.
    pub(crate) fn push(&mut self, sealed: Sealed) {
        self.queue.push_back(sealed);
    }

    /// The sealed memtables, oldest first.
    pub(crate) fn queue(&self) -> &VecDeque<Sealed> {
        &self.queue
    }

    /// The sealed memtables, oldest first.
    pub(crate) fn queue_mut(&mut self) -> IterMut<'_, Sealed> {
        self.queue.iter_mut()
    }

    /// The sealed memtables at these positions, oldest first.
    pub(crate) fn range_mut(&mut self, positions: Range<usize>) -> IterMut<'_, Sealed> {
        self.queue.range_mut(positions)
    }

    /// The sealed memtable with this number.
    pub(crate) fn find_mut(&mut self, memtable: u64) -> Option<&mut Sealed> {
        self.queue.iter_mut().find(|sealed| sealed.info.id == memtable)
    }

    /// Forgets the memtables of which an edit has installed all shards.
    pub(crate) fn forget_installed(&mut self) {
        self.queue.retain(|sealed| !sealed.is_installed());
    }

    /// Installs all shards of all memtables, and forgets them together with the written shards.
    pub(crate) fn install_all(&mut self) {
        for sealed in &mut self.queue {
            sealed.install(0..sealed.shards.len());
        }
        self.queue.clear();
        self.written.clear();
    }

    /// Shards of the queue that are written and wait for the edit of their job.
    pub(crate) fn written(&self) -> &[WrittenShard] {
        &self.written
    }

    /// Adds a shard that a running flush has written.
    pub(crate) fn add_written(&mut self, written: WrittenShard) {
        self.written.push(written);
    }

    /// Forgets the written shards that an edit has installed.
    pub(crate) fn forget_written(&mut self, is_installed: impl Fn(&WrittenShard) -> bool) {
        self.written.retain(|shard| !is_installed(shard));
    }

    /// Keys that cut the next memtables into shards, besides the boundaries of the bucket map.
    pub(crate) fn shard_cuts(&self) -> &[Vec<u8>] {
        &self.shard_cuts
    }

    /// Replaces the keys that cut the next memtables into shards.
    pub(crate) fn set_shard_cuts(&mut self, cuts: Vec<Vec<u8>>) {
        self.shard_cuts = cuts;
    }

    /// Has all memtables with smaller numbers flushed, wherever their shards are.
    pub(crate) fn make_due(&mut self, below: u64) {
        self.due_below = self.due_below.max(below);
    }

    /// Number below which memtables are to be flushed, because a caller asked for it.
    pub(crate) fn due_below(&self) -> u64 {
        self.due_below
    }

    /// Has all sealed memtables flushed, wherever their shards are.
    pub(crate) fn make_all_due(&mut self) {
        if let Some(last) = self.queue.back() {
            self.make_due(last.info.id + 1);
        }
    }
}
