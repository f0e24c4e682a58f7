//! Managers, each with a scheduler, and memory nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::simulation::Host;
use archipelago_fabric::sim::Sim;
use archipelago_fabric::{Handler, Listener, Node, NodeId, Provider, Reply, Request};
use archipelago_offload::net::SchedulerDesk;
use archipelago_offload::shard_host::{HostThreads, NodeBytes, ShardHost, ShardLimits};
use archipelago_offload::shard_owner::MemoryNode;

use super::machines::Machines;
use crate::scenarios::shard_parts::NodeLife;

/// Interval of the timer of a manager and of a memory node.
const TICK: Duration = Duration::from_millis(20);
/// Bytes of a region of an arena.
const ARENA_BYTES: u64 = 128 << 10;

/// The scheduler's desk, with the term of its scheduler.
struct Front {
    desk: SchedulerDesk,
    /// 0 while there is no scheduler.
    term: AtomicU64,
}

impl Front {
    fn term(&self) -> Option<u64> {
        Some(self.term.load(Ordering::Relaxed)).filter(|term| *term > 0)
    }
}

struct ToDesk(Arc<Front>);

impl Handler for ToDesk {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        self.0.desk.handle(self.0.term(), &request, reply);
    }
}

/// A manager, as far as jobs need it.
pub(super) struct Office {
    front: Arc<Front>,
    /// Term of the latest life of the scheduler.
    latest: u64,
    host: Host,
    _node: Arc<Node>,
    _listener: Box<dyn Listener>,
}

impl Office {
    /// Starts the manager with that number.
    pub(super) fn start(machines: &mut Machines, number: u64) -> Self {
        let there = machines.join(&format!("manager{number}"));
        let host = there.host().clone();
        let desk = SchedulerDesk::new(&machines.simulation.clock());
        let front = Arc::new(Front { desk, term: AtomicU64::new(1) });
        let handler = Box::new(ToDesk(Arc::clone(&front)));
        let node = machines.network.node(NodeId(u64::MAX - number), Epoch(1), Some(handler));
        let node = node.expect("a node");
        let listener = there.serve(&node, host.name()).expect("a host serves at its name");
        let (ticks, scheduler) = (Arc::clone(&front), host.scheduler().clone());
        let _ends_with_the_host = host.spawn("office-tick", async move {
            loop {
                scheduler.sleep(TICK).await;
                ticks.desk.tick(ticks.term());
            }
        });
        Self { front, latest: 1, host, _node: node, _listener: listener }
    }

    /// The machine of the manager, whose name is its endpoint.
    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    /// Begins another life of the scheduler, without any state.
    pub(super) fn restart(&mut self) {
        self.latest += 1;
        self.front.term.store(self.latest, Ordering::Relaxed);
    }

    /// Ends the life of the scheduler. No other one begins yet, so the manager answers that it
    /// stands by.
    pub(super) fn stand_by(&self) {
        self.front.term.store(0, Ordering::Relaxed);
    }

    /// Begins another life if the scheduler stands by.
    pub(super) fn restart_if_standing_by(&mut self) {
        if self.front.term().is_none() {
            self.restart();
        }
    }

    /// Number of jobs that the scheduler knows.
    pub(super) fn jobs(&self) -> u64 {
        self.front.desk.jobs()
    }
}

/// A memory node in one of its lives.
pub(super) struct Memory {
    number: u64,
    bytes: u64,
    there: Sim,
    pub(super) life: NodeLife,
}

impl Memory {
    /// Begins a life of a node.
    pub(super) fn start(machines: &mut Machines, number: u64, life: u64, bytes: u64) -> Self {
        let there = machines.join(&format!("memory{number}"));
        let limits = ShardLimits { arena_bytes: ARENA_BYTES, ..ShardLimits::new(bytes) };
        let (clock, of_node) = (machines.simulation.clock(), NodeBytes::new(bytes));
        let shards = ShardHost::new(limits, of_node, clock, HostThreads::Caller);
        let life = NodeLife::begin(&there, NodeId(number), Epoch(life), Arc::clone(&shards));
        let scheduler = there.host().scheduler().clone();
        let _ends_with_the_host = there.host().spawn("memory-tick", async move {
            loop {
                scheduler.sleep(TICK).await;
                shards.tick();
            }
        });
        Self { number, bytes, there, life }
    }

    /// The next life of the node, on another machine. This life ends.
    pub(super) fn next_life(&self, machines: &mut Machines) -> Self {
        self.life.shards.close();
        machines.isolate(self.there.host());
        Self::start(machines, self.number, self.life.member.life.0 + 1, self.bytes)
    }

    /// The machine of this life.
    pub(super) fn machine(&self) -> &Sim {
        &self.there
    }

    /// The entry of the node in the pool's list.
    pub(super) fn member(&self) -> MemoryNode {
        self.life.member.clone()
    }
}
