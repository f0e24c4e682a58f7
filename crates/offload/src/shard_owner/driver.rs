//! The driver of an owner: the state machine, the links to nodes, and the tasks that serve them.
//!
//! One task per memory node sends beats, purges and releases. Another task polls the list of nodes.
//! A third kind of task sends second copies, and a fourth one the records of one active shard.
//! Transfers of first copies and reads run on the threads of their callers.
//!
//! Invariants:
//! 1. The lock of the state is never held across an await, nor while the database is notified.
//! 2. The tasks end with the owner, because they hold no reference to it while they sleep. The task
//!    of second copies holds one, and ends when its queue is empty.
//! 3. The database gets news in the order in which they happened.
//!
//! Thread-safety: any thread may call any method.
//! Failure: the modules of the parts say how each operation fails.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use archipelago_base::runtime::{Runtime, wait_for};
use archipelago_engine::remote::{ShardId, StoreNode, StoreWatcher, WriteLoad};
use archipelago_fabric::{self as fabric, Reach};
use parking_lot::Mutex;

use super::ahead::AheadShards;
use super::bell::Bell;
use super::copies::CopyQueue;
use super::counters::{Tally, count};
use super::flow::Flow;
use super::links::{NodeLinks, OneSidedFailure, Way};
use super::nodes::NodeList;
use super::state::{MissedAnswer, NextAsk, NodeTask, OwnerState, OwnerTerms};
use super::staying::{LinkTimes, StayControl};
use super::within::within;
use crate::decide::LinkFigures;
use crate::ids::OwnerStamp;

/// Interval at which the list of nodes is polled.
const LIST_PAUSE: Duration = Duration::from_millis(200);
/// Largest answer to a request of a node's task, in bytes.
const ANSWER_BYTES_MAX: usize = 4096;

/// How a thread waits for the answers of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// The thread receives the answers itself. This is for real links.
    Receiving,
    /// The thread runs the runtime until the answers have arrived. This is for the simulation.
    InRuntime,
}

/// How an owner reaches memory nodes.
#[derive(Clone, Debug)]
pub struct OwnerParts {
    /// Source of the list of memory nodes.
    pub nodes: Arc<dyn NodeList>,
    /// Makes links to the nodes.
    pub reach: Arc<dyn Reach>,
    /// Source of time, tasks and random seeds.
    pub runtime: Arc<dyn Runtime>,
    /// How the threads of callers wait.
    pub waits: Waits,
    /// Times and limits.
    pub terms: OwnerTerms,
}

/// The links and the bell of a node's task.
#[derive(Clone, Debug)]
struct NodeEntry {
    links: Arc<NodeLinks>,
    bell: Arc<Bell>,
}

/// A running owner.
pub(super) struct OwnerDriver {
    pub(super) parts: OwnerParts,
    pub(super) owner: OwnerStamp,
    pub(super) state: Mutex<OwnerState>,
    pub(super) tally: Tally,
    pub(super) flow: Flow,
    /// Flow of second copies. It is separate, so that it does not slow first copies down.
    pub(super) copy_flow: Flow,
    pub(super) copies: Mutex<CopyQueue>,
    pub(super) staying: StayControl,
    /// Flow of the records of active shards, which does not slow sealed shards down.
    pub(super) ahead_flow: Flow,
    pub(super) ahead: AheadShards,
    /// Number of transfers of first copies that are under way.
    pub(super) sends: AtomicUsize,
    /// Number of these that wait for room.
    pub(super) sends_waiting: AtomicUsize,
    /// Held while the database is notified.
    notifying: Mutex<()>,
    nodes: Mutex<BTreeMap<StoreNode, NodeEntry>>,
    watcher: OnceLock<Weak<dyn StoreWatcher>>,
}

impl OwnerDriver {
    /// Starts the tasks of an owner.
    pub(super) fn start(parts: OwnerParts, state: OwnerState) -> Arc<Self> {
        let driver = Arc::new(Self {
            staying: StayControl::new(parts.terms.staying),
            parts,
            owner: state.owner(),
            state: Mutex::new(state),
            tally: Tally::default(),
            flow: Flow::default(),
            copy_flow: Flow::default(),
            copies: Mutex::default(),
            ahead_flow: Flow::default(),
            ahead: AheadShards::default(),
            sends: AtomicUsize::new(0),
            sends_waiting: AtomicUsize::new(0),
            notifying: Mutex::default(),
            nodes: Mutex::default(),
            watcher: OnceLock::new(),
        });
        driver.take_list();
        let keeping = keep_list(Arc::downgrade(&driver), Arc::clone(&driver.parts.runtime));
        driver.parts.runtime.spawn("shard-list", Box::pin(keeping));
        driver
    }

    pub(super) fn watch(&self, watcher: Weak<dyn StoreWatcher>) {
        if self.watcher.set(watcher).is_err() {
            tracing::error!("a shard store has two databases");
        }
    }

