//! The event queue, the steps of a run, and the owner of both.
//!
//! Events that are ready stand in a list, from which the seed draws the next. Later events stand in
//! a heap that is ordered by time.
//!
//! Locks: the thread that runs the simulation holds `turn` during the whole run. `state` is held
//! for a moment, and never while foreign code runs.

use std::cell::Cell;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::host::{Host, HostId, Hosts, Life};
use super::task::{Task, TaskId, Tasks, wrap};
use super::time::{TimerId, Timers};
use crate::random::Rng;

/// Limit of the notes that are kept.
const NOTES_MAX: usize = 10_000;
/// Longest time of the simulation that a caller waits. Tasks with timers of their own, such as the
/// looks of a log at its nodes, never leave a simulation without events, and a caller that waits in
/// vain would go on for ever.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// A component next to the scheduler, such as a network, that must know of crashes and of the end.
pub trait PartOf: Send + Sync {
    /// Called after `host` crashed and its tasks were dropped.
    fn crashed(&self, host: HostId);
    /// Called when the simulation ends. The component drops everything that it holds.
    fn shut(&self);
}

pub(super) enum Action {
    Run(Box<dyn FnOnce() + Send>),
    Poll(TaskId),
    Timer(TimerId),
}

struct ScheduledAction {
    at_ns: u64,
    sequence: u64,
    life: Life,
    action: Action,
}

impl PartialEq for ScheduledAction {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for ScheduledAction {}

impl PartialOrd for ScheduledAction {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledAction {
    /// Inverts the order, so that the heap's largest entry is the earliest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at_ns, other.sequence).cmp(&(self.at_ns, self.sequence))
    }
}

pub(super) struct SchedulerState {
    pub(super) now_ns: u64,
    sequence: u64,
    events: u64,
    hash: u64,
    rng: Rng,
    seeds: Rng,
    ready: Vec<ScheduledAction>,
    later: BinaryHeap<ScheduledAction>,
    /// Events of stopped hosts, in the order in which they became due.
    held: Vec<ScheduledAction>,
    pub(super) hosts: Hosts,
    pub(super) tasks: Tasks,
    pub(super) timers: Timers,
    parts: Vec<Weak<dyn PartOf>>,
    notes: Option<VecDeque<String>>,
    shut: bool,
}

impl SchedulerState {
    pub(super) fn push(&mut self, at_ns: u64, life: Life, action: Action) {
        self.sequence += 1;
        let at_ns = at_ns.max(self.now_ns);
        let entry = ScheduledAction { at_ns, sequence: self.sequence, life, action };
        if at_ns == self.now_ns {
            self.ready.push(entry);
        } else {
            self.later.push(entry);
        }
    }

    fn alive(&self, entry: &ScheduledAction) -> bool {
        match entry.action {
            Action::Timer(timer) => self.timers.armed(timer),
            Action::Poll(task) => self.tasks.exists(task),
            Action::Run(_) => self.hosts.is_current(entry.life),
        }
    }

    /// The next event up to `end_ns`. `Err` is an event of a life that is over, which the caller
    /// drops without the lock.
    fn next(&mut self, end_ns: u64) -> Option<Result<ScheduledAction, ScheduledAction>> {
        let entry = loop {
            if self.ready.is_empty() {
                self.later.peek().filter(|first| first.at_ns <= end_ns)?;
                let first = self.later.pop()?;
                if !self.alive(&first) {
                    return Some(Err(first));
                }
                self.now_ns = first.at_ns;
                self.ready.push(first);
                while self.later.peek().is_some_and(|entry| entry.at_ns == self.now_ns) {
                    self.ready.extend(self.later.pop());
                }
            }
            let drawn = match self.ready.len() {
                1 => 0,
                count => self.rng.usize(..count),
            };
            let entry = self.ready.swap_remove(drawn);
            if !self.alive(&entry) {
                return Some(Err(entry));
            }
            if !self.hosts.is_stopped(entry.life.host) {
                break entry;
            }
            self.held.push(entry);
        };
        self.events += 1;
        let kind = match entry.action {
            Action::Run(_) => 1,
            Action::Poll(_) => 2,
            Action::Timer(_) => 3,
        };
        self.mix(self.now_ns);
        self.mix(entry.sequence << 2 | kind);
        Some(Ok(entry))
    }

