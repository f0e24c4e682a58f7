//! Runs that bring about one situation again and again, because the seeds of the scenario `storage`
//! meet it rarely. Each situation is the one that a step of the protocol exists for:
//!
//! - `fence`: the owner writes records while another process reads their log for its take-over.
//!   Without the step, a record is acknowledged after the read, and the new owner lacks it.
//! - `root-copy`: a bare majority of the root set has a value, and one of its members is replaced.
//!   Without the step, the members that lack the value are a majority of the next set.
//! - `chosen-end`: an extent ends while its nodes work on an append that the next extent does not
//!   get. Without the step, the append is acknowledged, and the recorded end is before it.
//!
//! The seed chooses the situation. Nodes lose no memory in these runs, and the network loses no
//! message unless a situation cuts a link. The checks and the end are those of every run.

use std::time::Duration;

use archipelago_env::FileClass;
use archipelago_store::nodes::logs::LogWriting;
use archipelago_store::nodes::register::caspaxos::root_change::RootChangeSabotage;

use super::choose::OperationSource;
use super::client::LOG_PATIENCE;
use super::cluster::{Cluster, ClusterSettings, Losses, RootNodes};
use super::node::NodeSettings;
use super::run::{DrawOperation, Run, RunOptions};
use super::{
    CHOSEN_END, DEVICE_BYTES, FENCE, ROOT_COPY, client_settings, node_sabotage, outcome_of,
    shape_of,
};
use crate::run::{RunOutcome, RunRequest, Scenario, Step};

/// Steps that these runs can leave out.
const STEPS: [Step; 3] = [FENCE, ROOT_COPY, CHOSEN_END];
/// Number of nodes. Two logs of three nodes each are often on disjoint nodes.
const NODES: usize = 12;
/// Number of times that a run brings its situation about, if enough owners are left.
const ROUNDS: usize = 8;
/// Number of steps of a race between two owners.
const RACE_STEPS: usize = 2_000;
/// Number of pauses of 50 ms within which a take-over must end.
const TAKE_OVER_LOOKS: usize = 400;
/// Number of pauses of 100 ms within which a root node is replaced.
const REPLACEMENT_LOOKS: usize = 100;
/// Number of milliseconds within which an operation ends on nodes that are not away.
const OPERATION_MS: usize = 100;
/// Time that a slow node takes for a request. It is shorter than the time after which a link goes
/// down on which messages are lost, so answers that are under way arrive.
const SLOW: Duration = Duration::from_millis(30);
/// Time after the kill of a node at which a log that sends to it ends its extent. The link goes
/// down after 10 ms. The log waits for 10 ms, connects again, and gives that up after its patience.
const GIVEN_UP: Duration = LOG_PATIENCE.saturating_add(Duration::from_millis(20));
/// Time within which the manager hears of nodes that have started, and lets them join the root set.
const BEATS: Duration = Duration::from_millis(1_000);

/// A situation that a run brings about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Situation {
    /// Two owners race for the namespace.
    Races,
    /// A root node is replaced after a change that a bare majority has.
    Roots,
    /// An extent ends while an append is under way.
    Ends,
}

impl Situation {
    fn of(seed: u64) -> Self {
        [Self::Races, Self::Roots, Self::Ends][(seed % 3) as usize]
    }
}

pub(crate) fn scenario() -> Scenario {
    let about = "storage nodes in rare situations, each of which needs one step of the protocol";
    Scenario::with_steps("storage-directed", about, &STEPS, run)
}

/// Runs one seed.
fn run(request: &RunRequest) -> RunOutcome {
    let (sabotage, device_bytes) = (node_sabotage(request), DEVICE_BYTES);
    let node = NodeSettings { sabotage, device_bytes, devices: 1 };
    let root_change = RootChangeSabotage { no_copy: request.leaves_out("root-copy") };
    let (losses, has_repairs) = (Losses::Power, false);
    let settings = ClusterSettings { nodes: NODES, losses, node, root_change, has_repairs };
    let cluster = Cluster::new(request, settings);
    let has_card = shape_of(request).bool();
    let settings = client_settings(request, LogWriting::Serial, has_card);
    let source = OperationSource::new(false, 0);
    let run = Run::new(cluster, settings, source, RunOptions::default());
    outcome_of(run, |run| run.bring_about(Situation::of(request.seed)))
}

/// Positions whose numbers have grown.
fn grown(before: &[u64], after: &[u64]) -> Vec<usize> {
    (0..before.len()).filter(|at| after[*at] > before[*at]).collect()
}

impl Run {
    fn bring_about(&mut self, situation: Situation) {
        for _ in 0..ROUNDS {
            match situation {
                Situation::Races => self.race_for_the_namespace(),
                Situation::Roots => self.replace_root_node(),
                Situation::Ends => self.end_extent_in_flight(),
            }
            self.settle_owner();
            if !self.violations.is_empty() {
                return;
            }
        }
    }

    /// Waits until no take-over is under way, and the owner has read all files.
    fn settle_owner(&mut self) {
        for _ in 0..TAKE_OVER_LOOKS {
            if !self.is_settling() {
                return;
            }
            self.pass(Duration::from_millis(50));
        }
    }

