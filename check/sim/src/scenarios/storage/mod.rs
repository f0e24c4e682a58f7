//! Storage nodes, a manager and owners of volumes in virtual time, with every fault that the store
//! promises to survive, all from one seed.
//!
//! The runs execute the code of the product: the role's state machine on disks that lose unsynced
//! bytes, the client with its drivers, volumes and files, and the manager's table of members. Only
//! threads, clocks, disks and the network belong to the simulation. Blocking calls of a process run
//! on a thread that takes turns with the simulation (`scenarios/thread.rs`).
//!
//! | module | purpose |
//! | --- | --- |
//! | `node`, `manager`, `client` | the processes of a cluster |
//! | `cluster` | a cluster with its faults, within what the store promises |
//! | `owner`, `choose` | operations on a volume, and their choice |
//! | `model` | what files may have |
//! | `process`, `run`, `peace` | a run, its steps, and the checks of its end |
//! | `sharing` | a process whose blobs belong to two volumes |
//! | `register` | processes that use the register, and the judgement of their history |
//! | `database` | a scenario of its own: the engine on a volume |
//! | `directed` | a scenario of its own: situations that the seeds of `storage` meet rarely |
//! | `growth` | the throughput of clusters of 6 to 60 nodes |
//!
//! A run checks these rules, whose numbers are those of the store's design:
//! - Acknowledged appends are found by every later owner, and so are synced ones after a loss of
//!   power (2, 3, 4). Unsynced bytes are missing only if two machines have lost memory, and then
//!   the boot id of the volume changes.
//! - An operation of an old owner that succeeds has had its effect before a new owner reads (1).
//!   Afterwards, old owners change nothing.
//! - Blobs are readable without two nodes and recovered logs without one, or without two when they
//!   are repaired. No read returns wrong bytes (7, 8).
//! - Repairs end.
//! - Objects of pending files stay, removed ones leave nothing on the nodes, and a take-over brings
//!   strays to zero (11, 12).
//! - The register is linearizable, also while its root set is replaced.
//! - A renewed lease keeps openers away that do not take over. A process that has lost the volume
//!   renews no lease.
//! - An owner whose lease has ended answers no read, if its successor has waited for that end (15).
//! - Every call returns (14), and the manager may lose everything at any time (17).

mod choose;
mod client;
mod cluster;
mod database;
mod directed;
mod growth;
mod manager;
mod model;
mod node;
mod owner;
mod peace;
mod process;
mod register;
mod run;
mod sharing;

pub(crate) use database::scenario as database_scenario;
pub(crate) use directed::scenario as directed_scenario;
pub use growth::{GROWTH_SIZES, GrowthRow, GrowthSize, growth};

use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_storage::Sabotage;
use archipelago_store::Sabotage as OwnerSabotage;
use archipelago_store::nodes::blobs::{BlobSabotage, BlobTiming};
use archipelago_store::nodes::log::quorum::WriterSabotage;
use archipelago_store::nodes::logs::LogWriting;
use archipelago_store::nodes::register::caspaxos::root_change::RootChangeSabotage;

use crate::run::{RunOutcome, RunRequest, Scenario, Step};
use crate::scenarios::figures;
use choose::OperationSource;
use client::{ClientSettings, LEASE_LONG, LEASE_SHORT};
use cluster::{Cluster, ClusterSettings, Losses};
use node::NodeSettings;
use run::{Run, RunOptions};

const FENCE: Step = Step { name: "fence", about: "a read of a recovery promises its epoch" };
const CHOSEN_END: Step =
    Step { name: "chosen-end", about: "no answer of an extent counts after its end was chosen" };
const ROOT_COPY: Step =
    Step { name: "root-copy", about: "a new root member has all values before it counts" };

/// Steps of the store's protocol that a run can leave out.
const STEPS: [Step; 10] = [
    FENCE,
    Step { name: "epoch-check", about: "a node refuses requests under an older epoch" },
    Step { name: "limbo", about: "a node that may have forgotten bytes of an extent says so" },
    Step { name: "checksums", about: "nodes and readers check the bytes of pieces and groups" },
    Step { name: "quorum", about: "an append waits for two answers, or for all" },
    CHOSEN_END,
    Step { name: "whole-seal", about: "a seal waits until all chunks of a blob are durable" },
    Step { name: "pending", about: "a release of strays spares blobs that get their name later" },
    Step { name: "retaining-sets", about: "a node keeps a chunk until all its volumes release it" },
    ROOT_COPY,
];

/// Value that separates the generator of a run's shape from the run's other generators.
const SHAPE: u64 = 0x5107_a6e5;
/// Number of bytes that a node may use in an ordinary run.
const DEVICE_BYTES: u64 = 1 << 30;
/// Number of bytes that a node may use in a run with full disks.
const SMALL_DEVICE_BYTES: u64 = 6 << 20;