    /// Makes the events ready that were held back for a stopped host.
    pub(super) fn release(&mut self, host: HostId) {
        let held = std::mem::take(&mut self.held);
        for entry in held {
            if entry.life.host == host {
                self.ready.push(entry);
            } else {
                self.held.push(entry);
            }
        }
    }

    fn mix(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

pub(super) struct Core {
    seed: u64,
    pub(super) state: Mutex<SchedulerState>,
    turn: Mutex<()>,
    /// Number of the thread that runs the simulation; 0 for none.
    runner: AtomicU64,
    /// Number of threads outside the simulation that wait for it and can go on.
    callers_ready: AtomicU64,
}

impl Core {
    pub(super) fn wake(&self, task: TaskId) {
        let mut state = self.state.lock();
        let now_ns = state.now_ns;
        if let Some(life) = state.tasks.life(task) {
            state.push(now_ns, life, Action::Poll(task));
        }
    }

    /// Takes the turn for as long as the guard exists.
    fn take_turn(&self) -> Turn<'_> {
        let me = thread_number();
        assert!(
            self.runner.load(Ordering::Relaxed) != me,
            "something that runs in the simulation waits for the simulation: await the promise, do not wait() for it"
        );
        let lock = self.turn.lock();
        self.runner.store(me, Ordering::Relaxed);
        Turn { core: self, lock: Some(lock) }
    }
}

struct Turn<'a> {
    core: &'a Core,
    lock: Option<parking_lot::MutexGuard<'a, ()>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.core.runner.store(0, Ordering::Relaxed);
        if let Some(lock) = self.lock.take() {
            // A thread that waits gets the turn, and not the one that had it.
            parking_lot::MutexGuard::unlock_fair(lock);
        }
    }
}

/// A number that no other living thread has. It is never 0.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static MINE: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    MINE.with(|mine| *mine)
}

/// The owner of a run. Dropping it drops all tasks and events. [`Scheduler`] has the methods.
pub struct Simulation(Scheduler);

impl Simulation {
    /// Makes a world at time 0 without events.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = SchedulerState {
            now_ns: 0,
            sequence: 0,
            events: 0,
            hash: seed,
            rng: Rng::with_seed(stream(seed, "order")),
            seeds: Rng::with_seed(stream(seed, "seeds")),
            ready: Vec::new(),
            later: BinaryHeap::new(),
            held: Vec::new(),
            hosts: Hosts::default(),
            tasks: Tasks::default(),
            timers: Timers::default(),
            parts: Vec::new(),
            notes: None,
            shut: false,
        };
        let (state, turn) = (Mutex::new(state), Mutex::new(()));
        Self(Scheduler(Arc::new(Core {
            seed,
            state,
            turn,
            runner: AtomicU64::new(0),
            callers_ready: AtomicU64::new(0),
        })))
    }

    /// A handle for tasks and components, which does not keep the simulation alive.
    #[must_use]
    pub fn scheduler(&self) -> Scheduler {
        self.0.clone()
    }
}

impl Deref for Simulation {
    type Target = Scheduler;

    fn deref(&self) -> &Scheduler {
        &self.0
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        let (parts, ready, later, tasks) = {
            let mut state = self.0.0.state.lock();
            state.shut = true;
            let tasks = state.tasks.take_all();
            let mut ready = std::mem::take(&mut state.ready);
            ready.append(&mut state.held);
            (std::mem::take(&mut state.parts), ready, std::mem::take(&mut state.later), tasks)
        };
        drop((ready, later));
        drop(tasks);
        for part in parts.iter().filter_map(Weak::upgrade) {
            part.shut();
        }
        // Tasks and events that were dropped above may have added these.
        let mut state = self.0.0.state.lock();
        let rest = (std::mem::take(&mut state.ready), std::mem::take(&mut state.later));
        drop(state);
        drop(rest);
    }
}

