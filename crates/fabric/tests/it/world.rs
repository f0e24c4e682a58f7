//! A node and links to it over any provider, and a small executor.
//!
//! A world of `sim` has its own simulation, with the node on one host and all clients on another. A
//! thread that waits runs the simulation: the `wait` of a promise does that itself, and [`until`]
//! and [`block_on`] run all simulations of their thread.

use std::cell::RefCell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::clock::{Clock, ManualClock, SystemClock};
use archipelago_base::simulation::{Host, Life, Scheduler, Simulation};
use archipelago_fabric::paced::{Card, CardSettings, Paced};
use archipelago_fabric::sim::{Faults, Model, Network, Sim};
use archipelago_fabric::{
    Attached, Batch, Body, Connect, Handler, Link, Listener, Node, NodeId, Outcome, Provider,
    Reason, Region, RemoteKey, Reply, Request, Rights, Session, Shm, Tcp,
};

/// Generous time limit for a busy machine. A test that needs all of it has failed.
pub(crate) const LONG: Duration = Duration::from_secs(30);

thread_local! {
    /// The simulations of this thread's test.
    static SIMULATIONS: RefCell<Vec<Scheduler>> = const { RefCell::new(Vec::new()) };
}

/// Runs this thread's simulations for a moment of virtual time. Returns false if there are none.
fn run_simulations() -> bool {
    let all = SIMULATIONS.with_borrow(Clone::clone);
    for scheduler in &all {
        scheduler.run_for(Duration::from_micros(50));
    }
    !all.is_empty()
}

/// The further parts of a world of `sim`.
pub(crate) struct Virtual {
    pub(crate) network: Arc<Network>,
    pub(crate) node_host: Host,
    pub(crate) client_host: Host,
    /// The provider of the node's host.
    pub(crate) there: Sim,
    pub(crate) here: Sim,
    pub(crate) simulation: Simulation,
}

impl Virtual {
    pub(crate) fn new(seed: u64, model: &Model) -> Self {
        let simulation = Simulation::new(seed);
        SIMULATIONS.with_borrow_mut(|all| all.push(simulation.scheduler()));
        let network = Network::new(&simulation);
        let (node_host, client_host) = (simulation.host("node"), simulation.host("client"));
        let there = network.join(&node_host, model.clone());
        let here = network.join(&client_host, model.clone());
        Self { network, node_host, client_host, there, here, simulation }
    }

    pub(crate) fn faulty(seed: u64, faults: Faults) -> Self {
        let made = Self::new(seed, &Model::quick());
        made.network.set_faults(faults);
        made
    }
}

/// A card that delays everything a little.
fn emulated_card() -> CardSettings {
    CardSettings {
        out_bytes_per_s: 500_000_000,
        in_bytes_per_s: 500_000_000,
        stream_bytes_per_s: 250_000_000,
        latency: Duration::from_micros(100),
        ..CardSettings::default()
    }
}

/// A provider between processes. `sim` has none. `paced` and `emulated` are `tcp` behind a card
/// without and with rates.
pub(crate) fn provider(name: &str) -> Box<dyn Provider> {
    match name {
        "shm" => Box::new(Shm::new()),
        "tcp" => Box::new(Tcp::new()),
        "paced" => {
            let card = Card::on_thread(&CardSettings::default()).unwrap();
            Box::new(Paced::new(Arc::new(Tcp::new()), &card))
        }
        "emulated" => {
            let card = Card::on_thread(&emulated_card()).unwrap();
            Box::new(Paced::new(Arc::new(Tcp::new()), &card))
        }
        // The provider of libfabric that emulates a card.
        #[cfg(feature = "ofi")]
        "ofi" => Box::new(archipelago_fabric::Ofi::over("tcp;ofi_rxm")),
        other => panic!("no provider {other}"),
    }
}

/// A new address, which is a path in `dir` for `shm`. Each node over TCP has a loopback address of
/// its own, so that no parallel test gets the port that a test has freed and uses again.
pub(crate) fn fresh_address(name: &str, dir: &tempfile::TempDir) -> String {
    static NODES: AtomicU16 = AtomicU16::new(0);
    match name {
        "shm" => dir.path().join("node").display().to_string(),
        // A card serves the address of an interface.
        "ofi" => "127.0.0.1:0".to_owned(),
        _ => {
            let [high, low] = NODES.fetch_add(1, Ordering::Relaxed).to_be_bytes();
            format!("127.1.{high}.{low}:0")
        }
    }
}

/// The parameters of a connection that has time enough on a busy machine.
pub(crate) fn to(address: &str, session: &Arc<Session>) -> Connect {
    Connect { deadline: LONG, ..Connect::to(address, session) }
}

/// Answers with the reversed body: `late` later from another thread, and `drop` never.
pub(crate) struct Backwards;

impl Handler for Backwards {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let body: Vec<u8> = request.body.iter().rev().copied().collect();
        match request.body {
            b"drop" => drop(reply),
            b"late" => {
                let simulation = SIMULATIONS.with_borrow(|all| all.last().cloned());
                if let Some(scheduler) = simulation {
                    let soon_ns = scheduler.now_ns() + 100_000;
                    return scheduler.at(soon_ns, Life::WORLD, move || reply.send(body));
                }
                std::thread::Builder::new().spawn(move || reply.send(body)).unwrap();
            }
            _ => reply.send(body),
        }
    }
}

