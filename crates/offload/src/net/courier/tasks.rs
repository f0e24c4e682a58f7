//! The work of a courier as two tasks of a [`Runtime`], for owners and executors in virtual time.
//!
//! Invariant: the tasks make the same requests as the threads of the courier, and handle the
//! answers with the same functions.
//!
//! Thread-safety: any thread may wait for the end.
//! Failure: as for the threads. A task also ends with the host that it runs on.
//! Cost: a wake-up for each message.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use archipelago_base::runtime::{Boxed, Runtime, wait_for};
use archipelago_fabric::{ClientId, Route};
use parking_lot::Mutex;

use super::super::runtime_parts::RuntimeParts;
use super::{ANSWER, Carried, CourierState, Fetching, NextSend, Outgoing, WAIT, next_send};

/// Number of the tasks that run, and the waker of the thread that waits for their end.
#[derive(Debug, Default)]
struct Running {
    tasks: usize,
    waker: Option<Waker>,
}

/// The running tasks of a courier.
#[derive(Debug)]
pub(super) struct CourierTasks {
    running: Arc<Mutex<Running>>,
    runtime: Arc<dyn Runtime>,
}

/// Counts a task as running until the drop, which also comes with the end of the host.
struct RunningTask(Arc<Mutex<Running>>);

impl Drop for RunningTask {
    fn drop(&mut self) {
        let waker = {
            let mut running = self.0.lock();
            running.tasks -= 1;
            running.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A route to the manager.
struct TaskLine {
    route: Route,
    ways: [String; 1],
}

impl CourierTasks {
    /// Starts the tasks of the courier to `manager`.
    pub(super) fn start(carried: &Carried, manager: &str, parts: &RuntimeParts) -> Self {
        let running = Arc::new(Mutex::new(Running { tasks: 2, waker: None }));
        let runtime = Arc::clone(&parts.runtime);
        let line = || {
            let client = ClientId(runtime.seed());
            TaskLine { route: Route::new(&parts.reach, client, None), ways: [manager.to_owned()] }
        };
        let (sending, waiting) = (line(), line());
        let counted = || RunningTask(Arc::clone(&running));
        // The sending task must not end before the other one has begun.
        let fetching = Fetching::begin(&carried.shared, &carried.all);
        let (task, sender, timers) = (counted(), carried.clone(), Arc::clone(&runtime));
        let send = async move {
            let _task = task;
            send_all(&sender, &sending, &*timers).await;
        };
        runtime.spawn("offload-send", Box::pin(send));
        let (task, fetcher, timers) = (counted(), carried.clone(), Arc::clone(&runtime));
        let wait = async move {
            let _task = task;
            let _fetching = fetching;
            wait_for_mail(&fetcher, &waiting, &*timers).await;
        };
        runtime.spawn("offload-mail", Box::pin(wait));
        Self { running, runtime }
    }

    /// Waits until both tasks have ended.
    pub(super) fn join(&self) {
        let ended = poll_fn(|context| {
            let mut running = self.running.lock();
            if running.tasks == 0 {
                return Poll::Ready(());
            }
            running.waker = Some(context.waker().clone());
            Poll::Pending
        });
        wait_for(&*self.runtime, ended);
    }
}

/// Waits for messages to send, and takes those for one request. `None` if the courier ends and has
/// sent everything, or has no time left.
async fn next_mail(shared: &CourierState, runtime: &dyn Runtime) -> Option<Outgoing> {
    let mut end: Option<Boxed<'static, ()>> = None;
    poll_fn(|context| {
        let left = {
            let mut out = shared.out.lock();
            match next_send(shared, &mut out) {
                NextSend::Send(outgoing) => return Poll::Ready(Some(outgoing)),
                NextSend::End => return Poll::Ready(None),
                NextSend::Wait(left) => {
                    out.waker = Some(context.waker().clone());
                    left
                }
            }
        };
        let Some(left) = left else { return Poll::Pending };
        let timer = end.get_or_insert_with(|| runtime.sleep(left));
        timer.as_mut().poll(context).map(|()| None)
    })
    .await
}

async fn send_all(carried: &Carried, line: &TaskLine, runtime: &dyn Runtime) {
    while let Some(outgoing) = next_mail(&carried.shared, runtime).await {
        let Outgoing { messages, answer } = outgoing;
        let post = carried.sending_request(messages);
        let answered = line.route.ask(&line.ways, &post, answer).await;
        if !carried.goes_on_sending(answered) {
            return;
        }
    }
}

async fn wait_for_mail(carried: &Carried, line: &TaskLine, runtime: &dyn Runtime) {
    let post = carried.mail_request();
    loop {
        let asked_ns = carried.shared.clock.now_ns();
        let answered = line.route.ask(&line.ways, &post, ANSWER).await;
        if carried.must_pause(asked_ns, answered) {
            runtime.sleep(WAIT).await;
        }
        if !carried.goes_on_waiting() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use archipelago_base::Epoch;
    use archipelago_base::simulation::Simulation;
    use archipelago_fabric::sim::{Model, Network};
    use archipelago_fabric::{Handler, Listener, Node, NodeId, Provider, Reply, Request};

    use super::super::{Addressed, Correspondent, Couriers, OffloadMessage, Resident};
    use super::*;
    use crate::ids::{ExecutorId, JobId, SchedulerId};
    use crate::job::Payload;

    /// A manager that has no mail, and the answer that it gives.
    struct Manager {
        answer: OffloadMessage,
        requests: Arc<AtomicU64>,
        /// Messages that it got.
        got: Arc<Mutex<Vec<OffloadMessage>>>,
    }

    impl Handler for Manager {
        fn handle(&self, request: Request<'_>, reply: Reply) {
            self.requests.fetch_add(1, Ordering::Relaxed);
            if let Ok(OffloadMessage::Post { mail, .. }) = OffloadMessage::decode(request.body) {
                let read = mail.iter().map(|payload| OffloadMessage::decode(&payload.0));
                self.got.lock().extend(read.map(|message| message.expect("a message")));
            }
            reply.send(self.answer.encode());
        }
    }

    /// Managers and the parts of an executor, in one simulation.
    struct Cluster {
        simulation: Simulation,
        parts: RuntimeParts,
        managers: Vec<String>,
        requests: Vec<Arc<AtomicU64>>,
        got: Vec<Arc<Mutex<Vec<OffloadMessage>>>>,
        _nodes: Vec<(Arc<Node>, Box<dyn Listener>)>,
    }

    impl Cluster {
        fn new(answers: &[OffloadMessage]) -> Self {
            let simulation = Simulation::new(1);
            let network = Network::new(&simulation);
            let host = simulation.host("executor");
            let reach = Arc::new(network.join(&host, Model::quick()));
            let parts = RuntimeParts { reach, runtime: Arc::new(host), clock: simulation.clock() };
            let (mut names, mut requests, mut got, mut nodes) = (vec![], vec![], vec![], vec![]);
            for (number, answer) in (1..).zip(answers) {
                let host = simulation.host(&format!("manager{number}"));
                let manager = Manager {
                    answer: answer.clone(),
                    requests: Arc::default(),
                    got: Arc::default(),
                };
                names.push(host.name().to_owned());
                requests.push(Arc::clone(&manager.requests));
                got.push(Arc::clone(&manager.got));
                let node = network.node(NodeId(number), Epoch(1), Some(Box::new(manager)));
                let node = node.expect("a node");
                let listener = network.join(&host, Model::quick()).serve(&node, host.name());
                nodes.push((node, listener.expect("a host serves at its name")));
            }
            Self { simulation, parts, managers: names, requests, got, _nodes: nodes }
        }

        fn couriers(&self, resident: &Arc<dyn Resident>) -> Couriers {
            let me = Correspondent::Executor(ExecutorId(1));
            let outboxes = Couriers::outboxes(me, self.managers.len(), &self.parts.clock);
            let resident = Arc::downgrade(resident);
            Couriers::start_tasks(&outboxes, &self.managers, &self.parts, &resident)
        }
    }

    /// A resident that has a message for each of two schedulers at its timer with this number.
    struct Speaking {
        at: u64,
        ticks: AtomicU64,
    }

    impl Resident for Speaking {
        fn take(&self, _: SchedulerId, _messages: Vec<OffloadMessage>) -> Vec<Addressed> {
            Vec::new()
        }

        fn tick(&self) -> Vec<Addressed> {
            if self.ticks.fetch_add(1, Ordering::Relaxed) != self.at {
                return Vec::new();
            }
            let of = |number| Addressed { to: SchedulerId(number), message: cancel_job(number) };
            [1, 2].map(of).into()
        }
    }

    fn speaking_at(at: u64) -> Arc<dyn Resident> {
        Arc::new(Speaking { at, ticks: AtomicU64::new(0) })
    }

    fn no_mail() -> OffloadMessage {
        OffloadMessage::Mail { mail: Vec::new() }
    }

    fn cancel_job(number: u64) -> OffloadMessage {
        OffloadMessage::CancelJob { job: JobId { number, ..JobId::default() } }
    }

    #[test]
    fn manager_that_stands_by_is_asked_in_intervals() {
        let (cluster, resident) =
            (Cluster::new(&[OffloadMessage::Standby {}]), speaking_at(u64::MAX));
        let couriers = cluster.couriers(&resident);
        let time = Duration::from_secs(10);
        cluster.simulation.run_for(time);
        let counted = u128::from(cluster.requests[0].load(Ordering::Relaxed));
        assert!(counted > 10 && counted <= time.as_nanos() / WAIT.as_nanos(), "{counted}");
        // The tasks end within the time of the simulation.
        drop(couriers);
    }

    #[test]
    fn each_manager_gets_its_messages() {
        let (cluster, resident) = (Cluster::new(&[no_mail(), no_mail()]), speaking_at(2));
        let couriers = cluster.couriers(&resident);
        cluster.simulation.run_for(Duration::from_secs(2));
        assert!(cluster.requests.iter().all(|asked| asked.load(Ordering::Relaxed) > 10));
        for (number, got) in (1..).zip(&cluster.got) {
            assert_eq!(*got.lock(), [cancel_job(number)]);
        }
        drop(couriers);
    }

    #[test]
    fn message_of_the_last_timer_reaches_every_manager() {
        // A courier that gets mail does not pause, so its timer is not the last one.
        let mail = vec![Payload::from(cancel_job(7).encode())];
        let two = vec![OffloadMessage::Mail { mail }, no_mail()];
        // The end begins before the first timer, so each courier calls the timer twice.
        for (answers, last) in [(vec![no_mail()], 1), (two, 3)] {
            let (cluster, resident) = (Cluster::new(&answers), speaking_at(last));
            drop(cluster.couriers(&resident));
            for (number, got) in (1..).zip(&cluster.got) {
                assert_eq!(*got.lock(), [cancel_job(number)]);
            }
        }
    }
}