/// The handle of a simulation. Its clones do not keep tasks alive.
#[derive(Clone)]
pub struct Scheduler(pub(super) Arc<Core>);

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scheduler(seed {})", self.0.seed)
    }
}

impl Scheduler {
    /// The seed that determines the whole run.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// A separate generator for `purpose`. The same seed and purpose give the same numbers,
    /// whatever other components draw.
    #[must_use]
    pub fn rng(&self, purpose: &str) -> Rng {
        Rng::with_seed(stream(self.0.seed, purpose))
    }

    /// A seed that no other call returns. It depends on the order of the calls.
    #[must_use]
    pub fn fresh_seed(&self) -> u64 {
        self.0.state.lock().seeds.u64(..)
    }

    /// Virtual nanoseconds since the beginning of the run.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.0.state.lock().now_ns
    }

    /// Number of steps so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.0.state.lock().events
    }

    /// Hash over all steps and over all [`record`](Self::record)ed words.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.0.state.lock().hash
    }

    /// Adds `word` to the trace: an outcome that two runs of one seed must share.
    pub fn record(&self, word: u64) {
        self.0.state.lock().mix(word);
    }

    /// Keeps the last 10,000 [`note`](Self::note)s from now on, for a person who reads a replay.
    pub fn keep_notes(&self) {
        self.0.state.lock().notes.get_or_insert_default();
    }

    /// Adds a note, if notes are kept.
    pub fn note(&self, text: impl FnOnce() -> String) {
        let now_ns = {
            let state = self.0.state.lock();
            if state.notes.is_none() {
                return;
            }
            state.now_ns
        };
        let line = format!("{:>16.3} µs  {}", now_ns as f64 / 1000.0, text());
        if let Some(notes) = &mut self.0.state.lock().notes {
            if notes.len() == NOTES_MAX {
                notes.pop_front();
            }
            notes.push_back(line);
        }
    }

    /// The kept notes, oldest first.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.0.state.lock().notes.iter().flatten().cloned().collect()
    }

    /// Adds a host, which is up.
    #[must_use]
    pub fn host(&self, name: &str) -> Host {
        let id = self.0.state.lock().hosts.add(name);
        Host::new(self.clone(), id, name)
    }

    /// Whether `life` is the current life of its host and the host is up.
    #[must_use]
    pub fn lives(&self, life: Life) -> bool {
        self.0.state.lock().hosts.is_current(life)
    }

    /// Whether `host` is up, in any life.
    #[must_use]
    pub fn is_up(&self, host: HostId) -> bool {
        self.0.state.lock().hosts.is_up(host)
    }

    /// The current life of `host`, or the next life if the host is down.
    #[must_use]
    pub fn life(&self, host: HostId) -> Life {
        self.0.state.lock().hosts.life(host)
    }

    /// Notifies `part` of crashes and of the end. The scheduler does not keep it alive.
    pub fn join(&self, part: &Arc<dyn PartOf>) {
        self.0.state.lock().parts.push(Arc::downgrade(part));
    }

    /// Starts a task that belongs to no host. `name` appears in messages.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        self.spawn_as(Life::WORLD, name, future)
    }

    pub(super) fn spawn_as<T: Send + 'static>(
        &self,
        life: Life,
        name: &str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        let (task, future) = wrap(future);
        let mut state = self.0.state.lock();
        if state.shut || !state.hosts.is_current(life) {
            drop(state);
            drop(future);
            return task;
        }
        let id = state.tasks.add(&self.0, life, name, future);
        let now_ns = state.now_ns;
        state.push(now_ns, life, Action::Poll(id));
        task
    }

    /// Runs `action` at `at_ns`, or now if that has passed. The action is dropped if the host of
    /// `life` crashes earlier.
    pub fn at(&self, at_ns: u64, life: Life, action: impl FnOnce() + Send + 'static) {
        let action = Action::Run(Box::new(action));
        let mut state = self.0.state.lock();
        if state.shut {
            drop(state);
            drop(action);
            return;
        }
        state.push(at_ns, life, action);
    }

    /// Executes one step. Returns false if no event is due until `end_ns`.
    fn step(&self, end_ns: u64) -> bool {
        let entry = loop {
            let next = self.0.state.lock().next(end_ns);
            match next {
                None => return false,
                Some(Ok(entry)) => break entry,
                Some(Err(over)) => drop(over),
            }
        };
        match entry.action {
            Action::Run(action) => action(),
            Action::Poll(task) => self.poll(task),
            Action::Timer(timer) => {
                let waker = self.0.state.lock().timers.fire(timer);
                waker.as_ref().map(Waker::wake_by_ref);
            }
        }
        true
    }

    fn poll(&self, id: TaskId) {
        let Some((mut future, waker)) = self.0.state.lock().tasks.take(id) else { return };
        let ready = future.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Ready(());
        let left = {
            let mut state = self.0.state.lock();
            if ready {
                state.tasks.remove(id);
                Some(future)
            } else {
                state.tasks.put_back(id, future)
            }
        };
        drop(left);
    }

    /// Number of threads outside the simulation whose futures were woken and not polled since.
    pub(crate) fn callers_ready(&self) -> &AtomicU64 {
        &self.0.callers_ready
    }

    /// Executes steps until `done` returns true. Returns false if no event is left before that.
    pub fn run_until(&self, done: impl Fn() -> bool) -> bool {
        let _turn = self.0.take_turn();
        while !done() {
            if !self.step(u64::MAX) {
                return done();
            }
        }
        true
    }

    /// Executes steps until `done` returns true, for a caller that has waited since `since_ns`.
    /// Returns false if no event is left before that, or if the caller has waited for an hour of
    /// the simulation.
    pub fn run_for_caller(&self, since_ns: u64, done: impl Fn() -> bool) -> bool {
        let end_ns = since_ns.saturating_add(WAIT_MAX.as_nanos() as u64);
        let is_over = Cell::new(false);
        let ended = self.run_until(|| {
            let is_done = done();
            is_over.set(!is_done && self.now_ns() > end_ns);
            is_done || is_over.get()
        });
        ended && !is_over.get()
    }

    /// Executes steps until no event is left.
    pub fn run(&self) {
        self.run_until(|| false);
    }

    /// Executes all steps within `duration` from now. The clock then shows the end of that time.
    pub fn run_for(&self, duration: Duration) {
        let end_ns = self.now_ns().saturating_add(duration.as_nanos() as u64);
        let _turn = self.0.take_turn();
        while self.step(end_ns) {}
        let mut state = self.0.state.lock();
        state.now_ns = state.now_ns.max(end_ns);
    }

    /// Executes steps until `future` completes.
    ///
    /// # Panics
    ///
    /// The method panics if no event is left before that, or after an hour of the simulation. The
    /// message names the tasks that wait.
    pub fn block_on<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let task = self.spawn("main", future);
        self.run_for_caller(self.now_ns(), || task.is_done());
        match task.take() {
            Some(Ok(value)) => value,
            _ => panic!("nothing is left to happen, and these wait: {}", self.waiting().join(", ")),
        }
    }

    /// Names of the tasks that have not ended.
    #[must_use]
    pub fn waiting(&self) -> Vec<String> {
        let state = self.0.state.lock();
        let name = |(life, name): (Life, &str)| match state.hosts.name(life.host) {
            "" => name.to_owned(),
            host => format!("{host}/{name}"),
        };
        state.tasks.names().map(name).collect()
    }

    pub(super) fn crash(&self, host: HostId) {
        let (futures, parts) = {
            let mut state = self.0.state.lock();
            if !state.hosts.crash(host) {
                return;
            }
            // They belong to a life that is over, and are dropped at their turn.
            state.release(host);
            (state.tasks.take_of(host), state.parts.clone())
        };
        self.note(|| format!("{} crashes", self.0.state.lock().hosts.name(host)));
        drop(futures);
        for part in parts.iter().filter_map(Weak::upgrade) {
            part.crashed(host);
        }
    }
}

/// Seed of a separate generator.
fn stream(seed: u64, purpose: &str) -> u64 {
    twox_hash::XxHash3_64::oneshot_with_seed(seed, purpose.as_bytes())
}
