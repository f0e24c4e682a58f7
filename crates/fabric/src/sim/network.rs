//! The network of a simulation: machines and their cards, listeners, connections, and faults.
//!
//! Invariants:
//! 1. A packet reaches a machine only in the life to which it was sent. A later life answers with a
//!    reset.
//! 2. The network has its own random numbers, drawn in the order of the steps. Therefore a run
//!    depends only on its seed.
//! 3. The lock of the network is held only for arithmetic.
//!
//! Thread-safety: as for the simulation.
//! Failure: an address without a machine or listener is an error of the connection.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};

use archipelago_base::random::Rng;
use archipelago_base::simulation::{Host, HostId, Life, PartOf, Scheduler};
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use parking_lot::Mutex;

use super::Sim;
use super::model::{Faults, Model, Server, Threads, Transport, Work};
use super::wire::Wire;
use crate::ids::{ClientId, NodeId};
use crate::link::Session;
use crate::node::{AtomicPath, Handler, LinkEnd, Node};
use crate::refusal::{Reason, Refusal};

/// The card and the threads of a machine.
pub(super) struct Machine {
    name: String,
    pub(super) model: Model,
    pub(super) outbound: Server,
    pub(super) inbound: Server,
    pub(super) atomics: Server,
    pub(super) threads: Threads,
}

/// A node that accepts connections.
#[derive(Clone)]
pub(super) struct ListenerEntry {
    pub(super) number: u64,
    pub(super) life: Life,
    pub(super) node: Arc<Node>,
    pub(super) path: AtomicPath,
}

struct NetworkState {
    rng: Rng,
    faults: Faults,
    transport: Transport,
    machines: BTreeMap<HostId, Machine>,
    /// Pairs of sender and receiver between which nothing passes.
    cut: BTreeSet<(HostId, HostId)>,
    listeners: BTreeMap<String, ListenerEntry>,
    doors_made: u64,
    wires: Vec<Weak<Wire>>,
    wires_made: u32,
    /// Whether one-sided operations use mapped memory instead of the network.
    shares_memory: bool,
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crossing {
    /// It arrives at `at_ns`, and if it is doubled, also at `again_ns`.
    Arrives { at_ns: u64, again_ns: Option<u64> },
    /// It does not arrive.
    Lost,
    /// It arrives at a later life, which does not know the connection.
    Reset,
}

/// The network of a simulation, which machines [`join`](Network::join).
pub struct Network {
    pub(super) scheduler: Scheduler,
    me: Weak<Network>,
    state: Mutex<NetworkState>,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Network({} machines)", self.state.lock().machines.len())
    }
}

impl Network {
    /// Makes a network without machines and faults.
    #[must_use]
    pub fn new(scheduler: &Scheduler) -> Arc<Self> {
        let state = NetworkState {
            rng: scheduler.rng("network"),
            faults: Faults::default(),
            transport: Transport::default(),
            machines: BTreeMap::new(),
            cut: BTreeSet::new(),
            listeners: BTreeMap::new(),
            doors_made: 0,
            wires: Vec::new(),
            wires_made: 0,
            shares_memory: false,
        };
        let network = Arc::new_cyclic(|me| Self {
            scheduler: scheduler.clone(),
            me: Weak::clone(me),
            state: Mutex::new(state),
        });
        let part: Arc<dyn PartOf> = Arc::clone(&network) as Arc<dyn PartOf>;
        scheduler.join(&part);
        network
    }

    /// Gives `host` a card, and returns its provider. A second call changes the model.
    pub fn join(&self, host: &Host, model: Model) -> Sim {
        let machine = Machine {
            name: host.name().to_owned(),
            outbound: Server::default(),
            inbound: Server::default(),
            atomics: Server::default(),
            threads: Threads::new(model.threads),
            model,
        };
        self.state.lock().machines.insert(host.id(), machine);
        let network = self.me.upgrade().expect("the caller has a reference");
        Sim::new(network, host.clone())
    }

    /// Makes a node whose keys depend on the seed of the simulation.
    pub fn node(
        &self,
        id: NodeId,
        epoch: Epoch,
        handler: Option<Box<dyn Handler>>,
    ) -> Result<Arc<Node>> {
        let seed = self.state.lock().rng.u64(..);
        Node::with_seed(id, epoch, handler, seed)
    }

    /// Makes a session whose client number depends on the seed of the simulation.
    #[must_use]
    pub fn session(&self) -> Arc<Session> {
        Session::new(ClientId(self.state.lock().rng.u64(..)))
    }

