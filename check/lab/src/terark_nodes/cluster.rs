//! Storage nodes as child processes, and their manager in this process.
//!
//! A run owns one [`Cluster`]. Invariants:
//! 1. A node process ends with the cluster ([`RoleProcess`]).
//! 2. The manager of a founded cluster knows all of its nodes.
//!
//! Thread-safety: any thread may call any method.
//! Failure: an error names the node. A node that a run has killed is left out of sums.

use std::path::Path;
use std::time::Duration;

use archipelago_base::clock::{Clock as _, SystemClock};
use archipelago_bench::harness::store::{Error, Result};
use archipelago_manager::core::Terms;
use archipelago_manager::{ManagerServer, ManagerSettings, MemberTerms, StorePlan};
use archipelago_store::nodes::repairs::RepairTerms;
use archipelago_store::nodes::wire::{MemberState, RepairStatus};
use parking_lot::Mutex;

use super::node::{self, NodeState};
use crate::role::RoleProcess;

/// Time within which nodes must have founded their cluster.
const FOUNDING_MAX: Duration = Duration::from_secs(60);
/// Pause between two checks of the members.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time for which the nodes of a new cluster must have been up.
const SETTLE: Duration = Duration::from_millis(500);

/// Parameters of the start of a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClusterSpec<'a> {
    /// Program that runs a node.
    pub(super) program: &'a Path,
    /// Directory with a directory for each node.
    pub(super) dir: &'a Path,
    pub(super) nodes: u64,
    /// Description of the devices; without it they are real.
    pub(super) device: Option<&'a Path>,
    /// Factor by which the times of the devices are stretched.
    pub(super) scale: f64,
    /// Silence after which a node counts as lost.
    pub(super) lost_after: Duration,
    /// Rates of repairs.
    pub(super) repair: RepairTerms,
}

/// A running node.
type NodeProcess = RoleProcess<NodeState>;

/// Starts node `id`, and waits until it serves.
fn start_node(spec: &ClusterSpec<'_>, manager: &str, id: u64) -> Result<NodeProcess> {
    let dir = spec.dir.join(format!("node-{id}"));
    let mut words = vec![
        node::COMMAND.to_owned(),
        format!("--id={id}"),
        format!("--dir={}", dir.display()),
        format!("--manager={manager}"),
        format!("--scale={}", spec.scale),
    ];
    if let Some(device) = spec.device {
        words.push(format!("--device={}", device.display()));
    }
    Ok(NodeProcess::start(spec.program, &words, format!("storage node {id}"))?.0)
}

/// Bytes and processor time of the nodes at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ClusterState {
    /// Processor time of all nodes so far.
    pub(super) cpu_s: f64,
    /// Bytes of the chunks of tables, and of value files.
    pub(super) tables: Bytes,
    pub(super) values: Bytes,
    /// Bytes of logs with copies.
    pub(super) log_bytes: u64,
    /// Bytes of logs without copies.
    pub(super) log_logical_bytes: u64,
}

/// Bytes of one class of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes {
    /// Bytes with copies and parity.
    pub(super) stored: u64,
    /// Bytes without copies and parity.
    pub(super) logical: u64,
}

impl ClusterState {
    fn add(&mut self, node: &NodeState) {
        self.cpu_s += node.cpu_s.unwrap_or(f64::NAN);
        for space in &node.spaces {
            let of_class = match space.class.as_str() {
                "sst" => &mut self.tables,
                "value-sst" => &mut self.values,
                "wal" => {
                    self.log_bytes += space.bytes;
                    self.log_logical_bytes += space.logical_bytes;
                    continue;
                }
                _ => continue,
            };
            of_class.stored += space.bytes;
            of_class.logical += space.logical_bytes;
        }
    }

    /// Stored bytes of tables and value files.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.tables.stored + self.values.stored
    }

    /// Bytes of tables and value files without copies and parity.
    pub(super) fn logical_bytes(&self) -> u64 {
        self.tables.logical + self.values.logical
    }
}

/// Progress of the repairs, as the manager knows it.
#[derive(Clone, Debug)]
pub(super) struct Repairs {
    /// Whether a node counts as lost.
    pub(super) is_node_lost: bool,
    status: RepairStatus,
}

impl Repairs {
    /// Number of chunks and copies of extents that were made.
    pub(super) fn made(&self) -> u64 {
        self.status.chunks_repaired + self.status.extents_repaired
    }

    fn is_left(&self) -> bool {
        self.status.chunks_left > 0 || self.status.extents_left > 0
    }