    /// Figures of the writers from the database; the default if no database watches.
    pub(super) fn write_load(&self) -> WriteLoad {
        let watcher = self.watcher.get().and_then(Weak::upgrade);
        watcher.map(|watcher| watcher.write_load()).unwrap_or_default()
    }

    /// Whether writers wait or are slowed down; false if no database watches.
    pub(super) fn writers_wait(&self) -> bool {
        let watcher = self.watcher.get().and_then(Weak::upgrade);
        watcher.is_some_and(|watcher| watcher.writers_wait())
    }

    /// Whether a flush waits for a shard that is being sent.
    pub(super) fn is_due(&self, shard: ShardId) -> bool {
        let watcher = self.watcher.get().and_then(Weak::upgrade);
        watcher.is_some_and(|watcher| watcher.is_due(shard))
    }

    /// Speed at which writers fill memtables, in bytes a second; 0 if it is not known.
    pub(super) fn fill_bytes_per_s(&self) -> u64 {
        let watcher = self.watcher.get().and_then(Weak::upgrade);
        watcher.map_or(0, |watcher| watcher.fill_bytes_per_s())
    }

    /// Whether transfers of first copies are under way.
    pub(super) fn is_sending(&self) -> bool {
        self.sends.load(Ordering::Relaxed) > 0
    }

    pub(super) fn terms(&self) -> &OwnerTerms {
        &self.parts.terms
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.parts.runtime.now_ns()
    }

