//! Chunks over the requests of a node: a model with restarts and power losses, and requests of
//! several threads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use archipelago_base::Epoch;
use archipelago_base::random::Rng;
use archipelago_env::FileClass;
use archipelago_env::mem::MemFs;
use archipelago_fabric::ClientId;
use archipelago_storage::{MetaThreads, NodeOptions, StorageNode};
use archipelago_store::nodes::layout::{PIECE_BYTES, Scheme};
use archipelago_store::nodes::placement::WritePurpose;
use archipelago_store::nodes::wire::{
    BlobEntry, ChunkDescriptor, ChunkId, ChunkRange, Holder, PlacementEpoch, RefusalWhy, Stamp,
    StorageReport, StoreMessage,
};
use archipelago_store::{BlobId, VolumeId};

const VOLUME: VolumeId = VolumeId([1; 16]);
const CHECKPOINT: VolumeId = VolumeId([2; 16]);
const PIECE: usize = PIECE_BYTES as usize;

fn open(fs: &MemFs) -> Arc<StorageNode> {
    let options =
        NodeOptions { meta_threads: MetaThreads::Caller, seed: Some(1), ..NodeOptions::default() };
    let dirs = ["/a", "/b"].map(PathBuf::from);
    StorageNode::open(Arc::new(fs.clone()), &dirs, options).unwrap()
}

fn ask(node: &StorageNode, message: StoreMessage, payload: &[u8]) -> (StoreMessage, Vec<u8>) {
    node.handle(ClientId(1), message, payload)
}

fn tell(node: &StorageNode, message: StoreMessage, payload: &[u8]) -> Result<(), RefusalWhy> {
    match ask(node, message, payload).0 {
        StoreMessage::Done {} => Ok(()),
        StoreMessage::Refuse { why, .. } => Err(why),
        other => panic!("{other:?}"),
    }
}

fn report(node: &StorageNode) -> StorageReport {
    match ask(node, StoreMessage::NodeStatus {}, &[]).0 {
        StoreMessage::NodeStatusIs { report, .. } => report,
        other => panic!("{other:?}"),
    }
}

fn put(
    node: &StorageNode,
    chunk: ChunkId,
    stamp: Stamp,
    offset: usize,
    payload: &[u8],
) -> Result<(), RefusalWhy> {
    let message = StoreMessage::PutChunk {
        chunk,
        stamp: Some(stamp),
        class: FileClass::ValueSst,
        purpose: WritePurpose::Job,
        offset: offset as u64,
        crcs: chunk.checksums().piece_crcs(offset as u64, payload),
    };
    tell(node, message, payload)
}

fn seal(node: &StorageNode, chunk: ChunkId, stamp: Stamp, len: usize) -> Result<(), RefusalWhy> {
    let descriptor = ChunkDescriptor {
        chunk,
        written: stamp,
        class: FileClass::ValueSst,
        scheme: Scheme::Replicas(1),
        is_coding_due: false,
        blob_bytes: len as u64,
        placement: PlacementEpoch::WRITTEN,
        holders: vec![Holder { storage: node.storage(), chunk: 0 }],
        retaining: vec![VOLUME],
    };
    tell(node, StoreMessage::SealChunk { stamp: Some(stamp), descriptor }, &[])
}

fn read(
    node: &StorageNode,
    chunk: ChunkId,
    start: usize,
    end: usize,
) -> Result<Vec<u8>, RefusalWhy> {
    let ranges = vec![ChunkRange { start: start as u64, end: end as u64 }];
    match ask(node, StoreMessage::ReadChunk { chunk, ranges }, &[]) {
        (StoreMessage::ChunkBytes { crcs }, payload) => {
            let first = start / PIECE * PIECE;
            let damage = chunk.checksums().first_damaged_piece(first as u64, &payload, &crcs);
            assert_eq!(damage, None, "chunk {chunk}");
            Ok(payload[start - first..end - first].to_vec())
        }
        (StoreMessage::Refuse { why, .. }, _) => Err(why),
        other => panic!("{other:?}"),
    }
}

fn list(node: &StorageNode, volume: VolumeId) -> Vec<BlobEntry> {
    match ask(node, StoreMessage::ListBlobs { volume, after: None }, &[]).0 {
        StoreMessage::Blobs { blobs, has_more: false } => blobs,
        other => panic!("{other:?}"),
    }
}

