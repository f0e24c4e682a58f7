//! Write slots: the number of tables and value files that are written to a device at the same time.
//!
//! Each [`crate::device::Device`] owns one [`WriteSlots`]. Beyond the number of writers that a
//! device takes, all of its writers together get slower (Keigo §3.1). So flushes, compactions and
//! garbage collections wait for a slot before they begin a table or a value file. In this module,
//! "table" also means a value file. Copies and moves do not take slots: the number of their threads
//! follows the same limit ([`crate::migrate::threads`]).
//!
//! Invariants:
//! 1. A flush begins a table only while fewer files are written than the device takes, or while no
//!    other flush writes.
//! 2. A compaction begins a table only while that leaves room for a flush, or while no other
//!    compaction writes. The same holds for garbage collections among themselves, so that they
//!    never starve behind compactions.
//! 3. Waiting flushes begin before waiting compactions, and these before waiting garbage
//!    collections. Compactions into a higher level (a smaller number) begin first, because user
//!    writes wait for those soonest. Within one level, a thread that wrote a table last begins
//!    first: its job ends, and its inputs are removed, before the next job takes room for outputs.
//!    After that, the order of arrival decides.
//! 4. The log never waits.
//! 5. A thread that writes a table to any device of the tiers begins another one without waiting,
//!    on any device: a job writes a table and the value file that belongs to it at the same time.
//!    Two threads that each wait for a second slot would otherwise wait for each other.
//! 6. No thread waits longer than [`PATIENCE`]. A holder that does not write costs speed, but
//!    never progress.
//!
//! Thread-safety: any thread may call any method; one lock guards the state.
//! Failure: nothing here fails.
//! Cost: a table takes the lock when it begins and when it ends. A waiting thread sleeps on a
//! condition variable.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use archipelago_env::{FileClass, IoContext, IoPurpose};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// Longest wait for a slot (invariant 6): several times the time that a large table takes on a
/// slow disk.
const PATIENCE: Duration = Duration::from_secs(10);

/// Kind of a file, which decides whether and when it gets a slot of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotKind {
    /// The log, and tables that a user waits for. They never wait.
    Urgent,
    Flush,
    /// A compaction into this level.
    Compaction(u8),
    /// A garbage collection of separated values.
    Gc,
}

/// The kind of a file that is written in this context; `None` if the file does not count.
pub(crate) fn kind_of(context: IoContext) -> Option<SlotKind> {
    match (context.class, context.purpose) {
        (FileClass::Manifest | FileClass::Other, _) => None,
        (FileClass::Wal, _) => Some(SlotKind::Urgent),
        (_, IoPurpose::Flush) => Some(SlotKind::Flush),
        (_, IoPurpose::Compaction { to, .. }) => Some(SlotKind::Compaction(to)),
        (_, IoPurpose::Gc) => Some(SlotKind::Gc),
        (FileClass::Sst | FileClass::ValueSst, _) => Some(SlotKind::Urgent),
    }
}

/// Threads that write tables of jobs, with the number of tables of each on all devices of the
/// tiers.
#[derive(Debug, Default)]
pub(crate) struct JobThreads {
    writing: Mutex<HashMap<ThreadId, usize>>,
}

impl JobThreads {
    fn is_writing(&self, thread: ThreadId) -> bool {
        self.writing.lock().contains_key(&thread)
    }

    fn begin(&self, thread: ThreadId) {
        *self.writing.lock().entry(thread).or_default() += 1;
    }

    fn end(&self, thread: ThreadId) {
        let mut writing = self.writing.lock();
        if let Some(tables) = writing.get_mut(&thread) {
            *tables -= 1;
            if *tables == 0 {
                writing.remove(&thread);
            }
        }
    }
}

/// The files that are written to the device, and the threads that wait to write one.
#[derive(Debug, Default)]
struct SlotState {
    urgent: usize,
    flushes: usize,
    compactions: usize,
    collections: usize,
    /// Threads of the compactions that wrote last, the latest at the end. There are at most as many
    /// as compactions write in parallel.
    continuing: Vec<ThreadId>,
    /// Waiting threads. The first one begins first.
    waiting: BTreeSet<QueuePosition>,
    next_ticket: u64,
}

/// The kind of a waiting job. Earlier kinds begin first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum JobRank {
    Flush,
    Compaction,
    Gc,
}

/// Position of a waiting thread in the queue. Positions are ordered by their fields, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct QueuePosition {
    job: JobRank,
    /// Level that a compaction writes into; 0 for other jobs.
    level: u8,
    /// Whether the thread begins a job: none of its tables was among the last ones.
    begins_job: bool,
    ticket: u64,
}

