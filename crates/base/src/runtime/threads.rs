//! Tasks on threads: a queue of tasks that are ready, a few threads that poll them, and one thread
//! for timers.
//!
//! A task is *idle* (only its wakers hold it), *queued*, *running*, or over.
//!
//! Invariants:
//! 1. The queue holds a task at most once, and one thread at a time polls it.
//! 2. A wake-up during a poll causes another poll.
//! 3. No lock is held while code of a task or of a waker runs or is dropped.
//!
//! Thread-safety: any thread may wake, spawn and end.
//! Failure: a task that panics is dropped, and its thread continues.
//! Cost: a wake-up takes one lock of the task and one of the queue.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{Boxed, Runtime};
use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::random::entropy_seed;
use crate::spawn::{Spawn, SystemSpawn};

/// Number of threads that poll in the shared runtime. Tasks never block, so two suffice.
const WORKERS: usize = 2;

enum Stage {
    Idle(Boxed<'static, ()>),
    Queued(Boxed<'static, ()>),
    Running { again: bool },
    Over,
}

struct Job {
    core: Weak<Core>,
    name: String,
    stage: Mutex<Stage>,
}

impl Wake for Job {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut stage = self.stage.lock();
        match std::mem::replace(&mut *stage, Stage::Over) {
            Stage::Idle(task) => {
                *stage = Stage::Queued(task);
                drop(stage);
                self.enqueue();
            }
            Stage::Running { .. } => *stage = Stage::Running { again: true },
            queued_or_over => *stage = queued_or_over,
        }
    }
}

impl Job {
    fn enqueue(self: &Arc<Self>) {
        if let Some(core) = self.core.upgrade() {
            let mut queue = core.queue.lock();
            if !queue.stopped {
                queue.ready.push_back(Arc::clone(self));
                drop(queue);
                core.work.notify_one();
            }
        }
    }

    fn run(self: &Arc<Self>) {
        let mut task = {
            let mut stage = self.stage.lock();
            match std::mem::replace(&mut *stage, Stage::Running { again: false }) {
                Stage::Queued(task) => task,
                other => {
                    *stage = other;
                    return;
                }
            }
        };
        let waker = Waker::from(Arc::clone(self));
        let poll = || task.as_mut().poll(&mut Context::from_waker(&waker));
        // The panic was reported already. The task is dropped like one that has completed.
        let done = catch_unwind(AssertUnwindSafe(poll)).map_or(true, |polled| polled.is_ready());
        let mut stage = self.stage.lock();
        if done {
            *stage = Stage::Over;
            drop(stage);
            drop(task);
        } else if matches!(*stage, Stage::Running { again: true }) {
            *stage = Stage::Queued(task);
            drop(stage);
            self.enqueue();
        } else {
            *stage = Stage::Idle(task);
        }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Job({})", self.name)
    }
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Arc<Job>>,
    stopped: bool,
}

#[derive(Default)]
struct Timers {
    by_time: BTreeMap<(u64, u64), Waker>,
    made: u64,
    stopped: bool,
}

struct Core {
    clock: SystemClock,
    queue: Mutex<Queue>,
    work: Condvar,
    timers: Mutex<Timers>,
    sooner: Condvar,
}

impl Core {
    fn poll_tasks(&self) {
        loop {
            let job = {
                let mut queue = self.queue.lock();
                loop {
                    if queue.stopped {
                        return;
                    }
                    if let Some(job) = queue.ready.pop_front() {
                        break job;
                    }
                    self.work.wait(&mut queue);
                }
            };
            job.run();
        }
    }

    fn keep_time(&self) {
        let mut timers = self.timers.lock();
        while !timers.stopped {
            let now_ns = self.clock.now_ns();
            let first = timers.by_time.first_key_value().map(|(key, _)| *key);
            match first {
                Some((at_ns, _)) if at_ns <= now_ns => {
                    let waker = timers.by_time.pop_first().map(|(_, waker)| waker);
                    drop(timers);
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                    timers = self.timers.lock();
                }
                Some((at_ns, _)) => {
                    let rest = Duration::from_nanos(at_ns - now_ns);
                    self.sooner.wait_for(&mut timers, rest);
                }
                None => self.sooner.wait(&mut timers),
            }
        }
    }

