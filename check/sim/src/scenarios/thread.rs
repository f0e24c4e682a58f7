//! Threads of a simulated process: blocking code of the product, as a task in virtual time.
//!
//! The clients of storage nodes block their callers. A [`SimThread`] runs such code on a thread of
//! the system, which takes turns with the simulation: a task of the simulation lends the thread the
//! turn, and the thread gives it back when it waits for a future. So one thread runs at any moment,
//! and the seed alone decides the order of all steps.
//!
//! Invariants:
//! 1. Either the simulation runs or one [`SimThread`], and never both.
//! 2. A thread runs only within a step of the simulation, in the life of its host.
//! 3. Jobs of one thread run one after the other, in the order of their calls.
//! 4. A job does not wait for a lock that another thread holds while it waits for a future. Such a
//!    wait would keep the turn for ever.
//!
//! Thread-safety: the thread that runs the simulation starts threads and calls them.
//! Failure: the panic of a job ends its thread, and [`SimThread::panic_text`] has its text. A
//! thread whose host crashed, or whose simulation has ended, never runs again. It is left behind.
//! Cost: two switches between threads of the system per step of the thread.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::clock::Clock;
use archipelago_base::runtime::{Boxed, Runtime, wait_for};
use archipelago_base::simulation::Host;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use parking_lot::{Condvar, Mutex};

/// The side that may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnHolder {
    Simulation,
    Thread,
}

#[derive(Debug)]
struct TurnState {
    holder: TurnHolder,
    /// Wakes the task that lends the turn.
    waker: Option<Waker>,
    has_ended: bool,
}

/// The turn of one thread and its task.
#[derive(Debug)]
struct Turn {
    state: Mutex<TurnState>,
    changed: Condvar,
}

thread_local! {
    /// The turn of this thread, if it is the thread of a [`SimThread`].
    static TURN: RefCell<Option<Arc<Turn>>> = const { RefCell::new(None) };
}

impl Turn {
    fn new() -> Arc<Self> {
        let state = TurnState { holder: TurnHolder::Simulation, waker: None, has_ended: false };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Lends the turn to the thread until it waits or ends. Returns whether it has ended.
    fn lend(&self, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if state.has_ended {
            return true;
        }
        state.waker = Some(waker.clone());
        state.holder = TurnHolder::Thread;
        self.changed.notify_all();
        while state.holder == TurnHolder::Thread {
            self.changed.wait(&mut state);
        }
        state.has_ended
    }

    /// Waits on the thread for its turn. Returns the waker of the task.
    fn wait(&self) -> Waker {
        let mut state = self.state.lock();
        loop {
            if state.holder == TurnHolder::Thread
                && let Some(waker) = &state.waker
            {
                return waker.clone();
            }
            self.changed.wait(&mut state);
        }
    }

    fn give_back(&self, has_ended: bool) {
        let mut state = self.state.lock();
        state.holder = TurnHolder::Simulation;
        state.has_ended = has_ended;
        self.changed.notify_all();
    }
}

/// The environment of a process in the simulation, whose calls may come from a [`SimThread`].
#[derive(Clone, Debug)]
pub(crate) struct ProcessRuntime(pub(crate) Host);

impl Runtime for ProcessRuntime {
    fn now_ns(&self) -> u64 {
        Runtime::now_ns(&self.0)
    }

    fn unix_ms(&self) -> u64 {
        Runtime::unix_ms(&self.0)
    }

    fn sleep(&self, duration: Duration) -> Boxed<'static, ()> {
        Runtime::sleep(&self.0, duration)
    }

    fn spawn(&self, name: &str, task: Boxed<'static, ()>) {
        Runtime::spawn(&self.0, name, task);
    }

    fn seed(&self) -> u64 {
        Runtime::seed(&self.0)
    }

    /// Polls the future on the calling thread, which gives its turn back while the future waits.
    fn block_on(&self, mut future: Boxed<'_, ()>) {
        let turn = TURN.with_borrow(Clone::clone);
        let Some(turn) = turn else { return Runtime::block_on(&self.0, future) };
        loop {
            let waker = turn.wait();
            if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                return;
            }
            turn.give_back(false);
        }
    }
}

