//! Tests of the chunks of a node, over disks in memory.

mod crashes;
mod damage;
mod devices;
mod removals;
mod repairs;
mod sets;
mod writing;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::Epoch;
use archipelago_env::mem::MemFs;
use archipelago_env::{FileClass, FileSystem};
use archipelago_fabric::ClientId;
use archipelago_store::nodes::layout::Scheme;
use archipelago_store::nodes::placement::WritePurpose;
use archipelago_store::nodes::wire::{
    BlobEntry, ChunkDescriptor, ChunkId, ChunkRange, Holder, PlacementEpoch, RefusalWhy, Stamp,
    StoreMessage,
};
use archipelago_store::{BlobId, VolumeId};

use super::CHUNKS_NAME;
use crate::meta::MetaThreads;
use crate::node::StorageNode;
use crate::parts::NodeOptions;

pub(crate) const VOLUME: VolumeId = VolumeId([0xa1; 16]);
pub(crate) const OTHER: VolumeId = VolumeId([0xa2; 16]);
pub(crate) const STAMP: Stamp = Stamp { volume: VOLUME, epoch: Epoch(3) };
/// A length of three pieces, the last of which is short.
pub(crate) const LEN: usize = 2 * 4096 + 100;

pub(crate) fn options() -> NodeOptions {
    NodeOptions { meta_threads: MetaThreads::Caller, seed: Some(7), ..NodeOptions::default() }
}

pub(crate) fn open_with(
    fs: Arc<dyn FileSystem>,
    dirs: &[&str],
    options: NodeOptions,
) -> Arc<StorageNode> {
    let dirs: Vec<PathBuf> = dirs.iter().map(PathBuf::from).collect();
    StorageNode::open(fs, &dirs, options).unwrap()
}

pub(crate) fn open(fs: &MemFs) -> Arc<StorageNode> {
    open_with(Arc::new(fs.clone()), &["/n"], options())
}

pub(crate) fn chunk(number: u8) -> ChunkId {
    ChunkId { blob: BlobId([number; 16]), index: 0 }
}

pub(crate) fn bytes(number: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(number)).collect()
}

pub(crate) fn ask(
    node: &StorageNode,
    message: StoreMessage,
    payload: &[u8],
) -> (StoreMessage, Vec<u8>) {
    node.handle(ClientId(1), message, payload)
}

/// Sends a request whose answer is *done*.
pub(crate) fn tell(node: &StorageNode, message: StoreMessage) -> Result<(), RefusalWhy> {
    done(ask(node, message, &[]).0)
}

fn done(answer: StoreMessage) -> Result<(), RefusalWhy> {
    match answer {
        StoreMessage::Done {} => Ok(()),
        StoreMessage::Refuse { why, .. } => Err(why),
        other => panic!("{other:?}"),
    }
}

/// A put of the writer of `STAMP`.
pub(crate) fn put_message(chunk: ChunkId, offset: u64, payload: &[u8]) -> StoreMessage {
    StoreMessage::PutChunk {
        chunk,
        stamp: Some(STAMP),
        class: FileClass::Sst,
        purpose: WritePurpose::Job,
        offset,
        crcs: chunk.checksums().piece_crcs(offset, payload),
    }
}

pub(crate) fn put(
    node: &StorageNode,
    chunk: ChunkId,
    offset: u64,
    payload: &[u8],
) -> Result<(), RefusalWhy> {
    done(ask(node, put_message(chunk, offset, payload), payload).0)
}

pub(crate) fn descriptor(node: &StorageNode, chunk: ChunkId, len: usize) -> ChunkDescriptor {
    ChunkDescriptor {
        chunk,
        written: STAMP,
        class: FileClass::Sst,
        scheme: Scheme::Replicas(3),
        is_coding_due: false,
        blob_bytes: len as u64,
        placement: PlacementEpoch::WRITTEN,
        holders: vec![Holder { storage: node.storage(), chunk: 0 }],
        retaining: vec![VOLUME],
    }
}

pub(crate) fn seal(node: &StorageNode, chunk: ChunkId, len: usize) -> Result<(), RefusalWhy> {
    let descriptor = descriptor(node, chunk, len);
    tell(node, StoreMessage::SealChunk { stamp: Some(STAMP), descriptor })
}

/// Writes and seals a chunk of `len` bytes.
pub(crate) fn write(node: &StorageNode, number: u8, len: usize) {
    put(node, chunk(number), 0, &bytes(number, len)).unwrap();
    seal(node, chunk(number), len).unwrap();
}

/// Reads a range as a client does, which checks every piece.
pub(crate) fn read(
    node: &StorageNode,
    chunk: ChunkId,
    start: usize,
    end: usize,
) -> Result<Vec<u8>, RefusalWhy> {
    let ranges = vec![ChunkRange { start: start as u64, end: end as u64 }];
    let (crcs, payload) = match ask(node, StoreMessage::ReadChunk { chunk, ranges }, &[]) {
        (StoreMessage::ChunkBytes { crcs }, payload) => (crcs, payload),
        (StoreMessage::Refuse { why, .. }, _) => return Err(why),
        other => panic!("{other:?}"),
    };
    let first = start / 4096 * 4096;
    match chunk.checksums().first_damaged_piece(first as u64, &payload, &crcs) {
        None => Ok(payload[start - first..end - first].to_vec()),
        Some(_) => Err(RefusalWhy::Damaged),
    }
}

/// Whether the chunk that [`write`] wrote is there with all its bytes.
pub(crate) fn is_whole(node: &StorageNode, number: u8, len: usize) -> bool {
    read(node, chunk(number), 0, len) == Ok(bytes(number, len))
}

pub(crate) fn describe(node: &StorageNode, blob: BlobId) -> Vec<ChunkDescriptor> {
    match ask(node, StoreMessage::Describe { blob }, &[]).0 {
        StoreMessage::Descriptors { descriptors } => descriptors,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn release(node: &StorageNode, number: u8, stamp: Stamp) -> Result<(), RefusalWhy> {
    tell(node, StoreMessage::Release { blobs: vec![chunk(number).blob], stamp })
}

pub(crate) fn list(node: &StorageNode, volume: VolumeId) -> Vec<BlobEntry> {
    let mut listed = Vec::new();
    loop {
        let after = listed.last().map(|entry: &BlobEntry| entry.blob);
        match ask(node, StoreMessage::ListBlobs { volume, after }, &[]).0 {
            StoreMessage::Blobs { blobs, has_more } => {
                listed.extend(blobs);
                if !has_more {
                    return listed;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Paths of all files of chunks on a device.
pub(crate) fn files(fs: &dyn FileSystem, device: &str) -> Vec<PathBuf> {
    let root = Path::new(device).join(CHUNKS_NAME);
    if !fs.exists(&root).unwrap() {
        return Vec::new();
    }
    let dirs = fs.list(&root).unwrap().into_iter().map(|entry| root.join(entry.name));
    let inside = |dir: PathBuf| {
        let names = fs.list(&dir).unwrap();
        names.into_iter().map(move |entry| dir.join(entry.name))
    };
    dirs.flat_map(inside).collect()
}