impl SlotState {
    /// Whether the thread that waits at `own` may begin: it is the first of its kind while no file
    /// of that kind is written, or the first of all while the device has room.
    fn may_begin(&self, own: QueuePosition, kind: SlotKind, limit: usize) -> bool {
        let others = self.urgent + self.compactions + self.collections;
        let leaves_room_for_flush = others + self.flushes.max(1) < limit;
        let (same_kind, has_room) = match kind {
            SlotKind::Urgent => return true,
            SlotKind::Flush => (self.flushes, others + self.flushes < limit),
            SlotKind::Compaction(_) => (self.compactions, leaves_room_for_flush),
            SlotKind::Gc => (self.collections, leaves_room_for_flush),
        };
        let is_same_kind = |other: &&QueuePosition| other.job == own.job;
        let is_first_of_kind = self.waiting.iter().find(is_same_kind) == Some(&own);
        is_first_of_kind && (same_kind == 0 || has_room && self.waiting.first() == Some(&own))
    }

    /// Notes that a compaction on `thread` ended a table. Remembers at most `threads_max` threads.
    fn note_continuing(&mut self, thread: ThreadId, threads_max: usize) {
        self.continuing.retain(|&other| other != thread);
        self.continuing.push(thread);
        let over = self.continuing.len().saturating_sub(threads_max);
        self.continuing.drain(..over);
    }

    fn count(&mut self, kind: SlotKind) -> &mut usize {
        match kind {
            SlotKind::Urgent => &mut self.urgent,
            SlotKind::Flush => &mut self.flushes,
            SlotKind::Compaction(_) => &mut self.compactions,
            SlotKind::Gc => &mut self.collections,
        }
    }
}

/// The write slots of one device.
#[derive(Debug)]
pub(crate) struct WriteSlots {
    state: Mutex<SlotState>,
    changed: Condvar,
    /// Shared by all devices of the tiers. Its lock is taken under that of `state`.
    threads: Arc<JobThreads>,
    patience: Duration,
}

impl WriteSlots {
    /// The free slots of a device, whose tiers share `threads`.
    pub(crate) fn new(threads: Arc<JobThreads>) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), threads, patience: PATIENCE }
    }

    /// Waits until a file of this kind may be written to a device that takes `limit` writers. The
    /// file counts as written until the returned slot is dropped.
    pub(crate) fn begin(self: &Arc<Self>, kind: SlotKind, limit: u32) -> WriteSlot {
        let thread = thread::current().id();
        let mut state = self.state.lock();
        let mut waited = false;
        if kind != SlotKind::Urgent {
            if !self.threads.is_writing(thread) {
                waited = self.wait(&mut state, thread, kind, limit as usize);
            }
            self.threads.begin(thread);
        }
        *state.count(kind) += 1;
        WriteSlot { slots: Arc::clone(self), kind, thread, limit: limit as usize, waited }
    }

    /// Number of threads that wait for a slot.
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Waits until a table may begin. Returns whether the thread had to wait.
    fn wait(
        &self,
        state: &mut MutexGuard<'_, SlotState>,
        thread: ThreadId,
        kind: SlotKind,
        limit: usize,
    ) -> bool {
        let (job, level) = match kind {
            SlotKind::Urgent => return false,
            SlotKind::Flush => (JobRank::Flush, 0),
            SlotKind::Compaction(level) => (JobRank::Compaction, level),
            SlotKind::Gc => (JobRank::Gc, 0),
        };
        let begins_job = !state.continuing.contains(&thread);
        let own = QueuePosition { job, level, begins_job, ticket: state.next_ticket };
        state.next_ticket += 1;
        state.waiting.insert(own);
        let mut waited = false;
        let mut waits = |state: &mut SlotState| {
            let waits = !state.may_begin(own, kind, limit);
            waited |= waits;
            waits
        };
        let _patience_ended = self.changed.wait_while_for(state, &mut waits, self.patience);
        state.waiting.remove(&own);
        if !state.waiting.is_empty() {
            // The device may have room for the next one.
            self.changed.notify_all();
        }
        waited
    }
}

/// A slot of a device: its file counts as written until this is dropped.
#[derive(Debug)]
pub(crate) struct WriteSlot {
    slots: Arc<WriteSlots>,
    kind: SlotKind,
    /// Thread that the file counts for. Another thread may drop the slot.
    thread: ThreadId,
    limit: usize,
    /// Whether the thread had to wait for the slot.
    pub(crate) waited: bool,
}

impl Drop for WriteSlot {
    fn drop(&mut self) {
        let mut state = self.slots.state.lock();
        *state.count(self.kind) -= 1;
        if let SlotKind::Compaction(_) = self.kind {
            // The log and a flush take two of the device's writers.
            state.note_continuing(self.thread, self.limit.saturating_sub(2).max(1));
        }
        if self.kind != SlotKind::Urgent {
            self.slots.threads.end(self.thread);
        }
        if !state.waiting.is_empty() {
            self.slots.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests;