fn scrub(node: &StorageNode) -> StorageReport {
    tell(node, StoreMessage::Scrub {}, &[]).unwrap();
    let rounds = report(node).scrub.rounds;
    for _ in 0..10_000 {
        node.scrub_step(1);
        let report = report(node);
        if report.scrub.rounds > rounds {
            return report;
        }
    }
    panic!("the round does not end");
}

/// A chunk as the model has it.
#[derive(Clone, Debug)]
struct ModelChunk {
    bytes: Vec<u8>,
    is_sealed: bool,
    epoch: Epoch,
    retaining: BTreeSet<VolumeId>,
}

/// A node, and the state that it must have.
struct Model {
    fs: MemFs,
    node: Arc<StorageNode>,
    chunks: BTreeMap<ChunkId, ModelChunk>,
    epoch: Epoch,
    rng: Rng,
}

impl Model {
    fn new(seed: u64) -> Self {
        let fs = MemFs::new();
        let node = open(&fs);
        let rng = Rng::with_seed(seed);
        Self { fs, node, chunks: BTreeMap::new(), epoch: Epoch(1), rng }
    }

    fn stamp(&self) -> Stamp {
        Stamp { volume: VOLUME, epoch: self.epoch }
    }

    /// A chunk for which `is` holds.
    fn pick(&mut self, is: impl Fn(&ModelChunk) -> bool) -> Option<ChunkId> {
        let chunks: Vec<_> = self.chunks.iter().filter(|(_, chunk)| is(chunk)).collect();
        let at = self.rng.usize(..chunks.len().max(1));
        chunks.get(at).map(|(id, _)| **id)
    }

    fn step(&mut self) {
        match self.rng.u8(0..20) {
            0..=2 => self.begin(),
            3..=5 => self.append(),
            6..=9 => self.seal(),
            10..=12 => self.read(),
            13 => self.retain(),
            14..=15 => self.release(),
            16 => self.abandon(),
            17 => self.take_over(),
            18 => self.restart(),
            _ => self.check(),
        }
    }

    fn begin(&mut self) {
        let chunk = ChunkId { blob: BlobId::random(&mut self.rng), index: 0 };
        let bytes = self.random_bytes();
        put(&self.node, chunk, self.stamp(), 0, &bytes).unwrap();
        let epoch = self.epoch;
        let retaining = BTreeSet::from([VOLUME]);
        self.chunks.insert(chunk, ModelChunk { bytes, is_sealed: false, epoch, retaining });
    }

