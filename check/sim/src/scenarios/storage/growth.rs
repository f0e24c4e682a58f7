//! The throughput of clusters of growing size, in virtual time.
//!
//! Every node has a card with the same rate, and so has every client's host. Writers fill a window
//! of virtual time with tables of three replicas, more writers for more nodes. While the cards of
//! the clients have room, the throughput follows the number of nodes. Afterwards it stays at what
//! the clients' cards send. The data is small, so that 60 nodes fit into memory: the cards are
//! slow, and no figure depends on how slow they are.
//!
//! Failure: a write that fails ends the measurement with its error.
//! Cost: about 10 MB of memory per node, and a few seconds of real time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose};
use archipelago_fabric::sim::Sim;
use archipelago_storage::Sabotage;
use archipelago_store::nodes::blobs::BlobTiming;
use archipelago_store::nodes::logs::LogWriting;
use archipelago_store::nodes::register::caspaxos::root_change::RootChangeSabotage;
use archipelago_store::{BlobId, BlobOptions, VolumeId};

use super::client::ClientProcess;
use super::cluster::{Cluster, ClusterSettings, Losses};
use super::node::NodeSettings;
use super::{DEVICE_BYTES, client_settings};
use crate::run::RunRequest;
use crate::scenarios::thread::SimThread;

/// Bytes per second of a node's card, in each direction.
const NODE_BYTES_PER_S: u64 = 2 << 20;
/// Bytes per second of a client's card, in each direction.
const CLIENT_BYTES_PER_S: u64 = 16 << 20;
/// Time that a message takes.
const LATENCY: Duration = Duration::from_micros(50);
/// Length of a table.
const TABLE_BYTES: usize = 64 << 10;
/// Number of writers per node. With fewer writers, chance leaves cards idle, and the more so the
/// more nodes there are.
const WRITERS_PER_NODE: usize = 6;
/// Largest number of writers on one host. They end their tables at about the same time if the card
/// of the host is full, so more of them would make the window count few long rounds.
const WRITERS_PER_CLIENT_MAX: usize = 32;
/// Virtual time before the window, in which the queues fill.
const WARM_UP: Duration = Duration::from_secs(2);
/// Length of the window.
const WINDOW: Duration = Duration::from_secs(4);
/// Virtual time after the window in which all writes end.
const DRAIN: Duration = Duration::from_secs(20);
/// Number of bytes on the wire for each byte of a table.
const COPIES: u64 = 3;

/// A cluster of which the throughput is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowthSize {
    /// Number of storage nodes.
    pub nodes: usize,
    /// Number of hosts with writers.
    pub clients: usize,
}

/// The clusters of the measurement: 6 to 60 nodes with clients whose cards have room, and then the
/// largest one with clients whose cards are full. The first one is the smallest.
pub const GROWTH_SIZES: [GrowthSize; 6] = [
    GrowthSize { nodes: 6, clients: 12 },
    GrowthSize { nodes: 12, clients: 12 },
    GrowthSize { nodes: 24, clients: 12 },
    GrowthSize { nodes: 36, clients: 12 },
    GrowthSize { nodes: 60, clients: 12 },
    GrowthSize { nodes: 60, clients: 2 },
];

/// The throughput of one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowthRow {
    /// Number of storage nodes.
    pub nodes: usize,
    /// Number of hosts with writers.
    pub clients: usize,
    /// Bytes of tables that were sealed per second of virtual time.
    pub bytes_per_s: u64,
}

impl GrowthRow {
    /// Fraction of the clients' cards that the writes filled.
    #[must_use]
    pub fn client_card_use(&self) -> f64 {
        let sent = (self.bytes_per_s * COPIES) as f64;
        sent / (CLIENT_BYTES_PER_S * self.clients as u64) as f64
    }