/// The clock of a process, whose sleeps take virtual time.
#[derive(Clone, Debug)]
pub(crate) struct ProcessClock(pub(crate) ProcessRuntime);

impl Clock for ProcessClock {
    fn now_ns(&self) -> u64 {
        Runtime::now_ns(&self.0)
    }

    fn unix_ms(&self) -> u64 {
        Runtime::unix_ms(&self.0)
    }

    fn sleep(&self, duration: Duration) {
        wait_for(&self.0, Runtime::sleep(&self.0, duration));
    }
}

/// Starts threads that do nothing. The thread that renews a lease waits for real time, which does
/// not pass in a run, so the run has the owner renew it. A second thread of the owner would also
/// break invariant 4: a renewal holds a lock while it waits for the register.
#[derive(Debug)]
pub(crate) struct IdleThreads;

impl Spawn for IdleThreads {
    fn spawn(&self, name: &str, _body: Box<dyn FnOnce() + Send>) -> Result<Joiner> {
        SystemSpawn.spawn(name, Box::new(|| {}))
    }
}

type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

/// Jobs that wait for their thread.
struct JobQueue<S> {
    jobs: VecDeque<Job<S>>,
    is_closed: bool,
    waker: Option<Waker>,
}

/// The result of a job, which [`SimThread::call`] returns.
pub(crate) struct Call<T>(Arc<Mutex<Option<T>>>);

impl<T> fmt::Debug for Call<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call(done: {})", self.is_done())
    }
}

impl<T> Call<T> {
    /// Whether the job has ended and its result was not taken.
    pub(crate) fn is_done(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Takes the result, if the job has ended.
    pub(crate) fn take(&self) -> Option<T> {
        self.0.lock().take()
    }
}

/// A thread of a process in the simulation, which owns a value of type `S` and runs jobs with it.
pub(crate) struct SimThread<S> {
    queue: Arc<Mutex<JobQueue<S>>>,
    turn: Arc<Turn>,
    panic: Arc<Mutex<Option<String>>>,
    joiner: Option<Joiner>,
}

impl<S> fmt::Debug for SimThread<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimThread(ended: {})", self.has_ended())
    }
}

impl<S: Send + 'static> SimThread<S> {
    /// Starts a thread of the process on `host`.
    pub(crate) fn start(host: &Host, value: S) -> Self {
        let turn = Turn::new();
        let queue = JobQueue { jobs: VecDeque::new(), is_closed: false, waker: None };
        let (queue, panic) = (Arc::new(Mutex::new(queue)), Arc::new(Mutex::new(None)));
        let runtime = ProcessRuntime(host.clone());
        let (own_turn, jobs, text) = (Arc::clone(&turn), Arc::clone(&queue), Arc::clone(&panic));
        let body = move || {
            TURN.set(Some(Arc::clone(&own_turn)));
            // The first turn comes with the first step of the task.
            let _no_need_of_it = own_turn.wait();
            *text.lock() = work(&runtime, &jobs, value);
            own_turn.give_back(true);
        };
        let joiner = SystemSpawn.spawn("sim-process", Box::new(body)).expect("the system's thread");
        let lent = Arc::clone(&turn);
        let _ends_with_the_host = host.spawn(
            "process",
            poll_fn(move |context| match lent.lend(context.waker()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }),
        );
        Self { queue, turn, panic, joiner: Some(joiner) }
    }

    /// Runs `job` on the thread, after all earlier jobs.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Call<T> {
        let place = Arc::new(Mutex::new(None));
        let result = Arc::clone(&place);
        let job: Job<S> = Box::new(move |value: &mut S| {
            let answer = job(value);
            *result.lock() = Some(answer);
        });
        self.change(|queue| queue.jobs.push_back(job));
        Call(place)
    }

    /// Ends the thread after the jobs that wait.
    pub(crate) fn close(&self) {
        self.change(|queue| queue.is_closed = true);
    }

    fn change(&self, change: impl FnOnce(&mut JobQueue<S>)) {
        let waker = {
            let mut queue = self.queue.lock();
            change(&mut queue);
            queue.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The text of the panic that ended the thread.
    pub(crate) fn panic_text(&self) -> Option<String> {
        self.panic.lock().clone()
    }
}

impl<S> SimThread<S> {
    /// Whether the thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.turn.state.lock().has_ended
    }
}