    fn random_bytes(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; self.rng.usize(1..4) * PIECE];
        if self.rng.u8(0..3) == 0 {
            bytes.truncate(bytes.len() - self.rng.usize(1..PIECE));
        }
        self.rng.fill(&mut bytes);
        bytes
    }

    fn append(&mut self) {
        let Some(id) = self.pick(|chunk| !chunk.is_sealed) else { return };
        let (more, stamp) = (self.random_bytes(), self.stamp());
        let has_old_pieces = self.rng.bool();
        let chunk = self.chunks.get_mut(&id).unwrap();
        let len = chunk.bytes.len();
        if !len.is_multiple_of(PIECE) {
            let offset = len.next_multiple_of(PIECE);
            let refused = put(&self.node, id, stamp, offset, &more);
            assert_eq!(refused, Err(RefusalWhy::OutOfOrder { len: len as u64 }));
            return;
        }
        // A repeated request may have bytes that the chunk has already.
        let from = if has_old_pieces { len - PIECE } else { len };
        chunk.bytes.extend_from_slice(&more);
        put(&self.node, id, stamp, from, &chunk.bytes[from..]).unwrap();
    }

    fn seal(&mut self) {
        let Some(id) = self.pick(|_| true) else { return };
        let stamp = self.stamp();
        let chunk = self.chunks.get_mut(&id).unwrap();
        if chunk.is_sealed {
            assert_eq!(put(&self.node, id, stamp, 0, &chunk.bytes), Err(RefusalWhy::Sealed));
            return;
        }
        let wrong = seal(&self.node, id, stamp, chunk.bytes.len() + 1);
        assert_eq!(wrong, Err(RefusalWhy::OutOfOrder { len: chunk.bytes.len() as u64 }));
        seal(&self.node, id, stamp, chunk.bytes.len()).unwrap();
        chunk.is_sealed = true;
        chunk.epoch = stamp.epoch;
    }

    fn read(&mut self) {
        let Some(id) = self.pick(|_| true) else { return };
        let bytes = &self.chunks[&id].bytes;
        let start = self.rng.usize(..bytes.len());
        let end = self.rng.usize(start + 1..=bytes.len());
        assert_eq!(read(&self.node, id, start, end).unwrap(), bytes[start..end]);
    }

    fn retain(&mut self) {
        let Some(id) = self.pick(|_| true) else { return };
        let stamp = Stamp { volume: CHECKPOINT, epoch: self.epoch };
        let message = StoreMessage::Retain { blobs: vec![id.blob], stamp };
        let answer = tell(&self.node, message, &[]);
        let chunk = self.chunks.get_mut(&id).unwrap();
        match chunk.is_sealed {
            true => {
                answer.unwrap();
                chunk.retaining.insert(CHECKPOINT);
            }
            false => assert_eq!(answer, Err(RefusalWhy::NotThere)),
        }
    }

    fn release(&mut self) {
        let Some(id) = self.pick(|_| true) else { return };
        let volume = if self.rng.bool() { VOLUME } else { CHECKPOINT };
        let stamp = Stamp { volume, epoch: self.epoch };
        tell(&self.node, StoreMessage::Release { blobs: vec![id.blob], stamp }, &[]).unwrap();
        let chunk = self.chunks.get_mut(&id).unwrap();
        chunk.retaining.remove(&volume);
        if chunk.retaining.is_empty() {
            self.chunks.remove(&id);
            assert_eq!(read(&self.node, id, 0, 1), Err(RefusalWhy::NotThere));
        }
    }

    fn abandon(&mut self) {
        let Some(id) = self.pick(|_| true) else { return };
        let stamp = self.stamp();
        tell(&self.node, StoreMessage::AbandonBlob { blob: id.blob, stamp }, &[]).unwrap();
        self.chunks.retain(|known, chunk| *known != id || chunk.is_sealed);
    }

    fn take_over(&mut self) {
        let old = self.stamp();
        self.epoch = Epoch(self.epoch.0 + 1);
        let stamp = self.stamp();
        tell(&self.node, StoreMessage::PromiseEpoch { stamp }, &[]).unwrap();
        let chunk = ChunkId { blob: BlobId::random(&mut self.rng), index: 0 };
        assert_eq!(put(&self.node, chunk, old, 0, b"late"), Err(RefusalWhy::Fenced));
    }

    fn restart(&mut self) {
        self.fs = match self.rng.bool() {
            true => self.fs.crash_clone(self.rng.u64(..)),
            false => self.fs.kill_clone(),
        };
        self.node = open(&self.fs);
        self.chunks.retain(|_, chunk| chunk.is_sealed);
        self.check();
    }

    fn check(&self) {
        for volume in [VOLUME, CHECKPOINT] {
            let of_volume = self.chunks.iter().filter(|(_, c)| c.retaining.contains(&volume));
            let expected: Vec<BlobEntry> = of_volume
                .map(|(id, chunk)| BlobEntry {
                    blob: id.blob,
                    epoch: if volume == VOLUME { chunk.epoch } else { Epoch(0) },
                    is_sealed: chunk.is_sealed,
                })
                .collect();
            assert_eq!(list(&self.node, volume), expected);
        }
        let report = scrub(&self.node);
        assert_eq!((report.scrub.damaged_chunks, report.chunks_unreadable), (0, 0));
        let sealed = self.chunks.values().filter(|chunk| chunk.is_sealed);
        assert_eq!(report.chunks, sealed.count() as u64);
        let of_volumes: u64 = report.volumes.iter().map(|volume| volume.bytes).sum();
        assert_eq!(report.space.used_bytes, of_volumes, "space adds up");
        for (id, chunk) in &self.chunks {
            assert_eq!(read(&self.node, *id, 0, chunk.bytes.len()).unwrap(), chunk.bytes);
        }
    }
}

#[test]
fn chunks_agree_with_a_model_over_restarts() {
    for seed in 0..12 {
        let mut model = Model::new(seed);
        for _ in 0..150 {
            model.step();
        }
        model.restart();
    }
}

