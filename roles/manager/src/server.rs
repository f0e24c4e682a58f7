//! A manager as a process runs it: a fabric node, its listeners and its threads.
//!
//! [`ManagerServer`] owns all of it. One thread ticks, and one thread per memory node sends orders.
//! If several managers run, another thread per memory node asks for promises, so that slow orders
//! do not delay it.
//!
//! Invariants: 1. The term of every start is larger than the previous term, because it comes from
//! the wall clock.
//!
//! Thread-safety: any thread may call any method.
//! Failure: an order without an answer is sent again later. A thread of a node that has ended, also
//! by a panic, starts again while the node needs one. Dropping the server ends the threads.
//! Nodes and clients continue without the manager as long as nothing changes.
//! Cost: one thread, and one thread per memory node. If several managers run, two threads per
//! memory node.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::entropy_seed;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{Epoch, Error, Result};
use archipelago_fabric::{ClientId, Endpoints, Line, Listener, Node, NodeId, NodeStats, Secret};
use archipelago_flexkv::FlexKvSettings;
use archipelago_flexkv::coordinator::Plan;
use archipelago_flexkv::wire::StoreStatus;
use archipelago_offload::net::SchedulerDesk;
use archipelago_offload::scheduler::SchedulerFigures;
use archipelago_pool::asker_of_promises;
use archipelago_store::nodes::members::MemberTerms;
use archipelago_store::nodes::wire::StorageClusterStatus;
use parking_lot::Mutex;

use crate::core::{ManagerCore, Terms};
use crate::office::{Office, OfficeTerms};
use crate::rpc::{Election, ManagerRpc};
use crate::status::PoolFigures;
use crate::storage::StorageRpc;
use crate::store::{Front, Store};

/// Time between two ticks.
const TICK: Duration = Duration::from_millis(5);
/// Time after which an order to a node counts as lost. The manager sends it again later.
const ORDER: Duration = Duration::from_millis(300);
/// Time after which an idle thread checks whether it should end.
const LOOK: Duration = Duration::from_millis(100);
/// Shortest lease that threads and sockets can keep.
const LEASE_MIN: Duration = Duration::from_millis(20);

/// Settings of a manager.
#[derive(Clone, Debug)]
pub struct ManagerSettings {
    /// Endpoints at which the manager listens.
    pub listen: Vec<String>,
    /// Number of copies, and the lengths of the leases.
    pub terms: Terms,
    /// How to make a FlexKV store in the cluster's memory, if the cluster has one.
    pub store: Plan,
    /// Number of memory nodes, with ids from 1 on, if several managers run; each manager has the
    /// same number. 0 means that the manager runs alone.
    pub memory_nodes: u32,
    /// Whether the manager leaves the office to another manager at the start, if several run.
    pub standby: bool,
    /// Times of the storage nodes, and the size of their root set.
    pub storage: MemberTerms,
    /// The cluster's secret. Without one the manager listens on loopback addresses only.
    pub secret: Option<Secret>,
}

impl ManagerSettings {
    /// An error that names the first setting that is not valid.
    pub fn validate(&self) -> Result<()> {
        if !(1..=16).contains(&self.terms.copies) {
            let copies = self.terms.copies;
            return Err(Error::invalid(format!(
                "{copies} copies are not possible: choose 1 to 16"
            )));
        }
        if self.terms.lease < LEASE_MIN || self.terms.node_lease < LEASE_MIN {
            let least = LEASE_MIN.as_millis();
            return Err(Error::invalid(format!(
                "a lease below {least} ms would run out by chance"
            )));
        }
        if self.standby && self.memory_nodes == 0 {
            return Err(Error::invalid(
                "a standby manager must know the memory nodes: give their number with --memory-nodes N",
            ));
        }
        self.storage.validate()?;
        FlexKvSettings {
            partition_bits: self.store.partition_bits,
            log2_buckets: self.store.log2_buckets,
            ..FlexKvSettings::default()
        }
        .validate()
    }
}

struct ServerState {
    rpc: Arc<ManagerRpc>,
    storage: Arc<StorageRpc>,
    offload: Arc<SchedulerDesk>,
    /// Term of the scheduler, which lives as long as the process, also while the manager stands by.
    scheduler_term: u64,
    node: Weak<Node>,
    endpoints: Arc<Endpoints>,
    clock: Arc<dyn Clock>,
    me: ClientId,
    is_one_of_several: bool,
    store: Weak<Store>,
    stop: AtomicBool,
    threads: NodeThreads,
}