    /// Busy times of the machines since they joined.
    #[must_use]
    pub fn work(&self) -> Vec<Work> {
        let of = |machine: &Machine| Work {
            machine: machine.name.clone(),
            outbound_ns: machine.outbound.busy_ps / 1000,
            inbound_ns: machine.inbound.busy_ps / 1000,
            atomics_ns: machine.atomics.busy_ps / 1000,
            thread_ns: machine.threads.busy_ps() / 1000,
        };
        self.state.lock().machines.values().map(of).collect()
    }

    /// Sets the faults from now on. Cuts stay.
    pub fn set_faults(&self, faults: Faults) {
        self.scheduler.note(|| format!("{faults:?}"));
        self.state.lock().faults = faults;
    }

    /// Makes every machine map the memory of all others. One-sided operations then complete when
    /// they are posted, as over `shm`, even if the network is cut or slow. The caller must do this
    /// before any post.
    pub fn share_memory(&self) {
        self.state.lock().shares_memory = true;
    }

    pub(super) fn shares_memory(&self) -> bool {
        self.state.lock().shares_memory
    }

    /// Sets the retries and time limits of connections from now on.
    pub fn set_transport(&self, transport: Transport) {
        self.state.lock().transport = transport;
    }

    /// Cuts the direction from `from` to `to`. Packets on the wire still arrive.
    pub fn cut_one_way(&self, from: &Host, to: &Host) {
        self.scheduler.note(|| format!("cut: {} → {}", from.name(), to.name()));
        self.state.lock().cut.insert((from.id(), to.id()));
    }

    /// Cuts both directions between two hosts.
    pub fn cut(&self, one: &Host, other: &Host) {
        self.cut_one_way(one, other);
        self.cut_one_way(other, one);
    }

    /// Ends the cuts between two hosts in both directions.
    pub fn heal(&self, one: &Host, other: &Host) {
        self.scheduler.note(|| format!("healed: {} and {}", one.name(), other.name()));
        let mut state = self.state.lock();
        state.cut.remove(&(one.id(), other.id()));
        state.cut.remove(&(other.id(), one.id()));
    }

    /// Ends all cuts of the network.
    pub fn heal_all(&self) {
        self.scheduler.note(|| "all healed".to_owned());
        self.state.lock().cut.clear();
    }

    // The methods below are for the provider.

    pub(super) fn now_ps(&self) -> u64 {
        self.scheduler.now_ns() * 1000
    }

    /// Runs arithmetic on the queues of a machine.
    pub(super) fn on<T>(&self, host: HostId, work: impl FnOnce(&mut Machine) -> T) -> T {
        let mut state = self.state.lock();
        let machine = state.machines.get_mut(&host).expect("only machines that joined have links");
        work(machine)
    }

    pub(super) fn transport(&self) -> Transport {
        self.state.lock().transport
    }

    /// The fate of a packet that leaves at `ready_ps`.
    pub(super) fn cross(&self, from: Life, to: Life, ready_ps: u64) -> Crossing {
        let lives = self.scheduler.lives(to);
        let reset = !lives && self.scheduler.is_up(to.host);
        let mut state = self.state.lock();
        let state = &mut *state;
        let (loss, cut) = (state.faults.loss, state.cut.contains(&(from.host, to.host)));
        if cut || (!lives && !reset) || (loss > 0.0 && state.rng.f64() < loss) {
            return Crossing::Lost;
        }
        if reset {
            return Crossing::Reset;
        }
        let latency_ps = state.machines.get(&from.host).map_or(0, |m| m.model.latency_ps);
        let at_ns = (ready_ps + latency_ps).div_ceil(1000);
        let delay_ns_max = state.faults.delay_ns_max;
        let rng = &mut state.rng;
        let mut late = || if delay_ns_max > 0 { rng.u64(0..=delay_ns_max) } else { 0 };
        let (first_ns, second_ns) = (at_ns + late(), at_ns + late());
        let doubled = state.faults.duplicate > 0.0 && state.rng.f64() < state.faults.duplicate;
        Crossing::Arrives { at_ns: first_ns, again_ns: doubled.then_some(second_ns) }
    }

    /// Whether packets stay in order.
    pub(super) fn keeps_order(&self) -> bool {
        self.state.lock().faults.delay_ns_max == 0
    }

    /// Draws whether a batch on mapped memory is refused.
    pub(super) fn draw_refused(&self) -> bool {
        let mut state = self.state.lock();
        let refuse = state.faults.refuse;
        refuse > 0.0 && state.rng.f64() < refuse
    }