#[test]
fn threads_write_read_and_release_in_parallel() {
    let fs = MemFs::new();
    let node = open(&fs);
    let stamp = Stamp { volume: VOLUME, epoch: Epoch(1) };
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let node = &node;
            scope.spawn(move || {
                let rng = &mut Rng::with_seed(u64::from(thread));
                for _ in 0..40 {
                    let chunk = ChunkId { blob: BlobId::random(rng), index: 0 };
                    let bytes = vec![thread; rng.usize(1..3 * PIECE)];
                    put(node, chunk, stamp, 0, &bytes).unwrap();
                    seal(node, chunk, stamp, bytes.len()).unwrap();
                    assert_eq!(read(node, chunk, 0, bytes.len()).unwrap(), bytes);
                    if rng.u8(0..4) > 0 {
                        let blobs = vec![chunk.blob];
                        tell(node, StoreMessage::Release { blobs, stamp }, &[]).unwrap();
                    }
                }
            });
        }
        let node = &node;
        scope.spawn(move || {
            for _ in 0..5 {
                assert_eq!(scrub(node).scrub.damaged_chunks, 0);
            }
        });
    });
    let listed = list(&node, VOLUME);
    assert_eq!(report(&node).chunks, listed.len() as u64);
    drop(node);
    assert_eq!(list(&open(&fs), VOLUME), listed);
}

#[test]
fn racing_requests_for_one_chunk_leave_one_outcome() {
    for seed in 0..30 {
        let fs = MemFs::new();
        let node = open(&fs);
        let chunk = ChunkId { blob: BlobId::random(&mut Rng::with_seed(seed)), index: 0 };
        let stamp = Stamp { volume: VOLUME, epoch: Epoch(1) };
        let bytes = vec![7; 2 * PIECE];
        let done = |answer: Result<(), RefusalWhy>| {
            // A refusal is permitted, because the other threads seal and release.
            let _outcome = answer;
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    done(put(&node, chunk, stamp, 0, &bytes));
                    done(seal(&node, chunk, stamp, bytes.len()));
                });
            }
            scope.spawn(|| {
                let blobs = vec![chunk.blob];
                done(tell(&node, StoreMessage::Release { blobs, stamp }, &[]));
            });
        });
        let is_listed = list(&node, VOLUME).iter().any(|entry| entry.is_sealed);
        assert_eq!(read(&node, chunk, 0, bytes.len()).as_ref() == Ok(&bytes), is_listed);
        drop(node);
        let after: Vec<_> = list(&open(&fs), VOLUME);
        assert_eq!(after.len(), usize::from(is_listed), "seed {seed}");
    }
}

#[test]
fn chunks_live_on_local_disks() {
    let root = tempfile::tempdir().unwrap();
    let dirs = ["a", "b"].map(|name| root.path().join(name));
    let open = || {
        let fs = Arc::new(archipelago_env::local::LocalFs::new());
        StorageNode::open(fs, &dirs, NodeOptions::default()).unwrap()
    };
    let rng = &mut Rng::with_seed(4);
    let stamp = Stamp { volume: VOLUME, epoch: Epoch(1) };
    let mut written = Vec::new();
    let node = open();
    for _ in 0..8 {
        let chunk = ChunkId { blob: BlobId::random(rng), index: 0 };
        let mut bytes = vec![0; rng.usize(1..600_000)];
        rng.fill(&mut bytes);
        put(&node, chunk, stamp, 0, &bytes).unwrap();
        assert_eq!(read(&node, chunk, 0, bytes.len()).unwrap(), bytes, "before the seal");
        seal(&node, chunk, stamp, bytes.len()).unwrap();
        written.push((chunk, bytes));
    }
    let (released, _) = written.pop().unwrap();
    let blobs = vec![released.blob];
    tell(&node, StoreMessage::Release { blobs, stamp }, &[]).unwrap();
    assert_eq!(scrub(&node).scrub.damaged_chunks, 0);
    node.close().unwrap();
    drop(node);
    let node = open();
    assert_eq!(list(&node, VOLUME).len(), written.len());
    for (chunk, bytes) in &written {
        assert_eq!(&read(&node, *chunk, 0, bytes.len()).unwrap(), bytes);
    }
    let report = report(&node);
    assert!(report.devices.iter().all(|device| device.space.used_bytes > 0), "both are used");
    assert!(report.space.capacity_bytes < u64::MAX, "the disks say how large they are");
}