/// Identity of a thread: its task, which is also its name, and the life of the node that it serves.
type Served = (&'static str, NodeId, Epoch);

/// The threads that serve nodes, at most one for each work and life of a node.
#[derive(Default)]
struct NodeThreads(Mutex<HashMap<Served, Joiner>>);

impl NodeThreads {
    /// Whether a thread serves the node, which may have ended since [`NodeThreads::join_ended`].
    fn has(&self, served: &Served) -> bool {
        self.0.lock().contains_key(served)
    }

    /// Starts a thread. Errors: those of starting threads.
    fn start(&self, served: Served, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let (name, ..) = served;
        let thread = SystemSpawn.spawn(name, Box::new(work))?;
        self.0.lock().insert(served, thread);
        Ok(())
    }

    /// Joins and forgets the threads that have ended. A node that needs a thread again gets a new
    /// one.
    fn join_ended(&self) {
        let mut threads = self.0.lock();
        for (_, thread) in threads.extract_if(|_, thread| thread.is_finished()) {
            join(thread);
        }
    }

    /// Waits until all threads have ended.
    fn join_all(&self) {
        let threads = std::mem::take(&mut *self.0.lock());
        threads.into_values().for_each(join);
    }
}

/// Waits for the end of a thread, and logs its panic.
fn join(thread: Joiner) {
    if let Err(error) = thread.join() {
        tracing::error!(%error, "a thread of the manager panicked");
    }
}

/// Figures of a manager at one moment.
#[derive(Clone, Debug)]
pub struct ManagerFigures {
    /// Whether the manager acts and does not stand by.
    pub is_acting: bool,
    /// The pool; `None` while the manager stands by.
    pub pool: Option<PoolFigures>,
    /// The FlexKV store, without the counters of its nodes; `None` while no coordinator runs.
    pub store: Option<StoreStatus>,
    /// The storage nodes; `None` while the manager stands by.
    pub storage: Option<StorageClusterStatus>,
    /// The scheduler of offloaded jobs, also while the manager stands by; `None` before it begins.
    pub offload: Option<SchedulerFigures>,
    /// Counters of the fabric's node; `None` after the manager has ended.
    pub fabric: Option<NodeStats>,
}

/// Handle with which any thread can take the figures of a manager.
#[derive(Clone)]
pub struct ManagerMonitor(Arc<ServerState>);

impl std::fmt::Debug for ManagerMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ManagerMonitor({})", self.0.me)
    }
}

impl ManagerMonitor {
    /// The figures of the manager. It costs one pass over the blocks of the pool and over the
    /// partitions of the store, each under the lock that messages take, too.
    #[must_use]
    pub fn figures(&self) -> ManagerFigures {
        let state = &self.0;
        let (is_acting, now_ns) = (state.rpc.is_acting(), state.clock.now_ns());
        ManagerFigures {
            is_acting,
            pool: state.rpc.look(|core| core.figures(now_ns)).filter(|_| is_acting),
            store: state.store.upgrade().and_then(|store| store.status()),
            storage: state.storage.status(),
            offload: state.offload.figures(),
            fabric: state.node.upgrade().map(|node| node.stats()),
        }
    }
}

/// A running manager. Dropping the value ends it, and nodes and clients continue without it.
pub struct ManagerServer {
    shared: Arc<ServerState>,
    /// The thread that ticks and starts the threads of nodes.
    ticker: Option<Joiner>,
    listeners: Vec<Box<dyn Listener>>,
    addresses: Vec<String>,
    /// The only reference to the coordinator's host. Without it, compute nodes get no answers.
    _store: Arc<Store>,
}

impl std::fmt::Debug for ManagerServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ManagerServer({})", self.shared.me)
    }
}

