//! A storage node of the world, over its lives.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::runtime::Runtime;
use archipelago_base::simulation::Host;
use archipelago_base::{Epoch, Result};
use archipelago_fabric::sim::Sim;
use archipelago_fabric::{
    ClientId, ClusterId, Handler, Listener, NodeId, Provider, Reach, Reply, Request, Route,
};
use archipelago_storage::beats::{Beats, NodeAddress};
use archipelago_storage::{MetaThreads, NodeOptions, StorageNode};
use archipelago_store::VolumeId;
use archipelago_store::nodes::StorageId;
use archipelago_store::nodes::client::NodeClient;
use archipelago_store::nodes::repairs::{RepairExecutor, RepairHost};
use archipelago_store::nodes::wire::{
    ChunkDescriptor, ChunkId, RefusalWhy, Refused, StorageReport, StoreMessage, envelope,
};

use super::worker::Worker;
use super::{MANAGER, Machine, World};

/// Directory of the device of every node.
const DEVICE: &str = "/device";
/// Time after which a beat counts as lost.
const BEAT_ANSWER: Duration = Duration::from_millis(500);
/// Time to the next beat after one that failed.
const BEAT_AGAIN: Duration = Duration::from_millis(200);
/// Time for which a request hangs.
const HANG: Duration = Duration::from_secs(600);

/// The place of a node: its host and its disk.
pub(super) struct NodePlace {
    n: usize,
    pub(super) host: Host,
    sim: Sim,
    pub(super) machine: Machine,
    /// The node that the place has, or had last.
    pub(super) storage: StorageId,
    pub(super) running: Option<RunningNode>,
    /// Set of nodes that fail together with this one, from the next start on.
    pub(super) domain: String,
    /// Whether the node refuses to list its chunks and extents, as if its metadata could not be
    /// read.
    pub(super) hides_lists: Arc<AtomicBool>,
    /// Whether the node answers no comparison of its chunks, as if its disk hung.
    pub(super) hangs_checks: Arc<AtomicBool>,
    lives: u64,
    options: NodeOptions,
    worker: Worker,
}

/// A node that runs.
pub(super) struct RunningNode {
    node: Arc<StorageNode>,
    beats: Arc<Beats>,
    _listener: Box<dyn Listener>,
}

impl fmt::Debug for RunningNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunningNode({})", self.node.storage())
    }
}

impl RunningNode {
    /// Whether the node has kept this cluster.
    pub(super) fn knows(&self, cluster: Option<ClusterId>) -> bool {
        match self.beats.beat(0) {
            StoreMessage::StorageBeat { cluster: known, .. } => known == cluster,
            other => panic!("a beat is no {}", other.name()),
        }
    }

    /// The answer to a request, without the network.
    pub(super) fn ask(&self, request: StoreMessage, payload: &[u8]) -> StoreMessage {
        self.node.handle(ClientId(0), request, payload).0
    }

    /// Runs a whole round of the scrub.
    pub(super) fn scrub(&self) {
        let (answer, _) = self.node.handle(ClientId(0), StoreMessage::Scrub {}, &[]);
        assert_eq!(answer, StoreMessage::Done {});
        let rounds = self.report().scrub.rounds;
        for _step in 0..10_000 {
            let _pause = self.node.scrub_step(0);
            if self.report().scrub.rounds > rounds {
                return;
            }
        }
        panic!("the scrub does not end");
    }

    /// The report of the node.
    pub(super) fn report(&self) -> StorageReport {
        match self.beats.beat(0) {
            StoreMessage::StorageBeat { report, .. } => report,
            other => panic!("a beat is no {}", other.name()),
        }
    }
}

struct NodeHandler {
    node: Arc<StorageNode>,
    worker: Worker,
    host: Host,
    executor: Arc<RepairExecutor>,
    hides_lists: Arc<AtomicBool>,
    hangs_checks: Arc<AtomicBool>,
}

/// The node, whose requests run on the worker.
#[derive(Debug)]
struct NodeAsHost {
    node: Arc<StorageNode>,
    worker: Worker,
}

impl RepairHost for NodeAsHost {
    fn answer(&self, request: StoreMessage, payload: &[u8]) -> (StoreMessage, Vec<u8>) {
        let (node, payload) = (Arc::clone(&self.node), payload.to_vec());
        self.worker.run(move || node.answer(request, &payload))
    }

    fn answer_copy(
        &self,
        request: StoreMessage,
        payload: &[u8],
        end: u64,
    ) -> (StoreMessage, Vec<u8>) {
        let (node, payload) = (Arc::clone(&self.node), payload.to_vec());
        self.worker.run(move || node.answer_copy(request, &payload, end))
    }

    fn take_volumes(&self, chunk: ChunkId, volumes: &[VolumeId]) -> Result<()> {
        let (node, volumes) = (Arc::clone(&self.node), volumes.to_vec());
        self.worker.run(move || node.take_volumes(chunk, &volumes))
    }

    fn abandon_repair(&self, chunk: ChunkId) {
        let node = Arc::clone(&self.node);
        self.worker.run(move || node.abandon_repair(chunk));
    }

    fn has_released(&self, blob: &ChunkDescriptor) -> bool {
        self.node.has_released(blob)
    }

    fn promised_epoch(&self, volume: VolumeId) -> Epoch {
        self.node.promised_epoch(volume)
    }
}

