//! The writer of a log on storage nodes: it drives a [`QuorumWriter`] over the network.
//!
//! | part | file |
//! | --- | --- |
//! | the state that a log's writer, positions and tasks share | this file |
//! | the actions of the quorum writer | `actions.rs` |
//! | the task that sends to the replicas | `streams.rs` |
//! | nodes of new extents, and repairs of ended ones | `extents.rs` |
//! | nodes that drain, are lost, or return | `holders.rs` |
//! | the writer and the position as the traits have them | `handle.rs` |
//!
//! [`LogCore`] belongs to the handles of the log, to its tasks, and weakly to the store. A submit
//! copies bytes into the ring under the lock and wakes the task. The task sends them to all
//! replicas and feeds the answers to the quorum writer, whose actions wake the callers that wait.
//!
//! A layout is kept by a thread that waits for the log, because keeping blocks and a task must not.
//! If no caller waits, a new layout stays pending until the owner's thread keeps it
//! ([`LogCore::keep_pending`]): nothing that depends on it is acknowledged before.
//!
//! Invariants:
//! 1. The keeper of layouts runs without the lock, on one thread at a time.
//! 2. `acknowledged` is the acknowledged end of the quorum writer, and does not move after an
//!    error.
//! 3. The ring has every byte that a stream may still send.
//! 4. After the first error nothing is sent, and every caller gets that error, except for bytes
//!    that were acknowledged before.
//!
//! Thread-safety: one lock guards the state; no foreign code runs under it.
//! Failure: a node that fails costs a new extent. The log fails when it was fenced, or when the
//! pool has had too few nodes for too long.
//! Cost: a submit takes one lock and copies its bytes. A wait takes one lock, and no lock if the
//! bytes are acknowledged.

mod actions;
mod extents;
mod handle;
mod holders;
mod streams;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use archipelago_base::runtime::wait_for;
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use parking_lot::Mutex;

use super::super::StorageId;
use super::super::log::quorum::QuorumWriter;
use super::super::log::{LogLayout, ReplicaId};
use super::append_times::AppendTimes;
use super::layout::VolumeLog;
use super::options::NodeLogOptions;
use super::replica_stream::ReplicaStream;
use super::requests::LogRequests;
use super::send_ring::SendRing;
use super::waiters::{WaitGoal, Waiters};
use crate::log::LayoutKeeper;

use self::extents::EmptyExtents;
use self::holders::LeftReplica;

pub(super) use self::handle::{LogHandle, NodeLogWriter};

/// Pause between two attempts to keep a layout.
const KEEP_PAUSE: Duration = Duration::from_millis(100);

/// State that the handles and tasks of one log share.
#[derive(Debug)]
pub(super) struct LogCore {
    requests: LogRequests,
    keeper: Arc<dyn LayoutKeeper>,
    options: NodeLogOptions,
    acknowledged: AtomicU64,
    /// Whether callers wait for room in the ring.
    is_crowded: AtomicBool,
    state: Mutex<LogState>,
}

/// A layout that waits for a thread which keeps it.
#[derive(Debug)]
struct PendingRecord {
    version: u64,
    layout: LogLayout,
}

/// Everything that the lock of a log guards.
#[derive(Debug)]
struct LogState {
    writer: QuorumWriter,
    ring: SendRing,
    streams: BTreeMap<ReplicaId, ReplicaStream>,
    waiters: Waiters,
    /// The layout of the newest record, kept or not.
    layout: LogLayout,
    record: Option<PendingRecord>,
    /// Whether a thread keeps a layout now.
    is_keeping: bool,
    /// Whether a task chooses nodes.
    is_choosing: bool,
    empty_extents: EmptyExtents,
    /// Time at which nodes were wanted after the last acknowledgement.
    stalled_since_ns: Option<u64>,
    /// Time since which a caller waits for a sync that makes no progress.
    sync_since_ns: Option<u64>,
    /// Offset through which a caller wants a sync.
    sync_wanted: u64,
    /// Ended extents that tasks repair, with the nodes that have all bytes.
    repairs: BTreeMap<u32, Vec<StorageId>>,
    /// Replicas of nodes that failed. Repairs have put other replicas in their place.
    left_replicas: Vec<LeftReplica>,
    submitted: u64,
    append_times: AppendTimes,
    is_finishing: bool,
    finished: Option<LogLayout>,
    error: Option<Error>,
    /// Whether all handles were dropped.
    is_released: bool,
    /// Wakes the task that sends.
    sender: Option<Waker>,
}