impl ManagerServer {
    /// Starts a manager in a new term, whose number is the wall clock's time. It acts after it has
    /// collected reports for a lease. If several managers run, it acts only while it holds office
    /// ([`crate::office`]).
    pub fn start(settings: &ManagerSettings) -> Result<Self> {
        settings.validate()?;
        let clock = SystemClock::shared();
        let (random, life) = (entropy_seed(), clock.unix_ms());
        let (me, number) = (ClientId(entropy_seed()), (random >> 32) as u32);
        let term = life << 16 | (random & 0xffff);
        let (terms, nodes) = (settings.terms, settings.memory_nodes);
        let (rpc, handler) = if nodes == 0 {
            let core = ManagerCore::new(me, term, number, terms, clock.now_ns());
            ManagerRpc::new(core, Arc::clone(&clock))
        } else {
            let office =
                Office::new(me, OfficeTerms { nodes, lease: terms.node_lease }, entropy_seed());
            let office = if settings.standby { office.deferring() } else { office };
            let make = move |term, now_ns| ManagerCore::elected(me, term, number, terms, now_ns);
            let wall = Arc::clone(&clock);
            let election = Election::new(office, make, move || wall.unix_ms() << 16);
            ManagerRpc::elected(election, Arc::clone(&clock))
        };
        let endpoints = Arc::new(Endpoints::new().with_secret(settings.secret.clone()));
        let store = Store::new(settings.store, &endpoints)?;
        let storage = StorageRpc::new(settings.storage, &rpc, &endpoints, &clock);
        let offload = Arc::new(SchedulerDesk::new(&clock));
        let front = Front {
            pool: handler,
            offload: Arc::clone(&offload),
            scheduler_term: term,
            store: Arc::downgrade(&store),
            storage: Arc::clone(&storage),
            rpc: Arc::clone(&rpc),
        };
        let node = Node::new(NodeId(u64::MAX), Epoch(life), Some(Box::new(front)))?;
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for listen in &settings.listen {
            let listener = endpoints.serve(&node, listen)?;
            let kind = listen.split(':').next().unwrap_or_default();
            addresses.push(format!("{kind}:{}", listener.address()));
            listeners.push(listener);
        }
        store.reached_at(addresses.clone());
        storage.reached_at(addresses.clone());
        let (stop, threads) = (AtomicBool::new(false), NodeThreads::default());
        let (is_one_of_several, of_store) = (nodes > 0, Arc::downgrade(&store));
        let shared = Arc::new(ServerState {
            rpc,
            storage,
            offload,
            scheduler_term: term,
            node: Arc::downgrade(&node),
            endpoints,
            clock,
            me,
            is_one_of_several,
            store: of_store,
            stop,
            threads,
        });
        let ticking = Arc::clone(&shared);
        let ticker = Some(SystemSpawn.spawn("manager-tick", Box::new(move || ticking.tick()))?);
        Ok(Self { shared, ticker, listeners, addresses, _store: store })
    }

    /// Endpoints of the manager.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// A handle that takes figures of the manager.
    #[must_use]
    pub fn monitor(&self) -> ManagerMonitor {
        ManagerMonitor(Arc::clone(&self.shared))
    }

    /// Whether a manager that ran alone was replaced by another one. One of several managers stands
    /// by instead.
    #[must_use]
    pub fn is_deposed(&self) -> bool {
        !self.shared.is_one_of_several
            && self.shared.rpc.look(ManagerCore::is_deposed).unwrap_or(true)
    }

    /// Whether the manager acts and does not stand by.
    #[must_use]
    pub fn is_acting(&self) -> bool {
        self.shared.rpc.is_acting()
    }
}

impl Drop for ManagerServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.listeners.clear();
        self.shared.rpc.close();
        // After the end of the ticker no other thread starts.
        self.ticker.take().into_iter().for_each(join);
        self.shared.threads.join_all();
    }
}

impl ServerState {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn tick(self: &Arc<Self>) {
        while !self.stopped() {
            self.rpc.tick();
            self.storage.tick();
            self.offload.tick(Some(self.scheduler_term));
            if !self.rpc.is_acting()
                && let Some(store) = self.store.upgrade()
            {
                store.retire();
            }
            self.threads.join_ended();
            self.spawn_for(self.rpc.waiting(), "manager-orders", Self::order);
            self.spawn_for(self.rpc.to_be_asked(), "manager-office", Self::ask);
            self.clock.sleep(TICK);
        }
    }

