//! Tests of the driver over nodes in memory, in virtual time.

mod fake;
mod reads;
mod room;
mod sets;
mod times;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::random::Rng;
use archipelago_base::runtime::ThreadRuntime;
use archipelago_base::simulation::Simulation;
use archipelago_env::{FileClass, IoContext, IoPurpose};

use self::fake::{FakeNodes, NodeMood};
use super::super::StorageId;
use super::super::client::StoreEvent;
use super::super::layout::RedundancyMode;
use super::super::wire::ChunkId;
use super::chunk_nodes::ChunkNodes;
use super::{BlobsOptions, NodeBlobs};
use crate::blob::{BlobOptions, BlobRef, BlobStore, BlobWriter};
use crate::ids::{BlobId, VolumeId};
use crate::suite;

const VOLUME: VolumeId = VolumeId([3; 16]);
const MIB: usize = 1 << 20;

/// A pool in virtual time, and a client of it.
struct Bench {
    simulation: Simulation,
    nodes: Arc<FakeNodes>,
    blobs: NodeBlobs,
    rng: Rng,
}

impl Bench {
    fn new(nodes: u64) -> Self {
        Self::with(nodes, BlobsOptions::default())
    }

    fn with(nodes: u64, options: BlobsOptions) -> Self {
        let simulation = Simulation::new(7);
        let host = Arc::new(simulation.host("client"));
        let nodes = FakeNodes::new(host.clone(), nodes);
        for id in nodes.ids() {
            nodes.node(id, |node| node.delay = Duration::from_micros(100));
        }
        let blobs = NodeBlobs::over(nodes.clone(), host, options).unwrap();
        Self { simulation, nodes, blobs, rng: Rng::with_seed(5) }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes);
        bytes
    }

    fn id(&mut self) -> BlobId {
        BlobId::random(&mut self.rng)
    }

    fn begin(&mut self, class: FileClass, hint: usize) -> Box<dyn BlobWriter> {
        let id = self.id();
        self.blobs.create(id, options(class, hint)).unwrap()
    }

    /// Writes a blob in pieces of 100 KB.
    fn write(&mut self, class: FileClass, bytes: &[u8]) -> BlobRef {
        let mut writer = self.begin(class, bytes.len());
        bytes.chunks(100_000).for_each(|piece| writer.append(piece).unwrap());
        writer.seal().unwrap()
    }

    fn read(&self, blob: &BlobRef) -> archipelago_base::Result<Vec<u8>> {
        let reader = self.blobs.open(blob, context(FileClass::Sst))?;
        let mut bytes = vec![0; blob.len_bytes as usize];
        reader.read_exact_at(0, &mut bytes, context(FileClass::Sst))?;
        Ok(bytes)
    }

    fn event(&self, event: StoreEvent) -> u64 {
        self.nodes.stats().snapshot().of(event)
    }

    /// Changes the bytes at `at` of a chunk on a node.
    fn rot(&self, node: StorageId, chunk: ChunkId, at: usize) {
        self.nodes.node(node, |node| node.chunks.get_mut(&chunk).unwrap().bytes[at] ^= 4);
    }

    fn set_moods(&self, nodes: &[StorageId], mood: NodeMood) {
        nodes.iter().for_each(|node| self.nodes.set_mood(*node, mood));
    }
}

fn context(class: FileClass) -> IoContext {
    IoContext::new(class, IoPurpose::Flush)
}

fn options(class: FileClass, hint: usize) -> BlobOptions {
    let context = context(class);
    BlobOptions { volume: VOLUME, epoch: Epoch(1), context, size_hint_bytes: hint as u64 }
}

#[test]
fn driver_conforms_to_the_suite_in_every_mode() {
    for mode in [RedundancyMode::ByClass, RedundancyMode::AllReplicated, RedundancyMode::AllCoded] {
        let runtime = ThreadRuntime::start(2).unwrap();
        let nodes = FakeNodes::new(runtime.clone(), 6);
        let options = BlobsOptions { mode, ..BlobsOptions::default() };
        let blobs = NodeBlobs::over(nodes, runtime, options).unwrap();
        suite::blobs_conform(&blobs, 11);
    }
}

#[test]
fn driver_conforms_to_the_suite_in_virtual_time() {
    let bench = Bench::new(6);
    suite::blobs_conform(&bench.blobs, 12);
}