    /// Lets the owner write records of the namespace, and a few appends to its log, while another
    /// process takes the volume over.
    fn race_for_the_namespace(&mut self) {
        self.cluster.delay_messages();
        self.begin_take_over();
        for _ in 0..RACE_STEPS {
            if !self.is_settling() || !self.violations.is_empty() {
                return;
            }
            let draw: DrawOperation = match self.cluster.rng.u8(..4) {
                0 => OperationSource::draw_append,
                _ => OperationSource::draw_replacement,
            };
            self.begin_operation(draw);
            let pause = Duration::from_nanos(self.cluster.rng.u64(500..60_000));
            self.pass(pause);
        }
    }

    /// Changes values while a minority of the root set is down. Replaces one of the other members,
    /// and uses the values while all members that have them and stay are down.
    fn replace_root_node(&mut self) {
        let Some(RootNodes { number, mut nodes }) = self.cluster.root_nodes() else {
            return self.pass(BEATS);
        };
        self.cluster.rng.shuffle(&mut nodes);
        let minority = (nodes.len() - 1) / 2;
        let (behind, others) = nodes.split_at(minority);
        let Some((leaving, ahead)) = others.split_first() else { return };
        behind.iter().for_each(|n| self.cluster.kill_node(*n));
        self.use_register();
        behind.iter().for_each(|n| self.cluster.start_node(*n));
        self.pass(BEATS);
        self.cluster.drain(*leaving);
        for _ in 0..REPLACEMENT_LOOKS {
            self.pass(Duration::from_millis(100));
            if self.cluster.root_nodes().is_some_and(|now| now.number > number) {
                break;
            }
        }
        ahead.iter().for_each(|n| self.cluster.kill_node(*n));
        self.use_register();
        ahead.iter().for_each(|n| self.cluster.start_node(*n));
        self.cluster.end_drain();
        self.pass(BEATS);
    }

    /// Lets the processes of the register read and change values for a while.
    fn use_register(&mut self) {
        for _ in 0..20 {
            self.registers.operate(&mut self.cluster.rng);
            self.pass(Duration::from_millis(20));
        }
    }

    /// Kills one of three nodes of a log, so that the open extent ends when the owner gives that
    /// node up. Shortly before, the owner appends once more, and everything that it sends to other
    /// nodes than those of the namespace is lost from then on. Then the owner is killed.
    ///
    /// No answer may arrive in the last part of the wait. It would show that the killed node is
    /// late, and the extent would end with that answer, when no append is under way.
    fn end_extent_in_flight(&mut self) {
        if let Some((holders, of_names)) = self.place_logs() {
            let rng = &mut self.cluster.rng;
            let failing = holders[rng.usize(..holders.len())];
            // The append is under way at the end of the extent. Half of the rounds take any time
            // before instead, because the owner may have other reasons to give the node up.
            let lead_ms_max = if rng.bool() { 22 } else { 380 };
            let begin = GIVEN_UP.saturating_sub(Duration::from_millis(rng.u64(4..lead_ms_max)));
            let slow = holders.iter().filter(|n| **n != failing);
            slow.for_each(|n| self.cluster.nodes()[*n].set_request_time(SLOW));
            self.cluster.kill_node(failing);
            let begin_ns = self.cluster.simulation.now_ns() + begin.as_nanos() as u64;
            // The owner notices the failure of a node that it sends something.
            self.complete(OperationSource::draw_part);
            self.pass_until(begin_ns);
            self.begin_operation(OperationSource::draw_part);
            self.pass(Duration::from_millis(1));
            if let Some(owner) = &self.owner {
                self.cluster.cut_sends(owner.host(), &of_names);
            }
            self.await_operation();
            holders.iter().for_each(|n| self.cluster.nodes()[*n].set_request_time(Duration::ZERO));
            self.cluster.start_node(failing);
            self.cluster.heal();
        }
        self.kill_owner();
    }

    /// Begins a log, and finds its nodes and those of the namespace. `None` if a node is among both
    /// or if they cannot be told.
    fn place_logs(&mut self) -> Option<(Vec<usize>, Vec<usize>)> {
        self.complete(OperationSource::draw_part);
        let before = self.cluster.log_bytes(FileClass::Wal);
        self.complete(OperationSource::draw_part);
        let holders = grown(&before, &self.cluster.log_bytes(FileClass::Wal));
        let before = self.cluster.log_bytes(FileClass::Manifest);
        self.complete(OperationSource::draw_replacement);
        let of_names = grown(&before, &self.cluster.log_bytes(FileClass::Manifest));
        let are_known = holders.len() == 3 && of_names.len() == 3;
        let are_disjoint = holders.iter().all(|n| !of_names.contains(n));
        (are_known && are_disjoint).then_some((holders, of_names))
    }

    /// Performs an operation of the owner.
    fn complete(&mut self, draw: DrawOperation) {
        self.begin_operation(draw);
        self.await_operation();
    }

    /// Lets time pass until `at_ns` of the simulation.
    fn pass_until(&mut self, at_ns: u64) {
        let left_ns = at_ns.saturating_sub(self.cluster.simulation.now_ns());
        self.pass(Duration::from_nanos(left_ns));
    }

    /// Waits for the operation of the owner, for some time.
    fn await_operation(&mut self) {
        for _ in 0..OPERATION_MS {
            if self.owner.as_ref().is_none_or(|owner| owner.running.is_none()) {
                return;
            }
            self.pass(Duration::from_millis(1));
        }
    }
}