/// A node in this process, and a provider for its links.
pub(crate) struct World {
    pub(crate) provider: Box<dyn Provider>,
    pub(crate) node: Arc<Node>,
    pub(crate) region: Region,
    pub(crate) key: RemoteKey,
    // The listener is dropped before the directory that holds its path.
    pub(crate) listener: Box<dyn Listener>,
    _dir: tempfile::TempDir,
    pub(crate) virtual_world: Option<Virtual>,
}

pub(crate) const REGION_BYTES: usize = 1 << 20;

impl World {
    pub(crate) fn new(name: &str) -> Self {
        Self::with_handler(name, Some(Box::new(Backwards)))
    }

    pub(crate) fn with_handler(name: &str, handler: Option<Box<dyn Handler>>) -> Self {
        if name == "sim" {
            return Self::simulated(Virtual::new(1, &Model::CONNECTX3), handler);
        }
        let handler = match name {
            "emulated" => {
                let card = Card::on_thread(&emulated_card()).unwrap();
                handler.map(|handler| card.handler(handler))
            }
            _ => handler,
        };
        Self::over(name, provider(name), handler)
    }

    /// A world of `tcp` in which no time passes, so a pause of the machine exceeds no limit.
    pub(crate) fn timeless() -> Self {
        let tcp = Tcp::new().with_clock(Arc::new(ManualClock::new(0)));
        Self::over("tcp", Box::new(tcp), Some(Box::new(Backwards)))
    }

    fn over(name: &str, provider: Box<dyn Provider>, handler: Option<Box<dyn Handler>>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::new(NodeId(1), Epoch(1), handler).unwrap();
        let region = node.allocate(REGION_BYTES, provider.atomic_path()).unwrap();
        let key = region.grant(Rights::ALL).unwrap();
        let listener = provider.serve(&node, &fresh_address(name, &dir)).unwrap();
        Self { provider, node, region, key, listener, _dir: dir, virtual_world: None }
    }

    pub(crate) fn simulated(made: Virtual, handler: Option<Box<dyn Handler>>) -> Self {
        let node = made.network.node(NodeId(1), Epoch(1), handler).unwrap();
        let region = node.allocate(REGION_BYTES, made.there.atomic_path()).unwrap();
        let key = region.grant(Rights::ALL).unwrap();
        let listener = made.there.serve(&node, "node").unwrap();
        let (provider, dir) = (Box::new(made.here.clone()), tempfile::tempdir().unwrap());
        Self { provider, node, region, key, listener, _dir: dir, virtual_world: Some(made) }
    }

    /// The simulation of a world of `sim`.
    pub(crate) fn simulation(&self) -> &Virtual {
        self.virtual_world.as_ref().unwrap()
    }

    pub(crate) fn link(&self) -> Arc<dyn Link> {
        match &self.virtual_world {
            Some(made) => self.link_as(&made.network.session()),
            None => self.link_as(&Session::fresh()),
        }
    }

    pub(crate) fn link_as(&self, session: &Arc<Session>) -> Arc<dyn Link> {
        self.provider.connect(to(self.listener.address(), session)).wait().unwrap()
    }

    pub(crate) fn attached(&self) -> (Arc<dyn Link>, Attached) {
        let link = self.link();
        let region = link.attach(&self.key).wait().unwrap();
        (link, region)
    }
}

/// Posts one READ and waits.
pub(crate) fn read(link: &dyn Link, region: Attached, offset: u64, len: u32) -> Vec<u8> {
    let mut batch = Batch::new();
    batch.read(region, offset, len);
    let batch = link.post(batch).wait();
    batch.check().unwrap();
    batch.data(0).to_vec()
}

/// Posts one WRITE and waits.
pub(crate) fn write(link: &dyn Link, region: Attached, offset: u64, bytes: &[u8]) {
    let mut batch = Batch::new();
    batch.write(region, offset, bytes);
    let batch = link.post(batch).wait();
    assert_eq!(batch.outcome(0), Outcome::Visible);
}

/// Posts a batch that `fill` fills. Returns the first refusal.
pub(crate) fn refused(link: &dyn Link, fill: impl FnOnce(&mut Batch)) -> Option<(usize, Reason)> {
    let mut batch = Batch::new();
    fill(&mut batch);
    let batch = link.post(batch).wait();
    batch.refusal().map(|(index, refusal)| (index, refusal.reason))
}

/// Sends a request and waits for the answer.
pub(crate) fn ask(link: &dyn Link, body: &[u8]) -> Result<Body, Reason> {
    let call = archipelago_fabric::Call::new(body, LONG);
    link.request(call).wait().map_err(|refusal| refusal.reason)
}

/// Loops until `done`, for an event that another thread or the kernel causes soon.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    while !done() {
        assert!(clock.now_ns() < LONG.as_nanos() as u64, "it never came to: {what}");
        if !run_simulations() {
            std::thread::yield_now();
        }
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end, without a runtime.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => {
                if !run_simulations() {
                    std::thread::park();
                }
            }
        }
    }
}