impl Handler for NodeHandler {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let (message, payload) = envelope::open(request.body).expect("a message of the store");
        let is_check = matches!(message, StoreMessage::CheckHeld { .. });
        if is_check && self.hangs_checks.load(Ordering::SeqCst) {
            let scheduler = self.host.scheduler().clone();
            let _ends_with_the_host = self.host.spawn("hung check", async move {
                scheduler.sleep(HANG).await;
                drop(reply);
            });
            return;
        }
        if RepairExecutor::is_order(&message) {
            let executor = Arc::clone(&self.executor);
            let _ends_with_the_host = self.host.spawn("repair", async move {
                reply.send(envelope::seal(&executor.carry_out(message).await, &[]));
            });
            return;
        }
        let is_list =
            matches!(message, StoreMessage::ListHeld { .. } | StoreMessage::ListSealed { .. });
        if is_list && self.hides_lists.load(Ordering::SeqCst) {
            let refused = Refused::new(RefusalWhy::Failed, "the metadata cannot be read");
            reply.send(envelope::seal(&refused.into(), &[]));
            return;
        }
        let (node, from, payload) = (Arc::clone(&self.node), request.client, payload.to_vec());
        let (answer, bytes) = self.worker.run(move || node.handle(from, message, &payload));
        reply.send(envelope::seal(&answer, &bytes));
    }
}

impl NodePlace {
    pub(super) fn new(n: usize, host: Host, sim: Sim, seed: u64, world: &World) -> Self {
        let worker = world.worker.clone();
        let world = &world.options;
        let options = NodeOptions {
            meta_threads: MetaThreads::Caller,
            device_bytes_max: Some(world.device_bytes),
            sabotage: world.sabotage,
            ..NodeOptions::default()
        };
        let (machine, storage) = (Machine::new(seed), StorageId(0));
        let (running, hides_lists, lives) = (None, Arc::default(), 0);
        let hangs_checks = Arc::default();
        let domain = format!("rack {n}");
        Self {
            n,
            host,
            sim,
            machine,
            storage,
            running,
            domain,
            hides_lists,
            hangs_checks,
            lives,
            options,
            worker,
        }
    }

    /// Starts the node on the disk of the place.
    pub(super) fn start(&mut self) {
        assert!(self.running.is_none(), "node {} runs", self.n);
        self.host.restart();
        self.lives += 1;
        let options = NodeOptions {
            life: Epoch(self.lives),
            domain: self.domain.clone(),
            seed: Some(self.host.scheduler().fresh_seed()),
            ..self.options.clone()
        };
        let domain = options.domain.clone();
        let node = StorageNode::open(self.machine.fs(), &[PathBuf::from(DEVICE)], options).unwrap();
        self.storage = node.storage();
        let address = NodeAddress {
            node: NodeId(self.n as u64 + 1),
            life: Epoch(self.lives),
            endpoints: vec![self.host.name().to_owned()],
            domain,
        };
        let (id, life) = (address.node, address.life);
        let (host, worker) = (self.host.clone(), self.worker.clone());
        let executor = Arc::new(self.executor(&node));
        let hides_lists = Arc::clone(&self.hides_lists);
        let hangs_checks = Arc::clone(&self.hangs_checks);
        let handler = Box::new(NodeHandler {
            node: Arc::clone(&node),
            worker,
            host,
            executor,
            hides_lists,
            hangs_checks,
        });
        let fabric = self.sim.network().node(id, life, Some(handler)).unwrap();
        let listener = self.sim.serve(&fabric, self.host.name()).unwrap();
        let beats = Arc::new(Beats::new(Arc::clone(&node), address).unwrap());
        let reach: Arc<dyn Reach> = Arc::new(self.sim.clone());
        let work = beat(self.host.clone(), reach, Arc::clone(&beats), self.worker.clone());
        let _ends_with_the_host = self.host.spawn("beats", work);
        self.running = Some(RunningNode { node, beats, _listener: listener });
    }

    /// The executor of the manager's orders on this node.
    fn executor(&self, node: &Arc<StorageNode>) -> RepairExecutor {
        let reach: Arc<dyn Reach> = Arc::new(self.sim.clone());
        let runtime: Arc<dyn Runtime> = Arc::new(self.host.clone());
        let client = NodeClient::new(reach, runtime, vec![MANAGER.to_owned()]);
        let host = NodeAsHost { node: Arc::clone(node), worker: self.worker.clone() };
        RepairExecutor::new(client, Arc::new(host), node.storage()).unwrap()
    }

    /// Ends the process of the node, which leaves `machine`.
    pub(super) fn end(&mut self, machine: Machine) {
        self.host.crash();
        self.machine = machine;
        self.running = None;
    }

    /// Syncs everything, as before an orderly end.
    pub(super) fn close(&self) {
        self.running.as_ref().expect("the node runs").node.close().unwrap();
    }
}

/// Carries the beats of a node to the manager.
async fn beat(host: Host, reach: Arc<dyn Reach>, beats: Arc<Beats>, worker: Worker) {
    let runtime: Arc<dyn Runtime> = Arc::new(host);
    let route = Route::new(&reach, ClientId(runtime.seed()), None);
    let managers = [MANAGER.to_owned()];
    let mut version = 0;
    loop {
        let asked = route.ask(&managers, &beats.beat(version), BEAT_ANSWER).await;
        let taking = Arc::clone(&beats);
        let take = move |answer| taking.take_answer(version, answer);
        let pause = match asked.and_then(|answer| worker.run(move || take(answer))) {
            Ok(answer) => {
                version = answer.version;
                answer.pause
            }
            Err(_) => {
                version = 0;
                BEAT_AGAIN
            }
        };
        runtime.sleep(pause).await;
    }
}