impl LogState {
    fn check(&self) -> Result<()> {
        match &self.error {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Whether bytes have waited for nodes since `stall_ns` before `now_ns`. An idle log never has.
    fn is_stalled(&self, now_ns: u64, stall_ns: u64) -> bool {
        let is_idle = self.writer.acknowledged() == self.submitted;
        !is_idle && self.stalled_since_ns.is_some_and(|since| now_ns >= since + stall_ns)
    }

    fn has_reached(&self, goal: WaitGoal, ring_bytes_max: u64) -> bool {
        match goal {
            WaitGoal::Acknowledged(end) => self.writer.acknowledged() >= end,
            WaitGoal::Synced(end) => self.writer.synced() >= end,
            WaitGoal::Finished => self.finished.is_some(),
            // Bytes that are acknowledged stay so after an error.
            WaitGoal::Room => self.error.is_some() || self.ring.held_bytes() <= ring_bytes_max,
        }
    }
}

/// Wake-ups and tasks that wait until the lock is released.
#[derive(Debug, Default)]
struct Effects {
    wakers: Vec<Waker>,
    tasks: Vec<BackgroundTask>,
}

/// A task that an action begins.
#[derive(Clone, Copy, Debug)]
enum BackgroundTask {
    /// Chooses the nodes of a new extent.
    Choose,
    /// Repairs the extent with this number.
    Repair(u32),
}

/// The next step of a thread that waits for a log.
enum WaitStep {
    Done,
    Keep(PendingRecord),
}

/// A log that was created on its nodes.
#[derive(Debug)]
pub(super) struct CreatedLog {
    pub(super) requests: LogRequests,
    pub(super) keeper: Arc<dyn LayoutKeeper>,
    pub(super) options: NodeLogOptions,
    /// Nodes of the first extent.
    pub(super) nodes: Vec<StorageId>,
}

impl LogCore {
    /// The writer of a log that was just created, with the first layout. Its task begins to send.
    pub(super) fn start(created: CreatedLog) -> (Arc<Self>, LogLayout) {
        let CreatedLog { requests, keeper, options, nodes } = created;
        let writer = QuorumWriter::new(options.rules(requests.class), nodes);
        #[cfg(feature = "sabotage")]
        let writer = writer.sabotaged(options.writer_sabotage);
        let state = LogState {
            writer,
            ring: SendRing::new(options.budget.as_ref()),
            streams: BTreeMap::new(),
            waiters: Waiters::default(),
            layout: LogLayout::default(),
            record: None,
            is_keeping: false,
            is_choosing: false,
            empty_extents: EmptyExtents::default(),
            stalled_since_ns: None,
            sync_since_ns: None,
            sync_wanted: 0,
            repairs: BTreeMap::new(),
            left_replicas: Vec::new(),
            submitted: 0,
            append_times: AppendTimes::default(),
            is_finishing: false,
            finished: None,
            error: None,
            is_released: false,
            sender: None,
        };
        let (acknowledged, is_crowded) = (AtomicU64::new(0), AtomicBool::new(false));
        let core = Arc::new(Self {
            requests,
            keeper,
            options,
            acknowledged,
            is_crowded,
            state: Mutex::new(state),
        });
        let now_ns = core.now_ns();
        let layout = core.change(|state| {
            // The caller of the creation keeps the first layout before it waits for an append.
            state.writer.recorded(1, now_ns);
            core.carry_out(state, &mut Effects::default());
            state.record = None;
            state.layout.clone()
        });
        core.spawn_sender();
        core.spawn_looks();
        (core, layout)
    }

    fn now_ns(&self) -> u64 {
        self.requests.runtime().now_ns()
    }

    /// Name of the log in errors and messages.
    fn name(&self) -> String {
        format!("log {}", self.requests.log)
    }

    /// The layout and the acknowledged end, for readers of this process.
    pub(super) fn readable(&self) -> (LogLayout, u64) {
        let state = self.state.lock();
        (state.layout.clone(), state.writer.acknowledged())
    }

    /// Acknowledged bytes that the slowest replica may lack.
    pub(super) fn backlog_bytes(&self) -> u64 {
        let state = self.state.lock();
        match state.error {
            Some(_) => 0,
            None => state.writer.acknowledged().saturating_sub(state.writer.retain_from()),
        }
    }

    /// Epoch of the writer.
    pub(super) fn epoch(&self) -> Epoch {
        self.requests.stamp.epoch
    }

    /// Ends the writer with an error, if it has none yet and has not finished.
    pub(super) fn end(self: &Arc<Self>, error: Error) {
        self.change(|state| {
            if state.finished.is_none() {
                fail(state, error);
            }
        });
    }

    /// Changes the state, and then applies the effects without the lock.
    fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut LogState) -> T) -> T {
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        let value = change(&mut state);
        self.carry_out(&mut state, &mut effects);
        effects.wakers.extend(state.sender.take());
        drop(state);
        self.apply(effects);
        value
    }

