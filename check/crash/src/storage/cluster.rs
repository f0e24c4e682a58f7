//! A cluster of storage nodes as its operator sees it: processes that are started, stopped, killed
//! and started again. Executors of jobs of volumes belong to it, unless the disks of its nodes are
//! full at times.
//!
//! Invariants:
//! 1. A node keeps its directory, and the manager its address, over all restarts.
//! 2. [`Cluster::restore`] returns when all processes run and the manager gets beats of all nodes.
//!
//! Thread-safety: one thread owns a cluster.
//! Failure: every error names the process, or the condition that the manager did not see in time.
//! Cost: one process per node and executor, and one for the manager.

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

use super::servers::{ExecutorRole, NodeRole};
use super::steps::Step;
use crate::children::{Fault, ManagerRole, PATIENCE, Server};

/// Pause between two checks of the members.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// Number of executors.
const EXECUTORS: usize = 2;
/// Bytes that a node may use. So its fullness does not depend on the other files of its disk.
pub(super) const NODE_BYTES: u64 = 1 << 30;

/// A manager, its storage nodes and the executors of jobs.
#[derive(Debug)]
pub(super) struct Cluster {
    dir: PathBuf,
    manager: Server,
    /// Address of the manager: `HOST:PORT`.
    address: String,
    pub(super) nodes: Vec<Server>,
    /// Bytes that each node may use; 0 for all that its disk has.
    pub(super) limits: Vec<u64>,
    pub(super) executors: Vec<Server>,
    /// Copies that a fault has disturbed, until they are finished.
    pub(super) copying: Option<Copying>,
    full_disk: bool,
    pub(super) rng: Rng,
    pub(super) client: Arc<NodeClient>,
}

/// Copies of chunks that a cluster makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copying {
    pub(super) step: Step,
    /// Index of the node that is lost, emptied or too full.
    pub(super) from: usize,
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
            limits: vec![if plan.full_disk { 0 } else { NODE_BYTES }; plan.nodes],
            executors: Vec::new(),
            copying: None,
            full_disk: plan.full_disk,
            rng: Rng::with_seed(plan.seed),
            client,
        };
        for index in 0..plan.nodes {
            let node = cluster.start_node(index)?;
            cluster.nodes.push(node);
        }
        cluster.wait_until_whole()?;
        // An executor reaches a cluster that is founded.
        let executors = if plan.full_disk { 0 } else { EXECUTORS };
        for index in 0..executors {
            let executor = cluster.start_executor(index)?;
            cluster.executors.push(executor);
        }
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
            bytes_max: self.limits[index],
            full_disk: self.full_disk,
            seed: self.rng.u64(..),
        };
        Server::start(&format!("node {number}"), &role.words(), &self.dir).map(|(node, _)| node)
    }

    fn start_executor(&self, index: usize) -> Result<Server, String> {
        let role = ExecutorRole { manager: self.address.clone() };
        let name = format!("executor {}", index + 1);
        Server::start(&name, &role.words(), &self.dir).map(|(executor, _)| executor)
    }

    /// Whether the cluster has executors.
    pub(super) fn has_executors(&self) -> bool {
        !self.executors.is_empty()
    }

    /// Takes an executor away.
    pub(super) fn take_executor(&mut self, index: usize, fault: Fault) -> Result<(), String> {
        self.executors[index].suffer(fault)
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
        let mut servers: Vec<&mut Server> =
            self.nodes.iter_mut().chain(&mut self.executors).collect();
        servers.push(&mut self.manager);
        self.rng.shuffle(&mut servers);
        servers.into_iter().try_for_each(|server| server.suffer(fault))
    }

    /// Brings the manager back.
    pub(super) fn restore_manager(&mut self) -> Result<(), String> {
        if self.manager.restore()? {
            let role = ManagerRole { listen: self.address.clone() };
            self.manager = Server::start("manager", &role.words(), &self.dir)?.0;
        }
        Ok(())
    }

    /// Brings all processes back, and waits until the manager gets beats of all nodes.
    pub(super) fn restore(&mut self) -> Result<(), String> {
        self.restore_manager()?;
        for index in 0..self.nodes.len() {
            self.restore_node(index)?;
        }
        self.wait_until_whole()?;
        for index in 0..self.executors.len() {
            if self.executors[index].restore()? {
                self.executors[index] = self.start_executor(index)?;
            }
        }
        Ok(())
    }

    /// Brings a node back.
    pub(super) fn restore_node(&mut self, index: usize) -> Result<(), String> {
        if self.nodes[index].restore()? {
            self.nodes[index] = self.start_node(index)?;
        }
        Ok(())
    }

    /// Ends all processes in order: executors and nodes first, and then the manager.
    pub(super) fn end(mut self) -> Result<(), String> {
        for executor in &mut self.executors {
            executor.process.end_input();
            let status = executor.process.wait(PATIENCE)?;
            if !status.success() {
                let said = executor.process.messages();
                return Err(format!("an executor did not end in order ({status}): {said}"));
            }
        }
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

    /// Waits until the manager gets beats of the present life of each node of a founded cluster.
    pub(super) fn wait_until_whole(&self) -> Result<(), String> {
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
                    && matches!(member.state, MemberState::Up | MemberState::Draining)
                    && member.life.0 >= node.started_ms
            })
        };
        members.cluster.is_some()
            && self.nodes.iter().enumerate().all(|(index, node)| is_up(index, node))
    }
}
