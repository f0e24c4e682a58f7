//! Whose turn it is to write tables to a device: beyond the number of writers that it takes all of
//! them together get slower (Keigo §3.1), so flushes and compactions wait for one another rather
//! than write side by side.
//!
//! Invariants: 1. a flush begins a table only while all that write are fewer than the device takes,
//! or no flush writes; 2. a compaction only while that leaves room for a flush, or no compaction
//! writes; 3. of those that wait flushes go first, then the compactions of the highest level, since
//! writers wait for those soonest; among these who wrote a table last, so that a job ends, and its
//! inputs go, before the next begins to take room for its outputs, and then who came first; 4. the
//! log never waits; 5. a thread that writes a table to the device already begins another at once:
//! two that wait for each other's second turn would wait for ever; 6. nobody waits longer than
//! [`PATIENCE`], so that whatever holds its turn without writing costs speed and not progress.
//!
//! Copies and moves have the limit in how many threads they are given ([`crate::migrate::threads`])
//! and do not count here: they give way. Thread-safe: one lock, taken when a table is begun and
//! when it ends; a waiter sleeps on a condition.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use archipelago_env::{FileClass, IoContext, IoPurpose};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// See invariant 6: several times what a large table takes on a slow disk.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a file counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The log, and tables that a user waits for.
    Urgent,
    Flush,
    /// Into this level.
    Compaction(u8),
}

/// `None`: it does not count.
pub(crate) fn kind_of(context: IoContext) -> Option<Kind> {
    match (context.class, context.purpose) {
        (FileClass::Sst, IoPurpose::Flush) => Some(Kind::Flush),
        (FileClass::Sst, IoPurpose::Compaction { to, .. }) => Some(Kind::Compaction(to)),
        (FileClass::Wal | FileClass::Sst, _) => Some(Kind::Urgent),
        _ => None,
    }
}

#[derive(Debug, Default)]
struct State {
    urgent: usize,
    flushes: usize,
    compactions: usize,
    /// Threads that write tables of flushes and compactions, and how many each.
    writing: HashMap<ThreadId, usize>,
    /// Threads of the compactions that wrote last, as many as write at once, the latest at the end.
    going_on: Vec<ThreadId>,
    /// Who waits, first what comes first.
    waiting: BTreeSet<Place>,
    next_ticket: u64,
}

/// The place of who waits: whether it is a compaction, its level, whether it begins anew, its
/// ticket.
type Place = (bool, u8, bool, u64);

impl State {
    /// Whether it is the turn of who waits at `me`: the first of a kind of which nobody writes, or
    /// the first of all if there is room.
    fn is_turn(&self, me: Place, kind: Kind, limit: usize) -> bool {
        let others = self.urgent + self.compactions;
        let (mine, has_room) = match kind {
            Kind::Urgent => return true,
            Kind::Flush => (self.flushes, others + self.flushes < limit),
            Kind::Compaction(_) => (self.compactions, others + self.flushes.max(1) < limit),
        };
        let is_first_of_kind = self.waiting.iter().find(|other| other.0 == me.0) == Some(&me);
        is_first_of_kind && (mine == 0 || has_room && self.waiting.first() == Some(&me))
    }

    /// A compaction ended a table where `most` compactions write at once.
    fn goes_on(&mut self, thread: ThreadId, most: usize) {
        self.going_on.retain(|&other| other != thread);
        self.going_on.push(thread);
        let over = self.going_on.len().saturating_sub(most);
        self.going_on.drain(..over);
    }

    fn count(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Urgent => &mut self.urgent,
            Kind::Flush => &mut self.flushes,
            Kind::Compaction(_) => &mut self.compactions,
        }
    }
}

/// The turns of one device; see the module.
#[derive(Debug)]
pub(crate) struct WriteSlots {
    state: Mutex<State>,
    changed: Condvar,
    patience: Duration,
}

impl Default for WriteSlots {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), patience: PATIENCE }
    }
}

impl WriteSlots {
    /// Waits until a file of this kind may be written to a device that takes `limit` writers.
    pub(crate) fn begin(self: &Arc<Self>, kind: Kind, limit: u32) -> WriteSlot {
        let thread = thread::current().id();
        let mut state = self.state.lock();
        let mut waited = false;
        if kind != Kind::Urgent {
            if !state.writing.contains_key(&thread) {
                waited = self.wait(&mut state, thread, kind, limit as usize);
            }
            *state.writing.entry(thread).or_default() += 1;
        }
        *state.count(kind) += 1;
        WriteSlot { slots: Arc::clone(self), kind, thread, limit: limit as usize, waited }
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Waits for the turn of a table; whether that was necessary.
    fn wait(
        &self,
        state: &mut MutexGuard<'_, State>,
        thread: ThreadId,
        kind: Kind,
        limit: usize,
    ) -> bool {
        let (is_compaction, level) = match kind {
            Kind::Compaction(level) => (true, level),
            _ => (false, 0),
        };
        let begins_anew = !state.going_on.contains(&thread);
        let me = (is_compaction, level, begins_anew, state.next_ticket);
        state.next_ticket += 1;
        state.waiting.insert(me);
        let mut waited = false;
        let mut waits = |state: &mut State| {
            let waits = !state.is_turn(me, kind, limit);
            waited |= waits;
            waits
        };
        let _patience_ended = self.changed.wait_while_for(state, &mut waits, self.patience);
        state.waiting.remove(&me);
        if !state.waiting.is_empty() {
            // There may be room for the next.
            self.changed.notify_all();
        }
        waited
    }
}

/// A file is being written until this is dropped.
#[derive(Debug)]
pub(crate) struct WriteSlot {
    slots: Arc<WriteSlots>,
    kind: Kind,
    /// Which it counts for; it may be dropped by another.
    thread: ThreadId,
    limit: usize,
    pub(crate) waited: bool,
}

impl Drop for WriteSlot {
    fn drop(&mut self) {
        let mut state = self.slots.state.lock();
        *state.count(self.kind) -= 1;
        if let Kind::Compaction(_) = self.kind {
            // The log and a flush write beside them.
            state.goes_on(self.thread, self.limit.saturating_sub(2).max(1));
        }
        if self.kind != Kind::Urgent
            && let Some(tables) = state.writing.get_mut(&self.thread)
        {
            *tables -= 1;
            if *tables == 0 {
                state.writing.remove(&self.thread);
            }
        }
        if !state.waiting.is_empty() {
            self.slots.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests;