    /// Wakes the callers and begins the tasks of `effects`. The lock is not held.
    fn apply(self: &Arc<Self>, effects: Effects) {
        effects.wakers.into_iter().for_each(Waker::wake);
        for task in effects.tasks {
            match task {
                BackgroundTask::Choose => self.spawn_choice(),
                BackgroundTask::Repair(extent) => self.spawn_repair(extent),
            }
        }
    }

    /// Waits on the calling thread, which keeps layouts meanwhile.
    fn wait_until(self: &Arc<Self>, goal: WaitGoal) -> Result<()> {
        let mut ticket = None;
        loop {
            let step = poll_fn(|context| self.poll_goal(goal, &mut ticket, context));
            match wait_for(&**self.requests.runtime(), step)? {
                WaitStep::Done => return Ok(()),
                WaitStep::Keep(record) => self.keep(record),
            }
        }
    }

    fn poll_goal(
        self: &Arc<Self>,
        goal: WaitGoal,
        ticket: &mut Option<u64>,
        context: &mut Context<'_>,
    ) -> Poll<Result<WaitStep>> {
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        let polled = if state.has_reached(goal, self.options.ring_bytes_max) {
            Poll::Ready(Ok(WaitStep::Done))
        } else if let Err(error) = state.check() {
            Poll::Ready(Err(error))
        } else if let Some(record) = state.take_record() {
            Poll::Ready(Ok(WaitStep::Keep(record)))
        } else {
            state.waiters.register(goal, ticket, context.waker());
            Poll::Pending
        };
        if polled.is_ready() {
            state.waiters.remove(goal, *ticket);
            state.find_keeper(&mut effects);
        }
        drop(state);
        self.apply(effects);
        polled
    }

    /// Keeps a layout, and tries again for a while if that fails. The caller has taken the record.
    fn keep(self: &Arc<Self>, mut record: PendingRecord) {
        let started_ns = self.now_ns();
        loop {
            let Err(error) = self.keep_once(&record) else { return };
            let waited_ns = self.now_ns().saturating_sub(started_ns);
            if !may_pass(&error) || waited_ns >= self.options.stall_max.as_nanos() as u64 {
                self.keep_failed(&error);
                return;
            }
            tracing::warn!(%error, log = %self.requests.log, "a layout was not kept; trying again");
            let runtime = self.requests.runtime();
            wait_for(&**runtime, runtime.sleep(KEEP_PAUSE));
            let newer = self.state.lock().record.take();
            record = newer.unwrap_or(record);
        }
    }