    /// Runs a future on the calling thread.
    pub(super) fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        match self.parts.waits {
            Waits::Receiving => fabric::block_on(future),
            Waits::InRuntime => wait_for(&*self.parts.runtime, future),
        }
    }

    /// Runs one-sided operations. At `end_ns`, those that have not ended fail because they are
    /// late.
    pub(super) async fn until<T>(
        &self,
        end_ns: u64,
        operations: impl Future<Output = Result<T, OneSidedFailure>>,
    ) -> Result<T, OneSidedFailure> {
        let left = Duration::from_nanos(end_ns.saturating_sub(self.now_ns()));
        let done = within(&*self.parts.runtime, left, operations).await;
        done.unwrap_or_else(|| Err(OneSidedFailure::late()))
    }

    pub(super) async fn pause(&self) {
        self.parts.runtime.sleep(self.terms().pause).await;
    }

    pub(super) fn links(&self, node: StoreNode) -> Option<Arc<NodeLinks>> {
        self.nodes.lock().get(&node).map(|entry| Arc::clone(&entry.links))
    }

    /// Speed of the fastest link to a node, in bytes a second; 0 if none was measured.
    pub(super) fn link_bytes_per_s(&self) -> u64 {
        let nodes = self.nodes.lock();
        let speeds = nodes.values().map(|entry| entry.links.meter().write_bytes_per_s());
        speeds.max().unwrap_or(0)
    }

    /// Mean times of the links to nodes, over those that were measured.
    pub(super) fn link_times(&self) -> LinkTimes {
        let figures: Vec<LinkFigures> = {
            let nodes = self.nodes.lock();
            nodes.values().map(|entry| entry.links.meter().figures(false)).collect()
        };
        let mean = |time: fn(&LinkFigures) -> u64| {
            let measured: Vec<u64> = figures.iter().map(time).filter(|ns| *ns > 0).collect();
            measured.iter().sum::<u64>() / measured.len().max(1) as u64
        };
        LinkTimes { read_ns: mean(|link| link.read_ns), request_ns: mean(|link| link.request_ns) }
    }

    /// Wakes the task of a node, so that it looks for work.
    pub(super) fn ring(&self, node: StoreNode) {
        let bell = self.nodes.lock().get(&node).map(|entry| Arc::clone(&entry.bell));
        if let Some(bell) = bell {
            bell.ring();
        }
    }

    /// Notifies the database of everything that has happened since the last call.
    pub(super) fn tell_news(&self) {
        // While the database is opening, the news are kept for it.
        let Some(watcher) = self.watcher.get() else { return };
        let _in_order = self.notifying.lock();
        let news = self.state.lock().take_news();
        count(&self.tally.lost, news.lost.len() as u64);
        count(&self.tally.copies_used, news.copies_used);
        count(&self.tally.copies_given_up, news.copies_given_up);
        news.given_up_at.iter().for_each(|node| self.ring(*node));
        let Some(watcher) = watcher.upgrade() else { return };
        let mut moved: BTreeMap<StoreNode, Vec<ShardId>> = BTreeMap::new();
        for (shard, node) in BTreeMap::from_iter(news.moved) {
            moved.entry(node).or_default().push(shard);
        }
        moved.iter().for_each(|(node, shards)| watcher.moved(shards, *node));
        if !news.lost.is_empty() {
            watcher.lost(&news.lost);
        }
        // The database then plans sends and flushes anew, by the room of all nodes. So a lower
        // limit makes flushes due immediately, before the next write.
        if news.has_more_room || news.must_flush {
            watcher.room_has_changed();
        }
    }

    /// Takes the list of nodes, and starts a task for each new one.
    pub(super) fn take_list(self: &Arc<Self>) {
        let Some(list) = self.parts.nodes.nodes() else { return };
        let new = self.state.lock().on_members(self.now_ns(), &list);
        for node in new {
            let Some(peer) = self.state.lock().peer(node) else { continue };
            let OwnerParts { reach, runtime, terms, .. } = &self.parts;
            let links = NodeLinks::new(reach, runtime, &peer, terms).adding_to(&self.tally.times);
            let entry = NodeEntry { links: Arc::new(links), bell: Arc::default() };
            self.nodes.lock().insert(node, entry.clone());
            let task = keep_node(Arc::downgrade(self), node, entry);
            self.parts.runtime.spawn("shard-node", Box::pin(task));
        }
        let known: Vec<(StoreNode, NodeEntry)> =
            self.nodes.lock().iter().map(|(node, entry)| (*node, entry.clone())).collect();
        for (node, entry) in known {
            let peer = self.state.lock().peer(node);
            if let Some(peer) = peer {
                entry.links.set_endpoints(&peer.endpoints);
            } else {
                self.nodes.lock().remove(&node);
                entry.links.hang_up();
                entry.bell.ring();
            }
        }
        self.tell_news();
    }

    /// Releases shards that the database does not need any more.
    pub(super) fn release(&self, shards: &[ShardId], oldest: u64) {
        let concerned = self.state.lock().release(shards, oldest);
        concerned.into_iter().for_each(|node| self.ring(node));
    }

    /// Waits until the nodes have confirmed all releases and have all grants back, but at most
    /// [`OwnerTerms::farewell`], and ends the tasks.
    pub(super) fn close(&self) {
        let until_ns = self.now_ns() + self.terms().farewell.as_nanos() as u64;
        self.copies.lock().clear();
        {
            let mut state = self.state.lock();
            state.end_copies();
            state.stop_all_ahead();
        }
        self.ahead.ring();
        let is_settled = || !self.copies.lock().is_running() && self.state.lock().is_settled();
        while !is_settled() && self.now_ns() < until_ns {
            self.wait(self.pause());
        }
        self.end();
    }

    /// Ends the tasks and the links.
    pub(super) fn end(&self) {
        self.copies.lock().clear();
        self.state.lock().close();
        let entries = std::mem::take(&mut *self.nodes.lock());
        for entry in entries.into_values() {
            entry.bell.ring();
            entry.links.hang_up();
        }
    }

    /// Takes one step for a node. Returns the nanoseconds until the next step, or `None` at the end
    /// of the node's life.
    async fn step(&self, node: StoreNode, links: &NodeLinks) -> Option<u64> {
        let now_ns = self.now_ns();
        let next = self.state.lock().next_ask(now_ns, node);
        self.tell_news();
        let (task, message) = match next {
            NextAsk::Over => return None,
            NextAsk::Wait(until_ns) => return Some(until_ns.saturating_sub(now_ns)),
            NextAsk::Ask(task, message) => (task, message),
        };
        let answer = links.ask(Way::Beats, &message, ANSWER_BYTES_MAX).await;
        {
            let mut state = self.state.lock();
            match &answer {
                Ok(answer) => state.on_answer(self.now_ns(), node, &task, answer),
                Err(none) => {
                    let is_other_life = none.is_other_life;
                    let heard_ns = links.heard_ns();
                    let missed = MissedAnswer { sent_ns: now_ns, heard_ns, is_other_life };
                    state.on_no_answer(self.now_ns(), node, &task, missed);
                }
            }
        }
        if let Err(none) = &answer {
            tracing::debug!(node = %node, why = none.why, "a memory node did not answer");
        }
        if task == NodeTask::Begin {
            if let Err(none) = &answer {
                let is_busy = links.heard_ns() >= now_ns && !none.is_other_life;
                if is_busy { links.hang_up_beats() } else { links.hang_up() }
            }
            let used = self.state.lock().arenas(node);
            links.sweep(&used);
        }
        self.tell_news();
        Some(0)
    }
}

/// Polls the list of nodes until the owner ends.
async fn keep_list(driver: Weak<OwnerDriver>, runtime: Arc<dyn Runtime>) {
    loop {
        runtime.sleep(LIST_PAUSE).await;
        let Some(driver) = driver.upgrade() else { return };
        if driver.state.lock().is_closed() {
            return;
        }
        driver.take_list();
    }
}

/// Takes the steps of a node until its life is over or the owner ends.
async fn keep_node(driver: Weak<OwnerDriver>, node: StoreNode, entry: NodeEntry) {
    loop {
        let Some(driver) = driver.upgrade() else { return };
        let Some(rest_ns) = driver.step(node, &entry.links).await else { return };
        let runtime = Arc::clone(&driver.parts.runtime);
        drop(driver);
        if rest_ns > 0 {
            entry.bell.rest(&*runtime, rest_ns).await;
        }
    }
}