    /// Starts a thread for each of these nodes that has none in its present life.
    fn spawn_for(
        self: &Arc<Self>,
        nodes: Vec<NodeId>,
        name: &'static str,
        work: fn(&Self, NodeId, Epoch, Vec<String>),
    ) {
        for node in nodes {
            let Some((life, ways)) = self.rpc.endpoints(node) else { continue };
            let served = (name, node, life);
            if ways.is_empty() || self.threads.has(&served) {
                continue;
            }
            let me = Arc::clone(self);
            if let Err(error) = self.threads.start(served, move || work(&me, node, life, ways)) {
                tracing::error!(
                    %error,
                    %node,
                    "the thread for a node could not be started; its orders wait for the next \
                     attempt"
                );
            }
        }
    }

    /// Asks one life of a node for its promise repeatedly. Orders have another thread, because they
    /// may take long.
    fn ask(&self, node: NodeId, life: Epoch, ways: Vec<String>) {
        let me = asker_of_promises(self.me);
        let line = Line::new(&self.endpoints, ways, me, Some((node, life)));
        while !self.stopped() {
            if self.rpc.endpoints(node).is_none_or(|(now, _)| now != life) {
                return;
            }
            let Some(question) = self.rpc.take_question(node) else {
                self.clock.sleep(TICK);
                continue;
            };
            let sent_ns = self.clock.now_ns();
            match line.ask(&question, ORDER) {
                Ok(answer) => self.rpc.on_promise(node, &question, sent_ns, &answer),
                Err(error) => tracing::debug!(%error, %node, "a node made no promise"),
            }
        }
    }

    /// Sends orders to one life of a node, one after another.
    fn order(&self, node: NodeId, life: Epoch, ways: Vec<String>) {
        let line = Line::new(&self.endpoints, ways, self.me, Some((node, life)));
        while !self.stopped() {
            if self.rpc.endpoints(node).is_none_or(|(now, _)| now != life) {
                return;
            }
            let mut orders = self.rpc.take_orders(node, LOOK);
            while let Some(message) = orders.pop_front() {
                let answer = line.ask(&message, ORDER);
                if let Err(error) = &answer {
                    tracing::debug!(%error, %node, order = message.name(), "a node did not answer an order");
                    // The remaining orders are dropped, because each of them would wait as long.
                    // The manager sends all of them again later.
                    orders.clear();
                }
                self.rpc.on_answer(node, &message, answer.as_ref().ok());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// Milliseconds for which a test waits for another thread.
    const WAITS_MAX: u32 = 60_000;

    #[test]
    fn thread_that_has_ended_is_joined_and_starts_again() {
        let (threads, clock) = (NodeThreads::default(), SystemClock::new());
        let begun = Arc::new(AtomicU32::new(0));
        let served = ("manager-orders", NodeId(1), Epoch(2));
        for round in 1..=3 {
            let counted = Arc::clone(&begun);
            let work = move || {
                counted.fetch_add(1, Ordering::SeqCst);
                assert!(round != 2, "a panic on purpose");
            };
            threads.start(served, work).expect("a thread");
            assert!(threads.has(&served), "also after it has ended");
            let has_ended = |_| {
                clock.sleep(Duration::from_millis(1));
                threads.join_ended();
                !threads.has(&served)
            };
            assert!((0..WAITS_MAX).any(has_ended), "round {round}");
            assert_eq!(begun.load(Ordering::SeqCst), round);
        }
    }

    #[test]
    fn threads_that_run_stay_and_are_joined_at_the_end() {
        let (threads, stop) = (NodeThreads::default(), Arc::new(AtomicBool::new(false)));
        // Two tasks for one node, and one task for two lives of the node.
        let works = [("manager-orders", 1), ("manager-office", 1), ("manager-orders", 2)];
        let works = works.map(|(name, life)| (name, NodeId(1), Epoch(life)));
        for served in works {
            let stop = Arc::clone(&stop);
            let work = move || {
                while !stop.load(Ordering::SeqCst) {
                    SystemClock::new().sleep(LOOK);
                }
            };
            threads.start(served, work).expect("a thread");
        }
        threads.join_ended();
        assert!(works.iter().all(|served| threads.has(served)));
        stop.store(true, Ordering::SeqCst);
        threads.join_all();
        assert!(!works.iter().any(|served| threads.has(served)));
    }
}
