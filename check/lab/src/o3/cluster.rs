//! The processes of a run in addition to its owner: executors, memory nodes, and a manager in this
//! process.
//!
//! A run owns one [`Cluster`]. Invariants:
//! 1. A process ends with the cluster ([`RoleProcess`]).
//! 2. A cluster that has started knows all of its memory nodes, and its executors had time to
//!    announce themselves.
//!
//! Thread-safety: any thread may call any method.
//! Failure: an error names the role.

use std::path::{Path, PathBuf};
use std::time::Duration;

use archipelago_base::clock::{Clock as _, SystemClock};
use archipelago_bench::harness::store::{Error, Result};
use archipelago_manager::core::Terms;
use archipelago_manager::{ManagerServer, ManagerSettings, MemberTerms, StorePlan};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::modes::Nodes;
use super::node::{COMMAND, RoleState};
use crate::role::RoleProcess;

/// Time within which memory nodes must be known to the manager.
const START_MAX: Duration = Duration::from_secs(30);
/// Pause between two checks of the memory nodes.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time for executors to announce themselves: two of their beats.
const ANNOUNCED: Duration = Duration::from_millis(400);

/// Descriptions of the links of a run.
#[derive(Clone, Debug)]
pub(super) struct Devices {
    /// Link of a compute or memory node.
    pub(super) link: PathBuf,
    /// Storage as an executor on a storage node has it.
    pub(super) local: PathBuf,
}

/// Parameters of the start of a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClusterSpec<'a> {
    /// Program that runs a role.
    pub(super) program: &'a Path,
    /// Directory of the shared storage.
    pub(super) share: &'a Path,
    pub(super) nodes: Nodes,
    pub(super) devices: &'a Devices,
    /// Factor on the rates of the links.
    pub(super) speed: f64,
    /// Directory of sockets for shared memory, if the owner reaches memory nodes through it.
    pub(super) sockets: Option<&'a Path>,
}

/// Place of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Place {
    /// An executor on a storage node.
    Storage,
    /// An executor behind a link of its own.
    Linked,
    Memory,
}

impl ClusterSpec<'_> {
    fn words(&self, place: Place, id: u32, manager: &str) -> Vec<String> {
        let role = if place == Place::Memory { "memory" } else { "executor" };
        let device = match place {
            Place::Storage => &self.devices.local,
            Place::Linked | Place::Memory => &self.devices.link,
        };
        let mut words = vec![
            COMMAND.to_owned(),
            format!("--role={role}"),
            format!("--id={id}"),
            format!("--manager={manager}"),
            format!("--dir={}", self.share.display()),
            format!("--device={}", device.display()),
            format!("--speed={}", self.speed),
        ];
        if let Some(dir) = self.sockets.filter(|_| place == Place::Memory) {
            words.push(format!("--shm={}", dir.join(format!("memory-{id}.sock")).display()));
        }
        words
    }
}

/// A manager and the processes of a run.
#[derive(Debug)]
pub(super) struct Cluster {
    roles: Mutex<Vec<(Place, RoleProcess<RoleState>)>>,
    // Roles end before their manager: fields are dropped in this order.
    manager: ManagerServer,
}

impl Cluster {
    /// Starts manager and roles, and waits until they know each other.
    pub(super) fn start(spec: &ClusterSpec<'_>) -> Result<Self> {
        let manager = ManagerServer::start(&ManagerSettings {
            listen: vec!["tcp:127.0.0.1:0".to_owned()],
            terms: Terms::default(),
            store: StorePlan::default(),
            memory_nodes: 0,
            standby: false,
            storage: MemberTerms::default(),
            secret: None,
        })?;
        let address = address_of(&manager);
        let Nodes { storage_executors, memory, linked_executors } = spec.nodes;
        let wanted = [
            (Place::Memory, memory),
            (Place::Storage, storage_executors),
            (Place::Linked, linked_executors),
        ];
        let mut roles = Vec::new();
        for (place, count) in wanted {
            for id in 1..=count {
                let words = spec.words(place, id, &address);
                let name = format!("{place:?} {id}").to_lowercase();
                roles.push((place, RoleProcess::start(spec.program, &words, name)?.0));
            }
        }
        let cluster = Self { roles: Mutex::new(roles), manager };
        cluster.wait_for(memory)?;
        Ok(cluster)
    }

    /// Waits until the manager knows `memory` nodes.
    fn wait_for(&self, memory: u32) -> Result<()> {
        let (monitor, clock) = (self.manager.monitor(), SystemClock::new());
        let started_ns = clock.now_ns();
        loop {
            let nodes = monitor.figures().pool.map(|pool| pool.nodes).unwrap_or_default();
            let up = nodes.iter().filter(|node| node.up).count();
            let took = Duration::from_nanos(clock.now_ns() - started_ns);
            if up >= memory as usize && took >= ANNOUNCED {
                return Ok(());
            }
            if took > START_MAX {
                return Err(Error::invalid(format!(
                    "the manager knows {up} of {memory} memory nodes after {START_MAX:?}"
                )));
            }
            clock.sleep(LOOK_EVERY);
        }
    }

    /// Address of the manager, as `HOST:PORT`.
    pub(super) fn address(&self) -> String {
        address_of(&self.manager)
    }

    /// States of all roles.
    pub(super) fn states(&self) -> Result<Vec<(Place, RoleState)>> {
        let mut roles = self.roles.lock();
        let states = roles.iter_mut().map(|(place, role)| Ok((*place, role.state()?)));
        states.collect()
    }

    /// Ends all roles in order.
    pub(super) fn close(self) -> Result<()> {
        let roles = std::mem::take(&mut *self.roles.lock());
        let mut result = Ok(());
        for (_, role) in roles {
            // Every role is notified to end, also after the failure of another one.
            let closed = role.close();
            result = result.and(closed);
        }
        result
    }
}

fn address_of(manager: &ManagerServer) -> String {
    let address = manager.addresses().first().cloned().unwrap_or_default();
    address.trim_start_matches("tcp:").to_owned()
}
