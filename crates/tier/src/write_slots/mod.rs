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
pub(crate) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
    patience: Duration,
}

impl Default for Turns {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), patience: PATIENCE }
    }
}

impl Turns {
    /// Waits until a file of this kind may be written to a device that takes `limit` writers.
    pub(crate) fn begin(self: &Arc<Self>, kind: Kind, limit: u32) -> Turn {
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
        Turn { turns: Arc::clone(self), kind, thread, limit: limit as usize, waited }
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
pub(crate) struct Turn {
    turns: Arc<Turns>,
    kind: Kind,
    /// Which it counts for; it may be dropped by another.
    thread: ThreadId,
    limit: usize,
    pub(crate) waited: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock();
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
            self.turns.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const DEEP: Kind = Kind::Compaction(6);

    /// Begins in threads of their own, one after another; each tells its kind when its turn comes,
    /// and hands the turn over.
    struct World {
        turns: Arc<Turns>,
        tell: mpsc::Sender<(Kind, Turn)>,
        told: mpsc::Receiver<(Kind, Turn)>,
        threads: Vec<thread::JoinHandle<()>>,
    }

    impl World {
        fn new() -> Self {
            let (tell, told) = mpsc::channel();
            Self { turns: Arc::default(), tell, told, threads: Vec::new() }
        }

        #[expect(clippy::disallowed_methods, reason = "a test of threads")]
        fn ask(&mut self, kind: Kind, limit: u32) {
            let (turns, tell) = (Arc::clone(&self.turns), self.tell.clone());
            let asked = self.turns.state.lock().next_ticket;
            self.threads.push(thread::spawn(move || {
                let turn = turns.begin(kind, limit);
                tell.send((kind, turn)).expect("the test listens");
            }));
            while self.turns.state.lock().next_ticket == asked {
                thread::yield_now();
            }
        }

        fn next(&self) -> (Kind, Turn) {
            self.told.recv().expect("a turn")
        }

        /// Whose turn it became, in order, while so many wait on.
        fn began(&self, kinds: &[Kind], waiting: usize) -> Vec<Turn> {
            let turns = kinds.iter().map(|&kind| {
                let (began, turn) = self.next();
                assert_eq!(began, kind);
                turn
            });
            let turns = turns.collect();
            assert_eq!(self.turns.waiting(), waiting);
            turns
        }

        fn end(self) {
            self.threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            let state = self.turns.state.lock();
            let left = (state.urgent, state.flushes, state.compactions, state.writing.len());
            assert_eq!((left, state.waiting.len()), ((0, 0, 0, 0), 0));
        }
    }

    const LIMIT: u32 = 4;

    #[test]
    fn tables_wait_for_one_another_flushes_go_first_and_then_the_highest_level() {
        let mut world = World::new();
        let log = world.turns.begin(Kind::Urgent, LIMIT);
        for level in [6, 5, 6, 4] {
            world.ask(Kind::Compaction(level), LIMIT);
        }
        let (deep, next) = (Kind::Compaction(6), Kind::Compaction(5));
        let mut first = world.began(&[deep, next], 2);
        for _ in 0..3 {
            world.ask(Kind::Flush, LIMIT);
        }
        let mut flush = world.began(&[Kind::Flush], 4);
        first.pop();
        let second = world.began(&[Kind::Flush], 3);
        flush.clear();
        let third = world.began(&[Kind::Flush], 2);
        drop(third);
        let fourth = world.began(&[Kind::Compaction(4)], 1);
        drop(first);
        let last = world.began(&[deep], 0);
        drop((log, second, fourth, last));
        world.end();
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test of threads")]
    fn a_job_that_has_begun_goes_on_before_another_begins() {
        let mut world = World::new();
        let (turns, tell) = (Arc::clone(&world.turns), world.tell.clone());
        let (again, may) = mpsc::channel();
        world.threads.push(thread::spawn(move || {
            tell.send((Kind::Flush, turns.begin(DEEP, 1))).expect("the test listens");
            may.recv().expect("the test goes on");
            tell.send((Kind::Flush, turns.begin(DEEP, 1))).expect("the test listens");
        }));
        drop(world.began(&[Kind::Flush], 0));
        world.ask(DEEP, 1);
        let blocker = world.began(&[DEEP], 0);
        world.ask(DEEP, 1);
        again.send(()).expect("it waits");
        while world.turns.waiting() < 2 {
            thread::yield_now();
        }
        drop(blocker);
        drop(world.began(&[Kind::Flush], 1));
        drop(world.next());
        world.end();
    }

    #[test]
    fn as_many_go_on_as_write_at_once() {
        let ids = [(); 3].map(|()| thread::scope(|s| s.spawn(|| thread::current().id()).join()));
        let [one, two, three] = ids.map(|id| id.expect("no panic"));
        let mut state = State::default();
        for thread in [one, two, one, three] {
            state.goes_on(thread, 2);
        }
        assert_eq!(state.going_on, [one, three]);
        state.goes_on(two, 1);
        assert_eq!(state.going_on, [two]);
    }

    #[test]
    fn a_flush_and_a_compaction_write_whatever_else_does() {
        let mut world = World::new();
        let others: Vec<Turn> = (0..9).map(|_| world.turns.begin(Kind::Urgent, LIMIT)).collect();
        world.ask(Kind::Flush, LIMIT);
        let flush = world.began(&[Kind::Flush], 0);
        world.ask(Kind::Flush, LIMIT);
        // A compaction beside flushes that wait, one into L0 too, and only one.
        world.ask(Kind::Compaction(0), LIMIT);
        let compaction = world.began(&[Kind::Compaction(0)], 1);
        world.ask(DEEP, LIMIT);
        assert_eq!(world.turns.waiting(), 2);
        drop(flush);
        let flush = world.began(&[Kind::Flush], 1);
        drop(compaction);
        drop((world.began(&[DEEP], 0), flush, others));
        world.end();
    }

    #[test]
    fn a_thread_gets_its_second_turn_at_once_and_patience_ends() {
        let mut world = World::new();
        let patience = Duration::from_millis(20);
        world.turns = Arc::new(Turns { patience, ..Turns::default() });
        let held = [world.turns.begin(DEEP, 1), world.turns.begin(DEEP, 1)];
        assert_eq!(world.turns.state.lock().compactions, 2);
        world.ask(DEEP, 1);
        let (_, turn) = world.next();
        drop((held, turn));
        world.end();
    }

    #[test]
    fn what_counts_as_what() {
        let of = |class, purpose| kind_of(IoContext::new(class, purpose));
        let compaction = IoPurpose::Compaction { from: 4, to: 5 };
        assert_eq!(of(FileClass::Wal, IoPurpose::ForegroundWrite), Some(Kind::Urgent));
        assert_eq!(of(FileClass::Sst, IoPurpose::Flush), Some(Kind::Flush));
        assert_eq!(of(FileClass::Sst, compaction), Some(Kind::Compaction(5)));
        assert_eq!(of(FileClass::Sst, IoPurpose::Ingest), Some(Kind::Urgent));
        assert_eq!(of(FileClass::Manifest, IoPurpose::Flush), None);
    }
}