    /// Asks the keeper once to keep a layout. If the keeper succeeds, another thread may keep the
    /// next layout.
    fn keep_once(self: &Arc<Self>, record: &PendingRecord) -> Result<()> {
        let PendingRecord { version, layout } = record;
        let kept = VolumeLog { volume: self.requests.stamp.volume, layout: layout.clone() };
        self.keeper.keep(self.requests.log, &kept.encode())?;
        let (version, now_ns) = (*version, self.now_ns());
        self.change(|state| {
            state.is_keeping = false;
            // Nothing is acknowledged after an error.
            if state.error.is_none() {
                state.writer.recorded(version, now_ns);
            }
        });
        Ok(())
    }

    /// Ends the log, because its layout cannot be kept.
    fn keep_failed(self: &Arc<Self>, error: &Error) {
        let text = format!("{}: its new layout cannot be kept", self.name());
        self.change(|state| {
            state.is_keeping = false;
            if error.kind() == ErrorKind::Fenced {
                state.writer.record_refused();
            }
            fail(state, error.context_at(text));
        });
    }

    /// Keeps the pending layout on the calling thread, unless a caller that waits for the log does.
    /// A layout that cannot be kept now stays pending.
    pub(super) fn keep_pending(self: &Arc<Self>) {
        let record = {
            let mut state = self.state.lock();
            let is_over = state.error.is_some() || state.is_released;
            if is_over { None } else { state.take_record() }
        };
        let Some(record) = record else { return };
        match self.keep_once(&record) {
            Ok(()) => {}
            Err(error) if may_pass(&error) => {
                tracing::debug!(%error, log = %self.requests.log, "a layout is kept later");
                self.change(|state| {
                    state.is_keeping = false;
                    state.record.get_or_insert(record);
                });
            }
            Err(error) => self.keep_failed(&error),
        }
    }
}

/// Whether a keeper that gave this error may keep the layout later.
fn may_pass(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Busy | ErrorKind::Io)
}

impl LogState {
    /// Notes that a caller wants all bytes to be synced.
    fn want_sync(&mut self, now_ns: u64) {
        self.sync_wanted = self.submitted;
        self.sync_since_ns.get_or_insert(now_ns);
    }

    /// The pending record, if no other thread keeps one. The caller must keep it.
    fn take_record(&mut self) -> Option<PendingRecord> {
        let record = if self.is_keeping { None } else { self.record.take() };
        self.is_keeping |= record.is_some();
        record
    }

    /// Wakes a caller that keeps the pending record.
    fn find_keeper(&mut self, effects: &mut Effects) {
        if self.record.is_some() && !self.is_keeping {
            self.waiters.first(&mut effects.wakers);
        }
    }
}

/// Ends a log with its first error: nothing is sent any more.
fn fail(state: &mut LogState, error: Error) {
    if state.error.is_none() {
        state.error = Some(error);
        state.streams.values_mut().for_each(ReplicaStream::end);
        state.ring.clear();
    }
}

/// Wakes every caller after an error.
fn wake_failed(state: &mut LogState, effects: &mut Effects) {
    if state.error.is_some() {
        state.waiters.all(&mut effects.wakers);
    }
}

impl LogCore {
    /// Notes the acknowledged end for callers without the lock.
    fn publish(&self, state: &LogState) {
        self.acknowledged.store(state.writer.acknowledged(), Ordering::Release);
        let is_crowded = state.ring.held_bytes() > self.options.ring_bytes_max;
        self.is_crowded.store(is_crowded, Ordering::Release);
    }
}