pub(crate) fn scenario() -> Scenario {
    let about = "storage nodes and owners of a volume that crash, stop, lose power and are cut off";
    Scenario::with_steps("storage", about, &STEPS, run)
}

fn node_sabotage(request: &RunRequest) -> Sabotage {
    Sabotage {
        no_epoch_check: request.leaves_out("epoch-check"),
        no_fence_reads: request.leaves_out("fence"),
        no_limbo: request.leaves_out("limbo"),
        no_crc: request.leaves_out("checksums"),
        release_ignores_sets: request.leaves_out("retaining-sets"),
    }
}

fn client_settings(
    request: &RunRequest,
    log_writing: LogWriting,
    has_card: bool,
) -> ClientSettings {
    ClientSettings {
        log_writing,
        lease: LEASE_LONG,
        renews: false,
        takes_over: true,
        has_card,
        timing: BlobTiming {
            write_deadline: Duration::from_secs(2),
            read_deadline: Duration::from_millis(500),
            read_give_up: Duration::from_secs(2),
            slow_min: Duration::from_millis(100),
            ..BlobTiming::default()
        },
        writer: WriterSabotage {
            ack_at_one: request.leaves_out("quorum"),
            late_answers: request.leaves_out("chosen-end"),
            ..WriterSabotage::default()
        },
        blobs: BlobSabotage {
            early_seal: request.leaves_out("whole-seal"),
            no_client_crc: request.leaves_out("checksums"),
        },
        owner: OwnerSabotage {
            pending_ignored: request.leaves_out("pending"),
            ..OwnerSabotage::default()
        },
    }
}

/// The generator of a run's settings. It is independent of the generators of everything that
/// happens in the run.
fn shape_of(request: &RunRequest) -> Rng {
    Rng::with_seed(request.seed ^ SHAPE)
}

/// Runs one seed.
fn run(request: &RunRequest) -> RunOutcome {
    let mut rng = shape_of(request);
    let losses = [Losses::Damage, Losses::OneMachine, Losses::Power][rng.usize(..3)];
    let has_full_disks = losses == Losses::Damage && rng.u8(..8) == 0;
    let device_bytes = if has_full_disks { SMALL_DEVICE_BYTES } else { DEVICE_BYTES };
    let root_change = RootChangeSabotage { no_copy: request.leaves_out("root-copy") };
    let nodes = rng.usize(6..=8);
    let large_blobs_max = match rng.u8(..8) {
        _ if has_full_disks => 16,
        0 => 2,
        _ => 0,
    };
    let is_striped = rng.u8(..4) == 0;
    let log_writing = if is_striped { LogWriting::Striped } else { LogWriting::Serial };
    let mut settings = client_settings(request, log_writing, rng.bool());
    if rng.u8(..4) == 0 {
        settings.lease = LEASE_SHORT;
    }
    let source = OperationSource::new(is_striped, large_blobs_max);
    let options = RunOptions { has_full_disks, changes_roots: rng.u8(..4) == 0 };
    // Full nodes take no copies. Without repairs, a copy that a writer left out stays missing.
    let has_repairs = !has_full_disks && rng.bool();
    settings.renews = settings.lease < LEASE_LONG && rng.u8(..4) > 0;
    let devices = if !has_full_disks && rng.bool() { 2 } else { 1 };
    let node = NodeSettings { sabotage: node_sabotage(request), device_bytes, devices };
    let shape = ClusterSettings { nodes, losses, node, root_change, has_repairs };
    let cluster = Cluster::new(request, shape);
    outcome_of(Run::new(cluster, settings, source, options), Run::trouble)
}

/// Founds the cluster, and runs the time of faults and that of peace.
fn outcome_of(mut run: Run, trouble: impl FnOnce(&mut Run)) -> RunOutcome {
    let ended = run.begin().and_then(|()| {
        trouble(&mut run);
        if run.violations.is_empty() { run.peace() } else { Ok(()) }
    });
    if let Err(text) = ended
        && !text.is_empty()
    {
        run.violation(text);
    }
    let repaired = run.cluster.repaired();
    RunOutcome {
        violations: std::mem::take(&mut run.violations),
        figures: figures([
            ("operations", run.counts.operations),
            ("failed operations", run.counts.failed),
            ("take-overs", run.counts.take_overs),
            ("files read", run.counts.reads),
            ("register operations", run.registers.operations()),
            ("calls for shared blobs", run.sharing.calls()),
            ("faults", run.cluster.faults),
            ("devices lost", run.cluster.lost_devices),
            ("damaged files of logs", run.cluster.rotten_extents),
            ("damaged extents that nodes reported", run.cluster.reported_extents),
            ("chunks repaired", repaired.chunks),
            ("copies of extents repaired", repaired.extents),
            ("runs with all copies of logs", run.counts.whole_logs),
            ("leases renewed", run.counts.renewals),
            ("openers that found a living lease", run.counts.living_leases),
        ]),
        notes: run.cluster.simulation.notes(),
        trace: run.cluster.trace(),
    }
}
