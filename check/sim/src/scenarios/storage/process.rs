//! A process of a run with the operation that it performs, as the run sees both.
//!
//! Thread-safety: the thread that runs the simulation owns the value.

use std::collections::BTreeMap;

use archipelago_base::Result;
use archipelago_base::simulation::Host;

use super::client::{ClientProcess, ClientSettings};
use super::cluster::Cluster;
use super::model::{Change, Content};
use super::owner::{OpenPaths, Operation, OwnerProcess};
use crate::scenarios::thread::{Call, SimThread};

/// An operation that a process performs.
#[derive(Debug)]
pub(crate) struct RunningOperation {
    pub(crate) operation: Operation,
    /// Effects on paths that are written as a whole.
    pub(crate) changes: Vec<Change>,
    pub(crate) call: Call<Result<()>>,
    /// Whether a later owner had the volume when the operation began.
    pub(crate) is_stale: bool,
    /// Contents that a later owner has read meanwhile at the paths of the operation.
    pub(crate) found: BTreeMap<String, Content>,
}

impl RunningOperation {
    /// Paths that the operation changes or creates.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths: Vec<String> = self.changes.iter().map(|it| it.path.clone()).collect();
        paths.extend(self.created_path().map(str::to_owned));
        paths
    }

    /// The growing file that the operation creates.
    pub(crate) fn created_path(&self) -> Option<&str> {
        match &self.operation {
            Operation::BeginLog { path, .. } | Operation::BeginManifest { path, .. } => Some(path),
            _ => None,
        }
    }
}

/// A process that owns the volume, or owned it, or is to own it.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) thread: SimThread<OwnerProcess>,
    pub(crate) open: OpenPaths,
    pub(crate) running: Option<RunningOperation>,
    /// Whether the process was killed.
    pub(crate) is_dead: bool,
    /// Whether the process waits for the end of another owner's lease.
    pub(crate) waits_for_lease: bool,
    /// Number of the process among those that open the volume.
    pub(crate) number: usize,
    /// Time at which the next renewal of the lease is due.
    pub(crate) renewal_ns: u64,
    host: Host,
}

impl Process {
    /// A new process on a host of its own.
    pub(crate) fn start(cluster: &mut Cluster, settings: ClientSettings, number: usize) -> Self {
        let sim = cluster.join_client();
        let host = sim.host().clone();
        let owner = OwnerProcess::new(ClientProcess::new(&sim, settings));
        Self {
            thread: SimThread::start(&host, owner),
            open: OpenPaths::default(),
            running: None,
            is_dead: false,
            waits_for_lease: !settings.takes_over,
            number,
            renewal_ns: 0,
            host,
        }
    }

    /// The process and what it does, for a message.
    pub(crate) fn brief(&self) -> String {
        let doing = self.running.as_ref().map(|running| running.operation.brief());
        format!("{} (killed: {}): {doing:?}", self.host.name(), self.is_dead)
    }

    /// The host of the process.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Begins an operation.
    pub(crate) fn begin(&mut self, operation: Operation, changes: Vec<Change>, is_stale: bool) {
        let performed = operation.clone();
        let call = self.thread.call(move |owner| owner.perform(&performed));
        let found = BTreeMap::new();
        self.running = Some(RunningOperation { operation, changes, call, is_stale, found });
    }

    /// Takes the operation that has ended, and notes which files are open now.
    pub(crate) fn take_ended(&mut self) -> Option<(RunningOperation, Result<()>)> {
        let outcome = self.running.as_ref()?.call.take()?;
        let running = self.running.take()?;
        let is_ok = outcome.is_ok();
        match &running.operation {
            Operation::BeginLog { path, .. } => self.open.log = is_ok.then(|| path.clone()),
            Operation::BeginManifest { path, .. } => {
                self.open.manifest = is_ok.then(|| path.clone());
            }
            Operation::BeginTable { path, bytes } => {
                self.open.pending = is_ok.then(|| (path.clone(), bytes.clone()));
            }
            Operation::EndTable => self.open.pending = None,
            Operation::AppendLog { .. } | Operation::SyncLog if !is_ok => self.open.log = None,
            Operation::AppendManifest { .. } if !is_ok => self.open.manifest = None,
            _ => {}
        }
        Some((running, outcome))
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self, cluster: &mut Cluster) {
        cluster.kill_client(&self.host);
        self.is_dead = true;
        self.thread.close();
    }

    /// Ends the background work of a killed process, once its last call has returned.
    pub(crate) fn bury(&self) {
        if self.is_dead && self.thread.has_ended() && self.host.is_up() {
            self.host.crash();
        }
    }
}
