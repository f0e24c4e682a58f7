//! Protocol state machines under the scheduler.
//!
//! A state machine turns messages and timers into actions, and has no clock, no socket and no lock
//! of its own. In production its crate drives it. Here the seed decides which messages are lost,
//! doubled and overtaken, and hosts crash.
//!
//! Thread-safety: one simulation calls everything; locks only satisfy the compiler.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::simulation::{Host, Life, Simulation};
use parking_lot::Mutex;

/// Action that a state machine asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<M, T> {
    /// Send `message` to the machine at place `to`.
    Send {
        /// Place of the machine that gets the message.
        to: usize,
        /// Message to send.
        message: M,
    },
    /// Call `on_timer` with `timer` after `delay`.
    After {
        /// Time until the call.
        delay: Duration,
        /// Value that `on_timer` gets.
        timer: T,
    },
}

/// A state machine of a protocol.
pub trait Protocol: Send + 'static {
    /// Message between machines.
    type Message: Clone + fmt::Debug + Send + 'static;
    /// Value that a timer carries.
    type Timer: fmt::Debug + Send + 'static;

    /// The host has started or restarted. `self` is the state that survived the crash.
    fn on_start(&mut self, now_ns: u64) -> Vec<Action<Self::Message, Self::Timer>>;
    /// A message has arrived.
    fn on_message(
        &mut self,
        now_ns: u64,
        from: usize,
        message: Self::Message,
    ) -> Vec<Action<Self::Message, Self::Timer>>;
    /// A timer is due. Timers do not survive a crash of the host.
    fn on_timer(
        &mut self,
        now_ns: u64,
        timer: Self::Timer,
    ) -> Vec<Action<Self::Message, Self::Timer>>;
}

/// Faults of the network.
#[derive(Clone, Copy, Debug)]
struct Weather {
    loss: f64,
    duplicate: f64,
    delay_ns: (u64, u64),
}

struct ClusterState<P: Protocol> {
    machines: Vec<Mutex<P>>,
    hosts: Vec<Host>,
    weather: Mutex<Weather>,
    rng: Mutex<Rng>,
}

/// State machines, each on a host of its own.
pub struct Cluster<P: Protocol>(Arc<ClusterState<P>>);

impl<P: Protocol> fmt::Debug for Cluster<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({} machines)", self.0.machines.len())
    }
}

impl<P: Protocol> Cluster<P> {
    /// Starts the machines, on hosts named `name-0` and so on. Messages take 0.1 to 2 ms. At first,
    /// no message is lost or doubled.
    pub fn start(simulation: &Simulation, name: &str, machines: Vec<P>) -> Self {
        let hosts = (0..machines.len()).map(|at| simulation.host(&format!("{name}-{at}")));
        let weather = Weather { loss: 0.0, duplicate: 0.0, delay_ns: (100_000, 2_000_000) };
        let inner = ClusterState {
            hosts: hosts.collect(),
            machines: machines.into_iter().map(Mutex::new).collect(),
            weather: Mutex::new(weather),
            rng: Mutex::new(simulation.rng("cluster")),
        };
        let cluster = Self(Arc::new(inner));
        for at in 0..cluster.0.machines.len() {
            cluster.0.begin(at);
        }
        cluster
    }

    /// Sets the fraction of messages that are lost from now on, and of those that arrive twice.
    pub fn weather(&self, loss: f64, duplicate: f64) {
        let mut weather = self.0.weather.lock();
        (weather.loss, weather.duplicate) = (loss, duplicate);
    }

    /// Number of machines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.machines.len()
    }

    /// Whether the cluster has no machine.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.machines.is_empty()
    }

    /// Calls `look` with a state machine.
    pub fn look<T>(&self, at: usize, look: impl FnOnce(&P) -> T) -> T {
        look(&self.0.machines[at].lock())
    }

    /// Crashes a machine's host. Its timers and the messages on their way to it are lost.
    ///
    /// The state stays, as if all of it were durable. A machine that keeps a part of its state in
    /// memory drops that part in `on_start`.
    pub fn crash(&self, at: usize) {
        self.0.hosts[at].crash();
    }

    /// Starts a crashed host again.
    pub fn restart(&self, at: usize) {
        self.0.hosts[at].restart();
        self.0.begin(at);
    }
}

impl<P: Protocol> ClusterState<P> {
    fn begin(self: &Arc<Self>, at: usize) {
        let now_ns = self.now_ns();
        let actions = self.machines[at].lock().on_start(now_ns);
        self.perform(at, self.hosts[at].life(), actions);
    }

    fn now_ns(&self) -> u64 {
        self.hosts.first().map_or(0, |host| host.scheduler().now_ns())
    }

    fn perform(
        self: &Arc<Self>,
        at: usize,
        life: Life,
        actions: Vec<Action<P::Message, P::Timer>>,
    ) {
        for action in actions {
            match action {
                Action::Send { to, message } => self.send(at, to, &message),
                Action::After { delay, timer } => {
                    let inner = Arc::clone(self);
                    let due_ns = self.now_ns() + delay.as_nanos() as u64;
                    self.hosts[at].scheduler().at(due_ns, life, move || {
                        let actions = inner.machines[at].lock().on_timer(inner.now_ns(), timer);
                        inner.perform(at, life, actions);
                    });
                }
            }
        }
    }

    fn send(self: &Arc<Self>, from: usize, to: usize, message: &P::Message) {
        let (weather, now_ns) = (*self.weather.lock(), self.now_ns());
        let copies = {
            let mut rng = self.rng.lock();
            match rng.f64() {
                roll if roll < weather.loss => 0,
                roll if roll < weather.loss + weather.duplicate => 2,
                _ => 1,
            }
        };
        let (least_ns, most_ns) = weather.delay_ns;
        for _ in 0..copies {
            let at_ns = now_ns + self.rng.lock().u64(least_ns..=most_ns);
            let (inner, message, life) = (Arc::clone(self), message.clone(), self.hosts[to].life());
            let scheduler = self.hosts[to].scheduler();
            scheduler.at(at_ns, life, move || {
                let text = || format!("{from} → {to}: {message:?}");
                inner.hosts[to].scheduler().note(text);
                let actions = inner.machines[to].lock().on_message(inner.now_ns(), from, message);
                inner.perform(to, life, actions);
            });
        }
    }
}
