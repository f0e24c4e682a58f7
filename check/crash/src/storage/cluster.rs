//! A cluster of storage nodes as its operator sees it: processes that are started, stopped, killed
//! and started again.
//!
//! Invariants:
//! 1. A node keeps its directory, and the manager its address, over all restarts.
//! 2. [`Cluster::restore`] returns when all processes run and the manager hears of all nodes.
//!
//! Thread-safety: one thread owns a cluster.
//! Failure: every error names the process, or says what the manager did not see in time.
//! Cost: one process per node, and one for the manager.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use archipelago::env::FileSystem as _;
use archipelago::env::local::LocalFs;
use archipelago::{Rng, SystemClock};
use archipelago_base::runtime::{Runtime, ThreadRuntime, wait_for};
use archipelago_fabric::{Endpoints, Reach};
use archipelago_store::nodes::client::NodeClient;
use archipelago_store::nodes::wire::{MemberState, Members};

use super::servers::NodeRole;
use crate::children::{Fault, ManagerRole, PATIENCE, Server};

/// Pause between two checks of the members.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// A manager and its storage nodes.
#[derive(Debug)]
pub(super) struct Cluster {
    dir: PathBuf,
    manager: Server,
    /// Address of the manager: `HOST:PORT`.
    address: String,
    nodes: Vec<Server>,
    full_disk: bool,
    rng: Rng,
    client: Arc<NodeClient>,
}

/// Shape of a cluster, and the directory of its data.
#[derive(Clone, Debug)]
pub(super) struct ClusterPlan {
    pub(super) dir: PathBuf,
    pub(super) nodes: usize,
    /// Whether other programs fill the disks of nodes at random moments.
    pub(super) full_disk: bool,
    pub(super) seed: u64,
}

impl Cluster {
    /// Starts a cluster, and waits until it is founded.
    pub(super) fn start(plan: &ClusterPlan) -> Result<Self, String> {
        let text = |error: archipelago::Error| error.to_string();
        LocalFs::new().create_dir_all(&plan.dir).map_err(text)?;
        let role = ManagerRole { listen: "127.0.0.1:0".to_owned() };
        let (manager, addresses) = Server::start("manager", &role.words(), &plan.dir)?;
        let address = addresses.trim_start_matches("tcp:").to_owned();
        let reach: Arc<dyn Reach> = Arc::new(Endpoints::new());
        let runtime: Arc<dyn Runtime> = ThreadRuntime::shared().map_err(text)?;
        let client = NodeClient::new(reach, runtime, vec![format!("tcp:{address}")]);
        let mut cluster = Self {
            dir: plan.dir.clone(),
            manager,
            address,
            nodes: Vec::new(),
            full_disk: plan.full_disk,
            rng: Rng::with_seed(plan.seed),
            client,
        };
        for index in 0..plan.nodes {
            let node = cluster.start_node(index)?;
            cluster.nodes.push(node);
        }
        cluster.wait_until_whole()?;
        Ok(cluster)
    }

    /// Address of the manager: `HOST:PORT`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Number of nodes, those included that do not run.
    pub(super) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    fn start_node(&mut self, index: usize) -> Result<Server, String> {
        let number = index as u64 + 1;
        let role = NodeRole {
            number,
            dir: self.dir.join(format!("node{number}")),
            manager: self.address.clone(),
            full_disk: self.full_disk,
            seed: self.rng.u64(..),
        };
        Server::start(&format!("node {number}"), &role.words(), &self.dir).map(|(node, _)| node)
    }

    /// Takes a node away.
    pub(super) fn take_node(&mut self, index: usize, fault: Fault) -> Result<(), String> {
        self.nodes[index].suffer(fault)
    }

    /// Takes the manager away.
    pub(super) fn take_manager(&mut self, fault: Fault) -> Result<(), String> {
        self.manager.suffer(fault)
    }

    /// Takes all processes away, in a random order.
    pub(super) fn take_all(&mut self, fault: Fault) -> Result<(), String> {
        let mut order: Vec<usize> = (0..=self.nodes.len()).collect();
        self.rng.shuffle(&mut order);
        for index in order {
            match self.nodes.get_mut(index) {
                Some(node) => node.suffer(fault)?,
                None => self.manager.suffer(fault)?,
            }
        }
        Ok(())
    }

    /// Brings the manager back.
    pub(super) fn restore_manager(&mut self) -> Result<(), String> {
        if self.manager.restore()? {
            let role = ManagerRole { listen: self.address.clone() };
            self.manager = Server::start("manager", &role.words(), &self.dir)?.0;
        }
        Ok(())
    }

    /// Brings all processes back, and waits until the manager hears of all nodes.
    pub(super) fn restore(&mut self) -> Result<(), String> {
        self.restore_manager()?;
        for index in 0..self.nodes.len() {
            if self.nodes[index].restore()? {
                self.nodes[index] = self.start_node(index)?;
            }
        }
        self.wait_until_whole()
    }

    /// Ends all processes in order: the nodes first, and then the manager.
    pub(super) fn end(mut self) -> Result<(), String> {
        for node in &mut self.nodes {
            node.process.end_input();
        }
        for node in &mut self.nodes {
            let status = node.process.wait(PATIENCE)?;
            if !status.success() {
                let said = node.process.messages();
                return Err(format!("a node did not end in order ({status}): {said}"));
            }
        }
        Ok(())
    }

    /// Waits until the manager hears of the present life of each node of a founded cluster.
    fn wait_until_whole(&self) -> Result<(), String> {
        let clock = SystemClock::shared();
        let until_ns = clock.now_ns() + PATIENCE.as_nanos() as u64;
        loop {
            let members = wait_for(&**self.client.runtime(), self.client.refresh());
            if members.as_ref().is_ok_and(|members| self.is_whole(members)) {
                return Ok(());
            }
            if clock.now_ns() > until_ns {
                return Err(format!("the cluster is not whole in {PATIENCE:?}: {members:?}"));
            }
            clock.sleep(LOOK_PAUSE);
        }
    }

    fn is_whole(&self, members: &Members) -> bool {
        let is_up = |index: usize, node: &Server| {
            members.members.iter().any(|member| {
                member.node.0 == index as u64 + 1
                    && member.state == MemberState::Up
                    && member.life.0 >= node.started_ms
            })
        };
        members.cluster.is_some()
            && self.nodes.iter().enumerate().all(|(index, node)| is_up(index, node))
    }
}