    fn stop(&self) {
        let ready = {
            let mut queue = self.queue.lock();
            queue.stopped = true;
            std::mem::take(&mut queue.ready)
        };
        let wakers = {
            let mut timers = self.timers.lock();
            timers.stopped = true;
            std::mem::take(&mut timers.by_time)
        };
        self.work.notify_all();
        self.sooner.notify_all();
        drop((ready, wakers));
    }
}

/// A future that completes at a moment of the system's clock.
struct Sleep {
    core: Arc<Core>,
    at_ns: u64,
    key: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.core.clock.now_ns() >= this.at_ns {
            return Poll::Ready(());
        }
        let (old, first) = {
            let mut timers = this.core.timers.lock();
            let key = *this.key.get_or_insert_with(|| {
                timers.made += 1;
                (this.at_ns, timers.made)
            });
            let old = if timers.stopped {
                None
            } else {
                timers.by_time.insert(key, context.waker().clone())
            };
            (old, timers.by_time.first_key_value().is_some_and(|(first, _)| *first == key))
        };
        if first {
            this.core.sooner.notify_one();
        }
        drop(old);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let waker = self.key.and_then(|key| self.core.timers.lock().by_time.remove(&key));
        drop(waker);
    }
}

/// A runtime on threads of the operating system. When it is dropped, its threads stop after their
/// current poll, and no task is polled again.
pub struct ThreadRuntime(Arc<Core>);

impl fmt::Debug for ThreadRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queued = self.0.queue.lock().ready.len();
        write!(f, "ThreadRuntime({queued} tasks are ready)")
    }
}

impl ThreadRuntime {
    /// Starts a runtime with `workers` threads that poll and one thread for timers. Errors: `Io` if
    /// the system starts no threads.
    pub fn start(workers: usize) -> Result<Arc<Self>> {
        let core = Arc::new(Core {
            clock: SystemClock::new(),
            queue: Mutex::default(),
            work: Condvar::new(),
            timers: Mutex::default(),
            sooner: Condvar::new(),
        });
        let runtime = Arc::new(Self(Arc::clone(&core)));
        for _ in 0..workers.max(1) {
            let core = Arc::clone(&core);
            let _ends_by_itself =
                SystemSpawn.spawn("tasks", Box::new(move || core.poll_tasks()))?;
        }
        let _ends_by_itself = SystemSpawn.spawn("timers", Box::new(move || core.keep_time()))?;
        Ok(runtime)
    }

    /// The runtime of this process, which the first call starts. Errors: `Io` if the system started
    /// no threads for the first call.
    pub fn shared() -> Result<Arc<Self>> {
        static SHARED: OnceLock<Arc<ThreadRuntime>> = OnceLock::new();
        static STARTING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = STARTING.lock();
        if let Some(runtime) = SHARED.get() {
            return Ok(Arc::clone(runtime));
        }
        let runtime = Self::start(WORKERS)?;
        Ok(Arc::clone(SHARED.get_or_init(|| runtime)))
    }
}

impl Runtime for ThreadRuntime {
    fn now_ns(&self) -> u64 {
        self.0.clock.now_ns()
    }

    fn unix_ms(&self) -> u64 {
        self.0.clock.unix_ms()
    }

    fn sleep(&self, duration: Duration) -> Boxed<'static, ()> {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let at_ns = self.now_ns().saturating_add(ns);
        Box::pin(Sleep { core: Arc::clone(&self.0), at_ns, key: None })
    }

    fn spawn(&self, name: &str, task: Boxed<'static, ()>) {
        let (core, stage) = (Arc::downgrade(&self.0), Mutex::new(Stage::Queued(task)));
        Arc::new(Job { core, name: name.to_owned(), stage }).enqueue();
    }

    fn seed(&self) -> u64 {
        entropy_seed()
    }
}

impl Drop for ThreadRuntime {
    fn drop(&mut self) {
        self.0.stop();
    }
}