    /// Draws where an operation of `words` is torn, and the time until its second part.
    pub(super) fn torn(&self, words: u64) -> Option<(u64, u64)> {
        let mut state = self.state.lock();
        let tear = state.faults.tear;
        if words < 2 || tear == 0.0 || state.rng.f64() >= tear {
            return None;
        }
        let gap_ns_max = state.faults.delay_ns_max.max(1000);
        Some((state.rng.u64(1..words), state.rng.u64(1..=gap_ns_max)))
    }

    /// The machine of an address (`name` or `name:anything`).
    pub(super) fn machine_of(&self, address: &str) -> Result<HostId> {
        let name = address.split(':').next().unwrap_or(address);
        let state = self.state.lock();
        let found = state.machines.iter().find(|(_, machine)| machine.name == name);
        found.map(|(id, _)| *id).ok_or_else(|| {
            let what = format!("cannot connect to {address}: no machine {name} is on the network");
            Error::new(ErrorKind::NotFound, what)
        })
    }

    pub(super) fn open_door(
        &self,
        address: &str,
        life: Life,
        node: &Arc<Node>,
        path: AtomicPath,
    ) -> Result<u64> {
        let mut state = self.state.lock();
        let taken = state
            .listeners
            .get(address)
            .is_some_and(|listener| self.scheduler.lives(listener.life));
        if taken {
            let what = format!("another node listens at {address}");
            return Err(Error::new(ErrorKind::Busy, what));
        }
        state.doors_made += 1;
        let number = state.doors_made;
        let listener = ListenerEntry { number, life, node: Arc::clone(node), path };
        let old = state.listeners.insert(address.to_owned(), listener);
        drop(state);
        drop(old);
        Ok(number)
    }

    /// Closes a listener and takes its links down.
    pub(super) fn close_door(&self, address: &str, number: u64) {
        let (listener, wires) = {
            let mut state = self.state.lock();
            let mine =
                state.listeners.get(address).is_some_and(|listener| listener.number == number);
            let listener = if mine { state.listeners.remove(address) } else { None };
            (listener, state.wires.clone())
        };
        let Some(listener) = listener.filter(|listener| self.scheduler.lives(listener.life)) else {
            return;
        };
        for wire in
            wires.iter().filter_map(Weak::upgrade).filter(|wire| wire.listener == listener.number)
        {
            LinkEnd::close(&*wire, Refusal::new(Reason::Disconnected));
        }
    }

    pub(super) fn listener(&self, address: &str) -> Option<ListenerEntry> {
        let state = self.state.lock();
        state.listeners.get(address).filter(|listener| self.scheduler.lives(listener.life)).cloned()
    }

    /// Number of links that a listener has.
    pub(super) fn links_of(&self, listener: u64) -> usize {
        let wires = {
            let mut state = self.state.lock();
            state.wires.retain(|wire| wire.strong_count() > 0);
            state.wires.clone()
        };
        let up = |wire: &Arc<Wire>| wire.listener == listener && wire.serves();
        wires.iter().filter_map(Weak::upgrade).filter(up).count()
    }

    /// A number that no other link of the network or of another provider has.
    pub(super) fn next_wire(&self) -> u32 {
        let mut state = self.state.lock();
        state.wires_made += 1;
        state.wires_made | 1 << 31
    }

    pub(super) fn add_wire(&self, wire: &Arc<Wire>) {
        self.state.lock().wires.push(Arc::downgrade(wire));
    }
}

impl PartOf for Network {
    fn crashed(&self, host: HostId) {
        let (listeners, wires, notice_ns) = {
            let mut state = self.state.lock();
            let of = |listener: &ListenerEntry| listener.life.host == host;
            let names: Vec<String> = state
                .listeners
                .iter()
                .filter(|(_, listener)| of(listener))
                .map(|(name, _)| name.clone())
                .collect();
            let listeners: Vec<_> = names.iter().map(|name| state.listeners.remove(name)).collect();
            (listeners, state.wires.clone(), state.transport.notice_ns)
        };
        drop(listeners);
        let at_ns = self.scheduler.now_ns() + notice_ns;
        for wire in wires.iter().filter_map(Weak::upgrade) {
            if wire.far.host == host {
                let (life, told) = (wire.near, Arc::clone(&wire));
                let down = Refusal::new(Reason::Disconnected);
                self.scheduler.at(at_ns, life, move || told.fail(down));
            }
            if wire.near.host == host {
                // The crashed host does not notice it. The other end of the link does.
                wire.fail(Refusal::new(Reason::Disconnected));
            }
        }
    }

    fn shut(&self) {
        let (listeners, wires) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.listeners), std::mem::take(&mut state.wires))
        };
        drop((listeners, wires));
    }
}