impl<S> Drop for SimThread<S> {
    fn drop(&mut self) {
        if let Some(joiner) = self.joiner.take()
            && self.has_ended()
        {
            let _panics_are_noted = joiner.join();
        }
    }
}

/// Runs jobs until the queue is closed. Returns the text of a panic, after which the value is left
/// as it is.
fn work<S>(runtime: &ProcessRuntime, queue: &Mutex<JobQueue<S>>, mut value: S) -> Option<String>
where
    S: Send + 'static,
{
    loop {
        let next = poll_fn(|context| {
            let mut queue = queue.lock();
            match queue.jobs.pop_front() {
                Some(job) => Poll::Ready(Some(job)),
                None if queue.is_closed => Poll::Ready(None),
                None => {
                    queue.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        });
        let job = wait_for(runtime, next)?;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(&mut value))) {
            std::mem::forget(value);
            return Some(panic_text(&*panic));
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("with no text").to_owned()
}

#[cfg(test)]
mod tests {
    use archipelago_base::simulation::Simulation;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Two threads of two hosts that sleep in turns. Returns what they noted, and the trace.
    fn turns(seed: u64) -> (Vec<(u32, u64)>, u64) {
        let simulation = Simulation::new(seed);
        let noted = Arc::new(Mutex::new(Vec::new()));
        let hosts = [simulation.host("one"), simulation.host("other")];
        let threads = [0, 1].map(|at| SimThread::start(&hosts[at as usize], at));
        let calls: Vec<Call<u64>> = (0..10_u32)
            .map(|number| {
                let at = (number % 2) as usize;
                let (noted, host) = (Arc::clone(&noted), hosts[at].clone());
                threads[at].call(move |value| {
                    let clock = ProcessClock(ProcessRuntime(host));
                    clock.sleep(MS * (number % 3));
                    noted.lock().push((*value, clock.now_ns()));
                    clock.now_ns()
                })
            })
            .collect();
        threads.iter().for_each(SimThread::close);
        simulation.run_for(Duration::from_secs(1));
        assert!(calls.iter().all(Call::is_done));
        assert!(threads.iter().all(SimThread::has_ended));
        let noted = noted.lock().clone();
        (noted, simulation.trace_hash())
    }

    #[test]
    fn threads_take_turns_in_an_order_that_the_seed_decides() {
        let (noted, _) = turns(1);
        assert_eq!(noted.len(), 10);
        assert!(noted.iter().map(|note| note.1).is_sorted(), "{noted:?}");
        assert_eq!(turns(1), turns(1));
        assert!((2..40).any(|seed| turns(seed).0 != noted), "no seed gives another order");
    }

    #[test]
    fn stopped_host_holds_its_thread_up() {
        let simulation = Simulation::new(1);
        let host = simulation.host("one");
        let thread = SimThread::start(&host, ());
        simulation.run_for(MS);
        host.stop();
        let call = thread.call(|()| 7);
        simulation.run_for(10 * MS);
        assert!(!call.is_done());
        host.go_on();
        simulation.run_for(MS);
        assert_eq!(call.take(), Some(7));
        thread.close();
        simulation.run_for(MS);
        assert!(thread.has_ended());
    }

    #[test]
    fn panic_of_a_job_ends_its_thread_with_a_text() {
        let simulation = Simulation::new(1);
        let thread = SimThread::start(&simulation.host("one"), ());
        let call = thread.call(|()| -> u32 { panic!("as the test wants") });
        simulation.run_for(MS);
        assert!(thread.has_ended() && !call.is_done());
        assert_eq!(thread.panic_text().as_deref(), Some("as the test wants"));
    }
}