    /// Whether copies of a lost node are made, or were made since there were `made` of them.
    pub(super) fn have_begun(&self, made: u64) -> bool {
        self.is_node_lost && (self.is_left() || self.made() > made)
    }

    /// Whether a node is lost and nothing is left to repair.
    pub(super) fn have_ended(&self) -> bool {
        self.is_node_lost && self.status.is_known && !self.is_left()
    }
}

/// A manager and its storage nodes.
#[derive(Debug)]
pub(super) struct Cluster {
    /// `None` after a kill.
    nodes: Mutex<Vec<Option<NodeProcess>>>,
    // Nodes end before their manager: fields are dropped in this order.
    manager: ManagerServer,
}

impl Cluster {
    /// Starts manager and nodes, and waits until they have founded their cluster.
    pub(super) fn start(spec: &ClusterSpec<'_>) -> Result<Self> {
        let storage = MemberTerms {
            settle: SETTLE,
            lost_after: spec.lost_after,
            repair: spec.repair,
            ..MemberTerms::default()
        };
        let manager = ManagerServer::start(&ManagerSettings {
            listen: vec!["tcp:127.0.0.1:0".to_owned()],
            terms: Terms::default(),
            store: StorePlan::default(),
            memory_nodes: 0,
            standby: false,
            storage,
            secret: None,
        })?;
        let address = address_of(&manager);
        let nodes = (1..=spec.nodes).map(|id| start_node(spec, &address, id).map(Some));
        let nodes = Mutex::new(nodes.collect::<Result<Vec<_>>>()?);
        let cluster = Self { nodes, manager };
        cluster.wait_for(spec.nodes)?;
        Ok(cluster)
    }

    /// Waits until the cluster is founded and has heard of `nodes` nodes.
    fn wait_for(&self, nodes: u64) -> Result<()> {
        let (monitor, clock) = (self.manager.monitor(), SystemClock::new());
        let started_ns = clock.now_ns();
        loop {
            let status = monitor.figures().storage.unwrap_or_default();
            let is_up = |state| matches!(state, MemberState::Up);
            let up = status.nodes.iter().filter(|node| is_up(node.member.state)).count() as u64;
            if status.cluster.is_some() && up >= nodes {
                return Ok(());
            }
            if u128::from(clock.now_ns() - started_ns) > FOUNDING_MAX.as_nanos() {
                let waits_for = status.waits_for;
                return Err(Error::invalid(format!(
                    "the storage nodes have founded no cluster in {FOUNDING_MAX:?}: {up} of \
                     {nodes} are up, and the manager waits for: {waits_for}"
                )));
            }
            clock.sleep(LOOK_EVERY);
        }
    }

    /// Address of the manager, as `HOST:PORT`.
    pub(super) fn address(&self) -> String {
        address_of(&self.manager)
    }

    /// Sums over the nodes that run.
    pub(super) fn state(&self) -> Result<ClusterState> {
        let mut sum = ClusterState::default();
        for node in self.nodes.lock().iter_mut().flatten() {
            sum.add(&node.state()?);
        }
        Ok(sum)
    }

    /// State of the node with the largest number. Zero after its kill.
    pub(super) fn last_node(&self) -> Result<ClusterState> {
        let mut one = ClusterState::default();
        if let Some(Some(node)) = self.nodes.lock().last_mut() {
            one.add(&node.state()?);
        }
        Ok(one)
    }

    /// Progress of the repairs.
    pub(super) fn repairs(&self) -> Repairs {
        let status = self.manager.monitor().figures().storage.unwrap_or_default();
        let is_lost = |state| matches!(state, MemberState::Lost);
        let is_node_lost = status.nodes.iter().any(|node| is_lost(node.member.state));
        Repairs { is_node_lost, status: status.repair }
    }

    /// Kills the node with the largest number. It stays dead.
    pub(super) fn kill_one(&self) -> Result<()> {
        let killed = self.nodes.lock().last_mut().and_then(Option::take);
        killed.map_or(Ok(()), |mut node| node.kill())
    }

    /// Ends all nodes in order.
    pub(super) fn close(self) -> Result<()> {
        let nodes = std::mem::take(&mut *self.nodes.lock());
        let mut result = Ok(());
        for node in nodes.into_iter().flatten() {
            result = result.and(node.close());
        }
        result
    }
}

fn address_of(manager: &ManagerServer) -> String {
    let address = manager.addresses().first().cloned().unwrap_or_default();
    address.trim_start_matches("tcp:").to_owned()
}