    /// Fraction of the nodes' cards that the writes filled.
    #[must_use]
    pub fn node_card_use(&self) -> f64 {
        let received = (self.bytes_per_s * COPIES) as f64;
        received / (NODE_BYTES_PER_S * self.nodes as u64) as f64
    }
}

/// What the writers of a measurement share.
#[derive(Debug, Default)]
struct Progress {
    sealed_bytes: AtomicU64,
    ends_ns: AtomicU64,
}

/// Measures a cluster of `nodes` nodes with writers on `clients` hosts. Errors: a write failed, or
/// the cluster was not founded.
pub fn growth(nodes: usize, clients: usize) -> Result<GrowthRow, String> {
    let request = RunRequest::new(nodes as u64);
    let (sabotage, device_bytes) = (Sabotage::default(), DEVICE_BYTES);
    let node = NodeSettings { sabotage, device_bytes, devices: 1 };
    let root_change = RootChangeSabotage::default();
    let (losses, has_repairs) = (Losses::Power, false);
    let settings = ClusterSettings { nodes, losses, node, root_change, has_repairs };
    let mut cluster = Cluster::new(&request, settings);
    cluster.found()?;
    cluster.set_node_cards(NODE_BYTES_PER_S, LATENCY);
    let mut settings = client_settings(&request, LogWriting::Serial, false);
    settings.timing = BlobTiming::default();
    let progress = Arc::new(Progress::default());
    let hosts: Vec<Sim> = (0..clients).map(|_| cluster.join_client()).collect();
    for sim in &hosts {
        cluster.set_card(sim.host(), CLIENT_BYTES_PER_S, LATENCY);
    }
    let begins_ns = cluster.simulation.now_ns() + WARM_UP.as_nanos() as u64;
    let ends_ns = begins_ns + WINDOW.as_nanos() as u64;
    progress.ends_ns.store(ends_ns, Ordering::Relaxed);
    let writers = (nodes * WRITERS_PER_NODE).min(clients * WRITERS_PER_CLIENT_MAX);
    let writers: Vec<_> = (0..writers)
        .map(|number| {
            let sim = &hosts[number % clients];
            let thread = SimThread::start(sim.host(), ClientProcess::new(sim, settings));
            let progress = Arc::clone(&progress);
            let call = thread.call(move |client| write_tables(client, number as u64, &progress));
            thread.close();
            (thread, call)
        })
        .collect();
    cluster.run_for(WARM_UP);
    let before = progress.sealed_bytes.load(Ordering::Relaxed);
    cluster.run_for(WINDOW);
    let sealed = progress.sealed_bytes.load(Ordering::Relaxed) - before;
    cluster.run_for(DRAIN);
    for (thread, call) in &writers {
        match call.take() {
            Some(Ok(())) => {}
            Some(Err(error)) => return Err(format!("a write failed: {error}")),
            None => return Err(format!("a write did not return: {:?}", thread.panic_text())),
        }
    }
    Ok(GrowthRow { nodes, clients, bytes_per_s: sealed / WINDOW.as_secs() })
}

/// Writes tables until the window ends.
fn write_tables(client: &mut ClientProcess, number: u64, progress: &Progress) -> Result<()> {
    let blobs = client.stores()?.blobs;
    let scheduler = client.host().scheduler().clone();
    let mut rng = Rng::with_seed(number);
    let mut table = vec![0; TABLE_BYTES];
    rng.fill(&mut table);
    let volume = VolumeId([7; 16]);
    let context = IoContext::new(FileClass::Sst, IoPurpose::Flush);
    let options =
        BlobOptions { volume, epoch: Epoch(1), context, size_hint_bytes: TABLE_BYTES as u64 };
    while scheduler.now_ns() < progress.ends_ns.load(Ordering::Relaxed) {
        let mut writer = blobs.create(BlobId::random(&mut rng), options)?;
        writer.append(&table)?;
        writer.seal()?;
        progress.sealed_bytes.fetch_add(TABLE_BYTES as u64, Ordering::Relaxed);
    }
    Ok(())
}
