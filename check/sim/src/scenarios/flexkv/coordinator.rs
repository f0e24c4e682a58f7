//! The store's coordinator on its host, which the run starts and crashes.

use std::sync::Arc;
use std::time::Duration;

use crate::scenarios::pool::{Cluster, revive};
use archipelago_base::random::Rng;
use archipelago_base::simulation::Host;
use archipelago_fabric::sim::Sim;
use archipelago_fabric::{Listener, Node, NodeId, Provider};
use archipelago_flexkv::coordinator::{
    Coordinator, CoordinatorRpc, Plan, Rhythm, Tuning, directory_label,
};
use archipelago_flexkv::wire::Assigned;
use parking_lot::Mutex;

use crate::scenarios::flexkv::node::{COORDINATOR, LABEL, join_pool};

type Kept = (Arc<CoordinatorRpc>, Arc<Node>, Box<dyn Listener>);

/// The coordinator on its host, in all its lives.
pub(crate) struct CoordinatorActor {
    sim: Sim,
    plan: Plan,
    tuning: Tuning,
    running: bool,
    kept: Arc<Mutex<Option<Kept>>>,
}

impl CoordinatorActor {
    pub(crate) fn new(sim: Sim, rng: &mut Rng) -> Self {
        let offload = [0, 500, 1000][rng.usize(..3)];
        let log2_buckets = rng.u32(..2);
        let plan =
            Plan { partition_bits: rng.u32(1..=3), log2_buckets, offload, ..Plan::default() };
        // In half of the runs, the coordinator assigns partitions by load. A ratio that the run
        // sets ends the control of the ratio.
        let tuning = Tuning {
            hotness: rng.bool(),
            adapt_ratio: rng.bool(),
            interval: Duration::from_millis(rng.u64(5..30)),
            ..Tuning::default()
        };
        Self { sim, plan, tuning, running: false, kept: Arc::default() }
    }

    pub(crate) fn host(&self) -> &Host {
        self.sim.host()
    }

    /// Starts the coordinator if it is down or was declared dead.
    pub(crate) fn start(&mut self, cluster: &mut Cluster) {
        if self.kept.lock().as_ref().is_some_and(|(rpc, ..)| rpc.is_over()) {
            self.crash();
        }
        if std::mem::replace(&mut self.running, true) {
            return;
        }
        revive(self.sim.host());
        let (life, plan, sim) = (cluster.next_life(), self.plan, self.sim.clone());
        let tuning = self.tuning;
        let (kept, host) = (Arc::clone(&self.kept), sim.host().clone());
        let task = async move {
            let pool = join_pool(&sim, directory_label(LABEL)).await;
            let runtime = Arc::new(sim.host().clone());
            let (rpc, handler) = CoordinatorRpc::new(plan, runtime, Arc::new(sim.clone()), pool);
            let node = sim.network().node(NodeId(u64::MAX - 1), life, Some(handler));
            let node = node.expect("a node in memory");
            let listener = sim.serve(&node, COORDINATOR).expect("a host serves at its name");
            rpc.tune(tuning);
            rpc.start(Rhythm::default());
            *kept.lock() = Some((rpc, node, listener));
        };
        let _ends_with_the_host = Host::spawn(&host, "coordinator", task);
    }

    /// Crashes the coordinator, and returns whether it was up.
    pub(crate) fn crash(&mut self) -> bool {
        *self.kept.lock() = None;
        self.sim.host().crash();
        std::mem::replace(&mut self.running, false)
    }

    pub(crate) fn set_offload(&self, share: u32) -> bool {
        let kept = self.kept.lock();
        kept.as_ref().is_some_and(|(rpc, ..)| {
            rpc.set_offload(share);
            true
        })
    }

    /// Version of the map, or 0 while the coordinator is down.
    pub(crate) fn version(&self) -> u64 {
        let kept = self.kept.lock();
        kept.as_ref().map_or(0, |(rpc, ..)| rpc.look(Coordinator::version))
    }

    /// Number of decisions by load that the running coordinator made: reassignments and changes of
    /// the ratio.
    pub(crate) fn tuned(&self) -> u64 {
        let kept = self.kept.lock();
        let decisions = |core: &Coordinator| {
            let report = core.report();
            report.reassignments + report.ratio_moves
        };
        kept.as_ref().map_or(0, |(rpc, ..)| rpc.look(decisions))
    }

    /// The map, which is empty while the coordinator is down.
    pub(crate) fn map(&self) -> Vec<Assigned> {
        let kept = self.kept.lock();
        kept.as_ref().map_or_else(Vec::new, |(rpc, ..)| rpc.look(|core| core.map().to_vec()))
    }

    pub(crate) fn is_settled(&self) -> bool {
        let kept = self.kept.lock();
        kept.as_ref().is_some_and(|(rpc, ..)| rpc.look(Coordinator::is_settled))
    }
}
